/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of optimizers on pieces: the same elements on every mesh, whole or through windows, also
 * where parameters round at random; options against formulas in float64. */
#include "dtensor/optimize.h"

#include <dtensor/factories.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/tensor_internal.h"
#include "tests/support/dt_test.h"

enum { ROWS = 14, COLUMNS = 22, COUNT = ROWS * COLUMNS };

static const int64_t shape[] = { ROWS, COLUMNS };

typedef enum kind { BF16_NEAREST, BF16_RANDOM, BF16_MASTER, F16_RANDOM, F32, N_KINDS } kind;

static dt_dtype dtype_of(kind k)
{
    return k == F32 ? DT_F32 : k == F16_RANDOM ? DT_F16 : DT_BF16;
}

/* What one rank computes for all. */
typedef struct whole {
    kind kind;
    float value[COUNT]; /* of the parameter after two steps */
} whole;

typedef struct trained {
    dt_tensor *grad, *param, *master, *state[2];
} trained;

static void release(trained *t)
{
    dt_tensor_release(&t->grad);
    dt_tensor_release(&t->param);
    dt_tensor_release(&t->master);
    dt_tensor_release(&t->state[0]);
    dt_tensor_release(&t->state[1]);
}

static dt_status make(dt_mesh *mesh, const dt_placement *place, kind k, trained *t)
{
    const dt_dtype dtype = dtype_of(k);

    *t = (trained){ NULL };
    DT_TRY(dt_randn(mesh, place, DT_F32, 2, shape, (dt_random){ 1, 2 }, &t->grad));
    DT_TRY(dt_randn(mesh, place, dtype, 2, shape, (dt_random){ 1, 3 }, &t->param));
    DT_TRY(dt_zeros(mesh, place, DT_F32, 2, shape, &t->state[0]));
    DT_TRY(dt_zeros(mesh, place, DT_F32, 2, shape, &t->state[1]));
    if (k == BF16_MASTER)
        DT_TRY(dt_randn(mesh, place, DT_F32, 2, shape, (dt_random){ 1, 3 }, &t->master));
    return DT_OK;
}

/* Elements first .. first + n - 1 of a part. */
static dti_step_part window_of(const dti_step_part *p, int64_t first, int64_t n)
{
    dti_step_part w = *p;

    w.first += first;
    w.n = n;
    w.grad += first;
    w.param = (char *)w.param + first * (int64_t)dt_dtype_size(w.dtype);
    if (w.master != NULL) w.master += first;
    for (int i = 0; i < 2; i++) w.state[i] += first;
    return w;
}

/* Two steps; the second through windows of `window` elements. */
static dt_status step_twice(trained *t, kind k, int64_t window)
{
    const dti_step_part part = dti_step_whole(t->grad, t->param, t->master, t->state);
    const dt_random name = { 77, 0x1234 };
    dti_adamw how = { .lr = 0.01,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .scale = 0.25,
                      .step = 1 };
    dt_random random = dti_step_random(name, 1);
    const bool at_random = k == BF16_RANDOM || k == F16_RANDOM;

    DT_TRY(dti_optimizer_adamw(&part, &how, at_random ? &random : NULL));
    how.step = 2;
    random = dti_step_random(name, 2);
    for (int64_t i = 0; i < part.n; i += window) {
        const dti_step_part w = window_of(&part, i, part.n - i < window ? part.n - i : window);
        DT_TRY(dti_optimizer_adamw(&w, &how, at_random ? &random : NULL));
    }
    return DT_OK;
}

static dt_status step_whole(dt_mesh *mesh, const void *arg)
{
    whole *w = (whole *)(uintptr_t)arg;
    trained t;
    dt_status st = make(mesh, (dt_placement[]){ DT_REPLICATE }, w->kind, &t);

    DT_TRY_TO(done, st, st);
    DT_TRY_TO(done, st, step_twice(&t, w->kind, COUNT));
    for (int64_t i = 0; i < COUNT; i++)
        w->value[i] = dti_load_f32(t.param->local.data, dtype_of(w->kind), i);
done:
    release(&t);
    return st;
}

static dt_status compare_piece(const trained *t, const whole *w)
{
    for (int64_t i = 0; i < dti_tensor_count(t->param); i++) {
        const int64_t global = dti_piece_global(t->param, i);
        const float got = dti_load_f32(t->param->local.data, dtype_of(w->kind), i);
        DT_EXPECT(global >= 0 && global < COUNT && got == w->value[global],
                  "kind %d: element %lld, %lld of the piece, is %.9g, not %.9g", (int)w->kind,
                  (long long)global, (long long)i, (double)got, (double)w->value[global]);
    }
    return DT_OK;
}

static dt_status step_cuts(dt_mesh *mesh, const void *arg)
{
    const whole *w = arg;
    const dt_placement packed = DT_SHARD_PACKED(0, 5, 9), columns = DT_SHARD_PACKED(1, 10, 12);
    const dt_placement cuts[][2] = { { DT_SHARD(0), DT_REPLICATE }, { DT_SHARD(1), DT_SHARD(0) },
                                     { DT_SHARD(0), DT_SHARD(0) },  { packed, DT_SHARD(1) },
                                     { columns, DT_REPLICATE },     { packed, columns } };
    trained t;

    for (size_t c = 0; c < DT_COUNT(cuts); c++) {
        dt_status st = make(mesh, cuts[c], w->kind, &t);
        DT_TRY_TO(done, st, st);
        DT_TRY_TO(done, st, step_twice(&t, w->kind, 37));
        DT_TRY_TO(done, st, compare_piece(&t, w));
    done:
        release(&t);
        DT_TRY(st);
    }
    return DT_OK;
}

DT_TEST(optimize, steps_are_the_same_on_every_mesh)
{
    for (kind k = BF16_NEAREST; k < N_KINDS; k++) {
        whole w = { .kind = k };
        dt_test_on_ranks("dp=1", step_whole, &w);
        dt_test_on_ranks("dp=2,tp=2", step_cuts, &w);
        dt_test_on_ranks("dp=3,tp=1", step_cuts, &w);
    }
}

/* --- rounding at random ----------------------------------------------------------------------- */

/* Without a gradient a step of SGD with decay only scales p, here to `value`. */
static dt_status round_many(dt_mesh *mesh, dt_dtype dtype, float value, int64_t n, int64_t step,
                            dt_tensor **out)
{
    const dt_placement place[] = { DT_REPLICATE };
    const dti_sgd how = { .lr = -1.0, .scale = 1.0, .step = step };
    const dt_random random = dti_step_random((dt_random){ 5, 6 }, step);
    DT_HELD(tensor) *grad = NULL;
    dt_tensor *none[2] = { NULL, NULL };

    DT_TRY(dt_zeros(mesh, place, dtype, 1, &n, out));
    DT_TRY(dt_full(mesh, place, DT_F32, 1, &n, (double)value, &grad));
    const dti_step_part part = dti_step_whole(grad, *out, NULL, none);
    DT_TRY(dti_optimizer_sgd(&part, &how, &random)); /* p = 0 + 1 value */
    return DT_OK;
}

/* Values become one of their two neighbours, the upper one as often as they are near it. */
static dt_status expect_mean(dt_mesh *mesh, dt_dtype dtype, float value, double unit)
{
    enum { MANY = 40000 };
    const double below = floor((double)value / unit) * unit, share = ((double)value - below) / unit;
    dt_tensor *x;
    int64_t n_up = 0;

    DT_TRY(round_many(mesh, dtype, value, MANY, 3, &x));
    for (int64_t i = 0; i < MANY; i++) {
        const double got = (double)dti_load_f32(x->local.data, dtype, i);
        DT_EXPECT(got == below || got == below + unit, "%.9g becomes %.9g", (double)value, got);
        n_up += got != below;
    }
    dt_tensor_release(&x);
    /* five deviations */
    DT_EXPECT(fabs((double)n_up / MANY - share) <= 5.0 * sqrt(share * (1.0 - share) / MANY),
              "%.9g is rounded up in %g of all cases, not %g", (double)value, (double)n_up / MANY,
              share);
    return DT_OK;
}

static dt_status expect_means(dt_mesh *mesh, const void *arg)
{
    (void)arg;
    DT_TRY(expect_mean(mesh, DT_BF16, 1.0f + 0x1p-9f, 0x1p-7));
    DT_TRY(expect_mean(mesh, DT_BF16, -3.14159265f, 0x1p-6));
    DT_TRY(expect_mean(mesh, DT_BF16, 1.5f, 0x1p-7)); /* exact */
    DT_TRY(expect_mean(mesh, DT_BF16, 0x1.01p-130f, 0x1p-133));
    DT_TRY(expect_mean(mesh, DT_F16, 1.0f + 0x1.8p-11f, 0x1p-10));
    DT_TRY(expect_mean(mesh, DT_F16, -0x1.2345p-3f, 0x1p-13));
    DT_TRY(expect_mean(mesh, DT_F16, 0x1.2345p-18f, 0x1p-24)); /* subnormal in f16 */
    DT_TRY(expect_mean(mesh, DT_F16, -0x1.8p-26f, 0x1p-24));
    return DT_OK;
}

static dt_status expect_other_bits(dt_mesh *mesh, const void *arg)
{
    enum { MANY = 1000 };
    dt_tensor *a, *b;

    (void)arg;
    DT_TRY(round_many(mesh, DT_BF16, 1.0f + 0x1p-8f, MANY, 1, &a));
    DT_TRY(round_many(mesh, DT_BF16, 1.0f + 0x1p-8f, MANY, 2, &b));
    DT_EXPECT(memcmp(a->local.data, b->local.data, 2 * MANY) != 0, "two steps round alike");
    dt_tensor_release(&a);
    dt_tensor_release(&b);
    return DT_OK;
}

DT_TEST(optimize, rounding_at_random_has_the_mean)
{
    dt_test_on_ranks("dp=1", expect_means, NULL);
    dt_test_on_ranks("dp=1", expect_other_bits, NULL);
}

/* --- options ---------------------------------------------------------------------------------- */

static dt_status follow_formulas(dt_mesh *mesh, const void *arg)
{
    const dti_adamw how = { .lr = 0.01,
                            .beta1 = 0.8,
                            .beta2 = 0.9,
                            .eps = 1e-3,
                            .weight_decay = 0.1,
                            .scale = 0.5,
                            .step = 3 };
    double m = 0.0, v = 0.0, p;
    trained t;
    dt_status st = make(mesh, (dt_placement[]){ DT_REPLICATE }, F32, &t);

    (void)arg;
    DT_TRY_TO(done, st, st);
    const double g = 0.5 * (double)((const float *)t.grad->local.data)[100];
    const dti_step_part part = dti_step_whole(t.grad, t.param, NULL, t.state);
    p = (double)((const float *)t.param->local.data)[100] * (1.0 - 0.01 * 0.1);
    m += (1.0 - 0.8) * (g - m);
    v = 0.9 * v + (1.0 - 0.9) * g * g;
    p -= 0.01 / (1.0 - pow(0.8, 3)) * m / (sqrt(v) / sqrt(1.0 - pow(0.9, 3)) + 1e-3);
    DT_TRY_TO(done, st, dti_optimizer_adamw(&part, &how, NULL));
    DT_EXPECT_CLOSE((double)((const float *)t.param->local.data)[100], p, 1e-6);
    DT_EXPECT_CLOSE((double)((const float *)t.state[0]->local.data)[100], m, 1e-7);
    DT_EXPECT_CLOSE((double)((const float *)t.state[1]->local.data)[100], v, 1e-7);
done:
    release(&t);
    return st;
}

DT_TEST(optimize, options_become_factors)
{
    dt_test_on_ranks("dp=1", follow_formulas, NULL);
}

/* The same digits from every cut: counts are added over ranks by whoever owns them. */
static dt_status add_digits(dt_mesh *mesh, const void *arg)
{
    int64_t digits[DTI_DIGITS_N] = { 0 }, want[DTI_DIGITS_N] = { 0 }, bad[2];
    trained t;
    dt_status st = make(mesh, (dt_placement[]){ DT_REPLICATE }, F32, &t);

    (void)arg;
    DT_TRY_TO(done, st, st);
    float *x = t.grad->local.data;
    dti_device *d = t.grad->device;
    DT_TRY_TO(done, st, dti_gradient_digits(d, x, COUNT, want, NULL));
    DT_TRY_TO(done, st, dti_gradient_digits(d, x + 100, COUNT - 100, digits, bad));
    DT_TRY_TO(done, st, dti_gradient_digits(d, x, 100, digits, NULL));
    DT_EXPECT(memcmp(digits, want, sizeof want) == 0, "the sum of two parts is another");
    DT_EXPECT(bad[0] == 0 && bad[1] == -1, "%lld values are bad", (long long)bad[0]);
    DT_EXPECT(dti_digits_total(want) > 200.0 && dti_digits_total(want) < 420.0, "%g",
              dti_digits_total(want));
    x[17] = NAN;
    DT_TRY_TO(done, st, dti_gradient_digits(d, x, COUNT, digits, bad));
    DT_EXPECT(bad[0] == 1 && bad[1] == 17, "the first bad value is %lld", (long long)bad[1]);
    DT_EXPECT(isnan(dti_digits_total(digits)), "a NaN is lost");
done:
    release(&t);
    return st;
}

DT_TEST(optimize, digits_add_up)
{
    dt_test_on_ranks("dp=1", add_digits, NULL);
}
