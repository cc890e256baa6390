/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys in blocks of a pool: each row gets the bits that it gets among the tokens of its sequence,
 * whose keys lie together; what is not there is refused. */
#include "dtensor/kernels/attrs.h"
#include "tests/dtensor/test_kernels.h"

enum {
    S = 128,
    MAX_BLOCKS = 10,
    LENGTHS = 3,
    N_BLOCKS = LENGTHS * MAX_BLOCKS + 2,
    MOST_ROWS = 160
};
static const int64_t lengths[LENGTHS] = { 1200, 300, 65 };

typedef struct paged_shape {
    int64_t heads, kv_heads, width, window;
    float soft_cap;
    int64_t bias; /* 0: none; 1: [1, 1, 1, keys]; 2: of each head; 3: of each row */
    bool sinks;
} paged_shape;

/* Stretches of sequences (-1: padding), as they follow each other in the rows of a call. */
static const struct {
    int sequence, first, n;
} stretches[] = {
    { 0, 1199, 1 }, { 1, 299, 1 },   { 2, 0, 1 },  { -1, 0, 1 },  { 0, 1020, 50 }, { 1, 100, 37 },
    { 2, 60, 5 },   { 0, 0, 3 },     { -1, 0, 2 }, { 1, 250, 1 }, { 1, 252, 1 },   { 1, 127, 2 },
    { 0, 700, 1 },  { 0, 1100, 16 }, { 2, 63, 2 }, { 0, 511, 2 }, { 1, 298, 2 },   { 0, 1023, 2 },
};

enum { Q, K, V, POSITIONS, SEQUENCE, TABLE, BIAS, N_IN = 8 };

/* Sequences as they lie together, all of their tokens; and rows of them behind blocks. */
typedef struct paged_scene {
    dti_attention_attr attr;
    dt_local whole[LENGTHS][6], rows[N_IN], paged;
    int n_in, n_rows;
} paged_scene;

static dt_local ints(int64_t n, int64_t columns, int32_t value)
{
    dt_local x = kt_local(DT_I32, 2, (const int64_t[]){ n, columns });

    for (int64_t i = 0; i < n * columns; i++) ((int32_t *)x.data)[i] = value;
    return x;
}

static int32_t *at(const dt_local *x, int64_t i)
{
    return (int32_t *)x->data + i;
}

static void copy(dt_local *to, int64_t to_row, const dt_local *from, int64_t from_row, int64_t n,
                 int64_t bytes)
{
    memcpy((char *)to->data + to_row * bytes, (const char *)from->data + from_row * bytes,
           (size_t)(n * bytes));
}

/* The last block of each table entry that is needed is somewhere; what no key lies in is NaN. */
static void lay_in_blocks(paged_scene *s, const paged_shape *of, dt_dtype dtype)
{
    const int64_t shape[] = { N_BLOCKS, S, of->kv_heads, of->width };
    const int64_t bytes = of->kv_heads * of->width * (int64_t)dt_dtype_size(dtype);

    s->rows[TABLE] = ints(LENGTHS, MAX_BLOCKS, -1);
    for (int x = K; x <= V; x++) {
        s->rows[x] = kt_local(dtype, 4, shape);
        memset(s->rows[x].data, 0xff, (size_t)(N_BLOCKS * S * bytes));
    }
    for (int64_t i = 0; i < LENGTHS; i++)
        for (int64_t b = 0; b * S < lengths[i]; b++) {
            const int64_t block = (i * MAX_BLOCKS + b) * 7 % (N_BLOCKS - 1),
                          left = lengths[i] - b * S;
            *at(&s->rows[TABLE], i * MAX_BLOCKS + b) = (int32_t)block;
            for (int x = K; x <= V; x++)
                copy(&s->rows[x], block * S, &s->whole[i][x], b * S, left < S ? left : S, bytes);
        }
}

static void open_whole(paged_scene *s, const paged_shape *of, dt_dtype dtype)
{
    const int64_t size = (int64_t)dt_dtype_size(dtype);

    for (int i = 0; i < LENGTHS; i++) {
        const int64_t n = lengths[i], q[] = { 1, n, of->heads, of->width };
        const int64_t k[] = { 1, n, of->kv_heads, of->width };
        const int64_t bias[] = { 1, of->bias == 2 ? of->heads : 1, of->bias == 3 ? n : 1, n };
        const uint32_t seed = 10u * (uint32_t)i;
        dt_local *in = s->whole[i];
        in[Q] = kt_filled(dtype, 4, q, KT_UNIFORM, seed + 1);
        in[K] = kt_filled(dtype, 4, k, KT_UNIFORM, seed + 2);
        in[V] = kt_filled(dtype, 4, k, KT_UNIFORM, seed + 3);
        in[3] = ints(1, n, 0);
        for (int64_t t = 0; t < n; t++) *at(&in[3], t) = (int32_t)t;
        if (of->bias > 0) in[4] = kt_filled(dtype, 4, bias, KT_UNIFORM, seed + 4);
        for (int64_t h = 0; h < bias[1] && i > 0 && of->bias > 0 && of->bias < 3; h++)
            memcpy((char *)in[4].data + h * n * size, /* shared: the same for their first keys */
                   (char *)s->whole[0][4].data + h * lengths[0] * size, (size_t)(n * size));
        if (of->sinks) in[4 + (of->bias > 0)] = kt_filled(dtype, 1, &of->heads, KT_UNIFORM, 9);
    }
}

/* Row r of the call is token t of sequence i. */
static void add_row(paged_scene *s, const paged_shape *of, dt_dtype dtype, int i, int t)
{
    const int64_t size = (int64_t)dt_dtype_size(dtype), r = s->n_rows++;

    *at(&s->rows[SEQUENCE], r) = i;
    *at(&s->rows[POSITIONS], r) = t;
    if (i < 0) return;
    copy(&s->rows[Q], r, &s->whole[i][Q], t, 1, of->heads * of->width * size);
    if (of->bias == 3)
        memcpy((char *)s->rows[BIAS].data + r * MAX_BLOCKS * S * size,
               (char *)s->whole[i][4].data + t * lengths[i] * size, (size_t)(lengths[i] * size));
}

static void open_rows(paged_scene *s, const paged_shape *of, dt_dtype dtype)
{
    const int64_t q[] = { MOST_ROWS, 1, of->heads, of->width };
    const int64_t bias[] = { of->bias == 3 ? MOST_ROWS : 1, of->bias == 2 ? of->heads : 1, 1,
                             of->bias == 3 ? MAX_BLOCKS * S : lengths[0] };
    const int64_t own = lengths[0] * (int64_t)dt_dtype_size(dtype);

    s->rows[Q] = kt_filled(dtype, 4, q, KT_UNIFORM, 5);
    s->rows[POSITIONS] = ints(MOST_ROWS, 1, 0);
    s->rows[SEQUENCE] = ints(MOST_ROWS, 1, -1);
    s->n_in = BIAS;
    if (of->bias > 0) s->rows[s->n_in++] = kt_filled(dtype, 4, bias, KT_ZERO, 1);
    if (of->bias == 1 || of->bias == 2) copy(&s->rows[BIAS], 0, &s->whole[0][4], 0, bias[1], own);
    if (of->sinks) s->rows[s->n_in++] = kt_filled(dtype, 1, &of->heads, KT_UNIFORM, 9);
    for (size_t k = 0; k < DT_COUNT(stretches); k++)
        for (int t = 0; t < stretches[k].n; t++)
            add_row(s, of, dtype, stretches[k].sequence, stretches[k].first + t);
    DT_ASSERT(s->n_rows <= MOST_ROWS);
    for (int x = Q; x < s->n_in; x++)
        if (x == Q || x == POSITIONS || x == SEQUENCE || (x == BIAS && of->bias == 3))
            s->rows[x].shape[0] = s->n_rows;
    s->paged = kt_local(dtype, 4, q);
    s->paged.shape[0] = s->n_rows;
}

static void open_scene(paged_scene *s, const paged_shape *of, dt_dtype dtype)
{
    *s =
        (paged_scene){ .attr = { of->heads, of->kv_heads, of->window, 0.25f, of->soft_cap, 0, 0 } };
    if (of->bias > 0)
        s->attr.flags |= DTI_ATTENTION_BIAS | DTI_ATTENTION_ONE_BATCH | DTI_ATTENTION_ONE_TOKEN;
    if (of->bias == 1 || of->bias == 3) s->attr.flags |= DTI_ATTENTION_ONE_HEAD;
    if (of->sinks) s->attr.flags |= DTI_ATTENTION_SINKS;
    open_whole(s, of, dtype);
    lay_in_blocks(s, of, dtype);
    open_rows(s, of, dtype);
}

/* Shapes as they were made, so that all of it is given back. */
static void close_scene(paged_scene *s, const paged_shape *of)
{
    const int n = 4 + (of->bias > 0) + of->sinks;

    for (int i = 0; i < LENGTHS; i++)
        for (int x = 0; x < n; x++) kt_release(&s->whole[i][x]);
    s->paged.shape[0] = MOST_ROWS;
    for (int x = Q; x < s->n_in; x++)
        if (x == Q || x == POSITIONS || x == SEQUENCE || (x == BIAS && of->bias == 3))
            s->rows[x].shape[0] = MOST_ROWS;
    for (int x = 0; x < s->n_in; x++) kt_release(&s->rows[x]);
    kt_release(&s->paged);
}

static void run_paged(paged_scene *s, dti_cpu *cpu)
{
    dti_attention_attr attr = s->attr;

    if ((attr.flags & DTI_ATTENTION_BIAS) != 0 && s->rows[BIAS].shape[0] > 1)
        attr.flags &= ~(uint32_t)DTI_ATTENTION_ONE_BATCH;
    DT_ASSERT_OK(
        dti_attention_paged_cpu(&(dt_kargs){ s->rows, &s->paged, &attr, cpu, s->n_in, 1, NULL }));
}

/* Token t of sequence i behind keys that lie together. */
static void run_alone(const paged_scene *s, const paged_shape *of, dti_cpu *cpu, int i, int64_t t,
                      void *y)
{
    const int64_t size = (int64_t)dt_dtype_size(s->paged.dtype);
    dt_local in[6], out = {
        .dtype = s->paged.dtype, .n_axes = 4, .shape = { 1, 1, of->heads, of->width }, .data = y
    };

    memcpy(in, s->whole[i], sizeof in);
    in[Q].shape[1] = in[3].shape[1] = 1;
    in[Q].data = (char *)in[Q].data + t * of->heads * of->width * size;
    in[3].data = at(&in[3], t);
    if (of->bias == 3) in[4].data = (char *)in[4].data + t * lengths[i] * size;
    if (of->bias == 3) in[4].shape[2] = 1;
    DT_ASSERT_OK(dti_attention_cpu(
        &(dt_kargs){ in, &out, &s->attr, cpu, 4 + (of->bias > 0) + of->sinks, 1, NULL }));
}

static void expect_rows(const paged_scene *s, const paged_shape *of, dti_cpu *cpu)
{
    const size_t bytes = (size_t)(of->heads * of->width) * dt_dtype_size(s->paged.dtype);
    const char *y = s->paged.data;
    DT_FREED char *alone = NULL;

    DT_ASSERT_OK(dti_alloc(bytes, (void **)&alone));
    for (int64_t r = 0; r < s->n_rows; r++, y += bytes) {
        const int i = *at(&s->rows[SEQUENCE], r), t = *at(&s->rows[POSITIONS], r);
        memset(alone, 0, bytes);
        if (i >= 0) run_alone(s, of, cpu, i, t, alone);
        if (memcmp(y, alone, bytes) != 0)
            dt_test_fail(
                __FILE__, __LINE__, "%s, %s: row %lld, token %d of sequence %d, has other bits",
                dti_isa_name(dti_cpu_isa(cpu)), dt_dtype_name(s->paged.dtype), (long long)r, t, i);
    }
}

static const paged_shape shapes[] = {
    { 8, 2, 32, 0, 0, 0, false },     { 6, 3, 5, 0, 0, 0, false },   { 4, 4, 64, 40, 0, 0, false },
    { 5, 1, 20, 200, 3.0f, 0, true }, { 6, 2, 16, 0, 0, 1, false },  { 4, 2, 8, 0, 0, 2, true },
    { 4, 2, 17, 0, 2.0f, 3, false },  { 32, 1, 16, 0, 0, 0, false },
};

DT_TEST(kernels_paged, a_row_has_the_bits_that_it_has_in_its_sequence)
{
    for (size_t k = 0; k < DT_COUNT(shapes); k++)
        for (size_t d = 0; d < DT_COUNT(kt_floats); d++)
            for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
                for (int threads = isa == (int)dti_isa_detect() ? 1 : 3; threads <= 3;
                     threads += 2) {
                    dti_pool *pool;
                    dti_cpu *cpu;
                    paged_scene s;
                    DT_ASSERT_OK(dti_pool_create(threads, false, NULL, NULL, &pool));
                    DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, pool, &cpu));
                    open_scene(&s, &shapes[k], kt_floats[d]);
                    run_paged(&s, cpu);
                    expect_rows(&s, &shapes[k], cpu);
                    close_scene(&s, &shapes[k]);
                    dti_cpu_destroy(&cpu);
                    dti_pool_destroy(&pool);
                }
}

DT_TEST(kernels_paged, rows_are_written_into_their_blocks)
{
    enum { N = 5, BLOCKS = 4, KV = 2, E = 3, LOCAL = 64 };
    const int64_t k_shape[] = { N, 1, KV, E }, pool_shape[] = { BLOCKS, LOCAL, KV, E };
    static const int32_t positions[N] = { 0, 63, 64, 65, 1 }, sequence[N] = { 1, 1, 0, -1, 0 };
    static const int32_t table[4] = { 13, 11, 12, -1 };
    static const int64_t want[N] = { 2 * LOCAL, 2 * LOCAL + 63, LOCAL, -1, 3 * LOCAL + 1 };
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;

    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    for (size_t d = 0; d < DT_COUNT(kt_floats); d++) {
        dt_local in[5] = { kt_filled(kt_floats[d], 4, k_shape, KT_UNIFORM, 1), ints(N, 1, 0),
                           ints(N, 1, 0), ints(2, 2, 0),
                           kt_filled(kt_floats[d], 4, pool_shape, KT_EQUAL, 1) };
        memcpy(in[1].data, positions, sizeof positions);
        memcpy(in[2].data, sequence, sizeof sequence);
        memcpy(in[3].data, table, sizeof table);
        in[3].offset[0] = 0;
        in[4].offset[0] = 10; /* blocks are counted over all ranks */
        DT_ASSERT_OK(dti_kv_write_paged_cpu(&(dt_kargs){ in, &in[4], NULL, cpu, 5, 1, NULL }));
        for (int64_t i = 0; i < BLOCKS * LOCAL * KV * E; i++) {
            double expected = 0.75;
            for (int64_t r = 0; r < N; r++)
                if (want[r] == i / (KV * E)) expected = kt_get(&in[0], r * KV * E + i % (KV * E));
            DT_ASSERT(kt_get(&in[4], i) == expected);
        }
        for (int i = 0; i < 5; i++) kt_release(&in[i]);
    }
}

static void expect_refused(paged_scene *s, dti_cpu *cpu, const char *what)
{
    DT_ASSERT_STATUS(
        dti_attention_paged_cpu(&(dt_kargs){ s->rows, &s->paged, &s->attr, cpu, s->n_in, 1, NULL }),
        DT_ERR_ARG, what);
}

DT_TEST(kernels_paged, what_is_not_there_is_refused)
{
    const paged_shape of = { 4, 2, 16, 0, 0, 0, false };
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;
    paged_scene s;

    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    open_scene(&s, &of, DT_F32);
    *at(&s.rows[SEQUENCE], 1) = LENGTHS;
    expect_refused(&s, cpu, "row 1 is of sequence 3, but the table has 0 to 2");
    *at(&s.rows[SEQUENCE], 1) = 1;
    *at(&s.rows[POSITIONS], 0) = MAX_BLOCKS * S;
    expect_refused(&s, cpu, "row 0 has position 1280");
    *at(&s.rows[POSITIONS], 0) = -1;
    expect_refused(&s, cpu, "row 0 has position -1");
    *at(&s.rows[POSITIONS], 0) = 1199;
    *at(&s.rows[TABLE], 3) = -1;
    expect_refused(&s, cpu, "positions 384 to 511 of sequence 0 lie in block -1");
    *at(&s.rows[TABLE], 3) = N_BLOCKS;
    expect_refused(&s, cpu, "but the pool has 0 to 31");
    s.attr.window = 100;
    s.rows[Q].shape[0] = s.rows[POSITIONS].shape[0] = s.rows[SEQUENCE].shape[0] = 1;
    DT_ASSERT_OK(
        dti_attention_paged_cpu(/* the row does not see so far */
                                &(dt_kargs){ s.rows, &s.paged, &s.attr, cpu, s.n_in, 1, NULL }));
    s.rows[Q].shape[0] = s.rows[POSITIONS].shape[0] = s.rows[SEQUENCE].shape[0] = s.n_rows;
    close_scene(&s, &of);
}
