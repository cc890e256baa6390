/* SPDX-License-Identifier: Apache-2.0
 *
 * What a sum is rounded to does not depend on the plan that was taken, and so not on links. */
#include <dtensor/tensor.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/move_cache.h"
#include "tests/support/dt_test.h"

enum { ROWS = 64, COLUMNS = 61 }; /* columns that no number of ranks divides */

typedef struct rounding_case {
    dt_dtype dtype;
    dt_reduce first, second; /* of mesh dims 0 and 1 */
} rounding_case;

/* A term of coordinates (a, b): sums of bf16 and f16 that come out otherwise if rounded twice, and
 * integers whose averages do if divided twice. Exact in f32, in any order. */
static double term_of(dt_dtype dtype, int a, int b, int64_t i)
{
    const double ulp = dtype == DT_BF16 ? 0x1p-8 : 0x1p-11;

    if (dtype == DT_I32) return a == b ? 3 : 2 + (double)(i % 5);
    return a == 0 && b == 0 ? 1 + 16 * ulp * (double)(i % 7) : ulp * (1 + a + 2 * b);
}

static double averaged(double sum, dt_dtype dtype, int n)
{
    return dtype == DT_I32 ? trunc(sum / n) : sum / n;
}

/* What element i of the whole has to be: all terms, divided once, rounded once. */
static double whole_of(const dt_mesh *mesh, const rounding_case *c, int64_t i)
{
    const int p = dt_mesh_dim_size(mesh, 0), q = dt_mesh_dim_size(mesh, 1);
    const int n = (c->first == DT_AVG ? p : 1) * (c->second == DT_AVG ? q : 1);
    uint16_t half;
    double sum = 0;

    for (int a = 0; a < p; a++)
        for (int b = 0; b < q; b++) sum += term_of(c->dtype, a, b, i);
    sum = averaged(sum, c->dtype, n);
    if (c->dtype == DT_I32) return sum;
    dti_store_f32(&half, c->dtype, 0, (float)sum);
    return (double)dti_load_f32(&half, c->dtype, 0);
}

static dt_status make(dt_mesh *mesh, const rounding_case *c, dt_tensor **out)
{
    const dt_placement place[] = { DT_PARTIAL(c->first), DT_PARTIAL(c->second) };
    const int64_t shape[] = { ROWS, COLUMNS };
    const int a = dt_mesh_coord(mesh, 0), b = dt_mesh_coord(mesh, 1);
    int32_t data[ROWS * COLUMNS];

    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        if (c->dtype == DT_I32)
            data[i] = (int32_t)term_of(c->dtype, a, b, i);
        else
            dti_store_f32(data, c->dtype, i, (float)term_of(c->dtype, a, b, i));
    return dt_from_local(mesh, place, c->dtype, 2, shape, data, out);
}

static dt_status check(const dt_tensor *whole, const dt_mesh *mesh, const rounding_case *c,
                       const char *how)
{
    const void *data = dt_tensor_local(whole)->data;

    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        const double want = whole_of(mesh, c, i);
        const double got = c->dtype == DT_I32 ? (double)((const int32_t *)data)[i]
                                              : (double)dti_load_f32(data, c->dtype, i);
        DT_EXPECT(got >= want && got <= want, "%s: element %lld is %.9g, not %.9g", how,
                  (long long)i, got, want);
    }
    return DT_OK;
}

static int reductions(const dti_move *plan)
{
    int n = 0;

    for (int i = 0; i < plan->n_steps; i++)
        n += plan->step[i].kind == DTI_MOVE_ALL_REDUCE ||
             plan->step[i].kind == DTI_MOVE_REDUCE_SCATTER;
    return n;
}

static dt_status bits_do_not_depend_on_links(dt_mesh *mesh, const void *arg)
{
    const dt_placement wanted[][2] = { { DT_REPLICATE, DT_REPLICATE },
                                       { DT_SHARD(0), DT_SHARD(1) },
                                       { DT_SHARD(1), DT_REPLICATE } };
    static const dt_link links[][2] = {
        { { 1000, 10 }, { 1000, 10 } },    { { 1000, 0.001 }, { 10, 1000 } },
        { { 10, 1000 }, { 1000, 0.001 } }, { { 1e6, 1 }, { 1, 0.001 } },
        { { 0, 10 }, { 0, 1 } },
    };
    const rounding_case *c = arg;
    DT_HELD(tensor) *x = NULL, *y = NULL, *z = NULL;
    int most = 0, least = 9;

    DT_TRY(make(mesh, c, &x));
    for (size_t l = 0; l < DT_COUNT(links); l++)
        for (size_t w = 0; w < DT_COUNT(wanted); w++) {
            const dti_move *plan;
            char how[64];
            DT_TRY(dt_mesh_set_links(mesh, links[l]));
            DT_TRY(dt_redistribute(x, wanted[w], &y));
            DT_TRY(dti_move_cache_plan(x, dt_tensor_layout(y), &plan));
            const int n = reductions(plan);
            most = n > most ? n : most;
            least = n < least ? n : least;
            DT_TRY(dt_full_tensor(y, &z));
            (void)snprintf(how, sizeof how, "links %d, to %d, %d reductions", (int)l, (int)w, n);
            DT_TRY(check(z, mesh, c, how));
            dt_tensor_release(&y);
            dt_tensor_release(&z);
        }
    DT_EXPECT(least == 1 && most == 2,
              "plans of one and of two reductions are needed here, not of %d and %d", least, most);
    return DT_OK;
}

DT_TEST(move_rounding, bits_do_not_depend_on_links)
{
    static const rounding_case cases[] = {
        { DT_BF16, DT_SUM, DT_SUM }, { DT_F16, DT_SUM, DT_SUM },  { DT_BF16, DT_AVG, DT_AVG },
        { DT_I32, DT_AVG, DT_AVG },  { DT_BF16, DT_SUM, DT_AVG }, { DT_F16, DT_AVG, DT_SUM },
        { DT_I32, DT_AVG, DT_SUM },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dt_test_on_ranks("a=2,b=2", bits_do_not_depend_on_links, &cases[i]);
        dt_test_on_ranks("a=3,b=2", bits_do_not_depend_on_links, &cases[i]);
    }
}

/* --- casts ------------------------------------------------------------------------------------ */

/* Terms of two ranks whose sum, f32, is rounded to the other half float: in two roundings, by way
 * of their own dtype, it would be another value. */
typedef struct cast_rounding {
    dt_dtype from, to;
    dt_reduce reduce;
    float term[2];
    float want, twice;
} cast_rounding;

static dt_status casts_round_once(dt_mesh *mesh, const void *arg)
{
    const cast_rounding *c = arg;
    const dt_placement partial = DT_PARTIAL(c->reduce);
    const dt_placement wanted[] = { DT_REPLICATE, DT_SHARD(0), DT_SHARD(1) };
    const int64_t shape[] = { 5, 6 };
    DT_HELD(tensor) *x = NULL, *y = NULL, *whole = NULL;
    double data[30];

    for (int64_t i = 0; i < 30; i++) {
        const float term = c->term[dt_mesh_coord(mesh, 0)];
        dti_store_f32(data, c->from, i, term);
        DT_EXPECT_CLOSE(dti_load_f32(data, c->from, i), term, 0);
    }
    DT_TRY(dt_from_local(mesh, &partial, c->from, 2, shape, data, &x));
    for (size_t w = 0; w < DT_COUNT(wanted); w++) {
        DT_TRY(dt_redistribute_cast(x, &wanted[w], c->to, &y));
        DT_TRY(dt_full_tensor(y, &whole));
        for (int64_t i = 0; i < 30; i++) {
            const float got = dti_load_f32(dt_tensor_local(whole)->data, c->to, i);
            DT_EXPECT(got >= c->want && got <= c->want,
                      "%s to %s: %.9g, not %.9g (%.9g is rounded twice)", dt_dtype_name(c->from),
                      dt_dtype_name(c->to), (double)got, (double)c->want, (double)c->twice);
        }
        dt_tensor_release(&whole);
        dt_tensor_release(&y);
    }
    return DT_OK;
}

DT_TEST(move_rounding, casts_of_sums_round_once)
{
    static const cast_rounding cases[] = {
        /* 1 + 2^-8 is half way between two bf16, and a f16 */
        { DT_BF16, DT_F16, DT_SUM, { 1, 0x1p-8f }, 1 + 0x1p-8f, 1 },
        { DT_BF16, DT_F16, DT_AVG, { 2, 0x1p-7f }, 1 + 0x1p-8f, 1 },
        { DT_BF16, DT_F16, DT_PROD, { 1 + 0x1p-7f, 1 + 0x1p-6f }, 1.0234375f, 1.0234375f },
        /* a little above half way, which f16 does not see */
        { DT_F16, DT_BF16, DT_SUM, { 1 + 0x1p-8f, 0x1p-12f }, 1 + 0x1p-7f, 1 },
        { DT_F16, DT_BF16, DT_SUM, { 40000, 40000 }, 79872, INFINITY },
        { DT_F32, DT_BF16, DT_SUM, { 1 + 0x1p-8f, 0x1p-20f }, 1 + 0x1p-7f, 1 },
        { DT_BF16, DT_F32, DT_SUM, { 1, 0x1p-8f }, 1 + 0x1p-8f, 1 },
        { DT_BF16, DT_F16, DT_MAX, { 1, 0x1p-8f }, 1, 1 },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks("a=2", casts_round_once, &cases[i]);
}

/* f64 becomes a half float without a stop at f32. */
DT_TEST(move_rounding, doubles_round_once)
{
    const double up = 1 + 0x1p-8 + 0x1p-40, down = 1 + 0x1p-7 + 0x1p-8 - 0x1p-40;
    const double values[] = { up, -up, down, -down, 1e300, -1e300, 0x1p-300, 1.5, INFINITY };
    const float bf16[] = { 1 + 0x1p-7f, -1 - 0x1p-7f, 1 + 0x1p-7f, -1 - 0x1p-7f,
                           INFINITY,    -INFINITY,    0,           1.5f,
                           INFINITY };
    const double tie[] = { 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-10 + 0x1p-11 - 0x1p-40 };
    uint16_t half[DT_COUNT(values)];

    dti_convert(half, DT_BF16, values, DT_F64, (int64_t)DT_COUNT(values));
    for (size_t i = 0; i < DT_COUNT(values); i++)
        DT_ASSERT(memcmp(&(float){ dti_bf16_to_f32(half[i]) }, &bf16[i], 4) == 0);
    dti_convert(half, DT_F16, tie, DT_F64, 2);
    DT_ASSERT(half[0] == 0x3c01 && half[1] == 0x3c01);
    dti_convert(half, DT_F16, &(double){ NAN }, DT_F64, 1);
    DT_ASSERT((half[0] & 0x7c00) == 0x7c00 && (half[0] & 0x3ff) != 0);
}
