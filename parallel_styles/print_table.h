/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of what layers have and do: what repeats from block to block is one line, with "*" for the
 * block's number and how often it stands for one. */
#ifndef DTI_PRINT_TABLE_H
#define DTI_PRINT_TABLE_H

#include "base/writer.h"

enum { DTI_TABLE_NAME_BYTES = 96, DTI_TABLE_TEXT_BYTES = 64, DTI_TABLE_TEXTS = 3 };

/* A line: its texts say which items it stands for. */
typedef struct dti_table_row {
    char name[DTI_TABLE_NAME_BYTES];
    char text[DTI_TABLE_TEXTS][DTI_TABLE_TEXT_BYTES];
    int64_t n;
    int64_t calls[2]; /* of two passes */
    int64_t bytes[2];
} dti_table_row;

typedef struct dti_table {
    dti_table_row *rows; /* freed with dti_free() */
    size_t n, capacity;
} dti_table;

/* `name` with numbers between dots as "*". */
void dti_table_name(const char *name, char out[DTI_TABLE_NAME_BYTES]);

/* The row that says the same as `like`, or a new one; NULL without memory. */
dti_table_row *dti_table_find(dti_table *t, const dti_table_row *like);

/* Columns as wide as their widest text, and not less than they are. */
void dti_table_widths(const dti_table *t, int widths[1 + DTI_TABLE_TEXTS]);

#endif
