/* SPDX-License-Identifier: Apache-2.0
 *
 * What a bench prints: facts about the machine, then rows of figures, as a table or as JSON. */
#ifndef DT_BENCH_REPORT_H
#define DT_BENCH_REPORT_H

#include "bench/support/program.h"

/* One figure of every row. decimals < 0 is a text. */
typedef struct bench_column {
    const char *key;   /* in JSON: says the unit too, "read_gbs" */
    const char *title; /* in the table */
    int width;
    int decimals;
} bench_column;

typedef struct bench_report {
    const char *name;
    const bench_column *columns;
    int n_columns;
    bool json;
    bool begun;         /* the table's head was printed */
    void *facts, *rows; /* jansson's values, for --json */
} bench_report;

/* Prints what the machine is. The columns are borrowed. */
void bench_report_open(bench_report *r, const char *name, const bench_common *common,
                       const bench_column *columns, size_t n_columns);

/* A line below the machine's, in JSON a field beside the rows. */
void bench_report_fact(bench_report *r, const char *key, const char *fmt, ...) DT_PRINTF(3, 4);

/* One value per column: const char * for a text, double otherwise (NAN: none). */
void bench_report_row(bench_report *r, ...);

/* Ends the output; prints the thread's error record if the status is one. Returns the exit code. */
int bench_report_close(bench_report *r, dt_status st);

#endif
