/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass that goes from stage to stage, for those that want no gradients of it. */
#include <dtensor/channels.h>
#include <dtensor/model_training.h>

#include "base/numbers.h"
#include "dtensor/create.h"
#include "models/run/forward.h"

/* [batch, rows, columns] of whole rows, whose tokens may be cut. */
static dt_tensor_kind kind_of(const dt_model *m, int64_t batch, int64_t rows, int64_t columns,
                              bool cut_tokens)
{
    dt_tensor_kind x = { .dtype = m->info.dtype, .n_axes = 3, .shape = { batch, rows, columns } };

    for (int d = 0; d < dt_mesh_n_dims(m->mesh); d++)
        if (dti_has(m->batch_dims, d)) x.place[d] = DT_SHARD(0);
    if (cut_tokens && m->stages.token_dim >= 0 && rows > 1)
        x.place[m->stages.token_dim] = DT_SHARD(1);
    return x;
}

dt_tensor_kind dt_model_stage_input(const dt_model *m, int64_t batch, int64_t tokens)
{
    return kind_of(m, batch, tokens, m->info.hidden_size, true);
}

/* Without bytes nobody says what comes. */
static dt_status expect(dt_channel *channel, dt_tensor_kind x)
{
    DT_TRY(dt_channel_expect(channel, x.dtype, x.n_axes, x.shape, x.place));
    return DT_OK;
}

static dt_tensor *receive(dt_tape *t, dt_channel *channel, dt_status st)
{
    dt_parcel *parcel = NULL;

    if (st == DT_OK) st = dt_channel_recv(channel, NULL, &parcel);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    return dt_parcel_take(t, &parcel);
}

static void send(dt_tape *t, dt_channel *channel, dt_tensor *x)
{
    const dt_status st = dt_channel_send(channel, x, NULL);

    if (st != DT_OK) (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}

dt_tensor *dti_through_stages(dt_tape *t, dt_model *m, const dt_tensor *ids, dti_stage_run run,
                              const void *arg)
{
    const dti_stages *s = &m->stages;
    const bool dry = dt_runtime_is_dry(dt_tape_runtime(t));
    const dt_mesh *last = s->n_meshes > 0 ? s->meshes[s->stage[s->n - 1].place] : NULL;
    const int64_t batch = dt_tensor_extent(ids, 0), tokens = dt_tensor_extent(ids, 1);
    dt_tensor *x = NULL;

    if (s->n_meshes == 0) return run(t, m, arg, &s->stage[0], NULL);
    if (dt_tape_records(t))
        return dt_tape_fail(t, DT_ERR_UNSUPPORTED,
                            "a record does not reach from stage to stage: a pipeline steps a model "
                            "that is cut so (dt_pipeline_run())");
    for (int i = 0; i < s->n && dt_tape_status(t) == DT_OK; i++) {
        if (s->meshes[s->stage[i].place] != m->here) continue;
        if (s->before[i] != NULL)
            x = receive(t, s->before[i],
                        dry ? expect(s->before[i], dt_model_stage_input(m, batch, tokens)) : DT_OK);
        if (x != NULL || i == 0) x = run(t, m, arg, &s->stage[i], x);
        if (x != NULL && i + 1 < s->n && s->before[i + 1] != NULL) send(t, s->before[i + 1], x);
    }
    if (s->result == NULL || dt_tape_status(t) != DT_OK) return x;
    if (m->here == last) send(t, s->result, x);
    return receive(t, s->result,
                   dry ? expect(s->result, kind_of(m, batch, 1, m->info.vocab_size, false))
                       : DT_OK);
}
