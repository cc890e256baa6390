/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of generation: none of the others is faster, what is counted is what dt_predict() says of
 * all ranks, and better machines have no slower plans. */
#include <math.h>

#include "base/numbers.h"
#include "tests/planner/ways.h"

static const test_model small = { "small", 32, 64, 4, 2, 4, 64, 64, "float32" };
static const test_model narrow = { "narrow", 16, 48, 4, 4, 5, 96, 64, "bfloat16" };

static dt_search *searched(const char *folder, const dt_machine *m, dt_plan_goal goal,
                           int64_t batch)
{
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    dt_search *s = NULL;

    o.batch = batch;
    o.sequence = 16;
    o.goal = goal;
    DT_ASSERT_OK(dt_search_ways(NULL, folder, m, &o, &s));
    return s;
}

static double fastest(const char *folder, const dt_machine *m, dt_plan_goal goal, int64_t batch)
{
    dt_search *s = searched(folder, m, goal, batch);
    const dt_verdict *v = dt_search_at(s, 0);
    const double seconds = v->kind == DT_VERDICT_RANKED ? v->cost.seconds : INFINITY;

    dt_search_release(&s);
    return seconds;
}

/* Every way that no rule forbids, counted. */
static void compare(const char *folder, const dt_machine *m, dt_plan_goal goal, int64_t batch)
{
    dt_search *s = searched(folder, m, goal, batch);
    const double device = m->figure[DT_FIGURE_DEVICE_BYTES].value;
    const dt_verdict *first = dt_search_at(s, 0), *v;
    double least = INFINITY, bytes, seconds;
    dt_way_cost c;

    for (int64_t i = 0; (v = dt_search_at(s, i)) != NULL; i++) {
        if (v->kind == DT_VERDICT_RULE) continue;
        DT_ASSERT_OK(dti_way_count(&s->task, &v->way, &c));
        DT_ASSERT_OK(dti_way_bound(&s->task, &v->way, &bytes, &seconds));
        DT_ASSERT(bytes <= (double)c.peak_bytes && seconds <= c.seconds);
        DT_ASSERT_CLOSE(c.seconds, goal == DT_PLAN_TOKEN ? c.token : c.prompt, 0);
        if (v->kind == DT_VERDICT_MEMORY) DT_ASSERT((double)c.peak_bytes > device);
        if ((double)c.peak_bytes <= device) least = fmin(least, c.seconds);
    }
    DT_ASSERT_EQ_INT(first->kind == DT_VERDICT_RANKED, isfinite(least) != 0);
    if (first->kind == DT_VERDICT_RANKED) DT_ASSERT_CLOSE(first->cost.seconds, least, 0);
    dt_search_release(&s);
}

static int compare_all(const test_model *model, int most_ranks)
{
    static const double links[] = { 1e5, 1e7, 1e10 }, bytes[] = { 2e4, 8e4, 3e5, 1e8 };
    static const dt_plan_goal goals[] = { DT_PLAN_TOKEN, DT_PLAN_PROMPT };
    char folder[DT_TEST_PATH_BYTES];
    int n = 0;

    test_model_write(model, folder);
    for (int ranks = 1; ranks <= most_ranks; ranks *= 2)
        for (int nodes = 1; nodes <= (ranks < 2 ? 1 : 2); nodes++)
            for (size_t b = 0; b < DT_COUNT(bytes); b++)
                for (size_t l = 0; l < DT_COUNT(links); l++)
                    for (size_t g = 0; g < DT_COUNT(goals); g++)
                        for (int64_t batch = 1; batch <= 6; batch += 5, n++) {
                            const dt_machine m = test_machine(nodes, ranks / nodes, bytes[b],
                                                              links[l], links[l] / 8);
                            compare(folder, &m, goals[g], batch);
                        }
    return n;
}

DT_TEST(serve, nothing_is_faster_than_what_is_found)
{
    (void)compare_all(&small, 2);
}

DT_TEST(serve, nothing_is_faster_than_what_is_found_in_many_cases)
{
    dt_test_long();
    DT_ASSERT(compare_all(&small, 8) + compare_all(&narrow, 8) >= 200);
}

/* One group is what dt_predict() goes through; the bytes of several are as exact, of caches. */
DT_TEST(serve, what_is_counted_is_what_all_ranks_hold)
{
    static const test_model *const models[] = { &small, &narrow };
    static const dt_way ways[] = {
        { .pp = 1, .dp = 1, .tp = 1 }, { .pp = 1, .dp = 2, .tp = 1 }, { .pp = 1, .dp = 1, .tp = 4 },
        { .pp = 1, .dp = 2, .tp = 2 }, { .pp = 2, .dp = 1, .tp = 1 }, { .pp = 4, .dp = 1, .tp = 2 },
    };
    const dt_machine m = test_machine(1, 8, 1e9, 1e9, 1e9);

    for (size_t k = 0; k < DT_COUNT(models); k++) {
        dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
        char folder[DT_TEST_PATH_BYTES], mesh[DTI_MESH_BYTES];
        dti_task t;
        test_model_write(models[k], folder);
        o.batch = 6;
        o.sequence = 24;
        o.goal = DT_PLAN_TOKEN;
        DT_ASSERT_OK(dti_task_open(NULL, folder, &m, &o, &t));
        for (size_t i = 0; i < DT_COUNT(ways); i++) {
            dt_predict_options p = DT_PREDICT_OPTIONS_INIT;
            dt_prediction *found = NULL;
            int64_t held = 0, cache = 0, received = 0;
            dt_way w = ways[i];
            dt_way_cost c;
            p.mesh = dti_way_mesh(&w, mesh);
            p.batch = 6;
            p.sequence = 24;
            DT_ASSERT_OK(dt_predict(NULL, folder, &p, &found));
            for (int r = 0; r < w.pp * w.dp * w.tp; r++) {
                const dt_rank_cost *one = dt_prediction_rank(found, r);
                held = dti_max(held, one->weight_bytes + one->cache_bytes + one->activation_bytes);
                cache = dti_max(cache, one->cache_bytes);
                received = dti_max(received, one->step_bytes);
            }
            w.microbatches = 1;
            DT_ASSERT_OK(dti_way_count(&t, &w, &c));
            DT_ASSERT_EQ_INT(c.peak_bytes, held);
            DT_ASSERT_EQ_INT(c.inside_bytes + c.between_bytes, received);
            w.microbatches = dti_serve_groups(&t, &w);
            DT_ASSERT_OK(dti_way_count(&t, &w, &c));
            DT_ASSERT(c.cache_bytes <= cache && c.cache_bytes > 0);
            dt_prediction_release(&found);
        }
        dti_task_close(&t);
    }
}

DT_TEST(serve, better_machines_are_not_slower)
{
    static const dt_figure_kind better[] = { DT_FIGURE_DEVICE_BYTES, DT_FIGURE_INSIDE_BANDWIDTH,
                                             DT_FIGURE_BETWEEN_BANDWIDTH,
                                             DT_FIGURE_MEMORY_BANDWIDTH };
    char folder[DT_TEST_PATH_BYTES];

    test_model_write(&small, folder);
    for (size_t k = 0; k < DT_COUNT(better); k++)
        for (int goal = DT_PLAN_TOKEN; goal <= (int)DT_PLAN_PROMPT; goal++) {
            dt_machine m = test_machine(2, 2, k == 0 ? 6e4 : 3e5, 1e6, 1e5);
            double before = INFINITY;
            for (int i = 0; i < 8; i++, m.figure[better[k]].value *= 3) {
                const double now = fastest(folder, &m, (dt_plan_goal)goal, 4);
                DT_ASSERT(now <= before);
                before = now;
            }
            DT_ASSERT(isfinite(before));
        }
}

/* Rows of the table, with what is taken. pp 0: nothing fits. */
DT_TEST(serve, cases_are_decided_by_their_numbers)
{
    static const test_model b8 = { "8B", 4096, 14336, 32, 8, 32, 128256, 8192, "bfloat16" };
    static const test_model b70 = { "70B", 8192, 28672, 64, 8, 80, 128256, 8192, "bfloat16" };
    static const test_model b405 = { "405B", 16384, 53248, 128, 8, 126, 128256, 8192, "bfloat16" };
    static const struct {
        const test_model *model;
        const char *machine;
        int64_t batch;
        const char *id;
        int pp, dp, tp;
    } rows[] = {
        { &b8, "h100:1x1", 1, "I1", 1, 1, 1 },       { &b70, "h100:1x1", 1, "I2", 0, 0, 0 },
        { &b8, "h100", 1, "I3", 1, 1, 8 },           { &b8, "pcie", 8, "I3", 1, 1, 8 },
        { &b70, "h100", 1, "I4", 1, 1, 8 },          { &b70, "ethernet:1x8", 8, "I4", 1, 1, 8 },
        { &b70, "h100:4x8", 32, "I5", 1, 4, 8 },     { &b405, "h100:2x8", 1, "I6", 2, 1, 8 },
        { &b405, "ethernet:4x8", 4, "I6", 4, 1, 8 },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
        char folder[DT_TEST_PATH_BYTES], text[DT_REASON_BYTES];
        const dt_verdict *v;
        dt_search *s = NULL;
        dt_machine m;
        test_model_write(rows[i].model, folder);
        DT_ASSERT_OK(dt_machine_read(rows[i].machine, &m));
        o.batch = rows[i].batch;
        o.sequence = 2048;
        o.goal = DT_PLAN_TOKEN;
        DT_ASSERT_OK(dt_search_ways(NULL, folder, &m, &o, &s));
        v = dt_search_at(s, 0);
        (void)dt_search_case(s, text);
        if (strncmp(text, rows[i].id, 2) != 0 ||
            (v->kind == DT_VERDICT_RANKED) != (rows[i].pp > 0) ||
            (rows[i].pp > 0 &&
             (v->way.pp != rows[i].pp || v->way.dp != rows[i].dp || v->way.tp != rows[i].tp)))
            dt_test_fail(__FILE__, __LINE__, "%s on %s: %s; pp=%d,dp=%d,tp=%d", rows[i].model->name,
                         rows[i].machine, text, v->way.pp, v->way.dp, v->way.tp);
        if (rows[i].pp == 0) DT_ASSERT(dt_search_least_devices(s) > 1);
        dt_search_release(&s);
    }
}

DT_TEST(serve, one_way_is_judged)
{
    const dt_machine m = test_machine(1, 4, 1e9, 1e9, 1e9);
    dt_way w = { .pp = 1, .dp = 1, .tp = 1 };
    char folder[DT_TEST_PATH_BYTES];
    dt_search *s;
    dt_verdict v;

    test_model_write(&small, folder);
    s = searched(folder, &m, DT_PLAN_TOKEN, 4);
    DT_ASSERT_OK(dt_search_judge(s, &w, &v));
    DT_ASSERT(v.counted && v.cost.token > 0 && v.cost.prompt > v.cost.token);
    w.dp = 3;
    DT_ASSERT_OK(dt_search_judge(s, &w, &v));
    DT_ASSERT_EQ_STR(v.rule, "K5");
    w.dp = 8;
    DT_ASSERT_STATUS(dt_search_judge(s, &w, &v), DT_ERR_ARG, "has 4 devices");
    w = (dt_way){ .pp = 1, .dp = 1, .tp = 1, .zero = 1 };
    DT_ASSERT_STATUS(dt_search_judge(s, &w, &v), DT_ERR_ARG, "a mesh alone");
    dt_search_release(&s);
}
