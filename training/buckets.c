/* SPDX-License-Identifier: Apache-2.0 */
#include "training/buckets.h"

#include <string.h>

#include "base/memory.h"
#include "dtensor/leaf_moves.h"

/* Buckets under way at most: each holds terms and their sum. More than one, so that something
 * travels while the next one fills, also over the forward pass of the next microbatch. */
enum { UNDER_WAY = 4 };

struct dti_buckets {
    dt_gradients *gradients;
    int64_t n, bucket_bytes;
    const dt_layout **want; /* [n] */

    /* The bucket that is being filled. */
    int n_waiting;
    int64_t bytes;
    int64_t *waiting;               /* [n] leaves */
    const dt_layout **waiting_want; /* [n] */

    dti_leaf_moves *under_way[UNDER_WAY]; /* oldest first, NULL behind the last */
};

dt_status dti_buckets_create(dt_gradients *g, int64_t n, const dt_layout *const *want,
                             int64_t bucket_bytes, dti_buckets **out)
{
    const size_t leaves = (size_t)n;
    dt_status st = DT_OK;
    dti_buckets *r;

    *out = NULL;
    DT_ASSERT(bucket_bytes > 0);
    DT_TRY(dti_new(sizeof *r, &r));
    r->gradients = g;
    r->n = n;
    r->bucket_bytes = bucket_bytes;
    DT_TRY_TO(fail, st, dti_alloc_array(leaves, sizeof *r->want, (void **)&r->want));
    DT_TRY_TO(fail, st, dti_alloc_array(leaves, sizeof *r->waiting, (void **)&r->waiting));
    DT_TRY_TO(fail, st,
              dti_alloc_array(leaves, sizeof *r->waiting_want, (void **)&r->waiting_want));
    if (n > 0) memcpy(r->want, want, leaves * sizeof *want);
    *out = r;
    return DT_OK;

fail:
    dti_buckets_free(&r);
    return st;
}

void dti_buckets_free(dti_buckets **buckets)
{
    dti_buckets *r = *buckets;

    if (r == NULL) return;
    *buckets = NULL;
    for (int i = 0; i < UNDER_WAY; i++) dti_leaf_moves_drop(&r->under_way[i]);
    dti_free(r->want);
    dti_free(r->waiting);
    dti_free(r->waiting_want);
    dti_free(r);
}

static dt_status await_oldest(dti_buckets *r, dt_tape *t)
{
    dti_leaf_moves *oldest = r->under_way[0];

    memmove(r->under_way, r->under_way + 1, (UNDER_WAY - 1) * sizeof *r->under_way);
    r->under_way[UNDER_WAY - 1] = NULL;
    return dti_leaf_moves_wait(&oldest, t);
}

dt_status dti_buckets_finish(dti_buckets *r, dt_tape *t)
{
    while (r->under_way[0] != NULL) DT_TRY(await_oldest(r, t));
    return DT_OK;
}

static void empty_bucket(dti_buckets *r)
{
    r->n_waiting = 0;
    r->bytes = 0;
}

void dti_buckets_open(dti_buckets *r)
{
    empty_bucket(r);
}

/* The bucket's leaves are back from an earlier pass. */
static dt_status await_leaves(dti_buckets *r, dt_tape *t)
{
    int last = -1;

    for (int at = 0; at < UNDER_WAY; at++)
        for (int i = 0; i < r->n_waiting; i++)
            if (dti_leaf_moves_have(r->under_way[at], r->waiting[i])) last = at;
    for (; last >= 0; last--) DT_TRY(await_oldest(r, t));
    return DT_OK;
}

static dt_status send_bucket(dti_buckets *r, dt_tape *t)
{
    const int n = r->n_waiting;
    int at = 0;

    if (n == 0) return DT_OK;
    DT_TRY(await_leaves(r, t));
    empty_bucket(r);
    if (r->under_way[UNDER_WAY - 1] != NULL) DT_TRY(await_oldest(r, t));
    while (r->under_way[at] != NULL) at++;
    DT_TRY(
        dti_leaf_moves_begin(r->gradients, n, r->waiting, r->waiting_want, t, &r->under_way[at]));
    return DT_OK;
}

dt_status dti_buckets_take(dti_buckets *r, dt_tape *t, int64_t leaf)
{
    const int64_t bytes =
        leaf < r->n ? dti_leaf_bytes_to_move(r->gradients, leaf, r->want[leaf]) : 0;

    if (bytes == 0) return DT_OK; /* nothing has come, or it lies there */
    r->waiting[r->n_waiting] = leaf;
    r->waiting_want[r->n_waiting++] = r->want[leaf];
    r->bytes += bytes;
    if (r->bytes >= r->bucket_bytes) DT_TRY(send_bucket(r, t));
    return DT_OK;
}

dt_status dti_buckets_close(dti_buckets *r, dt_tape *t)
{
    dt_status st;

    dt_scope_begin(t, "backward");
    st = send_bucket(r, t);
    (void)dt_scope_end(t, NULL);
    return st;
}
