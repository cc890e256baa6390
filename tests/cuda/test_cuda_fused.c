/* SPDX-License-Identifier: Apache-2.0
 *
 * A sum and the norm of it as one kernel: the bits of two, also where results lie in memory of
 * operands; and whatever comes between the two finds the sum made. */
#include "tests/cuda/fused.h"

/* Places of x, z, sum, y, weights and bias in the buffer: apart, with room between them. */
enum { X = 0, Z = 10000, SUM = 20000, Y = 30000, W = 40000, B = 52000 };

typedef struct sum_places {
    int64_t x, z, sum, y, w, b;
} sum_places;

static const sum_places apart = { X, Z, SUM, Y, W, B };

static void two_calls(fu_call calls[2], const char *norm, int64_t rows, int64_t n,
                      const sum_places *p)
{
    const bool biased = strcmp(norm, "layer_norm") == 0;

    calls[0] = (fu_call){ .row = "add", .n_in = 2 };
    calls[0].in[0] = fu_at(p->x, 2, rows, n, 0, 0);
    calls[0].in[1] = fu_at(p->z, 2, rows, n, 0, 0);
    calls[0].out = fu_at(p->sum, 2, rows, n, 0, 0);
    calls[1] = (fu_call){ .row = norm, .n_in = biased ? 3 : 2 };
    calls[1].in[0] = calls[0].out;
    calls[1].in[1] = fu_at(p->w, 1, n, 0, 0, 0);
    calls[1].in[2] = fu_at(p->b, 1, n, 0, 0, 0);
    calls[1].out = fu_at(p->y, 2, rows, n, 0, 0);
}

static const char *const norms[] = { "rms_norm", "rms_norm_1p", "layer_norm" };

DT_TEST(cuda_fused, a_sum_and_its_norm_are_one_kernel)
{
    /* rows that a warp keeps, that a block keeps, and that are read again */
    static const int64_t shapes[][2] = { { 1, 1 },   { 5, 3 },    { 9, 128 },  { 17, 65 },
                                         { 2, 512 }, { 3, 1500 }, { 1, 4096 }, { 1, 9001 } };
    cr_device d;

    cr_open(&d);
    for (size_t k = 0; k < DT_COUNT(norms); k++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            for (size_t s = 0; s < DT_COUNT(shapes); s++)
                for (int64_t skew = 0; skew < 2; skew++) {
                    fu_call calls[2];
                    two_calls(calls, norms[k], shapes[s][0], shapes[s][1], &apart);
                    fu_check(&(fu_run){ .d = &d,
                                        .dtype = kt_floats[t],
                                        .skew = skew,
                                        .calls = calls,
                                        .n_calls = 2 },
                             1, norms[k]);
                }
    cr_close(&d);
}

/* What the pool makes possible: a result where an operand was. */
DT_TEST(cuda_fused, results_may_lie_where_operands_were)
{
    enum { ROWS = 3, N = 1200, ROW = N };
    static const struct {
        const char *what;
        sum_places p;
        int64_t n_kernels;
    } cases[] = {
        { "y at x", { X, Z, SUM, X, W, B }, 1 },
        { "y at z", { X, Z, SUM, Z, W, B }, 1 },
        { "y at the sum", { X, Z, SUM, SUM, W, B }, 1 },
        { "the sum at x", { X, Z, X, Y, W, B }, 1 },
        { "the sum at z, y at x", { X, Z, Z, X, W, B }, 1 },
        { "everything at x", { X, X, X, X, W, B }, 1 },
        { "y a row behind x", { X, Z, SUM, X + ROW, W, B }, 2 },
        { "y an element behind z", { X, Z, SUM, Z + 1, W, B }, 2 },
        { "y before x", { X + ROW, Z, SUM, X, W, B }, 2 },
        { "y at the end of z", { X, Z, SUM, Z + ROWS * N - 1, W, B }, 2 },
        { "y next to z", { X, Z, SUM, Z + ROWS * N, W, B }, 1 },
        { "weights in the sum", { X, Z, SUM, Y, SUM + ROW, B }, 2 },
        { "weights in x, the sum there", { X, Z, X, Y, X, B }, 2 },
        { "weights in x", { X, Z, SUM, Y, X, B }, 1 },
    };
    cr_device d;

    cr_open(&d);
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(cases); i++) {
            fu_call calls[2];
            two_calls(calls, "rms_norm", ROWS, N, &cases[i].p);
            fu_check(&(fu_run){ .d = &d, .dtype = kt_floats[t], .calls = calls, .n_calls = 2 },
                     cases[i].n_kernels, cases[i].what);
        }
    for (int in_sum = 0; in_sum < 2; in_sum++) {
        const sum_places p = { X, Z, SUM, Y, W, in_sum ? SUM + ROW : B };
        fu_call calls[2];
        two_calls(calls, "layer_norm", ROWS, N, &p);
        fu_check(&(fu_run){ .d = &d, .dtype = DT_F32, .calls = calls, .n_calls = 2 }, 1 + in_sum,
                 "a bias in the sum");
    }
    cr_close(&d);
}

/* The norm is of something else, or of a part; or its call has other axes. */
DT_TEST(cuda_fused, norms_of_other_things_are_kernels_of_their_own)
{
    enum { ROWS = 4, N = 96 };
    static unsigned char scratch[FU_ELEMENTS * sizeof(float)];
    fu_call calls[3];
    cr_device d;
    fu_run r = { .d = &d, .dtype = DT_F32, .calls = calls, .n_calls = 2 };

    cr_open(&d);
    two_calls(calls, "rms_norm", ROWS, N, &apart);
    calls[1].in[0] = calls[0].in[0];
    fu_check(&r, 2, "a norm of x");
    two_calls(calls, "rms_norm", ROWS, N, &apart);
    calls[1].in[0].shape[0] = calls[1].out.shape[0] = ROWS - 1;
    fu_check(&r, 2, "a norm of some rows");
    two_calls(calls, "rms_norm", ROWS, N, &apart);
    calls[1].in[0] = calls[1].out = fu_at(Y, 3, 2, ROWS, N / 2, 0);
    calls[1].in[0].data = calls[0].out.data;
    fu_check(&r, 1, "a norm of shorter rows of the sum");
    r.n_calls = 3;
    two_calls(calls, "rms_norm", ROWS, N, &apart);
    calls[2] = calls[1];
    calls[1] = (fu_call){ "mul", 2, { calls[0].out, calls[0].in[0] }, calls[0].in[1] };
    fu_check(&r, 3, "a product between");
    two_calls(calls, "rms_norm", ROWS, N, &apart);
    calls[2] = calls[0];
    calls[2].in[1] = calls[1].out;
    fu_check(&r, 2, "a sum behind");
    r.n_calls = 2;
    two_calls(calls, "rms_norm", ROWS, 0, &apart); /* nothing to do, so nothing to hold back */
    for (int fused = 0; fused < 2; fused++) DT_ASSERT_EQ_INT(fu_run_once(&r, fused, scratch), 0);
    cr_close(&d);
}

/* --- between the two --- */

enum { LENGTH = 700, BYTES = LENGTH * 4 };

/* x, z and sum [LENGTH] f32 on the device, x + z = 3 i. */
typedef struct sums {
    const dti_cuda_module *m;
    dti_cuda *c;
    float *x, *z, *sum;
} sums;

static void open_sums(sums *s)
{
    float x[LENGTH], z[LENGTH];

    s->m = dt_test_cuda_module();
    s->c = dt_test_cuda_open(s->m);
    for (int i = 0; i < LENGTH; i++) {
        x[i] = (float)i;
        z[i] = 2 * (float)i;
    }
    DT_ASSERT_CUDA(s->m, s->m->alloc(s->c, BYTES, DTI_CUDA_DEVICE, (void **)&s->x));
    DT_ASSERT_CUDA(s->m, s->m->alloc(s->c, BYTES, DTI_CUDA_DEVICE, (void **)&s->z));
    DT_ASSERT_CUDA(s->m, s->m->alloc(s->c, BYTES, DTI_CUDA_DEVICE, (void **)&s->sum));
    DT_ASSERT_CUDA(s->m, s->m->copy(s->c, s->x, x, BYTES, DTI_CUDA_UP));
    DT_ASSERT_CUDA(s->m, s->m->copy(s->c, s->z, z, BYTES, DTI_CUDA_UP));
    DT_ASSERT_CUDA(s->m, s->m->clear(s->c, s->sum, BYTES));
}

static void close_sums(sums *s)
{
    s->m->release(s->c, DTI_CUDA_DEVICE, s->x);
    s->m->release(s->c, DTI_CUDA_DEVICE, s->z);
    s->m->release(s->c, DTI_CUDA_DEVICE, s->sum);
    s->m->close(s->c);
}

static int add_into(const sums *s, float *x, float *sum)
{
    const int64_t n = LENGTH;
    dt_local in[2], out = { .data = sum, .dtype = DT_F32, .n_axes = 1, .shape = { n } };
    const dt_kargs args = { .in = in, .out = &out, .n_in = 2, .n_out = 1 };

    in[0] = in[1] = out;
    in[0].data = x;
    in[1].data = s->z;
    return dt_test_cuda_row(s->m, "add")(s->c, &args);
}

static void expect_values(const sums *s, dti_cuda *c, const float *at, float factor)
{
    float got[LENGTH];

    DT_ASSERT_CUDA(s->m, s->m->copy(c, got, at, BYTES, DTI_CUDA_DOWN));
    for (int i = 0; i < LENGTH; i++)
        if (got[i] != factor * (float)i)
            dt_test_fail(__FILE__, __LINE__, "element %d is %g, not %g", i, (double)got[i],
                         (double)(factor * (float)i));
}

DT_TEST(cuda_fused, copies_and_clears_come_after_what_is_held_back)
{
    sums s;

    open_sums(&s);
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, s.sum));
    expect_values(&s, s.c, s.sum, 3);
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, s.sum));
    DT_ASSERT_CUDA(s.m, s.m->clear(s.c, s.x, BYTES)); /* the sum has been made of what was there */
    expect_values(&s, s.c, s.sum, 3);
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, s.sum));
    DT_ASSERT_CUDA(s.m, s.m->copy(s.c, s.z, s.sum, BYTES, DTI_CUDA_WITHIN));
    expect_values(&s, s.c, s.z, 2);
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, s.sum));
    DT_ASSERT_CUDA(s.m, s.m->divide(s.c, s.sum, LENGTH, DT_F32, 2));
    expect_values(&s, s.c, s.sum, 1);
    close_sums(&s);
}

DT_TEST(cuda_fused, waiting_and_giving_back_start_what_is_held_back)
{
    bool done = false;
    float *pinned = NULL, *copy;
    sums s;

    open_sums(&s);
    DT_ASSERT_CUDA(s.m, s.m->alloc(s.c, BYTES, DTI_CUDA_PINNED, (void **)&pinned));
    for (int i = 0; i < LENGTH; i++) pinned[i] = -1;
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, pinned));
    DT_ASSERT_CUDA(s.m, s.m->sync(s.c));
    for (int i = 0; i < LENGTH; i++) DT_ASSERT(pinned[i] == 3 * (float)i);
    DT_ASSERT_CUDA(s.m, add_into(&s, s.z, pinned));
    while (!done) DT_ASSERT_CUDA(s.m, s.m->done(s.c, &done));
    for (int i = 0; i < LENGTH; i++) DT_ASSERT(pinned[i] == 4 * (float)i);

    /* an operand's memory is given back, and perhaps taken again at once */
    DT_ASSERT_CUDA(s.m, s.m->alloc(s.c, BYTES, DTI_CUDA_DEVICE, (void **)&copy));
    DT_ASSERT_CUDA(s.m, s.m->copy(s.c, copy, s.x, BYTES, DTI_CUDA_WITHIN));
    DT_ASSERT_CUDA(s.m, add_into(&s, copy, s.sum));
    s.m->release(s.c, DTI_CUDA_DEVICE, copy);
    expect_values(&s, s.c, s.sum, 3);
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, pinned)); /* close() starts it and waits */
    s.m->release(s.c, DTI_CUDA_PINNED, pinned);
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, s.sum));
    DT_ASSERT(s.m->stream(s.c) != NULL); /* who has the stream finds it started */
    expect_values(&s, s.c, s.sum, 3);
    close_sums(&s);
}

DT_TEST(cuda_fused, closing_starts_what_is_held_back)
{
    dti_cuda *other;
    sums s;

    open_sums(&s);
    other = dt_test_cuda_open(s.m);
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, s.sum));
    s.m->close(s.c);
    s.c = other;
    expect_values(&s, s.c, s.sum, 3);
    close_sums(&s);
}

DT_TEST(cuda_fused, events_stand_behind_what_is_held_back)
{
    dti_cuda_event *e = NULL;
    dti_cuda *other;
    sums s;

    open_sums(&s);
    other = dt_test_cuda_open(s.m);
    DT_ASSERT_CUDA(s.m, s.m->event_create(s.c, &e));
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, s.sum));
    DT_ASSERT_CUDA(s.m, s.m->event_record(s.c, e));
    DT_ASSERT_CUDA(s.m, s.m->event_await(other, e));
    expect_values(&s, other, s.sum, 3);

    /* what is awaited is awaited by later calls alone */
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, s.sum));
    DT_ASSERT_CUDA(s.m, s.m->event_await(s.c, e));
    expect_values(&s, s.c, s.sum, 3);
    s.m->event_destroy(e);
    s.m->close(other);
    close_sums(&s);
}

/* What was called before a recording is no part of it, what is called within is. */
DT_TEST(cuda_fused, graphs_hold_what_was_called_while_recording)
{
    dti_cuda_graph *g = NULL;
    int64_t before;
    float *y;
    sums s;

    open_sums(&s);
    DT_ASSERT_CUDA(s.m, s.m->alloc(s.c, BYTES, DTI_CUDA_DEVICE, (void **)&y));
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, y)); /* 3 i: runs, once */
    DT_ASSERT_CUDA(s.m, s.m->capture_begin(s.c));
    before = s.m->launches(s.c);
    DT_ASSERT_CUDA(s.m, add_into(&s, y, y)); /* 2 i more at each launch */
    DT_ASSERT_EQ_INT(s.m->launches(s.c), before);
    DT_ASSERT_CUDA(s.m, s.m->capture_end(s.c, &g));
    DT_ASSERT_EQ_INT(s.m->launches(s.c), before + 1);
    expect_values(&s, s.c, y, 3);
    for (int round = 1; round < 3; round++) {
        DT_ASSERT_CUDA(s.m, s.m->graph_launch(s.c, g));
        expect_values(&s, s.c, y, 3 + 2 * (float)round);
    }
    DT_ASSERT_CUDA(s.m, add_into(&s, s.x, y));
    DT_ASSERT_CUDA(s.m, s.m->graph_launch(s.c, g)); /* after it */
    expect_values(&s, s.c, y, 5);
    s.m->graph_destroy(g);
    s.m->release(s.c, DTI_CUDA_DEVICE, y);
    close_sums(&s);
}

/* The simulated device refuses memory of the host when a kernel is started. */
DT_TEST(cuda_fused, failures_name_the_call_that_was_held_back)
{
    float host[LENGTH] = { 0 };
    sums s;

    open_sums(&s);
    if (strcmp(s.m->name, "simulated") != 0) dt_test_skip("skipped: needs the simulated device");
    DT_ASSERT_CUDA(s.m, add_into(&s, host, s.sum));
    DT_ASSERT_CUDA_FAILS(s.m, s.m->clear(s.c, s.x, BYTES), "earlier work, add, could not");
    s.m->close(s.c);
}

DT_TEST(cuda_fused, failures_that_nobody_could_hear_are_told_later)
{
    float host[LENGTH] = { 0 };
    sums s;

    open_sums(&s);
    if (strcmp(s.m->name, "simulated") != 0) dt_test_skip("skipped: needs the simulated device");
    DT_ASSERT_CUDA(s.m, add_into(&s, host, s.sum));
    s.m->release(s.c, DTI_CUDA_DEVICE, s.x); /* cannot fail */
    DT_ASSERT_CUDA_FAILS(s.m, s.m->clear(s.c, s.z, BYTES), "earlier work, add, could not");
    s.m->close(s.c);
}
