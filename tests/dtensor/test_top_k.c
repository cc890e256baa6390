/* SPDX-License-Identifier: Apache-2.0
 *
 * The k largest elements: kernels against a sort of whole rows, then rows that are cut over ranks,
 * with ties, NaN, empty pieces and more keys than elements. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtensor/argmax.h"
#include "tests/dtensor/test_kernels.h"

enum { MOST = 4096 };

/* One element of a row, as the rest of the library orders them: a NaN first, then by value, equal
 * ones by index. */
typedef struct element {
    float value;
    int64_t index;
} element;

static int by_rank(const void *a_, const void *b_)
{
    const element *a = a_, *b = b_;

    if (isnan(a->value) != isnan(b->value)) return isnan(a->value) ? -1 : 1;
    if (!isnan(a->value) && a->value != b->value) return a->value > b->value ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

typedef enum pattern { RANDOM, TIES, SPECIAL, RISING, FALLING, EQUAL, N_PATTERNS } pattern;

static float element_of(pattern p, int64_t i, uint32_t *state)
{
    const uint32_t r = kt_random(state);
    const float uniform = (float)r * 0x1p-23f - 1.0f;

    switch (p) {
    case TIES:
        return (float)(r % 5) - 2.0f;
    case SPECIAL:
        return r % 7 == 0    ? NAN
               : r % 7 == 1  ? -NAN
               : r % 11 == 0 ? INFINITY
               : r % 11 == 1 ? -INFINITY
               : r % 5 == 0  ? 0.0f
               : r % 5 == 1  ? -0.0f
                             : uniform;
    case RISING:
        return (float)i;
    case FALLING:
        return -(float)i;
    case EQUAL:
        return 0.5f;
    default:
        return uniform;
    }
}

static void fill_rows(dt_local *x, pattern p, uint32_t state)
{
    const int64_t n = x->shape[x->n_axes - 1];

    for (int64_t i = 0; i < kt_count(x); i++)
        dti_store_f32(x->data, x->dtype, i, element_of(p, n > 0 ? i % n : 0, &state));
}

/* Row r of x in order, [n]. */
static void sort_row(const dt_local *x, int64_t r, element *out)
{
    const int64_t n = x->shape[x->n_axes - 1];

    for (int64_t i = 0; i < n; i++)
        out[i] = (element){ dti_load_f32(x->data, x->dtype, r * n + i), i };
    qsort(out, (size_t)n, sizeof *out, by_rank);
}

static bool same_value(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* --- kernels ---------------------------------------------------------------------------------- */

enum { FIRST = 1000 }; /* where the piece begins in the whole */

static void check_keys(dti_cpu *cpu, dt_dtype t, pattern p, const int64_t shape[2], int64_t k)
{
    DT_ENDS(kt_release)
    dt_local keys = kt_local(DT_I64, 2, (int64_t[]){ shape[0], k }), x = kt_local(t, 2, shape);
    static element want[MOST];

    x.offset[1] = FIRST;
    fill_rows(&x, p, (uint32_t)(shape[1] * 31 + k));
    DT_ASSERT_OK(dti_top_k_keys_cpu(&(dt_kargs){ &x, &keys, NULL, cpu, 1, 1, NULL }));
    for (int64_t r = 0; r < shape[0]; r++) {
        sort_row(&x, r, want);
        for (int64_t i = 0; i < k; i++) {
            const int64_t key = ((int64_t *)keys.data)[r * k + i];
            if (i >= shape[1]) {
                DT_ASSERT(key == DTI_NO_KEY);
                continue;
            }
            DT_ASSERT_EQ_INT(dti_argmax_index(key), FIRST + want[i].index);
            DT_ASSERT(same_value(dti_argmax_value(key), want[i].value));
        }
    }
}

DT_TEST(top_k, keys_are_those_of_a_sorted_row)
{
    static const int64_t shapes[][2] = { { 1, 0 },   { 2, 1 },   { 0, 5 },    { 3, 7 },
                                         { 2, 257 }, { 1, 999 }, { 2, 4096 }, { 40, 130 } };
    static const int64_t ks[] = { 1, 2, 5, 50, 130, 1024, 4096 };

    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++) {
        dti_cpu *cpu;
        dti_pool *pool;
        DT_ASSERT_OK(dti_pool_create(1 + isa % 3, false, NULL, NULL, &pool));
        DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, pool, &cpu));
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            for (pattern p = RANDOM; p < N_PATTERNS; p++)
                for (size_t s = 0; s < DT_COUNT(shapes); s++)
                    for (size_t k = 0; k < DT_COUNT(ks); k++)
                        check_keys(cpu, kt_floats[t], p, shapes[s], ks[k]);
        dti_cpu_destroy(&cpu);
        dti_pool_destroy(&pool);
    }
}

/* Keys come in any order, some stand for nothing, and a caller's own may be equal. */
DT_TEST(top_k, values_and_indices_are_those_of_the_largest_keys)
{
    enum { N = 3000, K = 7 };
    static int64_t keys[2][N];
    float values[2][K];
    int32_t indices[2][K];
    dt_local x = { .data = keys, .dtype = DT_I64, .n_axes = 2, .shape = { 2, N } };
    dt_local out[] = { { .data = values, .dtype = DT_F32, .n_axes = 2, .shape = { 2, K } },
                       { .data = indices, .dtype = DT_I32, .n_axes = 2, .shape = { 2, K } } };
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;

    for (int64_t i = 0; i < N; i++) {
        keys[0][i] = i % 3 == 0 ? DTI_NO_KEY : dti_argmax_key((float)(i * 7 % 100), i);
        keys[1][i] = i < N - 2 ? DTI_NO_KEY : dti_argmax_key(-1.5f, i);
    }
    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    DT_ASSERT_OK(dti_top_k_cpu(&(dt_kargs){ &x, out, NULL, cpu, 1, 2, NULL }));
    for (int i = 0; i < K; i++) {
        DT_ASSERT(values[0][i] == 99.0f);
        DT_ASSERT(indices[0][i] % 100 == 57 && indices[0][i] % 3 != 0);
        DT_ASSERT(i == 0 || indices[0][i] > indices[0][i - 1]);
        DT_ASSERT(values[1][i] == (i < 2 ? -1.5f : -INFINITY));
        DT_ASSERT_EQ_INT(indices[1][i], i < 2 ? N - 2 + i : -1);
    }
    for (int64_t i = 0; i < N; i++) keys[0][i] = keys[1][i] = dti_argmax_key(2.0f, 4);
    DT_ASSERT_OK(dti_top_k_cpu(&(dt_kargs){ &x, out, NULL, cpu, 1, 2, NULL }));
    for (int i = 0; i < K; i++) DT_ASSERT(values[1][i] == 2.0f && indices[1][i] == 4);
}

/* --- on ranks --------------------------------------------------------------------------------- */

typedef struct ranks_case {
    dt_dtype dtype;
    pattern pattern;
    int64_t rows, n, k;
    bool cut_rows; /* on the first mesh dim, instead of the last axis */
} ranks_case;

/* Cut over every mesh dim of the mesh along the last axis, or rows along the first. */
static dt_status make_cut(dt_mesh *mesh, const ranks_case *c, const dt_local *whole,
                          dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS];

    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        place[m] = c->cut_rows && m == 0 ? DT_SHARD(0) : DT_SHARD(2);
    DT_TRY(dt_distribute(mesh, place, c->dtype, 3, (int64_t[]){ c->rows, 1, c->n },
                         (dt_source){ .full = whole->data, .root = DT_EQUAL_COPIES }, out));
    return DT_OK;
}

static dt_status expect_top(const ranks_case *c, const dt_local *whole, dt_tensor *values,
                            dt_tensor *indices)
{
    static _Thread_local element want[MOST];
    const float *v;
    const int32_t *at;

    DT_EXPECT(dt_tensor_extent(values, 2) == c->k && dt_tensor_extent(indices, 2) == c->k, "k");
    v = dt_tensor_local(values)->data;
    at = dt_tensor_local(indices)->data;
    for (int64_t r = 0; r < c->rows; r++) {
        sort_row(whole, r, want);
        for (int64_t i = 0; i < c->k; i++)
            DT_EXPECT(at[r * c->k + i] == want[i].index &&
                          same_value(v[r * c->k + i], want[i].value),
                      "row %lld, place %lld of %lld: %g at %d, not %g at %lld", (long long)r,
                      (long long)i, (long long)c->k, (double)v[r * c->k + i], at[r * c->k + i],
                      (double)want[i].value, (long long)want[i].index);
    }
    return DT_OK;
}

static dt_status top_of_cut_rows(dt_mesh *mesh, const void *arg)
{
    const ranks_case *c = arg;
    const dt_placement place[DT_MAX_DIMS] = { { 0 } };
    DT_ENDS(kt_release) dt_local whole = kt_local(c->dtype, 3, (int64_t[]){ c->rows, 1, c->n });
    DT_HELD(tensor) *x = NULL;
    dt_tensor *keys, *values, *indices;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    fill_rows(&whole, c->pattern, 5);
    DT_TRY(make_cut(mesh, c, &whole, &x));
    keys = dt_top_k_keys(t, x, c->k);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(c->cut_rows || dt_tensor_extent(keys, 2) == c->k * dt_mesh_n_ranks(mesh), "%lld keys",
              (long long)dt_tensor_extent(keys, 2));
    dt_top_k(t, dt_move(t, keys, place), c->k, &values, &indices);
    DT_TRY(dt_tape_status(t));
    DT_TRY(expect_top(c, &whole, values, indices));
    return DT_OK;
}

DT_TEST(top_k, is_the_same_on_every_mesh)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };
    static const ranks_case cases[] = {
        { DT_F32, RANDOM, 1, 101, 5, false },
        { DT_F32, TIES, 3, 101, 50, false },
        { DT_BF16, RANDOM, 2, 257, 7, false },
        { DT_F16, TIES, 2, 30, 30, false }, /* all of them */
        { DT_F32, SPECIAL, 4, 67, 40, false },
        { DT_BF16, SPECIAL, 1, 1000, 300, false },
        { DT_F32, EQUAL, 2, 97, 33, false },
        { DT_F32, RANDOM, 2, 3, 2, false }, /* empty pieces */
        { DT_F32, TIES, 1, 1, 1, false },
        { DT_F32, RANDOM, 3, 41, 20, true },
    };

    for (size_t c = 0; c < DT_COUNT(cases); c++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            dt_test_on_ranks(meshes[m], top_of_cut_rows, &cases[c]);
}

/* One result may be left out; what cannot be is refused by name and number. */
static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    const ranks_case c = { DT_F32, RANDOM, 2, 9, 0, false };
    const dt_placement place[DT_MAX_DIMS] = { { 0 } }, terms[] = { DT_PARTIAL(DT_SUM) };
    DT_ENDS(kt_release) dt_local whole = kt_local(DT_F32, 3, (int64_t[]){ 2, 1, 9 });
    DT_HELD(tensor) *partial = NULL, *x = NULL;
    dt_tensor *keys, *indices = NULL, *values = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
#define REFUSE(call, code, words)                                        \
    do {                                                                 \
        (void)(call);                                                    \
        DT_EXPECT(dt_tape_status(t) == (code), "%d", dt_tape_status(t)); \
        DT_EXPECT(strstr(dt_last_error()->message, words) != NULL, "%s", \
                  dt_last_error()->message);                             \
        dt_tape_reset(t);                                                \
    } while (0)
    fill_rows(&whole, RANDOM, 5);
    DT_TRY(make_cut(mesh, &c, &whole, &x));
    DT_TRY(dt_from_local(mesh, terms, DT_F32, 3, (int64_t[]){ 2, 1, 9 }, whole.data, &partial));
    REFUSE(dt_top_k_keys(t, x, 0), DT_ERR_ARG, "the 0 largest are asked for, but axis 2 has 9");
    REFUSE(dt_top_k_keys(t, x, 10), DT_ERR_ARG, "the 10 largest are asked for, but axis 2 has 9");
    REFUSE(dt_top_k_keys(t, partial, 3), DT_ERR_LAYOUT, "must be reduced");
    REFUSE((dt_top_k(t, dt_top_k_keys(t, x, 3), 3, &values, &indices), values), DT_ERR_LAYOUT,
           "axis c must be whole");
    DT_EXPECT(values == NULL && indices == NULL, "results after an error");
    REFUSE((dt_top_k(t, dt_move(t, dt_top_k_keys(t, x, 3), place), 7, &values, &indices), x),
           DT_ERR_ARG, "the 7 largest of 6 keys");
    REFUSE((dt_top_k(t, dt_move(t, x, place), 3, &values, &indices), x), DT_ERR_SHAPE,
           "operand 0 is f32");
#undef REFUSE
    keys = dt_move(t, dt_top_k_keys(t, x, 3), place);
    dt_top_k(t, keys, 3, NULL, &indices);
    dt_top_k(t, keys, 3, NULL, NULL);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(indices != NULL, "indices alone");
    return DT_OK;
}

DT_TEST(top_k, refuses_what_it_cannot_give)
{
    dt_test_on_ranks("tp=2", refusals, NULL);
}
