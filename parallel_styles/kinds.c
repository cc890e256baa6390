/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's kinds of layers: one row each, as a user's own are written. */
#include <dtensor/ops.h>

#include "parallel_styles/kind.h"
#include "parallel_styles/layers_internal.h"

/* x W^T + b. Where its inputs are cut the product is a sum over ranks, which the bias joins later.
 */
static dt_tensor *linear(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *w, *y;
    bool sum;

    if (layer->tiles[0] > 1 || layer->tiles[1] > 1) return dti_linear_tiles(t, layer, x);
    w = dt_layer_use(t, layer, DT_PARAM_WEIGHT);
    sum = dti_layer_rows_cut(layer, w);
    y = dt_linear(t, x, w, sum ? NULL : dt_layer_use(t, layer, DT_PARAM_BIAS));
    return sum ? dt_layer_add(t, layer, y) : y;
}

static dt_tensor *linear_packed(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *codes = dt_layer_use(t, layer, 0), *scales = dt_layer_use(t, layer, 2);
    dt_tensor *zeros = dt_layer_use(t, layer, 3);
    const bool sum = dti_layer_rows_cut(layer, codes);
    dt_tensor *bias = sum ? NULL : dt_layer_use(t, layer, DT_PARAM_BIAS);
    dt_tensor *y = dt_layer_spec_of(layer)->packing.floats
                       ? dt_linear_e4m3(t, x, codes, scales, bias)
                       : dt_linear_packed(t, x, codes, scales, zeros, bias);

    return sum ? dt_layer_add(t, layer, y) : y;
}

static dt_tensor *embedding(dt_tape *t, const dt_layer *layer, dt_tensor *ids)
{
    return dt_embedding_padded(t, ids, dt_layer_use(t, layer, DT_PARAM_WEIGHT),
                               dt_layer_spec_of(layer)->padding - 1);
}

static dt_tensor *rms_norm(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    return dt_rms_norm(t, x, dt_layer_use(t, layer, DT_PARAM_WEIGHT), dt_layer_eps(layer));
}

static dt_tensor *rms_norm_once(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    return dt_rms_norm_once(t, x, dt_layer_use(t, layer, DT_PARAM_WEIGHT), dt_layer_eps(layer));
}

static dt_tensor *rms_norm_1p(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    return dt_rms_norm_1p(t, x, dt_layer_use(t, layer, DT_PARAM_WEIGHT), dt_layer_eps(layer));
}

static dt_tensor *layer_norm(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    return dt_layer_norm(t, x, dt_layer_use(t, layer, DT_PARAM_WEIGHT),
                         dt_layer_use(t, layer, DT_PARAM_BIAS), dt_layer_eps(layer));
}

/* What a spec says of experts' parts: names where files have a tensor per expert. */
static dt_status check_experts(const dt_layer_spec *spec)
{
    const bool parts = spec->parts[0] != NULL || spec->parts[1] != NULL;

    DT_CHECK(!parts || !spec->reversed, DT_ERR_ARG,
             "%s is reversed, but has names of parts: a file that has a tensor per expert holds it "
             "[out, in]",
             spec->name);
    DT_CHECK(
        !parts || (spec->parts[0] != NULL && (spec->parts[1] != NULL) == (spec->blocks[0].n == 2) &&
                   (spec->blocks[0].n == 0 || spec->blocks[0].n == 2)),
        DT_ERR_ARG,
        "%s has names for %d parts, but its outputs are %d blocks: one name for outputs of one "
        "piece, two for two blocks",
        spec->name, (spec->parts[0] != NULL) + (spec->parts[1] != NULL), spec->blocks[0].n);
    return DT_OK;
}

const dt_layer_kind dt_point_kind = {
    .name = "point",
    .words = "a point without parameters",
};

const dt_layer_kind dt_linear_kind = {
    .name = "linear",
    .words = "a linear layer",
    .params = { { "weight", "oi" }, { "bias", "o", .optional = true, .added = true } },
    .values = "...i -> ...o",
    .columns = 'o',
    .rows = 'i',
    .cost = "2 oi",
    .forward = linear,
};

const dt_layer_kind dt_linear_packed_kind = {
    .name = "linear_packed",
    .words = "a linear layer of packed weights",
    .like = &dt_linear_kind,
    .params = { { "weight_packed", "oi", .frozen = true, .packed = DT_PACKED_CODES },
                { "bias", "o", .optional = true, .added = true },
                { "weight_scale", "oi", .frozen = true, .packed = DT_PACKED_SCALES },
                { "weight_zero_point", "oi", .optional = true, .frozen = true,
                  .packed = DT_PACKED_ZEROS } },
    .cost = "2 oi",
    .forward = linear_packed,
    .check = dti_check_packing,
};

const dt_layer_kind dt_embedding_kind = {
    .name = "embedding",
    .words = "an embedding",
    .params = { { "weight", "vd" } },
    .values = "... -> ...d",
    .columns = 'd',
    .rows = 'v',
    .picks = 'v',
    .ids = true,
    .forward = embedding,
};

const dt_layer_kind dt_rms_norm_kind = {
    .name = "rms_norm",
    .words = "an RMS norm",
    .params = { { "weight", "d", .begins = DT_BEGINS_ONES } },
    .values = "...d -> ...d",
    .forward = rms_norm,
};

const dt_layer_kind dt_rms_norm_once_kind = {
    .name = "rms_norm_once",
    .words = "an RMS norm",
    .like = &dt_rms_norm_kind,
    .params = { { "weight", "d", .begins = DT_BEGINS_ONES } },
    .forward = rms_norm_once,
};

const dt_layer_kind dt_rms_norm_1p_kind = {
    .name = "rms_norm_1p",
    .words = "an RMS norm",
    .like = &dt_rms_norm_kind,
    .params = { { "weight", "d", .begins = DT_BEGINS_ONES } },
    .forward = rms_norm_1p,
};

const dt_layer_kind dt_layer_norm_kind = {
    .name = "layer_norm",
    .words = "a layer norm",
    .params = { { "weight", "d", .begins = DT_BEGINS_ONES },
                { "bias", "d", .begins = DT_BEGINS_ZEROS } },
    .values = "...d -> ...d",
    .forward = layer_norm,
};

const dt_layer_kind dt_experts_kind = {
    .name = "experts",
    .words = "a layer of experts",
    .axes = "oie",
    .params = { { "weight", "eoi", .bare = true } },
    .values = "...i -> ...o",
    .columns = 'o',
    .rows = 'i',
    .picks = 'e',
    .cost = "2 oi", /* for each row and expert */
    .run_by = "dt_layer_experts()",
    .check = check_experts,
};

const dt_layer_kind dt_experts_bias_kind = {
    .name = "experts_bias",
    .words = "biases of experts",
    .like = &dt_experts_kind,
    .axes = "oe",
    .params = { { "weight", "eo", .bare = true, .begins = DT_BEGINS_ZEROS } },
    .columns = 'o',
    .picks = 'e',
    .run_by = "dt_layer_experts_clamped()",
};

static dt_status check_packed_experts(const dt_layer_spec *spec)
{
    DT_TRY(check_experts(spec));
    DT_TRY(dti_check_packing(spec));
    DT_CHECK(spec->packing.form == DT_PACKED_PLAIN || spec->parts[0] != NULL, DT_ERR_ARG,
             "%s has no names for its parts: files have packed experts one by one", spec->name);
    return DT_OK;
}

const dt_layer_kind dt_experts_packed_kind = {
    .name = "experts_packed",
    .words = "a layer of packed experts",
    .like = &dt_experts_kind,
    .axes = "oie",
    .params = { { "weight_packed", "eoi", .frozen = true, .packed = DT_PACKED_CODES },
                { "weight_scale", "eoi", .frozen = true, .packed = DT_PACKED_SCALES },
                { "weight_zero_point", "eoi", .optional = true, .frozen = true,
                  .packed = DT_PACKED_ZEROS } },
    .picks = 'e',
    .rows = 'i',
    .cost = "2 oi", /* for each row and expert */
    .run_by = "dt_layer_experts()",
    .check = check_packed_experts,
};

const dt_layer_kind *const dti_kinds[] = {
    &dt_point_kind,         &dt_linear_kind,         &dt_embedding_kind,   &dt_rms_norm_kind,
    &dt_rms_norm_once_kind, &dt_rms_norm_1p_kind,    &dt_layer_norm_kind,  &dt_experts_kind,
    &dt_linear_packed_kind, &dt_experts_packed_kind, &dt_experts_bias_kind
};
const int dti_n_kinds = (int)DT_COUNT(dti_kinds);
