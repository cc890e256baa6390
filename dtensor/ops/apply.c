/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of an operator: look up the decision, make the result, run the kernel. A warm call does
 * no malloc, takes no lock and touches no string. */
#include <string.h>

#include "base/memory.h"
#include "dtensor/ops/cache.h"
#include "dtensor/tape.h"
#include "mesh/runtime.h"
#include "placements/move.h"

/* Key and zeros hold attributes up to a limit: a user's own row may be over it. */
static dt_status make_key(const dt_op *op, const void *attr, int n, dt_tensor *const *in, int n_out,
                          dti_op_key *key)
{
    DT_CHECK(op->attr_bytes <= DT_OP_MAX_ATTR_BYTES, DT_ERR_ARG,
             "operator %s: %zu bytes of attributes, at most %d are possible", op->name,
             op->attr_bytes, DT_OP_MAX_ATTR_BYTES);
    memset(key, 0, sizeof *key);
    key->op = op;
    key->n_out = n_out;
    key->place = dti_mesh_place(in[0]->mesh);
    key->dtypes = ~(uint64_t)0;
    for (int i = 0; i < n; i++) {
        key->in[i] = in[i]->layout;
        key->dtypes = key->dtypes << 8 | (uint64_t)in[i]->local.dtype;
    }
    if (attr != NULL && (op->flags & DT_OP_VALUE_ATTR) == 0)
        memcpy(key->attr, attr, op->attr_bytes);
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

/* Shapes that were not seen with this decision before: infer, and remember if they fit a memo. */
static dt_status infer(dti_decision *d, dt_tensor *const *in, int n, dti_op_memo *memo)
{
    dti_op_call call = {
        .op = d->key.op, .letters = d->letters, .attr = d->key.attr, .n = n, .in = in
    };
    int n_extents = 0;

    DT_TRY(call.op->infer != NULL ? call.op->infer(&call) : dti_infer_letters(&call));
    DT_TRY(dti_check_shape(call.op->name, d->out_dtype, call.out_axes, call.out_shape));
    memcpy(memo->out_shape, call.out_shape, sizeof memo->out_shape);
    memo->out_local.dtype = d->out_dtype;
    dti_tensor_local_shape(in[0]->mesh, d->out_layout, d->out_axes, memo->out_shape,
                           &memo->out_local);
    for (int i = 0; i < n; i++)
        for (int a = 0; a < in[i]->n_axes; a++, n_extents++)
            if (n_extents < DTI_MEMO_EXTENTS) memo->extents[n_extents] = in[i]->shape[a];
    memo->n_extents = n_extents <= DTI_MEMO_EXTENTS ? n_extents : 0;
    return DT_OK;
}

static dt_status shapes_of(dti_decision *d, dt_tensor *const *in, int n, const dti_op_memo **out)
{
    dti_op_memo fresh;

    for (int k = 0; k < DTI_N_MEMOS; k++)
        if (memo_fits(&d->memo[k], in, n)) {
            *out = &d->memo[k];
            return DT_OK;
        }
    DT_TRY(infer(d, in, n, &fresh));
    d->memo[d->next_memo] = fresh;
    *out = &d->memo[d->next_memo];
    d->next_memo = (d->next_memo + 1) % DTI_N_MEMOS;
    return DT_OK;
}

/* Operands that a decision wants cut or moved first; new ones belong to the tape. */
static dt_status move_operands(dt_tape *t, const dt_op *op, const dt_layout *const *want, int n,
                               dt_tensor **in)
{
    for (int i = 0; i < n; i++) {
        dt_comm_counter moved[DT_N_COMM_KINDS] = { { 0, 0 } };
        dt_tensor *y;

        if (want[i] == NULL) continue;
        if (t->moves == DT_MOVES_FORBID && !dti_move_is_local(in[i]->layout, want[i]))
            DT_FAIL(DT_ERR_LAYOUT,
                    "%s \"%s\": operand %d does not lie as the others are cut, and "
                    "slicing it needs communication; redistribute it first",
                    op->name, op->axes, i);
        DT_TRY(dti_redistribute(in[i], want[i], moved, &y));
        in[i] = dti_tape_push(t, y);
        if (in[i] == NULL) return t->status;
        DT_TRY(dti_tape_count(t, op->name, moved));
        for (int k = 0; k < DT_N_COMM_KINDS && t->moves == DT_MOVES_TRACE; k++)
            if (moved[k].calls > 0)
                dti_runtime_log(t->rt, DT_LOG_INFO, "%s: operand %d was redistributed, %lld bytes",
                                op->name, i, (long long)moved[k].bytes);
    }
    return DT_OK;
}

/* The result's header and, unless it shares an operand's, its storage. */
static dt_status make_result(const dti_decision *d, const dti_op_memo *shapes, dt_tensor *const *in,
                             int n, dt_tensor **out)
{
    const uint32_t flags = d->key.op->flags;
    const dt_tensor *shared = (flags & DT_OP_VIEW) != 0           ? in[0]
                              : (flags & DT_OP_INPLACE_LAST) != 0 ? in[n - 1]
                                                                  : NULL;
    dti_device *device = in[0]->device;
    dt_tensor *y;

    DT_TRY(dti_tensor_take(device, &y));
    y->mesh = dt_mesh_retain(in[0]->mesh);
    y->layout = d->out_layout;
    y->n_axes = d->out_axes;
    memcpy(y->shape, shapes->out_shape, sizeof y->shape);
    y->local = shapes->out_local;
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
            dt_mesh_coord(x->mesh, m) != 0)
            return false;
    return true;
}

static dt_status run_kernel(const dt_op *op, const void *attr, int n, dt_tensor *const *in,
                            int n_out, dt_tensor *const *y)
{
    dt_local locals[DT_OP_MAX_IN], results[DT_OP_MAX_OUT];
    static const uint64_t zeros[DT_OP_MAX_ATTR_BYTES / 8] = { 0 };
    const bool skip = (op->flags & DT_OP_ADDS_ONCE) != 0 && !adds_once(in[0]);
    dti_device *device = y[0]->device;
    dt_kargs args = {
        .in = locals, .out = results, .attr = skip ? zeros : attr, .n_in = n, .n_out = n_out
    };

    for (int i = 0; i < n; i++) locals[i] = in[i]->local;
    for (int r = 0; r < n_out; r++) results[r] = y[r]->local;
    DT_TRY(device->ops->run(device, op, &args));
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

static dt_status apply(dt_tape *t, const dt_op *op, const void *attr, int n, dt_tensor **in,
                       dt_tensor **out)
{
    const dti_op_memo *shapes = NULL;
    dti_decision *d = NULL;
    dti_op_key key;
    dt_status st;

    DT_TRY(check_meshes(op, n, in));
    DT_TRY(make_key(op, attr, n, in, 1, &key));
    DT_TRY(look_up(t, &key, in, n, &d));
    DT_TRY(shapes_of(d, in, n, &shapes));
    if (d->wants_moves) DT_TRY(move_operands(t, op, d->in_want, n, in));
    DT_TRY(make_result(d, shapes, in, n, out));
    if (runs_no_kernel(op, in[0])) return DT_OK;
    st = run_kernel(op, attr, n, in, 1, out);
    if (st != DT_OK) dt_tensor_release(out);
    return st;
}

/* One decision per result: a full cache may forget the one before, so each is used at once. All are
 * made before operands move, because a decision is for operands as they came. */
static dt_status make_results(dt_tape *t, dti_op_key *key, int n, dt_tensor *const *in,
                              const dt_layout **want, dt_tensor **out)
{
    const dti_op_memo *shapes = NULL;
    dti_decision *d = NULL;

    for (key->result = 0; key->result < key->n_out; key->result++) {
        DT_TRY(look_up(t, key, in, n, &d));
        DT_TRY(shapes_of(d, in, n, &shapes));
        if (key->result == 0) memcpy(want, d->in_want, (size_t)n * sizeof *want);
        DT_CHECK(memcmp(want, d->in_want, (size_t)n * sizeof *want) == 0, DT_ERR_LAYOUT,
                 "%s \"%s\": results 0 and %d want the operands to lie differently; redistribute "
                 "them first",
                 key->op->name, key->op->axes, (int)key->result);
        DT_TRY(make_result(d, shapes, in, n, &out[key->result]));
    }
    return DT_OK;
}

static dt_status apply_n(dt_tape *t, const dt_op *op, const void *attr, int n, dt_tensor **in,
                         int n_out, dt_tensor **out)
{
    const dt_layout *want[DT_OP_MAX_IN] = { NULL };
    dti_op_key key;

    DT_TRY(check_meshes(op, n, in));
    DT_TRY(make_key(op, attr, n, in, n_out, &key));
    DT_TRY(make_results(t, &key, n, in, want, out));
    DT_TRY(move_operands(t, op, want, n, in));
    if (!runs_no_kernel(op, in[0])) DT_TRY(run_kernel(op, attr, n, in, n_out, out));
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
    if (st == DT_OK) st = apply(t, op, attr, n, operands, &y);
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
    if (st == DT_OK) st = apply_n(t, op, attr, n, operands, n_out, y);
    if (st != DT_OK) {
        for (int r = 0; r < DT_OP_MAX_OUT; r++) dt_tensor_release(&y[r]);
        (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
        return;
    }
    for (int r = 0; r < n_out; r++) out[r] = dti_tape_push(t, y[r]);
    for (int r = 0; r < n_out && t->status != DT_OK; r++) out[r] = NULL; /* it could not grow */
}
