/* SPDX-License-Identifier: Apache-2.0
 *
 * What the commands share: their arguments, where they talk, and the row that each of them adds to
 * the table in main.c. Results go to stdout, everything else to stderr. */
#ifndef DTI_CLI_H
#define DTI_CLI_H

#include <dtensor.h>

#include "base/memory.h"

/* Exit codes of the command; docs/cli.md promises them. */
enum {
    CLI_EXIT_OK = 0,
    CLI_EXIT_FAILURE = 1,
    CLI_EXIT_INPUT = 2, /* an option, a file, a checkpoint, a request that cannot be met */
    CLI_EXIT_MEMORY = 4,
    CLI_EXIT_COMM = 5
};

/* Which commands an option belongs to. */
enum {
    CLI_GENERATE = 1,
    CLI_LOGITS = 2,
    CLI_INSPECT = 4,
    CLI_PLAN = 8,
    CLI_TOPO = 16,
    CLI_ENV = 32,
    CLI_SAVE = 64,
    CLI_TOKENIZE = 128,
    CLI_DETOKENIZE = 256,
    CLI_COMPARE = 512,
    CLI_VERIFY = 1024,
    CLI_CHAT = 2048,
    CLI_BENCH = 4096,
    CLI_LIST = 8192,
    CLI_GRADIENTS = 16384,
    CLI_TRAIN = 32768,
    CLI_REPORT = 65536,
    CLI_CALIBRATE = 131072,
    CLI_SERVE = 262144
};

enum { CLI_PATH_BYTES = 4096 }; /* of a file's name, its end included */

/* An option that may be given several times: so often at most, unless its row says more. */
enum { CLI_MAX_MANY = 16 };
typedef struct cli_many {
    const char **items;
    int n;
    size_t room;
} cli_many;

/* Settings of a text that have an option: cli_knob() asks for one by its field. */
enum { CLI_MAX_KNOBS = 40 };

/* What `dtensor train` and `dtensor plan --train` are told of training, as it was written. */
typedef struct cli_training_words {
    const char *options; /* a file of more */
    const char *config, *data_weights, *order, *seed, *validate;
    const char *optimizer, *lr, *min_lr, *schedule, *pipeline, *betas, *eps, *weight_decay,
        *momentum, *clip;
    const char *offload, *trace;
    cli_many data, forget;
    int64_t steps, microbatches, stages_per_rank, bucket;
    int64_t warmup, zero, end_token; /* -1: not given */
    int64_t validate_every, save_every, keep, log_every;
    bool nesterov, documents, no_masters, exports, resume, new_data, dry_run;
} cli_training_words;

/* What `dtensor serve` and `dtensor bench --serve` are told, as it was written. */
typedef struct cli_serving_words {
    cli_many models; /* DIR, or NAME=DIR */
    cli_many hosts;  /* that the server is called by */
    const char *host, *key_file, *chat_template, *access_log;
    int64_t port; /* -1: not given */
    int64_t context, max_running, pool_tokens, processes, max_requests, max_connections;
    int64_t request_timeout, drain; /* seconds; -1: not given */
    bool open, metrics, demo;
    const char *url, *clients, *rate; /* of bench */
    int64_t requests;
} cli_serving_words;

/* What the command line says. Texts are borrowed from it; NULL and 0 mean: not given. */
typedef struct cli_args {
    const char *command; /* its name */
    const char *folder;  /* --model, or the argument of inspect and verify */
    const char *prompt;
    const char *prompt_file;
    const char *tokens;
    const char *system;
    const char *mesh;
    const char *dtype;
    const char *plan;
    const char *plan_text; /* what it said when the run began that goes on, or the styles of one
                            * that was found; NULL: it is read */
    const char *isa, *products;
    const char *link;
    const char *device;
    const char *bind;
    const char *machine;
    const char *output;
    const char *max_shard_size;
    const char *labels;
    const char *recompute;
    const char *prompts_file;
    const char *knob[CLI_MAX_KNOBS]; /* texts, in the order of dt_generate_knobs() */
    const char *tolerance;
    const char *format; /* of tokens: this and the next five are of tokenize */
    const char *separator;
    const char *key;
    char **files; /* its arguments */
    int n_files;
    bool append_eos, json_lines;
    cli_many stop;
    cli_many meshes; /* of compare */
    cli_many load;   /* modules */
    cli_training_words training;
    cli_serving_words serving;
    char found[DT_HUB_PATH_BYTES]; /* the folder of a model that was given by its name */
    char mesh_text[DT_MAX_DIMS * (DT_DIM_NAME_BYTES + 16)]; /* `mesh`, its dims in order */
    struct json_t *texts;        /* that files of options hold; NULL: none */
    struct json_t *stored;       /* names of options that the file of a run said; NULL: none */
    struct cli_modules *modules; /* opened; NULL: none */
    const dt_pipeline_schedule *schedule; /* of a run of train, borrowed; NULL: none */
    dt_runtime *registry;                 /* without ranks, with what modules add; NULL: none do */
    int64_t max_new_tokens;
    int64_t threads;
    int64_t batch;
    const char *batches; /* of bench: "1,2,4" */
    int64_t sequence;
    int64_t top, measure, nodes, ranks, seconds;
    const char *explain; /* a mesh */
    const char *goal;    /* of plan --auto */
    int64_t behind;
    int64_t rounds;
    int64_t chunk;
    const char *fully_shard, *offload, *stages, *picture;
    const char *weights;
    bool sequence_parallel;
    bool no_bind;
    bool oversubscribe;
    bool show_prompt;
    bool greedy;
    bool values;
    bool train;
    bool automatic; /* --auto */
    bool random;
    bool no_special;
    bool keep_special;
    bool json;
    bool quiet;
    bool verbose;
    bool help;
} cli_args;

/* What the environment says; read once, by cli_environment(). */
typedef struct cli_env {
    const char *fault;        /* DTENSOR_FAULT */
    const char *timeout_ms;   /* DTENSOR_TIMEOUT_MS */
    const char *api_key;      /* DTENSOR_API_KEY, which nothing prints */
    bool verbose;             /* DTENSOR_VERBOSE */
    bool no_color;            /* NO_COLOR */
    bool dumb_terminal;       /* TERM=dumb or none: no escape sequences */
    char hub[CLI_PATH_BYTES]; /* the cache of models: HF_HUB_CACHE, or hub in HF_HOME, or
                               * huggingface/hub in XDG_CACHE_HOME or ~/.cache */
} cli_env;

void cli_environment(cli_env *out);

/* Where the command lies in an installation or a build folder its modules lie beside it, in
 * ../lib/dtensor, whose owner then is its own or root. It tells the library so, as a user may
 * (DTENSOR_MODULES): a library that is part of a program cannot know what lies beside that. */
void cli_own_modules(void);

/* The i-th variable that the command or the library looks at, and its value, NULL if it is not set.
 * NULL behind the last. */
const char *cli_environment_name(int i, const char **value);

/* The user's side of a run: how much to say, and how. Shared by all ranks, read only apart from
 * what it points to. */
typedef struct cli_console {
    bool quiet;
    bool verbose;
    bool terminal; /* stderr is a terminal that understands escape sequences */
    bool color;
    int process, n_processes; /* that a launcher started; the first one speaks for all */
    bool alone;               /* the command has no run: a process does not wait for the others */
    bool *failed_output; /* set by a command whose results could not be written: no bad input */
} cli_console;

typedef struct cli_command {
    const char *name;
    unsigned bit; /* its options: CLI_GENERATE, ... */
    const char
        *argument;       /* "DIR": one argument without a dash, stored in args.folder; NULL: none */
    bool many;           /* arguments, any number of them, go to args.files */
    const char *usage;   /* what follows the name */
    bool runs;           /* ranks; other commands are a matter of one process */
    const char *summary; /* one line */
    const char *details; /* paragraphs for --help */
    dt_status (*run)(const cli_args *args, const cli_env *env, const cli_console *console);
} cli_command;

extern const cli_command cli_generate, cli_chat, cli_logits, cli_gradients, cli_compare, cli_save,
    cli_tokenize, cli_detokenize, cli_inspect, cli_list, cli_bench, cli_verify, cli_show_plan,
    cli_topo, cli_env_command, cli_train, cli_report_command, cli_calibrate, cli_serve;

#endif
