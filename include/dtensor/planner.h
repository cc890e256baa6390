/* SPDX-License-Identifier: Apache-2.0
 *
 * Which parallelism, how much of each, and why: machines as figures, and the ways in which they
 * would make a step.
 *
 * Three kinds of number are never mixed. What a step sends, computes and holds is exact: a dry run
 * of it counts that (<dtensor/predict.h>). What a machine reaches is measured, or published by
 * somebody who has a name. What a step takes is predicted from both. */
#ifndef DT_PLANNER_H
#define DT_PLANNER_H

#include <dtensor/predict.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- machines --------------------------------------------------------------------------------- */

enum { DT_SOURCE_BYTES = 160, DT_MACHINE_NAME_BYTES = 80 };

/* A number, and where it is from. */
typedef struct dt_figure {
    double value; /* 0: unknown */
    char source[DT_SOURCE_BYTES];
} dt_figure;

/* Bytes, seconds, bytes and operations a second. Links are counted one way, and carry as much the
 * other way at the same time. */
typedef enum dt_figure_kind {
    DT_FIGURE_DEVICE_BYTES, /* memory of a device that a run may take */
    DT_FIGURE_HOST_BYTES,   /* memory of a node beside its devices; disk of a node */
    DT_FIGURE_DISK_BYTES,
    DT_FIGURE_MEMORY_BANDWIDTH, /* of a device's memory */
    DT_FIGURE_FLOPS_F32,        /* of a device, multiply-adds counting as two */
    DT_FIGURE_FLOPS_BF16,
    DT_FIGURE_FLOPS_F16,
    DT_FIGURE_EFFICIENCY,     /* share of those that a step's kernels reach */
    DT_FIGURE_INSIDE_LATENCY, /* between devices of a node */
    DT_FIGURE_INSIDE_BANDWIDTH,
    DT_FIGURE_BETWEEN_LATENCY,   /* between nodes */
    DT_FIGURE_BETWEEN_BANDWIDTH, /* of a node, which its devices share */
    DT_FIGURE_HOST_BANDWIDTH,    /* between a device and its host; between a node and its disk */
    DT_FIGURE_DISK_BANDWIDTH,
    /* Measured alone: what a call of an operator takes besides its kernel, and by how much a second
     * of communication beside passes slows these down: 0 where they share nothing, above 1 where
     * those who communicate wait for each other's turn on a core */
    DT_FIGURE_CALL_SECONDS,
    DT_FIGURE_OVERLAP_COST,
    DT_N_FIGURES
} dt_figure_kind;

enum { DT_KERNEL_BYTES = 32, DT_MAX_RATES = 512, DT_MAX_LINKS = 48, DT_DATE_BYTES = 16 };

/* What a call of a kernel was measured to take, on a rank while the others do the same. */
typedef struct dt_rate {
    char kernel[DT_KERNEL_BYTES]; /* an operator, "linear", or "adamw", "sgd", "norm" */
    dt_dtype dtype;               /* of its first operand */
    double flops, bytes;          /* of the call */
    double seconds;
} dt_rate;

/* What a collective was measured to take among so many ranks: latency of a call + bytes that a rank
 * receives / bandwidth. */
typedef struct dt_link_rate {
    dt_comm_kind kind;
    int ranks;
    bool between; /* nodes, of each of which one rank takes part; else within one */
    double latency, bandwidth;
} dt_link_rate;

/* Nodes of devices that are all alike. */
typedef struct dt_machine {
    char name[DT_MACHINE_NAME_BYTES];
    bool gpus; /* devices are GPUs with memory of their own; else cores */
    int nodes, devices_per_node;
    int cores;   /* of a node, where devices are ranks that share them; 0: each has its own */
    int threads; /* of each rank; 0: not said */
    dt_figure figure[DT_N_FIGURES];
    /* What dt_machine_calibrate() has found, on what and when; "" and nothing: it did not. */
    char processor[DT_MACHINE_NAME_BYTES], version[DT_KERNEL_BYTES], date[DT_DATE_BYTES];
    dt_rate rate[DT_MAX_RATES];      /* [n_rates] */
    dt_link_rate link[DT_MAX_LINKS]; /* [n_links] */
    int n_rates, n_links;
} dt_machine;

/** "inside_bandwidth": what files call a figure. Not collective. Errors: none; NULL of a number
 * that is none. */
DT_API const char *dt_figure_name(dt_figure_kind kind);

/** Machine `i` of those that are known by name; NULL behind the last. Not collective. Errors:
 * none. */
DT_API const dt_machine *dt_machine_at(int i);

/**
 * Finds a machine by name, "h100", with as many nodes and devices in each as are said, as in
 * "h100:128x8", or reads a file, whose name has a "." or a "/". The file is a JSON object with
 * "name", "nodes", "devices_per_node", "gpus" and the figures: {"value": 312e12, "source": "..."},
 * or the number alone, whose source then is the file.
 *
 * Not collective.
 * Errors      DT_ERR_ARG     NULL, a name that is none, counts out of range
 *             DT_ERR_IO      the file cannot be read
 *             DT_ERR_FORMAT  a key that is none, is missing or repeated, a value out of range: the
 *                            message names file, key and what has to be
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_machine_read(const char *name, dt_machine *out);

/** The same of n bytes of JSON, which messages call `name`. Not collective. Errors: those of
 * dt_machine_read() but DT_ERR_IO. */
DT_API DT_MUST_USE dt_status dt_machine_parse(const char *name, const char *text, size_t n,
                                              dt_machine *out);

/** Writes a machine as dt_machine_read() reads it. Returns the length as snprintf() does. Not
 * collective. Errors: none; text that has no room is cut. */
DT_API int dt_machine_print(const dt_machine *machine, char *text, size_t bytes);

/* --- plans ------------------------------------------------------------------------------------ */

/* What takes the least time: a step of training; or of a batch of sequences the next token of each,
 * or all that they have read before, at once. At a given batch the way with the least time between
 * tokens makes the most of them as well. */
typedef enum dt_plan_goal { DT_PLAN_STEP, DT_PLAN_TOKEN, DT_PLAN_PROMPT } dt_plan_goal;

/* How a step is made, or tokens (mesh and groups alone); 0 of a degree: any, of a group that is
 * refused together. */
typedef struct dt_way {
    int pp, dp, tp;                  /* mesh dims, the last one being the nearest neighbours */
    int zero;                        /* 0 .. 3 */
    bool sequence_parallel, offload; /* tokens cut over tp; the optimizer's state with the host */
    dt_recomputed recompute;
    const char *schedule; /* of the pipeline; NULL: there is none */
    int stages_per_rank;
    int64_t microbatches; /* of generation: groups of sequences that follow each other */
    int ep;             /* mesh dim between dp and tp that whole experts are cut over; 0, 1: none */
    bool ends;          /* what is in no block is fully sharded over dp, blocks are not */
    int tiles;          /* of stage 3: of each linear layer, gathered one by one; 0: whole */
    int64_t chunk;      /* tokens of a sequence whose logits exist at a time; 0: all */
    const char *stages; /* blocks of each stage, "9,8,7"; NULL: so that the busiest does least */
    bool dispatch; /* tokens go to the ranks of their experts, whole ones, and come back: over ep,
                    * or without it, where tokens are cut, over tp. Else all sum terms of all */
} dt_way;

/* What a way sends over the dim that whole experts are cut over, or could be, and by prediction
 * how long that takes. */
typedef struct dt_experts_cost {
    int64_t bytes;      /* that a rank receives; of tokens that choose all experts alike */
    int64_t most_bytes; /* whatever they choose */
    double seconds;
} dt_experts_cost;

/* What a step costs the rank that it costs most. */
typedef struct dt_way_cost {
    /* exact: counted by dry runs of one rank of each kind */
    int64_t weight_bytes, gradient_bytes, state_bytes, kept_bytes;
    int64_t cache_bytes, activation_bytes; /* of generation: keys and values, temporaries */
    int64_t peak_bytes;                    /* in the device's memory at a time, at most */
    int64_t inside_bytes, between_bytes;   /* received from the same node, from others */
    double flops;
    int64_t more_bytes; /* received besides, at most: where tokens go to their experts, the bytes
                         * above are an average over tokens that choose all experts alike */
    dt_experts_cost experts[2]; /* of a step; of generation: of prompts, of a token */
    /* predicted: seconds */
    double seconds;                          /* of a step: compute + exposed + bubble */
    double compute, exposed, hidden, bubble; /* communication that is waited for, that is not */
    double prompt, token;                    /* of generation: `seconds` is one of them */
    /* measured: seconds of a step that was run (dt_search_measure()); 0: none was */
    double measured;
} dt_way_cost;

/* Why a way is not taken. */
typedef enum dt_verdict_kind {
    DT_VERDICT_RANKED, /* it could be taken: the first is */
    DT_VERDICT_RULE,   /* a rule forbids it */
    DT_VERDICT_MEMORY, /* it needs more memory than there is */
    DT_VERDICT_SLOWER, /* it takes longer than the last of those that were to be found */
    DT_VERDICT_REFUSED /* the library cannot run it: `reason` */
} dt_verdict_kind;

enum { DT_REASON_BYTES = 200 };

typedef struct dt_verdict {
    dt_way way;
    dt_verdict_kind kind;
    const char *rule; /* "K1" of a rule, else NULL */
    bool counted; /* `cost` is there: dry runs have been made. Of a way that a device has no room
                   * for they end with the first rank, or microbatches, that say so */
    double number, limit; /* that decide: bytes, seconds, or what the rule compares */
    dt_way_cost cost;
    char reason[DT_REASON_BYTES]; /* one sentence with the number */
} dt_verdict;

typedef struct dt_planner_options {
    size_t size; /* sizeof(dt_planner_options) */
    /* Of a step on all ranks together; 0: 1 for each, 2048. Of generation: sequences at once, 1,
     * and tokens of each, as prompts and as room in the caches. */
    int64_t batch, sequence;
    const dt_load_options *load;           /* dtype and plan; NULL: defaults */
    const dt_optimizer_options *optimizer; /* NULL: defaults */
    int pp, dp, tp;                        /* the only degrees to look at; 0: any */
    int top;                               /* ways to rank; 1 */
    int most_counted;                      /* ways to count at most; 400 */
    dt_plan_goal goal;
    int ep;         /* as pp, dp and tp */
    double seconds; /* to look for: what would be counted later, but for a first way, ends the
                     * search, which says so. 0: as many as it takes, so that the same input always
                     * finds the same */
} dt_planner_options;

#define DT_PLANNER_OPTIONS_INIT                                                           \
    {                                                                                     \
        sizeof(dt_planner_options), 0, 0, NULL, NULL, 0, 0, 0, 1, 400, DT_PLAN_STEP, 0, 0 \
    }

/* What ended a search before it was known that nothing else could be faster. */
typedef enum dt_search_end {
    DT_SEARCH_WHOLE,   /* nothing */
    DT_SEARCH_COUNTED, /* most_counted ways were counted */
    DT_SEARCH_TIMED    /* `seconds` were over */
} dt_search_end;

typedef struct dt_search dt_search;

/**
 * Finds the ways in which a step of training takes the least time: all degrees of pipeline, data,
 * tensor and expert parallelism that use every device of the machine, stages of ZeRO, of layers
 * outside of blocks alone too, tokens cut, recomputation, schedules, stages by time or by memory,
 * microbatches, state with the host; and, where a way has no room, the loss in chunks and layers in
 * tiles. Rules forbid some; others are passed
 * over because a bound says that they need too much memory or time; what is left is counted by dry
 * runs, the most promising first, until nothing can be faster. It is a function of its arguments,
 * unless they limit its seconds and it needs more.
 * For generation the degrees alone are looked at, also of a part of the devices. Where the caller
 * has a plan of styles it is kept, and what would need another is not looked at: experts over a dim
 * of their own, tiles, layers outside of blocks.
 *
 *   rt   whose registries hold; NULL: the built-in ones alone
 *   dir  a folder with config.json
 *
 * Not collective.
 * Ownership   *out is released with dt_search_release(). Where nothing fits it is there all the
 *             same, without a way that is ranked.
 * Errors      DT_ERR_ARG  NULL, a machine that is none, a batch or sequence out of range
 *             as dt_model_check() for config.json; DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_search_ways(dt_runtime *rt, const char *dir,
                                            const dt_machine *machine,
                                            const dt_planner_options *options, dt_search **out);
DT_API void dt_search_release(dt_search **search); /* accepts NULL */

/**
 * Judges one way, be it one of those that were looked at or another (other numbers of stages or
 * microbatches): the first rule that it breaks, else what dry runs count, and by which numbers the
 * first of those that are ranked is preferred. DT_VERDICT_RANKED: as fast as the last of them.
 * dt_search_print() tells of the way that was judged last.
 *
 *   way  all degrees, which together use every device; 0 microbatches: of one sequence each; 0
 *        stages_per_rank: 1. `schedule` and `stages` are borrowed until the search is released
 *
 * Not collective.
 * Errors      DT_ERR_ARG  NULL, degrees that are not the machine's devices, a zero out of range, a
 *                         schedule without a pipeline or none with one
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_search_judge(dt_search *search, const dt_way *way, dt_verdict *out);

/**
 * Draws a way as SVG: the memory of each rank of the pipeline stacked by kind, beside what a device
 * has; what the time of a step, of prompts or of a token is made of; and the time line of a
 * pipeline's step. Dry runs are made again. Where a rank has less than a core the time line is that
 * of ranks with a core each.
 *
 *   way  as dt_search_judge() takes it; NULL: the first that is ranked
 *
 * Not collective.
 * Ownership   *svg is released with free().
 * Errors      DT_ERR_ARG  search or svg is NULL, or nothing is ranked
 *             as dt_search_judge(); those of dry runs
 */
DT_API DT_MUST_USE dt_status dt_search_draw(dt_search *search, const dt_way *way, char **svg);

/** What ended the search: of what is ranked then it is known alone that it is the best of what was
 * counted. Not collective. Errors: none. */
DT_API dt_search_end dt_search_ended(const dt_search *search);

/** The first way that is ranked with the other form of a mixture of experts, `dispatch` or not,
 * counted; NULL where it has none. Not collective. Errors: none. */
DT_API const dt_verdict *dt_search_other_form(const dt_search *search);

/** Verdict `i`: ranked ones first, the fastest leading, then all others; NULL behind the last. Not
 * collective. Errors: none. */
DT_API const dt_verdict *dt_search_at(const dt_search *search, int64_t i);

/** The row of the decision table that holds, "M1", with the numbers that say so. Not collective.
 * Errors: none. */
DT_API const char *dt_search_case(const dt_search *search, char text[DT_REASON_BYTES]);

/* Into how many parts a way cuts operators of a kind, in the dimensions of FlexFlow: sequences of a
 * batch; operators, which lie on different devices; heads or tokens of a sequence; parameters. */
typedef struct dt_operator_group {
    const char *name; /* "feed-forward" */
    int sample, operators, attribute, parameter;
} dt_operator_group;

/** Group `i` of the operators of the first way that is ranked; NULL behind the last, or where none
 * is. Not collective. Errors: none. */
DT_API const dt_operator_group *dt_search_group(const dt_search *search, int i);

/** Devices of this kind that the model would fit on, at the least; 0: it is not known. Not
 * collective. Errors: none. */
DT_API int64_t dt_search_least_devices(const dt_search *search);

/**
 * Writes a search: as text the way that is taken, the others that are ranked, and why the rest is
 * not; or as JSON. "options" of that is what `dtensor train --options` takes.
 *
 * Returns the length as snprintf() does.
 *
 * Not collective.
 * Errors      none; text that has no room is cut
 */
DT_API int dt_search_print(const dt_search *search, bool json, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
