/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ranks of a model reach at most on this machine. On cores: reading its weights and
 * nothing else, one large product and nothing else. On a GPU: copying as many bytes as there are
 * weights to read (bytes read and bytes written together), and one large product. */
#ifndef DTI_CLI_BENCH_LIMITS_H
#define DTI_CLI_BENCH_LIMITS_H

#include <dtensor.h>

/* One rank's. */
typedef struct cli_limits cli_limits;

/* For prompts of n_prompt tokens of a model of the configuration in `folder`. Collective. */
dt_status cli_limits_open(dt_model *model, const char *folder, int64_t n_prompt,
                          cli_limits **out) DT_MUST_USE;
void cli_limits_close(cli_limits **limits); /* accepts NULL */

/* Collective. Of all ranks together: bytes of weights that one token reads, operations of one
 * cli_limits_multiply(); and those that reading the prompt needs, copies on other ranks not
 * counted. */
dt_status cli_limits_count(cli_limits *limits, int64_t n_prompt, double *bytes, double *products,
                           double *flops) DT_MUST_USE;

/* Reads the bytes of weights that one token needs of this rank, with all its threads; or copies as
 * many on its GPU. */
dt_status cli_limits_read(cli_limits *limits) DT_MUST_USE;

/* Multiplies n_prompt rows by a matrix of 2048 by 2048, on a GPU two square matrices that are large
 * enough to fill it, in the run's dtype, on this rank. */
dt_status cli_limits_multiply(cli_limits *limits) DT_MUST_USE;

/* What the limits are called: "reading the weights alone". */
const char *cli_limits_of_bytes(const cli_limits *limits);

#endif
