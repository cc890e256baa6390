/* SPDX-License-Identifier: Apache-2.0
 *
 * Where scores come from: all logits of this rank, or the best of all ranks. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/numbers.h"
#include "dtensor/argmax.h"
#include "dtensor/create.h"
#include "dtensor/host.h"
#include "models/generation/scores.h"

/* Where logits have to lie: nothing but sequences and the vocabulary cut, in plain pieces. */
static void plain_places(dti_scores *s, const dt_tensor *logits, dt_placement want[DT_MAX_DIMS])
{
    s->mesh = dt_tensor_mesh(logits);
    s->dims = s->row_dims = 0;
    for (int m = 0; m < dt_mesh_n_dims(s->mesh); m++) {
        const dt_placement p = dt_layout_placement(dt_tensor_layout(logits), m);
        const bool plain = p.kind == DT_PLACE_SHARD && p.replicas <= 1 && p.n_blocks == 0;
        const bool stays = p.axis == 2 || (p.axis == 0 && (s->batch_dims >> m & 1));
        want[m] = plain && stays ? p : DT_REPLICATE;
        if (want[m].kind != DT_PLACE_SHARD || dt_mesh_dim_size(s->mesh, m) == 1) continue;
        *(p.axis == 0 ? &s->row_dims : &s->dims) |= 1u << m;
    }
}

static void find_invalid(dti_scores *s)
{
    for (int64_t r = 0; r < s->n_rows; r++) {
        const float *row = s->data + r * s->n;
        bool invalid = false;
        for (int64_t i = 0; i < s->n; i++) invalid |= !(row[i] < INFINITY);
        s->invalid[r] = invalid;
    }
}

/* Moves the logits there and says what is known of them before any is read. */
static dt_status lay(dti_scores *s, dt_tape *t, dt_tensor **logits)
{
    dt_placement want[DT_MAX_DIMS];

    DT_TRY(dt_tape_status(t));
    DT_CHECK(dt_tensor_n_axes(*logits) == 3 && dt_tensor_extent(*logits, 1) == 1, DT_ERR_INTERNAL,
             "logits have %d axes", dt_tensor_n_axes(*logits));
    plain_places(s, *logits, want);
    *logits = dt_move(t, *logits, want);
    DT_TRY(dt_tape_status(t));
    s->n_rows = dt_tensor_local(*logits)->shape[0];
    s->first_row = dt_tensor_local(*logits)->offset[0];
    s->all_rows = dt_tensor_extent(*logits, 0);
    s->vocab = dt_tensor_extent(*logits, 2);
    return DT_OK;
}

static dt_status make_room(dti_scores *s)
{
    const size_t cells = (size_t)(s->n_rows * s->n) + 1;

    DT_TRY(dti_grow((void **)&s->data, &s->room, cells, sizeof *s->data));
    DT_TRY(dti_grow((void **)&s->invalid, &s->invalid_room, (size_t)s->n_rows, sizeof(bool)));
    if (s->few) DT_TRY(dti_grow((void **)&s->tokens, &s->tokens_room, cells, sizeof *s->tokens));
    return DT_OK;
}

dt_status dti_scores_take(dti_scores *s, dt_tape *t, dt_tensor *logits)
{
    const dt_local *local;
    dti_host host;

    DT_TRY(lay(s, t, &logits));
    local = dt_tensor_local(logits);
    s->few = false;
    s->copies = 0;
    s->n = local->shape[2];
    s->first = local->offset[2];
    DT_TRY(make_room(s));
    DT_TRY(dti_host_open(logits, DTI_HOST_READS, &host));
    dti_convert(s->data, DT_F32, host.local.data, local->dtype, s->n_rows * s->n);
    find_invalid(s);
    DT_TRY(dti_host_close(&host, DT_OK));
    return DT_OK;
}

/* --- the best alone --------------------------------------------------------------------------- */

/* The n largest keys of n_lists falling lists of n, in falling order. at: [n_lists]. */
static void merge(const int64_t *lists, int64_t n_lists, int64_t n, int64_t *at, int64_t *out)
{
    memset(at, 0, (size_t)n_lists * sizeof *at);
    for (int64_t i = 0; i < n; i++) {
        int64_t best = 0; /* no list ends before n were taken of all */
        for (int64_t p = 1; p < n_lists; p++)
            if (lists[p * n + at[p]] > lists[best * n + at[best]]) best = p;
        out[i] = lists[best * n + at[best]++];
    }
}

/* Row r gets the columns that are not below the k-th best after the division, by rising token.
 * False if all are as good as that one: there may be more of them. */
static bool keep_best(dti_scores *s, int64_t r, const int64_t *keys, const dti_top *top)
{
    float *row = s->data + r * s->n;
    int32_t *tokens = s->tokens + r * s->n;
    const float kth = dti_argmax_value(keys[top->k - 1]) / top->temperature;
    const float last = dti_argmax_value(keys[s->n - 1]) / top->temperature;

    s->invalid[r] = dti_argmax_overflows(keys[0]);
    for (int64_t i = 0; i < s->n; i++) {
        const float value = dti_argmax_value(keys[i]);
        const int32_t token = (int32_t)dti_argmax_index(keys[i]);
        int64_t to = i;
        if (value / top->temperature < kth || isnan(value)) {
            row[i] = -INFINITY;
            tokens[i] = 0;
            continue;
        }
        for (; to > 0 && tokens[to - 1] > token; to--) {
            row[to] = row[to - 1];
            tokens[to] = tokens[to - 1];
        }
        row[to] = value;
        tokens[to] = token;
    }
    return top->n == 1 || s->n == s->vocab || last < kth || kth == -INFINITY || s->invalid[r];
}

dt_status dti_scores_take_best(dti_scores *s, dt_tape *t, dt_tensor *logits, const dti_top *top,
                               int64_t n_tops, bool *enough)
{
    dt_placement rows[DT_MAX_DIMS] = { { 0 } };
    int64_t n_lists, n_keys, n = 1;
    dt_tensor *keys;

    DT_TRY(lay(s, t, &logits));
    for (int m = 0; m < dt_mesh_n_dims(s->mesh); m++)
        if (s->row_dims >> m & 1) rows[m] = dt_layout_placement(dt_tensor_layout(logits), m);
    s->few = true;
    s->copies = s->dims; /* all of them have all candidates */
    s->dims = 0;
    s->first = 0;
    for (int64_t i = 0; i < n_tops; i++) n = dti_max(n, top[i].n);
    s->n = dti_min(n, s->vocab);
    keys = dt_move(t, dt_top_k_keys(t, logits, s->n), rows);
    DT_TRY(dt_tape_status(t));
    n_lists = dt_tensor_extent(keys, 2) / s->n;
    n_keys = s->n_rows * n_lists * s->n;
    DT_TRY(make_room(s));
    DT_TRY(dti_grow((void **)&s->keys, &s->keys_room, (size_t)(n_keys + n_lists + s->n),
                    sizeof *s->keys));
    DT_TRY(dt_tensor_read(keys, s->keys, (size_t)n_keys * sizeof *s->keys));
    *enough = true;
    for (int64_t r = 0; r < s->n_rows; r++) {
        int64_t *at = s->keys + n_keys, *best = at + n_lists;
        const dti_top *of = n_tops == 1 ? top : &top[s->first_row + r];
        merge(s->keys + r * n_lists * s->n, n_lists, s->n, at, best);
        if (of->n > 0 && !keep_best(s, r, best, of)) *enough = false;
    }
    return DT_OK;
}

/* --- several texts of a prompt ---------------------------------------------------------------- */

dt_status dti_scores_expand(dti_scores *s, int64_t times)
{
    const int64_t n = s->n;

    s->n_rows *= times;
    s->first_row *= times;
    s->all_rows *= times;
    DT_TRY(make_room(s));
    for (int64_t r = s->n_rows - 1; r > 0 && times > 1; r--) { /* from the end: in place */
        memmove(s->data + r * n, s->data + r / times * n, (size_t)n * sizeof *s->data);
        s->invalid[r] = s->invalid[r / times];
        if (s->few)
            memmove(s->tokens + r * n, s->tokens + r / times * n, (size_t)n * sizeof *s->tokens);
    }
    return DT_OK;
}
