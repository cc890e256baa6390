/* SPDX-License-Identifier: Apache-2.0
 *
 * What nodes keep until the way back: checked, made again, put off to a second half, counted. */
#include <dtensor/ops.h>

#include "base/text.h"
#include "base/writer.h"
#include "dtensor/gather.h"
#include "dtensor/graph.h"
#include "dtensor/tape.h"

void dti_node_drop(dt_node *n)
{
    for (int k = 0; k < n->n_in + n->n_out; k++) dt_tensor_release(&n->kept[k].x);
}

static dt_status check_kept(const dt_node *n)
{
    for (int k = 0; k < n->n_in + n->n_out; k++)
        DT_CHECK(n->kept[k].x == NULL || n->kept[k].x->storage == NULL ||
                     n->kept[k].x->storage->version == n->kept[k].version,
                 DT_ERR_ARG,
                 "%s%s%s: %s %d, which its backward needs, was written over after the call",
                 n->scope != NULL ? n->scope : "", n->scope != NULL ? ": " : "", n->name,
                 k < n->n_in ? "operand" : "result", k < n->n_in ? k : k - n->n_in);
    return DT_OK;
}

/* A new reference to what k is, made again if it has to be. It stays with the node that makes it
 * until that has its turn, for those before it that need it as well. */
static dt_status make_again(dt_tape *t, const dti_kept *k, dt_tensor **out)
{
    dti_graph *g = t->graph;
    dt_tensor *in[DT_OP_MAX_IN] = { NULL }, *y[DT_OP_MAX_OUT] = { NULL };
    dt_status st = DT_OK;
    dti_kept *made;
    dt_node n;

    *out = NULL;
    if (k->recipe == 0) {
        *out = dt_tensor_retain(k->x);
        return DT_OK;
    }
    n = g->nodes[k->recipe - 1];
    made = &g->nodes[k->recipe - 1].kept[n.n_in + k->result];
    if (made->x == NULL) {
        DT_TRY(check_kept(&n));
        for (int i = 0; i < n.n_in; i++) DT_TRY_TO(done, st, make_again(t, &n.kept[i], &in[i]));
        if (n.gathers != NULL) {
            const char *before = dt_tape_because(t, n.name);
            y[0] = n.gathered >= 0 ? dti_gather_again(t, n.gathers, n.gathered)
                                   : dti_gather_tile_again(t, n.gathers, -1 - n.gathered, in[0],
                                                           g->values[n.out[0]].layout);
            (void)dt_tape_because(t, before);
        } else if (n.sends) {
            y[0] = dt_dispatch(t, in[0], in[1], in[2], *(const int *)dt_node_attr(&n));
        } else if (n.kind == DTI_NODE_MOVE) {
            const dt_layout *to = g->values[n.out[0]].layout;
            y[0] = dt_move(t, in[0], to->place);
        } else {
            dt_apply_n(t, n.op, dt_node_attr(&n), n.n_in, in, n.n_out, y);
        }
        st = dt_tape_status(t);
        if (st != DT_OK) goto done;
        *made = (dti_kept){ .x = dt_tensor_retain(y[k->result]),
                            .version = y[k->result]->storage->version,
                            .made = true };
    }
    *out = dt_tensor_retain(made->x);
done:
    for (int i = 0; i < n.n_in; i++) dt_tensor_release(&in[i]);
    return st;
}

dt_status dti_node_full(dt_tape *t, const dt_node *n, uint32_t asked, dt_node *out)
{
    *out = *n;
    for (int k = 0; k < n->n_in + n->n_out; k++) out->kept[k].x = NULL;
    DT_TRY(check_kept(n));
    for (int k = 0; k < n->n_in + n->n_out; k++)
        if (dti_node_needs(n, k, asked)) DT_TRY(make_again(t, &n->kept[k], &out->kept[k].x));
    return DT_OK;
}

/* --- between two halves ----------------------------------------------------------------------- */

bool dti_node_lasts(const dt_node *n)
{
    return n->lasts || n->gathers != NULL ||
           (n->n_out > 0 && n->out[0] >= 0 && n->graph->values[n->out[0]].of_leaves);
}

/* What is made again anyway, to be there for a moment only, stays a recipe, and what was gathered
 * becomes one. What else was to be made of what will be gone by then is made now. */
static dt_status put_off(dt_tape *t, dti_kept *kept)
{
    const dti_graph_value *v = kept->x != NULL ? dti_graph_known(t->graph, kept->x) : NULL;
    dt_node *from;
    dt_tensor *x;

    if (v != NULL && v->stays) {
        dt_tensor_release(&kept->x);
        *kept = (dti_kept){ .recipe = v->recipe, .result = v->result };
    }
    from = kept->recipe > 0 ? &t->graph->nodes[kept->recipe - 1] : NULL;
    if (from == NULL || dti_node_lasts(from)) return DT_OK;
    if (from->kind == DTI_NODE_MOVE || t->graph->values[from->out[kept->result]].again) {
        from->lasts = true;
        for (int i = 0; i < from->n_in; i++) DT_TRY(put_off(t, &from->kept[i]));
        return DT_OK;
    }
    DT_TRY(make_again(t, kept, &x));
    *kept = (dti_kept){ .x = x, .version = x->storage->version };
    return DT_OK;
}

dt_status dti_node_put_off(dt_tape *t, dt_node *n, uint32_t asked)
{
    n->lasts = true;
    for (int k = 0; k < n->n_in + n->n_out; k++) {
        if (n->kept[k].made) continue; /* for others, whose turn has been */
        if (dti_node_needs(n, k, asked)) {
            DT_TRY(put_off(t, &n->kept[k]));
        } else {
            dt_tensor_release(&n->kept[k].x);
            n->kept[k] = (dti_kept){ .x = NULL };
        }
    }
    return DT_OK;
}

/* --- what it costs ---------------------------------------------------------------------------- */

/* Going through what the record holds: bytes of memory that nobody before has shown, a line for
 * each if there is where to write. */
typedef struct tour {
    uint32_t stamp;
    int64_t bytes;
    dti_writer *lines;
} tour;

static void see(tour *s, const dt_node *n, const char *what, int number, const dt_tensor *x)
{
    char shape[DTI_SHAPE_BYTES];

    if (x == NULL || x->storage == NULL || x->storage->seen == s->stamp) return;
    x->storage->seen = s->stamp;
    if (dti_tensor_bytes(x) == 0) return;
    s->bytes += (int64_t)dti_tensor_bytes(x);
    if (s->lines == NULL) return;
    dti_put(s->lines, "%s%s  %s  %s %d  %s %s  %lld bytes", s->lines->used > 0 ? "\n" : "",
            n->scope != NULL ? n->scope : "-", n->name, what, number,
            dti_shape_text(x->shape, x->n_axes, shape, sizeof shape), dt_dtype_name(x->local.dtype),
            (long long)dti_tensor_bytes(x));
}

static int64_t go_through(const dt_tape *t, dti_writer *lines)
{
    const dti_graph *g = t != NULL ? t->graph : NULL;
    tour s = { .lines = lines };

    if (g == NULL || g->gradients == NULL) return 0;
    s.stamp = ++t->device->stamps;
    for (size_t i = 0; i < g->gradients->leaves.n; i++)
        if (g->gradients->leaves.at[i].x->storage != NULL)
            g->gradients->leaves.at[i].x->storage->seen = s.stamp;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const dt_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_in; k++)
            see(&s, n, n->given ? "gradient of operand" : "operand", k, n->kept[k].x);
        for (int r = 0; r < n->n_out; r++) {
            see(&s, n, "result", r, n->kept[n->n_in + r].x);
            for (int part = 0; part < DTI_SUM_PARTS && n->out[r] >= 0; part++)
                see(&s, n, "gradient of result", r, g->values[n->out[r]].sum.part[part]);
        }
    }
    return s.bytes;
}

int64_t dt_tape_kept_bytes(const dt_tape *t)
{
    return go_through(t, NULL);
}

int dt_tape_kept_print(const dt_tape *t, char *text, size_t text_bytes)
{
    dti_writer w = { .text = text, .bytes = text_bytes };

    if (text_bytes > 0) text[0] = '\0';
    (void)go_through(t, &w);
    return dti_written(&w);
}
