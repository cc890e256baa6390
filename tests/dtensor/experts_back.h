/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of experts_backward, what float64 makes of them, and how far kernels may be off. */
#ifndef DT_TEST_EXPERTS_BACK_H
#define DT_TEST_EXPERTS_BACK_H

#include "tests/dtensor/test_kernels.h"

enum { DY, X, IDS, WEIGHTS, GATE_UP, DOWN };
enum { DX, DWEIGHTS, DGATE_UP, DDOWN, N_RESULTS };

typedef struct back_case {
    int64_t tokens, k, experts, d, f;
    int64_t first, all; /* this rank's experts begin at `first` of `all` */
} back_case;

/* clang-format off */
static const back_case back_cases[] = {
    { 7, 2, 5, 12, 9, 0, 5 },   { 1, 3, 6, 33, 7, 0, 6 },
    { 90, 2, 3, 20, 16, 0, 3 }, /* tokens for panels, and an expert that nobody chose */
    { 3, 2, 2, 5, 530, 0, 2 },  /* more than a block of h */
    { 9, 3, 2, 12, 9, 3, 7 },   /* experts 3 and 4 of 7 */
    { 9, 2, 0, 12, 9, 7, 7 },   /* none of them */
    { 0, 2, 3, 12, 9, 0, 3 },   { 5, 2, 3, 12, 0, 0, 3 },
};
/* clang-format on */

/* A sum of terms, and of what each may be off by: one rounding the other way before it, and f32. */
static inline void add_term(kt_case *c, int result, int64_t at, double term, double size)
{
    if (result != c->which) return;
    c->want[at] += term;
    c->slack[at] += size * (4 * kt_unit(c->in[X].dtype) + 0x1p-18);
}

/* One of h's elements: what the way forward made of it, and its gradients. */
typedef struct inner {
    double h, dgate, dup;
    double h_size, size; /* of the terms of h, and of both gradients */
} inner;

/* Element i of an expert's h for token t in slot s, and what it adds to dweights. */
static inline inner expect_inner(kt_case *c, const back_case *x, int64_t t, int64_t s, int64_t e,
                                 int64_t i)
{
    const dt_dtype dtype = c->in[X].dtype;
    const double w = kt_get(&c->in[WEIGHTS], t * x->k + s);
    double gate = 0, up = 0, v = 0, gate_size = 0, up_size = 0, size = 0, soft, slope;
    inner out;

    for (int64_t n = 0; n < x->d; n++) {
        const double at = kt_get(&c->in[X], t * x->d + n);
        const double term =
            kt_get(&c->in[DY], t * x->d + n) * kt_get(&c->in[DOWN], (e * x->d + n) * x->f + i);
        const double to_gate = at * kt_get(&c->in[GATE_UP], (e * 2 * x->f + i) * x->d + n);
        const double to_up = at * kt_get(&c->in[GATE_UP], (e * 2 * x->f + x->f + i) * x->d + n);
        gate += to_gate;
        gate_size += fabs(to_gate);
        up += to_up;
        up_size += fabs(to_up);
        v += term;
        size += fabs(term);
    }
    gate = kt_round(dtype, gate);
    up = kt_round(dtype, up);
    soft = 1 / (1 + exp(-gate));
    slope = soft * (1 + gate * (1 - soft));
    out.h = kt_round(dtype, kt_round(dtype, gate * soft) * up);
    out.h_size = 1.1 * (gate_size * fabs(up) + fabs(gate) * up_size);
    add_term(c, DWEIGHTS, t * x->k + s, v * out.h, size * out.h_size);
    out.dgate = kt_round(dtype, w * v * up * slope);
    out.dup = kt_round(dtype, w * v * gate * soft);
    out.size = fabs(w) * size * (1.1 * up_size + gate_size + 1);
    out.h_size *= fabs(w);
    out.h = kt_round(dtype, w * out.h);
    return out;
}

static inline void expect_slot(kt_case *c, const back_case *x, int64_t t, int64_t s, int64_t e)
{
    for (int64_t i = 0; i < x->f; i++) {
        const inner z = expect_inner(c, x, t, s, e, i);
        const int64_t gate = e * 2 * x->f + i, up = gate + x->f;
        for (int64_t n = 0; n < x->d; n++) {
            const double at = kt_get(&c->in[X], t * x->d + n);
            const double dy = kt_get(&c->in[DY], t * x->d + n);
            const double to_gate = kt_get(&c->in[GATE_UP], gate * x->d + n);
            const double to_up = kt_get(&c->in[GATE_UP], up * x->d + n);
            add_term(c, DX, t * x->d + n, z.dgate * to_gate + z.dup * to_up,
                     z.size * (fabs(to_gate) + fabs(to_up)));
            add_term(c, DGATE_UP, gate * x->d + n, z.dgate * at, z.size * fabs(at));
            add_term(c, DGATE_UP, up * x->d + n, z.dup * at, z.size * fabs(at));
            add_term(c, DDOWN, (e * x->d + n) * x->f + i, dy * z.h, fabs(dy) * z.h_size);
        }
    }
}

/* A call of which result `which` of n_out is looked at: the first two are `out`. */
static inline kt_case make_back(dt_dtype t, const back_case *x, int which, int n_out, dt_dtype out,
                                const dti_experts_backward_attr *attr)
{
    const int64_t rows[] = { x->tokens, x->d }, k_shape[] = { x->tokens, x->k };
    const int64_t gate_up[] = { x->experts, 2 * x->f, x->d }, down[] = { x->experts, x->d, x->f };
    kt_case c = { .name = "experts_backward",
                  .kernel = dti_experts_backward_cpu,
                  .n_in = 6,
                  .n_out = n_out,
                  .which = which,
                  .attr = attr };
    int32_t *ids;

    c.in[DY] = kt_filled(t, 2, rows, KT_UNIFORM, 7);
    c.in[X] = kt_filled(t, 2, rows, KT_UNIFORM, 1);
    c.in[IDS] = kt_local(DT_I32, 2, k_shape);
    c.in[WEIGHTS] = kt_filled(t, 2, k_shape, KT_UNIFORM, 2);
    c.in[GATE_UP] = kt_filled(t, 3, gate_up, KT_UNIFORM, 3);
    c.in[DOWN] = kt_filled(t, 3, down, KT_UNIFORM, 4);
    c.in[GATE_UP].offset[0] = c.in[DOWN].offset[0] = x->first;
    for (int r = 0; r < n_out; r++) {
        const dt_local result = kt_local(r < DGATE_UP ? out : DT_F32, r < DGATE_UP ? 2 : 3,
                                         r == DX         ? rows
                                         : r == DWEIGHTS ? k_shape
                                         : r == DGATE_UP ? gate_up
                                                         : down);
        c.others[r] = result;
        if (r == which) c.out = result;
    }
    kt_release(&c.others[which]);
    c.out.data = NULL;
    kt_expect(&c);
    ids = c.in[IDS].data;
    for (int64_t i = 0; i < x->tokens * x->k; i++)
        ids[i] = (int32_t)((i / x->k * (i / x->k) + i % x->k) % x->all);
    for (int64_t i = 0; i < x->tokens; i++)
        for (int64_t s = 0; s < x->k; s++) {
            const int64_t e = ids[i * x->k + s] - x->first;
            if (e >= 0 && e < x->experts) expect_slot(&c, x, i, s, e);
        }
    return c;
}

#endif
