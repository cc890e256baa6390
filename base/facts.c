/* SPDX-License-Identifier: Apache-2.0 */
#include "base/facts.h"

#include <string.h>

static dti_fact *find(const dti_facts *f, const char *what)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->list[i].what, what) == 0) return &f->list[i];
    return NULL;
}

static dt_status keep(dti_facts *f, const char *text, const char **out)
{
    char *copy;

    DT_TRY(dti_arena_strndup(&f->memory, text, strlen(text), &copy));
    *out = copy;
    return DT_OK;
}

dt_status dti_facts_say(dti_facts *f, const char *what, const char *value)
{
    dti_fact *fact = find(f, what), new = { 0 };

    if (fact != NULL && strcmp(fact->value, value) == 0) return DT_OK;
    if (fact != NULL) return keep(f, value, &fact->value);
    DT_TRY(dti_grow((void **)&f->list, &f->capacity, (size_t)f->n + 1, sizeof *f->list));
    DT_TRY(keep(f, what, &new.what));
    DT_TRY(keep(f, value, &new.value));
    f->list[f->n++] = new;
    return DT_OK;
}

const char *dti_facts_find(const dti_facts *f, const char *what)
{
    const dti_fact *fact = find(f, what);

    return fact != NULL ? fact->value : NULL;
}

dt_status dti_facts_copy(const dti_facts *from, dti_facts *to)
{
    dt_status st = DT_OK;

    if (from->of != NULL) DT_TRY_TO(fail, st, keep(to, from->of, &to->of));
    for (int i = 0; i < from->n; i++)
        DT_TRY_TO(fail, st, dti_facts_say(to, from->list[i].what, from->list[i].value));
    return DT_OK;

fail:
    dti_facts_free(to);
    return st;
}

void dti_facts_free(dti_facts *f)
{
    dti_free(f->list);
    dti_arena_free(&f->memory);
    *f = (dti_facts){ 0 };
}
