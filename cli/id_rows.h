/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of ids of equal length: "1,2,3;4,5,6". */
#ifndef DTI_CLI_ID_ROWS_H
#define DTI_CLI_ID_ROWS_H

#include "cli/cli.h"

typedef struct cli_id_rows {
    int32_t *ids; /* [n, length] */
    int64_t n, length;
} cli_id_rows;

/* Zeros. Freed with cli_id_rows_free(), also after an error. */
dt_status cli_id_rows_create(int64_t n, int64_t length, cli_id_rows *out) DT_MUST_USE;

/* The rows of an option's value: each id below `vocab`, or -100 where they are `labels`. Zeroed
 * before; freed with cli_id_rows_free() in any case. */
dt_status cli_id_rows_read(const char *option, const char *text, int64_t vocab, bool labels,
                           cli_id_rows *out) DT_MUST_USE;
void cli_id_rows_free(cli_id_rows *rows);

#endif
