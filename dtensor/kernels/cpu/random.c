/* SPDX-License-Identifier: Apache-2.0
 *
 * Random values in chunks of counters, whose words lie side by side, so that the compiler may turn
 * the loops over them into vectors; the arithmetic is that of random.h and so are the bits. */
#include "dtensor/kernels/cpu/random.h"

#include "base/dtype.h"
#include "dtensor/kernels/random.h"

enum { LANES = 16, WORDS = 4 * LANES };

/* The words of counters first .. first + LANES - 1, w[j][lane]. */
static void philox_lanes(dt_random key, uint64_t first, uint32_t w[4][LANES])
{
    const uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);

    for (int l = 0; l < LANES; l++) {
        const uint64_t block = first + (uint64_t)l;
        uint32_t c[4] = { (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)key.stream,
                          (uint32_t)(key.stream >> 32) };
        dti_philox(c, k0, k1);
        for (int j = 0; j < 4; j++) w[j][l] = c[j];
    }
}

/* --- f32, f16, bf16: a word per element ------------------------------------------------------- */

static int bits_of(dt_dtype dtype)
{
    return dtype == DT_F32 ? 24 : dtype == DT_F16 ? 11 : 8;
}

/* Values of the 64 elements from 4 first on, in f32. */
static void chunk_f32(const dti_random_fill *f, uint64_t first, float *value)
{
    const float shift = (float)f->shift, scale = (float)f->scale;
    const int bits = bits_of(f->dtype);
    uint32_t w[4][LANES];
    float z[4][LANES];

    philox_lanes(f->key, first, w);
    if (f->kind == DTI_RANDOM_UNIFORM) {
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < LANES; l++) z[j][l] = dti_uniform_f32(w[j][l], bits);
    } else {
        for (int j = 0; j < 4; j += 2)
            for (int l = 0; l < LANES; l++)
                dti_normal_f32(w[j][l], w[j + 1][l], &z[j][l], &z[j + 1][l]);
    }
    for (int l = 0; l < LANES; l++)
        for (int j = 0; j < 4; j++) value[4 * l + j] = shift + scale * z[j][l];
}

static void run_f32(const dti_random_fill *f, char *to, int64_t first, int64_t n)
{
    const int64_t bytes = (int64_t)dt_dtype_size(f->dtype);
    float value[WORDS];

    while (n > 0) {
        const int64_t skip = first % 4, have = WORDS - skip, take = n < have ? n : have;
        chunk_f32(f, (uint64_t)first / 4, value);
        dti_convert(to, f->dtype, value + skip, DT_F32, take);
        to += take * bytes;
        first += take;
        n -= take;
    }
}

/* --- f64 and integers: two words per element ---------------------------------------------------
 */

static void block_f64(const dti_random_fill *f, const uint32_t w[4], double value[2])
{
    if (f->kind == DTI_RANDOM_UNIFORM) {
        value[0] = dti_uniform_f64(w[0], w[1]);
        value[1] = dti_uniform_f64(w[2], w[3]);
    } else {
        dti_normal_f64(w, &value[0], &value[1]);
    }
    for (int i = 0; i < 2; i++) value[i] = f->shift + f->scale * value[i];
}

static void store_integer(void *to, dt_dtype dtype, int64_t i, int64_t value)
{
    switch (dtype) {
    case DT_I64:
        ((int64_t *)to)[i] = value;
        break;
    case DT_I32:
        ((int32_t *)to)[i] = (int32_t)value;
        break;
    case DT_U8:
        ((uint8_t *)to)[i] = (uint8_t)value;
        break;
    case DT_F64:
        ((double *)to)[i] = (double)value;
        break;
    default:
        dti_store_f32(to, dtype, i, (float)value);
    }
}

static void run_pairs(const dti_random_fill *f, void *to, int64_t first, int64_t n)
{
    uint32_t w[4][LANES];

    for (int64_t i = 0, done = 0; done < n; i = (i + 1) % LANES) {
        const int64_t block = (first + done) / 2;
        const bool odd = (first + done) % 2 != 0;
        const int take = odd || done + 1 == n ? 1 : 2;
        double value[2];
        if (i == 0) philox_lanes(f->key, (uint64_t)block, w);
        const uint32_t words[4] = { w[0][i], w[1][i], w[2][i], w[3][i] };
        if (f->kind != DTI_RANDOM_INTEGER) block_f64(f, words, value);
        for (int k = 0; k < take; k++) {
            const int j = odd ? 1 : k;
            if (f->kind == DTI_RANDOM_INTEGER)
                store_integer(to, f->dtype, done + k,
                              (int64_t)((uint64_t)f->low +
                                        dti_below(words[2 * j], words[2 * j + 1], f->range)));
            else
                ((double *)to)[done + k] = value[j];
        }
        done += take;
    }
}

void dti_random_run(const dti_random_fill *f, void *to, int64_t first, int64_t n)
{
    if (f->kind == DTI_RANDOM_INTEGER || f->dtype == DT_F64)
        run_pairs(f, to, first, n);
    else
        run_f32(f, to, first, n);
}
