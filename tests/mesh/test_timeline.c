/* SPDX-License-Identifier: Apache-2.0
 *
 * Time lines: what is noted, when, and the file that all ranks write. */
#include <dtensor/timeline.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

static int n_events(dt_runtime *rt)
{
    dt_timeline_event e;
    int n = 0;

    while (dt_timeline_at(rt, n, &e)) n++;
    return n;
}

static dt_status reduce(dt_mesh *mesh)
{
    float x[100] = { 0 };
    dti_comm *c;

    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    DT_TRY(dti_all_reduce(c, x, x, 100, DT_F32, DT_SUM));
    return DT_OK;
}

static dt_status notes(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const int ranks = dt_mesh_n_ranks(mesh);
    dt_timeline_event e;

    (void)arg;
    DT_TRY(reduce(mesh));
    dt_timeline_begin(rt, "before");
    dt_timeline_end(rt);
    DT_EXPECT_EQ_INT(n_events(rt), 0);
    dt_timeline_start(rt);
    dt_timeline_begin(rt, "step \"1\"");
    if (ranks > 1) DT_TRY(reduce(mesh));
    dt_timeline_end(rt);
    dt_timeline_end(rt); /* one too many */
    for (int i = 0; i < 12; i++) dt_timeline_begin(rt, "deep");
    for (int i = 0; i < 12; i++) dt_timeline_end(rt);
    dt_timeline_stop(rt);
    DT_TRY(reduce(mesh));
    DT_EXPECT_EQ_INT(n_events(rt), (ranks > 1) + 1 + 8);
    DT_EXPECT(dt_timeline_at(rt, ranks > 1, &e) && strcmp(e.name, "step \"1\"") == 0, "%s", e.name);
    DT_EXPECT(e.lane == DT_LANE_RANK && e.begin_ns <= e.end_ns && e.bytes == -1, "an own event");
    if (ranks > 1) {
        const int64_t from = e.begin_ns, to = e.end_ns;
        DT_EXPECT(dt_timeline_at(rt, 0, &e) && strcmp(e.name, "all_reduce tp") == 0, "%s", e.name);
        DT_EXPECT(e.begin_ns >= from && e.end_ns <= to, "not within the step");
        DT_EXPECT_EQ_INT(e.bytes, 2 * (ranks - 1) * 100 / ranks * 4);
    }
    dt_timeline_start(rt);
    DT_EXPECT_EQ_INT(n_events(rt), 0);
    dt_timeline_stop(rt);
    return DT_OK;
}

DT_TEST(timeline, notes_between_start_and_stop)
{
    dt_test_on_ranks("tp=1", notes, NULL);
    dt_test_on_ranks("tp=2", notes, NULL);
    dt_test_on_ranks("tp=3", notes, NULL);
}

static dt_status writes(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const char *path = arg;

    dt_timeline_start(rt);
    dt_timeline_begin(rt, "a \"name\"\n");
    DT_TRY(reduce(mesh));
    dt_timeline_end(rt);
    dt_timeline_stop(rt);
    DT_EXPECT_STATUS(dt_timeline_write(rt, "no/such/folder/x.json"), DT_ERR_IO, "No such file");
    DT_EXPECT(dt_last_error()->rank == 0, "rank %d has failed", dt_last_error()->rank);
    DT_TRY(dt_timeline_write(rt, path)); /* the ranks have gone on */
    return DT_OK;
}

DT_TEST(timeline, is_written_by_one_rank_for_all)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8];
    double earliest = 1;
    json_t *root;

    if (dt_test_processes() > 1) dt_test_skip("each process has a file of its own name");
    (void)snprintf(path, sizeof path, "%s/x.json", dt_test_temp_dir(folder));
    for (int ranks = 1; ranks <= 3; ranks++) {
        char spec[16];
        size_t i;
        json_t *e;
        int own = 0, sums = 0, names = 0;
        (void)snprintf(spec, sizeof spec, "tp=%d", ranks);
        dt_test_on_ranks(spec, writes, path);
        root = json_load_file(path, 0, NULL);
        DT_ASSERT(root != NULL);
        json_array_foreach(json_object_get(root, "traceEvents"), i, e)
        {
            const char *name = json_string_value(json_object_get(e, "name"));
            const double ts = json_number_value(json_object_get(e, "ts"));
            own += strcmp(name, "a \"name\"\n") == 0;
            sums += strcmp(name, "all_reduce tp") == 0;
            names += strcmp(name, "process_name") == 0;
            if (json_object_get(e, "ts") != NULL && ts < earliest) earliest = ts;
        }
        DT_ASSERT_EQ_INT(own, ranks);
        DT_ASSERT_EQ_INT(sums, ranks > 1 ? ranks : 0);
        DT_ASSERT_EQ_INT(names, ranks);
        DT_ASSERT(earliest >= 0 && earliest < 1e-6);
        json_decref(root);
    }
}
