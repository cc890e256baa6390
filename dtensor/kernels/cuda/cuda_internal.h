/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the CUDA module: what a rank's dti_cuda holds, and how functions say what went wrong. C11
 * and C++14, for gcc, nvcc and the simulated device alike. */
#ifndef DTI_CUDA_INTERNAL_H
#define DTI_CUDA_INTERNAL_H

#include <cuda_runtime_api.h>

#include <dtensor/ops.h>

#include "dtensor/device/cuda_kernels.h"
#include "dtensor/kernels/attrs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What kernels find wrong in contents. The first one wins; sync() turns it into words. */
typedef enum dti_cuda_fault {
    DTI_CUDA_FINE,
    DTI_CUDA_BAD_POSITION,    /* value is a position, limit the number of rows of the cache */
    DTI_CUDA_BAD_EXPERT,      /* value is an expert, limit their number */
    DTI_CUDA_TWICE_EXPERT,    /* value is an expert, limit the token that names it twice */
    DTI_CUDA_BAD_TARGET,      /* value is a target, limit the number of entries of the vocabulary */
    DTI_CUDA_FALLING_SEGMENT, /* value is one, limit the one behind it */
    DTI_CUDA_BAD_SEQUENCE,    /* value is one, limit the number of rows of the table */
    DTI_CUDA_BAD_BLOCK,       /* value is a block of keys, limit their number */
    DTI_CUDA_LATE_RANK,       /* value is a rank, limit in ms, number the operation */
    DTI_CUDA_OTHER_CALL       /* value is a rank, number the operation */
} dti_cuda_fault;

typedef struct dti_cuda_fault_word {
    int fault; /* dti_cuda_fault */
    int pad;
    long long value;
    long long limit;
    long long number;
} dti_cuda_fault_word;

struct dti_gemm_plans;  /* gemm_lt.c */
struct dti_cudnn_state; /* attention_cudnn.c */

struct dti_cuda {
    int device, n_sms;
    bool capturing;
    int64_t n_launches; /* of DTI_LAUNCH */
    cudaStream_t stream;
    void *scratch; /* of kernels, in order of the stream */
    size_t scratch_bytes;
    void *old_scratch;          /* outgrown, but named by kernels that wait and by graphs; a list */
    dti_cuda_fault_word *fault; /* pinned, written by kernels */
    struct dti_cuda_staging *staging; /* of pageable memory; NULL until the first such copy */
    struct dti_gemm_plans *gemm;      /* of gemm_lt.c; NULL until the first large product */
    struct dti_cudnn_state *cudnn;    /* of attention_cudnn.c; NULL: nobody asked for it */
};

/* Sets what why() says and returns -1. */
int dti_cuda_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* 0, or -1 with the CUDA error's name and text behind `what`. */
int dti_cuda_check(cudaError_t error, const char *what);

/* Makes c's device the calling thread's. Every slot of the module begins with it. */
int dti_cuda_enter(const dti_cuda *c);

/* Whether the launch of a kernel was accepted. */
int dti_cuda_launched(const char *kernel);

/* Scratch memory of at least `bytes`, 256-byte aligned: for kernels that are started before the
 * next call. It grows and never shrinks; what it outgrows stays until c is closed. */
int dti_cuda_scratch(dti_cuda *c, size_t bytes, void **out);

/* y [m, n] = x [m, k] w [n, k]^T (+ bias [n]), row-major, f32 accumulation, one rounding. x_turned:
 * x lies as [k, m]; w_turned: w as [k, n]; then there is no bias. dtype is x's, w's and bias's;
 * out_dtype that, or f32. By skinny.cu, gemm_lt.c, gemm_plain.cu or matmul.cu, as linear.c says. */
typedef struct dti_cuda_product {
    int64_t m, n, k;
    const void *x, *w, *bias; /* bias: or NULL */
    void *y;
    int dtype, out_dtype;
    bool x_turned, w_turned;
} dti_cuda_product;

int dti_cuda_gemm(dti_cuda *c, const dti_cuda_product *p);
void dti_cuda_gemm_close(dti_cuda *c);

/* What the module needs to know of dtypes without the library. */
static inline size_t dti_cuda_dtype_bytes(int dtype)
{
    switch (dtype) {
    case DT_BF16:
    case DT_F16:
        return 2;
    case DT_F32:
    case DT_I32:
        return 4;
    case DT_F64:
    case DT_I64:
        return 8;
    default:
        return dtype == DT_U8 ? 1 : 0;
    }
}

static inline const char *dti_cuda_dtype_name(int dtype)
{
    switch (dtype) {
    case DT_F32:
        return "f32";
    case DT_BF16:
        return "bf16";
    case DT_F16:
        return "f16";
    case DT_F64:
        return "f64";
    case DT_I32:
        return "i32";
    case DT_I64:
        return "i64";
    default:
        return dtype == DT_U8 ? "u8" : "?";
    }
}

static inline int64_t dti_cuda_count(const dt_local *x)
{
    int64_t n = 1;

    for (int a = 0; a < x->n_axes; a++) n *= x->shape[a];
    return n;
}

#ifdef __cplusplus
}
#endif
#endif
