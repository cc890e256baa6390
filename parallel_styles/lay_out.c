/* SPDX-License-Identifier: Apache-2.0
 *
 * From specs and rules to styles, from styles to the placement of every parameter. Whatever does
 * not fit is refused here, by names and sizes, before a tensor is made. */
#include <stdio.h>
#include <string.h>

#include "base/writer.h"
#include "parallel_styles/layers_internal.h"
#include "placements/shard_over.h"

static int n_parts(const dt_layer *layer, int slot)
{
    return slot == DTI_NO_DIM ? 1 : dt_mesh_dim_size(layer->mesh, slot);
}

const char *dti_param_text(const dt_param_info *param, char text[DTI_PARAM_TEXT_BYTES])
{
    dti_writer w = { text, DTI_PARAM_TEXT_BYTES, 0 };

    dti_put(&w, "%s [", param->name);
    for (int a = 0; a < param->n_axes; a++)
        dti_put(&w, "%s%lld", a > 0 ? ", " : "", (long long)param->axis[a].extent);
    dti_put(&w, "]");
    return text;
}

/* --- styles ----------------------------------------------------------------------------------- */

static const char *text_of(const dti_rule_list *rules, int number, char text[DTI_RULE_TEXT_BYTES])
{
    return dti_rule_text(rules->rule[number].plan, &rules->rule[number].rule, text);
}

/* Puts the rule that chose the style of `layer` in front of an error's message, if a rule did. */
static dt_status blame(dt_status st, const dt_layer *layer, int slot, const dti_rule_list *rules)
{
    char text[DTI_RULE_TEXT_BYTES];

    if (st == DT_OK) return DT_OK;
    if (layer->rule[slot] >= 0) dti_error_prefix("%s", text_of(rules, layer->rule[slot], text));
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

static dt_status set_style(dt_layer *layer, int slot, const char *name, const char *version)
{
    const dt_status st = dti_style_find(layer->list, name, version, &layer->style[slot]);

    if (st != DT_OK) dti_error_prefix("%s", layer->name);
    DT_TRY(st);
    return DT_OK;
}

/* The style that the specs give a tied layer lays the weight as its partner's style does. */
static bool lays_alike(const dt_layer *layer, const char *own, int slot, const dt_placement *place)
{
    const dt_param_info weight = dt_layer_param_info(layer, DT_PARAM_WEIGHT);
    dt_cut_room room = dti_layers_room(layer->list, 1);
    dt_placement mine = DT_REPLICATE;
    const dt_style *style;

    if (own == NULL || slot != layer->list->slot || slot == DTI_NO_DIM) return false;
    if (dti_style_find(layer->list, own, NULL, &style) == DT_OK &&
        dti_style_partition(style, &weight, n_parts(layer, slot), &room, &mine) == DT_OK)
        return dti_placement_equal(&mine, place);
    dti_error_clear(); /* it does not fit, and was not asked for */
    return false;
}

/* The style that lays a tied layer as its partner's style lays the shared weight: the specs' own,
 * as it may scatter tokens too, or a plain one. */
static dt_status follow(dt_layer *layer, const char *own, const dt_layer *partner, int slot)
{
    const dt_param_info weight = dt_layer_param_info(partner, DT_PARAM_WEIGHT);
    dt_cut_room room = dti_layers_room(layer->list, 0);
    dt_placement place = DT_REPLICATE;
    char cut;

    if (partner->style[slot]->cut == DT_CUT_COPIES)
        return set_style(layer, slot, partner->style[slot]->name, NULL);
    if (slot != DTI_NO_DIM)
        DT_TRY(dti_style_partition(partner->style[slot], &weight, n_parts(layer, slot), &room,
                                   &place));
    if (lays_alike(layer, own, slot, &place)) return set_style(layer, slot, own, NULL);
    if (place.kind != DT_PLACE_SHARD) return set_style(layer, slot, "replicate", NULL);
    cut = dt_layer_param_info(layer, DT_PARAM_WEIGHT).letters[place.axis];
    if (cut == dti_kind_letter(layer->spec.kind, DT_CUT_COLUMNS))
        return set_style(layer, slot, "colwise", NULL);
    return set_style(layer, slot, layer->ids ? "embedding_rowwise" : "rowwise", NULL);
}

/* A style that cuts nothing and moves nothing: of norms of heads, which each rank has some of. */
static bool keeps(const dt_layers *list, const char *name)
{
    const dt_style *s;

    if (name == NULL || dti_style_find((dt_layers *)list, name, NULL, &s) != DT_OK) return false;
    return s->cut == DT_CUT_NONE && s->in.of[0].to.kind == DT_LAY_KEEP &&
           s->out.of[0].to.kind == DT_LAY_KEEP && s->prepare_input == NULL &&
           s->prepare_output == NULL && s->partition_param == NULL;
}

/* What the specs give a layer without a rule; NULL: nothing. Of a manual plan that is "replicate",
 * but norms of heads take heads as they are cut: nothing is there to be made whole. */
static const char *own_style(const dt_layers *list, const dti_rule_list *rules,
                             const dt_layer_spec *specs, int i)
{
    if (rules->manual == NULL) return specs[i].style;
    return keeps(list, specs[i].style) ? specs[i].style : NULL;
}

/* Explicit rules first; then a tied partner follows the other's rule; then the plan's style of
 * others; then the specs' defaults. */
static dt_status choose_on(dt_layers *list, const dt_layer_spec *specs, dti_rule_list *rules,
                           int slot)
{
    for (int i = 0; i < list->n; i++) {
        dt_layer *layer = &list->layers[i];
        const int rule = dti_rules_find(rules, layer->name, slot);
        const dti_rule *r;
        layer->rule[slot] = rule;
        if (rule < 0) continue;
        r = &rules->rule[rule];
        DT_TRY(blame(set_style(layer, slot, r->rule.style, r->plan->version), layer, slot, rules));
    }
    for (int i = 0; i < list->n; i++) {
        dt_layer *layer = &list->layers[i], *partner = layer->tied_to;
        if (partner == NULL) continue;
        if (layer->style[slot] != NULL && partner->style[slot] == NULL)
            DT_TRY(follow(partner, own_style(list, rules, specs, (int)(partner - list->layers)),
                          layer, slot));
        else if (layer->style[slot] == NULL && partner->style[slot] != NULL)
            DT_TRY(follow(layer, own_style(list, rules, specs, i), partner, slot));
    }
    for (int i = 0; i < list->n && rules->others[slot] != NULL; i++) {
        const dt_plan *others = rules->others[slot];
        if (list->layers[i].style[slot] == NULL)
            DT_TRY(set_style(&list->layers[i], slot, others->others, others->version));
    }
    if (slot != list->slot) return DT_OK;
    for (int i = 0; i < list->n; i++) {
        const char *own = own_style(list, rules, specs, i);
        if (list->layers[i].style[slot] == NULL)
            DT_TRY(set_style(&list->layers[i], slot, own != NULL ? own : "replicate", NULL));
    }
    return DT_OK;
}

dt_status dti_layers_choose(dt_layers *list, const dt_layer_spec *specs, dti_rule_list *rules)
{
    for (int m = 0; m < dt_mesh_n_dims(list->mesh); m++) DT_TRY(choose_on(list, specs, rules, m));
    if (list->slot == DTI_NO_DIM) DT_TRY(choose_on(list, specs, rules, DTI_NO_DIM));
    for (int i = 0; i < list->n; i++) DT_TRY(dti_twins_find(&list->layers[i]));
    return DT_OK;
}

/* --- placements ------------------------------------------------------------------------------- */

static dt_status check_kind(const dt_layer *layer, int slot)
{
    const dt_style *style = layer->style[slot];
    const dt_param_info weight = dt_layer_param_info(layer, DT_PARAM_WEIGHT);
    char text[DTI_PARAM_TEXT_BYTES] = "", names[256];

    if (dt_style_fits(style, layer->spec.kind)) return DT_OK;
    DT_TRY(dti_style_list(dt_mesh_runtime(layer->mesh), layer->spec.kind, names, sizeof names));
    if (layer->n_params > 0) (void)dti_param_text(&weight, text);
    DT_FAIL(DT_ERR_LAYOUT, "style \"%s\" does not fit %s, %s%s%s; there it can be: %s", style->name,
            layer->name, dti_kind_text(layer->spec.kind), text[0] ? " with " : "", text, names);
}

/* A user's function has failed, perhaps without writing a record. `info` may be NULL. */
static dt_status refuse(dt_status st, const dt_layer *layer, int slot, const dt_param_info *info)
{
    const dt_style *style = layer->style[slot];
    const int parts = n_parts(layer, slot);
    char text[DTI_PARAM_TEXT_BYTES] = "";

    if (info != NULL) (void)dti_param_text(info, text);
    DT_FAIL(st, "style \"%s\" refuses %s%s%s (%s%smesh dim \"%s\" of %d rank%s)", style->name,
            layer->name, dt_last_error()->code == DT_OK ? "" : ": ",
            dt_last_error()->code == DT_OK ? "" : dt_last_error()->message, text,
            text[0] ? ", " : "", slot == DTI_NO_DIM ? "none" : dt_mesh_dim_name(layer->mesh, slot),
            parts, parts == 1 ? "" : "s");
}

/* Which mesh dim a refused style was for, in front of an error's message. */
static dt_status name_dim(dt_status st, const dt_layer *layer, int slot)
{
    const int parts = n_parts(layer, slot);

    if (st == DT_OK) return DT_OK;
    if (slot != DTI_NO_DIM)
        dti_error_prefix("mesh dim \"%s\" of %d rank%s", dt_mesh_dim_name(layer->mesh, slot), parts,
                         parts == 1 ? "" : "s");
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

static dt_status validate(const dt_layer *layer, int slot)
{
    const dt_style *style = layer->style[slot];
    const dt_param_info weight = dt_layer_param_info(layer, DT_PARAM_WEIGHT);
    dt_status st;

    if (style->validate == NULL) return DT_OK;
    dti_error_clear();
    st = style->validate(style, layer, n_parts(layer, slot));
    if (st == DT_OK) return DT_OK;
    return refuse(st, layer, slot, layer->n_params > 0 ? &weight : NULL);
}

static dt_status partition_on(const dt_layer *layer, const dt_param_info *info, int m,
                              dt_placement *place)
{
    const dt_style *style = layer->style[m];
    char text[DTI_PARAM_TEXT_BYTES];
    dt_cut_room room = dti_layers_room(layer->list, 0);
    const dt_layout *layout;
    dt_status st;

    if (style == NULL) return DT_OK;
    dti_error_clear();
    st = dti_style_partition(style, info, n_parts(layer, m), &room, &place[m]);
    if (st != DT_OK) return refuse(st, layer, m, info);
    DT_CHECK(place[m].kind != DT_PLACE_PARTIAL && !place[m].terms, DT_ERR_LAYOUT,
             "style \"%s\" makes %s.%s Partial: a parameter is Shard or Replicate", style->name,
             layer->name, info->name);
    st = dt_layout_get(layer->mesh, info->n_axes, place, NULL, &layout);
    if (st == DT_OK) {
        int64_t shape[DT_PARAM_MAX_AXES];
        for (int a = 0; a < info->n_axes; a++) shape[a] = info->axis[a].extent;
        st = dti_layout_check_shape(layout, shape);
    }
    if (st != DT_OK) {
        dti_error_prefix("style \"%s\" on %s.%s on mesh dim \"%s\" of %d ranks", style->name,
                         layer->name, dti_param_text(info, text), dt_mesh_dim_name(layer->mesh, m),
                         n_parts(layer, m));
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    place[m] = dt_layout_placement(layout, m); /* its blocks outlive the room */
    return DT_OK;
}

/* What other styles leave copies of is cut by those of that kind, one dim after the other. Codes,
 * scales and zero points of packed weights are cut alike, and no group is parted: by outputs. */
static dt_status cut_copies(dt_layer *layer, int param, const dt_param_info *info)
{
    const dt_layout *l = layer->layout[param];
    int64_t shape[DT_PARAM_MAX_AXES];

    for (int a = 0; a < info->n_axes; a++)
        shape[a] =
            info->packed != DT_PACKED_NOT && a == info->n_axes - 1 ? 1 : info->axis[a].extent;
    layer->whole[param] = l;
    if (param == DT_PARAM_WEIGHT) DT_TRY(dti_tiles_choose(layer));
    for (int m = 0; m < dt_mesh_n_dims(layer->mesh); m++)
        if (layer->style[m] != NULL && layer->style[m]->cut == DT_CUT_COPIES)
            DT_TRY(dti_shard_over(l, shape, m, &l));
    if (param == DT_PARAM_WEIGHT) DT_TRY(dti_tiles_lay_out(layer, &l));
    layer->layout[param] = l;
    return DT_OK;
}

static dt_status check_style(const dt_layer *layer, int slot)
{
    const dt_style *style = layer->style[slot];

    DT_TRY(name_dim(check_kind(layer, slot), layer, slot));
    DT_TRY(name_dim(dti_check_packed(style, layer), layer, slot));
    DT_TRY(dti_check_experts(style, layer));
    DT_TRY(validate(layer, slot));
    return DT_OK;
}

static dt_status lay_out(dt_layer *layer, const dti_rule_list *rules)
{
    const int n_dims = dt_mesh_n_dims(layer->mesh);

    for (int s = 0; s < DTI_N_STYLE_SLOTS; s++) {
        if (layer->style[s] == NULL) continue;
        DT_TRY(blame(check_style(layer, s), layer, s, rules));
        layer->prepares = layer->prepares || (s < n_dims && layer->style[s]->prepare_param != NULL);
    }
    for (int p = 0; p < layer->n_params; p++) {
        dt_placement place[DT_MAX_DIMS] = { { 0 } };
        const dt_param_info info = dt_layer_param_info(layer, p);
        if (info.n_axes == 0) continue;
        for (int m = 0; m < n_dims; m++)
            DT_TRY(blame(partition_on(layer, &info, m, place), layer, m, rules));
        DT_TRY(dt_layout_get(layer->mesh, info.n_axes, place, NULL, &layer->layout[p]));
        DT_TRY(cut_copies(layer, p, &info));
    }
    DT_TRY(dti_twins_check(layer));
    for (int m = 0; layer->rows_axis >= 0 && m < n_dims; m++) {
        const dt_placement w = dt_layout_placement(layer->whole[layer->rows_param], m);
        if (n_parts(layer, m) > 1 && w.kind == DT_PLACE_SHARD && w.axis == layer->rows_axis)
            layer->rows_cut = true;
    }
    return DT_OK;
}

/* "colwise makes it Shard(0)": what a tied layer's style does to the shared weight on mesh dim m.
 */
static void say_cut(const dt_layer *layer, int m, char text[DTI_RULE_TEXT_BYTES])
{
    const dt_placement place = dt_layout_placement(layer->layout[DT_PARAM_WEIGHT], m);
    char words[DTI_PLACEMENT_BYTES];

    (void)snprintf(text, DTI_RULE_TEXT_BYTES, "style \"%s\" of %s makes it %s",
                   layer->style[m] != NULL ? layer->style[m]->name : "none", layer->name,
                   dti_placement_words(&place, words));
}

/* A tied weight is one tensor: both styles have to lay it out alike. */
static dt_status check_tied(const dt_layer *layer, const dti_rule_list *rules)
{
    const dt_layer *partner = layer->tied_to;
    char one[DTI_RULE_TEXT_BYTES] = "", two[DTI_RULE_TEXT_BYTES] = "";
    char mine[DTI_RULE_TEXT_BYTES], other[DTI_RULE_TEXT_BYTES];
    bool both;
    int m = -1;

    if (partner == NULL || layer->layout[0] == partner->layout[0]) return DT_OK;
    for (int d = 0; d < dt_mesh_n_dims(layer->mesh); d++) {
        const dt_placement a = dt_layout_placement(layer->layout[0], d);
        const dt_placement b = dt_layout_placement(partner->layout[0], d);
        if (!dti_placement_equal(&a, &b)) m = d;
    }
    if (m < 0) return DT_OK;
    if (layer->rule[m] >= 0) (void)text_of(rules, layer->rule[m], one);
    if (partner->rule[m] >= 0) (void)text_of(rules, partner->rule[m], two);
    both = layer->rule[m] >= 0 && partner->rule[m] >= 0;
    say_cut(layer, m, mine);
    say_cut(partner, m, other);
    DT_FAIL(DT_ERR_LAYOUT,
            "%s%s%s%s%s shares the weight of %s, but on mesh dim \"%s\" %s and %s; %s%s%s", one,
            one[0] && two[0] ? " and " : "", two, one[0] || two[0] ? ": " : "", layer->name,
            partner->name, dt_mesh_dim_name(layer->mesh, m), mine, other,
            both ? "leave one of the rules out, the other holds for both" : "give ",
            both                  ? ""
            : layer->rule[m] >= 0 ? partner->name
                                  : layer->name,
            both ? "" : " a rule with the same cut");
}

dt_status dti_layers_lay_out(dt_layers *list, const dti_rule_list *rules)
{
    for (int i = 0; i < list->n; i++) {
        DT_TRY(lay_out(&list->layers[i], rules));
        DT_TRY(check_tied(&list->layers[i], rules));
    }
    return DT_OK;
}
