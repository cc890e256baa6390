/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/version.h"

#include <dtensor.h>
#include <hwloc.h>
#include <jansson.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

#include "dtensor/kernels/cpu/cpu.h"

#ifdef __clang__
#define COMPILER "" /* clang's version says clang */
#else
#define COMPILER "gcc "
#endif

void cli_print_version(void)
{
    const dnnl_version_t *dnnl = dnnl_version();
#ifdef DT_HAVE_X86_KERNELS
    const int n_isas = DTI_N_ISAS;
#else
    const int n_isas = 1;
#endif

    (void)printf("dtensor %s\n", dt_version());
    (void)printf("  compiler     %s%s\n", COMPILER, __VERSION__);
    (void)printf("  kernels     ");
    for (int i = 0; i < n_isas; i++) (void)printf(" %s", dti_isa_name((dti_isa)i));
    (void)printf("; this machine: %s\n", dti_isa_name(dti_isa_detect()));
    (void)printf("  ranks        threads of this process (MPI, NCCL and CUDA are not built)\n");
    (void)printf("  libraries    oneDNN %d.%d.%d, hwloc %s, jansson %s\n", dnnl->major, dnnl->minor,
                 dnnl->patch, HWLOC_VERSION, JANSSON_VERSION);
}
