/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters as the leaves of gradients. */
#include <dtensor/weights.h>

#include "base/error.h"

dt_status dt_layers_watch(dt_layers *layers, dt_gradients *gradients)
{
    DT_CHECK(layers != NULL && gradients != NULL, DT_ERR_ARG, "layers or gradients is NULL");
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            if (!dt_layer_holds_param(layer, p) || dt_layer_param_info(layer, p).frozen) continue;
            DT_CHECK(dt_layer_param(layer, p) != NULL, DT_ERR_ARG, "%s.%s has no value yet",
                     dt_layer_name(layer), dt_layer_param_info(layer, p).name);
            DT_TRY(dt_gradients_watch(gradients, dt_layer_param(layer, p)));
        }
    }
    return DT_OK;
}
