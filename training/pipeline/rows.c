/* SPDX-License-Identifier: Apache-2.0
 *
 * A schedule's rows: filling them, and what they say. */
#include "training/pipeline/rows.h"

#include <stdio.h>
#include <string.h>

#include "base/writer.h"

const char *dt_action_text(const dt_action *a, char text[DT_ACTION_BYTES])
{
    (void)snprintf(text, DT_ACTION_BYTES, "%d%c%d", a->stage, dti_action_letter(a->kind),
                   a->microbatch);
    return text;
}

/* --- filling ---------------------------------------------------------------------------------- */

dti_rows dti_rows_begin(const char *name)
{
    dti_rows to = { NULL, DT_OK };

    to.st = dti_new(sizeof *to.s, &to.s);
    if (to.st != DT_OK) return to;
    atomic_init(&to.s->refs, 1);
    to.st = dti_strdup(name, &to.s->name);
    return to;
}

void dti_rows_next(dti_rows *to)
{
    dt_pipeline_schedule *s = to->s;

    if (to->st != DT_OK) return;
    to->st = dti_grow((void **)&s->begin, &s->room_rows, (size_t)s->n_ranks + 2, sizeof *s->begin);
    if (to->st != DT_OK) return;
    s->begin[s->n_ranks++] = s->n;
    s->begin[s->n_ranks] = s->n;
}

void dti_rows_add(dti_rows *to, dt_action action, int column)
{
    dt_pipeline_schedule *s = to->s;
    const size_t want = to->st == DT_OK ? (size_t)s->n + 1 : 0;

    if (to->st == DT_OK)
        to->st = dti_grow((void **)&s->actions, &s->room, want, sizeof *s->actions);
    if (to->st == DT_OK)
        to->st = dti_grow((void **)&s->columns, &s->room_columns, want, sizeof *s->columns);
    if (to->st != DT_OK) return;
    s->actions[s->n] = action;
    s->columns[s->n++] = column;
    s->begin[s->n_ranks] = s->n;
    if (action.stage >= s->n_stages) s->n_stages = action.stage + 1;
    if (action.microbatch >= s->n_microbatches) s->n_microbatches = action.microbatch + 1;
}

static dt_status find_ranks(dt_pipeline_schedule *s)
{
    DT_CHECK(s->n > 0, DT_ERR_FORMAT, "%s: no action in it; a line for each rank has cells as 0F0",
             s->name);
    DT_CHECK(s->n <= DTI_PIPELINE_MAX_ACTIONS, DT_ERR_FORMAT, "%s: more than %d actions", s->name,
             DTI_PIPELINE_MAX_ACTIONS);
    DT_CHECK(s->n_stages <= s->n, DT_ERR_FORMAT,
             "%s: has a stage %d and %d actions: stages count from 0, without gaps", s->name,
             s->n_stages - 1, s->n);
    DT_TRY(dti_alloc_array((size_t)s->n_stages, sizeof *s->rank_of, (void **)&s->rank_of));
    for (int stage = 0; stage < s->n_stages; stage++) s->rank_of[stage] = -1;
    for (int rank = s->n_ranks - 1; rank >= 0; rank--)
        for (int i = s->begin[rank]; i < s->begin[rank + 1]; i++)
            s->rank_of[s->actions[i].stage] = rank;
    return DT_OK;
}

dt_status dti_rows_end(dti_rows *rows, dt_pipeline_schedule **out)
{
    dt_status st = rows->st;

    if (st == DT_OK) st = find_ranks(rows->s);
    if (st == DT_OK) st = dt_pipeline_check(rows->s, NULL);
    if (st != DT_OK) dt_pipeline_schedule_release(&rows->s);
    *out = rows->s;
    return st;
}

dt_pipeline_schedule *dt_pipeline_schedule_retain(dt_pipeline_schedule *s)
{
    (void)atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void dt_pipeline_schedule_release(dt_pipeline_schedule **schedule)
{
    dt_pipeline_schedule *s = schedule != NULL ? *schedule : NULL;

    if (s == NULL) return;
    *schedule = NULL;
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    dti_free(s->name);
    dti_free(s->actions);
    dti_free(s->columns);
    dti_free(s->begin);
    dti_free(s->rank_of);
    dti_free(s);
}

/* --- what they say ---------------------------------------------------------------------------- */

const char *dt_pipeline_schedule_name(const dt_pipeline_schedule *s)
{
    return s != NULL ? s->name : "";
}

int dt_pipeline_schedule_ranks(const dt_pipeline_schedule *s)
{
    return s != NULL ? s->n_ranks : 0;
}

int dt_pipeline_schedule_stages(const dt_pipeline_schedule *s)
{
    return s != NULL ? s->n_stages : 0;
}

int dt_pipeline_schedule_microbatches(const dt_pipeline_schedule *s)
{
    return s != NULL ? s->n_microbatches : 0;
}

int dt_pipeline_schedule_rank_of(const dt_pipeline_schedule *s, int stage)
{
    return s != NULL && stage >= 0 && stage < s->n_stages ? s->rank_of[stage] : -1;
}

const dt_action *dt_pipeline_schedule_row(const dt_pipeline_schedule *s, int rank, int *n)
{
    const bool known = s != NULL && rank >= 0 && rank < s->n_ranks;

    if (n != NULL) *n = known ? s->begin[rank + 1] - s->begin[rank] : 0;
    return known ? s->actions + s->begin[rank] : NULL;
}

int dt_pipeline_schedule_column(const dt_pipeline_schedule *s, int rank, int i)
{
    int n;

    (void)dt_pipeline_schedule_row(s, rank, &n);
    return i >= 0 && i < n ? s->columns[s->begin[rank] + i] : -1;
}

int dt_pipeline_schedule_print(const dt_pipeline_schedule *s, char *text, size_t bytes)
{
    dti_writer w = { text, bytes, 0 };
    char a[DT_ACTION_BYTES], b[DT_ACTION_BYTES];

    for (int rank = 0; rank < dt_pipeline_schedule_ranks(s); rank++)
        for (int i = s->begin[rank], end = s->begin[rank + 1]; i < end; i++) {
            const dt_action *at = &s->actions[i];
            const char *comma = i > s->begin[rank] ? "," : "";

            (void)dt_action_text(at, a);
            if (at->overlapped)
                dti_put(&w, "%s(%s;%s)OVERLAP_F_B", comma, a, dt_action_text(&s->actions[++i], b));
            else
                dti_put(&w, "%s%s", comma, a);
            if (i + 1 == end) dti_put(&w, "\n");
        }
    return dti_written(&w);
}
