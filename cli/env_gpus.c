/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/env_gpus.h"

#include <dtensor.h>
#include <stdio.h>

enum { VERSION_BYTES = 24 };

/* "13.0" of 13000 */
static const char *cuda_version(int number, char text[VERSION_BYTES])
{
    (void)snprintf(text, VERSION_BYTES, "%d.%d", number / 1000, number % 1000 / 10);
    return text;
}

/* "2.28.9" of 22809 */
static const char *nccl_version(int number, char text[VERSION_BYTES])
{
    (void)snprintf(text, VERSION_BYTES, "%d.%d.%d", number / 10000, number / 100 % 100,
                   number % 100);
    return text;
}

static void print_libraries(const dt_gpus *v)
{
    char runtime[VERSION_BYTES], driver[VERSION_BYTES], nccl[VERSION_BYTES];

    (void)printf("  CUDA         %s, driver %s%s%s\n", cuda_version(v->runtime, runtime),
                 v->driver > 0 ? "for " : "none",
                 v->driver > 0 ? cuda_version(v->driver, driver) : "",
                 v->cublas_lt > 0 ? ", products by cuBLASLt" : ", products by own kernels");
    if (v->nccl > 0)
        (void)printf("  NCCL         %s\n", nccl_version(v->nccl, nccl));
    else
        (void)printf("  NCCL         %s\n", v->nccl_built > 0 ? "not found" : "not built in");
    if (v->misfit != NULL) (void)printf("  misfit       %s\n", v->misfit);
}

void cli_print_gpus(void)
{
    dt_gpus g;

    dt_gpus_look(&g);
    (void)printf("\ngpus\n");
    if (!g.built_in)
        (void)printf("  none         %s\n", g.why);
    else
        print_libraries(&g);
    if (g.built_in && g.n == 0)
        (void)printf("  none         %s; runs use the CPU, unless --device cuda demands one\n",
                     g.why);
    for (int i = 0; i < g.n; i++)
        (void)printf("  cuda:%-2d      %s, %s, %d.%d, %d SMs, %.1f of %.1f GiB free\n", i,
                     g.each[i].name, g.each[i].pci, g.each[i].major, g.each[i].minor,
                     g.each[i].n_sms, (double)g.each[i].free_bytes / 0x1p30,
                     (double)g.each[i].bytes / 0x1p30);
}

json_t *cli_gpus_json(void)
{
    json_t *list = json_array(), *object;
    dt_gpus g;

    dt_gpus_look(&g);
    for (int i = 0; i < g.n; i++)
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:i, s:i, s:i, s:I, s:I}", "name", g.each[i].name, "pci",
                            g.each[i].pci, "major", g.each[i].major, "minor", g.each[i].minor,
                            "sms", g.each[i].n_sms, "bytes", (json_int_t)g.each[i].bytes,
                            "free_bytes", (json_int_t)g.each[i].free_bytes));
    object = json_pack("{s:b, s:i, s:i, s:i, s:i, s:i, s:s?, s:s?, s:o}", "module", g.built_in,
                       "driver", g.driver, "runtime", g.runtime, "cublas_lt", g.cublas_lt,
                       "nccl_built", g.nccl_built, "nccl", g.nccl, "why",
                       g.why[0] != '\0' ? g.why : NULL, "misfit", g.misfit, "devices", list);
    return object;
}
