/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/leaves.h"

#include "base/sync.h"
#include "dtensor/graph.h"
#include "dtensor/move_cache.h"
#include "dtensor/tape.h"
#include "mesh/runtime.h"

bool dti_tape_records_for(const dt_tape *t, const dt_gradients *g)
{
    return t != NULL && t->graph != NULL && t->graph->gradients == g;
}

bool dti_tape_reads(const dt_tape *t, int64_t leaf)
{
    return (size_t)leaf < t->graph->n_leaves && t->graph->values[leaf].read;
}

uint32_t dti_gradients_clears(const dt_gradients *g)
{
    return g->clears;
}

dt_tensor *dti_leaf_part(const dt_gradients *g, int64_t leaf, int k)
{
    return k < DTI_SUM_PARTS ? g->leaves.at[leaf].sum.part[k] : NULL;
}

dt_status dti_leaf_settle(dt_gradients *g, int64_t leaf, const dt_layout *want, dt_tape *t)
{
    const char *before = dt_tape_because(t, "gradients");
    dti_sum *sum = &g->leaves.at[leaf].sum;
    dt_tensor *y;
    const dt_status st = dti_runtime_alone(g->rt, dti_sum_take(t, sum, want, &y));

    (void)dt_tape_because(t, before);
    DT_TRY(st);
    sum->part[0] = y;
    return DT_OK;
}

dt_status dti_leaf_add(dt_gradients *g, int64_t leaf, dt_tensor *x, dt_tape *t)
{
    return dti_sum_add(t, &g->leaves.at[leaf].sum, x, true);
}

dt_tensor *dti_leaf_take(dt_gradients *g, int64_t leaf)
{
    dti_sum *sum = &g->leaves.at[leaf].sum;
    dt_tensor *y = sum->part[0];

    DT_ASSERT(sum->part[1] == NULL);
    sum->part[0] = NULL;
    return y;
}

static dt_status move_into(dt_tape *t, dt_tensor *x, dt_tensor *to)
{
    dt_comm_counter moved[DT_N_COMM_KINDS] = { { 0, 0 } };

    if (x == to || (x->storage == to->storage && x->layout == to->layout)) return DT_OK;
    DT_ASSERT(x->local.dtype == to->local.dtype);
    DT_TRY(dti_redistribute_into(x, to, moved));
    if (t != NULL) DT_TRY(dti_tape_count(t, t->reason != NULL ? t->reason : "move", moved));
    return DT_OK;
}

dt_status dti_move_into(dt_tape *t, dt_tensor *x, dt_tensor *to)
{
    dti_tensor_begin_write(to);
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(x->mesh), move_into(t, x, to)));
    return DT_OK;
}

void dti_tape_add_work(dt_tape *t, const char *kernel, dt_dtype dtype, const dt_op_work *work,
                       int64_t begun_ns)
{
    const dti_meter *m = t->device->meter;
    const double seconds = t->device->dry ? 0 : (double)(dti_now_ns() - begun_ns) * 1e-9;

    t->work.flops += work->flops;
    t->work.bytes += work->bytes;
    if (m != NULL) t->seconds += m->took(m->arg, kernel, dtype, work, seconds);
}

double dti_tape_seconds(const dt_tape *t)
{
    return t->seconds;
}

dt_status dti_tape_add_reduction(dt_tape *t, const char *reason, int64_t bytes, int p)
{
    dt_comm_counter moved[DT_N_COMM_KINDS] = { { 0, 0 } };

    if (p < 2) return DT_OK;
    moved[DT_COMM_ALL_REDUCE] = (dt_comm_counter){ 1, 2 * bytes * (p - 1) / p };
    DT_TRY(dti_tape_count(t, reason, moved));
    return DT_OK;
}
