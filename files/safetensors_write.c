/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a safetensors file. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/output.h"
#include "files/safetensors_internal.h"

enum { FILL_BYTES = 1 << 20, ALIGNMENT = 8 };

static dt_status check_spec(const dti_st_spec *spec, int64_t *bytes)
{
    const dti_st_dtype *dtype = dti_st_dtype_of(spec->dtype);
    char name[DTI_ST_SHOWN_BYTES];
    int64_t elements;

    DT_CHECK(spec->name != NULL, DT_ERR_ARG, "a tensor has no name");
    (void)dti_printable(spec->name, name, sizeof name);
    DT_CHECK(strlen(spec->name) < DTI_ST_NAME_BYTES, DT_ERR_ARG,
             "tensor \"%s\": the name has %zu bytes, at most %d are allowed", name,
             strlen(spec->name), DTI_ST_NAME_BYTES - 1);
    DT_CHECK(strcmp(spec->name, "__metadata__") != 0, DT_ERR_ARG,
             "a tensor cannot be called __metadata__");
    DT_CHECK(dtype != NULL, DT_ERR_ARG, "tensor \"%s\": %d is no dtype", name, (int)spec->dtype);
    DT_CHECK(spec->n_axes >= 0 && spec->n_axes <= DT_MAX_AXES, DT_ERR_ARG,
             "tensor \"%s\" has %d axes, must have 0 to %d", name, spec->n_axes, DT_MAX_AXES);
    for (int a = 0; a < spec->n_axes; a++)
        DT_CHECK(spec->shape[a] >= 0, DT_ERR_ARG, "tensor \"%s\": axis %d is %lld", name, a,
                 (long long)spec->shape[a]);
    DT_CHECK(dti_st_size(dtype, spec->n_axes, spec->shape, &elements, bytes), DT_ERR_ARG,
             "tensor \"%s\" is too large", name);
    return DT_OK;
}

static int by_width_and_name(const void *left, const void *right)
{
    const dti_st_spec *a = *(const dti_st_spec *const *)left;
    const dti_st_spec *b = *(const dti_st_spec *const *)right;
    const size_t a_width = dt_dtype_size(a->dtype), b_width = dt_dtype_size(b->dtype);

    if (a_width != b_width) return a_width > b_width ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* The specs in the order of the data; each is checked, and no name occurs twice. */
static dt_status sort_specs(const dti_st_spec *specs, size_t n, const dti_st_spec ***out)
{
    char name[DTI_ST_SHOWN_BYTES];
    const dti_st_spec **order;
    json_t *seen = json_object();
    dt_status st = DT_OK;
    int64_t bytes;

    errno = 0;
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *order, (void **)&order));
    *out = order;
    for (size_t i = 0; i < n; i++) {
        DT_TRY_TO(done, st, check_spec(&specs[i], &bytes));
        (void)dti_printable(specs[i].name, name, sizeof name);
        DT_CHECK_TO(done, st, json_object_get(seen, specs[i].name) == NULL, DT_ERR_ARG,
                    "tensor \"%s\" occurs twice", name);
        if (json_object_set_new(seen, specs[i].name, json_true()) != 0) {
            DT_CHECK_TO(done, st, seen != NULL && errno != ENOMEM, DT_ERR_MEMORY,
                        "no memory for the names of %zu tensors", n);
            DT_CHECK_TO(done, st, false, DT_ERR_ARG, "a tensor's name is no UTF-8: \"%s\"", name);
        }
        order[i] = &specs[i];
    }
    qsort(order, n, sizeof *order, by_width_and_name);
done:
    json_decref(seen);
    return st;
}

/* One tensor's part of the header; NULL if memory is short. */
static json_t *entry_json(const dti_st_spec *spec, int64_t *at)
{
    const dti_st_dtype *dtype = dti_st_dtype_of(spec->dtype);
    json_t *shape = json_array();
    int64_t elements, bytes = 0;

    (void)dti_st_size(dtype, spec->n_axes, spec->shape, &elements, &bytes); /* was checked */
    for (int a = 0; a < spec->n_axes; a++)
        if (json_array_append_new(shape, json_integer(spec->shape[a])) != 0) {
            json_decref(shape);
            return NULL;
        }
    *at += bytes;
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype->name, "shape", shape, "data_offsets",
                     (json_int_t)(*at - bytes), (json_int_t)*at);
}

/* The JSON text, owned by the C heap. NULL if memory is short or a text is no UTF-8. */
static char *header_text(const dti_st_spec *const *order, size_t n, const char *const *metadata)
{
    json_t *root = json_object(), *pairs = json_object();
    char *text = NULL;
    int64_t at = 0;

    for (size_t i = 0; metadata != NULL && metadata[i] != NULL; i += 2)
        if (json_object_set_new(pairs, metadata[i], json_string(metadata[i + 1])) != 0) goto done;
    if (metadata != NULL && json_object_set(root, "__metadata__", pairs) != 0) goto done;
    for (size_t i = 0; i < n; i++)
        if (json_object_set_new(root, order[i]->name, entry_json(order[i], &at)) != 0) goto done;
    text = json_dumps(root, JSON_COMPACT);
done:
    json_decref(pairs);
    json_decref(root);
    return text;
}

/* The length, the JSON, and spaces up to a multiple of 8, so that data is aligned in the file. */
static dt_status make_header(const dti_st_spec *const *order, size_t n, const char *const *metadata,
                             void **header, size_t *bytes)
{
    dt_status st = DT_OK;
    unsigned char *to;
    size_t length, padded;
    char *text;

    errno = 0;
    text = header_text(order, n, metadata);
    DT_CHECK(text != NULL || errno != ENOMEM, DT_ERR_MEMORY, "no memory for the header");
    DT_CHECK(text != NULL, DT_ERR_ARG, "the header cannot be made: metadata that is no UTF-8");
    length = strlen(text);
    padded = (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    DT_CHECK_TO(done, st, padded <= DTI_ST_HEADER_BYTES, DT_ERR_ARG,
                "the header would have %zu bytes, at most %d are allowed", padded,
                DTI_ST_HEADER_BYTES);
    *bytes = DTI_ST_LENGTH_BYTES + padded;
    DT_TRY_TO(done, st, dti_alloc(*bytes, header));
    to = *header;
    for (int i = 0; i < DTI_ST_LENGTH_BYTES; i++) to[i] = (unsigned char)(padded >> (8 * i));
    memset(to + DTI_ST_LENGTH_BYTES, ' ', padded);
    memcpy(to + DTI_ST_LENGTH_BYTES, text, length);
done:
    free(text); /* jansson's */
    return st;
}

dt_status dti_st_plan(const dti_st_spec *specs, size_t n, const char *const *metadata,
                      dti_st_file_plan *out)
{
    const dti_st_spec **order = NULL;
    dt_status st = DT_OK;
    int64_t at, elements, bytes;
    size_t header_bytes;

    *out = (dti_st_file_plan){ 0 };
    DT_TRY_TO(done, st, sort_specs(specs, n, &order));
    DT_TRY_TO(done, st, make_header(order, n, metadata, &out->header, &header_bytes));
    DT_TRY_TO(done, st, dti_alloc_array(n + 1, sizeof *out->begin, (void **)&out->begin));
    at = out->header_bytes = (int64_t)header_bytes;
    for (size_t i = 0; i < n; i++) {
        out->begin[order[i] - specs] = at;
        (void)dti_st_size(dti_st_dtype_of(order[i]->dtype), order[i]->n_axes, order[i]->shape,
                          &elements, &bytes); /* was checked */
        DT_CHECK_TO(done, st, bytes <= INT64_MAX - at, DT_ERR_ARG,
                    "the tensors of a file have more bytes together than 63 bits count");
        at += bytes;
    }
    out->bytes = at;
done:
    dti_free(order);
    if (st != DT_OK) dti_st_plan_free(out);
    return st;
}

void dti_st_plan_free(dti_st_file_plan *plan)
{
    dti_free(plan->header);
    dti_free(plan->begin);
    *plan = (dti_st_file_plan){ 0 };
}

static dt_status write_data(dti_output *out, const dti_st_spec *specs, const dti_st_spec *spec,
                            dti_st_fill fill, void *arg)
{
    const int64_t size = (int64_t)dt_dtype_size(spec->dtype), room = FILL_BYTES / size;
    dt_status st = DT_OK;
    int64_t n = 1;
    void *buffer;

    for (int a = 0; a < spec->n_axes; a++) n *= spec->shape[a]; /* was checked */
    DT_TRY(dti_alloc(FILL_BYTES, &buffer));
    for (int64_t first = 0; first < n; first += room) {
        const int64_t count = n - first < room ? n - first : room;
        DT_TRY_TO(done, st, fill(arg, (size_t)(spec - specs), first, count, buffer));
        DT_TRY_TO(done, st, dti_output_write(out, buffer, (size_t)(count * size)));
    }
done:
    dti_free(buffer);
    return st;
}

dt_status dti_st_write(const char *path, const dti_st_spec *specs, size_t n,
                       const char *const *metadata, dti_st_fill fill, void *arg)
{
    const dti_st_spec **order = NULL;
    dti_st_file_plan plan = { 0 };
    dti_output out = { .fd = -1 };
    dt_status st = DT_OK;

    DT_CHECK(path != NULL && (specs != NULL || n == 0) && (fill != NULL || n == 0), DT_ERR_ARG,
             "path, specs or fill is NULL");
    DT_TRY(dti_st_plan(specs, n, metadata, &plan));
    DT_TRY_TO(done, st, sort_specs(specs, n, &order));
    DT_TRY_TO(done, st, dti_output_open(&out, path, NULL));
    DT_TRY_TO(done, st, dti_output_write(&out, plan.header, (size_t)plan.header_bytes));
    for (size_t i = 0; i < n; i++)
        DT_TRY_TO(done, st, write_data(&out, specs, order[i], fill, arg));
done:
    dti_free(order);
    dti_st_plan_free(&plan);
    return dti_output_close(&out, st);
}
