/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/expert_report.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/print_report.h"

static bool has_experts(dt_layers *layers)
{
    for (int i = 0; i < dt_layers_count(layers); i++)
        if (dt_layer_kind_of(dt_layers_at(layers, i))->run_by != NULL) return true;
    return false;
}

dt_status cli_loads_begin(dt_model *model)
{
    const char *device = dt_device_of(dt_mesh_runtime(dt_model_mesh(model)));
    dt_layers *layers = dt_model_layers(model);

    if (device == NULL || strcmp(device, "cpu") != 0 || !has_experts(layers)) return DT_OK;
    DT_TRY(dt_layers_count_experts(layers, true));
    return DT_OK;
}

dt_status cli_loads_sum(dt_model *model, dt_expert_load *worst)
{
    dt_layers *layers = dt_model_layers(model);
    dt_expert_load load;

    *worst = (dt_expert_load){ .n_experts = 0 };
    if (!dt_layers_expert_load(layers, 0, &load)) return DT_OK;
    DT_TRY(dt_layers_sum_experts(layers));
    for (int i = 0; dt_layers_expert_load(layers, i, &load); i++)
        if (i == 0 || load.imbalance > worst->imbalance) *worst = load;
    return DT_OK;
}

json_t *cli_loads_json(dt_model *model)
{
    dt_layers *layers = dt_model_layers(model);
    json_t *list = NULL;
    dt_expert_load load;

    for (int i = 0; dt_layers_expert_load(layers, i, &load); i++) {
        if (list == NULL) list = json_array();
        (void)json_array_append_new(list, json_pack("{s:s, s:o, s:I}", "layer", load.layer,
                                                    "imbalance", cli_json_number(load.imbalance),
                                                    "unused", (json_int_t)load.unused));
    }
    return list;
}

void cli_loads_print(const dt_expert_load *worst)
{
    if (worst->n_experts == 0) return;
    (void)fprintf(stderr,
                  "experts    the most chosen has %.2f times the mean, %" PRId64 " of %" PRId64
                  " are not chosen (%s, the most uneven)\n",
                  worst->imbalance, worst->unused, worst->n_experts, worst->layer);
}
