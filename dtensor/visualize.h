/* SPDX-License-Identifier: Apache-2.0
 *
 * A table of who owns what, before it is written as text or as SVG. */
#ifndef DTI_VISUALIZE_H
#define DTI_VISUALIZE_H

#include <dtensor/inspect.h>

#include "base/writer.h"
#include "placements/layout.h"

typedef struct dti_picture {
    dt_mesh *mesh;
    const dt_layout *layout;
    int n_ranks;
    int n_drawn; /* 0 to 2 axes */
    int axis[2]; /* tensor axes of rows and columns */
    int64_t extent[2];
    int64_t *edges[2]; /* [n_ranges + 1] where ranges of rows and columns begin and end */
    int n_ranges[2];
    dti_runs *runs; /* [n_ranks, n_drawn] */
    bool *empty;    /* [n_ranks] places that hold nothing */
} dti_picture;

/* Does the rank at `place` hold the element at these global indices of the drawn axes? */
bool dti_picture_holds(const dti_picture *p, int place, int64_t row, int64_t column);

/* The ranks at places that are set in `in`: copies "0,1", terms "0 + 2", "-" for none. */
void dti_picture_ranks(const dti_picture *p, const bool *in, dti_writer *w);

/* "Row 0-3", "Col 7", "axis 2: 0-3": range number `range` of drawn axis i. */
void dti_picture_label(const dti_picture *p, int i, int range, char *text, size_t text_bytes);

/* "S(0)R on dp=2,tp=2, shape [5, 7]" */
void dti_picture_head(const dti_picture *p, const int64_t *shape, dti_writer *w);

/* `in` is room for n_ranks. */
void dti_picture_svg(const dti_picture *p, const int64_t *shape, bool *in, dti_writer *w);

#endif
