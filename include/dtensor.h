/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor: distributed tensors for C. */
#ifndef DTENSOR_H
#define DTENSOR_H

#include <dtensor/architectures.h>
#include <dtensor/async.h>
#include <dtensor/base.h>
#include <dtensor/calibrate.h>
#include <dtensor/channels.h>
#include <dtensor/chat.h>
#include <dtensor/checkpoints.h>
#include <dtensor/collectives.h>
#include <dtensor/config.h>
#include <dtensor/devices.h>
#include <dtensor/dlpack.h>
#include <dtensor/engine.h>
#include <dtensor/expert_loads.h>
#include <dtensor/factories.h>
#include <dtensor/generation.h>
#include <dtensor/gradients.h>
#include <dtensor/half.h>
#include <dtensor/hub.h>
#include <dtensor/inspect.h>
#include <dtensor/kinds.h>
#include <dtensor/layers.h>
#include <dtensor/limits.h>
#include <dtensor/mesh.h>
#include <dtensor/model_training.h>
#include <dtensor/models.h>
#include <dtensor/modules.h>
#include <dtensor/op_rows.h>
#include <dtensor/ops.h>
#include <dtensor/ops_backward.h>
#include <dtensor/ops_loss.h>
#include <dtensor/optimizers.h>
#include <dtensor/parallel_styles.h>
#include <dtensor/parallelize.h>
#include <dtensor/pipeline.h>
#include <dtensor/pipeline_training.h>
#include <dtensor/placements.h>
#include <dtensor/planner.h>
#include <dtensor/plans.h>
#include <dtensor/policy.h>
#include <dtensor/predict.h>
#include <dtensor/serve.h>
#include <dtensor/service.h>
#include <dtensor/surroundings.h>
#include <dtensor/tensor.h>
#include <dtensor/timeline.h>
#include <dtensor/token_files.h>
#include <dtensor/tokenizer.h>
#include <dtensor/topology.h>
#include <dtensor/training_checkpoints.h>
#include <dtensor/training_data.h>
#include <dtensor/weights.h>

#endif
