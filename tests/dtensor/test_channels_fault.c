/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages from mesh to mesh over simulated links; what is refused; and how ranks that fail, leave
 * or never come end the wait. */
#include <dtensor/channels.h>
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/sync.h"
#include "tests/support/channels.h"
#include "tests/support/dt_test.h"
/* --- links ------------------------------------------------------------------------------------ */

enum { MS = 1000 * 1000 };

static void sleep_ms(int ms)
{
    (void)nanosleep(&(struct timespec){ ms / 1000, (long)(ms % 1000) * MS }, NULL);
}

/* A link's time counts from the send, not from the receive that was there before, nor from one that
 * came later. arg: the wait begins so many ms after the send. */
static dt_status over_a_link(dt_mesh *mesh, const void *arg)
{
    const int late = *(const int *)arg;
    const int64_t shape[] = { 100 };
    int64_t begin, sent;

    DT_TEST_WITH_PAIR(mesh, p);
    if (p.sends) {
        DT_HELD(tensor) *x = NULL;
        DT_TRY(dt_test_message(p.first, "R", DT_F32, 1, shape, 0, &x));
        sleep_ms(100);
        sent = dti_now_ns();
        DT_TRY(dt_channel_send(p.channel, x, NULL));
        DT_TRY(dt_channel_wait(p.channel));
        DT_TRY(dt_send(mesh, NULL, &sent, 1, DT_I64, 1));
        return DT_OK;
    }
    DT_HELD(tensor) *y = NULL;
    DT_HELD(parcel) *parcel = NULL;
    DT_TRY(dt_channel_recv(p.channel, NULL, &parcel));
    sleep_ms(100 + late);
    begin = dti_now_ns();
    if (late == 0) DT_EXPECT(!dt_parcel_is_done(parcel), "the link is too fast");
    DT_TRY(dt_parcel_wait(&parcel, &y));
    const int64_t end = dti_now_ns();
    DT_TRY(dt_test_is_message(y, p.second, "R", 0));
    DT_TRY(dt_recv(mesh, NULL, &sent, 1, DT_I64, 0));
    DT_EXPECT(end - sent >= 400 * MS, "here after %d ms", (int)((end - sent) / MS));
    DT_EXPECT(late < 1000 || end - begin < 300 * MS, "the link's time was awaited twice");
    return DT_OK;
}

DT_TEST(channels, a_link_takes_its_time_from_the_send_on)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.links = "pp=0,0.000001"; /* 400 bytes at 1 byte per us: 400 ms */
    if (dt_test_processes() == 1 || dt_test_fits_launch("pp=2")) {
        DT_ASSERT_OK(dt_test_run(&o, "pp=2", over_a_link, &(int){ 0 }));
        DT_ASSERT_OK(dt_test_run(&o, "pp=2", over_a_link, &(int){ 1000 }));
    }
}

typedef enum meeting { ONE_AFTER_THE_OTHER, BOTH_SEND, BOTH_SEND_PARCELS } meeting;

/* Both send before they receive, which needs a buffer, or a parcel that is waited for later; or one
 * of them after. */
static dt_status meet(dt_mesh *mesh, const void *arg)
{
    const meeting how = *(const meeting *)arg;
    const bool both = how != ONE_AFTER_THE_OTHER;
    const int64_t shape[] = { 100 };
    dt_status st = DT_OK;
    dt_test_stages s;

    DT_TRY(dt_mesh_set_timeout(mesh, 500));
    st = dt_test_make_stages(mesh, &s);
    for (int k = 0; k < 20 && st == DT_OK; k++) {
        DT_HELD(tensor) *x = NULL, *y = NULL;
        dt_channel *to = s.stage == 0 ? s.to_next : s.to_before;
        dt_channel *from = s.stage == 0 ? s.from_next : s.from_before;
        DT_HELD(parcel) *parcel = NULL, *sent = NULL;
        st = dt_test_message(s.mine, "R", DT_F32, 1, shape, k, &x);
        if (st == DT_OK && (both || s.stage == 0))
            st = dt_channel_send(to, x, how == BOTH_SEND_PARCELS ? &sent : NULL);
        if (st == DT_OK) st = dt_channel_recv(from, NULL, &parcel);
        if (st == DT_OK) st = dt_parcel_wait(&parcel, &y);
        if (st == DT_OK) st = dt_test_is_message(y, s.mine, "R", k);
        if (st == DT_OK && !both && s.stage == 1) st = dt_channel_send(to, x, NULL);
        if (st == DT_OK && sent != NULL) st = dt_parcel_wait(&sent, NULL);
        dt_parcel_release(&sent);
    }
    if (st == DT_OK) st = dt_channel_wait(s.stage == 0 ? s.to_next : s.to_before);
    dt_test_release_stages(&s);
    return st;
}

DT_TEST(channels, unbuffered_links_let_a_send_wait_for_its_receiver)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.links = "unbuffered";
    DT_ASSERT_OK(dt_test_run(&o, "pp=2", meet, &(meeting){ ONE_AFTER_THE_OTHER }));
    DT_ASSERT_OK(dt_test_run(&o, "pp=2", meet, &(meeting){ BOTH_SEND_PARCELS }));
    DT_ASSERT_STATUS(dt_test_run(&o, "pp=2", meet, &(meeting){ BOTH_SEND }), DT_ERR_COMM,
                     "after 500 ms");
    dt_test_on_ranks("pp=2", meet, &(meeting){ BOTH_SEND });
    for (int i = 0; i < 2; i++) {
        o.links = i ? "pp=0,20;unbuffered" : "unbuffered;10,5";
        DT_ASSERT_OK(dt_test_run(&o, "pp=2,tp=2", dt_test_journeys,
                                 &(dt_test_journey){ "RS(0)", DT_F32, 2, { 300, 5 } }));
    }
}

/* --- mistakes and failures -------------------------------------------------------------------- */

static dt_status misuse(dt_mesh *mesh, const void *arg)
{
    const dt_placement term[] = { DT_REPLICATE, DT_PARTIAL(DT_SUM) }, part[] = { DT_REPLICATE };
    const int64_t shape[] = { 4 };
    const float values[4] = { 0 };
    DT_HELD(channel) *own = NULL;
    DT_HELD(tensor) *x = NULL, *y = NULL, *other = NULL, *got = NULL;
    DT_HELD(parcel) *parcel = NULL;
    dt_channel *none = NULL;

    (void)arg, (void)part;
    DT_TEST_WITH_PAIR(mesh, p);
    DT_TRY(dt_channel_create(p.first, p.first, NULL, &own));
    DT_TRY(dt_test_message(mesh, "RR", DT_F32, 1, shape, 0, &other));
    DT_EXPECT_STATUS(dt_channel_create(NULL, p.first, NULL, &none), DT_ERR_ARG,
                     "from or to is NULL");
    DT_EXPECT_STATUS(dt_channel_create(p.first, p.first, NULL, NULL), DT_ERR_ARG, "out is NULL");
    DT_EXPECT_STATUS(dt_parcel_wait(&parcel, &y), DT_ERR_ARG, "the message is NULL");
    DT_EXPECT_STATUS(dt_channel_recv(p.channel, NULL, NULL), DT_ERR_ARG, "parcel is NULL");
    DT_EXPECT(dt_parcel_is_done(NULL), "NULL is done");
    dt_parcel_release(&parcel);
    if (!p.sends) {
        DT_TRY(dt_test_message(p.second, "RR", DT_F32, 1, shape, 0, &x));
        DT_EXPECT_STATUS(dt_channel_send(p.channel, x, NULL), DT_ERR_ARG,
                         "is not on the mesh that the channel comes from");
        DT_EXPECT_STATUS(dt_channel_recv(own, NULL, &parcel), DT_ERR_ARG,
                         "is not on the mesh that the channel goes to");
        return DT_OK;
    }
    DT_TRY(dt_from_local(p.first, term, DT_F32, 1, shape, values, &x));
    DT_EXPECT_STATUS(dt_channel_send(p.channel, x, NULL), DT_ERR_LAYOUT,
                     "x lies as RP(sum): terms of a sum cannot be sent; reduce them first");
    DT_EXPECT_STATUS(dt_channel_send(p.channel, other, NULL), DT_ERR_ARG, "x lies on another mesh");
    DT_EXPECT_STATUS(dt_channel_send(p.channel, NULL, NULL), DT_ERR_ARG, "x is NULL");
    DT_EXPECT_STATUS(dt_channel_recv(p.channel, NULL, &parcel), DT_ERR_ARG,
                     "is not on the mesh that the channel goes to");
    DT_TRY(dt_test_message(p.first, "RR", DT_F32, 1, shape, 3, &y));
    DT_TRY(dt_channel_recv(own, NULL, &parcel));
    DT_EXPECT_STATUS(dt_parcel_wait(&parcel, &got), DT_ERR_ARG,
                     "message 1 of channel \"channel\" is one that rank");
    DT_EXPECT(parcel == NULL && got == NULL, "a failed wait leaves something");
    DT_TRY(dt_channel_recv(own, NULL, &parcel));
    DT_TRY(dt_channel_send(own, x, NULL) == DT_ERR_LAYOUT ? DT_OK : DT_ERR_INTERNAL);
    for (int k = 0; k < 2; k++) DT_TRY(dt_channel_send(own, y, NULL));
    DT_TRY(dt_parcel_wait(&parcel, &got)); /* the first was dropped */
    DT_EXPECT(dt_tensor_local(got)->data == dt_tensor_local(y)->data,
              "bytes of one rank are copied");
    return dt_test_is_message(got, p.first, "RR", 3);
}

DT_TEST(channels, misuse_is_refused)
{
    dt_test_on_ranks("pp=2,tp=2", misuse, NULL);
}

typedef enum how { LEAVES, FAILS, IS_LATE, SENDS_ANOTHER, NEVER_ASKS } how;

/* Stage 1 is the culprit, or stage 0 in what it sends; the others learn of it wherever they are. */
static dt_status one_fails(dt_mesh *mesh, const void *arg)
{
    const how h = *(const how *)arg;
    const int64_t shape[] = { 4 };
    const dt_placement whole[] = { DT_REPLICATE };
    DT_HELD(tensor) *x = NULL, *y = NULL;
    DT_HELD(parcel) *parcel = NULL;

    if (h == IS_LATE || h == NEVER_ASKS) DT_TRY(dt_mesh_set_timeout(mesh, 300));
    DT_TEST_WITH_PAIR(mesh, p);
    if (p.sends == (h != NEVER_ASKS)) {
        if (h == FAILS) sleep_ms(20);
        if (h == FAILS) return dt_fail(DT_ERR_IO, "the disk is gone");
        if (h == IS_LATE || h == NEVER_ASKS) sleep_ms(1500);
        if (h != SENDS_ANOTHER) return DT_OK;
        DT_TRY(dt_test_message(p.first, "R", DT_F32, 1, (const int64_t[]){ 5 }, 0, &x));
        DT_TRY(dt_channel_send(p.channel, x, NULL));
        return dt_channel_wait(p.channel);
    }
    if (h == NEVER_ASKS) {
        DT_TRY(dt_test_message(p.first, "R", DT_F32, 1, shape, 0, &x));
        DT_TRY(dt_channel_send(p.channel, x, &parcel));
        return dt_parcel_wait(&parcel, NULL);
    }
    DT_TRY(dt_channel_expect(p.channel, DT_F32, 1, shape, whole));
    DT_TRY(dt_channel_recv(p.channel, NULL, &parcel));
    return dt_parcel_wait(&parcel, &y);
}

DT_TEST(channels, waits_end_when_a_rank_fails_leaves_or_is_late)
{
    static const how all[] = { LEAVES, FAILS, IS_LATE, SENDS_ANOTHER, NEVER_ASKS };
    const char *name = "message 1 of channel \"pp 0 to 1\": ";

    dt_test_on_ranks_fail("pp=2", one_fails, &all[0], DT_ERR_COMM,
                          "recv of message 1 on \"pp 0 to 1\"");
    dt_test_on_ranks_fail("pp=2", one_fails, &all[0], DT_ERR_COMM, "rank 0 has left");
    dt_test_on_ranks_fail("pp=2", one_fails, &all[1], DT_ERR_IO, "the disk is gone");
    dt_test_on_ranks_fail("pp=2", one_fails, &all[2], DT_ERR_COMM, "after 300 ms");
    dt_test_on_ranks_fail("pp=2", one_fails, &all[3], DT_ERR_SHAPE,
                          "it is f32 [5] R, but dt_channel_expect() said f32 [4] R");
    dt_test_on_ranks_fail("pp=2", one_fails, &all[3], DT_ERR_SHAPE, name);
    dt_test_on_ranks_fail("pp=2", one_fails, &all[4], DT_ERR_COMM, "after 300 ms");
    dt_test_on_ranks_fail("pp=2", one_fails, &all[4], DT_ERR_COMM,
                          "send of message 1 on \"pp 0 to 1\"");
}

/* A fault in the middle of many messages: all ranks end, whatever they wait for. */
DT_TEST(channels, a_fault_in_the_middle_ends_all_ranks)
{
    static const char *const faults[] = { "rank=1,op=send,call=9", "rank=2,op=recv,call=17" };

    for (size_t i = 0; i < DT_COUNT(faults); i++) {
        dt_run_options o = DT_TEST_RUN_OPTIONS;
        o.fault = faults[i];
        DT_ASSERT_STATUS(dt_test_run(&o, "pp=4", dt_test_journeys,
                                     &(dt_test_journey){ "R", DT_F32, 2, { 3, 5 } }),
                         DT_ERR_COMM, "a fault was injected");
    }
}
