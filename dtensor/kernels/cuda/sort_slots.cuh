/* SPDX-License-Identifier: Apache-2.0
 *
 * What experts and their gradients share. Slots of tokens sorted by expert, by counting: an
 * expert's slots lie side by side in the order of tokens, and a list of tiles says which rows a
 * block of a product has. The order is that of the ids alone, not of who came first. Products of
 * rows with the matrix of their expert; sums over the slots of a token. */
#ifndef DTI_SORT_SLOTS_CUH
#define DTI_SORT_SLOTS_CUH

#include "dtensor/kernels/cuda/math.cuh"
#include "dtensor/kernels/cuda/product.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / DTI_WARP };

/* One pass: as many tokens as there is room for. */
struct pass {
    const int32_t *ids; /* [n_tokens, n_slots], global */
    int32_t n, n_slots; /* n = n_tokens n_slots */
    int32_t first, n_experts, n_all;
    int32_t per_tile;
    int32_t *counts;   /* [n_experts] slots of each */
    int32_t *begins;   /* [n_experts] where they begin among the sorted ones */
    int32_t *places;   /* [n]: where a slot is among the sorted ones, or -1 */
    int32_t *sorted;   /* [n]: slots by expert */
    int32_t *n_sorted; /* [1], */
    int32_t *n_tiles;  /* [1]: how many there are */
    dti_row_tile *tiles;
    int64_t first_token; /* of the pass, for messages */
    dti_cuda_fault_word *fault;
};

/* The sum over a block of THREADS, to all. */
__device__ inline int32_t sum_block(int32_t x)
{
    __shared__ int32_t sums[WARPS];
    int32_t all = 0;

    for (int step = DTI_WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    __syncthreads(); /* whoever called before has read them */
    if (threadIdx.x % DTI_WARP == 0) sums[threadIdx.x / DTI_WARP] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) all += sums[w];
    return all;
}

/* Ids are contents of a tensor, so no rule saw them. */
__device__ void check_slot(const pass &p, int32_t s)
{
    const int32_t id = p.ids[s];

    if (id < 0 || id >= p.n_all) {
        dti_report(p.fault, DTI_CUDA_BAD_EXPERT, id, p.n_all);
        return;
    }
    for (int32_t i = s / p.n_slots * p.n_slots; i < s; i++)
        if (p.ids[i] == id)
            dti_report(p.fault, DTI_CUDA_TWICE_EXPERT, id, p.first_token + s / p.n_slots);
}

/* A block for each expert, and more that look at the ids. */
__global__ void count_slots(pass p)
{
    const int32_t e = (int32_t)blockIdx.x;
    int32_t count = 0;

    if (e >= p.n_experts) {
        const int32_t s = (e - p.n_experts) * THREADS + (int32_t)threadIdx.x;
        if (s >= p.n) return;
        p.places[s] = -1;
        check_slot(p, s);
        return;
    }
    for (int32_t s = (int32_t)threadIdx.x; s < p.n; s += THREADS) count += p.ids[s] - p.first == e;
    count = sum_block(count);
    if (threadIdx.x == 0) p.counts[e] = count;
}

__device__ inline int32_t tiles_of(const pass &p, int32_t count)
{
    return (count + p.per_tile - 1) / p.per_tile;
}

/* Slots of expert e from `begin` on, in their order. */
__device__ void place_slots_of(const pass &p, int32_t e, int32_t begin)
{
    __shared__ int32_t found[WARPS];
    const int warp = (int)threadIdx.x / DTI_WARP, lane = (int)threadIdx.x % DTI_WARP;

    for (int32_t base = 0; base < p.n; base += THREADS) {
        const int32_t s = base + (int32_t)threadIdx.x;
        const bool mine = s < p.n && p.ids[s] - p.first == e;
        const unsigned who = __ballot_sync(0xffffffffu, mine);
        int32_t place = begin + __popc(who & ((1u << lane) - 1u));
        __syncthreads();
        if (lane == 0) found[warp] = __popc(who);
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) place += found[w];
            begin += found[w];
        }
        if (!mine) continue;
        p.sorted[place] = s;
        p.places[s] = place;
    }
}

/* A block for each expert. */
__global__ void place_slots(pass p)
{
    const int32_t e = (int32_t)blockIdx.x, count = p.counts[e];
    int32_t begin = 0, tile = 0;

    for (int32_t i = (int32_t)threadIdx.x; i < e; i += THREADS) {
        begin += p.counts[i];
        tile += tiles_of(p, p.counts[i]);
    }
    begin = sum_block(begin);
    tile = sum_block(tile);
    if (threadIdx.x == 0) p.begins[e] = begin;
    for (int32_t i = (int32_t)threadIdx.x; i < tiles_of(p, count); i += THREADS) {
        const int32_t row = i * p.per_tile, left = count - row;
        dti_row_tile t;
        t.group = e;
        t.row = begin + row;
        t.n_rows = left < p.per_tile ? left : p.per_tile;
        t.pad = 0;
        p.tiles[tile + i] = t;
    }
    if (e == p.n_experts - 1 && threadIdx.x == 0) {
        *p.n_sorted = begin + count;
        *p.n_tiles = tile + tiles_of(p, count);
    }
    place_slots_of(p, e, begin);
}

/* --- what comes of slots ---------------------------------------------------------------------- */

/* The slot of a token that has the lowest place above `last`, or -1. */
__device__ inline int32_t next_slot(const int32_t *places, int32_t n_slots, int32_t last)
{
    int32_t next = -1;

    for (int32_t s = 0; s < n_slots; s++)
        if (places[s] > last && (next < 0 || places[s] < places[next])) next = s;
    return next;
}

enum { EACH = 8 }; /* columns of a token in a thread at a time */

/* y[t] = sum over t's slots of weight times z, or of z alone, in the order of experts, which is
 * that of places; rounds once. bias [n_experts, d] is added to z before; NULL: there is none. A
 * block for each token. */
template <typename T>
__global__ void add_slots(pass p, const float *z, const T *bias, const T *weights, void *y,
                          bool f32_out, int64_t d)
{
    const int64_t t = blockIdx.x;
    const int32_t *const places = p.places + t * p.n_slots;

    for (int64_t base = threadIdx.x; base < d; base += EACH * THREADS) {
        float sums[EACH] = {};
        int32_t slot = next_slot(places, p.n_slots, -1);
        for (; slot >= 0; slot = next_slot(places, p.n_slots, places[slot])) {
            const float weight = weights != NULL ? dti_widen(weights[t * p.n_slots + slot]) : 1.0f;
            const float *const row = z + places[slot] * d;
            const int64_t e = p.ids[t * p.n_slots + slot] - p.first;
            DTI_UNROLL
            for (int i = 0; i < EACH; i++) {
                const int64_t at = base + i * THREADS;
                if (at >= d) break;
                sums[i] +=
                    weight * (bias != NULL ? row[at] + dti_widen(bias[e * d + at]) : row[at]);
            }
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

/* silu(gate) rounds, times up rounds. */
template <typename T> __device__ inline float gated(float gate, float up)
{
    return dti_rounded<T>(dti_rounded<T>(dti_silu(gate)) * up);
}

/* Of experts that are clamped, all of the model's dtype; others have no gate_up_bias. */
template <typename T> struct clamp {
    const T *gate_up_bias, *down_bias; /* [n_experts, 2 f], [n_experts, d] or NULL */
    float limit, alpha;
};

/* The biases are operands `first` and the next one; of down's operand, which of ranks that share an
 * expert the first adds to. */
template <typename T, typename A>
clamp<T> clamp_of(const dt_kargs *a, int first, const dt_local *down)
{
    const A *const attr = static_cast<const A *>(a->attr);
    const T *const bias = static_cast<const T *>(a->in[first + 1].data);

    return clamp<T>{ static_cast<const T *>(a->in[first].data), down->offset[2] == 0 ? bias : NULL,
                     attr->limit, attr->alpha };
}

/* Gate and up with their biases: limited, and what comes of them before it rounds. */
struct clamped {
    float gate, up; /* as they were */
    float x, within, soft;
};

template <typename T>
__device__ inline clamped clamp_pair(const clamp<T> &c, const T *h, const T *bias)
{
    clamped y;

    y.gate = dti_widen(h[0]) + dti_widen(bias[0]);
    y.up = dti_widen(h[1]) + dti_widen(bias[1]);
    y.x = fminf(y.gate, c.limit);
    y.within = fminf(fmaxf(y.up, -c.limit), c.limit) + 1.0f;
    y.soft = 1.0f + dti_exp(-c.alpha * y.x);
    return y;
}

template <typename T> __device__ inline float clamped_value(const clamped &y)
{
    const bool lost = y.gate != y.gate || y.up != y.up; /* a NaN that limits drop */

    return dti_rounded<T>(lost ? y.gate + y.up : y.within * (y.x / y.soft));
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

/* Operands of the forward call, from number `first` on: 0, or -1 with what does not fit. */
inline int check_experts(const char *op, const dt_kargs *a, int first)
{
    const dt_local *x = a->in + first, *gate_up = x + 3, *down = x + 4;

    for (int i = 0; i < a->n_in; i++)
        if (a->in[i].dtype != x->dtype && a->in[i].dtype != DT_I32)
            return dti_cuda_fail("%s on CUDA: x is %s but operand %d is %s; cast one of them", op,
                                 dti_cuda_dtype_name((int)x->dtype), i,
                                 dti_cuda_dtype_name((int)a->in[i].dtype));
    if (gate_up->shape[1] != 2 * down->shape[2])
        return dti_cuda_fail("%s on CUDA: %lld rows of gate and up here, %lld columns of down", op,
                             (long long)gate_up->shape[1], (long long)down->shape[2]);
    return 0;
}

/* Whether kernels for sorted rows have anything to do, as far as the host knows. */
inline bool has_rows(const pass &p)
{
    return p.n > 0 && p.n_experts > 0;
}

/* Tiles that the slots of a pass can make. */
inline int64_t most_tiles(const pass &p)
{
    const int64_t by_rows = p.n / p.per_tile + p.n_experts;

    return by_rows < p.n ? by_rows : p.n;
}

inline void take_slots(room *r, pass *p)
{
    p->counts = take<int32_t>(r, p->n_experts);
    p->begins = take<int32_t>(r, p->n_experts);
    p->places = take<int32_t>(r, p->n);
    p->sorted = take<int32_t>(r, p->n);
    p->n_sorted = take<int32_t>(r, 1);
    p->n_tiles = take<int32_t>(r, 1);
    p->tiles = take<dti_row_tile>(r, most_tiles(*p));
}

/* What take_all() lays out, in scratch memory of its size. */
template <typename B>
int take_scratch(dti_cuda *c, B (*take_all)(room *, pass *, int64_t, int64_t), pass *p, int64_t d,
                 int64_t f, B *b)
{
    room r = { NULL, 0 };
    void *scratch;

    take_all(&r, p, d, f);
    if (dti_cuda_scratch(c, r.used, &scratch) != 0) return -1;
    r = { static_cast<char *>(scratch), 0 };
    *b = take_all(&r, p, d, f);
    return 0;
}

/* All tokens; run() gets as many of them at a time as leave some half a GiB of scratch memory with
 * `token_bytes` for each, and is called once where there are none. Few rows of an expert, whose
 * weights are read once for each tile, are the skinny kernel's. */
template <typename F>
int run_passes(dti_cuda *c, const dt_local *ids, const dt_local *gate_up, int64_t n_all,
               int64_t token_bytes, F run)
{
    const int64_t n_tokens = dti_product_rows(ids), fit = (512 << 20) / (token_bytes + 1);
    const int64_t most = fit > 1 ? fit : 1;
    int64_t begin = 0;

    do {
        const int64_t n = n_tokens - begin < most ? n_tokens - begin : most;
        pass p = {};
        p.n_slots = (int32_t)ids->shape[ids->n_axes - 1];
        p.ids = static_cast<const int32_t *>(ids->data) + begin * p.n_slots;
        p.n = (int32_t)(n * p.n_slots);
        p.first = (int32_t)gate_up->offset[0];
        p.n_experts = (int32_t)gate_up->shape[0];
        p.n_all = (int32_t)n_all;
        p.per_tile =
            p.n <= DTI_SKINNY_MAX * n_all ? (int32_t)DTI_SKINNY_MAX : (int32_t)DTI_PLAIN_ROWS;
        p.first_token = begin;
        p.fault = c->fault;
        if (run(p, n) != 0) return -1;
        begin += most;
    } while (begin < n_tokens);
    return 0;
}

/* Fills what take_slots() took. */
inline int sort_slots(dti_cuda *c, const pass &p)
{
    const unsigned n_blocks = (unsigned)(p.n_experts + (p.n + THREADS - 1) / THREADS);

    if (n_blocks > 0 && DTI_LAUNCH(c, count_slots, dim3(n_blocks), dim3(THREADS), 0, p) != 0)
        return -1;
    if (p.n_experts == 0) return 0;
    return DTI_LAUNCH(c, place_slots, dim3((unsigned)p.n_experts), dim3(THREADS), 0, p);
}

/* Of each sorted slot, a product with the matrix of its expert, which is a group of `job`. x are
 * rows that are sorted too, or with job.groups.slots those of tokens. */
inline int multiply_slots(dti_cuda *c, int dtype, const pass &p, dti_product_job job)
{
    if (!has_rows(p)) return 0;
    job.groups.tiles = p.tiles;
    job.groups.n_tiles = p.n_tiles;
    job.groups.max_tiles = (int32_t)most_tiles(p);
    job.groups.n_slots = p.n_slots;
    return p.per_tile == DTI_SKINNY_MAX ? dti_cuda_skinny(c, dtype, &job)
                                        : dti_cuda_gemm_plain(c, dtype, &job);
}

} // namespace

#endif
