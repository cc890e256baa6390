/* SPDX-License-Identifier: Apache-2.0
 *
 * generation_config.json: what a checkpoint wants of generation. */
#ifndef DTI_GENERATION_CONFIG_H
#define DTI_GENERATION_CONFIG_H

#include <dtensor/generation.h>

#include "base/memory.h"
#include "files/json.h"

enum { DTI_LEFT_OUT_KEYS_BYTES = 256 };

typedef struct dti_generation_config {
    dt_generate_options options;            /* defaults, with what the file says over them */
    dti_arena arena;                        /* of the lists in it */
    char left_out[DTI_LEFT_OUT_KEYS_BYTES]; /* "guidance_scale, top_h": set there, not known here */
    uint64_t hash;                          /* of the file; 0: there is none */
} dti_generation_config;

/* Reads all keys but eos_token_id. Freed with dti_generation_config_free() in any case. Errors:
 * DT_ERR_FORMAT a value of another kind or out of its range. */
dt_status dti_generation_config_read(const dti_json *config,
                                     dti_generation_config *out) DT_MUST_USE;
void dti_generation_config_free(dti_generation_config *config); /* accepts a zeroed one */

/* The same of one that was allocated, and its memory; accepts NULL. */
void dti_generation_config_release(dti_generation_config **config);

#endif
