/* SPDX-License-Identifier: Apache-2.0
 *
 * A sum and the norm of it as one kernel: the bits of two, also where results lie in memory of
 * operands. */
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

static const char *const norms[] = { "rms_norm", "rms_norm_once", "rms_norm_1p", "layer_norm" };

DT_TEST(cuda_fused, a_sum_and_its_norm_are_one_kernel)
{
    /* rows that a warp keeps, that a block keeps, and that are read again */
    static const int64_t shapes[][2] = { { 1, 1 },   { 5, 3 },    { 9, 128 },  { 17, 65 },
                                         { 2, 512 }, { 3, 1500 }, { 1, 4096 }, { 1, 9001 } };
    CR_DEVICE d = cr_open();

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
                             norms[k]);
                }
}

/* Row on row, a result may lie where an operand was. */
DT_TEST(cuda_fused, results_may_lie_where_operands_were)
{
    enum { ROWS = 3, N = 1200 };
    static const struct {
        const char *what;
        sum_places p;
    } cases[] = {
        { "y at x", { X, Z, SUM, X, W, B } },
        { "y at z", { X, Z, SUM, Z, W, B } },
        { "y at the sum", { X, Z, SUM, SUM, W, B } },
        { "the sum at x", { X, Z, X, Y, W, B } },
        { "the sum at z, y at x", { X, Z, Z, X, W, B } },
        { "everything at x", { X, X, X, X, W, B } },
        { "y next to z", { X, Z, SUM, Z + ROWS * N, W, B } },
        { "weights in x", { X, Z, SUM, Y, X, B } },
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(cases); i++) {
            fu_call calls[2];
            two_calls(calls, "rms_norm", ROWS, N, &cases[i].p);
            fu_check(&(fu_run){ .d = &d, .dtype = kt_floats[t], .calls = calls, .n_calls = 2 },
                     cases[i].what);
        }
}

DT_TEST(cuda_fused, rows_of_the_norm_may_be_shorter_than_those_of_the_sum)
{
    enum { ROWS = 4, N = 96 };
    fu_call calls[2];
    CR_DEVICE d = cr_open();
    fu_run r = { .d = &d, .dtype = DT_F32, .calls = calls, .n_calls = 2 };

    two_calls(calls, "rms_norm", ROWS, N, &apart);
    calls[1].in[0] = calls[1].out = fu_at(Y, 3, 2, ROWS, N / 2, 0);
    calls[1].in[0].data = calls[0].out.data;
    fu_check(&r, "a norm of shorter rows of the sum");
}
