/* SPDX-License-Identifier: Apache-2.0
 *
 * One call, one process: a service runs models for a program that never calls dt_run(). Each model
 * is loaded by a crew, ranks of its own; any thread of the program asks for texts, logits or a
 * function of its own that runs on every rank; dt_service_stop() ends it and memory is back.
 *
 *   dt_service_start(&options, &service);
 *   dt_service_load(service, "gpt-neo-2.7B", NULL, &model);
 *   dt_service_generate(model, &prompt, 1, &wishes, NULL, &texts);
 *   dt_service_stop(&service);
 *
 * Threads: every function may be called from any thread at any time, but for those that release
 * what they are given. Callers only queue and wait; what calls back does so on the caller's thread,
 * so a slow reader keeps nobody else waiting. No rank waits for a caller.
 *
 * Failures: a rank that fails, leaves or is silent for longer than dt_run_options.timeout_ms ends
 * its crew. Who waits gets an error that names the model, the rank, the request and its step, and
 * so does who asks later, until dt_service_restart(). Other models go on. docs/service.md */
#ifndef DT_SERVICE_H
#define DT_SERVICE_H

#include <dtensor/chat.h>
#include <dtensor/engine.h>
#include <dtensor/generation.h>
#include <dtensor/parallelize.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_service dt_service;

/* A model that a service has loaded. */
typedef struct dt_served dt_served;

/* A request under way. */
typedef struct dt_ticket dt_ticket;

/* --- start and stop --------------------------------------------------------------------------- */

typedef struct dt_service_options {
    size_t size;               /* sizeof(dt_service_options) */
    const dt_run_options *run; /* the ranks of every model; NULL: one rank. What its fields point to
                                * stays until the service has stopped; `log` hears of all models */
    int64_t max_queued;        /* requests of a model that wait; one more is refused. 1024 */
    int max_running;           /* requests of a model that run at a time, and texts in a pass: 32 */
    int64_t start_ms;          /* longest wait until all ranks are ready: one minute */
    int processes;      /* 0: ranks are threads of the program; else they are divided among so many
                    * worker processes, up to one for each, which end with the program however it
                    * ends. The texts are the same */
    const char *worker; /* the program of workers; NULL: the one that is installed. One that calls
                         * dt_service_work() has the functions of its own */
    const char *const *modules; /* [n_modules] paths of modules (dt_module_open()) that every rank
                                 * has, before dt_run_options.setup */
    int n_modules;
    /* Of passes that texts of a model share; progress and max_queued are the service's own, worker
     * processes call no log. NULL: the defaults, of max_running texts, from the first request on
     * that shares passes; otherwise from the load on, which fails if the pool cannot be had */
    const dt_engine_options *engine;
    bool launched; /* the ranks, of one model, are those of all processes of mpirun or torchrun, of
                    * which this is process 0; the others call dt_service_follow() */
} dt_service_options;

#define DT_SERVICE_OPTIONS_INIT                                                          \
    {                                                                                    \
        sizeof(dt_service_options), NULL, 1024, 32, 60000, 0, NULL, NULL, 0, NULL, false \
    }

/**
 * Starts a service and the ranks of its first model, and returns when all of them are ready.
 *
 *   options  NULL for defaults
 *
 * Not collective.
 * Ownership   *out is ended with dt_service_stop().
 * Errors      DT_ERR_ARG          a malformed option; those of dt_run()
 *             DT_ERR_UNSUPPORTED  one of several processes of a launcher, without `launched`
 *             DT_ERR_COMM         not all ranks are ready in time, or a worker has ended: names who
 *             DT_ERR_MEMORY       a thread could not be started
 *             DT_ERR_IO           there is no program of workers, or it does not start
 *             otherwise the status of dt_run_options.setup
 */
DT_API DT_MUST_USE dt_status dt_service_start(const dt_service_options *options, dt_service **out);

/**
 * Ends all models and their ranks, and returns when their threads have ended and their memory is
 * given back. Requests under way end with DT_ERR_COMM. Models' handles wait for their unload.
 *
 *   service  set to NULL; one that is NULL already is well
 *
 * Not collective.
 * Errors      DT_ERR_COMM  a rank does not return, since it hangs in a function of the user's, say:
 *                          it is named, its thread and its crew's memory stay. All others are gone;
 *                          worker processes always are
 */
DT_API dt_status dt_service_stop(dt_service **service);

/**
 * What a program calls first in main() to be its own worker: dt_service_options.worker =
 * "/proc/self/exe". In a worker it serves until its service ends, and the program ends, too:
 *
 *   const int ended = dt_service_work(setup, NULL);
 *   if (ended >= 0) return ended;
 *
 *   setup  that of the ranks, in the place of dt_run_options.setup, a function of the program that
 *          started it; NULL: nothing
 *
 * Returns -1 where this process is no worker, else what main() returns.
 *
 * Not collective. Before the program has threads.
 * Errors      none here: who started it hears them
 */
DT_API int dt_service_work(dt_status (*setup)(dt_runtime *rt, void *arg), void *arg);

/** The ranks of a process for the service that process 0 starts with the same options, `launched`,
 * until its model is unloaded. Collective: all but process 0. Errors: as dt_service_start(). */
DT_API DT_MUST_USE dt_status dt_service_follow(const dt_service_options *options);

/* --- models ----------------------------------------------------------------------------------- */

/**
 * Loads a model on ranks of its own, while other models answer. The same folder may be loaded more
 * than once: each has its own weights.
 *
 *   options  of dt_parallelize(); NULL for defaults. What they point to stays until the model is
 *            unloaded, dt_service_restart() reads it again; progress is told on this thread
 *
 * Not collective.
 * Ownership   *out is released with dt_service_unload().
 * Errors      as dt_parallelize() and dt_service_start()
 */
DT_API DT_MUST_USE dt_status dt_service_load(dt_service *service, const char *dir,
                                             const dt_parallelize_options *options,
                                             dt_served **out);

/**
 * Ends a model's ranks and releases its handle, which nobody uses any more. Requests under way end
 * with DT_ERR_COMM. The folder can be loaded again, by dt_model_load() too.
 *
 *   model  set to NULL; one that is NULL already is well
 *
 * Not collective.
 * Errors      as dt_service_stop()
 */
DT_API dt_status dt_service_unload(dt_served **model);

/**
 * Ends a model's ranks, of which one may have failed, and loads the same folder on new ones under
 * the same handle. Requests under way end with DT_ERR_COMM.
 *
 * Not collective.
 * Errors      as dt_service_load(); the model then stays as failed, and may be restarted again
 */
DT_API DT_MUST_USE dt_status dt_service_restart(dt_served *model);

/** What the model is, and the options that its folder asks for (dt_model_generate_options()), whose
 * lists live until it is unloaded or restarted. Not collective. Errors: DT_ERR_ARG NULL;
 * DT_ERR_FORMAT generation_config.json could not be read; those of a model that has failed. */
DT_API DT_MUST_USE dt_status dt_service_info(dt_served *model, dt_model_info *out);
DT_API DT_MUST_USE dt_status dt_service_generate_options(dt_served *model,
                                                         dt_generate_options *out);

/* --- requests --------------------------------------------------------------------------------- */

/* A struct, a text or an array that goes to ranks or comes from them. */
typedef struct dt_piece {
    const void *data;
    size_t n_bytes;
    dt_dtype dtype; /* of an array */
    int n_axes;     /* of an array, row-major; 0: bytes that only the two ends know */
    int64_t shape[DT_MAX_AXES];
} dt_piece;

/* How a request is served. Callbacks run on the thread that waits for the request; one that returns
 * false cancels it. */
typedef struct dt_request_options {
    size_t size;         /* sizeof(dt_request_options) */
    int priority;        /* larger ones first, and of the same one after the other; default 0 */
    int64_t deadline_ms; /* from the call on; 0: none */
    /* token n of a text, when it is chosen; of beams when all is over */
    bool (*on_token)(void *arg, int64_t text, int64_t n, int32_t id);
    /* the same as text, whole characters, by the folder's tokenizer */
    bool (*on_text)(void *arg, int64_t text, const char *bytes, size_t n_bytes);
    bool (*on_piece)(void *arg, const dt_piece *piece); /* of a reply, as soon as it is there */
    void *arg;
    /* before on_token of the same token, where dt_generate_options.n_logprobs asks for them: what
     * dt_generated_logprobs() gives of it */
    void (*on_logprobs)(void *arg, int64_t text, int64_t n, const dt_logprob *list, int64_t n_list);
    uint64_t salt; /* of texts: keys and values of equal beginnings are shared among requests of one
                    * salt. Who asks for others, who may not notice what each other asks for by how
                    * fast an answer comes, gives each a salt of its own; default 0 */
} dt_request_options;

#define DT_REQUEST_OPTIONS_INIT                                           \
    {                                                                     \
        sizeof(dt_request_options), 0, 0, NULL, NULL, NULL, NULL, NULL, 0 \
    }

/**
 * dt_generate_batch() on the model's ranks: the same texts, bit for bit, whatever else they do.
 *
 *   prompts  n_prompts lists of ids, copied
 *   options  NULL for defaults; copied. on_token (of a single text) and on_scores are called on
 *            this thread; stop_strings are found by the folder's tokenizer, whatever `tokenizer` is
 *   request  NULL for defaults
 *   *out     as dt_generate_batch() gives it; of a request that was cancelled what there was, with
 *            DT_END_CANCELLED for texts that had not ended
 *
 * Not collective.
 * Ownership   *out is released with dt_generated_release().
 * Errors      as dt_generate_batch(); DT_ERR_MEMORY the queue is full; DT_ERR_COMM the model has
 *             failed or was ended, or the deadline has passed; what the tokenizer refuses
 */
DT_API DT_MUST_USE dt_status dt_service_generate(dt_served *model, const dt_ids *prompts,
                                                 int64_t n_prompts,
                                                 const dt_generate_options *options,
                                                 const dt_request_options *request,
                                                 dt_generated **out);

/**
 * The next turn of a conversation, by the folder's chat template and tokenizer.
 *
 *   chat     NULL for defaults
 *   options  as above, of one text; max_new_tokens -1: as many as the context has room for
 *   *text    the answer, UTF-8, ends with a zero byte; freed with dt_tokenizer_free()
 *
 * Not collective.
 * Errors      as dt_service_generate(), dt_chat_open(), dt_chat_render() and dt_tokenizer_open()
 */
DT_API DT_MUST_USE dt_status dt_service_chat(dt_served *model, const dt_chat_message *messages,
                                             size_t n_messages, const dt_chat_options *chat,
                                             const dt_generate_options *options,
                                             const dt_request_options *request, char **text);

/* What ranks have answered: pieces, in order. */
typedef struct dt_reply dt_reply;

DT_API void dt_reply_release(dt_reply **reply); /* accepts NULL */

/* Queries: how many; piece i, NULL out of range. Not collective, no errors. */
DT_API int64_t dt_reply_count(const dt_reply *reply);
DT_API const dt_piece *dt_reply_piece(const dt_reply *reply, int64_t i);

typedef struct dt_forward_options {
    size_t size;         /* sizeof(dt_forward_options) */
    dt_logits_rows rows; /* of every token, or of the last one; default every */
    bool hidden;         /* hidden states, too */
} dt_forward_options;

#define DT_FORWARD_OPTIONS_INIT                          \
    {                                                    \
        sizeof(dt_forward_options), DT_LOGITS_ALL, false \
    }

/**
 * One pass over whole sequences: dt_model_forward() on a new state.
 *
 *   sequences  n_sequences lists of ids; shorter ones are padded on the left, and what is said of
 *              padding means nothing
 *   options    NULL for defaults
 *   *out       one piece: logits [n_sequences, longest or 1, vocab] in f32. With `hidden` before it
 *              as many more as the model has layers, and one: [n_sequences, longest, hidden] in
 *              f32, what enters each layer and what leaves the last one, before the last norm
 *
 * Not collective.
 * Ownership   *out is released with dt_reply_release().
 * Errors      as dt_model_forward(), and those of a request as above; DT_ERR_UNSUPPORTED hidden
 *             states of a model in stages
 */
DT_API DT_MUST_USE dt_status dt_service_forward(dt_served *model, const dt_ids *sequences,
                                                int64_t n_sequences,
                                                const dt_forward_options *options,
                                                const dt_request_options *request, dt_reply **out);

/**
 * dt_service_generate() in two halves. The request goes on whether somebody waits or not.
 *
 * Not collective.
 * Ownership   *out is released with dt_ticket_release(), which cancels it if it goes on.
 * Errors      as dt_service_generate(); waiting for a ticket twice is DT_ERR_ARG
 */
DT_API DT_MUST_USE dt_status dt_service_submit(dt_served *model, const dt_ids *prompts,
                                               int64_t n_prompts,
                                               const dt_generate_options *options,
                                               const dt_request_options *request, dt_ticket **out);
DT_API DT_MUST_USE dt_status dt_ticket_wait(dt_ticket *ticket, dt_generated **out);
DT_API void dt_ticket_release(dt_ticket **ticket); /* accepts NULL */

/**
 * Waits until a request has something to say and calls back, for a thread that has other things to
 * do as well: dt_ticket_wait() in pieces, which at last hands over the texts.
 *
 *   ms     longest wait; negative: any
 *   *over  the request has ended, and callbacks were told all before the end: dt_ticket_wait() does
 *          not wait any more
 *
 * Not collective.
 * Threads     one at a time for a ticket
 * Errors      DT_ERR_ARG  NULL, or a ticket that was waited for; those of a tokenizer. How the
 *             request ended is said by dt_ticket_wait()
 */
DT_API DT_MUST_USE dt_status dt_ticket_listen(dt_ticket *ticket, int64_t ms, bool *over);

/** Asks a request to end, before its next token or layer. Not collective. Errors: none. */
DT_API void dt_ticket_cancel(dt_ticket *ticket);

typedef enum dt_ticket_state {
    DT_TICKET_QUEUED,
    DT_TICKET_RUNNING,
    DT_TICKET_DONE
} dt_ticket_state;

/** Where a request is: its state, and how many of the requests that wait are before it or how many
 * steps it has made. Not collective. Errors: none. */
DT_API dt_ticket_state dt_ticket_progress(const dt_ticket *ticket, int64_t *n);

/* --- functions of one's own ------------------------------------------------------------------- */

/* A call of a function, on one rank. */
typedef struct dt_call dt_call;

/* Runs on every rank, with the same inputs; what it does with the model is collective. Its errors
 * are the caller's: ranks that fail alike, or alone and leave none in a collective, go on. */
typedef dt_status (*dt_function)(dt_call *call, void *arg);

/**
 * Registers a function by a name, in dt_run_options.setup or the setup of a module.
 *
 * Collective  no communication; every rank registers the same.
 * Errors      DT_ERR_ARG  NULL, or a name that is taken; DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_function_register(dt_runtime *rt, const char *name,
                                                  dt_function function, void *arg);

/* Of a call: the model; input i, NULL out of range. Not collective, no errors. */
DT_API dt_model *dt_call_model(const dt_call *call);
DT_API int64_t dt_call_n_inputs(const dt_call *call);
DT_API const dt_piece *dt_call_input(const dt_call *call, int64_t i);

/** Sends a piece to the caller, at once: that of rank 0 counts, others' are not looked at. Not
 * collective. Errors: DT_ERR_ARG NULL, or an array of another size; DT_ERR_MEMORY. */
DT_API DT_MUST_USE dt_status dt_call_reply(dt_call *call, const dt_piece *piece);

/** dt_call_reply() with the whole value of a tensor, in f32 if it has floats. Collective over the
 * model's mesh. Errors: those of dt_redistribute(); as dt_call_reply(). */
DT_API DT_MUST_USE dt_status dt_call_reply_tensor(dt_call *call, dt_tensor *x);

/** Whether the caller still wants an answer, for functions that take long; shows that the rank is
 * alive. Collective over the model's mesh: the same answer on all ranks, false after an error. */
DT_API bool dt_call_goes_on(dt_call *call);

/**
 * Calls a function on all ranks of a model.
 *
 *   inputs  n_inputs pieces, copied
 *   *out    what rank 0 has replied; NULL: nothing is wanted
 *
 * Not collective.
 * Ownership   *out is released with dt_reply_release().
 * Errors      DT_ERR_ARG  no function has this name; those of the function and of a request
 */
DT_API DT_MUST_USE dt_status dt_service_call(dt_served *model, const char *name,
                                             const dt_piece *inputs, int64_t n_inputs,
                                             const dt_request_options *request, dt_reply **out);

/* --- reports ---------------------------------------------------------------------------------- */

/**
 * What each rank holds, now, of one model or of all; no rank stops for it. Numbers are those of
 * each rank's last step or layer.
 *
 *   model  NULL: the sum over all models
 *   ranks  [dt_service_n_ranks()], as dt_model_memory() says it; or NULL
 *   kinds  the same by what it is for; or NULL
 *
 * Not collective.
 * Errors      DT_ERR_ARG
 */
DT_API DT_MUST_USE dt_status dt_service_memory(dt_service *service, dt_served *model,
                                               dt_rank_memory *ranks, dt_rank_memory_kinds *kinds);
DT_API int dt_service_n_ranks(const dt_service *service); /* Not collective. Errors: 0 for NULL. */

/* Counters of a model since it was loaded, but for the first three. */
typedef struct dt_service_counts {
    int64_t queued, running; /* requests, now */
    bool failed;
    int64_t done, refused, failures, cancelled; /* requests by their end; refused: bad arguments */
    int64_t prompt_tokens, new_tokens, steps;
    double busy_s;           /* of rank 0 */
    dt_engine_counts engine; /* of passes that texts share; zeros before the first */
} dt_service_counts;

/** Not collective. Errors: DT_ERR_ARG NULL. */
DT_API DT_MUST_USE dt_status dt_service_count(dt_served *model, dt_service_counts *out);

#ifdef __cplusplus
}
#endif
#endif
