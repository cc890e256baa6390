/* SPDX-License-Identifier: Apache-2.0
 *
 * What callers ask for: checked on their own thread, packed, queued, waited for. */
#include <string.h>

#include "base/numbers.h"
#include "base/options.h"
#include "service/ranks.h"
#include "service/served.h"
#include "service/waiter.h"

static dt_status read_request(const dt_request_options *request, dt_request_options *out)
{
    *out = (dt_request_options)DT_REQUEST_OPTIONS_INIT;
    DT_TRY(dti_options_read("dt_request_options", "start from DT_REQUEST_OPTIONS_INIT", request,
                            out, sizeof *out));
    DT_CHECK(out->deadline_ms >= 0, DT_ERR_ARG, "deadline_ms is %lld", (long long)out->deadline_ms);
    return DT_OK;
}

/* --- texts ------------------------------------------------------------------------------------ */

static dt_status check_texts(const dti_crew *c, const dt_ids *prompts, int64_t n_prompts,
                             const dt_generate_options *o, int64_t *n_tokens)
{
    int64_t longest = 0;

    DT_CHECK(prompts != NULL && n_prompts >= 1 && n_prompts <= DT_MAX_SEQUENCES, DT_ERR_ARG,
             "%lld prompts", (long long)n_prompts);
    *n_tokens = 0;
    for (int64_t i = 0; i < n_prompts; i++) {
        DT_CHECK(prompts[i].ids != NULL && prompts[i].n >= 1, DT_ERR_ARG,
                 "prompt %lld is empty: generation needs at least one token to start from",
                 (long long)i);
        longest = dti_max(longest, prompts[i].n);
        *n_tokens += prompts[i].n;
    }
    DT_TRY(dt_generate_check(o, &c->info, longest, NULL));
    DT_TRY(dt_generate_batch_check(o, &c->info, NULL));
    DT_CHECK(
        o->on_token == NULL || (n_prompts == 1 && o->num_return_sequences == 1), DT_ERR_ARG,
        "on_token of dt_generate_options is for one text; that of dt_request_options for many");
    return DT_OK;
}

static dt_status make_texts(dt_served *m, dti_crew *c, const dt_ids *prompts, int64_t n_prompts,
                            dt_generate_options *o, const dt_request_options *how, dt_ticket **out)
{
    dt_tokenizer *tokenizer = NULL;
    dt_ticket *t = NULL;
    dt_status st = DT_OK;
    int64_t n;

    if (o->n_stop_strings > 0 || o->json_object || o->json_schema != NULL || how->on_text != NULL)
        DT_TRY(dti_served_open(m, &tokenizer, NULL));
    o->tokenizer = tokenizer; /* never changes: ranks may use it, too */
    DT_TRY_TO(done, st, check_texts(c, prompts, n_prompts, o, &n));
    DT_TRY_TO(done, st, dti_ticket_create(c, DTI_TICKET_TEXTS, how, &t));
    DT_TRY_TO(done, st, dti_waiter_create(how, n_prompts * o->num_return_sequences, &t->waiter));
    t->n_prompt = n;
    t->by_turns =
        o->num_beams > 1 || (o->on_scores != NULL && n_prompts * o->num_return_sequences > 1);
    t->waiter->tokenizer = dt_tokenizer_retain(tokenizer);
    t->waiter->n_logprobs = o->n_logprobs + 1;
    t->waiter->on_token = o->on_token;
    t->waiter->token_arg = o->arg;
    t->waiter->on_scores = o->on_scores;
    t->waiter->scores_arg = o->scores_arg;
    t->tells_tokens = how->on_token != NULL || how->on_text != NULL || o->on_token != NULL ||
                      how->on_logprobs != NULL;
    DT_TRY_TO(done, st, dti_packet_put_options(&t->packet, o));
    DT_TRY_TO(done, st, dti_packet_put_lists(&t->packet, prompts, n_prompts));
    DT_TRY_TO(done, st, dti_packet_put(&t->packet, &how->salt, sizeof how->salt));
    DT_TRY_TO(done, st, dti_ticket_queue(t));
    *out = t;
    t = NULL;
done:
    dt_tokenizer_release(&tokenizer);
    dti_ticket_release(&t);
    return st;
}

dt_status dt_service_submit(dt_served *model, const dt_ids *prompts, int64_t n_prompts,
                            const dt_generate_options *options, const dt_request_options *request,
                            dt_ticket **out)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_request_options how;
    dti_crew *c;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dti_options_read("dt_generate_options", "start from DT_GENERATE_OPTIONS_INIT", options,
                            &o, sizeof o));
    DT_TRY(read_request(request, &how));
    DT_TRY(dti_served_crew(model, &c));
    st = make_texts(model, c, prompts, n_prompts, &o, &how, out);
    dti_crew_release(c);
    DT_TRY(st);
    return DT_OK;
}

dt_status dt_ticket_wait(dt_ticket *ticket, dt_generated **out)
{
    DT_CHECK(ticket != NULL && out != NULL, DT_ERR_ARG, "ticket or out is NULL");
    *out = NULL;
    DT_TRY(dti_ticket_wait(ticket));
    *out = ticket->waiter->texts;
    ticket->waiter->texts = NULL;
    return DT_OK;
}

dt_status dt_service_generate(dt_served *model, const dt_ids *prompts, int64_t n_prompts,
                              const dt_generate_options *options, const dt_request_options *request,
                              dt_generated **out)
{
    dt_ticket *t;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dt_service_submit(model, prompts, n_prompts, options, request, &t));
    st = dt_ticket_wait(t, out);
    dt_ticket_release(&t);
    DT_TRY(st);
    return DT_OK;
}

/* --- a conversation --------------------------------------------------------------------------- */

static dt_status answer(dt_served *model, const dt_ids *prompt, const dt_tokenizer *tokenizer,
                        dt_generate_options *o, const dt_request_options *request, char **text)
{
    dt_generated *g = NULL;
    dt_model_info info;
    dt_ids ids;
    size_t n;
    dt_status st;

    DT_TRY(dt_service_info(model, &info));
    if (o->max_new_tokens < 0 && o->max_length == 0) {
        DT_CHECK(prompt->n < info.max_positions, DT_ERR_ARG,
                 "the conversation has %lld tokens and fills the model's context of %lld",
                 (long long)prompt->n, (long long)info.max_positions);
        o->max_new_tokens = info.max_positions - prompt->n;
    }
    DT_TRY(dt_service_generate(model, prompt, 1, o, request, &g));
    ids = dt_generated_ids(g, 0);
    st = dt_tokenizer_decode(tokenizer, ids.ids, (size_t)ids.n, true, text, &n);
    dt_generated_release(&g);
    DT_TRY(st);
    return DT_OK;
}

dt_status dt_service_chat(dt_served *model, const dt_chat_message *messages, size_t n_messages,
                          const dt_chat_options *chat, const dt_generate_options *options,
                          const dt_request_options *request, char **text)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_tokenizer *tokenizer = NULL;
    dt_chat *template = NULL;
    char *prompt = NULL;
    int32_t *ids = NULL;
    size_t n_bytes, n;
    dt_status st;

    DT_CHECK(model != NULL && text != NULL, DT_ERR_ARG, "model or text is NULL");
    *text = NULL;
    DT_TRY(dti_options_read("dt_generate_options", "start from DT_GENERATE_OPTIONS_INIT", options,
                            &o, sizeof o));
    DT_CHECK(o.num_return_sequences == 1, DT_ERR_ARG, "num_return_sequences is %lld: a turn is one",
             (long long)o.num_return_sequences);
    DT_TRY(dti_served_open(model, &tokenizer, &template));
    DT_TRY_TO(done, st, dt_chat_render(template, messages, n_messages, chat, &prompt, &n_bytes));
    DT_TRY_TO(done, st,
              dt_tokenizer_encode(tokenizer, prompt, n_bytes, DT_ENCODE_PARSE_SPECIAL, &ids, &n));
    DT_TRY_TO(done, st, answer(model, &(dt_ids){ ids, (int64_t)n }, tokenizer, &o, request, text));
done:
    dt_tokenizer_free(ids);
    dt_chat_free(prompt);
    dt_chat_release(&template);
    dt_tokenizer_release(&tokenizer);
    return st;
}

/* --- calls ------------------------------------------------------------------------------------ */

static dt_status make_call(dti_crew *c, const char *name, const dt_piece *inputs, int64_t n_inputs,
                           const dt_request_options *how, dt_reply **out)
{
    dt_ticket *t = NULL;
    dt_status st;

    DT_TRY(dti_ticket_create(c, DTI_TICKET_CALL, how, &t));
    DT_TRY_TO(done, st, dti_waiter_create(how, 0, &t->waiter));
    DT_TRY_TO(done, st, dti_packet_put_text(&t->packet, name));
    DT_TRY_TO(done, st, dti_packet_put_pieces(&t->packet, inputs, n_inputs));
    DT_TRY_TO(done, st, dti_ticket_queue(t));
    DT_TRY_TO(done, st, dti_ticket_wait(t));
    if (out != NULL) {
        *out = t->waiter->reply;
        t->waiter->reply = NULL;
    }
done:
    dti_ticket_release(&t);
    return st;
}

dt_status dt_service_call(dt_served *model, const char *name, const dt_piece *inputs,
                          int64_t n_inputs, const dt_request_options *request, dt_reply **out)
{
    dt_request_options how;
    dti_crew *c;
    dt_status st;

    if (out != NULL) *out = NULL;
    DT_CHECK(name != NULL, DT_ERR_ARG, "name is NULL");
    DT_TRY(read_request(request, &how));
    DT_TRY(dti_served_crew(model, &c));
    st = make_call(c, name, inputs, n_inputs, &how, out);
    dti_crew_release(c);
    DT_TRY(st);
    return DT_OK;
}

static dt_piece piece_of(const dt_ids *ids)
{
    dt_piece piece = { ids->ids, (size_t)ids->n * sizeof *ids->ids, DT_I32, 1, { ids->n } };

    return piece;
}

dt_status dt_service_forward(dt_served *model, const dt_ids *sequences, int64_t n_sequences,
                             const dt_forward_options *options, const dt_request_options *request,
                             dt_reply **out)
{
    dt_forward_options o = DT_FORWARD_OPTIONS_INIT;
    dt_piece *pieces;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dti_options_read("dt_forward_options", "start from DT_FORWARD_OPTIONS_INIT", options, &o,
                            sizeof o));
    DT_CHECK(sequences != NULL && n_sequences >= 1 && n_sequences <= DT_MAX_SEQUENCES, DT_ERR_ARG,
             "%lld sequences", (long long)n_sequences);
    DT_TRY(dti_alloc_array((size_t)n_sequences + 1, sizeof *pieces, (void **)&pieces));
    pieces[0] = (dt_piece){ .data = &o, .n_bytes = sizeof o };
    for (int64_t i = 0; i < n_sequences; i++) {
        DT_CHECK_TO(done, st, sequences[i].ids != NULL && sequences[i].n >= 1, DT_ERR_ARG,
                    "sequence %lld is empty", (long long)i);
        pieces[i + 1] = piece_of(&sequences[i]);
    }
    st = dt_service_call(model, dti_forward_name, pieces, n_sequences + 1, request, out);
done:
    dti_free(pieces);
    return st;
}

/* --- what the folder asks for ----------------------------------------------------------------- */

dt_status dt_service_generate_options(dt_served *model, dt_generate_options *out)
{
    dti_crew *c;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    DT_TRY(dti_served_crew(model, &c));
    if (c->defaults_error.code == DT_OK)
        *out = c->defaults;
    else
        dti_error_restore(&c->defaults_error);
    st = c->defaults_error.code;
    dti_crew_release(c);
    return st;
}
