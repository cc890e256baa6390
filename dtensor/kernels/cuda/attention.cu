/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of T new tokens over the cache; the contract stands at dti_attention_cpu(). B
 * batch, H query heads and Kv kv heads of this rank, e head width, S rows of the cache.
 * y[b, t, h] = sum_j p_j v[b, j, kv], p = softmax_j(scale q[b, t, h] . k[b, j, kv]) over rows
 * j <= positions[b, t], the last `window` of them if window > 0.
 *
 * Three kernels, by the rows of a kv head (attention.cuh) and the type:
 *   attention_decode.cu   16 bits, few rows: bound by the reading of the cache
 *   attention_prefill.cu  16 bits, many rows: bound by the products
 *   attention_plain.cu    f32, and widths that are no multiple of 8 or above 256
 * and, where keys are cut into parts, attention_merge.cu. Where it is asked for, cuDNN takes what
 * it can of many rows (attention_cudnn.h), and the second kernel the rest.
 * Grids follow from shapes alone, never from positions, so that a recorded graph stays valid. Sums
 * are in a fixed order: a run repeats bit for bit. How many parts the keys are cut into depends on
 * the device, the batch and the heads of this rank, and so do the last bits. */
#include "dtensor/kernels/cuda/attention.cuh"
#include "dtensor/kernels/cuda/attention_cudnn.h"

namespace
{

/* Tokens of a sequence for which reading, not products, takes the time. */
enum { FEW_TOKENS = 8 };

/* Parts for so many blocks on each multiprocessor, where the cache has the keys for them. */
int plan_parts(const dti_cuda *c, const dti_attention_call &a, int blocks_per_sm)
{
    const int64_t seen =
        a.window > 0 && a.window + a.n_tokens < a.n_keys ? a.window + a.n_tokens : a.n_keys;
    const int64_t least = a.step * DTI_ATTENTION_WARPS, most = (seen + least - 1) / least;
    int64_t parts = (int64_t)c->n_sms * blocks_per_sm / (a.batch * a.n_used * a.n_blocks);

    if (parts > most) parts = most;
    return parts < 1 ? 1 : parts > DTI_ATTENTION_MAX_PARTS ? DTI_ATTENTION_MAX_PARTS : (int)parts;
}

/* A kernel, and the blocks of it that registers let run on a multiprocessor. */
struct form {
    int (*start)(dti_cuda *c, const dti_attention_call *a, int dtype);
    int n_rows, step, blocks_per_sm;
};

form choose(const dti_attention_call *a, bool pieces)
{
    enum { FEW = DTI_ATTENTION_FEW_ROWS, STEP = DTI_ATTENTION_STEP, TILE = DTI_ATTENTION_TILE };

    if (!pieces || a->has_extras)
        return form{ dti_attention_plain, DTI_ATTENTION_PLAIN_ROWS, STEP, 2 };
    if (a->n_tokens > FEW_TOKENS)
        return form{ dti_attention_many, dti_attention_many_rows(a->width), TILE, 2 };
    if (a->width <= 64) return form{ dti_attention_few, FEW, STEP, 4 };
    return form{ dti_attention_few, FEW, STEP, a->width <= 128 ? 3 : 2 };
}

/* `kept` bytes of the scratch memory are in use. */
int run(dti_cuda *c, dti_attention_call *a, int dtype, const form &f, size_t kept)
{
    int64_t n, rows;
    void *scratch = NULL;

    a->n_rows = f.n_rows;
    a->step = f.step;
    a->n_blocks = (a->n_tokens * a->group + f.n_rows - 1) / f.n_rows;
    a->n_parts = a->has_extras ? 1 : plan_parts(c, *a, f.blocks_per_sm);
    n = a->batch * a->n_used * a->n_blocks * a->n_parts;
    rows = n * f.n_rows;
    if (n > INT32_MAX || a->batch * a->n_tokens * a->n_heads > INT32_MAX)
        return dti_cuda_fail("attention: %lld queries of %lld heads are more than one call takes",
                             (long long)(a->batch * a->n_tokens), (long long)a->n_heads);
    if (a->n_parts == 1) return f.start(c, a, dtype);
    if (dti_cuda_scratch(c, kept + (size_t)rows * (a->width * sizeof(float) + sizeof(float2)),
                         &scratch) != 0)
        return -1;
    a->state = reinterpret_cast<float2 *>(static_cast<unsigned char *>(scratch) + kept);
    a->sums = reinterpret_cast<float *>(a->state + rows);
    return f.start(c, a, dtype) != 0 ? -1 : dti_attention_merge(c, a, dtype);
}

#ifdef DTI_WITH_CUDNN

/* The call in cuDNN's words: groups are whole, or there is one. */
bool describe(const dti_attention_call *a, int dtype, float scale, dti_cudnn_attention *out)
{
    const size_t skipped = (size_t)(a->first_kv * a->width) * dti_cuda_dtype_bytes(dtype);

    if (a->n_used > 1 && (a->first_head != 0 || a->n_heads != a->n_used * a->group)) return false;
    *out = dti_cudnn_attention{};
    out->q = a->q;
    out->k = static_cast<const unsigned char *>(a->k) + skipped;
    out->v = static_cast<const unsigned char *>(a->v) + skipped;
    out->y = a->y;
    out->positions = a->positions;
    out->batch = a->batch;
    out->n_tokens = a->n_tokens;
    out->n_heads = a->n_heads;
    out->n_kv = a->n_used;
    out->n_keys = a->n_keys;
    out->k_stride = a->n_kv * a->width;
    out->window = a->window;
    out->width = a->width;
    out->dtype = dtype;
    out->scale = scale;
    return true;
}

/* What cuDNN takes of many rows, then our kernel for the rest. */
int run_shared(dti_cuda *c, dti_attention_call *a, int dtype, float scale, const form &f)
{
    dti_cudnn_attention by_cudnn;
    dti_cudnn_start start = {};
    dti_attention_call own = *a;
    bool same = true;

    if (!describe(a, dtype, scale, &by_cudnn)) return run(c, a, dtype, f, 0);
    if (dti_attention_cudnn(c, &by_cudnn, &start) != 0) return -1;
    if (start.check != NULL) {
        own.y = start.check;
        if (run(c, &own, dtype, f, start.kept) != 0 ||
            dti_attention_cudnn_check(c, &start, &same) != 0)
            return -1;
    }
    if (same) a->done = start.done;
    return run(c, a, dtype, f, start.kept);
}

#endif

/* The heads of this rank: those of q must find their kv heads. */
int find_heads(dti_attention_call *a, int64_t q_offset, int64_t k_offset)
{
    const int64_t last = (q_offset + a->n_heads - 1) / a->group - k_offset;

    a->first_kv = q_offset / a->group - k_offset;
    a->n_used = last - a->first_kv + 1;
    a->first_head = (a->first_kv + k_offset) * a->group - q_offset;
    if (a->first_kv >= 0 && last < a->n_kv) return 0;
    return dti_cuda_fail("attention: query heads %lld to %lld read kv heads %lld to %lld, but this "
                         "rank holds %lld to %lld; cut q, k and v alike",
                         (long long)q_offset, (long long)(q_offset + a->n_heads - 1),
                         (long long)(k_offset + a->first_kv), (long long)(k_offset + last),
                         (long long)k_offset, (long long)(k_offset + a->n_kv - 1));
}

int check_sizes(const dti_attention_call *a, int64_t width)
{
    if (width > DTI_ATTENTION_WIDEST)
        return dti_cuda_fail("attention: heads of %lld columns, but the CUDA kernels take at most "
                             "%d: run this model on the CPU",
                             (long long)width, DTI_ATTENTION_WIDEST);
    if (a->n_keys > INT32_MAX - 256 || a->n_kv > INT32_MAX / width ||
        a->n_tokens > INT32_MAX / a->group - 256)
        return dti_cuda_fail("attention: %lld queries over %lld rows of the cache are more than "
                             "one call takes",
                             (long long)a->n_tokens, (long long)a->n_keys);
    return 0;
}

/* Options of few calls, and the operands from the i-th on, behind positions. */
void find_extras(dti_attention_call *a, const dt_kargs *args, int i, bool back,
                 const int32_t **segments)
{
    const dti_attention_attr *attr = static_cast<const dti_attention_attr *>(args->attr);

    a->both_ways = (attr->flags & DTI_ATTENTION_BOTH_WAYS) != 0;
    a->soft_cap = attr->soft_cap;
    a->plain_scale = attr->scale;
    if ((attr->flags & DTI_ATTENTION_BIAS) != 0) {
        const dt_local *bias = &args->in[i++];
        int64_t step = bias->shape[3];
        a->bias = bias->data;
        for (int axis = 2; axis >= 0; step *= bias->shape[axis--])
            a->bias_step[axis] = (attr->flags & DTI_ATTENTION_ONE_BATCH << axis) != 0 ? 0 : step;
    }
    if ((attr->flags & DTI_ATTENTION_SINKS) != 0 && !back) a->sinks = args->in[i++].data;
    *segments = (attr->flags & DTI_ATTENTION_SEGMENTS) != 0
                    ? static_cast<const int32_t *>(args->in[i].data)
                    : NULL;
    a->has_extras = a->both_ways || a->soft_cap > 0.0f || a->bias != NULL || a->sinks != NULL;
}

bool aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

} // namespace

/* A call whose q, k and v are operands first to first + 2 and whose extras are from `extras` on. */
static int unpack(dti_cuda *c, const dt_kargs *args, int first, int positions, int extras,
                  dti_attention_call *a, const int32_t **segments)
{
    const dt_local *q = &args->in[first], *k = q + 1, *v = q + 2;
    const dti_attention_attr *attr = static_cast<const dti_attention_attr *>(args->attr);

    *a = dti_attention_call{};
    *segments = NULL;
    if (dti_cuda_count(q) == 0) return 0;
    a->q = q->data;
    a->k = k->data;
    a->v = v->data;
    a->positions = static_cast<const int32_t *>(args->in[positions].data);
    a->batch = q->shape[0];
    a->n_tokens = q->shape[1];
    a->n_heads = q->shape[2];
    a->width = (int)q->shape[3];
    a->n_keys = k->shape[1];
    a->n_kv = k->shape[2];
    a->group = (int)(attr->n_heads / attr->n_kv_heads);
    a->window = attr->window;
    a->scale = attr->scale * 1.44269504088896341f;
    a->q_offset = q->offset[2];
    a->b_offset = q->offset[0];
    a->all_heads = attr->n_heads;
    a->fault = c->fault;
    find_extras(a, args, extras, first > 0, segments);
    if (check_sizes(a, q->shape[3]) != 0 || find_heads(a, q->offset[2], k->offset[2]) != 0)
        return -1;
    return 1;
}

extern "C" int dti_attention_unpack(dti_cuda *c, const dt_kargs *args, int first, int positions,
                                    dti_attention_call *a, const int32_t **segments)
{
    return unpack(c, args, first, positions, positions + 1, a, segments);
}

extern "C" int dti_attention_cuda(dti_cuda *c, const dt_kargs *args)
{
    const int dtype = (int)args->in[0].dtype;
    const int32_t *segments;
    dti_attention_call a;
    const int there = dti_attention_unpack(c, args, 0, 3, &a, &segments);
    bool pieces;

    if (there <= 0) return there;
    a.y = args->out[0].data;
    pieces = dtype != DT_F32 && a.width % 8 == 0 && a.width <= DTI_ATTENTION_WIDTH &&
             aligned(a.q) && aligned(a.k) && aligned(a.v) && aligned(a.y);
#ifdef DTI_WITH_CUDNN
    if (pieces && a.n_tokens > FEW_TOKENS && c->cudnn != NULL && !a.has_extras)
        return run_shared(c, &a, dtype, static_cast<const dti_attention_attr *>(args->attr)->scale,
                          choose(&a, pieces));
#endif
    return run(c, &a, dtype, choose(&a, pieces), 0);
}

/* q [N, 1, H, e], K pool, V pool [n, S, Kv, e], positions, sequence [N, 1], table [M, C], then bias
 * and sinks: each row by the plain kernel, which finds its keys one by one. */
extern "C" int dti_attention_paged_cuda(dti_cuda *c, const dt_kargs *args)
{
    const dt_local *pool = &args->in[1], *table = &args->in[5];
    const int32_t *segments;
    dti_attention_call a;
    const int there = unpack(c, args, 0, 3, 6, &a, &segments);

    if (there <= 0) return there;
    a.y = args->out[0].data;
    a.sequence = static_cast<const int32_t *>(args->in[4].data);
    a.table = static_cast<const int32_t *>(table->data);
    a.n_sequences = table->shape[0];
    a.first_sequence = table->offset[0];
    a.max_blocks = table->shape[1];
    a.n_pool_blocks = pool->shape[0];
    a.first_block = pool->offset[0];
    a.block_keys = pool->shape[1];
    a.n_keys = a.max_blocks * a.block_keys;
    a.has_extras = true;
    if (check_sizes(&a, a.width) != 0) return -1;
    return run(c, &a, (int)args->in[0].dtype, choose(&a, false), 0);
}

/* Keys are one part, so that what queries see is all that the scratch memory holds. */
extern "C" int dti_attention_lse_cuda(dti_cuda *c, const dt_kargs *args)
{
    const int32_t *segments;
    dti_attention_call a;
    const int there = dti_attention_unpack(c, args, 0, 3, &a, &segments);

    if (there <= 0) return there;
    a.y = args->out[0].data;
    a.lse = static_cast<float *>(args->out[1].data);
    if (dti_attention_train(c, args, segments, &a) != 0) return -1;
    return run(c, &a, (int)args->in[0].dtype, choose(&a, false), 0);
}
