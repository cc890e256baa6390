/* SPDX-License-Identifier: Apache-2.0
 *
 * Selections from rows that are cut over ranks. The k best of all are among the k best of each
 * rank, so k numbers of each rank are enough; a threshold of mass is found digit by digit, from
 * sums per digit: four messages of 2 KiB a row, whatever the vocabulary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "mesh/runtime.h"
#include "models/generation/scores.h"

/* --- the k-th largest --------------------------------------------------------------------- */

static void sift_down(float *heap, int64_t n, int64_t at)
{
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        const float value = heap[at];
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (value <= heap[child]) return;
        heap[at] = heap[child];
        heap[child] = value;
    }
}

/* The k largest of n values, in any order; -inf where there are fewer. */
static void largest_of(const float *values, int64_t n, int64_t k, float *heap)
{
    for (int64_t i = 0; i < k; i++) heap[i] = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        if (values[i] > heap[0]) { /* the least of those kept */
            heap[0] = values[i];
            sift_down(heap, k, 0);
        }
}

/* Every rank's `n` bytes of each of n_rows rows, [ranks][n_rows][n] in `all`. Without other ranks
 * `all` is a copy. */
static dt_status gather_bytes(const dti_scores *s, const void *mine, int64_t n, void *all,
                              int *n_ranks)
{
    int64_t *counts;
    dti_comm *comm;
    dt_status st;

    *n_ranks = 1;
    DT_TRY(dti_scores_comm(s, &comm));
    if (comm == NULL) {
        memcpy(all, mine, (size_t)n);
        return DT_OK;
    }
    *n_ranks = comm->size;
    DT_TRY(dti_alloc_array((size_t)comm->size, sizeof *counts, (void **)&counts));
    for (int p = 0; p < comm->size; p++) counts[p] = n;
    st = dti_all_gather(comm, mine, all, counts, NULL, DT_U8);
    dti_free(counts);
    return st;
}

static int64_t ranks_of(const dti_scores *s)
{
    int64_t n = 1;

    for (int m = 0; m < dt_mesh_n_dims(s->mesh); m++)
        if (s->dims >> m & 1) n *= dt_mesh_dim_size(s->mesh, m);
    return n;
}

dt_status dti_scores_kth(dti_scores *s, const float *values, int64_t k, float *limit)
{
    const int64_t some = s->n_rows * k, ranks = ranks_of(s);
    float *mine = NULL, *all, *last;
    dt_status st = DT_OK;
    int n_ranks;

    if (values == NULL) values = s->data;
    DT_TRY(dti_alloc_array((size_t)((ranks + 1) * some + k), sizeof *mine, (void **)&mine));
    all = mine + some;
    last = all + ranks * some;
    for (int64_t r = 0; r < s->n_rows; r++) largest_of(values + r * s->n, s->n, k, mine + r * k);
    DT_TRY_TO(done, st, gather_bytes(s, mine, some * (int64_t)sizeof *mine, all, &n_ranks));
    for (int64_t r = 0; r < s->n_rows; r++) {
        for (int64_t i = 0; i < k; i++) last[i] = -INFINITY;
        for (int p = 0; p < n_ranks; p++)
            for (int64_t i = 0; i < k; i++) {
                const float value = all[p * some + r * k + i];
                if (value <= last[0]) continue;
                last[0] = value;
                sift_down(last, k, 0);
            }
        limit[r] = last[0];
    }
done:
    dti_free(mine);
    return st;
}

/* --- mass --------------------------------------------------------------------------------- */

enum { DIGITS = 256 };

/* The float as an unsigned integer of the same order, and back. */
static uint32_t key_of(float value)
{
    const uint32_t bits = dti_bits_of_float(value + 0.0f); /* both zeros are one */

    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static float value_of(uint32_t key)
{
    return dti_float_of_bits(key >> 31 ? key ^ 0x80000000u : ~key);
}

/* One row's search. */
typedef struct search {
    uint32_t key;  /* the digits that are known */
    int64_t below; /* mass of keys below them */
    double wanted;
} search;

struct dti_column {
    uint32_t key;
    int64_t weight;
};
typedef struct dti_column column;

static void fill_columns(const dti_scores *s, const dti_norm *norm, const float *values,
                         column *columns)
{
    for (int64_t r = 0; r < s->n_rows; r++)
        for (int64_t i = r * s->n; i < (r + 1) * s->n; i++) {
            const float score = s->data[i];
            const bool counts = score > -INFINITY && isfinite(norm[r].largest);
            columns[i].key = key_of(values[i]);
            columns[i].weight = counts ? llrint(exp((double)score - norm[r].largest) * 0x1p40) : 0;
        }
}

/* Adds up the weights of the columns of a row by their next digit. */
static void add_digits(const column *columns, int64_t n, const search *at, int shift,
                       int64_t sums[DIGITS])
{
    const uint32_t known = shift == 24 ? 0 : UINT32_MAX << (shift + 8);

    memset(sums, 0, DIGITS * sizeof *sums);
    for (int64_t i = 0; i < n; i++)
        if (((columns[i].key ^ at->key) & known) == 0)
            sums[columns[i].key >> shift & (DIGITS - 1)] += columns[i].weight;
}

/* The first digit at which the mass is there; the last that has any if rounding denies it. */
static void take_digit(search *at, int shift, bool reach, const int64_t sums[DIGITS])
{
    int64_t last_below = at->below;
    uint32_t last = 0;

    for (uint32_t digit = 0; digit < DIGITS; digit++) {
        const double up_to = (double)(at->below + sums[digit]);
        if (sums[digit] == 0) continue;
        last = digit;
        last_below = at->below;
        if (reach ? up_to >= at->wanted : up_to > at->wanted) break;
        at->below += sums[digit];
    }
    at->key |= last << shift;
    at->below = last_below;
}

static dt_status search_digits(const dti_scores *s, const column *columns, double mass, bool reach,
                               search *at)
{
    const int64_t n_sums = s->n_rows * DIGITS;
    dt_status st = DT_OK;
    dti_comm *comm;
    int64_t *sums;

    DT_TRY(dti_alloc_array((size_t)n_sums, sizeof *sums, (void **)&sums));
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int64_t r = 0; r < s->n_rows; r++)
            add_digits(columns + r * s->n, s->n, &at[r], shift, sums + r * DIGITS);
        DT_TRY_TO(done, st, dti_scores_comm(s, &comm));
        if (comm != NULL)
            DT_TRY_TO(done, st, dti_all_reduce(comm, sums, sums, n_sums, DT_I64, DT_SUM));
        for (int64_t r = 0; r < s->n_rows; r++) {
            const int64_t *row = sums + r * DIGITS;
            int64_t total = 0;
            for (int d = 0; d < DIGITS; d++) total += row[d];
            if (shift == 24) at[r].wanted = mass * (double)total;
            take_digit(&at[r], shift, reach, row);
        }
    }
done:
    dti_free(sums);
    return st;
}

dt_status dti_scores_mass(dti_scores *s, const dti_norm *norm, const float *values, double mass,
                          bool reach, float *limit)
{
    search *at = NULL;
    dt_status st = DT_OK;

    DT_TRY(dti_grow((void **)&s->columns, &s->columns_room, (size_t)(s->n_rows * s->n) + 1,
                    sizeof *s->columns));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)s->n_rows, sizeof *at, (void **)&at));
    fill_columns(s, norm, values != NULL ? values : s->data, s->columns);
    DT_TRY_TO(done, st, search_digits(s, s->columns, mass, reach, at));
    for (int64_t r = 0; r < s->n_rows; r++) limit[r] = value_of(at[r].key);
done:
    dti_free(at);
    return st;
}
