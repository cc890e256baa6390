/* SPDX-License-Identifier: Apache-2.0
 *
 * What a row of the caller's own may say beyond letters: extents of its results, placements that it
 * accepts, what it costs; and what it may not say. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <string.h>

#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

static int64_t count(const dt_local *x)
{
    int64_t n = 1;

    for (int a = 0; a < x->n_axes; a++) n *= x->shape[a];
    return n;
}

/* Writes all of every result, so that a result too small for its letters is written past. */
static dt_status fill_all(const dt_kargs *args)
{
    for (int r = 0; r < args->n_out; r++)
        for (int64_t i = 0; i < count(&args->out[r]); i++) ((float *)args->out[r].data)[i] = 1.0f;
    return DT_OK;
}

/* --- extents ---------------------------------------------------------------------------------- */

static const dt_op turned = {
    .name = "turned", .axes = "rc -> rc, cr", .types = "f>ff", .cpu = fill_all
};
static const dt_op margins = {
    .name = "margins", .axes = "[r][c] -> c, r", .types = "f>ff", .cpu = fill_all
};

typedef struct times_attr {
    int64_t times;
} times_attr;

static dt_status repeat_extents(dt_op_shapes *call)
{
    const times_attr *attr = call->attr;

    if (attr->times < 0) return dt_fail(DT_ERR_ARG, "repeat: %d times", (int)attr->times);
    call->out[0].extent[1] = attr->times * call->in[0].extent[0];
    call->out[1].extent[0] = attr->times;
    return DT_OK;
}

/* x [...t, r] would be letters; here r is named first so that the function finds it. */
static const dt_op repeated = {
    .name = "repeated",
    .axes = "[r]b -> bq, p",
    .types = "f>ff",
    .extents = repeat_extents,
    .cpu = fill_all,
    .attr_bytes = sizeof(times_attr),
};

static dt_status expect_shape(const dt_tensor *x, int n_axes, int64_t first, int64_t second)
{
    DT_EXPECT(dt_tensor_n_axes(x) == n_axes && dt_tensor_extent(x, 0) == first &&
                  (n_axes < 2 || dt_tensor_extent(x, 1) == second),
              "%d axes, the first of %lld", dt_tensor_n_axes(x), (long long)dt_tensor_extent(x, 0));
    return DT_OK;
}

static dt_status each_result(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 4, 6 };
    const dt_placement whole[] = { DT_REPLICATE };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y[2];

    (void)arg;
    DT_TRY(dt_ones(mesh, whole, DT_F32, 2, shape, &x));
    for (int warm = 0; warm < 2; warm++) {
        dt_apply_n(t, &turned, NULL, 1, &x, 2, y);
        DT_TRY(dt_tape_status(t));
        DT_TRY(expect_shape(y[0], 2, 4, 6));
        DT_TRY(expect_shape(y[1], 2, 6, 4));
        dt_apply_n(t, &margins, NULL, 1, &x, 2, y);
        DT_TRY(dt_tape_status(t));
        DT_TRY(expect_shape(y[0], 1, 6, 0));
        DT_TRY(expect_shape(y[1], 1, 4, 0));
        for (int64_t times = 0; times < 3; times++) {
            dt_apply_n(t, &repeated, &(times_attr){ times }, 1, &x, 2, y);
            DT_TRY(dt_tape_status(t));
            DT_TRY(expect_shape(y[0], 2, 6, 4 * times));
            DT_TRY(expect_shape(y[1], 1, times, 0));
        }
    }
    dt_apply_n(t, &repeated, &(times_attr){ -1 }, 1, &x, 2, y);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "repeat: -1 times");
    return DT_OK;
}

DT_TEST(op_columns, every_result_has_extents_of_its_own)
{
    dt_test_on_ranks("tp=1", each_result, NULL);
    dt_test_on_ranks("tp=2", each_result, NULL);
}

/* --- accepted placements ---------------------------------------------------------------------- */

static dt_status multiply(const dt_kargs *args)
{
    const float *x = args->in[0].data, *w = args->in[1].data;
    const int64_t m = args->in[0].shape[0], k = args->in[0].shape[1], n = args->in[1].shape[1];
    float *y = args->out[0].data;

    DT_EXPECT(args->in[1].shape[0] == k && args->out[0].shape[0] == m && args->out[0].shape[1] == n,
              "pieces fit each other");
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            y[i * n + j] = 0;
            for (int64_t l = 0; l < k; l++) y[i * n + j] += x[i * k + l] * w[l * n + j];
        }
    return DT_OK;
}

/* Letters of axes that know nothing of each other: the lines say all. */
static const dt_op product = {
    .name = "product",
    .axes = "ab, cd -> ad",
    .types = "FF>F",
    .accepts = (const char *const[]){ "S(0), R -> S(0)", "R, S(-1) -> S(1)", "S(1), S(0) -> P(sum)",
                                      "P, R -> P", NULL },
    .cpu = multiply,
};

enum { M = 5, K = 7, N = 3 };

static dt_placement placement_of(int digit)
{
    const dt_placement all[] = { DT_REPLICATE, DT_SHARD(0), DT_SHARD(1), DT_PARTIAL(DT_SUM) };

    return all[digit];
}

/* Which pairs one mesh dim takes; sliced where that is free. */
static bool is_accepted(int x, int w)
{
    return (x == 0 && w == 0) || (x == 1 && w == 0) || (x == 0 && w == 2) || (x == 2 && w == 1) ||
           (x == 0 && w == 1) || (x == 2 && w == 0) || (x == 3 && w == 0);
}

static dt_status try_pair(dt_mesh *mesh, dt_tape *t, const dt_placement *x_place,
                          const dt_placement *w_place, bool accepted)
{
    const int64_t xs[] = { M, K }, ws[] = { K, N };
    dt_tensor *x = NULL, *w = NULL, *y, *full = NULL;
    dt_status st = DT_OK;

    dt_tape_reset(t);
    DT_TRY_TO(done, st, dt_test_arange(mesh, x_place, DT_F32, 2, xs, &x));
    DT_TRY_TO(done, st, dt_test_arange(mesh, w_place, DT_F32, 2, ws, &w));
    y = dt_apply(t, &product, NULL, 2, (dt_tensor *[]){ x, w });
    if (!accepted) {
        st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_LAYOUT,
                                   "but the row accepts \"S(0), R -> S(0)\"");
        goto done;
    }
    st = dt_tape_status(t);
    if (st == DT_ERR_LAYOUT && dt_mesh_n_dims(mesh) > 1) { /* an outer cut comes before an inner */
        st = dt_test_expect_status(__func__, __FILE__, __LINE__, st, DT_ERR_LAYOUT,
                                   "slicing it needs communication");
        goto done;
    }
    DT_TRY_TO(done, st, st);
    DT_TRY_TO(done, st, dt_full_tensor(y, &full));
    for (int64_t i = 0; i < M * N; i++) {
        int64_t sum = 0;
        for (int64_t l = 0; l < K; l++) sum += (i / N * K + l) * (l * N + i % N);
        DT_EXPECT_TO(done, st, ((const float *)dt_tensor_local(full)->data)[i] == (float)sum,
                     "element %lld", (long long)i);
    }
done:
    dt_tensor_release(&full);
    dt_tensor_release(&w);
    dt_tensor_release(&x);
    return st;
}

static dt_status every_pair(dt_mesh *mesh, const void *arg)
{
    const int n_dims = dt_mesh_n_dims(mesh), n = n_dims == 1 ? 16 : 256;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
    for (int k = 0; k < n; k++) {
        dt_placement x[DT_MAX_DIMS], w[DT_MAX_DIMS];
        bool accepted = true;
        for (int m = 0; m < n_dims; m++) {
            const int at = k >> 4 * m & 15;
            x[m] = placement_of(at % 4);
            w[m] = placement_of(at / 4);
            accepted = accepted && (dt_mesh_dim_size(mesh, m) == 1 || is_accepted(at % 4, at / 4));
        }
        DT_TRY(try_pair(mesh, t, x, w, accepted));
    }
    return DT_OK;
}

DT_TEST(op_columns, lines_of_accepted_placements_are_all_that_is_taken)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "dp=2,tp=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], every_pair, NULL);
}

static dt_status double_extents(dt_op_shapes *call)
{
    call->out[0].extent[0] = 2 * call->in[0].extent[0];
    return DT_OK;
}

static dt_status twice_each(const dt_kargs *args)
{
    const float *x = args->in[0].data;
    float *y = args->out[0].data;

    DT_EXPECT(args->out[0].shape[0] == 2 * args->in[0].shape[0], "twice as many rows");
    for (int64_t i = 0; i < args->out[0].shape[0]; i++) y[i] = x[i / 2];
    return DT_OK;
}

static const dt_op doubled = {
    .name = "doubled",
    .axes = "r -> q",
    .types = "f>f",
    .extents = double_extents,
    .accepts = (const char *const[]){ "S(0) -> S(0)", NULL },
    .cpu = twice_each,
};

/* Pieces of axes of different extents meet where both are cut evenly; terms are kept in f32; under
 * a policy that allows moves what no line takes becomes whole. */
static dt_status pieces(dt_mesh *mesh, const void *arg)
{
    const dt_placement cut = DT_SHARD(0), columns = DT_SHARD(1), terms = DT_PARTIAL(DT_SUM);
    dt_placement copies = DT_SHARD(1);
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *w = NULL, *full = NULL;
    dt_tensor *y;

    (void)arg;
    copies.replicas = 2;
    DT_TRY(dt_test_arange(mesh, &cut, DT_F32, 1, (const int64_t[]){ 8 }, &x));
    y = dt_apply(t, &doubled, NULL, 1, &x);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(y, &full));
    for (int i = 0; i < 16; i++)
        DT_EXPECT(((const float *)dt_tensor_local(full)->data)[i] == (float)(i / 2), "%d", i);
    dt_tensor_release(&x);
    DT_TRY(dt_test_arange(mesh, &cut, DT_F32, 1, (const int64_t[]){ 5 }, &x));
    (void)dt_apply(t, &doubled, NULL, 1, &x);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_SHAPE,
                     "axis 0 of operand 0, which has 5, and axis 0 of result 0, "
                     "which has 10");
    dt_tensor_release(&x);
    dt_tape_reset(t);

    DT_TRY(dt_test_arange(mesh, &columns, DT_BF16, 2, (const int64_t[]){ 2, 4 }, &x));
    DT_TRY(dt_test_arange(mesh, &cut, DT_BF16, 2, (const int64_t[]){ 4, 2 }, &w));
    y = dt_apply(t, &product, NULL, 2, (dt_tensor *[]){ x, w });
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tensor_dtype(y) == DT_F32, "terms of a sum are rounded after it");
    dt_tensor_release(&x);
    DT_TRY(dt_test_arange(mesh, &copies, DT_BF16, 2, (const int64_t[]){ 2, 4 }, &x));
    (void)dt_apply(t, &product, NULL, 2, (dt_tensor *[]){ x, w });
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT, "cut at different rows");
    dt_tensor_release(&w);
    dt_tape_reset(t);
    DT_TRY(dt_ones(mesh, &(dt_placement){ 0 }, DT_BF16, 2, (const int64_t[]){ 4, 2 }, &w));
    (void)dt_apply(t, &product, NULL, 2, (dt_tensor *[]){ x, w });
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT, "its terms would count copies");
    dt_tensor_release(&x);
    dt_tensor_release(&w);
    dt_tensor_release(&full);
    dt_tape_reset(t);

    dt_tape_set_moves(t, DT_MOVES_ALLOW);
    DT_TRY(dt_test_arange(mesh, &terms, DT_F32, 2, (const int64_t[]){ 2, 2 }, &x));
    DT_TRY(dt_test_arange(mesh, &columns, DT_F32, 2, (const int64_t[]){ 2, 2 }, &w));
    y = dt_apply(t, &product, NULL, 2, (dt_tensor *[]){ x, w });
    DT_TRY(dt_tape_status(t));
    for (int i = 0; i < 4; i++) /* [0 1; 2 3] squared */
        DT_EXPECT(((const float *)dt_tensor_local(y)->data)[i] ==
                      ((const float[]){ 2, 3, 6, 11 })[i],
                  "%d", i);
    return DT_OK;
}

DT_TEST(op_columns, pieces_of_accepted_placements_meet)
{
    dt_test_on_ranks("tp=4", pieces, NULL);
}

/* --- what a row may not say ------------------------------------------------------------------- */

static dt_status no_rule(struct dti_op_call *call)
{
    (void)call;
    return DT_OK;
}

static dt_status bound_extents(dt_op_shapes *call)
{
    call->out[0].extent[0]++;
    return DT_OK;
}

static dt_status more_axes(dt_op_shapes *call)
{
    call->out[0].n_axes++;
    return DT_OK;
}

#define ROW(letters, type, ...)                                                     \
    {                                                                               \
        .name = "own", .axes = letters, .types = type, .cpu = fill_all, __VA_ARGS__ \
    }
#define OWN(...)     ROW("ab -> ab", "F>F", __VA_ARGS__)
#define ACCEPTS(...) OWN(.accepts = (const char *const[]){ __VA_ARGS__ })

static const struct {
    dt_op op;
    const char *message;
} refused[] = {
    { OWN(.shard = no_rule), "operator own sets .shard, which is for rows of the library" },
    { OWN(.flags = DT_OP_LINEAR, .accepts = (const char *const[]){ "R -> R", NULL }),
      "operator own sets .accepts and the flags 0x1" },
    { ACCEPTS(NULL), "operator own: accepts has no line" },
    { ACCEPTS("S(0)", NULL), "accepts \"S(0)\": \" -> \" is expected at \"\"" },
    { ACCEPTS("S(0), R -> R", NULL), "\" -> \" is expected at \", R -> R\"" },
    { ACCEPTS("S(0) -> R, R", NULL), "nothing is expected at \", R\"" },
    { ACCEPTS("S(0) -> ", NULL), "a placement is expected at \"\"" },
    { ACCEPTS("S(0) -> X", NULL), "accepts \"S(0) -> X\": placement \"X\"" },
    { ACCEPTS("S(0)[1] -> R", NULL), "of a cut only the axis is said, as in S(0)" },
    { OWN(.extents = bound_extents), "makes axis 0 of result 0 5 long, by its letter it is 4" },
    { OWN(.extents = more_axes), "gives result 0 3 axes; its letters name 2" },
    { OWN(.cost = "2 ab, c"), "cost \"2 ab, c\": nothing is expected at \", c\"" },
    { OWN(.cost = "ab"), "a number is expected at \"ab\"" },
    { OWN(.cost = "2 abz"), "cost \"2 abz\" names axes that \"ab -> ab\" has not" },
    { OWN(.cost = "2 ...a"), "names axes that" },
    { OWN(.cost = "2 a + 1 b + 1 a + 1 b + 1 a"), "has more than 4 terms" },
    { OWN(.cost = "2 a : ab"), "\" -> \" is expected at \"\"" },
    { ROW("ab -> ac", "F>F", .flags = 0),
      "axis 1 of result 0 has no extent: no operand has its letter" },
    { ROW("ab -> ab", "F>a", .attr_bytes = 8, .flags = DT_OP_VALUE_ATTR),
      "but DT_OP_VALUE_ATTR says that no rule looks at them" },
    { OWN(.attr_bytes = 8), "own: attr is NULL; the row has 8 bytes of attributes" },
    { ROW("ab -> ab", "x>F", .flags = 0), "a result of types \"x>F\" is F, but no operand is" },
};

static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    const dt_placement cut = DT_SHARD(0);
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;

    (void)arg;
    DT_TRY(dt_ones(mesh, &cut, DT_F32, 2, (const int64_t[]){ 4, 4 }, &x));
    for (size_t i = 0; i < DT_COUNT(refused); i++) {
        const uint64_t attr[] = { 0 };
        const bool null = refused[i].op.attr_bytes > 0 && refused[i].op.flags == 0;
        (void)dt_apply(t, &refused[i].op, null ? NULL : attr, 1, &x);
        DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, refused[i].message);
        dt_tape_reset(t);
    }
    return DT_OK;
}

DT_TEST(op_columns, what_a_row_may_not_say_is_refused_by_name)
{
    dt_test_on_ranks("tp=1", refusals, NULL);
    dt_test_on_ranks("tp=2", refusals, NULL);
}

/* --- cost ------------------------------------------------------------------------------------- */

static dt_op_shape shape(dt_dtype dtype, int n_axes, const int64_t *extent)
{
    dt_op_shape s = { .dtype = dtype, .n_axes = n_axes };

    for (int a = 0; a < n_axes; a++) s.extent[a] = extent[a];
    return s;
}
#define SHAPE(dtype, ...)                                                     \
    shape(dtype, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
          (int64_t[]){ __VA_ARGS__ })

static void expect_work(dt_op_shapes call, double flops, double bytes)
{
    dt_op_work work;

    while (call.n_in < DT_OP_MAX_IN && call.in[call.n_in].n_axes > 0) call.n_in++;
    DT_ASSERT_OK(dt_op_work_of(&call, &work));
    DT_ASSERT_CLOSE(work.flops, flops, 0);
    DT_ASSERT_CLOSE(work.bytes, bytes, 0);
}

DT_TEST(op_columns, a_row_says_what_a_call_costs)
{
    const dti_dtype_attr f32 = { DT_F32 };
    const dti_attention_attr all = { 4, 2, 0, 1.0f, 0, 0, 0 }, window = { 4, 2, 3, 1.0f, 0, 0, 0 };
    const dti_experts_attr experts = { 8 };
    const dti_slice_attr slice = { 0, 2, 3 };
    dt_op_shapes call = { .op = dt_op_find("linear"), .attr = &f32, .n_in = 2 };

    expect_work((dt_op_shapes){ .op = &dti_op_linear,
                                .attr = &f32,
                                .in = { SHAPE(DT_F32, 2, 3, 6), SHAPE(DT_F32, 5, 6) } },
                2 * 6 * 6 * 5, 4 * (36 + 30 + 30));
    expect_work((dt_op_shapes){ .op = &dti_op_embedding,
                                .attr = &(dti_embedding_attr){ -1 },
                                .in = { SHAPE(DT_I32, 7), SHAPE(DT_BF16, 1000, 4) } },
                0, 4 * 7 + 2 * 28 + 2 * 28);
    expect_work((dt_op_shapes){ .op = &dti_op_kv_write,
                                .in = { SHAPE(DT_F32, 2, 3, 4, 5), SHAPE(DT_I32, 2, 3),
                                        SHAPE(DT_F32, 2, 100, 4, 5) } },
                0, 4 * (120 + 6 + 120));
    expect_work(
        (dt_op_shapes){ .op = &dti_op_slice, .attr = &slice, .in = { SHAPE(DT_F32, 9, 4) } }, 0,
        2 * 4 * 12);
    expect_work((dt_op_shapes){ .op = &dti_op_heads,
                                .attr = &(dti_heads_attr){ 4 },
                                .in = { SHAPE(DT_F32, 2, 3, 8) } },
                0, 0);
    /* 6 queries over 6 keys see 21; the last 2 of them 11, by a window of 3 also 6 */
    expect_work((dt_op_shapes){ .op = &dti_op_attention,
                                .attr = &all,
                                .in = { SHAPE(DT_F32, 1, 6, 4, 8), SHAPE(DT_F32, 1, 6, 2, 8),
                                        SHAPE(DT_F32, 1, 6, 2, 8), SHAPE(DT_I32, 1, 6) } },
                4 * 32 * 21, 4 * (2 * 6 * 32 + 2 * 6 * 16 + 6));
    expect_work((dt_op_shapes){ .op = &dti_op_attention,
                                .attr = &window,
                                .in = { SHAPE(DT_F32, 1, 2, 4, 8), SHAPE(DT_F32, 1, 6, 2, 8),
                                        SHAPE(DT_F32, 1, 6, 2, 8), SHAPE(DT_I32, 1, 2) } },
                4 * 32 * 6, 4 * (2 * 2 * 32 + 2 * 4 * 16 + 2));
    /* 3 tokens choose 2 of 8 experts each, of 3 matrices of 5 x 4 */
    expect_work(
        (dt_op_shapes){ .op = &dti_op_experts,
                        .attr = &experts,
                        .in = { SHAPE(DT_F32, 3, 4), SHAPE(DT_I32, 3, 2), SHAPE(DT_F32, 3, 2),
                                SHAPE(DT_F32, 8, 10, 4), SHAPE(DT_F32, 8, 4, 5) } },
        2 * 6 * 60, 4 * (6 * 60 + 12 + 6 + 6 + 12));
    /* a row of the caller's own: by all letters, twice where one of two operands vanishes */
    expect_work((dt_op_shapes){ .op = &turned, .in = { SHAPE(DT_F32, 4, 6) } }, 24, 4 * 72);
    expect_work(
        (dt_op_shapes){
            .op =
                &(dt_op){ .name = "dot", .axes = "ab, cb -> ca", .types = "FF>F", .cpu = fill_all },
            .in = { SHAPE(DT_F32, 2, 3), SHAPE(DT_F32, 4, 3) } },
        2 * 24, 4 * (6 + 12 + 8));

    call.in[0] = SHAPE(DT_F32, 2, 6);
    call.in[1] = SHAPE(DT_F32, 5, 7);
    DT_ASSERT_STATUS(dt_op_work_of(&call, &(dt_op_work){ 0 }), DT_ERR_SHAPE, "axis i is 6");
    call.n_out = 0;
    call.in[1].n_axes = 9;
    DT_ASSERT_STATUS(dt_op_work_of(&call, &(dt_op_work){ 0 }), DT_ERR_ARG, "operand 1 has 9 axes");
    call.in[1] = SHAPE(DT_F32, 5, -1);
    DT_ASSERT_STATUS(dt_op_work_of(&call, &(dt_op_work){ 0 }), DT_ERR_SHAPE,
                     "axis 1 has extent -1");
    call.in[1] = SHAPE(DT_N_DTYPES, 5, 6);
    DT_ASSERT_STATUS(dt_op_work_of(&call, &(dt_op_work){ 0 }), DT_ERR_ARG, "is no dtype");
    call.n_in = 1;
    DT_ASSERT_STATUS(dt_op_work_of(&call, &(dt_op_work){ 0 }), DT_ERR_ARG, "1 operands given");
    call.attr = NULL;
    DT_ASSERT_STATUS(dt_op_work_of(&call, &(dt_op_work){ 0 }), DT_ERR_ARG, "attr is NULL");
    DT_ASSERT_STATUS(dt_op_work_of(NULL, &(dt_op_work){ 0 }), DT_ERR_ARG, "NULL");
}

/* A rank counts its own share, each call once more. */
static dt_status counted(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE, cut = DT_SHARD(0);
    const double p = (double)dt_mesh_n_ranks(mesh);
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *w = NULL;

    (void)arg;
    DT_TRY(dt_ones(mesh, &whole, DT_F32, 2, (const int64_t[]){ 4, 6 }, &x));
    DT_TRY(dt_ones(mesh, &cut, DT_F32, 2, (const int64_t[]){ 8, 6 }, &w));
    for (int calls = 1; calls < 4; calls++) {
        (void)dt_linear(t, x, w, NULL);
        DT_TRY(dt_tape_status(t));
        DT_EXPECT(dt_tape_work(t).flops == calls * 2 * 4 * 6 * 8 / p, "%g operations",
                  dt_tape_work(t).flops);
        DT_EXPECT(dt_tape_work(t).bytes == calls * 4 * (24 + 48 / p + 32 / p), "%g bytes",
                  dt_tape_work(t).bytes);
    }
    dt_tape_reset(t);
    DT_EXPECT(dt_tape_work(t).flops == 0 && dt_tape_work(NULL).bytes == 0, "nothing");
    return DT_OK;
}

DT_TEST(op_columns, a_tape_counts_the_work_of_its_rank)
{
    dt_test_on_ranks("tp=1", counted, NULL);
    dt_test_on_ranks("tp=2", counted, NULL);
}

DT_TEST(op_columns, rows_can_be_listed)
{
    int n = 0;

    for (; dt_op_at(n) != NULL; n++) {
        DT_ASSERT(dt_op_find(dt_op_at(n)->name) == dt_op_at(n));
        for (uint32_t bit = 1; bit != 0; bit <<= 1)
            DT_ASSERT((dt_op_at(n)->flags & bit) == 0 || dt_op_flag_name(bit) != NULL);
    }
    DT_ASSERT(n == dti_op_table_size && dt_op_at(-1) == NULL);
    DT_ASSERT(dt_op_find("linear") == &dti_op_linear && dt_op_find("nothing") == NULL);
    DT_ASSERT_EQ_STR(dt_op_flag_name(DT_OP_ADDS_ONCE), "ADDS_ONCE");
    DT_ASSERT(dt_op_flag_name(3) == NULL && dt_op_flag_name(0) == NULL);
}
