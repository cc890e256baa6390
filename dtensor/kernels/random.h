/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers that are a function of (seed, stream, global element index), so that the value of
 * an element does not depend on where it lies: not on placement, mesh, threads or device.
 *
 * Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
 * (SC11) turns a 128-bit counter and a 64-bit key into four 32-bit words. The key is the seed; the
 * counter is block number (low 64 bits) and stream. Narrow dtypes take one word per element, four
 * elements per block; f64 and integers take two.
 *
 * Normals are Box-Muller on pairs of neighbours, with logarithm, sine and cosine as polynomials of
 * our own: every step is an addition, a multiplication, a division, a square root or a conversion
 * of IEEE 754, in fixed order and never fused (-ffp-contract=off, nvcc -fmad=false). So all
 * compilers and devices give the same bits, which no library function promises.
 *
 * This header is C11 and C++14, for kernels of any device. */
#ifndef DTI_RANDOM_H
#define DTI_RANDOM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define DTI_BOTH static __host__ __device__ inline
#else
#define DTI_BOTH static inline
#endif

DTI_BOTH void dti_philox_round(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    const uint64_t a = (uint64_t)0xD2511F53u * c[0];
    const uint64_t b = (uint64_t)0xCD9E8D57u * c[2];
    const uint32_t c0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, c2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;

    c[0] = c0;
    c[1] = (uint32_t)b;
    c[2] = c2;
    c[3] = (uint32_t)a;
}

/* c: the counter, replaced by the four words. */
DTI_BOTH void dti_philox_rounds(uint32_t c[4], uint32_t k0, uint32_t k1, int n)
{
    for (int i = 0; i < n; i++) {
        dti_philox_round(c, k0, k1);
        k0 += 0x9E3779B9u; /* the golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
}

DTI_BOTH void dti_philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    dti_philox_rounds(c, k0, k1, 10);
}

/* --- rounding at random ----------------------------------------------------------------------- */

/* Elements that share DTI_SHAKES / 8 blocks: the first half of them has upper halves of the words,
 * the second half lower ones, so that vectors of any length need no shuffling. Seven rounds pass
 * every test of randomness that the authors know of; three more are a margin that rounding does
 * without. */
enum { DTI_SHAKES = 128, DTI_SHAKE_ROUNDS = 7 };

/* The 16 random bits of element `at`, in the upper half of a word. */
DTI_BOTH uint32_t dti_shake(uint64_t seed, uint64_t stream, int64_t at)
{
    const int64_t word = at % (DTI_SHAKES / 2);
    const uint64_t block = (uint64_t)(at / DTI_SHAKES * (DTI_SHAKES / 8) + word / 4);
    uint32_t c[4] = { (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                      (uint32_t)(stream >> 32) };
    uint32_t w;

    dti_philox_rounds(c, (uint32_t)seed, (uint32_t)(seed >> 32), DTI_SHAKE_ROUNDS);
    w = word % 4 == 0 ? c[0] : word % 4 == 1 ? c[1] : word % 4 == 2 ? c[2] : c[3];
    return at % DTI_SHAKES < DTI_SHAKES / 2 ? w & 0xffff0000u : w << 16;
}

/* --- words to values -------------------------------------------------------------------------- */

/* [0, 1) on a grid of 2^-bits, so that a dtype of `bits` significant bits holds it exactly. */
DTI_BOTH float dti_uniform_f32(uint32_t word, int bits)
{
    const uint32_t one = (uint32_t)(127 - bits) << 23;
    float scale;

    memcpy(&scale, &one, sizeof scale); /* 2^-bits */
    return (float)(int32_t)(word >> (32 - bits)) * scale;
}

DTI_BOTH double dti_uniform_f64(uint32_t high, uint32_t low)
{
    return (double)(int64_t)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

/* [0, range): the high half of the product of 64 random bits and range. range == 0 is 2^64. */
DTI_BOTH uint64_t dti_below(uint32_t high, uint32_t low, uint64_t range)
{
    const uint64_t r0 = range & 0xffffffffu, r1 = range >> 32;
    const uint64_t middle = high * r0 + (low * r0 >> 32);
    const uint64_t other = (middle & 0xffffffffu) + low * r1;

    if (range == 0) return (uint64_t)high << 32 | low;
    return high * r1 + (middle >> 32) + (other >> 32);
}

/* ln(x 2^-down) of a positive normal x, relative error below 1e-7: Cephes' logf, no branches. */
DTI_BOTH float dti_ln_f32(float x, int down)
{
    uint32_t bits;
    float e, m, z, y;

    memcpy(&bits, &x, sizeof bits);
    bits += 0x3f800000u - 0x3f3504f3u; /* sqrt(1/2) <= m < sqrt(2) */
    e = (float)((int32_t)(bits >> 23) - 127 - down);
    bits = (bits & 0x007fffffu) + 0x3f3504f3u;
    memcpy(&m, &bits, sizeof m);
    m -= 1.0f;
    z = m * m;
    y = 7.0376836292e-2f * m - 1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * z;
    y = y - 2.12194440e-4f * e;
    y = y - 0.5f * z;
    return (m + y) + 0.693359375f * e;
}

/* Two independent normals of two words. |z| <= 6.67: words have 32 bits. */
DTI_BOTH void dti_normal_f32(uint32_t w0, uint32_t w1, float *z0, float *z1)
{
    const float u = (float)w0 * 0x1p-32f + 0x1p-33f; /* (0, 1] */
    const float r = sqrtf(-2.0f * dti_ln_f32(u, 0));
    const uint32_t q = (w1 + 0x20000000u) >> 30; /* quarter turn, angle in +- pi / 4 */
    const float x = (float)(int32_t)(w1 - (q << 30)) * (1.5707963267948966f * 0x1p-30f);
    const float z = x * x;
    float s = -1.9515295891e-4f * z + 8.3321608736e-3f;
    float c = 2.443315711809948e-5f * z - 1.388731625493765e-3f;
    float first, second;
    uint32_t sign;

    s = s * z - 1.6666654611e-1f;
    s = s * z * x + x;
    c = c * z + 4.166664568298827e-2f;
    c = c * z * z - 0.5f * z + 1.0f;
    first = r * (q & 1u ? s : c);
    second = r * (q & 1u ? c : s);
    memcpy(&sign, &first, sizeof sign);
    sign ^= ((q + 1) & 2u) << 30;
    memcpy(z0, &sign, sizeof sign);
    memcpy(&sign, &second, sizeof sign);
    sign ^= (q & 2u) << 30;
    memcpy(z1, &sign, sizeof sign);
}

/* -ln(x), error below 1 ulp: fdlibm's log. */
DTI_BOTH double dti_minus_ln_f64(double x)
{
    uint64_t bits;
    double e, f, s, z, w, r, half;

    memcpy(&bits, &x, sizeof bits);
    bits += (uint64_t)(0x3ff00000u - 0x3fe6a09eu) << 32;
    e = (double)((int32_t)(bits >> 52) - 1023);
    bits = (bits & 0x000fffffffffffffu) + ((uint64_t)0x3fe6a09eu << 32);
    memcpy(&f, &bits, sizeof f);
    f -= 1.0;
    half = 0.5 * f * f;
    s = f / (2.0 + f);
    z = s * s;
    w = z * z;
    r = z * (6.666666666666735130e-01 +
             w * (2.857142874366239149e-01 +
                  w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    r = r + w * (3.999999999940941908e-01 +
                 w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    return -(e * 6.93147180369123816490e-01 -
             ((half - (s * (half + r) + e * 1.90821492927058770002e-10)) - f));
}

/* The same for the four words of a block, with 53 bits. |z| <= 8.58. */
DTI_BOTH void dti_normal_f64(const uint32_t w[4], double *z0, double *z1)
{
    const double u = (double)(int64_t)((((uint64_t)w[0] << 32 | w[1]) >> 11) + 1) * 0x1p-53;
    const double r = sqrt(2.0 * dti_minus_ln_f64(u));
    const uint64_t turn = (uint64_t)w[2] << 32 | w[3];
    const uint64_t q = (turn + 0x2000000000000000u) >> 62;
    const double x = (double)(int64_t)(turn - (q << 62)) * (1.5707963267948966 * 0x1p-62);
    const double z = x * x;
    double s = 1.58969099521155010221e-10 * z - 2.50507602534068634195e-08;
    double c = -1.13596475577881948265e-11 * z + 2.08757232129817482790e-09;

    s = s * z + 2.75573137070700676789e-06;
    s = s * z - 1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z - 1.66666666666666324348e-01;
    s = s * z * x + x;
    c = c * z - 2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z - 1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    c = c * z * z - 0.5 * z + 1.0;
    *z0 = r * (q == 0 ? c : q == 1 ? -s : q == 2 ? -c : s);
    *z1 = r * (q == 0 ? s : q == 1 ? c : q == 2 ? -s : -c);
}

#endif
