/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/pipelines.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"

static const char usual[] = "1f1b";

/* Of the mesh dim "pp"; 0: there is none. */
static int ranks_of(const char *mesh)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims, n_ranks;

    if (dt_mesh_parse(mesh, &n_dims, names, sizes, &n_ranks) != DT_OK) return 0;
    for (int m = 0; m < n_dims; m++)
        if (strcmp(names[m], "pp") == 0) return sizes[m];
    return 0;
}

static const char *name_of(const cli_args *args)
{
    return args->training.pipeline != NULL ? args->training.pipeline : usual;
}

static bool is_file(const char *name)
{
    return strpbrk(name, "./") != NULL;
}

static const dt_pipeline_kind *kind_of(const char *name)
{
    const dt_pipeline_kind *k = NULL;

    for (int i = 0; (k = dt_pipeline_kind_at(i)) != NULL; i++)
        if (strcmp(k->name, name) == 0) break;
    return k;
}

/* A file says itself how many there are. */
static dt_status open_file(const cli_args *args, int ranks, dt_pipeline_schedule **out)
{
    const char *name = name_of(args);
    const int64_t given = args->training.microbatches;
    dt_status st = dt_pipeline_schedule_read(name, out);
    int n;

    if (st != DT_OK) dti_error_prefix("--schedule");
    DT_TRY(st);
    n = dt_pipeline_schedule_ranks(*out);
    DT_CHECK(n == ranks, DT_ERR_ARG, "--schedule: %s is for %d ranks, the mesh has pp=%d", name, n,
             ranks);
    n = dt_pipeline_schedule_microbatches(*out);
    DT_CHECK(given == 0 || given == n, DT_ERR_ARG,
             "--schedule: %s is for %d microbatches, not for --microbatches %" PRId64, name, n,
             given);
    n = dt_pipeline_schedule_stages(*out);
    DT_CHECK(args->training.stages_per_rank == 0 || args->training.stages_per_rank * ranks == n,
             DT_ERR_ARG, "--schedule: %s is for %d stages on %d ranks, not %" PRId64 " on each",
             name, n, ranks, args->training.stages_per_rank);
    return DT_OK;
}

dt_status cli_pipeline_microbatches(const cli_args *args, const char *mesh, int64_t *out)
{
    const dt_pipeline_kind *kind = kind_of(name_of(args));
    const int ranks = ranks_of(mesh);
    dt_pipeline_schedule *file;

    *out = args->training.microbatches > 0 ? args->training.microbatches
                                           : dti_max(ranks * (kind != NULL ? kind->least : 1), 1);
    if (args->training.microbatches > 0 || ranks == 0) return DT_OK;
    *out = dti_max(*out, ranks);
    if (!is_file(name_of(args))) return DT_OK;
    DT_TRY(open_file(args, ranks, &file));
    *out = dt_pipeline_schedule_microbatches(file);
    dt_pipeline_schedule_release(&file);
    return DT_OK;
}

static dt_status by_name(const cli_args *args, const char *mesh, int ranks,
                         dt_pipeline_schedule **out)
{
    int64_t n;
    dt_status st;

    DT_TRY(cli_pipeline_microbatches(args, mesh, &n));
    st = dt_pipeline_schedule_create(name_of(args), ranks, (int)args->training.stages_per_rank,
                                     (int)dti_min(n, INT32_MAX), out);
    if (st != DT_OK) dti_error_prefix("--schedule");
    DT_TRY(st);
    return DT_OK;
}

/* Stages are in turn on all ranks, or to and fro. */
static dt_status check_places(const dt_pipeline_schedule *s, bool *turn)
{
    const int p = dt_pipeline_schedule_ranks(s), n = dt_pipeline_schedule_stages(s);

    *turn = n > p && p > 1 && dt_pipeline_schedule_rank_of(s, p) == p - 1;
    for (int i = 0; i < n; i++) {
        const int want = *turn && i / p % 2 != 0 ? p - 1 - i % p : i % p;
        DT_CHECK(dt_pipeline_schedule_rank_of(s, i) == want, DT_ERR_UNSUPPORTED,
                 "--schedule: %s has stage %d on rank %d; models lie with their stages on ranks in "
                 "turn, or to and fro, where it is on rank %d",
                 dt_pipeline_schedule_name(s), i, dt_pipeline_schedule_rank_of(s, i), want);
    }
    return DT_OK;
}

dt_status cli_pipeline_schedule(const cli_args *args, const char *mesh, dt_pipeline_schedule **out)
{
    const int ranks = ranks_of(mesh);
    dt_status st;
    bool turn;

    *out = NULL;
    DT_CHECK(ranks > 0 || (args->training.pipeline == NULL && args->training.stages_per_rank == 0),
             DT_ERR_ARG,
             "--%s is of a pipeline, and --mesh %s has no dim \"pp\"; add one, as in pp=2,dp=2",
             args->training.pipeline != NULL ? "schedule" : "stages-per-rank", mesh);
    if (ranks == 0) return DT_OK;
    if (is_file(name_of(args)))
        DT_TRY(open_file(args, ranks, out));
    else
        DT_TRY(by_name(args, mesh, ranks, out));
    st = check_places(*out, &turn);
    if (st != DT_OK) dt_pipeline_schedule_release(out);
    DT_TRY(st);
    return DT_OK;
}

dt_status cli_load_stages(const cli_args *args, const char *mesh, dt_load_options *load)
{
    dt_pipeline_schedule *schedule = NULL;
    const char *at = args->stages;

    load->stages = args->stages;
    DT_CHECK(strcmp(args->command, "gradients") != 0 || ranks_of(mesh) <= 1, DT_ERR_ARG,
             "--mesh %s: gradients are those of a model in one piece; leave pp out", mesh);
    DT_CHECK(at == NULL || ranks_of(mesh) > 0, DT_ERR_ARG,
             "--stages %s is of a pipeline, and --mesh %s has no dim \"pp\"", at, mesh);
    for (load->n_stages = at != NULL; at != NULL && *at != '\0'; at++) load->n_stages += *at == ',';
    if (!args->train && strcmp(args->command, "train") != 0) return DT_OK;
    DT_TRY(cli_pipeline_schedule(args, mesh, &schedule));
    if (schedule == NULL) return DT_OK;
    load->n_stages = dt_pipeline_schedule_stages(schedule);
    DT_TRY(check_places(schedule, &load->stages_turn));
    dt_pipeline_schedule_release(&schedule);
    return DT_OK;
}
