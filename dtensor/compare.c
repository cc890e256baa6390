/* SPDX-License-Identifier: Apache-2.0
 *
 * Comparing tensors, and reading one element. */
#include <dtensor/inspect.h>

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/numbers.h"
#include "base/writer.h"
#include "dtensor/host.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

static const void *at(const dt_local *x, int64_t i)
{
    return (const char *)x->data + (size_t)i * dt_dtype_size(x->dtype);
}

static double element(const dt_local *x, int64_t i)
{
    const void *p = at(x, i);

    switch (x->dtype) {
    case DT_F64:
        return *(const double *)p;
    case DT_I32:
        return *(const int32_t *)p;
    case DT_I64:
        return (double)*(const int64_t *)p;
    case DT_U8:
        return *(const uint8_t *)p;
    default:
        return (double)dti_load_f32(x->data, x->dtype, i);
    }
}

/* How far elements may be apart; `exact` compares without. */
typedef struct tolerance {
    bool exact;
    double relative;
    double absolute;
} tolerance;

/* The first n elements. */
static bool same_elements(const dt_local *a, const dt_local *b, int64_t n, const tolerance *t)
{
    if (t->exact && !dt_dtype_is_float(a->dtype))
        return n == 0 || memcmp(a->data, b->data, (size_t)n * dt_dtype_size(a->dtype)) == 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = element(a, i), y = element(b, i);
        if (x == y) continue; /* equal infinities too */
        if (t->exact || !(fabs(x - y) <= t->absolute + t->relative * fabs(y)) || isinf(x) ||
            isinf(y))
            return false;
    }
    return true;
}

/* *y: x as it lies in `like`, with the terms of Partial dims of `like` reduced. */
static dt_status line_up(dt_tensor *x, const dt_layout *like, dt_tensor **y)
{
    dt_placement want[DT_MAX_DIMS];
    const dt_layout *layout = like;

    *y = NULL;
    if (like->partial_dims != 0) {
        memcpy(want, like->place, sizeof want);
        for (int m = 0; m < like->n_dims; m++) want[m] = dti_placement_reduced(&want[m]);
        DT_TRY(dti_tensor_layout(x, want, &layout));
    }
    DT_TRY(dti_redistribute(x, layout, NULL, y));
    return DT_OK;
}

/* True on all ranks if it is on all. */
static dt_status agree(dt_mesh *mesh, bool *answer)
{
    int32_t least = *answer;
    dti_comm *comm;

    DT_TRY(dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &comm));
    DT_TRY(dti_all_reduce(comm, &least, &least, 1, DT_I32, DT_MIN));
    *answer = least != 0;
    return DT_OK;
}

/* Of this rank's pieces, which lie alike. */
static dt_status compare_pieces(dt_tensor *x, dt_tensor *y, const tolerance *t, bool *same)
{
    dti_host one, two;
    dt_status st;

    DT_TRY(dti_host_open(x, DTI_HOST_READS, &one));
    st = dti_host_open(y, DTI_HOST_READS, &two);
    if (st == DT_OK) {
        *same = same_elements(&one.local, &two.local, dti_tensor_count(x), t);
        st = dti_host_close(&two, st);
    }
    return dti_host_close(&one, st);
}

static dt_status compare(dt_tensor *a, dt_tensor *b, const tolerance *t, bool *out)
{
    dt_status st = DT_OK;
    dt_tensor *x = NULL, *y = NULL;
    bool same = false;

    DT_TRY_TO(done, st, line_up(a, a->layout, &x));
    DT_TRY_TO(done, st, line_up(b, a->layout, &y));
    DT_TRY_TO(done, st, compare_pieces(x, y, t, &same));
    if (dt_mesh_is_member(a->mesh)) DT_TRY_TO(done, st, agree(a->mesh, &same));
    *out = same;
done:
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    return st;
}

static dt_status check_and_compare(dt_tensor *a, dt_tensor *b, const tolerance *t, bool *out)
{
    DT_CHECK(out != NULL, DT_ERR_ARG, "the place for the answer is NULL");
    *out = false;
    DT_CHECK(a != NULL && b != NULL, DT_ERR_ARG, "a or b is NULL");
    DT_CHECK(a->device == b->device && dt_mesh_equal(a->mesh, b->mesh), DT_ERR_LAYOUT,
             "a and b lie on different meshes%s and cannot be compared",
             a->device->dry != b->device->dry ? ", one of them dry," : "");
    DT_CHECK(!a->device->dry, DT_ERR_UNSUPPORTED, "dry tensors have no elements to compare");
    if (a->local.dtype != b->local.dtype || a->n_axes != b->n_axes ||
        memcmp(a->shape, b->shape, (size_t)a->n_axes * sizeof a->shape[0]) != 0)
        return DT_OK; /* every rank knows this by itself */
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(a->mesh), compare(a, b, t, out)));
    return DT_OK;
}

dt_status dt_equal(dt_tensor *a, dt_tensor *b, bool *equal)
{
    const tolerance t = { .exact = true };

    DT_TRY(check_and_compare(a, b, &t, equal));
    return DT_OK;
}

dt_status dt_allclose(dt_tensor *a, dt_tensor *b, double relative, double absolute, bool *close)
{
    const tolerance t = { false, relative, absolute };

    DT_CHECK(relative >= 0.0 && absolute >= 0.0, DT_ERR_ARG,
             "tolerances of %g relative and %g absolute: both must be 0 or more", relative,
             absolute);
    DT_TRY(check_and_compare(a, b, &t, close));
    return DT_OK;
}

/* --- one element ------------------------------------------------------------------------------ */

/* Where `index` lies in this rank's piece; -1 if it does not. */
static int64_t local_index(const dt_tensor *x, const int64_t *index, const int *me)
{
    int64_t i = 0;

    for (int a = 0; a < x->n_axes; a++) {
        int64_t row = -1, before = 0;
        dti_runs runs;
        dti_layout_axis_runs(x->layout, a, x->shape[a], me, &runs);
        for (int k = 0; k < runs.n && row < 0; k++) {
            const dt_rows *r = &runs.run[k];
            if (index[a] >= r->begin && index[a] < r->end) row = before + index[a] - r->begin;
            before += r->end - r->begin;
        }
        if (row < 0) return -1;
        i = i * runs.total + row;
    }
    return i;
}

static dt_status check_item(const dt_tensor *x, const int64_t *index)
{
    char text[48];

    DT_CHECK(x != NULL && (index != NULL || x->n_axes == 0), DT_ERR_ARG, "x or index is NULL");
    DT_CHECK(!x->device->dry, DT_ERR_UNSUPPORTED, "a dry tensor has no elements");
    for (int m = 0; m < x->layout->n_dims; m++) {
        if ((x->layout->partial_dims >> m & 1u) == 0) continue;
        (void)dt_placement_print(&x->layout->place[m], text, sizeof text);
        DT_FAIL(DT_ERR_LAYOUT,
                "x is %s on mesh dim \"%s\": no rank has the element before it is reduced; "
                "redistribute it first",
                text, dt_mesh_dim_name(x->mesh, m));
    }
    for (int a = 0; a < x->n_axes; a++)
        DT_CHECK(index[a] >= 0 && index[a] < x->shape[a], DT_ERR_ARG,
                 "index %lld of axis %d, which has %lld elements", (long long)index[a], a,
                 (long long)x->shape[a]);
    return DT_OK;
}

/* The first owner's number in the group over the cut dims, which decide alone who it is. */
static dt_status owner_of(const dt_tensor *x, const int64_t *index, int *member)
{
    int coord[DT_MAX_DIMS], n_owners;

    DT_TRY(dt_layout_owner(x->layout, x->shape, index, coord, &n_owners));
    *member = 0;
    for (int m = 0; m < x->layout->n_dims; m++)
        if (x->layout->shard_dims >> m & 1u) *member = *member * x->layout->dim_size[m] + coord[m];
    return DT_OK;
}

/* From the owner to all, who have to have asked for the same element. */
static dt_status hand_round(const dt_tensor *x, const int64_t *index, double *value)
{
    const int64_t one = 1;
    dti_comm_note note;
    dti_comm *comm;
    dti_writer w;
    int owner;

    DT_TRY(dti_mesh_comm(x->mesh, x->layout->shard_dims, &comm));
    DT_TRY(owner_of(x, index, &owner));
    w = (dti_writer){ note.text, sizeof note.text, 0 };
    dti_put(&w, "item at");
    for (int a = 0; a < x->n_axes; a++) dti_put(&w, " %lld", (long long)index[a]);
    note.hash = dti_hash_bytes(2, index, (size_t)x->n_axes * sizeof *index);
    DT_TRY(dti_comm_run(comm, &(dti_comm_call){ .op = DTI_COMM_BROADCAST,
                                                .dtype = DT_F64,
                                                .root = owner,
                                                .send = value,
                                                .recv = value,
                                                .counts = &one,
                                                .about = &note }));
    return DT_OK;
}

static dt_status fetch(dt_tensor *x, const int64_t *index, double *value)
{
    int me[DT_MAX_DIMS] = { 0 };
    uint64_t bits;
    dt_local one = { .data = &bits, .dtype = x->local.dtype };
    int64_t i;

    for (int m = 0; m < x->layout->n_dims; m++) me[m] = dt_mesh_coord(x->mesh, m);
    i = local_index(x, index, me);
    if (i >= 0) {
        DT_TRY(x->device->ops->read(x->device, &bits, at(&x->local, i),
                                    dt_dtype_size(x->local.dtype)));
        *value = element(&one, 0);
        if (x->local.dtype == DT_I64 &&
            (*value >= 0x1p63 || (int64_t)*value != *(const int64_t *)at(&one, 0)))
            *value = (double)NAN; /* told to all, who fail alike */
    }
    if (x->layout->shard_dims != 0) DT_TRY(hand_round(x, index, value));
    DT_CHECK(x->local.dtype != DT_I64 || !isnan(*value), DT_ERR_ARG,
             "the element is an i64 that no double equals; look at dt_tensor_local()");
    return DT_OK;
}

dt_status dt_item(dt_tensor *x, const int64_t *index, double *value)
{
    DT_CHECK(value != NULL, DT_ERR_ARG, "value is NULL");
    *value = 0.0;
    DT_TRY(check_item(x, index));
    if (!dt_mesh_is_member(x->mesh)) return DT_OK;
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(x->mesh), fetch(x, index, value)));
    return DT_OK;
}
