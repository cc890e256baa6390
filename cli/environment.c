/* SPDX-License-Identifier: Apache-2.0
 *
 * The only place of the command that looks at environment variables. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/cli.h"

static const char *non_empty(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* Where huggingface_hub keeps models; "~" is the home of the one who runs it. */
static void find_hub(char hub[CLI_PATH_BYTES])
{
    static const struct {
        const char *name, *inside;
    } places[] = { { "HF_HUB_CACHE", "" },
                   { "HUGGINGFACE_HUB_CACHE", "" },
                   { "HF_HOME", "/hub" },
                   { "XDG_CACHE_HOME", "/huggingface/hub" },
                   { "HOME", "/.cache/huggingface/hub" } };
    const char *home = non_empty("HOME");

    hub[0] = '\0';
    for (size_t i = 0; i < DT_COUNT(places) && hub[0] == '\0'; i++) {
        const char *path = non_empty(places[i].name);
        const bool from_home = path != NULL && path[0] == '~' && path[1] == '/' && home != NULL;
        if (path == NULL) continue;
        if ((size_t)snprintf(hub, CLI_PATH_BYTES, "%s%s%s", from_home ? home : "",
                             from_home ? path + 1 : path, places[i].inside) >= CLI_PATH_BYTES)
            hub[0] = '\0';
    }
}

void cli_environment(cli_env *out)
{
    const char *verbose = non_empty("DTENSOR_VERBOSE");
    const char *term = non_empty("TERM");

    *out = (cli_env){
        .fault = non_empty("DTENSOR_FAULT"),
        .timeout_ms = non_empty("DTENSOR_TIMEOUT_MS"),
        .api_key = non_empty("DTENSOR_API_KEY"),
        .verbose = verbose != NULL && strcmp(verbose, "0") != 0,
        .no_color = non_empty("NO_COLOR") != NULL,
        .dumb_terminal = term == NULL || strcmp(term, "dumb") == 0,
    };
    find_hub(out->hub);
}

enum { MODULES_BYTES = CLI_PATH_BYTES + 32 };
static const char modules_name[] = "DTENSOR_MODULES";

static bool find_own_modules(char modules[MODULES_BYTES])
{
    char program[CLI_PATH_BYTES] = "", *slash;
    struct stat mine, theirs;

    if (readlink("/proc/self/exe", program, sizeof program - 1) <= 0) return false;
    slash = strrchr(program, '/');
    if (slash == NULL || stat(program, &mine) != 0) return false;
    *slash = '\0';
    (void)snprintf(modules, MODULES_BYTES, "%s/../lib/dtensor", program);
    if (stat(modules, &theirs) != 0 || (theirs.st_mode & S_IWOTH) != 0) return false;
    return theirs.st_uid == 0 || theirs.st_uid == mine.st_uid;
}

void cli_own_modules(void)
{
    char modules[MODULES_BYTES];

    if (non_empty(modules_name) == NULL && find_own_modules(modules))
        (void)setenv(modules_name, modules, 1);
}

/* A variable as the user has set it: what the command tells the library was set by nobody else. */
static const char *set_by_user(const char *name)
{
    const char *value = getenv(name);
    char modules[MODULES_BYTES];

    if (value == NULL || strcmp(name, modules_name) != 0) return value;
    return find_own_modules(modules) && strcmp(value, modules) == 0 ? NULL : value;
}

const char *cli_environment_name(int i, const char **value)
{
    static const char *const names[] = {
        "DTENSOR_MPI",           "DTENSOR_MODULES", "DTENSOR_MPI_SHARED", "DTENSOR_MPI_SUMS",
        "DTENSOR_HOSTS",         "DTENSOR_CHECK",   "DTENSOR_CUDA_COMM",  "DTENSOR_CUDA_FUSE",
        "DTENSOR_CUDNN",         "DTENSOR_FLIGHT",  "DTENSOR_LINK",       "DTENSOR_FAULT",
        "DTENSOR_TIMEOUT_MS",    "DTENSOR_VERBOSE", "NO_COLOR",           "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",  "PMI_SIZE",        "PMI_RANK",           "PMIX_RANK",
        "SLURM_STEP_NUM_TASKS",  "SLURM_PROCID",    "WORLD_SIZE",         "RANK",
        "LOCAL_WORLD_SIZE",      "MASTER_ADDR",     "MASTER_PORT",        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE", "HF_HOME",         "XDG_CACHE_HOME",
    };

    *value = NULL;
    if (i < 0 || (size_t)i >= DT_COUNT(names)) return NULL;
    *value = set_by_user(names[i]);
    return names[i];
}
