/* SPDX-License-Identifier: Apache-2.0
 *
 * One driver for every row that has a backward: under whatever placements the row accepts, its
 * gradients are those of differences, and a pass in two halves gives them as a whole one does. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <dtensor/ops_backward.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"
#include "tests/support/dt_test.h"
#include "tests/support/halves.h"
#include "tests/support/row_cases.h"
#include "tests/support/tensors.h"

#define TOLERANCE 3e-3

enum { MAX_CHOICES = 64, MAX_PAIRS = 16 };

/* For each operand of a call: 0 whole, 1 .. n cut along an axis. */
typedef struct choice {
    int digit[DT_OP_MAX_IN];
} choice;

/* --- one call --------------------------------------------------------------------------------- */

/* A row's first result as a function of some of its operands. */
typedef struct row_call {
    const row_case *c;
    dt_tensor *const *in;
    int n;
    const int *varied; /* which x[] are */
} row_call;

static dt_tensor *first_result(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    const row_call *call = arg;
    dt_tensor *in[DT_OP_MAX_IN], *out[DT_OP_MAX_OUT];

    memcpy(in, call->in, (size_t)call->n * sizeof *in);
    for (int i = 0; i < n; i++) in[call->varied[i]] = x[i];
    dt_apply_n(t, call->c->op, call->c->attr, call->n, in, row_case_results(call->c), out);
    return out[0];
}

static bool is_trained_attention(const dt_op *op)
{
    return strncmp(op->name, "attention_lse", 13) == 0;
}

/* Of rope the table is a constant; of attention nobody has a gradient of the log-sum-exp alone. */
static dt_status check_row(dt_mesh *mesh, const row_case *c, int n, dt_tensor *const *in,
                           dt_gradient_check *report)
{
    int varied[DT_OP_MAX_IN], n_varied = 0;
    dt_tensor *x[DT_OP_MAX_IN];

    for (int i = 0; i < n && (c->op != &dti_op_rope || i == 0); i++)
        if (!row_case_is_ints(c, i)) {
            x[n_varied] = in[i];
            varied[n_varied++] = i;
        }
    DT_TRY(dt_test_halves(mesh, first_result, &(row_call){ c, in, n, varied }, n_varied, x));
    if (c->op != &dti_op_rope && !is_trained_attention(c->op))
        return dt_op_check_gradient(mesh, c->op, c->attr, n, in, 0.0, report);
    return dt_check_gradient(mesh, first_result, &(row_call){ c, in, n, varied }, n_varied, x, 0.0,
                             report);
}

/* --- its placements --------------------------------------------------------------------------- */

static dt_placement place_of(int digit)
{
    return digit == 0 ? DT_REPLICATE : DT_SHARD(digit - 1);
}

/* Operands that lie on mesh dim m as at[m] says. */
static dt_status make(dt_mesh *mesh, const row_case *c, const choice *const *at, int n,
                      dt_tensor **in)
{
    for (int i = 0; i < n; i++) {
        dt_placement place[DT_MAX_DIMS];
        for (int m = 0; m < dt_mesh_n_dims(mesh); m++) place[m] = place_of(at[m]->digit[i]);
        DT_TRY(row_case_operand(mesh, c, i, place, &in[i]));
    }
    return DT_OK;
}

/* How they lie, for messages. */
static const char *words(const choice *const *at, int n_dims, int n, char text[96])
{
    size_t end = 0;

    for (int i = 0; i < n; i++)
        for (int m = 0; m < n_dims && end < 90; m++)
            end +=
                (size_t)snprintf(text + end, 96 - end, "%s%d", m == 0 ? " " : ".", at[m]->digit[i]);
    return text;
}

/* *accepted: whether the row takes operands that lie so. If it does its gradients are checked. */
static dt_status try(dt_mesh *mesh, const row_case *c, const choice *const *at, bool *accepted,
                     dt_gradient_check *report)
{
    dt_tensor *in[DT_OP_MAX_IN] = { NULL }, *out[DT_OP_MAX_OUT];
    const int n = row_case_operands(c);
    dt_tape *t = NULL;
    char text[96];
    dt_status st = DT_OK;

    *report = (dt_gradient_check){ 0.0, -1, 0.0, 0.0 };
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, make(mesh, c, at, n, in));
    dt_apply_n(t, c->op, c->attr, n, in, row_case_results(c), out);
    *accepted = dt_tape_status(t) == DT_OK;
    dt_tape_release(&t);
    if (!*accepted) goto done;
    st = check_row(mesh, c, n, in, report);
    DT_EXPECT_TO(done, st, st == DT_OK, "%s%s: %s", c->op->name,
                 words(at, dt_mesh_n_dims(mesh), n, text), dt_last_error()->message);
done:
    for (int i = 0; i < n; i++) dt_tensor_release(&in[i]);
    dt_tape_release(&t);
    return st;
}

static dt_status check(dt_mesh *mesh, const row_case *c, const choice *const *at, bool *accepted)
{
    dt_gradient_check report;
    char text[96];

    DT_TRY(try(mesh, c, at, accepted, &report));
    DT_EXPECT(report.worst < TOLERANCE, "%s%s: operand %d: %.7g by differences, %.7g", c->op->name,
              words(at, dt_mesh_n_dims(mesh), row_case_operands(c), text), report.operand,
              report.expected, report.got);
    return DT_OK;
}

static bool next(const row_case *c, choice *x)
{
    for (int i = 0; i < row_case_operands(c); i++) {
        if (++x->digit[i] <= row_case_axes(c->shape[i])) return true;
        x->digit[i] = 0;
    }
    return false;
}

/* Every choice on the first mesh dim; on two dims pairs of those that it takes. */
static dt_status every_choice(dt_mesh *mesh, const void *arg)
{
    static const choice whole = { { 0 } };
    const row_case *c = arg;
    choice taken[MAX_CHOICES], x = whole;
    const choice *at[DT_MAX_DIMS] = { &x, &whole };
    int n = 0, step;

    do {
        bool accepted;
        DT_TRY(check(mesh, c, at, &accepted));
        if (accepted && n < MAX_CHOICES) taken[n++] = x;
    } while (next(c, &x));
    DT_EXPECT(n > 0, "%s takes nothing", c->op->name);
    step = n * n / MAX_PAIRS + 1;
    for (int k = 0; k < n * n && dt_mesh_n_dims(mesh) == 2; k += step) {
        bool accepted;
        at[0] = &taken[k / n];
        at[1] = &taken[k % n];
        DT_TRY(check(mesh, c, at, &accepted));
    }
    return DT_OK;
}

/* --- every row -------------------------------------------------------------------------------- */

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };

static void sweep(size_t first, size_t step)
{
    for (size_t k = first; k < (size_t)n_row_cases; k += step) {
        row_case c = row_cases[k];
        if (c.op->backward == NULL || c.op == &dti_op_cross_entropy) continue;
        if (c.op == &dti_op_cast) c.attr[0] = DT_F32; /* a narrower one is no smooth function */
        for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], every_choice, &c);
    }
}

/* In parts that run at the same time. */
DT_TEST(row_gradients, agree_with_differences_0)
{
    sweep(0, 3);
}

DT_TEST(row_gradients, agree_with_differences_1)
{
    sweep(1, 3);
}

DT_TEST(row_gradients, agree_with_differences_2)
{
    sweep(2, 3);
}

/* clang-format off */
static const int32_t counts[] = { 0, 1, 2, 0, 1, 2 }, documents[] = { 0, 0, 1, 0, 1, 1 };
#define Q         { 2, 3, 4, 2 }, { 2, 3, 2, 2 }, { 2, 3, 2, 2 }, { 2, 3 }
#define ATTR(f)   { 4, 2, 0, 0x3f000000, f }
#define BIAS      { 2, 4, 1, 3 }
static const row_case attentions[] = {
    { .op = &dti_op_attention_lse, .shape = { Q }, .attr = ATTR(0) },
    { .op = &dti_op_attention_lse_bias, .shape = { Q, BIAS }, .attr = ATTR(1 | 32) },
    { .op = &dti_op_attention_lse_sinks, .shape = { Q, { 4 } }, .attr = ATTR(2) },
    { .op = &dti_op_attention_lse_bias_sinks, .shape = { Q, BIAS, { 4 } }, .attr = ATTR(3 | 32) },
    { .op = &dti_op_attention_lse_segments, .shape = { Q, { 2, 3 } }, .attr = ATTR(64),
      .ids = { [4] = documents } },
    { .op = &dti_op_attention_lse_bias_segments, .shape = { Q, BIAS, { 2, 3 } }, .attr = ATTR(65 | 32),
      .ids = { [5] = documents } },
    { .op = &dti_op_attention_lse_sinks_segments, .shape = { Q, { 4 }, { 2, 3 } }, .attr = ATTR(66),
      .ids = { [5] = documents } },
    { .op = &dti_op_attention_lse_bias_sinks_segments, .shape = { Q, BIAS, { 4 }, { 2, 3 } },
      .attr = ATTR(67 | 32), .ids = { [6] = documents } },
};
/* clang-format on */

/* Whole, cut by batches, and by heads, on each mesh dim. */
static dt_status attention_choices(dt_mesh *mesh, const void *arg)
{
    const row_case *c = arg;
    const choice *at[DT_MAX_DIMS];
    choice cuts[3] = { { { 0 } }, { { 1, 1, 1, 1 } }, { { 3, 3, 3, 0 } } };
    int n = 0;

    for (int i = 4; i < row_case_operands(c); i++) {
        const int axes = row_case_axes(c->shape[i]);
        cuts[1].digit[i] = axes > 1;                          /* a bias, segments */
        cuts[2].digit[i] = axes == 1 ? 1 : axes == 4 ? 2 : 0; /* sinks, a bias */
    }
    for (int k = 0; k < 9; k++) {
        bool accepted;
        at[0] = &cuts[k % 3];
        at[1] = &cuts[k / 3];
        if (dt_mesh_n_dims(mesh) == 1 && k >= 3) break;
        DT_TRY(check(mesh, c, at, &accepted));
        n += accepted;
    }
    DT_EXPECT(n >= (dt_mesh_dim_size(mesh, 0) == 2 ? 3 : 1), "%s took %d layouts", c->op->name, n);
    return DT_OK;
}

DT_TEST(row_gradients, of_attention_agree_with_differences)
{
    for (size_t k = 0; k < DT_COUNT(attentions); k++) {
        row_case c = attentions[k];
        c.ids[3] = counts;
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            dt_test_on_ranks(meshes[m], attention_choices, &c);
    }
}

/* Cross entropy has a gradient of what goes into its two rows together: test_loss.c. The gated
 * delta rule can be cut in too many ways: test_linear_attention.c. Clamped experts have a test of
 * their own, below. */
DT_TEST(row_gradients, every_row_is_checked)
{
    for (int i = 0; i < dti_op_table_size; i++) {
        const dt_op *op = dti_op_table[i];
        bool found = op->backward == NULL || op == &dti_op_cross_entropy ||
                     op == &dti_op_gated_delta || op == &dti_op_experts_clamped;
        for (int k = 0; k < n_row_cases; k++) found = found || row_cases[k].op == op;
        for (size_t k = 0; k < DT_COUNT(attentions); k++) found = found || attentions[k].op == op;
        if (!found) dt_test_fail(__FILE__, __LINE__, "%s: nobody checks its backward", op->name);
    }
}

/* --- what is wrong is seen -------------------------------------------------------------------- */

static dt_status add_rows(const dt_kargs *a)
{
    const dt_local *x = &a->in[0];
    float *y = a->out[0].data;

    memset(y, 0, (size_t)x->shape[1] * sizeof *y);
    for (int64_t i = 0; i < x->shape[0] * x->shape[1]; i++)
        y[i % x->shape[1]] += ((const float *)x->data)[i];
    return DT_OK;
}

static dt_status add_bias(const dt_kargs *a)
{
    const dt_local *x = &a->in[0];

    for (int64_t i = 0; i < x->shape[0] * x->shape[1]; i++)
        ((float *)a->out[0].data)[i] =
            ((const float *)x->data)[i] + ((const float *)a->in[1].data)[i % x->shape[1]];
    return DT_OK;
}

/* Says that each rank's sum is the whole one. */
static const char *const unreduced_lines[] = { "S(0) -> R", NULL };
static const dt_op unreduced = { .name = "unreduced",
                                 .axes = "ab -> b",
                                 .types = "f>f",
                                 .cpu = add_rows,
                                 .accepts = unreduced_lines };

static void without_a_reduction(dt_tape *t, const dt_node *n, dt_tensor *const *dy, dt_tensor **dx)
{
    dx[0] = dy[0];
    if (dt_node_wants(n, 1)) dx[1] = dt_apply(t, &unreduced, NULL, 1, dy);
}

static void twice(dt_tape *t, const dt_node *n, dt_tensor *const *dy, dt_tensor **dx)
{
    dx[0] = dy[0];
    if (dt_node_wants(n, 1)) dx[1] = dt_mul_scalar(t, dt_sum(t, dy[0], 0), 2.0);
}

static void right(dt_tape *t, const dt_node *n, dt_tensor *const *dy, dt_tensor **dx)
{
    dx[0] = dy[0];
    if (dt_node_wants(n, 1)) dx[1] = dt_sum(t, dy[0], 0);
}

static void no_number(dt_tape *t, const dt_node *n, dt_tensor *const *dy, dt_tensor **dx)
{
    dx[0] = dy[0];
    if (dt_node_wants(n, 1)) dx[1] = dt_mul_scalar(t, dt_sum(t, dy[0], 0), (double)NAN);
}

static void infinite(dt_tape *t, const dt_node *n, dt_tensor *const *dy, dt_tensor **dx)
{
    dx[0] = dt_mul_scalar(t, dy[0], (double)INFINITY);
    if (dt_node_wants(n, 1)) dx[1] = dt_sum(t, dy[0], 0);
}

#define OWN(f)                                                                                     \
    {                                                                                              \
        .name = "own_bias", .axes = "ab, b -> ab", .types = "ff>f", .cpu = add_bias, .backward = f \
    }
static const dt_op own_rows[] = { OWN(right), OWN(without_a_reduction), OWN(twice), OWN(no_number),
                                  OWN(infinite) };

/* Which of them the driver sees as wrong, on one rank and where rows are cut. */
static dt_status see(dt_mesh *mesh, const void *arg)
{
    static const choice cut = { { 1, 0 } };
    const choice *at[] = { &cut };
    const bool many = dt_mesh_n_ranks(mesh) > 1;

    (void)arg;
    for (int k = 0; k < (int)DT_COUNT(own_rows); k++) {
        const row_case c = { .op = &own_rows[k], .shape = { { 6, 5 }, { 5 } } };
        const bool wrong = k >= 2 || (k == 1 && many);
        dt_gradient_check report;
        bool accepted;
        DT_TRY(try(mesh, &c, at, &accepted, &report));
        DT_EXPECT(accepted, "taken");
        DT_EXPECT((report.worst < TOLERANCE) == !wrong && (!wrong || report.worst > 0.2),
                  "row %d is off by %g on %d ranks", k, report.worst, dt_mesh_n_ranks(mesh));
    }
    return DT_OK;
}

DT_TEST(row_gradients, a_factor_and_a_lost_reduction_are_seen)
{
    dt_test_on_ranks("tp=1", see, NULL);
    dt_test_on_ranks("tp=2", see, NULL);
    dt_test_on_ranks("tp=3", see, NULL);
}

/* --- layouts that digits do not name ---------------------------------------------------------- */

/* Parts of each expert, gate and up each on its own; tokens on another mesh dim. */
static dt_status parts_of_experts(dt_mesh *mesh, const void *arg)
{
    static const int64_t blocks[] = { 3, 3 };
    const row_case c = { .op = &dti_op_experts,
                         .shape = { { 4, 4 }, { 4, 2 }, { 4, 2 }, { 7, 6, 4 }, { 7, 4, 3 } },
                         .attr = { 7 },
                         .modulo = 7 };
    const int last = dt_mesh_n_dims(mesh) - 1;
    dt_tensor *in[5] = { NULL };
    dt_gradient_check report;
    dt_status st = DT_OK;

    (void)arg;
    for (int i = 0; i < 5; i++) {
        dt_placement place[DT_MAX_DIMS] = { { 0 } };
        if (last > 0 && i < 3) place[0] = DT_SHARD(0);
        if (i == 3) {
            place[last] = DT_SHARD(1);
            place[last].blocks = blocks;
            place[last].n_blocks = 2;
        }
        if (i == 4) place[last] = DT_SHARD(2);
        DT_TRY_TO(done, st, row_case_operand(mesh, &c, i, place, &in[i]));
    }
    DT_TRY_TO(done, st, dt_op_check_gradient(mesh, c.op, c.attr, 5, in, 0.0, &report));
    DT_EXPECT_TO(done, st, report.worst < TOLERANCE, "operand %d: %.7g by differences, %.7g",
                 report.operand, report.expected, report.got);
done:
    for (int i = 0; i < 5; i++) dt_tensor_release(&in[i]);
    return st;
}

DT_TEST(row_gradients, of_parts_of_every_expert_agree_with_differences)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        dt_test_on_ranks(meshes[m], parts_of_experts, NULL);
}

/* With limits that some gates and ups are beyond: whole experts, or parts of each, in pairs of
 * rows, where down's biases are whole. *arg: which. */
static dt_status clamped_experts(dt_mesh *mesh, const void *arg)
{
    const row_case c = {
        .op = &dti_op_experts_clamped,
        .shape = { { 4, 4 }, { 4, 2 }, { 4, 2 }, { 7, 6, 4 }, { 7, 4, 3 }, { 7, 6 }, { 7, 4 } },
        .attr = { 7, (uint64_t)0x3fd9db23 << 32 | 0x3e99999a }, /* 0.3, 1.702 */
        .modulo = 7
    };
    const int last = dt_mesh_n_dims(mesh) - 1;
    const bool whole = *(const bool *)arg;
    dt_tensor *in[7] = { NULL };
    dt_gradient_check report;
    dt_status st = DT_OK;

    for (int i = 0; i < 7; i++) {
        dt_placement place[DT_MAX_DIMS] = { { 0 } };
        if (last > 0 && i < 3) place[0] = DT_SHARD(0);
        if (i >= 3 && whole) place[last] = DT_SHARD(0);
        if ((i == 3 || i == 5) && !whole) {
            place[last] = DT_SHARD(1);
            place[last].unit = 2;
        }
        if (i == 4 && !whole) place[last] = DT_SHARD(2);
        DT_TRY_TO(done, st, row_case_operand(mesh, &c, i, place, &in[i]));
    }
    DT_TRY_TO(done, st, dt_op_check_gradient(mesh, c.op, c.attr, 7, in, 0.0, &report));
    DT_EXPECT_TO(done, st, report.worst < TOLERANCE, "operand %d: %.7g by differences, %.7g",
                 report.operand, report.expected, report.got);
done:
    for (int i = 0; i < 7; i++) dt_tensor_release(&in[i]);
    return st;
}

DT_TEST(row_gradients, of_clamped_experts_agree_with_differences)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        dt_test_on_ranks(meshes[m], clamped_experts, &(bool){ true });
        dt_test_on_ranks(meshes[m], clamped_experts, &(bool){ false });
    }
}

/* --- ties, caches ----------------------------------------------------------------------------- */

/* Equal elements share evenly, on however many ranks they are. */
static dt_status ties(dt_mesh *mesh, const void *arg)
{
    static const float values[] = { 1, 5, 5, 2, 5, 0, /* three */
                                    3, 3, 3, 3, 3, 3, /* all */
                                    7, 1, 1, 1, 1, 1 };
    static const int64_t shape[] = { 3, 6 };
    DT_HELD(tensor) *x = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = NULL;
    DT_HELD(tensor) *dx = NULL;
    dt_tensor *y;

    for (int k = 0; k < 4; k++) { /* also through what is computed of it */
        const int low = k % 2, square = k / 2;
        float v[18];
        const dt_placement place = *(const dt_placement *)arg;
        for (int i = 0; i < 18; i++) v[i] = low == 1 ? -values[i] : values[i];
        DT_TRY(
            dt_distribute(mesh, &place, DT_F32, 2, shape, (dt_source){ v, DT_EQUAL_COPIES }, &x));
        DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
        DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
        DT_TRY(dt_gradients_watch(g, x));
        dt_tape_record(t, g);
        y = low == 1 ? dt_min(t, x, 1) : dt_max(t, x, 1);
        if (square) y = dt_test_reduced(t, y);
        if (square) /* of which y is the slope */
            dt_backward(t, dt_mul_scalar(t, dt_sum(t, dt_mul(t, y, y), 0), 0.5), NULL);
        else
            dt_backward(t, y, &(dt_backward_options){ .seed = y });
        DT_TRY(dt_tape_status(t));
        DT_TRY(dt_gradients_settle(g, t));
        DT_TRY(dt_full_tensor(dt_gradient(g, x), &dx));
        for (int i = 0; i < 18; i++) {
            const float top = i < 6 ? 5 : i < 12 ? 3 : 7, n = i < 6 ? 3 : i < 12 ? 6 : 1;
            const float want = values[i] == top ? (low == 1 ? -top : top) / n : 0;
            DT_EXPECT(((const float *)dt_tensor_local(dx)->data)[i] == want,
                      "element %d is %g, not %g", i,
                      (double)((const float *)dt_tensor_local(dx)->data)[i], (double)want);
        }
        dt_tensor_release(&dx);
        dt_tape_release(&t);
        dt_gradients_release(&g);
        dt_tensor_release(&x);
    }
    return DT_OK;
}

DT_TEST(row_gradients, of_extremes_are_shared_by_equals)
{
    const dt_placement places[] = { DT_REPLICATE, DT_SHARD(0), DT_SHARD(1) };

    for (size_t p = 0; p < DT_COUNT(places); p++) {
        dt_test_on_ranks("tp=1", ties, &places[p]);
        dt_test_on_ranks("tp=2", ties, &places[p]);
        dt_test_on_ranks("tp=4", ties, &places[p]);
    }
}

static dt_status write_cache(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 1, 2, 1, 2 };
    const dt_placement whole = DT_REPLICATE;
    const int32_t at[] = { 0, 1 };
    dt_tensor *k = NULL, *positions = NULL, *cache = NULL, *y;
    dt_gradients *g = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY_TO(done, st, dt_randn(mesh, &whole, DT_F32, 4, shape, (dt_random){ 1, 1 }, &k));
    DT_TRY_TO(done, st, dt_zeros_like(k, &cache));
    DT_TRY_TO(done, st,
              dt_distribute(mesh, &whole, DT_I32, 2, shape, (dt_source){ at, DT_EQUAL_COPIES },
                            &positions));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY_TO(done, st, dt_gradients_watch(g, k));
    dt_tape_record(t, g);
    y = dt_kv_write(t, dt_mul_scalar(t, k, 2.0), positions, cache);
    dt_backward(t, dt_sum(t, y, DT_ALL_AXES), NULL);
    st = dt_test_expect_status(
        __func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_UNSUPPORTED,
        "kv_write has no backward, and a gradient has reached it; it writes into "
        "a tensor that others read: train without caches");
done:
    dt_tape_release(&t);
    dt_gradients_release(&g);
    dt_tensor_release(&cache);
    dt_tensor_release(&positions);
    dt_tensor_release(&k);
    return st;
}

DT_TEST(row_gradients, of_caches_are_refused_with_a_remedy)
{
    dt_test_on_ranks("tp=2", write_cache, NULL);
}
