/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor verify: all faults of a checkpoint at once, and what is only odd. */
#include <jansson.h>
#include <sys/stat.h>

#include "tests/cli/command.h"

enum { PATH = DT_TEST_PATH_BYTES + 64 };

/* --- folders ------------------------------------------------------------------------------- */

static char *read_from(const char *folder, const char *name, size_t *bytes)
{
    char path[PATH];
    FILE *f;
    char *data;
    long n = 0;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "rb");
    DT_ASSERT(f != NULL && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) > 0);
    rewind(f);
    *bytes = (size_t)n;
    data = calloc(*bytes + 1, 1);
    DT_ASSERT(data != NULL && fread(data, 1, *bytes, f) == *bytes);
    (void)fclose(f);
    return data;
}

/* A copy of the fixture: Llama, tied, 2 layers, bf16, one file; and a token that ends texts. The
 * last `less` bytes of the weights are left out; the last number is NaN if that is wished. */
static void copy_fixture(const char *folder, size_t less, bool nan)
{
    static const char *const names[] = { "config.json", "model.safetensors" };
    static const char generation[] = "{\"eos_token_id\": 2}";
    char source[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(source, "tests/golden/llama/tied");
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        const bool weights = i == 1;
        size_t bytes;
        char *data = read_from(source, names[i], &bytes);
        if (weights && nan) memcpy(data + bytes - 2, "\xc0\x7f", 2);
        dt_test_write_file(folder, names[i], data, bytes - (weights ? less : 0));
        free(data);
    }
    dt_test_write_file(folder, "generation_config.json", generation, sizeof generation - 1);
}

/* Sets a key of a JSON file; `inside` NULL: of its root. value NULL: takes the key away. */
static void edit(const char *folder, const char *name, const char *inside, const char *key,
                 json_t *value)
{
    char path[PATH];
    json_t *root, *object;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    root = json_load_file(path, 0, NULL);
    object = inside != NULL ? json_object_get(root, inside) : root;
    DT_ASSERT(object != NULL);
    if (value != NULL)
        (void)json_object_set_new(object, key, value);
    else
        DT_ASSERT(json_object_del(object, key) == 0);
    DT_ASSERT(json_dump_file(root, path, 0) == 0);
    json_decref(root);
}

#define VERIFY(...) verify((const char *[]){ "verify", "--json", "-q", __VA_ARGS__, NULL })

/* The result of a run; the numbers of its findings. */
typedef struct verdict {
    int code;
    json_t *all;
    int errors, warnings;
} verdict;

static verdict verify(const char *const *words)
{
    command_result r = command_run(NULL, words);
    verdict v = { .code = r.code, .all = json_loads(r.out, 0, NULL) };

    if (v.all == NULL) dt_test_fail(__FILE__, __LINE__, "no JSON: %s%s", r.out, r.err);
    v.errors = (int)json_integer_value(json_object_get(v.all, "errors"));
    v.warnings = (int)json_integer_value(json_object_get(v.all, "warnings"));
    DT_ASSERT_EQ_INT(json_array_size(json_object_get(v.all, "findings")), v.errors + v.warnings);
    DT_ASSERT_EQ_INT(json_is_true(json_object_get(v.all, "ok")), v.errors == 0);
    DT_ASSERT_EQ_INT(v.code, v.errors == 0 ? 0 : 2);
    return v;
}

/* Some finding of that level and tensor (NULL: any) has the text in it. */
static void expect(const verdict *v, const char *level, const char *tensor, const char *part)
{
    const json_t *one;
    size_t i;

    json_array_foreach(json_object_get(v->all, "findings"), i, one)
    {
        const char *name = json_string_value(json_object_get(one, "tensor"));
        if (strcmp(json_string_value(json_object_get(one, "level")), level) == 0 &&
            (tensor == NULL || (name != NULL && strcmp(name, tensor) == 0)) &&
            strstr(json_string_value(json_object_get(one, "text")), part) != NULL)
            return;
    }
    dt_test_fail(__FILE__, __LINE__, "no %s of %s says \"%s\": %s", level,
                 tensor != NULL ? tensor : "anything", part, json_dumps(v->all, 0));
}

/* --- cases --------------------------------------------------------------------------------- */

DT_TEST(cli_verify, a_sound_checkpoint_is_sound)
{
    char model[DT_TEST_PATH_BYTES];
    verdict v;

    (void)dt_test_source_path(model, "examples/checkpoint");
    v = VERIFY("--values", model);
    DT_ASSERT_EQ_INT(v.errors, 0);
    DT_ASSERT_EQ_INT(v.warnings, 0);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(v.all, "values_read")) * 2,
                     json_integer_value(json_object_get(v.all, "bytes"))); /* bf16 */
    json_decref(v.all);
    COMMAND_ENDS(0, COMMAND("verify", model), ": 0 errors, 0 warnings\n");
}

DT_TEST(cli_verify, all_faults_are_listed)
{
    char folder[DT_TEST_PATH_BYTES];
    verdict v;

    (void)dt_test_temp_dir(folder);
    copy_fixture(folder, 0, false);
    edit(folder, "config.json", NULL, "intermediate_size", json_integer(24));
    v = VERIFY(folder);
    DT_ASSERT_EQ_INT(v.errors, 6); /* gate, up and down of two blocks */
    expect(&v, "error", "model.layers.0.mlp.gate_proj.weight", "but config.json asks for [24, ");
    expect(&v, "error", "model.layers.1.mlp.down_proj.weight", ", 24]");
    json_decref(v.all);
    edit(folder, "config.json", NULL, "num_hidden_layers", json_integer(3));
    v = VERIFY(folder);
    DT_ASSERT_EQ_INT(v.errors, 6 + 9); /* and a block that is not there */
    expect(&v, "error", "model.layers.2.self_attn.q_proj.weight", "is missing");
    json_decref(v.all);
    COMMAND_ENDS(2, COMMAND("verify", folder), "15 errors; standard output lists them");
}

DT_TEST(cli_verify, what_is_odd_is_a_warning)
{
    char folder[DT_TEST_PATH_BYTES];
    verdict v;

    (void)dt_test_temp_dir(folder);
    copy_fixture(folder, 0, false);
    edit(folder, "config.json", NULL, "num_hidden_layers", json_integer(1));
    edit(folder, "config.json", NULL, "layer_types", json_null());
    v = VERIFY(folder);
    DT_ASSERT_EQ_INT(v.errors, 0);
    DT_ASSERT_EQ_INT(v.warnings, 9);
    expect(&v, "warning", "model.layers.1.mlp.up_proj.weight", "is not used by the llama model");
    json_decref(v.all);
}

DT_TEST(cli_verify, numbers_are_read_on_request)
{
    char folder[DT_TEST_PATH_BYTES];
    verdict v;

    (void)dt_test_temp_dir(folder);
    copy_fixture(folder, 0, true);
    v = VERIFY(folder);
    DT_ASSERT_EQ_INT(v.errors, 0);
    json_decref(v.all);
    v = VERIFY(folder, "--values");
    DT_ASSERT_EQ_INT(v.errors, 1);
    expect(&v, "error", NULL, " values 1 are NaN and 0 infinite; the first is at [63]");
    json_decref(v.all);
}

DT_TEST(cli_verify, files_and_index_are_compared)
{
    char folder[DT_TEST_PATH_BYTES], sharded[PATH];
    static const char index[] = "model.safetensors.index.json";
    verdict v;

    (void)dt_test_temp_dir(folder);
    copy_fixture(folder, 0, false);
    (void)snprintf(sharded, sizeof sharded, "%s/sharded", folder);
    COMMAND_ENDS(0, COMMAND("save", "-q", "-m", folder, "-o", sharded, "--max-shard-size", "40KB"));
    v = VERIFY(sharded, "--values");
    DT_ASSERT_EQ_INT(v.errors + v.warnings, 0);
    DT_ASSERT(json_integer_value(json_object_get(v.all, "files")) > 1);
    json_decref(v.all);

    edit(sharded, index, "metadata", "total_size", json_integer(7));
    edit(sharded, index, "weight_map", "model.norm.weight", NULL);
    v = VERIFY(sharded);
    DT_ASSERT_EQ_INT(v.errors, 1);
    DT_ASSERT_EQ_INT(v.warnings, 2);
    expect(&v, "error", "model.norm.weight", "tensor model.norm.weight is missing");
    expect(&v, "warning", "model.norm.weight", "is not in the index: it is not used");
    expect(&v, "warning", NULL, "total_size is 7, but the tensors");
    json_decref(v.all);
}

/* Each by itself, and nothing is said of the tensors in them but how many there are. */
DT_TEST(cli_verify, all_missing_shards_are_listed)
{
    static const char *const gone[] = { "model-00002-of-00006.safetensors",
                                        "model-00004-of-00006.safetensors" };
    char folder[DT_TEST_PATH_BYTES], sharded[PATH], path[PATH + 64];
    verdict v;

    (void)dt_test_temp_dir(folder);
    copy_fixture(folder, 0, false);
    (void)snprintf(sharded, sizeof sharded, "%s/sharded", folder);
    COMMAND_ENDS(0, COMMAND("save", "-q", "-m", folder, "-o", sharded, "--max-shard-size", "40KB"));
    for (size_t i = 0; i < DT_COUNT(gone); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", sharded, gone[i]);
        DT_ASSERT(unlink(path) == 0);
    }
    dt_test_write_file(sharded, "model-00001-of-00006.safetensors", "x", 1);
    edit(sharded, "model.safetensors.index.json", "weight_map", "model.norm.weight",
         json_string("../model-00006-of-00006.safetensors"));
    edit(sharded, "config.json", NULL, "intermediate_size", json_integer(24));
    v = VERIFY(sharded, "--values");
    expect(&v, "error", NULL, "\"model-00002-of-00006.safetensors\" is missing; it holds ");
    expect(&v, "error", NULL, "\"model-00004-of-00006.safetensors\" is missing; it holds ");
    expect(&v, "error", NULL, "model-00001-of-00006.safetensors: is 1 bytes, too short");
    expect(&v, "error", "model.norm.weight", "must be the name of a file in the same folder");
    expect(&v, "error", "model.layers.1.mlp.down_proj.weight", "but config.json asks for [64, 24]");
    DT_ASSERT_EQ_INT(v.warnings, 0);
    for (size_t i = 0; i < json_array_size(json_object_get(v.all, "findings")); i++) {
        const json_t *one = json_array_get(json_object_get(v.all, "findings"), i);
        const char *text = json_string_value(json_object_get(one, "text"));
        if (strstr(text, ": tensor ") != NULL && strstr(text, " is missing") != NULL)
            dt_test_fail(__FILE__, __LINE__, "said of a tensor, too: %s", text);
    }
    json_decref(v.all);
}

/* What inspect and generate refuse, too. */
DT_TEST(cli_verify, a_tokenizer_that_cannot_be_used_is_an_error)
{
    char folder[DT_TEST_PATH_BYTES], source[DT_TEST_PATH_BYTES], path[PATH];
    size_t bytes;
    char *text;
    verdict v;

    (void)dt_test_temp_dir(folder);
    copy_fixture(folder, 0, false);
    text = read_from(dt_test_source_path(source, "examples/checkpoint"), "tokenizer.json", &bytes);
    dt_test_write_file(folder, "tokenizer.json", text, bytes);
    v = VERIFY(folder);
    DT_ASSERT_EQ_INT(v.errors, 0);
    json_decref(v.all);
    dt_test_write_file(folder, "tokenizer.json", text, 1000);
    free(text);
    v = VERIFY(folder);
    DT_ASSERT_EQ_INT(v.errors, 1);
    expect(&v, "error", NULL, "/tokenizer.json: line ");
    json_decref(v.all);
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    DT_ASSERT(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    v = VERIFY(folder);
    DT_ASSERT_EQ_INT(v.errors, 1);
    expect(&v, "error", NULL, "/tokenizer.json");
    json_decref(v.all);
}

/* As inspect does. */
DT_TEST(cli_verify, what_generation_config_leaves_undone_is_a_warning)
{
    char folder[DT_TEST_PATH_BYTES];
    verdict v;

    (void)dt_test_temp_dir(folder);
    copy_fixture(folder, 0, false);
    edit(folder, "generation_config.json", NULL, "eos_token_id", json_integer(99999));
    edit(folder, "generation_config.json", NULL, "guidance_scale", json_real(2.5));
    v = VERIFY(folder);
    DT_ASSERT_EQ_INT(v.errors, 0);
    DT_ASSERT_EQ_INT(v.warnings, 2);
    expect(&v, "warning", NULL, "_config.json: eos_token_id 99999 is outside the model's");
    expect(&v, "warning", NULL, "generation_config.json: sets guidance_scale");
    json_decref(v.all);
}

/* A file of weights from its header and as many zeros. */
static void write_weights(const char *folder, const char *header, size_t data_bytes)
{
    const size_t n = strlen(header);
    char *file = calloc(8 + n + data_bytes, 1);

    DT_ASSERT(file != NULL);
    for (int i = 0; i < 8; i++) file[i] = (char)((uint64_t)n >> (8 * i) & 255);
    memcpy(file + 8, header, n);
    dt_test_write_file(folder, "model.safetensors", file, 8 + n + data_bytes);
    free(file);
}

DT_TEST(cli_verify, all_faults_of_a_header_are_listed)
{
    char folder[DT_TEST_PATH_BYTES];
    verdict v;

    (void)dt_test_temp_dir(folder);
    copy_fixture(folder, 0, false);
    write_weights(folder,
                  "{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]},"
                  "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                  "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},"
                  "\"c\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,20]},"
                  "\"d\":3,\"__metadata__\":{\"x\":1},"
                  "\"e\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":"
                  "[9223372036854775800,9223372036854775807]}}",
                  12);
    v = VERIFY(folder, "--values");
    expect(&v, "error", "a", "tensor \"a\": dtype is the string \"F33\"");
    expect(&v, "error", "b", "begins at byte 4 of the data, inside tensor \"model.norm.weight\"");
    expect(&v, "error", "c", "data_offsets span 8 bytes, but 3 elements of F32 are 12");
    expect(&v, "error", "d", "it is 3, must be an object");
    expect(&v, "error", "e", "ends at byte 9223372036854775807 of the data, but only 12 are there");
    expect(&v, "error", NULL, "__metadata__.x is 1, must be a string");
    expect(&v, "error", "model.norm.weight", "is [2], but config.json asks for [64]");
    expect(&v, "error", "model.embed_tokens.weight", "is missing");
    json_decref(v.all);
}

DT_TEST(cli_verify, findings_beyond_the_limit_are_counted)
{
    enum { TENSORS = 1100 };
    char folder[DT_TEST_PATH_BYTES], *header = calloc(TENSORS, 16);
    command_result r;
    json_t *all;
    size_t at = 0;

    DT_ASSERT(header != NULL);
    (void)dt_test_temp_dir(folder);
    copy_fixture(folder, 0, false);
    for (int i = 0; i < TENSORS; i++)
        at += (size_t)snprintf(header + at, 16, "%c\"t%d\":1", i == 0 ? '{' : ',', i);
    header[at] = '}';
    write_weights(folder, header, 0);
    free(header);
    r = COMMAND_ENDS(2, COMMAND("verify", folder));
    COMMAND_ASSERT_HAS(r.out,
                       "tensor \"t999\": it is 1, must be an object\n... and 120 more, which "
                       "are not listed\n");
    COMMAND_ASSERT_HAS(r.out, ": 1120 errors, 0 warnings");
    r = COMMAND("verify", "--json", folder);
    all = json_loads(r.out, 0, NULL);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(all, "errors")), 1120);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(all, "left_out")), 120);
    DT_ASSERT_EQ_INT((int64_t)json_array_size(json_object_get(all, "findings")), 1000);
    json_decref(all);
}

DT_TEST(cli_verify, what_cannot_be_opened_is_named)
{
    char folder[DT_TEST_PATH_BYTES];
    verdict v;

    (void)dt_test_temp_dir(folder);
    v = VERIFY("/nonexistent");
    DT_ASSERT_EQ_INT(v.errors, 1);
    expect(&v, "error", NULL, "/nonexistent: No such file or directory");
    json_decref(v.all);
    copy_fixture(folder, 5, false);
    dt_test_write_file(folder, "other.safetensors", "x", 1);
    dt_test_write_file(folder, "config.json", "{", 1);
    v = VERIFY(folder, "--values");
    DT_ASSERT_EQ_INT(v.errors, 2); /* the other file is not the model's */
    expect(&v, "error", NULL, "config.json");
    expect(&v, "error", "model.norm.weight", "the file is cut off");
    json_decref(v.all);
    dt_test_write_file(folder, "model.safetensors", "y", 1); /* which may have been meant */
    v = VERIFY(folder, "--values");
    DT_ASSERT_EQ_INT(v.errors, 3); /* each by itself */
    expect(&v, "error", NULL, "config.json");
    expect(&v, "error", NULL, "model.safetensors");
    expect(&v, "error", NULL, "other.safetensors");
    json_decref(v.all);
    COMMAND_ENDS(2, COMMAND("verify"), "no folder; usage: dtensor verify DIR");
}

/* One of e4m3 that is no number, which loading would refuse. */
DT_TEST(cli_verify, floats_of_8_bits_are_read)
{
    static const char *const names[] = { "config.json", "model.safetensors" };
    char from[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 64];
    static char bytes[1 << 20];
    command_result r;

    (void)dt_test_source_path(from, "tests/golden/packed/llama_fp8_tensor");
    (void)dt_test_temp_dir(folder);
    for (int i = 0; i < 2; i++) {
        FILE *f;
        size_t n = 0;
        (void)snprintf(path, sizeof path, "%s/%s", from, names[i]);
        f = fopen(path, "rb");
        DT_ASSERT(f != NULL && (n = fread(bytes, 1, sizeof bytes, f)) < sizeof bytes);
        DT_ASSERT(fclose(f) == 0);
        if (i == 1) {
            const char *offsets = strstr(strstr(bytes + 8, "\"F8_E4M3\""), "\"data_offsets\":[");
            uint64_t header;
            memcpy(&header, bytes, sizeof header);
            bytes[8 + header + strtoull(offsets + 16, NULL, 10)] = '\xff';
        }
        dt_test_write_file(folder, names[i], bytes, n);
    }
    r = COMMAND_ENDS(2, COMMAND("verify", folder, "--values"));
    COMMAND_ASSERT_HAS(r.out, " values 1 are NaN and 0 infinite");
    (void)COMMAND_ENDS(2, COMMAND("logits", "-q", "-m", folder, "-t", "1"), "is no number");
    (void)COMMAND_ENDS(0, COMMAND("verify", from, "--values"));
}
