/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions of blocks, in the order in which they are handed in. */
#ifndef DTI_REDUCE_H
#define DTI_REDUCE_H

#include "mesh/comm/comm.h"

/* Elements that a reducer takes at a time: they stay in the first cache level. */
enum { DTI_REDUCE_BLOCK = 2048 };

/* Reduces up to DTI_REDUCE_BLOCK elements: first, add for each further source, finish. bf16 and f16
 * accumulate in f32. */
typedef struct dti_reducer {
    dt_dtype dtype;
    dt_reduce op;
    int n_sources;
    void *sum; /* acc, or where the result goes */
    _Alignas(64) unsigned char acc[DTI_REDUCE_BLOCK * 8];
    _Alignas(64) unsigned char half[DTI_REDUCE_BLOCK * 4]; /* a source as f32; the result as half */
} dti_reducer;

void dti_reducer_first(dti_reducer *r, const void *x, int64_t n);
/* The first two at once. The result may be made in its place `to`, which is none of the sources;
 * NULL: in the reducer. */
void dti_reducer_first_two(dti_reducer *r, void *to, const void *x, const void *y, int64_t n);
void dti_reducer_add(dti_reducer *r, const void *x, int64_t n);
const void *dti_reducer_finish(dti_reducer *r, int64_t n); /* n elements of the dtype */

/* Sums of sums: what a reducer has in `sum` is of this dtype; acc[i] = acc[i] (op) x[i] adds two
 * of them, of any number n. DT_AVG adds; who finishes such a sum sets n_sources. */
dt_dtype dti_reduce_dtype(dt_dtype dtype);
void dti_reduce_into(void *acc, const void *x, int64_t n, dt_dtype t, dt_reduce op);

/* Terms in boxes of equal extents, one of each source; a source is a buffer and the box in it. */
typedef struct dti_box_terms {
    dt_dtype dtype;
    dt_reduce op;
    int n_sources; /* at least 2 */
    const void *(*source)(const void *arg, int source, const dti_box **box);
    const void *arg;
    bool stream; /* results go past the caches: dti_copy_finish() before anybody is told */
    int64_t
        row; /* found by dti_box_terms_look(): elements side by side in the boxes of all sources;
                  * 0 if these have different strides, or no elements */
    dti_box rows;
} dti_box_terms;

void dti_box_terms_look(dti_box_terms *terms);

/* Elements [begin, end) of the boxes in row-major order, reduced in the order of sources; element 0
 * belongs at `to`. No source overlaps `to`. */
void dti_reduce_boxes(const dti_box_terms *terms, void *to, int64_t begin, int64_t end);

#endif
