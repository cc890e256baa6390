/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel_styles/spec.h"

int dti_spec_n_params(const dt_layer_spec *spec)
{
    switch (spec->kind) {
    case DT_LAYER_LINEAR:
        return spec->bias ? 2 : 1;
    case DT_LAYER_EMBEDDING:
    case DT_LAYER_RMS_NORM:
        return 1;
    case DT_LAYER_LAYER_NORM:
        return 2;
    default:
        return 0;
    }
}

dt_param_info dti_spec_param(const dt_layer_spec *spec, int param)
{
    const bool matrix = spec->kind == DT_LAYER_LINEAR || spec->kind == DT_LAYER_EMBEDDING;
    dt_param_info info = { .layer = spec->name,
                           .name = param == DT_PARAM_BIAS ? "bias" : "weight",
                           .kind = spec->kind,
                           .n_axes = 1,
                           .axis = { spec->axis[0] },
                           .heads = spec->heads,
                           .blocks = { spec->blocks[0] },
                           .reversed = spec->reversed && matrix && param == DT_PARAM_WEIGHT };

    if (matrix && param == DT_PARAM_WEIGHT) {
        info.n_axes = 2;
        info.axis[1] = spec->axis[1];
        info.blocks[1] = spec->blocks[1];
    }
    return info;
}
