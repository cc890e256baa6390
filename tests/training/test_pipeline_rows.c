/* SPDX-License-Identifier: Apache-2.0
 *
 * Schedules of pipelines by name, and as text. */
#include <dtensor/pipeline.h>
#include <string.h>

#include "tests/support/dt_test.h"

enum { TEXT_BYTES = 1 << 16 };

static dt_pipeline_schedule *made(const char *name, int p, int v, int m)
{
    dt_pipeline_schedule *s = NULL;

    DT_ASSERT_OK(dt_pipeline_schedule_create(name, p, v, m, &s));
    return s;
}

static dt_status parse(const char *text, dt_pipeline_schedule **out)
{
    return dt_pipeline_schedule_parse("own.csv", text, strlen(text), out);
}

/* --- by name ---------------------------------------------------------------------------------- */

/* Creating one checks it: every action once, in order, nobody waits for ever. */
DT_TEST(pipeline_rows, every_schedule_can_run_with_any_number_of_microbatches)
{
    const dt_pipeline_kind *kind;

    for (int k = 0; (kind = dt_pipeline_kind_at(k)) != NULL; k++)
        for (int p = 1; p <= 9; p++)
            for (int v = 1; v <= (kind->any_stages ? 4 : 1); v++)
                for (int m = kind->least * p > 1 ? kind->least * p : 1; m <= 40; m++) {
                    DT_HELD(pipeline_schedule) *s =
                        made(kind->name, p, kind->any_stages ? v : 0, m);
                    const int stages = kind->any_stages ? v : kind->stages_per_rank;
                    DT_ASSERT_EQ_INT(dt_pipeline_schedule_ranks(s), p);
                    DT_ASSERT_EQ_INT(dt_pipeline_schedule_stages(s), p * stages);
                    DT_ASSERT_EQ_INT(dt_pipeline_schedule_microbatches(s), m);
                }
}

static void expect_rows(const char *name, int p, int v, int m, const char *want)
{
    char text[TEXT_BYTES];
    DT_HELD(pipeline_schedule) *s = made(name, p, v, m);

    DT_ASSERT((size_t)dt_pipeline_schedule_print(s, text, sizeof text) < sizeof text);
    DT_ASSERT_EQ_STR(text, want);
}

DT_TEST(pipeline_rows, rows_are_those_of_the_papers)
{
    expect_rows("naive", 2, 1, 2, "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n");
    expect_rows("gpipe", 2, 1, 2, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
    expect_rows("1f1b", 2, 1, 3, "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
    expect_rows("interleaved", 2, 2, 2,
                "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
    expect_rows("zb-h1", 2, 1, 4,
                "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0F3,0I2,0W2,0I3,0W3\n"
                "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1F3,1I3,1W2,1W3\n");
    expect_rows("zb-h2", 2, 1, 4,
                "0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3\n"
                "1F0,1I0,1F1,1I1,1F2,1I2,1W0,1F3,1I3,1W1,1W2,1W3\n");
    expect_rows("zbv", 2, 2, 4,
                "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0I1,0W1,3F3,3I3,3W3,"
                "0I2,0W2,0I3,0W3\n"
                "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1F3,1I1,1W1,2F3,2I2,2W2,1I2,2I3,"
                "1I3,1W2,2W3,1W3\n");
    expect_rows("zbv", 2, 2, 1, "0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n");
    expect_rows("dualpipev", 2, 2, 4,
                "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,"
                "(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3\n"
                "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,"
                "(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3\n");
}

/* Groups of microbatches are p or more, and differ by one: with 9 of them there is no last group of
 * one that goes through all chunks alone. */
DT_TEST(pipeline_rows, interleaved_takes_numbers_that_do_not_divide)
{
    DT_HELD(pipeline_schedule) *s = made("interleaved", 4, 2, 9);
    int n;
    const dt_action *row = dt_pipeline_schedule_row(s, 0, &n);

    DT_ASSERT_EQ_INT(n, 36);
    for (int i = 0; i < 5; i++) DT_ASSERT(row[i].stage == 0 && row[i].microbatch == i);
    for (int i = 5; i < 10; i++) DT_ASSERT(row[i].stage == 4 && row[i].microbatch == i - 5);
    DT_ASSERT(row[10].stage == 0 && row[10].microbatch == 5);
}

DT_TEST(pipeline_rows, numbers_that_a_schedule_has_not_are_refused)
{
    dt_pipeline_schedule *s = NULL;

    DT_ASSERT_STATUS(dt_pipeline_schedule_create("1f1", 2, 0, 4, &s), DT_ERR_ARG,
                     "there are naive, gpipe, 1f1b, interleaved, zb-h1, zb-h2, zbv, dualpipev");
    DT_ASSERT_STATUS(dt_pipeline_schedule_create("1f1b", 2, 2, 4, &s), DT_ERR_ARG,
                     "1f1b has 1 stage per rank, not 2; \"interleaved\"");
    DT_ASSERT_STATUS(dt_pipeline_schedule_create("1f1b", 0, 1, 4, &s), DT_ERR_ARG, "0 ranks");
    DT_ASSERT_STATUS(dt_pipeline_schedule_create("gpipe", 2, -1, 4, &s), DT_ERR_ARG, "-1 stages");
    DT_ASSERT_STATUS(dt_pipeline_schedule_create("zbv", 2, 0, 0, &s), DT_ERR_ARG, "0 microbatches");
    DT_ASSERT_STATUS(dt_pipeline_schedule_create("dualpipev", 4, 0, 7, &s), DT_ERR_ARG,
                     "2 microbatches for each of 4 ranks, 8 in all, not 7");
    DT_ASSERT_STATUS(dt_pipeline_schedule_create("gpipe", 1 << 20, 1 << 20, 1 << 20, &s),
                     DT_ERR_ARG, "more than");
    DT_ASSERT_STATUS(dt_pipeline_schedule_create(NULL, 2, 0, 4, &s), DT_ERR_ARG, "NULL");
    DT_ASSERT(s == NULL);
}

/* --- as text ---------------------------------------------------------------------------------- */

DT_TEST(pipeline_rows, what_is_printed_is_read_again)
{
    const dt_pipeline_kind *kind;
    char text[TEXT_BYTES], again[TEXT_BYTES];

    for (int k = 0; (kind = dt_pipeline_kind_at(k)) != NULL; k++) {
        DT_HELD(pipeline_schedule) *s = made(kind->name, 4, 0, 9), *t = NULL;
        const int n = dt_pipeline_schedule_print(s, text, sizeof text);
        DT_ASSERT(n == (int)strlen(text) && dt_pipeline_schedule_print(s, NULL, 0) == n);
        DT_ASSERT_OK(parse(text, &t));
        (void)dt_pipeline_schedule_print(t, again, sizeof again);
        DT_ASSERT_EQ_STR(again, text);
    }
}

/* Communication is left out, idle cells and those of it count as columns. */
DT_TEST(pipeline_rows, cells_that_say_nothing_are_passed_over)
{
    DT_HELD(pipeline_schedule) *s = NULL;
    char text[TEXT_BYTES];

    DT_ASSERT_OK(parse("\xef\xbb\xbf"
                       "0UNSHARD, 0F0 ,0SEND_F0,,\"0RECV_B0\",0B0,0REDUCE_GRAD,0RESHARD,\r\n"
                       ",1RECV_F0,1F0,1I0,1SEND_B0,1WAIT_SEND_B0,1W0,1WAIT_REDUCE_GRAD\r\n\r\n",
                       &s));
    (void)dt_pipeline_schedule_print(s, text, sizeof text);
    DT_ASSERT_EQ_STR(text, "0F0,0B0\n1F0,1I0,1W0\n");
    DT_ASSERT_EQ_INT(dt_pipeline_schedule_column(s, 0, 1), 5);
    DT_ASSERT_EQ_INT(dt_pipeline_schedule_column(s, 1, 2), 6);
    DT_ASSERT_EQ_INT(dt_pipeline_schedule_column(s, 1, 3), -1);
    DT_ASSERT_EQ_INT(dt_pipeline_schedule_rank_of(s, 1), 1);
    DT_ASSERT_EQ_INT(dt_pipeline_schedule_rank_of(s, 2), -1);
    DT_ASSERT_EQ_STR(dt_pipeline_schedule_name(s), "own.csv");
    DT_ASSERT(dt_pipeline_schedule_row(s, 2, NULL) == NULL);
}

/* Which of the two is written first says nothing. */
DT_TEST(pipeline_rows, two_that_run_together_are_one_cell)
{
    DT_HELD(pipeline_schedule) *s = NULL;
    const dt_action *row;
    int n;

    DT_ASSERT_OK(parse("0F0,1F0,( 1B0 ; 0F1 )OVERLAP_F_B,1F1,0B0,1B1,0B1\n", &s));
    row = dt_pipeline_schedule_row(s, 0, &n);
    DT_ASSERT_EQ_INT(n, 8);
    DT_ASSERT(row[2].overlapped && row[2].kind == DT_ACTION_F && row[2].microbatch == 1);
    DT_ASSERT(!row[3].overlapped && row[3].kind == DT_ACTION_B && row[3].stage == 1);
    DT_ASSERT(dt_pipeline_schedule_column(s, 0, 2) == 2 &&
              dt_pipeline_schedule_column(s, 0, 3) == 2);
    DT_ASSERT_EQ_INT(dt_pipeline_schedule_column(s, 0, 4), 3);
}

/* clang-format off */
static const struct { const char *text, *message; } refused[] = {
    /* cells */
    { "",                                    "no action in it" },
    { "\n0F0,0B0\n",                         "rank 0 has no action" },
    { "0F0,0B0\n\n1F0,1B0\n",                "rank 1 has no action" },
    { "0F0,0B0\n1F0,1X0\n",                  "rank 1, column 1: \"1X0\" is no action" },
    { "0F0,0B0,0F\n",                        "rank 0, column 2: \"0F\" is no action" },
    { "F0,0B0\n",                            "rank 0, column 0: \"F0\" is no action" },
    { "0F0 0B0\n",                           "rank 0, column 0: \"0F0 0B0\" is no action" },
    { "0F0,0BW0\n",                          "\"0BW0\" is no action" },
    { "0F0,0B-1\n",                          "\"0B-1\" is no action" },
    { "0F0,0B999999999\n",                   "\"0B999999999\" is no action" },
    { "0F0,0SEND_F,0B0\n",                   "\"0SEND_F\" is no action" },
    { "0F0,(0F1;0B0\n",                      "\"(0F1;0B0\" is no action" },
    { "0F0,(0F1;0F2)OVERLAP_F_B\n",          "\"(0F1;0F2)OVERLAP_F_B\" is no action" },
    { "0F0,(0F1)OVERLAP_F_B\n",              "\"(0F1)OVERLAP_F_B\" is no action" },
    { "0F0,(0F1;0W0)OVERLAP_F_B\n",          "is no action" },
    { "0F0,\x1b[31m\n",                      "rank 0, column 1: \"\\x1b[31m\" is no action" },
    /* stages */
    { "0F0,0B0\n0F1,0B1\n",                  "rank 1, column 0 (\"0F1\"): stage 0 is on rank 0 already" },
    { "0F0,0B0\n2F0,2B0\n",                  "no rank has stage 1 of 3" },
    { "99999999F0\n",                        "has a stage 99999999 and 1 actions" },
    /* what is missing, or there twice */
    { "0F0,0B0,0F1\n",                       "rank 0: 0I1 is missing; every stage has an F" },
    { "0F0,0I0\n",                           "rank 0: 0W0 is missing" },
    { "0F0,0F1,0B0,0B1\n1F0,1B0\n",          "rank 1: 1F1 is missing; every stage has an F, and a B or both I and W, of each of the 2" },
    { "0F0,0F0,0B0\n",                       "rank 0, column 1 (\"0F0\"): stage 0 has had its F of microbatch 0 before" },
    { "0F0,0B0,0I0,0W0\n",                   "rank 0, column 2 (\"0I0\"): stage 0 has had its I of microbatch 0 before" },
    { "0F0,0B0,0W0\n",                       "rank 0, column 2 (\"0W0\"): stage 0 has had its W of microbatch 0 before" },
    { "0F0,0I0,0B0\n",                       "rank 0, column 2 (\"0B0\"): stage 0 has had its I of microbatch 0 before" },
    { "0F99999999,0B0\n",                    "rank 0, column 0 (\"0F99999999\"): comes where 0F0 is missing" },
    /* order within a stage */
    { "0B0,0F0\n",                           "rank 0, column 0 (\"0B0\"): needs 0F0, which has to come before it" },
    { "0F0,0W0,0I0\n",                       "rank 0, column 1 (\"0W0\"): needs 0I0, which has to come before it" },
    { "0F1,0F0,0B0,0B1\n",                   "rank 0, column 0 (\"0F1\"): comes where 0F0 is missing" },
    { "0F0,0F1,0B1,0B0\n",                   "rank 0, column 2 (\"0B1\"): comes where 0I0 is missing" },
    { "0F0,0F1,0I0,0I1,0W1,0W0\n",           "rank 0, column 4 (\"0W1\"): comes where 0W0 is missing" },
    { "0F0,0F1,0I0,0B1,0W0\n",               "rank 0, column 3 (\"0B1\"): comes where 0W0 is missing" },
    { "0F0,(0F1;0B1)OVERLAP_F_B,0B0\n",      "rank 0, column 1 (\"0F1\"): runs together with its own backward pass" },
    /* order across stages */
    { "1F0,0F0,1B0,0B0\n",                   "rank 0, column 0 (\"1F0\"): waits for 0F0, which rank 0 has in column 1 behind 1F0 in column 0: none" },
    { "0F0,1F0,0B0,1B0\n",                   "rank 0, column 2 (\"0B0\"): waits for 1B0, which rank 0 has in column 3 behind 0B0 in column 2: none" },
    { "0F0,0B0,0F1,0B1\n1F0,,1F1,1B0,1B1\n", "rank 0, column 1 (\"0B0\"): waits for 1B0, which rank 1 has in column 3 behind 1F1 in column 2, "
                                             "which waits for 0F1, which rank 0 has in column 2 behind 0B0 in column 1: none of them ever begins" },
    { "0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1B1,1F1,0B1\n", "rank 0, column 4 (\"1B1\"): needs 1F1" },
    { "0F0,(0F1;1B0)OVERLAP_F_B,0B0,0B1\n1F0,1F1,1B0,1B1\n", "rank 0, column 1 (\"1B0\"): needs 1F0" },
};
/* clang-format on */

DT_TEST(pipeline_rows, the_first_offending_cell_is_named)
{
    for (size_t i = 0; i < DT_COUNT(refused); i++) {
        dt_pipeline_schedule *s = NULL;
        DT_ASSERT_STATUS(parse(refused[i].text, &s), DT_ERR_FORMAT, refused[i].message);
        DT_ASSERT(s == NULL);
    }
}

DT_TEST(pipeline_rows, limits_name_the_cell_that_goes_beyond_them)
{
    static const int64_t live[] = { 10, 20, 30, 40 }, postponed[] = { 1, 2, 3, 4 };
    static const int64_t room[] = { 40, 62, 63, 88 };
    dt_pipeline_limits o = DT_PIPELINE_LIMITS_INIT;
    DT_HELD(pipeline_schedule) *s = made("1f1b", 4, 1, 8), *z = made("zb-h1", 4, 1, 8);

    o.live = 4;
    DT_ASSERT_OK(dt_pipeline_check(s, &o));
    o.live = 3;
    DT_ASSERT_STATUS(dt_pipeline_check(s, &o), DT_ERR_MEMORY,
                     "1f1b: rank 0, column 3 (\"0F3\"): is live microbatch 4 of its rank");
    o = (dt_pipeline_limits)DT_PIPELINE_LIMITS_INIT;
    o.postponed = 3;
    DT_ASSERT_STATUS(dt_pipeline_check(z, &o), DT_ERR_MEMORY,
                     "zb-h1: rank 3, column 7 (\"3I3\"): is the I of W 4 that its rank postpones");
    o.postponed = 4;
    DT_ASSERT_OK(dt_pipeline_check(z, &o));
    o.live_bytes = live;
    o.postponed_bytes = postponed;
    o.bytes = room; /* rank 1: three and a postponed one; rank 2: two, two */
    DT_ASSERT_STATUS(dt_pipeline_check(z, &o), DT_ERR_MEMORY,
                     "zb-h1: rank 2, column 5 (\"2F3\"): its rank holds 66 bytes of 4 live "
                     "microbatches and 2 postponed");
    DT_ASSERT_STATUS(dt_pipeline_check(NULL, NULL), DT_ERR_ARG, "NULL");
}
