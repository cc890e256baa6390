/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and what they stand for. All names of a rendering lie in one array, innermost scope last;
 * scopes say which of them are seen from where. */
#include <string.h>

#include "text/chat/jinja.h"

dt_status dti_jopen(dti_jrun *r, const dti_jscope *outer, const dti_jnode *sets,
                    dti_jscope **before)
{
    dti_jscope *scope;

    DT_TRY(dti_jalloc(r, 1, sizeof *scope, (void **)&scope));
    *scope = (dti_jscope){ .first = r->n_names, .sets = sets, .outer = outer };
    *before = r->scope;
    r->scope = scope;
    return DT_OK;
}

/* Macros of the scope that are still known somewhere see that it has ended. */
void dti_jclose(dti_jrun *r, dti_jscope *before)
{
    r->n_names = r->scope->first;
    r->scope->n = 0;
    r->scope->ended = true;
    r->scope = before;
}

static dti_jbinding *find(dti_jrun *r, const dti_jscope *scope, const char *name)
{
    for (size_t i = scope->first; i < scope->first + scope->n; i++)
        if (strcmp(r->names[i].name, name) == 0) return &r->names[i];
    return NULL;
}

dt_status dti_jset(dti_jrun *r, const char *name, dti_jvalue value)
{
    const dti_jbinding binding = { .name = name, .value = value };
    dti_jbinding *there;

    DT_TRY(dti_jcharge(r, r->scope->n + 1));
    there = find(r, r->scope, name);
    if (there != NULL) {
        *there = binding;
        return DT_OK;
    }
    DT_TRY(dti_grow((void **)&r->names, &r->room_names, r->n_names + 1, sizeof *r->names));
    r->names[r->n_names++] = binding;
    r->scope->n++;
    return DT_OK;
}

static dt_status is_set_by(dti_jrun *r, const dti_jscope *scope, const char *name, bool *out)
{
    for (const dti_jnode *i = scope->sets; i != NULL && !*out; i = i->next) {
        DT_TRY(dti_jcharge(r, 1));
        *out = strcmp(i->name, name) == 0;
    }
    return DT_OK;
}

dt_status dti_jget(dti_jrun *r, const char *name, dti_jvalue **out)
{
    bool later = false;

    *out = NULL;
    for (const dti_jscope *s = r->scope; s != NULL && *out == NULL; s = s->outer) {
        dti_jbinding *there;

        DT_TRY(dti_jcharge(r, s->n + 1));
        there = find(r, s, name);
        if (s != r->scope && (there == NULL || there->given)) DT_TRY(is_set_by(r, s, name, &later));
        if (there == NULL) continue;
        DTI_JCHECK(r, !later || !there->given, DT_ERR_UNSUPPORTED,
                   "a loop, block or macro reads the variable \"%s\" before the template sets it",
                   name);
        *out = &there->value;
    }
    return DT_OK;
}
