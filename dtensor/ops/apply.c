/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of an operator: look up the decision, make the result, run the kernel. A warm call does
 * no malloc, takes no lock and touches no string. */
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"
#include "dtensor/channels_internal.h"
#include "dtensor/graph.h"
#include "dtensor/ops/cache.h"
#include "dtensor/ops/fusion.h"
#include "dtensor/tape.h"
#include "mesh/runtime.h"
#include "placements/move.h"

/* Key and zeros hold attributes up to a limit: a user's own row may be over it. */
static dt_status make_key(const dt_op *op, const void *attr, int n, dt_tensor *const *in, int n_out,
                          dti_op_key *key)
{
    DT_TRY(dti_row_check_attr(op));
    DT_CHECK(attr != NULL || op->attr_bytes == 0, DT_ERR_ARG,
             "%s: attr is NULL; the row has %zu bytes of attributes", op->name, op->attr_bytes);
    memset(key, 0, sizeof *key);
    key->op = op;
    key->n_out = n_out;
    if ((op->flags & DT_OP_SPREAD) != 0) key->spread = dti_op_spread(in, n);
    key->place = dti_mesh_place(in[0]->mesh);
    key->dtypes = ~(uint64_t)0;
    for (int i = 0; i < n; i++) {
        key->in[i] = in[i]->layout;
        key->dtypes = key->dtypes << 7 | (uint64_t)in[i]->local.dtype;
    }
    if (dti_op_key_bytes(op) > 0) memcpy(key->attr, attr, dti_op_key_bytes(op));
    return DT_OK;
}

static dt_status look_up(dt_tape *t, const dti_op_key *key, dt_tensor *const *in, int n,
                         dti_decision **out)
{
    dti_op_cache *cache = t->ops;
    const uint64_t hash = dti_op_key_hash(key, n);
    dti_decision *d = dti_op_cache_find(cache, key, hash);

    cache->calls++;
    if (d == NULL) {
        cache->misses++;
        DT_TRY(dti_op_cache_room(cache));
        DT_TRY(dti_op_decide(cache, key, t->moves, in, n, &d));
        d->hash = hash;
        dti_op_cache_add(cache, d);
    }
    *out = d;
    return DT_OK;
}

static bool memo_fits(const dti_op_memo *memo, dt_tensor *const *in, int n)
{
    const int64_t *at = memo->extents;

    if (memo->n_extents == 0) return false;
    for (int i = 0; i < n; i++)
        for (int a = 0; a < in[i]->n_axes; a++)
            if (*at++ != in[i]->shape[a]) return false;
    return true;
}

static void set_shape(dt_op_shape *shape, const dt_local *piece)
{
    shape->dtype = piece->dtype;
    shape->n_axes = piece->n_axes;
    memcpy(shape->extent, piece->shape, sizeof shape->extent);
}

/* What the call costs this rank, operands lying as they will. */
static void count_work(const dti_decision *d, dt_op_shapes *shapes, dt_tensor *const *in,
                       const dti_op_made *made, dt_op_work *work)
{
    for (int i = 0; i < shapes->n_in; i++) {
        dt_local piece = in[i]->local;
        if (d->in_want[i] != NULL)
            dti_tensor_local_shape(in[i]->mesh, d->in_want[i], in[i]->n_axes, in[i]->shape, &piece);
        set_shape(&shapes->in[i], &piece);
    }
    for (int r = 0; r < shapes->n_out; r++) set_shape(&shapes->out[r], &made[r].local);
    dti_row_work(d->row, shapes, work);
}

/* Shapes that were not seen with this decision before: by the rules. Kept if they fit a memo. */
static dt_status infer(dti_decision *d, dt_tensor *const *in, int n, dti_op_memo *memo,
                       dti_op_made *made)
{
    const dt_layout *want[DT_OP_MAX_IN];
    const dti_meter *meter = in[0]->device->meter;
    const bool dry = in[0]->device->dry;
    dt_op_shapes shapes;
    int n_extents = 0;

    dti_op_shapes_of(&d->key, in, n, &shapes);
    DT_TRY(dti_row_extents(d->row, &shapes));
    for (int i = 0; i < n; i++) want[i] = d->in_want[i] != NULL ? d->in_want[i] : in[i]->layout;
    if (d->key.op->accepts != NULL)
        DT_TRY(dti_accepts_fit(&shapes, want, (const dt_layout *const *)d->out_layout));
    for (int r = 0; r < shapes.n_out; r++) {
        const dt_op_shape *y = &shapes.out[r];
        DT_TRY(dti_check_shape(d->key.op->name, d->out_dtype[r], y->n_axes, y->extent));
        memcpy(made[r].shape, y->extent, sizeof made[r].shape);
        made[r].local.dtype = d->out_dtype[r];
        dti_tensor_local_shape(in[0]->mesh, d->out_layout[r], y->n_axes, made[r].shape,
                               &made[r].local);
    }
    for (int i = 0; i < n; i++)
        for (int a = 0; a < in[i]->n_axes; a++, n_extents++)
            if (n_extents < DTI_MEMO_EXTENTS) memo->extents[n_extents] = in[i]->shape[a];
    memo->n_extents = n_extents <= DTI_MEMO_EXTENTS ? n_extents : 0;
    count_work(d, &shapes, in, made, &memo->work);
    memo->seconds = meter != NULL && dry ? meter->took(meter->arg, d->key.op->name,
                                                       in[0]->local.dtype, &memo->work, 0)
                                         : 0;
    return DT_OK;
}

/* The results' shapes; the memo that has them is counted on the tape. */
static dt_status shapes_of(dt_tape *t, dti_decision *d, dt_tensor *const *in, int n,
                           const dti_op_memo **memo, const dti_op_made **out)
{
    const int n_out = (int)d->key.n_out;
    int k = 0;

    while (k < DTI_N_MEMOS && !memo_fits(&d->memo[k], in, n)) k++;
    if (k == DTI_N_MEMOS) {
        k = d->next_memo;
        d->memo[k].n_extents = 0; /* what it has is overwritten, also if rules refuse half-way */
        DT_TRY(infer(d, in, n, &d->memo[k], d->made + k * n_out));
        d->next_memo = (k + 1) % DTI_N_MEMOS;
    }
    t->work.flops += d->memo[k].work.flops;
    t->work.bytes += d->memo[k].work.bytes;
    t->seconds += d->memo[k].seconds;
    *memo = &d->memo[k];
    *out = d->made + k * n_out;
    return DT_OK;
}

/* Keeps y, of which the tape takes the reference, beside the terms x for the next operator that
 * wants them so: a sum that two of them read is reduced once. Not so of lent memory, which its
 * lender may write between them. */
static dt_tensor *keep_reduced(dt_tape *t, dt_tensor *x, dt_tensor *y)
{
    if (dti_tape_push_beside(t, x, y) == NULL) return NULL;
    dti_tensor_forget_reduced(x);
    if (x->storage->lent) return y;
    x->reduced = y;
    y->terms = x;
    return y;
}

static dt_status record_move(dt_tape *t, const dt_op *op, dt_tensor *x, dt_tensor *y)
{
    const char *before = dt_tape_because(t, op->name);
    const dt_status st = dti_graph_move(t, x, y);

    (void)dt_tape_because(t, before);
    if (st != DT_OK) dt_tensor_release(&y);
    return st;
}

/* Operands that a decision wants cut or moved first; new ones belong to the tape. */
static dt_status move_operands(dt_tape *t, const dt_op *op, const dt_layout *const *want, int n,
                               dt_tensor **in)
{
    for (int i = 0; i < n; i++) {
        dt_comm_counter moved[DT_N_COMM_KINDS] = { { 0, 0 } };
        dt_tensor *y;

        if (want[i] == NULL) continue;
        if (in[i]->reduced != NULL && in[i]->reduced->layout == want[i] &&
            dti_graph_knows(t, in[i], in[i]->reduced)) {
            in[i] = in[i]->reduced;
            continue;
        }
        if (t->moves == DT_MOVES_FORBID && !dti_move_is_local(in[i]->layout, want[i]))
            DT_FAIL(DT_ERR_LAYOUT,
                    "%s \"%s\": operand %d does not lie as the others are cut, and "
                    "slicing it needs communication; redistribute it first",
                    op->name, op->axes, i);
        DT_TRY(dti_redistribute(in[i], want[i], moved, &y));
        if (dti_graph_listens(t->graph)) DT_TRY(record_move(t, op, in[i], y));
        in[i] = in[i]->layout->partial_dims != 0 ? keep_reduced(t, in[i], y) : dti_tape_push(t, y);
        if (in[i] == NULL) return t->status;
        DT_TRY(dti_tape_count(t, op->name, moved));
        for (int k = 0; k < DT_N_COMM_KINDS && t->moves == DT_MOVES_TRACE; k++)
            if (moved[k].calls > 0)
                dti_runtime_log(t->rt, DT_LOG_INFO, "%s: operand %d was redistributed, %lld bytes",
                                op->name, i, (long long)moved[k].bytes);
    }
    return DT_OK;
}

/* A result's header and, unless it shares an operand's, its storage. */
static dt_status make_result(const dti_decision *d, const dti_op_made *made, int r,
                             dt_tensor *const *in, int n, dt_tensor **out)
{
    const uint32_t flags = d->key.op->flags;
    const bool last = r == (int)d->key.n_out - 1;
    const dt_tensor *shared = (flags & DT_OP_VIEW) != 0                   ? in[0]
                              : last && (flags & DT_OP_INPLACE_LAST) != 0 ? in[n - 1]
                                                                          : NULL;
    dti_device *device = in[0]->device;
    dt_tensor *y;

    DT_TRY(dti_tensor_take(device, &y));
    y->mesh = dt_mesh_retain(in[0]->mesh);
    y->layout = d->out_layout[r];
    y->n_axes = d->out_axes[r];
    memcpy(y->shape, made[r].shape, sizeof y->shape);
    y->local = made[r].local;
    y->storage = NULL;
    if (shared != NULL) {
        y->storage = dti_storage_retain(shared->storage);
        y->local.data = shared->local.data;
    } else {
        const dt_status st =
            dti_storage_create(device->memory, dti_tensor_bytes(y), true, &y->storage);
        if (st != DT_OK) {
            dt_tensor_release(&y);
            return dti_error_frame(st, __func__, __FILE__, __LINE__);
        }
        y->local.data = y->storage->data;
        if (device->observer != NULL)
            device->observer->made(device->observer->arg, y->layout, y->shape);
    }
    *out = y;
    return DT_OK;
}

/* Terms of a sum: what is added once joins the term at coordinates 0 of the dims that hold them. */
static bool adds_once(const dt_tensor *x)
{
    for (int m = 0; m < x->layout->n_dims && x->layout->partial_dims != 0; m++)
        if ((x->layout->partial_dims >> m & 1u) && x->layout->place[m].reduce == DT_SUM &&
            dt_mesh_coord(x->mesh, m) != 0) /* terms of a Shard are reduced before */
            return false;
    return true;
}

dt_status dti_kernel_said(const char *name, dt_status st)
{
    if (st == DT_OK || dt_last_error()->code == st) return st;
    if (strcmp(dt_status_name(st), "DT_?") == 0)
        DT_FAIL(DT_ERR_INTERNAL, "%s: its kernel returned %d, which is no status", name, (int)st);
    DT_FAIL(st, "%s: its kernel returned %s without a message", name, dt_status_name(st));
}

static dt_status run_kernel(const dt_op *op, const void *attr, int n, dt_tensor *const *in,
                            int n_out, dt_tensor *const *y)
{
    dt_local locals[DT_OP_MAX_IN], results[DT_OP_MAX_OUT];
    static const uint64_t zeros[DT_OP_MAX_VALUE_BYTES / 8] = { 0 };
    const bool skip = (op->flags & DT_OP_ADDS_ONCE) != 0 && !adds_once(in[0]);
    dti_device *device = y[0]->device;
    dt_kargs args = {
        .in = locals, .out = results, .attr = skip ? zeros : attr, .n_in = n, .n_out = n_out
    };

    for (int i = 0; i < n; i++) locals[i] = in[i]->local;
    for (int r = 0; r < n_out; r++) results[r] = y[r]->local;
    if (device->fusion != NULL) {
        const dti_row_call call = { op, args.attr, n, n_out, in, y };
        bool taken;
        DT_TRY(dti_fusion_take(device, &call, &taken));
        if (taken) return DT_OK;
        DT_TRY(dti_kernel_said(op->name, device->ops->run_beside(device, op, &args)));
    } else {
        DT_TRY(dti_kernel_said(op->name, device->ops->run(device, op, &args)));
    }
    return DT_OK;
}

static dt_status check_meshes(const dt_op *op, int n, dt_tensor *const *in)
{
    for (int i = 1; i < n; i++)
        DT_CHECK(in[i]->mesh == in[0]->mesh ||
                     (in[i]->device == in[0]->device && dt_mesh_equal(in[i]->mesh, in[0]->mesh)),
                 DT_ERR_LAYOUT, "%s \"%s\": operands 0 and %d lie on different meshes%s", op->name,
                 op->axes, i, in[i]->device->dry != in[0]->device->dry ? ", one of them dry" : "");
    return DT_OK;
}

static bool runs_no_kernel(const dt_op *op, const dt_tensor *x)
{
    return (op->flags & DT_OP_VIEW) != 0 || x->device->dry || !dt_mesh_is_member(x->mesh);
}

/* A call that is no dry one, for the device's meter. */
static void tell(dt_tape *t, const dt_op *op, const dt_tensor *x, const dt_op_work *work,
                 int64_t begun_ns)
{
    const dti_meter *m = x->device->meter;

    if (m == NULL || x->device->dry) return;
    t->seconds +=
        m->took(m->arg, op->name, x->local.dtype, work, (double)(dti_now_ns() - begun_ns) * 1e-9);
}

/* out[] is NULL before; after an error the caller releases what is there. */
static dt_status apply(dt_tape *t, const dt_op *op, const void *attr, int n, dt_tensor **in,
                       int n_out, dt_tensor **out)
{
    const dti_op_made *made = NULL;
    const dti_op_memo *memo = NULL;
    dti_decision *d = NULL;
    dti_op_key key;
    int64_t begun = 0;

    DT_TRY(check_meshes(op, n, in));
    DT_TRY(make_key(op, attr, n, in, n_out, &key));
    DT_TRY(look_up(t, &key, in, n, &d));
    DT_TRY(shapes_of(t, d, in, n, &memo, &made));
    if (d->wants_moves) DT_TRY(move_operands(t, op, d->in_want, n, in));
    for (int r = 0; r < n_out; r++) DT_TRY(make_result(d, made, r, in, n, &out[r]));
    if ((op->flags & DT_OP_INPLACE_LAST) != 0) dti_tensor_begin_write(in[n - 1]);
    if (in[0]->device->meter != NULL) begun = dti_now_ns();
    if (!runs_no_kernel(op, in[0])) DT_TRY(run_kernel(op, attr, n, in, n_out, out));
    tell(t, op, in[0], &memo->work, begun);
    if (in[0]->device->channels != NULL) dti_channels_look(in[0]->device->channels);
    if (dti_graph_listens(t->graph)) DT_TRY(dti_graph_row(t, op, attr, n, in, n_out, out));
    return DT_OK;
}

/* What the caller passes, before a rule sees it. */
static dt_status check_call(const dt_op *op, int n, dt_tensor *const *in, int n_out,
                            dt_tensor **operands)
{
    DT_CHECK(op != NULL && op->name != NULL && op->axes != NULL && op->types != NULL, DT_ERR_ARG,
             "an operator needs a name, axes and types");
    DT_CHECK(n >= 1 && n <= DT_OP_MAX_IN, DT_ERR_ARG,
             "%s is called with %d operands: 1 to %d are possible", op->name, n, DT_OP_MAX_IN);
    DT_CHECK(n_out >= 1 && n_out <= DT_OP_MAX_OUT, DT_ERR_ARG,
             "%s is asked for %d results: 1 to %d are possible", op->name, n_out, DT_OP_MAX_OUT);
    DT_CHECK(in != NULL, DT_ERR_ARG, "%s: in is NULL", op->name);
    for (int i = 0; i < n; i++) {
        DT_CHECK(in[i] != NULL, DT_ERR_ARG, "%s: operand %d is NULL", op->name, i);
        operands[i] = in[i];
    }
    return DT_OK;
}

dt_tensor *dt_apply(dt_tape *t, const dt_op *op, const void *attr, int n, dt_tensor *const *in)
{
    dt_tensor *operands[DT_OP_MAX_IN];
    dt_tensor *y = NULL;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    st = check_call(op, n, in, 1, operands);
    if (st == DT_OK) st = apply(t, op, attr, n, operands, 1, &y);
    if (st != DT_OK) dt_tensor_release(&y);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    return dti_tape_push(t, y);
}

void dt_apply_n(dt_tape *t, const dt_op *op, const void *attr, int n, dt_tensor *const *in,
                int n_out, dt_tensor **out)
{
    dt_tensor *operands[DT_OP_MAX_IN];
    dt_tensor *y[DT_OP_MAX_OUT] = { NULL };
    dt_status st;

    for (int r = 0; r < n_out && out != NULL; r++) out[r] = NULL;
    if (dti_tape_is_down(t)) return;
    if (out == NULL) {
        (void)dt_tape_fail(t, DT_ERR_ARG, "%s: out is NULL",
                           op != NULL && op->name != NULL ? op->name : "dt_apply_n");
        return;
    }
    st = check_call(op, n, in, n_out, operands);
    if (st == DT_OK) st = apply(t, op, attr, n, operands, n_out, y);
    if (st != DT_OK) {
        for (int r = 0; r < DT_OP_MAX_OUT; r++) dt_tensor_release(&y[r]);
        (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
        return;
    }
    for (int r = 0; r < n_out; r++) out[r] = dti_tape_push(t, y[r]);
    for (int r = 0; r < n_out && t->status != DT_OK; r++) out[r] = NULL; /* it could not grow */
}
