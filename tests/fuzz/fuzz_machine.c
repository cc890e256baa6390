/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing machines: any text is refused with a message, or is a machine that is the same when it is
 * written and read again. */
#include "tests/fuzz/fuzz.h"

#include <dtensor/planner.h>

enum { MOST_BYTES = 1 << 12, TEXT_BYTES = 1 << 14 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TEXT_BYTES];
    dt_machine m, again;
    int n;

    if (size > MOST_BYTES) return 0;
    if (fuzz_failed(dt_machine_parse("fuzz.json", (const char *)data, size, &m))) {
        if (m.nodes != 0) fuzz_stop("a machine in spite of an error");
        return 0;
    }
    n = dt_machine_print(&m, text, sizeof text);
    if (dt_machine_parse("fuzz.json", text, (size_t)n, &again) != DT_OK ||
        memcmp(&m, &again, sizeof m) != 0)
        fuzz_stop("another machine when it is read again");
    return 0;
}

#ifndef DT_LIBFUZZER

/* clang-format off */
#define FIGURES "\"device_bytes\":1e9,\"memory_bandwidth\":1e10,\"flops_f32\":1e11,\"efficiency\":0.5"
#define MEASURED "\"devices_per_node\":1,\"cores\":2,\"threads\":2,\"processor\":\"x\",\"version\":\"1\",\"date\":\"d\",\"call_seconds\":1e-6,\"overlap_cost\":0.5,"
static const fuzz_seed seeds[] = {
    { "{\"devices_per_node\":1," FIGURES "}", 0 },
    { "{\"name\":\"two\",\"gpus\":true,\"nodes\":1,\"devices_per_node\":2,\"inside_latency\":1e-6,\"inside_bandwidth\":{\"value\":1e9,\"source\":\"a page\"}," FIGURES "}", 0 },
    { "{\"nodes\":4,\"devices_per_node\":1,\"between_latency\":1e-5,\"between_bandwidth\":1e9,\"host_bytes\":1,\"disk_bytes\":0," FIGURES "}", 0 },
    { "{" MEASURED "\"kernels\":[{\"kernel\":\"add\",\"dtype\":\"f32\",\"flops\":1,\"bytes\":2,\"seconds\":3}],"
      "\"links\":[{\"collective\":\"send\",\"ranks\":2,\"between\":true,\"latency\":0,\"bandwidth\":1}]," FIGURES "}", 0 },
};
static const char *const words[] = {
    "{", "}", "[", "]", ",", ":", "\"", "null", "true", "1", "0", "-1", "1e9", "1e999", "9007199254740993", "\"value\":", "\"source\":",
    "\"nodes\":", "\"devices_per_node\":", "\"gpus\":", "\"name\":", "\"flops_bf16\":", "\"host_bandwidth\":1,",
    "\"cores\":", "\"kernel\":", "\"seconds\":", "\"bf16\"", "\"links\":[", "\\u0000", "\\u001b", "\xff",
};
static const fuzz_table table = { "fuzz_machine", 20000, MOST_BYTES, seeds, DT_COUNT(seeds), words, DT_COUNT(words), NULL };
/* clang-format on */

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
