/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host writes to tensors of ranks that are joined: it arrives in order, and does not wait
 * for what was started before. */
#include <dtensor/factories.h>
#include <stdlib.h>
#include <string.h>

#include "dtensor/device/upload.h"
#include "mesh/gpu.h"
#include "tests/support/cuda.h"
#include "tests/support/watched_cuda.h"

enum { N_TENSORS = 60, MAX_COUNT = 20000, N_BEFORE = 50, N_SMALL = 4200 };

/* Values of tensor i, of its round-th write. */
static float value(int i, int round, int64_t at)
{
    return (float)(1000 * i + 100 * round) + (float)(at % 97);
}

static dt_status write_many(dt_mesh *mesh, const void *arg)
{
    static const int64_t counts[] = { 1, 100, 4096, 16384, 16385, MAX_COUNT };
    const dt_placement whole = DT_REPLICATE;
    dt_tensor *x[N_TENSORS] = { NULL };
    float *data = malloc(MAX_COUNT * sizeof *data);
    dt_status st = DT_OK;

    (void)arg;
    DT_EXPECT_TO(done, st, data != NULL, "memory");
    for (int i = 0; i < N_TENSORS; i++)
        DT_TRY_TO(done, st,
                  dt_empty(mesh, &whole, DT_F32, 1, &counts[(size_t)i % DT_COUNT(counts)], &x[i]));
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N_TENSORS; i++) {
            const int64_t n = dt_tensor_extent(x[i], 0);
            for (int64_t k = 0; k < n; k++) data[k] = value(i, round, k);
            DT_TRY_TO(done, st, dt_tensor_write(x[i], data, (size_t)n * sizeof *data));
        }
    for (int i = 0; i < N_TENSORS; i++) {
        const int64_t n = dt_tensor_extent(x[i], 0);
        DT_TRY_TO(done, st, dt_tensor_read(x[i], data, (size_t)n * sizeof *data));
        for (int64_t k = 0; k < n; k++)
            DT_EXPECT_TO(done, st, data[k] == value(i, 1, k), "tensor %d: element %d is %g", i,
                         (int)k, (double)data[k]);
    }
done:
    for (int i = 0; i < N_TENSORS; i++) dt_tensor_release(&x[i]);
    free(data);
    return st;
}

DT_TEST(cuda_writes, what_is_written_in_a_row_arrives)
{
    dt_test_on_gpus("tp=1", write_many, NULL);
    dt_test_on_gpus("tp=2", write_many, NULL);
}

/* The first tensor opens the rank's device, with a module that counts what is pinned. More writes
 * than the ring's first buffers hold. */
static dt_status write_small_ones(dt_mesh *mesh, const void *arg)
{
    dti_cuda_place *place = (dti_cuda_place *)dti_runtime_gpu(dt_mesh_runtime(mesh));
    const dti_cuda_module *const real = place->module;
    dti_comm *world = dti_runtime_world(dt_mesh_runtime(mesh));
    const dt_placement whole = DT_REPLICATE;
    const int64_t n = 4;
    dt_status st = DT_OK;
    dt_tensor *x = NULL;
    int pinned;

    place->module = arg;
    st = dt_empty(mesh, &whole, DT_I32, 1, &n, &x);
    place->module = real;
    if (st != DT_OK) goto done;
    DT_TRY_TO(done, st, dti_barrier(world));
    pinned = watched_most_pinned();
    DT_EXPECT_TO(done, st, pinned == 2 * DTI_UPLOAD_BUFFERS, "%d are pinned at first", pinned);
    for (int32_t i = 0; i < N_SMALL; i++) {
        const int32_t ids[] = { i, i + 1, i + 2, i + 3 };
        DT_TRY_TO(done, st, dt_tensor_write(x, ids, sizeof ids));
    }
    pinned = watched_most_pinned();
    DT_EXPECT_TO(done, st, pinned == 2 * DTI_UPLOAD_BUFFERS, "%d are pinned at last", pinned);
    DT_TRY_TO(done, st, dti_barrier(world));
done:
    dt_tensor_release(&x);
    return st;
}

DT_TEST(cuda_writes, nothing_is_pinned_once_the_device_is_open)
{
    dt_test_on_gpus("tp=2", write_small_ones, watched_module(dt_test_cuda_module()));
    DT_ASSERT_EQ_INT(watched_pinned(), 0);
}

/* A late device does a piece of work each time that it is asked whether all is done. */
static dt_status write_behind(dt_mesh *mesh, const void *arg)
{
    const dti_cuda_place *place = dti_runtime_gpu(dt_mesh_runtime(mesh));
    const dt_placement whole = DT_REPLICATE;
    const int64_t n = 100;
    const float data[100] = { 5.0f };
    DT_HELD(tensor) *x = NULL;
    bool all_done = false;
    int asked = 0;

    (void)arg;
    DT_TRY(dt_empty(mesh, &whole, DT_F32, 1, &n, &x));
    for (int i = 0; i < N_BEFORE; i++) DT_TRY(dt_fill(x, i));
    DT_TRY(dt_tensor_write(x, data, sizeof data));
    for (; !all_done; asked++)
        DT_EXPECT(place->module->done(place->cuda, &all_done) == 0, "%s", place->module->why());
    DT_EXPECT(asked > N_BEFORE, "all was done after %d pieces", asked);
    DT_TRY(dti_barrier(
        dti_runtime_world(dt_mesh_runtime(mesh)))); /* giving memory back drains the GPU of both */
    return DT_OK;
}

DT_TEST(cuda_writes, few_bytes_do_not_wait_for_the_stream)
{
#ifdef DT_TEST_PLAIN /* other tests of this process may have opened the device */
    if (getenv("DTENSOR_SIM_LATE") == NULL) dt_test_skip("skipped: the device is not late");
#endif
    DT_ASSERT_EQ_INT(setenv("DTENSOR_SIM_LATE", "1", 1), 0);
    if (strcmp(dt_test_cuda_module()->name, "simulated") != 0)
        dt_test_skip("skipped: only the simulated device is late at will");
    dt_test_on_gpus("tp=2", write_behind, NULL);
}
