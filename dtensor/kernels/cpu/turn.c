/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/kernels/cpu/turn.h"

enum { SQUARE = 16, DEEP = 32 }; /* lines are read side by side and written whole */

/* Rows of f32, in squares that stay in level 1. */
static void turn_f32(const dti_turn_job *j, int64_t column, int64_t n)
{
    const dti_row_ops *ops = &j->cpu->rows[j->from_dtype];
    const int64_t bytes = (int64_t)dt_dtype_size(j->from_dtype);
    _Alignas(64) float square[SQUARE][DTI_TURN_ROWS];

    for (int64_t i = 0; i < j->k; i += SQUARE)
        for (int64_t r = 0; r < n; r += DTI_TURN_ROWS) {
            const int64_t rows = n - r < DTI_TURN_ROWS ? n - r : DTI_TURN_ROWS;
            const int64_t deep = j->k - i < SQUARE ? j->k - i : SQUARE;
            float *to = (float *)j->to + r * j->k + i;
            for (int64_t c = 0; c < deep; c++)
                ops->load(square[c],
                          (const char *)j->from + ((i + c) * j->stride + column + r) * bytes, rows);
            for (int64_t a = 0; a < rows; a++)
                for (int64_t c = 0; c < deep; c++) to[a * j->k + c] = square[c][a];
        }
}

/* Rows of 16-bit words. */
static void turn_words(const dti_turn_job *j, int64_t column, int64_t n)
{
    for (int64_t i = 0; i < j->k; i += DEEP)
        for (int64_t r = 0; r < n; r += SQUARE) {
            const int64_t rows = n - r < SQUARE ? n - r : SQUARE;
            const int64_t deep = j->k - i < DEEP ? j->k - i : DEEP;
            const uint16_t *from = (const uint16_t *)j->from + i * j->stride + column + r;
            uint16_t *to = (uint16_t *)j->to + r * j->k + i;
#ifdef DT_HAVE_X86_KERNELS
            if (rows == SQUARE && deep == DEEP && j->cpu->isa >= DTI_ISA_AVX512) {
                dti_turn_square_avx512(to, j->k, from, j->stride);
                continue;
            }
#endif
            for (int64_t a = 0; a < rows; a++)
                for (int64_t c = 0; c < deep; c++) to[a * j->k + c] = from[c * j->stride + a];
        }
}

void dti_turn(const dti_turn_job *j, int64_t column, int64_t n)
{
    if (j->dtype == DT_F32)
        turn_f32(j, column, n);
    else
        turn_words(j, column, n);
}
