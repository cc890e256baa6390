/* SPDX-License-Identifier: Apache-2.0
 *
 * A policy as Parallelformers users write it: which weights of a block are attention's inputs and
 * output and the MLP's, and a norm of one's own in the place of the library's. On two ranks it has
 * to choose the tokens that the built-in plan chooses.  09_policy [folder of a Llama] */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>

enum { N_NEW = 24 };

static const dt_policy_layer attn_qkv[] = {
    { .weight = "self_attn.q_proj.weight",
      .bias = "self_attn.q_proj.bias",
      .ignore_checker = true },
    { .weight = "self_attn.k_proj.weight",
      .bias = "self_attn.k_proj.bias",
      .ignore_checker = true },
    { .weight = "self_attn.v_proj.weight",
      .bias = "self_attn.v_proj.bias",
      .ignore_checker = true },
};
static const dt_policy_layer attn_out[] = { { .weight = "self_attn.o_proj.weight",
                                              .replace = "rowwise" } };
static const dt_policy_layer mlp_in[] = { { .weight = "mlp.gate_proj.weight" },
                                          { .weight = "mlp.up_proj.weight" } };
static const dt_policy_layer mlp_out[] = { { .weight = "mlp.down_proj.weight" } };

/* Configuration: a longer base of the rotary embedding would be set here. What a rank holds follows
 * from the cut; saying it, as Parallelformers' policies have to, is checked. */
static dt_status replace_arguments(const dt_policy *policy, dt_arguments *arguments, int world_size)
{
    int64_t heads;
    dt_status st = dt_arguments_get(arguments, "num_attention_heads", &heads);

    (void)policy;
    if (st == DT_OK) st = dt_arguments_set(arguments, "self_attn.num_heads", heads / world_size);
    return st;
}

/* The norm of a block. */
static dt_tensor *my_norm(void *arg, dt_tape *tape, const dt_layer *layer, dt_tensor *x)
{
    (void)arg;
    return dt_rms_norm(tape, x, dt_layer_param(layer, DT_PARAM_WEIGHT), dt_layer_eps(layer));
}

static const dt_policy_module modules[] = { { "rms_norm", my_norm, NULL } };

static const dt_policy my_policy = {
    .size = sizeof(dt_policy),
    .name = "my_llama",
    .original_layer_class = "LlamaDecoderLayer",
    .attn_qkv = { DT_POLICY_LIST(attn_qkv) },
    .attn_out = { DT_POLICY_LIST(attn_out) },
    .mlp_in = { DT_POLICY_LIST(mlp_in) },
    .mlp_out = { DT_POLICY_LIST(mlp_out) },
    .replace_modules = modules,
    .n_replace_modules = 1,
    .replace_arguments = replace_arguments,
};

/* Its greedy tokens; ends the model. */
static dt_status tokens(dt_model *model, int32_t *out)
{
    const int32_t prompt[] = { 1, 2, 3 };
    dt_generate_options generate = DT_GENERATE_OPTIONS_INIT;
    dt_state *state = NULL;
    int64_t n;
    dt_status st;

    generate.max_new_tokens = N_NEW;
    generate.ignore_eos = true;
    st = dt_state_create(model, 1, N_NEW + 3, &state);
    if (st == DT_OK) st = dt_generate(model, state, prompt, 3, &generate, out, &n);
    dt_state_release(&state);
    dt_model_release(&model);
    return st;
}

/* Every rank calls dt_parallelize(), where a Python program would call parallelize() once. */
static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const dt_policy *const policies[] = { &my_policy };
    dt_parallelize_options options = DT_PARALLELIZE_OPTIONS_INIT;
    int32_t mine[N_NEW], builtin[N_NEW];
    dt_model *model = NULL;
    dt_status st;

    st = dt_parallelize(rt, arg, NULL, &model);
    if (st == DT_OK) st = tokens(model, builtin);

    options.n_ranks = 2;
    options.policies = policies;
    options.n_policies = 1;
    options.verbose = DT_VERBOSE_DETAIL;
    if (st == DT_OK) st = dt_parallelize(rt, arg, &options, &model);
    if (st == DT_OK) st = tokens(model, mine);

    if (st == DT_OK && memcmp(mine, builtin, sizeof mine) != 0)
        st = dt_fail(DT_ERR_INTERNAL, "the policy chooses other tokens than the built-in plan");
    if (st == DT_OK && dt_runtime_rank(rt) == 0)
        printf("my_llama on 2 ranks: %d tokens as the built-in plan chooses them\n", (int)N_NEW);
    return st;
}

static void print_line(void *arg, dt_log_level level, int rank, const char *line)
{
    (void)arg, (void)level, (void)rank;
    printf("%s\n", line);
}

int main(int argc, char **argv)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    char folder[] = "examples/checkpoint";

    options.n_ranks = 2;
    options.log = print_line;
    if (dt_run(&options, rank_main, argc > 1 ? argv[1] : folder) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
