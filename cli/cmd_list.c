/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor list: what there is to name, the library's and what modules add. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/hub_models.h"
#include "cli/print_report.h"

/* What a list has of each thing: its name, a few words, a line. */
typedef struct item {
    const char *name;
    char words[128];
    const char *line; /* or NULL */
    int backward;     /* of an operator: whether its row has one; -1: no operator */
} item;

typedef struct listed {
    const char *name, *title;
    bool (*at)(dt_runtime *rt, int i, item *out); /* false behind the last */
} listed;

static bool style_at(dt_runtime *rt, int i, item *out)
{
    const dt_style *s = dt_style_at(rt, i);

    if (s == NULL) return false;
    out->name = s->name;
    (void)snprintf(out->words, sizeof out->words, "%s", s->kinds != NULL ? s->kinds : "any");
    out->line = s->summary;
    return true;
}

static bool kind_at(dt_runtime *rt, int i, item *out)
{
    const dt_layer_kind *k = dt_kind_at(rt, i);
    size_t used = 0;

    if (k == NULL) return false;
    out->name = k->name;
    out->words[0] = '\0';
    for (int p = 0; p < DT_LAYER_MAX_PARAMS && k->params[p].name != NULL; p++)
        used += (size_t)snprintf(out->words + used, sizeof out->words - used, "%s%s %s%s",
                                 p > 0 ? ", " : "", k->params[p].name, k->params[p].axes,
                                 k->params[p].optional ? "?" : "");
    out->line = k->values;
    return true;
}

static bool row_at(dt_runtime *rt, int i, item *out)
{
    const dt_op *op = dt_op_at(i);

    (void)rt;
    if (op == NULL) return false;
    out->name = op->name;
    (void)snprintf(out->words, sizeof out->words, "%s", op->axes);
    out->line = op->types;
    out->backward = op->backward != NULL;
    return true;
}

static bool arch_at(dt_runtime *rt, int i, item *out)
{
    const dt_arch *a = dt_arch_at(rt, i);

    if (a == NULL) return false;
    out->name = a->model_type;
    (void)snprintf(out->words, sizeof out->words, "%s", a->class_name != NULL ? a->class_name : "");
    out->line = NULL;
    return true;
}

static const listed lists[] = {
    { "architectures", "model_type and class in config.json", arch_at },
    { "styles", "layers it fits, what it does", style_at },
    { "kinds", "parameters with their axes, \"?\": optional; values", kind_at },
    { "operators", "axes, types; \"backward\": gradients flow through it", row_at },
};

static void print_list(dt_runtime *rt, const listed *l)
{
    item it = { .backward = -1 };

    (void)printf("%s: %s\n", l->name, l->title);
    for (int i = 0; l->at(rt, i, &it); i++)
        (void)printf("  %-30s %s%s%s%s\n", it.name, it.words, it.line != NULL ? "; " : "",
                     it.line != NULL ? it.line : "", it.backward > 0 ? "; backward" : "");
}

static json_t *json_list(dt_runtime *rt, const listed *l)
{
    json_t *all = json_array();
    item it = { .backward = -1 };

    for (int i = 0; l->at(rt, i, &it); i++) {
        json_t *one =
            json_pack("{s:s, s:s, s:s?}", "name", it.name, "of", it.words, "does", it.line);
        if (it.backward >= 0) (void)json_object_set_new(one, "backward", json_boolean(it.backward));
        (void)json_array_append_new(all, one);
    }
    return all;
}

/* The list of that name; NULL: all are wanted. */
static dt_status choose(const char *word, const listed **out)
{
    const size_t n = word != NULL ? strlen(word) : 0;

    *out = NULL;
    if (word == NULL) return DT_OK;
    for (size_t i = 0; i < DT_COUNT(lists); i++)
        if (strcmp(lists[i].name, word) == 0 ||
            (n + 1 == strlen(lists[i].name) && strncmp(lists[i].name, word, n) == 0)) {
            *out = &lists[i];
            return DT_OK;
        }
    DT_FAIL(DT_ERR_ARG,
            "list: \"%s\" is no list; there are architectures, styles, kinds, operators, models",
            word);
}

static dt_status print_all(const cli_args *args, dt_runtime *rt, const listed *only)
{
    json_t *object = args->json ? json_object() : NULL;

    for (size_t i = 0; i < DT_COUNT(lists); i++) {
        if (only != NULL && only != &lists[i]) continue;
        if (args->json)
            (void)json_object_set_new(object, lists[i].name, json_list(rt, &lists[i]));
        else
            print_list(rt, &lists[i]);
        if (!args->json && only == NULL && i + 1 < DT_COUNT(lists)) (void)printf("\n");
    }
    if (args->json) DT_TRY(cli_put_json(object, JSON_COMPACT));
    DT_TRY(cli_flush());
    return DT_OK;
}

static dt_status list(const cli_args *args, const cli_env *env, const cli_console *console)
{
    const dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_runtime *own = NULL;
    const listed *only;
    dt_status st;

    (void)console;
    if (args->folder != NULL && strncmp(args->folder, "models", strlen(args->folder)) == 0 &&
        strlen(args->folder) >= 5)
        return cli_list_models(args, env);
    DT_TRY(choose(args->folder, &only));
    if (args->registry == NULL) DT_TRY(dt_runtime_create_dry(&run, 0, NULL, &own));
    st = print_all(args, args->registry != NULL ? args->registry : own, only);
    dt_runtime_release_dry(&own);
    return st;
}

const cli_command cli_list = {
    .name = "list",
    .bit = CLI_LIST,
    .argument = "WHAT",
    .usage = "[architectures | styles | kinds | operators | models] [--load FILE] [--json]",
    .summary = "names what there is: architectures, styles, kinds of layers, operators",
    .details =
        "What plans and models can name, one thing a line. What --load adds stands first in its\n"
        "list. \"models\", alone, are those in the cache of the Hugging Face Hub (HF_HUB_CACHE, "
        "HF_HOME,\n"
        "~/.cache/huggingface/hub), which --model finds by ORG/NAME or ORG/NAME@REVISION.",
    .run = list,
};
