/* SPDX-License-Identifier: Apache-2.0
 *
 * Axes that are made of blocks (gate | up, q | k | v): how they are cut, and which styles may. */
#include <string.h>

#include "parallel_styles/layers_internal.h"

static bool has_unit(const dt_axis_blocks *blocks, dt_axis_unit unit)
{
    for (int b = 0; b < blocks->n; b++)
        if (blocks->block[b].unit == unit) return true;
    return false;
}

/* The head rule for blocks that are cut together: the ranks that share the parts of all blocks; 0:
 * the parameter stays whole. *group: query heads that stay together. */
static int copies_of_blocks(const dt_axis_blocks *blocks, const dt_head_counts *heads, int n_parts,
                            int64_t *group)
{
    const int64_t kv = heads->n_kv_heads;
    const bool has_q = has_unit(blocks, DT_UNIT_HEADS), has_kv = has_unit(blocks, DT_UNIT_KV_HEADS);

    *group = kv > 0 ? heads->n_heads / kv : 1;
    if (kv == 0 || kv >= n_parts || (!has_q && !has_kv)) return 1;
    if (!has_kv) {
        *group = 1; /* as query heads of a layer of their own */
        return 1;
    }
    if (n_parts % kv != 0) return 0;
    if (!has_q && heads->n_heads % n_parts != 0) return 0; /* queries elsewhere, cut by head */
    return (int)(n_parts / kv);
}

dt_placement dti_cut_steps(const dt_param_info *param, int axis, int n_parts)
{
    dt_placement cut = dt_cut_axis(&param->axis[axis], &param->heads, axis, n_parts);

    if (cut.kind == DT_PLACE_SHARD && cut.unit <= 1 && param->step[axis] > 1)
        cut.unit = param->step[axis];
    return cut;
}

dt_placement dt_cut_param(const dt_param_info *param, int axis, int n_parts, dt_cut_room *room)
{
    const dt_axis_blocks *blocks;
    dt_placement cut;
    int64_t group;
    int copies;

    if (param == NULL || axis < 0 || axis >= param->n_axes) return DT_REPLICATE;
    blocks = &param->blocks[axis];
    if (blocks->n == 0) return dti_cut_steps(param, axis, n_parts);
    copies = copies_of_blocks(blocks, &param->heads, n_parts, &group);
    if (copies == 0 || copies == n_parts) return DT_REPLICATE;
    for (int b = 0; b < blocks->n; b++) {
        const dt_axis_unit unit = blocks->block[b].unit;
        const int64_t head = param->heads.head_dim > 0 ? param->heads.head_dim : 1;
        room->blocks[b] = blocks->block[b].extent;
        const int64_t step = param->step[axis] > 1 ? param->step[axis] : 1;
        room->units[b] = unit == DT_UNIT_ROW ? step : unit == DT_UNIT_HEADS ? group * head : head;
    }
    cut = dt_shard_packed(axis, blocks->n, room->blocks);
    cut.units = room->units;
    cut.replicas = copies;
    return cut;
}

dt_status dti_check_blocks(const dt_layer_spec *spec)
{
    static const char *const sides[] = { "outputs", "inputs" };
    const bool may = dti_kind_is_matrix(spec->kind);

    DT_CHECK(!spec->reversed || may, DT_ERR_ARG,
             "%s is %s: only a linear layer's weight is stored the other way round", spec->name,
             dti_kind_text(spec->kind));
    for (int a = 0; a < 2; a++) {
        const dt_axis_blocks *blocks = &spec->blocks[a];
        int64_t rows = 0;
        if (blocks->n == 0) continue;
        DT_CHECK(may, DT_ERR_ARG, "%s is %s: only axes of linear layers are made of blocks",
                 spec->name, dti_kind_text(spec->kind));
        DT_CHECK(blocks->n > 0 && blocks->n <= DT_AXIS_MAX_BLOCKS, DT_ERR_ARG,
                 "%s: its %s are made of %d blocks: 1 to %d are possible", spec->name, sides[a],
                 blocks->n, (int)DT_AXIS_MAX_BLOCKS);
        for (int b = 0; b < blocks->n; b++) {
            DT_CHECK(blocks->block[b].extent >= 0 &&
                         blocks->block[b].extent <= spec->axis[a].extent - rows,
                     DT_ERR_ARG, "%s: block %d of its %lld %s has %lld, after %lld", spec->name, b,
                     (long long)spec->axis[a].extent, sides[a], (long long)blocks->block[b].extent,
                     (long long)rows);
            rows += blocks->block[b].extent;
        }
        DT_CHECK(rows == spec->axis[a].extent, DT_ERR_ARG,
                 "%s: the blocks of its %lld %s have %lld together", spec->name,
                 (long long)spec->axis[a].extent, sides[a], (long long)rows);
    }
    return DT_OK;
}

dt_status dti_check_packed(const dt_style *style, const dt_layer *layer)
{
    const bool packed = style->cut == DT_CUT_PACKED_COLUMNS || style->cut == DT_CUT_PACKED_ROWS;
    const bool rows = style->cut == DT_CUT_ROWS || style->cut == DT_CUT_PACKED_ROWS;
    const char letter = dti_kind_letter(layer->spec.kind, style->cut);
    const char *side = rows ? "inputs" : "outputs", *at;
    const dt_param_info weight = dt_layer_param_info(layer, DT_PARAM_WEIGHT);
    char text[DTI_PARAM_TEXT_BYTES];
    int n;

    if (style->partition_param != NULL || !dti_kind_is_matrix(layer->spec.kind)) return DT_OK;
    if (style->cut == DT_CUT_NONE || style->cut >= DT_CUT_EXPERTS) return DT_OK; /* as they are */
    at = strchr(weight.letters, letter);
    n = at != NULL ? weight.blocks[at - weight.letters].n : 0;
    DT_CHECK(!packed || n > 0, DT_ERR_LAYOUT,
             "style \"%s\" cuts the %s of %s block by block, but those of %s are one piece; use "
             "\"%s\"",
             style->name, side, weight.layer, dti_param_text(&weight, text),
             rows ? "rowwise" : "colwise");
    /* Outputs that are gathered again may be cut anywhere. */
    DT_CHECK(packed || n == 0 || (!rows && style->out.of[0].to.kind == DT_LAY_REPLICATE),
             DT_ERR_LAYOUT,
             "style \"%s\" cuts the %s of %s as one piece, but those of %s are %d blocks of which "
             "every rank needs its part; use \"%s\"",
             style->name, side, weight.layer, dti_param_text(&weight, text), n,
             rows ? "packed_rowwise" : "packed_colwise");
    return DT_OK;
}
