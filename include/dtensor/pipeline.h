/* SPDX-License-Identifier: Apache-2.0
 *
 * Schedules of pipelines: which rank computes which stage of which microbatch, in which order.
 *
 * A model is cut into stages 0, 1, ..., each on one rank of the pipeline, a batch into microbatches
 * 0, 1, .... What a rank does in a step is a row of actions, of a stage and a microbatch each:
 *
 *   F  the forward pass
 *   B  the backward pass: I and W in one
 *   I  the part of it that the stage before waits for: the gradient of the stage's input
 *   W  the rest, the gradients of its parameters, at any time after I
 *
 * A schedule is such rows, made by name or read from a file. There is none that cannot run: what
 * dt_pipeline_check() refuses is neither made nor read. It holds no time: what a step takes is
 * simulated, with given times. docs/pipelines.md compares the schedules and has the file's grammar.
 *
 * Nothing here is collective or needs a runtime. A schedule does not change: threads may share it.
 * Errors are the same wherever the same schedule is asked for. */
#ifndef DT_PIPELINE_H
#define DT_PIPELINE_H

#include <dtensor/inspect.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_pipeline_schedule dt_pipeline_schedule;

typedef enum dt_action_kind { DT_ACTION_F, DT_ACTION_B, DT_ACTION_I, DT_ACTION_W } dt_action_kind;

typedef struct dt_action {
    int stage;
    dt_action_kind kind;
    int microbatch;
    bool overlapped; /* an F that runs together with the next of its row, a B or I */
} dt_action;

enum { DT_ACTION_BYTES = 40 };

/** An action as messages and files have it, "2F0". Returns `text`. Not collective. Errors: none. */
DT_API const char *dt_action_text(const dt_action *action, char text[DT_ACTION_BYTES]);

/* --- by name ---------------------------------------------------------------------------------- */

/* A schedule that is known by name. */
typedef struct dt_pipeline_kind {
    const char *name, *summary;
    int stages_per_rank; /* unless something else is said */
    bool any_stages;     /* something else may be said */
    int least;           /* microbatches that it needs for each rank; 0: any number will do */
} dt_pipeline_kind;

/** Row `i` of the table of schedules, from the simplest on; NULL behind the last. Not collective.
 * Errors: none. */
DT_API const dt_pipeline_kind *dt_pipeline_kind_at(int i);

/**
 * Makes a schedule: "naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipev".
 *
 *   n_ranks          of the pipeline
 *   stages_per_rank  0: as usual for this schedule
 *   n_microbatches   any number from 1 on but where dt_pipeline_kind.least says more
 *
 * Stage s lies on rank s mod n_ranks; of "zbv" and "dualpipev" on rank s, and in the second half
 * back again: the last stage is on rank 0.
 *
 * Not collective.
 * Ownership   *out is released with dt_pipeline_schedule_release().
 * Errors      DT_ERR_ARG     NULL, a name that is none, numbers below 1 or that the schedule has
 *                            not, more than 2^24 actions
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_pipeline_schedule_create(const char *name, int n_ranks,
                                                         int stages_per_rank, int n_microbatches,
                                                         dt_pipeline_schedule **out);

/* --- as text ---------------------------------------------------------------------------------- */

/**
 * Reads a schedule from a file in the grammar of PyTorch's pipelines, or from whatever `path`
 * names: a line for each rank, cells with commas between them, "2F0" for stage 2, forward,
 * microbatch 0, "(0F7;7B3)OVERLAP_F_B" for two that run together. Empty cells say nothing. Cells of
 * communication ("2SEND_F0", "2RECV_B0", "0UNSHARD", "1REDUCE_GRAD") are read and left out: what
 * travels follows from the rest.
 *
 * Not collective.
 * Ownership   *out is released with dt_pipeline_schedule_release().
 * Errors      DT_ERR_IO      the file cannot be read
 *             DT_ERR_FORMAT  a cell that is none, or what dt_pipeline_check() refuses: the message
 *                            names rank and column, both counted from 0
 *             DT_ERR_ARG     NULL
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_pipeline_schedule_read(const char *path,
                                                       dt_pipeline_schedule **out);

/** The same of n bytes of text, which messages call `name`. Not collective. Errors: those of
 * dt_pipeline_schedule_read() but DT_ERR_IO. */
DT_API DT_MUST_USE dt_status dt_pipeline_schedule_parse(const char *name, const char *text,
                                                        size_t n, dt_pipeline_schedule **out);

/** Writes a schedule as dt_pipeline_schedule_read() and PyTorch ("compute_only") read it. Returns
 * the length as snprintf() does. Not collective. Errors: none; text that has no room is cut. */
DT_API int dt_pipeline_schedule_print(const dt_pipeline_schedule *s, char *text, size_t bytes);

DT_API dt_pipeline_schedule *dt_pipeline_schedule_retain(dt_pipeline_schedule *s); /* returns s */
DT_API void dt_pipeline_schedule_release(dt_pipeline_schedule **s); /* accepts NULL */

/* --- what it says ----------------------------------------------------------------------------- */

/** Of a schedule: its name (a file's path), how many ranks, stages and microbatches it has. Not
 * collective. Errors: none. */
DT_API const char *dt_pipeline_schedule_name(const dt_pipeline_schedule *s);
DT_API int dt_pipeline_schedule_ranks(const dt_pipeline_schedule *s);
DT_API int dt_pipeline_schedule_stages(const dt_pipeline_schedule *s);
DT_API int dt_pipeline_schedule_microbatches(const dt_pipeline_schedule *s);

/** The rank that a stage is on; -1: there is no such stage. Not collective. Errors: none. */
DT_API int dt_pipeline_schedule_rank_of(const dt_pipeline_schedule *s, int stage);

/** What a rank does, in order: *n actions. Borrowed. NULL and 0 of a rank that is none. Not
 * collective. Errors: none. */
DT_API const dt_action *dt_pipeline_schedule_row(const dt_pipeline_schedule *s, int rank, int *n);

/** The column of action i of a rank's row in the text that it was read from, where cells that say
 * nothing count; for messages. -1: there is no such action. Not collective. Errors: none. */
DT_API int dt_pipeline_schedule_column(const dt_pipeline_schedule *s, int rank, int i);

/* --- whether it can run ----------------------------------------------------------------------- */

/* What a step may hold. A microbatch of a stage is live from the begin of its F to the end of its B
 * or W; its W is postponed from the end of its I on. Arrays may be NULL. */
typedef struct dt_pipeline_limits {
    size_t size;                    /* sizeof(dt_pipeline_limits) */
    int live;                       /* live microbatches of all stages of a rank; 0: any number */
    int postponed;                  /* W's that a rank postpones; -1: any number */
    const int64_t *live_bytes;      /* [n_stages] of a live microbatch before its I is done */
    const int64_t *postponed_bytes; /* [n_stages] of one whose W is postponed */
    const int64_t *bytes;           /* [n_ranks] that both may come to */
} dt_pipeline_limits;

#define DT_PIPELINE_LIMITS_INIT                             \
    {                                                       \
        sizeof(dt_pipeline_limits), 0, -1, NULL, NULL, NULL \
    }

/**
 * Checks that a schedule can run, whatever its actions take: every stage is on one rank and has
 * each of its actions once; F, B or I, and W of a stage follow the microbatches in ascending order
 * (so gradients add up alike under every schedule, and messages between two stages need no numbers)
 * and each other; no two ranks wait for each other. A rank goes on while what it has sent is under
 * way, and a message may lie with its sender until the receiver asks for it: nothing has to be
 * buffered.
 *
 *   limits  what it may hold; NULL: anything
 *
 * Not collective.
 * Errors      DT_ERR_FORMAT  the first offending cell with its rank and column, and what to do:
 *                            rank by rank, then what is missing, then who waits for whom
 *             DT_ERR_MEMORY  the first cell that goes beyond a limit; no memory
 *             DT_ERR_ARG     NULL
 */
DT_API DT_MUST_USE dt_status dt_pipeline_check(const dt_pipeline_schedule *s,
                                               const dt_pipeline_limits *limits);

/* --- what it takes ---------------------------------------------------------------------------- */

/* What actions take and hold, in any unit of time and in bytes. Arrays may be NULL: 1 for each F, I
 * and W, no bytes. B takes I and W together. */
typedef struct dt_pipeline_costs {
    size_t size;               /* sizeof(dt_pipeline_costs) */
    int n;                     /* entries of each array: one for each stage (0), or 1 for all */
    const double *f, *i, *w;   /* time of an action */
    double message;            /* time that a message from one rank to another takes */
    double together;           /* of two that run together, as a share of one after the other; 0:
                                * they run one after the other, as dt_pipeline_run() has them do,
                                * and neither waits for what the other needs */
    const int64_t *live_bytes; /* as in dt_pipeline_limits */
    const int64_t *postponed_bytes;
    const double *messages; /* [n_stages] in the place of `message`: entry k is of one between
                             * stages k - 1 and k, either way; the first is not looked at. NULL: all
                             * take as long */
} dt_pipeline_costs;

#define DT_PIPELINE_COSTS_INIT                                                     \
    {                                                                              \
        sizeof(dt_pipeline_costs), 0, NULL, NULL, NULL, 0.0, 1.0, NULL, NULL, NULL \
    }

typedef struct dt_pipeline_total {
    double makespan; /* from the first begin of any rank to the last end */
    double ideal;    /* what the busiest rank computes */
    double bubble;   /* makespan - ideal */
} dt_pipeline_total;

typedef struct dt_pipeline_rank {
    double begin, end;   /* of its first action and its last */
    double busy, idle;   /* of the makespan */
    int live, postponed; /* the most microbatches and W's at a time, as in dt_pipeline_limits */
    int64_t bytes;       /* the most that both come to */
} dt_pipeline_rank;

typedef struct dt_pipeline_span {
    double begin, end;
} dt_pipeline_span;

typedef struct dt_pipeline_timing dt_pipeline_timing;

/**
 * Runs a schedule without work: every rank begins its next action as soon as it is through with the
 * one before and what it needs has come. A message begins when the action that makes it ends, and
 * takes no time of a rank; several travel at a time.
 *
 *   costs  NULL: DT_PIPELINE_COSTS_INIT
 *
 * Not collective. Time and memory grow with the number of actions alone.
 * Ownership   *out is released with dt_pipeline_timing_release(); it keeps the schedule.
 * Errors      DT_ERR_ARG     NULL, a time that is negative or no number
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_pipeline_simulate(dt_pipeline_schedule *s,
                                                  const dt_pipeline_costs *costs,
                                                  dt_pipeline_timing **out);
DT_API void dt_pipeline_timing_release(dt_pipeline_timing **timing); /* accepts NULL */

/** What a simulation has found: of all ranks; of one (borrowed; NULL of a rank that is none); of
 * action i of a rank's row (zeros where there is none). Not collective. Errors: none. */
DT_API dt_pipeline_total dt_pipeline_timing_total(const dt_pipeline_timing *t);
DT_API const dt_pipeline_rank *dt_pipeline_timing_rank(const dt_pipeline_timing *t, int rank);
DT_API dt_pipeline_span dt_pipeline_timing_span(const dt_pipeline_timing *t, int rank, int i);

/**
 * Draws a simulation, a line for each rank with time to the right:
 *
 *   1f1b: 2 ranks, 2 stages, 3 microbatches; 12, of which 3 bubble (25 %)
 *   rank 0  F0 F1          B0--- F2 B1---    B2---  idle 3, live 2
 *   rank 1     F0 B0--- F1 B1--- F2 B2---           idle 3, live 1
 *
 * Actions lose their stage where there is one for each rank, or no room: stages of a rank but its
 * first then have small letters; then their microbatch. SVG has the whole of each as a tooltip.
 * Returns the length as snprintf() does.
 *
 * Not collective.
 * Errors      none; text that has no room is cut
 */
DT_API int dt_pipeline_timing_draw(const dt_pipeline_timing *t, dt_drawing form, char *text,
                                   size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
