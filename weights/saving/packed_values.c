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

static dt_status add_whole(dti_saver *s, const char *name, dt_tensor *x)
{
    dti_saved v = { .x = x, .owned = x };
    dt_status st = dti_save_add(s, name, dt_tensor_dtype(x), &v);

    if (st != DT_OK) dt_tensor_release(&x);
    return st;
}

dt_status dti_save_packed(dti_saver *s, const dt_layer *layer, int param)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    const int64_t shape[] = { dt_layer_extent(layer, 'o'), dt_layer_extent(layer, 'i') }, two = 2;
    dt_tensor *x = dt_layer_param(layer, param);
    char name[512];

    DT_CHECK(!dt_layer_spec_of(layer)->reversed, DT_ERR_UNSUPPORTED,
             "%s: its files have inputs before outputs, which packed weights have not", info.layer);
    DT_CHECK(!info.packing.floats, DT_ERR_UNSUPPORTED,
             "%s: weights of 8-bit floats cannot be saved; copy the folder that has them",
             info.layer);
    (void)dti_param_tensor_name(&info, name, sizeof name);
    if (info.packed == DT_PACKED_SCALES)
        return dti_save_add(s, name,
                            s->keep_dtype || info.packing.wide ? dt_tensor_dtype(x) : s->dtype,
                            &(dti_saved){ .x = x });
    if (info.packed == DT_PACKED_ZEROS) {
        DT_TRY(pack_zeros(x, info.packing.bits, &x));
        return add_whole(s, name, x);
    }
    DT_TRY(dti_save_add(s, name, DT_I32, &(dti_saved){ .x = x, .words = true }));
    (void)snprintf(name, sizeof name, "%s.weight_shape", info.layer);
    DT_TRY(make_whole(dt_tensor_mesh(x), DT_I64, 1, &two, shape, &x));
    return add_whole(s, name, x);
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

/* "re:" and how the names of a block's experts begin, dots escaped: files may name them one by one;
 * NULL without memory. */
static json_t *experts_pattern(const dt_layer *layer)
{
    const char *name = dt_layer_name(layer), *last = strrchr(name, '.');
    char text[512] = "re:";
    size_t n = 3;

    for (const char *p = name; last != NULL && p <= last && n + 5 < sizeof text; p++) {
        if (*p == '.') text[n++] = '\\';
        text[n++] = *p;
    }
    (void)snprintf(text + n, sizeof text - n, ".*");
    return json_string(text);
}

json_t *dti_save_packed_config(const dt_layers *layers)
{
    alike groups[MOST_GROUPS];
    json_t *all = json_object(), *ignored = json_array();
    bool fits = true;
    int n = 0;

    for (int i = 0; i < dt_layers_count(layers) && fits; i++) {
        const dt_layer *layer = dt_layers_at((dt_layers *)(uintptr_t)layers, i);
        json_t *name = json_string(dt_layer_name(layer));
        alike *g = NULL;
        if (dt_layer_kind_of(layer) == &dt_linear_packed_kind) {
            g = group_of(groups, &n, layer);
            fits = g != NULL && json_array_append(g->names, name) == 0;
        } else if (dt_layer_kind_of(layer) == &dt_linear_kind) {
            fits = json_array_append(ignored, name) == 0;
        } else if (dt_layer_kind_of(layer) == &dt_experts_kind) {
            fits = json_array_append_new(ignored, experts_pattern(layer)) == 0;
        }
        json_decref(name);
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
