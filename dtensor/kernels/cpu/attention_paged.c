/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys and values in blocks of a pool. N rows of one token each, of sequences that a table [M, C]
 * gives blocks to: position p of sequence m lies in block table[m, p / S], row p % S. A block has
 * whole tiles of keys, so a row adds up as behind keys that lie together, in the same order. Rows
 * that follow each other in a sequence are taken side by side, as the tokens of one pass are. */
#include "dtensor/kernels/cpu/attention.h"

#include <string.h>

/* Numbers that are contents of tensors: no rule saw them. */
typedef struct paged_call {
    const char *op;
    const int32_t *positions, *sequences, *table; /* [N], [N], [M, C] */
    int64_t n, max_blocks, block_keys;
    int64_t first_sequence, n_sequences, first_block, n_blocks; /* of this rank */
} paged_call;

static paged_call paged_call_of(const char *op, const dt_local *positions, const dt_local *pool)
{
    const dt_local *sequences = positions + 1, *table = positions + 2;

    return (paged_call){ .op = op,
                         .positions = positions->data,
                         .sequences = sequences->data,
                         .table = table->data,
                         .n = positions->shape[0],
                         .max_blocks = table->shape[1],
                         .block_keys = pool->shape[1],
                         .first_sequence = table->offset[0],
                         .n_sequences = table->shape[0],
                         .first_block = pool->offset[0],
                         .n_blocks = pool->shape[0] };
}

static dt_status check_row(const paged_call *c, int64_t i)
{
    const int64_t m = c->sequences[i] - c->first_sequence;

    DT_CHECK(m >= 0 && m < c->n_sequences, DT_ERR_ARG,
             "%s: row %lld is of sequence %d, but the table has %lld to %lld", c->op, (long long)i,
             c->sequences[i], (long long)c->first_sequence,
             (long long)(c->first_sequence + c->n_sequences - 1));
    DT_CHECK(c->positions[i] >= 0 && c->positions[i] < c->max_blocks * c->block_keys, DT_ERR_ARG,
             "%s: row %lld has position %d; a sequence has %lld blocks of %lld tokens at most",
             c->op, (long long)i, c->positions[i], (long long)c->max_blocks,
             (long long)c->block_keys);
    return DT_OK;
}

static const int32_t *blocks_of(const paged_call *c, int64_t i)
{
    return c->table + (c->sequences[i] - c->first_sequence) * c->max_blocks;
}

/* The blocks of row i that have its keys first .. last. */
static dt_status check_blocks(const paged_call *c, int64_t i, int64_t first, int64_t last)
{
    const int32_t *blocks = blocks_of(c, i);

    for (int64_t k = first / c->block_keys; k <= last / c->block_keys; k++)
        DT_CHECK(blocks[k] >= c->first_block && blocks[k] - c->first_block < c->n_blocks,
                 DT_ERR_ARG,
                 "%s: positions %lld to %lld of sequence %d lie in block %d, but the pool has %lld "
                 "to %lld",
                 c->op, (long long)(k * c->block_keys), (long long)((k + 1) * c->block_keys - 1),
                 c->sequences[i], blocks[k], (long long)c->first_block,
                 (long long)(c->first_block + c->n_blocks - 1));
    return DT_OK;
}

/* --- writing ---------------------------------------------------------------------------------- */

typedef struct write_job {
    const paged_call *call;
    const char *k;
    char *pool;
    int64_t row_bytes;
} write_job;

static void write_share(void *arg, int worker, int n_workers)
{
    const write_job *j = arg;
    const paged_call *c = j->call;
    int64_t begin, end;

    dti_pool_share(c->n, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t row;
        if (c->sequences[i] < 0) continue;
        row = blocks_of(c, i)[c->positions[i] / c->block_keys] - c->first_block;
        row = row * c->block_keys + c->positions[i] % c->block_keys;
        memcpy(j->pool + row * j->row_bytes, j->k + i * j->row_bytes, (size_t)j->row_bytes);
    }
}

/* k [N, 1, K, e], positions, sequences [N, 1], table [M, C], pool [n, S, K, e], which is the
 * result. Rows are alone, no two of which have one place: cutting heads or rows over ranks
 * changes no bit. */
dt_status dti_kv_write_paged_cpu(const dt_kargs *a)
{
    const dt_local *k = &a->in[0], *pool = &a->out[0];
    const paged_call call = paged_call_of("kv_write_paged", &a->in[1], pool);
    write_job job = { &call, k->data, pool->data,
                      k->shape[2] * k->shape[3] * (int64_t)dt_dtype_size(k->dtype) };

    for (int64_t i = 0; i < call.n; i++) {
        if (call.sequences[i] < 0) continue;
        DT_TRY(check_row(&call, i));
        DT_TRY(check_blocks(&call, i, call.positions[i], call.positions[i]));
    }
    if (job.row_bytes > 0) dti_cpu_run(a->cpu, 2 * call.n * job.row_bytes, write_share, &job);
    return DT_OK;
}

/* --- attention -------------------------------------------------------------------------------- */

/* Rows i and i + 1 are tokens of one sequence that follow each other. */
static bool goes_on(const paged_call *c, int64_t i)
{
    return i + 1 < c->n && c->sequences[i + 1] == c->sequences[i] &&
           c->positions[i + 1] == c->positions[i] + 1;
}

/* The stretches of a call in the order of rows. Rows of no sequence are in none. */
static dt_status find_stretches(const paged_call *c, const dti_attention *a,
                                dti_attention_stretch *out, int64_t *n)
{
    *n = 0;
    for (int64_t i = 0, end; i < c->n; i = end) {
        int64_t first, last;
        end = i + 1;
        if (c->sequences[i] < 0) continue;
        while (goes_on(c, end - 1)) end++;
        DT_TRY(check_row(c, i));
        DT_TRY(check_row(c, end - 1));
        dti_attention_range(a, 0, i, &first, &last);
        DT_TRY(check_blocks(c, i, first, c->positions[end - 1]));
        out[(*n)++] = (dti_attention_stretch){ .first_token = i,
                                               .n_tokens = end - i,
                                               .in_blocks = blocks_of(c, i) };
    }
    return DT_OK;
}

/* Rows of no sequence, whose result nobody wants: what follows of it is to be numbers. */
static void clear_padding(const paged_call *c, const dti_attention *a)
{
    const int64_t bytes = a->n_heads * a->width * a->bytes;

    for (int64_t i = 0; i < c->n; i++)
        if (c->sequences[i] < 0) memset(a->y + i * bytes, 0, (size_t)bytes);
}

/* A bias has a column for each key that some row sees. */
static dt_status check_bias(const dt_kargs *args, const paged_call *c)
{
    const dti_attention_attr *attr = args->attr;
    const int64_t columns = (attr->flags & DTI_ATTENTION_BIAS) != 0 ? args->in[6].shape[3] : 0;

    for (int64_t i = 0; i < c->n && (attr->flags & DTI_ATTENTION_BIAS) != 0; i++)
        DT_CHECK(c->sequences[i] < 0 || c->positions[i] < columns, DT_ERR_ARG,
                 "%s: row %lld has position %d, but the bias is of %lld keys", c->op, (long long)i,
                 c->positions[i], (long long)columns);
    return DT_OK;
}

/* q [N, 1, H, e], K pool, V pool [n, S, Kv, e], positions, sequences [N, 1], table [M, C], then
 * a bias [N or 1, H or 1, 1, R] and sinks [H] -> y [N, 1, H, e]. What attention.c says of a row
 * holds: neither the numbers of its blocks nor the rows beside it change a bit. */
dt_status dti_attention_paged_cpu(const dt_kargs *args)
{
    const paged_call call = paged_call_of("attention_paged", &args->in[3], &args->in[1]);
    dti_attention_stretch *stretches;
    dti_attention a;
    int64_t n;
    void *room;

    DT_TRY(dti_attention_unpack(args, call.op, 0, 3, &a));
    dti_attention_find_extras(&a, args, 6, false);
    if (dti_local_count(&args->in[0]) == 0) return DT_OK;
    DT_CHECK(call.block_keys % DTI_TILE_KEYS == 0, DT_ERR_UNSUPPORTED,
             "%s: blocks of %lld tokens, must be a multiple of %d", call.op,
             (long long)call.block_keys, DTI_TILE_KEYS);
    DT_TRY(dti_attention_check_heads(call.op, &a));
    DT_TRY(check_bias(args, &call));
    a.y = args->out[0].data;
    a.table = call.table;
    a.block_keys = call.block_keys;
    a.first_block = call.first_block;
    a.n_rows = call.max_blocks * call.block_keys;
    a.n_tokens = call.n; /* of one batch row */
    a.batch = 1;
    a.bias_step[2] = a.bias_step[0];
    a.bias_step[0] = 0;
    clear_padding(&call, &a);
    DT_TRY(dti_cpu_outer_scratch(a.cpu, (size_t)call.n * sizeof *stretches, &room));
    stretches = room;
    DT_TRY(find_stretches(&call, &a, stretches, &n));
    if (n > 0) DT_TRY(dti_attention_forward_of(&a, stretches, n));
    return DT_OK;
}
