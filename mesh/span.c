/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/span.h"

void dti_span_add(dti_span *s, int size, int stride)
{
    if (size == 1) return;
    if (s->n > 0 && (int64_t)size * stride == s->stride[s->n - 1]) {
        s->size[s->n - 1] *= size;
        s->stride[s->n - 1] = stride;
        return;
    }
    DT_ASSERT(s->n < DTI_SPAN_MAX);
    s->size[s->n] = size;
    s->stride[s->n++] = stride;
}

void dti_span_join(dti_span *s, const dti_span *inner)
{
    for (int k = 0; k < inner->n; k++) dti_span_add(s, inner->size[k], inner->stride[k]);
}

int dti_span_count(const dti_span *s)
{
    int count = 1;

    for (int k = 0; k < s->n; k++) count *= s->size[k];
    return count;
}

int dti_span_place(const dti_span *s, int i)
{
    int place = 0;

    for (int k = s->n - 1; k >= 0; k--) {
        place += i % s->size[k] * s->stride[k];
        i /= s->size[k];
    }
    return place;
}

/* Pairs in order of falling stride. */
static void by_stride(const dti_span *s, int *order)
{
    for (int k = 0; k < s->n; k++) {
        int at = k;
        for (; at > 0 && s->stride[order[at - 1]] < s->stride[k]; at--) order[at] = order[at - 1];
        order[at] = k;
    }
}

bool dti_span_overlaps(const dti_span *s)
{
    int order[DTI_SPAN_MAX];

    by_stride(s, order);
    for (int k = 0; k + 1 < s->n; k++) {
        const int low = order[k + 1];
        if (s->stride[order[k]] < (int64_t)s->size[low] * s->stride[low]) return true;
    }
    return s->n > 0 && s->stride[order[s->n - 1]] < 1;
}

bool dti_span_find(const dti_span *s, int place, int *i)
{
    int order[DTI_SPAN_MAX], at[DTI_SPAN_MAX];

    if (place < 0 || dti_span_overlaps(s)) return false;
    by_stride(s, order);
    for (int k = 0; k < s->n; k++) {
        const int pair = order[k];
        at[pair] = place / s->stride[pair];
        if (at[pair] >= s->size[pair]) return false;
        place -= at[pair] * s->stride[pair];
    }
    *i = 0;
    for (int k = 0; k < s->n; k++) *i = *i * s->size[k] + at[k];
    return place == 0;
}

bool dti_span_pick(const dti_span *of, int size, int stride, dti_span *out)
{
    dti_span inside_out = { 0 };

    for (int k = of->n - 1; k >= 0 && size > 1; k--) {
        int room, take;
        if (stride >= of->size[k]) { /* a step leads past this pair */
            if (stride % of->size[k] != 0) return false;
            stride /= of->size[k];
            continue;
        }
        if (of->size[k] % stride != 0) return false;
        room = of->size[k] / stride;
        take = size < room ? size : room;
        if (size % take != 0) return false;
        inside_out.size[inside_out.n] = take;
        inside_out.stride[inside_out.n++] = of->stride[k] * stride;
        size /= take;
        stride = 1;
    }
    *out = (dti_span){ 0 };
    for (int k = inside_out.n - 1; k >= 0; k--)
        dti_span_add(out, inside_out.size[k], inside_out.stride[k]);
    return size == 1;
}
