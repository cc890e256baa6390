/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/leaf_moves.h"

#include "base/memory.h"
#include "dtensor/graph.h"
#include "dtensor/pending.h"
#include "dtensor/tape.h"
#include "mesh/runtime.h"

/* A leaf's sum among those under way: so many parts of it in a row. */
typedef struct passenger {
    int64_t leaf;
    int n_parts;
} passenger;

struct dti_leaf_moves {
    dt_gradients *gradients;
    uint32_t clears; /* of the collection when they set out */
    int n, n_parts;
    dt_pending *pending; /* NULL: of none there is anything */
    dt_tensor **arrived; /* [n_parts] */
    passenger passengers[];
};

int64_t dti_leaf_number(const dt_gradients *g, const dt_tensor *x)
{
    return x->leaf && x->graph_stamp == g->stamp ? x->graph_value : -1;
}

static int64_t largest_piece(const dt_tensor *x)
{
    int64_t bytes = (int64_t)dt_dtype_size(x->local.dtype), cuts = 1;

    for (int a = 0; a < x->n_axes; a++) bytes *= x->shape[a];
    for (int m = 0; m < x->layout->n_dims; m++)
        if (dti_has(x->layout->shard_dims, m)) cuts *= x->layout->dim_size[m];
    return bytes > 0 ? (bytes + cuts - 1) / cuts : 1;
}

int64_t dti_leaf_bytes_to_move(const dt_gradients *g, int64_t leaf, const dt_layout *want)
{
    const dti_sum *sum = &g->leaves.at[leaf].sum;
    int64_t bytes = 0;

    for (int k = 0; k < DTI_SUM_PARTS && sum->part[k] != NULL; k++)
        if (sum->part[k]->layout != want) bytes += largest_piece(sum->part[k]);
    return bytes;
}

static int count_parts(const dti_sum *sum)
{
    int n = 0;

    while (n < DTI_SUM_PARTS && sum->part[n] != NULL) n++;
    return n;
}

static dt_status create(dt_gradients *g, int n, const int64_t *leaf, dti_leaf_moves **out)
{
    dti_leaf_moves *m;

    DT_TRY(dti_new(sizeof *m + (size_t)n * sizeof *m->passengers, &m));
    m->gradients = g;
    m->clears = g->clears;
    m->n = n;
    g->refs++;
    for (int i = 0; i < n; i++) {
        m->passengers[i] = (passenger){ leaf[i], count_parts(&g->leaves.at[leaf[i]].sum) };
        m->n_parts += m->passengers[i].n_parts;
    }
    *out = m;
    return DT_OK;
}

static void destroy(dti_leaf_moves *m)
{
    dt_pending_release(&m->pending);
    dti_gradients_drop(m->gradients);
    dti_free(m->arrived);
    dti_free(m);
}

static dt_status set_out(dti_leaf_moves *m, const dt_layout *const *want, dt_tape *t)
{
    dt_comm_counter moved[DT_N_COMM_KINDS] = { { 0, 0 } };
    const dt_layout **to = NULL;
    dt_tensor **parts = NULL;
    dt_status st = DT_OK;
    int at = 0;

    if (m->n_parts == 0) return DT_OK;
    DT_TRY(dti_alloc_array((size_t)m->n_parts, sizeof *m->arrived, (void **)&m->arrived));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)m->n_parts, sizeof *to, (void **)&to));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)m->n_parts, sizeof *parts, (void **)&parts));
    for (int i = 0; i < m->n; i++)
        for (int k = 0; k < m->passengers[i].n_parts; k++, at++) {
            to[at] = want[i];
            parts[at] = m->gradients->leaves.at[m->passengers[i].leaf].sum.part[k];
        }
    DT_TRY_TO(done, st, dti_moves_begin(m->n_parts, parts, to, moved, &m->pending));
    if (t != NULL) st = dti_tape_count(t, "gradients", moved);
    for (int i = 0; i < m->n; i++)
        dti_sum_drop(&m->gradients->leaves.at[m->passengers[i].leaf].sum);
done:
    dti_free(to);
    dti_free(parts);
    return st;
}

dt_status dti_leaf_moves_begin(dt_gradients *g, int n, const int64_t *leaf,
                               const dt_layout *const *want, dt_tape *t, dti_leaf_moves **out)
{
    dt_status st;

    *out = NULL;
    DT_TRY(create(g, n, leaf, out));
    st = dti_runtime_alone(g->rt, set_out(*out, want, t));
    if (st != DT_OK) {
        destroy(*out);
        *out = NULL;
    }
    return st;
}

/* What has come to the leaf meanwhile, of a later pass, stands behind what was there before. */
static dt_status put_in_front(dt_tape *t, dti_sum *sum, dti_sum *before)
{
    for (int k = 0; k < DTI_SUM_PARTS && sum->part[k] != NULL; k++)
        DT_TRY(dti_sum_add(t, before, sum->part[k], true));
    dti_sum_drop(sum);
    *sum = *before;
    *before = (dti_sum){ { NULL } };
    return DT_OK;
}

/* The parts of one leaf are added in their order, as dti_sum_take() does. */
static dt_status put_back(const dti_leaf_moves *m, dt_tape *t)
{
    dt_tensor **at = m->arrived;
    dt_status st = DT_OK;

    for (int i = 0; i < m->n; i++) {
        dti_sum *sum = &m->gradients->leaves.at[m->passengers[i].leaf].sum, all = { { NULL } };
        for (int k = 0; k < m->passengers[i].n_parts; k++, at++) {
            if (st == DT_OK) st = dti_sum_add(t, &all, *at, true);
            dt_tensor_release(at);
        }
        if (st == DT_OK) st = put_in_front(t, sum, &all);
        dti_sum_drop(&all);
    }
    return st;
}

dt_status dti_leaf_moves_wait(dti_leaf_moves **moves, dt_tape *t)
{
    dti_leaf_moves *m = *moves;
    dt_status st = DT_OK;

    if (m == NULL) return DT_OK;
    *moves = NULL;
    if (m->pending != NULL) {
        st = dti_moves_wait(&m->pending, m->arrived);
        if (st == DT_OK && m->clears == m->gradients->clears)
            st = dti_runtime_alone(m->gradients->rt, put_back(m, t));
        else if (st == DT_OK)
            for (int k = 0; k < m->n_parts; k++) dt_tensor_release(&m->arrived[k]);
    }
    destroy(m);
    return st;
}

bool dti_leaf_moves_have(const dti_leaf_moves *m, int64_t leaf)
{
    for (int i = 0; m != NULL && i < m->n; i++)
        if (m->passengers[i].leaf == leaf) return true;
    return false;
}

void dti_leaf_moves_drop(dti_leaf_moves **moves)
{
    if (*moves != NULL) destroy(*moves);
    *moves = NULL;
}
