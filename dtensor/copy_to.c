/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors between meshes of different shape or membership. */
#include "dtensor/copy_to.h"

#include <string.h>

#include "dtensor/claims.h"
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

static void count(const crossing *c, dt_comm_counter *counters)
{
    int coord[DT_MAX_DIMS];
    dti_receiver receiver;

    if (counters == NULL) return;
    counters[DT_COMM_ALL_TO_ALL].calls++;
    if (receiver_of(c, c->comm->rank, &receiver, coord))
        counters[DT_COMM_ALL_TO_ALL].bytes +=
            dti_cross_bytes(c->x->layout, &receiver, c->y->layout, coord, c->x->shape,
                            dt_dtype_size(c->x->local.dtype));
}

static dt_status cross(const dt_tensor *x, dt_tensor *y, dti_comm *comm, dt_comm_counter *counters)
{
    const crossing arg = { x, y, comm };
    dti_comm_note note;
    const dti_pairs pairs = { sent_to, received_from, &arg,
                              dti_agree_about(x, y->layout, comm, &note) };

    DT_TRY(
        dti_exchange_pairs(x->device, comm, &pairs, x->local.data, y->local.data, x->local.dtype));
    count(&arg, counters);
    return DT_OK;
}

/* --- where terms are reduced ------------------------------------------------------------------ */

/* A copy that is planned: x, where its terms are reduced, and what it becomes. */
typedef struct copy {
    const dt_tensor *x;
    const dt_layout *reduced; /* x->layout if nothing is */
    const dt_mesh *mesh;
    const dt_layout *layout;
    dti_cost_model model; /* of x's mesh */
    int64_t memory_bytes; /* that moves on `mesh` may take; 0: any */
} copy;

/* Links and bounds of a mesh may be known to its members only, but all ranks of both have to choose
 * alike. So members say theirs, the largest number of each counts, which is the only one, and a
 * double that is not negative has bits in its order. */
static dt_status learn_costs(copy *c, dti_comm *comm)
{
    const dti_mesh_costs *own = dti_mesh_costs_of(c->x->mesh);
    const bool dry = c->x->device->dry; /* one rank that knows all meshes */
    int64_t words[DTI_COPY_WORDS];
    const int64_t n = DTI_COPY_WORDS;
    dti_comm_note note;
    dti_comm_call call = { .op = DTI_COMM_ALL_REDUCE,
                           .dtype = DT_I64,
                           .reduce = DT_MAX,
                           .send = words,
                           .recv = words,
                           .counts = &n,
                           .about = dti_agree_about(c->x, c->layout, comm, &note) };

    for (int i = 0; i < DTI_COPY_WORDS; i++) words[i] = -1;
    if (dry || dt_mesh_is_member(c->mesh)) words[0] = dti_mesh_costs_of(c->mesh)->memory_bytes;
    if (dry || dt_mesh_is_member(c->x->mesh)) {
        words[1] = own->memory_bytes;
        memcpy(words + 2, own->link, sizeof own->link);
    }
    DT_TRY(dti_comm_run(comm, &call));
    c->memory_bytes = words[0];
    c->model = (dti_cost_model){ .shape = c->x->shape,
                                 .element_bytes = dt_dtype_size(c->x->local.dtype),
                                 .memory_bytes = words[1] };
    memcpy(c->model.link, words + 2, sizeof c->model.link);
    return DT_OK;
}

_Static_assert(sizeof(dt_link[DT_MAX_DIMS]) == (DTI_COPY_WORDS - 2) * sizeof(int64_t),
               "links are told as words");

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
static dt_status check_exchange(const copy *c, const dt_mesh *mesh, int64_t bound)
{
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
    dti_probes probes;
    dti_move plan;
    bool any;

    dti_probes_of(x->layout, &probes);
    c->reduced = at;
    DT_TRY(dti_plan(x->layout, at, &c->model, &plan, &any));
    DT_TRY(check_exchange(c, x->mesh, c->model.memory_bytes));
    DT_TRY(check_exchange(c, c->mesh, c->memory_bytes));
    *ns = dti_plan_ns(&plan, &c->model, &probes);
    return DT_OK;
}

/* The layout of x with every Partial dim whole, or cut along axis a, and copies for terms. */
static dt_status reduced_along(const dt_tensor *x, int a, const dt_layout **out)
{
    const dt_placement cut = a < x->n_axes ? DT_SHARD_NTH(a, DT_MAX_DIMS - 1) : DT_REPLICATE;

    *out = x->layout;
    for (int m = 0; m < x->layout->n_dims; m++) {
        const dt_placement copies = dti_placement_reduced(&x->layout->place[m]);
        if (x->layout->place[m].terms)
            DT_TRY(dti_layout_with(*out, m, &copies, out));
        else if (x->layout->partial_dims >> m & 1u)
            DT_TRY(dti_layout_with(*out, m, &cut, out));
    }
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

/* Among the ranks of both meshes. */
static dt_status copy_among(dti_comm *comm, copy *c, dt_tensor *x, dt_comm_counter *counters,
                            dt_mesh *mesh, dt_tensor **y)
{
    dt_tensor *terms = NULL;
    dt_status st = DT_OK;

    DT_TRY(learn_costs(c, comm));
    DT_TRY(choose_reduced(c));
    DT_TRY(dti_redistribute(x, c->reduced, counters, &terms));
    DT_TRY_TO(done, st, dti_tensor_create(mesh, c->layout, x->local.dtype, x->shape, y));
    st = cross(terms, *y, comm, counters);
    if (st != DT_OK) dt_tensor_release(y);
done:
    dt_tensor_release(&terms);
    return st;
}

/* To another mesh. */
static dt_status copy_to(dt_tensor *x, dt_mesh *mesh, const dt_placement *want,
                         dt_comm_counter *counters, dt_tensor **y)
{
    copy c = { .x = x, .reduced = x->layout, .mesh = mesh };
    dti_comm *comm;

    DT_TRY(dt_layout_get(mesh, x->n_axes, want, NULL, &c.layout));
    DT_CHECK(c.layout->partial_dims == 0, DT_ERR_LAYOUT,
             "a copy is not made Partial: a whole value cannot become terms");
    DT_TRY(dti_layout_check_shape(c.layout, x->shape));
    DT_TRY(dti_mesh_union_comm(x->mesh, mesh, &comm));
    if (comm != NULL)
        DT_TRY(copy_among(comm, &c, x, counters, mesh, y));
    else
        DT_TRY(dti_tensor_create(mesh, c.layout, x->local.dtype, x->shape, y));
    return DT_OK;
}

dt_status dti_copy_to(dt_tensor *x, dt_mesh *mesh, const dt_placement *want,
                      dt_comm_counter *counters, dt_tensor **y)
{
    const dt_layout *layout;

    *y = NULL;
    DT_CHECK(dt_mesh_runtime(mesh) == dt_mesh_runtime(x->mesh), DT_ERR_ARG,
             "the tensor and the mesh belong to different runtimes");
    if (!dt_mesh_equal(x->mesh, mesh)) return copy_to(x, mesh, want, counters, y);
    DT_TRY(dti_tensor_layout(x, want, &layout));
    DT_TRY(dti_redistribute(x, layout, counters, y));
    return DT_OK;
}

dt_status dt_copy_to(dt_tensor *x, dt_mesh *mesh, const dt_placement *want, dt_tensor **y)
{
    DT_CHECK(y != NULL, DT_ERR_ARG, "y is NULL");
    *y = NULL;
    DT_CHECK(x != NULL && mesh != NULL && want != NULL, DT_ERR_ARG, "x, mesh or want is NULL");
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(mesh), dti_copy_to(x, mesh, want, NULL, y)));
    return DT_OK;
}
