/* SPDX-License-Identifier: Apache-2.0
 *
 * Time lines of ranks, and their file. */
#include <dtensor/timeline.h>
#include <stdio.h>

#include "base/memory.h"
#include "base/sync.h"
#include "base/writer.h"
#include "files/output.h"
#include "mesh/runtime_internal.h"

static bool is_alive(const dt_runtime *rt)
{
    return rt != NULL && !rt->ended;
}

dti_track *dti_runtime_track(dt_runtime *rt)
{
    return &rt->tracks[DT_LANE_RANK];
}

void dt_timeline_start(dt_runtime *rt)
{
    if (!is_alive(rt)) return;
    rt->n_open = 0;
    for (int lane = 0; lane < DT_N_LANES; lane++) {
        dti_track *t = &rt->tracks[lane];
        (void)pthread_mutex_lock(&t->lock);
        t->n = 0;
        (void)pthread_mutex_unlock(&t->lock);
        atomic_store(&t->on, true);
    }
}

void dt_timeline_stop(dt_runtime *rt)
{
    for (int lane = 0; is_alive(rt) && lane < DT_N_LANES; lane++)
        atomic_store(&rt->tracks[lane].on, false);
}

void dt_timeline_begin(dt_runtime *rt, const char *name)
{
    if (!is_alive(rt) || name == NULL || !dti_track_is_on(dti_runtime_track(rt))) return;
    if (rt->n_open < DTI_MAX_OPEN) {
        rt->open[rt->n_open].begin_ns = dti_now_ns();
        (void)snprintf(rt->open[rt->n_open].name, DT_EVENT_NAME_BYTES, "%s", name);
    }
    rt->n_open++;
}

void dt_timeline_end(dt_runtime *rt)
{
    if (!is_alive(rt) || rt->n_open == 0) return;
    if (--rt->n_open < DTI_MAX_OPEN && dti_track_is_on(dti_runtime_track(rt)))
        dti_track_add(dti_runtime_track(rt), rt->open[rt->n_open].name,
                      rt->open[rt->n_open].begin_ns, -1);
}

bool dt_timeline_at(dt_runtime *rt, int64_t i, dt_timeline_event *out)
{
    if (!is_alive(rt) || out == NULL || i < 0) return false;
    for (int lane = 0; lane < DT_N_LANES; lane++) {
        dti_track *t = &rt->tracks[lane];
        bool found;
        (void)pthread_mutex_lock(&t->lock);
        found = i < (int64_t)t->n;
        if (found) *out = t->events[i];
        i -= (int64_t)t->n;
        (void)pthread_mutex_unlock(&t->lock);
        out->lane = (dt_timeline_lane)lane;
        if (found) return true;
    }
    return false;
}

/* --- the file --------------------------------------------------------------------------------- */

static void put_lane_names(dti_writer *w, int rank)
{
    static const char *const names[DT_N_LANES] = { "rank", "transfers" };

    dti_put(w,
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
            rank, rank);
    for (int lane = 0; lane < DT_N_LANES; lane++)
        dti_put(
            w,
            ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":"
            "\"%s\"}}",
            rank, lane, names[lane]);
}

/* This rank's part of the list: events separated by commas. */
static void put_events(dt_runtime *rt, int64_t base_ns, dti_writer *w)
{
    dt_timeline_event e;

    put_lane_names(w, rt->rank);
    for (int64_t i = 0; dt_timeline_at(rt, i, &e); i++) {
        dti_put(w, ",\n{\"name\":");
        dti_put_json(w, e.name);
        dti_put(w, ",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", rt->rank,
                (int)e.lane, (double)(e.begin_ns - base_ns) / 1e3,
                (double)(e.end_ns - e.begin_ns) / 1e3);
        if (e.bytes >= 0) dti_put(w, ",\"args\":{\"bytes\":%lld}", (long long)e.bytes);
        dti_put(w, "}");
    }
}

static dt_status print(dt_runtime *rt, int64_t base_ns, char **text, int64_t *n)
{
    dti_writer w = { NULL, 0, 0 };

    put_events(rt, base_ns, &w);
    DT_TRY(dti_alloc(w.used + 1, (void **)text));
    *n = (int64_t)w.used;
    w = (dti_writer){ *text, w.used + 1, 0 };
    put_events(rt, base_ns, &w);
    return DT_OK;
}

static dt_status first_event(dt_runtime *rt, int64_t *base_ns)
{
    int64_t mine = INT64_MAX;
    dt_timeline_event e;

    for (int64_t i = 0; dt_timeline_at(rt, i, &e); i++)
        if (e.begin_ns < mine) mine = e.begin_ns;
    DT_TRY(dti_all_reduce(rt->world, &mine, base_ns, 1, DT_I64, DT_MIN));
    return DT_OK;
}

static dt_status message(dti_comm *world, dti_comm_op op, int peer, void *data, int64_t n)
{
    const dti_comm_call call = {
        .op = op, .dtype = DT_U8, .root = peer, .send = data, .recv = data, .counts = &n
    };

    return dti_comm_run(world, &call);
}

/* The part of rank r comes, whatever has become of the file. */
static dt_status receive(dt_runtime *rt, int r, dti_output *file, dt_status *written)
{
    dt_status st = DT_OK;
    char *text = NULL;
    int64_t n;

    DT_TRY(message(rt->world, DTI_COMM_RECV, r, &n, sizeof n));
    DT_TRY(dti_alloc((size_t)n + 1, (void **)&text));
    DT_TRY_TO(done, st, message(rt->world, DTI_COMM_RECV, r, text, n));
    if (*written == DT_OK) *written = dti_output_write(file, ",\n", 2);
    if (*written == DT_OK) *written = dti_output_write(file, text, (size_t)n);
done:
    dti_free(text);
    return st;
}

static dt_status write_file(dt_runtime *rt, const char *path, const char *text, int64_t n,
                            dt_status *written)
{
    static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", end[] = "\n]}\n";
    dti_output file;

    *written = dti_output_open(&file, path, NULL);
    const bool open = *written == DT_OK;
    if (open) *written = dti_output_write(&file, head, sizeof head - 1);
    if (*written == DT_OK) *written = dti_output_write(&file, text, (size_t)n);
    for (int r = 1; r < rt->size; r++) {
        const dt_status st = receive(rt, r, &file, written);
        if (st != DT_OK && open) (void)dti_output_close(&file, st);
        DT_TRY(st);
    }
    if (*written == DT_OK) *written = dti_output_write(&file, end, sizeof end - 1);
    if (open) *written = dti_output_close(&file, *written);
    return DT_OK;
}

dt_status dt_timeline_write(dt_runtime *rt, const char *path)
{
    dt_status st = DT_OK, written = DT_OK;
    char *text = NULL;
    int64_t n, base;

    DT_CHECK(rt != NULL && path != NULL, DT_ERR_ARG, "rt or path is NULL");
    DT_CHECK(!rt->dry && !rt->ended, DT_ERR_ARG, "a time line is of a run, while it lasts");
    DT_TRY(first_event(rt, &base));
    DT_TRY_TO(done, st, print(rt, base, &text, &n));
    if (rt->rank == 0) {
        DT_TRY_TO(done, st, write_file(rt, path, text, n, &written));
    } else {
        DT_TRY_TO(done, st, message(rt->world, DTI_COMM_SEND, 0, &n, sizeof n));
        DT_TRY_TO(done, st, message(rt->world, DTI_COMM_SEND, 0, text, n));
    }
    st = dti_first_of_comm_says(rt->world, rt->rank == 0, written);
done:
    dti_free(text);
    return st;
}
