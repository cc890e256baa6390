/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/layers.h"

#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

static int64_t count_of(const int64_t *shape, int n)
{
    int64_t count = 1;

    for (int a = 0; a < n; a++) count *= shape[a];
    return count;
}

/* --- parameters ------------------------------------------------------------------------------- */

void dt_test_param_shape(const dt_param_info *info, int64_t shape[DT_PARAM_MAX_AXES])
{
    for (int a = 0; a < info->n_axes; a++) shape[a] = info->axis[a].extent;
}

dt_status dt_test_set_param(dt_mesh *mesh, dt_layer *layer, int param, dt_dtype dtype,
                            const float *values)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    int64_t shape[DT_PARAM_MAX_AXES], n;
    dt_placement place[DT_MAX_DIMS];
    DT_FREED void *data = NULL;
    DT_HELD(tensor) *x = NULL;

    dt_test_param_shape(&info, shape);
    n = count_of(shape, info.n_axes);
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        place[m] = dt_layout_placement(dt_layer_param_layout(layer, param), m);
    DT_TRY(dti_alloc_array((size_t)n, dt_dtype_size(dtype), &data));
    dti_convert(data, dtype, values, DT_F32, n);
    DT_TRY(dt_distribute(mesh, place, dtype, info.n_axes, shape,
                         (dt_source){ data, DT_EQUAL_COPIES }, &x));
    return dt_layer_set_param(layer, param, x);
}

static dt_status fill(dt_mesh *mesh, dt_layer *layer, int param, dt_dtype dtype, uint32_t seed)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    int64_t shape[DT_PARAM_MAX_AXES], n;
    float *values = NULL;
    dt_status st;

    dt_test_param_shape(&info, shape);
    n = count_of(shape, info.n_axes);
    DT_TRY(dti_alloc_array((size_t)n, sizeof *values, (void **)&values));
    dt_test_random(values, n, seed);
    st = dt_test_set_param(mesh, layer, param, dtype, values);
    dti_free(values);
    return st;
}

dt_status dt_test_fill_layers(dt_mesh *mesh, dt_layers *layers, dt_dtype dtype, uint32_t seed)
{
    for (int i = 0; i < dt_layers_count(layers); i++)
        for (int p = 0; p < dt_layer_n_params(dt_layers_at(layers, i)); p++)
            DT_TRY(fill(mesh, dt_layers_at(layers, i), p, dtype,
                        seed + 2 * (uint32_t)i + (uint32_t)p));
    return DT_OK;
}

/* --- moves ------------------------------------------------------------------------------------ */

int64_t dt_test_piece(const int64_t *shape, int n_axes, int axis, int p, int me)
{
    const int64_t rows = shape[axis], chunk = (rows + p - 1) / p, first = me * chunk;
    const int64_t own = first >= rows ? 0 : first + chunk > rows ? rows - first : chunk;

    return rows == 0 ? 0 : count_of(shape, n_axes) / rows * own;
}

/* Scattering a sum makes the rank of the largest piece receive p - 1 terms of it. */
dt_comm_kind dt_test_move_kind(const dt_test_move *m, int p)
{
    if (p == 1) return DT_N_COMM_KINDS;
    if (m->kind != DT_COMM_REDUCE_SCATTER) return m->kind;
    return dt_test_piece(m->shape, m->n_axes, m->to, p, 0) * p > 2 * count_of(m->shape, m->n_axes)
               ? DT_COMM_ALL_REDUCE
               : DT_COMM_REDUCE_SCATTER;
}

int64_t dt_test_move_bytes(const dt_test_move *m, int p, int me)
{
    const int64_t all = count_of(m->shape, m->n_axes) * m->each;
    int64_t mine[DT_MAX_AXES];

    switch (dt_test_move_kind(m, p)) {
    case DT_COMM_ALL_GATHER:
        return all - m->each * dt_test_piece(m->shape, m->n_axes, m->from, p, me);
    case DT_COMM_ALL_REDUCE:
        return 2 * (p - 1) * all / p;
    case DT_COMM_REDUCE_SCATTER:
        return (p - 1) * m->each * dt_test_piece(m->shape, m->n_axes, m->to, p, me);
    case DT_COMM_ALL_TO_ALL: /* of my rows of `to` those that I have not */
        memcpy(mine, m->shape, sizeof mine);
        mine[m->to] = dt_test_piece(&m->shape[m->to], 1, 0, p, me);
        return m->each *
               (count_of(mine, m->n_axes) - dt_test_piece(mine, m->n_axes, m->from, p, me));
    default:
        return 0;
    }
}

dt_status dt_test_expect_counts(const dt_tape *t, const dt_comm_counter want[DT_N_COMM_KINDS])
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter got = dt_tape_comm(t, (dt_comm_kind)k);
        DT_EXPECT(got.calls == want[k].calls && got.bytes == want[k].bytes,
                  "%lld x %s of %lld bytes, not %lld of %lld", (long long)got.calls,
                  dt_comm_kind_name((dt_comm_kind)k), (long long)got.bytes,
                  (long long)want[k].calls, (long long)want[k].bytes);
    }
    return DT_OK;
}

dt_status dt_test_expect_move(const dt_tape *t, const dt_mesh *mesh, const dt_test_move *move)
{
    const int p = dt_mesh_n_ranks(mesh), me = dt_mesh_coord(mesh, 0);
    const dt_comm_kind kind = dt_test_move_kind(move, p);
    dt_comm_counter want[DT_N_COMM_KINDS] = { { 0, 0 } };

    if (kind != DT_N_COMM_KINDS)
        want[kind] = (dt_comm_counter){ 1, dt_test_move_bytes(move, p, me) };
    return dt_test_expect_counts(t, want);
}

bool dt_test_lies(dt_lay how, dt_lay_kind kind, int axis)
{
    return how.kind == kind && (kind != DT_LAY_SHARD || how.axis == axis);
}
