/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of 32 rows and more with operands that lie transposed, where there are no panels of ours
 * (panels.h): AVX2, portable, and bf16 with dot products, by oneDNN. The outputs are cut into
 * blocks whose sizes depend on the shape alone; workers take blocks as they become free, each
 * calling the library on its own thread. Sums of a block are f32 in the worker's scratch; bias and
 * rounding are ours, so that all dtypes and instruction sets share them.
 *
 * What the machine cannot multiply in its own dtype (f16; bf16 without bf16 instructions) is
 * converted to f32, which is exact, and what lies transposed is turned: x once, w by blocks. */
#include "dtensor/kernels/cpu/linear.h"

#include <stdatomic.h>

#include "dtensor/kernels/cpu/onednn.h"
#include "dtensor/kernels/cpu/turn.h"

/* Rows are cut into blocks of 256, 128, 64 and 32, so that a handful of products serves every M;
 * the last block of 32 overlaps its predecessor. Outputs: see chunk_of(). */
enum { N_ROW_SIZES = 4, MAX_ROWS = 256, MIN_CHUNK = 64, MAX_CHUNK = 128 };

typedef struct gemm_job {
    const dti_linear *l;
    dt_dtype dtype;                              /* that is multiplied: bf16 or f32 */
    const void *x;                               /* [M, I] in that dtype */
    char *prepared;                              /* where x is made so, if it lies otherwise */
    int64_t chunk, n_chunks;                     /* outputs per block (the last may be smaller) */
    const dti_product *products[N_ROW_SIZES][2]; /* by size of rows; full chunk, last chunk */
    char *scratch;                               /* of worker 0 */
    size_t sums_bytes, w_bytes, lib_bytes;       /* parts of a worker's scratch */
    _Atomic int64_t next;                        /* chunk to be taken */
    _Atomic int status;                          /* of oneDNN, 0: fine */
} gemm_job;

static size_t align(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/* Wide enough for the library to be fast, narrow enough to feed 16 workers. */
static int64_t chunk_of(int64_t n_out)
{
    const int64_t sixteenth = (n_out + 255) / 256 * 16;

    if (sixteenth < MIN_CHUNK) return MIN_CHUNK;
    return sixteenth < MAX_CHUNK ? sixteenth : MAX_CHUNK;
}

/* The largest size that still fits into `left` rows; the smallest if none does. */
static int size_for(int64_t left)
{
    int size = 0;

    while (size < N_ROW_SIZES - 1 && (MAX_ROWS >> size) > left) size++;
    return size;
}

/* --- one chunk of outputs --------------------------------------------------------------------- */

static void gemm_chunk(gemm_job *j, int64_t chunk, char *scratch)
{
    const dti_linear *l = j->l;
    const int64_t o = chunk * j->chunk, n = l->n_out - o < j->chunk ? l->n_out - o : j->chunk;
    const int64_t bytes = (int64_t)dt_dtype_size(j->dtype);
    float *sums = (float *)(void *)scratch;
    void *w = scratch + j->sums_bytes;

    dti_turn(&(dti_turn_job){ l->cpu, w, l->w->data, l->w->dtype, j->dtype, l->n_out, l->n_in }, o,
             n);
    for (int64_t m = 0; m < l->n_rows;) {
        const int size = size_for(l->n_rows - m);
        const int64_t rows = MAX_ROWS >> size;
        if (m + rows > l->n_rows) m = l->n_rows - rows;
        const int st = dti_product_run(j->products[size][n < j->chunk],
                                       (const char *)j->x + m * l->n_in * bytes, w, sums,
                                       scratch + j->sums_bytes + j->w_bytes);
        if (st != 0) {
            j->status = st;
            return;
        }
        dti_linear_store(l, sums, n, m, rows, o, n);
        m += rows;
    }
}

static void gemm_share(void *arg, int worker, int n_workers)
{
    gemm_job *j = arg;
    char *scratch = j->scratch + (size_t)worker * (j->sums_bytes + j->w_bytes + j->lib_bytes);

    (void)n_workers;
    for (;;) {
        const int64_t chunk = atomic_fetch_add(&j->next, 1);
        if (chunk >= j->n_chunks || j->status != 0) return;
        gemm_chunk(j, chunk, scratch);
        dti_cpu_beside(j->l->cpu, worker);
    }
}

/* --- the whole -------------------------------------------------------------------------------- */

/* x as it is multiplied: converted, turned or both. */
static void prepare_share(void *arg, int worker, int n_workers)
{
    const gemm_job *j = arg;
    const dti_linear *l = j->l;
    const int64_t in_bytes = (int64_t)dt_dtype_size(l->x->dtype);
    const int64_t out_bytes = (int64_t)dt_dtype_size(j->dtype);
    int64_t begin, end;

    if (l->x_turned) {
        dti_pool_share(l->n_rows, DTI_TURN_ROWS, worker, n_workers, &begin, &end);
        dti_turn(&(dti_turn_job){ l->cpu, j->prepared + begin * l->n_in * out_bytes, l->x->data,
                                  l->x->dtype, j->dtype, l->n_rows, l->n_in },
                 begin, end - begin);
    } else {
        dti_pool_share(l->n_rows * l->n_in, 64, worker, n_workers, &begin, &end);
        l->cpu->rows[l->x->dtype].load((float *)(void *)j->prepared + begin,
                                       (const char *)l->x->data + begin * in_bytes, end - begin);
    }
}

/* The product of one size of rows and of full or last chunks, if there are such chunks. */
static dt_status find_product(gemm_job *j, int size, bool last)
{
    const dti_linear *l = j->l;
    const int64_t rest = l->n_out - (j->n_chunks - 1) * j->chunk;
    const dti_product_shape shape = { MAX_ROWS >> size, last ? rest : j->chunk, l->n_in, j->dtype };
    const dti_product **p = &j->products[size][last];
    const bool used = last ? rest < j->chunk : j->n_chunks > 1 || rest == j->chunk;

    if (!used || *p != NULL) return DT_OK;
    DT_TRY(dti_onednn_product(l->cpu->onednn, &shape, p));
    if (align(dti_product_scratch(*p)) > j->lib_bytes)
        j->lib_bytes = align(dti_product_scratch(*p));
    return DT_OK;
}

/* The products of all row blocks, and the scratch of the greediest. */
static dt_status find_products(gemm_job *j)
{
    for (int64_t m = 0; m < j->l->n_rows;) {
        const int size = size_for(j->l->n_rows - m);
        DT_TRY(find_product(j, size, false));
        DT_TRY(find_product(j, size, true));
        m += MAX_ROWS >> size;
    }
    return DT_OK;
}

dt_status dti_linear_library(const dti_linear *l)
{
    const bool native = l->w->dtype == DT_BF16 && l->cpu->isa >= DTI_ISA_AVX512_BF16;
    gemm_job job = { .l = l,
                     .dtype = native ? DT_BF16 : DT_F32,
                     .x = l->x->data,
                     .chunk = chunk_of(l->n_out),
                     .sums_bytes = (size_t)MAX_ROWS * MAX_CHUNK * sizeof(float) };
    const bool converts = l->w->dtype != job.dtype;
    const size_t bytes = dt_dtype_size(job.dtype), x_size = (size_t)(l->n_rows * l->n_in) * bytes;
    const size_t x_bytes = converts || l->x_turned ? align(x_size) : 0;
    void *scratch;

    if (l->cpu->onednn == NULL) DT_TRY(dti_onednn_create(&l->cpu->onednn));
    job.n_chunks = (l->n_out + job.chunk - 1) / job.chunk;
    DT_TRY(find_products(&job));
    job.w_bytes = align((size_t)(job.chunk * l->n_in) * bytes);
    DT_TRY(dti_cpu_scratch(l->cpu,
                           x_bytes + (size_t)dti_pool_size(l->cpu->pool) *
                                         (job.sums_bytes + job.w_bytes + job.lib_bytes),
                           &scratch));
    job.scratch = (char *)scratch + x_bytes;
    if (x_bytes > 0) {
        job.x = job.prepared = scratch;
        dti_cpu_run(l->cpu, dti_bytes(l->x), prepare_share, &job);
    }
    dti_cpu_run(l->cpu, dti_bytes(l->w), gemm_share, &job);
    DT_CHECK(job.status == 0, DT_ERR_INTERNAL,
             "oneDNN answers status %d to a product of [%lld, %lld] and [%lld, %lld]^T", job.status,
             (long long)l->n_rows, (long long)l->n_in, (long long)l->n_out, (long long)l->n_in);
    return DT_OK;
}
