/* SPDX-License-Identifier: Apache-2.0
 *
 * A small model in stages for tests of pipelines: each stage is x + down(tanh(up(x))), the loss is
 * the sum of the squares of what the last one makes. Stages lie where the schedule has them. */
#ifndef DT_TEST_STAGE_NET_H
#define DT_TEST_STAGE_NET_H

#include <dtensor/pipeline_training.h>

#include "tests/support/dt_test.h"

enum { DT_NET_WIDTH = 8, DT_NET_INNER = 256, DT_NET_ROWS = 4, DT_NET_MOST = 32 };

typedef struct dt_stage_net {
    dt_mesh *mesh, *here; /* all of it, "pp=...", and this rank's stages' */
    dt_pipeline_schedule *schedule;
    dt_layers *layers; /* two of each stage */
    dt_optimizer *optimizer;
    dt_pipeline *pipeline;
    dt_tensor *x[DT_NET_MOST]; /* of each microbatch, on this rank's stages' mesh */
} dt_stage_net;

/* A schedule that has at most DT_NET_MOST microbatches and half as many stages. */
dt_status dt_stage_net_open(dt_mesh *mesh, dt_pipeline_schedule *schedule,
                            const dt_optimizer_options *optimizer, dt_stage_net *out) DT_MUST_USE;
void dt_stage_net_close(dt_stage_net *net);

/* What a stage computes: for a dt_stage_fn to call. */
dt_tensor *dt_stage_net_forward(const dt_stage_net *net, dt_tape *tape, int stage, int microbatch,
                                dt_tensor *x);

/* Opens the pipeline, with these options. */
dt_status dt_stage_net_pipeline(dt_stage_net *net, const dt_pipeline_options *how) DT_MUST_USE;

/* All parameters, whole and one after the other, on every rank: room for
 * 2 n_stages DT_NET_WIDTH DT_NET_INNER. */
dt_status dt_stage_net_read(const dt_stage_net *net, float *values) DT_MUST_USE;

#endif
