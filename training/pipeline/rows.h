/* SPDX-License-Identifier: Apache-2.0
 *
 * A schedule's rows, and how they are filled. */
#ifndef DTI_PIPELINE_ROWS_H
#define DTI_PIPELINE_ROWS_H

#include <dtensor/pipeline.h>
#include <stdatomic.h>

#include "base/memory.h"

enum { DTI_PIPELINE_MAX_ACTIONS = 1 << 24 };

struct dt_pipeline_schedule {
    atomic_int refs;
    char *name;
    int n_ranks, n_stages, n_microbatches;
    int n;              /* actions of all rows */
    dt_action *actions; /* [n] row after row */
    int *columns;       /* [n] of their cells; of two that are overlapped the same */
    int *begin;         /* [n_ranks + 1] where rows begin among the actions */
    int *rank_of;       /* [n_stages]; -1: no rank has it */
    size_t room, room_columns, room_rows;
};

/* Filling one, row after row. After the first error nothing is added; dti_rows_end() has it. */
typedef struct dti_rows {
    dt_pipeline_schedule *s;
    dt_status st;
} dti_rows;

dti_rows dti_rows_begin(const char *name);
void dti_rows_next(dti_rows *to); /* begins a row: before its first action */
void dti_rows_add(dti_rows *to, dt_action action, int column);

/* Finds ranks, stages and microbatches, and checks all that dt_pipeline_check() does. */
dt_status dti_rows_end(dti_rows *rows, dt_pipeline_schedule **out) DT_MUST_USE;

/* What a rank holds between two actions. */
typedef struct dti_held {
    int live, postponed;
    int64_t bytes;
} dti_held;

/* After an action of a stage with so many bytes; of two that are overlapped the F comes first. */
void dti_hold(dti_held *held, dt_action_kind kind, int64_t live, int64_t postponed);

/* --- letters ---------------------------------------------------------------------------------- */

static inline char dti_action_letter(dt_action_kind kind)
{
    return "FBIW"[kind];
}

/* What a table has of two: of I and W, B counts as both. */
static inline bool dti_is_backward(dt_action_kind kind)
{
    return kind == DT_ACTION_B || kind == DT_ACTION_I;
}

static inline bool dti_is_weights(dt_action_kind kind)
{
    return kind == DT_ACTION_B || kind == DT_ACTION_W;
}

#endif
