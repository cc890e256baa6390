/* SPDX-License-Identifier: Apache-2.0
 *
 * What schedules of pipelines take and hold, and how that is drawn. */
#include <dtensor/pipeline.h>
#include <string.h>

#include "base/sync.h"
#include "tests/support/dt_test.h"

enum { TEXT_BYTES = 1 << 16, MAX_RANKS = 8 };

static dt_pipeline_timing *simulated(const char *name, int p, int v, int m,
                                     const dt_pipeline_costs *costs)
{
    DT_HELD(pipeline_schedule) *s = NULL;
    dt_pipeline_timing *t = NULL;

    DT_ASSERT_OK(dt_pipeline_schedule_create(name, p, v, m, &s));
    DT_ASSERT_OK(dt_pipeline_simulate(s, costs, &t));
    return t; /* keeps the schedule */
}

/* Made by simulations other than ours and by hand; times are those of a stage, so that with v
 * stages per rank a microbatch takes v times as long. */
/* clang-format off */
static const struct golden {
    const char *name;
    int p, v, m;
    double f, i, w, makespan, ideal;
    int live[MAX_RANKS];
} goldens[] = {
    { "naive",       4, 1, 8,  1, 1, 1, 96,  24,  { 1, 1, 1, 1 } },
    { "naive",       2, 1, 4,  1, 1, 1, 24,  12,  { 1, 1 } },
    { "naive",       4, 1, 4,  1, 1, 1, 48,  12,  { 1, 1, 1, 1 } },
    { "naive",       8, 1, 32, 1, 1, 1, 768, 96,  { 1, 1, 1, 1, 1, 1, 1, 1 } },
    { "gpipe",       4, 1, 8,  1, 1, 1, 33,  24,  { 8, 8, 8, 8 } },
    { "gpipe",       2, 1, 4,  1, 1, 1, 15,  12,  { 4, 4 } },
    { "gpipe",       4, 1, 4,  1, 1, 1, 21,  12,  { 4, 4, 4, 4 } },
    { "gpipe",       8, 1, 32, 1, 1, 1, 117, 96,  { 32, 32, 32, 32, 32, 32, 32, 32 } },
    { "1f1b",        4, 1, 8,  1, 1, 1, 33,  24,  { 4, 3, 2, 1 } },
    { "1f1b",        2, 1, 4,  1, 1, 1, 15,  12,  { 2, 1 } },
    { "1f1b",        4, 1, 4,  1, 1, 1, 21,  12,  { 4, 3, 2, 1 } },
    { "1f1b",        8, 1, 32, 1, 1, 1, 117, 96,  { 8, 7, 6, 5, 4, 3, 2, 1 } },
    { "1f1b",        4, 1, 8,  2, 3, 2, 77,  56,  { 4, 3, 2, 1 } },
    { "1f1b",        4, 1, 8,  2, 2, 1, 55,  40,  { 4, 3, 2, 1 } },
    { "interleaved", 4, 2, 8,  1, 1, 1, 57,  48,  { 11, 9, 7, 5 } },
    { "interleaved", 4, 4, 8,  1, 1, 1, 105, 96,  { 19, 17, 15, 13 } },
    { "interleaved", 2, 2, 4,  1, 1, 1, 27,  24,  { 5, 3 } },
    { "interleaved", 2, 4, 4,  1, 1, 1, 51,  48,  { 9, 7 } },
    { "interleaved", 4, 2, 4,  1, 1, 1, 33,  24,  { 8, 8, 7, 5 } },
    { "interleaved", 8, 2, 32, 1, 1, 1, 213, 192, { 23, 21, 19, 17, 15, 13, 11, 9 } },
    { "interleaved", 8, 4, 32, 1, 1, 1, 405, 384, { 39, 37, 35, 33, 31, 29, 27, 25 } },
    { "zb-h1",       2, 1, 4,  1, 1, 1, 13,  12,  { 2, 2 } },
    { "zb-h1",       4, 1, 8,  1, 1, 1, 27,  24,  { 4, 4, 4, 4 } },
    { "zb-h1",       8, 1, 16, 1, 1, 1, 55,  48,  { 8, 8, 8, 8, 8, 8, 8, 8 } },
    { "zb-h1",       4, 1, 8,  2, 3, 2, 65,  56,  { 4, 4, 4, 4 } },
    { "zb-h1",       4, 1, 8,  2, 2, 1, 49,  40,  { 4, 4, 4, 4 } },
    { "zb-h2",       4, 1, 8,  1, 1, 1, 27,  24,  { 7, 7, 7, 7 } },
    { "zbv",         2, 2, 4,  1, 1, 1, 25,  24,  { 4, 4 } },
    { "zbv",         4, 2, 8,  1, 1, 1, 51,  48,  { 8, 8, 8, 8 } },
    { "zbv",         8, 2, 16, 1, 1, 1, 103, 96,  { 16, 16, 16, 16, 16, 16, 16, 16 } },
    { "zbv",         4, 2, 8,  2, 3, 2, 121, 112, { 8, 8, 8, 8 } },
    { "zbv",         4, 2, 8,  2, 2, 1, 86,  80,  { 8, 8, 8, 8 } },
    { "dualpipev",   2, 2, 4,  1, 1, 1, 26,  24,  { 5, 5 } },
    { "dualpipev",   4, 2, 8,  1, 1, 1, 54,  48,  { 9, 9, 9, 9 } },
    { "dualpipev",   8, 2, 16, 1, 1, 1, 110, 96,  { 17, 17, 17, 17, 17, 17, 17, 17 } },
    { "dualpipev",   4, 2, 8,  2, 3, 2, 128, 112, { 9, 9, 9, 9 } },
    { "dualpipev",   4, 2, 8,  2, 2, 1, 95,  80,  { 9, 9, 9, 9 } },
};
/* clang-format on */

DT_TEST(pipeline_times, makespans_and_live_microbatches_are_the_known_ones)
{
    for (size_t k = 0; k < DT_COUNT(goldens); k++) {
        const struct golden *g = &goldens[k];
        dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
        dt_pipeline_timing *t;
        dt_pipeline_total total;

        c.n = 1;
        c.f = &g->f;
        c.i = &g->i;
        c.w = &g->w;
        t = simulated(g->name, g->p, g->v, g->m, &c);
        total = dt_pipeline_timing_total(t);
        DT_ASSERT_CLOSE(total.makespan, g->makespan, 0.0);
        DT_ASSERT_CLOSE(total.ideal, g->ideal, 0.0);
        DT_ASSERT_CLOSE(total.bubble, g->makespan - g->ideal, 0.0);
        for (int rank = 0; rank < g->p; rank++) {
            const dt_pipeline_rank *r = dt_pipeline_timing_rank(t, rank);
            DT_ASSERT_EQ_INT(r->live, g->live[rank]);
            DT_ASSERT_CLOSE(r->busy, g->ideal, 0.0);
            DT_ASSERT_CLOSE(r->idle, g->makespan - g->ideal, 0.0);
        }
        dt_pipeline_timing_release(&t);
    }
}

/* (p - 1)(F + I - 2W) is what ZB-H2 leaves empty between a rank's first action and its last. ZBV
 * leaves nothing there if F = I = W. */
DT_TEST(pipeline_times, bubbles_within_a_rank_are_those_of_the_formulas)
{
    static const double times[][3] = { { 1, 1, 1 }, { 2, 2, 1 }, { 2, 3, 2 }, { 5, 6, 4 } };

    for (size_t k = 0; k < DT_COUNT(times); k++)
        for (int p = 2; p <= 6; p++) {
            dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
            dt_pipeline_timing *t;
            const dt_pipeline_rank *r;

            c.n = 1;
            c.f = &times[k][0];
            c.i = &times[k][1];
            c.w = &times[k][2];
            t = simulated("zb-h2", p, 1, 4 * p, &c);
            r = dt_pipeline_timing_rank(t, 0);
            DT_ASSERT_CLOSE(r->end - r->begin - r->busy, (p - 1) * (*c.f + *c.i - 2 * *c.w), 0.0);
            dt_pipeline_timing_release(&t);
            t = simulated("zbv", p, 2, 4 * p, NULL);
            for (int rank = 0; rank < p; rank++) {
                r = dt_pipeline_timing_rank(t, rank);
                DT_ASSERT_CLOSE(r->end - r->begin, r->busy, 0.0);
                DT_ASSERT_CLOSE(r->begin, rank, 0.0);
            }
            dt_pipeline_timing_release(&t);
        }
}

/* Two stages of their own times on two ranks, by hand:
 *   rank 0  F0 0-1  F1 1-2      I0 10-14    W0 14-15     I1 18-22  W1 22-23
 *   rank 1  F0 1.5-3.5          B0 3.5-9.5  F1 9.5-11.5  B1 11.5-17.5 */
DT_TEST(pipeline_times, stages_differ_and_messages_take_time)
{
    static const double f[] = { 1, 2 }, i[] = { 4, 5 }, w[] = { 1, 1 };
    static const int64_t live[] = { 100, 10 }, postponed[] = { 30, 3 };
    static const double begins[] = { 0, 1, 10, 14, 18, 22 };
    static const char text[] = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1B0,1F1,1B1\n";
    dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
    DT_HELD(pipeline_schedule) *s = NULL;
    DT_HELD(pipeline_timing) *t = NULL;

    c.f = f;
    c.i = i;
    c.w = w;
    c.message = 0.5;
    c.live_bytes = live;
    c.postponed_bytes = postponed;
    DT_ASSERT_OK(dt_pipeline_schedule_parse("own.csv", text, strlen(text), &s));
    DT_ASSERT_OK(dt_pipeline_simulate(s, &c, &t));
    for (int k = 0; k < 6; k++)
        DT_ASSERT_CLOSE(dt_pipeline_timing_span(t, 0, k).begin, begins[k], 0.0);
    DT_ASSERT_CLOSE(dt_pipeline_timing_span(t, 1, 3).end, 17.5, 0.0);
    DT_ASSERT_CLOSE(dt_pipeline_timing_total(t).makespan, 23, 0.0);
    DT_ASSERT_CLOSE(dt_pipeline_timing_rank(t, 1)->idle, 23 - 16, 0.0);
    DT_ASSERT_EQ_INT(dt_pipeline_timing_rank(t, 0)->live, 2);
    DT_ASSERT_EQ_INT(dt_pipeline_timing_rank(t, 0)->postponed, 1);
    DT_ASSERT_EQ_INT(dt_pipeline_timing_rank(t, 0)->bytes, 200);
    DT_ASSERT_EQ_INT(dt_pipeline_timing_rank(t, 1)->bytes, 10);
    DT_ASSERT(dt_pipeline_timing_rank(t, 2) == NULL);
    DT_ASSERT_CLOSE(dt_pipeline_timing_span(t, 0, 6).end, 0.0, 0.0);
}

/* Of times that have no sum there is no picture. */
DT_TEST(pipeline_times, that_add_up_to_infinity_are_refused)
{
    static const double f[] = { 1e308 };
    dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
    DT_HELD(pipeline_schedule) *s = NULL;
    dt_pipeline_timing *t = NULL;

    c.n = 1;
    c.f = f;
    DT_ASSERT_OK(dt_pipeline_schedule_create("1f1b", 4, 0, 8, &s));
    DT_ASSERT_STATUS(dt_pipeline_simulate(s, &c, &t), DT_ERR_ARG, "add up to more");
    DT_ASSERT(t == NULL);
}

/* A pair begins when both can and ends for both: F 1 and B 2 take 1.5 at half of their time. */
DT_TEST(pipeline_times, two_that_run_together_take_their_share)
{
    dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
    DT_HELD(pipeline_timing) *t = NULL;
    dt_pipeline_span span;

    c.together = 0.5;
    t = simulated("dualpipev", 1, 2, 2, &c); /* 0F0 1F0 0F1 1B0 (1F1;0B0) 1B1 0I1 .. */
    span = dt_pipeline_timing_span(t, 0, 4);
    DT_ASSERT(span.begin == 5.0 && span.end == 6.5);
    span = dt_pipeline_timing_span(t, 0, 5);
    DT_ASSERT(span.begin == 5.0 && span.end == 6.5);
    DT_ASSERT_CLOSE(dt_pipeline_timing_total(t).makespan, 10.5, 0.0);
    DT_ASSERT_CLOSE(dt_pipeline_timing_rank(t, 0)->busy, 10.5, 0.0);
}

/* One after the other the F waits for its own input alone, and hands on before the B begins. */
DT_TEST(pipeline_times, two_that_run_one_after_the_other_do_not_wait_for_each_other)
{
    dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
    DT_HELD(pipeline_timing) *one = NULL, *pair = NULL, *apart = NULL;
    dt_pipeline_span f, b;

    c.together = 0.0;
    one = simulated("dualpipev", 1, 2, 2, &c); /* 0F0 1F0 0F1 1B0 (1F1;0B0) 1B1 0I1 .. */
    f = dt_pipeline_timing_span(one, 0, 4);
    b = dt_pipeline_timing_span(one, 0, 5);
    DT_ASSERT(f.begin == 5.0 && f.end == 6.0 && b.begin == 6.0 && b.end == 8.0);
    DT_ASSERT_CLOSE(dt_pipeline_timing_rank(one, 0)->busy, 12.0, 0.0);
    c.message = 0.5;
    apart = simulated("dualpipev", 4, 2, 8, &c);
    c.together = 1.0;
    pair = simulated("dualpipev", 4, 2, 8, &c);
    DT_ASSERT_CLOSE(dt_pipeline_timing_total(pair).ideal, 48.0, 0.0);
    DT_ASSERT_CLOSE(dt_pipeline_timing_total(apart).ideal, 48.0, 0.0);
    DT_ASSERT(dt_pipeline_timing_total(apart).makespan < dt_pipeline_timing_total(pair).makespan);
}

DT_TEST(pipeline_times, times_that_are_none_are_refused)
{
    static const double bad[] = { 1, -1 }, none = 0.0 / 0.0;
    dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
    DT_HELD(pipeline_schedule) *s = NULL;
    dt_pipeline_timing *t = NULL;

    DT_ASSERT_OK(dt_pipeline_schedule_create("1f1b", 2, 1, 2, &s));
    c.i = bad;
    DT_ASSERT_STATUS(dt_pipeline_simulate(s, &c, &t), DT_ERR_ARG, "I of stage 1 takes -1");
    c.n = 3;
    DT_ASSERT_STATUS(dt_pipeline_simulate(s, &c, &t), DT_ERR_ARG, "3 times for 2 stages");
    c = (dt_pipeline_costs)DT_PIPELINE_COSTS_INIT;
    c.message = none;
    DT_ASSERT_STATUS(dt_pipeline_simulate(s, &c, &t), DT_ERR_ARG, "a message takes");
    c.message = 0.0;
    c.together = -0.5;
    DT_ASSERT_STATUS(dt_pipeline_simulate(s, &c, &t), DT_ERR_ARG, "take -0.5 of their time");
    DT_ASSERT(t == NULL);
}

/* Three stages on three ranks, by hand: all actions take 1, there and back over 0.25 and 2. */
DT_TEST(pipeline_times, messages_take_what_lies_between_their_stages)
{
    static const double messages[] = { 100, 0.25, 2 }, bad[] = { 0, -1, 0 };
    dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
    DT_HELD(pipeline_schedule) *s = NULL;
    DT_HELD(pipeline_timing) *t = NULL;

    c.messages = messages;
    c.message = 50; /* does not count */
    DT_ASSERT_OK(dt_pipeline_schedule_create("1f1b", 3, 1, 1, &s));
    DT_ASSERT_OK(dt_pipeline_simulate(s, &c, &t));
    DT_ASSERT_CLOSE(dt_pipeline_timing_span(t, 1, 0).begin, 1.25, 0.0);
    DT_ASSERT_CLOSE(dt_pipeline_timing_span(t, 2, 0).begin, 4.25, 0.0);
    DT_ASSERT_CLOSE(dt_pipeline_timing_total(t).makespan, 9 + 2 * 2.25, 0.0);
    dt_pipeline_timing_release(&t);
    c.messages = bad;
    DT_ASSERT_STATUS(dt_pipeline_simulate(s, &c, &t), DT_ERR_ARG, "between stages 0 and 1 takes");
}

DT_TEST(pipeline_times, long_schedules_take_no_time_of_ours)
{
    const int64_t begin = dti_now_ns();
    DT_HELD(pipeline_timing) *t = simulated("dualpipev", 64, 2, 512, NULL);

    DT_ASSERT_CLOSE(dt_pipeline_timing_total(t).ideal, 2 * 512 * 3, 0.0);
    DT_ASSERT(dti_now_ns() - begin < 1000000000);
}

/* --- drawings --------------------------------------------------------------------------------- */

static void expect_text(const char *name, int p, int m, const char *want)
{
    char text[TEXT_BYTES];
    DT_HELD(pipeline_timing) *t = simulated(name, p, 0, m, NULL);
    const int n = dt_pipeline_timing_draw(t, DT_DRAW_TEXT, text, sizeof text);

    DT_ASSERT_EQ_STR(text, want);
    DT_ASSERT_EQ_INT(n, strlen(want));
    DT_ASSERT_EQ_INT(dt_pipeline_timing_draw(t, DT_DRAW_TEXT, NULL, 0), n);
}

DT_TEST(pipeline_times, drawn_as_text)
{
    expect_text("1f1b", 2, 3,
                "1f1b: 2 ranks, 2 stages, 3 microbatches; 12, of which 3 bubble (25 %)\n"
                "rank 0  F0 F1       B0--- F2 B1---    B2---   idle 3, live 2\n"
                "rank 1     F0 B0--- F1 B1--- F2 B2---         idle 3, live 1\n");
    expect_text("dualpipev", 1, 2,
                "dualpipev: 1 ranks, 2 stages, 2 microbatches; 12, of which 0 bubble (0 %)\n"
                "rank 0  0F0 1F0 0F1 1B0---- 1F1+0B0---- 1B1---- 0I1 0W1   idle 0, live 3, "
                "W postponed 1\n");
}

/* Too long for stages, then for microbatches, then for one letter each. */
DT_TEST(pipeline_times, long_ones_are_drawn_in_the_same_width)
{
    static const int m[] = { 8, 10, 24, 400 };
    static const char *const begins[] = { "rank 0  0F0 0F1 0F2 3F0 ", "rank 0  F0 F1 F2 f0 i0 w0 ",
                                          "rank 0  FFFfiwfiwF", "rank 0  " };

    for (int k = 0; k < 4; k++) {
        char text[TEXT_BYTES];
        const char *line;
        DT_HELD(pipeline_timing) *t = simulated("zbv", 2, 0, m[k], NULL);

        (void)dt_pipeline_timing_draw(t, DT_DRAW_TEXT, text, sizeof text);
        line = strchr(text, '\n') + 1;
        DT_ASSERT(strncmp(line, begins[k], strlen(begins[k])) == 0);
        DT_ASSERT(strstr(line, "idle") - line <= 8 + 240 + 2);
    }
}

DT_TEST(pipeline_times, drawn_as_svg)
{
    static const char rows[] = "0F0,0B0\n1F0,1B0\n";
    char text[TEXT_BYTES];
    DT_HELD(pipeline_schedule) *s = NULL;
    DT_HELD(pipeline_timing) *t = NULL;

    DT_ASSERT_OK(dt_pipeline_schedule_parse("a<b>&.csv", rows, strlen(rows), &s));
    DT_ASSERT_OK(dt_pipeline_simulate(s, NULL, &t));
    DT_ASSERT((size_t)dt_pipeline_timing_draw(t, DT_DRAW_SVG, text, sizeof text) < sizeof text);
    DT_ASSERT(strstr(text, "a?b??.csv: 2 ranks, 2 stages, 1 microbatches; 6, of which 3") != NULL);
    DT_ASSERT(strstr(text, "<title>1B0: 2 to 4</title>") != NULL);
    DT_ASSERT(strstr(text, "</svg>\n") == text + strlen(text) - 7);
}
