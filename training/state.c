/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of an optimizer, parameter by parameter. Who keeps it elsewhere changes fetch and put
 * back. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/create.h"
#include "dtensor/kernels/kernel.h"
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

/* What the parameter is, in f32, where the state lies. */
static dt_status fill_master(dti_trained *p, dt_tensor *master)
{
    const int64_t bytes = dti_local_count(dt_tensor_local(master)) * 4;
    dt_tensor *y;
    dt_status st;

    DT_TRY(dt_redistribute_cast(p->x, p->layout->place, DT_F32, &y));
    st = dti_tensor_copy_bytes(master, 0, y, 0, dt_mesh_is_member(dt_tensor_mesh(y)) ? bytes : 0);
    dt_tensor_release(&y);
    DT_TRY(st);
    return DT_OK;
}

dt_status dti_state_create(dt_optimizer *opt, int64_t i)
{
    dti_trained *p = &opt->params[i];
    int64_t shape[DT_MAX_AXES];

    p->slots = slots_of(&opt->options, dt_tensor_dtype(p->x));
    DT_TRY(name_slots(p));
    for (int a = 0; a < dt_tensor_n_axes(p->x); a++) shape[a] = dt_tensor_extent(p->x, a);
    for (int s = 0; s < DTI_N_SLOTS; s++) {
        if (!dti_has(p->slots, s)) continue;
        DT_TRY(dti_tensor_create_exact(opt->mesh, p->layout, DT_F32, shape, &p->state[s]));
        dti_tensor_set_kind(p->state[s], DTI_KIND_STATES);
    }
    if (dti_has(p->slots, DTI_SLOT_MASTER)) DT_TRY(fill_master(p, p->state[DTI_SLOT_MASTER]));
    return DT_OK;
}

void dti_state_free(dti_trained *p)
{
    for (int s = 0; s < DTI_N_SLOTS; s++) dt_tensor_release(&p->state[s]);
    dti_free(p->state_names);
}

dt_status dti_state_fetch(dt_optimizer *opt, int64_t i, dt_tensor *state[DTI_N_SLOTS])
{
    memcpy(state, opt->params[i].state, sizeof opt->params[i].state);
    return DT_OK;
}

dt_status dti_state_put_back(dt_optimizer *opt, int64_t i, dt_tensor *state[DTI_N_SLOTS])
{
    (void)opt;
    (void)i;
    memset(state, 0, DTI_N_SLOTS * sizeof *state);
    return DT_OK;
}

bool dt_optimizer_state_at(dt_optimizer *opt, int64_t i, dt_optimizer_state *out)
{
    for (int64_t k = 0; opt != NULL && out != NULL && i >= 0 && k < opt->n; k++)
        for (int s = 0; s < DTI_N_SLOTS; s++) {
            const dti_trained *p = &opt->params[k];
            if (!dti_has(p->slots, s) || i-- > 0) continue;
            *out = (dt_optimizer_state){ slot_name(p, s), p->state[s] };
            return true;
        }
    return false;
}

int64_t dt_optimizer_state_bytes(const dt_optimizer *opt)
{
    int64_t bytes = 0;

    if (opt == NULL || !dt_mesh_is_member(opt->mesh)) return 0;
    for (int64_t i = 0; i < opt->n; i++)
        for (int s = 0; s < DTI_N_SLOTS; s++)
            if (opt->params[i].state[s] != NULL)
                bytes += 4 * dti_local_count(dt_tensor_local(opt->params[i].state[s]));
    return bytes;
}
