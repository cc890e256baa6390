/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes of a schema, and what follows from them: which branches there are behind branches, and how
 * deep a value is at least, without which a text could come to where nothing may follow. */
#include "models/generation/json_schema.h"

#include <dtensor/generation.h>
#include <string.h>

#include "base/numbers.h"

enum { NO_DEPTH = DTI_JSON_MOST_DEPTH + 1 };

/* --- what there is ---------------------------------------------------------------------------- */

dt_status dti_json_add_node(dti_json_schema *s, dti_json_node node, int32_t *out)
{
    DT_CHECK(s->n_nodes < DTI_JSON_MOST_NODES, DT_ERR_UNSUPPORTED,
             "json_schema has more than %d parts", (int)DTI_JSON_MOST_NODES);
    DT_TRY(dti_grow((void **)&s->nodes, &s->nodes_room, (size_t)s->n_nodes + 1, sizeof *s->nodes));
    s->nodes[s->n_nodes] = node;
    *out = s->n_nodes++;
    return DT_OK;
}

dt_status dti_json_add_word(dti_json_schema *s, const char *word)
{
    char *copy;

    DT_TRY(dti_grow((void **)&s->words, &s->words_room, (size_t)s->n_words + 1, sizeof *s->words));
    DT_TRY(dti_arena_strndup(&s->arena, word, strlen(word), &copy));
    s->words[s->n_words++] = copy;
    return DT_OK;
}

dt_status dti_json_add_branch(dti_json_schema *s, int32_t node)
{
    DT_TRY(dti_grow((void **)&s->branches, &s->branches_room, (size_t)s->n_branches + 1,
                    sizeof *s->branches));
    s->branches[s->n_branches++] = node;
    return DT_OK;
}

static dt_status make_fixed(dti_json_schema *s)
{
    static const dti_json_node fixed[DTI_JSON_N_FIXED] = {
        [DTI_JSON_NODE_ANY] = { .form = DTI_JSON_ANY },
        [DTI_JSON_NODE_OBJECT] = { .form = DTI_JSON_MAP, .of = DTI_JSON_NODE_ANY },
        [DTI_JSON_NODE_ARRAY] = { .form = DTI_JSON_ARRAY,
                                  .of = DTI_JSON_NODE_ANY,
                                  .most = INT64_MAX },
        [DTI_JSON_NODE_WORD] = { .form = DTI_JSON_WORDS, .n = 3 },
        [DTI_JSON_NODE_STRING] = { .form = DTI_JSON_STRING, .most = INT64_MAX },
        [DTI_JSON_NODE_NUMBER] = { .form = DTI_JSON_NUMBER },
    };
    int32_t node;

    for (int i = 0; i < DTI_JSON_N_FIXED; i++) DT_TRY(dti_json_add_node(s, fixed[i], &node));
    DT_TRY(dti_json_add_word(s, "true"));
    DT_TRY(dti_json_add_word(s, "false"));
    DT_TRY(dti_json_add_word(s, "null"));
    return DT_OK;
}

/* --- branches --------------------------------------------------------------------------------- */

/* Adds those of a node that were not seen to the end of the list. */
static dt_status add_unseen(dti_json_schema *s, const dti_json_node *node, bool *seen)
{
    for (int32_t k = 0; k < node->n; k++) {
        const int32_t branch = s->branches[node->first + k];
        if (seen[branch]) continue;
        seen[branch] = true;
        DT_TRY(dti_json_add_branch(s, branch));
    }
    return DT_OK;
}

/* The branches of its branches and so on, once each, become its own. */
static dt_status flatten(dti_json_schema *s, int32_t at, bool *seen)
{
    const int32_t first = s->n_branches;
    int32_t n = 0;

    memset(seen, 0, (size_t)s->n_nodes * sizeof *seen);
    DT_TRY(add_unseen(s, &s->nodes[at], seen));
    for (int32_t i = first; i < s->n_branches; i++) {
        const dti_json_node *node = &s->nodes[s->branches[i]];
        if (node->form == DTI_JSON_EITHER)
            DT_TRY(add_unseen(s, node, seen));
        else
            s->branches[first + n++] = s->branches[i];
    }
    DT_CHECK(n <= DTI_JSON_MOST_BRANCHES, DT_ERR_UNSUPPORTED,
             "json_schema: a value may be one of %d, at most %d are read", (int)n,
             (int)DTI_JSON_MOST_BRANCHES);
    s->n_branches = first + n;
    s->nodes[at].first = first;
    s->nodes[at].n = n;
    return DT_OK;
}

static dt_status flatten_all(dti_json_schema *s)
{
    dt_status st = DT_OK;
    bool *seen;

    DT_TRY(dti_alloc_array((size_t)s->n_nodes, sizeof *seen, (void **)&seen));
    for (int32_t i = 0; i < s->n_nodes && st == DT_OK; i++)
        if (s->nodes[i].form == DTI_JSON_EITHER) st = flatten(s, i, seen);
    dti_free(seen);
    return st;
}

/* --- depths ----------------------------------------------------------------------------------- */

static int64_t depth_of(const dti_json_schema *s, const dti_json_node *node)
{
    int64_t depth = 0;

    switch (node->form) {
    case DTI_JSON_ARRAY:
        return 1 + (node->least > 0 ? s->nodes[node->of].depth : 0);
    case DTI_JSON_MAP:
        return 1;
    case DTI_JSON_OBJECT:
        for (int32_t i = node->first; i < node->first + node->n; i++)
            if (s->properties[i].required)
                depth = dti_max(depth, s->nodes[s->properties[i].of].depth);
        return 1 + depth;
    case DTI_JSON_EITHER:
        depth = NO_DEPTH;
        for (int32_t i = node->first; i < node->first + node->n; i++)
            depth = dti_min(depth, s->nodes[s->branches[i]].depth);
        return depth;
    default:
        return 0;
    }
}

/* From "none is shallow enough" down to what is true: a value within itself stays where it is. */
static void find_depths(dti_json_schema *s)
{
    bool goes_on = true;

    for (int32_t i = 0; i < s->n_nodes; i++) s->nodes[i].depth = NO_DEPTH;
    while (goes_on) {
        goes_on = false;
        for (int32_t i = 0; i < s->n_nodes; i++) {
            const int64_t depth = dti_min(NO_DEPTH, depth_of(s, &s->nodes[i]));
            goes_on |= depth != s->nodes[i].depth;
            s->nodes[i].depth = depth;
        }
    }
}

/* --- all of it -------------------------------------------------------------------------------- */

/* Only what has an end of its own ends a text: behind 1 there may be a 2. */
static bool has_end(const dti_json_schema *s, const dti_json_node *node)
{
    switch (node->form) {
    case DTI_JSON_ANY:
    case DTI_JSON_NUMBER:
    case DTI_JSON_INTEGER:
        return false;
    case DTI_JSON_WORDS:
        for (int32_t i = node->first; i < node->first + node->n; i++) {
            const char *word = s->words[i];
            if (strchr("0123456789", word[strlen(word) - 1]) != NULL) return false;
        }
        return true;
    case DTI_JSON_EITHER:
        for (int32_t i = node->first; i < node->first + node->n; i++)
            if (!has_end(s, &s->nodes[s->branches[i]])) return false;
        return true;
    default:
        return true;
    }
}

static dt_status make(dti_json_schema *s, const char *text)
{
    DT_TRY(make_fixed(s));
    s->root = DTI_JSON_NODE_OBJECT;
    if (text != NULL) DT_TRY(dti_json_schema_read(s, text, &s->root));
    DT_TRY(flatten_all(s));
    find_depths(s);
    DT_CHECK(
        s->nodes[s->root].depth <= DTI_JSON_MOST_DEPTH, DT_ERR_UNSUPPORTED,
        "json_schema: a value has more than %d brackets within each other, or is within itself",
        (int)DTI_JSON_MOST_DEPTH);
    DT_CHECK(
        has_end(s, &s->nodes[s->root]), DT_ERR_UNSUPPORTED,
        "json_schema: the schema says no type, or that of a number: give an object that has it");
    return DT_OK;
}

dt_status dti_json_schema_make(dti_json_schema *s, const char *text)
{
    dt_status st;

    *s = (dti_json_schema){ 0 };
    st = make(s, text);
    if (st != DT_OK) dti_json_schema_free(s);
    return st;
}

dt_status dt_json_schema_check(const char *text)
{
    dti_json_schema s;

    DT_CHECK(text != NULL, DT_ERR_ARG, "schema is NULL");
    DT_TRY(dti_json_schema_make(&s, text));
    dti_json_schema_free(&s);
    return DT_OK;
}

void dti_json_schema_free(dti_json_schema *s)
{
    dti_free(s->nodes);
    dti_free(s->words);
    dti_free(s->properties);
    dti_free(s->branches);
    dti_arena_free(&s->arena);
    *s = (dti_json_schema){ 0 };
}
