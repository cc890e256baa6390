/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/pipelines.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"

static const char usual[] = "1f1b";

int cli_pipeline_ranks(const char *mesh)
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

/* Where nothing says how many microbatches there are they are as many as the pipeline has ranks, or
 * as its schedule needs. */
static dt_status by_name(const cli_args *args, int ranks, dt_pipeline_schedule **out)
{
    const dt_pipeline_kind *kind = kind_of(name_of(args));
    const int64_t given = args->training.microbatches;
    const int64_t n =
        given > 0 ? given : (int64_t)ranks * dti_max(kind != NULL ? kind->least : 1, 1);

    DT_TRY(dt_pipeline_schedule_create(name_of(args), ranks, (int)args->training.stages_per_rank,
                                       (int)dti_min(n, INT32_MAX), out));
    return DT_OK;
}

/* A file says itself how many stages and microbatches there are. */
static dt_status check_file(const cli_args *args, int ranks, const dt_pipeline_schedule *s)
{
    const char *name = name_of(args);
    const int64_t given = args->training.microbatches, each = args->training.stages_per_rank;
    int n = dt_pipeline_schedule_ranks(s);

    DT_CHECK(n == ranks, DT_ERR_ARG, "%s is for %d ranks, the mesh has pp=%d", name, n, ranks);
    n = dt_pipeline_schedule_microbatches(s);
    DT_CHECK(given == 0 || given == n, DT_ERR_ARG,
             "%s is for %d microbatches, not for --microbatches %" PRId64, name, n, given);
    n = dt_pipeline_schedule_stages(s);
    DT_CHECK(each == 0 || each * ranks == n, DT_ERR_ARG,
             "%s is for %d stages on %d ranks, not %" PRId64 " on each", name, n, ranks, each);
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

static dt_status read_schedule(const cli_args *args, int ranks, dt_pipeline_schedule **out)
{
    if (!is_file(name_of(args))) return by_name(args, ranks, out);
    DT_TRY(dt_pipeline_schedule_read(name_of(args), out));
    DT_TRY(check_file(args, ranks, *out));
    return DT_OK;
}

dt_status cli_pipeline_read(const cli_args *args, const char *mesh, cli_pipeline *out)
{
    const int ranks = cli_pipeline_ranks(mesh);
    dt_status st;

    *out = (cli_pipeline){ .microbatches = dti_max(args->training.microbatches, 1) };
    DT_CHECK(ranks > 0 || (args->training.pipeline == NULL && args->training.stages_per_rank == 0),
             DT_ERR_ARG,
             "--%s is of a pipeline, and --mesh %s has no dim \"pp\"; add one, as in pp=2,dp=2",
             args->training.pipeline != NULL ? "schedule" : "stages-per-rank", mesh);
    if (ranks == 0) return DT_OK;
    st = read_schedule(args, ranks, &out->schedule);
    if (st != DT_OK) dti_error_prefix("--schedule");
    if (st != DT_OK) dt_pipeline_schedule_release(&out->schedule);
    DT_TRY(st);
    out->microbatches = dt_pipeline_schedule_microbatches(out->schedule);
    return DT_OK;
}

dt_status cli_load_stages(const cli_args *args, const char *mesh,
                          const dt_pipeline_schedule *schedule, dt_load_options *load)
{
    const char *at = args->stages;

    load->stages = args->stages;
    DT_CHECK(at == NULL || cli_pipeline_ranks(mesh) > 0, DT_ERR_ARG,
             "--stages %s is of a pipeline, and --mesh %s has no dim \"pp\"", at, mesh);
    for (load->n_stages = at != NULL; at != NULL && *at != '\0'; at++) load->n_stages += *at == ',';
    if (schedule == NULL) return DT_OK;
    load->n_stages = dt_pipeline_schedule_stages(schedule);
    DT_TRY(check_places(schedule, &load->stages_turn));
    return DT_OK;
}
