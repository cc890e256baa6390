/* SPDX-License-Identifier: Apache-2.0 */
#include "placements/cost.h"

enum { ALL_RANKS = 64 };

/* --- probes ----------------------------------------------------------------------------------- */

/* Coordinates looked at on a dim: all, or the first, the last and the middle one. */
static int probe_coords(int size, int most, int *out)
{
    if (size <= most) {
        for (int i = 0; i < size; i++) out[i] = i;
        return size;
    }
    out[0] = 0;
    out[1] = size - 1;
    out[2] = size / 2;
    return most < 3 ? most : 3;
}

void dti_probes_of(const dt_layout *grid, dti_probes *out)
{
    int64_t ranks = 1;
    int wide = 0;

    for (int m = 0; m < grid->n_dims; m++) {
        ranks *= ranks > ALL_RANKS ? 1 : grid->dim_size[m];
        wide += grid->dim_size[m] > 1;
    }
    const int most = ranks <= ALL_RANKS ? ALL_RANKS : wide <= 4 ? 3 : wide <= 6 ? 2 : 1;
    out->all = ranks <= ALL_RANKS;
    out->n = 1;
    for (int m = 0; m < grid->n_dims; m++) {
        int at[ALL_RANKS];
        const int n = probe_coords(grid->dim_size[m], most, at), before = out->n;
        for (int i = n - 1; i >= 0; i--) /* the first in place, the others behind */
            for (int r = 0; r < before; r++) {
                int *to = out->coord[i * before + r];
                for (int d = 0; d < m; d++) to[d] = out->coord[r][d];
                to[m] = at[i];
            }
        out->n *= n;
    }
}

bool dti_links_equal(const dti_cost_model *model, const dt_layout *grid)
{
    const dt_link *first = NULL;

    for (int m = 0; m < grid->n_dims; m++) {
        const dt_link *l = &model->link[m];
        if (grid->dim_size[m] == 1) continue;
        if (first == NULL) first = l;
        if (l->latency_ns < first->latency_ns || l->latency_ns > first->latency_ns ||
            l->bytes_per_ns < first->bytes_per_ns || l->bytes_per_ns > first->bytes_per_ns)
            return false;
    }
    return true;
}

/* --- time ------------------------------------------------------------------------------------- */

/* The dims of a group, fastest link first; outer dims last among equals. */
static int by_speed(const dti_cost_model *model, uint32_t dims, int n_dims, int *order)
{
    int n = 0;

    for (int m = n_dims - 1; m >= 0; m--) {
        int at = n;
        if (!dti_has(dims, m)) continue;
        for (; at > 0 && model->link[order[at - 1]].bytes_per_ns < model->link[m].bytes_per_ns;
             at--)
            order[at] = order[at - 1];
        order[at] = m;
        n++;
    }
    return n;
}

/* Rows of `want` that ranks hold whose coordinates on `dims` are any and on other dims are mine. */
static int64_t rows_in_reach(const dti_move_step *step, int axis, int64_t extent, uint32_t dims,
                             const int *me)
{
    int cuts[DT_MAX_DIMS], coord[DT_MAX_DIMS];
    const int n = dti_layout_cuts(step->from, axis, cuts);
    int64_t rows = 0;

    for (int m = 0; m < step->from->n_dims; m++) coord[m] = me[m];
    for (int i = 0; i < n; i++)
        if (dti_has(dims, cuts[i])) coord[cuts[i]] = 0;
    for (int i = 0; i >= 0;) {
        rows += dti_overlap_rows(step->from, coord, step->to, me, axis, extent);
        for (i = n - 1; i >= 0; i--) { /* the next holder of other rows, as an odometer */
            const int m = cuts[i];
            if (!dti_has(dims, m)) continue;
            coord[m] += step->from->place[m].replicas;
            if (coord[m] < step->from->dim_size[m]) break;
            coord[m] = 0;
        }
    }
    return rows;
}

static int64_t elements_in_reach(const dti_cost_model *model, const dti_move_step *step,
                                 uint32_t dims, const int *me)
{
    int64_t n = 1;

    for (int a = 0; a < step->from->n_axes && n > 0; a++)
        n *= rows_in_reach(step, a, model->shape[a], dims, me);
    return n;
}

/* Bytes that the rank receives from those that differ from it first in dim order[i]. */
static void bytes_by_dim(const dti_cost_model *model, const dti_move_step *step, const int *me,
                         const int *order, int n, double *bytes)
{
    const double each = (double)dti_move_element_bytes(step, model->element_bytes);

    if (step->kind == DTI_MOVE_EXCHANGE) {
        uint32_t dims = 0;
        double before = (double)dti_overlap_count(step->from, me, step->to, me, model->shape);
        for (int i = 0; i < n; i++) {
            dims |= 1u << order[i];
            const double reach = i == n - 1 ? (double)dti_piece_count(step->to, me, model->shape)
                                            : (double)elements_in_reach(model, step, dims, me);
            bytes[i] = each * (reach - before);
            before = reach;
        }
        return;
    }
    double all = (double)dti_move_bytes(step, model->shape, model->element_bytes, me);
    double peers = 0, nearer = 1, members = dti_move_group_size(step);
    for (int i = 0; i < n; i++) {
        const double reach = nearer * dti_move_along(step, order[i]);
        peers = reach - nearer;
        bytes[i] = all * peers / (members - 1);
        nearer = reach;
    }
}

static double latency_ns(const dti_cost_model *model, const dti_move_step *step)
{
    double sum = 0, most = 0;

    for (int m = 0; m < step->from->n_dims; m++) {
        if (!dti_has(step->dims, m)) continue;
        const double each = model->link[m].latency_ns;
        for (int reach = 1; reach < dti_move_along(step, m); reach *= 2) sum += each;
        if (each > most) most = each;
    }
    return sum + most;
}

double dti_step_ns(const dti_cost_model *model, const dti_move_step *step, const dti_probes *probes)
{
    const bool equal = dti_links_equal(model, step->from);
    int order[DT_MAX_DIMS];
    double most = 0;

    if (step->dims == 0) return 0;
    const int n = by_speed(model, step->dims, step->from->n_dims, order);
    for (int r = 0; r < probes->n; r++) {
        const int *me = probes->coord[r];
        double bytes[DT_MAX_DIMS], ns = 0;
        if (equal) {
            ns = (double)dti_move_bytes(step, model->shape, model->element_bytes, me) /
                 model->link[order[0]].bytes_per_ns;
        } else {
            bytes_by_dim(model, step, me, order, n, bytes);
            for (int i = 0; i < n; i++) ns += bytes[i] / model->link[order[i]].bytes_per_ns;
        }
        if (ns > most) most = ns;
    }
    return latency_ns(model, step) + most;
}

double dti_least_ns(const dti_cost_model *model, const dt_layout *to, const dti_probes *probes)
{
    double fastest = 0, most = 0;

    for (int m = 0; m < to->n_dims; m++)
        if (to->dim_size[m] > 1 && model->link[m].bytes_per_ns > fastest)
            fastest = model->link[m].bytes_per_ns;
    for (int r = 0; r < probes->n && fastest > 0; r++) {
        const double ns = (double)dti_piece_count(to, probes->coord[r], model->shape) *
                          (double)model->element_bytes / fastest;
        if (ns > most) most = ns;
    }
    return most;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* What passes through a buffer of its own, of pieces of `from` and `to` elements: terms and
 * messages of several boxes. For messages this is an upper bound. */
static int64_t packed_elements(const dti_move_step *step, int64_t from, int64_t to)
{
    if (step->kind == DTI_MOVE_REDUCE_SCATTER) return dti_move_packs_terms(step) ? from : 0;
    if (step->kind == DTI_MOVE_EXCHANGE && (step->from->packed_axes | step->to->packed_axes) != 0)
        return from + to;
    return 0;
}

/* Elements that a step has to do with, on one rank or at most. */
typedef struct step_sizes {
    int64_t from, to, packed;
} step_sizes;

static int64_t step_memory(const dti_move_step *step, const step_sizes *n, size_t element_bytes,
                           bool first)
{
    const int64_t each = (int64_t)dti_move_element_bytes(step, element_bytes);
    const int64_t narrow = (int64_t)element_bytes;
    const int64_t own = first ? 0 : n->from; /* the first piece is the caller's */
    int64_t most;

    if (step->same_piece) return own * each;
    most = ((each > narrow && step->widens ? n->from : own) + n->to + n->packed) * each;
    if (each > narrow && step->widens) most = dti_max(most, own * narrow + n->from * each);
    if (each > narrow && step->narrows) most = dti_max(most, n->to * (each + narrow));
    return most;
}

int64_t dti_step_memory(const dti_move_step *step, const int64_t *shape, size_t element_bytes,
                        const int *me, bool first)
{
    const int64_t from = dti_piece_count(step->from, me, shape);
    const int64_t to = dti_piece_count(step->to, me, shape);
    const step_sizes n = { from, to, packed_elements(step, from, to) };
    const bool kept = step->kind == DTI_MOVE_KEEP_ONE && dti_move_keeps(step, me);

    if (kept) return first ? 0 : from * (int64_t)element_bytes;
    return step_memory(step, &n, element_bytes, first);
}

/* The first part of a cut is the largest but for offsets, also of cuts within cuts. */
static int64_t largest_piece(const dt_layout *l, const int64_t *shape)
{
    int coord[DT_MAX_DIMS] = { 0 };

    for (int m = 0; m < l->n_dims; m++) {
        const dt_placement *p = &l->place[m];
        int64_t most = -1;
        for (int k = 0; dti_has(l->shard_dims, m) && k + 1 < p->n_offsets; k++) {
            if (p->offsets[k + 1] - p->offsets[k] <= most) continue;
            most = p->offsets[k + 1] - p->offsets[k];
            coord[m] = k * p->replicas; /* the first that holds part k */
        }
    }
    return dti_piece_count(l, coord, shape);
}

/* At no rank more than this. */
static int64_t bound_of_peak(const dti_cost_model *model, const dti_move_step *step,
                             const dt_layout *source, bool first)
{
    const int64_t from = largest_piece(step->from, model->shape);
    const int64_t to = largest_piece(step->to, model->shape);
    const step_sizes n = { from, to, packed_elements(step, from, to) };

    const int64_t held =
        model->held == NULL ? 0
                            : largest_piece(model->held, model->shape) * (int64_t)model->held_bytes;

    return held + largest_piece(source, model->shape) * (int64_t)model->element_bytes +
           step_memory(step, &n, model->element_bytes, first);
}

int64_t dti_step_peak(const dti_cost_model *model, const dti_move_step *step,
                      const dt_layout *source, bool first, const dti_probes *probes)
{
    const int64_t each = (int64_t)model->element_bytes;
    const uint32_t tables = model->held == NULL ? 0 : model->held->table_axes;
    int64_t most = 0;

    if (!probes->all &&
        (tables | source->table_axes | step->from->table_axes | step->to->table_axes) != 0)
        return bound_of_peak(model, step, source, first);
    for (int r = 0; r < probes->n; r++) {
        const int *me = probes->coord[r];
        const int64_t own = dti_piece_count(source, me, model->shape);
        const int64_t held = model->held == NULL ? 0
                                                 : dti_piece_count(model->held, me, model->shape) *
                                                       (int64_t)model->held_bytes;
        const int64_t n = held + own * each +
                          dti_step_memory(step, model->shape, model->element_bytes, me, first);
        most = dti_max(most, n);
    }
    return most;
}
