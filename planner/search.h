/* SPDX-License-Identifier: Apache-2.0
 *
 * A search under way: what is asked for, what the model is, and what dry runs have said so far. */
#ifndef DTI_PLANNER_SEARCH_H
#define DTI_PLANNER_SEARCH_H

#include <dtensor/planner.h>

#include "base/memory.h"
#include "base/writer.h"
#include "planner/machine.h"

enum { DTI_MESH_BYTES = 64, DTI_MAX_STAGES = 2048 };

/* Mesh dims of a way as bits, whichever of them its mesh has: the last one is the nearest. */
enum { DTI_DIM_PP, DTI_DIM_DP, DTI_DIM_EP, DTI_DIM_TP, DTI_N_DIMS };
enum {
    DTI_OVER_DP = 1 << DTI_DIM_DP,
    DTI_OVER_EP = 1 << DTI_DIM_EP,
    DTI_OVER_TP = 1 << DTI_DIM_TP
};

/* What ways have elsewhere, and reports say. */
#define DTI_NO_CP "cp, context parallelism, which the library does not have"

/* Gradients that travel together while a pass goes on. */
enum { DTI_BUCKET_BYTES = 64 << 20 };

/* A pass of one sequence over tp alone, and a step of it: what bounds are made of. */
typedef struct dti_profile {
    int ep, tp;
    bool sequence_parallel, dispatch;
    dt_recomputed recompute;
    dt_status refused; /* no such pass */
    dt_training_cost cost;
} dti_profile;

/* Passes of some sequences over tp alone, in seconds: the same for generation. */
typedef struct dti_pass {
    int ep, tp;
    bool dispatch;
    int64_t rows;
    dt_status refused;
    double prompt, token;
} dti_pass;

/* How many blocks each stage has. */
typedef struct dti_split {
    int pp, n;        /* ranks, stages */
    const char *text; /* as a way says it, or NULL */
    int *blocks;
} dti_split;

/* Rules of a plan that ways have beside the built-in one (way_plans.c): of whole experts over ep
 * whose terms are summed, or that tokens are sent to, the latter over tp, too; of ends; of layers
 * in tiles. Those of experts stand beside others. */
enum { DTI_EXPERTS, DTI_SENT, DTI_CUT_SENT, DTI_ENDS, DTI_TILED, DTI_BESIDE = DTI_ENDS + 1 };
enum { DTI_TILES = 2, DTI_RULES = DTI_TILED + 2 * DTI_TILES };
typedef struct dti_rules {
    dt_plan_rule *rules; /* [n] */
    size_t n, room;
} dti_rules;

typedef struct dti_task {
    dt_runtime *rt;
    const char *dir;
    dt_machine machine;
    dt_planner_options o;
    dt_load_options load;
    dt_optimizer_options optimizer;
    dt_model_info info;
    dt_dtype dtype;
    int64_t ff;           /* the widest axis that tp cuts by rows */
    double largest;       /* parameters of the largest layer */
    double all_params;    /* of the model */
    double block_params;  /* of a block, on average */
    double expert_params; /* of these, those of experts */
    int64_t n_experts;    /* of a block; 0: there are none */
    bool has_plan;        /* the caller's or the checkpoint's: ways have none of their own */
    dti_rules rules[DTI_RULES];
    dt_plan plans[DTI_BESIDE * DTI_RULES]; /* chains of these, without and with each of experts */
    dti_arena texts;                       /* of rules and of stages */
    double head_flops;                     /* of a token */
    double rate;                           /* operations a second that a device reaches */
    char guessed[DT_REASON_BYTES]; /* kernels that were not measured, and taken for others */
    dti_profile *profiles;
    size_t n_profiles, profiles_room;
    dti_pass *passes;
    size_t n_passes, passes_room;
    dti_split *splits;
    size_t n_splits, splits_room;
} dti_task;

enum { DTI_GROUPS = 7 };

struct dt_search {
    dti_task task;
    dt_verdict *verdicts; /* [n] */
    size_t n, room;
    double *bounds; /* [n] seconds that a way takes at the least */
    size_t bounds_room;
    int64_t n_ranked, n_counted;
    int64_t least_devices;
    bool by_memory; /* bounds are bytes: what fits is looked for, not what is fast */
    dt_search_end end;
    int64_t begin_ns; /* when it was begun */
    char decision[DT_REASON_BYTES];
    dt_operator_group group[DTI_GROUPS]; /* of the first that is ranked; without a name: none */
    dt_verdict judged;                   /* by dt_search_judge(); no pp: none was */
    dt_verdict other_form;               /* of the first that is ranked; no pp: there is none */
};

/* --- what is known before (task.c) ------------------------------------------------------------ */

dt_status dti_task_open(dt_runtime *rt, const char *dir, const dt_machine *machine,
                        const dt_planner_options *options, dti_task *out) DT_MUST_USE;
void dti_task_close(dti_task *t);

/* Found once, or made; borrowed until the next call. */
dt_status dti_profile_of(dti_task *t, const dt_way *way, const dti_profile **out) DT_MUST_USE;
dt_status dti_split_of(dti_task *t, const dt_way *way, const dti_split **out) DT_MUST_USE;

/* Ranks of its dim of experts, and of a stage. */
int dti_way_ep(const dt_way *way);
int dti_way_place(const dt_way *way);

/* Ranks of degrees that need not be those of any machine: once they are more than `most`, not all
 * of them. */
int64_t dti_way_ranks(const dt_way *way, int64_t most);

/* "pp=2,dp=2,tp=2" */
const char *dti_way_mesh(const dt_way *way, char text[DTI_MESH_BYTES]);
int64_t dti_way_rows(const dti_task *t, const dt_way *way); /* sequences of a microbatch */

/* --- plans of styles that ways need (way_plans.c) -------------------------------------------- */

extern const int dti_tiles[DTI_TILES]; /* that layers may be cut in */

struct dti_described;

/* How layers may be cut in tiles, ends and experts: from the rows of a described model. */
dt_status dti_way_plans_open(dti_task *t, const struct dti_described *d) DT_MUST_USE;
void dti_way_plans_close(dti_task *t);

/* The caller's, that of a way's experts, ends and tiles, or NULL; as JSON what is its own. */
const dt_plan *dti_way_plan(const dti_task *t, const dt_way *way);
bool dti_put_way_plan(dti_writer *w, const dti_task *t, const dt_way *way);

/* --- forms of mixtures of experts (expert_forms.c) -------------------------------------------- */

/* The dim that whole experts are cut over, or could be for tokens that are cut; 0: there is none.
 * Whether tokens can be sent to them. */
uint32_t dti_expert_dims(const dti_task *t, const dt_way *way);
bool dti_way_can_send(const dti_task *t, const dt_way *way);

/* Adds what goes over the dims `dims` of a way in `seconds`. */
void dti_count_experts(const dti_task *t, const dt_way *way, uint32_t dims,
                       const dt_comm_counter *count, int64_t most, double seconds,
                       dt_way_cost *out);

/* The first way with the other form. */
dt_status dti_find_other_form(dt_search *s) DT_MUST_USE;
void dti_put_forms(dti_writer *w, const dt_search *s, bool json);

/* --- rules (rules.c) -------------------------------------------------------------------------- */

/* How much of a way is settled when a rule is asked. */
typedef enum dti_level { DTI_TP, DTI_PP, DTI_ZERO, DTI_REST } dti_level;

/* The first rule of that level that a way breaks fills in the verdict; false: none. */
bool dti_rule_breaks(const dti_task *t, dti_level level, dt_verdict *v);

/* The row of the decision table. */
dt_status dti_decide(dti_task *t, char text[DT_REASON_BYTES]) DT_MUST_USE;

/* --- verdicts (search.c) ---------------------------------------------------------------------- */

/* Whether what a way was counted to need is there, on the device and its host; else why not. */
bool dti_verdict_fits(const dti_task *t, dt_verdict *v);

/* --- what travels (travel.c) ------------------------------------------------------------------ */

/* Seconds of so many collectives over the dims `dims` of a way. */
double dti_comm_seconds(const dt_machine *m, const dt_way *way, uint32_t dims, dt_comm_kind kind,
                        const dt_comm_counter *count, bool *between);

/* Of a message of so many bytes from each rank at place `a` of a pipeline to one at place `b`. */
double dti_message_seconds(const dt_machine *m, const dt_way *way, int a, int b, double bytes);

/* Whether it leaves a node on any of their ranks. */
bool dti_message_leaves(const dt_machine *m, const dt_way *way, int a, int b);

/* The share of messages to a place of the pipeline that come from other nodes. */
double dti_messages_between(const dt_machine *m, const dt_way *way, int place);

/* --- costs ------------------------------------------------------------------------------------ */

/* What a way needs at the least (bound.c): bytes of the device's memory, seconds. */
dt_status dti_way_bound(dti_task *t, const dt_way *way, double *bytes, double *seconds) DT_MUST_USE;

/* How a model is loaded, its loss run and its parameters stepped (cost.c). */
void dti_way_options(const dti_task *t, const dt_way *way, dt_load_options *load,
                     dt_optimizer_options *optimizer, dt_loss_options *loss);

/* What a rank has counted in its last step, and held at most. */
typedef struct dti_tried {
    int64_t bytes, peak_bytes;
    double flops;
} dti_tried;

/* Runs steps of a way here (try_ways.c): seconds of each, and what each rank counts, or NULL. */
dt_status dti_way_try(const dti_task *t, const dt_way *way, const dt_run_options *run, int steps,
                      double *times, dti_tried *seen) DT_MUST_USE;

/* Of a microbatch of so many rows, at the least, what a block keeps on a rank, and what the way
 * back makes again of one; parameters of a block that a rank holds (bound.c). */
dt_status dti_kept_by_block(dti_task *t, const dt_way *way, double rows, double *out,
                            double *again) DT_MUST_USE;
double dti_block_share(const dti_task *t, const dt_way *way);

/* What it needs (cost.c). Errors are those of dry runs. */
dt_status dti_way_count(dti_task *t, const dt_way *way, dt_way_cost *out) DT_MUST_USE;

/* Stages of which the largest holds least, as a way says it; NULL: those that it has anyhow
 * (split.c). */
dt_status dti_stages_by_memory(dti_task *t, const dt_way *way, const char **out) DT_MUST_USE;

/* Ranks of a pipeline that have as many blocks, and embed or head alike, are of one kind: the first
 * rank of each [*n], and the kind at each rank, in arrays of DTI_MAX_STAGES. */
dt_status dti_find_kinds(dti_task *t, const dt_way *way, int *place, int *kind_at,
                         int *n) DT_MUST_USE;

/* Bits of the dims of dti_way_mesh() as those of pp, dp, tp. */
uint32_t dti_way_dims(const dt_way *way, uint32_t dims);

/* How a way cuts each group of operators (dimensions.c). */
dt_status dti_find_groups(const dti_task *t, const dt_way *way,
                          dt_operator_group group[DTI_GROUPS]) DT_MUST_USE;

/* What the ranks of a pipeline hold, kind by kind, for pictures. */
enum { DTI_PARTS = 5 };
typedef struct dti_look {
    int64_t (*part)[DTI_PARTS]; /* [n] weights, gradients, state, kept, the rest; of generation
                                 * weights, caches, temporaries */
    int64_t *peak;              /* [n] */
    int n;
    dt_pipeline_timing *timing; /* of a step on a pipeline; or NULL */
} dti_look;

dt_status dti_way_look(dti_task *t, const dt_way *way, dti_look *out) DT_MUST_USE;
dt_status dti_serve_look(dti_task *t, const dt_way *way, dti_look *out) DT_MUST_USE;

/* A way as text (print.c); its degrees and the rest of it (judge.c). */
void dti_put_way(dti_writer *w, const dti_task *t, const dt_way *way);
dt_status dti_way_settle(const dti_task *t, dt_way *way) DT_MUST_USE;

/* --- generation (serve.c): the same, where the goal is no step of training -------------------- */

int64_t dti_serve_groups(const dti_task *t, const dt_way *way);
dt_status dti_serve_bound(dti_task *t, const dt_way *way, double *bytes,
                          double *seconds) DT_MUST_USE;
dt_status dti_serve_count(dti_task *t, const dt_way *way, dt_way_cost *out) DT_MUST_USE;
dt_status dti_serve_decide(dti_task *t, char text[DT_REASON_BYTES]) DT_MUST_USE;

#endif
