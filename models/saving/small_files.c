/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies beside the weights: configuration, tokenizer, index. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/checkpoint.h"
#include "files/folder.h"
#include "files/input.h"
#include "models/saving/save.h"

enum { SMALL_BYTES = 1 << 30 };

/* Copied as they are, if they are there. */
static const char *const small[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "config.json",
};

static const char index_name[] = "model.safetensors.index.json";

const char *dti_save_small_name(int i)
{
    return i < (int)DT_COUNT(small) ? small[i] : NULL;
}

static dt_status copy(const char *from, const char *to)
{
    void *bytes = NULL;
    dt_status st;
    int64_t n;

    DT_TRY(dti_input_read_all(from, SMALL_BYTES, &bytes, &n));
    st = dti_output_file(to, bytes, (size_t)n);
    dti_free(bytes);
    return st;
}

/* Writes `root`, as Transformers formats such files. */
static dt_status write_json(const char *path, json_t *root)
{
    char *text = json_dumps(root, JSON_INDENT(2));
    dt_status st;

    DT_CHECK(text != NULL, DT_ERR_MEMORY, "%s does not fit into memory", path);
    st = dti_output_file(path, text, strlen(text));
    free(text); /* jansson's */
    return st;
}

/* The dtype under the key that the file has, of Transformers 5 or 4; a file without one leaves it
 * to the weights. Returns whether something changed. */
static bool set_dtype(json_t *object, dt_dtype dtype)
{
    static const char *const names[DT_N_DTYPES] = {
        [DT_F32] = "float32", [DT_BF16] = "bfloat16", [DT_F16] = "float16"
    };
    static const char *const keys[] = { "dtype", "torch_dtype" };
    bool changed = false;

    for (size_t i = 0; i < DT_COUNT(keys); i++) {
        const json_t *now = json_object_get(object, keys[i]);
        if (!json_is_string(now) || strcmp(json_string_value(now), names[dtype]) == 0) continue;
        changed |= json_object_set_new(object, keys[i], json_string(names[dtype])) == 0;
    }
    return changed;
}

static dt_status copy_config(const char *from, const char *to, dt_dtype dtype)
{
    dti_json_doc doc = { 0 };
    dt_status st = DT_OK;
    bool changed;

    DT_TRY(dti_json_read(from, DTI_JSON_CONFIG_BYTES, &doc));
    changed = set_dtype(doc.root.value, dtype);
    changed |= set_dtype(json_object_get(doc.root.value, "text_config"), dtype);
    st = changed ? write_json(to, doc.root.value) : copy(from, to);
    dti_json_free(&doc);
    return st;
}

static dt_status copy_named(const dti_saver *s, const char *name)
{
    char *from = NULL, *to = NULL;
    dt_status st = DT_OK;

    if (!dti_folder_has(s->model->folder, name)) return DT_OK;
    DT_TRY_TO(done, st, dti_ckpt_path(s->model->folder, name, &from));
    DT_TRY_TO(done, st, dti_ckpt_path(s->dir, name, &to));
    if (strcmp(name, "config.json") == 0)
        DT_TRY_TO(done, st, copy_config(from, to, s->dtype));
    else
        DT_TRY_TO(done, st, copy(from, to));
done:
    dti_free(from);
    dti_free(to);
    return st;
}

dt_status dti_save_small_files(const dti_saver *s)
{
    for (size_t i = 0; i < DT_COUNT(small); i++) DT_TRY(copy_named(s, small[i]));
    return DT_OK;
}

static json_t *index_json(const dti_saver *s)
{
    json_t *map = json_object(), *root;
    json_int_t parameters = s->bytes / (json_int_t)dt_dtype_size(s->dtype);

    for (size_t k = 0; k < s->n_files; k++)
        for (size_t i = s->files[k].first; i < s->files[k].first + s->files[k].n; i++)
            if (json_object_set_new(map, s->specs[i].name, json_string(s->files[k].name)) != 0) {
                json_decref(map);
                return NULL;
            }
    root = json_pack("{s:{s:I,s:I},s:o}", "metadata", "total_parameters", parameters, "total_size",
                     (json_int_t)s->bytes, "weight_map", map);
    return root;
}

dt_status dti_save_index(const dti_saver *s)
{
    dt_status st = DT_OK;
    char *path = NULL;
    json_t *root;

    if (s->n_files == 1) return DT_OK;
    root = index_json(s);
    DT_CHECK(root != NULL, DT_ERR_MEMORY, "the index does not fit into memory");
    DT_TRY_TO(done, st, dti_ckpt_path(s->dir, index_name, &path));
    DT_TRY_TO(done, st, write_json(path, root));
done:
    json_decref(root);
    dti_free(path);
    return st;
}

void dti_save_unindex(const dti_saver *s)
{
    char *path;

    if (s->n_files <= 1 || !s->files[s->n_files - 1].named) return;
    if (dti_ckpt_path(s->dir, index_name, &path) != DT_OK) return;
    (void)unlink(path);
    dti_free(path);
}
