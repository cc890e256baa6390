/* SPDX-License-Identifier: Apache-2.0
 *
 * Fully sharded layers one by one: pieces without elements, parameters that nobody trains, ranks
 * that go apart, parameters that change between a gather ahead and its use. Whole models are in
 * tests/models/test_fully_shard.c. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <string.h>

#include "dtensor/gather.h"
#include "tests/support/dt_test.h"
#include "tests/support/layers.h"
#include "tests/support/tensors.h"

enum { ROWS = 2, WIDTH = 3 };

/* y = norm(b(a(x))), of 3 columns and rows of 1 and 3: four ranks cannot all have some. */
static const dt_layer_spec specs[] = {
    { .name = "a",
      .kind = &dt_linear_kind,
      .axis = { { WIDTH, 0 }, { WIDTH, 0 } },
      .with = "bias" },
    { .name = "b", .kind = &dt_linear_kind, .axis = { { WIDTH, 0 }, { WIDTH, 0 } } },
    { .name = "one", .kind = &dt_linear_kind, .axis = { { 1, 0 }, { WIDTH, 0 } }, .with = "bias" },
    { .name = "norm", .kind = &dt_rms_norm_kind, .axis = { { 1, 0 } } },
};

typedef struct net {
    dt_layers *layers;
    dt_tensor *x;
    dt_tape *t;
    dt_gradients *g;
} net;

static void close_net(net *n)
{
    dt_tape_release(&n->t);
    dt_gradients_release(&n->g);
    dt_tensor_release(&n->x);
    dt_layers_release(&n->layers);
}

static dt_status open_net(dt_mesh *mesh, bool cut, net *n)
{
    const dt_plan plan = { .dim = "dp", .others = cut ? "fully_shard" : "replicate" };
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t shape[] = { ROWS, WIDTH };
    float values[ROWS * WIDTH];

    *n = (net){ NULL };
    dt_test_random(values, ROWS * WIDTH, 3);
    DT_TRY(dt_layers_create(mesh, "tp?", specs, (int)DT_COUNT(specs), &plan, &n->layers));
    DT_TRY(dt_test_fill_layers(mesh, n->layers, DT_F32, 11));
    DT_TRY(dt_distribute(mesh, whole, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES },
                         &n->x));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &n->t));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &n->g));
    return DT_OK;
}

static dt_tensor *through(net *n, const int *order, int count)
{
    dt_tensor *y = n->x;

    for (int i = 0; i < count; i++)
        y = dt_layer_forward(n->t, dt_layers_at(n->layers, order[i]), y);
    return y;
}

static const int in_order[] = { 0, 1, 2, 3 };

/* --- few elements ----------------------------------------------------------------------------- */

static dt_status gradients(net *n, float *loss)
{
    for (int i = 0; i < dt_layers_count(n->layers); i++)
        for (int p = 0; p < dt_layer_n_params(dt_layers_at(n->layers, i)); p++)
            if (dt_layer_has_param(dt_layers_at(n->layers, i), p))
                DT_TRY(dt_gradients_watch(n->g, dt_layer_param(dt_layers_at(n->layers, i), p)));
    for (int step = 0; step < 2; step++) {
        dt_tensor *y;
        dt_gradients_clear(n->g);
        dt_tape_record(n->t, n->g);
        y = dt_sum(n->t, through(n, in_order, 3), DT_ALL_AXES);
        dt_backward(n->t, y, NULL);
        DT_TRY(dt_tape_status(n->t));
        DT_TRY(dt_tensor_read(y, loss, sizeof *loss));
        DT_TRY(dt_gradients_settle(n->g, n->t));
        dt_tape_reset(n->t);
    }
    return DT_OK;
}

static dt_status few_elements(dt_mesh *mesh, const void *arg)
{
    DT_ENDS(close_net) net whole = { 0 }, cut = { 0 };
    DT_HELD(tensor) *b = NULL, *a = NULL;
    float x, y;

    (void)arg;
    DT_TRY(open_net(mesh, true, &cut));
    DT_TRY(open_net(mesh, false, &whole));
    DT_TRY(gradients(&cut, &x));
    DT_TRY(gradients(&whole, &y));
    DT_EXPECT(memcmp(&x, &y, sizeof x) == 0, "%g, not %g", (double)x, (double)y);
    for (int i = 0; dt_gradients_at(cut.g, i) != NULL; i++) {
        dt_tensor *w = dt_gradients_at(cut.g, i);
        if (dt_gradient(cut.g, w) == NULL) continue; /* the norm's */
        DT_EXPECT(dt_tensor_layout(dt_gradient(cut.g, w)) == dt_tensor_layout(w), "leaf %d", i);
        DT_TRY(dt_full_tensor(dt_gradient(cut.g, w), &a));
        DT_TRY(dt_full_tensor(dt_gradient(whole.g, dt_gradients_at(whole.g, i)), &b));
        DT_TRY(dt_test_expect_same(a, b, "a gradient"));
        dt_tensor_release(&a);
        dt_tensor_release(&b);
    }
    return DT_OK;
}

DT_TEST(fully_shard_layers, ranks_may_have_no_element)
{
    dt_test_on_ranks("dp=2", few_elements, NULL);
    dt_test_on_ranks("dp=4", few_elements, NULL);
    dt_test_on_ranks("dp=6", few_elements, NULL);
}

/* --- parameters that nobody trains ------------------------------------------------------------ */

/* Of a layer whose input is trained and whose weight is not, nothing gathered is kept. */
static dt_status frozen(dt_mesh *mesh, const void *arg)
{
    dt_tensor *y, *dx;
    int64_t now, most;
    DT_ENDS(close_net) net n = { 0 };

    (void)arg;
    DT_TRY(open_net(mesh, true, &n));
    DT_TRY(dt_gradients_watch(n.g, n.x));
    dt_tape_record(n.t, n.g);
    y = dt_sum(n.t, through(&n, in_order, 2), DT_ALL_AXES);
    DT_TRY(dt_tape_status(n.t));
    dti_gathered_bytes(dt_mesh_runtime(mesh), &now, &most);
    DT_EXPECT(now == 0 || dt_mesh_n_ranks(mesh) == 1,
              "%lld bytes are gathered after the forward pass", (long long)now);
    dt_backward(n.t, y, NULL);
    DT_TRY(dt_tape_status(n.t));
    dx = dt_gradient(n.g, n.x);
    DT_EXPECT(dx != NULL && dt_gradients_at(n.g, 1) == NULL, "x alone is watched");
    return DT_OK;
}

DT_TEST(fully_shard_layers, frozen_ones_are_not_kept_either)
{
    dt_test_on_ranks("dp=2", frozen, NULL);
}

/* --- ranks that go apart ---------------------------------------------------------------------- */

static dt_status apart(dt_mesh *mesh, const void *arg)
{
    static const int other_order[] = { 1, 0 };
    const int *order = dt_mesh_coord(mesh, 0) == 1 ? other_order : in_order;
    DT_ENDS(close_net) net n = { 0 };

    (void)arg;
    DT_TRY(open_net(mesh, true, &n));
    (void)through(&n, order, 2);
    return dt_tape_status(n.t);
}

/* "a" and "b" are of one shape: nothing but what they are called tells them apart. */
DT_TEST(fully_shard_layers, ranks_that_go_apart_fail_by_name)
{
    const bool threads = dt_test_processes() == 1; /* others know no name without a note */
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.check = "none";
    DT_ASSERT_STATUS(dt_test_run(&o, "dp=2", apart, NULL), DT_ERR_ARG,
                     threads ? "exchange of f32 (b)" : " differs: ");
    o.check = "agree";
    DT_ASSERT_STATUS(dt_test_run(&o, "dp=2", apart, NULL), DT_ERR_ARG, "R of b from ");
}

/* --- parameters that change ------------------------------------------------------------------- */

/* "b" is on its way when it is written over: what is computed is of the new value. */
static dt_status changes(dt_mesh *mesh, const void *arg)
{
    const float twos[WIDTH * WIDTH] = { 2, 2, 2, 2, 2, 2, 2, 2, 2 };
    dt_tensor *first, *y;
    float values[2][ROWS * WIDTH];
    const dt_local *mine;
    dt_layer *b;
    DT_ENDS(close_net) net n = { 0 };

    (void)arg;
    DT_TRY(open_net(mesh, true, &n));
    b = dt_layers_at(n.layers, 1);
    for (int late = 0; late < 2; late++) {
        dt_tensor *w = dt_layer_param(b, 0);
        mine = dt_tensor_local(w);
        if (late == 0) DT_TRY(dt_test_set_param(mesh, b, 0, DT_F32, twos));
        if (late == 1) DT_TRY(dt_test_fill_layers(mesh, n.layers, DT_F32, 11));
        first = dt_layer_forward(n.t, dt_layers_at(n.layers, 0), n.x);
        w = dt_layer_param(b, 0);
        mine = dt_tensor_local(w);
        if (late == 1)
            DT_TRY(
                dt_tensor_write(w, twos, (size_t)(mine->shape[0] * mine->shape[1]) * sizeof *twos));
        y = dt_layer_forward(n.t, b, first);
        DT_TRY(dt_tape_status(n.t));
        DT_TRY(dt_tensor_read(y, values[late], sizeof values[late]));
        dt_tape_reset(n.t);
    }
    DT_EXPECT(memcmp(values[0], values[1], sizeof values[0]) == 0, "what was on its way is stale");
    return DT_OK;
}

DT_TEST(fully_shard_layers, what_is_written_over_is_gathered_anew)
{
    dt_test_on_ranks("dp=3", changes, NULL);
}
