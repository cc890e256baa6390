/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of rows and outputs over one instruction set's block(): every tile has the same order of
 * sums. Before including, define R_MAX, and
 *   block(a, m, o, R, O, bits, shifted, floats)
 * which multiplies rows m.. and outputs o.. of a tile known when compiling. */

static inline __attribute__((always_inline)) void
tiles(const dti_packed_args *a, int n_out, const int bits, const bool shifted, const bool floats)
{
    int64_t m = 0;
    int o = 0;

    if (a->n_rows == 1 && n_out == DTI_PACKED_OUTPUTS) {
        block(a, 0, 0, 1, DTI_PACKED_OUTPUTS, bits, shifted, floats);
        return;
    }
    for (; o + 2 <= n_out; o += 2) {
        for (m = 0; m + R_MAX <= a->n_rows; m += R_MAX)
            block(a, m, o, R_MAX, 2, bits, shifted, floats);
        for (; m + 2 <= a->n_rows; m += 2) block(a, m, o, 2, 2, bits, shifted, floats);
        if (m < a->n_rows) block(a, m, o, 1, 2, bits, shifted, floats);
    }
    for (m = 0; o < n_out && m < a->n_rows; m++) block(a, m, o, 1, 1, bits, shifted, floats);
}

static void dot(const dti_packed_args *a, int n_out)
{
    if (a->floats)
        tiles(a, n_out, 8, false, true);
    else if (a->bits == 4 && a->shifts == NULL)
        tiles(a, n_out, 4, false, false);
    else if (a->bits == 4)
        tiles(a, n_out, 4, true, false);
    else if (a->shifts == NULL)
        tiles(a, n_out, 8, false, false);
    else
        tiles(a, n_out, 8, true, false);
}
