/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/device/rates.h"

#include <dtensor/devices.h>
#include <dtensor/factories.h>
#include <dtensor/ops.h>

#include "base/memory.h"
#include "base/sync.h"
#include "dtensor/device/device.h"

enum { LEAST_SIDE = 64, MOST_SIDE = 8192, PRODUCT_NS = 1000000 };
static const int64_t MOST_BYTES = (int64_t)1 << 29; /* of each of the two places of a copy */

struct dti_rates {
    dti_device *device;
    int64_t bytes, side;
    dt_tape *tape;
    dt_tensor *buffer; /* [2, least of bytes / 2 and MOST_BYTES] */
    dt_tensor *x, *w;  /* [side, side] */
};

dt_status dti_rates_open(dt_mesh *mesh, int64_t bytes, dt_dtype dtype, int64_t side,
                         dti_rates **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t half = bytes / 2 < MOST_BYTES ? bytes / 2 : MOST_BYTES;
    const int64_t two[] = { 2, half }, square[] = { side, side };
    dt_status st = DT_OK;
    dti_rates *r;

    *out = NULL;
    DT_TRY(dti_new(sizeof *r, &r));
    r->bytes = bytes;
    r->side = side;
    DT_TRY_TO(fail, st, dti_device_of(dt_mesh_runtime(mesh), &r->device));
    DT_TRY_TO(fail, st, dt_tape_create(dt_mesh_runtime(mesh), &r->tape));
    DT_TRY_TO(fail, st, dt_zeros(mesh, whole, DT_U8, 2, two, &r->buffer));
    DT_TRY_TO(fail, st, dt_randn(mesh, whole, dtype, 2, square, (dt_random){ 1, 0 }, &r->x));
    DT_TRY_TO(fail, st, dt_randn(mesh, whole, dtype, 2, square, (dt_random){ 1, 1 }, &r->w));
    *out = r;
    return DT_OK;

fail:
    dti_rates_close(&r);
    return st;
}

void dti_rates_close(dti_rates **rates)
{
    dti_rates *r = *rates;

    *rates = NULL;
    if (r == NULL) return;
    dt_tensor_release(&r->buffer);
    dt_tensor_release(&r->x);
    dt_tensor_release(&r->w);
    dt_tape_release(&r->tape);
    dti_free(r);
}

/* The last of several copies is shorter. */
dt_status dti_rates_copy(dti_rates *r)
{
    const int64_t most = dt_tensor_extent(r->buffer, 1);
    char *data = dt_tensor_local(r->buffer)->data;

    for (int64_t left = r->bytes / 2; left > 0; left -= most)
        DT_TRY(r->device->ops->copy(r->device, data, data + most,
                                    (size_t)(left < most ? left : most)));
    DT_TRY(dt_device_finish(r->device->rt));
    return DT_OK;
}

dt_status dti_rates_multiply(dti_rates *r)
{
    dt_tape_reset(r->tape);
    (void)dt_linear(r->tape, r->x, r->w, NULL);
    DT_TRY(dt_tape_status(r->tape));
    DT_TRY(dt_device_finish(r->device->rt));
    return DT_OK;
}

double dti_rates_copied(const dti_rates *r)
{
    return 2.0 * (double)(r->bytes / 2);
}

double dti_rates_operations(const dti_rates *r)
{
    return 2.0 * (double)r->side * (double)r->side * (double)r->side;
}

/* --- all ranks -------------------------------------------------------------------------------- */

dt_status dti_rates_gather(dt_mesh *mesh, int64_t own, int64_t *each)
{
    const int64_t shape[] = { dt_mesh_n_ranks(mesh) };
    dt_placement by_rank[DT_MAX_DIMS];
    dt_tensor *mine = NULL, *all = NULL;
    dt_status st = DT_OK;

    for (int d = 0; d < DT_MAX_DIMS; d++) by_rank[d] = DT_SHARD(0);
    DT_TRY_TO(done, st, dt_from_local(mesh, by_rank, DT_I64, 1, shape, &own, &mine));
    DT_TRY_TO(done, st, dt_full_tensor(mine, &all));
    DT_TRY_TO(done, st, dt_tensor_read(all, each, (size_t)shape[0] * sizeof *each));
done:
    dt_tensor_release(&mine);
    dt_tensor_release(&all);
    return st;
}

/* The second product; the first one makes plans and scratch memory. */
static dt_status time_product(dt_mesh *mesh, dt_dtype dtype, int64_t side, int64_t *ns)
{
    dti_rates *r = NULL;
    dt_status st = DT_OK;
    int64_t begin;

    DT_TRY(dti_rates_open(mesh, 2, dtype, side, &r));
    DT_TRY_TO(done, st, dti_rates_multiply(r));
    begin = dti_now_ns();
    DT_TRY_TO(done, st, dti_rates_multiply(r));
    *ns = dti_now_ns() - begin;
done:
    dti_rates_close(&r);
    return st;
}

dt_status dti_rates_side(dt_mesh *mesh, dt_dtype dtype, int64_t *side)
{
    const int n_ranks = dt_mesh_n_ranks(mesh);
    dt_status st = DT_OK;
    int64_t own = 0, *each = NULL;
    bool enough = false;

    DT_TRY(dti_alloc_array((size_t)n_ranks, sizeof *each, (void **)&each));
    for (*side = LEAST_SIDE;; *side *= 2) {
        DT_TRY_TO(done, st, time_product(mesh, dtype, *side, &own));
        DT_TRY_TO(done, st, dti_rates_gather(mesh, own, each));
        for (int r = 0; r < n_ranks; r++) enough = enough || each[r] >= PRODUCT_NS;
        if (enough || *side == MOST_SIDE) break;
    }
done:
    dti_free(each);
    return st;
}
