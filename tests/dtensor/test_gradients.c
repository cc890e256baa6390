/* SPDX-License-Identifier: Apache-2.0
 *
 * Reverse mode against differences, under every placement. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <dtensor/ops_backward.h>
#include <dtensor/ops_loss.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"
#include "tests/support/halves.h"
#include "tests/support/tensors.h"

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };

/* --- expressions against differences ---------------------------------------------------------- */

enum { B = 3, I = 5, J = 7, MAX_OPERANDS = 4 };

static dt_tensor *mlp(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    dt_tensor *h = dt_test_reduced(t, dt_matmul(t, x[0], false, x[1], false));

    (void)arg;
    (void)n;
    h = dt_exp(t, dt_mul_scalar(t, h, 0.3));
    return dt_matmul(t, h, false, x[1], true);
}

static dt_tensor *products(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    dt_tensor *a = dt_transpose(t, x[0], 0, 1), *b = dt_transpose(t, x[1], 0, 1);

    (void)arg;
    (void)n;
    a = dt_matmul(t, a, true, b, true);
    return dt_sub(t, a, dt_matmul(t, dt_transpose(t, x[0], 0, 1), true, x[1], false));
}

/* x [B, I], w [J, I], v [I, J], b [I]: a product by columns, one by rows, a bias. */
static dt_tensor *linears(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    dt_tensor *h = dt_linear(t, x[0], x[1], NULL);

    (void)arg;
    (void)n;
    h = dt_test_reduced(t, h);
    return dt_add_bias(t, dt_test_reduced(t, dt_linear(t, dt_mul(t, h, h), x[2], NULL)), x[3]);
}

/* x [B, I], v [I] broadcast, s [1, I], m [B, I] */
static dt_tensor *broadcasts(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    dt_tensor *y = dt_mul(t, dt_add(t, x[0], x[1]), x[2]);

    (void)arg;
    (void)n;
    y = dt_sub(t, y, dt_neg(t, dt_mul(t, x[0], x[1])));
    return dt_add_scalar(t, dt_mul(t, y, x[0]), 3.0);
}

static dt_tensor *reductions(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    dt_tensor *y = dt_test_reduced(t, dt_sum(t, dt_mul(t, x[0], x[0]), 1));
    dt_tensor *all = dt_test_reduced(t, dt_sum(t, x[0], DT_ALL_AXES));

    (void)arg;
    (void)n;
    return dt_mul(t, y, all);
}

static dt_tensor *views(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    dt_tensor *y = dt_reshape(t, x[0], 3, (const int64_t[]){ B, 1, I });

    (void)arg;
    (void)n;
    y = dt_permute(t, y, (const int[]){ 2, 0, 1 });
    return dt_mul(t, y, y);
}

/* Lines along a whole axis and along one that ranks share. */
static dt_tensor *lines(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    (void)arg;
    (void)n;
    return dt_mul(t, dt_softmax(t, x[0], 1), dt_log_softmax(t, x[0], 0));
}

/* What each row of x [B, I] loses by target 0. */
static dt_token_losses tokens_of(dt_tape *t, dt_tensor *x)
{
    const dt_placement place[DT_MAX_DIMS] = { { 0 } };
    dt_token_losses tokens = { NULL, NULL, NULL };
    dt_tensor *targets;

    if (dt_zeros(dt_tensor_mesh(x), place, DT_I32, 1, (const int64_t[]){ B }, &targets) == DT_OK)
        dt_cross_entropy_tokens(t, x, dt_tape_own(t, targets), NULL, &tokens);
    return tokens;
}

/* A loss and a penalty of one's own on the log-sum-exp. */
static dt_tensor *penalised(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    const dt_token_losses tokens = tokens_of(t, x[0]);

    (void)arg;
    (void)n;
    return dt_add(t, tokens.losses, dt_mul(t, tokens.lse, tokens.lse));
}

static dt_tensor *lse_alone(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    (void)arg;
    (void)n;
    return tokens_of(t, x[0]).lse;
}

/* Scaled by 2 on the way back: a check that cannot see this sees nothing. */
static void doubled_backward(dt_tape *t, const dt_node *n, dt_tensor *const *dy, dt_tensor **dx)
{
    if (dt_node_attr(n) != NULL) (void)dt_tape_fail(t, DT_ERR_ARG, "attributes of a row without");
    dx[0] = dt_mul_scalar(t, dy[0], -2.0);
}

static dt_status negate(const dt_kargs *a)
{
    int64_t n = 1;

    for (int i = 0; i < a->in[0].n_axes; i++) n *= a->in[0].shape[i];
    for (int64_t i = 0; i < n; i++)
        ((float *)a->out[0].data)[i] = -((const float *)a->in[0].data)[i];
    return DT_OK;
}

static const dt_op doubled = { .name = "doubled",
                               .axes = "... -> ...",
                               .types = "f>f",
                               .cpu = negate,
                               .flags = DT_OP_ANY_ROWS,
                               .backward = doubled_backward };

static dt_tensor *wrong(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    (void)arg;
    (void)n;
    return dt_apply(t, &doubled, NULL, 1, x);
}

typedef struct expression {
    const char *name;
    dt_differentiable_fn fn;
    int n;
    int n_axes[MAX_OPERANDS];
    int64_t shape[MAX_OPERANDS][2];
    const char *places[6][MAX_OPERANDS]; /* on the last mesh dim */
    bool is_wrong;
} expression;

static const expression expressions[] = {
    { "mlp",
      mlp,
      2,
      { 2, 2 },
      { { B, I }, { I, J } },
      { { "R", "R" }, { "S(0)", "R" }, { "R", "S(1)" }, { "S(1)", "S(0)" }, { "R", "S(0)" } },
      false },
    { "linears",
      linears,
      4,
      { 2, 2, 2, 1 },
      { { B, I }, { J, I }, { I, J }, { I } },
      { { "R", "R", "R", "R" },
        { "S(0)", "R", "R", "R" },
        { "R", "S(0)", "S(1)", "R" },
        { "R", "S(1)", "S(0)", "S(0)" } },
      false },
    { "products",
      products,
      2,
      { 2, 2 },
      { { B, I }, { I, J } },
      { { "R", "R" }, { "S(0)", "R" } },
      false },
    { "broadcasts",
      broadcasts,
      3,
      { 2, 1, 2 },
      { { B, I }, { I }, { 1, I } },
      { { "R", "R", "R" }, { "S(0)", "R", "R" }, { "S(1)", "S(0)", "S(1)" }, { "S(1)", "R", "R" } },
      false },
    { "reductions",
      reductions,
      1,
      { 2 },
      { { B, I } },
      { { "R" }, { "S(0)" }, { "S(1)" } },
      false },
    { "views", views, 1, { 2 }, { { B, I } }, { { "R" }, { "S(0)" }, { "S(1)" } }, false },
    { "lines", lines, 1, { 2 }, { { B, I } }, { { "R" }, { "S(0)" }, { "S(1)" } }, false },
    { "penalised", penalised, 1, { 2 }, { { B, I } }, { { "R" }, { "S(0)" }, { "S(1)" } }, false },
    { "lse", lse_alone, 1, { 2 }, { { B, I } }, { { "R" }, { "S(0)" }, { "S(1)" } }, false },
    { "wrong", wrong, 1, { 2 }, { { B, I } }, { { "R" }, { "S(0)" } }, true },
};

static dt_status place_of(dt_mesh *mesh, int n_axes, const char *last, dt_placement *place)
{
    const int n = dt_mesh_n_dims(mesh);
    const dt_layout *layout;
    char text[64] = "";

    for (int m = 0; m + 1 < n; m++) strcat(text, "R");
    strcat(text, last);
    DT_TRY(dt_layout_parse(mesh, n_axes, text, &layout));
    for (int m = 0; m < n; m++) place[m] = dt_layout_placement(layout, m);
    return DT_OK;
}

static dt_status check(dt_mesh *mesh, const expression *e, const char *const *places)
{
    dt_tensor *x[MAX_OPERANDS] = { NULL };
    dt_gradient_check report;
    dt_status st = DT_OK;

    for (int i = 0; i < e->n; i++) {
        dt_placement place[DT_MAX_DIMS];
        DT_TRY_TO(done, st, place_of(mesh, e->n_axes[i], places[i], place));
        DT_TRY_TO(done, st,
                  dt_randn(mesh, place, DT_F32, e->n_axes[i], e->shape[i],
                           (dt_random){ 3, (uint64_t)i }, &x[i]));
    }
    DT_TRY_TO(done, st, dt_test_halves(mesh, e->fn, NULL, e->n, x));
    st = dt_check_gradient(mesh, e->fn, NULL, e->n, x, 0.02, &report);
    if (st != DT_OK) goto done;
    DT_EXPECT_TO(done, st, (report.worst < 2e-3) == !e->is_wrong,
                 "%s [%s %s]: operand %d: %.7g by differences, %.7g", e->name, places[0],
                 e->n > 1 ? places[1] : "", report.operand, report.expected, report.got);
done:
    for (int i = 0; i < e->n; i++) dt_tensor_release(&x[i]);
    return st;
}

static dt_status check_all(dt_mesh *mesh, const void *arg)
{
    const expression *e = arg;

    for (int p = 0; p < 6 && e->places[p][0] != NULL; p++) DT_TRY(check(mesh, e, e->places[p]));
    return DT_OK;
}

DT_TEST(gradients, expressions_agree_with_differences)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t e = 0; e < DT_COUNT(expressions); e++)
            dt_test_on_ranks(meshes[m], check_all, &expressions[e]);
}

/* --- dtypes ----------------------------------------------------------------------------------- */

/* A loss is f32 whatever its logits are, and so is what enters its backward. */
static dt_status loss_of_bf16(dt_mesh *mesh, const void *arg)
{
    const dt_placement place[DT_MAX_DIMS] = { { 0 } };
    const int64_t shape[] = { 2, 3 };
    DT_HELD(tensor) *logits = NULL, *targets = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    float got[6];

    (void)arg;
    DT_TRY(dt_zeros(mesh, place, DT_BF16, 2, shape, &logits));
    DT_TRY(dt_zeros(mesh, place, DT_I32, 1, shape, &targets));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_gradients_watch(g, logits));
    dt_tape_record(t, g);
    dt_backward(t, dt_cross_entropy(t, logits, targets, NULL), NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_tensor_read(dt_gradient(g, logits), got, sizeof got));
    for (int i = 0; i < 6; i++) {
        const double want = (1.0 / 3 - (i % 3 == 0)) / 2;
        DT_EXPECT(fabs((double)got[i] - want) < 2e-3, "element %d is %g, not %g", i, (double)got[i],
                  want);
    }
    return DT_OK;
}

DT_TEST(gradients, of_a_loss_enter_its_row_in_f32)
{
    dt_test_on_ranks("tp=2", loss_of_bf16, NULL);
}

/* --- who holds what --------------------------------------------------------------------------- */

static dt_tensor *square(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    (void)arg;
    (void)n;
    return dt_mul(t, x[0], x[0]);
}

/* A tensor of a collection is checked like any other, and stays the collection's; a record outlives
 * the collection that it was begun for. */
static dt_status held(dt_mesh *mesh, const void *arg)
{
    const dt_placement place[DT_MAX_DIMS] = { DT_SHARD(0) };
    DT_HELD(tensor) *w = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *loss;
    dt_gradient_check report;

    (void)arg;
    DT_TRY(dt_ones(mesh, place, DT_F32, 2, (const int64_t[]){ B, I }, &w));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_gradients_watch(g, w));
    DT_TRY(dt_check_gradient(mesh, square, NULL, 1, &w, 0.0, &report));
    DT_EXPECT(report.worst < 2e-3 && dt_gradients_at(g, 0) == w, "off by %g", report.worst);
    dt_tape_record(t, g);
    loss = dt_sum(t, square(t, NULL, 1, &w), DT_ALL_AXES);
    dt_gradients_release(&g);
    dt_backward(t, loss, NULL);
    DT_EXPECT(dt_tape_status(t) == DT_ERR_ARG, "the collection is gone");
    dt_tape_reset(t);
    return DT_OK;
}

DT_TEST(gradients, of_watched_tensors_are_checked_and_records_outlive_collections)
{
    dt_test_on_ranks("tp=2", held, NULL);
}

/* The log-sum-exp of attention has no gradient, and says so. */
static dt_status of_lse(dt_mesh *mesh, const void *arg)
{
    const dt_placement place[DT_MAX_DIMS] = { { 0 } };
    const int64_t shape[] = { 1, 3, 2, 4 };
    const dt_attention_options options = { .n_heads = 2, .n_kv_heads = 2, .scale = 0.5f };
    DT_HELD(tensor) *q = NULL, *positions = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *lse;

    (void)arg;
    DT_TRY(dt_ones(mesh, place, DT_F32, 4, shape, &q));
    DT_TRY(dt_arange(mesh, place, DT_I32, 2, shape, (dt_steps){ 0, 1 }, &positions));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_gradients_watch(g, q));
    dt_tape_record(t, g);
    (void)dt_attention_lse(t, q, q, q, positions, &options, &lse);
    dt_backward(t, dt_sum(t, lse, DT_ALL_AXES), NULL);
    DT_EXPECT(dt_tape_status(t) == DT_ERR_UNSUPPORTED &&
                  strstr(dt_last_error()->message, "log-sum-exp") != NULL,
              "%s", dt_last_error()->message);
    return DT_OK;
}

DT_TEST(gradients, of_attentions_log_sum_exp_are_refused)
{
    dt_test_on_ranks("tp=1", of_lse, NULL);
}
