/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear attention over ranks and in parts: heads and sequences may be cut, and a sequence read in
 * pieces, without another bit; what does not fit is refused. */
#include <dtensor.h>
#include <dtensor/gradients.h>
#include <math.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { B = 3, T = 7, H = 5, R = 2, D = 4, E = 6, C = 9, TAPS = 4 };
enum { Q, K, V, DECAY, BETA, STATE, X, WINDOW, W, N };

static const struct {
    int n_axes, batch, heads; /* its axes of sequences and of heads or channels; -1: none */
    int64_t shape[5];
} tensors[N] = {
    [Q] = { 4, 0, 2, { B, T, H, D } },    [K] = { 4, 0, 2, { B, T, H, D } },
    [V] = { 5, 0, 2, { B, T, H, R, E } }, [DECAY] = { 4, 0, 2, { B, T, H, R } },
    [BETA] = { 4, 0, 2, { B, T, H, R } }, [STATE] = { 5, 0, 1, { B, H, R, D, E } },
    [X] = { 3, 0, 2, { B, T, C } },       [WINDOW] = { 3, 0, 2, { B, TAPS - 1, C } },
    [W] = { 2, -1, 0, { C, TAPS } },
};

/* "tp" cuts heads, "dp" sequences, of those tensors whose bit is in `cut`; others are whole. */
static dt_status make(dt_mesh *mesh, int i, unsigned cut, dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS];
    float values[B * T * H * R * E];

    dt_test_random(values, B * T * H * R * E, (uint32_t)i + 1);
    for (int k = 0; k < B * T * H * R && (i == DECAY || i == BETA); k++)
        values[k] = (i == DECAY ? -1.0f : 1.0f) * fabsf(values[k]);
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        const bool dp = strcmp(dt_mesh_dim_name(mesh, m), "dp") == 0;
        const int axis = dp ? tensors[i].batch : tensors[i].heads;
        place[m] = axis >= 0 && (cut >> i & 1u) ? DT_SHARD(axis) : DT_REPLICATE;
    }
    return dt_distribute(mesh, place, DT_F32, tensors[i].n_axes, tensors[i].shape,
                         (dt_source){ values, DT_EQUAL_COPIES }, out);
}

/* Both operators of tokens first .. first + n - 1: results behind what is left of earlier ones. */
static void run(dt_tape *t, dt_tensor *const *in, int64_t first, int64_t n, dt_tensor *left[2],
                dt_tensor *y[2])
{
    dt_tensor *part[N];
    dt_delta rule;

    for (int i = 0; i < N; i++)
        part[i] = i == STATE || i == WINDOW || i == W ? in[i] : dt_slice(t, in[i], 1, first, n);
    rule = (dt_delta){ part[Q], part[K], part[V], part[DECAY], part[BETA], left[0] };
    y[0] = dt_gated_delta(t, &rule, &left[0]);
    y[1] = dt_causal_conv(t, part[X], part[W], left[1], &left[1]);
}

static dt_status same_bits(dt_tape *t, dt_tensor *a, dt_tensor *b, const char *what)
{
    DT_HELD(tensor) *x = NULL, *y = NULL;
    int64_t n = 1;

    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(a, &x));
    DT_TRY(dt_full_tensor(b, &y));
    for (int i = 0; i < dt_tensor_n_axes(x); i++) n *= dt_tensor_extent(x, i);
    DT_EXPECT(
        memcmp(dt_tensor_local(x)->data, dt_tensor_local(y)->data, (size_t)n * sizeof(float)) == 0,
        "%s: other bits", what);
    return DT_OK;
}

static dt_status cuts(dt_mesh *mesh, const void *arg)
{
    static const unsigned masks[] = { ~0u, 1u << Q, 1u << V | 1u << X, 1u << STATE | 1u << W,
                                      1u << DECAY | 1u << WINDOW };
    static const int pieces[] = { 1, 4, 2 };
    dt_tensor *in[N], *left[2], *y[2], *want_left[2], *want[2];
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
    for (int i = 0; i < N; i++) {
        DT_TRY(make(mesh, i, 0, &in[i]));
        in[i] = dt_tape_own(t, in[i]);
    }
    want_left[0] = in[STATE];
    want_left[1] = in[WINDOW];
    run(t, in, 0, T, want_left, want);
    for (size_t k = 0; k < DT_COUNT(masks); k++) {
        for (int i = 0; i < N; i++) {
            DT_TRY(make(mesh, i, masks[k], &in[i]));
            in[i] = dt_tape_own(t, in[i]);
        }
        left[0] = in[STATE];
        left[1] = in[WINDOW];
        for (int64_t p = 0, first = 0; p < 3; first += pieces[p++]) {
            run(t, in, first, pieces[p], left, y);
            for (int r = 0; r < 2; r++)
                DT_TRY(same_bits(t, y[r], dt_slice(t, want[r], 1, first, pieces[p]), "results"));
        }
        for (int r = 0; r < 2; r++) DT_TRY(same_bits(t, left[r], want_left[r], "what is left"));
    }
    return DT_OK;
}

DT_TEST(linear_attention, bits_stay_whatever_is_cut_and_wherever_a_sequence_is_parted)
{
    static const char *const meshes[] = {
        "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2", "dp=4,tp=1"
    };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], cuts, NULL);
}

/* --- gradients -------------------------------------------------------------------------------- */

static dt_status gradients(dt_mesh *mesh, const void *arg)
{
    static const unsigned masks[] = { 0u, ~0u, 1u << V | 1u << WINDOW, 1u << STATE | 1u << W };
    static const struct {
        const char *op;
        int n, in[6];
    } rows[] = { { "gated_delta", 6, { Q, K, V, DECAY, BETA, STATE } },
                 { "causal_conv", 3, { X, WINDOW, W } } };

    (void)arg;
    for (size_t k = 0; k < DT_COUNT(masks); k++)
        for (size_t r = 0; r < DT_COUNT(rows); r++) {
            dt_tensor *in[6] = { NULL };
            dt_gradient_check report;
            dt_status st = DT_OK;
            for (int i = 0; i < rows[r].n && st == DT_OK; i++)
                st = make(mesh, rows[r].in[i], masks[k], &in[i]);
            if (st == DT_OK)
                st = dt_op_check_gradient(mesh, dt_op_find(rows[r].op), NULL, rows[r].n, in, 0.0,
                                          &report);
            for (int i = 0; i < rows[r].n; i++) dt_tensor_release(&in[i]);
            DT_TRY(st);
            DT_EXPECT(report.worst < 3e-3, "%s: operand %d: %.7g by differences, %.7g", rows[r].op,
                      report.operand, report.expected, report.got);
        }
    return DT_OK;
}

DT_TEST(linear_attention, gradients_are_those_of_differences)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "dp=2,tp=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], gradients, NULL);
}

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *w = NULL, *q = NULL;
    dt_tensor *next = NULL;

    (void)arg;
    DT_TRY(make(mesh, X, 0, &x));
    DT_TRY(make(mesh, W, 0, &w));
    DT_TRY(make(mesh, Q, 0, &q));
    (void)dt_causal_conv(t, x, w, x, &next);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_SHAPE,
                     "a window of 7 tokens before a sum over 4; 3");
    DT_EXPECT(next == NULL, "a window after an error");
    dt_tape_reset(t);
    (void)dt_causal_conv(t, x, w, x, NULL);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "next is NULL");
    dt_tape_reset(t);
    (void)dt_gated_delta(t, &(dt_delta){ q, q, q, q, q, q }, &next);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_SHAPE, "gated_delta");
    return DT_OK;
}

DT_TEST(linear_attention, what_does_not_fit_is_refused)
{
    dt_test_on_ranks("tp=1", refused, NULL);
}
