/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of a pipeline on a machine of several nodes: which of them leave their node, and how
 * many share its way out; and what a bound of time takes for granted of schedules. */
#include <math.h>

#include "tests/planner/ways.h"

/* Nodes of 8 with 1 GB/s inside, 0.8 out, of which each has 0.1. */
static dt_machine nodes_of_8(int nodes)
{
    dt_machine m = test_machine(nodes, 8, 1e9, 1e9, 8e8);

    m.figure[DT_FIGURE_INSIDE_LATENCY].value = 1e-6;
    m.figure[DT_FIGURE_BETWEEN_LATENCY].value = 1e-4;
    return m;
}

DT_TEST(travel, ranks_of_a_stage_share_the_way_out_of_their_node)
{
    const struct {
        int nodes, pp, dp, tp, a, b;
        bool leaves;
        double seconds; /* of 1e8 bytes of each rank */
    } rows[] = {
        { 1, 8, 1, 1, 0, 7, false, 1e-6 + 0.1 },
        { 2, 2, 8, 1, 0, 1, true, 1e-4 + 1.0 },    /* eight at once */
        { 2, 2, 4, 2, 1, 0, true, 1e-4 + 1.0 },    /* likewise */
        { 4, 2, 16, 1, 0, 1, true, 1e-4 + 1.0 },   /* of two nodes each */
        { 2, 4, 2, 2, 0, 1, false, 1e-6 + 0.1 },   /* half a node each */
        { 2, 4, 2, 2, 1, 2, true, 1e-4 + 0.5 },    /* four at once */
        { 2, 4, 2, 2, 3, 0, true, 1e-4 + 0.5 },    /* interleaved */
        { 2, 16, 1, 1, 7, 8, true, 1e-4 + 0.125 }, /* it alone */
        { 3, 4, 6, 1, 0, 1, true, 1e-4 + 0.75 },   /* stages that lie across nodes */
        { 2, 1, 16, 1, 0, 0, false, 0 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const dt_machine m = nodes_of_8(rows[i].nodes);
        const dt_way w = { .pp = rows[i].pp, .dp = rows[i].dp, .tp = rows[i].tp };
        DT_ASSERT_EQ_INT(dti_message_leaves(&m, &w, rows[i].a, rows[i].b), rows[i].leaves);
        DT_ASSERT_CLOSE(dti_message_seconds(&m, &w, rows[i].a, rows[i].b, 1e8), rows[i].seconds,
                        1e-9);
    }
}

/* Of two messages to a place in the middle, of one to either end; interleaved also round. */
DT_TEST(travel, bytes_of_messages_are_counted_where_they_come_from)
{
    const dt_machine m = nodes_of_8(2);
    const dt_way plain = { .pp = 4, .dp = 2, .tp = 2, .stages_per_rank = 1 };
    const dt_way turns = { .pp = 4, .dp = 2, .tp = 2, .stages_per_rank = 2 };
    static const double once[] = { 0, 0.5, 0.5, 0 }, twice[] = { 1.0 / 3, 0.5, 0.5, 1.0 / 3 };

    for (int r = 0; r < 4; r++) {
        DT_ASSERT_CLOSE(dti_messages_between(&m, &plain, r), once[r], 0);
        DT_ASSERT_CLOSE(dti_messages_between(&m, &turns, r), twice[r], 1e-12);
    }
}

/* Where on the first rank's row microbatch i passes its first stage, there or back. */
static int position(dt_pipeline_schedule *s, int microbatch, bool back)
{
    int n, at = -1;
    const dt_action *row = dt_pipeline_schedule_row(s, 0, &n);

    for (int k = 0; k < n; k++)
        if (row[k].stage == 0 && row[k].microbatch == microbatch &&
            (back ? row[k].kind == DT_ACTION_B || row[k].kind == DT_ACTION_I
                  : row[k].kind == DT_ACTION_F))
            at = k;
    DT_ASSERT(at >= 0);
    return at;
}

/* Under "1f1b" and "zb-h1" microbatch i + p begins behind the end of i, interleaved i + 2 p. */
DT_TEST(travel, a_microbatch_begins_when_the_one_that_bounds_count_on_has_ended)
{
    static const struct {
        const char *schedule;
        int stages, turns;
    } kinds[] = { { "1f1b", 1, 1 },        { "zb-h1", 1, 1 },       { "interleaved", 2, 2 },
                  { "interleaved", 3, 2 }, { "interleaved", 4, 2 }, { "interleaved", 8, 2 } };

    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int p = 2; p <= 8; p++)
            for (int m = p; m <= 5 * p; m += kinds[k].turns > 1 ? p : 1) {
                const int ahead = kinds[k].turns * p;
                dt_pipeline_schedule *s;
                DT_ASSERT_OK(dt_pipeline_schedule_create(
                    kinds[k].schedule, p, kinds[k].stages > 1 ? kinds[k].stages : 0, m, &s));
                for (int i = 0; i + ahead < m; i++)
                    DT_ASSERT(position(s, i, true) < position(s, i + ahead, false));
                dt_pipeline_schedule_release(&s);
            }
}
