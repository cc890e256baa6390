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

/* The seed of a pass: the loss scale, on every rank. NULL: 1. */
static dt_status seed_of(const dt_optimizer *opt, dt_tensor *loss, dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    int64_t shape[DT_MAX_AXES];
    const int n_axes = dt_tensor_n_axes(loss);

    *out = NULL;
    if (opt->loss_scale == 1.0 || loss == NULL) return DT_OK;
    for (int a = 0; a < n_axes; a++) shape[a] = dt_tensor_extent(loss, a);
    DT_TRY(dt_full(dt_tensor_mesh(loss), whole, DT_F32, n_axes, shape, opt->loss_scale, out));
    return DT_OK;
}

static dt_status check_pass(const dt_optimizer *opt, const dt_tape *tape, const dt_tensor *loss)
{
    int64_t n = 1;

    DT_CHECK(opt != NULL, DT_ERR_ARG, "optimizer is NULL");
    DT_CHECK(loss != NULL, DT_ERR_ARG, "loss is NULL");
    DT_CHECK(dti_tape_records_for(tape, opt->gradients), DT_ERR_ARG,
             "the tape does not record for this optimizer: dt_tape_record(tape, "
             "dt_optimizer_gradients(optimizer)) comes before the forward pass");
    for (int a = 0; a < dt_tensor_n_axes(loss); a++) n *= dt_tensor_extent(loss, a);
    DT_CHECK(n == 1, DT_ERR_ARG, "the loss has %lld elements: reduce them to one", (long long)n);
    return DT_OK;
}

/* A gradient is whole, in a pass whose gradients travel. */
static void set_out(void *arg, dt_tape *tape, dt_tensor *leaf)
{
    dt_optimizer *opt = arg;
    const int64_t i = dti_leaf_number(opt->gradients, leaf);
    dt_status st = DT_OK;

    if (i >= opt->n) return; /* the caller's own */
    st = dti_norm_look(opt, i, tape);
    if (st == DT_OK) st = dti_buckets_take(opt->buckets, tape, i);
    if (st != DT_OK) (void)dti_tape_latch(tape, dti_error_frame(st, __func__, __FILE__, __LINE__));
}

/* Gradients travel in the last pass of a step, those that are cut in each. */
static dt_status run_pass(dt_optimizer *opt, dt_tape *tape, dt_tensor *loss, bool last)
{
    const bool travels = last || opt->options.zero == 2;
    const bool meanwhile = travels && opt->buckets != NULL;
    dt_backward_options options = { .ready = meanwhile ? set_out : NULL, .arg = opt };

    if (meanwhile) dti_buckets_open(opt->buckets);
    DT_TRY(seed_of(opt, loss, &options.seed));
    dt_backward(tape, loss, &options);
    dt_tensor_release(&options.seed);
    if (dt_tape_status(tape) != DT_OK) return DT_OK;
    if (meanwhile) return dti_buckets_close(opt->buckets, tape);
    for (int64_t i = 0; i < opt->n && opt->options.zero == 2; i++)
        DT_TRY(dti_optimizer_reduce(opt, i, tape));
    return DT_OK;
}

void dt_optimizer_backward(dt_optimizer *opt, dt_tape *tape, dt_tensor *loss, bool last)
{
    dt_status st;

    if (tape == NULL || dt_tape_status(tape) != DT_OK) return;
    st = check_pass(opt, tape, loss);
    if (st == DT_OK) st = run_pass(opt, tape, loss, last);
    if (st != DT_OK) (void)dti_tape_latch(tape, dti_error_frame(st, __func__, __FILE__, __LINE__));
}
