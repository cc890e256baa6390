/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing schedules of passes: in any order of submitting, cancelling and steps each text reads
 * what it is made of and ends, no block stays taken, and a log replays or is refused.
 *
 * Bytes are commands: four of them options, then 's' with four bytes (a text), 'c' with one
 * (cancel), '.' (a step), '!' (steps until all has ended). */
#include "tests/fuzz/fuzz.h"

#include "base/numbers.h"
#include "tests/support/schedule_world.h"

enum { MOST_BYTES = 1 << 9, N_OPTIONS = 4 };

static dti_schedule_options options_of(const uint8_t *b)
{
    const dti_schedule_options o = { .n_replicas = 1 + b[0] % 2,
                                     .n_blocks = 1 + b[1] % 40,
                                     .block = 1 + b[2] % 8,
                                     .max_running = 1 + b[3] % 8,
                                     .max_rows = 8 + b[0] % 32,
                                     .max_waiting = 12,
                                     .window = b[1] % 4 == 0 ? 1 + b[2] % 24 : 0,
                                     .wanted_ns = b[3] % 3 * 40,
                                     .finds = b[0] % 3 > 0,
                                     .reserves = b[2] % 5 == 0 };

    return o;
}

static dt_world_request text_of(const uint8_t *b)
{
    dt_world_request r = { .n_prompt = 1 + b[0] % 64,
                           .family = b[1] % 2,
                           .n_texts = 1 + b[2] % 9 / 6 * (b[2] % 4),
                           .max_new = 1 + b[3] % 48,
                           .priority = b[2] % 3 == 0,
                           .salt = b[1] % 5 == 0 };

    r.common = b[1] / 2 % (r.n_prompt + 1);
    return r;
}

static void must(dt_status st, const char *what)
{
    if (st != DT_OK) fuzz_stop(what);
}

static void submit(dt_world *w, const uint8_t *b)
{
    const dt_world_request r = text_of(b);
    dt_status st;

    if (w->n_requests == DT_WORLD_REQUESTS) return;
    st = dt_world_submit(w, &r);
    if (st != DT_OK && st != DT_ERR_ARG && st != DT_ERR_MEMORY) fuzz_stop("submit");
}

static void run(dt_world *w, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const dti_pass_cost cost = { data[i] % 50, data[i] % 3 };
        int64_t rows;
        switch (data[i]) {
        case 's':
            if (i + 4 < size) submit(w, data + i + 1);
            i += 4;
            break;
        case 'c':
            if (i + 1 < size && data[i + 1] < w->n_requests)
                must(dt_world_cancel(w, data[i + 1]), "cancel");
            i++;
            break;
        case '!':
            must(dt_world_drain(w), "drain");
            break;
        default:
            must(dt_world_step(w, &cost, &rows), "step");
        }
    }
    must(dt_world_drain(w), "the last drain");
}

/* What a log says with a word of it changed is done, or refused. */
static void change_log(dt_world *w, uint8_t a, uint8_t b)
{
    int64_t *word = &w->log[(size_t)(a * 8 + b) % (size_t)w->n_log];

    if (word - w->log < 2 + (int64_t)(sizeof w->o / sizeof *word))
        return; /* sizes of what is made */
    *word ^= (int64_t)1 << b % 63;
    if (dti_schedule_replay(w->log, w->n_log) == DT_OK) return;
    if (dt_last_error()->message[0] == '\0') fuzz_stop("an error without a message");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dti_schedule_options o;
    dt_world *w;

    if (size < N_OPTIONS || size > MOST_BYTES) return 0;
    o = options_of(data);
    must(dt_world_open(&o, &w), "open");
    run(w, data + N_OPTIONS, size - N_OPTIONS);
    change_log(w, data[size - 1], data[size / 2]);
    dt_world_close(&w);
    return 0;
}

#ifndef DT_LIBFUZZER

/* clang-format off */
static const fuzz_seed seeds[] = {
    { "aaaa" "s\x20\x10\x01\x08..s\x20\x14\x01\x08.....", 0 },
    { "zt2h" "s\x3f\x04\x07\x2fs\x3f\x04\x07\x2fs\x10\x30\x0b\x2f......c\x01.....", 0 },
    { "bxcc" "s\x01\x01\x01\x30s\x30\x01\x02\x20!s\x30\x01\x02\x20.c\x02!", 0 },
    { "dhew" "s\x38\x02\x04\x2es\x38\x02\x05\x2es\x38\x02\x06\x2e.......", 0 },
};
static const char *const words[] = {
    "s", "c", ".", "..", "......", "!", "c\x01", "c\x02", "s\x10\x10\x10\x10", "s\x3f\x7e\x07\x2f", "s\x01\x01\x01\x01", "s\x3f\x3f\x0b\x01",
    "\x01", "\x02", "\x7f", "\xff", "a", "z",
};
static const fuzz_table table = { "fuzz_schedule", 4000, MOST_BYTES, seeds, DT_COUNT(seeds), words, DT_COUNT(words), NULL };
/* clang-format on */

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
