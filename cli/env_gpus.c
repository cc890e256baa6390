/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/env_gpus.h"

#include <stdio.h>

#include "base/memory.h"
#include "mesh/gpu.h"

enum { MAX_SHOWN = 64, VERSION_BYTES = 24 };

typedef struct gpus {
    const dti_cuda_module *module; /* NULL: `why` says why there is none */
    char why[DT_ERROR_MESSAGE_BYTES];
    dti_cuda_versions v;
    dti_cuda_properties *each; /* [n] */
    int n;
} gpus;

static void look(gpus *g)
{
    const dt_error before = *dt_last_error();

    *g = (gpus){ .n = 0 };
    if (dti_gpu_module(&g->module) != DT_OK) {
        (void)snprintf(g->why, sizeof g->why, "%s", dt_last_error()->message);
        dti_error_restore(&before);
        g->module = NULL;
        return;
    }
    g->module->versions(&g->v);
    (void)snprintf(g->why, sizeof g->why, "%s", g->v.no_device);
    if (dti_alloc_array(MAX_SHOWN, sizeof *g->each, (void **)&g->each) != DT_OK) return;
    for (int i = 0; i < g->v.n_devices && g->n < MAX_SHOWN; i++, g->n++)
        if (g->module->properties(i, &g->each[i]) != 0)
            (void)snprintf(g->each[i].name, sizeof g->each[i].name, "cannot be asked: %.90s",
                           g->module->why());
}

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

/* What does not fit, in words, or NULL. Within one major version newer libraries serve older
 * programs, and drivers serve all programs that are not newer. */
static const char *misfit(const gpus *g)
{
    const dti_cuda_versions *v = &g->v;

    if (v->driver > 0 && v->driver / 1000 < v->runtime / 1000)
        return "the driver is older than the CUDA runtime: install a newer driver";
    if (v->nccl_built > 0 && v->nccl_loaded > 0 && v->nccl_loaded < v->nccl_built)
        return "the NCCL that is found is older than the one that was built with";
    return NULL;
}

static void print_libraries(const gpus *g)
{
    char runtime[VERSION_BYTES], driver[VERSION_BYTES], nccl[VERSION_BYTES];
    const dti_cuda_versions *v = &g->v;

    (void)printf("  CUDA         %s, driver %s%s%s\n", cuda_version(v->runtime, runtime),
                 v->driver > 0 ? "for " : "none",
                 v->driver > 0 ? cuda_version(v->driver, driver) : "",
                 v->cublas_lt > 0 ? ", products by cuBLASLt" : ", products by own kernels");
    if (v->nccl_loaded > 0)
        (void)printf("  NCCL         %s\n", nccl_version(v->nccl_loaded, nccl));
    else
        (void)printf("  NCCL         %s\n", v->nccl_built > 0 ? "not found" : "not built in");
    if (misfit(g) != NULL) (void)printf("  misfit       %s\n", misfit(g));
}

void cli_print_gpus(void)
{
    gpus g;

    look(&g);
    (void)printf("\ngpus\n");
    if (g.module == NULL)
        (void)printf("  none         %s\n", g.why);
    else
        print_libraries(&g);
    if (g.module != NULL && g.n == 0)
        (void)printf("  none         %s; runs use the CPU, unless --device cuda demands one\n",
                     g.why);
    for (int i = 0; i < g.n; i++)
        (void)printf("  cuda:%-2d      %s, %s, %d.%d, %d SMs, %.1f of %.1f GiB free\n", i,
                     g.each[i].name, g.each[i].pci, g.each[i].major, g.each[i].minor,
                     g.each[i].n_sms, (double)g.each[i].free_bytes / 0x1p30,
                     (double)g.each[i].bytes / 0x1p30);
    dti_free(g.each);
}

json_t *cli_gpus_json(void)
{
    json_t *list = json_array(), *object;
    gpus g;

    look(&g);
    for (int i = 0; i < g.n; i++)
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:i, s:i, s:i, s:I, s:I}", "name", g.each[i].name, "pci",
                            g.each[i].pci, "major", g.each[i].major, "minor", g.each[i].minor,
                            "sms", g.each[i].n_sms, "bytes", (json_int_t)g.each[i].bytes,
                            "free_bytes", (json_int_t)g.each[i].free_bytes));
    object = json_pack("{s:b, s:i, s:i, s:i, s:i, s:i, s:s?, s:s?, s:o}", "module",
                       g.module != NULL, "driver", g.v.driver, "runtime", g.v.runtime, "cublas_lt",
                       g.v.cublas_lt, "nccl_built", g.v.nccl_built, "nccl", g.v.nccl_loaded, "why",
                       g.why[0] != '\0' ? g.why : NULL, "misfit",
                       g.module != NULL ? misfit(&g) : NULL, "devices", list);
    dti_free(g.each);
    return object;
}
