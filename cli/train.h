/* SPDX-License-Identifier: Apache-2.0
 *
 * A training run: what its ranks share, and the parts that the loop is made of. */
#ifndef DTI_CLI_TRAIN_H
#define DTI_CLI_TRAIN_H

#include <dtensor/limits.h>
#include <dtensor/training_checkpoints.h>
#include <stdatomic.h>

#include "cli/metrics.h"
#include "cli/run_folder.h"
#include "cli/training.h"

/* A file of tokens in the folder of the run: of which text, and whether this call made it. */
typedef struct cli_tokens {
    char *path;
    const char *text;
    bool fresh;
} cli_tokens;

/* Ranks read the upper half; the lower half is rank 0's. */
typedef struct cli_run_of {
    const cli_session *session;
    const cli_training *plan;
    const char *folder;
    dt_data_source *sources;   /* of tokens, of what may have been text */
    dt_data_source validation; /* path NULL: none */
    cli_tokens *made;          /* of texts */
    int n_made;
    bool new_folder;                /* there was none before */
    struct json_t *options, *costs; /* for files of the folder, once it is this run's */
    atomic_bool holds;              /* the folder is this run's */
    atomic_bool began;              /* the first step: what fails from then on is no option */

    cli_metrics *metrics;
    cli_metric last;       /* of the newest step */
    int64_t begun_at;      /* steps that were done before */
    int64_t begin_ns;      /* of the loop */
    int64_t shown_ns;      /* when the last line was printed */
    double weights;        /* that a token is multiplied with */
    double flops_of_token; /* operations that a token needs, and what all ranks reach in a second */
    double peak;
    int signal;     /* that ended the run before its last step; 0: none */
    bool live;      /* the terminal's line is of a step, not yet ended */
    char model[40]; /* folder of the newest export; "": none */
} cli_run_of;

/* What one rank trains with. */
typedef struct cli_trainer {
    cli_run_of *run;
    dt_model *model;
    dt_mesh *mesh;
    dt_tape *tape;
    dt_optimizer *optimizer;
    dt_pipeline *pipeline; /* NULL: none */
    dt_batch batch;        /* of the step under way */
    dt_data *data, *validation;
    dt_run_folder *folder;
    dt_run_progress at;
    int64_t begun_at; /* steps that were done before */
    char *facts;      /* of the data, kept with each checkpoint */
    double norm;      /* of the last step */
    bool has_learned; /* there was a step with a target */
    bool warned;      /* of one without */
    bool speaks;
} cli_trainer;

/* A cli_body whose arg is the cli_run_of: trains, saves and exports (train_loop.c). */
dt_status cli_train_on_rank(void *arg, dt_model *model, bool speaks) DT_MUST_USE;

/* One step of the optimizer: `metric` gets all but its validation loss (train_step.c). */
dt_status cli_train_step(cli_trainer *t, cli_metric *metric) DT_MUST_USE;

/* The pipeline of the plan, if it has one. */
dt_status cli_train_pipeline(cli_trainer *t) DT_MUST_USE;

/* The mean loss of all of --validate. */
dt_status cli_train_validate(cli_trainer *t, double *loss) DT_MUST_USE;

/* What a token costs, and what the ranks reach: once, before the first step. Collective. */
dt_status cli_train_measure(cli_trainer *t) DT_MUST_USE;

/* Rank 0 tells: how shares are counted, each step, and what came of all (train_show.c). */
void cli_show_begin(const cli_run_of *run);
void cli_show_step(cli_run_of *run, const cli_metric *metric);
dt_status cli_show_end(const cli_run_of *run) DT_MUST_USE;

/* Turns texts of --data and --validate into files of tokens in the folder of the run, and looks at
 * every token (train_data.c). One process does so. */
dt_status cli_train_data(cli_run_of *run) DT_MUST_USE;

/* What samples follow from, a text of JSON that is freed with free(); NULL without memory. Whether
 * they are those that the run of `kept` has used samples of: refused by the option that differs,
 * unless it is to go on with others, which *other says. */
char *cli_train_facts(const cli_training *plan, const dt_data *data);
dt_status cli_train_compare(const cli_trainer *t, const char *kept, int64_t samples,
                            bool *other) DT_MUST_USE;

/* A run that did not begin leaves no tokens, and no folder, that were not there before. */
void cli_train_data_undo(const cli_run_of *run);
void cli_train_data_free(cli_run_of *run);

#endif
