/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of gradients: contributions that lie alike are added at once, so what several readers of a
 * value send back as terms is reduced once; what lies otherwise waits until the sum is taken. */
#include <string.h>

#include "base/sync.h"
#include "dtensor/graph.h"
#include "dtensor/leaves.h"
#include "dtensor/ops/op_rules.h"
#include "dtensor/tape.h"
#include "mesh/runtime.h"
#include "placements/duals.h"

/* --- layouts ---------------------------------------------------------------------------------- */

static dt_status intern(const dt_layout *like, const dt_placement *place, const dt_layout **out)
{
    DT_TRY(dti_layout_intern(like->table, like->n_dims, like->dim_size, like->n_axes, place,
                             like->default_order ? NULL : like->order, out));
    return DT_OK;
}

dt_status dti_gradient_layout(const dt_layout *l, const char *name, const dt_layout **out)
{
    dt_placement place[DT_MAX_DIMS];
    char text[DTI_PLACEMENT_BYTES];

    *out = l;
    if (l->partial_dims == 0) return DT_OK;
    memcpy(place, l->place, sizeof place);
    for (int m = 0; m < l->n_dims; m++) {
        if (!dti_has(l->partial_dims, m)) continue;
        DT_CHECK(place[m].reduce != DT_AVG && place[m].reduce != DT_PROD, DT_ERR_UNSUPPORTED,
                 "%s: its result is %s, which has no gradient: terms of sums and extremes have one",
                 name, dti_placement_words(&place[m], text));
        place[m] = dti_placement_reduced(&place[m]);
    }
    DT_TRY(intern(l, place, out));
    return DT_OK;
}

dt_status dti_gradient_entry(const dt_layout *l, const char *name, const dt_layout **out)
{
    const dt_layout *whole; /* of extremes as of sums */

    DT_TRY(dti_gradient_layout(l, name, &whole));
    DT_TRY(dti_dual_layout(whole, NULL, out));
    return DT_OK;
}

static bool all_are_terms(const dti_sum *sum, int m)
{
    for (int i = 0; i < DTI_SUM_PARTS && sum->part[i] != NULL; i++)
        if (!dti_has(sum->part[i]->layout->partial_dims, m)) return false;
    return sum->part[0] != NULL;
}

dt_status dti_gradient_way_back(const dt_layout *from, const dt_layout *to, const dti_sum *sum,
                                const char *name, const dt_layout **out)
{
    dt_placement place[DT_MAX_DIMS];
    const dt_layout *whole;

    DT_TRY(dti_gradient_entry(from, name, &whole));
    *out = whole;
    memcpy(place, whole->place, sizeof place);
    for (int m = 0; m < from->n_dims; m++)
        if (dti_placement_equal(&from->place[m], &to->place[m]) &&
            from->place[m].kind == DT_PLACE_REPLICATE && all_are_terms(sum, m))
            place[m] = DT_PARTIAL(DT_SUM);
    DT_TRY(intern(whole, place, out));
    return DT_OK;
}

/* --- adding ----------------------------------------------------------------------------------- */

/* A new reference to x in another float dtype, or to x. */
static dt_status in_dtype(dt_tensor *x, dt_dtype dtype, dt_tensor **out)
{
    *out = NULL;
    if (x->local.dtype == dtype)
        *out = dt_tensor_retain(x);
    else
        DT_TRY(dti_tensor_cast(x, dtype, out));
    return DT_OK;
}

static dt_dtype wider(dt_dtype a, dt_dtype b)
{
    return a == b ? a : DT_F32;
}

/* *to += x, which lie alike, in the wider of their dtypes; in place where nobody else holds *to. */
static dt_status add_alike(dt_tape *t, dt_tensor **to, dt_tensor *x)
{
    const dt_dtype dtype = wider((*to)->local.dtype, x->local.dtype);
    dt_tensor *a, *b = NULL, *y = NULL;
    dt_status st = DT_OK;

    DT_TRY(in_dtype(*to, dtype, &a));
    DT_TRY_TO(done, st, in_dtype(x, dtype, &b));
    if (a == *to) dt_tensor_release(to);
    const bool own = a->refs == 1 && a->storage->refs == 1;
    if (own)
        y = dt_tensor_retain(a);
    else
        DT_TRY_TO(done, st, dti_tensor_create(a->mesh, a->layout, dtype, a->shape, &y));
    const int64_t begun = dti_now_ns();
    if (!a->device->dry && dt_mesh_is_member(a->mesh)) {
        const dt_local in[] = { a->local, b->local };
        dt_kargs args = { .in = in, .out = &y->local, .n_in = 2, .n_out = 1 };
        DT_TRY_TO(done, st, a->device->ops->run(a->device, &dti_op_add, &args));
    }
    if (t != NULL)
        dti_tape_add_work(
            t, "add", dtype,
            &(dt_op_work){ (double)dti_tensor_count(y), 3.0 * (double)dti_tensor_bytes(y) }, begun);
    dt_tensor_release(to);
    *to = y;
    y = NULL;
done:
    dt_tensor_release(&a);
    dt_tensor_release(&b);
    dt_tensor_release(&y);
    return st;
}

dt_status dti_sum_add(dt_tape *t, dti_sum *sum, dt_tensor *dx, bool widen)
{
    dt_status st = DT_OK;
    dt_tensor *x;
    int i = 0;

    DT_TRY(in_dtype(dx, widen ? DT_F32 : dx->local.dtype, &x));
    while (i < DTI_SUM_PARTS && sum->part[i] != NULL && sum->part[i]->layout != x->layout) i++;
    if (i == DTI_SUM_PARTS) { /* more ways to lie than there is room for */
        const dt_layout *whole;
        dt_tensor *all = NULL;
        DT_TRY_TO(done, st, dti_gradient_layout(x->layout, "a gradient", &whole));
        DT_TRY_TO(done, st, dti_sum_take(t, sum, whole, &all));
        sum->part[0] = all;
        st = dti_sum_add(t, sum, x, widen);
        goto done;
    }
    if (sum->part[i] == NULL) {
        sum->part[i] = x;
        return DT_OK;
    }
    st = add_alike(t, &sum->part[i], x);
done:
    dt_tensor_release(&x);
    return st;
}

/* part, of which the reference is taken over, as `want` says. */
static dt_status bring(dt_tape *t, dt_tensor **part, const dt_layout *want, dt_tensor **out)
{
    dt_comm_counter moved[DT_N_COMM_KINDS] = { { 0, 0 } };
    dt_status st = dti_redistribute(*part, want, moved, out);

    if (*out == *part) t = NULL; /* nothing moved */
    dt_tensor_release(part);
    if (st == DT_OK && t != NULL)
        st = dti_tape_count(t, t->reason != NULL ? t->reason : "gradients", moved);
    return st;
}

dt_status dti_sum_take(dt_tape *t, dti_sum *sum, const dt_layout *want, dt_tensor **out)
{
    dt_status st = DT_OK;
    dt_tensor *y = NULL, *part = NULL;

    *out = NULL;
    for (int i = 0; i < DTI_SUM_PARTS && sum->part[i] != NULL; i++) {
        DT_TRY_TO(fail, st, bring(t, &sum->part[i], want, &part));
        if (y == NULL) {
            y = part;
            part = NULL;
        } else {
            DT_TRY_TO(fail, st, add_alike(t, &y, part));
            dt_tensor_release(&part);
        }
    }
    *out = y;
    return DT_OK;

fail:
    dti_sum_drop(sum);
    dt_tensor_release(&part);
    dt_tensor_release(&y);
    return st;
}

void dti_sum_drop(dti_sum *sum)
{
    for (int i = 0; i < DTI_SUM_PARTS; i++) dt_tensor_release(&sum->part[i]);
}
