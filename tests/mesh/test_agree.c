/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that do not do the same: for every collective one rank fails, is late, leaves, calls
 * another collective or passes another shape, and all ranks end soon with an error that says so. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/sync.h"
#include "mesh/comm/call.h"
#include "mesh/comm/flight.h"
#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

enum { MAX_RANKS = 4, CULPRIT = 1, GRACE_MS = 2000, TRIES = 5, N = 6 };

/* Launched processes may be kept waiting for a core, each by all the others. */
static int64_t grace_ms(void)
{
    return dt_test_processes() > 1 ? 10 * GRACE_MS : GRACE_MS;
}

typedef enum mistake { FAIL_ALONE, BE_LATE, LEAVE, CALL_ANOTHER, PASS_ANOTHER_SHAPE } mistake;

/* A launched process may be kept waiting for its turn. */
static int64_t deadline_ms(void)
{
    return dt_test_processes() > 1 ? 500 : 150;
}

typedef struct scene {
    dti_comm_op op;
    mistake mistake;
    dti_comm_op other; /* that the culprit calls instead */
    const char *check;
    int n_ranks;
    dt_status seen[MAX_RANKS];
    char message[MAX_RANKS][DT_ERROR_MESSAGE_BYTES];
} scene;

/* One call of an operation; all buffers have room for a block per rank. */
static dt_status call_op(dti_comm *c, dti_comm_op op, int64_t n)
{
    float send[MAX_RANKS * (N + 1)] = { 0 }, recv[MAX_RANKS * (N + 1)] = { 0 };
    int64_t counts[MAX_RANKS];
    dti_box boxes[MAX_RANKS];
    dti_comm_call call = { .op = op, .send = send, .recv = recv, .counts = counts };

    for (int m = 0; m < MAX_RANKS; m++) {
        counts[m] = n;
        boxes[m] = (dti_box){ 1, m * n, { n }, { 1 } };
    }
    call.send_counts = counts;
    call.send_boxes = call.recv_boxes = boxes;
    return dti_comm_run(c, &call);
}

static dt_status mistaken_call(const scene *s, dti_comm *c)
{
    switch (s->mistake) {
    case FAIL_ALONE:
        DT_FAIL(DT_ERR_DEVICE, "the device is gone");
    case BE_LATE:
        (void)usleep((useconds_t)deadline_ms() * 4 * 1000);
        return call_op(c, s->op, N);
    case LEAVE:
        return DT_OK;
    case CALL_ANOTHER:
        return call_op(c, s->other, N);
    default:
        return call_op(c, s->op, N + 1);
    }
}

/* The last barrier is for those whom the collective itself lets go before all have come. */
static dt_status play(const scene *s, dti_comm *c)
{
    DT_TRY(dti_barrier(c));
    if (c->rank == CULPRIT)
        DT_TRY(mistaken_call(s, c));
    else
        DT_TRY(call_op(c, s->op, N));
    if (c->rank != CULPRIT || s->mistake != LEAVE) DT_TRY(dti_barrier(c));
    return DT_OK;
}

static dt_status scene_main(dt_runtime *rt, void *arg)
{
    scene *s = arg;
    const int rank = dt_runtime_rank(rt);
    dt_mesh *mesh = NULL;
    dti_comm *c = NULL;

    DT_TRY(dt_mesh_create(rt, s->n_ranks == 3 ? "tp=3" : "tp=2", &mesh));
    s->seen[rank] = dti_mesh_comm(mesh, 1, &c);
    if (s->seen[rank] == DT_OK) s->seen[rank] = play(s, c);
    (void)snprintf(s->message[rank], sizeof s->message[rank], "%s",
                   s->seen[rank] == DT_OK ? "" : dt_last_error()->message);
    dt_mesh_release(&mesh);
    return s->seen[rank];
}

static dt_status play_scene(scene *s, int n_ranks, int64_t *ms)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    const int64_t begin = dti_now_ns();
    const bool late = s->mistake == BE_LATE;
    dt_status st;

    s->n_ranks = o.n_ranks = n_ranks;
    o.timeout_ms = late ? deadline_ms() : 60000;
    o.check = s->check;
    st = dt_run(&o, scene_main, s);
    *ms = (dti_now_ns() - begin) / 1000000;
    return st;
}

/* Where other programs keep the ranks from running a scene may take long: it is played again. */
static dt_status run_scene(scene *s, int n_ranks)
{
    const int tries = dt_test_processes() > 1 ? 1 : TRIES;
    int64_t ms = 0;

    for (int i = 0; i < tries; i++) {
        const dt_status st = play_scene(s, n_ranks, &ms);
        if (ms < deadline_ms() + grace_ms()) return st;
    }
    dt_test_fail(__FILE__, __LINE__, "%s: ranks ended after %lld ms, %d times",
                 dti_comm_op_name(s->op), (long long)ms, tries);
    return DT_ERR_INTERNAL;
}

static void assert_contains(const char *message, const char *part)
{
    if (strstr(message, part) == NULL)
        dt_test_fail(__FILE__, __LINE__, "\"%s\" is not in \"%s\"", part, message);
}

/* Everybody but the culprit names it and the collective. */
static void assert_named(const scene *s, int n_ranks, const char *where)
{
    for (int r = 0; r < n_ranks; r++) {
        if (r == CULPRIT || !dt_test_is_here(r, n_ranks)) continue;
        DT_ASSERT_EQ_INT(s->seen[r], DT_ERR_COMM);
        assert_contains(s->message[r], "rank 1");
        assert_contains(s->message[r], "on \"tp\"");
        assert_contains(s->message[r], where);
    }
}

/* --- one row per way to go wrong -------------------------------------------------------------- */

/* Messages have one peer and tests of their own. */
#define EACH_COLLECTIVE(op) for (dti_comm_op op = 0; op < DTI_COMM_SEND; op++)

DT_TEST(agree, a_rank_that_fails_alone_ends_all)
{
    EACH_COLLECTIVE(op)
    {
        scene s = { .op = op, .mistake = FAIL_ALONE };
        DT_ASSERT_STATUS(run_scene(&s, 3), DT_ERR_DEVICE, "the device is gone");
        assert_named(&s, 3, "the device is gone");
    }
}

DT_TEST(agree, a_rank_that_is_late_is_named_with_what_it_does_instead)
{
    EACH_COLLECTIVE(op)
    {
        scene s = { .op = op, .mistake = BE_LATE };
        DT_ASSERT_STATUS(run_scene(&s, 3), DT_ERR_COMM,
                         "the last collective that rank 1 began is barrier #1");
        assert_contains(dt_last_error()->message,
                        dt_test_processes() > 1 ? "after 500 ms" : "after 150 ms");
        assert_named(&s, 3, "the last collective that rank 1 began is barrier #1 on \"tp\"");
        if (dt_test_is_here(CULPRIT, 3)) DT_ASSERT_EQ_INT(s.seen[CULPRIT], DT_ERR_COMM);
    }
}

DT_TEST(agree, a_rank_that_leaves_is_named_with_its_last_collective)
{
    EACH_COLLECTIVE(op)
    {
        scene s = { .op = op, .mistake = LEAVE };
        DT_ASSERT_STATUS(run_scene(&s, 3), DT_ERR_COMM,
                         "the last collective that rank 1 began is barrier #1 on \"tp\"");
        assert_named(&s, 3, "the last collective that rank 1 began is barrier #1");
    }
}

/* Who notices first reports the mistake, the others that they were cut short. */
static void assert_differs(scene *s, int n_ranks)
{
    DT_ASSERT_STATUS(run_scene(s, n_ranks), DT_ERR_ARG, "#2 on \"tp\"");
    for (int r = 0; r < n_ranks; r++) {
        if (!dt_test_is_here(r, n_ranks)) continue;
        DT_ASSERT(s->seen[r] == DT_ERR_ARG || s->seen[r] == DT_ERR_COMM);
        assert_contains(s->message[r], "#2 on \"tp\"");
    }
}

DT_TEST(agree, a_rank_that_calls_another_collective_is_refused)
{
    EACH_COLLECTIVE(op)
    for (dti_comm_op other = 0; other < DTI_COMM_SEND; other++) {
        static const char *const checks[] = { "agree", "none" };
        scene s = { .op = op, .mistake = CALL_ANOTHER, .other = other };
        char mine[64], theirs[64];
        if (op == other) continue;
        s.check = checks[(op + other) % 2];
        assert_differs(&s, 2 + (int)((op + other) % 2));
        (void)snprintf(mine, sizeof mine, "rank 1 calls %s", dti_comm_op_name(other));
        (void)snprintf(theirs, sizeof theirs, "calls %s", dti_comm_op_name(op));
        assert_contains(dt_last_error()->message, mine);
        assert_contains(dt_last_error()->message, theirs);
    }
}

DT_TEST(agree, a_rank_that_passes_another_shape_is_refused)
{
    EACH_COLLECTIVE(op)
    {
        scene s = { .op = op, .mistake = PASS_ANOTHER_SHAPE, .check = op % 2 ? "agree" : "none" };
        if (op == DTI_COMM_BARRIER) continue;
        assert_differs(&s, 3);
    }
}

/* --- what counts alone do not show ------------------------------------------------------------ */

static dt_status other_words(dt_mesh *mesh, const void *arg)
{
    const bool culprit = dt_mesh_coord(mesh, 0) == 1;
    dti_comm_note note = { .hash = culprit ? 1 : 2 };
    float x[N] = { 0 };
    dti_comm *c;

    (void)arg;
    (void)snprintf(note.text, sizeof note.text, "%s", culprit ? "move [2, 3]" : "move [3, 2]");
    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    DT_TRY(dti_comm_run(c, &(dti_comm_call){ .op = DTI_COMM_ALL_REDUCE,
                                             .dtype = DT_F32,
                                             .send = x,
                                             .recv = x,
                                             .counts = (int64_t[]){ N },
                                             .about = &note }));
    return DT_OK;
}

DT_TEST(agree, equal_counts_of_different_shapes_differ_if_checked)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.check = "none";
    DT_ASSERT_OK(dt_test_run(&o, "tp=2", other_words, NULL));
    o.check = "agree";
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", other_words, NULL), DT_ERR_ARG,
                     "rank 1 calls all_reduce of 6 f32 (move [2, 3]");
    assert_contains(dt_last_error()->message, "rank 0 calls all_reduce of 6 f32 (move [3, 2]");
    assert_contains(dt_last_error()->message, "from "); /* both call sites */
    o.check = "agreed";
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", other_words, NULL), DT_ERR_ARG,
                     "check (DTENSOR_CHECK) is \"agreed\"");
}

/* --- the flight recorder ---------------------------------------------------------------------- */

static dt_status fly(dt_mesh *mesh, const void *arg)
{
    float x[N] = { 0 };
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    for (int i = 0; i < 70; i++) DT_TRY(dti_all_reduce(c, x, x, N, DT_F32, DT_SUM));
    if (c->rank == CULPRIT) DT_FAIL(DT_ERR_IO, "a disk went away");
    DT_TRY(dti_barrier(c));
    return DT_OK;
}

static size_t read_text(const char *folder, int rank, char *text, size_t bytes)
{
    char path[DT_TEST_PATH_BYTES + 16];
    FILE *file;
    size_t n;

    (void)snprintf(path, sizeof path, "%s/f.%d", folder, rank);
    file = fopen(path, "r");
    DT_ASSERT(file != NULL);
    n = fread(text, 1, bytes - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    return n;
}

static int count_of(const char *text, const char *word)
{
    int n = 0;

    for (const char *p = text; (p = strstr(p, word)) != NULL; p += strlen(word)) n++;
    return n;
}

/* Rank 1's third operation is made to fail before it starts. */
static dt_status fly_into_fault(dt_mesh *mesh, const void *arg)
{
    float x[N] = { 0 };
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    for (int i = 0; i < 3; i++) DT_TRY(dti_all_reduce(c, x, x, N, DT_F32, DT_SUM));
    return DT_OK;
}

DT_TEST(agree, the_record_of_the_failing_rank_has_what_failed)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8], text[1 << 15];
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    (void)snprintf(path, sizeof path, "%s/f", dt_test_temp_dir(folder));
    o.flight = path;
    o.fault = "rank=1,call=3";
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", fly_into_fault, NULL), DT_ERR_COMM, "injected");
    if (dt_test_processes() > 1) return;
    (void)read_text(folder, 1, text, sizeof text);
    assert_contains(text, "rank 1 of 2, tp=1: the last 3 of 3 collectives");
    DT_ASSERT_EQ_INT(count_of(text, " done "), 2);
    DT_ASSERT_EQ_INT(count_of(text, " failed "), 1);
}

static void count_lost_records(void *arg, dt_log_level level, int rank, const char *line)
{
    (void)rank;
    if (level == DT_LOG_WARNING && strstr(line, "/dev/null/f.") != NULL &&
        strstr(line, "DTENSOR_FLIGHT") != NULL)
        (void)atomic_fetch_add((atomic_int *)arg, 1);
}

DT_TEST(agree, a_record_that_cannot_be_written_is_told)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    atomic_int n = 0;

    o.flight = "/dev/null/f";
    o.fault = "rank=1,call=3";
    o.log = count_lost_records;
    o.log_arg = &n;
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", fly_into_fault, NULL), DT_ERR_COMM, "injected");
    if (dt_test_processes() == 1) DT_ASSERT_EQ_INT(atomic_load(&n), 2); /* one of each rank */
}

DT_TEST(agree, the_last_collectives_are_written_down_when_one_fails)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8], text[1 << 15];
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    (void)snprintf(path, sizeof path, "%s/f", dt_test_temp_dir(folder));
    o.flight = path;
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", fly, NULL), DT_ERR_IO, "a disk went away");
    if (dt_test_processes() > 1) return; /* each process has a folder of its own */
    (void)read_text(folder, 0, text, sizeof text);
    assert_contains(text, "rank 0 of 2, tp=0: the last 64 of 71 collectives");
    assert_contains(text, "was cut short by rank 1: a disk went away");
    DT_ASSERT_EQ_INT(count_of(text, "all_reduce"), 63);
    DT_ASSERT_EQ_INT(count_of(text, " failed "), 1);
    DT_ASSERT_EQ_INT(count_of(text, " done "), 63);
    (void)read_text(folder, 1, text, sizeof text);
    assert_contains(text, "rank 1 of 2, tp=1: the last 64 of 70 collectives");
    assert_contains(text, "DT_ERR_IO: a disk went away");
    DT_ASSERT_EQ_INT(count_of(text, " done "), 64);
}

/* What stands under the name already is no file to write to: a link to somebody's, one with another
 * name, a pipe that nobody reads. */
DT_TEST(agree, a_record_goes_through_no_link_and_waits_for_no_reader)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 8], kept[DT_TEST_PATH_BYTES + 8];
    char text[64];
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    int reader;

    if (dt_test_processes() > 1) return;
    (void)snprintf(kept, sizeof kept, "%s/f.9", dt_test_temp_dir(folder));
    (void)snprintf(path, sizeof path, "%s/f", folder);
    o.flight = path;
    o.fault = "rank=1,call=3";
    for (int kind = 0; kind < 4; kind++) {
        char name[DT_TEST_PATH_BYTES + 16];
        dt_test_write_file(folder, "f.9", "kept", 4);
        (void)snprintf(name, sizeof name, "%s.1", path);
        if (kind == 0) DT_ASSERT_EQ_INT(symlink(kept, name), 0);
        if (kind == 1) DT_ASSERT_EQ_INT(link(kept, name), 0);
        if (kind >= 2) DT_ASSERT_EQ_INT(mkfifo(name, 0600), 0);
        reader = kind == 3 ? open(name, O_RDONLY | O_NONBLOCK) : -1;
        DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", fly_into_fault, NULL), DT_ERR_COMM, "injected");
        if (kind == 3) DT_ASSERT_EQ_INT(read(reader, text, sizeof text), 0);
        if (reader >= 0) (void)close(reader);
        DT_ASSERT_EQ_INT(read_text(folder, 9, text, sizeof text), 4);
        DT_ASSERT_EQ_STR(text, "kept");
        DT_ASSERT_EQ_INT(unlink(name), 0);
    }
}

/* An operation may stay under way while as many others end as the recorder keeps beside it. */
static dt_status keep_the_oldest(dt_mesh *mesh, const void *arg)
{
    dti_flight *f;
    const int64_t one = 1;
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    DT_TRY(dti_new(sizeof *f, &f));
    for (int others = DTI_FLIGHT_ENTRIES - 1; others <= DTI_FLIGHT_ENTRIES; others++) {
        dti_comm_request first = { .call = { .op = DTI_COMM_ALL_REDUCE, .counts = &one } };
        dti_flight_open(f, NULL, 0, 1);
        dti_flight_begin(f, c, &first);
        for (int i = 0; i < others; i++) {
            dti_comm_request r = first;
            dti_flight_begin(f, c, &r);
        }
        dti_flight_end(f, &first, false);
        DT_EXPECT(f->entries[0].state ==
                      (others < DTI_FLIGHT_ENTRIES ? DTI_FLIGHT_DONE : DTI_FLIGHT_UNDER_WAY),
                  "after %d others the first entry is in state %d", others,
                  (int)f->entries[0].state);
    }
    dti_free(f);
    return DT_OK;
}

DT_TEST(agree, the_oldest_record_is_kept_until_its_slot_is_needed)
{
    dt_test_on_ranks("tp=1", keep_the_oldest, NULL);
}

/* --- notes ------------------------------------------------------------------------------------ */

static uint64_t hash_of(const dti_comm *c, dti_comm_op op, const int64_t *counts)
{
    const dti_comm_request r = { .call = { .op = op, .dtype = DT_F32, .counts = counts } };
    dti_comm_note note;

    dti_note_make(c, &r, &note);
    return note.hash;
}

static dt_status every_count_matters(dt_mesh *mesh, const void *arg)
{
    static const dti_comm_op ops[] = { DTI_COMM_ALL_GATHER, DTI_COMM_REDUCE_SCATTER,
                                       DTI_COMM_ALL_REDUCE, DTI_COMM_BROADCAST };
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    for (size_t k = 0; k < DT_COUNT(ops); k++)
        for (int i = 0; i < (k < 2 ? 3 : 1); i++) {
            int64_t counts[] = { 5, 6, 7 };
            const uint64_t before = hash_of(c, ops[k], counts);
            counts[i]++;
            DT_EXPECT(hash_of(c, ops[k], counts) != before, "%s: count %d is not in the note",
                      dti_comm_op_name(ops[k]), i);
        }
    return DT_OK;
}

DT_TEST(agree, every_common_count_is_in_the_note)
{
    dt_test_on_ranks("tp=3", every_count_matters, NULL);
}

/* --- arguments -------------------------------------------------------------------------------- */

static dt_status ask(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const bool other = dt_runtime_rank(rt) == 2;
    const int kind = *(const int *)arg;
    dt_asked asked[] = { { "prompt", "Once" }, { "json", NULL }, { "seed", "7" } };
    int n = 3;

    if (other && kind == 1) asked[1] = (dt_asked){ "json", "" };
    if (other && kind == 2) asked[2].value = "8\n";
    if (other && kind == 3) n = 2;
    if (!other && kind == 4) n = 0;
    if (other ? kind == 5 : kind == 6) return dt_agree(rt, asked + 1, 2);
    return dt_agree(rt, n > 0 ? asked : NULL, n);
}

DT_TEST(agree, ranks_that_were_asked_different_things_are_told_what)
{
    static const char *const words[] = {
        NULL,
        "rank 0 was asked for json, rank 2 for json \"\"",
        "rank 0 was asked for seed \"7\", rank 2 for seed \"8\\n\"",
        "rank 0 was asked for seed \"7\", rank 2 for none;",
        "rank 2 was asked for prompt \"Once\", rank 0 for none;",
        "rank 0 was asked for prompt \"Once\", rank 2 for none;",
        "rank 2 was asked for prompt \"Once\", rank 0 for none;",
    };

    for (int kind = 0; kind < (int)DT_COUNT(words); kind++) {
        const dt_status st = dt_test_run(NULL, "tp=3", ask, &kind);
        if (words[kind] == NULL)
            DT_ASSERT_OK(st);
        else
            DT_ASSERT_STATUS(st, DT_ERR_ARG, words[kind]);
    }
}

static dt_status ask_wrongly(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);

    (void)arg;
    DT_EXPECT_STATUS(dt_agree(NULL, NULL, 0), DT_ERR_ARG, "rt is NULL");
    DT_EXPECT_STATUS(dt_agree(rt, NULL, 2), DT_ERR_ARG, "2 things asked, in no list");
    DT_EXPECT_STATUS(dt_agree(rt, &(dt_asked){ NULL, "x" }, 1), DT_ERR_ARG, "asked[0].what");
    return dt_agree(rt, NULL, 0);
}

DT_TEST(agree, refuses_bad_lists)
{
    dt_test_on_ranks("tp=1", ask_wrongly, NULL);
}
