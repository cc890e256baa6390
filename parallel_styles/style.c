/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry of styles, and what a style's data fields mean. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "mesh/runtime.h"
#include "parallel_styles/layers_internal.h"

#define STEP "@step" /* ends the name of a twin that was made */

/* Styles are found when layers are made, never on the way of a token: a list will do. */
typedef struct style_entry {
    char *name;
    dt_style style;
    struct style_entry *next;
} style_entry;

typedef struct style_registry {
    style_entry *first;
} style_registry;

static void registry_destroy(void *object)
{
    style_registry *r = object;

    for (style_entry *e = r->first, *next; e != NULL; e = next) {
        next = e->next;
        dti_free(e->name);
        dti_free(e);
    }
    dti_free(r);
}

static const dt_style *find(const style_registry *r, const char *name)
{
    for (const style_entry *e = r->first; e != NULL; e = e->next)
        if (strcmp(e->name, name) == 0) return &e->style;
    return NULL;
}

static dt_status add(style_registry *r, const char *name, const dt_style *style)
{
    dt_status st = DT_OK;
    style_entry *e, **last = &r->first;

    DT_TRY(dti_new(sizeof *e, &e));
    DT_TRY_TO(fail, st, dti_strdup(name, &e->name));
    e->style = *style;
    e->style.name = e->name;
    while (*last != NULL) last = &(*last)->next;
    *last = e;
    return DT_OK;

fail:
    dti_free(e);
    return st;
}

static dt_status registry_create(dt_runtime *rt, void **out)
{
    dt_status st = DT_OK;
    style_registry *r;

    (void)rt;
    DT_TRY(dti_new(sizeof *r, &r));
    for (int i = 0; i < dti_n_builtin_styles; i++)
        DT_TRY_TO(fail, st, add(r, dti_builtin_styles[i].name, &dti_builtin_styles[i]));
    *out = r;
    return DT_OK;

fail:
    registry_destroy(r);
    return st;
}

static dt_status registry_of(dt_runtime *rt, style_registry **out)
{
    void *slot;

    DT_TRY(dti_runtime_slot(rt, DTI_SLOT_STYLES, registry_create, registry_destroy, &slot));
    *out = slot;
    return DT_OK;
}

static dt_status check_fields(const char *name, const dt_style *style)
{
    const dt_passes *const all[] = { &style->comes, &style->inputs, &style->gives,
                                     &style->outputs };
    static const char *const fields[] = { "comes", "inputs", "gives", "outputs" };

    DT_CHECK(dti_pass_is_valid(style->input) && dti_pass_is_valid(style->output), DT_ERR_ARG,
             "style \"%s\": its input is %d and its output %d, which are no dt_pass", name,
             (int)style->input, (int)style->output);
    DT_CHECK((int)style->cut >= DT_CUT_NONE && style->cut <= DT_CUT_EXPERTS, DT_ERR_ARG,
             "style \"%s\": its cut is %d, which is no dt_cut; they go from 0, DT_CUT_NONE, to %d, "
             "DT_CUT_EXPERTS",
             name, (int)style->cut, (int)DT_CUT_EXPERTS);
    for (size_t i = 0; i < DT_COUNT(all); i++) {
        const dt_status st = dti_check_passes(all[i], fields[i]);
        if (st != DT_OK) dti_error_prefix("style \"%s\"", name);
        DT_TRY(st);
    }
    for (size_t i = 0; i < DT_COUNT(all); i += 2)
        DT_CHECK(all[i]->n == 0 || all[i + 1]->n == 0 || all[i]->n == all[i + 1]->n, DT_ERR_ARG,
                 "style \"%s\" says how %d values are (%s) and how %d are made (%s)", name,
                 all[i]->n, fields[i], all[i + 1]->n, fields[i + 1]);
    return DT_OK;
}

bool dti_style_was_made(const char *name)
{
    const size_t n = strlen(name), end = strlen(STEP);

    return strchr(name, '(') != NULL || (n >= end && strcmp(name + n - end, STEP) == 0);
}

/* A style that cuts tokens, and names no twin, gets one that leaves them whole. */
static dt_status add_twin(style_registry *r, const char *name, dt_style *own)
{
    char twin[DTI_STYLE_TEXT_BYTES + sizeof STEP];
    dt_style step = *own;

    if (own->twin != NULL || !dti_twin_uncut(&step)) return DT_OK;
    DT_CHECK(strlen(name) < DTI_STYLE_TEXT_BYTES, DT_ERR_ARG,
             "a style cannot have a name of %zu bytes: %d at most", strlen(name),
             (int)DTI_STYLE_TEXT_BYTES - 1);
    (void)snprintf(twin, sizeof twin, "%s%s", name, STEP);
    if (find(r, twin) == NULL) DT_TRY(add(r, twin, &step));
    own->twin = find(r, twin)->name;
    return DT_OK;
}

dt_status dt_style_register(dt_runtime *rt, const char *name, const dt_style *style)
{
    dt_style own = { .size = sizeof own };
    style_registry *r;

    DT_CHECK(rt != NULL && name != NULL && style != NULL, DT_ERR_ARG, "rt, name or style is NULL");
    DT_CHECK(name[0] != '\0', DT_ERR_ARG, "a style needs a name");
    DT_TRY(dti_options_read("dt_style", "set it to sizeof(dt_style)", style, &own, sizeof own));
    DT_TRY(check_fields(name, &own));
    DT_CHECK(
        !dti_style_was_made(name), DT_ERR_ARG,
        "a style cannot be named \"%s\": what follows \"(\" are arguments, and \"%s\" ends the "
        "name of a twin",
        name, STEP);
    DT_TRY(registry_of(rt, &r));
    DT_CHECK(find(r, name) == NULL, DT_ERR_ARG, "a style \"%s\" is registered already", name);
    for (int i = 0; i < dti_n_style_aliases; i++)
        DT_CHECK(dti_style_aliases[i].version != NULL ||
                     strcmp(name, dti_style_aliases[i].alias) != 0,
                 DT_ERR_ARG, "\"%s\" is another name of the style \"%s\"", name,
                 dti_style_aliases[i].name);
    DT_TRY(add_twin(r, name, &own));
    DT_TRY(add(r, name, &own));
    return DT_OK;
}

const dt_style *dti_style_at(dt_runtime *rt, int i)
{
    const style_entry *e;
    style_registry *r;

    if (registry_of(rt, &r) != DT_OK) return NULL;
    for (e = r->first; e != NULL && i > 0; i--) e = e->next;
    return e != NULL ? &e->style : NULL;
}

/* Names of the styles that fit one of `kinds`; those for which there is no room are dots. */
static void list_names(const style_registry *r, uint32_t kinds, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (const style_entry *e = r->first; e != NULL; e = e->next) {
        const size_t need = strlen(e->name) + 2;
        if (e->style.kinds != 0 && (e->style.kinds & kinds) == 0) continue;
        if (dti_style_was_made(e->name)) continue;
        if (used + need + sizeof ", ..." > bytes) {
            (void)snprintf(text + used, bytes - used, ", ...");
            return;
        }
        used += (size_t)snprintf(text + used, bytes - used, used ? ", %s" : "%s", e->name);
    }
}

dt_status dti_style_list(dt_runtime *rt, dt_layer_kind kind, char *text, size_t bytes)
{
    style_registry *r;

    DT_TRY(registry_of(rt, &r));
    list_names(r, DT_KIND_BIT(kind), text, bytes);
    return DT_OK;
}

/* Versions whose names differ in meaning from the newest ones. */
static dt_status read_version(const char *version, const char **out)
{
    *out = NULL;
    if (version == NULL || strcmp(version, "newest") == 0) return DT_OK;
    DT_CHECK(strcmp(version, "v4.56") == 0, DT_ERR_ARG,
             "unknown version \"%s\" of style names; there are: \"newest\" (also if none is said), "
             "\"v4.56\"",
             version);
    *out = version;
    return DT_OK;
}

/* The name that a row of the table has; the rows of a version come before those of all. */
static const char *real_name(const char *name, const char *version)
{
    for (int i = 0; i < dti_n_style_aliases; i++) {
        const dti_style_alias *a = &dti_style_aliases[i];
        if (strcmp(name, a->alias) != 0) continue;
        if (a->version == NULL || (version != NULL && strcmp(version, a->version) == 0))
            return a->name;
    }
    return name;
}

/* The row of `name` with the arguments that follow it in `text`, added under that text. */
static dt_status find_with(style_registry *r, const char *text, const char *base,
                           const char *version, const dt_style **out)
{
    char name[DTI_STYLE_TEXT_BYTES];
    const dt_style *row = find(r, real_name(base, version));
    dt_style own;

    if (row == NULL) return DT_OK;
    (void)snprintf(name, sizeof name, "%s%s%s", text, version != NULL ? "@" : "",
                   version != NULL ? version : "");
    *out = find(r, name);
    if (*out != NULL) return DT_OK;
    own = *row;
    DT_TRY(dti_style_with(text, &own));
    DT_TRY(check_fields(name, &own));
    DT_TRY(add_twin(r, name, &own));
    DT_TRY(add(r, name, &own));
    *out = find(r, name);
    return DT_OK;
}

/* The name or alias of which `name` is probably a slip, or NULL. */
static const char *nearest_name(const style_registry *r, const char *name)
{
    int least = 1 + (int)strlen(name) / 4;
    const char *best = NULL;

    for (const style_entry *e = r->first; e != NULL; e = e->next) {
        const int d = dti_name_distance(e->name, name);
        if (d > least || (d == least && best != NULL)) continue;
        least = d;
        best = e->name;
    }
    for (int i = 0; i < dti_n_style_aliases; i++) {
        const int d = dti_name_distance(dti_style_aliases[i].alias, name);
        if (d >= least) continue;
        least = d;
        best = dti_style_aliases[i].alias;
    }
    return best;
}

dt_status dt_style_find(dt_runtime *rt, const char *name, const char *version, const dt_style **out)
{
    char names[512], base[DTI_STYLE_TEXT_BYTES];
    style_registry *r;
    const char *near;

    DT_CHECK(rt != NULL && name != NULL && out != NULL, DT_ERR_ARG, "rt, name or out is NULL");
    *out = NULL;
    DT_TRY(read_version(version, &version));
    DT_TRY(registry_of(rt, &r));
    *out = find(r, real_name(name, version));
    if (*out != NULL) return DT_OK;
    DT_TRY(dti_style_base(name, base, sizeof base));
    if (strcmp(base, name) != 0) DT_TRY(find_with(r, name, base, version, out));
    if (*out != NULL) return DT_OK;
    list_names(r, ~0u, names, sizeof names);
    near = nearest_name(r, base);
    DT_FAIL(DT_ERR_ARG, "unknown style \"%s\"%s%s%s; there are: %s", base,
            near != NULL ? ", did you mean \"" : "", near != NULL ? near : "",
            near != NULL ? "\"" : "", names);
}

dt_placement dt_cut_axis(const dt_axis *axis, const dt_head_counts *heads, int tensor_axis,
                         int n_parts)
{
    const int64_t kv = heads != NULL ? heads->n_kv_heads : 0;
    dt_placement cut = DT_SHARD(tensor_axis);

    if (axis == NULL || n_parts < 1) return DT_REPLICATE;
    if (axis->unit == DT_UNIT_ROW || kv < 1 || heads->n_heads < 1) return cut;
    cut.unit = heads->head_dim;
    if (axis->unit == DT_UNIT_HEADS) {
        if (kv >= n_parts) cut.unit *= heads->n_heads / kv; /* whole kv groups */
        return cut;
    }
    if (kv >= n_parts) return cut;
    if (n_parts % kv != 0 || heads->n_heads % n_parts != 0) return DT_REPLICATE;
    cut.replicas = (int)(n_parts / kv);
    return cut;
}

/* The tensor axis that a cut divides, or -1 for a parameter it leaves whole. */
static int axis_of_cut(dt_cut cut, const dt_param_info *param)
{
    const bool bias = param->n_axes == 1;

    if (cut == DT_CUT_PACKED_COLUMNS) cut = DT_CUT_COLUMNS;
    if (cut == DT_CUT_PACKED_ROWS) cut = DT_CUT_ROWS;
    switch (param->kind) {
    case DT_LAYER_LINEAR:
        if (cut == DT_CUT_COLUMNS) return 0; /* weight and bias */
        return cut == DT_CUT_ROWS && !bias ? 1 : -1;
    case DT_LAYER_EXPERTS:
        return cut == DT_CUT_EXPERTS ? 0 : cut == DT_CUT_COLUMNS ? 1 : cut == DT_CUT_ROWS ? 2 : -1;
    case DT_LAYER_EMBEDDING:
        return cut == DT_CUT_COLUMNS ? 1 : cut == DT_CUT_ROWS ? 0 : -1;
    default:
        return -1;
    }
}

dt_status dti_style_partition(const dt_style *style, const dt_param_info *param, int n_parts,
                              dt_cut_room *room, dt_placement *out)
{
    int axis;

    *out = DT_REPLICATE;
    if (style->partition_param != NULL) {
        DT_TRY(style->partition_param(style, param, n_parts, room, out));
        return DT_OK;
    }
    axis = axis_of_cut(style->cut, param);
    if (axis >= 0 && (style->cut == DT_CUT_PACKED_COLUMNS || style->cut == DT_CUT_PACKED_ROWS))
        *out = dt_cut_param(param, axis, n_parts, room);
    else if (axis >= 0)
        *out = dt_cut_axis(&param->axis[axis], &param->heads, axis, n_parts);
    return DT_OK;
}
