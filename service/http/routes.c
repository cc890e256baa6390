/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of paths, and those that need no request of their own. */
#include "service/http/routes.h"

#include <string.h>

static void answer_health(dti_exchange *x)
{
    dt_service_counts counts;

    for (int i = 0; i < x->server->n_models; i++) {
        if (dt_service_count(x->server->models[i].served, &counts) == DT_OK && !counts.failed)
            continue;
        x->no_retry = true;
        dti_refuse(x, 503, NULL, "model %s has failed", x->server->models[i].name);
        return;
    }
    dti_buffer_text(&x->out, "{\"status\":\"ok\"}");
}

static void put_model(dti_buffer *b, const dt_server *s, const dti_http_model *m)
{
    dti_buffer_text(b, "{\"id\":");
    dti_buffer_quote(b, m->name);
    dti_buffer_print(b,
                     ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"dtensor\","
                     "\"max_model_len\":%lld,\"root\":",
                     (long long)s->created, (long long)m->context);
    dti_buffer_quote(b, m->name);
    dti_buffer_print(b, ",\"meta\":{\"n_vocab\":%lld,\"n_ctx_train\":%lld,\"model_type\":",
                     (long long)m->info.vocab_size, (long long)m->info.max_positions);
    dti_buffer_quote(b, m->info.model_type);
    dti_buffer_print(b, ",\"chat\":%s}}", m->chat != NULL ? "true" : "false");
}

static void answer_models(dti_exchange *x)
{
    const dt_server *s = x->server;

    dti_buffer_text(&x->out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < s->n_models; i++) {
        if (i > 0) dti_buffer_text(&x->out, ",");
        put_model(&x->out, s, &s->models[i]);
    }
    dti_buffer_text(&x->out, "]}");
}

static void answer_page(dti_exchange *x)
{
    x->type = "text/html; charset=utf-8";
    for (int i = 0; dti_page[i] != NULL; i++) dti_buffer_text(&x->out, dti_page[i]);
}

/* clang-format off */
static const dti_http_route routes[] = {
    { "GET",  "/",                    true,  answer_page },
    { "GET",  "/health",              true,  answer_health },
    { "GET",  "/v1/health",           true,  answer_health },
    { "GET",  "/v1/models",           false, answer_models },
    { "GET",  "/metrics",             false, dti_metrics_answer },
    { "POST", "/v1/completions",      false, dti_answer_completions },
    { "POST", "/v1/chat/completions", false, dti_answer_chat },
    { "POST", "/tokenize",            false, dti_answer_tokenize },
    { "POST", "/detokenize",          false, dti_answer_detokenize },
};
/* clang-format on */

const dti_http_route *dti_http_route_find(const char *method, const char *path, bool *path_is_known)
{
    if (strcmp(method, "HEAD") == 0) method = "GET";
    *path_is_known = false;
    for (size_t i = 0; i < DT_COUNT(routes); i++) {
        if (strcmp(routes[i].path, path) != 0) continue;
        *path_is_known = true;
        if (strcmp(routes[i].method, method) == 0) return &routes[i];
    }
    return NULL;
}

void dti_answer(dti_exchange *x)
{
    bool path;
    const dti_http_route *route = dti_http_route_find(x->head.method, x->head.path, &path);

    x->status = DTI_HTTP_OK;
    x->type = "application/json";
    if (x->too_long)
        dti_refuse(x, 413, NULL, "the body has more than %lld bytes",
                   (long long)x->server->options.max_body_bytes);
    else
        route->answer(x);
    if (x->stream == NULL && x->out.st != DT_OK) {
        dti_buffer_free(&x->out);
        dti_refuse(x, 500, NULL, "no memory for the answer");
    }
}
