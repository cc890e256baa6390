/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies: what they come to is what the built-in plan says, what they change is as if the file
 * had been so, and what is wrong with one is said by its name. test_golden.c runs models with them.
 */
#include <dtensor/architectures.h>
#include <dtensor/models.h>
#include <dtensor/ops.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parallel_styles/layer_rules.h"
#include "tests/support/dt_test.h"

enum { N_IDS = 5, MAX_VOCAB = 512 };

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
static const int32_t ids[N_IDS] = { 1, 7, 3, 11, 2 };

/* A policy of one's own, the folder it is used on, and what should come of it. */
typedef struct scene {
    const char *fixture;
    const dt_policy *const *policies;
    int n;
    const dt_plan *plan;
    const char *message; /* of the refusal */
    bool cut_tokens;     /* between blocks */
    int ruled;           /* layers of a block that get their style from it */
} scene;

static const char *folder_of(const char *fixture, char path[DT_TEST_PATH_BYTES])
{
    if (fixture[0] == '/') return fixture;
    return dt_test_source_path(path, "tests/golden/%s", fixture);
}

static dt_status load(dt_mesh *mesh, const scene *s, dt_model **out)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];

    options.policies = s->policies;
    options.n_policies = s->n;
    options.plan = s->plan;
    options.sequence_parallel = s->cut_tokens;
    return dt_model_load(mesh, folder_of(s->fixture, path), &options, out);
}

/* The last row of logits after `ids`. */
static dt_status last_logits(dt_model *model, float *to)
{
    DT_HELD(tape) *tape = NULL;
    DT_HELD(state) *state = NULL;
    DT_HELD(tensor) *full = NULL;
    dt_tensor *logits;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(model)), &tape));
    DT_TRY(dt_state_create(model, 1, N_IDS, &state));
    logits =
        dt_cast(tape, dt_model_forward(tape, model, state, ids, N_IDS, DT_LOGITS_LAST), DT_F32);
    DT_TRY(dt_tape_status(tape));
    DT_EXPECT(dt_tensor_extent(logits, -1) <= MAX_VOCAB, "vocabulary");
    DT_TRY(dt_full_tensor(logits, &full));
    memcpy(to, dt_tensor_local(full)->data, (size_t)dt_tensor_extent(full, -1) * sizeof *to);
    return DT_OK;
}

static dt_status logits_with(dt_mesh *mesh, const scene *s, float *to)
{
    dt_model *model = NULL;
    dt_status st;

    DT_TRY(load(mesh, s, &model));
    st = last_logits(model, to);
    dt_model_release(&model);
    return st;
}

/* --- what a policy comes to ------------------------------------------------------------------- */

static dt_status same_layouts(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg, plain = { .fixture = s->fixture, .cut_tokens = s->cut_tokens };
    DT_HELD(model) *mine = NULL, *builtin = NULL;
    int ruled = 0, wanted;

    DT_TRY(load(mesh, s, &mine));
    DT_TRY(load(mesh, &plain, &builtin));
    wanted = s->ruled * (int)dt_model_info_of(mine)->n_layers;
    for (int i = 0; i < dt_layers_count(dt_model_layers(mine)); i++) {
        const dt_layer *a = dt_layers_at(dt_model_layers(mine), i);
        const dt_layer *b = dt_layers_at(dt_model_layers(builtin), i);
        ruled += dt_layer_rule_on(a, 0) >= 0;
        if (strstr(dt_layer_name(a), "mlp.experts.down_proj") != NULL &&
            dt_layer_extent(a, 'i') > 0)
            wanted -= 3; /* gate, up and down, which a block with experts has not */
        if (strstr(dt_layer_name(a), "linear_attn.out_proj") != NULL)
            wanted -= 1; /* q, k and v come of one product, decays and the rest of another */
        DT_EXPECT(dt_layer_style(a) == dt_layer_style(b), "%s is %s, not %s", dt_layer_name(a),
                  dt_layer_style(a)->name, dt_layer_style(b)->name);
        for (int p = 0; p < dt_layer_n_params(a); p++)
            DT_EXPECT(dt_layer_param_layout(a, p) == dt_layer_param_layout(b, p), "%s",
                      dt_layer_name(a));
    }
    DT_EXPECT(ruled == wanted, "the policy chose %d styles of %d", ruled, wanted);
    return DT_OK;
}

DT_TEST(policies, those_of_the_library_say_what_the_builtin_plans_say)
{
    static const struct {
        const char *fixture, *name;
        int ruled;
    } rows[] = { { "llama/uneven", "LlamaForCausalLM", 7 },
                 { "llama/biases", "LlamaDecoderLayer", 7 },
                 { "qwen2/base", "qwen2", 7 },
                 { "qwen3/base", "qwen3", 7 },
                 { "qwen3_moe/base", "qwen3_moe", 7 },
                 { "qwen3_moe/uneven", "Qwen3MoeDecoderLayer", 7 },
                 { "gemma3/base", "gemma3_text", 7 },
                 { "gemma3/multimodal", "gemma3", 7 },
                 { "mistral/uneven", "mistral", 7 },
                 { "mistral/multimodal", "mistral3", 7 },
                 { "mixtral/base", "MixtralDecoderLayer", 7 },
                 { "smollm3/uneven", "SmolLM3DecoderLayer", 7 },
                 { "gemma2/uneven", "gemma2", 7 },
                 { "phi3/uneven", "Phi3DecoderLayer", 4 },
                 { "gpt2/base", "gpt2", 4 },
                 { "gpt_bigcode/base", "GPTBigCodeBlock", 4 },
                 { "gpt_neox/odd", "gpt_neox", 4 },
                 { "falcon/base", "FalconDecoderLayer", 4 },
                 { "falcon/first", "falcon", 4 },
                 { "phi/base", "phi", 6 },
                 { "glm4/base", "glm4", 6 },
                 { "gptj/base", "GPTJBlock", 6 },
                 { "cohere2/base", "cohere2", 7 },
                 { "olmo2/uneven", "olmo2", 7 },
                 { "glm4_moe/base", "glm4_moe", 7 },
                 { "deepseek_v3/base", "deepseek_v3", 6 },
                 { "deepseek_v3/uneven", "DeepseekV3DecoderLayer", 6 },
                 { "qwen3_next/base", "qwen3_next", 7 },
                 { "qwen3_next/uneven", "Qwen3NextDecoderLayer", 7 },
                 { "ministral3/uneven", "ministral3", 7 },
                 { "gpt_oss/uneven", "gpt_oss", 7 },
                 { "gpt_neo/base", "GPTNeoBlock", 6 } };
    const dt_policy *p;

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        DT_ASSERT_OK(dt_policy_find(rows[i].name, &p));
        for (size_t m = 0; m < 2 * DT_COUNT(meshes); m++)
            dt_test_on_ranks(meshes[m / 2], same_layouts,
                             &(scene){ .fixture = rows[i].fixture,
                                       .policies = &p,
                                       .n = 1,
                                       .cut_tokens = m % 2 != 0,
                                       .ruled = rows[i].ruled });
    }
    DT_ASSERT_STATUS(dt_policy_find("BertLayer", &p), DT_ERR_ARG, "there are: llama (LlamaDecoder");
}

/* A list of policies, paths in brackets, blocks by their names, another style, a plan beside it. */
static const dt_policy_layer some_qkv[] = {
    { .weight = "self_attn.q_proj.weight", .bias = NULL },
    { .weight = "self_attn.k_proj.weight" },
    { .weight = "self_attn.no_such.weight", .ignore_checker = true },
};
static const dt_policy_layer all_of_mlp[] = {
    { .weight = "mlp.gate_proj.weight" },
    { .weight = "mlp.up_proj.weight", .replace = "colwise" },
    { .weight = "mlp[gate_proj].weight" },
};

static dt_status mixes(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    DT_HELD(model) *model = NULL;
    dt_layers *layers;

    DT_TRY(load(mesh, s, &model));
    layers = dt_model_layers(model);
    DT_EXPECT(dt_layer_rule_on(dt_layers_find(layers, "model.layers.1.mlp.up_proj"), 0) >= 0,
              "up_proj");
    DT_EXPECT(strcmp(dt_layer_style(dt_layers_find(layers, "lm_head"))->name,
                     "colwise_gather_output") == 0,
              "the plan's rule");
    DT_EXPECT(dt_layer_rule_on(dt_layers_find(layers, "model.layers.0.self_attn.v_proj"), 0) < 0,
              "v_proj has no rule");
    return DT_OK;
}

DT_TEST(policies, lists_of_them_mix_with_a_plan)
{
    static const dt_policy attention = { .size = sizeof attention,
                                         .original_layer_class = "LlamaDecoderLayer",
                                         .attn_qkv = { DT_POLICY_LIST(some_qkv) } };
    static const dt_policy mlp = { .size = sizeof mlp,
                                   .original_layer_class = "model.layers.*",
                                   .mlp_in = { DT_POLICY_LIST(all_of_mlp) } };
    static const dt_policy *const both[] = { &attention, &mlp };
    static const dt_plan_rule rule = { "lm_head", "colwise_gather_output" };
    static const dt_plan plan = { .rules = &rule, .n_rules = 1, .strict = true };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        dt_test_on_ranks(
            meshes[m], mixes,
            &(scene){ .fixture = "llama/uneven", .policies = both, .n = 2, .plan = &plan });
}

/* --- what is refused -------------------------------------------------------------------------- */

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    dt_model *model = NULL;
    char path[DT_TEST_PATH_BYTES];
    dt_load_options options = DT_LOAD_OPTIONS_INIT;

    options.policies = s->policies;
    options.n_policies = s->n;
    DT_EXPECT_STATUS(dt_model_check(mesh, folder_of(s->fixture, path), &options), DT_ERR_ARG,
                     s->message);
    DT_EXPECT_STATUS(load(mesh, s, &model), DT_ERR_ARG, s->message);
    DT_EXPECT(model == NULL, "no model");
    return DT_OK;
}

static void refuse(const dt_policy *p, const char *message)
{
    dt_test_on_ranks(
        "tp=1", refused,
        &(scene){ .fixture = "llama/uneven", .policies = &p, .n = 1, .message = message });
    dt_test_on_ranks(
        "tp=2", refused,
        &(scene){ .fixture = "llama/uneven", .policies = &p, .n = 1, .message = message });
}

/* One entry in attn_qkv. */
static void refuse_layer(dt_policy_layer layer, const char *message)
{
    const dt_policy p = { .size = sizeof p,
                          .name = "mine",
                          .original_layer_class = "LlamaDecoderLayer",
                          .attn_qkv = { &layer, 1 } };

    refuse(&p, message);
}

DT_TEST(policies, a_wrong_one_is_refused_by_name)
{
    refuse(&(dt_policy){ .size = sizeof(dt_policy), .name = "mine" },
           "policy 0 of 1 has no original_layer_class");
    refuse(&(dt_policy){ .name = "mine" }, "dt_policy.size is 0");
    refuse(
        &(dt_policy){ .size = sizeof(dt_policy), .original_layer_class = "BertLayer" },
        "policy \"BertLayer\" matches nothing: \"BertLayer\" is no block of a llama model, whose "
        "blocks are LlamaDecoderLayer (model.layers.*)");
    refuse(&(dt_policy){ .size = sizeof(dt_policy), .original_layer_class = "model.block.*" },
           "matches nothing");
    refuse(&(dt_policy){ .size = sizeof(dt_policy),
                         .original_layer_class = "LlamaDecoderLayer",
                         .mlp_in = { NULL, 2 } },
           "mlp_in is a list of 2 layers");
    refuse(&(dt_policy){ .size = sizeof(dt_policy), .original_layer_class = "LlamaDecoderLayer" },
           "policy \"LlamaDecoderLayer\" changes nothing");
    refuse(NULL, "policy 0 of 1 is NULL");
}

DT_TEST(policies, a_wrong_layer_is_refused_by_place)
{
    refuse_layer((dt_policy_layer){ .replace = "colwise" },
                 "policy \"mine\", attn_qkv[0]: it names neither a weight nor a bias");
    refuse_layer(
        (dt_policy_layer){ .weight = "self_attn.query.weight" },
        "policy \"mine\", attn_qkv[0]: \"self_attn.query.weight\" is not in model.layers.0, "
        "whose layers are input_layernorm, self_attn.q_proj, self_attn.k_proj");
    refuse_layer((dt_policy_layer){ .weight = "self_attn.q_proj" }, "does not end in \".weight\"");
    refuse_layer(
        (dt_policy_layer){ .weight = "self_attn.q_proj.weight", .bias = "self_attn.q_proj.bias" },
        "model.layers.0.self_attn.q_proj has no bias");
    refuse_layer(
        (dt_policy_layer){ .weight = "self_attn.q_proj.weight", .bias = "self_attn.k_proj.bias" },
        "one entry is one layer");
    refuse_layer((dt_policy_layer){ .weight = "self_attn.q_proj.weight", .n_fused = 3 },
                 "n_fused is 3, but the outputs of model.layers.0.self_attn.q_proj.weight [");
    refuse_layer((dt_policy_layer){ .weight = "self_attn.q_proj.weight", .reversed = true },
                 "is stored [out, in]; leave reversed out");
    refuse_layer((dt_policy_layer){ .weight = "self_attn.q_proj.weight", .replace = "my_style" },
                 "policy mine, rule \"model.layers.*.self_attn.q_proj\": \"my_style\"");
}

static dt_status does_not_fit(dt_mesh *mesh, const void *arg)
{
    dt_model *model = NULL;

    DT_EXPECT_STATUS(
        load(mesh, arg, &model), DT_ERR_LAYOUT,
        "policy mine, rule \"model.layers.*.self_attn.q_proj\": \"rowwise\" does not fit ");
    return DT_OK;
}

/* A policy is judged like a plan, before a weight is read. */
DT_TEST(policies, one_whose_styles_do_not_fit_is_judged_as_a_plan)
{
    static const dt_policy_layer q[] = { { .weight = "self_attn.q_proj.weight",
                                           .replace = "rowwise" } };
    static const dt_policy p = { .size = sizeof p,
                                 .name = "mine",
                                 .original_layer_class = "LlamaDecoderLayer",
                                 .attn_qkv = { DT_POLICY_LIST(q) } };
    static const dt_policy *const list = &p;

    dt_test_on_ranks("tp=2", does_not_fit,
                     &(scene){ .fixture = "llama/uneven", .policies = &list, .n = 1 });
}

/* --- replace_arguments ------------------------------------------------------------------------ */

/* What a test's policy sets, found through its `user`. */
typedef struct setting {
    const char *path;
    int64_t whole;
    double number;
    const char *text;
    bool yes;
    bool divided; /* by the number of ranks, as Parallelformers' policies do */
} setting;

static dt_status change(const dt_policy *policy, dt_arguments *a, int world_size)
{
    const setting *s = policy->user;

    if (s->text != NULL) return dt_arguments_set_text(a, s->path, s->text);
    if (s->number != 0) return dt_arguments_set_number(a, s->path, s->number);
    if (s->yes) return dt_arguments_set_bool(a, s->path, true);
    return dt_arguments_set(a, s->path, s->divided ? s->whole / world_size : s->whole);
}

#define CHANGES(setting_)                                                                       \
    {                                                                                           \
        .size = sizeof(dt_policy), .name = "mine", .original_layer_class = "LlamaDecoderLayer", \
        .replace_arguments = change, .user = (setting_)                                         \
    }

/* A copy of a fixture whose config.json has `old` replaced by `new`. */
static void copy_folder(const char *fixture, const char *old, const char *new,
                        char folder[DT_TEST_PATH_BYTES])
{
    char from[DT_TEST_PATH_BYTES], a[DT_TEST_PATH_BYTES + 32], b[DT_TEST_PATH_BYTES + 32];
    char text[8192] = "", changed[8192];
    char *at, *whole;
    FILE *f;

    (void)folder_of(fixture, from);
    (void)dt_test_temp_dir(folder);
    (void)snprintf(b, sizeof b, "%s/model.safetensors", folder);
    (void)snprintf(a, sizeof a, "%s/model.safetensors", from);
    whole = realpath(a, NULL);
    DT_ASSERT(whole != NULL && symlink(whole, b) == 0);
    free(whole);
    (void)snprintf(a, sizeof a, "%s/config.json", from);
    f = fopen(a, "rb");
    DT_ASSERT(f != NULL && fread(text, 1, sizeof text - 1, f) > 0);
    (void)fclose(f);
    at = strstr(text, old);
    DT_ASSERT(at != NULL);
    (void)snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, new,
                   at + strlen(old));
    dt_test_write_file(folder, "config.json", changed, strlen(changed));
}

static dt_status gives(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg, in_file = { .fixture = s->message }, plain = { .fixture = s->fixture };
    float mine[MAX_VOCAB] = { 0 }, theirs[MAX_VOCAB] = { 0 }, before[MAX_VOCAB] = { 0 };

    DT_TRY(logits_with(mesh, s, mine));
    DT_TRY(logits_with(mesh, &in_file, theirs));
    DT_TRY(logits_with(mesh, &plain, before));
    DT_EXPECT(memcmp(mine, theirs, sizeof mine) == 0, "not as if the file had said so");
    DT_EXPECT(memcmp(mine, before, sizeof mine) != 0, "nothing has changed");
    return DT_OK;
}

DT_TEST(policies, a_changed_argument_is_as_if_the_file_had_said_so)
{
    static const setting eps = { .path = "rms_norm_eps", .number = 0.25 };
    static const dt_policy p = CHANGES(&eps);
    static const dt_policy *const list = &p;
    char folder[DT_TEST_PATH_BYTES];

    copy_folder("llama/biases", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0.25", folder);
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        dt_test_on_ranks(
            meshes[m], gives,
            &(scene){ .fixture = "llama/biases", .policies = &list, .n = 1, .message = folder });
}

static void refuse_setting(setting s, const char *message)
{
    const dt_policy p = CHANGES(&s);

    refuse(&p, message);
}

DT_TEST(policies, a_wrong_argument_is_refused_by_name)
{
    refuse_setting((setting){ .path = "num_atention_heads", .whole = 4 },
                   "policy \"mine\" set num_atention_heads to 4, but the architecture reads no key "
                   "\"num_atention_heads\"");
    refuse_setting((setting){ .path = "atention_bias", .yes = true },
                   "policy \"mine\" set atention_bias to true, but the architecture reads no key");
    refuse_setting((setting){ .path = "self_atn.num_heads", .whole = 4 },
                   "\"self_atn.num_heads\" is neither a key of");
    refuse_setting((setting){ .path = "self_attn.n_haeds", .whole = 4 },
                   "is no attribute that ranks have; there are: num_heads,");
    refuse_setting((setting){ .path = "mlp.num_heads", .whole = 4 },
                   "no layer of model.layers.*.mlp tells what num_heads is");
    refuse_setting(
        (setting){ .path = "self_attn.num_heads", .whole = 1000 },
        "replace_arguments says that self_attn.num_heads is 1000 on a rank, but over mesh "
        "dim \"tp\" of ");
}

static dt_status format_refused(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    dt_model *model = NULL;

    DT_EXPECT_STATUS(load(mesh, s, &model), DT_ERR_FORMAT, s->message);
    return DT_OK;
}

/* Values that the configuration or the weights contradict: the message says who set them. */
DT_TEST(policies, a_changed_size_that_weights_do_not_have_is_refused)
{
    static const setting rows[] = { { .path = "intermediate_size", .whole = 8 },
                                    { .path = "rms_norm_eps", .number = -3 } };
    static const char *const messages[] = { "policy \"mine\" set intermediate_size to 8: ",
                                            "policy \"mine\" set rms_norm_eps to -3.0: " };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_policy p = CHANGES(&rows[i]), *const list = &p;
        dt_test_on_ranks(
            "tp=2", format_refused,
            &(scene){
                .fixture = "llama/uneven", .policies = &list, .n = 1, .message = messages[i] });
    }
}

/* Keys of a multimodal folder are those of its text part, to get and to set, by one spelling. */
static dt_status scales_by(const dt_policy *policy, dt_arguments *a, int world_size)
{
    const setting *s = policy->user;
    int64_t heads, same;

    (void)world_size;
    DT_TRY(dt_arguments_get(a, "num_attention_heads", &heads));
    DT_TRY(dt_arguments_get(a, "text_config.num_attention_heads", &same));
    DT_EXPECT(heads == 4 && same == 4, "%lld and %lld heads", (long long)heads, (long long)same);
    DT_TRY(dt_arguments_get(a, "mm_tokens_per_image", &same)); /* of the file around it */
    return dt_arguments_set_number(a, s->path, s->number);
}

DT_TEST(policies, keys_of_a_multimodal_folder_are_got_and_set_by_one_name)
{
    static const setting inside = { .path = "rms_norm_eps", .number = 0.25 };
    static const setting whole = { .path = "text_config.rms_norm_eps", .number = 0.25 };
    const setting *const settings[] = { &inside, &whole };
    char folder[DT_TEST_PATH_BYTES];

    copy_folder("gemma3/multimodal", "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0.25", folder);
    for (size_t i = 0; i < DT_COUNT(settings); i++) {
        const dt_policy p = { .size = sizeof p,
                              .original_layer_class = "Gemma3DecoderLayer",
                              .replace_arguments = scales_by,
                              .user = settings[i] };
        const dt_policy *const list = &p;
        dt_test_on_ranks(
            "tp=2", gives,
            &(scene){
                .fixture = "gemma3/multimodal", .policies = &list, .n = 1, .message = folder });
    }
}

/* --- replace_modules -------------------------------------------------------------------------- */

static dt_tensor *same_norm(void *arg, dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    (void)arg;
    return dt_rms_norm(t, x, dt_layer_param(layer, DT_PARAM_WEIGHT), dt_layer_eps(layer));
}

static dt_tensor *no_norm(void *arg, dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    (void)arg, (void)t, (void)layer;
    return x;
}

static dt_tensor *same_product(void *arg, dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    (void)arg;
    return dt_linear(t, x, dt_layer_param(layer, DT_PARAM_WEIGHT), NULL);
}

/* A whole attention, as Parallelformers' policies replace one: what stands in the point. */
static dt_tensor *same_attention(void *arg, dt_tape *t, const dt_layer *point, dt_tensor *n)
{
    const dt_block_context *at = dt_layer_context(point);
    const dt_layer *q = dt_layer_inside(point, "q_proj"), *k = dt_layer_inside(point, "k_proj");
    const dt_head_counts h = dt_layer_spec_of(q)->heads;
    const dt_attention_options options = { .n_heads = h.n_heads,
                                           .n_kv_heads = h.n_kv_heads,
                                           .scale = (float)(1.0 / sqrt((double)h.head_dim)) };
    dt_tensor *rope = at->in->tables[0];
    dt_tensor *a = dt_cached_attention(
        t, at->pass, at->i, dt_rope(t, dt_heads(t, dt_layer_forward(t, q, n), h.head_dim), rope),
        dt_rope(t, dt_heads(t, dt_layer_forward(t, k, n), h.head_dim), rope),
        dt_heads(t, dt_layer_forward(t, dt_layer_inside(point, "v_proj"), n), h.head_dim),
        &options);

    (void)arg;
    return dt_layer_forward(t, dt_layer_inside(point, "o_proj"), a);
}

static dt_tensor *nothing(void *arg, dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    (void)arg, (void)t, (void)layer, (void)x;
    return NULL;
}

typedef struct swap {
    dt_policy_module module;
    bool same; /* logits stay what they are */
} swap;

static dt_status swaps(dt_mesh *mesh, const void *arg)
{
    const swap *s = arg;
    const dt_policy p = { .size = sizeof p,
                          .original_layer_class = "LlamaDecoderLayer",
                          .replace_modules = &s->module,
                          .n_replace_modules = 1 };
    const dt_policy *const list = &p;
    const scene mine = { .fixture = "llama/uneven", .policies = &list, .n = 1 },
                plain = { .fixture = "llama/uneven" };
    float a[MAX_VOCAB] = { 0 }, b[MAX_VOCAB] = { 0 };

    DT_TRY(logits_with(mesh, &mine, a));
    DT_TRY(logits_with(mesh, &plain, b));
    DT_EXPECT((memcmp(a, b, sizeof a) == 0) == s->same, "logits %s", s->same ? "differ" : "agree");
    return DT_OK;
}

DT_TEST(policies, a_replaced_module_computes_instead_of_the_layers_own)
{
    static const swap rows[] = { { { "rms_norm", same_norm, NULL }, true },
                                 { { "rms_norm", no_norm, NULL }, false },
                                 { { "post_attention_layernorm", no_norm, NULL }, false },
                                 { { "mlp.down_proj", same_product, NULL }, true },
                                 { { "linear", same_product, NULL }, true },
                                 { { "self_attn", same_attention, NULL }, true },
                                 { { "mlp", no_norm, NULL }, false } };

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], swaps, &rows[i]);
}

DT_TEST(policies, a_wrong_module_is_refused)
{
    static const dt_policy_module rows[] = { { "layer_norm", same_norm, NULL },
                                             { "mlp.down", same_norm, NULL },
                                             { "linear", NULL, NULL },
                                             { "mlp.down_proj", nothing, NULL } };
    static const char *const messages[] = {
        "replace_modules matches nothing in model.layers.*: \"layer_norm\" is neither",
        "\"mlp.down\" is neither a kind of layer there",
        "an entry of replace_modules has no name or no forward",
        "the function that replaces the forward of model.layers.0.mlp.down_proj gave NULL",
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_policy p = { .size = sizeof p,
                              .original_layer_class = "LlamaDecoderLayer",
                              .replace_modules = &rows[i],
                              .n_replace_modules = 1 };
        refuse(&p, messages[i]);
    }
}
