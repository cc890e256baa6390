/* SPDX-License-Identifier: Apache-2.0 */
#include "models/run/state.h"

#include <dtensor/channels.h>
#include <string.h>

#include "dtensor/create.h"
#include "mesh/runtime.h"
#include "models/run/step.h"
#include "placements/layout.h"

static const dti_live states = { "state", "states" };

static bool is_dry(const dt_model *m)
{
    return dt_runtime_is_dry(dt_mesh_runtime(m->mesh));
}

static dt_status make_rows(dt_state *s)
{
    const bool dry = is_dry(s->model);

    s->n_kept = dry ? 1 : s->batch;
    DT_TRY(dti_alloc_array((size_t)s->n_kept, sizeof *s->lengths, (void **)&s->lengths));
    DT_TRY(dti_alloc_array((size_t)s->n_kept, sizeof *s->pads, (void **)&s->pads));
    if (dry) return DT_OK;
    DT_TRY(dti_alloc_array((size_t)(s->batch * s->capacity), sizeof *s->ids, (void **)&s->ids));
    return DT_OK;
}

static void free_rows(dt_state *s)
{
    dti_free(s->lengths);
    dti_free(s->pads);
    dti_free(s->ids);
    s->lengths = s->pads = NULL;
    s->ids = NULL;
}

/* Of the ranks over which mesh dims from `dim` on cut `rows` sequences, those that get any; *n of
 * all. Each dim cuts what the one before it leaves. */
static int64_t busy_ranks(const dt_model *m, int dim, int64_t rows, int64_t *n)
{
    const dt_placement cut = DT_SHARD(0);
    int64_t busy = 0, begin, end, below = 1;

    while (dim < dt_mesh_n_dims(m->mesh) && !dti_has(m->batch_dims, dim)) dim++;
    if (dim == dt_mesh_n_dims(m->mesh)) return rows > 0;
    for (int c = 0; c < dt_mesh_dim_size(m->mesh, dim); c++) {
        below = 1;
        dti_shard_range(&cut, rows, dt_mesh_dim_size(m->mesh, dim), c, &begin, &end);
        busy += busy_ranks(m, dim + 1, end - begin, &below);
    }
    *n = below * dt_mesh_dim_size(m->mesh, dim);
    return busy;
}

/* Rank 0 says once that some have no sequence. */
static void say_idle(dt_model *m, int64_t batch)
{
    dt_runtime *rt = dt_mesh_runtime(m->mesh);
    int64_t n = 1, busy = busy_ranks(m, 0, batch, &n);
    char dims[DT_MAX_DIMS * (DT_DIM_NAME_BYTES + 4)] = "";
    dti_writer w = { dims, sizeof dims, 0 };

    if (busy == n || m->said_idle || is_dry(m) || dt_runtime_rank(rt) != 0) return;
    m->said_idle = true;
    for (int d = 0; d < dt_mesh_n_dims(m->mesh); d++)
        if (dti_has(m->batch_dims, d))
            dti_put(&w, "%s\"%s\"", w.used > 0 ? ", " : "", dt_mesh_dim_name(m->mesh, d));
    dti_runtime_log(rt, DT_LOG_WARNING,
                    "%lld sequence%s over mesh dim%s %s of %lld: %lld of its ranks "
                    "compute%s nothing",
                    (long long)batch, batch == 1 ? "" : "s", strchr(dims, ',') != NULL ? "s" : "",
                    dims, (long long)n, (long long)(n - busy), n - busy == 1 ? "s" : "");
}

dt_status dt_state_create(dt_model *model, int64_t batch, int64_t capacity, dt_state **out)
{
    dt_status st = DT_OK;
    dt_state *s;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(model != NULL, DT_ERR_ARG, "model is NULL");
    DT_CHECK(batch >= 1, DT_ERR_ARG, "a batch of %lld sequences", (long long)batch);
    DT_CHECK(capacity >= 1 && capacity <= model->info.max_positions, DT_ERR_ARG,
             "a context of %lld tokens: the model has positions for 1 to %lld", (long long)capacity,
             (long long)model->info.max_positions);
    DT_TRY(dti_new(sizeof *s, &s));
    s->model = model;
    s->batch = batch;
    s->together = 1;
    s->capacity = s->room = capacity;
    DT_TRY_TO(fail, st,
              dti_alloc_array((size_t)model->info.n_layers, sizeof *s->kv, (void **)&s->kv));
    for (int64_t i = 0; i < model->info.n_layers; i++) s->kv[i].capacity = capacity;
    DT_TRY_TO(fail, st, make_rows(s));
    if (dt_layers_carry_states(model->layers))
        DT_TRY_TO(fail, st, dt_carry_create(model->layers, &s->carry));
    model->refs++;
    dti_runtime_count(dt_mesh_runtime(model->mesh), &states, 1);
    say_idle(model, batch);
    *out = s;
    return DT_OK;

fail:
    free_rows(s);
    dti_free(s->kv);
    dti_free(s);
    return st;
}

void dt_state_release(dt_state **state)
{
    dt_state *s = state ? *state : NULL;

    if (s == NULL) return;
    *state = NULL;
    dti_step_forget(s);
    dt_parcel_release(&s->entered.parcel);
    dt_carry_release(&s->carry);
    for (int64_t i = 0; i < s->model->info.n_layers; i++) {
        dt_tensor_release(&s->kv[i].k);
        dt_tensor_release(&s->kv[i].v);
    }
    dti_runtime_count(dt_mesh_runtime(s->model->mesh), &states, -1);
    free_rows(s);
    dti_free(s->kv);
    dt_model_release(&s->model);
    dti_free(s);
}

int64_t dt_state_length(const dt_state *s)
{
    return s != NULL ? s->length : 0;
}

int64_t dt_state_length_of(const dt_state *s, int64_t sequence)
{
    if (s == NULL || sequence < 0 || sequence >= s->batch) return 0;
    return s->lengths[sequence < s->n_kept ? sequence : 0];
}

void dt_state_rewind(dt_state *s, int64_t length)
{
    if (s == NULL || length < 0 || length >= s->length) return;
    if (s->carry != NULL) length = 0; /* what is carried knows no earlier token */
    dt_carry_clear(s->carry);
    s->length = length;
    for (int64_t b = 0; b < s->n_kept; b++)
        if (s->lengths[b] > length) s->lengths[b] = length;
}

/* Keys of a sequence that is stretched more the longer it gets are good for its own length only. */
static bool is_stretched(const dt_state *s, int64_t length)
{
    const dt_arch *arch = s->model->arch;
    const int64_t turn = arch->turn != NULL ? arch->turn(s->model->self) : 0;

    return turn < 0 && length > -turn;
}

int64_t dt_state_keep(dt_state *s, const int32_t *ids, int64_t n_ids)
{
    int64_t n = 0;

    if (s == NULL) return 0;
    if (ids != NULL && s->batch == 1 && s->ids != NULL &&
        !is_stretched(s, n_ids > s->length ? n_ids : s->length))
        while (n < s->length && n < n_ids - 1 && s->ids[n] == ids[n]) n++;
    if (s->carry != NULL && n < s->length) n = 0;
    dt_state_rewind(s, n);
    return n;
}

dt_status dt_state_pad(dt_state *s, const int64_t *n_pads)
{
    DT_CHECK(s != NULL && n_pads != NULL, DT_ERR_ARG, "state or n_pads is NULL");
    for (int64_t b = 0; b < s->batch; b++)
        DT_CHECK(n_pads[b] >= 0, DT_ERR_ARG, "sequence %lld has %lld tokens of padding",
                 (long long)b, (long long)n_pads[b]);
    for (int64_t b = 0; b < s->batch && s->carry != NULL; b++)
        DT_CHECK(
            n_pads[b] == 0, DT_ERR_UNSUPPORTED,
            "sequence %lld has %lld tokens of padding, which layers that carry state would read; "
            "run sequences of one length together",
            (long long)b, (long long)n_pads[b]);
    memcpy(s->pads, n_pads, (size_t)s->n_kept * sizeof *n_pads);
    for (int64_t b = s->n_kept; b < s->batch; b++)
        if (n_pads[b] < s->pads[0]) s->pads[0] = n_pads[b];
    return DT_OK;
}

void dti_state_advance(dt_state *s, const int32_t *ids, int64_t n_tokens)
{
    for (int64_t b = 0; b < s->n_kept; b++) {
        const int64_t n = n_tokens - s->pads[b];
        if (s->ids != NULL && ids != NULL)
            memcpy(s->ids + b * s->capacity + s->lengths[b], ids + b * n_tokens + s->pads[b],
                   (size_t)n * sizeof *ids);
        s->lengths[b] += n;
        s->pads[b] = 0;
        if (s->lengths[b] > s->length) s->length = s->lengths[b];
    }
}

void dti_state_retreat(dt_state *s, int64_t n_tokens)
{
    s->length -= n_tokens;
    for (int64_t b = 0; b < s->n_kept; b++) s->lengths[b] -= n_tokens;
}

/* --- sequences, copied and moved ---------------------------------------------------------- */

/* Sequences lie one after the other in a rank's piece: nothing cuts their tokens, and the batch
 * only what cuts it for all. */
static dt_status row_bytes(const dt_tensor *x, const dt_state *s, int64_t *token, int64_t *row)
{
    const dt_local *local = dt_tensor_local(x);
    bool own = local->shape[1] == s->capacity;

    for (int m = 0; m < dt_mesh_n_dims(s->model->mesh); m++) {
        const dt_placement p = dt_layout_placement(dt_tensor_layout(x), m);
        if (p.kind == DT_PLACE_SHARD && p.axis == 0 && dt_mesh_dim_size(s->model->mesh, m) > 1)
            own = own && dti_has(s->model->batch_dims, m) && p.unit == s->together;
    }
    DT_CHECK(own, DT_ERR_UNSUPPORTED,
             "a plan that cuts the batch or the tokens of KV caches: beams cannot be moved");
    *token = local->shape[2] * local->shape[3] * (int64_t)dt_dtype_size(local->dtype);
    *row = *token * s->capacity;
    return DT_OK;
}

/* The same layout for sequences of which `times` stay together. */
static dt_status layout_of(const dt_tensor *x, const dt_state *s, int64_t times,
                           const dt_layout **out)
{
    *out = dt_tensor_layout(x);
    for (int m = 0; m < dt_layout_n_dims(*out); m++) {
        dt_placement cut = dt_layout_placement(*out, m);
        cut.unit = s->together * times;
        if (cut.kind == DT_PLACE_SHARD && dti_has(s->model->batch_dims, m))
            DT_TRY(dti_layout_with(*out, m, &cut, out));
    }
    return DT_OK;
}

static dt_status expand_cache(const dt_state *s, int64_t times, dt_tensor **cache)
{
    const int64_t shape[] = { s->batch * times, s->capacity, dt_tensor_extent(*cache, 2),
                              dt_tensor_extent(*cache, 3) };
    const dt_local *local = dt_tensor_local(*cache);
    const int64_t first = local->offset[0], n = local->shape[0];
    const dt_layout *layout;
    dt_status st = DT_OK;
    dt_tensor *wide;
    int64_t token, row;

    DT_TRY(row_bytes(*cache, s, &token, &row));
    DT_TRY(layout_of(*cache, s, times, &layout));
    DT_TRY(dti_tensor_create_exact(dt_tensor_mesh(*cache), layout, dt_tensor_dtype(*cache), shape,
                                   &wide));
    dti_tensor_set_kind(wide, DTI_KIND_CACHES);
    for (int64_t b = 0; b < n * times && token > 0; b++)
        DT_TRY_TO(fail, st,
                  dti_tensor_copy_bytes(wide, b * row, *cache, b / times * row,
                                        s->lengths[first + b / times] * token));
    dt_tensor_release(cache);
    *cache = wide;
    return DT_OK;

fail:
    dt_tensor_release(&wide);
    return st;
}

/* What layers carry goes with its sequences: each `times` times, or as `from` says. */
static dt_status carry_rows(const dt_state *s, int64_t times, const int64_t *from)
{
    const int64_t n = s->batch * times;
    dt_status st = DT_OK;
    int64_t *rows = NULL;

    if (s->carry == NULL) return DT_OK;
    DT_TRY(dti_alloc_array((size_t)n, sizeof *rows, (void **)&rows));
    for (int64_t i = 0; i < n; i++) rows[i] = from != NULL ? from[i] : i / times;
    st = dt_carry_select(s->carry, (int)n, rows);
    dti_free(rows);
    if (st != DT_OK) return dti_error_frame(st, __func__, __FILE__, __LINE__);
    return DT_OK;
}

dt_status dti_state_expand(dt_state *s, int64_t times)
{
    dt_state old = *s;
    dt_status st = DT_OK;

    if (times == 1) return DT_OK;
    dti_step_forget(s);
    for (int64_t i = 0; i < s->model->info.n_layers; i++) {
        if (s->kv[i].k != NULL) DT_TRY(expand_cache(&old, times, &s->kv[i].k));
        if (s->kv[i].v != NULL) DT_TRY(expand_cache(&old, times, &s->kv[i].v));
    }
    DT_TRY(carry_rows(s, times, NULL));
    s->batch *= times;
    s->together *= times;
    s->lengths = s->pads = NULL;
    s->ids = NULL;
    DT_TRY_TO(done, st, make_rows(s));
    for (int64_t b = 0; b < s->n_kept; b++) {
        s->lengths[b] = old.lengths[b / times];
        if (s->ids != NULL)
            memcpy(s->ids + b * s->capacity, old.ids + b / times * s->capacity,
                   (size_t)s->lengths[b] * sizeof *s->ids);
    }
done:
    free_rows(&old);
    return st;
}

/* One copy of the tokens from `first` on. Row -1 is a place to keep a row in. */
typedef struct step {
    int64_t to, from, first;
} step;

static int64_t common_tokens(const dt_state *s, int64_t a, int64_t b)
{
    const int32_t *x = s->ids + a * s->capacity, *y = s->ids + b * s->capacity;
    int64_t n = 0;

    while (n < s->lengths[a] && n < s->lengths[b] && x[n] == y[n]) n++;
    return n;
}

static int64_t find_unneeded(const int64_t *from, const bool *done, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        bool needed = done[i];
        for (int64_t j = 0; j < n && !needed; j++) needed = !done[j] && j != i && from[j] == i;
        if (!needed) return i;
    }
    return -1;
}

/* The order in which rows are written over: first those that no other row needs any more. What
 * remains are circles, of which one row is kept aside. Returns the number of steps, at most 2 n. */
static int plan_steps(const dt_state *s, int64_t *from, bool *done, step *steps)
{
    int n = 0;

    for (int64_t i = 0; i < s->batch; i++) done[i] = from[i] == i;
    for (;;) {
        int64_t i = find_unneeded(from, done, s->batch), keep = 0;
        if (i >= 0) {
            const int64_t source = from[i] >= 0 ? from[i] : -1 - from[i];
            steps[n++] = (step){ i, from[i] >= 0 ? from[i] : -1, common_tokens(s, i, source) };
            done[i] = true;
            continue;
        }
        while (keep < s->batch && done[keep]) keep++;
        if (keep == s->batch) return n;
        steps[n++] = (step){ -1, keep, 0 };
        for (int64_t j = 0; j < s->batch; j++) /* -1 - keep: row `keep` as it was */
            if (!done[j] && from[j] == keep) {
                steps[n - 1].first = common_tokens(s, j, keep);
                from[j] = -1 - keep;
            }
    }
}

/* What the steps move: KV caches on the rank's device, or ids. */
typedef struct rows {
    dt_tensor *cache, *aside; /* aside: as large as one row */
    char *ids, *ids_aside;
    int64_t row, token; /* bytes */
    int64_t first, n;   /* rows that this rank has; others are left to theirs */
} rows;

static dt_status copy_row(const rows *r, const step *s, int64_t length)
{
    const int64_t at = s->first * r->token, bytes = length * r->token - at;
    const int64_t to = (s->to >= 0 ? (s->to - r->first) * r->row : 0) + at;
    const int64_t from = (s->from >= 0 ? (s->from - r->first) * r->row : 0) + at;
    const int64_t one = s->to >= 0 ? s->to : s->from; /* the other is of the same prompt */

    if (bytes <= 0 || one < r->first || one >= r->first + r->n) return DT_OK;
    if (r->cache != NULL)
        DT_TRY(dti_tensor_copy_bytes(s->to >= 0 ? r->cache : r->aside, to,
                                     s->from >= 0 ? r->cache : r->aside, from, bytes));
    else
        memcpy((s->to >= 0 ? r->ids : r->ids_aside) + to,
               (s->from >= 0 ? r->ids : r->ids_aside) + from, (size_t)bytes);
    return DT_OK;
}

static dt_status take_steps(const step *steps, int n, const rows *r, int64_t length)
{
    for (int i = 0; i < n; i++) DT_TRY(copy_row(r, &steps[i], length));
    return DT_OK;
}

static dt_status reorder_cache(const dt_state *s, const step *steps, int n, dt_tensor *cache)
{
    const int64_t shape[] = { 1, s->capacity, dt_tensor_extent(cache, 2),
                              dt_tensor_extent(cache, 3) };
    const dt_local *local = dt_tensor_local(cache);
    rows r = { .cache = cache, .first = local->offset[0], .n = local->shape[0] };
    const dt_placement whole = DT_REPLICATE;
    const dt_layout *layout = dt_tensor_layout(cache);
    dt_status st;

    DT_TRY(row_bytes(cache, s, &r.token, &r.row));
    for (int m = 0; m < dt_layout_n_dims(layout); m++)
        if (dti_has(s->model->batch_dims, m)) /* a row of each rank's own */
            DT_TRY(dti_layout_with(layout, m, &whole, &layout));
    DT_TRY(
        dti_tensor_create(dt_tensor_mesh(cache), layout, dt_tensor_dtype(cache), shape, &r.aside));
    st = take_steps(steps, n, &r, s->length);
    dt_tensor_release(&r.aside);
    return st;
}

static dt_status reorder_ids(const dt_state *s, const step *steps, int n)
{
    const int64_t token = (int64_t)sizeof *s->ids;
    rows r = { .ids = (char *)s->ids, .row = s->capacity * token, .token = token, .n = s->batch };
    dt_status st;

    DT_TRY(dti_alloc((size_t)(s->length * token) + 1, (void **)&r.ids_aside));
    st = take_steps(steps, n, &r, s->length);
    dti_free(r.ids_aside);
    return st;
}

dt_status dti_state_reorder(dt_state *s, const int64_t *from_rows)
{
    const size_t batch = (size_t)s->batch;
    int64_t *from = NULL;
    step *steps = NULL;
    bool *done = NULL;
    dt_status st = DT_OK;
    int n;

    DT_TRY_TO(done, st, dti_alloc_array(batch, sizeof *from, (void **)&from));
    DT_TRY_TO(done, st, dti_alloc_array(batch, sizeof *done, (void **)&done));
    DT_TRY_TO(done, st, dti_alloc_array(2 * batch, sizeof *steps, (void **)&steps));
    memcpy(from, from_rows, batch * sizeof *from);
    n = plan_steps(s, from, done, steps);
    for (int64_t i = 0; i < s->model->info.n_layers && n > 0; i++) {
        if (s->kv[i].k != NULL) DT_TRY_TO(done, st, reorder_cache(s, steps, n, s->kv[i].k));
        if (s->kv[i].v != NULL) DT_TRY_TO(done, st, reorder_cache(s, steps, n, s->kv[i].v));
    }
    DT_TRY_TO(done, st, reorder_ids(s, steps, n));
    DT_TRY_TO(done, st, carry_rows(s, 1, from_rows));
done:
    dti_free(from);
    dti_free(done);
    dti_free(steps);
    return st;
}

void dt_state_set_progress(dt_state *s, dt_progress_fn progress, void *arg)
{
    if (s == NULL) return;
    s->progress = progress;
    s->progress_arg = arg;
}

void dt_state_set_go_on(dt_state *s, dt_go_on_fn go_on, void *arg)
{
    if (s == NULL) return;
    s->go_on = go_on;
    s->go_on_arg = arg;
}

void dt_state_set_hidden(dt_state *s, dt_hidden_fn see, void *arg)
{
    if (s == NULL) return;
    s->see = see;
    s->see_arg = arg;
    s->unrecorded = s->unrecorded || see != NULL;
}
