/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers in tiles beside the same layers in one piece: values, gradients, what is gathered
 * at a time. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <math.h>
#include <string.h>

#include "dtensor/device/device.h"
#include "dtensor/gather.h"
#include "tests/support/dt_test.h"
#include "tests/support/layers.h"
#include "tests/support/tensors.h"

enum { ROWS = 6, MOST = 64 * 64 };

typedef struct tile_case {
    int64_t out, in;
    const char *style; /* of "tp", or NULL */
    const char *tiles; /* style on "dp" */
    int64_t largest;   /* elements of the largest tile of a rank; 0: not looked at */
    bool bias, exact, again;
} tile_case;

/* What came of it, whole. */
typedef struct came {
    float y[MOST], dw[MOST], dx[MOST], db[64];
    int64_t most;
} came;

static dt_status read_whole(dt_tensor *x, float *to)
{
    dt_tensor *whole;
    size_t n = sizeof *to;

    DT_EXPECT(x != NULL, "nothing came");
    DT_TRY(dt_full_tensor(x, &whole));
    for (int a = 0; a < dt_tensor_n_axes(whole); a++) n *= (size_t)dt_tensor_extent(whole, a);
    memcpy(to, dt_tensor_local(whole)->data, n);
    dt_tensor_release(&whole);
    return DT_OK;
}

static dt_tensor *body(dt_tape *t, const void *arg, int n, dt_tensor *const *in)
{
    (void)n;
    return dt_layer_forward(t, *(dt_layer *const *)arg, in[0]);
}

/* y's gradient is y: not one that is whole by chance. Ranks of "dp" have rows of their own. */
static dt_status pass(dt_mesh *mesh, dt_layers *layers, dt_tensor *x, bool again, came *out)
{
    dt_layer *layer = dt_layers_at(layers, 0);
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int64_t now;
    dt_tensor *y;

    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_gradients_watch(g, x));
    for (int p = 0; p < dt_layer_n_params(layer); p++)
        if (dt_layer_has_param(layer, p)) DT_TRY(dt_gradients_watch(g, dt_layer_param(layer, p)));
    dt_tape_record(t, g);
    y = again ? dt_recompute(t, body, &layer, sizeof layer, 1, &x) : dt_layer_forward(t, layer, x);
    DT_TRY(dt_tape_status(t));
    DT_TRY(read_whole(y, out->y));
    dt_backward(t, y, &(dt_backward_options){ .seed = y });
    DT_TRY(dt_tape_status(t));
    dti_gathered_bytes(dt_mesh_runtime(mesh), &now, &out->most);
    DT_EXPECT(now == 0, "%lld bytes are still gathered", (long long)now);
    DT_TRY(dt_gradients_settle(g, t));
    DT_TRY(read_whole(dt_gradient(g, x), out->dx));
    DT_TRY(read_whole(dt_gradient(g, dt_layer_param(layer, 0)), out->dw));
    if (dt_layer_has_param(layer, 1))
        DT_TRY(read_whole(dt_gradient(g, dt_layer_param(layer, 1)), out->db));
    DT_EXPECT(dt_tensor_layout(dt_gradient(g, dt_layer_param(layer, 0))) ==
                  dt_layer_param_layout(layer, 0),
              "the gradient lies elsewhere");
    return DT_OK;
}

static dt_status run(dt_mesh *mesh, const tile_case *c, const char *style, came *out)
{
    const dt_layer_spec spec = { .name = "w",
                                 .kind = &dt_linear_kind,
                                 .axis = { { c->out, 0 }, { c->in, 0 } },
                                 .with = c->bias ? "bias" : NULL,
                                 .style = c->style };
    const dt_plan plan = { .dim = "dp", .others = style };
    const int64_t shape[] = { ROWS, c->in };
    dt_placement place[DT_MAX_DIMS] = { DT_SHARD(0) };
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL;
    float values[MOST];

    dt_test_random(values, ROWS * c->in, 3);
    DT_TRY(dt_layers_create(mesh, "tp?", &spec, 1, &plan, &layers));
    DT_TRY(dt_test_fill_layers(mesh, layers, DT_F32, 11));
    DT_TRY(
        dt_distribute(mesh, place, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    return pass(mesh, layers, x, c->again, out);
}

static dt_status near(const float *a, const float *b, int64_t n, bool exact, const char *what)
{
    float most = 0, apart = 0;

    for (int64_t i = 0; i < n; i++) {
        most = fmaxf(most, fabsf(a[i]));
        apart = fmaxf(apart, fabsf(a[i] - b[i]));
    }
    DT_EXPECT(most > 0 && apart <= (exact ? 0 : 1e-5f * most), "%s: %g apart, of %g", what,
              (double)apart, (double)most);
    return DT_OK;
}

/* Bytes of a tensor as memory counts it. */
static int64_t counted(int64_t elements)
{
    dti_memory *m = NULL;
    dti_storage *x = NULL;
    int64_t bytes = 0;

    if (dti_memory_create(true, NULL, &m) != DT_OK) return 0;
    if (dti_storage_create(m, (size_t)elements * sizeof(float), true, &x) == DT_OK)
        bytes = (int64_t)dti_memory_used(m);
    dti_storage_release(x);
    dti_memory_destroy(&m);
    return bytes;
}

static dt_status compare(dt_mesh *mesh, const void *arg)
{
    const tile_case *c = arg;
    static _Thread_local came tiled, whole;
    const int64_t out = c->out, in = c->in;

    DT_TRY(run(mesh, c, c->tiles, &tiled));
    if (c->largest > 0) DT_EXPECT_EQ_INT(tiled.most, counted(c->largest));
    DT_TRY(run(mesh, c, "fully_shard", &whole));
    DT_TRY(near(whole.y, tiled.y, ROWS * out, c->exact, "y"));
    DT_TRY(near(whole.dw, tiled.dw, out * in, false, "dw"));
    DT_TRY(near(whole.dx, tiled.dx, ROWS * in, false, "dx"));
    if (c->bias) DT_TRY(near(whole.db, tiled.db, out, false, "db"));
    return DT_OK;
}

DT_TEST(tiles, give_the_products_of_the_whole)
{
    static const tile_case cases[] = {
        { 16, 12, NULL, "fully_shard(out_tiles=4)", 4 * 12, false, true, false },
        { 16, 12, NULL, "fully_shard(out_tiles=4)", 4 * 12, false, true, true },
        { 16, 12, NULL, "fully_shard(in_tiles=3)", 16 * 4, false, false, false },
        { 16, 12, NULL, "fully_shard(out_tiles=4, in_tiles=3)", 4 * 4, false, false, false },
        { 10, 7, NULL, "fully_shard(out_tiles=3)", 4 * 7, false, true, false }, /* 3, 3, 4 rows */
        { 10, 7, NULL, "fully_shard(out_tiles=3)", 0, true, true, false },
        { 10, 7, NULL, "fully_shard(out_tiles=3,in_tiles=2)", 4 * 4, false, false, false },
        { 10, 7, NULL, "fully_shard(out_tiles=3,in_tiles=2)", 0, true, false, true },
        { 5, 3, NULL, "fully_shard(out_tiles=32)", 3, false, true, false }, /* 5 are possible */
        { 40, 9, NULL, "fully_shard(out_tiles=32,in_tiles=2)", 0, true, false, false },
    };
    static const tile_case with_tp[] = {
        { 16, 12, "colwise", "fully_shard(in_tiles=3)", 8 * 4, false, false, false },
        { 16, 12, "colwise", "fully_shard(in_tiles=3)", 0, true, false, true },
        { 16, 12, "rowwise", "fully_shard(out_tiles=4)", 4 * 6, false, true, false },
        { 10, 7, "rowwise", "fully_shard(out_tiles=3)", 0, true, true, false },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dt_test_on_ranks("dp=2", compare, &cases[i]);
        dt_test_on_ranks("dp=3", compare, &cases[i]);
    }
    for (size_t i = 0; i < DT_COUNT(with_tp); i++)
        dt_test_on_ranks("dp=2,tp=2", compare, &with_tp[i]);
}

DT_TEST(tiles, are_refused_where_they_cannot_be)
{
    static const struct {
        const char *mesh, *message;
        dt_status code;
        tile_case of;
    } cases[] = {
        { "dp=2,tp=2",
          "\"fully_shard(out_tiles=2)\" divides w into tiles, but another style cuts "
          "its outputs: give in_tiles",
          DT_ERR_LAYOUT,
          { 8, 8, "colwise", "fully_shard(out_tiles=2)", 0, false, false, false } },
        { "dp=2,tp=2",
          "but another style cuts its inputs: give out_tiles",
          DT_ERR_LAYOUT,
          { 8, 8, "rowwise", "fully_shard(in_tiles=2)", 0, false, false, false } },
        { "dp=2",
          "a number of tiles is 1 to 32, and is not",
          DT_ERR_ARG,
          { 8, 8, NULL, "fully_shard(out_tiles=33)", 0, false, false, false } },
        { "dp=2",
          "a number of tiles is 1 to 32, and is not",
          DT_ERR_ARG,
          { 8, 8, NULL, "fully_shard(in_tiles=x)", 0, false, false, false } },
        { "dp=2",
          "tiles are of \"fully_shard\"",
          DT_ERR_ARG,
          { 8, 8, NULL, "replicate(in_tiles=2)", 0, false, false, false } },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks_fail(cases[i].mesh, compare, &cases[i].of, cases[i].code,
                              cases[i].message);
}
