/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/version.h"

#include <dtensor.h>
#include <hwloc.h>
#include <jansson.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

#ifdef __clang__
#define COMPILER "" /* clang's version says clang */
#else
#define COMPILER "gcc "
#endif

void cli_print_version(void)
{
    const dnnl_version_t *dnnl = dnnl_version();

    (void)printf("dtensor %s\n", dt_version());
    (void)printf("  compiler     %s%s\n", COMPILER, __VERSION__);
    (void)printf("  kernels     ");
    for (int i = 0; dt_kernels_name(i) != NULL; i++) (void)printf(" %s", dt_kernels_name(i));
    (void)printf("; this machine: %s\n", dt_kernels_best());
    (void)printf("  ranks        threads, and processes over MPI and GPUs (\"dtensor env\" says "
                 "what was found)\n");
    (void)printf("  libraries    oneDNN %d.%d.%d, hwloc %s, jansson %s\n", dnnl->major, dnnl->minor,
                 dnnl->patch, HWLOC_VERSION, JANSSON_VERSION);
}
