/* SPDX-License-Identifier: Apache-2.0
 *
 * The record and its way back: what it costs, sums over passes, parts that run again, constants,
 * and what is refused. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { B = 3, I = 5, J = 7 };

static dt_status negate(const dt_kargs *a)
{
    int64_t n = 1;

    for (int i = 0; i < a->in[0].n_axes; i++) n *= a->in[0].shape[i];
    for (int64_t i = 0; i < n; i++)
        ((float *)a->out[0].data)[i] = -((const float *)a->in[0].data)[i];
    return DT_OK;
}

/* --- one scene for what follows --------------------------------------------------------------- */

/* x [B, I] whole, w [I, J] cut by columns, v [J, I] cut by rows: y = sum over ranks of (x w) v. */
typedef struct scene {
    dt_tape *t;
    dt_gradients *g;
    dt_tensor *x, *w, *v;
    dt_tensor *loss; /* of the last forward() */
} scene;

static dt_status open_scene(dt_mesh *mesh, scene *s)
{
    const int64_t x[] = { B, I }, w[] = { I, J }, v[] = { J, I };
    const dt_placement whole_ = DT_REPLICATE, columns = DT_SHARD(1), rows = DT_SHARD(0);
    dt_status st = DT_OK;

    *s = (scene){ 0 };
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &s->t));
    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &s->g));
    DT_TRY_TO(done, st, dt_randn(mesh, &whole_, DT_F32, 2, x, (dt_random){ 1, 1 }, &s->x));
    DT_TRY_TO(done, st, dt_randn(mesh, &columns, DT_F32, 2, w, (dt_random){ 1, 2 }, &s->w));
    DT_TRY_TO(done, st, dt_randn(mesh, &rows, DT_F32, 2, v, (dt_random){ 1, 3 }, &s->v));
    DT_TRY_TO(done, st, dt_gradients_watch(s->g, s->x));
    DT_TRY_TO(done, st, dt_gradients_watch(s->g, s->w));
    DT_TRY_TO(done, st, dt_gradients_watch(s->g, s->v));
done:
    return st;
}

static dt_status close_scene(scene *s, dt_status st)
{
    dt_tape_release(&s->t);
    dt_gradients_release(&s->g);
    dt_tensor_release(&s->x);
    dt_tensor_release(&s->w);
    dt_tensor_release(&s->v);
    return st;
}

/* Three readers of x, as queries, keys and values are, then a product over what is cut. */
static dt_tensor *block(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    const scene *s = arg;
    dt_tensor *a = dt_matmul(t, x[0], false, s->w, false);

    (void)n;
    a = dt_mul(t, a, dt_matmul(t, x[0], false, s->w, false));
    a = dt_mul(t, a, dt_matmul(t, x[0], false, s->w, false));
    return dt_test_reduced(t, dt_matmul(t, a, false, s->v, false));
}

static dt_tensor *forward(scene *s, bool again)
{
    dt_tensor *y;

    dt_tape_reset(s->t);
    dt_tape_record(s->t, s->g);
    y = again ? dt_recompute(s->t, block, s, sizeof *s, 1, &s->x) : block(s->t, s, 1, &s->x);
    s->loss = dt_sum(s->t, dt_mul(s->t, y, y), DT_ALL_AXES);
    return s->loss;
}

/* The same bits on every rank, and in two tensors. */
static dt_status same_bits(dt_tensor *a, const float *bits, int64_t n, const char *what)
{
    DT_HELD(tensor) *full = NULL;

    DT_TRY(dt_full_tensor(a, &full));
    DT_EXPECT(memcmp(dt_tensor_local(full)->data, bits, (size_t)n * sizeof *bits) == 0,
              "%s has other bits", what);
    return DT_OK;
}

static dt_status bits_of(dt_tensor *a, float *bits, int64_t n)
{
    dt_tensor *full = NULL;

    DT_TRY(dt_full_tensor(a, &full));
    memcpy(bits, dt_tensor_local(full)->data, (size_t)n * sizeof *bits);
    dt_tensor_release(&full);
    return DT_OK;
}

/* --- what it costs ---------------------------------------------------------------------------- */

static dt_status count_moves(dt_mesh *mesh, const void *arg)
{
    const int p = dt_mesh_dim_size(mesh, 0);
    scene s;
    dt_status st = open_scene(mesh, &s);

    (void)arg;
    if (st != DT_OK) return close_scene(&s, st);
    dt_backward(s.t, forward(&s, false), NULL);
    DT_TRY_TO(done, st, dt_tape_status(s.t));
    DT_EXPECT_TO(done, st, dt_tape_comm(s.t, DT_COMM_ALL_REDUCE).calls == (p > 1),
                 "%d reductions: that of the forward pass",
                 (int)dt_tape_comm(s.t, DT_COMM_ALL_REDUCE).calls);
    DT_TRY_TO(done, st, dt_gradients_settle(s.g, s.t));
    DT_EXPECT_TO(done, st, dt_tape_comm(s.t, DT_COMM_ALL_REDUCE).calls == 2 * (p > 1),
                 "%d reductions: three readers of x share one",
                 (int)dt_tape_comm(s.t, DT_COMM_ALL_REDUCE).calls);
    DT_EXPECT_TO(done, st, dt_tape_comm(s.t, DT_COMM_ALL_GATHER).calls == 0, "gathers");
done:
    return close_scene(&s, st);
}

DT_TEST(gradients, readers_of_one_value_share_a_reduction)
{
    dt_test_on_ranks("tp=1", count_moves, NULL);
    dt_test_on_ranks("tp=2", count_moves, NULL);
    dt_test_on_ranks("tp=4", count_moves, NULL);
}

/* --- sums over passes ------------------------------------------------------------------------- */

static dt_status accumulate(dt_mesh *mesh, const void *arg)
{
    float once[I * J], twice[I * J];
    scene s;
    dt_status st = open_scene(mesh, &s);

    (void)arg;
    if (st != DT_OK) return close_scene(&s, st);
    dt_backward(s.t, forward(&s, false), NULL);
    DT_TRY_TO(done, st, dt_gradients_settle(s.g, NULL));
    DT_TRY_TO(done, st, bits_of(dt_gradient(s.g, s.w), once, I * J));
    dt_gradients_clear(s.g);
    DT_EXPECT_TO(done, st, dt_gradient(s.g, s.w) == NULL, "cleared");

    /* the same record twice, then another: three times the gradient */
    dt_backward(s.t, forward(&s, false), &(dt_backward_options){ .keep = true });
    dt_backward(s.t, s.loss, NULL);
    dt_backward(s.t, forward(&s, true), NULL);
    DT_TRY_TO(done, st, dt_tape_status(s.t));
    DT_TRY_TO(done, st, dt_gradients_settle(s.g, NULL));
    DT_TRY_TO(done, st, bits_of(dt_gradient(s.g, s.w), twice, I * J));
    for (int i = 0; i < I * J; i++)
        DT_EXPECT_TO(done, st, fabsf(twice[i] - 3.0f * once[i]) <= 1e-5f * fabsf(once[i]) + 1e-6f,
                     "element %d: %g, once %g", i, (double)twice[i], (double)once[i]);
done:
    return close_scene(&s, st);
}

DT_TEST(gradients, passes_add_up)
{
    dt_test_on_ranks("tp=1", accumulate, NULL);
    dt_test_on_ranks("tp=3", accumulate, NULL);
}

/* --- parts that run again --------------------------------------------------------------------- */

static dt_status recompute(dt_mesh *mesh, const void *arg)
{
    float kept[I * J], again[B * I];
    int64_t bytes[2];
    scene s;
    dt_status st = open_scene(mesh, &s);

    (void)arg;
    if (st != DT_OK) return close_scene(&s, st);
    for (int round = 0; round < 3; round++) { /* kept, again, kept */
        float w[I * J], x[B * I];
        forward(&s, round == 1);
        bytes[round == 1] = dt_tape_kept_bytes(s.t);
        dt_backward(s.t, s.loss, NULL);
        DT_TRY_TO(done, st, dt_tape_status(s.t));
        DT_EXPECT_TO(done, st, dt_tape_kept_bytes(s.t) == 0, "given back");
        DT_TRY_TO(done, st, dt_gradients_settle(s.g, NULL));
        DT_TRY_TO(done, st, bits_of(dt_gradient(s.g, s.w), w, I * J));
        DT_TRY_TO(done, st, bits_of(dt_gradient(s.g, s.x), x, B * I));
        if (round == 0) {
            memcpy(kept, w, sizeof kept);
            memcpy(again, x, sizeof again);
        }
        DT_EXPECT_TO(done, st, memcmp(kept, w, sizeof w) == 0, "dw of round %d", round);
        DT_EXPECT_TO(done, st, memcmp(again, x, sizeof x) == 0, "dx of round %d", round);
        DT_TRY_TO(done, st, same_bits(dt_gradient(s.g, s.x), again, B * I, "dx"));
        dt_gradients_clear(s.g);
    }
    DT_EXPECT_TO(done, st, bytes[1] < bytes[0], "%lld bytes, without parts %lld",
                 (long long)bytes[1], (long long)bytes[0]);
done:
    return close_scene(&s, st);
}

/* What the part squares is made again for it, and so is the whole of what x has a piece of. */
static dt_tensor *square(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    (void)arg;
    (void)n;
    return dt_mul(t, x[0], x[0]);
}

static dt_status made_again(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE, *const from = arg;
    const float values[] = { 1, -2, 3, 0.5f, -0.25f };
    const int64_t shape[] = { 5 };
    DT_HELD(tensor) *x = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    DT_TRY(dt_distribute(mesh, from, DT_F32, 1, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_gradients_watch(g, x));
    for (int thrifty = 0; thrifty <= 1; thrifty++) {
        DT_HELD(tensor) *dx = NULL;
        dt_tensor *y;
        dt_tape_reset(t);
        dt_tape_record(t, g);
        dt_tape_set_thrifty(t, thrifty);
        y = dt_silu(t, dt_move(t, x, &whole)); /* of what is cheap, or a gather, nothing is kept */
        y = dt_add(t, dt_recompute(t, square, NULL, 0, 1, &y), y);
        dt_backward(t, dt_sum(t, y, DT_ALL_AXES), NULL);
        DT_TRY(dt_tape_status(t));
        DT_TRY(dt_gradients_settle(g, t));
        DT_EXPECT(dt_gradient(g, x) != NULL, "no gradient");
        DT_TRY(dt_full_tensor(dt_gradient(g, x), &dx));
        for (int i = 0; i < 5; i++) {
            const double v = values[i], e = 1 / (1 + exp(-v)), slope = e * (1 + v * (1 - e));
            DT_EXPECT_CLOSE(((const float *)dt_tensor_local(dx)->data)[i], (2 * v * e + 1) * slope,
                            1e-5);
        }
        dt_gradients_clear(g);
    }
    return DT_OK;
}

DT_TEST(gradients, reach_what_is_made_again_through_parts)
{
    const dt_placement places[] = { DT_REPLICATE, DT_SHARD(0) };

    for (size_t p = 0; p < DT_COUNT(places); p++) {
        dt_test_on_ranks("tp=1", made_again, &places[p]);
        dt_test_on_ranks("tp=2", made_again, &places[p]);
        dt_test_on_ranks("tp=3", made_again, &places[p]);
    }
}

/* Nothing, or another shape, when it runs again. */
static dt_tensor *unlike(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    static _Thread_local int run;

    (void)n;
    if (run++ % 2 == 0) return dt_mul(t, x[0], x[0]);
    return *(const bool *)arg ? NULL : dt_sum(t, x[0], 0);
}

static dt_status runs_unlike(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t shape[] = { 5 };
    DT_HELD(tensor) *x = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *y;

    DT_TRY(dt_full(mesh, &whole, DT_F32, 1, shape, 2.0, &x));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_gradients_watch(g, x));
    dt_tape_record(t, g);
    y = dt_recompute(t, unlike, arg, sizeof(bool), 1, &x);
    dt_backward(t, dt_sum(t, y, DT_ALL_AXES), NULL);
    return dt_tape_status(t);
}

DT_TEST(gradients, a_part_that_gives_something_else_when_it_runs_again_is_refused)
{
    const bool none = true, other = false;

    dt_test_on_ranks_fail("tp=1", runs_unlike, &none, DT_ERR_ARG, "gave NULL when it ran again");
    dt_test_on_ranks_fail("tp=1", runs_unlike, &other, DT_ERR_ARG, "gave another shape");
}

DT_TEST(gradients, recomputing_gives_the_same_bits)
{
    dt_test_on_ranks("tp=1", recompute, NULL);
    dt_test_on_ranks("tp=2", recompute, NULL);
    dt_test_on_ranks("tp=3", recompute, NULL);
}

/* --- constants, and gradients of what is made ------------------------------------------------- */

static dt_status constants(dt_mesh *mesh, const void *arg)
{
    dt_tensor *y, *z, *dy;
    char text[512];
    scene s;
    dt_status st = open_scene(mesh, &s);

    (void)arg;
    if (st != DT_OK) return close_scene(&s, st);
    dt_tape_record(s.t, s.g);
    y = dt_mul(s.t, s.x, s.x);
    z = dt_mul(s.t, dt_tape_watch(s.t, y), dt_detach(s.t, y)); /* dz/dy = y alone */
    dt_tape_pause(s.t);
    DT_EXPECT_TO(done, st, !dt_tape_records(s.t), "paused");
    z = dt_add(s.t, z, dt_detach(s.t, dt_exp(s.t, s.x)));
    dt_tape_resume(s.t);
    DT_TRY_TO(done, st, dt_tape_status(s.t));
    /* what was added while paused is a constant, and so is the sum: begin once more */
    dt_backward(s.t, z, &(dt_backward_options){ .seed = s.x });
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(s.t), DT_ERR_ARG,
                               "no value of this tape's record");
    if (st != DT_OK) goto done;

    dt_tape_reset(s.t);
    dt_tape_record(s.t, s.g);
    y = dt_tape_watch(s.t, dt_mul(s.t, s.x, s.x));
    z = dt_sum(s.t, dt_mul(s.t, y, dt_detach(s.t, y)), DT_ALL_AXES);
    DT_EXPECT_TO(done, st, dt_tape_kept_print(s.t, text, sizeof text) > 0, "kept");
    DT_EXPECT_TO(done, st, strstr(text, "mul  operand 1  [3, 5] f32  60 bytes") != NULL, "%s",
                 text);
    dt_backward(s.t, z, NULL);
    DT_TRY_TO(done, st, dt_tape_status(s.t));
    dy = dt_gradient(s.g, y);
    DT_EXPECT_TO(done, st, dy != NULL, "a gradient of what was made");
    for (int i = 0; i < B * I; i++) {
        const float x = ((const float *)dt_tensor_local(s.x)->data)[i];
        const float *dx = dt_tensor_local(dt_gradient(s.g, s.x))->data;
        DT_EXPECT_TO(done, st, ((const float *)dt_tensor_local(dy)->data)[i] == x * x, "dy %d", i);
        DT_EXPECT_TO(done, st, fabsf(dx[i] - 2.0f * x * x * x) <= 1e-6f * fabsf(x), "dx %d", i);
    }
    DT_EXPECT_TO(done, st, dt_gradient(s.g, s.w) == NULL, "nothing reaches w");
done:
    return close_scene(&s, st);
}

DT_TEST(gradients, of_made_values_and_none_of_constants)
{
    dt_test_on_ranks("tp=1", constants, NULL);
    dt_test_on_ranks("tp=2", constants, NULL);
}

/* Two records for one collection at a time, as microbatches of a pipeline are. */
static dt_status two_tapes(dt_mesh *mesh, const void *arg)
{
    dt_tensor *a, *b;
    dt_tape *other = NULL;
    scene s;
    dt_status st = open_scene(mesh, &s);

    (void)arg;
    DT_TRY_TO(done, st, st);
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &other));
    dt_tape_record(s.t, s.g);
    dt_tape_record(other, s.g);
    a = dt_sum(s.t, s.x, DT_ALL_AXES);
    b = dt_sum(other, dt_mul_scalar(other, s.x, 10.0), DT_ALL_AXES);
    dt_backward(other, a, NULL);
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(other), DT_ERR_ARG,
                               "another tape has made it");
    if (st != DT_OK) goto done;
    dt_backward(s.t, a, NULL);
    DT_TRY_TO(done, st, dt_tape_status(s.t));
    dt_tape_reset(other);
    dt_tape_record(other, s.g);
    b = dt_sum(other, dt_mul_scalar(other, s.x, 10.0), DT_ALL_AXES);
    dt_backward(other, b, NULL);
    DT_TRY_TO(done, st, dt_tape_status(other));
    for (int i = 0; i < B * I; i++)
        DT_EXPECT_TO(done, st,
                     ((const float *)dt_tensor_local(dt_gradient(s.g, s.x))->data)[i] == 11.0f,
                     "element %d", i);
done:
    dt_tape_release(&other);
    return close_scene(&s, st);
}

DT_TEST(gradients, of_two_tapes_add_up)
{
    dt_test_on_ranks("tp=2", two_tapes, NULL);
}

/* --- what is refused -------------------------------------------------------------------------- */

#define REFUSED(what, code, text)                                                                  \
    do {                                                                                           \
        what;                                                                                      \
        DT_TRY_TO(                                                                                 \
            done, st,                                                                              \
            dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(s.t), code, text)); \
        dt_tape_reset(s.t);                                                                        \
    } while (0)

static const dt_op no_way_back = { .name = "no_way_back",
                                   .axes = "... -> ...",
                                   .types = "f>f",
                                   .cpu = negate,
                                   .flags = DT_OP_ANY_ROWS };

static void wrong_shape(dt_tape *t, const dt_node *n, dt_tensor *const *dy, dt_tensor **dx)
{
    (void)n;
    dx[0] = dt_sum(t, dy[0], 0);
}

static const dt_op misshapen = { .name = "misshapen",
                                 .axes = "... -> ...",
                                 .types = "f>f",
                                 .cpu = negate,
                                 .flags = DT_OP_ANY_ROWS,
                                 .backward = wrong_shape };

static dt_status misuse(dt_mesh *mesh, const void *arg)
{
    const dt_placement terms = DT_PARTIAL(DT_MAX);
    const int64_t shape[] = { B, I };
    float value[B * I] = { 0 };
    dt_gradients *other = NULL;
    dt_tensor *y, *ids = NULL;
    scene s;
    dt_status st = open_scene(mesh, &s);

    (void)arg;
    DT_TRY_TO(done, st, st);
    REFUSED(dt_backward(s.t, s.x, NULL), DT_ERR_ARG, "nothing was recorded");
    REFUSED(dt_tape_record(s.t, NULL), DT_ERR_ARG, "gradients are NULL");
    REFUSED(forward(&s, false); dt_backward(s.t, s.loss, NULL);
            dt_backward(s.t, s.loss, NULL), DT_ERR_ARG,
            "was run backward already and given back: set `keep`");
    REFUSED(forward(&s, false); dt_backward(s.t, NULL, NULL), DT_ERR_ARG, "from is NULL");
    dt_tape_record(s.t, s.g);
    REFUSED(dt_backward(s.t, dt_mul(s.t, s.x, s.x), NULL), DT_ERR_ARG,
            "15 elements: a gradient of several needs a seed");
    dt_tape_record(s.t, s.g);
    REFUSED(dt_backward(s.t, dt_mul(s.t, s.x, s.x), &(dt_backward_options){ .seed = s.w }),
            DT_ERR_SHAPE, "another shape");
    dt_tape_record(s.t, s.g);
    dt_scope_begin(s.t, "layer");
    y = dt_scope_end(s.t, dt_apply(s.t, &no_way_back, NULL, 1, &s.x));
    REFUSED(dt_backward(s.t, dt_sum(s.t, y, DT_ALL_AXES), NULL), DT_ERR_UNSUPPORTED,
            "no_way_back has no backward, and a gradient has reached it in layer");
    dt_tape_record(s.t, s.g);
    y = dt_apply(s.t, &misshapen, NULL, 1, &s.x);
    REFUSED(dt_backward(s.t, dt_sum(s.t, y, DT_ALL_AXES), NULL), DT_ERR_SHAPE,
            "misshapen: its backward gave [5] for operand 0, which is [3, 5]");
    dt_tape_record(s.t, s.g);
    y = dt_sum(s.t, dt_mul(s.t, s.x, s.x), DT_ALL_AXES);
    DT_TRY_TO(done, st, dt_tensor_write(s.x, value, sizeof value));
    REFUSED(dt_backward(s.t, y, NULL), DT_ERR_ARG,
            "mul: operand 0, which its backward needs, was written over after the call");
    dt_tape_record(s.t, s.g);
    y = dt_sum(s.t, s.x, DT_ALL_AXES);
    dt_gradients_clear(s.g);
    REFUSED(dt_backward(s.t, y, NULL), DT_ERR_ARG, "was cleared while the tape recorded");
    REFUSED(dt_tape_watch(s.t, s.x), DT_ERR_ARG, "does not record");
    dt_tape_record(s.t, s.g);
    REFUSED(dt_tape_watch(s.t, dt_detach(s.t, s.x)), DT_ERR_ARG, "a constant of the record");
    REFUSED(dt_recompute(s.t, NULL, NULL, 0, 0, NULL), DT_ERR_ARG, "no function");
    REFUSED(dt_recompute(s.t, square, NULL, 0, 1, NULL), DT_ERR_ARG, "which are NULL");

    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &other));
    DT_TRY_TO(done, st,
              dt_test_expect_status(__func__, __FILE__, __LINE__, dt_gradients_watch(other, s.x),
                                    DT_ERR_ARG, "is watched by another collection"));
    DT_TRY_TO(done, st, dt_zeros_like(s.x, &ids));
    dt_tensor_release(&ids);
    DT_TRY_TO(done, st, dt_from_local(mesh, &terms, DT_F32, 2, shape, value, &ids));
    if (dt_mesh_dim_size(mesh, 0) > 1)
        DT_TRY_TO(done, st,
                  dt_test_expect_status(__func__, __FILE__, __LINE__,
                                        dt_gradients_watch(other, ids), DT_ERR_LAYOUT,
                                        "terms of a sum"));
done:
    dt_tensor_release(&ids);
    dt_gradients_release(&other);
    return close_scene(&s, st);
}

DT_TEST(gradients, bad_use_is_refused)
{
    dt_test_on_ranks("tp=1", misuse, NULL);
    dt_test_on_ranks("tp=2", misuse, NULL);
}

/* --- a step that repeats ---------------------------------------------------------------------- */

static dt_status warm(dt_mesh *mesh, const void *arg)
{
    uint64_t misses = 0, before = 0, allocated = 0;
    scene s;
    dt_status st = open_scene(mesh, &s);

    (void)arg;
    DT_TRY_TO(done, st, st);
    for (int step = 0; step < 6; step++) {
        if (step == 3) {
            dt_op_counts(dt_mesh_runtime(mesh), NULL, &before);
            allocated = dti_alloc_count();
        }
        dt_backward(s.t, forward(&s, step % 2 == 1), NULL);
        DT_TRY_TO(done, st, dt_tape_status(s.t));
        DT_TRY_TO(done, st, dt_gradients_settle(s.g, s.t));
        dt_gradients_clear(s.g);
    }
    DT_EXPECT_TO(done, st, dti_alloc_count() == allocated, "%d blocks from the system",
                 (int)(dti_alloc_count() - allocated));
    dt_op_counts(dt_mesh_runtime(mesh), NULL, &misses);
    DT_EXPECT_TO(done, st, misses == before, "%d decisions missed", (int)(misses - before));
done:
    return close_scene(&s, st);
}

DT_TEST(gradients, a_warm_step_takes_no_memory)
{
    dt_test_on_ranks("tp=1", warm, NULL);
    dt_test_on_ranks("tp=2", warm, NULL);
}
