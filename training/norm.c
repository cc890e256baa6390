/* SPDX-License-Identifier: Apache-2.0 */
#include "training/norm.h"

#include <math.h>
#include <string.h>

#include "dtensor/host.h"
#include "dtensor/kernels/kernel.h"

enum { N_EXPONENTS = 255, CHUNK = 65536, LOWEST = 298 };

/* Squares of whole numbers below 2^24, apart by exponent: CHUNK of them fit into 64 bits. */
typedef struct bins {
    uint64_t of[N_EXPONENTS];
    int64_t n_bad;
} bins;

static void add_squares(bins *b, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        const uint32_t e = bits >> 23 & 255u, fraction = bits & 0x7fffffu;
        const uint64_t m = e == 0 ? fraction : fraction | 0x800000u;
        if (e == 255u)
            b->n_bad++;
        else
            b->of[e] += m * m;
    }
}

/* The sum of a bin times 2^(2 e - 298), e the exponent of subnormals and 1 being 0. */
static void empty_bins(bins *b, dti_square_sum *sum)
{
    for (int e = 0; e < N_EXPONENTS; e++) {
        const int shift = e == 0 ? 0 : 2 * (e - 1), d = shift / 32, by = shift % 32;
        const uint64_t low = b->of[e] << by, high = by == 0 ? 0 : b->of[e] >> (64 - by);
        if (b->of[e] == 0) continue;
        sum->digit[d] += (int64_t)(low & 0xffffffffu);
        sum->digit[d + 1] += (int64_t)(low >> 32);
        sum->digit[d + 2] += (int64_t)high;
    }
    memset(b->of, 0, sizeof b->of);
}

/* Digits below 2^32 but for the last: one number, one way to write it. */
static void carry(dti_square_sum *sum)
{
    for (int d = 0; d + 1 < DTI_NORM_DIGITS; d++) {
        sum->digit[d + 1] += sum->digit[d] >> 32;
        sum->digit[d] &= 0xffffffff;
    }
}

dt_status dti_square_sum_add(dti_square_sum *sum, dt_tensor *x)
{
    const int64_t n = dti_local_count(dt_tensor_local(x));
    bins b = { { 0 }, 0 };
    dti_host host;

    DT_TRY(dti_host_open(x, DTI_HOST_READS, &host));
    for (int64_t i = 0; i < n && host.local.data != NULL; i += CHUNK) {
        add_squares(&b, (const float *)host.local.data + i, n - i < CHUNK ? n - i : CHUNK);
        empty_bins(&b, sum);
    }
    carry(sum);
    sum->n_bad += b.n_bad;
    return dti_host_close(&host, DT_OK);
}

dt_status dti_is_finite(dt_tensor *x, bool *finite)
{
    const int64_t n = dti_local_count(dt_tensor_local(x));
    uint32_t largest = 0;
    dti_host host;

    DT_TRY(dti_host_open(x, DTI_HOST_READS, &host));
    for (int64_t i = 0; i < n && host.local.data != NULL; i++) {
        uint32_t bits;
        memcpy(&bits, (const float *)host.local.data + i, sizeof bits);
        bits &= 0x7f800000u;
        largest = bits > largest ? bits : largest;
    }
    *finite = largest < 0x7f800000u;
    return dti_host_close(&host, DT_OK);
}

double dti_square_sum_root(const dti_square_sum *sum)
{
    dti_square_sum s = *sum;
    double total = 0.0;

    carry(&s);
    for (int d = DTI_NORM_DIGITS - 1; d >= 0; d--)
        total += ldexp((double)s.digit[d], 32 * d - LOWEST);
    return sqrt(total);
}
