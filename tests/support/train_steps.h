/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of training, the same on every mesh: a checkpoint, a row of tokens in windows, an
 * optimizer; and faults that a comparison of two runs must see. */
#ifndef DT_TEST_TRAIN_STEPS_H
#define DT_TEST_TRAIN_STEPS_H

#include <dtensor/model_training.h>
#include <dtensor/optimizers.h>
#include <dtensor/pipeline_training.h>

#include "tests/support/dt_test.h"

enum { DT_TEST_MAX_STEPS = 50 };

/* What goes wrong in a run. */
typedef enum dt_test_fault {
    DT_FAULT_NONE,
    DT_FAULT_SCALED,   /* the gradient of one parameter is twice what it is */
    DT_FAULT_LOST_SUM, /* that gradient is the first rank's own: others' terms are not added */
    DT_FAULT_SWAPPED,  /* the last microbatch of step 4 and the first one of step 5 change places */
    DT_FAULT_MEANS     /* microbatches count alike, however many of their targets do */
} dt_test_fault;

/* Where a run is: its model is loaded; all passes of a step are through; the step is done. */
typedef enum dt_test_moment { DT_TEST_LOADED, DT_TEST_PASSED, DT_TEST_STEPPED } dt_test_moment;

typedef dt_status (*dt_test_told)(void *arg, dt_test_moment moment, int step, dt_model *model,
                                  dt_optimizer *optimizer);

typedef struct dt_test_steps {
    const char *folder; /* of the checkpoint, loaded in f32 */
    bool bf16;          /* or in bf16 */
    uint64_t random;    /* seed of the model, of whose folder config.json counts alone; 0: none */
    const int32_t *tokens; /* window i is tokens i T to i T + T - 1, its targets are one further */
    int64_t rows, length;  /* windows of a step, T */
    int steps;             /* at most DT_TEST_MAX_STEPS */
    int first;             /* the first of them that is done */
    int microbatches;      /* of a step; its rows in order, so many after the other */
    const char *schedule;  /* of a pipeline over the mesh dim "pp"; NULL: none */
    int stages_per_rank;   /* of it; 0: as usual */
    const char *stages;    /* as in dt_load_options */
    double lr;
    dt_optimizer_options optimizer;
    dt_recomputed recompute;
    bool sequence_parallel;
    const char *fully_shard; /* as in dt_load_options */
    bool masked;             /* the first r / rows targets of row r do not count */
    dt_test_fault fault;
    const char
        *spoiled; /* layer whose parameter spoiled_param has the fault; NULL: the parameter in
                          * the middle of those that are trained */
    int spoiled_param;
    dt_test_told told; /* at each moment, by every rank; NULL: nobody is */
    void *told_arg;
} dt_test_steps;

typedef struct dt_test_losses {
    double loss[DT_TEST_MAX_STEPS]; /* sum of the microbatches' */
    double norm[DT_TEST_MAX_STEPS];
    dt_pipeline_result last; /* of the last step, on this rank; in one piece its `forward`,
                              * `backward` and `kept_bytes` alone */
} dt_test_losses;

/* The settings of tools/make_training_golden.py: "sgd" or "adamw". */
dt_optimizer_options dt_test_optimizer(const char *which);

/* The schedule of a run over p ranks of "pp", and its stages as options of a load; NULL and nothing
 * of one in one piece. */
dt_status dt_test_plan_stages(int p, const dt_test_steps *t, dt_load_options *load,
                              dt_pipeline_schedule **out) DT_MUST_USE;

/* Loads, trains, hands out the model, which the caller releases. Collective over the mesh. */
dt_status dt_test_train_model(dt_mesh *mesh, const dt_test_steps *t, dt_test_losses *out,
                              dt_model **model) DT_MUST_USE;

#endif
