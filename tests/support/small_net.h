/* SPDX-License-Identifier: Apache-2.0
 *
 * A language model of a few hundred parameters that is trained in no time: a table tied to its
 * head, a norm, a frozen scale of a user's own kind, two products, one of which has a bias. No
 * extent is even, so every cut is uneven and pieces may be empty. */
#ifndef DT_TEST_SMALL_NET_H
#define DT_TEST_SMALL_NET_H

#include <dtensor/layers.h>
#include <dtensor/optimizers.h>

enum { DT_NET_V = 11, DT_NET_D = 6, DT_NET_F = 15, DT_NET_ROWS = 8, DT_NET_TOKENS = 3 };

/* Its layers on a mesh with or without a dim "tp", with values that depend on the names alone. */
dt_status dt_test_net_create(dt_mesh *mesh, dt_dtype dtype, dt_layers **out);

/* The same, with a plan. */
dt_status dt_test_net_planned(dt_mesh *mesh, const dt_plan *plan, dt_dtype dtype, dt_layers **out);

/* The same, with parameters elsewhere (dt_layers_offload()); NULL: with the others. */
dt_status dt_test_net_away(dt_mesh *mesh, const dt_plan *plan, dt_dtype dtype, const char *offload,
                           dt_layers **out);

/* The loss of rows [first, first + n) of step `step`'s batch, cut over "dp" where the mesh has it:
 * mean over all DT_NET_ROWS rows, of which a pass has its share. */
dt_tensor *dt_test_net_loss(dt_tape *t, dt_layers *net, int64_t step, int64_t first, int64_t n);

/* All values of all parameters and then of the optimizer's state (NULL: none), gathered, one after
 * the other, as f32; *n of them, to be freed with dti_free(). */
dt_status dt_test_net_values(dt_layers *net, dt_optimizer *opt, float **out, int64_t *n);

/* A training: steps of microbatches. */
typedef struct dt_test_training {
    dt_dtype dtype;
    dt_optimizer_options options;
    int steps, passes; /* passes of a step, which divide its rows */
    double lr;
    double scale; /* of every loss; 0: 1 */
    const dt_plan *plan;
    const char *offload; /* of parameters; NULL: none */
    const char *folder;  /* checkpoints go there after half of the steps, and are loaded into layers
                          * and an optimizer that lie in memory, and back; or NULL */
} dt_test_training;

/* One step of it, number `step`, whose passes the tape records. */
dt_status dt_test_net_step(dt_optimizer *opt, dt_tape *t, dt_layers *net,
                           const dt_test_training *how, int step, dt_step_report *report);

enum { DT_NET_STEPS = 20, DT_NET_VALUES = 2000 };

/* What rank 0 has after a training. */
typedef struct dt_test_trained {
    dt_test_training how;
    int64_t n; /* values: of parameters and state */
    float values[DT_NET_VALUES];
    double norms[DT_NET_STEPS];
    int64_t state_bytes;
    int64_t param_bytes; /* of its pieces */
    size_t used, states; /* bytes on its device after the last step: all, and of states */
} dt_test_trained;

/* Runs at most DT_NET_STEPS steps on a mesh, by the options of tests or those that are given; the
 * test fails if one does. */
void dt_test_train(const dt_run_options *options, const char *mesh, const dt_test_training *how,
                   dt_test_trained *out);

/* The same, where a run has to fail so. */
void dt_test_train_fails(const dt_run_options *options, const char *mesh,
                         const dt_test_training *how, dt_status status, const char *says);

/* The same bits; the largest difference, as a share of the largest value. */
bool dt_test_trained_same(const dt_test_trained *a, const dt_test_trained *b);
double dt_test_trained_apart(const dt_test_trained *a, const dt_test_trained *b);

#endif
