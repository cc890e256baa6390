/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a kind: its letters, what it is like, what it is called. */
#include "parallel_styles/kind.h"

#include <string.h>

#include "base/text.h"

enum { LONGEST_CHAIN = DTI_MAX_LIKE + 1 };

static bool add_letter(char *letters, int *n, char letter)
{
    if (memchr(letters, letter, (size_t)*n) != NULL) return true;
    if (*n == DT_LAYER_MAX_AXES) return false;
    letters[(*n)++] = letter;
    return true;
}

int dti_kind_letters(const dt_layer_kind *kind, char letters[DT_LAYER_MAX_AXES + 1])
{
    int n = 0;

    for (const char *c = kind->axes != NULL ? kind->axes : ""; *c != '\0'; c++)
        (void)add_letter(letters, &n, *c);
    for (int p = 0; p < DT_LAYER_MAX_PARAMS && kind->params[p].name != NULL; p++)
        for (const char *c = kind->params[p].axes; c != NULL && *c != '\0'; c++)
            (void)add_letter(letters, &n, *c);
    letters[n] = '\0';
    return n;
}

static bool has_letter(const dt_layer_kind *kind, char letter)
{
    char letters[DT_LAYER_MAX_AXES + 1];

    return letter != 0 && dti_kind_letters(kind, letters) > 0 && strchr(letters, letter) != NULL;
}

char dti_kind_letter(const dt_layer_kind *kind, dt_cut cut)
{
    const dt_layer_kind *k = kind;

    for (int i = 0; k != NULL && i < LONGEST_CHAIN; i++, k = k->like) {
        const bool columns = cut == DT_CUT_COLUMNS || cut == DT_CUT_PACKED_COLUMNS;
        const bool rows = cut == DT_CUT_ROWS || cut == DT_CUT_PACKED_ROWS;
        const char letter = columns                 ? k->columns
                            : rows                  ? k->rows
                            : cut == DT_CUT_EXPERTS ? k->picks
                                                    : 0;
        if (letter != 0) return has_letter(kind, letter) ? letter : 0;
    }
    return 0;
}

dt_merge_fn dti_kind_merged(const dt_layer_kind *kind)
{
    for (int i = 0; kind != NULL && i < LONGEST_CHAIN; i++, kind = kind->like)
        if (kind->merged != NULL) return kind->merged;
    return NULL;
}

const char *dti_kind_values(const dt_layer_kind *kind)
{
    for (int i = 0; kind != NULL && i < LONGEST_CHAIN; i++, kind = kind->like)
        if (kind->values != NULL) return kind->values;
    return NULL;
}

bool dti_kind_has_ids(const dt_layer_kind *kind)
{
    for (int i = 0; kind != NULL && i < LONGEST_CHAIN; i++, kind = kind->like)
        if (kind->ids) return true;
    return false;
}

bool dti_kind_is(const dt_layer_kind *kind, const char *names)
{
    for (int i = 0; kind != NULL && i < LONGEST_CHAIN; i++, kind = kind->like)
        if (dti_has_word(names, kind->name, strlen(kind->name))) return true;
    return false;
}

const char *dti_kind_text(const dt_layer_kind *kind)
{
    return kind->words != NULL ? kind->words : kind->name;
}

bool dti_kind_is_own(const dt_layer_kind *kind)
{
    for (int i = 0; i < dti_n_kinds; i++)
        if (dti_kinds[i] == kind) return false;
    return true;
}

bool dti_kind_is_covered(const dt_layer_kind *kind)
{
    for (int p = 0; p < DT_LAYER_MAX_PARAMS && kind->params[p].name != NULL; p++)
        if (strlen(kind->params[p].axes) > 1) return true;
    return false;
}

bool dti_kind_is_matrix(const dt_layer_kind *kind)
{
    return !dti_kind_has_ids(kind) && dti_kind_letter(kind, DT_CUT_COLUMNS) != 0 &&
           dti_kind_letter(kind, DT_CUT_ROWS) != 0;
}

int dti_kind_n_states(const dt_layer_kind *kind)
{
    int n = 0;

    while (n < DT_LAYER_MAX_STATES && kind->states[n].name != NULL) n++;
    return n;
}

int dti_kind_state(const dt_layer_kind *kind, int state, char letters[DT_PARAM_MAX_AXES],
                   int64_t plus[DT_PARAM_MAX_AXES])
{
    const char *at = kind->states[state].axes;
    int n = 0;

    while (at != NULL && *at != '\0' && n < DT_PARAM_MAX_AXES) {
        const int sign = at[1] == '-' ? -1 : at[1] == '+' ? 1 : 0;
        letters[n] = *at++;
        plus[n] = 0;
        if (sign != 0)
            for (at++; *at >= '0' && *at <= '9'; at++) plus[n] = 10 * plus[n] + sign * (*at - '0');
        n++;
    }
    return at != NULL && *at == '\0' ? n : -1;
}
