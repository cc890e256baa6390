/* SPDX-License-Identifier: Apache-2.0
 *
 * Which parallelism, how much of each, and why: machines as figures.
 *
 * Three kinds of number are never mixed. What a step sends, computes and holds is exact: a dry run
 * of it counts that (<dtensor/predict.h>). What a machine reaches is measured, or published by
 * somebody who has a name. What a step takes is predicted from both. */
#ifndef DT_PLANNER_H
#define DT_PLANNER_H

#include <dtensor/predict.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- machines --------------------------------------------------------------------------------- */

enum { DT_SOURCE_BYTES = 160, DT_MACHINE_NAME_BYTES = 80 };

/* A number, and where it is from. */
typedef struct dt_figure {
    double value; /* 0: unknown */
    char source[DT_SOURCE_BYTES];
} dt_figure;

/* Bytes, seconds, bytes and operations a second. Links are counted one way, and carry as much the
 * other way at the same time. */
typedef enum dt_figure_kind {
    DT_FIGURE_DEVICE_BYTES, /* memory of a device that a run may take */
    DT_FIGURE_HOST_BYTES,   /* memory of a node beside its devices; disk of a node */
    DT_FIGURE_DISK_BYTES,
    DT_FIGURE_MEMORY_BANDWIDTH, /* of a device's memory */
    DT_FIGURE_FLOPS_F32,        /* of a device, multiply-adds counting as two */
    DT_FIGURE_FLOPS_BF16,
    DT_FIGURE_FLOPS_F16,
    DT_FIGURE_EFFICIENCY,     /* share of those that a step's kernels reach */
    DT_FIGURE_INSIDE_LATENCY, /* between devices of a node */
    DT_FIGURE_INSIDE_BANDWIDTH,
    DT_FIGURE_BETWEEN_LATENCY,   /* between nodes */
    DT_FIGURE_BETWEEN_BANDWIDTH, /* of a node, which its devices share */
    DT_FIGURE_HOST_BANDWIDTH,    /* between a device and its host; between a node and its disk */
    DT_FIGURE_DISK_BANDWIDTH,
    DT_N_FIGURES
} dt_figure_kind;

/* Nodes of devices that are all alike. */
typedef struct dt_machine {
    char name[DT_MACHINE_NAME_BYTES];
    bool gpus; /* devices are GPUs with memory of their own; else cores */
    int nodes, devices_per_node;
    dt_figure figure[DT_N_FIGURES];
} dt_machine;

/** "inside_bandwidth": what files call a figure. Not collective. Errors: none; NULL of a number
 * that is none. */
DT_API const char *dt_figure_name(dt_figure_kind kind);

/** Machine `i` of those that are known by name; NULL behind the last. Not collective. Errors:
 * none. */
DT_API const dt_machine *dt_machine_at(int i);

/**
 * Finds a machine by name, "h100", with as many nodes and devices in each as are said, as in
 * "h100:128x8",
 * or reads a file, whose name has a "." or a "/". The file is a JSON object with "name", "nodes",
 * "devices_per_node", "gpus" and the figures: {"value": 312e12, "source": "..."}, or the number
 * alone, whose source then is the file.
 *
 * Not collective.
 * Errors      DT_ERR_ARG     NULL, a name that is none, counts out of range
 *             DT_ERR_IO      the file cannot be read
 *             DT_ERR_FORMAT  a key that is none, is missing or repeated, a value out of range: the
 *                            message names file, key and what has to be
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_machine_read(const char *name, dt_machine *out);

/** The same of n bytes of JSON, which messages call `name`. Not collective. Errors: those of
 * dt_machine_read() but DT_ERR_IO. */
DT_API DT_MUST_USE dt_status dt_machine_parse(const char *name, const char *text, size_t n,
                                              dt_machine *out);

/** Writes a machine as dt_machine_read() reads it. Returns the length as snprintf() does. Not
 * collective. Errors: none; text that has no room is cut. */
DT_API int dt_machine_print(const dt_machine *machine, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
