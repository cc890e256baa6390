/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoders: steps that turn the strings of tokens into text. */
#ifndef DTI_DECODER_H
#define DTI_DECODER_H

#include "text/tokenizer/pre_tokenizer.h"

typedef struct dti_text_decoder {
    const struct dti_decoder_row *row;
    dti_regex *regex;    /* Replace */
    dti_text content;    /* Replace: by what; Strip, Metaspace: the character */
    size_t start, stop;  /* Strip: how many at most */
    dti_prepend prepend; /* Metaspace */
    /* A step before it makes one string of all tokens: what it is given are parts of that. */
    bool fused;
} dti_text_decoder;

typedef struct dti_decoders {
    dti_text_decoder steps[DTI_MAX_STEPS];
    size_t n;
} dti_decoders;

/* Reads the "decoder" of the file: an object, or null for none (tokens joined by spaces). */
dt_status dti_decoders_load(dti_decoders *all, const dti_json *from) DT_MUST_USE;
void dti_decoders_free(dti_decoders *all);

/* Whether there is a step of that name. */
bool dti_decoders_have(const dti_decoders *all, const char *step);

/* Tokens on their way through the steps. Give `all`; zeros otherwise. */
typedef struct dti_decoding {
    const dti_decoders *all;
    dti_text out; /* what came out so far: whole characters */
    dti_matcher matcher;
    size_t n_in; /* bytes of tokens so far */
    struct {
        dti_text whole;         /* parts of a string that is needed as a whole */
        dti_text held;          /* ByteFallback: a run of bytes */
        dti_text bytes, result; /* scratch */
        dti_utf8_repair repair; /* ByteLevel */
        size_t n_start, n_stop; /* Strip: characters stripped in front, and waiting at the end */
        bool begun;             /* Strip: the front is over; others: there was a token before */
    } state[DTI_MAX_STEPS];
} dti_decoding;

void dti_decoding_free(dti_decoding *d);
void dti_decoding_reset(dti_decoding *d); /* to the beginning, keeping its memory */

/* DT_ERR_UNSUPPORTED: the steps make far more of the tokens than they are, or need far longer. */
dt_status dti_decoding_push(dti_decoding *d, const char *token, size_t n) DT_MUST_USE;
dt_status dti_decoding_flush(dti_decoding *d) DT_MUST_USE;

#endif
