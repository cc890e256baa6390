/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of two tables: for many tokens, which sequence parallelism cuts over the ranks, and for
 * steps of one token, where each style that cuts tokens has a twin that does not. */
#include <string.h>

#include "parallel_styles/layers_internal.h"
#include "placements/layout.h"

#define NORM ((1u << DT_LAYER_RMS_NORM) | (1u << DT_LAYER_LAYER_NORM))

/* What a built-in plan becomes when tokens are cut between blocks. */
static const struct {
    uint32_t kinds;
    const char *style;
    const char *sequence;
} sequence_styles[] = {
    { 1u << DT_LAYER_EMBEDDING, "embedding_rowwise", "vocab_reduce_scatter" },
    { 1u << DT_LAYER_EMBEDDING, "replicate", "sequence_parallel" }, /* of positions */
    { NORM, "replicate", "activation" },
    { 1u << DT_LAYER_POINT, "replicate", "module_allgather" },
    { 1u << DT_LAYER_POINT, "moe_tp_experts", "moe_reduce_scatter" },
    { 1u << DT_LAYER_LINEAR, "rowwise", "rowwise_reduce_scatter" },
};

const char *dt_sequence_style(dt_layer_kind kind, const char *style)
{
    if (style == NULL) style = "replicate";
    for (size_t i = 0; i < DT_COUNT(sequence_styles); i++)
        if ((sequence_styles[i].kinds & DT_KIND_BIT(kind)) != 0 &&
            strcmp(sequence_styles[i].style, style) == 0)
            return sequence_styles[i].sequence;
    return style;
}

int dti_token_axis(int n_axes, bool ids)
{
    if (ids) return n_axes - 1;
    return n_axes > 2 ? 1 : n_axes == 2 ? 0 : -1;
}

/* S(1) is taken for the tokens, as of [B, T, ...]. The axis before the last is that of the tokens
 * where a matrix makes or takes the value, of others it may count heads. */
static bool uncut(dt_pass *how, bool of_matrix, dt_pass instead)
{
    if (*how != DT_PASS_SEQUENCE && *how != DT_PASS_SHARD(1) &&
        !(of_matrix && *how == DT_PASS_SHARD(-2)))
        return false;
    *how = instead;
    return true;
}

static bool uncut_all(dt_passes *all, bool of_matrix, dt_pass instead)
{
    bool any = false;

    for (int i = 0; i < all->n; i++) any = uncut(&all->of[i], of_matrix, instead) || any;
    return any;
}

bool dti_twin_uncut(dt_style *style)
{
    const uint32_t takes = DT_KIND_BIT(DT_LAYER_LINEAR) | DT_KIND_BIT(DT_LAYER_EXPERTS);
    const uint32_t makes = takes | DT_KIND_BIT(DT_LAYER_EMBEDDING); /* of ids, which are [B, T] */
    const bool in = style->kinds != 0 && (style->kinds & ~takes) == 0;
    const bool out = style->kinds != 0 && (style->kinds & ~makes) == 0;
    bool any = uncut(&style->input, in, DT_PASS_REPLICATE);

    any = uncut(&style->output, out, DT_PASS_REPLICATE) || any;
    any = uncut_all(&style->inputs, in, DT_PASS_REPLICATE) || any;
    any = uncut_all(&style->outputs, out, DT_PASS_REPLICATE) || any;
    any = uncut_all(&style->comes, in, DT_PASS_KEEP) || any;
    return uncut_all(&style->gives, out, DT_PASS_KEEP) || any;
}

dt_status dti_twins_find(dt_layer *layer)
{
    dt_runtime *rt = dt_mesh_runtime(layer->list->mesh);

    for (int s = 0; s < DTI_N_STYLE_SLOTS; s++) {
        const dt_style *style = layer->style[s];
        dt_status st;
        layer->step[s] = style;
        if (style == NULL || style->twin == NULL) continue;
        st = dt_style_find(rt, style->twin, NULL, &layer->step[s]);
        if (st != DT_OK)
            dti_error_prefix("the twin of style \"%s\" on %s", style->name, layer->name);
        DT_TRY(st);
    }
    return DT_OK;
}

static dt_status check_param(const dt_layer *layer, int m, int param)
{
    const int n_parts = dt_mesh_dim_size(layer->list->mesh, m);
    const dt_param_info info = dt_layer_param_info(layer, param);
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES], text[DTI_PARAM_TEXT_BYTES];
    dt_placement many = DT_REPLICATE, step = DT_REPLICATE;
    dt_cut_room rooms[] = { dti_layers_room(layer->list, 0), dti_layers_room(layer->list, 1) };

    DT_TRY(dti_style_partition(layer->style[m], &info, n_parts, &rooms[0], &many));
    DT_TRY(dti_style_partition(layer->step[m], &info, n_parts, &rooms[1], &step));
    DT_CHECK(
        dti_placement_equal(&many, &step), DT_ERR_LAYOUT,
        "style \"%s\" makes %s.%s %s, but its twin \"%s\" for steps of one token makes it %s on "
        "mesh dim \"%s\": twins lay parameters alike",
        layer->style[m]->name, layer->name, dti_param_text(&info, text),
        dti_placement_words(&many, one), layer->step[m]->name, dti_placement_words(&step, two),
        dt_mesh_dim_name(layer->list->mesh, m));
    return DT_OK;
}

dt_status dti_twins_check(const dt_layer *layer)
{
    for (int m = 0; m < dt_mesh_n_dims(layer->list->mesh); m++) {
        const dt_style *twin = layer->step[m];
        if (twin == NULL || twin == layer->style[m]) continue;
        DT_CHECK(twin->kinds == 0 || (twin->kinds & DT_KIND_BIT(layer->kind)) != 0, DT_ERR_LAYOUT,
                 "style \"%s\" on %s: its twin \"%s\" for steps of one token does not fit %s",
                 layer->style[m]->name, layer->name, twin->name, dti_kind_text(layer->kind));
        for (int p = 0; p < layer->n_params; p++) DT_TRY(check_param(layer, m, p));
    }
    return DT_OK;
}
