/* SPDX-License-Identifier: Apache-2.0
 *
 * Giving layers their values, one parameter after the other. */
#ifndef DTI_READ_LAYERS_H
#define DTI_READ_LAYERS_H

#include <dtensor/factories.h>
#include <dtensor/weights.h>

#include "files/checkpoint.h"

/* What the parameters of a list are read from. */
typedef struct dti_weights_source {
    const dti_ckpt *ckpt;
    const dt_spelling *spellings;
    bool keep_dtype; /* each parameter as its file has it */
    dt_dtype dtype;  /* otherwise */
    dt_progress_fn progress;
    void *progress_arg;
    int64_t total; /* bytes, for progress */
    uint64_t seed; /* of adapters that are not there */
} dti_weights_source;

/* Reads every parameter; all tensors have been looked up before. Errors as dt_layers_read(). */
dt_status dti_layers_read(dt_layers *layers, const dti_weights_source *from) DT_MUST_USE;

/* Gives a parameter what it begins with where no file and no rule says more (init_layers.c). */
dt_status dti_param_begin(const dt_layer *layer, int param, dt_tensor *x,
                          uint64_t seed) DT_MUST_USE;

/* Gives a part of a packed weight values, so that weights deviate as those of Transformers do. */
dt_status dti_fill_packed(const dt_param_info *info, dt_tensor *x, dt_random key) DT_MUST_USE;

/* A parameter of zeros that lies as the layer's styles say; the layer does not have it yet. */
dt_status dti_make_param(const dt_layer *layer, int param, dt_dtype dtype,
                         dt_tensor **out) DT_MUST_USE;

/* Gives a zeroed parameter its values. */
typedef struct dti_filler {
    dt_status (*fn)(void *arg, const dt_layer *layer, int param, dt_tensor *x);
    void *arg;
} dti_filler;

/* DT_ERR_MEMORY where this process' ranks will hold more values in `dtype` than the machine has
 * memory for. */
dt_status dti_layers_check_room(dt_layers *layers, dt_dtype dtype) DT_MUST_USE;

/* Makes every parameter anew and lets `fill` give it values; NULL: zeros. */
dt_status dti_layers_fill(dt_layers *layers, dt_dtype dtype, const dti_filler *fill) DT_MUST_USE;

#endif
