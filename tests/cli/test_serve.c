/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor serve from its start to its end, and dtensor bench --serve against it. */
#include <dtensor/devices.h>
#include <dtensor/serve.h>
#include <signal.h>
#include <time.h>

#include "tests/cli/command.h"
#include "tests/support/worker_deaths.h"

static void needs_server(void)
{
    if (!dt_server_is_built()) dt_test_skip("this build has no HTTP server");
}

/* A server in a process of its own; its address is read from what it prints. */
typedef struct running {
    pid_t pid;
    char url[128], err[DT_TEST_PATH_BYTES + 8];
} running;

static running start(const char *env, const char *const *words)
{
    char binary[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], line[512] = "";
    char *argv[COMMAND_MAX_WORDS + 2], *environment[COMMAND_MAX_ENV];
    posix_spawn_file_actions_t actions;
    running r = { 0 };
    int ends[2];
    FILE *out;

    (void)dt_test_binary_path(binary, "bin/dtensor");
    (void)snprintf(r.err, sizeof r.err, "%s/err", dt_test_temp_dir(folder));
    command_words(words, argv);
    command_environment(env, environment);
    if (pipe(ends) != 0) dt_test_fail(__FILE__, __LINE__, "no pipe");
    (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    (void)posix_spawn_file_actions_addopen(&actions, 2, r.err, O_WRONLY | O_CREAT, 0600);
    if (posix_spawn(&r.pid, binary, &actions, NULL, argv, environment) != 0)
        dt_test_fail(__FILE__, __LINE__, "%s cannot be started", binary);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    out = fdopen(ends[0], "r");
    if (out == NULL || fgets(line, sizeof line, out) == NULL ||
        sscanf(line, "listening at %127s", r.url) != 1)
        dt_test_fail(__FILE__, __LINE__, "\"%s\"; %s", line, command_read(r.err));
    return r;
}

/* By SIGTERM; returns the exit code. */
static int end(running *r)
{
    int status = 0;

    (void)kill(r->pid, SIGTERM);
    (void)waitpid(r->pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

DT_TEST(cli_serve, a_server_is_measured_and_ends_well)
{
    running r;
    command_result c;

    needs_server();
    r = start(NULL, (const char *const[]){ "serve", "--model", "a=examples/checkpoint", "--model",
                                           "examples/checkpoint", "--port", "0", "--context", "200",
                                           NULL });
    c = COMMAND_ENDS(0,
                     COMMAND("bench", "--serve", r.url, "--clients", "1,3", "--requests", "6",
                             "--sequence", "20", "--max-new-tokens", "8"),
                     "1 client: 6 requests in ", "3 clients: 6 requests in ", "first token",
                     "between tokens");
    (void)c;
    COMMAND_ENDS(0,
                 COMMAND("bench", "--serve", r.url, "--rate", "200", "--requests", "5", "--model",
                         "checkpoint", "--sequence", "20", "--max-new-tokens", "4", "--json"),
                 "\"model\": \"checkpoint\"", "\"rate\": 200", "\"requests\": 5", "\"failed\": 0",
                 "\"ttft\": {\"mean_ms\": ");
    /* longer than the context: each request is refused, and one says why */
    COMMAND_ENDS(2, COMMAND("bench", "--serve", r.url, "--sequence", "300"), "the context 200");
    COMMAND_ENDS(2, COMMAND("bench", "--serve", r.url, "--model", "nobody"), "has no model nobody");
    DT_ASSERT_EQ_INT(end(&r), 0);
    COMMAND_ASSERT_HAS(command_read(r.err), "texts of up to 200 tokens, ");
    COMMAND_ASSERT_HAS(command_read(r.err), "\"path\":\"/v1/completions\",\"status\":200");
    COMMAND_ASSERT_HAS(command_read(r.err), "ending");
}

/* Asks one of two models. */
static void ask(const running *r, const char *model, int code, const char *says)
{
    COMMAND_ENDS(code,
                 COMMAND("bench", "--serve", r->url, "--model", model, "--requests", "2",
                         "--sequence", "20", "--max-new-tokens", "4"),
                 says);
}

DT_TEST(cli_serve, a_folder_without_a_tokenizer_is_refused_at_once)
{
    needs_server();
    COMMAND_ENDS(2, COMMAND("serve", "--model", "tests/golden/llama/uneven", "--port", "0"),
                 "tests/golden/llama/uneven: has no tokenizer.json", "a server needs one");
}

DT_TEST(cli_serve, a_worker_process_that_dies_ends_its_model_alone)
{
    pid_t workers[MOST_WORKERS];
    running r;
    int n;

    needs_server();
    r = start(NULL, (const char *const[]){ "serve", "--model", "a=examples/checkpoint", "--model",
                                           "b=examples/checkpoint", "--mesh", "tp=2", "--processes",
                                           "2", "--pool-tokens", "2000", "--port", "0", NULL });
    n = worker_pids(r.pid, workers);
    DT_ASSERT_EQ_INT(n, 4);
    ask(&r, "a", 0, "2 requests");
    ask(&r, "b", 0, "2 requests");
    (void)kill(workers[3], SIGKILL); /* of the model that was loaded last */
    ask(&r, "a", 0, "2 requests");
    ask(&r, "b", 2, "was killed by signal 9");
    DT_ASSERT_EQ_INT(end(&r), 0);
    for (int i = 0; i < n; i++) DT_ASSERT(!worker_is_alive(workers[i]));
}

DT_TEST(cli_serve, keys_come_from_a_file_or_the_environment)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8];
    running r;

    needs_server();
    dt_test_write_file(dt_test_temp_dir(folder), "keys", "# two of them\nfirst\n\nsecond\n", 28);
    (void)snprintf(path, sizeof path, "%s/keys", folder);
    r = start("DTENSOR_API_KEY=third",
              (const char *const[]){ "serve", "--model", "examples/checkpoint", "--port", "0",
                                     "--api-key-file", path, "-q", NULL });
    COMMAND_ENDS(2, COMMAND_ENV("DTENSOR_API_KEY=fourth", "bench", "--serve", r.url), "401");
    COMMAND_ENDS(0,
                 COMMAND_ENV("DTENSOR_API_KEY=second", "bench", "--serve", r.url, "--requests", "1",
                             "--max-new-tokens", "2"),
                 "1 requests");
    COMMAND_ENDS(0,
                 COMMAND_ENV("DTENSOR_API_KEY=third", "bench", "--serve", r.url, "--requests", "1",
                             "--max-new-tokens", "2"),
                 "1 requests");
    DT_ASSERT_EQ_INT(end(&r), 0);
    DT_ASSERT_EQ_STR(command_read(r.err), "");
}

DT_TEST(cli_serve, what_cannot_be_served_is_refused)
{
    static const char model[] = "examples/checkpoint";
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8];

    needs_server();
    COMMAND_ENDS(2, COMMAND("serve"), "no model; give --model DIR");
    COMMAND_ENDS(2, COMMAND("serve", "--model", "=x"), "no NAME=DIR");
    COMMAND_ENDS(2, COMMAND("serve", "--model", "/nowhere"), "--model");
    COMMAND_ENDS(2, COMMAND("serve", "--model", model, "--model", model, "--port", "0"),
                 "two models are called checkpoint");
    COMMAND_ENDS(2, COMMAND("serve", "--model", model, "--host", "0.0.0.0", "--port", "0"),
                 "there is no key");
    COMMAND_ENDS(2, COMMAND("serve", "--model", model, "--context", "513", "--port", "0"),
                 "--context 513: the context of model checkpoint is 512");
    COMMAND_ENDS(4,
                 COMMAND("serve", "--model", model, "--pool-tokens", "256", "--context", "300",
                         "--port", "0"),
                 "more --pool-tokens");
    COMMAND_ENDS(2, COMMAND("serve", "--model", model, "--api-key-file", "/nowhere"),
                 "--api-key-file: /nowhere");
    dt_test_write_file(dt_test_temp_dir(folder), "keys", "fine\nbr\0ken\n", 12);
    (void)snprintf(path, sizeof path, "%s/keys", folder);
    COMMAND_ENDS(2, COMMAND("serve", "--model", model, "--api-key-file", path), "or is no text");
    COMMAND_ENDS(2,
                 COMMAND("serve", "--model", model, "--chat-template", "/dev/zero", "--port", "0"),
                 "/dev/zero: has more than 1048576 bytes");
    COMMAND_ENDS(2,
                 COMMAND("serve", "--model", model, "--chat-template", "/nowhere", "--port", "0"),
                 "/nowhere");
    COMMAND_ENDS(2, COMMAND("bench", "--serve", "https://x"), "no address");
    COMMAND_ENDS(2, COMMAND("bench", "--serve", "http://127.0.0.1:1"), "refused");
    COMMAND_ENDS(2,
                 COMMAND("bench", "--serve", "http://127.0.0.1:1", "--clients", "1", "--rate", "2"),
                 "one of them");
}

/* --- memory ----------------------------------------------------------------------------------- */

static void link_to(const char *folder, const char *name, const char *from)
{
    char path[DT_TEST_PATH_BYTES], of[DT_TEST_PATH_BYTES];

    (void)snprintf(path, sizeof path, "%.400s/%s", folder, name);
    DT_ASSERT_EQ_INT(symlink(dt_test_source_path(of, "%s/%s", from, name), path), 0);
}

/* Tokens that the longest text may have. */
static int64_t context_with(const char *folder, const char *max_running)
{
    running r = start(NULL, (const char *const[]){ "serve", "--model", folder, "--max-running",
                                                   max_running, "--port", "0", NULL });
    const char *at;
    long long n = 0;

    DT_ASSERT_EQ_INT(end(&r), 0);
    at = strstr(command_read(r.err), "texts of up to ");
    DT_ASSERT(at != NULL && sscanf(at, "texts of up to %lld tokens", &n) == 1);
    return n;
}

/* A model of an endless context: it becomes as long as the pool has room for, beside what layers
 * carry of each text that runs, 4032 bytes, where a token has 128. */
DT_TEST(cli_serve, a_context_leaves_room_for_what_layers_carry)
{
    static const char next[] = "tests/golden/qwen3_next/base", endless[] = "1073741824";
    static const char key[] = "\"max_position_embeddings\": ";
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES], config[1 << 14];
    const char *text, *at;
    int64_t one, more;

    needs_server();
    if (dt_device_check("cuda") == DT_OK) dt_test_skip("a pool of a GPU is not of this memory");
    (void)dt_test_temp_dir(folder);
    link_to(folder, "model.safetensors", next);
    link_to(folder, "tokenizer.json", "examples/checkpoint");
    text = command_read(dt_test_source_path(path, "%s/config.json", next));
    at = strstr(text, key);
    DT_ASSERT(at != NULL);
    at += strlen(key);
    (void)snprintf(config, sizeof config, "%.*s%s%s", (int)(at - text), text, endless,
                   at + strspn(at, "0123456789"));
    dt_test_write_file(folder, "config.json", config, strlen(config));
    one = context_with(folder, "1");
    more = context_with(folder, "33");
    DT_ASSERT_EQ_INT(one - more, one == atoll(endless) ? 0 : 32 * 4032 / 128);
}
