/* SPDX-License-Identifier: Apache-2.0
 *
 * One text of an answer while it is made: tokens become text, stop strings end it, what may still
 * turn out to be one, or a call of a tool, is held back. */
#ifndef DTI_HTTP_CHOICES_H
#define DTI_HTTP_CHOICES_H

#include <dtensor/service.h>

#include "service/http/buffer.h"

/* Token, logprob, the best ones, and where the token's text begins: lists of JSON without their
 * brackets. Of chat only the first one is used. */
enum { DTI_N_LOGPROB_LISTS = 4 };

typedef struct dti_http_choice {
    int64_t index;
    const char *const *stops; /* borrowed */
    int64_t n_stops;
    bool tools; /* calls of tools are looked for */
    dt_tokenizer_stream *stream;
    dti_buffer text; /* all of it, up to a stop string */
    size_t from;     /* where what the model wrote begins: behind an echo of the prompt */
    size_t shown;    /* bytes of it that the client has */
    bool begun;      /* the client has heard of it */
    bool stopped;    /* by a stop string */
    bool ended;
    int64_t n_tokens;
    const char *finish; /* "stop"; NULL: it goes on */
    dti_buffer logprobs[DTI_N_LOGPROB_LISTS];
    dti_buffer calls; /* of tools, as JSON: what is between the brackets of tool_calls */
    int n_calls;
} dti_http_choice;

dt_status dti_choice_open(dti_http_choice *c, dt_tokenizer *tokenizer) DT_MUST_USE;
void dti_choice_free(dti_http_choice *c);

/* A token more; false in *goes_on: a stop string has ended it. */
dt_status dti_choice_take(dti_http_choice *c, int32_t id, bool *goes_on) DT_MUST_USE;

/* It has ended so. */
dt_status dti_choice_end(dti_http_choice *c, dt_end how) DT_MUST_USE;

/* How far its text is certain to be shown. */
size_t dti_choice_certain(const dti_http_choice *c);

#endif
