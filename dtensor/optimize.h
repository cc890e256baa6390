/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of an optimizer on a rank's elements, and exact norms: kernels of the rank's device,
 * under the optimizers of training/. Nothing here communicates, knows of parameters or of steps
 * before.
 *
 * Orders of operations are PyTorch's (torch/optim/adamw.py and sgd.py, the loops for one tensor).
 * Everything is f32 and rounds after each operation; no multiply-add is fused. So the bits are the
 * same with any number of threads, on every instruction set and on GPUs. PyTorch fuses where the
 * machine can: after five steps its three implementations, one tensor, foreach and fused, lie
 * within one unit of the last place of what was added on the way
 * (tools/make_optimizer_golden.py). Factors are computed in double from the options, then rounded
 * to f32:
 *
 *   AdamW  g = scale grad                        what clipping and a loss scale ask for
 *          p = p (1 - lr weight_decay)
 *          m = m + (1 - beta1) (g - m)           from g's end if beta1 <= 0.5, as torch.lerp()
 *          v = v beta2 + ((1 - beta2) g) g
 *          p = p + ((-lr / (1 - beta1^k)) m) / (sqrt(v) / sqrt(1 - beta2^k) + eps)
 *   SGD    g = scale grad; g = g + weight_decay p, if there is decay
 *          b = g in step 1, else momentum b + (1 - dampening) g
 *          g = g + momentum b with Nesterov, else b
 *          p = p + (-lr) g
 *
 * p is the master copy where there is one, and the parameter becomes that, rounded to nearest even.
 * A parameter of 16 bits without one is widened, and rounded in the end: to nearest even, or up
 * with the probability of what it lies above the lower neighbour, by a number that follows from
 * the key and the element's global index alone. */
#ifndef DTI_OPTIMIZE_H
#define DTI_OPTIMIZE_H

#include <dtensor/factories.h>

#include "dtensor/device/device.h"
#include "dtensor/kernels/digits.h"

/* Elements first .. first + n - 1 of a piece, row-major: a whole piece, or what a window of the
 * state holds. Pointers are to the first of these, memory of the device. */
typedef struct dti_step_part {
    const dt_tensor *like; /* of the parameter's shape, lying as these elements do; its bytes and
                            * dtype do not matter */
    int64_t first, n;
    const float *grad;
    void *param;
    dt_dtype dtype;  /* of param: f32, bf16, f16 */
    float *master;   /* NULL: none */
    float *state[2]; /* exp_avg, exp_avg_sq; or momentum */
} dti_step_part;

typedef struct dti_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    double scale; /* of gradients as they are read */
    int64_t step; /* this one: 1, 2, ... */
} dti_adamw;

typedef struct dti_sgd {
    double lr, momentum, dampening, weight_decay;
    double scale;
    int64_t step;
    bool nesterov;
} dti_sgd;

/* All of a piece; tensors that lie alike, of one mesh: grad and state f32. master, state[i]: or
 * NULL. */
dti_step_part dti_step_whole(const dt_tensor *grad, dt_tensor *param, dt_tensor *master,
                             dt_tensor *const state[2]);

/* random: NULL rounds to nearest; for parameters of 16 bits without a master. sgd: state[0] is
 * neither read nor written if momentum is 0. No elements, outsiders, dry runs: nothing happens. */
dt_status dti_optimizer_adamw(const dti_step_part *part, const dti_adamw *how,
                              const dt_random *random) DT_MUST_USE;
dt_status dti_optimizer_sgd(const dti_step_part *part, const dti_sgd *how,
                            const dt_random *random) DT_MUST_USE;

/* The key of one step's rounding, from that of a parameter: (seed, stream of its name). */
dt_random dti_step_random(dt_random param, int64_t step);

/* Adds the squares of n values to digits[DTI_DIGITS_N] (kernels/digits.h), exactly; the last one
 * counts values that are not finite. A sum over ranks of all these numbers is that of their values.
 * bad: NULL, or room for two: how many of these values are not finite, and the index of the first,
 * or -1. All are memory of the device. */
dt_status dti_gradient_digits(dti_device *d, const float *x, int64_t n, int64_t *digits,
                              int64_t *bad) DT_MUST_USE;

/* The sum that digits are, carried or not, rounded once; NaN if any value was not finite. Its root
 * is the norm. */
double dti_digits_total(const int64_t digits[DTI_DIGITS_N]);

/* Row-major index in the whole tensor of element i of this rank's piece. */
int64_t dti_piece_global(const dt_tensor *x, int64_t i);

/* The rows behind these, which no tape calls: { &adamw, &sgd, &square_digits }. */
enum { DTI_N_STEP_ROWS = 3 };
extern const dt_op *const dti_step_rows[DTI_N_STEP_ROWS];

#endif
