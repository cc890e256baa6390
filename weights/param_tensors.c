/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tensors of a checkpoint a parameter is made of: one, or for experts one per expert and
 * block, as files of Transformers 4 have them. */
#include <stdio.h>
#include <string.h>

#include "files/checkpoint.h"
#include "parallel_styles/kind.h"
#include "weights/param_tensors.h"

enum {
    NAME_BYTES = DT_PARAM_NAME_BYTES + 32, /* and the number of an expert */
    SPELLED_BYTES = NAME_BYTES + 64
};

/* `name` with what `s` says in place of its own; false: it says nothing of that name. */
static bool respell(const dt_spelling *s, const char *name, char to[SPELLED_BYTES])
{
    const char *at = s->ours[0] == '.' ? strstr(name, s->ours) : name;
    const size_t n = strlen(s->ours);

    if (at == NULL || strncmp(at, s->ours, n) != 0) return false;
    (void)snprintf(to, SPELLED_BYTES, "%.*s%s%s", (int)(at - name), name, s->theirs, at + n);
    return true;
}

/* The tensor of that name, in any of the architecture's spellings: of its beginning, of its middle,
 * or of both. NULL if it is missing, or there is no checkpoint. */
static const dti_st_entry *find_name(const dti_ckpt *ckpt, const dt_spelling *spellings,
                                     const char *name)
{
    const dti_st_entry *e = ckpt != NULL ? dti_ckpt_find(ckpt, name) : NULL;
    char other[SPELLED_BYTES];

    if (ckpt == NULL || spellings == NULL) return e;
    for (const dt_spelling *s = spellings; e == NULL && s->ours != NULL; s++)
        if (respell(s, name, other)) e = find_name(ckpt, s + 1, other);
    return e;
}

void dti_spell(const dt_spelling *spellings, const char *name, char *to, size_t bytes)
{
    char other[SPELLED_BYTES];

    (void)snprintf(to, bytes, "%s", name);
    for (const dt_spelling *s = spellings; s != NULL && s->ours != NULL; s++)
        if (s->ours[0] == '.' && respell(s, to, other)) (void)snprintf(to, bytes, "%s", other);
}

const dti_st_entry *dti_find_param(const dti_ckpt *ckpt, const dt_spelling *spellings,
                                   const char *layer, const char *param)
{
    char name[NAME_BYTES];

    (void)snprintf(name, sizeof name, "%s.%s", layer, param);
    return find_name(ckpt, spellings, name);
}

/* A matrix of a file: of a linear layer, or one that an expert has for a block. */
typedef struct matrix {
    int64_t expert, first, rows; /* `rows` of the layer's outputs, from `first` on */
    int block;                   /* -1: of a linear layer */
} matrix;

/* "model.layers.0.mlp.experts.3.gate_proj.weight" of layer "model.layers.0.mlp.experts.gate_up" */
static void matrix_name(const dt_param_info *info, const matrix *m, const char *param,
                        char name[NAME_BYTES])
{
    const char *last = strrchr(info->layer, '.');

    if (m->block < 0)
        (void)snprintf(name, NAME_BYTES, "%s.%s", info->layer, param);
    else
        (void)snprintf(name, NAME_BYTES, "%.*s%lld.%s.%s",
                       last != NULL ? (int)(last + 1 - info->layer) : 0, info->layer,
                       (long long)m->expert, info->parts[m->block], param);
}

/* The k-th matrix of a layer, of experts the blocks of one after the other; false: there are not so
 * many. */
static bool matrix_at(const dt_param_info *info, int64_t k, matrix *m)
{
    const int64_t n = info->n_axes == 3 && info->parts[1] != NULL ? 2 : 1;
    const dt_axis_blocks *blocks = &info->blocks[1];

    if (info->n_axes < 3) {
        *m = (matrix){ 0, 0, info->axis[0].extent, -1 };
        return k == 0;
    }
    *m = (matrix){ .expert = k / n, .rows = info->axis[1].extent, .block = (int)(k % n) };
    if (blocks->n > 0) m->rows = blocks->block[m->block].extent;
    if (m->block > 0) m->first = blocks->block[0].extent;
    return m->expert < info->axis[0].extent;
}

bool dti_expert_tensor(const dt_param_info *info, const char *param, int64_t k, char *name,
                       size_t bytes, dti_param_tensor *t)
{
    char text[NAME_BYTES];
    matrix m;

    if (!matrix_at(info, k, &m)) return false;
    matrix_name(info, &m, param, text);
    (void)snprintf(name, bytes, "%s", text);
    *t = (dti_param_tensor){ .name = name,
                             .n_axes = 2,
                             .shape = { m.rows, info->axis[2].extent },
                             .n_weights = -1,
                             .expert = m.expert,
                             .first = m.first };
    return true;
}

/* One tensor per expert and block. */
static dt_status each_part(const dti_ckpt *ckpt, const dt_spelling *spellings,
                           const dt_param_info *info, dti_tensor_fn fn, void *arg)
{
    char name[NAME_BYTES];
    dti_param_tensor t;

    for (int64_t k = 0; dti_expert_tensor(info, "weight", k, name, sizeof name, &t); k++) {
        t.entry = find_name(ckpt, spellings, name);
        DT_TRY(fn(arg, &t));
    }
    return DT_OK;
}

/* What files call the parts of a packed weight, and in which dtypes. */
static const struct {
    const char *codes, *scales, *zeros, *codes_dtype, *zeros_dtype;
} forms[] = {
    [DT_PACKED_WORDS] = { "weight_packed", "weight_scale", "weight_zero_point", "I32", "I32" },
    [DT_PACKED_BYTES] = { "weight", "weight_scale", "weight_zero_point", "I8", "I8" },
    [DT_PACKED_E4M3] = { "weight", "weight_scale", "", "F8_E4M3", "" },
    [DT_PACKED_E4M3_INV] = { "weight", "weight_scale_inv", "", "F8_E4M3", "" },
    [DT_PACKED_GPTQ] = { "qweight", "scales", "qzeros", "I32", "I32" },
    [DT_PACKED_GPTQ_V2] = { "qweight", "scales", "qzeros", "I32", "I32" },
    [DT_PACKED_AWQ] = { "qweight", "scales", "qzeros", "I32", "I32" },
};

/* Words hold neighbouring inputs of one output, or the other way round; scales and zero points of
 * words stand with groups before outputs where codes do so with inputs. */
static void packed_shape(const dt_param_info *info, int64_t rows, int64_t shape[2])
{
    const dt_packing *p = &info->packing;
    const int64_t every = p->file_rows > 0 ? p->file_rows : 1;
    const int64_t n_in = dti_param_plain(info).axis[info->n_axes - 1].extent;
    const int64_t group = p->file_group > 0 ? p->file_group : p->group;
    const int64_t groups = (n_in + group - 1) / group, words = n_in / (32 / p->bits);
    const int64_t row_words = (rows * p->bits + 31) / 32;
    const bool turned = p->form >= DT_PACKED_GPTQ;
    const bool codes = info->packed == DT_PACKED_CODES, zeros = info->packed == DT_PACKED_ZEROS;

    shape[0] = turned ? groups : (rows + every - 1) / every;
    shape[1] = turned ? rows : groups;
    if (zeros && p->form != DT_PACKED_BYTES) shape[turned] = row_words;
    if (!codes) return;
    shape[0] = p->form == DT_PACKED_AWQ ? n_in : turned ? words : rows;
    shape[1] = p->form == DT_PACKED_AWQ     ? row_words
               : turned                     ? rows
               : p->form == DT_PACKED_WORDS ? words
                                            : n_in;
}

/* The tensors of a part of one packed matrix. */
static dt_status packed_matrix(const dti_ckpt *ckpt, const dt_spelling *spellings,
                               const dt_param_info *info, const matrix *m, dti_tensor_fn fn,
                               void *arg)
{
    const dt_packing *p = &info->packing;
    const bool codes = info->packed == DT_PACKED_CODES, zeros = info->packed == DT_PACKED_ZEROS;
    const int64_t n_in = dti_param_plain(info).axis[info->n_axes - 1].extent;
    dti_param_tensor t = { .whole = m->block < 0,
                           .expert = m->expert,
                           .first = m->first,
                           .part = info->packed,
                           .n_axes = 2 };
    char name[NAME_BYTES];

    matrix_name(info, m,
                codes   ? forms[p->form].codes
                : zeros ? forms[p->form].zeros
                        : forms[p->form].scales,
                name);
    t.name = name;
    t.entry = find_name(ckpt, spellings, name);
    t.dtype = codes ? forms[p->form].codes_dtype : zeros ? forms[p->form].zeros_dtype : NULL;
    packed_shape(info, m->rows, t.shape);
    t.single = !codes && t.shape[0] == 1 && t.shape[1] == 1;
    if (codes) t.n_weights = m->rows * n_in;
    DT_TRY(fn(arg, &t));
    if (!codes || (p->form != DT_PACKED_GPTQ && p->form != DT_PACKED_GPTQ_V2)) return DT_OK;
    matrix_name(info, m, "g_idx", name); /* which group an input is of */
    t.entry = find_name(ckpt, spellings, name);
    t.part = DT_PACKED_NOT;
    t.n_axes = 1;
    t.shape[0] = n_in;
    t.n_weights = 0;
    t.input_group = p->file_group;
    if (t.entry != NULL || ckpt == NULL) DT_TRY(fn(arg, &t));
    return DT_OK;
}

static dt_status packed_tensors(const dti_ckpt *ckpt, const dt_spelling *spellings,
                                const dt_param_info *info, dti_tensor_fn fn, void *arg)
{
    matrix m;

    for (int64_t k = 0; matrix_at(info, k, &m); k++)
        DT_TRY(packed_matrix(ckpt, spellings, info, &m, fn, arg));
    return DT_OK;
}

enum { MXFP4_BLOCK = 32, MXFP4_BYTES = MXFP4_BLOCK / 2 };

/* "model.layers.0.mlp.experts.down_proj_blocks" [experts, out, in / 32, 16], two numbers in a byte,
 * and "..._scales" [experts, out, in / 32], whatever order plain files have. */
static dt_status mxfp4_tensors(const dti_ckpt *ckpt, const dt_spelling *spellings,
                               const dt_param_info *info, dti_tensor_fn fn, void *arg)
{
    const int64_t n = info->axis[0].extent, rows = info->axis[1].extent;
    const int64_t n_in = info->axis[2].extent;
    char blocks[NAME_BYTES], scales[NAME_BYTES];
    dti_param_tensor t = { .whole = true,
                           .name = blocks,
                           .dtype = "U8",
                           .n_axes = 4,
                           .shape = { n, rows, n_in / MXFP4_BLOCK, MXFP4_BYTES },
                           .n_weights = n * rows * n_in,
                           .part = DT_PACKED_CODES,
                           .block = MXFP4_BLOCK,
                           .block_rows = 1,
                           .form = DT_PACKED_MXFP4 };

    (void)snprintf(blocks, sizeof blocks, "%s_blocks", info->layer);
    (void)snprintf(scales, sizeof scales, "%s_scales", info->layer);
    t.entry = find_name(ckpt, spellings, blocks);
    t.scales = find_name(ckpt, spellings, scales);
    DT_TRY(fn(arg, &t));
    t.name = scales;
    t.entry = t.scales;
    t.part = DT_PACKED_SCALES;
    t.n_axes = 3;
    t.n_weights = 0;
    DT_TRY(fn(arg, &t));
    return DT_OK;
}

/* A matrix of 8-bit floats and its scales, as packed layers have them. */
static dt_status e4m3_tensors(const dti_ckpt *ckpt, const dt_spelling *spellings,
                              const dt_param_info *info, dti_tensor_fn fn, void *arg)
{
    const dt_packing *p = &info->packing;
    const matrix all = { 0, 0, info->axis[0].extent, -1 };
    char codes[NAME_BYTES], scales[NAME_BYTES];
    dt_param_info part = *info;
    dti_param_tensor t = { .whole = true,
                           .name = codes,
                           .dtype = forms[p->form].codes_dtype,
                           .n_axes = 2,
                           .n_weights = info->axis[0].extent * info->axis[1].extent,
                           .part = DT_PACKED_CODES,
                           .block = p->file_group,
                           .block_rows = p->file_rows > 0 ? p->file_rows : 1,
                           .form = p->form };

    matrix_name(info, &all, forms[p->form].codes, codes);
    matrix_name(info, &all, forms[p->form].scales, scales);
    t.entry = find_name(ckpt, spellings, codes);
    t.scales = find_name(ckpt, spellings, scales);
    part.packing.group = 1; /* axes count inputs */
    part.packed = DT_PACKED_CODES;
    packed_shape(&part, all.rows, t.shape);
    DT_TRY(fn(arg, &t));
    t.name = scales;
    t.entry = t.scales;
    t.dtype = NULL;
    t.part = part.packed = DT_PACKED_SCALES;
    t.n_weights = 0;
    packed_shape(&part, all.rows, t.shape);
    t.single = t.shape[0] == 1 && t.shape[1] == 1;
    DT_TRY(fn(arg, &t));
    return DT_OK;
}

bool dti_param_unpacks(const dt_param_info *info)
{
    const dt_packed_form form = info->packing.form;

    return info->packed == DT_PACKED_NOT && strcmp(info->name, "weight") == 0 &&
           (form == DT_PACKED_MXFP4 || form == DT_PACKED_E4M3 || form == DT_PACKED_E4M3_INV);
}

dt_status dti_each_tensor(const dti_ckpt *ckpt, const dt_spelling *spellings,
                          const dt_param_info *info, dti_tensor_fn fn, void *arg)
{
    const int n = info->n_axes;
    dti_param_tensor t = { .n_weights = -1, .whole = true, .n_axes = n };
    dt_param_info plain;
    char name[NAME_BYTES];

    if (info->packed != DT_PACKED_NOT && info->packing.form != DT_PACKED_PLAIN)
        return packed_tensors(ckpt, spellings, info, fn, arg);
    if (dti_param_unpacks(info))
        return (info->packing.form == DT_PACKED_MXFP4 ? mxfp4_tensors : e4m3_tensors)(
            ckpt, spellings, info, fn, arg);
    if (info->packed != DT_PACKED_NOT) { /* made of the weight */
        if (info->packed != DT_PACKED_CODES) return DT_OK;
        plain = dti_param_plain(info);
        info = &plain;
    }
    (void)dti_param_tensor_name(info, name, sizeof name);
    t.name = name;
    t.entry = find_name(ckpt, spellings, name);
    if (t.entry == NULL && ckpt != NULL && info->adapter) return DT_OK;
    if (t.entry == NULL && info->parts[0] != NULL) return each_part(ckpt, spellings, info, fn, arg);
    for (int a = 0; a < n; a++) t.shape[a] = info->axis[a].extent;
    if (info->reversed) {
        t.shape[n - 2] = info->axis[n - 1].extent;
        t.shape[n - 1] = info->axis[n - 2].extent;
    }
    DT_TRY(fn(arg, &t));
    return DT_OK;
}

int dti_param_tensor_name(const dt_param_info *info, char *name, size_t bytes)
{
    if (info->bare) return snprintf(name, bytes, "%s", info->layer);
    return snprintf(name, bytes, "%s.%s", info->layer, info->name);
}
