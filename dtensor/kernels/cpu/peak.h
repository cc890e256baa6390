/* SPDX-License-Identifier: Apache-2.0
 *
 * Multiply-adds and nothing else: the most that products reach on this machine. */
#ifndef DTI_PEAK_H
#define DTI_PEAK_H

#include "dtensor/kernels/cpu/cpu.h"

/* Runs so many rounds; returns the operations done, of which a multiply-add is two. */
typedef double (*dti_peak_fn)(int64_t rounds);

/* Of the instruction that products of a dtype end up in. */
dti_peak_fn dti_peak_of(dti_isa isa, dt_dtype dtype);

double dti_peak_portable(int64_t rounds);
#ifdef DT_HAVE_X86_KERNELS
double dti_peak_avx2(int64_t rounds);
double dti_peak_avx512(int64_t rounds);
double dti_peak_avx512_bf16(int64_t rounds); /* vdpbf16ps */
double dti_peak_amx(int64_t rounds);         /* tiles of bf16 */
#endif

#endif
