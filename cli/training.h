/* SPDX-License-Identifier: Apache-2.0
 *
 * What `dtensor train` is told, in the library's words. */
#ifndef DTI_CLI_TRAINING_H
#define DTI_CLI_TRAINING_H

#include <dtensor/optimizers.h>
#include <dtensor/pipeline_training.h>
#include <dtensor/training_data.h>

#include "cli/pipelines.h"
#include "cli/session.h"

typedef struct cli_training {
    const cli_args *args;
    dt_optimizer_options optimizer;
    dt_schedule schedule;
    dt_loss_options loss;
    dt_data_options data;
    dt_data_source *sources;
    int n_sources;
    cli_pipeline pipeline;
    int64_t steps, batch, sequence;
    int64_t save_every, validate_every, log_every, keep; /* save, validate: 0 is at the end alone */
    uint64_t seed;
    bool begins_at_random; /* --config: there are no weights */
    char *config_folder;   /* that --config lies in; NULL: it needs no text of its own */
    char mesh[24];         /* where none is named: batches over all processes */
} cli_training;

/* The options of an optimizer alone, for `dtensor plan --train` as well; *out holds defaults
 * before. */
dt_status cli_optimizer_read(const cli_args *args, dt_optimizer_options *out) DT_MUST_USE;

/* --zero 3 into the options of loading: parameters are cut over the dims that hold copies. */
dt_status cli_load_zero(const cli_args *args, const char *mesh, dt_load_options *load) DT_MUST_USE;

/* Reads and checks what needs no model, and fills in defaults. `own` becomes the arguments of the
 * session: the folder of --config, the mesh, the schedule. Texts are borrowed from it. Freed with
 * cli_training_free(), also after an error. */
dt_status cli_training_read(cli_args *own, cli_training *out) DT_MUST_USE;
void cli_training_free(cli_training *t);

/* Checks what needs the model's configuration and the mesh; settles how long sequences are. */
dt_status cli_training_settle(const cli_session *s, cli_training *t) DT_MUST_USE;

#endif
