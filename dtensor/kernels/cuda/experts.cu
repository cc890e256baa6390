/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture of experts, as dtensor/kernels/cpu/experts.c:
 *
 *   y[t] = sum over slots s of weights[t, s] down_e (silu(gate_e x[t]) up_e x[t]), e = ids[t, s]
 *
 * Slots (t, s) are sorted by expert on the device (sort_slots.cuh), so the host waits for nothing
 * and knows only how many tiles of rows there can be. Products, rounding and the order of
 * sums are those of the CPU kernel: gate and up round, silu rounds, its product with up rounds,
 * down stays f32, and a token adds its slots in the order of experts. */
#include "dtensor/kernels/cuda/math.cuh"
#include "dtensor/kernels/cuda/product.cuh"
#include "dtensor/kernels/cuda/sort_slots.cuh"

namespace
{

/* --- between the products --------------------------------------------------------------------- */

/* h [n, 2 f] -> up [n, f]: silu(gate) rounds, times up rounds. A block for each row. */
template <typename T>
__global__ void gate_rows(const T *h, T *up, int64_t f, const int32_t *n_sorted)
{
    const int64_t row = blockIdx.x;

    if (row >= *n_sorted) return;
    for (int64_t i = threadIdx.x; i < f; i += THREADS) {
        const float gate = dti_rounded<T>(dti_silu(dti_widen(h[2 * row * f + i])));
        dti_narrow(&up[row * f + i], gate * dti_widen(h[(2 * row + 1) * f + i]));
    }
}

/* The slot of a token that has the lowest place above `last`, or -1. */
__device__ inline int32_t next_slot(const int32_t *places, int32_t n_slots, int32_t last)
{
    int32_t next = -1;

    for (int32_t s = 0; s < n_slots; s++)
        if (places[s] > last && (next < 0 || places[s] < places[next])) next = s;
    return next;
}

enum { EACH = 8 }; /* columns of a token in a thread at a time */

/* y[t] = sum over t's slots of weight times z, in the order of experts, which is that of places;
 * rounds once. A block for each token. */
template <typename T>
__global__ void add_slots(pass p, const float *z, const T *weights, void *y, bool f32_out,
                          int64_t d)
{
    const int64_t t = blockIdx.x;
    const int32_t *const places = p.places + t * p.n_slots;

    for (int64_t base = threadIdx.x; base < d; base += EACH * THREADS) {
        float sums[EACH] = {};
        int32_t slot = next_slot(places, p.n_slots, -1);
        for (; slot >= 0; slot = next_slot(places, p.n_slots, places[slot])) {
            const float weight = dti_widen(weights[t * p.n_slots + slot]);
            const float *const row = z + places[slot] * d;
            DTI_UNROLL
            for (int i = 0; i < EACH; i++)
                if (base + i * THREADS < d) sums[i] += weight * row[base + i * THREADS];
        }
        DTI_UNROLL
        for (int i = 0; i < EACH; i++) {
            const int64_t at = base + i * THREADS;
            if (at >= d) break;
            if (f32_out)
                static_cast<float *>(y)[t * d + at] = sums[i];
            else
                dti_narrow(static_cast<T *>(y) + t * d + at, sums[i]);
        }
    }
}

/* --- launching -------------------------------------------------------------------------------- */

struct room {
    char *base;
    size_t used;
};

/* `n` elements of T, 256-byte aligned; with base NULL it only counts. */
template <typename T> T *take(room *r, int64_t n)
{
    char *const at = r->base != NULL ? r->base + r->used : NULL;

    r->used += ((size_t)n * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T *>(at);
}

/* What a pass holds. */
template <typename T> struct buffers {
    T *h, *up;
    float *z;
};

template <typename T> buffers<T> take_all(room *r, pass *p, int64_t max_tiles, int64_t d, int64_t f)
{
    buffers<T> b;

    p->counts = take<int32_t>(r, p->n_experts);
    p->places = take<int32_t>(r, p->n);
    p->sorted = take<int32_t>(r, p->n);
    p->n_sorted = take<int32_t>(r, 1);
    p->n_tiles = take<int32_t>(r, 1);
    p->tiles = take<dti_row_tile>(r, max_tiles);
    b.h = take<T>(r, p->n * 2 * f);
    b.up = take<T>(r, p->n * f);
    b.z = take<float>(r, p->n * d);
    return b;
}

int multiply(dti_cuda *c, int dtype, const pass *p, const dti_product_job *job)
{
    return p->per_tile == DTI_SKINNY_MAX ? dti_cuda_skinny(c, dtype, job)
                                         : dti_cuda_gemm_plain(c, dtype, job);
}

/* Sorts the slots and runs their experts: z[place] of each slot of this rank. */
template <typename T>
int run_experts(dti_cuda *c, const dt_kargs *a, const pass *p, const void *x, const buffers<T> &b,
                int64_t max_tiles)
{
    const int dtype = (int)a->in[0].dtype;
    const int64_t d = a->in[3].shape[2], f = a->in[4].shape[2];
    dti_product_job gate_up = {}, down = {};

    gate_up.groups.tiles = p->tiles;
    gate_up.groups.n_tiles = p->n_tiles;
    gate_up.groups.max_tiles = (int32_t)max_tiles;
    gate_up.groups.n_slots = p->n_slots;
    gate_up.m = p->n;
    down = gate_up;
    gate_up.groups.slots = p->sorted;
    gate_up.x = x;
    gate_up.w = a->in[3].data;
    gate_up.y = b.h;
    gate_up.n = 2 * f;
    gate_up.k = d;
    down.x = b.up;
    down.w = a->in[4].data;
    down.y = b.z;
    down.n = d;
    down.k = f;
    down.f32_out = true;
    if (DTI_LAUNCH(c, place_slots, dim3((unsigned)p->n_experts), dim3(THREADS), 0, *p) != 0 ||
        multiply(c, dtype, p, &gate_up) != 0)
        return -1;
    if (f > 0 && DTI_LAUNCH(c, gate_rows<T>, dim3((unsigned)p->n), dim3(THREADS), 0, b.h, b.up, f,
                            p->n_sorted) != 0)
        return -1;
    return multiply(c, dtype, p, &down);
}

/* Tokens begin .. begin + n_tokens - 1. */
template <typename T>
int run_pass(dti_cuda *c, const dt_kargs *a, pass p, int64_t begin, int64_t n_tokens)
{
    const int64_t d = a->in[0].shape[a->in[0].n_axes - 1], f = a->in[4].shape[2];
    const int64_t by_rows = n_tokens * p.n_slots / p.per_tile + p.n_experts;
    const int64_t max_tiles = by_rows < n_tokens * p.n_slots ? by_rows : n_tokens * p.n_slots;
    const T *const x = static_cast<const T *>(a->in[0].data) + begin * d;
    const T *const weights = static_cast<const T *>(a->in[2].data) + begin * p.n_slots;
    const bool f32_out = a->out[0].dtype == DT_F32;
    char *const y = static_cast<char *>(a->out[0].data) + begin * d * (f32_out ? 4 : sizeof(T));
    room r = { NULL, 0 };
    buffers<T> b;
    void *scratch;

    p.ids += begin * p.n_slots;
    p.first_token = begin;
    p.n = (int32_t)(n_tokens * p.n_slots);
    take_all<T>(&r, &p, max_tiles, d, f);
    if (dti_cuda_scratch(c, r.used, &scratch) != 0) return -1;
    r.base = static_cast<char *>(scratch);
    r.used = 0;
    b = take_all<T>(&r, &p, max_tiles, d, f);
    if (p.n > 0) {
        const unsigned n_blocks = (unsigned)(p.n_experts + (p.n + THREADS - 1) / THREADS);
        if (DTI_LAUNCH(c, count_slots, dim3(n_blocks), dim3(THREADS), 0, p) != 0) return -1;
        if (p.n_experts > 0 && run_experts<T>(c, a, &p, x, b, max_tiles) != 0) return -1;
    }
    return DTI_LAUNCH(c, add_slots<T>, dim3((unsigned)n_tokens), dim3(THREADS), 0, p, b.z, weights,
                      y, f32_out, d);
}

/* In as many passes as keep scratch memory below about half a GiB. */
template <typename T> int run_all(dti_cuda *c, const dt_kargs *a)
{
    const int64_t most = 512 << 20;
    const int64_t d = a->in[0].shape[a->in[0].n_axes - 1], f = a->in[4].shape[2];
    const int64_t n_tokens = dti_product_rows(&a->in[0]);
    pass p = {};

    p.ids = static_cast<const int32_t *>(a->in[1].data);
    p.n_slots = (int32_t)a->in[1].shape[a->in[1].n_axes - 1];
    p.first = (int32_t)a->in[3].offset[0];
    p.n_experts = (int32_t)a->in[3].shape[0];
    p.n_all = (int32_t) static_cast<const dti_experts_attr *>(a->attr)->n_experts;
    p.fault = c->fault;
    if (n_tokens == 0 || d == 0) return 0;
    const int64_t per_token = p.n_slots * (int64_t)(3 * f * sizeof(T) + d * sizeof(float)) + 1;
    const int64_t room = most / per_token > 1 ? most / per_token : 1;
    for (int64_t begin = 0; begin < n_tokens; begin += room) {
        const int64_t n = n_tokens - begin < room ? n_tokens - begin : room;
        /* Weights are read once for each tile, so few rows of an expert are the skinny kernel's. */
        const bool few = n * p.n_slots <= (int64_t)DTI_SKINNY_MAX * p.n_all;
        p.per_tile = few ? (int32_t)DTI_SKINNY_MAX : (int32_t)DTI_PLAIN_ROWS;
        if (run_pass<T>(c, a, p, begin, n) != 0) return -1;
    }
    return 0;
}

} // namespace

int dti_experts_cuda(dti_cuda *c, const dt_kargs *a)
{
    const int dtype = (int)a->in[0].dtype;

    for (int i = 2; i < 5; i++)
        if ((int)a->in[i].dtype != dtype)
            return dti_cuda_fail("experts on CUDA: x is %s but operand %d is %s; cast one of them",
                                 dti_cuda_dtype_name(dtype), i,
                                 dti_cuda_dtype_name((int)a->in[i].dtype));
    if (a->in[3].shape[1] != 2 * a->in[4].shape[2])
        return dti_cuda_fail("experts on CUDA: %lld rows of gate and up here, %lld columns of down",
                             (long long)a->in[3].shape[1], (long long)a->in[4].shape[2]);
    switch (dtype) {
    case DT_F32:
        return run_all<float>(c, a);
    case DT_BF16:
        return run_all<dti_bf16>(c, a);
    case DT_F16:
        return run_all<dti_f16>(c, a);
    default:
        return dti_cuda_fail("experts on CUDA: no kernel for %s", dti_cuda_dtype_name(dtype));
    }
}
