/* SPDX-License-Identifier: Apache-2.0
 *
 * Every setting of a text, once: the field, its key in generation_config.json, the command's
 * option, and what it may be. */
#include <dtensor/generation.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"

#define KNOB(field, key, option, kind, min, max)                                            \
    {                                                                                       \
#field, key, option, DT_KNOB_##kind, offsetof(dt_generate_options, field), min, max \
    }

/* clang-format off */
static const dt_knob knobs[] = {
/*       field                  key of generation_config.json   option                   kind      from     to          */
    KNOB(max_new_tokens,        "max_new_tokens",               NULL,                    COUNT,    1,       1e15),
    KNOB(max_length,            "max_length",                   "max-length",            COUNT,    0,       1e15),
    KNOB(min_new_tokens,        "min_new_tokens",               "min-new-tokens",        COUNT,    0,       1e15),
    KNOB(min_length,            "min_length",                   "min-length",            COUNT,    0,       1e15),
    KNOB(eos,                   "eos_token_id",                 "eos-ids",               TOKENS,   0,       INT32_MAX),
    KNOB(pad,                   "pad_token_id",                 NULL,                    TOKEN,    -1,      INT32_MAX),
    KNOB(repetition_penalty,    "repetition_penalty",           "repetition-penalty",    NUMBER,   1e-9,    1e9),
    KNOB(no_repeat_ngram_size,  "no_repeat_ngram_size",         "no-repeat-ngram-size",  COUNT,    0,       1e9),
    KNOB(bad_words,             "bad_words_ids",                "bad-words-ids",         WORDS,    0,       INT32_MAX),
    KNOB(forced_bos,            "forced_bos_token_id",          "forced-bos-id",         TOKEN,    0,       INT32_MAX),
    KNOB(forced_eos,            "forced_eos_token_id",          "forced-eos-ids",        TOKENS,   0,       INT32_MAX),
    KNOB(remove_invalid_values, "remove_invalid_values",        "remove-invalid-values", FLAG,     0,       1),
    KNOB(suppress_tokens,       "suppress_tokens",              "suppress-ids",          TOKENS,   0,       INT32_MAX),
    KNOB(begin_suppress_tokens, "begin_suppress_tokens",        "begin-suppress-ids",    TOKENS,   0,       INT32_MAX),
    KNOB(stop_strings,          "stop_strings",                 "stop",                  TEXTS,    0,       0),
    KNOB(do_sample,             "do_sample",                    "sample",                FLAG,     0,       1),
    KNOB(seed,                  NULL,                           "seed",                  SEED,     0,       0x1p64),
    KNOB(temperature,           "temperature",                  "temperature",           NUMBER,   0,       1e9),
    KNOB(top_k,                 "top_k",                        "top-k",                 COUNT,    0,       1e9),
    KNOB(top_p,                 "top_p",                        "top-p",                 NUMBER,   0,       1),
    KNOB(min_p,                 "min_p",                        "min-p",                 NUMBER,   0,       1),
    KNOB(typical_p,             "typical_p",                    "typical-p",             NUMBER,   0,       1),
    KNOB(epsilon_cutoff,        "epsilon_cutoff",               "epsilon-cutoff",        NUMBER,   0,       1),
    KNOB(eta_cutoff,            "eta_cutoff",                   "eta-cutoff",            NUMBER,   0,       1),
    KNOB(renormalize_logits,    "renormalize_logits",           "renormalize-logits",    FLAG,     0,       1),
    KNOB(num_beams,             "num_beams",                    "num-beams",             COUNT,    1,       1e6),
    KNOB(num_return_sequences,  "num_return_sequences",         "num-return-sequences",  COUNT,    1,       1e6),
    KNOB(length_penalty,        "length_penalty",               "length-penalty",        NUMBER,   -1e9,    1e9),
    KNOB(early_stopping,        "early_stopping",               "early-stopping",        STOPPING, 0,       2),
    KNOB(sequence_bias,         "sequence_bias",                NULL,                    BIASES,   0,       INT32_MAX),
    KNOB(presence_penalty,      NULL,                           "presence-penalty",      NUMBER,   -1e3,    1e3),
    KNOB(frequency_penalty,     NULL,                           "frequency-penalty",     NUMBER,   -1e3,    1e3),
    KNOB(n_logprobs,            NULL,                           NULL,                    COUNT,    -1,      1024),
    KNOB(json_object,           NULL,                           NULL,                    FLAG,     0,       1),
    KNOB(json_schema,           NULL,                           NULL,                    TEXT,     0,       0),
    KNOB(ignore_eos,            NULL,                           "ignore-eos",            FLAG,     0,       1),
};
/* clang-format on */

const dt_knob *dt_generate_knobs(int *n)
{
    if (n != NULL) *n = (int)DT_COUNT(knobs);
    return knobs;
}

const dt_knob *dt_generate_knob(const char *field)
{
    for (size_t i = 0; field != NULL && i < DT_COUNT(knobs); i++)
        if (strcmp(knobs[i].field, field) == 0) return &knobs[i];
    return NULL;
}
