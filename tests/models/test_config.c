/* SPDX-License-Identifier: Apache-2.0
 *
 * Spellings of config.json: what Transformers reads we read the same, what contradicts itself or
 * asks for what is not built is refused by key. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/blocks/rope.h"
#include "models/config.h"
#include "models/model.h"
#include "tests/support/dt_test.h"

typedef struct rope_case {
    const char *text;
    const char *refused; /* part of the message, or NULL */
    double theta;
    dti_rope_type type;
    double original;
} rope_case;

static const rope_case ropes[] = {
    { "{}", NULL, 10000, DTI_ROPE_DEFAULT, 0 },
    { "{\"rope_theta\": 5e5, \"rope_scaling\": null}", NULL, 5e5, DTI_ROPE_DEFAULT, 0 },
    { "{\"rope_theta\": 5e5, \"rope_parameters\": {\"rope_type\": \"default\"}}", NULL, 5e5,
      DTI_ROPE_DEFAULT, 0 },
    { "{\"rope_parameters\": {\"rope_theta\": 7, \"rope_type\": \"linear\", \"factor\": 2}}", NULL,
      7, DTI_ROPE_LINEAR, 0 },
    { "{\"rope_scaling\": {\"rope_theta\": 9, \"type\": \"linear\", \"factor\": 2}}", NULL, 9,
      DTI_ROPE_LINEAR, 0 },
    { "{\"original_max_position_embeddings\": 64, \"rope_scaling\": {\"rope_type\": \"llama3\","
      "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4}}",
      NULL, 10000, DTI_ROPE_LLAMA3, 64 },
    { "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1,"
      "\"high_freq_factor\": 4}}",
      NULL, 10000, DTI_ROPE_LLAMA3, 128 },
    { "{\"rope_theta\": 5, \"rope_parameters\": {\"rope_theta\": 7}}", "rope_parameters.rope_theta",
      0, 0, 0 },
    { "{\"rope_parameters\": {\"rope_theta\": 7}, \"rope_scaling\": {\"type\": \"linear\"}}",
      "both say the same thing", 0, 0, 0 },
    { "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}}", "rope_scaling.type", 0, 0, 0 },
    { "{\"rope_scaling\": {\"type\": \"linear\"}}", "factor", 0, 0, 0 },
    { "{\"partial_rotary_factor\": 0.5}", "partial_rotary_factor", 0, 0, 0 },
};

DT_TEST(config, rotary_positions_in_every_spelling)
{
    const dt_model_info info = { .head_dim = 8, .max_positions = 128 };

    for (size_t i = 0; i < DT_COUNT(ropes); i++) {
        const rope_case *c = &ropes[i];
        dti_json_doc doc;
        dti_rope rope;
        dt_status st;
        DT_ASSERT_OK(dti_json_parse("config.json", c->text, strlen(c->text), &doc));
        st = dti_rope_read(&doc.root, &info, &rope);
        if (c->refused != NULL) {
            DT_ASSERT(st == DT_ERR_FORMAT || st == DT_ERR_UNSUPPORTED);
            DT_ASSERT(strstr(dt_last_error()->message, c->refused) != NULL);
        } else {
            DT_ASSERT_OK(st);
            DT_ASSERT_CLOSE(rope.theta, c->theta, 0);
            DT_ASSERT_EQ_INT(rope.type, c->type);
            if (c->original > 0) DT_ASSERT_CLOSE(rope.original_positions, c->original, 0);
        }
        dti_json_free(&doc);
    }
}

/* Figures of the Llama 3.1 paper's constants: dim 128, theta 5e5, factor 8, 8192 positions. */
DT_TEST(config, llama3_frequencies_are_the_published_ones)
{
    static const struct {
        int i;
        double want;
    } golden[] = { { 0, 1.0 },
                   { 1, 8.146172339e-1 },
                   { 20, 1.656044008e-2 },
                   { 28, 3.211445995e-3 },
                   { 30, 1.371893568e-3 },
                   { 34, 1.785078128e-4 },
                   { 40, 3.428102196e-5 },
                   { 63, 3.068925989e-7 } };
    const dti_rope rope = { .type = DTI_ROPE_LLAMA3,
                            .theta = 5e5,
                            .factor = 8,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4,
                            .original_positions = 8192 };
    float inv_freq[64];

    dti_rope_frequencies(&rope, 128, inv_freq);
    for (size_t k = 0; k < DT_COUNT(golden); k++)
        DT_ASSERT_CLOSE(inv_freq[golden[k].i] / golden[k].want, 1.0, 1e-5);
}

typedef struct arch_case {
    const dti_arch *arch;
    const char *text;
    const char *refused; /* NULL: accepted */
} arch_case;

#define NEO "{\"hidden_size\": 8, \"num_heads\": 2, \"num_layers\": 2, "
#define QWEN                                                                        \
    "{\"hidden_size\": 8, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, " \
    "\"num_hidden_layers\": 2, "

static const arch_case archs[] = {
    { &dti_arch_gpt_neo, NEO "\"attention_layers\": [\"local\", \"local\"]}", NULL },
    { &dti_arch_gpt_neo, NEO "\"attention_layers\": [\"local\"]}", "attention_layers" },
    { &dti_arch_gpt_neo, NEO "\"attention_layers\": [\"local\", \"x\"]}", "attention_layers[1]" },
    { &dti_arch_gpt_neo, NEO "\"attention_types\": [[[\"global\", \"local\"], 1]]}", NULL },
    { &dti_arch_gpt_neo, NEO "\"attention_types\": [[[\"global\", \"local\"], 2]]}", "names more" },
    { &dti_arch_gpt_neo, NEO "\"attention_types\": [[[\"global\"], 1]]}", "names 1" },
    { &dti_arch_gpt_neo, NEO "\"window_size\": 4}", "attention_types" },
    { &dti_arch_gpt_neo,
      NEO "\"num_key_value_heads\": 3, \"head_dim\": 3, \"attention_types\": [[[\"global\"], 2]]}",
      NULL },
    { &dti_arch_qwen3, QWEN "\"use_sliding_window\": true, \"max_window_layers\": 1}",
      "use_sliding_window" },
    { &dti_arch_qwen3, QWEN "\"use_sliding_window\": true, \"max_window_layers\": 2}", NULL },
    { &dti_arch_qwen3, QWEN "\"layer_types\": [\"full_attention\", \"full_attention\"]}", NULL },
    { &dti_arch_qwen3, QWEN "\"layer_types\": [\"full_attention\"]}", "layer_types" },
    { &dti_arch_qwen3, QWEN "\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
      "layer_types[1]" },
    { &dti_arch_qwen3, QWEN "\"head_dim\": 7}", "head_dim" },
    { &dti_arch_llama, "{\"quantization_config\": {}}", "quantised" },
    { &dti_arch_llama, "{\"hidden_act\": \"gelu\"}", "hidden_act" },
};

/* Reads a config: refused with that part in the message, or taken. */
static void read_text(const dti_arch *arch, const char *text, const char *refused,
                      dt_model_info *out)
{
    dt_model_info info = { .n_eos = 0 };
    dti_json_doc doc;
    void *self;
    dt_status st;

    DT_ASSERT_OK(dti_json_parse("config.json", text, strlen(text), &doc));
    DT_ASSERT_OK(dti_alloc(arch->self_bytes, &self));
    st = arch->read_config(self, &doc.root, &info);
    if (refused != NULL)
        DT_ASSERT_STATUS(st, st == DT_ERR_UNSUPPORTED ? st : DT_ERR_FORMAT, refused);
    else
        DT_ASSERT_OK(st);
    if (out != NULL) *out = info;
    arch->release(self);
    dti_free(self);
    dti_json_free(&doc);
}

DT_TEST(config, architectures_refuse_what_they_cannot_run)
{
    for (size_t i = 0; i < DT_COUNT(archs); i++)
        read_text(archs[i].arch, archs[i].text, archs[i].refused, NULL);
}

/* What Transformers 5.23 makes of null, key by key. */
DT_TEST(config, null_is_refused_where_it_says_nothing)
{
    static const struct {
        const dti_arch *arch;
        const char *refused[20], *taken[16];
    } rows[] = {
        { &dti_arch_llama,
          { "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "max_position_embeddings", "rms_norm_eps", "hidden_act",
            "attention_bias", "mlp_bias", "tie_word_embeddings", "rope_theta" },
          { "num_key_value_heads", "head_dim", "bos_token_id", "eos_token_id", "rope_scaling",
            "rope_parameters", "partial_rotary_factor", "dtype", "torch_dtype",
            "original_max_position_embeddings", "quantization_config" } },
        { &dti_arch_qwen3,
          { "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
            "hidden_act", "attention_bias", "tie_word_embeddings", "use_sliding_window",
            "max_window_layers", "rope_theta" },
          { "num_key_value_heads", "bos_token_id", "eos_token_id", "layer_types" } },
        { &dti_arch_gpt_neo,
          { "vocab_size", "hidden_size", "num_layers", "num_heads", "max_position_embeddings",
            "layer_norm_epsilon", "activation_function", "tie_word_embeddings", "window_size",
            "attention_layers" },
          { "intermediate_size", "bos_token_id", "eos_token_id", "attention_types" } },
    };
    char text[96];

    for (size_t a = 0; a < DT_COUNT(rows); a++) {
        for (int k = 0; k < 20 && rows[a].refused[k] != NULL; k++) {
            (void)snprintf(text, sizeof text, "{\"%s\": null}", rows[a].refused[k]);
            read_text(rows[a].arch, text, rows[a].refused[k], NULL);
        }
        for (int k = 0; k < 16 && rows[a].taken[k] != NULL; k++) {
            (void)snprintf(text, sizeof text, "{\"%s\": null}", rows[a].taken[k]);
            read_text(rows[a].arch, text, NULL, NULL);
        }
    }
}

DT_TEST(config, null_and_absent_heads_differ)
{
    dt_model_info info;

    read_text(&dti_arch_qwen3, "{\"num_attention_heads\": 64}", NULL, &info);
    DT_ASSERT_EQ_INT(info.n_kv_heads, 32);
    read_text(&dti_arch_qwen3, "{\"num_attention_heads\": 64, \"num_key_value_heads\": null}", NULL,
              &info);
    DT_ASSERT_EQ_INT(info.n_kv_heads, 64);
    read_text(&dti_arch_llama, "{\"num_attention_heads\": 64, \"head_dim\": null}", NULL, &info);
    DT_ASSERT_EQ_INT(info.n_kv_heads, 64);
    DT_ASSERT_EQ_INT(info.head_dim, 64);
    read_text(&dti_arch_llama, "{\"head_dim\": 0}", "head_dim is 0", NULL);
}

/* generation_config.json wins where it exists, even if it names nothing. */
DT_TEST(config, what_ends_a_text_is_said_by_one_file)
{
    static const struct {
        const char *file; /* NULL: none */
        int n;            /* -1: an error */
        int32_t first;
    } rows[] = {
        { NULL, 1, 7 },
        { "{}", 0, 0 },
        { "{\"eos_token_id\": null}", 0, 0 },
        { "{\"eos_token_id\": 5}", 1, 5 },
        { "{\"eos_token_id\": [6, 5]}", 2, 6 },
        { "{\"eos_token_id\": \"5\"}", -1, 0 },
        { "{", -1, 0 },
        { "", -1, 0 },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dt_model_info info = { .n_eos = 1, .eos = { 7 } };
        char folder[DT_TEST_PATH_BYTES];
        dt_status st;

        (void)dt_test_temp_dir(folder);
        if (rows[i].file != NULL)
            dt_test_write_file(folder, "generation_config.json", rows[i].file,
                               strlen(rows[i].file));
        st = dt_model_inspect_generation(folder, &info);
        dt_test_remove_dir(folder);
        DT_ASSERT_EQ_INT(st, rows[i].n < 0 ? DT_ERR_FORMAT : DT_OK);
        if (st != DT_OK) continue;
        DT_ASSERT_EQ_INT(info.n_eos, rows[i].n);
        if (info.n_eos > 0) DT_ASSERT_EQ_INT(info.eos[0], rows[i].first);
    }
}
