/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor train: what a run leaves, that it goes on as if it had not stopped, what ends it. */
#include <math.h>
#include <sys/stat.h>
#include <time.h>

#include "tests/cli/train.h"

#define TRAIN(p, run, ...)                                                                         \
    COMMAND("train", "-q", "-m", (p)->model, "--data", (p)->data, "-o", (run), "--batch", "4",     \
            "--sequence", "16", "--lr", "1e-3", "--seed", "5", "--dtype", "f32", "--threads", "1", \
            __VA_ARGS__)

static void expect_same(const char *a, const char *b, int64_t from, int64_t to)
{
    static const char *const keys[] = { "loss", "grad_norm", "lr", "tokens" };

    for (int64_t s = from; s <= to; s++)
        for (size_t k = 0; k < DT_COUNT(keys); k++) {
            const double x = train_number(a, s, keys[k]), y = train_number(b, s, keys[k]);
            if (x != y)
                dt_test_fail(__FILE__, __LINE__, "step %" PRId64 ": %s %.17g in %s, %.17g in %s", s,
                             keys[k], x, a, y, b);
        }
}

DT_TEST(cli_train, leaves_metrics_checkpoints_a_model_and_what_a_page_needs)
{
    char model[TRAIN_PATH_BYTES + 16], page[TRAIN_PATH_BYTES + 16], *text;
    command_result r;
    train_place p;

    train_open(&p);
    r = COMMAND_ENDS(0, TRAIN(&p, p.run, "--steps", "8", "--mesh", "dp=2,tp=2", "--zero", "1",
                              "--validate", p.data, "--validate-every", "4", "--save-every", "4",
                              "--oversubscribe"));
    DT_ASSERT_EQ_STR(r.err, "");
    COMMAND_ASSERT_HAS(r.out, "8 steps in ");
    DT_ASSERT_EQ_INT(train_lines(p.run), 8);
    DT_ASSERT(train_number(p.run, 8, "loss") < train_number(p.run, 1, "loss"));
    DT_ASSERT(train_number(p.run, 1, "grad_norm") > 0 && train_number(p.run, 1, "seconds") > 0);
    DT_ASSERT_EQ_INT(train_number(p.run, 8, "tokens"), 8 * 4 * 16);
    DT_ASSERT_CLOSE(train_number(p.run, 8, "perplexity"),
                    exp(train_number(p.run, 8, "validation_loss")), 1e-9);
    DT_ASSERT(train_number(p.run, 4, "validation_loss") >
              train_number(p.run, 8, "validation_loss"));
    (void)snprintf(model, sizeof model, "%s/model", p.run);
    COMMAND_ENDS(0,
                 COMMAND("generate", "-q", "-m", model, "-t", "1,2,3", "-n", "3", "--ignore-eos"));
    COMMAND_ENDS(0, COMMAND("report", p.run));
    (void)snprintf(page, sizeof page, "%s/report.html", p.run);
    text = command_read(page);
    COMMAND_ASSERT_HAS(text, "Memory by kind");
    COMMAND_ASSERT_HAS(text, "reduce_scatter");
    COMMAND_ASSERT_HAS(text, "A step in time");
    COMMAND_ASSERT_HAS(text, "backward: ");
}

/* Ranks are added as microbatches are: the norm has the same bits in every step, so all parameters
 * have. The loss that is printed is a sum over ranks in f32, over microbatches in f64. */
DT_TEST(cli_train, two_ranks_are_two_microbatches_bit_by_bit)
{
    train_place p;

    train_open(&p);
    COMMAND_ENDS(0, TRAIN(&p, p.run, "--steps", "4", "--mesh", "dp=2"));
    COMMAND_ENDS(0, TRAIN(&p, p.other, "--steps", "4", "--mesh", "dp=1", "--microbatches", "2"));
    for (int64_t step = 1; step <= 4; step++) {
        DT_ASSERT(train_number(p.run, step, "grad_norm") ==
                  train_number(p.other, step, "grad_norm"));
        DT_ASSERT_CLOSE(train_number(p.run, step, "loss"), train_number(p.other, step, "loss"),
                        1e-6);
    }
}

/* The same tokens choose the same experts on two ranks as on one. */
DT_TEST(cli_train, says_how_tokens_spread_over_experts)
{
    train_place p;

    train_open(&p);
    (void)dt_test_source_path(p.model, "tests/golden/qwen3_moe/uneven");
    COMMAND_ENDS(0, TRAIN(&p, p.run, "--steps", "2", "--mesh", "dp=2", "--recompute", "full"));
    COMMAND_ENDS(0, TRAIN(&p, p.other, "--steps", "2", "--mesh", "dp=1", "--microbatches", "2"));
    for (int64_t step = 1; step <= 2; step++) {
        DT_ASSERT(train_number(p.run, step, "expert_imbalance") >= 1);
        DT_ASSERT_CLOSE(train_number(p.run, step, "expert_imbalance"),
                        train_number(p.other, step, "expert_imbalance"), 1e-12);
    }
}

/* Of the first run, stopped in the middle and gone on with; the options need not be said again. */
DT_TEST(cli_train, goes_on_as_if_it_had_not_stopped_on_another_mesh_too)
{
    char broken[TRAIN_PATH_BYTES];
    command_result r;
    train_place p;

    train_open(&p);
    (void)snprintf(broken, sizeof broken, "%s/broken", p.folder);
    COMMAND_ENDS(0, TRAIN(&p, p.run, "--steps", "6", "--mesh", "dp=2", "--zero", "2"));
    COMMAND_ENDS(0, TRAIN(&p, p.other, "--steps", "3", "--mesh", "dp=2", "--zero", "2"));
    COMMAND_ENDS(0, COMMAND("train", "-q", "--resume", "-o", p.other, "--steps", "5"));
    COMMAND_ENDS(0,
                 COMMAND("train", "-q", "--resume", "-o", p.other, "--steps", "6", "--mesh", "dp=1",
                         "--microbatches", "2", "--zero", "0"),
                 "1 step in ");
    expect_same(p.run, p.other, 1, 5);
    DT_ASSERT(train_number(p.run, 6, "grad_norm") == train_number(p.other, 6, "grad_norm"));
    DT_ASSERT_EQ_INT(train_lines(p.other), 6);
    r = TRAIN(&p, broken, "--steps", "3", "--mesh", "dp=2", "--zero",
              "2"); /* and what must differ */
    COMMAND_ENDS(0, r);
    COMMAND_ENDS(0,
                 COMMAND("train", "-q", "--resume", "-o", broken, "--steps", "6", "--lr", "2e-3"));
    DT_ASSERT(train_number(broken, 5, "loss") != train_number(p.run, 5, "loss"));
    r = COMMAND_ENDS(0, COMMAND("train", "-q", "--resume", "-o", p.run, "--mesh", "tp=2"),
                     "nothing to do: 6 of 6 steps are done");
    COMMAND_ASSERT_HAS(r.err, "--zero 2 changes nothing");
}

/* What came behind the checkpoint is not part of the run that goes on, nor is a torn line. */
DT_TEST(cli_train, cuts_off_metrics_behind_the_checkpoint)
{
    char path[TRAIN_PATH_BYTES + 16];
    train_place p;
    FILE *f;

    train_open(&p);
    COMMAND_ENDS(0, TRAIN(&p, p.run, "--steps", "2"));
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", p.run);
    f = fopen(path, "a");
    DT_ASSERT(f != NULL);
    (void)fputs("{\"step\": 3, \"loss\": 99}\n{\"step\": 4, \"lo", f);
    (void)fclose(f);
    COMMAND_ENDS(0, COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "4"));
    DT_ASSERT_EQ_INT(train_lines(p.run), 4);
    DT_ASSERT(train_number(p.run, 3, "loss") < 99);
}

/* Texts and JSON lines become tokens of the model's tokenizer, which stay in the folder. */
DT_TEST(cli_train, reads_texts_and_documents)
{
    static const char lines[] = "{\"text\": \"To be, or not to be, that is the question.\"}\n"
                                "{\"text\": \"Whether 'tis nobler in the mind to suffer\"}\n";
    char model[DT_TEST_PATH_BYTES], text[TRAIN_PATH_BYTES], json[TRAIN_PATH_BYTES];
    char all[40 * sizeof lines] = "";
    train_place p;

    train_open(&p);
    (void)dt_test_source_path(model, "examples/checkpoint");
    (void)snprintf(text, sizeof text, "%s/a.txt", p.folder);
    (void)snprintf(json, sizeof json, "%s/b.jsonl", p.folder);
    for (int i = 0; i < 40; i++) (void)snprintf(all + strlen(all), sizeof lines, "%s", lines);
    dt_test_write_file(p.folder, "a.txt", all, strlen(all));
    dt_test_write_file(p.folder, "b.jsonl", all, strlen(all));
    COMMAND_ENDS(0,
                 COMMAND("train", "-q", "-m", model, "--data", text, "--data", json, "--validate",
                         text, "-o", p.run, "--steps", "2", "--batch", "2", "--sequence", "16",
                         "--documents", "--data-weights", "0.25,0.75", "--dtype", "f32"));
    DT_ASSERT(train_number(p.run, 2, "validation_loss") > 0);
    COMMAND_ENDS(0, COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "3"));
    COMMAND_ENDS(
        2, COMMAND("train", "-q", "-m", p.model, "--data", text, "-o", p.other, "--steps", "2"),
        "a.txt is a text, and needs the model's tokenizer");
}

/* Of the same windows, with a rate of 0, the step's loss is that of the validation. */
DT_TEST(cli_train, validates_within_documents_too)
{
    double loss[2], validated[2];
    train_place p;

    for (int documents = 0; documents < 2; documents++) {
        train_open(&p);
        DT_ASSERT(truncate(p.data, (4 * 16 + 1) * sizeof(uint16_t)) == 0);
        COMMAND_ENDS(0, COMMAND("train", "-q", "-m", p.model, "--data", p.data, "-o", p.run,
                                "--steps", "1", "--batch", "4", "--sequence", "16", "--dtype",
                                "f32", "--order", "stored", "--lr", "0", "--validate", p.data,
                                "--end-token", "0", documents ? "--documents" : "--export"));
        loss[documents] = train_number(p.run, 1, "loss");
        validated[documents] = train_number(p.run, 1, "validation_loss");
        DT_ASSERT_CLOSE(validated[documents], loss[documents], 1e-5);
    }
    DT_ASSERT(fabs(validated[1] - validated[0]) > 1e-4);
}

/* Tokens that a refused start has left are of its own text: another one, older than they are, has
 * its own. */
DT_TEST(cli_train, takes_no_tokens_of_another_text)
{
    static const char line[] = "Whether 'tis nobler in the mind to suffer\n";
    char model[DT_TEST_PATH_BYTES], few[TRAIN_PATH_BYTES], many[TRAIN_PATH_BYTES];
    char all[40 * sizeof line] = "";
    train_place p;

    train_open(&p);
    (void)dt_test_source_path(model, "examples/checkpoint");
    (void)snprintf(few, sizeof few, "%s/few.txt", p.folder);
    (void)snprintf(many, sizeof many, "%s/many.txt", p.folder);
    for (int i = 0; i < 40; i++) (void)snprintf(all + strlen(all), sizeof line, "%s", line);
    dt_test_write_file(p.folder, "few.txt", "To be", 5);
    dt_test_write_file(p.folder, "many.txt", all, strlen(all));
    for (int i = 0; i < 2; i++)
        DT_ASSERT(utimensat(AT_FDCWD, i == 0 ? few : many,
                            (struct timespec[]){ { .tv_sec = 1 }, { .tv_sec = 1 } }, 0) == 0);
    COMMAND_ENDS(2, COMMAND("train", "-q", "-m", model, "--data", few, "-o", p.run, "--steps", "1",
                            "--batch", "2", "--sequence", "16"));
    COMMAND_ENDS(0, COMMAND("train", "-q", "-m", model, "--data", many, "-o", p.run, "--steps", "1",
                            "--batch", "2", "--sequence", "16"));
}

/* What is not of the run is nobody's to remove, whatever its name begins with. */
DT_TEST(cli_train, removes_old_exports_and_nothing_else)
{
    char path[TRAIN_PATH_BYTES + 40];
    train_place p;

    train_open(&p);
    COMMAND_ENDS(0, TRAIN(&p, p.run, "--steps", "1"));
    (void)snprintf(path, sizeof path, "%s/model-00000001-mine", p.run);
    DT_ASSERT(mkdir(path, 0700) == 0);
    dt_test_write_file(path, "notes", "mine", 4);
    (void)snprintf(path, sizeof path, "%s/model-00000000", p.run);
    DT_ASSERT(mkdir(p.other, 0700) == 0 && symlink(p.other, path) == 0);
    dt_test_write_file(p.other, "notes", "mine", 4);
    COMMAND_ENDS(0, COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "4", "--save-every",
                            "1", "--export", "--keep", "1"));
    (void)snprintf(path, sizeof path, "%s/model-00000001-mine/notes", p.run);
    DT_ASSERT(access(path, R_OK) == 0);
    (void)snprintf(path, sizeof path, "%s/notes", p.other);
    DT_ASSERT(access(path, R_OK) == 0);
    for (int step = 1; step <= 4; step++) {
        (void)snprintf(path, sizeof path, "%s/model-%08d/config.json", p.run, step);
        DT_ASSERT((access(path, R_OK) == 0) == (step == 4));
    }
}

static void write_mask(const train_place *p, int64_t masked)
{
    const int64_t run[] = { TRAIN_TOKENS, 1, 0, masked }; /* tokens, runs, begin, end */
    unsigned char mask[8 + sizeof run] = "DTMASK1";

    memcpy(mask + 8, run, sizeof run);
    dt_test_write_file(p->folder, "data.bin.mask", mask, sizeof mask);
}

/* Of a batch of prompts alone nothing is learned: 0 would be the loss of a model that knows all. */
DT_TEST(cli_train, a_step_without_targets_has_no_loss)
{
    char path[TRAIN_PATH_BYTES + 16];
    json_t *metric;
    train_place p;

    train_open(&p);
    write_mask(&p, TRAIN_TOKENS);
    COMMAND_ENDS(1,
                 COMMAND("train", "-q", "-m", p.model, "--data", p.data, "-o", p.run, "--steps",
                         "2", "--batch", "2", "--sequence", "16", "--validate", p.data),
                 "step 1: none of the 32 tokens of its sequences is learned",
                 "--validate: none of its tokens counts",
                 "not written after step 2: no step had a token to learn");
    metric = train_metric(p.run, 2);
    DT_ASSERT(json_is_null(json_object_get(metric, "loss")));
    DT_ASSERT_CLOSE(train_number(p.run, 2, "grad_norm"), 0, 0);
    json_decref(metric);
    (void)snprintf(path, sizeof path, "%s/model", p.run);
    DT_ASSERT(access(path, F_OK) != 0);
}

/* Steps without a target change nothing: those with one are as if the others were not there. */
DT_TEST(cli_train, steps_without_targets_are_passed_over)
{
    enum { STEPS = 12 };
    char path[TRAIN_PATH_BYTES + 32];
    int without = 0;
    train_place p;

    train_open(&p);
    write_mask(&p, TRAIN_TOKENS / 2);
    COMMAND_ENDS(0, COMMAND("train", "-q", "-m", p.model, "--data", p.data, "-o", p.run, "--steps",
                            "12", "--batch", "1", "--sequence", "16"));
    for (int64_t i = 1; i <= STEPS; i++) {
        json_t *metric = train_metric(p.run, i);
        without += json_is_null(json_object_get(metric, "loss"));
        json_decref(metric);
    }
    DT_ASSERT(without > 0 && without < STEPS);
    (void)snprintf(path, sizeof path, "%s/model/model.safetensors", p.run);
    DT_ASSERT(access(path, R_OK) == 0);
}

/* --- what ends a run -------------------------------------------------------------------------- */

/* Starts a run of many steps; its process. */
static pid_t start(const train_place *p, const char *env_of_it)
{
    char binary[DT_TEST_PATH_BYTES], out[TRAIN_PATH_BYTES], *env[COMMAND_MAX_ENV];
    char *const words[] = { "dtensor",     "train",
                            (char *)"-m",  (char *)p->model,
                            "--data",      (char *)p->data,
                            "-o",          (char *)p->run,
                            "--batch",     "2",
                            "--sequence",  "16",
                            "--steps",     "1000000",
                            "--mesh",      "dp=2",
                            "--log-every", "1000000",
                            NULL };
    posix_spawn_file_actions_t actions;
    pid_t pid = 0;

    (void)dt_test_binary_path(binary, "bin/dtensor");
    (void)snprintf(out, sizeof out, "%s/out", p->folder);
    command_environment(env_of_it, env);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, 1, out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0600);
    DT_ASSERT_EQ_INT(posix_spawn(&pid, binary, &actions, NULL, words, env), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    return pid;
}

/* Until a step is done. */
static void await_steps(const train_place *p)
{
    char path[TRAIN_PATH_BYTES + 16];

    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", p->run);
    for (int i = 0; i < 3000 && (access(path, R_OK) != 0 || train_lines(p->run) < 2); i++)
        (void)nanosleep(&(struct timespec){ .tv_nsec = 20 * 1000 * 1000 }, NULL);
    DT_ASSERT(train_lines(p->run) >= 2);
}

DT_TEST(cli_train, a_signal_saves_and_ends_it_well)
{
    static const struct {
        int number;
        const char *says;
    } signals[] = { { SIGTERM, "stopped by SIGTERM after step " },
                    { SIGINT, "stopped by SIGINT after step " },
                    { SIGHUP, "stopped by SIGHUP after step " } };

    for (size_t i = 0; i < DT_COUNT(signals); i++) {
        char out[TRAIN_PATH_BYTES], steps[24], *text;
        train_place p;
        int status = 0, n;
        pid_t pid;

        train_open(&p);
        pid = start(&p, NULL);
        await_steps(&p);
        DT_ASSERT(kill(pid, signals[i].number) == 0);
        DT_ASSERT(waitpid(pid, &status, 0) == pid);
        (void)snprintf(out, sizeof out, "%s/out", p.folder);
        text = command_read(out);
        DT_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        COMMAND_ASSERT_HAS(text, signals[i].says);
        COMMAND_ASSERT_HAS(text, "--resume");
        n = train_lines(p.run);
        (void)snprintf(steps, sizeof steps, "%d", n + 1);
        COMMAND_ENDS(0, COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", steps));
        DT_ASSERT_EQ_INT(train_lines(p.run), n + 1);
    }
}

/* A process that waits for others has nothing to save. */
/* A job that is stopped, as by Ctrl-Z or a scheduler, for longer than a rank waits for another, and
 * goes on: no rank was late. */
DT_TEST(cli_train, a_run_that_was_stopped_goes_on)
{
    train_place p;
    int status = 0, n;
    pid_t pid;

    dt_test_long();
    train_open(&p);
    pid = start(&p, "DTENSOR_TIMEOUT_MS=2000");
    await_steps(&p);
    for (int i = 0; i < 3; i++) {
        DT_ASSERT(kill(pid, SIGSTOP) == 0);
        (void)nanosleep(&(struct timespec){ .tv_sec = 3 }, NULL);
        n = train_lines(p.run);
        DT_ASSERT(kill(pid, SIGCONT) == 0);
        for (int k = 0; k < 500 && train_lines(p.run) < n + 3; k++)
            (void)nanosleep(&(struct timespec){ .tv_nsec = 20 * 1000 * 1000 }, NULL);
        DT_ASSERT(train_lines(p.run) >= n + 3);
    }
    DT_ASSERT(kill(pid, SIGTERM) == 0);
    DT_ASSERT(waitpid(pid, &status, 0) == pid);
    DT_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

DT_TEST(cli_train, a_signal_ends_it_at_once_before_there_are_ranks)
{
    const struct timespec nap = { .tv_nsec = 20 * 1000 * 1000 };
    train_place p;
    int status = 0;
    pid_t pid;

    train_open(&p);
    DT_ASSERT(setenv("RANK", "0", 1) == 0 && setenv("MASTER_PORT", p.folder, 1) == 0);
    pid = start(&p, "WORLD_SIZE=2");
    DT_ASSERT(unsetenv("RANK") == 0 && unsetenv("MASTER_PORT") == 0);
    for (int i = 0; i < 50; i++) (void)nanosleep(&nap, NULL);
    DT_ASSERT(kill(pid, SIGTERM) == 0);
    for (int i = 0; i < 500 && waitpid(pid, &status, WNOHANG) == 0; i++)
        (void)nanosleep(&nap, NULL);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGTERM) (void)kill(pid, SIGKILL);
    DT_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

/* As nohup does it. */
DT_TEST(cli_train, a_signal_that_was_ignored_at_its_start_stays_so)
{
    char out[TRAIN_PATH_BYTES];
    train_place p;
    int status = 0;
    pid_t pid;

    train_open(&p);
    (void)signal(SIGHUP, SIG_IGN);
    pid = start(&p, NULL);
    (void)signal(SIGHUP, SIG_DFL);
    await_steps(&p);
    DT_ASSERT(kill(pid, SIGHUP) == 0 && kill(pid, SIGTERM) == 0);
    DT_ASSERT(waitpid(pid, &status, 0) == pid);
    DT_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    (void)snprintf(out, sizeof out, "%s/out", p.folder);
    COMMAND_ASSERT_HAS(command_read(out), "stopped by SIGTERM after step ");
}

DT_TEST(cli_train, what_is_no_number_stops_all_before_the_step)
{
    command_result r;
    train_place p;

    train_open(&p);
    r = TRAIN(&p, p.run, "--steps", "9", "--mesh", "dp=2", "--optimizer", "sgd", "--clip", "0",
              "--schedule", "linear", "--warmup", "1", "--lr", "1e38");
    COMMAND_ENDS(2, r); /* given twice */
    COMMAND_ENDS(1,
                 COMMAND("train", "-q", "-m", p.model, "--data", p.data, "-o", p.run, "--batch",
                         "4", "--sequence", "16", "--lr", "1e38", "--dtype", "f32", "--steps", "9",
                         "--mesh", "dp=2", "--optimizer", "sgd", "--clip", "0"),
                 "the step before had a norm of ",
                 "a learning rate of 1e+38; too large a rate is the usual cause (--lr, --warmup): "
                 "rank 0: the gradient of ",
                 " is not finite", "at step 2; nothing was written");
    DT_ASSERT_EQ_INT(train_lines(p.run), 1);
}
