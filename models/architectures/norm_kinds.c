/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms that some decoders have and dtensor/kinds.h has not. */
#include "models/architectures/decoder_block.h"

/* A bias of zeros adds nothing, to the bit. */
static dt_tensor *plain_layer_norm(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *w = dt_layer_use(t, layer, DT_PARAM_WEIGHT);

    return dt_layer_norm(t, x, w, dt_mul_scalar(t, w, 0.0), dt_layer_eps(layer));
}

const dt_layer_kind dti_plain_layer_norm_kind = {
    .name = "layer_norm_plain",
    .words = "a layer norm",
    .like = &dt_rms_norm_kind,
    .params = { { "weight", "d", .begins = DT_BEGINS_ONES } },
    .forward = plain_layer_norm,
};

/* x as it lies, but for sums: terms become sums, and of pieces that several ranks hold copies of,
 * one holder's counts. */
static dt_tensor *counted_once(dt_tape *t, dt_tensor *x)
{
    dt_placement place[DT_MAX_DIMS];
    int n;

    if (dt_tape_status(t) != DT_OK) return NULL;
    n = dt_layout_placements(dt_tensor_layout(x), place);
    for (int m = 0; m < n; m++) {
        if (place[m].kind == DT_PLACE_PARTIAL) place[m] = DT_REPLICATE;
        if (place[m].kind == DT_PLACE_SHARD && place[m].axis == dt_tensor_n_axes(x) - 1)
            place[m].terms = place[m].replicas > 1;
    }
    return dt_move(t, x, place);
}

/* Is the last axis of x cut? */
static bool is_cut(const dt_tensor *x)
{
    for (int m = 0; m < dt_mesh_n_dims(dt_tensor_mesh(x)); m++) {
        const dt_placement p = dt_layout_placement(dt_tensor_layout(x), m);
        if (p.kind == DT_PLACE_SHARD && p.axis == dt_tensor_n_axes(x) - 1 &&
            dt_mesh_dim_size(dt_tensor_mesh(x), m) > 1)
            return true;
    }
    return false;
}

/* x [..., d]. Where ranks have pieces of rows, nothing is gathered: a number for each row is
 * reduced, the mean of its squares. */
static dt_tensor *row_norm(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *w = dt_layer_use(t, layer, DT_PARAM_WEIGHT), *wide, *mean;
    int64_t shape[DT_MAX_AXES];
    const char *before;
    dt_dtype dtype;
    int n;

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (!is_cut(x)) return dt_rms_norm_once(t, x, w, dt_layer_eps(layer));
    dtype = dt_tensor_dtype(x);
    n = dt_tensor_n_axes(x);
    for (int a = 0; a < n; a++) shape[a] = a < n - 1 ? dt_tensor_extent(x, a) : 1;
    before = dt_tape_because(t, "row norm");
    wide = dt_cast(t, x, DT_F32);
    mean = dt_mean(t, counted_once(t, dt_mul(t, wide, wide)), -1);
    mean = dt_add_scalar(t, counted_once(t, mean), (double)dt_layer_eps(layer));
    (void)dt_tape_because(t, before);
    wide = dt_mul(t, wide, dt_reshape(t, dt_rsqrt(t, mean), n, shape));
    return dt_cast(t, dt_mul(t, wide, dt_cast(t, w, DT_F32)), dtype);
}

const dt_layer_kind dti_row_norm_kind = {
    .name = "rms_norm_row",
    .words = "an RMS norm",
    .like = &dt_rms_norm_kind,
    .params = { { "weight", "d", .begins = DT_BEGINS_ONES } },
    .forward = row_norm,
};
