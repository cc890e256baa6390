/* SPDX-License-Identifier: Apache-2.0
 *
 * What the users of AMX tiles share. A tile has up to 16 rows of 64 bytes. */
#ifndef DTI_TILES_AMX_H
#define DTI_TILES_AMX_H

#include <immintrin.h>
#include <stdint.h>

#define DTI_USES_TILES __attribute__((target("amx-tile,amx-bf16,avx512f")))

enum { DTI_N_TILES = 8, DTI_TILE_SIDE = 16, DTI_TILE_CHUNK = 32 }; /* rows; elements of bf16 */

typedef struct dti_tile_config {
    _Alignas(64) uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} dti_tile_config;

/* 16 rows of 64 bytes for every tile. */
static inline dti_tile_config dti_tile_full(void)
{
    dti_tile_config config = { .palette = 1 };

    for (int i = 0; i < DTI_N_TILES; i++) {
        config.rows[i] = DTI_TILE_SIDE;
        config.row_bytes[i] = 64;
    }
    return config;
}

/* The copy is volatile for the compiler's sake: gcc 12 takes the load of a configuration for a read
 * of its first eight bytes and drops the stores to the rest. */
DTI_USES_TILES static inline void dti_tile_configure(const dti_tile_config *config)
{
    volatile dti_tile_config copy = *config;

    _tile_loadconfig((const void *)&copy);
}

#endif
