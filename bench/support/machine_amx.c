/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of Intel processors from Sapphire Rapids on. The system gives them to a process that asks.
 */
#include "bench/support/machine.h"

#if defined(DT_HAVE_X86_KERNELS) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARCH_REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, N_ACCUMULATORS = 6 };

typedef struct tile_config {
    _Alignas(64) uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

static bool tiles_allowed(void)
{
    unsigned a, b, c, d;

    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d & (1u << 24)) == 0 || (d & (1u << 22)) == 0) return false; /* tiles, bf16 in tiles */
    return syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* Eight tiles of 16 rows of 64 bytes. A constant object: gcc 12 believes that loading it reads its
 * first eight bytes only, and drops stores to the rest. */
static const tile_config config = { .palette = 1,
                                    .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
                                    .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } };

/* Six sums of 16 x 16 that do not wait for each other. */
__attribute__((target("amx-tile,amx-bf16"))) static void multiply(int64_t rounds)
{
    static const unsigned char zeros[64 * 16] = { 0 };

    _tile_loadconfig(&config);
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
}

double bench_amx_bf16(int64_t rounds)
{
    if (!tiles_allowed()) return 0.0;
    multiply(rounds);
    return (double)rounds * N_ACCUMULATORS * 16 * 16 * 32 * 2;
}

#else

double bench_amx_bf16(int64_t rounds)
{
    (void)rounds;
    return 0.0;
}

#endif
