/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed weights on their way into a folder, as compressed-tensors has them ("pack-quantized"):
 * codes as words of 32 bits, which are their bytes, zero points as words along outputs, the shape;
 * and what config.json says of them. */
#include <dtensor/factories.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "dtensor/host.h"
#include "parallel_styles/kind.h"
#include "weights/saving/save.h"

/* --- tensors ---------------------------------------------------------------------------------- */

/* A whole tensor of numbers that every rank has. */
static dt_status make_whole(dt_mesh *mesh, dt_dtype dtype, int n_axes, const int64_t *shape,
                            const void *values, dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };

    DT_TRY(dt_distribute(mesh, whole, dtype, n_axes, shape, (dt_source){ values, DT_EQUAL_COPIES },
                         out));
    return DT_OK;
}

static dt_status pack_zeros(dt_tensor *zeros, int bits, dt_tensor **out)
{
    const int64_t rows = dt_tensor_extent(zeros, 0), groups = dt_tensor_extent(zeros, 1);
    const int64_t per = 32 / bits, shape[] = { (rows + per - 1) / per, groups };
    dt_tensor *full = NULL;
    dt_status st = DT_OK;
    uint32_t *words = NULL;
    dti_host host;

    DT_TRY(dt_full_tensor(zeros, &full));
    DT_TRY_TO(done, st,
              dti_alloc_array((size_t)(shape[0] * groups), sizeof *words, (void **)&words));
    memset(words, 0, (size_t)(shape[0] * groups) * sizeof *words);
    DT_TRY_TO(done, st, dti_host_open(full, DTI_HOST_READS, &host));
    for (int64_t o = 0; o < rows; o++)
        for (int64_t g = 0; g < groups; g++)
            words[o / per * groups + g] |=
                (uint32_t)((const uint8_t *)host.local.data)[o * groups + g] << (o % per * bits);
    DT_TRY_TO(done, st, dti_host_close(&host, DT_OK));
    DT_TRY_TO(done, st, make_whole(dt_tensor_mesh(zeros), DT_I32, 2, shape, words, out));
done:
    dti_free(words);
    dt_tensor_release(&full);
    return st;
}

/* The parts of packed experts are matrices, one by one; words along outputs are made as they are
 * written. */
static dt_status add_experts(dti_saver *s, const dt_param_info *info, dt_tensor *x, dt_dtype dtype)
{
    char name[DTI_SAVE_TENSOR_BYTES];
    dti_param_tensor t;

    for (int64_t k = 0; dti_expert_tensor(info, info->name, k, name, sizeof name, &t); k++) {
        const bool zeros = info->packed == DT_PACKED_ZEROS;
        DT_TRY(dti_save_add(s, name, dtype,
                            &(dti_saved){ .x = x,
                                          .words = info->packed == DT_PACKED_CODES,
                                          .expert = t.expert,
                                          .first = t.first,
                                          .rows = t.shape[0],
                                          .zero_bits = zeros ? info->packing.bits : 0 }));
    }
    return DT_OK;
}

static dt_status add_whole(dti_saver *s, const char *name, dt_tensor *x)
{
    dti_saved v = { .x = x, .owned = x };
    dt_status st = dti_save_add(s, name, dt_tensor_dtype(x), &v);

    if (st != DT_OK) dt_tensor_release(&x);
    return st;
}

static dt_status add_shape(dti_saver *s, const char *name, dt_mesh *mesh, int64_t rows,
                           int64_t columns)
{
    const int64_t shape[] = { rows, columns }, two = 2;
    dt_tensor *x;

    DT_TRY(make_whole(mesh, DT_I64, 1, &two, shape, &x));
    DT_TRY(add_whole(s, name, x));
    return DT_OK;
}

static dt_status save_experts(dti_saver *s, const dt_param_info *info, dt_tensor *x,
                              dt_dtype scales)
{
    const dt_param_info plain = dti_param_plain(info);
    char name[DTI_SAVE_TENSOR_BYTES];
    dti_param_tensor t;

    DT_CHECK(info->parts[0] != NULL, DT_ERR_UNSUPPORTED,
             "%s has no names for its parts: packed experts are saved one by one", info->layer);
    DT_TRY(add_experts(s, info, x, info->packed == DT_PACKED_SCALES ? scales : DT_I32));
    for (int64_t k = 0; info->packed == DT_PACKED_CODES &&
                        dti_expert_tensor(&plain, "weight_shape", k, name, sizeof name, &t);
         k++)
        DT_TRY(add_shape(s, name, dt_tensor_mesh(x), t.shape[0], t.shape[1]));
    return DT_OK;
}

dt_status dti_save_packed(dti_saver *s, const dt_layer *layer, int param)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    dt_tensor *x = dt_layer_param(layer, param);
    const dt_dtype scales = s->keep_dtype || info.packing.wide ? dt_tensor_dtype(x) : s->dtype;
    char name[DTI_SAVE_TENSOR_BYTES];

    DT_CHECK(!dt_layer_spec_of(layer)->reversed, DT_ERR_UNSUPPORTED,
             "%s: its files have inputs before outputs, which packed weights have not", info.layer);
    DT_CHECK(!info.packing.floats, DT_ERR_UNSUPPORTED,
             "%s: weights of 8-bit floats cannot be saved; copy the folder that has them",
             info.layer);
    if (info.n_axes == 3) return save_experts(s, &info, x, scales);
    (void)dti_param_tensor_name(&info, name, sizeof name);
    if (info.packed == DT_PACKED_SCALES)
        return dti_save_add(s, name, scales, &(dti_saved){ .x = x });
    if (info.packed == DT_PACKED_ZEROS) {
        DT_TRY(pack_zeros(x, info.packing.bits, &x));
        return add_whole(s, name, x);
    }
    DT_TRY(dti_save_add(s, name, DT_I32, &(dti_saved){ .x = x, .words = true }));
    (void)snprintf(name, sizeof name, "%s.weight_shape", info.layer);
    DT_TRY(add_shape(s, name, dt_tensor_mesh(x), dt_layer_extent(layer, 'o'),
                     dt_layer_extent(layer, 'i')));
    return DT_OK;
}

/* --- config.json ------------------------------------------------------------------------------ */

enum { MOST_GROUPS = 16 };

/* Layers whose weights are packed alike. */
typedef struct alike {
    dt_packing packing;
    bool zeros;
    json_t *names;
} alike;

static bool has_zeros(const dt_layer *layer)
{
    for (int p = 0; p < dt_layer_n_params(layer); p++)
        if (dt_layer_param_info(layer, p).packed == DT_PACKED_ZEROS) return true;
    return false;
}

/* The group that a layer belongs to, maybe a new one; NULL: there are too many. */
static alike *group_of(alike *groups, int *n, const dt_layer *layer)
{
    const dt_packing p = dt_layer_spec_of(layer)->packing;
    const bool zeros = has_zeros(layer);

    for (int g = 0; g < *n; g++)
        if (groups[g].packing.bits == p.bits && groups[g].packing.group == p.group &&
            groups[g].zeros == zeros)
            return &groups[g];
    if (*n == MOST_GROUPS) return NULL;
    groups[*n] = (alike){ p, zeros, json_array() };
    return &groups[(*n)++];
}

static json_t *group_json(const alike *g, bool only)
{
    json_t *targets = only ? json_pack("[s]", "Linear") : json_incref(g->names);

    return json_pack("{s:o, s:n, s:n, s:s, s:{s:i, s:s, s:s, s:I, s:b, s:b, s:n, s:n}}", "targets",
                     targets, "input_activations", "output_activations", "format", "pack-quantized",
                     "weights", "num_bits", g->packing.bits, "type", "int", "strategy", "group",
                     "group_size", (json_int_t)g->packing.group, "symmetric", !g->zeros, "dynamic",
                     0, "actorder", "block_structure");
}

/* The modules that a layer of experts is, one by one in files: "re:" and how their names begin,
 * dots escaped, up to the number and `behind` it; NULL without memory. */
static json_t *experts_pattern(const char *name, const char *behind)
{
    const char *last = strrchr(name, '.');
    char text[DTI_SAVE_TENSOR_BYTES] = "re:";
    size_t n = 3;

    for (const char *p = name; last != NULL && p <= last && n + 64 < sizeof text; p++) {
        if (*p == '.') text[n++] = '\\';
        text[n++] = *p;
    }
    (void)snprintf(text + n, sizeof text - n, "%s", behind);
    return json_string(text);
}

/* One layer's names: of all modules that it is. */
static bool add_names(json_t *to, const dt_layer *layer, const dt_spelling *spellings)
{
    const dt_layer_spec *spec = dt_layer_spec_of(layer);
    char name[DTI_SAVE_TENSOR_BYTES], behind[64];
    bool fits = true;

    dti_spell(spellings, spec->name, name, sizeof name);
    if (spec->kind == &dt_experts_kind)
        return json_array_append_new(to, experts_pattern(name, ".*")) == 0;
    if (spec->kind != &dt_experts_packed_kind)
        return json_array_append_new(to, json_string(name)) == 0;
    for (int b = 0; b < 2 && spec->parts[b] != NULL; b++) {
        (void)snprintf(behind, sizeof behind, "[0-9]+\\.%s$", spec->parts[b]);
        fits = json_array_append_new(to, experts_pattern(name, behind)) == 0 && fits;
    }
    return fits;
}

json_t *dti_save_packed_config(const dt_layers *layers, const dt_spelling *spellings)
{
    alike groups[MOST_GROUPS];
    json_t *all = json_object(), *ignored = json_array();
    bool fits = true;
    int n = 0;

    for (int i = 0; i < dt_layers_count(layers) && fits; i++) {
        const dt_layer *layer = dt_layers_at((dt_layers *)(uintptr_t)layers, i);
        const dt_layer_kind *kind = dt_layer_kind_of(layer);
        if (kind == &dt_linear_packed_kind || kind == &dt_experts_packed_kind) {
            const alike *g = group_of(groups, &n, layer);
            fits = g != NULL && add_names(g->names, layer, spellings);
        } else if (kind == &dt_linear_kind || kind == &dt_experts_kind) {
            fits = add_names(ignored, layer, spellings);
        }
    }
    for (int g = 0; g < n; g++) {
        char key[24];
        (void)snprintf(key, sizeof key, "group_%d", g);
        fits = json_object_set_new(all, key, group_json(&groups[g], n == 1)) == 0 && fits;
        json_decref(groups[g].names);
    }
    if (n > 0 && fits)
        return json_pack("{s:o, s:o, s:s, s:s, s:s, s:n, s:n}", "config_groups", all, "ignore",
                         ignored, "format", "pack-quantized", "quant_method", "compressed-tensors",
                         "quantization_status", "compressed", "kv_cache_scheme",
                         "global_compression_ratio");
    json_decref(all);
    json_decref(ignored);
    return NULL;
}
