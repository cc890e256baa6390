/* SPDX-License-Identifier: Apache-2.0
 *
 * Which ranks a dry pass costs the same. All ranks make the same tensors and moves in the same
 * order, because decisions follow from layouts, global shapes and dtypes. A rank's place decides
 * how many rows its pieces have, of packed ones each run, and what of an exchange it holds already.
 * So a pass that was watched on one rank is, to the byte, that of every rank for which these
 * numbers are equal. */
#ifndef DTI_RANK_CLASSES_H
#define DTI_RANK_CLASSES_H

#include "placements/move.h"

/* What decides a rank's part of a pass, each once. Layouts are those of the watched runtime. */
typedef struct dti_watched {
    struct dti_watched_cut *cuts; /* of one axis of an extent */
    size_t n_cuts, cuts_capacity;
    struct dti_watched_step *steps; /* of moves */
    size_t n_steps, steps_capacity;
    uint32_t apart; /* mesh dims (bits) on which ranks do not do the same: of stages */
} dti_watched;

dt_status dti_watch_tensor(dti_watched *w, const dt_layout *layout,
                           const int64_t *shape) DT_MUST_USE;
dt_status dti_watch_step(dti_watched *w, const dti_move_step *step,
                         const int64_t *shape) DT_MUST_USE;
void dti_watched_free(dti_watched *w);

typedef struct dti_rank_classes {
    int n;
    int *first; /* [n] the lowest rank of each; ascending */
    int *of;    /* [ranks of the mesh] */
} dti_rank_classes;

/* For a mesh whose ranks are its places. Freed with dti_rank_classes_free(), also after an error.
 */
dt_status dti_rank_classes_find(const dti_watched *w, const dt_mesh *mesh,
                                dti_rank_classes *out) DT_MUST_USE;
void dti_rank_classes_free(dti_rank_classes *c);

#endif
