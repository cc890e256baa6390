/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a tokenizer is read from. Older GPT-2 and GPT-Neo folders have vocab.json and merges.txt:
 * the tokenizer.json that they stand for is made of them in memory, so that there is one way to
 * load. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "files/folder.h"
#include "files/input.h"
#include "text/tokenizer/tokenizer_internal.h"

/* What Transformers builds for such a folder. */
static const char gpt2_pipeline[] =
    "{\"version\": \"1.0\", \"normalizer\": null,"
    " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": %s, \"use_regex\": true},"
    " \"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"},"
    " \"added_tokens\": [], \"model\": {\"type\": \"BPE\"}}";

static const char end_of_text[] = "<|endoftext|>";

/* --- vocab.json and merges.txt ---------------------------------------------------------------- */

/* The lines of merges.txt as an array of strings. */
static dt_status parse_merges(const char *text, size_t n, json_t *merges)
{
    for (size_t at = 0; at < n;) {
        const char *newline = memchr(text + at, '\n', n - at);
        size_t end = newline ? (size_t)(newline - text) : n, length = end - at;

        if (length > 0 && text[end - 1] == '\r') length--;
        if (length > 0) { /* an empty line is no merge */
            json_t *line;

            errno = 0;
            line = json_stringn(text + at, length);
            DT_CHECK(line != NULL || errno != ENOMEM, DT_ERR_MEMORY, "no memory");
            DT_CHECK(line != NULL, DT_ERR_FORMAT, "line %zu is not UTF-8",
                     json_array_size(merges) + 1);
            DT_CHECK(json_array_append_new(merges, line) == 0, DT_ERR_MEMORY, "no memory");
        }
        at = end + 1;
    }
    return DT_OK;
}

static dt_status read_merges(const char *folder, json_t *merges)
{
    char path[DTI_PATH_BYTES];
    char label[DTI_INPUT_LABEL_BYTES];
    dt_status st;
    void *text;
    int64_t n;

    DT_TRY(dti_folder_path(path, folder, "merges.txt"));
    DT_TRY(dti_input_read_file(path, DTI_JSON_INDEX_BYTES, &text, &n));
    st = parse_merges(text, (size_t)n, merges);
    if (st != DT_OK) dti_error_prefix("%s", dti_printable(path, label, sizeof label));
    dti_free(text);
    return st;
}

/* Adds a special token once. */
static void add_special(json_t *added, const char *content)
{
    size_t i;
    json_t *token;

    if (content == NULL || content[0] == '\0') return;
    json_array_foreach(added, i, token)
    {
        if (strcmp(json_string_value(json_object_get(token, "content")), content) == 0) return;
    }
    (void)json_array_append_new(
        added, json_pack("{s:s, s:b, s:b}", "content", content, "special", 1, "normalized", 0));
}

/* A token of special_tokens_map.json: a string, an object, or a list of either. */
static void add_special_value(json_t *added, const json_t *value)
{
    size_t i;
    json_t *item;

    if (json_is_array(value)) {
        json_array_foreach(value, i, item) add_special_value(added, item);
    } else if (json_is_object(value)) {
        add_special(added, json_string_value(json_object_get(value, "content")));
    } else {
        add_special(added, json_string_value(value));
    }
}

static dt_status read_specials(const char *folder, const json_t *vocab, json_t *added)
{
    dti_json_doc doc = { 0 };
    const char *key;
    json_t *value;

    if (json_object_get(vocab, end_of_text) != NULL) add_special(added, end_of_text);
    if (!dti_folder_has(folder, "special_tokens_map.json")) return DT_OK;
    DT_TRY(dti_folder_json(folder, "special_tokens_map.json", &doc));
    json_object_foreach((json_t *)(uintptr_t)doc.root.value, key, value)
        add_special_value(added, value);
    dti_json_free(&doc);
    return DT_OK;
}

static dt_status read_prefix_space(const char *folder, bool *prefix)
{
    dti_json_doc doc = { 0 };
    dt_status st;

    *prefix = false;
    if (!dti_folder_has(folder, "tokenizer_config.json")) return DT_OK;
    DT_TRY(dti_folder_json(folder, "tokenizer_config.json", &doc));
    st = dti_json_bool_or(&doc.root, "add_prefix_space", false, prefix);
    dti_json_free(&doc);
    return st;
}

static dt_status read_pair(const char *folder, dti_json_doc *out)
{
    dti_json_doc vocab = { 0 };
    char text[sizeof gpt2_pipeline + 8], label[DTI_PATH_BYTES];
    json_t *model, *merges, *added;
    dt_status st;
    bool prefix;

    DT_TRY(read_prefix_space(folder, &prefix));
    DT_TRY(dti_folder_path(label, folder, "vocab.json"));
    (void)snprintf(text, sizeof text, gpt2_pipeline, prefix ? "true" : "false");
    DT_TRY(dti_json_parse(label, text, strlen(text), out));
    model = json_object_get(out->root.value, "model");
    added = json_object_get(out->root.value, "added_tokens");
    merges = json_array();
    DT_CHECK_TO(fail, st, json_object_set_new(model, "merges", merges) == 0, DT_ERR_MEMORY,
                "no memory for %s", label);
    DT_TRY_TO(fail, st, dti_folder_json(folder, "vocab.json", &vocab));
    DT_CHECK_TO(fail, st,
                json_object_set(model, "vocab", (json_t *)(uintptr_t)vocab.root.value) == 0,
                DT_ERR_MEMORY, "no memory for %s", label);
    DT_TRY_TO(fail, st, read_specials(folder, vocab.root.value, added));
    DT_TRY_TO(fail, st, read_merges(folder, merges));
    dti_json_free(&vocab);
    return DT_OK;

fail:
    dti_json_free(&vocab);
    dti_json_free(out);
    return st;
}

/* --- the one or the other --------------------------------------------------------------------- */

dt_status dti_tokenizer_read(const char *path, dti_json_doc *out)
{
    struct stat info;

    *out = (dti_json_doc){ 0 };
    DT_CHECK(stat(path, &info) == 0, dti_io_status(errno), "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode)) return dti_json_read(path, DTI_JSON_INDEX_BYTES, out);
    DT_CHECK(dti_folder_tokenizer(path) != NULL, DT_ERR_IO,
             "%s: holds neither tokenizer.json nor vocab.json and merges.txt%s", path,
             dti_folder_has(path, "tokenizer.model")
                 ? "; its tokenizer.model is of another format: save the tokenizer with a newer "
                   "version of Transformers, which writes tokenizer.json"
                 : "");
    if (dti_folder_has(path, "tokenizer.json")) return dti_folder_json(path, "tokenizer.json", out);
    return read_pair(path, out);
}
