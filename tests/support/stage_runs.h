/* SPDX-License-Identifier: Apache-2.0
 *
 * Trainings of models in stages and in one piece that are held against each other: losses, norms of
 * gradients, parameters and the optimizer's state. */
#ifndef DT_TEST_STAGE_RUNS_H
#define DT_TEST_STAGE_RUNS_H

#include "tests/support/train_steps.h"

enum { DT_STAGED_TENSORS = 512, DT_STAGED_RANKS = 16, DT_STAGED_LENGTH = 5 };

typedef struct dt_staged {
    const char *fixture;   /* "deep": a model of eight small blocks, "deep tied": one whose head is
                            * its embedding; "random NAME": of the configuration of a checkpoint of
                            * tests/golden; or its NAME */
    const char *mesh;      /* at most DT_STAGED_RANKS ranks */
    const char *schedule;  /* NULL: in one piece */
    const char *stages;    /* as in dt_load_options */
    const char *optimizer; /* "sgd" or "adamw", which NULL is */
    int stages_per_rank, microbatches;
    int zero;  /* 3: fully sharded */
    int steps; /* 0: 3 */
    int first; /* of them; where there is none left it comes to what is loaded */
    int64_t bucket_bytes;
    bool sequence_parallel;
    bool bf16; /* without masters, rounded at random */
    dt_recomputed recompute;
    dt_test_fault fault;
    const char *spoiled; /* layer that has it, NULL: one in the middle */
    dt_test_told told;   /* by every rank; NULL: nobody is */
    void *told_arg;

    /* What it comes to, where rank 0 is: all parameters, then the state, whole. */
    dt_test_losses losses;
    int n, n_parameters; /* tensors */
    int64_t ends[DT_STAGED_TENSORS];
    float *values;
    dt_pipeline_result last[DT_STAGED_RANKS]; /* of each rank */
} dt_staged;

/* What it asks of a training; `folder` is room for what it is of. */
dt_test_steps dt_staged_steps(const dt_staged *run, char folder[DT_TEST_PATH_BYTES]);

/* Trains; the test fails if that does, or if two copies of a parameter or of its state differ in a
 * bit. What it comes to is released with dt_staged_free(). */
void dt_staged_train(dt_staged *run);
void dt_staged_free(dt_staged *run);

/* How far two runs are apart: of losses and norms, relative; of parameters and of state, of the
 * largest element of each. */
typedef struct dt_staged_gap {
    double loss, norm, parameter, state;
    bool same; /* no bit differs */
} dt_staged_gap;

/* From step `first` of both on, and at the end. The test fails if there is nothing to compare. */
dt_staged_gap dt_staged_apart(const dt_staged *a, const dt_staged *b);

/* Says what a run is, with how far it is from another, and fails the test. */
void dt_staged_fail(const char *file, int line, const dt_staged *run, const dt_staged *other,
                    const dt_staged_gap *gap);

#endif
