/* SPDX-License-Identifier: Apache-2.0
 *
 * A number that ranks compare to find out whether they have laid a layer out alike. */
#ifndef DTI_LAYER_HASH_H
#define DTI_LAYER_HASH_H

#include <dtensor/parallel_styles.h>

/* Of all that decides what a layer does, how it lies and what it sends: its kind and spec, its
 * styles with everything they say, the layouts of its parameters. Functions are compared by which
 * of them there are: where they lie in memory differs from process to process, and what they do, as
 * what `user` and `own` point to, no comparison finds out. */
uint64_t dti_layer_hash(const dt_layer *layer);

#endif
