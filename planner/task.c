/* SPDX-License-Identifier: Apache-2.0
 *
 * What a search knows of its model before it looks at ways: sizes, stages, and passes of one
 * sequence. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "base/options.h"
#include "mesh/runtime.h"
#include "models/describe/describe.h"
#include "models/load/stages.h"
#include "parallel_styles/kind.h"
#include "planner/search.h"

enum { DEFAULT_SEQUENCE = 2048 };

/* --- the model -------------------------------------------------------------------------------- */

static double params_of(const dt_layer_spec *spec)
{
    double all = 0;

    if (spec->tied_to != NULL) return 0;
    for (int p = 0; p < dt_spec_n_params(spec); p++) {
        const dt_param_info info = dt_spec_param(spec, p);
        double n = info.n_axes > 0;
        for (int a = 0; a < info.n_axes; a++) n *= (double)info.axis[a].extent;
        all += n;
    }
    return all;
}

static void measure_layers(dti_task *t, const dti_described *d)
{
    const char *blocks = d->arch->blocks != NULL ? d->arch->blocks : "";
    const size_t before = strcspn(blocks, "*");

    for (int i = 0; i < d->builder.n; i++) {
        const dt_layer_spec *spec = &d->builder.specs[i];
        const double n = params_of(spec);
        if (n > t->largest) t->largest = n;
        t->all_params += n;
        if (before > 0 && strncmp(spec->name, blocks, before) == 0) {
            t->block_params += n / (double)d->info.n_layers;
            if (dti_kind_is(spec->kind, "experts")) {
                t->expert_params += n / (double)d->info.n_layers;
                t->n_experts = dti_max(t->n_experts, spec->axis[2].extent);
            }
            if (spec->axis[0].extent > t->ff) t->ff = spec->axis[0].extent;
        } else if (!dti_kind_has_ids(spec->kind)) {
            t->head_flops += dti_spec_flops(spec);
        }
    }
}

static dt_status describe(dti_task *t)
{
    dti_described d;
    dt_status st;

    DT_TRY(dti_describe(t->rt, t->dir, &d));
    t->info = d.info;
    t->dtype = !t->load.keep_dtype ? t->load.dtype : d.dtype_known ? d.info.dtype : DT_F32;
    measure_layers(t, &d);
    st = dti_way_plans_open(t, &d);
    dti_described_free(&d);
    DT_TRY(st);
    return DT_OK;
}

/* Degrees that were named can be those of a way; a step takes every device. */
static dt_status check_degrees(const dti_task *t)
{
    const dt_planner_options *o = &t->o;
    const int64_t ranks = dti_machine_ranks(&t->machine);
    const int64_t ep = dti_max(o->ep, 1);
    const bool all = o->pp > 0 && o->dp > 0 && o->tp > 0;
    const dt_way pinned = { .pp = o->pp, .dp = o->dp, .ep = o->ep, .tp = o->tp };
    const int64_t asked = dti_way_ranks(&pinned, ranks);

    DT_CHECK(o->pp >= 0 && o->dp >= 0 && o->ep >= 0 && o->tp >= 0, DT_ERR_ARG,
             "degrees must be 0 or more");
    DT_CHECK(ep == 1 || (t->n_experts > 0 && t->n_experts % ep == 0 && !t->has_plan), DT_ERR_ARG,
             "ep=%d cuts experts, and %s", o->ep,
             t->has_plan        ? "there is a plan of styles, which says where these lie"
             : t->n_experts > 0 ? "it does not divide those of the model"
                                : "the model has none");
    if (o->goal == DT_PLAN_STEP)
        DT_CHECK(all ? asked == ranks : ranks % asked == 0, DT_ERR_ARG,
                 "pp=%d,dp=%d,tp=%d%s: the machine has %lld devices, and a step takes all", o->pp,
                 o->dp, o->tp, ep > 1 ? " and ep" : "", (long long)ranks);
    else
        DT_CHECK(asked <= ranks, DT_ERR_ARG, "pp=%d,dp=%d,tp=%d: the machine has %lld devices",
                 o->pp, o->dp, o->tp, (long long)ranks);
    return DT_OK;
}

static dt_status check(dti_task *t)
{
    static const dt_figure_kind rates[] = { [DT_F32] = DT_FIGURE_FLOPS_F32,
                                            [DT_BF16] = DT_FIGURE_FLOPS_BF16,
                                            [DT_F16] = DT_FIGURE_FLOPS_F16 };
    const dt_machine *m = &t->machine;
    const int64_t ranks = dti_machine_ranks(m), context = t->info.max_positions;

    if (t->o.sequence == 0) t->o.sequence = dti_min(context, DEFAULT_SEQUENCE);
    if (t->o.batch == 0) t->o.batch = t->o.goal == DT_PLAN_STEP ? ranks : 1;
    DT_CHECK(t->o.sequence >= 1 && t->o.sequence <= context, DT_ERR_ARG,
             "sequence %lld exceeds the model's context of %lld (%s/config.json)",
             (long long)t->o.sequence, (long long)context, t->dir);
    DT_CHECK(t->o.batch >= 1 && t->o.batch <= INT32_MAX / t->o.sequence, DT_ERR_ARG,
             "a step of %lld sequences of %lld tokens: from 1 to %lld are possible",
             (long long)t->o.batch, (long long)t->o.sequence,
             (long long)(INT32_MAX / t->o.sequence));
    DT_CHECK((unsigned)t->o.goal <= DT_PLAN_PROMPT, DT_ERR_ARG, "goal %d: there are 0 to %d",
             (int)t->o.goal, (int)DT_PLAN_PROMPT);
    DT_CHECK(t->o.top >= 1 && t->o.most_counted >= 1, DT_ERR_ARG,
             "top %d, most_counted %d: must be 1 or more", t->o.top, t->o.most_counted);
    DT_CHECK(t->o.seconds >= 0 && isfinite(t->o.seconds), DT_ERR_ARG,
             "%g seconds to look for: a number from 0 on", t->o.seconds);
    DT_TRY(check_degrees(t));
    t->rate = m->figure[rates[t->dtype]].value * m->figure[DT_FIGURE_EFFICIENCY].value;
    DT_CHECK(t->rate > 0, DT_ERR_ARG, "machine %s: %s is not known, and the model is in %s",
             m->name, dt_figure_name(rates[t->dtype]), dt_dtype_name(t->dtype));
    return DT_OK;
}

dt_status dti_task_open(dt_runtime *rt, const char *dir, const dt_machine *machine,
                        const dt_planner_options *options, dti_task *t)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_optimizer_options optimizer = DT_OPTIMIZER_OPTIONS_INIT;

    *t = (dti_task){ .rt = rt, .dir = dir, .o = DT_PLANNER_OPTIONS_INIT };
    DT_CHECK(dir != NULL && machine != NULL && machine->nodes > 0, DT_ERR_ARG,
             "dir or machine is NULL, or the machine has nothing");
    t->machine = *machine;
    DT_TRY(dti_options_read("dt_planner_options", "start from DT_PLANNER_OPTIONS_INIT", options,
                            &t->o, sizeof t->o));
    DT_TRY(dti_options_read("dt_load_options", "start from DT_LOAD_OPTIONS_INIT", t->o.load, &load,
                            sizeof load));
    DT_TRY(dti_options_read("dt_optimizer_options", "start from DT_OPTIMIZER_OPTIONS_INIT",
                            t->o.optimizer, &optimizer, sizeof optimizer));
    t->load = load;
    t->optimizer = optimizer;
    DT_TRY(describe(t));
    DT_TRY(check(t));
    return DT_OK;
}

void dti_task_close(dti_task *t)
{
    for (size_t i = 0; i < t->n_splits; i++) dti_free(t->splits[i].blocks);
    dti_free(t->splits);
    dti_way_plans_close(t);
    dti_free(t->profiles);
    dti_free(t->passes);
}

/* --- ways ------------------------------------------------------------------------------------- */

int dti_way_ep(const dt_way *w)
{
    return w->ep > 1 ? w->ep : 1;
}

int dti_way_place(const dt_way *w)
{
    return w->dp * dti_way_ep(w) * w->tp;
}

int64_t dti_way_ranks(const dt_way *w, int64_t most)
{
    const int degrees[] = { w->pp, w->dp, dti_way_ep(w), w->tp };
    int64_t n = 1;

    for (size_t i = 0; i < DT_COUNT(degrees) && n <= most; i++) n *= dti_max(degrees[i], 1);
    return n;
}

const char *dti_way_mesh(const dt_way *w, char text[DTI_MESH_BYTES])
{
    int used = 0;

    if (w->pp > 1) used += snprintf(text, DTI_MESH_BYTES, "pp=%d,", w->pp);
    used += snprintf(text + used, DTI_MESH_BYTES - (size_t)used, "dp=%d", w->dp);
    if (w->ep > 1) used += snprintf(text + used, DTI_MESH_BYTES - (size_t)used, ",ep=%d", w->ep);
    if (w->tp > 1) (void)snprintf(text + used, DTI_MESH_BYTES - (size_t)used, ",tp=%d", w->tp);
    return text;
}

int64_t dti_way_rows(const dti_task *t, const dt_way *w)
{
    return t->o.batch / w->dp / w->microbatches;
}

/* --- passes of one sequence ------------------------------------------------------------------- */

dt_status dti_profile_of(dti_task *t, const dt_way *w, const dti_profile **out)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_step_options step = DT_STEP_OPTIONS_INIT;
    dt_loss_options loss = DT_LOSS_OPTIONS_INIT;
    dt_load_options load = t->load;
    const dt_way passes = { .dp = 1, .ep = w->ep, .tp = w->tp, .dispatch = w->dispatch };
    char mesh[DTI_MESH_BYTES];
    dti_profile *p;

    for (size_t i = 0; i < t->n_profiles; i++) {
        p = &t->profiles[i];
        *out = p;
        if (p->ep == dti_way_ep(w) && p->tp == w->tp &&
            p->sequence_parallel == w->sequence_parallel && p->dispatch == w->dispatch &&
            p->recompute == w->recompute)
            return DT_OK;
    }
    DT_TRY(dti_grow((void **)&t->profiles, &t->profiles_room, t->n_profiles + 1, sizeof *p));
    p = &t->profiles[t->n_profiles];
    *p = (dti_profile){ .ep = dti_way_ep(w),
                        .tp = w->tp,
                        .sequence_parallel = w->sequence_parallel,
                        .dispatch = w->dispatch,
                        .recompute = w->recompute };
    load.sequence_parallel = w->sequence_parallel;
    loss.recompute = w->recompute;
    load.plan = dti_way_plan(t, &passes);
    o.mesh = dti_way_mesh(&passes, mesh);
    o.sequence = t->o.sequence;
    o.load = &load;
    step.loss = &loss;
    step.optimizer = &t->optimizer;
    p->refused = dt_predict_training(t->rt, t->dir, &o, &step, 0, &p->cost);
    if (p->refused == DT_ERR_MEMORY) return DT_ERR_MEMORY;
    t->n_profiles++;
    *out = p;
    return DT_OK;
}
