/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans in PyTorch's words, with layout arguments, as NeMo Automodel and torchtitan write them for
 * Llama: from a file, with whole and with cut tokens, they give the logits of the built-in plan for
 * the same collectives, of a prompt and of a step of one token. */
#include <dtensor/models.h>
#include <dtensor/parallel_styles.h>
#include <dtensor/plans.h>

#include "tests/support/dt_test.h"
#include "tests/support/layers.h"
#include "tests/support/plan_files.h"
#include "tests/support/tensors.h"

/* clang-format off */
static const char whole[] =
    "{ \"model.embed_tokens\":                     \"RowwiseParallel(input_layouts=Replicate)\","
    "  \"model.layers.*.self_attn.q_proj\":        \"ColwiseParallel(input_layouts=Replicate)\","
    "  \"model.layers.*.self_attn.k_proj\":        \"ColwiseParallel\","
    "  \"model.layers.*.self_attn.v_proj\":        \"ColwiseParallel()\","
    "  \"model.layers.*.self_attn.o_proj\":        \"RowwiseParallel(input_layouts=Shard(-1))\","
    "  \"model.layers.*.mlp.gate_proj\":           \"ColwiseParallel(output_layouts=Shard(-1))\","
    "  \"model.layers.*.mlp.up_proj\":             \"ColwiseParallel\","
    "  \"model.layers.*.mlp.down_proj\":           \"RowwiseParallel(output_layouts=Replicate)\","
    "  \"lm_head\":                                \"ColwiseParallel(output_layouts=Shard(-1))\","
    "  \"mode\": \"manual\" }";

static const char cut[] =
    "{ \"model.embed_tokens\":                     \"RowwiseParallel(output_layouts=Shard(1))\","
    "  \"model.layers.*.input_layernorm\":         \"SequenceParallel(sequence_dim=1)\","
    "  \"model.layers.*.self_attn\":               \"PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate)\","
    "  \"model.layers.*.self_attn.q_proj\":        \"ColwiseParallel(input_layouts=Replicate)\","
    "  \"model.layers.*.self_attn.k_proj\":        \"ColwiseParallel(input_layouts=Replicate)\","
    "  \"model.layers.*.self_attn.v_proj\":        \"ColwiseParallel(input_layouts=Replicate)\","
    "  \"model.layers.*.self_attn.o_proj\":        \"RowwiseParallel(output_layouts=Shard(1))\","
    "  \"model.layers.*.post_attention_layernorm\": \"SequenceParallel\","
    "  \"model.layers.*.mlp\":                     \"PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))\","
    "  \"model.layers.*.mlp.gate_proj\":           \"ColwiseParallel\","
    "  \"model.layers.*.mlp.up_proj\":             \"ColwiseParallel\","
    "  \"model.layers.*.mlp.down_proj\":           \"RowwiseParallel(output_layouts=Shard(1))\","
    "  \"model.norm\":                             \"SequenceParallel()\","
    "  \"lm_head\":                                \"ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1))\","
    "  \"mode\": \"manual\" }";
/* clang-format on */

enum { BATCH = 2, PROMPT = 6 };

/* The logits of a prompt and of a step of one token behind it. */
static dt_status run(dt_mesh *mesh, const dt_load_options *o, dt_tape *t, dt_tensor *out[2])
{
    const int32_t ids[] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7 };
    char path[DT_TEST_PATH_BYTES];
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;

    DT_TRY(dt_model_load(mesh, dt_test_source_path(path, "tests/golden/llama/uneven"), o, &m));
    DT_TRY(dt_state_create(m, BATCH, 8, &s));
    for (int i = 0; i < 2; i++) {
        dt_tensor *y = dt_model_forward(t, m, s, ids + i * 12, i == 0 ? PROMPT : 1, DT_LOGITS_ALL);
        DT_TRY(dt_tape_status(t));
        DT_TRY(dt_full_tensor(y, &out[i]));
    }
    return DT_OK;
}

/* `plan` gives the logits of the built-in plan for the same collectives. */
static dt_status same_as_built_in(dt_mesh *mesh, const dt_plan *plan, bool tokens_cut)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    dt_tensor *want[2] = { NULL }, *got[2] = { NULL };
    dt_comm_counter before[DT_N_COMM_KINDS];
    dt_tape *t = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    o.sequence_parallel = tokens_cut;
    DT_TRY_TO(done, st, run(mesh, &o, t, want));
    for (int k = 0; k < DT_N_COMM_KINDS; k++) before[k] = dt_tape_comm(t, (dt_comm_kind)k);
    dt_tape_reset(t);
    o.sequence_parallel = false;
    o.plan = plan;
    DT_TRY_TO(done, st, run(mesh, &o, t, got));
    for (int i = 0; i < 2; i++)
        DT_TRY_TO(done, st, dt_test_expect_same(want[i], got[i], "PyTorch's plan"));
    DT_TRY_TO(done, st, dt_test_expect_counts(t, before));
done:
    for (int i = 0; i < 2; i++) {
        dt_tensor_release(&want[i]);
        dt_tensor_release(&got[i]);
    }
    dt_tape_release(&t);
    return st;
}

static dt_status of_a_file(dt_mesh *mesh, const void *arg)
{
    const bool tokens_cut = *(const bool *)arg;
    dt_plan *plan = NULL;
    dt_status st;

    DT_TRY(dt_test_read_plan(tokens_cut ? cut : whole, &plan));
    st = same_as_built_in(mesh, plan, tokens_cut);
    dt_plan_release(&plan);
    return st;
}

DT_TEST(torch_plan, a_file_in_pytorchs_words_gives_the_logits_of_the_built_in_plan)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (int tokens_cut = 0; tokens_cut < 2; tokens_cut++)
            dt_test_on_ranks(meshes[m], of_a_file, &(bool){ tokens_cut == 1 });
}

/* The plan `cut`, with styles that a program makes by constructors and registers. */
static dt_status of_constructors(dt_mesh *mesh, const void *arg)
{
    static const dt_plan_rule rules[] = {
        { "model.embed_tokens", "row" },
        { "model.layers.*.input_layernorm", "sequence" },
        { "model.layers.*.self_attn", "enter" },
        { "model.layers.*.self_attn.q_proj", "column" },
        { "model.layers.*.self_attn.k_proj", "column" },
        { "model.layers.*.self_attn.v_proj", "column" },
        { "model.layers.*.self_attn.o_proj", "row" },
        { "model.layers.*.post_attention_layernorm", "sequence" },
        { "model.layers.*.mlp", "enter" },
        { "model.layers.*.mlp.gate_proj", "column" },
        { "model.layers.*.mlp.up_proj", "column" },
        { "model.layers.*.mlp.down_proj", "row" },
        { "model.norm", "sequence" },
        { "lm_head", "head" },
    };
    const dt_plan plan = { .rules = rules, .n_rules = (int)DT_COUNT(rules), .manual = true };
    const dt_lay tokens = { DT_LAY_SHARD, 1 }, all = { DT_LAY_REPLICATE, 0 };
    const dt_prepare_args gather = { .inputs = { 1, { { .comes = tokens, .to = all } } } };
    const struct {
        const char *name;
        dt_style style;
    } made[] = {
        { "row", dt_rowwise_parallel((dt_parallel_args){ .output_layouts = tokens }) },
        { "column",
          dt_colwise_parallel((dt_parallel_args){ .input_layouts = { DT_LAY_KEEP, 0 } }) },
        { "head", dt_colwise_parallel((dt_parallel_args){
                      .input_layouts = tokens, .output_layouts = { DT_LAY_SHARD, -1 } }) },
        { "sequence", dt_sequence_parallel(1) },
        { "enter", dt_prepare_input(gather) },
    };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(made); i++)
        DT_TRY(dt_style_register(dt_mesh_runtime(mesh), made[i].name, &made[i].style));
    return same_as_built_in(mesh, &plan, true);
}

DT_TEST(torch_plan, constructors_give_the_logits_of_the_built_in_plan)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        dt_test_on_ranks(meshes[m], of_constructors, NULL);
}
