/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a machine has room for the values of layers. The system gives out more memory than it
 * has, and ends who uses it: so what cannot be is refused before. */
#include <math.h>

#include "base/memory.h"
#include "base/text.h"
#include "dtensor/device/device.h"
#include "mesh/runtime.h"
#include "parallel_styles/changes.h"
#include "parallel_styles/kind.h"
#include "weights/read_layers.h"

/* Bytes of this rank's piece; 0 where there is none. */
static int64_t local_bytes(const dt_layer *layer, int param, dt_dtype dtype)
{
    const dt_mesh *mesh = dt_layer_mesh(layer);
    const dt_param_info info = dt_layer_param_info(layer, param);
    int64_t shape[DT_PARAM_MAX_AXES], bytes = 0;
    int coord[DT_MAX_DIMS];

    if (!dt_mesh_is_member(mesh) || !dt_layer_holds_param(layer, param)) return 0;
    if (dti_layer_memory(layer) != NULL) return 0; /* elsewhere */
    for (int a = 0; a < info.n_axes; a++) shape[a] = info.axis[a].extent;
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) coord[m] = dt_mesh_coord(mesh, m);
    return dt_layout_bytes(dt_layer_param_layout(layer, param), shape, coord,
                           dti_param_dtype(&info, dtype), &bytes) == DT_OK
               ? bytes
               : INT64_MAX;
}

dt_status dti_layers_check_room(dt_layers *layers, dt_dtype dtype)
{
    dt_runtime *rt = dt_mesh_runtime(dt_layers_mesh(layers));
    const int ranks = dt_runtime_size(rt) / (dt_launch_size() > 1 ? dt_launch_size() : 1);
    const int64_t memory = dti_machine_memory();
    char need[DTI_NUMBER_BYTES], have[DTI_NUMBER_BYTES];
    dti_device *device;
    double bytes = 0;

    DT_TRY(dti_device_of(rt, &device));
    if (device->dry || !device->ops->host_visible || memory == 0) return DT_OK;
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            bytes += (double)local_bytes(layer, p, dtype);
    }
    bytes *= ranks > 1 ? ranks : 1;
    DT_CHECK(bytes <= (double)memory, DT_ERR_MEMORY,
             "the weights need %s in %s for %d rank%s, this machine has %s: run on more machines, "
             "or in a narrower dtype",
             dti_bytes_text((int64_t)fmin(bytes, 9e18), need), dt_dtype_name(dtype),
             ranks > 1 ? ranks : 1, ranks > 1 ? "s" : "", dti_bytes_text(memory, have));
    return DT_OK;
}
