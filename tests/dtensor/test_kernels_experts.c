/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of a mixture of experts against float64: routing with ties and odd values, experts with
 * many tokens, one and none. */
#include "tests/dtensor/test_kernels.h"

/* --- routing ---------------------------------------------------------------------------------- */

static void check_ids(const kt_case *c, const void *got)
{
    static const int32_t want[] = { 2, 0, 1, 0, 1, 2, 3, 4, 0, 4, 1, 3 };

    DT_ASSERT(memcmp(got, want, sizeof want) == 0);
    (void)c;
}

DT_TEST(kernels_experts, the_largest_logits_choose_and_the_first_of_equals_wins)
{
    static const float logits[] = { 3,         1,  5,  0,     -7,  /* in order: 2 0 1 */
                                    2,         2,  2,  2,     2,   /* equals: 0 1 2 */
                                    0,         -9, -9, 1e30f, 1,   /* 3 4 0 */
                                    -INFINITY, 4,  -1, 2,     5 }; /* 4 1 3 */
    const int64_t shape[] = { 4, 5 };
    const dti_route_attr attr = { .k = 3 };

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        kt_case c = { .name = "route_ids", .kernel = dti_route_ids_cpu, .n_in = 1, .attr = &attr };
        c.in[0] = kt_local(kt_floats[t], 2, shape);
        for (int i = 0; i < 20; i++) dti_store_f32(c.in[0].data, kt_floats[t], i, logits[i]);
        c.out = (dt_local){ .dtype = DT_I32, .n_axes = 2, .shape = { 4, 3 } };
        c.check = check_ids;
        kt_run(&c);
    }
}

/* Two of three groups by the sum of their two best, then three experts of these; what a bias moves
 * into a group counts there, and a lower group wins a tie. */
static void check_groups(const kt_case *c, const void *got)
{
    static const int32_t plain[] = { 6, 5, 4, 0, 1, 2 }, biased[] = { 8, 5, 4, 8, 7, 0 };

    DT_ASSERT(memcmp(got, c->n_in == 1 ? plain : biased, sizeof plain) == 0);
}

DT_TEST(kernels_experts, the_best_groups_are_chosen_from)
{
    static const float logits[] = { 0, 2, -3, -9, 3,
                                    4, 5, -9, 1, /* two best of each: 1.38, 1.94, 1.72 */
                                    1, 1, 1,  1,  1,
                                    1, 1, 1,  1 }; /* equals: the first groups */
    static const float bias[] = { 0, 0, 0, 0, 0, 0, -1, 0.5f, 2 };
    const int64_t shape[] = { 2, 9 };
    const dti_route_attr attr = {
        .k = 3, .scores = DT_ROUTE_SIGMOID, .n_groups = 3, .n_chosen_groups = 2
    };

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (int n_in = 1; n_in <= 2; n_in++) {
            kt_case c = {
                .name = "route_ids", .kernel = dti_route_ids_cpu, .n_in = n_in, .attr = &attr
            };
            c.in[0] = kt_local(kt_floats[t], 2, shape);
            for (int i = 0; i < 18; i++) dti_store_f32(c.in[0].data, kt_floats[t], i, logits[i]);
            if (n_in == 2) c.in[1] = kt_local(DT_F32, 1, shape + 1);
            for (int i = 0; n_in == 2 && i < 9; i++)
                dti_store_f32(c.in[1].data, DT_F32, i, bias[i]);
            c.out = (dt_local){ .dtype = DT_I32, .n_axes = 2, .shape = { 2, 3 } };
            c.check = check_groups;
            kt_run(&c);
        }
}

static void run_weights(dt_dtype t, bool normalise, bool sigmoid, kt_fill fill)
{
    enum { ROWS = 6, E = 9, K = 3 };
    const int64_t shape[] = { ROWS, E }, ids_shape[] = { ROWS, K };
    const dti_route_attr attr = { .normalise = normalise,
                                  .scores = sigmoid ? DT_ROUTE_SIGMOID : DT_ROUTE_SOFTMAX,
                                  .scale = sigmoid ? 2.5f : 0.0f };
    kt_case c = {
        .name = "route_weights", .kernel = dti_route_weights_cpu, .n_in = 2, .attr = &attr
    };
    int32_t *ids;

    c.in[0] = kt_filled(t, 2, shape, fill, 5);
    c.in[1] = kt_local(DT_I32, 2, ids_shape);
    c.out = (dt_local){ .dtype = t, .n_axes = 2, .shape = { ROWS, K } };
    kt_expect(&c);
    ids = c.in[1].data;
    for (int i = 0; i < ROWS * K; i++) ids[i] = i * 5 % E;
    for (int r = 0; r < ROWS; r++) {
        double sum = 0, chosen = 0, most = -INFINITY;
        for (int e = 0; e < E; e++) most = fmax(most, kt_get(&c.in[0], r * E + e));
        for (int e = 0; e < E; e++) sum += exp(kt_get(&c.in[0], r * E + e) - most);
        for (int i = r * K; i < (r + 1) * K; i++) {
            const double x = kt_get(&c.in[0], r * E + ids[i]);
            c.want[i] = sigmoid ? 1 / (1 + exp(-x)) : exp(x - most) / sum;
            chosen += c.want[i];
        }
        for (int i = r * K; i < (r + 1) * K; i++) {
            if (normalise) c.want[i] = chosen > 0 ? c.want[i] / chosen : NAN;
            if (sigmoid) c.want[i] *= 2.5;
            c.slack[i] = 0x1p-20 * fabs(c.want[i]);
        }
    }
    kt_run(&c);
}

DT_TEST(kernels_experts, weights_are_the_softmax_over_all_experts_or_sigmoids)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (int way = 0; way < 4; way++) {
            run_weights(kt_floats[t], way & 1, way >> 1, KT_UNIFORM);
            run_weights(kt_floats[t], way & 1, way >> 1, KT_EQUAL);
        }
}

/* --- experts ---------------------------------------------------------------------------------- */

typedef struct experts_case {
    int64_t tokens, k, experts, d, f;
    int64_t first, all; /* this rank's experts begin at `first` of `all` */
    dt_dtype out;
    bool clamped, second; /* and of those that share an expert not the first */
} experts_case;

static const dti_experts_clamped_attr clamp = { .limit = 0.4f, .alpha = 1.7f };

/* What becomes of gate and up, of rows `gate` and `up` of the weight. */
static double expect_inner(const kt_case *c, const experts_case *x, int64_t e, int64_t i,
                           double gate, double up)
{
    const dt_dtype dtype = c->in[0].dtype;

    gate = kt_round(dtype, gate);
    up = kt_round(dtype, up);
    if (!x->clamped) return kt_round(dtype, kt_round(dtype, gate / (1 + exp(-gate))) * up);
    gate = fmin(gate + kt_get(&c->in[5], e * 2 * x->f + 2 * i), (double)clamp.limit);
    up += kt_get(&c->in[5], e * 2 * x->f + 2 * i + 1);
    up = fmin(fmax(up, -(double)clamp.limit), (double)clamp.limit) + 1;
    return kt_round(dtype, up * gate / (1 + exp(-(double)clamp.alpha * gate)));
}

/* What one expert makes of token t, in float64 but rounded where the kernel rounds. `size` is the
 * sum of magnitudes of the last product, for the bound. */
static void expect_expert(const kt_case *c, const experts_case *x, int64_t t, int64_t e, double *z,
                          double *size)
{
    double inner[64];

    for (int64_t i = 0; i < x->f; i++) {
        const int64_t first = x->clamped ? 2 * i : i, second = x->clamped ? 2 * i + 1 : x->f + i;
        double gate = 0, up = 0;
        for (int64_t n = 0; n < x->d; n++) {
            const double v = kt_get(&c->in[0], t * x->d + n);
            gate += v * kt_get(&c->in[3], (e * 2 * x->f + first) * x->d + n);
            up += v * kt_get(&c->in[3], (e * 2 * x->f + second) * x->d + n);
        }
        inner[i] = expect_inner(c, x, e, i, gate, up);
    }
    for (int64_t n = 0; n < x->d; n++) {
        z[n] = x->clamped && !x->second ? kt_get(&c->in[6], e * x->d + n) : 0;
        size[n] = 0;
        for (int64_t i = 0; i < x->f; i++) {
            const double term = inner[i] * kt_get(&c->in[4], (e * x->d + n) * x->f + i);
            z[n] += term;
            size[n] += fabs(term);
        }
    }
}

static void run_experts(dt_dtype t, const experts_case *x)
{
    const int64_t x_shape[] = { x->tokens, x->d }, k_shape[] = { x->tokens, x->k };
    const int64_t gate_up[] = { x->experts, 2 * x->f, x->d }, down[] = { x->experts, x->d, x->f };
    const dti_experts_clamped_attr attr = { x->all, clamp.limit, clamp.alpha }; /* begins alike */
    kt_case c = { .name = x->clamped ? "experts_clamped" : "experts",
                  .kernel = x->clamped ? dti_experts_clamped_cpu : dti_experts_cpu,
                  .n_in = x->clamped ? 7 : 5,
                  .attr = &attr };
    int32_t *ids;

    c.in[0] = kt_filled(t, 2, x_shape, KT_UNIFORM, 1);
    c.in[1] = kt_local(DT_I32, 2, k_shape);
    c.in[2] = kt_filled(t, 2, k_shape, KT_UNIFORM, 2);
    c.in[3] = kt_filled(t, 3, gate_up, KT_UNIFORM, 3);
    c.in[4] = kt_filled(t, 3, down, KT_UNIFORM, 4);
    if (x->clamped) c.in[5] = kt_filled(t, 2, gate_up, KT_UNIFORM, 5);
    if (x->clamped) c.in[6] = kt_filled(t, 2, down, KT_UNIFORM, 6);
    c.in[4].offset[2] = x->second ? 5 : 0;
    c.in[3].offset[0] = c.in[4].offset[0] = x->first;
    c.out = (dt_local){ .dtype = x->out, .n_axes = 2, .shape = { x->tokens, x->d } };
    kt_expect(&c);
    ids = c.in[1].data;
    for (int64_t i = 0; i < x->tokens * x->k; i++)
        ids[i] = (int32_t)((i / x->k * (i / x->k) + i % x->k) % x->all);
    for (int64_t i = 0; i < x->tokens; i++)
        for (int64_t s = 0; s < x->k; s++) {
            const int64_t e = ids[i * x->k + s] - x->first;
            double z[64], size[64];
            if (e < 0 || e >= x->experts) continue;
            expect_expert(&c, x, i, e, z, size);
            for (int64_t n = 0; n < x->d; n++) {
                const double w = kt_get(&c.in[2], i * x->k + s);
                c.want[i * x->d + n] += w * z[n];
                /* a gate or up that rounds the other way, three times per term */
                c.slack[i * x->d + n] += fabs(w) * size[n] * (4 * kt_unit(t) + 0x1p-18) +
                                         (x->clamped ? fabs(w * z[n]) * 0x1p-18 : 0);
            }
        }
    kt_run(&c);
}

DT_TEST(kernels_experts, experts_match_float64)
{
    static const experts_case cases[] = {
        { 7, 2, 5, 12, 9, 0, 5, .second = false },
        { 1, 3, 6, 33, 7, 0, 6, .second = false },
        { 40, 2, 3, 20, 16, 0, 3, .second = false }, /* more than the few rows of a decode step */
        { 9, 3, 2, 12, 9, 3, 7, .second = false },   /* experts 3 and 4 of 7 */
        { 9, 2, 0, 12, 9, 7, 7, .second = false },   /* none of them */
        { 0, 2, 3, 12, 9, 0, 3, .second = false },
        { 5, 2, 3, 12, 0, 0, 3, .second = false },
        { 7, 2, 5, 12, 9, 0, 5, .clamped = true },
        { 9, 3, 2, 33, 7, 3, 7, .clamped = true },
        { 7, 2, 5, 12, 9, 0, 5, .clamped = true, .second = true },
    };

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(cases); i++) {
            experts_case c = cases[i];
            c.out = DT_F32;
            run_experts(kt_floats[t], &c);
            c.out = kt_floats[t]; /* rounded where nothing is cut */
            run_experts(kt_floats[t], &c);
        }
}

/* A token has the same bits alone and among others, whatever experts those go to. */
DT_TEST(kernels_experts, a_token_does_not_depend_on_its_neighbours)
{
    enum { TOKENS = 90, SLOTS = 2, EXPERTS = 3, D = 40, F = 24 };
    const int64_t x_shape[] = { TOKENS, D }, k_shape[] = { TOKENS, SLOTS };
    const int64_t gate_up[] = { EXPERTS, 2 * F, D }, down[] = { EXPERTS, D, F };
    const dti_experts_attr attr = { EXPERTS };

    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            const int64_t bytes = (int64_t)dt_dtype_size(kt_floats[t]);
            dt_local in[] = { kt_filled(kt_floats[t], 2, x_shape, KT_UNIFORM, 1),
                              kt_local(DT_I32, 2, k_shape),
                              kt_filled(kt_floats[t], 2, k_shape, KT_UNIFORM, 2),
                              kt_filled(kt_floats[t], 3, gate_up, KT_UNIFORM, 3),
                              kt_filled(kt_floats[t], 3, down, KT_UNIFORM, 4) };
            dt_local all = kt_local(kt_floats[t], 2, x_shape),
                     y = kt_local(kt_floats[t], 2, x_shape);
            dti_cpu *cpu;
            for (int32_t i = 0; i < TOKENS; i++) {
                ((int32_t *)in[1].data)[2 * i] = i * i % EXPERTS;
                ((int32_t *)in[1].data)[2 * i + 1] = (i * i + 1) % EXPERTS;
            }
            DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
            DT_ASSERT_OK(dti_experts_cpu(&(dt_kargs){ in, &all, &attr, cpu, 5, 1, NULL }));
            for (int64_t i = 0; i < TOKENS; i++) {
                dt_local one[5], out = y;
                memcpy(one, in, sizeof one);
                for (int k = 0; k < 3; k++) one[k].shape[0] = 1;
                one[0].data = (char *)in[0].data + i * D * bytes;
                one[1].data = (int32_t *)in[1].data + i * SLOTS;
                one[2].data = (char *)in[2].data + i * SLOTS * bytes;
                out.shape[0] = 1;
                DT_ASSERT_OK(dti_experts_cpu(&(dt_kargs){ one, &out, &attr, cpu, 5, 1, NULL }));
                DT_ASSERT(memcmp(out.data, (const char *)all.data + i * D * bytes,
                                 (size_t)(D * bytes)) == 0);
            }
            dti_cpu_destroy(&cpu);
            for (int i = 0; i < 5; i++) kt_release(&in[i]);
            kt_release(&all);
            kt_release(&y);
        }
}

DT_TEST(kernels_experts, ids_that_name_no_expert_or_one_twice_are_refused)
{
    const int64_t x_shape[] = { 2, 4 }, ids_shape[] = { 2, 2 }, gate_up[] = { 3, 2, 4 };
    const int64_t down[] = { 3, 4, 1 };
    const dti_experts_attr attr = { 3 };
    static const struct {
        int32_t ids[4];
        const char *message;
    } rows[] = { { { 0, 1, 2, 3 }, "expert 3 for token 1; there are 0 to 2" },
                 { { -1, 1, 2, 0 }, "expert -1 for token 0" },
                 { { 0, 1, 2, 2 }, "expert 2 twice for token 1" } };
    dt_local in[] = { kt_filled(DT_F32, 2, x_shape, KT_UNIFORM, 1), kt_local(DT_I32, 2, ids_shape),
                      kt_filled(DT_F32, 2, ids_shape, KT_UNIFORM, 2),
                      kt_filled(DT_F32, 3, gate_up, KT_UNIFORM, 3),
                      kt_filled(DT_F32, 3, down, KT_UNIFORM, 4) };
    DT_ENDS(kt_release) dt_local out = kt_local(DT_F32, 2, x_shape);
    dti_cpu *cpu;

    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        memcpy(in[1].data, rows[i].ids, sizeof rows[i].ids);
        DT_ASSERT_STATUS(dti_experts_cpu(&(dt_kargs){ in, &out, &attr, cpu, 5, 1, NULL }),
                         DT_ERR_ARG, rows[i].message);
    }
    dti_cpu_destroy(&cpu);
    for (int i = 0; i < 5; i++) kt_release(&in[i]);
}
