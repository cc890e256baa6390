/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing generation_config.json: any bytes are refused with a message, or give options of which
 * each is within its range, or which a run refuses by name. */
#include "tests/fuzz/fuzz.h"

#include "models/architectures/config_keys.h"
#include "models/generation/generation_config.h"
#include "models/generation/text_rules.h"

enum { MOST_BYTES = 1 << 12 };

static void check_rules(const dti_text_rules *u)
{
    const dt_generate_options *o = &u->o;

    if (u->max_length < u->n_prompt) fuzz_stop("a length below the prompt's");
    if (o->do_sample && !(o->temperature > 0 && o->top_p >= 0 && o->top_p <= 1))
        fuzz_stop("sampling out of bounds");
    if (!(o->repetition_penalty > 0) || o->num_beams < 1) fuzz_stop("options out of bounds");
    for (int64_t i = 0; i < o->suppress_tokens.n; i++)
        if (o->suppress_tokens.ids[i] < 0 || o->suppress_tokens.ids[i] >= u->vocab)
            fuzz_stop("a token outside the vocabulary");
    for (int64_t w = 0; w < o->n_bad_words; w++)
        if (o->bad_words[w].n < 1) fuzz_stop("an empty word");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dt_model_info info = { .vocab_size = 64, .max_positions = 128 };
    dti_generation_config config = { 0 };
    dti_text_rules rules = { 0 };
    dti_json_doc doc;

    if (size > MOST_BYTES) return 0;
    if (!fuzz_failed(dti_json_parse("generation_config.json", (const char *)data, size, &doc)) &&
        !fuzz_failed(dti_config_eos(&doc.root, &info)) &&
        !fuzz_failed(dti_generation_config_read(&doc.root, &config)) &&
        !fuzz_failed(dti_rules_make(&rules, &info, &config.options, 9)))
        check_rules(&rules);
    dti_rules_free(&rules);
    dti_generation_config_free(&config);
    dti_json_free(&doc);
    return 0;
}

#ifndef DT_LIBFUZZER

/* clang-format off */
static const fuzz_seed seeds[] = {
    { "{\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.9,\"top_k\":50,\"eos_token_id\":[1,2],\"pad_token_id\":0}", 0 },
    { "{\"bad_words_ids\":[[1],[2,3]],\"suppress_tokens\":[4],\"begin_suppress_tokens\":[5],\"forced_eos_token_id\":[1,2]}", 0 },
    { "{\"num_beams\":4,\"num_return_sequences\":2,\"early_stopping\":\"never\",\"length_penalty\":-1.0,\"max_length\":40}", 0 },
    { "{\"min_p\":0.1,\"typical_p\":0.9,\"epsilon_cutoff\":0.01,\"eta_cutoff\":0.02,\"repetition_penalty\":1.3}", 0 },
    { "{\"no_repeat_ngram_size\":3,\"min_new_tokens\":4,\"max_new_tokens\":12,\"forced_bos_token_id\":3,\"renormalize_logits\":true}", 0 },
    { "{\"guidance_scale\":1.5,\"top_h\":null,\"sequence_bias\":{},\"num_beam_groups\":1,\"transformers_version\":\"4.44.0\"}", 0 },
};
static const char *const words[] = {
    "[", "]", "{", "}", ",", ":", "\"", "null", "true", "false", "0", "-1", "1", "64", "2147483648", "9223372036854775807",
    "99999999999999999999", "1e308", "1e-308", "-0.5", "1.5", "[]", "[[]]", "[[1,[2]]]", "{}", "\"\"", "\"never\"", "\"soon\"",
    "\"stop_strings\":\"x\"", "\"temperature\":0", "\"top_p\":2", "\"do_sample\":true", "\"eos_token_id\":[-1,1]", "\\u0000", "\xff", " ",
};
static const fuzz_table table = { "fuzz_generation", 20000, MOST_BYTES, seeds, DT_COUNT(seeds), words, DT_COUNT(words), NULL };
/* clang-format on */

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
