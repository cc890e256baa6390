/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators that treat elements alone. Each element depends on its operands only, so no split over
 * ranks or threads changes a bit. Outputs may be inputs. */
#include <dtensor/half.h>
#include <dtensor/ops.h>

#include <string.h>

#include "base/dtype.h"
#include "dtensor/kernels/cpu/cpu_internal.h"
#include "dtensor/kernels/spread.h"

/* Shares begin on lines of 128 bytes, and blocks that pass through f32 fit into level 1. */
enum { GRAIN = 64, BLOCK = 1024 };

typedef struct unary_job {
    void (*fn)(void *y, const void *x, int64_t n);
    char *y;
    const char *x;
    int64_t n;
    int64_t bytes; /* of an element */
} unary_job;

static void unary_share(void *arg, int worker, int n_workers)
{
    const unary_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n, GRAIN, worker, n_workers, &begin, &end);
    j->fn(j->y + begin * j->bytes, j->x + begin * j->bytes, end - begin);
}

static dt_status unary(const dt_kargs *a, void (*fn)(void *y, const void *x, int64_t n))
{
    unary_job job = { fn, a->out[0].data, a->in[0].data, dti_local_count(&a->in[0]),
                      (int64_t)dt_dtype_size(a->in[0].dtype) };

    dti_cpu_run(a->cpu, 2 * job.n * job.bytes, unary_share, &job);
    return DT_OK;
}

#define F(name, formula, slope)                               \
    dt_status dti_##name##_cpu(const dt_kargs *a)             \
    {                                                         \
        const dti_row_ops *ops;                               \
                                                              \
        DT_TRY(dti_cpu_rows(a->cpu, #name, &a->in[0], &ops)); \
        return unary(a, ops->name);                           \
    }
DTI_FORMULAS(F)
#undef F

/* --- two operands or three -------------------------------------------------------------------- */

typedef struct spread_job spread_job;
typedef void (*spread_fn)(const spread_job *j, void *y, const void *const *x, int64_t n);

/* What fn gets are n elements of each operand side by side. */
struct spread_job {
    const dti_spread *s;
    spread_fn fn;
    void (*row)(void *y, const void *x, const void *z, int64_t n); /* of binary() */
    const dti_row_ops *ops;
    dt_relation relation;
    char *y;
    const char *x[DTI_SPREAD_MAX_IN];
    int64_t y_bytes, bytes[DTI_SPREAD_MAX_IN]; /* of an element */
};

/* n copies of an element. */
static void repeat(void *to, const void *from, int64_t bytes, int64_t n)
{
    uint32_t word = 0;

    memcpy(&word, from, (size_t)bytes);
    for (int64_t i = 0; i < n && bytes == 4; i++) ((uint32_t *)to)[i] = word;
    for (int64_t i = 0; i < n && bytes == 2; i++) ((uint16_t *)to)[i] = (uint16_t)word;
    if (bytes == 1) memset(to, (int)word, (size_t)n);
}

/* Elements at .. at + n - 1 of the result, n <= BLOCK, all of one index but for the last axis. */
static void spread_run(const spread_job *j, int64_t at, int64_t n, uint32_t (*copies)[BLOCK])
{
    const int last = j->s->n_axes - 1;
    const void *x[DTI_SPREAD_MAX_IN];

    for (int i = 0; i < j->s->n_in; i++) {
        int64_t first = at % j->s->extent[last] * j->s->step[i][last];
        int64_t rest = at / j->s->extent[last];
        for (int axis = last - 1; axis >= 0; rest /= j->s->extent[axis--])
            first += rest % j->s->extent[axis] * j->s->step[i][axis];
        x[i] = j->x[i] + first * j->bytes[i];
        if (j->s->step[i][last] != 0) continue;
        repeat(copies[i], x[i], j->bytes[i], n);
        x[i] = copies[i];
    }
    j->fn(j, j->y + at * j->y_bytes, x, n);
}

static void spread_runs(const spread_job *j, int64_t begin, int64_t end)
{
    const int64_t run = j->s->extent[j->s->n_axes - 1];
    _Alignas(64) uint32_t copies[DTI_SPREAD_MAX_IN][BLOCK];

    while (begin < end) {
        int64_t n = run - begin % run < end - begin ? run - begin % run : end - begin;
        if (n > BLOCK) n = BLOCK;
        spread_run(j, begin, n, copies);
        begin += n;
    }
}

static void spread_share(void *arg, int worker, int n_workers)
{
    const spread_job *j = arg;
    const void *x[DTI_SPREAD_MAX_IN];
    int64_t begin, end;

    dti_pool_share(j->s->n, GRAIN, worker, n_workers, &begin, &end);
    if (!j->s->plain) {
        spread_runs(j, begin, end);
    } else if (begin < end) {
        for (int i = 0; i < j->s->n_in; i++) x[i] = j->x[i] + begin * j->bytes[i];
        j->fn(j, j->y + begin * j->y_bytes, x, end - begin);
    }
}

static dt_status spread(const dt_kargs *a, spread_job *j)
{
    int64_t bytes;
    dti_spread s;

    dti_spread_of(a, &s);
    if (s.n == 0) return DT_OK;
    j->s = &s;
    j->y = a->out[0].data;
    bytes = j->y_bytes = (int64_t)dt_dtype_size(a->out[0].dtype);
    for (int i = 0; i < a->n_in; i++) {
        j->x[i] = a->in[i].data;
        bytes += j->bytes[i] = (int64_t)dt_dtype_size(a->in[i].dtype);
    }
    dti_cpu_run(a->cpu, s.n * bytes, spread_share, j);
    return DT_OK;
}

static void binary_fn(const spread_job *j, void *y, const void *const *x, int64_t n)
{
    j->row(y, x[0], x[1], n);
}

static dt_status binary(const dt_kargs *a,
                        void (*row)(void *y, const void *x, const void *z, int64_t n))
{
    return spread(a, &(spread_job){ .fn = binary_fn, .row = row });
}

#define ROW(name)                                             \
    dt_status dti_##name##_cpu(const dt_kargs *a)             \
    {                                                         \
        const dti_row_ops *ops;                               \
                                                              \
        DT_TRY(dti_cpu_rows(a->cpu, #name, &a->in[0], &ops)); \
        return binary(a, ops->name);                          \
    }
ROW(add)
ROW(sub)
ROW(mul)
ROW(div)
ROW(silu_mul)
ROW(gelu_tanh_mul)
#undef ROW

static void where_fn(const spread_job *j, void *y, const void *const *x, int64_t n)
{
    const uint8_t *mask = x[0];

    for (int64_t i = 0; i < n && j->y_bytes == 2; i++)
        ((uint16_t *)y)[i] = ((const uint16_t *)x[mask[i] != 0 ? 1 : 2])[i];
    for (int64_t i = 0; i < n && j->y_bytes == 4; i++)
        ((uint32_t *)y)[i] = ((const uint32_t *)x[mask[i] != 0 ? 1 : 2])[i];
}

/* mask u8, x F, z F -> x where mask is not 0, else z */
dt_status dti_where_cpu(const dt_kargs *a)
{
    const dti_row_ops *ops;

    DT_TRY(dti_cpu_rows(a->cpu, "where", &a->in[1], &ops));
    return spread(a, &(spread_job){ .fn = where_fn });
}

static void compare_fn(const spread_job *j, void *y, const void *const *x, int64_t n)
{
    _Alignas(64) float a[BLOCK], b[BLOCK];

    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t m = n - i < BLOCK ? n - i : BLOCK;
        uint8_t *to = (uint8_t *)y + i;
        j->ops->load(a, (const char *)x[0] + i * j->bytes[0], m);
        j->ops->load(b, (const char *)x[1] + i * j->bytes[1], m);
        for (int64_t k = 0; k < m; k++)
            to[k] = j->relation == DT_LESS         ? a[k] < b[k]
                    : j->relation == DT_LESS_EQUAL ? a[k] <= b[k]
                                                   : a[k] == b[k];
    }
}

/* x F, z F -> 1 where x < z, x <= z or x == z, else 0; relation_attr */
dt_status dti_compare_cpu(const dt_kargs *a)
{
    spread_job job = { .fn = compare_fn,
                       .relation = ((const dti_compare_attr *)a->attr)->relation };

    DT_TRY(dti_cpu_rows(a->cpu, "compare", &a->in[0], &job.ops));
    return spread(a, &job);
}

/* --- soft_cap --------------------------------------------------------------------------------- */

typedef struct cap_job {
    const dti_row_ops *ops;
    char *y;
    const char *x;
    int64_t n, bytes;
    float cap;
} cap_job;

static void cap_share(void *arg, int worker, int n_workers)
{
    const cap_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n, GRAIN, worker, n_workers, &begin, &end);
    j->ops->soft_cap(j->y + begin * j->bytes, j->x + begin * j->bytes, end - begin, j->cap);
}

dt_status dti_soft_cap_cpu(const dt_kargs *a)
{
    const dti_scalar_attr *attr = a->attr;
    cap_job job = { .y = a->out[0].data,
                    .x = a->in[0].data,
                    .n = dti_local_count(&a->in[0]),
                    .bytes = (int64_t)dt_dtype_size(a->in[0].dtype),
                    .cap = (float)attr->value };

    DT_TRY(dti_cpu_rows(a->cpu, "soft_cap", &a->in[0], &job.ops));
    dti_cpu_run(a->cpu, 2 * job.n * job.bytes, cap_share, &job);
    return DT_OK;
}

/* --- cast ------------------------------------------------------------------------------------- */

typedef struct cast_job {
    const dti_row_ops *rows; /* all dtypes of the instruction set */
    const dt_local *x;
    const dt_local *y;
    int64_t n;
} cast_job;

static void cast_flat(const dti_row_ops *rows, void *to, dt_dtype to_dtype, const void *from,
                      dt_dtype from_dtype, int64_t n)
{
    const int64_t to_bytes = (int64_t)dt_dtype_size(to_dtype);
    const int64_t from_bytes = (int64_t)dt_dtype_size(from_dtype);
    _Alignas(64) float block[BLOCK];

    if (from_dtype == to_dtype || from_dtype == DT_F64 || to_dtype == DT_F64) {
        dti_convert(to, to_dtype, from, from_dtype, n);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t some = n - i < BLOCK ? n - i : BLOCK;
        rows[from_dtype].load(block, (const char *)from + i * from_bytes, some);
        rows[to_dtype].store((char *)to + i * to_bytes, block, some);
    }
}

static void cast_share(void *arg, int worker, int n_workers)
{
    const cast_job *j = arg;
    const dt_dtype from = j->x->dtype, to = j->y->dtype;
    int64_t begin, end;

    dti_pool_share(j->n, GRAIN, worker, n_workers, &begin, &end);
    if (begin < end)
        cast_flat(j->rows, (char *)j->y->data + begin * (int64_t)dt_dtype_size(to), to,
                  (const char *)j->x->data + begin * (int64_t)dt_dtype_size(from), from,
                  end - begin);
}

float dt_f16_to_f32(uint16_t bits)
{
    return dti_f16_to_f32(bits);
}

uint16_t dt_f32_to_f16(float value)
{
    return dti_f32_to_f16(value);
}

float dt_bf16_to_f32(uint16_t bits)
{
    return dti_bf16_to_f32(bits);
}

uint16_t dt_f32_to_bf16(float value)
{
    return dti_f32_to_bf16(value);
}

dt_status dt_convert(void *to, dt_dtype to_dtype, const void *from, dt_dtype from_dtype, int64_t n)
{
    DT_CHECK(n >= 0, DT_ERR_ARG, "%lld elements", (long long)n);
    DT_CHECK(n == 0 || (to != NULL && from != NULL), DT_ERR_ARG, "to or from is NULL");
    DT_CHECK(dt_dtype_size(to_dtype) > 0 && dt_dtype_size(from_dtype) > 0, DT_ERR_ARG,
             "%d or %d is no dtype", (int)to_dtype, (int)from_dtype);
    DT_CHECK(dt_dtype_is_float(to_dtype) && dt_dtype_is_float(from_dtype), DT_ERR_UNSUPPORTED,
             "conversion from %s to %s: both must be floats", dt_dtype_name(from_dtype),
             dt_dtype_name(to_dtype));
    if (n > 0) cast_flat(dti_cpu_rows_of(dti_isa_detect()), to, to_dtype, from, from_dtype, n);
    return DT_OK;
}

dt_status dti_cast_cpu(const dt_kargs *a)
{
    cast_job job = { a->cpu->rows, &a->in[0], &a->out[0], dti_local_count(&a->in[0]) };

    DT_CHECK(dt_dtype_is_float(job.x->dtype) && dt_dtype_is_float(job.y->dtype), DT_ERR_UNSUPPORTED,
             "cast from %s to %s: both must be floats", dt_dtype_name(job.x->dtype),
             dt_dtype_name(job.y->dtype));
    dti_cpu_run(a->cpu, dti_bytes(job.x) + dti_bytes(job.y), cast_share, &job);
    return DT_OK;
}

/* --- add_bias --------------------------------------------------------------------------------- */

typedef struct bias_job {
    const dti_row_ops *rows;
    const dt_local *x, *bias, *y;
    int64_t n_rows, n;
} bias_job;

/* y[r, :] = x[r, :] + bias in f32, one rounding. */
static void bias_share(void *arg, int worker, int n_workers)
{
    const bias_job *j = arg;
    const int64_t x_bytes = (int64_t)dt_dtype_size(j->x->dtype);
    const int64_t y_bytes = (int64_t)dt_dtype_size(j->y->dtype);
    const int64_t b_bytes = (int64_t)dt_dtype_size(j->bias->dtype);
    _Alignas(64) float block[BLOCK], bias[BLOCK];
    int64_t begin, end;

    dti_pool_share(j->n_rows, 1, worker, n_workers, &begin, &end);
    for (int64_t i = 0; i < j->n; i += BLOCK) {
        const int64_t n = j->n - i < BLOCK ? j->n - i : BLOCK;
        j->rows[j->bias->dtype].load(bias, (const char *)j->bias->data + i * b_bytes, n);
        for (int64_t r = begin; r < end; r++) {
            const int64_t at = r * j->n + i;
            j->rows[j->x->dtype].load(block, (const char *)j->x->data + at * x_bytes, n);
            j->rows[DT_F32].add(block, block, bias, n);
            j->rows[j->y->dtype].store((char *)j->y->data + at * y_bytes, block, n);
        }
    }
}

dt_status dti_add_bias_cpu(const dt_kargs *a)
{
    bias_job job = { a->cpu->rows, &a->in[0], &a->in[1], &a->out[0], dti_rows(&a->in[0]), 0 };
    const dti_row_ops *ops;

    for (int i = 0; i < 2; i++) DT_TRY(dti_cpu_rows(a->cpu, "add_bias", &a->in[i], &ops));
    DT_TRY(dti_cpu_rows(a->cpu, "add_bias", &a->out[0], &ops));
    job.n = a->in[0].shape[a->in[0].n_axes - 1];
    dti_cpu_run(a->cpu, dti_bytes(job.x) + dti_bytes(job.y), bias_share, &job);
    return DT_OK;
}
