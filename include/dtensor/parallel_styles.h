/* SPDX-License-Identifier: Apache-2.0
 *
 * Named recipes for laying layers over a mesh dim. A style says how a layer's parameters are cut,
 * how its input has to lie and how its output is left; a plan maps layer names to styles. Styles
 * are data for the built-in ones and functions for a user's own; both are found by name in the
 * runtime's registry. */
#ifndef DT_PARALLEL_STYLES_H
#define DT_PARALLEL_STYLES_H

#include <dtensor/layers.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Styles --------------------------------------------------------------------------------- */

/* How a built-in style cuts a weight. COLUMNS and ROWS are axes that the kind of layer names: the
 * outputs of a linear layer (rows of its [out, in] matrix, and its bias) and the columns of an
 * embedding; the inputs of a linear layer (its bias stays whole) and the vocabulary of an
 * embedding. PACKED: the same, block by block, of an axis that is made of blocks. */
typedef enum dt_cut {
    DT_CUT_NONE,
    DT_CUT_COLUMNS,
    DT_CUT_ROWS,
    DT_CUT_PACKED_COLUMNS,
    DT_CUT_PACKED_ROWS,
    DT_CUT_EXPERTS, /* whole experts: the axis that a token picks from */
    DT_CUT_COPIES   /* what styles of other mesh dims leave ranks copies of: an axis that these do
                     * not cut, behind their cuts where there is none. Any parameter, whatever the
                     * size; nothing is padded */
} dt_cut;

/* How a value lies on the style's mesh dim, or is to lie. Where it is to lie so, a value that does
 * already is not touched, whatever the boundaries of its cut. */
typedef enum dt_lay_kind {
    DT_LAY_KEEP,      /* as it is */
    DT_LAY_REPLICATE, /* whole: gathers what is cut, reduces what is Partial */
    DT_LAY_SHARD,     /* `axis` cut, in chunks: -8 to 7, a negative one counts from the end */
    DT_LAY_LAST,      /* the last axis cut, as the weight's inputs are cut; free from Replicate */
    DT_LAY_SEQUENCE,  /* the tokens cut: axis 1 of [B, T, ...], axis 0 of [T, D] */
    DT_LAY_PARTIAL    /* terms of a sum, left as they are; a value without terms is refused */
} dt_lay_kind;

typedef struct dt_lay {
    dt_lay_kind kind;
    int axis; /* of DT_LAY_SHARD */
} dt_lay;

/* What happens to one value that passes: how it is laid out, and how it has to come. A value that
 * comes otherwise is refused by name, not moved: for plans that mean to know where values come
 * from. */
typedef struct dt_pass {
    dt_lay to;
    dt_lay comes;
} dt_pass;

/* Of each of n values, which is how many there have to be; n 0: of[0] is of the first or only one,
 * others stay as they lie. */
enum { DT_MAX_PASSES = 8 };
typedef struct dt_passes {
    int n;
    dt_pass of[DT_MAX_PASSES];
} dt_passes;

/* An initializer of passes for one value: DT_LAID(DT_LAY_REPLICATE), DT_LAID(DT_LAY_SHARD, 1). */
#define DT_LAID(...)            \
    {                           \
        0,                      \
        {                       \
            {                   \
                {               \
                    __VA_ARGS__ \
                }               \
            }                   \
        }                       \
    }

/* Room for the numbers that a placement points to. */
typedef struct dt_cut_room {
    int64_t blocks[DT_AXIS_MAX_BLOCKS]; /* of packed cuts, with their units */
    int64_t units[DT_AXIS_MAX_BLOCKS];
    int64_t *offsets; /* of uneven cuts, [n_parts + 1]; dt_cut_param() needs none */
} dt_cut_room;

/* One recipe. A NULL function means: what the data fields say. A user's style fills what it needs:
 *
 *   partition_param  the placement of one parameter on a mesh dim of n_parts ranks; called before
 *                    any byte is read and for any mesh size, touches no bytes; what it points to
 *                    (blocks, offsets) lies in `room`, which outlives the call, or lives as `user`
 *   prepare_input    lays out the n values that enter the layer on mesh dim `dim`: replaces each by
 *                    a tensor of the tape. Of `in`, what has to come is checked before
 *   prepare_output   the same for those that leave it
 *   prepare_param    what the layer's computation gets of a parameter, dt_layer_use(); a tensor of
 *                    the tape. A parameter that is stored cut is gathered here
 *   validate         refuses a layer it does not fit, with a reason (dt_fail() in the record)
 *
 * A value of one token cannot be cut over ranks with profit. Where `twin` names another style, a
 * layer runs under that one when what it is given has one token; the twin lays parameters as the
 * style does. A style of data that cuts tokens and names none has one that leaves them whole. */
struct dt_style {
    size_t size; /* sizeof(dt_style) */
    const char *name;
    const char *summary; /* one line: what is cut, which collective */
    const char *kinds;   /* of layers that it fits, and kinds like them: "linear embedding"; NULL:
                          * any */
    dt_cut cut;
    dt_passes in;
    dt_passes out;
    dt_status (*partition_param)(const dt_style *style, const dt_param_info *param, int n_parts,
                                 dt_cut_room *room, dt_placement *out);
    void (*prepare_input)(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                          int n, dt_tensor **x);
    void (*prepare_output)(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                           int n, dt_tensor **y);
    dt_tensor *(*prepare_param)(const dt_style *style, dt_tape *tape, const dt_layer *layer,
                                int dim, int param, dt_tensor *w);
    dt_status (*validate)(const dt_style *style, const dt_layer *layer, int n_parts);
    const void *user; /* the style's own */
    const char *twin; /* name of the style for steps of one token; NULL: this one */
    int out_tiles;    /* of DT_CUT_COPIES, on linear layers: outputs and inputs are divided, and */
    int in_tiles;     /* tiles of the weight gathered one after the other; 0 is 1, at most 32 */
};

/**
 * Adds a style under `name`. The struct is copied; its strings and `user` must live as long as the
 * runtime.
 *
 * Collective  no communication; every rank registers the same styles.
 * Errors      DT_ERR_ARG  NULL, an empty name, a name that is taken, a size that is no dt_style, a
 *                         dt_lay or dt_cut that there is none of
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_style_register(dt_runtime *rt, const char *name,
                                               const dt_style *style);

/**
 * Lets a name that there is, or an alias, mean another style in this run: in all layers that are
 * made from now on. For one model alone it is dt_plan.overrides.
 *
 * Collective, Errors as dt_style_register(), but DT_ERR_ARG for a name that there is not.
 */
DT_API DT_MUST_USE dt_status dt_style_override(dt_runtime *rt, const char *name,
                                               const dt_style *style);

/**
 * The style of that name or alias. A name may carry arguments, which make a style of its own:
 *
 *   "rowwise(output=shard(1))"                     of the first or only value
 *   "local(input=[shard(1), keep], comes=[R, R])"  of two
 *
 * input and comes are `to` and `comes` of the values that enter, output and gives of those that
 * leave; PyTorch's input_layouts, desired_input_layouts, output_layouts, desired_output_layouts and
 * sequence_dim are known too. A layout is keep (or none), replicate (R), shard(a) (S(a)), sequence,
 * partial (P).
 *
 *   version  of Transformers, whose names are meant: NULL or "newest", or "v4.56" for a plan of
 *            that time, when "sequence_parallel" meant something else (docs/styles.md)
 *
 * Collective  no.
 * Ownership   borrowed from the runtime.
 * Errors      DT_ERR_ARG  unknown style or version; the message lists what there is
 */
DT_API DT_MUST_USE dt_status dt_style_find(dt_runtime *rt, const char *name, const char *version,
                                           const dt_style **out);

/** The i-th style by its own name, registered ones first; NULL behind the last. Whether a style
 * fits a kind of layer. Not collective. Errors: none. */
DT_API const dt_style *dt_style_at(dt_runtime *rt, int i);
DT_API bool dt_style_fits(const dt_style *style, const dt_layer_kind *kind);

/**
 * The style that does for a layer of that kind what `style` does, with the tokens cut over the mesh
 * dim between blocks (sequence parallelism): "rowwise_reduce_scatter" for "rowwise", and so on, as
 * docs/plans.md lists them. `style` itself where tokens do not matter or no such style is known. So
 * a built-in plan has its sequence-parallel variant.
 *
 * Not collective. Errors: none. `style` may be NULL, which is "replicate".
 */
DT_API const char *dt_sequence_style(const dt_layer_kind *kind, const char *style);

/**
 * The placement that cuts `axis` (of tensor axis number `tensor_axis`) over a mesh dim of n_parts
 * ranks without splitting its unit. For attention with kv heads >= n_parts, query heads are cut in
 * whole kv groups and kv heads one by one. With fewer kv heads, if they divide n_parts and n_parts
 * divides the heads, neighbours share kv heads; otherwise kv heads are Replicate and query heads
 * are cut one by one. Any n_parts works; a rank may own no head.
 *
 * Not collective. Errors: none; without an axis or with n_parts below 1 Replicate.
 */
DT_API dt_placement dt_cut_axis(const dt_axis *axis, const dt_head_counts *heads, int tensor_axis,
                                int n_parts);

/**
 * The placement that cuts tensor axis `axis` of a parameter over a mesh dim of n_parts ranks, block
 * by block if it is made of blocks, otherwise as dt_cut_axis() does. The head rule holds for all
 * blocks together: with kv heads >= n_parts each block goes in its units (whole kv groups, kv
 * heads); with fewer, neighbours that share a kv head hold its query heads too; where they do not
 * divide n_parts, or all ranks would share one, the parameter stays whole. (Placements have no
 * blocks with copies of their own: what that costs is query heads that neighbours compute alike.)
 *
 *   room  is filled and pointed to by the result; must live until that was used
 *
 * Not collective. Errors: none; an axis that does not exist gives Replicate.
 */
DT_API dt_placement dt_cut_param(const dt_param_info *param, int axis, int n_parts,
                                 dt_cut_room *room);

/* --- PyTorch's styles as values ------------------------------------------------------------- */

/* Its vocabulary of tensor-parallel styles, with its layout arguments, for dt_style_register(). The
 * same can be had by name in a plan: "RowwiseParallel(output_layouts=shard(1))".
 *
 * In PyTorch, layouts say what a plain local tensor is taken for. Here every value knows how it
 * lies, so input_layouts is a check: left out, values may come as they like and are moved to where
 * the style needs them; given, a value that comes otherwise is refused by name. There is no
 * use_local_output: dt_tensor_local() is this rank's piece of any tensor.
 *
 * Not collective, no errors: arguments that make no sense are refused by dt_style_register(). */

/* What is left zero has PyTorch's default. */
typedef struct dt_parallel_args {
    dt_lay input_layouts;  /* how x has to come; DT_LAY_KEEP: anyhow */
    dt_lay output_layouts; /* how y is left; DT_LAY_KEEP: as below */
} dt_parallel_args;

/* ColwiseParallel, for linear layers (weight and bias cut along outputs) and embeddings (columns of
 * the table). x is made whole; y stays cut on its last axis unless output_layouts says more. As
 * dt_style_register(). */
DT_API dt_style dt_colwise_parallel(dt_parallel_args args);

/* RowwiseParallel, for linear layers (weight cut along inputs, bias whole and added once) and
 * embeddings (vocabulary; ids whole). x is cut on its last axis; y is summed to Replicate, or to
 * what output_layouts says: a Shard is one reduce-scatter, DT_LAY_PARTIAL leaves the terms. As
 * dt_style_register(). */
DT_API dt_style dt_rowwise_parallel(dt_parallel_args args);

/* SequenceParallel, for norms and whatever works on each token: parameters whole, x cut along
 * `axis` (1 of [B, T, D]; -8 to 7), y stays so. As dt_style_register(). */
DT_API dt_style dt_sequence_parallel(int axis);

/* Of each input or output of a layer or a point: `comes` is PyTorch's input_layouts or
 * output_layouts, `to` its desired ones; DT_LAY_KEEP for those that stay. */
typedef struct dt_prepare_args {
    dt_passes inputs;
    dt_passes outputs;
} dt_prepare_args;

/* PrepareModuleInput, PrepareModuleOutput, PrepareModuleInputOutput: parameters stay whole, values
 * are moved to the desired layouts. Those of the other side are not looked at in the first two. As
 * dt_style_register(). */
DT_API dt_style dt_prepare_input(dt_prepare_args args);
DT_API dt_style dt_prepare_output(dt_prepare_args args);
DT_API dt_style dt_prepare_input_output(dt_prepare_args args);

/* --- Plans ---------------------------------------------------------------------------------- */

/* Layers whose name matches `pattern` get `style`. A pattern is a name whose component "*" stands
 * for any one component ("model.layers.*.self_attn.q_proj"). An exact name beats a pattern, among
 * patterns the one with fewer stars, then the later one. */
typedef struct dt_plan_rule {
    const char *pattern;
    const char *style;
} dt_plan_rule;

/* A name that means another style in one model. */
typedef struct dt_style_mapping {
    const char *name;
    const dt_style *style; /* copied; its strings and `user` live as long as the layers */
} dt_style_mapping;

/* The rules for one mesh dim, and those for others. A layer without a rule has the style `others`.
 * Without that, on the dim that dt_layers_create() names it has its built-in style, unless the plan
 * is manual: then its parameters are whole on every rank ("replicate") and those of linear layers,
 * embeddings and experts are reported. On any other dim it has no style: parameters are whole there
 * and values pass as they lie. A tied weight is covered by a rule for either of its layers.
 * dt_plan_read() reads plans from files. */
struct dt_plan {
    const dt_plan_rule *rules;
    int n_rules;
    bool strict; /* a rule that matches no layer, or of a manual plan a parameter that no rule
                  * covers, is an error, not a warning in the log */
    const char *source; /* where the rules come from, for messages: a file; NULL: "the plan" */
    const char *dim;    /* mesh dim that they speak of; NULL: that of dt_layers_create() */
    const struct dt_plan *more; /* rules for another dim, or NULL */
    bool manual;         /* no built-in styles; of the plan for the dim of dt_layers_create() */
    const char *version; /* of Transformers, whose names the rules use: NULL, or "v4.56" */
    const dt_style_mapping *overrides; /* names that mean other styles in this model, in rules and
                                        * specs alike; of the first plan of a chain */
    int n_overrides;
    const char *others; /* style of layers that no rule for `dim` names; tied ones follow those that
                         * a rule names. NULL: as above */
};

/**
 * Writes what a plan came to, styles of one's own as any other.
 *
 * As text, a table: for each parameter its styles (two, "a | b", where a step of one token has
 * another), placement, this rank's shape and bytes (0 of a tied one, which its partner holds), and
 * layers without parameters that have a style other than "replicate". What repeats from block to
 * block is one line, with "*" for the block's number; `n` says how often.
 *
 * As JSON, an object: "layout", one object per parameter with "name", "style" and "step_style" by
 * mesh dim, "from" ("plan", for a tied weight by a rule for either of its layers; "manual", which
 * leaves the layer whole; or "built-in"), "placement" by mesh dim, "shape", "local_shape", "bytes",
 * "tied_to"; "points", the layers without parameters; "warnings", what of the plan was in vain.
 *
 *   dtype  of parameters that have no value yet
 *
 * Returns the length as snprintf() does.
 *
 * Collective  no.
 * Errors      none; text that has no room is cut
 */
DT_API int dt_layers_print(const dt_layers *layers, dt_dtype dtype, bool json, char *text,
                           size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
