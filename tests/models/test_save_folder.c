/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose files are in a folder that a model is saved into: those of other models, of another save,
 * of a save that was killed; and what a failed one takes away again. */
#include <dirent.h>
#include <dtensor/models.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "files/checkpoint.h"
#include "files/input.h"
#include "tests/support/dt_test.h"
#include "weights/saving/save.h"

typedef struct saving {
    char temporary[DT_TEST_PATH_BYTES];
    char from[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 8];
    int64_t max_file_bytes;
    void (*after_load)(const struct saving *s);
    void (*before_names)(const struct saving *s); /* all is written, nothing is named */
} saving;

static void begin(saving *s, const char *fixture)
{
    *s = (saving){ .max_file_bytes = 100000 };
    (void)dt_test_source_path(s->from, "tests/golden/%s", fixture);
    (void)dt_test_temp_dir(s->temporary);
    (void)snprintf(s->to, sizeof s->to, "%s/saved", s->temporary);
}

static void on_progress(void *arg, int64_t done, int64_t total)
{
    const saving *s = arg;

    if (done == total && s->before_names != NULL) s->before_names(s);
}

static dt_status load_and_save(dt_mesh *mesh, const void *arg)
{
    dt_save_options options = DT_SAVE_OPTIONS_INIT;
    const saving *s = arg;
    dt_model *model;
    dt_status st;

    options.max_file_bytes = s->max_file_bytes;
    options.progress = on_progress;
    options.progress_arg = (void *)(uintptr_t)s;
    DT_TRY(dt_model_load(mesh, s->from, NULL, &model));
    if (s->after_load != NULL) s->after_load(s);
    st = dt_model_save(model, s->to, &options);
    dt_model_release(&model);
    return st;
}

static dt_status save(const saving *s)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    return dt_test_run(&options, "tp=2", load_and_save, s);
}

static bool has(const saving *s, const char *name)
{
    char path[DT_TEST_PATH_BYTES + 128];
    struct stat info;

    (void)snprintf(path, sizeof path, "%s/%s", s->to, name);
    return lstat(path, &info) == 0;
}

static void expect_whole(const saving *s)
{
    dti_ckpt *ckpt;

    DT_ASSERT_OK(dti_ckpt_open(s->to, &ckpt));
    dti_ckpt_close(&ckpt);
    DT_ASSERT_EQ_INT(dt_test_count_files(s->to, ".tmp"), 0);
    DT_ASSERT(!has(s, DTI_HOLD_NAME));
}

/* --- files of others -------------------------------------------------------------------------- */

DT_TEST(save_folder, weights_of_any_format_are_not_mixed_with_ours)
{
    static const char *const names[] = { "pytorch_model.bin",
                                         "model.q4.gguf",
                                         "consolidated.pth",
                                         "pytorch_model.bin.index.json",
                                         "model-00001-of-00002.safetensors",
                                         "model.Q4.GGUF",
                                         "model.onnx",
                                         "weights.npz" };

    for (size_t i = 0; i < DT_COUNT(names); i++) {
        saving s;
        begin(&s, "llama/tied");
        DT_ASSERT(mkdir(s.to, 0700) == 0);
        dt_test_write_file(s.to, names[i], "x", 1);
        DT_ASSERT_STATUS(save(&s), DT_ERR_ARG, names[i]);
        DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ""), 1);
        DT_ASSERT(!has(&s, DTI_HOLD_NAME));
    }
}

/* As long as the model's own, and other. */
static void write_other(const saving *s, const char *name)
{
    char path[DT_TEST_PATH_BYTES + 64];
    DT_FREED void *bytes = NULL;
    int64_t n;

    (void)snprintf(path, sizeof path, "%s/%s", s->from, name);
    DT_ASSERT_OK(dti_input_read_file(path, 1 << 20, &bytes, &n));
    ((char *)bytes)[n - 1] = ' ';
    dt_test_write_file(s->to, name, bytes, (size_t)n);
}

DT_TEST(save_folder, another_models_configuration_is_not_written_over)
{
    static const char *const names[] = { "config.json", "generation_config.json" };

    for (size_t i = 0; i < DT_COUNT(names); i++) {
        saving s;
        begin(&s, "llama/uneven");
        DT_ASSERT(mkdir(s.to, 0700) == 0);
        write_other(&s, names[i]);
        DT_ASSERT_STATUS(dti_save_check_small(s.from, s.to, DT_F32), DT_ERR_ARG, names[i]);
        DT_ASSERT_STATUS(save(&s), DT_ERR_ARG, names[i]);
        DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ""), 1);
    }
}

/* What the model has none of would be taken for its own. */
DT_TEST(save_folder, another_models_tokenizer_does_not_join_ours)
{
    static const char *const names[] = { "chat_template.jinja", "vocab.json", "merges.txt",
                                         "tokenizer.model", "special_tokens_map.json" };

    for (size_t i = 0; i < DT_COUNT(names); i++) {
        saving s;
        begin(&s, "llama/uneven");
        DT_ASSERT(mkdir(s.to, 0700) == 0);
        dt_test_write_file(s.to, names[i], "x", 1);
        DT_ASSERT_STATUS(dti_save_check_small(s.from, s.to, DT_F32), DT_ERR_ARG, names[i]);
        DT_ASSERT_STATUS(save(&s), DT_ERR_ARG, names[i]);
        DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ""), 1);
    }
}

static void put_index(const saving *s)
{
    dt_test_write_file(s->to, "model.safetensors.index.json.tmp", "x", 1);
}

/* The model's own configuration may be there before; what was there before stays after a failure,
 * and what already had its name goes. */
DT_TEST(save_folder, a_failure_takes_away_what_the_save_has_made_and_nothing_else)
{
    char path[DT_TEST_PATH_BYTES + 32];
    void *config;
    int64_t n;
    saving s;

    begin(&s, "llama/uneven");
    DT_ASSERT(mkdir(s.to, 0700) == 0);
    (void)snprintf(path, sizeof path, "%s/config.json", s.from);
    DT_ASSERT_OK(dti_input_read_file(path, 1 << 20, &config, &n));
    dt_test_write_file(s.to, "config.json", config, (size_t)n);
    dt_test_write_file(s.to, "README.md", "x", 1);
    dti_free(config);
    s.before_names = put_index;
    DT_ASSERT_STATUS(save(&s), DT_ERR_IO, "index.json.tmp is there already");
    DT_ASSERT(has(&s, "config.json") && has(&s, "README.md"));
    DT_ASSERT(has(&s, "model.safetensors.index.json.tmp"));
    DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ""), 3);
    DT_ASSERT(!has(&s, DTI_HOLD_NAME));
}

static void put_model(const saving *s)
{
    dt_test_write_file(s->to, "model.safetensors", "another", 7);
}

static void replace_shard(const saving *s)
{
    char path[DT_TEST_PATH_BYTES + 64];
    const struct dirent *e;
    DIR *dir = opendir(s->to);

    while (dir != NULL && (e = readdir(dir)) != NULL)
        if (strstr(e->d_name, "-00002-of-") != NULL) {
            dt_test_write_file(s->to, "other", "another", 7);
            (void)snprintf(path, sizeof path, "%s/other", s->to);
            (void)renameat(AT_FDCWD, path, dirfd(dir), e->d_name);
            break;
        }
    if (dir != NULL) (void)closedir(dir);
}

static void take_lock_away(const saving *s)
{
    char path[DT_TEST_PATH_BYTES + 64];

    (void)snprintf(path, sizeof path, "%s/%s", s->to, DTI_HOLD_NAME);
    (void)unlink(path);
}

/* Not everybody asks for the lock: what has changed while the model was written is noticed. */
DT_TEST(save_folder, the_folder_is_looked_at_again_before_files_get_their_names)
{
    saving s;

    begin(&s, "llama/uneven");
    s.before_names = put_model;
    DT_ASSERT_STATUS(save(&s), DT_ERR_ARG, "in model.safetensors,");
    DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ""), 1);

    begin(&s, "llama/uneven");
    s.before_names = replace_shard;
    DT_ASSERT_STATUS(save(&s), DT_ERR_IO, "is not the file any more");
    DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ""), 1); /* which is not ours */

    begin(&s, "llama/uneven");
    s.before_names = take_lock_away;
    DT_ASSERT_STATUS(save(&s), DT_ERR_IO, "is not the lock any more");
}

/* --- two saves -------------------------------------------------------------------------------- */

static void save_too(const saving *s)
{
    dti_hold other;

    if (dti_hold_take(&other, s->to) != DT_ERR_IO ||
        strstr(dt_last_error()->message, "another save is writing") == NULL) {
        dti_hold_end(&other, DT_OK);
        put_index(s); /* the save fails, and so does the test */
    }
}

DT_TEST(save_folder, one_folder_has_one_save_at_a_time)
{
    dti_hold hold;
    saving s;

    begin(&s, "llama/uneven");
    s.before_names = save_too;
    DT_ASSERT_OK(save(&s));
    expect_whole(&s);

    begin(&s, "llama/uneven");
    DT_ASSERT_OK(dti_hold_take(&hold, s.to));
    DT_ASSERT_STATUS(save(&s), DT_ERR_IO, "another save is writing");
    DT_ASSERT(has(&s, DTI_HOLD_NAME));
    dti_hold_end(&hold, DT_ERR_IO);
    DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ""), -1); /* it had made the folder */
    DT_ASSERT_OK(save(&s));
    expect_whole(&s);
}

/* --- a save that was killed ------------------------------------------------------------------- */

/* In a process of its own, which ends as by kill -9 with `n_named` files named. */
static void die_in_the_middle(const saving *s, size_t n_named)
{
    static const char *const names[] = { "config.json", "model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors" };
    const pid_t pid = fork();
    int status = 0, fd;

    if (pid == 0) {
        dti_hold hold;
        if (dti_hold_take(&hold, s->to) != DT_OK) _exit(1);
        for (size_t i = 0; i < DT_COUNT(names); i++)
            if (dti_hold_create(&hold, names[i], &fd) != DT_OK || write(fd, "x", 1) != 1) _exit(1);
        for (size_t i = 0; i < n_named; i++)
            if (dti_hold_name(&hold, i) != DT_OK) _exit(1);
        (void)kill(getpid(), SIGKILL);
    }
    DT_ASSERT(pid > 0 && waitpid(pid, &status, 0) == pid);
    DT_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

DT_TEST(save_folder, what_a_killed_save_has_left_is_cleaned_up)
{
    for (size_t n_named = 0; n_named <= 3; n_named++) {
        saving s;
        begin(&s, "llama/uneven");
        die_in_the_middle(&s, n_named);
        DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ".tmp"), 3 - (int64_t)n_named);
        dt_test_write_file(s.to, "notes.tmp", "x", 1);
        DT_ASSERT_OK(dti_save_check_folder(s.to));
        DT_ASSERT_OK(save(&s));
        DT_ASSERT(has(&s, "notes.tmp")); /* nobody knows whose */
        DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ".tmp"), 1);
        DT_ASSERT(!has(&s, "model-00001-of-00002.safetensors"));
    }
}

/* A file that took the place of one that was left is somebody's. */
DT_TEST(save_folder, what_has_taken_a_left_over_place_stays)
{
    saving s;

    begin(&s, "llama/uneven");
    die_in_the_middle(&s, 0);
    dt_test_write_file(s.to, "other", "x", 1);
    {
        char from[DT_TEST_PATH_BYTES + 64], to[DT_TEST_PATH_BYTES + 64];
        (void)snprintf(from, sizeof from, "%s/other", s.to);
        (void)snprintf(to, sizeof to, "%s/model-00001-of-00002.safetensors", s.to);
        DT_ASSERT(rename(from, to) == 0);
    }
    DT_ASSERT_STATUS(save(&s), DT_ERR_ARG, "model-00001-of-00002.safetensors");
    DT_ASSERT(has(&s, "model-00001-of-00002.safetensors"));
}

/* --- what is copied --------------------------------------------------------------------------- */

static void copy_model(const saving *s, const char *folder)
{
    static const char *const names[] = { "config.json", "model.safetensors" };
    char from[DT_TEST_PATH_BYTES + 64];

    for (size_t i = 0; i < DT_COUNT(names); i++) {
        void *bytes;
        int64_t n;
        (void)snprintf(from, sizeof from, "%s/%s", s->from, names[i]);
        DT_ASSERT_OK(dti_input_read_file(from, 1 << 24, &bytes, &n));
        dt_test_write_file(folder, names[i], bytes, (size_t)n);
        dti_free(bytes);
    }
}

/* A folder that lets its reader copy /etc/passwd is none to be trusted. The Hub's cache consists of
 * links, which stay in it. */
DT_TEST(save_folder, links_out_of_the_checkpoint_are_not_followed)
{
    char folder[DT_TEST_PATH_BYTES + 64], path[DT_TEST_PATH_BYTES + 128];
    saving s;

    begin(&s, "llama/uneven");
    (void)snprintf(folder, sizeof folder, "%s/cache", s.temporary);
    DT_ASSERT(mkdir(folder, 0700) == 0);
    (void)snprintf(folder, sizeof folder, "%s/cache/blobs", s.temporary);
    DT_ASSERT(mkdir(folder, 0700) == 0);
    dt_test_write_file(folder, "1234", "{}", 2);
    (void)snprintf(folder, sizeof folder, "%s/cache/snapshots", s.temporary);
    DT_ASSERT(mkdir(folder, 0700) == 0);
    (void)snprintf(folder, sizeof folder, "%s/cache/snapshots/main", s.temporary);
    DT_ASSERT(mkdir(folder, 0700) == 0);
    copy_model(&s, folder);
    (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    DT_ASSERT(symlink("../../blobs/1234", path) == 0);
    (void)snprintf(path, sizeof path, "%s/vocab.json", folder);
    DT_ASSERT(symlink("config.json", path) == 0);
    DT_ASSERT_OK(dti_save_check_small(folder, s.to, DT_F32));
    (void)snprintf(path, sizeof path, "%s/merges.txt", folder);
    DT_ASSERT(symlink("/etc/passwd", path) == 0);
    DT_ASSERT_STATUS(dti_save_check_small(folder, s.to, DT_F32), DT_ERR_IO, "/etc/passwd");
    (void)snprintf(s.from, sizeof s.from, "%.*s", (int)sizeof s.from - 1, folder);
    DT_ASSERT_STATUS(save(&s), DT_ERR_IO, "/etc/passwd");
    DT_ASSERT(!has(&s, "merges.txt"));
}

DT_TEST(save_folder, only_files_of_a_fair_size_are_copied)
{
    char path[DT_TEST_PATH_BYTES + 64];
    saving s;

    begin(&s, "llama/uneven");
    copy_model(&s, s.temporary);
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", s.temporary);
    dt_test_write_file(s.temporary, "tokenizer.json", "{}", 2);
    DT_ASSERT(truncate(path, (off_t)20 << 30) == 0);
    DT_ASSERT_STATUS(dti_save_check_small(s.temporary, s.to, DT_F32), DT_ERR_FORMAT,
                     "21474836480 bytes");
    DT_ASSERT(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    DT_ASSERT_STATUS(dti_save_check_small(s.temporary, s.to, DT_F32), DT_ERR_IO, "not a file");
    DT_ASSERT(unlink(path) == 0);
    DT_ASSERT_OK(dti_save_check_small(s.temporary, s.to, DT_F32));
}

/* --- how many files are open ------------------------------------------------------------------ */

static dt_status save_with_few_descriptors(dt_mesh *mesh, const void *arg)
{
    const saving *s = arg;
    struct rlimit old, few;
    dt_status st;

    if (getrlimit(RLIMIT_NOFILE, &old) != 0) return DT_ERR_INTERNAL;
    few = (struct rlimit){ 32, old.rlim_max };
    (void)setrlimit(RLIMIT_NOFILE, &few);
    st = load_and_save(mesh, s);
    (void)setrlimit(RLIMIT_NOFILE, &old);
    return st;
}

DT_TEST(save_folder, more_files_than_may_be_open_are_written)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    saving s;

    begin(&s, "llama/uneven");
    s.max_file_bytes = 1;
    DT_ASSERT_OK(dt_test_run(&options, "tp=1", save_with_few_descriptors, &s));
    DT_ASSERT(dt_test_count_files(s.to, ".safetensors") > 20);
    expect_whole(&s);
}

/* --- who may write ---------------------------------------------------------------------------- */

DT_TEST(save_folder, a_folder_that_cannot_be_written_is_found_before)
{
    int status = 0;
    pid_t pid;
    saving s;

    begin(&s, "llama/tied");
    DT_ASSERT(chmod(s.temporary, 0755) == 0 && mkdir(s.to, 0555) == 0);
    pid = fork();
    if (pid == 0) { /* root may write everywhere */
        if (getuid() == 0 && setuid(65534) != 0) _exit(2);
        _exit(dti_save_check_folder(s.to) == DT_ERR_IO &&
                      strstr(dt_last_error()->message, "cannot be written") != NULL
                  ? 0
                  : 1);
    }
    DT_ASSERT(pid > 0 && waitpid(pid, &status, 0) == pid);
    DT_ASSERT(WIFEXITED(status));
    DT_ASSERT_EQ_INT(WEXITSTATUS(status), 0);
}

static void remove_config(const saving *s)
{
    char path[DT_TEST_PATH_BYTES + 32];

    (void)snprintf(path, sizeof path, "%s/config.json", s->from);
    (void)unlink(path);
}

static void change_config(const saving *s)
{
    char path[DT_TEST_PATH_BYTES + 32];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/config.json", s->from);
    f = fopen(path, "a");
    (void)fputc('\n', f);
    (void)fclose(f);
}

static void add_tokenizer(const saving *s)
{
    dt_test_write_file(s->from, "tokenizer.json", "{}", 2);
}

/* A copy of the fixture that may be changed. */
static void begin_with_copy(saving *s)
{
    static const char *const names[] = { "config.json", "model.safetensors" };
    char path[DT_TEST_PATH_BYTES + 32];

    begin(s, "llama/tied");
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        void *bytes;
        int64_t n;
        (void)snprintf(path, sizeof path, "%s/%s", s->from, names[i]);
        DT_ASSERT_OK(dti_input_read_file(path, 1 << 20, &bytes, &n));
        dt_test_write_file(s->temporary, names[i], bytes, (size_t)n);
        dti_free(bytes);
    }
    (void)snprintf(s->from, sizeof s->from, "%s", s->temporary);
}

/* Weights and what has come since do not belong together. */
DT_TEST(save_folder, files_that_changed_since_the_model_was_loaded_are_not_saved)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    saving s;

    begin_with_copy(&s);
    s.after_load = change_config;
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=1", load_and_save, &s), DT_ERR_IO,
                     "config.json: was changed since the model was loaded");
    s.after_load = add_tokenizer;
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=1", load_and_save, &s), DT_ERR_IO,
                     "tokenizer.json: was added since the model was loaded");
    DT_ASSERT(dt_test_count_files(s.to, "") <= 0);
    s.after_load = NULL;
    DT_ASSERT_OK(dt_test_run(&options, "tp=1", load_and_save, &s));
}

/* Weights alone were a success. */
DT_TEST(save_folder, a_checkpoint_that_has_gone_is_not_half_saved)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    saving s;

    begin_with_copy(&s);
    s.after_load = remove_config;
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=1", load_and_save, &s), DT_ERR_FORMAT,
                     "has no config.json");
    DT_ASSERT(dt_test_count_files(s.to, "") <= 0);
}
