/* SPDX-License-Identifier: Apache-2.0
 *
 * Which calls become one kernel: programs are run with rows fused and without, must give the same
 * bits everywhere, and start as many kernels as expected. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <string.h>

#include "dtensor/ops/fusion.h"
#include "dtensor/tensor_internal.h"
#include "mesh/gpu.h"
#include "tests/support/cuda.h"

enum { B = 1, T = 3, H = 4, E = 32, ROWS = 5, MAX_KEPT = 8, MAX_BYTES = 1 << 16 };

/* What programs read: x, y, z are alike, and so are the heads q, k, v [B, T, H, E]. */
typedef struct values {
    dt_tensor *x, *y, *z, *row;   /* [T, E], [1, E] */
    dt_tensor *weight, *bias;     /* [E] */
    dt_tensor *q, *k, *v, *table; /* [B, T, E] */
    dt_tensor *keys, *values;     /* caches [B, ROWS, H, E] */
    dt_tensor *positions, *all;   /* [B, T], [B, ROWS] */
    dt_tensor *wide, *wide_weight, *wide_table;
    dt_tensor *kept[MAX_KEPT]; /* what the program has made */
    int n_kept;
} values;

static const float eps = 1e-5f;

static dt_tensor *keep(values *v, dt_tensor *x)
{
    if (x != NULL) v->kept[v->n_kept++] = dt_tensor_retain(x);
    return x;
}

static dt_status make(dt_mesh *mesh, dt_dtype dtype, int n_axes, const int64_t *shape, int seed,
                      dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { DT_REPLICATE };

    DT_TRY(dt_empty(mesh, whole, dtype, n_axes, shape, out));
    if (dtype == DT_I32) return dt_fill_arange(*out, (dt_steps){ seed, 1 });
    return dt_fill_rand(*out, (dt_random){ .seed = (uint64_t)seed }, -1.0, 1.0);
}

#define SHAPE(...)    \
    (const int64_t[]) \
    {                 \
        __VA_ARGS__   \
    }

static dt_status make_values(dt_mesh *mesh, dt_dtype t, values *v)
{
    memset(v, 0, sizeof *v);
    DT_TRY(make(mesh, t, 2, SHAPE(T, E), 1, &v->x));
    DT_TRY(make(mesh, t, 2, SHAPE(T, E), 2, &v->y));
    DT_TRY(make(mesh, t, 2, SHAPE(T, E), 3, &v->z));
    DT_TRY(make(mesh, t, 2, SHAPE(1, E), 4, &v->row));
    DT_TRY(make(mesh, t, 1, SHAPE(E), 5, &v->weight));
    DT_TRY(make(mesh, t, 1, SHAPE(E), 6, &v->bias));
    DT_TRY(make(mesh, t, 4, SHAPE(B, T, H, E), 7, &v->q));
    DT_TRY(make(mesh, t, 4, SHAPE(B, T, H, E), 8, &v->k));
    DT_TRY(make(mesh, t, 4, SHAPE(B, T, H, E), 9, &v->v));
    DT_TRY(make(mesh, t, 3, SHAPE(B, T, E), 10, &v->table));
    DT_TRY(make(mesh, t, 4, SHAPE(B, ROWS, H, E), 11, &v->keys));
    DT_TRY(make(mesh, t, 4, SHAPE(B, ROWS, H, E), 12, &v->values));
    DT_TRY(make(mesh, DT_I32, 2, SHAPE(B, T), 1, &v->positions));
    DT_TRY(make(mesh, DT_I32, 2, SHAPE(B, ROWS), 0, &v->all));
    DT_TRY(make(mesh, t, 4, SHAPE(1, 2, 2, 520), 13, &v->wide));
    DT_TRY(make(mesh, t, 1, SHAPE(520), 14, &v->wide_weight));
    return make(mesh, t, 3, SHAPE(1, 2, 16), 15, &v->wide_table);
}

static void release_values(values *v)
{
    dt_tensor **all[] = { &v->x,           &v->y,         &v->z,   &v->row,  &v->weight,
                          &v->bias,        &v->q,         &v->k,   &v->v,    &v->table,
                          &v->keys,        &v->values,    &v->all, &v->wide, &v->positions,
                          &v->wide_weight, &v->wide_table };

    for (size_t i = 0; i < DT_COUNT(all); i++) dt_tensor_release(all[i]);
    while (v->n_kept > 0) dt_tensor_release(&v->kept[--v->n_kept]);
}

/* --- sums and norms ---------------------------------------------------------------------------*/

static void sum_and_norm(dt_tape *t, values *v)
{
    keep(v, dt_rms_norm(t, keep(v, dt_add(t, v->x, v->y)), v->weight, eps));
}

static void sum_and_layer_norm(dt_tape *t, values *v)
{
    dt_tensor *sum = keep(v, dt_add(t, v->x, v->y));

    keep(v, dt_layer_norm(t, sum, v->weight, v->bias, eps));
}

static void sum_and_norm_1p(dt_tape *t, values *v)
{
    keep(v, dt_rms_norm_1p(t, keep(v, dt_add(t, v->x, v->x)), v->weight, eps));
}

static void norm_of_something_else(dt_tape *t, values *v)
{
    keep(v, dt_add(t, v->x, v->y));
    keep(v, dt_rms_norm(t, v->x, v->weight, eps));
}

static void norm_of_shorter_rows(dt_tape *t, values *v)
{
    dt_tensor *sum = keep(v, dt_add(t, v->q, v->k));
    dt_tensor *rows = dt_reshape(t, sum, 2, SHAPE(B * T * H, E));

    keep(v, dt_rms_norm(t, rows, v->weight, eps));
}

static void product_of_the_sum_between(dt_tape *t, values *v)
{
    dt_tensor *sum = keep(v, dt_add(t, v->x, v->y));

    keep(v, dt_mul(t, sum, v->x));
    keep(v, dt_rms_norm(t, sum, v->weight, eps));
}

static void other_product_between(dt_tape *t, values *v)
{
    dt_tensor *sum = keep(v, dt_add(t, v->x, v->y));

    keep(v, dt_mul(t, v->x, v->y));
    keep(v, dt_rms_norm(t, sum, v->weight, eps));
}

static void sum_behind(dt_tape *t, values *v)
{
    dt_tensor *sum = keep(v, dt_add(t, v->x, v->y));

    keep(v, dt_add(t, sum, dt_rms_norm(t, sum, v->weight, eps)));
}

static void repeated_row(dt_tape *t, values *v)
{
    keep(v, dt_rms_norm(t, keep(v, dt_add(t, v->x, v->row)), v->weight, eps));
}

static void weight_that_is_a_sum(dt_tape *t, values *v)
{
    keep(v, dt_rms_norm(t, v->x, dt_add(t, v->weight, v->bias), eps));
}

static void two_sums(dt_tape *t, values *v)
{
    dt_tensor *one = keep(v, dt_add(t, v->x, v->y)), *two = keep(v, dt_add(t, v->x, v->z));

    keep(v, dt_rms_norm(t, two, v->weight, eps));
    keep(v, dt_rms_norm(t, one, v->weight, eps));
}

/* The operands of the sum are gone when it is made, and somebody else wants memory. */
static void scopes_between(dt_tape *t, values *v)
{
    dt_tensor *sum;

    dt_scope_begin(t, "block");
    dt_scope_begin(t, "layer");
    sum = dt_scope_end(t, dt_add(t, dt_mul(t, v->x, v->y), dt_mul(t, v->x, v->z)));
    sum = dt_scope_end(t, sum);
    for (int i = 0; i < 3; i++) keep(v, dt_mul(t, v->y, v->z));
    keep(v, dt_rms_norm(t, sum, v->weight, eps));
}

static void dropped_between(dt_tape *t, values *v)
{
    dt_tensor *product = dt_mul(t, v->x, v->y), *sum = keep(v, dt_add(t, product, v->z));

    dt_tape_drop(t, product);
    keep(v, dt_mul(t, v->z, v->z));
    keep(v, dt_rms_norm(t, sum, v->weight, eps));
}

/* --- heads ------------------------------------------------------------------------------------*/

/* As models call them, each projection followed by what happens to it. */
static void attention_inputs(dt_tape *t, values *v)
{
    dt_tensor *q = dt_mul(t, v->q, v->k);
    dt_tensor *k, *value;

    q = keep(v, dt_rope(t, dt_rms_norm(t, q, v->weight, eps), v->table));
    k = dt_mul(t, v->k, v->v);
    k = keep(v, dt_rope(t, dt_rms_norm(t, k, v->weight, eps), v->table));
    value = dt_mul(t, v->v, v->q);
    (void)dt_kv_write(t, k, v->positions, v->keys);
    (void)dt_kv_write(t, value, v->positions, v->values);
    keep(v, dt_mul(t, q, q));
}

/* Adapters add to projections: sums that no norm follows, or one of heads. */
static void adapted_inputs(dt_tape *t, values *v)
{
    dt_tensor *q = keep(v, dt_rope(t, dt_add(t, v->q, v->k), v->table));
    dt_tensor *k = dt_rms_norm(t, dt_add(t, v->k, v->v), v->weight, eps);

    keep(v, dt_rope(t, k, v->table));
    keep(v, q);
}

static void four_tensors(dt_tape *t, values *v)
{
    keep(v, dt_rope(t, v->q, v->table));
    keep(v, dt_rope(t, v->k, v->table));
    keep(v, dt_rope(t, v->v, v->table));
    keep(v, dt_rope(t, v->q, v->table));
}

static void rotated_twice(dt_tape *t, values *v)
{
    keep(v, dt_rope(t, dt_rope(t, v->q, v->table), v->table));
}

static void normed_after_rotation(dt_tape *t, values *v)
{
    keep(v, dt_rms_norm(t, dt_rope(t, v->q, v->table), v->weight, eps));
}

static void written_twice(dt_tape *t, values *v)
{
    (void)dt_kv_write(t, v->k, v->positions, v->keys);
    (void)dt_kv_write(t, v->v, v->positions, v->keys);
}

static void written_from_the_cache(dt_tape *t, values *v)
{
    dt_tensor *keys = dt_kv_write(t, v->k, v->positions, v->keys);

    (void)dt_kv_write(t, keys, v->all, v->values);
}

static void written_and_read(dt_tape *t, values *v)
{
    keep(v, dt_mul(t, dt_kv_write(t, v->k, v->positions, v->keys), v->values));
}

/* The cache itself is read, not what the call has returned. */
static void written_and_read_aside(dt_tape *t, values *v)
{
    (void)dt_kv_write(t, v->k, v->positions, v->keys);
    keep(v, dt_mul(t, v->keys, v->values));
}

static void read_then_written(dt_tape *t, values *v)
{
    keep(v, dt_rms_norm(t, v->keys, v->weight, eps));
    (void)dt_kv_write(t, v->k, v->positions, v->keys);
}

static void written_then_changed(dt_tape *t, values *v)
{
    dt_tensor *k;

    (void)dt_kv_write(t, v->k, v->positions, v->keys);
    k = dt_rope(t, v->k, v->table);
    (void)dt_kv_write(t, k, v->positions, v->values);
}

static void wide_heads(dt_tape *t, values *v)
{
    keep(v, dt_rope(t, dt_rms_norm(t, v->wide, v->wide_weight, eps), v->wide_table));
}

static void layer_norm_of_heads(dt_tape *t, values *v)
{
    keep(v, dt_rope(t, dt_layer_norm(t, v->q, v->weight, v->bias, eps), v->table));
}

static void norm_of_rows(dt_tape *t, values *v)
{
    dt_tensor *rows = dt_rms_norm(t, dt_reshape(t, v->q, 3, SHAPE(T, H, E)), v->weight, eps);

    keep(v, dt_rope(t, dt_reshape(t, rows, 4, SHAPE(B, T, H, E)), v->table));
}

static void heads_that_are_sums(dt_tape *t, values *v)
{
    dt_tensor *sum = keep(v, dt_add(t, v->q, v->k));

    keep(v, dt_rope(t, dt_rms_norm(t, sum, v->weight, eps), v->table));
}

static void heads_after_a_sum(dt_tape *t, values *v)
{
    keep(v, dt_add(t, v->q, v->k));
    keep(v, dt_rope(t, dt_rms_norm(t, v->q, v->weight, eps), v->table));
}

typedef struct program {
    const char *what;
    void (*run)(dt_tape *t, values *v);
    int n_apart, n_fused; /* kernels; heads that no warp keeps are known by their dtype */
} program;

static const program programs[] = {
    { "a sum and its norm", sum_and_norm, 2, 1 },
    { "a sum and its layer norm", sum_and_layer_norm, 2, 1 },
    { "twice x and its norm", sum_and_norm_1p, 2, 1 },
    { "a norm of something else", norm_of_something_else, 2, 2 },
    { "a norm of shorter rows of the sum", norm_of_shorter_rows, 2, 1 },
    { "a product of the sum between", product_of_the_sum_between, 3, 3 },
    { "another product between", other_product_between, 3, 2 },
    { "a sum behind", sum_behind, 3, 2 },
    { "a sum that repeats a row", repeated_row, 2, 2 },
    { "a weight that is a sum", weight_that_is_a_sum, 2, 2 },
    { "two sums, then norms of both", two_sums, 4, 3 },
    { "ends of scopes between", scopes_between, 7, 6 },
    { "an operand dropped between", dropped_between, 4, 3 },
    { "queries, keys and values", attention_inputs, 10, 5 },
    { "adapters of queries and keys", adapted_inputs, 5, 3 },
    { "four tensors", four_tensors, 4, 2 },
    { "rotated twice", rotated_twice, 2, 2 },
    { "normed after a rotation", normed_after_rotation, 2, 2 },
    { "written twice to one cache", written_twice, 2, 2 },
    { "written from the cache", written_from_the_cache, 2, 2 },
    { "written and read", written_and_read, 2, 2 },
    { "written and read aside", written_and_read_aside, 2, 2 },
    { "read, then written", read_then_written, 2, 2 },
    { "written, then changed", written_then_changed, 3, 1 },
    { "wide heads", wide_heads, 2, 2 },
    { "a layer norm of heads", layer_norm_of_heads, 2, 2 },
    { "a norm of rows", norm_of_rows, 2, 2 },
    { "heads that are sums", heads_that_are_sums, 3, 2 },
    { "heads after a sum", heads_after_a_sum, 3, 2 },
};

/* All that the program has made, and the caches, one after the other. */
static dt_status read_all(const values *v, unsigned char *to, size_t *n)
{
    *n = 0;
    for (int i = 0; i < v->n_kept + 2; i++) {
        const dt_tensor *x = i < v->n_kept ? v->kept[i] : i == v->n_kept ? v->keys : v->values;
        const size_t bytes = dti_tensor_bytes(x);
        DT_EXPECT(*n + bytes <= MAX_BYTES, "room for results");
        DT_TRY(dt_tensor_read(x, to + *n, bytes));
        *n += bytes;
    }
    return DT_OK;
}

static dt_status run_program(dt_mesh *mesh, const program *p, dt_dtype dtype, bool fused,
                             unsigned char *got, size_t *n_bytes)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const dti_cuda_place *gpu = dti_runtime_gpu(rt);
    const int64_t want = fused ? p->n_fused : p->n_apart;
    dti_device *device;
    DT_ENDS(release_values) values v = { 0 };
    DT_HELD(tape) *t = NULL;
    int64_t n;

    DT_TRY(dti_device_of(rt, &device));
    dti_fusion_set(device, fused);
    DT_TRY(make_values(mesh, dtype, &v));
    DT_TRY(dt_tape_create(rt, &t));
    n = gpu->module->launches(gpu->cuda);
    p->run(t, &v);
    DT_TRY(dt_tape_status(t));
    DT_TRY(read_all(&v, got, n_bytes));
    n = gpu->module->launches(gpu->cuda) - n;
    DT_EXPECT(n == want, "%s, %s, %s: %lld kernels, not %lld", p->what, dt_dtype_name(dtype),
              fused ? "fused" : "apart", (long long)n, (long long)want);
    return DT_OK;
}

static dt_status run_programs(dt_mesh *mesh, const void *arg)
{
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16, DT_F16 };
    static _Thread_local unsigned char got[MAX_BYTES], want[MAX_BYTES];

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(programs); i++)
        for (size_t t = 0; t < DT_COUNT(dtypes); t++) {
            size_t n, m;
            DT_TRY(run_program(mesh, &programs[i], dtypes[t], false, want, &m));
            DT_TRY(run_program(mesh, &programs[i], dtypes[t], true, got, &n));
            DT_EXPECT(n == m && memcmp(got, want, n) == 0, "%s, %s: other bits", programs[i].what,
                      dt_dtype_name(dtypes[t]));
        }
    return DT_OK;
}

DT_TEST(cuda_fusion, programs_have_the_bits_of_their_rows)
{
    dt_test_on_gpus("tp=1", run_programs, NULL);
}
