/* SPDX-License-Identifier: Apache-2.0
 *
 * The record, run from its last call to its first. What a node's backward makes lives until the
 * node is done; sums hold what is needed longer. */
#include <string.h>

#include "base/text.h"
#include "dtensor/copy_to.h"
#include "dtensor/dispatch.h"
#include "dtensor/gather.h"
#include "dtensor/graph.h"
#include "dtensor/tape.h"
#include "mesh/runtime.h"

/* What came for a value, as `want` and `dtype` say (DT_N_DTYPES: as it comes); NULL if nothing did.
 * The sum is empty after that. */
static dt_status take_sum(dt_tape *t, dti_graph_value *v, const dt_layout *want, dt_dtype dtype,
                          dt_tensor **out)
{
    dt_tensor *y;
    dt_status st = DT_OK;

    *out = NULL;
    DT_TRY(dti_sum_take(t, &v->sum, want, &y));
    if (y != NULL && dtype < DT_N_DTYPES && y->local.dtype != dtype) {
        st = dti_tensor_cast(y, dtype, out);
        dt_tensor_release(&y);
    } else {
        *out = y;
    }
    return st;
}

/* What came for result r, in the place where a row's backward wants it. */
static dt_status take(dt_tape *t, const dt_node *n, int r, const dt_layout *want, dt_tensor **out)
{
    const int32_t v = n->out[r];
    dti_graph *g = t->graph;
    dti_graph_value *value;

    *out = NULL;
    if (v < 0) return DT_OK;
    value = &g->values[v];
    DT_TRY(take_sum(t, value, want, n->enters[r], out));
    if (*out != NULL && value->watched >= 0 &&
        (g->pass->half != DT_BACKWARD_WEIGHTS || value->of_leaves)) /* else it was in the other */
        DT_TRY(dti_sum_add(t, &g->gradients->made.at[value->watched].sum, *out, true));
    return DT_OK;
}

/* Gradients of inputs lie and are rounded as whoever made those, on another record, takes them. */
static dt_status settle_inputs(dt_tape *t)
{
    dti_graph *g = t->graph;

    for (size_t v = g->n_leaves; v < g->n_values; v++) {
        dti_graph_value *x = &g->values[v];
        const dt_layout *want;
        dt_tensor *dx;
        if (!x->input || x->sum.part[0] == NULL) continue;
        DT_TRY(dti_gradient_layout(x->layout, "an input", &want));
        DT_TRY(take_sum(t, x, want, x->shape.dtype, &dx));
        x->sum.part[0] = dx;
    }
    return DT_OK;
}

/* Leaves in f32. */
static dt_status add_to(dt_tape *t, int32_t v, dt_tensor *dx)
{
    dti_graph_value *value = &t->graph->values[v];

    DT_CHECK(
        !value->told, DT_ERR_ARG,
        "a part of the forward pass read watched leaf %d when it ran again and had not before: "
        "parts do the same whenever they run",
        (int)v);
    DT_TRY(dti_sum_add(t, &value->sum, dx, value->leaf));
    return DT_OK;
}

static dt_status check_contribution(const dt_node *n, int i, const dt_tensor *dx)
{
    const dt_op_shape *want = &n->graph->values[n->in[i]].shape;
    char one[DTI_SHAPE_BYTES], two[DTI_SHAPE_BYTES];

    DT_CHECK(dt_dtype_is_float(dx->local.dtype), DT_ERR_ARG,
             "%s: its backward gave a gradient of operand %d in %s", n->name, i,
             dt_dtype_name(dx->local.dtype));
    DT_CHECK(dx->n_axes == want->n_axes &&
                 memcmp(dx->shape, want->extent, (size_t)dx->n_axes * sizeof *dx->shape) == 0,
             DT_ERR_SHAPE, "%s: its backward gave %s for operand %d, which is %s", n->name,
             dti_shape_text(dx->shape, dx->n_axes, one, sizeof one), i,
             dti_shape_text(want->extent, want->n_axes, two, sizeof two));
    return DT_OK;
}

static dt_status contribute(dt_tape *t, const dt_node *n, int i, dt_tensor *dx)
{
    if (dx == NULL || n->in[i] < 0) return DT_OK;
    DT_TRY(check_contribution(n, i, dx));
    DT_TRY(add_to(t, n->in[i], dx));
    return DT_OK;
}

static const char *remedy(const dt_node *n)
{
    const bool writes = n->op != NULL && (n->op->flags & DT_OP_INPLACE_LAST) != 0;

    return writes ? "; it writes into a tensor that others read: train without caches" : "";
}

/* --- nodes ------------------------------------------------------------------------------------ */

/* Operands with a gradient, a bit for each: those made of leaves alone, or the others. */
static uint32_t operands(const dt_node *n, bool of_leaves)
{
    uint32_t all = 0;

    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] >= 0 && n->graph->values[n->in[i]].of_leaves == of_leaves) all |= 1u << i;
    return all;
}

/* Operands whose gradients are asked for now. Those of vectors are small, and norms give them with
 * the others. */
static uint32_t asked_now(const dt_node *n, uint32_t leaves, uint32_t others)
{
    uint32_t vectors = 0;

    if (n->graph->pass->half == DT_BACKWARD_WHOLE) return leaves | others;
    if (n->graph->pass->half == DT_BACKWARD_WEIGHTS) return leaves;
    for (int i = 0; i < n->n_in; i++)
        if ((leaves >> i & 1u) != 0 && n->graph->values[n->in[i]].shape.n_axes < 2)
            vectors |= 1u << i;
    return vectors == leaves ? leaves | others : others;
}

/* The first half is done with a row: gradients of leaves wait for the second if the row gave them,
 * or will be asked for then. */
static dt_status put_off(dt_tape *t, dt_node *n, uint32_t leaves, dt_tensor *const *dy,
                         dt_tensor *const *dx)
{
    n->given = true;
    for (int i = 0; i < n->n_in; i++)
        if ((leaves >> i & 1u) != 0 && dx[i] == NULL) n->given = false;
    if (!n->given) {
        DT_TRY(dti_node_put_off(t, n, leaves));
        for (int r = 0; r < n->n_out; r++)
            if (dy[r] != NULL)
                DT_TRY(dti_sum_add(t, &t->graph->values[n->out[r]].sum, dy[r], false));
        return DT_OK;
    }
    n->lasts = true;
    dti_node_drop(n);
    memset(n->kept, 0, sizeof n->kept);
    for (int i = 0; i < n->n_in; i++)
        if ((leaves >> i & 1u) != 0)
            n->kept[i] =
                (dti_kept){ .x = dt_tensor_retain(dx[i]), .version = dx[i]->storage->version };
    return DT_OK;
}

static dt_status call_backward(dt_tape *t, const dt_node *n, uint32_t asked, dt_tensor *const *dy,
                               dt_tensor **dx)
{
    dt_node full;
    dt_status st;

    DT_CHECK(n->backward != NULL, DT_ERR_UNSUPPORTED,
             "%s has no backward, and a gradient has reached it%s%s%s", n->name,
             n->scope != NULL ? " in " : "", n->scope != NULL ? n->scope : "", remedy(n));
    st = dti_node_full(t, n, asked, &full);
    full.unasked = ~asked;
    if (st == DT_OK) n->backward(t, &full, dy, dx);
    dti_node_drop(&full);
    return st;
}

static dt_status run_row(dt_tape *t, const dt_node *n, size_t at)
{
    const uint32_t leaves = operands(n, true), others = operands(n, false);
    const uint32_t asked = asked_now(n, leaves, others);
    const bool first = t->graph->pass->half == DT_BACKWARD_INPUTS;
    dt_tensor *dy[DT_OP_MAX_OUT] = { NULL }, *dx[DT_OP_MAX_IN] = { NULL };
    dt_status st = DT_OK;
    bool any = false;

    for (int i = 0; i < n->n_in && n->given; i++) DT_TRY(contribute(t, n, i, n->kept[i].x));
    for (int r = 0; r < n->n_out; r++) {
        const dt_layout *want;
        if (n->out[r] < 0 || t->graph->values[n->out[r]].sum.part[0] == NULL) continue;
        DT_TRY_TO(done, st,
                  ((n->keeps & DT_OP_KEEPS_WHOLE) != 0 ? dti_gradient_layout : dti_gradient_entry)(
                      t->graph->values[n->out[r]].layout, n->name, &want));
        DT_TRY_TO(done, st, take(t, n, r, want, &dy[r]));
        any = any || dy[r] != NULL;
    }
    if (!any) return DT_OK;
    if (asked != 0) DT_TRY_TO(done, st, call_backward(t, n, asked, dy, dx));
    if (t->status != DT_OK) goto done;
    for (int i = 0; i < n->n_in; i++)
        if (((first ? others : asked) >> i & 1u) != 0)
            DT_TRY_TO(done, st, contribute(t, n, i, dx[i]));
    if (first && leaves != 0) st = put_off(t, &t->graph->nodes[at], leaves, dy, dx);
done:
    for (int r = 0; r < n->n_out; r++) dt_tensor_release(&dy[r]);
    return st;
}

/* The dual of a gather of a leaf: what came for the whole, which lies as it does until all that
 * reads the leaf has added to it. Then it travels once (settle_leaf). */
static dt_status pass_on(dt_tape *t, const dt_node *n)
{
    dti_sum *sum = &t->graph->values[n->out[0]].sum;

    for (int i = 0; i < DTI_SUM_PARTS && sum->part[i] != NULL; i++)
        DT_TRY(contribute(t, n, 0, sum->part[i]));
    t->graph->values[n->in[0]].scattered = true;
    dti_sum_drop(sum);
    return DT_OK;
}

/* Rows that were sent go back, and no others: terms of their gradients to whose rows they are, or
 * gradients to who has made their terms. *dx NULL: as all rows go. */
static dt_status send_back(dt_tape *t, const dt_node *n, const dt_layout *want, dt_tensor **dx)
{
    dti_graph_value *y = &t->graph->values[n->out[0]];
    dt_node what = *n, full; /* without what was moved */
    dt_status st;

    *dx = NULL;
    if (y->sum.part[1] != NULL || y->watched >= 0) return DT_OK;
    what.kept[0] = what.kept[n->n_in] = (dti_kept){ .x = NULL };
    DT_TRY_TO(done, st, dti_node_full(t, &what, ~0u, &full));
    st = dti_dispatch_back(t,
                           &(dti_readers){ .x = y->sum.part[0],
                                           .ids = full.kept[1].x,
                                           .experts = full.kept[2].x,
                                           .dim = *(const int *)dt_node_attr(n) },
                           want, n->name, dx);
    if (st == DT_OK && *dx != NULL) dti_sum_drop(&y->sum);
done:
    dti_node_drop(&full);
    return st;
}

/* One move back, to where the source lies: on its own mesh if that is another. */
static dt_status run_move(dt_tape *t, const dt_node *n)
{
    if (n->in[0] < 0) return DT_OK; /* a constant that can be made again */
    const dti_graph_value *x = &t->graph->values[n->in[0]], *y = &t->graph->values[n->out[0]];
    const bool here = x->mesh == y->mesh || dt_mesh_equal(x->mesh, y->mesh);
    dt_tensor *dy = NULL, *dx = NULL;
    const dt_layout *want;
    dt_status st = DT_OK;

    if (y->sum.part[0] == NULL) return DT_OK;
    if (n->gathers != NULL && x->leaf && y->watched < 0) return pass_on(t, n);
    if (here)
        DT_TRY(dti_gradient_way_back(x->layout, y->layout, &y->sum, n->name, &want));
    else
        DT_TRY(dti_gradient_layout(y->layout, n->name, &want));
    if (n->sends) DT_TRY(send_back(t, n, want, &dy));
    if (dy == NULL) DT_TRY(take(t, n, 0, want, &dy));
    if (!here) {
        dt_comm_counter moved[DT_N_COMM_KINDS] = { { 0, 0 } };
        DT_TRY_TO(done, st, dti_gradient_layout(x->layout, n->name, &want));
        DT_TRY_TO(done, st, dti_copy_to(dy, x->mesh, want->place, moved, &dx));
        DT_TRY_TO(done, st, dti_tape_count(t, n->name, moved));
    }
    DT_TRY_TO(done, st, contribute(t, n, 0, here ? dy : dx));
done:
    dt_tensor_release(&dy);
    dt_tensor_release(&dx);
    return st;
}

static dt_status run_range(dt_tape *t, size_t first, size_t end, bool keep);

static void set_read(dti_graph *g, size_t from, size_t to, bool read)
{
    for (size_t k = from; k < to; k++) g->values[g->firsts[k]].read = read;
}

/* x was made again: it is value v, and what reads it reaches that. */
static void be_value(const dti_graph *g, int32_t v, dt_tensor *x)
{
    x->graph_stamp = g->values[v].stamp;
    x->graph_value = v;
}

static dt_status check_again(const dti_graph *g, const dt_node *n, const dt_tensor *y)
{
    const dti_graph_value *first = &g->values[n->out[0]];

    DT_CHECK(y != NULL && y->n_axes == first->shape.n_axes &&
                 y->local.dtype == first->shape.dtype &&
                 memcmp(y->shape, first->shape.extent, (size_t)y->n_axes * sizeof *y->shape) == 0,
             DT_ERR_ARG,
             "a part of the forward pass gave %s when it ran again: parts do the same "
             "whenever they run",
             y == NULL ? "NULL" : "another shape or dtype");
    return DT_OK;
}

/* The part runs once more, on the record behind it, and that backward. Leaves that it is the first
 * to read begin at `begin`. Between two halves the record stays. */
static dt_status run_part(dt_tape *t, const dt_node *n, size_t at, size_t begin)
{
    const dt_layout *want;
    dt_tensor *dy = NULL, *y, *in[DT_RECOMPUTE_MAX_IN];
    dt_node full;
    char arg[DT_RECOMPUTE_MAX_ARG];
    dti_graph *g = t->graph;
    const int paused = g->paused;
    dti_graph_mark mark;
    dt_status st = DT_OK;
    int32_t v;

    if (g->pass->half == DT_BACKWARD_WEIGHTS)
        return run_range(t, n->again_begin, n->again_end, false);
    if (g->values[n->out[0]].sum.part[0] == NULL) return DT_OK;
    DT_TRY(dti_gradient_entry(g->values[n->out[0]].layout, n->name, &want));
    DT_TRY_TO(done, st, dti_node_full(t, n, ~0u, &full));
    DT_TRY_TO(done, st, take(t, n, 0, want, &dy));
    for (int i = 0; i < n->n_in; i++) {
        in[i] = full.kept[i].x;
        if (n->kept[i].recipe > 0 && n->in[i] >= 0) be_value(g, n->in[i], in[i]);
    }
    if (n->attr_bytes > 0) memcpy(arg, g->bytes + n->attr, n->attr_bytes);
    mark = dti_graph_begin_part(g, t->device);
    set_read(g, begin, n->firsts, false); /* nodes of the part are the first to, now */
    g->paused = 0;
    dt_scope_begin(t, n->name);
    y = dt_scope_end(t, n->part(t, arg, n->n_in, in));
    g->paused = paused;
    if (t->status == DT_OK) st = check_again(g, n, y);
    v = y != NULL ? dti_graph_value_of(g, y) : -1;
    if (st == DT_OK && t->status == DT_OK && v >= 0) {
        st = add_to(t, v, dy);
        dt_tensor_release(&dy);
        g->nodes[at].again_begin = mark.n_nodes;
        g->nodes[at].again_end = g->n_nodes;
        if (st == DT_OK) st = run_range(t, mark.n_nodes, g->n_nodes, false);
    }
    dti_graph_end_part(g, &mark, g->pass->half == DT_BACKWARD_INPUTS);
    set_read(g, begin, n->firsts, true);
done:
    dti_node_drop(&full);
    dt_tensor_release(&dy);
    return st;
}

static dt_status run_node(dt_tape *t, const dt_node *n, size_t at, size_t firsts)
{
    return n->kind == DTI_NODE_ROW    ? run_row(t, n, at)
           : n->kind == DTI_NODE_MOVE ? run_move(t, n)
                                      : run_part(t, n, at, firsts);
}

/* What was made again for others goes in any case. */
static void give_back(dti_graph *g, dt_node *n, bool keep)
{
    const bool stays = keep || (g->pass->half == DT_BACKWARD_INPUTS && dti_node_lasts(n));

    for (int k = 0; k < n->n_in + n->n_out; k++)
        if (!stays || n->kept[k].made) dt_tensor_release(&n->kept[k].x);
}

/* The sum of a leaf that was gathered goes to where the leaf is cut: terms of whole gradients are
 * added up by ranks, the reduce-scatter of ZeRO-3. Where the leaf is whole they stay terms. */
static dt_status settle_leaf(dt_tape *t, dti_graph_value *leaf)
{
    const char *before = dt_tape_because(t, "gradients");
    const dt_layout *want;
    dt_tensor *y = NULL;
    dt_status st = dti_gradient_way_back(leaf->layout, leaf->layout, &leaf->sum, "a leaf", &want);

    if (st == DT_OK) st = dti_sum_take(t, &leaf->sum, want, &y);
    leaf->sum.part[0] = y;
    leaf->scattered = false;
    (void)dt_tape_because(t, before);
    return st;
}

/* Nothing is added to this leaf any more: its sum joins the collection. */
static dt_status tell(dt_tape *t, int32_t v)
{
    dti_graph *g = t->graph;
    dti_sum *sum = &g->values[v].sum;
    dti_collected *leaf = &g->gradients->leaves.at[v];

    g->values[v].told = true;
    if (g->values[v].scattered) DT_TRY(settle_leaf(t, &g->values[v]));
    for (int i = 0; i < DTI_SUM_PARTS && sum->part[i] != NULL; i++)
        DT_TRY(dti_sum_add(t, &leaf->sum, sum->part[i], true));
    dti_sum_drop(sum);
    if (g->pass->ready != NULL) g->pass->ready(g->pass->arg, t, leaf->x);
    return DT_OK; /* what the caller's function latches ends the pass */
}

/* Those that the node was the first to read and that its part has not told already. */
static dt_status tell_firsts(dt_tape *t, size_t begin, size_t end)
{
    for (size_t k = end; k > begin && t->status == DT_OK; k--) {
        const int32_t v = t->graph->firsts[k - 1];
        if (!t->graph->values[v].told) DT_TRY(tell(t, v));
    }
    return DT_OK;
}

/* Nodes are copied: those of a part make the array grow. */
static dt_status run_range(dt_tape *t, size_t first, size_t end, bool keep)
{
    dti_graph *g = t->graph;

    for (size_t i = end; i > first && t->status == DT_OK; i--) {
        const dt_node n = g->nodes[i - 1];
        const size_t firsts = i > 1 ? g->nodes[i - 2].firsts : 0;
        const char *before = dt_tape_because(t, n.name);
        dt_status st;

        dt_scope_begin(t, n.scope != NULL ? n.scope : n.name);
        st = run_node(t, &n, i - 1, firsts);
        if (st != DT_OK) return st;
        (void)dt_scope_end(t, NULL);
        (void)dt_tape_because(t, before);
        give_back(g, &g->nodes[i - 1], keep);
        if (g->pass->half != DT_BACKWARD_INPUTS) DT_TRY(tell_firsts(t, firsts, n.firsts));
    }
    return DT_OK;
}

/* --- the pass --------------------------------------------------------------------------------- */

static dt_status check_from(const dt_tape *t, const dt_tensor *from, const dt_tensor *seed)
{
    const dti_graph *g = t->graph;
    int64_t n = 1;

    DT_CHECK(from != NULL, DT_ERR_ARG, "from is NULL");
    DT_CHECK(g != NULL && g->gradients != NULL, DT_ERR_ARG,
             "nothing was recorded on this tape: dt_tape_record() comes before the forward pass");
    DT_CHECK(!g->owes, DT_ERR_ARG, "the second half of the record's pass comes first");
    DT_CHECK(!g->spent, DT_ERR_ARG,
             "the record was run backward already and given back: set `keep` in the first pass, or "
             "record again");
    DT_CHECK(g->clears == g->gradients->clears, DT_ERR_ARG,
             "the collection of gradients was cleared while the tape recorded for it");
    DT_CHECK(dti_graph_value_of(g, from) >= 0, DT_ERR_ARG,
             "`from` is no value of this tape's record: another tape has made it, or no watched "
             "tensor reaches it");
    for (int a = 0; a < from->n_axes; a++) n *= from->shape[a];
    DT_CHECK(seed != NULL || n == 1, DT_ERR_ARG,
             "`from` has %lld elements: a gradient of several needs a seed, or reduce them to one",
             (long long)n);
    if (seed == NULL) return DT_OK;
    DT_CHECK(dt_dtype_is_float(seed->local.dtype) && seed->n_axes == from->n_axes &&
                 memcmp(seed->shape, from->shape, (size_t)from->n_axes * sizeof *from->shape) == 0,
             DT_ERR_SHAPE, "the seed has another shape than `from`, or is no float");
    DT_CHECK(dt_mesh_equal(seed->mesh, from->mesh), DT_ERR_LAYOUT,
             "the seed lies on another mesh than `from`");
    return DT_OK;
}

/* 1, whole on every rank. */
static dt_status one(dt_tensor *like, const dt_layout *layout, dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS];

    memcpy(place, layout->place, sizeof place);
    DT_TRY(dt_full(like->mesh, place, like->local.dtype, like->n_axes, like->shape, 1.0, out));
    return DT_OK;
}

static dt_status check_half(const dt_tape *t, const dt_tensor *from, const dt_backward_options *o)
{
    const dti_graph *g = t->graph;

    DT_CHECK(o->half == DT_BACKWARD_WHOLE || !o->keep, DT_ERR_ARG,
             "a half of a pass gives back what it uses: without `keep`");
    if (o->half != DT_BACKWARD_WEIGHTS) return check_from(t, from, o->seed);
    DT_CHECK(from == NULL && o->seed == NULL, DT_ERR_ARG,
             "the second half of a pass goes on from the first: `from` and the seed are NULL");
    DT_CHECK(g != NULL && g->gradients != NULL && g->owes, DT_ERR_ARG,
             "no first half of a pass (DT_BACKWARD_INPUTS) waits for its second");
    DT_CHECK(g->clears == g->gradients->clears, DT_ERR_ARG,
             "the collection of gradients was cleared between two halves of a pass");
    return DT_OK;
}

/* What a pass or its first half begins with: the gradient of `from`. */
static dt_status sow(dt_tape *t, dt_tensor *from, const dt_backward_options *o)
{
    dti_graph *g = t->graph;
    dt_tensor *seed = NULL;
    const dt_layout *want;
    dt_status st;

    DT_TRY(dti_gradient_layout(from->layout, "dt_backward", &want));
    if (o->seed != NULL)
        seed = dt_tensor_retain(o->seed);
    else
        DT_TRY(one(from, want, &seed));
    g->n_recorded = g->n_nodes;
    for (size_t k = 0; k < g->n_leaves; k++) g->values[k].told = false;
    st = add_to(t, dti_graph_value_of(g, from), seed);
    dt_tensor_release(&seed);
    return st;
}

static dt_status run_backward(dt_tape *t, dt_tensor *from, const dt_backward_options *o)
{
    dti_graph *g = t->graph;
    dt_status st = DT_OK;

    DT_TRY(check_half(t, from, o));
    g->paused++;
    g->pass = o;
    if (o->half != DT_BACKWARD_WEIGHTS) DT_TRY_TO(done, st, sow(t, from, o));
    for (size_t k = 0; k < g->n_leaves && o->half != DT_BACKWARD_INPUTS && t->status == DT_OK; k++)
        if (!g->values[k].read) DT_TRY_TO(done, st, tell(t, (int32_t)k));
    DT_TRY_TO(done, st, run_range(t, 0, g->n_recorded, o->keep));
    if (t->status == DT_OK) st = settle_inputs(t);
done:
    g->pass = NULL;
    g->paused--;
    g->spent = !o->keep;
    g->owes = o->half == DT_BACKWARD_INPUTS;
    return st;
}

void dt_backward(dt_tape *t, dt_tensor *from, const dt_backward_options *options)
{
    const dt_backward_options defaults = { .seed = NULL };
    dt_status st;

    if (dti_tape_is_down(t)) return;
    dt_scope_begin(t, "backward");
    st = run_backward(t, from, options != NULL ? options : &defaults);
    if (st != DT_OK) dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    (void)dt_scope_end(t, NULL);
}

/* --- parts ------------------------------------------------------------------------------------ */

dt_tensor *dt_recompute(dt_tape *t, dt_part_fn fn, const void *arg, size_t arg_bytes, int n,
                        dt_tensor *const *in)
{
    dt_status st = DT_OK;
    size_t firsts;
    dt_tensor *y;

    if (dti_tape_is_down(t)) return NULL;
    if (fn == NULL || n < 0 || n > DT_RECOMPUTE_MAX_IN || (in == NULL && n > 0) ||
        arg_bytes > DT_RECOMPUTE_MAX_ARG || (arg == NULL && arg_bytes > 0))
        return dt_tape_fail(t, DT_ERR_ARG,
                            "dt_recompute: no function, %d tensors of %d%s, or %zu bytes of %d", n,
                            DT_RECOMPUTE_MAX_IN, in == NULL ? ", which are NULL" : "", arg_bytes,
                            DT_RECOMPUTE_MAX_ARG);
    if (!dt_tape_records(t)) return fn(t, arg, n, in);
    firsts = t->graph->n_firsts;
    dt_tape_pause(t);
    t->graph->part_paused = t->graph->paused;
    dt_scope_begin(t, dti_tape_scope(t) != NULL ? dti_tape_scope(t) : "part");
    y = dt_scope_end(t, fn(t, arg, n, in));
    t->graph->part_paused = 0;
    dt_tape_resume(t);
    if (y == NULL) return NULL;
    for (int i = 0; i < n; i++) {
        if (in[i] != y) continue;
        dti_graph_unread(t->graph, firsts); /* it computes nothing */
        return y;
    }
    st = dti_graph_read(t->graph, 1, &y); /* that it may return */
    if (st == DT_OK) st = dti_graph_add_part(t, fn, arg, arg_bytes, n, in, y);
    return st == DT_OK ? y : dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}
