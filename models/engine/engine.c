/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/numbers.h"
#include "base/options.h"
#include "base/sync.h"
#include "dtensor/device/device.h"
#include "dtensor/device/device_memory.h"
#include "mesh/runtime.h"
#include "models/engine/engine_parts.h"
#include "models/generation/generate.h"
#include "models/run/forward.h"

/* --- create ----------------------------------------------------------------------------------- */

static const double MIN_SLOWDOWN = 1.01, MAX_SLOWDOWN = 1e6;

static dt_status check_options(const dt_engine_options *o)
{
    DT_CHECK(o->pool_tokens >= 0 && o->pool_bytes >= 0, DT_ERR_ARG,
             "pool_tokens is %lld, pool_bytes %lld", (long long)o->pool_tokens,
             (long long)o->pool_bytes);
    DT_CHECK(o->pool_share > 0 && o->pool_share <= 1, DT_ERR_ARG,
             "pool_share is %g, must be above 0 and at most 1", o->pool_share);
    DT_CHECK(o->max_texts >= 1 && o->max_texts <= DT_MAX_SEQUENCES && o->max_rows >= o->max_texts,
             DT_ERR_ARG,
             "max_texts is %lld, 1 to %d are possible; max_rows is %lld, at least as many",
             (long long)o->max_texts, (int)DT_MAX_SEQUENCES, (long long)o->max_rows);
    DT_CHECK(o->max_queued >= 1, DT_ERR_ARG, "max_queued is %lld", (long long)o->max_queued);
    DT_CHECK(o->latency_s >= 0 && o->latency_s < 1e9, DT_ERR_ARG, "latency_s is %g", o->latency_s);
    DT_CHECK(o->slowdown == 0 || (o->slowdown >= MIN_SLOWDOWN && o->slowdown <= MAX_SLOWDOWN),
             DT_ERR_ARG, "slowdown is %g, must be from %g to %g, or 0", o->slowdown, MIN_SLOWDOWN,
             MAX_SLOWDOWN);
    return DT_OK;
}

/* Over all ranks of the model's mesh. */
static dt_status reduce(const dt_engine *e, dt_reduce op, int64_t *n)
{
    const uint32_t all = (1u << dt_mesh_n_dims(e->model->mesh)) - 1;
    dti_comm *comm;

    DT_TRY(dti_mesh_comm(e->model->mesh, all, &comm));
    if (comm != NULL) DT_TRY(dti_all_reduce(comm, n, n, 1, DT_I64, op));
    return DT_OK;
}

/* Bytes that this rank may give to the pool. */
static dt_status bytes_of_pool(const dt_engine *e, int64_t *bytes)
{
    dt_runtime *rt = dt_mesh_runtime(e->model->mesh);
    const int64_t ranks = dti_max(1, dt_runtime_size(rt) / dti_max(1, dt_launch_size()));
    dti_device *device;

    *bytes = e->o.pool_bytes;
    if (*bytes > 0) return DT_OK;
    DT_TRY(dti_device_of(rt, &device));
    DT_CHECK(device->ops->host_visible, DT_ERR_ARG,
             "a pool in a device's own memory: say how large, by pool_tokens or pool_bytes");
    *bytes = dti_machine_memory() / ranks - (int64_t)dti_memory_held(device->memory);
    *bytes = (int64_t)((double)dti_max(0, *bytes) * e->o.pool_share);
    return DT_OK;
}

/* Blocks are no more than all texts of a pass can have, unless others may find what texts have
 * left. Where layers carry state each text that runs has a slot: no more than half of the bytes is
 * theirs, and fewer texts run then. */
static dt_status count_pool(dt_engine *e, int64_t *n_blocks, int64_t *n_slots)
{
    const int64_t block = DTI_BLOCK_TOKENS, each = dti_kv_pool_block_bytes(e->pool);
    const int64_t longest = dti_divide_up(e->model->info.max_positions, block);
    const int64_t slot = dti_kv_pool_slot_bytes(e->pool);
    int64_t bytes, most = dti_min(INT32_MAX / e->replicas, longest * e->o.max_texts * 2);

    *n_slots = e->o.max_texts;
    *n_blocks = dti_divide_up(e->o.pool_tokens, block);
    if (*n_blocks == 0) {
        DT_TRY(bytes_of_pool(e, &bytes));
        *n_slots = dti_kv_pool_slots_in(bytes, slot, e->o.max_texts);
        bytes -= *n_slots * slot;
        *n_blocks = dti_min(each > 0 ? bytes / each : most, most);
    }
    DT_TRY(reduce(e, DT_MIN, n_blocks));
    DT_TRY(reduce(e, DT_MIN, n_slots));
    DT_CHECK(*n_slots >= 1, DT_ERR_MEMORY,
             "half of the pool has no room for the %lld bytes that layers carry of a text; raise "
             "pool_bytes or pool_share: %lld bytes on each rank are enough for one text at a time",
             (long long)slot, (long long)(2 * dti_max(slot, each)));
    DT_CHECK(*n_blocks >= 1, DT_ERR_MEMORY,
             "there is no room for a block of %lld tokens, %lld bytes on each rank; raise "
             "pool_bytes or pool_share",
             (long long)block, (long long)each);
    return DT_OK;
}

int64_t dt_engine_pool_tokens(const dt_model_info *info, dt_dtype dtype, int64_t bytes,
                              int64_t max_texts)
{
    int64_t slots;

    if (info == NULL || bytes <= 0 || max_texts <= 0) return 0;
    slots = dti_kv_pool_slots_in(bytes, info->carried_bytes, max_texts);
    if (slots == 0) return 0;
    return (bytes - slots * info->carried_bytes) / dti_max(dt_model_cache_bytes(info, dtype, 1), 1);
}

static dt_status make_schedule(dt_engine *e, int64_t n_blocks, int64_t n_slots)
{
    int64_t sees = dti_kv_pool_sees(e->pool); /* other stages may see more */
    dti_schedule_options o = { .n_replicas = e->replicas,
                               .n_blocks = n_blocks,
                               .block = DTI_BLOCK_TOKENS,
                               .max_running = n_slots,
                               .max_rows = e->o.max_rows,
                               .max_waiting = e->o.max_queued,
                               .wanted_ns = llround(e->o.latency_s * 1e9),
                               .slowed = e->o.slowdown > 0 ? llround((e->o.slowdown - 1) * 1e3) : 0,
                               .finds = !e->o.no_prefix_cache && !dti_kv_pool_carries(e->pool),
                               .reserves = e->o.reserve };

    DT_TRY(reduce(e, DT_MAX, &sees));
    if (sees < e->model->info.max_positions) o.window = sees;
    DT_TRY(dti_schedule_create(&o, e->o.log, e->o.log_arg, &e->schedule));
    return DT_OK;
}

static dt_status make_engine(dt_engine *e)
{
    int64_t n_blocks, n_slots;

    DT_TRY(dti_ragged_check(e->model));
    if (!dt_mesh_is_member(e->model->mesh)) return DT_OK;
    e->replicas = dti_ragged_replicas(e->model);
    DT_TRY(dt_tape_create(dt_mesh_runtime(e->model->mesh), &e->tape));
    DT_TRY(dti_kv_pool_create(e->model, 1, &e->pool));
    DT_TRY(count_pool(e, &n_blocks, &n_slots));
    DT_TRY(dti_kv_pool_resize(e->pool, n_blocks));
    DT_TRY(dti_kv_pool_set_slots(e->pool, n_slots));
    DT_TRY(make_schedule(e, n_blocks, n_slots));
    return DT_OK;
}

dt_status dt_engine_create(dt_model *model, const dt_engine_options *options, dt_engine **out)
{
    dt_status st = DT_OK;
    dt_engine *e;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(model != NULL, DT_ERR_ARG, "model is NULL");
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(model->mesh)), DT_ERR_ARG,
             "a model on a dry mesh has no logits to choose from; dt_model_forward() works");
    DT_TRY(dti_new(sizeof *e, &e));
    e->o = (dt_engine_options)DT_ENGINE_OPTIONS_INIT;
    e->model = model;
    e->replicas = 1;
    model->refs++;
    DT_TRY_TO(fail, st,
              dti_options_read("dt_engine_options", "start from DT_ENGINE_OPTIONS_INIT", options,
                               &e->o, sizeof e->o));
    DT_TRY_TO(fail, st, check_options(&e->o));
    DT_TRY_TO(fail, st, make_engine(e));
    *out = e;
    return DT_OK;

fail:
    dt_engine_release(&e);
    return st;
}

void dt_engine_release(dt_engine **engine)
{
    dt_engine *e = engine != NULL ? *engine : NULL;

    if (e == NULL) return;
    *engine = NULL;
    while (e->requests != NULL) dti_engine_forget(e, e->requests);
    dti_schedule_free(&e->schedule);
    dti_kv_pool_release(&e->pool);
    dt_tape_release(&e->tape);
    dti_choosing_free(&e->choosing);
    dti_free(e->pass.ids);
    dti_free(e->pass.positions);
    dti_free(e->pass.sequence);
    dti_free(e->pass.table);
    dti_free(e->pass.slots);
    dti_free(e->pass.out_rows);
    dti_free(e->choices);
    dti_free(e->events);
    dti_free(e->errors);
    dt_model_release(&e->model);
    dti_free(e);
}

/* --- events ----------------------------------------------------------------------------------- */

static dt_status add_event(dt_engine *e, const dt_engine_event *event)
{
    DT_TRY(
        dti_grow((void **)&e->events, &e->events_room, (size_t)e->n_events + 1, sizeof *e->events));
    e->events[e->n_events++] = *event;
    return DT_OK;
}

static dt_status end_text(dt_engine *e, dti_request *r, int64_t text, int64_t n, dt_end end)
{
    const dt_engine_event event = {
        .kind = DT_ENGINE_END, .request = r->number, .text = text, .n = n, .end = end
    };

    r->n_left--;
    return add_event(e, &event);
}

/* Texts of no token at all. */
static dt_status end_empty(dt_engine *e)
{
    for (dti_request *r = e->requests, *next; r != NULL; r = next) {
        const int64_t n = r->n_left;
        next = r->next;
        if (r->rules.max_length > r->rules.n_prompt) continue;
        for (int64_t i = 0; i < n; i++) DT_TRY(end_text(e, r, i, 0, DT_END_NONE));
        dti_engine_forget(e, r);
    }
    return DT_OK;
}

/* What the thread's record says of the request; once. */
static dt_status fail_request(dt_engine *e, dti_request *r)
{
    if (r->failed) return DT_OK;
    r->failed = true;
    e->errors[e->n_errors] = *dt_last_error();
    return add_event(e, &(dt_engine_event){ .kind = DT_ENGINE_FAILED,
                                            .request = r->number,
                                            .error = &e->errors[e->n_errors++] });
}

/* --- a step ----------------------------------------------------------------------------------- */

/* What was chosen for a text, and whether it ends. An error is the request's alone. */
static dt_status read_pick(const dt_engine *e, const dti_pick *p, int32_t *id, dt_end *end)
{
    dti_text_rules *u = &p->request->rules;

    u->n_new = p->of->n_known - p->of->n_prompt;
    DT_TRY(dti_rules_make_texts(u)); /* others than its replica have none yet */
    DT_TRY(dti_choice_of(&e->model->info, u, p->key, p->of->n_known, p->text, id));
    DT_TRY(dti_ends(u, p->of->ids, p->of->n_known, *id, end));
    return DT_OK;
}

static dt_status settle_pick(dt_engine *e, const dti_pick *p, dti_choice *choice)
{
    dti_request *r = p->request;
    const int64_t n = p->of->n_known - p->of->n_prompt;
    dt_end end = DT_END_NONE;
    int32_t id = 0;

    *choice = (dti_choice){ .ends = 1 };
    if (r->failed) return DT_OK;
    if (read_pick(e, p, &id, &end) != DT_OK) return fail_request(e, r);
    *choice = (dti_choice){ id, end != DT_END_NONE };
    e->n_new++;
    DT_TRY(add_event(e, &(dt_engine_event){ .kind = DT_ENGINE_TOKEN,
                                            .request = r->number,
                                            .text = p->text,
                                            .n = n,
                                            .id = id,
                                            .found = p->of->n_found,
                                            .logprobs = e->choosing.logprobs + p->logprobs,
                                            .n_logprobs = r->rules.o.n_logprobs + 1 }));
    if (end != DT_END_NONE) DT_TRY(end_text(e, r, p->text, n + 1, end));
    return DT_OK;
}

static dt_status forget_over(dt_engine *e)
{
    for (dti_request *r = e->requests, *next; r != NULL; r = next) {
        next = r->next;
        if (r->failed) DT_TRY(dti_schedule_cancel(e->schedule, r->number));
        if (r->failed || r->n_left == 0) dti_engine_forget(e, r);
    }
    return DT_OK;
}

/* Every pick becomes a token, or the end of its request. */
static dt_status settle(dt_engine *e)
{
    const dti_choosing *c = &e->choosing;
    const size_t n = (size_t)c->n_picks + 1;

    DT_TRY(dti_grow((void **)&e->choices, &e->choices_room, n, sizeof *e->choices));
    DT_TRY(dti_grow((void **)&e->errors, &e->errors_room, n, sizeof *e->errors));
    for (int64_t i = 0; i < c->n_picks; i++) DT_TRY(settle_pick(e, &c->picks[i], &e->choices[i]));
    DT_TRY(dti_schedule_feed(e->schedule, e->choices, c->n_picks));
    DT_TRY(forget_over(e));
    return DT_OK;
}

static dt_status step(dt_engine *e)
{
    const dti_pass_cost cost = dti_pass_costs_now(&e->costs);
    int64_t rows, most = 0, began = dti_now_ns(), took;
    dt_tensor *logits;

    DT_TRY(end_empty(e));
    if (e->schedule == NULL) return DT_OK;
    DT_TRY(dti_schedule_step(e->schedule, &cost, &rows));
    if (rows == 0) return DT_OK;
    for (int64_t k = 0; k < e->replicas; k++)
        most = dti_max(most, e->schedule->replicas[k].plan.n_rows);
    DT_TRY(dti_engine_pass(e, &logits));
    DT_TRY(dti_engine_choose(e, logits));
    took = dti_now_ns() - began;
    DT_TRY(reduce(e, DT_MAX, &took));
    dti_pass_costs_add(&e->costs, most, took, e->schedule->counts.wait_for_token > 0);
    DT_TRY(settle(e));
    return DT_OK;
}

dt_status dt_engine_step(dt_engine *engine, const dt_engine_event **events, int64_t *n_events)
{
    DT_CHECK(engine != NULL && events != NULL && n_events != NULL, DT_ERR_ARG,
             "engine, events or n_events is NULL");
    *n_events = 0;
    DT_CHECK(!engine->broken, DT_ERR_ARG, "a pass of this engine has failed: release it");
    engine->n_events = engine->n_errors = 0;
    engine->broken = true;
    DT_TRY(step(engine));
    engine->broken = false;
    *events = engine->events;
    *n_events = engine->n_events;
    return DT_OK;
}

bool dt_engine_is_busy(const dt_engine *engine)
{
    return engine != NULL && engine->requests != NULL;
}

dt_status dt_engine_count(const dt_engine *engine, dt_engine_counts *out)
{
    const dti_pass_cost cost =
        engine != NULL ? dti_pass_costs_now(&engine->costs) : (dti_pass_cost){ 0, 0 };
    dti_schedule_counts c = { 0 };

    DT_CHECK(engine != NULL && out != NULL, DT_ERR_ARG, "engine or out is NULL");
    if (engine->schedule != NULL) c = dti_schedule_count(engine->schedule);
    *out = (dt_engine_counts){ .waiting = c.waiting,
                               .running = c.running,
                               .blocks = c.blocks,
                               .block_tokens = DTI_BLOCK_TOKENS,
                               .used_blocks = c.used,
                               .kept_blocks = c.kept,
                               .passes = c.steps,
                               .rows = c.rows,
                               .read_tokens = c.read,
                               .found_tokens = c.found,
                               .new_tokens = engine->n_new,
                               .preemptions = c.preempted,
                               .pass_s = (double)cost.pass_ns * 1e-9,
                               .row_s = (double)cost.row_ns * 1e-9,
                               .replicas = engine->replicas };
    if (engine->pool == NULL) return DT_OK;
    out->block_bytes = dti_kv_pool_block_bytes(engine->pool);
    out->slot_bytes = dti_kv_pool_slot_bytes(engine->pool);
    if (engine->schedule != NULL && dti_kv_pool_carries(engine->pool))
        out->slots = engine->replicas * engine->schedule->o.max_running;
    return DT_OK;
}

dt_status dt_engine_replay(const int64_t *words, int64_t n)
{
    DT_CHECK(words != NULL && n > 0, DT_ERR_ARG, "a log of %lld words", (long long)n);
    DT_TRY(dti_schedule_replay(words, n));
    return DT_OK;
}
