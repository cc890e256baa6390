/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's tensor-parallel styles and embeddings, forward: what its own tests expect on four ranks
 * of local shapes, placements and collectives; on one to four ranks the shape of each rank's piece,
 * the exact price, and values against one rank. Left out is what has no counterpart here: layer
 * norms without weights, dropout, max_norm. */
#include <dtensor/inspect.h>
#include <dtensor/parallel_styles.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "tests/support/dt_test.h"
#include "tests/support/layers.h"
#include "tests/support/tensors.h"

typedef struct torch_case {
    const dt_layer_kind *kind;
    dt_lay comes; /* how x is put on the mesh: a Shard or Replicate */
    dt_parallel_args args;
    const char *style; /* "colwise", "rowwise", or the name of a registered one */
    int64_t rows, columns;
    int x_axes;
    int64_t x[5];
    const char *local; /* shape of rank 0's piece of y on four ranks, as PyTorch has it */
    dt_comm_kind comm; /* one call, or DT_N_COMM_KINDS */
} torch_case;

#define LINEAR &dt_linear_kind
#define LOOKUP &dt_embedding_kind
/* clang-format off */
#define R       { DT_LAY_REPLICATE, 0 }
#define S(a)    { DT_LAY_SHARD, (a) }
#define P       { DT_LAY_PARTIAL, 0 }
#define KEEP    { DT_LAY_KEEP, 0 }
/* clang-format on */
#define NONE    DT_N_COMM_KINDS
#define GATHER  DT_COMM_ALL_GATHER
#define REDUCE  DT_COMM_ALL_REDUCE
#define SCATTER DT_COMM_REDUCE_SCATTER

/* clang-format off */
static const torch_case cases[] = {
/*    layer            x     args               style      weight    x                       local y            moves */
    { LINEAR,          R,    { R, KEEP },       "colwise", 16, 16,   2, { 8, 16 },           "[8, 4]",          NONE },
    { LINEAR,          S(0), { S(0), KEEP },    "colwise", 16, 16,   2, { 32, 16 },          "[32, 4]",         GATHER },
    { LINEAR,          R,    { KEEP, S(-1) },   "colwise", 16, 16,   2, { 8, 16 },           "[8, 4]",          NONE },
    { LINEAR,          R,    { KEEP, R },       "colwise", 16, 16,   2, { 8, 16 },           "[8, 16]",         GATHER },
    { LINEAR,          S(1), { S(-1), KEEP },   "rowwise", 16, 16,   2, { 8, 16 },           "[8, 16]",         REDUCE },
    { LINEAR,          S(1), { KEEP, S(0) },    "rowwise", 16, 16,   2, { 8, 16 },           "[2, 16]",         SCATTER },
    { LINEAR,          S(1), { KEEP, S(1) },    "rowwise", 16, 16,   2, { 8, 16 },           "[8, 4]",          SCATTER },
    { LINEAR,          S(1), { KEEP, P },       "rowwise", 16, 16, 2, { 8, 16 },        "[8, 16]",         NONE },
    /* sizes that do not divide, and pieces without rows */
    { LINEAR,          R,    { R, KEEP },       "colwise", 13, 11,   2, { 7, 11 },           "[7, 4]",          NONE },
    { LINEAR,          S(0), { S(0), KEEP },    "colwise", 13, 11,   2, { 7, 11 },           "[7, 4]",          GATHER },
    { LINEAR,          R,    { KEEP, R },       "colwise", 5,  11,   2, { 7, 11 },           "[7, 5]",          GATHER },
    { LINEAR,          S(1), { S(-1), KEEP },   "rowwise", 13, 11,   2, { 7, 11 },           "[7, 13]",         REDUCE },
    { LINEAR,          R,    { KEEP, KEEP },    "rowwise", 13, 2,    2, { 7, 2 },            "[7, 13]",         REDUCE },
    { LINEAR,          S(1), { KEEP, S(0) },    "rowwise", 13, 11,   2, { 7, 11 },           "[2, 13]",         SCATTER },
    { LINEAR,          S(1), { KEEP, S(-1) },   "rowwise", 13, 11,   2, { 7, 11 },           "[7, 4]",          SCATTER },
    { LINEAR,          S(1), { KEEP, S(0) },    "rowwise", 13, 11,   2, { 1, 11 },           "[1, 13]",         SCATTER },
    { LINEAR,          S(1), { KEEP, P },       "rowwise", 13, 11, 2, { 7, 11 },        "[7, 13]",         NONE },
    { LOOKUP,          R,    { KEEP, S(1) },    "rowwise", 13, 11,   1, { 7 },               "[7, 3]",          SCATTER },
    { LOOKUP,          R,    { KEEP, S(0) },    "rowwise", 13, 11,   2, { 5, 3 },            "[2, 3, 11]",      SCATTER },
    { LOOKUP,          R,    { KEEP, R },       "colwise", 13, 11,   2, { 5, 3 },            "[5, 3, 11]",      GATHER },
    { LOOKUP,          R,    { KEEP, KEEP },    "colwise", 16, 16,   2, { 4, 2 },            "[4, 2, 4]",       NONE },
    { LOOKUP,          R,    { KEEP, KEEP },    "rowwise", 16, 16,   2, { 4, 2 },            "[4, 2, 16]",      REDUCE },
    { LOOKUP,          R,    { KEEP, S(1) },    "rowwise", 16, 16,   1, { 8 },               "[8, 4]",          SCATTER },
    /* tables cut by columns */
    { LOOKUP,          R,    { KEEP, KEEP },    "colwise", 17, 12,   2, { 5, 4 },            "[5, 4, 3]",       NONE },
    { LOOKUP,          R,    { KEEP, KEEP },    "colwise", 21, 11,   3, { 6, 7, 6 },         "[6, 7, 6, 3]",    NONE },
    { LOOKUP,          R,    { KEEP, KEEP },    "colwise", 23, 13,   4, { 8, 6, 5, 4 },      "[8, 6, 5, 4, 4]", NONE },
    { LOOKUP,          R,    { KEEP, KEEP },    "colwise", 23, 16,   5, { 8, 6, 5, 4, 7 },   "[8, 6, 5, 4, 7, 4]", NONE },
    { LOOKUP,          R,    { KEEP, KEEP },    "colwise", 15, 14,   1, { 4 },               "[4, 4]",          NONE },
    { LOOKUP,          R,    { KEEP, KEEP },    "colwise", 15, 14,   1, { 34 },              "[34, 4]",         NONE },
    /* tables cut by rows: terms, and the sum costs one all-reduce */
    { LOOKUP,          R,    { KEEP, P },       "rowwise", 16, 22, 2, { 5, 12 },        "[5, 12, 22]",     NONE },
    { LOOKUP,          R,    { KEEP, KEEP },    "rowwise", 16, 22,   2, { 5, 12 },           "[5, 12, 22]",     REDUCE },
    { LOOKUP,          R,    { KEEP, KEEP },    "rowwise", 13, 22,   3, { 6, 7, 6 },         "[6, 7, 6, 22]",   REDUCE },
    { LOOKUP,          R,    { KEEP, KEEP },    "rowwise", 15, 14,   1, { 34 },              "[34, 14]",        REDUCE },
};
/* clang-format on */

static int64_t count_of(const int64_t *shape, int n)
{
    int64_t count = 1;

    for (int a = 0; a < n; a++) count *= shape[a];
    return count;
}

static dt_placement placed(dt_lay how)
{
    return how.kind == DT_LAY_REPLICATE ? DT_REPLICATE : DT_SHARD(how.axis);
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

/* A list of one layer under `style`, with parameters. */
static dt_status make_layer(dt_mesh *mesh, const torch_case *c, const char *style, dt_layers **out)
{
    const dt_layer_spec spec = { .name = "layer",
                                 .kind = c->kind,
                                 .axis = { { c->rows, 0 }, { c->columns, 0 } },
                                 .with = c->kind == LINEAR ? "bias" : NULL,
                                 .eps = 1e-5f,
                                 .style = style };

    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, out));
    return dt_test_fill_layers(mesh, *out, DT_F32, 1);
}

static void shape_of_y(const torch_case *c, int64_t shape[DT_MAX_AXES], int *n_axes)
{
    const bool ids = c->kind == LOOKUP;

    *n_axes = c->x_axes + ids;
    memcpy(shape, c->x, (size_t)c->x_axes * sizeof *shape);
    if (ids) shape[c->x_axes] = c->columns;
    if (c->kind == LINEAR) shape[c->x_axes - 1] = c->rows;
}

/* The axis along which y is left cut, -1 for none. */
static int cut_of_y(const torch_case *c, int n_axes)
{
    const dt_lay how = c->args.output_layouts;
    const bool columns = strcmp(c->style, "colwise") == 0;

    if (how.kind == DT_LAY_SHARD) return (how.axis + n_axes) % n_axes;
    return how.kind == DT_LAY_KEEP && columns ? n_axes - 1 : -1;
}

static dt_status expect_place(const dt_mesh *mesh, const torch_case *c, const dt_tensor *y, int cut)
{
    const dt_placement now = dt_layout_placement(dt_tensor_layout(y), 0);
    const bool terms = c->args.output_layouts.kind == DT_LAY_PARTIAL;
    const dt_place_kind want = terms     ? DT_PLACE_PARTIAL
                               : cut < 0 ? DT_PLACE_REPLICATE
                                         : DT_PLACE_SHARD;

    if (dt_mesh_n_ranks(mesh) == 1) return DT_OK; /* all mean the same */
    DT_EXPECT(now.kind == want && (cut < 0 || now.axis == cut), "kind %d along axis %d, not %d, %d",
              (int)now.kind, now.axis, (int)want, cut);
    return DT_OK;
}

/* Every rank's piece, on any mesh; on four ranks the first one's as PyTorch has it. */
static dt_status expect_piece(const dt_mesh *mesh, const torch_case *c, const dt_tensor *y)
{
    const int p = dt_mesh_n_ranks(mesh), me = dt_mesh_coord(mesh, 0);
    int64_t shape[DT_MAX_AXES];
    char got[64], want[64];
    int n, cut;

    shape_of_y(c, shape, &n);
    cut = cut_of_y(c, n);
    if (cut >= 0) shape[cut] = dt_test_piece(&shape[cut], 1, 0, p, me);
    (void)dti_shape_text(dt_tensor_local(y)->shape, dt_tensor_n_axes(y), got, sizeof got);
    (void)dti_shape_text(shape, n, want, sizeof want);
    DT_EXPECT(strcmp(got, want) == 0, "rank %d of %d has %s, not %s", me, p, got, want);
    DT_EXPECT(p < 4 || me > 0 || strcmp(got, c->local) == 0, "%s, not %s", got, c->local);
    return expect_place(mesh, c, y, cut);
}

/* Of x if that comes cut and is gathered or cut anew, else of y. */
static dt_status expect_price(const dt_mesh *mesh, const torch_case *c, const dt_tape *t)
{
    const bool of_x =
        c->comes.kind != DT_LAY_REPLICATE && (c->comm == GATHER || c->comm == DT_COMM_ALL_TO_ALL);
    dt_test_move move = { .kind = c->comm, .from = -1, .to = -1, .each = sizeof(float) };
    int n;

    shape_of_y(c, move.shape, &n);
    move.n_axes = of_x ? c->x_axes : n;
    if (of_x) memcpy(move.shape, c->x, (size_t)c->x_axes * sizeof *c->x);
    if (of_x)
        move.from = c->comes.axis;
    else if (c->comm == GATHER)
        move.from = n - 1;
    move.to = cut_of_y(c, n);
    return dt_test_expect_move(t, mesh, &move);
}

/* y is what the layer gives when all ranks hold all of it. */
static dt_status expect_whole_result(dt_mesh *mesh, const torch_case *c, dt_tensor *x, dt_tensor *y)
{
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    bool close = false;

    DT_TRY(make_layer(mesh, c, "replicate", &layers));
    x = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_allclose(x, y, 1e-5, 1e-5, &close));
    DT_EXPECT(close, "values differ from those of one rank");
    return DT_OK;
}

static dt_status run_case(dt_mesh *mesh, const torch_case *c, const char *style)
{
    dt_layers *layers = NULL;
    dt_tensor *x = NULL, *y;
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, make_layer(mesh, c, style, &layers));
    DT_TRY_TO(done, st, make_x(mesh, c, &x));
    y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, expect_piece(mesh, c, y));
    DT_TRY_TO(done, st, expect_price(mesh, c, t));
    DT_TRY_TO(done, st, expect_whole_result(mesh, c, x, y));
done:
    if (st != DT_OK) dti_error_prefix("%s on %d ranks", style, dt_mesh_n_ranks(mesh));
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

static void on_all_ranks(dt_test_body body)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], body, NULL);
}

DT_TEST(torch_styles, colwise_and_rowwise_with_layout_arguments)
{
    on_all_ranks(parallel_styles);
}

static dt_status sequence(dt_mesh *mesh, const void *arg)
{
    static const dt_layer_kind *const kinds[] = { &dt_layer_norm_kind, &dt_rms_norm_kind };
    static const struct {
        int64_t batch, tokens;
        const char *local;
    } sizes[] = { { 20, 32, "[20, 8, 12]" }, { 7, 13, "[7, 4, 12]" }, { 3, 2, "[3, 1, 12]" } };
    const dt_style style = dt_sequence_parallel(1), other = dt_sequence_parallel(8);

    (void)arg;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "sequence", &style));
    DT_EXPECT_STATUS(dt_style_register(dt_mesh_runtime(mesh), "other", &other), DT_ERR_ARG,
                     "dt_lay { 2, 8 }, which there is none of");
    for (size_t i = 0; i < DT_COUNT(kinds); i++)
        for (size_t k = 0; k < DT_COUNT(sizes); k++) {
            torch_case c = { .kind = kinds[i],
                             .comes = S(1),
                             .args = { .output_layouts = S(1) },
                             .style = "sequence",
                             .rows = 12,
                             .x_axes = 3,
                             .x = { sizes[k].batch, sizes[k].tokens, 12 },
                             .local = sizes[k].local,
                             .comm = NONE };
            DT_TRY(run_case(mesh, &c, "sequence"));
            DT_TRY(run_case(mesh, &c, "SequenceParallel(sequence_dim=1)"));
            c.comes = (dt_lay)R;
            DT_TRY(run_case(mesh, &c, "sequence"));
            c.comes = (dt_lay)S(0);
            c.comm = DT_COMM_ALL_TO_ALL;
            DT_TRY(run_case(mesh, &c, "sequence"));
        }
    return DT_OK;
}

DT_TEST(torch_styles, sequence_parallel_norms_move_nothing)
{
    on_all_ranks(sequence);
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
    DT_HELD(layers) *one = NULL, *two = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *z = NULL;
    const int64_t p = dt_mesh_n_ranks(mesh);
    dt_comm_counter want[DT_N_COMM_KINDS] = { { 0, 0 } };
    dt_tensor *y[2];

    (void)arg;
    DT_TRY(make_layer(mesh, &c, "local_rowwise", &one));
    DT_TRY(make_layer(mesh, &c, "local_rowwise", &two));
    DT_TRY(make_x(mesh, &c, &x));
    DT_TRY(make_x(mesh, &later, &z));
    y[0] = dt_layer_forward(t, dt_layers_at(one, 0), x);
    y[1] = dt_layer_forward(t, dt_layers_at(two, 0), z);
    y[0] = dt_move_dim(t, y[0], 0, DT_REPLICATE);
    y[1] = dt_move_dim(t, y[1], 0, DT_REPLICATE);
    DT_TRY(dt_tape_status(t));
    want[REDUCE] =
        (dt_comm_counter){ 2 * (p > 1), 2 * (p - 1) * 8 * 6 * 4 / p + 2 * (p - 1) * 5 * 6 * 4 / p };
    DT_TRY(dt_test_expect_counts(t, want));
    DT_TRY(expect_whole_result(mesh, &c, x, y[0]));
    DT_TRY(expect_whole_result(mesh, &later, z, y[1]));
    return DT_OK;
}

DT_TEST(torch_styles, tables_of_one_shape_keep_their_terms_apart)
{
    on_all_ranks(two_tables);
}
