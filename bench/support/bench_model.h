/* SPDX-License-Identifier: Apache-2.0
 *
 * Llama checkpoints of any size with random weights, in a folder that goes away at the end. */
#ifndef DT_BENCH_MODEL_H
#define DT_BENCH_MODEL_H

#include <dtensor/models.h>

#include "base/error.h"
#include "bench/support/program.h"

typedef struct bench_shapes {
    int64_t hidden, layers, heads, kv_heads, head_dim, ff, vocab, positions;
    dt_dtype dtype;         /* of the file */
    const char *model_type; /* "llama", "qwen3" */
    bool tied;              /* the head is the embedding */
} bench_shapes;

/* Llama-3.2-1B: 2.47 GB in bf16, its head tied to the embedding. */
extern const bench_shapes bench_llama_1b;
extern const bench_shapes bench_llama_tiny; /* for --quick */

enum { BENCH_PATH_BYTES = 1024 };

typedef struct bench_folder {
    char path[BENCH_PATH_BYTES];
    char weights[BENCH_PATH_BYTES]; /* its one file of weights, where there is one */
    bool made;                      /* by us: removed when it is closed */
} bench_folder;

/* `model` NULL: writes a checkpoint below $TMPDIR or /tmp and waits until it is on the disk.
 * Otherwise that folder is used. An interrupted program removes what it wrote, too. */
dt_status bench_folder_open(const char *model, const bench_shapes *shapes,
                            bench_folder *out) DT_MUST_USE;

/* A folder with a config.json alone, for dt_model_create_random(). */
dt_status bench_config_open(const bench_shapes *shapes, bench_folder *out) DT_MUST_USE;

/* Removes the folder if this program made it, unless `keep`: then it prints where it is. */
void bench_folder_close(bench_folder *folder, bool keep);

/* On every rank of common->mesh, with a model of these shapes and random weights. */
typedef dt_status (*bench_model_main)(dt_runtime *rt, dt_model *m, void *arg);
dt_status bench_on_model(const bench_common *common, const bench_shapes *shapes,
                         bench_model_main model_main, void *arg) DT_MUST_USE;

#endif
