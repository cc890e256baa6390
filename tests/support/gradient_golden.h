/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixtures tests/golden/<checkpoint>/gradients.safetensors: Transformers' loss and the gradient
 * of every parameter in f64, and how far ours is from them; and training.safetensors, 20 steps of
 * PyTorch's optimizers. tests/golden/README.md says what is in a file; they are made by
 * tools/make_gradient_golden.py and tools/make_training_golden.py. */
#ifndef DT_TEST_GRADIENT_GOLDEN_H
#define DT_TEST_GRADIENT_GOLDEN_H

#include <dtensor/layers.h>
#include <dtensor/model_training.h>

#include "tests/support/dt_test.h"

enum { DT_GRADIENT_IGNORED = -100, DT_GRADIENT_MAX_TOKENS = 128 };

/* The gradient of one parameter, as far as it is stored. */
typedef struct dt_golden_gradient {
    const char *name; /* of the parameter in the checkpoint's files; borrowed, as `values` */
    int n_axes;
    int64_t shape[4];
    int64_t n;           /* elements */
    int64_t chunk;       /* elements to a value: 1, the gradient itself, or their signed sum */
    const float *values; /* [ceil(n / chunk)] */
    double largest;      /* max |g|, g being Transformers' in f64 */
    double rms;          /* sqrt(mean g^2) */
    double f32_off;      /* max |g in f32 - g|: what f32 itself comes to */
    double bf16_rms;     /* rms of (g in bf16 - g) */
    double bf16_max;     /* max |g in bf16 - g| */
} dt_golden_gradient;

/* One case of a checkpoint. */
typedef struct dt_gradient_golden {
    char folder[DT_TEST_PATH_BYTES]; /* the checkpoint's */
    int64_t rows, length;
    int32_t tokens[DT_GRADIENT_MAX_TOKENS];  /* [rows, length] */
    int32_t targets[DT_GRADIENT_MAX_TOKENS]; /* to be predicted there, or DT_GRADIENT_IGNORED */
    int64_t n_valid;                         /* targets that are not ignored */
    double loss_f32, loss_bf16, loss_f64;    /* means over those */
    size_t n_gradients;
    dt_golden_gradient *gradients; /* by name, in the order of their bytes */
    char *names;
    float *values;
} dt_gradient_golden;

/* ("llama/uneven", "short" or "long"). It is to be closed after an error too. */
dt_status dt_gradient_golden_open(const char *fixture, const char *which,
                                  dt_gradient_golden *out) DT_MUST_USE;
void dt_gradient_golden_close(dt_gradient_golden *golden);

/* By the parameter's name; NULL if there is none. */
const dt_golden_gradient *dt_gradient_golden_find(const dt_gradient_golden *golden,
                                                  const char *name);

/* Where a parameter's values stand in the checkpoint's files: one tensor, or several of experts. */
typedef dt_status (*dt_golden_fn)(void *arg, const dt_golden_gradient *theirs, const float *ours);

/* Calls fn for each tensor of the fixture that parameter `param` of a layer is made of, with its
 * part of `ours`, all of the parameter. */
dt_status dt_golden_each(const dt_gradient_golden *golden, const dt_param_info *info,
                         const float *ours, dt_golden_fn fn, void *arg) DT_MUST_USE;

/* How a model makes gradients. */
typedef struct dt_gradient_scene {
    dt_dtype dtype;
    bool sequence_parallel;
    dt_recomputed recompute;
    int64_t chunk;
    double factor; /* of the gradients, before they are compared: 1, or what must be seen */
    double *total; /* in bf16 squares and numbers of all; rank 0 adds. NULL: nobody asks */
} dt_gradient_scene;

/* Loads the checkpoint of a case on each of the meshes, which end with NULL, by the options of
 * tests or those that are given, and compares loss and gradients; the test fails where they are
 * further off than they may be. */
void dt_gradient_golden_check(const char *fixture, const char *which, const char *const *meshes,
                              const dt_run_options *options, const dt_gradient_scene *how);

enum { DT_TRAINING_STEPS = 20 };

/* One case of training: "sgd" or "adamw". In f32, and in f64 to know how far off that is. */
typedef struct dt_training_golden {
    dt_gradient_golden parameters; /* as `gradients`; of each bf16_rms and bf16_max are how far it
                                    * has come: of (p - p at the beginning); folder; no text */
    int64_t rows, length;          /* of a step */
    int32_t *tokens; /* [DT_TRAINING_STEPS * rows * length + 1], windows as they are */
    double lr;
    double loss_f32[DT_TRAINING_STEPS], loss_f64[DT_TRAINING_STEPS];
    double norm_f32[DT_TRAINING_STEPS], norm_f64[DT_TRAINING_STEPS]; /* before clipping */
} dt_training_golden;

/* As dt_gradient_golden_open(). */
dt_status dt_training_golden_open(const char *fixture, const char *which,
                                  dt_training_golden *out) DT_MUST_USE;
void dt_training_golden_close(dt_training_golden *golden);

/* max |ours - theirs| / max |theirs|, over what is stored: elements, or signed sums of `chunk` of
 * them, so an element that is off by more than the bound shows in its sum, and so do many that are
 * off by less. `ours` has the parameter's n elements in row-major order. A gradient of zeros must
 * be zeros; what is not finite is infinitely far. */
double dt_golden_gradient_off_f32(const dt_golden_gradient *theirs, const float *ours);

/* The rms of (ours in bf16 - theirs in f64), over that of theirs in bf16. From m stored sums ours
 * is estimated, to within 1 / sqrt(2 m). */
double dt_golden_gradient_off_bf16(const dt_golden_gradient *theirs, const float *ours);

#endif
