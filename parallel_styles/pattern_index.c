/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel_styles/pattern_index.h"

#include <stdlib.h>
#include <string.h>

/* The end of a pattern comes before the end of a component, and that before all characters: so
 * patterns that begin with the same components lie together, the shortest first. */
static int weight(char c)
{
    return c == '\0' ? 0 : c == '.' ? 1 : 2 + (unsigned char)c;
}

static int compare_text(const char *a, const char *b)
{
    while (*a != '\0' && *a == *b) a++, b++;
    return weight(*a) - weight(*b);
}

static int compare(const void *left, const void *right)
{
    const dti_pattern *a = left, *b = right;
    const int texts = a->part == b->part ? compare_text(a->text, b->text) : 0;

    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    if (texts != 0) return texts;
    return (a->number > b->number) - (a->number < b->number);
}

void dti_patterns_sort(dti_patterns *p)
{
    if (p->n > 1) qsort(p->all, (size_t)p->n, sizeof *p->all, compare);
}

/* --- a name ------------------------------------------------------------------------------------
 */

/* Patterns [begin, end) of one part that are the same up to character `at`, where a component
 * begins. */
typedef struct range {
    int begin, end;
    size_t at;
} range;

typedef struct search {
    dti_patterns *p;
    int best, stars; /* of the best */
} search;

/* How the component of a pattern stands to `n` characters: before, the same, behind. */
static int compare_component(search *s, int pattern, size_t at, const char *component, size_t n)
{
    const char *text = s->p->all[pattern].text + at;

    s->p->n_compared++;
    for (size_t i = 0; i < n; i++)
        if (text[i] != component[i]) return weight(text[i]) - weight(component[i]);
    return weight(text[n]) > 1;
}

/* The first pattern of the range whose component stands behind `sign`: 0, or -1. */
static int first_behind(search *s, range r, const char *component, size_t n, int sign)
{
    while (r.begin < r.end) {
        const int middle = r.begin + (r.end - r.begin) / 2;
        if (compare_component(s, middle, r.at, component, n) > sign)
            r.end = middle;
        else
            r.begin = middle + 1;
    }
    return r.begin;
}

/* Patterns of the range with this component. */
static range with_component(search *s, range r, const char *component, size_t n)
{
    const int begin = first_behind(s, r, component, n, -1);

    return (range){ begin, first_behind(s, (range){ begin, r.end, r.at }, component, n, 0),
                    r.at + n };
}

/* Of patterns with the same last component those that end there: they come first. */
static int end_of_equal(search *s, range r)
{
    while (r.begin < r.end) {
        const int middle = r.begin + (r.end - r.begin) / 2;
        s->p->n_compared++;
        if (s->p->all[middle].text[r.at] != '\0')
            r.end = middle;
        else
            r.begin = middle + 1;
    }
    return r.begin;
}

static void match(search *s, range r, const char *name, int stars);

/* Patterns whose component takes the name's, of which `rest` is left. */
static void match_rest(search *s, range r, const char *rest, int stars)
{
    const int end = end_of_equal(s, r);
    dti_pattern *all = s->p->all;

    if (*rest == '.') {
        match(s, (range){ end, r.end, r.at + 1 }, rest + 1, stars);
        return;
    }
    if (end == r.begin) return;
    all[r.begin].matched = true;
    if (s->best >= 0 && (stars > s->stars || (stars == s->stars && all[end - 1].number < s->best)))
        return;
    s->best = all[end - 1].number;
    s->stars = stars;
}

static void match(search *s, range r, const char *name, int stars)
{
    const size_t n = strcspn(name, ".");
    const bool is_star = n == 1 && name[0] == '*';

    if (r.begin == r.end) return;
    if (!is_star) match_rest(s, with_component(s, r, name, n), name + n, stars);
    if (n > 0) match_rest(s, with_component(s, r, "*", 1), name + n, stars + 1);
}

/* The first pattern of a part, or of a later one. */
static int first_of(const dti_patterns *p, int part)
{
    range r = { 0, p->n, 0 };

    while (r.begin < r.end) {
        const int middle = r.begin + (r.end - r.begin) / 2;
        if (p->all[middle].part >= part)
            r.end = middle;
        else
            r.begin = middle + 1;
    }
    return r.begin;
}

int dti_patterns_find(dti_patterns *p, int part, const char *name)
{
    search s = { p, -1, 0 };

    match(&s, (range){ first_of(p, part), first_of(p, part + 1), 0 }, name, 0);
    return s.best;
}

void dti_patterns_spread(dti_patterns *p)
{
    for (int i = 1; i < p->n; i++) {
        dti_pattern *one = &p->all[i];
        const dti_pattern *before = one - 1;
        if (one->part == before->part && strcmp(one->text, before->text) == 0)
            one->matched = before->matched;
    }
}
