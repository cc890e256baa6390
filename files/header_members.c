/* SPDX-License-Identifier: Apache-2.0 */
#include "files/header_members.h"

#include <string.h>

dti_members dti_members_in(const char *text, size_t n)
{
    return (dti_members){ .at = text, .end = text + n };
}

static void skip_blanks(dti_members *m)
{
    while (m->at < m->end && (*m->at == ' ' || *m->at == '\t' || *m->at == '\n' || *m->at == '\r'))
        m->at++;
}

static bool take(dti_members *m, char c)
{
    skip_blanks(m);
    if (m->at == m->end || *m->at != c) return false;
    m->at++;
    return true;
}

/* Behind the string that begins here. */
static bool skip_string(dti_members *m)
{
    if (!take(m, '"')) return false;
    for (; m->at < m->end && *m->at != '"'; m->at++)
        if (*m->at == '\\' && ++m->at == m->end) return false;
    return take(m, '"');
}

/* Behind the object that begins here. What is in it is looked at by who parses it. */
static bool skip_object(dti_members *m)
{
    size_t depth = 1;

    if (!take(m, '{')) return false;
    while (depth > 0) {
        if (m->at == m->end) return false;
        if (*m->at == '"') {
            if (!skip_string(m)) return false;
            continue;
        }
        depth += *m->at == '{';
        depth -= *m->at == '}';
        m->at++;
    }
    return true;
}

bool dti_members_next(dti_members *m, const char **text, size_t *n)
{
    const bool first = !m->begun;

    m->begun = true;
    if (first && !take(m, '{')) return false;
    if (take(m, '}')) {
        skip_blanks(m);
        m->over = m->at == m->end;
        return false;
    }
    if (!first && !take(m, ',')) return false;
    skip_blanks(m);
    *text = m->at;
    if (!skip_string(m) || !take(m, ':') || !skip_object(m)) return false;
    *n = (size_t)(m->at - *text);
    return true;
}
