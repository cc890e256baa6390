/* SPDX-License-Identifier: Apache-2.0
 *
 * Ways as they are: steps of a model with random weights, run here. */
#include <dtensor/calibrate.h>
#include <dtensor/collectives.h>
#include <math.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "base/sync.h"
#include "dtensor/device/device.h"
#include "planner/measure.h"
#include "planner/search.h"

enum { WARM_STEPS = 2, MOST_STEPS = 64 };

/* What is run, and what a rank has for it. */
typedef struct job {
    const dti_task *task;
    const dt_way *way;
    int steps;
    double *times;   /* [steps] written by rank 0 */
    dti_tried *seen; /* [ranks], each by its own; or NULL */
} job;

typedef struct trainer {
    const job *j;
    int32_t *ids;
    dt_mesh *mesh;
    dt_model *model;
    dt_optimizer *optimizer;
    dt_tape *tape;
    dt_pipeline_schedule *schedule;
    dt_pipeline *pipeline;
    dt_loss_options loss;
    int64_t rows;   /* of a microbatch, of all copies */
    dti_tried seen; /* of the last step */
} trainer;

static dt_tensor *ids_of(const trainer *r, dt_tape *t)
{
    return dt_model_ids(t, r->model, r->ids, r->rows, r->j->task->o.sequence);
}

static dt_tensor *run_stage(void *arg, dt_tape *t, int stage, int microbatch, dt_tensor *x)
{
    const trainer *r = arg;

    (void)microbatch;
    return dt_model_stage(t, r->model, stage, x, ids_of(r, t), ids_of(r, t), &r->loss);
}

static dt_status open_pipeline(trainer *r)
{
    dt_pipeline_options o = DT_PIPELINE_OPTIONS_INIT;
    const dt_way *w = r->j->way;

    if (w->pp == 1) return DT_OK;
    o.forward = run_stage;
    o.arg = r;
    DT_TRY(dt_pipeline_schedule_create(w->schedule, w->pp,
                                       w->stages_per_rank > 1 ? w->stages_per_rank : 0,
                                       (int)w->microbatches, &r->schedule));
    DT_TRY(dt_pipeline_create(r->mesh, "pp", r->schedule, r->optimizer, &o, &r->pipeline));
    return DT_OK;
}

static dt_status open_trainer(dt_runtime *rt, trainer *r)
{
    const dti_task *t = r->j->task;
    const dt_way *w = r->j->way;
    dt_load_options load;
    dt_optimizer_options optimizer;
    char mesh[DTI_MESH_BYTES];
    int64_t n;

    dti_way_options(t, w, &load, &optimizer, &r->loss);
    r->rows = t->o.batch / w->microbatches;
    r->loss.n_valid = (double)t->o.batch * (double)t->o.sequence;
    n = r->rows * t->o.sequence;
    DT_TRY(dti_alloc_array((size_t)n, sizeof *r->ids, (void **)&r->ids));
    for (int64_t i = 0; i < n; i++) r->ids[i] = (int32_t)(i * 7919 % t->info.vocab_size);
    DT_TRY(dt_mesh_create(rt, dti_way_mesh(w, mesh), &r->mesh));
    DT_TRY(dt_model_create_random(r->mesh, t->dir, &load, 1, &r->model));
    DT_TRY(dt_tape_create(rt, &r->tape));
    DT_TRY(dt_optimizer_create(dt_model_layers(r->model), &optimizer, &r->optimizer));
    DT_TRY(open_pipeline(r));
    return DT_OK;
}

static void close_trainer(trainer *r)
{
    dt_pipeline_release(&r->pipeline);
    dt_pipeline_schedule_release(&r->schedule);
    dt_tape_release(&r->tape);
    dt_optimizer_release(&r->optimizer);
    dt_model_release(&r->model);
    dt_mesh_release(&r->mesh);
    dti_free(r->ids);
}

static void count_tape(trainer *r, const dt_tape *t)
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        r->seen.bytes += dt_tape_comm(t, (dt_comm_kind)k).bytes;
    r->seen.flops += dt_tape_work(t).flops;
}

static void count_part(trainer *r, const dt_training_part *p)
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++) r->seen.bytes += p->comm[k].bytes;
    r->seen.flops += p->work.flops;
}

static dt_status step(trainer *r)
{
    const int64_t m = r->j->way->microbatches;
    dt_pipeline_result result;

    r->seen = (dti_tried){ 0 };
    if (r->pipeline != NULL) {
        DT_TRY(dt_pipeline_run(r->pipeline, &result));
        count_part(r, &result.forward);
        count_part(r, &result.backward);
    }
    for (int64_t i = 0; i < m && r->pipeline == NULL; i++) {
        dt_tape_reset(r->tape);
        dt_tape_record(r->tape, dt_optimizer_gradients(r->optimizer));
        dt_optimizer_backward(
            r->optimizer, r->tape,
            dt_model_loss(r->tape, r->model, ids_of(r, r->tape), ids_of(r, r->tape), &r->loss),
            i + 1 == m, NULL);
        DT_TRY(dt_tape_status(r->tape));
        count_tape(r, r->tape);
    }
    dt_tape_reset(r->tape);
    DT_TRY(dt_optimizer_step(r->optimizer, 1e-4, NULL));
    count_tape(r, dt_optimizer_tape(r->optimizer));
    return DT_OK;
}

/* Each from the first rank's begin to the last one's end. */
static dt_status on_rank(dt_runtime *rt, void *arg)
{
    const job *j = arg;
    trainer r = { .j = j };
    dt_status st = DT_OK;
    dti_device *device;

    DT_TRY_TO(done, st, open_trainer(rt, &r));
    for (int i = -WARM_STEPS; i < j->steps; i++) {
        DT_TRY_TO(done, st, dt_barrier(r.mesh, NULL));
        const int64_t from = dti_now_ns();
        DT_TRY_TO(done, st, step(&r));
        DT_TRY_TO(done, st, dt_barrier(r.mesh, NULL));
        if (i >= 0 && dt_runtime_rank(rt) == 0) j->times[i] = (double)(dti_now_ns() - from) * 1e-9;
    }
    DT_TRY_TO(done, st, dti_device_of(rt, &device));
    r.seen.peak_bytes = (int64_t)dti_memory_peak(device->memory);
    if (j->seen != NULL) j->seen[dt_runtime_rank(rt)] = r.seen;
done:
    close_trainer(&r);
    return st;
}

dt_status dti_way_try(const dti_task *t, const dt_way *w, const dt_run_options *options, int steps,
                      double *times, dti_tried *seen)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    job j = { t, w, steps, times, seen };

    if (options != NULL) run = *options;
    run.n_ranks = w->pp * dti_way_place(w);
    run.threads_per_rank = t->machine.threads;
    run.ranks_together = w->tp;
    DT_TRY(dt_run(&run, on_rank, &j));
    return DT_OK;
}

/* --- public ----------------------------------------------------------------------------------- */

static int by_measured(const void *a, const void *b)
{
    const double x = ((const dt_verdict *)a)->cost.measured;
    const double y = ((const dt_verdict *)b)->cost.measured;

    return (x > y) - (x < y);
}

dt_status dt_search_measure(dt_search *s, const dt_run_options *run, int ways, int steps)
{
    double times[MOST_STEPS];
    int n;

    DT_CHECK(s != NULL && ways >= 1 && steps >= 1 && steps <= MOST_STEPS, DT_ERR_ARG,
             "the search is NULL, or %d ways of %d steps: 1 or more, and at most %d steps", ways,
             steps, (int)MOST_STEPS);
    DT_CHECK(!s->task.machine.gpus && s->task.o.goal == DT_PLAN_STEP, DT_ERR_ARG,
             "machine %s, %s: steps of training are measured, on cores", s->task.machine.name,
             s->task.o.goal == DT_PLAN_STEP ? "whose devices are GPUs" : "a plan of generation");
    n = (int)dti_min(ways, s->n_ranked);
    for (int i = 0; i < n; i++) {
        dt_verdict *v = &s->verdicts[i];
        DT_TRY(dti_way_try(&s->task, &v->way, run, steps, times, NULL));
        v->cost.measured = dti_quick_of(times, steps);
    }
    if (n == 0) return DT_OK;
    qsort(s->verdicts, (size_t)n, sizeof *s->verdicts, by_measured);
    DT_TRY(dti_find_groups(&s->task, &s->verdicts[0].way, s->group)); /* another may lead */
    DT_TRY(dti_find_other_form(s));
    return DT_OK;
}
