/* SPDX-License-Identifier: Apache-2.0
 *
 * What a vocabulary cannot write. A byte-level tokenizer without an unknown token drops what it has
 * no token for, here as in the reference library; whoever encodes a prompt wants to know. */
#ifndef DTI_COVERAGE_H
#define DTI_COVERAGE_H

#include <dtensor/tokenizer.h>

/* How many of the bytes that UTF-8 is made of the tokenizer would drop, and the first of them; 0
 * for a tokenizer that is not byte-level or has an unknown token. */
int dti_tokenizer_lost_bytes(const dt_tokenizer *tok, unsigned char *first);

/* Whether a short text of everything that texts are made of goes through the tokenizer and back:
 * steps that need for ever, or make gigabytes of a letter, are found before a prompt is. Errors:
 * those of encoding and decoding. */
dt_status dti_tokenizer_try(const dt_tokenizer *tok) DT_MUST_USE;

#endif
