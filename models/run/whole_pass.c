/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass over whole sequences, without a state: what training and scoring run. */
#include <dtensor/model_training.h>
#include <string.h>

#include "dtensor/create.h"
#include "dtensor/host.h"
#include "models/run/forward.h"

/* A tensor [batch, tokens] of i32 on the tape, of which each rank has its sequences. */
static dt_status make_ints(dt_tape *t, const dt_model *m, int64_t batch, int64_t tokens,
                           dt_tensor **out)
{
    const int64_t shape[] = { batch, tokens };
    dt_placement place[DT_MAX_DIMS] = { { 0 } };
    const dt_layout *layout;
    dt_tensor *x;

    if (m->batch_dim >= 0) place[m->batch_dim] = DT_SHARD(0);
    DT_TRY(dt_layout_get(m->mesh, 2, place, NULL, &layout));
    DT_TRY(dti_tensor_create(m->mesh, layout, DT_I32, shape, &x));
    *out = dti_tape_push(t, x);
    DT_CHECK(*out != NULL, DT_ERR_MEMORY, "the tape could not grow");
    return DT_OK;
}

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
    st = make_ints(t, m, batch, tokens, &x);
    mine = st == DT_OK ? dt_tensor_local(x) : NULL;
    if (st == DT_OK && dt_mesh_is_member(m->mesh) && !dt_runtime_is_dry(dt_mesh_runtime(m->mesh)))
        st = dt_tensor_write(x, ids + mine->offset[0] * tokens,
                             (size_t)(mine->shape[0] * tokens) * sizeof *ids);
    return st == DT_OK ? x : dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}

/* Position j of every sequence is j. Laid out as the ids. */
static dt_status make_positions(dt_tape *t, dt_tensor *ids, dt_tensor **out)
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
        for (int64_t j = 0; j < host.local.shape[1]; j++)
            to[b * host.local.shape[1] + j] = (int32_t)(host.local.offset[1] + j);
    (void)tokens;
    return dti_host_close(&host, DT_OK);
}

static dt_status check_call(const dt_model *m, const dt_tensor *ids, const dt_loss_options *o)
{
    DT_CHECK(m != NULL && ids != NULL, DT_ERR_ARG, "model or ids is NULL");
    DT_CHECK(o->size == sizeof *o, DT_ERR_ARG,
             "dt_loss_options.size is %zu, not %zu: begin with DT_LOSS_OPTIONS_INIT", o->size,
             sizeof *o);
    DT_CHECK(dt_tensor_n_axes(ids) == 2 && dt_tensor_dtype(ids) == DT_I32, DT_ERR_SHAPE,
             "ids are [batch, tokens] i32; see dt_model_ids()");
    DT_CHECK(dt_tensor_extent(ids, 1) <= m->info.max_positions, DT_ERR_ARG,
             "%lld tokens exceed the model's %lld positions", (long long)dt_tensor_extent(ids, 1),
             (long long)m->info.max_positions);
    DT_CHECK(o->chunk >= 0 && o->n_valid >= 0.0, DT_ERR_ARG, "chunk is %lld, n_valid %g",
             (long long)o->chunk, o->n_valid);
    return DT_OK;
}

/* What enters the head: x [batch, tokens, hidden]. NULL after an error. */
static dt_tensor *hidden(dt_tape *t, dt_model *m, dt_tensor *ids, const dt_loss_options *o)
{
    dt_model_pass pass = { .ids = ids,
                           .n_layers = m->info.n_layers,
                           .rows = DT_LOGITS_ALL,
                           .length = dt_tensor_extent(ids, 1) };
    const dt_status st = make_positions(t, ids, &pass.positions);

    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    return dti_pass_body(t, m, &pass, o->recompute == DT_RECOMPUTED_BLOCKS);
}

dt_tensor *dt_model_logits(dt_tape *t, dt_model *m, dt_tensor *ids, const dt_loss_options *options)
{
    const dt_loss_options defaults = DT_LOSS_OPTIONS_INIT;
    const dt_loss_options *o = options != NULL ? options : &defaults;
    dt_tensor *x;
    dt_status st;

    if (dt_tape_status(t) != DT_OK) return NULL;
    st = check_call(m, ids, o);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    dt_scope_begin(t, m->arch->model_type);
    x = hidden(t, m, ids, o);
    return dt_scope_end(t, x != NULL ? dti_pass_head(t, m, x) : NULL);
}
