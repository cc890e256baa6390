/* SPDX-License-Identifier: Apache-2.0
 *
 * Documents: where they begin in samples, and packed in an order drawn for each epoch. */
#include <dtensor/training_data.h>
#include <string.h>

#include "tests/training/token_files.h"
#include "training/data/permute.h"

enum { END = 7, T = 16 };

/* Documents of 1 to 9 tokens: 1000 d + 10 + j, the last of each END. nanoGPT or Megatron. */
static const char *write_documents(tokens_folder *f, const char *name, int n, bool index,
                                   int64_t *n_tokens)
{
    unsigned char *tokens = calloc((size_t)n * 9, 2), *to = calloc(1, 34 + 20 * (size_t)n + 8);
    size_t at = 0, k = 34 + 4 * (size_t)n, begin = 0;
    char beside[64];
    const char *path;

    memcpy(to, "MMIDIDX\0\0", 9);
    (void)tokens_put(to, 9, 1, 8);
    (void)tokens_put(to, 17, 8, 1);
    (void)tokens_put(to, 18, n, 8);
    (void)tokens_put(to, 26, n + 1, 8);
    for (int d = 0; d < n; d++) {
        const int length = 1 + d * 5 % 9;
        for (int j = 0; j < length; j++)
            at = tokens_put(tokens, at, j + 1 < length ? 10 * (d % 6000) + 10 + j : END, 2);
        (void)tokens_put(to, 34 + 4 * (size_t)d, length, 4);
        k = tokens_put(to, k, (int64_t)begin, 8);
        begin = at;
    }
    for (int d = 0; d <= n; d++) k = tokens_put(to, k, d, 8);
    path = tokens_write(f, name, tokens, at);
    (void)snprintf(beside, sizeof beside, "%.*s.idx", (int)strlen(name) - 4, name);
    if (index) (void)tokens_write(f, beside, to, k);
    *n_tokens = (int64_t)at / 2;
    free(tokens);
    free(to);
    return path;
}

static dt_data *open_documents(const char *path, dt_data_order order)
{
    const dt_data_source source = { path, 0.0 };
    dt_data_options o = DT_DATA_OPTIONS_INIT;
    dt_data *d = NULL;

    o.sequence = T;
    o.order = order;
    o.documents = true;
    o.end_token = END;
    DT_ASSERT_OK(dt_data_open(&source, 1, &o, &d));
    return d;
}

/* A document begins where the token before it ended one; starts and targets say so. */
static void expect_row(const int32_t *ids, const int32_t *targets, const int32_t *starts)
{
    int32_t start = 0;

    for (int32_t j = 0; j < T; j++) {
        if (j > 0 && ids[j - 1] == END) start = j;
        DT_ASSERT_EQ_INT(starts[j], start);
        if (ids[j] == END) DT_ASSERT_EQ_INT(targets[j], -100);
        if (ids[j] != END && j + 1 < T) DT_ASSERT_EQ_INT(targets[j], ids[j + 1]);
        if (ids[j] != END) DT_ASSERT(targets[j] == END || targets[j] == ids[j] + 1);
    }
}

DT_TEST(packing, samples_say_where_documents_begin)
{
    static const dt_data_order orders[] = { DT_ORDER_STORED, DT_ORDER_SHUFFLED, DT_ORDER_PACKED };
    tokens_folder f;
    int64_t n;
    dt_batch b;

    tokens_begin(&f);
    for (int index = 0; index < 2; index++) {
        const char *path = write_documents(&f, index ? "a.bin" : "b.bin", 300, index, &n);
        for (size_t k = 0; k < DT_COUNT(orders); k++) {
            dt_data *d = open_documents(path, orders[k]);
            const int64_t epoch = dt_data_samples_per_epoch(d);
            DT_ASSERT_EQ_INT(epoch, (n - 1) / T);
            for (int64_t i = 0; i < 2 * epoch; i++) {
                int64_t valid = 0;
                DT_ASSERT_OK(dt_data_rows(d, i, 1, &b));
                expect_row(b.ids, b.targets, b.starts);
                for (int j = 0; j < T; j++) valid += b.targets[j] != -100;
                DT_ASSERT_EQ_INT(valid, b.n_valid);
            }
            dt_data_release(&d);
        }
    }
}

/* Every document once in an epoch and in one piece, but for what the end of the epoch cuts off; in
 * another order in the next; more than one block of 1024 of them. */
DT_TEST(packing, an_epoch_has_each_document_once)
{
    enum { N = 5000 };
    static int seen[2][N];
    static int32_t before[4 * N];
    tokens_folder f;
    int64_t n, epoch;
    int changed = 0;
    DT_HELD(data) *d = NULL;
    dt_batch b;

    tokens_begin(&f);
    d = open_documents(write_documents(&f, "a.bin", N, true, &n), DT_ORDER_PACKED);
    epoch = dt_data_samples_per_epoch(d);
    for (int e = 0; e < 2; e++) {
        DT_ASSERT_OK(dt_data_rows(d, e * epoch, epoch, &b));
        for (int64_t i = 0; i < epoch * T; i++) {
            if (b.ids[i] != END && b.ids[i] % 10 == 0) seen[e][b.ids[i] / 10 - 1]++;
            if (e == 1 && i < 4 * N) changed += before[i] != b.ids[i];
            if (e == 0 && i < 4 * N) before[i] = b.ids[i];
        }
        for (int i = 0; i < N; i++) {
            if (i * 5 % 9 == 0) continue; /* a document of its end alone */
            DT_ASSERT(seen[e][i] <= 1);
            changed += 10 * (seen[e][i] == 0); /* at the end, at most a window's */
        }
    }
    DT_ASSERT(changed > 3 * N);
    for (int e = 0; e < 2; e++) {
        int missing = 0;
        for (int i = 0; i < N; i++) missing += i * 5 % 9 != 0 && seen[e][i] == 0;
        DT_ASSERT(missing <= T);
    }
}

/* Files together, or each with a weight; masked tokens are masked wherever a sample has them. */
DT_TEST(packing, of_several_files_keeps_masks_and_weights)
{
    unsigned char mask[24 + 16] = "DTMASK1";
    dt_data_options o = DT_DATA_OPTIONS_INIT;
    dt_data_source two[2];
    tokens_folder f;
    int64_t n[2];
    dt_batch b;

    tokens_begin(&f);
    two[0] = (dt_data_source){ write_documents(&f, "a.bin", 90, true, &n[0]), 0.0 };
    (void)tokens_put(mask, 8, n[0], 8);
    (void)tokens_put(mask, 16, 1, 8);
    (void)tokens_put(mask, 32, n[0], 8); /* all of it */
    (void)tokens_write(&f, "a.bin.mask", mask, sizeof mask);
    two[1] = (dt_data_source){ tokens_megatron(&f, "b.bin", 4000, 8, 5), 0.0 };
    n[1] = 4000;
    o.sequence = T;
    o.order = DT_ORDER_PACKED;
    for (int weighted = 0; weighted < 2; weighted++) {
        int64_t masked = 0, epoch, all;
        dt_data *d = NULL;
        if (weighted) two[0].weight = 1.0;
        if (weighted) two[1].weight = 3.0;
        DT_ASSERT_OK(dt_data_open(two, 2, &o, &d));
        epoch = dt_data_samples_per_epoch(d);
        all = weighted ? 65536 : epoch;
        DT_ASSERT_EQ_INT(epoch, weighted ? (n[0] - 1) / T + (n[1] - 1) / T : (n[0] + n[1] - 1) / T);
        for (int64_t first = 0; first < all; first += 256) {
            const int64_t rows = all - first < 256 ? all - first : 256;
            DT_ASSERT_OK(dt_data_rows(d, first, rows, &b));
            masked += rows * T - b.n_valid;
        }
        if (weighted)
            DT_ASSERT_EQ_INT(masked, 65536 / 4 * T); /* a source's windows are its own */
        else
            DT_ASSERT(masked <= n[0] && masked >= n[0] - T);
        dt_data_release(&d);
    }
}

DT_TEST(permute, is_a_bijection_of_every_size)
{
    static const int64_t sizes[] = { 1, 2, 3, 4, 5, 16, 17, 1000, 1024, 1025, 4097, 65537 };
    static unsigned char seen[65537];
    int64_t same = 0;

    for (size_t k = 0; k < DT_COUNT(sizes); k++)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < sizes[k]; i++) {
                const int64_t to = dti_permute(i, sizes[k], &(dti_permute_key){ 42, epoch, 0 });
                DT_ASSERT(to >= 0 && to < sizes[k] && !seen[to]);
                seen[to] = 1;
                if (sizes[k] == 65537)
                    same += to == dti_permute(i, sizes[k], &(dti_permute_key){ 42, epoch + 1, 0 });
            }
        }
    DT_ASSERT(same < 20);                /* of two epochs about one in 65537 each agrees */
    for (int64_t i = 0; i < 1000; i++) { /* of sizes that no loop goes through */
        const int64_t n = (INT64_C(1) << 62) - 12345 * i;
        const int64_t to = dti_permute(n - 1 - i, n, &(dti_permute_key){ 1, UINT64_MAX, 1 });
        DT_ASSERT(to >= 0 && to < n);
    }
}
