/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes of a request, on the thread that waits for it: callbacks, texts, replies. */
#ifndef DTI_WAITER_H
#define DTI_WAITER_H

#include "models/generation/generated.h"
#include "service/crew.h"

struct dt_reply {
    dt_piece *pieces; /* their data is their own */
    int64_t n;
    size_t room;
};

typedef struct dti_waiter {
    dt_request_options how;
    dt_token_fn on_token; /* of a single text's options */
    void *token_arg;
    dt_scores_fn on_scores;
    void *scores_arg;
    dt_progress_fn progress; /* of a load */
    void *progress_arg;
    dt_tokenizer *tokenizer; /* for on_text; a reference */
    int64_t n_logprobs;      /* of each token; 0: none */
    int64_t n_texts;
    dt_tokenizer_stream **streams; /* [n_texts] */
    int64_t *told;                 /* [n_texts] tokens that callbacks have heard of */
    dt_generated *texts;
    dt_reply *reply;
    bool waited;
    bool enough; /* a callback has said so: none is called any more */
} dti_waiter;

/* n_texts texts to come. */
dt_status dti_waiter_create(const dt_request_options *how, int64_t n_texts,
                            dti_waiter **out) DT_MUST_USE;
void dti_waiter_free(dti_waiter *w); /* accepts NULL */

/* Takes an event in. */
dt_status dti_waiter_take(dti_waiter *w, const dti_event *e) DT_MUST_USE;

/* Texts that nobody has told of were cancelled. */
void dti_waiter_cancelled(dti_waiter *w);

#endif
