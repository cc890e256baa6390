/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed weights as others write them: compressed-tensors, whose codes lie as they do here, byte
 * for byte or with a sign; floats of 8 bits with scales of blocks; GPTQ and AWQ, whose words lie
 * turned. A scale may be for more inputs or outputs than here, and is repeated then, which changes
 * nothing. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "files/checkpoint.h"
#include "weights/packed_params.h"

/* A part of a tensor, rows behind each other. */
typedef struct side {
    int64_t row, column; /* of the whole, where it begins */
    int64_t columns;
    void *data;
} side;

/* Rows and columns of a tensor, which stand the other way round in a `turned` one; freed with
 * dti_free(). One that has a single element has it for all. */
static dt_status open_side(const dti_packed_box *b, const dti_param_tensor *t, dt_dtype dtype,
                           bool turned, dt_rows rows, dt_rows columns, side *out)
{
    const int r = turned ? 1 : 0;
    dti_st_box box = { .begin = { 0 } };
    dt_status st;

    *out = (side){ rows.begin, columns.begin, columns.end - columns.begin, NULL };
    box.begin[r] = rows.begin;
    box.end[r] = rows.end;
    box.stride[r] = out->columns;
    box.begin[1 - r] = columns.begin;
    box.end[1 - r] = columns.end;
    box.stride[1 - r] = 1;
    for (int a = 0; a < t->entry->n_axes && t->single; a++) {
        box.begin[a] = 0;
        box.end[a] = 1;
    }
    DT_TRY(dti_alloc_array((size_t)((rows.end - rows.begin) * out->columns), dt_dtype_size(dtype),
                           &out->data));
    st = dti_ckpt_read_strided(b->from->ckpt, t->entry->name, &box, dtype, b->from->stage,
                               out->data);
    if (st != DT_OK) dti_free(out->data);
    return st;
}

/* What `every` rows or columns have one of. */
static dt_rows each_of(int64_t begin, int64_t n, int64_t every)
{
    return (dt_rows){ begin / every, (begin + n - 1) / every + 1 };
}

/* --- codes ------------------------------------------------------------------------------------ */

/* AWQ: which of eight neighbouring outputs a word has first, second, ... */
static const int awq_place[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

static unsigned awq_code(uint32_t word, int64_t row)
{
    return word >> (4 * awq_place[row % 8]) & 15u;
}

static dt_status read_awq(const dti_packed_box *b, const dti_param_tensor *t)
{
    const dt_rows inputs = { b->input, b->input + b->n_inputs };
    side s;

    DT_TRY(open_side(b, t, DT_I32, false, inputs, each_of(b->row, b->n_rows, 8), &s));
    for (int64_t o = 0; o < b->n_rows; o++)
        for (int64_t i = 0; i < b->n_inputs; i += 2) {
            const int64_t row = b->row + o;
            const uint32_t *at = (const uint32_t *)s.data + i * s.columns + row / 8 - s.column;
            b->codes[o * b->codes_step + i / 2] =
                (uint8_t)(awq_code(at[0], row) | awq_code(at[s.columns], row) << 4);
        }
    dti_free(s.data);
    return DT_OK;
}

/* Words or bytes of inputs that lie as they do here, or turned, straight into place. */
static dt_status read_in_place(const dti_packed_box *b, const dti_param_tensor *t, dt_dtype dtype,
                               int64_t per, bool turned)
{
    const int r = turned ? 1 : 0;
    dti_st_box box = { .begin = { 0 } };

    box.begin[r] = b->row;
    box.end[r] = b->row + b->n_rows;
    box.stride[r] = b->codes_step / (int64_t)dt_dtype_size(dtype);
    box.begin[1 - r] = b->input / per;
    box.end[1 - r] = (b->input + b->n_inputs) / per;
    box.stride[1 - r] = 1;
    return dti_ckpt_read_strided(b->from->ckpt, t->entry->name, &box, dtype, b->from->stage,
                                 b->codes);
}

/* Bytes with a sign become such without, as words have them; floats stay. */
static dt_status read_bytes(const dti_packed_box *b, const dti_param_tensor *t)
{
    DT_TRY(read_in_place(b, t, DT_U8, 1, false));
    for (int64_t o = 0; o < b->n_rows; o++) {
        uint8_t *bytes = b->codes + o * b->codes_step;
        for (int64_t i = 0; i < b->n_inputs && !b->packing->floats; i++) bytes[i] ^= 0x80u;
        for (int64_t i = 0; i < b->n_inputs && b->packing->floats; i++)
            DT_CHECK((bytes[i] & 0x7fu) != 0x7fu, DT_ERR_FORMAT,
                     "tensor \"%s\": one of its floats of 8 bits is no number", t->name);
    }
    return DT_OK;
}

static dt_status read_codes(const dti_packed_box *b)
{
    const dti_param_tensor *t = dti_packed_tensor(b, DT_PACKED_CODES);
    const dt_packed_form form = b->packing->form;

    if (form == DT_PACKED_AWQ) return read_awq(b, t);
    if (form == DT_PACKED_BYTES || b->packing->floats) return read_bytes(b, t);
    return read_in_place(b, t, DT_I32, 32 / b->packing->bits, form != DT_PACKED_WORDS);
}

/* Groups of inputs that follow each other alone are what layers have. */
dt_status dti_check_input_groups(const dti_ckpt *ckpt, const dti_param_tensor *t,
                                 const dti_st_stage *stage)
{
    const int64_t begin = 0, n = t->shape[0];
    int32_t *group;
    dt_status st;

    DT_TRY(dti_alloc_array((size_t)n + 1, sizeof *group, (void **)&group));
    st = dti_ckpt_read(ckpt, t->entry->name, &begin, &n, DT_I32, stage, group);
    for (int64_t i = 0; i < n && st == DT_OK; i++)
        if (group[i] != i / t->input_group)
            st = dt_fail(DT_ERR_UNSUPPORTED,
                         "tensor \"%s\": input %" PRId64 " is of group %d, not of %" PRId64
                         ": groups of inputs that do not follow each other (desc_act, act_order) "
                         "are not read",
                         t->entry->name, i, (int)group[i], i / t->input_group);
    dti_free(group);
    return st;
}

static dt_status check_order(const dti_packed_box *b)
{
    for (size_t i = 0; i < b->from->n; i++) {
        const dti_param_tensor *t = &b->from->tensors[i];
        if (t->input_group > 0 && (t->whole || (t->expert == b->expert && t->first == b->first)))
            DT_TRY(dti_check_input_groups(b->from->ckpt, t, b->from->stage));
    }
    return DT_OK;
}

/* --- scales and zero points ------------------------------------------------------------------- */

static int64_t file_group(const dt_packing *p)
{
    return p->file_group > 0 ? p->file_group : p->group;
}

static dt_rows box_groups(const dti_packed_box *b)
{
    return each_of(b->input, b->n_inputs, file_group(b->packing));
}

/* The file's group that group g of the box is part of. */
static int64_t column_of(const dti_packed_box *b, int64_t g)
{
    return (b->input + g * b->packing->group) / file_group(b->packing);
}

static dt_status spread_scales(const dti_packed_box *b, const side *s, const char *name)
{
    const int64_t every = dti_max(b->packing->file_rows, 1);

    for (int64_t o = 0; o < b->n_rows; o++)
        for (int64_t g = 0; g < b->n_inputs / b->packing->group; g++) {
            const int64_t row = (b->row + o) / every - s->row;
            const float v = dti_load_f32(s->data, b->scales_dtype,
                                         row * s->columns + column_of(b, g) - s->column);
            DT_CHECK(isfinite(v), DT_ERR_FORMAT, "tensor \"%s\": a scale is %f, no number", name,
                     (double)v);
            dti_store_f32(b->scales, b->scales_dtype, o * b->groups_step + g, v);
        }
    return DT_OK;
}

static dt_status read_scales(const dti_packed_box *b)
{
    const dti_param_tensor *t = dti_packed_tensor(b, DT_PACKED_SCALES);
    const dt_rows rows = each_of(b->row, b->n_rows, dti_max(b->packing->file_rows, 1));
    dt_status st;
    side s;

    DT_TRY(open_side(b, t, b->scales_dtype, b->packing->form >= DT_PACKED_GPTQ, rows, box_groups(b),
                     &s));
    st = spread_scales(b, &s, t->name);
    dti_free(s.data);
    return st;
}

/* How a format has zero points: so many rows in an element, the low bits first; turned; plus one,
 * or with a sign, which is to be changed. */
static unsigned zero_in(const dt_packing *p, const side *s, int64_t at, int64_t row)
{
    const unsigned most = (1u << p->bits) - 1, shift = (unsigned)(row % (32 / p->bits) * p->bits);

    switch (p->form) {
    case DT_PACKED_WORDS:
    case DT_PACKED_GPTQ_V2:
        return ((const uint32_t *)s->data)[at] >> shift & most;
    case DT_PACKED_GPTQ:
        return ((((const uint32_t *)s->data)[at] >> shift) + 1u) & most;
    case DT_PACKED_AWQ:
        return awq_code(((const uint32_t *)s->data)[at], row);
    default:
        return ((const uint8_t *)s->data)[at] ^ 0x80u;
    }
}

static dt_status read_zeros(const dti_packed_box *b)
{
    const dt_packing *p = b->packing;
    const bool bytes = p->form == DT_PACKED_BYTES;
    const int64_t per = bytes ? 1 : 32 / p->bits;
    side s;

    if (b->zeros == NULL) return DT_OK;
    DT_TRY(open_side(b, dti_packed_tensor(b, DT_PACKED_ZEROS), bytes ? DT_U8 : DT_I32,
                     p->form >= DT_PACKED_GPTQ, each_of(b->row, b->n_rows, per), box_groups(b),
                     &s));
    for (int64_t o = 0; o < b->n_rows; o++)
        for (int64_t g = 0; g < b->n_inputs / p->group; g++) {
            const int64_t row = b->row + o;
            const int64_t at = (row / per - s.row) * s.columns + column_of(b, g) - s.column;
            b->zeros[o * b->groups_step + g] = (uint8_t)zero_in(p, &s, at, row);
        }
    dti_free(s.data);
    return DT_OK;
}

dt_status dti_packed_from_files(const dti_packed_box *b)
{
    DT_TRY(check_order(b));
    DT_TRY(read_codes(b));
    DT_TRY(read_scales(b));
    DT_TRY(read_zeros(b));
    return DT_OK;
}
