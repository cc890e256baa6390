/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plan.h"

dt_status cli_plan_read(const char *path, cli_plan *out)
{
    const char *pattern = NULL;
    dti_json member;
    int n = 0;

    DT_TRY(dti_json_read_stream(path, DTI_JSON_CONFIG_BYTES, &out->doc));
    DT_TRY(
        dti_alloc_array(dti_json_count(&out->doc.root), sizeof *out->rules, (void **)&out->rules));
    while (dti_json_next(&out->doc.root, &pattern, &member)) {
        out->rules[n].pattern = pattern;
        DT_TRY(dti_json_as_string(&member, &out->rules[n].style));
        n++;
    }
    out->plan =
        (dt_plan){ .rules = out->rules, .n_rules = n, .strict = true, .source = out->doc.file };
    return DT_OK;
}

void cli_plan_free(cli_plan *plan)
{
    dti_free(plan->rules);
    dti_json_free(&plan->doc);
    *plan = (cli_plan){ 0 };
}
