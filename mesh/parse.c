/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a mesh: "dp=2,tp=4", read and written. */
#include <limits.h>
#include <string.h>

#include "base/error.h"
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

    DT_CHECK(n > 0 && name[n] == '\0', DT_ERR_ARG,
             "\"%s\" is no name of a dim: a letter, then letters, digits and _", name);
    DT_CHECK(n < DT_DIM_NAME_BYTES, DT_ERR_ARG, "the dim name \"%s\" has more than %d characters",
             name, DT_DIM_NAME_BYTES - 1);
    return DT_OK;
}

/* Digits to a number, INT_MAX for any that is larger. Returns the number of digits. */
static size_t parse_size(const char *text, int *out)
{
    size_t n = 0;
    int value = 0;

    for (; is_digit(text[n]); n++) {
        const int digit = text[n] - '0';
        value = value > (INT_MAX - digit) / 10 ? INT_MAX : value * 10 + digit;
    }
    *out = value;
    return n;
}

/* One "name=size" at *p, which moves behind it. */
static dt_status parse_dim(const char *spec, const char **p, char name[DT_DIM_NAME_BYTES],
                           int *size)
{
    const size_t n = name_length(*p);
    size_t digits;

    DT_CHECK(n > 0, DT_ERR_ARG,
             "mesh \"%s\": a dim name is missing at \"%s\"; write it as \"dp=2,tp=4\"", spec, *p);
    DT_CHECK(n < DT_DIM_NAME_BYTES, DT_ERR_ARG,
             "mesh \"%s\": the dim name \"%.*s\" has more than %d characters", spec, (int)n, *p,
             DT_DIM_NAME_BYTES - 1);
    memcpy(name, *p, n);
    name[n] = '\0';
    *p += n;
    DT_CHECK(**p == '=', DT_ERR_ARG, "mesh \"%s\": dim \"%s\" has no size; write it as \"%s=2\"",
             spec, name, name);
    (*p)++;
    digits = parse_size(*p, size);
    DT_CHECK(digits > 0, DT_ERR_ARG,
             "mesh \"%s\": the size of dim \"%s\" is not a number at \"%s\"", spec, name, *p);
    DT_CHECK(*size >= 1, DT_ERR_ARG, "mesh \"%s\": dim \"%s\" has size 0; sizes begin at 1", spec,
             name);
    *p += digits;
    return DT_OK;
}

dt_status dt_mesh_parse(const char *spec, int *n_dims, char names[][DT_DIM_NAME_BYTES], int *sizes,
                        int *n_ranks)
{
    const char *p = spec;
    int n = 0, product = 1;

    DT_CHECK(spec != NULL && n_dims != NULL && names != NULL && sizes != NULL && n_ranks != NULL,
             DT_ERR_ARG, "dt_mesh_parse: an argument is NULL");
    for (;; n++) {
        DT_CHECK(n < DT_MAX_DIMS, DT_ERR_ARG, "mesh \"%s\" has more than %d dims", spec,
                 DT_MAX_DIMS);
        DT_TRY(parse_dim(spec, &p, names[n], &sizes[n]));
        for (int i = 0; i < n; i++)
            DT_CHECK(strcmp(names[i], names[n]) != 0, DT_ERR_ARG,
                     "mesh \"%s\" names dim \"%s\" twice", spec, names[n]);
        DT_CHECK(product <= INT_MAX / sizes[n], DT_ERR_ARG, "mesh \"%s\" has too many ranks", spec);
        product *= sizes[n];
        if (*p == '\0') break;
        DT_CHECK(*p == ',', DT_ERR_ARG,
                 "mesh \"%s\": \"%s\" follows dim \"%s\"; dims are separated by a comma", spec, p,
                 names[n]);
        p++;
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
    dti_writer w = { text, text_bytes, 0 };

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
