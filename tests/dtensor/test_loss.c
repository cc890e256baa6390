/* SPDX-License-Identifier: Apache-2.0
 *
 * Cross entropy over vocabularies that ranks share, against float64: losses, gradients, what
 * travels, and the head that is taken in chunks. */
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <dtensor/ops_loss.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/device/device.h"
#include "dtensor/kernels/kernel.h"
#include "dtensor/tensor_internal.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { B = 2, T = 6, D = 5, MAX_V = 11, N = B * T };

/* What is asked for, and of which values. */
typedef struct loss_case {
    const char *mesh;
    int64_t vocabulary;
    dt_cross_entropy_options options;
    int token_dim; /* the mesh dim that cuts the batch; -1: none. The others cut the vocabulary */
    dt_dtype dtype;
    bool whole; /* no mesh dim cuts anything */
} loss_case;

static const loss_case cases[] = {
    { "tp=1", 11, { -100, 0.0, 0.0, DT_MEAN_OF_TOKENS, 0.0, 0 }, -1, DT_F32, false },
    { "tp=2", 11, { -100, 0.0, 0.0, DT_MEAN_OF_TOKENS, 0.0, 0 }, -1, DT_F32, false },
    { "tp=3", 11, { -100, 0.1, 0.0, DT_MEAN_OF_TOKENS, 0.0, 2 }, -1, DT_F32, false },
    { "tp=4", 11, { 3, 0.1, 0.01, DT_SUM_OF_TOKENS, 0.0, 1 }, -1, DT_F32, false },
    { "tp=4", 3, { -100, 0.2, 0.01, DT_MEAN_OF_TOKENS, 0.0, 4 }, -1, DT_F32, false },
    { "tp=4", 1, { -100, 0.0, 0.0, DT_MEAN_OF_TOKENS, 0.0, 0 }, -1, DT_F32, false },
    { "dp=2,tp=2", 11, { -100, 0.1, 0.01, DT_MEAN_OF_TOKENS, 0.0, 5 }, 0, DT_F32, false },
    { "dp=2,tp=2", 11, { -100, 0.0, 0.0, DT_MEAN_OF_TOKENS, 40.0, 3 }, 0, DT_F32, false },
    { "dp=2,tp=2", 11, { -1, 0.0, 0.01, DT_SUM_OF_TOKENS, 0.0, 6 }, 0, DT_F32, false },
    { "dp=2", 11, { -100, 0.0, 0.0, DT_MEAN_OF_TOKENS, 0.0, 2 }, 0, DT_F32, false },
    { "tp=3", 11, { -100, 0.1, 0.01, DT_MEAN_OF_TOKENS, 0.0, 4 }, -1, DT_F32, true },
    { "tp=2", 11, { -100, 0.1, 0.01, DT_MEAN_OF_TOKENS, 0.0, 2 }, -1, DT_BF16, false },
};

/* --- reference -------------------------------------------------------------------------------- */

typedef struct reference {
    double loss, dlogits[N][MAX_V], dx[N][D], dw[MAX_V][D];
} reference;

static int64_t ignored(const loss_case *c)
{
    return c->options.ignore_index;
}

/* Loss and gradients of logits [n, v]; the loss of one target, and of its logits, by the book. */
static void expect_loss(const loss_case *c, const double (*logits)[MAX_V], const int32_t *targets,
                        reference *r)
{
    const double s = c->options.label_smoothing, z = c->options.z_loss;
    const int64_t v = c->vocabulary;
    double n = 0.0;

    memset(r, 0, sizeof *r);
    for (int i = 0; i < N; i++) n += targets[i] != ignored(c);
    if (c->options.n_valid > 0.0) n = c->options.n_valid;
    if (c->options.reduction == DT_SUM_OF_TOKENS) n = 1.0;
    for (int i = 0; i < N; i++) {
        double sum = 0.0, mean = 0.0, lse;
        if (targets[i] == ignored(c)) continue;
        for (int k = 0; k < v; k++) {
            sum += exp(logits[i][k]);
            mean += logits[i][k] / (double)v;
        }
        lse = log(sum);
        r->loss +=
            ((1.0 - s) * (lse - logits[i][targets[i]]) + s * (lse - mean) + z * lse * lse) / n;
        for (int k = 0; k < v; k++)
            r->dlogits[i][k] = (exp(logits[i][k] - lse) * (1.0 + 2.0 * z * lse) -
                                (1.0 - s) * (k == targets[i]) - s / (double)v) /
                               n;
    }
}

/* The same of a head: logits are x w^T. */
static void expect_head(const loss_case *c, const float *x, const float *w, const int32_t *targets,
                        reference *r)
{
    double logits[N][MAX_V] = { { 0.0 } };

    for (int i = 0; i < N; i++)
        for (int k = 0; k < c->vocabulary; k++)
            for (int d = 0; d < D; d++) logits[i][k] += (double)x[i * D + d] * (double)w[k * D + d];
    expect_loss(c, (const double(*)[MAX_V])logits, targets, r);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < c->vocabulary; k++)
            for (int d = 0; d < D; d++) {
                r->dx[i][d] += r->dlogits[i][k] * (double)w[k * D + d];
                r->dw[k][d] += r->dlogits[i][k] * (double)x[i * D + d];
            }
}

/* --- the library's ---------------------------------------------------------------------------- */

static void make_values(const loss_case *c, float *logits, int64_t n, uint32_t seed)
{
    dt_test_random(logits, n, seed);
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = dti_f32_to_bf16(3.0f * logits[i]); /* exact in both dtypes */
        logits[i] = c->dtype == DT_BF16 ? dti_bf16_to_f32(half) : 3.0f * logits[i];
    }
}

static void make_targets(const loss_case *c, int32_t *targets)
{
    for (int i = 0; i < N; i++)
        targets[i] = i % 4 == 3 ? (int32_t)ignored(c) : (int32_t)(i * 7 % c->vocabulary);
}

/* A tensor of values that are whole everywhere, cut as the case says: `batch` and `vocabulary` are
 * axes of it, or -1. */
static dt_status cut_tensor(dt_tape *t, dt_mesh *mesh, const loss_case *c, dt_tensor *whole,
                            int batch, int vocabulary, dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS];

    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        const int axis = c->whole ? -1 : m == c->token_dim ? batch : vocabulary;
        place[m] = axis < 0 ? DT_REPLICATE : DT_SHARD(axis);
    }
    *out = dt_move(t, whole, place);
    return dt_tape_status(t);
}

/* Values, and which axes the mesh dims of batches and of vocabularies cut; -1: none. */
typedef struct operand {
    int n_axes;
    int64_t shape[3];
    const float *values;
    int batch, vocabulary;
} operand;

static dt_status on_tape(dt_tape *t, dt_mesh *mesh, const loss_case *c, operand o, dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { DT_REPLICATE };
    dt_tensor *x = NULL;

    DT_TRY(dt_distribute(mesh, whole, DT_F32, o.n_axes, o.shape,
                         (dt_source){ o.values, DT_EQUAL_COPIES }, &x));
    x = dt_cast(t, dt_tape_own(t, x), c->dtype);
    return cut_tensor(t, mesh, c, x, o.batch, o.vocabulary, out);
}

static dt_status targets_on_tape(dt_tape *t, dt_mesh *mesh, const loss_case *c,
                                 const int32_t *values, dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { DT_REPLICATE };
    const int64_t shape[] = { B, T };
    dt_tensor *x = NULL;

    DT_TRY(
        dt_distribute(mesh, whole, DT_I32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    return cut_tensor(t, mesh, c, dt_tape_own(t, x), 0, -1, out);
}

/* The largest distance of a tensor's whole value from `want`, whose rows are `stride` apart. */
static dt_status distance(dt_tensor *x, const double *want, int64_t columns, int64_t stride,
                          double *out)
{
    dt_tensor *full = NULL;
    const dt_local *local;

    DT_TRY(dt_full_tensor(x, &full));
    local = dt_tensor_local(full);
    *out = 0.0;
    for (int64_t i = 0; i < dti_local_count(local); i++)
        *out = fmax(*out, fabs((double)dti_load_f32(local->data, local->dtype, i) -
                               want[i / columns * stride + i % columns]));
    dt_tensor_release(&full);
    return DT_OK;
}

static int64_t calls_of(const dt_tape *t)
{
    int64_t n = 0;

    for (int kind = 0; kind < DT_N_COMM_KINDS; kind++)
        n += (int64_t)dt_tape_comm(t, (dt_comm_kind)kind).calls;
    return n;
}

/* How often it communicates: twice where the vocabulary is cut, once to count. */
static int64_t expected_calls(dt_mesh *mesh, const loss_case *c)
{
    const bool counts = c->options.reduction == DT_MEAN_OF_TOKENS && c->options.n_valid == 0.0;
    int64_t n = 0;

    for (int m = 0; m < dt_mesh_n_dims(mesh) && !c->whole; m++)
        if (dt_mesh_dim_size(mesh, m) > 1) n += m == c->token_dim ? counts : 2;
    return n;
}

static dt_status losses(dt_mesh *mesh, const void *arg)
{
    const loss_case *c = arg;
    const double close = c->dtype == DT_F32 ? 1e-6 : 2e-3;
    double logits[N][MAX_V];
    float values[N * MAX_V];
    int32_t targets[N];
    dt_tensor *x, *y, *ids, *dlosses, *dx;
    dt_token_losses tokens;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    reference r;
    double far, n = 0.0;
    int64_t before;

    make_values(c, values, N * c->vocabulary, 5);
    make_targets(c, targets);
    for (int i = 0; i < N; i++) {
        n += targets[i] != ignored(c);
        for (int k = 0; k < c->vocabulary; k++)
            logits[i][k] = (double)values[i * c->vocabulary + k];
    }
    if (c->options.n_valid > 0.0) n = c->options.n_valid;
    if (c->options.reduction == DT_SUM_OF_TOKENS) n = 1.0;
    expect_loss(c, (const double(*)[MAX_V])logits, targets, &r);
    DT_TRY(on_tape(t, mesh, c, (operand){ 3, { B, T, c->vocabulary }, values, 0, 2 }, &x));
    DT_TRY(targets_on_tape(t, mesh, c, targets, &ids));
    before = calls_of(t);
    y = dt_cross_entropy(t, x, ids, &c->options);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(calls_of(t) - before == expected_calls(mesh, c), "%lld calls, not %lld",
              (long long)(calls_of(t) - before), (long long)expected_calls(mesh, c));
    DT_TRY(distance(y, &r.loss, 1, 1, &far));
    DT_EXPECT(far <= 2e-6 * (1.0 + fabs(r.loss)), "the loss is off by %g", far);

    dt_cross_entropy_tokens(t, x, ids, &c->options, &tokens);
    dlosses = dt_mul_scalar(t, tokens.counted, 1.0 / n);
    before = calls_of(t);
    dx = dt_cross_entropy_backward(t, dlosses, x, ids, tokens.lse, &c->options);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(calls_of(t) == before, "the gradient communicates");
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        DT_EXPECT(dt_mesh_dim_size(mesh, m) == 1 || c->whole ||
                      dt_layout_placement(dt_tensor_layout(dx), m).kind == DT_PLACE_SHARD,
                  "it does not lie as logits do");
    DT_TRY(distance(dx, r.dlogits[0], c->vocabulary, MAX_V, &far));
    DT_EXPECT(far <= close, "the gradient is off by %g", far);
    dx = dt_mul_scalar(t, dx, 2.0);
    DT_TRY(distance(dx, r.dlogits[0], c->vocabulary, MAX_V, &far));
    DT_EXPECT(c->vocabulary == 1 || far > 10.0 * close, "twice it passes: %g", far);
    return DT_OK;
}

DT_TEST(loss, cross_entropy_matches_float64)
{
    for (size_t c = 0; c < DT_COUNT(cases); c++) dt_test_on_ranks(cases[c].mesh, losses, &cases[c]);
}

/* --- recorded --------------------------------------------------------------------------------- */

/* The slope of a loss is f32, whatever its logits are. */
static dt_status recorded(dt_mesh *mesh, const void *arg)
{
    const loss_case *c = arg;
    const double close = c->dtype == DT_F32 ? 1e-6 : 2e-3;
    double logits[N][MAX_V];
    float values[N * MAX_V];
    int32_t targets[N];
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *x, *ids;
    reference r;
    double far;

    make_values(c, values, N * c->vocabulary, 5);
    make_targets(c, targets);
    for (int i = 0; i < N * c->vocabulary; i++)
        logits[i / c->vocabulary][i % c->vocabulary] = (double)values[i];
    expect_loss(c, (const double(*)[MAX_V])logits, targets, &r);
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(on_tape(t, mesh, c, (operand){ 3, { B, T, c->vocabulary }, values, 0, 2 }, &x));
    DT_TRY(targets_on_tape(t, mesh, c, targets, &ids));
    DT_TRY(dt_gradients_watch(g, x));
    dt_tape_record(t, g);
    dt_backward(t, dt_cross_entropy(t, x, ids, &c->options), NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_gradients_settle(g, t));
    DT_TRY(distance(dt_gradient(g, x), r.dlogits[0], c->vocabulary, MAX_V, &far));
    DT_EXPECT(far <= close, "the gradient is off by %g", far);
    return DT_OK;
}

DT_TEST(loss, a_recorded_cross_entropy_matches_float64)
{
    for (size_t c = 0; c < DT_COUNT(cases); c++)
        dt_test_on_ranks(cases[c].mesh, recorded, &cases[c]);
}

/* --- in chunks -------------------------------------------------------------------------------- */

static dt_status chunks(dt_mesh *mesh, const void *arg)
{
    const loss_case *c = arg;
    const double close = c->dtype == DT_F32 ? 2e-6 : 2e-2;
    float x_values[N * D], w_values[MAX_V * D];
    int32_t targets[N];
    dt_tensor *x, *w, *ids, *y, *dx, *dw, *alone;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    reference r;
    double far;

    make_values(c, x_values, N * D, 6);
    make_values(c, w_values, c->vocabulary * D, 7);
    for (int i = 0; i < MAX_V * D && i < c->vocabulary * D; i++) w_values[i] *= 0.25f;
    make_targets(c, targets);
    expect_head(c, x_values, w_values, targets, &r);
    DT_TRY(on_tape(t, mesh, c, (operand){ 3, { B, T, D }, x_values, 0, -1 }, &x));
    DT_TRY(on_tape(t, mesh, c, (operand){ 2, { c->vocabulary, D }, w_values, -1, 0 }, &w));
    DT_TRY(targets_on_tape(t, mesh, c, targets, &ids));
    y = dt_cross_entropy_chunked(t, x, w, ids, &c->options, &dx, &dw);
    alone = dt_cross_entropy_chunked(t, x, w, ids, &c->options, NULL, NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(distance(y, &r.loss, 1, 1, &far));
    DT_EXPECT(far <= close * (1.0 + fabs(r.loss)), "the loss is off by %g", far);
    DT_EXPECT(dt_tensor_dtype(dw) == DT_F32, "dw is f32");
    DT_TRY(distance(dx, r.dx[0], D, D, &far));
    DT_EXPECT(far <= close, "dx is off by %g", far);
    DT_TRY(distance(dw, r.dw[0], D, D, &far));
    DT_EXPECT(far <= 4.0 * close, "dw is off by %g", far);
    DT_TRY(dt_test_expect_same(y, alone, "the loss without gradients"));
    return DT_OK;
}

DT_TEST(loss, a_head_in_chunks_matches_float64)
{
    for (size_t c = 0; c < DT_COUNT(cases); c++) dt_test_on_ranks(cases[c].mesh, chunks, &cases[c]);
}

/* --- memory ----------------------------------------------------------------------------------- */

enum { LONG = 512, WIDE = 2048 };

static dt_status peak_of_chunks(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 1, LONG, D }, w_shape[] = { WIDE, D }, ids_shape[] = { 1, LONG };
    const dt_placement whole[] = { DT_REPLICATE };
    const size_t all = (size_t)LONG * WIDE * sizeof(float), dw_bytes = (size_t)WIDE * D * 4;
    DT_HELD(tensor) *x = NULL, *w = NULL, *ids = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *dx, *dw, *logits;
    dt_token_losses tokens;
    const dti_memory *m;
    size_t before, after;

    (void)arg;
    DT_TRY(dt_zeros(mesh, whole, DT_F32, 3, shape, &x));
    DT_TRY(dt_zeros(mesh, whole, DT_F32, 2, w_shape, &w));
    DT_TRY(dt_zeros(mesh, whole, DT_I32, 2, ids_shape, &ids));
    m = x->device->memory;
    before = dti_memory_used(m);
    (void)dt_cross_entropy_chunked(t, x, w, ids, NULL, &dx, &dw);
    DT_TRY(dt_tape_status(t));
    after = dti_memory_peak(m) - before;
    DT_EXPECT(after < 2 * (all / 8) + 4 * dw_bytes + (128 << 10),
              "%zu bytes at most; a chunk of logits has %zu", after, all / 8);
    dt_tape_reset(t);
    logits = dt_linear(t, x, w, NULL); /* the check sees what is not in chunks */
    dt_cross_entropy_tokens(t, logits, ids, NULL, &tokens);
    (void)dt_cross_entropy_backward(t, tokens.counted, logits, ids, tokens.lse, NULL);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dti_memory_peak(m) - before >= 2 * all, "whole logits take more");
    return DT_OK;
}

DT_TEST(loss, chunks_hold_two_chunks_of_logits_at_most)
{
    dt_test_on_ranks("tp=1", peak_of_chunks, NULL);
}

/* --- misuse ----------------------------------------------------------------------------------- */

static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    static const struct {
        dt_cross_entropy_options options;
        int32_t target;
    } bad[] = {
        { { -100, 1.0, 0.0, DT_MEAN_OF_TOKENS, 0.0, 0 }, 0 },
        { { -100, 0.0, -1.0, DT_MEAN_OF_TOKENS, 0.0, 0 }, 0 },
        { { -100, 0.0, 0.0, DT_MEAN_OF_TOKENS, -1.0, 0 }, 0 },
        { { -100, 0.0, 0.0, DT_MEAN_OF_TOKENS, 0.0, -1 }, 0 },
        { { -100, 0.0, 0.0, DT_MEAN_OF_TOKENS, 0.0, 0 }, 11 },
        { { -100, 0.0, 0.0, DT_MEAN_OF_TOKENS, 0.0, 0 }, -1 },
    };
    const loss_case c = { .vocabulary = 11, .token_dim = -1, .whole = true };
    float values[N * 11] = { 0.0f };
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(bad); i++) {
        int32_t targets[N] = { 0 };
        dt_tensor *x, *ids;
        targets[7] = bad[i].target;
        dt_tape_reset(t);
        DT_TRY(on_tape(t, mesh, &c, (operand){ 3, { B, T, 11 }, values, 0, 2 }, &x));
        DT_TRY(targets_on_tape(t, mesh, &c, targets, &ids));
        DT_EXPECT(dt_cross_entropy(t, x, ids, &bad[i].options) == NULL, "a result");
        DT_EXPECT(dt_tape_status(t) == DT_ERR_ARG, "case %d is taken", (int)i);
    }
    return DT_OK;
}

DT_TEST(loss, options_and_targets_out_of_range_are_refused)
{
    dt_test_on_ranks("tp=1", refusals, NULL);
}
