/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies beside the weights: configuration, tokenizer, index. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io_status.h"
#include "files/checkpoint.h"
#include "files/folder.h"
#include "files/input.h"
#include "files/output.h"
#include "weights/saving/save.h"

enum { SMALL_BYTES = DTI_JSON_INDEX_BYTES };

/* Copied as they are, if they are there. */
static const char *const names[] = {
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
    "generation_config.json",
    "config.json",
};

/* The last of them, which nothing opens a model without. */
enum { N_CONFIGURATIONS = 2 };

_Static_assert(DT_COUNT(names) == DTI_SMALL_FILES, "one row per file");

static const char index_name[] = "model.safetensors.index.json";

/* The text of `root`, as Transformers formats such files. */
static dt_status json_bytes(const char *name, const json_t *root, void **bytes, int64_t *n)
{
    char *text = json_dumps(root, JSON_INDENT(2));
    dt_status st;

    DT_CHECK(text != NULL, DT_ERR_MEMORY, "%s does not fit into memory", name);
    *n = (int64_t)strlen(text);
    st = dti_alloc((size_t)*n + 1, bytes);
    if (st == DT_OK) memcpy(*bytes, text, (size_t)*n);
    free(text); /* jansson's */
    return st;
}

/* The dtype under the key that the file has, of Transformers 5 or 4; a file without one leaves it
 * to the weights. Returns whether something changed. */
static bool set_dtype(json_t *object, dt_dtype dtype)
{
    static const char *const dtypes[DT_N_DTYPES] = {
        [DT_F32] = "float32", [DT_BF16] = "bfloat16", [DT_F16] = "float16"
    };
    static const char *const keys[] = { "dtype", "torch_dtype" };
    bool changed = false;

    for (size_t i = 0; i < DT_COUNT(keys); i++) {
        const json_t *now = json_object_get(object, keys[i]);
        if (!json_is_string(now) || strcmp(json_string_value(now), dtypes[dtype]) == 0) continue;
        changed |= json_object_set_new(object, keys[i], json_string(dtypes[dtype])) == 0;
    }
    return changed;
}

static bool any_packed(const dt_layers *layers)
{
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at((dt_layers *)(uintptr_t)layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (dt_layer_param_info(layer, p).packed != DT_PACKED_NOT) return true;
    }
    return false;
}

/* What is said of packed weights, nothing of such as reading has unpacked; returns whether
 * something changed. */
static bool set_packing(json_t *root, const dt_layers *layers, const dt_spelling *spellings)
{
    json_t *said = layers != NULL ? dti_save_packed_config(layers, spellings) : NULL;

    if (layers != NULL && !any_packed(layers))
        return json_object_del(root, "quantization_config") == 0;
    return said != NULL && json_object_set_new(root, "quantization_config", said) == 0;
}

/* The file's own bytes, unless they say another dtype. */
static dt_status read_config(const char *path, dt_dtype dtype, const dt_layers *layers,
                             const dt_spelling *spellings, dti_small_file *out)
{
    dti_json_doc doc = { 0 };
    dt_status st;
    bool changed;

    DT_TRY(dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc));
    changed = set_dtype(doc.root.value, dtype);
    changed |= set_dtype(json_object_get(doc.root.value, "text_config"), dtype);
    changed |= set_packing(doc.root.value, layers, spellings);
    st = changed ? json_bytes(path, doc.root.value, &out->bytes, &out->n)
                 : dti_input_read_file(path, SMALL_BYTES, &out->bytes, &out->n);
    dti_json_free(&doc);
    return st;
}

const char *dti_small_name(int i)
{
    return names[i];
}

dt_status dti_small_read(const char *from, dt_dtype dtype, const dt_layers *layers,
                         const dt_spelling *spellings, dti_small_file *small, int *n)
{
    *n = 0;
    DT_TRY(dti_ckpt_check_folder(from)); /* somebody may have removed it since the model was read */
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        dti_small_file *f = &small[*n];
        char path[DTI_PATH_BYTES];

        *f = (dti_small_file){ .name = names[i], .absent = !dti_folder_has(from, names[i]) };
        ++*n;
        if (f->absent) continue;
        DT_TRY(dti_folder_check_link(from, names[i]));
        DT_TRY(dti_folder_path(path, from, names[i]));
        if (strcmp(names[i], "config.json") == 0)
            DT_TRY(read_config(path, dtype, layers, spellings, f));
        else
            DT_TRY(dti_input_read_file(path, SMALL_BYTES, &f->bytes, &f->n));
    }
    return DT_OK;
}

void dti_small_free(dti_small_file *small, int n)
{
    for (int i = 0; i < n; i++) dti_free(small[i].bytes);
}

dt_status dti_small_readable(const char *folder)
{
    for (size_t i = 0; i < DT_COUNT(names) - N_CONFIGURATIONS; i++) {
        char path[DTI_PATH_BYTES];
        void *bytes = NULL;
        int64_t n;

        if (!dti_folder_has(folder, names[i])) continue;
        DT_TRY(dti_folder_path(path, folder, names[i]));
        DT_TRY(dti_input_read_file(path, SMALL_BYTES, &bytes, &n));
        dti_free(bytes);
    }
    return DT_OK;
}

/* What is not known to be equal is another model's; so is what this model has none of, and would be
 * opened with. */
static dt_status check_place(const char *dir, dti_small_file *f)
{
    char path[DTI_PATH_BYTES], label[DTI_INPUT_LABEL_BYTES];
    void *bytes = NULL;
    int64_t n = 0;

    f->there = false;
    if (!dti_folder_has(dir, f->name) || dti_hold_is_left_over(dir, f->name)) return DT_OK;
    DT_TRY(dti_folder_path(path, dir, f->name));
    DT_CHECK(!f->absent, DT_ERR_ARG,
             "%s: is there already, and this model has no such file: it would be taken for this "
             "model's; choose another folder, or remove the file first",
             dti_printable(path, label, sizeof label));
    f->there = dti_input_read_file(path, SMALL_BYTES, &bytes, &n) == DT_OK && n == f->n &&
               memcmp(bytes, f->bytes, (size_t)n) == 0;
    dti_free(bytes);
    DT_CHECK(f->there, DT_ERR_ARG,
             "%s: is there already and another one than this model's: it is not written over; "
             "choose another folder, or remove the file first",
             dti_printable(path, label, sizeof label));
    return DT_OK;
}

dt_status dti_small_check(const char *dir, dti_small_file *small, int n)
{
    for (int i = 0; i < n; i++) DT_TRY(check_place(dir, &small[i]));
    return DT_OK;
}

static dt_status write_file(dti_hold *hold, const char *name, const void *bytes, int64_t n)
{
    char label[DTI_INPUT_LABEL_BYTES];
    dt_status st;
    int fd;

    DT_TRY(dti_hold_create(hold, name, &fd));
    (void)dti_printable(hold->made[hold->n - 1].path, label, sizeof label);
    DT_TRY_TO(done, st, dti_write_at(fd, label, bytes, (size_t)n, 0));
    DT_CHECK_TO(done, st, fsync(fd) == 0, dti_io_status(errno), "%s: its bytes cannot be kept: %s",
                label, strerror(errno));
done:
    (void)close(fd);
    DT_TRY(st);
    DT_TRY(dti_hold_name(hold, hold->n - 1));
    return DT_OK;
}

dt_status dti_small_write(dti_hold *hold, const dti_small_file *small, int n)
{
    for (int i = 0; i < n; i++)
        if (!small[i].there && !small[i].absent)
            DT_TRY(write_file(hold, small[i].name, small[i].bytes, small[i].n));
    return DT_OK;
}

static json_t *index_json(const dti_saver *s)
{
    json_t *map = json_object(), *root;
    json_int_t parameters = 0;

    for (size_t i = 0; i < s->n; i++) {
        json_int_t count = 1;
        for (int a = 0; a < s->specs[i].n_axes; a++) count *= s->specs[i].shape[a];
        parameters += count;
    }
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

dt_status dti_save_index(dti_saver *s)
{
    void *bytes = NULL;
    dt_status st = DT_OK;
    int64_t n = 0;
    json_t *root;

    if (s->n_files == 1) return DT_OK;
    root = index_json(s);
    DT_CHECK(root != NULL, DT_ERR_MEMORY, "the index does not fit into memory");
    DT_TRY_TO(done, st, json_bytes(index_name, root, &bytes, &n));
    DT_TRY_TO(done, st, write_file(&s->hold, index_name, bytes, n));
done:
    json_decref(root);
    dti_free(bytes);
    return st;
}
