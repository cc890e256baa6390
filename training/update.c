/* SPDX-License-Identifier: Apache-2.0 */
#include "training/update.h"

#include <math.h>
#include <string.h>

#include "dtensor/host.h"
#include "dtensor/kernels/kernel.h"
#include "dtensor/leaves.h"

dti_update dti_update_of(const dt_optimizer *opt, const dti_trained *p, double lr,
                         double clip_factor)
{
    const dt_optimizer_options *o = &opt->options;
    const double k = (double)(opt->steps + 1), rate = lr * p->lr_factor;
    dti_update u = { .rule = o->rule, .first = opt->steps == 0, .nesterov = o->nesterov };

    u.scale = (float)clip_factor * (float)(1.0 / opt->loss_scale);
    if (o->rule == DT_SGD) {
        u.decay = (float)p->weight_decay;
        u.momentum = (float)o->momentum;
        u.undamped = (float)(1.0 - o->dampening);
        u.step = (float)-rate;
        return u;
    }
    u.decay = (float)(1.0 - rate * p->weight_decay);
    u.beta1_rest = (float)(1.0 - o->beta1);
    u.beta2 = (float)o->beta2;
    u.beta2_rest = (float)(1.0 - o->beta2);
    u.step = (float)(-rate / (1.0 - pow(o->beta1, k)));
    u.root2 = (float)sqrt(1.0 - pow(o->beta2, k));
    u.eps = (float)o->eps;
    return u;
}

static void adamw(const dti_update *u, int64_t n, float *p, const float *gs, float *m, float *v)
{
    for (int64_t i = 0; i < n; i++) {
        const float g = gs[i] * u->scale, x = p[i] * u->decay, off = g - m[i];
        m[i] = u->beta1_rest < 0.5f ? m[i] + u->beta1_rest * off : g - off * (1.0f - u->beta1_rest);
        v[i] = v[i] * u->beta2 + u->beta2_rest * g * g;
        p[i] = x + u->step * m[i] / (sqrtf(v[i]) / u->root2 + u->eps);
    }
}

static void sgd(const dti_update *u, int64_t n, float *p, const float *gs, float *b)
{
    for (int64_t i = 0; i < n; i++) {
        float g = gs[i] * u->scale;
        if (u->decay != 0.0f) g += u->decay * p[i];
        if (b != NULL) {
            b[i] = u->first ? g : b[i] * u->momentum + u->undamped * g;
            g = u->nesterov ? g + u->momentum * b[i] : b[i];
        }
        p[i] += u->step * g;
    }
}

enum { MAX_PIECES = 4 };

/* The pieces of n tensors as the host sees them; the first `read` are only read. */
static dt_status open_all(dt_tensor *const *x, int n, int read, dti_host *out)
{
    for (int i = 0; i < n; i++) {
        if (x[i] == NULL) continue;
        DT_TRY(dti_host_open(x[i], DTI_HOST_READS, &out[i]));
        if (i >= read) out[i].use = DTI_HOST_WRITES;
    }
    return DT_OK;
}

static dt_status close_all(dti_host *h, int n, dt_status st)
{
    for (int i = 0; i < n; i++)
        if (h[i].x != NULL) st = dti_host_close(&h[i], st);
    return st;
}

dt_status dti_update_run(const dti_update *u, dt_tape *t, dt_tensor *x, dt_tensor *g,
                         dt_tensor *const state[DTI_N_SLOTS])
{
    const bool adam = u->rule == DT_ADAMW;
    dt_tensor *all[MAX_PIECES] = { g, x, adam ? state[DTI_SLOT_EXP_AVG] : state[DTI_SLOT_MOMENTUM],
                                   adam ? state[DTI_SLOT_EXP_AVG_SQ] : NULL };
    const int64_t n = dti_local_count(dt_tensor_local(x));
    dti_host h[MAX_PIECES] = { { .x = NULL } };
    dt_status st = open_all(all, MAX_PIECES, 1, h);
    const int moved = adam ? 7 : all[2] != NULL ? 5 : 3;

    if (st == DT_OK && h[0].local.data != NULL) {
        float *p = h[1].local.data, *m = all[2] != NULL ? h[2].local.data : NULL;
        if (adam)
            adamw(u, n, p, h[0].local.data, m, h[3].local.data);
        else
            sgd(u, n, p, h[0].local.data, m);
    }
    dti_tape_add_work(t, (double)n * (adam ? 14 : 6), (double)n * 4 * moved);
    DT_TRY(close_all(h, MAX_PIECES, st));
    return DT_OK;
}

/* The 16 bits that bf16 lacks, plus as many random ones: what carries over rounds up. */
static uint16_t round_up_at_random(float x, float noise)
{
    const uint32_t random = (uint32_t)(noise * 65536.0f);
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) return (uint16_t)(bits >> 16); /* infinite, none */
    return (uint16_t)((bits + random) >> 16);
}

dt_status dti_round_at_random(dt_tape *t, dt_tensor *x, dt_tensor *noise, dt_tensor *to)
{
    dt_tensor *all[] = { x, noise, to };
    const int64_t n = dti_local_count(dt_tensor_local(x));
    dti_host h[3] = { { .x = NULL } };
    const dt_status st = open_all(all, 3, 2, h);

    if (st == DT_OK && h[0].local.data != NULL)
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)h[2].local.data)[i] = round_up_at_random(
                ((const float *)h[0].local.data)[i], ((const float *)h[1].local.data)[i]);
    dti_tape_add_work(t, (double)n * 2, (double)n * 10);
    DT_TRY(close_all(h, 3, st));
    return DT_OK;
}
