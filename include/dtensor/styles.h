/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's vocabulary of tensor-parallel styles, with its layout arguments, as dt_style values for
 * dt_style_register(). The same can be had by name in a plan: "RowwiseParallel(output_layouts=
 * shard(1))".
 *
 * In PyTorch, layouts say what a plain local tensor is taken for. Here every value knows how it
 * lies, so input_layouts is a check: left out, values may come as they like and are moved to where
 * the style needs them; given, a value that comes otherwise is refused by name. There is no
 * use_local_output: dt_tensor_local() is this rank's piece of any tensor.
 *
 * Not collective, no errors: arguments that make no sense are refused by dt_style_register(). */
#ifndef DT_STYLES_H
#define DT_STYLES_H

#include <dtensor/parallel_styles.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is left zero has PyTorch's default. */
typedef struct dt_parallel_args {
    dt_pass input_layouts;  /* how x has to come; DT_PASS_KEEP: anyhow */
    dt_pass output_layouts; /* how y is left; DT_PASS_KEEP: as below */
} dt_parallel_args;

/* ColwiseParallel, for linear layers (weight and bias cut along outputs) and embeddings (columns of
 * the table). x is made whole; y stays cut on its last axis unless output_layouts says more. */
DT_API dt_style dt_colwise_parallel(dt_parallel_args args);

/* RowwiseParallel, for linear layers (weight cut along inputs, bias whole and added once) and
 * embeddings (vocabulary; ids whole). x is cut on its last axis; y is summed to Replicate, or to
 * what output_layouts says: a Shard is one reduce-scatter, DT_PASS_PARTIAL leaves the terms. */
DT_API dt_style dt_rowwise_parallel(dt_parallel_args args);

/* SequenceParallel, for norms and whatever works on each token: parameters whole, x cut along
 * `axis` (1 of [B, T, D]; -8 to 7), y stays so. */
DT_API dt_style dt_sequence_parallel(int axis);

/* One layout for each input or output of a layer or a point; DT_PASS_KEEP for those that stay. */
typedef struct dt_prepare_args {
    dt_passes input_layouts; /* how inputs have to come; n 0: anyhow */
    dt_passes desired_input_layouts;
    dt_passes output_layouts; /* the same of outputs */
    dt_passes desired_output_layouts;
} dt_prepare_args;

/* PrepareModuleInput, PrepareModuleOutput, PrepareModuleInputOutput: parameters stay whole, values
 * are moved to the desired layouts. Those of the other side are not looked at in the first two. */
DT_API dt_style dt_prepare_input(dt_prepare_args args);
DT_API dt_style dt_prepare_output(dt_prepare_args args);
DT_API dt_style dt_prepare_input_output(dt_prepare_args args);

#ifdef __cplusplus
}
#endif
#endif
