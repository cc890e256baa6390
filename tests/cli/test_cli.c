/* SPDX-License-Identifier: Apache-2.0
 *
 * The command from outside: what it prints, where, and how it ends. */
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "files/safetensors.h"
#include "tests/cli/command.h"

enum { MAX_IDS = 64, IDS_BYTES = 512 };

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

static const char *demo(void)
{
    return "examples/checkpoint";
}

/* The ids of a tensor of a fixture. */
static int64_t read_ids(const char *folder, const char *name, int64_t ids[MAX_IDS])
{
    char path[DT_TEST_PATH_BYTES + 32];
    const dti_st_entry *e;
    dti_st_stage stage;
    dti_st_file *file;
    int64_t n;

    (void)snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    DT_ASSERT_OK(dti_st_open(path, &file));
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    e = dti_st_find(file, name);
    DT_ASSERT(e != NULL && e->dtype == DT_I64 && e->n_axes == 1 && e->shape[0] <= MAX_IDS);
    DT_ASSERT_OK(dti_st_read_slice(file, e, NULL, NULL, DT_I64, &stage, ids));
    n = e->shape[0];
    dti_st_stage_destroy(&stage);
    dti_st_close(&file);
    return n;
}

static const char *join_ids(const int64_t *ids, int64_t n, char separator, char text[IDS_BYTES])
{
    size_t used = 0;

    text[0] = '\0';
    for (int64_t i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, IDS_BYTES - used, "%.*s%lld", i > 0, &separator,
                                 (long long)ids[i]);
    return text;
}

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, &error);

    if (v == NULL) dt_test_fail(__FILE__, __LINE__, "%s in %.300s", error.text, text);
    return v;
}

/* --- help ---------------------------------------------------------------------------------------
 */

DT_TEST(cli, help_needs_no_model_and_goes_to_stdout)
{
    static const char *const words[][2] = {
        { "--help", NULL },       { "-h", NULL },     { "--version", NULL },
        { "generate", "--help" }, { "logits", "-h" }, { "inspect", "--help" },
    };

    for (size_t i = 0; i < DT_COUNT(words); i++) {
        command_result r = COMMAND_ENDS(
            0, command_run(NULL, (const char *const[]){ words[i][0], words[i][1], NULL }));
        DT_ASSERT_EQ_STR(r.err, "");
        COMMAND_ASSERT_HAS(r.out, "dtensor");
    }
}

DT_TEST(cli, help_of_a_command_lists_its_options)
{
    command_result r = COMMAND("generate", "--help");

    COMMAND_ASSERT_HAS(r.out, "--max-new-tokens N");
    COMMAND_ASSERT_HAS(r.out, "-m, --model DIR");
    COMMAND_ASSERT_HAS(r.out, "--ignore-eos");
    r = COMMAND("logits", "--help");
    DT_ASSERT(strstr(r.out, "--max-new-tokens") == NULL);
}

DT_TEST(cli, version_names_kernels_and_libraries)
{
    command_result r = COMMAND("--version");

    COMMAND_ASSERT_HAS(r.out, dt_version());
    COMMAND_ASSERT_HAS(r.out, "portable");
    COMMAND_ASSERT_HAS(r.out, "oneDNN");
}

/* --- generate -----------------------------------------------------------------------------------
 */

/* prompt and greedy tokens, as the command prints them for a folder without a tokenizer. */
static void expect_greedy(const char *fixture, const char *mesh)
{
    int64_t ids[2 * MAX_IDS];
    char folder[DT_TEST_PATH_BYTES], prompt[IDS_BYTES], all[IDS_BYTES];
    char count[16], want[IDS_BYTES + 2];
    int64_t n_prompt, n_new;
    command_result r;

    (void)dt_test_source_path(folder, "tests/golden/%s", fixture);
    n_prompt = read_ids(folder, "prompt", ids);
    n_new = read_ids(folder, "greedy_f32", ids + n_prompt);
    (void)join_ids(ids, n_prompt, ',', prompt);
    (void)snprintf(want, sizeof want, "%s\n", join_ids(ids, n_prompt + n_new, ' ', all));
    (void)snprintf(count, sizeof count, "%lld", (long long)n_new);
    r = COMMAND_ENDS(0, COMMAND("generate", "--model", folder, "--tokens", prompt, "--mesh", mesh,
                                "--dtype", "f32", "--max-new-tokens", count, "--ignore-eos",
                                "--threads", "1"));
    DT_ASSERT_EQ_STR(r.out, want);
    COMMAND_ASSERT_HAS(r.err, mesh);
    COMMAND_ASSERT_HAS(r.err, "rank 0");
    COMMAND_ASSERT_HAS(r.err, "tokens/s");
}

DT_TEST(cli, generate_gives_the_golden_tokens_on_every_mesh)
{
    static const char *const fixtures[] = {
        "llama/uneven", "llama/tied",   "llama/biases", "llama/sharded",
        "qwen3/base",   "qwen3/uneven", "gpt_neo/base", "gpt_neo/uneven",
    };

    for (size_t f = 0; f < DT_COUNT(fixtures); f++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) expect_greedy(fixtures[f], meshes[m]);
}

DT_TEST(cli, generate_streams_prompt_and_text)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r =
        COMMAND_ENDS(0, COMMAND("generate", "--model", dt_test_source_path(folder, "%s", demo()),
                                "--prompt", "ROMEO:", "--mesh", "tp=2", "-n", "12"));

    DT_ASSERT(strncmp(r.out, "ROMEO:", 6) == 0 && strlen(r.out) > 12);
    DT_ASSERT_EQ_INT(r.out[strlen(r.out) - 1], '\n');
    COMMAND_ASSERT_HAS(r.err, "llama, 1.8 M parameters in bf16, mesh tp=2");
    COMMAND_ASSERT_HAS(r.err, "rank 1");
}

DT_TEST(cli, generate_json_agrees_with_what_is_streamed)
{
    char folder[DT_TEST_PATH_BYTES], streamed[4096];
    const char *text;
    command_result r;
    json_t *v;

    (void)dt_test_source_path(folder, "%s", demo());
    r = COMMAND_ENDS(
        0, COMMAND("generate", "-m", folder, "-p", "ROMEO:", "-n", "12", "--mesh", "tp=2", "-q"));
    DT_ASSERT_EQ_STR(r.err, "");
    (void)snprintf(streamed, sizeof streamed, "%s", r.out);
    r = COMMAND_ENDS(0, COMMAND("generate", "-m", folder, "-p", "ROMEO:", "-n", "12", "--mesh",
                                "tp=2", "--json"));
    v = parse(r.out);
    text = json_string_value(json_object_get(v, "text"));
    DT_ASSERT(text != NULL && strncmp(streamed + 6, text, strlen(text)) == 0);
    DT_ASSERT_EQ_INT(json_array_size(json_object_get(v, "tokens")), 12);
    DT_ASSERT_EQ_INT(json_array_size(json_object_get(v, "prompt_tokens")), 3);
    DT_ASSERT_EQ_INT(json_array_size(json_object_get(v, "ranks")), 2);
    DT_ASSERT(json_is_number(json_object_get(json_object_get(v, "timing"), "prompt_s")));
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(v, "stop")), "length");
    json_decref(v);
}

DT_TEST(cli, generate_says_how_tokens_spread_over_experts)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r;
    json_t *v, *layer;

    (void)dt_test_source_path(folder, "tests/golden/qwen3_moe/uneven");
    r = COMMAND_ENDS(0, COMMAND("generate", "-m", folder, "-t", "3,5,7", "-n", "4", "--mesh",
                                "tp=2", "--ignore-eos", "--json"));
    COMMAND_ASSERT_HAS(r.err, "experts    the most chosen has ");
    v = parse(r.out);
    layer = json_array_get(json_object_get(v, "experts"), 1); /* the block between has none */
    DT_ASSERT_EQ_INT(json_array_size(json_object_get(v, "experts")), 2);
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(layer, "layer")),
                     "model.layers.2.mlp.experts");
    DT_ASSERT(json_number_value(json_object_get(layer, "imbalance")) >= 1);
    DT_ASSERT(json_integer_value(json_object_get(layer, "unused")) < 5);
    json_decref(v);
    (void)dt_test_source_path(folder, "%s", demo());
    r = COMMAND_ENDS(0, COMMAND("generate", "-m", folder, "-p", "ROMEO:", "-n", "2", "--json"));
    DT_ASSERT(strstr(r.out, "\"experts\"") == NULL && strstr(r.err, "experts") == NULL);
}

DT_TEST(cli, a_prompt_file_loses_one_final_newline)
{
    char folder[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 16], model[DT_TEST_PATH_BYTES];
    command_result a, b;

    (void)dt_test_source_path(model, "%s", demo());
    dt_test_write_file(dt_test_temp_dir(folder), "prompt.txt", "JULIET:\n", 8);
    (void)snprintf(file, sizeof file, "%s/prompt.txt", folder);
    a = COMMAND("generate", "-m", model, "--prompt-file", file, "-n", "8", "-q");
    b = COMMAND("generate", "-m", model, "--prompt=JULIET:", "-n8", "-q");
    COMMAND_ENDS(0, a);
    COMMAND_ENDS(0, b);
    DT_ASSERT_EQ_STR(a.out, b.out);
    dt_test_write_file(folder, "prompt.txt", "JULIET:\r\n", 9);
    a = COMMAND_ENDS(0, COMMAND("generate", "-m", model, "--prompt-file", file, "-n", "8", "-q"));
    DT_ASSERT_EQ_STR(a.out, b.out);
    dt_test_write_file(folder, "prompt.txt", "\r\nJULIET:\r\n\nROMEO:", 18);
    a = COMMAND_ENDS(0, COMMAND("generate", "-m", model, "--prompts-file", file, "-n", "8", "-q"));
    DT_ASSERT(strstr(a.out, "\r") == NULL && strstr(a.out, "\n---\nROMEO:") != NULL);
}

/* --max-new-tokens is 100 by default, more than these contexts have room for. */
DT_TEST(cli, the_default_length_gives_way_to_the_context)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r =
        COMMAND("generate", "-m", dt_test_source_path(folder, "tests/golden/llama/tied"), "-t",
                "1,2,3,4", "--ignore-eos", "--json");
    json_t *v;

    COMMAND_ENDS(0, r);
    v = parse(r.out);
    DT_ASSERT_EQ_INT(json_array_size(json_object_get(v, "tokens")), 60);
    DT_ASSERT(json_is_null(json_object_get(v, "text")));
    json_decref(v);
}

/* A plan that leaves everything whole changes where weights lie and no token. */
DT_TEST(cli, a_plan_file_overrides_the_built_in_styles)
{
    static const char plan[] = "{\"model.layers.*.mlp.gate_proj\": \"replicate\","
                               " \"model.layers.*.mlp.up_proj\": {\"tp\": \"replicate\"},"
                               " \"model.layers.*.mlp.down_proj\": \"replicate\"}";
    char folder[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 16], model[DT_TEST_PATH_BYTES];
    command_result r[2];
    json_t *v[2];
    int64_t bytes[2];

    (void)dt_test_source_path(model, "tests/golden/llama/sharded");
    dt_test_write_file(dt_test_temp_dir(folder), "plan.json", plan, sizeof plan - 1);
    (void)snprintf(file, sizeof file, "%s/plan.json", folder);
    r[0] = COMMAND("generate", "-m", model, "-t", "5,6", "-n", "8", "--mesh", "tp=2", "--json");
    r[1] = COMMAND("generate", "-m", model, "-t", "5,6", "-n", "8", "--mesh", "tp=2", "--json",
                   "--plan", file);
    for (int i = 0; i < 2; i++) {
        COMMAND_ENDS(0, r[i]);
        v[i] = parse(r[i].out);
        bytes[i] = json_integer_value(
            json_object_get(json_array_get(json_object_get(v[i], "ranks"), 0), "bytes"));
    }
    DT_ASSERT(json_equal(json_object_get(v[0], "tokens"), json_object_get(v[1], "tokens")));
    DT_ASSERT(bytes[1] > bytes[0]);
    for (int i = 0; i < 2; i++) {
        json_decref(v[i]);
    }
}

static void *write_plan(void *path)
{
    FILE *f = fopen(path, "w"); /* waits for the reader */

    if (f == NULL) return NULL;
    (void)fputs("{\"model.layers.*.mlp.up_proj\": \"colwise\"}", f);
    (void)fclose(f);
    return path;
}

DT_TEST(cli, a_plan_may_come_out_of_a_pipe)
{
    char folder[DT_TEST_PATH_BYTES], pipe[DT_TEST_PATH_BYTES + 16], model[DT_TEST_PATH_BYTES];
    command_result r;
    pthread_t writer;

    (void)dt_test_source_path(model, "tests/golden/llama/tied");
    (void)snprintf(pipe, sizeof pipe, "%s/plan", dt_test_temp_dir(folder));
    DT_ASSERT_EQ_INT(mkfifo(pipe, 0600), 0);
    DT_ASSERT_EQ_INT(pthread_create(&writer, NULL, write_plan, pipe), 0);
    r = COMMAND("logits", "-m", model, "-t", "5,6", "--mesh", "tp=2", "--plan", pipe);
    DT_ASSERT_EQ_INT(pthread_join(writer, NULL), 0);
    COMMAND_ENDS(0, r);
    COMMAND_ASSERT_HAS(r.err, pipe);
}

/* --- logits -------------------------------------------------------------------------------------
 */

DT_TEST(cli, logits_are_json_of_the_right_shape_on_every_mesh)
{
    char folder[DT_TEST_PATH_BYTES];
    json_t *first = NULL;

    (void)dt_test_source_path(folder, "tests/golden/llama/uneven");
    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        command_result r = COMMAND("logits", "-m", folder, "-t", "7,8,9", "--mesh", meshes[m],
                                   "--dtype", "f32", "--json", "-q");
        json_t *v, *rows;
        COMMAND_ENDS(0, r);
        DT_ASSERT_EQ_STR(r.err, "");
        v = parse(r.out);
        rows = json_object_get(v, "logits");
        DT_ASSERT_EQ_INT(json_integer_value(json_array_get(json_object_get(v, "shape"), 0)), 3);
        DT_ASSERT_EQ_INT(json_integer_value(json_array_get(json_object_get(v, "shape"), 1)), 257);
        DT_ASSERT_EQ_INT(json_array_size(rows), 3);
        if (first == NULL) first = json_incref(rows);
        for (size_t i = 0; i < (size_t)3 * 257; i++) {
            const json_t *ours = json_array_get(json_array_get(rows, i / 257), i % 257);
            const json_t *theirs = json_array_get(json_array_get(first, i / 257), i % 257);
            DT_ASSERT(json_is_number(ours));
            DT_ASSERT_CLOSE(json_number_value(ours), json_number_value(theirs), 1e-4);
        }
        json_decref(v);
    }
    json_decref(first);
}

DT_TEST(cli, logits_without_json_are_a_table)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r =
        COMMAND("logits", "-m", dt_test_source_path(folder, "%s", demo()), "-t", "5,6,7", "-q");
    int lines = 0;

    COMMAND_ENDS(0, r);
    for (const char *c = r.out; *c != '\0'; c++) lines += *c == '\n';
    DT_ASSERT_EQ_INT(lines, 4);
}

/* --- inspect ------------------------------------------------------------------------------------
 */

DT_TEST(cli, inspect_says_what_a_checkpoint_is)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r =
        COMMAND_ENDS(0, COMMAND("inspect", dt_test_source_path(folder, "%s", demo())), "llama",
                     "1771200", "tokenizer.json, 1024 tokens", "supported   yes");

    DT_ASSERT_EQ_STR(r.err, "");
}

DT_TEST(cli, inspect_json_has_the_same_facts)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r =
        COMMAND("inspect", dt_test_source_path(folder, "tests/golden/llama/sharded"), "--json");
    json_t *v;

    COMMAND_ENDS(0, r);
    v = parse(r.out);
    DT_ASSERT(json_is_true(json_object_get(v, "supported")));
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(v, "model_type")), "llama");
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(v, "files")), 3);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(v, "vocab_size")), 120);
    DT_ASSERT(json_is_null(json_object_get(v, "tokenizer")));
    json_decref(v);
}

/* --- ranks that fail ----------------------------------------------------------------------------
 */

DT_TEST(cli, a_rank_that_fails_ends_the_run_and_is_named)
{
    static const char *const faults[] = {
        "DTENSOR_FAULT=rank=1,op=all_reduce,call=3",
        "DTENSOR_FAULT=rank=1,op=any,call=1",
        "DTENSOR_FAULT=rank=1,op=any,call=20",
    };
    char folder[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(folder, "%s", demo());
    for (size_t i = 0; i < DT_COUNT(faults); i++) {
        command_result r = COMMAND_ENDS(5,
                                        COMMAND_ENV(faults[i], "generate", "-m", folder, "-p",
                                                    "ROMEO:", "--mesh", "tp=2", "-q"),
                                        "rank 1", "dtensor: ");
        DT_ASSERT(strstr(r.err, "    at ") == NULL);
    }
}

DT_TEST(cli, verbose_shows_the_path_of_an_error)
{
    COMMAND_ENDS(2, COMMAND("generate", "--model", "nowhere", "-t", "1", "--verbose"), "    at ");
    COMMAND_ENDS(2, COMMAND_ENV("DTENSOR_VERBOSE=1", "generate", "--model", "nowhere", "-t", "1"),
                 "    at ");
}

DT_TEST(cli, save_writes_a_folder_that_generates_the_same)
{
    char model[DT_TEST_PATH_BYTES], temporary[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 8];
    command_result r, before, after;

    (void)dt_test_source_path(model, "examples/checkpoint");
    (void)dt_test_temp_dir(temporary);
    (void)snprintf(to, sizeof to, "%s/new", temporary);
    COMMAND_ENDS(0,
                 COMMAND("save", "-m", model, "-o", to, "--mesh", "tp=2", "--max-shard-size",
                         "300KB", "--json"),
                 "\"output\":");
    before = COMMAND("generate", "-q", "-m", model, "-p", "ROMEO:", "-n", "20");
    after = COMMAND_ENDS(0, COMMAND("generate", "-q", "-m", to, "-p", "ROMEO:", "-n", "20"));
    DT_ASSERT_EQ_STR(after.out, before.out);
    r = COMMAND_ENDS(2, COMMAND("save", "-m", model, "-o", to), "holds weights already");
    DT_ASSERT(strstr(r.err, "parameters") == NULL); /* before it reads weights */
    COMMAND_ENDS(2, COMMAND("save", "-m", model, "-o", to, "--max-shard-size", "5 apples"),
                 "is no size");
    r = COMMAND("save", "-m", model, "-o", to, "--max-shard-size", "1e6");
    COMMAND_ASSERT_HAS(r.err, "\"1e6\" is no size");
    COMMAND_ENDS(2, COMMAND("save", "-m", model), "--output");
}

/* A disk that is full, as the system's limit of a file's size has it. */
DT_TEST(cli, save_on_a_full_disk_is_no_bad_input_and_leaves_nothing)
{
    char model[DT_TEST_PATH_BYTES], temporary[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 8];
    struct rlimit limit, small;
    command_result r;

    (void)dt_test_source_path(model, "examples/checkpoint");
    (void)dt_test_temp_dir(temporary);
    (void)snprintf(to, sizeof to, "%s/new", temporary);
    DT_ASSERT(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    small = limit;
    small.rlim_cur = 1 << 17;
    DT_ASSERT(setrlimit(RLIMIT_FSIZE, &small) == 0);
    r = COMMAND("save", "-q", "-m", model, "-o", to);
    DT_ASSERT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    COMMAND_ENDS(1, r, "model.safetensors.tmp: cannot have ", "File too large");
    DT_ASSERT(access(to, F_OK) != 0);
    r = COMMAND("save", "-q", "-m", model, "-o", "/dev/null/new"); /* bad input */
    COMMAND_ENDS(2, r, "dtensor: --output: /dev/null/new: cannot be made");
    DT_ASSERT(symlink("nowhere", to) == 0);
    COMMAND_ENDS(2, COMMAND("save", "-q", "-m", model, "-o", to),
                 "new: cannot be made: it is a symbolic link to nothing");
}
