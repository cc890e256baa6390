/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a safetensors file: what it promises, and whether that can be true. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/header_members.h"
#include "files/json.h"
#include "files/safetensors_internal.h"

/* Memory that grows. */
typedef struct growing {
    char *data;
    size_t capacity;
} growing;

static const char metadata_key[] = "__metadata__";

/* clang-format off */
static const dti_st_dtype dtypes[] = {
    { "F32",  32, true,  DT_F32  }, { "BF16", 16, true, DT_BF16 }, { "F16", 16, true, DT_F16 },
    { "F64",  64, true,  DT_F64  }, { "I64",  64, true, DT_I64  }, { "I32", 32, true, DT_I32 },
    { "U8",    8, true,  DT_U8   },
    { "I8",    8, true,  DT_U8   }, { "F8_E4M3", 8, true, DT_U8 }, /* their bytes */
    { "BOOL",  8, false, DT_U8 }, { "I16", 16, false, DT_U8 },
    { "U16",  16, false, DT_U8 }, { "U32", 32, false, DT_U8 }, { "U64", 64, false, DT_U8 },
    { "C64",  64, false, DT_U8 }, { "F4",   4, false, DT_U8 },
    { "F6_E2M3",      6, false, DT_U8 }, { "F6_E3M2",      6, false, DT_U8 },
    { "F8_E5M2",      8, false, DT_U8 },
    { "F8_E8M0",      8, false, DT_U8 }, { "F8_E4M3FNUZ",  8, false, DT_U8 },
    { "F8_E5M2FNUZ",  8, false, DT_U8 },
};
/* clang-format on */

const dti_st_dtype *dti_st_dtype_named(const char *name)
{
    for (size_t i = 0; i < DT_COUNT(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

const dti_st_dtype *dti_st_dtype_of(dt_dtype dtype)
{
    for (size_t i = 0; i < DT_COUNT(dtypes); i++)
        if (dtypes[i].supported && dtypes[i].dtype == dtype) return &dtypes[i];
    return NULL;
}

bool dti_st_size(const dti_st_dtype *dtype, int n_axes, const int64_t *shape, int64_t *elements,
                 int64_t *bytes)
{
    int64_t bits;

    *elements = 1;
    for (int a = 0; a < n_axes; a++)
        if (!dti_mul_i64(*elements, shape[a], elements)) return false;
    if (!dti_mul_i64(*elements, dtype->bits, &bits) || bits % 8 != 0) return false;
    *bytes = bits / 8;
    return true;
}

static dt_status parse_shape(const dti_json *tensor, dti_st_entry *e)
{
    dti_json shape;

    DT_TRY(dti_json_array(tensor, "shape", &shape));
    DT_CHECK(dti_json_count(&shape) <= DT_MAX_AXES, DT_ERR_FORMAT,
             "%s: shape has %zu axes, at most %d are supported", tensor->file,
             dti_json_count(&shape), DT_MAX_AXES);
    e->n_axes = (int)dti_json_count(&shape);
    for (int a = 0; a < e->n_axes; a++) {
        const dti_json extent = dti_json_at(&shape, (size_t)a);
        DT_TRY(dti_json_as_int(&extent, 0, INT64_MAX, &e->shape[a]));
    }
    return DT_OK;
}

static dt_status parse_offsets(const dti_json *tensor, dti_st_entry *e)
{
    dti_json offsets, first, second;

    DT_TRY(dti_json_array(tensor, "data_offsets", &offsets));
    DT_CHECK(dti_json_count(&offsets) == 2, DT_ERR_FORMAT,
             "%s: data_offsets has %zu numbers, must have 2: begin and end", tensor->file,
             dti_json_count(&offsets));
    first = dti_json_at(&offsets, 0);
    second = dti_json_at(&offsets, 1);
    DT_TRY(dti_json_as_int(&first, 0, INT64_MAX, &e->begin));
    DT_TRY(dti_json_as_int(&second, 0, INT64_MAX, &e->end));
    DT_CHECK(e->begin <= e->end, DT_ERR_FORMAT,
             "%s: data_offsets [%lld, %lld] end before they begin", tensor->file,
             (long long)e->begin, (long long)e->end);
    return DT_OK;
}

static dt_status parse_dtype(const dti_json *tensor, const dti_st_dtype **out)
{
    const dti_json dtype = dti_json_get(tensor, "dtype");
    const char *name;

    DT_TRY(dti_json_as_string(&dtype, &name));
    *out = dti_st_dtype_named(name);
    if (*out == NULL)
        return dti_json_refuse(&dtype, DT_ERR_FORMAT,
                               "a dtype of safetensors, in capitals: F32, BF16, F16, F64, I64, "
                               "I32, U8 (BOOL, I8, F8_E4M3 and the like can be listed only)");
    return DT_OK;
}

/* Offsets stay relative to the data until the whole file is checked. */
static dt_status parse_entry(dti_st_file *file, const char *name, const dti_json *member,
                             dti_st_entry *e)
{
    char label[DTI_INPUT_LABEL_BYTES + DTI_ST_SHOWN_BYTES + 16], shown[DTI_ST_SHOWN_BYTES];
    dti_json tensor = *member;
    const dti_st_dtype *dtype;
    int64_t elements, bytes;
    char *copy;

    (void)snprintf(label, sizeof label, "%s: tensor \"%s\"", file->in.label,
                   dti_printable(name, shown, sizeof shown));
    tensor.file = label;
    tensor.path[0] = '\0';
    DT_CHECK(strlen(name) < DTI_ST_NAME_BYTES, DT_ERR_FORMAT,
             "%s: the name has %zu bytes, at most %d are supported", label, strlen(name),
             DTI_ST_NAME_BYTES - 1);
    DT_TRY(dti_json_as_object(&tensor));
    DT_TRY(parse_dtype(&tensor, &dtype));
    DT_TRY(parse_shape(&tensor, e));
    DT_TRY(parse_offsets(&tensor, e));
    DT_CHECK(dti_st_size(dtype, e->n_axes, e->shape, &elements, &bytes), DT_ERR_FORMAT,
             "%s: its shape does not give a whole number of bytes that fits into 63 bits", label);
    DT_CHECK(e->end - e->begin == bytes, DT_ERR_FORMAT,
             "%s: data_offsets span %lld bytes, but %lld elements of %s are %lld", label,
             (long long)(e->end - e->begin), (long long)elements, dtype->name, (long long)bytes);
    DT_TRY(dti_arena_strndup(&file->names, name, strlen(name), &copy));
    e->name = copy;
    e->dtype = dtype->dtype;
    e->dtype_name = dtype->name;
    e->supported = dtype->supported;
    return DT_OK;
}

/* "__metadata__" maps strings to strings; nothing here reads it. */
static dt_status check_metadata(const dti_json *metadata)
{
    dti_json value;
    const char *key = NULL, *text;

    if (!dti_json_is_set(metadata)) return DT_OK;
    DT_TRY(dti_json_as_object(metadata));
    while (dti_json_next(metadata, &key, &value)) DT_TRY(dti_json_as_string(&value, &text));
    return DT_OK;
}

static int by_offset(const void *left, const void *right)
{
    const dti_st_entry *a = left, *b = right;

    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name); /* empty tensors may share an offset */
}

static int by_name(const void *left, const void *right)
{
    return strcmp((*(const dti_st_entry *const *)left)->name,
                  (*(const dti_st_entry *const *)right)->name);
}

void dti_st_sort_names(const dti_st_entry **names, size_t n)
{
    if (n > 0) qsort(names, n, sizeof *names, by_name);
}

/* A tensor begins where `last`, that reaches farthest of those before it, has ended; NULL: at the
 * first byte. Where some tensors are unknown, what lies between two may be theirs. */
static dt_status check_place(const dti_st_file *file, const dti_st_entry *last,
                             const dti_st_entry *e)
{
    char name[DTI_ST_SHOWN_BYTES], other[DTI_ST_SHOWN_BYTES];
    const int64_t end = last != NULL ? last->end : 0;
    const char *label = file->in.label;

    (void)dti_printable(e->name, name, sizeof name);
    DT_CHECK(e->begin >= end, DT_ERR_FORMAT,
             "%s: tensor \"%s\" begins at byte %lld of the data, inside tensor \"%s\" that "
             "ends at byte %lld",
             label, name, (long long)e->begin,
             dti_printable(last != NULL ? last->name : "", other, sizeof other), (long long)end);
    DT_CHECK(e->begin == end || file->incomplete, DT_ERR_FORMAT,
             "%s: bytes %lld to %lld of the data, before tensor \"%s\", belong to no tensor", label,
             (long long)end, (long long)e->begin, name);
    DT_CHECK(e->end <= file->data_bytes, DT_ERR_FORMAT,
             "%s: tensor \"%s\" ends at byte %lld of the data, but only %lld are there: the "
             "file is cut off (a download that did not finish?)",
             label, name, (long long)e->end, (long long)file->data_bytes);
    return DT_OK;
}

/* Tensors fill the data from its first byte to its last. This bounds memory by the file's size,
 * and nothing can hide between them. */
static dt_status check_data(dti_st_file *file)
{
    const dti_st_entry *last = NULL;
    int64_t end;

    for (size_t i = 0; i < file->n; i++) {
        const dti_st_entry *e = &file->entries[i];

        DT_TRY(dti_say_fault(file->faults, e->name, check_place(file, last, e)));
        if (last == NULL || e->end > last->end) last = e;
    }
    end = last != NULL ? last->end : 0;
    DT_CHECK(end >= file->data_bytes || file->incomplete, DT_ERR_FORMAT,
             "%s: %lld bytes follow the last tensor and belong to none", file->in.label,
             (long long)(file->data_bytes - end));
    return DT_OK;
}

static dt_status parse_member(dti_st_file *file, const char *key, const dti_json *member)
{
    dt_status st;

    if (strcmp(key, metadata_key) == 0) {
        DT_TRY(dti_say_fault(file->faults, NULL, check_metadata(member)));
        return DT_OK;
    }
    st = parse_entry(file, key, member, &file->entries[file->n]);
    if (st == DT_OK) {
        file->n++;
        return DT_OK;
    }
    file->entries[file->n] = (dti_st_entry){ 0 };
    file->incomplete = true;
    DT_TRY(dti_say_fault(file->faults, key, st));
    return DT_OK;
}

static dt_status parse_members(dti_st_file *file, const dti_json *root)
{
    const char *key = NULL;
    dti_json member;

    while (dti_json_next(root, &key, &member)) DT_TRY(parse_member(file, key, &member));
    return DT_OK;
}

/* From the data to the file. Faults leave tensors that end behind it. */
static void place_entry(const dti_st_file *file, dti_st_entry *e)
{
    if (e->begin > file->data_bytes) e->begin = file->data_bytes;
    if (e->end > file->data_bytes) e->end = file->data_bytes;
    e->begin += file->data_begin;
    e->end += file->data_begin;
}

static dt_status make_room(dti_st_file *file, size_t count)
{
    DT_TRY(dti_alloc_array(count, sizeof *file->entries, (void **)&file->entries));
    DT_TRY(dti_alloc_array(count, sizeof *file->by_name, (void **)&file->by_name));
    return DT_OK;
}

static void forget_all(dti_st_file *file)
{
    dti_arena_free(&file->names);
    dti_free(file->entries);
    dti_free(file->by_name);
    file->entries = NULL;
    file->by_name = NULL;
    file->n = 0;
    file->incomplete = false;
}

/* One member as a document of its own; `buffer` keeps its memory. */
static dt_status parse_alone(dti_st_file *file, const char *label, const char *text, size_t n,
                             growing *buffer)
{
    const char *key = NULL;
    dt_status st = DT_OK;
    dti_json_doc doc;
    dti_json member;

    DT_TRY(dti_grow((void **)&buffer->data, &buffer->capacity, n + 2, 1));
    buffer->data[0] = '{';
    memcpy(buffer->data + 1, text, n);
    buffer->data[n + 1] = '}';
    DT_TRY(dti_json_parse(label, buffer->data, n + 2, &doc));
    if (dti_json_count(&doc.root) == 1 && dti_json_next(&doc.root, &key, &member))
        st = parse_member(file, key, &member);
    dti_json_free(&doc);
    return st;
}

/* False in *done, or an error: nothing that this way can read. What is wrong with it, and names
 * that occur twice, are left to the whole document. */
static dt_status parse_by_members(dti_st_file *file, const char *label, const char *text, size_t n,
                                  bool *done)
{
    dti_members m = dti_members_in(text, n);
    growing buffer = { NULL, 0 };
    dt_status st = DT_OK;
    const char *one;
    size_t bytes, count = 0;

    *done = false;
    while (dti_members_next(&m, &one, &bytes)) count++;
    if (!m.over) return DT_OK;
    DT_TRY(make_room(file, count));
    m = dti_members_in(text, n);
    while (dti_members_next(&m, &one, &bytes))
        DT_TRY_TO(done, st, parse_alone(file, label, one, bytes, &buffer));
    for (size_t i = 0; i < file->n; i++) file->by_name[i] = &file->entries[i];
    dti_st_sort_names(file->by_name, file->n);
    *done = true;
    for (size_t i = 1; i < file->n && *done; i++)
        *done = strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) != 0;
done:
    dti_free(buffer.data);
    return st;
}

static dt_status parse_whole(dti_st_file *file, const char *label, const char *text, size_t n)
{
    dt_status st = DT_OK;
    dti_json_doc doc;

    DT_TRY(dti_json_parse(label, text, n, &doc));
    DT_TRY_TO(done, st, make_room(file, dti_json_count(&doc.root)));
    DT_TRY_TO(done, st, parse_members(file, &doc.root));
done:
    dti_json_free(&doc);
    return st;
}

dt_status dti_st_parse_header(dti_st_file *file, const char *text, size_t n)
{
    char label[DTI_INPUT_LABEL_BYTES + 16];
    dt_status st = DT_OK;
    bool done = false;

    (void)snprintf(label, sizeof label, "%s: header", file->in.label);
    if (file->faults == NULL) st = parse_by_members(file, label, text, n, &done);
    if (st == DT_ERR_MEMORY) return dti_error_frame(st, __func__, __FILE__, __LINE__);
    if (st != DT_OK || !done) {
        forget_all(file);
        DT_TRY(parse_whole(file, label, text, n));
    }
    qsort(file->entries, file->n, sizeof *file->entries, by_offset);
    DT_TRY(dti_say_fault(file->faults, NULL, check_data(file)));
    for (size_t i = 0; i < file->n; i++) place_entry(file, &file->entries[i]);
    for (size_t i = 0; i < file->n; i++) file->by_name[i] = &file->entries[i];
    dti_st_sort_names(file->by_name, file->n);
    return DT_OK;
}
