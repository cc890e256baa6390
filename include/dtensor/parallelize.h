/* SPDX-License-Identifier: Apache-2.0
 *
 * One call that puts a model on all ranks of a run, in the manner of Parallelformers, and what each
 * rank holds of it. Every rank calls dt_parallelize() where a Python program calls parallelize();
 * the model it gives runs on all of them by dt_generate() and dt_model_forward(), and
 * dt_model_release() ends it: nothing is hijacked, no process is started. docs/policies.md */
#ifndef DT_PARALLELIZE_H
#define DT_PARALLELIZE_H

#include <dtensor/models.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How much rank 0 says through the run's log (dt_run_options.log). What other ranks pass has no
 * effect: it may differ. */
typedef enum dt_verbose {
    DT_VERBOSE_NONE,
    DT_VERBOSE_SIMPLE, /* bytes allocated and reserved, a line per rank */
    DT_VERBOSE_DETAIL  /* also what was loaded how, and which bytes are cut, whole, most at once */
} dt_verbose;

typedef struct dt_parallelize_options {
    size_t size;         /* sizeof(dt_parallelize_options) */
    int n_ranks;         /* that the run has to have (num_gpus); 0: any number */
    bool keep_dtype;     /* compute in the checkpoint's dtype; default */
    dt_dtype dtype;      /* otherwise in this one (fp16: DT_F16) */
    const char *device;  /* that the run has to compute on: "cpu", "cuda"; NULL: what it does */
    const char *backend; /* that has to join its ranks: "local" (threads), "mpi", "sockets"
                          * (torchrun's processes), between GPUs "nccl" or another that
                          * DTENSOR_CUDA_COMM names; NULL: what does */
    dt_verbose verbose;
    const char *mesh;                 /* "dp=2,tp=2", over all ranks; NULL: "tp" of all */
    const char *dim;                  /* mesh dim that styles speak of; default "tp" */
    const dt_plan *plan;              /* NULL: the built-in one */
    const dt_policy *const *policies; /* custom_policies; their rules come before the plan's */
    int n_policies;
    bool sequence_parallel; /* as in dt_load_options, and so are these */
    dt_progress_fn progress;
    void *progress_arg;
    const char *batch_dim;
    const char *plan_name;
    const char *fully_shard;
    const char *weights;
    const char *offload;
} dt_parallelize_options;

#define DT_PARALLELIZE_OPTIONS_INIT                                                               \
    {                                                                                             \
        sizeof(dt_parallelize_options), 0, true, DT_F32, NULL, NULL, DT_VERBOSE_NONE, NULL, "tp", \
            NULL, NULL, 0, false, NULL, NULL, "dp,dp_replicate,dp_shard", NULL, NULL, NULL, NULL  \
    }

/**
 * Loads the model of a Hugging Face folder onto all ranks of the run, cut by plan or policies.
 *
 * Before anything is read, the ranks compare what they were called with: options (but verbose and
 * progress), plan, policies and the folder's config.json have to be the same everywhere. When the
 * weights are read they compare what came of it: every layer's styles and the layout and extents of
 * its parameters, so that styles which were registered differently are found too. If one rank
 * refuses its arguments, or cannot load, all get its words.
 *
 *   rt       of a run; planning without ranks is dt_model_check()
 *   options  NULL for defaults
 *   *out     the model, whose mesh is dt_model_mesh()
 *
 * Collective  every rank of the world. A rank that returns without calling ends the others' wait at
 *             once, one that is busy elsewhere after dt_run_options.timeout_ms; both are named.
 * Ownership   *out is released with dt_model_release().
 * Errors      DT_ERR_ARG          n_ranks or mesh is not the size of the run; an unknown device or
 *                                 backend; a folder that this run holds already: release it, or
 *                                 load a second copy by dt_model_load(); ranks that were called
 *                                 with different arguments
 *             DT_ERR_UNSUPPORTED  a device or backend that this build or run does not have; a dry
 *                                 runtime
 *             DT_ERR_COMM         a rank did not call
 *             otherwise those of dt_model_load()
 */
DT_API DT_MUST_USE dt_status dt_parallelize(dt_runtime *rt, const char *dir,
                                            const dt_parallelize_options *options, dt_model **out);

/* Bytes that a rank holds. Weights are those of one model; the rest is of all the rank's tensors:
 * weights, caches, temporaries. New facts will get a function of their own. */
typedef struct dt_rank_memory {
    int rank;                /* in the world */
    int64_t cut_bytes;       /* weights of which the rank has a part */
    int64_t whole_bytes;     /* weights that it has whole, as others do */
    int64_t allocated_bytes; /* of tensors alive now (memory_allocated) */
    int64_t peak_bytes;      /* the most that ever was */
    int64_t reserved_bytes;  /* taken from the system, kept for reuse included (memory_reserved) */
} dt_rank_memory;

/**
 * What every rank of a model's mesh holds.
 *
 *   ranks  one entry per rank of the mesh, by row-major place; outsiders of the mesh pass NULL
 *
 * Collective  every rank of the mesh: one all-gather of 48 bytes per rank.
 * Errors      DT_ERR_ARG, DT_ERR_COMM; DT_ERR_UNSUPPORTED for a model on a dry mesh
 */
DT_API DT_MUST_USE dt_status dt_model_memory(dt_model *model, dt_rank_memory *ranks);

/* What allocated_bytes are for: the five add up to it. */
typedef struct dt_rank_memory_kinds {
    int rank;
    int64_t weights_bytes;  /* of all models of the rank */
    int64_t caches_bytes;   /* keys and values of states */
    int64_t states_bytes;   /* of optimizers */
    int64_t recorded_bytes; /* kept by passes that are recorded on a GPU, from one to the next */
    int64_t values_bytes;   /* the rest: activations, tensors of the caller's */
    int64_t gathered_bytes; /* parameters of fully sharded layers, whole while they are used */
} dt_rank_memory_kinds;

/**
 * The same by what it is for. On a GPU all of this is memory of the device; scratch of its kernels,
 * workspaces of libraries and what NCCL takes are no tensors and not counted.
 *
 *   ranks  as above
 *
 * Collective  every rank of the mesh: one all-gather of 48 bytes per rank.
 * Errors      as dt_model_memory()
 */
DT_API DT_MUST_USE dt_status dt_model_memory_kinds(dt_model *model, dt_rank_memory_kinds *ranks);

#ifdef __cplusplus
}
#endif
#endif
