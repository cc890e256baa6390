/* SPDX-License-Identifier: Apache-2.0 */
#include "models/predict.h"

#include <string.h>

#include "dtensor/create.h"
#include "dtensor/device/device.h"
#include "dtensor/kernels/kernel.h"
#include "mesh/runtime.h"

/* Listens to a device during one pass. */
typedef struct listener {
    const dt_tape *tape;
    dti_pass_cost *cost;
    dt_status st;
} listener;

static void add(void *arg, dt_comm_kind kind, uint32_t dims, int64_t bytes)
{
    listener *l = arg;
    dti_pass_cost *c = l->cost;
    const char *layer = dti_tape_scope(l->tape);
    dti_traffic *item;

    /* Names of scopes are those of layers and blocks: one address each. */
    for (size_t i = c->n; i > 0; i--) {
        item = &c->items[i - 1];
        if (item->layer != layer) break;
        if (item->kind != kind || item->dims != dims) continue;
        item->count.calls++;
        item->count.bytes += bytes;
        return;
    }
    if (l->st == DT_OK) l->st = dti_grow((void **)&c->items, &c->capacity, c->n + 1, sizeof *item);
    if (l->st != DT_OK) return;
    c->items[c->n++] = (dti_traffic){ layer, kind, dims, { 1, bytes } };
}

static dt_status run_pass(dt_tape *t, dt_state *s, const int32_t *ids, int64_t n)
{
    dt_tensor *key;

    dt_tape_reset(t);
    (void)dti_choose_greedy(t, dt_model_forward(t, s->model, s, ids, n, DT_LOGITS_LAST), &key);
    DT_TRY(dt_tape_status(t));
    return DT_OK;
}

dt_status dti_measure_pass(dt_tape *t, dt_state *s, int64_t n, dti_pass_cost *cost)
{
    listener l = { t, cost, DT_OK };
    dti_device *device;
    int32_t *ids = NULL;
    dt_status st;

    DT_TRY(dti_device_of(dt_tape_runtime(t), &device));
    if (!device->dry) DT_TRY(dti_alloc_array((size_t)(s->batch * n), sizeof *ids, (void **)&ids));
    device->observer = add;
    device->observer_arg = &l;
    st = run_pass(t, s, ids, n);
    device->observer = NULL;
    dti_free(ids);
    DT_TRY(st);
    DT_TRY(l.st);
    for (int k = 0; k < DT_N_COMM_KINDS; k++) cost->total[k] = dt_tape_comm(t, (dt_comm_kind)k);
    return DT_OK;
}

int64_t dti_state_bytes(const dt_state *s)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < s->model->info.n_layers; i++) {
        const dt_tensor *const both[] = { s->kv[i].k, s->kv[i].v };
        for (int k = 0; k < 2; k++)
            if (both[k] != NULL)
                bytes += dti_local_count(dt_tensor_local(both[k])) *
                         (int64_t)dt_dtype_size(dt_tensor_dtype(both[k]));
    }
    return bytes;
}

dt_status dti_held_bytes(dt_runtime *rt, int64_t *out)
{
    dti_device *device;

    DT_TRY(dti_device_of(rt, &device));
    *out = (int64_t)dti_memory_held(device->memory);
    return DT_OK;
}

static dt_status run_passes(const dti_predict_options *o, dti_prediction *p)
{
    dt_status st = DT_OK;
    dt_state *s = NULL;
    dt_tape *t = NULL;
    int64_t held;

    DT_TRY_TO(done, st, dt_state_create(p->model, o->batch, o->sequence, &s));
    DT_TRY_TO(done, st, dt_tape_create(p->rt, &t));
    DT_TRY_TO(done, st, dti_measure_pass(t, s, o->sequence, &p->prefill));
    dt_state_rewind(s, o->sequence - 1);
    DT_TRY_TO(done, st, dti_measure_pass(t, s, 1, &p->decode));
    DT_TRY_TO(done, st, dti_held_bytes(p->rt, &held));
    p->weight_bytes = dt_model_local_bytes(p->model);
    p->cache_bytes = dti_state_bytes(s);
    p->activation_bytes = held - p->weight_bytes - p->cache_bytes;
done:
    dt_tape_release(&t);
    dt_state_release(&s);
    return st;
}

dt_status dti_predict(const char *dir, const dti_predict_options *o, dti_prediction *out)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims;

    *out = (dti_prediction){ 0 };
    run.log = o->log;
    run.log_arg = o->log_arg;
    DT_CHECK(o->batch >= 1 && o->batch <= INT32_MAX, DT_ERR_ARG, "a batch of %lld sequences",
             (long long)o->batch);
    DT_TRY(dt_mesh_parse(o->mesh, &n_dims, names, sizes, &run.n_ranks));
    DT_TRY(dt_runtime_create_dry(&run, o->rank, NULL, &out->rt));
    DT_TRY(dt_mesh_create(out->rt, o->mesh, &out->mesh));
    DT_TRY(dt_model_load(out->mesh, dir, o->load, &out->model));
    DT_TRY(run_passes(o, out));
    return DT_OK;
}

void dti_prediction_free(dti_prediction *p)
{
    dti_free(p->prefill.items);
    dti_free(p->decode.items);
    dt_model_release(&p->model);
    dt_mesh_release(&p->mesh);
    dt_runtime_release_dry(&p->rt);
    *p = (dti_prediction){ 0 };
}
