/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine at hand in figures that were measured, for plans: what kernels of a step of training
 * take, by operator, size and dtype, and what collectives take, while all ranks do the same. */
#ifndef DT_CALIBRATE_H
#define DT_CALIBRATE_H

#include <dtensor/planner.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_calibrate_options {
    size_t size;    /* sizeof(dt_calibrate_options) */
    int nodes;      /* that the ranks are divided among, as simulated links may have it; 1 */
    int ranks;      /* of a node; 0: one for each core. More than cores share them */
    int threads;    /* of each rank; 0: cores / ranks, at least 1 */
    double seconds; /* to measure for, about; 20 */
    dt_log_fn log;  /* warns of a machine that is busy; may be NULL */
    void *log_arg;
    const char *links; /* as in dt_run_options; between nodes they are called "dp", inside "tp" */
    const char *isa, *products; /* likewise */
} dt_calibrate_options;

#define DT_CALIBRATE_OPTIONS_INIT                                               \
    {                                                                           \
        sizeof(dt_calibrate_options), 1, 0, 0, 20, NULL, NULL, NULL, NULL, NULL \
    }

/**
 * The machine of the calling process without its rates: cores that it may use, memory, processor.
 *
 *   ranks  of it, 0: one for each core
 *
 * Not collective.
 * Errors      DT_ERR_ARG     NULL, a negative number
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_machine_here(int ranks, dt_machine *out);

/**
 * The same with what it reaches: steps of small models are run with every kernel's time noted, then
 * collectives of few bytes and of many over groups of every size, messages, and a sum that travels
 * beside products. Runs of its own are begun and ended. dt_machine_print() makes a file of it.
 *
 *   options  NULL for defaults
 *
 * Not collective: of a process that is not one of several.
 * Errors      DT_ERR_ARG          NULL, an option out of range; those of dt_run()
 *             DT_ERR_UNSUPPORTED  the process is one of several
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_machine_calibrate(const dt_calibrate_options *options,
                                                  dt_machine *out);

/**
 * Runs the first ways that are ranked, on this machine, with random weights: some steps each behind
 * two that do not count. The one that was fastest leads then; dt_way_cost.measured of each is what
 * a quarter of its steps stayed below.
 *
 *   run   how: links, kernels, modules; ranks and threads are the way's. NULL: defaults
 *   ways  to run; all that are ranked if those are fewer
 *
 * Not collective: of a process that is not one of several.
 * Errors      DT_ERR_ARG  NULL, numbers out of range, a machine of GPUs, a search for generation;
 *             those of dt_run(), of loading the model and of its steps
 */
DT_API DT_MUST_USE dt_status dt_search_measure(dt_search *search, const dt_run_options *run,
                                               int ways, int steps);

#ifdef __cplusplus
}
#endif
#endif
