/* SPDX-License-Identifier: Apache-2.0
 *
 * A graph of cuDNN's, computed node by node as its descriptors say, in the types that they name.
 * Nothing here knows attention, so shapes, strides, masks and pointers are those that the library
 * would see. Rows of a result behind their length are junk, and tiles of the last product go beyond
 * its length, with weights of zero. */
#include "cudnn_objects.h"
#include "sim.h"

#include <cmath>

namespace dti_sim
{

double load(const void *data, cudnnDataType_t type, int64_t i)
{
    switch (type) {
    case CUDNN_DATA_HALF:
        return dti_f16_value(static_cast<const uint16_t *>(data)[i]);
    case CUDNN_DATA_BFLOAT16:
        return __uint_as_float((unsigned)static_cast<const uint16_t *>(data)[i] << 16);
    case CUDNN_DATA_INT32:
        return static_cast<const int32_t *>(data)[i];
    default:
        return static_cast<const float *>(data)[i];
    }
}

namespace
{

enum { TILE = 256 };

uint16_t bf16_bits(float x)
{
    const unsigned u = __float_as_uint(x);

    return (uint16_t)(x != x ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* x as a tensor of its type holds it. */
double rounded(double x, cudnnDataType_t type)
{
    switch (type) {
    case CUDNN_DATA_HALF:
        return dti_f16_value(dti_f16_bits((float)x));
    case CUDNN_DATA_BFLOAT16:
        return __uint_as_float((unsigned)bf16_bits((float)x) << 16);
    case CUDNN_DATA_FLOAT:
        return (float)x;
    default:
        return x;
    }
}

double compute(cudnnPointwiseMode_t mode, double x, double y)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + y;
    case CUDNN_POINTWISE_SUB:
        return x - y;
    case CUDNN_POINTWISE_MUL:
        return x * y;
    case CUDNN_POINTWISE_DIV:
        return x / y;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_CMP_GT:
        return x > y;
    case CUDNN_POINTWISE_CMP_GE:
        return x >= y;
    case CUDNN_POINTWISE_CMP_LT:
        return x < y;
    default:
        return x != 0.0 && y != 0.0; /* LOGICAL_AND */
    }
}

} // namespace

void run::multiply(const object &node)
{
    const object &ta = *node.linked(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    const object &tb = *node.linked(CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    const object &tc = *node.linked(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const std::vector<double> &a = elements(ta), &b = elements(tb);
    const shape sa(ta), sb(tb), sc(tc);
    const int64_t m = length(node, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
    const int64_t n = length(node, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
    const int64_t k = length(node, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
    const int64_t depth = k < sa.of[3] - TILE ? (k + TILE - 1) / TILE * TILE : sa.of[3];
    std::vector<double> c((size_t)sc.count(), 0.0);

    for (int64_t i = 0; i < sc.count(); i++) {
        const int64_t col = i % sc.of[3], row = i / sc.of[3] % sc.of[2];
        const int64_t head = i / sc.of[3] / sc.of[2];
        const double *const x = &a[(size_t)((head * sa.of[2] + row) * sa.of[3])];
        const double *const y = &b[(size_t)(head / (sc.of[1] / sb.of[1]) * sb.of[2] * sb.of[3])];
        double sum = 0.0;
        if (row >= m || col >= n) continue;
        for (int64_t j = 0; j < depth; j++) sum += x[j] * y[j * sb.of[3] + col];
        c[(size_t)i] = rounded(sum, data_type(tc));
    }
    made[id_of(tc)] = c;
    if (!tc.value<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) store(tc, m);
}

void run::point(const object &node)
{
    const object &how = *node.linked(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = how.value<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const int64_t axis = how.value<int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
    const object &tx = *node.linked(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const object *const tb = node.linked(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const object *const tt = node.linked(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const object &ty = *node.linked(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    const shape sy(ty), sx(tx), sb(tb != nullptr ? *tb : tx), st(tt != nullptr ? *tt : tx);
    const std::vector<double> &x = elements(tx), &b = elements(tb != nullptr ? *tb : tx);
    const std::vector<double> &t = elements(tt != nullptr ? *tt : tx);
    std::vector<double> y((size_t)sy.count());

    for (int64_t i = 0; i < sy.count(); i++) {
        const double xi = x[(size_t)sx.at(sy, i)], bi = b[(size_t)sb.at(sy, i)];
        double value;
        if (mode == CUDNN_POINTWISE_GEN_INDEX)
            value = (double)(axis == 2 ? i / sy.of[3] % sy.of[2] : i % sy.of[3]);
        else if (mode == CUDNN_POINTWISE_BINARY_SELECT)
            value = t[(size_t)st.at(sy, i)] != 0.0 || is_told("wrong") ? xi : bi;
        else
            value = compute(mode, xi, bi);
        y[(size_t)i] = rounded(value, data_type(ty));
    }
    made[id_of(ty)] = y;
}

/* Along the last axis. */
void run::reduce(const object &node)
{
    const object &how = *node.linked(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    const auto op = how.value<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
    const object &tx = *node.linked(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    const object &ty = *node.linked(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    const shape sx(tx), sy(ty);
    const std::vector<double> &x = elements(tx);
    std::vector<double> y((size_t)sy.count());

    for (int64_t i = 0; i < sy.count(); i++) {
        double value = op == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0.0;
        for (int64_t j = 0; j < sx.of[3]; j++) {
            const double xj = x[(size_t)(i * sx.of[3] + j)];
            value = op == CUDNN_REDUCE_TENSOR_MAX ? fmax(value, xj) : value + xj;
        }
        y[(size_t)i] = rounded(value, data_type(ty));
    }
    made[id_of(ty)] = y;
}

/* A result of 16 bits; rows from n_rows on are junk. */
void run::store(const object &tensor, int64_t n_rows)
{
    const shape s(tensor);
    const int64_t *const strides = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    auto *const to = static_cast<uint16_t *>(data[id_of(tensor)]);
    const std::vector<double> &x = made[id_of(tensor)];

    for (int64_t i = 0; i < s.count(); i++) {
        int64_t rest = i, at = 0;
        for (int a = AXES - 1; a >= 0; a--) {
            at += rest % s.of[a] * strides[a];
            rest /= s.of[a];
        }
        if (i / s.of[3] % s.of[2] >= n_rows)
            to[at] = 0xffff;
        else
            to[at] = data_type(tensor) == CUDNN_DATA_HALF ? dti_f16_bits((float)x[(size_t)i])
                                                          : bf16_bits((float)x[(size_t)i]);
    }
}

void run::all()
{
    for (const link &node : graph->find(CUDNN_ATTR_OPERATIONGRAPH_OPS)->links) {
        if (node->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            multiply(*node);
        else if (node->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            reduce(*node);
        else
            point(*node);
    }
}

} // namespace dti_sim
