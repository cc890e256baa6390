/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops of a reduction for one type. Defined by the includer: T, NAME(stem), ADD(a, b), MUL(a, b),
 * IS_NAN(a). NaN wins in minimum and maximum, as in PyTorch. */

/* acc[i] = acc[i] (op) x[i] */
static void NAME(into)(T *restrict acc, const T *restrict x, int64_t n, dt_reduce op)
{
    switch (op) {
    case DT_MIN:
        for (int64_t i = 0; i < n; i++) acc[i] = x[i] < acc[i] || IS_NAN(x[i]) ? x[i] : acc[i];
        break;
    case DT_MAX:
        for (int64_t i = 0; i < n; i++) acc[i] = x[i] > acc[i] || IS_NAN(x[i]) ? x[i] : acc[i];
        break;
    case DT_PROD:
        for (int64_t i = 0; i < n; i++) acc[i] = MUL(acc[i], x[i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++) acc[i] = ADD(acc[i], x[i]);
        break;
    }
}

/* sum[i] = x[i] (op) y[i], one pass less than a copy and into() */
static void NAME(pair)(T *restrict sum, const T *x, const T *y, int64_t n, dt_reduce op)
{
    switch (op) {
    case DT_MIN:
        for (int64_t i = 0; i < n; i++) sum[i] = y[i] < x[i] || IS_NAN(y[i]) ? y[i] : x[i];
        break;
    case DT_MAX:
        for (int64_t i = 0; i < n; i++) sum[i] = y[i] > x[i] || IS_NAN(y[i]) ? y[i] : x[i];
        break;
    case DT_PROD:
        for (int64_t i = 0; i < n; i++) sum[i] = MUL(x[i], y[i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++) sum[i] = ADD(x[i], y[i]);
        break;
    }
}

static void NAME(divide)(T *acc, int64_t n, int divisor)
{
    for (int64_t i = 0; i < n; i++) acc[i] = (T)(acc[i] / (T)divisor);
}

#undef T
#undef NAME
#undef ADD
#undef MUL
#undef IS_NAN
