/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixtures of gradients are whole and belong to their checkpoints, and what compares with them
 * sees a gradient that is wrong. */
#include "tests/support/gradient_golden.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "files/checkpoint.h"
#include "tests/support/golden.h"
#include "tests/support/tensors.h"

static const char *const cases[] = { "short", "long" };

/* What a function makes of a gradient that is not zeros, with an array of as many elements. */
typedef void (*visit_fn)(const dt_golden_gradient *theirs, float *ours);

static void visit_all(visit_fn visit)
{
    for (size_t f = 0; f < DT_GOLDEN_FIXTURES; f++)
        for (size_t c = 0; c < DT_COUNT(cases); c++) {
            dt_gradient_golden x;
            DT_ASSERT_OK(dt_gradient_golden_open(dt_golden_fixtures[f], cases[c], &x));
            for (size_t i = 0; i < x.n_gradients; i++) {
                float *ours;
                if (x.gradients[i].largest == 0) continue;
                DT_ASSERT_OK(
                    dti_alloc_array((size_t)x.gradients[i].n, sizeof *ours, (void **)&ours));
                visit(&x.gradients[i], ours);
                dti_free(ours);
            }
            dt_gradient_golden_close(&x);
        }
}

/* tests/golden/README.md once more. */
static float sign(uint64_t i)
{
    uint64_t h = i * 0x9E3779B97F4A7C15u;

    h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93u;
    return ((h ^ (h >> 32)) & 1) != 0 ? -1.0F : 1.0F;
}

/* A gradient that has the stored values: elements themselves, or a sum in the first of its own. */
static void rebuild(const dt_golden_gradient *g, float *ours)
{
    for (int64_t i = 0; i < g->n; i++) ours[i] = 0;
    for (int64_t i = 0; i < g->n; i += g->chunk)
        ours[i] = g->values[i / g->chunk] * (g->chunk > 1 ? sign((uint64_t)i) : 1);
}

/* --- what is in the files --------------------------------------------------------------------- */

static void expect_tokens(const dt_gradient_golden *x)
{
    DT_ASSERT(x->n_valid > 0 && x->n_valid < x->rows * (x->length - 1));
    for (int64_t i = 0; i < x->rows * x->length; i++)
        if (x->targets[i] != DT_GRADIENT_IGNORED) {
            DT_ASSERT((i + 1) % x->length != 0);
            DT_ASSERT_EQ_INT(x->targets[i], x->tokens[i + 1]);
        }
    DT_ASSERT_CLOSE(x->loss_f32, x->loss_f64, 1e-6 * x->loss_f64);
    DT_ASSERT(x->loss_bf16 != x->loss_f32);
    DT_ASSERT_CLOSE(x->loss_bf16, x->loss_f64, 0.05 * x->loss_f64);
}

/* Names and shapes of the checkpoint's files, all of them but what looks at images. */
static void expect_parameters(const dt_gradient_golden *x)
{
    size_t n = 0;
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;

    DT_ASSERT_OK(dti_ckpt_open(x->folder, &ckpt));
    for (size_t i = 0; i < dti_ckpt_count(ckpt); i++) {
        const dti_st_entry *e = dti_ckpt_at(ckpt, i);
        const dt_golden_gradient *g = dt_gradient_golden_find(x, e->name);
        if (strstr(e->name, "vision") != NULL || strstr(e->name, "multi_modal") != NULL) continue;
        if (g == NULL) dt_test_fail(__FILE__, __LINE__, "%s: no gradient", e->name);
        n++;
        DT_ASSERT(g->largest > 0 || strstr(g->name, ".experts.") != NULL);
        DT_ASSERT_EQ_INT(g->n_axes, e->n_axes);
        for (int a = 0; a < g->n_axes; a++) DT_ASSERT_EQ_INT(g->shape[a], e->shape[a]);
    }
    DT_ASSERT_EQ_INT(n, x->n_gradients);
}

DT_TEST(gradient_golden, every_checkpoint_has_all_of_its_gradients)
{
    for (size_t f = 0; f < DT_GOLDEN_FIXTURES; f++)
        for (size_t c = 0; c < DT_COUNT(cases); c++) {
            dt_gradient_golden x;
            DT_ASSERT_OK(dt_gradient_golden_open(dt_golden_fixtures[f], cases[c], &x));
            DT_ASSERT_EQ_INT(x.rows, c + 1);
            DT_ASSERT_EQ_INT(x.length, c == 0 ? 9 : 33);
            expect_tokens(&x);
            expect_parameters(&x);
            dt_gradient_golden_close(&x);
        }
}

DT_TEST(gradient_golden, a_file_or_a_case_that_is_not_there_is_said)
{
    DT_ENDS(dt_gradient_golden_close) dt_gradient_golden x;

    DT_ASSERT_STATUS(dt_gradient_golden_open("llama/none", "short", &x), DT_ERR_IO, "llama/none");
    dt_gradient_golden_close(&x);
    DT_ASSERT_STATUS(dt_gradient_golden_open("llama/tied", "wide", &x), DT_ERR_INTERNAL,
                     "wide.targets");
}

/* Facts fit each other and the values, which are rounded to f32; f32 itself is as near as ours is
 * to be. */
static void expect_facts(const dt_golden_gradient *g, float *ours)
{
    double largest = 0, sum = 0;

    (void)ours;
    DT_ASSERT(g->f32_off <= 1e-5 * g->largest && g->bf16_rms <= g->bf16_max);
    for (int64_t v = 0; v <= (g->n - 1) / g->chunk; v++) {
        largest = fmax(largest, fabsf(g->values[v]));
        sum += (double)g->values[v] * g->values[v];
    }
    if (g->chunk == 1) DT_ASSERT_CLOSE(largest, g->largest, 0x1p-24 * g->largest);
    if (g->chunk == 1) DT_ASSERT_CLOSE(sqrt(sum / (double)g->n), g->rms, 1e-6 * g->rms);
    /* Signed sums estimate it, in some parameters with few rows that are not zeros. */
    DT_ASSERT_CLOSE(sqrt(sum / (double)g->n), g->rms, 0.75 * g->rms);
}

DT_TEST(gradient_golden, facts_fit_the_values)
{
    visit_all(expect_facts);
}

/* --- what compares with them ------------------------------------------------------------------ */

DT_TEST(gradient_golden, signs_are_those_of_the_script)
{
    /* signs(32) of tools/make_gradient_golden.py */
    static const signed char first[] = { 1, 1, 1,  -1, -1, -1, -1, -1, 1,  -1, 1,
                                         1, 1, 1,  1,  1,  -1, -1, -1, 1,  -1, 1,
                                         1, 1, -1, -1, -1, 1,  1,  -1, -1, 1 };

    for (size_t i = 0; i < DT_COUNT(first); i++) {
        const float value = first[i];
        const dt_golden_gradient g = { .n = 32, .chunk = 32, .values = &value, .largest = 1 };
        float ours[DT_COUNT(first)] = { 0 };
        ours[i] = 1;
        DT_ASSERT_EQ_INT((int)sign(i), first[i]);
        DT_ASSERT_CLOSE(dt_golden_gradient_off_f32(&g, ours), 0, 0);
    }
}

static void expect_near(const dt_golden_gradient *g, float *ours)
{
    rebuild(g, ours);
    DT_ASSERT_CLOSE(dt_golden_gradient_off_f32(g, ours), 0, 0);
    DT_ASSERT_CLOSE(dt_golden_gradient_off_bf16(g, ours), 0, 0);
}

DT_TEST(gradient_golden, a_gradient_with_these_values_is_near)
{
    visit_all(expect_near);
}

static void expect_scaled(const dt_golden_gradient *g, float *ours)
{
    const double f32 = 0.1, bf16 = 1.1; /* what would be seen anyhow */

    rebuild(g, ours);
    for (int64_t i = 0; i < g->n; i++) ours[i] *= 2;
    DT_ASSERT(dt_golden_gradient_off_f32(g, ours) > f32);
    DT_ASSERT(dt_golden_gradient_off_bf16(g, ours) > bf16);
    for (int64_t i = 0; i < g->n; i++) ours[i] *= 0.25F; /* as if one rank's term were lost */
    DT_ASSERT(dt_golden_gradient_off_f32(g, ours) > f32);
    DT_ASSERT(dt_golden_gradient_off_bf16(g, ours) > bf16);
}

DT_TEST(gradient_golden, one_that_is_scaled_is_seen)
{
    visit_all(expect_scaled);
}

/* Wherever in its sum, and whatever its sign there. */
static void expect_changed(const dt_golden_gradient *g, float *ours)
{
    rebuild(g, ours);
    for (int64_t i = 0; i < g->n; i += 1 + (i * 7) % 37 + g->n / 300) {
        const float before = ours[i];
        ours[i] += (float)((i % 2 == 0 ? 2e-5 : -2e-5) * g->largest);
        DT_ASSERT_CLOSE(dt_golden_gradient_off_f32(g, ours), 2e-5, 2e-6);
        ours[i] = before;
    }
    ours[g->n - 1] += (float)(2e-5 * g->largest);
    DT_ASSERT_CLOSE(dt_golden_gradient_off_f32(g, ours), 2e-5, 2e-6);
    ours[g->n - 1] = NAN;
    DT_ASSERT(isinf(dt_golden_gradient_off_f32(g, ours)));
    DT_ASSERT(isinf(dt_golden_gradient_off_bf16(g, ours)));
    ours[g->n - 1] = INFINITY;
    DT_ASSERT(isinf(dt_golden_gradient_off_f32(g, ours)));
    DT_ASSERT(isinf(dt_golden_gradient_off_bf16(g, ours)));
}

DT_TEST(gradient_golden, one_element_that_is_off_is_seen)
{
    visit_all(expect_changed);
}

/* A random error twice as large as theirs in bf16 is found to be that, estimated or not. */
static void expect_rms(const dt_golden_gradient *g, float *ours)
{
    const double deviation = g->chunk > 1 ? 1 / sqrt(2.0 * (double)(g->n / g->chunk)) : 0;
    DT_FREED float *error = NULL;
    double sum = 0;

    rebuild(g, ours);
    DT_ASSERT_OK(dti_alloc_array((size_t)g->n, sizeof *error, (void **)&error));
    dt_test_random(error, g->n, 7);
    for (int64_t i = 0; i < g->n; i++) sum += (double)error[i] * error[i];
    const double size = 2 * g->bf16_rms / sqrt(sum / (double)g->n);
    for (int64_t i = 0; i < g->n; i++) ours[i] += (float)(size * error[i]);
    DT_ASSERT_CLOSE(dt_golden_gradient_off_bf16(g, ours), 2, 2 * (1e-4 + 4 * deviation));
}

DT_TEST(gradient_golden, errors_in_bf16_are_measured)
{
    visit_all(expect_rms);
}

/* Those of experts that no token chose. */
DT_TEST(gradient_golden, some_gradients_are_zeros)
{
    DT_ENDS(dt_gradient_golden_close) dt_gradient_golden x;
    int n = 0;

    DT_ASSERT_OK(dt_gradient_golden_open("qwen3_moe/base", "short", &x));
    for (size_t i = 0; i < x.n_gradients; i++) {
        const dt_golden_gradient *g = &x.gradients[i];
        if (g->largest != 0) continue;
        n++;
        DT_ASSERT(strstr(g->name, ".experts.") != NULL);
        for (int64_t v = 0; v <= (g->n - 1) / g->chunk; v++) DT_ASSERT_CLOSE(g->values[v], 0, 0);
    }
    DT_ASSERT_EQ_INT(n, 6);
}

DT_TEST(gradient_golden, a_gradient_of_zeros_must_be_zeros)
{
    const float zeros[2] = { 0, 0 };
    float ours[32] = { 0 };
    const dt_golden_gradient g = { .n = 32, .chunk = 16, .values = zeros };

    ours[3] = -0.0F;
    DT_ASSERT_CLOSE(dt_golden_gradient_off_f32(&g, ours), 0, 0);
    DT_ASSERT_CLOSE(dt_golden_gradient_off_bf16(&g, ours), 0, 0);
    ours[3] = 1e-30F * sign(3); /* and what takes it out of its sum */
    ours[4] = -1e-30F * sign(4);
    DT_ASSERT(isinf(dt_golden_gradient_off_f32(&g, ours)));
    DT_ASSERT(isinf(dt_golden_gradient_off_bf16(&g, ours)));
}
