/* SPDX-License-Identifier: Apache-2.0
 *
 * Macros: functions of a template that give a text, and call blocks, which hand one of these to
 * another as its "caller". */
#include <string.h>

#include "text/chat/jinja.h"

dt_status dti_jmacro_define(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    dti_jmacro *macro;

    DT_TRY(dti_jalloc(r, 1, sizeof *macro, (void **)&macro));
    *macro = (dti_jmacro){ node, r->scope };
    *out = (dti_jvalue){ .kind = DTI_J_MACRO, .macro = macro };
    return DT_OK;
}

static const char *name_of(const dti_jnode *macro)
{
    return macro->name != NULL ? macro->name : "caller";
}

/* Arguments by parameter; NULL for those that are absent. */
static dt_status place(dti_jrun *r, const dti_jnode *macro, const dti_jargs *args,
                       const dti_jvalue *given[DTI_JINJA_ARGS])
{
    for (int i = 0; i < args->n; i++) {
        const char *keyword = args->keyword[i];
        const dti_jnode *p = macro->names;
        int at = 0;

        for (; p != NULL; p = p->next, at++)
            if (keyword != NULL ? strcmp(p->name, keyword) == 0 : at == i) break;
        DTI_JCHECK(r, p != NULL && given[at] == NULL, DT_ERR_FORMAT,
                   "%s() does not take argument %d%s%s", name_of(macro), i + 1,
                   keyword != NULL ? ", " : "", keyword != NULL ? keyword : "");
        given[at] = &args->v[i];
    }
    return DT_OK;
}

/* All parameters are names before the first default is found, which may use them. */
static dt_status bind(dti_jrun *r, const dti_jnode *macro, const dti_jvalue *const *given)
{
    int at = 0;

    for (const dti_jnode *p = macro->names; p != NULL; p = p->next, at++)
        DT_TRY(dti_jset(r, p->name, given[at] != NULL ? *given[at] : (dti_jvalue){ 0 }));
    at = 0;
    for (const dti_jnode *p = macro->names; p != NULL; p = p->next, at++) {
        dti_jvalue v;

        if (given[at] != NULL || p->a == NULL) continue;
        DT_TRY(dti_jeval(r, p->a, &v));
        DT_TRY(dti_jset(r, p->name, v));
    }
    return DT_OK;
}

dt_status dti_jmacro_call(dti_jrun *r, const dti_jmacro *macro, const dti_jargs *args,
                          const dti_jvalue *caller, dti_jvalue *out)
{
    const dti_jvalue *given[DTI_JINJA_ARGS] = { NULL };
    const dti_jnode *node = macro->node;
    dti_jscope *before;

    DTI_JCHECK(r, !macro->scope->ended, DT_ERR_UNSUPPORTED,
               "%s() is called outside of the loop or block that it stands in", name_of(node));
    DTI_JCHECK(r, caller == NULL || node->takes_caller, DT_ERR_FORMAT,
               "%s() does not use the caller that {%% call %%} gives it", name_of(node));
    DT_TRY(place(r, node, args, given));
    DT_TRY(dti_jopen(r, macro->scope, node->sets, &before));
    DT_TRY(bind(r, node, given));
    if (node->takes_caller)
        DT_TRY(dti_jset(r, "caller", caller != NULL ? *caller : (dti_jvalue){ 0 }));
    DT_TRY(dti_jcapture(r, node, out));
    dti_jclose(r, before);
    return DT_OK;
}

/* {% call(x) f(y) %}...{% endcall %}: f(y), in which caller(x) gives the text of the block. */
dt_status dti_jcall_block(dti_jrun *r, const dti_jnode *node)
{
    dti_jvalue caller, *callee, text;
    dti_jargs args;

    DT_TRY(dti_jget(r, node->a->name, &callee));
    DTI_JCHECK(r, callee != NULL && callee->kind == DTI_J_MACRO, DT_ERR_UNSUPPORTED,
               "{%% call %%} of %s, which is no macro", node->a->name);
    DT_TRY(dti_jmacro_define(r, node, &caller));
    DT_TRY(dti_jarguments(r, node->a->b, &args));
    r->line = node->line;
    DT_TRY(dti_jget(r, node->a->name, &callee)); /* names may have moved */
    DT_TRY(dti_jmacro_call(r, callee->macro, &args, &caller, &text));
    return dti_jprint(r, &text, r->out);
}
