/* SPDX-License-Identifier: Apache-2.0
 *
 * The structs behind layers, for this room only. */
#ifndef DTI_LAYERS_INTERNAL_H
#define DTI_LAYERS_INTERNAL_H

#include <dtensor/parallel_styles.h>

#include "base/error.h"
#include "parallel_styles/kind.h"
#include "parallel_styles/layer_rules.h"
#include "parallel_styles/pattern_index.h"
#include "placements/layout.h"

/* Styles and rules of a layer are found by slot: one per mesh dim, and one more for the dim that
 * the list speaks of if the mesh does not have it. What is there is looked up and checked, but lays
 * nothing out. */
enum { DTI_NO_DIM = DT_MAX_DIMS, DTI_N_STYLE_SLOTS = DT_MAX_DIMS + 1 };

/* Where parameter and state names of a spec's kind are decided once, for the way of a token. */
struct dt_layer {
    char *name, *with;
    dt_layer_spec spec; /* as it was given; texts are ours, style and tied_to are resolved here */
    dt_mesh *mesh;      /* that it lies on: the list's, or the stage's that its spec names */
    uint32_t params;    /* bit p: it has parameter p */
    int n_params;       /* 1 + the last */
    int added;          /* the parameter that joins a sum once; -1: none */
    int rows_param;     /* the first parameter with an axis of the kind's rows, ... */
    int rows_axis;      /* ... and which; -1: none */
    int first_state;    /* of its states in a dt_carry */
    int n_states;
    bool ids;                                 /* its input are ids */
    bool own_kind;                            /* of a user */
    bool prepares;                            /* a style has a prepare_param */
    bool rows_cut;                            /* rows_axis is cut as the parameter is stored */
    const dt_style *style[DTI_N_STYLE_SLOTS]; /* NULL: none */
    const dt_style *step[DTI_N_STYLE_SLOTS];  /* the same for a value of one token */
    int rule[DTI_N_STYLE_SLOTS]; /* number of the plan's rule that said so; -1: none did */
    struct dt_layers *list;
    struct dt_layer *tied_to;
    int tiles[2]; /* of outputs, inputs */
    int unit;     /* of layers that are used together, ascending */
    const dt_layout *layout[DT_LAYER_MAX_PARAMS];
    const dt_layout *whole[DT_LAYER_MAX_PARAMS]; /* before styles cut copies */
    dt_tensor *param[DT_LAYER_MAX_PARAMS];
    dt_tensor *bias_term; /* what is added, as a term of a Partial sum; NULL until it is needed */
    uint32_t bias_term_dims; /* of which mesh dims */
    dt_layer_fn forward;     /* the caller's, NULL: the kind's */
    void *forward_arg;
    const void *context;       /* of the block that a point frames, while it runs */
    struct dti_routed *routed; /* the same of experts */
};

/* What a point of experts frames, while it runs: whom each token chose, on which axis mesh dims cut
 * tokens when they came (-1: none), and a weight that says which rank has which experts. */
typedef struct dti_routed {
    dt_tensor *ids, *weights, *experts;
    int axis[DT_MAX_DIMS];
} dti_routed;

struct dt_layers {
    dt_mesh *mesh;
    int slot;         /* of the dim that specs speak of: a mesh dim, or DTI_NO_DIM */
    dt_dtype dtype;   /* of the parameters, as the last that was set says; DT_N_DTYPES before */
    uint64_t changes; /* of parameters and of forwards */
    struct dti_style_registry *styles; /* names that mean other styles here; NULL: none do */
    struct dti_gathers *gathers;       /* of fully sharded layers; NULL: there are none */
    struct dti_memory *away;           /* where their parameters lie; NULL: with the others */
    dt_carry *carry;                   /* of the passes that run now, or NULL */
    bool manual;                       /* the plan leaves no layer to its built-in style */
    bool misled;                       /* it was handed the carry of another list */
    int n_states;                      /* of all layers */
    int n;
    dt_layer *layers;
    char **remarks; /* on the plan */
    size_t n_remarks, remarks_capacity;
    struct dti_expert_counts *counts; /* of tokens by expert; NULL: nobody counts */
    dti_facts facts;     /* of the model they are of; none: who made them has said nothing */
    int *index;          /* hash of a name -> 1 + its layer, 0: empty */
    uint32_t index_mask; /* places - 1 */
    int64_t *offsets[2]; /* for two placements at a time: one more than the longest dim has ranks */
};

/* It shares a weight with a layer of another stage, and has a copy. */
static inline bool dti_layer_is_apart(const dt_layer *layer)
{
    return layer->tied_to != NULL && layer->tied_to->spec.stage != layer->spec.stage;
}

/* The rules of a plan and of those chained to it, in one list; a number is a place in it. */
typedef struct dti_rule {
    dt_plan_rule rule;
    const dt_plan *plan; /* that it stands in */
    int slot;            /* of its dim; -1: the mesh has none of that name */
    bool used;           /* matches a layer */
} dti_rule;

typedef struct dti_rule_list {
    dti_rule *rule;
    int n;
    dti_patterns patterns;                    /* of them, apart by slot */
    const dt_plan *others[DTI_N_STYLE_SLOTS]; /* the plan that has a style of all others */
    const dt_plan *manual; /* the plan that leaves no layer to its built-in style, or NULL */
} dti_rule_list;

/* `dim` is the one that plans without a dim speak of. */
dt_status dti_rules_of(const dt_mesh *mesh, const char *dim, const dt_plan *plan,
                       dti_rule_list *out) DT_MUST_USE;
void dti_rule_list_free(dti_rule_list *rules);

/* The number of the best rule for `name` on the dim of `slot`, or -1; marks all that match. */
int dti_rules_find(dti_rule_list *rules, const char *name, int slot);

/* Reports rules without a match, dims that the mesh does not have, and parameters that a manual
 * plan does not cover: errors of strict plans. */
dt_status dti_rules_check(dti_rule_list *rules, dt_layers *list) DT_MUST_USE;

/* Gives every layer of the list its styles (lay_out.c), then lays its parameters out. */
dt_status dti_layers_choose(dt_layers *list, const dt_layer_spec *specs,
                            dti_rule_list *rules) DT_MUST_USE;
dt_status dti_layers_lay_out(dt_layers *list, const dti_rule_list *rules) DT_MUST_USE;

/* Twins (twins.c): finds those of a layer's styles, checks that they lay the parameters alike. */
dt_status dti_twins_find(dt_layer *layer) DT_MUST_USE;
dt_status dti_twins_check(const dt_layer *layer) DT_MUST_USE;

/* Makes whole what the style would cut at the tokens, and asks no more that they come cut. False if
 * it does neither. */
bool dti_twin_uncut(dt_style *style);

/* The axis of tokens of a value [B, T, ...] or [T, D]: of ids, [B, T] or [T], the last; -1 if there
 * is none. */
int dti_token_axis(int n_axes, bool ids);

/* "my_style, colwise, rowwise, ...": styles that fit a kind of layer, registered ones first. */
dt_status dti_style_list(dt_runtime *rt, const dt_layer_kind *kind, char *text,
                         size_t bytes) DT_MUST_USE;

/* Names that mean other styles in one list (style.c): those of a chain of plans; *out is NULL where
 * there are none. dti_style_find() is dt_style_find() with those before the runtime's. */
struct dti_style_registry;
dt_status dti_styles_of(dt_runtime *rt, const dt_plan *plan,
                        struct dti_style_registry **out) DT_MUST_USE;
void dti_styles_free(struct dti_style_registry *styles);
dt_status dti_style_find(const dt_layers *list, const char *name, const char *version,
                         const dt_style **out) DT_MUST_USE;

/* The built-in styles and their older names (builtin.c). */
typedef struct dti_style_alias {
    const char *alias;
    const char *version; /* that means this row by it; NULL: all do */
    const char *name;
} dti_style_alias;

extern const dt_style dti_builtin_styles[];
extern const int dti_n_builtin_styles;
extern const dti_style_alias dti_style_aliases[];
extern const int dti_n_style_aliases;

/* What a style says, through its functions or its data fields (style.c, style_passes.c). *out may
 * point into `room`. */
dt_status dti_style_partition(const dt_style *style, const dt_param_info *param, int n_parts,
                              dt_cut_room *room, dt_placement *out) DT_MUST_USE;
dt_cut_room dti_layers_room(const dt_layers *list, int which); /* 0 or 1 (layers.c) */
bool dti_lay_is_valid(dt_lay how);
bool dti_style_has_argument(const char *word); /* style_arguments.c: "input", ... */

/* Values that pass through a layer on mesh dim `dim`; each is replaced. */
typedef struct dti_values {
    const dt_style *style;
    const dt_layer *layer;
    int dim;
    int n;
    dt_tensor **x;
    const char *what; /* "input" or "output" */
    bool enters;      /* the first */
} dti_values;

/* dt_layer_leave_all() without the rounding of sums; false after an error (halves.c). */
bool dti_layer_leave(dt_tape *t, const dt_layer *layer, int n, dt_tensor **y);

/* False after an error, which is latched. */
bool dti_style_input(dt_tape *tape, const dti_values *v);
bool dti_style_output(dt_tape *tape, const dti_values *v);

/* What stands between the two halves of a layer's style: the caller's function, or the kind's
 * (layer.c). */
dt_tensor *dti_layer_compute(dt_tape *tape, const dt_layer *layer, dt_tensor *x);

/* Terms of a sum are f32 in every model. Where a style has reduced them, they get the dtype of the
 * layer's parameters (of the model's, if it has none): one rounding (halves.c). */
dt_tensor *dti_layer_round(dt_tape *tape, const dt_layer *layer, dt_tensor *x);

/* Are the rows of parameter `w`, as dt_layer_use() gives it, cut over ranks (layer.c)? */
bool dti_layer_rows_cut(const dt_layer *layer, const dt_tensor *w);

/* A style with arguments (style_arguments.c): "rowwise(output=shard(1))" has the base "rowwise"; a
 * name without arguments is its own base. dti_style_with() lays the arguments over the base's
 * fields. */
enum { DTI_STYLE_TEXT_BYTES = 256 };
dt_status dti_style_base(const char *text, char *base, size_t bytes) DT_MUST_USE;
dt_status dti_style_with(const char *text, dt_style *style) DT_MUST_USE;

/* Whether the text of a style has arguments that are taken and say nothing here. */
bool dti_style_has_idle(const char *text);

/* The prepare_param of styles that cut copies, and what the list needs for it, once its layers are
 * laid out (gathered_layers.c). */
dt_tensor *dti_gather_param(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                            int param, dt_tensor *w);
dt_status dti_gathers_of_layers(dt_layers *list) DT_MUST_USE;

/* The number of a parameter among what the list gathers. */
static inline int dti_layer_value(const dt_layer *layer, int param)
{
    return (int)(layer - layer->list->layers) * DT_LAYER_MAX_PARAMS + param;
}

/* Linear layers in tiles (tiles.c): how many, once their other styles have laid them out; the
 * stored layout, of which ranks have a part of each tile; the product. */
enum { DTI_MOST_TILES = 32 };
dt_status dti_tiles_choose(dt_layer *layer) DT_MUST_USE;
dt_status dti_tiles_lay_out(const dt_layer *layer, const dt_layout **layout) DT_MUST_USE;
dt_tensor *dti_linear_tiles(dt_tape *tape, const dt_layer *layer, dt_tensor *x);
int dti_tile_rows(int64_t n, int tiles, int64_t rows[DTI_MOST_TILES]);

/* The point whose name is the first part of a layer's, "mlp.experts" of "mlp.experts.down_proj";
 * the layer itself if there is none (expert_layers.c). */
const dt_layer *dti_point_around(const dt_layer *layer);

/* Counts the experts that tokens chose at a point, if its list does (expert_loads.c). */
dt_status dti_count_choices(dt_tape *tape, const dt_layer *point, dt_tensor *ids) DT_MUST_USE;
void dti_expert_counts_free(struct dti_expert_counts **counts); /* accepts NULL */

/* The two halves of "ep_dispatch_experts" (sent_tokens.c). */
void dti_dispatch_input(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim, int n,
                        dt_tensor **x);
void dti_dispatch_output(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim,
                         int n, dt_tensor **y);

/* A whole value as one term of a sum: the output of "moe_identity_expert" (experts.c). */
void dti_output_as_term(const dt_style *style, dt_tape *tape, const dt_layer *layer, int dim, int n,
                        dt_tensor **y);

/* Refuses a style on a layer of experts that would do something to values there: only its cut
 * counts, values pass the point around both halves (experts.c). */
dt_status dti_check_experts(const dt_style *style, const dt_layer *layer) DT_MUST_USE;

/* A style whose cut does not fit a layer's blocks, or its lack of them, refused with the name of
 * the one that does (packed.c). */
dt_status dti_check_packed(const dt_style *style, const dt_layer *layer) DT_MUST_USE;

/* dt_cut_axis() of a parameter's axis, in its steps; dt_cut_param() of one piece. */
dt_placement dti_cut_steps(const dt_param_info *param, int axis, int n_parts);

/* Characters to insert, remove or change until a pattern matches a name (nearest_layer.c). */
int dti_name_distance(const char *pattern, const char *name);

/* The layer whose name a pattern comes nearest to; NULL if there are no layers. As above. */
const char *dti_nearest_layer(const dt_layers *list, const char *pattern);

#endif
