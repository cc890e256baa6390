/* SPDX-License-Identifier: Apache-2.0 */
#include "models/judge/least_work.h"

#include <stdio.h>
#include <string.h>

#include "dtensor/kernels/attrs.h"
#include "files/folder.h"

dt_status dti_work_experts(const char *folder, int64_t *chosen)
{
    char path[DTI_PATH_BYTES];
    dti_json_doc doc = { 0 };
    dt_status st;

    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    DT_TRY(dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc));
    st = dti_json_int_or(&doc.root, "num_experts_per_tok", 0, 1, INT32_MAX, chosen);
    dti_json_free(&doc);
    return st;
}

int64_t dti_work_param_bytes(const dt_layer *layer, int param, int64_t chosen)
{
    const dt_layer_kind *kind = dt_layer_kind_of(layer);
    const dt_local *x = dt_tensor_local(dt_layer_param(layer, param));
    int64_t n;

    if (x == NULL || kind->ids) return 0; /* rows of a table */
    n = (int64_t)dt_dtype_size(x->dtype);
    for (int a = 0; a < x->n_axes; a++) n *= x->shape[a];
    if (kind->picks != 0 && chosen > 0) n = n / dt_layer_extent(layer, kind->picks) * chosen;
    return n;
}

int64_t dti_work_token_bytes(dt_model *model, int64_t chosen)
{
    dt_layers *layers = dt_model_layers(model);
    int64_t bytes = 0;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            bytes += dti_work_param_bytes(layer, p, chosen);
    }
    return bytes;
}

dt_status dti_work_attention(const dt_model_info *info, int64_t n, double *flops)
{
    const int64_t h = info->n_heads, kv = info->n_kv_heads, e = info->head_dim;
    const dti_attention_attr attr = { .n_heads = h, .n_kv_heads = kv };
    dt_op_shapes call = { .op = dt_op_find("attention"),
                          .attr = &attr,
                          .n_in = 4,
                          .in = { { DT_F32, 4, { 1, n, h, e } },
                                  { DT_F32, 4, { 1, n, kv, e } },
                                  { DT_F32, 4, { 1, n, kv, e } },
                                  { DT_I32, 2, { 1, n } } } };
    dt_op_work work;

    DT_TRY(dt_op_work_of(&call, &work));
    *flops = work.flops * (double)info->n_layers;
    return DT_OK;
}

dt_status dti_work_prompt(dt_model *model, int64_t n, int64_t n_logits, int64_t chosen,
                          double *flops)
{
    dt_layers *layers = dt_model_layers(model);

    DT_TRY(dti_work_attention(dt_model_info_of(model), n, flops));
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        const bool picks = dt_layer_kind_of(layer)->picks != 0; /* experts: for each of them */
        const bool last = strcmp(dt_layer_name(layer), "lm_head") == 0;
        *flops += dt_layer_flops(layer) * (picks  ? (double)(chosen * n)
                                           : last ? (double)n_logits
                                                  : (double)n);
    }
    return DT_OK;
}
