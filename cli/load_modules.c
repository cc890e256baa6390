/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/load_modules.h"

#include <dtensor/modules.h>

#include "base/error.h"

struct cli_modules {
    dt_module *module[CLI_MAX_MANY];
    int n;
};

static dt_status add_all(dt_runtime *rt, void *arg)
{
    const struct cli_modules *m = arg;

    for (int i = 0; i < m->n; i++) DT_TRY(dt_module_add(rt, m->module[i]));
    return DT_OK;
}

void cli_modules_setup(const cli_args *args, dt_run_options *run)
{
    if (args->modules == NULL) return;
    run->setup = add_all;
    run->setup_arg = args->modules;
}

static dt_status open_one(struct cli_modules *m, const char *path)
{
    const dt_status st = dt_module_open(path, &m->module[m->n]);

    if (st == DT_OK)
        m->n++;
    else
        dti_error_prefix("--load");
    return st;
}

dt_status cli_modules_open(cli_args *args)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_status st = DT_OK;

    if (args->load.n == 0) return DT_OK;
    DT_TRY(dti_new(sizeof *args->modules, &args->modules));
    for (int i = 0; i < args->load.n; i++)
        DT_TRY_TO(fail, st, open_one(args->modules, args->load.items[i]));
    cli_modules_setup(args, &run);
    st = dt_runtime_create_dry(&run, 0, NULL, &args->registry);
    if (st != DT_OK) dti_error_prefix("--load");
    DT_TRY_TO(fail, st, st);
    return DT_OK;

fail:
    cli_modules_close(args);
    return st;
}

void cli_modules_close(cli_args *args)
{
    dt_runtime_release_dry(&args->registry);
    for (int i = 0; args->modules != NULL && i < args->modules->n; i++)
        dt_module_release(&args->modules->module[i]);
    dti_free(args->modules);
    args->modules = NULL;
}
