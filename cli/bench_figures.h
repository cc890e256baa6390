/* SPDX-License-Identifier: Apache-2.0
 *
 * Figures of dtensor bench: rounds of one kind of work beside their limit. */
#ifndef DTI_CLI_BENCH_FIGURES_H
#define DTI_CLI_BENCH_FIGURES_H

#include "cli/cli.h"

struct json_t;

/* Seconds of each round, and what share of its limit it reached. */
typedef struct cli_figures {
    int64_t n_rounds;
    double *seconds, *limit, *ratio; /* [n_rounds]; work per second is the limit's unit */
    double work;                     /* of a round: operations, or bytes */
    int64_t tokens;                  /* of a round */
} cli_figures;

enum { CLI_FIGURES_LISTS = 3 };

/* `numbers` [CLI_FIGURES_LISTS * n_rounds] is borrowed. */
void cli_figures_open(cli_figures *f, int64_t n_rounds, double *numbers);

/* What a line says: "decode 32 tokens, ...: 2.1 GB/s of 3.0 that reading the weights reaches". */
typedef struct cli_figures_words {
    const char *name;
    int width; /* of the name */
    const char *unit, *limit;
} cli_figures_words;

/* Both sort the lists. */
void cli_figures_print(cli_figures *f, const cli_figures_words *w);
struct json_t *cli_figures_json(cli_figures *f);

/* Decoding of some sequences at once; the figures' work are passes, their limit is the bound: a
 * pass reads the weights and multiplies each sequence by them, whichever takes longer. */
typedef struct cli_batch {
    int64_t n; /* sequences */
    cli_figures passes;
    double reading, multiplying; /* seconds of a pass, over all rounds */
} cli_batch;

enum { CLI_MAX_BATCHES = 32, CLI_MAX_BATCH = 65536 };

/* "1,2,4"; *n of them. */
dt_status cli_batches_read(const char *text, cli_batch batches[CLI_MAX_BATCHES],
                           int *n) DT_MUST_USE;

/* Round i took so long; a pass could have taken the longer of the others. */
void cli_batch_add(cli_batch *b, int64_t i, double seconds, double reading, double multiplying);

/* `reads`, `multiplies`: what a bound is found by. Both sort the lists. */
void cli_batch_print(cli_batch *b, const char *reads, const char *multiplies);
struct json_t *cli_batch_json(cli_batch *b);

#endif
