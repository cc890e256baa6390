/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/tensors.h"

#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "tests/support/dt_test.h"

static int64_t count_of(int n_axes, const int64_t *shape)
{
    int64_t n = 1;

    for (int a = 0; a < n_axes; a++) n *= shape[a];
    return n;
}

/* This rank's term of value v: on every Partial dim rank 0 holds v less what the others hold. */
static float term(dt_mesh *mesh, const dt_placement *place, float v)
{
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        const int p = dt_mesh_dim_size(mesh, m), c = dt_mesh_coord(mesh, m);
        if (place[m].kind != DT_PLACE_PARTIAL || p == 1) continue;
        v = c > 0 ? (float)c : v - (float)(p * (p - 1) / 2);
    }
    return v;
}

dt_tape *dt_test_tape(dt_mesh *mesh)
{
    dt_tape *t = NULL;

    return dt_tape_create(dt_mesh_runtime(mesh), &t) == DT_OK ? t : NULL;
}

dt_status dt_test_arange(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                         const int64_t *shape, dt_tensor **out)
{
    dt_placement whole[DT_MAX_DIMS], given[DT_MAX_DIMS];
    const int64_t n = count_of(n_axes, shape);
    dt_status st = DT_OK;
    dt_tensor *x = NULL;
    bool partial = false;
    float *full = NULL;
    void *data = NULL;

    *out = NULL;
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        const bool p = place[m].kind == DT_PLACE_PARTIAL;
        partial = partial || p;
        whole[m] = p ? DT_REPLICATE : place[m];
        given[m] = place[m];
    }
    DT_TRY_TO(done, st, dti_alloc_array((size_t)n, sizeof *full, (void **)&full));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)n, dt_dtype_size(dtype), &data));
    for (int64_t i = 0; i < n; i++) full[i] = term(mesh, place, (float)i);
    dti_convert(data, dtype, full, DT_F32, n);
    DT_TRY_TO(
        done, st,
        dt_distribute(mesh, whole, dtype, n_axes, shape, (dt_source){ data, DT_EQUAL_COPIES }, &x));
    if (partial)
        st = dt_from_local(mesh, given, dtype, n_axes, shape, dt_tensor_local(x)->data, out);
    else
        *out = dt_tensor_retain(x);
done:
    dt_tensor_release(&x);
    dti_free(full);
    dti_free(data);
    return st;
}

dt_tensor *dt_test_reduced(dt_tape *t, dt_tensor *x)
{
    dt_placement want[DT_MAX_DIMS];
    const dt_layout *l = dt_tensor_layout(x);

    if (x == NULL) return NULL;
    for (int m = 0; m < dt_layout_n_dims(l); m++) {
        want[m] = dt_layout_placement(l, m);
        if (want[m].kind == DT_PLACE_PARTIAL) want[m] = DT_REPLICATE;
    }
    return dt_move(t, x, want);
}

dt_status dt_test_expect_arange(const dt_tensor *x)
{
    const dt_local *l = dt_tensor_local(x);
    const int64_t n = count_of(l->n_axes, l->shape);

    for (int a = 0; a < l->n_axes; a++)
        DT_EXPECT(l->shape[a] == dt_tensor_extent(x, a), "axis %d is not whole", a);
    for (int64_t i = 0; i < n; i++)
        DT_EXPECT(dti_load_f32(l->data, l->dtype, i) == (float)i, "element %lld is %g",
                  (long long)i, (double)dti_load_f32(l->data, l->dtype, i));
    return DT_OK;
}

dt_status dt_test_expect_same(const dt_tensor *a, const dt_tensor *b, const char *what)
{
    const dt_local *x = dt_tensor_local(a), *y = dt_tensor_local(b);
    const size_t bytes = (size_t)count_of(x->n_axes, x->shape) * dt_dtype_size(x->dtype);

    DT_EXPECT(x->dtype == y->dtype && x->n_axes == y->n_axes, "%s: another dtype or rank", what);
    for (int k = 0; k < x->n_axes; k++)
        DT_EXPECT(x->shape[k] == y->shape[k], "%s: axis %d is %lld, not %lld", what, k,
                  (long long)y->shape[k], (long long)x->shape[k]);
    DT_EXPECT(bytes > 0 && memcmp(x->data, y->data, bytes) == 0, "%s: other values", what);
    return DT_OK;
}

void dt_test_random(float *to, int64_t n, uint32_t seed)
{
    uint32_t x = seed * 2654435761u + 12345u;

    for (int64_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        to[i] = (float)(x >> 8) / 8388608.0f - 1.0f;
    }
}
