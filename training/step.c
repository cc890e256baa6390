/* SPDX-License-Identifier: Apache-2.0
 *
 * A step: gradients come to where the state lies, all ranks learn their norm and whether they are
 * finite, each parameter is updated there and brought back to where it is. */
#include <dtensor/factories.h>
#include <math.h>

#include "dtensor/create.h"
#include "dtensor/leaves.h"
#include "mesh/runtime.h"
#include "training/norm.h"
#include "training/update.h"

enum { GOOD_STEPS = 2000 };
static const double NORM_EPS = 1e-6;

/* --- norm ------------------------------------------------------------------------------------- */

static dt_status sum_squares(dt_optimizer *opt, dti_square_sum *sum)
{
    const uint32_t all = (1u << dt_mesh_n_dims(opt->mesh)) - 1;
    dti_comm *comm;

    for (int64_t i = 0; i < opt->n; i++) {
        const dti_trained *p = &opt->params[i];
        dt_tensor *g = dti_leaf_part(opt->gradients, i, 0);
        if (g != NULL && p->first_owner) DT_TRY(dti_square_sum_add(sum, g));
        sum->n_bad_own += p->bad;
    }
    DT_TRY(dti_mesh_comm(opt->mesh, all, &comm));
    DT_TRY(dti_all_reduce(comm, sum, sum, sizeof *sum / sizeof(int64_t), DT_I64, DT_SUM));
    DT_TRY(dti_tape_add_reduction(opt->tape, "norm", sizeof *sum, dt_mesh_n_ranks(opt->mesh)));
    return DT_OK;
}

/* The first parameter, in the order of the list, with something that is not finite here: a term of
 * this rank's own, or, if there is none anywhere, an element that it counts. opt->n: none. */
static dt_status first_bad(dt_optimizer *opt, bool own, int64_t *out)
{
    *out = opt->n;
    for (int64_t i = 0; i < opt->n && *out == opt->n; i++) {
        const dti_trained *p = &opt->params[i];
        dt_tensor *g = dti_leaf_part(opt->gradients, i, 0);
        bool finite = !p->bad;
        if (!own && g != NULL && p->first_owner) DT_TRY(dti_is_finite(g, &finite));
        if (!finite) *out = i;
    }
    return DT_OK;
}

/* All ranks say the same, and who it was. */
static dt_status refuse(dt_optimizer *opt, const dti_square_sum *sum)
{
    const int64_t n_ranks = dt_runtime_size(dt_mesh_runtime(opt->mesh));
    const uint32_t all = (1u << dt_mesh_n_dims(opt->mesh)) - 1;
    const bool own = sum->n_bad_own > 0;
    int64_t bad, first;
    dti_comm *comm;

    DT_TRY(first_bad(opt, own, &bad));
    bad = bad * n_ranks + dt_runtime_rank(dt_mesh_runtime(opt->mesh));
    DT_TRY(dti_mesh_comm(opt->mesh, all, &comm));
    DT_TRY(dti_all_reduce(comm, &bad, &first, 1, DT_I64, DT_MIN));
    DT_CHECK(first / n_ranks < opt->n, DT_ERR_INTERNAL, "nobody has what is not finite");
    DT_FAIL(DT_ERR_ARG,
            "rank %lld: the gradient of %s is not finite%s at step %lld; nothing was written",
            (long long)(first % n_ranks), opt->params[first / n_ranks].name,
            own ? "" : " once terms are added up", (long long)opt->steps + 1);
}

/* --- updates ---------------------------------------------------------------------------------- */

/* What the rule steps, in f32 and where the state lies: the parameter, its master, or a copy. */
static dt_status open_value(const dti_trained *p, dt_tensor *const state[DTI_N_SLOTS],
                            dt_tensor **out)
{
    *out = NULL;
    if (state[DTI_SLOT_MASTER] != NULL)
        *out = dt_tensor_retain(state[DTI_SLOT_MASTER]);
    else
        DT_TRY(dt_redistribute_cast(p->x, p->layout->place, DT_F32, out));
    return DT_OK;
}

/* value in the parameter's dtype, rounded at random by step and element. */
static dt_status round_value(dt_optimizer *opt, const dti_trained *p, dt_tensor *value,
                             dt_tensor **out)
{
    const dt_random key = { opt->options.seed, dti_hash_word(p->stream, (uint64_t)opt->steps + 1) };
    int64_t shape[DT_MAX_AXES];
    dt_tensor *noise = NULL;
    dt_status st = DT_OK;

    *out = NULL;
    if (!opt->options.stochastic || dt_tensor_dtype(p->x) != DT_BF16)
        return dt_redistribute_cast(value, p->layout->place, dt_tensor_dtype(p->x), out);
    for (int a = 0; a < dt_tensor_n_axes(p->x); a++) shape[a] = dt_tensor_extent(p->x, a);
    DT_TRY_TO(done, st, dti_tensor_create(opt->mesh, p->layout, DT_F32, shape, &noise));
    DT_TRY_TO(done, st, dt_fill_rand(noise, key, 0.0, 1.0));
    DT_TRY_TO(done, st, dti_tensor_create(opt->mesh, p->layout, DT_BF16, shape, out));
    DT_TRY_TO(done, st, dti_round_at_random(opt->tape, value, noise, *out));
done:
    dt_tensor_release(&noise);
    if (st != DT_OK) dt_tensor_release(out);
    return st;
}

static dt_status update(dt_optimizer *opt, int64_t i, const dti_update *how)
{
    dt_tensor *g = dti_leaf_take(opt->gradients, i), *value = NULL, *rounded = NULL;
    dti_trained *p = &opt->params[i];
    dt_tensor *state[DTI_N_SLOTS];
    dt_status st = DT_OK;

    if (g == NULL) return DT_OK;
    DT_TRY_TO(done, st, dti_state_fetch(opt, i, state));
    DT_TRY_TO(done, st, open_value(p, state, &value));
    DT_TRY_TO(done, st, dti_update_run(how, opt->tape, value, g, state));
    dt_tensor_release(&g);
    DT_TRY_TO(done, st, dti_state_put_back(opt, i, state));
    DT_TRY_TO(done, st, round_value(opt, p, value, &rounded));
    DT_TRY_TO(done, st, dti_move_into(opt->tape, rounded, p->x));
done:
    dt_tensor_release(&g);
    dt_tensor_release(&value);
    dt_tensor_release(&rounded);
    return st;
}

/* --- the step --------------------------------------------------------------------------------- */

static dt_status check_step(const dt_optimizer *opt, double lr)
{
    bool any = false;

    DT_CHECK(isfinite(lr) && lr >= 0.0, DT_ERR_ARG, "step %lld: lr is %g: it is a number from 0 on",
             (long long)opt->steps + 1, lr);
    for (int64_t i = 0; i < opt->n; i++) {
        const dti_trained *p = &opt->params[i];
        DT_CHECK(dt_layer_param(p->layer, p->param) == p->x, DT_ERR_ARG,
                 "%s has another value than when the optimizer was made: make it anew", p->name);
        any = any || dti_leaf_part(opt->gradients, i, 0) != NULL;
    }
    DT_CHECK(any, DT_ERR_ARG,
             "step %lld: no backward pass has reached any parameter since the last step",
             (long long)opt->steps + 1);
    return DT_OK;
}

/* A step is good, or its gradients overflowed and it is skipped. */
static bool overflows(dt_optimizer *opt, const dti_square_sum *sum)
{
    const bool scaled = opt->loss_scale > 1.0 && opt->options.loss_scale != 0.0;

    if ((sum->n_bad > 0 || sum->n_bad_own > 0) && scaled) {
        opt->loss_scale /= 2.0;
        opt->good_steps = 0;
        return true;
    }
    return false;
}

static void count_good(dt_optimizer *opt)
{
    opt->good_steps++;
    if (opt->loss_scale == 1.0 || opt->good_steps < GOOD_STEPS) return;
    opt->good_steps = 0;
    opt->loss_scale *= 2.0;
}

static dt_status run_step(dt_optimizer *opt, double lr, dt_step_report *report)
{
    dti_square_sum sum = { .n_bad = 0 };

    for (int64_t i = 0; i < opt->n; i++) DT_TRY(dti_optimizer_reduce(opt, i, opt->tape));
    DT_TRY(sum_squares(opt, &sum));
    report->norm = dti_square_sum_root(&sum) / opt->loss_scale;
    report->step = opt->steps + 1;
    report->clip_factor = 1.0;
    report->skipped = overflows(opt, &sum);
    if (report->skipped) {
        dti_runtime_log(dt_mesh_runtime(opt->mesh), DT_LOG_INFO,
                        "step %lld skipped: gradients overflow; loss scale %g from now on",
                        (long long)report->step, opt->loss_scale);
        return DT_OK;
    }
    if (sum.n_bad > 0 || sum.n_bad_own > 0) DT_TRY(refuse(opt, &sum));
    if (opt->options.clip > 0.0)
        report->clip_factor = fmin(1.0, opt->options.clip / (report->norm + NORM_EPS));
    (void)dt_tape_because(opt->tape, "parameters");
    for (int64_t i = 0; i < opt->n; i++) {
        const dti_update how = dti_update_of(opt, &opt->params[i], lr, report->clip_factor);
        DT_TRY(update(opt, i, &how));
    }
    opt->steps++;
    count_good(opt);
    return DT_OK;
}

dt_status dt_optimizer_step(dt_optimizer *opt, double lr, dt_step_report *report)
{
    dt_step_report mine = { 0 };

    DT_CHECK(opt != NULL, DT_ERR_ARG, "optimizer is NULL");
    if (opt->buckets != NULL) DT_TRY(dti_buckets_finish(opt->buckets));
    DT_TRY(check_step(opt, lr));
    dt_tape_reset(opt->tape);
    if (dt_mesh_is_member(opt->mesh))
        DT_TRY(dti_runtime_alone(dt_mesh_runtime(opt->mesh), run_step(opt, lr, &mine)));
    else
        mine.step = ++opt->steps;
    dt_gradients_clear(opt->gradients);
    if (report != NULL) *report = mine;
    return DT_OK;
}
