/* SPDX-License-Identifier: Apache-2.0
 *
 * What a way costs: dry runs of one rank of each kind count it, and a simulated step over the
 * machine's figures says how long it takes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "planner/search.h"
#include "planner/shared_cores.h"

/* Of a microbatch, that stay to the end of a step. */
enum { LOSS_BYTES = 16 };

/* A rank of a pipeline, or the only kind there is. */
typedef struct kind_of_rank {
    int place;
    dt_training_cost cost;
} kind_of_rank;

/* --- counting --------------------------------------------------------------------------------- */

/* Kernels that were not measured are remembered by name. */
static double price(void *arg, const char *kernel, dt_dtype dtype, const dt_op_work *work)
{
    dti_task *t = arg;
    const size_t n = strlen(t->guessed);

    if (work->flops + work->bytes > 0 && !dti_kernel_is_known(&t->machine, kernel, dtype) &&
        !dti_has_word(t->guessed, kernel, strlen(kernel)))
        (void)snprintf(t->guessed + n, sizeof t->guessed - n, "%s%s", n > 0 ? " " : "", kernel);
    return dti_kernel_seconds(&t->machine, kernel, dtype, work);
}

void dti_way_options(const dti_task *t, const dt_way *w, dt_load_options *load,
                     dt_optimizer_options *optimizer, dt_loss_options *loss)
{
    *load = t->load;
    *optimizer = t->optimizer;
    *loss = (dt_loss_options)DT_LOSS_OPTIONS_INIT;
    load->sequence_parallel = w->sequence_parallel;
    if (w->zero == 3) load->fully_shard = "dp";
    if (w->zero == 3 && w->offload) load->offload = "host";
    if (w->pp > 1) load->n_stages = w->pp * w->stages_per_rank;
    if (w->stages != NULL) load->stages = w->stages;
    load->plan = dti_way_plan(t, w);
    optimizer->zero = (int)dti_min(w->zero, 2);
    optimizer->offload = w->offload ? "host" : NULL;
    optimizer->bucket_bytes = w->dp > 1 ? DTI_BUCKET_BYTES : 0;
    loss->recompute = w->recompute;
    loss->chunk = w->chunk;
}

/* A dry run of so many microbatches. */
static dt_status run(const dti_task *t, const dt_way *w, int place, int64_t microbatches,
                     dt_training_cost *out)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_step_options step = DT_STEP_OPTIONS_INIT;
    dt_loss_options loss;
    dt_load_options load;
    dt_optimizer_options optimizer;
    char mesh[DTI_MESH_BYTES];
    dt_status st;

    dti_way_options(t, w, &load, &optimizer, &loss);
    o.mesh = dti_way_mesh(w, mesh);
    o.batch = dti_way_rows(t, w) * w->dp * microbatches;
    o.sequence = t->o.sequence;
    o.load = &load;
    o.device = t->machine.gpus ? "cuda" : NULL;
    step.loss = &loss;
    step.optimizer = &optimizer;
    step.microbatches = microbatches;
    if (t->machine.n_rates > 0) step.seconds = price;
    step.seconds_arg = (void *)(uintptr_t)t;
    if (w->pp > 1)
        DT_TRY(dt_pipeline_schedule_create(w->schedule, w->pp,
                                           w->stages_per_rank > 1 ? w->stages_per_rank : 0,
                                           (int)microbatches, &step.schedule));
    st = dt_predict_training(t->rt, t->dir, &o, &step, place * dti_way_place(w), out);
    dt_pipeline_schedule_release(&step.schedule);
    DT_TRY(st);
    return DT_OK;
}

/* a + n (b - a): microbatches are all alike, so what is counted grows by as much with each. */
static void more(const dt_training_part *a, const dt_training_part *b, int64_t n,
                 dt_training_part *out)
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        out->comm[k].calls += n * (b->comm[k].calls - a->comm[k].calls);
        out->comm[k].bytes += n * (b->comm[k].bytes - a->comm[k].bytes);
    }
    out->work.flops += (double)n * (b->work.flops - a->work.flops);
    out->work.bytes += (double)n * (b->work.bytes - a->work.bytes);
    out->seconds += (double)n * (b->seconds - a->seconds);
}

/* From some number on, more microbatches need no more memory but for their losses: a rank of a
 * pipeline of p holds at most so many as p begin, interleaved 2 p, and four passes have made all
 * blocks of memory that others find again. So many and a turn more are run, the rest is the
 * difference. */
static dt_status count(const dti_task *t, const dt_way *w, int place, dt_training_cost *out)
{
    const bool groups = w->stages_per_rank > 1;
    const int64_t step = groups ? w->pp : 1, rest = groups ? w->microbatches % step : 0;
    int64_t few = groups ? 2 * step : w->pp + 3, turns = (w->microbatches - few) / step;
    dt_training_cost a;

    if (turns <= 1 || rest != 0) return run(t, w, place, w->microbatches, out);
    DT_TRY(run(t, w, place, few, &a));
    *out = a;
    if ((double)a.peak_bytes > t->machine.figure[DT_FIGURE_DEVICE_BYTES].value) return DT_OK;
    DT_TRY(run(t, w, place, few + step, out));
    for (; turns > 1 && out->peak_bytes - a.peak_bytes > LOSS_BYTES * step; turns--) {
        a = *out; /* not full yet */
        few += step;
        DT_TRY(run(t, w, place, few + step, out));
    }
    if (a.n_traffic != out->n_traffic) return run(t, w, place, w->microbatches, out);
    for (int i = 0; i < a.n_traffic; i++) {
        dt_comm_counter *c = &out->traffic[i].count;
        c->calls += (turns - 1) * (c->calls - a.traffic[i].count.calls);
        c->bytes += (turns - 1) * (c->bytes - a.traffic[i].count.bytes);
        out->traffic[i].most_bytes +=
            (turns - 1) * (out->traffic[i].most_bytes - a.traffic[i].most_bytes);
    }
    const dt_training_part forward = out->forward, backward = out->backward;
    more(&a.forward, &forward, turns - 1, &out->forward);
    more(&a.backward, &backward, turns - 1, &out->backward);
    out->peak_bytes += (turns - 1) * (out->peak_bytes - a.peak_bytes);
    return DT_OK;
}

/* --- time ------------------------------------------------------------------------------------- */

/* What a rank takes for its step, in seconds. */
typedef struct rank_time {
    double forward, backward; /* of a microbatch through all of its stages: computed */
    double weights;           /* of the way back, for gradients of weights */
    double tensor;            /* of a microbatch, communication over tp and ep */
    double message;           /* bytes of one, from a stage to the next */
    double received, shared;  /* of all of them; of weights that the first and last stage share */
    double overlapped;        /* communication over dp, of the whole step, that passes can hide */
    double reduced;           /* of it, of gradients */
    double late, update;      /* what comes after all passes: communication, computation */
} rank_time;

/* By what was measured; else kernels are bound by operations or by bytes of memory. */
static double compute_seconds(const dti_task *t, const dt_training_part *p)
{
    if (t->machine.n_rates > 0) return p->seconds;
    return fmax(p->work.flops / t->rate,
                (double)p->work.bytes / t->machine.figure[DT_FIGURE_MEMORY_BANDWIDTH].value);
}

uint32_t dti_way_dims(const dt_way *w, uint32_t dims)
{
    const bool has[DTI_N_DIMS] = { w->pp > 1, true, w->ep > 1, w->tp > 1 };
    uint32_t out = 0;

    for (int d = 0, at = 0; d < DTI_N_DIMS; d++)
        if (has[d]) out |= dti_has(dims, at++) ? 1u << d : 0;
    return out;
}

/* Messages of all passes; and of shared weights, whose gradients go from the first stage to the
 * last and back when all passes are over. */
static void add_messages(const dti_task *t, const dt_way *w, const dt_training_cost *c,
                         rank_time *r)
{
    const dt_comm_counter *there = &c->forward.comm[DT_COMM_SEND];
    const dt_comm_counter *back = &c->backward.comm[DT_COMM_SEND];
    const dt_comm_counter *shared = &c->update.comm[DT_COMM_SEND];
    const int64_t n = there->calls + back->calls;

    if (n > 0) r->message = (double)(there->bytes + back->bytes) / (double)n;
    r->received = (double)(there->bytes + back->bytes);
    r->shared = (double)shared->bytes;
    if (shared->calls > 0)
        r->late += (double)shared->calls *
                   dti_message_seconds(&t->machine, w, 0, w->pp - 1,
                                       (double)shared->bytes / (double)shared->calls);
}

static void add_traffic(const dti_task *t, const dt_way *w, const dt_training_cost *c, rank_time *r,
                        dt_way_cost *out)
{
    double late = 0;
    bool between;

    for (int i = 0; i < c->n_traffic; i++) {
        const dt_dims_traffic *f = &c->traffic[i];
        const uint32_t dims = dti_way_dims(w, f->dims);
        double s;
        if (f->kind == DT_COMM_SEND) continue;
        s = dti_comm_seconds(&t->machine, w, dims, f->kind, &f->count, &between);
        *(between ? &out->between_bytes : &out->inside_bytes) += f->count.bytes;
        dti_count_experts(t, w, dims, &f->count, f->most_bytes, s, out);
        *((dims & ~(uint32_t)(DTI_OVER_TP | DTI_OVER_EP)) == 0 ? &r->tensor : &r->overlapped) += s;
        if (dims == DTI_OVER_DP && f->kind != DT_COMM_ALL_GATHER) r->reduced += s;
    }
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        if (k != DT_COMM_SEND)
            late += dti_comm_seconds(&t->machine, w, DTI_OVER_DP, (dt_comm_kind)k,
                                     &c->update.comm[k], &between);
    r->late = fmin(late, r->overlapped);
    r->overlapped -= r->late;
    add_messages(t, w, c, r);
}

/* Gradients that nothing hides: the last bucket is full, or given up filling, when the last way
 * back ends. Those that are cut travel in each pass, others in the last. */
static double last_bucket(const dti_task *t, const dt_way *w, const dt_training_cost *c,
                          const rank_time *r)
{
    const double elements = (double)c->weight_bytes / (double)dt_dtype_size(t->dtype);
    const double bytes = elements * sizeof(float) * (w->zero == 3 ? w->dp : 1);
    const double pass = w->zero > 1 ? r->reduced / (double)w->microbatches : r->reduced;

    return fmin(pass, r->overlapped) * fmin(1, DTI_BUCKET_BYTES / fmax(bytes, 1));
}

static rank_time time_of(const dti_task *t, const dt_way *w, const dt_training_cost *c,
                         dt_way_cost *out)
{
    const double m = (double)w->microbatches, size = (double)dt_dtype_size(t->dtype);
    const double host = t->machine.figure[DT_FIGURE_HOST_BANDWIDTH].value;
    rank_time r = { .forward = compute_seconds(t, &c->forward) / m,
                    .backward = compute_seconds(t, &c->backward) / m };
    double last;

    /* products alone have such, one for each on the way there */
    r.weights = r.backward * fmin(0.5, c->forward.work.flops / fmax(c->backward.work.flops, 1));

    add_traffic(t, w, c, &r, out);
    last = last_bucket(t, w, c, &r);
    r.late += last;
    r.overlapped -= last;
    r.tensor /= m;
    r.update = compute_seconds(t, &c->update);
    if (w->offload && host > 0) { /* state comes and goes; so do, for each pass, parameters */
        r.late += 2 * (double)c->state_bytes / host;
        if (w->zero == 3)
            r.overlapped += 2 * m * (double)c->gradient_bytes / sizeof(float) * size / host;
    }
    if (w->tiles > 1) { /* none of them is gathered ahead */
        r.late += fmax(r.overlapped - r.reduced, 0);
        r.overlapped = fmin(r.overlapped, r.reduced);
    }
    return r;
}

/* The whole step of a pipeline: each rank's stages in equal parts. `line`: NULL, or its time line,
 * with a core for each rank. */
static dt_status simulate(const dti_task *t, const dt_way *w, const rank_time *times,
                          const int *kind_at, double *makespan, dt_pipeline_timing **line)
{
    const int v = w->stages_per_rank, n = w->pp * v;
    dt_pipeline_costs costs = DT_PIPELINE_COSTS_INIT;
    const double crowd = dti_machine_crowd(&t->machine);
    dt_pipeline_schedule *s = NULL;
    dt_pipeline_timing *timing = NULL;
    dt_status st = DT_OK;
    double *f, *i, *weights, *f_wait, *b_wait, *messages, bytes = 0;

    DT_TRY(dti_alloc_array(6 * (size_t)n, sizeof *f, (void **)&f));
    i = f + n;
    weights = i + n;
    f_wait = weights + n;
    b_wait = f_wait + n;
    messages = b_wait + n;
    DT_TRY_TO(
        done, st,
        dt_pipeline_schedule_create(w->schedule, w->pp, v > 1 ? v : 0, (int)w->microbatches, &s));
    for (int k = 0; k < n; k++) {
        const rank_time *r = &times[kind_at[k % w->pp]];
        const double share = r->forward / fmax(r->forward + r->backward, 1e-300);
        f[k] = r->forward / v;
        i[k] = (r->backward - r->weights) / v;
        weights[k] = r->weights / v;
        f_wait[k] = share * r->tensor / v;
        b_wait[k] = (1 - share) * r->tensor / v;
        bytes = fmax(bytes, r->message);
    }
    for (int k = 1; k < n; k++)
        messages[k] = dti_message_seconds(&t->machine, w, (k - 1) % w->pp, k % w->pp, bytes);
    if (crowd > 1 && line == NULL) {
        const dti_shared_work shared = { f,
                                         i,
                                         weights,
                                         f_wait,
                                         b_wait,
                                         messages,
                                         t->machine.devices_per_node / crowd / dti_way_place(w) };
        DT_TRY_TO(done, st, dti_shared_makespan(s, &shared, makespan));
        goto done;
    }
    for (int k = 0; k < n; k++) { /* what I makes travels, W waits for nobody */
        f[k] += f_wait[k];
        i[k] += b_wait[k];
    }
    costs.n = n;
    costs.f = f;
    costs.i = i;
    costs.w = weights;
    costs.messages = messages;
    DT_TRY_TO(done, st, dt_pipeline_simulate(s, &costs, &timing));
    *makespan = dt_pipeline_timing_total(timing).makespan;
    if (line != NULL) {
        *line = timing;
        timing = NULL;
    }
done:
    dt_pipeline_timing_release(&timing);
    dt_pipeline_schedule_release(&s);
    dti_free(f);
    return st;
}

/* --- all of it -------------------------------------------------------------------------------- */

/* The first of a kind holds the most microbatches at a time. */
dt_status dti_find_kinds(dti_task *t, const dt_way *w, int *place, int *kind_at, int *n)
{
    const dti_split *s;
    int blocks[DTI_MAX_STAGES] = { 0 };

    *n = 1;
    place[0] = kind_at[0] = 0;
    if (w->pp == 1) return DT_OK;
    DT_TRY(dti_split_of(t, w, &s));
    for (int i = 0; i < s->n; i++) blocks[i % s->pp] += s->blocks[i];
    for (int r = 1; r < w->pp; r++) {
        int k = 1;
        while (k < *n && (r == w->pp - 1 || blocks[place[k]] != blocks[r])) k++;
        kind_at[r] = k;
        if (k == *n) place[(*n)++] = r;
    }
    return DT_OK;
}

static void hold(const dt_training_cost *c, dt_way_cost *out)
{
    out->flops =
        fmax(out->flops, c->forward.work.flops + c->backward.work.flops + c->update.work.flops);
    if (c->peak_bytes <= out->peak_bytes) return;
    out->weight_bytes = c->weight_bytes;
    out->gradient_bytes = c->gradient_bytes;
    out->state_bytes = c->state_bytes;
    out->kept_bytes = c->kept_bytes;
    out->peak_bytes = c->peak_bytes;
}

/* What ranks of kind `k` receive, which lie at different places between others. */
static void receive(const dti_task *t, const dt_way *w, const rank_time *r, const int *kind_at,
                    int k, const dt_way_cost *mine, dt_way_cost *out)
{
    for (int place = 0; place < w->pp; place++) {
        int64_t between;
        if (kind_at[place] != k) continue;
        between = (int64_t)(r->received * dti_messages_between(&t->machine, w, place) + 0.5);
        if (dti_message_leaves(&t->machine, w, place, w->pp - 1 - place))
            between += (int64_t)r->shared;
        out->between_bytes = dti_max(out->between_bytes, mine->between_bytes + between);
        out->inside_bytes = dti_max(
            out->inside_bytes, mine->inside_bytes + (int64_t)(r->received + r->shared) - between);
    }
    out->more_bytes = dti_max(out->more_bytes, mine->more_bytes);
    if (mine->experts[0].seconds > out->experts[0].seconds) out->experts[0] = mine->experts[0];
}

/* What computing takes all ranks of a pipeline that share cores, at the least. */
static double shared_seconds(const dti_task *t, const dt_way *w, const rank_time *times,
                             const int *kind_at)
{
    double sum = 0;

    for (int r = 0; r < w->pp; r++) sum += times[kind_at[r]].forward + times[kind_at[r]].backward;
    return sum * (double)w->microbatches * dti_machine_crowd(&t->machine) / w->pp;
}

/* One rank after the other: passes, what they cannot hide of dp, the update. Ranks that share a
 * core compute one after the other. */
static dt_status add_up(const dti_task *t, const dt_way *w, const rank_time *times,
                        const int *kind_at, int n, dt_way_cost *out)
{
    const double m = (double)w->microbatches, crowd = dti_machine_crowd(&t->machine);
    /* above 1 those who communicate wait for a turn on a core whose rank computes; where ranks
     * share cores, another one has work for the core of a rank that waits */
    const double measured = t->machine.figure[DT_FIGURE_OVERLAP_COST].value;
    const double cost = crowd > 1 ? fmin(measured, 1) : measured;
    double late = 0, update = 0, busy = 0, shown = 0, makespan;

    for (int k = 0; k < n; k++) {
        const rank_time *r = &times[k];
        const double compute = m * (r->forward + r->backward) * (w->pp > 1 ? 1 : crowd);
        const double room = w->zero > 1 || w->pp > 1 ? compute : crowd * r->backward;
        const double hidden = fmin(r->overlapped, room);
        late = fmax(late, r->late + r->overlapped - (1 - cost) * hidden);
        update = fmax(update, crowd * r->update);
        out->hidden = fmax(out->hidden, fmax(1 - cost, 0) * hidden);
        if (compute + m * r->tensor <= busy + shown) continue;
        busy = compute;
        shown = m * r->tensor;
    }
    makespan = busy + shown;
    if (w->pp > 1) DT_TRY(simulate(t, w, times, kind_at, &makespan, NULL));
    if (w->pp > 1 && crowd > 1) busy = fmax(busy, shared_seconds(t, w, times, kind_at));
    out->compute = busy + update;
    out->exposed = shown + late;
    out->bubble = w->pp > 1 ? fmax(makespan - busy - shown, 0) : 0;
    out->seconds = makespan + late + update;
    return DT_OK;
}

dt_status dti_way_count(dti_task *t, const dt_way *w, dt_way_cost *out)
{
    const double device = t->machine.figure[DT_FIGURE_DEVICE_BYTES].value;
    int place[DTI_MAX_STAGES], kind_at[DTI_MAX_STAGES], n;
    rank_time *times;
    dt_status st = DT_OK;

    *out = (dt_way_cost){ 0 };
    if (t->o.goal != DT_PLAN_STEP) return dti_serve_count(t, w, out);
    DT_CHECK(w->pp <= DTI_MAX_STAGES, DT_ERR_UNSUPPORTED, "a pipeline of %d ranks: at most %d",
             w->pp, (int)DTI_MAX_STAGES);
    DT_TRY(dti_find_kinds(t, w, place, kind_at, &n));
    DT_TRY(dti_alloc_array((size_t)n, sizeof *times, (void **)&times));
    for (int k = 0; k < n; k++) {
        dt_training_cost c;
        dt_way_cost mine = { 0 };
        DT_TRY_TO(done, st, count(t, w, place[k], &c));
        times[k] = time_of(t, w, &c, &mine);
        hold(&c, out);
        receive(t, w, &times[k], kind_at, k, &mine, out);
        if ((double)out->peak_bytes > device) { /* whatever the others do */
            out->seconds = INFINITY;
            goto done;
        }
    }
    st = add_up(t, w, times, kind_at, n, out);
done:
    dti_free(times);
    return st;
}

/* --- for pictures ----------------------------------------------------------------------------- */

/* What is held at the most, in the order in which it comes to be; what is not there then is left
 * out. */
static void show_parts(const dt_training_cost *c, int64_t part[DTI_PARTS])
{
    const int64_t parts[] = { c->weight_bytes, c->gradient_bytes, c->state_bytes, c->kept_bytes,
                              c->peak_bytes };
    int64_t left = c->peak_bytes;

    for (int k = 0; k < DTI_PARTS; k++) {
        part[k] = dti_min(parts[k], left);
        left -= part[k];
    }
}

dt_status dti_way_look(dti_task *t, const dt_way *w, dti_look *out)
{
    int place[DTI_MAX_STAGES], kind_at[DTI_MAX_STAGES], n;
    dt_training_cost *costs = NULL;
    rank_time *times = NULL;
    dt_way_cost unused = { 0 };
    dt_status st = DT_OK;
    double makespan;

    DT_TRY(dti_find_kinds(t, w, place, kind_at, &n));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)n, sizeof *costs, (void **)&costs));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)n, sizeof *times, (void **)&times));
    for (int k = 0; k < n; k++) {
        DT_TRY_TO(done, st, count(t, w, place[k], &costs[k]));
        times[k] = time_of(t, w, &costs[k], &unused);
    }
    for (int r = 0; r < out->n; r++) {
        show_parts(&costs[kind_at[r]], out->part[r]);
        out->peak[r] = costs[kind_at[r]].peak_bytes;
    }
    if (w->pp > 1) st = simulate(t, w, times, kind_at, &makespan, &out->timing);
done:
    dti_free(costs);
    dti_free(times);
    return st;
}
