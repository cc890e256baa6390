/* SPDX-License-Identifier: Apache-2.0
 *
 * From a body to a ticket, and its life. */
#include "service/http/answering.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/numbers.h"
#include "base/sync.h"
#include "service/http/routes.h"

/* --- bodies and models ------------------------------------------------------------------------ */

void dti_refuse_wish(dti_exchange *x, const dti_wish *w)
{
    if (w->status == 503) x->retry_after_s = 1;
    dti_refuse(x, w->status, w->param[0] != '\0' ? w->param : NULL, "%s", w->message);
}

json_t *dti_exchange_parse(dti_exchange *x, dti_wish *w)
{
    dt_server *s = x->server;
    const int64_t n = (int64_t)x->body.n;
    json_t *tree = NULL;

    if (atomic_fetch_add(&s->parsed_bytes, n) + n > dti_max(s->options.max_parsed_bytes, n)) {
        x->retry_after_s = 1;
        dti_refuse(x, 503, NULL, "too many bodies are read at the same time");
    } else {
        tree = dti_wish_parse(w, x->body.bytes, x->body.n);
        if (tree == NULL) dti_refuse_wish(x, w);
    }
    if (tree == NULL) (void)atomic_fetch_sub(&s->parsed_bytes, n);
    return tree;
}

void dti_exchange_parsed(dti_exchange *x, json_t *tree)
{
    json_decref(tree);
    (void)atomic_fetch_sub(&x->server->parsed_bytes, (int64_t)x->body.n);
    dti_buffer_free(&x->body);
}

dti_http_model *dti_server_model(dt_server *s, const char *name)
{
    if (name == NULL) return &s->models[0];
    for (int i = 0; i < s->n_models; i++)
        if (strcmp(s->models[i].name, name) == 0) return &s->models[i];
    return NULL;
}

bool dti_find_model(dti_exchange *x, dti_wish *w, const json_t *tree)
{
    const json_t *said = json_object_get(tree, "model");
    dt_status st;

    if (said != NULL && !json_is_null(said) && !json_is_string(said)) {
        dti_refuse(x, 400, "model", "model must be a text");
        return false;
    }
    x->model = dti_server_model(x->server, json_string_value(said));
    if (x->model == NULL) {
        dti_refuse(x, 404, "model", "there is no such model; GET /v1/models lists them");
        return false;
    }
    w->vocab = x->model->info.vocab_size;
    w->calls = x->model->calls;
    st = dt_service_generate_options(x->model->served, &w->o);
    if (st != DT_OK) dti_refuse_status(x, st);
    return st == DT_OK;
}

bool dti_encode(dti_exchange *x, const dti_wish *w, int64_t i, unsigned flags, dt_ids *ids,
                int32_t **owned)
{
    dti_http_model *m = x->model;
    const char *text = w->n_prompts > 0 && w->prompts != NULL ? w->prompts[i].text : NULL;
    dt_chat_options chat = DT_CHAT_OPTIONS_INIT;
    size_t n_bytes = text != NULL ? w->prompts[i].n_bytes : 0, n = 0;
    dti_buffer begun = { 0 };
    char *rendered = NULL;
    dt_status st = DT_OK;

    *owned = NULL;
    *ids = (dt_ids)DT_IDS_NONE;
    if (w->variables == NULL && text == NULL) {
        *ids = w->prompts[i].ids;
        return true;
    }
    if (w->variables != NULL && m->chat == NULL) {
        dti_refuse(x, 400, "messages", "model %s has no chat template; use /v1/completions",
                   m->name);
        return false;
    }
    chat.variables = w->variables;
    chat.add_generation_prompt = w->add_generation_prompt;
    if (w->variables != NULL) {
        st = dt_chat_render_json(m->chat, &chat, &rendered, &n_bytes);
        flags = DT_ENCODE_PARSE_SPECIAL;
        text = rendered;
    }
    if (st == DT_OK && w->tool_choice == DTI_TOOLS_FORCED) {
        dti_buffer_add(&begun, rendered, n_bytes);
        dti_buffer_text(&begun, w->calls.before);
        st = begun.st;
        text = begun.bytes;
        n_bytes = begun.n;
    }
    if (st == DT_OK) st = dt_tokenizer_encode(m->tokenizer, text, n_bytes, flags, owned, &n);
    dt_chat_free(rendered);
    dti_buffer_free(&begun);
    if (st != DT_OK) dti_refuse_status(x, st);
    *ids = (dt_ids){ *owned, (int64_t)n };
    return st == DT_OK;
}

/* --- prompts ---------------------------------------------------------------------------------- */

static bool encode_all(dti_generation *g)
{
    dti_wish *w = &g->wish;
    const unsigned flags = DT_ENCODE_ADD_SPECIAL | DT_ENCODE_PARSE_SPECIAL;

    if (dti_alloc_array((size_t)w->n_prompts, sizeof *g->prompts, (void **)&g->prompts) != DT_OK ||
        dti_alloc_array((size_t)w->n_prompts, sizeof *g->owned, (void **)&g->owned) != DT_OK) {
        dti_refuse_status(g->x, DT_ERR_MEMORY);
        return false;
    }
    for (int64_t i = 0; i < w->n_prompts; i++) {
        if (!dti_encode(g->x, w, i, flags, &g->prompts[i], &g->owned[i])) return false;
        if (g->prompts[i].n == 0) {
            dti_refuse(g->x, 400, "prompt", "the prompt is empty: a model needs a token to begin");
            return false;
        }
        g->longest = dti_max(g->longest, g->prompts[i].n);
        g->x->prompt_tokens += g->prompts[i].n;
    }
    return true;
}

static bool fits_context(dti_generation *g)
{
    const int64_t room = g->model->context - g->longest;
    dti_buffer *out = &g->x->out;

    if (room > 0) return true;
    dti_buffer_free(out);
    g->x->status = 400;
    dti_buffer_print(out,
                     "{\"error\":{\"message\":\"the prompt has %lld tokens, the context %lld\","
                     "\"type\":\"exceed_context_size_error\",\"param\":null,\"code\":400,"
                     "\"n_prompt_tokens\":%lld,\"n_ctx\":%lld}}",
                     (long long)g->longest, (long long)g->model->context, (long long)g->longest,
                     (long long)g->model->context);
    return false;
}

/* --- options ---------------------------------------------------------------------------------- */

/* Tokens that end a text: the model's, and those of the request. */
static bool join_ends(dti_generation *g)
{
    dti_wish *w = &g->wish;
    const dt_model_info *info = &g->model->info;
    const int64_t n = info->n_eos > 0 ? info->n_eos : 0;
    const dt_ids ends = w->o.eos.ids != NULL ? w->o.eos : (dt_ids){ info->eos, n };
    int32_t *all;

    if (w->stop_ids.n == 0) return true;
    if (dti_arena_alloc(&w->arena, (size_t)(ends.n + w->stop_ids.n) * sizeof *all, (void **)&all) !=
        DT_OK)
        return dti_wish_no_memory(w);
    if (ends.n > 0 && !w->o.ignore_eos) memcpy(all, ends.ids, (size_t)ends.n * sizeof *all);
    w->o.eos = (dt_ids){ all, w->o.ignore_eos ? 0 : ends.n };
    memcpy(all + w->o.eos.n, w->stop_ids.ids, (size_t)w->stop_ids.n * sizeof *all);
    w->o.eos.n += w->stop_ids.n;
    w->o.ignore_eos = false; /* those of the model are not in the list then */
    return true;
}

static void settle(dti_generation *g)
{
    dti_wish *w = &g->wish;
    dt_generate_options *o = &w->o;
    const int64_t room = g->model->context - g->longest;
    const int64_t want = w->max_tokens > 0              ? w->max_tokens
                         : (w->api & DTI_API_CHAT) != 0 ? room
                                                        : 16;

    o->max_new_tokens = want < room ? want : room;
    o->max_length = o->min_length = 0;
    o->num_beams = 1;
    o->do_sample = o->temperature > 0;
    if (!o->do_sample) o->temperature = 1;
    if (!w->has_top_k && !g->model->has_top_k) o->top_k = 0;
    o->seed = (uint64_t)w->seed;
    if (!w->has_seed && getrandom(&o->seed, sizeof o->seed, 0) != (ssize_t)sizeof o->seed)
        o->seed = (uint64_t)dti_now_ns();
    o->tokenizer = g->model->tokenizer; /* checks want one; the service takes its own */
    g->width = o->do_sample ? w->n : 1;
    o->num_return_sequences = g->width;
    o->n_logprobs = w->logprobs ? dti_max(w->n_top, 0) : -1;
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* Choices of text i: all of its prompt where one stands for them. */
static dti_http_choice *choices_of(dti_generation *g, int64_t text, int64_t *n)
{
    *n = g->width == 1 ? g->wish.n : 1;
    return &g->choices[g->width == 1 ? text * g->wish.n : text];
}

static bool is_end(const dti_generation *g, int32_t id)
{
    const dt_generate_options *o = &g->wish.o;
    const dt_model_info *info = &g->model->info;

    if (o->ignore_eos) return false;
    for (int64_t i = 0; i < o->eos.n; i++)
        if (o->eos.ids[i] == id) return true;
    for (int i = 0; o->eos.ids == NULL && i < info->n_eos; i++)
        if (info->eos[i] == id) return true;
    return false;
}

static void count_token(dti_generation *g)
{
    const int64_t now = dti_now_ns();

    if (g->x->first_ns == 0) {
        g->x->first_ns = now;
        dti_histogram_add(&g->model->metrics.first_token, (double)(now - g->x->began_ns) * 1e-9);
    }
    g->last_ns = now;
    g->x->new_tokens++;
}

static void on_logprobs(void *arg, int64_t text, int64_t n, const dt_logprob *list, int64_t n_list)
{
    dti_generation *g = arg;
    int64_t n_choices;
    dti_http_choice *c = choices_of(g, text, &n_choices);

    (void)n;
    for (int64_t i = 0; i < n_choices; i++)
        if (!c[i].stopped) dti_answer_logprobs(g, &c[i], list, n_list);
}

static bool on_token(void *arg, int64_t text, int64_t n, int32_t id)
{
    dti_generation *g = arg;
    bool goes_on = false;
    int64_t n_choices;
    dti_http_choice *c = choices_of(g, text, &n_choices);

    (void)n;
    count_token(g);
    for (int64_t i = 0; i < n_choices; i++) {
        bool more = true;
        if (is_end(g, id)) {
            c[i].n_tokens++;
        } else if (dti_choice_take(&c[i], id, &more) != DT_OK) {
            return false;
        }
        if (g->wish.stream) dti_answer_events(g, &c[i]);
    }
    for (int64_t i = 0; i < g->n_choices && !goes_on; i++) goes_on = !g->choices[i].stopped;
    return goes_on && g->x->out.st == DT_OK;
}

/* --- life ------------------------------------------------------------------------------------- */

/* The prompt before what is written, where that is wanted. */
static dt_status echo(dti_generation *g, dti_http_choice *c)
{
    const dti_prompt *p = &g->wish.prompts[c->index / g->wish.n];
    char *text = NULL;
    size_t n = p->n_bytes;

    if (p->text == NULL)
        DT_TRY(dt_tokenizer_decode(g->model->tokenizer, p->ids.ids, (size_t)p->ids.n, true, &text,
                                   &n));
    dti_buffer_add(&c->text, p->text != NULL ? p->text : text, n);
    dt_tokenizer_free(text);
    c->from = c->text.n;
    return c->text.st;
}

static bool open_choices(dti_generation *g)
{
    const dti_wish *w = &g->wish;
    const bool forced = w->tool_choice == DTI_TOOLS_FORCED;
    dt_status st;

    g->n_choices = w->n_prompts * w->n;
    st = dti_alloc_array((size_t)g->n_choices, sizeof *g->choices, (void **)&g->choices);
    for (int64_t i = 0; i < g->n_choices && st == DT_OK; i++) {
        dti_http_choice *c = &g->choices[i];
        c->index = i;
        c->stops = w->o.stop_strings;
        c->n_stops = w->o.n_stop_strings;
        c->tools = w->has_tools && (forced || !(w->o.json_object || w->o.json_schema != NULL));
        st = dti_choice_open(c, g->model->tokenizer);
        if (st == DT_OK && w->echo) st = echo(g, c);
    }
    if (st != DT_OK) dti_refuse_status(g->x, st);
    return st == DT_OK;
}

/* One more than may wait is told to come back. */
static bool admit(dti_generation *g)
{
    dti_exchange *x = g->x;

    g->admitted = true;
    if (atomic_fetch_add(&g->model->requests, 1) < x->server->options.max_requests) return true;
    x->retry_after_s = 1;
    dti_refuse(x, 503, NULL, "%d requests run or wait already", x->server->options.max_requests);
    return false;
}

/* What options are called by who sent them. */
static void name_field(void *arg, const char *name, char text[DT_OPTION_NAME_BYTES])
{
    (void)arg;
    (void)snprintf(text, DT_OPTION_NAME_BYTES, "%s",
                   strcmp(name, "min_new_tokens") == 0         ? "min_tokens"
                   : strcmp(name, "num_return_sequences") == 0 ? "n"
                   : strcmp(name, "stop_strings") == 0         ? "stop"
                                                               : name);
}

static bool submit(dti_generation *g)
{
    dti_exchange *x = g->x;
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    const dt_option_names names = { name_field, NULL };
    dt_status st = dt_generate_check(&g->wish.o, &g->model->info, g->longest, &names);

    how.deadline_ms = x->server->options.request_ms;
    how.on_token = on_token;
    how.on_logprobs = on_logprobs;
    how.arg = g;
    how.salt = x->salt;
    if (st == DT_OK)
        st = dt_service_submit(g->model->served, g->prompts, g->wish.n_prompts, &g->wish.o, &how,
                               &g->ticket);
    if (st != DT_OK) {
        dti_refuse_status(x, st);
        return false;
    }
    (void)dti_connection_wait_for(x->server, x->connection, g->ticket);
    return true;
}

static bool read_wish(dti_generation *g, unsigned api)
{
    dti_exchange *x = g->x;
    dti_wish *w = &g->wish;
    json_t *tree;
    bool well;

    w->o = (dt_generate_options)DT_GENERATE_OPTIONS_INIT;
    w->api = api;
    w->add_generation_prompt = true;
    tree = dti_exchange_parse(x, w);
    if (tree == NULL) return false;
    well = dti_find_model(x, w, tree);
    if (well) {
        w->o.temperature = w->o.do_sample ? w->o.temperature : 1;
        well = dti_wish_read_tree(w, tree);
        if (!well) dti_refuse_wish(x, w);
    }
    dti_exchange_parsed(x, tree);
    g->model = x->model;
    return well;
}

dti_generation *dti_generation_open(dti_exchange *x, unsigned api)
{
    dti_generation *g;

    if (dti_new(sizeof *g, &g) != DT_OK) {
        dti_refuse_status(x, DT_ERR_MEMORY);
        return NULL;
    }
    g->x = x;
    g->created = (int64_t)time(NULL);
    (void)snprintf(g->id, sizeof g->id, "%s-%llx%06llx", api == DTI_API_CHAT ? "chatcmpl" : "cmpl",
                   (long long)g->created, (long long)atomic_fetch_add(&x->server->n_answers, 1));
    if (!read_wish(g, api) || !admit(g) || !encode_all(g) || !fits_context(g)) goto refused;
    if (!join_ends(g)) {
        dti_refuse_wish(x, &g->wish);
        goto refused;
    }
    settle(g);
    if (open_choices(g) && submit(g)) return g;
refused:
    dti_generation_free(g);
    return NULL;
}

void dti_generation_free(dti_generation *g)
{
    if (g == NULL) return;
    (void)dti_connection_wait_for(g->x->server, g->x->connection, NULL);
    dt_ticket_release(&g->ticket);
    dt_generated_release(&g->made);
    if (g->admitted) (void)atomic_fetch_sub(&g->model->requests, 1);
    for (int64_t i = 0; g->owned != NULL && i < g->wish.n_prompts; i++)
        dt_tokenizer_free(g->owned[i]);
    for (int64_t i = 0; g->choices != NULL && i < g->n_choices; i++)
        dti_choice_free(&g->choices[i]);
    dti_free(g->owned);
    dti_free(g->prompts);
    dti_free(g->choices);
    dti_wish_free(&g->wish);
    dti_free(g);
}

static dt_status end_choices(dti_generation *g)
{
    for (int64_t text = 0; text < dt_generated_count(g->made); text++) {
        const dt_end how = dt_generated_end(g->made, text);
        int64_t n;
        dti_http_choice *c = choices_of(g, text, &n);
        for (int64_t i = 0; i < n; i++) {
            DT_CHECK(how != DT_END_CANCELLED || c[i].stopped, DT_ERR_COMM,
                     "the request was cancelled");
            DT_TRY(dti_choice_end(&c[i], how));
            if (g->wish.stream) dti_answer_events(g, &c[i]);
        }
    }
    return DT_OK;
}

static void finish(dti_generation *g, dt_status st)
{
    dti_exchange *x = g->x;
    dti_http_metrics *m = &g->model->metrics;
    const double seconds = (double)(dti_now_ns() - x->began_ns) * 1e-9;

    g->over = true;
    if (st == DT_OK) st = dt_ticket_wait(g->ticket, &g->made);
    if (st == DT_OK) st = end_choices(g);
    if (st == DT_OK) st = x->out.st;
    if (st == DT_OK && g->wish.stream) {
        dti_answer_last_events(g);
    } else if (st == DT_OK) {
        dti_answer_whole(g);
    } else if (g->told) {
        x->broken = true;
        dti_answer_error_event(g, st);
    } else {
        const bool late = x->server->options.request_ms > 0 &&
                          seconds * 1e3 >= (double)x->server->options.request_ms;
        dti_refuse_status(x, st);
        if (late && st == DT_ERR_COMM) dti_refuse(x, 504, NULL, "no answer within the time given");
    }
    if (st != DT_OK) return;
    dti_histogram_add(&m->whole, seconds);
    if (g->last_ns > x->first_ns && x->new_tokens > 1)
        dti_histogram_add(&m->per_token,
                          (double)(g->last_ns - x->first_ns) * 1e-9 / (double)(x->new_tokens - 1));
}

void dti_generation_listen(dti_generation *g, int64_t ms)
{
    dt_status st;
    bool over;

    if (g->over) return;
    st = dt_ticket_listen(g->ticket, ms, &over);
    if (st != DT_OK || over) finish(g, st);
}

/* A stream's status is known with its first event. */
static void answer(dti_exchange *x, unsigned api)
{
    dti_generation *g = dti_generation_open(x, api);

    if (g == NULL) return;
    while (!g->over && !(g->wish.stream && x->out.n > 0)) dti_generation_listen(g, -1);
    if (g->wish.stream && g->told) {
        x->type = "text/event-stream";
        x->stream = g;
    } else {
        dti_generation_free(g);
    }
}

void dti_answer_completions(dti_exchange *x)
{
    answer(x, DTI_API_TEXT);
}

void dti_answer_chat(dti_exchange *x)
{
    answer(x, DTI_API_CHAT);
}
