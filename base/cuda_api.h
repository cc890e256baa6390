/* SPDX-License-Identifier: Apache-2.0
 *
 * The border between the library and CUDA.
 *
 * The library knows no CUDA. A module (dtensor_cuda.so) is compiled with the toolkit when the build
 * finds one, and opened with dlopen when a run asks for a GPU; this table is all that crosses over.
 * So one binary runs with and without a driver, and the tests put a simulated device in its place
 * that runs the same kernels on the CPU (tests/cuda_sim/).
 *
 * Functions that can fail return 0, or -1 with the reason in the text that why() gives. A dti_cuda
 * is one rank's: one device, one in-order stream, scratch memory. It belongs to the rank's thread;
 * several of one process may lie on one device. What is started on a stream runs in that order,
 * and what is said below to "wait" is all that waits for it. */
#ifndef DTI_CUDA_API_H
#define DTI_CUDA_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DTI_CUDA_API_VERSION = 4,
    DTI_CUDA_TEXT_BYTES = 512,
    DTI_CUDA_MAX_AXES = 8,
    DTI_CUDA_MAX_PEERS = 32, /* terms and results of one reduction kernel */
    DTI_CUDA_ID_BYTES = 128  /* of an NCCL id */
};

#define DTI_CUDA_MODULE_SYMBOL "dti_cuda_module_table"

typedef struct dti_cuda dti_cuda;
typedef struct dti_cuda_event dti_cuda_event;
typedef struct dti_cuda_graph dti_cuda_graph;
typedef struct dti_nccl dti_nccl;

/* Versions are the libraries' numbers: of CUDA 13000 is 13.0; 0: not there, or not built in. */
typedef struct dti_cuda_versions {
    int driver; /* the newest CUDA that the driver can run */
    int runtime;
    int cublas_lt;                       /* 130100 is 13.1.0 */
    int nccl_built, nccl_loaded;         /* 22809 is 2.28.9 */
    char no_device[DTI_CUDA_TEXT_BYTES]; /* why n_devices is 0, or "" */
    int n_devices;
} dti_cuda_versions;

typedef struct dti_cuda_properties {
    char name[128];
    char pci[32]; /* "0000:3b:00.0" */
    int major, minor, n_sms;
    size_t bytes, free_bytes;
    size_t l2_bytes;
} dti_cuda_properties;

typedef enum dti_cuda_memory {
    DTI_CUDA_DEVICE, /* of the device; peers of the process may read it */
    DTI_CUDA_PINNED, /* of the host, at one address for both: kernels read and write it */
    DTI_CUDA_SHARED  /* of the device, fit for collectives of NCCL */
} dti_cuda_memory;

typedef enum dti_cuda_way { DTI_CUDA_UP, DTI_CUDA_DOWN, DTI_CUDA_WITHIN } dti_cuda_way;

/* A strided box, in elements. */
typedef struct dti_cuda_box {
    int n_axes;
    int64_t offset;
    int64_t extent[DTI_CUDA_MAX_AXES];
    int64_t stride[DTI_CUDA_MAX_AXES];
} dti_cuda_box;

/* to[k][to_box] = terms[0][box] (op) terms[1][box] ..., in that order, for every k: the same bits
 * to all; bf16 and f16 in f32, rounded once. dtype and reduce are dt_dtype and dt_reduce; DT_AVG
 * divides by n_terms in the end, integers towards zero. Both boxes have the same extents. Terms and
 * results may lie on other devices within reach. A result may lie where one of the terms does, if
 * its box is the same: an element is written after its terms were read. */
typedef struct dti_cuda_sum {
    int dtype, reduce, n_terms, n_to;
    const void *terms[DTI_CUDA_MAX_PEERS];
    dti_cuda_box box; /* in each term */
    void *to[DTI_CUDA_MAX_PEERS];
    dti_cuda_box to_box; /* in each result */
} dti_cuda_sum;

enum {
    DTI_CUDA_SPIN_RANKS = 8,
    DTI_CUDA_SPIN_HEAD_BYTES = 16 << 10, /* what an area begins with: zeros at first */
    DTI_CUDA_SPIN_ROOM_BYTES = 4 << 20,  /* what comes next: the caller's own */
    DTI_CUDA_SPIN_SUM_BYTES = 8 << 20,   /* of the longest sum, as in vLLM */
    DTI_CUDA_SPIN_FAULT = 2              /* in the stop word: a kernel has given up */
};

/* Ranks of a process whose kernels wait for each other. Each has an area, memory of its device
 * that all reach, of spin_bytes(), its head zeros before the first of them begins; all start the
 * same operations on the same areas in the same order. Kernels end early, without a result, when
 * *stop is not 0 or somebody does not come within limit_ms; then they set *stop, and sync() says
 * who it was. */
typedef struct dti_cuda_circle {
    int rank, size; /* up to DTI_CUDA_SPIN_RANKS */
    void *areas[DTI_CUDA_SPIN_RANKS];
    int names[DTI_CUDA_SPIN_RANKS]; /* what messages call the members */
    uint32_t *stop;                 /* of this rank: pinned */
    int64_t limit_ms;
    bool crowded; /* some of them share a device */
} dti_cuda_circle;

/* recv[i] = the members' send[i] in rank order, as dti_cuda_sum; recv may be send. */
typedef struct dti_cuda_spin_job {
    int dtype, reduce;
    int64_t n;
    const void *send;
    void *recv;
} dti_cuda_spin_job;

/* NCCL, if the module was built with it. A handle belongs to one thread. Nothing here blocks for
 * long: ready() says 1 once what was started before is under way on the stream, 0 not yet, -1 it
 * has failed; until it says 1 nothing else may be started on the handle or its stream. Counts are
 * elements and equal on all ranks. */
typedef struct dti_nccl_calls {
    int (*id)(unsigned char id[DTI_CUDA_ID_BYTES]);
    int (*open)(dti_cuda *c, const unsigned char id[DTI_CUDA_ID_BYTES], int rank, int size,
                dti_nccl **out);
    int (*ready)(dti_nccl *n);
    void (*abort)(dti_nccl *n); /* frees the stream of what waits for others; not for close() */
    int (*finish)(dti_nccl *n); /* begins the end, collective; ready() says when it has come */
    void (*close)(dti_nccl *n); /* frees it, and aborts it first if it has not finished */
    int (*all_reduce)(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype,
                      int reduce);
    int (*all_gather)(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype);
    int (*reduce_scatter)(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype,
                          int reduce);
    int (*broadcast)(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype, int root);
    int (*group_begin)(dti_nccl *n);
    int (*send)(dti_nccl *n, const void *send, int64_t count, int dtype, int peer);
    int (*recv)(dti_nccl *n, void *recv, int64_t count, int dtype, int peer);
    int (*group_end)(dti_nccl *n);
} dti_nccl_calls;

/* What cuDNN did since a device was opened. Calls are those of attention that it could have taken:
 * of many queries, and none that is recorded. */
typedef struct dti_cuda_cudnn_use {
    int64_t n_calls, n_taken;      /* the others waited for a plan that pays, or were refused */
    int64_t n_plans, n_dropped;    /* made; of those and of those that failed */
    char why[DTI_CUDA_TEXT_BYTES]; /* of the last one dropped, or why there is no cuDNN; or "" */
} dti_cuda_cudnn_use;

typedef struct dti_cuda_module {
    int version;
    const char *name; /* "cuda", "simulated" */

    /* --- the machine --------------------------------------------------------------------- */
    void (*versions)(dti_cuda_versions *out); /* never fails: no driver is a fact, not an error */
    int (*properties)(int device, dti_cuda_properties *out);
    int (*open)(int device, dti_cuda **out);
    void (*close)(dti_cuda *c); /* accepts NULL */
    /* From now on c's kernels may read and write memory of `device`, another one or the same. */
    int (*reach)(dti_cuda *c, int device);
    /* Kernels of the module that it has started or recorded; those of libraries do not count. */
    int64_t (*launches)(const dti_cuda *c);

    /* The last failure of this thread. */
    const char *(*why)(void);

    /* --- memory -------------------------------------------------------------------------- */
    int (*alloc)(dti_cuda *c, size_t bytes, dti_cuda_memory kind, void **out);
    void (*release)(dti_cuda *c, dti_cuda_memory kind, void *data);

    /* In order of the stream; pinned memory may stand for a device's. UP from pageable memory has
     * read it when it returns; DOWN into pageable memory waits; both return at once where the host
     * side is pinned. */
    int (*copy)(dti_cuda *c, void *to, const void *from, size_t bytes, dti_cuda_way way);
    int (*clear)(dti_cuda *c, void *to, size_t bytes); /* zeros */

    /* Boxes of equal extents, both on devices that this one can reach. */
    int (*copy_box)(dti_cuda *c, void *to, const dti_cuda_box *to_box, const void *from,
                    const dti_cuda_box *from_box, size_t element_bytes);
    int (*sum)(dti_cuda *c, const dti_cuda_sum *sum);
    /* All ranks of a circle add, or meet: what is started afterwards finds all that was started
     * before by any of them done. */
    size_t (*spin_bytes)(void);
    int (*spin_sum)(dti_cuda *c, const dti_cuda_circle *with, const dti_cuda_spin_job *sum);
    int (*spin_meet)(dti_cuda *c, const dti_cuda_circle *with);
    /* x[i] /= divisor, of n elements; integers towards zero. */
    int (*divide)(dti_cuda *c, void *x, int64_t n, int dtype, int64_t divisor);
    /* n elements of a bit pattern of element_bytes bytes */
    int (*fill)(dti_cuda *c, void *to, int64_t n, const void *element, size_t element_bytes);

    /* --- order --------------------------------------------------------------------------- */
    void *(*stream)(dti_cuda *c);         /* the cudaStream_t; NULL: it failed */
    int (*done)(dti_cuda *c, bool *done); /* is all that was started done; does not wait */
    int (*sync)(dti_cuda *c); /* waits; says what kernels found wrong in contents since the last */
    /* Events are for other threads too: any of them may await one or ask whether it is done, while
     * its owner records; they outlive the dti_cuda that they were made with. */
    int (*event_create)(dti_cuda *c, dti_cuda_event **out);
    void (*event_destroy)(dti_cuda_event *e);
    int (*event_record)(dti_cuda *c, dti_cuda_event *e);
    int (*event_await)(dti_cuda *c, dti_cuda_event *e); /* c's stream goes on after it */
    int (*event_done)(dti_cuda_event *e, bool *done);
    int (*capture_begin)(dti_cuda *c); /* what is started from now on is recorded, not run */
    int (*capture_end)(dti_cuda *c, dti_cuda_graph **out);
    int (*graph_launch)(dti_cuda *c, dti_cuda_graph *graph);
    void (*graph_destroy)(dti_cuda_graph *graph);

    /* --- kernels ------------------------------------------------------------------------- */
    const struct dti_cuda_kernels *kernels; /* of operators; whoever runs these knows them */
    const dti_nccl_calls *nccl;             /* NULL: built without */
    /* Attention by cuDNN where it can: "0", the beginning, "1", "now" or "check" (docs/cuda.md). */
    int (*cudnn_ask)(dti_cuda *c, const char *how);
    bool (*cudnn_use)(const dti_cuda *c, dti_cuda_cudnn_use *out); /* false: nobody asked for it */
} dti_cuda_module;

#ifdef __cplusplus
}
#endif
#endif
