/* SPDX-License-Identifier: Apache-2.0
 *
 * Measuring, in parts. */
#ifndef DTI_PLANNER_MEASURE_H
#define DTI_PLANNER_MEASURE_H

#include <dtensor/calibrate.h>

/* Steps of models on as many ranks as run at once, for so many seconds: rates, figures of kernels
 * and of calls (measure_kernels.c). */
dt_status dti_measure_kernels(const dt_calibrate_options *o, double seconds,
                              dt_machine *m) DT_MUST_USE;

/* Collectives on all ranks (measure_links.c). */
dt_status dti_measure_links(const dt_calibrate_options *o, double seconds,
                            dt_machine *m) DT_MUST_USE;

/* The run that a measurement is made in. */
dt_run_options dti_calibrate_run(const dt_calibrate_options *o, int n_ranks, int threads);

/* "measured: ..." as a figure. */
void dti_figure_set(dt_machine *m, dt_figure_kind kind, double value, const char *fmt, ...)
    DT_PRINTF(4, 5);

/* Of n times from 1 on what a quarter of them is below: what else runs makes calls longer, never
 * shorter. Sorts. */
double dti_quick_of(double *x, int n);

#endif
