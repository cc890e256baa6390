/* SPDX-License-Identifier: Apache-2.0
 *
 * An optimizer's state in memory of the host, or in a file, while parameters lie on a GPU: the
 * device loses exactly the state's bytes, and the bits are the same. */
#include <dtensor/devices.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/device/device.h"
#include "tests/support/cuda.h"
#include "tests/support/small_net.h"

enum { STEPS = 3, MOST = 2000 };

typedef struct outcome {
    dt_test_training how;
    int64_t n, state_bytes;
    size_t used, states; /* on the device, after the last step */
    float values[MOST];
} outcome;

static dt_status train(dt_mesh *mesh, const void *arg)
{
    outcome *const *to = arg, *o = *to;
    dt_optimizer *opt = NULL;
    dt_layers *net = NULL;
    dt_tape *t = NULL;
    float *values = NULL;
    dti_device *d;
    dt_status st;
    int64_t n = 0;

    DT_TRY_TO(done, st, dti_device_of(dt_mesh_runtime(mesh), &d));
    DT_TRY_TO(done, st, dt_test_net_create(mesh, o->how.dtype, &net));
    DT_TRY_TO(done, st, dt_optimizer_create(net, &o->how.options, &opt));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (int i = 0; i < STEPS; i++) {
        dt_step_report report;
        DT_TRY_TO(done, st, dt_test_net_step(opt, t, net, &o->how, i, &report));
    }
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) {
        o->used = dti_memory_used(d->memory);
        o->states = dti_memory_of_kind(d->memory, DTI_KIND_STATES);
        o->state_bytes = dt_optimizer_state_bytes(opt);
    }
    DT_TRY_TO(done, st, dt_test_net_values(net, opt, &values, &n));
    DT_EXPECT_TO(done, st, n <= MOST, "%lld values", (long long)n);
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) {
        o->n = n;
        memcpy(o->values, values, (size_t)n * sizeof *values);
    }
done:
    dti_free(values);
    dt_tape_release(&t);
    dt_optimizer_release(&opt);
    dt_layers_release(&net);
    return st;
}

DT_TEST(cuda_offload, the_device_loses_the_bytes_of_the_state_and_no_bit)
{
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16 };
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    static outcome without, with, *to;
    char dir[DT_TEST_PATH_BYTES];

    (void)dt_test_cuda_runs();
    options.device = "cuda";
    (void)dt_test_temp_dir(dir);
    for (size_t i = 0; i < DT_COUNT(dtypes); i++)
        for (int place = 0; place <= 1; place++) {
            without = (outcome){ .how = { .dtype = dtypes[i],
                                          .options = DT_OPTIMIZER_OPTIONS_INIT,
                                          .passes = 1,
                                          .lr = 0.01 } };
            without.how.options.zero = place;
            with = without;
            with.how.options.offload = place == 0 ? "host" : dir;
            to = &without;
            DT_ASSERT_OK(dt_test_run(&options, "dp=2", train, &to));
            to = &with;
            DT_ASSERT_OK(dt_test_run(&options, "dp=2", train, &to));
            DT_ASSERT_EQ_INT(with.n, without.n);
            DT_ASSERT(memcmp(with.values, without.values, (size_t)with.n * sizeof(float)) == 0);
            DT_ASSERT_EQ_INT(with.state_bytes, without.state_bytes);
            DT_ASSERT_EQ_INT(without.states, without.state_bytes);
            DT_ASSERT_EQ_INT(with.states, 0);
            DT_ASSERT_EQ_INT(without.used - with.used, without.state_bytes);
        }
    dt_test_remove_dir(dir);
}
