/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a command may write: not over what it reads, and not over a file of a model or of a run. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io_status.h"
#include "cli/metrics.h"
#include "cli/option_file.h"
#include "cli/option_rows.h"
#include "cli/outputs.h"
#include "cli/run_folder.h"

/* Names of its own files in a folder that has one of the marks. */
static const struct {
    const char *what, *marks[2], *names[16];
} owners[] = {
    { "model", /* the first: cli_is_of_model() */
      { "config.json", "tokenizer.json" },
      { "config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json",
        "added_tokens.json", "vocab*", "merges.txt", "chat_template*", "*processor_config.json",
        "*.safetensors", "*.index.json", "pytorch_model*", ".dtensor-save" } },
    { "run",
      { CLI_METRICS, ".dtensor-run" },
      { CLI_RUN_OPTIONS, CLI_METRICS, CLI_RUN_PLAN, CLI_RUN_TRACE, CLI_RUN_MODEL,
        CLI_RUN_MODEL "-*", "latest*", "step-*", "data-*", "validation-*", ".dtensor-run" } },
    { "checkpoint", { "training.json" }, { "training.json", "*.safetensors" } },
};

static bool is_named(size_t owner, const char *name)
{
    const char *const *names = owners[owner].names;
    size_t i = 0;

    while (i < DT_COUNT(owners[owner].names) && names[i] != NULL && fnmatch(names[i], name, 0) != 0)
        i++;
    return i < DT_COUNT(owners[owner].names) && names[i] != NULL;
}

bool cli_is_of_model(const char *name)
{
    return is_named(0, name);
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* --- what is read ----------------------------------------------------------------------------- */

/* `path` is the file, or a folder in which one of the files of a model or a run leads to it, as in
 * the cache of the Hub. */
static bool leads_to(const char *path, const struct stat *output)
{
    const struct dirent *item;
    struct stat about;
    bool found = false;
    DIR *folder;

    if (stat(path, &about) != 0) return false;
    if (!S_ISDIR(about.st_mode)) return is_same(&about, output);
    folder = opendir(path);
    while (folder != NULL && !found && (item = readdir(folder)) != NULL)
        for (size_t i = 0; i < DT_COUNT(owners); i++)
            found = found || (is_named(i, item->d_name) &&
                              fstatat(dirfd(folder), item->d_name, &about, 0) == 0 &&
                              is_same(&about, output));
    if (folder != NULL) (void)closedir(folder);
    return found;
}

/* An option whose value is a file or a folder is read, unless it is an output. */
static bool is_input(const cli_option *o, const cli_args *args)
{
    const void *field = (const char *)args + o->field;

    return (o->kind == TEXT || o->kind == MANY) &&
           (strcmp(o->value, "FILE") == 0 || strcmp(o->value, "DIR") == 0) &&
           field != (const void *)&args->output && field != (const void *)&args->training.trace &&
           field != (const void *)&args->picture && cli_option_given(o, args);
}

dt_status cli_check_unread(const char *option, const char *path, const cli_args *args)
{
    const cli_option *o;
    struct stat output, other;
    bool read = false;

    if (stat(path, &output) != 0) return DT_OK;
    for (size_t i = 0; (o = cli_option_row(i)) != NULL && !read; i++) {
        const void *field = (const char *)args + o->field;
        if (!is_input(o, args)) continue;
        if (o->kind == TEXT) read = leads_to(*(const char *const *)field, &output);
        for (int k = 0; o->kind == MANY && k < ((const cli_many *)field)->n; k++)
            read = read || leads_to(((const cli_many *)field)->items[k], &output);
    }
    for (int i = 0; i < args->n_files; i++) read = read || leads_to(args->files[i], &output);
    DT_CHECK(!read, DT_ERR_ARG, "%s: %s is a file that this command reads; name another", option,
             path);
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        DT_CHECK(fstat(fd, &other) != 0 || !S_ISREG(other.st_mode) || !is_same(&output, &other),
                 DT_ERR_ARG, "%s: %s is where standard %s goes; name another", option, path,
                 fd == STDOUT_FILENO ? "output" : "error");
    return DT_OK;
}

/* --- where it lies ---------------------------------------------------------------------------- */

static dt_status parent_of(const char *option, const char *path, char parent[CLI_PATH_BYTES])
{
    const char *slash = strrchr(path, '/');

    DT_CHECK(snprintf(parent, CLI_PATH_BYTES, "%.*s", slash != NULL ? (int)(slash - path) + 1 : 2,
                      slash != NULL ? path : "./") < CLI_PATH_BYTES,
             DT_ERR_ARG, "%s: its path has more than %d bytes", option, CLI_PATH_BYTES - 1);
    return DT_OK;
}

static bool is_owned(size_t owner, const char *folder)
{
    bool found = false;

    for (size_t i = 0; i < DT_COUNT(owners[owner].marks) && owners[owner].marks[i] != NULL; i++) {
        char path[CLI_PATH_BYTES + 32];
        (void)snprintf(path, sizeof path, "%s%s", folder, owners[owner].marks[i]);
        found = found || access(path, F_OK) == 0;
    }
    return found;
}

/* Where a path leads, be it there or not: its folder without links and dots, and its name. */
static bool resolve(const char *path, char out[PATH_MAX])
{
    char parent[CLI_PATH_BYTES];
    size_t n = strlen(path);
    const char *name;

    if (realpath(path, out) != NULL) return true;
    while (n > 1 && path[n - 1] == '/') n--;
    if (snprintf(parent, sizeof parent, "%.*s", (int)n, path) >= CLI_PATH_BYTES) return false;
    name = strrchr(parent, '/');
    n = name != NULL ? (size_t)(name - parent) : 0;
    path += name != NULL ? n + 1 : 0;
    parent[n] = '\0';
    if (realpath(name == NULL ? "." : n == 0 ? "/" : parent, out) == NULL) return false;
    n = strlen(out);
    return snprintf(out + n, PATH_MAX - n, "/%.*s", (int)strcspn(path, "/"), path) <
           (int)(PATH_MAX - n);
}

dt_status cli_check_apart(const cli_args *args)
{
    const char *const outputs[][2] = { { "--output", args->output },
                                       { "--trace", args->training.trace } };
    char places[DT_COUNT(outputs)][PATH_MAX];

    for (size_t i = 0; i < DT_COUNT(outputs); i++) {
        if (outputs[i][1] == NULL || !resolve(outputs[i][1], places[i])) places[i][0] = '\0';
        for (size_t k = 0; k < i; k++)
            DT_CHECK(places[i][0] == '\0' || strcmp(places[k], places[i]) != 0, DT_ERR_ARG,
                     "%s and %s both write to %s; give each a place of its own", outputs[k][0],
                     outputs[i][0], outputs[i][1]);
    }
    return DT_OK;
}

/* The folder of the run that begins. */
static bool is_output(const char *folder, const cli_args *args)
{
    struct stat run, there;

    return args->output != NULL && stat(args->output, &run) == 0 && S_ISDIR(run.st_mode) &&
           stat(folder, &there) == 0 && is_same(&run, &there);
}

dt_status cli_check_output(const char *option, const char *path, const cli_args *args)
{
    char plain[CLI_PATH_BYTES], parent[CLI_PATH_BYTES];
    const char *slash, *name;
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/') n--; /* a folder's */
    DT_CHECK((size_t)snprintf(plain, sizeof plain, "%.*s", (int)n, path) < sizeof plain, DT_ERR_ARG,
             "%s: its path has more than %d bytes", option, CLI_PATH_BYTES - 1);
    DT_TRY(parent_of(option, plain, parent));
    slash = strrchr(plain, '/');
    name = slash != NULL ? slash + 1 : plain;
    DT_TRY(cli_check_unread(option, path, args));
    for (size_t i = 0; i < DT_COUNT(owners); i++)
        DT_CHECK(!is_named(i, name) || !(is_owned(i, parent) || is_output(parent, args)),
                 DT_ERR_ARG,
                 "%s: %s lies in the folder of a %s, under a name of its own files; name a place "
                 "elsewhere",
                 option, path, owners[i].what);
    return DT_OK;
}

dt_status cli_check_place(const char *option, const char *path, const cli_args *args)
{
    char parent[CLI_PATH_BYTES];
    struct stat about;

    DT_TRY(parent_of(option, path, parent));
    DT_CHECK(access(parent, W_OK | X_OK) == 0, dti_io_status(errno),
             "%s: %s cannot be made in %s: %s", option, path, parent, strerror(errno));
    DT_TRY(cli_check_output(option, path, args));
    if (lstat(path, &about) != 0) return DT_OK;
    if (cli_check_file(path) != DT_OK) { /* a link to nothing neither */
        dti_error_prefix("%s", option);
        DT_TRY(dt_last_error()->code);
    }
    return DT_OK;
}
