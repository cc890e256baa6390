/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of texts: submitted, cancelled, one token longer, ended. */
#include "models/engine/schedule.h"

#include <string.h>

#include "base/numbers.h"

/* A prompt moves on by so many tokens in a pass, however slow rows are. */
enum {
    LEAST_PROMPT_ROWS = 4,
    MOST_RUNNING = 1 << 16,
    MOST_BLOCK = 1 << 16,
    MOST_SLOWED = 1000000000
};

/* --- create ----------------------------------------------------------------------------------- */

/* A day, so that sums are in range. */
static const int64_t MOST_NS = 86400000000000;

static dt_status check_options(const dti_schedule_options *o)
{
    DT_CHECK(o->n_replicas >= 1 && o->n_blocks >= 1 && o->n_blocks <= INT32_MAX && o->block >= 1 &&
                 o->block <= MOST_BLOCK && o->max_waiting >= 0,
             DT_ERR_ARG, "%lld blocks of %lld tokens, %lld texts that wait", (long long)o->n_blocks,
             (long long)o->block, (long long)o->max_waiting);
    DT_CHECK(o->max_running >= 1 && o->max_running <= MOST_RUNNING &&
                 o->max_rows >= o->max_running && o->max_rows <= INT32_MAX,
             DT_ERR_ARG, "passes of %lld texts and %lld tokens", (long long)o->max_running,
             (long long)o->max_rows);
    DT_CHECK(o->window >= 0 && o->window <= INT32_MAX && o->wanted_ns >= 0 && o->slowed >= 0 &&
                 o->slowed <= MOST_SLOWED,
             DT_ERR_ARG, "a window of %lld tokens, %lld ns, %lld thousandths more",
             (long long)o->window, (long long)o->wanted_ns, (long long)o->slowed);
    return DT_OK;
}

static dt_status make_replica(const dti_schedule_options *o, dti_replica *r)
{
    const size_t most = (size_t)o->max_running;

    DT_TRY(dti_blocks_create(o->n_blocks, o->block, &r->blocks));
    DT_TRY(dti_alloc_array(most, sizeof(dti_sequence *), (void **)&r->running));
    DT_TRY(dti_alloc_array(most, sizeof *r->slots, (void **)&r->slots));
    DT_TRY(dti_alloc_array(most, sizeof *r->plan.parts, (void **)&r->plan.parts));
    DT_TRY(dti_alloc_array(most, sizeof *r->plan.copies, (void **)&r->plan.copies));
    DT_TRY(dti_alloc_array(most, sizeof *r->plan.forks, (void **)&r->plan.forks));
    return DT_OK;
}

dt_status dti_schedule_create(const dti_schedule_options *o, dti_schedule_log log, void *log_arg,
                              dti_schedule **out)
{
    dt_status st = DT_OK;
    dti_schedule *s;

    *out = NULL;
    DT_TRY(check_options(o));
    DT_TRY(dti_new(sizeof *s, &s));
    s->o = *o;
    s->log = log;
    s->log_arg = log_arg;
    DT_TRY_TO(fail, st,
              dti_alloc_array((size_t)o->n_replicas, sizeof *s->replicas, (void **)&s->replicas));
    for (int64_t r = 0; r < o->n_replicas; r++)
        DT_TRY_TO(fail, st, make_replica(o, &s->replicas[r]));
    DT_TRY_TO(fail, st, dti_schedule_note(s, DTI_NOTE_OPTIONS, o, sizeof *o));
    *out = s;
    return DT_OK;

fail:
    dti_schedule_free(&s);
    return st;
}

static void free_sequence(dti_sequence *q)
{
    if (q == NULL) return;
    dti_free(q->ids);
    dti_free(q->table);
    dti_free(q);
}

static void free_replica(dti_replica *r)
{
    for (int64_t i = 0; i < r->n_running; i++) free_sequence(r->running[i]);
    for (dti_sequence *q = r->waiting, *next; q != NULL; q = next) {
        next = q->next;
        free_sequence(q);
    }
    dti_blocks_free(&r->blocks);
    dti_free(r->running);
    dti_free(r->slots);
    dti_free(r->plan.parts);
    dti_free(r->plan.copies);
    dti_free(r->plan.forks);
}

void dti_schedule_free(dti_schedule **schedule)
{
    dti_schedule *s = *schedule;

    *schedule = NULL;
    if (s == NULL) return;
    for (int64_t r = 0; s->replicas != NULL && r < s->o.n_replicas; r++)
        free_replica(&s->replicas[r]);
    dti_free(s->replicas);
    dti_free(s->words);
    dti_free(s);
}

/* --- lists ------------------------------------------------------------------------------------ */

static bool is_before(const dti_sequence *a, const dti_sequence *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->order < b->order;
}

void dti_sequence_wait(dti_schedule *s, dti_sequence *q)
{
    dti_sequence **at = &s->replicas[q->replica].waiting;

    while (*at != NULL && is_before(*at, q)) at = &(*at)->next;
    q->next = *at;
    *at = q;
    q->slot = -1;
    s->counts.waiting++;
}

void dti_sequence_run(dti_schedule *s, dti_sequence *q)
{
    dti_replica *r = &s->replicas[q->replica];
    int64_t at = r->n_running;

    for (; at > 0 && is_before(q, r->running[at - 1]); at--) r->running[at] = r->running[at - 1];
    r->running[at] = q;
    r->n_running++;
    r->n_held += q->n_texts;
    q->next = NULL;
    for (q->slot = 0; r->slots[q->slot];) q->slot++;
    r->slots[q->slot] = true;
    s->counts.waiting--;
    s->counts.running++;
}

/* The last blocks are the first to be forgotten: a beginning is of more use. */
static void give_back(dti_replica *r, dti_sequence *q)
{
    while (q->n_table > q->n_back) dti_blocks_release(&r->blocks, q->table[--q->n_table]);
    q->n_table = q->n_back = q->n_public = q->n_read = q->content = 0;
}

void dti_sequence_stop(dti_schedule *s, dti_sequence *q)
{
    dti_replica *r = &s->replicas[q->replica];
    dti_sequence **at = &r->waiting;
    int64_t i = 0;

    if (q->slot < 0) {
        while (*at != q) at = &(*at)->next;
        *at = q->next;
        s->counts.waiting--;
        return;
    }
    give_back(r, q);
    r->slots[q->slot] = false;
    q->slot = -1;
    while (r->running[i] != q) i++;
    r->n_running--;
    r->n_held -= q->n_texts;
    memmove(r->running + i, r->running + i + 1, (size_t)(r->n_running - i) * sizeof *r->running);
    s->counts.running--;
}

static void end_sequence(dti_schedule *s, dti_sequence *q)
{
    dti_sequence_stop(s, q);
    s->replicas[q->replica].load -= q->n_texts * q->most;
    free_sequence(q);
}

/* --- submit ----------------------------------------------------------------------------------- */

/* The replica whose texts have least to read, the first of equal ones. */
static int choose_replica(const dti_schedule *s)
{
    int best = 0;

    for (int r = 1; r < s->o.n_replicas; r++)
        if (s->replicas[r].load < s->replicas[best].load) best = r;
    return best;
}

dt_status dti_schedule_judge(const dti_schedule *s, const dti_ask *a)
{
    const int64_t together = s->o.reserves ? a->n_texts : 1;
    int64_t blocks;

    DT_CHECK(a->n >= 1 && a->most >= a->n && a->most <= INT32_MAX && a->n_texts >= 1, DT_ERR_ARG,
             "%lld texts of %lld tokens, at most %lld", (long long)a->n_texts, (long long)a->n,
             (long long)a->most);
    DT_CHECK(a->n_texts <= s->o.max_running, DT_ERR_ARG,
             "%lld texts of a prompt: a pass has %lld at most; ask for fewer at a time, or make "
             "max_texts larger, and the pool where layers carry state",
             (long long)a->n_texts, (long long)s->o.max_running);
    blocks = dti_sequence_blocks(
        s, &(dti_sequence){ .most = a->most, .n_prompt = a->n, .n_texts = together });
    DT_CHECK(blocks <= s->o.n_blocks, DT_ERR_ARG,
             "a text of %lld tokens needs %lld blocks of %lld, there are %lld: shorten the prompt, "
             "ask for fewer new tokens, or make the pool larger",
             (long long)a->most, (long long)blocks, (long long)s->o.block,
             (long long)s->o.n_blocks);
    return DT_OK;
}

static dt_status make_sequence(const dti_ask *a, dti_sequence **out)
{
    dt_status st = DT_OK;
    dti_sequence *q;

    DT_TRY(dti_new(sizeof *q, &q));
    *q = (dti_sequence){ .request = a->request,
                         .text = a->text,
                         .priority = a->priority,
                         .most = a->most,
                         .n_prompt = a->n,
                         .n_texts = a->n_texts,
                         .salt = a->salt,
                         .slot = -1,
                         .n_known = a->n };
    DT_TRY_TO(fail, st, dti_grow((void **)&q->ids, &q->ids_room, (size_t)a->n + 1, sizeof *q->ids));
    memcpy(q->ids, a->ids, (size_t)a->n * sizeof *q->ids);
    *out = q;
    return DT_OK;

fail:
    free_sequence(q);
    return st;
}

static dt_status note_ask(dti_schedule *s, const dti_ask *a)
{
    const size_t bytes = sizeof *a + (size_t)a->n * sizeof *a->ids;
    dt_status st;
    char *all;

    if (s->log == NULL) return DT_OK;
    DT_TRY(dti_alloc(bytes, (void **)&all));
    memcpy(all,
           &(dti_ask){ .request = a->request,
                       .text = a->text,
                       .n_texts = a->n_texts,
                       .most = a->most,
                       .priority = a->priority,
                       .salt = a->salt,
                       .n = a->n },
           sizeof *a);
    memcpy(all + sizeof *a, a->ids, (size_t)a->n * sizeof *a->ids);
    st = dti_schedule_note(s, DTI_NOTE_SUBMIT, all, (int64_t)bytes);
    dti_free(all);
    return st;
}

dt_status dti_schedule_submit(dti_schedule *s, const dti_ask *ask)
{
    dti_sequence *q;

    DT_TRY(dti_schedule_judge(s, ask));
    DT_CHECK(s->counts.waiting < s->o.max_waiting, DT_ERR_MEMORY,
             "the queue is full: %lld texts wait", (long long)s->counts.waiting);
    DT_TRY(note_ask(s, ask));
    DT_TRY(make_sequence(ask, &q));
    q->replica = choose_replica(s);
    q->order = s->n_orders;
    s->n_orders += ask->n_texts;
    s->replicas[q->replica].load += ask->n_texts * ask->most;
    dti_sequence_wait(s, q);
    return DT_OK;
}

dt_status dti_schedule_cancel(dti_schedule *s, int64_t request)
{
    DT_CHECK(!s->stepped, DT_ERR_INTERNAL, "request %lld is cancelled during a pass",
             (long long)request);
    DT_TRY(dti_schedule_note(s, DTI_NOTE_CANCEL, &request, sizeof request));
    for (int64_t k = 0; k < s->o.n_replicas; k++) {
        dti_replica *r = &s->replicas[k];
        for (int64_t i = r->n_running - 1; i >= 0; i--)
            if (r->running[i]->request == request) end_sequence(s, r->running[i]);
        for (dti_sequence *q = r->waiting, *next; q != NULL; q = next) {
            next = q->next;
            if (q->request == request) end_sequence(s, q);
        }
    }
    return DT_OK;
}

/* --- step and feed ---------------------------------------------------------------------------- */

/* Texts that wait for a token, of the replica that has most of them. */
static int64_t count_waiting(const dti_schedule *s)
{
    int64_t most = 0;

    for (int64_t k = 0; k < s->o.n_replicas; k++) {
        const dti_replica *r = &s->replicas[k];
        int64_t n = 0;
        for (int64_t i = 0; i < r->n_running; i++)
            n += r->running[i]->n_known > r->running[i]->n_prompt &&
                 r->running[i]->n_known - r->running[i]->n_read == 1;
        most = dti_max(most, n);
    }
    return most;
}

/* Rows that prompts may have beside n texts that wait for a token: in the time that is left, or
 * half as long as these take alone if that is more, within the bound that there is. Nobody waits:
 * as many as a pass has. */
static int64_t prompt_rows(const dti_schedule *s, const dti_pass_cost *cost, int64_t n)
{
    const int64_t alone = cost->pass_ns + n * cost->row_ns;
    int64_t left = dti_max(s->o.wanted_ns - alone, alone / 2);

    if (n == 0 || s->o.wanted_ns == 0 || cost->row_ns <= 0) return s->o.max_rows;
    if (s->o.slowed > 0)
        left = dti_min(left, (int64_t)((double)alone * 1e-3 * (double)s->o.slowed));
    return dti_max(LEAST_PROMPT_ROWS, left / cost->row_ns);
}

dt_status dti_schedule_step(dti_schedule *s, const dti_pass_cost *cost, int64_t *n_rows)
{
    const int64_t n = count_waiting(s), rows = prompt_rows(s, cost, n);
    int64_t words[3] = { cost->pass_ns, cost->row_ns, 0 };
    uint64_t hash = 0;

    DT_CHECK(!s->stepped, DT_ERR_INTERNAL, "what the last step has chosen was not fed");
    DT_CHECK(cost->pass_ns >= 0 && cost->row_ns >= 0 && cost->pass_ns <= MOST_NS &&
                 cost->row_ns <= MOST_NS,
             DT_ERR_INTERNAL, "a pass of %lld ns, %lld a row", (long long)cost->pass_ns,
             (long long)cost->row_ns);
    *n_rows = 0;
    s->counts.wait_for_token = n;
    for (int64_t k = 0; k < s->o.n_replicas; k++) {
        DT_TRY(dti_plan_make(s, &s->replicas[k], rows));
        *n_rows += s->replicas[k].plan.n_rows;
        hash = dti_plan_hash(hash, &s->replicas[k].plan);
    }
    memcpy(&words[2], &hash, sizeof hash);
    DT_TRY(dti_schedule_note(s, DTI_NOTE_STEP, words, sizeof words));
    s->stepped = *n_rows > 0;
    s->counts.steps += *n_rows > 0;
    s->counts.rows += *n_rows;
    return DT_OK;
}

void dti_sequence_leave_behind(const dti_schedule *s, dti_sequence *q)
{
    const int64_t seen = s->o.window > 0 ? dti_max(0, q->n_read - s->o.window + 1) : 0;

    for (; (q->n_back + 1) * s->o.block <= seen; q->n_back++) {
        dti_blocks_release(&s->replicas[q->replica].blocks, q->table[q->n_back]);
        q->table[q->n_back] = -1;
    }
}

/* Blocks that are full are found from now on. */
static void settle_blocks(const dti_schedule *s, dti_replica *r, dti_sequence *q)
{
    for (; s->o.finds && (q->n_public + 1) * s->o.block <= q->n_read; q->n_public++) {
        const dti_content c = { q->content, q->salt, q->ids + q->n_public * s->o.block };
        q->content = dti_blocks_publish(&r->blocks, q->table[q->n_public], &c);
    }
    dti_sequence_leave_behind(s, q);
}

static dt_status add_token(dti_sequence *q, int32_t id)
{
    DT_TRY(dti_grow((void **)&q->ids, &q->ids_room, (size_t)q->n_known + 1, sizeof *q->ids));
    q->ids[q->n_known++] = id;
    return DT_OK;
}

/* Another text of the same prompt: it has all blocks in common until one of them writes. */
static dt_status fork_text(dti_schedule *s, const dti_sequence *q, int64_t i, int32_t id)
{
    dti_replica *r = &s->replicas[q->replica];
    const dti_ask ask = { q->request,  q->text + i, 1,      q->most,
                          q->priority, q->salt,     q->ids, q->n_known };
    dt_status st = DT_OK;
    dti_sequence *f;

    DT_TRY(make_sequence(&ask, &f));
    DT_TRY_TO(fail, st, add_token(f, id));
    DT_TRY_TO(fail, st,
              dti_grow((void **)&f->table, &f->table_room, (size_t)q->n_table, sizeof *f->table));
    memcpy(f->table, q->table, (size_t)q->n_table * sizeof *f->table);
    for (int64_t k = q->n_back; k < q->n_table; k++) dti_blocks_retain(&r->blocks, q->table[k]);
    f->order = q->order + i;
    f->replica = q->replica;
    f->n_read = q->n_read;
    f->n_prompt = q->n_prompt;
    f->n_found = q->n_found;
    f->n_table = q->n_table;
    f->n_back = q->n_back;
    f->n_public = q->n_public;
    f->content = q->content;
    r->load += f->most;
    s->counts
        .waiting++; /* it is none of those that wait, but dti_sequence_run() takes it for one */
    dti_sequence_run(s, f);
    r->plan.forks[r->plan.n_forks++] = (dti_copy){ q->slot, f->slot };
    return DT_OK;

fail:
    free_sequence(f);
    return st;
}

/* Choices of a text and of those that its prompt becomes. */
static dt_status choose(dti_schedule *s, dti_sequence *q, const dti_choice *choices)
{
    const int64_t n = q->n_texts;
    dti_replica *r = &s->replicas[q->replica];

    r->n_held -= n - 1;
    r->load -= (n - 1) * q->most;
    q->n_texts = 1;
    for (int64_t i = 1; i < n; i++)
        if (!choices[i].ends) DT_TRY(fork_text(s, q, i, choices[i].id));
    if (choices[0].ends)
        end_sequence(s, q);
    else
        DT_TRY(add_token(q, choices[0].id));
    return DT_OK;
}

dt_status dti_schedule_feed(dti_schedule *s, const dti_choice *choices, int64_t n)
{
    int64_t wanted = 0;

    for (int64_t k = 0; k < s->o.n_replicas; k++) wanted += s->replicas[k].plan.n_choices;
    DT_CHECK(s->stepped && n == wanted, DT_ERR_INTERNAL, "%lld choices, %lld are wanted",
             (long long)n, (long long)wanted);
    DT_TRY(dti_schedule_note(s, DTI_NOTE_FEED, choices, n * (int64_t)sizeof *choices));
    s->stepped = false;
    for (int64_t k = 0; k < s->o.n_replicas; k++) {
        dti_replica *r = &s->replicas[k];
        r->plan.n_forks = 0; /* the last ones were made with the plan */
        for (int64_t i = 0; i < r->plan.n_parts; i++) {
            const dti_plan_part *p = &r->plan.parts[i];
            const int64_t texts = p->of->n_texts;
            p->of->n_read += p->n;
            settle_blocks(s, r, p->of);
            if (!p->chooses) continue;
            DT_TRY(choose(s, p->of, choices));
            choices += texts;
        }
    }
    return DT_OK;
}
