/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's tensor-parallel styles and embeddings on four ranks, forward: what its own tests expect
 * of local shapes, placements and collectives, and values against one rank. Left out is what has no
 * counterpart here: layer norms without weights, dropout, max_norm. */
#include <dtensor/inspect.h>
#include <dtensor/styles.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

typedef struct torch_case {
    dt_layer_kind kind;
    dt_pass comes; /* how x is put on the mesh: a Shard or Replicate */
    dt_parallel_args args;
    const char *style; /* "colwise", "rowwise", or the name of a registered one */
    int64_t rows, columns;
    int x_axes;
    int64_t x[5];
    const char *local; /* shape of this rank's piece of y */
    dt_comm_kind comm; /* one call, or DT_N_COMM_KINDS */
} torch_case;

#define LINEAR  DT_LAYER_LINEAR
#define LOOKUP  DT_LAYER_EMBEDDING
#define R       DT_PASS_REPLICATE
#define S(a)    DT_PASS_SHARD(a)
#define NONE    DT_N_COMM_KINDS
#define GATHER  DT_COMM_ALL_GATHER
#define REDUCE  DT_COMM_ALL_REDUCE
#define SCATTER DT_COMM_REDUCE_SCATTER

/* clang-format off */
static const torch_case cases[] = {
/*    layer            x     args               style      weight    x                       local y            moves */
    { LINEAR,          R,    { R, 0 },          "colwise", 16, 16,   2, { 8, 16 },           "[8, 4]",          NONE },
    { LINEAR,          S(0), { S(0), 0 },       "colwise", 16, 16,   2, { 32, 16 },          "[32, 4]",         GATHER },
    { LINEAR,          R,    { 0, S(-1) },      "colwise", 16, 16,   2, { 8, 16 },           "[8, 4]",          NONE },
    { LINEAR,          R,    { 0, R },          "colwise", 16, 16,   2, { 8, 16 },           "[8, 16]",         GATHER },
    { LINEAR,          S(1), { S(-1), 0 },      "rowwise", 16, 16,   2, { 8, 16 },           "[8, 16]",         REDUCE },
    { LINEAR,          S(1), { 0, S(0) },       "rowwise", 16, 16,   2, { 8, 16 },           "[2, 16]",         SCATTER },
    { LINEAR,          S(1), { 0, S(1) },       "rowwise", 16, 16,   2, { 8, 16 },           "[8, 4]",          SCATTER },
    { LINEAR,          S(1), { 0, DT_PASS_PARTIAL }, "rowwise", 16, 16, 2, { 8, 16 },        "[8, 16]",         NONE },
    { LOOKUP,          R,    { 0, 0 },          "colwise", 16, 16,   2, { 4, 2 },            "[4, 2, 4]",       NONE },
    { LOOKUP,          R,    { 0, 0 },          "rowwise", 16, 16,   2, { 4, 2 },            "[4, 2, 16]",      REDUCE },
    { LOOKUP,          R,    { 0, S(1) },       "rowwise", 16, 16,   1, { 8 },               "[8, 4]",          SCATTER },
    /* tables cut by columns */
    { LOOKUP,          R,    { 0, 0 },          "colwise", 17, 12,   2, { 5, 4 },            "[5, 4, 3]",       NONE },
    { LOOKUP,          R,    { 0, 0 },          "colwise", 21, 11,   3, { 6, 7, 6 },         "[6, 7, 6, 3]",    NONE },
    { LOOKUP,          R,    { 0, 0 },          "colwise", 23, 13,   4, { 8, 6, 5, 4 },      "[8, 6, 5, 4, 4]", NONE },
    { LOOKUP,          R,    { 0, 0 },          "colwise", 23, 16,   5, { 8, 6, 5, 4, 7 },   "[8, 6, 5, 4, 7, 4]", NONE },
    { LOOKUP,          R,    { 0, 0 },          "colwise", 15, 14,   1, { 4 },               "[4, 4]",          NONE },
    { LOOKUP,          R,    { 0, 0 },          "colwise", 15, 14,   1, { 34 },              "[34, 4]",         NONE },
    /* tables cut by rows: terms, and the sum costs one all-reduce */
    { LOOKUP,          R,    { 0, DT_PASS_PARTIAL }, "rowwise", 16, 22, 2, { 5, 12 },        "[5, 12, 22]",     NONE },
    { LOOKUP,          R,    { 0, 0 },          "rowwise", 16, 22,   2, { 5, 12 },           "[5, 12, 22]",     REDUCE },
    { LOOKUP,          R,    { 0, 0 },          "rowwise", 13, 22,   3, { 6, 7, 6 },         "[6, 7, 6, 22]",   REDUCE },
    { LOOKUP,          R,    { 0, 0 },          "rowwise", 15, 14,   1, { 34 },              "[34, 14]",        REDUCE },
};
/* clang-format on */

static int64_t count_of(const int64_t *shape, int n)
{
    int64_t count = 1;

    for (int a = 0; a < n; a++) count *= shape[a];
    return count;
}

static dt_placement placed(dt_pass pass)
{
    return pass == R ? DT_REPLICATE : DT_SHARD((int)pass - (int)S(0));
}

/* Random floats, or ids below `most`. */
static dt_status make_x(dt_mesh *mesh, const torch_case *c, dt_tensor **out)
{
    const int64_t n = count_of(c->x, c->x_axes);
    const dt_placement place = placed(c->comes);
    const bool ids = c->kind == LOOKUP;
    float *values = malloc((size_t)n * sizeof *values);
    int32_t *whole = malloc((size_t)n * sizeof *whole);
    dt_status st = values != NULL && whole != NULL ? DT_OK : DT_ERR_MEMORY;

    if (st == DT_OK) {
        dt_test_random(values, n, 5);
        for (int64_t i = 0; i < n; i++) whole[i] = (int32_t)(i * 7 % c->rows);
        st = dt_distribute(mesh, &place, ids ? DT_I32 : DT_F32, c->x_axes, c->x,
                           (dt_source){ ids ? (void *)whole : (void *)values, DT_EQUAL_COPIES },
                           out);
    }
    free(values);
    free(whole);
    return st;
}

static dt_status set_params(dt_mesh *mesh, dt_layer *layer)
{
    float values[1024];

    for (int p = 0; p < dt_layer_n_params(layer); p++) {
        const dt_param_info info = dt_layer_param_info(layer, p);
        const int64_t shape[] = { info.axis[0].extent, info.axis[1].extent };
        const dt_placement place = dt_layout_placement(dt_layer_param_layout(layer, p), 0);
        dt_tensor *w = NULL;
        dt_status st;
        dt_test_random(values, count_of(shape, info.n_axes), (uint32_t)p + 1);
        DT_TRY(dt_distribute(mesh, &place, DT_F32, info.n_axes, shape,
                             (dt_source){ values, DT_EQUAL_COPIES }, &w));
        st = dt_layer_set_param(layer, p, w);
        dt_tensor_release(&w);
        DT_TRY(st);
    }
    return DT_OK;
}

/* A list of one layer under `style`, with parameters. */
static dt_status make_layer(dt_mesh *mesh, const torch_case *c, const char *style, dt_layers **out)
{
    const dt_layer_spec spec = { .name = "layer",
                                 .kind = c->kind,
                                 .axis = { { c->rows, 0 }, { c->columns, 0 } },
                                 .bias = c->kind == LINEAR,
                                 .eps = 1e-5f,
                                 .style = style };

    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, out));
    return set_params(mesh, dt_layers_at(*out, 0));
}

static dt_status expect_calls(const dt_tape *t, dt_comm_kind kind, int64_t calls)
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        DT_EXPECT(dt_tape_comm(t, (dt_comm_kind)k).calls == (k == (int)kind ? calls : 0),
                  "%lld x %s", (long long)dt_tape_comm(t, (dt_comm_kind)k).calls,
                  dt_comm_kind_name((dt_comm_kind)k));
    return DT_OK;
}

/* y is what the layer gives when all ranks hold all of it. */
static dt_status expect_whole_result(dt_mesh *mesh, const torch_case *c, dt_tensor *x, dt_tensor *y)
{
    dt_layers *layers = NULL;
    dt_status st = DT_OK;
    dt_tape *t = NULL;
    bool close = false;

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, make_layer(mesh, c, "replicate", &layers));
    x = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, dt_allclose(x, y, 1e-5, 1e-5, &close));
    DT_EXPECT_TO(done, st, close, "values differ from those of one rank");
done:
    dt_tape_release(&t);
    dt_layers_release(&layers);
    return st;
}

static dt_status run_case(dt_mesh *mesh, const torch_case *c, const char *style)
{
    char shape[64];
    dt_layers *layers = NULL;
    dt_tensor *x = NULL, *y;
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, make_layer(mesh, c, style, &layers));
    DT_TRY_TO(done, st, make_x(mesh, c, &x));
    y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    DT_TRY_TO(done, st, dt_tape_status(t));
    (void)dti_shape_text(dt_tensor_local(y)->shape, dt_tensor_n_axes(y), shape, sizeof shape);
    DT_EXPECT_TO(done, st,
                 c->local == NULL || strcmp(shape, c->local) == 0 || dt_mesh_coord(mesh, 0) == 3,
                 "%s, not %s", shape, c->local);
    DT_TRY_TO(done, st, expect_calls(t, c->comm, 1));
    DT_TRY_TO(done, st, expect_whole_result(mesh, c, x, y));
done:
    if (st != DT_OK) dti_error_prefix("%s", style);
    dt_tensor_release(&x);
    dt_tape_release(&t);
    dt_layers_release(&layers);
    return st;
}

static dt_status parallel_styles(dt_mesh *mesh, const void *arg)
{
    (void)arg;
    for (int i = 0; i < (int)DT_COUNT(cases); i++) {
        const torch_case *c = &cases[i];
        const dt_style style = strcmp(c->style, "colwise") == 0 ? dt_colwise_parallel(c->args)
                                                                : dt_rowwise_parallel(c->args);
        char name[32];
        (void)snprintf(name, sizeof name, "%s_of_case_%d", c->style, i);
        DT_TRY(dt_style_register(dt_mesh_runtime(mesh), name, &style));
        DT_TRY(run_case(mesh, c, name));
    }
    return DT_OK;
}

DT_TEST(torch_styles, colwise_and_rowwise_with_layout_arguments)
{
    dt_test_on_ranks("tp=4", parallel_styles, NULL);
}

static dt_status sequence(dt_mesh *mesh, const void *arg)
{
    static const dt_layer_kind kinds[] = { DT_LAYER_LAYER_NORM, DT_LAYER_RMS_NORM };
    const dt_style style = dt_sequence_parallel(1), other = dt_sequence_parallel(8);

    (void)arg;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "sequence", &style));
    DT_EXPECT_STATUS(dt_style_register(dt_mesh_runtime(mesh), "other", &other), DT_ERR_ARG,
                     "no dt_pass");
    for (size_t i = 0; i < DT_COUNT(kinds); i++) {
        torch_case c = { .kind = kinds[i],
                         .comes = S(1),
                         .rows = 12,
                         .x_axes = 3,
                         .x = { 20, 32, 12 },
                         .local = "[20, 8, 12]",
                         .comm = NONE };
        DT_TRY(run_case(mesh, &c, "sequence"));
        DT_TRY(run_case(mesh, &c, "SequenceParallel(sequence_dim=1)"));
        c.comes = R;
        DT_TRY(run_case(mesh, &c, "sequence"));
        c.comes = S(0);
        c.comm = DT_COMM_ALL_TO_ALL;
        DT_TRY(run_case(mesh, &c, "sequence"));
    }
    return DT_OK;
}

DT_TEST(torch_styles, sequence_parallel_norms_move_nothing)
{
    dt_test_on_ranks("tp=4", sequence, NULL);
}

/* --- two tables of one shape ------------------------------------------------------------------ */

/* Which ids a rank has no row for belongs to the look-up, not to the table: sums of two tables can
 * be taken in any order. */
static dt_status two_tables(dt_mesh *mesh, const void *arg)
{
    const torch_case c = {
        .kind = LOOKUP, .comes = R, .rows = 13, .columns = 6, .x_axes = 1, .x = { 8 }
    };
    const torch_case later = {
        .kind = LOOKUP, .comes = R, .rows = 13, .columns = 6, .x_axes = 1, .x = { 5 }
    };
    dt_layers *one = NULL, *two = NULL;
    dt_tensor *x = NULL, *z = NULL, *y[2];
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    (void)arg;
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, make_layer(mesh, &c, "local_rowwise", &one));
    DT_TRY_TO(done, st, make_layer(mesh, &c, "local_rowwise", &two));
    DT_TRY_TO(done, st, make_x(mesh, &c, &x));
    DT_TRY_TO(done, st, make_x(mesh, &later, &z));
    y[0] = dt_layer_forward(t, dt_layers_at(one, 0), x);
    y[1] = dt_layer_forward(t, dt_layers_at(two, 0), z);
    y[0] = dt_move_dim(t, y[0], 0, DT_REPLICATE);
    y[1] = dt_move_dim(t, y[1], 0, DT_REPLICATE);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, expect_calls(t, REDUCE, 2));
    DT_TRY_TO(done, st, expect_whole_result(mesh, &c, x, y[0]));
    DT_TRY_TO(done, st, expect_whole_result(mesh, &later, z, y[1]));
done:
    dt_tensor_release(&x);
    dt_tensor_release(&z);
    dt_tape_release(&t);
    dt_layers_release(&one);
    dt_layers_release(&two);
    return st;
}

DT_TEST(torch_styles, tables_of_one_shape_keep_their_terms_apart)
{
    dt_test_on_ranks("tp=4", two_tables, NULL);
}
