/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tokens of which texts the next pass reads. A pure function of what it was told: texts that
 * were submitted and cancelled, what passes cost, what was chosen. So every rank decides the same
 * without a message, and a log of what it was told replays it.
 *
 * There are no phases: a text has tokens that are known and tokens that have been read, and a pass
 * reads some of those between. First one token of each text that lacks no more, then prompts, as
 * many tokens as the wanted time allows, in order: larger priority first, then first come. A text
 * begins when there are blocks for all that it knows. Where blocks run out, the last text in order
 * loses its own and waits, at its place in the order: it reads everything again. Since the order is
 * total, the first in it always moves on.
 *
 * A text that runs has a slot. What layers carry of it lies there, so a text that begins reads from
 * its first token on, and the texts that a prompt becomes begin with copies of its slot. */
#ifndef DTI_SCHEDULE_H
#define DTI_SCHEDULE_H

#include "models/engine/blocks.h"

typedef struct dti_schedule_options {
    int64_t n_replicas;  /* groups of ranks that each have texts and blocks of their own */
    int64_t n_blocks;    /* of a replica */
    int64_t block;       /* tokens of a block */
    int64_t max_running; /* texts of a replica in a pass */
    int64_t max_rows;    /* tokens of a replica in a pass, at least max_running */
    int64_t max_waiting; /* texts */
    int64_t window;      /* tokens that a token sees, itself among them; 0: all before it */
    int64_t wanted_ns;   /* between two tokens of a text; 0: whatever it takes */
    int64_t slowed;      /* prompts make it at most so many thousandths longer; 0: no such bound */
    int64_t finds;    /* 1: blocks of equal beginnings are shared; not where layers carry state */
    int64_t reserves; /* 1: a text begins when all it may ever need is there */
} dti_schedule_options;

/* Texts of one prompt. */
typedef struct dti_ask {
    int64_t request, text; /* what the caller calls the first of them; then text + 1, ... */
    int64_t n_texts;
    int64_t most; /* tokens that each reads at most: prompt and new ones, but for the last */
    int64_t priority;
    uint64_t salt; /* beginnings are shared among texts of one salt */
    const int32_t *ids;
    int64_t n;
} dti_ask;

typedef struct dti_sequence {
    struct dti_sequence *next; /* that waits */
    int64_t request, text, order, priority, most, n_prompt;
    int64_t n_texts; /* that its first choice makes of it: 1 afterwards */
    uint64_t salt;
    int replica, slot;         /* slot: its row of the tables; -1: it waits */
    int32_t *ids;              /* [n_known] */
    int64_t n_known, n_read;   /* tokens */
    int64_t n_found;           /* of the prompt, when it began */
    int32_t *table;            /* [n_table] the block of each `block` tokens; -1: given back */
    int64_t n_table, n_back;   /* n_back: of the first ones, given back */
    int64_t n_public, content; /* blocks that are known by their content, and that of the last */
    size_t ids_room, table_room;
} dti_sequence;

/* Tokens `first` .. `first + n - 1` of a text; with `chooses`, of its next token n_texts choices
 * are to be fed. */
typedef struct dti_plan_part {
    dti_sequence *of;
    int64_t first, n;
    bool chooses;
} dti_plan_part;

typedef struct dti_copy {
    int32_t from, to; /* blocks, or slots */
} dti_copy;

/* What a replica does: the copies, in order, then the pass. */
typedef struct dti_plan {
    dti_plan_part *parts; /* [n_parts] */
    int64_t n_parts, n_rows, n_choices;
    dti_copy *copies; /* [n_copies] of blocks */
    int64_t n_copies;
    dti_copy *forks; /* [n_forks] of slots: texts that the last choices have made */
    int64_t n_forks;
} dti_plan;

typedef struct dti_replica {
    dti_blocks blocks;
    dti_sequence **running; /* [n_running] in order */
    int64_t n_running;
    int64_t n_held; /* texts that run, or will when the prompts that run have been read */
    bool *slots;    /* [max_running] taken */
    dti_sequence *waiting;
    int64_t load; /* tokens that its texts read at most */
    bool preempted;
    dti_plan plan;
} dti_replica;

typedef struct dti_schedule_counts {
    int64_t waiting, running;   /* texts, now */
    int64_t blocks, used, kept; /* blocks, now: all; of texts; free, with a content that is found */
    int64_t steps, rows;        /* so far */
    int64_t read, found;        /* tokens of texts that began: read, and found in blocks */
    int64_t preempted;
    int64_t wait_for_token; /* texts, before the last step, of the replica with most of them */
} dti_schedule_counts;

/* What a pass takes: so long, and for each of its rows so much more. row_ns 0: not known yet. */
typedef struct dti_pass_cost {
    int64_t pass_ns, row_ns;
} dti_pass_cost;

typedef struct dti_choice {
    int32_t id;
    int32_t ends; /* 1: the text does */
} dti_choice;

/* Hears of all that the schedule is told, as words: a log for dti_schedule_replay(). */
typedef void (*dti_schedule_log)(void *arg, const int64_t *words, int64_t n);

typedef struct dti_schedule {
    dti_schedule_options o;
    dti_replica *replicas; /* [n_replicas] */
    int64_t n_orders;
    bool stepped; /* and not fed since */
    dti_schedule_counts counts;
    dti_schedule_log log;
    void *log_arg;
    int64_t *words; /* of the log */
    size_t words_room;
} dti_schedule;

/* `log` may be NULL. */
dt_status dti_schedule_create(const dti_schedule_options *o, dti_schedule_log log, void *log_arg,
                              dti_schedule **out) DT_MUST_USE;
void dti_schedule_free(dti_schedule **s); /* accepts NULL */

/* Errors: DT_ERR_ARG what the pool can never hold, or more texts of a prompt than a pass has. */
dt_status dti_schedule_judge(const dti_schedule *s, const dti_ask *ask) DT_MUST_USE;

/* Errors: those, too; DT_ERR_MEMORY the queue is full. */
dt_status dti_schedule_submit(dti_schedule *s, const dti_ask *ask) DT_MUST_USE;

/* All texts of a request are gone; between a feed and the next step. */
dt_status dti_schedule_cancel(dti_schedule *s, int64_t request) DT_MUST_USE;

/* Fills every replica's plan; *n_rows of all of them, 0: there is nothing to do. */
dt_status dti_schedule_step(dti_schedule *s, const dti_pass_cost *cost,
                            int64_t *n_rows) DT_MUST_USE;

/* The plans were carried out: choices of all parts that choose, replica by replica. */
dt_status dti_schedule_feed(dti_schedule *s, const dti_choice *choices, int64_t n) DT_MUST_USE;

dti_schedule_counts dti_schedule_count(const dti_schedule *s);

/* An error DT_ERR_INTERNAL if a block's references are not its owners, or the like. */
dt_status dti_schedule_check(const dti_schedule *s) DT_MUST_USE;

/* Does what a log says and compares what comes of it. Errors: DT_ERR_FORMAT not a log, or not the
 * same decisions. */
dt_status dti_schedule_replay(const int64_t *words, int64_t n) DT_MUST_USE;

/* --- its parts -------------------------------------------------------------------------------- */

/* Adds what a decision gives to a hash. */
uint64_t dti_plan_hash(uint64_t h, const dti_plan *p);

/* Blocks that the text, with those that its prompt will make, may ever have at a time. */
int64_t dti_sequence_blocks(const dti_schedule *s, const dti_sequence *q);

/* Out of its list, without blocks or slot; in its place among those that wait. */
void dti_sequence_stop(dti_schedule *s, dti_sequence *q);
void dti_sequence_wait(dti_schedule *s, dti_sequence *q);

/* Gives back blocks that no token sees any more. */
void dti_sequence_leave_behind(const dti_schedule *s, dti_sequence *q);

/* In its place among those that run, in a free slot. */
void dti_sequence_run(dti_schedule *s, dti_sequence *q);

/* The plan of one replica (plan.c); prompts may have so many rows beside n_single texts that lack
 * one token. */
dt_status dti_plan_make(dti_schedule *s, dti_replica *r, int64_t prompt_rows) DT_MUST_USE;

/* Records of a log. */
typedef enum dti_note {
    DTI_NOTE_OPTIONS,
    DTI_NOTE_SUBMIT,
    DTI_NOTE_CANCEL,
    DTI_NOTE_STEP,
    DTI_NOTE_FEED
} dti_note;
dt_status dti_schedule_note(dti_schedule *s, dti_note note, const void *data,
                            int64_t n) DT_MUST_USE;

#endif
