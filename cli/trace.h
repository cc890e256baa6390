/* SPDX-License-Identifier: Apache-2.0
 *
 * What every layer and block of a model gave in one pass, and how far another pass is from it. */
#ifndef DTI_CLI_TRACE_H
#define DTI_CLI_TRACE_H

#include "cli/cli.h"

enum { CLI_TRACE_NAME_BYTES = 160 };

/* One tensor of the pass, whole and in f32. */
typedef struct cli_trace_value {
    char name[CLI_TRACE_NAME_BYTES]; /* of the scope that ended with it */
    int n_axes;
    int64_t shape[DT_MAX_AXES];
    int64_t n; /* numbers */
    float *data;
    double largest; /* absolute number of those that are finite */
} cli_trace_value;

typedef struct cli_trace {
    cli_trace_value *list; /* [n], in the order of the pass */
    size_t n, capacity;
    int64_t n_tokens; /* of the pass: the axis of that length counts positions */
} cli_trace;

/* A place where two passes differ: `relative` to the largest number of the tensor. */
typedef struct cli_trace_place {
    const char *name; /* the trace's; NULL: none */
    int64_t position; /* -1: the tensor has no axis of positions */
    int64_t element;  /* within the position */
    float was, is;
    double relative;
} cli_trace_place;

/* How far a pass is from a trace; zeroed before, apart from the tolerance. */
typedef struct cli_trace_result {
    double tolerance;
    size_t next;            /* of the trace's values */
    int64_t n_compared;     /* values */
    cli_trace_place first;  /* that differs by more than the tolerance */
    cli_trace_place worst;  /* of all */
    int64_t n_not_finite;   /* numbers that are none on both; ... */
    const char *not_finite; /* ... the trace's name of the first of them; NULL: none */
} cli_trace_result;

/* Appends what a scope gave; x is whole on this rank, of any float dtype. */
dt_status cli_trace_keep(cli_trace *trace, const char *name, dt_tensor *x) DT_MUST_USE;

/* Compares what a scope of another pass gave with the trace's next value of that name and shape. A
 * scope that the trace does not have (a style of another plan) is passed over. */
dt_status cli_trace_compare(const cli_trace *trace, const char *name, dt_tensor *x,
                            cli_trace_result *result) DT_MUST_USE;

void cli_trace_free(cli_trace *trace);

#endif
