/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of few bits: from files that have them, or made of a plain weight. */
#ifndef DTI_PACKED_PARAMS_H
#define DTI_PACKED_PARAMS_H

#include "dtensor/host.h"
#include "weights/param_tensors.h"

/* What the parameters of a packed layer are read from. */
typedef struct dti_packed_source {
    const struct dti_ckpt *ckpt;
    const struct dti_st_stage *stage;
    const dti_param_tensor *codes;          /* or the weight that codes are made of */
    const dti_param_tensor *scales, *zeros; /* NULL: the files have none */
    const dti_param_tensor *order;          /* g_idx, or NULL */
} dti_packed_source;

/* Rows of the kind's table. */
enum {
    DTI_PACKED_CODES = DT_PARAM_WEIGHT,
    DTI_PACKED_SCALES = 2,
    DTI_PACKED_ZEROS = 3,
    DTI_PACKED_PARTS = 4
};

/* A layer's parameters on their way; part[i] NULL: it has none. */
typedef struct dti_packed_layer {
    const dt_layer *layer;
    dt_packing packing;
    dt_tensor *part[DTI_PACKED_PARTS];
    dti_host host[DTI_PACKED_PARTS];
} dti_packed_layer;

/* From files that have packed weights (packed_files.c). Errors as dti_read_packed(). */
dt_status dti_packed_from_files(dti_packed_layer *l, const dti_packed_source *from) DT_MUST_USE;

/* Gives a layer of packed weights codes, scales (of `dtype`) and zero points, on every rank those
 * of its piece. Errors as dt_layers_read(); DT_ERR_FORMAT for weights that are no numbers. */
dt_status dti_read_packed(dt_layer *layer, const dti_packed_source *from,
                          dt_dtype dtype) DT_MUST_USE;

#endif
