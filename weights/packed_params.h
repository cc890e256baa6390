/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of few bits: from files that have them, or made of a plain weight. */
#ifndef DTI_PACKED_PARAMS_H
#define DTI_PACKED_PARAMS_H

#include "weights/param_tensors.h"

/* What the parameters of a packed layer are read from: every tensor of any of them. */
typedef struct dti_packed_source {
    const struct dti_ckpt *ckpt;
    const struct dti_st_stage *stage;
    const dti_param_tensor *tensors;
    size_t n;
} dti_packed_source;

/* Some outputs and whole groups of inputs of one matrix of a layer, of which experts have one each
 * or two, gate and up; and where their codes, scales and zero points go, rows behind each other. */
typedef struct dti_packed_box {
    const dti_packed_source *from;
    const dt_packing *packing;
    bool reversed;           /* a plain weight's axes stand the other way round in the file */
    int64_t expert, first;   /* the matrix has the layer's outputs from `first` on */
    int64_t row, n_rows;     /* of the matrix */
    int64_t input, n_inputs; /* inputs */
    uint8_t *codes;          /* rows are codes_step bytes apart, 4 divides them */
    int64_t codes_step;
    void *scales; /* of scales_dtype, rows are groups_step elements apart */
    dt_dtype scales_dtype;
    uint8_t *zeros; /* as scales; NULL: there are none */
    int64_t groups_step;
} dti_packed_box;

/* The tensor that holds a part of the box's matrix, or, with DT_PACKED_NOT, the weight that is to
 * be packed; NULL: there is none. */
const dti_param_tensor *dti_packed_tensor(const dti_packed_box *b, dt_packed part);

/* From files that have packed weights (packed_files.c). Errors as dti_read_packed(). */
dt_status dti_packed_from_files(const dti_packed_box *b) DT_MUST_USE;

/* Gives a layer of packed weights codes, scales (of `dtype`) and zero points, on every rank those
 * of its piece. Errors as dt_layers_read(); DT_ERR_FORMAT for weights that are no numbers. */
dt_status dti_read_packed(dt_layer *layer, const dti_packed_source *from,
                          dt_dtype dtype) DT_MUST_USE;

#endif
