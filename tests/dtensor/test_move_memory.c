/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan's peak of memory is what the rank's pool really held. */
#include <dtensor/tensor.h>

#include "base/memory.h"
#include "dtensor/device/device.h"
#include "tests/support/dt_test.h"

typedef struct memory_case {
    const char *from, *to;
    dt_dtype dtype;
} memory_case;

static dt_status make(dt_mesh *mesh, const dt_layout *l, const int64_t *shape, dt_dtype dtype,
                      dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS];
    dt_status st;
    void *data;

    for (int m = 0; m < dt_layout_n_dims(l); m++) place[m] = dt_layout_placement(l, m);
    DT_TRY(dti_alloc_array((size_t)(shape[0] * shape[1]), sizeof(float), &data));
    st = dt_from_local(mesh, place, dtype, 2, shape, data, out);
    dti_free(data);
    return st;
}

static dt_status peak_is_predicted(dt_mesh *mesh, const void *arg)
{
    const memory_case *c = arg;
    const int64_t shape[] = { 64, 64 }; /* pieces are what the pool's blocks hold exactly */
    dt_move_query q = { .shape = shape, .dtype = c->dtype };
    dt_placement place[DT_MAX_DIMS];
    int coord[DT_MAX_DIMS];
    dt_tensor *x = NULL, *y = NULL;
    dt_status st = DT_OK;
    dti_device *device;
    dt_route route;
    int64_t peak;

    DT_TRY(dt_layout_parse(mesh, 2, c->from, &q.from));
    DT_TRY(dt_layout_parse(mesh, 2, c->to, &q.to));
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        coord[m] = dt_mesh_coord(mesh, m);
        place[m] = dt_layout_placement(q.to, m);
    }
    DT_TRY(dt_redistribute_plan(&q, coord, &route));
    DT_TRY(dt_layout_bytes(q.from, shape, coord, c->dtype, &peak));
    for (int i = 0; i < route.n_steps; i++)
        if (route.step[i].peak_bytes > peak) peak = route.step[i].peak_bytes;
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_TRY_TO(done, st, make(mesh, q.from, shape, c->dtype, &x));
    DT_TRY_TO(done, st, dt_redistribute(x, place, &y));
    DT_EXPECT_TO(done, st, (int64_t)dti_memory_peak(device->memory) == peak,
                 "%s -> %s held %lld bytes, predicted were %lld", c->from, c->to,
                 (long long)dti_memory_peak(device->memory), (long long)peak);
done:
    dt_tensor_release(&x);
    dt_tensor_release(&y);
    return st;
}

DT_TEST(move_memory, peaks_are_those_of_the_plan)
{
    static const memory_case cases[] = {
        { "S(0)S(1)", "RR", DT_F32 },
        { "S(0)S(0)", "S(1)S(1)", DT_F32 },
        { "RR", "S(1)S(0)", DT_F32 },
        { "P(sum)P(sum)", "RR", DT_F32 },
        { "P(sum)R", "S(0)R", DT_F32 },
        { "P(sum)R", "S(1)R", DT_F32 },
        { "P(sum)S(0)", "S(0)R", DT_F32 },
        { "P(sum)P(sum)", "S(1)S(0)", DT_F32 },
        { "P(sum)R", "S(0)S(0)", DT_F32 },
        { "S(0)[1]S(0)[0]", "S(0)R", DT_F32 },
        { "P(sum)P(sum)", "RS(1)", DT_F32 },
        { "P(sum)P(sum)", "S(1)S(0)", DT_BF16 },
        { "P(avg)P(sum)", "RR", DT_BF16 },
        { "P(sum)P(sum)", "RS(1)", DT_F16 },
        { "P(max)P(max)", "S(1)S(0)", DT_BF16 },
        { "P(sum)R", "S(1,blocks=32:32)R", DT_F32 },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dt_test_on_ranks("a=2,b=2", peak_is_predicted, &cases[i]);
        dt_test_on_ranks("a=4,b=2", peak_is_predicted, &cases[i]);
    }
}
