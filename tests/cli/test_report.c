/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor report: a page of any folder that a run has left, and named errors of those that none
 * has. */
#include <jansson.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/cli/command.h"

enum { PATH_BYTES = DT_TEST_PATH_BYTES + 32 };

static const char options[] = "{\"model\": \"a<b>&c\", \"steps\": 3, \"data\": [\"x.bin\"]}";
static const char plan[] =
    "{\"ranks\": [{\"rank\": 0, \"weight_bytes\": 400, \"gradient_bytes\": 800, \"state_bytes\": "
    "1600, \"kept_bytes\": 300, \"peak_bytes\": 5000, \"traffic\": [{\"dims\": \"dp\", \"kind\": "
    "\"all_reduce\", \"calls\": 2, \"bytes\": 4096}]}]}";
static const char trace[] =
    "{\"traceEvents\": [{\"ph\": \"X\", \"name\": \"forward\", \"cat\": \"forward\", "
    "\"ts\": 0, \"dur\": 5000, \"pid\": 0, \"tid\": 0}, {\"ph\": \"X\", \"name\": \"all_reduce "
    "dp\", "
    "\"cat\": \"collective\", \"ts\": 100, \"dur\": 50, \"pid\": 0, \"tid\": 0}]}";
static const char lines[] =
    "{\"step\": 1, \"loss\": 5.5, \"grad_norm\": 2, \"lr\": 0.1, \"tokens\": 64, \"seconds\": "
    "0.5}\n"
    "{\"step\": 2, \"loss\": 4.5, \"grad_norm\": null, \"lr\": 0.1, \"tokens\": 128, \"seconds\": "
    "0.5}\n"
    "{\"step\": 3, \"loss\": 4.0, \"grad_norm\": 1, \"lr\": 0.1, \"tokens\": 192, \"seconds\": "
    "0.5, "
    "\"validation_loss\": 4.25}\n";

static void put(const char *folder, const char *name, const char *text)
{
    dt_test_write_file(folder, name, text, strlen(text));
}

static char *page_of(const char *folder)
{
    char path[PATH_BYTES];

    (void)snprintf(path, sizeof path, "%s/report.html", folder);
    return command_read(path);
}

/* Reports a run whose metrics are these. */
static char *report(const char *folder, const char *metrics)
{
    if (metrics != NULL) put(folder, "metrics.jsonl", metrics);
    COMMAND_ENDS(0, COMMAND("report", folder), "/report.html\n");
    return page_of(folder);
}

DT_TEST(cli_report, has_curves_costs_and_a_time_line_and_needs_nothing_else)
{
    static const char *const parts[] = { "aria-label=\"Loss over steps\"",
                                         "aria-label=\"Norm of the gradients over steps\"",
                                         "aria-label=\"Tokens per second",
                                         "step 3: 4.0000, validation 4.2500",
                                         "Memory by kind",
                                         "optimizer: 1.6 KiB",
                                         "Bytes by mesh dim",
                                         "all_reduce",
                                         "A step in time",
                                         "forward: 5.000 ms",
                                         "a&lt;b&gt;&amp;c",
                                         "prefers-color-scheme:dark",
                                         "step 1: 128.00 tokens/s",
                                         "</main></body></html>" };
    char folder[DT_TEST_PATH_BYTES];
    char *page;

    (void)dt_test_temp_dir(folder);
    put(folder, "options.json", options);
    put(folder, "plan.json", plan);
    put(folder, "trace.json", trace);
    page = report(folder, lines);
    for (size_t i = 0; i < DT_COUNT(parts); i++) COMMAND_ASSERT_HAS(page, parts[i]);
    DT_ASSERT(strstr(page, "<script") == NULL && strstr(page, "http") == NULL);
    DT_ASSERT(strstr(page, "nan") == NULL && strstr(page, "inf") == NULL);
}

DT_TEST(cli_report, makes_do_with_little)
{
    static const char one[] = "{\"step\": 7, \"loss\": 5.5}\n";
    char folder[DT_TEST_PATH_BYTES], *page;

    (void)dt_test_temp_dir(folder);
    put(folder, "options.json", "{}");
    page = report(folder, NULL);
    COMMAND_ASSERT_HAS(page, "No step is done yet");
    page = report(folder, one);
    COMMAND_ASSERT_HAS(page, "<circle class=\"dot a\"");
    COMMAND_ASSERT_HAS(page, "no step has a number here");
    DT_ASSERT(strstr(page, "nan") == NULL && strstr(page, "inf") == NULL);
    page = report(folder, "{\"step\": 1, \"loss\": 5.5}\n{\"step\": 2, \"lo");
    COMMAND_ASSERT_HAS(page, "The last line of metrics.jsonl is not complete");
}

/* A curve of many steps is drawn in columns, and stays small. */
DT_TEST(cli_report, draws_many_steps_as_a_line_on_a_band)
{
    char folder[DT_TEST_PATH_BYTES], *text = malloc(2000 * 128), *page;
    size_t used = 0;

    DT_ASSERT(text != NULL);
    for (int i = 1; i <= 2000; i++)
        used += (size_t)snprintf(text + used, 128,
                                 "{\"step\": %d, \"loss\": %d, \"tokens\": %d, \"seconds\": 1}\n",
                                 i, 5 + i % 3, 64 * i);
    (void)dt_test_temp_dir(folder);
    page = report(folder, text);
    COMMAND_ASSERT_HAS(page, "<path class=\"band\"");
    DT_ASSERT(strlen(page) < 200000);
    free(text);
}

/* A run that was killed may leave half a line, and go on behind it. */
DT_TEST(cli_report, leaves_out_lines_that_are_damaged_and_says_so)
{
    static const char damaged[] = "{\"step\": 1, \"loss\": 5}\n{\"step\":\n{\"loss\": 1}\n[]\n\0\n"
                                  "{\"step\": 3, \"loss\": 4}\n{\"step\": 4";
    char folder[DT_TEST_PATH_BYTES], *page;
    command_result r;

    (void)dt_test_temp_dir(folder);
    put(folder, "options.json", "{}");
    dt_test_write_file(folder, "metrics.jsonl", damaged, sizeof damaged - 1);
    r = COMMAND_ENDS(0, COMMAND("report", folder));
    COMMAND_ASSERT_HAS(r.err, "4 lines of metrics.jsonl are damaged and do not count (the first is "
                              "line 2)");
    page = page_of(folder);
    COMMAND_ASSERT_HAS(page, "4 lines of metrics.jsonl are damaged");
    COMMAND_ASSERT_HAS(page, "The last line of metrics.jsonl is not complete");
    COMMAND_ASSERT_HAS(page, "<b>3</b>steps");
    (void)COMMAND_ENDS(0, COMMAND("report", folder, "--json"),
                       "\"steps\":2,\"torn\":true,\"damaged\":4");
    dt_test_remove_dir(folder);
}

DT_TEST(cli_report, names_what_is_broken)
{
    static const struct {
        const char *name, *text, *says;
    } broken[] = {
        { "options.json", "{", "options.json: line 1: " },
        { "plan.json", "[]", "plan.json: is no JSON object" },
        { "trace.json", "{\"a\": 1, \"a\": 2}", "trace.json: line 1: duplicate" },
    };
    char folder[DT_TEST_PATH_BYTES], pipe[PATH_BYTES];
    struct stat about;

    for (size_t i = 0; i < DT_COUNT(broken); i++) {
        (void)dt_test_temp_dir(folder);
        put(folder, "options.json", "{}");
        put(folder, broken[i].name, broken[i].text);
        COMMAND_ENDS(2, COMMAND("report", folder), broken[i].says);
    }
    (void)dt_test_temp_dir(folder); /* a device would be lost as a pipe is */
    put(folder, "options.json", "{}");
    (void)snprintf(pipe, sizeof pipe, "%s/pipe", folder);
    DT_ASSERT(mkfifo(pipe, 0600) == 0);
    COMMAND_ENDS(2, COMMAND("report", folder, "--output", pipe),
                 "--output: ", "a device or pipe, not a file");
    DT_ASSERT(stat(pipe, &about) == 0 && S_ISFIFO(about.st_mode));
    COMMAND_ENDS(2, COMMAND("report"), "no run; write \"dtensor report RUN\"");
    COMMAND_ENDS(2, COMMAND("report", dt_test_source_path(folder, "examples/checkpoint")),
                 "it holds no run");
    COMMAND_ENDS(2, COMMAND("report", "/nowhere/at/all"), "/nowhere/at/all: No such file");
}

/* A disk that is full, as the system's limit of a file's size has it, is no bad input. */
DT_TEST(cli_report, is_written_whole_or_not_at_all)
{
    char folder[DT_TEST_PATH_BYTES], slash[PATH_BYTES], page[PATH_BYTES];
    struct rlimit limit, small;
    command_result r;

    put(dt_test_temp_dir(folder), "options.json", "{}");
    (void)snprintf(slash, sizeof slash, "%s/", folder);
    (void)snprintf(page, sizeof page, "%s/report.html\n", folder);
    r = COMMAND_ENDS(0, COMMAND("report", slash));
    DT_ASSERT_EQ_STR(r.out, page);
    page[strlen(page) - 1] = '\0';
    DT_ASSERT(unlink(page) == 0);
    DT_ASSERT(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    small = limit;
    small.rlim_cur = 100;
    DT_ASSERT(setrlimit(RLIMIT_FSIZE, &small) == 0);
    r = COMMAND("report", folder);
    DT_ASSERT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    COMMAND_ENDS(1, r, "report.html: File too large");
    DT_ASSERT_EQ_INT(dt_test_count_files(folder, ""), 1);
}
