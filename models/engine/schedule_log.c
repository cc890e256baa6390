/* SPDX-License-Identifier: Apache-2.0
 *
 * What a schedule was told, as words, and what it counts. A record is its kind, its bytes, and
 * these, padded to whole words. */
#include <string.h>

#include "base/numbers.h"
#include "models/engine/schedule.h"

enum { HEAD = 2 };

dt_status dti_schedule_note(dti_schedule *s, dti_note note, const void *data, int64_t n)
{
    const int64_t words = HEAD + dti_divide_up(n, (int64_t)sizeof(int64_t));

    if (s->log == NULL) return DT_OK;
    DT_TRY(dti_grow((void **)&s->words, &s->words_room, (size_t)words, sizeof *s->words));
    s->words[0] = (int64_t)note;
    s->words[1] = n;
    s->words[words - 1] = words > HEAD ? 0 : n;
    if (n > 0) memcpy(s->words + HEAD, data, (size_t)n);
    s->log(s->log_arg, s->words, words);
    return DT_OK;
}

/* --- replay ----------------------------------------------------------------------------------- */

/* The last decision of a replay, caught by its own log. */
typedef struct last_step {
    int64_t hash;
} last_step;

static void catch_step(void *arg, const int64_t *words, int64_t n)
{
    last_step *last = arg;

    if (words[0] == DTI_NOTE_STEP && n == HEAD + 3) last->hash = words[HEAD + 2];
}

static dt_status submit(dti_schedule *s, const int64_t *data, int64_t n)
{
    dti_ask ask;

    DT_CHECK(n >= (int64_t)sizeof ask, DT_ERR_FORMAT, "a text of %lld bytes", (long long)n);
    memcpy(&ask, data, sizeof ask);
    n -= (int64_t)sizeof ask;
    DT_CHECK(ask.n >= 0 && ask.n == n / (int64_t)sizeof *ask.ids, DT_ERR_FORMAT,
             "a prompt of %lld tokens in %lld bytes", (long long)ask.n, (long long)n);
    ask.ids = (const int32_t *)(const void *)((const char *)data + sizeof ask);
    return dti_schedule_submit(s, &ask);
}

static dt_status step(dti_schedule *s, const last_step *last, const int64_t *data, int64_t n)
{
    dti_pass_cost cost;
    int64_t rows;

    DT_CHECK(n == 3 * (int64_t)sizeof *data, DT_ERR_FORMAT, "a step of %lld bytes", (long long)n);
    cost = (dti_pass_cost){ data[0], data[1] };
    DT_TRY(dti_schedule_step(s, &cost, &rows));
    DT_CHECK(last->hash == data[2], DT_ERR_FORMAT, "step %lld decides otherwise than the log says",
             (long long)s->counts.steps);
    return DT_OK;
}

static dt_status obey(dti_schedule *s, const last_step *last, const int64_t *record)
{
    const int64_t *data = record + HEAD, n = record[1];

    switch ((dti_note)record[0]) {
    case DTI_NOTE_SUBMIT:
        return submit(s, data, n);
    case DTI_NOTE_CANCEL:
        DT_CHECK(n == sizeof *data, DT_ERR_FORMAT, "a request of %lld bytes", (long long)n);
        return dti_schedule_cancel(s, data[0]);
    case DTI_NOTE_STEP:
        return step(s, last, data, n);
    case DTI_NOTE_FEED:
        return dti_schedule_feed(s, (const dti_choice *)(const void *)data,
                                 n / (int64_t)sizeof(dti_choice));
    case DTI_NOTE_OPTIONS:
        break;
    }
    DT_FAIL(DT_ERR_FORMAT, "a record of kind %lld", (long long)record[0]);
}

/* Words of the record at the front of `words`; 0: it is cut off. */
static int64_t record_words(const int64_t *words, int64_t n)
{
    int64_t all;

    if (n < HEAD || words[1] < 0 || words[1] > INT64_MAX / 2) return 0;
    all = HEAD + dti_divide_up(words[1], (int64_t)sizeof *words);
    return all <= n ? all : 0;
}

dt_status dti_schedule_replay(const int64_t *words, int64_t n)
{
    last_step last = { 0 };
    dti_schedule_options o;
    dti_schedule *s = NULL;
    dt_status st = DT_OK;
    int64_t at = record_words(words, n);

    DT_CHECK(at > 0 && words[0] == DTI_NOTE_OPTIONS && words[1] == (int64_t)sizeof o, DT_ERR_FORMAT,
             "a log does not begin with options");
    memcpy(&o, words + HEAD, sizeof o);
    DT_TRY(dti_schedule_create(&o, catch_step, &last, &s));
    for (int64_t more; st == DT_OK && at < n; at += more) {
        more = record_words(words + at, n - at);
        DT_CHECK_TO(done, st, more > 0, DT_ERR_FORMAT, "a log ends within a record");
        st = obey(s, &last, words + at);
    }
done:
    dti_schedule_free(&s);
    return st;
}

/* --- counts and checks ------------------------------------------------------------------------ */

dti_schedule_counts dti_schedule_count(const dti_schedule *s)
{
    dti_schedule_counts c = s->counts;

    c.blocks = s->o.n_replicas * s->o.n_blocks;
    for (int64_t k = 0; k < s->o.n_replicas; k++) {
        const dti_blocks *b = &s->replicas[k].blocks;
        c.used += b->n - b->n_free;
        for (int32_t i = b->first; i >= 0; i = b->all[i].after) c.kept += b->all[i].found;
    }
    return c;
}

static dt_status check_sequence(const dti_schedule *s, const dti_sequence *q, int32_t *owners)
{
    DT_CHECK(q->n_read < q->n_known && q->n_known <= q->most, DT_ERR_INTERNAL,
             "a text has read %lld tokens and knows %lld", (long long)q->n_read,
             (long long)q->n_known);
    DT_CHECK((q->n_table >= dti_divide_up(q->n_read, s->o.block) || s->stepped) &&
                 q->n_back <= q->n_table,
             DT_ERR_INTERNAL, "%lld tokens were read into %lld blocks", (long long)q->n_read,
             (long long)q->n_table);
    for (int64_t k = q->n_back; k < q->n_table; k++) owners[q->table[k]]++;
    return DT_OK;
}

static dt_status check_replica(const dti_schedule *s, const dti_replica *r, int32_t *owners)
{
    int64_t held = 0, slots = 0;

    DT_TRY(dti_blocks_check(&r->blocks));
    for (int64_t i = 0; i < r->n_running; i++) {
        const dti_sequence *q = r->running[i];
        held += q->n_texts;
        DT_CHECK(q->slot >= 0 && r->slots[q->slot], DT_ERR_INTERNAL, "a text runs without a slot");
        DT_TRY(check_sequence(s, q, owners));
    }
    for (int64_t i = 0; i < s->o.max_running; i++) slots += r->slots[i];
    DT_CHECK(held == r->n_held && held <= s->o.max_running && slots == r->n_running,
             DT_ERR_INTERNAL, "%lld texts in %lld slots, %lld held", (long long)held,
             (long long)slots, (long long)r->n_held);
    for (const dti_sequence *q = r->waiting; q != NULL; q = q->next)
        DT_CHECK(q->slot < 0 && q->n_table == 0 && q->n_read == 0, DT_ERR_INTERNAL,
                 "a text waits with %lld blocks", (long long)q->n_table);
    for (int64_t i = 0; i < r->blocks.n; i++)
        DT_CHECK(owners[i] == r->blocks.all[i].refs, DT_ERR_INTERNAL,
                 "block %lld has %d references and %d owners", (long long)i,
                 (int)r->blocks.all[i].refs, (int)owners[i]);
    return DT_OK;
}

dt_status dti_schedule_check(const dti_schedule *s)
{
    dt_status st = DT_OK;
    int32_t *owners;

    for (int64_t k = 0; k < s->o.n_replicas && st == DT_OK; k++) {
        DT_TRY(dti_alloc_array((size_t)s->o.n_blocks, sizeof *owners, (void **)&owners));
        st = check_replica(s, &s->replicas[k], owners);
        dti_free(owners);
    }
    return st;
}
