/* SPDX-License-Identifier: Apache-2.0
 *
 * Where state and gradients lie. */
#include <string.h>

#include "placements/shard_over.h"
#include "training/optimizer.h"

dt_status dti_optimizer_layout(const dt_tensor *x, uint32_t dims, const dt_layout **out)
{
    int64_t shape[DT_MAX_AXES];

    *out = dt_tensor_layout(x);
    for (int a = 0; a < dt_tensor_n_axes(x); a++) shape[a] = dt_tensor_extent(x, a);
    for (int m = 0; m < (*out)->n_dims; m++)
        if (dti_has(dims, m)) DT_TRY(dti_shard_over(*out, shape, m, out));
    return DT_OK;
}

static dt_status add_dim(const dt_mesh *mesh, const char *over, const char *word, size_t n,
                         uint32_t *dims)
{
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        const char *name = dt_mesh_dim_name(mesh, m);
        if (strlen(name) != n || memcmp(name, word, n) != 0) continue;
        *dims |= 1u << m;
        return DT_OK;
    }
    DT_FAIL(DT_ERR_ARG, "over \"%s\": the mesh has no dim \"%.*s\"", over, (int)n, word);
}

dt_status dti_optimizer_dims(const dt_mesh *mesh, const dt_optimizer_options *o, uint32_t *dims)
{
    static const char *const usual[] = { "dp", "dp_shard" };
    const char *at = o->over;

    *dims = 0;
    for (size_t i = 0; i < DT_COUNT(usual) && at == NULL; i++) {
        const int m = dt_mesh_find_dim(mesh, usual[i]);
        if (m >= 0) *dims |= 1u << m;
    }
    DT_CHECK(at == NULL || at[0] != '\0', DT_ERR_ARG, "over is empty: leave it NULL, or name dims");
    while (at != NULL) {
        const size_t n = strcspn(at, ",");
        DT_TRY(add_dim(mesh, o->over, at, n, dims));
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    if (o->zero == 0) *dims = 0;
    return DT_OK;
}
