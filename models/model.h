/* SPDX-License-Identifier: Apache-2.0
 *
 * What is behind dtensor/architectures.h, and a model before and after it is loaded. */
#ifndef DTI_MODEL_H
#define DTI_MODEL_H

#include <dtensor/architectures.h>

#include "base/memory.h"
#include "files/json.h"

/* --- Layers as rows ------------------------------------------------------------------------- */

/* Collects rows of all blocks, then makes the layers and points the fields at them. */
typedef struct dti_builder {
    dti_arena arena;
    dt_row_settings settings; /* of the rows to come */
    dt_layer_spec *specs;
    size_t specs_capacity;
    dt_layer ***slots;
    size_t slots_capacity;
    const char *(*keys)[2]; /* of the axes of a spec's weight */
    size_t keys_capacity;
    int n;
} dti_builder;

/* Sequence parallelism: the built-in plan with tokens cut between blocks. */
void dti_builder_cut_tokens(dti_builder *b);

dt_status dti_builder_finish(dti_builder *b, dt_mesh *mesh, const char *dim, const dt_plan *plan,
                             dt_layers **out) DT_MUST_USE;
void dti_builder_free(dti_builder *b);

/* --- Architectures -------------------------------------------------------------------------- */

/* Keys and values that one block has seen. Made when the block first runs, laid out as its keys
 * are, so that every plan and every head rule gets the cache that fits it. */
typedef struct dti_kv {
    dt_tensor *k; /* [batch, capacity, kv heads, head_dim]; NULL before the first pass */
    dt_tensor *v;
    int64_t capacity;
} dti_kv;

/* An attribute of a block's module as a policy says that one rank holds it; models/policies/. */
typedef struct dti_claim {
    char policy[96]; /* for messages */
    const char *blocks;
    const char *module;    /* "self_attn" */
    const char *attribute; /* "num_heads" */
    int64_t value;
} dti_claim;

/* What policies come to for one model on one mesh. */
typedef struct dti_policy_notes {
    dti_arena arena;
    dt_plan plan; /* their rules; `more` is the caller's plan */
    dt_plan_rule *rules;
    size_t rules_capacity;
    dti_claim *claims;
    size_t n_claims, claims_capacity;
    const char *changed; /* `policy "x" set rope_theta to 100`, for messages; NULL: nothing */
} dti_policy_notes;

extern const dt_arch dti_arch_llama, dti_arch_qwen2, dti_arch_qwen3, dti_arch_qwen3_moe,
    dti_arch_gpt_neo, dti_arch_gemma3_text, dti_arch_gemma3, dti_arch_phi3;

/* A checkpoint's configuration, read and understood, before there is a mesh. */
typedef struct dti_described {
    const dt_arch *arch;
    void *self;   /* the architecture's own struct */
    char *folder; /* whose configuration it is */
    dt_model_info info;
    bool dtype_known;                         /* config.json names one */
    dti_builder builder;                      /* rows of all layers */
    dti_policy_notes notes;                   /* of the policies it was described for */
    struct dti_generation_config *generation; /* what else generation_config.json says */
    char *generation_error; /* why generation_config.json cannot be read; NULL: it can, or is not
                               there */
    bool eos_overruled;     /* config.json's eos_token_id cannot be one, and need not: ... */
    int32_t config_eos;     /* ... this one */
    bool has_generation;    /* generation_config.json says what ends a text, not config.json */
    char *other_class;      /* what "architectures" says if that is not arch->class_name */
    dt_plan plan;           /* the checkpoint's own; no rules: it has none */
    dti_arena plan_arena;   /* which its texts lie in */
    size_t n_unused;        /* tensors of the checkpoint that no layer asks for; ... */
    char *first_unused;     /* ... once dti_check_checkpoint() has looked */
} dti_described;

typedef void (*dti_remark_fn)(void *arg, const char *text);

/* Says what about a checkpoint is odd but no error: tensors that nobody uses, an architecture that
 * contradicts model_type. */
void dti_describe_remarks(const dti_described *d, const char *dir, dti_remark_fn say, void *arg);

/* The same of what ends a text, and of keys of generation_config.json that are left out. */
void dti_generation_remarks(const dti_described *d, const char *dir, dti_remark_fn say, void *arg);

/* Everything that a folder is suspected of, read anew: the above, and with `generates` ids that can
 * end no text. A folder that cannot be described gives no remarks. */
dt_status dti_remarks(const char *dir, bool weights, bool generates, dti_remark_fn say,
                      void *arg) DT_MUST_USE;

/* The architecture of that model_type: registered in `rt`, or built in; rt may be NULL. NULL: there
 * is none, and `names` lists those there are. */
const dt_arch *dti_arch_find(dt_runtime *rt, const char *model_type, char *names, size_t bytes);

/* Reads config.json and generation_config.json of `dir`, with the architectures of `rt` (NULL: the
 * built-in ones). Freed with dti_described_free(), which leaves alone what was taken
 * over and set to NULL: self, folder, generation. */
dt_status dti_describe(dt_runtime *rt, const char *dir, dti_described *out) DT_MUST_USE;

/* The same for a load: the policies of `o` have changed the configuration, and out->notes.plan has
 * their rules. dti_plan_of() is what to load with, over the built-in plan: those rules, the
 * caller's plan, or the checkpoint's own unless tokens are to be cut, which no such plan knows. */
dt_status dti_describe_for(const char *dir, dt_mesh *mesh, const dt_load_options *o,
                           dti_described *out) DT_MUST_USE;
const dt_plan *dti_plan_of(const dti_described *d, const dt_load_options *o);
void dti_described_free(dti_described *d);

/* Reads the plan that config.json, whose root is given, may hold (own_plan.c). */
dt_status dti_own_plan_read(const char *dir, const dti_json *root, dti_described *d) DT_MUST_USE;

dt_status dti_check_load_options(const dt_load_options *o) DT_MUST_USE;

/* The model without values of its parameters: takes the description's own struct over. */
dt_status dti_model_make(dti_described *d, dt_mesh *mesh, const dt_load_options *o,
                         dt_model **out) DT_MUST_USE;

/* Gives a zeroed parameter its values. */
typedef struct dti_filler {
    dt_status (*fn)(void *arg, const dt_layer *layer, int param, dt_tensor *x);
    void *arg;
} dti_filler;

/* A model from its configuration alone: parameters are what `fill` makes of them, NULL: zeros. On a
 * mesh of a dry runtime they are dry. */
dt_status dti_model_make_whole(dti_described *d, dt_mesh *mesh, const dt_load_options *o,
                               const dti_filler *fill, dt_model **out) DT_MUST_USE;

/* Judges the plan in `o` by dry passes, on a dry copy of `mesh`, of a model that is as `known` says
 * (judge.c). The message of a refusal names the plan's source, rule, parameter, sizes and mesh dim,
 * and what would fit. */
dt_status dti_judge(dt_mesh *mesh, const char *dir, const dti_described *known,
                    const dt_load_options *o) DT_MUST_USE;

/* The same, judged by the mesh's first rank alone, whose status and message all ranks take over: a
 * hundred ranks make one dry model. Collective over the mesh; outsiders judge for themselves. */
dt_status dti_judge_together(dt_mesh *mesh, const char *dir, const dti_described *known,
                             const dt_load_options *o) DT_MUST_USE;

/* The judgement of a load on a dry mesh, "tp=2", made for it (default_run.c). */
dt_status dti_model_check_dry(const char *dir, const char *mesh,
                              const dt_load_options *o) DT_MUST_USE;

/* What a run refuses that asks for nothing special (default_run.c): values of
 * generation_config.json, which the message names by file and key; the plan of the checkpoint
 * itself, on one rank. Errors: what the run would end with. */
dt_status dti_judge_generation(const dti_described *d) DT_MUST_USE;
dt_status dti_judge_own_plan(const dti_described *d) DT_MUST_USE;

/* A size of a model by its key in config.json, n characters ("num_attention_heads"), as the
 * architecture took it where the file leaves it out; -1: no such size. */
int64_t dti_size_of_key(const dt_model_info *info, const char *key, size_t n);

/* The status that the mesh's first rank passes, with its message, on every rank: what it alone
 * looked at, all know. Collective over the mesh's members. */
dt_status dti_first_says(dt_mesh *mesh, dt_status mine) DT_MUST_USE;

/* The greedy choice from logits [batch, 1, vocab]: ids [batch, 1] i32, and the keys they came from.
 */
dt_tensor *dti_choose_greedy(dt_tape *t, dt_tensor *logits, dt_tensor **key);

struct dti_ckpt;
struct dti_host;
struct dti_st_entry;

/* The tensor of a layer's parameter, in any of the architecture's spellings; NULL if it is missing.
 */
const struct dti_st_entry *dti_find_param(const struct dti_ckpt *ckpt, const dt_arch *arch,
                                          const char *layer, const char *param);

struct dti_st_stage;

/* One of the tensors that a parameter is made of, as it has to be in the file. */
typedef struct dti_param_tensor {
    const char *name;                 /* in our spelling; while a call lasts */
    const struct dti_st_entry *entry; /* NULL: it is missing */
    int n_axes;
    int64_t shape[DT_PARAM_MAX_AXES];
    bool whole; /* it is the parameter; otherwise rows `first` .. of one expert's weight */
    int64_t expert;
    int64_t first;
} dti_param_tensor;

typedef dt_status (*dti_tensor_fn)(void *arg, const dti_param_tensor *tensor);

/* Calls fn for each tensor that makes up a parameter (param_tensors.c): the one of its name, or for
 * experts, where that is missing, one per expert and block. */
dt_status dti_each_tensor(const struct dti_ckpt *ckpt, const dt_arch *arch,
                          const dt_param_info *info, dti_tensor_fn fn, void *arg) DT_MUST_USE;

/* The name of a parameter's own tensor, like snprintf: "a.weight"; experts have none of "weight".
 */
int dti_param_tensor_name(const dt_param_info *info, char *name, size_t bytes);

/* Reads this rank's piece of a parameter, as far as it is in the tensor `t`, straight into place
 * (read_param.c): its parts of blocks, if axes are packed, and transposed, if the file holds it so.
 * `to` is the parameter as the host sees it (dtensor/host.h). */
dt_status dti_read_param(const struct dti_ckpt *ckpt, const dti_param_tensor *t, bool reversed,
                         const struct dti_host *to, const struct dti_st_stage *stage) DT_MUST_USE;

/* Rows [begin[a], end[a]) of each axis of this rank's piece of x. */
typedef struct dti_part {
    const dt_tensor *x;
    bool reversed; /* the file's last two axes stand the other way round */
    int64_t begin[DT_MAX_AXES];
    int64_t end[DT_MAX_AXES];
} dti_part;

dti_part dti_whole_part(const dt_tensor *x, bool reversed);

/* The same for a part of the piece, whose elements lie in `to` as far apart as they do there. */
dt_status dti_read_part(const struct dti_ckpt *ckpt, const dti_param_tensor *t,
                        const dti_part *part, const struct dti_st_stage *stage,
                        void *to) DT_MUST_USE;

/* Where a parameter comes from. */
typedef struct dti_param_source {
    const char *name;
    const struct dti_ckpt *ckpt;
    const dti_param_tensor *tensors; /* all that it is made of */
    size_t n_tensors;
    bool reversed;
    const struct dti_st_stage *stage;
} dti_param_source;

struct dti_upload;

/* Reads this rank's piece of x into pinned buffers, part by part, and starts their copies to the
 * device (upload_param.c, dtensor/device/upload.h). x lives until these have been waited for. */
dt_status dti_upload_param(const dti_param_source *from, dt_tensor *x,
                           struct dti_upload *upload) DT_MUST_USE;

/* Looks up every parameter of `d` in the checkpoint and checks its shape; settles the dtype. Counts
 * what the model uses; outputs may be NULL. */
dt_status dti_check_checkpoint(dti_described *d, const struct dti_ckpt *ckpt, int64_t *n_params,
                               int64_t *bytes) DT_MUST_USE;

/* One tensor's fault. */
typedef void (*dti_complain_fn)(void *arg, const char *tensor, const char *text);

/* The same check, but a tensor that is missing or does not fit is said, and the next one looked at.
 * Errors: DT_ERR_MEMORY. */
dt_status dti_check_all(dti_described *d, const struct dti_ckpt *ckpt, dti_complain_fn complain,
                        void *arg) DT_MUST_USE;

/* Calls fn for each tensor of the checkpoint that no layer asks for (remarks.c). */
dt_status dti_each_unused(const dti_described *d, const struct dti_ckpt *ckpt,
                          void (*fn)(void *arg, const struct dti_st_entry *entry),
                          void *arg) DT_MUST_USE;

/* Counts the checkpoint's tensors that no layer asks for, into `d` (remarks.c). */
dt_status dti_find_unused(dti_described *d, const struct dti_ckpt *ckpt) DT_MUST_USE;

/* Takes a model that ends off the list of dt_parallelize(). */
void dti_parallelized_forget(const dt_model *model);

/* Says through the log what the ranks of a model hold. Collective over its mesh, whatever `verbose`
 * is: ranks may be asked to say different things. */
dt_status dti_memory_report(dt_model *m, const char *backend, int verbose) DT_MUST_USE;

struct dt_model {
    int refs; /* the caller's and one per state; a model belongs to its rank's thread */
    const dt_arch *arch;
    void *self;
    char *folder;                             /* that it was loaded from */
    bool parallelized;                        /* by dt_parallelize(), whose list it is on */
    struct dti_generation_config *generation; /* NULL: could not be read */
    dt_model_info info;
    dt_mesh *mesh;
    dt_layers *layers;
    int64_t local_bytes;
};

#endif
