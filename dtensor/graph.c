/* SPDX-License-Identifier: Apache-2.0
 *
 * Recording: a node for each call that a watched tensor reaches. */
#include "dtensor/graph.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "base/writer.h"
#include "dtensor/ops/op_rules.h"
#include "dtensor/tape.h"
#include "mesh/runtime.h"

/* --- life ------------------------------------------------------------------------------------- */

static void forget_from(dti_graph *g, size_t n_nodes, size_t n_values)
{
    while (g->n_nodes > n_nodes) dti_node_drop(&g->nodes[--g->n_nodes]);
    while (g->n_values > n_values) {
        dti_graph_value *v = &g->values[--g->n_values];
        dti_sum_drop(&v->sum);
        dt_mesh_release(&v->mesh);
    }
}

void dti_graph_clear(dti_graph *g)
{
    if (g == NULL) return;
    forget_from(g, 0, 0);
    g->n_bytes = 0;
    g->n_firsts = g->n_leaves = 0;
    dti_gradients_drop(g->gradients);
    g->gradients = NULL;
    g->paused = g->part_paused = 0;
    g->spent = g->owes = g->thrifty = false;
}

void dti_graph_free(dti_graph **graph)
{
    dti_graph *g = *graph;

    if (g == NULL) return;
    dti_graph_clear(g);
    dti_free(g->nodes);
    dti_free(g->values);
    dti_free(g->bytes);
    dti_free(g->firsts);
    dti_free(g);
    *graph = NULL;
}

static dt_status add_value(dti_graph *g, const dt_tensor *x, uint32_t stamp, bool leaf)
{
    dti_graph_value *v;

    DT_TRY(dti_grow((void **)&g->values, &g->values_capacity, g->n_values + 1, sizeof *g->values));
    v = &g->values[g->n_values++];
    *v = (dti_graph_value){ .stamp = stamp, .watched = -1, .leaf = leaf, .of_leaves = leaf };
    v->mesh = dt_mesh_retain(x->mesh);
    v->layout = x->layout;
    v->shape.dtype = x->local.dtype;
    v->shape.n_axes = x->n_axes;
    memcpy(v->shape.extent, x->shape, sizeof v->shape.extent);
    return DT_OK;
}

static dt_status record(dt_tape *t, dt_gradients *gradients)
{
    dti_graph *g = t->graph;

    if (g == NULL) {
        DT_TRY(dti_new(sizeof *g, &g));
        t->graph = g;
    }
    dti_graph_clear(g);
    g->stamp = ++t->device->stamps;
    for (size_t i = 0; i < gradients->leaves.n; i++)
        DT_TRY(add_value(g, gradients->leaves.at[i].x, gradients->stamp, true));
    gradients->refs++;
    g->n_leaves = gradients->leaves.n;
    g->gradients = gradients;
    g->clears = gradients->clears;
    return DT_OK;
}

void dt_tape_record(dt_tape *t, dt_gradients *gradients)
{
    dt_status st;

    if (dti_tape_is_down(t)) return;
    if (gradients == NULL || gradients->rt != t->rt) {
        dt_tape_fail(t, DT_ERR_ARG, "dt_tape_record: gradients are %s",
                     gradients == NULL ? "NULL" : "those of another runtime");
        return;
    }
    st = record(t, gradients);
    if (st != DT_OK) dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}

void dt_tape_set_thrifty(dt_tape *t, bool thrifty)
{
    if (t != NULL && t->graph != NULL) t->graph->thrifty = thrifty;
}

void dt_tape_pause(dt_tape *t)
{
    if (t != NULL && t->graph != NULL) t->graph->paused++;
}

void dt_tape_resume(dt_tape *t)
{
    if (t != NULL && t->graph != NULL && t->graph->paused > 0) t->graph->paused--;
}

bool dt_tape_records(const dt_tape *t)
{
    return t != NULL && dti_graph_is_on(t->graph);
}

bool dti_tape_goes_back(const dt_tape *t)
{
    return dti_graph_goes_back(t->graph);
}

/* --- nodes ------------------------------------------------------------------------------------ */

static int32_t value_of(const dti_graph *g, const dt_tensor *x)
{
    return x != NULL ? dti_graph_value_of(g, x) : -1;
}

static bool reaches(const dti_graph *g, int n, dt_tensor *const *in)
{
    for (int i = 0; i < n; i++)
        if (value_of(g, in[i]) >= 0) return true;
    return false;
}

dt_status dti_graph_read(dti_graph *g, int n, dt_tensor *const *in)
{
    for (int i = 0; i < n; i++) {
        const int32_t v = value_of(g, in[i]);
        if (v < 0 || !g->values[v].leaf || g->values[v].read) continue;
        DT_TRY(
            dti_grow((void **)&g->firsts, &g->firsts_capacity, g->n_firsts + 1, sizeof *g->firsts));
        g->firsts[g->n_firsts++] = v;
        g->values[v].read = true;
    }
    return DT_OK;
}

void dti_graph_unread(dti_graph *g, size_t n)
{
    while (g->n_firsts > n) g->values[g->firsts[--g->n_firsts]].read = false;
}

/* Its operands are, all of them; of a move what is moved. */
static bool is_of_leaves(const dt_node *node)
{
    const int n = node->kind == DTI_NODE_MOVE ? 1 : node->n_in;
    bool is = node->kind != DTI_NODE_PART;

    for (int i = 0; i < n; i++)
        is = is && node->in[i] >= 0 && node->graph->values[node->in[i]].of_leaves;
    return is;
}

static dt_status name_results(dti_graph *g, dt_node *node, int n_out, dt_tensor *const *out)
{
    const bool of_leaves = is_of_leaves(node);

    node->n_out = n_out;
    for (int r = 0; r < n_out; r++) {
        node->out[r] = -1;
        if (!dt_dtype_is_float(out[r]->local.dtype)) continue;
        node->out[r] = (int32_t)g->n_values;
        DT_TRY(add_value(g, out[r], g->stamp, false));
        g->values[node->out[r]].of_leaves = of_leaves;
        out[r]->graph_stamp = g->stamp;
        out[r]->graph_value = node->out[r];
    }
    return DT_OK;
}

/* Values of the operands: v, or -1 - v of a constant, whose shape a backward may ask for. */
static dt_status name_operands(dti_graph *g, dt_node *node, int n, dt_tensor *const *in)
{
    for (int i = 0; i < n; i++) {
        node->in[i] = value_of(g, in[i]);
        if (node->in[i] >= 0 || in[i] == NULL) continue;
        node->in[i] = -1 - (int32_t)g->n_values;
        DT_TRY(add_value(g, in[i], 0, false));
    }
    return DT_OK;
}

static dt_status add_node(dt_tape *t, dti_node_kind kind, const char *name, int n,
                          dt_tensor *const *in, dt_node **out)
{
    dti_graph *g = t->graph;
    dt_node *node;

    DT_TRY(dti_grow((void **)&g->nodes, &g->nodes_capacity, g->n_nodes + 1, sizeof *g->nodes));
    node = &g->nodes[g->n_nodes++];
    *node = (dt_node){ .graph = g,
                       .kind = kind,
                       .name = name,
                       .scope = dti_tape_scope(t),
                       .n_in = n,
                       .attr = g->n_bytes };
    for (int r = 0; r < DT_OP_MAX_OUT; r++) node->enters[r] = DT_N_DTYPES;
    DT_TRY(name_operands(g, node, n, in));
    DT_TRY(dti_graph_read(g, n, in));
    node->firsts = g->n_firsts;
    *out = node;
    return DT_OK;
}

static void keep(dt_node *node, int k, dt_tensor *x)
{
    const dti_graph *g = node->graph;
    const dti_graph_value *v;

    if (x == NULL) return;
    v = dti_graph_known(g, x);
    node->kept[k] = (dti_kept){ .version = x->storage->version };
    if (v != NULL && v->recipe > 0 && (v->again || (g->thrifty && !v->stays))) {
        node->kept[k].recipe = v->recipe;
        node->kept[k].result = v->result;
    } else {
        node->kept[k].x = dt_tensor_retain(x);
    }
}

/* Of an operand whose values nobody will read, and which is not made again for it. */
static dt_status keep_form(dt_node *node, int k, const dt_tensor *x)
{
    return dti_tensor_header(x->mesh, x->layout, x->local.dtype, x->shape, &node->kept[k].x);
}

/* Its results can be made again: a row of which all operands are kept. */
static void set_recipes(dti_graph *g, const dt_node *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (node->kept[i].x == NULL && node->kept[i].recipe == 0) return;
    for (int r = 0; r < node->n_out; r++) {
        if (node->out[r] < 0) continue;
        g->values[node->out[r]].recipe = (int32_t)g->n_nodes;
        g->values[node->out[r]].result = r;
    }
}

static dt_status add_bytes(dti_graph *g, dt_node *node, const void *bytes, size_t n)
{
    const size_t room = (n + 15) / 16 * 16;

    node->attr_bytes = n;
    if (n == 0) return DT_OK;
    DT_TRY(dti_grow((void **)&g->bytes, &g->bytes_capacity, g->n_bytes + room, 1));
    memcpy(g->bytes + g->n_bytes, bytes, n);
    g->n_bytes += room;
    return DT_OK;
}

/* In which dtype the gradient of result r enters: that which float operands share, of F and a; as
 * the result of f; of others as it comes. */
static dt_dtype enters(const dt_op *op, dt_tensor *const *in, int r)
{
    const char *end = op->types != NULL ? strchr(op->types, '>') : NULL;
    const char *f = end != NULL ? memchr(op->types, 'F', (size_t)(end - op->types)) : NULL;

    if (end == NULL) return DT_N_DTYPES;
    if (end[1 + r] == 'f') return DT_F32;
    return f != NULL && strchr("Fa", end[1 + r]) != NULL ? in[f - op->types]->local.dtype
                                                         : DT_N_DTYPES;
}

dt_status dti_graph_row(dt_tape *t, const dt_op *op, const void *attr, int n, dt_tensor *const *in,
                        int n_out, dt_tensor *const *out)
{
    dti_graph *g = t->graph;
    uint32_t wanted = 0;
    dt_node *node;

    if (g->paused > 0) return dti_graph_read(g, n, in);
    if (!reaches(g, n, in)) return DT_OK;
    DT_TRY(add_node(t, DTI_NODE_ROW, op->name, n, in, &node));
    node->op = op->axes != NULL ? op : NULL;
    node->backward = op->backward;
    for (int r = 0; r < n_out; r++) node->enters[r] = enters(op, in, r);
    node->keeps = op->keeps;
    for (int i = 0; i < n; i++) wanted |= (uint32_t)dt_node_wants(node, i) << i;
    DT_TRY(name_results(g, node, n_out, out));
    DT_TRY(add_bytes(g, node, attr, op->attr_bytes));
    for (int i = 0; i < n; i++)
        if ((op->keeps & DT_OP_KEEPS_FORM(i)) != 0)
            DT_TRY(keep_form(node, i, in[i]));
        else if ((op->keeps & DT_OP_KEEPS_IN(i)) != 0 && dti_node_needs(node, i, wanted))
            keep(node, i, in[i]);
    for (int r = 0; r < n_out; r++)
        if ((op->keeps & DT_OP_KEEPS_OUT(r)) != 0) keep(node, n + r, out[r]);
    if (g->thrifty && (op->flags & DT_OP_CHEAP) != 0) set_recipes(g, node);
    return DT_OK;
}

/* x is what this rank has of y: less, and no terms of a sum. */
static bool gathers(const dt_tensor *x, const dt_tensor *y)
{
    return x->mesh == y->mesh && x->local.dtype == y->local.dtype && x->layout->partial_dims == 0 &&
           x->layout->shard_dims != 0 && (y->layout->shard_dims & ~x->layout->shard_dims) == 0 &&
           y->layout->shard_dims != x->layout->shard_dims;
}

dt_status dti_graph_move(dt_tape *t, dt_tensor *x, dt_tensor *y)
{
    dt_node *node;

    if (!dti_graph_listens(t->graph) || x == y || value_of(t->graph, x) < 0) return DT_OK;
    if (t->graph->paused > 0) return dti_graph_read(t->graph, 1, &x);
    DT_TRY(add_node(t, DTI_NODE_MOVE, t->reason != NULL ? t->reason : "move", 1, &x, &node));
    DT_TRY(name_results(t->graph, node, 1, &y));
    if (t->graph->thrifty && gathers(x, y)) {
        keep(node, 0, x);
        set_recipes(t->graph, node);
    }
    return DT_OK;
}

dt_status dti_graph_gather(dt_tape *t, dt_tensor *x, dt_tensor *y, struct dti_gathers *gathers,
                           int i)
{
    dti_graph *g = t->graph;
    dti_graph_value *v;
    dt_node *node;

    if (!dti_graph_listens(g) || x == y) return DT_OK;
    if (g->paused > 0) return dti_graph_read(g, 1, &x);
    DT_TRY(add_node(t, DTI_NODE_MOVE, t->reason != NULL ? t->reason : "move", 1, &x, &node));
    node->gathers = gathers;
    node->gathered = i;
    DT_TRY(name_results(g, node, 1, &y));
    keep(node, 0, x);
    v = &g->values[node->out[0]];
    v->constant = value_of(g, x) < 0;
    v->again = i < 0 || !dti_graph_goes_back(g);
    v->stays = !v->again;
    set_recipes(g, node);
    return DT_OK;
}

dt_status dti_graph_send(dt_tape *t, dt_tensor *x, dt_tensor *ids, const dt_tensor *experts,
                         int dim, dt_tensor *y)
{
    dti_graph *g = t->graph;
    dt_tensor *form;
    dt_node *node;
    dt_status st;

    if (!dti_graph_listens(g) || value_of(g, x) < 0) return DT_OK;
    if (g->paused > 0) return dti_graph_read(g, 1, &x);
    DT_TRY(dti_tensor_header(experts->mesh, experts->layout, experts->local.dtype, experts->shape,
                             &form));
    st = add_node(t, DTI_NODE_MOVE, t->reason != NULL ? t->reason : "move", 3,
                  (dt_tensor *[]){ x, ids, form }, &node);
    if (st != DT_OK) dt_tensor_release(&form);
    DT_TRY(st);
    node->sends = true;
    node->kept[2].x = form;
    keep(node, 1, ids);
    DT_TRY(name_results(g, node, 1, &y));
    DT_TRY(add_bytes(g, node, &dim, sizeof dim));
    if (g->thrifty && gathers(x, y)) {
        keep(node, 0, x);
        set_recipes(g, node);
    }
    return DT_OK;
}

void dti_graph_again(dt_tape *t, dt_tensor *x, const dt_tensor *y)
{
    dti_graph *g = t->graph;
    const int32_t v = dti_graph_is_on(g) ? value_of(g, y) : -1;
    dt_node *node = v >= 0 && g->n_nodes > 0 ? &g->nodes[g->n_nodes - 1] : NULL;

    if (node == NULL || node->n_in != 1 || node->n_out != 1 || node->out[0] != v) return;
    keep(node, 0, x);
    g->values[v].again = true;
    set_recipes(g, node);
}

dt_status dti_graph_add_part(dt_tape *t, dt_part_fn fn, const void *arg, size_t arg_bytes, int n,
                             dt_tensor *const *in, dt_tensor *y)
{
    dt_node *node;

    DT_TRY(add_node(t, DTI_NODE_PART, "dt_recompute", n, in, &node));
    node->part = fn;
    DT_TRY(name_results(t->graph, node, 1, &y));
    DT_TRY(add_bytes(t->graph, node, arg, arg_bytes));
    for (int i = 0; i < n; i++) keep(node, i, in[i]);
    return DT_OK;
}

bool dti_graph_knows(const dt_tape *t, const dt_tensor *x, const dt_tensor *reduced)
{
    const dti_graph *g = t->graph;

    return !dti_graph_is_on(g) || dti_graph_value_of(g, x) < 0 ||
           dti_graph_value_of(g, reduced) >= 0;
}

dti_graph_mark dti_graph_begin_part(dti_graph *g, dti_device *d)
{
    const dti_graph_mark mark = { g->n_nodes, g->n_values, g->n_bytes, g->n_firsts, g->stamp };

    g->stamp = ++d->stamps;
    return mark;
}

void dti_graph_end_part(dti_graph *g, const dti_graph_mark *mark, bool stays)
{
    g->stamp = mark->stamp;
    if (stays) return;
    dti_graph_unread(g, mark->n_firsts);
    forget_from(g, mark->n_nodes, mark->n_values);
    g->n_bytes = mark->n_bytes;
}

/* --- what the caller says and asks ------------------------------------------------------------ */

dt_tensor *dt_detach(dt_tape *t, dt_tensor *x)
{
    dt_tensor *y;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    if (x == NULL) return dt_tape_fail(t, DT_ERR_ARG, "dt_detach: x is NULL");
    st = dti_tensor_view(x, x->layout, x->n_axes, x->shape, &y);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    return dti_tape_push(t, y);
}

dt_tensor *dt_tape_input(dt_tape *t, dt_tensor *x)
{
    dti_graph *g;
    dt_tensor *y;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    if (x == NULL || !dt_dtype_is_float(x->local.dtype))
        return dt_tape_fail(t, DT_ERR_ARG, "dt_tape_input: x is %s",
                            x == NULL ? "NULL" : "of integers, which have no gradient");
    g = t->graph;
    if (!dti_graph_is_on(g) || dti_graph_goes_back(g)) return x;
    y = dt_detach(t, x);
    if (y == NULL) return NULL;
    st = add_value(g, y, g->stamp, false);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    y->graph_stamp = g->stamp;
    y->graph_value = (int32_t)g->n_values - 1;
    g->values[y->graph_value].input = true;
    return y;
}

dt_tensor *dt_tape_input_gradient(dt_tape *t, const dt_tensor *x)
{
    dt_tensor *dx;
    int32_t v;

    if (dti_tape_is_down(t)) return NULL;
    v = t->graph != NULL && x != NULL ? dti_graph_value_of(t->graph, x) : -1;
    if (v < 0 || !t->graph->values[v].input)
        return dt_tape_fail(t, DT_ERR_ARG,
                            "dt_tape_input_gradient: x is %s: dt_tape_input() returns one, on a "
                            "tape that records, until the record ends",
                            x == NULL ? "NULL" : "no input of this tape's record");
    dx = t->graph->values[v].sum.part[0];
    t->graph->values[v].sum.part[0] = NULL;
    return dx != NULL ? dti_tape_push(t, dx) : NULL;
}

dt_tensor *dt_tape_watch(dt_tape *t, dt_tensor *x)
{
    dti_graph *g;
    dt_status st;
    int32_t v;

    if (dti_tape_is_down(t)) return NULL;
    g = t->graph;
    if (x == NULL || g == NULL || g->gradients == NULL || g->spent ||
        g->clears != g->gradients->clears)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_tape_watch: %s",
                            x == NULL ? "x is NULL"
                                      : "the tape does not record, or the collection was cleared "
                                        "since it began to");
    v = dti_graph_value_of(g, x);
    if (v < 0)
        return dt_tape_fail(t, DT_ERR_ARG,
                            "dt_tape_watch: this tensor is a constant of the record: no watched "
                            "tensor reaches it, or it was made elsewhere. Leaves are watched by "
                            "dt_gradients_watch() before dt_tape_record()");
    if (g->values[v].watched >= 0 || g->values[v].leaf) return x;
    st = dti_watch(&g->gradients->made, x);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    g->values[v].watched = (int32_t)g->gradients->made.n - 1;
    return x;
}

/* --- a node, as its backward sees it ---------------------------------------------------------- */

bool dt_node_wants(const dt_node *n, int i)
{
    return n != NULL && i >= 0 && i < n->n_in && n->in[i] >= 0 && (n->unasked >> i & 1u) == 0;
}

dt_tensor *dt_node_in(const dt_node *n, int i)
{
    return n != NULL && i >= 0 && i < n->n_in ? n->kept[i].x : NULL;
}

dt_tensor *dt_node_out(const dt_node *n, int r)
{
    return n != NULL && r >= 0 && r < n->n_out ? n->kept[n->n_in + r].x : NULL;
}

const void *dt_node_attr(const dt_node *n)
{
    return n != NULL && n->attr_bytes > 0 ? n->graph->bytes + n->attr : NULL;
}

dt_op_shape dt_node_in_shape(const dt_node *n, int i)
{
    int32_t v;

    if (n == NULL || i < 0 || i >= n->n_in) return (dt_op_shape){ .n_axes = -1 };
    v = n->in[i];
    return n->graph->values[v >= 0 ? v : -1 - v].shape;
}
