/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing config.json: any bytes are refused with a message, or describe a model whose sizes are
 * sound and whose layers can be listed.
 *
 * An input is one letter for the architecture, then a JSON text. */
#include "tests/fuzz/fuzz.h"

#include "models/architectures/config_keys.h"
#include "models/describe/describe.h"

enum { MOST_BYTES = 1 << 12, MOST_LAYERS = 64 };

static void check_info(const dt_model_info *i)
{
    const int64_t sizes[] = { i->vocab_size, i->hidden_size, i->n_layers,     i->n_heads,
                              i->n_kv_heads, i->head_dim,    i->max_positions };

    for (size_t k = 0; k < DT_COUNT(sizes); k++)
        if (sizes[k] < 1 || sizes[k] > DTI_CONFIG_MAX_EXTENT) fuzz_stop("a size out of bounds");
    if (i->n_heads % i->n_kv_heads != 0) fuzz_stop("heads that kv heads do not divide");
    if (i->n_heads * i->head_dim > DTI_CONFIG_MAX_EXTENT) fuzz_stop("heads too wide");
    if (i->n_eos < 0 || i->n_eos > DT_MAX_EOS || i->bos < -1) fuzz_stop("special tokens");
}

static void check_layers(const dt_arch *arch, void *self, const dt_model_info *info)
{
    dti_builder b = { 0 };

    if (!fuzz_failed(arch->add_layers(self, info, &b)))
        for (int i = 0; i < b.n; i++)
            if (b.specs[i].name == NULL ||
                (b.specs[i].kind != &dt_point_kind &&
                 (b.specs[i].axis[0].extent < 1 || b.keys[i][0] == NULL)))
                fuzz_stop("a layer without a name, an extent or a key");
    dti_builder_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const dt_arch *const archs[] = { &dti_arch_llama,       &dti_arch_qwen3,
                                            &dti_arch_gpt_neo,     &dti_arch_qwen2,
                                            &dti_arch_gemma3_text, &dti_arch_phi3 };
    const dt_arch *arch = archs[size > 0 ? (data[0] - '0' + 240u) % DT_COUNT(archs) : 0];
    dt_model_info info = { .n_eos = 0 };
    dti_json_doc doc;
    void *self;

    if (size < 1 || size > MOST_BYTES) return 0;
    if (!fuzz_failed(dti_json_parse("config.json", (const char *)data + 1, size - 1, &doc))) {
        if (dti_alloc(arch->self_bytes, &self) != DT_OK) fuzz_stop("no memory");
        if (!fuzz_failed(arch->read_config(self, &doc.root, &info))) {
            check_info(&info);
            if (info.n_layers <= MOST_LAYERS) check_layers(arch, self, &info);
        }
        arch->release(self);
        dti_free(self);
    }
    dti_json_free(&doc);
    return 0;
}

#ifndef DT_LIBFUZZER

/* clang-format off */
#define DECODER "\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4," \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-05,\"hidden_act\":\"silu\",\"tie_word_embeddings\":true"
static const fuzz_seed seeds[] = { /* '0' is llama, '1' qwen3, '2' gpt_neo, '3' qwen2, '4' gemma3, '5' phi3 */
    { "0{" DECODER ",\"attention_bias\":false,\"mlp_bias\":true,\"bos_token_id\":1,\"eos_token_id\":[2,3],"
      "\"torch_dtype\":\"bfloat16\"}", 0 },
    { "0{" DECODER ",\"head_dim\":8,\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
      "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":32}}", 0 },
    { "0{" DECODER ",\"rope_parameters\":{\"rope_type\":\"linear\",\"rope_theta\":1e4,\"factor\":2},"
      "\"dtype\":\"float32\",\"head_dim\":null}", 0 },
    { "1{" DECODER ",\"head_dim\":16,\"use_sliding_window\":false,\"max_window_layers\":2,\"sliding_window\":null,"
      "\"layer_types\":[\"full_attention\",\"full_attention\"],\"eos_token_id\":7}", 0 },
    { "0{" DECODER ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"mscale\":1.0,\"mscale_all_dim\":0.5,\"beta_fast\":8,"
      "\"truncate\":false}}", 0 },
    { "0{" DECODER ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,2,3.5,4],"
      "\"original_max_position_embeddings\":32}}", 0 },
    { "3{" DECODER ",\"use_sliding_window\":true,\"max_window_layers\":1,\"sliding_window\":5,"
      "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}}", 0 },
    { "3{" DECODER ",\"use_sliding_window\":true,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", 0 },
    { "4{" DECODER ",\"head_dim\":8,\"sliding_window\":5,\"sliding_window_pattern\":2,\"query_pre_attn_scalar\":8,"
      "\"rope_local_base_freq\":100.0,\"rope_theta\":1e6,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}}", 0 },
    { "4{" DECODER ",\"head_dim\":8,\"layer_types\":[\"full_attention\",\"sliding_attention\"],\"final_logit_softcapping\":30.0,"
      "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"},\"sliding_attention\":{\"rope_theta\":1e4}}}", 0 },
    { "5{" DECODER ",\"sliding_window\":7,\"partial_rotary_factor\":0.75,\"original_max_position_embeddings\":32,"
      "\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1,1],\"long_factor\":[1,2,4]}}", 0 },
    { "2{\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":null,\"num_layers\":4,\"num_heads\":4,"
      "\"max_position_embeddings\":64,\"window_size\":8,\"layer_norm_epsilon\":1e-5,\"activation_function\":\"gelu_new\","
      "\"attention_types\":[[[\"global\",\"local\"],2]]}", 0 },
    { "2{\"hidden_size\":8,\"num_layers\":2,\"num_heads\":2,\"attention_layers\":[\"global\",\"local\"]}", 0 },
};
static const char *const words[] = {
    "[", "]", "{", "}", ",", ":", "\"", "null", "true", "0", "-1", "1", "3", "4096", "1073741824", "1073741825", "9223372036854775807",
    "99999999999999999999", "1e308", "1e-308", "1e999", "0.5", "NaN", "[]", "{}", "\"\"", "\"x\"", "\"silu\"", "\"global\"", "\"local\"",
    "\"llama3\"", "\"yarn\"", "\"type\"", "\"factor\":0", "\"rope_theta\"", "\"head_dim\"", "\"num_layers\"", "\"quantization_config\"",
    "\"partial_rotary_factor\":0.5", "[[[\"global\"],4096]]", "\\u0000", "\xff", "\033", " ",
};
static const fuzz_table table = { "fuzz_config", 20000, MOST_BYTES, seeds, DT_COUNT(seeds), words, DT_COUNT(words), NULL };
/* clang-format on */

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
