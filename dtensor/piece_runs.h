/* SPDX-License-Identifier: Apache-2.0
 *
 * Which elements of the whole tensor a rank's piece has, in the piece's order. */
#ifndef DTI_PIECE_RUNS_H
#define DTI_PIECE_RUNS_H

#include "dtensor/tensor_internal.h"

/* Axes behind `axis` are whole, so neighbours come `inner` at a time, and in runs of rows. */
typedef struct dti_piece_map {
    const dt_tensor *x;
    int axis; /* -1: the piece is all */
    int64_t inner;
    dti_runs runs[DT_MAX_AXES]; /* rows of axes 0 .. axis */
} dti_piece_map;

dti_piece_map dti_piece_of(const dt_tensor *x);

/* Global index of local row-major element i, and how many neighbours follow it up to the end of its
 * run, itself included. */
int64_t dti_piece_global_run(const dti_piece_map *p, int64_t i, int64_t *left);

/* The box of the whole that local element i lies in, which elements of the piece fill in order; its
 * last axis has stride 1. *skip: of them before i, *left: from i on. Where only axis 0 is packed or
 * none is, boxes are few: as many as axis 0 has runs. */
dti_box dti_piece_box(const dti_piece_map *p, int64_t i, int64_t *skip, int64_t *left);

#endif
