/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor train --resume: what may be another than before, and what may not because the place in
 * the data would be another; and data in many files. */
#include <sys/stat.h>

#include "tests/cli/train.h"

static command_result begin(const train_place *p, const char *steps)
{
    return COMMAND("train", "-q", "-m", p->model, "--data", p->data, "-o", p->run, "--batch", "4",
                   "--sequence", "16", "--dtype", "f32", "--threads", "1", "--steps", steps);
}

#define RESUME(p, ...) COMMAND("train", "-q", "--resume", "-o", (p)->run, __VA_ARGS__)

DT_TEST(cli_train_resume, with_other_data_is_refused_by_the_option_that_differs)
{
    static const struct {
        const char *words[4], *says;
    } others[] = {
        { { "--sequence", "8" },
          "--resume: --sequence is another than that of the 8 samples which the run has used (8, "
          "not 16): the next ones would not follow on them; leave it as it was, or add "
          "--new-data" },
        { { "--order", "stored" }, "--order is another than that of the 8 samples" },
        { { "--seed", "1" }, "--seed is another" },
        { { "--data-weights", "1" }, "--data-weights is another" },
        { { "--documents", "--end-token", "3" }, "--documents is another" },
        { { "--data", "@other" },
          "--data is another than that of the 8 samples which the run has "
          "used (hash of the tokens \"" },
    };
    char other[TRAIN_PATH_BYTES];
    train_place p;

    train_open(&p);
    (void)snprintf(other, sizeof other, "%s/other.bin", p.folder);
    train_write_tokens(&p, "other.bin", 90);
    (void)COMMAND_ENDS(0, begin(&p, "2"));
    for (size_t i = 0; i < DT_COUNT(others); i++) {
        const char *words[16] = { "train", "-q", "--resume", "-o", p.run, "--steps", "3" };
        for (int w = 0; w < 4 && others[i].words[w] != NULL; w++)
            words[7 + w] = strcmp(others[i].words[w], "@other") == 0 ? other : others[i].words[w];
        (void)COMMAND_ENDS(2, command_run(NULL, words), others[i].says);
        DT_ASSERT_EQ_INT(train_lines(p.run), 2);
    }
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "3")); /* nothing that was refused is remembered */
}

/* Files of tokens need not say what their ids stand for. */
DT_TEST(cli_train_resume, with_another_tokenizer_is_refused)
{
    static const char *const files[][2] = {
        { "examples/checkpoint/config.json", "config.json" },
        { "tests/golden/tokenizer/gpt2/tokenizer.json", "tokenizer.json" },
    };
    char other[DT_TEST_PATH_BYTES], from[DT_TEST_PATH_BYTES], to[TRAIN_PATH_BYTES], *text;
    train_place p;

    train_open(&p);
    (void)dt_test_source_path(p.model, "examples/checkpoint");
    (void)dt_test_temp_dir(other);
    (void)snprintf(to, sizeof to, "%s/model.safetensors", other);
    DT_ASSERT(symlink(dt_test_source_path(from, "examples/checkpoint/model.safetensors"), to) == 0);
    for (size_t i = 0; i < DT_COUNT(files); i++) {
        text = command_read(dt_test_source_path(from, "%s", files[i][0]));
        dt_test_write_file(other, files[i][1], text, strlen(text));
    }
    (void)COMMAND_ENDS(0, begin(&p, "1"));
    (void)COMMAND_ENDS(2, RESUME(&p, "--steps", "2", "-m", other),
                       "--resume: the tokenizer of --model is another than that of the 4 samples "
                       "which the run has used (hash \"");
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "2", "-m", other, "--new-data"));
}

/* The same tokens elsewhere are the same data; meshes, batches, rates and steps are no data. */
DT_TEST(cli_train_resume, with_the_same_data_goes_on_whatever_else_is_new)
{
    char moved[TRAIN_PATH_BYTES];
    train_place p;

    train_open(&p);
    (void)snprintf(moved, sizeof moved, "%s/moved.bin", p.folder);
    train_write_tokens(&p, "moved.bin", TRAIN_VOCAB);
    (void)COMMAND_ENDS(0, begin(&p, "2"));
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "3", "--data", moved));
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "4", "--mesh", "dp=2", "--zero", "2", "--batch",
                                 "8", "--microbatches", "2"));
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "5", "--lr", "1e-4", "--schedule", "cosine"));
    DT_ASSERT_EQ_INT(train_lines(p.run), 5);
}

/* Other data are read from their beginning, once: a run that goes on with them goes on in them. */
DT_TEST(cli_train_resume, with_new_data_reads_them_from_their_beginning)
{
    char path[TRAIN_PATH_BYTES + 48], other[TRAIN_PATH_BYTES];
    json_t *manifest;
    train_place p;

    train_open(&p);
    (void)snprintf(other, sizeof other, "%s/other.bin", p.folder);
    train_write_tokens(&p, "other.bin", 90);
    (void)COMMAND_ENDS(0, begin(&p, "4"));
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "5", "--data", other, "--new-data"));
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "6", "--data", other, "--new-data"));
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "7"));
    (void)snprintf(path, sizeof path, "%s/step-00000007/training.json", p.run);
    manifest = json_load_file(path, 0, NULL);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(manifest, "samples")), 3 * 4);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(manifest, "tokens")), 7 * 4 * 16);
    json_decref(manifest);
    (void)COMMAND_ENDS(2, begin(&p, "9"), "holds another run");
    (void)COMMAND_ENDS(2,
                       COMMAND("train", "-m", p.model, "--data", p.data, "-o", p.other, "--steps",
                               "1", "--new-data"),
                       "--new-data is of a run that goes on; add --resume");
}

/* 0 is a value, not the lack of one. */
DT_TEST(cli_train_resume, takes_back_a_stage_and_a_warmup)
{
    command_result r;
    train_place p;

    train_open(&p);
    r = COMMAND("train", "-q", "-m", p.model, "--data", p.data, "-o", p.run, "--batch", "4",
                "--sequence", "16", "--mesh", "dp=2", "--zero", "2", "--lr", "1e-3", "--warmup",
                "4", "--steps", "4");
    (void)COMMAND_ENDS(0, r);
    r = COMMAND_ENDS(0, RESUME(&p, "--mesh", "tp=2", "--steps", "5"));
    COMMAND_ASSERT_HAS(r.err, "--zero 2 changes nothing");
    r = COMMAND_ENDS(0, RESUME(&p, "--zero", "0", "--warmup", "0", "--steps", "6"));
    DT_ASSERT_EQ_STR(r.err, "");
    r = COMMAND_ENDS(0, RESUME(&p, "--steps", "7")); /* and it is remembered */
    DT_ASSERT_EQ_STR(r.err, "");
}

/* What was said is remembered, not what followed from it. */
DT_TEST(cli_train_resume, of_a_configuration_alone)
{
    char config[TRAIN_PATH_BYTES + 16];
    train_place p;

    train_open(&p);
    (void)snprintf(config, sizeof config, "%s/config.json", p.model);
    (void)COMMAND_ENDS(0, COMMAND("train", "-q", "--config", config, "--data", p.data, "-o", p.run,
                                  "--batch", "4", "--sequence", "16", "--steps", "2"));
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "3"));
}

/* --- data ------------------------------------------------------------------------------------- */

DT_TEST(cli_train_resume, of_many_files)
{
    enum { FILES = 100 };
    char options[TRAIN_PATH_BYTES], name[32], *text = malloc(FILES * (TRAIN_PATH_BYTES + 4) + 64);
    size_t n = (size_t)sprintf(text, "{\"data\": [");
    train_place p;

    train_open(&p);
    for (int i = 0; i < FILES; i++) {
        (void)snprintf(name, sizeof name, "data-%d.bin", i);
        train_write_tokens(&p, name, (uint16_t)(20 + i % 80));
        n += (size_t)sprintf(text + n, "%s\"%s/%s\"", i > 0 ? ", " : "", p.folder, name);
    }
    (void)sprintf(text + n, "]}");
    dt_test_write_file(p.folder, "o.json", text, strlen(text));
    free(text);
    (void)snprintf(options, sizeof options, "%s/o.json", p.folder);
    (void)COMMAND_ENDS(0, COMMAND("train", "-q", "-m", p.model, "--options", options, "-o", p.run,
                                  "--batch", "4", "--sequence", "16", "--mesh", "dp=2", "--steps",
                                  "2"));
    (void)COMMAND_ENDS(0, RESUME(&p, "--steps", "3"));
}

DT_TEST(cli_train_resume, of_documents_that_an_option_ends)
{
    static const char *const hows[][2] = { { "--documents", "-q" }, { "--order", "packed" } };
    train_place p;

    train_open(&p);
    for (size_t i = 0; i < DT_COUNT(hows); i++) {
        const char *run = i == 0 ? p.run : p.other;
        (void)COMMAND_ENDS(2,
                           COMMAND("train", "-m", p.model, "--data", p.data, "-o", run, "--batch",
                                   "4", "--sequence", "16", "--steps", "2", hows[i][0], hows[i][1]),
                           "--data: there is no --end-token: ", "nothing says where its documents");
        (void)COMMAND_ENDS(2,
                           COMMAND("train", "-m", p.model, "--data", p.data, "-o", run, "--batch",
                                   "4", "--sequence", "16", "--steps", "2", hows[i][0], hows[i][1],
                                   "--end-token", "99999999"),
                           "--end-token 99999999 is outside the vocabulary: ids are 0 to ");
        (void)COMMAND_ENDS(0, COMMAND("train", "-m", p.model, "--data", p.data, "-o", run,
                                      "--batch", "4", "--sequence", "16", "--steps", "2",
                                      hows[i][0], hows[i][1], "--end-token", "0"));
    }
}

/* Checkpoints to keep, and the one that is written before the oldest goes. */
DT_TEST(cli_train_resume, room_is_asked_for_all_that_is_kept)
{
    train_place p;

    train_open(&p);
    (void)COMMAND_ENDS(2,
                       COMMAND("train", "-q", "-m", p.model, "--data", p.data, "-o", p.run,
                               "--steps", "1000000000", "--save-every", "1", "--keep", "999999998"),
                       "--output: 999999999 checkpoints and 1 model need ",
                       "make room, or keep fewer with --keep");
    (void)COMMAND_ENDS(0, COMMAND("train", "-q", "-m", p.model, "--data", p.data, "-o", p.run,
                                  "--batch", "2", "--sequence", "16", "--steps", "2",
                                  "--save-every", "1", "--keep", "999999998"));
}
