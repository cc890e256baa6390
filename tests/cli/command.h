/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the built command in a process of its own and catches what it prints. */
#ifndef DT_TEST_CLI_COMMAND_H
#define DT_TEST_CLI_COMMAND_H

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/dt_test.h"

extern char **environ;

enum { COMMAND_MAX_WORDS = 40, COMMAND_MAX_ENV = 256 };

/* What a run left. */
typedef struct command_result {
    int code; /* exit code; 128 + the signal that ended it */
    char *out;
    char *err;
} command_result;

static inline char *command_read(const char *path)
{
    FILE *f = fopen(path, "rb");
    size_t capacity = 1 << 16, n = 0, got = 1;
    char *text = malloc(capacity);

    while (f != NULL && text != NULL && got > 0) {
        got = fread(text + n, 1, capacity - n - 1, f);
        n += got;
        if (n + 1 == capacity) text = realloc(text, capacity *= 2);
    }
    if (f == NULL || text == NULL) dt_test_fail(__FILE__, __LINE__, "%s cannot be read", path);
    if (f != NULL) (void)fclose(f);
    if (text != NULL) text[n] = '\0';
    return text;
}

/* The environment of the test, less our own variables of runs, with `extra` ("NAME=VALUE" or NULL)
 * and without a launcher's. */
static inline void command_environment(const char *extra, char *env[COMMAND_MAX_ENV])
{
    int n = 0;

    for (char **e = environ; *e != NULL && n + 2 < COMMAND_MAX_ENV; e++)
        if (strncmp(*e, "DTENSOR_FAULT=", 14) != 0 && strncmp(*e, "DTENSOR_TIMEOUT_MS=", 19) != 0 &&
            strncmp(*e, "DTENSOR_VERBOSE=", 16) != 0 && strncmp(*e, "WORLD_SIZE=", 11) != 0 &&
            (extra == NULL || strncmp(*e, extra, strcspn(extra, "=") + 1) != 0))
            env[n++] = *e;
    if (extra != NULL) env[n++] = (char *)(uintptr_t)extra;
    env[n] = NULL;
}

/* "dtensor WORDS..."; words end with NULL. */
static inline void command_words(const char *const *words, char *argv[COMMAND_MAX_WORDS + 2])
{
    int n = 0;

    argv[n++] = (char *)(uintptr_t) "dtensor";
    for (; words[n - 1] != NULL; n++) {
        if (n > COMMAND_MAX_WORDS)
            dt_test_fail(__FILE__, __LINE__, "more than %d words", COMMAND_MAX_WORDS);
        argv[n] = (char *)(uintptr_t)words[n - 1];
    }
    argv[n] = NULL;
}

/* Runs `dtensor WORDS...`; words end with NULL. stdin is empty. */
static inline command_result command_run(const char *extra_env, const char *const *words)
{
    char binary[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES];
    char out[DT_TEST_PATH_BYTES + 8], err[DT_TEST_PATH_BYTES + 8];
    char *argv[COMMAND_MAX_WORDS + 2], *env[COMMAND_MAX_ENV];
    posix_spawn_file_actions_t actions;
    command_result r = { -1, NULL, NULL };
    int status = 0;
    pid_t pid = 0;

    (void)dt_test_binary_path(binary, "bin/dtensor");
    (void)dt_test_temp_dir(folder);
    (void)snprintf(out, sizeof out, "%s/out", folder);
    (void)snprintf(err, sizeof err, "%s/err", folder);
    command_words(words, argv);
    command_environment(extra_env, env);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_addopen(&actions, 1, out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)posix_spawn_file_actions_addopen(&actions, 2, err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (posix_spawn(&pid, binary, &actions, NULL, argv, env) != 0)
        dt_test_fail(__FILE__, __LINE__, "%s cannot be started", binary);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)waitpid(pid, &status, 0);
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    r.out = command_read(out);
    r.err = command_read(err);
    dt_test_remove_dir(folder);
    return r;
}

#define COMMAND(...)          command_run(NULL, (const char *const[]){ __VA_ARGS__, NULL })
#define COMMAND_ENV(env, ...) command_run((env), (const char *const[]){ __VA_ARGS__, NULL })

static inline void command_free(command_result *r)
{
    free(r->out);
    free(r->err);
    *r = (command_result){ 0 };
}

/* The run ended with `code`; what it said is in the message if it did not. */
#define COMMAND_ASSERT_CODE(r, want)                                                            \
    do {                                                                                        \
        if ((r).code != (want))                                                                 \
            dt_test_fail(__FILE__, __LINE__, "exit code %d, not %d; stderr: %.1500s", (r).code, \
                         (want), (r).err);                                                      \
    } while (0)

#define COMMAND_ASSERT_HAS(text, part)                                                     \
    do {                                                                                   \
        if (strstr((text), (part)) == NULL)                                                \
            dt_test_fail(__FILE__, __LINE__, "\"%s\" is not in: %.1500s", (part), (text)); \
    } while (0)

#endif
