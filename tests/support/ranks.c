/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/dt_test.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank_job {
    const char *spec;
    dt_test_body body;
    const void *arg;
} rank_job;

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const rank_job *job = arg;
    dt_status st = DT_OK;
    dt_mesh *mesh = NULL;

    DT_TRY(dt_mesh_create(rt, job->spec, &mesh));
    DT_TRY_TO(done, st, job->body(mesh, job->arg));
done:
    dt_mesh_release(&mesh);
    if (st != DT_OK) return st;
    DT_EXPECT(dt_runtime_live(rt) == 0, "%" PRId64 " objects were not released",
              dt_runtime_live(rt));
    return DT_OK;
}

int dt_test_processes(void)
{
    return dt_launch_size();
}

bool dt_test_fits_launch(const char *spec)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int n_dims, sizes[DT_MAX_DIMS], n;

    dt_test_ok(__FILE__, __LINE__, spec, dt_mesh_parse(spec, &n_dims, names, sizes, &n));
    return dt_test_processes() == 1 || n == dt_test_processes();
}

/* Ranks are given to processes in blocks, the first ones get one more if it does not divide. */
bool dt_test_is_here(int rank, int n_ranks)
{
    const int n = dt_test_processes(), each = n_ranks / n, more = n_ranks % n;
    const int p = dt_launch_process();
    const int first = p * each + (p < more ? p : more);

    return rank >= first && rank < first + each + (p < more ? 1 : 0);
}

/* Tools that slow a test down many times say how long a rank may wait at the least:
 * DTENSOR_TEST_TIMEOUT_MS. */
static int64_t patience(int64_t timeout_ms)
{
    const char *text = getenv("DTENSOR_TEST_TIMEOUT_MS");
    const long long least = text != NULL ? strtoll(text, NULL, 10) : 0;

    return timeout_ms < least ? least : timeout_ms;
}

dt_status dt_test_run(const dt_run_options *options, const char *spec, dt_test_body body,
                      const void *arg)
{
    dt_run_options o = options ? *options : DT_TEST_RUN_OPTIONS;
    rank_job job = { spec, body, arg };
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int n_dims, sizes[DT_MAX_DIMS];

    o.timeout_ms = patience(o.timeout_ms);
    DT_TRY(dt_mesh_parse(spec, &n_dims, names, sizes, &o.n_ranks));
    if (o.n_ranks < dt_test_processes()) return DT_OK;
    DT_TRY(dt_run(&o, rank_main, &job));
    return DT_OK;
}

void dt_test_on_ranks(const char *spec, dt_test_body body, const void *arg)
{
    const dt_status st = dt_test_run(NULL, spec, body, arg);

    dt_test_ok(__FILE__, __LINE__, spec, st);
}

void dt_test_on_ranks_fail(const char *spec, dt_test_body body, const void *arg, dt_status code,
                           const char *substring)
{
    const dt_status st = dt_test_run(NULL, spec, body, arg);

    dt_test_status(__FILE__, __LINE__, spec, st, code, substring);
}
