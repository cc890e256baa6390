/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor train: what a run's folder remembers and how that is taken back, what a run that is
 * refused leaves, and the model in it: missing, of somebody else, no numbers. */
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "tests/cli/train.h"

#define BEGIN(p, ...)                                                                         \
    COMMAND("train", "-q", "--data", (p)->data, "-o", (p)->run, "--batch", "2", "--sequence", \
            "16", "--threads", "1", __VA_ARGS__)
#define RESUME(p, ...) COMMAND("train", "-q", "--resume", "-o", (p)->run, __VA_ARGS__)

static const char *in_run(const train_place *p, const char *name, char path[TRAIN_PATH_BYTES + 32])
{
    (void)snprintf(path, TRAIN_PATH_BYTES + 32, "%s/%s", p->run, name);
    return path;
}

/* --- what is remembered ----------------------------------------------------------------------- */

/* What was found out, as the folder of --config and the default mesh, is found out again. */
DT_TEST(cli_train_folder, remembers_what_was_said_and_nothing_else)
{
    char config[TRAIN_PATH_BYTES + 32], path[TRAIN_PATH_BYTES + 32], *text;
    train_place p;

    train_open(&p);
    (void)snprintf(config, sizeof config, "%s/config.json", p.model);
    (void)COMMAND_ENDS(0, BEGIN(&p, "--config", config, "--steps", "2", "--link", "1,10"));
    text = command_read(in_run(&p, "options.json", path));
    COMMAND_ASSERT_HAS(text, "\"config\"");
    DT_ASSERT(strstr(text, "\"model\"") == NULL && strstr(text, "\"mesh\"") == NULL &&
              strstr(text, "\"link\"") == NULL);
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "3", "--mesh", "tp=2"), "1 step in ");
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "4", "-m", p.model), "1 step in ");
}

DT_TEST(cli_train_folder, forgets_options_that_no_longer_hold)
{
    char other[TRAIN_PATH_BYTES], path[TRAIN_PATH_BYTES + 32], *text;
    command_result r;
    train_place p;

    train_open(&p);
    (void)snprintf(other, sizeof other, "%s/other.bin", p.folder);
    train_write_tokens(&p, "other.bin", TRAIN_VOCAB);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", p.model, "--steps", "1", "--mesh", "dp=1",
                                "--fully-shard", "dp", "--validate", other));
    (void)COMMAND_ENDS(2, RESUME(&p, "--steps", "2", "--mesh", "tp=2"),
                       "run/options.json says --fully-shard, which --forget fully-shard would "
                       "leave out (or give another): --fully-shard: --mesh tp=2 has no dim \"dp\"");
    DT_ASSERT(unlink(other) == 0);
    (void)COMMAND_ENDS(2, RESUME(&p, "--steps", "2", "--mesh", "tp=2", "--forget", "fully-shard"),
                       "says --validate, which --forget validate would leave out (or give ");
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "2", "--mesh", "tp=2", "--forget", "fully-shard",
                                 "--forget", "validate"));
    text = command_read(in_run(&p, "options.json", path));
    DT_ASSERT(strstr(text, "fully-shard") == NULL && strstr(text, "validate") == NULL);
    r = COMMAND_ENDS(0, RESUME(&p, "--steps", "3", "--mesh", "tp=2", "--forget", "fully-shard"));
    COMMAND_ASSERT_HAS(r.err, "--forget fully-shard changes nothing: ");
    (void)COMMAND_ENDS(2, RESUME(&p, "--forget", "lrr"), "unknown option --lrr; did you mean --lr");
    (void)COMMAND_ENDS(2, COMMAND("train", "--forget", "lr"), "--forget is of a run that goes on");
}

/* Whatever its time says. */
DT_TEST(cli_train_folder, has_tokens_of_the_text_as_it_is)
{
    static const char line[] = "Whether 'tis nobler in the mind to suffer\n";
    char model[DT_TEST_PATH_BYTES], all[40 * sizeof line] = "";
    train_place p;

    train_open(&p);
    (void)dt_test_source_path(model, "examples/checkpoint");
    (void)snprintf(p.data, sizeof p.data, "%s/a.txt", p.folder);
    for (int i = 0; i < 40; i++) (void)snprintf(all + strlen(all), sizeof line, "%s", line);
    for (int i = 0; i < 2; i++) {
        all[0] = (char)('W' + i);
        dt_test_write_file(p.folder, "a.txt", all, strlen(all));
        DT_ASSERT(utimensat(AT_FDCWD, p.data,
                            (struct timespec[]){ { .tv_sec = 1 }, { .tv_sec = 1 } }, 0) == 0);
        if (i == 0) (void)COMMAND_ENDS(0, BEGIN(&p, "-m", model, "--steps", "1"));
        if (i == 0) (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "2"));
    }
    (void)COMMAND_ENDS(2, RESUME(&p, "--steps", "3"), "--data is another than that");
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "3", "--new-data"));
}

/* What a run cannot be without is not forgotten, but given anew. */
DT_TEST(cli_train_folder, names_what_is_given_anew)
{
    char kept[TRAIN_PATH_BYTES];
    train_place p;

    train_open(&p);
    (void)snprintf(kept, sizeof kept, "%s/kept.bin", p.folder);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", p.model, "--steps", "1"));
    DT_ASSERT(rename(p.data, kept) == 0);
    (void)COMMAND_ENDS(
        2, RESUME(&p, "--steps", "2"),
        "says --data; --data FILE on the command line would count before it: --data");
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "2", "--data", kept));
    (void)COMMAND_ENDS(2, RESUME(&p, "--steps", "3", "--forget", "data"), "give --data FILE");
}

/* The text that they were made of is there, as it was: the folder is the run's own matter. */
DT_TEST(cli_train_folder, makes_tokens_anew_that_are_damaged)
{
    char model[DT_TEST_PATH_BYTES], command[8 * TRAIN_PATH_BYTES], text[4096], name[8];
    static const char *const damage[] = {
        "printf '\\5\\1' | dd of=data-0-*.bin bs=1 seek=100 conv=notrunc", /* another token */
        "truncate -s 100 data-0-*.bin",
        "rm data-0-*.idx",
        "rm data-0-*.json",
        "echo '{' >$(echo data-0-*.json)",
    };
    command_result r;
    train_place p;

    train_open(&p);
    (void)dt_test_source_path(model, "examples/checkpoint");
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * i % 23);
    dt_test_write_file(p.folder, "a.txt", text, sizeof text);
    (void)snprintf(p.data, sizeof p.data, "%s/a.txt", p.folder);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", model, "--steps", "1"));
    for (size_t i = 0; i < DT_COUNT(damage); i++) {
        (void)snprintf(command, sizeof command, "cd %s && %s 2>/dev/null", p.run, damage[i]);
        DT_ASSERT(system(command) == 0);
        (void)snprintf(name, sizeof name, "%zu", i + 2);
        r = COMMAND_ENDS(0, RESUME(&p, "--steps", name), "1 step in ");
        if (strchr(damage[i], '>') != NULL) COMMAND_ASSERT_HAS(r.err, "a.txt once more");
    }
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "7"), "1 step in ");
    DT_ASSERT(unlink(p.data) == 0);
    (void)COMMAND_ENDS(2, RESUME(&p, "--steps", "8"),
                       "the run has tokens that it made of this option's text: give it ");
}

/* The run has the plan, not the name of a file that may be another one by now. */
DT_TEST(cli_train_folder, keeps_what_its_plan_says)
{
    static const char *const plans[] = { "{\"model.layers.*.mlp.up_proj\": \"replicate\"}",
                                         "{\"model.layers.*.mlp.nothing\": \"replicate\"}" };
    char plan[TRAIN_PATH_BYTES], path[TRAIN_PATH_BYTES + 32];
    command_result r;
    train_place p;

    train_open(&p);
    (void)snprintf(plan, sizeof plan, "%s/styles", p.folder);
    dt_test_write_file(p.folder, "styles", plans[0], strlen(plans[0]));
    (void)COMMAND_ENDS(0,
                       BEGIN(&p, "-m", p.model, "--steps", "1", "--plan", plan, "--mesh", "tp=2"));
    r = COMMAND_ENDS(0, RESUME(&p, "--steps", "2"));
    DT_ASSERT_EQ_STR(r.err, "");
    dt_test_write_file(p.folder, "styles", plans[1], strlen(plans[1]));
    r = COMMAND_ENDS(0, RESUME(&p, "--steps", "3"));
    COMMAND_ASSERT_HAS(r.err, "styles is another than the run began with");
    (void)COMMAND_ENDS(2, RESUME(&p, "--steps", "4", "--plan", plan), "mlp.nothing");
    DT_ASSERT(unlink(plan) == 0);
    r = COMMAND_ENDS(0, RESUME(&p, "--steps", "4"));
    DT_ASSERT_EQ_STR(r.err, "");
    COMMAND_ASSERT_HAS(command_read(in_run(&p, "options.json", path)),
                       "\"model.layers.*.mlp.up_proj\": \"replicate\"");
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "5", "--forget", "plan"));
    DT_ASSERT(strstr(command_read(path), "\"plan\"") == NULL);
}

/* Of checkpoints that are not there nothing is gone on from without a word. */
DT_TEST(cli_train_folder, without_its_checkpoints)
{
    char command[8 * TRAIN_PATH_BYTES], path[TRAIN_PATH_BYTES + 32];
    command_result r;
    train_place p;

    train_open(&p);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", p.model, "--steps", "2", "--save-every", "1"));
    DT_ASSERT(unlink(in_run(&p, "latest", path)) == 0);
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "3"), "1 step in ");
    dt_test_write_file(p.run, "latest", "step-00000009\n", 14);
    (void)COMMAND_ENDS(
        2, RESUME(&p, "--steps", "4"),
        "names step-00000009, which is not there (there: step 3, step 2); without it "
        "the newest of them counts");
    (void)snprintf(command, sizeof command, "rm -r %s/step-* %s/latest", p.run, p.run);
    DT_ASSERT(system(command) == 0);
    r = COMMAND_ENDS(0, RESUME(&p, "--steps", "4"), "4 steps in ");
    COMMAND_ASSERT_HAS(r.err,
                       "holds no checkpoint: the run begins anew, and so does metrics.jsonl");
}

/* State and parameters in files, or not; also a run that goes on. */
DT_TEST(cli_train_folder, has_the_same_numbers_wherever_parameters_lie)
{
    train_place p;

    train_open(&p);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", p.model, "--steps", "3", "--zero", "3", "--mesh", "dp=2",
                                "--offload", p.folder, "--offload-parameters", p.folder));
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "4"));
    (void)snprintf(p.other, sizeof p.other, "%s", p.run);
    (void)snprintf(p.run, sizeof p.run, "%s/without", p.folder);
    (void)COMMAND_ENDS(0,
                       BEGIN(&p, "-m", p.model, "--steps", "4", "--zero", "3", "--mesh", "dp=2"));
    for (int step = 1; step <= 4; step++) {
        DT_ASSERT(train_number(p.run, step, "loss") == train_number(p.other, step, "loss"));
        DT_ASSERT(train_number(p.run, step, "grad_norm") ==
                  train_number(p.other, step, "grad_norm"));
    }
}

/* --- what is refused -------------------------------------------------------------------------- */

DT_TEST(cli_train_folder, is_not_made_of_a_run_that_is_refused)
{
    static const struct {
        const char *words[6], *says;
    } cases[] = {
        { { "--data", "@few.txt" }, "few.txt: " },
        { { "--data", "@text.txt", "--data", "@none.txt" }, "--data: " },
        { { "--data", "@text.txt", "--validate", "@few.txt" }, "--validate: " },
        { { "--data", "@text.txt", "--offload", "@none" }, "--offload: " },
        { { "--data", "@text.txt", "--offload-parameters", "@none" }, "--offload-parameters: " },
        { { "--data", "@text.txt", "--offload-parameters", "/tmp" }, "the style \"fully_shard\"" },
        { { "--data", "@text.txt", "--data", "@\xff.txt" }, "--data: its text is not UTF-8" },
        { { "--data", "@text.txt", "--plan", "@pipe" }, "is a device or pipe, not a file" },
        { { "--data", "@text.txt", "--offload", "/proc" }, "/proc: " }, /* the ranks find out */
    };
    char model[DT_TEST_PATH_BYTES], paths[6][TRAIN_PATH_BYTES], text[4096];
    train_place p;

    train_open(&p);
    (void)dt_test_source_path(model, "examples/checkpoint");
    memset(text, 'a', sizeof text);
    dt_test_write_file(p.folder, "text.txt", text, sizeof text);
    dt_test_write_file(p.folder, "few.txt", "hi", 2);
    dt_test_write_file(p.folder, "\xff.txt", text, sizeof text);
    (void)snprintf(paths[0], sizeof paths[0], "%s/pipe", p.folder);
    DT_ASSERT(mkfifo(paths[0], 0600) == 0);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const char *words[24] = { "train",   "-q", "-m",      model, "-o",         p.run,
                                  "--steps", "1",  "--batch", "2",   "--sequence", "16" };
        const bool piped = strstr(cases[i].says, "pipe") != NULL;
        pid_t writer = 0;

        for (int w = 0; w < 6 && cases[i].words[w] != NULL; w++) {
            (void)snprintf(paths[w], sizeof paths[w], "%s/%s", p.folder, cases[i].words[w] + 1);
            words[12 + w] = cases[i].words[w][0] == '@' ? paths[w] : cases[i].words[w];
        }
        if (piped && (writer = fork()) == 0) { /* a plan, as a shell writes it for <(...) */
            const int fd = open(paths[3], O_WRONLY);
            _exit(fd < 0 || write(fd, "{}", 2) != 2);
        }
        (void)COMMAND_ENDS(2, command_run(NULL, words), cases[i].says);
        if (piped) (void)waitpid(writer, NULL, 0);
        if (access(p.run, F_OK) == 0)
            dt_test_fail(__FILE__, __LINE__, "%s: a folder is left", cases[i].says);
    }
}

/* Tokens that one run would take away might be those that the other reads. */
DT_TEST(cli_train_folder, is_of_one_run_at_a_time)
{
    char model[DT_TEST_PATH_BYTES], path[TRAIN_PATH_BYTES + 32], text[4096];
    train_place p;
    int lock;

    train_open(&p);
    (void)dt_test_source_path(model, "examples/checkpoint");
    memset(text, 'a', sizeof text);
    dt_test_write_file(p.folder, "a.txt", text, sizeof text);
    (void)snprintf(p.data, sizeof p.data, "%s/a.txt", p.folder);
    DT_ASSERT(mkdir(p.run, 0700) == 0);
    lock = open(in_run(&p, ".dtensor-run", path), O_RDWR | O_CREAT, 0600);
    DT_ASSERT(lock >= 0 && flock(lock, LOCK_EX) == 0);
    (void)COMMAND_ENDS(2, BEGIN(&p, "-m", model, "--steps", "1"),
                       "dtensor: --output: ", "another run is writing into this folder");
    DT_ASSERT_EQ_INT(dt_test_count_files(p.run, ""), 0); /* but the lock */
    (void)close(lock);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", model, "--steps", "1"));
}

DT_TEST(cli_train_folder, is_of_no_model_that_could_not_be_saved)
{
    char model[DT_TEST_PATH_BYTES];
    train_place p;

    train_open(&p);
    (void)dt_test_source_path(model, "tests/golden/gemma3/multimodal");
    (void)COMMAND_ENDS(2, BEGIN(&p, "-m", model, "--steps", "1"),
                       "is only the text part of its checkpoint");
    (void)COMMAND_ENDS(2, COMMAND("train", "-q", "-m", model, "--dry-run"),
                       "is only the text part of its checkpoint");
    (void)COMMAND_ENDS(
        2, COMMAND_ENV("DTENSOR_FAULT=rank=0,op=any", "save", "-q", "-m", model, "-o", p.other),
        "is only the text part of its checkpoint");
    DT_ASSERT(access(p.run, F_OK) != 0 && access(p.other, F_OK) != 0);
}

/* What lies beside the weights goes into each export: what save would refuse is no find of the last
 * step. */
DT_TEST(cli_train_folder, is_of_no_model_whose_files_could_not_be_taken_over)
{
    char model[DT_TEST_PATH_BYTES], from[DT_TEST_PATH_BYTES], path[TRAIN_PATH_BYTES];
    static const char *const names[] = { "config.json", "model.safetensors" };
    train_place p;

    train_open(&p);
    (void)dt_test_temp_dir(model);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", model, names[i]);
        (void)dt_test_source_path(from, "tests/golden/llama/tied/%s", names[i]);
        DT_ASSERT(symlink(from, path) == 0);
    }
    (void)COMMAND_ENDS(2, BEGIN(&p, "-m", model, "--steps", "1"),
                       "--model: ", "config.json: is a symbolic link to ", "outside the folder");
    DT_ASSERT(access(p.run, F_OK) != 0);
}

/* --- the model in it -------------------------------------------------------------------------- */

DT_TEST(cli_train_folder, gets_the_model_that_is_missing_at_its_end)
{
    char path[TRAIN_PATH_BYTES + 32], config[TRAIN_PATH_BYTES + 32];
    train_place p;

    train_open(&p);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", p.model, "--steps", "1"));
    dt_test_write_file(p.run, "model-00000002", "x", 1); /* in the place of a disk that is full */
    (void)COMMAND_ENDS(1, RESUME(&p, "--steps", "2"), "model-00000002");
    DT_ASSERT(unlink(in_run(&p, "model-00000002", path)) == 0);
    for (int i = 0; i < 2; i++) { /* and once more, after somebody has removed it */
        (void)COMMAND_ENDS(0, RESUME(&p, "--mesh", i == 0 ? "dp=1" : "tp=2"),
                           "nothing to do: 2 of 2 steps are done; the model was missing");
        DT_ASSERT(access(in_run(&p, "model/config.json", config), R_OK) == 0);
        dt_test_remove_dir(in_run(&p, "model-00000002", path));
    }
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "2"));
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "2"),
                       "nothing to do: 2 of 2 steps are done; more of them: --steps");
}

/* A process that is killed while it exports leaves a file that is not whole, and its list. */
DT_TEST(cli_train_folder, gets_the_model_whose_export_was_killed)
{
    char path[TRAIN_PATH_BYTES + 32], file[TRAIN_PATH_BYTES + 96];
    train_place p;

    train_open(&p);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", p.model, "--steps", "1"));
    DT_ASSERT(mkdir(in_run(&p, "model-00000002", path), 0700) == 0);
    dt_test_write_file(path, "model.safetensors.tmp", "half", 4);
    dt_test_write_file(path, ".dtensor-save", "1 model.safetensors\n", 20);
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "2"));
    (void)snprintf(file, sizeof file, "%s/model.safetensors", path);
    DT_ASSERT(access(file, R_OK) == 0);
    (void)snprintf(file, sizeof file, "%s/model.safetensors.tmp", path);
    DT_ASSERT(access(file, F_OK) != 0);
}

/* Of files that a run which was killed had not named yet; a process that is there may write. */
DT_TEST(cli_train_folder, is_rid_of_what_a_killed_run_has_left)
{
    static const char *const left[] = { "trace.json.%ld-0.tmp", "model.%ld-1.tmp",
                                        "data-0-0123456789abcdef.bin.%ld-0.tmp" };
    char name[96], path[TRAIN_PATH_BYTES + 32];
    const pid_t gone = fork();
    train_place p;

    if (gone == 0) _exit(0);
    DT_ASSERT(gone > 0 && waitpid(gone, NULL, 0) == gone);
    train_open(&p);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", p.model, "--steps", "1"));
    for (size_t i = 0; i < DT_COUNT(left); i++) {
        (void)snprintf(name, sizeof name, left[i], (long)gone);
        dt_test_write_file(p.run, name, "half", 4);
    }
    (void)snprintf(name, sizeof name, left[0], (long)getpid());
    dt_test_write_file(p.run, name, "half", 4);
    dt_test_write_file(p.run, "notes.1-0.tmp", "mine", 4);
    dt_test_write_file(p.run, "trace.json.tmp", "mine", 4);
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "2"));
    DT_ASSERT_EQ_INT(dt_test_count_files(p.run, ".tmp"), 3);
    DT_ASSERT(access(in_run(&p, name, path), F_OK) == 0);
}

DT_TEST(cli_train_folder, writes_no_model_to_where_a_link_leads)
{
    char path[TRAIN_PATH_BYTES + 32], elsewhere[DT_TEST_PATH_BYTES];
    train_place p;

    train_open(&p);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", p.model, "--steps", "1"));
    DT_ASSERT(symlink(dt_test_temp_dir(elsewhere), in_run(&p, "model-00000002", path)) == 0);
    (void)COMMAND_ENDS(1, RESUME(&p, "--steps", "2"), "model-00000002: is a link");
    DT_ASSERT_EQ_INT(dt_test_count_files(elsewhere, ""), 0);
    DT_ASSERT(unlink(path) == 0);
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "2"), "the model was missing");
}

DT_TEST(cli_train_folder, keeps_what_is_not_of_its_model)
{
    char path[TRAIN_PATH_BYTES + 32];
    train_place p;

    train_open(&p);
    (void)COMMAND_ENDS(0, BEGIN(&p, "-m", p.model, "--steps", "1"));
    DT_ASSERT(mkdir(in_run(&p, "model-00000002", path), 0700) == 0);
    dt_test_write_file(path, "notes", "mine", 4);
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "2"));
    DT_ASSERT(access(in_run(&p, "model-00000002/notes", path), R_OK) == 0);
    DT_ASSERT(unlink(in_run(&p, "model", path)) == 0 && mkdir(path, 0700) == 0);
    (void)COMMAND_ENDS(2, RESUME(&p, "--steps", "3"), "run/model is no link");
    DT_ASSERT_EQ_INT(train_lines(p.run), 2);
}

/* A rate that is too large leaves parameters that are none, and f16 takes their gradients for such
 * that overflow. Steps have the numbers of the run. */
DT_TEST(cli_train_folder, gets_no_model_of_what_are_no_numbers)
{
    char path[TRAIN_PATH_BYTES + 32];
    command_result r;
    train_place p;

    train_open(&p);
    r = COMMAND_ENDS(1,
                     COMMAND("train", "-m", p.model, "--data", p.data, "-o", p.run, "--batch", "2",
                             "--sequence", "16", "--dtype", "f16", "--lr", "1e38", "--steps", "3"),
                     "the model is not written after step 3: its loss is no number");
    COMMAND_ASSERT_HAS(r.err, "step 1 skipped");
    COMMAND_ASSERT_HAS(r.err, "step 3 skipped");
    DT_ASSERT(access(in_run(&p, "model", path), F_OK) != 0);
    DT_ASSERT(access(in_run(&p, "model-00000003", path), F_OK) != 0);
    r = COMMAND_ENDS(1, COMMAND("train", "--resume", "-o", p.run, "--steps", "4"));
    COMMAND_ASSERT_HAS(r.err, "step 4 skipped");
    (void)snprintf(p.run, sizeof p.run, "%s", p.other);
    for (int i = 0; i < 2; i++) /* parameters are finite, what f16 makes of them is not */
        (void)COMMAND_ENDS(1,
                           i == 0 ? BEGIN(&p, "-m", p.model, "--dtype", "f16", "--lr", "1e4",
                                          "--steps", "6", "--mesh", "dp=2")
                                  : RESUME(&p, "--steps", "6"),
                           "the model is not written after step 6: its loss is no number");
    DT_ASSERT(access(in_run(&p, "model", path), F_OK) != 0);
    (void)snprintf(p.run, sizeof p.run, "%s/third", p.folder);
    (void)COMMAND_ENDS(1,
                       BEGIN(&p, "-m", p.model, "--dtype", "bf16", "--lr", "1e38", "--steps", "1",
                             "--mesh", "dp=2"),
                       "after step 1: tensor \"model.");
}
