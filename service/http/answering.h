/* SPDX-License-Identifier: Apache-2.0
 *
 * An answer that a model writes: from a body to a ticket of the service, and from its tokens to
 * JSON, all at once or as events. */
#ifndef DTI_HTTP_ANSWERING_H
#define DTI_HTTP_ANSWERING_H

#include "service/http/choices.h"
#include "service/http/exchange.h"
#include "service/http/wish.h"

typedef struct dti_generation {
    dti_exchange *x;
    dti_http_model *model;
    bool admitted; /* counted among the model's requests */
    dti_wish wish;
    dt_ids *prompts; /* [wish.n_prompts] */
    int32_t **owned; /* [wish.n_prompts] ids that a tokenizer made */
    int64_t longest;
    int64_t width; /* texts of each prompt that are made; where the best token is always taken one
                    * stands for all n */
    dti_http_choice *choices; /* [wish.n_prompts * wish.n] */
    int64_t n_choices;
    dt_ticket *ticket;
    dt_generated *made;
    char id[64];
    int64_t created, last_ns;
    bool told; /* an event is out */
    bool over;
} dti_generation;

/* Reads a body, finds its model, and submits. NULL: refused. */
dti_generation *dti_generation_open(dti_exchange *x, unsigned api);
void dti_generation_free(dti_generation *g); /* accepts NULL */

/* Waits at most ms milliseconds for something to tell; `over` when there is no more. Events of a
 * stream are added to the exchange's `out`. */
void dti_generation_listen(dti_generation *g, int64_t ms);

/* The model that a body names; false: refused. */
bool dti_find_model(dti_exchange *x, dti_wish *w, const struct json_t *tree);

/* A body's tree, with the bytes of all trees of the server bounded: given back with the second. */
struct json_t *dti_exchange_parse(dti_exchange *x, dti_wish *w);
void dti_exchange_parsed(dti_exchange *x, struct json_t *tree);
void dti_refuse_wish(dti_exchange *x, const dti_wish *w);

/* Ids of a wish's prompt i, after the template if there are messages; owned by the caller
 * (dt_tokenizer_free()) where *owned is not NULL. False: refused. */
bool dti_encode(dti_exchange *x, const dti_wish *w, int64_t i, unsigned flags, dt_ids *ids,
                int32_t **owned);

/* --- what it is written as (answer.c) --------------------------------------------------------- */

/* The whole answer. */
void dti_answer_whole(dti_generation *g);

/* What is new of choice i, and once it has ended its end; and what ends a stream. */
void dti_answer_events(dti_generation *g, dti_http_choice *c);
void dti_answer_last_events(dti_generation *g);
void dti_answer_error_event(dti_generation *g, dt_status st);

/* Logprobs of a token that is the next one of a choice (logprobs.c). */
void dti_answer_logprobs(dti_generation *g, dti_http_choice *c, const dt_logprob *list, int64_t n);

#endif
