/* SPDX-License-Identifier: Apache-2.0
 *
 * A run that is killed at random moments and resumed, two hundred times, on meshes in turn that add
 * in the same order: at its end it is the run that nobody has stopped. */
#include <dtensor/training_checkpoints.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"
#include "tests/support/small_net.h"

enum { KILLS = 200, MOST_VALUES = 2000, STEPS = 1000000 };

/* In memory that parent and child share. */
typedef struct shared {
    _Atomic int64_t step; /* that a child has come to */
    int64_t n, from;
    float values[MOST_VALUES];
} shared;

typedef struct cycle {
    const char *dir;
    int64_t until;
    int zero;
    shared *told;
} cycle;

static dt_status train_on(dt_run_folder *run, dt_layers *net, dt_optimizer *opt, dt_tape *t,
                          const cycle *c)
{
    const dt_test_training how = { .dtype = DT_BF16, .passes = 1, .lr = 0.001 };
    dt_run_progress progress = { .step = 0 };

    if (run != NULL && dt_run_folder_latest(run) >= 0)
        DT_TRY(dt_run_folder_load(run, NULL, net, opt, &progress, NULL));
    c->told->from = progress.step;
    while (progress.step < c->until) {
        dt_step_report report;
        DT_TRY(dt_test_net_step(opt, t, net, &how, (int)progress.step++, &report));
        c->told->step = progress.step;
        if (run != NULL && progress.step % 3 == 0)
            DT_TRY(dt_run_folder_save(run, net, opt, &progress, NULL));
        else if (run != NULL)
            DT_TRY(dt_run_folder_check(run));
    }
    return DT_OK;
}

static dt_status train(dt_mesh *mesh, const void *arg)
{
    dt_run_folder_options folder = DT_RUN_FOLDER_OPTIONS_INIT;
    dt_optimizer_options options = DT_OPTIMIZER_OPTIONS_INIT;
    DT_HELD(layers) *net = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(run_folder) *run = NULL;
    DT_FREED float *values = NULL;
    const cycle *c = arg;
    int64_t n;

    folder.mode = DT_RUN_FOLDER_CONTINUE;
    options.zero = c->zero;
    DT_TRY(dt_test_net_create(mesh, DT_BF16, &net));
    DT_TRY(dt_optimizer_create(net, &options, &opt));
    if (c->dir != NULL) DT_TRY(dt_run_folder_open(mesh, c->dir, &folder, &run));
    DT_TRY(train_on(run, net, opt, t, c));
    DT_TRY(dt_test_net_values(net, opt, &values, &n));
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) {
        c->told->n = n;
        memcpy(c->told->values, values, (size_t)n * sizeof *values);
    }
    return DT_OK;
}

static void pause_for(int64_t us)
{
    (void)nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL);
}

/* A child that trains on, killed some time after its first step or save. */
static void kill_one(const cycle *c, uint32_t random)
{
    const dt_run_options options = DT_TEST_RUN_OPTIONS;
    const int64_t before = c->told->step = 0;
    int status;
    pid_t pid = fork();

    DT_ASSERT(pid >= 0);
    if (pid == 0) _exit(dt_test_run(&options, "dp=2", train, c) == DT_OK ? 0 : 1);
    while (c->told->step == before && waitpid(pid, &status, WNOHANG) == 0) pause_for(200);
    pause_for(random % 30000);
    (void)kill(pid, SIGKILL);
    DT_ASSERT(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

DT_TEST(run_cycles, a_run_that_is_killed_two_hundred_times_is_the_run)
{
    shared *told =
        mmap(NULL, 2 * sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char dir[DT_TEST_PATH_BYTES];
    cycle c = { .dir = dt_test_temp_dir(dir), .until = STEPS, .told = told };
    cycle whole = { .told = told + 1 };
    uint32_t random = 12345;
    int64_t came_to = 0;

    DT_ASSERT(told != MAP_FAILED);
    for (int i = 0; i < KILLS; i++) {
        random = random * 1664525u + 1013904223u;
        c.zero = i % 3; /* the state lies otherwise in turn */
        kill_one(&c, random >> 8);
        DT_ASSERT(told->from >= came_to);
        came_to = told->from;
    }
    DT_ASSERT(came_to > KILLS / 4); /* cycles come forward */
    c.until = whole.until = came_to + 200;
    dt_test_on_ranks("dp=2", train, &c);
    dt_test_on_ranks("dp=2", train, &whole);
    DT_ASSERT(told[0].n == told[1].n && told[0].n > 0);
    DT_ASSERT(memcmp(told[0].values, told[1].values, (size_t)told[0].n * sizeof(float)) == 0);
    dt_test_remove_dir(dir);
    (void)munmap(told, 2 * sizeof *told);
}
