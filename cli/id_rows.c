/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/id_rows.h"

#include <string.h>

#include "cli/prompt.h"

dt_status cli_id_rows_create(int64_t n, int64_t length, cli_id_rows *out)
{
    DT_TRY(dti_alloc_array((size_t)(n * length), sizeof *out->ids, (void **)&out->ids));
    out->n = n;
    out->length = length;
    return DT_OK;
}

void cli_id_rows_free(cli_id_rows *rows)
{
    dti_free(rows->ids);
    *rows = (cli_id_rows){ 0 };
}

/* Row number `row`, the `bytes` at `text`, behind those that *out has. */
static dt_status add_row(const char *option, const char *text, size_t bytes, int64_t row,
                         const cli_id_list *how, cli_id_rows *out)
{
    char *copy = NULL;
    int32_t *ids = NULL;
    dt_status st = DT_OK;
    int64_t n;

    DT_TRY_TO(done, st, dti_alloc(bytes + 1, (void **)&copy));
    memcpy(copy, text, bytes);
    DT_TRY_TO(done, st, cli_ids_read(copy, how, &ids, &n));
    DT_CHECK_TO(done, st, row == 0 || n == out->length, DT_ERR_ARG,
                "%s: row %lld has %lld ids, row 1 has %lld; rows are equally long", option,
                (long long)row + 1, (long long)n, (long long)out->length);
    if (row == 0) DT_TRY_TO(done, st, cli_id_rows_create(out->n, n, out));
    memcpy(out->ids + row * n, ids, (size_t)n * sizeof *ids);
done:
    dti_free(ids);
    dti_free(copy);
    return st;
}

dt_status cli_id_rows_read(const char *option, const char *text, int64_t vocab, bool labels,
                           cli_id_rows *out)
{
    cli_id_list how = { .option = option, .vocab = vocab, .labels = labels };

    out->n = 1;
    for (const char *c = text; *c != '\0'; c++) out->n += *c == ';';
    for (int64_t row = 0; row < out->n; row++) {
        const size_t bytes = strcspn(text, ";");
        how.row = out->n > 1 ? row + 1 : 0;
        DT_TRY(add_row(option, text, bytes, row, &how, out));
        text += bytes + 1;
    }
    return DT_OK;
}
