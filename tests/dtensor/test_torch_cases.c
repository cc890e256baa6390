/* SPDX-License-Identifier: Apache-2.0
 *
 * Acceptance cases of PyTorch's own DTensor tests that need no gradient, under their numbers in the
 * project's notes. Where a number of collectives is given, `torch` is what PyTorch's tests assert
 * and `ours` what happens here: never more, and fewer where a row says so. */
#include <dtensor/factories.h>
#include <dtensor/inspect.h>

#include <stdio.h>
#include <string.h>

#include "mesh/runtime.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

/* The placements of "S(0)RP(sum)", valid as long as the mesh. */
static dt_status places(dt_mesh *mesh, int n_axes, const char *text, dt_placement *place)
{
    const dt_layout *layout;

    DT_TRY(dt_layout_parse(mesh, n_axes, text, &layout));
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) place[m] = dt_layout_placement(layout, m);
    return DT_OK;
}

/* --- moves ------------------------------------------------------------------------------------ */

typedef struct move_case {
    int number;
    const char *mesh;
    int n_axes;
    int64_t shape[4];
    const char *from, *to;
    int torch, ours; /* CHOICE: the cost model chooses, torch's number bounds it */
} move_case;
enum { CHOICE = -1 };

static dt_status moves(dt_mesh *mesh, const void *arg)
{
    const move_case *c = arg;
    dt_placement from[DT_MAX_DIMS], to[DT_MAX_DIMS];
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *direct = NULL, *full = NULL;
    dt_tensor *y;
    dt_comm_counter all = { 0, 0 };
    bool same = false;

    DT_TRY(places(mesh, c->n_axes, c->from, from));
    DT_TRY(places(mesh, c->n_axes, c->to, to));
    DT_TRY(dt_test_arange(mesh, from, DT_F32, c->n_axes, c->shape, &x));
    y = dt_move(t, x, to);
    DT_TRY(dt_tape_status(t));
    all = dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS);
    DT_EXPECT(all.calls <= c->torch && (c->ours == CHOICE ? all.calls > 0 : all.calls == c->ours),
              "case %d, %s to %s: %lld collectives, not %d", c->number, c->from, c->to,
              (long long)all.calls, c->ours == CHOICE ? c->torch : c->ours);
    DT_TRY(dt_test_arange(mesh, to, DT_F32, c->n_axes, c->shape, &direct));
    DT_TRY(dt_equal(y, direct, &same));
    DT_EXPECT(same, "case %d, %s to %s: other values", c->number, c->from, c->to);
    DT_TRY(dt_full_tensor(y, &full));
    DT_TRY(dt_test_expect_arange(full));
    return DT_OK;
}

DT_TEST(torch_cases, redistribute_keeps_the_value_in_as_few_collectives)
{
    /* clang-format off */
    static const move_case cases[] = {
        /*  no   mesh                 shape              from           to             torch ours */
        {  1, "tp=4",        2, { 12, 3 },     "S(0)",            "R",                1, 1 },
        {  1, "tp=4",        2, { 13, 3 },     "S(0)",            "R",                1, 1 },
        {  1, "tp=4",        2, { 14, 3 },     "S(0)",            "R",                1, 1 },
        {  1, "tp=4",        2, { 3, 12 },     "S(1)",            "R",                1, 1 },
        {  1, "tp=4",        2, { 3, 13 },     "S(1)",            "R",                1, 1 },
        {  1, "tp=4",        2, { 3, 14 },     "S(1)",            "R",                1, 1 },
        {  2, "tp=4",        2, { 12, 3 },     "R",               "R",                0, 0 },
        {  3, "tp=4",        2, { 12, 3 },     "P(sum)",          "P(sum)",           0, 0 },
        {  5, "tp=4",        2, { 13, 3 },     "R",               "S(0)",             0, 0 },
        {  5, "tp=4",        2, { 3, 14 },     "R",               "S(1)",             0, 0 },
        {  6, "tp=4",        2, { 12, 3 },     "P(sum)",          "R",                1, 1 },
        {  9, "tp=4",        2, { 13, 3 },     "P(sum)",          "S(0)",             1, 1 },
        {  9, "tp=4",        2, { 14, 3 },     "P(sum)",          "S(0)",             1, 1 },
        {  9, "tp=4",        2, { 3, 13 },     "P(sum)",          "S(1)",             1, 1 },
        { 11, "tp=4",        2, { 2, 8 },      "S(0)",            "R",                1, 1 },
        { 11, "tp=4",        2, { 2, 8 },      "S(0)",            "S(1)",             1, 1 },
        { 12, "tp=4",        2, { 8, 8 },      "S(0)",            "S(1)",             1, 1 },
        { 12, "tp=4",        3, { 8, 8, 8 },   "S(1)",            "S(0)",             1, 1 },
        { 12, "tp=4",        2, { 8, 5 },      "S(0)",            "S(1)",             1, 1 },
        { 12, "tp=4",        2, { 5, 8 },      "S(1)",            "S(0)",             1, 1 },
        { 12, "tp=4",        2, { 5, 5 },      "S(0)",            "S(1)",             1, 1 },
        { 13, "dp=2,tp=2",   2, { 10, 5 },     "S(0)S(0)",        "RR",               2, 1 },
        { 13, "dp=2,tp=2",   2, { 9, 5 },      "S(0)S(0)",        "RR",               2, 1 },
        { 13, "dp=2,tp=2",   2, { 3, 5 },      "S(0)S(1)",        "RR",               2, 1 },
        { 13, "dp=2,tp=2",   2, { 1, 3 },      "S(0)S(0)",        "RR",               2, 1 },
        /* one exchange of boxes instead of two steps */
        { 14, "dp=2,tp=2",   2, { 5, 8 },      "S(0)S(1)",        "S(0)S(0)",         1, 1 },
        { 14, "dp=2,tp=2",   2, { 8, 5 },      "S(0)S(1)",        "S(1)S(0)",         2, 1 },
        { 14, "dp=2,tp=2",   2, { 5, 5 },      "S(0)S(0)",        "S(1)S(1)",         2, 1 },
        { 14, "dp=2,tp=2",   3, { 8, 8, 8 },   "S(0)S(2)",        "S(1)S(0)",         2, 1 },
        { 14, "dp=2,tp=2",   3, { 8, 8, 8 },   "S(1)S(1)",        "S(1)S(2)",         1, 1 },
        /* a mesh dim of one rank never communicates */
        { 15, "dp=4,tp=1",   2, { 16, 8 },     "S(0)S(1)",        "S(0)S(0)",         0, 0 },
        { 15, "dp=4,tp=1",   2, { 16, 8 },     "S(0)S(1)",        "S(0)R",            0, 0 },
        { 15, "dp=4,tp=1",   2, { 16, 8 },     "S(0)R",           "S(0)S(0)",         0, 0 },
        { 15, "dp=4,tp=1",   2, { 16, 8 },     "S(0)R",           "S(0)S(1)",         0, 0 },
        { 15, "dp=4,tp=1",   2, { 16, 8 },     "S(0)P(sum)",      "S(0)R",            0, 0 },
        { 15, "dp=4,tp=1",   2, { 16, 8 },     "S(0)P(sum)",      "S(0)S(1)",         0, 0 },
        { 18, "dp=2,tp=2",   3, { 1, 16, 12 }, "S(1)S(1)",        "S(1)R",            1, 1 },
        { 20, "a=2,b=2,c=2", 3, { 8, 8, 8 },   "S(0)S(0)S(0)",    "S(1)S(1)S(1)",     3, 1 },
        { 20, "a=2,b=2,c=2", 3, { 8, 8, 8 },   "S(0)S(1)S(0)",    "S(1)S(0)S(0)",     3, 1 },
        { 20, "a=2,b=2,c=2", 3, { 8, 8, 8 },   "S(0)S(1)S(2)",    "S(2)S(1)S(0)",     2, 1 },
        { 20, "a=2,b=2,c=2", 3, { 8, 8, 8 },   "S(1)S(0)S(0)",    "RS(0)S(0)",        1, 1 },
        { 20, "a=2,b=2,c=2", 3, { 8, 8, 8 },   "S(1)RS(0)",       "RS(0)S(0)",        2, 1 },
        { 20, "a=2,b=2,c=2", 3, { 8, 8, 8 },   "S(0)S(0)S(1)",    "S(0)S(1)S(2)",     2, 1 },
        { 21, "a=2,b=2,c=2", 3, { 8, 8, 8 },   "S(0)S(0)S(0)",    "RS(0)S(0)",        3, 1 },
        { 21, "a=2,b=2,c=2", 3, { 8, 8, 8 },   "S(0)[1]S(0)[0]S(0)[2]", "RS(0)S(0)",  3, 1 },
        { 21, "a=2,b=2,c=2", 3, { 8, 8, 8 },   "S(0)[1]S(0)[0]S(0)[2]", "S(0)S(0)R",  3, 1 },
        { 21, "a=2,b=2,c=2", 3, { 8, 8, 8 },   "S(0)S(0)R",       "RS(1)S(0)",        3, 1 },
        /* strided shards are blocks; PyTorch's tests assert values only, so ours stands twice */
        { 25, "a=2,b=2,c=2", 3, { 32, 13, 11 }, "S(0)S(0)S(0,blocks=3:3:2)", "RS(0)S(0)", 1, 1 },
        { 25, "a=2,b=2,c=2", 3, { 32, 13, 11 }, "S(0)[1]S(0)[0]S(0)[2]", "RS(0)S(0,blocks=6:6:4)", 1, 1 },
        { 25, "a=2,b=2,c=2", 3, { 32, 13, 11 }, "S(0)S(0,blocks=6:6:4)S(0)", "S(0,blocks=11:11:10)S(0)R", 1, 1 },
        { 25, "a=2,b=2,c=2", 3, { 31, 13, 11 }, "S(0)S(0)R", "RS(1,blocks=3:3:3:3:1)S(0)", 1, 1 },
        { 25, "a=2,b=2,c=2", 3, { 31, 13, 11 }, "S(0)S(0)S(0)", "S(0,blocks=11:11:9)S(0)R", 1, 1 },
        /* merged, on groups of our own: PyTorch needs the user to have flattened the mesh */
        { 26, "dp=4,tp=2",   3, { 16, 16, 16 }, "P(sum)P(sum)",   "RR",               1, 1 },
        { 26, "dp=4,tp=2",   3, { 16, 16, 16 }, "S(0)S(0)",       "RR",               1, 1 },
        { 26, "dp=4,tp=2",   3, { 16, 16, 16 }, "S(0)S(1)",       "RR",               2, 1 },
        { 26, "a=2,b=2,c=2", 3, { 16, 16, 16 }, "P(sum)P(sum)P(sum)", "RRR",          1, 1 },
        { 26, "a=2,b=2,c=2", 3, { 16, 16, 16 }, "P(sum)RP(sum)",  "RRR",              1, 1 },
        { 27, "a=2,b=2,c=2", 1, { 16 },        "S(0)S(0)S(0)",    "RRR",              1, 1 },
        { 27, "a=2,b=2,c=2", 1, { 17 },        "S(0)[1]S(0)[0]S(0)[2]", "RRR",        3, 1 },
        /* reductions and cuts together */
        { 26, "dp=4,tp=2",   3, { 16, 16, 16 }, "P(sum)P(sum)",       "S(0)S(0)",     1, CHOICE },
        { 26, "dp=4,tp=2",   3, { 16, 16, 16 }, "P(sum)P(sum)",       "S(0)S(1)",     2, CHOICE },
        { 26, "a=2,b=2,c=2", 3, { 16, 16, 16 }, "P(sum)S(0)P(sum)",   "RRR",          3, CHOICE },
        { 26, "a=2,b=2,c=2", 3, { 16, 16, 16 }, "P(sum)P(sum)R",      "S(0)S(1)R",    2, CHOICE },
        { 26, "a=2,b=2,c=2", 3, { 16, 16, 16 }, "P(sum)P(sum)P(sum)", "S(0)S(0)S(1)", 2, CHOICE },
        { 26, "a=2,b=2,c=2", 3, { 16, 16, 16 }, "P(sum)P(sum)S(0)",   "S(0)S(0)S(0)", 3, CHOICE },
        { 30, "a=2,b=4,c=1", 1, { 8 },          "P(sum)S(0)P(sum)",   "S(0)S(0)S(0)", 3, CHOICE },
        { 30, "a=2,b=2,c=2", 1, { 24 },         "S(0)P(sum)P(sum)",   "S(0)S(0)S(0)", 2, CHOICE },
    };
    /* clang-format on */

    for (size_t i = 0; i < DT_COUNT(cases); i++) dt_test_on_ranks(cases[i].mesh, moves, &cases[i]);
}

/* --- local sizes ------------------------------------------------------------------------------ */

typedef struct sizes_case {
    int number;
    const char *mesh, *from, *layout;
    int64_t rows;
    int64_t want[8]; /* rows on each rank */
} sizes_case;

static dt_status sizes(dt_mesh *mesh, const void *arg)
{
    const sizes_case *c = arg;
    dt_placement from[DT_MAX_DIMS], to[DT_MAX_DIMS];
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    DT_HELD(tensor) *x = NULL, *y = NULL;

    DT_TRY(places(mesh, 1, c->from, from));
    DT_TRY(places(mesh, 1, c->layout, to));
    DT_TRY(dt_test_arange(mesh, from, DT_F32, 1, &c->rows, &x));
    DT_TRY(dt_redistribute(x, to, &y));
    DT_EXPECT(dt_tensor_local(y)->shape[0] == c->want[rank], "case %d: %lld rows", c->number,
              (long long)dt_tensor_local(y)->shape[0]);
    for (int64_t i = 0; i < c->want[rank]; i++)
        DT_EXPECT(((float *)dt_tensor_local(y)->data)[i] ==
                      (float)(dt_tensor_local(y)->offset[0] + i),
                  "case %d: row %lld", c->number, (long long)i);
    return DT_OK;
}

DT_TEST(torch_cases, pieces_have_torchs_sizes)
{
    static const sizes_case cases[] = {
        { 9, "tp=4", "P(sum)", "S(0)", 13, { 4, 4, 4, 1 } },
        { 9, "tp=4", "P(sum)", "S(0)", 14, { 4, 4, 4, 2 } },
        { 11, "tp=4", "R", "S(0)", 2, { 1, 1, 0, 0 } },
        { 13, "dp=2,tp=2", "RR", "S(0)S(0)", 10, { 3, 2, 3, 2 } },
        { 13, "dp=2,tp=2", "RR", "S(0)S(0)", 9, { 3, 2, 2, 2 } },
        { 13, "dp=2,tp=2", "RR", "S(0)S(0)", 3, { 1, 1, 1, 0 } },
        { 13, "dp=2,tp=2", "RR", "S(0)S(0)", 1, { 1, 0, 0, 0 } },
        /* a reduce-scatter over six ranks at once would be wrong */
        { 29, "dp=2,tp=3", "P(sum)P(sum)", "S(0)S(0)", 4, { 1, 1, 0, 1, 1, 0 } },
        { 31, "dp=4,tp=2", "RR", "S(0)S(0)", 18, { 3, 2, 3, 2, 3, 2, 2, 1 } },
        { 32, "dp=4,tp=2", "RR", "S(0)S(0)", 13, { 2, 2, 2, 2, 2, 2, 1, 0 } },
        { 36, "tp=8", "R", "S(0)", 7, { 1, 1, 1, 1, 1, 1, 1, 0 } },
        { 37, "tp=8", "R", "S(0,offsets=0:0:1:3:6:10:15:21:28)", 28, { 0, 1, 2, 3, 4, 5, 6, 7 } },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) dt_test_on_ranks(cases[i].mesh, sizes, &cases[i]);
}

/* --- all pairs, all orders -------------------------------------------------------------------- */

/* Case 19: every layout without new terms from every layout, after a distribution that has to
 * overwrite what ranks other than 0 hold. */
static dt_status all_pairs(dt_mesh *mesh, const void *arg)
{
    static const char *const from[] = { "R", "S(0)", "S(1)", "P(sum)" };
    const int64_t shape[] = { 16, 24 };

    (void)arg;
    for (int i = 0; i < 16 * 9; i++) {
        dt_placement p[2], q[2];
        char text[32];
        dt_status st = DT_OK;
        dt_tensor *x = NULL, *y = NULL, *full = NULL;
        (void)snprintf(text, sizeof text, "%s%s", from[i / 9 / 4], from[i / 9 % 4]);
        DT_TRY(places(mesh, 2, text, p));
        (void)snprintf(text, sizeof text, "%s%s", from[i % 9 / 3], from[i % 3]);
        DT_TRY(places(mesh, 2, text, q));
        DT_TRY_TO(done, st, dt_test_arange(mesh, p, DT_F32, 2, shape, &x));
        DT_TRY_TO(done, st, dt_redistribute(x, q, &y));
        DT_TRY_TO(done, st, dt_full_tensor(y, &full));
        DT_TRY_TO(done, st, dt_test_expect_arange(full));
    done:
        dt_tensor_release(&full);
        dt_tensor_release(&y);
        dt_tensor_release(&x);
        DT_TRY(st);
    }
    return DT_OK;
}

DT_TEST(torch_cases, every_pair_on_eight_ranks)
{
    dt_test_on_ranks("dp=4,tp=2", all_pairs, NULL);
}

typedef struct orders_case {
    int n_axes;
    int64_t shape[4];
    int n_orders; /* 3! sum over i of C(2, i-1) C(n_axes, i) */
} orders_case;

/* Case 22: one tensor through every order of cuts of every choice of axes. */
static dt_status all_orders(dt_mesh *mesh, const void *arg)
{
    static const int permutations[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                            { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    const orders_case *c = arg;
    const dt_layout *seen[256];
    const dt_placement whole[3] = { DT_REPLICATE, DT_REPLICATE, DT_REPLICATE };
    DT_HELD(tensor) *x = NULL, *y = NULL, *full = NULL;
    int n = 0, combos = c->n_axes * c->n_axes * c->n_axes;

    DT_TRY(dt_test_arange(mesh, whole, DT_F32, c->n_axes, c->shape, &x));
    for (int i = 0; i < 6 * combos; i++) {
        dt_placement place[3];
        const dt_layout *l;
        bool again = false;
        for (int m = 0, rest = i / 6; m < 3; m++, rest /= c->n_axes)
            place[m] = DT_SHARD(rest % c->n_axes);
        DT_TRY(dt_layout_get(mesh, c->n_axes, place, permutations[i % 6], &l));
        for (int k = 0; k < n; k++) again = again || seen[k] == l;
        if (again) continue;
        seen[n++] = l;
        for (int m = 0; m < 3; m++) place[m] = dt_layout_placement(l, m);
        DT_TRY(dt_redistribute(x, place, &y));
        DT_EXPECT(dt_tensor_layout(y) == l, "another layout came out");
        dt_tensor_release(&x);
        x = y;
        y = NULL;
        DT_TRY(dt_full_tensor(x, &full));
        DT_TRY(dt_test_expect_arange(full));
        dt_tensor_release(&full);
    }
    DT_EXPECT(n == c->n_orders, "%d orders", n);
    return DT_OK;
}

DT_TEST(torch_cases, every_order_of_cuts_holds_the_value)
{
    static const orders_case cases[] = { { 2, { 16, 8 }, 24 },
                                         { 3, { 8, 16, 32 }, 60 },
                                         { 2, { 17, 5 }, 24 },
                                         { 4, { 33, 16, 8, 1 }, 120 } };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks("a=2,b=2,c=2", all_orders, &cases[i]);
}

/* --- Partial ---------------------------------------------------------------------------------- */

typedef struct legal_case {
    int number;
    const char *mesh, *from, *to;
    bool legal;
} legal_case;

static dt_status legality(dt_mesh *mesh, const void *arg)
{
    const legal_case *c = arg;
    const int64_t shape[] = { 4, 4 };
    const float terms[16] = { 0 };
    dt_placement from[DT_MAX_DIMS], to[DT_MAX_DIMS];
    dt_status st = DT_OK, moved;
    dt_tensor *x = NULL, *y = NULL;

    DT_TRY(places(mesh, 2, c->from, from));
    moved = places(mesh, 2, c->to, to);
    if (moved == DT_OK) {
        DT_TRY_TO(done, st, dt_from_local(mesh, from, DT_F32, 2, shape, terms, &x));
        moved = dt_redistribute(x, to, &y);
    }
    DT_EXPECT_TO(done, st, moved == (c->legal ? DT_OK : DT_ERR_LAYOUT), "case %d, %s to %s: %s",
                 c->number, c->from, c->to, dt_status_name(moved));
done:
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    return st;
}

DT_TEST(torch_cases, terms_are_never_invented)
{
    static const legal_case cases[] = {
        { 8, "tp=4", "R", "P(sum)", false },
        { 16, "dp=2,tp=2", "P(sum)S(0)", "P(sum)S(0)", true },
        { 16, "dp=2,tp=2", "P(sum)S(0)", "P(sum)S(1)", true },
        { 16, "dp=2,tp=2", "S(0)P(sum)", "RP(sum)", true },
        { 16, "dp=2,tp=2", "P(prod)S(0)", "P(prod)S(1)", true },
        { 16, "dp=2,tp=2", "S(0)P(prod)", "RP(prod)", true },
        { 16, "dp=2,tp=2", "S(0)R", "S(0)P(sum)", false },
        { 16, "dp=2,tp=2", "S(0)R", "RP(sum)", false },
        { 16, "dp=2,tp=2", "S(0)S(1)", "RP(sum)", false },
        { 16, "dp=2,tp=2", "S(0)P(prod)", "RP(sum)", false },
        { 17, "tp=4", "P(sum)", "P(avg)", false },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks(cases[i].mesh, legality, &cases[i]);
}

/* Case 28: averages and a sum of equal terms: value 8 / 4 in one reduction. */
static dt_status averages(dt_mesh *mesh, const void *arg)
{
    const char *to = arg;
    const int64_t n = 16;
    float terms[16];
    dt_placement from[3], want[3];
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y;

    for (int i = 0; i < 16; i++) terms[i] = (float)i;
    DT_TRY(places(mesh, 1, "P(avg)P(avg)P(sum)", from));
    DT_TRY(places(mesh, 1, to, want));
    DT_TRY(dt_from_local(mesh, from, DT_F32, 1, &n, terms, &x));
    y = dt_move(t, x, want);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS).calls == 1, "to %s: %d collectives", to,
              (int)dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS).calls);
    for (int64_t i = 0; i < dt_tensor_local(y)->shape[0]; i++)
        DT_EXPECT(((float *)dt_tensor_local(y)->data)[i] ==
                      2.0f * (float)(dt_tensor_local(y)->offset[0] + i),
                  "to %s, element %lld", to, (long long)i);
    return DT_OK;
}

DT_TEST(torch_cases, sums_and_averages_reduce_together)
{
    dt_test_on_ranks("a=2,b=2,c=2", averages, "RRR");
    dt_test_on_ranks("a=2,b=2,c=2", averages, "S(0)S(0)S(0)");
}

/* --- basics ----------------------------------------------------------------------------------- */

/* Case 42: what the caller does with placements afterwards does not matter; offsets are copied. */
static dt_status keeps_its_placements(dt_mesh *mesh, const void *arg)
{
    int64_t offsets[] = { 0, 1, 3, 3, 4 };
    dt_placement place = dt_shard_offsets(0, 5, offsets);
    const int64_t n = 4;
    const dt_layout *before;
    DT_HELD(tensor) *x = NULL, *full = NULL;

    (void)arg;
    DT_TRY(dt_test_arange(mesh, &place, DT_F32, 1, &n, &x));
    before = dt_tensor_layout(x);
    for (int i = 0; i < 5; i++) offsets[i] = 77;
    place = DT_REPLICATE;
    DT_EXPECT(dt_tensor_layout(x) == before && dt_layout_placement(before, 0).offsets[2] == 3,
              "the layout has changed");
    DT_TRY(dt_full_tensor(x, &full));
    DT_TRY(dt_test_expect_arange(full));
    return DT_OK;
}

DT_TEST(torch_cases, tensors_keep_their_placements)
{
    dt_test_on_ranks("tp=4", keeps_its_placements, NULL);
}

/* Case 43: pieces without communication: tile (i, j) of arange on a mesh of the same shape. */
static dt_status own_element(dt_mesh *mesh, const void *arg)
{
    const dt_placement tiles[] = { DT_SHARD(0), DT_SHARD(1) };
    const int64_t shape[] = { 2, 4 };
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    DT_HELD(tensor) *x = NULL;
    float source[8];

    (void)arg;
    for (int i = 0; i < 8; i++) source[i] = (float)i;
    DT_TRY(
        dt_distribute(mesh, tiles, DT_F32, 2, shape, (dt_source){ source, DT_EQUAL_COPIES }, &x));
    DT_EXPECT(((float *)dt_tensor_local(x)->data)[0] == (float)rank, "rank %d", rank);
    ((float *)dt_tensor_local(x)->data)[0] = -1.0f;
    DT_EXPECT(source[rank] == (float)rank, "the source has changed");
    return DT_OK;
}

DT_TEST(torch_cases, every_rank_has_its_own_element)
{
    dt_test_on_ranks("dp=2,tp=4", own_element, NULL);
}

/* Case 58: collectives along each dim of a mesh: coordinate 0's value per fiber, uneven blocks. */
static dt_status fibers(dt_mesh *mesh, const void *arg)
{
    (void)arg;
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        const int rank = dt_runtime_rank(dt_mesh_runtime(mesh)), size = dt_mesh_dim_size(mesh, m);
        const int stride = m == 0 ? dt_mesh_dim_size(mesh, 1) : 1;
        int64_t counts[8];
        int32_t x = rank, mine[8], all[36];
        dti_comm *c;
        DT_TRY(dti_mesh_comm(mesh, 1u << m, &c));
        DT_TRY(dti_broadcast(c, &x, 1, DT_I32, 0));
        DT_EXPECT_EQ_INT(x, rank - dt_mesh_coord(mesh, m) * stride);
        for (int r = 0; r < size; r++) counts[r] = r; /* rank r of the fiber has r elements */
        for (int i = 0; i < 8; i++) mine[i] = rank * 10 + i;
        DT_TRY(dti_all_gather(c, mine, all, counts, NULL, DT_I32));
        for (int r = 0, k = 0; r < size; r++)
            for (int i = 0; i < r; i++, k++) DT_EXPECT_EQ_INT(all[k], c->world_ranks[r] * 10 + i);
    }
    return DT_OK;
}

DT_TEST(torch_cases, collectives_along_each_dim)
{
    dt_test_on_ranks("dp=2,tp=4", fibers, NULL);
    dt_test_on_ranks("dp=4,tp=2", fibers, NULL);
}
