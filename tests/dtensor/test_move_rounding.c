/* SPDX-License-Identifier: Apache-2.0
 *
 * What a sum is rounded to does not depend on the plan that was taken, and so not on links. */
#include <dtensor/tensor.h>
#include <math.h>
#include <stdio.h>

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
    dt_tensor *x = NULL, *y = NULL, *z = NULL;
    int most = 0, least = 9;
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, make(mesh, c, &x));
    for (size_t l = 0; l < DT_COUNT(links); l++)
        for (size_t w = 0; w < DT_COUNT(wanted); w++) {
            const dti_move *plan;
            char how[64];
            DT_TRY_TO(done, st, dt_mesh_set_links(mesh, links[l]));
            DT_TRY_TO(done, st, dt_redistribute(x, wanted[w], &y));
            DT_TRY_TO(done, st, dti_move_cache_plan(x, dt_tensor_layout(y), &plan));
            const int n = reductions(plan);
            most = n > most ? n : most;
            least = n < least ? n : least;
            DT_TRY_TO(done, st, dt_full_tensor(y, &z));
            (void)snprintf(how, sizeof how, "links %d, to %d, %d reductions", (int)l, (int)w, n);
            DT_TRY_TO(done, st, check(z, mesh, c, how));
            dt_tensor_release(&y);
            dt_tensor_release(&z);
        }
    DT_EXPECT_TO(done, st, least == 1 && most == 2,
                 "plans of one and of two reductions are needed here, not of %d and %d", least,
                 most);
done:
    dt_tensor_release(&x);
    dt_tensor_release(&y);
    dt_tensor_release(&z);
    return st;
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
