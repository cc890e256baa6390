/* SPDX-License-Identifier: Apache-2.0
 *
 * y[m, o] = sum_i x[m, i] s[o, i / G] (q[o, i] - z[o, i / G]); x [M, I], codes [O, I bits / 8],
 * scales [O, I / G], zero points [O, I / G] or the middle of the codes, y [M, O] of the model's
 * dtype or f32. Codes are exact, sums are f32 in an order that depends on the instruction set alone
 * (packed.h). Splitting O over ranks or threads changes no bit, splitting I does. */
#include "dtensor/kernels/cpu/packed.h"

#include "dtensor/kernels/cpu/linear.h"

enum { OUTPUTS = 64, L2_BYTES = 256 << 10 }; /* that pass through a worker's sums; of rows of x */

typedef struct packed_job {
    const dti_packed_ops *ops;
    const dti_row_ops *x_rows, *scale_rows;
    dti_linear l;
    const dt_local *scales, *zeros; /* zeros may be NULL */
    int64_t group, groups;
    int bits;
    bool floats;
    char *packed; /* [M] rows of x */
    int64_t stride, block_rows;
    char *work; /* each worker's */
    int64_t work_bytes;
} packed_job;

static const dti_packed_ops *ops_of(dti_isa isa, dt_dtype x)
{
#ifdef DT_HAVE_X86_KERNELS
    if (isa >= DTI_ISA_AVX512_BF16 && x == DT_BF16) return &dti_packed_avx512_bf16;
    if (isa >= DTI_ISA_AVX512) return &dti_packed_avx512;
    if (isa == DTI_ISA_AVX2) return &dti_packed_avx2;
#endif
    (void)isa;
    (void)x;
    return &dti_packed_portable;
}

static void pack_share(void *arg, int worker, int n_workers)
{
    const packed_job *j = arg;
    const int64_t x_bytes = j->l.n_in * (int64_t)dt_dtype_size(j->l.x->dtype);
    float *row = (float *)(j->work + worker * j->work_bytes);
    int64_t begin, end;

    dti_pool_share(j->l.n_rows, 1, worker, n_workers, &begin, &end);
    for (int64_t m = begin; m < end; m++) {
        j->x_rows->load(row, (const char *)j->l.x->data + m * x_bytes, j->l.n_in);
        j->ops->pack(j->packed + m * j->stride, row, j->l.n_in, j->bits);
    }
}

/* Scales of some outputs as floats, and what is to be added to codes less their middle. */
static void widen(const packed_job *j, int64_t o, int64_t n, float *scales, float *shifts)
{
    const float middle = j->bits == 4 ? 8.0f : 128.0f;
    const uint8_t *zeros;

    j->scale_rows->load(scales,
                        (const char *)j->scales->data +
                            o * j->groups * (int64_t)dt_dtype_size(j->scales->dtype),
                        n * j->groups);
    if (j->zeros == NULL) return;
    zeros = (const uint8_t *)j->zeros->data + o * j->groups;
    for (int64_t i = 0; i < n * j->groups; i++) shifts[i] = middle - (float)zeros[i];
}

/* Outputs [begin, end) of rows [m, m + n_rows), some outputs at a time. */
static void multiply(const packed_job *j, int64_t m, int64_t n_rows, int64_t begin, int64_t end,
                     char *work)
{
    const int64_t room = DTI_PACKED_OUTPUTS * j->groups + DTI_PACKED_PAD;
    float *scales = (float *)work, *shifts = scales + room, *sums = shifts + room;
    const int64_t row_bytes = j->l.n_in * j->bits / 8;

    for (int64_t first = begin; first < end; first += OUTPUTS) {
        const int64_t n = end - first < OUTPUTS ? end - first : OUTPUTS;
        for (int64_t o = 0; o < n; o += DTI_PACKED_OUTPUTS) {
            const int64_t some = n - o < DTI_PACKED_OUTPUTS ? n - o : DTI_PACKED_OUTPUTS;
            widen(j, first + o, some, scales, shifts);
            j->ops->dot(&(dti_packed_args){ .x = j->packed + m * j->stride,
                                            .x_stride = j->stride,
                                            .codes = (const uint8_t *)j->l.w->data +
                                                     (first + o) * row_bytes,
                                            .scales = scales,
                                            .shifts = j->zeros != NULL ? shifts : NULL,
                                            .y = sums + o,
                                            .n_rows = n_rows,
                                            .n_in = j->l.n_in,
                                            .group = j->group,
                                            .y_stride = OUTPUTS,
                                            .bits = j->bits,
                                            .floats = j->floats },
                        (int)some);
        }
        dti_linear_store(&j->l, sums, OUTPUTS, m, n_rows, first, n);
    }
}

static void share(void *arg, int worker, int n_workers)
{
    const packed_job *j = arg;
    char *work = j->work + worker * j->work_bytes;
    int64_t begin, end;

    dti_pool_share(j->l.n_out, DTI_PACKED_OUTPUTS, worker, n_workers, &begin, &end);
    for (int64_t m = 0; m < j->l.n_rows; m += j->block_rows)
        multiply(j, m, j->l.n_rows - m < j->block_rows ? j->l.n_rows - m : j->block_rows, begin,
                 end, work);
}

static int64_t lines(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static dt_status run(const dt_kargs *a, const char *op, bool floats)
{
    const dti_packed_attr *attr = a->attr;
    packed_job j = { .ops = ops_of(a->cpu->isa, a->in[0].dtype),
                     .l = { .cpu = a->cpu,
                            .x = &a->in[0],
                            .w = &a->in[1],
                            .y = &a->out[0],
                            .n_rows = dti_rows(&a->in[0]),
                            .n_in = a->in[0].shape[a->in[0].n_axes - 1],
                            .n_out = a->in[1].shape[0] },
                     .scales = &a->in[2],
                     .zeros = a->n_in > 3 ? &a->in[3] : NULL,
                     .group = attr->group,
                     .bits = (int)attr->bits,
                     .floats = floats };
    const int64_t n_workers = dt_kernel_workers(a);
    const dti_row_ops *y_rows;
    int64_t room, packed;
    void *scratch;

    DT_TRY(dti_cpu_rows(a->cpu, op, j.l.x, &j.x_rows));
    DT_TRY(dti_cpu_rows(a->cpu, op, j.scales, &j.scale_rows));
    DT_TRY(dti_cpu_rows(a->cpu, op, j.l.y, &y_rows));
    if (j.l.n_rows == 0 || j.l.n_out == 0) return DT_OK;
    j.groups = j.l.n_in / j.group;
    j.stride = j.ops->stride(j.l.n_in, j.bits);
    j.block_rows = L2_BYTES / j.stride > 12 ? L2_BYTES / j.stride / 12 * 12 : 12;
    if (j.block_rows > j.l.n_rows) j.block_rows = j.l.n_rows;
    room = 2 * (DTI_PACKED_OUTPUTS * j.groups + DTI_PACKED_PAD) + j.block_rows * OUTPUTS;
    j.work_bytes = lines((room > j.l.n_in ? room : j.l.n_in) * (int64_t)sizeof(float));
    packed = lines(j.l.n_rows * j.stride);
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(packed + n_workers * j.work_bytes), &scratch));
    j.packed = scratch;
    j.work = j.packed + packed;
    dti_cpu_run(a->cpu, j.l.n_rows > 1 ? dti_bytes(j.l.x) : 0, pack_share, &j);
    dti_cpu_run_stream(a->cpu, dti_bytes(j.l.w), share, &j);
    return DT_OK;
}

dt_status dti_linear_packed_cpu(const dt_kargs *a)
{
    return run(a, "linear_packed", false);
}

dt_status dti_linear_e4m3_cpu(const dt_kargs *a)
{
    return run(a, "linear_e4m3", true);
}
