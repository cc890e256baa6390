/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <string.h>

#include "base/memory.h"
#include "dtensor/kernels/cpu/attention.h"

#ifdef DT_HAVE_X86_KERNELS
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

static const char *const isa_names[DTI_N_ISAS] = {
    [DTI_ISA_PORTABLE] = "portable",       [DTI_ISA_AVX2] = "avx2", [DTI_ISA_AVX512] = "avx512",
    [DTI_ISA_AVX512_BF16] = "avx512_bf16", [DTI_ISA_AMX] = "amx",
};

const char *dti_isa_name(dti_isa isa)
{
    return (unsigned)isa < DTI_N_ISAS ? isa_names[isa] : "?";
}

#ifdef DT_HAVE_X86_KERNELS
/* The builtins also check that the system saves the registers; f16c has no builtin in clang 14. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

/* Tiles, and bf16 in them. The kernel hands tile registers to a process that asks once; asking
 * again is harmless, and threads inherit the answer. */
static bool has_amx(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    const unsigned needed = 1u << 22 | 1u << 24; /* AMX-BF16, AMX-TILE */
    unsigned a, b, c, d;

    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & needed) != needed) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

dti_isa dti_isa_detect(void)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return DTI_ISA_PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return DTI_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni"))
        return DTI_ISA_AVX512;
    return has_amx() ? DTI_ISA_AMX : DTI_ISA_AVX512_BF16;
}
#else
dti_isa dti_isa_detect(void)
{
    return DTI_ISA_PORTABLE;
}
#endif

dt_status dti_isa_parse(const char *text, dti_isa *out)
{
    const dti_isa best = dti_isa_detect();

    if (strcmp(text, "auto") == 0) {
        *out = best;
        return DT_OK;
    }
    for (int i = 0; i < DTI_N_ISAS; i++) {
        if (strcmp(text, isa_names[i]) != 0) continue;
        DT_CHECK(i <= (int)best, DT_ERR_UNSUPPORTED,
                 "instruction set \"%s\" is not available: this machine and this build have \"%s\" "
                 "at most; choose that, a lesser one, or \"auto\"",
                 text, isa_names[best]);
        *out = (dti_isa)i;
        return DT_OK;
    }
    DT_FAIL(DT_ERR_ARG,
            "instruction set \"%s\" is unknown: use auto, portable, avx2, avx512, avx512_bf16 or "
            "amx",
            text);
}

const dti_row_ops *dti_cpu_rows_of(dti_isa isa)
{
    switch (isa) {
#ifdef DT_HAVE_X86_KERNELS
    case DTI_ISA_AVX2:
        return dti_rows_avx2;
    case DTI_ISA_AVX512:
    case DTI_ISA_AVX512_BF16:
    case DTI_ISA_AMX:
        return dti_rows_avx512;
#endif
    default:
        return dti_rows_portable;
    }
}

static dti_random_fn random_of(dti_isa isa)
{
    switch (isa) {
#ifdef DT_HAVE_X86_KERNELS
    case DTI_ISA_AVX2:
        return dti_random_avx2;
    case DTI_ISA_AVX512:
    case DTI_ISA_AVX512_BF16:
    case DTI_ISA_AMX:
        return dti_random_avx512;
#endif
    default:
        return dti_random_portable;
    }
}

static const dti_step_ops *steps_of(dti_isa isa)
{
    switch (isa) {
#ifdef DT_HAVE_X86_KERNELS
    case DTI_ISA_AVX2:
        return &dti_steps_avx2;
    case DTI_ISA_AVX512:
    case DTI_ISA_AVX512_BF16:
    case DTI_ISA_AMX:
        return &dti_steps_avx512;
#endif
    default:
        return &dti_steps_portable;
    }
}

static dti_delta_fn delta_of(dti_isa isa)
{
    switch (isa) {
#ifdef DT_HAVE_X86_KERNELS
    case DTI_ISA_AVX2:
        return dti_delta_avx2;
    case DTI_ISA_AVX512:
    case DTI_ISA_AVX512_BF16:
    case DTI_ISA_AMX:
        return dti_delta_avx512;
#endif
    default:
        return dti_delta_portable;
    }
}

static const dti_dots_ops *dots_of(dti_isa isa, dt_dtype dtype)
{
    switch (isa) {
#ifdef DT_HAVE_X86_KERNELS
    case DTI_ISA_AVX2:
        return &dti_dots_avx2[dtype];
    case DTI_ISA_AMX:
        return dtype == DT_BF16 ? &dti_dots_bf16_amx : &dti_dots_avx512[dtype];
    case DTI_ISA_AVX512_BF16:
        return dtype == DT_BF16 ? &dti_dots_bf16_avx512_bf16 : &dti_dots_avx512[dtype];
    case DTI_ISA_AVX512:
        return &dti_dots_avx512[dtype];
#endif
    default:
        return &dti_dots_portable[dtype];
    }
}

/* Large products: see panels.h. Where bf16 has dot products and no tiles, the library is best. */
static const dti_panel_ops *panels_of(dti_isa isa, dt_dtype dtype)
{
#ifdef DT_HAVE_X86_KERNELS
    if (isa == DTI_ISA_AMX && dtype == DT_BF16) return &dti_panels_amx;
    if (isa == DTI_ISA_AVX512_BF16 && dtype == DT_BF16) return NULL;
    if (isa >= DTI_ISA_AVX512) return &dti_panels_avx512;
#endif
    (void)isa;
    (void)dtype;
    return NULL;
}

dt_status dti_cpu_create(dti_isa isa, dti_pool *pool, dti_cpu **out)
{
    dti_cpu *cpu;

    *out = NULL;
    DT_CHECK((int)isa >= 0 && isa <= dti_isa_detect(), DT_ERR_UNSUPPORTED,
             "instruction set \"%s\" is not available here", dti_isa_name(isa));
    DT_TRY(dti_new(sizeof *cpu, &cpu));
    cpu->isa = isa;
    cpu->pool = pool;
    cpu->rows = dti_cpu_rows_of(isa);
    cpu->random = random_of(isa);
    cpu->steps = steps_of(isa);
    cpu->delta = delta_of(isa);
    for (int t = 0; t < DTI_N_DOTS_DTYPES; t++) {
        cpu->dots[t] = dots_of(isa, (dt_dtype)t);
        cpu->panels[t] = panels_of(isa, (dt_dtype)t);
    }
    cpu->attention = dti_attention_ops_of(isa);
    *out = cpu;
    return DT_OK;
}

void dti_cpu_destroy(dti_cpu **cpu_)
{
    dti_cpu *cpu = *cpu_;

    if (cpu == NULL) return;
    *cpu_ = NULL;
    dti_onednn_destroy(&cpu->onednn);
    dti_big_free(cpu->scratch, cpu->scratch_bytes);
    dti_big_free(cpu->outer, cpu->outer_bytes);
    dti_free(cpu);
}

void dti_cpu_do_beside(dti_cpu *cpu, void (*beside)(void *arg), void *arg)
{
    cpu->beside = beside;
    cpu->beside_arg = arg;
}

void dti_cpu_allow_any_order(dti_cpu *cpu)
{
    cpu->any_order = true;
}

dti_isa dti_cpu_isa(const dti_cpu *cpu)
{
    return cpu->isa;
}

static dt_status grow(size_t bytes, void **scratch, size_t *scratch_bytes)
{
    void *fresh;

    if (bytes <= *scratch_bytes && *scratch != NULL) return DT_OK;
    DT_TRY(dti_big_alloc(bytes, &fresh)); /* the old one stays if there is no memory */
    dti_big_free(*scratch, *scratch_bytes);
    *scratch = fresh;
    *scratch_bytes = bytes;
    return DT_OK;
}

dt_status dti_cpu_scratch(dti_cpu *cpu, size_t bytes, void **out)
{
    DT_TRY(grow(bytes, &cpu->scratch, &cpu->scratch_bytes));
    *out = cpu->scratch;
    return DT_OK;
}

dt_status dti_cpu_outer_scratch(dti_cpu *cpu, size_t bytes, void **out)
{
    DT_TRY(grow(bytes, &cpu->outer, &cpu->outer_bytes));
    *out = cpu->outer;
    return DT_OK;
}

dt_status dti_cpu_rows(const dti_cpu *cpu, const char *op, const dt_local *x,
                       const dti_row_ops **out)
{
    DT_CHECK((unsigned)x->dtype < DTI_N_ROW_DTYPES, DT_ERR_UNSUPPORTED,
             "%s on CPU takes f32, bf16 or f16, not %s; cast first", op, dt_dtype_name(x->dtype));
    *out = &cpu->rows[x->dtype];
    return DT_OK;
}
