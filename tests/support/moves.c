/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/moves.h"

#include <dtensor/tensor.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "dtensor/copy_to.h"
#include "mesh/runtime.h"
#include "placements/cross.h"
#include "placements/plan.h"
#include "tests/support/counting.h"
#include "tests/support/dt_test.h"
#include "tests/support/torch_plans.h"

enum { MAX_ELEMENTS = 6000, PAIRS_PER_RUN = 50 };

/* --- random numbers, the same on every rank --------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int below(uint64_t *state, int n)
{
    *state += 0x9e3779b97f4a7c15u;
    return (int)(mix(*state) % (uint64_t)n);
}

/* --- a random case ---------------------------------------------------------------------------- */

typedef struct random_case {
    dt_dtype dtype;
    int n_axes;
    int64_t shape[DT_MAX_AXES];
    int64_t n; /* elements */
    uint64_t value_seed;
    const dt_layout *from;
    const dt_layout *to;
} random_case;

static void random_shape(uint64_t *rng, random_case *c)
{
    do {
        c->n = 1;
        c->n_axes = below(rng, 5);
        for (int a = 0; a < c->n_axes; a++) {
            c->shape[a] = below(rng, 18);
            c->n *= c->shape[a];
        }
    } while (c->n > MAX_ELEMENTS);
    c->dtype = (dt_dtype)below(rng, DT_N_DTYPES);
    c->value_seed = mix(*rng);
}

/* n ascending numbers from 0 to `last`, with repetitions. */
static void random_offsets(uint64_t *rng, int n, int64_t last, int64_t *out)
{
    for (int i = 0; i < n; i++) {
        const int64_t x = i == 0 ? 0 : i == n - 1 ? last : below(rng, (int)last + 1);
        int at = i;
        for (; at > 0 && out[at - 1] > x; at--) out[at] = out[at - 1];
        out[at] = x;
    }
}

static dt_placement random_shard(uint64_t *rng, const random_case *c, int ranks, int64_t *numbers)
{
    dt_placement p = DT_SHARD(below(rng, c->n_axes));
    const int64_t rows = c->shape[p.axis];

    switch (below(rng, 8)) {
    case 0:
        p.unit = 1 + below(rng, 5);
        break;
    case 1:
        p.replicas = 1 + below(rng, ranks);
        while (ranks % p.replicas != 0) p.replicas--;
        break;
    case 2:
        random_offsets(rng, ranks + 1, rows, numbers);
        return dt_shard_offsets(p.axis, ranks + 1, numbers);
    case 3: {
        const int n = 1 + below(rng, 4);
        random_offsets(rng, n + 1, rows, numbers);
        for (int b = 0; b < n; b++) numbers[b] = numbers[b + 1] - numbers[b];
        p.n_blocks = n;
        p.blocks = numbers;
        p.unit = 1 + below(rng, 2);
        if (below(rng, 2) == 0) { /* each its own */
            p.unit = 1;
            p.units = numbers + n + 1;
            for (int b = 0; b < n; b++) numbers[n + 1 + b] = 1 + below(rng, 3);
        }
        break;
    }
    default:
        break;
    }
    return p;
}

/* Do terms of a Shard, a sum, fit what else the layout, or the one it comes from, has to reduce? */
static bool takes_sums(const dt_layout *l)
{
    for (int m = 0; m < l->n_dims; m++)
        if ((l->partial_dims >> m & 1u) && l->place[m].reduce != DT_SUM &&
            l->place[m].reduce != DT_AVG)
            return false;
    return true;
}

/* With terms = the layout that the tensor comes from, Partial only where that is. NULL: anything.
 */
static dt_status random_layout(uint64_t *rng, const random_case *c, dt_mesh *mesh,
                               const dt_layout *terms, const dt_layout **out)
{
    static const dt_reduce all[] = { DT_SUM, DT_AVG, DT_MIN, DT_MAX, DT_PROD };
    const int n = dt_mesh_n_dims(mesh);
    const bool partial = terms == NULL && c->dtype != DT_U8 && below(rng, 2) == 0;
    const dt_reduce reduce = all[below(rng, 5)];
    const bool sums = terms != NULL ? takes_sums(terms) : !partial || reduce <= DT_AVG;

    for (;;) {
        dt_placement place[DT_MAX_DIMS];
        int64_t numbers[DT_MAX_DIMS][16];
        int order[DT_MAX_DIMS] = { 0 };
        for (int m = 0; m < n; m++) {
            const int kind = below(rng, 4), k = below(rng, m + 1);
            place[m] = DT_REPLICATE;
            if (kind > 0 && c->n_axes > 0)
                place[m] = random_shard(rng, c, dt_mesh_dim_size(mesh, m), numbers[m]);
            place[m].terms = sums && c->dtype != DT_U8 && place[m].replicas > 1 &&
                             place[m].replicas < dt_mesh_dim_size(mesh, m) && below(rng, 2) == 0;
            if (partial && below(rng, 2) == 0)
                place[m] = DT_PARTIAL(reduce == DT_SUM && below(rng, 2) == 0 ? DT_AVG : reduce);
            if (terms != NULL && (terms->partial_dims >> m & 1u) && below(rng, 4) == 0 &&
                (!terms->place[m].terms || dt_mesh_dim_size(mesh, m) == terms->dim_size[m]))
                place[m] = terms->place[m];
            order[m] = order[k];
            order[k] = m;
        }
        DT_TRY(dt_layout_get(mesh, c->n_axes, place, order, out));
        if (dti_layout_fits(*out, c->shape)) return DT_OK; /* tables below other cuts rarely do */
    }
}

/* --- values ----------------------------------------------------------------------------------- */

/* How many ranks of a mesh dim that is Partial, or a Shard with terms, hold terms of a sum. */
static int terms_along(const dt_layout *l, int m)
{
    return l->place[m].terms ? l->place[m].replicas : l->dim_size[m];
}

/* Terms whose sums, averages and products are exact in every order and dtype: a multiple of what
 * averages divide by, at most 8 * 3 * 8; powers of two for products. */
static double term(const random_case *c, int64_t index, const int *coord)
{
    uint64_t h = c->value_seed ^ (uint64_t)index * 0x9e3779b97f4a7c15u;
    double averaged = 1;
    bool multiplied = false;

    for (int m = 0; m < c->from->n_dims; m++) {
        if (!(c->from->partial_dims >> m & 1u)) continue;
        h = mix(h ^ (uint64_t)(coord[m] % terms_along(c->from, m) + 1 + 16 * m));
        if (c->from->place[m].reduce == DT_AVG) averaged *= c->from->dim_size[m];
        multiplied = multiplied || c->from->place[m].reduce == DT_PROD;
    }
    h = mix(h);
    if (multiplied) return 1 + (double)(h & 1);
    return c->from->partial_dims != 0 ? averaged * (double)(h & 3) : (double)(h % 251);
}

static double reduced(dt_reduce op, double a, double b)
{
    if (op == DT_MIN || op == DT_MAX) return (op == DT_MIN) == (b < a) ? b : a;
    return op == DT_PROD ? a * b : a + b;
}

/* The element where dims in `kept` are still terms: those of `coord`. */
static double value(const random_case *c, int64_t index, uint32_t kept, const int *coord)
{
    const uint32_t lost = c->from->partial_dims & ~kept;
    int at[DT_MAX_DIMS] = { 0 }, n = 1;
    double sum = 0, divisor = 1;
    dt_reduce op = DT_SUM;

    for (int m = 0; m < c->from->n_dims; m++) {
        if (kept >> m & 1u) at[m] = coord[m];
        if (!(lost >> m & 1u)) continue;
        n *= terms_along(c->from, m);
        op = c->from->place[m].reduce;
        if (op == DT_AVG) divisor *= c->from->dim_size[m];
    }
    for (int i = 0; i < n; i++) {
        for (int m = 0, rest = i; m < c->from->n_dims; m++) {
            if (!(lost >> m & 1u)) continue;
            at[m] = rest % terms_along(c->from, m);
            rest /= terms_along(c->from, m);
        }
        sum = i == 0 ? term(c, index, at) : reduced(op, sum, term(c, index, at));
    }
    return sum / divisor;
}

static double load(const void *data, dt_dtype t, int64_t i)
{
    switch (t) {
    case DT_F64:
        return ((const double *)data)[i];
    case DT_I32:
        return ((const int32_t *)data)[i];
    case DT_I64:
        return (double)((const int64_t *)data)[i];
    case DT_U8:
        return ((const uint8_t *)data)[i];
    default:
        return (double)dti_load_f32(data, t, i);
    }
}

static void store(void *data, dt_dtype t, int64_t i, double x)
{
    switch (t) {
    case DT_F64:
        ((double *)data)[i] = x;
        break;
    case DT_I32:
        ((int32_t *)data)[i] = (int32_t)x;
        break;
    case DT_I64:
        ((int64_t *)data)[i] = (int64_t)x;
        break;
    case DT_U8:
        ((uint8_t *)data)[i] = (uint8_t)x;
        break;
    default:
        dti_store_f32(data, t, i, (float)x);
        break;
    }
}

/* The rows of a rank's piece, axis by axis. */
typedef struct piece {
    int64_t n;
    dti_runs axis[DT_MAX_AXES];
} piece;

static void piece_of(const dt_layout *l, const random_case *c, const int *coord, piece *out)
{
    out->n = 1;
    for (int a = 0; a < c->n_axes; a++) {
        dti_layout_axis_runs(l, a, c->shape[a], coord, &out->axis[a]);
        out->n *= out->axis[a].total;
    }
}

/* Global row-major index of element i of a piece. */
static int64_t global_index(const random_case *c, const piece *p, int64_t i)
{
    int64_t index = 0, stride = 1;

    for (int a = c->n_axes - 1; a >= 0; a--) {
        int64_t row = i % p->axis[a].total;
        int k = 0;
        i /= p->axis[a].total;
        for (; row >= p->axis[a].run[k].end - p->axis[a].run[k].begin; k++)
            row -= p->axis[a].run[k].end - p->axis[a].run[k].begin;
        index += (p->axis[a].run[k].begin + row) * stride;
        stride *= c->shape[a];
    }
    return index;
}

static void coords_of(const dt_mesh *mesh, int *coord)
{
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) coord[m] = dt_mesh_coord(mesh, m);
}

/* The case's tensor, each rank's piece filled by itself. */
static dt_status make_tensor(const random_case *c, dt_mesh *mesh, dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS];
    dt_status st = DT_OK;
    int coord[DT_MAX_DIMS];
    void *data;
    piece p;

    coords_of(mesh, coord);
    piece_of(c->from, c, coord, &p);
    DT_TRY(dti_alloc((size_t)p.n * dt_dtype_size(c->dtype) + 1, &data));
    for (int64_t i = 0; i < p.n; i++)
        store(data, c->dtype, i, term(c, global_index(c, &p, i), coord));
    for (int m = 0; m < c->from->n_dims; m++) place[m] = dt_layout_placement(c->from, m);
    st = dt_from_local(mesh, place, c->dtype, c->n_axes, c->shape, data, out);
    dti_free(data);
    return st;
}

/* Every element of this rank's piece. `first` is the mesh of the case, for terms that are kept. */
static dt_status check_values(const random_case *c, const dt_tensor *y, const dt_mesh *first)
{
    const dt_layout *l = dt_tensor_layout(y);
    const dt_mesh *mesh = dt_tensor_mesh(y);
    const dt_local *local = dt_tensor_local(y);
    const uint32_t kept = mesh == first ? l->partial_dims : 0;
    int coord[DT_MAX_DIMS], first_coord[DT_MAX_DIMS];
    piece p;

    if (!dt_mesh_is_member(mesh)) return DT_OK;
    coords_of(mesh, coord);
    coords_of(first, first_coord);
    piece_of(l, c, coord, &p);
    for (int a = 0; a < c->n_axes; a++) DT_EXPECT_EQ_INT(local->shape[a], p.axis[a].total);
    for (int64_t i = 0; i < p.n; i++) {
        const int64_t index = global_index(c, &p, i);
        const double want = value(c, index, kept, first_coord),
                     got = load(local->data, c->dtype, i);
        DT_EXPECT(got >= want && got <= want, "element %lld of the whole is %g, not %g",
                  (long long)index, got, want);
    }
    return DT_OK;
}

/* Terms of a Shard are the layout's affair: what counts is their sum. */
static dt_status check_sums(const random_case *c, dt_tensor *y, const dt_mesh *first)
{
    const dt_layout *l = dt_tensor_layout(y);
    dt_placement place[DT_MAX_DIMS];
    dt_tensor *sums;
    dt_status st;

    if (dti_layout_terms(l) == 0) return check_values(c, y, first);
    for (int m = 0; m < l->n_dims; m++) {
        place[m] = dt_layout_placement(l, m);
        place[m].terms = false;
    }
    DT_TRY(dt_redistribute(y, place, &sums));
    st = check_values(c, sums, first);
    dt_tensor_release(&sums);
    return st;
}

/* --- one pair --------------------------------------------------------------------------------- */

/* Bytes that were handed over are those of the plan; PyTorch's plans move no less. */
static dt_status check_bytes(const random_case *c, dt_mesh *mesh, dt_counted counted)
{
    dti_cost_model model = { .shape = c->shape, .element_bytes = dt_dtype_size(c->dtype) };
    int64_t sent = 0, received = 0;
    int me[DT_MAX_DIMS];
    dti_probes probes;
    dti_move plan;
    bool any;

    coords_of(mesh, me);
    for (int m = 0; m < c->from->n_dims; m++) model.link[m] = dt_mesh_link(mesh, m);
    DT_TRY(dti_plan(c->from, c->to, &model, &plan, &any));
    for (int i = 0; i < plan.n_steps; i++) {
        sent += dti_move_bytes_sent(&plan.step[i], c->shape, model.element_bytes, me);
        received += dti_move_bytes(&plan.step[i], c->shape, model.element_bytes, me);
    }
    DT_EXPECT(counted.sent == sent && counted.received == received,
              "%lld bytes sent and %lld received, predicted were %lld and %lld",
              (long long)counted.sent, (long long)counted.received, (long long)sent,
              (long long)received);
    if (dti_mesh_place(mesh) != 0 || !torch_can_say(c->from) || !torch_can_say(c->to)) return DT_OK;
    if (model.element_bytes == 2) { /* theirs would round half floats at every step */
        model.element_bytes = 4;
        DT_TRY(dti_plan(c->from, c->to, &model, &plan, &any));
    }
    dti_probes_of(c->from, &probes);
    const torch_bytes theirs = torch_plans(c->from, c->to, c->shape, model.element_bytes);
    const double ours = dti_plan_ns(&plan, &model, &probes);
    DT_EXPECT(ours <= (double)theirs.graph && (theirs.greedy < 0 || ours <= (double)theirs.greedy),
              "%g bytes, PyTorch's planners move %lld (greedy) and %lld (graph)", ours,
              (long long)theirs.greedy, (long long)theirs.graph);
    return DT_OK;
}

static void placements_of(const dt_layout *l, dt_placement *place)
{
    for (int m = 0; m < l->n_dims; m++) place[m] = dt_layout_placement(l, m);
}

/* Ranks tell each other what their meshes cost, `comm` being all of them, and then copy. */
static dt_status check_copy_bytes(const random_case *c, const dt_tensor *x, const dt_tensor *y,
                                  const dti_comm *comm, dt_counted counted)
{
    const int64_t told = comm == NULL ? 0 : 2 * (comm->size - 1) * DTI_COPY_WORDS * 8 / comm->size;
    const dt_mesh *from = dt_tensor_mesh(x), *to = dt_tensor_mesh(y);
    int coord[DT_MAX_DIMS] = { 0 };
    dti_receiver receiver = { .member = dt_mesh_is_member(from) };
    int64_t want = 0;

    coords_of(from, receiver.coord);
    coords_of(to, coord);
    if (dt_mesh_is_member(to))
        want = dti_cross_bytes(dt_tensor_layout(x), &receiver, dt_tensor_layout(y), coord, c->shape,
                               dt_dtype_size(c->dtype));
    DT_EXPECT_EQ_INT(counted.received, want + told);
    return DT_OK;
}

/* A copy of x to a mesh, its bytes counted unless terms are reduced first. */
static dt_status copy_and_check(uint64_t *rng, const random_case *c, dt_tensor *x, dt_mesh *mesh,
                                const dt_mesh *first, dt_tensor **y)
{
    const bool terms = dt_tensor_layout(x)->partial_dims != 0;
    dt_placement place[DT_MAX_DIMS];
    const dt_layout *want;
    dti_comm *comm;

    DT_TRY(random_layout(rng, c, mesh, dt_tensor_layout(x), &want));
    placements_of(want, place);
    for (int m = 0; m < want->n_dims; m++) place[m] = dti_placement_reduced(&place[m]);
    DT_TRY(dti_mesh_union_comm(dt_tensor_mesh(x), mesh, &comm));
    if (comm != NULL) dt_count_comm(comm);
    (void)dt_counted_take();
    DT_TRY(dt_copy_to(x, mesh, place, y));
    const dt_counted counted = dt_counted_take();
    DT_TRY(check_values(c, *y, first));
    if (!terms && !dt_mesh_equal(dt_tensor_mesh(x), mesh))
        DT_TRY(check_copy_bytes(c, x, *y, comm, counted));
    return DT_OK;
}

static dt_status run_pair(uint64_t *rng, const random_case *c, dt_mesh *const *meshes)
{
    DT_HELD(tensor) *x = NULL, *y = NULL, *a = NULL, *b = NULL, *back = NULL;
    dt_placement place[DT_MAX_DIMS];

    DT_TRY(make_tensor(c, meshes[0], &x));
    placements_of(c->to, place);
    (void)dt_counted_take();
    DT_TRY(dt_redistribute(x, place, &y));
    DT_TRY(check_bytes(c, meshes[0], dt_counted_take()));
    DT_TRY(check_sums(c, y, meshes[0]));
    DT_TRY(copy_and_check(rng, c, x, meshes[1], meshes[0], &a));
    DT_TRY(copy_and_check(rng, c, a, meshes[2], meshes[0], &b));
    DT_TRY(copy_and_check(rng, c, b, meshes[0], meshes[0], &back));
    return DT_OK;
}

/* --- one run ---------------------------------------------------------------------------------- */

/* A mesh of other shape over some of the ranks, in any order. */
static dt_status random_mesh(uint64_t *rng, dt_runtime *rt, dt_mesh **out)
{
    static const char *const specs[] = { "u=1", "u=2",     "u=3",         "v=2,u=2",
                                         "u=5", "v=3,u=2", "w=2,v=2,u=2", "v=2,u=4" };
    int ranks[8] = { 0 }, n_dims, sizes[DT_MAX_DIMS], n;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    const char *spec;

    do {
        spec = specs[below(rng, (int)DT_COUNT(specs))];
        DT_TRY(dt_mesh_parse(spec, &n_dims, names, sizes, &n));
    } while (n > dt_runtime_size(rt));
    for (int r = 0; r < dt_runtime_size(rt); r++) {
        const int k = below(rng, r + 1);
        ranks[r] = ranks[k];
        ranks[k] = r;
    }
    return dt_mesh_create_ranks(rt, spec, ranks, out);
}

typedef struct run_arg {
    uint64_t seed;
    int pairs;
} run_arg;

static dt_status failed_at(const run_arg *run, int pair, const random_case *c)
{
    char from[160] = "", to[160] = "";

    if (c->from != NULL) (void)dt_layout_print(c->from, from, sizeof from);
    if (c->to != NULL) (void)dt_layout_print(c->to, to, sizeof to);
    dti_error_prefix("seed %llu, pair %d, %s[%lld %lld %lld %lld] of %d axes, %s -> %s",
                     (unsigned long long)run->seed, pair, dt_dtype_name(c->dtype),
                     (long long)c->shape[0], (long long)c->shape[1], (long long)c->shape[2],
                     (long long)c->shape[3], c->n_axes, from, to);
    return dt_last_error()->code;
}

static dt_status moves(dt_mesh *mesh, const void *arg)
{
    const run_arg *run = arg;
    dt_mesh *meshes[3] = { mesh, NULL, NULL };
    uint64_t rng = mix(run->seed);
    dt_link links[DT_MAX_DIMS];
    dt_status st = DT_OK;

    for (int m = 0; m < DT_MAX_DIMS; m++) links[m] = (dt_link){ 0, 1 };
    DT_TRY(dt_mesh_set_links(mesh, links));
    DT_TRY(dt_count_mesh(mesh));
    DT_TRY_TO(done, st, random_mesh(&rng, dt_mesh_runtime(mesh), &meshes[1]));
    DT_TRY_TO(done, st, random_mesh(&rng, dt_mesh_runtime(mesh), &meshes[2]));
    for (int i = 0; i < run->pairs && st == DT_OK; i++) {
        random_case c = { 0 };
        random_shape(&rng, &c);
        st = random_layout(&rng, &c, mesh, NULL, &c.from);
        if (st == DT_OK) st = random_layout(&rng, &c, mesh, c.from, &c.to);
        if (st == DT_OK) st = run_pair(&rng, &c, meshes);
        if (st != DT_OK) st = failed_at(run, i, &c);
    }
done:
    dt_count_end();
    dt_mesh_release(&meshes[1]);
    dt_mesh_release(&meshes[2]);
    return st;
}

void dt_test_random_moves(unsigned seed, int pairs)
{
    static const char *const meshes[] = { "a=1",     "a=2",     "a=3",        "a=4",
                                          "a=2,b=2", "a=3,b=2", "a=2,b=3",    "a=2,b=2,c=2",
                                          "a=4,b=2", "a=7",     "a=2,b=4",    "a=5",
                                          "a=1,b=4", "a=8",     "a=2,b=1,c=3" };
    int left = pairs;

    for (unsigned i = 0; left > 0; i++) {
        const run_arg run = { seed * 100003u + i, left < PAIRS_PER_RUN ? left : PAIRS_PER_RUN };
        dt_test_on_ranks(meshes[i % DT_COUNT(meshes)], moves, &run);
        left -= run.pairs;
    }
}
