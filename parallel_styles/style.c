/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry of styles, and what a style's data fields mean. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "mesh/runtime.h"
#include "parallel_styles/layers_internal.h"

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

dt_status dt_style_register(dt_runtime *rt, const char *name, const dt_style *style)
{
    dt_style own = { .size = sizeof own };
    style_registry *r;

    DT_CHECK(rt != NULL && name != NULL && style != NULL, DT_ERR_ARG, "rt, name or style is NULL");
    DT_CHECK(name[0] != '\0', DT_ERR_ARG, "a style needs a name");
    DT_TRY(dti_options_read("dt_style", "set it to sizeof(dt_style)", style, &own, sizeof own));
    DT_TRY(registry_of(rt, &r));
    DT_CHECK(find(r, name) == NULL, DT_ERR_ARG, "a style \"%s\" is registered already", name);
    for (int i = 0; i < dti_n_style_aliases; i++)
        DT_CHECK(strcmp(name, dti_style_aliases[i].alias) != 0, DT_ERR_ARG,
                 "\"%s\" is another name of the style \"%s\"", name, dti_style_aliases[i].name);
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

/* Names of the styles that fit one of `kinds`. */
static void list_names(const style_registry *r, uint32_t kinds, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (const style_entry *e = r->first; e != NULL && used < bytes; e = e->next)
        if (e->style.kinds == 0 || (e->style.kinds & kinds) != 0)
            used += (size_t)snprintf(text + used, bytes - used, used ? ", %s" : "%s", e->name);
}

dt_status dti_style_list(dt_runtime *rt, dt_layer_kind kind, char *text, size_t bytes)
{
    style_registry *r;

    DT_TRY(registry_of(rt, &r));
    list_names(r, DT_KIND_BIT(kind), text, bytes);
    return DT_OK;
}

dt_status dt_style_find(dt_runtime *rt, const char *name, const dt_style **out)
{
    const char *wanted = name;
    style_registry *r;
    char names[512];

    DT_CHECK(rt != NULL && name != NULL && out != NULL, DT_ERR_ARG, "rt, name or out is NULL");
    *out = NULL;
    DT_TRY(registry_of(rt, &r));
    for (int i = 0; i < dti_n_style_aliases; i++)
        if (strcmp(name, dti_style_aliases[i].alias) == 0) wanted = dti_style_aliases[i].name;
    *out = find(r, wanted);
    if (*out != NULL) return DT_OK;
    list_names(r, ~0u, names, sizeof names);
    DT_FAIL(DT_ERR_ARG, "unknown style \"%s\"; there are: %s", name, names);
}

dt_placement dt_cut_axis(const dt_axis *axis, const dt_head_counts *heads, int tensor_axis,
                         int n_parts)
{
    const int64_t kv = heads->n_kv_heads;
    dt_placement cut = DT_SHARD(tensor_axis);

    if (axis->unit == DT_UNIT_ROW || kv == 0 || heads->n_heads == 0) return cut;
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

    switch (param->kind) {
    case DT_LAYER_LINEAR:
        if (cut == DT_CUT_COLUMNS) return 0; /* weight and bias */
        return cut == DT_CUT_ROWS && !bias ? 1 : -1;
    case DT_LAYER_EMBEDDING:
        return cut == DT_CUT_COLUMNS ? 1 : cut == DT_CUT_ROWS ? 0 : -1;
    default:
        return -1;
    }
}

dt_status dti_style_partition(const dt_style *style, const dt_param_info *param, int n_parts,
                              dt_placement *out)
{
    int axis;

    *out = DT_REPLICATE;
    if (style->partition_param != NULL) {
        DT_TRY(style->partition_param(style, param, n_parts, out));
        return DT_OK;
    }
    axis = axis_of_cut(style->cut, param);
    if (axis >= 0) *out = dt_cut_axis(&param->axis[axis], &param->heads, axis, n_parts);
    return DT_OK;
}

static dt_tensor *pass(dt_pass how, dt_tape *tape, const dt_layer *layer, int dim, dt_tensor *x)
{
    dt_placement cut;

    switch (how) {
    case DT_PASS_KEEP:
        return x;
    case DT_PASS_REPLICATE:
        return dt_move_dim(tape, x, dim, DT_REPLICATE);
    case DT_PASS_SHARD_LAST: /* as the weight's inputs, axis 1, lie on this dim */
        cut = dt_layout_placement(dt_layer_param_layout(layer, DT_PARAM_WEIGHT), dim);
        cut.axis = -1;
        return cut.kind == DT_PLACE_SHARD ? dt_move_dim(tape, x, dim, cut) : x;
    }
    return x;
}

dt_tensor *dti_style_input(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                           dt_tensor *x)
{
    if (style->prepare_input != NULL) return style->prepare_input(style, tape, layer, dim, x);
    if (style->input == DT_PASS_SHARD_LAST && dt_layer_kind_of(layer) != DT_LAYER_LINEAR)
        return pass(DT_PASS_REPLICATE, tape, layer, dim, x); /* ids of a row-cut embedding */
    return pass(style->input, tape, layer, dim, x);
}

dt_tensor *dti_style_output(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                            dt_tensor *y)
{
    if (style->prepare_output != NULL) return style->prepare_output(style, tape, layer, dim, y);
    return pass(style->output, tape, layer, dim, y);
}
