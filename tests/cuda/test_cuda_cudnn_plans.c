/* SPDX-License-Identifier: Apache-2.0
 *
 * cuDNN itself, asked for plans for an H200 where there is none: it looks at the graph, compiles
 * kernels for sm_90, and fails only when it hands the first of them to the driver, for which the
 * toolkit's stub stands in. A graph that it does not take fails before, with another word. */
#include "tests/support/dt_test.h"

#ifdef DT_TEST_CUDNN_DIR

#include <dlfcn.h>
#include <string.h>

#include "dtensor/kernels/cuda/attention_graph.h"

static const char h200[] =
    "{\"deviceVer\": 900, \"driverVer\": 13000, \"cudaDeviceId\": 0, \"deviceName\": \"H200\","
    " \"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64],"
    " \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"warpSize\": 32,"
    " \"multiProcessorCount\": 132, \"maxCtasPerSM\": 32, \"regsPerBlock\": 65536,"
    " \"maxRegistersPerSM\": 65536, \"maxSharedMemoryPerBlock\": 49152,"
    " \"maxSharedMemoryPerBlockOptin\": 232448, \"reservedSharedMemoryPerBlock\": 1024,"
    " \"l2CacheSize\": 62914560, \"smClockRateKHz\": 1980000, \"memClockRateKHz\": 3201000,"
    " \"totalGlobalMem\": 150000000000, \"pciDeviceId\": 0, \"isTccDriver\": 0, "
    "\"supportCoopLaunch\": 1}";

/* Both libraries by their places, so that the names under which they are asked for are taken. */
static void load(dti_cudnn_calls *d)
{
    char why[DTI_CUDNN_TEXT_BYTES];

    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != NULL)
        dt_test_skip("skipped: there is a driver, which would refuse kernels of another device");
    if (dlopen(DT_TEST_CUDNN_DIR "/stubs/libcuda.so", RTLD_NOW | RTLD_GLOBAL) == NULL)
        dt_test_skip("skipped: no stub of the driver: %s", dlerror());
    (void)dlopen(DT_TEST_CUDNN_DIR "/libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (dti_cudnn_load(d, why) != 0) dt_test_skip("skipped: no cuDNN: %s", why);
}

typedef struct plan_row {
    int64_t rows, keys;
    int32_t heads, kv, width;
    int64_t window;
    int is_bf16;
} plan_row;

/* clang-format off */
static const plan_row wanted[] = {
/*    rows  keys    heads kv width window bf16 */
    { 2048, 4096,   32, 8, 128,    0,     1 }, /* Llama 3 8B */
    { 512,  1537,   32, 8, 64,     0,     0 }, /* a cache of any size */
    { 1024, 1024,   4,  1, 256,    0,     1 }, /* Gemma 3 1B */
    { 1024, 2048,   4,  1, 256,    512,   0 }, /* the same, with its window */
    { 512,  2048,   20, 20, 128,   256,   1 }, /* GPT-Neo 2.7B */
};
/* clang-format on */

static int make(const dti_cudnn_calls *d, const plan_row *row, dti_attention_graph *out,
                char why[DTI_CUDNN_TEXT_BYTES])
{
    dti_attention_key key;

    memset(&key, 0, sizeof key);
    key.n_rows = row->rows;
    key.n_keys = row->keys;
    key.n_heads = row->heads;
    key.n_kv = row->kv;
    key.width = row->width;
    key.window = row->window;
    key.is_bf16 = row->is_bf16;
    key.q_stride = (int64_t)row->heads * row->width;
    key.k_stride = (int64_t)row->kv * row->width;
    return dti_attention_graph_make(d, &key, 0, h200, out, why);
}

DT_TEST(cuda_cudnn_plans, graphs_are_compiled_for_an_h200)
{
    dti_cudnn_calls d;

    load(&d);
    for (size_t i = 0; i < DT_COUNT(wanted); i++) {
        char why[DTI_CUDNN_TEXT_BYTES] = "";
        dti_attention_graph graph;
        DT_ASSERT(make(&d, &wanted[i], &graph, why) != 0);
        DT_ASSERT_EQ_STR(why, "making a plan: CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER");
        DT_ASSERT_EQ_INT(graph.n_nodes, wanted[i].window > 0 ? 29 : 22);
        DT_ASSERT(graph.n_configs >= 1 && graph.plan == NULL);
    }
}

DT_TEST(cuda_cudnn_plans, what_it_cannot_do_is_refused_before)
{
    static const plan_row refused[] = {
        { 512, 1024, 8, 2, 132, 0, 1 }, /* rows of a head that are not whole pieces */
        { 512, 1024, 9, 2, 128, 0, 1 }, /* groups that are not whole */
    };
    dti_cudnn_calls d;

    load(&d);
    for (size_t i = 0; i < DT_COUNT(refused); i++) {
        char why[DTI_CUDNN_TEXT_BYTES] = "";
        dti_attention_graph graph;
        DT_ASSERT(make(&d, &refused[i], &graph, why) != 0);
        DT_ASSERT(why[0] != '\0' && strstr(why, "EXECUTION_FAILED") == NULL);
        DT_ASSERT_EQ_INT(graph.n_configs, 0);
    }
}

#else

DT_TEST(cuda_cudnn_plans, graphs_are_compiled_for_an_h200)
{
    dt_test_skip("skipped: built without the headers of cuDNN, or with a sanitizer");
}

#endif
