/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel_styles/print_table.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

void dti_table_name(const char *name, char out[DTI_TABLE_NAME_BYTES])
{
    dti_writer w = { .text = out, .bytes = DTI_TABLE_NAME_BYTES };

    for (const char *at = name; *at != '\0';) {
        const size_t part = strcspn(at, ".");
        const bool number = part > 0 && strspn(at, "0123456789") == part;
        dti_put(&w, "%.*s%s", number ? 1 : (int)part, number ? "*" : at,
                at[part] == '.' ? "." : "");
        at += part + (at[part] == '.');
    }
}

dti_table_row *dti_table_find(dti_table *t, const dti_table_row *like)
{
    for (size_t i = 0; i < t->n; i++) {
        dti_table_row *r = &t->rows[i];
        bool same = strcmp(r->name, like->name) == 0;
        for (int k = 0; k < DTI_TABLE_TEXTS && same; k++)
            same = strcmp(r->text[k], like->text[k]) == 0;
        if (same) return r;
    }
    if (dti_grow((void **)&t->rows, &t->capacity, t->n + 1, sizeof *like) != DT_OK) return NULL;
    t->rows[t->n] = *like;
    return &t->rows[t->n++];
}

static void widen(int *width, const char *text)
{
    const int n = (int)strlen(text);

    if (n > *width) *width = n;
}

void dti_table_widths(const dti_table *t, int widths[1 + DTI_TABLE_TEXTS])
{
    for (size_t i = 0; i < t->n; i++) {
        widen(&widths[0], t->rows[i].name);
        for (int k = 0; k < DTI_TABLE_TEXTS; k++) widen(&widths[k + 1], t->rows[i].text[k]);
    }
}
