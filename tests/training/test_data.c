/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of tokens as samples: which tokens, in which order. */
#include <dtensor/training_data.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/training/token_files.h"

static dt_data_options options_of(int64_t sequence, dt_data_order order)
{
    dt_data_options o = DT_DATA_OPTIONS_INIT;

    o.sequence = sequence;
    o.order = order;
    return o;
}

/* Window i is tokens i T to i T + T, targets one further; the last targets come from the token
 * behind the window; what is left over is dropped; the next epoch is the same again. */
static void expect_windows(const char *path, int64_t n, int64_t sequence)
{
    const dt_data_source source = { path, 0.0 };
    const dt_data_options o = options_of(sequence, DT_ORDER_STORED);
    const int64_t epoch = (n - 1) / sequence;
    DT_HELD(data) *d = NULL;
    dt_batch b;

    DT_ASSERT_OK(dt_data_open(&source, 1, &o, &d));
    DT_ASSERT_EQ_INT(dt_data_samples_per_epoch(d), epoch);
    DT_ASSERT_EQ_INT(dt_data_look(d).tokens, n);
    DT_ASSERT_EQ_INT(dt_data_look(d).left_over, n - 1 - epoch * sequence);
    for (int64_t first = 0; first < 2 * epoch; first += 3) {
        DT_ASSERT_OK(dt_data_rows(d, first, 3, &b));
        DT_ASSERT_EQ_INT(b.rows, 3);
        DT_ASSERT_EQ_INT(b.n_valid, 3 * sequence);
        DT_ASSERT(b.starts == NULL);
        for (int64_t r = 0; r < 3; r++)
            for (int64_t j = 0; j < sequence; j++) {
                const int64_t at = (first + r) % epoch * sequence + j;
                DT_ASSERT_EQ_INT(b.ids[r * sequence + j], tokens_at(at));
                DT_ASSERT_EQ_INT(b.targets[r * sequence + j], tokens_at(at + 1));
            }
    }
}

DT_TEST(data, stored_order_is_window_after_window_in_every_format)
{
    tokens_folder f;

    tokens_begin(&f);
    for (int64_t n = 21; n < 32; n++) {
        expect_windows(tokens_nanogpt(&f, "a.bin", n), n, 5);
        expect_windows(tokens_llmc(&f, "b.bin", n, false), n, 5);
        expect_windows(tokens_llmc(&f, "c.bin", n, true), n, 5);
        for (int type = 1; type <= 8; type++)
            if (type != 6 && type != 7 && type != 1 && type != 2)
                expect_windows(tokens_megatron(&f, "d.bin", n, type, 4), n, 5);
    }
}

/* By either name of the pair, or without an ending. */
DT_TEST(data, megatron_files_are_found_by_each_of_their_names)
{
    char path[DT_TEST_PATH_BYTES + 16];
    tokens_folder f;

    tokens_begin(&f);
    (void)tokens_megatron(&f, "pair.bin", 30, 8, 4);
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/pair%s", f.path,
                       i == 0   ? ""
                       : i == 1 ? ".bin"
                                : ".idx");
        expect_windows(path, 30, 5);
    }
}

/* Every window once in an epoch, in another order in each, by the seed. */
static uint64_t hash_of(const char *first, const char *second)
{
    const dt_data_source sources[] = { { first, 0.0 }, { second, 0.0 } };
    const dt_data_options o = options_of(5, DT_ORDER_STORED);
    dt_data *d = NULL;
    uint64_t hash;

    DT_ASSERT_OK(dt_data_open(sources, second != NULL ? 2 : 1, &o, &d));
    hash = dt_data_look(d).hash;
    dt_data_release(&d);
    return hash;
}

DT_TEST(data, a_hash_says_whose_files_they_are_wherever_they_lie)
{
    enum { FEW = 16384, MANY = 1 << 18 };
    static uint16_t tokens[MANY];
    const char *a, *b, *c;
    tokens_folder f;

    tokens_begin(&f);
    for (int i = 0; i < MANY; i++) tokens[i] = (uint16_t)((int64_t)i * i % 1000);
    a = tokens_write(&f, "a.bin", tokens, FEW * sizeof *tokens);
    b = tokens_write(&f, "b.bin", tokens, FEW * sizeof *tokens);
    DT_ASSERT(hash_of(a, NULL) == hash_of(b, NULL));
    c = tokens_write(&f, "c.bin", tokens, MANY * sizeof *tokens);
    DT_ASSERT(hash_of(a, c) != hash_of(c, a) && hash_of(a, c) == hash_of(b, c));
    for (int i = 0; i < FEW; i += 613) { /* any of few */
        tokens[i]++;
        b = tokens_write(&f, "b.bin", tokens, FEW * sizeof *tokens);
        DT_ASSERT(hash_of(a, NULL) != hash_of(b, NULL));
        tokens[i]--;
    }
    for (int i = 0; i < MANY; i++) tokens[i] = (uint16_t)(((int64_t)i * i + i / 2000) % 1000);
    b = tokens_write(&f, "b.bin", tokens, MANY * sizeof *tokens);
    DT_ASSERT(hash_of(b, NULL) != hash_of(c, NULL));
}

DT_TEST(data, a_shuffled_epoch_has_each_window_once)
{
    enum { N = 1000, T = 4, EPOCH = (N - 1) / T };
    dt_data_options o = options_of(T, DT_ORDER_SHUFFLED);
    int moved[3] = { 0 }, seen[EPOCH];
    int32_t first[EPOCH];
    dt_data *d = NULL;
    tokens_folder f;
    dt_batch b;

    tokens_begin(&f);
    const dt_data_source source = { tokens_nanogpt(&f, "a.bin", N), 0.0 };
    for (int run = 0; run < 2; run++) {
        o.seed = (uint64_t)run;
        DT_ASSERT_OK(dt_data_open(&source, 1, &o, &d));
        for (int epoch = 0; epoch < 2; epoch++) {
            memset(seen, 0, sizeof seen);
            DT_ASSERT_OK(dt_data_rows(d, epoch * EPOCH, EPOCH, &b));
            for (int i = 0; i < EPOCH; i++) {
                const int32_t window = tokens_number(b.ids[i * T]) / T;
                DT_ASSERT_EQ_INT(b.targets[i * T + T - 1], tokens_at(window * T + T));
                seen[window]++;
                moved[run] += window != i;
                if (run == 0 && epoch == 0) first[i] = window;
                moved[2] += window != first[i];
            }
            for (int i = 0; i < EPOCH; i++) DT_ASSERT_EQ_INT(seen[i], 1);
        }
        dt_data_release(&d);
    }
    DT_ASSERT(moved[0] > 2 * EPOCH - 20 && moved[1] > 2 * EPOCH - 20);
    DT_ASSERT(moved[2] > 3 * EPOCH - 30); /* of four epochs three differ from the first */
}

/* A sample depends on its number alone, not on what was asked for before. */
DT_TEST(data, a_sample_is_the_same_however_it_is_asked_for)
{
    enum { N = 500, T = 7, MANY = 150 };
    static const dt_data_order orders[] = { DT_ORDER_STORED, DT_ORDER_SHUFFLED, DT_ORDER_PACKED };
    static int32_t ids[MANY * T], targets[MANY * T];
    tokens_folder f;
    dt_batch b;

    tokens_begin(&f);
    const dt_data_source source = { tokens_megatron(&f, "a.bin", N, 4, 9), 0.0 };
    for (size_t k = 0; k < DT_COUNT(orders); k++) {
        dt_data_options o = options_of(T, orders[k]);
        dt_data *d = NULL;
        o.documents = true;
        DT_ASSERT_OK(dt_data_open(&source, 1, &o, &d));
        DT_ASSERT_OK(dt_data_rows(d, 0, MANY, &b));
        memcpy(ids, b.ids, sizeof ids);
        memcpy(targets, b.targets, sizeof targets);
        for (int i = 0; i < MANY; i++) {
            const int at = i * 37 % MANY;
            DT_ASSERT_OK(dt_data_rows(d, at, 1, &b));
            DT_ASSERT(memcmp(b.ids, ids + at * T, sizeof *ids * T) == 0);
            DT_ASSERT(memcmp(b.targets, targets + at * T, sizeof *ids * T) == 0);
        }
        dt_data_release(&d);
    }
}

/* Three sources of weights 1, 2 and 7: exact in 65536 samples, within six samples at any time, and
 * each source goes through its windows before one comes again. */
DT_TEST(data, sources_with_weights_have_exact_shares)
{
    enum { T = 3, BLOCK = 1 << 16, STEP = 512 };
    const int64_t n[] = { 100, 3000, 700 };
    const double weights[] = { 1.0, 2.0, 7.0 };
    dt_data_options o = options_of(T, DT_ORDER_SHUFFLED);
    int64_t count[3] = { 0 };
    int *seen[3];
    dt_data_source sources[3];
    DT_HELD(data) *d = NULL;
    tokens_folder f;
    dt_batch b;

    tokens_begin(&f);
    for (int i = 0; i < 3; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d.bin", i);
        sources[i] = (dt_data_source){ tokens_plain(&f, name, 10000 * i, n[i]), weights[i] };
        seen[i] = calloc((size_t)n[i], sizeof *seen[i]);
    }
    DT_ASSERT_OK(dt_data_open(sources, 3, &o, &d));
    for (int64_t first = 0; first < 2 * BLOCK; first += STEP) {
        DT_ASSERT_OK(dt_data_rows(d, first, STEP, &b));
        for (int64_t r = 0; r < STEP; r++) {
            const int s = b.ids[r * T] / 10000;
            const int64_t window = b.ids[r * T] % 10000 / T, epoch = (n[s] - 1) / T;
            DT_ASSERT_EQ_INT(b.ids[r * T] % 10000 % T, 0);
            seen[s][window]++;
            count[s]++;
            DT_ASSERT(fabs((double)count[s] - weights[s] / 10.0 * (double)(first + r + 1)) < 6.0);
            if (count[s] % epoch == 0 && first < BLOCK / 8)
                for (int64_t w = 0; w < epoch; w++) DT_ASSERT(seen[s][w] == count[s] / epoch);
        }
        if (first + STEP == BLOCK) DT_ASSERT_EQ_INT(count[0], 6554); /* 6553.6, largest rest */
    }
    DT_ASSERT_EQ_INT(count[1], 2 * 13107);
    for (int i = 0; i < 3; i++) free(seen[i]);
}
