/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of an optimizer's step, one table per instruction set; all give the same bits. */
#ifndef DTI_CPU_STEPS_H
#define DTI_CPU_STEPS_H

#include <dtensor/base.h>

#include "dtensor/kernels/digits.h"
#include "dtensor/kernels/step_attrs.h"

/* n neighbours, number `global` and on of the parameter. master, first, second: or NULL. key: of
 * the uniform numbers on a grid of 2^-24 by which p is rounded; NULL: to nearest. */
typedef struct dti_step_run {
    const float *g;
    void *p;
    float *master, *first, *second;
    const dt_random *key;
    int64_t global, n;
    dt_dtype dtype; /* of p */
} dti_step_run;

/* What a worker has found in its values. */
typedef struct dti_found_squares {
    int64_t digits[DTI_DIGITS];
    int64_t bad, first_bad; /* how many are not finite; INT64_MAX: none */
} dti_found_squares;

typedef struct dti_step_ops {
    void (*adamw)(const dti_adamw_attr *a, const dti_step_run *r);
    void (*sgd)(const dti_sgd_attr *a, const dti_step_run *r);
    void (*squares)(const float *x, int64_t first, int64_t n, dti_found_squares *sum);
} dti_step_ops;

extern const dti_step_ops dti_steps_portable;
#ifdef DT_HAVE_X86_KERNELS
extern const dti_step_ops dti_steps_avx2;
extern const dti_step_ops dti_steps_avx512;
#endif

#endif
