/* SPDX-License-Identifier: Apache-2.0
 *
 * The search finds what looking at everything finds, what it counts is what a dry run of every rank
 * and microbatch counts, and better machines have no slower plans. */
#include <math.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "tests/planner/ways.h"

static const test_model small = { "small", 32, 64, 4, 2, 4, 64, 64, "float32" };
static const test_model narrow = { "narrow", 16, 48, 4, 4, 5, 96, 64, "bfloat16" };

static char *printed(const dt_search *s, bool json)
{
    const int n = dt_search_print(s, json, NULL, 0);
    char *text = malloc((size_t)n + 1);

    DT_ASSERT(text != NULL);
    DT_ASSERT_EQ_INT(dt_search_print(s, json, text, (size_t)n + 1), n);
    DT_ASSERT_EQ_INT((int64_t)strlen(text), n);
    return text;
}

/* --- all ways --------------------------------------------------------------------------------- */

static void holds(const dt_way *w, int64_t batch, const char *unit, double bound, double counted)
{
    if (bound <= counted) return;
    dt_test_fail(__FILE__, __LINE__,
                 "pp %d dp %d tp %d zero %d sp %d offload %d recompute %d %s of %d, stages %s, "
                 "%lld microbatches, batch %lld: at least %g %s, counted %g",
                 w->pp, w->dp, w->tp, w->zero, w->sequence_parallel, w->offload, (int)w->recompute,
                 w->pp > 1 ? w->schedule : "", w->stages_per_rank,
                 w->stages != NULL ? w->stages : "by time", (long long)w->microbatches,
                 (long long)batch, bound, unit, counted);
}

/* Counts every way that no rule forbids: bounds hold, those that memory rejects do not fit, and
 * none is faster than the one that was found. */
static void compare(const char *folder, const dt_machine *m, int64_t batch)
{
    dt_search *s = test_searched(folder, m, batch, 1);
    const double device = m->figure[DT_FIGURE_DEVICE_BYTES].value;
    const dt_verdict *first = dt_search_at(s, 0), *v;
    double least = INFINITY;

    s->task.machine.figure[DT_FIGURE_DEVICE_BYTES].value = INFINITY; /* all ranks are counted */
    for (int64_t i = 0; (v = dt_search_at(s, i)) != NULL; i++) {
        dt_way_cost c;
        double bytes, seconds;
        if (v->kind == DT_VERDICT_RULE) continue;
        if (dti_way_count(&s->task, &v->way, &c) != DT_OK) {
            DT_ASSERT_EQ_INT(v->kind, DT_VERDICT_REFUSED);
            continue;
        }
        DT_ASSERT_OK(dti_way_bound(&s->task, &v->way, &bytes, &seconds));
        holds(&v->way, batch, "bytes", bytes, (double)c.peak_bytes);
        holds(&v->way, batch, "s", seconds, c.seconds);
        if (v->kind == DT_VERDICT_MEMORY) DT_ASSERT((double)c.peak_bytes > device);
        if (v->kind == DT_VERDICT_RANKED) DT_ASSERT((double)c.peak_bytes <= device);
        if ((double)c.peak_bytes <= device) least = fmin(least, c.seconds);
    }
    if (first->kind == DT_VERDICT_RANKED)
        DT_ASSERT_CLOSE(first->cost.seconds, least, 0);
    else
        DT_ASSERT(isinf(least));
    dt_search_release(&s);
}

static void compare_all(const test_model *model, int most_ranks, const double *bytes, int n_bytes)
{
    static const double links[] = { 1e6, 1e8, 1e10 };
    char folder[DT_TEST_PATH_BYTES];

    test_model_write(model, folder);
    for (int ranks = 1; ranks <= most_ranks; ranks *= 2)
        for (int nodes = 1; nodes <= (ranks < 2 ? 1 : 2); nodes++)
            for (int b = 0; b < n_bytes; b++)
                for (size_t l = 0; l < DT_COUNT(links); l++) {
                    const dt_machine m =
                        test_machine(nodes, ranks / nodes, bytes[b], links[l], links[l] / 8);
                    compare(folder, &m, ranks);
                    compare(folder, &m, 4);
                }
}

DT_TEST(search, nothing_is_faster_than_what_is_found)
{
    static const double bytes[] = { 3e5, 1e6 };

    compare_all(&small, 2, bytes, 2);
}

/* Where few may be counted the best of those is found, not nothing. */
DT_TEST(search, what_was_counted_is_ranked_when_no_more_may_be)
{
    const dt_machine m = test_machine(1, 4, 1e9, 1e10, 1e10);
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    DT_HELD(search) *s = NULL;

    test_model_write(&small, folder);
    o.batch = 8;
    for (o.most_counted = 1; o.most_counted <= 4; o.most_counted++) {
        double least = INFINITY;
        const dt_verdict *v;
        dt_search_release(&s);
        DT_ASSERT_OK(dt_search_ways(NULL, folder, &m, &o, &s));
        for (int64_t i = 0; (v = dt_search_at(s, i)) != NULL; i++)
            if (v->counted && v->kind != DT_VERDICT_MEMORY) least = fmin(least, v->cost.seconds);
        DT_ASSERT(dt_search_at(s, 0)->kind == DT_VERDICT_RANKED);
        DT_ASSERT_CLOSE(dt_search_at(s, 0)->cost.seconds, least, 0);
        DT_ASSERT(s->n_counted <= o.most_counted);
    }
}

/* A way is counted in any case; then the time is over, and the report says so. */
DT_TEST(search, a_budget_of_seconds_ends_it_and_is_named)
{
    const dt_machine m = test_machine(1, 4, 1e9, 1e10, 1e10);
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    DT_HELD(search) *s = NULL;
    char *text;

    test_model_write(&small, folder);
    o.batch = 8;
    o.seconds = 1e-9;
    o.top = 2;
    DT_ASSERT_OK(dt_search_ways(NULL, folder, &m, &o, &s));
    DT_ASSERT_EQ_INT(dt_search_ended(s), DT_SEARCH_TIMED);
    DT_ASSERT_EQ_INT(s->n_counted, 1);
    DT_ASSERT_EQ_INT(dt_search_at(s, 0)->kind, DT_VERDICT_RANKED);
    DT_ASSERT(strstr(dt_search_at(s, 1)->reason, "the search 1e-09 s") != NULL);
    text = printed(s, false);
    DT_ASSERT(strstr(text, "ended after its 1e-09 s") != NULL);
    free(text);
    text = printed(s, true);
    DT_ASSERT(strstr(text, "\"ended\": \"seconds\"") != NULL);
    free(text);
    dt_search_release(&s);
    o.seconds = 3600; /* more than it needs */
    DT_ASSERT_OK(dt_search_ways(NULL, folder, &m, &o, &s));
    DT_ASSERT_EQ_INT(dt_search_ended(s), DT_SEARCH_WHOLE);
    o.seconds = -1;
    dt_search_release(&s);
    DT_ASSERT_STATUS(dt_search_ways(NULL, folder, &m, &o, &s), DT_ERR_ARG, "-1 seconds");
}

/* What a run needs besides stands in its options: another optimizer holds other bytes. */
DT_TEST(search, options_of_a_run_have_what_was_asked_for)
{
    const dt_machine m = test_machine(1, 2, 1e9, 1e10, 1e10);
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    dt_optimizer_options sgd = DT_OPTIMIZER_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    static const char *const want[] = { "\"plan\": \"built-in\"", "\"optimizer\": \"sgd\"",
                                        "\"momentum\": 0.5", "\"nesterov\": true",
                                        "\"no-masters\": true" };
    static const dt_plan built_in = { .source = "of a test" };
    char folder[DT_TEST_PATH_BYTES], *text;
    DT_HELD(search) *s = NULL;

    test_model_write(&small, folder);
    sgd.rule = DT_SGD;
    sgd.momentum = 0.5;
    sgd.nesterov = true;
    sgd.masters = false;
    load.plan = &built_in;
    o.load = &load;
    o.optimizer = &sgd;
    o.batch = 4;
    DT_ASSERT_OK(dt_search_ways(NULL, folder, &m, &o, &s));
    text = printed(s, true);
    for (size_t i = 0; i < DT_COUNT(want); i++) DT_ASSERT(strstr(text, want[i]) != NULL);
    free(text);
}

/* Four ranks on two cores, with kernels and links that were measured. */
DT_TEST(search, nothing_is_faster_on_a_machine_that_was_measured)
{
    dt_machine m = test_machine(1, 4, 1e6, 1e8, 1e7);
    char folder[DT_TEST_PATH_BYTES];

    m.cores = 2;
    m.figure[DT_FIGURE_EFFICIENCY].value = 1;
    m.figure[DT_FIGURE_CALL_SECONDS].value = 1e-6;
    m.figure[DT_FIGURE_OVERLAP_COST].value = 0.5;
    m.rate[m.n_rates++] = (dt_rate){ "linear", DT_F32, 1e6, 1e5, 2e-5 };
    m.rate[m.n_rates++] = (dt_rate){ "linear", DT_F32, 1e8, 1e6, 1.1e-3 };
    m.rate[m.n_rates++] = (dt_rate){ "attention", DT_F32, 1e6, 1e4, 5e-5 };
    m.rate[m.n_rates++] = (dt_rate){ "add", DT_F32, 1e4, 1e5, 1e-6 };
    m.link[m.n_links++] = (dt_link_rate){ DT_COMM_ALL_REDUCE, 2, false, 1e-5, 2e8 };
    m.link[m.n_links++] = (dt_link_rate){ DT_COMM_SEND, 2, false, 3e-5, 1e8 };
    test_model_write(&small, folder);
    compare(folder, &m, 8);
}

/* Whole experts on a mesh dim of their own. */
DT_TEST(search, nothing_is_faster_than_what_is_found_for_a_mixture_of_experts)
{
    const dt_machine m = test_machine(1, 2, 1e9, 1e7, 1e6);
    char folder[DT_TEST_PATH_BYTES];
    const dt_verdict *v;
    bool seen = false;
    dt_search *s;

    (void)dt_test_source_path(folder, "tests/golden/qwen3_moe/base");
    compare(folder, &m, 2);
    s = test_searched(folder, &m, 2, 1);
    for (int64_t k = 0; (v = dt_search_at(s, k)) != NULL; k++)
        seen = seen || (v->way.ep == 2 && v->kind != DT_VERDICT_REFUSED);
    dt_search_release(&s);
    DT_ASSERT(seen);
}

/* 2 models, 1 to 8 ranks on 1 and 2 nodes, 5 memories, 3 links, 2 batches: 420; 5 of experts. */
DT_TEST(search, nothing_is_faster_than_what_is_found_in_many_cases)
{
    static const double bytes[] = { 5e4, 2e5, 4e5, 8e5, 1e8 };
    char folder[DT_TEST_PATH_BYTES];

    dt_test_long();
    compare_all(&small, 8, bytes, 5);
    compare_all(&narrow, 8, bytes, 5);
    (void)dt_test_source_path(folder, "tests/golden/qwen3_moe/base");
    for (int b = 0; b < 5; b++) {
        const dt_machine m = test_machine(2, 2, bytes[b], 1e7, 1e6);
        compare(folder, &m, 4);
    }
}

/* --- counted exactly -------------------------------------------------------------------------- */

/* All ranks and all microbatches, in one dry run each. */
static int64_t whole_peak(const dti_task *t, const dt_way *w, int64_t *received)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_step_options step = DT_STEP_OPTIONS_INIT;
    dt_loss_options loss = DT_LOSS_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_optimizer_options optimizer = DT_OPTIMIZER_OPTIONS_INIT;
    char mesh[DTI_MESH_BYTES];
    int64_t most = 0;

    load.sequence_parallel = w->sequence_parallel;
    load.fully_shard = w->zero == 3 ? "dp" : NULL;
    load.n_stages = w->pp > 1 ? w->pp * w->stages_per_rank : 0;
    optimizer.zero = w->zero > 2 ? 2 : w->zero;
    optimizer.bucket_bytes = w->dp > 1 ? DTI_BUCKET_BYTES : 0;
    loss.recompute = w->recompute;
    o.mesh = dti_way_mesh(w, mesh);
    o.batch = t->o.batch;
    o.sequence = t->o.sequence;
    o.load = &load;
    step.loss = &loss;
    step.optimizer = &optimizer;
    step.microbatches = w->microbatches;
    if (w->pp > 1)
        DT_ASSERT_OK(dt_pipeline_schedule_create(w->schedule, w->pp,
                                                 w->stages_per_rank > 1 ? w->stages_per_rank : 0,
                                                 (int)w->microbatches, &step.schedule));
    *received = 0;
    for (int r = 0; r < w->pp * w->dp * w->tp; r++) {
        dt_training_cost c;
        int64_t bytes = 0;
        DT_ASSERT_OK(dt_predict_training(NULL, t->dir, &o, &step, r, &c));
        for (int i = 0; i < c.n_traffic; i++) bytes += c.traffic[i].count.bytes;
        most = dti_max(most, c.peak_bytes);
        *received = dti_max(*received, bytes);
    }
    dt_pipeline_schedule_release(&step.schedule);
    return most;
}

DT_TEST(search, what_is_counted_is_a_dry_run_of_all_ranks_and_microbatches)
{
    static const struct {
        int pp, dp, tp, zero;
        bool sequence_parallel;
        dt_recomputed recompute;
        const char *schedule;
        int v;
        int64_t m;
    } ways[] = {
        { 1, 1, 1, 0, false, DT_RECOMPUTED_NOTHING, NULL, 1, 16 },
        { 1, 2, 1, 0, false, DT_RECOMPUTED_BLOCKS, NULL, 1, 8 },
        { 1, 2, 1, 1, false, DT_RECOMPUTED_CHEAP, NULL, 1, 8 },
        { 1, 2, 1, 2, false, DT_RECOMPUTED_NOTHING, NULL, 1, 8 },
        { 1, 2, 1, 3, false, DT_RECOMPUTED_BLOCKS, NULL, 1, 8 },
        { 1, 2, 2, 3, true, DT_RECOMPUTED_CHEAP, NULL, 1, 4 },
        { 1, 1, 4, 0, true, DT_RECOMPUTED_NOTHING, NULL, 1, 16 },
        { 1, 4, 1, 2, false, DT_RECOMPUTED_NOTHING, NULL, 1, 4 },
        { 2, 1, 1, 0, false, DT_RECOMPUTED_NOTHING, "1f1b", 1, 16 },
        { 2, 2, 1, 1, false, DT_RECOMPUTED_BLOCKS, "1f1b", 1, 8 },
        { 2, 1, 2, 0, true, DT_RECOMPUTED_CHEAP, "1f1b", 1, 16 },
        { 2, 1, 1, 0, false, DT_RECOMPUTED_NOTHING, "interleaved", 2, 16 },
        { 2, 2, 2, 1, true, DT_RECOMPUTED_BLOCKS, "interleaved", 2, 8 },
        { 2, 1, 1, 0, false, DT_RECOMPUTED_BLOCKS, "zb-h1", 1, 16 },
        { 4, 1, 1, 0, false, DT_RECOMPUTED_NOTHING, "1f1b", 1, 16 },
        { 4, 2, 1, 1, false, DT_RECOMPUTED_NOTHING, "1f1b", 1, 8 },
        { 4, 1, 1, 0, false, DT_RECOMPUTED_CHEAP, "zb-h1", 1, 16 },
        { 3, 1, 1, 0, false, DT_RECOMPUTED_NOTHING, "1f1b", 1, 16 },
        { 2, 1, 1, 0, false, DT_RECOMPUTED_NOTHING, "1f1b", 1, 1 },
        { 4, 1, 1, 0, false, DT_RECOMPUTED_NOTHING, "zb-h1", 1, 16 },
        { 4, 1, 1, 0, false, DT_RECOMPUTED_BLOCKS, "zb-h1", 1, 8 },
        { 4, 1, 2, 0, true, DT_RECOMPUTED_NOTHING, "zb-h1", 1, 16 },
        { 3, 2, 1, 1, false, DT_RECOMPUTED_BLOCKS, "zb-h1", 1, 8 },
        { 2, 1, 1, 0, false, DT_RECOMPUTED_NOTHING, "zb-h1", 1, 16 },
        { 4, 1, 1, 0, false, DT_RECOMPUTED_BLOCKS, "1f1b", 1, 16 },
    };
    static const test_model *const models[] = { &small, &narrow };

    for (size_t k = 0; k < DT_COUNT(models); k++) {
        char folder[DT_TEST_PATH_BYTES];
        dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
        const dt_machine m = test_machine(1, 1, 1e9, 1e9, 1e9);
        dti_task t;
        test_model_write(models[k], folder);
        o.batch = 16;
        o.sequence = 16;
        DT_ASSERT_OK(dti_task_open(NULL, folder, &m, &o, &t));
        for (size_t i = 0; i < DT_COUNT(ways); i++) {
            const dt_way w = { .pp = ways[i].pp,
                               .dp = ways[i].dp,
                               .tp = ways[i].tp,
                               .zero = ways[i].zero,
                               .sequence_parallel = ways[i].sequence_parallel,
                               .recompute = ways[i].recompute,
                               .schedule = ways[i].schedule,
                               .stages_per_rank = ways[i].v,
                               .microbatches = ways[i].m };
            dt_way_cost c;
            int64_t received;
            const int64_t peak = whole_peak(&t, &w, &received);
            DT_ASSERT_OK(dti_way_count(&t, &w, &c));
            DT_ASSERT_EQ_INT(c.peak_bytes, peak);
            DT_ASSERT_EQ_INT(c.inside_bytes + c.between_bytes, received);
        }
        dti_task_close(&t);
    }
}

/* --- reports ---------------------------------------------------------------------------------- */

DT_TEST(search, the_same_input_gives_the_same_bytes)
{
    const dt_machine m = test_machine(1, 4, 6e5, 1e8, 1e7);
    char folder[DT_TEST_PATH_BYTES];

    test_model_write(&narrow, folder);
    for (int json = 0; json < 2; json++) {
        dt_search *s[2] = { test_searched(folder, &m, 8, 3), test_searched(folder, &m, 8, 3) };
        char *text[2] = { printed(s[0], json != 0), printed(s[1], json != 0) };
        DT_ASSERT_EQ_STR(text[0], text[1]);
        for (int i = 0; i < 2; i++) {
            free(text[i]);
            dt_search_release(&s[i]);
        }
    }
}

/* Every verdict has its reason, and ranked ones are in order. */
DT_TEST(search, every_rejected_way_has_a_reason_and_a_number)
{
    const dt_machine m = test_machine(2, 4, 3e5, 1e8, 1e7);
    char folder[DT_TEST_PATH_BYTES];
    const dt_verdict *v;
    int64_t n_ranked = 0;
    double before = 0;
    dt_search *s;

    test_model_write(&small, folder);
    s = test_searched(folder, &m, 8, 5);
    for (int64_t i = 0; (v = dt_search_at(s, i)) != NULL; i++) {
        if (v->kind == DT_VERDICT_RANKED) {
            DT_ASSERT_EQ_INT(i, n_ranked++);
            DT_ASSERT(v->counted && v->cost.seconds >= before);
            before = v->cost.seconds;
            continue;
        }
        DT_ASSERT(v->reason[0] != '\0');
        DT_ASSERT_EQ_INT(v->kind == DT_VERDICT_RULE, v->rule != NULL);
        if (v->kind == DT_VERDICT_MEMORY) DT_ASSERT(v->number > v->limit);
        if (v->kind == DT_VERDICT_SLOWER) DT_ASSERT(v->number >= v->limit * 0.99);
    }
    DT_ASSERT_EQ_INT(n_ranked, 5);
    dt_search_release(&s);
}

/* As the layers of a Llama lie: products by parameters, attention by heads, blocks by stages. */
DT_TEST(search, groups_of_operators_are_cut_as_their_layers_lie)
{
    static const dt_operator_group want[] = {
        { "embedding", 2, 1, 1, 2 }, { "attention's products", 2, 2, 1, 2 },
        { "attention", 2, 2, 2, 1 }, { "feed-forward", 2, 2, 1, 2 },
        { "norms", 2, 2, 1, 1 },     { "head", 2, 1, 1, 2 },
    };
    const dt_machine m = test_machine(1, 8, 1e9, 1e10, 1e10);
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    dt_search *s = NULL;

    test_model_write(&small, folder);
    o.batch = 8;
    o.sequence = 16;
    o.pp = o.dp = o.tp = 2;
    DT_ASSERT_OK(dt_search_ways(NULL, folder, &m, &o, &s));
    for (size_t i = 0; i < DT_COUNT(want); i++) {
        const dt_operator_group *g = dt_search_group(s, (int)i);
        const bool norms = strcmp(want[i].name, "norms") == 0;
        DT_ASSERT(g != NULL);
        DT_ASSERT_EQ_STR(g->name, want[i].name);
        DT_ASSERT_EQ_INT(g->sample, want[i].sample);
        DT_ASSERT_EQ_INT(g->operators, want[i].operators);
        DT_ASSERT_EQ_INT(g->attribute, norms && dt_search_at(s, 0)->way.sequence_parallel
                                           ? 2
                                           : want[i].attribute);
        DT_ASSERT_EQ_INT(g->parameter, want[i].parameter);
    }
    DT_ASSERT(dt_search_group(s, (int)DT_COUNT(want)) == NULL && dt_search_group(s, -1) == NULL);
    DT_ASSERT(dt_search_group(NULL, 0) == NULL);
    dt_search_release(&s);
}

/* More than there are: all that fit have a place then, once each and in order. */
DT_TEST(search, all_ways_may_be_asked_for)
{
    const dt_machine m = test_machine(1, 2, 1e9, 1e8, 1e7);
    char folder[DT_TEST_PATH_BYTES];
    double before = 0;
    dt_search *s;
    int64_t n = 0;

    test_model_write(&small, folder);
    s = test_searched(folder, &m, 4, 1000);
    for (const dt_verdict *v; (v = dt_search_at(s, n)) != NULL && v->kind == DT_VERDICT_RANKED;
         n++) {
        DT_ASSERT(v->counted && v->cost.seconds >= before);
        before = v->cost.seconds;
    }
    DT_ASSERT(n > 1 && n < 1000);
    for (const dt_verdict *v; (v = dt_search_at(s, n)) != NULL; n++)
        DT_ASSERT(v->kind != DT_VERDICT_RANKED && v->kind != DT_VERDICT_SLOWER);
    dt_search_release(&s);
}

/* The first rank keeps most passes, the last has the head: neither has as many blocks as the others
 * then, and the largest holds less than with stages by time. */
DT_TEST(search, stages_by_memory_hold_less)
{
    static const test_model deep = { "deep", 64, 128, 4, 2, 16, 96, 64, "float32" };
    const dt_machine m = test_machine(1, 4, 1e9, 1e9, 1e9);
    dt_way w = {
        .pp = 4, .dp = 1, .tp = 1, .schedule = "1f1b", .stages_per_rank = 1, .microbatches = 8
    };
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    dt_way_cost by_time, by_memory;
    const dti_split *split;
    int sum = 0;
    dti_task t;

    test_model_write(&deep, folder);
    o.batch = 64;
    o.sequence = 64;
    DT_ASSERT_OK(dti_task_open(NULL, folder, &m, &o, &t));
    DT_ASSERT_OK(dti_way_count(&t, &w, &by_time));
    DT_ASSERT_OK(dti_stages_by_memory(&t, &w, &w.stages));
    DT_ASSERT(w.stages != NULL);
    DT_ASSERT_OK(dti_way_count(&t, &w, &by_memory));
    DT_ASSERT(by_memory.peak_bytes < by_time.peak_bytes);
    DT_ASSERT_OK(dti_split_of(&t, &w, &split));
    for (int r = 0; r < 4; r++) sum += split->blocks[r];
    DT_ASSERT_EQ_INT(sum, 16);
    DT_ASSERT(split->blocks[0] < split->blocks[2]);
    dti_task_close(&t);
}

DT_TEST(search, what_fits_nowhere_says_which_machine_would_do)
{
    const dt_machine m = test_machine(1, 1, 1.2e5, 1e8, 1e7);
    char folder[DT_TEST_PATH_BYTES], text[DT_REASON_BYTES];
    dt_search *s;

    test_model_write(&small, folder);
    s = test_searched(folder, &m, 8, 1);
    DT_ASSERT(dt_search_at(s, 0)->kind != DT_VERDICT_RANKED);
    DT_ASSERT(dt_search_least_devices(s) > 1);
    DT_ASSERT(strncmp(dt_search_case(s, text), "S", 1) == 0);
    dt_search_release(&s);
}

/* A node has room for the state of its devices, and not for their parameters besides. */
DT_TEST(search, parameters_with_the_host_need_room_there)
{
    dti_task t = { .machine = test_machine(1, 2, 1e9, 1e9, 1e9) };
    dt_verdict v = { .way = { .pp = 1, .dp = 2, .tp = 1, .zero = 2, .offload = true },
                     .cost = { .state_bytes = 100, .weight_bytes = 50, .peak_bytes = 10 } };

    t.machine.figure[DT_FIGURE_HOST_BYTES].value = 250;
    DT_ASSERT(dti_verdict_fits(&t, &v));
    v.way.zero = 3;
    DT_ASSERT(!dti_verdict_fits(&t, &v));
    DT_ASSERT(v.kind == DT_VERDICT_MEMORY && v.number == 300 && v.limit == 250);
    DT_ASSERT(strstr(v.reason, "a host has") != NULL);
}

DT_TEST(search, bad_options_are_refused)
{
    const dt_machine m = test_machine(1, 1, 1e9, 1e8, 1e7), none = { .nodes = 0 };
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    dt_search *s = NULL;

    test_model_write(&small, folder);
    DT_ASSERT_STATUS(dt_search_ways(NULL, folder, &none, &o, &s), DT_ERR_ARG, "machine");
    DT_ASSERT_STATUS(dt_search_ways(NULL, folder, NULL, &o, &s), DT_ERR_ARG, "NULL");
    DT_ASSERT_STATUS(dt_search_ways(NULL, NULL, &m, &o, &s), DT_ERR_ARG, "NULL");
    o.sequence = 65;
    DT_ASSERT_STATUS(dt_search_ways(NULL, folder, &m, &o, &s), DT_ERR_ARG, "context of 64");
    o.sequence = 64;
    o.batch = INT64_MAX;
    DT_ASSERT_STATUS(dt_search_ways(NULL, folder, &m, &o, &s), DT_ERR_ARG, "are possible");
    o.batch = 1;
    o.pp = o.dp = o.tp = 1 << 30; /* more than can be multiplied */
    DT_ASSERT_STATUS(dt_search_ways(NULL, folder, &m, &o, &s), DT_ERR_ARG, "the machine has 1");
    o.pp = o.dp = o.tp = 0;
    o.ep = 2;
    DT_ASSERT_STATUS(dt_search_ways(NULL, folder, &m, &o, &s), DT_ERR_ARG, "the model has none");
    o.ep = 0;
    o.top = 0;
    DT_ASSERT_STATUS(dt_search_ways(NULL, folder, &m, &o, &s), DT_ERR_ARG, "top 0");
    DT_ASSERT(s == NULL && dt_search_at(s, 0) == NULL && dt_search_least_devices(s) == 0);
}
