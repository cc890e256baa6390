/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass that goes from stage to stage, for those that want no gradients of it. */
#include <dtensor/channels.h>
#include <dtensor/model_training.h>

#include "base/numbers.h"
#include "dtensor/create.h"
#include "dtensor/device/device.h"
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

dt_tensor_kind dti_logits_kind(const dt_model *m, int64_t batch, int64_t rows)
{
    return kind_of(m, batch, rows, m->info.vocab_size, false);
}

dt_tensor_kind dt_model_stage_input(const dt_model *m, int64_t batch, int64_t tokens)
{
    return kind_of(m, batch, tokens, m->info.hidden_size, true);
}

/* Asks for the next message. Without bytes nobody says what comes: `x` does. */
static dt_parcel *ask(dt_tape *t, dt_channel *channel, const dt_tensor_kind *x)
{
    dt_status st = DT_OK;
    dt_parcel *parcel = NULL;

    if (dt_runtime_is_dry(dt_tape_runtime(t)))
        st = dt_channel_expect(channel, x->dtype, x->n_axes, x->shape, x->place);
    if (st == DT_OK) st = dt_channel_recv(channel, NULL, &parcel);
    if (st != DT_OK) (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    return parcel;
}

static dt_tensor *receive(dt_tape *t, dt_channel *channel, dt_tensor_kind x)
{
    dt_parcel *parcel = ask(t, channel, &x);

    return parcel != NULL ? dt_parcel_take(t, &parcel) : NULL;
}

static void send(dt_tape *t, dt_channel *channel, dt_tensor *x)
{
    const dt_status st = dt_channel_send(channel, x, NULL);

    if (st != DT_OK) (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}

/* Without bytes a rank of another stage does not see how logits lie: the head of a tensor of which
 * it has nothing says so. */
static dt_status find_place(dt_model *m, dt_tensor_kind *made)
{
    dt_mesh *last = m->stages.meshes[m->stages.stage[m->stages.n - 1].place];
    dt_runtime *rt = dt_mesh_runtime(m->mesh);
    const dti_observer *observer;
    dt_tensor_kind x = kind_of(m, made->shape[0], made->shape[1], m->info.hidden_size, true);
    dt_tensor *y = NULL, *logits;
    dt_tape *t = NULL;
    dti_device *device;
    dt_status st = DT_OK;

    DT_TRY(dti_device_of(rt, &device));
    observer = device->observer;
    device->observer = NULL;
    DT_TRY_TO(done, st, dt_zeros(last, x.place, x.dtype, x.n_axes, x.shape, &y));
    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    logits = dti_pass_head(t, m, y);
    DT_TRY_TO(done, st, dt_tape_status(t));
    for (int d = 0; d < dt_mesh_n_dims(last); d++)
        made->place[d] = dt_layout_placement(dt_tensor_layout(logits), d);
done:
    device->observer = observer;
    dt_tape_release(&t);
    dt_tensor_release(&y);
    return st;
}

/* What the last stage makes, which this rank may have, comes to all. */
static dti_result share_result(dt_tape *t, dt_model *m, dt_tensor *x, dt_tensor_kind made)
{
    const dti_stages *s = &m->stages;
    const bool dry = dt_runtime_is_dry(dt_tape_runtime(t));
    dt_status st = DT_OK;

    if (m->here == s->meshes[s->stage[s->n - 1].place]) {
        send(t, s->result, x);
        for (int d = 0; dry && d < dt_layout_n_dims(dt_tensor_layout(x)); d++)
            made.place[d] = dt_layout_placement(dt_tensor_layout(x), d);
    } else if (dry && made.n_axes > 0) {
        st = find_place(m, &made);
    }
    if (st != DT_OK) (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    if (dt_tape_status(t) != DT_OK) return (dti_result){ 0 };
    return (dti_result){ .parcel = ask(t, s->result, &made) };
}

dti_result dti_enter_stages(dt_tape *t, dt_model *m, const dt_tensor *ids, dti_stage_run run,
                            const void *arg, const dt_tensor_kind *made)
{
    const dti_stages *s = &m->stages;
    const dt_tensor_kind between =
        dt_model_stage_input(m, dt_tensor_extent(ids, 0), dt_tensor_extent(ids, 1));
    dti_result r = { 0 };

    if (s->n_meshes == 0) return (dti_result){ .x = run(t, m, arg, &s->stage[0], NULL) };
    if (dt_tape_records(t)) {
        (void)dt_tape_fail(t, DT_ERR_UNSUPPORTED,
                           "a record does not reach from stage to stage: a pipeline steps a model "
                           "that is cut so (dt_pipeline_run())");
        return r;
    }
    for (int i = 0; i < s->n && dt_tape_status(t) == DT_OK; i++) {
        if (s->meshes[s->stage[i].place] != m->here) continue;
        if (s->before[i] != NULL) r.x = receive(t, s->before[i], between);
        if (r.x != NULL || i == 0) r.x = run(t, m, arg, &s->stage[i], r.x);
        if (r.x != NULL && i + 1 < s->n && s->before[i + 1] != NULL) send(t, s->before[i + 1], r.x);
    }
    if (made == NULL || dt_tape_status(t) != DT_OK) return (dti_result){ 0 };
    return s->result != NULL ? share_result(t, m, r.x, *made) : r;
}

dt_tensor *dti_leave_stages(dt_tape *t, dti_result *r)
{
    if (r->parcel != NULL) r->x = dt_parcel_take(t, &r->parcel);
    dt_parcel_release(&r->parcel); /* of a tape that failed */
    return r->x;
}

dt_status dti_settle_stages(const dt_model *m)
{
    const dti_stages *s = &m->stages;

    for (int i = 0; i < s->n && s->before != NULL; i++)
        if (s->before[i] != NULL) DT_TRY(dt_channel_wait(s->before[i]));
    if (s->result != NULL) DT_TRY(dt_channel_wait(s->result));
    return DT_OK;
}
