/* SPDX-License-Identifier: Apache-2.0
 *
 * What every way to a model begins with: the caller's options, and the folder as they see it. */
#include "base/options.h"
#include "models/describe/describe.h"

dt_status dti_load_options_read(const dt_load_options *options, dt_load_options *own)
{
    *own = (dt_load_options)DT_LOAD_OPTIONS_INIT;
    DT_TRY(dti_options_read("dt_load_options", "start from DT_LOAD_OPTIONS_INIT", options, own,
                            sizeof *own));
    DT_CHECK(own->n_policies >= 0 && (own->policies != NULL || own->n_policies == 0), DT_ERR_ARG,
             "options.policies is a list of %d", own->n_policies);
    DT_CHECK(own->keep_dtype || own->dtype == DT_F32 || own->dtype == DT_BF16 ||
                 own->dtype == DT_F16,
             DT_ERR_ARG, "dtype %s: models compute in f32, bf16 or f16", dt_dtype_name(own->dtype));
    DT_CHECK(own->dim != NULL, DT_ERR_ARG, "options.dim is NULL");
    return DT_OK;
}

dt_status dti_describe_load(dt_mesh *mesh, const char *dir, const dt_load_options *options,
                            dt_load_options *own, dti_described *out)
{
    DT_TRY(dti_load_options_read(options, own));
    DT_TRY(dti_describe_for(dir, mesh, own, out));
    own->plan = out->asked;
    own->plan_name = own->fully_shard = NULL; /* found, and in the plan */
    return DT_OK;
}
