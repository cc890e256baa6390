/* SPDX-License-Identifier: Apache-2.0
 *
 * Named recipes for laying layers over a mesh dim. A model is a flat list of named layers; a style
 * says how a layer's parameters are cut, what it asks of its input and what it leaves in its
 * output; a plan maps layer names to styles. Styles are data for the built-in ones and functions
 * for a user's own; both are found by name in the runtime's registry. */
#ifndef DT_PARALLEL_STYLES_H
#define DT_PARALLEL_STYLES_H

#include <dtensor/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Layers --------------------------------------------------------------------------------- */

typedef enum dt_layer_kind {
    DT_LAYER_POINT,      /* no parameters: a place where a value may be laid out anew */
    DT_LAYER_LINEAR,     /* weight [out, in], bias [out] if any */
    DT_LAYER_EMBEDDING,  /* weight [rows, columns] */
    DT_LAYER_RMS_NORM,   /* weight [columns] */
    DT_LAYER_LAYER_NORM, /* weight [columns], bias [columns] */
    DT_LAYER_EXPERTS,    /* weight [experts, out, in]: gate | up, or down, of all experts */
    DT_N_LAYER_KINDS
} dt_layer_kind;

/* What may not be split when a parameter's axis is cut. Attention heads follow the head rule of
 * dt_cut_axis(). */
typedef enum dt_axis_unit { DT_UNIT_ROW, DT_UNIT_HEADS, DT_UNIT_KV_HEADS } dt_axis_unit;

typedef struct dt_axis {
    int64_t extent;
    dt_axis_unit unit;
} dt_axis;

/* The blocks that an axis is made of, one after the other: gate | up, q | k | v. Each is cut on its
 * own, by its own unit: a rank holds its part of every block. Their extents add up to the axis'. n
 * 0: the axis is one piece. Styles whose names begin with "packed_" cut such axes; a style that
 * would cut one as a single piece and leave it so is refused, and the other way round. */
enum { DT_AXIS_MAX_BLOCKS = 8 };
typedef struct dt_axis_blocks {
    int n;
    dt_axis block[DT_AXIS_MAX_BLOCKS];
} dt_axis_blocks;

typedef struct dt_head_counts {
    int64_t n_heads;
    int64_t n_kv_heads;
    int64_t head_dim;
} dt_head_counts;

/* One layer as a model describes it. */
typedef struct dt_layer_spec {
    const char *name; /* the checkpoint's own: "model.layers.3.self_attn.q_proj"; copied */
    dt_layer_kind kind;
    dt_axis axis[2];      /* of the weight; a norm uses axis[0] */
    bool bias;            /* linear only */
    float eps;            /* norms only */
    bool one_plus;        /* RMS norms only: multiplies by 1 + weight, dt_rms_norm_1p() */
    dt_head_counts heads; /* if an axis counts heads */
    const char *style;    /* default style; NULL is "replicate" */
    const char *tied_to;  /* earlier linear layer or embedding whose weight it shares, or NULL */
    dt_axis_blocks blocks[2]; /* linear and experts: of axis[0] and axis[1] */
    bool reversed; /* linear, experts in one tensor: files hold it [in, out]; in memory [out, in] */
    int64_t n_experts;    /* experts only; axis[0] and axis[1] are those of one expert's weight */
    const char *parts[2]; /* experts: what their blocks are called in files that have a tensor per
                           * expert, "gate_proj" and "up_proj"; live as long as the layers; or NULL
                           */
} dt_layer_spec;

enum { DT_LAYER_MAX_PARAMS = 2, DT_PARAM_WEIGHT = 0, DT_PARAM_BIAS = 1, DT_PARAM_MAX_AXES = 3 };

typedef struct dt_layer dt_layer;   /* borrowed from its list */
typedef struct dt_layers dt_layers; /* the list of a model */

/* A parameter as a style sees it: names and global shape, never bytes. */
typedef struct dt_param_info {
    const char *layer; /* "model.layers.3.self_attn.q_proj" */
    const char *name;  /* "weight" or "bias" */
    dt_layer_kind kind;
    int n_axes;
    dt_axis axis[DT_PARAM_MAX_AXES]; /* as the tensor has them: [out, in], [experts, out, in] */
    dt_head_counts heads;
    dt_axis_blocks blocks[DT_PARAM_MAX_AXES]; /* of each axis; n 0: one piece */
    bool reversed;                            /* as in dt_layer_spec */
    const char *parts[2];                     /* as in dt_layer_spec */
} dt_param_info;

/* --- Styles --------------------------------------------------------------------------------- */

/* How a built-in style cuts a weight. COLUMNS are the outputs of a linear layer (rows of its [out,
 * in] matrix, and its bias) and the columns of an embedding; ROWS are the inputs of a linear layer
 * (its bias stays whole) and the vocabulary of an embedding. PACKED: the same, block by block,
 * of an axis that is made of blocks. */
typedef enum dt_cut {
    DT_CUT_NONE,
    DT_CUT_COLUMNS,
    DT_CUT_ROWS,
    DT_CUT_PACKED_COLUMNS,
    DT_CUT_PACKED_ROWS,
    DT_CUT_EXPERTS /* whole experts */
} dt_cut;

/* What a style does with a value that passes through it, on its mesh dim: how the value has to lie
 * from then on. A value that lies so already is not touched, whatever the boundaries of its cut. */
typedef enum dt_pass {
    DT_PASS_KEEP,       /* leave it as it is */
    DT_PASS_REPLICATE,  /* make it whole: gathers what is cut, reduces what is Partial */
    DT_PASS_SHARD_LAST, /* cut the last axis, as the weight's inputs are cut; free from Replicate */
    DT_PASS_SEQUENCE,   /* cut the tokens: axis 1 of [B, T, ...], axis 0 of [T, D] */
    DT_PASS_PARTIAL,    /* leave the terms of a sum as they are; a value without terms is refused */
    DT_PASS_AXIS_FIRST = 256, /* DT_PASS_SHARD(-8), and so on to ... */
    DT_PASS_AXIS_LAST = 271   /* ... DT_PASS_SHARD(7) */
} dt_pass;

/* Cut axis `a`, from -8 to 7, in chunks; a negative one counts from the end. */
#define DT_PASS_SHARD(a) ((dt_pass)(DT_PASS_AXIS_FIRST + 8 + (a)))

/* One for each of several values; n 0: nothing is said of them. */
enum { DT_MAX_PASSES = 8 };
typedef struct dt_passes {
    int n;
    dt_pass of[DT_MAX_PASSES];
} dt_passes;

/* Room for the numbers that a placement points to. */
typedef struct dt_cut_room {
    int64_t blocks[DT_AXIS_MAX_BLOCKS]; /* of packed cuts, with their units */
    int64_t units[DT_AXIS_MAX_BLOCKS];
    int64_t
        *offsets; /* of uneven cuts: n_parts + 1, for partition_param; dt_cut_param() has none */
} dt_cut_room;

typedef struct dt_style dt_style;

/* One recipe. A NULL function means: what the data fields say. A user's style fills what it needs:
 *
 *   partition_param  the placement of one parameter on a mesh dim of n_parts ranks; called before
 *                    any byte is read and for any mesh size, touches no bytes; what it points to
 *                    (blocks, offsets) lies in `room`, which outlives the call, or lives as `user`
 *   prepare_input    lays out the layer's input on mesh dim `dim`, returns a tensor of the tape
 *   prepare_output   the same for its output
 *   validate         refuses a layer it does not fit, with a reason (dt_fail() in the record)
 *
 * A value of one token cannot be cut over ranks with profit. Where `twin` names another style, a
 * layer runs under that one when what it is given has one token; the twin lays parameters as the
 * style does. */
struct dt_style {
    size_t size; /* sizeof(dt_style) */
    const char *name;
    const char *summary; /* one line: what is cut, which collective */
    dt_cut cut;
    dt_pass input;
    dt_pass output;
    dt_status (*partition_param)(const dt_style *style, const dt_param_info *param, int n_parts,
                                 dt_cut_room *room, dt_placement *out);
    dt_tensor *(*prepare_input)(const dt_style *style, dt_tape *tape, const dt_layer *layer,
                                int dim, dt_tensor *x);
    dt_tensor *(*prepare_output)(const dt_style *style, dt_tape *tape, const dt_layer *layer,
                                 int dim, dt_tensor *y);
    dt_status (*validate)(const dt_style *style, const dt_layer *layer, int n_parts);
    const void *user; /* the style's own */
    uint32_t kinds;   /* layers it fits: DT_KIND_BIT(DT_LAYER_LINEAR) | ...; 0: any */
    const char *twin; /* name of the style for steps of one token; NULL: this one */
    /* Where a layer has several inputs or outputs `input` and `output` speak of the first, the
     * others stay as they lie; these speak of all of them, and stand in the place of those. */
    dt_passes inputs;
    dt_passes outputs;
    /* How inputs have to arrive, and outputs to be before they are laid out. What lies otherwise
     * is refused by name, not moved: for plans that mean to know where values come from. */
    dt_passes comes;
    dt_passes gives;
};

#define DT_KIND_BIT(kind) ((uint32_t)1 << (kind))

/**
 * Adds a style under `name`. The struct is copied; its strings and `user` must live as long as the
 * runtime.
 *
 * Collective  no communication; every rank registers the same styles.
 * Errors      DT_ERR_ARG  NULL, an empty name, a name that is taken, a size that is no dt_style, an
 *                         input or output that is no dt_pass, a cut that is no dt_cut, different
 *                         numbers of inputs
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_style_register(dt_runtime *rt, const char *name,
                                               const dt_style *style);

/**
 * The style of that name or alias. A name may carry arguments, which make a style of its own:
 *
 *   "rowwise(output=shard(1))"                     of the first or only value
 *   "local(input=[shard(1), keep], comes=[R, R])"  of two
 *
 * input, output, comes and gives are fields of dt_style; PyTorch's input_layouts,
 * desired_input_layouts, output_layouts, desired_output_layouts and sequence_dim are known too. A
 * layout is keep (or none), replicate (R), shard(a) (S(a)), sequence, partial (P).
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

/**
 * The style that does for a layer of that kind what `style` does, with the tokens cut over the mesh
 * dim between blocks (sequence parallelism): "rowwise_reduce_scatter" for "rowwise", and so on, as
 * docs/plans.md lists them. `style` itself where tokens do not matter or no such style is known. So
 * a built-in plan has its sequence-parallel variant.
 *
 * Not collective. Errors: none. `style` may be NULL, which is "replicate".
 */
DT_API const char *dt_sequence_style(dt_layer_kind kind, const char *style);

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

/* --- Plans ---------------------------------------------------------------------------------- */

/* Layers whose name matches `pattern` get `style`. A pattern is a name whose component "*" stands
 * for any one component ("model.layers.*.self_attn.q_proj"). An exact name beats a pattern, among
 * patterns the one with fewer stars, then the later one. */
typedef struct dt_plan_rule {
    const char *pattern;
    const char *style;
} dt_plan_rule;

/* The rules for one mesh dim, and those for others. On the dim that dt_layers_create() names a
 * layer without a rule has its built-in style, unless the plan is manual: then its parameters are
 * whole on every rank ("replicate") and those of linear layers, embeddings and experts are
 * reported. On any other dim it has no style: parameters are whole there and values pass as they
 * lie. A tied weight is covered by a rule for either of its layers. dt_plan_read() reads plans from
 * files. */
typedef struct dt_plan {
    const dt_plan_rule *rules;
    int n_rules;
    bool strict; /* a rule that matches no layer, or of a manual plan a parameter that no rule
                  * covers, is an error, not a warning in the log */
    const char *source; /* where the rules come from, for messages: a file; NULL: "the plan" */
    const char *dim;    /* mesh dim that they speak of; NULL: that of dt_layers_create() */
    const struct dt_plan *more; /* rules for another dim, or NULL */
    bool manual;         /* no built-in styles; of the plan for the dim of dt_layers_create() */
    const char *version; /* of Transformers, whose names the rules use: NULL, or "v4.56" */
} dt_plan;

/**
 * Builds a model's layers and lays them over the mesh: resolves plan and styles and decides the
 * placement of every parameter. Reads no weights. Styles on several mesh dims prepare a layer's
 * input from the first dim to the last and its output from the last to the first.
 *
 *   dim   mesh dim that the specs' styles speak of ("tp"); if the mesh has no such dim they do
 *         nothing, and every rank holds and computes all
 *   plan  overrides the specs' default styles; may be NULL
 *
 * Collective  no communication; every rank of the mesh passes the same.
 * Ownership   *out is released with dt_layers_release().
 * Errors      name the plan's source, rule, parameter, its sizes and the mesh dim:
 *             DT_ERR_ARG     a repeated name, an unknown style; of a strict plan a rule without a
 *                            match, a parameter that a manual one does not cover, or a dim that
 *                            the mesh does not have
 *             DT_ERR_LAYOUT  a style that does not fit the kind of layer or refuses it, tied
 *                            weights that are cut differently
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_layers_create(dt_mesh *mesh, const char *dim,
                                              const dt_layer_spec *specs, int n_specs,
                                              const dt_plan *plan, dt_layers **out);
DT_API void dt_layers_release(dt_layers **layers); /* and the parameters; accepts NULL */

/* Queries. Not collective, no errors. */
DT_API int dt_layers_count(const dt_layers *layers);
DT_API dt_mesh *dt_layers_mesh(const dt_layers *layers);              /* borrowed */
DT_API dt_layer *dt_layers_at(dt_layers *layers, int i);              /* NULL out of range */
DT_API dt_layer *dt_layers_find(dt_layers *layers, const char *name); /* NULL if unknown */

/* What the plan said in vain or left out, where it is not strict: a rule that matches no layer, a
 * mesh dim that is not there, parameters that a manual plan does not cover; NULL behind the last.
 * The log has the same lines. Not collective. Errors: none. */
DT_API const char *dt_layers_remark(const dt_layers *layers, int i);

/* Queries of a layer. Not collective, no errors. */
DT_API const char *dt_layer_name(const dt_layer *layer);
DT_API dt_layer_kind dt_layer_kind_of(const dt_layer *layer);
DT_API const dt_style *dt_layer_style(const dt_layer *layer); /* on the dim of the list */
DT_API const dt_style *dt_layer_style_on(const dt_layer *layer, int dim);      /* NULL: none */
DT_API const dt_style *dt_layer_step_style_on(const dt_layer *layer, int dim); /* of one token */
DT_API int dt_layer_n_params(const dt_layer *layer); /* 0, 1 or 2; a tied layer has its partner's */
DT_API dt_param_info dt_layer_param_info(const dt_layer *layer, int param);
DT_API const dt_layout *dt_layer_param_layout(const dt_layer *layer, int param);
DT_API dt_tensor *dt_layer_param(const dt_layer *layer, int param); /* NULL before it is set */
DT_API const dt_layer *dt_layer_tied_to(const dt_layer *layer);     /* NULL if it is not */

/**
 * Gives a layer one of its parameters. It must lie on the list's mesh and have the global shape of
 * the spec, the layout that was decided, and a float dtype, the same for all parameters of a layer.
 *
 * Collective  no.
 * Ownership   takes a reference of its own. Layers tied to this one see it at once.
 * Errors      DT_ERR_ARG     NULL, no such parameter, a weight that belongs to the tied partner
 *             DT_ERR_SHAPE   another shape or dtype
 *             DT_ERR_LAYOUT  another mesh or layout
 */
DT_API DT_MUST_USE dt_status dt_layer_set_param(dt_layer *layer, int param, dt_tensor *value);

/**
 * Runs a layer on a tape: the style prepares the input, the layer computes (x W^T + b, a look-up, a
 * norm; a point passes x through), the style prepares the output. A product whose inputs are cut is
 * reduced in f32, then the bias is added once, then it is rounded to the model's dtype. A style
 * that leaves it Partial leaves f32 terms in every model, one of them with the bias; the layer or
 * point whose style reduces them rounds the sum.
 *
 *   x  linear [..., in]; embedding ids [...] i32; norm [..., columns]; point: anything
 *
 * Collective  as the style says, over the mesh.
 * Ownership   borrowed from the tape; NULL after an error.
 * Errors      latched on the tape, with the layer's name before the message
 */
DT_API dt_tensor *dt_layer_forward(dt_tape *tape, const dt_layer *layer, dt_tensor *x);

/* What a layer computes, between the two halves of its style: a function of the caller's in the
 * place of the library's operator. `x` is what prepare_input made of the layer's input; parameters
 * are dt_layer_param(layer, ...). A linear layer's function leaves out the bias: the layer adds it,
 * after the sum where inputs are cut. Made of operators on the tape, the caller's own among them,
 * it runs wherever the layer does, also dry. Gives the layer's shape; NULL after an error. */
typedef dt_tensor *(*dt_layer_fn)(void *arg, dt_tape *tape, const dt_layer *layer, dt_tensor *x);

/**
 * Lets dt_layer_forward() compute a layer by `forward`; NULL: by the library's operator again.
 *
 *   arg  handed to `forward`; lives as long as the layer
 *
 * Collective  no; every rank sets the same.
 * Errors      DT_ERR_ARG  layer is NULL, a point, which computes nothing, or half of experts
 */
DT_API DT_MUST_USE dt_status dt_layer_set_forward(dt_layer *layer, dt_layer_fn forward, void *arg);
DT_API float dt_layer_eps(const dt_layer *layer); /* of a norm. Not collective. Errors: none. */

/**
 * Runs a mixture of experts: the style of `point` prepares the input, every rank computes what it
 * holds of the experts for all tokens, the style of `point` prepares the output ("moe_tp_experts":
 * one all-reduce of f32 terms, whether whole experts are cut or parts of each).
 *
 *   gate_up  experts [experts, 2 f, in], its outputs the blocks gate | up
 *   down     experts [experts, in, f]
 *   x        [..., in]
 *   ids, weights  [..., k]: dt_route_ids(), dt_route_weights(); whole where x is made whole
 *
 * Collective  as the style of `point` says.
 * Ownership   borrowed from the tape; NULL after an error.
 * Errors      latched on the tape: those of dt_experts(), as styles that do not fit together
 */
DT_API dt_tensor *dt_layer_experts(dt_tape *tape, const dt_layer *point, const dt_layer *gate_up,
                                   const dt_layer *down, dt_tensor *x, dt_tensor *ids,
                                   dt_tensor *weights);

/* The two halves of a style for points that frame a block (`self_attn`, `mlp`). As
 * dt_layer_forward(). */
DT_API dt_tensor *dt_layer_enter(dt_tape *tape, const dt_layer *layer, dt_tensor *x);
DT_API dt_tensor *dt_layer_leave(dt_tape *tape, const dt_layer *layer, dt_tensor *y);

/* The same for several values at once, each of which is replaced; all are NULL after an error. A
 * style's functions get the first. As dt_layer_forward(); DT_ERR_ARG if the style speaks of another
 * number of values. */
DT_API void dt_layer_enter_all(dt_tape *tape, const dt_layer *layer, int n, dt_tensor **x);
DT_API void dt_layer_leave_all(dt_tape *tape, const dt_layer *layer, int n, dt_tensor **y);

#ifdef __cplusplus
}
#endif
#endif
