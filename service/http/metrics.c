/* SPDX-License-Identifier: Apache-2.0 */
#include "service/http/metrics.h"

#include "base/memory.h"
#include "service/http/exchange.h"

static const double bounds[DTI_N_BUCKETS] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                              0.5,   1,      2.5,   5,    10,    30,   60,  300 };

void dti_histogram_add(dti_histogram *h, double seconds)
{
    int i = 0;

    while (i < DTI_N_BUCKETS && seconds > bounds[i]) i++;
    (void)atomic_fetch_add_explicit(&h->buckets[i], 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&h->sum_us, (int64_t)(seconds * 1e6), memory_order_relaxed);
}

/* --- as text ---------------------------------------------------------------------------------- */

/* One row per name: where its value lies, or how it is found. */
typedef enum source { COUNTER, GAUGE } source;

static void put_label(dti_buffer *b, const dti_http_model *m)
{
    dti_buffer_text(b, "model=");
    dti_buffer_quote(b, m->name);
}

static void put_family(dti_buffer *b, const char *name, const char *type, const char *help)
{
    dti_buffer_print(b, "# HELP dtensor_%s %s\n# TYPE dtensor_%s %s\n", name, help, name, type);
}

static void put_value(dti_buffer *b, const char *name, const dti_http_model *m, double value)
{
    dti_buffer_print(b, "dtensor_%s{", name);
    put_label(b, m);
    dti_buffer_print(b, "} %.15g\n", value);
}

static void put_histogram(dti_buffer *b, const char *name, const dti_http_model *m,
                          const dti_histogram *h)
{
    int64_t n = 0;

    for (int i = 0; i <= DTI_N_BUCKETS; i++) {
        n += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
        dti_buffer_print(b, "dtensor_%s_bucket{", name);
        put_label(b, m);
        if (i < DTI_N_BUCKETS)
            dti_buffer_print(b, ",le=\"%g\"} %lld\n", bounds[i], (long long)n);
        else
            dti_buffer_print(b, ",le=\"+Inf\"} %lld\n", (long long)n);
    }
    dti_buffer_print(b, "dtensor_%s_sum{", name);
    put_label(b, m);
    dti_buffer_print(b, "} %.6f\n", (double)atomic_load(&h->sum_us) * 1e-6);
    dti_buffer_print(b, "dtensor_%s_count{", name);
    put_label(b, m);
    dti_buffer_print(b, "} %lld\n", (long long)n);
}

/* Rank 0 has blocks and slots of one replica. */
static double cache_bytes(const dt_engine_counts *c)
{
    const int64_t all = c->block_bytes * c->blocks + c->slot_bytes * c->slots;

    return c->replicas > 0 ? (double)(all / c->replicas) : 0;
}

/* Values of one model, in the order of the table below. */
enum { N_VALUES = 21 };
static void read_values(const dti_http_model *m, double values[N_VALUES])
{
    const dti_http_metrics *t = &m->metrics;
    dt_service_counts c;
    int n = 0;

    if (dt_service_count(m->served, &c) != DT_OK) c = (dt_service_counts){ .failed = true };
    values[n++] = (double)atomic_load(&t->answered);
    values[n++] = (double)atomic_load(&t->refused);
    values[n++] = (double)atomic_load(&t->failed);
    values[n++] = (double)atomic_load(&t->gone);
    values[n++] = (double)atomic_load(&t->prompt_tokens);
    values[n++] = (double)atomic_load(&t->new_tokens);
    values[n++] = (double)c.steps;
    values[n++] = c.busy_s;
    values[n++] = (double)c.cancelled;
    values[n++] = (double)c.queued;
    values[n++] = (double)c.running;
    values[n++] = c.failed ? 0 : 1;
    values[n++] = (double)m->context;
    values[n++] = (double)c.engine.blocks;
    values[n++] = (double)c.engine.used_blocks;
    values[n++] = (double)c.engine.kept_blocks;
    values[n++] = cache_bytes(&c.engine);
    values[n++] = (double)c.engine.read_tokens;
    values[n++] = (double)c.engine.found_tokens;
    values[n++] = (double)c.engine.preemptions;
    values[n++] = (double)c.engine.passes;
}

static const struct {
    const char *name, *help;
    source kind;
} rows[N_VALUES] = {
    { "requests_answered_total", "Requests with an answer.", COUNTER },
    { "requests_refused_total", "Requests refused, by fault of the client or for want of room.",
      COUNTER },
    { "requests_failed_total", "Requests that failed by fault of the server.", COUNTER },
    { "requests_gone_total", "Requests whose client left before the end.", COUNTER },
    { "prompt_tokens_total", "Tokens of prompts.", COUNTER },
    { "generation_tokens_total", "Tokens generated.", COUNTER },
    { "steps_total", "Passes that ranks have made.", COUNTER },
    { "busy_seconds_total", "Time in which rank 0 was busy.", COUNTER },
    { "requests_cancelled_total", "Requests of the service that were cancelled.", COUNTER },
    { "requests_waiting", "Requests that wait, now.", GAUGE },
    { "requests_running", "Requests under way, now.", GAUGE },
    { "model_up", "1: the model answers; 0: it has failed.", GAUGE },
    { "context_tokens", "Longest text.", GAUGE },
    { "cache_blocks", "Blocks of keys and values that texts share a pool of.", GAUGE },
    { "cache_blocks_used", "Those that texts hold, now.", GAUGE },
    { "cache_blocks_kept", "Those that are free, and found by texts that begin alike.", GAUGE },
    { "cache_bytes", "Of the pool, and of what layers carry of texts, on rank 0.", GAUGE },
    { "prompt_tokens_read_total", "Tokens of prompts that were read.", COUNTER },
    { "prompt_tokens_found_total", "Tokens of prompts found in blocks of other texts.", COUNTER },
    { "preemptions_total", "Texts that gave their room back, to be read again.", COUNTER },
    { "passes_total", "Passes that texts shared.", COUNTER },
};

static void put_models(dti_buffer *b, const dt_server *s)
{
    for (int row = 0; row < N_VALUES; row++) {
        put_family(b, rows[row].name, rows[row].kind == COUNTER ? "counter" : "gauge",
                   rows[row].help);
        for (int i = 0; i < s->n_models; i++) {
            double values[N_VALUES];
            read_values(&s->models[i], values);
            put_value(b, rows[row].name, &s->models[i], values[row]);
        }
    }
}

static void put_times(dti_buffer *b, const dt_server *s)
{
    put_family(b, "time_to_first_token_seconds", "histogram", "From a request to its first token.");
    for (int i = 0; i < s->n_models; i++)
        put_histogram(b, "time_to_first_token_seconds", &s->models[i],
                      &s->models[i].metrics.first_token);
    put_family(b, "time_per_output_token_seconds", "histogram",
               "Mean time between tokens of a request.");
    for (int i = 0; i < s->n_models; i++)
        put_histogram(b, "time_per_output_token_seconds", &s->models[i],
                      &s->models[i].metrics.per_token);
    put_family(b, "request_seconds", "histogram", "From a request to the end of its answer.");
    for (int i = 0; i < s->n_models; i++)
        put_histogram(b, "request_seconds", &s->models[i], &s->models[i].metrics.whole);
}

static void put_memory(dti_buffer *b, const dt_server *s)
{
    const int n = dt_service_n_ranks(s->options.service);
    dt_rank_memory *ranks = NULL;
    dt_rank_memory_kinds *kinds = NULL;

    if (n == 0 || dti_alloc_array((size_t)n, sizeof *ranks, (void **)&ranks) != DT_OK) return;
    if (dti_alloc_array((size_t)n, sizeof *kinds, (void **)&kinds) == DT_OK &&
        dt_service_memory(s->options.service, NULL, ranks, kinds) == DT_OK) {
        put_family(b, "memory_bytes", "gauge", "Memory of a rank, by what it is for.");
        for (int r = 0; r < n; r++)
            dti_buffer_print(b,
                             "dtensor_memory_bytes{rank=\"%d\",kind=\"all\"} %lld\n"
                             "dtensor_memory_bytes{rank=\"%d\",kind=\"weights\"} %lld\n"
                             "dtensor_memory_bytes{rank=\"%d\",kind=\"caches\"} %lld\n",
                             r, (long long)ranks[r].allocated_bytes, r,
                             (long long)kinds[r].weights_bytes, r,
                             (long long)kinds[r].caches_bytes);
    }
    dti_free(ranks);
    dti_free(kinds);
}

void dti_metrics_answer(dti_exchange *x)
{
    const dt_server *s = x->server;

    if (!s->loopback && !s->options.metrics) {
        dti_refuse(x, 404, NULL, "figures are told beyond this machine only with --metrics");
        return;
    }
    x->type = "text/plain; version=0.0.4; charset=utf-8";
    put_models(&x->out, s);
    put_times(&x->out, s);
    put_memory(&x->out, s);
}
