/* SPDX-License-Identifier: Apache-2.0
 *
 * What a style does with the values that pass through a layer, on one mesh dim. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "parallel_styles/layers_internal.h"
#include "placements/layout.h"

enum { LAY_BYTES = 24 };

static const char *name_of(const dt_style *style)
{
    return style->name != NULL ? style->name : "without a name";
}

bool dti_lay_is_valid(dt_lay how)
{
    if (how.kind == DT_LAY_SHARD) return how.axis >= -DT_MAX_AXES && how.axis < DT_MAX_AXES;
    return (int)how.kind >= DT_LAY_KEEP && how.kind <= DT_LAY_PARTIAL;
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

/* The last axis as the weight's inputs lie on this dim; in chunks where no weight says so. Ids, of
 * which a table's rows are the inputs, stay whole. */
static dt_tensor *cut_last(dt_tape *tape, const dti_values *v, dt_tensor *x)
{
    const dt_layer *layer = v->layer;
    dt_placement cut;

    if (v->enters && layer->ids) return dt_move_dim(tape, x, v->dim, DT_REPLICATE);
    if (!v->enters || layer->rows_axis < 0)
        return cut_axis(tape, v->dim, dt_tensor_n_axes(x) - 1, x);
    cut = dt_layout_placement(layer->whole[layer->rows_param], v->dim);
    if (cut.kind != DT_PLACE_SHARD || cut.axis != layer->rows_axis) return x;
    cut.axis = -1;
    cut.unit *=
        dti_packed_inputs(layer->spec.kind->params[layer->rows_param].packed, &layer->spec.packing);
    return dt_move_dim(tape, x, v->dim, cut);
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
    return v->enters && v->layer->ids;
}

static dt_tensor *pass(dt_tape *tape, const dti_values *v, dt_lay how, dt_tensor *x)
{
    const dt_style *style = v->style;
    const dt_layer *layer = v->layer;
    const int n = dt_tensor_n_axes(x), dim = v->dim;
    int axis = how.axis;

    switch (how.kind) {
    case DT_LAY_REPLICATE:
        return dt_move_dim(tape, x, dim, DT_REPLICATE);
    case DT_LAY_LAST:
        return n > 0 ? cut_last(tape, v, x) : refuse_axis(style, tape, layer, -1, x);
    case DT_LAY_PARTIAL:
        return leave_partial(style, tape, layer, dim, x);
    case DT_LAY_SEQUENCE:
        axis = dti_token_axis(n, are_ids(v));
        if (axis < 0) return refuse_axis(style, tape, layer, 1, x);
        return cut_axis(tape, dim, axis, x);
    case DT_LAY_SHARD:
        if (axis < -n || axis >= n) return refuse_axis(style, tape, layer, axis, x);
        return cut_axis(tape, dim, axis < 0 ? axis + n : axis, x);
    default:
        return x;
    }
}

/* --- several values --------------------------------------------------------------------------- */

/* Does x lie as `how` would have it? Of one row nothing can be cut: in steps of one token a value
 * is whole that is cut in a prompt. */
static bool lies_so(const dti_values *v, dt_lay how, const dt_tensor *x)
{
    const dt_placement now = place_of(x, v->dim);
    const int n = dt_tensor_n_axes(x);
    int axis = n - 1;

    if (how.kind == DT_LAY_KEEP || dt_mesh_dim_size(dt_tensor_mesh(x), v->dim) == 1) return true;
    if (how.kind == DT_LAY_REPLICATE) return now.kind == DT_PLACE_REPLICATE;
    if (how.kind == DT_LAY_PARTIAL) return now.kind == DT_PLACE_PARTIAL;
    if (how.kind == DT_LAY_SEQUENCE) axis = dti_token_axis(n, are_ids(v));
    if (how.kind == DT_LAY_SHARD) axis = how.axis;
    if (axis < -n || axis >= n) return false;
    if (now.kind == DT_PLACE_REPLICATE) return dt_tensor_extent(x, axis) == 1;
    return now.kind == DT_PLACE_SHARD && now.axis == (axis < 0 ? axis + n : axis);
}

/* "shard(1)" */
static const char *lay_text(dt_lay how, char text[LAY_BYTES])
{
    static const char *const words[] = { "keep",        "replicate", NULL,
                                         "shard(last)", "sequence",  "partial" };

    if (how.kind == DT_LAY_SHARD)
        (void)snprintf(text, LAY_BYTES, "shard(%d)", how.axis);
    else
        (void)snprintf(text, LAY_BYTES, "%s", words[how.kind]);
    return text;
}

static bool refuse_layout(dt_tape *tape, const dti_values *v, dt_lay how, int i)
{
    const dt_placement now = place_of(v->x[i], v->dim);
    dt_mesh *mesh = dt_tensor_mesh(v->x[i]);
    char text[DTI_PLACEMENT_BYTES], wanted[LAY_BYTES];

    (void)dt_tape_fail(
        tape, DT_ERR_LAYOUT,
        "style \"%s\" wants %s %d of %s to come as %s, but it is %s on mesh dim \"%s\" "
        "of %d ranks",
        name_of(v->style), v->what, i, dt_layer_name(v->layer), lay_text(how, wanted),
        dti_placement_words(&now, text), dt_mesh_dim_name(mesh, v->dim),
        dt_mesh_dim_size(mesh, v->dim));
    return false;
}

/* Are there as many values as the style speaks of, and do they come as it says? */
static bool come_so(dt_tape *tape, const dti_values *v, const dt_passes *said)
{
    if (said->n != 0 && said->n != v->n) {
        (void)dt_tape_fail(tape, DT_ERR_ARG, "style \"%s\" speaks of %d %ss, %s has %d",
                           name_of(v->style), said->n, v->what, dt_layer_name(v->layer), v->n);
        return false;
    }
    for (int i = 0; i < (said->n > 0 ? said->n : 1); i++)
        if (!lies_so(v, said->of[i].comes, v->x[i]))
            return refuse_layout(tape, v, said->of[i].comes, i);
    return true;
}

static bool lay_out(dt_tape *tape, const dti_values *v, const dt_passes *said)
{
    for (int i = 0; i < (said->n > 0 ? said->n : 1); i++) {
        v->x[i] = pass(tape, v, said->of[i].to, v->x[i]);
        if (v->x[i] == NULL) return false;
    }
    return true;
}

/* --- functions of users ----------------------------------------------------------------------- */

typedef void (*prepare_fn)(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                           int n, dt_tensor **x);

/* The values as they were, to compare. */
typedef struct shapes {
    dt_mesh *mesh;
    int n_axes[DT_MAX_PASSES];
    int64_t extent[DT_MAX_PASSES][DT_MAX_AXES];
} shapes;

static void look_at(shapes *s, int i, const dt_tensor *x)
{
    s->n_axes[i] = dt_tensor_n_axes(x);
    for (int a = 0; a < s->n_axes[i]; a++) s->extent[i][a] = dt_tensor_extent(x, a);
}

/* A function that gives nothing has to say why. */
static bool gave_nothing(dt_tape *tape, const dti_values *v, const dt_mesh *mesh)
{
    if (dt_tape_status(tape) != DT_OK) return false;
    (void)dt_tape_fail(
        tape, DT_ERR_ARG,
        "style \"%s\": its prepare_%s gave NULL for %s (mesh dim \"%s\" of %d ranks) "
        "and no error; leave a tensor, or NULL from dt_tape_fail()",
        name_of(v->style), v->what, dt_layer_name(v->layer), dt_mesh_dim_name(mesh, v->dim),
        dt_mesh_dim_size(mesh, v->dim));
    return false;
}

static bool same_shape(dt_tape *tape, const dti_values *v, const shapes *before, int i)
{
    const bool elsewhere = dt_tensor_mesh(v->x[i]) != before->mesh;
    char was[DTI_SHAPE_BYTES], is[DTI_SHAPE_BYTES];
    shapes after;

    look_at(&after, i, v->x[i]);
    if (!elsewhere && after.n_axes[i] == before->n_axes[i] &&
        memcmp(before->extent[i], after.extent[i],
               (size_t)after.n_axes[i] * sizeof after.extent[i][0]) == 0)
        return true;
    (void)dt_tape_fail(tape, DT_ERR_SHAPE,
                       "style \"%s\": its prepare_%s made %s%s of %s of %s; it may change nothing "
                       "but the placements",
                       name_of(v->style), v->what,
                       dti_shape_text(after.extent[i], after.n_axes[i], is, sizeof is),
                       elsewhere ? " on another mesh" : "",
                       dti_shape_text(before->extent[i], before->n_axes[i], was, sizeof was),
                       dt_layer_name(v->layer));
    return false;
}

/* Sees all values, replaces those it means to. */
static bool call(dt_tape *tape, const dti_values *v, prepare_fn prepare)
{
    shapes before = { .mesh = dt_tensor_mesh(v->x[0]) };

    for (int i = 0; i < v->n; i++) look_at(&before, i, v->x[i]);
    prepare(v->style, tape, v->layer, v->dim, v->n, v->x);
    if (dt_tape_status(tape) != DT_OK) return false;
    for (int i = 0; i < v->n; i++) {
        if (v->x[i] == NULL) return gave_nothing(tape, v, before.mesh);
        if (!same_shape(tape, v, &before, i)) return false;
    }
    return true;
}

bool dti_style_input(dt_tape *tape, const dti_values *v)
{
    const dt_style *style = v->style;

    if (!come_so(tape, v, &style->in)) return false;
    if (style->prepare_input != NULL) return call(tape, v, style->prepare_input);
    return lay_out(tape, v, &style->in);
}

bool dti_style_output(dt_tape *tape, const dti_values *v)
{
    const dt_style *style = v->style;

    if (!come_so(tape, v, &style->out)) return false;
    if (style->prepare_output != NULL) return call(tape, v, style->prepare_output);
    return lay_out(tape, v, &style->out);
}
