/* SPDX-License-Identifier: Apache-2.0
 *
 * A world for schedules of passes: blocks hold fingerprints of all tokens up to each, in place of
 * keys and values, so that a step that reads what is not there, or writes what another reads, is
 * found. What a text becomes is a function of its request alone. */
#ifndef DT_SCHEDULE_WORLD_H
#define DT_SCHEDULE_WORLD_H

#include "models/engine/schedule.h"

enum { DT_WORLD_REQUESTS = 1024, DT_WORLD_TEXTS = 8 };

typedef struct dt_world_request {
    int64_t n_prompt, family, common; /* the first `common` tokens are those of its family */
    int64_t n_texts, max_new, priority;
    uint64_t salt;
    bool over;
    int64_t n[DT_WORLD_TEXTS]; /* tokens so far; -1: it has ended */
} dt_world_request;

typedef struct dt_world {
    dti_schedule_options o;
    dti_schedule *s;
    uint64_t *keys; /* [n_replicas, n_blocks, block] */
    dt_world_request requests[DT_WORLD_REQUESTS];
    int64_t n_requests, n_ended;
    int64_t *log; /* [n_log] */
    int64_t n_log;
    size_t log_room;
    dti_choice *choices;
    size_t choices_room;
    uint64_t *chain;
    size_t chain_room;
} dt_world;

dt_status dt_world_open(const dti_schedule_options *o, dt_world **out) DT_MUST_USE;
void dt_world_close(dt_world **w); /* accepts NULL */

/* Errors: those of dti_schedule_submit(); the request is then over. */
dt_status dt_world_submit(dt_world *w, const dt_world_request *r) DT_MUST_USE;
dt_status dt_world_cancel(dt_world *w, int64_t request) DT_MUST_USE;

/* One pass, and all books checked before and after. */
dt_status dt_world_step(dt_world *w, const dti_pass_cost *cost, int64_t *n_rows) DT_MUST_USE;

/* Steps until all has ended: in no more passes than there are tokens to read; then no block is
 * anybody's, and the log replays. */
dt_status dt_world_drain(dt_world *w) DT_MUST_USE;

#endif
