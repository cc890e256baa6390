/* SPDX-License-Identifier: Apache-2.0
 *
 * cuBLASLt for the simulated device: D = op(A) op(B) (+ bias along columns), all column-major, sums
 * in f32. It is as strict as its manual about layouts, alignment and workspace,
 * and has what the library may have: shapes for which it knows no algorithm, and algorithms that it
 * refuses when the product comes.
 *
 * DTENSOR_SIM_LT=none: no algorithm for anything. */
#include "sim.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

using namespace dti_sim;

struct cublasLtContext {
    int device;
};

namespace
{

/* Up to so many columns an algorithm serves fewer than it was asked for with. */
enum { ANY_COLUMNS_BELOW = 512 };

size_t bytes_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

float load(const void *data, cudaDataType_t type, int64_t i)
{
    if (type == CUDA_R_32F) return static_cast<const float *>(data)[i];
    const uint16_t bits = static_cast<const uint16_t *>(data)[i];
    return type == CUDA_R_16F ? dti_f16_value(bits) : __uint_as_float((unsigned)bits << 16);
}

void store(void *data, cudaDataType_t type, int64_t i, float x)
{
    const unsigned u = __float_as_uint(x);

    if (type == CUDA_R_32F)
        static_cast<float *>(data)[i] = x;
    else if (type == CUDA_R_16F)
        static_cast<uint16_t *>(data)[i] = dti_f16_bits(x);
    else
        static_cast<uint16_t *>(data)[i] =
            (uint16_t)(x != x ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* The lowest bit that is set, 256 for none. */
uint64_t alignment(const void *p)
{
    const uint64_t bits = (uint64_t)(uintptr_t)p | 256u;

    return bits & (~bits + 1);
}

bool is_device(const void *p, uint64_t bytes)
{
    const memory_info info = find_memory(p);

    return info.type == cudaMemoryTypeDevice && info.left >= bytes;
}

bool holds(const void *p, const cublasLtMatrixLayout_t l)
{
    const uint64_t elements = l->cols == 0 ? 0 : (uint64_t)l->ld * (l->cols - 1) + l->rows;

    return is_device(p, elements * bytes_of(l->type));
}

/* Rows and columns of op(matrix), and how far its elements lie apart along either. */
struct turned {
    uint64_t rows, cols;
    int64_t down, across;
};

turned turn(cublasOperation_t op, const cublasLtMatrixLayoutOpaque_t &l)
{
    if (op == CUBLAS_OP_N) return { l.rows, l.cols, 1, l.ld };
    return { l.cols, l.rows, l.ld, 1 };
}

/* Do the four layouts make the product of the descriptor? */
bool fit(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    const turned x = turn(op->trans_a, *a), y = turn(op->trans_b, *b);

    return op->compute == CUBLAS_COMPUTE_32F && op->scale == CUDA_R_32F && x.cols == y.rows &&
           d->rows == x.rows && d->cols == y.cols && memcmp(c, d, sizeof *c) == 0 &&
           a->type == b->type && (d->type == a->type || d->type == CUDA_R_32F) &&
           a->ld >= (int64_t)a->rows && b->ld >= (int64_t)b->rows && d->ld >= (int64_t)d->rows;
}

/* One product, as it was asked for. */
struct order {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    const void *A, *B;
    void *D, *workspace;
    uint64_t workspace_bytes;
};

void multiply(const order &o)
{
    const opened devices;
    const turned a = turn(o.op.trans_a, o.a), b = turn(o.op.trans_b, o.b);

    memset(o.workspace, 0xff, o.workspace_bytes); /* whatever it had in mind for it */
    for (uint64_t col = 0; col < o.d.cols; col++)
        for (uint64_t row = 0; row < o.d.rows; row++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < (int64_t)a.cols; k++)
                sum += load(o.A, o.a.type, (int64_t)row * a.down + k * a.across) *
                       load(o.B, o.b.type, k * b.down + (int64_t)col * b.across);
            if (o.op.epilogue == CUBLASLT_EPILOGUE_BIAS)
                sum += load(o.op.bias, o.op.bias_type, (int64_t)row);
            store(o.D, o.d.type, (int64_t)col * o.d.ld + (int64_t)row, sum);
        }
}

template <class T> cublasStatus_t set(T *to, const void *value, size_t bytes)
{
    if (bytes != sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_INVALID_VALUE";
}

const char *cublasLtGetStatusString(cublasStatus_t)
{
    return "as the simulated device says";
}

size_t cublasLtGetVersion(void)
{
    return 130100;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new cublasLtContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t desc, cublasComputeType_t compute,
                                      cudaDataType_t scale)
{
    *desc = { compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, scale, nullptr };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&desc->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&desc->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&desc->bias_type, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                        uint64_t rows, uint64_t cols, int64_t ld)
{
    *layout = { type, rows, cols, ld };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t, const void *value,
                                                size_t bytes)
{
    return set(&layout->cols, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference)
{
    *preference = { 0, 7, 256, 256, 256, 256 };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&preference->scheme, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return set(&preference->align_a, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return set(&preference->align_b, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set(&preference->align_c, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&preference->align_d, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* None for rows that are no multiples of 4 bytes. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *n)
{
    const char *const which = getenv("DTENSOR_SIM_LT");
    const bool bias = op->epilogue == CUBLASLT_EPILOGUE_BIAS;

    *n = 0;
    if (handle == nullptr || wanted < 1 || !fit(op, a, b, c, d)) return CUBLAS_STATUS_INVALID_VALUE;
    if (bias && op->bias_type != d->type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (which != nullptr && strcmp(which, "none") == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->align_a < 4 || p->align_b < 4 || (uint64_t)a->ld * bytes_of(a->type) % 4 != 0 ||
        (uint64_t)b->ld * bytes_of(b->type) % 4 != 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    results[0] = {};
    results[0].algo = { d->rows,
                        d->cols,
                        turn(op->trans_a, *a).cols,
                        p->align_a,
                        p->align_b,
                        p->align_d,
                        bias ? (uint32_t)alignment(op->bias) : 0,
                        p->workspace / 2 };
    results[0].workspaceSize = p->workspace / 2;
    *n = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    const bool bias = op->epilogue == CUBLASLT_EPILOGUE_BIAS;
    const order o = { *op, *a, *b, *d, A, B, D, workspace, algo->workspace };

    if (handle == nullptr || !fit(op, a, b, c, d) || C != D || algo->rows != d->rows ||
        algo->depth != turn(op->trans_a, *a).cols || algo->cols < d->cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (*static_cast<const float *>(alpha) != 1.0f || *static_cast<const float *>(beta) != 0.0f)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (algo->cols != d->cols && algo->cols > ANY_COLUMNS_BELOW) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (workspace_bytes < algo->workspace || !is_device(workspace, algo->workspace) ||
        !holds(A, a) || !holds(B, b) || !holds(D, d) ||
        (bias && !is_device(op->bias, d->rows * bytes_of(op->bias_type))))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (alignment(A) < algo->align_a || alignment(B) < algo->align_b ||
        alignment(D) < algo->align_d || (bias && alignment(op->bias) < algo->align_bias))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    return enqueue(stream, [o] { multiply(o); }) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                : CUBLAS_STATUS_EXECUTION_FAILED;
}
