/* SPDX-License-Identifier: Apache-2.0
 *
 * Experts of packed weights: a token gets the bits that products of its row alone with packed
 * weights give, on every instruction set; placements that fit give the whole result, others are
 * refused. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>

#include "dtensor/kernels/attrs.h"
#include "tests/dtensor/test_kernels.h"

enum { EXPERTS = 5, SLOTS = 2, D = 96, F = 80, TOKENS = 21 };

typedef struct form {
    int bits[2];
    int64_t group[2];
    bool zeros, floats;
} form;

static const form forms[] = {
    { { 4, 4 }, { 32, 16 }, false, false }, { { 4, 8 }, { 16, 16 }, true, false },
    { { 8, 8 }, { 32, 16 }, false, false }, { { 8, 4 }, { 16, 16 }, true, false },
    { { 8, 8 }, { 32, 16 }, false, true },
};

/* --- kernels ---------------------------------------------------------------------------------- */

typedef struct operands {
    dt_local in[9];
    int n, each; /* all; of one weight */
} operands;

static dt_local bytes_of(int64_t rows, int64_t columns, bool floats, uint32_t seed)
{
    dt_local x = kt_local(DT_U8, 3, (int64_t[]){ EXPERTS, rows, columns });

    for (int64_t i = 0; i < kt_count(&x); i++) {
        uint8_t *at = (uint8_t *)x.data + i;
        *at = (uint8_t)kt_random(&seed);
        if (floats && (*at & 127) == 127) *at = 5; /* no NaN */
    }
    return x;
}

static operands make(const form *f, dt_dtype dtype)
{
    const int64_t rows[] = { 2 * F, D }, inputs[] = { D, F };
    operands o = { .n = 3, .each = f->zeros ? 3 : 2 };
    int32_t *ids;

    o.in[0] = kt_filled(dtype, 2, (int64_t[]){ TOKENS, D }, KT_UNIFORM, 1);
    o.in[1] = kt_local(DT_I32, 2, (int64_t[]){ TOKENS, SLOTS });
    o.in[2] = kt_filled(dtype, 2, (int64_t[]){ TOKENS, SLOTS }, KT_UNIFORM, 2);
    ids = o.in[1].data;
    for (int32_t t = 0; t < TOKENS; t++) {
        ids[2 * t] = t * t % EXPERTS;
        ids[2 * t + 1] = (t * t + 1 + t % 3) % EXPERTS;
    }
    for (int w = 0; w < 2; w++) {
        const int64_t groups = inputs[w] / f->group[w];
        const uint32_t seed = 7u + (uint32_t)w;
        o.in[o.n++] = bytes_of(rows[w], inputs[w] * f->bits[w] / 8, f->floats, seed);
        o.in[o.n++] =
            kt_filled(dtype, 3, (int64_t[]){ EXPERTS, rows[w], groups }, KT_UNIFORM, seed + 2);
        if (f->zeros) o.in[o.n++] = bytes_of(rows[w], groups, false, seed + 4);
        for (int64_t i = 0; f->zeros && i < kt_count(&o.in[o.n - 1]); i++)
            ((uint8_t *)o.in[o.n - 1].data)[i] &= (uint8_t)((1 << f->bits[w]) - 1);
    }
    return o;
}

static dt_local expert_of(const dt_local *x, int64_t e)
{
    dt_local one = { .dtype = x->dtype, .n_axes = 2, .shape = { x->shape[1], x->shape[2] } };

    one.data = (char *)x->data + e * x->shape[1] * x->shape[2] * (int64_t)dt_dtype_size(x->dtype);
    return one;
}

/* y [n_out] of one row of x and expert e's weight w. */
static void product(dti_cpu *cpu, const form *f, const operands *o, int w, int64_t e, void *x,
                    dt_local *y)
{
    const dti_packed_attr attr = { y->dtype, f->bits[w], f->group[w] };
    dt_local in[4] = {
        { .data = x, .dtype = o->in[0].dtype, .n_axes = 2, .shape = { 1, w == 0 ? D : F } }
    };
    const dt_kargs args = { in, y, &attr, cpu, 1 + o->each, 1, NULL };

    for (int i = 0; i < o->each; i++) in[1 + i] = expert_of(&o->in[3 + w * o->each + i], e);
    DT_ASSERT_OK(f->floats ? dti_linear_e4m3_cpu(&args) : dti_linear_packed_cpu(&args));
}

/* What token t is to be: its experts in ascending order. */
static void expect(dti_cpu *cpu, const form *f, const operands *o, int64_t t, float want[D])
{
    const dt_dtype dtype = o->in[0].dtype;
    const int64_t size = (int64_t)dt_dtype_size(dtype);
    const int32_t *ids = (const int32_t *)o->in[1].data + t * SLOTS;
    double h[2 * F], up[F]; /* room for any dtype */
    float z[D];
    dt_local hl = { .data = h, .dtype = dtype, .n_axes = 2, .shape = { 1, 2 * F } };
    dt_local zl = { .data = z, .dtype = DT_F32, .n_axes = 2, .shape = { 1, D } };
    dt_local gate[2] = {
        { .data = h, .dtype = dtype, .n_axes = 1, .shape = { F } },
        { .data = (char *)h + F * size, .dtype = dtype, .n_axes = 1, .shape = { F } }
    };
    dt_local ul = { .data = up, .dtype = dtype, .n_axes = 1, .shape = { F } };

    memset(want, 0, D * sizeof *want);
    for (int32_t e = 0; e < EXPERTS; e++)
        for (int s = 0; s < SLOTS; s++) {
            const float w = dti_load_f32(o->in[2].data, dtype, t * SLOTS + s);
            if (ids[s] != e) continue;
            product(cpu, f, o, 0, e, (char *)o->in[0].data + t * D * size, &hl);
            DT_ASSERT_OK(dti_silu_mul_cpu(&(dt_kargs){ gate, &ul, NULL, cpu, 2, 1, NULL }));
            product(cpu, f, o, 1, e, up, &zl);
            for (int i = 0; i < D; i++) want[i] += w * z[i];
        }
}

static void check_form(const form *f, dt_dtype dtype, dti_isa isa)
{
    const dti_experts_packed_attr attr = { EXPERTS,
                                           { f->bits[0], f->bits[1] },
                                           { f->group[0], f->group[1] } };
    operands o = make(f, dtype);
    dt_local y = kt_local(DT_F32, 2, (int64_t[]){ TOKENS, D });
    const dt_kargs args = { o.in, &y, &attr, NULL, o.n, 1, NULL };
    dt_kargs a = args;
    float want[D];
    dti_cpu *cpu;

    DT_ASSERT_OK(dti_cpu_create(isa, NULL, &cpu));
    a.cpu = cpu;
    DT_ASSERT_OK(f->floats ? dti_experts_e4m3_cpu(&a) : dti_experts_packed_cpu(&a));
    for (int64_t t = 0; t < TOKENS; t++) {
        expect(cpu, f, &o, t, want);
        DT_ASSERT(memcmp(want, (const float *)y.data + t * D, sizeof want) == 0);
    }
    dti_cpu_destroy(&cpu);
    for (int i = 0; i < o.n; i++) kt_release(&o.in[i]);
    kt_release(&y);
}

DT_TEST(experts_packed, a_token_gets_the_bits_of_products_of_its_row_alone)
{
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            for (size_t f = 0; f < DT_COUNT(forms); f++)
                check_form(&forms[f], kt_floats[t], (dti_isa)isa);
}

/* --- placements ------------------------------------------------------------------------------- */

/* How gate and up, and down lie: whole, by experts, or by parts of each in steps of so many. */
typedef struct cut {
    int kind;
    int64_t step;
    bool scales_elsewhere;
    dt_status code;
    const char *words;
} cut;
enum { WHOLE, BY_EXPERT, BY_PART };

static dt_status place(dt_mesh *mesh, const dt_local *x, const dt_placement *p, dt_tape *t,
                       dt_tensor **out)
{
    DT_TRY(dt_distribute(mesh, p, x->dtype, x->n_axes, x->shape,
                         (dt_source){ x->data, DT_EQUAL_COPIES }, out));
    *out = dt_tape_own(t, *out);
    return DT_OK;
}

static dt_tensor *run(dt_mesh *mesh, dt_tape *t, const form *f, const operands *o, const cut *c)
{
    static const int64_t halves[] = { F, F };
    dt_packed_weight w[2] = { { .floats = f->floats }, { .floats = f->floats } };
    dt_tensor *in[9] = { NULL };

    for (int i = 0; i < o->n; i++) {
        const int of = i < 3 ? -1 : (i - 3) / o->each, part = i < 3 ? 0 : (i - 3) % o->each;
        dt_placement p = DT_REPLICATE;
        if (of >= 0 && c->kind == BY_EXPERT) p = DT_SHARD(0);
        if (of == 0 && c->kind == BY_PART) {
            p = dt_shard_packed(1, 2, halves);
            p.unit = c->step;
        }
        if (of == 1 && c->kind == BY_PART) {
            p = DT_SHARD(2);
            p.unit = c->step / (part == 0 ? 8 / f->bits[1] : f->group[1]);
            if (p.unit < 1) p.unit = 1;
        }
        if (of == 1 && part == 1 && c->scales_elsewhere) p = DT_REPLICATE;
        if (place(mesh, &o->in[i], &p, t, &in[i]) != DT_OK) return NULL;
    }
    for (int i = 0; i < 2; i++) {
        w[i].codes = in[3 + i * o->each];
        w[i].scales = in[4 + i * o->each];
        if (f->zeros) w[i].zeros = in[5 + i * o->each];
    }
    return dt_experts_packed(t, in[0], in[1], in[2], &w[0], &w[1]);
}

/* But for the order of sums, which are of terms as large as the largest result. */
static dt_status expect_near(const dt_tensor *got, const dt_tensor *want, size_t i)
{
    const float *a = dt_tensor_local(got)->data, *b = dt_tensor_local(want)->data;
    float largest = 0.0f;

    for (int k = 0; k < TOKENS * D; k++) largest = fmaxf(largest, fabsf(b[k]));
    for (int k = 0; k < TOKENS * D; k++)
        DT_EXPECT(fabsf(a[k] - b[k]) <= 2e-6f * largest, "cut %zu: %g, not %g, of %g", i,
                  (double)a[k], (double)b[k], (double)largest);
    return DT_OK;
}

static dt_status cuts(dt_mesh *mesh, const void *arg)
{
    static const cut all[] = {
        { BY_EXPERT, 0, false, DT_OK, NULL },
        { BY_PART, 16, false, DT_OK, NULL },
        { BY_PART, 32, false, DT_OK, NULL },
        { BY_PART, 8, false, DT_ERR_LAYOUT, "between groups" },
        { BY_PART, 16, true, DT_ERR_LAYOUT, "between groups" },
        { BY_EXPERT, 0, true, DT_ERR_LAYOUT, "between groups" },
    };
    const form *f = arg;
    const cut whole = { WHOLE, 0, false, DT_OK, NULL };
    operands o = make(f, DT_F32);
    DT_HELD(tape) *t = NULL, *kept = NULL;
    dt_tensor *want, *full;

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &kept));
    want = run(mesh, kept, f, &o, &whole);
    DT_TRY(dt_tape_status(kept));
    for (size_t i = 0; i < DT_COUNT(all) && dt_mesh_n_ranks(mesh) > 1; i++) {
        dt_tensor *y = run(mesh, t, f, &o, &all[i]);
        if (all[i].code != DT_OK) {
            DT_EXPECT_STATUS(dt_tape_status(t), all[i].code, all[i].words);
        } else {
            DT_TRY(dt_tape_status(t));
            DT_TRY(dt_full_tensor(y, &full));
            full = dt_tape_own(t, full);
            DT_TRY(expect_near(full, want, i));
        }
        dt_tape_reset(t);
    }
    for (int i = 0; i < o.n; i++) kt_release(&o.in[i]);
    return DT_OK;
}

DT_TEST(experts_packed, cuts_that_part_no_group_give_the_whole_result)
{
    static const char *const meshes[] = { "tp=2", "tp=3", "tp=4" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t f = 0; f < DT_COUNT(forms); f++) dt_test_on_ranks(meshes[m], cuts, &forms[f]);
}

/* --- what is no call -------------------------------------------------------------------------- */

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    const form *f = &forms[0];
    const cut whole = { WHOLE, 0, false, DT_OK, NULL };
    operands o = make(f, DT_F32);
    const dt_local all = o.in[5]; /* codes of down */
    DT_HELD(tape) *t = NULL;

    (void)arg;
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    o.in[5].shape[2] -= 8; /* 64 inputs, but 80 rows of gate and of up */
    (void)run(mesh, t, f, &o, &whole);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_SHAPE, "rows together");
    o.in[5] = all;
    dt_tape_reset(t);
    (void)dt_experts_packed(t, NULL, NULL, NULL, &(dt_packed_weight){ .floats = true },
                            &(dt_packed_weight){ .floats = false });
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "all or none are floats");
    dt_tape_reset(t);
    (void)dt_experts_packed(t, NULL, NULL, NULL, NULL, NULL);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "gate_up or down is NULL");
    for (int i = 0; i < o.n; i++) kt_release(&o.in[i]);
    return DT_OK;
}

DT_TEST(experts_packed, operands_that_do_not_fit_are_refused)
{
    dt_test_on_ranks("tp=1", refused, NULL);
}
