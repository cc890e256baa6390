/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor gradients: what it prints and writes against Transformers' own, under the names of the
 * checkpoint's files. */
#include <jansson.h>
#include <math.h>
#include <sys/resource.h>

#include "files/safetensors.h"
#include "tests/cli/command.h"
#include "tests/support/gradient_golden.h"

enum { TEXT_BYTES = 4096, PATH_BYTES = DT_TEST_PATH_BYTES + 32 };

/* Of the largest gradient of a parameter in f32, as in tests/models/test_gradients.c. */
#define TOLERANCE 3e-5

static json_t *parse(const command_result *r)
{
    json_t *v = json_loads(r->out, JSON_REJECT_DUPLICATES, NULL);

    if (v == NULL) dt_test_fail(__FILE__, __LINE__, "no JSON: %.300s%.300s", r->out, r->err);
    return v;
}

/* "1,2,3;4,5,6" */
static const char *join(const int32_t *ids, int64_t rows, int64_t length, char text[TEXT_BYTES])
{
    size_t used = 0;

    for (int64_t i = 0; i < rows * length; i++)
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%s%d",
                                 i == 0            ? ""
                                 : i % length == 0 ? ";"
                                                   : ",",
                                 ids[i]);
    return text;
}

/* All of a tensor that the command has written; freed by the caller. */
static float *read_gradient(const dti_st_file *file, const dt_golden_gradient *golden)
{
    const dti_st_entry *e = dti_st_find(file, golden->name);
    dti_st_stage stage;
    float *values = malloc((size_t)golden->n * sizeof *values);

    if (e == NULL) dt_test_fail(__FILE__, __LINE__, "%s is not in the file", golden->name);
    DT_ASSERT(values != NULL && e->dtype == DT_F32 && e->n_axes == golden->n_axes);
    for (int a = 0; a < e->n_axes; a++) DT_ASSERT_EQ_INT(e->shape[a], golden->shape[a]);
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_OK(dti_st_read_slice(file, e, NULL, NULL, DT_F32, &stage, values));
    dti_st_stage_destroy(&stage);
    return values;
}

static const json_t *printed(const json_t *all, const char *name)
{
    for (size_t i = 0; i < json_array_size(all); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(all, i), "name")), name) == 0)
            return json_array_get(all, i);
    dt_test_fail(__FILE__, __LINE__, "%s is not printed", name);
    return NULL;
}

static void check_printed(const json_t *all, const dt_golden_gradient *golden)
{
    const json_t *one = printed(all, golden->name), *shape = json_object_get(one, "shape");

    DT_ASSERT_EQ_INT(json_array_size(shape), golden->n_axes);
    for (int a = 0; a < golden->n_axes; a++)
        DT_ASSERT_EQ_INT(json_integer_value(json_array_get(shape, (size_t)a)), golden->shape[a]);
    DT_ASSERT_CLOSE(json_number_value(json_object_get(one, "max")), golden->largest,
                    TOLERANCE * golden->largest);
    DT_ASSERT_CLOSE(json_number_value(json_object_get(one, "rms")), golden->rms,
                    TOLERANCE * golden->largest);
}

static void check_case(const char *fixture, const char *which, const char *mesh, const char *more)
{
    char temporary[DT_TEST_PATH_BYTES], path[PATH_BYTES], tokens[TEXT_BYTES], labels[TEXT_BYTES];
    DT_ENDS(dt_gradient_golden_close) dt_gradient_golden golden;
    dti_st_file *file;
    command_result r;
    json_t *v, *all;

    DT_ASSERT_OK(dt_gradient_golden_open(fixture, which, &golden));
    (void)snprintf(path, sizeof path, "%s/gradients", dt_test_temp_dir(temporary));
    r = COMMAND_ENDS(0, COMMAND("gradients", "-q", "-m", golden.folder, "-t",
                                join(golden.tokens, golden.rows, golden.length, tokens), "--labels",
                                join(golden.targets, golden.rows, golden.length, labels), "--mesh",
                                mesh, "--dtype", "f32", "--json", "-o", path, more));
    DT_ASSERT_EQ_STR(r.err, "");
    v = parse(&r);
    all = json_object_get(v, "gradients");
    DT_ASSERT_CLOSE(json_number_value(json_object_get(v, "loss")), golden.loss_f64,
                    2e-6 * golden.loss_f64);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(v, "n_valid")), golden.n_valid);
    DT_ASSERT_EQ_INT(json_array_size(all), golden.n_gradients);
    DT_ASSERT_OK(dti_st_open(path, &file));
    DT_ASSERT_EQ_INT(dti_st_count(file), golden.n_gradients);
    for (size_t i = 0; i < golden.n_gradients; i++) {
        const dt_golden_gradient *g = &golden.gradients[i];
        float *values = read_gradient(file, g);
        const double off = dt_golden_gradient_off_f32(g, values);
        if (!(off <= TOLERANCE))
            dt_test_fail(__FILE__, __LINE__, "%s %s on %s: %s is off by %.3g of its largest",
                         fixture, which, mesh, g->name, off);
        for (int64_t k = 0; k < g->n; k++) values[k] *= 2; /* what must be seen */
        DT_ASSERT(g->largest == 0 || dt_golden_gradient_off_f32(g, values) > 0.4);
        check_printed(all, g);
        free(values);
    }
    dti_st_close(&file);
    json_decref(v);
}

/* One checkpoint of each architecture; names in the files of gemma3/multimodal are not ours. */
DT_TEST(cli_gradients, are_those_of_transformers_under_the_names_of_the_files)
{
    static const char *const fixtures[] = { "llama/uneven",      "qwen2/windows", "qwen3/base",
                                            "gemma3/multimodal", "phi3/base",     "qwen3_moe/base",
                                            "gpt_neo/base" };

    for (size_t f = 0; f < DT_COUNT(fixtures); f++) {
        check_case(fixtures[f], "short", "tp=3", "--chunk=4");
        check_case(fixtures[f], "long", "tp=2", "--sequence-parallel");
        check_case(fixtures[f], "long", "dp=2,tp=2", NULL);
    }
}

/* --- options ---------------------------------------------------------------------------------- */

static const char *demo(char path[DT_TEST_PATH_BYTES])
{
    return dt_test_source_path(path, "examples/checkpoint");
}

#define GRADIENTS(model, ...) COMMAND("gradients", "-q", "-m", model, __VA_ARGS__)

DT_TEST(cli_gradients, labels_are_the_next_tokens_unless_they_are_given)
{
    char model[DT_TEST_PATH_BYTES];
    command_result a, b;

    (void)demo(model);
    a = GRADIENTS(model, "-t", "5,6,7; 8,9,10", "--json");
    b = GRADIENTS(model, "-t", "5,6,7;8,9,10", "--labels", "6,7,-100;9,10,-100", "--json");
    COMMAND_ENDS(0, a);
    COMMAND_ENDS(0, b);
    DT_ASSERT_EQ_STR(a.out, b.out);
    b = GRADIENTS(model, "-t", "5,6,7;8,9,10", "--labels", "6,7,-100;9,11,-100", "--json");
    DT_ASSERT(strcmp(a.out, b.out) != 0);
}

DT_TEST(cli_gradients, of_a_text_are_those_of_its_tokens)
{
    char model[DT_TEST_PATH_BYTES], tokens[TEXT_BYTES];
    command_result ids, a, b;
    size_t n;

    (void)demo(model);
    ids = COMMAND("tokenize", "-m", model, "-p", "ROMEO: O, speak");
    (void)snprintf(tokens, sizeof tokens, "%s", ids.out);
    for (n = strlen(tokens); n > 0 && tokens[n - 1] == '\n'; n--) tokens[n - 1] = '\0';
    a = GRADIENTS(model, "-p", "ROMEO: O, speak", "--mesh", "tp=2");
    b = GRADIENTS(model, "-t", tokens, "--mesh", "tp=2");
    COMMAND_ENDS(0, a);
    DT_ASSERT_EQ_STR(a.out, b.out);
    COMMAND_ASSERT_HAS(a.out, "loss ");
    COMMAND_ASSERT_HAS(a.out, "  model.layers.3.self_attn.k_proj.weight [64, 192]\n");
}

/* What is run again has the same bits, and less is kept for it. */
DT_TEST(cli_gradients, have_the_same_bits_whatever_is_recomputed)
{
    static const char *const words[] = { "none", "cheap", "blocks" };
    char model[DT_TEST_PATH_BYTES], temporary[DT_TEST_PATH_BYTES], path[PATH_BYTES];
    char *first = NULL;
    int64_t kept = INT64_MAX;

    (void)demo(model);
    (void)snprintf(path, sizeof path, "%s/g", dt_test_temp_dir(temporary));
    for (size_t i = 0; i < DT_COUNT(words); i++) {
        command_result r = GRADIENTS(model, "-t", "1,2,3,4,5,6,7,8,9,10,11,12", "--mesh", "tp=2",
                                     "--recompute", words[i], "--json", "-o", path);
        json_t *v;
        int64_t bytes;
        char *file;
        COMMAND_ENDS(0, r);
        v = parse(&r);
        bytes = json_integer_value(json_object_get(v, "kept_bytes"));
        DT_ASSERT(bytes > 0 && bytes < kept);
        kept = bytes;
        file = command_read(path);
        if (first == NULL) first = command_read(path);
        DT_ASSERT(memcmp(file, first, (size_t)1771200 * sizeof(float)) == 0);
        json_decref(v);
    }
}

/* --- mistakes --------------------------------------------------------------------------------- */

DT_TEST(cli_gradients, mistakes_are_named)
{
    static const struct {
        const char *words[4], *said;
    } cases[] = {
        { { "-t", "1,2,3", "--labels", "2,1024,1" },
          "--labels: label 1024 (item 2) is outside the model's vocabulary, 0..1023; -100 is" },
        { { "-t", "1,2,3", "--labels", "2,-99,1" }, "--labels: label -99 (item 2) is outside" },
        { { "-t", "1,2,3", "--labels", "2,x,1" }, "--labels: \"x\" (item 2) is not a label" },
        { { "-t", "1,2,3", "--labels", "2,3" }, "--labels: 2 in each of 1 row, but the input has" },
        { { "-t", "1,2;3,4", "--labels", "2,3,4,5" }, "has 2 tokens in each of 2" },
        { { "-t", "1,2;3,4", "--labels", "2,3;4" }, "--labels: row 2 has 1 ids, row 1 has 2" },
        { { "-t", "1,2,3", "--labels", "-100,-100,-100" }, "--labels: all are -100" },
        { { "-t", "1;2" }, "a row of the input is one token, which no other follows" },
        { { "-t", "1,2;3,1024" }, "--tokens: token id 1024 (row 2, item 2) is outside" },
        { { "-t", "1,-100" }, "--tokens: \"-100\" (item 2) is not a token id" },
        { { "-t", "1,2;3" }, "--tokens: row 2 has 1 ids, row 1 has 2; rows are equally long" },
        { { "-t", "1,2;" }, "--tokens: row 2 is empty" },
        { { "-t", "1,2", "-p", "a" }, "more than one prompt" },
        { { "--labels", "1" }, "no prompt; give one of" },
        { { "-t", "1,2", "--recompute", "all" }, "--recompute: \"all\" is unknown; choose none" },
        { { "-t", "1,2", "--chunk", "0" }, "--chunk: \"0\" is not a number" },
        { { "-t", "1,2", "-o", "/dev/null" }, "--output: /dev/null is no regular file" },
        { { "-t", "1,2", "-o", "/tmp" }, "--output: /tmp is a folder; name a file" },
        { { "-t", "1,2", "-o", "/dev/null/g" }, "cannot be created: Not a directory" },
    };
    char model[DT_TEST_PATH_BYTES];

    (void)demo(model);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const char *const *w = cases[i].words;
        command_result r = COMMAND_ENDS(2, GRADIENTS(model, w[0], w[1], w[2], w[3]), cases[i].said);
        DT_ASSERT_EQ_STR(r.out, "");
    }
}

/* Even a name that is free there would be read as weights one day. */
DT_TEST(cli_gradients, are_not_written_beside_the_weights)
{
    char model[DT_TEST_PATH_BYTES], path[PATH_BYTES];
    static const char *const names[][2] = {
        { "model.safetensors", "is a file that this command reads" },
        { "../checkpoint/g.safetensors",
          "lies in the folder of a model, under a name of its own" }
    };

    (void)demo(model);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", model, names[i][0]);
        COMMAND_ENDS(2, GRADIENTS(model, "-t", "1,2", "-o", path), names[i][1]);
    }
}

/* A folder of links, as the cache of the Hub is: its weights lie elsewhere. */
DT_TEST(cli_gradients, are_not_written_over_what_is_read)
{
    char model[DT_TEST_PATH_BYTES], cache[DT_TEST_PATH_BYTES], from[PATH_BYTES], link[PATH_BYTES];
    static const char *const names[] = { "config.json", "model.safetensors" };
    command_result r;

    (void)demo(model);
    (void)dt_test_temp_dir(cache);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        (void)snprintf(from, sizeof from, "%s/%s", model, names[i]);
        (void)snprintf(link, sizeof link, "%s/%s", cache, names[i]);
        DT_ASSERT(symlink(from, link) == 0);
    }
    r = GRADIENTS(cache, "-t", "1,2", "-o", from); /* the demo's own weights */
    COMMAND_ENDS(2, r, "is a file that this command reads");
}

/* A disk that is full, as the system's limit of a file's size has it. */
DT_TEST(cli_gradients, replace_a_file_only_when_they_are_complete)
{
    char model[DT_TEST_PATH_BYTES], temporary[DT_TEST_PATH_BYTES], path[PATH_BYTES], *there;
    struct rlimit limit, small;
    command_result r;

    (void)demo(model);
    dt_test_write_file(dt_test_temp_dir(temporary), "g", "old", 3);
    (void)snprintf(path, sizeof path, "%s/g", temporary);
    DT_ASSERT(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    small = limit;
    small.rlim_cur = 1 << 20;
    DT_ASSERT(setrlimit(RLIMIT_FSIZE, &small) == 0);
    r = GRADIENTS(model, "-t", "1,2,3", "--mesh", "tp=2", "-o", path);
    DT_ASSERT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    COMMAND_ENDS(1, r);
    COMMAND_ASSERT_HAS(r.err, "dtensor: rank 0: "); /* whoever reports it */
    COMMAND_ASSERT_HAS(r.err, "File too large");
    there = command_read(path);
    DT_ASSERT_EQ_STR(there, "old");
    DT_ASSERT_EQ_INT(dt_test_count_files(temporary, ""), 1);
    COMMAND_ENDS(0, GRADIENTS(model, "-t", "1,2,3", "--mesh", "tp=2", "-o", path));
    there = command_read(path);
    DT_ASSERT(strcmp(there, "old") != 0);
    DT_ASSERT_EQ_INT(dt_test_count_files(temporary, ""), 1);
}

/* Neither of weights of 8 and 4 bits, nor is one told that there might be. */
DT_TEST(cli_gradients, are_of_weights_that_have_some)
{
    char model[DT_TEST_PATH_BYTES], temporary[DT_TEST_PATH_BYTES], packed[PATH_BYTES];
    static const char *const commands[] = { "gradients", "train" };
    command_result r;

    (void)demo(model);
    (void)snprintf(packed, sizeof packed, "%s/packed", dt_test_temp_dir(temporary));
    COMMAND_ENDS(0, COMMAND("save", "-q", "-m", model, "-o", packed, "--weights", "int4"));
    for (size_t i = 0; i < DT_COUNT(commands); i++) {
        r = COMMAND_ENDS(0, COMMAND(commands[i], "--help"));
        DT_ASSERT(strstr(r.out, "--weights") == NULL);
        COMMAND_ENDS(2, COMMAND(commands[i], "-m", model, "--weights", "int4"),
                     "there is no --weights: ", "dtensor save --weights");
    }
    COMMAND_ENDS(0, COMMAND("plan", "-m", packed), "1.8 M parameters"); /* codes, and no scales */
    COMMAND_ENDS(2, GRADIENTS(packed, "-t", "1,2,3"), "have no gradients; give the checkpoint");
    COMMAND_ENDS(2, COMMAND("train", "-q", "-m", packed, "--dry-run"), "have no gradients");
    COMMAND_ENDS(2, COMMAND("plan", "-m", packed, "--train"), "have no gradients");
    COMMAND_ENDS(2, COMMAND("plan", "-m", model, "--train", "--weights", "int8"),
                 "--weights int8: weights of 8 and 4 bits have no gradients");
}
