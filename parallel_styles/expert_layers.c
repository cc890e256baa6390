/* SPDX-License-Identifier: Apache-2.0
 *
 * Running a mixture of experts: two layers that hold weights, and the point whose style moves
 * values in and out. */
#include <dtensor/ops.h>
#include <string.h>

#include "dtensor/create.h"
#include "parallel_styles/layers_internal.h"

static dt_tensor *refuse(dt_tape *t, const dt_layer *layer, const char *why)
{
    return dt_tape_fail(t, DT_ERR_ARG, "dt_layer_experts: %s %s", layer->name, why);
}

static dt_packed_weight packed_weight(dt_tape *t, const dt_layer *layer)
{
    const int zeros = dti_packed_param(layer, DT_PACKED_ZEROS);

    return (dt_packed_weight){ dt_layer_use(t, layer, dti_packed_param(layer, DT_PACKED_CODES)),
                               dt_layer_use(t, layer, dti_packed_param(layer, DT_PACKED_SCALES)),
                               zeros >= 0 ? dt_layer_use(t, layer, zeros) : NULL,
                               layer->spec.packing.floats };
}

/* The weights as they are used: plain ones are codes alone. */
static void use_weights(dt_tape *t, const dt_layer *const halves[2], bool packed,
                        dt_packed_weight out[2])
{
    for (int i = 0; i < 2; i++)
        out[i] = packed
                     ? packed_weight(t, halves[i])
                     : (dt_packed_weight){ .codes = dt_layer_use(t, halves[i], DT_PARAM_WEIGHT) };
}

/* What the experts compute, between the two halves of the point's style. */
typedef struct mixture {
    const dt_layer *point;
    bool packed;
    dt_packed_weight w[2];
    const dt_clamp *clamp; /* NULL: none */
} mixture;

static dt_tensor *run(dt_tape *t, const mixture *m, dti_routed *routed, dt_tensor *x)
{
    dt_tensor *ids, *weights;
    dt_status st;

    routed->experts = m->w[0].codes;
    ((dt_layer *)m->point)->routed = routed;
    x = dt_layer_enter(t, m->point, x);
    ids = routed->ids;
    weights = routed->weights;
    if (m->point->forward != NULL)
        x = dti_layer_compute(t, m->point, x);
    else if (m->clamp != NULL)
        x = dt_experts_clamped(t, x, ids, weights, m->w[0].codes, m->w[1].codes, m->clamp);
    else if (m->packed)
        x = dt_experts_packed(t, x, ids, weights, &m->w[0], &m->w[1]);
    else
        x = dt_experts(t, x, ids, weights, m->w[0].codes, m->w[1].codes);
    x = dt_layer_leave(t, m->point, x);
    ((dt_layer *)m->point)->routed = NULL;
    st = x != NULL ? dti_count_choices(t, m->point, ids) : DT_OK;
    if (st != DT_OK) return dti_tape_latch(t, st);
    return dt_scope_end(t, x);
}

dt_tensor *dt_layer_experts(dt_tape *t, const dt_layer *point, const dt_layer *gate_up,
                            const dt_layer *down, dt_tensor *x, dt_tensor *ids, dt_tensor *weights)
{
    const dt_layer *halves[] = { gate_up, down };
    dti_routed routed = { ids, weights, NULL, { 0 } };
    mixture m = { .point = point };

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (point == NULL || gate_up == NULL || down == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_layer_experts: a layer is NULL");
    for (int i = 0; i < 2; i++)
        if (!dti_kind_is(halves[i]->spec.kind, "experts"))
            return refuse(t, halves[i], "is no experts");
    m.packed = dti_kind_is(gate_up->spec.kind, "experts_packed");
    if (m.packed != dti_kind_is(down->spec.kind, "experts_packed"))
        return refuse(t, down, "is packed and its gate and up are not, or the other way round");
    dt_scope_begin(t, point->name);
    use_weights(t, halves, m.packed, m.w);
    return run(t, &m, &routed, x);
}

dt_tensor *dt_layer_experts_clamped(dt_tape *t, const dt_layer *point, const dt_clamped_experts *e,
                                    dt_tensor *x, dt_tensor *ids, dt_tensor *weights)
{
    dti_routed routed = { ids, weights, NULL, { 0 } };
    dt_clamp clamp = { .limit = 0 };
    mixture m = { .point = point, .clamp = &clamp };

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (point == NULL || e == NULL || e->gate_up == NULL || e->down == NULL ||
        e->gate_up_bias == NULL || e->down_bias == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_layer_experts_clamped: a layer is NULL");
    if (dti_kind_is(e->gate_up->spec.kind, "experts_packed") ||
        dti_kind_is(e->down->spec.kind, "experts_packed"))
        return dt_tape_fail(t, DT_ERR_UNSUPPORTED,
                            "%s: experts with limits are computed with plain weights, not packed "
                            "ones",
                            point->name);
    dt_scope_begin(t, point->name);
    clamp.limit = (float)e->limit;
    clamp.alpha = (float)e->alpha;
    clamp.gate_up_bias = dt_layer_use(t, e->gate_up_bias, DT_PARAM_WEIGHT);
    clamp.down_bias = dt_layer_use(t, e->down_bias, DT_PARAM_WEIGHT);
    use_weights(t, (const dt_layer *[]){ e->gate_up, e->down }, false, m.w);
    return run(t, &m, &routed, x);
}

void dti_output_as_term(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim, int n,
                        dt_tensor **y)
{
    const dt_placement now = dt_layout_placement(dt_tensor_layout(*y), dim);
    dt_tensor *term;
    dt_status st;

    (void)n;
    if (dt_mesh_dim_size(dt_tensor_mesh(*y), dim) == 1 || now.kind == DT_PLACE_PARTIAL) return;
    if (now.kind == DT_PLACE_SHARD) {
        *y = dt_tape_fail(t, DT_ERR_LAYOUT,
                          "style \"%s\" makes a whole value one term of a sum, but that of %s is "
                          "cut on mesh dim \"%s\"",
                          style->name, layer->name, dt_mesh_dim_name(dt_tensor_mesh(*y), dim));
        return;
    }
    st = dti_tensor_as_term(*y, 1u << dim, &term);
    if (st == DT_OK) st = dti_graph_move(t, *y, term);
    *y = st == DT_OK ? dti_tape_push(t, term) : dti_tape_latch(t, st);
}

const dt_layer *dti_point_around(const dt_layer *layer)
{
    const char *last = strrchr(layer->name, '.');
    const size_t n = last != NULL ? (size_t)(last - layer->name) : 0;

    for (int i = 0; i < layer->list->n; i++) {
        const dt_layer *other = &layer->list->layers[i];
        if (other->n_params == 0 && strncmp(other->name, layer->name, n) == 0 &&
            other->name[n] == '\0')
            return other;
    }
    return layer;
}

/* Does the style say no more of values than "rowwise" and "colwise" do, whose words for x and y
 * hold for the whole of experts already? Arguments speak of nothing but values. */
static bool only_cuts(const dt_style *style)
{
    const dt_lay_kind in = style->in.of[0].to.kind, out = style->out.of[0].to.kind;
    const bool halves = style->cut == DT_CUT_ROWS && in == DT_LAY_LAST && out == DT_LAY_REPLICATE;

    if (style->prepare_input != NULL || style->prepare_output != NULL) return false;
    if (style->in.n + style->out.n > 0 || style->in.of[0].comes.kind != DT_LAY_KEEP ||
        style->out.of[0].comes.kind != DT_LAY_KEEP)
        return false;
    if (strchr(style->name, '(') != NULL) return false;
    return halves || (out == DT_LAY_KEEP && (in == DT_LAY_KEEP || in == DT_LAY_REPLICATE));
}

dt_status dti_check_experts(const dt_style *style, const dt_layer *layer)
{
    const dt_layer *point;

    if (layer->spec.kind->run_by == NULL || only_cuts(style)) return DT_OK;
    point = dti_point_around(layer);
    DT_FAIL(DT_ERR_LAYOUT,
            "style \"%s\" lays out values of %s, %s, where a style only cuts the weight; say it at "
            "%s",
            style->name, layer->name, dti_kind_text(layer->spec.kind),
            point != layer ? point->name : "the point around it");
}
