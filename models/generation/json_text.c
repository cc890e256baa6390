/* SPDX-License-Identifier: Apache-2.0
 *
 * All ways to read a text. There is more than one where a value may have several forms, until
 * what is written tells which it has, or it is over. */
#include "models/generation/json_text.h"

#include <stddef.h>
#include <string.h>

static size_t bytes_of(const dti_json_way *w)
{
    return offsetof(dti_json_way, frames) + w->depth * sizeof w->frames[0];
}

static void copy_way(dti_json_way *to, const dti_json_way *from)
{
    memcpy(to, from, bytes_of(from));
}

void dti_json_copy(dti_json_state *to, const dti_json_state *from)
{
    to->n = from->n;
    for (int i = 0; i < from->n; i++) copy_way(&to->ways[i], &from->ways[i]);
}

void dti_json_begin(const dti_json_schema *schema, dti_json_state *s)
{
    s->n = 1;
    s->ways[0] = (dti_json_way){ .node = (uint32_t)schema->root };
}

/* The way behind the last one stays, unless another has come to the same. */
static void keep_last(dti_json_state *s)
{
    const dti_json_way *w = &s->ways[s->n];
    bool is_new = true;

    for (int i = 0; is_new && i < s->n && dti_json_way_is_between(w); i++)
        is_new = w->depth != s->ways[i].depth || memcmp(w, &s->ways[i], bytes_of(w)) != 0;
    if (is_new) s->n++;
}

/* One way for each form that the next value may have. */
static void fork(const dti_json_schema *schema, const dti_json_way *w, unsigned char c,
                 dti_json_state *to)
{
    const dti_json_node *node = &schema->nodes[w->node];

    for (int32_t i = 0; i < node->n && to->n < DTI_JSON_MOST_BRANCHES; i++) {
        dti_json_way *next = &to->ways[to->n];
        copy_way(next, w);
        next->node = (uint32_t)schema->branches[node->first + i];
        if (dti_json_way_step(schema, next, c)) keep_last(to);
    }
}

static void step_and_fork(const dti_json_schema *schema, dti_json_state *s, unsigned char c)
{
    dti_json_state from;

    dti_json_copy(&from, s);
    s->n = 0;
    for (int i = 0; i < from.n && s->n < DTI_JSON_MOST_BRANCHES; i++) {
        dti_json_way *next = &s->ways[s->n];
        if (dti_json_way_forks(schema, &from.ways[i], c)) {
            fork(schema, &from.ways[i], c, s);
            continue;
        }
        copy_way(next, &from.ways[i]);
        if (dti_json_way_step(schema, next, c)) keep_last(s);
    }
}

bool dti_json_step(const dti_json_schema *schema, dti_json_state *s, unsigned char c)
{
    const int n = s->n;

    for (int i = 0; i < n; i++)
        if (dti_json_way_forks(schema, &s->ways[i], c)) {
            step_and_fork(schema, s, c);
            return s->n > 0;
        }
    s->n = 0;
    for (int i = 0; i < n; i++) {
        if (!dti_json_way_step(schema, &s->ways[i], c)) continue;
        if (i > s->n) copy_way(&s->ways[s->n], &s->ways[i]);
        keep_last(s);
    }
    return s->n > 0;
}

bool dti_json_is_whole(const dti_json_state *s)
{
    for (int i = 0; i < s->n; i++)
        if (dti_json_way_is_whole(&s->ways[i])) return true;
    return false;
}
