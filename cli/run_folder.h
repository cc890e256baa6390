/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder of a training run: options.json says how it was begun, metrics.jsonl what every step
 * gave, plan.json what it holds and sends, trace.json what a step was; checkpoints of
 * <dtensor/training_checkpoints.h>; model-00000100, Hugging Face folders, the newest of which
 * "model" leads to. */
#ifndef DTI_CLI_RUN_FOLDER_H
#define DTI_CLI_RUN_FOLDER_H

#include "cli/cli.h"

#define CLI_RUN_PLAN  "plan.json"
#define CLI_RUN_TRACE "trace.json"
#define CLI_RUN_MODEL "model"

struct json_t;

/* Refuses a folder that cannot be the output of a run which begins (or goes on): one that holds
 * another run, or a model; no folder; not writable. Nothing is made. */
dt_status cli_run_check(const char *run, bool resume) DT_MUST_USE;

/* Whether a run is writing into the folder now. */
bool cli_run_is_busy(const char *run);

/* Refuses a folder on whose disk `bytes` more have no room; names what needs them. */
dt_status cli_run_check_space(const char *run, double bytes, const char *what) DT_MUST_USE;

/* Checkpoints that a folder holds. */
int64_t cli_run_count_steps(const char *run);

/* Removes what a run that was killed has left of files that it wrote; the run's lock is held. */
void cli_run_sweep(const char *run);

/* Makes the folder, unless it is there, and one in it. */
dt_status cli_run_make(const char *run) DT_MUST_USE;

/* "RUN/name"; DT_ERR_ARG for one that is too long. */
dt_status cli_run_path(const char *run, const char *name, char path[CLI_PATH_BYTES]) DT_MUST_USE;

/* Writes a text or an object in the place of a file, all of it or nothing; `object` is freed, NULL
 * is one that did not fit into memory. */
dt_status cli_write_text(const char *path, const char *text, size_t n) DT_MUST_USE;
dt_status cli_write_json(const char *path, struct json_t *object) DT_MUST_USE;

/* Reads an object from a file, or from a pipe; freed with json_decref(). */
dt_status cli_read_json(const char *path, struct json_t **out) DT_MUST_USE;

/* The step of "model-00000100", a folder of an export; -1: another name. */
int64_t cli_run_export_step(const char *name);

/* Refuses what is no file, such as a named pipe, in which a reader would wait. */
dt_status cli_check_file(const char *path) DT_MUST_USE;

/* Lets RUN/model lead to the folder `name` in RUN. */
dt_status cli_run_point(const char *run, const char *name) DT_MUST_USE;

#endif
