/* SPDX-License-Identifier: Apache-2.0
 *
 * A crew: the ranks of one model, the thread that owns their run, and the requests that wait for
 * them. What callers and rank 0 share is under one lock; what ranks show while they work are
 * atomics of their own. Nothing here computes. */
#ifndef DTI_CREW_H
#define DTI_CREW_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/sync.h"
#include "service/packet.h"

enum { DTI_MAX_RUNNING = 64, DTI_N_MEMORY = 9 };

/* --- what a rank shows ------------------------------------------------------------------------ */

/* What a rank is doing. */
typedef enum dti_doing {
    DTI_DOING_NOTHING,
    DTI_DOING_LOAD,
    DTI_DOING_BEGIN,
    DTI_DOING_STEP,
    DTI_DOING_CALL
} dti_doing;

typedef struct dti_view {
    _Alignas(DTI_LINE_BYTES) _Atomic int64_t beat_ns; /* when it last showed that it is alive */
    _Atomic int64_t number, step;                     /* of the request that it is busy with */
    _Atomic int doing;                                /* a dti_doing */
    _Atomic bool ready, left;             /* it waits for orders; it will wait for no more */
    _Atomic int64_t memory[DTI_N_MEMORY]; /* allocated, peak, reserved, kinds */
    int64_t cut_bytes, whole_bytes;       /* of weights; under the lock */
} dti_view;

/* What rank 0 shows of requests where it is in a worker process; behind the views. */
typedef struct dti_board {
    _Atomic int64_t steps, new_tokens, busy_ns;
    _Atomic int64_t engine[sizeof(dt_engine_counts) / sizeof(int64_t)]; /* word by word */
    struct {
        _Atomic int64_t number, n_steps; /* number 0: nobody */
    } running[DTI_MAX_RUNNING];
} dti_board;

/* --- requests --------------------------------------------------------------------------------- */

typedef enum dti_ticket_kind { DTI_TICKET_LOAD, DTI_TICKET_TEXTS, DTI_TICKET_CALL } dti_ticket_kind;

typedef enum dti_event_kind {
    DTI_EVENT_TOKEN, /* a: text, b: which of its tokens; data: the id, log-probabilities */
    DTI_EVENT_TEXT,  /* a: text; data: dti_text_head, ids; log-probabilities are the last bytes */
    DTI_EVENT_PIECE, /* data: dt_piece, bytes */
    DTI_EVENT_SCORES /* a: rows, b: which token; data: floats */
} dti_event_kind;

typedef struct dti_text_head {
    int64_t n, found;
    dt_end end;
    float score;
} dti_text_head;

/* Something on its way from rank 0 to a caller. */
typedef struct dti_event {
    struct dti_event *next;
    dti_event_kind kind;
    int64_t a, b;
    size_t n_bytes;
    _Alignas(16) char data[];
} dti_event;

struct dt_ticket {
    _Atomic int refs;
    struct dti_crew *crew; /* a reference */
    dti_ticket_kind kind;
    int64_t number; /* of the crew's requests, from 1 on; of a load 0 */
    int priority;
    int64_t deadline_ns; /* INT64_MAX: none */
    int64_t n_prompt;    /* tokens */
    bool by_turns;       /* texts that no pass is shared with, as those of beam search */
    dti_packet packet;   /* what every rank gets */
    bool tells_tokens;   /* somebody wants each as soon as it is chosen */

    /* under the crew's lock */
    dt_ticket_state state;
    bool cancelled;
    dti_event *first, **last;
    int64_t progress[2]; /* of a load: bytes done, and all */
    int64_t n_steps;
    int64_t since_ns; /* in the queue */
    dt_error error;   /* how it ended */
    pthread_cond_t changed;
    struct dt_ticket *next; /* that waits */

    /* of the thread that waits for it */
    struct dti_waiter *waiter;
};

/* --- crews ------------------------------------------------------------------------------------ */

typedef struct dti_crew {
    _Atomic int refs;
    dt_run_options run;
    int64_t max_queued;
    int max_running;
    dt_engine_options engine; /* of passes that texts share; size 0: nobody has said */
    dti_view *views;          /* [run.n_ranks] */
    pthread_t thread;
    _Atomic bool quits;          /* asked to end */
    struct dti_workers *workers; /* the processes of the ranks (workers.h); NULL: of this one */
    struct dti_host *host;       /* in such a process: the way to who waits (worker.h) */
    bool launched;               /* ranks of this process and of others that a launcher started */
    bool far;                 /* who waits is in another process: pointers of his are none here */
    pthread_mutex_t far_lock; /* of what follows, which is the model's */
    char *far_dir;
    dt_tokenizer *far_tokenizer;

    /* said once, before the request of kind DTI_TICKET_LOAD */
    char *dir;
    dt_parallelize_options how;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* rank 0, and who waits for the crew as a whole */
    /* under the lock */
    bool thread_runs, ended;
    int n_ready;
    dt_ticket *queue; /* largest priority first, then first come */
    dt_ticket *running[DTI_MAX_RUNNING];
    bool together[DTI_MAX_RUNNING]; /* texts that share passes; others have steps of their own */
    int turn;                       /* the slot that had the last such step */
    bool passed;                    /* a pass was the last thing done */
    bool takes_turns;               /* no texts of this model share passes */
    bool in_stages;                 /* passes of one kind at a time are under way */
    int64_t n_tickets;
    int64_t failing_ns; /* since when; 0: it is well */
    dt_error error;     /* why */
    dt_model_info info;
    dt_generate_options defaults; /* that the folder asks for; lists lie in what follows */
    dti_packet defaults_packet;
    dti_unpacking defaults_lists;
    dt_error defaults_error; /* instead */
    dt_service_counts counts;
} dti_crew;

/* Starts the thread and the ranks, and waits until all are ready. Errors: those of dt_run(); who is
 * not ready after start_ms. */
dt_status dti_crew_start(const dt_service_options *options, dti_crew **out) DT_MUST_USE;

/* The ranks of this process for a crew of another one, until it ends. Errors: those of dt_run(). */
dt_status dti_crew_follow(const dt_service_options *options) DT_MUST_USE;

/* Of a crew that is far: the folder of its model; and, where a request for texts has a tokenizer,
 * the folder's in the place of the caller's, in the bytes of its packet. */
dt_status dti_crew_keep_folder(dti_crew *c, const char *dir) DT_MUST_USE;
dt_status dti_crew_put_tokenizer(dti_crew *c, char *bytes) DT_MUST_USE;
void dti_crew_forget_folder(dti_crew *c);

/* Asks it to end; waits until it has. Errors: DT_ERR_COMM a rank does not come back. */
void dti_crew_quit(dti_crew *c);
dt_status dti_crew_end(dti_crew **crew);

dti_crew *dti_crew_retain(dti_crew *c);
void dti_crew_release(dti_crew *c);

/* Tells whoever waits for the crew as a whole to look. Under the lock. */
void dti_crew_wake(dti_crew *c);

/* The crew cannot go on, because of what happened on this rank. Who waits hears it when the run has
 * ended, which knows the culprit, or after a second. Under the lock. */
void dti_crew_fail(dti_crew *c, int rank, const dt_error *why);

/* Ends all requests, as the crew's error says. Under the lock. */
void dti_crew_give_up(dti_crew *c);

/* Not OK: the crew has failed or was asked to end; sets the record. Under the lock. */
dt_status dti_crew_check(const dti_crew *c) DT_MUST_USE;

/* What a rank is busy with: "step 7 of request 3". */
enum { DTI_BUSY_BYTES = 96 };
const char *dti_crew_busy_text(const dti_crew *c, int rank, char text[DTI_BUSY_BYTES]);

/* The ranks' main function (ranks.c); arg: the crew. */
dt_status dti_crew_rank_main(dt_runtime *rt, void *arg) DT_MUST_USE;

/* --- tickets (tickets.c) ---------------------------------------------------------------------- */

dt_status dti_ticket_create(dti_crew *c, dti_ticket_kind kind, const dt_request_options *request,
                            dt_ticket **out) DT_MUST_USE;
dt_ticket *dti_ticket_retain(dt_ticket *t);
int64_t dti_ticket_steps(const dt_ticket *t); /* that it has made; under the lock */
void dti_ticket_release(dt_ticket **t);       /* accepts NULL; cancels nothing */

/* Puts it into the queue, which has a reference from then on. */
dt_status dti_ticket_queue(dt_ticket *t) DT_MUST_USE;

/* Rank 0: something for the caller. */
dt_status dti_ticket_tell(dt_ticket *t, const dti_event *head, const void *data) DT_MUST_USE;

/* Waits until it is over, handing on what comes (waiter.h). Errors: how it ended. */
dt_status dti_ticket_wait(dt_ticket *t) DT_MUST_USE;

/* It is over, as st and the thread's record say, unless it was before. The second: under the lock,
 * with a record (code DT_OK: well). */
void dti_ticket_finish(dt_ticket *t, dt_status st);
void dti_ticket_finish_locked(dt_ticket *t, const dt_error *how);

/* So many milliseconds after a time; INT64_MAX: never. */
int64_t dti_after(int64_t ns, int64_t ms);

/* One clock for all waits; a wait until then, under the lock. */
void dti_cond_init(pthread_cond_t *cond);
void dti_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns);

/* --- what rank 0 does next (schedule.c) ------------------------------------------------------- */

typedef enum dti_order_kind {
    DTI_ORDER_QUIT,
    DTI_ORDER_BEGIN, /* a request takes a slot; n_bytes of it follow */
    DTI_ORDER_STEP,
    DTI_ORDER_PASS, /* one for all that share passes; slot: one of them */
    DTI_ORDER_DROP  /* the slot's request is over */
} dti_order_kind;

/* An order is all that ranks know of the queue: rank 0 decides, everybody gets it and obeys. */
typedef struct dti_order {
    int32_t kind, slot;
    int64_t n_bytes;
    int32_t what; /* a dti_ticket_kind */
    int32_t scores;
    int64_t number;
} dti_order;

/* Waits until there is something to do. The ticket of a DTI_ORDER_BEGIN is in its slot. */
void dti_crew_next(dti_crew *c, dti_order *out);

/* The slot's request is over for the ranks: it is nobody's any more. */
void dti_crew_free_slot(dti_crew *c, int slot);

/* Whether a request is not wanted any more: cancelled, late, or the crew ends. */
bool dti_ticket_is_over(dt_ticket *t);

#endif
