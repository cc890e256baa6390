/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/support/bench_report.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "dtensor/kernels/cpu/cpu.h"

static void read_cpu_name(char *name, size_t bytes)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];

    (void)snprintf(name, bytes, "unknown processor");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        line[strcspn(line, "\n")] = '\0';
        (void)snprintf(name, bytes, "%s", colon + 2);
        break;
    }
    if (f != NULL) (void)fclose(f);
}

void bench_report_open(bench_report *r, const char *name, const bench_common *common,
                       const bench_column *columns, size_t n_columns)
{
    char cpu[128];

    *r = (bench_report){
        .name = name, .columns = columns, .n_columns = (int)n_columns, .json = common->json
    };
    r->facts = json_object();
    r->rows = json_array();
    read_cpu_name(cpu, sizeof cpu);
    bench_report_fact(r, "bench", "%s", name);
    if (common->quick) bench_report_fact(r, "quick", "tiny sizes, the figures mean nothing");
    bench_report_fact(r, "machine", "%s, %d cores, L3 %zu MiB, best kernels %s", cpu, bench_cores(),
                      bench_l3_bytes() >> 20, dti_isa_name(dti_isa_detect()));
    bench_report_fact(r, "build", "dtensor %s, %s %s", dt_version(),
#ifdef __clang__
                      "clang", __clang_version__
#else
                      "gcc", __VERSION__
#endif
    );
}

void bench_report_fact(bench_report *r, const char *key, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (r->json)
        (void)json_object_set_new(r->facts, key, json_string(text));
    else
        printf("%-9s %s\n", key, text);
}

static void print_head(bench_report *r)
{
    printf("\n");
    for (int i = 0; i < r->n_columns; i++) {
        const bench_column *c = &r->columns[i];
        printf("%*s%s", c->decimals < 0 ? -c->width : c->width, c->title,
               i + 1 < r->n_columns ? "  " : "\n");
    }
    r->begun = true;
}

static void print_cell(const bench_column *c, double number, const char *text)
{
    if (c->decimals < 0)
        printf("%-*s", c->width, text);
    else if (!isfinite(number))
        printf("%*s", c->width, "-");
    else
        printf("%*.*f", c->width, c->decimals, number);
}

void bench_report_row(bench_report *r, ...)
{
    json_t *row = json_object();
    va_list args;

    if (!r->json && !r->begun) print_head(r);
    va_start(args, r);
    for (int i = 0; i < r->n_columns; i++) {
        const bench_column *c = &r->columns[i];
        const char *text = c->decimals < 0 ? va_arg(args, const char *) : NULL;
        const double number = c->decimals < 0 ? NAN : va_arg(args, double);

        if (!r->json) {
            print_cell(c, number, text);
            printf("%s", i + 1 < r->n_columns ? "  " : "\n");
        } else {
            (void)json_object_set_new(row, c->key,
                                      text != NULL        ? json_string(text)
                                      : !isfinite(number) ? json_null()
                                                          : json_real(number));
        }
    }
    va_end(args);
    (void)fflush(stdout);
    if (r->json)
        (void)json_array_append_new(r->rows, row);
    else
        json_decref(row);
}

int bench_report_close(bench_report *r, dt_status st)
{
    const dt_error *e = dt_last_error();

    if (r->json && st == DT_OK) {
        (void)json_object_set(r->facts, "rows", r->rows);
        (void)json_dumpf(r->facts, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        printf("\n");
    }
    json_decref(r->facts);
    json_decref(r->rows);
    if (st == DT_OK) return 0;
    (void)fprintf(stderr, "%s: %s: %s\n", r->name, dt_status_name(e->code), e->message);
    for (int i = 0; i < e->n_frames; i++)
        (void)fprintf(stderr, "    at %s (%s:%d)\n", e->frames[i].func, e->frames[i].file,
                      e->frames[i].line);
    return st == DT_ERR_ARG ? 2 : 1;
}
