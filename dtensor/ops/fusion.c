/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of fusions, and the calls that wait for the rest of theirs.
 *
 * A chain is what happens to one tensor, stage by stage; a group is the chains that one kernel does
 * side by side. There is at most one group of each fusion. A call goes on with a chain, begins one,
 * or is none of our rows; before that, each group that it depends on is started: one that writes
 * what the call touches, or touches what the call writes. What does not depend on a group may
 * overtake it, so the projection of keys may stand between the norm of queries and their rotation.
 *
 * A result is new memory, and what is held is not given back: so only rows that write in place
 * (kv_write) can meet memory of other calls, and comparing storages finds that. */
#include "dtensor/ops/fusion.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/kernels/fused.h"
#include "dtensor/ops/op_rules.h"

enum { MAX_IN = 3, MAX_FORMS = 4, MAX_ATTR_BYTES = 8, MAX_CALLS = 9 };

/* A call by value, with a reference of each tensor. */
typedef struct held_call {
    const dt_op *op; /* NULL: does not happen */
    int n_in, form;
    dt_tensor *in[MAX_IN], *out;
    unsigned char attr[MAX_ATTR_BYTES];
} held_call;

typedef struct chain {
    int stage; /* the last one that it has come to */
    held_call calls[DTI_FUSED_STAGES];
} chain;

typedef struct group {
    int n;
    chain chains[DTI_FUSED_CHAINS];
} group;

struct dti_fusion {
    bool off;
    group groups[DTI_N_FUSED];
    dt_status unheard; /* of a start that nobody has heard of, and its words */
    dt_error why;
};

/* --- the table -------------------------------------------------------------------------------- */

/* Sums of tensors as large as the sum: none is repeated. */
static bool adds_alike(const group *g, const chain *c, const dti_row_call *call)
{
    const int64_t n = dti_tensor_count(call->out[0]);

    (void)g;
    return c != NULL || (dti_tensor_count(call->in[0]) == n && dti_tensor_count(call->in[1]) == n);
}

/* Heads that a warp keeps, as those of the chain and of the dtype of the group. Blocks of a kernel
 * count in 31 bits, and a block has at least four heads. */
static bool are_heads(const group *g, const chain *c, const dti_row_call *call)
{
    const dt_local *x = &call->in[0]->local;

    return x->n_axes == 4 &&
           x->shape[3] * (int64_t)dt_dtype_size(x->dtype) <= DTI_FUSED_HEAD_BYTES &&
           dti_tensor_count(call->in[0]) / x->shape[3] <= (int64_t)1 << 30 &&
           (g->n == 0 || g->chains[0].calls[g->chains[0].stage].out->local.dtype == x->dtype) &&
           (c == NULL ||
            memcmp(c->calls[c->stage].out->local.shape, x->shape, 4 * sizeof x->shape[0]) == 0);
}

typedef struct fusion_row {
    const dt_op *stages[DTI_FUSED_STAGES][MAX_FORMS]; /* in this order; by dti_norm_form */
    bool whole;   /* all stages happen, and the last one ends it; else some do */
    int n_chains; /* at most */
    bool (*fits)(const group *g, const chain *c, const dti_row_call *call); /* c NULL: begins one */
} fusion_row;

#define RMS_NORMS &dti_op_rms_norm, &dti_op_rms_norm_once, &dti_op_rms_norm_1p
/* clang-format off */
static const fusion_row fusions[DTI_N_FUSED] = {
/*                           stages                                                    whole  chains  fits */
    [DTI_FUSED_ADD_NORM] = { { { &dti_op_add }, { RMS_NORMS, &dti_op_layer_norm } },      true,  1, adds_alike },
    [DTI_FUSED_HEADS]    = { { { RMS_NORMS }, { &dti_op_rope }, { &dti_op_kv_write } },   false, 3, are_heads },
};
/* clang-format on */
#undef RMS_NORMS

/* The stage that `op` is of the fusion, and its form; -1. */
static int stage_of(const fusion_row *row, const dt_op *op, int *form)
{
    for (int s = 0; s < DTI_FUSED_STAGES; s++)
        for (*form = 0; *form < MAX_FORMS; (*form)++)
            if (row->stages[s][*form] == op) return s;
    return -1;
}

static bool is_last(const fusion_row *row, int stage)
{
    return stage + 1 == DTI_FUSED_STAGES || row->stages[stage + 1][0] == NULL;
}

/* --- starting ---------------------------------------------------------------------------------*/

static void release(group *g)
{
    for (int k = 0; k < g->n; k++)
        for (int s = 0; s < DTI_FUSED_STAGES; s++) {
            held_call *h = &g->chains[k].calls[s];
            if (h->op == NULL) continue;
            for (int i = 0; i < h->n_in; i++) dt_tensor_release(&h->in[i]);
            dt_tensor_release(&h->out);
        }
    g->n = 0;
}

/* A held call as its kernel sees it. */
typedef struct call_args {
    dt_local in[MAX_IN], out;
    dt_kargs args;
} call_args;

static const dt_kargs *arguments_of(const held_call *h, call_args *a)
{
    for (int i = 0; i < h->n_in; i++) a->in[i] = h->in[i]->local;
    a->out = h->out->local;
    a->args =
        (dt_kargs){ .in = a->in, .out = &a->out, .attr = h->attr, .n_in = h->n_in, .n_out = 1 };
    return &a->args;
}

/* One kernel for all of it; a call that has stayed alone has its own. */
static dt_status run(dti_device *d, dti_fused which, const group *g, char *names, size_t size)
{
    dti_fused_chain chains[DTI_FUSED_CHAINS] = { { { NULL }, { 0 } } };
    call_args args[MAX_CALLS];
    const dt_op *op = NULL;
    int n = 0, used = 0;

    for (int k = 0; k < g->n; k++)
        for (int s = 0; s < DTI_FUSED_STAGES; s++) {
            const held_call *h = &g->chains[k].calls[s];
            if (h->op == NULL) continue;
            op = h->op;
            used +=
                snprintf(names + used, size - (size_t)used, "%s%s", n > 0 ? ", " : "", op->name);
            chains[k].call[s] = arguments_of(h, &args[n++]);
            chains[k].form[s] = h->form;
        }
    return n == 1 ? dti_kernel_said(op->name, d->ops->run_beside(d, op, &args[0].args))
                  : d->ops->run_fused(d, which, chains, g->n);
}

static dt_status start(dti_device *d, dti_fused which)
{
    group held = d->fusion->groups[which];
    char names[MAX_CALLS * 16];
    dt_status st;

    if (held.n == 0) return DT_OK;
    d->fusion->groups[which].n = 0; /* a kernel of the host settles, too */
    st = run(d, which, &held, names, sizeof names);
    release(&held);
    if (st != DT_OK) dti_error_prefix("earlier work, %s, could not be started", names);
    DT_TRY(st);
    return DT_OK;
}

/* What nobody has heard of. */
static dt_status tell(dti_device *d)
{
    const dt_status st = d->fusion->unheard;

    if (st == DT_OK) return DT_OK;
    d->fusion->unheard = DT_OK;
    dti_error_restore(&d->fusion->why);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

dt_status dti_fusion_settle(dti_device *d)
{
    if (d->fusion == NULL) return DT_OK;
    DT_TRY(tell(d));
    for (int w = 0; w < DTI_N_FUSED; w++) DT_TRY(start(d, (dti_fused)w));
    return DT_OK;
}

void dti_fusion_settle_unheard(dti_device *d)
{
    struct dti_fusion *f = d->fusion;
    dt_error before;

    for (int w = 0; f != NULL && w < DTI_N_FUSED; w++) {
        dt_status st;
        if (f->groups[w].n == 0) continue;
        before = *dt_last_error();
        st = start(d, (dti_fused)w);
        if (st == DT_OK) continue;
        if (f->unheard == DT_OK) f->why = *dt_last_error();
        if (f->unheard == DT_OK) f->unheard = st;
        dti_error_restore(&before);
    }
}

/* --- holding ----------------------------------------------------------------------------------*/

static bool is_float(dt_dtype t)
{
    return t == DT_F32 || t == DT_BF16 || t == DT_F16;
}

/* Something to do, for which a kernel would not be refused. */
static bool can_be_held(const dti_row_call *c)
{
    if (c->n_in > MAX_IN || c->n_out != 1) return false;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]->local.data == NULL || dti_tensor_count(c->in[i]) == 0) return false;
    return is_float(c->in[0]->local.dtype) && c->out[0]->local.dtype == c->in[0]->local.dtype;
}

/* The same elements, perhaps seen with other axes. */
static bool is_value(const dt_tensor *x, const dt_tensor *y)
{
    return x->storage == y->storage && x->local.data == y->local.data &&
           x->local.dtype == y->local.dtype && dti_tensor_count(x) == dti_tensor_count(y);
}

/* Where a call has its place. */
typedef struct place {
    dti_fused which;
    chain *chain; /* NULL: nowhere */
    int stage, form;
} place;

/* The chain whose result the call goes on with. */
static place going_on(struct dti_fusion *f, const dti_row_call *call)
{
    for (int w = 0; w < DTI_N_FUSED; w++) {
        group *g = &f->groups[w];
        place at = { (dti_fused)w, NULL, 0, 0 };
        at.stage = stage_of(&fusions[w], call->op, &at.form);
        for (int k = 0; k < g->n; k++) {
            chain *c = &g->chains[k];
            if (at.stage <= c->stage || !is_value(c->calls[c->stage].out, call->in[0]) ||
                !fusions[w].fits(g, c, call))
                continue;
            at.chain = c;
            return at;
        }
    }
    return (place){ DTI_N_FUSED, NULL, 0, 0 };
}

/* The chain that the call begins; a group that has no room for it, or is of another kind, is
 * started first. */
static dt_status beginning(dti_device *d, const dti_row_call *call, place *at)
{
    static const group none = { .n = 0 };

    for (int w = 0; w < DTI_N_FUSED; w++) {
        group *g = &d->fusion->groups[w];
        at->which = (dti_fused)w;
        at->stage = stage_of(&fusions[w], call->op, &at->form);
        if (at->stage < 0 || (fusions[w].whole && at->stage > 0) ||
            !fusions[w].fits(&none, NULL, call))
            continue;
        if (g->n == fusions[w].n_chains || !fusions[w].fits(g, NULL, call))
            DT_TRY(start(d, at->which));
        at->chain = &g->chains[g->n++];
        memset(at->chain, 0, sizeof *at->chain);
        return DT_OK;
    }
    return DT_OK;
}

/* Whether one of them must come after the other. What the call gets from its chain is no reason. */
static bool touches(const group *g, const dti_row_call *call, const chain *own)
{
    for (int k = 0; k < g->n; k++)
        for (int s = 0; s < DTI_FUSED_STAGES; s++) {
            const held_call *h = &g->chains[k].calls[s];
            if (h->op == NULL) continue;
            for (int i = own != NULL ? 1 : 0; i < call->n_in; i++)
                if (call->in[i]->storage == h->out->storage) return true;
            for (int r = 0; r < call->n_out; r++) {
                if (call->out[r]->storage == h->out->storage) return true;
                for (int i = 0; i < h->n_in; i++)
                    if (call->out[r]->storage == h->in[i]->storage) return true;
            }
        }
    return false;
}

static void hold(const place *at, const dti_row_call *call)
{
    held_call *h = &at->chain->calls[at->stage];

    DT_ASSERT(call->op->attr_bytes <= MAX_ATTR_BYTES);
    *h = (held_call){ .op = call->op, .n_in = call->n_in, .form = at->form };
    for (int i = 0; i < call->n_in; i++) h->in[i] = dt_tensor_retain(call->in[i]);
    h->out = dt_tensor_retain(call->out[0]);
    if (call->op->attr_bytes > 0) memcpy(h->attr, call->attr, call->op->attr_bytes);
    at->chain->stage = at->stage;
}

dt_status dti_fusion_take(dti_device *d, const dti_row_call *call, bool *taken)
{
    struct dti_fusion *f = d->fusion;
    place at = { DTI_N_FUSED, NULL, 0, 0 };
    const bool ours = f != NULL && !f->off && can_be_held(call);

    *taken = false;
    if (f == NULL) return DT_OK;
    DT_TRY(tell(d));
    if (ours) at = going_on(f, call);
    for (int w = 0; w < DTI_N_FUSED; w++) {
        if (!touches(&f->groups[w], call, at.chain)) continue;
        DT_TRY(start(d, (dti_fused)w));
        if (at.which == (dti_fused)w) at.chain = NULL;
    }
    if (ours && at.chain == NULL) DT_TRY(beginning(d, call, &at));
    if (at.chain == NULL) return DT_OK;
    hold(&at, call);
    *taken = true;
    if (fusions[at.which].whole && is_last(&fusions[at.which], at.stage))
        DT_TRY(start(d, at.which));
    return DT_OK;
}

/* --- of a device ------------------------------------------------------------------------------ */

dt_status dti_fusion_open(dti_device *d)
{
    DT_TRY(dti_new(sizeof *d->fusion, &d->fusion));
    return DT_OK;
}

void dti_fusion_close(dti_device *d)
{
    if (d->fusion == NULL) return;
    for (int w = 0; w < DTI_N_FUSED; w++) release(&d->fusion->groups[w]);
    dti_free(d->fusion);
    d->fusion = NULL;
}

void dti_fusion_set(dti_device *d, bool on)
{
    dti_fusion_settle_unheard(d);
    if (d->fusion != NULL) d->fusion->off = !on;
}
