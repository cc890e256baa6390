/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner: never more bytes than PyTorch's, and what it does with links and memory. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "placements/plan.h"
#include "placements/plan_edges.h"
#include "tests/placements/grid.h"
#include "tests/support/torch_plans.h"

static dti_cost_model model_of(const int64_t *shape, double latency_ns)
{
    dti_cost_model m = { .shape = shape, .element_bytes = 4 };

    for (int d = 0; d < DT_MAX_DIMS; d++) m.link[d] = (dt_link){ latency_ns, 1 };
    return m;
}

/* All layouts of the grid with placements from `places`, in all orders. */
static int all_layouts(dti_layouts *t, const grid *g, int n_axes, const dt_layout **out, int most)
{
    int total = 1, n = 0;
    const int choices = n_axes + 2;

    for (int m = 0; m < g->n_dims; m++) total *= choices;
    for (int i = 0; i < total * 6; i++) {
        static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                          { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
        dt_placement place[DT_MAX_DIMS];
        int order[3], n_order = 0, seen = 0;
        for (int m = 0, rest = i / 6; m < g->n_dims; m++, rest /= choices)
            place[m] = rest % choices < n_axes    ? DT_SHARD(rest % choices)
                       : rest % choices == n_axes ? DT_REPLICATE
                                                  : DT_PARTIAL(DT_SUM);
        for (int k = 0; k < 3; k++)
            if (orders[i % 6][k] < g->n_dims) order[n_order++] = orders[i % 6][k];
        DT_ASSERT(n < most);
        DT_ASSERT_OK(dti_layout_intern(t, g->n_dims, g->size, n_axes, place, order, &out[n]));
        while (seen < n && out[seen] != out[n]) seen++;
        n += seen == n;
    }
    return n;
}

/* Every pair that PyTorch can say: with latency 0, our busiest ranks' bytes are no more. */
static int64_t compare_all(const grid *g, int n_axes, const int64_t *shape, int64_t *less)
{
    enum { MOST = 512 };
    static const dt_layout *layouts[MOST];
    dti_layouts *t = new_table();
    const int n = all_layouts(t, g, n_axes, layouts, MOST);
    const dti_cost_model model = model_of(shape, 0);
    int64_t pairs = 0;
    dti_probes probes;

    dti_probes_of(layouts[0], &probes);
    for (int i = 0; i < n * n; i++) {
        const dt_layout *from = layouts[i / n], *to = layouts[i % n];
        dti_move plan;
        bool any;
        if ((to->partial_dims & ~from->partial_dims) != 0) continue;
        DT_ASSERT_OK(dti_plan(from, to, &model, &plan, &any));
        const double ours = dti_plan_ns(&plan, &model, &probes);
        const torch_bytes theirs = torch_plans(from, to, shape, 4);
        const int64_t best =
            theirs.greedy >= 0 && theirs.greedy < theirs.graph ? theirs.greedy : theirs.graph;
        if (ours > (double)best) {
            char trace[512];
            dti_put_move(&(dti_writer){ trace, sizeof trace, 0 }, &plan);
            dt_test_fail(__FILE__, __LINE__,
                         "%s moves %g bytes, PyTorch %lld (greedy), %lld (graph)", trace, ours,
                         (long long)theirs.greedy, (long long)theirs.graph);
        }
        pairs++;
        *less += ours < (double)best;
    }
    dti_layouts_destroy(t);
    return pairs;
}

DT_TEST(plan, never_moves_more_than_pytorchs_planners)
{
    static const grid grids[] = { { 1, { 3 } }, { 2, { 2, 2 } }, { 2, { 2, 3 } }, { 2, { 4, 2 } } };
    static const int64_t shapes[][2] = { { 5, 3 }, { 8, 8 }, { 4, 6 }, { 1, 7 }, { 13, 2 } };
    static const grid cube = { 3, { 2, 2, 2 } };
    int64_t pairs = 0, less = 0;

    for (size_t i = 0; i < DT_COUNT(grids); i++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            pairs += compare_all(&grids[i], 2, shapes[s], &less);
    pairs += compare_all(&cube, 2, (int64_t[]){ 7, 6 }, &less);
    DT_ASSERT(pairs > 8000);
    DT_ASSERT(less > pairs / 2); /* and mostly less */
}

typedef struct row {
    const char *from, *to, *trace;
    double bytes; /* of the busiest rank, all steps together */
} row;

/* Plans by bytes alone (latency 0). */
static void check_rows(const grid *g, const int64_t *shape, const row *rows, size_t n)
{
    const dti_cost_model model = model_of(shape, 0);
    dti_layouts *t = new_table();

    for (size_t i = 0; i < n; i++) {
        const dt_layout *from = layout(t, g, 2, rows[i].from), *to = layout(t, g, 2, rows[i].to);
        dti_probes probes;
        dti_move plan;
        char trace[256];
        bool any;
        dti_probes_of(from, &probes);
        DT_ASSERT_OK(dti_plan(from, to, &model, &plan, &any));
        dti_put_move(&(dti_writer){ trace, sizeof trace, 0 }, &plan);
        DT_ASSERT_EQ_STR(trace, rows[i].trace);
        DT_ASSERT_CLOSE(dti_plan_ns(&plan, &model, &probes), rows[i].bytes, 1e-9);
    }
    dti_layouts_destroy(t);
}

/* Bytes on (4, 2) for 16 x 16 elements of 4 bytes, N = 1024. */
DT_TEST(plan, shares_reductions_and_goes_around_other_axes)
{
    static const row rows[] = {
        /* both dims at once: 7/8 N, not 3/4 N and then 1/8 N */
        { "P(sum)P(sum)", "S(0)S(0)", "P(sum)P(sum)-->S(0)[0]S(0)[1]", 896 },
        { "P(sum)P(sum)", "S(0)S(1)", "P(sum)P(sum)-->S(0)S(1)", 896 },
        { "P(sum)P(sum)", "RR", "P(sum)P(sum)-->RR", 1792 },
        { "P(max)P(max)", "RR", "P(max)P(max)-->RR", 1792 },
        /* copies take a half each: 3/4 N and N/2, not 3/2 N */
        { "P(sum)R", "RR", "P(sum)R->P(sum)S(0)->S(0)[1]S(0)[0]-->RR", 1280 },
        /* the cut would stand behind another: scatter there, then exchange */
        { "P(sum)S(0)", "S(0)S(0)", "P(sum)S(0)->S(0)[1]S(0)[0]-->S(0)[0]S(0)[1]", 512 },
        { "P(sum)S(0)", "RR", "P(sum)S(0)->RS(0)->RR", 1280 },
        /* nothing to reduce: one exchange, 7/64 N and less than PyTorch's 5/8 and 7/8 */
        { "S(0)S(0)", "S(1)S(1)", "S(0)[0]S(0)[1]-->S(1)[0]S(1)[1]", 112 },
        { "S(0)S(0)", "RR", "S(0)[0]S(0)[1]-->RR", 896 },
    };

    check_rows(&(grid){ 2, { 4, 2 } }, (int64_t[]){ 16, 16 }, rows, DT_COUNT(rows));
}

/* Terms of a Shard are reduced by the two that hold them; 16 x 16 elements, N = 1024. */
DT_TEST(plan, reduces_terms_among_their_holders)
{
    static const row rows[] = {
        { "S(0,replicas=2,sum)", "S(0,replicas=2)", "S(0,replicas=2,sum)->S(0,replicas=2)", 512 },
        { "S(0,replicas=2,sum)", "S(0)", "S(0,replicas=2,sum)->S(0)", 256 },
        { "S(0,unit=8,replicas=2,sum)", "S(0,unit=2)", "S(0,unit=8,replicas=2,sum)->S(0,unit=2)",
          256 },
        { "S(0,replicas=2,sum)", "R", "S(0,replicas=2,sum)->S(0,replicas=2)->R", 1024 },
        { "S(0,replicas=2,sum)", "S(1)", "S(0,replicas=2,sum)->S(0)->S(1)", 448 },
        { "S(0,replicas=2)", "S(0,replicas=2,sum)", "S(0,replicas=2)->S(0,replicas=2,sum)", 0 },
        { "R", "S(0,replicas=2,sum)", "R->S(0,replicas=2)->S(0,replicas=2,sum)", 0 },
        { "P(sum)", "S(0,replicas=2,sum)", "P(sum)->S(0)->S(0,replicas=2)->S(0,replicas=2,sum)",
          1024 },
    };
    static const row two[] = {
        { "P(sum)S(0,replicas=2,sum)", "RS(0,replicas=2)",
          "P(sum)S(0,replicas=2,sum)-->RS(0,replicas=2)", 768 },
        { "S(1)S(0,replicas=2,sum)", "RS(0,replicas=2,sum)",
          "S(1)S(0,replicas=2,sum)->RS(0,replicas=2,sum)", 256 },
    };

    check_rows(&(grid){ 1, { 4 } }, (int64_t[]){ 16, 16 }, rows, DT_COUNT(rows));
    check_rows(&(grid){ 2, { 2, 4 } }, (int64_t[]){ 16, 16 }, two, DT_COUNT(two));
}

/* Where latency counts, fewer steps win; where it does not, fewer bytes. */
DT_TEST(plan, weighs_latency_against_bytes)
{
    const grid g = { 2, { 4, 2 } };
    const int64_t shape[] = { 16, 16 };
    dti_layouts *t = new_table();
    const dt_layout *from = layout(t, &g, 2, "P(sum)R"), *to = layout(t, &g, 2, "RR");
    dti_move plan;
    bool any;

    for (int slow = 0; slow < 2; slow++) {
        const dti_cost_model model = model_of(shape, slow ? 1000 : 0);
        DT_ASSERT_OK(dti_plan(from, to, &model, &plan, &any));
        DT_ASSERT_EQ_INT(plan.n_steps, slow ? 1 : 3);
        DT_ASSERT(!any); /* another size may be another plan */
    }
    const dti_cost_model model = model_of(shape, 0);
    DT_ASSERT_OK(dti_plan(layout(t, &g, 2, "S(0)S(1)"), to, &model, &plan, &any));
    DT_ASSERT(any);
    DT_ASSERT_OK(
        dti_plan(layout(t, &g, 2, "S(0)P(sum)"), layout(t, &g, 2, "S(0)R"), &model, &plan, &any));
    DT_ASSERT(any);
    dti_layouts_destroy(t);
}

/* Hosts of four GPUs: over the slow links each rank reads a fourth, not all that others hold. */
DT_TEST(plan, gathers_over_slow_links_first)
{
    const grid g = { 2, { 2, 4 } };
    const int64_t shape[] = { 1024, 1024 };
    dti_layouts *t = new_table();
    const dt_layout *from = layout(t, &g, 2, "S(0)S(0)"), *to = layout(t, &g, 2, "RR");
    dti_cost_model model = model_of(shape, 1);
    dti_move plan;
    bool any;

    model.link[1].bytes_per_ns = 20; /* within a host */
    DT_ASSERT_OK(dti_plan(from, to, &model, &plan, &any));
    for (int i = 0; i < plan.n_steps; i++) { /* over dim 0 once, and an eighth of the tensor only */
        if (!(plan.step[i].dims & 1u)) continue;
        DT_ASSERT_EQ_INT(plan.step[i].dims, 1);
        DT_ASSERT_EQ_INT(dti_move_bytes(&plan.step[i], shape, 4, (int[]){ 0, 0 }), 1 << 19);
    }
    DT_ASSERT(plan.n_steps == 3);
    dti_layouts_destroy(t);
}

/* A bound on memory: terms are read from where they lie, but those of several boxes are packed. */
DT_TEST(plan, stays_within_memory_or_says_what_it_needs)
{
    const grid g = { 1, { 4 } };
    const int64_t shape[] = { 16, 16 };
    dti_layouts *t = new_table();
    const dt_layout *from = layout(t, &g, 2, "P(sum)"), *to = layout(t, &g, 2, "S(1)");
    const dt_layout *packed = layout(t, &g, 2, "S(1,blocks=8:8)");
    dti_cost_model model = model_of(shape, 0);
    char trace[256];
    dti_move plan;
    bool any;

    model.memory_bytes = 1024 + 256;
    DT_ASSERT_OK(dti_plan(from, to, &model, &plan, &any));
    dti_put_move(&(dti_writer){ trace, sizeof trace, 0 }, &plan);
    DT_ASSERT_EQ_STR(trace, "P(sum)->S(1)");
    model.memory_bytes--;
    DT_ASSERT_STATUS(dti_plan(from, to, &model, &plan, &any), DT_ERR_LAYOUT,
                     "P(sum) -> S(1): no plan stays within 1279 bytes per rank");
    model.memory_bytes = 2 * 1024 + 256; /* whole, packed, a fourth */
    DT_ASSERT_OK(dti_plan(from, packed, &model, &plan, &any));
    DT_ASSERT_EQ_INT(plan.n_steps, 1);
    model.memory_bytes--; /* a fourth first, and then four fourths in an exchange */
    DT_ASSERT_OK(dti_plan(from, packed, &model, &plan, &any));
    DT_ASSERT_EQ_INT(plan.n_steps, 2);
    model.memory_bytes = 1024 + 4 * 256;
    DT_ASSERT_OK(dti_plan(from, packed, &model, &plan, &any));
    model.memory_bytes--;
    DT_ASSERT_STATUS(dti_plan(from, packed, &model, &plan, &any), DT_ERR_LAYOUT,
                     "no plan stays within 2047 bytes per rank");
    dti_layouts_destroy(t);
}

/* Steps whose layout cuts mesh dim m in units. */
static void count_units(void *arg, const dti_move_step *step)
{
    for (int m = 0; m < 2; m++) ((int *)arg)[m] += step->to->place[m].unit > 1;
}

/* By slices and by exchanges. */
DT_TEST(plan, a_cut_that_the_target_wants_is_tried_on_its_own_dim_alone)
{
    static const char *const from[] = { "RR", "S(0)S(1)" };
    const grid g = { 2, { 2, 2 } };
    const int64_t shape[] = { 16, 16 };
    dti_layouts *t = new_table();
    const dt_layout *to = layout(t, &g, 2, "S(0,unit=4)R");
    dti_cost_model model = model_of(shape, 1);

    model.link[1].bytes_per_ns = 20;
    for (size_t i = 0; i < DT_COUNT(from); i++) {
        int n[2] = { 0, 0 };
        dti_plan_edges(layout(t, &g, 2, from[i]), to, &model, count_units, n);
        DT_ASSERT_EQ_INT(n[0], 2); /* at once, and with the other dim as it is */
        DT_ASSERT_EQ_INT(n[1], 0);
    }
    dti_layouts_destroy(t);
}

/* The triangle inequality (case 23): going by way of a third layout is never cheaper. */
DT_TEST(plan, no_detour_is_cheaper)
{
    enum { MOST = 128 };
    static const dt_layout *layouts[MOST];
    static double cost[MOST][MOST];
    static const int64_t shapes[][3] = { { 16, 8 }, { 13, 2 }, { 13, 2, 13 } };
    const grid g = { 2, { 2, 3 } };
    dti_layouts *t = new_table();
    dti_probes probes;

    for (size_t s = 0; s < DT_COUNT(shapes); s++) {
        const dti_cost_model model = model_of(shapes[s], 10);
        const int n = all_layouts(t, &g, shapes[s][2] > 0 ? 3 : 2, layouts, MOST);
        dti_probes_of(layouts[0], &probes);
        for (int i = 0; i < n * n; i++) {
            const dt_layout *from = layouts[i / n], *to = layouts[i % n];
            dti_move plan;
            bool any;
            cost[i / n][i % n] = -1;
            if ((to->partial_dims & ~from->partial_dims) != 0) continue;
            DT_ASSERT_OK(dti_plan(from, to, &model, &plan, &any));
            cost[i / n][i % n] = dti_plan_ns(&plan, &model, &probes);
        }
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                for (int c = 0; c < n; c++)
                    if (cost[a][b] >= 0 && cost[b][c] >= 0 &&
                        cost[a][c] > cost[a][b] + cost[b][c] + 1e-6) {
                        char text[3][64];
                        (void)dt_layout_print(layouts[a], text[0], 64);
                        (void)dt_layout_print(layouts[b], text[1], 64);
                        (void)dt_layout_print(layouts[c], text[2], 64);
                        dt_test_fail(__FILE__, __LINE__, "%s -> %s costs %g, by way of %s %g + %g",
                                     text[0], text[2], cost[a][c], text[1], cost[a][b], cost[b][c]);
                    }
    }
    dti_layouts_destroy(t);
}

/* 128 ranks, of which rank 5, no corner of the mesh, holds all rows: the bound counts its piece.
 * The same where pairs of ranks hold the same part: 64 parts, of which the sixth has all rows. */
DT_TEST(plan, bounds_the_largest_piece_of_many_ranks)
{
    const grid g = { 1, { 128 } };
    const int64_t shape[] = { 128, 16 };

    for (int replicas = 1; replicas <= 2; replicas++) {
        dti_layouts *t = new_table();
        int64_t offsets[129];
        dti_cost_model model = model_of(shape, 0);
        const dt_layout *from = layout(t, &g, 2, "S(1)"), *to;
        const int n = 128 / replicas + 1;
        dti_move plan;
        bool any;
        for (int i = 0; i < n; i++) offsets[i] = i <= 5 ? 0 : 128;
        dt_placement place = dt_shard_offsets(0, n, offsets);
        place.replicas = replicas;
        DT_ASSERT_OK(dti_layout_intern(t, 1, g.size, 2, &place, NULL, &to));
        model.memory_bytes = 4 * (128 + 128 * 16); /* a column, and everything */
        DT_ASSERT_OK(dti_plan(from, to, &model, &plan, &any));
        model.memory_bytes--;
        DT_ASSERT_STATUS(dti_plan(from, to, &model, &plan, &any), DT_ERR_LAYOUT, "8704 bytes for");
        dti_layouts_destroy(t);
    }
}

/* Two hosts of four ranks, of which pairs hold the same columns: half of a host's columns come from
 * the host itself, the rest of the rows from the other one. */
DT_TEST(plan, counts_what_holders_have_in_common_once)
{
    const grid g = { 2, { 2, 4 } };
    const int64_t shape[] = { 8, 8 };
    dti_layouts *t = new_table();
    dti_cost_model model = model_of(shape, 0);
    dti_move_step step = { .kind = DTI_MOVE_EXCHANGE, .dims = 3, .divisor = 1 };
    dti_probes probes;

    model.link[1].bytes_per_ns = 4;
    step.from = layout(t, &g, 2, "S(0)S(1,replicas=2)");
    step.to = layout(t, &g, 2, "RR");
    dti_probes_of(step.from, &probes);
    DT_ASSERT_CLOSE(dti_step_ns(&model, &step, &probes), 4 * 16 / 4.0 + 4 * 32 / 1.0, 1e-9);
    dti_layouts_destroy(t);
}

/* 16,384 ranks without one: memory and bytes of any of them. */
DT_TEST(plan, plans_for_meshes_that_are_not_here)
{
    const int64_t shape[] = { 8192, 4096, 1024 };
    const dt_link links[] = { { 10000, 25 }, { 5000, 50 }, { 1000, 400 } };
    const int corner[] = { 15, 63, 15 };
    DT_HELD(layouts) *all = NULL;
    dt_move_query q = { .size = sizeof q, .shape = shape, .dtype = DT_BF16, .links = links };
    char text[2048];
    dt_route route;
    int length;

    DT_ASSERT_OK(dt_layouts_create(&all));
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=16,pp=64,tp=16", 3, "S(0)S(0)S(0)", &q.from));
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=16,pp=64,tp=16", 3, "S(1)S(1)S(1)", &q.to));
    q.links = NULL; /* alike: one exchange, of which 16,383 of 16,384 parts come from others */
    DT_ASSERT_OK(dt_redistribute_plan(&q, corner, &route));
    DT_ASSERT_EQ_INT(route.n_steps, 1);
    DT_ASSERT_EQ_STR(route.step[0].name, "all_to_all");
    DT_ASSERT_EQ_INT(route.step[0].dims, 7);
    q.links = links;
    DT_ASSERT_OK(dt_redistribute_plan_print(&q, corner, text, sizeof text, &length));
    DT_ASSERT_EQ_INT(length, strlen(text));
    DT_ASSERT(strncmp(text, "S(0)[0]S(0)[1]S(0)[2]-", 22) == 0);
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=16,pp=64,tp=16", 3, "P(sum)P(sum)P(sum)", &q.from));
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=16,pp=64,tp=16", 3, "S(0)RS(1)", &q.to));
    DT_ASSERT_OK(dt_redistribute_plan(&q, corner, &route));
    DT_ASSERT(route.n_steps >= 1);
    DT_ASSERT(route.step[route.n_steps - 1].to == q.to);
    for (int i = 0; i < route.n_steps; i++)
        DT_ASSERT(route.step[i].received_bytes > 0 && route.step[i].peak_bytes > 0);
}

DT_TEST(plan, prints_the_trace_with_bytes_and_memory)
{
    const int64_t shape[] = { 8, 8 };
    const dt_link slow[] = { { 0, 1 }, { 0, 8 } };
    DT_HELD(layouts) *all = NULL;
    dt_move_query q = { .size = sizeof q, .shape = shape, .dtype = DT_F32 };
    char text[512], cut[20];
    int length;

    DT_ASSERT_OK(dt_layouts_create(&all));
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=2,tp=2", 2, "S(0)S(0)", &q.from));
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=2,tp=2", 2, "RR", &q.to));
    DT_ASSERT_OK(dt_redistribute_plan_print(&q, (int[]){ 0, 1 }, text, sizeof text, &length));
    DT_ASSERT_EQ_STR(text, "S(0)[0]S(0)[1]-->RR\n"
                           "  all_gather     over mesh dims 0,1 sent 192 B, received 192 B, peak "
                           "320 B, 3.0 us\n");
    DT_ASSERT_EQ_INT(length, strlen(text));
    DT_ASSERT_OK(dt_redistribute_plan_print(&q, (int[]){ 0, 1 }, cut, sizeof cut, &length));
    DT_ASSERT_EQ_INT(length, strlen(text));
    DT_ASSERT(strncmp(cut, text, sizeof cut - 1) == 0 && strlen(cut) == sizeof cut - 1);
    q.to = q.from;
    DT_ASSERT_OK(dt_redistribute_plan_print(&q, (int[]){ 0, 1 }, text, sizeof text, NULL));
    DT_ASSERT_EQ_STR(text, "S(0)[0]S(0)[1]\n");
    q.memory_bytes = -1; /* of which a shorter struct says nothing */
    q.size = offsetof(dt_move_query, memory_bytes);
    DT_ASSERT_OK(dt_redistribute_plan_print(&q, (int[]){ 0, 1 }, text, sizeof text, NULL));
    q.memory_bytes = 0;
    q.size = sizeof q;
    q.links = slow;
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=2,tp=2", 2, "P(sum)R", &q.from));
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=2,tp=2", 2, "RR", &q.to));
    DT_ASSERT_OK(dt_redistribute_plan_print(&q, (int[]){ 0, 0 }, text, sizeof text, NULL));
    DT_ASSERT(strncmp(text, "P(sum)R->P(sum)S(0)->RS(0)->RR\n", 31) == 0);
}

DT_TEST(plan, bad_queries_are_named)
{
    const int64_t shape[] = { 8, -1 };
    const dt_link bad[] = { { 0, 0 }, { 0, 1 } };
    DT_HELD(layouts) *all = NULL;
    const dt_layout *l, *other;
    dt_move_query q = { .size = sizeof q };
    dt_route route;

    DT_ASSERT_OK(dt_layouts_create(&all));
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=2,tp=2", 2, "RR", &l));
    DT_ASSERT_OK(dt_layouts_parse(all, "tp=2", 2, "R", &other));
    DT_ASSERT_STATUS(dt_redistribute_plan(NULL, (int[]){ 0, 0 }, &route), DT_ERR_ARG, "query");
    DT_ASSERT_STATUS(
        dt_redistribute_plan(&(dt_move_query){ .from = NULL }, (int[]){ 0, 0 }, &route), DT_ERR_ARG,
        "dt_move_query.size is 0");
    DT_ASSERT_STATUS(dt_redistribute_plan(&q, (int[]){ 0, 0 }, &route), DT_ERR_ARG, "from");
    q.from = q.to = l;
    DT_ASSERT_STATUS(dt_redistribute_plan(&q, (int[]){ 0, 0 }, &route), DT_ERR_ARG,
                     "shape is NULL");
    q.shape = shape;
    DT_ASSERT_STATUS(dt_redistribute_plan(&q, (int[]){ 0, 0 }, &route), DT_ERR_SHAPE,
                     "axis 1 has extent -1");
    q.shape = (int64_t[]){ (int64_t)1 << 40, (int64_t)1 << 40 };
    DT_ASSERT_STATUS(dt_redistribute_plan(&q, (int[]){ 0, 0 }, &route), DT_ERR_SHAPE,
                     "the tensor has 2^60 bytes or more at axis 1 of 1099511627776 rows");
    DT_ASSERT_STATUS(dt_redistribute_plan_print(&q, (int[]){ 0, 0 }, NULL, 0, NULL), DT_ERR_SHAPE,
                     "2^60 bytes or more");
    q.shape = (int64_t[]){ (int64_t)1 << 57, 1 };
    DT_ASSERT_OK(dt_redistribute_plan(&q, (int[]){ 0, 0 }, &route));
    q.shape = (int64_t[]){ (int64_t)1 << 58, 1 };
    DT_ASSERT_STATUS(dt_redistribute_plan(&q, (int[]){ 0, 0 }, &route), DT_ERR_SHAPE,
                     "2^60 bytes or more at axis 0");
    q.shape = (int64_t[]){ 8, 1 };
    DT_ASSERT_STATUS(dt_redistribute_plan(&q, (int[]){ 0, 2 }, &route), DT_ERR_ARG,
                     "coordinate 2 is outside mesh dim 1 of 2 ranks");
    DT_ASSERT_STATUS(dt_redistribute_plan(&q, (int[]){ 0, 0 }, NULL), DT_ERR_ARG, "route is NULL");
    q.links = bad;
    DT_ASSERT_STATUS(dt_redistribute_plan(&q, (int[]){ 0, 0 }, &route), DT_ERR_ARG,
                     "the link of mesh dim 0 has 0 ns latency and 0 bytes per ns");
    q.links = NULL;
    q.to = other;
    DT_ASSERT_STATUS(dt_redistribute_plan(&q, (int[]){ 0, 0 }, &route), DT_ERR_ARG,
                     "2 mesh dims cannot move to a layout of 1");
}
