/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a mesh: "dp=2,tp=4", read and written. */
#include <limits.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "base/writer.h"
#include "mesh/mesh_internal.h"

static bool is_name_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A letter, then letters, digits and _ */
static size_t name_length(const char *text)
{
    size_t n = 0;

    if (!is_name_start(text[0])) return 0;
    while (is_name_start(text[n]) || is_digit(text[n])) n++;
    return n;
}

dt_status dti_mesh_check_name(const char *name)
{
    const size_t n = name_length(name);
    char shown[DTI_SHOWN_BYTES];

    (void)dti_printable(name, shown, sizeof shown);
    DT_CHECK(n > 0 && name[n] == '\0', DT_ERR_ARG,
             "\"%s\" is no name of a dim: a letter, then letters, digits and _", shown);
    DT_CHECK(n < DT_DIM_NAME_BYTES, DT_ERR_ARG, "the dim name \"%s\" has more than %d characters",
             shown, DT_DIM_NAME_BYTES - 1);
    return DT_OK;
}

/* Digits to a number; false if it does not fit. *n is the number of digits. */
static bool parse_size(const char *text, int *out, size_t *n)
{
    int64_t value = 0;

    for (*n = 0; is_digit(text[*n]); (*n)++)
        if (value <= INT_MAX) value = value * 10 + (text[*n] - '0');
    *out = value <= INT_MAX ? (int)value : INT_MAX;
    return value <= INT_MAX;
}

/* What is left of a text, and the whole of it for messages, shortened if it is long. */
typedef struct reader {
    const char *at;
    char spec[DTI_SHOWN_BYTES];
    char rest[DTI_SHOWN_BYTES];
} reader;

static const char *rest_of(reader *r)
{
    return dti_printable(r->at, r->rest, sizeof r->rest);
}

/* One "name=size", which r moves behind. */
static dt_status parse_dim(reader *r, char name[DT_DIM_NAME_BYTES], int *size)
{
    const size_t n = name_length(r->at);
    size_t digits;
    bool fits;

    DT_CHECK(n > 0, DT_ERR_ARG,
             "mesh \"%s\": a dim name is missing at \"%s\"; write it as \"dp=2,tp=4\"", r->spec,
             rest_of(r));
    DT_CHECK(n < DT_DIM_NAME_BYTES, DT_ERR_ARG,
             "mesh \"%s\": the dim name at \"%s\" has %zu characters, at most %d are possible",
             r->spec, rest_of(r), n, DT_DIM_NAME_BYTES - 1);
    memcpy(name, r->at, n);
    name[n] = '\0';
    r->at += n;
    DT_CHECK(*r->at != ' ', DT_ERR_ARG,
             "mesh \"%s\": a space follows \"%s\"; write it without spaces, as \"dp=2,tp=4\"",
             r->spec, name);
    DT_CHECK(*r->at == '=', DT_ERR_ARG, "mesh \"%s\": dim \"%s\" has no size; write it as \"%s=2\"",
             r->spec, name, name);
    r->at++;
    fits = parse_size(r->at, size, &digits);
    DT_CHECK(digits > 0, DT_ERR_ARG,
             "mesh \"%s\": the size of dim \"%s\" is not a number at \"%s\"", r->spec, name,
             rest_of(r));
    DT_CHECK(!is_name_start(r->at[digits]) && r->at[digits] != '.', DT_ERR_ARG,
             "mesh \"%s\": the size of dim \"%s\" is not a decimal number at \"%s\"", r->spec, name,
             rest_of(r));
    DT_CHECK(fits, DT_ERR_ARG, "mesh \"%s\": dim \"%s\" has size %.*s%s, at most %d is possible",
             r->spec, name, digits < 24 ? (int)digits : 24, r->at, digits < 24 ? "" : "...",
             INT_MAX);
    DT_CHECK(*size >= 1, DT_ERR_ARG, "mesh \"%s\": dim \"%s\" has size 0; sizes begin at 1",
             r->spec, name);
    r->at += digits;
    return DT_OK;
}

dt_status dt_mesh_parse(const char *spec, int *n_dims, char names[][DT_DIM_NAME_BYTES], int *sizes,
                        int *n_ranks)
{
    reader r = { .at = spec };
    int n = 0, product = 1;

    DT_CHECK(spec != NULL && n_dims != NULL && names != NULL && sizes != NULL && n_ranks != NULL,
             DT_ERR_ARG, "dt_mesh_parse: an argument is NULL");
    (void)dti_printable(spec, r.spec, sizeof r.spec);
    for (;; n++) {
        DT_CHECK(n < DT_MAX_DIMS, DT_ERR_ARG, "mesh \"%s\" has more than %d dims", r.spec,
                 DT_MAX_DIMS);
        DT_TRY(parse_dim(&r, names[n], &sizes[n]));
        for (int i = 0; i < n; i++)
            DT_CHECK(strcmp(names[i], names[n]) != 0, DT_ERR_ARG,
                     "mesh \"%s\" names dim \"%s\" twice", r.spec, names[n]);
        DT_CHECK(product <= INT_MAX / sizes[n], DT_ERR_ARG,
                 "mesh \"%s\" has %lld ranks with dim \"%s\", at most %d are possible", r.spec,
                 (long long)product * sizes[n], names[n], INT_MAX);
        product *= sizes[n];
        if (*r.at == '\0') break;
        DT_CHECK(*r.at == ',', DT_ERR_ARG,
                 "mesh \"%s\": \"%s\" follows dim \"%s\"; dims are separated by a comma", r.spec,
                 rest_of(&r), names[n]);
        r.at++;
    }
    *n_dims = n + 1;
    *n_ranks = product;
    return DT_OK;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* How many dims begin anew at row-major place i. */
static int dims_at(const dt_mesh *mesh, int i)
{
    int n = 0;

    for (int d = mesh->n_dims - 1, block = 1; d >= 0; d--) {
        block *= mesh->size[d];
        if (i % block != 0) break;
        n++;
    }
    return n;
}

int dt_mesh_print(const dt_mesh *mesh, char *text, size_t text_bytes)
{
    dti_writer w = { text, text != NULL ? text_bytes : 0, 0 };

    if (mesh == NULL) dti_put(&w, "(no mesh)");
    if (mesh == NULL) return dti_written(&w);
    for (int d = 0; d < mesh->n_dims; d++)
        dti_put(&w, "%s%s=%d", d > 0 ? "," : "", mesh->grid.names[d], mesh->size[d]);
    dti_put(&w, " ");
    for (int i = 0; i < mesh->n_ranks; i++) {
        const int begun = dims_at(mesh, i), ended = dims_at(mesh, i + 1);
        dti_put(&w, "%s", i == 0 ? "" : begun > 0 ? "," : " ");
        for (int k = 0; k < begun; k++) dti_put(&w, "[");
        dti_put(&w, "%d", dt_mesh_rank_at(mesh, i));
        for (int k = 0; k < ended; k++) dti_put(&w, "]");
    }
    return dti_written(&w);
}
