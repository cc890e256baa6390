/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of tables and caches: embedding reads them, kv_write writes them. */
#include "dtensor/kernels/cuda/moves.cuh"

namespace
{

/* Row ids[i] of the global table, zeros if this rank does not hold it. */
struct embedding_places {
    char *to;
    const char *table;
    const int32_t *ids;
    int64_t first, n_rows, row_bytes;

    __device__ place operator()(int64_t i) const
    {
        const int64_t row = ids[i] - first;
        place p;

        p.to = to + i * row_bytes;
        p.from = row >= 0 && row < n_rows ? table + row * row_bytes : NULL;
        return p;
    }
};

/* Row ids[i] of an axis, for each index of the axes before it. */
struct select_places {
    char *to;
    const char *from;
    const int32_t *ids;
    int64_t n_ids, first, n_rows, row_bytes;

    __device__ place operator()(int64_t i) const
    {
        const int64_t row = ids[i % n_ids] - first;
        place p;

        p.to = to + i * row_bytes;
        p.from = row >= 0 && row < n_rows ? from + (i / n_ids * n_rows + row) * row_bytes : NULL;
        return p;
    }
};

/* Token i goes to row positions[i] of its sequence's cache; a position outside is reported and
 * written nowhere. */
struct cache_places {
    char *cache;
    const char *k;
    const int32_t *positions;
    dti_cuda_fault_word *fault;
    int64_t n_tokens, n_rows, row_bytes; /* tokens and cache rows of a sequence */

    __device__ place operator()(int64_t i) const
    {
        const int64_t at = positions[i];
        place p;

        p.to = cache + (i / n_tokens * n_rows + at) * row_bytes;
        p.from = k + i * row_bytes;
        if (at >= 0 && at < n_rows) return p;
        dti_report(fault, DTI_CUDA_BAD_POSITION, at, n_rows);
        p.to = NULL;
        return p;
    }
};

/* Row i goes to its position's place in the blocks of its sequence; what is not there is reported
 * and written nowhere. */
struct paged_places {
    char *pool;
    const char *k;
    const int32_t *positions, *sequence, *table;
    dti_cuda_fault_word *fault;
    int64_t first_sequence, n_sequences, max_blocks, first_block, n_blocks, block_keys, row_bytes;

    __device__ place operator()(int64_t i) const
    {
        const int64_t at = positions[i], m = sequence[i] - first_sequence;
        place p;

        p.to = NULL;
        p.from = k + i * row_bytes;
        if (sequence[i] < 0) return p;
        if (m < 0 || m >= n_sequences) {
            dti_report(fault, DTI_CUDA_BAD_SEQUENCE, m, n_sequences);
        } else if (at < 0 || at >= max_blocks * block_keys) {
            dti_report(fault, DTI_CUDA_BAD_POSITION, at, max_blocks * block_keys);
        } else {
            const int64_t block = table[m * max_blocks + at / block_keys] - first_block;
            if (block < 0 || block >= n_blocks)
                dti_report(fault, DTI_CUDA_BAD_BLOCK, block, n_blocks);
            else
                p.to = pool + (block * block_keys + at % block_keys) * row_bytes;
        }
        return p;
    }
};

} /* namespace */

extern "C" {

int dti_embedding_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *ids = &a->in[0], *table = &a->in[1];
    const int64_t bytes = table->shape[1] * (int64_t)dti_cuda_dtype_bytes(table->dtype);
    const embedding_places places = {
        (char *)a->out[0].data, (const char *)table->data, (const int32_t *)ids->data,
        table->offset[0],       table->shape[0],           bytes
    };

    return move(c, places, dti_cuda_count(ids), bytes,
                dti_unit_of((uint64_t)bytes | bits_of(table->data) | bits_of(a->out[0].data)));
}

int dti_index_select_cuda(dti_cuda *c, const dt_kargs *a)
{
    const int64_t axis = ((const dti_axis_attr *)a->attr)->axis;
    const dt_local *x = &a->in[0], *ids = &a->in[1];
    int64_t outer = 1, bytes = (int64_t)dti_cuda_dtype_bytes(x->dtype);

    for (int b = 0; b < x->n_axes; b++)
        if (b != axis) *(b < axis ? &outer : &bytes) *= x->shape[b];
    const select_places places = { (char *)a->out[0].data,
                                   (const char *)x->data,
                                   (const int32_t *)ids->data,
                                   ids->shape[0],
                                   x->offset[axis],
                                   x->shape[axis],
                                   bytes };
    return move(c, places, outer * ids->shape[0], bytes,
                dti_unit_of((uint64_t)bytes | bits_of(x->data) | bits_of(a->out[0].data)));
}

int dti_kv_write_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *k = &a->in[0], *cache = &a->out[0];
    const int64_t bytes = k->shape[2] * k->shape[3] * (int64_t)dti_cuda_dtype_bytes(k->dtype);
    const cache_places places = { (char *)cache->data,
                                  (const char *)k->data,
                                  (const int32_t *)a->in[1].data,
                                  c->fault,
                                  k->shape[1],
                                  cache->shape[1],
                                  bytes };

    return move(c, places, k->shape[0] * k->shape[1], bytes,
                dti_unit_of((uint64_t)bytes | bits_of(k->data) | bits_of(cache->data)));
}

int dti_kv_write_paged_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *k = &a->in[0], *table = &a->in[3], *pool = &a->out[0];
    const int64_t bytes = k->shape[2] * k->shape[3] * (int64_t)dti_cuda_dtype_bytes(k->dtype);
    const paged_places places = { (char *)pool->data,
                                  (const char *)k->data,
                                  (const int32_t *)a->in[1].data,
                                  (const int32_t *)a->in[2].data,
                                  (const int32_t *)table->data,
                                  c->fault,
                                  table->offset[0],
                                  table->shape[0],
                                  table->shape[1],
                                  pool->offset[0],
                                  pool->shape[0],
                                  pool->shape[1],
                                  bytes };

    return move(c, places, k->shape[0], bytes,
                dti_unit_of((uint64_t)bytes | bits_of(k->data) | bits_of(pool->data)));
}
} /* extern "C" */
