/* SPDX-License-Identifier: Apache-2.0
 *
 * What config.json files of decoder models have in common, beside dtensor/architectures.h. */
#ifndef DTI_CONFIG_H
#define DTI_CONFIG_H

#include <dtensor/architectures.h>

#include "files/json.h"

enum { DTI_CONFIG_MAX_EXTENT = 1 << 30, DTI_CONFIG_MAX_LAYERS = 4096 };

/* What the root of a multimodal config.json says instead of its text_config: dtype, special tokens,
 * tying; and refuses quantised checkpoints. */
dt_status dti_config_outer(const dt_config *root, dt_model_info *info) DT_MUST_USE;

/* The checkpoint's dtype: "dtype" (Transformers 5) or "torch_dtype"; DT_N_DTYPES where
 * neither stands, then the weights decide. */
dt_status dti_config_dtype(const dt_config *config, dt_dtype *out) DT_MUST_USE;

/* "eos_token_id": one id, a list, or none. */
dt_status dti_config_eos(const dt_config *config, dt_model_info *info) DT_MUST_USE;

/* "pad_token_id" as dt_layer_spec.padding: one more than the id, 0 where it is null or no id of the
 * vocabulary, `fallback` where it is absent. Negative ones count from the end, as in PyTorch. */
dt_status dti_config_padding(const dt_config *config, int64_t fallback, int64_t vocab,
                             int64_t *out) DT_MUST_USE;

/* A small positive number such as rms_norm_eps. */
dt_status dti_config_eps(const dt_config *config, const char *key, double fallback,
                         float *out) DT_MUST_USE;

/* Refuses a config whose `key` (default `fallback`) is not the one word that is supported. */
dt_status dti_config_word(const dt_config *config, const char *key, const char *fallback,
                          const char *supported) DT_MUST_USE;

/* "sliding_window": keys that a query sees, itself included; null: 0, no window. */
dt_status dti_config_window(const dt_config *config, int64_t fallback, int64_t *out) DT_MUST_USE;

/* "layer_types": an array with a word per layer, or absent, or null. */
dt_status dti_config_layer_types(const dt_config *config, int64_t n_layers,
                                 dt_config *types) DT_MUST_USE;

/* What keys of windows come to, whichever they are, for a run that has to know its model again:
 * they are read quietly (files/json.h), and each layer's window, 0 for none, is said here. */
dt_status dti_config_say_window(const dt_config *config, int64_t i, int64_t window) DT_MUST_USE;

/* Whether layer i has a window: as its word in `types` says; *slides stays where there are none. */
dt_status dti_config_slides(const dt_config *types, int64_t i, bool *slides) DT_MUST_USE;

#endif
