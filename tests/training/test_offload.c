/* SPDX-License-Identifier: Apache-2.0
 *
 * State that lies in a file: windows keep what was put into them, in any order; training is bit by
 * bit what it is without; checkpoints are the same. */
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <dtensor/training_checkpoints.h>
#include <dtensor/weights.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "dtensor/device/device.h"
#include "tests/support/dt_test.h"
#include "tests/support/small_net.h"
#include "training/offload.h"

/* --- windows --- */

enum { N_ITEMS = 5 };
static const struct {
    int64_t n;
    int n_slots;
} items[N_ITEMS] = { { 5000, 3 }, { 1, 2 }, { 0, 2 }, { 2048, 1 }, { 7000, 2 } };

static float value(int64_t item, int slot, int64_t i, int round)
{
    return (float)(item * 100000 + slot * 10000 + i) + 0.125f * (float)round;
}

/* Goes through an item: what it finds is of the round before, what it leaves of `round`. */
static dt_status visit(dti_offload *o, int64_t item, int round, bool reads)
{
    dti_window w = { .item = item };
    int64_t seen = 0;

    for (;;) {
        DT_TRY(dti_offload_next(o, &w, reads));
        if (w.n == 0) break;
        DT_EXPECT_EQ_INT(w.first, seen);
        for (int s = 0; s < items[item].n_slots; s++)
            for (int64_t i = 0; i < w.n; i++) {
                const float want = round == 1 ? 0.0f : value(item, s, seen + i, round - 1);
                DT_EXPECT(w.slot[s][i] == want, "item %lld, slot %d, element %lld: %g, not %g",
                          (long long)item, s, (long long)(seen + i), (double)w.slot[s][i],
                          (double)want);
                if (!reads) w.slot[s][i] = value(item, s, seen + i, round);
            }
        seen += w.n;
    }
    DT_EXPECT_EQ_INT(seen, items[item].n);
    return DT_OK;
}

static dt_status keep_windows(dt_mesh *mesh, const void *arg)
{
    static const int orders[4][N_ITEMS] = {
        { 0, 1, 2, 3, 4 }, { 4, 3, 2, 1, 0 }, { 2, 0, 4, 1, 3 }, { 0, 1, 2, 3, 4 }
    };
    DT_ENDS(dti_offload_free) dti_offload *o = NULL;
    int64_t number;

    DT_TRY(dti_offload_create(dt_mesh_runtime(mesh), arg, DTI_OFFLOAD_LEAST_BYTES, &o));
    for (int i = 0; i < N_ITEMS; i++)
        DT_TRY(dti_offload_add(o, items[i].n, items[i].n_slots, &number));
    DT_TRY(dti_offload_open(o));
    for (int round = 1; round <= 4; round++)
        for (int i = 0; i < N_ITEMS; i++) {
            const int item = orders[round - 1][i];
            DT_TRY(visit(o, item, round, false));
            if (round % 2 == 0) DT_TRY(visit(o, item, round + 1, true));
        }
    DT_TRY(dti_offload_settle(o));
    return DT_OK;
}

DT_TEST(offload, windows_keep_what_is_put_into_them)
{
    char dir[DT_TEST_PATH_BYTES];

    dt_test_on_ranks("dp=2", keep_windows, dt_test_temp_dir(dir));
    dt_test_on_ranks("dp=2", keep_windows, "host");
    dt_test_on_ranks("dp=1", keep_windows, "."); /* another file system, most likely */
}

/* --- training --- */

enum { WIDE = 130, LONG = 90, STEPS = 4, MOST_VALUES = 3 * WIDE * LONG };

static const dt_layer_spec wide[] = {
    { .name = "wide",
      .kind = &dt_linear_kind,
      .axis = { { WIDE, DT_UNIT_ROW }, { LONG, DT_UNIT_ROW } },
      .with = "bias",
      .style = "colwise" },
};

typedef struct outcome {
    dt_dtype dtype;
    dt_optimizer_options options;
    const char *folder; /* a checkpoint goes there after half of the steps and is read again */
    int64_t n;
    float values[4 * MOST_VALUES];
} outcome;

static dt_status step_wide(dt_layers *net, dt_optimizer *opt, dt_tape *t, int step)
{
    const dt_dtype dtype = dt_tensor_dtype(dt_layer_param(dt_layers_at(net, 0), 0));
    const int64_t shape[] = { 4, LONG };
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    dt_mesh *mesh = dt_layers_mesh(net);
    float x[4 * LONG];
    dt_tensor *in, *y;

    for (int i = 0; i < 4 * LONG; i++) x[i] = (float)((i * 7 + step * 13) % 17 - 8) / 16.0f;
    DT_TRY(dt_distribute(mesh, whole, DT_F32, 2, shape, (dt_source){ x, DT_EQUAL_COPIES }, &in));
    dt_tape_record(t, dt_optimizer_gradients(opt));
    y = dt_layer_forward(t, dt_layers_at(net, 0), dt_cast(t, dt_tape_own(t, in), dtype));
    y = dt_sum(t, dt_mul(t, y, y), DT_ALL_AXES);
    dt_optimizer_backward(opt, t, y, true, NULL);
    DT_TRY(dt_tape_status(t));
    dt_tape_reset(t);
    DT_TRY(dt_optimizer_step(opt, 0.01, NULL));
    return DT_OK;
}

/* Through a checkpoint, into an optimizer without offload. */
static dt_status exchange(dt_layers *net, dt_optimizer **opt, const outcome *o)
{
    dt_optimizer_options options = o->options;
    DT_HELD(run_folder) *run = NULL;

    options.offload = NULL;
    DT_TRY(dt_run_folder_open(dt_layers_mesh(net), o->folder, NULL, &run));
    DT_TRY(dt_run_folder_save(run, net, *opt, &(dt_run_progress){ .step = 2 }, NULL));
    dt_optimizer_release(opt);
    DT_TRY(dt_optimizer_create(net, &options, opt));
    DT_TRY(dt_run_folder_load(run, NULL, net, *opt, NULL, NULL));
    dt_optimizer_release(opt);
    DT_TRY(dt_optimizer_create(net, &o->options, opt));
    DT_TRY(dt_run_folder_load(run, NULL, net, *opt, NULL, NULL));
    return DT_OK;
}

static dt_status train_wide(dt_mesh *mesh, const void *arg)
{
    outcome *const *to = arg, *o = *to;
    DT_HELD(layers) *net = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_FREED float *values = NULL;
    int64_t n = 0;

    DT_TRY(dt_layers_create(mesh, "tp?", wide, 1, NULL, &net));
    DT_TRY(dt_layers_init(net, o->dtype, 3, NULL, 0));
    DT_TRY(dt_optimizer_create(net, &o->options, &opt));
    for (int step = 0; step < STEPS; step++) {
        if (step == STEPS / 2 && o->folder != NULL) DT_TRY(exchange(net, &opt, o));
        DT_TRY(step_wide(net, opt, t, step));
    }
    DT_TRY(dt_test_net_values(net, opt, &values, &n));
    DT_EXPECT(n <= 4 * MOST_VALUES, "%lld values", (long long)n);
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) {
        o->n = n;
        memcpy(o->values, values, (size_t)n * sizeof *values);
    }
    return DT_OK;
}

DT_TEST(offload, training_is_bit_by_bit_what_it_is_without)
{
    static const struct {
        const char *mesh;
        dt_dtype dtype;
        dt_optimizer_rule rule;
        int zero;
        bool stochastic;
    } cases[] = {
        { "dp=1", DT_F32, DT_ADAMW, 0, false }, { "dp=1", DT_BF16, DT_ADAMW, 0, false },
        { "dp=1", DT_BF16, DT_ADAMW, 0, true }, { "dp=2", DT_BF16, DT_ADAMW, 1, false },
        { "tp=2", DT_F32, DT_SGD, 0, false },   { "dp=2,tp=2", DT_BF16, DT_SGD, 2, false }
    };
    static outcome without, with, *to;
    char dir[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES];

    (void)dt_test_shared_dir(dir);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        without = (outcome){ .dtype = cases[i].dtype, .options = DT_OPTIMIZER_OPTIONS_INIT };
        without.options.rule = cases[i].rule;
        without.options.momentum = 0.9;
        without.options.zero = cases[i].zero;
        without.options.stochastic = cases[i].stochastic;
        without.options.masters = !cases[i].stochastic;
        with = without;
        with.options.offload = dir;
        with.options.window_bytes = DTI_OFFLOAD_LEAST_BYTES;
        to = &without;
        dt_test_on_ranks(cases[i].mesh, train_wide, &to);
        to = &with;
        for (int through = 0; through <= 1; through++) {
            with.folder = through ? dt_test_shared_dir(folder) : NULL;
            dt_test_on_ranks(cases[i].mesh, train_wide, &to);
            DT_ASSERT_EQ_INT(with.n, without.n);
            DT_ASSERT(memcmp(with.values, without.values, (size_t)with.n * sizeof(float)) == 0);
        }
        with.options.offload = "host";
        with.folder = NULL;
        dt_test_on_ranks(cases[i].mesh, train_wide, &to);
        DT_ASSERT(memcmp(with.values, without.values, (size_t)with.n * sizeof(float)) == 0);
    }
}

DT_TEST(offload, places_that_there_are_not_are_refused)
{
    static outcome o = { .dtype = DT_F32, .options = DT_OPTIMIZER_OPTIONS_INIT }, *to = &o;

    o.options.offload = "/nowhere/at/all";
    dt_test_on_ranks_fail("dp=1", train_wide, &to, DT_ERR_IO,
                          "/nowhere/at/all: no file can be made: No such");
    o.options.offload = "";
    dt_test_on_ranks_fail("dp=1", train_wide, &to, DT_ERR_ARG, "offload is an empty text");
    o.options.offload = "host";
    o.options.window_bytes = 1000;
    dt_test_on_ranks_fail("dp=1", train_wide, &to, DT_ERR_ARG, "window_bytes is 1000");
}

/* A dry run knows that the device does not hold the state, and makes no file. */
DT_TEST(offload, dry_runs_hold_no_state_that_lies_in_a_file)
{
    dt_optimizer_options options = DT_OPTIMIZER_OPTIONS_INIT;
    dt_run_options how = DT_TEST_RUN_OPTIONS;
    dt_optimizer *opt;
    dti_device *device;
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(layers) *net = NULL;
    int64_t state = 0;

    how.n_ranks = 2;
    DT_ASSERT_OK(dt_runtime_create_dry(&how, 0, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, "dp=2", &mesh));
    DT_ASSERT_OK(dti_device_of(rt, &device));
    DT_ASSERT_OK(dt_test_net_create(mesh, DT_BF16, &net));
    for (int elsewhere = 0; elsewhere <= 1; elsewhere++) {
        options.offload = elsewhere ? "/nowhere/at/all" : NULL;
        DT_ASSERT_OK(dt_optimizer_create(net, &options, &opt));
        if (!elsewhere) state = dt_optimizer_state_bytes(opt);
        DT_ASSERT(state > 0);
        DT_ASSERT_EQ_INT(dt_optimizer_state_bytes(opt), state);
        DT_ASSERT_EQ_INT(dti_memory_of_kind(device->memory, DTI_KIND_STATES),
                         elsewhere ? 0 : state);
        dt_optimizer_release(&opt);
    }
}

/* --- parameters --- */

DT_TEST(offload, parameters_in_a_file_cost_no_memory_and_no_bit)
{
    static const struct {
        const char *mesh, *dim;
        dt_dtype dtype;
        dt_optimizer_rule rule;
        int zero, passes;
        bool masters, state; /* the state is there, too */
    } cases[] = { { "dp=1", "dp", DT_F32, DT_ADAMW, 0, 1, true, false },
                  { "dp=2", "dp", DT_BF16, DT_ADAMW, 0, 2, true, true },
                  { "dp=2", "dp", DT_BF16, DT_ADAMW, 2, 1, false, false },
                  { "dp=3", "dp", DT_F32, DT_SGD, 2, 1, true, true },
                  { "dp=4", "dp", DT_BF16, DT_SGD, 1, 2, true, false },
                  { "dp=2,tp=2", "dp", DT_F32, DT_ADAMW, 2, 2, true, false },
                  { "dp_replicate=2,dp_shard=2", "dp_shard", DT_BF16, DT_ADAMW, 1, 1, true,
                    true } };
    const dt_run_options options = DT_TEST_RUN_OPTIONS;
    static dt_test_trained without, with;
    char dir[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES];

    (void)dt_test_shared_dir(dir);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const dt_plan sharded = { .dim = cases[i].dim,
                                  .others =
                                      i % 3 == 0 ? "fully_shard(out_tiles=2)" : "fully_shard" };
        dt_test_training how = { .dtype = cases[i].dtype,
                                 .options = DT_OPTIMIZER_OPTIONS_INIT,
                                 .steps = 4,
                                 .passes = cases[i].passes,
                                 .lr = 0.01,
                                 .plan = &sharded };
        how.options.rule = cases[i].rule;
        how.options.momentum = 0.9;
        how.options.zero = cases[i].zero;
        how.options.masters = cases[i].masters;
        how.options.stochastic = !cases[i].masters;
        dt_test_train(&options, cases[i].mesh, &how, &without);
        for (int through = 0; through <= 1; through++) {
            how.offload = i % 2 == 0 ? dir : "."; /* of another file system, most likely */
            how.options.offload = cases[i].state ? dir : NULL;
            how.folder = through ? dt_test_shared_dir(folder) : NULL;
            dt_test_train(&options, cases[i].mesh, &how, &with);
            DT_ASSERT(dt_test_trained_same(&with, &without));
            DT_ASSERT(with.n == 0 || with.param_bytes > 0); /* rank 0 is in another process */
            DT_ASSERT(with.param_bytes == without.param_bytes);
            DT_ASSERT_EQ_INT((int64_t)(without.used - with.used),
                             with.param_bytes + (cases[i].state ? with.state_bytes : 0));
        }
        how.offload = "host"; /* where they are */
        how.options.offload = how.folder = NULL;
        dt_test_train(&options, cases[i].mesh, &how, &with);
        DT_ASSERT(dt_test_trained_same(&with, &without) && with.used == without.used);
    }
}

DT_TEST(offload, parameters_that_nobody_fetches_stay)
{
    const dt_run_options options = DT_TEST_RUN_OPTIONS;
    const dt_plan sharded = { .dim = "dp", .others = "fully_shard" };
    dt_test_training how = { .options = DT_OPTIMIZER_OPTIONS_INIT, .offload = "host" };

    dt_test_train_fails(&options, "dp=2", &how, DT_ERR_ARG, "no layer has the style");
    how.plan = &sharded;
    how.offload = "";
    dt_test_train_fails(&options, "dp=2", &how, DT_ERR_ARG, "offload is an empty text");
    how.offload = "/nowhere/at/all";
    dt_test_train_fails(&options, "dp=2", &how, DT_ERR_IO, "no file can be made: No such");
}

/* Writes over a byte of the file without a name in a folder that this process has open. */
static void spoil_files(const char *dir)
{
    char path[64], at[DT_TEST_PATH_BYTES + 64];
    int n = 0;

    for (int fd = 3; fd < 100; fd++) {
        const char byte = 0x5a;
        ssize_t length;
        struct stat file;
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        length = readlink(path, at, sizeof at - 1);
        if (length < 0) continue;
        at[length] = '\0';
        if (strncmp(at, dir, strlen(dir)) != 0 || strstr(at, "(deleted)") == NULL) continue;
        DT_ASSERT(fstat(fd, &file) == 0);
        DT_ASSERT(pwrite(fd, &byte, 1, 1) == 1);
        n++;
    }
    DT_ASSERT(n == 1);
}

/* The disk gives back another byte of the first parameter: before a pass, or before the step. */
static dt_status train_spoiled(dt_mesh *mesh, const void *arg)
{
    const dt_plan sharded = { .dim = "dp", .others = "fully_shard" };
    const dt_test_training how = { .passes = 1, .lr = 0.01 };
    dt_optimizer_options options = DT_OPTIMIZER_OPTIONS_INIT;
    DT_HELD(layers) *net = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_step_report report;

    DT_TRY(dt_test_net_away(mesh, &sharded, DT_F32, arg, &net));
    DT_TRY(dt_optimizer_create(net, &options, &opt));
    DT_TRY(dt_test_net_step(opt, t, net, &how, 0, &report));
    spoil_files(arg);
    DT_TRY(dt_test_net_step(opt, t, net, &how, 1, &report));
    return DT_OK;
}

DT_TEST(offload, a_disk_that_changes_parameters_is_found_out)
{
    char dir[DT_TEST_PATH_BYTES];

    dt_test_on_ranks_fail("dp=1", train_spoiled, dt_test_temp_dir(dir), DT_ERR_IO,
                          "of parameters are not those that were written: the disk fails");
}

/* "host" is another memory where tensors would lie on GPUs. */
DT_TEST(offload, dry_runs_of_gpus_hold_nothing_that_the_host_has)
{
    static const char *const devices[] = { "cpu", "cuda" };
    const dt_plan sharded = { .dim = "dp", .others = "fully_shard" };
    dt_optimizer_options options = DT_OPTIMIZER_OPTIONS_INIT;

    options.offload = "host";
    for (int gpu = 0; gpu <= 1; gpu++) {
        dt_run_options how = DT_TEST_RUN_OPTIONS;
        dti_device *device;
        DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
        DT_HELD(mesh) *mesh = NULL;
        DT_HELD(layers) *net = NULL;
        DT_HELD(optimizer) *opt = NULL;
        how.n_ranks = 2;
        how.device = devices[gpu];
        DT_ASSERT_OK(dt_runtime_create_dry(&how, 0, NULL, &rt));
        DT_ASSERT_OK(dt_mesh_create(rt, "dp=2", &mesh));
        DT_ASSERT_OK(dti_device_of(rt, &device));
        DT_ASSERT_OK(dt_test_net_away(mesh, &sharded, DT_BF16, "host", &net));
        DT_ASSERT_OK(dt_optimizer_create(net, &options, &opt));
        DT_ASSERT(dt_layers_local_bytes(net) > 0 && dt_optimizer_state_bytes(opt) > 0);
        DT_ASSERT_EQ_INT((int64_t)dti_memory_of_kind(device->memory, DTI_KIND_WEIGHTS),
                         gpu ? 0 : dt_layers_local_bytes(net));
        DT_ASSERT_EQ_INT((int64_t)dti_memory_of_kind(device->memory, DTI_KIND_STATES),
                         gpu ? 0 : dt_optimizer_state_bytes(opt));
    }
}
