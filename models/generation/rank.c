/* SPDX-License-Identifier: Apache-2.0
 *
 * The best candidates of groups of rows: what beam search chooses from. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mesh/runtime.h"
#include "models/generation/scores.h"

/* On its way between ranks. */
typedef struct runner {
    double value; /* what it is ranked by */
    dti_candidate candidate;
} runner;

static bool is_better(const runner *a, const runner *b)
{
    if (a->value != b->value) return a->value > b->value;
    if (a->candidate.row != b->candidate.row) return a->candidate.row < b->candidate.row;
    return a->candidate.token < b->candidate.token;
}

/* Places of a list without anybody are after all others. */
static const runner nobody = { -INFINITY, { -INFINITY, INT32_MAX, INT64_MAX } };

/* heap[0] is the worst of the k. */
static void offer(runner *heap, int64_t k, const runner *one)
{
    if (!is_better(one, &heap[0])) return;
    heap[0] = *one;
    for (int64_t at = 0, child; (child = 2 * at + 1) < k; at = child) {
        const runner value = heap[at];
        if (child + 1 < k && is_better(&heap[child], &heap[child + 1])) child++;
        if (!is_better(&value, &heap[child])) return;
        heap[at] = heap[child];
        heap[child] = value;
    }
}

static void rank_group(const dti_scores *s, const dti_ranking *by, int64_t group, runner *heap)
{
    for (int64_t i = 0; i < by->k; i++) heap[i] = nobody;
    for (int64_t r = group * by->rows_per_group; r < (group + 1) * by->rows_per_group; r++) {
        const float *row = s->data + r * s->n;
        const int64_t of_all = s->first_row + r;
        const float add = by->add != NULL ? by->add[of_all] : 0.0f;
        for (int64_t i = 0; i < s->n; i++) {
            runner one = { 0 };
            one.candidate = (dti_candidate){ row[i] + add, (int32_t)of_all, s->first + i };
            one.value = (double)one.candidate.score;
            if (by->noise && one.value > -INFINITY)
                one.value += dti_gumbel(by->seed, s->above + of_all, by->step, s->first + i);
            offer(heap, by->k, &one);
        }
        /* comes out on top, and the caller refuses it */
        if (s->invalid[r]) offer(heap, by->k, &(runner){ INFINITY, { NAN, (int32_t)of_all, 0 } });
    }
}

static int best_first(const void *a, const void *b)
{
    return is_better(a, b) ? -1 : is_better(b, a) ? 1 : 0;
}

static dt_status gather(const dti_scores *s, int64_t n, runner *lists, int *n_ranks)
{
    const int64_t bytes = n * (int64_t)sizeof *lists;
    int64_t *counts;
    dti_comm *comm;
    dt_status st;

    *n_ranks = 1;
    DT_TRY(dti_scores_comm(s, &comm));
    if (comm == NULL) return DT_OK;
    *n_ranks = comm->size;
    DT_TRY(dti_alloc_array((size_t)comm->size, sizeof *counts, (void **)&counts));
    for (int p = 0; p < comm->size; p++) counts[p] = bytes;
    st = dti_all_gather(comm, lists + (int64_t)comm->rank * n, lists, counts, NULL, DT_U8);
    dti_free(counts);
    return st;
}

/* Each group is known to those who have its rows: all others add zeros to what it is made of. */
static dt_status share(const dti_scores *s, const dti_ranking *by, dti_candidate *out)
{
    const int64_t all = s->all_rows / by->rows_per_group * by->k;
    const int64_t first = s->first_row / by->rows_per_group * by->k;
    const int64_t n = s->n_rows / by->rows_per_group * by->k;
    int64_t words;
    dti_comm *comm;

    _Static_assert(sizeof *out == 2 * sizeof words, "a candidate is two integers");
    if (s->row_dims == 0) return DT_OK;
    words = 2 * all;
    memset(out, 0, (size_t)first * sizeof *out);
    memset(out + first + n, 0, (size_t)(all - first - n) * sizeof *out);
    DT_TRY(dti_mesh_comm(s->mesh, s->row_dims, &comm));
    DT_TRY(dti_all_reduce(comm, out, out, words, DT_I64, DT_SUM));
    return DT_OK;
}

dt_status dti_scores_rank(dti_scores *s, const dti_ranking *by, dti_candidate *out)
{
    dti_candidate *mine = out + s->first_row / by->rows_per_group * by->k;
    const int64_t groups = s->n_rows / by->rows_per_group, n = groups * by->k;
    runner *lists = NULL, *heap;
    dt_status st = DT_OK;
    dti_comm *comm;
    int n_ranks;

    DT_TRY(dti_scores_comm(s, &comm));
    n_ranks = comm != NULL ? comm->size : 1;
    DT_TRY(dti_alloc_array((size_t)(n_ranks * n + by->k), sizeof *lists, (void **)&lists));
    heap = lists + n_ranks * n;
    for (int64_t g = 0; g < groups; g++)
        rank_group(s, by, g, lists + (comm != NULL ? comm->rank : 0) * n + g * by->k);
    DT_TRY_TO(done, st, gather(s, n, lists, &n_ranks));
    for (int64_t g = 0; g < groups; g++) {
        for (int64_t i = 0; i < by->k; i++) heap[i] = nobody;
        for (int p = 0; p < n_ranks; p++)
            for (int64_t i = 0; i < by->k; i++) offer(heap, by->k, &lists[p * n + g * by->k + i]);
        qsort(heap, (size_t)by->k, sizeof *heap, best_first);
        for (int64_t i = 0; i < by->k; i++) mine[g * by->k + i] = heap[i].candidate;
    }
    st = share(s, by, out);
done:
    dti_free(lists);
    return st;
}
