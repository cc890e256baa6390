/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows two pieces share, and where those lie in both: what one rank sends another. A piece is
 * a contiguous row-major buffer; where a layout is packed, an axis of it is several runs of global
 * rows, and what two pieces share is several boxes. */
#ifndef DTI_OVERLAP_H
#define DTI_OVERLAP_H

#include "mesh/comm/comm.h"
#include "placements/layout.h"

enum { DTI_MAX_SHARED = 2 * DT_MAX_RUNS };

/* Rows that follow each other in both pieces. */
typedef struct dti_shared {
    int64_t from; /* row of the sender's piece */
    int64_t to;   /* row of the receiver's piece */
    int64_t length;
} dti_shared;

/* The boxes are the products of one entry per axis. */
typedef struct dti_overlap {
    int n_axes;
    int n_boxes;                    /* 0: nothing in common */
    int64_t count;                  /* elements of all boxes together */
    int64_t from_rows[DT_MAX_AXES]; /* extents of the sender's piece */
    int64_t to_rows[DT_MAX_AXES];   /* and of the receiver's */
    int n[DT_MAX_AXES];
    dti_shared shared[DT_MAX_AXES][DTI_MAX_SHARED];
} dti_overlap;

/* What the rank at `from_coord` under `from` and the one at `to_coord` under `to` have in common.
 * The layouts may belong to different grids. Returns n_boxes > 0. */
bool dti_overlap_of(const dt_layout *from, const int *from_coord, const dt_layout *to,
                    const int *to_coord, const int64_t *shape, dti_overlap *out);

/* Box i in both buffers, of equal extents, in the order in which boxes are sent. */
void dti_overlap_box(const dti_overlap *o, int i, dti_box *sent, dti_box *received);

/* How many elements they have in common: dti_overlap_of() without the boxes. */
int64_t dti_overlap_count(const dt_layout *from, const int *from_coord, const dt_layout *to,
                          const int *to_coord, const int64_t *shape);

/* The same for one axis: rows. */
int64_t dti_overlap_rows(const dt_layout *from, const int *from_coord, const dt_layout *to,
                         const int *to_coord, int axis, int64_t extent);

/* Elements of a piece. */
int64_t dti_piece_count(const dt_layout *l, const int *coord, const int64_t *shape);

/* A box without elements. A box without axes is one element, so this has an axis of extent 0. */
dti_box dti_box_empty(void);

#endif
