/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages from mesh to mesh: what comes is what was sent, in any layout, between any meshes, in
 * any order of waits, beside collectives and other channels; what is counted. */
#include <dtensor/channels.h>
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/sync.h"
#include "tests/support/channels.h"
#include "tests/support/dt_test.h"
DT_TEST(channels, stages_hand_each_other_what_they_have)
{
    static const dt_test_journey cases[] = {
        { "RRR", DT_F32, 2, { 5, 7 } },
        { "RS(0)S(1)", DT_F32, 2, { 5, 7 } },
        { "RS(0)S(1)", DT_BF16, 3, { 4, 6, 3 } },
        { "RS(0)S(0)", DT_I64, 1, { 3 } }, /* a rank without rows */
        { "RRS(0,blocks=4:2:2)", DT_F32, 2, { 8, 3 } },
        { "RRS(1,offsets=0:1:6)", DT_F32, 2, { 2, 6 } },
        { "RS(0)[1]S(0)[0]", DT_F32, 1, { 9 } },
        { "RRR", DT_F32, 0, { 0 } },
        { "RRR", DT_F32, 2, { 0, 4 } },
        { "RS(0)R", DT_F32, 2, { 64, 4096 } },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks("pp=2,dp=2,tp=2", dt_test_journeys, &cases[i]);
    dt_test_on_ranks("pp=4", dt_test_journeys, &(dt_test_journey){ "R", DT_F32, 2, { 3, 5 } });
    dt_test_on_ranks("pp=1", dt_test_journeys, &(dt_test_journey){ "R", DT_F32, 2, { 3, 5 } });
}

/* --- between meshes of other sizes and ranks -------------------------------------------------- */

typedef struct crossing {
    const char *from, *to;
    const int *from_ranks, *to_ranks; /* NULL: 0, 1, ... */
    const char *layout, *comes;
    int n_axes;
    int64_t shape[3];
} crossing;

static dt_status mesh_of(dt_runtime *rt, const char *spec, const int *ranks, dt_mesh **out)
{
    if (ranks == NULL) return dt_mesh_create(rt, spec, out);
    return dt_mesh_create_ranks(rt, spec, ranks, out);
}

/* Three messages; whoever is on both meshes asks before it sends, and after. */
static dt_status crosses(dt_mesh *world, const void *arg)
{
    const crossing *c = arg;
    dt_runtime *rt = dt_mesh_runtime(world);
    DT_HELD(mesh) *from = NULL, *to = NULL;
    DT_HELD(channel) *channel = NULL;
    dt_parcel *parcel[3] = { NULL };

    DT_TRY(mesh_of(rt, c->from, c->from_ranks, &from));
    DT_TRY(mesh_of(rt, c->to, c->to_ranks, &to));
    DT_TRY(dt_channel_create(from, to, NULL, &channel));
    if (dt_mesh_is_member(to)) DT_TRY(dt_channel_recv(channel, NULL, &parcel[0]));
    for (int k = 0; k < 3 && dt_mesh_is_member(from); k++) {
        DT_HELD(tensor) *x = NULL;
        DT_TRY(dt_test_message(from, c->layout, DT_F32, c->n_axes, c->shape, k, &x));
        DT_TRY(dt_channel_send(channel, x, NULL));
    }
    for (int k = 1; k < 3 && dt_mesh_is_member(to); k++)
        DT_TRY(dt_channel_recv(channel, NULL, &parcel[k]));
    for (int k = 2; k >= 0 && dt_mesh_is_member(to); k--) {
        DT_HELD(tensor) *y = NULL;
        DT_TRY(dt_parcel_wait(&parcel[k], &y));
        DT_TRY(dt_test_is_message(y, to, c->comes, k));
    }
    DT_TRY(dt_channel_wait(channel));
    return DT_OK;
}

DT_TEST(channels, any_mesh_to_any_other)
{
    static const int last[] = { 4, 5, 6, 7 }, back[] = { 3, 2, 1, 0 }, odd[] = { 1, 3, 5, 7 },
                     one[] = { 6 }, middle[] = { 2, 3, 4, 5 };
    static const crossing cases[] = {
        /* other sizes */
        { "tp=2", "tp=4", NULL, last, "S(0)", "S(0)", 2, { 7, 3 } },
        { "tp=4", "tp=2", last, NULL, "S(1)", "S(1)", 2, { 3, 10 } },
        { "tp=4", "tp=3", NULL, last, "R", "R", 2, { 3, 5 } },
        { "tp=1", "tp=4", NULL, last, "S(0)", "S(0)", 1, { 5 } },
        { "dp=2,tp=2", "dp=2,tp=1", NULL, last, "S(0)S(1)", "S(0)S(1)", 2, { 5, 7 } },
        { "dp=2,tp=2", "tp=4", NULL, last, "S(0)S(1)", "S(1)", 2, { 5, 7 } },
        { "dp=2,tp=2", "cp=4", NULL, last, "S(0)S(1)", "R", 2, { 5, 7 } },
        { "tp=2", "dp=2,tp=2", NULL, last, "S(0)", "RS(0)", 2, { 5, 7 } },
        { "tp=2", "tp=4", NULL, last, "S(0,blocks=4:2:2)", "S(0,blocks=4:2:2)", 2, { 8, 3 } },
        { "tp=4", "tp=2", NULL, last, "S(0,blocks=4:4)", "S(0,blocks=4:4)", 2, { 8, 3 } },
        { "tp=2", "tp=4", NULL, last, "S(0,offsets=0:1:6)", "S(0)", 1, { 6 } },
        { "tp=4", "tp=2", NULL, last, "S(0,replicas=2)", "S(0)", 1, { 6 } },
        { "tp=2", "tp=4", NULL, last, "S(0)", "S(0)", 1, { 1 } }, /* most have nothing */
        { "tp=2", "tp=4", NULL, last, "S(0)", "S(0)", 2, { 0, 3 } },
        { "tp=4", "tp=1", NULL, one, "S(1)", "S(1)", 2, { 3, 10 } },
        /* the same ranks, some of them, in another order */
        { "tp=4", "tp=4", NULL, NULL, "S(0)", "S(0)", 2, { 9, 2 } },
        { "tp=4", "tp=4", NULL, back, "S(0)", "S(0)", 2, { 9, 2 } },
        { "tp=4", "tp=4", NULL, odd, "S(1)", "S(1)", 2, { 9, 5 } },
        { "tp=4", "tp=4", middle, last, "R", "R", 1, { 9 } },
        { "tp=4", "tp=2", NULL, back, "S(0)", "S(0)", 2, { 9, 2 } },
        { "tp=2", "tp=4", odd, NULL, "S(1)", "S(1)", 2, { 2, 9 } },
        { "dp=2,tp=2", "tp=2,dp=2", NULL, middle, "S(0)S(1)", "S(1)S(0)", 2, { 6, 9 } },
        { "tp=8", "tp=1", NULL, one, "S(0)", "S(0)", 1, { 20 } },
        { "tp=1", "tp=1", one, one, "R", "R", 1, { 20 } },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) dt_test_on_ranks("world=8", crosses, &cases[i]);
}

/* A layout whose words are longer than a head has room for. */
static dt_status long_words(dt_mesh *world, const void *arg)
{
    enum { RANKS = 2, BLOCKS = 32 };
    dt_runtime *rt = dt_mesh_runtime(world);
    DT_HELD(mesh) *from = NULL, *to = NULL;
    DT_HELD(channel) *channel = NULL;
    char text[1000] = "S(0,blocks=";
    int64_t rows = 0;

    (void)arg;
    DT_TRY(dt_mesh_create(rt, "tp=2", &from));
    DT_TRY(dt_mesh_create_ranks(rt, "tp=2", (int[]){ 1, 2 }, &to));
    for (int i = 0; i < BLOCKS; i++) {
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? ":" : "",
                       100000 + i);
        rows += 100000 + i;
    }
    (void)strcat(text, ",units=");
    for (int i = 0; i < BLOCKS; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? ":" : "",
                       10000 + i);
    (void)strcat(text, ")");
    DT_TRY(dt_channel_create(from, to, "long", &channel));
    for (int k = 0; k < 2; k++) {
        DT_HELD(tensor) *x = NULL, *y = NULL;
        DT_HELD(parcel) *parcel = NULL;
        if (dt_mesh_is_member(to)) DT_TRY(dt_channel_recv(channel, NULL, &parcel));
        if (dt_mesh_is_member(from)) DT_TRY(dt_test_message(from, text, DT_F32, 1, &rows, k, &x));
        if (dt_mesh_is_member(from)) DT_TRY(dt_channel_send(channel, x, NULL));
        if (dt_mesh_is_member(to)) DT_TRY(dt_parcel_wait(&parcel, &y));
        if (dt_mesh_is_member(to)) DT_TRY(dt_test_is_message(y, to, text, k));
    }
    return dt_channel_wait(channel);
}

DT_TEST(channels, placements_of_any_length)
{
    dt_test_on_ranks("world=3", long_words, NULL);
}

static dt_status counts(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 6, 8 };
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    const dt_placement whole[] = { DT_REPLICATE, DT_REPLICATE };
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
    DT_TEST_WITH_PAIR(mesh, p);
    for (int k = 0; k < 4; k++) { /* A, A / t, and A / t that is gathered there */
        DT_HELD(tensor) *x = NULL;
        DT_HELD(parcel) *parcel = NULL;
        dt_tensor *y;
        const char *layout = k < 2 ? "RR" : "RS(1)";
        if (p.sends) {
            DT_TRY(dt_test_message(p.first, layout, DT_F32, 2, shape, k, &x));
            DT_TRY(dt_channel_send(p.channel, x, NULL));
            continue;
        }
        if (k == 1) (void)dt_tape_because(t, "forward");
        DT_TRY(dt_channel_recv(p.channel, k == 3 ? whole : NULL, &parcel));
        y = dt_parcel_take(t, &parcel);
        DT_TRY(dt_tape_status(t));
        DT_TRY(dt_test_is_message(y, p.second, k == 3 ? "RR" : layout, k));
    }
    const dt_comm_counter sent = dt_tape_comm(t, DT_COMM_SEND);
    DT_EXPECT(p.sends ? sent.calls == 0 && sent.bytes == 0
                      : sent.calls == 4 && sent.bytes == 2 * 192 + 2 * 96,
              "%d: %d, %d bytes", rank, (int)sent.calls, (int)sent.bytes);
    if (!p.sends) {
        char text[400];
        DT_EXPECT_EQ_INT(dt_tape_comm(t, DT_COMM_ALL_GATHER).bytes, 96);
        (void)dt_tape_comm_print(t, text, sizeof text);
        DT_EXPECT(strstr(text, "- send x1, 192 bytes: stage\n") != NULL &&
                      strstr(text, "- send x3, 384 bytes: forward\n") != NULL,
                  "%s", text);
    }
    return dt_channel_wait(p.channel);
}

DT_TEST(channels, what_is_received_is_counted_on_the_tape)
{
    dt_test_on_ranks("pp=2,tp=2", counts, NULL);
}

/* In a dry runtime nobody sends, and the counters are those of a run. */
static dt_status foresees(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 6, 8 };
    const dt_placement place[] = { DT_REPLICATE, DT_SHARD(1) };
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    dt_runtime *dry;
    dt_status st;

    (void)arg, (void)mesh;
    options.n_ranks = 4;
    for (int rank = 0; rank < 4; rank++) {
        DT_TRY(dt_runtime_create_dry(&options, rank, NULL, &dry));
        {
            DT_HELD(mesh) *all = NULL;
            DT_HELD(tape) *t = NULL;
            DT_HELD(tensor) *x = NULL;
            DT_HELD(parcel) *parcel = NULL;
            DT_TRY(dt_mesh_create(dry, "pp=2,tp=2", &all));
            DT_TRY(dt_tape_create(dry, &t));
            DT_TEST_WITH_PAIR(all, p);
            if (p.sends) {
                DT_TRY(dt_empty(p.first, place, DT_F32, 2, shape, &x));
                DT_TRY(dt_channel_send(p.channel, x, &parcel));
                DT_TRY(dt_parcel_wait(&parcel, NULL));
            } else {
                DT_EXPECT_STATUS(dt_channel_recv(p.channel, NULL, &parcel), DT_ERR_ARG,
                                 "in a dry runtime nobody sends");
                DT_TRY(dt_channel_expect(p.channel, DT_F32, 2, shape, place));
                for (int k = 0; k < 2; k++) {
                    DT_TRY(dt_channel_recv(p.channel, NULL, &parcel));
                    DT_EXPECT(dt_parcel_is_done(parcel), "something is under way");
                    const dt_tensor *y = dt_parcel_take(t, &parcel);
                    DT_TRY(dt_tape_status(t));
                    DT_EXPECT(dt_tensor_local(y)->shape[1] == 4, "not cut");
                }
            }
            const dt_comm_counter sent = dt_tape_comm(t, DT_COMM_SEND);
            DT_EXPECT(sent.calls == (p.sends ? 0 : 2) && sent.bytes == (p.sends ? 0 : 192),
                      "%d: %d, %d bytes", rank, (int)sent.calls, (int)sent.bytes);
        }
        st = dt_runtime_live(dry) == 0 ? DT_OK : DT_ERR_INTERNAL;
        dt_runtime_release_dry(&dry);
        DT_EXPECT(st == DT_OK, "objects of the dry runtime are alive");
    }
    return DT_OK;
}

DT_TEST(channels, dry_runs_foresee_what_is_received)
{
    dt_test_on_ranks("a=1", foresees, NULL);
}

/* A parcel that is dropped is received, one that nobody asks about is waited for at the end; bytes
 * that are written to wait for their readers. */
static dt_status drops(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 64, 8 };

    (void)arg;
    DT_TEST_WITH_PAIR(mesh, p);
    if (p.sends) {
        DT_HELD(tensor) *x = NULL;
        DT_HELD(parcel) *parcel = NULL;
        DT_TRY(dt_test_message(p.first, "RR", DT_F32, 2, shape, 0, &x));
        DT_TRY(dt_channel_send(p.channel, x, &parcel));
        dt_parcel_release(&parcel);
        DT_TRY(dt_channel_send(p.channel, x, &parcel));
        DT_EXPECT(parcel != NULL, "no handle");
        DT_TRY(dt_fill_randint(x, (dt_random){ 7, 1 }, -1000, 1000)); /* waits */
        DT_EXPECT(dt_parcel_is_done(parcel), "bytes that are sent were written to");
        DT_TRY(dt_parcel_wait(&parcel, NULL));
        DT_TRY(dt_channel_send(p.channel, x, NULL));
    } else {
        dt_parcel *parcel[3] = { NULL };
        DT_HELD(tensor) *y = NULL, *z = NULL;
        for (int k = 0; k < 3; k++) DT_TRY(dt_channel_recv(p.channel, NULL, &parcel[k]));
        dt_parcel_release(&parcel[0]);
        while (!dt_parcel_is_done(parcel[2])) continue;
        DT_TRY(dt_parcel_wait(&parcel[2], &z));
        DT_TRY(dt_parcel_wait(&parcel[1], &y));
        DT_TRY(dt_test_is_message(y, p.second, "RR", 0));
        DT_TRY(dt_test_is_message(z, p.second, "RR", 1));
    }
    DT_TRY(dt_channel_wait(p.channel));
    return DT_OK;
}

DT_TEST(channels, dropped_messages_go_on_and_bytes_stay_until_they_are_read)
{
    dt_test_on_ranks("pp=2,tp=2", drops, NULL);
}

/* A rank whose peer of a collective waits for a message that the rank has queued: it sends it from
 * inside the collective. */
static dt_status beside(dt_mesh *mesh, const void *arg)
{
    enum { MANY = 40 };
    const int64_t shape[] = { 16 };
    const int tp = dt_mesh_coord(mesh, 1);
    float sum;

    (void)arg;
    DT_TEST_WITH_PAIR(mesh, p);
    for (int k = 0; k < MANY && p.sends; k++) {
        DT_HELD(tensor) *x = NULL;
        DT_TRY(dt_test_message(p.first, "RS(0)", DT_F32, 1, shape, k, &x));
        DT_TRY(dt_channel_send(p.channel, x, NULL));
    }
    for (int k = 0; k < MANY && !p.sends; k++) {
        DT_HELD(tensor) *y = NULL;
        DT_HELD(parcel) *parcel = NULL;
        DT_TRY(dt_channel_recv(p.channel, NULL, &parcel));
        DT_TRY(dt_parcel_wait(&parcel, &y));
        DT_TRY(dt_test_is_message(y, p.second, "RS(0)", k));
        if (k % 8 == tp) DT_TRY(dt_barrier(p.second, NULL));
    }
    DT_TRY(dt_all_reduce(mesh, NULL, &(float){ 1 }, &sum, 1, DT_F32, DT_SUM));
    return dt_channel_wait(p.channel);
}

DT_TEST(channels, messages_go_on_inside_collectives)
{
    dt_test_on_ranks("pp=2,tp=2", beside, NULL);
}

/* What a sender does while its message, larger than what is under way at once, goes on; until when
 * that has to be there: an operator looks after it at its end, too. */
typedef enum busy_with { OPERATORS, A_PRODUCT } busy_with;

static int64_t compute(dt_tape *t, busy_with what, dt_tensor *x, dt_tensor *w)
{
    const int64_t begin = dti_now_ns(), two_seconds = (int64_t)2 * 1000 * 1000 * 1000;

    do {
        dt_scope_begin(t, "loop");
        (void)(what == A_PRODUCT ? dt_linear(t, x, w, NULL) : dt_add(t, x, x));
        (void)dt_scope_end(t, NULL);
    } while (what == OPERATORS && dti_now_ns() < begin + two_seconds);
    return begin + (dti_now_ns() - begin) / 4 * (what == A_PRODUCT ? 3 : 4);
}

/* *early: the message was there by then. */
static dt_status one_message(dt_mesh *mesh, const dt_test_pair *p, busy_with what, bool *early)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t shape[] = { 1 << 20 }, in[] = { 512, 2048 }, weights[] = { 4096, 2048 };
    DT_HELD(tensor) *sent = NULL, *x = NULL, *w = NULL;
    DT_HELD(parcel) *parcel = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    int64_t until, here;

    if (p->sends) {
        DT_TRY(dt_test_message(p->first, "R", DT_F32, 1, shape, 0, &sent));
        DT_TRY(dt_zeros(p->first, whole, DT_F32, what == A_PRODUCT ? 2 : 1, in, &x));
        DT_TRY(dt_zeros(p->first, whole, DT_F32, 2, weights, &w));
        DT_TRY(dt_barrier(mesh, NULL));
        DT_TRY(dt_channel_send(p->channel, sent, NULL));
        until = compute(t, what, x, w);
        DT_TRY(dt_tape_status(t));
        DT_TRY(dt_send(mesh, NULL, &until, 1, DT_I64, 1));
    } else {
        DT_TRY(dt_barrier(mesh, NULL));
        DT_TRY(dt_channel_recv(p->channel, NULL, &parcel));
        DT_TRY(dt_parcel_wait(&parcel, &sent));
        here = dti_now_ns();
        DT_TRY(dt_test_is_message(sent, p->second, "R", 0));
        DT_TRY(dt_recv(mesh, NULL, &until, 1, DT_I64, 0));
        *early = here < until;
    }
    DT_TRY(dt_channel_wait(p->channel));
    return DT_OK;
}

/* A machine that others use may let the receiver wait once. */
static dt_status computes(dt_mesh *mesh, const void *arg)
{
    enum { TRIALS = 3 };
    int n_early = 0;

    DT_TEST_WITH_PAIR(mesh, p);
    for (int k = 0; k < TRIALS; k++) {
        bool early = false;
        DT_TRY(one_message(mesh, &p, *(const busy_with *)arg, &early));
        n_early += early;
        if (*(const busy_with *)arg == OPERATORS) break;
    }
    DT_EXPECT(p.sends || n_early > 0, "messages came when their sender had computed");
    return DT_OK;
}

DT_TEST(channels, messages_go_on_between_operators)
{
    dt_test_on_ranks("pp=2", computes, &(busy_with){ OPERATORS });
}

DT_TEST(channels, messages_go_on_inside_a_product)
{
    dt_test_on_ranks("pp=2", computes, &(busy_with){ A_PRODUCT });
}
