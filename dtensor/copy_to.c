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
    const dti_pairs pairs = { sent_to, received_from, &arg,
                              dti_agree_about(x, y->layout, comm, &note) };
    DT_TRY(
        dti_exchange_pairs(x->device, comm, &pairs, x->local.data, y->local.data, x->local.dtype));
    return DT_OK;
}

/* A copy that is planned: x, where its terms are reduced, and what it becomes. */
typedef struct copy {
    const dt_tensor *x;
    const dt_layout *reduced; /* x->layout if nothing is */
    const dt_mesh *mesh;
    const dt_layout *layout;
} copy;

/* What a rank holds during the exchange: x, its reduced terms, its new piece, packed messages. */
static int64_t held_elements(const copy *c, int rank)
{
    const bool packs = (c->reduced->packed_axes | c->layout->packed_axes) != 0;
    int64_t n = 0, terms = 0, after = 0;
    int coord[DT_MAX_DIMS];

    if (dt_mesh_find_rank(c->x->mesh, rank, coord)) {
        n = dti_piece_count(c->x->layout, coord, c->x->shape);
        terms = dti_piece_count(c->reduced, coord, c->x->shape);
    }
    if (dt_mesh_find_rank(c->mesh, rank, coord))
        after = dti_piece_count(c->layout, coord, c->x->shape);
    return n + (c->reduced != c->x->layout ? terms : 0) + after + (packs ? terms + after : 0);
}

/* Is the exchange within the bound of `mesh` on each of its ranks? */
static dt_status check_exchange(const copy *c, const dt_mesh *mesh)
{
    const int64_t bound = dti_mesh_costs_of(mesh)->memory_bytes;
    const int64_t each = (int64_t)dt_dtype_size(c->x->local.dtype);

    for (int p = 0; p < dt_mesh_n_ranks(mesh) && bound > 0; p++) {
        const int rank = dt_mesh_rank_at(mesh, p);
        const int64_t held = held_elements(c, rank) * each;
        DT_CHECK(held <= bound, DT_ERR_LAYOUT,
                 "a copy to another mesh takes %lld bytes on rank %d, but moves may take %lld "
                 "(dt_mesh_set_move_memory)",
                 (long long)held, rank, (long long)bound);
    }
    return DT_OK;
}

/* Plans to reduce x to `at` and checks that this and the exchange stay within both bounds. */
static dt_status plan_copy(copy *c, const dt_layout *at, double *ns)
{
    const dt_tensor *x = c->x;
    const dti_mesh_costs *costs = dti_mesh_costs_of(x->mesh);
    dti_cost_model model = { .shape = x->shape,
                             .element_bytes = dt_dtype_size(x->local.dtype),
                             .memory_bytes = costs->memory_bytes };
    dti_probes probes;
    dti_move plan;
    bool any;

    memcpy(model.link, costs->link, sizeof model.link);
    dti_probes_of(x->layout, &probes);
    c->reduced = at;
    DT_TRY(dti_plan(x->layout, at, &model, &plan, &any));
    DT_TRY(check_exchange(c, x->mesh));
    DT_TRY(check_exchange(c, c->mesh));
    *ns = dti_plan_ns(&plan, &model, &probes);
    return DT_OK;
}

/* The layout of x with every Partial dim whole, or cut along axis a. */
static dt_status reduced_along(const dt_tensor *x, int a, const dt_layout **out)
{
    const dt_placement cut = a < x->n_axes ? DT_SHARD_NTH(a, DT_MAX_DIMS - 1) : DT_REPLICATE;

    *out = x->layout;
    for (int m = 0; m < x->layout->n_dims; m++)
        if (x->layout->partial_dims >> m & 1u) DT_TRY(dti_layout_with(*out, m, &cut, out));
    return DT_OK;
}

/* Where to reduce a Partial tensor: along the axis, or (n_axes) nowhere, that costs least of those
 * that stay within the bounds on memory. Otherwise where it lies. */
static dt_status choose_reduced(copy *c)
{
    const dt_layout *best = NULL, *at;
    dt_error before = *dt_last_error();
    double least = 0, ns;

    if (c->x->layout->partial_dims == 0) return plan_copy(c, c->x->layout, &ns);
    for (int a = 0; a <= c->x->n_axes; a++) {
        DT_TRY(reduced_along(c->x, a, &at));
        const dt_status st = plan_copy(c, at, &ns);
        if (st != DT_OK && st != DT_ERR_LAYOUT) return st;
        if (st != DT_OK || (best != NULL && ns >= least)) continue;
        least = ns;
        best = at;
    }
    if (best == NULL) /* the last one tried says why */
        return dti_error_frame(DT_ERR_LAYOUT, __func__, __FILE__, __LINE__);
    dti_error_restore(&before);
    c->reduced = best;
    return DT_OK;
}

static dt_status copy_to(dt_tensor *x, dt_mesh *mesh, const dt_layout *layout, dt_tensor **y)
{
    copy c = { x, x->layout, mesh, layout };
    dt_status st = DT_OK;
    dt_tensor *terms = NULL;

    DT_TRY(choose_reduced(&c));
    DT_TRY(dti_redistribute(x, c.reduced, NULL, &terms));
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
