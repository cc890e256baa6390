/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/kernels/cpu/peak.h"

dti_peak_fn dti_peak_of(dti_isa isa, dt_dtype dtype)
{
#ifdef DT_HAVE_X86_KERNELS
    if (isa == DTI_ISA_AMX && dtype == DT_BF16) return dti_peak_amx;
    if (isa == DTI_ISA_AVX512_BF16 && dtype == DT_BF16) return dti_peak_avx512_bf16;
    if (isa >= DTI_ISA_AVX512) return dti_peak_avx512;
    if (isa == DTI_ISA_AVX2) return dti_peak_avx2;
#endif
    (void)isa;
    (void)dtype;
    return dti_peak_portable;
}
