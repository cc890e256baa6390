/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor env: what was built, what was found, what a run would use and why. */
#include <jansson.h>
#include <stdio.h>

#include "base/text.h"
#include "cli/env_gpus.h"
#include "cli/print_report.h"
#include "cli/version.h"
#include "mesh/comm/mpi_region.h"
#include "mesh/launch.h"

enum { MAX_MODULES = 8 };

typedef struct surroundings {
    dti_launch launch;
    bool launch_is_sane;
    dti_module_found modules[MAX_MODULES];
    int n_modules;
    const dti_module_found *chosen; /* NULL: ranks are threads, or there is no way */
    bool can_share;                 /* memory with other processes of this machine */
    char share_why[DTI_MPI_REGION_WHY_BYTES];
    char why[DT_ERROR_MESSAGE_BYTES];
} surroundings;

static void look_at_modules(surroundings *s)
{
    for (const char *const *name = dti_module_names(); *name != NULL; name++)
        if (s->n_modules < MAX_MODULES)
            dti_module_find(&s->launch, *name, &s->modules[s->n_modules++]);
}

/* The choice that a run would make, with its reason, or why it could not run. */
static void choose(surroundings *s)
{
    dti_module_found found;

    if (!s->launch_is_sane) return;
    if (s->launch.n_processes == 1) {
        (void)snprintf(s->why, sizeof s->why, "%s%s",
                       s->launch.launcher != NULL ? s->launch.launcher : "no launcher",
                       s->launch.launcher != NULL ? " started this process alone"
                                                  : " started this process");
        return;
    }
    if (dti_module_choose(&s->launch, &found) != DT_OK) {
        (void)snprintf(s->why, sizeof s->why, "%s", dt_last_error()->message);
        return;
    }
    for (int i = 0; i < s->n_modules; i++)
        if (s->modules[i].module == found.module) s->chosen = &s->modules[i];
    (void)snprintf(s->why, sizeof s->why, "%s started %d processes%s", s->launch.launcher,
                   s->launch.n_processes,
                   s->launch.choice != NULL ? ", and DTENSOR_MPI chooses it" : "");
}

static void look(surroundings *s)
{
    s->can_share = dti_mpi_region_possible(s->share_why);
    s->launch_is_sane = dti_launch_read(&s->launch) == DT_OK;
    if (!s->launch_is_sane) (void)snprintf(s->why, sizeof s->why, "%s", dt_last_error()->message);
    look_at_modules(s);
    choose(s);
}

static bool makes_sums_by_mpi(const surroundings *s)
{
    return s->launch.sums_by_mpi && s->launch.n_processes > 1;
}

static bool can_run(const surroundings *s)
{
    return s->chosen != NULL || (s->launch_is_sane && s->launch.n_processes == 1);
}

/* --- output -------------------------------------------------------------------------------------
 */

static void print_text(const surroundings *s)
{
    char shown[DT_ERROR_MESSAGE_BYTES];
    const char *value, *name;

    cli_print_version();
    (void)printf("\nlaunch\n");
    if (s->launch.n_processes > 1)
        (void)printf("  process      %d of %d, by %s\n", s->launch.process, s->launch.n_processes,
                     s->launch.variable);
    else
        (void)printf("  process      the only one\n");
    (void)printf("  cores        %d that this process may use\n", dt_machine_cores());
    for (int i = 0; i < s->n_modules; i++) {
        const dti_module_found *m = &s->modules[i];
        (void)printf("  joined by    %-8s %s%s%s%s\n", m->name, m->library,
                     m->path[0] != '\0' ? " (" : "", m->path, m->path[0] != '\0' ? ")" : "");
    }
    if (!s->launch.shares)
        (void)printf("  memory       is not shared between processes: DTENSOR_MPI_SHARED=off\n");
    else if (s->can_share)
        (void)printf("  memory       can be shared between processes of this machine\n");
    else
        (void)printf("  memory       cannot be shared between processes, MPI is used: %s\n",
                     s->share_why);
    (void)printf("  sums         %s\n", makes_sums_by_mpi(s)
                                            ? "over all ranks by MPI, others in rank order"
                                            : "in rank order");
    if (!can_run(s))
        (void)printf("  chosen       nothing: %s\n", s->why);
    else
        (void)printf("  chosen       %s%s: %s\n",
                     s->chosen != NULL ? "processes joined over " : "ranks are threads",
                     s->chosen != NULL ? s->chosen->name : "", s->why);
    cli_print_gpus();
    (void)printf("\nenvironment\n");
    for (int i = 0; (name = cli_environment_name(i, &value)) != NULL; i++)
        if (value != NULL)
            (void)printf("  %s=%s\n", name, dti_printable(value, shown, sizeof shown));
}

static dt_status print_json(const surroundings *s)
{
    json_t *modules = json_array(), *variables = json_object(), *object;
    char shown[DT_ERROR_MESSAGE_BYTES]; /* variables need not be UTF-8, JSON has to be */
    const char *value, *name;

    for (int i = 0; i < s->n_modules; i++) {
        const dti_module_found *m = &s->modules[i];
        (void)json_array_append_new(modules, json_pack("{s:s, s:s, s:s, s:b}", "name", m->name,
                                                       "path", m->path, "library", m->library,
                                                       "usable", m->module != NULL));
    }
    for (int i = 0; (name = cli_environment_name(i, &value)) != NULL; i++)
        if (value != NULL)
            (void)json_object_set_new(variables, name,
                                      json_string(dti_printable(value, shown, sizeof shown)));
    object = json_pack(
        "{s:s, s:i, s:i, s:s?, s:i, s:o, s:b, s:s, s:s?, s:b, s:s, s:o, s:o}", "version",
        dt_version(), "process", s->launch.process, "processes", s->launch.n_processes, "launcher",
        s->launch.launcher, "cores", dt_machine_cores(), "mpi", modules, "shares_memory",
        s->can_share && s->launch.shares, "sums", makes_sums_by_mpi(s) ? "mpi" : "rank-order",
        "chosen",
        s->chosen != NULL ? s->chosen->name
        : can_run(s)      ? "threads"
                          : NULL,
        "can_run", can_run(s), "why", s->why, "gpus", cli_gpus_json(), "environment", variables);
    DT_TRY(cli_put_json(object, JSON_COMPACT));
    return DT_OK;
}

static dt_status run(const cli_args *args, const cli_env *env, const cli_console *console)
{
    surroundings s = { .n_modules = 0 };

    (void)env, (void)console;
    look(&s);
    if (args->json)
        DT_TRY(print_json(&s));
    else
        print_text(&s);
    DT_TRY(cli_flush());
    return DT_OK;
}

const cli_command cli_env_command = {
    .name = "env",
    .bit = CLI_ENV,
    .usage = "[--json]",
    .summary = "says what was built and found, what a run would use, and why",
    .details =
        "Under mpirun or srun it says whether and how the processes can be joined: start it as\n"
        "the run would be started, \"mpirun -n 2 dtensor env\".",
    .run = run,
};
