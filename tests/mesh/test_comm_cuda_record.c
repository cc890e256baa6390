/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives that several ranks record and play, each a graph of its own, on devices that are late
 * (tests/support/queued_device.h). */
#include "mesh/runtime.h"
#include "tests/support/comm_model.h"
#include "tests/support/dt_test.h"
#include "tests/support/queued_device.h"

enum { N = 77, BLOCK = 5, MAX_RANKS = 4, ROUNDS = 9, ALL = BLOCK * MAX_RANKS };

/* Of one rank: x is added up in place, y [ranks, BLOCK] is gathered from its first block, scattered
 * with a sum, and sent round. */
typedef struct places {
    float *x, *y, *gathered, *scattered, *sent_round;
} places;

static dt_status take(const dti_cuda_place *place, int64_t n, float **out)
{
    void *data = NULL;

    DT_EXPECT(
        place->module->alloc(place->cuda, (size_t)n * sizeof(float), DTI_CUDA_DEVICE, &data) == 0,
        "%s", place->module->why());
    *out = data;
    return DT_OK;
}

static dt_status take_all(const dti_cuda_place *place, places *p)
{
    DT_TRY(take(place, N, &p->x));
    DT_TRY(take(place, ALL, &p->y));
    DT_TRY(take(place, ALL, &p->gathered));
    DT_TRY(take(place, BLOCK, &p->scattered));
    return take(place, ALL, &p->sent_round);
}

static void give_all(const dti_cuda_place *place, const places *p)
{
    float *const all[] = { p->x, p->y, p->gathered, p->scattered, p->sent_round };

    for (size_t i = 0; i < DT_COUNT(all); i++)
        place->module->release(place->cuda, DTI_CUDA_DEVICE, all[i]);
}

static dt_status run_calls(dti_comm *c, const dti_cuda_place *place, const places *p, bool asks)
{
    const int64_t n = N, blocks[MAX_RANKS] = { BLOCK, BLOCK, BLOCK, BLOCK };
    void *stream = place->module->stream(place->cuda);
    const dti_comm_call calls[] = {
        { .op = DTI_COMM_ALL_REDUCE, .send = p->x, .recv = p->x, .counts = &n },
        { .op = DTI_COMM_ALL_GATHER, .send = p->y, .recv = p->gathered, .counts = blocks },
        { .op = DTI_COMM_REDUCE_SCATTER, .send = p->y, .recv = p->scattered, .counts = blocks },
        { .op = DTI_COMM_ALL_TO_ALL,
          .send = p->y,
          .recv = p->sent_round,
          .counts = blocks,
          .send_counts = blocks },
    };

    for (size_t i = 0; i < DT_COUNT(calls); i++) {
        dti_comm_call call = calls[i];
        call.stream = stream;
        if (asks) DT_EXPECT(dti_cuda_can_record(c, &call), "%s", dti_comm_op_name(call.op));
        DT_TRY(dti_comm_run(c, &call));
    }
    return DT_OK;
}

static dt_status record(dti_comm *c, const dti_cuda_place *place, const places *p,
                        dti_cuda_graph **out)
{
    dt_status st;

    dti_cuda_world_set(c->cuda, DTI_CUDA_REHEARSES);
    st = run_calls(c, place, p, false);
    dti_cuda_world_set(c->cuda, DTI_CUDA_RUNS);
    DT_TRY(st);
    DT_EXPECT(place->module->capture_begin(place->cuda) == 0, "%s", place->module->why());
    dti_cuda_world_set(c->cuda, DTI_CUDA_RECORDS_GRAPH);
    st = run_calls(c, place, p, true);
    dti_cuda_world_set(c->cuda, DTI_CUDA_RUNS);
    DT_EXPECT(place->module->capture_end(place->cuda, out) == 0, "%s", place->module->why());
    return st;
}

static float x_of(int round, int rank, int i)
{
    return (float)(round * 100 + rank * 10 + i % 7);
}

static float y_of(int round, int rank, int i)
{
    return (float)(round * 1000 - rank * 100 + i);
}

static dt_status write_terms(const dti_cuda_place *place, const places *p, int round, int rank)
{
    float x[N], y[ALL];

    for (int i = 0; i < N; i++) x[i] = x_of(round, rank, i);
    for (int i = 0; i < ALL; i++) y[i] = y_of(round, rank, i);
    DT_EXPECT(place->module->copy(place->cuda, p->x, x, sizeof x, DTI_CUDA_UP) == 0, "up");
    DT_EXPECT(place->module->copy(place->cuda, p->y, y, sizeof y, DTI_CUDA_UP) == 0, "up");
    return DT_OK;
}

static dt_status check_moves(const dti_comm *c, const dti_cuda_place *place, const places *p,
                             int round)
{
    float gathered[ALL], scattered[BLOCK], sent_round[ALL];

    DT_EXPECT(place->module->copy(place->cuda, gathered, p->gathered, sizeof gathered,
                                  DTI_CUDA_DOWN) == 0 &&
                  place->module->copy(place->cuda, scattered, p->scattered, sizeof scattered,
                                      DTI_CUDA_DOWN) == 0 &&
                  place->module->copy(place->cuda, sent_round, p->sent_round, sizeof sent_round,
                                      DTI_CUDA_DOWN) == 0,
              "down");
    for (int i = 0; i < BLOCK; i++) {
        const int mine = c->rank * BLOCK + i;
        float sum = 0;
        for (int m = 0; m < c->size; m++) {
            sum += y_of(round, m, mine);
            DT_EXPECT(gathered[m * BLOCK + i] == y_of(round, m, i), "round %d: gathered", round);
            DT_EXPECT(sent_round[m * BLOCK + i] == y_of(round, m, mine), "round %d: sent", round);
        }
        DT_EXPECT(scattered[i] == sum, "round %d: scattered", round);
    }
    return DT_OK;
}

static dt_status check_sum(const dti_comm *c, const dti_cuda_place *place, const places *p,
                           int round)
{
    float x[N];

    DT_EXPECT(place->module->copy(place->cuda, x, p->x, sizeof x, DTI_CUDA_DOWN) == 0, "down");
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int m = 0; m < c->size; m++) sum += x_of(round, m, i);
        DT_EXPECT(x[i] == sum, "round %d: element %d is %g, not %g", round, i, (double)x[i],
                  (double)sum);
    }
    return DT_OK;
}

/* Every third round runs unrecorded, on the same communicator. */
static dt_status play(dti_comm *c, const dti_cuda_place *place, const places *p,
                      dti_cuda_graph *graph)
{
    for (int round = 1; round <= ROUNDS; round++) {
        DT_TRY(write_terms(place, p, round, c->rank));
        if (round % 3 == 0) {
            DT_TRY(run_calls(c, place, p, false));
        } else {
            DT_TRY(dti_cuda_before_play(c));
            DT_EXPECT(place->module->graph_launch(place->cuda, graph) == 0, "launch");
            DT_TRY(dti_cuda_after_play(c));
        }
        DT_TRY(dti_cuda_world_sync(c->cuda));
        DT_TRY(check_sum(c, place, p, round));
        DT_TRY(check_moves(c, place, p, round));
    }
    DT_EXPECT(c->cuda->n_played == ROUNDS - ROUNDS / 3, "played");
    return DT_OK;
}

static dt_status record_and_play(dt_mesh *mesh, const dti_cuda_place *place)
{
    dti_cuda_graph *graph = NULL;
    places p = { .x = NULL };
    dt_status st = DT_OK;
    dti_comm *c;

    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    DT_EXPECT(dti_cuda_world_records(c->cuda), "%s", dti_cuda_world_text(c->cuda));
    DT_TRY_TO(done, st, take_all(place, &p));
    DT_TRY_TO(done, st, record(c, place, &p, &graph));
    DT_TRY_TO(done, st, play(c, place, &p, graph));
done:
    place->module->graph_destroy(graph);
    give_all(place, &p);
    return st;
}

static void on_carrier(const char *wish, int n_devices)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
    const comm_devices d = { queued_module(), wish, n_devices, record_and_play };

    if (dt_test_processes() > 1) dt_test_skip("skipped: ranks are in several processes");
    for (size_t i = 0; i < DT_COUNT(meshes); i++) dt_test_on_ranks(meshes[i], comm_on_devices, &d);
}

DT_TEST(comm_cuda_record, nccl_on_several_ranks)
{
    on_carrier("nccl", QUEUED_DEVICES);
}

DT_TEST(comm_cuda_record, kernels_that_wait_for_each_other)
{
    on_carrier("cuda_local_spin", QUEUED_DEVICES);
}

DT_TEST(comm_cuda_record, kernels_that_wait_for_each_other_on_one_device)
{
    on_carrier("cuda_local_spin", 1);
}

/* The rehearsal of a move opens what the recording needs, with no sum before it. */
static dt_status gather_alone(dt_mesh *mesh, const dti_cuda_place *place)
{
    static const int64_t blocks[MAX_RANKS] = { BLOCK, BLOCK, BLOCK, BLOCK };
    const dti_cuda_module *m = place->module;
    dti_comm_call gather = { .op = DTI_COMM_ALL_GATHER, .counts = blocks };
    dti_cuda_graph *graph = NULL;
    float *sent = NULL, *got = NULL, x[BLOCK], y[ALL];
    dti_comm *c;

    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    DT_TRY(take(place, BLOCK, &sent));
    DT_TRY(take(place, ALL, &got));
    gather.send = sent;
    gather.recv = got;
    gather.stream = m->stream(place->cuda);
    dti_cuda_world_set(c->cuda, DTI_CUDA_REHEARSES);
    DT_TRY(dti_comm_run(c, &gather));
    dti_cuda_world_set(c->cuda, DTI_CUDA_RUNS);
    DT_EXPECT(dti_cuda_can_record(c, &gather), "rehearsed");
    DT_EXPECT(m->capture_begin(place->cuda) == 0, "%s", m->why());
    dti_cuda_world_set(c->cuda, DTI_CUDA_RECORDS_GRAPH);
    DT_TRY(dti_comm_run(c, &gather));
    dti_cuda_world_set(c->cuda, DTI_CUDA_RUNS);
    DT_EXPECT(m->capture_end(place->cuda, &graph) == 0, "%s", m->why());
    for (int i = 0; i < BLOCK; i++) x[i] = y_of(1, c->rank, i);
    DT_EXPECT(m->copy(place->cuda, sent, x, sizeof x, DTI_CUDA_UP) == 0, "up");
    DT_TRY(dti_cuda_before_play(c));
    DT_EXPECT(m->graph_launch(place->cuda, graph) == 0, "launch");
    DT_TRY(dti_cuda_after_play(c));
    DT_TRY(dti_cuda_world_sync(c->cuda));
    DT_EXPECT(m->copy(place->cuda, y, got, sizeof y, DTI_CUDA_DOWN) == 0, "down");
    for (int i = 0; i < c->size * BLOCK; i++)
        DT_EXPECT(y[i] == y_of(1, i / BLOCK, i % BLOCK), "element %d is %g", i, (double)y[i]);
    m->graph_destroy(graph);
    m->release(place->cuda, DTI_CUDA_DEVICE, sent);
    m->release(place->cuda, DTI_CUDA_DEVICE, got);
    return DT_OK;
}

DT_TEST(comm_cuda_record, a_move_with_no_sum_before_it)
{
    const comm_devices d = { queued_module(), "cuda_local_spin", QUEUED_DEVICES, gather_alone };

    if (dt_test_processes() > 1) dt_test_skip("skipped: ranks are in several processes");
    dt_test_on_ranks("tp=2", comm_on_devices, &d);
    dt_test_on_ranks("tp=3", comm_on_devices, &d);
}

/* Where ranks share a device, kernels wait for each other if all ranks take part, and no others. */
static dt_status ask_of_parts(dt_mesh *mesh, const dti_cuda_place *place)
{
    static const int64_t blocks[MAX_RANKS] = { BLOCK, BLOCK, BLOCK, BLOCK }, n = BLOCK;
    float *x = NULL, *y = NULL;

    DT_TRY(take(place, BLOCK, &x));
    DT_TRY(take(place, ALL, &y));
    for (unsigned dims = 1; dims <= 3; dims++) {
        const dti_comm_call calls[] = {
            { .op = DTI_COMM_ALL_GATHER, .send = x, .recv = y, .counts = blocks },
            { .op = DTI_COMM_ALL_REDUCE, .send = x, .recv = x, .counts = &n },
        };
        dti_comm *c;
        DT_TRY(dti_mesh_comm(mesh, dims, &c));
        for (size_t i = 0; i < DT_COUNT(calls); i++) {
            dti_comm_call call = calls[i];
            call.stream = place->module->stream(place->cuda);
            dti_cuda_world_set(c->cuda, DTI_CUDA_REHEARSES);
            DT_TRY(dti_comm_run(c, &call));
            dti_cuda_world_set(c->cuda, DTI_CUDA_RUNS);
            DT_EXPECT(dti_cuda_can_record(c, &call) == (!c->cuda->crowded || dims == 3),
                      "%s over dims %u", dti_comm_op_name(call.op), dims);
        }
    }
    DT_TRY(dti_cuda_world_sync(dti_runtime_cuda(dt_mesh_runtime(mesh))));
    place->module->release(place->cuda, DTI_CUDA_DEVICE, x);
    place->module->release(place->cuda, DTI_CUDA_DEVICE, y);
    return DT_OK;
}

DT_TEST(comm_cuda_record, parts_of_a_world_on_one_device)
{
    const comm_devices crowded = { queued_module(), "cuda_local_spin", 1, ask_of_parts };
    const comm_devices apart = { queued_module(), "cuda_local_spin", QUEUED_DEVICES, ask_of_parts };

    if (dt_test_processes() > 1) dt_test_skip("skipped: ranks are in several processes");
    dt_test_on_ranks("dp=2,tp=2", comm_on_devices, &crowded);
    dt_test_on_ranks("dp=2,tp=2", comm_on_devices, &apart);
}

/* One rank refuses in the middle: what the others had recorded by then is not counted, so numbers
 * in messages of what comes later stay the same on all ranks. */
static dt_status record_alone(dt_mesh *mesh, const dti_cuda_place *place)
{
    const dti_cuda_module *m = place->module;
    const int64_t n = N;
    dti_comm_call sum = { .op = DTI_COMM_ALL_REDUCE, .counts = &n };
    dti_comm_request later = { .timeout_ms = 0 };
    dti_cuda_graph *graph = NULL;
    float *x = NULL;
    dti_comm *c;

    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    DT_TRY(take(place, N, &x));
    sum.send = sum.recv = x;
    sum.stream = m->stream(place->cuda);
    DT_TRY(dti_comm_run(c, &sum));
    DT_EXPECT(m->capture_begin(place->cuda) == 0, "%s", m->why());
    dti_cuda_world_set(c->cuda, DTI_CUDA_RECORDS_GRAPH);
    for (int i = 0; i < 3 && c->rank == 0; i++) DT_TRY(dti_comm_run(c, &sum));
    dti_cuda_world_set(c->cuda, DTI_CUDA_RUNS);
    DT_EXPECT(m->capture_end(place->cuda, &graph) == 0, "%s", m->why());
    m->graph_destroy(graph);
    later.call = sum;
    DT_TRY(dti_comm_start(c, &later));
    DT_EXPECT(later.seq == 2, "the second sum is number %d", (int)later.seq);
    DT_TRY(dti_comm_wait(c, &later));
    DT_TRY(dti_cuda_world_sync(c->cuda));
    m->release(place->cuda, DTI_CUDA_DEVICE, x);
    return DT_OK;
}

DT_TEST(comm_cuda_record, what_is_recorded_is_not_counted)
{
    const comm_devices d = { queued_module(), "cuda_local_spin", QUEUED_DEVICES, record_alone };

    if (dt_test_processes() > 1) dt_test_skip("skipped: ranks are in several processes");
    dt_test_on_ranks("tp=2", comm_on_devices, &d);
}

/* What has not been rehearsed, or is too long for a slot, has to be left to unrecorded passes. */
static dt_status refusals(dt_mesh *mesh, const dti_cuda_place *place)
{
    const int64_t small = 8, large = DTI_CUDA_SPIN_SUM_BYTES, block[2] = { large, large };
    const dti_comm_call sum = { .op = DTI_COMM_ALL_REDUCE, .counts = &small };
    const dti_comm_call too_long = { .op = DTI_COMM_ALL_REDUCE, .counts = &large };
    const dti_comm_call gather = { .op = DTI_COMM_ALL_GATHER, .counts = block };
    const dti_comm_call spread = { .op = DTI_COMM_BROADCAST, .counts = &small };
    dti_comm_call run = sum;
    float *x = NULL;
    dti_comm *c;

    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    DT_EXPECT(!dti_cuda_can_record(c, &sum), "not rehearsed");
    DT_TRY(take(place, small, &x));
    run.send = run.recv = x;
    run.stream = place->module->stream(place->cuda);
    DT_TRY(dti_comm_run(c, &run));
    DT_EXPECT(dti_cuda_can_record(c, &sum), "rehearsed");
    DT_EXPECT(!dti_cuda_can_record(c, &too_long), "too long");
    DT_EXPECT(!dti_cuda_can_record(c, &gather), "no room");
    DT_EXPECT(!dti_cuda_can_record(c, &spread), "broadcast");
    DT_TRY(dti_cuda_world_sync(c->cuda));
    place->module->release(place->cuda, DTI_CUDA_DEVICE, x);
    return DT_OK;
}

DT_TEST(comm_cuda_record, what_cannot_be_recorded)
{
    const comm_devices d = { queued_module(), "cuda_local_spin", QUEUED_DEVICES, refusals };

    if (dt_test_processes() > 1) dt_test_skip("skipped: ranks are in several processes");
    dt_test_on_ranks("tp=2", comm_on_devices, &d);
}
