/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing what says how tokens lie: an index of Megatron, a header of llm.c, a mask, a side file.
 * Bytes are refused with a message, or every sample can be read. The first says which of them. */
#include "tests/fuzz/fuzz.h"

#include <dtensor/training_data.h>

enum { MOST_BYTES = 1200, TOKENS = 30 };

static const dt_data_order orders[] = { DT_ORDER_STORED, DT_ORDER_SHUFFLED, DT_ORDER_PACKED };

/* All samples of two epochs: tokens of the vocabulary, documents that begin where they may. */
static void read_all(dt_data *d)
{
    const int64_t n = dt_data_samples_per_epoch(d);
    dt_batch b;

    if (n < 1 || n > MOST_BYTES) fuzz_stop("samples of an epoch");
    if (fuzz_failed(dt_data_rows(d, 0, 2 * n, &b))) return;
    for (int64_t i = 0; i < b.rows * b.tokens; i++) {
        if (b.ids[i] < 0 || b.targets[i] < -100) fuzz_stop("a token that is none");
        if (b.starts != NULL && (b.starts[i] < 0 || b.starts[i] > i % b.tokens))
            fuzz_stop("a document that begins behind its token");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = { "a.idx", "a.bin", "a.bin.mask", "a.bin.json" };
    uint16_t tokens[TOKENS];
    char folder[64], path[DT_COUNT(names)][128];
    const size_t which = size > 0 ? data[0] % DT_COUNT(names) : 0;

    if (size > MOST_BYTES) return 0;
    for (int i = 0; i < TOKENS; i++) tokens[i] = (uint16_t)i;
    (void)fuzz_folder(folder);
    for (size_t i = 0; i < DT_COUNT(names); i++)
        (void)snprintf(path[i], sizeof path[i], "%s/%s", folder, names[i]);
    fuzz_write(path[1], tokens, sizeof tokens);
    fuzz_write(path[which], data + (size > 0), size - (size > 0));
    for (size_t k = 0; k < DT_COUNT(orders); k++) {
        const dt_data_source source = { path[1], 0.0 };
        dt_data_options o = DT_DATA_OPTIONS_INIT;
        dt_data *d = NULL;
        o.sequence = 3;
        o.order = orders[k];
        o.documents = true;
        o.end_token = 9;
        if (!fuzz_failed(dt_data_open(&source, 1, &o, &d)))
            read_all(d);
        else if (d != NULL)
            fuzz_stop("data in spite of an error");
        dt_data_release(&d);
    }
    for (size_t i = 0; i < DT_COUNT(names); i++) (void)unlink(path[i]);
    (void)rmdir(folder);
    return 0;
}

#ifndef DT_LIBFUZZER

/* 30 tokens of u16 in documents of 20 and 10 tokens; a header of llm.c of 4 tokens; two runs. */
static const char index_seed[] =
    "\0MMIDIDX\0\0\1\0\0\0\0\0\0\0\10\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\24\0\0\0\12\0\0\0\0\0\0\0\0\0"
    "\0"
    "\0\50\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0";
static const char llmc_seed[1 + 1024 + 8] = "\1\x88\xd8\x34\1\1\0\0\0\4\0\0";
static const char mask_seed[] =
    "\2DTMASK1\0\36\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\5\0\0\0\0"
    "\0\0\0\7\0\0\0\0\0\0\0\36\0\0\0\0\0\0";

/* clang-format off */
static const fuzz_seed seeds[] = {
    { index_seed, sizeof index_seed },
    { llmc_seed, sizeof llmc_seed },
    { mask_seed, sizeof mask_seed },
    { "\3{\"tokens\":30,\"masked\":0,\"begin_token\":null,\"end_token\":4,\"tokenizer\":null}", 0 },
};
static const char *const words[] = {
    "\1", "\2", "\10", "\36", "\377", "\377\377\377\377\377\377\377\377", "\1\1\1\1", "\177\177\177\177\177\177\177\177", "MMIDIDX",
    "DTMASK1", "null", "-1", "1e9", "{", "}", ",", "\"end_token\":9,", "\"tokens\":31,", "\200",
};
static const fuzz_table table = { "fuzz_tokens", 1500, MOST_BYTES, seeds, DT_COUNT(seeds), words, DT_COUNT(words), NULL };
/* clang-format on */

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
