/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of an optimizer: tensors that lie as the parameters do, or what is kept elsewhere
 * (offload.h) and comes in windows. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/away.h"
#include "dtensor/create.h"
#include "dtensor/device/device.h"
#include "mesh/runtime.h"
#include "placements/overlap.h"
#include "training/optimizer.h"

static const char *const slot_names[DTI_N_SLOTS] = { "master", "exp_avg", "exp_avg_sq",
                                                     "momentum" };

static uint32_t slots_of(const dt_optimizer_options *o, dt_dtype dtype)
{
    uint32_t slots = 0;

    if (dtype != DT_F32 && o->masters) slots |= 1u << DTI_SLOT_MASTER;
    if (o->rule == DT_ADAMW) slots |= 1u << DTI_SLOT_EXP_AVG | 1u << DTI_SLOT_EXP_AVG_SQ;
    if (o->rule == DT_SGD && o->momentum > 0.0) slots |= 1u << DTI_SLOT_MOMENTUM;
    return slots;
}

/* "master.a.weight", "exp_avg.a.weight", ... each with its end. */
static dt_status name_slots(dti_trained *p)
{
    const size_t each = strlen(p->name) + 16;
    size_t at = 0;

    DT_TRY(dti_alloc(DTI_N_SLOTS * each, (void **)&p->state_names));
    for (int s = 0; s < DTI_N_SLOTS; s++, at += each)
        (void)snprintf(p->state_names + at, each, "%s.%s", slot_names[s], p->name);
    return DT_OK;
}

static const char *slot_name(const dti_trained *p, int s)
{
    return p->state_names + (size_t)s * (strlen(p->name) + 16);
}

static dt_status state_tensor(const dti_trained *p, bool exact, dt_tensor **out)
{
    int64_t shape[DT_MAX_AXES];

    for (int a = 0; a < dt_tensor_n_axes(p->x); a++) shape[a] = dt_tensor_extent(p->x, a);
    DT_TRY(exact ? dti_tensor_create_exact(dt_tensor_mesh(p->x), p->layout, DT_F32, shape, out)
                 : dti_tensor_create(dt_tensor_mesh(p->x), p->layout, DT_F32, shape, out));
    return DT_OK;
}

static void count_elements(dti_trained *p)
{
    const dt_mesh *mesh = dt_tensor_mesh(p->x);
    int64_t shape[DT_MAX_AXES];
    int coord[DT_MAX_DIMS];

    if (!dt_mesh_is_member(mesh)) return;
    for (int a = 0; a < dt_tensor_n_axes(p->x); a++) shape[a] = dt_tensor_extent(p->x, a);
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) coord[m] = dt_mesh_coord(mesh, m);
    p->n = dti_piece_count(p->layout, coord, shape);
}

static dt_status make_state(dt_optimizer *opt, dti_trained *p)
{
    p->slots = slots_of(&opt->options, dt_tensor_dtype(p->x));
    count_elements(p);
    DT_TRY(name_slots(p));
    if (opt->offload != NULL && p->slots != 0)
        return dti_offload_add(opt->offload, p->n, __builtin_popcount(p->slots), &p->item);
    if (opt->elsewhere) return DT_OK;
    for (int s = 0; s < DTI_N_SLOTS; s++) {
        if (!dti_has(p->slots, s)) continue;
        DT_TRY(state_tensor(p, true, &p->state[s]));
        dti_tensor_set_kind(p->state[s], DTI_KIND_STATES);
    }
    return DT_OK;
}

/* What the parameter is, in f32, where the state lies. */
static dt_status fill_master(dt_optimizer *opt, int64_t i)
{
    const dti_trained *p = &opt->params[i];
    dti_state_window w = { .n = 0 };
    dt_status st = DT_OK;
    dti_device *d;
    dt_tensor *y;

    DT_TRY(dti_device_of(dt_mesh_runtime(opt->mesh), &d));
    DT_TRY(dti_away_bring(p->x));
    DT_TRY(dt_redistribute_cast(p->x, p->layout->place, DT_F32, &y));
    DT_TRY_TO(done, st, dti_away_leave(p->x, false));
    while (!d->dry) {
        DT_TRY_TO(done, st, dti_state_next(opt, i, false, &w));
        if (w.n == 0) break;
        DT_TRY_TO(done, st,
                  d->ops->copy(d, w.slot[DTI_SLOT_MASTER],
                               (const float *)dt_tensor_local(y)->data + w.first,
                               (size_t)w.n * sizeof(float)));
    }
done:
    dt_tensor_release(&y);
    return st;
}

/* The host's memory is that of a rank that computes there. */
static dt_status open_elsewhere(dt_optimizer *opt)
{
    const dt_optimizer_options *o = &opt->options;
    dti_device *d;

    DT_TRY(dti_device_of(dt_mesh_runtime(opt->mesh), &d));
    if (o->offload == NULL || (strcmp(o->offload, "host") == 0 && !dti_runtime_is_on_gpu(d->rt)))
        return DT_OK;
    opt->elsewhere = true;
    if (d->dry || !dt_mesh_is_member(opt->mesh)) return DT_OK;
    DT_TRY(
        dti_offload_create(dt_mesh_runtime(opt->mesh), o->offload, o->window_bytes, &opt->offload));
    return DT_OK;
}

dt_status dti_state_create(dt_optimizer *opt)
{
    opt->lent_number = -1;
    DT_TRY(open_elsewhere(opt));
    for (int64_t i = 0; i < opt->n; i++) DT_TRY(make_state(opt, &opt->params[i]));
    if (opt->offload != NULL) DT_TRY(dti_offload_open(opt->offload));
    for (int64_t i = 0; i < opt->n; i++)
        if (dti_has(opt->params[i].slots, DTI_SLOT_MASTER)) DT_TRY(fill_master(opt, i));
    DT_TRY(dti_state_settle(opt));
    return DT_OK;
}

void dti_state_free(dt_optimizer *opt)
{
    dt_tensor_release(&opt->lent.value);
    for (int64_t i = 0; i < opt->n; i++) {
        for (int s = 0; s < DTI_N_SLOTS; s++) dt_tensor_release(&opt->params[i].state[s]);
        dti_free(opt->params[i].state_names);
    }
    dti_offload_free(&opt->offload);
}

/* --- windows ---------------------------------------------------------------------------------- */

dt_status dti_state_next(dt_optimizer *opt, int64_t i, bool reads, dti_state_window *w)
{
    const dti_trained *p = &opt->params[i];
    const bool first = w->n == 0;

    if (opt->offload == NULL || p->slots == 0) {
        *w = (dti_state_window){ .n = first ? p->n : 0 };
        for (int s = 0; s < DTI_N_SLOTS; s++)
            if (p->state[s] != NULL) w->slot[s] = dt_tensor_local(p->state[s])->data;
        return DT_OK;
    }
    if (first) w->at = (dti_window){ .item = p->item };
    DT_TRY(dti_offload_next(opt->offload, &w->at, reads));
    w->first = w->at.first;
    w->n = w->at.n;
    for (int s = 0, k = 0; s < DTI_N_SLOTS; s++)
        w->slot[s] = dti_has(p->slots, s) ? w->at.slot[k++] : NULL;
    return DT_OK;
}

dt_status dti_state_settle(dt_optimizer *opt)
{
    if (opt->offload != NULL) DT_TRY(dti_offload_settle(opt->offload));
    return DT_OK;
}

void dti_state_renew(dt_optimizer *opt)
{
    if (opt->offload != NULL) dti_offload_renew(opt->offload);
}

/* --- tensors ---------------------------------------------------------------------------------- */

bool dti_state_find(const dt_optimizer *opt, int64_t k, dti_state_ref *out)
{
    for (int64_t i = 0; k >= 0 && i < opt->n; i++)
        for (int s = 0; s < DTI_N_SLOTS; s++) {
            if (!dti_has(opt->params[i].slots, s) || k-- > 0) continue;
            *out = (dti_state_ref){ slot_name(&opt->params[i], s), i, s };
            return true;
        }
    return false;
}

/* Between a tensor and where its elements are. */
static dt_status copy_windows(dt_optimizer *opt, const dti_state_ref *ref, dt_tensor *x, bool back)
{
    float *const data = dt_tensor_local(x)->data;
    dti_state_window w = { .n = 0 };
    dti_device *d;

    DT_TRY(dti_device_of(dt_mesh_runtime(opt->mesh), &d));
    for (;;) {
        DT_TRY(dti_state_next(opt, ref->param, !back, &w));
        if (w.n == 0) return DT_OK;
        DT_TRY(d->ops->copy(d, back ? w.slot[ref->slot] : data + w.first,
                            back ? data + w.first : w.slot[ref->slot],
                            (size_t)w.n * sizeof(float)));
    }
}

dt_status dti_state_open(dt_optimizer *opt, const dti_state_ref *ref, dt_tensor **x)
{
    dti_trained *p = &opt->params[ref->param];
    dt_status st = DT_OK;

    *x = NULL;
    if (opt->offload == NULL) {
        if (p->state[ref->slot] != NULL) *x = dt_tensor_retain(p->state[ref->slot]);
        return DT_OK;
    }
    DT_TRY(state_tensor(p, false, x));
    st = copy_windows(opt, ref, *x, false);
    if (st == DT_OK) st = dti_state_settle(opt);
    if (st != DT_OK) dt_tensor_release(x);
    DT_TRY(st);
    return DT_OK;
}

dt_status dti_state_close(dt_optimizer *opt, const dti_state_ref *ref, bool was_written,
                          dt_tensor **x)
{
    dt_status st = DT_OK;

    if (opt->offload != NULL && was_written) {
        st = copy_windows(opt, ref, *x, true);
        if (st == DT_OK) st = dti_state_settle(opt);
    }
    dt_tensor_release(x);
    return st;
}

/* Of what lies elsewhere one tensor is lent at a time; it may have been written. */
dt_status dti_state_take_back(dt_optimizer *opt)
{
    dti_state_ref ref;

    if (opt->lent.value == NULL) return DT_OK;
    (void)dti_state_find(opt, opt->lent_number, &ref);
    opt->lent_number = -1;
    DT_TRY(dti_state_close(opt, &ref, true, &opt->lent.value));
    return DT_OK;
}

bool dt_optimizer_state_at(dt_optimizer *opt, int64_t i, dt_optimizer_state *out)
{
    dti_state_ref ref;

    if (opt == NULL || out == NULL) return false;
    if (opt->offload != NULL && i != opt->lent_number && dti_state_take_back(opt) != DT_OK)
        return false;
    if (!dti_state_find(opt, i, &ref)) return false;
    *out = (dt_optimizer_state){ ref.name, opt->params[ref.param].state[ref.slot] };
    if (opt->offload == NULL) return true;
    if (i != opt->lent_number && dti_state_open(opt, &ref, &opt->lent.value) == DT_OK)
        opt->lent_number = i;
    out->value = opt->lent.value; /* NULL: it cannot be fetched */
    return true;
}

int64_t dt_optimizer_state_bytes(const dt_optimizer *opt)
{
    int64_t bytes = 0;

    for (int64_t i = 0; opt != NULL && i < opt->n; i++)
        bytes += 4 * opt->params[i].n * __builtin_popcount(opt->params[i].slots);
    return bytes;
}
