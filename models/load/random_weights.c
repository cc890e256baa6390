/* SPDX-License-Identifier: Apache-2.0
 *
 * Models with random weights. */
#include <dtensor/factories.h>

#include "mesh/runtime.h"
#include "models/judge/judge.h"
#include "models/load/load.h"
#include "weights/read_layers.h"

static const double INITIALIZER_RANGE = 0.02;

/* `arg` is the generator: layers come in the same order on all ranks. */
static dt_status fill_param(void *arg, const dt_layer *layer, int param, dt_tensor *x)
{
    const dt_random key = dt_random_next(arg);
    const dt_param_info info = dt_layer_param_info(layer, param);
    const dt_begins begins = dt_layer_kind_of(layer)->params[param].begins;

    if (info.packed != DT_PACKED_NOT) return dti_fill_packed(&info, x, key);
    if (begins == DT_BEGINS_RANDOM) DT_TRY(dt_fill_randn(x, key, 0.0, INITIALIZER_RANGE));
    if (begins == DT_BEGINS_ONES) DT_TRY(dt_fill(x, 1.0));
    return DT_OK;
}

dt_status dt_model_create_random(dt_mesh *mesh, const char *dir, const dt_load_options *options,
                                 uint64_t seed, dt_model **out)
{
    dt_load_options own;
    dt_random generator = { .seed = seed };
    const dti_filler fill = { fill_param, &generator };
    dti_described d = { 0 };
    dt_status st = DT_OK;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && dir != NULL, DT_ERR_ARG, "mesh or dir is NULL");
    DT_TRY_TO(done, st, dti_describe_load(mesh, dir, options, &own, &d));
    DT_TRY_TO(done, st, dti_judge_together(mesh, dir, &d, &own));
    DT_TRY_TO(done, st, dti_model_make_whole(&d, mesh, &own, &fill, out));
done:
    dti_described_free(&d);
    return dti_runtime_alone(dt_mesh_runtime(mesh), st);
}
