/* SPDX-License-Identifier: Apache-2.0
 *
 * First step: from a folder to a description. Its configuration is read, its layers are listed as
 * rows, and its tensors compared with them, before there is a mesh. */
#ifndef DTI_DESCRIBE_H
#define DTI_DESCRIBE_H

#include <dtensor/checkpoints.h>

#include "files/json.h"
#include "models/architectures/builder.h"
#include "models/policies/policy_notes.h"

struct dti_ckpt;
struct dti_st_entry;

/* A checkpoint's configuration, read and understood, before there is a mesh. */
typedef struct dti_described {
    dt_runtime *rt; /* whose registries were asked; NULL: nobody's */
    const void
        *own; /* the caller's struct that `self` is a copy of; NULL: it was read from a folder */
    const dt_arch *arch;
    void *self;                /* the architecture's own struct */
    char *folder;              /* whose configuration it is */
    struct dti_beside *beside; /* and what lay there beside weights, just before */
    uint64_t config_hash;      /* of all that config.json says */
    dti_facts facts; /* what of that was read, and counts; of what a caller made: nothing */
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
    dti_arena plan_arena;   /* which its texts lie in, and those of `asked` */
    const dt_plan *asked;   /* to load with, over the built-in plan; dti_describe_for() */
    int n_idle_rules;       /* that were passed over, as there is nothing to lay out; ... */
    const char *idle_rule;  /* ... the first of them */
    size_t n_unused;        /* tensors of the checkpoint that no layer asks for; ... */
    char *first_unused;     /* ... once dti_check_checkpoint() has looked */
} dti_described;

/* Reads config.json and generation_config.json of `dir`, with the architectures of `rt` (NULL: the
 * built-in ones). Freed with dti_described_free(), which leaves alone what was taken
 * over and set to NULL: self, folder, beside, generation. */
dt_status dti_describe(dt_runtime *rt, const char *dir, dti_described *out) DT_MUST_USE;

/* Refuses the model_type of a config.json that is none of `names`, and says which built-in one is
 * nearest by the keys that it reads (nearest_architecture.c). */
dt_status dti_refuse_architecture(const dti_json *config, const char *names);

/* Without a folder: what `self` and `info` say of an architecture, as dt_model_create(). */
dt_status dti_describe_own(dt_runtime *rt, const dt_arch *arch, const void *self,
                           const dt_model_info *info, dti_described *out) DT_MUST_USE;

/* The same for a load: the policies of `o` have changed the configuration, and out->notes.plan has
 * their rules. out->asked is what to load with, over the built-in plan, in our spelling: those
 * rules, the caller's plan, the named one, or the checkpoint's own unless tokens are to be cut,
 * which no such plan knows. */
dt_status dti_describe_for(const char *dir, dt_mesh *mesh, const dt_load_options *o,
                           dti_described *out) DT_MUST_USE;
void dti_described_free(dti_described *d);

/* The options of a load as a caller gave them, or NULL, read and checked (describe_load.c). */
dt_status dti_load_options_read(const dt_load_options *options, dt_load_options *own) DT_MUST_USE;

/* Both: `own` are the options with what to load with as their plan, `out` says what the folder is
 * for them (describe_load.c). */
dt_status dti_describe_load(dt_mesh *mesh, const char *dir, const dt_load_options *options,
                            dt_load_options *own, dti_described *out) DT_MUST_USE;

/* Patterns that match layers once they are spelled as our names are become so (settle_plan.c). */
dt_status dti_plan_spell(dti_described *d, dt_plan_rule *rules, int n) DT_MUST_USE;

/* Makes linear layers such of packed weights that config.json, whose root is given, says are packed
 * in the files (packed_config.c). */
dt_status dti_packed_config_read(const dti_json *root, dti_described *d) DT_MUST_USE;

/* The largest group, up to `group`, that divides it and the inputs of a layer, and that no cut of
 * them parts; and what makes a layer one of packed weights (pack_weights.c). */
int64_t dti_packed_group(const dt_layer_spec *spec, int64_t group);
void dti_pack_spec(dti_builder *b, dt_layer_spec *spec, dt_packing packing, bool zeros);

/* Is layer i a linear one with an output for each expert (pack_weights.c)? */
bool dti_chooses_experts(const dti_described *d, int i);

/* Makes linear layers such of packed weights, as dt_load_options.weights says; NULL: none of them
 * (pack_weights.c). */
dt_status dti_pack_weights(dti_described *d, const char *how) DT_MUST_USE;

/* Sets d->asked. */
dt_status dti_plan_settle(dti_described *d, const dt_load_options *o) DT_MUST_USE;

/* Reads the plan that config.json, whose root is given, may hold (own_plan.c). */
dt_status dti_own_plan_read(const char *dir, const dti_json *root, dti_described *d) DT_MUST_USE;

/* A size of a model by its key in config.json, n characters ("num_attention_heads"), as the
 * architecture took it where the file leaves it out; -1: no such size. */
int64_t dti_size_of_key(const dt_model_info *info, const char *key, size_t n);

/* Says the sizes that all architectures have, once they are settled, beside d->facts. */
dt_status dti_say_sizes(dti_described *d) DT_MUST_USE;

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

/* Says, of the first one, which tensors are of another dtype than a model, and converted when they
 * are loaded (remarks.c). */
void dti_dtype_remarks(const struct dti_ckpt *ckpt, const char *dir, dt_dtype dtype,
                       dti_complain_fn say, void *arg);

/* Counts the checkpoint's tensors that no layer asks for, into `d` (remarks.c). */
dt_status dti_find_unused(dti_described *d, const struct dti_ckpt *ckpt) DT_MUST_USE;

/* Leaves of an open checkpoint what the model uses, and how many others there were (remarks.c). */
dt_status dti_forget_unused(const dti_described *d, struct dti_ckpt *ckpt) DT_MUST_USE;

/* Says what about a checkpoint is odd but no error: tensors that nobody uses, an architecture that
 * contradicts model_type. */
void dti_describe_remarks(const dti_described *d, const char *dir, dt_remark_fn say, void *arg);

/* The same of what ends a text, and of keys of generation_config.json that are left out. */
void dti_generation_remarks(const dti_described *d, const char *dir, dt_remark_fn say, void *arg);

#endif
