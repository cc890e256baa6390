/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tokens a pass reads, and in which blocks they lie: in worlds by the thousand, and one rule
 * at a time. */

#include "tests/support/dt_test.h"
#include "tests/support/schedule_world.h"

static int64_t draw(uint64_t *state, int64_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((*state >> 33) % (uint64_t)n);
}

static dti_schedule_options random_options(uint64_t *u)
{
    dti_schedule_options o = { .n_replicas = 1 + draw(u, 5) / 3,
                               .n_blocks = 5 + draw(u, 30),
                               .block = 1 + draw(u, 9),
                               .max_running = 1 + draw(u, 12),
                               .max_waiting = 64,
                               .finds = draw(u, 3) > 0,
                               .reserves = draw(u, 3) == 0 };

    o.max_rows = o.max_running + draw(u, 40);
    o.wanted_ns = draw(u, 2) * 100;
    o.slowed = draw(u, 3) * 700;
    o.window = draw(u, 3) == 0 ? 1 + draw(u, 20) : 0;
    return o;
}

static dt_world_request random_request(uint64_t *u)
{
    dt_world_request r = { .n_prompt = 1 + draw(u, draw(u, 4) == 0 ? 90 : 20),
                           .family = draw(u, 3),
                           .n_texts = 1 + (draw(u, 4) == 0 ? draw(u, 4) : 0),
                           .max_new = 1 + draw(u, 50),
                           .priority = draw(u, 5) == 0,
                           .salt = draw(u, 4) == 0 };

    r.common = draw(u, r.n_prompt + 1);
    return r;
}

/* Texts come, go and are cancelled; a request that can never be is refused. */
static dt_status run_world(uint64_t seed, dti_schedule_counts *total)
{
    uint64_t u = seed * 7919 + 1;
    const dti_schedule_options o = random_options(&u);
    dti_schedule_counts c;
    dt_status st = DT_OK;
    dt_world *w;

    DT_TRY(dt_world_open(&o, &w));
    for (int i = 0; i < 40 && st == DT_OK; i++) {
        const dti_pass_cost cost = { draw(&u, 60), draw(&u, 4) };
        const dt_world_request r = random_request(&u);
        int64_t rows;
        if (draw(&u, 3) > 0) {
            st = dt_world_submit(w, &r);
            if (st == DT_ERR_ARG || st == DT_ERR_MEMORY) st = DT_OK;
        }
        if (st == DT_OK && draw(&u, 12) == 0) st = dt_world_cancel(w, draw(&u, i + 1));
        for (int64_t n = draw(&u, 4); n > 0 && st == DT_OK; n--)
            st = dt_world_step(w, &cost, &rows);
    }
    if (st == DT_OK) st = dt_world_drain(w);
    c = dti_schedule_count(w->s);
    if (st == DT_OK && o.reserves && c.preempted > 0)
        st = dt_test_unexpected(__func__, __FILE__, __LINE__, "reserved", "%lld were preempted",
                                (long long)c.preempted);
    total->preempted += c.preempted;
    total->found += c.found;
    total->steps += c.steps;
    dt_world_close(&w);
    return st;
}

static void run_worlds(uint64_t first, uint64_t n)
{
    dti_schedule_counts total = { 0 };

    for (uint64_t seed = first; seed < first + n; seed++) {
        if (run_world(seed, &total) == DT_OK) continue;
        dt_test_print_error();
        dt_test_fail(__FILE__, __LINE__, "world %llu", (unsigned long long)seed);
    }
    DT_ASSERT(total.preempted > (int64_t)n && total.found > (int64_t)n);
}

DT_TEST(schedule, every_text_ends_and_blocks_return_in_any_world)
{
    run_worlds(0, 300);
}

DT_TEST(schedule, long_every_text_ends_and_blocks_return_in_any_world)
{
    dt_test_long();
    run_worlds(1000, 20000);
}

/* --- one rule at a time ----------------------------------------------------------------------- */

static const dti_schedule_options plain = { .n_replicas = 1,
                                            .n_blocks = 16,
                                            .block = 4,
                                            .max_running = 4,
                                            .max_rows = 32,
                                            .max_waiting = 8,
                                            .finds = 1 };

static dt_world *world_of(const dti_schedule_options *o)
{
    dt_world *w;

    DT_ASSERT_OK(dt_world_open(o, &w));
    return w;
}

static void submit(dt_world *w, int64_t n_prompt, int64_t common, int64_t max_new, int64_t n_texts)
{
    const dt_world_request r = {
        .n_prompt = n_prompt, .common = common, .max_new = max_new, .n_texts = n_texts
    };

    DT_ASSERT_OK(dt_world_submit(w, &r));
}

static int64_t step(dt_world *w, int64_t pass_ns, int64_t row_ns)
{
    const dti_pass_cost cost = { pass_ns, row_ns };
    int64_t rows;

    DT_ASSERT_OK(dt_world_step(w, &cost, &rows));
    return rows;
}

DT_TEST(schedule, a_beginning_that_another_text_has_is_not_read_again)
{
    dt_world *w = world_of(&plain);

    submit(w, 13, 13, 1, 1);
    DT_ASSERT_EQ_INT(step(w, 0, 0), 13);
    submit(w, 13, 13, 1, 1); /* three full blocks of it; the last token is read */
    DT_ASSERT_EQ_INT(step(w, 0, 0), 1);
    submit(w, 12, 12, 1, 1); /* three full blocks, too, but the last token is read */
    DT_ASSERT_EQ_INT(step(w, 0, 0), 4);
    submit(w, 13, 6, 1, 1); /* one block of it */
    DT_ASSERT_EQ_INT(step(w, 0, 0), 9);
    DT_ASSERT_EQ_INT(dti_schedule_count(w->s).found, 12 + 8 + 4);
    DT_ASSERT_OK(dt_world_drain(w));
    dt_world_close(&w);
}

DT_TEST(schedule, texts_of_another_salt_share_nothing)
{
    dt_world *w = world_of(&plain);

    for (uint64_t salt = 0; salt < 2; salt++) {
        DT_ASSERT_OK(dt_world_submit(
            w, &(dt_world_request){
                   .n_prompt = 9, .common = 9, .max_new = 1, .n_texts = 1, .salt = salt }));
        DT_ASSERT_EQ_INT(step(w, 0, 0), 9);
    }
    DT_ASSERT_OK(dt_world_drain(w));
    dt_world_close(&w);
}

DT_TEST(schedule, texts_of_a_prompt_read_it_once_and_part_where_they_write)
{
    dt_world *w = world_of(&plain);

    submit(w, 6, 0, 20, 4);
    DT_ASSERT_EQ_INT(step(w, 0, 0), 6);
    DT_ASSERT_EQ_INT(dti_schedule_count(w->s).used, 2);
    while (step(w, 0, 0) > 0)
        if (dti_schedule_count(w->s).running == 4)
            DT_ASSERT(dti_schedule_count(w->s).used <= 1 + 4 * 6);
    DT_ASSERT_OK(dt_world_drain(w));
    dt_world_close(&w);
}

/* A text alone takes 12 ns, and at most 30 with prompts. */
DT_TEST(schedule, prompts_take_as_long_as_texts_may_be_slowed_down)
{
    dti_schedule_options o = plain;
    dt_world *w;

    o.n_blocks = 64;
    o.max_rows = 100;
    o.wanted_ns = 1000;
    o.slowed = 1500;
    w = world_of(&o);
    submit(w, 4, 0, 30, 1);
    while (w->requests[0].n[0] == 0) (void)step(w, 10, 2);
    if (!w->requests[0].over) {
        submit(w, 80, 0, 1, 1);
        DT_ASSERT_EQ_INT(step(w, 10, 2), 1 + 9);
    }
    DT_ASSERT_OK(dt_world_drain(w));
    dt_world_close(&w);
}

/* 10 ns a pass and 2 a row, of 60 ns: a text that goes on leaves 24 rows. */
DT_TEST(schedule, prompts_get_the_time_that_texts_leave)
{
    dti_schedule_options o = plain;
    dt_world *w;

    o.n_blocks = 64;
    o.max_rows = 100;
    o.wanted_ns = 60;
    w = world_of(&o);
    submit(w, 80, 0, 2, 1);
    DT_ASSERT_EQ_INT(step(w, 10, 2), 80); /* nobody waits for a token */
    DT_ASSERT_OK(dt_world_drain(w));
    submit(w, 4, 0, 30, 1);
    while (w->requests[1].n[0] == 0) (void)step(w, 10, 2);
    if (!w->requests[1].over) {
        submit(w, 80, 0, 1, 1);
        DT_ASSERT_EQ_INT(step(w, 10, 2), 1 + 24);
        DT_ASSERT_EQ_INT(step(w, 100, 2), 1 + 25); /* half as long as the text takes alone */
        DT_ASSERT_EQ_INT(step(w, 10, 100), 1 + 4); /* a prompt moves on all the same */
    }
    DT_ASSERT_OK(dt_world_drain(w));
    dt_world_close(&w);
}

DT_TEST(schedule, the_last_text_makes_room_for_the_first)
{
    dti_schedule_options o = plain;
    dt_world *w;

    o.n_blocks = 8;
    w = world_of(&o);
    for (int i = 0; i < 4; i++) submit(w, 7, 0, 20, 1);
    DT_ASSERT_OK(dt_world_drain(w));
    DT_ASSERT(dti_schedule_count(w->s).preempted > 0);
    dt_world_close(&w);
}

DT_TEST(schedule, what_can_never_be_is_refused_by_name)
{
    dti_schedule_options o = plain;
    dt_world *w = world_of(&o);
    dti_schedule *s = NULL;

    DT_ASSERT_STATUS(
        dt_world_submit(w, &(dt_world_request){ .n_prompt = 60, .max_new = 6, .n_texts = 1 }),
        DT_ERR_ARG, "a text of 65 tokens needs 17 blocks of 4, there are 16");
    DT_ASSERT_STATUS(
        dt_world_submit(w, &(dt_world_request){ .n_prompt = 1, .max_new = 1, .n_texts = 5 }),
        DT_ERR_ARG, "5 texts of a prompt: a pass has 4 at most; ask for fewer");
    for (int i = 0; i < 8; i++) submit(w, 1, 0, 1, 1);
    DT_ASSERT_STATUS(
        dt_world_submit(w, &(dt_world_request){ .n_prompt = 1, .max_new = 1, .n_texts = 1 }),
        DT_ERR_MEMORY, "the queue is full: 8 texts wait");
    DT_ASSERT_OK(dt_world_drain(w));
    dt_world_close(&w);
    o.max_rows = 3;
    DT_ASSERT_STATUS(dti_schedule_create(&o, NULL, NULL, &s), DT_ERR_ARG,
                     "passes of 4 texts and 3 tokens");
}

DT_TEST(schedule, a_log_that_says_otherwise_is_refused)
{
    dt_world *w = world_of(&plain);

    submit(w, 9, 0, 5, 2);
    DT_ASSERT_OK(dt_world_drain(w));
    DT_ASSERT_OK(dti_schedule_replay(w->log, w->n_log));
    DT_ASSERT_STATUS(dti_schedule_replay(w->log, w->n_log - 1), DT_ERR_FORMAT, "ends within");
    DT_ASSERT_STATUS(dti_schedule_replay(w->log + 1, w->n_log - 1), DT_ERR_FORMAT, "options");
    w->log[2 + 4] = 5; /* rows of a pass */
    DT_ASSERT(dti_schedule_replay(w->log, w->n_log) != DT_OK);
    dt_world_close(&w);
}
