/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of tokens, and folders of runs, for tests of `dtensor train`. */
#ifndef DT_TESTS_CLI_TRAIN_H
#define DT_TESTS_CLI_TRAIN_H

#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <unistd.h>

#include "tests/cli/command.h"

enum { TRAIN_PATH_BYTES = DT_TEST_PATH_BYTES + 64, TRAIN_TOKENS = 4096, TRAIN_VOCAB = 100 };

/* A folder with tokens that follow each other, "data.bin", and room for runs. */
typedef struct train_place {
    char folder[DT_TEST_PATH_BYTES], model[DT_TEST_PATH_BYTES];
    char data[TRAIN_PATH_BYTES], run[TRAIN_PATH_BYTES], other[TRAIN_PATH_BYTES];
} train_place;

static inline void train_write_tokens(const train_place *p, const char *name, uint16_t most)
{
    uint16_t tokens[TRAIN_TOKENS];

    for (int i = 0; i < TRAIN_TOKENS; i++) tokens[i] = (uint16_t)(i * i / 7 % most);
    dt_test_write_file(p->folder, name, tokens, sizeof tokens);
}

static inline void train_open(train_place *p)
{
    (void)dt_test_temp_dir(p->folder);
    (void)dt_test_source_path(p->model, "tests/golden/llama/tied");
    (void)snprintf(p->data, sizeof p->data, "%s/data.bin", p->folder);
    (void)snprintf(p->run, sizeof p->run, "%s/run", p->folder);
    (void)snprintf(p->other, sizeof p->other, "%s/other", p->folder);
    train_write_tokens(p, "data.bin", TRAIN_VOCAB);
}

/* Line `step` of a run's metrics; freed with json_decref(). */
static inline json_t *train_metric(const char *run, int64_t step)
{
    char path[TRAIN_PATH_BYTES + 16], *text, *line;
    json_t *found = NULL;

    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    text = command_read(path);
    for (line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        if (o == NULL) dt_test_fail(__FILE__, __LINE__, "no JSON: %s", line);
        if (json_integer_value(json_object_get(o, "step")) == step && found == NULL)
            found = o;
        else
            json_decref(o);
    }
    if (found == NULL) dt_test_fail(__FILE__, __LINE__, "no step %" PRId64 " in %s", step, path);
    return found;
}

static inline double train_number(const char *run, int64_t step, const char *key)
{
    json_t *o = train_metric(run, step);
    const json_t *v = json_object_get(o, key);
    const double number = json_number_value(v);

    if (!json_is_number(v)) dt_test_fail(__FILE__, __LINE__, "step %" PRId64 ": no %s", step, key);
    json_decref(o);
    return number;
}

/* Lines of a run's metrics. */
static inline int train_lines(const char *run)
{
    char path[TRAIN_PATH_BYTES + 16], *text;
    int n = 0;

    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    text = command_read(path);
    for (const char *c = text; *c != '\0'; c++) n += *c == '\n';
    return n;
}

#endif
