/* SPDX-License-Identifier: Apache-2.0
 *
 * Factories on GPUs: the CPU's bits whatever the placement, made where the tensor lies. */
#include <dtensor/factories.h>
#include <string.h>

#include "dtensor/device/device.h"
#include "tests/support/cuda.h"

enum { MAX_RANKS = 4, MAX_CASES = 16, MAX_BYTES = 1024 };

typedef enum maker { FULL, RAND, RANDN, RANDINT, N_MAKERS } maker;

typedef struct fill_case {
    int n_axes;
    int64_t shape[3];
    dt_placement place[2];
    bool by_host; /* an axis behind the first is in several runs */
} fill_case;

/* What the run on the CPU has made, for the run on GPUs to compare. */
typedef struct pieces {
    bool on_gpu;
    char bytes[MAX_RANKS][MAX_CASES][N_MAKERS][DT_N_DTYPES][MAX_BYTES];
} pieces;

static dt_status make(maker how, dt_mesh *mesh, const fill_case *c, dt_dtype dtype, dt_tensor **out)
{
    const dt_random key = { 42, 5 };

    DT_TRY(dt_empty(mesh, c->place, dtype, c->n_axes, c->shape, out));
    switch (how) {
    case FULL:
        return dt_fill(*out, 7.0);
    case RAND:
        return dt_fill_rand(*out, key, -0.5, 0.5);
    case RANDN:
        return dt_fill_randn(*out, key, 0.1, 1.7);
    default:
        return dt_fill_randint(*out, key, 3, 100);
    }
}

static dt_status refuse_write(dti_device *d, void *to, const void *from_host, size_t bytes)
{
    (void)d;
    (void)to;
    (void)from_host;
    DT_FAIL(DT_ERR_INTERNAL, "%zu bytes came from the host", bytes);
}

/* As make(), on a device that takes nothing from the host. */
static dt_status make_there(maker how, dt_mesh *mesh, const fill_case *c, dt_dtype dtype,
                            dt_tensor **out)
{
    dti_device *d;
    const dti_device_ops *all;
    dti_device_ops own;
    dt_status st;

    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &d));
    all = d->ops;
    own = *all;
    if (!c->by_host && !all->host_visible) own.write = refuse_write;
    d->ops = &own;
    st = make(how, mesh, c, dtype, out);
    d->ops = all;
    return st;
}

static dt_status check(dt_mesh *mesh, const fill_case *c, maker how, dt_dtype dtype, bool on_gpu,
                       char *want)
{
    static const char zeros[MAX_BYTES];
    char got[MAX_BYTES] = { 0 };
    DT_HELD(tensor) *x = NULL;
    size_t bytes = dt_dtype_size(dtype);

    DT_TRY(make_there(how, mesh, c, dtype, &x));
    for (int a = 0; a < c->n_axes; a++) bytes *= (size_t)dt_tensor_local(x)->shape[a];
    DT_EXPECT(bytes <= MAX_BYTES, "%zu bytes", bytes);
    DT_TRY(dt_tensor_read(x, on_gpu ? got : want, bytes));
    if (!on_gpu)
        DT_EXPECT(bytes < 64 || memcmp(want, zeros, bytes) != 0, "nothing was made");
    else
        DT_EXPECT(memcmp(got, want, bytes) == 0, "maker %d, %s: other bits than the CPU's",
                  (int)how, dt_dtype_name(dtype));
    return DT_OK;
}

static dt_status fill_all(dt_mesh *mesh, const void *arg)
{
    const dt_placement packed = DT_SHARD_PACKED(0, 3, 1, 3);
    const fill_case cases[] = {
        { 2, { 7, 5 }, { DT_REPLICATE, DT_REPLICATE }, false },
        { 2, { 7, 5 }, { DT_SHARD(0), DT_REPLICATE }, false },
        { 2, { 7, 5 }, { DT_SHARD(1), DT_SHARD(0) }, false },
        { 3, { 3, 4, 5 }, { DT_SHARD(1), DT_REPLICATE }, false },
        { 3, { 3, 4, 5 }, { DT_SHARD(1), DT_SHARD(2) }, false },
        { 1, { 97 }, { DT_SHARD(0), DT_SHARD(0) }, false },
        { 0, { 0 }, { DT_REPLICATE, DT_REPLICATE }, false },
        { 2, { 0, 4 }, { DT_SHARD(0), DT_REPLICATE }, false },
        { 1, { 1 }, { DT_SHARD(0), DT_REPLICATE }, false },
        { 2, { 7, 5 }, { packed, DT_REPLICATE }, false },
        { 2, { 7, 5 }, { packed, DT_SHARD(1) }, false },
        { 2, { 7, 5 }, { packed, DT_SHARD_PACKED(1, 2, 3) }, true },
        { 2, { 7, 5 }, { DT_SHARD_NTH(0, 1), DT_SHARD_NTH(0, 0) }, false },
    };
    pieces *p = *(pieces *const *)arg;

    DT_EXPECT(DT_COUNT(cases) <= MAX_CASES, "more cases than room");
    for (size_t i = 0; i < DT_COUNT(cases); i++)
        for (int how = 0; how < N_MAKERS; how++)
            for (int t = 0; t < DT_N_DTYPES; t++) {
                char *want = p->bytes[dt_runtime_rank(dt_mesh_runtime(mesh))][i][how][t];
                if (!dt_dtype_is_float((dt_dtype)t) && (how == RAND || how == RANDN)) continue;
                DT_TRY(check(mesh, &cases[i], (maker)how, (dt_dtype)t, p->on_gpu, want));
            }
    return DT_OK;
}

DT_TEST(cuda_fill, factories_have_the_bits_of_the_cpu_and_need_no_host)
{
    static pieces all;
    pieces *const p = &all;

    dt_test_on_ranks("dp=2,tp=2", fill_all, &p);
    all.on_gpu = true;
    dt_test_on_gpus("dp=2,tp=2", fill_all, &p);
}

/* Work that starts when somebody waits for it fills before what reads. */
static dt_status fill_and_copy(dt_mesh *mesh, const void *arg)
{
    const dt_placement place[] = { DT_SHARD(0) };
    const int64_t shape[] = { 1000 };
    float got[1000];
    DT_HELD(tensor) *x = NULL;

    (void)arg;
    for (int round = 0; round < 3; round++) {
        DT_TRY(dt_full(mesh, place, DT_F32, 1, shape, round, &x));
        DT_TRY(dt_fill(x, round + 0.5));
        DT_TRY(dt_tensor_read(x, got, sizeof got));
        for (int i = 0; i < 1000; i++)
            DT_EXPECT(got[i] == (float)round + 0.5f, "element %d is %g", i, (double)got[i]);
        dt_tensor_release(&x);
    }
    return DT_OK;
}

DT_TEST(cuda_fill, a_fill_is_in_order_with_what_reads)
{
    dt_test_on_gpus("tp=1", fill_and_copy, NULL);
}
