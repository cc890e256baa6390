/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the built command in a process of its own and catches what it prints. */
#ifndef DT_TEST_CLI_COMMAND_H
#define DT_TEST_CLI_COMMAND_H

#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
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

/* A file's text. Texts stay until the process ends, that is as long as a test. */
static inline char *command_read(const char *path)
{
    typedef struct text {
        struct text *next;
        char bytes[];
    } text;
    static text *texts;
    FILE *f = fopen(path, "rb");
    size_t capacity = 1 << 16, n = 0, got = 1;
    text *t = malloc(sizeof *t + capacity);

    while (f != NULL && t != NULL && got > 0) {
        got = fread(t->bytes + n, 1, capacity - n - 1, f);
        n += got;
        if (n + 1 == capacity) t = realloc(t, sizeof *t + (capacity *= 2));
    }
    if (f != NULL) (void)fclose(f);
    if (f == NULL || t == NULL) dt_test_fail(__FILE__, __LINE__, "%s cannot be read", path);
    t->bytes[n] = '\0';
    t->next = texts;
    texts = t;
    return t->bytes;
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
    return r;
}

#define COMMAND(...)          command_run(NULL, (const char *const[]){ __VA_ARGS__, NULL })
#define COMMAND_ENV(env, ...) command_run((env), (const char *const[]){ __VA_ARGS__, NULL })

/* The run ended with `code` and said each of the texts behind it: on stdout where that is 0, on
 * stderr else. What it said is in the message if it did not. */
static inline command_result command_ends(const char *file, int line, int code, command_result r,
                                          ...)
{
    const char *said = code == 0 ? r.out : r.err, *part;
    va_list parts;

    if (r.code != code)
        dt_test_fail(file, line, "exit code %d, not %d; stderr: %.1500s", r.code, code, r.err);
    va_start(parts, r);
    while ((part = va_arg(parts, const char *)) != NULL)
        if (strstr(said, part) == NULL)
            dt_test_fail(file, line, "\"%s\" is not in: %.1500s", part, said);
    va_end(parts);
    return r;
}

/* r = COMMAND_ENDS(0, COMMAND("env"), "gpus"), where more is asked of what it said. */
#define COMMAND_ENDS(code, ...) command_ends(__FILE__, __LINE__, (code), __VA_ARGS__, NULL)

#define COMMAND_ASSERT_HAS(text, part)                                                     \
    do {                                                                                   \
        if (strstr((text), (part)) == NULL)                                                \
            dt_test_fail(__FILE__, __LINE__, "\"%s\" is not in: %.1500s", (part), (text)); \
    } while (0)

#endif
