/* SPDX-License-Identifier: Apache-2.0
 *
 * The decision table, row by row, with models from 125 M to 405 B parameters: which case it is, by
 * which numbers, and what is taken; and how long looking takes. */
#include <time.h>

#include "tests/planner/ways.h"

enum { M125, M350, B1, B8, B13, B30, WIDE, BLOCK, ODD, B70, B405 };

static const test_model models[] = {
    [M125] = { "125M", 768, 3072, 12, 12, 12, 50304, 2048, "bfloat16" },
    [M350] = { "350M", 1024, 4096, 16, 16, 24, 50304, 2048, "bfloat16" },
    [B1] = { "1.3B", 2048, 8192, 16, 16, 24, 50304, 2048, "bfloat16" },
    [B8] = { "8B", 4096, 14336, 32, 8, 32, 128256, 8192, "bfloat16" },
    [B13] = { "13B", 5120, 13824, 40, 40, 40, 32000, 4096, "bfloat16" },
    [B30] = { "30B", 6656, 17920, 52, 52, 60, 32000, 4096, "bfloat16" },
    [WIDE] = { "wide", 8192, 28672, 64, 8, 4, 128256, 8192, "bfloat16" },
    [BLOCK] = { "one block", 16384, 65536, 128, 8, 1, 4096, 4096, "bfloat16" },
    [ODD] = { "seven heads", 14336, 65536, 7, 7, 2, 32000, 4096, "bfloat16" },
    [B70] = { "70B", 8192, 28672, 64, 8, 80, 128256, 8192, "bfloat16" },
    [B405] = { "405B", 16384, 53248, 128, 8, 126, 128256, 8192, "bfloat16" },
};

/* pp 0: nothing fits. bytes 0: those of the machine. */
typedef struct fixture {
    int model;
    const char *machine;
    double bytes;
    int64_t batch, sequence;
    const char *id;
    int pp, dp, tp, zero;
    bool offload;
    const char *with; /* what the way has besides of tiles, ends and stages; NULL: nothing */
} fixture;

static const fixture quick[] = {
    { M125, "h100:1x1", 0, 8, 0, "S1", 1, 1, 1, 0, false, NULL },
    { B1, "a100:1x1", 0, 8, 0, "S1", 1, 1, 1, 0, false, NULL },
    { B8, "a100:1x1", 0, 8, 0, "S2", 1, 1, 1, 3, true, NULL },
    { B13, "h100:1x1", 0, 8, 0, "S2", 1, 1, 1, 3, true, NULL },
    { B13, "pcie:1x1", 2.5e9, 16, 512, "S3", 0, 0, 0, 0, false, NULL },
    { BLOCK, "h100:1x1", 18e9, 4, 512, "S3", 1, 1, 1, 3, true, NULL },
    { ODD, "h100", 10e9, 16, 512, "M4", 1, 8, 1, 3, true, "4 tiles" },
    { WIDE, "pcie", 6e9, 16, 512, "M4", 2, 1, 4, 1, true, "stages 2,2" },
    { M125, "h100", 0, 64, 0, "M1", 1, 8, 1, 3, false, NULL },
    { M350, "a100:1x4", 0, 64, 0, "M1", 1, 4, 1, 3, false, NULL },
    { B1, "pcie", 0, 64, 0, "M1", 1, 8, 1, 3, false, NULL },
    { B8, "a100:1x4", 0, 64, 0, "M2", 1, 4, 1, 3, false, NULL },
    { B8, "pcie", 0, 64, 0, "M3", 1, 8, 1, 3, false, NULL },
    { B13, "pcie", 0, 64, 0, "M3", 1, 8, 1, 3, false, NULL },
    { WIDE, "h100", 18e9, 16, 512, "M4", 1, 4, 2, 3, false, NULL },
    { B13, "a100:4x8", 0, 256, 0, "C1", 1, 32, 1, 3, false, NULL },
    { B8, "ethernet:4x8", 0, 256, 0, "C3", 8, 4, 1, 0, false, NULL },
};

static const fixture slow[] = {
    { WIDE, "pcie", 8e9, 16, 512, "M4", 1, 2, 4, 2, true, "ends sharded" },
    { B13, "pcie", 2.5e9, 16, 512, "M4", 0, 0, 0, 0, false, NULL },
    { B8, "h100", 0, 128, 0, "M2", 1, 8, 1, 3, false, NULL },
    { B8, "h100:2x8", 0, 256, 0, "C1", 1, 16, 1, 3, false, NULL },
    { B1, "ethernet:4x8", 0, 256, 0, "C3", 16, 2, 1, 0, false, NULL },
    { M125, "ethernet:2x8", 0, 256, 0, "C3", 1, 16, 1, 2, false, NULL },
    { B13, "a100", 0, 128, 0, "M2", 1, 8, 1, 3, false, NULL },
    { B30, "h100", 0, 128, 0, "M2", 1, 8, 1, 3, true, NULL },
    { B30, "pcie", 0, 64, 0, "M3", 4, 2, 1, 1, true, NULL },
    { B70, "h100:8x8", 0, 512, 0, "C1", 1, 64, 1, 3, false, NULL },
    { B13, "ethernet:8x8", 0, 256, 0, "C3", 16, 4, 1, 0, false, NULL },
    { B30, "ethernet:2x8", 0, 128, 0, "C2", 16, 1, 1, 1, true, NULL },
    { B70, "ethernet:4x8", 0, 256, 0, "C2", 16, 1, 2, 1, true, NULL },
};

static void decide(const fixture *f)
{
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES], text[DT_REASON_BYTES], way[256] = "no way";
    dti_writer written = { way, sizeof way, 0 };
    const dt_verdict *v;
    dt_search *s = NULL;
    dt_machine m;

    test_model_write(&models[f->model], folder);
    DT_ASSERT_OK(dt_machine_read(f->machine, &m));
    if (f->bytes > 0) m.figure[DT_FIGURE_DEVICE_BYTES].value = f->bytes;
    o.batch = f->batch;
    o.sequence = f->sequence;
    DT_ASSERT_OK(dt_search_ways(NULL, folder, &m, &o, &s));
    v = dt_search_at(s, 0);
    (void)dt_search_case(s, text);
    if (v->kind == DT_VERDICT_RANKED) dti_put_way(&written, &s->task, &v->way);
    if (strncmp(text, f->id, 2) != 0 || (v->kind == DT_VERDICT_RANKED) != (f->pp > 0) ||
        (f->pp > 0 && (v->way.pp != f->pp || v->way.dp != f->dp || v->way.tp != f->tp ||
                       v->way.zero != f->zero || v->way.offload != f->offload)) ||
        (f->with != NULL ? strstr(way, f->with) == NULL
                         : v->way.tiles > 1 || v->way.ends || v->way.stages != NULL))
        dt_test_fail(__FILE__, __LINE__, "%s on %s: %s; %s", models[f->model].name, f->machine,
                     text, way);
    DT_ASSERT(strstr(text, "on one device") != NULL);
    if (f->pp > 0)
        DT_ASSERT((double)v->cost.peak_bytes <= m.figure[DT_FIGURE_DEVICE_BYTES].value);
    else
        DT_ASSERT(dt_search_least_devices(s) > (int64_t)m.nodes * m.devices_per_node);
    dt_search_release(&s);
}

DT_TEST(cases, small_models_and_machines)
{
    for (size_t i = 0; i < sizeof quick / sizeof quick[0]; i++) decide(&quick[i]);
}

DT_TEST(cases, large_models_and_machines)
{
    dt_test_long();
    for (size_t i = 0; i < sizeof slow / sizeof slow[0]; i++) decide(&slow[i]);
}

/* Of this process, on however many cores. */
static double cpu_seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

DT_TEST(cases, large_machines_are_planned_in_seconds)
{
    static const struct {
        fixture f;
        double most;
    } timed[] = {
        { { B70, "h100:8x8", 0, 512, 0, "C1", 1, 64, 1, 3, false, NULL }, 2 },
        { { B405, "h100:2048x8", 0, 2048, 8192, "C1", 16, 128, 8, 1, false, NULL }, 10 },
        { { B405, "h100:2048x8", 0, 16384, 8192, "C1", 16, 128, 8, 1, false, NULL }, 10 },
    };

    dt_test_long();
    for (size_t i = 0; i < sizeof timed / sizeof timed[0]; i++) {
        const double began = cpu_seconds();
        decide(&timed[i].f);
        DT_ASSERT(cpu_seconds() - began <= timed[i].most);
    }
}
