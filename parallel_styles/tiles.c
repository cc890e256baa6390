/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers in tiles: outputs and inputs are divided, and the parts of the weight are gathered
 * and multiplied one after the other, there and back. So what is there of a fully sharded weight is
 * its largest tile. */
#include <dtensor/ops.h>
#include <dtensor/ops_general.h>
#include <string.h>

#include "dtensor/gather.h"
#include "dtensor/graph.h"
#include "parallel_styles/layers_internal.h"

enum { MOST_TOGETHER = 6 }; /* operands of a concatenation */

/* Part i of n rows in `tiles`, which differ by one row at most. */
static int64_t begin_of(int64_t n, int tiles, int i)
{
    return n / tiles * i + n % tiles * i / tiles;
}

int dti_tile_rows(int64_t n, int tiles, int64_t rows[DTI_MOST_TILES])
{
    for (int i = 0; i < tiles; i++) rows[i] = begin_of(n, tiles, i + 1) - begin_of(n, tiles, i);
    return tiles;
}

/* x without what is outside of part i along an axis. The record keeps x in its place. */
static dt_tensor *part_of(dt_tape *t, dt_tensor *x, int axis, int tiles, int i, bool again)
{
    const int64_t n = x != NULL ? dt_tensor_extent(x, axis) : 0, begin = begin_of(n, tiles, i);
    dt_tensor *y;

    if (x == NULL || tiles == 1) return x;
    y = dt_slice(t, x, axis, begin, begin_of(n, tiles, i + 1) - begin);
    if (y != NULL && again) dti_graph_again(t, x, y);
    return y;
}

/* Tile (o, i) of the weight, as computations get it. */
static dt_tensor *tile(dt_tape *t, const dt_layer *layer, int o, int i)
{
    const char *before = dt_tape_because(t, "fully_shard");
    const int at[] = { o, i }, first = (int)(layer->layout[0]->packed_axes >> 1 & 1u);
    dt_tensor *w = dt_layer_param(layer, DT_PARAM_WEIGHT);

    w = part_of(t, w, first, layer->tiles[first], at[first], true); /* a block, if any is */
    w = part_of(t, w, 1 - first, layer->tiles[1 - first], at[1 - first], true);
    if (w != NULL && layer->whole[0] != layer->layout[0])
        w = dti_gather_tile(t, layer->list->gathers, dti_layer_value(layer, DT_PARAM_WEIGHT), w,
                            layer->whole[0]);
    (void)dt_tape_because(t, before);
    return w;
}

/* Outputs o: a sum over tiles of inputs, in their order, to which the last adds the bias. */
static dt_tensor *outputs(dt_tape *t, const dt_layer *layer, int o, dt_tensor *const *x,
                          dt_tensor *bias)
{
    const int n = layer->tiles[1];
    dt_tensor *y = NULL;

    for (int i = 0; i < n && dt_tape_status(t) == DT_OK; i++) {
        dt_tensor *term;
        dt_scope_begin(t, layer->name);
        term = dt_linear(t, x[i], tile(t, layer, o, i), i == n - 1 ? bias : NULL);
        term = dt_scope_end(t, term);
        y = y == NULL ? term : dt_add(t, y, term);
    }
    return y;
}

static dt_tensor *join(dt_tape *t, int n, dt_tensor **y)
{
    while (n > 1 && dt_tape_status(t) == DT_OK) {
        int m = 0;
        for (int i = 0; i < n; i += MOST_TOGETHER) {
            const int k = n - i < MOST_TOGETHER ? n - i : MOST_TOGETHER;
            y[m++] = k == 1 ? y[i] : dt_concat(t, k, y + i, -1);
        }
        n = m;
    }
    return dt_tape_status(t) == DT_OK ? y[0] : NULL;
}

dt_tensor *dti_linear_tiles(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *parts[DTI_MOST_TILES] = { NULL }, *y[DTI_MOST_TILES] = { NULL }, *bias;

    bias = layer->rows_cut ? NULL : dt_layer_use(t, layer, DT_PARAM_BIAS); /* sums get it later */
    for (int i = 0; i < layer->tiles[1]; i++)
        parts[i] = part_of(t, x, -1, layer->tiles[1], i, false);
    for (int o = 0; o < layer->tiles[0] && dt_tape_status(t) == DT_OK; o++)
        y[o] = outputs(t, layer, o, parts, part_of(t, bias, 0, layer->tiles[0], o, false));
    return join(t, layer->tiles[0], y);
}

/* --- which layers, and how they are stored ---------------------------------------------------- */

static dt_status refuse(const dt_layer *layer, const dt_style *style, const char *why)
{
    DT_FAIL(DT_ERR_LAYOUT, "style \"%s\" divides %s into tiles, %s", style->name, layer->name, why);
}

static bool is_tied(const dt_layer *layer)
{
    bool tied = layer->tied_to != NULL;

    for (int i = 0; i < layer->list->n; i++) tied = tied || layer->list->layers[i].tied_to == layer;
    return tied;
}

/* Layers that share their weight, and others than linear ones, are gathered whole. */
dt_status dti_tiles_choose(dt_layer *layer)
{
    const dt_style *style = NULL;
    int cuts = 0, others = 0;

    layer->tiles[0] = layer->tiles[1] = 1;
    for (int m = 0; m < dt_mesh_n_dims(layer->mesh); m++) {
        const dt_style *s = layer->style[m];
        if (s == NULL) continue;
        cuts += s->cut == DT_CUT_COPIES;
        others += s->cut != DT_CUT_COPIES && s->prepare_param != NULL;
        if (s->cut == DT_CUT_COPIES && (s->out_tiles > 1 || s->in_tiles > 1)) style = s;
    }
    if (style == NULL || layer->spec.kind != &dt_linear_kind || is_tied(layer)) return DT_OK;
    if (cuts > 1) return refuse(layer, style, "which one mesh dim alone can do");
    if (layer->whole[0]->packed_axes != 0)
        return refuse(layer, style, "of which another style cuts blocks");
    if (others > 0) return refuse(layer, style, "but another style prepares its weight as well");
    for (int a = 0; a < 2; a++) {
        const int64_t n = layer->spec.axis[a].extent,
                      tiles = a ? style->in_tiles : style->out_tiles;
        int dims[DT_MAX_DIMS];
        if (tiles <= 1) continue;
        if (dti_layout_cuts(layer->whole[0], a, dims) > 0)
            return refuse(layer, style,
                          a ? "but another style cuts its inputs: give out_tiles"
                            : "but another style cuts its outputs: give in_tiles");
        layer->tiles[a] = (int)(tiles < n ? tiles : n);
    }
    return DT_OK;
}

dt_status dti_tiles_lay_out(const dt_layer *layer, const dt_layout **layout)
{
    for (int m = 0; m < (*layout)->n_dims; m++) {
        const dt_style *s = layer->style[m];
        dt_placement cut = dt_layout_placement(*layout, m);
        int64_t rows[DTI_MOST_TILES];
        if (s == NULL || s->cut != DT_CUT_COPIES || cut.kind != DT_PLACE_SHARD || cut.axis > 1 ||
            layer->tiles[cut.axis] == 1)
            continue;
        cut = dt_shard_packed(
            cut.axis,
            dti_tile_rows(layer->spec.axis[cut.axis].extent, layer->tiles[cut.axis], rows), rows);
        DT_TRY(dti_layout_with(*layout, m, &cut, layout));
    }
    return DT_OK;
}
