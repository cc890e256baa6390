/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of all tokens, for who looks at many of them: made once for a tokenizer. */
#ifndef DTI_TOKEN_TEXTS_H
#define DTI_TOKEN_TEXTS_H

#include <dtensor/tokenizer.h>

/* Token i has text[begin[i]] to text[begin[i + 1]]; special tokens are no text, they have none. */
typedef struct dti_token_texts {
    char *text;
    size_t *begin; /* [n + 1] */
    int64_t n;
} dti_token_texts;

/* Those of `tok`, which owns them; made by who asks first. Any thread may ask. */
dt_status dti_tokenizer_texts(dt_tokenizer *tok, const dti_token_texts **out) DT_MUST_USE;
void dti_token_texts_free(dti_token_texts *t); /* accepts NULL */

#endif
