/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of rows and outputs over one instruction set's block(). Before including, define R_MAX (2
 * or 3), and afterwards
 *   block(t, R, kind)
 * which multiplies a tile of R rows and O outputs. */

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* What is known when compiling: the codes; whether groups are so wide that a lane has much of one;
 * and whether a tile is alone with its outputs, or keeps numbers for others, or has them. */
typedef struct packed_kind {
    int bits;
    bool floats, zeros, wide, keeps, kept;
} packed_kind;

static inline __attribute__((always_inline)) void block(const dti_packed_tile *t, const int R,
                                                        const packed_kind k);

/* Where there are several tiles they share rows evenly. */
static inline __attribute__((always_inline)) void rows(const dti_packed_tile *t,
                                                       const packed_kind k)
{
    const bool shared = k.keeps || k.kept;

    if (t->n_rows == R_MAX)
        block(t, R_MAX, k);
    else if (R_MAX > 2 && t->n_rows == 2)
        block(t, 2, k);
    else if (R_MAX == 2 || !shared)
        block(t, 1, k);
}

static inline __attribute__((always_inline)) void of_kind(const dti_packed_tile *t, packed_kind k)
{
    if (t->kept) {
        k.kept = true;
        rows(t, k);
    } else if (t->keep != NULL) {
        k.keeps = true;
        rows(t, k);
    } else {
        rows(t, k);
    }
}
