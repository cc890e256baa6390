/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary position embedding: the frequencies that a config asks for, and the table of a pass. */
#ifndef DTI_ROPE_H
#define DTI_ROPE_H

#include "files/json.h"
#include "models/architectures/builder.h"

/* As "rope_type" of Transformers names them. */
typedef enum dti_rope_type {
    DTI_ROPE_DEFAULT,
    DTI_ROPE_LINEAR,
    DTI_ROPE_DYNAMIC,
    DTI_ROPE_LLAMA3,
    DTI_ROPE_YARN,
    DTI_ROPE_LONGROPE,
    DTI_N_ROPE_TYPES
} dti_rope_type;

typedef struct dti_rope {
    dti_rope_type type;
    int64_t dim; /* columns of a head that rotate */
    double theta;
    double factor;             /* linear, dynamic, llama3, yarn: how far positions are stretched */
    double attention_factor;   /* on cosines and sines */
    double max_positions;      /* dynamic: longer sequences are stretched */
    double original_positions; /* llama3, yarn, longrope: the length of training */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn: turns over the length of training */
    bool truncate;                            /* yarn: to whole columns */
    float *short_factor, *long_factor;        /* longrope [(dim + 1) / 2]: up to
                                               * original_positions, and beyond */
    dt_tensor *inv_freq, *long_inv_freq;      /* once prepared; the second of longrope only */
    double query_growth;      /* queries of position p are multiplied by 1 + this * ln(1 + whole
                                * parts of p / original_positions); 0: they are not */
    int64_t n_query_factors;  /* positions that there are, where some are multiplied by more than
                                * 1; 0: none */
    dt_tensor *query_factors; /* of each position, once prepared; NULL: none */
} dti_rope;

/* How an architecture spells rotary positions. */
typedef struct dti_rope_keys {
    const char *theta_key;   /* at the root */
    double theta;            /* where it is absent */
    const char *of;          /* which layers', of several kinds; NULL: all, or the global ones */
    bool partial;            /* heads may rotate in part (partial_rotary_factor) */
    const char *part_key;    /* of that at the root; NULL: the same word */
    double part;             /* where it is absent; 0: 1 */
    const char *columns_key; /* of so many columns in place of a part; NULL: none */
    int64_t columns;         /* where it is absent */
    bool apart;              /* they are no part of the others of a head */
    bool grows;              /* queries grow with their positions (llama_4_scaling_beta) */
    double original; /* original_max_position_embeddings where the root has none; 0: what the
                            * parameters say, or max_position_embeddings */
} dti_rope_keys;

/* Reads rope_theta with rope_scaling (Transformers 4) or rope_parameters (5); keys NULL: those of
 * Llama. An error leaves nothing to release. */
dt_status dti_rope_read(const dt_config *config, const dti_rope_keys *keys,
                        const dt_model_info *info, dti_rope *out) DT_MUST_USE;

/* The same from the parameters of one kind of layers; `parameters` may be absent. */
dt_status dti_rope_read_parameters(const dt_config *config, const dt_config *parameters,
                                   const dti_rope_keys *keys, const dt_model_info *info,
                                   dti_rope *out) DT_MUST_USE;

/* Of layers that rotate otherwise by kind: full_attention and sliding_attention of rope_parameters
 * (Transformers 5), or rope_scaling (4), which speaks of the full ones. */
dt_status dti_rope_read_kinds(const dt_config *config, const dti_rope_keys *of_global,
                              const dti_rope_keys *of_local, const dt_model_info *info,
                              dti_rope out[2]) DT_MUST_USE;

/* inv_freq[i], i < (dim + 1) / 2, for a sequence of `length` tokens, in the f32 arithmetic of
 * Transformers. */
void dti_rope_frequencies(const dti_rope *rope, int64_t length, float *inv_freq);

/* How yarn stretches cosines and sines where positions are stretched by `factor`. */
double dti_rope_stretch(double factor, double m);

/* The longest sequence of a model whose config says max_positions: dynamic scaling goes on. */
int64_t dti_rope_longest(const dti_rope *rope, int64_t max_positions);

/* longrope: the length beyond which a sequence takes the long factors, from its first token on; 0:
 * another variant. */
int64_t dti_rope_turn(const dti_rope *rope);

/* Whether frequencies are the same at every length. */
bool dti_rope_repeats(const dti_rope *rope);

/* Makes the frequencies as tensors on `mesh`. */
dt_status dti_rope_prepare(dti_rope *rope, dt_mesh *mesh) DT_MUST_USE;
void dti_rope_release(dti_rope *rope);

/* What queries of the pass's tokens are multiplied by, [B, T, 1, 1] in `dtype`; NULL: nothing. */
dt_tensor *dti_rope_query_factors(dt_tape *t, const dti_rope *rope, const dt_model_pass *pass,
                                  dt_dtype dtype);

/* Cosines and sines of the pass's tokens, [B, T, dim] in `dtype`. */
dt_tensor *dti_rope_table(dt_tape *t, const dti_rope *rope, const dt_model_pass *pass,
                          dt_dtype dtype);

#endif
