/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors as clients read them: bounded, without names of files, without what the request said. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "service/http/exchange.h"
#include "service/served.h"

static const struct {
    int status;
    const char *type;
} types[] = {
    { 400, "invalid_request_error" }, { 401, "authentication_error" },
    { 403, "permission_error" },      { 404, "not_found_error" },
    { 405, "invalid_request_error" }, { 411, "invalid_request_error" },
    { 413, "invalid_request_error" }, { 501, "not_supported_error" },
    { 503, "unavailable_error" },     { 504, "timeout_error" },
};

static const char *type_of(int status)
{
    for (size_t i = 0; i < DT_COUNT(types); i++)
        if (types[i].status == status) return types[i].type;
    return "server_error";
}

void dti_error_json(dti_buffer *b, int status, const char *param, const char *message)
{
    dti_buffer_text(b, "{\"error\":{\"message\":");
    dti_buffer_quote(b, message);
    dti_buffer_print(b, ",\"type\":\"%s\",\"param\":", type_of(status));
    if (param != NULL)
        dti_buffer_quote(b, param);
    else
        dti_buffer_text(b, "null");
    dti_buffer_print(b, ",\"code\":%d}}", status);
}

void dti_refuse(dti_exchange *x, int status, const char *param, const char *fmt, ...)
{
    char text[512], shown[512];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dti_buffer_free(&x->out);
    x->status = status;
    x->type = "application/json";
    dti_error_json(&x->out, status, param, dti_printable(text, shown, sizeof shown));
}

int dti_http_status_of(dt_status st)
{
    switch (st) {
    case DT_ERR_ARG:
    case DT_ERR_SHAPE:
        return 400;
    case DT_ERR_UNSUPPORTED:
        return 501;
    case DT_ERR_MEMORY:
    case DT_ERR_COMM:
        return 503;
    default:
        return 500;
    }
}

/* Replaces every `word` by `by`, which is not longer. */
static void replace(char *text, const char *word, const char *by)
{
    const size_t n = strlen(word), m = strlen(by);

    if (n == 0 || m > n) return;
    for (char *at = text; (at = strstr(at, word)) != NULL; at += m) {
        memcpy(at, by, m);
        memmove(at + m, at + n, strlen(at + n) + 1);
    }
}

const char *dti_client_message(const dti_exchange *x, dt_status st, char *text, size_t n_bytes)
{
    const char *said = dt_last_error()->message;

    if (st == DT_ERR_INTERNAL || st == DT_ERR_IO || st == DT_ERR_FORMAT || st == DT_ERR_DEVICE)
        said = "an error of the server";
    (void)snprintf(text, n_bytes, "%.400s", said);
    for (int i = 0; i < x->server->n_models; i++)
        replace(text, x->server->models[i].served->dir, "MODEL");
    return text;
}

void dti_refuse_status(dti_exchange *x, dt_status st)
{
    const int status = dti_http_status_of(st);
    char text[512];

    if (st == DT_ERR_MEMORY) x->retry_after_s = 1;
    if (st != DT_ERR_MEMORY && status >= 500) x->no_retry = true;
    dti_refuse(x, status, NULL, "%s", dti_client_message(x, st, text, sizeof text));
}
