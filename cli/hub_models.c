/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/hub_models.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/option_rows.h"
#include "cli/print_report.h"

dt_status cli_find_model(const cli_command *command, cli_args *args, const cli_env *env)
{
    static const char option[] = "model";
    const bool is_option = cli_option_find(command, option, sizeof option - 1) != NULL;
    dt_status st;

    if (!is_option && (command->bit & (CLI_INSPECT | CLI_VERIFY)) == 0) return DT_OK;
    if (args->serving.url != NULL) return DT_OK; /* names are the server's */
    if (args->folder == NULL || args->training.config != NULL || access(args->folder, F_OK) == 0 ||
        !dt_hub_is_name(args->folder))
        return DT_OK;
    st = dt_hub_find(env->hub, args->folder, args->found);
    if (st != DT_OK && is_option) dti_error_prefix("--model");
    DT_TRY(st);
    args->folder = args->found;
    return DT_OK;
}

typedef struct listing {
    dt_runtime *rt;
    json_t *all; /* NULL: as lines */
} listing;

/* What folders and files are called is anybody's. */
static void print_line(const dt_hub_model *m, bool known)
{
    enum { WIDTH = 40 };
    const int n = (int)strlen(m->name);

    (void)fputs("  ", stdout);
    cli_print_text(stdout, m->name, strlen(m->name));
    (void)printf("%*s ", n < WIDTH ? WIDTH - n : 0, "");
    if (m->model_type[0] == '\0') (void)fputs("no config.json", stdout);
    cli_print_text(stdout, m->model_type, strlen(m->model_type));
    (void)fputs(known || m->model_type[0] == '\0' ? "; " : ", which is not supported; ", stdout);
    cli_print_text(stdout, m->folder, strlen(m->folder));
    (void)putchar('\n');
}

static dt_status show(void *arg, const dt_hub_model *m)
{
    const listing *l = arg;
    const dt_arch *arch;
    bool known = false;

    for (int i = 0; !known && (arch = dt_arch_at(l->rt, i)) != NULL; i++)
        known = strcmp(arch->model_type, m->model_type) == 0;
    if (l->all != NULL)
        (void)json_array_append_new(l->all, json_pack("{s:s, s:s, s:b, s:s}", "name", m->name,
                                                      "model_type", m->model_type, "supported",
                                                      known, "folder", m->folder));
    else
        print_line(m, known);
    return DT_OK;
}

dt_status cli_list_models(const cli_args *args, const cli_env *env)
{
    listing l = { args->registry, args->json ? json_array() : NULL };

    if (!args->json) (void)printf("models: in %s; type, folder\n", env->hub);
    DT_TRY(dt_hub_each(env->hub, show, &l));
    if (args->json) DT_TRY(cli_put_json(json_pack("{s:o}", "models", l.all), JSON_COMPACT));
    return cli_flush();
}
