/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of one element: the row's name, its formula in x and its slope there, by which
 * <name>_backward(dy, x) multiplies dy. One text for all CPU vectors (cpu/rows.inc.c) and for GPUs
 * (cuda/elementwise.cu), so that both give the same bits. Formulas without a slope have a gradient
 * that other rows give: F(name, formula, slope) is of all in DTI_FORMULAS, of those with a slope in
 * DTI_CURVES.
 *
 * A formula is in f32 and rounds to the row's dtype at its end; RN(v) rounds a step on the way. So
 * the activations are Transformers' own (transformers/activations.py): what PyTorch computes with
 * one call rounds once, what Python composes of several rounds after each. EXP, LOG, SQRT, TANH,
 * ERF, SELECT(condition, a, b) and SET(constant) are those of the place that includes this file. A
 * NaN stays one. A slope rounds nowhere but in the product; at a kink it is PyTorch's.
 *
 * C11 and C++14. */
#ifndef DTI_FORMULAS_H
#define DTI_FORMULAS_H

#define DTI_SIGMOID(x)  (1.0f / (1.0f + EXP(-(x))))
#define DTI_GELU(x)     ((x)*0.5f * (1.0f + ERF((x)*0.70710678118654752f)))
#define DTI_LOG1P(e)    SELECT(1.0f + (e) == 1.0f, e, LOG(1.0f + (e)) * ((e) / (1.0f + (e)-1.0f)))
#define DTI_SOFTPLUS(x) SELECT((x) > 20.0f, x, DTI_LOG1P(EXP(x)))
#define DTI_MISH(e)     ((e) * ((e) + 2.0f)) /* tanh ln (1 + e) = MISH / (MISH + 2) */

/* Slopes that several have: of x / (1 + e^-kx), of x tanh ln (1 + e^x), of both forms of GELU. */
#define DTI_SQUARE(v)         ((v) * (v))
#define DTI_SWISH_SLOPE(x, k) (DTI_SIGMOID((x)*k) * (1.0f + (x)*k * (1.0f - DTI_SIGMOID((x)*k))))
#define DTI_MISH_SLOPE(x, e)              \
    (DTI_MISH(e) / (DTI_MISH(e) + 2.0f) + \
     (x)*4.0f * (e) * ((e) + 1.0f) / DTI_SQUARE(DTI_MISH(e) + 2.0f))
#define DTI_GELU_SLOPE(x)                            \
    (0.5f * (1.0f + ERF((x)*0.70710678118654752f)) + \
     (x)*0.39894228040143268f * EXP((x) * (x) * -0.5f))
#define DTI_TANH_OF_GELU(x) TANH(((x) + (x) * (x) * (x)*0.044715f) * 0.79788456080286536f)
#define DTI_GELU_TANH_SLOPE(x)                               \
    (0.5f * (1.0f + DTI_TANH_OF_GELU(x)) +                   \
     0.5f * (x) * (1.0f - DTI_SQUARE(DTI_TANH_OF_GELU(x))) * \
         (0.79788456080286536f + 0.10703222440890037f * (x) * (x)))

/* clang-format off */
#define DTI_FORMULAS(F) \
    F(neg, -x, ) \
    DTI_CURVES(F)
#define DTI_CURVES(F) \
    F(exp,          EXP(x), \
                    EXP(x)) \
    F(log,          LOG(x), \
                    1.0f / x) \
    F(sqrt,         SQRT(x), \
                    0.5f / SQRT(x)) \
    F(rsqrt,        1.0f / SQRT(x), \
                    -0.5f / (x * SQRT(x))) \
    F(tanh,         TANH(x), \
                    1.0f - TANH(x) * TANH(x)) \
    F(sigmoid,      DTI_SIGMOID(x), \
                    DTI_SIGMOID(x) * (1.0f - DTI_SIGMOID(x))) \
    F(relu,         SELECT(x < 0.0f, SET(0.0f), x), \
                    SELECT(x <= 0.0f, SET(0.0f), SET(1.0f))) \
    F(relu2,        SELECT(x < 0.0f, SET(0.0f), x * x), \
                    SELECT(x < 0.0f, SET(0.0f), x + x)) \
    F(relu6,        SELECT(x < 0.0f, SET(0.0f), SELECT(x > 6.0f, SET(6.0f), x)), \
                    SELECT(x <= 0.0f, SET(0.0f), SELECT(x >= 6.0f, SET(0.0f), SET(1.0f)))) \
    F(leaky_relu,   SELECT(x > 0.0f, x, x * 0.01f), \
                    SELECT(x > 0.0f, SET(1.0f), SET(0.01f))) \
    F(hardswish,    x * SELECT(x > 3.0f, SET(6.0f), SELECT(x < -3.0f, SET(0.0f), x + 3.0f)) / 6.0f, \
                    SELECT(x >= 3.0f, SET(1.0f), SELECT(x <= -3.0f, SET(0.0f), x * 0.333333343f + 0.5f))) \
    F(softplus,     DTI_SOFTPLUS(x), \
                    DTI_SIGMOID(x)) \
    F(sqrtsoftplus, SQRT(RN(DTI_SOFTPLUS(x))), \
                    SELECT(x < -20.0f, 0.5f * EXP(x * 0.5f), 0.5f * DTI_SIGMOID(x) / SQRT(DTI_SOFTPLUS(x)))) \
    F(silu,         SILU(x), \
                    DTI_SWISH_SLOPE(x, 1.0f)) \
    F(quick_gelu,   x * RN(DTI_SIGMOID(RN(x * 1.702f))), \
                    DTI_SWISH_SLOPE(x, 1.702f)) \
    F(mish,         SELECT(x > 20.0f, x, x * (DTI_MISH(EXP(x)) / (DTI_MISH(EXP(x)) + 2.0f))), \
                    SELECT(x > 20.0f, SET(1.0f), DTI_MISH_SLOPE(x, EXP(x)))) \
    F(laplace,      RN(1.0f + RN(ERF(RN(RN(x - 0.707107f) / 0.39894257f)))) * 0.5f, \
                    EXP(-DTI_SQUARE((x - 0.707107f) / 0.39894257f)) * 1.41421254f) \
    F(gelu,         DTI_GELU(x), \
                    DTI_GELU_SLOPE(x)) \
    F(gelu_10,      SELECT(x > 10.0f, SET(10.0f), DTI_GELU(x)), \
                    SELECT(x > 10.0f, SET(0.0f), DTI_GELU_SLOPE(x))) \
    F(gelu_python,  RN(x * 0.5f) * RN(1.0f + RN(ERF(RN(x / 1.41421356237309505f)))), \
                    DTI_GELU_SLOPE(x)) \
    F(gelu_tanh,    GELU_TANH(x), \
                    DTI_GELU_TANH_SLOPE(x)) \
    F(gelu_new,     RN(x * 0.5f) * RN(RN(TANH(RN(RN(x + RN(RN(RN(x * x) * x) * 0.044715f)) * \
                                                 0.79788456080286536f))) + 1.0f), \
                    DTI_GELU_TANH_SLOPE(x)) \
    F(gelu_fast,    RN(x * 0.5f) * RN(RN(TANH(RN(RN(x * 0.7978845608f) * \
                                                 RN(1.0f + RN(RN(x * 0.044715f) * x))))) + 1.0f), \
                    DTI_GELU_TANH_SLOPE(x))
/* clang-format on */

#endif
