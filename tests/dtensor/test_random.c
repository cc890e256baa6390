/* SPDX-License-Identifier: Apache-2.0
 *
 * The generator: published vectors, values that other implementations must give too, accuracy of
 * the polynomials, and statistics that a wrong mapping of words to elements would fail. */
#include "dtensor/kernels/random.h"

#include <math.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "dtensor/kernels/cpu/cpu.h"
#include "dtensor/kernels/cpu/cpu_random.h"
#include "tests/support/dt_test.h"

enum { MANY = 1 << 18 };

/* Random123's kat_vectors for philox4x32-10. */
DT_TEST(random, philox_gives_the_published_words)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        uint32_t c[4];
        memcpy(c, cases[i].counter, sizeof c);
        dti_philox(c, cases[i].key[0], cases[i].key[1]);
        for (int k = 0; k < 4; k++) DT_ASSERT_EQ_INT(c[k], cases[i].want[k]);
    }
}

/* What a program in another language computes from the same formulas, so these bits are the
 * definition: seed 0x0123456789abcdef, stream 7, elements 0 to 7. */
DT_TEST(random, elements_are_these_bits)
{
    static const uint32_t uniform[] = { 3453498,  9356349, 16629651, 10928172,
                                        16360292, 2023794, 4114145,  12948624 };
    static const uint32_t normal[] = { 0xbfd4ccab, 0xbf216061, 0xbd9e1c67, 0xbddd9b7d,
                                       0x3e26d772, 0x3e1dead4, 0x3e6a6a39, 0xbfd49a39 };
    dti_random_fill f = { .key = { 0x0123456789abcdef, 7 }, .scale = 1.0, .range = 10 };
    float value[8];
    double wide[2];
    int64_t whole[2];

    dti_random_portable(&f, value, 0, 8);
    for (int i = 0; i < 8; i++) DT_ASSERT(value[i] == (float)uniform[i] * 0x1p-24f);
    f.kind = DTI_RANDOM_NORMAL;
    dti_random_portable(&f, value, 0, 8);
    for (int i = 0; i < 8; i++) DT_ASSERT_EQ_INT(dti_bits_of_float(value[i]), normal[i]);
    f.dtype = DT_F64;
    dti_random_portable(&f, wide, 0, 2);
    DT_ASSERT_CLOSE(wide[0], 1.7752810884494505, 1e-14);
    DT_ASSERT_CLOSE(wide[1], -0.09820935103702369, 1e-14);
    f.kind = DTI_RANDOM_INTEGER;
    f.dtype = DT_I64;
    dti_random_portable(&f, whole, 0, 2);
    DT_ASSERT_EQ_INT(whole[0], 2);
    DT_ASSERT_EQ_INT(whole[1], 9);
}

/* Any part of a tensor made alone is that part of the whole, wherever it begins. */
DT_TEST(random, a_run_may_begin_and_end_anywhere)
{
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16, DT_F16, DT_F64 };
    char whole[200 * 8], part[200 * 8];

    for (size_t d = 0; d < DT_COUNT(dtypes); d++)
        for (int kind = 0; kind < 3; kind++) {
            const dti_random_fill f = { .kind = (dti_random_kind)kind,
                                        .dtype = dtypes[d],
                                        .key = { 3, 1 },
                                        .scale = 1.0,
                                        .low = -3,
                                        .range = 7 };
            const size_t bytes = dt_dtype_size(dtypes[d]);
            dti_random_portable(&f, whole, 0, 200);
            for (int64_t begin = 0; begin < 70; begin += 1 + begin / 9)
                for (int64_t n = 1; begin + n <= 200; n += 1 + n / 5) {
                    dti_random_portable(&f, part, begin, n);
                    DT_ASSERT(memcmp(part, whole + (size_t)begin * bytes, (size_t)n * bytes) == 0);
                }
        }
}

#ifdef DT_HAVE_X86_KERNELS
/* Every set of instructions makes the bits of the portable code, which are those of random.h. */
static void same_bits(dti_random_fn fn, const dti_random_fill *f)
{
    static char want[1 << 15], got[1 << 15];
    static const int64_t starts[] = { 0, 1, 6, ((int64_t)1 << 34) - 9, ((int64_t)1 << 62) + 3 };
    const size_t bytes = dt_dtype_size(f->dtype);

    for (size_t s = 0; s < DT_COUNT(starts); s++)
        for (int64_t n = 1; n <= (1 << 15) / 8; n += n < 140 ? 1 : 997) {
            memset(want, 0x5a, sizeof want);
            memset(got, 0x5a, sizeof got);
            dti_random_portable(f, want, starts[s], n);
            fn(f, got, starts[s], n);
            DT_ASSERT(memcmp(want, got,
                             (size_t)n * bytes + 8 < sizeof got ? (size_t)n * bytes + 8
                                                                : sizeof got) == 0);
        }
}

DT_TEST(random, instruction_sets_make_the_same_bits)
{
    static const dti_random_fn sets[] = { dti_random_avx2, dti_random_avx512 };
    const int n = dti_isa_detect() >= DTI_ISA_AVX512 ? 2 : dti_isa_detect() >= DTI_ISA_AVX2 ? 1 : 0;

    for (int i = 0; i < n; i++)
        for (int kind = 0; kind < 3; kind++)
            for (int dtype = 0; dtype < DT_N_DTYPES; dtype++) {
                const dti_random_fill f = { .kind = (dti_random_kind)kind,
                                            .dtype = (dt_dtype)dtype,
                                            .key = { 0x9e3779b97f4a7c15u, 0xfedcba9876543210u },
                                            .shift = kind == 1 ? 0.1 : -3,
                                            .scale = 1.7,
                                            .low = dtype == DT_U8 ? 0 : -7,
                                            .range = 90 };
                if (kind == DTI_RANDOM_INTEGER || dt_dtype_is_float(f.dtype))
                    same_bits(sets[i], &f);
            }
}
#endif

DT_TEST(random, uniform_stays_below_one_in_every_dtype)
{
    for (int bits = 8; bits <= 24; bits++) {
        DT_ASSERT(dti_uniform_f32(0xffffffffu, bits) == 1.0f - ldexpf(1.0f, -bits));
        DT_ASSERT(dti_uniform_f32(0, bits) == 0.0f);
    }
    DT_ASSERT(dti_uniform_f64(0xffffffffu, 0xffffffffu) == 1.0 - 0x1p-53);
    DT_ASSERT(dti_bf16_to_f32(dti_f32_to_bf16(dti_uniform_f32(0xffffffffu, 8))) < 1.0f);
    DT_ASSERT(dti_f16_to_f32(dti_f32_to_f16(dti_uniform_f32(0xffffffffu, 11))) < 1.0f);
}

DT_TEST(random, whole_numbers_cover_their_interval)
{
    DT_ASSERT_EQ_INT(dti_below(0xffffffffu, 0xffffffffu, 10), 9);
    DT_ASSERT_EQ_INT(dti_below(0, 0, 10), 0);
    DT_ASSERT_EQ_INT(dti_below(0x80000000u, 0, 10), 5);
    DT_ASSERT(dti_below(0xffffffffu, 0xffffffffu, UINT64_MAX) == UINT64_MAX - 1);
    DT_ASSERT(dti_below(0x12345678u, 0x9abcdef0u, 0) == 0x123456789abcdef0u);
    DT_ASSERT(dti_below(0xffffffffu, 0xffffffffu, (uint64_t)1 << 63) == ((uint64_t)1 << 63) - 1);
}

/* Against the C library in f64, at the edges and in between. */
DT_TEST(random, polynomials_are_accurate)
{
    static const uint32_t edges[] = { 0,          1,          2,          0x1fffffff, 0x20000000,
                                      0x3fffffff, 0x40000000, 0x7fffffff, 0x80000000, 0x80000001,
                                      0xb504f333, 0xbfffffff, 0xc0000000, 0xdfffffff, 0xffffffff };
    const double pi = 3.14159265358979323846;
    double worst = 0.0, worst_f64 = 0.0;

    for (int i = 0; i < 20000; i++) {
        const int n = (int)DT_COUNT(edges);
        uint32_t w[4] = { (uint32_t)i, 1, 2, 3 };
        float z0, z1;
        double x0, x1, u, r, turn;
        dti_philox(w, 5, 6);
        if (i < n * n) {
            w[0] = w[1] = edges[i / n];
            w[2] = edges[i % n];
        }
        dti_normal_f32(w[0], w[2], &z0, &z1);
        u = (double)((float)w[0] * 0x1p-32f + 0x1p-33f);
        r = sqrt(-2.0 * log(u));
        turn = (double)w[2] * 0x1p-32 * 2.0 * pi;
        worst =
            fmax(worst, fmax(fabs((double)z0 - r * cos(turn)), fabs((double)z1 - r * sin(turn))));
        dti_normal_f64(w, &x0, &x1);
        u = (double)(((((uint64_t)w[0] << 32) | w[1]) >> 11) + 1) * 0x1p-53;
        r = sqrt(-2.0 * log(u));
        turn = (double)(((uint64_t)w[2] << 32) | w[3]) * 0x1p-64 * 2.0 * pi;
        worst_f64 = fmax(worst_f64, fmax(fabs(x0 - r * cos(turn)), fabs(x1 - r * sin(turn))));
    }
    DT_ASSERT(worst < 1.5e-6); /* values up to 6.7: an ulp is 4.8e-7 */
    DT_ASSERT(worst_f64 < 1e-14);
}

/* --- statistics ------------------------------------------------------------------------------- */

typedef struct moments {
    double mean, variance, skew, kurtosis, lag[3]; /* lag: correlation with the element k + 1 on */
} moments;

static moments moments_of(const float *x, int n)
{
    moments m = { 0 };

    for (int i = 0; i < n; i++) m.mean += (double)x[i] / n;
    for (int i = 0; i < n; i++) {
        const double d = (double)x[i] - m.mean;
        m.variance += d * d / n;
        m.skew += d * d * d / n;
        m.kurtosis += d * d * d * d / n;
        for (int k = 0; k < 3 && i + k + 1 < n; k++)
            m.lag[k] += d * ((double)x[i + k + 1] - m.mean) / n;
    }
    return m;
}

/* Bounds are five standard errors of MANY independent values; the seeds are fixed. */
DT_TEST(random, values_are_distributed_as_they_should)
{
    const double five = 5.0 / sqrt((double)MANY);
    dti_random_fill f = { .key = { 2026, 0 }, .scale = 1.0 };
    float *x = malloc(MANY * sizeof *x);
    moments m;

    DT_ASSERT(x != NULL);
    dti_random_portable(&f, x, 0, MANY);
    m = moments_of(x, MANY);
    DT_ASSERT_CLOSE(m.mean, 0.5, five * 0.2887);
    DT_ASSERT_CLOSE(m.variance, 1.0 / 12, five * 0.0745);
    for (int k = 0; k < 3; k++) DT_ASSERT_CLOSE(m.lag[k], 0.0, five / 12);
    f.kind = DTI_RANDOM_NORMAL;
    for (f.key.stream = 0; f.key.stream < 4; f.key.stream++) {
        int tail = 0;
        dti_random_portable(&f, x, 0, MANY);
        m = moments_of(x, MANY);
        DT_ASSERT_CLOSE(m.mean, 0.0, five);
        DT_ASSERT_CLOSE(m.variance, 1.0, five * 1.4143);
        DT_ASSERT_CLOSE(m.skew, 0.0, five * 3.8730);
        DT_ASSERT_CLOSE(m.kurtosis, 3.0, five * 9.7980);
        for (int k = 0; k < 3; k++) DT_ASSERT_CLOSE(m.lag[k], 0.0, five);
        for (int i = 0; i < MANY; i++) tail += fabsf(x[i]) > 3.0f;
        DT_ASSERT_CLOSE((double)tail / MANY, 0.0026998, five * 0.0519);
    }
    free(x);
}

/* Chi-squared of 256 cells, and of pairs of neighbours in 16 x 16: 255 degrees of freedom, of which
 * the 0.9999 quantile is 346. */
DT_TEST(random, cells_are_hit_evenly)
{
    const dti_random_fill f = { .key = { 11, 4 }, .scale = 1.0 };
    static const double expected = MANY / 256.0;
    float *x = malloc(MANY * sizeof *x);
    int cell[256] = { 0 }, pair[256] = { 0 };
    double chi = 0.0, chi_pairs = 0.0;

    DT_ASSERT(x != NULL);
    dti_random_portable(&f, x, (int64_t)1 << 33, MANY); /* counters beyond 32 bits */
    for (int i = 0; i < MANY; i++) {
        cell[(int)(x[i] * 256.0f)]++;
        if (i % 2 == 1) pair[(int)(x[i - 1] * 16.0f) * 16 + (int)(x[i] * 16.0f)]++;
    }
    for (int i = 0; i < 256; i++) {
        chi += (cell[i] - expected) * (cell[i] - expected) / expected;
        chi_pairs += (pair[i] - expected / 2) * (pair[i] - expected / 2) / (expected / 2);
    }
    free(x);
    DT_ASSERT(chi < 346.0 && chi > 175.0);
    DT_ASSERT(chi_pairs < 346.0 && chi_pairs > 175.0);
}

DT_TEST(random, seeds_streams_and_distant_elements_differ)
{
    const dt_random keys[] = {
        { 1, 0 }, { 2, 0 }, { 1, 1 }, { (uint64_t)1 << 32, 0 }, { 1, (uint64_t)1 << 32 }
    };
    float x[DT_COUNT(keys) + 1][64];

    for (size_t k = 0; k <= DT_COUNT(keys); k++) {
        const dti_random_fill f = { .key = keys[k % DT_COUNT(keys)], .scale = 1.0 };
        dti_random_portable(&f, x[k], k < DT_COUNT(keys) ? 0 : (int64_t)1 << 34, 64);
        for (size_t j = 0; j < k; j++) {
            int same = 0;
            for (int i = 0; i < 64; i++) same += x[j][i] == x[k][i];
            DT_ASSERT(same < 2);
        }
    }
}
