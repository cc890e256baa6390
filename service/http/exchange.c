/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of an exchange: what is counted and logged of it. */
#include "service/http/exchange.h"

#include <stdio.h>
#include <time.h>

#include "base/memory.h"
#include "base/sync.h"
#include "base/text.h"
#include "service/http/answering.h"

void dti_exchange_free(dti_exchange *x)
{
    dti_generation_free(x->stream);
    dti_buffer_free(&x->body);
    dti_buffer_free(&x->out);
    dti_free(x);
}

/* Which of its requests it counts as. */
static _Atomic int64_t *counter_of(const dti_exchange *x, dti_http_metrics *m, bool gone)
{
    if (gone) return &m->gone;
    if (x->broken || (x->status >= 500 && x->status != 503)) return &m->failed;
    return x->status == DTI_HTTP_OK ? &m->answered : &m->refused;
}

static void count(dti_exchange *x, bool gone)
{
    dti_http_metrics *m = x->model != NULL ? &x->model->metrics : NULL;

    if (m == NULL) return;
    (void)atomic_fetch_add(counter_of(x, m, gone), 1);
    (void)atomic_fetch_add(&m->prompt_tokens, x->status == DTI_HTTP_OK ? x->prompt_tokens : 0);
    (void)atomic_fetch_add(&m->new_tokens, x->new_tokens);
}

static void put_time(dti_buffer *b)
{
    struct timespec now;
    struct tm utc;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    dti_buffer_print(b, "{\"time\":\"%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ\"", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     now.tv_nsec / 1000000);
}

void dti_exchange_log(dti_exchange *x, bool whole)
{
    dt_server *s = x->server;
    const bool gone = !x->handed && (!whole || dti_connection_is_gone(s, x->connection));
    char shown[DTI_HEAD_PATH_BYTES * 4];
    dti_buffer b = { 0 };

    count(x, gone);
    if (s->options.log == NULL) return;
    put_time(&b);
    dti_buffer_text(&b, ",\"method\":");
    dti_buffer_quote(&b, dti_printable(x->head.method, shown, sizeof shown));
    dti_buffer_text(&b, ",\"path\":");
    dti_buffer_quote(&b, dti_printable(x->head.path, shown, sizeof shown));
    dti_buffer_print(&b, ",\"status\":%d,\"ms\":%.1f", x->status,
                     (double)(dti_now_ns() - x->began_ns) * 1e-6);
    if (x->model != NULL) {
        dti_buffer_text(&b, ",\"model\":");
        dti_buffer_quote(&b, x->model->name);
    }
    if (x->prompt_tokens > 0)
        dti_buffer_print(&b, ",\"prompt_tokens\":%lld,\"new_tokens\":%lld",
                         (long long)x->prompt_tokens, (long long)x->new_tokens);
    if (x->first_ns > 0)
        dti_buffer_print(&b, ",\"first_token_ms\":%.1f",
                         (double)(x->first_ns - x->began_ns) * 1e-6);
    dti_buffer_print(&b, ",\"end\":\"%s\"}", gone ? "gone" : x->broken ? "broken" : "whole");
    (void)pthread_mutex_lock(&s->log_lock);
    if (b.st == DT_OK) s->options.log(s->options.log_arg, b.bytes);
    (void)pthread_mutex_unlock(&s->log_lock);
    dti_buffer_free(&b);
}
