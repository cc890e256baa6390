/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/search_ways.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/load_modules.h"
#include "cli/outputs.h"
#include "cli/print_report.h"
#include "cli/run_folder.h"
#include "cli/session.h"
#include "cli/training.h"

dt_status cli_check_auto(const cli_args *args)
{
    const char *of_auto = args->machine != NULL   ? "machine"
                          : args->explain != NULL ? "explain"
                          : args->top > 0         ? "top"
                          : args->measure > 0     ? "measure"
                          : args->goal != NULL    ? "goal"
                          : args->seconds > 0     ? "seconds"
                                                  : NULL;
    const char *of_mesh = args->mesh != NULL                   ? "mesh"
                          : args->fully_shard != NULL          ? "fully-shard"
                          : args->offload != NULL              ? "offload-parameters"
                          : args->stages != NULL               ? "stages"
                          : args->sequence_parallel            ? "sequence-parallel"
                          : args->recompute != NULL            ? "recompute"
                          : args->training.zero >= 0           ? "zero"
                          : args->training.microbatches > 0    ? "microbatches"
                          : args->training.pipeline != NULL    ? "schedule"
                          : args->training.stages_per_rank > 0 ? "stages-per-rank"
                          : args->training.offload != NULL     ? "offload"
                          : args->training.bucket > 0          ? "bucket"
                                                               : NULL;

    const char *of_train = args->training.optimizer != NULL  ? "optimizer"
                           : args->training.momentum != NULL ? "momentum"
                           : args->training.nesterov         ? "nesterov"
                           : args->training.no_masters       ? "no-masters"
                                                             : NULL;

    DT_CHECK(args->automatic || of_auto == NULL, DT_ERR_ARG, "--%s is of --auto; add it", of_auto);
    if (!args->automatic) return DT_OK;
    DT_CHECK(
        of_mesh == NULL, DT_ERR_ARG,
        "--%s is what --auto finds; leave it out, or leave out --auto (--explain MESH looks at "
        "one mesh alone)",
        of_mesh);
    DT_CHECK(args->train || of_train == NULL, DT_ERR_ARG, "--%s is of --train; add it", of_train);
    DT_CHECK(!args->train || args->goal == NULL, DT_ERR_ARG,
             "--goal is of generation; leave it out, or --train");
    DT_CHECK(args->goal == NULL || strcmp(args->goal, "token") == 0 ||
                 strcmp(args->goal, "prompt") == 0,
             DT_ERR_ARG, "--goal %s: token or prompt", args->goal);
    return DT_OK;
}

/* What --explain may say of a way, in words: they stay where they are. */
typedef struct way_words {
    const char *pp, *dp, *ep, *tp, *zero, *microbatches, *stages_per_rank;
    const char *schedule, *recompute, *sequence_parallel, *offload;
    const char *ends, *tiles, *chunk, *stages, *dispatch;
} way_words;

static dt_status split_words(char *text, way_words *out)
{
    const struct {
        const char *name;
        const char **at;
    } keys[] = {
        { "pp", &out->pp },
        { "dp", &out->dp },
        { "ep", &out->ep },
        { "tp", &out->tp },
        { "zero", &out->zero },
        { "microbatches", &out->microbatches },
        { "stages-per-rank", &out->stages_per_rank },
        { "schedule", &out->schedule },
        { "recompute", &out->recompute },
        { "sequence-parallel", &out->sequence_parallel },
        { "offload", &out->offload },
        { "sharded-ends", &out->ends },
        { "tiles", &out->tiles },
        { "chunk", &out->chunk },
        { "stages", &out->stages },
        { "dispatch", &out->dispatch },
    };

    for (char *key = text, *end; key != NULL; key = end) {
        char *value = strpbrk(key, "=,");
        size_t i = 0;
        if ((end = strchr(key, ',')) != NULL) *end++ = '\0';
        value = value != NULL && *value == '=' ? value : key + strlen(key);
        if (*value == '=') *value++ = '\0';
        while (i < DT_COUNT(keys) && strcmp(keys[i].name, key) != 0) i++;
        DT_CHECK(strcmp(key, "cp") != 0, DT_ERR_ARG,
                 "--explain: cp: there is no context parallelism here; sequence-parallel cuts "
                 "tokens over tp outside of attention");
        DT_CHECK(i < DT_COUNT(keys), DT_ERR_ARG,
                 "--explain: \"%.40s\": dims are pp, dp, ep and tp; a way has zero, microbatches, "
                 "schedule, stages-per-rank, stages, recompute, sequence-parallel, offload, "
                 "sharded-ends, tiles, chunk and dispatch besides",
                 key);
        *keys[i].at = value;
    }
    return DT_OK;
}

static dt_status number_of(const char *name, const char *text, int least, int *out)
{
    char *end = NULL;
    long n;

    if (text == NULL) return DT_OK;
    n = strtol(text, &end, 10);
    DT_CHECK(text[0] >= '0' && text[0] <= '9' && *end == '\0' && n >= least && n <= 1 << 24,
             DT_ERR_ARG, "--explain: %s=%.40s: must be a whole number from %d", name, text, least);
    *out = (int)n;
    return DT_OK;
}

/* Said or not, with "true" or `word` behind it or nothing. */
static dt_status flag_of(const char *name, const char *text, const char *word, bool *out)
{
    if (text == NULL) return DT_OK;
    DT_CHECK(text[0] == '\0' || strcmp(text, "true") == 0 || strcmp(text, word) == 0, DT_ERR_ARG,
             "--explain: %s=%.40s: it is said alone%s%s, or left out", name, text,
             word[0] != '\0' ? ", or " : "", word);
    *out = true;
    return DT_OK;
}

/* "pp=2,dp=2,tp=2": the only degrees to look at. With "zero=1" and the like behind it, one way
 * alone that is judged: *whole. */
static dt_status read_way(char *text, dt_way *w, bool *whole)
{
    static const char *const recomputed[] = { "none", "selective", "full" };
    way_words said = { NULL };
    int microbatches = 0, recompute = 0, chunk = 0;

    *w = (dt_way){ .pp = 1, .dp = 1, .tp = 1 };
    DT_TRY(split_words(text, &said));
    DT_TRY(number_of("pp", said.pp, 1, &w->pp));
    DT_TRY(number_of("dp", said.dp, 1, &w->dp));
    DT_TRY(number_of("ep", said.ep, 1, &w->ep));
    DT_TRY(number_of("tp", said.tp, 1, &w->tp));
    DT_TRY(number_of("tiles", said.tiles, 1, &w->tiles));
    DT_TRY(number_of("chunk", said.chunk, 1, &chunk));
    DT_TRY(flag_of("sequence-parallel", said.sequence_parallel, "", &w->sequence_parallel));
    DT_TRY(flag_of("dispatch", said.dispatch, "", &w->dispatch));
    DT_TRY(flag_of("sharded-ends", said.ends, "", &w->ends));
    DT_TRY(flag_of("offload", said.offload, "host", &w->offload));
    DT_TRY(number_of("zero", said.zero, 0, &w->zero));
    DT_TRY(number_of("microbatches", said.microbatches, 1, &microbatches));
    DT_TRY(number_of("stages-per-rank", said.stages_per_rank, 1, &w->stages_per_rank));
    while (said.recompute != NULL && recompute < 3 &&
           strcmp(recomputed[recompute], said.recompute) != 0)
        recompute++;
    DT_CHECK(recompute < 3, DT_ERR_ARG, "--explain: recompute=%.40s: none, selective or full",
             said.recompute);
    w->microbatches = microbatches;
    w->recompute = (dt_recomputed)recompute;
    w->chunk = chunk;
    for (char *c = (char *)(uintptr_t)said.stages; c != NULL && *c != '\0'; c++)
        if (*c == '-') *c = ',';
    w->stages = said.stages;
    w->schedule = said.schedule != NULL || w->pp == 1 ? said.schedule : "1f1b";
    *whole = said.zero != NULL || said.microbatches != NULL || said.stages_per_rank != NULL ||
             said.schedule != NULL || said.recompute != NULL || w->sequence_parallel ||
             w->offload || w->ends || w->dispatch || w->tiles > 1 || chunk > 0 || w->stages != NULL;
    return DT_OK;
}

static dt_status print(const dt_search *s, bool json)
{
    const int n = dt_search_print(s, json, NULL, 0);
    char *text = malloc((size_t)n + 1);

    DT_CHECK(text != NULL, DT_ERR_MEMORY, "the result does not fit into memory");
    (void)dt_search_print(s, json, text, (size_t)n + 1);
    (void)fputs(text, stdout);
    free(text);
    DT_TRY(cli_flush());
    return DT_OK;
}

/* The way that was asked for, or the first one. */
static dt_status picture(dt_search *s, const dt_way *way, const char *path)
{
    char *svg = NULL;
    dt_status st;

    if (path == NULL || (way == NULL && dt_search_at(s, 0) == NULL) ||
        (way == NULL && dt_search_at(s, 0)->kind != DT_VERDICT_RANKED))
        return DT_OK;
    DT_TRY(dt_search_draw(s, way, &svg));
    st = cli_write_text(path, svg, strlen(svg));
    free(svg);
    if (st != DT_OK) dti_error_prefix("--picture");
    DT_TRY(st);
    return DT_OK;
}

/* Whether there is a way. */
static dt_status judge(const dt_search *s, const char *machine)
{
    const dt_verdict *first = dt_search_at(s, 0);
    const long long least = dt_search_least_devices(s);
    char more[96] = "";

    if (first != NULL && first->kind == DT_VERDICT_RANKED) return DT_OK;
    if (least > 0) (void)snprintf(more, sizeof more, "; %lld devices of that kind would do", least);
    DT_CHECK(dt_search_ended(s) == DT_SEARCH_WHOLE, DT_ERR_ARG,
             "no way that fits on --machine %s was found before the search was ended; give it more "
             "--seconds",
             machine);
    DT_FAIL(DT_ERR_ARG, "the model fits in no way on --machine %s%s", machine, more);
}

enum { STEPS_TO_MEASURE = 5 };

/* Seconds to measure this machine for, where no file says what it reaches. */
static const double BRIEFLY = 4;

static dt_status read_machine(const cli_args *args, const cli_console *console, dt_machine *out)
{
    dt_status st;

    if (args->machine == NULL || strcmp(args->machine, "here") == 0) {
        cli_log((void *)(uintptr_t)console, DT_LOG_INFO, 0,
                "measuring this machine for some seconds; a file of \"dtensor calibrate\" for "
                "--machine says more, and the same each time");
        DT_TRY(cli_measure_machine(args, console, BRIEFLY, out));
        return DT_OK;
    }
    st = dt_machine_read(args->machine, out);
    if (st != DT_OK) dti_error_prefix("--machine");
    return st;
}

/* The best ways as they are, not as they were predicted. */
static dt_status measure(const cli_args *args, dt_search *s)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_status st;

    cli_modules_setup(args, &run);
    st = dt_search_measure(s, &run, (int)args->measure, STEPS_TO_MEASURE);
    if (st != DT_OK) dti_error_prefix("--measure");
    return st;
}

dt_status cli_search_ways(const cli_args *args, const cli_console *console)
{
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_optimizer_options optimizer = DT_OPTIMIZER_OPTIONS_INIT;
    dt_machine machine;
    dt_search *s = NULL;
    dt_plan *plan = NULL;
    dt_verdict asked;
    dt_way way;
    char words[CLI_PATH_BYTES] = "";
    bool whole = false;
    dt_status st;

    if (args->picture != NULL) DT_TRY(cli_check_place("--picture", args->picture, args));
    DT_TRY(read_machine(args, console, &machine));
    if (args->explain != NULL) {
        (void)snprintf(words, sizeof words, "%s", args->explain);
        DT_TRY(read_way(words, &way, &whole));
        if (!whole) o.pp = way.pp, o.dp = way.dp, o.ep = way.ep, o.tp = way.tp;
    }
    DT_TRY(cli_read_dtype(args->dtype, &load));
    DT_TRY(cli_optimizer_read(args, &optimizer));
    DT_TRY(cli_read_plan(args, &plan, &load));
    if (!args->train)
        o.goal = args->goal != NULL && strcmp(args->goal, "prompt") == 0 ? DT_PLAN_PROMPT
                                                                         : DT_PLAN_TOKEN;
    o.batch = args->batch;
    o.sequence = args->sequence;
    o.load = &load;
    o.optimizer = &optimizer;
    o.top = (int)(args->top > args->measure ? args->top : args->measure);
    if (o.top == 0) o.top = 1;
    o.seconds = (double)args->seconds;
    DT_TRY_TO(done, st, dt_search_ways(args->registry, args->folder, &machine, &o, &s));
    if (args->measure > 0) DT_TRY_TO(done, st, measure(args, s));
    if (whole) DT_TRY_TO(done, st, dt_search_judge(s, &way, &asked));
    DT_TRY_TO(done, st, print(s, args->json));
    DT_TRY_TO(done, st, picture(s, whole ? &way : NULL, args->picture));
    st = judge(s, machine.name);
done:
    dt_search_release(&s);
    dt_plan_release(&plan);
    return st;
}
