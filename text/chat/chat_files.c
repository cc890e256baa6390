/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a folder keeps its chat template and the special tokens that go with it. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "files/folder.h"
#include "files/input.h"
#include "files/json.h"
#include "text/chat/chat_template.h"
#include "text/chat/jinja.h"

/* A document without root if the folder has no such file. */
static dt_status read_json(const char *folder, const char *name, dti_json_doc *out)
{
    *out = (dti_json_doc){ 0 };
    return dti_folder_has(folder, name) ? dti_folder_json(folder, name, out) : DT_OK;
}

/* bos_token, eos_token, ...: a text, or an object with its content. */
static dt_status add_tokens(const dti_json_doc *doc, json_t *tokens)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token" };

    for (size_t i = 0; i < DT_COUNT(names); i++) {
        json_t *value = json_object_get(doc->root.value, names[i]);

        if (json_is_object(value)) value = json_object_get(value, "content");
        if (!json_is_string(value) || json_object_get(tokens, names[i]) != NULL) continue;
        DT_CHECK(json_object_set(tokens, names[i], value) == 0, DT_ERR_MEMORY,
                 "no memory for the special tokens of a chat template");
    }
    return DT_OK;
}

static dt_status from_file(const char *folder, json_t *tokens, dt_chat **out)
{
    char path[DTI_PATH_BYTES];
    void *source;
    int64_t n;
    dt_status st;

    DT_TRY(dti_folder_path(path, folder, "chat_template.jinja"));
    DT_TRY(dti_input_read_file(path, DTI_JINJA_SOURCE_BYTES, &source, &n));
    st = dti_chat_create(path, source, (size_t)n, tokens, out);
    dti_free(source);
    return st;
}

/* The text of "chat_template": itself, or the one called "default" of a list. */
static const json_t *find_template(const dti_json_doc *doc)
{
    const json_t *value = json_object_get(doc->root.value, "chat_template"), *found = value;

    if (!json_is_array(value)) return found;
    found = NULL;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(one, "name"));

        if (name != NULL && strcmp(name, "default") == 0) found = json_object_get(one, "template");
    }
    return found;
}

static dt_status from_json(const char *folder, const dti_json_doc *doc, json_t *tokens,
                           dt_chat **out)
{
    const json_t *value = find_template(doc);
    char name[DTI_PATH_BYTES + 32];

    DT_CHECK(json_is_string(value), DT_ERR_IO,
             "%s: has no chat template (chat_template.jinja, or \"chat_template\" in "
             "tokenizer_config.json), so it is no chat model; generate goes on from a plain prompt",
             folder);
    (void)snprintf(name, sizeof name, "%s: chat_template", doc->file);
    return dti_chat_create(name, json_string_value(value), json_string_length(value), tokens, out);
}

dt_status dt_chat_open(const char *folder, dt_chat **out)
{
    dti_json_doc config = { 0 }, map = { 0 }, processor = { 0 };
    json_t *tokens = json_object();
    dt_status st = DT_OK;

    DT_CHECK_TO(done, st, out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK_TO(done, st, folder != NULL, DT_ERR_ARG, "folder is NULL");
    DT_CHECK_TO(done, st, tokens != NULL, DT_ERR_MEMORY, "no memory for a chat template");
    DT_TRY_TO(done, st, read_json(folder, "tokenizer_config.json", &config));
    DT_TRY_TO(done, st, read_json(folder, "special_tokens_map.json", &map));
    DT_TRY_TO(done, st, read_json(folder, "chat_template.json", &processor));
    DT_TRY_TO(done, st, add_tokens(&config, tokens));
    DT_TRY_TO(done, st, add_tokens(&map, tokens));
    if (dti_folder_has(folder, "chat_template.jinja"))
        DT_TRY_TO(done, st, from_file(folder, tokens, out));
    else
        DT_TRY_TO(
            done, st,
            from_json(folder, find_template(&config) != NULL ? &config : &processor, tokens, out));
done:
    dti_json_free(&config);
    dti_json_free(&map);
    dti_json_free(&processor);
    json_decref(tokens);
    return st;
}
