/* SPDX-License-Identifier: Apache-2.0
 *
 * A replica's next pass. */
#include "base/numbers.h"
#include "models/engine/schedule.h"

/* --- blocks of a text ------------------------------------------------------------------------- */

static int64_t blocks_of(const dti_schedule *s, int64_t n_tokens)
{
    return dti_divide_up(n_tokens, s->o.block);
}

/* Of one text that reads n tokens: where it sees no more than a window, those before are given
 * back, and a pass adds its own. */
static int64_t most_blocks(const dti_schedule *s, int64_t n)
{
    const int64_t all = blocks_of(s, n);

    if (s->o.window <= 0) return all;
    return dti_min(all, blocks_of(s, s->o.window + s->o.max_rows) + 1);
}

int64_t dti_sequence_blocks(const dti_schedule *s, const dti_sequence *q)
{
    const int64_t shared = s->o.window > 0 ? 0 : q->n_prompt / s->o.block;

    return most_blocks(s, q->most) + (q->n_texts - 1) * (most_blocks(s, q->most) - shared);
}

static bool is_shared(const dti_schedule *s, const dti_replica *r, const dti_sequence *q)
{
    const int64_t at = q->n_read / s->o.block;

    return at < q->n_table && q->table[at] >= 0 && r->blocks.all[q->table[at]].refs > 1;
}

/* Blocks that running texts may still take. */
static int64_t promised(const dti_schedule *s, const dti_replica *r)
{
    int64_t n = 0;

    for (int64_t i = 0; i < r->n_running && s->o.reserves; i++) {
        const dti_sequence *q = r->running[i];
        n += dti_sequence_blocks(s, q) - (q->n_table - q->n_back) + is_shared(s, r, q);
    }
    return n;
}

/* --- preemption ------------------------------------------------------------------------------- */

static void drop_part(dti_plan *p, const dti_sequence *q)
{
    int64_t to = 0;

    for (int64_t i = 0; i < p->n_parts; i++) {
        if (p->parts[i].of != q) {
            p->parts[to++] = p->parts[i];
            continue;
        }
        p->n_rows -= p->parts[i].n;
        p->n_choices -= p->parts[i].chooses ? q->n_texts : 0;
    }
    p->n_parts = to;
}

/* The last in order has to wait. Copies that were planned for it do no harm: they are made in
 * order, before anything is read. */
static dti_sequence *preempt_last(dti_schedule *s, dti_replica *r)
{
    dti_sequence *q = r->running[r->n_running - 1];

    drop_part(&r->plan, q);
    dti_sequence_stop(s, q);
    dti_sequence_wait(s, q);
    r->preempted = true;
    s->counts.preempted++;
    return q;
}

/* A free block, whoever has to go; -1: the text itself had to. */
static int32_t take_block(dti_schedule *s, dti_replica *r, const dti_sequence *q)
{
    int32_t block;

    while ((block = dti_blocks_take(&r->blocks)) < 0)
        if (preempt_last(s, r) == q) return -1;
    return block;
}

/* The first block that is written to becomes the text's own. */
static bool own_block(dti_schedule *s, dti_replica *r, dti_sequence *q)
{
    int32_t *const at = &q->table[q->n_read / s->o.block];

    while (is_shared(s, r, q)) {
        const int32_t block = dti_blocks_take(&r->blocks);
        if (block < 0) { /* it may have shared with the one that goes */
            if (preempt_last(s, r) == q) return false;
            continue;
        }
        r->plan.copies[r->plan.n_copies++] = (dti_copy){ *at, block };
        dti_blocks_release(&r->blocks, *at);
        *at = block;
    }
    return true;
}

/* Blocks for its tokens up to `end`; *well: it has them, and did not have to wait. */
static dt_status make_room(dti_schedule *s, dti_replica *r, dti_sequence *q, int64_t end,
                           bool *well)
{
    const int64_t wanted = blocks_of(s, end);

    DT_TRY(dti_grow((void **)&q->table, &q->table_room, (size_t)wanted, sizeof *q->table));
    *well = own_block(s, r, q);
    while (*well && q->n_table < wanted) {
        const int32_t block = take_block(s, r, q);
        *well = block >= 0;
        if (*well) q->table[q->n_table++] = block;
    }
    return DT_OK;
}

/* --- parts ------------------------------------------------------------------------------------ */

static dt_status add_part(dti_schedule *s, dti_replica *r, dti_sequence *q, int64_t n)
{
    dti_plan *p = &r->plan;
    dti_plan_part part = { q, q->n_read, n, q->n_read + n == q->n_known };
    bool well;

    DT_TRY(make_room(s, r, q, part.first + n, &well));
    if (!well) return DT_OK;
    p->parts[p->n_parts++] = part;
    p->n_rows += n;
    p->n_choices += part.chooses ? q->n_texts : 0;
    return DT_OK;
}

/* Texts that lack one token, or (`longer`) those that lack more; the latter as many tokens as there
 * are. */
static dt_status add_running(dti_schedule *s, dti_replica *r, bool longer, int64_t rows)
{
    for (int64_t i = 0; i < r->n_running; i++) {
        dti_sequence *q = r->running[i];
        const int64_t lacks = q->n_known - q->n_read;
        const int64_t n = longer ? dti_min(lacks, rows - r->plan.n_rows) : 1;
        if ((lacks > 1) == longer && n > 0) DT_TRY(add_part(s, r, q, n));
    }
    return DT_OK;
}

/* --- beginning -------------------------------------------------------------------------------- */

/* Takes blocks that hold what it begins with, but for those that no window reaches any more; its
 * last token is read in any case. */
static dt_status find_beginning(const dti_schedule *s, dti_replica *r, dti_sequence *q)
{
    const int64_t most = s->o.finds ? (q->n_known - 1) / s->o.block : 0;

    DT_TRY(dti_grow((void **)&q->table, &q->table_room, (size_t)most + 1, sizeof *q->table));
    while (q->n_table < most) {
        const dti_content c = { q->content, q->salt, q->ids + q->n_table * s->o.block };
        const int32_t block = dti_blocks_find(&r->blocks, &c);
        if (block < 0) break;
        dti_blocks_retain(&r->blocks, block);
        q->table[q->n_table++] = block;
        q->content = r->blocks.all[block].content;
    }
    q->n_public = q->n_table;
    q->n_read = q->n_table * s->o.block;
    dti_sequence_leave_behind(s, q);
    return DT_OK;
}

/* Whether there are blocks for all that it knows and, with reservations, may come to know. */
static bool fits(const dti_schedule *s, const dti_replica *r, const dti_sequence *q)
{
    const int64_t kept = q->n_table - q->n_back;
    const int64_t now = most_blocks(s, q->n_known) - kept;

    if (s->o.reserves) return dti_sequence_blocks(s, q) - kept + promised(s, r) <= r->blocks.n_free;
    /* one more, so that it is not the first thing to go when another needs it */
    return now + (r->n_running > 0) <= r->blocks.n_free;
}

static void give_up_beginning(dti_replica *r, dti_sequence *q)
{
    while (q->n_table > q->n_back) dti_blocks_release(&r->blocks, q->table[--q->n_table]);
    q->n_table = q->n_back = q->n_public = q->n_read = q->content = 0;
}

/* The first of those that wait; *began: there was one, and it did. */
static dt_status begin_first(dti_schedule *s, dti_replica *r, int64_t rows, bool *began)
{
    dti_sequence *q = r->waiting;
    bool well;

    *began = false;
    if (q == NULL || r->preempted || r->n_held + q->n_texts > s->o.max_running) return DT_OK;
    DT_TRY(find_beginning(s, r, q));
    if (!fits(s, r, q)) {
        give_up_beginning(r, q);
        return DT_OK;
    }
    *began = true;
    r->waiting = q->next;
    if (q->n_known == q->n_prompt) q->n_found = q->n_read;
    s->counts.found += q->n_read;
    s->counts.read += q->n_known - q->n_read;
    dti_sequence_run(s, q);
    if (s->o.window <= 0) DT_TRY(make_room(s, r, q, q->n_known, &well));
    return add_part(s, r, q, dti_min(q->n_known - q->n_read, rows - r->plan.n_rows));
}

dt_status dti_plan_make(dti_schedule *s, dti_replica *r, int64_t prompt_rows)
{
    dti_plan *p = &r->plan;
    bool began = true;
    int64_t rows;

    p->n_parts = p->n_rows = p->n_choices = p->n_copies = 0;
    r->preempted = false;
    DT_TRY(add_running(s, r, false, s->o.max_rows));
    rows = dti_min(s->o.max_rows, p->n_rows + prompt_rows);
    DT_TRY(add_running(s, r, true, rows));
    while (began && p->n_rows < rows) DT_TRY(begin_first(s, r, rows, &began));
    return DT_OK;
}

uint64_t dti_plan_hash(uint64_t h, const dti_plan *p)
{
    for (int64_t i = 0; i < p->n_parts; i++) {
        const dti_plan_part *part = &p->parts[i];
        const int64_t facts[] = { part->of->request, part->of->text, part->of->slot,
                                  part->first,       part->n,        part->chooses };
        h = dti_hash_bytes(h, facts, sizeof facts);
        h = dti_hash_bytes(h, part->of->table, (size_t)part->of->n_table * sizeof(int32_t));
    }
    for (int64_t i = 0; i < p->n_copies; i++)
        h = dti_hash_bytes(h, &p->copies[i], sizeof p->copies[i]);
    for (int64_t i = 0; i < p->n_forks; i++)
        h = dti_hash_bytes(h, &p->forks[i], sizeof p->forks[i]);
    return dti_hash_word(h, (uint64_t)p->n_rows);
}
