/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts of a mesh: the intern table of a rank's runtime. Kept apart from layout.c, which needs
 * neither runtime nor mesh and so can plan for any grid. */

#include "base/writer.h"
#include "mesh/runtime.h"
#include "placements/layout.h"

static dt_status create(dt_runtime *rt, void **out)
{
    dti_layouts *table;

    (void)rt;
    *out = NULL;
    DT_TRY(dti_layouts_create(&table));
    *out = table;
    return DT_OK;
}

static void destroy(void *table)
{
    dti_layouts_destroy(table);
}

static const dti_slot table_slot = { create, destroy, false };

dt_status dti_layouts_of(dt_runtime *rt, dti_layouts **out)
{
    void *table;

    *out = NULL;
    DT_TRY(dti_runtime_slot(rt, &table_slot, &table));
    *out = table;
    return DT_OK;
}

/* Errors of the pure part know dims by number; the mesh adds their names: "dp=2,tp=4". */
static void name_mesh(const dt_mesh *mesh)
{
    char text[DT_MAX_DIMS * (DT_DIM_NAME_BYTES + 12)] = "";
    dti_writer w = { text, sizeof text, 0 };

    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        dti_put(&w, "%s%s=%d", m > 0 ? "," : "", dt_mesh_dim_name(mesh, m),
                dt_mesh_dim_size(mesh, m));
    dti_error_prefix("on mesh \"%s\"", text);
}

dt_status dt_layout_get(dt_mesh *mesh, int n_axes, const dt_placement *place, const int *order,
                        const dt_layout **out)
{
    int dim_size[DT_MAX_DIMS];
    dti_layouts *table;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_CHECK(place != NULL, DT_ERR_ARG, "place is NULL: one placement per mesh dim is needed");
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) dim_size[m] = dt_mesh_dim_size(mesh, m);
    DT_TRY(dti_layouts_of(dt_mesh_runtime(mesh), &table));
    st = dti_layout_intern(table, dt_mesh_n_dims(mesh), dim_size, n_axes, place, order, out);
    if (st == DT_OK) return DT_OK;
    name_mesh(mesh);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}
