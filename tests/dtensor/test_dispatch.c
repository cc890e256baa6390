/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens that go to the ranks of their experts and come back, against a gather of all tokens and a
 * reduction of all terms: the same bits, and the bytes that the ids say. Experts and tokens that do
 * not divide, ranks without either, all tokens to one expert, to those of one rank, or to all. */
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <string.h>

#include "dtensor/create.h"
#include "dtensor/kernels/kernel.h"
#include "mesh/runtime.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

typedef enum choice { ANY, ALL_TO_FIRST, ALL_TO_LAST, N_CHOICES } choice;

typedef struct scene {
    int64_t batch, tokens, d, f, experts, chosen;
    choice how;
    int axis; /* of tokens that are cut */
} scene;

enum { MOST = 4096 };

/* ids [rows, k], different ones in a row. */
static void choose(const scene *s, int32_t *ids)
{
    const int64_t rows = s->batch * s->tokens, n = s->experts;
    float random[MOST];

    dt_test_random(random, rows, 5);
    for (int64_t i = 0; i < rows * s->chosen; i++) {
        const int64_t any = (int64_t)((random[i / s->chosen] + 1.0f) * 100.0f);
        const int64_t first = s->how == ANY ? any : s->how == ALL_TO_FIRST ? 0 : n - s->chosen;
        ids[i] =
            (int32_t)((first + i % s->chosen * (s->how == ANY ? 1 + any % 2 * (n % 2) : 1)) % n);
    }
}

/* Random values, those of the first row of another seed. */
static dt_tensor *make(dt_tape *t, dt_mesh *mesh, dt_dtype dtype, const int64_t shape[3],
                       dt_placement place, uint32_t seed, uint32_t first_row)
{
    const dt_placement everywhere[DT_MAX_DIMS] = { { 0 } };
    dt_placement want[DT_MAX_DIMS] = { { 0 } };
    dt_tensor *whole = NULL;
    float values[MOST];

    dt_test_random(values, shape[0] * shape[1] * shape[2], seed);
    dt_test_random(values, shape[2], first_row);
    want[dt_mesh_n_dims(mesh) - 1] = place;
    if (dt_distribute(mesh, everywhere, DT_F32, 3, shape, (dt_source){ values, DT_EQUAL_COPIES },
                      &whole) != DT_OK)
        return dti_tape_latch(t, dt_last_error()->code);
    return dt_move_cast(t, dt_tape_own(t, whole), want, dtype);
}

/* Rows that rank r of p holds of the tokens, as torch.chunk cuts them; and experts. */
static int64_t holder(int64_t i, int64_t n, int p)
{
    return i / ((n + p - 1) / p);
}

static bool reads(const scene *s, const int32_t *ids, int64_t row, int r, int p)
{
    for (int64_t k = 0; k < s->chosen; k++)
        if (holder(ids[row * s->chosen + k], s->experts, p) == r) return true;
    return false;
}

/* Rows that this rank gets of others: there, as a reader; back, from readers. */
static void rows_due(const scene *s, const int32_t *ids, int me, int p, int64_t due[2])
{
    due[0] = due[1] = 0;
    for (int64_t row = 0; row < s->batch * s->tokens; row++) {
        const int64_t at = s->axis == 0 ? row / s->tokens : row % s->tokens;
        const int64_t home = holder(at, s->axis == 0 ? s->batch : s->tokens, p);
        if (home != me) due[0] += reads(s, ids, row, me, p);
        for (int r = 0; r < p && home == me; r++) due[1] += r != me && reads(s, ids, row, r, p);
    }
}

typedef struct operands {
    dt_tensor *x, *ids, *weights, *gate_up, *down;
} operands;

static dt_status make_operands(dt_mesh *mesh, const scene *s, dt_dtype dtype, const int32_t *chosen,
                               uint32_t seed, dt_tape *t, operands *o)
{
    const int64_t x[] = { s->batch, s->tokens, s->d }, k[] = { s->batch, s->tokens, s->chosen };
    const int64_t gate_up[] = { s->experts, 2 * s->f, s->d }, down[] = { s->experts, s->d, s->f };
    const dt_placement everywhere[DT_MAX_DIMS] = { { 0 } };

    DT_TRY(dt_distribute(mesh, everywhere, DT_I32, 3, k, (dt_source){ chosen, DT_EQUAL_COPIES },
                         &o->ids));
    o->ids = dt_tape_own(t, o->ids);
    o->x = make(t, mesh, dtype, x, DT_SHARD(s->axis), seed, 1);
    o->weights = make(t, mesh, dtype, k, DT_REPLICATE, seed + 1, 2);
    o->gate_up = make(t, mesh, dtype, gate_up, DT_SHARD(0), 3, 3);
    o->down = make(t, mesh, dtype, down, DT_SHARD(0), 4, 4);
    return dt_tape_status(t);
}

static dt_tensor *there_and_back(dt_tape *t, const scene *s, const operands *o, int dim)
{
    dt_tensor *x = dt_dispatch(t, o->x, o->ids, o->gate_up, dim);
    dt_tensor *y = dt_experts(t, x, o->ids, o->weights, o->gate_up, o->down);

    return dt_combine(t, y, o->ids, o->gate_up, dim, s->axis);
}

static dt_status same_bits(dt_mesh *mesh, const scene *s, dt_dtype dtype)
{
    const int dim = dt_mesh_n_dims(mesh) - 1, p = dt_mesh_dim_size(mesh, dim);
    DT_HELD(tape) *t = dt_test_tape(mesh), *aside = dt_test_tape(mesh);
    int32_t chosen[MOST];
    operands o = { NULL };
    dt_tensor *x, *y, *want;
    dt_comm_counter got;
    int64_t due[2];

    choose(s, chosen);
    DT_TRY(make_operands(mesh, s, dtype, chosen, 1, aside, &o));
    x = dt_move_dim(aside, o.x, dim, DT_REPLICATE);
    y = dt_experts(aside, x, o.ids, o.weights, o.gate_up, o.down);
    want = dt_move_dim(aside, y, dim, DT_SHARD(s->axis));
    DT_TRY(dt_tape_status(aside));
    y = there_and_back(t, s, &o, dim);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tensor_layout(y) == dt_tensor_layout(want), "lies elsewhere");
    if (dti_local_count(dt_tensor_local(y)) > 0)
        DT_TRY(dt_test_expect_same(want, y, "what came back"));
    if (dt_mesh_n_dims(mesh) > 1) return DT_OK; /* of other tokens than those of all */
    rows_due(s, chosen, dt_mesh_coord(mesh, dim), p, due);
    got = dt_tape_comm(t, DT_COMM_ALL_TO_ALL);
    DT_EXPECT_EQ_INT(got.calls, p > 1 ? 2 : 0);
    DT_EXPECT_EQ_INT(got.bytes, due[0] * s->d * (int64_t)dt_dtype_size(dtype) +
                                    due[1] * s->d * (int64_t)sizeof(float));
    return DT_OK;
}

static const scene sizes[] = {
    { 2, 12, 8, 4, 12, 3, ANY, 1 }, /* 2, 3, 4 divide all */
    { 1, 7, 5, 3, 5, 2, ANY, 1 },   /* and nothing of this */
    { 3, 5, 6, 2, 3, 1, ANY, 0 },   /* whole texts are cut; ranks without experts, or texts */
    { 1, 2, 4, 3, 2, 2, ANY, 1 },   /* every token to every expert; ranks without both */
    { 2, 1, 3, 2, 7, 4, ANY, 1 },   /* a step of one token */
};

static dt_status every_scene(dt_mesh *mesh, const void *arg)
{
    (void)arg;
    for (size_t i = 0; i < DT_COUNT(sizes); i++)
        for (int how = 0; how < N_CHOICES; how++)
            for (int half = 0; half < 2; half++) {
                scene s = sizes[i];
                dt_status st;
                s.how = (choice)how;
                st = same_bits(mesh, &s, half ? DT_BF16 : DT_F32);
                if (st != DT_OK) dti_error_prefix("scene %d, choice %d", (int)i, how);
                DT_TRY(st);
            }
    return DT_OK;
}

DT_TEST(dispatch, what_comes_back_is_the_sum_of_all_terms_to_the_bit)
{
    static const char *const meshes[] = { "ep=1", "ep=2", "ep=3", "ep=4", "dp=2,ep=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], every_scene, NULL);
}

/* --- what a dry run says ---------------------------------------------------------------------- */

/* There and back, and the gradients of that, of rows in f32. */
static dt_status both_ways(dt_tape *t, dt_mesh *mesh, const scene *s, const operands *o)
{
    DT_HELD(gradients) *g = NULL;
    dt_tensor *y;

    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_gradients_watch(g, o->x));
    dt_tape_record(t, g);
    y = there_and_back(t, s, o, 0);
    dt_backward(t, dt_sum(t, dt_mul(t, y, y), DT_ALL_AXES), NULL);
    return dt_tape_status(t);
}

/* On each rank ten tokens, of which each chooses another two of five experts: all alike. */
static dt_status averages(dt_mesh *mesh, const void *arg)
{
    static const int32_t pairs[10][2] = { { 0, 1 }, { 0, 2 }, { 0, 3 }, { 0, 4 }, { 1, 2 },
                                          { 1, 3 }, { 1, 4 }, { 2, 3 }, { 2, 4 }, { 3, 4 } };
    const scene s = { 1, 10 * dt_mesh_n_ranks(mesh), 3, 2, 5, 2, ANY, 1 };
    DT_HELD(tape) *t = dt_test_tape(mesh), *planned = NULL;
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_mesh *dry_mesh = NULL;
    dt_runtime *rt = NULL;
    int32_t chosen[MOST];
    operands o = { NULL }, dry = { NULL };
    dt_status st;

    (void)arg;
    for (int64_t i = 0; i < s.tokens; i++) memcpy(chosen + 2 * i, pairs[i % 10], sizeof pairs[0]);
    DT_TRY(make_operands(mesh, &s, DT_BF16, chosen, 1, t, &o));
    DT_TRY(both_ways(t, mesh, &s, &o));
    run.n_ranks = dt_mesh_n_ranks(mesh);
    DT_TRY(dt_runtime_create_dry(&run, dt_mesh_coord(mesh, 0), NULL, &rt));
    st = dti_mesh_copy(mesh, rt, &dry_mesh);
    if (st == DT_OK) st = dt_tape_create(rt, &planned);
    if (st == DT_OK) st = make_operands(dry_mesh, &s, DT_BF16, chosen, 1, planned, &dry);
    if (st == DT_OK) st = both_ways(planned, dry_mesh, &s, &dry);
    if (st == DT_OK && (dt_tape_comm(planned, DT_COMM_ALL_TO_ALL).bytes !=
                            dt_tape_comm(t, DT_COMM_ALL_TO_ALL).bytes ||
                        dt_tape_comm(planned, DT_COMM_ALL_TO_ALL).calls !=
                            dt_tape_comm(t, DT_COMM_ALL_TO_ALL).calls))
        st = dt_test_unexpected(__func__, __FILE__, __LINE__, "as many bytes", "%lld are said",
                                (long long)dt_tape_comm(planned, DT_COMM_ALL_TO_ALL).bytes);
    dt_tape_release(&planned);
    dt_mesh_release(&dry_mesh);
    dt_runtime_release_dry(&rt);
    return st;
}

DT_TEST(dispatch, tokens_that_choose_all_alike_receive_what_a_dry_run_says)
{
    static const char *const meshes[] = { "ep=1", "ep=2", "ep=3", "ep=4" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], averages, NULL);
}

/* --- gradients -------------------------------------------------------------------------------- */

enum { N_LEAVES = 4 };

static dt_status gradients_of(dt_mesh *mesh, const scene *s, bool sent, dt_tape *t, dt_gradients *g,
                              dt_tensor *leaves[N_LEAVES])
{
    int32_t chosen[MOST];
    operands o = { NULL };
    dt_tensor *y;

    choose(s, chosen);
    DT_TRY(make_operands(mesh, s, DT_F32, chosen, 1, t, &o));
    memcpy(leaves, (dt_tensor *[]){ o.x, o.weights, o.gate_up, o.down }, N_LEAVES * sizeof *leaves);
    for (int i = 0; i < N_LEAVES; i++) DT_TRY(dt_gradients_watch(g, leaves[i]));
    dt_tape_record(t, g);
    if (sent) {
        y = there_and_back(t, s, &o, 0);
    } else {
        y = dt_experts(t, dt_move_dim(t, o.x, 0, DT_REPLICATE), o.ids, o.weights, o.gate_up,
                       o.down);
        y = dt_move_dim(t, y, 0, DT_SHARD(s->axis));
    }
    dt_backward(t, dt_sum(t, dt_mul(t, y, y), DT_ALL_AXES), NULL);
    DT_TRY(dt_tape_status(t));
    return dt_gradients_settle(g, t);
}

/* The bits of a gather and a reduction, and of bytes those of the rows that went there and back:
 * backward twice as f32. */
static dt_status same_gradients_of(dt_mesh *mesh, const scene *s)
{
    DT_HELD(gradients) *one = NULL, *two = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh), *aside = dt_test_tape(mesh);
    dt_tensor *of_all[N_LEAVES], *of_sent[N_LEAVES];
    const int p = dt_mesh_n_ranks(mesh);
    int32_t chosen[MOST];
    dt_comm_counter got;
    int64_t due[2];

    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &one));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &two));
    DT_TRY(gradients_of(mesh, s, false, t, one, of_all));
    DT_TRY(gradients_of(mesh, s, true, aside, two, of_sent));
    for (int i = 0; i < N_LEAVES; i++)
        if (dti_local_count(dt_tensor_local(of_all[i])) > 0)
            DT_TRY(dt_test_expect_same(dt_gradient(one, of_all[i]), dt_gradient(two, of_sent[i]),
                                       "the gradient"));
    choose(s, chosen);
    rows_due(s, chosen, dt_mesh_coord(mesh, 0), p, due);
    got = dt_tape_comm(aside, DT_COMM_ALL_TO_ALL);
    DT_EXPECT_EQ_INT(got.calls, p > 1 ? 4 : 0);
    DT_EXPECT_EQ_INT(got.bytes, 2 * (due[0] + due[1]) * s->d * (int64_t)sizeof(float));
    got = dt_tape_comm(aside, DT_COMM_REDUCE_SCATTER);
    DT_EXPECT_EQ_INT(got.calls, 0);
    return DT_OK;
}

static dt_status same_gradients(dt_mesh *mesh, const void *arg)
{
    (void)arg;
    for (size_t i = 0; i < DT_COUNT(sizes); i++)
        for (int how = 0; how < N_CHOICES; how++) {
            scene s = sizes[i];
            dt_status st;
            s.how = (choice)how;
            st = same_gradients_of(mesh, &s);
            if (st != DT_OK) dti_error_prefix("scene %d, choice %d", (int)i, how);
            DT_TRY(st);
        }
    return DT_OK;
}

DT_TEST(dispatch, gradients_are_those_of_a_gather_and_a_reduction)
{
    static const char *const meshes[] = { "ep=1", "ep=2", "ep=3", "ep=4" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], same_gradients, NULL);
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* The first token's result is its own, whoever stands beside it and wherever those go. */
static dt_status neighbours(dt_mesh *mesh, const void *arg)
{
    const scene any = { 1, 9, 8, 4, 6, 2, ANY, 1 }, last = { 1, 9, 8, 4, 6, 2, ALL_TO_LAST, 1 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int32_t chosen[MOST], others[MOST];
    operands one = { NULL }, two = { NULL };
    dt_tensor *y, *z;

    (void)arg;
    choose(&any, chosen);
    choose(&last, others);
    memcpy(others, chosen, (size_t)any.chosen * sizeof *chosen);
    DT_TRY(make_operands(mesh, &any, DT_F32, chosen, 1, t, &one));
    DT_TRY(make_operands(mesh, &any, DT_F32, others, 11, t, &two));
    y = there_and_back(t, &any, &one, 0);
    z = there_and_back(t, &any, &two, 0);
    DT_TRY(dt_tape_status(t));
    if (dt_mesh_coord(mesh, 0) == 0)
        DT_EXPECT(memcmp(dt_tensor_local(y)->data, dt_tensor_local(z)->data,
                         (size_t)any.d * sizeof(float)) == 0,
                  "the first row");
    return DT_OK;
}

DT_TEST(dispatch, a_tokens_result_does_not_depend_on_its_neighbours)
{
    dt_test_on_ranks("ep=3", neighbours, NULL);
}

static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    const scene s = { 1, 6, 4, 2, 4, 2, ANY, 1 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int32_t chosen[MOST];
    operands o = { NULL };
    dt_tensor *cut;

    (void)arg;
    choose(&s, chosen);
    DT_TRY(make_operands(mesh, &s, DT_F32, chosen, 1, t, &o));
    cut = dt_move_dim(t, o.ids, 0, DT_SHARD(1));
    DT_EXPECT(dt_dispatch(t, o.x, cut, o.gate_up, 0) == NULL, "ids are cut");
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT,
                     "ids are Shard(1) on mesh dim \"ep\", where every rank has to know all");
    dt_tape_reset(t);
    DT_TRY(make_operands(mesh, &s, DT_F32, chosen, 1, t, &o));
    cut = dt_move_dim(t, o.gate_up, 0, DT_REPLICATE);
    DT_EXPECT(dt_dispatch(t, o.x, o.ids, cut, 0) == NULL, "experts are whole");
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT, "whole ones have to be cut there");
    dt_tape_reset(t);
    chosen[3] = 4;
    DT_TRY(make_operands(mesh, &s, DT_F32, chosen, 1, t, &o));
    DT_EXPECT(dt_dispatch(t, o.x, o.ids, o.gate_up, 0) == NULL, "there is no such expert");
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "expert 4 for token 1; there are 0 to 3");
    return DT_OK;
}

DT_TEST(dispatch, what_cannot_be_sent_is_refused_by_name)
{
    dt_test_on_ranks("ep=2", refusals, NULL);
}
