/* SPDX-License-Identifier: Apache-2.0
 *
 * What plans call exact is what their steps count: bytes that a rank receives, operations, and the
 * most that it holds, over a grid of ways on up to eight ranks of three architectures. */
#include <dtensor/calibrate.h>
#include <math.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "tests/planner/ways.h"

enum { BATCH = 8, TOKENS = 16, MOST_RANKS = 8 };

#define PLAIN DT_RECOMPUTED_NOTHING
#define CHEAP DT_RECOMPUTED_CHEAP
#define AGAIN DT_RECOMPUTED_BLOCKS

/* pp, dp, tp, zero, tokens cut, offload, recompute, schedule, stages of a rank, microbatches, ep,
 * ends, tiles, chunk, stages */
#define WAY(pp, dp, tp, zero, sp, recompute, m)                                         \
    {                                                                                   \
        pp, dp, tp, zero, sp, false, recompute, NULL, 1, m, 0, false, 0, 0, NULL, false \
    }
#define PIPE(pp, dp, tp, zero, sp, recompute, schedule, v, m)                               \
    {                                                                                       \
        pp, dp, tp, zero, sp, false, recompute, schedule, v, m, 0, false, 0, 0, NULL, false \
    }

static const dt_way ways[] = {
    WAY(1, 1, 1, 0, false, PLAIN, 1),
    WAY(1, 1, 1, 0, false, CHEAP, 2),
    WAY(1, 1, 1, 0, false, AGAIN, 4),
    WAY(1, 2, 1, 0, false, PLAIN, 1),
    WAY(1, 2, 1, 0, false, AGAIN, 2),
    WAY(1, 2, 1, 1, false, PLAIN, 2),
    WAY(1, 2, 1, 1, false, CHEAP, 4),
    WAY(1, 2, 1, 2, false, PLAIN, 1),
    WAY(1, 2, 1, 2, false, AGAIN, 4),
    WAY(1, 2, 1, 3, false, PLAIN, 1),
    WAY(1, 2, 1, 3, false, CHEAP, 2),
    WAY(1, 2, 1, 3, false, AGAIN, 4),
    WAY(1, 4, 1, 0, false, PLAIN, 2),
    WAY(1, 4, 1, 1, false, AGAIN, 1),
    WAY(1, 4, 1, 2, false, CHEAP, 2),
    WAY(1, 4, 1, 3, false, PLAIN, 2),
    WAY(1, 8, 1, 0, false, PLAIN, 1),
    WAY(1, 8, 1, 1, false, PLAIN, 1),
    WAY(1, 8, 1, 2, false, PLAIN, 1),
    WAY(1, 8, 1, 3, false, AGAIN, 1),
    WAY(1, 1, 2, 0, false, PLAIN, 1),
    WAY(1, 1, 2, 0, true, PLAIN, 2),
    WAY(1, 1, 2, 0, true, CHEAP, 1),
    WAY(1, 1, 2, 0, false, AGAIN, 8),
    WAY(1, 2, 2, 0, false, PLAIN, 1),
    WAY(1, 2, 2, 0, true, AGAIN, 2),
    WAY(1, 2, 2, 1, true, PLAIN, 2),
    WAY(1, 2, 2, 2, false, PLAIN, 2),
    WAY(1, 2, 2, 3, true, CHEAP, 1),
    WAY(1, 2, 2, 3, false, PLAIN, 4),
    WAY(1, 4, 2, 0, true, PLAIN, 1),
    WAY(1, 4, 2, 1, false, AGAIN, 2),
    WAY(1, 4, 2, 2, true, PLAIN, 1),
    WAY(1, 4, 2, 3, false, PLAIN, 2),
    PIPE(2, 1, 1, 0, false, PLAIN, "1f1b", 1, 2),
    PIPE(2, 1, 1, 0, false, PLAIN, "1f1b", 1, 8),
    PIPE(2, 1, 1, 0, false, AGAIN, "1f1b", 1, 4),
    PIPE(2, 1, 1, 0, false, CHEAP, "zb-h1", 1, 4),
    PIPE(2, 1, 1, 0, false, PLAIN, "zb-h1", 1, 8),
    PIPE(2, 1, 1, 0, false, AGAIN, "zb-h1", 1, 2),
    PIPE(2, 2, 1, 0, false, PLAIN, "1f1b", 1, 4),
    PIPE(2, 2, 1, 1, false, PLAIN, "1f1b", 1, 2),
    PIPE(2, 2, 1, 1, false, AGAIN, "zb-h1", 1, 4),
    PIPE(2, 2, 1, 1, false, CHEAP, "1f1b", 1, 2),
    PIPE(2, 4, 1, 0, false, PLAIN, "1f1b", 1, 2),
    PIPE(2, 4, 1, 1, false, PLAIN, "zb-h1", 1, 2),
    PIPE(2, 1, 2, 0, false, PLAIN, "1f1b", 1, 4),
    PIPE(2, 1, 2, 0, true, PLAIN, "1f1b", 1, 2),
    PIPE(2, 1, 2, 0, true, AGAIN, "zb-h1", 1, 8),
    PIPE(2, 2, 2, 0, true, PLAIN, "1f1b", 1, 2),
    PIPE(2, 2, 2, 1, false, PLAIN, "1f1b", 1, 4),
    PIPE(2, 2, 2, 1, true, CHEAP, "zb-h1", 1, 4),
    PIPE(4, 1, 1, 0, false, PLAIN, "1f1b", 1, 4),
    PIPE(4, 1, 1, 0, false, AGAIN, "1f1b", 1, 8),
    PIPE(4, 1, 1, 0, false, PLAIN, "zb-h1", 1, 8),
    PIPE(4, 2, 1, 0, false, PLAIN, "1f1b", 1, 4),
    PIPE(4, 2, 1, 1, false, CHEAP, "zb-h1", 1, 4),
    PIPE(4, 1, 2, 0, true, PLAIN, "1f1b", 1, 4),
    /* ends that are sharded, tiles, chunks */
    { 1, 2, 1, 0, false, false, PLAIN, NULL, 1, 2, 0, true, 0, 0, NULL, false },
    { 1, 2, 2, 1, false, false, PLAIN, NULL, 1, 1, 0, true, 0, 0, NULL, false },
    { 1, 4, 1, 2, false, false, AGAIN, NULL, 1, 1, 0, true, 0, 4, NULL, false },
    { 1, 2, 1, 3, false, false, PLAIN, NULL, 1, 1, 0, false, 4, 0, NULL, false },
    { 1, 2, 2, 3, false, false, PLAIN, NULL, 1, 2, 0, false, 4, 8, NULL, false },
    { 1, 1, 1, 0, false, false, PLAIN, NULL, 1, 2, 0, false, 0, 4, NULL, false },
};

/* Of experts alone: on a dim of their own. */
static const dt_way expert_ways[] = {
    { 1, 1, 1, 0, false, false, PLAIN, NULL, 1, 2, 2, false, 0, 0, NULL, false },
    { 1, 2, 1, 1, false, false, AGAIN, NULL, 1, 1, 2, false, 0, 0, NULL, false },
    { 1, 1, 2, 0, true, false, PLAIN, NULL, 1, 1, 2, false, 0, 0, NULL, false },
    { 1, 2, 2, 3, false, false, PLAIN, NULL, 1, 1, 2, false, 0, 0, NULL, false },
    { 2, 1, 1, 0, false, false, PLAIN, "1f1b", 1, 4, 2, false, 0, 0, NULL, false },
    /* tokens that go to them: over ep, and where they are cut over tp */
    { 1, 1, 1, 0, false, false, PLAIN, NULL, 1, 2, 4, false, 0, 0, NULL, true },
    { 1, 1, 2, 1, true, false, AGAIN, NULL, 1, 1, 2, false, 0, 0, NULL, true },
    { 1, 2, 2, 1, true, false, PLAIN, NULL, 1, 2, 0, false, 0, 0, NULL, true },
    { 1, 2, 1, 3, false, false, PLAIN, NULL, 1, 1, 2, false, 4, 0, NULL, true },
    { 1, 2, 2, 3, true, false, PLAIN, NULL, 1, 1, 0, false, 4, 0, NULL, true },
    { 2, 1, 2, 0, true, false, PLAIN, "1f1b", 1, 4, 0, false, 0, 0, NULL, true },
};

/* What tokens choose decides what they send, and hold on their way: at most what is said. */
static bool within(const dt_way_cost *c, const dti_tried *most)
{
    const int64_t bytes = c->inside_bytes + c->between_bytes;

    return most->bytes <= bytes + c->more_bytes && most->bytes >= bytes / 2 &&
           c->flops == most->flops && most->peak_bytes <= c->peak_bytes;
}

/* The most of the first rank of each stage, as dti_way_count() has it: where pieces are uneven,
 * others have fewer and receive more. Of a pipeline a run may hold messages that others have not
 * asked for yet, or one less. */
static void compare(const dti_task *t, const dt_way *w)
{
    const double message = (double)(dti_way_rows(t, w) * t->o.sequence * t->info.hidden_size * 4);
    dti_tried seen[MOST_RANKS] = { { 0 } }, most = { 0 };
    double seconds;
    dt_way_cost c;

    DT_ASSERT_OK(dti_way_count((dti_task *)(uintptr_t)t, w, &c));
    DT_ASSERT_OK(dti_way_try(t, w, NULL, 1, &seconds, seen));
    for (int r = 0; r < w->pp * dti_way_place(w); r += dti_way_place(w)) {
        most.bytes = dti_max(most.bytes, seen[r].bytes);
        most.peak_bytes = dti_max(most.peak_bytes, seen[r].peak_bytes);
        most.flops = fmax(most.flops, seen[r].flops);
    }
    if (c.more_bytes > 0
            ? !within(&c, &most)
            : c.inside_bytes + c.between_bytes != most.bytes || c.flops != most.flops ||
                  fabs((double)(c.peak_bytes - most.peak_bytes)) >
                      (w->pp > 1 ? 2 * w->stages_per_rank * message : 0)) {
        char mesh[DTI_MESH_BYTES];
        dt_test_fail(__FILE__, __LINE__,
                     "%s: %s zero %d, sp %d, recompute %d, %s of %d, %lld microbatches, ends %d, "
                     "tiles %d, chunk %lld: received %lld, not %lld; %.0f, not %.0f operations; "
                     "held %lld, not %lld bytes",
                     t->info.model_type, dti_way_mesh(w, mesh), w->zero, w->sequence_parallel,
                     (int)w->recompute, w->schedule != NULL ? w->schedule : "no pipeline",
                     w->stages_per_rank, (long long)w->microbatches, (int)w->ends, w->tiles,
                     (long long)w->chunk, (long long)most.bytes,
                     (long long)(c.inside_bytes + c.between_bytes), most.flops, c.flops,
                     (long long)most.peak_bytes, (long long)c.peak_bytes);
    }
}

/* Four blocks of 32 each. */
static const char *const configs[] = {
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 64,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_hidden_layers\": 4,"
    " \"vocab_size\": 64, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-05,"
    " \"torch_dtype\": \"float32\", \"tie_word_embeddings\": false}",
    "{\"model_type\": \"gpt_neo\", \"hidden_size\": 32, \"num_heads\": 4, \"num_layers\": 4,"
    " \"vocab_size\": 64, \"max_position_embeddings\": 64, \"intermediate_size\": 128,"
    " \"attention_types\": [[[\"global\", \"local\"], 2]], \"activation_function\": \"gelu_new\","
    " \"layer_norm_epsilon\": 1e-05, \"window_size\": 8, \"torch_dtype\": \"float32\","
    " \"tie_word_embeddings\": true}",
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 32, \"intermediate_size\": 64,"
    " \"moe_intermediate_size\": 16, \"num_local_experts\": 4, \"num_experts_per_tok\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8,"
    " \"num_hidden_layers\": 4, \"vocab_size\": 64, \"max_position_embeddings\": 64,"
    " \"rms_norm_eps\": 1e-06, \"hidden_act\": \"silu\", \"norm_topk_prob\": true,"
    " \"torch_dtype\": \"float32\", \"tie_word_embeddings\": false}",
};
enum { LLAMA, GPT_NEO, QWEN3_MOE };

/* Every `step`th way; those that the model's rules forbid are none. */
static int run_ways(int config, const dt_way *list, size_t n, size_t step)
{
    dt_machine m = test_machine(1, 1, 1e9, 1e9, 1e9);
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    int n_run = 0;
    dti_task t;

    o.batch = BATCH;
    o.sequence = TOKENS;
    m.threads = 1;
    dt_test_write_file(dt_test_temp_dir(folder), "config.json", configs[config],
                       strlen(configs[config]));
    DT_ASSERT_OK(dti_task_open(NULL, folder, &m, &o, &t));
    for (size_t i = 0; i < n; i += step) {
        dt_verdict v = { .way = list[i] };
        bool forbidden = false;
        m.devices_per_node = list[i].pp * dti_way_place(&list[i]);
        t.machine = m;
        for (int level = DTI_TP; level <= DTI_REST; level++)
            forbidden = forbidden || dti_rule_breaks(&t, (dti_level)level, &v);
        if (forbidden) continue;
        compare(&t, &list[i]);
        n_run++;
    }
    dti_task_close(&t);
    return n_run;
}

DT_TEST(counters, of_runs_are_what_plans_call_exact)
{
    DT_ASSERT_EQ_INT(run_ways(LLAMA, ways, DT_COUNT(ways), 9), (DT_COUNT(ways) + 8) / 9);
    DT_ASSERT_EQ_INT(run_ways(QWEN3_MOE, expert_ways, DT_COUNT(expert_ways), 2), 6);
}

/* 60 ways and more on each of three architectures. */
DT_TEST(counters, of_all_ways_on_three_architectures_are_what_plans_call_exact)
{
    dt_test_long();
    DT_ASSERT(DT_COUNT(ways) >= 60);
    for (int c = LLAMA; c <= QWEN3_MOE; c++)
        DT_ASSERT_EQ_INT(run_ways(c, ways, DT_COUNT(ways), 1), DT_COUNT(ways));
    (void)run_ways(QWEN3_MOE, expert_ways, DT_COUNT(expert_ways), 1);
}
