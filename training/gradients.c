/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients on their way from passes to a step. */
#include <dtensor/factories.h>

#include "dtensor/create.h"
#include "dtensor/leaf_moves.h"
#include "dtensor/leaves.h"
#include "training/norm.h"
#include "training/optimizer.h"

dt_status dti_optimizer_reduce(dt_optimizer *opt, int64_t i, dt_tape *tape)
{
    DT_TRY(dti_norm_look(opt, i, tape));
    DT_TRY(dti_leaf_settle(opt->gradients, i, opt->params[i].layout, tape));
    return DT_OK;
}

/* The loss scale, on every rank. NULL: 1. */
static dt_status seed_of(const dt_optimizer *opt, dt_tensor *loss, dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    int64_t shape[DT_MAX_AXES];
    const int n_axes = dt_tensor_n_axes(loss);

    *out = NULL;
    if (opt->loss_scale == 1.0) return DT_OK;
    for (int a = 0; a < n_axes; a++) shape[a] = dt_tensor_extent(loss, a);
    DT_TRY(dt_full(dt_tensor_mesh(loss), whole, DT_F32, n_axes, shape, opt->loss_scale, out));
    return DT_OK;
}

static dt_status check_pass(const dt_optimizer *opt, const dt_tape *tape, const dt_tensor *from,
                            const dt_backward_options *options)
{
    int64_t n = 1;

    DT_CHECK(opt != NULL, DT_ERR_ARG, "optimizer is NULL");
    DT_CHECK(from != NULL || options->half == DT_BACKWARD_WEIGHTS, DT_ERR_ARG, "the loss is NULL");
    DT_CHECK(dti_tape_records_for(tape, opt->gradients), DT_ERR_ARG,
             "the tape does not record for this optimizer: dt_tape_record(tape, "
             "dt_optimizer_gradients(optimizer)) comes before the forward pass");
    if (from == NULL) return DT_OK;
    for (int a = 0; a < dt_tensor_n_axes(from); a++) n *= dt_tensor_extent(from, a);
    DT_CHECK(options->seed != NULL || n == 1, DT_ERR_ARG,
             "the loss has %lld elements: reduce them to one", (long long)n);
    return DT_OK;
}

/* A pass whose gradients travel meanwhile. */
typedef struct bucket_pass {
    dt_optimizer *opt;
    const dt_backward_options *asked; /* by the caller */
} bucket_pass;

/* A gradient is whole, unless other records are who reads the parameter. */
static void set_out(void *arg, dt_tape *tape, dt_tensor *leaf)
{
    const bucket_pass *pass = arg;
    dt_optimizer *opt = pass->opt;
    const int64_t i = dti_leaf_number(opt->gradients, leaf);
    dt_status st = DT_OK;

    if (i < opt->n && dti_tape_reads(tape, i)) { /* not the caller's own */
        st = dti_norm_look(opt, i, tape);
        if (st == DT_OK) st = dti_buckets_take(opt->buckets, tape, i);
    }
    if (st != DT_OK)
        (void)dti_tape_latch(tape, dti_error_frame(st, __func__, __FILE__, __LINE__));
    else if (pass->asked->ready != NULL)
        pass->asked->ready(pass->asked->arg, tape, leaf);
}

/* Gradients travel in the last pass of a step, those that are cut in each. */
static dt_status run_pass(dt_optimizer *opt, dt_tape *tape, dt_tensor *from, bool last,
                          const dt_backward_options *asked)
{
    const bool travels = last || opt->options.zero == 2, first = asked->half == DT_BACKWARD_INPUTS;
    const bool meanwhile = travels && opt->buckets != NULL && !first;
    dt_backward_options options = *asked;
    dt_tensor *scale = NULL;
    bucket_pass pass = { opt, asked };

    if (from != NULL && options.seed == NULL) {
        DT_TRY(seed_of(opt, from, &scale));
        options.seed = scale;
    }
    if (meanwhile) {
        dti_buckets_open(opt->buckets);
        options.ready = set_out;
        options.arg = &pass;
    }
    dt_backward(tape, from, &options);
    dt_tensor_release(&scale);
    if (dt_tape_status(tape) != DT_OK) return DT_OK;
    if (meanwhile) return dti_buckets_close(opt->buckets, tape);
    for (int64_t i = 0; i < opt->n && opt->options.zero == 2 && !first; i++)
        DT_TRY(dti_optimizer_reduce(opt, i, tape));
    return DT_OK;
}

void dt_optimizer_backward(dt_optimizer *opt, dt_tape *tape, dt_tensor *from, bool last,
                           const dt_backward_options *options)
{
    const dt_backward_options defaults = { .seed = NULL };
    dt_status st;

    if (tape == NULL || dt_tape_status(tape) != DT_OK) return;
    if (options == NULL) options = &defaults;
    st = check_pass(opt, tape, from, options);
    if (st == DT_OK) st = run_pass(opt, tape, from, last, options);
    if (st != DT_OK) (void)dti_tape_latch(tape, dti_error_frame(st, __func__, __FILE__, __LINE__));
}
