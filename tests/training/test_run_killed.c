/* SPDX-License-Identifier: Apache-2.0
 *
 * A run that is killed at any call that changes the disk, or finds it full there. These calls are
 * counted here: a program's own functions come before those of the C library. */
#define _GNU_SOURCE

#include <dtensor/collectives.h>
#include <dtensor/token_files.h>
#include <dtensor/training_checkpoints.h>
#include <dtensor/training_data.h>
#include <dtensor/weights.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"
#include "tests/support/small_net.h"

/* --- calls that change the disk --------------------------------------------------------------- */

static atomic_long calls; /* so far, counted while `doomed` is not 0 */
static atomic_long doomed;
static atomic_bool kills; /* the process; otherwise the call says that there is no space */

/* Half of what a call would have done has happened already when it is the one. */
static bool strikes(void)
{
    if (atomic_load(&doomed) == 0 || atomic_fetch_add(&calls, 1) + 1 != atomic_load(&doomed))
        return false;
    if (atomic_load(&kills)) (void)raise(SIGKILL);
    errno = ENOSPC;
    return true;
}

static bool may_fail(void)
{
    return !atomic_load(&kills);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    if (atomic_load(&doomed) != 0 && atomic_load(&calls) + 1 == atomic_load(&doomed) && n > 1)
        (void)syscall(SYS_pwrite64, fd, data, n / 2, at);
    return strikes() ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, data, n, at);
}

int fsync(int fd)
{
    return strikes() ? -1 : (int)syscall(SYS_fsync, fd);
}

int mkdir(const char *path, mode_t mode)
{
    return strikes() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int rename(const char *from, const char *to)
{
    return strikes() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return strikes() ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    mode_t mode = 0;

    va_start(args, flags);
    if (flags & O_CREAT) mode = va_arg(args, mode_t);
    va_end(args);
    if ((flags & O_CREAT) && strikes()) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int posix_fallocate(int fd, off_t at, off_t n)
{
    if (strikes()) return errno;
    return syscall(SYS_fallocate, fd, 0, at, n) == 0 ? 0 : errno;
}

int sync_file_range(int fd, off_t at, off_t n, unsigned flags)
{
    return strikes() ? -1 : (int)syscall(SYS_sync_file_range, fd, at, n, flags);
}

/* What takes away does not run out of space. */
int unlink(const char *path)
{
    if (!may_fail()) (void)strikes();
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int remove(const char *path)
{
    if (!may_fail()) (void)strikes();
    if (syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0) return 0;
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

/* --- a run of steps whose values follow from their number ------------------------------------- */

enum { STEPS = 4 };

typedef struct job {
    const char *dir;
    dt_run_folder_mode mode;
    bool direct;
    _Atomic int64_t *durable; /* the last step that a wait has returned for */
    int64_t found;            /* the last one that was there, or -1 */
} job;

static dt_status values_of(dt_layers *net, int64_t step)
{
    return dt_layers_init(net, DT_F32, (uint64_t)step, NULL, 0);
}

static dt_status save_step(dt_run_folder *run, dt_layers *net, int64_t step)
{
    DT_TRY(values_of(net, step));
    DT_TRY(dt_run_folder_save(run, net, NULL, &(dt_run_progress){ .step = step }, NULL));
    DT_TRY(values_of(net, 1000)); /* the next step writes over them */
    DT_TRY(dt_run_folder_wait(run));
    return DT_OK;
}

static dt_status open_run(dt_mesh *mesh, const job *j, dt_layers **net, dt_run_folder **run)
{
    dt_run_folder_options options = DT_RUN_FOLDER_OPTIONS_INIT;
    dt_status st;

    options.mode = j->mode;
    options.direct = j->direct;
    options.keep = 2;
    DT_TRY(dt_test_net_create(mesh, DT_F32, net));
    st = dt_run_folder_open(mesh, j->dir, &options, run);
    if (st != DT_OK) dt_layers_release(net);
    return st;
}

/* Step 2 is saved twice. */
static dt_status save_all(dt_mesh *mesh, const void *arg)
{
    static const int64_t steps[STEPS] = { 1, 2, 2, 3 };
    const job *j = arg;
    DT_HELD(layers) *net = NULL;
    DT_HELD(run_folder) *run = NULL;

    DT_TRY(open_run(mesh, j, &net, &run));
    for (int i = 0; i < STEPS; i++) {
        DT_TRY(save_step(run, net, steps[i]));
        atomic_store(j->durable, steps[i]);
    }
    return DT_OK;
}

static bool equal_piece(const dt_tensor *a, const dt_tensor *b)
{
    const dt_local *l = dt_tensor_local(a);
    size_t bytes = dt_dtype_size(l->dtype);

    for (int i = 0; i < l->n_axes; i++) bytes *= (size_t)l->shape[i];
    return memcmp(l->data, dt_tensor_local(b)->data, bytes) == 0;
}

static dt_status expect_step(dt_layers *net, dt_mesh *mesh, int64_t step)
{
    DT_HELD(layers) *want = NULL;

    DT_TRY(dt_test_net_create(mesh, DT_F32, &want));
    DT_TRY(values_of(want, step));
    for (int i = 0; i < dt_layers_count(net); i++)
        for (int p = 0; p < dt_layer_n_params(dt_layers_at(net, i)); p++)
            if (dt_layer_has_param(dt_layers_at(net, i), p))
                DT_EXPECT(equal_piece(dt_layer_param(dt_layers_at(net, i), p),
                                      dt_layer_param(dt_layers_at(want, i), p)),
                          "parameter %d of layer %d is not that of step %lld", p, i,
                          (long long)step);
    return DT_OK;
}

/* Whole, or, with `found` -1 to begin with, not there yet. Then the run goes on. */
static dt_status look_and_go_on(dt_mesh *mesh, const void *arg)
{
    job *const *to = arg, *j = *to;
    DT_HELD(layers) *net = NULL;
    DT_HELD(run_folder) *run = NULL;
    int64_t latest;

    DT_TRY(open_run(mesh, j, &net, &run));
    latest = dt_run_folder_latest(run);
    if (latest >= 0) {
        DT_TRY(dt_run_folder_load(run, NULL, net, NULL, NULL, NULL));
        DT_TRY(expect_step(net, mesh, latest));
    }
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) j->found = latest;
    DT_TRY(save_step(run, net, 7));
    DT_TRY(dt_run_folder_load(run, NULL, net, NULL, NULL, NULL));
    DT_TRY(expect_step(net, mesh, 7));
    return DT_OK;
}

/* --- killed ----------------------------------------------------------------------------------- */

static void child(const job *j, long at)
{
    const dt_run_options options = DT_TEST_RUN_OPTIONS;

    atomic_store(&kills, true);
    atomic_store(&doomed, at);
    _exit(dt_test_run(&options, "tp=2", save_all, j) == DT_OK ? 0 : 1);
}

/* Kills a run at its call number `at`. False: it had none. */
static bool killed_at(long at, bool direct, _Atomic int64_t *durable)
{
    char dir[DT_TEST_PATH_BYTES + 8], parent[DT_TEST_PATH_BYTES];
    job j = { .dir = dir, .direct = direct, .durable = durable }, *to = &j;
    int status = 0;
    pid_t pid;

    (void)snprintf(dir, sizeof dir, "%s/run", dt_test_temp_dir(parent));
    atomic_store(durable, -1);
    pid = fork();
    if (pid == 0) child(&j, at);
    DT_ASSERT(pid > 0 && waitpid(pid, &status, 0) == pid);
    DT_ASSERT((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
              (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    j.mode = DT_RUN_FOLDER_CONTINUE;
    dt_test_on_ranks("tp=2", look_and_go_on, &to);
    DT_ASSERT(j.found >= atomic_load(durable)); /* what was told to be durable is not lost */
    DT_ASSERT_EQ_INT(dt_test_count_files(dir, ".tmp"), 0);
    return WIFSIGNALED(status);
}

static void kill_everywhere(bool direct)
{
    _Atomic int64_t *durable =
        mmap(NULL, sizeof *durable, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    long at = 1;

    DT_ASSERT(durable != MAP_FAILED);
    while (killed_at(at, direct, durable)) at++;
    DT_ASSERT(at > 60); /* there are calls to be killed at */
    (void)munmap((void *)durable, sizeof *durable);
}

DT_TEST(run_killed, at_any_call_leaves_what_latest_names)
{
    kill_everywhere(false);
}

DT_TEST(run_killed, at_any_call_of_a_direct_save_too)
{
    kill_everywhere(true);
}

/* --- files of tokens -------------------------------------------------------------------------- */

enum { SET_TOKENS = 60, SET_ROWS = 59 };

/* Two sets of as many tokens: other ones, documents that end elsewhere, other prompts. */
static dt_status write_set(const char *path, dt_token_format format, int32_t which)
{
    dt_token_writer_options o = DT_TOKEN_WRITER_OPTIONS_INIT;
    dt_token_writer *w = NULL;
    dt_status st = DT_OK;

    o.format = format;
    o.vocab_size = 1000;
    o.end_token = 500 + which;
    DT_TRY(dt_token_writer_open(path, &o, &w));
    for (int32_t i = 0; i < SET_TOKENS && st == DT_OK; i++) {
        const bool ends = i % 10 == 5 + which;
        const int32_t token = ends ? o.end_token : 100 * which + i;
        st = dt_token_writer_add(w, &token, 1, i % 7 != 2 * which);
        if (st == DT_OK && ends) st = dt_token_writer_end_document(w);
    }
    return dt_token_writer_close(&w, st);
}

/* What a reader sees. */
typedef struct token_set {
    int32_t ids[SET_ROWS], targets[SET_ROWS], starts[SET_ROWS];
} token_set;

static dt_status read_set(const char *path, token_set *seen)
{
    dt_data_options o = DT_DATA_OPTIONS_INIT;
    dt_data *d = NULL;
    dt_batch b;
    dt_status st;

    o.sequence = SET_ROWS;
    o.order = DT_ORDER_STORED;
    o.documents = true;
    DT_TRY(dt_data_open(&(dt_data_source){ path, 0.0 }, 1, &o, &d));
    st = dt_data_rows(d, 0, 1, &b);
    if (st == DT_OK) memcpy(seen->ids, b.ids, sizeof seen->ids);
    if (st == DT_OK) memcpy(seen->targets, b.targets, sizeof seen->targets);
    if (st == DT_OK) memcpy(seen->starts, b.starts, sizeof seen->starts);
    dt_data_release(&d);
    return st;
}

/* What is there after a writer was killed, or its disk full, at one call. False: it had none. */
static bool tokens_struck_at(long at, dt_token_format format, bool killed, const token_set *sets)
{
    char path[DT_TEST_PATH_BYTES + 8], dir[DT_TEST_PATH_BYTES];
    int status = 0;
    token_set seen;
    dt_status st;
    pid_t pid;

    (void)snprintf(path, sizeof path, "%s/a.bin", dt_test_temp_dir(dir));
    DT_ASSERT_OK(write_set(path, format, 0));
    pid = fork();
    if (pid == 0) {
        atomic_store(&kills, killed);
        atomic_store(&calls, 0);
        atomic_store(&doomed, at);
        _exit(write_set(path, format, 1) == DT_OK ? 0 : 1);
    }
    DT_ASSERT(pid > 0 && waitpid(pid, &status, 0) == pid);
    st = read_set(path, &seen);
    if (st != DT_OK) DT_ASSERT(strstr(dt_last_error()->message, "a.bin: cannot be opened") != NULL);
    if (st == DT_OK)
        DT_ASSERT(memcmp(&seen, &sets[0], sizeof seen) == 0 ||
                  memcmp(&seen, &sets[1], sizeof seen) == 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        DT_ASSERT(memcmp(&seen, &sets[1], sizeof seen) == 0);
    if (!killed) DT_ASSERT_EQ_INT(dt_test_count_files(dir, ".tmp"), 0);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

DT_TEST(run_killed, a_writer_of_tokens_leaves_no_mixed_set)
{
    static const dt_token_format formats[] = { DT_TOKENS_LLMC, DT_TOKENS_NANOGPT,
                                               DT_TOKENS_MEGATRON };
    char path[DT_TEST_PATH_BYTES + 8], dir[DT_TEST_PATH_BYTES];
    token_set sets[2];

    (void)snprintf(path, sizeof path, "%s/a.bin", dt_test_temp_dir(dir));
    for (size_t f = 0; f < DT_COUNT(formats); f++) {
        for (int32_t i = 0; i < 2; i++) {
            DT_ASSERT_OK(write_set(path, formats[f], i));
            DT_ASSERT_OK(read_set(path, &sets[i]));
        }
        for (int killed = 0; killed < 2; killed++) {
            long at = 1;
            while (tokens_struck_at(at, formats[f], killed != 0, sets)) at++;
            DT_ASSERT(at > 10);
        }
    }
}

/* --- no space --------------------------------------------------------------------------------- */

/* A disk that is full at one call of the second save, which tells so and takes away what it has
 * made; the third one goes well. */
typedef struct shortage {
    job job;
    long at;
    bool struck;
} shortage;

static dt_status expect_none_left(const shortage *s, dt_run_folder *run, dt_layers *net)
{
    const dt_error *e = dt_last_error();

    DT_EXPECT(strstr(e->message, "No space left on device") != NULL, "message %s", e->message);
    DT_EXPECT(strstr(e->message, "step-00000002") != NULL || strstr(e->message, "latest") != NULL ||
                  strstr(e->message, "its names cannot be kept") != NULL,
              "message %s", e->message);
    DT_EXPECT_EQ_INT(dt_test_count_files(s->job.dir, ".tmp"), 0);
    DT_TRY(dt_run_folder_load(run, NULL, net, NULL, NULL, NULL));
    DT_TRY(expect_step(net, dt_layers_mesh(net), dt_run_folder_latest(run)));
    return DT_OK;
}

static dt_status run_out(dt_mesh *mesh, const void *arg)
{
    shortage *const *to = arg, *s = *to;
    const bool first = dt_runtime_rank(dt_mesh_runtime(mesh)) == 0;
    dt_run_folder *run;
    dt_layers *net;
    dt_status st;

    DT_TRY(open_run(mesh, &s->job, &net, &run));
    DT_TRY_TO(done, st, save_step(run, net, 1));
    if (first) atomic_store(&calls, 0);
    if (first) atomic_store(&doomed, s->at);
    st = save_step(run, net, 2);
    DT_EXPECT_TO(done, st, st == DT_OK || st == DT_ERR_IO, "status %d", (int)st);
    if (st != DT_OK) DT_TRY_TO(done, st, expect_none_left(s, run, net));
    DT_TRY_TO(done, st, dt_barrier(mesh, NULL));
    if (first) s->struck = atomic_load(&calls) >= s->at;
    if (first) atomic_store(&doomed, 0);
    DT_TRY_TO(done, st, save_step(run, net, 3));
    DT_TRY_TO(done, st, dt_run_folder_load(run, NULL, net, NULL, NULL, NULL));
    DT_TRY_TO(done, st, expect_step(net, mesh, 3));
done:
    dt_run_folder_release(&run);
    dt_layers_release(&net);
    return st;
}

static bool full_at(long at, bool direct)
{
    char dir[DT_TEST_PATH_BYTES + 8], parent[DT_TEST_PATH_BYTES];
    shortage s = { .job = { .dir = dir, .direct = direct }, .at = at }, *to = &s;

    (void)snprintf(dir, sizeof dir, "%s/run", dt_test_temp_dir(parent));
    dt_test_on_ranks("tp=2", run_out, &to);
    return s.struck;
}

DT_TEST(run_killed, a_full_disk_is_told_and_nothing_of_the_save_stays)
{
    for (int direct = 0; direct <= 1; direct++) {
        long at = 1;
        while (full_at(at, direct)) at++;
        DT_ASSERT(at > 12);
    }
}

/* Between two saves the error of the first is told by what is asked once per step. */
static dt_status fails_behind(dt_mesh *mesh, const void *arg)
{
    const job *j = arg;
    const bool first = dt_runtime_rank(dt_mesh_runtime(mesh)) == 0;
    dt_run_folder *run;
    dt_layers *net;
    dt_status st;

    DT_TRY(open_run(mesh, j, &net, &run));
    if (first) atomic_store(&calls, 0);
    if (first) atomic_store(&doomed, 5); /* behind the folder and both files */
    DT_TRY_TO(done, st, dt_run_folder_save(run, net, NULL, &(dt_run_progress){ .step = 5 }, NULL));
    do st = dt_run_folder_check(run);
    while (st == DT_OK && atomic_load(&calls) < 100);
    DT_EXPECT_TO(done, st, st == DT_ERR_IO, "status %d", (int)st);
    DT_EXPECT_TO(done, st, strstr(dt_last_error()->message, "step 5 was not saved: ") != NULL,
                 "message %s", dt_last_error()->message);
    DT_TRY_TO(done, st, dt_run_folder_check(run)); /* once */
    DT_EXPECT_TO(done, st, dt_run_folder_latest(run) == -1, "a step");
done:
    dt_run_folder_release(&run);
    dt_layers_release(&net);
    return st;
}

DT_TEST(run_killed, a_writer_that_fails_fails_the_next_step)
{
    char dir[DT_TEST_PATH_BYTES];
    job j = { .dir = dt_test_temp_dir(dir) };

    dt_test_on_ranks("tp=2", fails_behind, &j);
}

/* --- state, or parameters, in a file --- */

enum { TRAINED = 3 };

typedef struct spill {
    const char *dir, *run;
    bool params; /* not the state */
    long at;     /* which write of the second step fails; 0: none */
    bool struck;
    int64_t n;
    float values[2000];
} spill;

/* Goes on from the folder, or from the beginning, to step TRAINED. A step that fails leaves nothing
 * that could be taken for a state. */
static dt_status train_spilling(dt_run_folder *run, dt_layers *net, dt_optimizer *opt, dt_tape *t,
                                spill *s)
{
    const dt_test_training how = { .dtype = DT_F32, .passes = 1, .lr = 0.01 };
    dt_run_progress progress = { .step = 0 };
    dt_optimizer_state state;
    dt_step_report report;
    dt_status st;

    if (dt_run_folder_latest(run) >= 0)
        DT_TRY(dt_run_folder_load(run, NULL, net, opt, &progress, NULL));
    while (progress.step < TRAINED) {
        if (progress.step == 1) atomic_store(&calls, 0);
        if (progress.step == 1) atomic_store(&doomed, s->at);
        st = dt_test_net_step(opt, t, net, &how, (int)progress.step, &report);
        s->struck = s->struck || (progress.step == 1 && s->at > 0 && atomic_load(&calls) >= s->at);
        atomic_store(&doomed, 0);
        if (st != DT_OK) {
            DT_EXPECT(s->params || (dt_optimizer_state_at(opt, 0, &state) && state.value == NULL),
                      "a state");
            return dt_fail(st, "%s", dt_last_error()->message);
        }
        progress.step++;
        DT_TRY(dt_run_folder_save(run, net, opt, &progress, NULL));
        DT_TRY(dt_run_folder_wait(run));
    }
    return DT_OK;
}

static dt_status spill_state(dt_mesh *mesh, const void *arg)
{
    dt_run_folder_options folder = DT_RUN_FOLDER_OPTIONS_INIT;
    dt_optimizer_options options = DT_OPTIMIZER_OPTIONS_INIT;
    const dt_plan sharded = { .dim = "dp", .others = "fully_shard" };
    spill *const *to = arg, *s = *to;
    DT_HELD(layers) *net = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(run_folder) *run = NULL;
    DT_FREED float *values = NULL;

    folder.mode = DT_RUN_FOLDER_CONTINUE;
    options.offload = s->params ? NULL : s->dir;
    DT_TRY(dt_test_net_away(mesh, &sharded, DT_F32, s->params ? s->dir : NULL, &net));
    DT_TRY(dt_optimizer_create(net, &options, &opt));
    DT_TRY(dt_run_folder_open(mesh, s->run, &folder, &run));
    DT_TRY(train_spilling(run, net, opt, t, s));
    DT_TRY(dt_test_net_values(net, opt, &values, &s->n));
    memcpy(s->values, values, (size_t)s->n * sizeof *values);
    return DT_OK;
}

static dt_status run_spill(spill *s)
{
    const dt_run_options options = DT_TEST_RUN_OPTIONS;

    return dt_test_run(&options, "dp=1", spill_state, &s);
}

static void fill_the_disk(bool params)
{
    char dir[DT_TEST_PATH_BYTES], parent[DT_TEST_PATH_BYTES], run[DT_TEST_PATH_BYTES + 32];
    static spill whole, s;

    s.params = whole.params = params;
    s.dir = whole.dir = dt_test_temp_dir(dir);
    s.run = whole.run = run;
    (void)snprintf(run, sizeof run, "%s/whole", dt_test_temp_dir(parent));
    DT_ASSERT_OK(run_spill(&whole));
    for (long at = 1; at == 1 || s.struck; at++) {
        (void)snprintf(run, sizeof run, "%s/%ld", parent, at);
        s.at = at;
        s.struck = false;
        const dt_status st = run_spill(&s);
        if (s.struck) {
            DT_ASSERT(st == DT_ERR_IO);
            DT_ASSERT(strstr(dt_last_error()->message, "No space left on device") != NULL);
            DT_ASSERT(strstr(dt_last_error()->message, "load a checkpoint") != NULL);
            s.at = 0;
            DT_ASSERT_OK(run_spill(&s)); /* from step 1 on */
        }
        DT_ASSERT(s.n == whole.n &&
                  memcmp(s.values, whole.values, (size_t)s.n * sizeof(float)) == 0);
        DT_ASSERT(s.struck || at > 4);
    }
}

DT_TEST(run_killed, a_disk_that_is_full_under_the_state_loses_no_run)
{
    fill_the_disk(false);
}

DT_TEST(run_killed, a_disk_that_is_full_under_parameters_loses_no_run)
{
    fill_the_disk(true);
}

/* Space is taken when they are made. */
DT_TEST(run_killed, a_disk_without_room_for_parameters_is_named)
{
    char dir[DT_TEST_PATH_BYTES];
    static spill s;

    s = (spill){ .dir = dt_test_temp_dir(dir), .run = dir, .params = true };
    atomic_store(&calls, 0);
    atomic_store(&doomed, 1);
    DT_ASSERT_STATUS(run_spill(&s), DT_ERR_IO, " of parameters: No space left on device");
    DT_ASSERT(strstr(dt_last_error()->message, dir) != NULL);
}
