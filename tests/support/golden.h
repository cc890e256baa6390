/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixtures of tests/golden/: what Transformers made of a checkpoint, and whether ours agrees by
 * the measures of docs/numerics.md. tools/make_golden.py makes them. */
#ifndef DT_TEST_GOLDEN_H
#define DT_TEST_GOLDEN_H

#include <dtensor/generation.h>

#include "tests/support/dt_test.h"

enum { DT_GOLDEN_GREEDY = 40, DT_GOLDEN_PROMPT = 64, DT_GOLDEN_FIXTURES = 26, DT_GOLDEN_ALL = 93 };

/* All checkpoints: "llama/uneven". The first DT_GOLDEN_FIXTURES have gradients, too. */
extern const char *const dt_golden_fixtures[DT_GOLDEN_ALL];

/* What a fixture's expected.safetensors holds. */
typedef struct dt_golden {
    char folder[DT_TEST_PATH_BYTES];
    dt_dtype dtype;         /* of this run */
    bool sequence_parallel; /* in this run */
    int n_greedy;           /* tokens to compare in this run, at most DT_GOLDEN_GREEDY */
    int64_t n_prompt;
    int64_t vocab;
    int32_t prompt[DT_GOLDEN_PROMPT];
    int32_t greedy[DT_GOLDEN_GREEDY];
    const dt_policy *policy; /* to load with, or NULL */
    const dt_plan *plan;     /* the same */
    const char *plan_name;   /* the same */
    float *f32;              /* [n_prompt, vocab] */
    float *bf16;             /* the same in bf16, widened */
} dt_golden;

/* "llama/uneven", to run in f32 with all of its tokens. */
dt_status dt_golden_open(const char *fixture, dt_golden *out) DT_MUST_USE;
void dt_golden_close(dt_golden *golden);

/* A body for ranks, with a dt_golden: logits of the prompt, the same bits twice, in f32 tokens. */
dt_status dt_golden_matches(dt_mesh *mesh, const void *golden);

/* It on the ranks of a mesh with options of one's own; the test fails if they do not match. */
void dt_golden_check(const char *fixture, const char *mesh, const dt_run_options *options,
                     const dt_golden *golden);

#endif
