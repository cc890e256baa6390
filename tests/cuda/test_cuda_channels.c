/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of channels whose tensors lie on GPUs: the same ones, through memory of the host. */
#include "tests/support/channels.h"
#include "tests/support/cuda.h"

/* From two ranks to one, boxes that have to be packed. */
static dt_status to_one(dt_mesh *world, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(world);
    const int64_t shape[] = { 5, 7 };
    DT_HELD(mesh) *from = NULL, *to = NULL;
    DT_HELD(channel) *channel = NULL;
    dt_parcel *parcel[2] = { NULL };

    (void)arg;
    DT_TRY(dt_mesh_create(rt, "tp=2", &from));
    DT_TRY(dt_mesh_create_ranks(rt, "tp=1", (int[]){ 1 }, &to));
    DT_TRY(dt_channel_create(from, to, "pp", &channel));
    for (int k = 0; k < 2 && dt_mesh_is_member(to); k++)
        DT_TRY(dt_channel_recv(channel, NULL, &parcel[k]));
    for (int k = 0; k < 2; k++) {
        DT_HELD(tensor) *x = NULL;
        DT_TRY(dt_test_message(from, "S(1)", DT_F32, 2, shape, k, &x));
        DT_TRY(dt_channel_send(channel, x, NULL));
    }
    for (int k = 1; k >= 0 && dt_mesh_is_member(to); k--) {
        DT_HELD(tensor) *y = NULL;
        DT_TRY(dt_parcel_wait(&parcel[k], &y));
        DT_TRY(dt_test_is_message(y, to, "S(1)", k));
    }
    return dt_channel_wait(channel);
}

DT_TEST(cuda_channels, stages_on_gpus_hand_each_other_what_they_have)
{
    (void)dt_test_cuda_runs();
    dt_test_on_gpus("pp=2,tp=2", dt_test_journeys,
                    &(dt_test_journey){ "RS(1)", DT_F32, 2, { 5, 7 } });
    dt_test_on_gpus("pp=3", dt_test_journeys, &(dt_test_journey){ "R", DT_BF16, 1, { 300 } });
    dt_test_on_gpus("tp=2", to_one, NULL);
}
