/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel_styles/spec.h"

int dti_spec_n_params(const dt_layer_spec *spec)
{
    switch (spec->kind) {
    case DT_LAYER_LINEAR:
        return spec->bias ? 2 : 1;
    case DT_LAYER_EMBEDDING:
    case DT_LAYER_RMS_NORM:
    case DT_LAYER_EXPERTS:
        return 1;
    case DT_LAYER_LAYER_NORM:
        return 2;
    default:
        return 0;
    }
}

/* Axis `to` of the parameter is axis `from` of the layer. */
static void set_axis(dt_param_info *info, int to, const dt_layer_spec *spec, int from)
{
    info->axis[to] = spec->axis[from];
    info->blocks[to] = spec->blocks[from];
    info->n_axes = to + 1;
}

dt_param_info dti_spec_param(const dt_layer_spec *spec, int param)
{
    const bool matrix = spec->kind == DT_LAYER_LINEAR || spec->kind == DT_LAYER_EMBEDDING ||
                        spec->kind == DT_LAYER_EXPERTS;
    dt_param_info info = { .layer = spec->name,
                           .name = param == DT_PARAM_BIAS ? "bias" : "weight",
                           .kind = spec->kind,
                           .heads = spec->heads,
                           .parts = { spec->parts[0], spec->parts[1] },
                           .reversed = spec->reversed && matrix && param == DT_PARAM_WEIGHT };
    int first = 0;

    if (spec->kind == DT_LAYER_EXPERTS) {
        info.axis[0] = (dt_axis){ spec->n_experts, DT_UNIT_ROW };
        first = 1;
    }
    set_axis(&info, first, spec, 0);
    if (matrix && param == DT_PARAM_WEIGHT) set_axis(&info, first + 1, spec, 1);
    return info;
}
