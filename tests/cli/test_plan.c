/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor plan: what it says of a Llama of 70 B parameters, against arithmetic; and of a small one,
 * against what a run of it says. */
#include <inttypes.h>
#include <jansson.h>

#include "models/judge/prediction.h"
#include "tests/cli/command.h"

static json_t *parse(const command_result *r)
{
    json_error_t error;
    json_t *v = json_loads(r->out, 0, &error);

    if (v == NULL) dt_test_fail(__FILE__, __LINE__, "no JSON (%s): %.200s", error.text, r->out);
    return v;
}

static int64_t integer(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    if (!json_is_integer(v)) dt_test_fail(__FILE__, __LINE__, "%s is no integer", key);
    return json_integer_value(v);
}

static const json_t *find(const json_t *array, const char *key, const char *value)
{
    size_t i;
    json_t *item;

    json_array_foreach(array, i, item)
    {
        const char *text = json_string_value(json_object_get(item, key));
        if (text != NULL && strcmp(text, value) == 0) return item;
    }
    dt_test_fail(__FILE__, __LINE__, "no %s is \"%s\"", key, value);
    return NULL;
}

static const char llama_70b[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 8192, \"intermediate_size\": 28672,"
    " \"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"num_hidden_layers\": 80,"
    " \"vocab_size\": 128256, \"max_position_embeddings\": 8192, \"rope_theta\": 500000.0,"
    " \"rms_norm_eps\": 1e-05, \"torch_dtype\": \"bfloat16\", \"tie_word_embeddings\": false}";

enum { D = 8192, F = 28672, KV = 1024, V = 128256, L = 80, TP = 8, T = 4096, B = 3 };

/* `dtensor plan` of the large Llama on `mesh`, with another option. */
static json_t *plan_large_with(const char *mesh, const char *option)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r;
    json_t *v;

    dt_test_write_file(dt_test_temp_dir(folder), "config.json", llama_70b, sizeof llama_70b - 1);
    r = COMMAND_ENDS(0, COMMAND("plan", "--model", folder, "--mesh", mesh, "--batch", "3",
                                "--sequence", "4096", "--json", option));
    v = parse(&r);
    return v;
}

static json_t *plan_large(const char *mesh)
{
    return plan_large_with(mesh, "--quiet");
}

DT_TEST(plan, memory_of_a_large_llama_by_arithmetic)
{
    const int64_t cut =
        (int64_t)2 * V * D + (int64_t)L * (2 * D * D + 2 * KV * D + 3 * (int64_t)F * D);
    const int64_t whole = (int64_t)(2 * L + 1) * D;
    json_t *v = plan_large("dp=4,tp=8");
    const json_t *item, *ranks = json_object_get(v, "ranks");

    DT_ASSERT_EQ_INT(integer(v, "parameters"), cut + whole);
    DT_ASSERT_EQ_INT(json_array_size(ranks), 32);
    for (size_t i = 0; i < 32; i++) {
        const json_t *one = json_array_get(ranks, i);
        const int64_t rows = i < 3 * TP ? 1 : 0; /* of the 3 sequences: the last of "dp" has none */
        DT_ASSERT_EQ_INT(integer(one, "rank"), i);
        DT_ASSERT_EQ_INT(integer(one, "weight_bytes"), 2 * (cut / TP + whole));
        DT_ASSERT_EQ_INT(integer(one, "cache_bytes"), 2 * L * rows * T * (KV / TP) * 2);
        DT_ASSERT(integer(one, "activation_bytes") > rows * T * D * 2);
        DT_ASSERT(integer(one, "activation_bytes") < (int64_t)T * D * L); /* not per block */
    }
    item = find(json_object_get(v, "layout"), "name", "model.layers.79.mlp.down_proj.weight");
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(json_object_get(item, "style"), "tp")),
                     "rowwise");
    DT_ASSERT_EQ_STR(json_string_value(json_array_get(json_object_get(item, "placement"), 1)),
                     "S(1)");
    DT_ASSERT_EQ_INT(json_integer_value(json_array_get(json_object_get(item, "local_shape"), 1)),
                     F / TP);
    DT_ASSERT_EQ_INT(integer(item, "bytes"), (int64_t)2 * D * F / TP);
    json_decref(v);
}

/* Four stages: all that is cut over tp lies on one of them. Ranks get x of the stage before them
 * and, but for those of the last, their columns of the logits. */
DT_TEST(plan, stages_of_a_large_llama_by_arithmetic)
{
    const int64_t cut =
        (int64_t)2 * V * D + (int64_t)L * (2 * D * D + 2 * KV * D + 3 * (int64_t)F * D);
    const int64_t whole = (int64_t)(2 * L + 1) * D, logits = (int64_t)2 * B * V / TP;
    const int64_t x = (int64_t)2 * B * D;
    json_t *v = plan_large("pp=4,tp=8");
    const json_t *ranks = json_object_get(v, "ranks");
    static const char *const passes[] = { "prompt", "step" };
    int64_t weights = 0, caches = 0, received = 0;

    DT_ASSERT_EQ_INT(json_array_size(ranks), 32);
    for (size_t i = 0; i < 32; i++) {
        const json_t *one = json_array_get(ranks, i);
        DT_ASSERT(integer(one, "weight_bytes") < 2 * (cut + whole) / 20);
        weights += integer(one, "weight_bytes");
        caches += integer(one, "cache_bytes");
        if (i % TP == 0) received += integer(one, "step_bytes");
    }
    DT_ASSERT_EQ_INT(weights, 2 * (cut + TP * whole));
    DT_ASSERT_EQ_INT(caches, (int64_t)2 * L * B * T * KV * 2);
    /* terms of blocks in f32, of the embedding in bf16; and of each stage keys of a choice */
    DT_ASSERT_EQ_INT(received, 3 * logits + 3 * x + (4 * L + 1) * 2 * x * (TP - 1) / TP +
                                   4 * 2 * B * 8 * (TP - 1) / TP);
    for (int i = 0; i < 2; i++) {
        const json_t *items = json_object_get(json_object_get(v, passes[i]), "collectives");
        const json_t *item = find(items, "layer", "(from other stages)");
        DT_ASSERT_EQ_STR(json_string_value(json_object_get(item, "kind")), "send");
        DT_ASSERT_EQ_STR(json_string_value(json_object_get(item, "dim")), "pp");
        DT_ASSERT_EQ_INT(integer(item, "ranks"), 4);
        DT_ASSERT_EQ_INT(integer(item, "calls"), 1);
        DT_ASSERT_EQ_INT(integer(item, "bytes"), logits);
    }
    json_decref(v);
}

DT_TEST(plan, collectives_of_a_large_llama_by_arithmetic)
{
    const int64_t row = (int64_t)2 * (TP - 1) * D * 4 / TP; /* of one token; terms are f32 */
    json_t *v = plan_large("tp=8");
    const json_t *pass = json_object_get(v, "prompt"), *item;

    DT_ASSERT_EQ_INT(integer(pass, "tokens"), B * T);
    item = find(json_object_get(pass, "collectives"), "layer", "model.layers.40.self_attn.o_proj");
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(item, "kind")), "all_reduce");
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(item, "dim")), "tp");
    DT_ASSERT_EQ_INT(integer(item, "ranks"), TP);
    DT_ASSERT_EQ_INT(integer(item, "calls"), 1);
    DT_ASSERT_EQ_INT(integer(item, "bytes"), B * T * row);
    item = find(json_object_get(pass, "total"), "kind", "all_reduce");
    DT_ASSERT_EQ_INT(integer(item, "calls"), 2 * L + 2);
    pass = json_object_get(v, "step");
    DT_ASSERT_EQ_INT(integer(pass, "tokens"), B);
    item = find(json_object_get(pass, "collectives"), "layer", "model.layers.0.mlp.down_proj");
    DT_ASSERT_EQ_INT(integer(item, "bytes"), B * row);
    json_decref(v);
}

static const char *style_on_tp(const json_t *item, const char *which)
{
    return json_string_value(json_object_get(json_object_get(item, which), "tp"));
}

static int64_t bytes_of(const json_t *v, const char *pass, const char *layer, const char *kind)
{
    const json_t *all = json_object_get(json_object_get(v, pass), "collectives");
    const json_t *item = find(all, "layer", layer);

    DT_ASSERT_EQ_STR(json_string_value(json_object_get(item, "kind")), kind);
    return integer(item, "bytes");
}

DT_TEST(plan, both_tables_of_a_large_llama_whose_tokens_are_cut)
{
    const int64_t token = (int64_t)(TP - 1) * D / TP; /* elements that a rank lacks of one */
    json_t *v = plan_large_with("tp=8", "--sequence-parallel");
    const json_t *item, *total;

    DT_ASSERT(json_is_true(json_object_get(v, "sequence_parallel")));
    item = find(json_object_get(v, "layout"), "name", "model.layers.79.mlp.down_proj.weight");
    DT_ASSERT_EQ_STR(style_on_tp(item, "style"), "rowwise_reduce_scatter");
    DT_ASSERT_EQ_STR(style_on_tp(item, "step_style"), "rowwise");
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(item, "from")), "built-in");
    item = find(json_object_get(v, "layout"), "name", "model.norm.weight");
    DT_ASSERT_EQ_STR(style_on_tp(item, "style"), "activation");
    DT_ASSERT_EQ_STR(style_on_tp(item, "step_style"), "replicate");
    item = find(json_object_get(v, "points"), "name", "model.layers.0.mlp");
    DT_ASSERT_EQ_STR(style_on_tp(item, "style"), "module_allgather");
    /* what is gathered is bf16, terms are f32 */
    DT_ASSERT_EQ_INT(bytes_of(v, "prompt", "model.layers.3.mlp", "all_gather"), B * T * token * 2);
    DT_ASSERT_EQ_INT(bytes_of(v, "prompt", "model.layers.3.mlp.down_proj", "reduce_scatter"),
                     B * T * token * 4);
    DT_ASSERT_EQ_INT(bytes_of(v, "prompt", "model.embed_tokens", "reduce_scatter"),
                     B * T * token * 2);
    DT_ASSERT_EQ_INT(bytes_of(v, "step", "model.layers.3.mlp.down_proj", "all_reduce"),
                     2 * B * token * 4);
    total = json_object_get(json_object_get(v, "prompt"), "total");
    DT_ASSERT_EQ_INT(integer(find(total, "kind", "reduce_scatter"), "calls"), 2 * L + 1);
    DT_ASSERT_EQ_INT(integer(find(total, "kind", "all_gather"), "calls"), 2 * L);
    json_decref(v);
}

/* --- against the counters of a run ------------------------------------------------------------ */

enum { RUN_BATCH = 2, RUN_TOKENS = 11 };

typedef struct counted_case {
    const char *model;
    bool cut; /* tokens */
    const json_t *plan;
} counted_case;

static int64_t received(const dt_pass_cost *c)
{
    int64_t bytes = 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) bytes += c->total[k].bytes;
    return bytes;
}

/* What the command says of this rank. */
static dt_status expect_said(const counted_case *c, int rank, const char *key, int64_t counted)
{
    const json_t *ranks = json_object_get(c->plan, "ranks");
    const json_t *said = json_object_get(json_array_get(ranks, (size_t)rank), key);

    DT_EXPECT(json_integer_value(said) == counted, "%s of rank %d: %lld, counted %lld", key, rank,
              (long long)json_integer_value(said), (long long)counted);
    return DT_OK;
}

static dt_status count_run(dt_mesh *mesh, const void *arg)
{
    const counted_case *c = arg;
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    dt_pass_cost prompt = { 0 }, step = { 0 };
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    dt_status st = DT_OK;
    dt_model *m = NULL;
    dt_state *s = NULL;
    dt_tape *t = NULL;
    int64_t held, weights;

    o.sequence_parallel = c->cut;
    DT_TRY_TO(done, st, dt_model_load(mesh, c->model, &o, &m));
    DT_TRY_TO(done, st, dt_state_create(m, RUN_BATCH, RUN_TOKENS, &s));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dti_measure_pass(t, s, RUN_TOKENS, &prompt));
    dt_state_rewind(s, RUN_TOKENS - 1);
    DT_TRY_TO(done, st, dti_measure_pass(t, s, 1, &step));
    DT_TRY_TO(done, st, dti_held_bytes(dt_mesh_runtime(mesh), &held));
    weights = dt_model_local_bytes(m);
    DT_TRY_TO(done, st, expect_said(c, rank, "weight_bytes", weights));
    DT_TRY_TO(done, st, expect_said(c, rank, "cache_bytes", dti_state_bytes(s)));
    DT_TRY_TO(done, st,
              expect_said(c, rank, "activation_bytes", held - weights - dti_state_bytes(s)));
    DT_TRY_TO(done, st, expect_said(c, rank, "prompt_bytes", received(&prompt)));
    DT_TRY_TO(done, st, expect_said(c, rank, "step_bytes", received(&step)));
done:
    dti_free(prompt.items);
    dti_free(step.items);
    dt_tape_release(&t);
    dt_state_release(&s);
    dt_model_release(&m);
    return st;
}

DT_TEST(plan, its_numbers_are_the_counters_of_a_run)
{
    static const char *const fixtures[] = { "llama/uneven", "gpt_neo/base", "qwen3_moe/uneven" };
    static const char *const meshes[] = { "tp=2", "tp=3", "dp=2,tp=2" };

    for (size_t i = 0; i < DT_COUNT(fixtures) * DT_COUNT(meshes) * 2; i++) {
        char model[DT_TEST_PATH_BYTES];
        const char *mesh = meshes[i / 2 % DT_COUNT(meshes)];
        counted_case c = { .model = model, .cut = i % 2 == 1 };
        command_result r;
        (void)dt_test_source_path(model, "tests/golden/%s", fixtures[i / 2 / DT_COUNT(meshes)]);
        r = COMMAND_ENDS(0,
                         COMMAND("plan", "-m", model, "--mesh", mesh, "--batch", "2", "--sequence",
                                 "11", "--json", c.cut ? "--sequence-parallel" : "--quiet"));
        c.plan = parse(&r);
        dt_test_on_ranks(mesh, count_run, &c);
        json_decref((json_t *)(uintptr_t)c.plan);
    }
}

/* Experts have three axes: [experts, 2 f, in] and [experts, in, f]. */
static void expect_shape(const json_t *plan, const char *name, const int64_t *global,
                         const int64_t *local)
{
    const json_t *item = find(json_object_get(plan, "layout"), "name", name);
    int64_t bytes = 4;

    DT_ASSERT_EQ_INT(json_array_size(json_object_get(item, "shape")), 3);
    DT_ASSERT_EQ_INT(json_array_size(json_object_get(item, "local_shape")), 3);
    for (size_t a = 0; a < 3; a++) {
        const json_t *here = json_array_get(json_object_get(item, "local_shape"), a);
        DT_ASSERT_EQ_INT(json_integer_value(json_array_get(json_object_get(item, "shape"), a)),
                         global[a]);
        DT_ASSERT_EQ_INT(json_integer_value(here), local[a]);
        bytes *= local[a];
    }
    DT_ASSERT_EQ_INT(integer(item, "bytes"), bytes);
}

DT_TEST(plan, experts_have_three_axes)
{
    enum { EXPERTS = 5, WIDTH = 21, IN = 40 }; /* of tests/golden/qwen3_moe/uneven, in f32 */
    char model[DT_TEST_PATH_BYTES];
    command_result r;
    json_t *v;

    (void)dt_test_source_path(model, "tests/golden/qwen3_moe/uneven");
    r = COMMAND_ENDS(0, COMMAND("plan", "-m", model, "--mesh", "tp=2", "--json"));
    v = parse(&r);
    expect_shape(v, "model.layers.0.mlp.experts.gate_up_proj.weight",
                 (int64_t[]){ EXPERTS, 2 * WIDTH, IN }, (int64_t[]){ EXPERTS, 22, IN });
    expect_shape(v, "model.layers.2.mlp.experts.down_proj.weight",
                 (int64_t[]){ EXPERTS, IN, WIDTH }, (int64_t[]){ EXPERTS, IN, 11 });
    json_decref(v);
}

/* Bytes of tokens that go to their experts nobody knows before a run; of a sum of all they do. */
DT_TEST(plan, says_of_which_tokens_its_bytes_are_the_average)
{
    char model[DT_TEST_PATH_BYTES], plan[DT_TEST_PATH_BYTES];
    command_result r;

    (void)dt_test_source_path(model, "tests/golden/qwen3_moe/base");
    (void)dt_test_source_path(plan, "tests/pages/sent_tokens.json");
    r = COMMAND_ENDS(0, COMMAND("plan", "-m", model, "--mesh", "tp=3", "--sequence", "9",
                                "--sequence-parallel", "--plan", plan));
    COMMAND_ASSERT_HAS(r.out, "model.layers.*.mlp.experts       all_to_all ");
    COMMAND_ASSERT_HAS(r.out, "the average of tokens that choose all experts alike");
    r = COMMAND_ENDS(0, COMMAND("plan", "-m", model, "--mesh", "tp=3", "--sequence", "9"));
    DT_ASSERT(strstr(r.out, "the average of tokens") == NULL);
}

/* --- where a plan comes from ------------------------------------------------------------------ */

/* Where the style of the head comes from, by the plan of a folder that has one of its own. */
static void expect_from(const char *folder, const char *plan, const char *from, const char *style)
{
    command_result r = COMMAND("plan", "-m", folder, "--mesh", "tp=2", "--json", "--plan", plan);
    const json_t *item;
    json_t *v;

    COMMAND_ENDS(0, r);
    v = parse(&r);
    item = find(json_object_get(v, "layout"), "name", "lm_head.weight");
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(item, "from")), from);
    DT_ASSERT_EQ_STR(style_on_tp(item, "style"), style);
    DT_ASSERT_EQ_INT(json_array_size(json_object_get(v, "warnings")),
                     strcmp(from, "checkpoint") == 0);
    json_decref(v);
}

DT_TEST(plan, a_folder_may_have_a_plan_of_its_own)
{
    static const char own[] =
        "{\"tp_plan\": {\"lm_head\": \"colwise_rep\", \"nobody\": \"rowwise\"},";
    static const char mine[] = "{\"lm_head\": \"replicate\"}";
    char folder[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 16],
        text[sizeof own + sizeof llama_70b];

    (void)snprintf(text, sizeof text, "%s%s", own, llama_70b + 1);
    dt_test_write_file(dt_test_temp_dir(folder), "config.json", text, strlen(text));
    dt_test_write_file(folder, "plan.json", mine, sizeof mine - 1);
    (void)snprintf(file, sizeof file, "%s/plan.json", folder);
    expect_from(folder, "auto", "checkpoint", "colwise_gather_output");
    expect_from(folder, "built-in", "built-in", "colwise");
    expect_from(folder, file, "plan", "replicate");
    COMMAND_ENDS(2, COMMAND("plan", "-m", folder, "--mesh", "TP=2", "--plan", "built-in"),
                 "write \"tp=2\"");
}

static const char *from_of(const json_t *plan, const char *name)
{
    return json_string_value(
        json_object_get(find(json_object_get(plan, "layout"), "name", name), "from"));
}

DT_TEST(plan, layers_that_a_plan_leaves_whole_and_tied_ones_say_where_that_comes_from)
{
    static const struct {
        const char *plan, *up, *head, *embed;
    } rows[] = {
        { "{\"mode\": \"manual\", \"strict\": false, \"model.layers.*.mlp.up_proj\": \"colwise\"}",
          "plan", "manual", "manual" },
        { "{\"lm_head\": \"colwise_gather_output\"}", "built-in", "plan", "plan" },
        { "{\"model.embed_tokens\": \"embedding_rowwise\"}", "built-in", "plan", "plan" },
    };
    char model[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 16];

    (void)dt_test_source_path(model, "tests/golden/llama/tied");
    (void)snprintf(file, sizeof file, "%s/plan.json", dt_test_temp_dir(folder));
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        command_result r;
        json_t *v;
        dt_test_write_file(folder, "plan.json", rows[i].plan, strlen(rows[i].plan));
        r = COMMAND_ENDS(0,
                         COMMAND("plan", "-m", model, "--mesh", "tp=2", "--json", "--plan", file));
        v = parse(&r);
        DT_ASSERT_EQ_STR(from_of(v, "model.layers.0.mlp.up_proj.weight"), rows[i].up);
        DT_ASSERT_EQ_STR(from_of(v, "lm_head.weight"), rows[i].head);
        DT_ASSERT_EQ_STR(from_of(v, "model.embed_tokens.weight"), rows[i].embed);
        json_decref(v);
    }
}

DT_TEST(plan, a_run_with_tokens_cut_says_the_same)
{
    char model[DT_TEST_PATH_BYTES];
    command_result a, b;

    (void)dt_test_source_path(model, "tests/golden/qwen3/uneven");
    a = COMMAND("generate", "-m", model, "-t", "1,2,3,4,5", "-n", "6", "--mesh", "tp=3", "-q");
    b = COMMAND("generate", "-m", model, "-t", "1,2,3,4,5", "-n", "6", "--mesh", "tp=3", "-q",
                "--sequence-parallel");
    COMMAND_ENDS(0, a);
    COMMAND_ENDS(0, b);
    DT_ASSERT_EQ_STR(a.out, b.out);
    COMMAND_ENDS(
        0,
        COMMAND("plan", "-m", model, "--mesh", "tp=3", "--sequence-parallel", "--plan", "built-in"),
        "tokens cut", "rowwise_reduce_scatter | rowwise", "model.layers.*.self_attn ");
}

DT_TEST(plan, weights_are_those_that_ranks_of_a_run_hold)
{
    static const char *const meshes[] = { "tp=1", "tp=3", "dp=2,tp=2" };
    char model[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(model, "tests/golden/llama/uneven");
    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        command_result p = COMMAND("plan", "-m", model, "--mesh", meshes[m], "--json");
        command_result g = COMMAND("generate", "-m", model, "-t", "1,2", "-n", "1", "--mesh",
                                   meshes[m], "--json", "-q");
        const json_t *predicted, *held;
        json_t *a, *b;

        COMMAND_ENDS(0, p);
        COMMAND_ENDS(0, g);
        a = parse(&p), b = parse(&g);
        predicted = json_object_get(a, "ranks"), held = json_object_get(b, "ranks");
        DT_ASSERT_EQ_INT(json_array_size(predicted), json_array_size(held));
        for (size_t i = 0; i < json_array_size(held); i++)
            DT_ASSERT_EQ_INT(integer(json_array_get(predicted, i), "weight_bytes"),
                             integer(json_array_get(held, i), "bytes"));
        json_decref(a), json_decref(b);
    }
}

DT_TEST(plan, the_text_has_a_line_for_what_repeats)
{
    static const char plan[] = "{\"model.layers.1.mlp.up_proj\": \"replicate\"}";
    char model[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 16];
    command_result r;

    (void)dt_test_source_path(model, "tests/golden/llama/uneven");
    dt_test_write_file(dt_test_temp_dir(folder), "plan.json", plan, sizeof plan - 1);
    (void)snprintf(file, sizeof file, "%s/plan.json", folder);
    r = COMMAND_ENDS(
        0, COMMAND("plan", "-m", model, "--mesh", "tp=2", "--sequence", "16", "--plan", file),
        "mesh tp=2 of 2 ranks, 1 sequence of 16 tokens, plan ",
        "model.layers.*.mlp.gate_proj.weight                2  colwise",
        "model.layers.*.mlp.up_proj.weight                  1  colwise",
        "model.layers.*.mlp.up_proj.weight                  1  replicate",
        "model.layers.*.self_attn.o_proj  all_reduce");
    COMMAND_ASSERT_HAS(r.out, "\n0 "); /* of 257 rows one rank has 129 */
    COMMAND_ASSERT_HAS(r.out, "\n1 ");
    DT_ASSERT(r.err[0] == '\0');
}

DT_TEST(plan, the_text_tells_what_comes_from_other_stages)
{
    char model[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(model, "tests/golden/llama/uneven");
    (void)COMMAND_ENDS(0, COMMAND("plan", "-m", model, "--mesh", "pp=2,tp=2", "--sequence", "16"),
                       "mesh pp=2,tp=2 of 4 ranks", "\n(from other stages) ", "  send ",
                       "\nranks ");
}

/* A picture takes its own place again, and that of nothing else. */
DT_TEST(plan, a_picture_of_a_schedule_is_written_again)
{
    char model[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 16];

    (void)dt_test_source_path(model, "tests/golden/llama/uneven");
    (void)snprintf(file, sizeof file, "%s/p.svg", dt_test_temp_dir(folder));
    for (int i = 0; i < 2; i++)
        (void)COMMAND_ENDS(0,
                           COMMAND("plan", "-m", model, "--train", "--mesh", "pp=2", "--sequence",
                                   "16", "--picture", file),
                           "1f1b: 2 ranks", "\nrank 0");
    (void)COMMAND_ENDS(2,
                       COMMAND("plan", "-m", model, "--train", "--mesh", "tp=2", "--picture", file),
                       "--picture is of a pipeline, and --mesh tp=2 has no dim \"pp\"");
    (void)COMMAND_ENDS(
        2, COMMAND("plan", "-m", model, "--train", "--mesh", "pp=2", "--picture", "/dev/full"),
        "--picture");
}

DT_TEST(plan, thousands_of_ranks_are_a_few_lines)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r;

    dt_test_write_file(dt_test_temp_dir(folder), "config.json", llama_70b, sizeof llama_70b - 1);
    r = COMMAND_ENDS(0, COMMAND("plan", "-m", folder, "--mesh", "tp=8192"));
    COMMAND_ASSERT_HAS(r.out, "\n0-63                           64 "); /* a query head each */
    COMMAND_ASSERT_HAS(r.out, "\n8016-8191                     176 "); /* no row of the head */
    COMMAND_ENDS(0, COMMAND("plan", "-m", folder, "--mesh", "dp=64,tp=64"), " 4096 ranks, ");
    COMMAND_ENDS(2, COMMAND("plan", "-m", folder, "--mesh", "tp=2000000"),
                 "--mesh: \"tp=2000000\" has 2000000 ranks; a plan is made for at "
                 "most 1048576");
}

/* Weights that are cut block by block make classes of ranks too: each rank alone took minutes. */
DT_TEST(plan, thousands_of_ranks_of_packed_weights_are_a_few_lines)
{
    static const char *const fixtures[] = { "phi3/uneven", "qwen3_moe/uneven" };
    char model[DT_TEST_PATH_BYTES];

    for (size_t i = 0; i < DT_COUNT(fixtures); i++) {
        COMMAND_ENDS(0,
                     COMMAND("plan", "-m",
                             dt_test_source_path(model, "tests/golden/%s", fixtures[i]), "--mesh",
                             "dp=64,tp=256", "--sequence", "4"),
                     " 16384 ranks, ");
    }
}

DT_TEST(plan, bytes_are_counted_as_far_as_63_bits_go)
{
    char folder[DT_TEST_PATH_BYTES], model[DT_TEST_PATH_BYTES];
    command_result r;
    json_t *v;

    (void)dt_test_source_path(model, "tests/golden/llama/uneven");
    r = COMMAND_ENDS(0, COMMAND("plan", "-m", model, "--mesh", "tp=2", "--batch", "1000000000",
                                "--sequence", "128", "--json"));
    v = parse(&r);
    DT_ASSERT(integer(json_array_get(json_object_get(v, "ranks"), 0), "activation_bytes") >
              (int64_t)128 * 96 * 1000000000); /* one activation in bf16 is twice that */
    json_decref(v);
    dt_test_write_file(dt_test_temp_dir(folder), "config.json", llama_70b, sizeof llama_70b - 1);
    COMMAND_ENDS(2,
                 COMMAND("plan", "-m", folder, "--mesh", "tp=8", "--batch", "1000000000",
                         "--sequence", "512"),
                 "--batch 1000000000: with --sequence 512 on 8 ranks this model's bytes "
                 "can be counted for --batch up to 9682549");
    COMMAND_ENDS(0, COMMAND("plan", "-m", folder, "--mesh", "tp=8", "--batch", "9682549",
                            "--sequence", "512", "--json"));
}

DT_TEST(plan, plans_by_name_are_those_of_the_architecture)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r;

    (void)dt_test_source_path(folder, "tests/golden/qwen3/base");
    r = COMMAND_ENDS(0, COMMAND("plan", "-m", folder, "--mesh", "tp=2", "--plan", "nemo+sp"),
                     "plan nemo+sp");
    COMMAND_ASSERT_HAS(r.err, "use_local_output and use_dtensor change nothing");
    (void)dt_test_source_path(folder, "tests/golden/phi3/base");
    COMMAND_ENDS(2, COMMAND("plan", "-m", folder, "--mesh", "tp=2", "--plan", "nemo"),
                 "phi3 has no plan \"nemo\"");
}

/* Two reductions of each half of a block, forward and backward, of 3 x 4096 x 8192 f32: terms of
 * bf16 activations travel as f32. */
DT_TEST(plan, a_training_step_of_a_large_llama_by_arithmetic)
{
    const int64_t sum = (int64_t)B * T * D * 4 * 2 * (TP - 1) / TP;
    json_t *v = plan_large_with("tp=8", "--train"), *rank, *part;

    DT_ASSERT_EQ_INT(json_array_size(json_object_get(v, "ranks")), TP);
    rank = json_array_get(json_object_get(v, "ranks"), 0);
    DT_ASSERT_EQ_INT(integer(rank, "gradient_bytes"), 2 * integer(rank, "weight_bytes"));
    part = json_object_get(json_object_get(rank, "backward"), "all_reduce");
    DT_ASSERT_EQ_INT(integer(part, "calls"), 2 * L + 1);
    DT_ASSERT_EQ_INT(integer(part, "bytes"), (2 * L + 1) * sum);
    DT_ASSERT_EQ_INT(integer(json_object_get(rank, "gradients"), "bytes"), 0);
    json_decref(v);
}

DT_TEST(plan, options_of_a_training_step_want_one)
{
    char model[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(model, "tests/golden/llama/uneven");
    COMMAND_ENDS(2, COMMAND("plan", "--model", model, "--mesh", "tp=2", "--recompute", "blocks"),
                 "--recompute is of a training step; give --train as well");
    COMMAND_ENDS(
        2, COMMAND("plan", "--model", model, "--mesh", "tp=2", "--train", "--recompute", "all"),
        "--recompute: \"all\" is unknown; choose none, selective");
}
