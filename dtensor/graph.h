/* SPDX-License-Identifier: Apache-2.0
 *
 * The record of a tape: values that watched tensors reach, and the calls that made them, in the
 * order of the program. Arrays live over resets, so a step that repeats takes nothing from the
 * system. */
#ifndef DTI_GRAPH_H
#define DTI_GRAPH_H

#include <dtensor/gradients.h>

#include "base/error.h"
#include "dtensor/tensor_internal.h"

enum { DTI_SUM_PARTS = 3 };

/* A gradient while it is added up: contributions that lie alike are one part. */
typedef struct dti_sum {
    dt_tensor *part[DTI_SUM_PARTS]; /* a reference each, NULL behind the last */
} dti_sum;

/* A value whose gradient may be wanted: what its gradient needs to know of it. */
typedef struct dti_graph_value {
    uint32_t stamp;  /* of tensors that are this value, with its number */
    bool leaf;       /* leaf of the collection with the value's number */
    bool of_leaves;  /* made of leaves alone, or one: its gradient is the second half's */
    bool read;       /* of a leaf: a node reads it, which has it among its `firsts` */
    bool told;       /* of a leaf: its sum of this pass is in the collection */
    bool scattered;  /* of a leaf: its sum of this pass is of what was gathered, and travels once */
    bool constant;   /* no gradient of it is wanted: it can be made again, no more */
    bool again;      /* it is made again, thrifty or not */
    bool stays;      /* it is not, but between two halves of a pass */
    bool input;      /* of the record: its sum is complete at the end of a pass */
    int32_t watched; /* which of the collection's `made` it is; -1: none */
    dt_mesh *mesh;   /* a reference */
    const dt_layout *layout;
    dt_op_shape shape;
    dti_sum sum;            /* of this pass */
    int32_t recipe, result; /* as of what is kept: it can be made again */
} dti_graph_value;

typedef enum dti_node_kind {
    DTI_NODE_ROW,
    DTI_NODE_MOVE, /* to another layout, mesh or dtype */
    DTI_NODE_PART  /* dt_recompute() */
} dti_node_kind;

/* A tensor that a node keeps, or how it is made again: result `result` of node number `recipe` - 1.
 */
typedef struct dti_kept {
    dt_tensor *x; /* a reference, or NULL */
    uint32_t version;
    int32_t recipe, result; /* recipe 0: none */
    bool made;              /* again: not for another pass */
} dti_kept;

struct dt_node {
    struct dti_graph *graph;
    dti_node_kind kind;
    const dt_op *op;   /* NULL: no row, or one that does not outlive its call */
    const char *name;  /* of the row */
    const char *scope; /* innermost; NULL: none */
    void (*backward)(dt_tape *, const dt_node *, dt_tensor *const *, dt_tensor **);
    dt_part_fn part;
    uint32_t keeps;                 /* of the row */
    uint32_t unasked;               /* bit i: operand i, for now */
    bool lasts;                     /* to the second half: what is kept */
    bool given;                     /* kept[i] is the gradient of operand i, for the second half */
    size_t again_begin, again_end;  /* nodes of a part that ran again, for the second half */
    dt_dtype enters[DT_OP_MAX_OUT]; /* dtypes of gradients on entry; DT_N_DTYPES: as they come */
    int n_in, n_out;
    int32_t in[DT_RECOMPUTE_MAX_IN]; /* values v; -1 - v: constants */
    int32_t out[DT_OP_MAX_OUT];
    dti_kept kept[DT_RECOMPUTE_MAX_IN + DT_OP_MAX_OUT]; /* operands, then results from n_in on */
    size_t attr, attr_bytes;                            /* where in `bytes` */
    struct dti_gathers *gathers; /* a move of value number `gathered` of these; NULL: another */
    int gathered;                /* -1 - i: of a part of value i */
    bool sends;    /* a move of some rows: ids and a form of experts are operands 1 and 2, and its
                 * attribute an int, the mesh dim (dispatch.h) */
    size_t firsts; /* end of the leaves that it is the first to read; they begin at the end of those
                    * of the node before */
};

typedef struct dti_graph {
    dt_gradients *gradients; /* NULL: nothing is recorded */
    int paused;
    bool thrifty;      /* what is cheap is made again */
    bool spent;        /* run backward and given back */
    bool owes;         /* but for the second half */
    size_t n_recorded; /* nodes without those of parts that ran again, from the first half on */
    uint32_t clears;
    uint32_t stamp; /* of values made now */
    dt_node *nodes;
    size_t n_nodes, nodes_capacity;
    dti_graph_value *values;
    size_t n_values, values_capacity;
    char *bytes; /* attributes */
    size_t n_bytes, bytes_capacity;
    int32_t *firsts; /* values of leaves, in the order in which they were read first */
    size_t n_firsts, firsts_capacity;
    int part_paused; /* how deep in pauses a part runs forward; 0: none does */
    size_t n_leaves; /* values 0 .. n_leaves - 1 */
    const struct dt_backward_options *pass; /* while one runs */
} dti_graph;

/* A tensor of a collection, and its gradient so far. */
typedef struct dti_collected {
    dt_tensor *x;
    dti_sum sum; /* f32 */
} dti_collected;

typedef struct dti_collected_list {
    dti_collected *at;
    size_t n, capacity;
} dti_collected_list;

/* Leaves carry the collection's stamp and their number: on every tape that records for it they are
 * the values of these numbers. */
struct dt_gradients {
    dt_runtime *rt;
    int refs; /* the caller's, and one of each record */
    uint32_t stamp;
    uint32_t clears; /* a record of before knows activations that are gone */
    dti_collected_list leaves, made;
};

/* Gives back one reference; the last one frees it. Accepts NULL. */
void dti_gradients_drop(dt_gradients *g);

dt_status dti_watch(dti_collected_list *list, dt_tensor *x) DT_MUST_USE;

/* What the record knows of x, were it a constant; NULL: nothing. */
static inline const dti_graph_value *dti_graph_known(const dti_graph *g, const dt_tensor *x)
{
    const bool is = x->graph_stamp != 0 && (size_t)x->graph_value < g->n_values &&
                    g->values[x->graph_value].stamp == x->graph_stamp;

    return is ? &g->values[x->graph_value] : NULL;
}

/* The value that x is on this record, -1: a constant. */
static inline int32_t dti_graph_value_of(const dti_graph *g, const dt_tensor *x)
{
    const dti_graph_value *v = dti_graph_known(g, x);

    return v != NULL && !v->constant ? x->graph_value : -1;
}

static inline bool dti_graph_is_on(const dti_graph *g)
{
    return g != NULL && g->gradients != NULL && g->paused == 0 && !g->spent;
}

/* The same, and while a part runs forward: of its calls nothing but the leaves is noted. */
static inline bool dti_graph_listens(const dti_graph *g)
{
    return dti_graph_is_on(g) || (g != NULL && g->part_paused > 0 && g->paused == g->part_paused);
}

/* A backward pass runs. */
static inline bool dti_graph_goes_back(const dti_graph *g)
{
    return g != NULL && g->pass != NULL;
}

/* A move of a stored value to a whole one, of which nothing is kept but where it comes from
 * (gather.h), watched or not. On the way back, in a part that runs again, what was gathered stays
 * until the part is done. */
dt_status dti_graph_gather(dt_tape *t, dt_tensor *x, dt_tensor *y, struct dti_gathers *gathers,
                           int i) DT_MUST_USE;

/* A move of the rows that `ids` sends to ranks of `experts`, on mesh dim `dim`. */
dt_status dti_graph_send(dt_tape *t, dt_tensor *x, dt_tensor *ids, const dt_tensor *experts,
                         int dim, dt_tensor *y) DT_MUST_USE;

/* The call that has just made y of x alone is made again by whoever needs y: x is kept. */
void dti_graph_again(dt_tape *t, dt_tensor *x, const dt_tensor *y);

/* What an operator has computed. Of a function on local pieces there is no row: its name, backward
 * and what it keeps stand in one that lives as long as the call. */
dt_status dti_graph_row(dt_tape *t, const dt_op *op, const void *attr, int n, dt_tensor *const *in,
                        int n_out, dt_tensor *const *out) DT_MUST_USE;

/* What x was reduced to may stand for it: not where the record knows x but not that. */
bool dti_graph_knows(const dt_tape *t, const dt_tensor *x, const dt_tensor *reduced);

/* The record before a part that is run again, and back to it, or what the part has noted stays. */
typedef struct dti_graph_mark {
    size_t n_nodes, n_values, n_bytes, n_firsts;
    uint32_t stamp;
} dti_graph_mark;

/* Notes the leaves among in[] that nobody has read before, for the node that is being added or, of
 * a part that runs forward, will be. */
dt_status dti_graph_read(dti_graph *g, int n, dt_tensor *const *in) DT_MUST_USE;

/* Forgets what was read since there were n of them. */
void dti_graph_unread(dti_graph *g, size_t n);

dti_graph_mark dti_graph_begin_part(dti_graph *g, dti_device *d);
void dti_graph_end_part(dti_graph *g, const dti_graph_mark *mark, bool stays);

dt_status dti_graph_add_part(dt_tape *t, dt_part_fn fn, const void *arg, size_t arg_bytes, int n,
                             dt_tensor *const *in, dt_tensor *y) DT_MUST_USE;

/* --- what nodes keep (kept.c) ----------------------------------------------------------------- */

void dti_node_drop(dt_node *node); /* what it keeps */

/* Whether what a node keeps at k is needed for gradients of the operands `asked`, a bit each. */
static inline bool dti_node_needs(const dt_node *node, int k, uint32_t asked)
{
    return k >= node->n_in || (node->keeps & DT_OP_KEEPS_CROSS) == 0 ||
           (asked & node->keeps & ~(1u << k) & (DT_OP_KEEPS_OUT(0) - 1)) != 0;
}

/* The node with all that its backward reads for the operands `asked`, of which *out has references
 * of its own: dti_node_drop(), also after an error. */
dt_status dti_node_full(dt_tape *t, const dt_node *node, uint32_t asked, dt_node *out) DT_MUST_USE;

/* Whether what the node keeps is there until the second half: it belongs to leaves, or somebody
 * said so. */
bool dti_node_lasts(const dt_node *node);

/* Between two halves the node keeps what gradients of the operands `asked` need, no recipes of what
 * will be gone then. */
dt_status dti_node_put_off(dt_tape *t, dt_node *node, uint32_t asked) DT_MUST_USE;

void dti_graph_clear(dti_graph *g);
void dti_graph_free(dti_graph **g); /* accepts NULL */

/* --- sums of contributions (gradient_sum.c) --------------------------------------------------- */

/* How a gradient lies of a value that lies so: as it does, and whole where it is terms.
 * DT_ERR_UNSUPPORTED for terms of an average or a product; `name` is who made the value. */
dt_status dti_gradient_layout(const dt_layout *of_value, const char *name,
                              const dt_layout **out) DT_MUST_USE;

/* The same as the backward of who made the value takes it: of a part that neighbours hold copies of
 * they have terms, so that sums over it count nothing twice. */
dt_status dti_gradient_entry(const dt_layout *of_value, const char *name,
                             const dt_layout **out) DT_MUST_USE;

/* Where a move from `from` to `to` takes the sum back to: on mesh dims that it changed to the
 * source's gradient layout; on others terms may stay terms. */
dt_status dti_gradient_way_back(const dt_layout *from, const dt_layout *to, const dti_sum *sum,
                                const char *name, const dt_layout **out) DT_MUST_USE;

/* Adds dx, which stays the caller's; with `widen` as f32. */
dt_status dti_sum_add(dt_tape *t, dti_sum *sum, dt_tensor *dx, bool widen) DT_MUST_USE;

/* The sum as one tensor that lies as `want`; a new reference, NULL if nothing was added. The sum is
 * empty after that. tape: counts, or NULL. */
dt_status dti_sum_take(dt_tape *t, dti_sum *sum, const dt_layout *want,
                       dt_tensor **out) DT_MUST_USE;
void dti_sum_drop(dti_sum *sum);

#endif
