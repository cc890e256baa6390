/* SPDX-License-Identifier: Apache-2.0
 *
 * Layers with parameters, and what a forward pass of them should have moved. */
#ifndef DT_TEST_LAYERS_H
#define DT_TEST_LAYERS_H

#include <dtensor/parallel_styles.h>

/* Extents of a parameter, n_axes of them. */
void dt_test_param_shape(const dt_param_info *info, int64_t shape[DT_PARAM_MAX_AXES]);

/* Gives a parameter the whole value `values`, row-major, the same on every rank, in `dtype` and cut
 * as the layer's styles say. */
dt_status dt_test_set_param(dt_mesh *mesh, dt_layer *layer, int param, dt_dtype dtype,
                            const float *values);

/* All parameters of all layers, random: parameter p of layer i from seed + 2 i + p. */
dt_status dt_test_fill_layers(dt_mesh *mesh, dt_layers *layers, dt_dtype dtype, uint32_t seed);

/* Does `how` say so? `axis` counts of DT_LAY_SHARD alone. */
bool dt_test_lies(dt_lay how, dt_lay_kind kind, int axis);

/* A move over the only mesh dim of a value that is cut in even chunks. */
typedef struct dt_test_move {
    dt_comm_kind kind; /* DT_N_COMM_KINDS: nothing moves */
    int n_axes;
    int64_t shape[DT_MAX_AXES]; /* of the whole value */
    int from, to;               /* the axis that is cut before and after; -1: none */
    int64_t each;               /* bytes of an element on its way */
} dt_test_move;

/* Elements that coordinate `me` of p ranks holds of `shape` when `axis` is cut. */
int64_t dt_test_piece(const int64_t *shape, int n_axes, int axis, int p, int me);

/* The collective that p ranks make of it, and what rank `me` receives. Where scattering a sum would
 * cost more than twice the value (few rows on many ranks), it is all-reduced and sliced. */
dt_comm_kind dt_test_move_kind(const dt_test_move *move, int p);
int64_t dt_test_move_bytes(const dt_test_move *move, int p, int me);

/* The tape made this move and nothing else, by number and bytes of collectives; on one rank
 * nothing. */
dt_status dt_test_expect_move(const dt_tape *t, const dt_mesh *mesh, const dt_test_move *move);

/* All counters are those of an earlier run. */
dt_status dt_test_expect_counts(const dt_tape *t, const dt_comm_counter want[DT_N_COMM_KINDS]);

#endif
