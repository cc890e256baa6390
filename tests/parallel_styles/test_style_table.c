/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of docs/styles.md, line by line: each is read from the page and run, on 1 to 4 ranks
 * and on sizes that do and do not divide. Asserted are values against sums made here, placements of
 * parameters, input and output, and the exact number and bytes of collectives. */
#include <dtensor/factories.h>
#include <dtensor/parallel_styles.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "parallel_styles/rules.h"
#include "tests/support/dt_test.h"
#include "tests/support/style_rows.h"
#include "tests/support/tensors.h"

/* B, T, I, O, V, H, E, D of one case. */
static const int64_t sizes[][N_LETTERS] = {
    { 2, 12, 24, 12, 24, 12, 4, 12 }, /* 1, 2, 3, 4 divide all */
    { 2, 5, 7, 9, 11, 5, 3, 10 },     /* 2, 3, 4 divide nothing of it */
    { 1, 2, 3, 5, 3, 2, 2, 3 },       /* some ranks have no tokens, rows or columns */
    { 3, 1, 1, 2, 1, 1, 1, 1 },       /* a step of one token, and hardly anything else */
};

typedef struct run_case {
    const style_row *row;
    const int64_t *size;
    dt_mesh *mesh;
    dt_dtype dtype; /* of the layer */
    int64_t x_shape[DT_MAX_AXES], y_shape[DT_MAX_AXES];
    int x_axes, y_axes;
} run_case;

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static void set_shapes(run_case *c)
{
    const int64_t *s = c->size;
    const char *layer = c->row->layer;
    const bool heads = is(layer, "norm of heads"), ids = is(layer, "embedding");
    const int64_t B = s[LETTER_B], T = s[LETTER_T], D = s[LETTER_D];
    const int64_t x[] = { B, T, is(layer, "linear") ? s[LETTER_I] : D };
    const int64_t y[] = { B, T, is(layer, "linear") ? s[LETTER_O] : D };
    const int64_t h[] = { B, T, s[LETTER_H], s[LETTER_E] };

    c->x_axes = heads ? 4 : ids ? 2 : 3;
    c->y_axes = heads ? 4 : 3;
    memcpy(c->x_shape, heads ? h : x, (size_t)c->x_axes * sizeof *x);
    memcpy(c->y_shape, heads ? h : y, (size_t)c->y_axes * sizeof *y);
}

static int64_t count_of(const int64_t *shape, int n)
{
    int64_t count = 1;

    for (int a = 0; a < n; a++) count *= shape[a];
    return count;
}

static dt_layer_spec spec_of(const run_case *c)
{
    const char *layer = c->row->layer;
    const int64_t *s = c->size;
    dt_layer_spec spec = { .name = "layer", .style = c->row->style, .eps = 1e-5f };

    if (is(layer, "linear")) {
        spec.kind = DT_LAYER_LINEAR;
        spec.axis[0].extent = s[LETTER_O];
        spec.axis[1].extent = s[LETTER_I];
        spec.bias = true;
    } else if (is(layer, "embedding")) {
        spec.kind = DT_LAYER_EMBEDDING;
        spec.axis[0].extent = s[LETTER_V];
        spec.axis[1].extent = s[LETTER_D];
    } else if (is(layer, "point")) {
        spec.kind = DT_LAYER_POINT;
    } else {
        spec.kind = DT_LAYER_RMS_NORM;
        spec.axis[0].extent = is(layer, "norm") ? s[LETTER_D] : s[LETTER_E];
    }
    return spec;
}

/* --- values ----------------------------------------------------------------------------------- */

enum { MOST = 2048 }; /* elements of the largest value */

/* Whole values, the same on every rank. */
typedef struct values {
    float w[MOST], b[MOST], x[MOST];
    int32_t ids[MOST];
    double y[MOST];
} values;

static void expect_linear(const run_case *c, values *v)
{
    const int64_t I = c->size[LETTER_I], O = c->size[LETTER_O];

    for (int64_t row = 0; row < c->size[LETTER_B] * c->size[LETTER_T]; row++)
        for (int64_t o = 0; o < O; o++) {
            double sum = (double)v->b[o];
            for (int64_t i = 0; i < I; i++)
                sum += (double)v->x[row * I + i] * (double)v->w[o * I + i];
            v->y[row * O + o] = sum;
        }
}

static void expect_norm(const run_case *c, values *v)
{
    const int64_t n = c->x_shape[c->x_axes - 1], rows = count_of(c->x_shape, c->x_axes) / n;

    for (int64_t row = 0; row < rows; row++) {
        double squares = 0;
        for (int64_t i = 0; i < n; i++) squares += pow((double)v->x[row * n + i], 2);
        for (int64_t i = 0; i < n; i++)
            v->y[row * n + i] =
                (double)v->x[row * n + i] * (double)v->w[i] / sqrt(squares / (double)n + 1e-5);
    }
}

static void make_values(const run_case *c, values *v)
{
    const int64_t n = count_of(c->x_shape, c->x_axes), D = c->size[LETTER_D];
    const char *layer = c->row->layer;

    dt_test_random(v->w, MOST, 1);
    dt_test_random(v->b, MOST, 2);
    dt_test_random(v->x, MOST, 3);
    for (int64_t i = 0; i < n; i++) v->ids[i] = (int32_t)(7 * i % c->size[LETTER_V]);
    if (is(layer, "linear")) expect_linear(c, v);
    if (is(layer, "norm") || is(layer, "norm of heads")) expect_norm(c, v);
    for (int64_t i = 0; i < n && is(layer, "point"); i++) v->y[i] = (double)v->x[i];
    for (int64_t i = 0; i < n * D && is(layer, "embedding"); i++)
        v->y[i] = (double)v->w[v->ids[i / D] * D + i % D];
}

static dt_status set_params(const run_case *c, const values *v, dt_layer *layer)
{
    for (int p = 0; p < dt_layer_n_params(layer); p++) {
        const dt_param_info info = dt_layer_param_info(layer, p);
        const int64_t shape[] = { info.axis[0].extent, info.axis[1].extent };
        const dt_placement place = dt_layout_placement(dt_layer_param_layout(layer, p), 0);
        char data[MOST * sizeof(float)];
        dt_tensor *w = NULL;
        dt_status st;
        dti_convert(data, c->dtype, p == 0 ? v->w : v->b, DT_F32, MOST);
        DT_TRY(dt_distribute(c->mesh, &place, c->dtype, info.n_axes, shape,
                             (dt_source){ data, DT_EQUAL_COPIES }, &w));
        st = dt_layer_set_param(layer, p, w);
        dt_tensor_release(&w);
        DT_TRY(st);
    }
    return DT_OK;
}

/* x as the row's "x comes" says; of P(sum) every rank has its own term, in f32. */
static dt_status make_x(const run_case *c, const values *v, dt_tensor **out)
{
    const bool ids = is(c->row->layer, "embedding");
    const int n_ranks = dt_mesh_n_ranks(c->mesh), me = dt_mesh_coord(c->mesh, 0);
    const dt_layout *layout;
    dt_placement place;
    float terms[MOST];
    char data[sizeof terms];

    DT_TRY(dt_layout_parse(c->mesh, c->x_axes, c->row->x_comes, &layout));
    place = dt_layout_placement(layout, 0);
    dti_convert(data, c->dtype, v->x, DT_F32, MOST);
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

/* --- what is asserted ------------------------------------------------------------------------- */

static dt_status expect_place(const run_case *c, const char *what, const dt_layout *layout,
                              const char *want)
{
    char text[64] = "";

    if (layout != NULL) (void)dt_layout_print(layout, text, sizeof text);
    if (layout != NULL && dt_mesh_n_ranks(c->mesh) == 1) return DT_OK; /* all mean the same */
    DT_EXPECT(is(text, want), "%s of a %s: %s is \"%s\", the page says \"%s\"", c->row->style,
              c->row->layer, what, text, want);
    return DT_OK;
}

/* bf16 has 8 bits: of the inputs, the weights and the result. */
static dt_status expect_values(const run_case *c, const values *v, dt_tensor *y)
{
    const double tolerance = c->dtype == DT_F32 ? 1e-5 : 3e-2;
    const int64_t n = count_of(c->y_shape, c->y_axes);
    dt_tensor *full = NULL;
    dt_status st = DT_OK;
    float got[MOST];

    DT_TRY(dt_full_tensor(y, &full));
    dti_convert(got, DT_F32, dt_tensor_local(full)->data, dt_tensor_dtype(full), n);
    for (int64_t i = 0; i < n; i++)
        DT_EXPECT_TO(done, st, fabs((double)got[i] - v->y[i]) <= tolerance * (1 + fabs(v->y[i])),
                     "%s of a %s: element %lld is %g, not %g", c->row->style, c->row->layer,
                     (long long)i, (double)got[i], v->y[i]);
done:
    dt_tensor_release(&full);
    return st;
}

/* Elements that coordinate `me` of p ranks holds of `shape` when axis `axis` is cut. */
static int64_t piece(const int64_t *shape, int n, int axis, int p, int me)
{
    const int64_t rows = shape[axis], chunk = (rows + p - 1) / p, first = me * chunk;
    const int64_t own = first >= rows ? 0 : first + chunk > rows ? rows - first : chunk;

    return rows == 0 ? 0 : count_of(shape, n) / rows * own;
}

/* "S(1)" -> 1 */
static int cut_axis(const char *place)
{
    return place[0] == 'S' ? place[2] - '0' : -1;
}

/* Scattering a sum makes the rank of the largest piece receive p - 1 terms of it. If that is more
 * than an all-reduce (few tokens on many ranks), the sum is all-reduced and sliced. */
static dt_comm_kind comm_of(const run_case *c)
{
    const bool of_x = c->row->moved == 'x';
    const int64_t *shape = of_x ? c->x_shape : c->y_shape;
    const int n = of_x ? c->x_axes : c->y_axes, p = dt_mesh_n_ranks(c->mesh);
    const int to = cut_axis(of_x ? c->row->x_made : c->row->y_left);

    if (c->row->comm != DT_COMM_REDUCE_SCATTER) return c->row->comm;
    return piece(shape, n, to, p, 0) * p > 2 * count_of(shape, n) ? DT_COMM_ALL_REDUCE
                                                                  : DT_COMM_REDUCE_SCATTER;
}

/* What this rank receives by the collective of a row. */
static int64_t exact_bytes(const run_case *c, dt_comm_kind kind)
{
    const style_row *r = c->row;
    const int64_t e = strchr(r->bytes, 'k') != NULL ? 4 : (int64_t)dt_dtype_size(c->dtype);
    const bool of_x = r->moved == 'x';
    const int64_t *shape = of_x ? c->x_shape : c->y_shape;
    const int n = of_x ? c->x_axes : c->y_axes, p = dt_mesh_n_ranks(c->mesh);
    const int me = dt_mesh_coord(c->mesh, 0), to = cut_axis(of_x ? r->x_made : r->y_left);
    const int from = of_x                                       ? cut_axis(r->x_comes)
                     : r->layer[0] == 'l' || r->layer[0] == 'e' ? 2
                                                                : cut_axis(r->x_made);
    const int64_t all = count_of(shape, n) * e;

    switch (kind) {
    case DT_COMM_ALL_GATHER:
        return all - e * piece(shape, n, from, p, me);
    case DT_COMM_ALL_REDUCE:
        return 2 * (p - 1) * all / p;
    case DT_COMM_REDUCE_SCATTER:
        return (p - 1) * e * piece(shape, n, to, p, me);
    case DT_COMM_ALL_TO_ALL: { /* of my rows of `to` those that I have not */
        int64_t mine[DT_MAX_AXES];
        memcpy(mine, shape, sizeof mine);
        mine[to] = piece(&shape[to], 1, 0, p, me);
        return e * (count_of(mine, n) - piece(mine, n, from, p, me));
    }
    default:
        return 0;
    }
}

static dt_status expect_comm(const run_case *c, const dt_tape *t)
{
    const int p = dt_mesh_n_ranks(c->mesh);

    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter got = dt_tape_comm(t, (dt_comm_kind)k);
        const bool moves = p > 1 && k == (int)comm_of(c);
        const int64_t bytes = moves ? exact_bytes(c, comm_of(c)) : 0;
        DT_EXPECT(got.calls == moves && got.bytes == bytes,
                  "%s of a %s: %lld x %s of %lld bytes, not %d of %lld", c->row->style,
                  c->row->layer, (long long)got.calls, dt_comm_kind_name((dt_comm_kind)k),
                  (long long)got.bytes, (int)moves, (long long)bytes);
        if (c->size != sizes[0] || !moves) continue;
        DT_EXPECT(bytes * p ==
                      style_row_bytes(c->row, c->size, p, (int64_t)dt_dtype_size(c->dtype)),
                  "%s of a %s: %lld bytes, the page says \"%s\"", c->row->style, c->row->layer,
                  (long long)bytes, c->row->bytes);
    }
    return DT_OK;
}

/* --- one line --------------------------------------------------------------------------------- */

static dt_status forward(const run_case *c, const values *v, dt_layer *layer, dt_tensor *x)
{
    dt_tape *t = NULL, *aside = NULL;
    dt_status st = DT_OK;
    dt_tensor *y;

    DT_TRY(dt_tape_create(dt_mesh_runtime(c->mesh), &t));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(c->mesh), &aside));
    y = dt_layer_enter(aside, layer, x);
    DT_TRY_TO(done, st, dt_tape_status(aside));
    DT_TRY_TO(done, st, expect_place(c, "x", dt_tensor_layout(y), c->row->x_made));
    y = dt_layer_forward(t, layer, x);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, expect_place(c, "y", dt_tensor_layout(y), c->row->y_left));
    DT_TRY_TO(done, st, expect_comm(c, t));
    DT_TRY_TO(done, st, expect_values(c, v, y));
done:
    dt_tape_release(&aside);
    dt_tape_release(&t);
    return st;
}

static dt_status run_row(run_case *c, values *v)
{
    dt_layers *layers = NULL;
    dt_tensor *x = NULL;
    dt_status st = DT_OK;
    dt_layer *layer;
    dt_layer_spec spec;

    set_shapes(c);
    make_values(c, v);
    spec = spec_of(c);
    DT_TRY(dt_layers_create(c->mesh, "tp", &spec, 1, NULL, &layers));
    layer = dt_layers_at(layers, 0);
    DT_TRY_TO(done, st, expect_place(c, "W", dt_layer_param_layout(layer, 0), c->row->weight));
    DT_TRY_TO(done, st, expect_place(c, "b", dt_layer_param_layout(layer, 1), c->row->bias));
    DT_TRY_TO(done, st, set_params(c, v, layer));
    DT_TRY_TO(done, st, make_x(c, v, &x));
    DT_TRY_TO(done, st, forward(c, v, layer, x));
done:
    dt_tensor_release(&x);
    dt_layers_release(&layers);
    return st;
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

static dt_status all_sizes(dt_mesh *mesh, const style_row *row, values *v)
{
    const style_row step = of_a_step(row);
    const dt_style *style;

    DT_TRY(dt_style_find(dt_mesh_runtime(mesh), row->style, NULL, &style));
    for (size_t s = 0; s < DT_COUNT(sizes); s++)
        for (int half = 0; half < (s < 2 ? 2 : 1); half++) {
            const bool one = sizes[s][LETTER_T] == 1 && style->twin != NULL;
            run_case c = { .row = one ? &step : row,
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
    values *v = malloc(sizeof *v);
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

    for (int i = 0; (style = dti_style_at(rt, i)) != NULL; i++) {
        bool found = false;
        for (int k = 0; k < rows->n && !found; k++) {
            const dt_style *of_row;
            DT_TRY(dt_style_find(rt, rows->row[k].style, NULL, &of_row));
            found = of_row == style;
        }
        DT_EXPECT(found || style_rows_mention(style->name), "docs/styles.md has no line on %s",
                  style->name);
    }
    return DT_OK;
}

DT_TEST(style_table, every_style_is_on_the_page)
{
    style_rows rows;

    style_rows_read(&rows);
    dt_test_on_ranks("tp=1", all_styles, &rows);
}

/* --- docs/adding_a_style.md ------------------------------------------------------------------- */

static char *read_source(const char *name)
{
    char path[DT_TEST_PATH_BYTES];
    FILE *file = fopen(dt_test_source_path(path, name), "r");
    char *text = calloc(1, 1 << 16);

    if (file == NULL || text == NULL) dt_test_fail(__FILE__, __LINE__, "cannot read %s", path);
    if (file != NULL && text != NULL) (void)fread(text, 1, (1 << 16) - 1, file);
    if (file != NULL) (void)fclose(file);
    return text;
}

DT_TEST(style_table, the_page_on_own_styles_quotes_the_example)
{
    char *page = read_source("docs/adding_a_style.md");
    char *example = read_source("examples/02_own_style.c");
    int blocks = 0;

    for (char *at = strstr(page, "```c\n"); at != NULL; at = strstr(at, "```c\n")) {
        char *end = strstr(at += 5, "```");
        if (end == NULL) dt_test_fail(__FILE__, __LINE__, "a block without an end");
        *end = '\0';
        if (strstr(example, at) == NULL) dt_test_fail(__FILE__, __LINE__, "not there: %s", at);
        at = end + 1;
        blocks++;
    }
    DT_ASSERT_EQ_INT(blocks, 5);
    free(page);
    free(example);
}
