/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages from mesh to mesh: what comes is what was sent, in any layout, between any meshes, in
 * any order of waits, beside collectives and other channels; what is counted; and how ranks that
 * fail, leave or never come end the wait. */
#include <dtensor/channels.h>
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/sync.h"
#include "tests/support/dt_test.h"

/* Message k is these numbers: other ones for each k. */
static dt_status fill(dt_tensor *x, int k)
{
    return dt_fill_randint(x, (dt_random){ 7, (uint64_t)k }, -1000, 1000);
}

static dt_status make(dt_mesh *mesh, const char *layout_text, dt_dtype dtype, int n_axes,
                      const int64_t *shape, int k, dt_tensor **out)
{
    const dt_layout *layout;

    DT_TRY(dt_layout_parse(mesh, n_axes, layout_text, &layout));
    DT_TRY(dt_empty_laid(mesh, layout, dtype, shape, out));
    DT_TRY(fill(*out, k));
    return DT_OK;
}

/* y lies so, on this mesh, and is message k. */
static dt_status is_message(const dt_tensor *y, dt_mesh *mesh, const char *layout_text, int k)
{
    const dt_local *l = dt_tensor_local(y);
    DT_HELD(tensor) *want = NULL;
    const dt_layout *layout;
    char text[512];
    size_t bytes = dt_dtype_size(l->dtype);

    (void)dt_layout_print(dt_tensor_layout(y), text, sizeof text);
    DT_TRY(dt_layout_parse(mesh, l->n_axes, layout_text, &layout));
    DT_EXPECT(dt_tensor_layout(y) == layout, "message %d lies as %s, not as %s", k, text,
              layout_text);
    DT_EXPECT(dt_mesh_equal(dt_tensor_mesh(y), mesh), "message %d is on another mesh", k);
    DT_TRY(dt_empty_like(y, &want));
    DT_TRY(fill(want, k));
    for (int a = 0; a < l->n_axes; a++) bytes *= (size_t)l->shape[a];
    DT_EXPECT(bytes == 0 || memcmp(l->data, dt_tensor_local(want)->data, bytes) == 0,
              "message %d, %s: %zu bytes differ", k, text, bytes);
    return DT_OK;
}

/* --- between stages --------------------------------------------------------------------------- */

/* Stages of "pp" of a mesh, and channels both ways between neighbours. */
typedef struct stages {
    dt_mesh *mine, *next, *before;
    dt_channel *to_next, *from_before; /* forward */
    dt_channel *to_before, *from_next; /* back */
    int stage, n;
} stages;

static void release_stages(stages *s)
{
    dt_channel_release(&s->to_next);
    dt_channel_release(&s->from_before);
    dt_channel_release(&s->to_before);
    dt_channel_release(&s->from_next);
    dt_mesh_release(&s->mine);
    dt_mesh_release(&s->next);
    dt_mesh_release(&s->before);
}

static dt_status make_stages(dt_mesh *mesh, stages *s)
{
    const int pp = dt_mesh_find_dim(mesh, "pp");

    *s = (stages){ .stage = dt_mesh_coord(mesh, pp), .n = dt_mesh_dim_size(mesh, pp) };
    DT_TRY(dt_mesh_stage(mesh, "pp", s->stage, &s->mine));
    if (s->stage > 0) {
        DT_TRY(dt_mesh_stage(mesh, "pp", s->stage - 1, &s->before));
        DT_TRY(dt_channel_create(s->before, s->mine, "pp", &s->from_before));
        DT_TRY(dt_channel_create(s->mine, s->before, "pp", &s->to_before));
    }
    if (s->stage + 1 < s->n) {
        DT_TRY(dt_mesh_stage(mesh, "pp", s->stage + 1, &s->next));
        DT_TRY(dt_channel_create(s->mine, s->next, "pp", &s->to_next));
        DT_TRY(dt_channel_create(s->next, s->mine, "pp", &s->from_next));
    }
    return DT_OK;
}

typedef struct journey {
    const char *layout;
    dt_dtype dtype;
    int n_axes;
    int64_t shape[4];
} journey;

enum { MESSAGES = 24 };

/* Message by message from the first stage to the last, all of them begun before the first is
 * waited for, which are waited for from the last one on; and the same back beside it. */
static dt_status travel(stages *s, const journey *j)
{
    dt_parcel *there[MESSAGES] = { NULL }, *back[MESSAGES] = { NULL };

    for (int k = 0; k < MESSAGES; k++) {
        if (s->from_before != NULL) DT_TRY(dt_channel_recv(s->from_before, NULL, &there[k]));
        if (s->from_next != NULL) DT_TRY(dt_channel_recv(s->from_next, NULL, &back[k]));
    }
    for (int k = 0; k < MESSAGES; k++) {
        DT_HELD(tensor) *x = NULL, *g = NULL;
        DT_TRY(make(s->mine, j->layout, j->dtype, j->n_axes, j->shape, k, &x));
        DT_TRY(make(s->mine, j->layout, j->dtype, j->n_axes, j->shape, 100 + k, &g));
        if (s->to_next != NULL) DT_TRY(dt_channel_send(s->to_next, x, NULL));
        if (s->to_before != NULL) DT_TRY(dt_channel_send(s->to_before, g, NULL));
    }
    for (int k = MESSAGES - 1; k >= 0; k--) {
        DT_HELD(tensor) *y = NULL, *g = NULL;
        if (there[k] != NULL) DT_TRY(dt_parcel_wait(&there[k], &y));
        if (back[k] != NULL) DT_TRY(dt_parcel_wait(&back[k], &g));
        if (y != NULL) DT_TRY(is_message(y, s->mine, j->layout, k));
        if (g != NULL) DT_TRY(is_message(g, s->mine, j->layout, 100 + k));
        DT_EXPECT(there[k] == NULL && back[k] == NULL, "a message that was waited for is there");
    }
    if (s->to_next != NULL) DT_TRY(dt_channel_wait(s->to_next));
    if (s->to_before != NULL) DT_TRY(dt_channel_wait(s->to_before));
    return DT_OK;
}

static dt_status journeys(dt_mesh *mesh, const void *arg)
{
    const journey *j = arg;
    dt_status st;
    stages s;

    st = make_stages(mesh, &s);
    if (st == DT_OK) st = travel(&s, j);
    release_stages(&s);
    return st;
}

DT_TEST(channels, stages_hand_each_other_what_they_have)
{
    static const journey cases[] = {
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
        dt_test_on_ranks("pp=2,dp=2,tp=2", journeys, &cases[i]);
    dt_test_on_ranks("pp=4", journeys, &(journey){ "R", DT_F32, 2, { 3, 5 } });
    dt_test_on_ranks("pp=1", journeys, &(journey){ "R", DT_F32, 2, { 3, 5 } });
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
        DT_TRY(make(from, c->layout, DT_F32, c->n_axes, c->shape, k, &x));
        DT_TRY(dt_channel_send(channel, x, NULL));
    }
    for (int k = 1; k < 3 && dt_mesh_is_member(to); k++)
        DT_TRY(dt_channel_recv(channel, NULL, &parcel[k]));
    for (int k = 2; k >= 0 && dt_mesh_is_member(to); k--) {
        DT_HELD(tensor) *y = NULL;
        DT_TRY(dt_parcel_wait(&parcel[k], &y));
        DT_TRY(is_message(y, to, c->comes, k));
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
        dt_parcel *parcel = NULL;
        if (dt_mesh_is_member(to)) DT_TRY(dt_channel_recv(channel, NULL, &parcel));
        if (dt_mesh_is_member(from)) DT_TRY(make(from, text, DT_F32, 1, &rows, k, &x));
        if (dt_mesh_is_member(from)) DT_TRY(dt_channel_send(channel, x, NULL));
        if (dt_mesh_is_member(to)) DT_TRY(dt_parcel_wait(&parcel, &y));
        if (dt_mesh_is_member(to)) DT_TRY(is_message(y, to, text, k));
    }
    return dt_channel_wait(channel);
}

DT_TEST(channels, placements_of_any_length)
{
    dt_test_on_ranks("world=3", long_words, NULL);
}

/* --- what else a message does ----------------------------------------------------------------- */

/* Stages of two ranks each: the mesh, its first and its second one, and a channel. */
typedef struct pair {
    dt_mesh *first, *second;
    dt_channel *channel;
    bool sends;
} pair;

static void release_pair(pair *p)
{
    dt_channel_release(&p->channel);
    dt_mesh_release(&p->first);
    dt_mesh_release(&p->second);
}

static dt_status make_pair(dt_mesh *mesh, pair *p)
{
    *p = (pair){ .sends = dt_mesh_coord(mesh, 0) == 0 };
    DT_TRY(dt_mesh_stage(mesh, "pp", 0, &p->first));
    DT_TRY(dt_mesh_stage(mesh, "pp", 1, &p->second));
    DT_TRY(dt_channel_create(p->first, p->second, "pp 0 to 1", &p->channel));
    return DT_OK;
}
#define WITH_PAIR(mesh, p)                   \
    DT_ENDS(release_pair) pair p = { NULL }; \
    DT_TRY(make_pair(mesh, &p))

static dt_status counts(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 6, 8 };
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    const dt_placement whole[] = { DT_REPLICATE, DT_REPLICATE };
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
    WITH_PAIR(mesh, p);
    for (int k = 0; k < 4; k++) { /* A, A / t, and A / t that is gathered there */
        DT_HELD(tensor) *x = NULL;
        dt_parcel *parcel = NULL;
        dt_tensor *y;
        const char *layout = k < 2 ? "RR" : "RS(1)";
        if (p.sends) {
            DT_TRY(make(p.first, layout, DT_F32, 2, shape, k, &x));
            DT_TRY(dt_channel_send(p.channel, x, NULL));
            continue;
        }
        if (k == 1) (void)dt_tape_because(t, "forward");
        DT_TRY(dt_channel_recv(p.channel, k == 3 ? whole : NULL, &parcel));
        y = dt_parcel_take(t, &parcel);
        DT_TRY(dt_tape_status(t));
        DT_TRY(is_message(y, p.second, k == 3 ? "RR" : layout, k));
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
            dt_parcel *parcel;
            DT_TRY(dt_mesh_create(dry, "pp=2,tp=2", &all));
            DT_TRY(dt_tape_create(dry, &t));
            WITH_PAIR(all, p);
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
    WITH_PAIR(mesh, p);
    if (p.sends) {
        DT_HELD(tensor) *x = NULL;
        dt_parcel *parcel = NULL;
        DT_TRY(make(p.first, "RR", DT_F32, 2, shape, 0, &x));
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
        DT_TRY(is_message(y, p.second, "RR", 0));
        DT_TRY(is_message(z, p.second, "RR", 1));
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
    WITH_PAIR(mesh, p);
    for (int k = 0; k < MANY && p.sends; k++) {
        DT_HELD(tensor) *x = NULL;
        DT_TRY(make(p.first, "RS(0)", DT_F32, 1, shape, k, &x));
        DT_TRY(dt_channel_send(p.channel, x, NULL));
    }
    for (int k = 0; k < MANY && !p.sends; k++) {
        DT_HELD(tensor) *y = NULL;
        dt_parcel *parcel;
        DT_TRY(dt_channel_recv(p.channel, NULL, &parcel));
        DT_TRY(dt_parcel_wait(&parcel, &y));
        DT_TRY(is_message(y, p.second, "RS(0)", k));
        if (k % 8 == tp) DT_TRY(dt_barrier(p.second, NULL));
    }
    DT_TRY(dt_all_reduce(mesh, NULL, &(float){ 1 }, &sum, 1, DT_F32, DT_SUM));
    return dt_channel_wait(p.channel);
}

DT_TEST(channels, messages_go_on_inside_collectives)
{
    dt_test_on_ranks("pp=2,tp=2", beside, NULL);
}

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

    WITH_PAIR(mesh, p);
    if (p.sends) {
        DT_HELD(tensor) *x = NULL;
        DT_TRY(make(p.first, "R", DT_F32, 1, shape, 0, &x));
        sleep_ms(100);
        sent = dti_now_ns();
        DT_TRY(dt_channel_send(p.channel, x, NULL));
        DT_TRY(dt_channel_wait(p.channel));
        DT_TRY(dt_send(mesh, NULL, &sent, 1, DT_I64, 1));
        return DT_OK;
    }
    DT_HELD(tensor) *y = NULL;
    dt_parcel *parcel;
    DT_TRY(dt_channel_recv(p.channel, NULL, &parcel));
    sleep_ms(100 + late);
    begin = dti_now_ns();
    if (late == 0) DT_EXPECT(!dt_parcel_is_done(parcel), "the link is too fast");
    DT_TRY(dt_parcel_wait(&parcel, &y));
    const int64_t end = dti_now_ns();
    DT_TRY(is_message(y, p.second, "R", 0));
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

/* Both send before they receive, which needs a buffer; or one of them after. */
static dt_status meet(dt_mesh *mesh, const void *arg)
{
    const bool both = *(const bool *)arg;
    const int64_t shape[] = { 100 };
    dt_status st = DT_OK;
    stages s;

    DT_TRY(dt_mesh_set_timeout(mesh, 500));
    st = make_stages(mesh, &s);
    for (int k = 0; k < 20 && st == DT_OK; k++) {
        DT_HELD(tensor) *x = NULL, *y = NULL;
        dt_channel *to = s.stage == 0 ? s.to_next : s.to_before;
        dt_channel *from = s.stage == 0 ? s.from_next : s.from_before;
        dt_parcel *parcel = NULL;
        st = make(s.mine, "R", DT_F32, 1, shape, k, &x);
        if (st == DT_OK && (both || s.stage == 0)) st = dt_channel_send(to, x, NULL);
        if (st == DT_OK) st = dt_channel_recv(from, NULL, &parcel);
        if (st == DT_OK) st = dt_parcel_wait(&parcel, &y);
        if (st == DT_OK) st = is_message(y, s.mine, "R", k);
        if (st == DT_OK && !both && s.stage == 1) st = dt_channel_send(to, x, NULL);
    }
    if (st == DT_OK) st = dt_channel_wait(s.stage == 0 ? s.to_next : s.to_before);
    release_stages(&s);
    return st;
}

DT_TEST(channels, unbuffered_links_let_a_send_wait_for_its_receiver)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.links = "unbuffered";
    DT_ASSERT_OK(dt_test_run(&o, "pp=2", meet, &(bool){ false }));
    DT_ASSERT_STATUS(dt_test_run(&o, "pp=2", meet, &(bool){ true }), DT_ERR_COMM, "after 500 ms");
    dt_test_on_ranks("pp=2", meet, &(bool){ true });
    for (int i = 0; i < 2; i++) {
        o.links = i ? "pp=0,20;unbuffered" : "unbuffered;10,5";
        DT_ASSERT_OK(
            dt_test_run(&o, "pp=2,tp=2", journeys, &(journey){ "RS(0)", DT_F32, 2, { 300, 5 } }));
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
    dt_parcel *parcel = NULL;
    dt_channel *none = NULL;

    (void)arg, (void)part;
    WITH_PAIR(mesh, p);
    DT_TRY(dt_channel_create(p.first, p.first, NULL, &own));
    DT_TRY(make(mesh, "RR", DT_F32, 1, shape, 0, &other));
    DT_EXPECT_STATUS(dt_channel_create(NULL, p.first, NULL, &none), DT_ERR_ARG,
                     "from or to is NULL");
    DT_EXPECT_STATUS(dt_channel_create(p.first, p.first, NULL, NULL), DT_ERR_ARG, "out is NULL");
    DT_EXPECT_STATUS(dt_parcel_wait(&parcel, &y), DT_ERR_ARG, "the message is NULL");
    DT_EXPECT_STATUS(dt_channel_recv(p.channel, NULL, NULL), DT_ERR_ARG, "parcel is NULL");
    DT_EXPECT(dt_parcel_is_done(NULL), "NULL is done");
    dt_parcel_release(&parcel);
    if (!p.sends) {
        DT_TRY(make(p.second, "RR", DT_F32, 1, shape, 0, &x));
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
    DT_TRY(make(p.first, "RR", DT_F32, 1, shape, 3, &y));
    DT_TRY(dt_channel_recv(own, NULL, &parcel));
    DT_EXPECT_STATUS(dt_parcel_wait(&parcel, &got), DT_ERR_ARG,
                     "message 1 of channel \"channel\" is one that rank");
    DT_EXPECT(parcel == NULL && got == NULL, "a failed wait leaves something");
    DT_TRY(dt_channel_recv(own, NULL, &parcel));
    DT_TRY(dt_channel_send(own, x, NULL) == DT_ERR_LAYOUT ? DT_OK : DT_ERR_INTERNAL);
    for (int k = 0; k < 2; k++) DT_TRY(dt_channel_send(own, y, NULL));
    DT_TRY(dt_parcel_wait(&parcel, &got)); /* the first was dropped */
    return is_message(got, p.first, "RR", 3);
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
    dt_parcel *parcel = NULL;

    if (h == IS_LATE || h == NEVER_ASKS) DT_TRY(dt_mesh_set_timeout(mesh, 300));
    WITH_PAIR(mesh, p);
    if (p.sends == (h != NEVER_ASKS)) {
        if (h == FAILS) sleep_ms(20);
        if (h == FAILS) return dt_fail(DT_ERR_IO, "the disk is gone");
        if (h == IS_LATE || h == NEVER_ASKS) sleep_ms(1500);
        if (h != SENDS_ANOTHER) return DT_OK;
        DT_TRY(make(p.first, "R", DT_F32, 1, (const int64_t[]){ 5 }, 0, &x));
        DT_TRY(dt_channel_send(p.channel, x, NULL));
        return dt_channel_wait(p.channel);
    }
    if (h == NEVER_ASKS) {
        DT_TRY(make(p.first, "R", DT_F32, 1, shape, 0, &x));
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
        DT_ASSERT_STATUS(dt_test_run(&o, "pp=4", journeys, &(journey){ "R", DT_F32, 2, { 3, 5 } }),
                         DT_ERR_COMM, "a fault was injected");
    }
}
