/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/text.h"
#include "cli/metrics.h"
#include "cli/option_file.h"

dt_status cli_run_path(const char *run, const char *name, char path[CLI_PATH_BYTES])
{
    const size_t n = strlen(run);
    const char *between = n > 0 && run[n - 1] == '/' ? "" : "/";

    DT_CHECK(snprintf(path, CLI_PATH_BYTES, "%s%s%s", run, between, name) < CLI_PATH_BYTES,
             DT_ERR_ARG, "--output: its path has more than %d bytes", CLI_PATH_BYTES - 1);
    return DT_OK;
}

/* --- checks ----------------------------------------------------------------------------------- */

/* The folder that holds the run's. */
static dt_status parent_of(const char *run, char path[CLI_PATH_BYTES])
{
    char *slash;

    DT_TRY(cli_run_path(run, "", path));
    for (slash = path + strlen(path); slash > path && slash[-1] == '/';) *--slash = '\0';
    slash = strrchr(path, '/');
    if (slash == NULL)
        (void)snprintf(path, CLI_PATH_BYTES, ".");
    else
        slash[slash == path] = '\0';
    return DT_OK;
}

dt_status cli_check_file(const char *path)
{
    struct stat about;

    DT_CHECK(stat(path, &about) == 0, dti_io_status(errno), "%s: %s", path, strerror(errno));
    DT_CHECK(S_ISREG(about.st_mode), DT_ERR_IO, "%s: is %s, not a file", path,
             S_ISDIR(about.st_mode) ? "a folder" : "a device or pipe");
    return DT_OK;
}

int64_t cli_run_export_step(const char *name)
{
    char same[DTI_NUMBER_BYTES + sizeof CLI_RUN_MODEL];
    int64_t step;

    if (sscanf(name, CLI_RUN_MODEL "-%" SCNd64, &step) != 1 || step < 0) return -1;
    (void)snprintf(same, sizeof same, CLI_RUN_MODEL "-%08" PRId64, step);
    return strcmp(name, same) == 0 ? step : -1;
}

/* "step-00001000", or what is left of one: with an ending. */
static bool is_step(const char *name, bool whole)
{
    static const char head[] = "step-";
    const size_t digits = strncmp(name, head, sizeof head - 1) == 0
                              ? strspn(name + sizeof head - 1, "0123456789")
                              : 0;

    return digits >= 8 && (name[sizeof head - 1 + digits] == '\0' ||
                           (!whole && name[sizeof head - 1 + digits] == '.'));
}

static dt_status check_contents(const char *run)
{
    static const char *const weights[] = { "model.safetensors", "model.safetensors.index.json",
                                           "pytorch_model.bin" };
    const struct dirent *item;
    DIR *folder = opendir(run);
    bool other = false, model = false;

    DT_CHECK(folder != NULL, dti_io_status(errno), "--output: %s: %s", run, strerror(errno));
    while ((item = readdir(folder)) != NULL) {
        other = other || strcmp(item->d_name, CLI_RUN_OPTIONS) == 0 ||
                strcmp(item->d_name, CLI_METRICS) == 0 || strcmp(item->d_name, "latest") == 0 ||
                is_step(item->d_name, false);
        model = model || strcmp(item->d_name, CLI_RUN_MODEL) == 0 ||
                cli_run_export_step(item->d_name) >= 0;
        for (size_t i = 0; i < DT_COUNT(weights); i++)
            model = model || strcmp(item->d_name, weights[i]) == 0;
    }
    (void)closedir(folder);
    DT_CHECK(
        !other, DT_ERR_ARG,
        "--output: %s holds another run; add --resume to go on with it, or name another folder",
        run);
    DT_CHECK(
        !model, DT_ERR_ARG,
        "--output: %s holds a model; name a folder of its own for the run, which will have the "
        "trained model in a folder in it",
        run);
    return DT_OK;
}

bool cli_run_is_busy(const char *run)
{
    char path[CLI_PATH_BYTES];
    int lock;
    bool busy;

    if (cli_run_path(run, ".dtensor-run", path) != DT_OK) return false;
    lock = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    busy = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (lock >= 0) (void)close(lock);
    return busy;
}

dt_status cli_run_check(const char *run, bool resume)
{
    char parent[CLI_PATH_BYTES];
    struct stat about;
    int error;

    DT_TRY(parent_of(run, parent));
    if (stat(run, &about) == 0) {
        DT_CHECK(S_ISDIR(about.st_mode), DT_ERR_ARG, "--output: %s is no folder", run);
        DT_CHECK(access(run, W_OK | X_OK) == 0, dti_io_status(errno), "--output: %s: %s", run,
                 strerror(errno));
        DT_CHECK(!cli_run_is_busy(run), DT_ERR_IO,
                 "--output: %s: another run is writing into this folder; choose another one, or "
                 "wait for its end",
                 run);
        if (!resume) DT_TRY(check_contents(run));
        DT_TRY(cli_run_path(run, CLI_RUN_MODEL, parent));
        DT_CHECK(lstat(parent, &about) != 0 || S_ISLNK(about.st_mode), DT_ERR_ARG,
                 "--output: %s is no link, and would not be made one to the trained model; give it "
                 "another name",
                 parent);
        return DT_OK;
    }
    error = errno;
    DT_CHECK(error == ENOENT, dti_io_status(error), "--output: %s: %s", run, strerror(error));
    DT_CHECK(lstat(run, &about) != 0, DT_ERR_ARG, "--output: %s is a link to nothing", run);
    DT_CHECK(access(parent, W_OK | X_OK) == 0, dti_io_status(errno),
             "--output: %s cannot be made in %s: %s", run, parent, strerror(errno));
    return DT_OK;
}

int64_t cli_run_count_steps(const char *run)
{
    DIR *folder = opendir(run);
    const struct dirent *item;
    int64_t n = 0;

    while (folder != NULL && (item = readdir(folder)) != NULL) n += is_step(item->d_name, true);
    if (folder != NULL) (void)closedir(folder);
    return n;
}

dt_status cli_run_check_space(const char *run, double bytes, const char *what)
{
    char place[CLI_PATH_BYTES], need[DTI_NUMBER_BYTES], have[DTI_NUMBER_BYTES];
    struct statvfs disk;
    double room;

    DT_TRY(parent_of(run, place));
    if (access(run, F_OK) == 0) DT_TRY(cli_run_path(run, "", place));
    if (statvfs(place, &disk) != 0) return DT_OK;
    room = (double)disk.f_bavail * (double)disk.f_frsize;
    DT_CHECK(bytes <= room, DT_ERR_ARG,
             "--output: %s need %s, there are %s on the disk of %s; make room, or keep fewer with "
             "--keep",
             what, dti_bytes_text((int64_t)fmin(bytes, 0x1p62), need),
             dti_bytes_text((int64_t)fmin(room, 0x1p62), have), run);
    return DT_OK;
}

/* "trace.json.4711-0.tmp": what a process that is gone had not yet named: by name_beside(), or of
 * tokens. */
static bool is_left_over(const char *name)
{
    static const char *const names[] = { CLI_RUN_OPTIONS, CLI_RUN_PLAN, CLI_RUN_TRACE, CLI_METRICS,
                                         CLI_RUN_MODEL,   "data-*",     "validation-*" };
    char whole[NAME_MAX + 1], end[8] = "", *dot;
    long process = 0;

    (void)snprintf(whole, sizeof whole, "%s", name);
    dot = strrchr(whole, '.');
    if (dot == NULL || dot == whole || strcmp(dot, ".tmp") != 0) return false;
    *dot = '\0';
    dot = strrchr(whole, '.');
    if (dot == NULL || sscanf(dot, ".%9ld-%*3[0-9]%7s", &process, end) != 1 || process < 1)
        return false;
    *dot = '\0';
    if (kill((pid_t)process, 0) == 0 || errno != ESRCH) return false;
    for (size_t i = 0; i < DT_COUNT(names); i++)
        if (fnmatch(names[i], whole, 0) == 0) return true;
    return false;
}

void cli_run_sweep(const char *run)
{
    DIR *folder = opendir(run);
    const struct dirent *item;

    while (folder != NULL && (item = readdir(folder)) != NULL)
        if (is_left_over(item->d_name)) (void)unlinkat(dirfd(folder), item->d_name, 0);
    if (folder != NULL) (void)closedir(folder);
}

/* --- reading ---------------------------------------------------------------------------------- */

dt_status cli_read_json(const char *path, json_t **out)
{
    FILE *f = fopen(path, "re");
    json_error_t why;
    struct stat about;
    int error;

    *out = NULL;
    DT_CHECK(f != NULL, dti_io_status(errno), "%s: %s", path, strerror(errno));
    if (fstat(fileno(f), &about) == 0 && S_ISDIR(about.st_mode)) {
        (void)fclose(f);
        DT_FAIL(DT_ERR_IO, "%s: is a folder, not a file", path);
    }
    *out = json_loadf(f, JSON_REJECT_DUPLICATES, &why);
    error = ferror(f) ? errno : 0;
    (void)fclose(f);
    DT_CHECK(*out != NULL || error == 0, dti_io_status(error), "%s: %s", path, strerror(error));
    DT_CHECK(*out != NULL || json_error_code(&why) != json_error_out_of_memory, DT_ERR_MEMORY,
             "%s: does not fit into memory", path);
    DT_CHECK(*out != NULL, DT_ERR_FORMAT, "%s: line %d: %s", path, why.line, why.text);
    if (json_is_object(*out)) return DT_OK;
    json_decref(*out);
    *out = NULL;
    DT_FAIL(DT_ERR_FORMAT, "%s: is no JSON object", path);
}

/* --- writing ---------------------------------------------------------------------------------- */

dt_status cli_run_make(const char *run)
{
    DT_CHECK(mkdir(run, 0777) == 0 || errno == EEXIST, dti_io_status(errno), "--output: %s: %s",
             run, strerror(errno));
    return DT_OK;
}

static int write_all(int file, const char *text, size_t n)
{
    while (n > 0) {
        const ssize_t done = write(file, text, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return errno;
        text += done;
        n -= (size_t)done;
    }
    return fsync(file) == 0 ? 0 : errno;
}

enum { MOST_BESIDE = 100, BESIDE_BYTES = CLI_PATH_BYTES + 32 };

/* A name for what will be called `path` when it is whole: 0, 1, ... until none has it, since what
 * lies there is somebody's. */
static void name_beside(const char *path, int number, char other[BESIDE_BYTES])
{
    (void)snprintf(other, BESIDE_BYTES, "%s.%ld-%d.tmp", path, (long)getpid(), number);
}

dt_status cli_write_text(const char *path, const char *text, size_t n)
{
    char other[BESIDE_BYTES];
    int file = -1, error = EEXIST;

    for (int i = 0; i < MOST_BESIDE && file < 0 && error == EEXIST; i++) {
        name_beside(path, i, other);
        file = open(other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file < 0) error = errno;
    }
    DT_CHECK(file >= 0, dti_io_status(error), "%s: %s", path, strerror(error));
    error = write_all(file, text, n);
    if (close(file) != 0 && error == 0) error = errno;
    if (error == 0 && rename(other, path) != 0) error = errno;
    if (error != 0) (void)unlink(other);
    DT_CHECK(error == 0, dti_io_status(error), "%s: %s", path, strerror(error));
    return DT_OK;
}

dt_status cli_write_json(const char *path, json_t *object)
{
    char *text =
        object != NULL ? json_dumps(object, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    dt_status st;

    json_decref(object);
    DT_CHECK(text != NULL, DT_ERR_MEMORY,
             "%s cannot be written: memory, or a name that is not UTF-8", path);
    st = cli_write_text(path, text, strlen(text));
    free(text);
    DT_TRY(st);
    return DT_OK;
}

dt_status cli_run_point(const char *run, const char *name)
{
    char path[CLI_PATH_BYTES], other[BESIDE_BYTES];
    int error = EEXIST;

    DT_TRY(cli_run_path(run, CLI_RUN_MODEL, path));
    for (int i = 0; i < MOST_BESIDE && error == EEXIST; i++) {
        name_beside(path, i, other);
        error = symlink(name, other) == 0 ? 0 : errno;
    }
    if (error == 0 && rename(other, path) != 0) {
        error = errno;
        (void)unlink(other);
    }
    DT_CHECK(error == 0, dti_io_status(error), "%s: %s", path, strerror(error));
    return DT_OK;
}
