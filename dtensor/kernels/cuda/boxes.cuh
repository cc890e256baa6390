/* SPDX-License-Identifier: Apache-2.0
 *
 * Strided boxes as rows of neighbours: what is common to copies and sums of boxes. */
#ifndef DTI_BOXES_CUH
#define DTI_BOXES_CUH

#include "dtensor/kernels/cuda/device.cuh"

/* Two boxes of equal extents. A row is what lies side by side in both; rows are counted in
 * row-major order. Empty boxes have no rows. */
typedef struct dti_box_rows {
    int n_axes; /* of rows: the innermost axis may be a part of a row instead */
    int64_t n_rows, row;
    int64_t extent[DTI_CUDA_MAX_AXES];
    int64_t to[DTI_CUDA_MAX_AXES], from[DTI_CUDA_MAX_AXES]; /* strides, in elements */
    int64_t to_first, from_first;
} dti_box_rows;

/* Axes of extent 1 go; an axis whose step is the whole of the next one, in both boxes, becomes one
 * with it; what is left of stride 1 is the row. */
static inline dti_box_rows dti_box_rows_of(const dti_cuda_box *to, const dti_cuda_box *from)
{
    dti_box_rows r = {};
    int n = 0;

    r.n_rows = r.row = 1;
    r.to_first = to->offset;
    r.from_first = from->offset;
    for (int a = 0; a < to->n_axes; a++) {
        const int64_t extent = to->extent[a];
        if (extent == 0) r.n_rows = 0;
        if (extent <= 1) continue;
        if (n > 0 && r.to[n - 1] == extent * to->stride[a] &&
            r.from[n - 1] == extent * from->stride[a])
            r.extent[n - 1] *= extent;
        else
            r.extent[n++] = extent;
        r.to[n - 1] = to->stride[a];
        r.from[n - 1] = from->stride[a];
    }
    if (n > 0 && r.to[n - 1] == 1 && r.from[n - 1] == 1) r.row = r.extent[--n];
    for (int a = 0; a < n; a++) r.n_rows *= r.extent[a];
    r.n_axes = n;
    return r;
}

/* Where row i begins in both boxes. */
static __device__ inline void dti_box_row(const dti_box_rows &r, int64_t i, int64_t *to,
                                          int64_t *from)
{
    int64_t to_at = r.to_first, from_at = r.from_first;

    DTI_UNROLL
    for (int a = DTI_CUDA_MAX_AXES - 1; a >= 0; a--) {
        if (a >= r.n_axes) continue;
        const int64_t k = a > 0 ? i % r.extent[a] : i;
        to_at += k * r.to[a];
        from_at += k * r.from[a];
        if (a > 0) i /= r.extent[a];
    }
    *to = to_at;
    *from = from_at;
}

/* How a block of `threads` divides rows of n items: 2^shift threads beside each other have a row
 * and take up to `each` items of it, further blocks along y the next ones. */
typedef struct dti_row_grid {
    int shift;
    dim3 grid;
} dti_row_grid;

static inline dti_row_grid dti_row_grid_of(int64_t n_rows, int64_t n, int threads, int each)
{
    dti_row_grid g;
    int64_t rows, parts;

    g.shift = 0;
    while ((1 << g.shift) < threads && ((int64_t)1 << g.shift) < n) g.shift++;
    rows = threads >> g.shift;
    rows = (n_rows + rows - 1) / rows;
    parts = (n + ((int64_t)each << g.shift) - 1) / ((int64_t)each << g.shift);
    g.grid = dim3((unsigned)(rows < INT32_MAX ? rows : INT32_MAX),
                  (unsigned)(parts < 65535 ? parts : 65535));
    return g;
}

/* The widest power of two, at most 16, that divides all that were joined into `bits` by |. */
static inline int dti_unit_of(uint64_t bits)
{
    return (int)((bits | 16) & (~(bits | 16) + 1));
}

#endif
