/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading all numbers of a tensor for those that no model should have. */
#include <string.h>

#include "base/memory.h"
#include "files/checkpoint.h"

enum { BLOCK_BYTES = 1 << 22 };

/* Without its sign a float is NaN above the bits of infinity, as an unsigned number of its width:
 * the largest one tells whether there is anything to count, in a loop of one maximum per number. */
#define DT_SCAN(WORD)                                                                     \
    static void scan_##WORD(const void *data, int64_t n, WORD infinity, dti_ckpt_scan *s) \
    {                                                                                     \
        const WORD magnitude = (WORD)((WORD) ~(WORD)0 >> 1);                              \
        const WORD *x = data;                                                             \
        WORD largest = 0;                                                                 \
                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                 \
            const WORD m = x[i] & magnitude;                                              \
            largest = m > largest ? m : largest;                                          \
        }                                                                                 \
        for (int64_t i = 0; i < n && largest >= infinity; i++) {                          \
            const WORD m = x[i] & magnitude;                                              \
            s->n_nan += m > infinity;                                                     \
            s->n_infinite += m == infinity;                                               \
            if (m >= infinity && s->first < 0) s->first = s->n + i;                       \
        }                                                                                 \
        s->n += n;                                                                        \
        s->all_zero = s->all_zero && largest == 0;                                        \
    }

DT_SCAN(uint8_t)
DT_SCAN(uint16_t)
DT_SCAN(uint32_t)
DT_SCAN(uint64_t)
#undef DT_SCAN

void dti_ckpt_scan_block(dt_dtype dtype, const void *data, int64_t n, dti_ckpt_scan *s)
{
    if (dtype == DT_BF16) scan_uint16_t(data, n, 0x7f80, s);
    if (dtype == DT_F16) scan_uint16_t(data, n, 0x7c00, s);
    if (dtype == DT_F32) scan_uint32_t(data, n, 0x7f800000, s);
    if (dtype == DT_F64) scan_uint64_t(data, n, 0x7ff0000000000000, s);
}

/* e4m3 has no infinity, and one NaN of each sign. */
static void scan_e4m3(const void *data, int64_t n, dti_ckpt_scan *s)
{
    scan_uint8_t(data, n, 0x7f, s);
    s->n_nan += s->n_infinite;
    s->n_infinite = 0;
}

/* Numbers of one step along the first axis. */
static int64_t row_of(const dti_st_entry *e)
{
    int64_t n = 1;

    for (int a = 1; a < e->n_axes; a++) n *= e->shape[a];
    return n;
}

dt_status dti_ckpt_scan_values(const dti_ckpt *ckpt, const dti_st_entry *e,
                               const dti_st_stage *stage, dti_ckpt_scan *out)
{
    const int64_t rows = e->n_axes > 0 ? e->shape[0] : 1, row = row_of(e);
    const bool e4m3 = strcmp(e->dtype_name, "F8_E4M3") == 0;
    int64_t begin[DT_MAX_AXES] = { 0 }, end[DT_MAX_AXES] = { 0 }, at_once;
    dt_status st = DT_OK;
    void *data = NULL;

    *out = (dti_ckpt_scan){ .first = -1, .all_zero = true };
    if (!e->supported || !(e4m3 || dt_dtype_is_float(e->dtype)) || rows * row == 0) return DT_OK;
    at_once = BLOCK_BYTES / (row * (int64_t)dt_dtype_size(e->dtype));
    if (at_once < 1) at_once = 1;
    if (at_once > rows) at_once = rows;
    DT_TRY(dti_alloc_array((size_t)(at_once * row), dt_dtype_size(e->dtype), &data));
    memcpy(end, e->shape, sizeof end);
    for (int64_t r = 0; r < rows; r += at_once) {
        const int64_t n = r + at_once < rows ? at_once : rows - r;
        begin[0] = r;
        end[0] = r + n;
        DT_TRY_TO(done, st,
                  dti_ckpt_read(ckpt, e->name, e->n_axes > 0 ? begin : NULL,
                                e->n_axes > 0 ? end : NULL, e->dtype, stage, data));
        if (e4m3)
            scan_e4m3(data, n * row, out);
        else
            dti_ckpt_scan_block(e->dtype, data, n * row, out);
    }
done:
    dti_free(data);
    return st;
}
