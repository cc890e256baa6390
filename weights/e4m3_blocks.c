/* SPDX-License-Identifier: Apache-2.0
 *
 * Floats of 8 bits (e4m3: a sign, four bits of exponent, three of fraction) with a scale for each
 * block of outputs and inputs, as plain numbers: of weights that are not multiplied as packed ones
 * are, as the keys and values of latent attention. A product is made in f32 and rounded to the
 * model's dtype. */
#include <inttypes.h>
#include <math.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "files/checkpoint.h"
#include "files/convert.h"
#include "weights/param_tensors.h"

enum { CODES = 256, BUFFER_BYTES = 4 << 20 };

static float e4m3(unsigned code)
{
    const int exponent = (int)(code >> 3 & 15u), fraction = (int)(code & 7u);
    const double v = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);

    if ((code & 127u) == 127u) return NAN;
    return (float)((code & 128u) != 0 ? -v : v);
}

/* Rows of a box, and the scales of all blocks that it meets. */
typedef struct block_rows {
    const dti_param_tensor *t;
    const dti_st_box *box;
    int64_t first_row, first_block; /* of blocks, [.., n_blocks] */
    int64_t n_blocks;
    const float *scales;
    float number[CODES];
    float *line; /* a row of the box */
    dt_dtype dtype;
} block_rows;

static dt_status unpack_row(const block_rows *b, int64_t row, const uint8_t *codes, void *to)
{
    const int64_t n = b->box->end[1] - b->box->begin[1];
    const float *scales = b->scales + (row / b->t->block_rows - b->first_row) * b->n_blocks;
    bool numbers = true;

    for (int64_t i = 0; i < n; i++) {
        const int64_t block = (b->box->begin[1] + i) / b->t->block - b->first_block;
        b->line[i] = b->number[codes[i]] * scales[block];
        numbers = numbers && isfinite(b->line[i]);
    }
    DT_CHECK(numbers, DT_ERR_FORMAT,
             "tensor \"%s\": one of its floats of 8 bits, or of their scales, is no number, in row "
             "%" PRId64,
             b->t->entry->name, row);
    dti_convert_many(to, b->dtype, b->line, DT_F32, n);
    if (b->dtype == DT_F32) return DT_OK;
    DT_CHECK(dti_count_overflows(to, b->dtype, b->line, DT_F32, n) == 0, DT_ERR_FORMAT,
             "tensor \"%s\": row %" PRId64 " has numbers beyond %s, which %s does not hold",
             b->t->entry->name, row, dti_largest_text(b->dtype), dt_dtype_name(b->dtype));
    return DT_OK;
}

/* One scale for all stands in a tensor of any axes. */
static dt_status read_scales(const dti_ckpt *ckpt, const block_rows *b, int64_t n_rows,
                             const dti_st_stage *stage, float *to)
{
    const int64_t begin[] = { b->first_row, b->first_block };
    const int64_t end[] = { b->first_row + n_rows, b->first_block + b->n_blocks };
    const bool whole = b->t->scales->n_axes != 2;

    return dti_ckpt_read(ckpt, b->t->scales->name, whole ? NULL : begin, whole ? NULL : end, DT_F32,
                         stage, to);
}

static dt_status read_rows(const dti_ckpt *ckpt, const block_rows *b, const dti_st_stage *stage,
                           uint8_t *codes, int64_t at_once, void *to)
{
    const dti_st_box *box = b->box;
    const int64_t n = box->end[1] - box->begin[1];
    const size_t step = (size_t)box->stride[0] * dt_dtype_size(b->dtype);

    for (int64_t r = box->begin[0]; r < box->end[0]; r += at_once) {
        const int64_t begin[] = { r, box->begin[1] };
        const int64_t end[] = { dti_min(r + at_once, box->end[0]), box->end[1] };
        DT_TRY(dti_ckpt_read(ckpt, b->t->entry->name, begin, end, DT_U8, stage, codes));
        for (int64_t i = r; i < end[0]; i++)
            DT_TRY(unpack_row(b, i, codes + (i - r) * n,
                              (char *)to + (size_t)(i - box->begin[0]) * step));
    }
    return DT_OK;
}

dt_status dti_read_e4m3(const dti_ckpt *ckpt, const dti_param_tensor *t, const dti_st_box *box,
                        dt_dtype dtype, const dti_st_stage *stage, void *to)
{
    const int64_t n = box->end[1] - box->begin[1];
    const int64_t rows = dti_min(dti_max(BUFFER_BYTES / n, 1), box->end[0] - box->begin[0]);
    block_rows b = { .t = t,
                     .box = box,
                     .first_row = box->begin[0] / t->block_rows,
                     .first_block = box->begin[1] / t->block,
                     .dtype = dtype };
    const int64_t n_rows = (box->end[0] - 1) / t->block_rows + 1 - b.first_row;
    float *floats = NULL;
    uint8_t *codes = NULL;
    dt_status st = DT_OK;

    DT_CHECK(box->stride[1] == 1, DT_ERR_INTERNAL, "%s: inputs lie apart", t->name);
    b.n_blocks = (box->end[1] - 1) / t->block + 1 - b.first_block;
    for (unsigned c = 0; c < CODES; c++) b.number[c] = e4m3(c);
    DT_TRY_TO(done, st,
              dti_alloc_array((size_t)(n_rows * b.n_blocks + n), sizeof *floats, (void **)&floats));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)(rows * n), 1, (void **)&codes));
    b.scales = floats;
    b.line = floats + n_rows * b.n_blocks;
    DT_TRY_TO(done, st, read_scales(ckpt, &b, n_rows, stage, floats));
    st = read_rows(ckpt, &b, stage, codes, rows, to);
done:
    dti_free(codes);
    dti_free(floats);
    return st;
}
