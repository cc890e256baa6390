/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens that stand outside the model: they are cut out of the text before it sees anything. */
#ifndef DTI_ADDED_TOKENS_H
#define DTI_ADDED_TOKENS_H

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/normalizer.h"

typedef struct dti_added_token {
    dti_text content;
    dti_text normal; /* content as the normalizers leave it, if `normalized`; otherwise empty */
    int32_t id;
    bool special;     /* skipped when decoding, and cut out only on request when encoding */
    bool normalized;  /* looked for in the normalised text */
    bool lstrip;      /* takes the spaces on its left with it */
    bool rstrip;      /* and on its right */
    bool single_word; /* only between characters that are no part of words */
} dti_added_token;

/* Patterns to look for at once, sorted by bytes. */
typedef struct dti_added_set {
    const dti_added_token **tokens;
    size_t n;
    bool by_normal;      /* patterns are `normal`, not `content` */
    uint32_t first[257]; /* tokens whose pattern begins with byte b: first[b] to first[b + 1] - 1 */
} dti_added_set;

typedef struct dti_added_tokens {
    dti_added_token *tokens; /* in the order of the file */
    size_t n;
    dti_added_set all;         /* to find them by content */
    dti_added_set raw, normal; /* those looked for before and after normalisation */
} dti_added_tokens;

/* Reads the "added_tokens" array. Ids are those of the vocabulary, or the next free ones. */
dt_status dti_added_load(dti_added_tokens *added, const dti_json *tokens, const dti_bpe *bpe,
                         const dti_normalizers *normalizers) DT_MUST_USE;
void dti_added_free(dti_added_tokens *added);

/* The added token that is written like this, or NULL. */
const dti_added_token *dti_added_find(const dti_added_tokens *added, const char *s, size_t n);

/* A walk over a text that is cut at added tokens. */
typedef struct dti_added_walk {
    const dti_added_set *set;
    const char *text; /* valid UTF-8 */
    size_t bytes;
    bool skip_special; /* special tokens are ordinary text */
    size_t at;         /* where the search goes on */
    size_t done;       /* text before it was handed out */
} dti_added_walk;

dti_added_walk dti_added_walk_in(const dti_added_set *set, const char *text, size_t bytes,
                                 bool skip_special);

/* The next added token and the text [*begin, *end) before it, possibly empty; NULL with the text
 * that remains after the last one. */
const dti_added_token *dti_added_next(dti_added_walk *walk, size_t *begin, size_t *end);

#endif
