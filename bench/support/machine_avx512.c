/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/support/machine_avx512.inc.c"

const bench_loops bench_loops_avx512 = { "avx512", read_avx512, copy_avx512, f32_avx512, NULL };
