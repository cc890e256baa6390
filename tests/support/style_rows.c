/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/style_rows.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"

enum { N_CELLS = 9, LINE_BYTES = 512 };

static FILE *open_page(void)
{
    char path[DT_TEST_PATH_BYTES];
    FILE *file = fopen(dt_test_source_path(path, "docs/styles.md"), "r");

    if (file == NULL) dt_test_fail(__FILE__, __LINE__, "cannot read %s", path);
    return file;
}

/* "| a | b |" -> its cells without the blanks around them; the number of cells. */
static int split(char *line, char *cell[N_CELLS + 1])
{
    int n = 0;

    if (line[0] != '|') return 0;
    for (char *at = line + 1, *end; n <= N_CELLS && (end = strchr(at, '|')) != NULL; at = end + 1) {
        char *last = end;
        while (*at == ' ') at++;
        while (last > at && last[-1] == ' ') last--;
        *last = '\0';
        if (at > end) at = end;
        cell[n++] = at;
    }
    return n;
}

/* "all_reduce y", or "-". */
static bool read_move(const char *cell, style_row *row)
{
    row->comm = DT_N_COMM_KINDS;
    if (strcmp(cell, "-") == 0) return true;
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const char *name = dt_comm_kind_name((dt_comm_kind)k);
        const size_t n = strlen(name);
        if (strncmp(cell, name, n) != 0 || cell[n] != ' ') continue;
        row->comm = (dt_comm_kind)k;
        row->moved = cell[n + 1];
        return strchr("xyW", row->moved) != NULL && cell[n + 2] == '\0';
    }
    return false;
}

static void copy(const char *cell, char *to, size_t bytes)
{
    if (strlen(cell) >= bytes) dt_test_fail(__FILE__, __LINE__, "the cell \"%s\" is long", cell);
    (void)snprintf(to, bytes, "%s", cell);
}

/* A row of the table, or false for any other line. */
static bool read_row(char *line, style_row *row)
{
    char *cell[N_CELLS + 1];

    if (split(line, cell) != N_CELLS || cell[0][0] != '`') return false;
    cell[0][strlen(cell[0]) - 1] = '\0';
    copy(cell[0] + 1, row->style, sizeof row->style);
    copy(cell[1], row->layer, sizeof row->layer);
    copy(cell[2], row->weight, sizeof row->weight);
    copy(cell[3], row->bias, sizeof row->bias);
    copy(cell[4], row->x_comes, sizeof row->x_comes);
    copy(cell[5], row->x_made, sizeof row->x_made);
    copy(cell[6], row->y_left, sizeof row->y_left);
    copy(cell[8], row->bytes, sizeof row->bytes);
    if (!read_move(cell[7], row)) dt_test_fail(__FILE__, __LINE__, "no move: \"%s\"", cell[7]);
    return true;
}

void style_rows_read(style_rows *out)
{
    FILE *file = open_page();
    char line[LINE_BYTES];

    out->n = 0;
    for (int number = 1; file != NULL && fgets(line, sizeof line, file) != NULL; number++) {
        style_row *row = &out->row[out->n];
        if (out->n == STYLE_ROWS_MAX) dt_test_fail(__FILE__, __LINE__, "too many rows");
        if (!read_row(line, row)) continue;
        row->line = number;
        out->n++;
    }
    if (file != NULL) (void)fclose(file);
    if (out->n == 0) dt_test_fail(__FILE__, __LINE__, "the page has no rows");
}

int64_t style_row_bytes(const style_row *row, const int64_t size[N_LETTERS], int p, int64_t e)
{
    static const char letters[] = "BTIOVHEDFN";
    int64_t product = p;

    for (const char *at = row->bytes; *at != '\0'; at++) {
        const char *letter = strchr(letters, *at);
        if (*at == ' ') continue;
        if (*at >= '0' && *at <= '9')
            product *= *at - '0';
        else if (*at == 'r')
            product = product * (p - 1) / p;
        else if (*at == 'e' || *at == 'k')
            product *= *at == 'e' ? e : 4;
        else if (letter != NULL)
            product *= size[letter - letters];
        else
            return -1;
    }
    return product;
}

/* "`colwise`" at `at` -> colwise; the place behind it, NULL if there is none. */
static const char *quoted(const char *at, char *to, size_t bytes)
{
    const char *begin = strchr(at, '`'), *end = begin != NULL ? strchr(begin + 1, '`') : NULL;
    char text[96];

    if (end == NULL) return NULL;
    (void)snprintf(text, sizeof text, "%.*s", (int)(end - begin - 1), begin + 1);
    copy(text, to, bytes);
    return end + 1;
}

static void read_names(char *line, int number, style_names *out)
{
    static const char of_version[] = " in a plan of version ";
    char *cell[N_CELLS + 1];
    style_name name = { .line = number };

    if (split(line, cell) != 2 || cell[0][0] != '`') return;
    if (quoted(cell[1], name.is, sizeof name.is) == NULL)
        dt_test_fail(__FILE__, __LINE__, "line %d: no style", number);
    for (const char *at = cell[0];
         (at = quoted(at, name.name, sizeof name.name)) != NULL && out->n < STYLE_NAMES_MAX;) {
        const bool old = strncmp(at, of_version, strlen(of_version)) == 0;
        copy(old ? at + strlen(of_version) : "", name.version, sizeof name.version);
        out->name[out->n++] = name;
    }
}

void style_names_read(style_names *out)
{
    FILE *file = open_page();
    char line[LINE_BYTES];

    out->n = 0;
    for (int number = 1; file != NULL && fgets(line, sizeof line, file) != NULL; number++)
        read_names(line, number, out);
    if (file != NULL) (void)fclose(file);
    if (out->n == 0 || out->n == STYLE_NAMES_MAX)
        dt_test_fail(__FILE__, __LINE__, "%d other names", out->n);
}
