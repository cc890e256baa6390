/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of Intel processors from Sapphire Rapids on. */
#include "dtensor/kernels/cpu/peak.h"

#ifdef DT_HAVE_X86_KERNELS

#include "dtensor/kernels/cpu/tiles_amx.h"

/* Six sums of 16 x 16 that do not wait for each other. */
DTI_USES_TILES double dti_peak_amx(int64_t rounds)
{
    static const unsigned char zeros[64 * DTI_TILE_SIDE] = { 0 };
    const dti_tile_config config = dti_tile_full();

    dti_tile_configure(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_release();
    return (double)rounds * 6 * DTI_TILE_SIDE * DTI_TILE_SIDE * DTI_TILE_CHUNK * 2;
}

#endif
