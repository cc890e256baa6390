/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs get wrong: use after the run, memory that is none, kernels that say nothing. */
#include <dtensor/async.h>
#include <dtensor/collectives.h>
#include <dtensor/dlpack.h>
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <string.h>

#include "tests/support/dt_test.h"

static const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
static const int64_t shape[] = { 2, 3 };

/* --- after the run --- */

static dt_status leaves_a_tensor(dt_runtime *rt, void *arg)
{
    dt_mesh *mesh = NULL;
    dt_status st;

    DT_TRY(dt_mesh_create(rt, "tp=1", &mesh));
    st = dt_zeros(mesh, whole, DT_F32, 2, shape, arg);
    dt_mesh_release(&mesh);
    return st;
}

DT_TEST(misuse, a_tensor_is_not_filled_or_moved_after_its_run)
{
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y = NULL;
    dt_pending *p = NULL;

    DT_ASSERT_OK(dt_run(NULL, leaves_a_tensor, &x));
    DT_ASSERT_STATUS(dt_fill(x, 1.0), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_fill_arange(x, (dt_steps){ 0, 1 }), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_fill_randn(x, (dt_random){ 1, 0 }, 0, 1), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_fill_randint(x, (dt_random){ 1, 0 }, 0, 9), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_redistribute(x, whole, &y), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_full_tensor(x, &y), DT_ERR_ARG, "has ended");
    DT_ASSERT_STATUS(dt_redistribute_begin(x, whole, &p), DT_ERR_ARG, "has ended");
    DT_ASSERT(y == NULL && p == NULL);
}

/* --- memory --- */

static dt_status takes_no_nonsense(dt_mesh *mesh, const void *arg)
{
    const int64_t ones[] = { 1, 1 }, before[] = { 0, -3 };
    const dt_collective gather = { .op = DT_CALL_ALL_GATHER,
                                   .dtype = DT_F32,
                                   .send = (float[]){ 1 },
                                   .recv = (float[2]){ 0 },
                                   .counts = ones,
                                   .displs = before };
    dt_dlpack shapeless = { .dl_tensor = { .ndim = 2, .dtype = { 2, 32, 1 } } };
    DT_HELD(tensor) *x = NULL, *y = NULL;
    dt_pending *p = NULL;

    (void)arg;
    DT_EXPECT(dt_collective_run(mesh, NULL, &gather) == DT_ERR_ARG, "a negative displacement");
    DT_EXPECT(strstr(dt_last_error()->message, "displs[1] is -3") != NULL, "%s",
              dt_last_error()->message);
    shapeless.version.major = 1;
    shapeless.dl_tensor.device.device_type = 1;
    DT_EXPECT(dt_from_dlpack(mesh, whole, 2, shape, &shapeless, DT_DL_COPY_ALWAYS, &x) != DT_OK,
              "no shape");
    DT_TRY(dt_zeros(mesh, whole, DT_F32, 2, shape, &x));
    DT_TRY(dt_redistribute_begin(x, whole, &p));
    DT_EXPECT(dt_pending_wait(&p, NULL) == DT_ERR_ARG && p == NULL,
              "a pending move stays although its result has no place");
    return DT_OK;
}

DT_TEST(misuse, negative_displacements_and_missing_shapes_are_refused)
{
    dt_test_on_ranks("tp=2", takes_no_nonsense, NULL);
}

/* --- kernels that say nothing --- */

static dt_status says_nothing(const dt_kargs *args)
{
    (void)args;
    return DT_ERR_FORMAT;
}

static const dt_op quiet = {
    .name = "quiet", .axes = "... -> ...", .types = "F>F", .cpu = says_nothing
};
static dt_status names_the_operator(dt_mesh *mesh, const void *arg)
{
    DT_HELD(tensor) *x = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
    DT_TRY(dt_zeros(mesh, whole, DT_F32, 2, shape, &x));
    DT_EXPECT(dt_fill(NULL, 1.0) == DT_ERR_ARG, "an older record");
    DT_EXPECT(dt_apply(t, &quiet, NULL, 1, &x) == NULL, "a result");
    DT_EXPECT(dt_tape_status(t) == DT_ERR_FORMAT, "status");
    DT_EXPECT(strstr(dt_last_error()->message, "quiet: its kernel") != NULL, "%s",
              dt_last_error()->message);
    return DT_OK;
}

DT_TEST(misuse, a_kernel_that_fails_without_a_word_is_named)
{
    dt_test_on_ranks("tp=1", names_the_operator, NULL);
}
