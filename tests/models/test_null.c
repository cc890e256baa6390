/* SPDX-License-Identifier: Apache-2.0
 *
 * NULL in place of a handle: every query answers as the table of docs/errors.md says, operators on
 * a tape that is NULL give NULL, and nothing crashes. */
#include <dtensor.h>
#include <string.h>

#include "tests/support/dt_test.h"

static void expect(const char *call, bool right)
{
    if (!right) dt_test_fail(__FILE__, __LINE__, "%s answers something else", call);
}

#define GIVES(value, call) expect(#call, (call) == (value))
#define NONE(call)         expect(#call, (const void *)(call) == NULL)

DT_TEST(null, who_where_and_how_large_is_minus_one)
{
    int coord[DT_MAX_DIMS] = { 0 }, ranks[8];

    GIVES(-1, dt_runtime_rank(NULL));
    GIVES(-1, dt_runtime_size(NULL));
    GIVES(-1, dt_runtime_threads(NULL));
    GIVES(-1, dt_mesh_n_dims(NULL));
    GIVES(-1, dt_mesh_n_ranks(NULL));
    GIVES(-1, dt_mesh_dim_size(NULL, 0));
    GIVES(-1, dt_mesh_find_dim(NULL, "tp"));
    GIVES(-1, dt_mesh_coord(NULL, 0));
    GIVES(-1, dt_mesh_rank_at(NULL, 0));
    GIVES(-1, dt_mesh_group(NULL, 0, coord, ranks));
    GIVES(-1, dt_mesh_timeout(NULL));
    GIVES(-1, dt_topology_n_cores(NULL));
    GIVES(-1, dt_topology_n_gpus(NULL));
    GIVES(-1, dt_topology_threads(NULL));
    GIVES(-1, dt_layout_n_dims(NULL));
    GIVES(-1, dt_layout_n_axes(NULL));
    GIVES(-1, dt_tensor_n_axes(NULL));
    GIVES(-1, dt_tensor_extent(NULL, 0));
    GIVES(-1, dt_tokenizer_id(NULL, "a", 1));
}

DT_TEST(null, counts_and_lengths_are_zero)
{
    uint64_t calls = 7, misses = 7;

    GIVES(0, dt_runtime_live(NULL));
    GIVES(0, dt_layers_count(NULL));
    GIVES(0, dt_layer_n_params(NULL));
    GIVES(0, dt_layer_param_info(NULL, 0).n_axes);
    GIVES(0, (int)dt_layer_eps(NULL));
    GIVES(0, dt_model_local_bytes(NULL));
    GIVES(0, dt_state_length(NULL));
    GIVES(0, dt_state_length_of(NULL, 0));
    GIVES(0, dt_generated_count(NULL));
    GIVES(0, dt_generated_ids(NULL, 0).n);
    GIVES(0, (int)dt_generated_score(NULL, 0));
    GIVES(0, dt_tokenizer_vocab_size(NULL));
    GIVES(0, dt_rotary_turn(NULL));
    GIVES(0, dt_config_attention(NULL).n_heads);
    GIVES(0, (int)dt_mesh_link(NULL, 0).bytes_per_ns);
    GIVES(0, dt_tape_comm(NULL, DT_COMM_ALL_REDUCE).calls);
    GIVES(0, dt_tape_comm_in(NULL, NULL, 0, DT_COMM_ALL_REDUCE).bytes);
    GIVES(0, dt_random_next(NULL).stream);
    dt_op_counts(NULL, &calls, &misses);
    DT_ASSERT(calls == 0 && misses == 0);
}

DT_TEST(null, yes_or_no_is_no_and_enums_are_none_of_theirs)
{
    int coord[DT_MAX_DIMS];

    GIVES(false, dt_runtime_is_dry(NULL));
    GIVES(false, dt_mesh_is_member(NULL));
    GIVES(false, dt_mesh_find_rank(NULL, 0, coord));
    GIVES(false, dt_layout_is_replicated(NULL));
    GIVES(false, dt_tokenizer_is_special(NULL, 0));
    GIVES(true, dt_mesh_equal(NULL, NULL));
    GIVES(DT_N_DTYPES, dt_tensor_dtype(NULL));
    GIVES(DT_PLACE_REPLICATE, dt_layout_placement(NULL, 0).kind);
    GIVES(DT_PLACE_REPLICATE, dt_cut_param(NULL, 0, 2, NULL).kind);
}

DT_TEST(null, names_and_handles_are_null)
{
    NONE(dt_runtime_cores(NULL));
    NONE(dt_kernels_of(NULL));
    NONE(dt_device_of(NULL));
    NONE(dt_mesh_runtime(NULL));
    NONE(dt_mesh_dim_name(NULL, 0));
    NONE(dt_mesh_retain(NULL));
    NONE(dt_tensor_mesh(NULL));
    NONE(dt_tensor_layout(NULL));
    NONE(dt_tensor_local(NULL));
    NONE(dt_tensor_retain(NULL));
    NONE(dt_tape_runtime(NULL));
    NONE(dt_tape_because(NULL, "a test"));
    NONE(dt_layer_kind_of(NULL));
    NONE(dt_layers_remark(NULL, 0));
    NONE(dt_layers_at(NULL, 0));
    NONE(dt_layers_find(NULL, "a"));
    NONE(dt_layer_name(NULL));
    NONE(dt_layer_style(NULL));
    NONE(dt_layer_style_on(NULL, 0));
    NONE(dt_layer_step_style_on(NULL, 0));
    NONE(dt_layer_param_layout(NULL, 0));
    NONE(dt_layer_param(NULL, 0));
    NONE(dt_layer_tied_to(NULL));
    NONE(dt_model_info_of(NULL));
    NONE(dt_model_layers(NULL));
    NONE(dt_model_mesh(NULL));
    NONE(dt_generated_ids(NULL, 0).ids);
    NONE(dt_builder_spec(NULL, "a"));
    NONE(dt_chat_retain(NULL));
    NONE(dt_tokenizer_retain(NULL));
    NONE(dt_tokenizer_piece(NULL, 0, NULL));
}

DT_TEST(null, texts_say_that_there_is_nothing)
{
    char text[64];

    (void)dt_mesh_print(NULL, text, sizeof text);
    DT_ASSERT_EQ_STR(text, "(no mesh)");
    (void)dt_layout_print(NULL, text, sizeof text);
    DT_ASSERT_EQ_STR(text, "(no layout)");
    (void)dt_placement_print(NULL, text, sizeof text);
    DT_ASSERT_EQ_STR(text, "(no placement)");
    (void)dt_tape_comm_print(NULL, text, sizeof text);
    DT_ASSERT_EQ_STR(text, "total: 0 calls, 0 bytes\n");
    DT_ASSERT(dt_tape_comm_json(NULL, text, sizeof text) > 0);
}

DT_TEST(null, what_only_acts_does_nothing)
{
    dt_tensor *x[1] = { NULL };

    dt_tape_reset(NULL);
    dt_tape_set_moves(NULL, DT_MOVES_ALLOW);
    dt_tape_drop(NULL, NULL);
    dt_scope_begin(NULL, "a");
    dt_layer_enter_all(NULL, NULL, 1, x);
    dt_layer_leave_all(NULL, NULL, 0, NULL);
    dt_state_rewind(NULL, 0);
    dt_builder_settings(NULL, NULL);
    dt_tensor_release(NULL);
    dt_tape_release(NULL);
    dt_mesh_release(NULL);
    dt_layers_release(NULL);
    dt_model_release(NULL);
    dt_state_release(NULL);
    dt_generated_release(NULL);
    dt_plan_release(NULL);
    dt_rotary_release(NULL);
    dt_chat_release(NULL);
    dt_tokenizer_release(NULL);
    dt_tokenizer_stream_release(NULL);
    dt_runtime_release_dry(NULL);
    dt_layouts_release(NULL);
}

/* Each of them says so in the thread's record. */
#define DOWN(call)                                                      \
    do {                                                                \
        NONE(call);                                                     \
        DT_ASSERT_EQ_STR(dt_last_error()->message, "the tape is NULL"); \
        (void)dt_fail(DT_ERR_ARG, "another");                           \
    } while (0)

DT_TEST(null, operators_on_no_tape_give_null)
{
    const dt_attention_options options = { .n_heads = 1, .n_kv_heads = 1 };

    DT_ASSERT_STATUS(dt_tape_status(NULL), DT_ERR_ARG, "the tape is NULL");
    DOWN(dt_add(NULL, NULL, NULL));
    DOWN(dt_mul(NULL, NULL, NULL));
    DOWN(dt_linear(NULL, NULL, NULL, NULL));
    DOWN(dt_rms_norm(NULL, NULL, NULL, 1e-5f));
    DOWN(dt_layer_norm(NULL, NULL, NULL, NULL, 1e-5f));
    DOWN(dt_embedding(NULL, NULL, NULL));
    DOWN(dt_embedding_padded(NULL, NULL, NULL, 0));
    DOWN(dt_heads(NULL, NULL, 8));
    DOWN(dt_unheads(NULL, NULL));
    DOWN(dt_rope(NULL, NULL, NULL));
    DOWN(dt_rope_table(NULL, NULL, NULL, 1, DT_F32));
    DOWN(dt_attention(NULL, NULL, NULL, NULL, NULL, &options));
    DOWN(dt_kv_write(NULL, NULL, NULL, NULL));
    DOWN(dt_experts(NULL, NULL, NULL, NULL, NULL, NULL));
    DOWN(dt_route_ids(NULL, NULL, 2));
    DOWN(dt_route_weights(NULL, NULL, NULL, true));
    DOWN(dt_argmax_key(NULL, NULL));
    DOWN(dt_argmax_id(NULL, NULL));
    DOWN(dt_top_k_keys(NULL, NULL, 3));
    DOWN(dt_cast(NULL, NULL, DT_F32));
    DOWN(dt_slice(NULL, NULL, 0, 0, 1));
    DOWN(dt_sum(NULL, NULL, 0));
    DOWN(dt_mean(NULL, NULL, 0));
    DOWN(dt_max(NULL, NULL, 0));
    DOWN(dt_soft_cap(NULL, NULL, 1));
    DOWN(dt_add_bias(NULL, NULL, NULL));
    DOWN(dt_add_scalar(NULL, NULL, 1));
    DOWN(dt_move(NULL, NULL, NULL));
    DOWN(dt_move_to(NULL, NULL, NULL, NULL));
    DOWN(dt_move_dim(NULL, NULL, 0, DT_REPLICATE));
    DOWN(dt_move_cast(NULL, NULL, NULL, DT_F32));
    DOWN(dt_layer_forward(NULL, NULL, NULL));
    DOWN(dt_layer_enter(NULL, NULL, NULL));
    DOWN(dt_layer_leave(NULL, NULL, NULL));
    DOWN(dt_layer_experts(NULL, NULL, NULL, NULL, NULL, NULL, NULL));
    DOWN(dt_model_forward(NULL, NULL, NULL, NULL, 0, DT_LOGITS_LAST));
    DOWN(dt_model_forward_end(NULL, NULL, NULL));
    DOWN(dt_cached_attention(NULL, NULL, 0, NULL, NULL, NULL, &options));
    DOWN(dt_carried_conv(NULL, NULL, (dt_carried){ NULL, 0 }, NULL, NULL));
    DOWN(dt_carried_delta(NULL, NULL, (dt_carried){ NULL, 0 }, NULL));
    DOWN(dt_tape_own(NULL, NULL));
    DOWN(dt_scope_end(NULL, NULL));
    NONE(dt_tape_fail(NULL, DT_ERR_SHAPE, "words of one's own"));
    DT_ASSERT_EQ_STR(dt_last_error()->message, "words of one's own");
}
