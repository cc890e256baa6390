/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of docs/styles.md as tests read them. */
#ifndef DT_TEST_STYLE_ROWS_H
#define DT_TEST_STYLE_ROWS_H

#include <dtensor/tensor.h>

/* Sizes that formulas on the page speak of; of experts their width F and their number N. */
enum {
    LETTER_B,
    LETTER_T,
    LETTER_I,
    LETTER_O,
    LETTER_V,
    LETTER_H,
    LETTER_E,
    LETTER_D,
    LETTER_F,
    LETTER_N,
    N_LETTERS
};

/* One line. Texts are as on the page, "" where a cell is empty. */
typedef struct style_row {
    int line; /* of the file */
    char style[48], layer[24], weight[24], bias[24], x_comes[24], x_made[24], y_left[24], bytes[32];
    dt_comm_kind comm; /* DT_N_COMM_KINDS: nothing moves */
    char moved;        /* 'x' or 'y' */
} style_row;

enum { STYLE_ROWS_MAX = 128 };
typedef struct style_rows {
    int n;
    style_row row[STYLE_ROWS_MAX];
} style_rows;

/* Reads the lines of nine cells that begin with a style's name; fails the test if it cannot. */
void style_rows_read(style_rows *out);

/* What the row's formula gives, times p ranks: "r B T O e" is (p-1)/p B T O e, with elements of e
 * bytes. */
int64_t style_row_bytes(const style_row *row, const int64_t size[N_LETTERS], int p, int64_t e);

/* One other name of a style, as the table of them has it. */
typedef struct style_name {
    int line;
    char name[48], version[16], is[48]; /* version "": of any */
} style_name;

enum { STYLE_NAMES_MAX = 64 };
typedef struct style_names {
    int n;
    style_name name[STYLE_NAMES_MAX];
} style_names;

/* Reads the lines of two cells: "`a`, `b` in a plan of version v | `c`". Fails as the above. */
void style_names_read(style_names *out);

#endif
