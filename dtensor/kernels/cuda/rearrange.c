/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators that move elements and do not change them, as copies of strided boxes: permute, concat,
 * pad. */
#include "dtensor/device/cuda/module_parts.h"
#include "dtensor/kernels/cuda/cuda_internal.h"
#include "dtensor/kernels/cuda/cuda_rows.h"

#define ROW(row) int dti_##row##_cuda(dti_cuda *c, const dt_kargs *args);
DTI_CUDA_ROWS(ROW)
#undef ROW

/* All of x, which lies row-major. */
static dti_cuda_box box_of(const dt_local *x)
{
    dti_cuda_box box = { .n_axes = x->n_axes };
    int64_t n = 1;

    for (int a = x->n_axes - 1; a >= 0; a--) {
        box.extent[a] = x->shape[a];
        box.stride[a] = n;
        n *= x->shape[a];
    }
    return box;
}

int dti_permute_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dti_permute_attr *attr = a->attr;
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const dti_cuda_box whole = box_of(x), to = box_of(y);
    dti_cuda_box from = to;

    for (int b = 0; b < y->n_axes; b++) from.stride[b] = whole.stride[attr->axis[b]];
    return dti_cuda_copy_box(c, y->data, &to, x->data, &from, dti_cuda_dtype_bytes((int)x->dtype));
}

/* Rows 0 .. count - 1 of x's axis become rows `at` and following of y's, from row `first` on. */
static int copy_rows(dti_cuda *c, const dt_local *y, int64_t at, const dt_local *x, int64_t first,
                     int64_t count, int axis)
{
    dti_cuda_box to = box_of(y), from = box_of(x);

    to.offset = at * to.stride[axis];
    from.offset = first * from.stride[axis];
    to.extent[axis] = from.extent[axis] = count;
    return dti_cuda_copy_box(c, y->data, &to, x->data, &from, dti_cuda_dtype_bytes((int)x->dtype));
}

int dti_concat_cuda(dti_cuda *c, const dt_kargs *a)
{
    const int axis = ((const dti_concat_attr *)a->attr)->axis;
    int64_t at = 0;

    for (int i = 0; i < a->n_in; i++) {
        const int64_t count = a->in[i].shape[axis];
        if (count > 0 && copy_rows(c, &a->out[0], at, &a->in[i], 0, count, axis) != 0) return -1;
        at += count;
    }
    return 0;
}

int dti_pad_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dti_pad_attr *attr = a->attr;
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const int axis = attr->axis;
    const int64_t from = y->offset[axis] - attr->before - x->offset[axis];
    const int64_t first = from > 0 ? from : 0, at = first - from;
    int64_t count = x->shape[axis] - first;

    if (count > y->shape[axis] - at) count = y->shape[axis] - at;
    if (dti_cuda_fill(c, y->data, dti_cuda_count(y), &attr->bits,
                      dti_cuda_dtype_bytes((int)y->dtype)))
        return -1;
    return count > 0 ? copy_rows(c, y, at, x, first, count, axis) : 0;
}
