/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the axes of a layer's spec can be: their extents, units and head counts. */
#include "base/memory.h"
#include "parallel_styles/layers_internal.h"

static int n_axes_of(dt_layer_kind kind)
{
    if (kind == DT_LAYER_POINT) return 0;
    return kind == DT_LAYER_RMS_NORM || kind == DT_LAYER_LAYER_NORM ? 1 : 2;
}

static dt_status check_unit(const dt_layer_spec *spec, int axis, dt_axis_unit unit)
{
    const dt_head_counts *h = &spec->heads;

    DT_CHECK((int)unit >= DT_UNIT_ROW && unit <= DT_UNIT_KV_HEADS, DT_ERR_ARG,
             "%s: axis %d has unit %d, which is no dt_axis_unit", spec->name, axis, (int)unit);
    if (unit == DT_UNIT_ROW) return DT_OK;
    DT_CHECK(h->n_heads >= 1 && h->n_kv_heads >= 1 && h->head_dim >= 1 &&
                 h->n_heads % h->n_kv_heads == 0,
             DT_ERR_ARG,
             "%s: axis %d counts heads, but there are %lld heads, %lld kv heads, each of %lld "
             "rows; 1 or more are needed, and the kv heads have to divide the heads",
             spec->name, axis, (long long)h->n_heads, (long long)h->n_kv_heads,
             (long long)h->head_dim);
    return DT_OK;
}

/* Products of numbers of heads are taken without looking. */
static dt_status check_heads(const dt_layer_spec *spec)
{
    const dt_head_counts *h = &spec->heads;
    int64_t rows;

    DT_CHECK(h->n_heads < 0 || h->head_dim < 0 || dti_mul_i64(h->n_heads, h->head_dim, &rows),
             DT_ERR_ARG, "%s: %lld heads of %lld rows exceed 2^63 rows", spec->name,
             (long long)h->n_heads, (long long)h->head_dim);
    return DT_OK;
}

dt_status dti_check_axes(const dt_layer_spec *spec)
{
    int64_t bytes = 8; /* of the widest dtype */

    for (int a = 0; a < n_axes_of(spec->kind); a++) {
        const dt_axis *axis = &spec->axis[a];
        DT_CHECK(axis->extent >= 0, DT_ERR_ARG, "%s: axis %d has extent %lld, must be 0 or more",
                 spec->name, a, (long long)axis->extent);
        DT_CHECK(dti_mul_i64(bytes, axis->extent, &bytes), DT_ERR_ARG,
                 "%s: its weight exceeds 2^63 bytes at axis %d of %lld", spec->name, a,
                 (long long)axis->extent);
        DT_TRY(check_unit(spec, a, axis->unit));
        for (int b = 0; b < spec->blocks[a].n && b < DT_AXIS_MAX_BLOCKS; b++)
            DT_TRY(check_unit(spec, a, spec->blocks[a].block[b].unit));
    }
    if (spec->kind == DT_LAYER_EXPERTS && spec->n_experts > 0)
        DT_CHECK(dti_mul_i64(bytes, spec->n_experts, &bytes), DT_ERR_ARG,
                 "%s: its weight exceeds 2^63 bytes with %lld experts", spec->name,
                 (long long)spec->n_experts);
    DT_TRY(check_heads(spec));
    return DT_OK;
}
