/* SPDX-License-Identifier: Apache-2.0
 *
 * Random values with the vectors of one instruction set. The arithmetic is that of random.h,
 * operation by operation, and so are the bits.
 * Defined by the includer: DT_SIMD, and DT_RANDOM, the name of the function. */
#include "dtensor/kernels/cpu/cpu_random.h"
#include "dtensor/kernels/cpu/philox.inc.c"
#include "dtensor/kernels/random_fill.h"

static inline vu vu_set(uint32_t x)
{
    return x - (vu){ 0 };
}

/* --- f32, f16, bf16: a word per element ------------------------------------------------------- */

static inline vf vf_of_signed(vi v)
{
    return __builtin_convertvector(v, vf);
}

/* Rounds once, as a conversion does: both halves are exact, and so is the product. */
static inline vf vf_of_word(vu w)
{
#if DT_SIMD == 512
    return (vf)_mm512_cvtepu32_ps((__m512i)w);
#else
    return vf_of_signed((vi)(w >> 16)) * 65536.0f + vf_of_signed((vi)(w & 0xffffu));
#endif
}

/* dti_normal_f32() */
static inline void normal(vu w0, vu w1, vf *z0, vf *z1)
{
    const vf u = vf_of_word(w0) * 0x1p-32f + 0x1p-33f;
    const vf r = vf_sqrt(-2.0f * vf_ln(u, (vi){ 0 }));
    const vu q = (w1 + 0x20000000u) >> 30;
    const vf x = vf_of_signed((vi)(w1 - (q << 30))) * (1.5707963267948966f * 0x1p-30f);
    const vf z = x * x;
    const vi odd = (vi)(q & 1u) != 0;
    vf s = -1.9515295891e-4f * z + 8.3321608736e-3f;
    vf c = 2.443315711809948e-5f * z - 1.388731625493765e-3f;

    s = s * z - 1.6666654611e-1f;
    s = s * z * x + x;
    c = c * z + 4.166664568298827e-2f;
    c = c * z * z - 0.5f * z + 1.0f;
    *z0 = (vf)((vu)(r * vf_select(odd, s, c)) ^ ((q + 1u) & 2u) << 30);
    *z1 = (vf)((vu)(r * vf_select(odd, c, s)) ^ (q & 2u) << 30);
}

/* Values of the 4 VW elements from 4 first on, before their order: z[j] has elements j, 4 + j, ...
 */
static inline void values_of(const dti_random_fill *f, const rounds *r, uint64_t first, vf z[4])
{
    const int bits = f->dtype == DT_F32 ? 24 : f->dtype == DT_F16 ? 11 : 8;
    const float shift = (float)f->shift, scale = (float)f->scale;
    vu w[4];

    philox(r, 10, first, w);
    if (f->kind == DTI_RANDOM_UNIFORM) {
        const vf grid = (vf)vu_set((uint32_t)(127 - bits) << 23); /* 2^-bits */
        for (int j = 0; j < 4; j++) z[j] = vf_of_signed((vi)(w[j] >> (32 - bits))) * grid;
    } else {
        normal(w[0], w[1], &z[0], &z[1]);
        normal(w[2], w[3], &z[2], &z[3]);
    }
    for (int j = 0; j < 4; j++) z[j] = shift + scale * z[j];
}

/* In the order of elements, to f's dtype. */
static inline void store(const dti_random_fill *f, char *to, vf z[4])
{
    transpose(z);
    if (f->dtype == DT_F32) {
        memcpy(to, z, 4 * sizeof z[0]);
        return;
    }
    for (int j = 0; j < 4; j++) {
        const vh h = f->dtype == DT_BF16 ? bf16_of_vf(z[j]) : f16_of_vf(z[j]);
        memcpy(to + j * (int)sizeof h, &h, sizeof h);
    }
}

static void run_f32(const dti_random_fill *f, char *to, int64_t first, int64_t n)
{
    const int64_t bytes = (int64_t)dt_dtype_size(f->dtype);
    const rounds r = rounds_of(f->key);
    char part[4 * VW * sizeof(float)];
    vf z[4];

    while (n > 0) {
        const int64_t skip = first % 4, have = 4 * VW - skip, take = n < have ? n : have;
        values_of(f, &r, (uint64_t)first / 4, z);
        if (take == 4 * VW) {
            store(f, to, z);
        } else {
            store(f, part, z);
            memcpy(to, part + skip * bytes, (size_t)(take * bytes));
        }
        to += take * bytes;
        first += take;
        n -= take;
    }
}

/* --- f64 and integers: two words per element ---------------------------------------------------
 */

/* Elements `odd` .. `odd` + take - 1 of the two that a block makes. */
static void store_block(const dti_random_fill *f, const uint32_t w[4], int odd, int take, void *to,
                        int64_t at)
{
    double value[2];

    if (f->kind == DTI_RANDOM_INTEGER) {
        for (int k = 0; k < take; k++) {
            const int64_t whole =
                (int64_t)((uint64_t)f->low +
                          dti_below(w[2 * (odd + k)], w[2 * (odd + k) + 1], f->range));
            if (!dti_store_integer(to, f->dtype, at + k, whole))
                dti_store_f32(to, f->dtype, at + k, (float)whole);
        }
        return;
    }
    if (f->kind == DTI_RANDOM_UNIFORM) {
        value[0] = dti_uniform_f64(w[0], w[1]);
        value[1] = dti_uniform_f64(w[2], w[3]);
    } else {
        dti_normal_f64(w, &value[0], &value[1]);
    }
    for (int k = 0; k < take; k++) ((double *)to)[at + k] = f->shift + f->scale * value[odd + k];
}

static void run_pairs(const dti_random_fill *f, void *to, int64_t first, int64_t n)
{
    const rounds r = rounds_of(f->key);
    vu w[4] = { { 0 } };
    uint32_t words[VW][4];

    for (int64_t i = 0, done = 0; done < n; i = (i + 1) % VW) {
        const int odd = (int)((first + done) % 2), take = odd || done + 1 == n ? 1 : 2;
        if (i == 0) {
            philox(&r, 10, (uint64_t)(first + done) / 2, w);
            for (int j = 0; j < 4; j++)
                for (int l = 0; l < VW; l++) words[block_of(l)][j] = w[j][l];
        }
        store_block(f, words[i], odd, take, to, done);
        done += take;
    }
}

void DT_RANDOM(const dti_random_fill *f, void *to, int64_t first, int64_t n)
{
    if (f->kind == DTI_RANDOM_INTEGER || f->dtype == DT_F64)
        run_pairs(f, to, first, n);
    else
        run_f32(f, to, first, n);
}
