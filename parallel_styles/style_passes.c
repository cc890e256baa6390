/* SPDX-License-Identifier: Apache-2.0
 *
 * What a style does with the values that pass through a layer, on one mesh dim. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "parallel_styles/layers_internal.h"
#include "placements/layout.h"

enum { SHAPE_BYTES = 96 };

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

/* Are the values ids [B, T], whose last axis is that of the tokens? */
static bool are_ids(const dti_values *v)
{
    return v->enters && dt_layer_kind_of(v->layer) == DT_LAYER_EMBEDDING;
}

static dt_tensor *pass(dt_tape *tape, const dti_values *v, dt_pass how, dt_tensor *x)
{
    const dt_style *style = v->style;
    const dt_layer *layer = v->layer;
    const int n = dt_tensor_n_axes(x), dim = v->dim;
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
        axis = dti_token_axis(n, are_ids(v));
        if (axis < 0) return refuse_axis(style, tape, layer, 1, x);
        return cut_axis(tape, dim, axis, x);
    default:
        axis = (int)how - (int)DT_PASS_SHARD(0);
        if (axis < -n || axis >= n) return refuse_axis(style, tape, layer, axis, x);
        return cut_axis(tape, dim, axis < 0 ? axis + n : axis, x);
    }
}

/* --- several values --------------------------------------------------------------------------- */

/* Does x lie as `how` would have it? Of one row nothing can be cut: in steps of one token a value
 * is whole that is cut in a prompt. */
static bool lies_so(const dti_values *v, dt_pass how, const dt_tensor *x)
{
    const dt_placement now = place_of(x, v->dim);
    const int n = dt_tensor_n_axes(x);
    int axis = n - 1;

    if (how == DT_PASS_KEEP || dt_mesh_dim_size(dt_tensor_mesh(x), v->dim) == 1) return true;
    if (how == DT_PASS_REPLICATE) return now.kind == DT_PLACE_REPLICATE;
    if (how == DT_PASS_PARTIAL) return now.kind == DT_PLACE_PARTIAL;
    if (how == DT_PASS_SEQUENCE) axis = dti_token_axis(n, are_ids(v));
    if (how >= DT_PASS_AXIS_FIRST) axis = (int)how - (int)DT_PASS_SHARD(0);
    if (axis < -n || axis >= n) return false;
    if (now.kind == DT_PLACE_REPLICATE) return dt_tensor_extent(x, axis) == 1;
    return now.kind == DT_PLACE_SHARD && now.axis == (axis < 0 ? axis + n : axis);
}

static bool refuse_layout(dt_tape *tape, const dti_values *v, dt_pass how, int i)
{
    const dt_placement now = place_of(v->x[i], v->dim);
    dt_mesh *mesh = dt_tensor_mesh(v->x[i]);
    char text[DTI_PLACEMENT_BYTES], wanted[DTI_PASS_BYTES];

    (void)dt_tape_fail(
        tape, DT_ERR_LAYOUT,
        "style \"%s\" wants %s %d of %s to come as %s, but it is %s on mesh dim \"%s\" "
        "of %d ranks",
        name_of(v->style), v->what, i, dt_layer_name(v->layer), dti_pass_text(how, wanted),
        dti_placement_words(&now, text), dt_mesh_dim_name(mesh, v->dim),
        dt_mesh_dim_size(mesh, v->dim));
    return false;
}

static bool right_number(dt_tape *tape, const dti_values *v, const dt_passes *said)
{
    if (said->n == 0 || said->n == v->n) return true;
    (void)dt_tape_fail(tape, DT_ERR_ARG, "style \"%s\" speaks of %d %ss, %s has %d",
                       name_of(v->style), said->n, v->what, dt_layer_name(v->layer), v->n);
    return false;
}

static bool come_so(dt_tape *tape, const dti_values *v, const dt_passes *before)
{
    if (!right_number(tape, v, before)) return false;
    for (int i = 0; i < before->n; i++)
        if (!lies_so(v, before->of[i], v->x[i])) return refuse_layout(tape, v, before->of[i], i);
    return true;
}

/* As `all` says of them, or only of the first as `first` says. */
static bool lay_out(dt_tape *tape, const dti_values *v, const dt_passes *all, dt_pass first)
{
    if (!right_number(tape, v, all)) return false;
    for (int i = 0; i < v->n; i++) {
        const dt_pass how = all->n > 0 ? all->of[i] : i == 0 ? first : DT_PASS_KEEP;
        v->x[i] = pass(tape, v, how, v->x[i]);
        if (v->x[i] == NULL) return false;
    }
    return true;
}

typedef dt_tensor *(*prepare_fn)(const dt_style *style, dt_tape *tape, const dt_layer *layer,
                                 int dim, dt_tensor *x);

static void shape_of(const dt_tensor *x, int64_t shape[DT_MAX_AXES])
{
    for (int a = 0; a < dt_tensor_n_axes(x); a++) shape[a] = dt_tensor_extent(x, a);
}

/* A function of a user's style that gives nothing has to say why. */
static bool gave_nothing(dt_tape *tape, const dti_values *v, const dt_mesh *mesh)
{
    if (dt_tape_status(tape) != DT_OK) return false;
    (void)dt_tape_fail(
        tape, DT_ERR_ARG,
        "style \"%s\": its prepare_%s gave NULL for %s (mesh dim \"%s\" of %d ranks) "
        "and no error; return the tensor, or NULL from dt_tape_fail()",
        name_of(v->style), v->what, dt_layer_name(v->layer), dt_mesh_dim_name(mesh, v->dim),
        dt_mesh_dim_size(mesh, v->dim));
    return false;
}

/* A function of a user's style on the first value. */
static bool call(dt_tape *tape, const dti_values *v, prepare_fn prepare)
{
    const int n = dt_tensor_n_axes(v->x[0]);
    dt_mesh *mesh = dt_tensor_mesh(v->x[0]);
    int64_t before[DT_MAX_AXES], after[DT_MAX_AXES];
    char was[SHAPE_BYTES], is[SHAPE_BYTES];

    shape_of(v->x[0], before);
    v->x[0] = prepare(v->style, tape, v->layer, v->dim, v->x[0]);
    if (v->x[0] == NULL) return gave_nothing(tape, v, mesh);
    shape_of(v->x[0], after);
    if (dt_tensor_mesh(v->x[0]) == mesh && dt_tensor_n_axes(v->x[0]) == n &&
        memcmp(before, after, (size_t)n * sizeof *before) == 0)
        return true;
    (void)dt_tape_fail(tape, DT_ERR_SHAPE,
                       "style \"%s\": its prepare_%s made %s%s of %s of %s; it may change nothing "
                       "but the placements",
                       name_of(v->style), v->what,
                       dti_shape_text(after, dt_tensor_n_axes(v->x[0]), is, sizeof is),
                       dt_tensor_mesh(v->x[0]) != mesh ? " on another mesh" : "",
                       dti_shape_text(before, n, was, sizeof was), dt_layer_name(v->layer));
    return false;
}

bool dti_style_input(dt_tape *tape, const dti_values *v)
{
    const dt_style *style = v->style;
    dt_pass first = style->input;

    if (!come_so(tape, v, &style->comes)) return false;
    if (style->prepare_input != NULL) return call(tape, v, style->prepare_input);
    if (first == DT_PASS_SHARD_LAST && dt_layer_kind_of(v->layer) == DT_LAYER_EMBEDDING)
        first = DT_PASS_REPLICATE; /* ids of cut rows */
    return lay_out(tape, v, &style->inputs, first);
}

bool dti_style_output(dt_tape *tape, const dti_values *v)
{
    const dt_style *style = v->style;
    const dt_pass first = style->output == DT_PASS_SHARD_LAST ? DT_PASS_SHARD(-1) : style->output;

    if (!come_so(tape, v, &style->gives)) return false;
    if (style->prepare_output != NULL) return call(tape, v, style->prepare_output);
    return lay_out(tape, v, &style->outputs, first);
}

/* --- in words --------------------------------------------------------------------------------- */

const char *dti_pass_text(dt_pass how, char text[DTI_PASS_BYTES])
{
    static const char *const words[] = { "keep", "replicate", "shard(last)", "sequence",
                                         "partial" };

    if (how <= DT_PASS_PARTIAL)
        (void)snprintf(text, DTI_PASS_BYTES, "%s", words[how]);
    else
        (void)snprintf(text, DTI_PASS_BYTES, "shard(%d)", (int)how - (int)DT_PASS_SHARD(0));
    return text;
}

dt_status dti_check_passes(const dt_passes *p, const char *what)
{
    DT_CHECK(p->n >= 0 && p->n <= DT_MAX_PASSES, DT_ERR_ARG,
             "%s of %d values: a style speaks of %d at most", what, p->n, (int)DT_MAX_PASSES);
    for (int i = 0; i < p->n; i++)
        DT_CHECK(dti_pass_is_valid(p->of[i]), DT_ERR_ARG,
                 "%s: layout %d is %d, which is no dt_pass", what, i, (int)p->of[i]);
    return DT_OK;
}
