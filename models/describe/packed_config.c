/* SPDX-License-Identifier: Apache-2.0
 *
 * quantization_config of compressed-tensors: which linear layers and experts have packed weights in
 * the files, and how. Activations stay as they are: what it says of them is for kernels that round
 * them. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "models/describe/packed_config.h"
#include "text/tokenizer/regex.h"
#include "weights/param_tensors.h"

enum { LEAST_GROUP = 16, MOST_GROUP = 128, MOST_PATTERNS = 512 };

/* --- names of modules ------------------------------------------------------------------------- */

/* One of a list of targets: a class, a module's name, or "re:" and how such a name begins. */
typedef struct pattern {
    const char *text;
    dti_regex *regex;
} pattern;

typedef struct patterns {
    pattern *list;
    size_t n;
} patterns;

static void free_patterns(patterns *p)
{
    for (size_t i = 0; i < p->n; i++) dti_regex_free(p->list[i].regex);
    dti_free(p->list);
    *p = (patterns){ NULL, 0 };
}

static dt_status read_patterns(const dti_json *owner, const char *key, patterns *out)
{
    dti_json all;
    size_t n;

    DT_TRY(dti_json_array_or_none(owner, key, &all));
    n = dti_json_count(&all);
    if (n > MOST_PATTERNS)
        return dti_json_refuse(&all, DT_ERR_UNSUPPORTED, "a list of %d names at most",
                               (int)MOST_PATTERNS);
    DT_TRY(dti_alloc_array(n + 1, sizeof *out->list, (void **)&out->list));
    for (size_t i = 0; i < n; i++) {
        const dti_json one = dti_json_at(&all, i);
        pattern *p = &out->list[out->n++];
        *p = (pattern){ NULL, NULL };
        DT_TRY(dti_json_as_string(&one, &p->text));
        if (strncmp(p->text, "re:", 3) != 0) continue;
        if (dti_regex_compile(p->text + 3, &p->regex) != DT_OK)
            return dti_json_refuse(&one, DT_ERR_UNSUPPORTED,
                                   "a regular expression that can be read (%s)",
                                   dt_last_error()->message);
    }
    return DT_OK;
}

static dt_status matches(const patterns *p, const char *name, bool *out)
{
    dti_matcher m = { 0 };
    dt_status st = DT_OK;

    *out = false;
    for (size_t i = 0; i < p->n && !*out && st == DT_OK; i++) {
        const pattern *one = &p->list[i];
        dti_matches it;
        *out = strcmp(one->text, "Linear") == 0 || strcmp(one->text, name) == 0;
        if (one->regex == NULL || *out) continue;
        dti_matcher_begin(&m, strlen(name));
        it = dti_matches_in(one->regex, name, strlen(name));
        st = dti_matches_next(&it, &m);
        *out = st == DT_OK && !it.done && it.begin == 0;
    }
    dti_matcher_free(&m);
    return st;
}

/* --- groups ----------------------------------------------------------------------------------- */

/* One of config_groups. */
typedef struct config_group {
    dti_json weights; /* what it says of them, for messages */
    patterns targets;
    dt_packing packing; /* file_group 0: one scale for each output */
    bool zeros;
} config_group;

static dt_status read_form(const dti_json *root, const dti_json *group, dt_packed_form *out)
{
    dti_json format = dti_json_get(group, "format");
    const char *name;

    if (!dti_json_is_set(&format)) format = dti_json_get(root, "format");
    DT_TRY(dti_json_as_string(&format, &name));
    *out = strcmp(name, "pack-quantized") == 0 ? DT_PACKED_WORDS : DT_PACKED_BYTES;
    if (*out == DT_PACKED_WORDS || strcmp(name, "int-quantized") == 0 ||
        strcmp(name, "float-quantized") == 0 || strcmp(name, "naive-quantized") == 0)
        return DT_OK;
    return dti_json_refuse(&format, DT_ERR_UNSUPPORTED,
                           "\"pack-quantized\", \"int-quantized\", \"float-quantized\" or "
                           "\"naive-quantized\"");
}

static dt_status read_block(config_group *g)
{
    dti_json size, rows, columns;

    DT_TRY(dti_json_array(&g->weights, "block_structure", &size));
    rows = dti_json_at(&size, 0);
    columns = dti_json_at(&size, 1);
    DT_TRY(dti_json_as_int(&rows, 1, INT32_MAX, &g->packing.file_rows));
    return dti_json_as_int(&columns, 1, INT32_MAX, &g->packing.file_group);
}

static dt_status read_strategy(config_group *g)
{
    const dti_json *w = &g->weights;
    const dti_json strategy = dti_json_get(w, "strategy"), order = dti_json_get(w, "actorder");
    const char *name = "channel", *order_name = "weight";
    bool grouped = false;

    if (dti_json_kind_of(&order) == DT_CONFIG_STRING)
        DT_TRY(dti_json_as_string(&order, &order_name));
    else if (dti_json_kind_of(&order) == DT_CONFIG_BOOL)
        DT_TRY(dti_json_as_bool(&order, &grouped)); /* true was "group" once */
    else
        grouped = dti_json_is_set(&order);
    if (grouped || (strcasecmp(order_name, "weight") != 0 && strcasecmp(order_name, "static") != 0))
        return dti_json_refuse(&order, DT_ERR_UNSUPPORTED,
                               "\"weight\", \"static\" or null: groups of inputs that do not "
                               "follow each other (weight_g_idx) are not read");
    if (dti_json_is_set(&strategy)) DT_TRY(dti_json_as_string(&strategy, &name));
    if (strcmp(name, "channel") == 0) return DT_OK;
    if (strcmp(name, "tensor") == 0 && g->packing.floats) {
        g->packing.file_rows = INT64_MAX;
        return DT_OK;
    }
    if (strcmp(name, "block") == 0 && g->packing.floats) return read_block(g);
    if (strcmp(name, "group") != 0)
        return dti_json_refuse(&strategy, DT_ERR_UNSUPPORTED,
                               g->packing.floats ? "\"tensor\", \"channel\", \"block\" or \"group\""
                                                 : "\"group\" or \"channel\"");
    return dti_json_int(w, "group_size", 1, (int64_t)1 << 31, &g->packing.file_group);
}

static dt_status read_group(const dti_json *root, const dti_json *member, config_group *g)
{
    const dti_json *w = &g->weights;
    dti_json bits, type;
    const char *name;
    bool symmetric;
    int64_t n;

    DT_TRY(dti_json_object(member, "weights", &g->weights));
    bits = dti_json_get(w, "num_bits");
    type = dti_json_get(w, "type");
    DT_TRY(read_patterns(member, "targets", &g->targets));
    DT_TRY(read_form(root, member, &g->packing.form));
    DT_TRY(dti_json_string_or(w, "type", "int", &name));
    g->packing.floats = strcmp(name, "float") == 0;
    if (strcmp(name, "int") != 0 && (!g->packing.floats || g->packing.form == DT_PACKED_WORDS))
        return dti_json_refuse(&type, DT_ERR_UNSUPPORTED,
                               "\"int\", or \"float\" of \"float-quantized\"");
    if (g->packing.floats) g->packing.form = DT_PACKED_E4M3;
    DT_TRY(dti_json_int(w, "num_bits", 1, 32, &n));
    g->packing.bits = (int)n;
    if (n != 8 && (n != 4 || g->packing.form != DT_PACKED_WORDS))
        return dti_json_refuse(&bits, DT_ERR_UNSUPPORTED, "8, or 4 of \"pack-quantized\"");
    DT_TRY(dti_json_bool_or(w, "symmetric", true, &symmetric));
    g->zeros = !symmetric && !g->packing.floats;
    return read_strategy(g);
}

/* --- layers ----------------------------------------------------------------------------------- */

/* A linear layer's weight that something around it computes with: read as a plain one. */
static bool stays_plain(const dt_layer_spec *spec)
{
    return spec->kind->like == &dt_linear_kind && spec->kind->run_by != NULL;
}

bool dti_packed_may(const dt_layer_spec *spec)
{
    return (spec->kind == &dt_linear_kind || spec->kind == &dt_experts_kind || stays_plain(spec)) &&
           spec->tied_to == NULL;
}

/* "model.layers.0.mlp.experts.0.gate_proj" of a layer of experts. */
bool dti_packed_module(const dti_described *d, const dt_layer_spec *spec, int i,
                       char name[DT_PARAM_NAME_BYTES])
{
    const char *last = strrchr(spec->name, '.');
    const int n = last != NULL ? (int)(last - spec->name) + 1 : 0;
    char ours[DT_PARAM_NAME_BYTES];

    if (spec->parts[0] == NULL)
        (void)snprintf(ours, sizeof ours, "%s", spec->name);
    else
        (void)snprintf(ours, sizeof ours, "%.*s0.%s", n, spec->name, spec->parts[0]);
    (void)snprintf(name, DT_PARAM_NAME_BYTES, "%s", ours);
    if (i == 0) return true;
    dti_spell(d->arch->spellings, ours, name, DT_PARAM_NAME_BYTES);
    return i == 1 && strcmp(name, ours) != 0;
}

dt_status dti_packed_spec(dti_described *d, int i, const dti_json *said, dt_packing packing,
                          bool zeros)
{
    dt_layer_spec *spec = &d->builder.specs[i];
    const bool halves = spec->kind == &dt_experts_kind && spec->blocks[0].n > 0;
    const int64_t n_out = halves ? spec->blocks[0].block[0].extent : spec->axis[0].extent;
    const int64_t n_in = spec->axis[1].extent;

    if (packing.file_group == 0) packing.file_group = n_in;
    if (packing.file_rows > n_out) packing.file_rows = n_out;
    if (stays_plain(spec)) {
        if (!packing.floats)
            return dti_json_refuse(said, DT_ERR_UNSUPPORTED,
                                   "of floats of 8 bits: %s is computed with plain weights, and no "
                                   "others are unpacked",
                                   spec->name);
        spec->packing = packing;
        return DT_OK;
    }
    packing.wide = packing.floats || packing.form >= DT_PACKED_GPTQ;
    if (n_in % packing.file_group != 0 && !packing.floats)
        return dti_json_refuse(
            said, DT_ERR_FORMAT,
            "of groups that divide the %lld inputs of %s, as one of %lld does not", (long long)n_in,
            spec->name, (long long)packing.file_group);
    packing.group = dti_packed_group(spec, packing.file_group | MOST_GROUP);
    if (packing.group < LEAST_GROUP || spec->blocks[1].n > 0 || spec->reversed)
        return dti_json_refuse(
            said, DT_ERR_UNSUPPORTED,
            "of groups that %d divides, as one of %lld, and so the inputs of %s, "
            "[%lld, %lld]",
            (int)LEAST_GROUP, (long long)packing.file_group, spec->name, (long long)n_out,
            (long long)n_in);
    if (packing.form >= DT_PACKED_GPTQ && n_out % (32 / packing.bits) != 0)
        return dti_json_refuse(said, DT_ERR_FORMAT, "of words that the %lld outputs of %s fill",
                               (long long)n_out, spec->name);
    dti_pack_spec(&d->builder, spec, packing, zeros);
    d->info.packed = true;
    return DT_OK;
}

/* Whether one of the names that a layer has, of its own or in files, is one of those. */
static dt_status layer_matches(const dti_described *d, const dt_layer_spec *spec, const patterns *p,
                               bool *out)
{
    char name[DT_PARAM_NAME_BYTES];

    *out = false;
    for (int i = 0; !*out && dti_packed_module(d, spec, i, name); i++)
        DT_TRY(matches(p, name, out));
    return DT_OK;
}

static dt_status pack_layers(dti_described *d, const config_group *groups, size_t n_groups,
                             const patterns *ignored)
{
    for (int i = 0; i < d->builder.n; i++) {
        const dt_layer_spec *spec = &d->builder.specs[i];
        bool match;
        if (!dti_packed_may(spec)) continue;
        DT_TRY(layer_matches(d, spec, ignored, &match));
        for (size_t g = 0; g < n_groups && !match; g++) {
            DT_TRY(layer_matches(d, spec, &groups[g].targets, &match));
            if (match)
                DT_TRY(
                    dti_packed_spec(d, i, &groups[g].weights, groups[g].packing, groups[g].zeros));
        }
    }
    return DT_OK;
}

static dt_status read_groups(dti_described *d, const dti_json *config, const dti_json *all,
                             config_group *groups)
{
    patterns ignored = { NULL, 0 };
    dt_status st = DT_OK;
    const char *key = NULL;
    dti_json member;
    size_t n = 0;

    DT_TRY_TO(done, st, read_patterns(config, "ignore", &ignored));
    while (dti_json_next(all, &key, &member))
        DT_TRY_TO(done, st, read_group(config, &member, &groups[n++]));
    DT_TRY_TO(done, st, pack_layers(d, groups, n, &ignored));
done:
    free_patterns(&ignored);
    for (size_t g = 0; g < n; g++) free_patterns(&groups[g].targets);
    return st;
}

dt_status dti_packed_config_read(const dti_json *root, dti_described *d)
{
    dti_json config = dti_json_get(root, "quantization_config"), text, all;
    config_group *groups;
    const char *status, *method;
    dt_status st;

    if (d->arch->text_config != NULL && !dti_json_is_set(&config)) {
        text = dti_json_get(root, d->arch->text_config);
        config = dti_json_get(&text, "quantization_config");
    }
    if (!dti_json_is_set(&config)) return DT_OK;
    DT_TRY(dti_json_string_or(&config, "quant_method", "compressed-tensors", &method));
    if (strcmp(method, "compressed-tensors") != 0)
        return dti_packed_method_read(&config, method, d);
    DT_TRY(dti_json_string_or(&config, "quantization_status", "compressed", &status));
    if (strcmp(status, "compressed") != 0)
        return dti_json_refuse(&config, DT_ERR_UNSUPPORTED,
                               "of quantization_status \"compressed\"");
    text = dti_json_get(&config, "sparsity_config");
    if (dti_json_count(&text) > 0)
        return dti_json_refuse(&text, DT_ERR_UNSUPPORTED, "empty: sparse weights are not read");
    DT_TRY(dti_json_object(&config, "config_groups", &all));
    if (dti_json_count(&all) == 0 || dti_json_count(&all) > MOST_PATTERNS)
        return dti_json_refuse(&all, DT_ERR_FORMAT, "1 to %d groups", (int)MOST_PATTERNS);
    DT_TRY(dti_alloc_array(dti_json_count(&all), sizeof *groups, (void **)&groups));
    memset(groups, 0, dti_json_count(&all) * sizeof *groups);
    st = read_groups(d, &config, &all, groups);
    dti_free(groups);
    return st;
}
