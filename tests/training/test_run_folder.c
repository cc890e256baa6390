/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints: what was saved comes back bit by bit, on any mesh; a run that resumes is the run. */
#include <dtensor/training_checkpoints.h>
#include <dtensor/weights.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"
#include "tests/support/small_net.h"
#include "training/saving/run_disk.h"

enum { STEPS = 8, MAX_VALUES = 2000 };

/* A training from what the folder has, or from the beginning, to step `until`, saved there. */
typedef struct session {
    const char *dir;
    dt_run_folder_options folder;
    bool loads, saves, direct;
    bool fresh_optimizer;
    bool cut;          /* stage 3: parameters are cut over "dp" */
    int64_t load_step; /* 0: the latest */
    dt_test_training how;
    int until;
    int64_t n; /* what rank 0 has told */
    float values[MAX_VALUES];
} session;

static dt_status load(dt_run_folder *run, const session *s, dt_layers *net, dt_optimizer *opt,
                      int64_t *step)
{
    dt_run_load_options options = DT_RUN_LOAD_OPTIONS_INIT;
    dt_run_progress progress;
    const char *json;

    options.fresh_optimizer = s->fresh_optimizer;
    if (s->load_step > 0) options.step = s->load_step;
    DT_TRY(dt_run_folder_load(run, &options, net, opt, &progress, &json));
    DT_EXPECT_EQ_INT(progress.samples, progress.step * DT_NET_ROWS);
    DT_EXPECT_EQ_INT(progress.seed, -1);
    DT_EXPECT_EQ_STR(json, "{\"note\": [1, 2.5, \"\xc3\xa4\"]}");
    *step = progress.step;
    return DT_OK;
}

static dt_status go_on(dt_run_folder *run, const session *s, dt_layers *net, dt_optimizer *opt)
{
    dt_run_progress progress = { .seed = UINT64_MAX };
    DT_HELD(tape) *t = NULL;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_layers_mesh(net)), &t));
    if (s->loads) DT_TRY(load(run, s, net, opt, &progress.step));
    for (int step = (int)progress.step; step < s->until; step++) {
        dt_step_report report;
        if (run != NULL) DT_TRY(dt_run_folder_check(run));
        DT_TRY(dt_test_net_step(opt, t, net, &s->how, step, &report));
    }
    progress.step = s->until;
    progress.samples = s->until * DT_NET_ROWS;
    if (s->saves)
        DT_TRY(
            dt_run_folder_save(run, net, opt, &progress, "{ \"note\": [1, 2.5, \"\xc3\xa4\"] }"));
    return DT_OK;
}

static dt_status run_session(dt_mesh *mesh, const void *arg)
{
    const dt_plan cut = { .dim = "dp", .others = "fully_shard" };
    session *const *to = arg, *s = *to;
    DT_HELD(layers) *net = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_FREED float *values = NULL;
    DT_HELD(run_folder) *run = NULL;
    int64_t n = 0;

    DT_TRY(dt_test_net_planned(mesh, s->cut ? &cut : NULL, s->how.dtype, &net));
    DT_TRY(dt_optimizer_create(net, &s->how.options, &opt));
    if (s->dir != NULL) DT_TRY(dt_run_folder_open(mesh, s->dir, &s->folder, &run));
    DT_TRY(go_on(run, s, net, opt));
    DT_TRY(dt_test_net_values(net, opt, &values, &n));
    DT_EXPECT(n <= MAX_VALUES, "%lld values", (long long)n);
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) {
        s->n = n;
        memcpy(s->values, values, (size_t)n * sizeof *values);
    }
    return DT_OK;
}

static void run(const char *mesh, session *s)
{
    dt_test_on_ranks(mesh, run_session, &s);
}

static session from_nothing(const char *dir, int zero, int until)
{
    session s = {
        .dir = dir,
        .folder = DT_RUN_FOLDER_OPTIONS_INIT,
        .saves = dir != NULL,
        .how = { .dtype = DT_F32, .options = DT_OPTIMIZER_OPTIONS_INIT, .passes = 1, .lr = 0.01 },
        .until = until
    };

    s.how.options.zero = zero % 3;
    s.cut = zero == 3;
    return s;
}

static session resumed(const session *from, int zero, int until)
{
    session s = *from;

    s.folder.mode = DT_RUN_FOLDER_RESUME;
    s.loads = true;
    s.how.options.zero = zero % 3;
    s.cut = zero == 3;
    s.until = until;
    return s;
}

/* Values are told where rank 0 is; elsewhere, and of a mesh that has less ranks than there are
 * processes, there is nothing to compare. */
static bool told(const session *s)
{
    return s->n > 0;
}

static bool same(const session *a, const session *b)
{
    return !told(a) || !told(b) ||
           (a->n == b->n && memcmp(a->values, b->values, (size_t)a->n * sizeof(float)) == 0);
}

/* --- the run goes on -------------------------------------------------------------------------- */

DT_TEST(run_folder, a_run_that_resumes_is_the_run)
{
    static const char *const meshes[] = { "dp=2", "dp=2,tp=2", "tp=3" };
    static session reference, repeat, half, whole, broken;
    char dir[DT_TEST_PATH_BYTES];

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (int zero = 0; zero <= (m < 2 ? 3 : 2); zero++) {
            reference = from_nothing(NULL, zero, STEPS);
            run(meshes[m], &reference);
            repeat = from_nothing(NULL, zero, STEPS);
            run(meshes[m], &repeat);
            DT_ASSERT(same(&reference, &repeat));
            half = from_nothing(dt_test_shared_dir(dir), zero, STEPS / 2);
            run(meshes[m], &half);
            whole = resumed(&half, zero, STEPS);
            run(meshes[m], &whole);
            DT_ASSERT(same(&reference, &whole));
            broken = resumed(&half, zero, STEPS);
            broken.load_step = STEPS / 2;
            broken.fresh_optimizer = true;
            broken.saves = false;
            run(meshes[m], &broken);
            DT_ASSERT(!told(&broken) || !same(&reference, &broken));
        }
}

/* From mesh to mesh and back: only the way they lie changes. */
DT_TEST(run_folder, any_mesh_reads_what_any_other_has_saved)
{
    static const struct {
        const char *mesh;
        int zero;
    } way[] = { { "dp=4", 3 },      { "tp=2,dp=2", 1 }, { "dp=4", 3 }, { "dp=4", 2 },
                { "dp=2,tp=2", 3 }, { "tp=3", 0 },      { "dp=1", 0 }, { "dp=3", 1 },
                { "dp=2", 3 },      { "dp=4", 0 },      { "dp=4", 3 } };
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16 };
    static session first, next;
    char dir[DT_TEST_PATH_BYTES];

    for (size_t d = 0; d < DT_COUNT(dtypes); d++) {
        first = from_nothing(dt_test_shared_dir(dir), way[0].zero, 3);
        first.how.dtype = dtypes[d];
        run(way[0].mesh, &first);
        for (size_t i = 1; i < DT_COUNT(way); i++) {
            next = resumed(&first, way[i].zero, 3);
            next.folder.direct = i % 2 == 0; /* over the step that is there */
            run(way[i].mesh, &next);
            DT_ASSERT(same(&first, &next));
        }
    }
}

/* --- what is in the folder -------------------------------------------------------------------- */

DT_TEST(run_folder, the_newest_stay)
{
    static session s;
    char dir[DT_TEST_PATH_BYTES];

    s = from_nothing(dt_test_temp_dir(dir), 0, 1);
    s.folder.keep = 3;
    run("dp=2", &s);
    s.folder.mode = DT_RUN_FOLDER_CONTINUE;
    for (s.until = 2; s.until <= 5; s.until++) run("dp=2", &s);
    DT_ASSERT_EQ_INT(dt_test_count_files(dir, "step-"), 3);
    s = resumed(&s, 0, 3);
    s.load_step = 3; /* those after it are left alone */
    run("dp=2", &s);
    DT_ASSERT_EQ_INT(dt_test_count_files(dir, "step-"), 3);
    s.load_step = 0;
    s.saves = false;
    run("dp=2", &s); /* goes on from step 3 */
    DT_ASSERT_EQ_INT(dt_test_count_files(dir, ".tmp"), 0);
}

/* What somebody has put beside a step's files, and what is called like a step and is none. */
DT_TEST(run_folder, steps_go_and_leave_what_is_not_theirs)
{
    static session s;
    char dir[DT_TEST_PATH_BYTES], steps[200], step[DT_TEST_PATH_BYTES + 32];

    s = from_nothing(dt_test_temp_dir(dir), 0, 1);
    s.folder.keep = 1;
    dt_test_write_file(dir, "step-00000099", "mine", 4);
    run("dp=2", &s);
    (void)snprintf(step, sizeof step, "%s/step-00000001", dir);
    dt_test_write_file(step, "scores.txt", "mine", 4);
    dt_test_write_file(step, "model-rank-00000.safetensors.tmp", "", 0);
    s.folder.mode = DT_RUN_FOLDER_CONTINUE;
    for (s.until = 2; s.until <= 3; s.until++) run("dp=2", &s);
    DT_ASSERT_EQ_STR(dti_run_disk_steps(dir, steps, sizeof steps), "step 3");
    (void)snprintf(step, sizeof step, "%s/step-00000001.others", dir);
    DT_ASSERT_EQ_INT(dt_test_count_files(step, ""), 1);
    DT_ASSERT_EQ_INT(dt_test_count_files(step, "scores.txt"), 1);
    DT_ASSERT_EQ_INT(dt_test_count_files(dir, ".tmp"), 0);
    DT_ASSERT_EQ_INT(dt_test_count_files(dir, "step-00000099"), 1);
    (void)snprintf(step, sizeof step, "%s/step-00000005.tmp", dir); /* of a save that was killed */
    DT_ASSERT(mkdir(step, 0700) == 0);
    dt_test_write_file(step, "training.json", "", 0);
    dt_test_write_file(step, "notes", "mine", 4);
    run("dp=2", &s);
    DT_ASSERT_EQ_INT(dt_test_count_files(dir, ".tmp"), 0);
    (void)snprintf(step, sizeof step, "%s/step-00000005.others", dir);
    DT_ASSERT_EQ_INT(dt_test_count_files(step, ""), 1);
}

/* Somebody moves the folder of a run, and another run gets its name. */
DT_TEST(run_folder, that_was_moved_leaves_the_one_in_its_place_alone)
{
    char dir[DT_TEST_PATH_BYTES], run[DT_TEST_PATH_BYTES + 8], moved[DT_TEST_PATH_BYTES + 8],
        step[DT_TEST_PATH_BYTES + 32];
    dti_run_disk disk;

    (void)snprintf(run, sizeof run, "%s/run", dt_test_temp_dir(dir));
    (void)snprintf(moved, sizeof moved, "%s/moved", dir);
    (void)snprintf(step, sizeof step, "%s/" DTI_STEP_FORMAT ".tmp", run, 1LL);
    DT_ASSERT_OK(dti_run_disk_open(&disk, run, true));
    DT_ASSERT_OK(dti_run_disk_begin(&disk, 1));
    DT_ASSERT(rename(run, moved) == 0);
    DT_ASSERT_STATUS(dti_run_disk_name(&disk, 1, 1), DT_ERR_IO, "moved, removed or replaced");
    DT_ASSERT(mkdir(run, 0700) == 0 && mkdir(step, 0700) == 0);
    DT_ASSERT_STATUS(dti_run_disk_begin(&disk, 1), DT_ERR_IO, "moved, removed or replaced");
    DT_ASSERT_STATUS(dti_run_disk_name(&disk, 1, 1), DT_ERR_IO, "moved, removed or replaced");
    dti_run_disk_abandon(&disk, 1);
    DT_ASSERT(rmdir(step) == 0 && rmdir(run) == 0); /* both as they were */
    DT_ASSERT(rename(moved, run) == 0);
    DT_ASSERT_OK(dti_run_disk_begin(&disk, 2));
    dti_run_disk_close(&disk);
}

DT_TEST(run_folder, another_run_is_not_written_over)
{
    static session s, *at = &s;
    char dir[DT_TEST_PATH_BYTES];

    s = from_nothing(dt_test_temp_dir(dir), 0, 1);
    run("dp=2", &s);
    dt_test_on_ranks_fail("dp=2", run_session, &at, DT_ERR_ARG, "holds a run already (step 1)");
    s = resumed(&s, 0, 1);
    s.load_step = 7;
    dt_test_on_ranks_fail("dp=2", run_session, &at, DT_ERR_ARG,
                          "step-00000007: is not there (there: step 1)");
    dt_test_remove_dir(dir);
    (void)mkdir(dir, 0700);
    s.load_step = 0;
    dt_test_on_ranks_fail("dp=2", run_session, &at, DT_ERR_ARG, "holds no checkpoint");
    dt_test_write_file(dir, "latest", "step-00000003\n", 14);
    dt_test_on_ranks_fail("dp=2", run_session, &at, DT_ERR_FORMAT,
                          "names step-00000003, which is not there");
    dt_test_write_file(dir, "latest", "nonsense", 8);
    dt_test_on_ranks_fail("dp=2", run_session, &at, DT_ERR_FORMAT, "holds \"nonsense\"");
}

/* The lock is of the process' open file, so a second opening in the same one is refused too. */
static dt_status open_twice(dt_mesh *mesh, const void *arg)
{
    dt_run_folder_options options = DT_RUN_FOLDER_OPTIONS_INIT;
    dt_run_folder *one, *two;
    dt_status st = DT_OK;

    DT_TRY(dt_run_folder_open(mesh, arg, &options, &one));
    st = dt_run_folder_open(mesh, arg, &options, &two);
    dt_run_folder_release(&one);
    return st;
}

DT_TEST(run_folder, two_runs_do_not_write_into_one)
{
    char dir[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(dir);
    dt_test_on_ranks_fail("dp=2", open_twice, dir, DT_ERR_IO, "another run is writing into");
}

/* --- what may be asked ---------- */

static dt_status refuse_all(dt_mesh *mesh, const void *arg)
{
    dt_run_folder_options options = DT_RUN_FOLDER_OPTIONS_INIT;
    dt_run_progress progress = { .step = 4, .samples = 9, .tokens = 1 }, found;
    DT_HELD(layers) *net = NULL;
    DT_HELD(run_folder) *run = NULL;
    const char *json;

    DT_TRY(dt_test_net_create(mesh, DT_F32, &net));
    options.keep = -1;
    DT_EXPECT_STATUS(dt_run_folder_open(mesh, arg, &options, &run), DT_ERR_ARG, "keep is -1");
    options.keep = 1;
    options.n_facts = 1;
    DT_EXPECT_STATUS(dt_run_folder_open(mesh, arg, &options, &run), DT_ERR_ARG,
                     "1 facts, in no list");
    options.n_facts = 0;
    DT_EXPECT_STATUS(dt_run_folder_open(mesh, NULL, &options, &run), DT_ERR_ARG, "is NULL");
    DT_TRY(dt_run_folder_open(mesh, arg, &options, &run));
    DT_EXPECT_STATUS(dt_run_folder_peek(run, -1, NULL, NULL), DT_ERR_ARG,
                     "holds no checkpoint yet");
    DT_EXPECT_STATUS(dt_run_folder_save(run, net, NULL, &progress, "[1]"), DT_ERR_FORMAT, "json");
    DT_EXPECT_STATUS(dt_run_folder_save(run, net, NULL, &progress, "{"), DT_ERR_FORMAT, "json");
    DT_EXPECT_STATUS(dt_run_folder_save(run, NULL, NULL, &progress, NULL), DT_ERR_ARG, "is NULL");
    progress.step = -4;
    DT_EXPECT_STATUS(dt_run_folder_save(run, net, NULL, &progress, NULL), DT_ERR_ARG, "step -4");
    progress.step = 4;
    DT_TRY(dt_run_folder_save(run, net, NULL, &progress, "{\"lr\": 0.1}"));
    DT_EXPECT_STATUS(dt_run_folder_peek(run, -2, &found, &json), DT_ERR_ARG, "step is -2");
    DT_TRY(dt_run_folder_peek(run, -1, &found, &json));
    DT_EXPECT_EQ_INT(found.samples, 9);
    DT_EXPECT(strstr(json, "\"lr\": 0.1") != NULL, "json %s", json);
    dt_run_folder_release(&run);
    options.mode = DT_RUN_FOLDER_READ;
    DT_TRY(dt_run_folder_open(mesh, arg, &options, &run));
    DT_EXPECT_STATUS(dt_run_folder_save(run, net, NULL, &progress, NULL), DT_ERR_ARG, "to be read");
    DT_TRY(dt_run_folder_load(run, NULL, net, NULL, NULL, NULL));
    return DT_OK;
}

/* A checkpoint of layers with another optimizer's state could be loaded by nobody. */
static dt_status mix(dt_mesh *mesh, const void *arg)
{
    const dt_run_progress progress = { .step = 1 };
    DT_HELD(layers) *net = NULL, *other = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(run_folder) *run = NULL;

    DT_TRY(dt_test_net_create(mesh, DT_F32, &net));
    DT_TRY(dt_test_net_create(mesh, DT_F32, &other));
    DT_TRY(dt_optimizer_create(other, NULL, &opt));
    DT_TRY(dt_run_folder_open(mesh, arg, NULL, &run));
    DT_EXPECT_STATUS(dt_run_folder_save(run, net, opt, &progress, NULL), DT_ERR_ARG,
                     "the optimizer is of other layers");
    DT_EXPECT_EQ_INT(dt_run_folder_latest(run), -1);
    DT_TRY(dt_run_folder_save(run, other, opt, &progress, NULL));
    DT_EXPECT_STATUS(dt_run_folder_load(run, NULL, net, opt, NULL, NULL), DT_ERR_ARG,
                     "the optimizer is of other layers");
    DT_TRY(dt_run_folder_load(run, NULL, other, opt, NULL, NULL));
    return DT_OK;
}

DT_TEST(run_folder, an_optimizer_of_other_layers_is_refused)
{
    char dir[DT_TEST_PATH_BYTES];

    dt_test_on_ranks("dp=2", mix, dt_test_temp_dir(dir));
}

/* Also: a checkpoint without state, for an optimizer that has some. */
DT_TEST(run_folder, calls_that_make_no_sense_are_refused)
{
    static session s, *at = &s;
    char dir[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(dir);
    dt_test_on_ranks("dp=2", refuse_all, dir);
    s = from_nothing(dir, 0, 4);
    s = resumed(&s, 0, 4);
    dt_test_on_ranks_fail("dp=2", run_session, &at, DT_ERR_ARG, "no state of an optimizer");
}

/* --- what does not fit ------------------------------------------------------------------------ */

/* A checkpoint of step 2, and a session that would load it. */
static session saved(char dir[DT_TEST_PATH_BYTES])
{
    static session s;

    s = from_nothing(dt_test_temp_dir(dir), 2, 2);
    s.folder.facts = (const dt_asked[]){ { "tokenizer", "abc" } };
    s.folder.n_facts = 1;
    run("dp=2", &s);
    s = resumed(&s, 2, 2);
    s.folder.n_facts = 0;
    s.saves = false;
    return s;
}

DT_TEST(run_folder, another_model_optimizer_or_tokenizer_is_refused)
{
    static session s, *at = &s;
    char dir[DT_TEST_PATH_BYTES];
    const session good = saved(dir);

    s = good;
    run("tp=2", &s);
    s.how.dtype = DT_BF16;
    dt_test_on_ranks_fail("dp=2", run_session, &at, DT_ERR_ARG,
                          "\"embed.weight\" is f32 in the checkpoint, bf16 in the model");
    s = good;
    s.how.options.rule = DT_SGD;
    dt_test_on_ranks_fail("dp=2", run_session, &at, DT_ERR_ARG,
                          "\"exp_avg.embed.weight\", which the optimizer has not: it is of another "
                          "optimizer");
    s.how.options.momentum = 0.9;
    dt_test_on_ranks_fail("dp=2", run_session, &at, DT_ERR_ARG,
                          "has no \"momentum.embed.weight\", which the optimizer has");
    s.fresh_optimizer = true;
    run("dp=2", &s);
    s = good;
    s.folder.facts = (const dt_asked[]){ { "tokenizer", "abd" } };
    s.folder.n_facts = 1;
    dt_test_on_ranks_fail("dp=2", run_session, &at, DT_ERR_ARG,
                          "tokenizer is \"abc\" in the checkpoint, \"abd\" here");
}

/* --- what a disk may do ----------------------------------------------------------------------- */

static void change(const char *path, int64_t at, bool cut)
{
    FILE *f = fopen(path, "r+b");
    int c;

    DT_ASSERT(f != NULL);
    if (at < 0) DT_ASSERT(fseek(f, (long)at, SEEK_END) == 0);
    if (at >= 0) DT_ASSERT(fseek(f, (long)at, SEEK_SET) == 0);
    if (cut) {
        DT_ASSERT(ftruncate(fileno(f), ftell(f)) == 0);
    } else {
        c = fgetc(f);
        DT_ASSERT(fseek(f, -1, SEEK_CUR) == 0);
        DT_ASSERT(fputc(c ^ 16, f) != EOF);
    }
    DT_ASSERT(fclose(f) == 0);
}

DT_TEST(run_folder, damaged_files_are_named)
{
    static const struct {
        const char *file;
        int64_t at; /* negative: from the end */
        bool cut, remove;
        dt_status status;
        const char *words;
    } cases[] = {
        { "model-rank-00000.safetensors", -5, false, false, DT_ERR_FORMAT,
          "its bytes have changed" },
        { "optim-rank-00001.safetensors", -1, false, false, DT_ERR_FORMAT,
          "optim-rank-00001.safetensors: its checksum is" },
        { "optim-rank-00001.safetensors", 60, false, false, DT_ERR_FORMAT,
          "optim-rank-00001.safetensors: its checksum is" },
        { "optim-rank-00000.safetensors", -9, true, false, DT_ERR_FORMAT, "it is cut off" },
        { "optim-rank-00001.safetensors", 0, true, false, DT_ERR_FORMAT, "has 0 bytes" },
        { "optim-rank-00001.safetensors", 0, false, true, DT_ERR_IO,
          "is missing; a checkpoint needs all its 3 files" },
        { "training.json", 40, false, false, DT_ERR_FORMAT,
          "training.json: its checksum is another" },
        { "training.json", -20, false, false, DT_ERR_FORMAT,
          "training.json: its checksum is another" },
        { "training.json", -20, true, false, DT_ERR_FORMAT, "it is cut off" },
        { "training.json", 0, true, false, DT_ERR_FORMAT, "has 0 bytes" },
        { "training.json", 0, false, true, DT_ERR_IO, "training.json: cannot be opened" },
    };
    static session s, *at = &s;

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        char dir[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 64];
        s = saved(dir);
        (void)snprintf(path, sizeof path, "%s/step-00000002/%s", dir, cases[i].file);
        if (cases[i].remove)
            DT_ASSERT(remove(path) == 0);
        else
            change(path, cases[i].at, cases[i].cut);
        dt_test_on_ranks_fail("dp=2", run_session, &at, cases[i].status, cases[i].words);
    }
}
