/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors between meshes of different shape or membership. */
#include <string.h>

#include "dtensor/agree.h"
#include "dtensor/exchange.h"
#include "dtensor/move_cache.h"
#include "mesh/runtime.h"
#include "placements/cross.h"

/* One copy: a tensor that is not Partial, and what it becomes. */
typedef struct crossing {
    const dt_tensor *x;
    const dt_tensor *y;
    const dti_comm *comm; /* the ranks of both meshes */
} crossing;

/* What the member of the communicator receives on y's mesh: where it stands there, and as what
 * x's ranks see it. False for a rank that receives nothing. */
static bool receiver_of(const crossing *c, int member, dti_receiver *receiver, int *coord)
{
    const int rank = c->comm->world_ranks[member];
    int place = 0;

    if (!dt_mesh_find_rank(c->y->mesh, rank, coord)) return false;
    for (int m = 0; m < c->y->layout->n_dims; m++)
        place = place * c->y->layout->dim_size[m] + coord[m];
    receiver->number = place;
    receiver->member = dt_mesh_find_rank(c->x->mesh, rank, receiver->coord);
    return true;
}

/* What the `sender`-th member sends the `to`-th. */
static bool between(const crossing *c, int sender, int to, dti_overlap *out)
{
    int from_coord[DT_MAX_DIMS], to_coord[DT_MAX_DIMS];
    dti_receiver receiver;

    return dt_mesh_find_rank(c->x->mesh, c->comm->world_ranks[sender], from_coord) &&
           receiver_of(c, to, &receiver, to_coord) &&
           dti_cross_serves(c->x->layout, from_coord, &receiver) &&
           dti_overlap_of(c->x->layout, from_coord, c->y->layout, to_coord, c->x->shape, out);
}

static bool sent_to(const void *arg, int r, dti_overlap *out)
{
    const crossing *c = arg;

    return between(c, c->comm->rank, r, out);
}

static bool received_from(const void *arg, int r, dti_overlap *out)
{
    const crossing *c = arg;

    return between(c, r, c->comm->rank, out);
}

static dt_status cross(const dt_tensor *x, dt_tensor *y)
{
    dti_comm_note note;
    dti_comm *comm;

    DT_TRY(dti_mesh_union_comm(x->mesh, y->mesh, &comm));
    if (comm == NULL) return DT_OK; /* of neither mesh */
    const crossing arg = { x, y, comm };
    const dti_pairs pairs = { sent_to, received_from, &arg };
    dti_agree_about(x, y->layout, comm, &note);
    DT_TRY(
        dti_exchange_pairs(x->device, comm, &pairs, x->local.data, y->local.data, x->local.dtype));
    return DT_OK;
}

/* Where to reduce a Partial tensor: along the axis, or (n_axes) nowhere, that costs least. */
static dt_status reduced_layout(const dt_tensor *x, const dt_layout **out)
{
    const dti_mesh_costs *costs = dti_mesh_costs_of(x->mesh);
    dti_cost_model model = { .shape = x->shape, .element_bytes = dt_dtype_size(x->local.dtype) };
    dti_probes probes;
    double least = 0;

    memcpy(model.link, costs->link, sizeof model.link);
    dti_probes_of(x->layout, &probes);
    *out = NULL;
    for (int a = 0; a <= x->n_axes; a++) {
        const dt_layout *at = x->layout;
        dti_move plan;
        bool any;
        for (int m = 0; m < at->n_dims; m++) {
            const dt_placement cut =
                a < x->n_axes ? DT_SHARD_NTH(a, DT_MAX_DIMS - 1) : DT_REPLICATE;
            if (x->layout->partial_dims >> m & 1u) DT_TRY(dti_layout_with(at, m, &cut, &at));
        }
        DT_TRY(dti_plan(x->layout, at, &model, &plan, &any));
        const double ns = dti_plan_ns(&plan, &model, &probes);
        if (*out != NULL && ns >= least) continue;
        least = ns;
        *out = at;
    }
    return DT_OK;
}

static dt_status copy_to(dt_tensor *x, dt_mesh *mesh, const dt_layout *layout, dt_tensor **y)
{
    const dt_layout *reduced = x->layout;
    dt_status st = DT_OK;
    dt_tensor *terms = NULL;

    if (x->layout->partial_dims != 0) DT_TRY(reduced_layout(x, &reduced));
    DT_TRY(dti_redistribute(x, reduced, NULL, &terms));
    DT_TRY_TO(done, st, dti_tensor_create(mesh, layout, x->local.dtype, x->shape, y));
    st = cross(terms, *y);
    if (st != DT_OK) dt_tensor_release(y);
done:
    dt_tensor_release(&terms);
    return st;
}

dt_status dt_copy_to(dt_tensor *x, dt_mesh *mesh, const dt_placement *want, dt_tensor **y)
{
    const dt_layout *layout;

    DT_CHECK(y != NULL, DT_ERR_ARG, "y is NULL");
    *y = NULL;
    DT_CHECK(x != NULL && mesh != NULL && want != NULL, DT_ERR_ARG, "x, mesh or want is NULL");
    DT_CHECK(dt_mesh_runtime(mesh) == dt_mesh_runtime(x->mesh), DT_ERR_ARG,
             "the tensor and the mesh belong to different runtimes");
    if (dt_mesh_equal(x->mesh, mesh)) return dt_redistribute(x, want, y);
    DT_TRY(dt_layout_get(mesh, x->n_axes, want, NULL, &layout));
    DT_CHECK(layout->partial_dims == 0, DT_ERR_LAYOUT,
             "a copy is not made Partial: a whole value cannot become terms");
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(mesh), copy_to(x, mesh, layout, y)));
    return DT_OK;
}
