/* SPDX-License-Identifier: Apache-2.0
 *
 * MXFP4, as gpt-oss' experts lie in files: blocks of 32 inputs of one output are floats of 4 bits
 * (e2m1: a sign, two bits of exponent, one of fraction), two in a byte, the first in its low half,
 * times a power of two, which a byte says (e8m0: 2^(byte - 127)). Every such number is one of f32
 * and of bf16, so nothing is rounded there; those of f16 end earlier. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "base/pool.h"
#include "files/checkpoint.h"
#include "weights/param_tensors.h"

enum { CODES = 16, SCALES = 256, NAN_SCALE = 255, BUFFER_BYTES = 4 << 20, WORTH_SHARING = 1 << 16 };

static const float numbers[CODES / 2] = { 0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f };

/* What a code stands for under a scale. */
static double number_of(unsigned code, unsigned scale)
{
    const double v = ldexp((double)numbers[code & 7u], (int)scale - 127);

    return (code & 8u) != 0 ? -v : v;
}

/* Rows of one expert: what is read of them, and where it goes. */
typedef struct rows_job {
    const uint8_t *codes, *scales; /* [n, n_blocks, block / 2], [n, n_blocks] */
    int64_t n, n_blocks;
    int64_t first, count;    /* inputs, of those of the blocks */
    int64_t block;           /* inputs of one */
    int64_t step, next_step; /* elements between inputs and rows there */
    size_t size;             /* of an element */
    const void *table;       /* [SCALES, CODES] of them */
    char *to;
} rows_job;

static unsigned code_at(const uint8_t *codes, int64_t i)
{
    return codes[i / 2] >> (i % 2 * 4) & 15u;
}

/* One row, block by block. */
static void unpack_row(const rows_job *j, const uint8_t *codes, const uint8_t *scales, void *to)
{
    int64_t end;

    for (int64_t i = 0; i < j->count; i = end) {
        const int64_t b = (j->first + i) / j->block;
        const uint16_t *narrow = (const uint16_t *)j->table + scales[b] * CODES;
        const uint32_t *wide = (const uint32_t *)j->table + scales[b] * CODES;
        end = dti_min(j->count, (b + 1) * j->block - j->first);
        for (int64_t k = i; k < end && j->size == sizeof *narrow; k++)
            ((uint16_t *)to)[k * j->step] = narrow[code_at(codes, j->first + k)];
        for (int64_t k = i; k < end && j->size == sizeof *wide; k++)
            ((uint32_t *)to)[k * j->step] = wide[code_at(codes, j->first + k)];
    }
}

static void unpack_share(void *arg, int worker, int n_workers)
{
    const rows_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        unpack_row(j, j->codes + r * j->n_blocks * (j->block / 2), j->scales + r * j->n_blocks,
                   j->to + (size_t)(r * j->next_step) * j->size);
}

/* --- what is no number, or too large a one ---------------------------------------------------- */

static dt_status refuse_scale(const dti_st_entry *scales, const int64_t at[3])
{
    DT_FAIL(DT_ERR_FORMAT,
            "tensor \"%s\": the scale at [%" PRId64 ", %" PRId64 ", %" PRId64
            "] is 255, which stands for no number",
            scales->name, at[0], at[1], at[2]);
}

/* The largest scale under which every code is a number of the dtype. */
static unsigned last_safe(dt_dtype dtype)
{
    unsigned scale = NAN_SCALE - 1;
    float stored; /* room for an element of any of them */

    for (;; scale--) {
        dti_store_f32(&stored, dtype, 0, (float)number_of(7, scale));
        if (isfinite(dti_load_f32(&stored, dtype, 0))) return scale;
    }
}

/* Block b of the job's row r is of the whole tensor's at[]. */
static dt_status check_block(const rows_job *j, const dti_param_tensor *t, const int64_t at[3],
                             dt_dtype dtype, int64_t b)
{
    const unsigned scale = j->scales[b];
    float stored;

    if (scale == NAN_SCALE) return refuse_scale(t->scales, at);
    for (int64_t i = 0; i < j->block; i++) {
        const unsigned code = code_at(j->codes + b * (j->block / 2), i);
        dti_store_f32(&stored, dtype, 0, (float)number_of(code, scale));
        DT_CHECK(isfinite(dti_load_f32(&stored, dtype, 0)), DT_ERR_FORMAT,
                 "tensor \"%s\": block [%" PRId64 ", %" PRId64 ", %" PRId64 "] has %g, which %s "
                 "does not hold; load it in bf16 or f32",
                 t->entry->name, at[0], at[1], at[2], number_of(code, scale), dt_dtype_name(dtype));
    }
    return DT_OK;
}

static dt_status check_rows(const rows_job *j, const dti_param_tensor *t, int64_t expert,
                            int64_t row, int64_t block, dt_dtype dtype)
{
    const unsigned safe = last_safe(dtype);

    for (int64_t b = 0; b < j->n * j->n_blocks; b++) {
        const int64_t at[] = { expert, row + b / j->n_blocks, block + b % j->n_blocks };
        if (j->scales[b] > safe) DT_TRY(check_block(j, t, at, dtype, b));
    }
    return DT_OK;
}

dt_status dti_check_mxfp4_scales(const dti_ckpt *ckpt, const dti_param_tensor *t,
                                 const dti_st_stage *stage)
{
    const int64_t row = t->shape[1] * t->shape[2];
    dt_status st = DT_OK;
    uint8_t *scales;

    DT_TRY(dti_alloc_array((size_t)row + 1, 1, (void **)&scales));
    for (int64_t e = 0; e < t->shape[0] && st == DT_OK; e++) {
        const int64_t begin[] = { e, 0, 0 }, end[] = { e + 1, t->shape[1], t->shape[2] };
        const uint8_t *bad;
        DT_TRY_TO(done, st, dti_ckpt_read(ckpt, t->entry->name, begin, end, DT_U8, stage, scales));
        bad = memchr(scales, NAN_SCALE, (size_t)row);
        if (bad != NULL)
            st = refuse_scale(t->entry, (int64_t[]){ e, (bad - scales) / t->shape[2],
                                                     (bad - scales) % t->shape[2] });
    }
done:
    dti_free(scales);
    return st;
}

/* --- reading ---------------------------------------------------------------------------------- */

static void fill_table(void *table, dt_dtype dtype)
{
    for (unsigned s = 0; s < SCALES; s++)
        for (unsigned c = 0; c < CODES; c++)
            dti_store_f32(table, dtype, s * CODES + c, (float)number_of(c, s));
}

/* Some rows of one expert. */
static dt_status read_rows(const dti_ckpt *ckpt, const dti_param_tensor *t, const int64_t at[3],
                           rows_job *j, dt_dtype dtype, const dti_st_stage *stage)
{
    const int64_t begin[] = { at[0], at[1], at[2], 0 };
    const int64_t end[] = { at[0] + 1, at[1] + j->n, at[2] + j->n_blocks, j->block / 2 };

    DT_TRY(
        dti_ckpt_read(ckpt, t->entry->name, begin, end, DT_U8, stage, (void *)(uintptr_t)j->codes));
    DT_TRY(dti_ckpt_read(ckpt, t->scales->name, begin, end, DT_U8, stage,
                         (void *)(uintptr_t)j->scales));
    DT_TRY(check_rows(j, t, at[0], at[1], at[2], dtype));
    dti_pool_run(j->n * j->count >= WORTH_SHARING ? stage->pool : NULL, unpack_share, j);
    return DT_OK;
}

dt_status dti_read_mxfp4(const dti_ckpt *ckpt, const dti_param_tensor *t, const dti_st_box *box,
                         dt_dtype dtype, const dti_st_stage *stage, void *to)
{
    const int64_t first = box->begin[2] / t->block;
    const int64_t n_blocks = (box->end[2] - 1) / t->block + 1 - first;
    const int64_t row_bytes = n_blocks * (t->block / 2 + 1);
    const int64_t rows = dti_min(dti_max(BUFFER_BYTES / row_bytes, 1), box->end[1] - box->begin[1]);
    const size_t size = dt_dtype_size(dtype);
    rows_job j = { .n_blocks = n_blocks,
                   .first = box->begin[2] - first * t->block,
                   .count = box->end[2] - box->begin[2],
                   .block = t->block,
                   .step = box->stride[2],
                   .next_step = box->stride[1],
                   .size = size };
    dt_status st = DT_OK;
    uint8_t *room;

    DT_TRY(dti_alloc_array((size_t)(rows * row_bytes) + SCALES * CODES * size, 1, (void **)&room));
    fill_table(room, dtype);
    j.table = room;
    j.codes = room + SCALES * CODES * size;
    j.scales = j.codes + rows * n_blocks * (t->block / 2);
    for (int64_t e = box->begin[0]; e < box->end[0]; e++)
        for (int64_t r = box->begin[1]; r < box->end[1]; r += j.n) {
            j.n = dti_min(rows, box->end[1] - r);
            j.to = (char *)to + (size_t)((e - box->begin[0]) * box->stride[0] +
                                         (r - box->begin[1]) * box->stride[1]) *
                                    size;
            DT_TRY_TO(done, st, read_rows(ckpt, t, (int64_t[]){ e, r, first }, &j, dtype, stage));
        }
done:
    dti_free(room);
    return st;
}
