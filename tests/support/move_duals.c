/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/move_duals.h"

#include <dtensor/collectives.h>
#include <dtensor/tensor.h>
#include <stdio.h>
#include <string.h>

#include "placements/duals.h"
#include "placements/move.h"
#include "tests/support/dt_test.h"

enum { N_AXES = 2, MAX_ELEMENTS = 32, MAX_PLACES = 12, MAX_LAYOUTS = 512, TEXT_BYTES = 64 };

/* --- layouts ---------------------------------------------------------------------------------- */

/* Least number of neighbours that divides p; p itself if it is a prime. */
static int neighbours(int p)
{
    int r = 2;

    while (p > 1 && p % r != 0) r++;
    return p == 1 ? 1 : r;
}

/* The placements to try on a dim of p ranks; of `most` dims fewer each. */
static int places_of(int p, int n_dims, char place[][TEXT_BYTES])
{
    const int r = neighbours(p);
    size_t at = 0;
    int n = 0;

    (void)snprintf(place[n++], TEXT_BYTES, "R");
    (void)snprintf(place[n++], TEXT_BYTES, "P(sum)");
    (void)snprintf(place[n++], TEXT_BYTES, "S(0)");
    (void)snprintf(place[n++], TEXT_BYTES, "S(0,unit=2,replicas=%d)", r);
    (void)snprintf(place[n++], TEXT_BYTES, "S(0,replicas=%d,sum)", r);
    if (n_dims > 2) return n;
    (void)snprintf(place[n++], TEXT_BYTES, "S(1)");
    if (n_dims > 1) return n;
    (void)snprintf(place[n++], TEXT_BYTES, "S(0,blocks=6:1:3)");
    (void)snprintf(place[n++], TEXT_BYTES, "S(0,blocks=6:4,units=3:1)");
    (void)snprintf(place[n++], TEXT_BYTES, "S(0,blocks=4:6,replicas=%d)", r);
    (void)snprintf(place[n++], TEXT_BYTES, "S(0,blocks=4:6,replicas=%d,sum)", r);
    at = (size_t)snprintf(place[n], TEXT_BYTES, "S(0,offsets=0");
    for (int k = 1; k <= p; k++) /* the first part is empty, and the last ones of many */
        at += (size_t)snprintf(place[n] + at, TEXT_BYTES - at, ":%d",
                               k == p || 4 * (k - 1) > 10 ? 10 : 4 * (k - 1));
    (void)snprintf(place[n++] + at, TEXT_BYTES - at, ")");
    return n;
}

/* All layouts of the mesh, each once. */
static dt_status all_layouts(dt_mesh *mesh, const dt_layout **out, int *n)
{
    static _Thread_local char place[DT_MAX_DIMS][MAX_PLACES][TEXT_BYTES];
    int choices[DT_MAX_DIMS], total = 1;

    *n = 0;
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        choices[m] = places_of(dt_mesh_dim_size(mesh, m), dt_mesh_n_dims(mesh), place[m]);
        total *= choices[m];
    }
    for (int i = 0; i < total; i++) {
        char text[DT_MAX_DIMS * TEXT_BYTES] = "";
        int seen = 0;
        for (int m = 0, rest = i; m < dt_mesh_n_dims(mesh); rest /= choices[m], m++)
            (void)strcat(text, place[m][rest % choices[m]]);
        DT_TRY(dt_layout_parse(mesh, N_AXES, text, &out[*n]));
        while (seen < *n && out[seen] != out[*n]) seen++;
        *n += seen == *n;
    }
    return DT_OK;
}

/* --- values ----------------------------------------------------------------------------------- */

/* Small integers: each term another, copies alike. */
static dt_status make(dt_mesh *mesh, const dt_layout *l, const int64_t *shape, uint32_t seed,
                      dt_tensor **out)
{
    int64_t data[MAX_ELEMENTS];
    uint32_t h = seed;

    *out = NULL;
    for (int m = 0; m < l->n_dims; m++) {
        const int c = dt_mesh_coord(mesh, m);
        const bool cuts = dti_has(l->shard_dims, m), terms = dti_has(l->partial_dims, m);
        h = h * 31u + (uint32_t)(terms ? 1 + c : cuts ? 1 + c / l->place[m].replicas : 0);
    }
    for (uint32_t i = 0; i < MAX_ELEMENTS; i++) {
        uint32_t x = (h * 64u + i) * 2654435761u;
        x = (x ^ x >> 15) * 2246822519u;
        data[i] = 1 + (int64_t)(x >> 16) % 97; /* none is 0, no sum is */
    }
    return dt_from_local(mesh, l->place, DT_I64, N_AXES, shape, data, out);
}

/* <value, gradient>: what ranks multiply, added up; once where both are whole. */
static dt_status product(const dt_tensor *value, const dt_tensor *gradient, int64_t *out)
{
    const dt_layout *v = dt_tensor_layout(value), *g = dt_tensor_layout(gradient);
    const dt_local *a = dt_tensor_local(value), *b = dt_tensor_local(gradient);
    dt_mesh *mesh = dt_tensor_mesh(value);
    int64_t sum = 0;
    bool counts = true;

    for (int m = 0; m < v->n_dims; m++)
        counts = counts && (dti_has(v->shard_dims | v->partial_dims | g->partial_dims, m) ||
                            dt_mesh_coord(mesh, m) == 0);
    for (int64_t i = 0; i < a->shape[0] * a->shape[1] && counts; i++)
        sum += ((const int64_t *)a->data)[i] * ((const int64_t *)b->data)[i];
    return dt_all_reduce(mesh, NULL, &sum, out, 1, DT_I64, DT_SUM);
}

/* --- duals ------------------------------------------------------------------------------------ */

/* The same pieces, as copies or whole. */
static dt_status take_for_value(const dt_tensor *dy, const int64_t *shape, dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS];
    const dt_layout *l = dt_tensor_layout(dy);

    for (int m = 0; m < l->n_dims; m++) place[m] = dti_placement_reduced(&l->place[m]);
    return dt_from_local(dt_tensor_mesh(dy), place, DT_I64, N_AXES, shape,
                         dt_tensor_local(dy)->data, out);
}

/* dx for the value that lies as `from`: one move, or what is wrong. */
static dt_status bring_back(dt_test_dual dual, const dt_layout *from, const int64_t *shape,
                            dt_tensor *dy, dt_tensor **dx)
{
    dt_placement place[DT_MAX_DIMS];
    DT_HELD(tensor) *terms = NULL;
    const dt_layout *want;

    *dx = NULL;
    if (dual == DT_DUAL_DROPS)
        DT_TRY(take_for_value(dy, shape, &terms));
    else
        terms = dt_tensor_retain(dy);
    DT_TRY(dti_dual_layout(from, dt_tensor_layout(terms), &want));
    (void)dt_layout_placements(want, place);
    for (int m = 0; m < want->n_dims && dual == DT_DUAL_COPIES; m++) place[m].terms = false;
    DT_TRY(dt_redistribute(terms, place, dx));
    if (dual == DT_DUAL_TWICE) {
        const dt_local *l = dt_tensor_local(*dx);
        int64_t data[MAX_ELEMENTS];
        for (int64_t i = 0; i < l->shape[0] * l->shape[1]; i++)
            data[i] = 2 * ((const int64_t *)l->data)[i];
        dt_tensor_release(dx);
        DT_TRY(dt_from_local(dt_tensor_mesh(dy), place, DT_I64, N_AXES, shape, data, dx));
    }
    return DT_OK;
}

/* Would the wrong dual give another gradient than the right one? */
static bool differs(dt_test_dual dual, const dt_layout *gradient, const dt_layout *comes)
{
    if (dual == DT_DUAL_COPIES) return dti_layout_terms(gradient) != 0;
    return dual != DT_DUAL_DROPS || comes->partial_dims != 0;
}

/* --- one pair --------------------------------------------------------------------------------- */

typedef struct duals_run {
    dt_test_dual dual;
    int least; /* pairs to which the dual makes a difference */
} duals_run;

static dt_status check_pair(dt_test_dual dual, dt_mesh *mesh, const int64_t *shape,
                            const dt_layout *const *pair, const dt_layout *comes, int *n)
{
    DT_HELD(tensor) *x = NULL, *y = NULL, *dy = NULL, *dx = NULL;
    const dt_layout *from = pair[0], *to = pair[1], *gradient, *right;
    int64_t forward, backward;
    char text[3][160];

    DT_TRY(dti_dual_layout(to, comes, &gradient));
    DT_TRY(dti_dual_layout(from, gradient, &right));
    const bool wrong = dual != DT_DUAL_RIGHT && shape[0] * shape[1] > 0;
    if (dual != DT_DUAL_RIGHT && !(wrong && differs(dual, right, gradient))) return DT_OK;
    DT_TRY(make(mesh, from, shape, 1, &x));
    DT_TRY(make(mesh, gradient, shape, 2, &dy));
    DT_TRY(dt_redistribute(x, to->place, &y));
    DT_TRY(bring_back(dual, from, shape, dy, &dx));
    DT_TRY(product(y, dy, &forward));
    DT_TRY(product(x, dx, &backward));
    (void)dt_layout_print(from, text[0], sizeof text[0]);
    (void)dt_layout_print(to, text[1], sizeof text[1]);
    (void)dt_layout_print(gradient, text[2], sizeof text[2]);
    DT_EXPECT((forward == backward) == !wrong,
              "dual %d of %s -> %s for %s[%lld, %lld]: <move(x), y> = %lld, <x, dual(y)> = %lld",
              (int)dual, text[0], text[1], text[2], (long long)shape[0], (long long)shape[1],
              (long long)forward, (long long)backward);
    ++*n;
    return DT_OK;
}

/* May the pair move? Whole values do not become Partial. */
static bool is_legal(const dt_layout *from, const dt_layout *to)
{
    return ((to->partial_dims & ~to->shard_dims) & ~(from->partial_dims & ~from->shard_dims)) == 0;
}

static dt_status all_pairs(dt_mesh *mesh, const void *arg)
{
    static const int64_t shapes[][N_AXES] = { { 10, 3 }, { 3, 4 }, { 1, 2 }, { 0, 3 } };
    static _Thread_local const dt_layout *layouts[MAX_LAYOUTS];
    const duals_run *run = arg;
    dt_placement terms[DT_MAX_DIMS];
    const dt_layout *all_terms;
    int n, n_pairs = 0;

    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) terms[m] = DT_PARTIAL(DT_SUM);
    DT_TRY(dt_layout_get(mesh, N_AXES, terms, NULL, &all_terms));
    DT_TRY(all_layouts(mesh, layouts, &n));
    for (int i = 0; i < n * n; i++) {
        const dt_layout *const pair[] = { layouts[i / n], layouts[i % n] };
        if (!is_legal(pair[0], pair[1])) continue;
        for (size_t s = 0; s < DT_COUNT(shapes); s++) {
            if (!dti_layout_fits(pair[0], shapes[s]) || !dti_layout_fits(pair[1], shapes[s]))
                continue;
            DT_TRY(check_pair(run->dual, mesh, shapes[s], pair, NULL, &n_pairs));
            DT_TRY(check_pair(run->dual, mesh, shapes[s], pair, all_terms, &n_pairs));
        }
    }
    DT_EXPECT(n_pairs >= run->least, "dual %d was tried on %d pairs", (int)run->dual, n_pairs);
    return DT_OK;
}

void dt_test_move_duals(const char *mesh, dt_test_dual dual, int least)
{
    const duals_run run = { dual, least };

    dt_test_on_ranks(mesh, all_pairs, &run);
}
