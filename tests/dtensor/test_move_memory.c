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
    dt_move_query q = { .size = sizeof q, .shape = shape, .dtype = c->dtype };
    dt_placement place[DT_MAX_DIMS];
    int coord[DT_MAX_DIMS];
    DT_HELD(tensor) *x = NULL, *y = NULL;
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
    DT_TRY(make(mesh, q.from, shape, c->dtype, &x));
    DT_TRY(dt_redistribute(x, place, &y));
    DT_EXPECT((int64_t)dti_memory_peak(device->memory) == peak,
              "%s -> %s held %lld bytes, predicted were %lld", c->from, c->to,
              (long long)dti_memory_peak(device->memory), (long long)peak);
    dt_tensor_release(&y);
    DT_TRY(dt_mesh_set_move_memory(mesh, 1)); /* the plan of before is none for this */
    DT_EXPECT(dt_redistribute(x, place, &y) == DT_ERR_LAYOUT, "%s -> %s in one byte", c->from,
              c->to);
    return DT_OK;
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

/* --- casts ------------------------------------------------------------------------------------ */

typedef struct cast_case {
    const char *from, *to;
    dt_dtype before, after;
    int64_t least; /* bytes of the thriftiest way, of 64 x 64 elements over 4 ranks */
} cast_case;

typedef struct cast_bound {
    const cast_case *kase;
    int64_t bytes;
} cast_bound;

/* Within the bound: works and holds no more than that. Below it: refused, and nothing was sent. */
static dt_status casts_obey(dt_mesh *mesh, const void *arg)
{
    const cast_bound *b = arg;
    const cast_case *c = b->kase;
    const int64_t shape[] = { 64, 64 };
    const dt_layout *from, *to;
    dt_placement place[DT_MAX_DIMS];
    DT_HELD(tensor) *x = NULL, *y = NULL;
    dti_device *device;

    DT_TRY(dt_layout_parse(mesh, 2, c->from, &from));
    DT_TRY(dt_layout_parse(mesh, 2, c->to, &to));
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) place[m] = dt_layout_placement(to, m);
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_TRY(dt_mesh_set_move_memory(mesh, b->bytes));
    DT_TRY(make(mesh, from, shape, c->before, &x));
    if (b->bytes < c->least) {
        DT_EXPECT(dt_redistribute_cast(x, place, c->after, &y) == DT_ERR_LAYOUT,
                  "%s to %s in %lld bytes", c->from, c->to, (long long)b->bytes);
        DT_TRY(dt_mesh_set_move_memory(mesh, 0));
        DT_TRY(dt_redistribute_cast(x, place, c->after, &y)); /* the mesh lives on */
        return DT_OK;
    }
    DT_TRY(dt_redistribute_cast(x, place, c->after, &y));
    DT_EXPECT((int64_t)dti_memory_peak(device->memory) <= b->bytes,
              "%s to %s held %lld bytes, not %lld", c->from, c->to,
              (long long)dti_memory_peak(device->memory), (long long)b->bytes);
    return DT_OK;
}

DT_TEST(move_memory, casts_are_bounded_as_a_whole)
{
    enum { K = 1024 };
    static const cast_case cases[] = {
        { "S(0)", "R", DT_BF16, DT_F32, (2 + 4 + 16) * K }, /* cast first; cast last is 26 KiB */
        { "S(0)", "R", DT_F32, DT_BF16, (4 + 2 + 8) * K },
        { "S(0)", "S(1)", DT_BF16, DT_F16, (2 + 2 + 2) * K },
        { "R", "S(0)", DT_F32, DT_F64, (16 + 4 + 8) * K },
        { "P(sum)", "S(0)", DT_F32, DT_BF16, (16 + 4 + 2) * K },
        { "P(sum)", "S(1)", DT_BF16, DT_F16, (8 + 16 + 4) * K }, /* terms as f32, a fourth */
        { "P(max)", "S(1)", DT_BF16, DT_F16, (8 + 2 + 2) * K },  /* nothing to round */
        { "P(sum)", "S(0)", DT_BF16, DT_F32, (8 + 16 + 4) * K },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        for (int64_t extra = -1; extra <= 1; extra++)
            dt_test_on_ranks("a=4", casts_obey, &(cast_bound){ &cases[i], cases[i].least + extra });
}
