/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights become codes of few bits, group by group of inputs. A rank has whole groups, so it packs
 * what it has, and codes are the same on every mesh. Of experts each is a weight of its own, and in
 * files mostly a tensor, or two. */
#include "weights/packed_params.h"

#include <math.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "dtensor/host.h"
#include "files/checkpoint.h"
#include "parallel_styles/kind.h"
#include "placements/layout.h"
#include "weights/read_layers.h"

enum { BUFFER_BYTES = 4 << 20 }; /* of a plain weight that is packed */

/* --- one group -------------------------------------------------------------------------------- */

/* As compressed-tensors has it: symmetric, the largest magnitude is half of all codes but half a
 * code away from zero; otherwise the least and the largest number, zero among them, are the first
 * and the last code. A scale is rounded before codes are found with it. */
typedef struct group_codes {
    float scale;
    int zero;
} group_codes;

static group_codes measure(const float *w, int64_t n, const dt_packing *p, bool zeros,
                           dt_dtype dtype)
{
    const int codes = 1 << p->bits;
    float least = 0.0f, most = 0.0f, span;
    group_codes g = { 0.0f, codes / 2 };
    double stored; /* room for an element of any dtype */

    for (int64_t i = 0; i < n; i++) {
        least = w[i] < least ? w[i] : least;
        most = w[i] > most ? w[i] : most;
    }
    span = zeros ? (most - least) / (float)(codes - 1)
                 : fmaxf(-least, most) / ((float)(codes - 1) / 2.0f);
    dti_store_f32(&stored, dtype, 0, span);
    g.scale = dti_load_f32(&stored, dtype, 0);
    if (g.scale > 0.0f && zeros) g.zero = (int)fminf(rintf(-least / g.scale), (float)(codes - 1));
    if (!(g.scale > 0.0f)) g.scale = 1.0f; /* nothing but zeros, or below all numbers of dtype */
    return g;
}

static unsigned code_of(float w, group_codes g, int bits)
{
    const float q = rintf(w / g.scale) + (float)g.zero, last = (float)((1 << bits) - 1);

    return (unsigned)(q < 0.0f ? 0.0f : q > last ? last : q);
}

/* One row of the box. False if one of its weights is no number. */
static bool pack_row(const float *w, const dti_packed_box *b, int64_t o)
{
    const dt_packing *p = b->packing;
    uint8_t *codes = b->codes + o * b->codes_step;
    int64_t at = o * b->groups_step;
    bool finite = true;

    for (int64_t i = 0; i < b->n_inputs; i++) finite = finite && isfinite(w[i]);
    for (int64_t i = 0; i < b->n_inputs && finite; i += p->group, at++) {
        const group_codes g = measure(w + i, p->group, p, b->zeros != NULL, b->scales_dtype);
        dti_store_f32(b->scales, b->scales_dtype, at, g.scale);
        if (b->zeros != NULL) b->zeros[at] = (uint8_t)g.zero;
        finite = isfinite(g.scale);
        for (int64_t k = i; k < i + p->group && p->bits == 8; k++)
            codes[k] = (uint8_t)code_of(w[k], g, 8);
        for (int64_t k = i; k < i + p->group && p->bits == 4; k += 2)
            codes[k / 2] = (uint8_t)(code_of(w[k], g, 4) | code_of(w[k + 1], g, 4) << 4);
    }
    return finite;
}

/* --- a box ------------------------------------------------------------------------------------ */

/* The weight that is packed, of a linear layer or of all experts, is the layer's own tensor. */
const dti_param_tensor *dti_packed_tensor(const dti_packed_box *b, dt_packed part)
{
    for (size_t i = 0; i < b->from->n; i++) {
        const dti_param_tensor *t = &b->from->tensors[i];
        if (t->part != part || t->input_group > 0) continue;
        if (t->whole || (t->expert == b->expert && t->first == b->first)) return t;
    }
    return NULL;
}

/* Rows [first, first + n) of the box as they are in the file, one behind the other. */
static dt_status read_rows(const dti_packed_box *b, const dti_param_tensor *t, int64_t first,
                           int64_t n, void *to)
{
    const int axes = t->n_axes, o = axes - (b->reversed ? 1 : 2), i = axes - (b->reversed ? 2 : 1);
    const int64_t row = b->row + first + (axes == 3 ? b->first : 0);
    dti_st_box box = { .begin = { b->expert }, .end = { b->expert + 1 } };

    box.begin[o] = row;
    box.end[o] = row + n;
    box.stride[o] = b->n_inputs;
    box.begin[i] = b->input;
    box.end[i] = b->input + b->n_inputs;
    box.stride[i] = 1;
    return dti_ckpt_read_strided(b->from->ckpt, t->name, &box, t->entry->dtype, b->from->stage, to);
}

/* Some rows of the file at a time: a weight may be larger than what it is packed into by far. */
static dt_status pack_plain(const dti_packed_box *b)
{
    const dti_param_tensor *t = dti_packed_tensor(b, DT_PACKED_NOT);
    const int64_t row_bytes = b->n_inputs * (int64_t)dt_dtype_size(t->entry->dtype);
    const int64_t most = dti_max(1, BUFFER_BYTES / row_bytes);
    dt_status st = DT_OK;
    char *rows = NULL;
    float *row = NULL;

    DT_TRY(dti_alloc_array((size_t)dti_min(most, b->n_rows), (size_t)row_bytes, (void **)&rows));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)b->n_inputs, sizeof *row, (void **)&row));
    for (int64_t o = 0; o < b->n_rows; o++) {
        if (o % most == 0)
            DT_TRY_TO(done, st, read_rows(b, t, o, dti_min(most, b->n_rows - o), rows));
        dti_convert(row, DT_F32, rows + o % most * row_bytes, t->entry->dtype, b->n_inputs);
        DT_CHECK_TO(done, st, pack_row(row, b, o), DT_ERR_FORMAT,
                    "tensor \"%s\": row %lld has numbers that are not finite, or too large for a "
                    "scale in %s: codes of %d bits cannot have them",
                    t->name, (long long)(b->row + o + (t->n_axes == 3 ? b->first : 0)),
                    dt_dtype_name(b->scales_dtype), b->packing->bits);
    }
done:
    dti_free(row);
    dti_free(rows);
    return st;
}

/* --- a layer ---------------------------------------------------------------------------------- */

/* A layer's parameters on their way, by dt_packed; of zero points there may be none. */
typedef struct packed_layer {
    const dt_layer *layer;
    const dti_packed_source *from;
    dt_tensor *part[DT_PACKED_ZEROS + 1];
    dti_host host[DT_PACKED_ZEROS + 1];
} packed_layer;

/* This rank's rows of an axis, its last one being -1; an axis that there is not has one. */
static void runs_of(const packed_layer *l, int axis, dti_runs *runs)
{
    const dt_tensor *codes = l->part[DT_PACKED_CODES];
    const int a = dt_tensor_n_axes(codes) + axis;
    int coord[DT_MAX_DIMS];

    *runs = (dti_runs){ .n = 1, .total = 1, .run = { { 0, 1 } } };
    if (a < 0) return;
    for (int m = 0; m < dt_mesh_n_dims(dt_tensor_mesh(codes)); m++)
        coord[m] = dt_mesh_coord(dt_tensor_mesh(codes), m);
    dti_layout_axis_runs(dt_tensor_layout(codes), a, dt_tensor_extent(codes, a), coord, runs);
}

/* Outputs of the matrix that has output `row` of the layer: experts have one for each block. */
static dt_rows matrix_of(const dt_layer *layer, int64_t row)
{
    const dt_layer_spec *spec = dt_layer_spec_of(layer);
    const dt_axis_blocks *blocks = &spec->blocks[0];
    dt_rows m = { 0, spec->axis[0].extent };

    if (!dti_kind_is(spec->kind, "experts") || blocks->n == 0) return m;
    m.end = blocks->block[0].extent;
    for (int b = 1; b < blocks->n && row >= m.end; b++)
        m = (dt_rows){ m.end, m.end + blocks->block[b].extent };
    return m;
}

/* Outputs `rows` of an expert, which lie in one matrix; at[]: where expert, rows and inputs begin
 * in the piece. */
static dt_status read_box(const packed_layer *l, int64_t expert, dt_rows rows, dt_rows bytes,
                          const int64_t at[3])
{
    const dt_layer_spec *spec = dt_layer_spec_of(l->layer);
    const dt_local *codes = &l->host[DT_PACKED_CODES].local;
    const dt_local *scales = &l->host[DT_PACKED_SCALES].local;
    const int64_t per = dti_packed_inputs(DT_PACKED_CODES, &spec->packing), n = codes->n_axes;
    const int64_t row = at[0] * codes->shape[n - 2] + at[1];
    const int64_t group = row * scales->shape[n - 1] + at[2] * per / spec->packing.group;
    const int64_t first = matrix_of(l->layer, rows.begin).begin;
    const dti_packed_box box = {
        .from = l->from,
        .packing = &spec->packing,
        .reversed = spec->reversed,
        .expert = expert,
        .first = first,
        .row = rows.begin - first,
        .n_rows = rows.end - rows.begin,
        .input = bytes.begin * per,
        .n_inputs = (bytes.end - bytes.begin) * per,
        .codes = (uint8_t *)codes->data + row * codes->shape[n - 1] + at[2],
        .codes_step = codes->shape[n - 1],
        .scales = (char *)scales->data + group * (int64_t)dt_dtype_size(scales->dtype),
        .scales_dtype = scales->dtype,
        .zeros = l->part[DT_PACKED_ZEROS] == NULL
                     ? NULL
                     : (uint8_t *)l->host[DT_PACKED_ZEROS].local.data + group,
        .groups_step = scales->shape[n - 1],
    };

    if (spec->packing.form == DT_PACKED_PLAIN)
        DT_TRY(pack_plain(&box));
    else
        DT_TRY(dti_packed_from_files(&box));
    return DT_OK;
}

/* One expert, of which the e-th is here: matrix by matrix. */
static dt_status read_expert(const packed_layer *l, int64_t expert, int64_t e, const dti_runs *rows,
                             const dti_runs *bytes)
{
    int64_t at[3] = { e, 0, 0 };

    for (int r = 0; r < rows->n; r++)
        for (dt_rows some = rows->run[r]; some.begin < rows->run[r].end; some.begin = some.end) {
            some.end = dti_min(rows->run[r].end, matrix_of(l->layer, some.begin).end);
            at[2] = 0;
            for (int i = 0; i < bytes->n; i++) {
                DT_TRY(read_box(l, expert, some, bytes->run[i], at));
                at[2] += bytes->run[i].end - bytes->run[i].begin;
            }
            at[1] += some.end - some.begin;
        }
    return DT_OK;
}

static dt_status read_layer(const packed_layer *l)
{
    dti_runs experts, rows, bytes;
    int64_t e = 0;

    runs_of(l, -3, &experts);
    runs_of(l, -2, &rows);
    runs_of(l, -1, &bytes);
    for (int r = 0; r < experts.n; r++)
        for (int64_t expert = experts.run[r].begin; expert < experts.run[r].end; expert++)
            DT_TRY(read_expert(l, expert, e++, &rows, &bytes));
    return DT_OK;
}

static dt_status read_parts(packed_layer *l)
{
    dt_status st = DT_OK;
    int n = DT_PACKED_CODES;

    for (; n <= DT_PACKED_ZEROS && st == DT_OK; n++)
        if (l->part[n] != NULL) st = dti_host_open(l->part[n], DTI_HOST_WRITES, &l->host[n]);
    if (st != DT_OK) n--; /* that one is not open */
    if (st == DT_OK) st = read_layer(l);
    for (int p = DT_PACKED_CODES; p < n; p++)
        if (l->part[p] != NULL) st = dti_host_close(&l->host[p], st);
    return st;
}

dt_status dti_read_packed(dt_layer *layer, const dti_packed_source *from, dt_dtype dtype)
{
    packed_layer l = { .layer = layer, .from = from };
    dt_status st = DT_OK;

    for (int p = DT_PACKED_CODES; p <= DT_PACKED_ZEROS; p++) {
        const int param = dti_packed_param(layer, (dt_packed)p);
        if (param >= 0) DT_TRY_TO(done, st, dti_make_param(layer, param, dtype, &l.part[p]));
    }
    if (dt_mesh_is_member(dt_layer_mesh(layer))) DT_TRY_TO(done, st, read_parts(&l));
    for (int p = DT_PACKED_CODES; p <= DT_PACKED_ZEROS; p++)
        if (l.part[p] != NULL)
            DT_TRY_TO(done, st,
                      dt_layer_set_param(layer, dti_packed_param(layer, (dt_packed)p), l.part[p]));
done:
    for (int p = DT_PACKED_CODES; p <= DT_PACKED_ZEROS; p++) dt_tensor_release(&l.part[p]);
    return st;
}
