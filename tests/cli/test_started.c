/* SPDX-License-Identifier: Apache-2.0
 *
 * However the command is started: without standard descriptors, with some that do not block, as one
 * of several processes that were given something else to do. */
#define _GNU_SOURCE /* pipe2 */
#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "tests/cli/command.h"

#define MODEL "examples/checkpoint"

enum { MAX_OUTPUT = 1 << 24, LATE_US = 300 * 1000 };

/* A process that reads nothing and writes to `out` and `err`; -1: that descriptor is closed. Of its
 * variables CD is the folder that it runs in. */
static pid_t start(const char *const *words, const char *const *variables, bool has_input, int out,
                   int err)
{
    char binary[DT_TEST_PATH_BYTES], *argv[COMMAND_MAX_WORDS + 2];
    pid_t pid;

    (void)dt_test_binary_path(binary, "bin/dtensor");
    command_words(words, argv);
    pid = fork();
    DT_ASSERT(pid >= 0);
    if (pid > 0) return pid;
    for (int i = 0; variables != NULL && variables[i] != NULL; i++) {
        if (strncmp(variables[i], "CD=", 3) == 0 && chdir(variables[i] + 3) != 0) _exit(127);
        (void)putenv((char *)(uintptr_t)variables[i]);
    }
    (void)close(0);
    if (has_input) (void)open("/dev/null", O_RDONLY);
    if (out >= 0) (void)dup2(out, 1);
    if (err >= 0) (void)dup2(err, 2);
    if (out < 0) (void)close(1);
    if (err < 0) (void)close(2);
    (void)execv(binary, argv);
    _exit(127);
}

static int code_of(pid_t pid)
{
    int status = 0;

    (void)waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int open_file(char path[DT_TEST_PATH_BYTES], const char *folder, const char *name)
{
    int file;

    (void)snprintf(path, DT_TEST_PATH_BYTES, "%.900s/%s", folder, name);
    file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    DT_ASSERT(file > 2);
    return file;
}

/* --- descriptors ------------------------------------------------------------------------------ */

static const char *const generate[] = { "generate", "-q", "-m",     MODEL,  "-p", "ROMEO:",
                                        "-n",       "8",  "--mesh", "tp=2", NULL };

DT_TEST(started, what_is_printed_goes_nowhere_else_when_descriptors_are_closed)
{
    char folder[DT_TEST_PATH_BYTES], out[DT_TEST_PATH_BYTES], err[DT_TEST_PATH_BYTES];
    command_result whole =
        COMMAND("generate", "-q", "-m", MODEL, "-p", "ROMEO:", "-n", "8", "--mesh", "tp=2");
    static const char *const reads[] = { "generate", "-m", MODEL, "--prompt-file", "-", NULL };
    int to_out, to_err;
    char *text;

    to_out = open_file(out, dt_test_temp_dir(folder), "out");
    to_err = open_file(err, folder, "err");
    for (int closed = 0; closed < 8; closed++) { /* bit i: descriptor i */
        DT_ASSERT_EQ_INT(ftruncate(to_out, 0) | ftruncate(to_err, 0), 0);
        (void)lseek(to_out, 0, SEEK_SET);
        (void)lseek(to_err, 0, SEEK_SET);
        DT_ASSERT_EQ_INT(code_of(start(generate, NULL, !(closed & 1), closed & 2 ? -1 : to_out,
                                       closed & 4 ? -1 : to_err)),
                         closed & 2 ? 1 : 0);
        text = command_read(out);
        DT_ASSERT_EQ_STR(text, closed & 2 ? "" : whole.out);
        text = command_read(err);
        if ((closed & 6) == 2) COMMAND_ASSERT_HAS(text, "standard output: Bad file descriptor");
    }
    DT_ASSERT_EQ_INT(code_of(start(reads, NULL, false, to_out, to_err)), 2);
    text = command_read(err);
    COMMAND_ASSERT_HAS(text, "Bad file descriptor");
    (void)close(to_out);
    (void)close(to_err);
}

/* All that comes, by somebody who is slow to begin. */
static char *read_slowly(int from)
{
    char *text = malloc(MAX_OUTPUT);
    size_t n = 0;
    ssize_t got = 1;

    DT_ASSERT(text != NULL);
    (void)usleep(LATE_US);
    while (got > 0 && n < MAX_OUTPUT - 1) {
        got = read(from, text + n, MAX_OUTPUT - 1 - n);
        n += got > 0 ? (size_t)got : 0;
    }
    text[n] = '\0';
    return text;
}

DT_TEST(started, output_that_does_not_block_is_whole)
{
    static const char *const words[] = {
        "logits", "-q",       "-m",
        MODEL,    "--tokens", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20",
        "--json", NULL
    };
    command_result whole = COMMAND("logits", "-q", "-m", MODEL, "--tokens",
                                   "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20", "--json");

    DT_ASSERT(strlen(whole.out) > 100000);
    for (int kind = 0; kind < 2; kind++) {
        int ends[2];
        pid_t pid;
        char *text;
        DT_ASSERT_EQ_INT(kind == 0 ? pipe2(ends, O_CLOEXEC)
                                   : socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends),
                         0);
        (void)fcntl(ends[1], F_SETFL, fcntl(ends[1], F_GETFL) | O_NONBLOCK);
        pid = start(words, NULL, true, ends[1], 2);
        (void)close(ends[1]);
        text = read_slowly(ends[0]);
        DT_ASSERT_EQ_INT(code_of(pid), 0);
        DT_ASSERT_EQ_STR(text, whole.out);
        free(text);
        (void)close(ends[0]);
    }
}

/* A reader that takes nothing, at the other end of a small pipe or a socket, that blocks or does
 * not. */
DT_TEST(started, a_reader_that_stops_ends_the_run)
{
    static const char *const commands[][10] = {
        { "logits", "-q", "-m", MODEL, "-t", "1,2,3,4,5,6,7,8,9", "--json", "--mesh", "tp=2" },
        { "generate", "-q", "-m", MODEL, "-p", "ROMEO:", "-n", "20" },
        { "plan", "-m", MODEL, "--mesh", "tp=2", "--json" },
    };
    static const char *const variables[] = { "DTENSOR_TIMEOUT_MS=1000", NULL };
    char folder[DT_TEST_PATH_BYTES], err[DT_TEST_PATH_BYTES], *said;
    const int to_err = open_file(err, dt_test_temp_dir(folder), "err");

    for (int i = 0; i < 4 * (int)DT_COUNT(commands); i++) {
        const bool socket = i & 1, blocks = i & 2;
        const char *full = calloc(1, MAX_OUTPUT);
        int ends[2], flags;
        pid_t pid;
        DT_ASSERT(full != NULL);
        DT_ASSERT_EQ_INT(socket ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)
                                : pipe2(ends, O_CLOEXEC),
                         0);
        flags = fcntl(ends[1], F_GETFL);
        if (!socket) (void)fcntl(ends[1], F_SETPIPE_SZ, 4096);
        (void)fcntl(ends[1], F_SETFL, flags | O_NONBLOCK);
        while (write(ends[1], full, MAX_OUTPUT) > 0) {
        } /* nothing fits from here on */
        (void)fcntl(ends[1], F_SETFL, blocks ? flags : flags | O_NONBLOCK);
        DT_ASSERT_EQ_INT(ftruncate(to_err, 0), 0);
        (void)lseek(to_err, 0, SEEK_SET);
        pid = start(commands[i / 4], variables, true, ends[1], to_err);
        (void)close(ends[1]);
        DT_ASSERT_EQ_INT(code_of(pid), 1);
        said = command_read(err);
        COMMAND_ASSERT_HAS(said, "standard output: its reader took nothing");
        free((void *)(uintptr_t)full);
        (void)close(ends[0]);
    }
    (void)close(to_err);
}

/* --- processes -------------------------------------------------------------------------------- */

/* What makes a process number `rank` of two of a job of its own. */
typedef struct seat {
    char rank[32], port[64], folder[DT_TEST_PATH_BYTES + 16];
    const char *variables[6];
} seat;

static void take_seat(seat *s, int rank, int job, const char *folder)
{
    (void)snprintf(s->rank, sizeof s->rank, "RANK=%d", rank);
    (void)snprintf(s->port, sizeof s->port, "MASTER_PORT=cli%ld.%d", (long)getpid(), job);
    (void)snprintf(s->folder, sizeof s->folder, "CD=%s", folder);
    s->variables[0] = s->rank;
    s->variables[1] = s->port;
    s->variables[2] = "WORLD_SIZE=2";
    s->variables[3] = s->folder;
    s->variables[4] = s->variables[5] = NULL;
}

/* Where the first descriptor that is free is a socket to another process, or memory. */
DT_TEST(started, processes_do_not_print_into_each_other)
{
    for (int closed = 1; closed < 8; closed++) {
        char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES];
        const int to = open_file(path, dt_test_temp_dir(folder), "out");
        pid_t pids[2];
        for (int rank = 0; rank < 2; rank++) {
            seat s;
            take_seat(&s, rank, closed, ".");
            pids[rank] = start(generate, s.variables, !(closed & 1), closed & 2 ? -1 : to,
                               closed & 4 ? -1 : to);
        }
        DT_ASSERT_EQ_INT(code_of(pids[0]), closed & 2 ? 1 : 0);
        (void)code_of(pids[1]);
        (void)close(to);
    }
}

/* Two processes of one job, in folders of their own, which say in *said what they have to say.
 * Returns the code of both. */
static int two(const char *const *first, const char *const *second, const char *folder, char **said)
{
    static int job = 100;
    char out[DT_TEST_PATH_BYTES], at[DT_TEST_PATH_BYTES + 8];
    const int to = open_file(out, folder, "out");
    pid_t pids[2];
    int code;

    job++;
    for (int rank = 0; rank < 2; rank++) {
        seat s;
        (void)snprintf(at, sizeof at, "%s/%d", folder, rank);
        take_seat(&s, rank, job, at);
        pids[rank] = start(rank == 0 ? first : second, s.variables, true, to, to);
    }
    code = code_of(pids[0]);
    DT_ASSERT_EQ_INT(code_of(pids[1]), code);
    *said = command_read(out);
    (void)close(to);
    return code;
}

#define WORDS(...) ((const char *const[]){ __VA_ARGS__, NULL })

DT_TEST(started, processes_that_were_asked_different_things_are_refused)
{
    char folder[DT_TEST_PATH_BYTES], model[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8];
    const char *const *same, *const *a, *const *b;
    char *said;

    (void)dt_test_source_path(model, MODEL);
    (void)dt_test_temp_dir(folder);
    for (int rank = 0; rank < 2; rank++) {
        (void)snprintf(path, sizeof path, "%s/%d", folder, rank);
        DT_ASSERT_EQ_INT(mkdir(path, 0700), 0);
        dt_test_write_file(path, "prompt", rank == 0 ? "ROMEO:" : "JULIET", 6);
        dt_test_write_file(path, "plan", rank == 0 ? "{}" : "{\"lm_head\": \"replicate\"}",
                           rank == 0 ? 2 : 24);
    }
    a = WORDS("generate", "-m", model, "-p", "ROMEO:", "-n", "4");
    b = WORDS("generate", "-v", "-m", model, "-n", "4", "-p", "ROMEO:");
    DT_ASSERT_EQ_INT(two(a, b, folder, &said), 0);
    b = WORDS("generate", "-m", model, "-p", "JULIET:", "-n", "4");
    DT_ASSERT_EQ_INT(two(a, b, folder, &said), 2);
    COMMAND_ASSERT_HAS(said,
                       "rank 0 was asked for prompt \"ROMEO:\", rank 1 for prompt \"JULIET:\"");
    a = WORDS("logits", "-m", model, "-t", "1,2");
    b = WORDS("logits", "-m", model, "-t", "1,2", "--threads", "3");
    DT_ASSERT_EQ_INT(two(a, b, folder, &said), 2);
    COMMAND_ASSERT_HAS(said, "rank 1 was asked for threads \"3\", rank 0 for none");
    b = WORDS("generate", "-m", model, "-t", "1,2");
    DT_ASSERT_EQ_INT(two(a, b, folder, &said), 2);
    COMMAND_ASSERT_HAS(said, "rank 0 was asked for the command \"logits\", rank 1 for the command");
    same = WORDS("generate", "-m", model, "-f", "prompt", "-n", "4"); /* each has its own file */
    DT_ASSERT_EQ_INT(two(same, same, folder, &said), 2);
    COMMAND_ASSERT_HAS(said, "rank 0 was asked for tokens that hash to \"");
    same = WORDS("generate", "-m", model, "-t", "1", "-n", "4", "--plan", "./plan");
    DT_ASSERT_EQ_INT(two(same, same, folder, &said), 2);
    COMMAND_ASSERT_HAS(said, "rank 0 was asked for rules that hash to \"");
}

/* A folder whose files are links to the model's, the tokenizer's if `whole`. */
static void link_model(const char *folder, bool whole)
{
    static const char *const names[] = { "config.json", "model.safetensors",
                                         "generation_config.json", "tokenizer.json",
                                         "tokenizer_config.json" };
    char from[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 32];

    for (int i = 0; i < (whole ? 5 : 3); i++) {
        (void)snprintf(to, sizeof to, "%s/%s", folder, names[i]);
        DT_ASSERT_EQ_INT(symlink(dt_test_source_path(from, MODEL "/%s", names[i]), to), 0);
    }
}

DT_TEST(started, processes_with_other_settings_of_a_text_are_refused)
{
    static const struct {
        const char *command, *mine[2], *other[2], *says;
    } cases[] = {
        { "generate",
          { "--seed", "1" },
          { "--seed", "2" },
          "rank 0 was asked for seed \"1\", rank 1 for seed \"2\"" },
        { "generate",
          { "--eos-ids", "5" },
          { NULL },
          "rank 0 was asked for eos-ids \"5\", rank 1 for none" },
        { "generate",
          { NULL },
          { "--ignore-eos" },
          "rank 1 was asked for ignore-eos, rank 0 for none" },
        { "generate", { "--sample" }, { NULL }, "rank 0 was asked for sample, rank 1 for none" },
        { "chat",
          { "--top-p", "0.5" },
          { "--top-p", "0.6" },
          "rank 0 was asked for top-p \"0.5\", rank 1 for top-p \"0.6\"" },
        { "chat", { "--greedy" }, { NULL }, "rank 0 was asked for greedy, rank 1 for none" },
    };
    static const char speaks[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    char folder[DT_TEST_PATH_BYTES], model[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8];

    (void)dt_test_temp_dir(folder);
    link_model(dt_test_temp_dir(model), true);
    dt_test_write_file(model, "chat_template.jinja", speaks, sizeof speaks - 1);
    for (int rank = 0; rank < 2; rank++) {
        (void)snprintf(path, sizeof path, "%s/%d", folder, rank);
        DT_ASSERT_EQ_INT(mkdir(path, 0700), 0);
    }
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const bool chat = strcmp(cases[i].command, "chat") == 0;
        const char *prompt = chat ? "--system" : "--prompt", *const *m = cases[i].mine;
        const char *const *o = cases[i].other;
        char *said;
        DT_ASSERT_EQ_INT(two(WORDS(cases[i].command, "-q", "-m", model, "-n", "4", prompt, "x",
                                   m[0], m[0] != NULL ? m[1] : NULL),
                             WORDS(cases[i].command, "-q", "-m", model, "-n", "4", prompt, "x",
                                   o[0], o[0] != NULL ? o[1] : NULL),
                             folder, &said),
                         2);
        COMMAND_ASSERT_HAS(said, cases[i].says);
    }
}

/* Before processes are joined each can only speak of itself; the first one is not waited for. */
DT_TEST(started, every_process_says_why_it_failed_before_the_others_joined)
{
    static const struct {
        const char *const words[6];
        const char *says;
    } cases[] = {
        { { "generate", "--sed", "1" }, "dtensor: process 1: generate: unknown option --sed" },
        { { "generate", "-m", "/nowhere", "-p", "x" }, "dtensor: process 1: --model" },
        { { "generate", "-m", ".", "-p", "x" }, "dtensor: process 1: ." },
    };
    char folder[DT_TEST_PATH_BYTES], out[DT_TEST_PATH_BYTES];
    const int to = open_file(out, dt_test_temp_dir(folder), "out");

    link_model(folder, false);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        char *said;
        seat s;
        take_seat(&s, 1, 300 + (int)i, folder);
        DT_ASSERT_EQ_INT(ftruncate(to, 0), 0);
        (void)lseek(to, 0, SEEK_SET);
        DT_ASSERT_EQ_INT(code_of(start(cases[i].words, s.variables, true, to, to)), 2);
        said = command_read(out);
        COMMAND_ASSERT_HAS(said, cases[i].says);
    }
    (void)close(to);
}

/* With the modules of the command's own installation, which nobody names. */
DT_TEST(started, a_process_that_ends_is_missed_at_once_by_one_that_waits)
{
    char folder[DT_TEST_PATH_BYTES], out[DT_TEST_PATH_BYTES];
    const int to = open_file(out, dt_test_temp_dir(folder), "out");
    const char *const help[] = { "generate", "--help", NULL };
    pid_t waits;
    char *said;
    seat s[2];

    for (int rank = 0; rank < 2; rank++) {
        take_seat(&s[rank], rank, 400, ".");
        s[rank].variables[4] = "DTENSOR_MODULES=";
    }
    waits = start(generate, s[0].variables, true, to, to);
    (void)usleep(LATE_US);
    DT_ASSERT_EQ_INT(code_of(start(help, s[1].variables, true, to, to)), 0);
    DT_ASSERT_EQ_INT(code_of(waits), 5);
    said = command_read(out);
    COMMAND_ASSERT_HAS(said, "process 1 of 2 has ended while processes were joining");
    (void)close(to);
}

/* --- modules ---------------------------------------------------------------------------------- */

static void copy_command(const char *to)
{
    char from[DT_TEST_PATH_BYTES];
    const int in = open(dt_test_binary_path(from, "bin/dtensor"), O_RDONLY | O_CLOEXEC);
    const int out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
    struct stat info;

    DT_ASSERT(in >= 0 && out >= 0 && fstat(in, &info) == 0);
    while (lseek(in, 0, SEEK_CUR) < info.st_size)
        DT_ASSERT(sendfile(out, in, NULL, (size_t)info.st_size) > 0);
    (void)close(in);
    (void)close(out);
}

/* What the command in root/bin says of its modules. */
static char *env_of(const char *root)
{
    char program[2 * DT_TEST_PATH_BYTES], out[DT_TEST_PATH_BYTES];
    const int to = open_file(out, root, "out");
    const pid_t pid = fork();

    if (pid == 0) {
        (void)unsetenv("DTENSOR_MODULES");
        (void)snprintf(program, sizeof program, "%s/bin/dtensor", root);
        (void)dup2(to, 1);
        (void)execl(program, "dtensor", "env", (char *)NULL);
        _exit(127);
    }
    DT_ASSERT_EQ_INT(code_of(pid), 0);
    (void)close(to);
    return command_read(out);
}

/* Also one that was moved; but nothing that anybody may have put beside it. */
DT_TEST(started, the_command_finds_the_modules_of_its_own_installation)
{
    static const char *const folders[] = { "bin", "lib", "lib/dtensor" };
    char root[DT_TEST_PATH_BYTES], path[2 * DT_TEST_PATH_BYTES];
    char *said;

    (void)dt_test_temp_dir(root);
    for (size_t i = 0; i < DT_COUNT(folders); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        DT_ASSERT_EQ_INT(mkdir(path, 0700), 0);
    }
    dt_test_write_file(path, "dtensor_sockets.so", "no module", 9);
    (void)snprintf(path, sizeof path, "%s/bin/dtensor", root);
    copy_command(path);
    said = env_of(root);
    COMMAND_ASSERT_HAS(said, "sockets  cannot be opened");
    DT_ASSERT(strstr(said, "DTENSOR_MODULES=") == NULL); /* the user has set none */
    (void)snprintf(path, sizeof path, "%s/lib/dtensor", root);
    DT_ASSERT_EQ_INT(chmod(path, 0777), 0);
    said = env_of(root);
    COMMAND_ASSERT_HAS(said, "sockets  not found");
}
