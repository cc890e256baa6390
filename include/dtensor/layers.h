/* SPDX-License-Identifier: Apache-2.0
 *
 * A model is a flat list of named layers. What a layer is says its kind, one row of a table: its
 * parameters and their axes, what it computes, what it carries from pass to pass, what it costs.
 * The library's kinds are rows like a user's own. How a layer lies on a mesh says its style
 * (dtensor/parallel_styles.h); what it is and how it lies know nothing of each other. */
#ifndef DT_LAYERS_H
#define DT_LAYERS_H

#include <dtensor/kinds.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Specs ---------------------------------------------------------------------------------- */

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

/* What files have of a packed weight: compressed-tensors' words of 32 bits ("pack-quantized") or
 * bytes with a sign ("int-quantized"); the weight of a linear layer, which reading packs; floats of
 * 8 bits with scales, or with scales called weight_scale_inv; what GPTQ and AWQ write. And of plain
 * experts blocks of floats of 4 bits with scales that are powers of two, of which reading makes
 * numbers of the model's dtype. */
typedef enum dt_packed_form {
    DT_PACKED_WORDS,
    DT_PACKED_BYTES,
    DT_PACKED_PLAIN,
    DT_PACKED_E4M3,
    DT_PACKED_E4M3_INV,
    DT_PACKED_MXFP4,   /* of kinds of plain weights alone */
    DT_PACKED_GPTQ,    /* whose zero points are stored less one */
    DT_PACKED_GPTQ_V2, /* as they are */
    DT_PACKED_AWQ
} dt_packed_form;

/* How a weight of few bits is made of its parts. */
typedef struct dt_packing {
    int bits;           /* of a code: 4 or 8 */
    bool floats;        /* codes are floats of 8 bits, e4m3, and have no zero points */
    bool wide;          /* scales are f32 in every model */
    int64_t group;      /* inputs that have a scale in common: a power of two from 16 on */
    int64_t file_group; /* the same of files, where it is more; 0: as here */
    int64_t file_rows;  /* outputs that have one in files; 0: 1 */
    dt_packed_form form;
} dt_packing;

/* One layer as a model describes it. */
struct dt_layer_spec {
    const char *name; /* the checkpoint's own: "model.layers.3.self_attn.q_proj"; copied */
    const dt_layer_kind *kind;
    dt_axis axis[DT_LAYER_MAX_AXES]; /* of the kind's letters; of a weight outputs, then inputs */
    const char *with;                /* its optional parameters: "bias"; NULL: none */
    float eps;                       /* norms only */
    const void *own;                 /* the kind's own; lives as long as the layers */
    dt_head_counts heads;            /* if an axis counts heads */
    const char *style;               /* default style; NULL is "replicate" */
    const char *tied_to; /* earlier layer whose first parameter it shares, of two axes; or NULL */
    dt_axis_blocks blocks[2]; /* of axis[0] and axis[1] */
    bool reversed; /* of a weight oi: files hold its inputs before its outputs, memory does not */
    const char *parts[2]; /* experts: their blocks' names in files that have a tensor per expert,
                           * "gate_proj" and "up_proj"; live as long as the layers; or NULL */
    int64_t step[2];      /* of axis[0] and axis[1], where they count rows, and of their blocks: cut
                           * in multiples of as many; 0: 1 */
    dt_packing packing;   /* kinds of packed weights; of experts the form of their files */
    int64_t padding;      /* embeddings: one more than the id whose row takes no gradient from where
                           * it is looked up, dt_embedding_padded(); 0: none */
    int stage; /* of a pipeline that the layer belongs to. Layers of two stages that share a weight
                    * have a copy each, wherever they lie */
    dt_mesh *mesh; /* that the stage lies on: dt_mesh_stage() of the list's. Ranks outside know the
                    * layer and hold nothing of it. NULL: the list's */
};

/* A parameter as a style sees it: names and global shape, never bytes. */
typedef struct dt_param_info {
    const char *layer; /* "model.layers.3.self_attn.q_proj" */
    const char *name;  /* "weight" or "bias" */
    const dt_layer_kind *kind;
    const char *letters; /* of its axes: "oi" */
    int n_axes;
    dt_axis axis[DT_PARAM_MAX_AXES]; /* as the tensor has them: [out, in], [experts, out, in] */
    dt_head_counts heads;
    dt_axis_blocks blocks[DT_PARAM_MAX_AXES]; /* of each axis; n 0: one piece */
    bool reversed;                            /* as in dt_layer_spec */
    bool frozen, wide, bare, adapter;         /* as in dt_kind_param */
    const char *parts[2];                     /* as in dt_layer_spec */
    int64_t step[DT_PARAM_MAX_AXES];          /* of each axis, as in dt_layer_spec */
    dt_packed packed;                         /* its last axis counts bytes of codes, or groups */
    dt_packing packing;                       /* as in dt_layer_spec */
} dt_param_info;

/** One more than the number of the last parameter that a layer of that spec has, and what parameter
 * `param` is: numbers are rows of the kind's table; n_axes is 0 of one that it does not have. A
 * tied layer has its partner's. Not collective. Errors: none. */
DT_API int dt_spec_n_params(const dt_layer_spec *spec);
DT_API dt_param_info dt_spec_param(const dt_layer_spec *spec, int param);

/* --- The layers of a model ------------------------------------------------------------------ */

/**
 * Builds a model's layers and lays them over the mesh: resolves plan and styles and decides the
 * placement of every parameter. Reads no weights. Styles on several mesh dims prepare a layer's
 * input from the first dim to the last and its output from the last to the first.
 *
 *   dim   mesh dim that the specs' styles speak of ("tp"). One that the mesh does not have is an
 *         error, unless it has one rank or a "?" follows ("tp?"): styles are looked up and
 *         checked then, and every rank holds and computes all
 *   plan  overrides the specs' default styles; may be NULL
 *
 * Collective  no communication; every rank of the mesh passes the same.
 * Ownership   *out is released with dt_layers_release().
 * Errors      name the plan's source, rule, parameter, its sizes and the mesh dim:
 *             DT_ERR_ARG     a dim that the mesh does not have, a repeated or too long name, an
 *                            extent below 1, an unknown style, two kinds of one name; of a strict
 *                            plan a rule without a match, a parameter that a manual one does not
 *                            cover, or a dim that the mesh does not have
 *             DT_ERR_LAYOUT  a style that does not fit the kind of layer or refuses it, tied
 *                            weights that are cut differently
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_layers_create(dt_mesh *mesh, const char *dim,
                                              const dt_layer_spec *specs, int n_specs,
                                              const dt_plan *plan, dt_layers **out);
DT_API void dt_layers_release(dt_layers **layers); /* and the parameters; accepts NULL */

/* Queries. Not collective, no errors. */
DT_API dt_mesh *dt_layers_mesh(const dt_layers *layers); /* borrowed */
DT_API int dt_layers_count(const dt_layers *layers);
DT_API dt_layer *dt_layers_at(dt_layers *layers, int i);              /* NULL out of range */
DT_API dt_layer *dt_layers_find(dt_layers *layers, const char *name); /* NULL if unknown */

/* What the plan said in vain or left out, where it is not strict: a rule that matches no layer, a
 * mesh dim that is not there, parameters that a manual plan does not cover; NULL behind the last.
 * The log has the same lines. Not collective. Errors: none. */
DT_API const char *dt_layers_remark(const dt_layers *layers, int i);

/* Queries of a layer; numbers of parameters as in dt_spec_param(). Not collective, no errors. */
DT_API const char *dt_layer_name(const dt_layer *layer);
DT_API const dt_layer_spec *dt_layer_spec_of(const dt_layer *layer);
DT_API const dt_layer_kind *dt_layer_kind_of(const dt_layer *layer);
DT_API const dt_style *dt_layer_style(const dt_layer *layer); /* on the dim of the list */
DT_API const dt_style *dt_layer_style_on(const dt_layer *layer, int dim);      /* NULL: none */
DT_API const dt_style *dt_layer_step_style_on(const dt_layer *layer, int dim); /* of one token */
DT_API int dt_layer_rule_on(const dt_layer *layer, int dim); /* the plan's that said so; or -1 */
DT_API int dt_layer_n_params(const dt_layer *layer);
DT_API bool dt_layer_has_param(const dt_layer *layer, int param);
DT_API bool dt_layer_owns_param(const dt_layer *layer, int param); /* false: its partner does */
DT_API bool dt_layer_holds_param(const dt_layer *layer,
                                 int param); /* or a copy of its partner's, in
                                                                     * another stage */
DT_API dt_param_info dt_layer_param_info(const dt_layer *layer, int param);
DT_API const dt_layout *dt_layer_param_layout(const dt_layer *layer, int param);
DT_API dt_tensor *dt_layer_param(const dt_layer *layer, int param); /* NULL before it is set */
DT_API dt_mesh *dt_layer_mesh(const dt_layer *layer); /* borrowed; the list's, or the stage's */
DT_API const dt_layer *dt_layer_tied_to(const dt_layer *layer);     /* NULL if it is not */
DT_API int64_t dt_layer_extent(const dt_layer *layer, char letter); /* 0: no such letter */
DT_API double dt_layer_flops(const dt_layer *layer);                /* for each row of x */

/**
 * Gives a layer one of its parameters. It must lie on the list's mesh and have the global shape of
 * the spec, the layout that was decided, and a float dtype, the same for all parameters of a layer
 * but those that are `wide`.
 *
 * Collective  no.
 * Ownership   takes a reference of its own. Layers tied to this one see it at once.
 * Errors      DT_ERR_ARG     NULL, no such parameter, a weight that belongs to the tied partner
 *             DT_ERR_SHAPE   another shape or dtype
 *             DT_ERR_LAYOUT  another mesh or layout
 */
DT_API DT_MUST_USE dt_status dt_layer_set_param(dt_layer *layer, int param, dt_tensor *value);

/**
 * Says where parameters lie that are made from now on, of layers with the style "fully_shard": not
 * in memory of the rank's device but elsewhere, from where each use fetches them. So a model trains
 * that is larger than that memory. Bits are those without.
 *
 *   where  "host": in memory of the host, where tensors lie on a GPU; on the CPU that is where they
 *          are. Else a folder, of ranks on the CPU: in a file without a name that goes with the
 *          process. Of it no more is in memory than what is used, and what comes next; of layers
 *          that are computed in tiles, what was used since the last step
 *
 * Values of such tensors are written by the library's functions (dt_tensor_write(), dt_fill()), not
 * through their address: what a file has is compared with what was written.
 *
 * Collective  no; every rank says the same, folders may differ. Before parameters are set.
 * Errors      DT_ERR_ARG          NULL, an empty text, no layer has the style
 *             DT_ERR_IO           no file can be made in the folder; when parameters are made: the
 *                                 disk has no room; when they are used: it has failed
 *             DT_ERR_UNSUPPORTED  a folder, where tensors lie on a GPU
 */
DT_API DT_MUST_USE dt_status dt_layers_offload(dt_layers *layers, const char *where);

/* --- Running layers ------------------------------------------------------------------------- */

/**
 * Runs a layer on a tape: the style prepares the input, the kind computes (x W^T + b, a look-up, a
 * norm; a point passes x through), the style prepares the output. A product whose inputs are cut is
 * reduced in f32, then what is `added` joins it once, then it is rounded to the model's dtype. A
 * style that leaves it Partial leaves f32 terms in every model, one of them with the bias; the
 * layer or point whose style reduces them rounds the sum.
 *
 *   x  as the kind's `values` say: linear [..., in]; embedding ids [...] i32; a point anything
 *
 * Collective  as the style says, over the mesh.
 * Ownership   borrowed from the tape; NULL after an error.
 * Errors      latched on the tape, with the layer's name before the message
 */
DT_API dt_tensor *dt_layer_forward(dt_tape *tape, const dt_layer *layer, dt_tensor *x);

/**
 * For forward functions: a parameter as the styles' prepare_param make it for the computation (a
 * sharded one is gathered, where a style says so); the parameter itself without such styles.
 *
 * Collective  as the styles say.
 * Ownership   borrowed from the tape or the layer; NULL after an error, or if the layer has no such
 *             optional parameter.
 * Errors      latched: DT_ERR_ARG for one that has no value
 */
DT_API dt_tensor *dt_layer_use(dt_tape *tape, const dt_layer *layer, int param);

/** For forward functions: y plus the parameter that is `added`, if the layer has one and y is no
 * sum over ranks; otherwise y. As dt_layer_use(). */
DT_API dt_tensor *dt_layer_add(dt_tape *tape, const dt_layer *layer, dt_tensor *y);

/* What the layer's spec says of a norm, and `own`. Not collective. Errors: none. */
DT_API float dt_layer_eps(const dt_layer *layer);
DT_API const void *dt_layer_own(const dt_layer *layer);

/* What a layer computes, between the two halves of its style: a function of the caller's in the
 * place of its kind's. It leaves out the parameter that is `added`, and gives the layer's shape;
 * NULL after an error. For a point it computes what stands between enter and leave. */
typedef dt_tensor *(*dt_layer_fn)(void *arg, dt_tape *tape, const dt_layer *layer, dt_tensor *x);

/**
 * Lets a layer be computed by `forward`, a point by dt_layer_block(); NULL: as before. Made of
 * operators on the tape, the caller's own among them, it runs wherever the layer does, also dry.
 *
 *   arg  handed to `forward`; lives as long as the layer
 *
 * Collective  no; every rank sets the same.
 * Errors      DT_ERR_ARG  layer is NULL, or of a kind without a forward of its own
 */
DT_API DT_MUST_USE dt_status dt_layer_set_forward(dt_layer *layer, dt_layer_fn forward, void *arg);

/**
 * Runs a block of a model (attention, a feed-forward) framed by its point: the style of `point`
 * prepares the input, `body` computes, or what dt_layer_set_forward() put in its place, the style
 * prepares the output.
 *
 *   context  handed to `body`; a function in its place gets it by dt_layer_context()
 *
 * Collective, Ownership, Errors as dt_layer_forward().
 */
typedef dt_tensor *(*dt_block_fn)(const void *context, dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_layer_block(dt_tape *tape, const dt_layer *point, dt_tensor *x,
                                 dt_block_fn body, const void *context);
DT_API const void *dt_layer_context(const dt_layer *point); /* while it runs. As dt_layer_eps(). */

/* The layer whose name follows the point's: "q_proj" of "layers.0.attn" is "layers.0.attn.q_proj".
 * Not collective. Errors: none; NULL if there is none. */
DT_API const dt_layer *dt_layer_inside(const dt_layer *point, const char *name);

/* The two halves of a style by themselves. As dt_layer_forward(). */
DT_API dt_tensor *dt_layer_enter(dt_tape *tape, const dt_layer *layer, dt_tensor *x);
DT_API dt_tensor *dt_layer_leave(dt_tape *tape, const dt_layer *layer, dt_tensor *y);

/* The same for several values at once, each of which is replaced; all are NULL after an error. As
 * dt_layer_forward(); DT_ERR_ARG if the style speaks of another number of values. */
DT_API void dt_layer_enter_all(dt_tape *tape, const dt_layer *layer, int n, dt_tensor **x);
DT_API void dt_layer_leave_all(dt_tape *tape, const dt_layer *layer, int n, dt_tensor **y);

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

/* Layers of experts with limits and biases, and what dt_clamp has of them. */
typedef struct dt_clamped_experts {
    const dt_layer *gate_up, *down;           /* experts [experts, 2 f, in], gate and up by
                                               * turns, and [experts, in, f] */
    const dt_layer *gate_up_bias, *down_bias; /* dt_experts_bias_kind */
    double limit, alpha;
} dt_clamped_experts;

/** dt_layer_experts() that computes dt_experts_clamped(). As it; DT_ERR_UNSUPPORTED for packed
 * weights. */
DT_API dt_tensor *dt_layer_experts_clamped(dt_tape *tape, const dt_layer *point,
                                           const dt_clamped_experts *experts, dt_tensor *x,
                                           dt_tensor *ids, dt_tensor *weights);

/* --- What is carried from pass to pass ------------------------------------------------------ */

/**
 * What the layers of a list carry for one batch of sequences: nothing yet. It is read and written
 * by the passes between two calls of dt_layers_carry(), which hands back the one of before; without
 * one every pass begins anew. What a pass leaves counts once dt_carry_commit() has been called.
 *
 * Collective  no.
 * Ownership   *out is released with dt_carry_release(), before the layers.
 * Errors      DT_ERR_ARG  NULL
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_carry_create(dt_layers *layers, dt_carry **out);
DT_API void dt_carry_release(dt_carry **carry);

/* As dt_carry_create() says; NULL: none. Not collective. Errors: none here; to the carry of another
 * list layers say DT_ERR_ARG when a pass asks for their states. */
DT_API dt_carry *dt_layers_carry(dt_layers *layers, dt_carry *carry);
DT_API void dt_carry_commit(dt_carry *carry);
DT_API void dt_carry_clear(dt_carry *carry);                 /* all sequences begin anew */
DT_API bool dt_layers_carry_states(const dt_layers *layers); /* has one of them any? */

/**
 * Sequence i becomes what from[i] was, i < n: for beams, and for batches that change. A batch that
 * is cut over ranks stays so; sequences that are repeated side by side stay on their rank.
 *
 * Collective  where the batch is cut and a rank lacks what its sequences become; otherwise no
 *             communication. Every rank passes the same.
 * Errors      DT_ERR_ARG     NULL, a sequence that there is none of
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_carry_select(dt_carry *carry, int n, const int64_t *from);

/**
 * For forward functions: state number `state` of the layer, [batch, ...] with the axes that its
 * kind names, as the last pass left it; zeros of x's dtype where there was none. `x` is the layer's
 * input: its axis 0 are the sequences, which lie in the state as they do in x.
 *
 * Collective  where the last pass left the sequences cut otherwise; otherwise no communication.
 * Ownership   borrowed; NULL after an error.
 * Errors      latched: DT_ERR_ARG   no such state, another number of sequences than before
 *                      DT_ERR_MEMORY
 */
DT_API dt_tensor *dt_layer_state(dt_tape *tape, const dt_layer *layer, int state, dt_tensor *x);

/** What the next pass will find in its place, of the same shape. As dt_layer_state(). */
DT_API void dt_layer_set_state(dt_tape *tape, const dt_layer *layer, int state, dt_tensor *value);

#ifdef __cplusplus
}
#endif
#endif
