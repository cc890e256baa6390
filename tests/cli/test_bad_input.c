/* SPDX-License-Identifier: Apache-2.0
 *
 * Bad input of every kind ends with exit code 2, prints nothing to stdout, and says what is wrong:
 * the file, tensor or option, the numbers, and what to do. One row, one mistake. */
#include <sys/stat.h>

#include "base/memory.h"
#include "files/safetensors.h"
#include "tests/cli/command.h"

enum { MAX_WORDS = 14, MAX_SAYS = 6, PATH = DT_TEST_PATH_BYTES + 64 };

/* --- making bad checkpoints ---------------------------------------------------------------------
 */

/* A file of the fixture that most cases begin with: Llama, vocabulary 128, width 64, 2 layers,
 * context 64, bf16, one file. */
static char *fixture_file(const char *name, size_t *bytes)
{
    char folder[DT_TEST_PATH_BYTES], path[PATH];
    struct stat info = { 0 };
    char *text;
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s",
                   dt_test_source_path(folder, "tests/golden/llama/tied"), name);
    f = fopen(path, "rb");
    if (f == NULL || stat(path, &info) != 0)
        dt_test_fail(__FILE__, __LINE__, "%s cannot be read", path);
    *bytes = f != NULL ? (size_t)info.st_size : 0;
    text = calloc(*bytes + 1, 1);
    if (text == NULL || fread(text, 1, *bytes, f) != *bytes)
        dt_test_fail(__FILE__, __LINE__, "%s cannot be read", path);
    (void)fclose(f);
    return text;
}

static void copy_file(const char *folder, const char *name, size_t less_bytes)
{
    size_t bytes;
    char *text = fixture_file(name, &bytes);

    dt_test_write_file(folder, name, text, bytes - less_bytes);
    free(text);
}

static void copy_all(const char *folder)
{
    copy_file(folder, "config.json", 0);
    copy_file(folder, "model.safetensors", 0);
}

/* config.json with one piece of text replaced. */
static void copy_config(const char *folder, const char *from, const char *to)
{
    size_t bytes;
    char *text = fixture_file("config.json", &bytes), *at = strstr(text, from), *edited;

    if (at == NULL) dt_test_fail(__FILE__, __LINE__, "%s is not in config.json", from);
    edited = calloc(bytes + strlen(to) + 1, 1);
    DT_ASSERT(edited != NULL);
    (void)sprintf(edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    dt_test_write_file(folder, "config.json", edited, strlen(edited));
    free(edited);
    free(text);
}

static dt_status fill_zeros(void *arg, size_t i, int64_t first, int64_t count, void *to)
{
    const dti_st_spec *specs = arg;

    (void)first;
    memset(to, 0, (size_t)count * dt_dtype_size(specs[i].dtype));
    return DT_OK;
}

/* The fixture's tensors as zeros, one of them left out, or with another dtype. */
static void write_variant(const char *folder, const char *drop, const char *retype, dt_dtype dtype)
{
    char source[DT_TEST_PATH_BYTES], path[PATH];
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    DT_FREED dti_st_spec *specs = NULL;
    size_t n = 0;

    (void)dt_test_source_path(source, "tests/golden/llama/tied/model.safetensors");
    DT_ASSERT_OK(dti_st_open(source, &file));
    DT_ASSERT_OK(dti_alloc_array(dti_st_count(file), sizeof *specs, (void **)&specs));
    for (size_t i = 0; i < dti_st_count(file); i++) {
        const dti_st_entry *e = dti_st_at(file, i);
        dti_st_spec *s = &specs[n];
        if (drop != NULL && strcmp(e->name, drop) == 0) continue;
        *s = (dti_st_spec){ .name = e->name, .dtype = e->dtype, .n_axes = e->n_axes };
        memcpy(s->shape, e->shape, sizeof s->shape);
        if (retype != NULL && strcmp(e->name, retype) == 0) s->dtype = dtype;
        n++;
    }
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    DT_ASSERT_OK(dti_st_write(path, specs, n, NULL, fill_zeros, specs));
}

/* A safetensors file from its header and as many bytes of data. */
static void write_header(const char *folder, const char *header, size_t data_bytes)
{
    const size_t n = strlen(header);
    char file[1024] = { 0 };

    DT_ASSERT(8 + n + data_bytes <= sizeof file);
    for (int i = 0; i < 8; i++) file[i] = (char)((uint64_t)n >> (8 * i) & 255);
    for (size_t i = 0; i < n; i++) file[8 + i] = header[i];
    dt_test_write_file(folder, "model.safetensors", file, 8 + n + data_bytes);
}

/* --- the kinds of bad folders -------------------------------------------------------------------
 */

static void truncated(const char *folder)
{
    copy_file(folder, "config.json", 0);
    copy_file(folder, "model.safetensors", 100);
}

static void cut_in_header(const char *folder)
{
    copy_file(folder, "config.json", 0);
    dt_test_write_file(folder, "model.safetensors", "\0\4\0\0\0\0\0\0{\"a\":", 13);
}

static void overlapping(const char *folder)
{
    copy_file(folder, "config.json", 0);
    write_header(folder,
                 "{\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                 "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
                 12);
}

static void integer_weight(const char *folder)
{
    copy_file(folder, "config.json", 0);
    write_variant(folder, NULL, "model.layers.1.mlp.up_proj.weight", DT_I32);
}

static void missing_tensor(const char *folder)
{
    copy_file(folder, "config.json", 0);
    write_variant(folder, "model.layers.1.mlp.up_proj.weight", NULL, DT_F32);
}

static void other_width(const char *folder)
{
    copy_config(folder, "\"intermediate_size\": ", "\"intermediate_size\": 1");
    copy_file(folder, "model.safetensors", 0);
}

static void no_width(const char *folder)
{
    copy_config(folder, "\"hidden_size\": 64,", "");
    copy_file(folder, "model.safetensors", 0);
}

static void no_layers(const char *folder)
{
    copy_config(folder, "\"num_hidden_layers\": 2,", "");
    copy_file(folder, "model.safetensors", 0);
}

static void unknown_architecture(const char *folder)
{
    copy_config(folder, "\"model_type\": \"llama\"", "\"model_type\": \"bloom\"");
    copy_file(folder, "model.safetensors", 0);
}

static void quantised(const char *folder)
{
    copy_config(folder, "\"model_type\"",
                "\"quantization_config\": {\"quant_method\": \"hqq\"}, \"model_type\"");
    copy_file(folder, "model.safetensors", 0);
}

static void broken_config(const char *folder)
{
    dt_test_write_file(folder, "config.json", "{\"model_type\": \"llama\",}", 24);
}

static void only_pickle(const char *folder)
{
    copy_file(folder, "config.json", 0);
    dt_test_write_file(folder, "pytorch_model.bin", "PK", 2);
}

static void no_weights(const char *folder)
{
    copy_file(folder, "config.json", 0);
}

static void missing_shard(const char *folder)
{
    static const char index[] = "{\"weight_map\": {\"model.norm.weight\": "
                                "\"model-00001-of-00002.safetensors\"}}";

    copy_file(folder, "config.json", 0);
    dt_test_write_file(folder, "model.safetensors.index.json", index, sizeof index - 1);
}

static void write_plan(const char *folder, const char *text)
{
    copy_all(folder);
    dt_test_write_file(folder, "plan.json", text, strlen(text));
}

static void plan_of_unknown_style(const char *folder)
{
    write_plan(folder, "{\"model.layers.*.mlp.up_proj\": \"colwize\"}");
}

static void plan_without_a_match(const char *folder)
{
    write_plan(folder, "{\"model.layers.*.mlp.op_proj\": \"colwise\"}");
}

/* Plans beside a config.json without weights: they are judged before anybody looks for those. */
static void plan_only(const char *folder, const char *text)
{
    copy_file(folder, "config.json", 0);
    dt_test_write_file(folder, "plan.json", text, strlen(text));
}

static void torn_plan(const char *folder)
{
    plan_only(folder, "{\"model.layers.*.self_attn.q_proj\": \"replicate\"}");
}

static void plan_for_a_norm(const char *folder)
{
    plan_only(folder, "{\"model.norm\": \"rowwise\"}");
}

static void plan_without_weights(const char *folder)
{
    plan_only(folder, "{\"model.layers.7.mlp.up_proj\": \"colwise\"}");
}

static void plan_for_another_dim(const char *folder)
{
    plan_only(folder, "{\"model.layers.*.mlp.up_proj\": {\"cp\": \"rowwise\"}}");
}

static void plan_of_numbers(const char *folder)
{
    write_plan(folder, "{\"model.layers.*.mlp.up_proj\": 3}");
}

static void plan_of_null(const char *folder)
{
    write_plan(folder, "{\"model.layers.*.mlp.up_proj\": {\"tp\": null}}");
}

static void plan_of_no_dims(const char *folder)
{
    write_plan(folder, "{\"model.layers.*.mlp.up_proj\": {}}");
}

static void plan_that_tears_a_tied_weight(const char *folder)
{
    write_plan(folder, "{\"lm_head\": \"colwise\", \"model.embed_tokens\": \"colwise\"}");
}

static void plan_with_a_comma_too_many(const char *folder)
{
    write_plan(folder, "{\"model.layers.*.mlp.up_proj\": \"colwise\",}");
}

static void broken_tokenizer(const char *folder)
{
    copy_all(folder);
    dt_test_write_file(folder, "tokenizer.json", "{\"model\": ", 10);
}

static void broken_generation_config(const char *folder)
{
    copy_all(folder);
    dt_test_write_file(folder, "generation_config.json", "{\"eos_token_id\": \"x\"}", 21);
}

static void null_width(const char *folder)
{
    copy_config(folder, "\"hidden_size\": 64", "\"hidden_size\": null");
    copy_file(folder, "model.safetensors", 0);
}

/* --- the table ----------------------------------------------------------------------------------
 */

typedef struct mistake {
    const char *name;
    void (*setup)(const char *folder);
    const char *env;
    const char *words[MAX_WORDS]; /* "@" at the beginning of a word is the folder */
    const char *says[MAX_SAYS];
} mistake;

#define TEN   "1,1,1,1,1,1,1,1,1,1,"
#define FIFTY TEN TEN TEN TEN TEN
#define ONE   "generate", "-m", "@", "-t", "1"
#define NAME  "a_folder_name_of_about_fifty_characters_and_a_slash/"
#define LONG \
    NAME NAME NAME NAME NAME NAME NAME NAME NAME NAME NAME NAME NAME NAME NAME NAME NAME NAME
#define RUN "generate", "--model", "@", "--tokens", "1,2,3", "--mesh", "tp=2"

/* clang-format off */
static const mistake mistakes[] = {
    /* files */
    { "truncated",        truncated,            NULL, { RUN }, { "model.safetensors", "180864", "180764", "cut off" } },
    { "cut in header",    cut_in_header,        NULL, { RUN }, { "model.safetensors", "1024" } },
    { "overlapping",      overlapping,          NULL, { RUN }, { "model.safetensors", "b.weight", "8", "4" } },
    { "wrong dtype",      integer_weight,       NULL, { RUN },
      { "model.safetensors", "model.layers.1.mlp.up_proj.weight", "I32", "BF16" } },
    { "missing tensor",   missing_tensor,       NULL, { RUN }, { "model.layers.1.mlp.up_proj.weight", "missing", "config.json" } },
    { "default width",    no_width,             NULL, { RUN },
      { "model.embed_tokens.weight", "hidden_size is missing there and was taken as 4096" } },
    { "default layers",   no_layers,            NULL, { RUN }, { "layers.2.", "num_hidden_layers is missing there and was taken as 32" } },
    { "shape",            other_width,          NULL, { RUN },
      { "model.safetensors", "mlp", "[128, 64]", "[1128, 64]", "intermediate_size by hidden_size" } },
    { "architecture",     unknown_architecture, NULL, { RUN }, { "config.json", "bloom", "llama", "qwen3", "gpt_neo" } },
    { "quantised",        quantised,            NULL, { RUN }, { "config.json", "quantization_config", "float32" } },
    { "broken config",    broken_config,        NULL, { RUN }, { "config.json", "line 1" } },
    { "only pickle",      only_pickle,          NULL, { RUN }, { "pytorch_model.bin", "model.safetensors" } },
    { "no weights",       no_weights,           NULL, { RUN }, { "@", "model.safetensors" } },
    { "missing shard",    missing_shard,        NULL, { RUN }, { "model-00001-of-00002.safetensors" } },
    { "null",             null_width,           NULL, { RUN }, { "config.json", "hidden_size is null", "integer from 1" } },
    { "tokenizer",        broken_tokenizer,     NULL, { "generate", "-m", "@", "-p", "a" }, { "tokenizer.json: line 1 column" } },
    { "tokenizer of logits", broken_tokenizer,  NULL, { "logits", "-m", "@", "-p", "a" }, { "tokenizer.json: line 1 column" } },
    { "generation config", broken_generation_config, NULL, { RUN }, { "generation_config.json", "eos_token_id", "\"x\"" } },
    { "escape sequence",  NULL,                 NULL, { "generate", "-m", "\033[31mred\n\x9b", "-t", "1" },
      { "\\x1b[31mred\\n\\x9b: No such file", "Hugging Face folder" } },
    { "long folder",      NULL,                 NULL, { "generate", "-m", LONG, "-t", "1" }, { NAME, "...", "Hugging Face folder" } },
    { "empty folder",     NULL,                 NULL, { RUN }, { "@", "config.json" } },
    { "missing folder",   NULL,                 NULL, { "generate", "-m", "@/nowhere", "-t", "1" },
      { "@/nowhere", "No such file", "Hugging Face folder" } },
    { "file as folder",   copy_all,             NULL, { "generate", "-m", "@/config.json", "-t", "1" },
      { "@/config.json", "no folder" } },
    /* plans */
    { "unknown style",    plan_of_unknown_style,      NULL, { RUN, "--plan", "@/plan.json" },
      { "plan.json", "model.layers.*.mlp.up_proj", "colwize", "colwise" } },
    { "no match",         plan_without_a_match,       NULL, { RUN, "--plan", "@/plan.json" },
      { "plan.json", "model.layers.*.mlp.op_proj", "no layer",
        "the nearest is model.layers.0.mlp.up_proj, and * stands for one component" } },
    { "no style",         plan_of_numbers,            NULL, { RUN, "--plan", "@/plan.json" },
      { "plan.json", "model.layers.*.mlp.up_proj", "3", "must be the name of a style" } },
    { "torn plan",        torn_plan,                  NULL, { RUN, "--plan", "@/plan.json" },
      { "@/plan.json, rule \"model.layers.*.self_attn.q_proj\": \"replicate\"", "model.layers.0.self_attn.q_proj.weight [64, 64]",
        "mesh dim \"tp\" of 2", "styles that fit: \"colwise\"" } },
    { "kind of layer",    plan_for_a_norm,            NULL, { RUN, "--plan", "@/plan.json" },
      { "@/plan.json, rule \"model.norm\": \"rowwise\"", "an RMS norm with weight [64]", "replicate" } },
    { "no such layer",    plan_without_weights,       NULL, { RUN, "--plan", "@/plan.json" },
      { "@/plan.json, rule \"model.layers.7.mlp.up_proj\"", "matches no layer" } },
    { "no such dim",      plan_for_another_dim,       NULL, { RUN, "--plan", "@/plan.json" },
      { "@/plan.json, rule \"model.layers.*.mlp.up_proj\"", "no dim \"cp\"" } },
    { "null style",       plan_of_null,               NULL, { RUN, "--plan", "@/plan.json" },
      { "plan.json", "model.layers.*.mlp.up_proj.tp is null", "must be the name of a style" } },
    { "no dims",          plan_of_no_dims,            NULL, { RUN, "--plan", "@/plan.json" }, { "up_proj is an object", "per mesh dim" } },
    { "tied weight",      plan_that_tears_a_tied_weight, NULL, { RUN, "--plan", "@/plan.json" },
      { "lm_head shares the weight of model.embed_tokens", "dim \"tp\"", "lm_head makes it Shard(0)", "embed_tokens makes it Shard(1)",
        "leave one" } },
    { "plan syntax",      plan_with_a_comma_too_many, NULL, { RUN, "--plan", "@/plan.json" }, { "plan.json", "line 1" } },
    { "long plan",        copy_all,                   NULL, { RUN, "--plan", LONG LONG LONG LONG }, { NAME, "...", "No such file" } },
    { "folder as plan",   copy_all,                   NULL, { RUN, "--plan", "@" }, { "@", "Is a directory" } },
    { "empty plan",       copy_all,                   NULL, { RUN, "--plan", "/dev/null" }, { "/dev/null: is empty" } },
    { "endless plan",     copy_all,                   NULL, { RUN, "--plan", "/dev/zero" }, { "/dev/zero", "16777216" } },
    { "missing plan",     copy_all,                   NULL, { RUN, "--plan", "@/nowhere" }, { "@/nowhere", "No such file" } },
    { "plan: no model",   NULL,                       NULL, { "plan", "--mesh", "tp=2" }, { "no model", "--model DIR" } },
    { "plan: mesh",       torn_plan,                  NULL, { "plan", "-m", "@", "--mesh", "tp=0" }, { "--mesh", "tp=0" } },
    { "plan: huge mesh",  torn_plan,                  NULL, { "plan", "-m", "@", "--mesh", "dp=4096,tp=4096" }, { "--mesh", "16777216" } },
    { "plan: context",    torn_plan,                  NULL, { "plan", "-m", "@", "--sequence", "65" },
      { "--sequence 65", "context of 64", "config.json" } },
    { "plan: torn",       torn_plan,                  NULL, { "plan", "-m", "@", "--mesh", "dp=8,tp=2", "--plan", "@/plan.json", "--json" },
      { "@/plan.json, rule \"model.layers.*.self_attn.q_proj\"", "mesh dim \"tp\" of 2", "\"colwise\"" } },
    { "plan: tokens",     torn_plan,                  NULL, { "plan", "-m", "@", "--tokens", "1" }, { "plan", "--tokens" } },
    /* prompts; the vocabulary is 128, the context 64 */
    { "id too large",     copy_all, NULL, { "generate", "-m", "@", "-t", "1,128" }, { "--tokens", "128", "item 2", "0..127" } },
    { "huge id",          copy_all, NULL, { "generate", "-m", "@", "-t", "99999999999999999999" },
      { "--tokens", "99999999999999999999", "0..127" } },
    { "negative id",      copy_all, NULL, { "generate", "-m", "@", "-t", "1,-2" }, { "--tokens", "-2", "item 2" } },
    { "no id",            copy_all, NULL, { "logits", "-m", "@", "-t", "1,x,3" }, { "--tokens", "\"x\"", "item 2", "1,2,3" } },
    { "empty tokens",     copy_all, NULL, { "generate", "-m", "@", "-t", "" }, { "--tokens", "empty", "--tokens IDS" } },
    { "blank tokens",     copy_all, NULL, { "generate", "-m", "@", "-t", " " }, { "--tokens", "empty", "one token" } },
    { "empty prompt",     copy_all, NULL, { "logits", "-m", "examples/checkpoint", "-p", "" }, { "--prompt", "empty", "--prompt TEXT" } },
    { "empty file",       copy_all, NULL, { "logits", "-m", "examples/checkpoint", "-f", "/dev/null" }, { "--prompt-file", "empty" } },
    { "no prompt",        copy_all, NULL, { "generate", "-m", "@" }, { "--prompt", "--tokens" } },
    { "two prompts",      copy_all, NULL, { "generate", "-m", "@", "-p", "a", "-t", "1" }, { "one of --prompt" } },
    { "no tokenizer",     copy_all, NULL, { "generate", "-m", "@", "-p", "a" }, { "@", "tokenizer.json", "--tokens" } },
    { "missing prompt",   copy_all, NULL, { "generate", "-m", "examples/checkpoint", "--prompt-file", "@/nowhere" },
      { "--prompt-file", "@/nowhere", "No such file" } },
    { "long prompt",      copy_all, NULL, { "generate", "-m", "@", "-t", FIFTY "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1" },
      { "65 tokens", "64", "config.json", "shorten" } },
    { "long answer",      copy_all, NULL, { "generate", "-m", "@", "-t", "1,2,3", "-n", "62" },
      { "--max-new-tokens 62", "3 tokens", "64", "at most 61" } },
    /* options */
    { "mesh without size", copy_all, NULL, { ONE, "--mesh", "tp" }, { "--mesh", "\"tp\"", "tp=2" } },
    { "mesh of TP",       copy_all, NULL, { ONE, "--mesh", "dp=1,TP=2" }, { "--mesh", "cut over the dim \"tp\"", "write \"tp=2\"" } },
    { "mesh of pt",       copy_all, NULL, { "plan", "-m", "@", "--mesh", "pt=2" }, { "--mesh", "uses mesh dim \"pt\"", "write \"tp=2\"" } },
    { "mesh of size 0",   copy_all, NULL, { ONE, "--mesh", "tp=0" }, { "--mesh", "tp=0", "begin at 1" } },
    { "mesh twice",       copy_all, NULL, { "logits", "-m", "@", "-t", "1", "--mesh", "tp=2,tp=2" }, { "--mesh", "\"tp\" twice" } },
    { "mesh of words",    copy_all, NULL, { ONE, "--mesh", "tp=two" }, { "--mesh", "two", "number" } },
    { "mesh too large",   copy_all, NULL, { ONE, "--mesh", "dp=300,tp=300" }, { "--mesh", "90000", "at most" } },
    { "mesh for no machine", copy_all, NULL, { ONE, "--mesh", "tp=1000" }, { "--mesh", "1000 ranks", "core", "--oversubscribe" } },
    { "mesh past all numbers", copy_all, NULL, { ONE, "--mesh", "tp=99999999999" }, { "--mesh", "99999999999", "2147483647" } },
    { "count of letters", copy_all, NULL, { ONE, "-n", "abc" }, { "--max-new-tokens", "\"abc\"", "1 to" } },
    { "count of 0",       copy_all, NULL, { ONE, "-n", "0" }, { "--max-new-tokens", "\"0\"", "1 to" } },
    { "fraction",         copy_all, NULL, { ONE, "--max-new-tokens=1.5" }, { "--max-new-tokens", "\"1.5\"" } },
    { "huge count",       copy_all, NULL, { ONE, "-n", "99999999999999999999" }, { "--max-new-tokens", "99999999999999999999" } },
    { "dtype",            copy_all, NULL, { ONE, "--dtype", "f64" }, { "--dtype", "\"f64\"", "bf16" } },
    { "products",         copy_all, NULL, { ONE, "--products", "quick" }, { "--products", "quick", "fastest" } },
    { "isa",              copy_all, NULL, { ONE, "--isa", "mmx" }, { "--isa", "mmx", "avx2" } },
    { "threads",          copy_all, NULL, { ONE, "--threads", "5000" }, { "--threads", "5000", "1024" } },
    { "unknown option",   NULL,     NULL, { "generate", "--mdoel", "@" }, { "--mdoel", "did you mean --model" } },
    { "far option",       NULL,     NULL, { "generate", "--zzzzzzzzz" }, { "--zzzzzzzzz", "generate --help" } },
    { "unknown letter",   NULL,     NULL, { "generate", "-qz" }, { "-z", "generate --help" } },
    { "option of another", NULL,    NULL, { "inspect", "--mesh", "tp=2", "@" }, { "inspect", "--mesh" } },
    { "missing value",    NULL,     NULL, { "generate", "--model" }, { "--model", "needs a value" } },
    { "value of a flag",  NULL,     NULL, { "generate", "--json=yes" }, { "--json", "takes no value" } },
    { "argument",         NULL,     NULL, { "generate", "@" }, { "unexpected argument", "usage" } },
    { "empty model",      NULL,     NULL, { "generate", "-t", "1", "--model", "" }, { "--model: its value is empty", "--model DIR" } },
    { "empty mesh",       NULL,     NULL, { "generate", "-t", "1", "--mesh=" }, { "--mesh: its value is empty" } },
    { "empty count",      NULL,     NULL, { "generate", "-t", "1", "-n", "" }, { "--max-new-tokens: its value is empty" } },
    { "repeated option",  NULL,     NULL, { "generate", "-m", "@", "-p", "a", "--prompt=b" }, { "--prompt is given twice" } },
    { "repeated number",  NULL,     NULL, { "generate", "-n2", "-qn", "3" }, { "--max-new-tokens is given twice" } },
    { "no model",         NULL,     NULL, { "generate", "-t", "1" }, { "--model DIR" } },
    { "no command",       NULL,     NULL, { NULL }, { "--help" } },
    { "unknown command",  NULL,     NULL, { "genrate" }, { "genrate", "did you mean \"generate\"" } },
    { "far command",      NULL,     NULL, { "frobnicate" }, { "frobnicate", "generate, chat, serve, logits, gradients, compare, save, inspect" } },
    /* inspect */
    { "inspect nothing",  NULL,      NULL, { "inspect" }, { "inspect DIR" } },
    { "inspect empty name", NULL,    NULL, { "inspect", "" }, { "DIR is empty" } },
    { "inspect nowhere",  NULL,      NULL, { "inspect", "@/nowhere" }, { "@/nowhere", "No such file" } },
    { "inspect two",      NULL,      NULL, { "inspect", "@", "@" }, { "second DIR" } },
    { "inspect empty",    NULL,      NULL, { "inspect", "@" }, { "@", "config.json" } },
    /* environment */
    { "fault",            copy_all, "DTENSOR_FAULT=nonsense", { RUN }, { "fault", "nonsense", "rank=R" } },
    { "fault of two ranks", copy_all, "DTENSOR_FAULT=rank=1,rank=0", { RUN }, { "rank=1,rank=0", "second time" } },
    { "fault of no rank", copy_all, "DTENSOR_FAULT=rank=7,op=any", { RUN }, { "rank=7", "0..1" } },
    { "timeout",          copy_all, "DTENSOR_TIMEOUT_MS=soon", { RUN }, { "DTENSOR_TIMEOUT_MS", "soon" } },
    { "launcher",         copy_all, "WORLD_SIZE=2", { RUN }, { "WORLD_SIZE", "mpirun" } },
};
/* clang-format on */

/* "@..." -> the folder and the rest. */
static const char *in_folder(const char *word, const char *folder, char path[PATH])
{
    if (word == NULL || word[0] != '@') return word;
    (void)snprintf(path, PATH, "%s%s", folder, word + 1);
    return path;
}

static void check(const mistake *m)
{
    char folder[DT_TEST_PATH_BYTES], paths[MAX_WORDS][PATH], said[PATH];
    const char *words[MAX_WORDS + 1] = { NULL };
    command_result r;

    (void)dt_test_temp_dir(folder);
    if (m->setup != NULL) m->setup(folder);
    for (int i = 0; i < MAX_WORDS; i++) words[i] = in_folder(m->words[i], folder, paths[i]);
    r = command_run(m->env, words);
    if (r.code != 2 || r.out[0] != '\0')
        dt_test_fail(__FILE__, __LINE__, "%s: exit code %d, stdout \"%.200s\", stderr: %.1000s",
                     m->name, r.code, r.out, r.err);
    for (const char *c = r.err; *c != '\0'; c++)
        if (((unsigned char)*c < ' ' && *c != '\n') || *c == 0x7f)
            dt_test_fail(__FILE__, __LINE__, "%s: control character %d in: %.1000s", m->name, *c,
                         r.err);
    for (int i = 0; i < MAX_SAYS && m->says[i] != NULL; i++)
        if (strstr(r.err, in_folder(m->says[i], folder, said)) == NULL)
            dt_test_fail(__FILE__, __LINE__, "%s: \"%s\" is not in: %.1000s", m->name, m->says[i],
                         r.err);
}

DT_TEST(cli_bad_input, every_mistake_is_named_and_ends_with_code_2)
{
    for (size_t i = 0; i < DT_COUNT(mistakes); i++) check(&mistakes[i]);
}

/* inspect reports what it found even so: on stdout what, on stderr why not. */
DT_TEST(cli_bad_input, inspect_says_precisely_why_a_checkpoint_is_not_supported)
{
    static const struct {
        void (*setup)(const char *folder);
        const char *why;
    } cases[] = {
        { unknown_architecture, "bloom" },
        { quantised, "quantization_config" },
        { missing_tensor, "model.layers.1.mlp.up_proj.weight" },
        { other_width, "mlp" },
        { truncated, "model.safetensors" },
        { only_pickle, "pytorch_model.bin" },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        char folder[DT_TEST_PATH_BYTES];
        command_result text, json;

        cases[i].setup(dt_test_temp_dir(folder));
        text = COMMAND("inspect", folder);
        json = COMMAND("inspect", folder, "--json");
        COMMAND_ENDS(2, text);
        COMMAND_ENDS(2, json);
        COMMAND_ASSERT_HAS(text.out, "supported   no");
        COMMAND_ASSERT_HAS(text.err, cases[i].why);
        COMMAND_ASSERT_HAS(json.out, "\"supported\": false");
        COMMAND_ASSERT_HAS(json.out, cases[i].why);
    }
}

/* The model runs with ids, but a folder with a part that cannot be used is no success. */
DT_TEST(cli_bad_input, inspect_names_a_broken_part_beside_a_sound_model)
{
    static const struct {
        void (*setup)(const char *folder);
        const char *line, *key, *why;
    } cases[] = {
        { broken_tokenizer, "supported   only with --tokens", "tokenizer_error",
          "tokenizer.json: line 1 column" },
        { broken_generation_config, "generation  only with --ignore-eos", "generation_error",
          "eos_token_id is the string" },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        char folder[DT_TEST_PATH_BYTES], key[64];
        command_result text, json, logits;

        cases[i].setup(dt_test_temp_dir(folder));
        text = COMMAND("inspect", folder);
        json = COMMAND("inspect", folder, "--json");
        logits = COMMAND("logits", "-m", folder, "-t", "1,2");
        COMMAND_ENDS(2, text);
        COMMAND_ENDS(2, json);
        COMMAND_ENDS(0, logits);
        COMMAND_ASSERT_HAS(text.out, cases[i].line);
        COMMAND_ASSERT_HAS(text.err, cases[i].why);
        COMMAND_ASSERT_HAS(json.out, "\"supported\": true");
        (void)snprintf(key, sizeof key, "\"%s\": \"/", cases[i].key);
        COMMAND_ASSERT_HAS(json.out, key);
    }
}
