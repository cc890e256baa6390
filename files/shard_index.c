/* SPDX-License-Identifier: Apache-2.0
 *
 * model.safetensors.index.json: which file holds which tensor. Also the answer to a folder that has
 * no weights we can read. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "files/checkpoint_internal.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/safetensors_internal.h"

/* One row of the weight map. */
typedef struct mapping {
    const char *tensor, *shard; /* owned by the document */
    size_t file;                /* index of the shard among the open files */
} mapping;

typedef struct shard_index {
    dti_json_doc doc;
    mapping *rows;
    size_t n;
} shard_index;

/* Files outside the folder are none of the model's business, whoever wrote the index. A symbolic
 * link in the folder is fine: the Hub's own cache consists of them. */
static bool stays_inside(const char *shard)
{
    if (shard[0] == '\0' || shard[0] == '/') return false;
    for (const char *part = shard; part != NULL; part = strchr(part, '/')) {
        if (*part == '/') part++;
        if (part[0] == '.' && part[1] == '.' && (part[2] == '/' || part[2] == '\0')) return false;
    }
    return true;
}

static dt_status read_shard(const dti_json *value, const char **shard)
{
    DT_TRY(dti_json_as_string(value, shard));
    if (!stays_inside(*shard))
        return dti_json_refuse(value, DT_ERR_FORMAT, "the name of a file in the same folder");
    return DT_OK;
}

static dt_status read_map(shard_index *index, const char *path, const dti_faults *faults)
{
    dti_json map, value;
    const char *key = NULL;

    DT_TRY(dti_json_read(path, DTI_JSON_INDEX_BYTES, &index->doc));
    DT_TRY(dti_json_object(&index->doc.root, "weight_map", &map));
    DT_CHECK(dti_json_count(&map) > 0, DT_ERR_FORMAT, "%s: weight_map is empty", index->doc.file);
    DT_TRY(dti_alloc_array(dti_json_count(&map), sizeof *index->rows, (void **)&index->rows));
    while (dti_json_next(&map, &key, &value)) {
        mapping *row = &index->rows[index->n];
        const dt_status st = read_shard(&value, &row->shard);

        row->tensor = key;
        if (st == DT_OK) index->n++;
        DT_TRY(dti_say_fault(faults, key, st));
    }
    return DT_OK;
}

static int by_shard(const void *left, const void *right)
{
    return strcmp(((const mapping *)left)->shard, ((const mapping *)right)->shard);
}

/* Numbers the shards in the order of their names; rows are sorted by shard. */
static size_t number_shards(shard_index *index)
{
    size_t n = 0;

    qsort(index->rows, index->n, sizeof *index->rows, by_shard);
    for (size_t i = 0; i < index->n; i++) {
        if (i > 0 && strcmp(index->rows[i].shard, index->rows[i - 1].shard) != 0) n++;
        index->rows[i].file = n;
    }
    return index->n > 0 ? n + 1 : 0;
}

static bool first_of_shard(const shard_index *index, size_t i)
{
    return i == 0 || index->rows[i].file != index->rows[i - 1].file;
}

/* So is a link to a file that was not downloaded; what may not be looked at is opened, to say why.
 */
static bool is_missing(const char *folder, const char *shard)
{
    char path[DTI_PATH_BYTES];
    struct stat info;

    return dti_folder_path(path, folder, shard) == DT_OK && stat(path, &info) != 0 &&
           (errno == ENOENT || errno == ENOTDIR);
}

/* All missing shards are found before any is opened, so that the message can count them. */
static dt_status check_present(const shard_index *index, const char *folder, size_t n_shards)
{
    char name[DTI_ST_SHOWN_BYTES], tensor[DTI_ST_SHOWN_BYTES];
    const mapping *first = NULL;
    size_t missing = 0;

    for (size_t i = 0; i < index->n; i++) {
        if (!first_of_shard(index, i) || !is_missing(folder, index->rows[i].shard)) continue;
        if (first == NULL) first = &index->rows[i];
        missing++;
    }
    DT_CHECK(first == NULL, DT_ERR_IO,
             "%s: %zu of %zu files it names are missing; the first is \"%s\", which holds tensor "
             "\"%s\"",
             index->doc.file, missing, n_shards, dti_printable(first->shard, name, sizeof name),
             dti_printable(first->tensor, tensor, sizeof tensor));
    return DT_OK;
}

/* The same of one shard, whose first row is `row`, where all faults are wanted. */
static dt_status check_shard(const shard_index *index, const char *folder, const mapping *row)
{
    char name[DTI_ST_SHOWN_BYTES], tensor[DTI_ST_SHOWN_BYTES];
    size_t n = 0;

    if (!is_missing(folder, row->shard)) return DT_OK;
    for (const mapping *r = row; r < index->rows + index->n && r->file == row->file; r++) n++;
    DT_FAIL(DT_ERR_IO, "%s: file \"%s\" is missing; it holds %zu tensor%s, the first is \"%s\"",
            index->doc.file, dti_printable(row->shard, name, sizeof name), n, n == 1 ? "" : "s",
            dti_printable(row->tensor, tensor, sizeof tensor));
}

static dt_status open_shard(dti_ckpt *ckpt, const shard_index *index, const mapping *row)
{
    dt_status st;
    char *path;

    if (ckpt->faults != NULL) DT_TRY(check_shard(index, ckpt->folder, row));
    DT_TRY(dti_ckpt_path(ckpt->folder, row->shard, &path));
    st = dti_ckpt_open_file(ckpt, path, &ckpt->files[row->file]);
    dti_free(path);
    return st;
}

static dt_status open_shards(dti_ckpt *ckpt, const shard_index *index, size_t n_shards)
{
    DT_TRY(dti_alloc_array(n_shards, sizeof *ckpt->files, (void **)&ckpt->files));
    ckpt->n_files = n_shards;
    for (size_t i = 0; i < index->n; i++) {
        const mapping *row = &index->rows[i];

        if (first_of_shard(index, i))
            DT_TRY(dti_say_fault(ckpt->faults, NULL, open_shard(ckpt, index, row)));
        if (ckpt->files[row->file] == NULL) dti_ckpt_note_name(ckpt, row->tensor);
    }
    dti_ckpt_sort_names(ckpt);
    return DT_OK;
}

static dt_status not_in_shard(const dti_ckpt *ckpt, const shard_index *index, const mapping *row)
{
    char name[DTI_ST_SHOWN_BYTES];
    const char *other = NULL;

    for (size_t i = 0; i < ckpt->n_files && other == NULL; i++)
        if (ckpt->files[i] != NULL && dti_st_find(ckpt->files[i], row->tensor) != NULL)
            other = dti_st_label(ckpt->files[i]);
    DT_FAIL(DT_ERR_FORMAT, "%s: tensor \"%s\" is not in %s%s%s", index->doc.file,
            dti_printable(row->tensor, name, sizeof name), dti_st_label(ckpt->files[row->file]),
            other ? " but in " : ", nor in any other file of the index", other ? other : "");
}

/* Tensors of a shard that the index does not name are left alone, as Transformers does. */
static dt_status list_tensors(dti_ckpt *ckpt, const shard_index *index, const dti_faults *faults)
{
    DT_TRY(dti_alloc_array(index->n, sizeof *ckpt->tensors, (void **)&ckpt->tensors));
    for (size_t i = 0; i < index->n; i++) {
        const mapping *row = &index->rows[i];
        const dti_st_file *file = ckpt->files[row->file];
        const dti_st_entry *entry = file != NULL ? dti_st_find(file, row->tensor) : NULL;

        if (entry == NULL) {
            if (!dti_ckpt_is_faulty(ckpt, row->tensor)) /* it is said */
                DT_TRY(dti_say_fault(faults, row->tensor, not_in_shard(ckpt, index, row)));
            continue;
        }
        ckpt->tensors[ckpt->n_tensors++] = (dti_ckpt_tensor){ entry, file };
    }
    return DT_OK;
}

dt_status dti_ckpt_open_index(dti_ckpt *ckpt, const char *index_path)
{
    const dti_faults noted = { dti_ckpt_note, ckpt };
    const dti_faults *faults = ckpt->faults != NULL ? &noted : NULL;
    shard_index index = { 0 };
    dt_status st = DT_OK;
    size_t n_shards;

    DT_TRY_TO(done, st, read_map(&index, index_path, faults));
    n_shards = number_shards(&index);
    if (faults == NULL) DT_TRY_TO(done, st, check_present(&index, ckpt->folder, n_shards));
    DT_TRY_TO(done, st, open_shards(ckpt, &index, n_shards));
    DT_TRY_TO(done, st, list_tensors(ckpt, &index, faults));
done:
    dti_free(index.rows);
    dti_json_free(&index.doc);
    return st;
}

/* Whatever the case: disks and people do not agree on it. */
static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);

    return n >= m && strcasecmp(text + n - m, end) == 0;
}

static const char training_args[] = "training_args.bin"; /* no weights */

/* What a file that is not model.safetensors tells. Rows before others win. */
static const struct {
    const char *ending;
    dt_status code;
    const char *advice;
} other_weights[] = {
    { "adapter_model.safetensors", DT_ERR_UNSUPPORTED,
      "an adapter is not a model: merge it into its base model first" },
    { ".safetensors", DT_ERR_FORMAT,
      "weights of several files need model.safetensors.index.json beside them, a single one must "
      "be "
      "called model.safetensors" },
    { ".bin", DT_ERR_UNSUPPORTED,
      "PyTorch files are not read: convert the model to safetensors (save_pretrained of "
      "Transformers writes them)" },
    { ".pth", DT_ERR_UNSUPPORTED,
      "PyTorch files are not read: convert the model to safetensors (save_pretrained of "
      "Transformers writes them)" },
    { ".gguf", DT_ERR_UNSUPPORTED,
      "GGUF files are not read: use the model's original safetensors folder" },
};

bool dti_ckpt_is_weights(const char *name)
{
    static const char *const others[] = { ".pt",  ".ckpt",   ".h5",    ".msgpack",   ".onnx",
                                          ".npz", ".tflite", ".keras", ".index.json" };
    bool found = false;

    for (size_t k = 0; k < DT_COUNT(other_weights); k++)
        found |= ends_with(name, other_weights[k].ending);
    for (size_t k = 0; k < DT_COUNT(others); k++) found |= ends_with(name, others[k]);
    return found && strcmp(name, training_args) != 0;
}

/* Remembers the most telling file of the folder; ties go to the name that sorts first, because a
 * folder has no order. */
static size_t look_at(const char *name, size_t best, char found[DTI_ST_SHOWN_BYTES])
{
    for (size_t k = 0; k < DT_COUNT(other_weights) && k <= best; k++) {
        char shown[DTI_ST_SHOWN_BYTES];

        if (!ends_with(name, other_weights[k].ending)) continue;
        if (strcmp(name, training_args) == 0) continue;
        (void)dti_printable(name, shown, sizeof shown);
        if (k < best || strcmp(shown, found) < 0) memcpy(found, shown, sizeof shown);
        return k;
    }
    return best;
}

dt_status dti_ckpt_no_weights(const char *folder)
{
    char label[DTI_INPUT_LABEL_BYTES], found[DTI_ST_SHOWN_BYTES] = "";
    size_t best = DT_COUNT(other_weights);
    const struct dirent *item;
    DIR *dir = opendir(folder);

    (void)dti_printable(folder, label, sizeof label);
    DT_CHECK(dir != NULL, dti_io_status(errno), "%s: %s", label, strerror(errno));
    while ((item = readdir(dir)) != NULL) best = look_at(item->d_name, best, found);
    (void)closedir(dir);
    DT_CHECK(best < DT_COUNT(other_weights), DT_ERR_FORMAT,
             "%s: has neither model.safetensors nor model.safetensors.index.json", label);
    DT_FAIL(other_weights[best].code,
            "%s: has neither model.safetensors nor model.safetensors.index.json, but %s; %s", label,
            found, other_weights[best].advice);
}
