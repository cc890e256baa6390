/* SPDX-License-Identifier: Apache-2.0
 *
 * What a name that nothing has was probably meant for: the layer nearest to a pattern, a style. */
#include <string.h>

#include "parallel_styles/layers_internal.h"

enum { MAX_NAME = 160 };

static int min_of(int a, int b)
{
    return a < b ? a : b;
}

/* Characters to insert, remove or change until `pattern` matches `name`; a star takes whatever lies
 * between two dots. */
int dti_name_distance(const char *pattern, const char *name)
{
    int row[2][MAX_NAME + 1];
    const int n = (int)strlen(pattern), m = (int)strlen(name);

    if (n > MAX_NAME || m > MAX_NAME) return INT32_MAX;
    for (int j = 0; j <= m; j++) row[0][j] = j;
    for (int i = 1; i <= n; i++) {
        const bool star = pattern[i - 1] == '*';
        const int *last = row[(i - 1) % 2];
        int *now = row[i % 2];

        now[0] = last[0] + !star;
        for (int j = 1; j <= m; j++) {
            const bool same = star ? name[j - 1] != '.' : pattern[i - 1] == name[j - 1];
            now[j] = min_of(last[j] + !star, now[j - 1] + !(star && same));
            now[j] = min_of(now[j], last[j - 1] + !same);
        }
    }
    return row[n % 2][m];
}

const char *dti_nearest_layer(const dt_layers *list, const char *pattern)
{
    const char *best = NULL;
    int least = INT32_MAX;

    for (int i = 0; i < list->n; i++) {
        const int d = dti_name_distance(pattern, list->layers[i].name);
        if (d >= least) continue;
        least = d;
        best = list->layers[i].name;
    }
    return best;
}
