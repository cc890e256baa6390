/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels of an optimizer's step are handed. */
#include "dtensor/optimize.h"

#include <math.h>

#include "dtensor/kernels/step_attrs.h"
#include "dtensor/piece_runs.h"

static const dt_op adamw_row = { .name = "adamw", .cpu = dti_adamw_cpu };
static const dt_op sgd_row = { .name = "sgd", .cpu = dti_sgd_cpu };
static const dt_op square_digits_row = { .name = "square_digits", .cpu = dti_square_digits_cpu };

const dt_op *const dti_step_rows[DTI_N_STEP_ROWS] = { &adamw_row, &sgd_row, &square_digits_row };

dti_step_part dti_step_whole(const dt_tensor *grad, dt_tensor *param, dt_tensor *master,
                             dt_tensor *const state[2])
{
    dti_step_part part = { .like = param,
                           .n = dti_tensor_count(param),
                           .grad = grad->local.data,
                           .param = param->local.data,
                           .dtype = param->local.dtype };

    dti_tensor_begin_write(param);
    if (master != NULL) part.master = master->local.data;
    for (int i = 0; i < 2; i++)
        if (state[i] != NULL) part.state[i] = state[i]->local.data;
    return part;
}

/* --- steps ------------------------------------------------------------------------------------ */

/* A row's operands: the gradient, then what is written over. `taken` of them are given, of which
 * none is NULL. */
enum { MOST_WRITTEN = 4 };

static dt_local elements(void *data, dt_dtype dtype, int64_t n)
{
    return (dt_local){ .data = data, .dtype = dtype, .n_axes = 1, .shape = { n } };
}

/* Elements i .. i + n - 1 of the part. */
static dt_status run_part(const dti_step_part *part, const dt_op *op, const void *attr, int64_t i,
                          int64_t n)
{
    float *const state[] = { part->state[0], part->state[1], part->master };
    dti_device *d = part->like->device;
    dt_local in[1 + MOST_WRITTEN];
    dt_kargs args = { .in = in, .out = in + 1, .attr = attr, .n_in = 2, .n_out = 1 };

    in[0] = elements((void *)(uintptr_t)(part->grad + i), DT_F32, n);
    in[1] = elements((char *)part->param + i * (int64_t)dt_dtype_size(part->dtype), part->dtype, n);
    for (int s = 0; s < 3; s++) {
        if (state[s] == NULL) continue;
        in[args.n_in++] = elements(state[s] + i, DT_F32, n);
        args.n_out++;
    }
    DT_TRY(d->ops->run(d, op, &args));
    return DT_OK;
}

/* Rounding at random asks where elements lie: a call for each box of them. */
static dt_status run_boxes(const dti_step_part *part, const dt_op *op, const void *attr,
                           dti_step_where *where)
{
    const dti_piece_map piece = dti_piece_of(part->like);

    for (int64_t i = 0, n; i < part->n; i += n) {
        const dti_box box = dti_piece_box(&piece, part->first + i, &where->skip, &n);
        where->n_axes = box.n_axes;
        where->offset = box.offset;
        for (int a = 0; a < box.n_axes; a++) {
            where->extent[a] = box.extent[a];
            where->stride[a] = box.stride[a];
        }
        if (n > part->n - i) n = part->n - i;
        DT_TRY(run_part(part, op, attr, i, n));
    }
    return DT_OK;
}

/* rounding: that of attr. */
static dt_status run(const dti_step_part *part, const dt_op *op, const void *attr,
                     dti_step_rounding *rounding, const dt_random *random)
{
    if (part->n == 0 || part->like->device->dry) return DT_OK;
    rounding->stochastic = random != NULL && part->master == NULL && part->dtype != DT_F32;
    if (!rounding->stochastic) {
        DT_TRY(run_part(part, op, attr, 0, part->n));
        return DT_OK;
    }
    rounding->key = *random;
    DT_TRY(run_boxes(part, op, attr, &rounding->where));
    return DT_OK;
}

dt_status dti_optimizer_adamw(const dti_step_part *part, const dti_adamw *how,
                              const dt_random *random)
{
    const double k = (double)how->step;
    dti_adamw_attr attr = { .scale = (float)how->scale,
                            .decay = (float)(1.0 - how->lr * how->weight_decay),
                            .lerp = (float)(1.0 - how->beta1),
                            .beta2 = (float)how->beta2,
                            .rest2 = (float)(1.0 - how->beta2),
                            .root2 = (float)sqrt(1.0 - pow(how->beta2, k)),
                            .eps = (float)how->eps,
                            .step = (float)-(how->lr / (1.0 - pow(how->beta1, k))) };

    DT_TRY(run(part, &adamw_row, &attr, &attr.rounding, random));
    return DT_OK;
}

dt_status dti_optimizer_sgd(const dti_step_part *part, const dti_sgd *how, const dt_random *random)
{
    dti_step_part own = *part;
    dti_sgd_attr attr = { .scale = (float)how->scale,
                          .decay = (float)how->weight_decay,
                          .momentum = (float)how->momentum,
                          .rest = (float)(1.0 - how->dampening),
                          .step = (float)-how->lr,
                          .has_momentum = how->momentum != 0.0,
                          .has_master = part->master != NULL,
                          .first = how->step == 1,
                          .nesterov = how->nesterov };

    if (!attr.has_momentum) own.state[0] = NULL;
    own.state[1] = NULL;
    DT_TRY(run(&own, &sgd_row, &attr, &attr.rounding, random));
    return DT_OK;
}

dt_random dti_step_random(dt_random param, int64_t step)
{
    uint32_t c[] = { (uint32_t)step, (uint32_t)((uint64_t)step >> 32), (uint32_t)param.stream,
                     (uint32_t)(param.stream >> 32) };

    dti_philox(c, (uint32_t)param.seed, (uint32_t)(param.seed >> 32));
    return (dt_random){ (uint64_t)c[0] << 32 | c[1], (uint64_t)c[2] << 32 | c[3] };
}

/* --- norms ------------------------------------------------------------------------------------ */

dt_status dti_gradient_digits(dti_device *d, const float *x, int64_t n, int64_t *digits,
                              int64_t *bad)
{
    dt_local in[] = { elements((void *)(uintptr_t)x, DT_F32, n),
                      elements(digits, DT_I64, DTI_DIGITS_N), elements(bad, DT_I64, 2) };
    dt_kargs args = { .in = in, .out = in + 1, .n_in = 2, .n_out = 1 };

    if (d->dry) return DT_OK;
    if (bad != NULL) args.n_in++, args.n_out++;
    DT_TRY(d->ops->run(d, &square_digits_row, &args));
    return DT_OK;
}

/* Bit `at` of a sum whose digits are carried; zeros are below it and above. */
static uint64_t bit_at(const int64_t *digits, int at)
{
    const int d = at / 32 < DTI_DIGITS ? at / 32 : DTI_DIGITS - 1;

    return at >= 0 ? (uint64_t)digits[d] >> (at - 32 * d) & 1 : 0;
}

double dti_digits_total(const int64_t digits[DTI_DIGITS_N])
{
    int64_t sum[DTI_DIGITS];
    int highest = 32 * (DTI_DIGITS - 1) + 63, lowest = 0;
    uint64_t bits = 0;

    if (digits[DTI_DIGITS_BAD] != 0) return NAN;
    memcpy(sum, digits, sizeof sum);
    dti_digits_carry(sum);
    while (highest >= 0 && bit_at(sum, highest) == 0) highest--;
    if (highest < 0) return 0.0;
    while (bit_at(sum, lowest) == 0) lowest++;
    for (int at = highest; at > highest - 64; at--) bits = bits << 1 | bit_at(sum, at);
    if (lowest <= highest - 64) bits |= 1; /* what is below decides between two neighbours */
    return ldexp((double)bits, highest - 63 + DTI_DIGITS_LOWEST);
}
