/* SPDX-License-Identifier: Apache-2.0
 *
 * What is stored under which name, and in which file. Every rank comes to the same result. */
#include <stdio.h>
#include <string.h>

#include "files/checkpoint.h"
#include "parallel_styles/kind.h"
#include "weights/saving/save.h"

dt_status dti_save_add(dti_saver *s, const char *name, dt_dtype dtype, const dti_saved *v)
{
    const int64_t per = v->words ? (int64_t)dt_dtype_size(dtype) : 1;
    const int n = dt_tensor_n_axes(v->x);
    char spelled[DTI_SAVE_TENSOR_BYTES];
    dti_st_spec *spec;

    DT_TRY(dti_grow((void **)&s->specs, &s->n_specs_room, s->n + 1, sizeof *s->specs));
    DT_TRY(dti_grow((void **)&s->values, &s->n_values_room, s->n + 1, sizeof *s->values));
    spec = &s->specs[s->n];
    *spec = (dti_st_spec){ .dtype = dtype, .n_axes = n };
    for (int a = 0; a < n; a++) {
        const int in_memory = v->reversed && a >= n - 2 ? 2 * n - 3 - a : a;
        spec->shape[a] = dt_tensor_extent(v->x, in_memory) / (a == n - 1 ? per : 1);
    }
    if (v->rows > 0) { /* of one expert */
        spec->n_axes = 2;
        spec->shape[0] = v->zero_bits > 0 ? (v->rows * v->zero_bits + 31) / 32 : v->rows;
        spec->shape[1] = spec->shape[2];
    }
    dti_spell(s->spellings, name, spelled, sizeof spelled);
    DT_TRY(dti_arena_strndup(&s->names, spelled, strlen(spelled), (char **)(uintptr_t)&spec->name));
    s->values[s->n++] = *v;
    return DT_OK;
}

static dt_status add(dti_saver *s, const dt_layer *layer, int param)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    const bool merges = s->merged && dti_kind_merged(info.kind) != NULL;
    dt_tensor *x = dt_layer_param(layer, param);
    dti_saved v = {
        .x = x, .reversed = info.reversed, .merge = merges ? layer : NULL, .param = param
    };
    char name[DTI_SAVE_TENSOR_BYTES];

    DT_CHECK(x != NULL, DT_ERR_ARG, "%s.%s has no value yet", info.layer, info.name);
    if (merges && info.adapter) return DT_OK;
    if (info.packed != DT_PACKED_NOT) return dti_save_packed(s, layer, param);
    (void)dti_param_tensor_name(&info, name, sizeof name);
    return dti_save_add(s, name, s->keep_dtype ? dt_tensor_dtype(x) : s->dtype, &v);
}

dt_status dti_save_list(dti_saver *s)
{
    dt_layers *layers = s->layers;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (dt_layer_owns_param(layer, p)) DT_TRY(add(s, layer, p));
    }
    return DT_OK;
}

static int64_t bytes_of(const dti_st_spec *spec)
{
    int64_t n = (int64_t)dt_dtype_size(spec->dtype);

    for (int a = 0; a < spec->n_axes; a++) n *= spec->shape[a]; /* a tensor has as many */
    return n;
}

/* How many files, and what each holds. */
static dt_status group(dti_saver *s, int64_t max_bytes)
{
    int64_t used = 0;

    DT_TRY(dti_alloc_array(s->n + 1, sizeof *s->files, (void **)&s->files));
    s->n_files = 1;
    for (size_t i = 0; i < s->n; i++) {
        const int64_t bytes = bytes_of(&s->specs[i]);
        dti_save_file *f = &s->files[s->n_files - 1];
        if (f->n > 0 && bytes > max_bytes - used) {
            f = &s->files[s->n_files++];
            f->first = i;
            used = 0;
        }
        f->n++;
        used += bytes;
        s->bytes += bytes;
    }
    for (size_t i = 0; i < s->n_files; i++) s->files[i].fd = -1;
    return DT_OK;
}

dt_status dti_save_divide(dti_saver *s, int64_t max_bytes)
{
    static const char *const metadata[] = { "format", "pt", NULL };

    DT_TRY(group(s, max_bytes));
    for (size_t i = 0; i < s->n_files; i++) {
        dti_save_file *f = &s->files[i];
        char temporary[DTI_SAVE_NAME_BYTES + 4];
        if (s->n_files == 1)
            (void)snprintf(f->name, sizeof f->name, "model.safetensors");
        else
            (void)snprintf(f->name, sizeof f->name, "model-%05zu-of-%05zu.safetensors", i + 1,
                           s->n_files);
        (void)snprintf(temporary, sizeof temporary, "%s.tmp", f->name);
        DT_TRY(dti_ckpt_path(s->dir, temporary, &f->temporary));
        DT_TRY(dti_st_plan(&s->specs[f->first], f->n, metadata, &f->plan));
    }
    return DT_OK;
}
