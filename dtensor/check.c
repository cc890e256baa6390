/* SPDX-License-Identifier: Apache-2.0
 *
 * Do all ranks pass the same to dt_from_local(), or to dt_distribute()? */
#include <dtensor/inspect.h>

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/text.h"
#include "dtensor/host.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

/* What a rank tells the others, in words. */
typedef struct claim {
    int64_t status; /* of its own arguments */
    int64_t dtype;
    int64_t n_axes;
    int64_t layout; /* hash */
    int64_t root;   /* of what is distributed: who has it; else 0 */
    int64_t shape[DT_MAX_AXES];
    int64_t offset[DT_MAX_AXES]; /* of its piece */
    int64_t extent[DT_MAX_AXES];
    int64_t bytes; /* hash of its piece */
    char why[DTI_CLAIM_WHY_BYTES];
} claim;
enum { CLAIM_WORDS = sizeof(claim) / sizeof(int64_t) };

static claim claim_of(dt_tensor *x, dt_status st)
{
    claim c = { .status = st };
    dti_host host;

    if (st != DT_OK) return c;
    c.dtype = x->local.dtype;
    c.n_axes = x->n_axes;
    c.layout = (int64_t)x->layout->hash;
    for (int a = 0; a < x->n_axes; a++) {
        c.shape[a] = x->shape[a];
        c.offset[a] = x->local.offset[a];
        c.extent[a] = x->local.shape[a];
    }
    if (x->device->dry) return c;
    c.status = dti_host_open(x, DTI_HOST_READS, &host);
    if (c.status != DT_OK) return c;
    c.bytes = (int64_t)dti_hash_bytes(0, host.local.data, dti_tensor_bytes(x));
    c.status = dti_host_close(&host, DT_OK);
    return c;
}

/* Two ranks hold copies of one piece, or of one term of it. */
static bool hold_the_same(const dt_layout *l, const claim *all, int p, int q)
{
    for (int m = l->n_dims - 1, i = p, j = q; m >= 0; m--) {
        const int size = l->dim_size[m];
        if ((l->partial_dims >> m & 1u) && i % size != j % size) return false;
        i /= size;
        j /= size;
    }
    return memcmp(all[p].offset, all[q].offset, sizeof all[p].offset) == 0 &&
           memcmp(all[p].extent, all[q].extent, sizeof all[p].extent) == 0;
}

static const char *shape_of(const claim *c, char text[DTI_SHAPE_BYTES])
{
    return dti_shape_text(c->shape, (int)c->n_axes, text, DTI_SHAPE_BYTES);
}

static dt_status compare_claims(const dt_mesh *mesh, const dt_layout *layout, const claim *all,
                                int n)
{
    char one[DTI_SHAPE_BYTES], two[DTI_SHAPE_BYTES];

    for (int p = 0; p < n; p++)
        DT_CHECK(all[p].status == DT_OK, DT_ERR_ARG, "what rank %d passes is invalid: %s",
                 dt_mesh_rank_at(mesh, p), all[p].why);
    for (int p = 1; p < n; p++) {
        const int a = dt_mesh_rank_at(mesh, 0), b = dt_mesh_rank_at(mesh, p);
        DT_CHECK(all[p].dtype == all[0].dtype, DT_ERR_SHAPE, "rank %d passes %s, rank %d %s", a,
                 dt_dtype_name((dt_dtype)all[0].dtype), b, dt_dtype_name((dt_dtype)all[p].dtype));
        DT_CHECK(all[p].n_axes == all[0].n_axes &&
                     memcmp(all[p].shape, all[0].shape, sizeof all[p].shape) == 0,
                 DT_ERR_SHAPE, "rank %d passes the global shape %s, rank %d %s", a,
                 shape_of(&all[0], one), b, shape_of(&all[p], two));
        DT_CHECK(all[p].layout == all[0].layout, DT_ERR_LAYOUT,
                 "ranks %d and %d pass different placements", a, b);
        DT_CHECK(all[p].root == all[0].root, DT_ERR_ARG,
                 "rank %d says that the tensor is at place %lld, rank %d at place %lld", a,
                 (long long)all[0].root, b, (long long)all[p].root);
    }
    for (int p = 1; p < n; p++)
        for (int q = 0; q < p; q++)
            DT_CHECK(!hold_the_same(layout, all, p, q) || all[p].bytes == all[q].bytes, DT_ERR_ARG,
                     "ranks %d and %d hold copies of one piece, but their bytes differ",
                     dt_mesh_rank_at(mesh, q), dt_mesh_rank_at(mesh, p));
    return DT_OK;
}

/* layout may be NULL if this rank's own arguments are invalid. */
static dt_status compare_ranks(dt_mesh *mesh, const dt_layout *layout, const claim *mine)
{
    dt_status st = DT_OK;
    int64_t *counts = NULL;
    claim *all = NULL;
    dti_comm *comm;

    DT_TRY_TO(done, st, dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &comm));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)comm->size, sizeof *all, (void **)&all));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)comm->size, sizeof *counts, (void **)&counts));
    for (int r = 0; r < comm->size; r++) counts[r] = CLAIM_WORDS;
    DT_TRY_TO(done, st, dti_all_gather(comm, mine, all, counts, NULL, DT_I64));
    if (mine->status == DT_OK) DT_TRY_TO(done, st, compare_claims(mesh, layout, all, comm->size));
done:
    dti_free(counts);
    dti_free(all);
    return dti_runtime_alone(dt_mesh_runtime(mesh), st);
}

/* Tells the others, and hands back what is wrong: of this rank's own arguments with `error`, its
 * record of them, before anything that others find. */
static dt_status agree_on(dt_mesh *mesh, const dt_layout *layout, const claim *mine,
                          const dt_error *error)
{
    claim said = *mine;

    if (mine->status != DT_OK)
        (void)snprintf(said.why, sizeof said.why, "%.*s", (int)sizeof said.why - 1, error->message);
    if (dt_mesh_is_member(mesh)) DT_TRY(compare_ranks(mesh, layout, &said));
    if (mine->status == DT_OK) return DT_OK;
    dti_error_restore(error);
    return dti_error_frame((dt_status)mine->status, __func__, __FILE__, __LINE__);
}

dt_status dt_from_local_checked(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                int n_axes, const int64_t *shape, const void *data, dt_tensor **out)
{
    dt_status own, st;
    dt_tensor *x;
    dt_error error;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    own = dt_from_local(mesh, place, dtype, n_axes, shape, data, &x);
    const claim mine = claim_of(x, own);
    error = *dt_last_error();
    st = agree_on(mesh, own == DT_OK ? x->layout : NULL, &mine, &error);
    if (st != DT_OK) {
        dt_tensor_release(&x);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *out = x;
    return DT_OK;
}

/* What a rank passes to dt_distribute(): of equal copies each is a copy of the whole. */
static dt_status claim_whole(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                             const int64_t *shape, dt_source source, claim *out)
{
    const bool mine = source.root == DT_EQUAL_COPIES || dti_mesh_place(mesh) == source.root;
    int64_t n = (int64_t)dt_dtype_size(dtype);

    DT_TRY(dti_check_shape(NULL, dtype, layout->n_axes, shape));
    DT_TRY(dti_layout_check_shape(layout, shape));
    *out = (claim){ .dtype = dtype,
                    .n_axes = layout->n_axes,
                    .layout = (int64_t)layout->hash,
                    .root = source.root };
    for (int a = 0; a < layout->n_axes; a++) {
        out->shape[a] = out->extent[a] = shape[a];
        n *= shape[a];
    }
    if (!mine || n == 0 || dt_runtime_is_dry(dt_mesh_runtime(mesh))) return DT_OK;
    DT_CHECK(source.full != NULL || !dt_mesh_is_member(mesh), DT_ERR_ARG,
             "this rank has to pass the whole tensor, but full is NULL");
    if (source.root == DT_EQUAL_COPIES && source.full != NULL)
        out->bytes = (int64_t)dti_hash_bytes(0, source.full, (size_t)n);
    return DT_OK;
}

dt_status dt_distribute_checked(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                int n_axes, const int64_t *shape, dt_source source, dt_tensor **out)
{
    const dt_layout *layout = NULL;
    claim mine = { 0 };
    dt_error error;
    dt_status own;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    own = dti_check_create_whole(mesh, place, n_axes, shape, &layout, out);
    if (own == DT_OK) own = claim_whole(mesh, layout, dtype, shape, source, &mine);
    mine.status = own;
    error = *dt_last_error();
    DT_TRY(agree_on(mesh, layout, &mine, &error));
    DT_TRY(dt_distribute(mesh, place, dtype, n_axes, shape, source, out));
    return DT_OK;
}
