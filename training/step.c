/* SPDX-License-Identifier: Apache-2.0
 *
 * A step: gradients come to where the state lies, all ranks learn their norm and whether they are
 * finite, each parameter is updated there and brought back to where it is. */
#include <dtensor/collectives.h>
#include <math.h>

#include "base/numbers.h"
#include "base/sync.h"
#include "base/text.h"
#include "dtensor/away.h"
#include "dtensor/create.h"
#include "dtensor/leaves.h"
#include "dtensor/optimize.h"
#include "mesh/runtime.h"
#include "training/norm.h"

enum { GOOD_STEPS = 2000 };
static const double NORM_EPS = 1e-6;

/* --- updates ---------------------------------------------------------------------------------- */

/* The parameter's elements where its state lies: itself, or a copy of its part, or of what lies
 * elsewhere. What a master will be rounded to needs no copy. */
static dt_status open_value(const dti_trained *p, bool has_master, dt_tensor **out)
{
    const bool here = p->layout == dt_tensor_layout(p->x), away = dti_tensor_is_away(p->x);
    int64_t shape[DT_MAX_AXES];

    if ((here && !away) || (!here && !has_master))
        return dt_redistribute(p->x, p->layout->place, out);
    for (int a = 0; a < dt_tensor_n_axes(p->x); a++) shape[a] = dt_tensor_extent(p->x, a);
    DT_TRY(dti_tensor_create(dt_tensor_mesh(p->x), p->layout, dt_tensor_dtype(p->x), shape, out));
    if (!has_master) DT_TRY(dti_move_into(NULL, p->x, *out));
    return DT_OK;
}

/* What the rule asks of this step. */
typedef struct rule_step {
    double lr, scale; /* of gradients */
} rule_step;

static dt_status run_rule(dt_optimizer *opt, const dti_trained *p, const rule_step *how,
                          const dti_step_part *part)
{
    const dt_optimizer_options *o = &opt->options;
    const int64_t step = opt->steps + 1;
    const dt_random key = dti_step_random((dt_random){ o->seed, p->stream }, step);
    const dt_random *random = o->stochastic ? &key : NULL;
    const dti_adamw adamw = { .lr = how->lr * p->lr_factor,
                              .beta1 = o->beta1,
                              .beta2 = o->beta2,
                              .eps = o->eps,
                              .weight_decay = p->weight_decay,
                              .scale = how->scale,
                              .step = step };
    const dti_sgd sgd = { .lr = how->lr * p->lr_factor,
                          .momentum = o->momentum,
                          .dampening = o->dampening,
                          .weight_decay = p->weight_decay,
                          .scale = how->scale,
                          .step = step,
                          .nesterov = o->nesterov };

    DT_TRY(o->rule == DT_ADAMW ? dti_optimizer_adamw(part, &adamw, random)
                               : dti_optimizer_sgd(part, &sgd, random));
    return DT_OK;
}

/* AdamW takes 15 operations for each element, plain descent 3, a momentum 3 more. Gradient, value
 * and state are read, the latter two written. */
static void count_work(dt_optimizer *opt, const dti_trained *p, int64_t n, int64_t begun_ns)
{
    const double flops = opt->options.rule == DT_ADAMW          ? 15
                         : dti_has(p->slots, DTI_SLOT_MOMENTUM) ? 6
                                                                : 3;
    const int n_states = __builtin_popcount(p->slots);
    const double value = 2.0 * (double)dt_dtype_size(dt_tensor_dtype(p->x));

    dti_tape_add_work(
        opt->tape, opt->options.rule == DT_ADAMW ? "adamw" : "sgd", dt_tensor_dtype(p->x),
        &(dt_op_work){ (double)n * flops, (double)n * (4.0 + value + 8.0 * n_states) }, begun_ns);
}

/* The elements of `whole` that a window has state of. */
static dti_step_part part_of(const dt_optimizer *opt, const dti_step_part *whole,
                             const dti_state_window *w)
{
    dti_step_part part = *whole;

    part.first = w->first;
    part.n = w->n;
    if (part.param != NULL) {
        part.grad += w->first;
        part.param = (char *)part.param + w->first * (int64_t)dt_dtype_size(part.dtype);
    }
    part.master = w->slot[DTI_SLOT_MASTER];
    part.state[0] = w->slot[opt->options.rule == DT_ADAMW ? DTI_SLOT_EXP_AVG : DTI_SLOT_MOMENTUM];
    part.state[1] = w->slot[DTI_SLOT_EXP_AVG_SQ];
    return part;
}

static dt_status update(dt_optimizer *opt, int64_t i, const rule_step *how)
{
    dt_tensor *const none[2] = { NULL, NULL };
    dt_tensor *g = dti_leaf_take(opt->gradients, i), *value = NULL;
    dti_trained *p = &opt->params[i];
    dti_state_window w = { .n = 0 };
    dti_step_part whole;
    dt_status st = DT_OK;

    if (g == NULL) return DT_OK;
    DT_TRY_TO(done, st, dti_away_bring(p->x));
    if (i + 1 < opt->n) dti_away_soon(opt->params[i + 1].x);
    DT_TRY_TO(done, st, open_value(p, dti_has(p->slots, DTI_SLOT_MASTER), &value));
    whole = dti_step_whole(g, value, NULL, none);
    const int64_t begun = dti_now_ns();
    for (;;) {
        DT_TRY_TO(done, st, dti_state_next(opt, i, false, &w));
        if (w.n == 0) break;
        const dti_step_part part = part_of(opt, &whole, &w);
        DT_TRY_TO(done, st, run_rule(opt, p, how, &part));
    }
    count_work(opt, p, whole.n, begun);
    dt_tensor_release(&g);
    DT_TRY_TO(done, st, dti_move_into(opt->tape, value, p->x));
    DT_TRY_TO(done, st, dti_away_leave(p->x, true));
done:
    dt_tensor_release(&g);
    dt_tensor_release(&value);
    return st;
}

/* --- the step --------------------------------------------------------------------------------- */

/* Whether any rank's part of `any` holds, where stages have parameters of their own: one may have
 * none. Where all ranks have all of them each knows by itself. */
static dt_status ask_stages(const dt_optimizer *opt, bool *any)
{
    const uint32_t all = (1u << dt_mesh_n_dims(opt->mesh)) - 1;
    int32_t flag = *any;
    bool parted = false;
    dti_comm *comm;

    for (int64_t i = 0; i < opt->n; i++)
        parted = parted || dt_layer_mesh(opt->params[i].layer) != opt->mesh;
    if (!parted || !dt_mesh_is_member(opt->mesh)) return DT_OK;
    if (!dt_runtime_is_dry(dt_mesh_runtime(opt->mesh))) {
        DT_TRY(dti_mesh_comm(opt->mesh, all, &comm));
        DT_TRY(dti_all_reduce(comm, &flag, &flag, 1, DT_I32, DT_MAX));
    }
    *any = flag != 0 || dt_runtime_is_dry(dt_mesh_runtime(opt->mesh));
    return DT_OK;
}

static dt_status check_step(const dt_optimizer *opt, double lr)
{
    bool any = false;

    DT_CHECK(isfinite(lr) && lr >= 0.0, DT_ERR_ARG, "step %lld: lr is %g: it is a number from 0 on",
             dti_optimizer_number(opt), lr);
    for (int64_t i = 0; i < opt->n; i++) {
        const dti_trained *p = &opt->params[i];
        DT_CHECK(dt_layer_param(p->layer, p->param) == p->x, DT_ERR_ARG,
                 "%s has another value than when the optimizer was made: make it anew", p->name);
        any = any || dti_leaf_part(opt->gradients, i, 0) != NULL;
    }
    DT_TRY(ask_stages(opt, &any));
    DT_CHECK(any, DT_ERR_ARG,
             "step %lld: no backward pass has reached any parameter since the last step",
             dti_optimizer_number(opt));
    return DT_OK;
}

/* Number i of what a step follows from besides gradients and state, the same on every rank: of the
 * step, of the rule, of each parameter. NAN behind the last. */
static double number_of_step(const dt_optimizer *opt, double lr, int64_t i, const char **name,
                             const char **of)
{
    const dt_optimizer_options *o = &opt->options;
    const struct {
        const char *name;
        double value;
    } numbers[] = { { "lr", lr },
                    { "the count of steps", (double)opt->steps },
                    { "the loss scale", opt->loss_scale },
                    { "the count of good steps", (double)opt->good_steps },
                    { "rule", (double)o->rule },
                    { "beta1", o->beta1 },
                    { "beta2", o->beta2 },
                    { "eps", o->eps },
                    { "momentum", o->momentum },
                    { "dampening", o->dampening },
                    { "nesterov", (double)o->nesterov },
                    { "clip", o->clip },
                    { "stochastic", (double)o->stochastic },
                    { "seed", (double)o->seed } };
    const int64_t k = i - (int64_t)DT_COUNT(numbers);

    *of = "";
    *name = k < 0 ? numbers[i].name : k % 2 == 0 ? "lr_factor" : "weight_decay";
    if (k < 0) return numbers[i].value;
    if (k / 2 >= opt->n) return NAN;
    *of = opt->params[k / 2].name;
    return k % 2 == 0 ? opt->params[k / 2].lr_factor : opt->params[k / 2].weight_decay;
}

static uint64_t hash_of_step(const dt_optimizer *opt, double lr)
{
    const char *name, *of;
    uint64_t hash = 1;
    double x;

    for (int64_t i = 0; !isnan(x = number_of_step(opt, lr, i, &name, &of)); i++)
        hash = dti_hash_bytes(hash, &x, sizeof x);
    return hash;
}

/* Ranks that step differently have different parameters ever after. Collective. */
static dt_status refuse_numbers(dt_optimizer *opt, double lr)
{
    const double rank = dt_runtime_rank(dt_mesh_runtime(opt->mesh));
    const char *name, *of;
    double x;

    for (int64_t i = 0; !isnan(x = number_of_step(opt, lr, i, &name, &of)); i++) {
        double least[] = { x, -x }, first[2]; /* and the largest, as what is least of -x */
        char low[DTI_NUMBER_BYTES], high[DTI_NUMBER_BYTES];
        DT_TRY(dt_all_reduce(opt->mesh, NULL, least, least, 2, DT_F64, DT_MIN));
        if (least[0] == -least[1]) continue;
        first[0] = x == least[0] ? rank : INFINITY;
        first[1] = x == -least[1] ? rank : INFINITY;
        DT_TRY(dt_all_reduce(opt->mesh, NULL, first, first, 2, DT_F64, DT_MIN));
        DT_FAIL(DT_ERR_ARG,
                "step %lld: %s%s%s is %s on rank %.0f and %s on rank %.0f: every rank passes the "
                "same; nothing was written",
                dti_optimizer_number(opt), name, of[0] != '\0' ? " of " : "", of,
                dti_number_text(least[0], low), first[0], dti_number_text(-least[1], high),
                first[1]);
    }
    DT_FAIL(DT_ERR_INTERNAL, "step %lld: ranks disagree, and nothing differs",
            dti_optimizer_number(opt));
}

/* Gradients of f16 that overflow are no error as long as the scale can fall. */
static bool overflows(dt_optimizer *opt, const dti_squares *squares)
{
    if (dti_norm_is_finite(squares) || opt->loss_scale <= 1.0) return false;
    opt->loss_scale /= 2.0;
    opt->good_steps = 0;
    dti_runtime_log(dt_mesh_runtime(opt->mesh), DT_LOG_INFO,
                    "step %lld skipped: gradients overflow; loss scale %g from now on",
                    dti_optimizer_number(opt), opt->loss_scale);
    opt->skipped++;
    return true;
}

static void count_good(dt_optimizer *opt)
{
    opt->steps++;
    opt->good_steps++;
    if (opt->loss_scale == 1.0 || opt->good_steps < GOOD_STEPS) return;
    opt->good_steps = 0;
    opt->loss_scale *= 2.0;
}

static dt_status run_step(dt_optimizer *opt, double lr, dt_step_report *report)
{
    const double scale = opt->loss_scale;
    dti_squares squares;
    rule_step how;

    DT_TRY(dti_state_take_back(opt));
    for (int64_t i = 0; i < opt->n; i++) DT_TRY(dti_optimizer_reduce(opt, i, opt->tape));
    DT_TRY(dti_optimizer_add_copies(opt));
    DT_TRY(dti_norm_of(opt, hash_of_step(opt, lr), &squares));
    if (!dti_norm_is_asked_alike(opt, &squares)) DT_TRY(refuse_numbers(opt, lr));
    report->norm = sqrt(dti_digits_total(squares.digits)) / scale;
    report->step = opt->steps + 1;
    report->clip_factor = 1.0;
    report->skipped = overflows(opt, &squares);
    if (report->skipped) return DT_OK;
    if (!dti_norm_is_finite(&squares)) DT_TRY(dti_norm_refuse(opt, &squares));
    if (opt->options.clip > 0.0)
        report->clip_factor = fmin(1.0, opt->options.clip / (report->norm + NORM_EPS));
    how = (rule_step){ .lr = lr, .scale = report->clip_factor / scale };
    (void)dt_tape_because(opt->tape, "parameters");
    for (int64_t i = 0; i < opt->n; i++) DT_TRY(update(opt, i, &how));
    DT_TRY(dti_state_settle(opt));
    count_good(opt);
    return DT_OK;
}

dt_status dt_optimizer_step(dt_optimizer *opt, double lr, dt_step_report *report)
{
    dt_step_report mine = { 0 };

    DT_CHECK(opt != NULL, DT_ERR_ARG, "optimizer is NULL");
    dt_tape_reset(opt->tape);
    if (opt->buckets != NULL) DT_TRY(dti_buckets_finish(opt->buckets, opt->tape));
    DT_TRY(check_step(opt, lr));
    if (dt_mesh_is_member(opt->mesh))
        DT_TRY(dti_runtime_alone(dt_mesh_runtime(opt->mesh), run_step(opt, lr, &mine)));
    else
        mine.step = ++opt->steps;
    dt_gradients_clear(opt->gradients);
    if (report != NULL) *report = mine;
    return DT_OK;
}
