/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass over whole sequences, without a state: what training and scoring run. */
#include <dtensor/model_training.h>
#include <dtensor/ops_loss.h>
#include <string.h>

#include "base/numbers.h"
#include "base/options.h"
#include "dtensor/create.h"
#include "dtensor/host.h"
#include "models/run/forward.h"

dt_tensor *dt_model_ids(dt_tape *t, dt_model *m, const int32_t *ids, int64_t batch, int64_t tokens)
{
    const dt_local *mine;
    dt_tensor *x;
    dt_status st;

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (m == NULL || batch < 1 || tokens < 1 || batch > INT32_MAX / tokens ||
        (ids == NULL && !dt_runtime_is_dry(dt_mesh_runtime(m->mesh))))
        return dt_tape_fail(t, DT_ERR_ARG,
                            "dt_model_ids: model or ids is NULL, or %lld sequences of %lld tokens",
                            (long long)batch, (long long)tokens);
    st = dti_pass_ints(t, m, batch, tokens, 1, &x);
    mine = st == DT_OK ? dt_tensor_local(x) : NULL;
    if (st == DT_OK && dt_mesh_is_member(m->mesh) && !dt_runtime_is_dry(dt_mesh_runtime(m->mesh)))
        st = dt_tensor_write(x, ids + mine->offset[0] * tokens,
                             (size_t)(mine->shape[0] * tokens) * sizeof *ids);
    return st == DT_OK ? x : dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}

/* Laid out as the ids: token j of a sequence, whose document begins with token `start`, has
 * `of_place` j + `of_start` start. Without documents all begin with token 0. */
static dt_status make_places(dt_tape *t, dt_tensor *ids, const int32_t *starts, int of_place,
                             int of_start, dt_tensor **out)
{
    const int64_t tokens = dt_tensor_extent(ids, 1);
    dti_host host;
    dt_tensor *x;
    int32_t *to;

    DT_TRY(dt_empty_like(ids, &x));
    *out = dti_tape_push(t, x);
    DT_CHECK(*out != NULL, DT_ERR_MEMORY, "the tape could not grow");
    if (dt_runtime_is_dry(dt_tape_runtime(t))) return DT_OK;
    DT_TRY(dti_host_open(x, DTI_HOST_WRITES, &host));
    to = host.local.data;
    for (int64_t b = 0; b < host.local.shape[0]; b++)
        for (int64_t j = host.local.offset[1]; j < host.local.offset[1] + host.local.shape[1];
             j++) {
            const int64_t at = (host.local.offset[0] + b) * tokens + j;
            *to++ = of_place * (int32_t)j + (starts != NULL ? of_start * starts[at] : 0);
        }
    return dti_host_close(&host, DT_OK);
}

/* Where tokens stand: in their sequence, or in their document of it. */
static dt_status place_tokens(dt_tape *t, dt_tensor *ids, const int32_t *starts,
                              dt_model_pass *pass)
{
    DT_TRY(make_places(t, ids, starts, 1, -1, &pass->positions));
    if (starts == NULL) return DT_OK;
    DT_TRY(make_places(t, ids, starts, 0, 1, &pass->segments));
    return make_places(t, ids, starts, 1, 0, &pass->rows_of);
}

/* The longest document, of all ranks' sequences: what positions have to reach. */
static dt_status longest(dt_tensor *ids, const int32_t *starts, int64_t *out)
{
    const int64_t tokens = dt_tensor_extent(ids, 1);

    *out = tokens;
    if (starts == NULL || dt_runtime_is_dry(dt_mesh_runtime(dt_tensor_mesh(ids)))) return DT_OK;
    *out = 1;
    for (int64_t i = 0; i < dt_tensor_extent(ids, 0) * tokens; i++) {
        const int64_t j = i % tokens;
        DT_CHECK(starts[i] == j || (j > 0 && starts[i] == starts[i - 1]), DT_ERR_ARG,
                 "dt_loss_options.starts: token %lld of sequence %lld has %d: it begins a document "
                 "or has what the one before it has",
                 (long long)j, (long long)(i / tokens), (int)starts[i]);
        *out = dti_max(*out, j + 1 - starts[i]);
    }
    return DT_OK;
}

static dt_status read_call(const dt_model *m, dt_tensor *ids, const dt_loss_options *options,
                           dt_loss_options *o, int64_t *length)
{
    DT_TRY(dti_options_read("dt_loss_options", "start from DT_LOSS_OPTIONS_INIT", options, o,
                            sizeof *o));
    DT_CHECK(m != NULL && ids != NULL, DT_ERR_ARG, "model or ids is NULL");
    DT_CHECK(dt_tensor_n_axes(ids) == 2 && dt_tensor_dtype(ids) == DT_I32, DT_ERR_SHAPE,
             "ids are [batch, tokens] i32; see dt_model_ids()");
    DT_TRY(longest(ids, o->starts, length));
    DT_CHECK(*length <= m->info.max_positions, DT_ERR_ARG,
             "%lld tokens%s exceed the model's %lld positions", (long long)*length,
             o->starts != NULL ? " of a document" : "", (long long)m->info.max_positions);
    DT_CHECK((int)o->recompute >= 0 && o->recompute <= DT_RECOMPUTED_BLOCKS, DT_ERR_ARG,
             "recompute is %d: no dt_recomputed", (int)o->recompute);
    DT_CHECK(o->chunk >= 0 && o->n_valid >= 0.0, DT_ERR_ARG, "chunk is %lld, n_valid %g",
             (long long)o->chunk, o->n_valid);
    return DT_OK;
}

/* A pass over whole sequences, as its caller wants it. */
typedef struct whole_call {
    dt_tensor *ids, *targets; /* targets NULL: logits are wanted, no loss */
    dt_loss_options options;
    int64_t length;
} whole_call;

/* x [batch, tokens, hidden] behind the blocks of a stage. NULL after an error. */
static dt_tensor *hidden(dt_tape *t, dt_model *m, const whole_call *c, const dti_stage *stage,
                         dt_tensor *x)
{
    const dt_loss_options *o = &c->options;
    dt_model_pass pass = {
        .ids = c->ids, .n_layers = m->info.n_layers, .rows = DT_LOGITS_ALL, .length = c->length
    };
    const dt_status st = place_tokens(t, c->ids, o->starts, &pass);

    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    if (o->recompute == DT_RECOMPUTED_CHEAP) dt_tape_set_thrifty(t, true);
    return dti_pass_body(t, m, &pass, stage, x, o->recompute == DT_RECOMPUTED_BLOCKS);
}

/* --- loss ------------------------------------------------------------------------------------- */

/* The head of some tokens, and what they lose: in[] is x and targets. */
typedef struct head_call {
    const dt_model *m;
    double n_valid;
} head_call;

static dt_tensor *call_head(dt_tape *t, const void *arg, int n, dt_tensor *const *in)
{
    dt_cross_entropy_options o = DT_CROSS_ENTROPY_OPTIONS_INIT;
    const head_call *c = arg;

    (void)n;
    o.n_valid = c->n_valid;
    return dt_cross_entropy(t, dti_pass_head(t, c->m, in[0]), in[1], &o);
}

/* A sum of terms as the value on every rank. */
static dt_tensor *whole(dt_tape *t, dt_tensor *x)
{
    const dt_placement want[DT_MAX_DIMS] = { { 0 } };

    return x != NULL ? dt_move(t, x, want) : NULL;
}

/* How many targets count, over all ranks: read, since chunks are divided by it one by one. */
static double count_valid(dt_tape *t, dt_tensor *targets)
{
    dt_tensor *n = whole(t, dt_count_targets(t, targets, -100));
    float value = 0.0f;
    dt_status st = DT_OK;

    if (n == NULL) return 0.0;
    if (!dt_runtime_is_dry(dt_tape_runtime(t)) && dt_mesh_is_member(dt_tensor_mesh(n)))
        st = dt_tensor_read(n, &value, sizeof value);
    if (st != DT_OK) (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    return dt_runtime_is_dry(dt_tape_runtime(t)) ? 1.0 : (double)value;
}

/* --- chunks ----------------------------------------------------------------------------------- */

static bool cuts(const dt_tensor *x, int dim, int axis)
{
    const dt_placement p = dt_layout_placement(dt_tensor_layout(x), dim);

    return p.kind == DT_PLACE_SHARD && p.axis == axis &&
           dt_mesh_dim_size(dt_tensor_mesh(x), dim) > 1;
}

/* Into how many parts of one length mesh dim *dim cuts the tokens of x [batch, tokens, ...]; 1: no
 * dim does, or not evenly. */
static int64_t count_parts(const dt_tensor *x, int *dim)
{
    int n = 0;

    for (int m = 0; m < dt_layout_n_dims(dt_tensor_layout(x)); m++)
        if (cuts(x, m, 1)) {
            *dim = m;
            n++;
        }
    if (n != 1 || dt_tensor_extent(x, 1) % dt_mesh_dim_size(dt_tensor_mesh(x), *dim) != 0) return 1;
    return dt_mesh_dim_size(dt_tensor_mesh(x), *dim);
}

/* x [batch, tokens, ...] as [batch, parts, tokens of each, ...], and back. NULL of NULL. */
static dt_tensor *fold(dt_tape *t, dt_tensor *x, int64_t parts)
{
    int64_t shape[4] = { 0 };

    if (x == NULL) return NULL;
    for (int a = 1; a < dt_tensor_n_axes(x); a++) shape[a + 1] = dt_tensor_extent(x, a);
    shape[0] = dt_tensor_extent(x, 0);
    shape[1] = parts;
    shape[2] /= parts;
    return dt_reshape(t, x, dt_tensor_n_axes(x) + 1, shape);
}

static dt_tensor *unfold(dt_tape *t, dt_tensor *x)
{
    int64_t shape[3] = { 0 };

    if (x == NULL) return NULL;
    for (int a = 2; a < dt_tensor_n_axes(x); a++) shape[a - 1] = dt_tensor_extent(x, a);
    shape[0] = dt_tensor_extent(x, 0);
    shape[1] *= dt_tensor_extent(x, 1);
    return dt_reshape(t, x, dt_tensor_n_axes(x) - 1, shape);
}

/* Tokens begin .. begin + count - 1 of each part of x. Of whole parts every rank has its own, and
 * nothing travels; of tokens that are cut otherwise each gets its share. */
static dt_tensor *take_tokens(dt_tape *t, dt_tensor *x, int64_t begin, int64_t count)
{
    dt_tensor *y = unfold(t, dt_slice(t, x, 2, begin, count));

    for (int m = 0; y != NULL && m < dt_layout_n_dims(dt_tensor_layout(x)); m++)
        if (cuts(x, m, 2)) y = dt_move_dim(t, y, m, DT_SHARD(1));
    return y;
}

/* Chunk after chunk of the tokens, of which the head is run again on the way back. */
static dt_tensor *chunked(dt_tape *t, dt_model *m, dt_tensor *x, dt_tensor *targets, int64_t chunk,
                          double n_valid)
{
    const head_call call = { m, n_valid > 0.0 ? n_valid : count_valid(t, targets) };
    int dim = 0;
    const int64_t parts = count_parts(x, &dim), tokens = dt_tensor_extent(x, 1) / parts;
    const int64_t rows = dti_max(chunk / parts, 1);
    dt_tensor *sum = NULL;

    if (parts > 1) x = dt_move_dim(t, x, dim, DT_SHARD_UNITS(1, tokens));
    x = fold(t, x, parts);
    targets = fold(t, targets, parts);
    for (int64_t begin = 0; begin < tokens && dt_tape_status(t) == DT_OK; begin += rows) {
        const int64_t count = dti_min(tokens - begin, rows);
        dt_tensor *part[2] = { take_tokens(t, x, begin, count),
                               take_tokens(t, targets, begin, count) };
        dt_tensor *loss;
        if (part[0] == NULL || part[1] == NULL) return NULL;
        loss = dt_recompute(t, call_head, &call, sizeof call, 2, part);
        sum = sum == NULL ? loss : dt_add(t, sum, loss);
    }
    return sum;
}

/* --- passes ----------------------------------------------------------------------------------- */

static dt_tensor *run_stage(dt_tape *t, dt_model *m, const void *arg, const dti_stage *stage,
                            dt_tensor *x)
{
    const whole_call *c = arg;
    const dt_loss_options *o = &c->options;
    const head_call call = { m, o->n_valid };

    x = hidden(t, m, c, stage, x);
    if (x == NULL || !stage->heads) return x;
    if (c->targets == NULL) return dti_pass_head(t, m, x);
    if (o->chunk > 0 && o->chunk < dt_tensor_extent(x, 1))
        return whole(t, chunked(t, m, x, c->targets, o->chunk, o->n_valid));
    return whole(t, call_head(t, &call, 2, (dt_tensor *[]){ x, c->targets }));
}

/* All stages of it. */
static dt_tensor *through_stages(dt_tape *t, dt_model *m, const whole_call *c)
{
    const dt_tensor_kind loss = { .dtype = DT_F32 };
    const dt_tensor_kind logits =
        dti_logits_kind(m, dt_tensor_extent(c->ids, 0), dt_tensor_extent(c->ids, 1));
    dti_result r =
        dti_enter_stages(t, m, c->ids, run_stage, c, c->targets != NULL ? &loss : &logits);

    dt_tensor *y = dti_leave_stages(t, &r);
    const dt_status st = dt_tape_status(t) == DT_OK ? dti_settle_stages(m) : DT_OK;

    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    return y;
}

/* Reads a call and runs it: `stage` of x, or below 0 all of them. */
static dt_tensor *pass_over(dt_tape *t, dt_model *m, whole_call *c, const dt_loss_options *options,
                            int stage, dt_tensor *x)
{
    dt_status st;

    if (dt_tape_status(t) != DT_OK) return NULL;
    c->options = (dt_loss_options)DT_LOSS_OPTIONS_INIT;
    st = read_call(m, c->ids, options, &c->options, &c->length);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    dt_scope_begin(t, m->arch->model_type);
    x = stage < 0 ? through_stages(t, m, c) : run_stage(t, m, c, &m->stages.stage[stage], x);
    return dt_scope_end(t, x);
}

dt_tensor *dt_model_logits(dt_tape *t, dt_model *m, dt_tensor *ids, const dt_loss_options *options)
{
    return pass_over(t, m, &(whole_call){ .ids = ids }, options, -1, NULL);
}

dt_tensor *dt_model_loss(dt_tape *t, dt_model *m, dt_tensor *ids, dt_tensor *targets,
                         const dt_loss_options *options)
{
    if (targets == NULL) return dt_tape_fail(t, DT_ERR_ARG, "dt_model_loss: targets is NULL");
    return pass_over(t, m, &(whole_call){ .ids = ids, .targets = targets }, options, -1, NULL);
}

dt_tensor *dt_model_stage(dt_tape *t, dt_model *m, int stage, dt_tensor *x, dt_tensor *ids,
                          dt_tensor *targets, const dt_loss_options *options)
{
    const int n = dt_model_n_stages(m);
    const dti_stages *all = &m->stages;

    if (stage < 0 || stage >= n || (x == NULL) != (stage == 0) ||
        (targets == NULL && stage == n - 1))
        return dt_tape_fail(t, DT_ERR_ARG,
                            "dt_model_stage: stage %d of a model that has %d, x is %s, targets are "
                            "%s: the first stage is given no x, the last one targets",
                            stage, n, x != NULL ? "a tensor" : "NULL",
                            targets != NULL ? "a tensor" : "NULL");
    if (all->n_meshes > 0 && !dt_mesh_is_member(all->meshes[all->stage[stage].place]))
        return dt_tape_fail(t, DT_ERR_ARG, "dt_model_stage: stage %d is of other ranks", stage);
    return pass_over(t, m, &(whole_call){ .ids = ids, .targets = targets }, options, stage, x);
}
