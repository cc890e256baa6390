/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry of kinds, and what makes a row no kind. */
#include <string.h>

#include "base/memory.h"
#include "mesh/runtime.h"
#include "parallel_styles/kind.h"

enum { MAX_NAME = 31 };

/* --- checks ----------------------------------------------------------------------------------- */

static dt_status check_name(const dt_layer_kind *kind)
{
    const dt_layer_kind *like = kind->like;
    int n = 0;

    DT_CHECK(kind->name != NULL && kind->name[0] != '\0' && strlen(kind->name) <= MAX_NAME &&
                 strpbrk(kind->name, " ,\"") == NULL,
             DT_ERR_ARG,
             "a kind of layer needs a name of 1 to %d bytes without blanks, commas and "
             "quotes",
             (int)MAX_NAME);
    for (; like != NULL; like = like->like) {
        DT_CHECK(++n <= DTI_MAX_LIKE, DT_ERR_ARG,
                 "kind \"%s\" is like another, which is like another, "
                 "more than %d times: a circle?",
                 kind->name, (int)DTI_MAX_LIKE);
        DT_CHECK(like->name != NULL, DT_ERR_ARG, "kind \"%s\" is like one without a name",
                 kind->name);
    }
    return DT_OK;
}

static dt_status check_letters(const dt_layer_kind *kind, const char *what, const char *axes,
                               size_t most)
{
    const size_t n = axes != NULL ? strlen(axes) : 0;

    DT_CHECK(n >= 1 && n <= most, DT_ERR_ARG, "kind \"%s\": %s has %zu axes, must have 1 to %zu",
             kind->name, what, n, most);
    for (size_t i = 0; i < n; i++) {
        DT_CHECK(axes[i] >= 'a' && axes[i] <= 'z', DT_ERR_ARG,
                 "kind \"%s\": %s: axes are letters a to z, not those of \"%s\"", kind->name, what,
                 axes);
        DT_CHECK(memchr(axes, axes[i], i) == NULL, DT_ERR_ARG, "kind \"%s\": %s has two axes '%c'",
                 kind->name, what, axes[i]);
    }
    return DT_OK;
}

static dt_status check_params(const dt_layer_kind *kind)
{
    char all[DT_LAYER_MAX_PARAMS * DT_PARAM_MAX_AXES + DT_LAYER_MAX_AXES + 1] = "";
    int n_added = 0;
    size_t n = 0;

    if (kind->axes != NULL) DT_TRY(check_letters(kind, "it", kind->axes, DT_LAYER_MAX_AXES));
    for (int p = 0; p < DT_LAYER_MAX_PARAMS && kind->params[p].name != NULL; p++) {
        const dt_kind_param *own = &kind->params[p];
        DT_TRY(check_letters(kind, own->name, own->axes, DT_PARAM_MAX_AXES));
        for (int q = 0; q < p; q++)
            DT_CHECK(strcmp(kind->params[q].name, own->name) != 0, DT_ERR_ARG,
                     "kind \"%s\" has two parameters \"%s\"", kind->name, own->name);
        n_added += own->added;
        DT_CHECK(!own->added || (strlen(own->axes) == 1 && n_added == 1), DT_ERR_ARG,
                 "kind \"%s\": one parameter of one axis can be added, not %s", kind->name,
                 own->name);
        for (const char *c = own->axes; *c != '\0'; c++)
            if (strchr(all, *c) == NULL) all[n++] = *c;
    }
    for (const char *c = kind->axes; c != NULL && *c != '\0'; c++)
        if (strchr(all, *c) == NULL) all[n++] = *c;
    DT_CHECK(n <= DT_LAYER_MAX_AXES, DT_ERR_ARG, "kind \"%s\" has %zu letters \"%s\", %d at most",
             kind->name, n, all, (int)DT_LAYER_MAX_AXES);
    return DT_OK;
}

static dt_status check_roles(const dt_layer_kind *kind, const char *letters)
{
    const char roles[] = { kind->columns, kind->rows, kind->picks };
    static const char *const names[] = { "columns", "rows", "picks" };

    for (size_t i = 0; i < DT_COUNT(roles); i++)
        DT_CHECK(roles[i] == 0 || strchr(letters, roles[i]) != NULL, DT_ERR_ARG,
                 "kind \"%s\": its %s are axis '%c', but its axes are \"%s\"", kind->name, names[i],
                 roles[i], letters);
    return DT_OK;
}

static dt_status check_states(const dt_layer_kind *kind, const char *letters)
{
    for (int s = 0; s < dti_kind_n_states(kind); s++) {
        char axes[DT_PARAM_MAX_AXES];
        int64_t plus[DT_PARAM_MAX_AXES];
        const int n = dti_kind_state(kind, s, axes, plus);
        DT_CHECK(n >= 1, DT_ERR_ARG,
                 "kind \"%s\": state \"%s\" has axes \"%s\": 1 to %d letters are needed, each with "
                 "what is added to it, if anything (\"k-1c\")",
                 kind->name, kind->states[s].name,
                 kind->states[s].axes != NULL ? kind->states[s].axes : "", (int)DT_PARAM_MAX_AXES);
        for (int a = 0; a < n; a++)
            DT_CHECK(strchr(letters, axes[a]) != NULL, DT_ERR_ARG,
                     "kind \"%s\": state \"%s\" has an axis '%c', but the kind's are \"%s\"",
                     kind->name, kind->states[s].name, axes[a], letters);
    }
    return DT_OK;
}

/* "2 oi + 2 ri" */
static dt_status check_cost(const dt_layer_kind *kind, const char *letters)
{
    for (const char *c = kind->cost; c != NULL && *c != '\0'; c++)
        DT_CHECK(strchr("0123456789. +", *c) != NULL || strchr(letters, *c) != NULL, DT_ERR_ARG,
                 "kind \"%s\": its cost \"%s\" is no sum of numbers times letters of \"%s\"",
                 kind->name, kind->cost, letters);
    return DT_OK;
}

static dt_status check_values(const dt_layer_kind *kind, const char *letters)
{
    const char *c = kind->values;
    int n_arrows = 0;

    for (; c != NULL && *c != '\0'; c++) {
        if (strncmp(c, " -> ", 4) == 0 && n_arrows++ == 0) {
            c += 3;
            continue;
        }
        DT_CHECK(*c == '.' || strchr(letters, *c) != NULL, DT_ERR_ARG,
                 "kind \"%s\": values \"%s\" are not \"...i -> ...o\" with letters of \"%s\"",
                 kind->name, kind->values, letters);
    }
    DT_CHECK(kind->values == NULL || n_arrows == 1, DT_ERR_ARG,
             "kind \"%s\": values \"%s\" lack \" -> \"", kind->name, kind->values);
    return DT_OK;
}

dt_status dti_kind_check(const dt_layer_kind *kind)
{
    char letters[DT_LAYER_MAX_AXES + 1];

    DT_CHECK(kind != NULL, DT_ERR_ARG, "a layer needs a kind: &dt_linear_kind, ...");
    DT_TRY(check_name(kind));
    DT_TRY(check_params(kind));
    (void)dti_kind_letters(kind, letters);
    DT_TRY(check_roles(kind, letters));
    DT_TRY(check_states(kind, letters));
    DT_TRY(check_cost(kind, letters));
    DT_TRY(check_values(kind, letters));
    DT_CHECK(kind->forward == NULL || kind->run_by == NULL, DT_ERR_ARG,
             "kind \"%s\" has a forward of its own, and is run by %s: one of them", kind->name,
             kind->run_by);
    DT_CHECK(kind->forward != NULL || kind->run_by != NULL || kind->params[0].name == NULL,
             DT_ERR_ARG, "kind \"%s\" has parameters, but no forward that uses them", kind->name);
    return DT_OK;
}

/* --- registry --------------------------------------------------------------------------------- */

typedef struct kind_registry {
    const dt_layer_kind **own;
    size_t capacity;
    int n;
} kind_registry;

static void registry_destroy(void *object)
{
    kind_registry *r = object;

    dti_free((void *)r->own);
    dti_free(r);
}

static dt_status registry_create(dt_runtime *rt, void **out)
{
    kind_registry *r;

    (void)rt;
    DT_TRY(dti_new(sizeof *r, &r));
    *out = r;
    return DT_OK;
}

static const dti_slot registry_slot = { registry_create, registry_destroy, true };

static dt_status registry_of(dt_runtime *rt, kind_registry **out)
{
    void *slot;

    DT_TRY(dti_runtime_slot(rt, &registry_slot, &slot));
    *out = slot;
    return DT_OK;
}

const dt_layer_kind *dt_kind_at(dt_runtime *rt, int i)
{
    kind_registry *r;

    if (rt == NULL || i < 0 || registry_of(rt, &r) != DT_OK) return NULL;
    if (i < r->n) return r->own[i];
    return i - r->n < dti_n_kinds ? dti_kinds[i - r->n] : NULL;
}

const dt_layer_kind *dt_kind_find(dt_runtime *rt, const char *name)
{
    const dt_layer_kind *kind;

    for (int i = 0; name != NULL && (kind = dt_kind_at(rt, i)) != NULL; i++)
        if (strcmp(kind->name, name) == 0) return kind;
    return NULL;
}

dt_status dt_kind_register(dt_runtime *rt, const dt_layer_kind *kind)
{
    kind_registry *r;

    DT_CHECK(rt != NULL && kind != NULL, DT_ERR_ARG, "rt or kind is NULL");
    DT_TRY(dti_kind_check(kind));
    DT_CHECK(dt_kind_find(rt, kind->name) == NULL, DT_ERR_ARG,
             "there is a kind of layer \"%s\" already", kind->name);
    DT_TRY(registry_of(rt, &r));
    DT_TRY(dti_grow((void **)&r->own, &r->capacity, (size_t)r->n + 1, sizeof(void *)));
    r->own[r->n++] = kind;
    return DT_OK;
}
