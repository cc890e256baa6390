/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests for texts, on a rank. */
#include "base/numbers.h"
#include "service/ranks.h"

#include <string.h>

static bool on_layer(void *arg)
{
    return dti_job_goes_on(arg);
}

static void on_scores(void *arg, int64_t n, const float *scores, int64_t n_rows, int64_t vocab)
{
    dti_job *j = arg;
    const dti_event head = { .kind = DTI_EVENT_SCORES,
                             .a = n_rows,
                             .b = n,
                             .n_bytes = (size_t)(n_rows * vocab) * sizeof *scores };

    if (j->ticket != NULL && j->said.code == DT_OK &&
        dti_ticket_tell(j->ticket, &head, scores) != DT_OK)
        j->said = *dt_last_error();
}

dt_status dti_texts_begin(dti_job *j)
{
    dt_generate_options o;
    const dt_ids *prompts;
    bool taken;
    int64_t n;

    DT_TRY(dti_unpack_options(&j->from, &o));
    DT_TRY(dti_unpack_lists(&j->from, &prompts, &n));
    DT_TRY(dti_unpack_copy(&j->from, &j->salt, sizeof j->salt));
    if (o.on_scores != NULL) o.on_scores = on_scores;
    o.scores_arg = j;
    DT_TRY(dti_together_begin(j, prompts, n, &o, &taken));
    if (taken) return DT_OK;
    j->making.go_on = on_layer;
    j->making.go_on_arg = j;
    DT_TRY(dti_making_begin(&j->making, j->rank->model, prompts, n, &o));
    DT_TRY(dti_alloc_array((size_t)j->making.made->n, sizeof *j->told, (void **)&j->told));
    return DT_OK;
}

/* Tokens that are new since the last step. */
static dt_status tell_tokens(dti_job *j)
{
    const dt_generated *g = j->making.made;
    const size_t list = (size_t)(j->making.o.n_logprobs + 1) * sizeof(dt_logprob);
    dt_status st = DT_OK;
    int32_t *said;

    DT_TRY(dti_alloc(sizeof *said + list, (void **)&said));
    for (int64_t i = 0; i < g->n; i++) {
        const dti_new_text *text = &g->texts[i];
        for (; j->told[i] < text->n; j->told[i]++) {
            const int64_t n = j->told[i];
            const dti_event head = {
                .kind = DTI_EVENT_TOKEN, .a = i, .b = n, .n_bytes = sizeof *said + list
            };
            said[0] = text->ids[n];
            if (list > 0) memcpy(said + 1, text->logprobs + n * text->n_logprobs, list);
            DT_TRY_TO(done, st, dti_ticket_tell(j->ticket, &head, said));
        }
    }
done:
    dti_free(said);
    return st;
}

dt_status dti_texts_step(dti_job *j, bool *over)
{
    DT_TRY(dti_making_step(&j->making));
    DT_TRY(j->said.code);
    *over = j->making.over;
    if (j->ticket != NULL && j->ticket->tells_tokens && !*over && j->making.o.num_beams == 1)
        DT_TRY(tell_tokens(j));
    return DT_OK;
}

dt_status dti_texts_tell_all(dti_job *j)
{
    const dt_generated *g = j->request > 0 ? j->made : j->making.made;
    dti_crew *c = j->rank->crew;
    int64_t n_tokens = 0;

    for (int64_t i = 0; g != NULL && i < g->n; i++) {
        const dti_new_text *text = &g->texts[i];
        const size_t bytes = (size_t)text->n * sizeof *text->ids;
        const size_t lists = (size_t)(text->n * text->n_logprobs) * sizeof(dt_logprob);
        dti_event head = { .kind = DTI_EVENT_TEXT, .a = i };
        dti_packet p = { 0 };
        dt_status st;
        DT_TRY(dti_packet_put(&p, &(dti_text_head){ text->n, text->found, text->end, text->score },
                              sizeof(dti_text_head)));
        st = dti_packet_put(&p, text->ids, bytes);
        if (st == DT_OK) st = dti_packet_put(&p, text->logprobs, lists);
        head.n_bytes = p.n;
        if (st == DT_OK) st = dti_ticket_tell(j->ticket, &head, p.bytes);
        dti_free(p.bytes);
        DT_TRY(st);
        n_tokens += text->n;
    }
    (void)pthread_mutex_lock(&c->lock);
    c->counts.new_tokens += n_tokens;
    (void)pthread_mutex_unlock(&c->lock);
    return DT_OK;
}
