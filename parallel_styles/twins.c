/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of two tables: for many tokens, which sequence parallelism cuts over the ranks, and for
 * steps of one token, where each style that cuts tokens has a twin that does not. */
#include <string.h>

#include "base/text.h"
#include "parallel_styles/layers_internal.h"
#include "placements/layout.h"

/* What a built-in plan becomes when tokens are cut between blocks. */
static const struct {
    const char *kinds;
    const char *style;
    const char *sequence;
} sequence_styles[] = {
    { "embedding", "embedding_rowwise", "vocab_reduce_scatter" },
    { "embedding", "replicate", "sequence_parallel" }, /* of positions */
    { "rms_norm layer_norm", "replicate", "activation" },
    { "point", "replicate", "module_allgather" },
    { "point", "gather", "gather_reduce_scatter" },
    { "point", "moe_tp_experts", "moe_reduce_scatter" },
    { "linear", "rowwise", "rowwise_reduce_scatter" },
    { "linear", "packed_rowwise", "packed_rowwise_reduce_scatter" },
};

const char *dt_sequence_style(const dt_layer_kind *kind, const char *style)
{
    if (style == NULL) style = "replicate";
    for (size_t i = 0; i < DT_COUNT(sequence_styles) && kind != NULL; i++)
        if (dti_kind_is(kind, sequence_styles[i].kinds) &&
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
static bool uncut(dt_lay *how, bool of_matrix, dt_lay_kind instead)
{
    const bool tokens =
        how->kind == DT_LAY_SEQUENCE ||
        (how->kind == DT_LAY_SHARD && (how->axis == 1 || (of_matrix && how->axis == -2)));

    if (tokens) *how = (dt_lay){ instead, 0 };
    return tokens;
}

static bool uncut_all(dt_passes *all, bool of_matrix)
{
    bool any = false;

    for (int i = 0; i < DT_MAX_PASSES; i++) {
        any = uncut(&all->of[i].to, of_matrix, DT_LAY_REPLICATE) || any;
        any = uncut(&all->of[i].comes, of_matrix, DT_LAY_KEEP) || any;
    }
    return any;
}

/* Is a style for those kinds alone? */
static bool is_for(const dt_style *style, const char *kinds)
{
    const char *at = style->kinds;

    if (at == NULL) return false;
    for (size_t n; (n = dti_next_word(&at)) > 0; at += n)
        if (!dti_has_word(kinds, at, n)) return false;
    return true;
}

bool dti_twin_uncut(dt_style *style)
{
    const bool in = is_for(style, "linear experts");
    const bool out = is_for(style, "linear experts embedding"); /* of ids, which are [B, T] */
    const bool enters = uncut_all(&style->in, in), leaves = uncut_all(&style->out, out);

    return enters || leaves;
}

dt_status dti_twins_find(dt_layer *layer)
{
    for (int s = 0; s < DTI_N_STYLE_SLOTS; s++) {
        const dt_style *style = layer->style[s];
        dt_status st;
        layer->step[s] = style;
        if (style == NULL || style->twin == NULL) continue;
        st = dti_style_find(layer->list, style->twin, NULL, &layer->step[s]);
        if (st != DT_OK)
            dti_error_prefix("the twin of style \"%s\" on %s", style->name, layer->name);
        DT_TRY(st);
    }
    return DT_OK;
}

static dt_status check_param(const dt_layer *layer, int m, int param)
{
    const int n_parts = dt_mesh_dim_size(layer->mesh, m);
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
        dt_mesh_dim_name(layer->mesh, m));
    return DT_OK;
}

dt_status dti_twins_check(const dt_layer *layer)
{
    for (int m = 0; m < dt_mesh_n_dims(layer->mesh); m++) {
        const dt_style *twin = layer->step[m];
        if (twin == NULL || twin == layer->style[m]) continue;
        DT_CHECK(dt_style_fits(twin, layer->spec.kind), DT_ERR_LAYOUT,
                 "style \"%s\" on %s: its twin \"%s\" for steps of one token does not fit %s",
                 layer->style[m]->name, layer->name, twin->name, dti_kind_text(layer->spec.kind));
        for (int p = 0; p < layer->n_params; p++)
            if (dt_layer_has_param(layer, p)) DT_TRY(check_param(layer, m, p));
    }
    return DT_OK;
}
