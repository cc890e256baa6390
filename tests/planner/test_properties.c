/* SPDX-License-Identifier: Apache-2.0
 *
 * What holds of all searches: better machines have no slower plans, and what gives up time for
 * memory is never faster. */
#include <math.h>

#include "tests/planner/ways.h"

static const test_model small = { "small", 32, 64, 4, 2, 4, 64, 64, "float32" };

static double fastest(const char *folder, const dt_machine *m, int64_t batch)
{
    dt_search *s = test_searched(folder, m, batch, 1);
    const dt_verdict *v = dt_search_at(s, 0);
    const double seconds = v->kind == DT_VERDICT_RANKED ? v->cost.seconds : INFINITY;

    dt_search_release(&s);
    return seconds;
}

/* Memory and links that are better by so much each time. */
static void improve(double memory, double link)
{
    static const dt_figure_kind links[] = { DT_FIGURE_INSIDE_BANDWIDTH,
                                            DT_FIGURE_BETWEEN_BANDWIDTH };
    char folder[DT_TEST_PATH_BYTES];
    double before = INFINITY;

    test_model_write(&small, folder);
    for (double bytes = 1e5; bytes <= 1e7; bytes *= memory) {
        const dt_machine m = test_machine(2, 2, bytes, 1e8, 1e7);
        const double now = fastest(folder, &m, 8);
        DT_ASSERT(now <= before);
        before = now;
    }
    DT_ASSERT(isfinite(before));
    for (size_t l = 0; l < DT_COUNT(links); l++) {
        dt_machine m = test_machine(2, 2, 5e5, 1e6, 1e5);
        before = INFINITY;
        for (; m.figure[links[l]].value < 1e11; m.figure[links[l]].value *= link) {
            const double now = fastest(folder, &m, 8);
            DT_ASSERT(now <= before);
            before = now;
        }
    }
}

DT_TEST(planner_properties, better_machines_are_not_slower)
{
    improve(4, 1000);
}

/* Whoever has something to compute has an equal share of the cores: a message that comes earlier
 * may take them from one who is waited for, but not from all ways. */
DT_TEST(planner_properties, better_links_are_not_slower_where_ranks_share_cores)
{
    dt_machine m = test_machine(1, 4, 1e9, 1e5, 1e5);
    char folder[DT_TEST_PATH_BYTES];
    double before = INFINITY;

    test_model_write(&small, folder);
    m.cores = 2;
    for (; m.figure[DT_FIGURE_INSIDE_BANDWIDTH].value < 1e11;
         m.figure[DT_FIGURE_INSIDE_BANDWIDTH].value *= 30) {
        const double now = fastest(folder, &m, 8);
        DT_ASSERT(now <= before);
        before = now;
    }
}

DT_TEST(planner_properties, slightly_better_machines_are_not_slower)
{
    dt_test_long();
    improve(1.5, 10);
}

/* So these need not be looked at where there is room without. */
DT_TEST(planner_properties, chunks_and_tiles_are_never_faster)
{
    const dt_machine m = test_machine(1, 4, 1e9, 1e7, 1e6);
    char folder[DT_TEST_PATH_BYTES];
    const dt_verdict *v;
    int n = 0;
    dt_search *s;

    test_model_write(&small, folder);
    s = test_searched(folder, &m, 8, 1);
    for (int64_t i = 0; (v = dt_search_at(s, i)) != NULL; i += 7) {
        dt_way w = v->way;
        dt_way_cost plain, c;
        if (v->kind == DT_VERDICT_RULE || dti_way_count(&s->task, &w, &plain) != DT_OK) continue;
        w.chunk = 4;
        DT_ASSERT_OK(dti_way_count(&s->task, &w, &c));
        DT_ASSERT(c.seconds >= plain.seconds);
        n++;
        if (w.zero < 3) continue;
        w.chunk = 0;
        w.tiles = dti_tiles[0];
        DT_ASSERT_OK(dti_way_count(&s->task, &w, &c));
        DT_ASSERT(c.seconds >= plain.seconds);
    }
    DT_ASSERT(n > 20);
    dt_search_release(&s);
}
