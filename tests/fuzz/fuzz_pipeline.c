/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing schedules of pipelines: any text is refused with a message, or is a schedule that runs to
 * its end, is drawn, and is the same when it is printed and read again. */
#include "tests/fuzz/fuzz.h"

#include <dtensor/pipeline.h>

enum { MOST_BYTES = 1 << 11, TEXT_BYTES = 1 << 13 };

static void run(dt_pipeline_schedule *s)
{
    dt_pipeline_timing *t = NULL;
    dt_pipeline_total total;
    double busy = 0.0;

    if (dt_pipeline_simulate(s, NULL, &t) != DT_OK) fuzz_stop("a schedule that does not run");
    total = dt_pipeline_timing_total(t);
    for (int rank = 0; rank < dt_pipeline_schedule_ranks(s); rank++)
        busy += dt_pipeline_timing_rank(t, rank)->busy;
    if (busy != 3.0 * dt_pipeline_schedule_stages(s) * dt_pipeline_schedule_microbatches(s) ||
        total.makespan < total.ideal || total.makespan > busy)
        fuzz_stop("not every action once");
    if (dt_pipeline_timing_draw(t, DT_DRAW_TEXT, NULL, 0) <= 0 ||
        dt_pipeline_timing_draw(t, DT_DRAW_SVG, NULL, 0) <= 0)
        fuzz_stop("no drawing");
    dt_pipeline_timing_release(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char name[] = "fuzz.csv";
    char text[TEXT_BYTES], again[TEXT_BYTES];
    dt_pipeline_schedule *s = NULL, *t = NULL;
    int n;

    if (size > MOST_BYTES) return 0;
    if (fuzz_failed(dt_pipeline_schedule_parse(name, (const char *)data, size, &s))) {
        if (s != NULL) fuzz_stop("a schedule in spite of an error");
        return 0;
    }
    run(s);
    n = dt_pipeline_schedule_print(s, text, sizeof text);
    if (dt_pipeline_schedule_parse(name, text, (size_t)n, &t) != DT_OK ||
        dt_pipeline_schedule_print(t, again, sizeof again) != n || strcmp(text, again) != 0)
        fuzz_stop("another schedule when it is read again");
    dt_pipeline_schedule_release(&t);
    dt_pipeline_schedule_release(&s);
    return 0;
}

#ifndef DT_LIBFUZZER

/* clang-format off */
static const fuzz_seed seeds[] = {
    { "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", 0 },
    { "0F0,0F1,0I0,0W0,0I1,0W1\r\n1F0,1I0,1F1,1I1,1W0,1W1\r\n", 0 },
    { "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3\n"
      "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3\n", 0 },
    { "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n,1RECV_F0,1F0,\"1B0\",1SEND_B0,1WAIT_SEND_B0\n", 0 },
};
static const char *const words[] = {
    ",", "\n", "\r\n", ";", "(", ")", "\"", " ", "0", "1", "2", "3", "99999999", "999999999", "F", "B", "I", "W", "0F0", "0B0", "1F0", "1B0",
    "0I1", "0W1", "0F1,", "0B1,", "2F0", "2B0", ",2F1", ",2B1", "\n2F0,2B0,2F1,2B1", ")OVERLAP_F_B", "(0F1;1B0)OVERLAP_F_B", "OVERLAP_F_B",
    "SEND_F", "RECV_B1", "UNSHARD", "REDUCE_GRAD", "WAIT_SEND_F2", "BW", "-1", "+1", "\xff", "\x1b[1m", "\xef\xbb\xbf",
};
static const fuzz_table table = { "fuzz_pipeline", 20000, MOST_BYTES, seeds, DT_COUNT(seeds), words, DT_COUNT(words), NULL };
/* clang-format on */

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
