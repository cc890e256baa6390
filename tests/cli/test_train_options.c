/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor train: options from a file, what a dry run says, and mistakes, each named before anything
 * is made. */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "tests/cli/train.h"

DT_TEST(cli_train_options, a_dry_run_says_what_each_rank_holds_and_makes_nothing)
{
    json_t *v, *rank;
    command_result r;
    train_place p;

    train_open(&p);
    r = COMMAND_ENDS(0, COMMAND("train", "-m", p.model, "--dry-run", "--mesh", "dp=2", "--zero",
                                "1", "--batch", "4", "--sequence", "16", "-o", p.run, "--json",
                                "--dtype", "f32"));
    v = json_loads(r.out, 0, NULL);
    rank = json_array_get(json_object_get(v, "ranks"), 1);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(v, "n_ranks")), 2);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(rank, "state_bytes")),
                     json_integer_value(json_object_get(rank, "weight_bytes"))); /* 2 halves */
    DT_ASSERT(json_number_value(json_object_get(rank, "flops")) > 1e6);
    DT_ASSERT(json_array_size(json_object_get(rank, "traffic")) > 0);
    DT_ASSERT(access(p.run, F_OK) != 0);
    json_decref(v);
    COMMAND_ENDS(0, COMMAND("train", "-m", p.model, "--dry-run", "--mesh", "dp=2", "--zero", "3"),
                 "over dp: all_gather x");
    COMMAND_ENDS(0,
                 COMMAND("plan", "-m", p.model, "--train", "--mesh", "dp=2", "--optimizer", "adamw",
                         "--zero", "1"),
                 "  update ");
}

DT_TEST(cli_train_options, cut_parts_that_travel_for_each_microbatch_are_warned_of)
{
    command_result r;
    train_place p;

    train_open(&p);
    r = COMMAND_ENDS(0, COMMAND("train", "-m", p.model, "--dry-run", "--mesh", "pp=2,dp=2",
                                "--zero", "2", "--batch", "8", "--microbatches", "4"));
    COMMAND_ASSERT_HAS(r.err, "--zero 2 in a pipeline: a rank reduces the gradients");
    COMMAND_ASSERT_HAS(r.err, "after each of 4 microbatches");
    r = COMMAND_ENDS(0, COMMAND("train", "-m", p.model, "--dry-run", "--mesh", "pp=2,dp=2",
                                "--zero", "3", "--batch", "8", "--microbatches", "4"));
    COMMAND_ASSERT_HAS(r.err, "--zero 3 in a pipeline: a rank gathers the parameters");
    r = COMMAND_ENDS(0, COMMAND("train", "-m", p.model, "--dry-run", "--mesh", "pp=2,dp=2",
                                "--zero", "1", "--batch", "8", "--microbatches", "4"));
    DT_ASSERT(strstr(r.err, "in a pipeline") == NULL);
}

static void put_options(const train_place *p, const char *text)
{
    dt_test_write_file(p->folder, "options.json", text, strlen(text));
}

DT_TEST(cli_train_options, come_from_a_file_behind_the_command_line)
{
    char path[TRAIN_PATH_BYTES], text[4 * TRAIN_PATH_BYTES];
    command_result r;
    train_place p;

    train_open(&p);
    (void)snprintf(path, sizeof path, "%s/options.json", p.folder);
    (void)snprintf(text, sizeof text,
                   "{\"model\": \"%s\", \"data\": [\"%s\"], \"steps\": 9, \"batch\": 2, "
                   "\"sequence\": 16, \"lr\": 0.001, \"weight_decay\": 0.2, \"betas\": [0.8, 0.9], "
                   "\"resume\": false, \"no-masters\": true, \"validate\": null, \"quiet\": true}",
                   p.model, p.data);
    put_options(&p, text);
    r = COMMAND_ENDS(0, COMMAND("train", "--options", path, "-o", p.run, "--steps", "2"));
    DT_ASSERT_EQ_STR(r.err, ""); /* it is quiet */
    DT_ASSERT_EQ_INT(train_lines(p.run), 2);
    DT_ASSERT_CLOSE(train_number(p.run, 2, "lr"), 0.001, 1e-15);
    (void)snprintf(path, sizeof path, "%s/run/options.json", p.folder);
    {
        json_t *kept = json_load_file(path, 0, NULL);
        DT_ASSERT_EQ_STR(json_string_value(json_object_get(kept, "betas")), "0.8,0.9");
        DT_ASSERT_EQ_INT(json_integer_value(json_object_get(kept, "steps")), 2);
        DT_ASSERT(json_is_true(json_object_get(kept, "no-masters")));
        json_decref(kept);
    }
}

DT_TEST(cli_train_options, mistakes_in_a_file_name_it)
{
    static const char *const wrong[][2] = {
        { "{", "options.json: line 1: " },
        { "[]", "options.json: is no JSON object" },
        { "{\"stepps\": 1}",
          "options.json: train: unknown option --stepps; did you mean --steps?" },
        { "{\"steps\": \"many\"}", "options.json: --steps: \"many\" is not a number" },
        { "{\"steps\": 0}", "options.json: --steps: \"0\" is not a number from 1" },
        { "{\"steps\": {}}", "options.json: \"steps\": is neither a text nor a number" },
        { "{\"steps\": [1]}", "options.json: \"steps\": is an array, and --steps has one value" },
        { "{\"lr\": [0.1]}", "options.json: \"lr\": is an array, and --lr has one value" },
        { "{\"nesterov\": 1}", "options.json: \"nesterov\": is neither true nor false" },
        { "{\"steps\": 1, \"steps\": 2}", "options.json: line 1: duplicate object key" },
        { "{\"top_k\": 1}", "unknown option --top-k" },
        { "{\"weights\": \"int4\"}", "options.json: train: there is no --weights: weights of 8" },
        { "{\"options\": \"more.json\"}", "\"options\": stands on a command line alone" },
        { "{\"--lr\": 1}", "\"--lr\": an option stands here without its dashes" },
        { "{\"log-every\": 1, \"log_every\": 2}",
          "\"log_every\": is \"log-every\", which stands here too" },
        { "{\"help\": true}", "\"help\": stands on a command line alone" },
        { "{\"forget\": [\"lrr\"]}", "unknown option --lrr; did you mean --lr" },
        { "{\"forget\": [\"lr\"]}", "--forget is of a run that goes on" },
    };
    char path[TRAIN_PATH_BYTES];
    train_place p;

    train_open(&p);
    (void)snprintf(path, sizeof path, "%s/options.json", p.folder);
    for (size_t i = 0; i < DT_COUNT(wrong); i++) {
        put_options(&p, wrong[i][0]);
        COMMAND_ENDS(2, COMMAND("train", "--options", path), wrong[i][1]);
    }
    COMMAND_ENDS(2, COMMAND("train", "--options", p.folder), "--options: ", ": is a folder, not a");
    COMMAND_ENDS(2, COMMAND("train", "--options", p.run), "--options: ", "run: No such file");
}

/* --- bad input -------------------------------------------------------------------------------- */

typedef struct mistake {
    const char *words[8]; /* behind those that are right; "@..." stands for a path of the test */
    const char *says;
} mistake;

static const mistake mistakes[] = {
    { { "--steps", "0" }, "--steps: \"0\" is not a number from 1" },
    { { "--steps", "-3" }, "--steps: \"-3\" is not a number" },
    { { "--lr", "fast" }, "--lr: \"fast\" is not a number" },
    { { "--lr", "nan" }, "--lr: \"nan\" is not a number" },
    { { "--lr", "inf" }, "--lr: \"inf\" is not a number" },
    { { "--lr", "-1" }, "--lr -1: must be at least 0" },
    { { "--lr", "1e999" }, "--lr: \"1e999\" is not a number" },
    { { "--batch", "0" }, "--batch: \"0\" is not a number" },
    { { "--batch", "3", "--mesh", "dp=2" },
      "--batch 3 cannot be divided by 1 microbatch of 2 ranks" },
    { { "--batch", "4", "--microbatches", "3" },
      "cannot be divided by 3 microbatches of 1 rank each" },
    { { "--batch", "6", "--microbatches", "2", "--mesh", "dp=2" }, "take a multiple of 4" },
    { { "--sequence", "65" }, "--sequence 65 exceeds the model's context of 64" },
    { { "--sequence", "0" }, "--sequence: \"0\" is not a number" },
    { { "--optimizer", "adam" }, "--optimizer: \"adam\" is unknown; choose adamw or sgd" },
    { { "--lr-schedule", "steps" },
      "--lr-schedule: \"steps\" is unknown; choose constant, linear" },
    { { "--schedule", "1f1b" }, "--schedule is of a pipeline, and --mesh dp=1 has no dim \"pp\"" },
    { { "--schedule", "2f1b", "--mesh", "pp=2" },
      "--schedule: no schedule of a pipeline is called \"2f1b\"" },
    { { "--stages", "1,x", "--mesh", "pp=2" }, "stages \"1,x\"" },
    { { "--stages", "1", "--mesh", "pp=2" }, "stages \"1\"" },
    { { "--stages-per-rank", "2" }, "--stages-per-rank is of a pipeline" },
    { { "--order", "random" }, "--order: \"random\" is unknown" },
    { { "--recompute", "some" }, "--recompute: \"some\" is unknown" },
    { { "--zero", "4" }, "--zero: \"4\" is not a number from 0 to 3" },
    { { "--zero", "3", "--mesh", "tp=2" }, "--zero 3 cuts parameters over dp or dp_shard" },
    { { "--betas", "0.9" }, "--betas: \"0.9\" is not 2 numbers" },
    { { "--betas", "0.9,1" }, "--betas 0.9,1: both must be at least 0 and below 1" },
    { { "--betas", "0.9,0.9,0.9" }, "is not 2 numbers" },
    { { "--betas", "0.9,0.9", "--optimizer", "sgd" }, "--betas is of adamw" },
    { { "--eps", "-1" }, "--eps -1: must be at least 0" },
    { { "--weight-decay", "x" }, "--weight-decay: \"x\" is not a number" },
    { { "--momentum", "0.9" }, "--momentum is of sgd" },
    { { "--momentum", "1", "--optimizer", "sgd" }, "--momentum 1: must be at least 0 and below 1" },
    { { "--nesterov", "--optimizer", "sgd" }, "--nesterov needs a momentum above 0" },
    { { "--clip", "-1" }, "--clip -1: must be at least 0" },
    { { "--min-lr", "1" }, "a constant rate has no end" },
    { { "--min-lr", "1", "--schedule", "cosine" }, "--min-lr 1 is above --lr" },
    { { "--warmup", "9" }, "--warmup 9 is more than --steps 4" },
    { { "--seed", "-1" }, "--seed: \"-1\" is not a number" },
    { { "--seed", "99999999999999999999" }, "--seed: \"99999999999999999999\" is not a number" },
    { { "--validate-every", "2" }, "--validate-every without a file" },
    { { "--validate", "@none" }, "--validate: " },
    { { "--data-weights", "0.5,0.5" }, "--data-weights: \"0.5,0.5\" is not 1 number" },
    { { "--data-weights", "0" }, "weights are above 0" },
    { { "--config", "@config" }, "both say what is trained" },
    { { "--mesh", "ep=2" }, "--mesh: " },
    { { "--mesh", "dp=2", "--fully-shard", "dp,dp" }, "--fully-shard: \"dp\" is named twice" },
    { { "--mesh", "dp=2", "--link", "dp=1,10;tp=1,10" }, "--link: --mesh dp=2 has no dim \"tp\"" },
    { { "--mesh", "dp=2", "--link", "dp=1,10;1,1;dp=1,9" }, "--link: \"dp\" is named twice" },
    { { "--dtype", "f64" }, "--dtype: \"f64\" is unknown" },
    { { "--keep", "0" }, "--keep: \"0\" is not a number from 1" },
    { { "--chunk", "x" }, "--chunk: \"x\" is not a number" },
    { { "--prompt", "x" }, "unknown option --prompt" },
    { { "extra" }, "unexpected argument \"extra\"" },
};

/* The run's folder may be there, but nothing is in it. */
static void expect_nothing_made(const train_place *p)
{
    char path[TRAIN_PATH_BYTES + 16];

    (void)snprintf(path, sizeof path, "%s/options.json", p->run);
    DT_ASSERT(access(path, F_OK) != 0);
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", p->run);
    DT_ASSERT(access(path, F_OK) != 0);
}

DT_TEST(cli_train_options, mistakes_are_named_before_anything_is_made)
{
    char config[TRAIN_PATH_BYTES + 16], none[TRAIN_PATH_BYTES];
    train_place p;

    train_open(&p);
    (void)snprintf(config, sizeof config, "%s/config.json", p.model);
    (void)snprintf(none, sizeof none, "%s/none.bin", p.folder);
    for (size_t i = 0; i < DT_COUNT(mistakes); i++) {
        const char *words[24] = { "train", "-q", "-m", p.model, "--data", p.data, "-o", p.run };
        command_result r;
        bool has_steps = strcmp(mistakes[i].words[0], "--steps") == 0;
        int n = 8;

        if (!has_steps) words[n++] = "--steps";
        if (!has_steps) words[n++] = "4";
        for (int w = 0; w < 8 && mistakes[i].words[w] != NULL; w++) {
            const char *word = mistakes[i].words[w];
            words[n++] = strcmp(word, "@config") == 0 ? config
                         : strcmp(word, "@none") == 0 ? none
                                                      : word;
        }
        r = command_run(NULL, words);
        if (r.code != 2 || strstr(r.err, mistakes[i].says) == NULL)
            dt_test_fail(__FILE__, __LINE__, "%s: exit code %d, \"%s\" is not in: %.600s",
                         mistakes[i].words[0], r.code, mistakes[i].says, r.err);
        expect_nothing_made(&p);
    }
}

DT_TEST(cli_train_options, what_is_missing_is_named)
{
    train_place p;

    train_open(&p);
    COMMAND_ENDS(2, COMMAND("train"), "no model; give --model DIR");
    COMMAND_ENDS(2, COMMAND("train", "-m", p.model, "--data", p.data, "-o", p.run),
                 "how long? give --steps N");
    COMMAND_ENDS(2, COMMAND("train", "-m", p.model, "-o", p.run, "--steps", "3"),
                 "nothing to train on; give --data FILE");
    COMMAND_ENDS(2, COMMAND("train", "-m", p.model, "--data", p.data, "--steps", "3"),
                 "no folder for the run; give --output RUN");
    COMMAND_ENDS(2, COMMAND("train", "--resume", "-o", p.run), "holds no run that could go on");
}

/* --- data and folders ------------------------------------------------------------------------- */

static command_result run_with(const train_place *p, const char *data, const char *output)
{
    return COMMAND("train", "-q", "-m", p->model, "--data", data, "-o", output, "--steps", "2",
                   "--batch", "2", "--sequence", "16");
}

DT_TEST(cli_train_options, data_that_cannot_be_read_is_named)
{
    char path[TRAIN_PATH_BYTES];
    train_place p;

    train_open(&p);
    train_write_tokens(&p, "beyond.bin", 1000);
    (void)snprintf(path, sizeof path, "%s/beyond.bin", p.folder);
    COMMAND_ENDS(2, run_with(&p, path, p.run), "--data: ", "beyond.bin");
    dt_test_write_file(p.folder, "short.bin", "\1\0\2\0", 4);
    (void)snprintf(path, sizeof path, "%s/short.bin", p.folder);
    COMMAND_ENDS(2, run_with(&p, path, p.run), "short.bin");
    dt_test_write_file(p.folder, "cut.idx", "MMIDIDX\0\0\1\0\0\0\0\0\0\0\4", 18);
    train_write_tokens(&p, "cut.bin", 100);
    (void)snprintf(path, sizeof path, "%s/cut.idx", p.folder);
    COMMAND_ENDS(2, run_with(&p, path, p.run), "cut.idx");
    COMMAND_ENDS(2, run_with(&p, p.folder, p.run), "--data: ");
    expect_nothing_made(&p);
}

DT_TEST(cli_train_options, folders_that_hold_something_are_left_as_they_are)
{
    char path[TRAIN_PATH_BYTES], file[TRAIN_PATH_BYTES];
    train_place p;

    train_open(&p);
    COMMAND_ENDS(0, run_with(&p, p.data, p.run));
    COMMAND_ENDS(2, run_with(&p, p.data, p.run),
                 "holds another run; add --resume to go on with it");
    DT_ASSERT_EQ_INT(train_lines(p.run), 2);
    COMMAND_ENDS(2, run_with(&p, p.data, p.model), "holds a model; name a folder of its own");
    COMMAND_ENDS(2, run_with(&p, p.data, p.data), "is no folder");
    (void)snprintf(path, sizeof path, "%s/no/such", p.folder);
    COMMAND_ENDS(2, run_with(&p, p.data, path), "cannot be made in ");
    (void)snprintf(file, sizeof file, "%s/run/latest", p.folder);
    DT_ASSERT(access(file, F_OK) == 0);
}

DT_TEST(cli_train_options, a_folder_where_the_model_would_lie_is_left_as_it_is)
{
    static const char *const names[] = { "model", "model-00000002" };
    char path[TRAIN_PATH_BYTES + 64];
    train_place p;

    train_open(&p);
    DT_ASSERT(mkdir(p.run, 0700) == 0);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", p.run, names[i]);
        DT_ASSERT(mkdir(path, 0700) == 0);
        COMMAND_ENDS(2, run_with(&p, p.data, p.run), "holds a model; name a folder of its own");
        DT_ASSERT(rmdir(path) == 0);
    }
}

DT_TEST(cli_train_options, a_run_that_is_refused_changes_no_word_of_one_that_is_there)
{
    char was[2][TRAIN_PATH_BYTES + 32], path[TRAIN_PATH_BYTES + 32], *before[2], *after[2];
    command_result r[4];
    train_place p;
    int lock;

    train_open(&p);
    COMMAND_ENDS(0, run_with(&p, p.data, p.run));
    for (int i = 0; i < 2; i++) {
        (void)snprintf(was[i], sizeof was[i], "%s/%s.json", p.run, i == 0 ? "options" : "plan");
        before[i] = command_read(was[i]);
    }
    (void)snprintf(path, sizeof path, "%s/none/trace.json", p.folder);
    r[0] = COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "4", "--offload", path);
    r[1] = COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "4", "--trace", path);
    r[2] = COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "4", "--optimizer", "sgd");
    (void)snprintf(path, sizeof path, "%s/.dtensor-run", p.run);
    lock = open(path, O_RDWR | O_CREAT, 0600);
    DT_ASSERT(lock >= 0 && flock(lock, LOCK_EX) == 0);
    r[3] = COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "4", "--lr", "7");
    (void)close(lock);
    for (int i = 0; i < 4; i++) {
        COMMAND_ENDS(2, r[i]);
    }
    for (int i = 0; i < 2; i++) {
        after[i] = command_read(was[i]);
        DT_ASSERT_EQ_STR(after[i], before[i]);
    }
    COMMAND_ENDS(2, COMMAND("train", "-q", "-m", p.model, "--data", p.data, "-o", p.other,
                            "--steps", "1", "--batch", "2", "--sequence", "16", "--link", "1"));
    DT_ASSERT(access(p.other, F_OK) != 0);
}

DT_TEST(cli_train_options, a_pipe_in_a_folder_of_a_run_is_no_file_of_it)
{
    static const char *const names[] = { "options.json", "metrics.jsonl" };
    char path[TRAIN_PATH_BYTES + 32], kept[TRAIN_PATH_BYTES];
    train_place p;

    train_open(&p);
    COMMAND_ENDS(0, run_with(&p, p.data, p.run));
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", p.run, names[i]);
        (void)snprintf(kept, sizeof kept, "%s/kept", p.folder);
        DT_ASSERT(rename(path, kept) == 0 && mkfifo(path, 0600) == 0);
        COMMAND_ENDS(2, COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "4"),
                     "is a device or pipe, not a file");
        COMMAND_ENDS(2, COMMAND("report", p.run), "is a device or pipe, not a file");
        DT_ASSERT(rename(kept, path) == 0);
    }
}

DT_TEST(cli_train_options, another_model_cannot_go_on_with_a_run)
{
    char other[DT_TEST_PATH_BYTES], path[TRAIN_PATH_BYTES + 16], says[3 * TRAIN_PATH_BYTES];
    char from[DT_TEST_PATH_BYTES], *text, *eps;
    train_place p;

    train_open(&p);
    COMMAND_ENDS(0, run_with(&p, p.data, p.run));
    COMMAND_ENDS(2,
                 COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "3", "-m",
                         dt_test_source_path(other, "tests/golden/qwen2/base")),
                 "model_type is llama in the checkpoint, qwen2 in ");
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dt_test_temp_dir(other));
    DT_ASSERT(
        symlink(dt_test_source_path(from, "tests/golden/llama/tied/model.safetensors"), path) == 0);
    text = command_read(dt_test_source_path(from, "tests/golden/llama/tied/config.json"));
    eps = strstr(text, "1e-06");
    DT_ASSERT(eps != NULL);
    eps[4] = '4';
    dt_test_write_file(other, "config.json", text, strlen(text));
    (void)snprintf(says, sizeof says,
                   "%s/step-00000002/training.json: rms_norm_eps is 1e-06 in the checkpoint, "
                   "0.0001 in %s/config.json: it is of another model",
                   p.run, other);
    COMMAND_ENDS(2, COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "3", "-m", other),
                 says);
    DT_ASSERT_EQ_INT(train_lines(p.run), 2);
    COMMAND_ENDS(0, COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "3"));
    (void)snprintf(path, sizeof path, "%s/model", p.run); /* what it leaves is the same model */
    COMMAND_ENDS(0, COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "4", "-m", path));
    DT_ASSERT_EQ_INT(train_lines(p.run), 4);
}

/* What was refused is not remembered: a plain --resume goes on as before. */
DT_TEST(cli_train_options, a_run_that_refuses_to_go_on_is_as_it_was)
{
    char path[TRAIN_PATH_BYTES + 16], *before, *after;
    train_place p;

    train_open(&p);
    COMMAND_ENDS(0, run_with(&p, p.data, p.run));
    (void)snprintf(path, sizeof path, "%s/options.json", p.run);
    before = command_read(path);
    COMMAND_ENDS(2,
                 COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "3", "--optimizer",
                         "sgd", "--momentum", "0.9", "--mesh", "dp=2"),
                 "it is of another optimizer");
    after = command_read(path);
    DT_ASSERT_EQ_STR(after, before);
    COMMAND_ENDS(0, COMMAND("train", "-q", "--resume", "-o", p.run, "--steps", "3"));
    DT_ASSERT_EQ_INT(train_lines(p.run), 3);
}

/* A model of a configuration alone begins at random, by the seed. */
DT_TEST(cli_train_options, a_configuration_alone_is_a_model)
{
    char config[TRAIN_PATH_BYTES + 16];
    train_place p;

    train_open(&p);
    (void)snprintf(config, sizeof config, "%s/config.json", p.model);
    COMMAND_ENDS(0, COMMAND("train", "-q", "--config", config, "--data", p.data, "-o", p.run,
                            "--steps", "2", "--batch", "2", "--sequence", "16", "--seed", "1"));
    COMMAND_ENDS(0, COMMAND("train", "-q", "--config", p.model, "--data", p.data, "-o", p.other,
                            "--steps", "2", "--batch", "2", "--sequence", "16", "--seed", "1",
                            "--mesh", "dp=2"));
    DT_ASSERT_CLOSE(train_number(p.run, 1, "loss"), train_number(p.other, 1, "loss"), 1e-2);
    DT_ASSERT_CLOSE(train_number(p.run, 1, "loss"), 4.85, 0.2); /* log of the vocabulary */
}
