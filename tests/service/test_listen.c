/* SPDX-License-Identifier: Apache-2.0
 *
 * A request that is waited for in pieces: what is told is what a wait would tell. */
#include <string.h>

#include "tests/support/served.h"

typedef struct heard {
    int32_t ids[MOST_TEXTS][64];
    int64_t n[MOST_TEXTS], n_logprobs;
    bool early; /* a log-probability came behind its token */
} heard;

static bool on_token(void *arg, int64_t text, int64_t n, int32_t id)
{
    heard *h = arg;

    if (n == h->n[text] && n < 64) h->ids[text][h->n[text]++] = id;
    return true;
}

static void on_logprobs(void *arg, int64_t text, int64_t n, const dt_logprob *list, int64_t n_list)
{
    heard *h = arg;

    h->n_logprobs += n_list;
    if (n != h->n[text] || list[0].logprob > 0) h->early = true;
}

DT_TEST(listen, tells_in_pieces_what_a_wait_tells)
{
    dt_service *s = served_start(2, 20000, NULL);
    dt_served *m = served_load(s, "llama/uneven");

    for (int i = 0; i < 6; i++) {
        dt_request_options how = DT_REQUEST_OPTIONS_INIT;
        served_request a;
        dt_generated *alone, *g;
        int64_t n_tokens = 0;
        dt_ticket *t;
        bool over = false;
        heard h = { .n_logprobs = 0 };
        served_ask(&a, i);
        if (a.o.num_beams == 1) a.o.n_logprobs = 2;
        DT_ASSERT_OK(dt_service_generate(m, a.prompts, a.n_prompts, &a.o, NULL, &alone));
        how.on_token = on_token;
        how.on_logprobs = on_logprobs;
        how.arg = &h;
        DT_ASSERT_OK(dt_service_submit(m, a.prompts, a.n_prompts, &a.o, &how, &t));
        while (!over) DT_ASSERT_OK(dt_ticket_listen(t, i % 2 == 0 ? -1 : 0, &over));
        DT_ASSERT_OK(dt_ticket_wait(t, &g));
        DT_ASSERT(served_differs(g, alone) == NULL);
        for (int64_t k = 0; k < dt_generated_count(g); k++) {
            const dt_ids ids = dt_generated_ids(g, k);
            n_tokens += ids.n;
            DT_ASSERT_EQ_INT(h.n[k], ids.n);
            DT_ASSERT(memcmp(h.ids[k], ids.ids, (size_t)ids.n * sizeof *ids.ids) == 0);
        }
        DT_ASSERT_EQ_INT(h.n_logprobs, a.o.num_beams == 1 ? 3 * n_tokens : 0);
        DT_ASSERT(!h.early);
        DT_ASSERT_STATUS(dt_ticket_listen(t, 0, &over), DT_ERR_ARG, "waited for before");
        dt_ticket_release(&t);
        dt_generated_release(&g);
        dt_generated_release(&alone);
    }
    DT_ASSERT_STATUS(dt_ticket_listen(NULL, 0, NULL), DT_ERR_ARG, "NULL");
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

DT_TEST(listen, returns_when_its_time_is_over_and_hears_of_a_cancel)
{
    dt_service *s = served_start(1, 20000, NULL);
    dt_served *m = served_load(s, "llama/uneven");
    served_request a;
    dt_generated *g;
    dt_ticket *t;
    bool over = true;

    served_ask(&a, 0);
    a.o.max_new_tokens = 200;
    a.o.ignore_eos = true;
    DT_ASSERT_OK(dt_service_submit(m, a.prompts, a.n_prompts, &a.o, NULL, &t));
    DT_ASSERT_OK(dt_ticket_listen(t, 0, &over)); /* nobody asked for tokens */
    DT_ASSERT(!over || dt_ticket_progress(t, NULL) == DT_TICKET_DONE);
    dt_ticket_cancel(t);
    while (!over) DT_ASSERT_OK(dt_ticket_listen(t, -1, &over));
    DT_ASSERT_OK(dt_ticket_wait(t, &g));
    dt_generated_release(&g);
    dt_ticket_release(&t);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}
