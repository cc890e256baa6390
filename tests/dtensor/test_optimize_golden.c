/* SPDX-License-Identifier: Apache-2.0
 *
 * Five steps beside those of PyTorch (tools/make_optimizer_golden.py), in its three forms: f32
 * operations that it fuses and we round one by one. */
#include <math.h>
#include <stdio.h>

#include "dtensor/optimize.h"
#include "dtensor/tensor_internal.h"
#include "files/safetensors.h"
#include "tests/support/dt_test.h"

enum { N = 101, STEPS = 5 };

typedef struct golden {
    dti_st_file *file;
    dti_st_stage stage;
    float p[N], g[STEPS * N];
    float most[N]; /* the steepest gradient of each element */
} golden;

static dt_status read(golden *g, const char *name, int64_t n, float *to)
{
    const dti_st_entry *e = dti_st_find(g->file, name);

    DT_EXPECT(e != NULL && e->dtype == DT_F32 && e->n_axes == 1 && e->shape[0] == n, "%s", name);
    return dti_st_read_slice(g->file, e, NULL, NULL, DT_F32, &g->stage, to);
}

/* The rules of the script. */
static const dti_adamw adamw = {
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .scale = 1.0
};
static const dti_adamw adamw_near = {
    .lr = 0.01, .beta1 = 0.3, .beta2 = 0.5, .eps = 1e-3, .scale = 1.0
};
static const dti_sgd sgd = { .lr = 0.1, .weight_decay = 0.01, .scale = 1.0 };
static const dti_sgd momentum = {
    .lr = 0.1, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.01, .scale = 1.0
};
static const dti_sgd nesterov = { .lr = 0.1, .momentum = 0.9, .nesterov = true, .scale = 1.0 };

static const struct {
    const char *name;
    const dti_adamw *adamw; /* or */
    const dti_sgd *sgd;
    const char *arrays; /* that there are */
} rules[] = { { "adamw", &adamw, NULL, "pmv" },
              { "adamw_near", &adamw_near, NULL, "pmv" },
              { "sgd", NULL, &sgd, "p" },
              { "momentum", NULL, &momentum, "pm" },
              { "nesterov", NULL, &nesterov, "pm" } };

static dt_status take_steps(int rule, dti_step_part part, const float *gradients)
{
    for (int64_t k = 1; k <= STEPS; k++) {
        part.grad = gradients + (k - 1) * N;
        if (rules[rule].adamw != NULL) {
            dti_adamw how = *rules[rule].adamw;
            how.step = k;
            DT_TRY(dti_optimizer_adamw(&part, &how, NULL));
        } else {
            dti_sgd how = *rules[rule].sgd;
            how.step = k;
            DT_TRY(dti_optimizer_sgd(&part, &how, NULL));
        }
    }
    return DT_OK;
}

/* How large numbers were that were added on the way to an element of array 'p', 'm' or 'v'. */
static double term(const golden *g, int rule, char array, int64_t i)
{
    const double steepest = (double)g->most[i], size = fabs((double)g->p[i]);

    if (array == 'm') return STEPS * (steepest + 0.01 * size);
    if (array == 'v') return steepest * steepest;
    return size + (rules[rule].adamw != NULL ? 0.01 : steepest);
}

static dt_status compare(golden *g, int rule, const float *const arrays[3])
{
    static const char *const forms[] = { "single", "foreach", "fused" };
    float want[N];
    char name[64];

    for (size_t f = 0; f < DT_COUNT(forms); f++)
        for (int a = 0; rules[rule].arrays[a] != '\0'; a++) {
            const char array = rules[rule].arrays[a];
            (void)snprintf(name, sizeof name, "%s_%s_%c", rules[rule].name, forms[f], array);
            DT_TRY(read(g, name, N, want));
            for (int64_t i = 0; i < N; i++)
                DT_EXPECT(fabs((double)arrays[a][i] - (double)want[i]) <=
                              0x1p-22 * term(g, rule, array, i),
                          "%s: element %lld is %.9g, not %.9g", name, (long long)i,
                          (double)arrays[a][i], (double)want[i]);
        }
    return DT_OK;
}

static dt_status follow_rule(dt_mesh *mesh, golden *g, int rule)
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t n = N;
    dt_tensor *p = NULL, *state[2] = { NULL, NULL };
    dt_status st = DT_OK;

    DT_TRY(dt_distribute(mesh, &whole, DT_F32, 1, &n, (dt_source){ g->p, DT_EQUAL_COPIES }, &p));
    for (int i = 0; i < 2; i++)
        DT_TRY_TO(done, st, dt_zeros(mesh, &whole, DT_F32, 1, &n, &state[i]));
    const dti_step_part part = dti_step_whole(p, p, NULL, state);
    DT_TRY_TO(done, st, take_steps(rule, part, g->g));
    DT_TRY_TO(done, st,
              compare(g, rule, (const float *[]){ part.param, part.state[0], part.state[1] }));
done:
    dt_tensor_release(&p);
    dt_tensor_release(&state[0]);
    dt_tensor_release(&state[1]);
    return st;
}

static dt_status follow_all(dt_mesh *mesh, const void *arg)
{
    golden *g = (golden *)(uintptr_t)arg;

    for (size_t r = 0; r < DT_COUNT(rules); r++) DT_TRY(follow_rule(mesh, g, (int)r));
    return DT_OK;
}

DT_TEST(optimize, steps_are_those_of_pytorch)
{
    static golden g;
    char path[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(path, "tests/golden/optimizer.safetensors");
    DT_ASSERT_OK(dti_st_open(path, &g.file));
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &g.stage));
    DT_ASSERT_OK(read(&g, "p", N, g.p));
    DT_ASSERT_OK(read(&g, "g", STEPS * N, g.g));
    for (int i = 0; i < STEPS * N; i++) g.most[i % N] = fmaxf(g.most[i % N], fabsf(g.g[i]));
    dt_test_on_ranks("dp=1", follow_all, &g);
    dti_st_stage_destroy(&g.stage);
    dti_st_close(&g.file);
}
