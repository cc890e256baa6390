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

/* Styles are found when layers are made, never on the way of a token: a list will do. What was
 * overridden stays, since layers point to it, but is not found any more. */
typedef struct style_entry {
    char *name;
    dt_style style;
    bool own;   /* of a user */
    bool stale; /* overridden, or made of what was */
    struct style_entry *next;
} style_entry;

typedef struct dti_style_registry {
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

static const style_entry *find_entry(const style_registry *r, const char *name)
{
    for (const style_entry *e = r->first; e != NULL; e = e->next)
        if (!e->stale && strcmp(e->name, name) == 0) return e;
    return NULL;
}

static const dt_style *find(const style_registry *r, const char *name)
{
    const style_entry *e = find_entry(r, name);

    return e != NULL ? &e->style : NULL;
}

static dt_status add(style_registry *r, const char *name, const dt_style *style, bool own)
{
    dt_status st = DT_OK;
    style_entry *e, **last = &r->first;

    DT_TRY(dti_new(sizeof *e, &e));
    DT_TRY_TO(fail, st, dti_strdup(name, &e->name));
    e->style = *style;
    e->style.name = e->name;
    e->own = own;
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
        DT_TRY_TO(fail, st, add(r, dti_builtin_styles[i].name, &dti_builtin_styles[i], false));
    *out = r;
    return DT_OK;

fail:
    registry_destroy(r);
    return st;
}

static const dti_slot registry_slot = { registry_create, registry_destroy, true };

static dt_status registry_of(dt_runtime *rt, style_registry **out)
{
    void *slot;

    DT_TRY(dti_runtime_slot(rt, &registry_slot, &slot));
    *out = slot;
    return DT_OK;
}

static dt_status check_passes(const char *name, const dt_passes *p, const char *what)
{
    DT_CHECK(p->n >= 0 && p->n <= DT_MAX_PASSES, DT_ERR_ARG,
             "style \"%s\": %s of %d values: a style speaks of %d at most", name, what, p->n,
             (int)DT_MAX_PASSES);
    for (int i = 0; i < (p->n > 0 ? p->n : 1); i++) {
        const bool to = dti_lay_is_valid(p->of[i].to);
        const dt_lay bad = to ? p->of[i].comes : p->of[i].to;
        DT_CHECK(
            to && dti_lay_is_valid(bad), DT_ERR_ARG,
            "style \"%s\": how value %d of `%s` %s is dt_lay { %d, %d }, which there is none of",
            name, i, what, to ? "comes" : "is laid out", (int)bad.kind, bad.axis);
    }
    return DT_OK;
}

static dt_status check_fields(const char *name, const dt_style *style)
{
    DT_CHECK((int)style->cut >= DT_CUT_NONE && style->cut <= DT_CUT_COPIES, DT_ERR_ARG,
             "style \"%s\": its cut is %d, which is no dt_cut; they go from 0, DT_CUT_NONE, to %d, "
             "DT_CUT_COPIES",
             name, (int)style->cut, (int)DT_CUT_COPIES);
    DT_CHECK(style->out_tiles >= 0 && style->out_tiles <= DTI_MOST_TILES && style->in_tiles >= 0 &&
                 style->in_tiles <= DTI_MOST_TILES,
             DT_ERR_ARG, "style \"%s\": %d tiles of outputs, %d of inputs: 1 to %d are possible",
             name, style->out_tiles, style->in_tiles, (int)DTI_MOST_TILES);
    DT_TRY(check_passes(name, &style->in, "in"));
    DT_TRY(check_passes(name, &style->out, "out"));
    return DT_OK;
}

/* Was the style of that name made of another: with arguments, or as the twin of one that cuts
 * tokens? Lists leave it out. */
static bool was_made(const char *name)
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
    if (find(r, twin) == NULL) DT_TRY(add(r, twin, &step, false));
    own->twin = find(r, twin)->name;
    return DT_OK;
}

/* Copies what a user says, and checks it. */
static dt_status read_style(const char *name, const dt_style *style, dt_style *own)
{
    *own = (dt_style){ .size = sizeof *own };
    DT_CHECK(name != NULL && style != NULL, DT_ERR_ARG, "name or style is NULL");
    DT_CHECK(name[0] != '\0', DT_ERR_ARG, "a style needs a name");
    DT_TRY(dti_options_read("dt_style", "set it to sizeof(dt_style)", style, own, sizeof *own));
    DT_TRY(check_fields(name, own));
    DT_CHECK(
        !was_made(name), DT_ERR_ARG,
        "a style cannot be named \"%s\": what follows \"(\" are arguments, and \"%s\" ends the "
        "name of a twin",
        name, STEP);
    return DT_OK;
}

dt_status dt_style_register(dt_runtime *rt, const char *name, const dt_style *style)
{
    style_registry *r;
    dt_style own;

    DT_CHECK(rt != NULL, DT_ERR_ARG, "rt is NULL");
    DT_TRY(read_style(name, style, &own));
    DT_TRY(registry_of(rt, &r));
    DT_CHECK(find(r, name) == NULL, DT_ERR_ARG,
             "a style \"%s\" is registered already; dt_style_override() lets the name mean another",
             name);
    for (int i = 0; i < dti_n_style_aliases; i++)
        DT_CHECK(dti_style_aliases[i].version != NULL ||
                     strcmp(name, dti_style_aliases[i].alias) != 0,
                 DT_ERR_ARG, "\"%s\" is another name of the style \"%s\"", name,
                 dti_style_aliases[i].name);
    DT_TRY(add_twin(r, name, &own));
    DT_TRY(add(r, name, &own, true));
    return DT_OK;
}

/* Does what `name` means next change what `made` is? Arguments may follow an alias, so all that
 * were made with some are made anew. */
static bool is_made_of(const char *made, const char *name)
{
    const size_t n = strlen(name);

    return strchr(made, '(') != NULL ||
           (strncmp(made, name, n) == 0 && (made[n] == '\0' || strcmp(made + n, STEP) == 0));
}

dt_status dt_style_override(dt_runtime *rt, const char *name, const dt_style *style)
{
    const dt_style *before;
    style_registry *r;
    dt_style own;

    DT_CHECK(rt != NULL, DT_ERR_ARG, "rt is NULL");
    DT_TRY(read_style(name, style, &own));
    DT_TRY(dt_style_find(rt, name, NULL, &before));
    DT_TRY(registry_of(rt, &r));
    for (style_entry *e = r->first; e != NULL; e = e->next)
        if (is_made_of(e->name, name)) e->stale = true;
    DT_TRY(add_twin(r, name, &own));
    DT_TRY(add(r, name, &own, true));
    return DT_OK;
}

/* The mappings of one plan; a name has to be known. */
static dt_status add_mappings(dt_runtime *rt, style_registry *r, const dt_plan *plan)
{
    DT_CHECK(plan->n_overrides >= 0 && (plan->overrides != NULL || plan->n_overrides == 0),
             DT_ERR_ARG, "a plan with %d overrides", plan->n_overrides);
    for (int i = 0; i < plan->n_overrides; i++) {
        const dt_style_mapping *m = &plan->overrides[i];
        const dt_style *before;
        dt_style own;
        DT_TRY(read_style(m->name, m->style, &own));
        DT_TRY(dt_style_find(rt, m->name, NULL, &before));
        DT_CHECK(find(r, m->name) == NULL, DT_ERR_ARG, "a plan overrides \"%s\" twice", m->name);
        DT_TRY(add_twin(r, m->name, &own));
        DT_TRY(add(r, m->name, &own, true));
    }
    return DT_OK;
}

dt_status dti_styles_of(dt_runtime *rt, const dt_plan *plan, style_registry **out)
{
    dt_status st = DT_OK;
    style_registry *r;

    *out = NULL;
    while (plan != NULL && plan->n_overrides == 0) plan = plan->more;
    if (plan == NULL) return DT_OK;
    DT_TRY(dti_new(sizeof *r, &r));
    for (; plan != NULL; plan = plan->more) DT_TRY_TO(fail, st, add_mappings(rt, r, plan));
    *out = r;
    return DT_OK;

fail:
    registry_destroy(r);
    dti_error_prefix("overrides of a plan");
    return st;
}

void dti_styles_free(style_registry *styles)
{
    if (styles != NULL) registry_destroy(styles);
}

const dt_style *dt_style_at(dt_runtime *rt, int i)
{
    style_registry *r;

    if (rt == NULL || i < 0 || registry_of(rt, &r) != DT_OK) return NULL;
    for (int own = 1; own >= 0; own--)
        for (const style_entry *e = r->first; e != NULL; e = e->next)
            if (e->own == (own == 1) && !e->stale && !was_made(e->name) && i-- == 0)
                return &e->style;
    return NULL;
}

/* --- names ------------------------------------------------------------------------------------ */

bool dt_style_fits(const dt_style *style, const dt_layer_kind *kind)
{
    if (style == NULL || kind == NULL) return false;
    return style->kinds == NULL || dti_kind_is(kind, style->kinds);
}

/* Names of styles that fit a kind (NULL: all), a user's first, which are what a slip of his pen was
 * meant for; built-in ones for which there is no room are dots. */
static void list_names(const style_registry *r, const dt_layer_kind *kind, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int own = 1; own >= 0; own--)
        for (const style_entry *e = r->first; e != NULL; e = e->next) {
            if (e->own != (own == 1) || e->stale || was_made(e->name)) continue;
            if (kind != NULL && !dt_style_fits(&e->style, kind)) continue;
            if (used + strlen(e->name) + 2 + sizeof ", ..." > bytes) {
                (void)snprintf(text + used, bytes - used, ", ...");
                return;
            }
            used += (size_t)snprintf(text + used, bytes - used, used ? ", %s" : "%s", e->name);
        }
}

dt_status dti_style_list(dt_runtime *rt, const dt_layer_kind *kind, char *text, size_t bytes)
{
    style_registry *r;

    DT_TRY(registry_of(rt, &r));
    list_names(r, kind, text, bytes);
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

/* What a name means in one registry: itself, or the row it is another name of. A name that has a
 * meaning of its own in an older version is looked up as that. */
static const dt_style *look_up(const style_registry *r, const char *name, const char *version)
{
    const char *real = real_name(name, version);
    const dt_style *style = version == NULL ? find(r, name) : NULL;

    return style != NULL ? style : find(r, real);
}

/* The style of that base with the arguments that follow it in `text`, added under that text. */
static dt_status find_with(style_registry *r, const char *text, const char *base,
                           const char *version, const dt_style **out)
{
    char name[DTI_STYLE_TEXT_BYTES];
    const dt_style *row = look_up(r, base, version);
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
    DT_TRY(add(r, name, &own, false));
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

static dt_status find_in(style_registry *r, const char *name, const char *version,
                         const dt_style **out)
{
    char base[DTI_STYLE_TEXT_BYTES];

    *out = look_up(r, name, version);
    if (*out != NULL) return DT_OK;
    DT_TRY(dti_style_base(name, base, sizeof base));
    if (strcmp(base, name) != 0) DT_TRY(find_with(r, name, base, version, out));
    return DT_OK;
}

static dt_status unknown_style(const style_registry *r, const char *name)
{
    char names[512], base[DTI_STYLE_TEXT_BYTES];
    const char *near;

    DT_TRY(dti_style_base(name, base, sizeof base));
    list_names(r, NULL, names, sizeof names);
    near = nearest_name(r, base);
    DT_FAIL(DT_ERR_ARG, "unknown style \"%s\"%s%s%s; there are: %s", base,
            near != NULL ? ", did you mean \"" : "", near != NULL ? near : "",
            near != NULL ? "\"" : "", names);
}

dt_status dt_style_find(dt_runtime *rt, const char *name, const char *version, const dt_style **out)
{
    style_registry *r;

    DT_CHECK(rt != NULL && name != NULL && out != NULL, DT_ERR_ARG, "rt, name or out is NULL");
    *out = NULL;
    DT_TRY(read_version(version, &version));
    DT_TRY(registry_of(rt, &r));
    DT_TRY(find_in(r, name, version, out));
    if (*out == NULL) return unknown_style(r, name);
    return DT_OK;
}

dt_status dti_style_find(const dt_layers *list, const char *name, const char *version,
                         const dt_style **out)
{
    *out = NULL;
    if (list->styles != NULL) {
        const char *known;
        DT_TRY(read_version(version, &known));
        DT_TRY(find_in(list->styles, name, known, out));
        if (*out != NULL) return DT_OK;
    }
    return dt_style_find(dt_mesh_runtime(list->mesh), name, version, out);
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

dt_status dti_style_partition(const dt_style *style, const dt_param_info *param, int n_parts,
                              dt_cut_room *room, dt_placement *out)
{
    const char letter = dti_kind_letter(param->kind, style->cut);
    const char *at = letter != 0 ? strchr(param->letters, letter) : NULL;
    const int axis = at != NULL ? (int)(at - param->letters) : -1; /* -1: it stays whole */

    *out = DT_REPLICATE;
    if (style->partition_param != NULL) {
        DT_TRY(style->partition_param(style, param, n_parts, room, out));
        return DT_OK;
    }
    if (axis >= 0 && (style->cut == DT_CUT_PACKED_COLUMNS || style->cut == DT_CUT_PACKED_ROWS))
        *out = dt_cut_param(param, axis, n_parts, room);
    else if (axis >= 0)
        *out = dti_cut_steps(param, axis, n_parts);
    return DT_OK;
}
