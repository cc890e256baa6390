/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/schedule_world.h"

#include <string.h>

#include "base/numbers.h"

enum { VOCAB = 50 };

/* --- what texts are --------------------------------------------------------------------------- */

static uint64_t hash_of(int64_t a, int64_t b, int64_t c)
{
    const int64_t words[] = { a, b, c };

    return dti_hash_bytes(17, words, sizeof words) >> 8;
}

static int32_t prompt_token(const dt_world_request *r, int64_t request, int64_t i)
{
    return (int32_t)(hash_of(i < r->common ? -1 - r->family : request, -1, i) % VOCAB);
}

static dti_choice choice_of(const dt_world_request *r, int64_t request, int64_t text, int64_t n)
{
    const int64_t length = 1 + (int64_t)(hash_of(request, text, -2) % (uint64_t)r->max_new);

    return (dti_choice){ (int32_t)(hash_of(request, text, n) % VOCAB), n + 1 == length };
}

/* --- life ------------------------------------------------------------------------------------- */

static void keep_log(void *arg, const int64_t *words, int64_t n)
{
    dt_world *w = arg;

    if (dti_grow((void **)&w->log, &w->log_room, (size_t)(w->n_log + n), sizeof *words) != DT_OK)
        return; /* a replay will say that it ends */
    memcpy(w->log + w->n_log, words, (size_t)n * sizeof *words);
    w->n_log += n;
}

dt_status dt_world_open(const dti_schedule_options *o, dt_world **out)
{
    const int64_t cells = o->n_replicas * o->n_blocks * o->block;
    dt_status st = DT_OK;
    dt_world *w;

    *out = NULL;
    DT_TRY(dti_new(sizeof *w, &w));
    w->o = *o;
    DT_TRY_TO(fail, st, dti_schedule_create(o, keep_log, w, &w->s));
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)cells, sizeof *w->keys, (void **)&w->keys));
    *out = w;
    return DT_OK;

fail:
    dt_world_close(&w);
    return st;
}

void dt_world_close(dt_world **world)
{
    dt_world *w = *world;

    *world = NULL;
    if (w == NULL) return;
    dti_schedule_free(&w->s);
    dti_free(w->keys);
    dti_free(w->log);
    dti_free(w->choices);
    dti_free(w->chain);
    dti_free(w);
}

dt_status dt_world_submit(dt_world *w, const dt_world_request *r)
{
    const int64_t request = w->n_requests;
    dt_world_request *mine = &w->requests[request];
    dti_ask ask = { request,     0,       r->n_texts, r->n_prompt + r->max_new - 1,
                    r->priority, r->salt, NULL,       r->n_prompt };
    dt_status st;
    int32_t *ids;

    DT_CHECK(request < DT_WORLD_REQUESTS && r->n_texts <= DT_WORLD_TEXTS, DT_ERR_ARG,
             "request %lld of %lld texts", (long long)request, (long long)r->n_texts);
    *mine = *r;
    DT_TRY(dti_alloc_array((size_t)r->n_prompt, sizeof *ids, (void **)&ids));
    for (int64_t i = 0; i < r->n_prompt; i++) ids[i] = prompt_token(r, request, i);
    ask.ids = ids;
    w->n_requests++;
    st = dti_schedule_submit(w->s, &ask);
    dti_free(ids);
    mine->over = st != DT_OK;
    w->n_ended += mine->over;
    return st;
}

dt_status dt_world_cancel(dt_world *w, int64_t request)
{
    DT_TRY(dti_schedule_cancel(w->s, request));
    if (request >= w->n_requests) return DT_OK;
    w->n_ended += !w->requests[request].over;
    w->requests[request].over = true;
    return dti_schedule_check(w->s);
}

/* --- a pass ----------------------------------------------------------------------------------- */

static uint64_t *key_at(const dt_world *w, const dti_sequence *q, int64_t position)
{
    const int64_t block = q->table[position / w->o.block];

    return block < 0 ? NULL
                     : &w->keys[(q->replica * w->o.n_blocks + block) * w->o.block +
                                position % w->o.block];
}

/* Fingerprints of the tokens up to each of the first n. */
static dt_status make_chain(dt_world *w, const dti_sequence *q, int64_t n)
{
    uint64_t h = q->salt;

    DT_TRY(dti_grow((void **)&w->chain, &w->chain_room, (size_t)n, sizeof *w->chain));
    for (int64_t i = 0; i < n; i++) w->chain[i] = h = dti_hash_word(h, (uint64_t)q->ids[i] + 1);
    return DT_OK;
}

static dt_status check_tokens(const dt_world *w, const dti_sequence *q)
{
    const dt_world_request *r = &w->requests[q->request];

    for (int64_t i = 0; i < q->n_known; i++) {
        const int32_t id = i < r->n_prompt ? prompt_token(r, q->request, i)
                                           : choice_of(r, q->request, q->text, i - r->n_prompt).id;
        DT_CHECK(q->ids[i] == id, DT_ERR_INTERNAL, "token %lld of text %lld is %d, not %d",
                 (long long)i, (long long)q->text, (int)q->ids[i], (int)id);
    }
    return DT_OK;
}

static dt_status read_part(dt_world *w, const dti_plan_part *p)
{
    const dti_sequence *q = p->of;
    const int64_t low = w->o.window > 0 ? dti_max(0, p->first - w->o.window + 1) : 0;
    const dti_blocks *blocks = &w->s->replicas[q->replica].blocks;

    DT_CHECK(p->first == q->n_read && p->n >= 1 && p->first + p->n <= q->n_known &&
                 p->chooses == (p->first + p->n == q->n_known),
             DT_ERR_INTERNAL, "tokens %lld + %lld of %lld, of which %lld were read",
             (long long)p->first, (long long)p->n, (long long)q->n_known, (long long)q->n_read);
    DT_TRY(check_tokens(w, q));
    DT_TRY(make_chain(w, q, p->first + p->n));
    for (int64_t i = low; i < p->first + p->n; i++) {
        uint64_t *key = key_at(w, q, i);
        DT_CHECK(key != NULL && i / w->o.block < q->n_table, DT_ERR_INTERNAL,
                 "token %lld has no block", (long long)i);
        if (i < p->first) {
            DT_CHECK(*key == w->chain[i], DT_ERR_INTERNAL,
                     "token %lld of text %lld of request %lld is not there", (long long)i,
                     (long long)q->text, (long long)q->request);
            continue;
        }
        DT_CHECK(blocks->all[q->table[i / w->o.block]].refs == 1, DT_ERR_INTERNAL,
                 "token %lld is written to a block that others read", (long long)i);
        *key = w->chain[i];
    }
    return DT_OK;
}

static dt_status choose(dt_world *w, const dti_plan_part *p, dti_choice *out)
{
    dt_world_request *r = &w->requests[p->of->request];
    bool over = true;

    for (int64_t i = 0; i < p->of->n_texts; i++) {
        int64_t *n = &r->n[p->of->text + i];
        DT_CHECK(!r->over && *n == p->of->n_known - r->n_prompt, DT_ERR_INTERNAL,
                 "text %lld of request %lld has %lld tokens, not %lld",
                 (long long)(p->of->text + i), (long long)p->of->request, (long long)*n,
                 (long long)(p->of->n_known - r->n_prompt));
        out[i] = choice_of(r, p->of->request, p->of->text + i, *n);
        *n = out[i].ends ? -1 : *n + 1;
    }
    for (int64_t i = 0; i < r->n_texts; i++) over = over && r->n[i] == -1;
    r->over = over;
    w->n_ended += over;
    return DT_OK;
}

static dt_status run_replica(dt_world *w, int64_t k, int64_t *n_choices)
{
    const dti_plan *p = &w->s->replicas[k].plan;
    int64_t rows = 0;

    for (int64_t i = 0; i < p->n_copies; i++) {
        const int64_t block = w->o.block;
        uint64_t *all = w->keys + k * w->o.n_blocks * block;
        memcpy(all + p->copies[i].to * block, all + p->copies[i].from * block,
               (size_t)block * sizeof *all);
    }
    for (int64_t i = 0; i < p->n_parts; i++) {
        rows += p->parts[i].n;
        DT_TRY(read_part(w, &p->parts[i]));
        if (!p->parts[i].chooses) continue;
        DT_TRY(choose(w, &p->parts[i], w->choices + *n_choices));
        *n_choices += p->parts[i].of->n_texts;
    }
    DT_CHECK(rows == p->n_rows && rows <= w->o.max_rows, DT_ERR_INTERNAL, "%lld rows, not %lld",
             (long long)rows, (long long)p->n_rows);
    return DT_OK;
}

dt_status dt_world_step(dt_world *w, const dti_pass_cost *cost, int64_t *n_rows)
{
    int64_t n = 0, most = 0;

    DT_TRY(dti_schedule_step(w->s, cost, n_rows));
    DT_TRY(dti_schedule_check(w->s));
    if (*n_rows == 0) return DT_OK;
    for (int64_t k = 0; k < w->o.n_replicas; k++) most += w->s->replicas[k].plan.n_choices;
    DT_TRY(dti_grow((void **)&w->choices, &w->choices_room, (size_t)most + 1, sizeof *w->choices));
    for (int64_t k = 0; k < w->o.n_replicas; k++) DT_TRY(run_replica(w, k, &n));
    DT_TRY(dti_schedule_feed(w->s, w->choices, n));
    return dti_schedule_check(w->s);
}

dt_status dt_world_drain(dt_world *w)
{
    const dti_pass_cost cost = { 0, 0 };
    dti_schedule_counts c;
    int64_t most = 0, rows;

    for (int64_t i = 0; i < w->n_requests; i++)
        if (!w->requests[i].over)
            most += w->requests[i].n_texts * (w->requests[i].n_prompt + w->requests[i].max_new);
    for (; w->n_ended < w->n_requests; most--) {
        DT_CHECK(most > 0, DT_ERR_INTERNAL, "texts do not end");
        DT_TRY(dt_world_step(w, &cost, &rows));
        DT_CHECK(rows > 0, DT_ERR_INTERNAL, "%lld requests wait for nothing",
                 (long long)(w->n_requests - w->n_ended));
    }
    c = dti_schedule_count(w->s);
    DT_CHECK(c.used == 0 && c.running == 0 && c.waiting == 0, DT_ERR_INTERNAL,
             "%lld blocks stay used", (long long)c.used);
    return dti_schedule_replay(w->log, w->n_log);
}
