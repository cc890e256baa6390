/* SPDX-License-Identifier: Apache-2.0
 *
 * The k largest elements of rows that lie on several ranks, by the keys of dtensor/argmax.h. Keys
 * of a row are all different, so the order in which they are found makes no difference. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <math.h>

#include "base/dtype.h"
#include "dtensor/argmax.h"

/* --- keys in falling order -------------------------------------------------------------------- */

/* Which of n keys to divide them by. Places that only look random: no order of a row's elements
 * that occurs by itself makes bad ones of all. */
static int64_t place_of(int64_t n)
{
    return (int64_t)((uint64_t)n * 0x9e3779b97f4a7c15u % (uint64_t)n);
}

/* Divides n >= 2 keys: the larger ones than some key stand before it, the smaller ones behind. Its
 * place. Keys that a caller made up may be equal: half of those go to each side. */
static int64_t divide(int64_t *keys, int64_t n)
{
    const int64_t at = place_of(n), middle = keys[at];
    int64_t n_larger = 0;

    keys[at] = keys[n - 1];
    for (int64_t i = 0; i < n - 1; i++) {
        const int64_t key = keys[i];
        keys[i] = keys[n_larger];
        keys[n_larger] = key;
        n_larger += (key > middle) | ((key == middle) & (i & 1));
    }
    keys[n - 1] = keys[n_larger];
    keys[n_larger] = middle;
    return n_larger;
}

/* Moves the k largest of n keys to the front, in any order. */
static void keep_largest(int64_t *keys, int64_t n, int64_t k)
{
    while (k > 0 && k < n) {
        const int64_t at = divide(keys, n);
        if (at >= k) {
            n = at;
            continue;
        }
        keys += at + 1;
        n -= at + 1;
        k -= at + 1;
    }
}

static void sort_falling(int64_t *keys, int64_t n)
{
    enum { FEW = 16 };

    while (n > FEW) { /* the smaller part by a call, so calls are never deep */
        const int64_t at = divide(keys, n), rest = n - at - 1;
        sort_falling(at < rest ? keys : keys + at + 1, at < rest ? at : rest);
        if (at < rest) keys += at + 1;
        n = at < rest ? rest : at;
    }
    for (int64_t i = 1; i < n; i++) {
        const int64_t key = keys[i];
        int64_t at = i;
        for (; at > 0 && keys[at - 1] < key; at--) keys[at] = keys[at - 1];
        keys[at] = key;
    }
}

/* --- of elements ------------------------------------------------------------------------------ */

/* Room behind the k keys that are kept: elements come in until it is full, then it is emptied. */
static int64_t room_of(int64_t k)
{
    enum { LEAST = 64 };

    return 2 * k + LEAST;
}

typedef struct keys_job {
    const dti_row_ops *ops;
    const dt_local *x;
    int64_t *keys; /* [n_rows, k] */
    int64_t n_rows, n, k;
    int64_t *scratch; /* [workers, room_of(k)] */
} keys_job;

/* Elements come by rising index, so of equal ones those that were found first stay. */
static void keys_of_row(const keys_job *j, int64_t r, int64_t *room)
{
    const int64_t bytes = (int64_t)dt_dtype_size(j->x->dtype),
                  first = j->x->offset[j->x->n_axes - 1];
    const char *row = (const char *)j->x->data + r * j->n * bytes;
    const int64_t k = j->k < j->n ? j->k : j->n;
    int64_t *out = j->keys + r * j->k, found = 0;
    float limit = NAN; /* nothing is not above it */

    for (int64_t i = 0; i < j->n; i++) {
        i += j->ops->above(row + i * bytes, j->n - i, limit);
        if (i >= j->n) break;
        room[found++] = dti_argmax_key(dti_load_f32(row, j->x->dtype, i), first + i);
        if (found < room_of(k)) continue;
        keep_largest(room, found, k);
        found = k;
        limit = dti_argmax_value(room[0]);
        for (int64_t e = 1; e < k; e++) { /* the least of them; NaN only if all are */
            const float value = dti_argmax_value(room[e]);
            if (isnan(limit) || value < limit) limit = value;
        }
    }
    keep_largest(room, found, k);
    sort_falling(room, k);
    for (int64_t i = 0; i < j->k; i++) out[i] = i < k ? room[i] : DTI_NO_KEY;
}

static void keys_share(void *arg, int worker, int n_workers)
{
    const keys_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n_rows, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        keys_of_row(j, r, j->scratch + worker * room_of(j->k < j->n ? j->k : j->n));
}

/* x [..., V] -> keys [..., K] i64 */
dt_status dti_top_k_keys_cpu(const dt_kargs *a)
{
    const dt_local *x = &a->in[0], *y = &a->out[0];
    keys_job job = { .x = x,
                     .keys = y->data,
                     .n_rows = dti_rows(x),
                     .n = x->shape[x->n_axes - 1],
                     .k = y->shape[y->n_axes - 1] };
    const int64_t room = room_of(job.k < job.n ? job.k : job.n) * dti_pool_size(a->cpu->pool);
    void *scratch;

    DT_TRY(dti_cpu_rows(a->cpu, "top_k_keys", x, &job.ops));
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)room * sizeof *job.scratch, &scratch));
    job.scratch = scratch;
    dti_cpu_run(a->cpu, dti_bytes(x), keys_share, &job);
    return DT_OK;
}

/* --- of keys ---------------------------------------------------------------------------------- */

/* keys [..., C] i64 -> values f32, indices i32 [..., K]. Keys that stand for nothing are equal, but
 * only among themselves and behind all others: their order is no matter. */
dt_status dti_top_k_cpu(const dt_kargs *a)
{
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const int64_t n_rows = dti_rows(x), n = x->shape[x->n_axes - 1], k = y->shape[y->n_axes - 1];
    const int64_t *keys = x->data;
    float *values = y->data;
    int32_t *indices = a->out[1].data;
    int64_t *row;
    void *scratch;

    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)n * sizeof *row, &scratch));
    row = scratch;
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t m = 0;
        for (int64_t i = 0; i < n; i++)
            if (keys[r * n + i] != DTI_NO_KEY) row[m++] = keys[r * n + i];
        keep_largest(row, m, k);
        sort_falling(row, m < k ? m : k);
        for (int64_t i = 0; i < k; i++) {
            values[r * k + i] = i < m ? dti_argmax_value(row[i]) : -INFINITY;
            indices[r * k + i] = i < m ? (int32_t)dti_argmax_index(row[i]) : -1;
        }
    }
    return DT_OK;
}
