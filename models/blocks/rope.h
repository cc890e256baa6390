/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary position embedding: the frequencies that a config asks for. */
#ifndef DTI_ROPE_H
#define DTI_ROPE_H

#include <dtensor/models.h>

#include "models/checkpoint/json.h"

typedef enum dti_rope_type { DTI_ROPE_DEFAULT, DTI_ROPE_LINEAR, DTI_ROPE_LLAMA3 } dti_rope_type;

typedef struct dti_rope {
    dti_rope_type type;
    double theta;
    double factor;             /* linear, llama3 */
    double low_freq_factor;    /* llama3 */
    double high_freq_factor;   /* llama3 */
    double original_positions; /* llama3 */
} dti_rope;

/* Reads rope_theta with rope_scaling (Transformers 4) or rope_parameters (5). Types that are not
 * built are DT_ERR_UNSUPPORTED by name. */
dt_status dti_rope_read(const dti_json *config, const dt_model_info *info,
                        dti_rope *out) DT_MUST_USE;

/* inv_freq[i], i < dim / 2, in the f32 arithmetic of the reference implementation. */
void dti_rope_frequencies(const dti_rope *rope, int64_t dim, float *inv_freq);

/* The frequencies as a Replicate tensor on `mesh`. */
dt_status dti_rope_tensor(const dti_rope *rope, int64_t dim, dt_mesh *mesh,
                          dt_tensor **out) DT_MUST_USE;

#endif
