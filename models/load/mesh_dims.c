/* SPDX-License-Identifier: Apache-2.0 */
#include "models/load/mesh_dims.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/numbers.h"
#include "base/writer.h"
#include "models/describe/describe.h"
#include "parallel_styles/changes.h"

dti_dims dti_dims_of(const dt_mesh *mesh)
{
    dti_dims d = { .n = dt_mesh_n_dims(mesh) };

    for (int m = 0; m < d.n; m++) {
        d.size[m] = dt_mesh_dim_size(mesh, m);
        (void)snprintf(d.name[m], sizeof d.name[m], "%s", dt_mesh_dim_name(mesh, m));
    }
    return d;
}

/* The next name of a list "dp,dp_shard" in `name`; false behind the last. */
static bool next_name(const char **list, char name[DT_DIM_NAME_BYTES])
{
    const char *at = *list;
    size_t n;

    if (at == NULL || *at == '\0') return false;
    n = strcspn(at, ",");
    *list = at + n + (at[n] == ',');
    (void)snprintf(name, DT_DIM_NAME_BYTES, "%.*s", (int)n, at);
    return true;
}

static bool is_listed(const char *list, const char *name)
{
    char one[DT_DIM_NAME_BYTES];

    while (next_name(&list, one))
        if (strcmp(one, name) == 0) return true;
    return false;
}

static bool speaks_of(const dt_plan *p, const dt_load_options *o, const char *name)
{
    return strcmp(p->dim != NULL ? p->dim : o->dim, name) == 0;
}

static bool has_styles(const dt_load_options *o, const char *name)
{
    for (const dt_plan *p = o->plan; p != NULL; p = p->more)
        if ((p->n_rules > 0 || p->others != NULL) && speaks_of(p, o, name)) return true;
    return strcmp(name, o->dim) == 0 || is_listed(o->fully_shard, name) ||
           (o->stage_dim != NULL && strcmp(name, o->stage_dim) == 0);
}

/* Do styles say more of that dim than how parameters are stored? */
static bool lays_values(const dt_load_options *o, const char *name)
{
    bool stored = is_listed(o->fully_shard, name);

    for (const dt_plan *p = o->plan; p != NULL; p = p->more) {
        if (!speaks_of(p, o, name)) continue;
        for (int i = 0; i < p->n_rules; i++)
            if (!dti_style_stores(p->rules[i].style)) return true;
        if (p->others != NULL && !dti_style_stores(p->others)) return true;
        stored = stored || p->others != NULL;
    }
    return strcmp(name, o->dim) == 0 && !stored;
}

static bool cuts_batches(const dt_load_options *o, const char *name)
{
    return is_listed(o->batch_dim, name);
}

static uint32_t dims_for_batches(const dti_dims *dims, const dt_load_options *o, bool kept)
{
    uint32_t found = 0;

    for (int m = 0; m < dims->n; m++)
        if (dims->size[m] > 1 && cuts_batches(o, dims->name[m]) &&
            lays_values(o, dims->name[m]) == kept)
            found |= 1u << m;
    return found;
}

uint32_t dti_dims_batch(const dti_dims *dims, const dt_load_options *o)
{
    return dims_for_batches(dims, o, false);
}

uint32_t dti_dims_kept(const dti_dims *dims, const dt_load_options *o)
{
    return dims_for_batches(dims, o, true);
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
        const char *name = dims->name[m], *meant = NULL, *rest = o->batch_dim;
        char write[DT_DIM_NAME_BYTES + 32] = "rename it", one[DT_DIM_NAME_BYTES];
        char batches[DT_MAX_DIMS * (DT_DIM_NAME_BYTES + 4)] = "";
        dti_writer w = { batches, sizeof batches, 0 };

        if (dims->size[m] <= 1 || has_styles(o, name) || cuts_batches(o, name)) continue;
        while (next_name(&rest, one)) {
            dti_put(&w, "%s\"%s\"", w.used > 0 ? ", " : "", one);
            if (meant == NULL && is_nearly(name, one)) meant = one;
            if (meant == one) break; /* which holds its name */
        }
        while (next_name(&rest, write)) dti_put(&w, ", \"%s\"", write);
        if (is_nearly(name, o->dim)) meant = o->dim;
        (void)snprintf(write, sizeof write, "rename it");
        if (meant != NULL)
            (void)snprintf(write, sizeof write, "write \"%s=%d\"", meant, dims->size[m]);
        DT_FAIL(DT_ERR_ARG,
                "nothing uses mesh dim \"%s\": its %d ranks would hold and compute the same. "
                "Layers are cut over the dim \"%s\"%s%s, and a plan may name others: %s, or take "
                "a slice of the mesh without it",
                name, dims->size[m], o->dim, w.used > 0 ? ", batches over " : "", batches, write);
    }
    return DT_OK;
}

dt_status dt_load_check_mesh(const char *mesh, const dt_load_options *options, int64_t *batch_ranks)
{
    dt_load_options own;
    dti_dims dims;
    uint32_t batch;
    int n_ranks;

    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_TRY(dti_load_options_read(options, &own));
    DT_TRY(dt_mesh_parse(mesh, &dims.n, dims.name, dims.size, &n_ranks));
    DT_TRY(dti_dims_check(&dims, &own));
    batch = dti_dims_batch(&dims, &own);
    if (batch_ranks == NULL) return DT_OK;
    *batch_ranks = 1;
    for (int m = 0; m < dims.n; m++)
        if (dti_has(batch, m)) *batch_ranks *= dims.size[m];
    return DT_OK;
}
