/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/steps.h"

#include <string.h>

static dt_status unfold(const dti_json *part, const char *list,
                        dt_status (*load)(void *arg, const dti_json *step, const char *type),
                        void *arg)
{
    const char *type;
    dti_json steps;

    DT_TRY(dti_json_as_object(part));
    DT_TRY(dti_json_string(part, "type", &type));
    if (strcmp(type, "Sequence") != 0) return load(arg, part, type);
    DT_TRY(dti_json_array(part, list, &steps));
    for (size_t i = 0; i < dti_json_count(&steps); i++) {
        const dti_json step = dti_json_at(&steps, i);

        DT_TRY(unfold(&step, list, load, arg));
    }
    return DT_OK;
}

dt_status dti_steps_each(const dti_json *part, const char *list,
                         dt_status (*load)(void *arg, const dti_json *step, const char *type),
                         void *arg)
{
    return dti_json_is_set(part) ? unfold(part, list, load, arg) : DT_OK;
}

dt_status dti_step_too_many(const dti_json *step)
{
    DT_FAIL(DT_ERR_UNSUPPORTED, "%s: %s: more than %d steps", step->file, step->path,
            DTI_MAX_STEPS);
}

dt_status dti_step_unknown(const dti_json *step, const char *type, const char *known)
{
    DT_FAIL(DT_ERR_UNSUPPORTED,
            "%s: %s is of type \"%.64s\", which is not supported here; known types are %s",
            step->file, step->path, type, known);
}

dt_status dti_step_pattern(const dti_json *step, dti_regex **out)
{
    const char *text = NULL;
    dti_json pattern;
    dt_status st;

    DT_TRY(dti_json_object(step, "pattern", &pattern));
    DT_TRY(dti_json_string_or(&pattern, "String", NULL, &text));
    if (text != NULL) {
        st = dti_regex_literal(text, out);
    } else {
        DT_TRY(dti_json_string(&pattern, "Regex", &text));
        st = dti_regex_compile(text, out);
    }
    if (st != DT_OK) dti_error_prefix("%s: %s", pattern.file, pattern.path);
    DT_TRY(st);
    return DT_OK;
}
