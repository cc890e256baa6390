/* SPDX-License-Identifier: Apache-2.0
 *
 * From the command line to a model that is loaded on all ranks. */
#ifndef DTI_CLI_SESSION_H
#define DTI_CLI_SESSION_H

#include "cli/cli.h"
#include "cli/print_report.h"

enum { CLI_CORES_BYTES = 48, CLI_ISA_BYTES = 16 };

/* What one rank tells about itself. Plain bytes: they travel between ranks. */
typedef struct cli_rank {
    int32_t rank;
    int32_t threads;
    int64_t bytes; /* of weights */
    char cores[CLI_CORES_BYTES];
    char device[CLI_ISA_BYTES]; /* "cpu", "cuda" */
    char isa[CLI_ISA_BYTES];    /* whose kernels: of the CPU, or the device's name again */
} cli_rank;

enum { CLI_DEFAULT_MESH = 24 };

/* --mesh; without one a rank of tp for each process that was started. */
const char *cli_mesh_of(const cli_args *args, char text[CLI_DEFAULT_MESH]);

/* Made by the process before there are ranks; afterwards ranks only read it, apart from what is
 * said to be rank 0's. */
typedef struct cli_session {
    const cli_args *args;
    const cli_console *console;
    const char *mesh; /* "tp=2" */
    char default_mesh[CLI_DEFAULT_MESH];
    dt_run_options run;
    dt_load_options load;
    dt_plan *plan;      /* of --plan, or NULL */
    dt_model_info info; /* of the checkpoint */
    uint64_t seed;      /* of random weights, where there are none */
    uint64_t read;      /* hash of the prompts that were read; 0: none */
    int64_t n_params;
    dt_dtype dtype;     /* of the run */
    cli_rank *ranks;    /* [run.n_ranks]; rank 0's */
    int64_t loading_ns; /* rank 0's */
    cli_progress progress;
} cli_session;

/* Refuses a --model that cannot be a Hugging Face folder at all. */
dt_status cli_check_model(const cli_args *args) DT_MUST_USE;

/* --bind and --no-bind. */
dt_status cli_read_bind(const cli_args *args, dt_bind *out) DT_MUST_USE;

/* Refuses a --mesh with a dim that neither layers, batches nor rules of the plan use. */
dt_status cli_check_dims(const char *mesh, const dt_load_options *load) DT_MUST_USE;

/* Ranks along the mesh dim that batches are cut over; 1 without one. */
int64_t cli_batch_ranks(const cli_session *s);

/* Whether --plan names a file, and none of the words "auto" and "built-in". */
bool cli_has_plan_file(const char *plan);

/* --plan and --sequence-parallel into the options of loading. *plan is released by the caller. */
dt_status cli_read_plan(const cli_args *args, dt_plan **plan, dt_load_options *load) DT_MUST_USE;

/* --dtype into the options of loading. */
dt_status cli_read_dtype(const char *text, dt_load_options *load) DT_MUST_USE;

/* --recompute; NULL: nothing. */
dt_status cli_read_recompute(const char *word, dt_recomputed *out) DT_MUST_USE;

/* Parameters of a model, a tied one once. */
int64_t cli_count_params(const dt_model *m);

/* Checks options, plan and checkpoint without reading weights. `*out` is zeroed before, and closed
 * whether this succeeds or not. */
dt_status cli_session_open(const cli_args *args, const cli_env *env, const cli_console *console,
                           cli_session *out) DT_MUST_USE;
void cli_session_close(cli_session *s);

/* Refuses a model, or --weights, whose weights have no gradients. */
dt_status cli_check_trained(const cli_args *args) DT_MUST_USE;

/* Refuses a model that dt_model_save() would. */
dt_status cli_check_saved(const cli_session *s) DT_MUST_USE;

/* Refuses what an option of offload says if it is no folder in which ranks can make files. */
dt_status cli_check_offload(const char *option, const char *where) DT_MUST_USE;

/* What a command does with the model. Runs on every rank; only the one that `speaks` writes to
 * stdout and to what `arg` points to. */
typedef dt_status (*cli_body)(void *arg, dt_model *model, bool speaks);

/* Starts the ranks, loads the model, says what is in use, runs body on each rank. */
dt_status cli_session_run(cli_session *s, cli_body body, void *arg) DT_MUST_USE;

/* all[r] is the row of so many bytes that rank r of the mesh passes; NULL on ranks that do not want
 * to know. Collective. */
dt_status cli_gather(dt_mesh *mesh, const void *mine, int64_t bytes, void *all) DT_MUST_USE;

struct json_t;

/* cli_put_json() of a result with reals of so many digits, after which come its members "model",
 * "model_type", "dtype", "mesh" and "ranks". */
dt_status cli_session_put_json(const cli_session *s, struct json_t *object, int digits) DT_MUST_USE;

#endif
