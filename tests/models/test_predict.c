/* SPDX-License-Identifier: Apache-2.0
 *
 * Predictions against runs: collectives by layer, their bytes, weights, caches and temporaries that
 * dry passes find are, to the byte, what the same passes count in a run, on every rank. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/judge/prediction.h"
#include "tests/support/dt_test.h"

typedef struct predict_case {
    const char *fixture;
    const char *mesh;
    int64_t batch;
    int64_t sequence;
    dt_plan_rule rule; /* or none */
    bool sequence_parallel;
} predict_case;

static const predict_case cases[] = {
    { "llama/uneven", "tp=1", 1, 16, { NULL, NULL }, false },
    { "llama/uneven", "tp=2", 1, 16, { NULL, NULL }, false },
    { "llama/uneven", "tp=3", 2, 7, { NULL, NULL }, false },
    { "llama/tied", "dp=2,tp=2", 3, 5, { NULL, NULL }, false },
    { "llama/biases", "tp=4", 1, 33, { NULL, NULL }, false },
    { "qwen3/uneven", "tp=2", 2, 9, { NULL, NULL }, false },
    { "gpt_neo/base", "tp=2", 1, 12, { NULL, NULL }, false },
    { "gpt_neo/uneven", "tp=3", 2, 1, { NULL, NULL }, false },
    { "llama/uneven", "tp=2", 1, 8, { "model.layers.*.mlp.gate_proj", "replicate" }, false },
    { "llama/uneven", "tp=3", 1, 8, { "lm_head", "colwise_gather_output" }, false },
    { "llama/uneven", "tp=2", 1, 16, { NULL, NULL }, true },
    { "llama/uneven", "tp=3", 2, 7, { NULL, NULL }, true },
    { "qwen3/uneven", "dp=2,tp=2", 3, 5, { NULL, NULL }, true },
    { "gpt_neo/uneven", "tp=4", 1, 2, { NULL, NULL }, true },
    { "llama/biases", "tp=4", 1, 8, { "model.layers.0.input_layernorm", "replicate" }, true },
    { "qwen3_moe/uneven", "tp=3", 1, 9, { NULL, NULL }, false },
    { "qwen3_moe/base", "dp=2,tp=2", 2, 5, { NULL, NULL }, true },
    { "llama/uneven", "pp=2", 1, 16, { NULL, NULL }, false },
    { "llama/uneven", "pp=4", 2, 100, { NULL, NULL }, false },
    { "qwen3/uneven", "pp=2,dp=2", 3, 5, { NULL, NULL }, false },
    { "llama/tied", "tp=2,pp=2", 2, 7, { NULL, NULL }, true },
};

static dt_status same_pass(const char *what, const dt_pass_cost *dry, const dt_pass_cost *real)
{
    DT_EXPECT(dry->n == real->n, "%s: %zu items, not %zu", what, dry->n, real->n);
    for (size_t i = 0; i < dry->n; i++) {
        const dt_traffic *a = &dry->items[i], *b = &real->items[i];
        DT_EXPECT_EQ_STR(a->layer != NULL ? a->layer : "", b->layer != NULL ? b->layer : "");
        DT_EXPECT(a->kind == b->kind && a->dims == b->dims && a->count.calls == b->count.calls,
                  "%s, %s: another collective", what, a->layer);
        DT_EXPECT_EQ_INT(a->count.bytes, b->count.bytes);
    }
    DT_EXPECT(dry->work.flops > 0 && dry->work.flops == real->work.flops,
              "%s: %g operations, not %g", what, dry->work.flops, real->work.flops);
    DT_EXPECT(dry->work.bytes > 0 && dry->work.bytes == real->work.bytes, "%s: %g bytes, not %g",
              what, dry->work.bytes, real->work.bytes);
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        int64_t calls = 0, bytes = 0;
        for (size_t i = 0; i < dry->n; i++)
            if ((int)dry->items[i].kind == k) {
                calls += dry->items[i].count.calls;
                bytes += dry->items[i].count.bytes;
            }
        DT_EXPECT_EQ_INT(dry->total[k].calls, real->total[k].calls);
        DT_EXPECT_EQ_INT(dry->total[k].bytes, real->total[k].bytes);
        DT_EXPECT(calls == dry->total[k].calls && bytes == dry->total[k].bytes, "layers add up");
    }
    return DT_OK;
}

static dt_status measure_run(dt_mesh *mesh, const char *dir, const dt_load_options *load,
                             const predict_case *c, dti_prediction *out)
{
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int64_t held;

    DT_TRY(dt_model_load(mesh, dir, load, &out->model));
    DT_TRY(dt_state_create(out->model, c->batch, c->sequence, &s));
    DT_TRY(dti_measure_pass(t, s, c->sequence, &out->prefill));
    dt_state_rewind(s, c->sequence - 1);
    DT_TRY(dti_measure_pass(t, s, 1, &out->decode));
    DT_TRY(dti_held_bytes(dt_mesh_runtime(mesh), &held));
    out->weight_bytes = dt_model_local_bytes(out->model);
    out->cache_bytes = dti_state_bytes(s);
    out->activation_bytes = held - out->weight_bytes - out->cache_bytes;
    return DT_OK;
}

/* What a stage holds of messages that the next one has not taken yet: of all chunks at most. Pieces
 * of the pool are larger. */
static int64_t under_way(const dt_model *m, const predict_case *c)
{
    const dt_model_info *info = dt_model_info_of(m);
    const int64_t one = info->hidden_size * (int64_t)dt_dtype_size(info->dtype);

    return dt_model_n_stages(m) > 1 ? 2 * c->batch * c->sequence * one + 1024 : 0;
}

static dt_status run_and_compare(dt_mesh *mesh, const void *arg)
{
    const predict_case *c = arg;
    const dt_plan plan = { .rules = &c->rule, .n_rules = c->rule.pattern != NULL, .strict = true };
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dti_prediction dry = { 0 }, real = { 0 };
    dti_predict_options o = { .mesh = c->mesh, .batch = c->batch, .sequence = c->sequence };
    dt_status st = DT_OK;

    load.plan = &plan;
    load.sequence_parallel = c->sequence_parallel;
    o.load = &load;
    o.rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    (void)dt_test_source_path(path, "tests/golden/%s", c->fixture);
    DT_TRY_TO(done, st, dti_predict(path, &o, &dry));
    DT_TRY_TO(done, st, measure_run(mesh, path, &load, c, &real));
    DT_TRY_TO(done, st, same_pass("prompt", &dry.prefill, &real.prefill));
    DT_TRY_TO(done, st, same_pass("step", &dry.decode, &real.decode));
    DT_EXPECT_TO(done, st, dt_mesh_n_ranks(mesh) == 1 || dry.decode.n > 0, "there are collectives");
    DT_EXPECT_TO(done, st, dry.weight_bytes == real.weight_bytes, "weights");
    DT_EXPECT_TO(done, st, dry.cache_bytes == real.cache_bytes, "caches");
    DT_EXPECT_TO(done, st, dry.cache_bytes > 0 || dt_model_n_stages(real.model) > 2, "caches");
    DT_EXPECT_TO(done, st,
                 llabs(real.activation_bytes - dry.activation_bytes) <= under_way(real.model, c),
                 "temporaries: %" PRId64 " bytes, not %" PRId64, dry.activation_bytes,
                 real.activation_bytes);
done:
    dti_prediction_free(&dry);
    dti_free(real.prefill.items);
    dti_free(real.decode.items);
    dt_model_release(&real.model);
    return st;
}

DT_TEST(predict, every_number_is_that_of_a_run)
{
    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks(cases[i].mesh, run_and_compare, &cases[i]);
}

/* "host" is another memory where tensors would lie on a GPU. */
DT_TEST(predict, weights_that_are_offloaded_are_not_held)
{
    char path[DT_TEST_PATH_BYTES], dir[DT_TEST_PATH_BYTES];
    const struct {
        const char *offload, *device;
        bool away;
    } places[] = { { NULL, NULL, false },
                   { "host", NULL, false },
                   { "host", "cuda", true },
                   { dt_test_temp_dir(dir), NULL, true } };
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    int64_t temporaries = 0;

    (void)dt_test_source_path(path, "tests/golden/llama/tied");
    load.fully_shard = "dp";
    for (size_t i = 0; i < DT_COUNT(places); i++) {
        dti_predict_options o = { .mesh = "dp=2", .batch = 1, .sequence = 16, .load = &load };
        DT_ENDS(dti_prediction_free) dti_prediction p;
        load.offload = places[i].offload;
        o.device = places[i].device;
        DT_ASSERT_OK(dti_predict(path, &o, &p));
        DT_ASSERT(dt_model_local_bytes(p.model) > 0);
        DT_ASSERT_EQ_INT(p.weight_bytes, places[i].away ? 0 : dt_model_local_bytes(p.model));
        if (i == 0) temporaries = p.activation_bytes;
        DT_ASSERT(p.activation_bytes > 0 && p.activation_bytes == temporaries);
    }
}

DT_TEST(predict, bad_sizes_are_refused)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dti_predict_options o = { .mesh = "tp=2", .batch = 1, .sequence = 129, .load = &load };
    char path[DT_TEST_PATH_BYTES];
    DT_ENDS(dti_prediction_free) dti_prediction p;

    (void)dt_test_source_path(path, "tests/golden/llama/uneven");
    DT_ASSERT_STATUS(dti_predict(path, &o, &p), DT_ERR_ARG, "129 tokens");
    dti_prediction_free(&p);
    o.sequence = 8, o.batch = 0;
    DT_ASSERT_STATUS(dti_predict(path, &o, &p), DT_ERR_ARG, "a batch of 0");
    dti_prediction_free(&p);
    o.batch = 1, o.rank = 2;
    DT_ASSERT_STATUS(dti_predict(path, &o, &p), DT_ERR_ARG, "ranks 0..1");
    dti_prediction_free(&p);
    o.rank = 0, o.mesh = "tp=";
    DT_ASSERT_STATUS(dti_predict(path, &o, &p), DT_ERR_ARG, "tp");
}

/* One pass stands for many ranks: is it that of each of them? */
static void every_rank_alone(const predict_case *c)
{
    const dt_plan plan = { .rules = &c->rule, .n_rules = c->rule.pattern != NULL, .strict = true };
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dti_predict_options o = {
        .mesh = c->mesh, .batch = c->batch, .sequence = c->sequence, .load = &load
    };
    char path[DT_TEST_PATH_BYTES];
    DT_FREED dt_rank_cost *ranks = NULL;
    DT_ENDS(dti_prediction_free) dti_prediction first;

    load.plan = &plan;
    load.sequence_parallel = c->sequence_parallel;
    (void)dt_test_source_path(path, "tests/golden/%s", c->fixture);
    DT_ASSERT_OK(dti_predict_ranks(path, &o, &first, &ranks));
    for (o.rank = 0; o.rank < dt_mesh_n_ranks(first.mesh); o.rank++) {
        dti_prediction alone;
        dt_rank_cost cost;
        DT_ASSERT_OK(dti_predict(path, &o, &alone));
        cost = dti_prediction_cost(&alone);
        if (memcmp(&cost, &ranks[o.rank], sizeof cost) != 0)
            dt_test_fail(__FILE__, __LINE__, "%s on %s: rank %d costs something else", c->fixture,
                         c->mesh, o.rank);
        dti_prediction_free(&alone);
    }
}

DT_TEST(predict, a_class_of_ranks_costs_what_each_of_them_does)
{
    static const predict_case many[] = {
        { "llama/uneven", "tp=37", 1, 16, { NULL, NULL }, false },
        { "llama/uneven", "dp=3,tp=7", 2, 11, { NULL, NULL }, false },
        { "llama/tied", "dp=5,tp=6", 3, 5, { NULL, NULL }, false },
        { "qwen3/uneven", "tp=13", 2, 9, { NULL, NULL }, false },
        { "gpt_neo/uneven", "tp=5,dp=4", 2, 3, { NULL, NULL }, false },
        { "llama/uneven", "tp=23", 1, 30, { "model.layers.*.mlp.gate_proj", "replicate" }, false },
        { "llama/uneven", "tp=11", 1, 8, { "lm_head", "colwise_gather_output" }, false },
        { "llama/uneven", "tp=9", 2, 31, { "model.layers.*.mlp.down_proj", "colwise" }, false },
        { "llama/uneven", "tp=11", 2, 31, { NULL, NULL }, true },
        { "gpt_neo/uneven", "dp=2,tp=5", 1, 4, { NULL, NULL }, true },
        { "qwen3_moe/uneven", "tp=13", 1, 7, { NULL, NULL }, false },
        { "qwen3_moe/base", "dp=2,tp=8", 1, 7, { NULL, NULL }, false },
        { "qwen3_moe/uneven", "tp=7", 2, 9, { NULL, NULL }, true },
        { "phi3/uneven", "tp=17", 1, 7, { NULL, NULL }, false },
        { "phi3/uneven", "dp=2,tp=5", 2, 9, { NULL, NULL }, true },
        { "phi3/base", "tp=6", 1, 7, { "lm_head", "colwise_gather_output" }, false },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) every_rank_alone(&cases[i]);
    for (size_t i = 0; i < DT_COUNT(many); i++) every_rank_alone(&many[i]);
}

/* --- by a program ----------------------------------------------------------------------------- */

static void name_mine(void *arg, const char *field, char text[DT_OPTION_NAME_BYTES])
{
    (void)snprintf(text, DT_OPTION_NAME_BYTES, "%s %s", (const char *)arg, field);
}

DT_TEST(predict, a_program_asks_for_all_ranks_and_prints_them)
{
    const dt_option_names mine = { name_mine, "my" };
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES], text[8192];
    dt_prediction *p = NULL;

    o.mesh = "tp=2";
    o.sequence = 9;
    o.names = &mine;
    DT_ASSERT_OK(dt_predict(NULL, dt_test_source_path(path, "tests/golden/qwen2/base"), &o, &p));
    DT_ASSERT_EQ_INT(dt_prediction_sequence(p), 9);
    DT_ASSERT_EQ_INT(dt_prediction_batch(p), 1);
    DT_ASSERT(dt_prediction_rank(p, 1) != NULL && dt_prediction_rank(p, 2) == NULL);
    DT_ASSERT_EQ_INT(dt_prediction_rank(p, 0)->weight_bytes,
                     dt_model_local_bytes(dt_prediction_model(p)));
    DT_ASSERT(dt_prediction_prompt(p)->total[DT_COMM_ALL_REDUCE].calls > 0);
    DT_ASSERT(dt_prediction_step(p)->work.flops < dt_prediction_prompt(p)->work.flops);
    DT_ASSERT(dt_prediction_print(p, false, text, sizeof text) < (int)sizeof text);
    DT_ASSERT(strstr(text, "model.layers.*.self_attn.o_proj.weight") != NULL);
    DT_ASSERT(strstr(text, "\ncollectives") != NULL && strstr(text, "\nranks ") != NULL);
    DT_ASSERT_EQ_INT(dt_prediction_print(p, true, NULL, 0),
                     dt_prediction_print(p, true, text, sizeof text));
    dt_prediction_release(&p);
    o.batch = 0;
    DT_ASSERT_STATUS(dt_predict(NULL, path, &o, &p), DT_ERR_ARG, "my batch 0");
    o.batch = 1;
    o.sequence = 1 << 20;
    DT_ASSERT_STATUS(dt_predict(NULL, path, &o, &p), DT_ERR_ARG, "my sequence 1048576 exceeds");
    o.mesh = "tp=2000000";
    DT_ASSERT_STATUS(dt_predict(NULL, path, &o, &p), DT_ERR_ARG, "my mesh: \"tp=2000000\" has");
    DT_ASSERT(p == NULL);
}

/* --- what a plan asks for and does not get ---------------------------------------------------- */

static const dt_plan_rule sent[] = {
    { "model.layers.*.mlp.experts", "ep_dispatch_experts" },
    { "model.layers.*.mlp.experts.*", "grouped_gemm" },
};

/* Of a mixture whose tokens are sent over `plan->dim`, as text and as JSON. */
static void print_sent(const dt_plan *plan, const char *mesh, bool json, char *text, size_t bytes)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_prediction *p = NULL;

    load.plan = plan;
    o.load = &load;
    o.mesh = mesh;
    o.batch = 4;
    DT_ASSERT_OK(
        dt_predict(NULL, dt_test_source_path(path, "tests/golden/qwen3_moe/base"), &o, &p));
    DT_ASSERT(dt_prediction_print(p, json, text, bytes) < (int)bytes);
    dt_prediction_release(&p);
}

/* A style for a point, and none for its experts, cuts nothing. */
DT_TEST(predict, dims_over_which_nothing_is_cut_are_said)
{
    static const char *const meshes[] = { "ep=2", "ep=3,tp=2", "dp=2,ep=2", "pp=2,ep=2" };
    static char text[1 << 16];

    for (size_t i = 0; i < 2 * DT_COUNT(meshes); i++) {
        const bool idle = i % 2 == 0 && strstr(meshes[i / 2], "pp") == NULL;
        const dt_plan plan = { .rules = sent, .n_rules = 1 + i % 2, .source = "mine", .dim = "ep" };
        print_sent(&plan, meshes[i / 2], false, text, sizeof text);
        DT_ASSERT((strstr(text, "nothing is cut over ep: ") != NULL) == idle);
        print_sent(&plan, meshes[i / 2], true, text, sizeof text);
        DT_ASSERT((strstr(text, "\"nothing_cut_over\": \"ep\"") != NULL) == idle);
    }
}

/* Experts over a dim that is named as those of batches are: all its ranks compute all of a batch,
 * which the tables say. Over a dim of its own nothing is to be said. */
DT_TEST(predict, batches_that_styles_keep_whole_are_said)
{
    static const char *const dims[] = { "dp", "ep" };
    static char text[1 << 16];

    for (size_t i = 0; i < DT_COUNT(dims); i++) {
        const dt_plan plan = { .rules = sent, .n_rules = 2, .source = "mine", .dim = dims[i] };
        char mesh[16];
        (void)snprintf(mesh, sizeof mesh, "%s=2", dims[i]);
        print_sent(&plan, mesh, false, text, sizeof text);
        DT_ASSERT((strstr(text, "batches are not cut over dp") != NULL) == (i == 0));
        print_sent(&plan, mesh, true, text, sizeof text);
        DT_ASSERT((strstr(text, "\"whole_batches_over\": \"dp\"") != NULL) == (i == 0));
    }
}
