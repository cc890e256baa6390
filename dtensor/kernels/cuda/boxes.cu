/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between strided boxes, parts of axes, which are boxes, and fills. */
#include "dtensor/kernels/cuda/moves.cuh"

namespace
{

/* from NULL: the box becomes zeros. */
struct box_places {
    char *to;
    const char *from;
    int64_t bytes; /* of an element */
    dti_box_rows rows;

    __device__ place operator()(int64_t i) const
    {
        int64_t to_at, from_at;
        place p;

        dti_box_row(rows, i, &to_at, &from_at);
        p.to = to + to_at * bytes;
        p.from = from == NULL ? NULL : from + from_at * bytes;
        return p;
    }
};

int move_box(dti_cuda *c, void *to, const dti_cuda_box *to_box, const void *from,
             const dti_cuda_box *from_box, int64_t bytes)
{
    const box_places places = { (char *)to, (const char *)from, bytes,
                                dti_box_rows_of(to_box, from_box) };
    const dti_box_rows *r = &places.rows;
    uint64_t all = (uint64_t)(r->to_first | r->from_first | r->row);

    for (int a = 0; a < r->n_axes; a++) all |= (uint64_t)(r->to[a] | r->from[a]);
    all *= (uint64_t)bytes; /* bytes is a power of two: what divided all still does */
    return move(c, places, r->n_rows, r->row * bytes,
                dti_unit_of(all | bits_of(to) | bits_of(from)));
}

/* x [outer, n, inner] of an axis. */
struct axis_view {
    int64_t outer, n, inner;
};

axis_view view_of(const dt_local *x, int64_t axis)
{
    axis_view v = { 1, x->shape[axis], 1 };

    for (int a = 0; a < x->n_axes; a++)
        if (a != axis) *(a < axis ? &v.outer : &v.inner) *= x->shape[a];
    return v;
}

/* Rows at..at + count - 1 of each of v.outer, where n of them lie behind each other. */
dti_cuda_box rows_box(axis_view v, int64_t n, int64_t at, int64_t count)
{
    dti_cuda_box box = {};

    box.n_axes = 2;
    box.offset = at * v.inner;
    box.extent[0] = v.outer;
    box.extent[1] = count * v.inner;
    box.stride[0] = n * v.inner;
    box.stride[1] = 1;
    return box;
}

/* Rows at.. of n that lie behind each other; data NULL: zeros. */
struct axis_rows {
    void *data;
    int64_t n, at;
};

int move_axis(dti_cuda *c, const axis_view &v, axis_rows to, axis_rows from, int64_t count,
              dt_dtype dtype)
{
    const dti_cuda_box to_box = rows_box(v, to.n, to.at, count);
    const dti_cuda_box from_box = from.data != NULL ? rows_box(v, from.n, from.at, count) : to_box;

    return move_box(c, to.data, &to_box, from.data, &from_box,
                    (int64_t)dti_cuda_dtype_bytes((int)dtype));
}

/* --- fills ------------------------------------------------------------------------------------ */

template <typename W>
__global__ void __launch_bounds__(THREADS) fill_words(W *to, int64_t n, const W value)
{
    const int64_t first = (int64_t)blockIdx.x * THREADS * WORDS + threadIdx.x;

    DTI_UNROLL
    for (int k = 0; k < WORDS; k++)
        if (first + k * THREADS < n) to[first + k * THREADS] = value;
}

template <typename W> int run_fill(dti_cuda *c, void *to, int64_t n, const void *pattern)
{
    const int64_t per_block = THREADS * WORDS;
    W value;

    memcpy(&value, pattern, sizeof value);
    if (n == 0) return 0;
    return DTI_LAUNCH(c, fill_words<W>, dim3((unsigned)((n + per_block - 1) / per_block)),
                      dim3(THREADS), 0, (W *)to, n, value);
}

} /* namespace */

extern "C" {

int dti_slice_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dti_slice_attr *attr = (const dti_slice_attr *)a->attr;
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const axis_view v = view_of(x, attr->axis);
    const axis_rows zeros = { NULL, 0, 0 };
    const int64_t count = attr->count;
    const int64_t begin = (attr->begin < 0 ? attr->begin + v.n : attr->begin) -
                          x->offset[attr->axis]; /* of the first wanted row, in ours */
    const int64_t before = begin < 0 ? (-begin < count ? -begin : count) : 0;
    int64_t after = begin + count > v.n ? begin + count - v.n : 0, held;

    if (after > count - before) after = count - before;
    held = count - before - after;
    if (move_axis(c, v, { y->data, count, 0 }, zeros, before, y->dtype) != 0) return -1;
    if (move_axis(c, v, { y->data, count, before + held }, zeros, after, y->dtype) != 0) return -1;
    if (held <= 0) return 0;
    return move_axis(c, v, { y->data, count, before }, { x->data, v.n, begin + before }, held,
                     y->dtype);
}

int dti_blocks_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dti_blocks_attr *attr = (const dti_blocks_attr *)a->attr;
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const axis_view v = view_of(x, attr->axis);
    const int64_t count = y->shape[attr->axis];

    return move_axis(c, v, { y->data, count, 0 }, { x->data, v.n, attr->local_begin }, count,
                     y->dtype);
}

int dti_cuda_copy_box(dti_cuda *c, void *to, const dti_cuda_box *to_box, const void *from,
                      const dti_cuda_box *from_box, size_t element_bytes)
{
    if (element_bytes == 0 || element_bytes > 16 || (element_bytes & (element_bytes - 1)) != 0)
        return dti_cuda_fail("a box of elements of %zu bytes: CUDA copies 1, 2, 4, 8 or 16",
                             element_bytes);
    return move_box(c, to, to_box, from, from_box, (int64_t)element_bytes);
}

/* What is aligned is filled 16 bytes at a time, the end by elements. */
int dti_cuda_fill(dti_cuda *c, void *to, int64_t n, const void *element, size_t element_bytes)
{
    unsigned char pattern[16];
    int64_t wide, n_wide;

    if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4 && element_bytes != 8)
        return dti_cuda_fail("a fill of elements of %zu bytes: CUDA fills 1, 2, 4 or 8",
                             element_bytes);
    for (size_t i = 0; i < sizeof pattern; i += element_bytes)
        memcpy(pattern + i, element, element_bytes);
    wide = (int64_t)(sizeof pattern / element_bytes);
    n_wide = bits_of(to) % 16 == 0 ? n / wide : 0;
    if (run_fill<word<16>>(c, to, n_wide, pattern) != 0) return -1;
    to = (char *)to + 16 * n_wide;
    n -= wide * n_wide;
    switch (element_bytes) {
    case 8:
        return run_fill<word<8>>(c, to, n, pattern);
    case 4:
        return run_fill<word<4>>(c, to, n, pattern);
    case 2:
        return run_fill<word<2>>(c, to, n, pattern);
    default:
        return run_fill<word<1>>(c, to, n, pattern);
    }
}
} /* extern "C" */
