/* SPDX-License-Identifier: Apache-2.0
 *
 * Factories: whatever the placement and the mesh, a tensor has the same elements. */
#include <dtensor/factories.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/kernels/cpu/cpu_random.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

static const dt_random key = { 42, 5 };

typedef enum maker { FULL, ARANGE, RAND, RANDN, RANDINT, N_MAKERS } maker;

static dt_status make(maker how, dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                      int n_axes, const int64_t *shape, dt_tensor **out)
{
    switch (how) {
    case FULL:
        return dt_full(mesh, place, dtype, n_axes, shape, 7.0, out);
    case ARANGE:
        return dt_arange(mesh, place, dtype, n_axes, shape, (dt_steps){ 3.0, 2.0 }, out);
    case RAND:
        return dt_rand(mesh, place, dtype, n_axes, shape, key, out);
    case RANDN:
        return dt_randn(mesh, place, dtype, n_axes, shape, key, out);
    default:
        DT_TRY(dt_empty(mesh, place, dtype, n_axes, shape, out));
        return dt_fill_randint(*out, key, 0, 100);
    }
}

/* Element g of the tensor that `how` makes, written by formulas that know no placement. */
static void element(maker how, dt_dtype dtype, int64_t g, void *to)
{
    const int64_t whole = how == FULL ? 7 : 3 + 2 * g;
    const dti_random_fill f = { .kind = how == RAND    ? DTI_RANDOM_UNIFORM
                                        : how == RANDN ? DTI_RANDOM_NORMAL
                                                       : DTI_RANDOM_INTEGER,
                                .dtype = dtype,
                                .key = key,
                                .scale = 1.0,
                                .range = 100 };

    if (how >= RAND)
        dti_random_portable(&f, to, g, 1);
    else if (dtype == DT_I64)
        memcpy(to, &whole, 8);
    else if (dtype == DT_I32)
        memcpy(to, &(int32_t){ (int32_t)whole }, 4);
    else if (dtype == DT_U8)
        memcpy(to, &(uint8_t){ (uint8_t)whole }, 1);
    else
        dti_store_f32(to, dtype, 0, (float)whole);
}

/* The global row of row `at` of this rank's piece of axis `a`. */
static dt_status row_of(const dt_tensor *x, int a, int64_t at, int64_t *row)
{
    int64_t shape[DT_MAX_AXES];
    int coord[DT_MAX_DIMS], n;
    dt_rows runs[DT_MAX_RUNS];

    for (int i = 0; i < dt_tensor_n_axes(x); i++) shape[i] = dt_tensor_extent(x, i);
    for (int m = 0; m < dt_mesh_n_dims(dt_tensor_mesh(x)); m++)
        coord[m] = dt_mesh_coord(dt_tensor_mesh(x), m);
    DT_TRY(dt_layout_runs(dt_tensor_layout(x), shape, a, coord, runs, &n));
    for (int i = 0; i < n; i++) {
        *row = runs[i].begin + at;
        at -= runs[i].end - runs[i].begin;
        if (at < 0) return DT_OK;
    }
    DT_EXPECT(false, "the piece has rows that the layout does not know");
    return DT_OK;
}

/* Every element of this rank's piece is the one of its global index. */
static dt_status check_piece(const dt_tensor *x, maker how)
{
    const dt_local *l = dt_tensor_local(x);
    const size_t bytes = dt_dtype_size(l->dtype);
    int64_t n = 1;

    for (int a = 0; a < l->n_axes; a++) n *= l->shape[a];
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, g = 0, stride = 1;
        char want[8];
        for (int a = l->n_axes - 1; a >= 0; a--) {
            int64_t row = 0;
            DT_TRY(row_of(x, a, rest % l->shape[a], &row));
            g += row * stride;
            stride *= dt_tensor_extent(x, a);
            rest /= l->shape[a];
        }
        element(how, l->dtype, g, want);
        DT_EXPECT(memcmp((const char *)l->data + (size_t)i * bytes, want, bytes) == 0,
                  "maker %d, %s: element %lld differs", (int)how, dt_dtype_name(l->dtype),
                  (long long)g);
    }
    return DT_OK;
}

typedef struct shape_case {
    int n_axes;
    int64_t shape[3];
} shape_case;

static dt_status same_everywhere(dt_mesh *mesh, const void *arg)
{
    const shape_case *c = arg;
    const int n_dims = dt_mesh_n_dims(mesh), choices = c->n_axes + 1;
    int combos = 1;

    for (int m = 0; m < n_dims; m++) combos *= choices;
    for (int i = 0; i < combos; i++) {
        dt_placement place[DT_MAX_DIMS];
        for (int m = 0, rest = i; m < n_dims; m++, rest /= choices)
            place[m] = rest % choices == 0 ? DT_REPLICATE : DT_SHARD(rest % choices - 1);
        for (int how = 0; how < N_MAKERS; how++)
            for (int t = 0; t < DT_N_DTYPES; t++) {
                dt_tensor *x;
                dt_status st;
                if (!dt_dtype_is_float((dt_dtype)t) && (how == RAND || how == RANDN)) continue;
                DT_TRY(make((maker)how, mesh, place, (dt_dtype)t, c->n_axes, c->shape, &x));
                st = check_piece(x, (maker)how);
                dt_tensor_release(&x);
                DT_TRY(st);
            }
    }
    return DT_OK;
}

DT_TEST(factories, elements_do_not_depend_on_the_placement_or_the_mesh)
{
    static const shape_case cases[] = {
        { 2, { 5, 7 } }, { 3, { 3, 2, 5 } }, { 2, { 0, 4 } }, { 1, { 97 } }, { 0, { 0 } },
    };
    static const char *const meshes[] = { "tp=1",      "tp=2",      "tp=3",       "tp=4",
                                          "dp=2,tp=2", "dp=3,tp=2", "a=2,b=2,c=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t c = 0; c < DT_COUNT(cases); c++)
            dt_test_on_ranks(meshes[m], same_everywhere, &cases[c]);
}

/* Offsets, packed blocks, and cuts of one axis in another order than the default. */
static dt_status odd_places(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 7, 5 };
    const dt_placement columns = DT_SHARD(1), packed = DT_SHARD_PACKED(0, 3, 1, 3);
    const dt_placement cases[][2] = {
        { DT_SHARD_OFFSETS(0, 0, 0, 7), columns },
        { DT_SHARD_OFFSETS(0, 0, 5, 7), DT_SHARD_OFFSETS(1, 0, 4, 5) },
        { packed, DT_REPLICATE },
        { packed, DT_SHARD_PACKED(1, 2, 3) },
        { DT_SHARD_NTH(0, 1), DT_SHARD_NTH(0, 0) },
        { packed, DT_SHARD(0) },
    };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++)
        for (int how = 0; how < N_MAKERS; how++) {
            dt_tensor *x;
            dt_status st;
            DT_TRY(make((maker)how, mesh, cases[i], DT_F32, 2, shape, &x));
            st = check_piece(x, (maker)how);
            dt_tensor_release(&x);
            DT_TRY(st);
        }
    return DT_OK;
}

DT_TEST(factories, elements_do_not_depend_on_offsets_blocks_or_order)
{
    dt_test_on_ranks("dp=2,tp=2", odd_places, NULL);
}

/* A tensor large enough for all workers of a rank is the same as with one. */
static dt_status large(dt_mesh *mesh, const void *arg)
{
    const dt_placement columns = DT_SHARD(1);
    const int64_t shape[] = { 300, 301 };
    dt_status st = DT_OK;
    dt_tensor *x;

    (void)arg;
    DT_TRY(dt_randn(mesh, &columns, DT_F32, 2, shape, key, &x));
    st = check_piece(x, RANDN);
    dt_tensor_release(&x);
    return st;
}

DT_TEST(factories, workers_change_no_bit)
{
    for (int threads = 1; threads <= 3; threads++) {
        dt_run_options o = DT_TEST_RUN_OPTIONS;
        o.threads_per_rank = threads;
        DT_ASSERT_OK(dt_test_run(&o, "tp=2", large, NULL));
    }
}

/* bf16 and f16 are rounded f32, so that a model's initialisation does not depend on its dtype. */
static dt_status narrow(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t n = 1000;
    DT_HELD(tensor) *x = NULL, *y = NULL;

    (void)arg;
    for (int t = DT_BF16; t <= DT_F16; t++) {
        DT_TRY(dt_randn(mesh, &whole, DT_F32, 1, &n, key, &x));
        DT_TRY(dt_randn(mesh, &whole, (dt_dtype)t, 1, &n, key, &y));
        for (int64_t i = 0; i < n; i++) {
            uint16_t want;
            dti_store_f32(&want, (dt_dtype)t, 0, ((float *)dt_tensor_local(x)->data)[i]);
            DT_EXPECT(((uint16_t *)dt_tensor_local(y)->data)[i] == want, "%lld", (long long)i);
        }
        dt_tensor_release(&x);
        dt_tensor_release(&y);
    }
    return DT_OK;
}

DT_TEST(factories, narrow_normals_are_rounded_wide_ones)
{
    dt_test_on_ranks("tp=1", narrow, NULL);
}

static dt_status intervals(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows = DT_SHARD(0);
    const int64_t n = 4000;
    DT_HELD(tensor) *x = NULL;
    int seen = 0;

    (void)arg;
    DT_TRY(dt_ones(mesh, &rows, DT_F32, 1, &n, &x));
    DT_TRY(dt_fill_rand(x, key, -2.0, 3.0));
    for (int64_t i = 0; i < dt_tensor_local(x)->shape[0]; i++) {
        const float v = ((float *)dt_tensor_local(x)->data)[i];
        DT_EXPECT(v >= -2.0f && v < 3.0f, "%g", (double)v);
    }
    DT_TRY(dt_fill_randn(x, key, 100.0, 0.0));
    DT_EXPECT(((float *)dt_tensor_local(x)->data)[7] == 100.0f, "deviation 0");
    DT_TRY(dt_fill_randint(x, key, -1, 2));
    for (int64_t i = 0; i < dt_tensor_local(x)->shape[0]; i++) {
        const float v = ((float *)dt_tensor_local(x)->data)[i];
        DT_EXPECT(v == -1.0f || v == 0.0f || v == 1.0f, "%g", (double)v);
        seen |= 1 << (int)(v + 1.0f);
    }
    DT_EXPECT(seen == 7, "seen %d", seen);
    return DT_OK;
}

DT_TEST(factories, intervals_are_kept)
{
    dt_test_on_ranks("tp=2", intervals, NULL);
}

/* Case 70: a key is all the state there is. */
DT_TEST(factories, generators_advance_and_restart)
{
    dt_random a = { 9, 0 }, b = { 9, 0 };

    for (uint64_t i = 0; i < 3; i++) {
        const dt_random x = dt_random_next(&a), y = dt_random_next(&b);
        DT_ASSERT(x.seed == y.seed && x.stream == y.stream && x.stream == i);
    }
    a = (dt_random){ 9, 0 };
    DT_ASSERT(dt_random_next(&a).stream == 0);
}

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows = DT_SHARD(0), terms = DT_PARTIAL(DT_SUM);
    const int64_t shape[] = { 4, 3 }, negative[] = { 4, -3 };
    DT_HELD(tensor) *x = NULL, *bytes = NULL, *p = NULL;
    dt_tensor *bad;
    float data[12] = { 0 };

    (void)arg;
    DT_TRY(dt_ones(mesh, &rows, DT_I32, 2, shape, &x));
    DT_TRY(dt_ones(mesh, &rows, DT_U8, 2, shape, &bytes));
    DT_TRY(dt_from_local(mesh, &terms, DT_F32, 2, shape, data, &p));
#define REFUSED(call, code, text) \
    DT_TRY(dt_test_expect_status(__func__, __FILE__, __LINE__, call, code, text))
    REFUSED(dt_full(mesh, &rows, DT_I32, 2, shape, 0.5, &bad), DT_ERR_ARG,
            "value is 0.5, which i32 cannot hold");
    REFUSED(dt_full(mesh, &rows, DT_U8, 2, shape, 256, &bad), DT_ERR_ARG, "256, which u8");
    REFUSED(dt_full(mesh, &rows, DT_I64, 2, shape, (double)NAN, &bad), DT_ERR_ARG,
            "nan, which i64");
    REFUSED(dt_full(mesh, &rows, DT_I64, 2, shape, 0x1p63, &bad), DT_ERR_ARG,
            "which i64 cannot hold");
    REFUSED(dt_full(mesh, &terms, DT_F32, 2, shape, 1, &bad), DT_ERR_LAYOUT, "not created Partial");
    REFUSED(dt_full(mesh, &rows, DT_F32, 2, negative, 1, &bad), DT_ERR_SHAPE,
            "axis 1 has extent -3");
    REFUSED(dt_full(mesh, &rows, (dt_dtype)77, 2, shape, 1, &bad), DT_ERR_ARG, "77 is no dtype");
    REFUSED(dt_full(NULL, &rows, DT_F32, 2, shape, 1, &bad), DT_ERR_ARG, "mesh or place is NULL");
    REFUSED(dt_full(mesh, &rows, DT_F32, 2, shape, 1, NULL), DT_ERR_ARG, "out is NULL");
    REFUSED(dt_arange(mesh, &rows, DT_U8, 2, shape, (dt_steps){ 0, 25 }, &bad), DT_ERR_ARG,
            "the last element is 275");
    REFUSED(dt_arange(mesh, &rows, DT_I32, 2, shape, (dt_steps){ 0, 1e300 }, &bad), DT_ERR_ARG,
            "step is 1.0");
    REFUSED(dt_arange(mesh, &rows, DT_I64, 2, shape, (dt_steps){ 0x1p62, 0x1p59 }, &bad),
            DT_ERR_ARG, "which i64 cannot hold");
    REFUSED(dt_arange(mesh, &rows, DT_I64, 2, shape, (dt_steps){ -0x1p62, -0x1p59 }, &bad),
            DT_ERR_ARG, "which i64 cannot hold");
    REFUSED(dt_rand(mesh, &rows, DT_I32, 2, shape, key, &bad), DT_ERR_ARG,
            "dt_fill_randint() makes whole numbers");
    REFUSED(dt_fill_rand(x, key, 1.0, 0.0), DT_ERR_ARG, "no uniform values in [1, 0)");
    REFUSED(dt_fill_rand(x, key, 0.0, INFINITY), DT_ERR_ARG, "must be finite");
    REFUSED(dt_fill_randn(x, key, 0.0, -1.0), DT_ERR_ARG, "deviation -1");
    REFUSED(dt_fill_randint(x, key, 3, 3), DT_ERR_ARG, "no whole number in [3, 3)");
    REFUSED(dt_fill_randint(bytes, key, 0, 257), DT_ERR_ARG, "high - 1 is 256, which u8");
    REFUSED(dt_fill_randint(bytes, key, -1, 2), DT_ERR_ARG, "low is -1, which u8");
    REFUSED(dt_fill(p, 1.0), DT_ERR_LAYOUT, "a Partial tensor has terms, not elements");
    REFUSED(dt_fill(NULL, 1.0), DT_ERR_ARG, "x is NULL");
#undef REFUSED
    return DT_OK;
}

DT_TEST(factories, misuse_is_refused_with_the_numbers)
{
    dt_test_on_ranks("tp=2", refused, NULL);
}

/* Steps whose multiples leave the range of an i64 though the elements do not, up to its ends. */
static dt_status whole_numbers(dt_mesh *mesh, const void *arg)
{
    static const struct {
        dt_steps steps;
        int64_t n, want[3];
    } cases[] = {
        { { -9e18, 9e18 }, 3, { -9000000000000000000, 0, 9000000000000000000 } },
        { { 9e18, -9e18 }, 3, { 9000000000000000000, 0, -9000000000000000000 } },
        { { -0x1p63, 0x1p62 }, 3, { INT64_MIN, INT64_MIN / 2, 0 } },
        { { 0x1p62, -0x1p63 }, 2, { INT64_MAX / 2 + 1, INT64_MIN / 2 } },
        { { 0.0, -0x1p62 }, 3, { 0, INT64_MIN / 2, INT64_MIN } },
    };
    const dt_placement whole = DT_REPLICATE;

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dt_tensor *x;
        DT_TRY(dt_arange(mesh, &whole, DT_I64, 1, &cases[i].n, cases[i].steps, &x));
        const bool same = memcmp(dt_tensor_local(x)->data, cases[i].want,
                                 (size_t)cases[i].n * sizeof(int64_t)) == 0;
        dt_tensor_release(&x);
        DT_EXPECT(same, "case %d", (int)i);
    }
    return DT_OK;
}

DT_TEST(factories, whole_numbers_reach_both_ends)
{
    dt_test_on_ranks("tp=1", whole_numbers, NULL);
}

/* The largest of all is a whole number that no double equals. */
static dt_status largest(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t n = 3;
    DT_HELD(tensor) *x = NULL;

    (void)arg;
    DT_TRY(dt_zeros(mesh, &whole, DT_I64, 1, &n, &x));
    DT_TRY(dt_fill_randint(x, (dt_random){ 1, 0 }, INT64_MAX - 1, INT64_MAX));
    DT_EXPECT(*(const int64_t *)dt_tensor_local(x)->data == INT64_MAX - 1, "another");
    return DT_OK;
}

DT_TEST(factories, random_numbers_reach_the_largest)
{
    dt_test_on_ranks("tp=1", largest, NULL);
}
