/* SPDX-License-Identifier: Apache-2.0
 *
 * DLPack: pieces go out in place and live as long as somebody holds them; what comes in is taken in
 * place or copied, and its deleter is called once. */
#include <dtensor/dlpack.h>
#include <dtensor/factories.h>
#include <pthread.h>
#include <string.h>

#include "tests/support/dt_test.h"

/* The layout of dlpack.h: these are the offsets of its 64-bit ABI. */
_Static_assert(sizeof(dt_dl_tensor) == 48 && offsetof(dt_dl_tensor, shape) == 24, "DLTensor");
_Static_assert(offsetof(dt_dl_tensor, byte_offset) == 40, "DLTensor.byte_offset");
_Static_assert(sizeof(dt_dlpack) == 80 && offsetof(dt_dlpack, dl_tensor) == 32,
               "DLManagedTensorVersioned");
_Static_assert(sizeof(dt_dlpack_old) == 64 && offsetof(dt_dlpack_old, manager_ctx) == 48,
               "DLManagedTensor");

/* --- out -------------------------------------------------------------------------------------- */

static dt_status goes_out(dt_mesh *mesh, const void *arg)
{
    const dt_placement cut[] = { DT_SHARD(1) };
    const int64_t shape[] = { 3, 5 };
    const int64_t columns = dt_mesh_coord(mesh, 0) == 0 ? 3 : 2;
    dt_dlpack_old *old;
    dt_dlpack *out;
    dt_tensor *x;
    float *data;

    (void)arg;
    DT_TRY(dt_full(mesh, cut, DT_F32, 2, shape, 7, &x));
    DT_TRY(dt_to_dlpack(x, &out));
    DT_TRY(dt_to_dlpack_old(x, &old));
    data = out->dl_tensor.data;
    DT_EXPECT(data == dt_tensor_local(x)->data && old->dl_tensor.data == data, "in place");
    DT_EXPECT(out->version.major == 1 && out->flags == 0, "version and flags");
    DT_EXPECT(out->dl_tensor.ndim == 2 && out->dl_tensor.shape[0] == 3 &&
                  out->dl_tensor.shape[1] == columns,
              "extents of the piece");
    DT_EXPECT(out->dl_tensor.strides[0] == columns && out->dl_tensor.strides[1] == 1, "strides");
    DT_EXPECT(out->dl_tensor.dtype.code == DT_DL_FLOAT && out->dl_tensor.dtype.bits == 32 &&
                  out->dl_tensor.dtype.lanes == 1,
              "dtype");
    DT_EXPECT(out->dl_tensor.device.device_type == DT_DL_CPU, "device");
    dt_tensor_release(&x);
    data[1] = 9; /* the bytes are still there */
    old->deleter(old);
    DT_EXPECT_CLOSE(data[0] + data[1], 16, 0);
    out->deleter(out);
    return DT_OK;
}

/* A block that came back goes into the pool again. */
static dt_status refused_out(dt_mesh *mesh, const void *arg)
{
    const dt_placement term[] = { DT_PARTIAL(DT_SUM) };
    const float values[2] = { 1, 2 };
    const int64_t shape[] = { 2 };
    dt_dlpack *out = (dt_dlpack *)(uintptr_t)1;
    dt_tensor *x;

    (void)arg;
    DT_TRY(dt_from_local(mesh, term, DT_F32, 1, shape, values, &x));
    DT_EXPECT_STATUS(dt_to_dlpack(x, &out), DT_ERR_LAYOUT, "P(sum) is a term on each rank");
    DT_EXPECT(out == NULL, "nothing comes out");
    dt_tensor_release(&x);
    DT_EXPECT_STATUS(dt_to_dlpack(NULL, &out), DT_ERR_ARG, "x is NULL");
    return DT_OK;
}

DT_TEST(dlpack, pieces_go_out_in_place)
{
    dt_test_on_ranks("tp=2", refused_out, NULL);
    dt_test_on_ranks("tp=2", goes_out, NULL);
}

typedef struct outgoing {
    dt_dlpack *out[2];
    int calls;
} outgoing;

static void *consume(void *arg)
{
    dt_dlpack *d = arg;

    ((float *)d->dl_tensor.data)[0] = 1;
    d->deleter(d);
    return NULL;
}

static void count_call(void *arg, void *data)
{
    (void)data;
    ++*(int *)arg;
}

static dt_status hand_out(dt_runtime *rt, void *arg)
{
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 4096 };
    static float values[4096];
    outgoing *o = arg;
    dt_tensor *x, *y;
    pthread_t thread;
    dt_dlpack *out;
    dt_mesh *mesh;

    DT_TRY(dt_mesh_create(rt, "tp=1", &mesh));
    DT_TRY(dt_ones(mesh, whole, DT_F32, 1, shape, &x));
    DT_TRY(dt_to_dlpack(x, &o->out[0])); /* outlives the run */
    DT_TRY(dt_to_dlpack(x, &out));
    dt_tensor_release(&x);
    DT_EXPECT(pthread_create(&thread, NULL, consume, out) == 0, "no thread");
    (void)pthread_join(thread, NULL);

    /* Memory of the caller's comes back to this thread, when it next makes a tensor. */
    DT_TRY(dt_wrap_local(mesh, whole, DT_F32, 1, shape,
                         (dt_memory){ values, sizeof values, count_call, &o->calls }, &x));
    DT_TRY(dt_to_dlpack(x, &out));
    dt_tensor_release(&x);
    DT_EXPECT(pthread_create(&thread, NULL, consume, out) == 0, "no thread");
    (void)pthread_join(thread, NULL);
    DT_EXPECT_EQ_INT(o->calls, 0);
    DT_TRY(dt_ones(mesh, whole, DT_F32, 1, shape, &y));
    DT_EXPECT_EQ_INT(o->calls, 1);
    dt_tensor_release(&y);
    DT_TRY(dt_wrap_local(mesh, whole, DT_F32, 1, shape,
                         (dt_memory){ values, sizeof values, count_call, &o->calls }, &x));
    DT_TRY(dt_to_dlpack(x, &o->out[1]));
    dt_tensor_release(&x);
    dt_mesh_release(&mesh);
    return DT_OK;
}

DT_TEST(dlpack, bytes_live_as_long_as_somebody_holds_them)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    outgoing all = { 0 };

    if (dt_test_processes() > 1) dt_test_skip("the handles are this process's");
    DT_ASSERT_OK(dt_run(&o, hand_out, &all));
    DT_ASSERT_CLOSE(((const float *)all.out[0]->dl_tensor.data)[4095], 1, 0);
    DT_ASSERT_EQ_INT(all.calls, 1); /* its consumer still reads it */
    for (int i = 0; i < 2; i++) all.out[i]->deleter(all.out[i]);
    DT_ASSERT_EQ_INT(all.calls, 2);
}

/* --- in --------------------------------------------------------------------------------------- */

/* Somebody else's array. */
typedef struct foreign {
    dt_dlpack now;
    dt_dlpack_old old;
    int64_t shape[3], strides[3];
    int calls;
    _Alignas(8) float values[64];
} foreign;

static void deleted(dt_dlpack *self)
{
    ((foreign *)self->manager_ctx)->calls++;
}

static void deleted_old(dt_dlpack_old *self)
{
    ((foreign *)self->manager_ctx)->calls++;
}

/* [rows, columns] of f32, row-major. */
static foreign *fresh(foreign *f, int64_t rows, int64_t columns)
{
    memset(f, 0, sizeof *f);
    f->shape[0] = rows, f->shape[1] = columns;
    f->strides[0] = columns, f->strides[1] = 1;
    for (int i = 0; i < 64; i++) f->values[i] = (float)i;
    f->now = (dt_dlpack){ .version = { 1, 3 }, .manager_ctx = f, .deleter = deleted };
    f->now.dl_tensor = (dt_dl_tensor){ .data = f->values,
                                       .device = { DT_DL_CPU, 0 },
                                       .ndim = 2,
                                       .dtype = { DT_DL_FLOAT, 32, 1 },
                                       .shape = f->shape,
                                       .strides = f->strides };
    f->old = (dt_dlpack_old){ f->now.dl_tensor, f, deleted_old };
    return f;
}

static dt_status comes_in(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) };
    const int64_t shape[] = { 6, 4 };
    dt_tensor *x;
    foreign f;

    (void)arg;
    fresh(&f, 3, 4);
    DT_TRY(dt_from_dlpack(mesh, rows, 2, shape, &f.now, DT_DL_COPY_NEVER, &x));
    DT_EXPECT(dt_tensor_local(x)->data == f.values && f.calls == 0, "in place");
    DT_TRY(dt_fill(x, 2));
    DT_EXPECT_CLOSE(f.values[11] + f.values[12], 2 + 12, 0);
    dt_tensor_release(&x);
    DT_EXPECT_EQ_INT(f.calls, 1);

    fresh(&f, 3, 4)->now.dl_tensor.strides = NULL; /* row-major, of before 1.2 */
    f.now.dl_tensor.byte_offset = 8;
    DT_TRY(dt_from_dlpack(mesh, rows, 2, shape, &f.now, DT_DL_COPY_NEVER, &x));
    DT_EXPECT(dt_tensor_local(x)->data == f.values + 2, "at its offset");
    dt_tensor_release(&x);
    DT_EXPECT_EQ_INT(f.calls, 1);

    fresh(&f, 3, 4);
    DT_TRY(dt_from_dlpack_old(mesh, rows, 2, shape, &f.old, DT_DL_COPY_NEVER, &x));
    DT_EXPECT(dt_tensor_local(x)->data == f.values && f.calls == 0, "the old form, too");
    dt_tensor_release(&x);
    DT_EXPECT_EQ_INT(f.calls, 1);

    fresh(&f, 3, 4);
    DT_TRY(dt_from_dlpack(mesh, rows, 2, shape, &f.now, DT_DL_COPY_ALWAYS, &x));
    DT_EXPECT(dt_tensor_local(x)->data != f.values && f.calls == 1, "copied");
    DT_EXPECT_CLOSE(((const float *)dt_tensor_local(x)->data)[11], 11, 0);
    dt_tensor_release(&x);
    DT_EXPECT_EQ_INT(f.calls, 1);
    return DT_OK;
}

/* Strides, read-only bytes, odd addresses: refused with the reason, or copied. */
static dt_status copies(dt_mesh *mesh, const void *arg)
{
    static const char *const why[] = { "not row-major", "not row-major", "read-only",
                                       "not aligned" };
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 3, 4 };

    (void)arg;
    for (int k = 0; k < 4; k++)
        for (int copy = 0; copy < 2; copy++) {
            dt_tensor *x = NULL;
            foreign f;
            fresh(&f, 3, 4);
            if (k == 0) f.strides[0] = 1, f.strides[1] = 3;                  /* transposed */
            if (k == 1) f.strides[1] = -1, f.now.dl_tensor.byte_offset = 12; /* rows backwards */
            if (k == 2) f.now.flags = 1;
            if (k == 3) {
                memmove((char *)f.values + 1, f.values, 12 * sizeof(float));
                f.now.dl_tensor.byte_offset = 1;
            }
            if (!copy) {
                DT_EXPECT_STATUS(
                    dt_from_dlpack(mesh, whole, 2, shape, &f.now, DT_DL_COPY_NEVER, &x), DT_ERR_ARG,
                    why[k]);
                DT_EXPECT(f.calls == 1 && x == NULL, "case %d: %d calls", k, f.calls);
                continue;
            }
            DT_TRY(dt_from_dlpack(mesh, whole, 2, shape, &f.now, DT_DL_COPY_IF_NEEDED, &x));
            DT_EXPECT_EQ_INT(f.calls, 1);
            for (int r = 0; r < 3; r++)
                for (int c = 0; c < 4; c++)
                    DT_EXPECT_CLOSE(((const float *)dt_tensor_local(x)->data)[4 * r + c],
                                    k == 0   ? r + 3 * c
                                    : k == 1 ? 4 * r + 3 - c
                                             : 4 * r + c,
                                    0);
            dt_tensor_release(&x);
        }
    return DT_OK;
}

static dt_status refused_in(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) };
    const int64_t shape[] = { 6, 4 };
    static const struct {
        const char *words;
        dt_status code;
    } cases[] = {
        { "a version of DLPack that is not 1", DT_ERR_UNSUPPORTED },
        { "(DLPack's type 2), not on the host", DT_ERR_UNSUPPORTED },
        { "code 5 with 64 bits in 1 lanes", DT_ERR_UNSUPPORTED },
        { "code 2 with 32 bits in 4 lanes", DT_ERR_UNSUPPORTED },
        { "memory of 1 axes is given for a tensor of 2", DT_ERR_SHAPE },
        { "axis 0 of the memory has extent 2, but this rank's piece has 3", DT_ERR_SHAPE },
        { "data is NULL", DT_ERR_ARG },
        { NULL, DT_ERR_LAYOUT },
    };

    (void)arg;
    for (int k = 0; k < (int)DT_COUNT(cases); k++) {
        const dt_placement wrong[] = { DT_SHARD(k == 7 ? 4 : 0) };
        dt_tensor *x = NULL;
        foreign f;
        fresh(&f, 3, 4);
        if (k == 0) f.now.version.major = 2;
        if (k == 1) f.now.dl_tensor.device.device_type = 2;
        if (k == 2) f.now.dl_tensor.dtype = (dt_dl_dtype){ 5, 64, 1 };
        if (k == 3) f.now.dl_tensor.dtype.lanes = 4;
        if (k == 4) f.now.dl_tensor.ndim = 1;
        if (k == 5) f.shape[0] = 2;
        if (k == 6) f.now.dl_tensor.data = NULL;
        DT_EXPECT_STATUS(dt_from_dlpack(mesh, wrong, 2, shape, &f.now, DT_DL_COPY_IF_NEEDED, &x),
                         cases[k].code, cases[k].words);
        DT_EXPECT(f.calls == 1 && x == NULL, "case %d: %d calls", k, f.calls);
    }
    DT_EXPECT_STATUS(dt_from_dlpack(mesh, rows, 2, shape, NULL, DT_DL_COPY_NEVER, NULL), DT_ERR_ARG,
                     "from is NULL");
    return DT_OK;
}

DT_TEST(dlpack, memory_comes_in_in_place_or_is_copied_or_refused)
{
    dt_test_on_ranks("tp=2", comes_in, NULL);
    dt_test_on_ranks("tp=1", copies, NULL);
    dt_test_on_ranks("tp=2", copies, NULL);
    dt_test_on_ranks("tp=2", refused_in, NULL);
}

/* All dtypes, out and in again. */
static dt_status there_and_back(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) };
    const int64_t shape[] = { 4, 2, 3 };

    (void)arg;
    for (dt_dtype t = 0; t < DT_N_DTYPES; t++) {
        dt_tensor *x, *y;
        dt_dlpack *out;
        DT_TRY(dt_full(mesh, rows, t, 3, shape, 5, &x));
        DT_TRY(dt_to_dlpack(x, &out));
        DT_TRY(dt_from_dlpack(mesh, rows, 3, shape, out, DT_DL_COPY_NEVER, &y));
        DT_EXPECT(dt_tensor_dtype(y) == t, "%s", dt_dtype_name(t));
        DT_EXPECT(dt_tensor_local(y)->data == dt_tensor_local(x)->data, "one memory");
        dt_tensor_release(&x);
        dt_tensor_release(&y); /* calls our own deleter */
    }
    return DT_OK;
}

DT_TEST(dlpack, every_dtype_goes_out_and_comes_in_again)
{
    dt_test_on_ranks("tp=2", there_and_back, NULL);
}
