/* SPDX-License-Identifier: Apache-2.0
 *
 * What the options of a run mean: processors of scores, and what ends a text. */
#ifndef DTI_TEXT_RULES_H
#define DTI_TEXT_RULES_H

#include <dtensor/generation.h>

#include "models/generation/scores.h"

/* What the sequences of a run have read and written, without padding. */
typedef struct dti_history {
    const int32_t *ids; /* [n_rows, room] */
    int64_t room;
    const int64_t *length; /* [n_rows] */
} dti_history;

/* Options with everything settled. */
typedef struct dti_text_rules {
    dt_generate_options o;
    dt_ids eos; /* none with ignore_eos */
    int64_t vocab;
    int64_t n_prompt;   /* tokens of the longest prompt: lengths count padding, as upstream */
    int64_t max_length; /* n_prompt + new tokens */
    int64_t min_length;
    int64_t n_new;  /* tokens that each row has got so far */
    int64_t keep;   /* tokens that truncation leaves at least */
    bool processes; /* there is more to do than to take the best */
    dti_top top;    /* what sampling needs of a row; n 0: all of it */
    /* of the processors */
    float *limits, *values;
    dti_norm *norms;
    unsigned char *seen;
    int32_t *window;                     /* of stop strings */
    struct dti_json_schema *schema;      /* of json_schema or json_object; NULL: of neither */
    const struct dti_token_texts *texts; /* the tokenizer's; with a schema, when they are needed */
    struct dti_json_memory *json;        /* with them: what texts have come to */
    int64_t n_texts;                     /* that it is of, as far as is known by now */
    size_t window_room, limits_room, values_room, norms_room, seen_room;
} dti_text_rules;

/* Checks the options of a run and settles what they leave open. Freed with dti_rules_free(). */
dt_status dti_rules_make(dti_text_rules *rules, const dt_model_info *info,
                         const dt_generate_options *o, int64_t n_prompt) DT_MUST_USE;

/* Checks them as dti_rules_make() does, apart from lengths, which depend on the prompt. Here and
 * below `names` are for messages, NULL: the fields' own. */
dt_status dti_options_check(const dt_generate_options *o, const dt_model_info *info,
                            const dt_option_names *names) DT_MUST_USE;

/* What dt_generate_batch() asks of them beside. */
dt_status dti_texts_check(const dt_generate_options *o, const dt_model_info *info,
                          const dt_option_names *names) DT_MUST_USE;
void dti_rules_free(dti_text_rules *rules); /* accepts a zeroed one */

/* What a schema needs beside, if there is one: the bytes of all tokens, and a memory. */
dt_status dti_rules_make_texts(dti_text_rules *rules) DT_MUST_USE;

bool dti_is_eos(const dti_text_rules *rules, int32_t id);

/* Whether a sequence that has read and written n tokens ends with `next`, its next new token. */
dt_status dti_ends(dti_text_rules *rules, const int32_t *ids, int64_t n, int32_t next,
                   dt_end *out) DT_MUST_USE;

/* Most of top_k with which the k best are looked at alone. */
enum { DTI_TOP_K_MOST = 256 };

/* All processors, in Transformers' order. Of few columns only those that look at probabilities:
 * where others have anything to do, all are taken. Collective. */
dt_status dti_process(dti_text_rules *rules, const dti_history *h, dti_scores *s) DT_MUST_USE;

/* Its two halves: what looks at tokens, and what looks at probabilities and only sampling does. */
dt_status dti_process_tokens(dti_text_rules *rules, const dti_history *h,
                             dti_scores *s) DT_MUST_USE;
dt_status dti_process_sampling(dti_text_rules *rules, dti_scores *s) DT_MUST_USE;

#endif
