/* SPDX-License-Identifier: Apache-2.0 */
#include "models/judge/prediction.h"

#include <string.h>

#include "base/numbers.h"
#include "dtensor/create.h"
#include "dtensor/device/device.h"
#include "dtensor/kernels/kernel.h"
#include "dtensor/leaves.h"
#include "mesh/runtime.h"
#include "models/judge/rank_classes.h"
#include "models/run/forward.h"
#include "parallel_styles/changes.h"

/* Listens to a device while a model is made (cost is NULL) or during one pass. */
typedef struct listener {
    dti_observer observer;
    const dt_tape *tape;
    dt_pass_cost *cost;
    dti_watched *watched; /* or NULL */
    dt_status st;
} listener;

static dt_status add(const listener *l, dt_comm_kind kind, uint32_t dims,
                     const dt_comm_counter *count, int64_t most)
{
    dt_pass_cost *c = l->cost;
    const char *layer = dti_tape_scope(l->tape);
    dt_traffic *item;

    /* Names of scopes are those of layers and blocks: one address each. */
    for (size_t i = c->n; i > 0; i--) {
        item = &c->items[i - 1];
        if (item->layer != layer) break;
        if (item->kind != kind || item->dims != dims) continue;
        item->count.calls += count->calls;
        item->count.bytes += count->bytes;
        item->most_bytes += most;
        return DT_OK;
    }
    DT_TRY(dti_grow((void **)&c->items, &c->capacity, c->n + 1, sizeof *item));
    c->items[c->n++] = (dt_traffic){ layer, kind, dims, *count, most };
    return DT_OK;
}

static void hear_move(void *arg, const dti_move_step *step, const int64_t *shape, dt_comm_kind kind,
                      const dt_comm_counter *count)
{
    listener *l = arg;

    if (l->st == DT_OK && l->cost != NULL)
        l->st = add(l, kind, step->dims, count, dti_max(step->most, count->bytes));
    if (l->st == DT_OK && l->watched != NULL) l->st = dti_watch_step(l->watched, step, shape);
}

static void hear_tensor(void *arg, const dt_layout *layout, const int64_t *shape)
{
    listener *l = arg;

    if (l->st == DT_OK && l->watched != NULL) l->st = dti_watch_tensor(l->watched, layout, shape);
}

static void listen(dti_device *device, listener *l)
{
    l->observer = (dti_observer){ hear_move, hear_tensor, l };
    device->observer = &l->observer;
}

static dt_status run_pass(dt_tape *t, dt_state *s, const int32_t *ids, int64_t n)
{
    dt_tensor *key;

    dt_tape_reset(t);
    (void)dti_choose_greedy(t, dt_model_forward(t, s->model, s, ids, n, DT_LOGITS_LAST), &key);
    DT_TRY(dt_tape_status(t));
    return DT_OK;
}

/* What came from other stages: of no layer, over the dim that they lie along. */
static dt_status add_messages(const listener *l, const dt_model *m)
{
    dt_pass_cost *c = l->cost;
    dt_comm_counter rest = c->total[DT_COMM_SEND];

    for (size_t i = 0; i < c->n; i++)
        if (c->items[i].kind == DT_COMM_SEND) {
            rest.calls -= c->items[i].count.calls;
            rest.bytes -= c->items[i].count.bytes;
        }
    if (rest.calls == 0) return DT_OK;
    DT_TRY(dti_grow((void **)&c->items, &c->capacity, c->n + 1, sizeof *c->items));
    c->items[c->n++] =
        (dt_traffic){ "(from other stages)", DT_COMM_SEND, 1u << m->stages.dim, rest, rest.bytes };
    return DT_OK;
}

static dt_status measure_pass(dt_tape *t, dt_state *s, int64_t n, dti_watched *watched,
                              dt_pass_cost *cost)
{
    listener l = { .tape = t, .cost = cost, .watched = watched };
    dti_device *device;
    int32_t *ids = NULL;
    dt_status st;

    DT_TRY(dti_device_of(dt_tape_runtime(t), &device));
    if (!device->dry) DT_TRY(dti_alloc_array((size_t)(s->batch * n), sizeof *ids, (void **)&ids));
    listen(device, &l);
    st = run_pass(t, s, ids, n);
    device->observer = NULL;
    dti_free(ids);
    DT_TRY(st);
    DT_TRY(l.st);
    for (int k = 0; k < DT_N_COMM_KINDS; k++) cost->total[k] = dt_tape_comm(t, (dt_comm_kind)k);
    cost->work = dt_tape_work(t);
    DT_TRY(add_messages(&l, s->model));
    return DT_OK;
}

dt_status dti_measure_pass(dt_tape *t, dt_state *s, int64_t n, dt_pass_cost *cost)
{
    DT_TRY(measure_pass(t, s, n, NULL, cost));
    return DT_OK;
}

int64_t dti_state_bytes(const dt_state *s)
{
    int64_t bytes = dti_carry_bytes(s->carry);

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

static dt_status load(const char *dir, const dti_predict_options *o, dti_watched *watched,
                      dti_prediction *p)
{
    listener l = { .watched = watched };
    dti_device *device;
    dt_status st;

    DT_TRY(dti_device_of(p->rt, &device));
    listen(device, &l);
    st = dt_model_load(p->mesh, dir, o->load, &p->model);
    device->observer = NULL;
    DT_TRY(st);
    DT_TRY(l.st);
    return DT_OK;
}

static dt_status run_passes(const dti_predict_options *o, dti_watched *watched, dti_prediction *p)
{
    dt_status st = DT_OK;
    dt_state *s = NULL;
    dt_tape *t = NULL;
    dti_device *device;
    int64_t held;

    DT_TRY(dti_device_of(p->rt, &device));
    device->meter = o->meter;
    DT_TRY_TO(done, st, dt_state_create(p->model, o->batch, o->sequence, &s));
    DT_TRY_TO(done, st, dt_tape_create(p->rt, &t));
    DT_TRY_TO(done, st, measure_pass(t, s, o->sequence, watched, &p->prefill));
    p->prefill_seconds = dti_tape_seconds(t);
    dt_state_rewind(s, o->sequence - 1);
    DT_TRY_TO(done, st, measure_pass(t, s, 1, watched, &p->decode));
    p->decode_seconds = dti_tape_seconds(t);
    DT_TRY_TO(done, st, dti_held_bytes(p->rt, &held));
    p->weight_bytes = (int64_t)dti_memory_of_kind(device->memory, DTI_KIND_WEIGHTS);
    p->cache_bytes = dti_state_bytes(s);
    p->activation_bytes = held - p->weight_bytes - p->cache_bytes;
done:
    dt_tape_release(&t);
    dt_state_release(&s);
    return st;
}

static dt_status open_run(const char *dir, const dti_predict_options *o, dti_watched *watched,
                          dti_prediction *out)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims;

    *out = (dti_prediction){ 0 };
    run.log = o->log;
    run.log_arg = o->log_arg;
    run.device = o->device;
    DT_CHECK(o->batch >= 1 && o->batch <= INT32_MAX, DT_ERR_ARG, "a batch of %lld sequences",
             (long long)o->batch);
    DT_TRY(dt_mesh_parse(o->mesh, &n_dims, names, sizes, &run.n_ranks));
    DT_TRY(dt_runtime_create_dry(&run, o->rank, o->like, &out->rt));
    DT_TRY(dt_mesh_create(out->rt, o->mesh, &out->mesh));
    DT_TRY(load(dir, o, watched, out));
    return DT_OK;
}

dt_status dti_predict_open(const char *dir, const dti_predict_options *o, dti_prediction *out)
{
    DT_TRY(open_run(dir, o, NULL, out));
    return DT_OK;
}

static dt_status predict(const char *dir, const dti_predict_options *o, dti_watched *watched,
                         dti_prediction *out)
{
    DT_TRY(open_run(dir, o, watched, out));
    DT_TRY(run_passes(o, watched, out));
    return DT_OK;
}

dt_status dti_predict(const char *dir, const dti_predict_options *o, dti_prediction *out)
{
    DT_TRY(predict(dir, o, NULL, out));
    return DT_OK;
}

static int64_t received(const dt_pass_cost *c)
{
    int64_t bytes = 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) bytes += c->total[k].bytes;
    return bytes;
}

dt_rank_cost dti_prediction_cost(const dti_prediction *p)
{
    return (dt_rank_cost){ .weight_bytes = p->weight_bytes,
                           .cache_bytes = p->cache_bytes,
                           .activation_bytes = p->activation_bytes,
                           .prompt_bytes = received(&p->prefill),
                           .step_bytes = received(&p->decode) };
}

/* A dry pass for the first rank of each class but that of `first`. */
static dt_status predict_classes(const char *dir, const dti_predict_options *options,
                                 const dti_prediction *first, const dti_rank_classes *classes,
                                 dt_rank_cost *ranks)
{
    dti_predict_options o = *options;

    o.log = NULL; /* said once */
    ranks[0] = dti_prediction_cost(first);
    for (int c = 1; c < classes->n; c++) {
        dti_prediction p;
        dt_status st;

        o.rank = classes->first[c];
        st = dti_predict(dir, &o, &p);
        ranks[o.rank] = dti_prediction_cost(&p);
        dti_prediction_free(&p);
        if (st != DT_OK) dti_error_prefix("seen from rank %d", o.rank);
        DT_TRY(st);
    }
    for (int r = 0; r < dt_mesh_n_ranks(first->mesh); r++)
        ranks[r] = ranks[classes->first[classes->of[r]]];
    return DT_OK;
}

dt_status dti_predict_ranks(const char *dir, const dti_predict_options *options,
                            dti_prediction *first, dt_rank_cost **ranks)
{
    dti_predict_options o = *options;
    dti_rank_classes classes = { 0 };
    dti_watched watched = { 0 };
    dt_status st = DT_OK;

    o.rank = 0;
    *ranks = NULL;
    DT_TRY_TO(done, st, predict(dir, &o, &watched, first));
    if (first->model->stages.n_meshes > 1) watched.apart = 1u << first->model->stages.dim;
    DT_TRY_TO(done, st, dti_rank_classes_find(&watched, first->mesh, &classes));
    DT_TRY_TO(
        done, st,
        dti_alloc_array((size_t)dt_mesh_n_ranks(first->mesh), sizeof **ranks, (void **)ranks));
    DT_TRY_TO(done, st, predict_classes(dir, &o, first, &classes, *ranks));
done:
    dti_rank_classes_free(&classes);
    dti_watched_free(&watched);
    return st;
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
