/* SPDX-License-Identifier: Apache-2.0
 *
 * linear: any number of rows, with and without bias, all dtypes; the bits of a row alone and among
 * others. */
#include "tests/dtensor/test_kernels.h"

#include <sys/mman.h>

#include "dtensor/kernels/cpu/peak.h"

/* oneDNN is not built for ThreadSanitizer, which therefore does not see how it hands a product that
 * two ranks ask for from one to the other, and reports a race inside it. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libdnnl.so\n";
}

typedef struct linear_shape {
    int64_t m, k, n;
} linear_shape;

/* Any order of n additions in f32 is off by at most n units of the sum of magnitudes; the products
 * of halves are exact. */
static void expect_linear(kt_case *c, int64_t k, int64_t n)
{
    const int64_t count = kt_count(&c->out);

    kt_expect(c);
    for (int64_t i = 0; i < count; i++) {
        const int64_t m = i / n, o = i % n;
        double sum = c->n_in > 2 ? kt_get(&c->in[2], o) : 0.0, magnitude = fabs(sum);
        for (int64_t j = 0; j < k; j++) {
            const double term = kt_get(&c->in[0], m * k + j) * kt_get(&c->in[1], o * k + j);
            sum += term;
            magnitude += fabs(term);
        }
        c->want[i] = sum;
        c->slack[i] = 0x1p-24 * (double)(k + 2) * magnitude;
    }
}

static void run_linear(linear_shape s, dt_dtype dtype, dt_dtype out, bool bias, kt_fill fill)
{
    const int64_t x[] = { s.m, s.k }, w[] = { s.n, s.k };
    const dti_dtype_attr attr = { out };
    char name[64];
    kt_case c = { .name = name, .kernel = dti_linear_cpu, .n_in = bias ? 3 : 2, .attr = &attr };

    (void)snprintf(name, sizeof name, "linear %lldx%lldx%lld of %s", (long long)s.m, (long long)s.k,
                   (long long)s.n, dt_dtype_name(dtype));
    c.in[0] = kt_filled(dtype, 2, x, fill, 11);
    c.in[1] = kt_filled(dtype, 2, w, fill, 12);
    if (bias) c.in[2] = kt_filled(dtype, 1, w, fill, 13);
    c.out = (dt_local){ .dtype = out, .n_axes = 2, .shape = { s.m, s.n } };
    expect_linear(&c, s.k, s.n);
    kt_run(&c);
}

static void run_everywhere(linear_shape s)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        run_linear(s, kt_floats[t], kt_floats[t], false, KT_UNIFORM);
        run_linear(s, kt_floats[t], kt_floats[t], true, KT_UNIFORM);
        if (kt_floats[t] != DT_F32) run_linear(s, kt_floats[t], DT_F32, false, KT_UNIFORM);
    }
}

DT_TEST(kernels_linear, every_number_of_few_rows)
{
    for (int64_t m = 1; m < 32; m++) run_everywhere((linear_shape){ m, 65, 35 });
}

DT_TEST(kernels_linear, few_rows_of_odd_sizes)
{
    static const int64_t rows[] = { 1, 2, 3, 7, 8, 17, 31 };

    for (size_t m = 0; m < DT_COUNT(rows); m++)
        for (size_t k = 0; k < DT_COUNT(kt_sizes); k++)
            for (size_t n = 0; n < DT_COUNT(kt_sizes); n += 2)
                run_linear((linear_shape){ rows[m], kt_sizes[k], kt_sizes[n] },
                           kt_floats[(k + n + m) % 3], kt_floats[(k + n + m) % 3], k % 2 == 0,
                           KT_UNIFORM);
}

DT_TEST(kernels_linear, few_rows_on_several_threads)
{
    static const int64_t rows[] = { 1, 2, 5, 9, 31 };

    for (size_t m = 0; m < DT_COUNT(rows); m++) run_everywhere((linear_shape){ rows[m], 520, 524 });
}

DT_TEST(kernels_linear, many_rows_of_odd_sizes)
{
    static const int64_t rows[] = { 32, 33, 63, 100, 257 };

    for (size_t m = 0; m < DT_COUNT(rows); m++) {
        run_everywhere((linear_shape){ rows[m], 96, 250 });
        run_linear((linear_shape){ rows[m], 257, 65 }, kt_floats[m % 3], kt_floats[m % 3], true,
                   KT_UNIFORM);
        run_linear((linear_shape){ rows[m], 1, 7 }, kt_floats[m % 3], DT_F32, true, KT_UNIFORM);
        run_linear((linear_shape){ rows[m], 31, 1 }, kt_floats[m % 3], DT_F32, false, KT_UNIFORM);
    }
    run_linear((linear_shape){ 330, 64, 513 }, DT_BF16, DT_BF16, true, KT_UNIFORM);
    run_linear((linear_shape){ 40, 64, 1300 }, DT_F32, DT_F32, false, KT_UNIFORM);
}

/* More rows than a block has, more columns than a depth, more outputs than a chunk. */
DT_TEST(kernels_linear, more_of_everything_than_is_taken_at_a_time)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        run_linear((linear_shape){ 530, 531, 290 }, kt_floats[t], DT_F32, t == 0, KT_UNIFORM);
    run_linear((linear_shape){ 40, 2090, 33 }, DT_BF16, DT_BF16, false, KT_UNIFORM);
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) /* of weights that are copied, too */
        run_linear((linear_shape){ 100, 2090, 83 }, kt_floats[t], DT_F32, false, KT_UNIFORM);
}

/* Of operands that lie turned an output on panels is one chain of additions, whatever rows and
 * blocks stand beside it. */
DT_TEST(kernels_linear, an_output_on_panels_is_one_chain)
{
    enum { K = 300, N = 70, M = 515 };
    const int64_t x_shape[] = { M, K }, w_shape[] = { K, N };
    const dti_dtype_attr attr = { DT_F32 };
    static float all[N * M], y[N * M];

    for (int isa = DTI_ISA_AVX512; isa <= (int)dti_isa_detect(); isa++) {
        dt_local in[2] = { kt_filled(DT_F32, 2, x_shape, KT_UNIFORM, 1),
                           kt_filled(DT_F32, 2, w_shape, KT_UNIFORM, 2) };
        dt_local out = { .data = all, .dtype = DT_F32, .n_axes = 2, .shape = { M, N } };
        dti_cpu *cpu;
        DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
        DT_ASSERT_OK(dti_linear_backward_x_cpu(&(dt_kargs){ in, &out, &attr, cpu, 2, 1, NULL }));
        for (int64_t i = 0; i < M * N; i += 17) {
            float sum = 0.0f;
            for (int64_t k = 0; k < K; k++)
                sum = fmaf((float)kt_get(&in[0], i / N * K + k),
                           (float)kt_get(&in[1], k * N + i % N), sum);
            DT_ASSERT(memcmp(&sum, &all[i], sizeof sum) == 0);
        }
        out.data = y;
        for (int64_t m = 1; m < M; m += 161) {
            in[0].shape[0] = out.shape[0] = m;
            DT_ASSERT_OK(
                dti_linear_backward_x_cpu(&(dt_kargs){ in, &out, &attr, cpu, 2, 1, NULL }));
            DT_ASSERT(memcmp(y, all, (size_t)(m * N) * sizeof(float)) == 0);
        }
        in[0].shape[0] = M;
        for (int i = 0; i < 2; i++) kt_release(&in[i]);
        dti_cpu_destroy(&cpu);
    }
}

/* Where any order is allowed f32 of many rows is one chain too, and few rows are as they were. */
DT_TEST(kernels_linear, products_in_any_order_change_for_many_rows_alone)
{
    enum { K = 300, N = 70, M = 80, FEW = 63 };
    const int64_t x_shape[] = { M, K }, w_shape[] = { N, K };
    const dti_dtype_attr attr = { DT_F32 };
    static float one_order[N * M], y[N * M];

    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++) {
        dt_local in[2] = { kt_filled(DT_F32, 2, x_shape, KT_UNIFORM, 1),
                           kt_filled(DT_F32, 2, w_shape, KT_UNIFORM, 2) };
        dt_local out = { .data = one_order, .dtype = DT_F32, .n_axes = 2, .shape = { M, N } };
        dti_cpu *cpu;
        DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
        DT_ASSERT_OK(dti_linear_cpu(&(dt_kargs){ in, &out, &attr, cpu, 2, 1, NULL }));
        dti_cpu_allow_any_order(cpu);
        out.data = y;
        DT_ASSERT_OK(dti_linear_cpu(&(dt_kargs){ in, &out, &attr, cpu, 2, 1, NULL }));
        DT_ASSERT((memcmp(y, one_order, sizeof y) == 0) == (isa < DTI_ISA_AVX512));
        for (int64_t i = 0; i < M * N && isa >= DTI_ISA_AVX512; i += 17) {
            float sum = 0.0f;
            for (int64_t k = 0; k < K; k++)
                sum = fmaf((float)kt_get(&in[0], i / N * K + k),
                           (float)kt_get(&in[1], i % N * K + k), sum);
            DT_ASSERT(memcmp(&sum, &y[i], sizeof sum) == 0);
        }
        in[0].shape[0] = out.shape[0] = FEW;
        DT_ASSERT_OK(dti_linear_cpu(&(dt_kargs){ in, &out, &attr, cpu, 2, 1, NULL }));
        DT_ASSERT(memcmp(y, one_order, (size_t)(FEW * N) * sizeof *y) == 0);
        in[0].shape[0] = M;
        for (int i = 0; i < 2; i++) kt_release(&in[i]);
        dti_cpu_destroy(&cpu);
    }
}

/* What products are held against counts its rounds, on every instruction set. */
DT_TEST(kernels_linear, the_peak_says_what_it_did)
{
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            const dti_peak_fn peak = dti_peak_of((dti_isa)isa, kt_floats[t]);
            const double one = peak(1);
            DT_ASSERT(one >= 2 && peak(7) == 7 * one);
        }
}

DT_TEST(kernels_linear, nothing_to_sum_gives_the_bias)
{
    static const int64_t rows[] = { 0, 1, 40 };

    for (size_t m = 0; m < DT_COUNT(rows); m++) {
        run_everywhere((linear_shape){ rows[m], 0, 600 });
        run_everywhere((linear_shape){ rows[m], 16, 0 });
        run_everywhere((linear_shape){ rows[m], 16, 3 });
    }
}

DT_TEST(kernels_linear, huge_and_tiny_side_by_side)
{
    static const int64_t rows[] = { 1, 6, 40 };

    for (size_t m = 0; m < DT_COUNT(rows); m++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            run_linear((linear_shape){ rows[m], 250, 33 }, kt_floats[t], DT_F32, false, KT_MIXED);
            run_linear((linear_shape){ rows[m], 250, 33 }, kt_floats[t], DT_F32, true, KT_EQUAL);
            run_linear((linear_shape){ rows[m], 64, 33 }, kt_floats[t], kt_floats[t], true,
                       KT_ZERO);
        }
}

/* Rows of x together: each has the bits that it has alone, with all outputs of w or with a part of
 * them, on one thread or several. */
static void expect_rows_alone(dti_isa isa, dt_dtype dtype, linear_shape s)
{
    const int64_t x_shape[] = { s.m, s.k }, w_shape[] = { s.n, s.k }, y_shape[] = { s.m, s.n };
    const int64_t x_bytes = s.k * (int64_t)dt_dtype_size(dtype), y_bytes = s.n * 4;
    const int64_t cut = s.n / 3; /* outputs from here on, in a call of their own */
    const dti_dtype_attr attr = { DT_F32 };
    dt_local in[2] = { kt_filled(dtype, 2, x_shape, KT_UNIFORM, 1),
                       kt_filled(dtype, 2, w_shape, KT_UNIFORM, 2) };
    dt_local out = kt_local(DT_F32, 2, y_shape);
    const dt_kargs args = { in, &out, &attr, NULL, 2, 1, NULL };
    dt_local alone = kt_local(DT_F32, 2, y_shape), row[2] = { in[0], in[1] }, y = alone;
    dt_kargs one = { row, &y, &attr, NULL, 2, 1, NULL };

    row[0].shape[0] = y.shape[0] = 1;
    DT_ASSERT_OK(dti_cpu_create(isa, NULL, &one.cpu));
    for (int64_t m = 0; m < s.m; m++) {
        row[0].data = (char *)in[0].data + m * x_bytes;
        y.data = (char *)alone.data + m * y_bytes;
        DT_ASSERT_OK(dti_linear_cpu(&one));
    }
    for (int threads = 1; threads <= 3; threads++) {
        dt_kargs all = args;
        dti_pool *pool;
        DT_ASSERT_OK(dti_pool_create(threads, false, NULL, NULL, &pool));
        DT_ASSERT_OK(dti_cpu_create(isa, pool, &all.cpu));
        DT_ASSERT_OK(dti_linear_cpu(&all));
        if (memcmp(out.data, alone.data, (size_t)(s.m * y_bytes)) != 0)
            dt_test_fail(__FILE__, __LINE__, "%s, %s: rows of %lld x %lld x %lld are others alone",
                         dti_isa_name(isa), dt_dtype_name(dtype), (long long)s.m, (long long)s.k,
                         (long long)s.n);
        dti_cpu_destroy(&all.cpu);
        dti_pool_destroy(&pool);
    }
    row[0] = in[0];
    row[1].data = (char *)in[1].data + cut * x_bytes;
    row[1].shape[0] = s.n - cut;
    y = out;
    y.shape[1] = s.n - cut;
    DT_ASSERT_OK(dti_linear_cpu(&one));
    for (int64_t m = 0; m < s.m; m++)
        DT_ASSERT(memcmp((const char *)out.data + m * (s.n - cut) * 4,
                         (const char *)alone.data + m * y_bytes + cut * 4,
                         (size_t)(s.n - cut) * 4) == 0);
    dti_cpu_destroy(&one.cpu);
    for (int i = 0; i < 2; i++) kt_release(&in[i]);
    kt_release(&out);
    kt_release(&alone);
}

static void expect_rows_alone_everywhere(linear_shape s)
{
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            expect_rows_alone((dti_isa)isa, kt_floats[t], s);
}

DT_TEST(kernels_linear, a_row_does_not_depend_on_its_neighbours)
{
    static const int64_t many[] = { 127, 128, 513 };

    for (int64_t m = 1; m <= 70; m++)
        expect_rows_alone_everywhere((linear_shape){ m, 50 + 3 * (m % 13), 7 + m % 31 });
    for (size_t m = 0; m < DT_COUNT(many); m++)
        expect_rows_alone_everywhere((linear_shape){ many[m], 131, 37 });
    for (size_t k = 0; k < DT_COUNT(kt_sizes); k++)
        for (size_t n = 0; n < DT_COUNT(kt_sizes); n++)
            expect_rows_alone_everywhere((linear_shape){ 9, kt_sizes[k], kt_sizes[n] });
}

/* More inputs than a depth has, and than fit into level 1 beside a few rows. */
DT_TEST(kernels_linear, a_row_of_many_inputs_does_not_depend_on_its_neighbours)
{
    static const int64_t rows[] = { 2, 5, 11, 24, 65, 105 };

    for (size_t m = 0; m < DT_COUNT(rows); m++)
        expect_rows_alone_everywhere((linear_shape){ rows[m], 8200 + 37 * (int64_t)m, 19 });
}

/* A weight that is no number spoils its own output and no other: nothing is read into a sum from
 * beyond the end of a row. */
DT_TEST(kernels_linear, a_nan_stays_in_its_row)
{
    enum { K = 37, N = 19, M = 40 };
    const int64_t x_shape[] = { M, K }, w_shape[] = { N, K };
    const dti_dtype_attr attr = { DT_F32 };
    static float y[N * M];

    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            dt_local in[2] = { kt_filled(kt_floats[t], 2, x_shape, KT_UNIFORM, 1),
                               kt_filled(kt_floats[t], 2, w_shape, KT_UNIFORM, 2) };
            dt_local out = { .data = y, .dtype = DT_F32, .n_axes = 2, .shape = { M, N } };
            dti_cpu *cpu;
            for (int64_t i = 0; i < K; i++)
                dti_store_f32(in[1].data, kt_floats[t], 4 * K + i, i % 2 ? NAN : INFINITY);
            DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
            for (int64_t m = 1; m <= M; m += m < 5 ? 1 : 7) {
                in[0].shape[0] = out.shape[0] = m;
                DT_ASSERT_OK(dti_linear_cpu(&(dt_kargs){ in, &out, &attr, cpu, 2, 1, NULL }));
                for (int64_t i = 0; i < m * N; i++) DT_ASSERT(isnan(y[i]) == (i % N == 4));
            }
            in[0].shape[0] = M;
            for (int i = 0; i < 2; i++) kt_release(&in[i]);
            dti_cpu_destroy(&cpu);
        }
}

/* `bytes` that end where memory ends: a read beyond them is a fault. */
static void *at_the_edge(size_t bytes, void **map)
{
    const size_t page = 1 << 16; /* no system has larger ones by default */
    char *p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    DT_ASSERT(p != MAP_FAILED && bytes <= page);
    DT_ASSERT(mprotect(p + page, page, PROT_NONE) == 0);
    *map = p;
    return p + page - bytes;
}

DT_TEST(kernels_linear, nothing_is_read_beyond_the_end)
{
    enum { K = 37, N = 19, M = 40 };
    const dti_dtype_attr attr = { DT_F32 };
    static float y[N * M];

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        const size_t bytes = dt_dtype_size(kt_floats[t]);
        void *maps[2];
        dt_local in[2] = {
            { .dtype = kt_floats[t], .n_axes = 2, .shape = { M, K } },
            { .dtype = kt_floats[t], .n_axes = 2, .shape = { N, K } },
        };
        in[1].data = at_the_edge(N * K * bytes, &maps[1]);
        for (int64_t m = 1; m <= M; m += m < 5 ? 1 : 7) {
            dt_local out = { .data = y, .dtype = DT_F32, .n_axes = 2, .shape = { m, N } };
            in[0].shape[0] = m;
            in[0].data = at_the_edge((size_t)m * K * bytes, &maps[0]);
            for (int isa = 0; isa <= (int)dti_isa_detect(); isa++) {
                dti_cpu *cpu;
                DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
                DT_ASSERT_OK(dti_linear_cpu(&(dt_kargs){ in, &out, &attr, cpu, 2, 1, NULL }));
                dti_cpu_destroy(&cpu);
            }
            (void)munmap(maps[0], 1 << 17);
        }
        (void)munmap(maps[1], 1 << 17);
    }
}

/* Ranks are threads: several call the library at the same time, each with its own state. */
typedef struct rank_arg {
    dt_local in[2];
    float y[8][64 * 96];
} rank_arg;

static void rank_body(void *arg_, int worker, int n_workers)
{
    rank_arg *arg = arg_;
    const dti_dtype_attr attr = { DT_F32 };
    dt_local out = { .data = arg->y[worker], .dtype = DT_F32, .n_axes = 2, .shape = { 64, 96 } };
    dti_cpu *cpu;

    (void)n_workers;
    if (dti_cpu_create(dti_isa_detect(), NULL, &cpu) != DT_OK) return;
    for (int i = 0; i < 20; i++)
        if (dti_linear_cpu(&(dt_kargs){ arg->in, &out, &attr, cpu, 2, 1, NULL }) != DT_OK) break;
    dti_cpu_destroy(&cpu);
}

DT_TEST(kernels_linear, ranks_do_not_disturb_each_other)
{
    const int64_t x_shape[] = { 64, 200 }, w_shape[] = { 96, 200 };
    rank_arg *arg;
    dti_pool *pool;

    for (size_t t = 0; t < 2; t++) {
        DT_ASSERT_OK(dti_new(sizeof *arg, &arg));
        arg->in[0] = kt_filled(kt_floats[t], 2, x_shape, KT_UNIFORM, 1);
        arg->in[1] = kt_filled(kt_floats[t], 2, w_shape, KT_UNIFORM, 2);
        DT_ASSERT_OK(dti_pool_create(4, false, NULL, NULL, &pool));
        dti_pool_run(pool, rank_body, arg);
        dti_pool_destroy(&pool);
        DT_ASSERT(arg->y[0][0] != 0.0f);
        for (int r = 1; r < 4; r++) DT_ASSERT(memcmp(arg->y[0], arg->y[r], sizeof arg->y[0]) == 0);
        for (int i = 0; i < 2; i++) kt_release(&arg->in[i]);
        dti_free(arg);
    }
}

/* Products are kept: a shape that was seen once allocates no more. */
DT_TEST(kernels_linear, a_known_shape_allocates_nothing)
{
    static const int64_t rows[] = { 1, 8, 40 };
    const dti_dtype_attr attr = { DT_BF16 };
    const int64_t w_shape[] = { 100, 64 };

    for (size_t m = 0; m < DT_COUNT(rows); m++) {
        const int64_t x_shape[] = { rows[m], 64 }, y_shape[] = { rows[m], 100 };
        dt_local in[2] = { kt_filled(DT_BF16, 2, x_shape, KT_UNIFORM, 1),
                           kt_filled(DT_BF16, 2, w_shape, KT_UNIFORM, 2) };
        dt_local out = kt_local(DT_BF16, 2, y_shape);
        uint64_t before;
        dti_cpu *cpu;
        DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
        DT_ASSERT_OK(dti_linear_cpu(&(dt_kargs){ in, &out, &attr, cpu, 2, 1, NULL }));
        before = dti_alloc_count();
        DT_ASSERT_OK(dti_linear_cpu(&(dt_kargs){ in, &out, &attr, cpu, 2, 1, NULL }));
        DT_ASSERT_EQ_INT(dti_alloc_count(), before);
        dti_cpu_destroy(&cpu);
        for (int i = 0; i < 2; i++) kt_release(&in[i]);
        kt_release(&out);
    }
}
