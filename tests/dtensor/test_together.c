/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves of several tensors together: the bits and bytes of single ones, in fewer calls. */
#include <dtensor/factories.h>
#include <stdio.h>
#include <string.h>

#include "dtensor/move_steps.h"
#include "dtensor/pending.h"
#include "mesh/runtime.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { MOST = 8 };

/* Tensors of a table: shape and way. */
typedef struct way {
    int64_t shape[2];
    dt_dtype dtype;
    const char *from, *to;
} way;

typedef struct load {
    const char *name;
    int64_t reduces, scatters; /* calls of several ranks; -1: as plans like */
    way ways[MOST];
} load;

static int n_ways(const load *l)
{
    int n = 0;

    while (n < MOST && l->ways[n].from != NULL) n++;
    return n;
}

/* Terms whose sum depends on the order in which it is made. */
static dt_status make(dt_mesh *mesh, const way *w, uint32_t seed, dt_tensor **x)
{
    const dt_layout *layout;
    float terms[512];
    dt_local *l;
    int64_t n;

    DT_TRY(dt_layout_parse(mesh, 2, w->from, &layout));
    DT_TRY(dt_empty_laid(mesh, layout, w->dtype, w->shape, x));
    l = (dt_local *)dt_tensor_local(*x);
    n = l->shape[0] * l->shape[1];
    if (strchr(w->from, 'P') == NULL) return dt_fill_rand(*x, (dt_random){ seed, 7 }, -1, 1);
    DT_EXPECT(n <= 512, "%d elements", (int)n);
    if (dt_runtime_is_dry(dt_mesh_runtime(mesh))) return DT_OK;
    dt_test_random(terms, n, seed * 31 + (uint32_t)dt_runtime_rank(dt_mesh_runtime(mesh)));
    if (l->dtype == DT_F32)
        memcpy(l->data, terms, (size_t)n * sizeof *terms);
    else
        memset(l->data, 0, dti_tensor_bytes(*x));
    return DT_OK;
}

static dt_status count_is(const load *l, const dt_comm_counter *one, const dt_comm_counter *all,
                          int ranks)
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        DT_EXPECT(one[k].bytes == all[k].bytes && all[k].calls <= one[k].calls,
                  "%s: %lld bytes and %lld calls of %s, of single moves %lld and %lld", l->name,
                  (long long)all[k].bytes, (long long)all[k].calls,
                  dt_comm_kind_name((dt_comm_kind)k), (long long)one[k].bytes,
                  (long long)one[k].calls);
    if (ranks == 1 || l->reduces < 0) return DT_OK;
    DT_EXPECT(all[DT_COMM_ALL_REDUCE].calls == l->reduces &&
                  all[DT_COMM_REDUCE_SCATTER].calls == l->scatters,
              "%s: %lld sums and %lld scattered ones", l->name,
              (long long)all[DT_COMM_ALL_REDUCE].calls,
              (long long)all[DT_COMM_REDUCE_SCATTER].calls);
    return DT_OK;
}

static dt_status as_single_moves(dt_mesh *mesh, const void *arg)
{
    const load *l = arg;
    const int n = n_ways(l);
    dt_comm_counter one[DT_N_COMM_KINDS] = { { 0 } }, all[DT_N_COMM_KINDS] = { { 0 } };
    dt_tensor *x[MOST] = { NULL }, *want[MOST] = { NULL }, *y[MOST] = { NULL };
    const dt_layout *to[MOST];
    dt_pending *pending;
    dt_status st = DT_OK;
    size_t bytes;
    bool same;

    for (int i = 0; i < n; i++) {
        DT_TRY_TO(done, st, make(mesh, &l->ways[i], (uint32_t)i, &x[i]));
        DT_TRY_TO(done, st, dt_layout_parse(mesh, 2, l->ways[i].to, &to[i]));
        DT_TRY_TO(done, st, dti_redistribute(x[i], to[i], one, &want[i]));
    }
    for (int later = 0; later < 2; later++) {
        memset(all, 0, sizeof all);
        if (later) {
            DT_TRY_TO(done, st, dti_moves_begin(n, x, to, all, &pending));
            for (int i = 0; i < n; i++) dt_tensor_release(&x[i]);
            DT_TRY_TO(done, st, dti_moves_wait(&pending, y));
        } else {
            DT_TRY_TO(done, st, dti_redistribute_all(n, x, to, all, y));
        }
        DT_TRY_TO(done, st, count_is(l, one, all, dt_mesh_n_ranks(mesh)));
        for (int i = 0; i < n; i++) {
            DT_EXPECT_TO(done, st, dt_tensor_layout(y[i]) == to[i], "%s: layout of %d", l->name, i);
            bytes = dti_tensor_bytes(y[i]);
            same = bytes == 0 || dt_runtime_is_dry(dt_mesh_runtime(mesh)) ||
                   memcmp(y[i]->local.data, want[i]->local.data, bytes) == 0;
            DT_EXPECT_TO(done, st, same, "%s: %d has other bits", l->name, i);
            dt_tensor_release(&y[i]);
        }
    }
done:
    for (int i = 0; i < n; i++) {
        dt_tensor_release(&x[i]);
        dt_tensor_release(&want[i]);
        dt_tensor_release(&y[i]);
    }
    return st;
}

/* clang-format off */
static const load line[] = {
    { "sums", 1, 0, { { { 5, 3 }, DT_F32, "P(sum)", "R" }, { { 1, 1 }, DT_F32, "P(sum)", "R" },
                      { { 13, 7 }, DT_F32, "P(sum)", "R" } } },
    { "cut sums", 0, 1, { { { 5, 3 }, DT_F32, "P(sum)", "S(0)" }, { { 2, 9 }, DT_F32, "P(sum)", "S(1)" },
                          { { 6, 1 }, DT_F32, "P(sum)", "S(0)" }, { { 3, 1 }, DT_F32, "P(sum)", "S(0)" } } },
    { "both", 1, 1, { { { 5, 3 }, DT_F32, "P(sum)", "S(0)" }, { { 4, 4 }, DT_F32, "P(sum)", "R" },
                      { { 7, 2 }, DT_F32, "P(sum)", "S(1)" }, { { 9, 1 }, DT_F32, "P(sum)", "R" },
                      { { 4, 6 }, DT_F32, "S(0)", "R" }, { { 2, 2 }, DT_F32, "R", "R" } } },
    { "empty pieces", -1, -1, { { { 1, 6 }, DT_F32, "P(sum)", "S(0)" }, { { 2, 3 }, DT_F32, "P(sum)", "S(0)" },
                                { { 1, 1 }, DT_F32, "P(sum)", "S(1)" }, { { 9, 2 }, DT_F32, "P(sum)", "S(1)" } } },
    { "nothing to send", 1, 1, { { { 0, 3 }, DT_F32, "P(sum)", "R" }, { { 0, 0 }, DT_F32, "P(sum)", "R" },
                                 { { 0, 3 }, DT_F32, "P(sum)", "S(0)" }, { { 4, 0 }, DT_F32, "P(sum)", "S(0)" } } },
    { "other kinds of sums", 4, 0, { { { 5, 3 }, DT_F32, "P(sum)", "R" }, { { 5, 3 }, DT_F32, "P(max)", "R" },
                                     { { 4, 4 }, DT_F32, "P(avg)", "R" }, { { 5, 2 }, DT_F32, "P(sum)", "R" },
                                     { { 5, 3 }, DT_BF16, "P(sum)", "R" } } },
};
static const load square[] = {
    { "over two dims", 1, 0, { { { 5, 3 }, DT_F32, "P(sum)P(sum)", "RR" }, { { 4, 4 }, DT_F32, "P(sum)P(sum)", "RR" } } },
    { "over one", 1, 0, { { { 5, 3 }, DT_F32, "P(sum)S(0)", "RS(0)" }, { { 4, 4 }, DT_F32, "P(sum)R", "RR" } } },
    { "step by step", -1, -1, { { { 16, 16 }, DT_F32, "P(sum)P(sum)", "S(0)R" }, { { 18, 12 }, DT_F32, "P(sum)P(sum)", "S(0)R" } } },
};
/* clang-format on */

DT_TEST(together, moves_have_the_bits_and_bytes_of_single_ones)
{
    static const char *const lines[] = { "dp=1", "dp=2", "dp=3", "dp=4" };

    for (size_t i = 0; i < DT_COUNT(line); i++)
        for (size_t m = 0; m < DT_COUNT(lines); m++)
            dt_test_on_ranks(lines[m], as_single_moves, &line[i]);
    for (size_t i = 0; i < DT_COUNT(square); i++)
        dt_test_on_ranks("dp=2,tp=2", as_single_moves, &square[i]);
}

DT_TEST(together, dry_moves_count_alike)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    dt_runtime *rt;
    dt_mesh *mesh;

    o.n_ranks = 4;
    for (int r = 0; r < 4; r += 3) {
        DT_ASSERT_OK(dt_runtime_create_dry(&o, r, NULL, &rt));
        DT_ASSERT_OK(dt_mesh_create(rt, "dp=4", &mesh));
        for (size_t i = 0; i < DT_COUNT(line); i++) DT_ASSERT_OK(as_single_moves(mesh, &line[i]));
        dt_mesh_release(&mesh);
        dt_runtime_release_dry(&rt);
    }
}

/* A rank whose list differs is named by those who compare. */
static dt_status one_differs(dt_mesh *mesh, const void *arg)
{
    const way ways[] = { { { 5, 3 }, DT_F32, "P(sum)", "R" },
                         { { 4, 4 }, DT_F32, "P(sum)", "R" },
                         { { 2, 8 }, DT_F32, "P(sum)", "R" } };
    dt_tensor *x[2] = { NULL }, *y[2];
    const dt_layout *to[2];
    dt_status st = DT_OK;

    (void)arg;
    for (int i = 0; i < 2; i++) {
        const int which = i == 1 && dt_mesh_coord(mesh, 0) == 1 ? 2 : i; /* as many elements */
        DT_TRY_TO(done, st, make(mesh, &ways[which], 1, &x[i]));
        DT_TRY_TO(done, st, dt_layout_parse(mesh, 2, "R", &to[i]));
    }
    st = dti_redistribute_all(2, x, to, NULL, y);
    for (int i = 0; i < 2; i++) dt_tensor_release(&y[i]);
done:
    for (int i = 0; i < 2; i++) dt_tensor_release(&x[i]);
    return st;
}

DT_TEST(together, ranks_that_differ_in_one_are_told)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.check = "agree";
    DT_ASSERT_STATUS(dt_test_run(&o, "dp=2", one_differs, NULL), DT_ERR_ARG, "differ");
}

/* --- a wait that comes twice ------------------------------------------------------------------ */

/* Waited for twice, a move is not done twice, nor freed twice (DeepSpeed#8486). */
static dt_status waits_twice(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 8 };
    DT_HELD(tensor) *x = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *y;
    dt_pending *p;

    (void)arg;
    DT_TRY(dt_test_arange(mesh, rows, DT_F32, 1, shape, &x));
    for (int times = 1; times <= 2; times++) {
        p = dt_move_begin(t, x, whole);
        y = dt_move_wait(t, p);
        DT_TRY(dt_tape_status(t));
        DT_EXPECT(((const float *)dt_tensor_local(y)->data)[7] == 7, "the whole");
        if (times == 1) continue; /* once, as it should be, nothing is said */
        DT_EXPECT(dt_move_wait(t, p) == NULL, "a second result");
        DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "was waited for already");
        DT_EXPECT(((const float *)dt_tensor_local(y)->data)[7] == 7, "as it was");
    }
    return DT_OK;
}

DT_TEST(together, a_second_wait_is_refused)
{
    dt_test_on_ranks("dp=1", waits_twice, NULL);
    dt_test_on_ranks("dp=2", waits_twice, NULL);
}
