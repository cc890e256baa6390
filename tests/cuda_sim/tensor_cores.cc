/* SPDX-License-Identifier: Apache-2.0
 *
 * What lanes of a warp do together: shuffles, votes, matrix products; and copies into shared
 * memory. The places of elements in registers are those of the PTX manual ("Matrix Fragments for
 * mma.m16n8k16 with floating point type", "ldmatrix"), written from there and not from the kernels
 * that are checked with them. */
#include "fibres.h"

#include <string.h>

using namespace dti_sim;

void dti_sim_misaligned(const void *p, size_t bytes)
{
    fault("misaligned address: %zu bytes at %p", bytes, p);
}

/* --- shuffles and votes ----------------------------------------------------------------------*/

void dti_sim_shuffle_meet(const char *what, unsigned mask, dti_sim_shuffle *s)
{
    meet(what, mask, s, [](void *const of[32], unsigned met) {
        for (unsigned l = 0; l < 32; l++) {
            if (!(met >> l & 1u)) continue;
            dti_sim_shuffle *const to = static_cast<dti_sim_shuffle *>(of[l]);
            to->missing = to->from >= 32 || !(met >> to->from & 1u);
            if (!to->missing) to->theirs = static_cast<dti_sim_shuffle *>(of[to->from])->mine;
        }
    });
    if (s->missing) fault("%s: reads lane %u, which does not take part", what, s->from);
}

struct vote {
    bool mine;
    unsigned all;
};

unsigned dti_sim_ballot(const char *what, unsigned mask, bool mine)
{
    vote v = { mine, 0 };

    meet(what, mask, &v, [](void *const of[32], unsigned met) {
        unsigned all = 0;
        for (unsigned l = 0; l < 32; l++)
            if (met >> l & 1u) all |= (unsigned)static_cast<vote *>(of[l])->mine << l;
        for (unsigned l = 0; l < 32; l++)
            if (met >> l & 1u) static_cast<vote *>(of[l])->all = all;
    });
    return v.all;
}

/* --- matrix products -------------------------------------------------------------------------*/

uint16_t dti_f16_bits(float x)
{
    const unsigned u = __float_as_uint(x), sign = u >> 16 & 0x8000u;
    const float size = fabsf(x);

    if (size != size) return (uint16_t)(sign | 0x7e00u);
    if (size >= 65520.0f) return (uint16_t)(sign | 0x7c00u);
    if (size < 6.103515625e-5f) /* subnormal: a multiple of 2^-24 */
        return (uint16_t)(sign | (unsigned)rintf(size * 16777216.0f));
    const unsigned body = (u & 0x7fffffffu) - (112u << 23);
    return (uint16_t)(sign | ((body + 0xfffu + (body >> 13 & 1u)) >> 13));
}

static float bf16_value(uint16_t bits)
{
    return __uint_as_float((unsigned)bits << 16);
}

namespace
{

/* d += a b of a warp: a [16, 16], b [16, 8], d [16, 8]. */
struct product {
    float *d;
    const uint32_t *a, *b;
    float (*value)(uint16_t);
};

struct tile {
    float a[16][16], b[16][8], d[16][8];
};

uint16_t half_of(const uint32_t *registers, unsigned i)
{
    return (uint16_t)(registers[i / 2] >> (16 * (i % 2)));
}

/* Row and column of element i of a lane. */
void place_a(unsigned lane, unsigned i, unsigned *row, unsigned *column)
{
    *row = lane / 4 + (i % 4 < 2 ? 0 : 8);
    *column = lane % 4 * 2 + i % 2 + (i < 4 ? 0 : 8);
}

void place_b(unsigned lane, unsigned i, unsigned *row, unsigned *column)
{
    *row = lane % 4 * 2 + i % 2 + (i < 2 ? 0 : 8);
    *column = lane / 4;
}

void place_d(unsigned lane, unsigned i, unsigned *row, unsigned *column)
{
    *row = lane / 4 + (i < 2 ? 0 : 8);
    *column = lane % 4 * 2 + i % 2;
}

void multiply(void *const of[32], unsigned)
{
    tile t;
    unsigned r, c;

    for (unsigned lane = 0; lane < 32; lane++) {
        const product *p = static_cast<product *>(of[lane]);
        for (unsigned i = 0; i < 8; i++) {
            place_a(lane, i, &r, &c);
            t.a[r][c] = p->value(half_of(p->a, i));
        }
        for (unsigned i = 0; i < 4; i++) {
            place_b(lane, i, &r, &c);
            t.b[r][c] = p->value(half_of(p->b, i));
            place_d(lane, i, &r, &c);
            t.d[r][c] = p->d[i];
        }
    }
    for (unsigned m = 0; m < 16; m++)
        for (unsigned n = 0; n < 8; n++) {
            double sum = t.d[m][n];
            for (unsigned k = 0; k < 16; k++) sum += (double)t.a[m][k] * t.b[k][n];
            t.d[m][n] = (float)sum;
        }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 4; i++) {
            place_d(lane, i, &r, &c);
            static_cast<product *>(of[lane])->d[i] = t.d[r][c];
        }
}

/* ldmatrix: lane l brings the address of row l % 8 of matrix l / 8; of matrix m lane l gets the
 * elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4, or, transposed, of column l / 4. */
struct matrices {
    const void *row;
    uint32_t *r;
    unsigned n;
    bool turned;
};

void load_matrices(void *const of[32], unsigned)
{
    const auto lane_of = [of](unsigned l) { return static_cast<matrices *>(of[l]); };
    const unsigned n = lane_of(0)->n;
    uint16_t rows[4][8][8];

    for (unsigned l = 0; l < 8 * n; l++) memcpy(rows[l / 8][l % 8], lane_of(l)->row, 16);
    for (unsigned l = 0; l < 32; l++)
        for (unsigned m = 0; m < n; m++) {
            const unsigned i = l / 4, j = l % 4 * 2;
            const bool turned = lane_of(l)->turned;
            const unsigned low = turned ? rows[m][j][i] : rows[m][i][j];
            const unsigned high = turned ? rows[m][j + 1][i] : rows[m][i][j + 1];
            lane_of(l)->r[m] = high << 16 | low;
        }
}

void load(const char *what, matrices m)
{
    const unsigned lane = current->lane;

    if (lane < 8 * m.n && (uintptr_t)m.row % 16 != 0) dti_sim_misaligned(m.row, 16);
    meet(what, 0xffffffffu, &m, [](void *const of[32], unsigned met) {
        if (met == 0xffffffffu) load_matrices(of, met);
    });
}

void product_of_warp(const char *what, product p)
{
    meet(what, 0xffffffffu, &p, [](void *const of[32], unsigned met) {
        if (met == 0xffffffffu) multiply(of, met);
    });
}

} // namespace

void dti_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    product_of_warp("mma", product{ d, a, b, bf16_value });
}

void dti_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    product_of_warp("mma", product{ d, a, b, dti_f16_value });
}

void dti_ldmatrix_x4(uint32_t r[4], const void *row)
{
    load("ldmatrix", matrices{ row, r, 4, false });
}

void dti_ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    load("ldmatrix.trans", matrices{ row, r, 4, true });
}

void dti_ldmatrix_x2(uint32_t r[2], const void *row)
{
    load("ldmatrix", matrices{ row, r, 2, false });
}

void dti_ldmatrix_x2_trans(uint32_t r[2], const void *row)
{
    load("ldmatrix.trans", matrices{ row, r, 2, true });
}

/* --- copies into shared memory ---------------------------------------------------------------*/

void dti_cp_async_16(void *shared, const void *global, int bytes)
{
    async_copies &c = copies_of_thread();

    if ((uintptr_t)shared % 16 != 0) dti_sim_misaligned(shared, 16);
    if ((uintptr_t)global % 16 != 0) dti_sim_misaligned(global, 16);
    if (bytes < 0 || bytes > 16) fault("cp.async of %d bytes", bytes);
    c.pending.push_back(async_copy{ shared, global, bytes, c.group });
}

void dti_cp_async_commit(void)
{
    copies_of_thread().group++;
}

/* All groups but the last n that were committed have arrived. */
void dti_sim_cp_async_wait(int n)
{
    async_copies &c = copies_of_thread();
    size_t kept = 0;

    for (const async_copy &a : c.pending) {
        if (a.group >= c.group - n) {
            c.pending[kept++] = a;
            continue;
        }
        unsigned char line[16] = {};
        memcpy(line, a.from, (size_t)a.bytes);
        memcpy(a.to, line, sizeof line);
    }
    c.pending.resize(kept);
}
