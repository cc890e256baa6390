/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys in blocks of a pool on a device: what the CPU gives, and the same bits whatever rows and
 * blocks there are; what is not there is reported. */
#include "dtensor/kernels/attrs.h"
#include "tests/cuda/rows.h"

enum { S = 64, MAX_BLOCKS = 3, SEQUENCES = 2, BLOCKS = 7, N = 9, FIRST_BLOCK = 20 };

static const int32_t positions[N] = { 129, 0, 5, 60, 61, 62, 63, 0, 70 };
static const int32_t sequence[N] = { 0, -1, 1, 0, 0, 0, 0, 1, 1 };
static const int32_t table[SEQUENCES * MAX_BLOCKS] = { 23, 20, 26, 25, 21, -1 };

typedef struct paged_shape {
    int64_t heads, kv_heads, width, window;
    float soft_cap;
    bool bias, sinks;
} paged_shape;

static const paged_shape shapes[] = {
    { 4, 2, 8, 0, 0, false, false },   { 6, 2, 5, 40, 0, false, false },
    { 4, 1, 32, 0, 3, true, true },    { 3, 3, 16, 0, 0, true, false },
    { 8, 2, 128, 90, 0, false, true }, { 3, 1, 576, 0, 0, false, false },
};

static dt_local ints(int64_t n, int64_t columns, const int32_t *from)
{
    dt_local x = kt_local(DT_I32, 2, (const int64_t[]){ n, columns });

    memcpy(x.data, from, (size_t)(n * columns) * sizeof *from);
    return x;
}

static dt_local pool_of(dt_dtype t, const paged_shape *s, uint32_t seed)
{
    dt_local x =
        kt_filled(t, 4, (const int64_t[]){ BLOCKS, S, s->kv_heads, s->width }, KT_UNIFORM, seed);

    x.offset[0] = FIRST_BLOCK;
    return x;
}

static cr_case attention_case(dt_dtype t, const paged_shape *s, dti_attention_attr *attr)
{
    const int64_t q[] = { N, 1, s->heads, s->width }, bias[] = { N, s->heads, 1, 3 * S };
    cr_case c = { .row = "attention_paged",
                  .cpu = dti_attention_paged_cpu,
                  .n_in = 6,
                  .attr = attr,
                  .slack = t == DT_F32   ? 4e-6
                           : t == DT_F16 ? 4e-3
                                         : 3e-2,
                  .out = { .dtype = t, .n_axes = 4, .shape = { N, 1, s->heads, s->width } } };

    *attr = (dti_attention_attr){ s->heads, s->kv_heads, s->window, 0.25f, s->soft_cap, 0, 0 };
    c.in[0] = kt_filled(t, 4, q, KT_UNIFORM, 1);
    c.in[1] = pool_of(t, s, 2);
    c.in[2] = pool_of(t, s, 3);
    c.in[3] = ints(N, 1, positions);
    c.in[4] = ints(N, 1, sequence);
    c.in[5] = ints(SEQUENCES, MAX_BLOCKS, table);
    if (s->bias) c.in[c.n_in++] = kt_filled(t, 4, bias, KT_UNIFORM, 4);
    if (s->sinks) c.in[c.n_in++] = kt_filled(t, 1, &s->heads, KT_UNIFORM, 5);
    if (s->bias) attr->flags |= DTI_ATTENTION_BIAS | DTI_ATTENTION_ONE_TOKEN;
    if (s->sinks) attr->flags |= DTI_ATTENTION_SINKS;
    return c;
}

DT_TEST(cuda_paged, attention_is_that_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int64_t skew = 0; skew < 2; skew++) {
                dti_attention_attr attr;
                cr_case c = attention_case(kt_floats[t], &shapes[s], &attr);
                c.skew = skew;
                cr_run(&c, &d);
            }
}

/* Block 23 becomes 22, and the row is alone. */
DT_TEST(cuda_paged, a_row_has_its_bits_in_any_company)
{
    const paged_shape *s = &shapes[0];
    const size_t row = (size_t)(s->heads * s->width) * sizeof(float);
    const size_t block = (size_t)(S * s->kv_heads * s->width) * sizeof(float);
    DT_FREED unsigned char *all = NULL, *alone = NULL;
    dti_attention_attr attr;
    CR_DEVICE d = cr_open();
    cr_case c = attention_case(DT_F32, s, &attr);

    DT_ASSERT_OK(dti_alloc(N * row, (void **)&all));
    DT_ASSERT_OK(dti_alloc(row, (void **)&alone));
    cr_run_cuda(&c, &d, all);
    for (int x = 1; x <= 2; x++) {
        unsigned char *pool = c.in[x].data;
        memcpy(pool + 2 * block, pool + 3 * block, block);
        memset(pool + 3 * block, 0xff, block);
    }
    *(int32_t *)c.in[5].data = 22;
    for (int x = 0; x < 5; x++)
        if (x != 1 && x != 2) c.in[x].shape[0] = 1;
    c.out.shape[0] = 1;
    cr_run_cuda(&c, &d, alone);
    DT_ASSERT(memcmp(all, alone, row) == 0);
    for (int x = 0; x < 5; x++)
        if (x != 1 && x != 2) c.in[x].shape[0] = N;
    for (int x = 0; x < c.n_in; x++) kt_release(&c.in[x]);
}

static cr_case write_case(dt_dtype t, const paged_shape *s)
{
    const int64_t k[] = { N, 1, s->kv_heads, s->width };
    cr_case c = {
        .row = "kv_write_paged", .cpu = dti_kv_write_paged_cpu, .n_in = 5, .in_place = 5
    };

    c.in[0] = kt_filled(t, 4, k, KT_UNIFORM, 6);
    c.in[1] = ints(N, 1, positions);
    c.in[2] = ints(N, 1, sequence);
    c.in[3] = ints(SEQUENCES, MAX_BLOCKS, table);
    c.in[4] = pool_of(t, s, 7);
    c.out = c.in[4];
    c.out.data = NULL;
    return c;
}

DT_TEST(cuda_paged, rows_are_written_into_their_blocks)
{
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++) {
            cr_case c = write_case(kt_floats[t], &shapes[s]);
            cr_run(&c, &d);
        }
}

DT_TEST(cuda_paged, what_is_not_there_is_reported)
{
    static const struct {
        int operand, at; /* of the case, as of which dtensor/kernels/cpu/cpu.h speaks */
        int32_t value;
        const char *words;
    } wrong[] = { { 1, 0, 192, "position 192" },
                  { 1, 3, -1, "position -1" },
                  { 2, 4, 2, "sequence 2" },
                  { 3, 2, 27, "block 7 of this rank's pool, which has 7" },
                  { 3, 2, -1, "block -21" } };
    CR_DEVICE d = cr_open();

    for (size_t k = 0; k < 2 * DT_COUNT(wrong); k++) {
        dti_attention_attr attr;
        const bool writes = k < DT_COUNT(wrong);
        cr_case c =
            writes ? write_case(DT_BF16, &shapes[0]) : attention_case(DT_BF16, &shapes[0], &attr);
        const int operand = wrong[k % DT_COUNT(wrong)].operand + (writes ? 0 : 2);
        dt_local in[KT_MAX_IN], out;
        const dt_kargs args = { .in = in, .out = &out, .attr = c.attr, .n_in = c.n_in, .n_out = 1 };
        ((int32_t *)c.in[operand].data)[wrong[k % DT_COUNT(wrong)].at] =
            wrong[k % DT_COUNT(wrong)].value;
        for (int i = 0; i < c.n_in; i++) {
            in[i] = c.in[i];
            in[i].data = cr_up(&d, &c.in[i], 0);
        }
        out = c.out;
        out.data = writes ? in[4].data : cr_up(&d, &c.out, 0);
        DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, c.row)(d.c, &args));
        DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), wrong[k % DT_COUNT(wrong)].words);
        if (!writes) cr_release(&d, &c.out, out.data, 0);
        for (int i = 0; i < c.n_in; i++) {
            cr_release(&d, &c.in[i], in[i].data, 0);
            kt_release(&c.in[i]);
        }
    }
}
