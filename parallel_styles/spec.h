/* SPDX-License-Identifier: Apache-2.0
 *
 * What a spec says of its layer's parameters, before there is a layer. */
#ifndef DTI_SPEC_H
#define DTI_SPEC_H

#include <dtensor/parallel_styles.h>

/* 0, 1 or 2; a layer that is tied counts the weight it shares. */
int dti_spec_n_params(const dt_layer_spec *spec);

/* Names, axes and heads of parameter DT_PARAM_WEIGHT or DT_PARAM_BIAS. */
dt_param_info dti_spec_param(const dt_layer_spec *spec, int param);

#endif
