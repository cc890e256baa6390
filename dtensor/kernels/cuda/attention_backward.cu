/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of attention, by the formulas of dtensor/kernels/cpu/attention_backward.c: what weights
 * the softmax gave follows again from scores and the log-sum-exp of a row.
 *
 *   P = e^(S - lse), dv = P^T dy, dP = dy v^T, dS = P (dP - mean),
 *   dq = scale dS k, dk = scale dS^T q
 *
 * Three kernels, each of which finds P and dS of a tile of ROWS rows and KEYS keys in f32: one has
 * a block for the rows of dq, which walks the keys they see; one for the keys of dk and dv, which
 * walks the rows that see them; one for a tile of dbias, which walks what shares its elements. So
 * an element is summed by one thread in an order that shapes say: a run repeats bit for bit. */
#include "dtensor/kernels/cuda/attention_plain.cuh"
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum {
    ROWS = 16,
    KEYS = DTI_WARP, /* one per lane */
    WARPS = 8,
    THREADS = WARPS * DTI_WARP,
    MY_ROWS = ROWS / WARPS,                  /* of a warp */
    MY_KEYS = KEYS / WARPS,                  /* the same, where it sums over rows */
    COLUMNS = DTI_ATTENTION_WIDTH / DTI_WARP /* of a lane */
};

struct back_call {
    dti_attention_call a;
    const void *dy;     /* as q lies */
    const float *stats; /* [B, T, H, 2]: lse, mean */
    void *dq, *dk, *dv;
    float *dbias;                   /* as the bias lies, or NULL */
    bool f32_dq, f32_dk, f32_dv;    /* whatever q, k and v are */
    int64_t n_blocks, n_key_blocks; /* of the rows of a kv head; of the keys */
};

/* Rows in shared memory are `pitch` float4 apart. */
struct block_memory {
    float weights[ROWS][KEYS + 1], slopes[ROWS][KEYS + 1];
    float lse[ROWS], mean[ROWS];
    int first[ROWS], last[ROWS];
    float4 rows[1]; /* q, dy [ROWS, pitch], k, v [KEYS, pitch] */
};

/* Where its arrays begin. */
struct tiles {
    float4 *q, *dy, *k, *v;
    int pitch;
};

__device__ inline tiles tiles_of(block_memory &m, int width)
{
    const int pitch = dti_attention_pitch(width);
    float4 *const dy = m.rows + ROWS * pitch, *const k = dy + ROWS * pitch;

    return tiles{ m.rows, dy, k, k + KEYS * pitch, pitch };
}

/* Column d of row i. */
__device__ inline float at(const float4 *rows, int pitch, int i, int d)
{
    return reinterpret_cast<const float *>(rows)[i * 4 * pitch + d];
}

/* The rows of local kv head kv; of none if no head of this rank reads it. */
__device__ inline dti_attention_rows rows_of_kv(const dti_attention_call &a, int64_t b, int64_t kv)
{
    const int64_t u = kv - a.first_kv;
    dti_attention_rows r = {};

    if (u >= 0 && u < a.n_used) return dti_attention_rows_of(a, b * a.n_used + u);
    r.b = b;
    r.kv = kv;
    r.n_heads = 1;
    return r;
}

/* What ROWS rows see, and their statistics. A row whose keys are all masked has no slopes. */
__device__ inline void load_stats(block_memory &m, const back_call &c, const dti_attention_rows &r,
                                  int row)
{
    const int i = (int)threadIdx.x, of = row + i;

    if (i >= ROWS) return;
    m.first[i] = 0;
    m.last[i] = -1;
    m.lse[i] = m.mean[i] = 0.0f;
    if (of >= r.n) return;
    const dti_key_range seen = c.a.seen[r.b * c.a.n_tokens + of / r.n_heads];
    const float *const stats = c.stats + dti_attention_at(c.a, r, of) / c.a.width * 2;
    if (!(stats[0] > DTI_ATTENTION_LOWEST / 2)) return;
    m.first[i] = seen.first;
    m.last[i] = seen.last;
    m.lse[i] = stats[0];
    m.mean[i] = stats[1];
}

template <typename T>
__device__ inline void load_rows(const tiles &t, const back_call &c, const dti_attention_rows &r,
                                 int row)
{
    dti_attention_load_rows<T>(t.q, c.a.q, c.a, r, row, ROWS);
    dti_attention_load_rows<T>(t.dy, c.dy, c.a, r, row, ROWS);
}

/* Keys from `key` on, zeros behind `last`. */
template <typename T>
__device__ inline void load_keys(const tiles &t, const dti_attention_call &a,
                                 const dti_attention_rows &r, int key, int last)
{
    const int64_t stride = a.n_kv * a.width, first = dti_attention_key_at(a, r) + key * stride;

    dti_attention_load_keys<T>(t.k, static_cast<const T *>(a.k) + first, stride, KEYS,
                               last + 1 - key, a.width);
    dti_attention_load_keys<T>(t.v, static_cast<const T *>(a.v) + first, stride, KEYS,
                               last + 1 - key, a.width);
}

__device__ inline float dot(float sum, const float4 &x, const float4 &y)
{
    sum = dti_add_product(sum, x.x, y.x);
    sum = dti_add_product(sum, x.y, y.y);
    sum = dti_add_product(sum, x.z, y.z);
    return dti_add_product(sum, x.w, y.w);
}

/* Weights that dropout leaves, and slopes, of the warp's rows and the lane's key: slopes of q . k,
 * or of what the bias is added to if `bare`. */
template <typename T>
__device__ inline void find_slopes(block_memory &m, const tiles &t, const back_call &c,
                                   const dti_attention_rows &r, int row, int key, bool bare)
{
    const int lane = (int)threadIdx.x % DTI_WARP, mine = (int)threadIdx.x / DTI_WARP * MY_ROWS;
    float s[MY_ROWS] = {}, dp[MY_ROWS] = {};

    for (int d = 0; d < (c.a.width + 3) / 4; d++) {
        const float4 k = t.k[lane * t.pitch + d], v = t.v[lane * t.pitch + d];
        DTI_UNROLL
        for (int i = 0; i < MY_ROWS; i++) {
            s[i] = dot(s[i], t.q[(mine + i) * t.pitch + d], k);
            dp[i] = dot(dp[i], t.dy[(mine + i) * t.pitch + d], v);
        }
    }
    for (int i = 0; i < MY_ROWS; i++) {
        const int of = mine + i;
        float weight = 0.0f, slope = 0.0f, kept = 1.0f, cap;
        if (key + lane >= m.first[of] && key + lane <= m.last[of]) {
            const float score = dti_attention_adjusted<T>(c.a, r, row + of, key + lane, s[i], &cap);
            weight = dti_exp(score - m.lse[of]);
            if (c.a.dropout > 0.0f) kept = dti_attention_kept(c.a, r, row + of, key + lane);
            slope = weight * (dp[i] * kept - m.mean[of]);
            if (!bare) slope *= c.a.plain_scale * cap;
        }
        m.weights[of][lane] = weight * kept;
        m.slopes[of][lane] = slope;
    }
}

template <typename T> __device__ inline void store(void *to, bool f32, int64_t i, float x)
{
    if (f32)
        static_cast<float *>(to)[i] = x;
    else
        dti_narrow(static_cast<T *>(to) + i, x);
}

/* --- dq --------------------------------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(THREADS, 1) slopes_of_rows(const __grid_constant__ back_call c)
{
    DTI_SHARED(block_memory, m);
    const dti_attention_rows r = dti_attention_rows_of(c.a, blockIdx.x / c.n_blocks);
    const int row = (int)(blockIdx.x % c.n_blocks) * ROWS, lane = (int)threadIdx.x % DTI_WARP;
    const int mine = (int)threadIdx.x / DTI_WARP * MY_ROWS;
    const tiles t = tiles_of(*m, c.a.width);
    float sums[MY_ROWS][COLUMNS] = {};
    int lo = INT32_MAX, hi = -1;

    if (row >= r.n) return; /* a kv head whose group this rank holds in part */
    load_stats(*m, c, r, row);
    load_rows<T>(t, c, r, row);
    __syncthreads();
    for (int i = 0; i < ROWS; i++) {
        if (m->last[i] < m->first[i]) continue;
        lo = min(lo, m->first[i]);
        hi = max(hi, m->last[i]);
    }
    for (int key = lo; key <= hi; key += KEYS) {
        load_keys<T>(t, c.a, r, key, hi);
        __syncthreads();
        find_slopes<T>(*m, t, c, r, row, key, false);
        __syncwarp(); /* a warp reads its own rows of slopes */
        for (int j = 0; j < KEYS; j++) DTI_UNROLL
        for (int x = 0; x < COLUMNS; x++) {
            if (lane + DTI_WARP * x >= c.a.width) continue;
            const float k = at(t.k, t.pitch, j, lane + DTI_WARP * x);
            DTI_UNROLL
            for (int i = 0; i < MY_ROWS; i++)
                sums[i][x] = dti_add_product(sums[i][x], m->slopes[mine + i][j], k);
        }
        __syncthreads();
    }
    DTI_UNROLL
    for (int i = 0; i < MY_ROWS; i++) DTI_UNROLL
    for (int x = 0; x < COLUMNS; x++)
        if (row + mine + i < r.n && lane + DTI_WARP * x < c.a.width)
            store<T>(c.dq, c.f32_dq, dti_attention_at(c.a, r, row + mine + i) + lane + DTI_WARP * x,
                     sums[i][x]);
}

/* --- dk and dv -------------------------------------------------------------------------------- */

/* Whether one of the rows sees one of the keys: all threads find the same. */
__device__ inline bool are_seen(const block_memory &m, int key)
{
    bool seen = false;

    for (int i = 0; i < ROWS; i++)
        seen = seen || (m.first[i] < key + KEYS && m.last[i] >= key && m.first[i] <= m.last[i]);
    return seen;
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1) slopes_of_keys(const __grid_constant__ back_call c)
{
    DTI_SHARED(block_memory, m);
    const int64_t pair = blockIdx.x / c.n_key_blocks;
    const dti_attention_rows r = rows_of_kv(c.a, pair / c.a.n_kv, pair % c.a.n_kv);
    const int key = (int)(blockIdx.x % c.n_key_blocks) * KEYS, lane = (int)threadIdx.x % DTI_WARP;
    const int mine = (int)threadIdx.x / DTI_WARP * MY_KEYS;
    const tiles t = tiles_of(*m, c.a.width);
    float dk[MY_KEYS][COLUMNS] = {}, dv[MY_KEYS][COLUMNS] = {};

    load_keys<T>(t, c.a, r, key, (int)c.a.n_keys - 1);
    for (int row = 0; row < r.n; row += ROWS) {
        load_stats(*m, c, r, row);
        __syncthreads();
        if (are_seen(*m, key)) {
            load_rows<T>(t, c, r, row);
            __syncthreads();
            find_slopes<T>(*m, t, c, r, row, key, false);
            __syncthreads();
            for (int i = 0; i < ROWS; i++) DTI_UNROLL
            for (int x = 0; x < COLUMNS; x++) {
                if (lane + DTI_WARP * x >= c.a.width) continue;
                const float q = at(t.q, t.pitch, i, lane + DTI_WARP * x);
                const float dy = at(t.dy, t.pitch, i, lane + DTI_WARP * x);
                DTI_UNROLL
                for (int j = 0; j < MY_KEYS; j++) {
                    dk[j][x] = dti_add_product(dk[j][x], m->slopes[i][mine + j], q);
                    dv[j][x] = dti_add_product(dv[j][x], m->weights[i][mine + j], dy);
                }
            }
        }
        __syncthreads();
    }
    DTI_UNROLL
    for (int j = 0; j < MY_KEYS; j++) DTI_UNROLL
    for (int x = 0; x < COLUMNS; x++) {
        const int64_t of = key + mine + j, d = lane + DTI_WARP * x;
        if (of >= c.a.n_keys || d >= c.a.width) continue;
        const int64_t place = dti_attention_key_at(c.a, r) + of * c.a.n_kv * c.a.width + d;
        store<T>(c.dk, c.f32_dk, place, dk[j][x]);
        store<T>(c.dv, c.f32_dv, place, dv[j][x]);
    }
}

/* --- dbias ------------------------------------------------------------------------------------ */

/* begin .. end - 1 of what adds to element i of an axis of n: all if the bias has one element. */
struct span {
    int64_t begin, end;
};

__device__ inline span span_of(int64_t step, int64_t i, int64_t n)
{
    return step == 0 ? span{ 0, n } : span{ i, i + 1 };
}

/* Extent of the axes of a bias, and of its blocks. */
__host__ __device__ inline int64_t bias_extent(const dti_attention_call &a, int axis)
{
    const int64_t n = axis == 0 ? a.batch : axis == 1 ? a.n_heads : (a.n_tokens + ROWS - 1) / ROWS;

    return a.bias_step[axis] == 0 ? 1 : n;
}

/* Rows are the queries of one head. */
template <typename T>
__global__ void __launch_bounds__(THREADS) slopes_of_bias(const __grid_constant__ back_call c)
{
    DTI_SHARED(block_memory, m);
    const int64_t n_h = bias_extent(c.a, 1), n_t = bias_extent(c.a, 2);
    const int64_t block = blockIdx.x / c.n_key_blocks;
    const int64_t b0 = block / n_t / n_h, h0 = block / n_t % n_h, t0 = block % n_t * ROWS;
    const int key = (int)(blockIdx.x % c.n_key_blocks) * KEYS, lane = (int)threadIdx.x % DTI_WARP;
    const int mine = (int)threadIdx.x / DTI_WARP * MY_ROWS;
    const span bs = span_of(c.a.bias_step[0], b0, c.a.batch);
    const span hs = span_of(c.a.bias_step[1], h0, c.a.n_heads);
    const int64_t end = c.a.bias_step[2] == 0 ? c.a.n_tokens : t0 + 1;
    const tiles t = tiles_of(*m, c.a.width);
    float sums[MY_ROWS] = {};

    for (int64_t b = bs.begin; b < bs.end; b++)
        for (int64_t h = hs.begin; h < hs.end; h++) {
            const int64_t kv = c.a.first_kv + (h - c.a.first_head) / c.a.group;
            const dti_attention_rows r = { b, kv, h, 1, (int)c.a.n_tokens };
            for (int64_t row = t0; row < end; row += ROWS) {
                load_stats(*m, c, r, (int)row);
                __syncthreads();
                if (are_seen(*m, key)) {
                    load_rows<T>(t, c, r, (int)row);
                    load_keys<T>(t, c.a, r, key, (int)c.a.n_keys - 1);
                    __syncthreads();
                    find_slopes<T>(*m, t, c, r, (int)row, key, true);
                    DTI_UNROLL
                    for (int i = 0; i < MY_ROWS; i++) sums[i] += m->slopes[mine + i][lane];
                }
                __syncthreads();
            }
        }
    float *const to = c.dbias + b0 * c.a.bias_step[0] + h0 * c.a.bias_step[1] + key + lane;
    if (c.a.bias_step[2] != 0) {
        DTI_UNROLL
        for (int i = 0; i < MY_ROWS; i++)
            if (t0 + mine + i < c.a.n_tokens && key + lane < c.a.n_keys)
                to[(t0 + mine + i) * c.a.bias_step[2]] = sums[i];
        return;
    }
    DTI_UNROLL
    for (int i = 0; i < MY_ROWS; i++) m->slopes[mine + i][lane] = sums[i];
    __syncthreads();
    if (mine != 0 || key + lane >= c.a.n_keys) return;
    float sum = 0.0f;
    for (int i = 0; i < ROWS; i++) sum += m->slopes[i][lane];
    *to = sum;
}

/* --- launching -------------------------------------------------------------------------------- */

size_t shared_bytes(int width)
{
    return offsetof(block_memory, rows) +
           (size_t)(2 * (ROWS + KEYS) * dti_attention_pitch(width)) * sizeof(float4);
}

int start(dti_cuda *cuda, const char *what, void (*kernel)(const back_call), int64_t blocks,
          const back_call &c)
{
    const size_t shared = shared_bytes(c.a.width);

    if (blocks == 0) return 0;
    if (blocks > INT32_MAX)
        return dti_cuda_fail("%s: %lld blocks are more than one call takes", what,
                             (long long)blocks);
    if (dti_cuda_check(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
            what) != 0)
        return -1;
    return DTI_LAUNCH(cuda, kernel, dim3((unsigned)blocks), dim3(THREADS), shared, c);
}

template <typename T> int start_all(dti_cuda *cuda, const back_call &c)
{
    int64_t n_bias = c.n_key_blocks;

    if (start(cuda, "attention_backward, dq", slopes_of_rows<T>,
              c.a.batch * c.a.n_used * c.n_blocks, c) != 0 ||
        start(cuda, "attention_backward, dk and dv", slopes_of_keys<T>,
              c.a.batch * c.a.n_kv * c.n_key_blocks, c) != 0)
        return -1;
    if (c.dbias == NULL) return 0;
    for (int axis = 0; axis < 3; axis++) n_bias *= bias_extent(c.a, axis);
    return start(cuda, "attention_backward, dbias", slopes_of_bias<T>, n_bias, c);
}

/* A rank without queries gives zeros. */
int clear(dti_cuda *cuda, const dt_kargs *args)
{
    for (int r = 1; r < args->n_out; r++) {
        const dt_local *y = &args->out[r];
        const size_t bytes = (size_t)dti_cuda_count(y) * dti_cuda_dtype_bytes((int)y->dtype);
        if (bytes > 0 && dti_cuda_check(cudaMemsetAsync(y->data, 0, bytes, cuda->stream),
                                        "attention_backward") != 0)
            return -1;
    }
    return 0;
}

} // namespace

extern "C" int dti_attention_backward_cuda(dti_cuda *cuda, const dt_kargs *args)
{
    const int32_t *segments;
    back_call c = {};
    const int there = dti_attention_unpack(cuda, args, 1, 5, &c.a, &segments);

    if (there <= 0) return there < 0 ? -1 : clear(cuda, args);
    if (dti_attention_train(cuda, args, segments, &c.a) != 0) return -1;
    c.dy = args->in[0].data;
    c.stats = static_cast<const float *>(args->in[4].data);
    c.dq = args->out[0].data;
    c.dk = args->out[1].data;
    c.dv = args->out[2].data;
    c.dbias = args->n_out > 3 ? static_cast<float *>(args->out[3].data) : NULL;
    c.f32_dq = args->out[0].dtype == DT_F32;
    c.f32_dk = args->out[1].dtype == DT_F32;
    c.f32_dv = args->out[2].dtype == DT_F32;
    c.n_blocks = (c.a.n_tokens * c.a.group + ROWS - 1) / ROWS;
    c.n_key_blocks = (c.a.n_keys + KEYS - 1) / KEYS;
    switch (args->in[1].dtype) {
    case DT_F32:
        return start_all<float>(cuda, c);
    case DT_BF16:
        return start_all<dti_bf16>(cuda, c);
    case DT_F16:
        return start_all<dti_f16>(cuda, c);
    default:
        return dti_refuse_dtype("attention_backward", (int)args->in[1].dtype);
    }
}
