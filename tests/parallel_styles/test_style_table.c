/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of docs/styles.md, line by line: each is read from the page and run, on 1 to 4 ranks
 * and on sizes that do and do not divide. Asserted are values against sums made here, placements of
 * parameters, input and output, and the exact number and bytes of collectives. */
#include <dtensor/parallel_styles.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "parallel_styles/layer_rules.h"
#include "parallel_styles/layers_internal.h"
#include "tests/support/dt_test.h"
#include "tests/support/layers.h"
#include "tests/support/style_cases.h"
#include "tests/support/tensors.h"

/* B, T, I, O, V, H, E, D, F, N of one case. */
static const int64_t sizes[][N_LETTERS] = {
    { 2, 12, 24, 24, 24, 12, 4, 12, 12, 12 }, /* 1, 2, 3, 4 divide all */
    { 2, 5, 7, 9, 11, 5, 3, 10, 7, 5 },       /* 2, 3, 4 divide nothing of it */
    { 1, 2, 3, 5, 3, 2, 2, 3, 2, 3 },         /* some ranks have no tokens, rows or columns */
    { 3, 1, 1, 2, 1, 1, 1, 1, 1, 1 },         /* a step of one token, and hardly anything else */
};

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static int64_t count_of(const int64_t *shape, int n)
{
    int64_t count = 1;

    for (int a = 0; a < n; a++) count *= shape[a];
    return count;
}

/* --- inputs ----------------------------------------------------------------------------------- */

static dt_status set_params(const style_case *c, const style_values *v, dt_layers *layers)
{
    for (int i = 0; i < dt_layers_count(layers); i++)
        for (int p = 0; p < dt_layer_n_params(dt_layers_at(layers, i)); p++)
            DT_TRY(dt_test_set_param(c->mesh, dt_layers_at(layers, i), p, c->dtype,
                                     i == 2   ? v->down
                                     : p == 0 ? v->w
                                              : v->b));
    return DT_OK;
}

/* x as the row's "x comes" says; of P(sum) every rank has its own term, in f32. */
static dt_status make_x(const style_case *c, const style_values *v, dt_tensor **out)
{
    const bool ids = is(c->row->layer, "embedding");
    const int n_ranks = dt_mesh_n_ranks(c->mesh), me = dt_mesh_coord(c->mesh, 0);
    char text[STYLE_PLACE_BYTES], data[STYLE_MOST * sizeof(float)];
    const dt_layout *layout;
    dt_placement place;
    float terms[STYLE_MOST];

    DT_TRY(
        dt_layout_parse(c->mesh, c->x_axes, style_case_place(c, c->row->x_comes, text), &layout));
    place = dt_layout_placement(layout, 0);
    dti_convert(data, c->dtype, v->x, DT_F32, STYLE_MOST);
    if (place.kind != DT_PLACE_PARTIAL || n_ranks == 1)
        return dt_distribute(c->mesh, &place, ids ? DT_I32 : c->dtype, c->x_axes, c->x_shape,
                             (dt_source){ ids ? (const void *)v->ids : data, DT_EQUAL_COPIES },
                             out);
    for (int64_t i = 0; i < count_of(c->x_shape, c->x_axes); i++) {
        const float others = (float)(i % 3) - 1.0f;
        terms[i] = me > 0 ? others : v->x[i] - (float)(n_ranks - 1) * others;
    }
    return dt_from_local(c->mesh, &place, DT_F32, c->x_axes, c->x_shape, terms, out);
}

/* The experts of each token and their weights, whole on every rank. */
static dt_status make_route(const style_case *c, const style_values *v, dt_tape *t, dt_tensor **ids,
                            dt_tensor **share)
{
    const int64_t shape[] = { c->size[LETTER_B], c->size[LETTER_T], style_case_chosen(c) };
    const dt_placement everywhere = DT_REPLICATE;
    char data[STYLE_MOST * sizeof(float)];

    dti_convert(data, c->dtype, v->share, DT_F32, STYLE_MOST);
    DT_TRY(dt_distribute(c->mesh, &everywhere, DT_I32, 3, shape,
                         (dt_source){ v->ids, DT_EQUAL_COPIES }, ids));
    *ids = dt_tape_own(t, *ids);
    DT_TRY(dt_distribute(c->mesh, &everywhere, c->dtype, 3, shape,
                         (dt_source){ data, DT_EQUAL_COPIES }, share));
    *share = dt_tape_own(t, *share);
    return dt_tape_status(t);
}

/* --- what is asserted ------------------------------------------------------------------------- */

static dt_status expect_place(const style_case *c, const char *what, const dt_layout *layout,
                              const char *want)
{
    char text[STYLE_PLACE_BYTES] = "", cell[STYLE_PLACE_BYTES];

    if (layout != NULL) (void)dt_layout_print(layout, text, sizeof text);
    if (layout != NULL && dt_mesh_n_ranks(c->mesh) == 1) return DT_OK; /* all mean the same */
    want = style_case_place(c, want, cell);
    DT_EXPECT(is(text, want), "%s of a %s: %s is \"%s\", the page says \"%s\"", c->row->style,
              c->row->layer, what, text, want);
    return DT_OK;
}

/* bf16 has 8 bits: of the inputs, the weights and the result. */
static dt_status expect_values(const style_case *c, const style_values *v, dt_tensor *y)
{
    const double tolerance = c->dtype == DT_F32 ? 1e-5 : 3e-2;
    const int64_t n = count_of(c->y_shape, c->y_axes);
    DT_HELD(tensor) *full = NULL;
    float got[STYLE_MOST];

    DT_TRY(dt_full_tensor(y, &full));
    dti_convert(got, DT_F32, dt_tensor_local(full)->data, dt_tensor_dtype(full), n);
    for (int64_t i = 0; i < n; i++)
        DT_EXPECT(fabs((double)got[i] - v->y[i]) <= tolerance * (1 + fabs(v->y[i])),
                  "%s of a %s: element %lld is %g, not %g", c->row->style, c->row->layer,
                  (long long)i, (double)got[i], v->y[i]);
    return DT_OK;
}

/* "S(1)" -> 1 */
static int cut_axis(const char *place)
{
    return place[0] == 'S' ? place[2] - '0' : -1;
}

/* A norm's weight of one row, which cannot be cut. */
static bool is_one_row(const style_case *c)
{
    return c->row->moved == 'W' && c->size[LETTER_D] == 1;
}

/* What the row's collective moves: x from how it comes, y from how the layer makes it, or W. */
static dt_test_move move_of(const style_case *c)
{
    const style_row *r = c->row;
    const bool of_x = r->moved == 'x', made = r->layer[0] == 'l' || is(r->layer, "embedding");
    dt_test_move m = { .kind = r->comm, .n_axes = of_x ? c->x_axes : c->y_axes };

    if (r->moved == 'W') /* a norm's */
        return (dt_test_move){ .kind = is_one_row(c) ? DT_N_COMM_KINDS : r->comm,
                               .n_axes = 1,
                               .shape = { c->size[LETTER_D] },
                               .from = 0,
                               .to = -1,
                               .each = (int64_t)dt_dtype_size(c->dtype) };
    memcpy(m.shape, of_x ? c->x_shape : c->y_shape, sizeof m.shape);
    m.from = of_x ? cut_axis(r->x_comes) : made ? 2 : cut_axis(r->x_made);
    m.to = cut_axis(of_x ? r->x_made : r->y_left);
    m.each = strchr(r->bytes, 'k') != NULL ? 4 : (int64_t)dt_dtype_size(c->dtype);
    return m;
}

/* Where all sizes divide every rank receives what the page's formula says. */
static dt_status expect_comm(const style_case *c, const dt_tape *t)
{
    const int p = dt_mesh_n_ranks(c->mesh);
    const dt_test_move move = move_of(c);
    const dt_status st = dt_test_expect_move(t, c->mesh, &move);
    int64_t bytes;

    if (st != DT_OK) dti_error_prefix("%s of a %s", c->row->style, c->row->layer);
    DT_TRY(st);
    if (c->size != sizes[0] || dt_test_move_kind(&move, p) == DT_N_COMM_KINDS) return DT_OK;
    bytes = dt_test_move_bytes(&move, p, dt_mesh_coord(c->mesh, 0));
    DT_EXPECT(bytes * p == style_row_bytes(c->row, c->size, p, (int64_t)dt_dtype_size(c->dtype)),
              "%s of a %s: %lld bytes, the page says \"%s\"", c->row->style, c->row->layer,
              (long long)bytes, c->row->bytes);
    return DT_OK;
}

/* --- one line --------------------------------------------------------------------------------- */

static dt_tensor *run_layers(const style_case *c, const style_values *v, dt_tape *t,
                             dt_layers *layers, dt_tensor *x)
{
    dt_tensor *ids, *share;

    if (!style_case_has_experts(c)) return dt_layer_forward(t, dt_layers_at(layers, 0), x);
    if (make_route(c, v, t, &ids, &share) != DT_OK) return NULL;
    return dt_layer_experts(t, dt_layers_at(layers, 0), dt_layers_at(layers, 1),
                            dt_layers_at(layers, 2), x, ids, share);
}

static dt_status forward(const style_case *c, const style_values *v, dt_layers *layers,
                         dt_tensor *x)
{
    DT_HELD(tape) *t = NULL, *aside = NULL;
    dt_tensor *y;

    DT_TRY(dt_tape_create(dt_mesh_runtime(c->mesh), &t));
    DT_TRY(dt_tape_create(dt_mesh_runtime(c->mesh), &aside));
    y = dt_layer_enter(aside, dt_layers_at(layers, 0), x);
    DT_TRY(dt_tape_status(aside));
    DT_TRY(expect_place(c, "x", dt_tensor_layout(y), c->row->x_made));
    y = run_layers(c, v, t, layers, x);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(y != NULL, "%s of a %s gave nothing", c->row->style, c->row->layer);
    DT_TRY(expect_place(c, "y", dt_tensor_layout(y), c->row->y_left));
    DT_TRY(expect_comm(c, t));
    DT_TRY(expect_values(c, v, y));
    return DT_OK;
}

static dt_status run_row(style_case *c, style_values *v)
{
    dt_layer_spec specs[STYLE_LAYERS];
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL;
    dt_layer *layer;
    int n, subject;

    style_case_set_shapes(c);
    style_case_make_values(c, v);
    n = style_case_specs(c, specs, &subject);
    DT_TRY(dt_layers_create(c->mesh, "tp", specs, n, NULL, &layers));
    layer = dt_layers_at(layers, subject);
    DT_TRY(expect_place(c, "W", dt_layer_param_layout(layer, 0),
                        is_one_row(c) ? "R" : c->row->weight));
    DT_TRY(expect_place(c, "b", dt_layer_param_layout(layer, 1), c->row->bias));
    DT_TRY(set_params(c, v, layers));
    DT_TRY(make_x(c, v, &x));
    DT_TRY(forward(c, v, layers, x));
    return DT_OK;
}

/* A style with a twin leaves a step of one token whole: no tokens are cut, sums are all-reduced. */
static style_row of_a_step(const style_row *row)
{
    style_row r = *row;

    if (is(r.x_made, "S(1)")) {
        (void)snprintf(r.x_made, sizeof r.x_made, "R");
        if (is(r.x_comes, "S(1)")) r.comm = DT_COMM_ALL_GATHER, r.moved = 'x';
        if (r.comm == DT_COMM_ALL_GATHER && r.moved == 'y') r.comm = DT_N_COMM_KINDS;
    }
    if (is(r.y_left, "S(1)")) (void)snprintf(r.y_left, sizeof r.y_left, "R");
    if (r.comm == DT_COMM_REDUCE_SCATTER) r.comm = DT_COMM_ALL_REDUCE;
    return r;
}

static dt_status all_sizes(dt_mesh *mesh, const style_row *row, style_values *v)
{
    const style_row step = of_a_step(row);
    const dt_style *style;

    DT_TRY(dt_style_find(dt_mesh_runtime(mesh), row->style, NULL, &style));
    for (size_t s = 0; s < DT_COUNT(sizes); s++)
        for (int half = 0; half < (s < 2 ? 2 : 1); half++) {
            const bool one = sizes[s][LETTER_T] == 1 && style->twin != NULL;
            style_case c = { .row = one ? &step : row,
                             .size = sizes[s],
                             .mesh = mesh,
                             .dtype = half ? DT_BF16 : DT_F32 };
            const dt_status st = run_row(&c, v);
            if (st == DT_OK) continue;
            dti_error_prefix("docs/styles.md:%d, sizes %d, %s", row->line, (int)s,
                             dt_dtype_name(c.dtype));
            return st;
        }
    return DT_OK;
}

static dt_status all_rows(dt_mesh *mesh, const void *arg)
{
    const style_rows *rows = arg;
    style_values *v = malloc(sizeof *v);
    dt_status st = DT_OK;

    DT_CHECK(v != NULL, DT_ERR_MEMORY, "no memory");
    for (int i = 0; i < rows->n && st == DT_OK; i++) st = all_sizes(mesh, &rows->row[i], v);
    free(v);
    return st;
}

DT_TEST(style_table, every_line_of_the_page_is_so)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
    style_rows rows;

    style_rows_read(&rows);
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], all_rows, &rows);
}

/* --- is every style on the page? -------------------------------------------------------------- */

static dt_status all_styles(dt_mesh *mesh, const void *arg)
{
    const style_rows *rows = arg;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const dt_style *style;

    for (int i = 0; (style = dt_style_at(rt, i)) != NULL; i++) {
        bool found = false;
        for (int k = 0; k < rows->n && !found; k++) {
            const dt_style *of_row;
            DT_TRY(dt_style_find(rt, rows->row[k].style, NULL, &of_row));
            found = of_row == style;
        }
        DT_EXPECT(found, "no table of docs/styles.md has a line on %s", style->name);
    }
    return DT_OK;
}

DT_TEST(style_table, every_style_is_on_the_page)
{
    style_rows rows;

    style_rows_read(&rows);
    dt_test_on_ranks("tp=1", all_styles, &rows);
}

/* The table of other names is that of the registry. */
static dt_status all_names(dt_mesh *mesh, const void *arg)
{
    const style_names *names = arg;

    for (int i = 0; i < names->n; i++) {
        const style_name *n = &names->name[i];
        const char *version = n->version[0] != '\0' ? n->version : NULL;
        const dt_style *style;
        DT_TRY(dt_style_find(dt_mesh_runtime(mesh), n->name, version, &style));
        DT_EXPECT(is(style->name, n->is), "docs/styles.md:%d: %s is %s, not %s", n->line, n->name,
                  style->name, n->is);
    }
    for (int i = 0; i < dti_n_style_aliases; i++) {
        const dti_style_alias *a = &dti_style_aliases[i];
        bool found = false;
        for (int k = 0; k < names->n && !found; k++)
            found = is(names->name[k].name, a->alias) &&
                    is(names->name[k].version, a->version != NULL ? a->version : "");
        DT_EXPECT(found, "docs/styles.md does not say what %s is", a->alias);
    }
    return DT_OK;
}

DT_TEST(style_table, every_other_name_is_on_the_page)
{
    style_names names;

    style_names_read(&names);
    dt_test_on_ranks("tp=1", all_names, &names);
}
