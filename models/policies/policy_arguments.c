/* SPDX-License-Identifier: Apache-2.0
 *
 * replace_arguments: a policy changes keys of the parsed config.json, which is then read as if it
 * had been so in the file; or it claims what a rank holds, checked later (policy_apply.c). */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "models/policies/policies.h"

enum { CHANGED_BYTES = 320 };

/* What a policy's function is handed. */
struct dt_arguments {
    const dt_policy *policy; /* whose turn it is */
    const char *blocks;      /* that it is for */
    dti_json_doc *config;
    const dti_described *d;
    dti_policy_notes *notes;
    const char **paths; /* of keys that were changed */
    size_t n_paths, paths_capacity;
    char changed[CHANGED_BYTES];
};

/* --- reading ---------------------------------------------------------------------------------- */

/* The object that holds the last key of a path in `object`, and that key. */
static json_t *walk(json_t *object, const char *path, const char **key)
{
    const char *dot;

    for (; (dot = strchr(path, '.')) != NULL && json_is_object(object); path = dot + 1) {
        char name[DT_CONFIG_PATH_BYTES];
        if (snprintf(name, sizeof name, "%.*s", (int)(dot - path), path) >= (int)sizeof name)
            return NULL;
        object = json_object_get(object, name);
    }
    *key = path;
    return json_is_object(object) && dot == NULL ? object : NULL;
}

/* Where a path leads in config.json. */
typedef struct location {
    json_t *object; /* that holds the last key; NULL: nothing does */
    const char *key;
    char path[DT_CONFIG_PATH_BYTES]; /* from the root on */
} location;

static bool has(const location *at)
{
    return at->object != NULL && json_object_get(at->object, at->key) != NULL;
}

/* Of a folder that holds more than a text model, keys are those of the text model's part; those
 * that only the file around it has are found as well, and whole paths from the root. */
static location locate(const dt_arguments *a, const char *path)
{
    json_t *root = a->config->root.value;
    const char *part = a->d->arch->text_config;
    location outer = { .key = path }, inner = { .key = path };

    outer.object = walk(root, path, &outer.key);
    (void)snprintf(outer.path, sizeof outer.path, "%s", path);
    if (part == NULL) return outer;
    inner.object = walk(json_object_get(root, part), path, &inner.key);
    if (snprintf(inner.path, sizeof inner.path, "%s.%s", part, path) >= (int)sizeof inner.path)
        return outer;
    return has(&inner) || (inner.object != NULL && !has(&outer)) ? inner : outer;
}

/* A size that config.json leaves out; -1: the path is none. */
static int64_t default_of(const dt_arguments *a, const char *path)
{
    const char *part = a->d->arch->text_config;
    const size_t n = part != NULL ? strlen(part) : 0;

    if (n > 0 && strncmp(path, part, n) == 0 && path[n] == '.') path += n + 1;
    return dti_size_of_key(&a->d->info, path, strlen(path));
}

dt_status dt_arguments_get(const dt_arguments *a, const char *key, int64_t *value)
{
    char shown[DTI_SHOWN_BYTES];
    int64_t fallback;
    location at;
    dti_json v;

    DT_CHECK(a != NULL && key != NULL && value != NULL, DT_ERR_ARG,
             "arguments, key or value is NULL");
    at = locate(a, key);
    v = (dti_json){ .value = json_object_get(at.object, at.key), .file = a->config->root.file };
    (void)snprintf(v.path, sizeof v.path, "%s", at.path);
    if (dti_json_is_set(&v)) {
        DT_CHECK(dti_json_as_int(&v, INT64_MIN, INT64_MAX, value) == DT_OK, DT_ERR_ARG, "%s",
                 dt_last_error()->message);
        return DT_OK;
    }
    fallback = default_of(a, key);
    DT_CHECK(fallback >= 0, DT_ERR_ARG, "%s has no \"%s\", and it is no size with a default",
             a->config->root.file, dti_printable(key, shown, sizeof shown));
    *value = fallback;
    return DT_OK;
}

/* --- claims ----------------------------------------------------------------------------------- */

/* Whether a block has a module, "self_attn": layers whose names go on behind it. */
static bool has_module(const dt_arguments *a, const char *module, size_t n)
{
    for (int i = 0; i < a->d->builder.n; i++) {
        const char *inside = dti_inside_block(a->blocks, a->d->builder.specs[i].name);
        if (inside != NULL && strncmp(inside, module, n) == 0 && inside[n] == '.') return true;
    }
    return false;
}

static dt_status add_claim(dt_arguments *a, const char *path, int64_t value)
{
    const char *dot = strrchr(path, '.');
    dti_policy_notes *n = a->notes;
    char known[DTI_CLAIM_LIST_BYTES];
    dti_claim *claim;
    char *module, *attribute, *blocks;

    dti_claim_list(known);
    DT_CHECK(dti_claim_known(dot + 1), DT_ERR_ARG,
             "\"%s\" is no attribute that ranks have; there are: %s", path, known);
    DT_TRY(dti_arena_strndup(&n->arena, path, (size_t)(dot - path), &module));
    DT_TRY(dti_arena_strndup(&n->arena, dot + 1, strlen(dot + 1), &attribute));
    DT_TRY(dti_arena_strndup(&n->arena, a->blocks, strlen(a->blocks), &blocks));
    DT_TRY(dti_grow((void **)&n->claims, &n->claims_capacity, n->n_claims + 1, sizeof *claim));
    claim = &n->claims[n->n_claims++];
    *claim =
        (dti_claim){ .blocks = blocks, .module = module, .attribute = attribute, .value = value };
    (void)dti_policy_text(a->policy, claim->policy);
    return DT_OK;
}

/* --- changes ---------------------------------------------------------------------------------- */

static dt_status note_change(dt_arguments *a, const char *path, const json_t *value)
{
    char policy[DTI_POLICY_TEXT_BYTES];
    const size_t used = strlen(a->changed);
    char *text = json_dumps(value, JSON_ENCODE_ANY), *copy;

    if (text != NULL && used < CHANGED_BYTES)
        (void)snprintf(a->changed + used, CHANGED_BYTES - used, "%s%s set %s to %s",
                       used > 0 ? ", " : "", dti_policy_text(a->policy, policy), path, text);
    free(text); /* jansson's own allocation */
    DT_TRY(dti_arena_strndup(&a->notes->arena, path, strlen(path), &copy));
    DT_TRY(dti_grow((void **)&a->paths, &a->paths_capacity, a->n_paths + 1, sizeof *a->paths));
    a->paths[a->n_paths++] = copy;
    return DT_OK;
}

static dt_status set_key(dt_arguments *a, const char *path, json_t *value)
{
    char shown[DTI_SHOWN_BYTES];
    location at;

    DT_CHECK(strlen(path) < DT_CONFIG_PATH_BYTES, DT_ERR_ARG, "\"%s\" is too long for a key",
             dti_printable(path, shown, sizeof shown));
    at = locate(a, path);
    DT_CHECK(at.object != NULL && at.key[0] != '\0', DT_ERR_ARG,
             "\"%s\" is neither a key of %s nor an attribute of a module of %s",
             dti_printable(path, shown, sizeof shown), a->config->root.file, a->blocks);
    DT_TRY(note_change(a, at.path, value));
    DT_CHECK(json_object_set(at.object, at.key, value) == 0, DT_ERR_MEMORY,
             "%s: no memory for a changed value, or the text is not UTF-8", path);
    return DT_OK;
}

/* Takes `value` over. */
static dt_status set(dt_arguments *a, const char *path, json_t *value)
{
    dt_status st;

    if (a == NULL || path == NULL || value == NULL) {
        json_decref(value);
        DT_CHECK(a != NULL && path != NULL, DT_ERR_ARG, "arguments or path is NULL");
        DT_FAIL(DT_ERR_ARG, "%s: a value that JSON has not", path);
    }
    st = set_key(a, path, value);
    json_decref(value);
    DT_TRY(st);
    return DT_OK;
}

dt_status dt_arguments_set(dt_arguments *a, const char *path, int64_t value)
{
    const char *dot = path != NULL ? strrchr(path, '.') : NULL;

    if (a != NULL && dot != NULL && has_module(a, path, (size_t)(dot - path)))
        return add_claim(a, path, value);
    return set(a, path, json_integer(value));
}

dt_status dt_arguments_set_number(dt_arguments *a, const char *path, double value)
{
    return set(a, path, json_real(value));
}

dt_status dt_arguments_set_bool(dt_arguments *a, const char *path, bool value)
{
    return set(a, path, json_boolean(value));
}

dt_status dt_arguments_set_text(dt_arguments *a, const char *path, const char *value)
{
    return set(a, path, value != NULL ? json_string(value) : NULL);
}

/* --- all policies ----------------------------------------------------------------------------- */

bool dti_policies_change(const dt_load_options *o)
{
    for (int i = 0; i < o->n_policies; i++) {
        dt_policy p;
        if (dti_policy_at(o, i, &p) == DT_OK && p.replace_arguments != NULL) return true;
    }
    return false;
}

static dt_status ask(dt_arguments *a, int n_parts)
{
    char text[DTI_POLICY_TEXT_BYTES];
    dt_status st;

    dti_error_clear();
    st = a->policy->replace_arguments(a->policy, a, n_parts);
    if (st == DT_OK) return DT_OK;
    if (dt_last_error()->code == DT_OK)
        DT_FAIL(st, "%s: its replace_arguments fails and does not say why; use dt_fail()",
                dti_policy_text(a->policy, text));
    dti_error_prefix("%s, replace_arguments", dti_policy_text(a->policy, text));
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

/* Watches the changed keys, and keeps their description for messages. */
static dt_status watch(dt_arguments *a)
{
    dti_json_watch *w;
    const char **paths;
    char *changed;
    bool *seen;

    if (a->n_paths == 0) return DT_OK;
    DT_TRY(dti_arena_alloc(&a->notes->arena, sizeof *w, (void **)&w));
    DT_TRY(dti_arena_alloc(&a->notes->arena, a->n_paths * sizeof *paths, (void **)&paths));
    DT_TRY(dti_arena_alloc(&a->notes->arena, a->n_paths * sizeof *seen, (void **)&seen));
    memcpy(paths, a->paths, a->n_paths * sizeof *paths);
    *w = (dti_json_watch){ paths, seen, a->n_paths };
    a->config->root.watch = w;
    DT_TRY(dti_arena_strndup(&a->notes->arena, a->changed, strlen(a->changed), &changed));
    a->notes->changed = changed;
    return DT_OK;
}

dt_status dti_policies_arguments(const dt_load_options *o, int n_parts, dti_json_doc *config,
                                 const dti_described *d, dti_policy_notes *notes)
{
    dt_arguments a = { .config = config, .d = d, .notes = notes };
    dt_status st = DT_OK;

    *notes = (dti_policy_notes){ 0 };
    for (int i = 0; i < o->n_policies; i++) {
        dt_policy p;
        DT_TRY_TO(done, st, dti_policy_at(o, i, &p));
        if (p.replace_arguments == NULL) continue;
        a.policy = &p;
        a.blocks = dti_policy_blocks(&p, d);
        if (a.blocks == NULL) continue; /* dti_policies_plan() refuses it */
        DT_TRY_TO(done, st, ask(&a, n_parts));
    }
    DT_TRY_TO(done, st, watch(&a));
done:
    dti_free((void *)a.paths);
    return st;
}

dt_status dti_policies_check_read(const dti_policy_notes *notes, const dti_json_doc *config)
{
    const dti_json_watch *w = config->root.watch;

    for (size_t i = 0; w != NULL && i < w->n; i++)
        DT_CHECK(w->seen[i], DT_ERR_ARG,
                 "%s, but the architecture reads no key \"%s\" from its configuration",
                 notes->changed, w->paths[i]);
    return DT_OK;
}
