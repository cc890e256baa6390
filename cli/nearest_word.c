/* SPDX-License-Identifier: Apache-2.0
 *
 * Near misses: which name a misspelt word was meant to be. */
#include <string.h>

#include "cli/option_table.h"

enum { MAX_WORD = 32 };

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Insertions, removals, changes and swaps of neighbours that turn a into b. Both are shorter than
 * MAX_WORD. */
static size_t distance(const char *a, const char *b)
{
    size_t row[3][MAX_WORD + 1];
    const size_t n = strlen(a), m = strlen(b);

    for (size_t j = 0; j <= m; j++) row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3];
        const size_t *last = row[(i - 1) % 3], *before = row[(i + 1) % 3];

        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = min_of(last[j], now[j - 1]) + 1;
            now[j] = min_of(now[j], last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = min_of(now[j], before[j - 2] + 1);
        }
    }
    return row[n % 3][m];
}

/* A name that `word` begins is taken for it as well: "gen" for "generate". */
const char *cli_nearest(const char *word, const char *const *names, size_t n)
{
    const size_t length = strlen(word);
    const char *best = NULL;
    size_t best_distance = length <= 4 ? 2 : 4; /* one above what still looks like a slip */

    if (length == 0 || length >= MAX_WORD) return NULL;
    for (size_t i = 0; i < n; i++) {
        const size_t d = strlen(names[i]) < MAX_WORD ? distance(word, names[i]) : MAX_WORD;

        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    for (size_t i = 0; i < n && best == NULL && length >= 2; i++)
        if (strncmp(word, names[i], length) == 0) best = names[i];
    return best;
}
