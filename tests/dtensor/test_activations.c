/* SPDX-License-Identifier: Apache-2.0
 *
 * Activations beside those of Transformers (tools/make_activations_golden.py), in three dtypes: a
 * step that should round and does not, or the other way round, shows in the halves. */
#include <dtensor/ops.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "files/safetensors.h"
#include "tests/support/dt_test.h"

enum { MOST = 512 };

typedef struct golden {
    dti_st_file *file;
    dti_st_stage stage;
} golden;

static dt_status read(const golden *g, const char *name, const char *suffix, dt_dtype dtype,
                      void *to, int64_t *n)
{
    char full[64];
    const dti_st_entry *e;

    (void)snprintf(full, sizeof full, "%s_%s", name, suffix);
    e = dti_st_find(g->file, full);
    DT_EXPECT(e != NULL && e->dtype == dtype && e->n_axes == 1 && e->shape[0] <= MOST, "%s", full);
    *n = e->shape[0];
    return dti_st_read_slice(g->file, e, NULL, NULL, dtype, &g->stage, to);
}

/* In halves nearly all values have PyTorch's bits: of two functions that are right to f32 few
 * results lie on different sides of the middle between two neighbours. Then each is the neighbour,
 * or what follows from that where steps round. `same`: how many have the bits. */
static dt_status compare(const char *name, dt_dtype dtype, const void *x, const void *got,
                         const void *want, int64_t n)
{
    const double unit = dtype == DT_BF16 ? 0x1p-7 : dtype == DT_F16 ? 0x1p-10 : 1e-6;
    int64_t same = 0;

    for (int64_t i = 0; i < n; i++) {
        const double v = (double)dti_load_f32(x, dtype, i);
        const double g = (double)dti_load_f32(got, dtype, i);
        const double w = (double)dti_load_f32(want, dtype, i);
        const double lost = dtype == DT_F32 ? 0x1p-23 : 0.0; /* by 1 + erf, near -1 */
        DT_EXPECT(fabs(g - w) <= unit * (fabs(w) + 0.25 * fabs(v)) + lost || (isnan(g) && isnan(w)),
                  "%s(%.9g) in %s is %.9g, not %.9g", name, v, dt_dtype_name(dtype), g, w);
        same += g == w || (isnan(g) && isnan(w));
    }
    DT_EXPECT(dtype == DT_F32 || same >= n - n / 50, "%s in %s: %lld of %lld have other bits", name,
              dt_dtype_name(dtype), (long long)(n - same), (long long)n);
    return DT_OK;
}

static dt_status matches(dt_mesh *mesh, const void *arg)
{
    static const char *const suffixes[] = { "f32", "bf16", "f16" };
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16, DT_F16 };
    const golden *g = arg;
    const dt_placement whole = DT_REPLICATE;
    float x[MOST], want[MOST];
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int64_t n = 0;

    for (int d = 0; d < 3; d++) {
        dt_tensor *in;
        DT_TRY(read(g, "x", suffixes[d], dtypes[d], x, &n));
        DT_TRY(
            dt_distribute(mesh, &whole, dtypes[d], 1, &n, (dt_source){ x, DT_EQUAL_COPIES }, &in));
        in = dt_tape_own(t, in);
        for (int i = 0; dt_activation_at(i) != NULL; i++) {
            const dt_activation *a = dt_activation_at(i);
            dt_tensor *y = dt_activate(t, a, in);
            DT_TRY(dt_tape_status(t));
            DT_TRY(read(g, a->name, suffixes[d], dtypes[d], want, &n));
            DT_TRY(compare(a->name, dtypes[d], x, dt_tensor_local(y)->data, want, n));
        }
    }
    return DT_OK;
}

static void open_golden(golden *g)
{
    char path[DT_TEST_PATH_BYTES];

    *g = (golden){ 0 };
    (void)dt_test_source_path(path, "tests/golden/activations.safetensors");
    DT_ASSERT_OK(dti_st_open(path, &g->file));
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &g->stage));
}

DT_TEST(activations, all_of_transformers_with_its_rounding)
{
    golden g;

    open_golden(&g);
    dt_test_on_ranks("tp=1", matches, &g);
    dti_st_stage_destroy(&g.stage);
    dti_st_close(&g.file);
}

/* The check sees a formula that rounds once where Python's rounds after every step, and two of one
 * family that differ in their constants. */
static dt_status sees_others(dt_mesh *mesh, const void *arg)
{
    static const char *const pairs[][2] = { { "gelu_new", "gelu_pytorch_tanh" },
                                            { "gelu_python", "gelu" },
                                            { "gelu_fast", "gelu_new" },
                                            { "quick_gelu", "silu" },
                                            { "relu6", "relu" } };
    const golden *g = arg;
    uint16_t x[MOST], one[MOST], two[MOST];
    int64_t n;

    (void)mesh;
    DT_TRY(read(g, "x", "bf16", DT_BF16, x, &n));
    for (size_t i = 0; i < DT_COUNT(pairs); i++) {
        DT_TRY(read(g, pairs[i][0], "bf16", DT_BF16, one, &n));
        DT_TRY(read(g, pairs[i][1], "bf16", DT_BF16, two, &n));
        DT_EXPECT(compare(pairs[i][0], DT_BF16, x, two, one, n) != DT_OK, "%s passes as %s",
                  pairs[i][1], pairs[i][0]);
    }
    return DT_OK;
}

DT_TEST(activations, another_rounding_would_be_seen)
{
    golden g;

    open_golden(&g);
    dt_test_on_ranks("tp=1", sees_others, &g);
    dti_st_stage_destroy(&g.stage);
    dti_st_close(&g.file);
}
