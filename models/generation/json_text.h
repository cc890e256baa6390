/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON while it is written: which bytes may come next so that a text becomes one JSON object. What
 * a row has written says all; ranks come to the same by themselves. */
#ifndef DTI_JSON_TEXT_H
#define DTI_JSON_TEXT_H

#include "models/generation/text_rules.h"

enum { DTI_JSON_MOST_DEPTH = 32 };

/* Where a text is. All zeros: before its first byte. Copy freely. */
typedef struct dti_json_state {
    uint8_t mode;  /* a json_mode of json_text.c */
    uint8_t depth; /* open brackets */
    uint8_t count; /* of blanks or digits, which are bounded, or of what is left of a character */
    uint8_t low, high; /* what the next byte of a character may be */
    uint8_t word, at;  /* of true, false, null; of \uXXXX how many digits */
    bool key;          /* the string is a key */
    uint32_t arrays;   /* bit d: bracket d is one of an array */
} dti_json_state;

/* One byte more; false: no object begins so, and *s is of no use any more. */
bool dti_json_step(dti_json_state *s, unsigned char byte);

/* Whether the object is there, whole. */
bool dti_json_is_whole(const dti_json_state *s);

/* Bytes of all tokens of a vocabulary: token i has text[begin[i]] to text[begin[i + 1]]. */
typedef struct dti_token_texts {
    char *text;
    size_t *begin; /* [n + 1] */
    int64_t n;
} dti_token_texts;
dt_status dti_token_texts_make(dti_token_texts *t, const dt_tokenizer *tok,
                               int64_t vocab) DT_MUST_USE;
void dti_token_texts_free(dti_token_texts *t); /* accepts a zeroed one */

/* Where n tokens lead; false: nowhere. */
bool dti_json_read_tokens(const dti_token_texts *t, const int32_t *ids, int64_t n,
                          dti_json_state *out);

/* Whether `next` ends the object that the last n_new of n tokens have begun. */
bool dti_json_ends(const dti_text_rules *rules, const int32_t *ids, int64_t n, int32_t next);

/* Bans what no object goes on with, among columns from `first` on. */
void dti_json_mask(const dti_token_texts *t, const dti_json_state *s, float *scores, int64_t first,
                   int64_t n);

#endif
