/* SPDX-License-Identifier: Apache-2.0
 *
 * Who owns what, as a table: columns and rows are ranges of global indices, cells name ranks. It is
 * drawn from the layout alone, whatever its cuts are, so every rank draws the same. */
#include "dtensor/visualize.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/tensor_internal.h"

/* --- pieces ----------------------------------------------------------------------------------- */

/* The rows of one drawn axis that every rank holds, by place. */
static const dti_runs *runs_at(const dti_picture *p, int place, int axis)
{
    return &p->runs[place * p->n_drawn + axis];
}

static bool holds(const dti_picture *p, int place, int axis, int64_t row)
{
    const dti_runs *r = runs_at(p, place, axis);

    for (int i = 0; i < r->n; i++)
        if (row >= r->run[i].begin && row < r->run[i].end) return true;
    return false;
}

bool dti_picture_holds(const dti_picture *p, int place, int64_t row, int64_t column)
{
    return !p->empty[place] && (p->n_drawn < 1 || holds(p, place, 0, row)) &&
           (p->n_drawn < 2 || holds(p, place, 1, column));
}

/* The coordinates of a place on Partial dims, as a number: ranks that differ in it hold terms. */
static int term_of(const dti_picture *p, int place)
{
    int term = 0;

    for (int m = p->layout->n_dims - 1, stride = 1; m >= 0; m--) {
        const int size = p->layout->dim_size[m];
        if (p->layout->partial_dims >> m & 1u) {
            term += place % size * stride;
            stride *= size;
        }
        place /= size;
    }
    return term;
}

static bool held_before(const dti_picture *p, const bool *in, int place)
{
    if (p->layout->partial_dims == 0) return false;
    for (int q = 0; q < place; q++)
        if (in[q] && term_of(p, q) == term_of(p, place)) return true;
    return false;
}

void dti_picture_ranks(const dti_picture *p, const bool *in, dti_writer *w)
{
    bool first = true;

    for (int place = 0; place < p->n_ranks; place++) {
        bool copy = false;
        if (!in[place] || held_before(p, in, place)) continue;
        if (!first && p->layout->partial_dims == 0) break; /* all are copies of the first */
        dti_put(w, "%s", first ? "" : " + ");
        first = false;
        for (int q = place; q < p->n_ranks; q++) {
            if (!in[q] || term_of(p, q) != term_of(p, place)) continue;
            dti_put(w, "%s%d", copy ? "," : "", dt_mesh_rank_at(p->mesh, q));
            copy = true;
        }
    }
    if (first) dti_put(w, "-");
}

/* --- ranges ----------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* All begins and ends along a drawn axis, ascending and distinct, 0 and the extent included. */
static dt_status find_edges(dti_picture *p, int axis)
{
    size_t n = 0, kept = 0, room = 2;

    for (int place = 0; place < p->n_ranks; place++) room += 2 * (size_t)runs_at(p, place, axis)->n;
    DT_TRY(dti_alloc_array(room, sizeof(int64_t), (void **)&p->edges[axis]));
    p->edges[axis][n++] = 0;
    p->edges[axis][n++] = p->extent[axis];
    for (int place = 0; place < p->n_ranks; place++) {
        const dti_runs *r = runs_at(p, place, axis);
        for (int i = 0; i < r->n; i++) {
            p->edges[axis][n++] = r->run[i].begin;
            p->edges[axis][n++] = r->run[i].end;
        }
    }
    qsort(p->edges[axis], n, sizeof(int64_t), compare);
    for (size_t i = 1; i < n; i++)
        if (p->edges[axis][i] != p->edges[axis][kept]) p->edges[axis][++kept] = p->edges[axis][i];
    p->n_ranges[axis] = (int)kept; /* one less than edges; 0 for an axis of extent 0 */
    return DT_OK;
}

/* The axes to draw: all of up to two; of more those that are cut. */
static dt_status choose_axes(dti_picture *p)
{
    const dt_layout *l = p->layout;
    int dims[DT_MAX_DIMS];

    for (int a = 0; a < l->n_axes; a++) {
        if (l->n_axes > 2 && dti_layout_cuts(l, a, dims) == 0) continue;
        DT_CHECK(p->n_drawn < 2, DT_ERR_UNSUPPORTED,
                 "more than two axes of the tensor are cut, and a table shows two");
        p->axis[p->n_drawn++] = a;
    }
    return DT_OK;
}

static dt_status find_pieces(dti_picture *p, const int64_t *shape)
{
    const dt_layout *l = p->layout;

    DT_TRY(dti_alloc_array((size_t)p->n_ranks, sizeof(bool), (void **)&p->empty));
    if (p->n_drawn > 0)
        DT_TRY(dti_alloc_array((size_t)p->n_ranks * (size_t)p->n_drawn, sizeof(dti_runs),
                               (void **)&p->runs));
    for (int place = 0; place < p->n_ranks; place++) {
        int coord[DT_MAX_DIMS];
        for (int m = l->n_dims - 1, rest = place; m >= 0; m--) {
            coord[m] = rest % l->dim_size[m];
            rest /= l->dim_size[m];
        }
        for (int a = 0; a < l->n_axes; a++) p->empty[place] = p->empty[place] || shape[a] == 0;
        for (int i = 0; i < p->n_drawn; i++) {
            dti_runs *r = &p->runs[place * p->n_drawn + i];
            dti_layout_axis_runs(l, p->axis[i], shape[p->axis[i]], coord, r);
            p->empty[place] = p->empty[place] || r->total == 0;
        }
    }
    return DT_OK;
}

static void free_picture(dti_picture *p)
{
    dti_free(p->empty);
    dti_free(p->runs);
    dti_free(p->edges[0]);
    dti_free(p->edges[1]);
}

static dt_status make_picture(dt_mesh *mesh, const dt_layout *layout, const int64_t *shape,
                              dti_picture *p)
{
    dt_status st = DT_OK;

    *p = (dti_picture){ .mesh = mesh, .layout = layout, .n_ranks = dt_mesh_n_ranks(mesh) };
    DT_TRY(choose_axes(p));
    DT_TRY(dti_layout_check_shape(layout, shape));
    for (int i = 0; i < p->n_drawn; i++) p->extent[i] = shape[p->axis[i]];
    DT_TRY_TO(fail, st, find_pieces(p, shape));
    for (int i = 0; i < p->n_drawn; i++) DT_TRY_TO(fail, st, find_edges(p, i));
    return DT_OK;

fail:
    free_picture(p);
    return st;
}

/* --- text ------------------------------------------------------------------------------------- */

void dti_picture_label(const dti_picture *p, int i, int range, char *text, size_t text_bytes)
{
    const int64_t begin = p->edges[i][range], last = p->edges[i][range + 1] - 1;
    dti_writer w = { text, text_bytes, 0 };

    if (p->layout->n_axes > 2)
        dti_put(&w, "axis %d: ", p->axis[i]);
    else
        dti_put(&w, "%s ", i == 0 ? "Row" : "Col");
    dti_put(&w, "%lld", (long long)begin);
    if (last > begin) dti_put(&w, "-%lld", (long long)last);
}

void dti_picture_head(const dti_picture *p, const int64_t *shape, dti_writer *w)
{
    char text[256];

    (void)dt_layout_print(p->layout, text, sizeof text);
    dti_put(w, "%s on ", text);
    for (int m = 0; m < p->layout->n_dims; m++)
        dti_put(w, "%s%s=%d", m > 0 ? "," : "", dt_mesh_dim_name(p->mesh, m),
                p->layout->dim_size[m]);
    dti_put(w, ", shape [");
    for (int a = 0; a < p->layout->n_axes; a++)
        dti_put(w, "%s%lld", a > 0 ? ", " : "", (long long)shape[a]);
    dti_put(w, "]");
}

/* The text of a cell; row < 0 are the labels of columns, column < 0 those of rows. */
static void cell_text(const dti_picture *p, int row, int column, bool *in, dti_writer *w)
{
    char label[64] = "";

    if (row < 0 || column < 0) {
        if (row < 0 && column >= 0) dti_picture_label(p, 1, column, label, sizeof label);
        if (column < 0 && row >= 0) dti_picture_label(p, 0, row, label, sizeof label);
        dti_put(w, "%s", label);
        return;
    }
    for (int place = 0; place < p->n_ranks; place++)
        in[place] = dti_picture_holds(p, place, p->n_drawn > 0 ? p->edges[0][row] : 0,
                                      p->n_drawn > 1 ? p->edges[1][column] : 0);
    dti_picture_ranks(p, in, w);
}

static dt_status text_table(const dti_picture *p, bool *in, dti_writer *w)
{
    const int rows = p->n_drawn > 0 ? p->n_ranges[0] : 1;
    const int columns = p->n_drawn > 1 ? p->n_ranges[1] : 1;
    const int first_row = p->n_drawn > 1 ? -1 : 0, first_column = p->n_drawn > 0 ? -1 : 0;
    size_t *width;

    DT_TRY(dti_alloc_array((size_t)columns + 1, sizeof *width, (void **)&width));
    for (int column = first_column; column < columns; column++)
        for (int row = first_row; row < rows; row++) {
            dti_writer one = { NULL, 0, 0 };
            cell_text(p, row, column, in, &one);
            if (one.used > width[column + 1]) width[column + 1] = one.used;
        }
    for (int row = first_row; row < rows; row++) {
        for (int column = first_column; column < columns; column++) {
            const size_t before = w->used;
            cell_text(p, row, column, in, w);
            if (column + 1 < columns)
                dti_put(w, "%*s", (int)(before + width[column + 1] - w->used) + 2, "");
        }
        dti_put(w, "\n");
    }
    dti_free(width);
    return DT_OK;
}

static dt_status text_picture(const dti_picture *p, const int64_t *shape, bool *in, dti_writer *w)
{
    bool any = false;

    dti_picture_head(p, shape, w);
    dti_put(w, "\n");
    DT_TRY(text_table(p, in, w));
    for (int place = 0; place < p->n_ranks; place++) any = any || p->empty[place];
    if (!any) return DT_OK;
    dti_put(w, "empty on");
    for (int place = 0; place < p->n_ranks; place++)
        if (p->empty[place]) dti_put(w, " %d", dt_mesh_rank_at(p->mesh, place));
    dti_put(w, "\n");
    return DT_OK;
}

/* --- the way in ------------------------------------------------------------------------------- */

static dt_status draw(dt_mesh *mesh, const dt_layout *layout, const int64_t *shape, dt_drawing form,
                      dti_writer *w)
{
    dt_status st = DT_OK;
    bool *in = NULL;
    dti_picture p;

    DT_TRY(make_picture(mesh, layout, shape, &p));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)p.n_ranks, sizeof *in, (void **)&in));
    if (form == DT_DRAW_SVG)
        dti_picture_svg(&p, shape, in, w);
    else
        DT_TRY_TO(done, st, text_picture(&p, shape, in, w));
done:
    dti_free(in);
    free_picture(&p);
    return st;
}

dt_status dt_visualize_layout(dt_mesh *mesh, const dt_layout *layout, const int64_t *shape,
                              dt_drawing form, char *text, size_t text_bytes, int *length)
{
    dti_writer w = { text, text_bytes, 0 };

    DT_CHECK(text != NULL || text_bytes == 0, DT_ERR_ARG, "text is NULL, of %zu bytes", text_bytes);
    if (length != NULL) *length = 0;
    if (text_bytes > 0) text[0] = '\0';
    DT_CHECK(mesh != NULL && layout != NULL && (shape != NULL || layout->n_axes == 0), DT_ERR_ARG,
             "mesh, layout or shape is NULL");
    DT_CHECK(layout->n_dims == dt_mesh_n_dims(mesh), DT_ERR_LAYOUT,
             "the layout is for %d mesh dims, the mesh has %d", layout->n_dims,
             dt_mesh_n_dims(mesh));
    for (int m = 0; m < layout->n_dims; m++)
        DT_CHECK(layout->dim_size[m] == dt_mesh_dim_size(mesh, m), DT_ERR_LAYOUT,
                 "mesh dim \"%s\" has %d ranks, the layout is for %d", dt_mesh_dim_name(mesh, m),
                 dt_mesh_dim_size(mesh, m), layout->dim_size[m]);
    for (int a = 0; a < layout->n_axes; a++)
        DT_CHECK(shape[a] >= 0, DT_ERR_SHAPE, "axis %d has extent %lld", a, (long long)shape[a]);
    DT_CHECK(form == DT_DRAW_TEXT || form == DT_DRAW_SVG, DT_ERR_ARG, "%d is no form of drawing",
             (int)form);
    DT_TRY(draw(mesh, layout, shape, form, &w));
    if (length != NULL) *length = dti_written(&w);
    return DT_OK;
}

dt_status dt_visualize(const dt_tensor *x, dt_drawing form, char *text, size_t text_bytes,
                       int *length)
{
    DT_CHECK(x != NULL, DT_ERR_ARG, "x is NULL");
    DT_TRY(dt_visualize_layout(x->mesh, x->layout, x->shape, form, text, text_bytes, length));
    return DT_OK;
}
