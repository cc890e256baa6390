/* SPDX-License-Identifier: Apache-2.0
 *
 * Random values have the CPU's bits, wherever in a tensor a piece begins and whatever its strides
 * are. */
#include "tests/cuda/rows.h"

#include "dtensor/kernels/cpu/cpu_random.h"

/* Elements of the CPU, one by one. */
static void fill_on_cpu(const dti_random_fill *f, const dti_cuda_box *box, dt_local *x)
{
    const size_t bytes = dt_dtype_size(f->dtype);
    const int64_t n = kt_count(x);

    for (int64_t i = 0; i < n; i++) {
        int64_t at = box->offset, rest = i;
        for (int a = box->n_axes - 1; a >= 0; a--) {
            at += rest % box->extent[a] * box->stride[a];
            rest /= box->extent[a];
        }
        dti_random_portable(f, (char *)x->data + (size_t)i * bytes, at, 1);
    }
}

static void run_random(const cr_device *d, const dti_random_fill *f, const dti_cuda_box *box)
{
    dt_local want = kt_local(f->dtype, box->n_axes, box->extent);
    dt_local got = kt_local(f->dtype, box->n_axes, box->extent);
    const cr_case c = { .row = "fill_random",
                        .out = { .dtype = f->dtype, .n_axes = 1, .shape = { kt_count(&want) } } };
    void *there = cr_up(d, &c.out, 0);

    fill_on_cpu(f, box, &want);
    DT_ASSERT_CUDA(d->m, d->m->kernels->fill_random(d->c, there, box, f));
    cr_down(&c, d, there, got.data);
    if (memcmp(got.data, want.data, cr_bytes(&want)) != 0)
        dt_test_fail(__FILE__, __LINE__, "random values of kind %d, %s, have other bits",
                     (int)f->kind, dt_dtype_name(f->dtype));
    cr_release(d, &c.out, there, 0);
    kt_release(&want);
    kt_release(&got);
}

DT_TEST(cuda_random, values_have_the_bits_of_the_cpu)
{
    static const dti_cuda_box boxes[] = {
        { .n_axes = 1, .extent = { 1001 }, .stride = { 1 } },
        { .n_axes = 0, .offset = 12345 },
        { .n_axes = 2, .offset = 7, .extent = { 5, 9 }, .stride = { 33, 1 } },
        { .n_axes = 3, .offset = 1, .extent = { 2, 3, 4 }, .stride = { 100, 2, 11 } },
        { .n_axes = 2, .extent = { 0, 9 }, .stride = { 33, 1 } },
        { .n_axes = 1, .offset = ((int64_t)1 << 36) - 3, .extent = { 9 }, .stride = { 1 } },
    };
    CR_DEVICE d = cr_open();

    for (int kind = DTI_RANDOM_UNIFORM; kind <= DTI_RANDOM_INTEGER; kind++)
        for (int t = 0; t < DT_N_DTYPES; t++)
            for (size_t b = 0; b < DT_COUNT(boxes); b++) {
                const dti_random_fill f = { .kind = (dti_random_kind)kind,
                                            .dtype = (dt_dtype)t,
                                            .key = { .seed = 0x123456789abcdefull, .stream = 77 },
                                            .shift = kind == DTI_RANDOM_UNIFORM ? -0.02 : 0.1,
                                            .scale = kind == DTI_RANDOM_UNIFORM ? 0.04 : 1.7,
                                            .low = 3,
                                            .range = t == DT_I64 ? 0 : 100 };
                if (kind == DTI_RANDOM_INTEGER || dt_dtype_is_float((dt_dtype)t))
                    run_random(&d, &f, &boxes[b]);
            }
}
