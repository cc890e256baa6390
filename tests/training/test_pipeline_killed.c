/* SPDX-License-Identifier: Apache-2.0
 *
 * A process that is killed in the middle of a schedule frees the others, soon, with its name and
 * the cell that it was in, and with what they have waited for. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/sync.h"
#include "tests/support/processes.h"
#include "tests/support/stage_net.h"

enum { RANKS = 3, VICTIM = 1, MICROBATCHES = 4, SOON_MS = 5000, SLEEP_MS = 500, EARLY_MS = 200 };

/* What happens to rank VICTIM, in the second step. */
typedef struct scene {
    const char *schedule;
    dt_action at;    /* the cell that it is killed in: by itself when it begins, */
    bool waits;      /* or by the test, when it waits there for rank 0, which sleeps */
    bool no_sharing; /* of memory: nobody sees where it was */
    const char *awaited[RANKS];
} scene;

static scene now; /* what the processes of a job inherit */

typedef struct player {
    dt_stage_net net;
    int rank, step;
} player;

static bool is_at(const dt_action *a, int stage)
{
    return a->kind == now.at.kind && a->stage == stage && a->microbatch == now.at.microbatch;
}

static void told(void *arg, const dt_action *a, bool ends)
{
    const player *p = arg;

    if (ends || p->step == 0) return;
    if (!now.waits && p->rank == VICTIM && is_at(a, now.at.stage)) (void)raise(SIGKILL);
    if (!now.waits || p->rank != 0 || !is_at(a, now.at.stage - 1)) return;
    dt_test_process_say("sleeps");
    (void)nanosleep(&(struct timespec){ 0, SLEEP_MS * 1000000 }, NULL);
}

static dt_tensor *forward(void *arg, dt_tape *t, int stage, int microbatch, dt_tensor *x)
{
    const player *p = arg;

    return dt_stage_net_forward(&p->net, t, stage, microbatch, x);
}

static dt_status play(player *p)
{
    dt_pipeline_options how = DT_PIPELINE_OPTIONS_INIT;

    how.forward = forward;
    how.told = told;
    how.arg = p;
    DT_TRY(dt_stage_net_pipeline(&p->net, &how));
    for (p->step = 0; p->step < 3; p->step++) DT_TRY(dt_pipeline_run(p->net.pipeline, NULL));
    return DT_OK;
}

static dt_status take_part(dt_mesh *mesh, const void *arg)
{
    player p = { .rank = dt_runtime_rank(dt_mesh_runtime(mesh)) };
    DT_HELD(pipeline_schedule) *schedule = NULL;
    dt_status st;

    (void)arg;
    DT_TRY(dt_pipeline_schedule_create(now.schedule, RANKS, 0, MICROBATCHES, &schedule));
    DT_TRY(dt_stage_net_open(mesh, schedule, NULL, &p.net));
    st = play(&p);
    dt_stage_net_close(&p.net);
    if (st != DT_OK) dt_test_process_say(dt_last_error()->message);
    return st;
}

static const char *takes_part(void)
{
    if (now.no_sharing) (void)setenv("DTENSOR_MPI_SHARED", "off", 1);
    return dt_test_run(NULL, "pp=3", take_part, NULL) == DT_OK ? "well" : "";
}

/* "rank 1 was in cell 5, 1W1" */
static void say_cell(char text[64])
{
    DT_HELD(pipeline_schedule) *s = NULL;
    char action[DT_ACTION_BYTES];
    const dt_action *row;
    int n, i = 0;

    DT_ASSERT_OK(dt_pipeline_schedule_create(now.schedule, RANKS, 0, MICROBATCHES, &s));
    row = dt_pipeline_schedule_row(s, VICTIM, &n);
    while (i < n && !is_at(&row[i], now.at.stage)) i++;
    DT_ASSERT(i < n);
    (void)snprintf(text, 64, "; rank %d was in cell %d, %s", VICTIM,
                   dt_pipeline_schedule_column(s, VICTIM, i), dt_action_text(&row[i], action));
}

static void expect_in(const char *part, const char *message, int rank)
{
    if (part != NULL && strstr(message, part) == NULL)
        dt_test_fail(__FILE__, __LINE__, "%s, rank %d: \"%s\" is not in \"%s\"", now.schedule, rank,
                     part, message);
}

static void run_scene(const scene *s, int job)
{
    char word[DT_TEST_WORD_BYTES], cell[64], ended[64];
    dt_test_process p[RANKS];
    int64_t begin;

    now = *s;
    say_cell(cell);
    for (int r = 0; r < RANKS; r++) p[r] = dt_test_process_start(r, RANKS, job, takes_part);
    if (s->waits) {
        expect_in("sleeps", dt_test_process_hear(&p[0], word), 0);
        (void)usleep(EARLY_MS * 1000);
        dt_test_process_end(&p[VICTIM]);
    } else {
        (void)dt_test_process_hear(&p[VICTIM], word); /* nothing: until it has ended */
    }
    begin = dti_now_ns();
    (void)snprintf(ended, sizeof ended, "by rank %d: its process %ld has ended", VICTIM,
                   (long)p[VICTIM].pid);
    for (int r = 0; r < RANKS; r++) {
        if (r == VICTIM) continue;
        (void)dt_test_process_hear(&p[r], word);
        expect_in(ended, word, r);
        expect_in(s->awaited[r], word, r);
        if (!s->no_sharing) expect_in(cell, word, r);
        dt_test_process_end(&p[r]);
    }
    DT_ASSERT((dti_now_ns() - begin) / 1000000 < SOON_MS);
    if (!s->waits) dt_test_process_end(&p[VICTIM]);
}

DT_TEST(pipeline_killed, a_process_is_named_with_its_cell)
{
    static const scene scenes[] = {
        { "zb-h1", { 1, DT_ACTION_F, 2, false }, false, false, { NULL, NULL, "waits for 1F" } },
        { "zb-h1", { 1, DT_ACTION_I, 1, false }, false, false, { "waits for 1I", NULL, NULL } },
        { "zb-h1", { 1, DT_ACTION_W, 1, false }, false, false, { "waits for 1I", NULL, NULL } },
        { "1f1b", { 1, DT_ACTION_B, 3, false }, false, false, { "waits for 1B", NULL, NULL } },
        { "gpipe", { 1, DT_ACTION_F, 0, false }, true, false, { NULL, NULL, "waits for 1F" } },
        { "1f1b", { 1, DT_ACTION_F, 1, false }, false, true, { NULL, NULL, "waits for 1F" } },
    };

    for (size_t i = 0; i < DT_COUNT(scenes); i++) run_scene(&scenes[i], (int)i);
}
