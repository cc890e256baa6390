/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the operands and results of a fused kernel lie, and whether it may start. Rows one after
 * the other read all of an operand before a later one writes; a fused kernel only promises that of
 * a chain: what its results of one row are made from has been read before they are written. So
 * within a chain a result may lie exactly where an operand or another result does, row on row. What
 * overlaps otherwise, and is written by one of the two, must not be fused. */
#ifndef DTI_CUDA_SPANS_H
#define DTI_CUDA_SPANS_H

#include "dtensor/kernels/cuda/cuda_internal.h"

enum { DTI_MAX_SPANS = 24 };

typedef struct dti_byte_range {
    uintptr_t begin, end;
    int chain; /* -1: of none, as weights, tables and caches are */
    bool written;
} dti_byte_range;

typedef struct dti_spans {
    int n;
    dti_byte_range all[DTI_MAX_SPANS];
} dti_spans;

static inline bool dti_spans_add(dti_spans *s, const dt_local *x, int chain, bool written)
{
    const uintptr_t begin = (uintptr_t)x->data;
    const uintptr_t end =
        begin + (uintptr_t)dti_cuda_count(x) * dti_cuda_dtype_bytes((int)x->dtype);

    if (s->n == DTI_MAX_SPANS) return false;
    for (int i = 0; i < s->n; i++) {
        const dti_byte_range *o = &s->all[i];
        const bool same = chain >= 0 && o->chain == chain && o->begin == begin && o->end == end;
        if (o->begin < end && begin < o->end && !same && (o->written || written)) return false;
    }
    s->all[s->n++] = (dti_byte_range){ begin, end, chain, written };
    return true;
}

/* False: it overlaps what is there, or there are too many; nothing was added then. */
static inline bool dti_spans_read(dti_spans *s, const dt_local *x, int chain)
{
    return dti_spans_add(s, x, chain, false);
}

static inline bool dti_spans_write(dti_spans *s, const dt_local *x, int chain)
{
    return dti_spans_add(s, x, chain, true);
}

#endif
