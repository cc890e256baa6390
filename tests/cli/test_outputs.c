/* SPDX-License-Identifier: Apache-2.0
 *
 * No output of a command takes the place of what the command reads, or of a file of a model or a
 * run. */
#include <sys/stat.h>

#include "tests/cli/train.h"

/* A copy of the example's tokenizer with weights that lie elsewhere, a run, a text; "@" in words
 * stands for the folder of all of them. */
static void make_place(char folder[DT_TEST_PATH_BYTES])
{
    static const char *const copies[][2] = {
        { "model/config.json", "examples/checkpoint/config.json" },
        { "model/tokenizer.json", "examples/checkpoint/tokenizer.json" },
        { "text.bin.json", "tests/golden/llama/tied/config.json" },
    };
    static const char line[] = "{\"step\": 1, \"loss\": 5}\n";
    char path[TRAIN_PATH_BYTES], from[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/model", folder);
    DT_ASSERT(mkdir(path, 0700) == 0);
    (void)snprintf(path, sizeof path, "%s/run", folder);
    DT_ASSERT(mkdir(path, 0700) == 0);
    dt_test_write_file(path, "metrics.jsonl", line, sizeof line - 1);
    dt_test_write_file(path, "options.json", "{}", 2);
    for (size_t i = 0; i < DT_COUNT(copies); i++) {
        const char *text = command_read(dt_test_source_path(from, copies[i][1]));
        dt_test_write_file(folder, copies[i][0], text, strlen(text));
    }
    (void)snprintf(path, sizeof path, "%s/model/model.safetensors", folder);
    DT_ASSERT(symlink(dt_test_source_path(from, "examples/checkpoint/model.safetensors"), path) ==
              0);
    dt_test_write_file(folder, "text", line, sizeof line - 1);
    dt_test_write_file(folder, "styles.json", "{}", 2);
}

/* With "@" in its place. */
static const char *fill(const char *word, const char *folder, char path[TRAIN_PATH_BYTES])
{
    if (word == NULL || word[0] != '@') return word;
    (void)snprintf(path, TRAIN_PATH_BYTES, "%s%s", folder, word + 1);
    return path;
}

#define TRAINS "train", "-q", "-m", "@/model", "-o", "@/new", "--steps", "1", "--data", "@/text"

DT_TEST(cli_outputs, take_no_place_of_what_is_read_or_of_a_model_or_a_run)
{
    static const struct {
        const char *file, *words[16];
    } cases[] = {
        { "text", { TRAINS, "--trace", "@/text" } },
        { "model/config.json", { TRAINS, "--trace", "@/model/config.json" } },
        { "model/tokenizer.json", { TRAINS, "--trace", "@/model/../model/tokenizer.json" } },
        { "run/metrics.jsonl", { TRAINS, "--trace", "@/run/metrics.jsonl" } },
        { "styles.json", { TRAINS, "--plan", "@/styles.json", "--trace", "@/styles.json" } },
        { "run/metrics.jsonl", { "report", "@/run", "--output", "@/run/metrics.jsonl" } },
        { "run/options.json", { "report", "@/run", "--output", "@/run/options.json" } },
        { "model/config.json", { "report", "@/run", "--output", "@/model/config.json" } },
        { "text",
          { "tokenize", "-m", "@/model", "--output", "@/model/pytorch_model.bin", "@/text" } },
        { "text.bin.json",
          { "tokenize", "-m", "@/model", "--output", "@/text.bin", "@/text.bin.json" } },
        { "text", { "gradients", "-m", "@/model", "-f", "@/text", "-o", "@/text" } },
        { "run/metrics.jsonl",
          { "gradients", "-m", "@/model", "-t", "1,2", "-o", "@/run/metrics.jsonl" } },
        { "run/metrics.jsonl", { "save", "-m", "@/model", "-o", "@/run/model-00000009/" } },
        { "run/metrics.jsonl",
          { "train", "-q", "-m", "@/model", "-o", "@/run/step-00000009", "--steps", "1", "--data",
            "@/text" } },
    };
    char folder[DT_TEST_PATH_BYTES], paths[16][TRAIN_PATH_BYTES];
    command_result r;

    make_place(folder);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const char *words[17] = { NULL };
        char path[TRAIN_PATH_BYTES], *before;

        for (int w = 0; w < 16; w++) words[w] = fill(cases[i].words[w], folder, paths[w]);
        (void)snprintf(path, sizeof path, "%s/%s", folder, cases[i].file);
        before = command_read(path);
        r = COMMAND_ENDS(2, command_run(NULL, words));
        if (strstr(r.err, "is a file that this command reads") == NULL &&
            strstr(r.err, "under a name of its own files") == NULL)
            dt_test_fail(__FILE__, __LINE__, "case %zu: %s", i, r.err);
        DT_ASSERT_EQ_STR(command_read(path), before);
    }
    (void)snprintf(paths[0], sizeof paths[0], "%s/new", folder);
    DT_ASSERT(access(paths[0], F_OK) != 0);
    (void)snprintf(paths[0], sizeof paths[0], "%s/run", folder);
    (void)snprintf(paths[1], sizeof paths[1], "%s/run/page.html", folder);
    (void)snprintf(paths[2], sizeof paths[2], "%s/text", folder);
    (void)snprintf(paths[3], sizeof paths[3], "%s/run/page.html.part", folder);
    DT_ASSERT(symlink(paths[2], paths[3]) == 0); /* beside the new name, and nobody's business */
    for (int i = 0; i < 2; i++)
        (void)COMMAND_ENDS(0, COMMAND("report", paths[0], "--output", paths[1])); /* a new name */
    DT_ASSERT_EQ_INT((int)strlen(command_read(paths[2])), 23);
    DT_ASSERT(access(paths[3], F_OK) == 0);
    dt_test_remove_dir(folder);
}

/* What a run writes beside the trace as well. */
DT_TEST(cli_outputs, of_a_run_take_no_place_of_what_it_reads)
{
    char plan[TRAIN_PATH_BYTES + 16];
    train_place p;

    train_open(&p);
    DT_ASSERT(mkdir(p.run, 0700) == 0);
    dt_test_write_file(p.run, "plan.json", "{}", 2);
    (void)snprintf(plan, sizeof plan, "%s/plan.json", p.run);
    (void)COMMAND_ENDS(2,
                       COMMAND("train", "-q", "-m", p.model, "--data", p.data, "-o", p.run,
                               "--steps", "1", "--plan", plan),
                       "plan.json is a file that this command reads");
    DT_ASSERT_EQ_STR(command_read(plan), "{}");
}

/* Any two places that a command writes to, whether they are there yet or not. */
DT_TEST(cli_outputs, are_places_of_their_own)
{
    static const struct {
        const char *run, *trace, *says;
    } cases[] = {
        { "@/new", "@/new", "--output and --trace both write to " },
        { "@/new", "@/model/../new", "--output and --trace both write to " },
        { "@/new/", "@/new", "--output and --trace both write to " },
        { "@/made", "@/same", "--output and --trace both write to " },
        { "@/new", "@/link", "link: No such file or directory" },
        { "@/link", "@/new", "link is a link to nothing" },
        { "@/new", "/proc/self/fd/1", "/proc/self/fd/1 is where standard output goes" },
    };
    char folder[DT_TEST_PATH_BYTES], paths[8][TRAIN_PATH_BYTES];

    make_place(folder);
    DT_ASSERT(mkdir(fill("@/made", folder, paths[0]), 0700) == 0);
    DT_ASSERT(symlink("made", fill("@/same", folder, paths[0])) == 0);
    DT_ASSERT(symlink("nothing", fill("@/link", folder, paths[0])) == 0);
    for (size_t i = 0; i < DT_COUNT(cases); i++)
        (void)COMMAND_ENDS(2,
                           COMMAND("train", "-q", "-m", fill("@/model", folder, paths[0]), "--data",
                                   fill("@/text", folder, paths[1]), "--steps", "1", "-o",
                                   fill(cases[i].run, folder, paths[2]), "--trace",
                                   fill(cases[i].trace, folder, paths[3])),
                           cases[i].says);
    DT_ASSERT(access(fill("@/new", folder, paths[0]), F_OK) != 0);
    DT_ASSERT(rmdir(fill("@/made", folder, paths[0])) == 0); /* nothing was begun in it */
    dt_test_remove_dir(folder);
}
