/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DTI_CLI_BENCH_SERVE_H
#define DTI_CLI_BENCH_SERVE_H

#include "cli/cli.h"

/* dtensor bench --serve URL. */
dt_status cli_bench_serve(const cli_args *args, const cli_env *env,
                          const cli_console *console) DT_MUST_USE;

#endif
