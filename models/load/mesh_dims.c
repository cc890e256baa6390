/* SPDX-License-Identifier: Apache-2.0 */
#include "models/load/mesh_dims.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "models/describe/describe.h"

dti_dims dti_dims_of(const dt_mesh *mesh)
{
    dti_dims d = { .n = dt_mesh_n_dims(mesh) };

    for (int m = 0; m < d.n; m++) {
        d.size[m] = dt_mesh_dim_size(mesh, m);
        (void)snprintf(d.name[m], sizeof d.name[m], "%s", dt_mesh_dim_name(mesh, m));
    }
    return d;
}

static bool has_styles(const dt_load_options *o, const char *name)
{
    for (const dt_plan *p = o->plan; p != NULL; p = p->more)
        if (p->dim != NULL && p->n_rules > 0 && strcmp(p->dim, name) == 0) return true;
    return strcmp(name, o->dim) == 0;
}

static bool cuts_batches(const dt_load_options *o, const char *name)
{
    return o->batch_dim != NULL && strcmp(name, o->batch_dim) == 0;
}

int dti_dims_batch(const dti_dims *dims, const dt_load_options *o)
{
    for (int m = 0; m < dims->n; m++)
        if (dims->size[m] > 1 && cuts_batches(o, dims->name[m]) && !has_styles(o, dims->name[m]))
            return m;
    return -1;
}

/* "TP", "tp0", "pt", "tensor_parallel" for "tp". */
static bool is_nearly(const char *name, const char *dim)
{
    static const char *const others[][3] = { { "tp", "tensor", "model" },
                                             { "dp", "data", "batch" } };
    const size_t n = strlen(dim);

    if (strncasecmp(name, dim, n) == 0) return true;
    if (n == 2 && strlen(name) == 2 && name[0] == dim[1] && name[1] == dim[0]) return true;
    for (size_t i = 0; i < DT_COUNT(others); i++)
        for (size_t k = 1; k < DT_COUNT(others[i]) && strcmp(dim, others[i][0]) == 0; k++)
            if (strncasecmp(name, others[i][k], strlen(others[i][k])) == 0) return true;
    return false;
}

dt_status dti_dims_check(const dti_dims *dims, const dt_load_options *o)
{
    for (int m = 0; m < dims->n; m++) {
        const char *name = dims->name[m], *meant = NULL;
        char write[DT_DIM_NAME_BYTES + 32] = "rename it";

        if (dims->size[m] <= 1 || has_styles(o, name) || cuts_batches(o, name)) continue;
        if (o->batch_dim != NULL && is_nearly(name, o->batch_dim)) meant = o->batch_dim;
        if (is_nearly(name, o->dim)) meant = o->dim;
        if (meant != NULL)
            (void)snprintf(write, sizeof write, "write \"%s=%d\"", meant, dims->size[m]);
        DT_FAIL(DT_ERR_ARG,
                "nothing uses mesh dim \"%s\": its %d ranks would hold and compute the same. "
                "Layers are cut over the dim \"%s\"%s%s%s, and a plan may name others: %s, or take "
                "a slice of the mesh without it",
                name, dims->size[m], o->dim, o->batch_dim != NULL ? ", batches over \"" : "",
                o->batch_dim != NULL ? o->batch_dim : "", o->batch_dim != NULL ? "\"" : "", write);
    }
    return DT_OK;
}

dt_status dt_load_check_mesh(const char *mesh, const dt_load_options *options, int64_t *batch_ranks)
{
    dt_load_options own;
    dti_dims dims;
    int n_ranks, dim;

    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_TRY(dti_load_options_read(options, &own));
    DT_TRY(dt_mesh_parse(mesh, &dims.n, dims.name, dims.size, &n_ranks));
    DT_TRY(dti_dims_check(&dims, &own));
    dim = dti_dims_batch(&dims, &own);
    if (batch_ranks != NULL) *batch_ranks = dim >= 0 ? dims.size[dim] : 1;
    return DT_OK;
}
