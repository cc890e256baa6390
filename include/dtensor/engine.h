/* SPDX-License-Identifier: Apache-2.0
 *
 * Continuous batching: texts of any lengths and options are made together, one pass after another;
 * they come and go between passes. Keys and values lie in blocks of a pool, which texts with the
 * same beginning share; what layers of linear attention carry of a text lies in a slot. What a text
 * is does not depend on its neighbours, on how its prompt was cut into passes, on what was shared
 * or read again: on CPUs its tokens and scores are, bit for bit, those of dt_generate_batch()
 * alone. docs/engine.md */
#ifndef DT_ENGINE_H
#define DT_ENGINE_H

#include <dtensor/generation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Texts of one model that are made together, on a rank. Every rank of the model's mesh has one, and
 * calls the same functions in the same order. */
typedef struct dt_engine dt_engine;

typedef struct dt_engine_options {
    size_t size;          /* sizeof(dt_engine_options) */
    int64_t pool_tokens;  /* whose keys and values there is room for, in each replica; or */
    int64_t pool_bytes;   /* bytes of them on each rank, and of slots; or, if both are 0, */
    double pool_share;    /* of what this machine has for each of its ranks, beside what it
                             * holds: 0.25. Not of a GPU: there one of the others says */
    int64_t max_texts;    /* in a pass of a replica: 32. Without pool_tokens slots take no more
                          * than half of the bytes: then as many as there are slots */
    int64_t max_rows;     /* tokens in a pass of a replica: 512 */
    int64_t max_queued;   /* prompts that wait: 1024 */
    double latency_s;     /* wanted from token to token of a text while prompts are read, which get
                            * the time that is left; 0.25. 0: prompts are read as fast as they can
                            * be */
    bool no_prefix_cache; /* blocks of texts with the same beginning are not shared. They never are
                           * where texts have slots, which hold no state of a block's end */
    bool reserve;         /* a text begins when there is room for all of it, so that none ever has
                            * to give its room back and be read again */
    dt_progress_fn progress; /* layers of a pass, on every rank; or NULL */
    void *progress_arg;
    /* hears on every rank of what the schedule is told, prompts among it, as words that
     * dt_engine_replay() reads; or NULL */
    void (*log)(void *arg, const int64_t *words, int64_t n);
    void *log_arg;
    double slowdown; /* while prompts are read a pass takes at most so many times what it takes for
                      * the texts that go on alone: 2.5; 0: as long as latency_s says */
} dt_engine_options;

#define DT_ENGINE_OPTIONS_INIT                                                                \
    {                                                                                         \
        sizeof(dt_engine_options), 0, 0, 0.25, 32, 512, 1024, 0.25, false, false, NULL, NULL, \
            NULL, NULL, 2.5                                                                   \
    }

/**
 * Makes an engine and its pool. With mesh dims that cut batches (dt_load_options.batch_dim) each
 * replica of the model has a pool and texts of its own.
 *
 *   options  NULL for defaults
 *
 * Collective  over the model's mesh, with the same options.
 * Ownership   *out is released with dt_engine_release(), before the model.
 * Errors      DT_ERR_ARG          NULL, or an option out of its range
 *             DT_ERR_UNSUPPORTED  a model that cannot be run so: layers that carry states from
 *                                 token to token which do not lie in slots (dt_kind_state),
 *                                 positions that turn otherwise beyond a length; a plan that cuts
 *                                 tokens of caches
 *             DT_ERR_MEMORY       the pool; those of a pass
 */
DT_API DT_MUST_USE dt_status dt_engine_create(dt_model *model, const dt_engine_options *options,
                                              dt_engine **out);
DT_API void dt_engine_release(dt_engine **engine); /* accepts NULL */

/** Tokens whose keys and values pools of so many bytes on all ranks have room for, beside slots of
 * up to max_texts texts; where ranks have no part in common and no replicas. Not collective.
 * Errors: none; 0 for NULL, and where there is no room for a slot. */
DT_API int64_t dt_engine_pool_tokens(const dt_model_info *info, dt_dtype dtype, int64_t bytes,
                                     int64_t max_texts);

typedef struct dt_engine_request {
    size_t size;           /* sizeof(dt_engine_request) */
    const dt_ids *prompts; /* copied */
    int64_t n_prompts;
    const dt_generate_options *options; /* NULL for defaults. Its lists, tokenizer and on_scores are
                                         * borrowed until the request is over; on_token is not
                                         * called: events say it */
    int priority;                       /* larger ones first, of equal ones first come */
    uint64_t salt; /* beginnings are shared among requests of one salt: callers who may not notice
                    * what others ask have salts of their own */
} dt_engine_request;

#define DT_ENGINE_REQUEST_INIT                         \
    {                                                  \
        sizeof(dt_engine_request), NULL, 0, NULL, 0, 0 \
    }

/** Whether the engine takes such a request at all, and whether its texts fit into the pool. Not
 * collective. Errors: as dt_engine_submit(), but for the queue. */
DT_API DT_MUST_USE dt_status dt_engine_check(const dt_engine *engine,
                                             const dt_engine_request *request);

/**
 * Adds the texts that dt_generate_batch() would make of these arguments.
 *
 *   number  of the request, from 1 on: events name it
 *
 * Collective  no communication; every rank with the same request.
 * Errors      as dt_generate_batch() for its arguments; DT_ERR_ARG texts that the pool has no room
 *             for; DT_ERR_UNSUPPORTED beam search, on_scores with several texts; DT_ERR_MEMORY the
 *             queue is full
 */
DT_API DT_MUST_USE dt_status dt_engine_submit(dt_engine *engine, const dt_engine_request *request,
                                              int64_t *number);

/** Ends a request without further events; one that is over already is well. Collective: no
 * communication, on every rank between the same steps. Errors: those of a log's memory. */
DT_API DT_MUST_USE dt_status dt_engine_cancel(dt_engine *engine, int64_t number);

typedef enum dt_engine_event_kind {
    DT_ENGINE_TOKEN, /* token n of a text is `id` */
    DT_ENGINE_END,   /* a text has ended, after n tokens */
    DT_ENGINE_FAILED /* a request is over, because of `error` */
} dt_engine_event_kind;

typedef struct dt_engine_event {
    dt_engine_event_kind kind;
    int64_t request;
    int64_t text; /* as dt_generated_ids() counts them */
    int64_t n;
    int32_t id;
    dt_end end;
    int64_t found; /* of a token: those of the prompt that were found in blocks of others */
    const dt_error *error;
    const dt_logprob *logprobs; /* [n_logprobs] of a token, as dt_generated_logprobs() has them */
    int64_t n_logprobs;         /* 0: none were asked for */
} dt_engine_event;

/**
 * One pass, and a token of each text that has been read by then.
 *
 *   events    what has happened, the same on every rank; theirs until the next call of the engine
 *   n_events  0: nothing happened, though prompts may have been read further
 *
 * Collective  over the model's mesh.
 * Errors      those of a pass: the engine then only can be released. What is wrong with one request
 *             is an event
 */
DT_API DT_MUST_USE dt_status dt_engine_step(dt_engine *engine, const dt_engine_event **events,
                                            int64_t *n_events);

/** Whether a step has anything to do. Not collective, no errors: false for NULL. */
DT_API bool dt_engine_is_busy(const dt_engine *engine);

typedef struct dt_engine_counts {
    int64_t waiting, running; /* texts, now; of those that wait prompts alone are counted */
    int64_t blocks;           /* of all replicas, ... */
    int64_t block_tokens;     /* ... each of so many tokens; */
    int64_t used_blocks;      /* those of texts, now, */
    int64_t kept_blocks;      /* and those that are free but may still be found */
    int64_t block_bytes;      /* on this rank */
    int64_t passes, rows;     /* so far, and tokens that they read */
    int64_t read_tokens;      /* of texts when they began: read, */
    int64_t found_tokens;     /* and found in blocks of others */
    int64_t new_tokens;       /* of texts */
    int64_t preemptions;      /* texts that gave their room back, to be read again */
    double pass_s, row_s;     /* what a pass takes by now, and each of its rows more */
    int64_t slots;            /* of all replicas: what layers carry of a text that runs; 0: they
                               * carry nothing. `running` of them are used */
    int64_t slot_bytes;       /* on this rank */
    int64_t replicas;         /* of the model: each has its share of blocks and slots */
} dt_engine_counts;

/** Not collective. Errors: DT_ERR_ARG NULL. */
DT_API DT_MUST_USE dt_status dt_engine_count(const dt_engine *engine, dt_engine_counts *out);

/**
 * Decides once more what a log says, and compares: without a model, tensors, or ranks.
 *
 *   words  [n] all that dt_engine_options.log has heard
 *
 * Not collective.
 * Errors      DT_ERR_FORMAT not a log, or decisions that are others; DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_engine_replay(const int64_t *words, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
