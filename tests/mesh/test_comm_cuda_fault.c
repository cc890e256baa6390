/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that fail with memory of devices under way: whatever carries it, all ranks end soon with
 * an error that says who it was, streams that wait for others included. And who carries. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/sync.h"
#include "mesh/runtime.h"
#include "tests/support/comm_model.h"
#include "tests/support/dt_test.h"
#include "tests/support/queued_device.h"

enum { N_RANKS = 3, CULPRIT = 1, DEADLINE_MS = 300, QUICK_MS = 8000, N = 1000 };

typedef enum mistake {
    BREAK_DEVICE,
    LEAVE,
    BE_LATE,
    CALL_ANOTHER,
    PASS_ANOTHER_COUNT,
    STAY_ON_HOST,
    FAIL_ELSEWHERE
} mistake;

typedef struct scene {
    const char *wish;
    mistake mistake;
    dt_status seen[N_RANKS];
    char message[N_RANKS][DT_ERROR_MESSAGE_BYTES];
} scene;

static dti_comm_call sum_of(const dti_cuda_place *place, void *buffer, const int64_t *n)
{
    return (dti_comm_call){ .op = DTI_COMM_ALL_REDUCE,
                            .send = buffer,
                            .recv = buffer,
                            .counts = n,
                            .stream = place->module->stream(place->cuda) };
}

/* The culprit's call in place of the others' sum of N elements. */
static dt_status mistaken_call(const scene *s, dti_comm *c, const dti_cuda_place *place,
                               void *there)
{
    const int64_t n = s->mistake == PASS_ANOTHER_COUNT ? N - 1 : N;
    dti_comm_call call = sum_of(place, there, &n);
    float host[N] = { 0 };

    switch (s->mistake) {
    case BREAK_DEVICE:
        queued_fail_after(place->cuda, 0);
        break;
    case LEAVE:
        return DT_OK;
    case BE_LATE:
        (void)usleep(3 * DEADLINE_MS * 1000);
        break;
    case CALL_ANOTHER:
        call.op = DTI_COMM_BROADCAST;
        break;
    case STAY_ON_HOST:
        call.stream = NULL;
        call.send = call.recv = host;
        break;
    case FAIL_ELSEWHERE:
        DT_FAIL(DT_ERR_IO, "a file is missing");
    case PASS_ANOTHER_COUNT:
        break;
    }
    return dti_comm_run(c, &call);
}

static dt_status play(const scene *s, dti_comm *c, const dti_cuda_place *place, void *there)
{
    const int64_t n = N;
    const dti_comm_call call = sum_of(place, there, &n);

    DT_TRY(dti_comm_run(c, &call)); /* one that works */
    if (c->rank == CULPRIT)
        DT_TRY(mistaken_call(s, c, place, there));
    else
        DT_TRY(dti_comm_run(c, &call));
    if (c->rank == CULPRIT && s->mistake == LEAVE) return DT_OK;
    if (s->mistake != FAIL_ELSEWHERE) DT_TRY(dti_cuda_world_sync(c->cuda));
    return dti_barrier(c);
}

static dt_status with_device(scene *s, dt_runtime *rt, dti_cuda_place *place)
{
    void *there = NULL;
    dt_status st;

    DT_TRY(dti_runtime_use_cuda(rt, place, s->wish));
    DT_EXPECT(place->module->alloc(place->cuda, N * sizeof(float), DTI_CUDA_DEVICE, &there) == 0,
              "no memory");
    (void)place->module->clear(place->cuda, there, N * sizeof(float));
    st = play(s, dti_runtime_world(rt), place, there);
    st = dti_runtime_alone(rt, st);
    if (st != DT_OK)
        (void)snprintf(s->message[dt_runtime_rank(rt)], sizeof s->message[0], "%s",
                       dt_last_error()->message);
    place->module->release(place->cuda, DTI_CUDA_DEVICE, there); /* waits for the stream */
    dti_runtime_leave_cuda(rt);
    return st;
}

static dt_status scene_main(dt_runtime *rt, void *arg)
{
    scene *s = arg;
    dti_cuda_place place = { .module = queued_module(), .device = dt_runtime_rank(rt) };
    dt_status st;

    DT_EXPECT(place.module->open(place.device, &place.cuda) == 0, "%s", place.module->why());
    st = with_device(s, rt, &place);
    s->seen[place.device] = st;
    place.module->close(place.cuda);
    return st;
}

static void run_scene(scene *s, const char *check)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    const int64_t begin = dti_now_ns();

    o.n_ranks = N_RANKS;
    o.timeout_ms = DEADLINE_MS;
    o.check = check;
    DT_ASSERT(dt_run(&o, scene_main, s) != DT_OK);
    DT_ASSERT(dti_now_ns() - begin < (int64_t)QUICK_MS * 1000000);
}

/* All ranks but the culprit fail, with a message that has both parts. */
static void assert_told(const scene *s, const char *part, const char *other)
{
    for (int r = 0; r < N_RANKS; r++) {
        if (r == CULPRIT) continue;
        DT_ASSERT(s->seen[r] != DT_OK);
        if (strstr(s->message[r], part) == NULL || strstr(s->message[r], other) == NULL)
            dt_test_fail(__FILE__, __LINE__, "%s, rank %d: \"%s\" lacks \"%s\" or \"%s\"", s->wish,
                         r, s->message[r], part, other);
    }
}

static const char *const carriers[] = { "cuda_local", "cuda_local_spin", "nccl", "staged" };

/* For each operation, so that what others do is found out. */
static bool hosts_meet(const char *carrier)
{
    return strcmp(carrier, "nccl") != 0 && strcmp(carrier, "cuda_local_spin") != 0;
}

DT_TEST(comm_cuda_fault, a_device_that_breaks_ends_all_ranks)
{
    for (size_t i = 0; i < DT_COUNT(carriers); i++) {
        scene s = { .wish = carriers[i], .mistake = BREAK_DEVICE };
        run_scene(&s, "none");
        DT_ASSERT(s.seen[CULPRIT] == DT_ERR_DEVICE);
        if (strstr(s.message[CULPRIT], "device 1 fell off the bus") == NULL)
            dt_test_fail(__FILE__, __LINE__, "%s", s.message[CULPRIT]);
        assert_told(&s, "rank 1", "fell off the bus");
    }
}

/* The others hear of it from their hosts, while their streams wait for the culprit's. */
DT_TEST(comm_cuda_fault, a_rank_that_fails_elsewhere_frees_the_streams_of_all)
{
    for (size_t i = 0; i < DT_COUNT(carriers); i++) {
        scene s = { .wish = carriers[i], .mistake = FAIL_ELSEWHERE };
        run_scene(&s, "none");
        DT_ASSERT(s.seen[CULPRIT] == DT_ERR_IO);
        assert_told(&s, "cut short by rank 1", "a file is missing");
    }
}

DT_TEST(comm_cuda_fault, a_rank_that_left_is_named)
{
    for (size_t i = 0; i < DT_COUNT(carriers); i++) {
        scene s = { .wish = carriers[i], .mistake = LEAVE };
        run_scene(&s, "none");
        assert_told(&s, "all_reduce #", "rank 1");
        if (strcmp(carriers[i], "nccl") != 0) assert_told(&s, "has left", "rank 1");
    }
}

DT_TEST(comm_cuda_fault, a_rank_that_is_late_is_named)
{
    for (size_t i = 0; i < DT_COUNT(carriers); i++) {
        scene s = { .wish = carriers[i], .mistake = BE_LATE };
        run_scene(&s, "none");
        assert_told(&s, "all_reduce #", "rank 1");
    }
}

/* NCCL does not compare, and kernels that wait for each other compare with their like alone; with
 * agreement checks the hosts do before any is started. */
DT_TEST(comm_cuda_fault, ranks_that_do_different_things_are_told_so)
{
    static const mistake mistakes[] = { CALL_ANOTHER, PASS_ANOTHER_COUNT };

    for (size_t i = 0; i < DT_COUNT(carriers); i++)
        for (size_t k = 0; k < DT_COUNT(mistakes); k++) {
            scene s = { .wish = carriers[i], .mistake = mistakes[k] };
            run_scene(&s, hosts_meet(carriers[i]) ? "none" : "agree");
            assert_told(&s, "differs", "all_reduce of 1000 f32");
        }
}

DT_TEST(comm_cuda_fault, kernels_that_wait_for_each_other_find_other_counts)
{
    scene s = { .wish = "cuda_local_spin", .mistake = PASS_ANOTHER_COUNT };

    run_scene(&s, "none");
    assert_told(&s, "on the device of rank", "differs from that of rank");
}

/* The others are fine: this rank's host has stopped them, and may not go on as if it had not. */
static dt_status stop_own(dt_mesh *mesh, const dti_cuda_place *place)
{
    const int64_t n = N;
    void *there = NULL;
    dti_comm_call call;
    dti_comm *c;

    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    DT_EXPECT(place->module->alloc(place->cuda, N * sizeof(float), DTI_CUDA_DEVICE, &there) == 0,
              "no memory");
    (void)place->module->clear(place->cuda, there, N * sizeof(float));
    call = sum_of(place, there, &n);
    DT_TRY(dti_comm_run(c, &call));
    DT_TRY(dti_cuda_world_sync(c->cuda));
    dti_cuda_world_abort(c->cuda);
    DT_EXPECT_STATUS(dti_cuda_world_sync(c->cuda), DT_ERR_COMM, "were stopped after a failure");
    place->module->release(place->cuda, DTI_CUDA_DEVICE, there);
    return DT_OK;
}

DT_TEST(comm_cuda_fault, kernels_that_were_stopped_have_no_results)
{
    const comm_devices d = { queued_module(), "cuda_local_spin", QUEUED_DEVICES, stop_own };

    if (dt_test_processes() > 1) dt_test_skip("skipped: ranks are in several processes");
    dt_test_on_ranks("tp=2", comm_on_devices, &d);
}

DT_TEST(comm_cuda_fault, hosts_and_devices_do_not_add_up)
{
    scene s = { .wish = "cuda_local", .mistake = STAY_ON_HOST };

    run_scene(&s, "none");
    assert_told(&s, "differs", "on its device");
}

/* --- who carries ------------------------------------------------------------------------------ */

typedef struct choice {
    const dti_cuda_module *module;
    const char *wish;
    int first, step; /* rank r has device first + step r */
    dt_status want;
    const char *says;
} choice;

static dt_status choose_at(dt_mesh *mesh, const choice *k, dti_cuda_place place)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_status st;

    place.device = k->first + k->step * dt_runtime_rank(rt);
    DT_EXPECT(place.module->open(place.device, &place.cuda) == 0, "%s", place.module->why());
    st = dti_runtime_use_cuda(rt, &place, k->wish);
    if (k->want != DT_OK) {
        DT_EXPECT_STATUS(st, k->want, k->says);
        st = DT_OK;
    } else if (st == DT_OK) {
        const char *text = dti_cuda_world_text(dti_runtime_cuda(rt));
        DT_EXPECT(strstr(text, k->says) != NULL, "\"%s\" lacks \"%s\"", text, k->says);
        dti_runtime_leave_cuda(rt);
    }
    place.module->close(place.cuda);
    return st;
}

static dt_status choose(dt_mesh *mesh, const void *arg)
{
    const choice *k = arg;

    return choose_at(mesh, k, (dti_cuda_place){ .module = k->module });
}

DT_TEST(comm_cuda_fault, the_best_carrier_is_chosen_and_says_why)
{
    const dti_cuda_module *with = queued_module(), *without = queued_module_without_nccl();
    const choice choices[] = {
        { with, NULL, 0, 1, DT_OK, "nccl: 2 ranks on 2 GPUs" },
        { with, NULL, 0, 0, DT_OK, "cuda_local: 2 ranks on 1 GPU" },
        { without, NULL, 0, 1, DT_OK, "cuda_local: 2 ranks on 2 GPUs" },
        { without, "cuda_local_spin", 0, 1, DT_OK, "cuda_local_spin: 2 ranks on 2 GPUs" },
        { with, "cuda_local_spin", 0, 0, DT_OK, "cuda_local_spin: 2 ranks on 1 GPU" },
        { without, NULL, 0, 5, DT_OK, "not all GPUs can read each other's memory" },
        { with, "auto", 0, 5, DT_OK, "nccl: 2 ranks" },
        { with, "staged", 0, 1, DT_OK, "staged through memory of hosts" },
        { with, "nccl", 0, 0, DT_ERR_UNSUPPORTED, "ranks 0 and 1 share a GPU" },
        { without, "nccl", 0, 1, DT_ERR_UNSUPPORTED, "rank 0 has no NCCL" },
        { with, "cuda_local", 0, 5, DT_ERR_UNSUPPORTED, "cuda_local cannot join these ranks" },
        { with, "cuda_local_spin", 0, 5, DT_ERR_UNSUPPORTED, "cuda_local_spin cannot join" },
        { with, "pigeons", 0, 1, DT_ERR_ARG,
          "choose cuda_local, cuda_local_spin, nccl, staged or auto" },
    };

    for (size_t i = 0; i < DT_COUNT(choices); i++) dt_test_on_ranks("tp=2", choose, &choices[i]);
}

typedef struct setting {
    choice choice;
    bool loads_late;
    int n_queues;
} setting;

static dt_status choose_with(dt_mesh *mesh, const void *arg)
{
    const setting *s = arg;
    const dti_cuda_place place = { .module = s->choice.module,
                                   .loads_late = s->loads_late,
                                   .n_queues = s->n_queues };

    return choose_at(mesh, &s->choice, place);
}

DT_TEST(comm_cuda_fault, kernels_that_wait_have_to_be_loaded_and_side_by_side)
{
    const dti_cuda_module *m = queued_module();
    const char *const spin = "cuda_local_spin";
    const setting settings[] = {
        { { m, spin, 0, 1, DT_ERR_UNSUPPORTED, "set CUDA_MODULE_LOADING=EAGER" }, true, 0 },
        { { m, "cuda_local", 0, 0, DT_OK, "cuda_local: 2 ranks on 1 GPU" }, true, 1 },
        { { m, spin, 0, 0, DT_ERR_UNSUPPORTED, "set CUDA_DEVICE_MAX_CONNECTIONS=2" }, false, 1 },
        { { m, spin, 0, 1, DT_OK, "cuda_local_spin: 2 ranks on 2 GPUs" }, false, 1 },
        { { m, spin, 0, 0, DT_OK, "cuda_local_spin: 2 ranks on 1 GPU" }, false, 2 },
    };

    for (size_t i = 0; i < DT_COUNT(settings); i++)
        dt_test_on_ranks("tp=2", choose_with, &settings[i]);
}

static dt_status wish_apart(dt_mesh *mesh, const void *arg)
{
    choice k = *(const choice *)arg;

    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 1) k.wish = "staged";
    return choose(mesh, &k);
}

DT_TEST(comm_cuda_fault, ranks_with_different_wishes_are_refused)
{
    const choice k = { queued_module(), "cuda_local", 0, 1, DT_ERR_ARG, "\"staged\"" };

    dt_test_on_ranks("tp=2", wish_apart, &k);
}

static dt_status without_device(dt_mesh *mesh, const void *arg)
{
    const int64_t n = 1;
    float x = 0;
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    DT_EXPECT_STATUS(dti_comm_run(c, &(dti_comm_call){ .op = DTI_COMM_ALL_REDUCE,
                                                       .send = &x,
                                                       .recv = &x,
                                                       .counts = &n,
                                                       .stream = &x }),
                     DT_ERR_UNSUPPORTED, "the buffers lie on a device");
    return DT_OK;
}

DT_TEST(comm_cuda_fault, memory_of_devices_needs_one)
{
    dt_test_on_ranks("tp=2", without_device, NULL);
}
