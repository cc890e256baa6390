/* SPDX-License-Identifier: Apache-2.0
 *
 * Activations by the names that configurations use (transformers/activations.py, ACT2FN). "prelu"
 * and "xielu" have weights of their own and are no function of one value alone. */
#include <string.h>

#include "dtensor/ops/op_rules.h"
#include "dtensor/tape.h"

static const dt_activation activations[] = {
    { "gelu", &dti_op_gelu, NULL },
    { "gelu_10", &dti_op_gelu_10, NULL },
    { "gelu_accurate", &dti_op_gelu_new, NULL },
    { "gelu_fast", &dti_op_gelu_fast, NULL },
    { "gelu_new", &dti_op_gelu_new, NULL },
    { "gelu_python", &dti_op_gelu_python, NULL },
    { "gelu_python_tanh", &dti_op_gelu_new, NULL },
    { "gelu_pytorch_tanh", &dti_op_gelu_tanh, &dti_op_gelu_tanh_mul },
    { "hardswish", &dti_op_hardswish, NULL },
    { "laplace", &dti_op_laplace, NULL },
    { "leaky_relu", &dti_op_leaky_relu, NULL },
    { "linear", NULL, &dti_op_mul },
    { "mish", &dti_op_mish, NULL },
    { "quick_gelu", &dti_op_quick_gelu, NULL },
    { "relu", &dti_op_relu, NULL },
    { "relu2", &dti_op_relu2, NULL },
    { "relu6", &dti_op_relu6, NULL },
    { "sigmoid", &dti_op_sigmoid, NULL },
    { "silu", &dti_op_silu, &dti_op_silu_mul },
    { "sqrtsoftplus", &dti_op_sqrtsoftplus, NULL },
    { "swish", &dti_op_silu, &dti_op_silu_mul },
    { "tanh", &dti_op_tanh, NULL },
};

const dt_activation *dt_activation_at(int i)
{
    return i >= 0 && i < (int)DT_COUNT(activations) ? &activations[i] : NULL;
}

const dt_activation *dt_activation_find(const char *name)
{
    for (size_t i = 0; i < DT_COUNT(activations) && name != NULL; i++)
        if (strcmp(activations[i].name, name) == 0) return &activations[i];
    return NULL;
}

dt_tensor *dt_activate(dt_tape *t, const dt_activation *activation, dt_tensor *x)
{
    if (activation == NULL) return dt_tape_fail(t, DT_ERR_ARG, "dt_activate: no activation");
    return activation->row == NULL ? x : dt_apply(t, activation->row, NULL, 1, &x);
}

dt_tensor *dt_activate_mul(dt_tape *t, const dt_activation *activation, dt_tensor *gate,
                           dt_tensor *up)
{
    if (activation != NULL && activation->gated != NULL)
        return dt_apply(t, activation->gated, NULL, 2, (dt_tensor *[]){ gate, up });
    return dt_mul(t, dt_activate(t, activation, gate), up);
}
