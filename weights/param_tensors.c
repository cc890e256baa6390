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

const dti_st_entry *dti_find_param(const dti_ckpt *ckpt, const dt_spelling *spellings,
                                   const char *layer, const char *param)
{
    char name[NAME_BYTES];

    (void)snprintf(name, sizeof name, "%s.%s", layer, param);
    return find_name(ckpt, spellings, name);
}

/* "model.layers.0.mlp.experts.3.gate_proj.weight" of layer "model.layers.0.mlp.experts.gate_up" */
static void part_name(const dt_param_info *info, int64_t expert, int block, char name[NAME_BYTES])
{
    const char *last = strrchr(info->layer, '.');

    (void)snprintf(name, NAME_BYTES, "%.*s%lld.%s.weight",
                   last != NULL ? (int)(last + 1 - info->layer) : 0, info->layer, (long long)expert,
                   info->parts[block]);
}

/* One tensor per expert and block. */
static dt_status each_part(const dti_ckpt *ckpt, const dt_spelling *spellings,
                           const dt_param_info *info, dti_tensor_fn fn, void *arg)
{
    for (int64_t e = 0; e < info->axis[0].extent; e++) {
        int64_t first = 0;
        for (int b = 0; b < 2 && info->parts[b] != NULL; b++) {
            const int64_t n =
                info->blocks[1].n > 0 ? info->blocks[1].block[b].extent : info->axis[1].extent;
            char name[NAME_BYTES];
            dti_param_tensor t = {
                .name = name, .n_weights = -1, .whole = false, .expert = e, .first = first
            };
            t.n_axes = 2;
            t.shape[0] = n;
            t.shape[1] = info->axis[2].extent;
            part_name(info, e, b, name);
            t.entry = find_name(ckpt, spellings, name);
            DT_TRY(fn(arg, &t));
            first += n;
        }
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
static void packed_shape(const dt_param_info *info, int64_t shape[2])
{
    const dt_packing *p = &info->packing;
    const int64_t rows = info->axis[0].extent, every = p->file_rows > 0 ? p->file_rows : 1;
    const int64_t n_in = info->axis[1].extent * dti_packed_inputs(info->packed, p);
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

/* The tensors of a part of a packed weight. */
static dt_status packed_tensor(const dti_ckpt *ckpt, const dt_spelling *spellings,
                               const dt_param_info *info, dti_tensor_fn fn, void *arg)
{
    const dt_packing *p = &info->packing;
    const bool codes = info->packed == DT_PACKED_CODES, zeros = info->packed == DT_PACKED_ZEROS;
    dti_param_tensor t = { .whole = true, .n_axes = 2 };
    char name[NAME_BYTES];

    (void)snprintf(name, sizeof name, "%s.%s", info->layer,
                   codes   ? forms[p->form].codes
                   : zeros ? forms[p->form].zeros
                           : forms[p->form].scales);
    t.name = name;
    t.entry = find_name(ckpt, spellings, name);
    t.dtype = codes ? forms[p->form].codes_dtype : zeros ? forms[p->form].zeros_dtype : NULL;
    packed_shape(info, t.shape);
    t.single = !codes && t.shape[0] == 1 && t.shape[1] == 1;
    if (codes) t.n_weights = info->axis[0].extent * info->axis[1].extent * (8 / p->bits);
    DT_TRY(fn(arg, &t));
    if (!codes || (p->form != DT_PACKED_GPTQ && p->form != DT_PACKED_GPTQ_V2)) return DT_OK;
    (void)snprintf(name, sizeof name, "%s.g_idx", info->layer); /* which group an input is of */
    t.entry = find_name(ckpt, spellings, name);
    t.n_axes = 1;
    t.shape[0] = info->axis[1].extent * (8 / p->bits);
    t.n_weights = 0;
    t.input_group = p->file_group;
    if (t.entry != NULL || ckpt == NULL) DT_TRY(fn(arg, &t));
    return DT_OK;
}

dt_status dti_each_tensor(const dti_ckpt *ckpt, const dt_spelling *spellings,
                          const dt_param_info *info, dti_tensor_fn fn, void *arg)
{
    const int n = info->n_axes;
    dti_param_tensor t = { .n_weights = -1, .whole = true, .n_axes = n };
    dt_param_info plain = *info;
    char name[NAME_BYTES];

    if (info->packed != DT_PACKED_NOT && info->packing.form != DT_PACKED_PLAIN)
        return packed_tensor(ckpt, spellings, info, fn, arg);
    if (info->packed != DT_PACKED_NOT) { /* made of the weight */
        if (info->packed != DT_PACKED_CODES) return DT_OK;
        plain.name = "weight";
        plain.axis[1].extent *= dti_packed_inputs(info->packed, &info->packing);
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
