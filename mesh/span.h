/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout algebra of meshes: which places of a list of ranks a mesh dim runs through, as nested
 * (size, stride) pairs, outermost first, like the layouts of CuTe. Sizes (2, 3) with strides (6, 1)
 * are the places 0 1 2 6 7 8. Slices, flattened and split dims are spans of one list of ranks, so
 * they copy nothing and can be joined again. */
#ifndef DTI_SPAN_H
#define DTI_SPAN_H

#include "base/error.h"

/* Pairs have sizes of at least 2, and a mesh has less than 2^31 ranks. */
enum { DTI_SPAN_MAX = 31 };

/* Coalesced: no pair of size 1, and none that continues the one before it. No pair is one place. */
typedef struct dti_span {
    int n;
    int size[DTI_SPAN_MAX];
    int stride[DTI_SPAN_MAX];
} dti_span;

/* Adds a pair inside those that are there. */
void dti_span_add(dti_span *span, int size, int stride);

int dti_span_count(const dti_span *span);        /* number of places */
int dti_span_place(const dti_span *span, int i); /* the i-th, 0 <= i < count */

/* The pairs of `inner` nested inside those of `span`. */
void dti_span_join(dti_span *span, const dti_span *inner);

/* Finds the index of `place`. False if the span does not run through it, or overlaps itself. */
bool dti_span_find(const dti_span *span, int place, int *i);

/* True if two indices could fall on one place: sorted by stride, a pair begins before the one below
 * it ends. Stricter than distinct places, (3, 2) with strides (2, 3) is refused, because a place is
 * then no longer found by division. */
bool dti_span_overlaps(const dti_span *span);

/* Every `stride`-th place of `of`, `size` of them. False if pairs of `of` would be cut apart. */
bool dti_span_pick(const dti_span *of, int size, int stride, dti_span *out);

#endif
