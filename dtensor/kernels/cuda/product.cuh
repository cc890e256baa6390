/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels of products share: y [m, n] = x [m, k] w [n, k]^T (+ bias [n]), of one matrix w
 * or, for experts, of one per group of rows. */
#ifndef DTI_PRODUCT_CUH
#define DTI_PRODUCT_CUH

#include "dtensor/kernels/cuda/mma.cuh"
#include "dtensor/kernels/cuda/product.h"

/* What a block computes: rows row .. row + n_rows - 1 of y with matrix `group` of w. */
typedef struct dti_row_range {
    int64_t row;
    int n_rows, group;
} dti_row_range;

/* The rows of tile i, `per_tile` each; false: there is no such tile. */
static __device__ inline bool dti_find_rows(const dti_product_job &p, int i, int per_tile,
                                            dti_row_range *out)
{
    if (p.groups.tiles != NULL) {
        if (i >= *p.groups.n_tiles) return false;
        const dti_row_tile tile = p.groups.tiles[i];
        out->row = tile.row;
        out->n_rows = tile.n_rows;
        out->group = tile.group;
        return true;
    }
    out->row = (int64_t)i * per_tile;
    out->n_rows = (int)(p.m - out->row < per_tile ? p.m - out->row : per_tile);
    out->group = 0;
    return true;
}

/* The row of x that row r of y is a product of. */
static __device__ inline int64_t dti_x_row(const dti_product_job &p, int64_t r)
{
    return p.groups.slots == NULL ? r : p.groups.slots[r] / p.groups.n_slots;
}

/* y[row, o] = sum + bias[o], rounded once. */
template <typename T>
static __device__ inline void dti_store_sum(const dti_product_job &p, int64_t row, int64_t o,
                                            float sum)
{
    if (p.bias != NULL) sum += dti_widen(static_cast<const T *>(p.bias)[o]);
    if (p.f32_out)
        static_cast<float *>(p.y)[row * p.n + o] = sum;
    else
        dti_narrow(static_cast<T *>(p.y) + row * p.n + o, sum);
}

#endif
