/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of few bits: from files that have them, or made of a plain weight. */
#ifndef DTI_PACKED_PARAMS_H
#define DTI_PACKED_PARAMS_H

#include "weights/param_tensors.h"

/* What the parameters of a packed layer are read from: the tensors that its codes are made of. */
typedef struct dti_packed_source {
    const struct dti_ckpt *ckpt;
    const dt_spelling *spellings;
    const dti_param_tensor *tensors;
    size_t n_tensors;
    const struct dti_st_stage *stage;
} dti_packed_source;

/* Gives a layer of packed weights codes, scales (of `dtype`) and zero points, on every rank those
 * of its piece. Errors as dt_layers_read(); DT_ERR_FORMAT for weights that are no numbers. */
dt_status dti_read_packed(dt_layers *layers, dt_layer *layer, const dti_packed_source *from,
                          dt_dtype dtype) DT_MUST_USE;

#endif
