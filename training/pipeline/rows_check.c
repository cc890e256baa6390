/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a schedule can run. Each stage has three counters: the microbatches that its next F, its
 * next I and its next W have to be of, where B is both of the latter. Rows that keep to them are
 * run without work, which shows who waits for ever. */
#include "base/options.h"
#include "base/text.h"
#include "base/writer.h"
#include "training/pipeline/walk.h"

enum { LINKS_SHOWN = 3 };

/* What the counters of its stage say of an action; then they go on. */
static dt_status check_counters(const dt_action *a, int next[3])
{
    static const char letters[] = "FIW";
    const bool counts[] = { a->kind == DT_ACTION_F, dti_is_backward(a->kind),
                            dti_is_weights(a->kind) };

    for (int k = 0; k < 3; k++) {
        if (!counts[k]) continue;
        DT_CHECK(a->microbatch >= next[k], DT_ERR_FORMAT,
                 "stage %d has had its %c of microbatch %d before; take one of them out", a->stage,
                 letters[k], a->microbatch);
        DT_CHECK(a->microbatch == next[k], DT_ERR_FORMAT,
                 "comes where %d%c%d is missing; of a stage each kind follows the microbatches in "
                 "ascending order (B is I and W), put that before it",
                 a->stage, letters[k], next[k]);
        DT_CHECK(k == 0 || a->microbatch < next[k - 1], DT_ERR_FORMAT,
                 "needs %d%c%d, which has to come before it in the row", a->stage, letters[k - 1],
                 a->microbatch);
        next[k]++;
    }
    return DT_OK;
}

static dt_status check_action(const dt_pipeline_schedule *s, int rank, int i, int (*next)[3])
{
    const dt_action *a = &s->actions[i];

    DT_CHECK(s->rank_of[a->stage] == rank, DT_ERR_FORMAT,
             "stage %d is on rank %d already; a stage has one rank, give this one another number",
             a->stage, s->rank_of[a->stage]);
    DT_CHECK(!a->overlapped || a[1].stage != a->stage || a[1].microbatch != a->microbatch,
             DT_ERR_FORMAT, "runs together with its own backward pass, which needs it");
    return check_counters(a, next[a->stage]);
}

/* Says which cell the error of this thread is about. */
static dt_status in_cell(const dt_pipeline_schedule *s, int rank, int i, dt_status st)
{
    char text[DT_ACTION_BYTES], name[DTI_SHOWN_BYTES];

    dti_error_prefix("%s: rank %d, column %d (\"%s\")", dti_printable(s->name, name, sizeof name),
                     rank, s->columns[i], dt_action_text(&s->actions[i], text));
    return st;
}

static dt_status check_rows(const dt_pipeline_schedule *s, int (*next)[3])
{
    for (int rank = 0; rank < s->n_ranks; rank++) {
        DT_CHECK(s->begin[rank] < s->begin[rank + 1], DT_ERR_FORMAT,
                 "%s: rank %d has no action; every rank has a stage, take its line out or fill it",
                 s->name, rank);
        for (int i = s->begin[rank]; i < s->begin[rank + 1]; i++) {
            const dt_status st = check_action(s, rank, i, next);
            if (st != DT_OK) return in_cell(s, rank, i, st);
        }
    }
    for (int stage = 0; stage < s->n_stages; stage++) {
        const int *n = next[stage], m = s->n_microbatches;
        const int k = n[0] < m ? 0 : n[1] < m ? 1 : 2;
        DT_CHECK(s->rank_of[stage] >= 0, DT_ERR_FORMAT,
                 "%s: no rank has stage %d of %d; stages count from 0, without gaps", s->name,
                 stage, s->n_stages);
        DT_CHECK(
            n[k] == m, DT_ERR_FORMAT,
            "%s: rank %d: %d%c%d is missing; every stage has an F, and a B or both I and W, of "
            "each of the %d microbatches",
            s->name, s->rank_of[stage], stage, "FIW"[k], n[k], m);
    }
    return DT_OK;
}

/* --- who waits for whom ----------------------------------------------------------------------- */

/* Who holds up a rank: what its next action needs that is not made, and where that is. */
typedef struct hold_up {
    dt_action needed; /* its kind is the one that there is */
    int rank, place;  /* among the actions */
} hold_up;

static bool holds_up(const dt_pipeline_schedule *s, const int *at, const dt_action *a, hold_up *out)
{
    const int stage = dti_needed_stage(s, a);

    if (stage < 0) return false;
    out->rank = s->rank_of[stage];
    for (int i = s->begin[out->rank] + at[out->rank]; i < s->begin[out->rank + 1]; i++) {
        const dt_action *b = &s->actions[i];
        if (b->stage != stage || b->microbatch != a->microbatch ||
            dti_is_backward(b->kind) != dti_is_backward(a->kind) || b->kind == DT_ACTION_W)
            continue;
        out->needed = *b;
        out->place = i;
        return true;
    }
    return false;
}

static hold_up next_hold_up(const dt_pipeline_schedule *s, const int *at, int rank)
{
    const dt_action *a = &s->actions[s->begin[rank] + at[rank]];
    hold_up found = { *a, rank, s->begin[rank] + at[rank] };

    if (!holds_up(s, at, a, &found) && a->overlapped) (void)holds_up(s, at, a + 1, &found);
    return found;
}

/* Ranks that wait for each other in a circle, from the cell on that comes first in its row. */
static dt_status fail_circle(const dt_pipeline_schedule *s, const int *at)
{
    char text[DT_ERROR_MESSAGE_BYTES / 2], a[DT_ACTION_BYTES], b[DT_ACTION_BYTES];
    dti_writer w = { text, sizeof text, 0 };
    int rank = 0, first;

    while (s->begin[rank] + at[rank] == s->begin[rank + 1]) rank++;
    for (int k = 0; k < s->n_ranks; k++)
        rank = next_hold_up(s, at, rank).rank; /* into the circle */
    first = rank;
    for (int k = 0; k < s->n_ranks; k++) {
        rank = next_hold_up(s, at, rank).rank;
        if (s->columns[s->begin[rank] + at[rank]] < s->columns[s->begin[first] + at[first]])
            first = rank;
    }
    rank = first;
    for (int k = 0; k == 0 || (rank != first && k < LINKS_SHOWN); k++) {
        const hold_up l = next_hold_up(s, at, rank);
        const int waits = s->begin[l.rank] + at[l.rank];
        dti_put(&w, "%swaits for %s, which rank %d has in column %d behind %s in column %d",
                k > 0 ? ", which " : "", dt_action_text(&l.needed, a), l.rank, s->columns[l.place],
                dt_action_text(&s->actions[waits], b), s->columns[waits]);
        rank = l.rank;
    }
    (void)dt_fail(DT_ERR_FORMAT,
                  "%s%s: none of them ever begins; move one of what is waited for "
                  "forward in its row",
                  text, rank != first ? " and so on" : "");
    return in_cell(s, first, s->begin[first] + at[first], DT_ERR_FORMAT);
}

static dt_status check_order(const dt_pipeline_schedule *s)
{
    const dt_pipeline_costs any = DT_PIPELINE_COSTS_INIT;
    dt_pipeline_span *spans = NULL;
    dt_status st;
    int *at = NULL;
    bool all = true;

    DT_TRY(dti_alloc_array((size_t)s->n, sizeof *spans, (void **)&spans));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)s->n_ranks, sizeof *at, (void **)&at));
    DT_TRY_TO(done, st, dti_pipeline_walk(s, &any, spans, at, &all));
    if (!all) st = fail_circle(s, at);
done:
    dti_free(at);
    dti_free(spans);
    return st;
}

/* --- what it holds ---------------------------------------------------------------------------- */

void dti_hold(dti_held *h, dt_action_kind kind, int64_t live, int64_t postponed)
{
    switch (kind) {
    case DT_ACTION_F:
        h->live++;
        h->bytes += live;
        break;
    case DT_ACTION_I:
        h->postponed++;
        h->bytes += postponed - live;
        break;
    case DT_ACTION_B:
        h->live--;
        h->bytes -= live;
        break;
    case DT_ACTION_W:
        h->live--;
        h->postponed--;
        h->bytes -= postponed;
        break;
    }
}

static dt_status check_held(const dti_held *h, const dt_pipeline_limits *o, int rank)
{
    DT_CHECK(
        o->live <= 0 || h->live <= o->live, DT_ERR_MEMORY,
        "is live microbatch %d of its rank, which may have %d; let a B or W come before it, or "
        "take a schedule that holds fewer",
        h->live, o->live);
    DT_CHECK(o->postponed < 0 || h->postponed <= o->postponed, DT_ERR_MEMORY,
             "is the I of W %d that its rank postpones, which may postpone %d; let a W come before "
             "it, or make it a B",
             h->postponed, o->postponed);
    DT_CHECK(o->bytes == NULL || h->bytes <= o->bytes[rank], DT_ERR_MEMORY,
             "its rank holds %lld bytes of %d live microbatches and %d postponed W's then, and may "
             "hold %lld; let a B or W come before it, or take smaller microbatches",
             (long long)h->bytes, h->live, h->postponed, (long long)o->bytes[rank]);
    return DT_OK;
}

static dt_status check_limits(const dt_pipeline_schedule *s, const dt_pipeline_limits *limits)
{
    dt_pipeline_limits o = DT_PIPELINE_LIMITS_INIT;

    DT_TRY(dti_options_read("dt_pipeline_limits", "start from DT_PIPELINE_LIMITS_INIT", limits, &o,
                            sizeof o));
    for (int rank = 0; rank < s->n_ranks; rank++) {
        dti_held h = { 0, 0, 0 };
        for (int i = s->begin[rank]; i < s->begin[rank + 1]; i++) {
            const dt_action *a = &s->actions[i];
            dt_status st;
            dti_hold(&h, a->kind, o.live_bytes != NULL ? o.live_bytes[a->stage] : 0,
                     o.postponed_bytes != NULL ? o.postponed_bytes[a->stage] : 0);
            st = check_held(&h, &o, rank);
            if (st != DT_OK) return in_cell(s, rank, i, st);
        }
    }
    return DT_OK;
}

dt_status dt_pipeline_check(const dt_pipeline_schedule *s, const dt_pipeline_limits *limits)
{
    int(*next)[3] = NULL;
    dt_status st;

    DT_CHECK(s != NULL, DT_ERR_ARG, "the schedule is NULL");
    DT_TRY(dti_alloc_array((size_t)s->n_stages, sizeof *next, (void **)&next));
    st = check_rows(s, next);
    dti_free(next);
    if (st == DT_OK) st = check_order(s);
    if (st == DT_OK) st = check_limits(s, limits);
    return st;
}
