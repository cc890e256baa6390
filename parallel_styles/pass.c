/* SPDX-License-Identifier: Apache-2.0
 *
 * What a style does with the values that pass through a layer, on one mesh dim. */
#include "parallel_styles/layers_internal.h"
#include "placements/layout.h"

static const char *name_of(const dt_style *style)
{
    return style->name != NULL ? style->name : "without a name";
}

bool dti_pass_is_valid(dt_pass how)
{
    return ((int)how >= DT_PASS_KEEP && how <= DT_PASS_PARTIAL) ||
           (how >= DT_PASS_AXIS_FIRST && how <= DT_PASS_AXIS_LAST);
}

static dt_placement place_of(const dt_tensor *x, int dim)
{
    return dt_layout_placement(dt_tensor_layout(x), dim);
}

/* A cut of that axis stays, whatever its boundaries: heads stay heads. */
static dt_tensor *cut_axis(dt_tape *tape, int dim, int axis, dt_tensor *x)
{
    const dt_placement now = place_of(x, dim);

    if (now.kind == DT_PLACE_SHARD && now.axis == axis) return x;
    return dt_move_dim(tape, x, dim, DT_SHARD(axis));
}

/* The last axis as the weight's inputs, its axis 1, lie on this dim; in chunks where no weight says
 * so. */
static dt_tensor *cut_last(dt_tape *tape, const dt_layer *layer, int dim, dt_tensor *x)
{
    dt_placement cut;

    if (dt_layer_kind_of(layer) != DT_LAYER_LINEAR)
        return cut_axis(tape, dim, dt_tensor_n_axes(x) - 1, x);
    cut = dt_layout_placement(dt_layer_param_layout(layer, DT_PARAM_WEIGHT), dim);
    cut.axis = -1;
    return cut.kind == DT_PLACE_SHARD ? dt_move_dim(tape, x, dim, cut) : x;
}

static dt_tensor *leave_partial(const dt_style *style, dt_tape *tape, const dt_layer *layer,
                                int dim, dt_tensor *x)
{
    const dt_placement now = place_of(x, dim);
    dt_mesh *mesh = dt_tensor_mesh(x);
    char text[DTI_PLACEMENT_BYTES];

    if (now.kind == DT_PLACE_PARTIAL || dt_mesh_dim_size(mesh, dim) == 1) return x;
    return dt_tape_fail(tape, DT_ERR_LAYOUT,
                        "style \"%s\" leaves terms of a sum, but a value of %s is %s on mesh dim "
                        "\"%s\" of %d ranks: only a product whose inputs are cut is a sum",
                        name_of(style), dt_layer_name(layer), dti_placement_words(&now, text),
                        dt_mesh_dim_name(mesh, dim), dt_mesh_dim_size(mesh, dim));
}

static dt_tensor *refuse_axis(const dt_style *style, dt_tape *tape, const dt_layer *layer, int axis,
                              const dt_tensor *x)
{
    return dt_tape_fail(tape, DT_ERR_LAYOUT,
                        "style \"%s\" cuts axis %d, but a value of %s has %d ax%cs", name_of(style),
                        axis, dt_layer_name(layer), dt_tensor_n_axes(x),
                        dt_tensor_n_axes(x) == 1 ? 'i' : 'e');
}

dt_tensor *dti_pass(const dt_style *style, dt_pass how, dt_tape *tape, const dt_layer *layer,
                    int dim, dt_tensor *x)
{
    const int n = dt_tensor_n_axes(x);
    int axis;

    switch (how) {
    case DT_PASS_KEEP:
        return x;
    case DT_PASS_REPLICATE:
        return dt_move_dim(tape, x, dim, DT_REPLICATE);
    case DT_PASS_SHARD_LAST:
        return n > 0 ? cut_last(tape, layer, dim, x) : refuse_axis(style, tape, layer, -1, x);
    case DT_PASS_PARTIAL:
        return leave_partial(style, tape, layer, dim, x);
    case DT_PASS_SEQUENCE:
        axis = dti_token_axis(n, false);
        if (axis < 0) return refuse_axis(style, tape, layer, 1, x);
        return cut_axis(tape, dim, axis, x);
    default:
        axis = (int)how - (int)DT_PASS_SHARD(0);
        if (axis < -n || axis >= n) return refuse_axis(style, tape, layer, axis, x);
        return cut_axis(tape, dim, axis < 0 ? axis + n : axis, x);
    }
}

dt_tensor *dti_style_input(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                           dt_tensor *x)
{
    if (style->prepare_input != NULL) return style->prepare_input(style, tape, layer, dim, x);
    if (style->input == DT_PASS_SHARD_LAST && dt_layer_kind_of(layer) == DT_LAYER_EMBEDDING)
        return dti_pass(style, DT_PASS_REPLICATE, tape, layer, dim, x); /* ids of cut rows */
    if (style->input == DT_PASS_SEQUENCE && dt_layer_kind_of(layer) == DT_LAYER_EMBEDDING &&
        dt_tensor_n_axes(x) > 0)
        return cut_axis(tape, dim, dti_token_axis(dt_tensor_n_axes(x), true), x);
    return dti_pass(style, style->input, tape, layer, dim, x);
}

dt_tensor *dti_style_output(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                            dt_tensor *y)
{
    const dt_pass how = style->output == DT_PASS_SHARD_LAST ? DT_PASS_SHARD(-1) : style->output;

    if (style->prepare_output != NULL) return style->prepare_output(style, tape, layer, dim, y);
    return dti_pass(style, how, tape, layer, dim, y);
}
