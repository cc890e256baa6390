/* SPDX-License-Identifier: Apache-2.0 */
#include "models/generation/scores.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/argmax.h"
#include "dtensor/kernels/random.h"
#include "mesh/runtime.h"

/* Weights are integers of this unit: exp(0) is 2^40, and 2^22 columns fit into 63 bits. */
static const double unit = 0x1p40;

void dti_scores_free(dti_scores *s)
{
    dti_free(s->data);
    dti_free(s->invalid);
    dti_free(s->columns);
    dti_free(s->tokens);
    dti_free(s->keys);
    *s = (dti_scores){ 0 };
}

dt_status dti_scores_comm(const dti_scores *s, dti_comm **out)
{
    *out = NULL;
    if (s->dims != 0) DT_TRY(dti_mesh_comm(s->mesh, s->dims, out));
    return DT_OK;
}

/* Over the ranks along some mesh dims (bits). */
static dt_status largest_keys(const dti_scores *s, uint32_t dims, int64_t n, int64_t *keys)
{
    dti_comm *comm;

    if (dims == 0) return DT_OK;
    DT_TRY(dti_mesh_comm(s->mesh, dims, &comm));
    if (comm != NULL) DT_TRY(dti_all_reduce(comm, keys, keys, n, DT_I64, DT_MAX));
    return DT_OK;
}

/* Among the ranks that have other columns, other rows, or the same: every rank knows all. */
dt_status dti_scores_share(const dti_scores *s, int64_t *keys)
{
    for (int64_t r = 0; r < s->all_rows; r++)
        if (r < s->first_row || r >= s->first_row + s->n_rows) keys[r] = INT64_MIN;
    DT_TRY(largest_keys(s, s->dims | s->copies | s->row_dims, s->all_rows, keys));
    return DT_OK;
}

static int64_t token_of(const dti_scores *s, int64_t r, int64_t i)
{
    return s->few ? s->tokens[r * s->n + i] : s->first + i;
}

/* --- the best ----------------------------------------------------------------------------- */

void dti_scores_find_best(const dti_scores *s, int64_t *best)
{
    for (int64_t r = 0; r < s->n_rows; r++) {
        const float *row = s->data + r * s->n;
        int64_t at = 0;
        best[r] = INT64_MIN;
        for (int64_t i = 1; i < s->n; i++)
            if (row[i] > row[at]) at = i;
        if (s->n > 0) best[r] = dti_argmax_key(row[at], token_of(s, r, at));
        if (s->invalid[r]) best[r] = dti_argmax_key(NAN, 0);
    }
}

dt_status dti_scores_best(const dti_scores *s, int64_t *best)
{
    dti_scores_find_best(s, best + s->first_row);
    DT_TRY(dti_scores_share(s, best));
    return DT_OK;
}

dt_status dti_scores_at(const dti_scores *s, const int32_t *tokens, float *out)
{
    int64_t *keys;
    dt_status st;

    DT_TRY(dti_alloc_array((size_t)s->all_rows, sizeof *keys, (void **)&keys));
    for (int64_t r = 0; r < s->n_rows; r++) {
        const int64_t of_all = s->first_row + r, i = tokens[of_all] - s->first;
        keys[of_all] =
            i >= 0 && i < s->n ? dti_argmax_key(s->data[r * s->n + i], tokens[of_all]) : INT64_MIN;
    }
    st = dti_scores_share(s, keys);
    for (int64_t r = 0; r < s->all_rows && st == DT_OK; r++) out[r] = dti_argmax_value(keys[r]);
    dti_free(keys);
    return st;
}

/* Random numbers of a row's tokens, two to a block of Philox. */
typedef struct noise {
    uint64_t seed;
    int64_t row, step;
    int64_t block; /* that `words` are of; -1: none yet */
    uint32_t words[4];
} noise;

/* In (0, 1), of 53 bits. */
static double uniform_of(noise *x, int64_t token)
{
    const int half = (int)(token & 1) * 2;

    if (x->block != token >> 1) {
        x->block = token >> 1;
        x->words[0] = (uint32_t)x->block;
        x->words[1] = (uint32_t)x->step;
        x->words[2] = (uint32_t)x->row;
        x->words[3] = 0x67656e65u; /* a stream of its own */
        dti_philox(x->words, (uint32_t)x->seed, (uint32_t)(x->seed >> 32));
    }
    return dti_uniform_f64(x->words[half], x->words[half + 1]) + 0x1p-54;
}

/* -ln(-ln(u)): steps of IEEE 754 alone, so the same bits everywhere. */
static double gumbel_of(double u)
{
    return dti_minus_ln_f64(dti_minus_ln_f64(u));
}

double dti_gumbel(uint64_t seed, int64_t row, int64_t step, int64_t token)
{
    noise x = { .seed = seed, .row = row, .step = step, .block = -1 };

    return gumbel_of(uniform_of(&x, token));
}

/* Whether noise of u cannot lift a score over one that is d > 0 above it: it is at most d if
 * 1 - u >= e^-d, and e^-d <= 2^-floor(d log2 e). Saves two logarithms for nearly all tokens. */
static bool cannot_reach(double u, double d)
{
    const int k = d < 60 ? (int)(d * 1.4426950408889634) : 86;

    return 1 - u >= 1.0 / (double)(k < 63 ? (uint64_t)1 << k : UINT64_MAX);
}

/* Columns come by rising token: of equal sums the first stays. */
static int64_t draw_from(const dti_scores *s, int64_t r, noise *x)
{
    const float *row = s->data + r * s->n;
    int64_t best = INT64_MIN;
    double top = 0;

    for (int64_t i = 0; i < s->n; i++) {
        const double score = (double)row[i];
        const int64_t token = token_of(s, r, i);
        const double u = row[i] == -INFINITY ? 0 : uniform_of(x, token);
        int64_t key;
        if (row[i] == -INFINITY) continue;
        if (best != INT64_MIN && score < top && cannot_reach(u, top - score)) continue;
        key = dti_argmax_key((float)(score + gumbel_of(u)), token);
        if (key <= best) continue;
        best = key;
        top = (double)dti_argmax_value(key);
    }
    return best;
}

int64_t dti_scores_draw_row(const dti_scores *s, int64_t r, uint64_t seed, int64_t row,
                            int64_t step)
{
    noise x = { .seed = seed, .row = row, .step = step, .block = -1 };

    return s->invalid[r] ? dti_argmax_key(NAN, 0) : draw_from(s, r, &x);
}

dt_status dti_scores_draw(const dti_scores *s, uint64_t seed, int64_t step, int64_t *best)
{
    for (int64_t r = 0; r < s->n_rows; r++)
        best[s->first_row + r] = dti_scores_draw_row(s, r, seed, s->above + s->first_row + r, step);
    DT_TRY(dti_scores_share(s, best));
    return DT_OK;
}

/* --- sums --------------------------------------------------------------------------------- */

/* Of a row that has no largest number, and that the choice will refuse: zeros. */
static void sum_row(const dti_scores *s, int64_t r, double largest, int64_t sums[2])
{
    const float *row = s->data + r * s->n;

    sums[0] = sums[1] = 0;
    if (!isfinite(largest)) return;
    for (int64_t i = 0; i < s->n; i++) {
        const double below = (double)row[i] - largest;
        double weight;
        if (row[i] == -INFINITY) continue;
        weight = exp(below);
        sums[0] += llrint(weight * unit);
        sums[1] += llrint(weight * below * unit);
    }
}

dt_status dti_scores_norms(const dti_scores *s, dti_norm *norm)
{
    const size_t n = (size_t)s->n_rows;
    int64_t *keys = NULL;
    dt_status st = DT_OK;
    dti_comm *comm;

    DT_TRY(dti_alloc_array(3 * n, sizeof *keys, (void **)&keys));
    dti_scores_find_best(s, keys);
    DT_TRY_TO(done, st, largest_keys(s, s->dims, s->n_rows, keys));
    for (size_t r = 0; r < n; r++) {
        norm[r].largest = (double)dti_argmax_value(keys[r]);
        sum_row(s, (int64_t)r, norm[r].largest, &keys[n + 2 * r]);
    }
    DT_TRY_TO(done, st, dti_scores_comm(s, &comm));
    if (comm != NULL)
        DT_TRY_TO(done, st,
                  dti_all_reduce(comm, keys + n, keys + n, 2 * (int64_t)n, DT_I64, DT_SUM));
    for (size_t r = 0; r < n; r++) {
        const double sum = (double)keys[n + 2 * r] / unit;
        norm[r].log_sum = log(sum);
        norm[r].entropy = norm[r].log_sum - (double)keys[n + 2 * r + 1] / unit / sum;
    }
done:
    dti_free(keys);
    return st;
}

dt_status dti_scores_normalise(dti_scores *s)
{
    dti_norm *norms;
    dt_status st;

    DT_TRY(dti_alloc_array((size_t)s->n_rows, sizeof *norms, (void **)&norms));
    st = dti_scores_norms(s, norms);
    for (int64_t r = 0; r < s->n_rows && st == DT_OK; r++) {
        const double less = norms[r].largest + norms[r].log_sum;
        for (int64_t i = r * s->n; i < (r + 1) * s->n; i++)
            s->data[i] = (float)((double)s->data[i] - less);
    }
    dti_free(norms);
    return st;
}

/* What a rank has of [all_rows, vocab]. */
typedef struct window {
    int64_t first, n, first_row, n_rows;
} window;

static void place_window(const dti_scores *s, const window *w, const float *from, float *out)
{
    for (int64_t r = 0; r < w->n_rows; r++)
        memcpy(out + (w->first_row + r) * s->vocab + w->first, from + r * w->n,
               (size_t)w->n * sizeof *out);
}

dt_status dti_scores_whole(const dti_scores *s, float *out)
{
    const window mine = { s->first, s->n, s->first_row, s->n_rows };
    window *windows = NULL;
    int64_t *counts = NULL;
    float *all = NULL;
    dt_status st = DT_OK;
    dti_comm *comm;

    if ((s->dims | s->row_dims) == 0) {
        place_window(s, &mine, s->data, out);
        return DT_OK;
    }
    DT_TRY(dti_mesh_comm(s->mesh, s->dims | s->row_dims, &comm));
    /* where each rank's numbers belong, then the numbers */
    DT_TRY_TO(done, st, dti_alloc_array((size_t)comm->size, sizeof *counts, (void **)&counts));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)comm->size, sizeof *windows, (void **)&windows));
    for (int p = 0; p < comm->size; p++) counts[p] = sizeof mine / sizeof(int64_t);
    DT_TRY_TO(done, st, dti_all_gather(comm, &mine, windows, counts, NULL, DT_I64));
    for (int p = 0; p < comm->size; p++) counts[p] = windows[p].n * windows[p].n_rows;
    DT_TRY_TO(done, st,
              dti_alloc_array((size_t)(s->all_rows * s->vocab), sizeof *all, (void **)&all));
    DT_TRY_TO(done, st, dti_all_gather(comm, s->data, all, counts, NULL, DT_F32));
    for (int64_t p = 0, at = 0; p < comm->size; at += counts[p++])
        place_window(s, &windows[p], all + at, out);
done:
    dti_free(counts);
    dti_free(windows);
    dti_free(all);
    return st;
}
