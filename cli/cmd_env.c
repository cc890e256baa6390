/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor env: what was built, what was found, what a run would use and why. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/env_gpus.h"
#include "cli/print_report.h"
#include "cli/version.h"

/* --- output -------------------------------------------------------------------------------------
 */

static void print_text(const dt_launch_info *s)
{
    char shown[DT_ERROR_MESSAGE_BYTES];
    const char *value, *name;

    cli_print_version();
    (void)printf("\nlaunch\n");
    if (s->n_processes > 1)
        (void)printf("  process      %d of %d, by %s\n", s->process, s->n_processes, s->variable);
    else
        (void)printf("  process      the only one\n");
    (void)printf("  cores        %d that this process may use\n", dt_machine_cores());
    for (int i = 0; i < s->n_joins; i++) {
        const dt_join *m = &s->joins[i];
        (void)printf("  joined by    %-8s %s%s%s%s\n", m->name, m->library,
                     m->path[0] != '\0' ? " (" : "", m->path, m->path[0] != '\0' ? ")" : "");
    }
    if (!s->wants_shared)
        (void)printf("  memory       is not shared between processes: DTENSOR_MPI_SHARED=off\n");
    else if (s->can_share)
        (void)printf("  memory       can be shared between processes of this machine\n");
    else
        (void)printf("  memory       cannot be shared between processes, MPI is used: %s\n",
                     s->share_why);
    (void)printf("  sums         %s\n",
                 s->sums_by_mpi ? "over all ranks by MPI, others in rank order" : "in rank order");
    if (s->chosen == NULL)
        (void)printf("  chosen       nothing: %s\n", s->why);
    else if (strcmp(s->chosen, "threads") == 0)
        (void)printf("  chosen       ranks are threads: %s\n", s->why);
    else
        (void)printf("  chosen       processes joined over %s: %s\n", s->chosen, s->why);
    cli_print_gpus();
    (void)printf("\nenvironment\n");
    for (int i = 0; (name = cli_environment_name(i, &value)) != NULL; i++)
        if (value != NULL)
            (void)printf("  %s=%s\n", name, dti_printable(value, shown, sizeof shown));
}

static dt_status print_json(const dt_launch_info *s)
{
    json_t *modules = json_array(), *variables = json_object(), *object;
    char shown[DT_ERROR_MESSAGE_BYTES]; /* variables need not be UTF-8, JSON has to be */
    const char *value, *name;

    for (int i = 0; i < s->n_joins; i++) {
        const dt_join *m = &s->joins[i];
        (void)json_array_append_new(modules,
                                    json_pack("{s:s, s:s, s:s, s:b}", "name", m->name, "path",
                                              m->path, "library", m->library, "usable", m->usable));
    }
    for (int i = 0; (name = cli_environment_name(i, &value)) != NULL; i++)
        if (value != NULL)
            (void)json_object_set_new(variables, name,
                                      json_string(dti_printable(value, shown, sizeof shown)));
    object =
        json_pack("{s:s, s:i, s:i, s:s?, s:i, s:o, s:b, s:s, s:s?, s:b, s:s, s:o, s:o}", "version",
                  dt_version(), "process", s->process, "processes", s->n_processes, "launcher",
                  s->launcher, "cores", dt_machine_cores(), "mpi", modules, "shares_memory",
                  s->can_share && s->wants_shared, "sums", s->sums_by_mpi ? "mpi" : "rank-order",
                  "chosen", s->chosen, "can_run", s->chosen != NULL, "why", s->why, "gpus",
                  cli_gpus_json(), "environment", variables);
    DT_TRY(cli_put_json(object, JSON_COMPACT));
    return DT_OK;
}

static dt_status run(const cli_args *args, const cli_env *env, const cli_console *console)
{
    dt_launch_info s;

    (void)env, (void)console;
    dt_launch_look(&s);
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
