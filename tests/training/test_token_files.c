/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of tokens that say what does not hold: each is refused by name, none is read wrong. */
#include <dtensor/token_files.h>
#include <dtensor/training_data.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/training/token_files.h"
#include "training/data/token_file.h"

static dt_status open_it(const char *path, int64_t vocab, dt_data **out)
{
    const dt_data_source source = { path, 0.0 };
    dt_data_options o = DT_DATA_OPTIONS_INIT;

    o.sequence = 4;
    o.order = DT_ORDER_STORED;
    o.vocab_size = vocab;
    return dt_data_open(&source, 1, &o, out);
}

static void expect_refused(const char *path, dt_status st, const char *says)
{
    dt_data *d = NULL;

    DT_ASSERT_STATUS(open_it(path, 0, &d), st, says);
    DT_ASSERT(d == NULL);
}

DT_TEST(token_files, that_are_none_are_refused)
{
    char path[DT_TEST_PATH_BYTES + 16], text[300];
    tokens_folder f;

    tokens_begin(&f);
    expect_refused("/nowhere/a.bin", DT_ERR_IO, "/nowhere/a.bin: cannot be opened");
    expect_refused(f.path, DT_ERR_IO, "is a folder");
    expect_refused("/dev/null", DT_ERR_IO, "is a device");
    expect_refused(tokens_write(&f, "e.bin", "", 0), DT_ERR_FORMAT, "e.bin: is empty");
    expect_refused(tokens_write(&f, "a.txt", "Text, which is no tokens.", 25), DT_ERR_UNSUPPORTED,
                   "a.txt: is no file of tokens");
    expect_refused(tokens_write(&f, "odd.bin", "12345678901", 11), DT_ERR_FORMAT,
                   "odd.bin: has 11 bytes");
    expect_refused(tokens_write(&f, "short.bin", "12345678", 8), DT_ERR_ARG,
                   "has 4 tokens, a sample of 4 needs 5");
    memset(text, 'x', sizeof text);
    expect_refused(tokens_write(&f, "text.bin", text, sizeof text), DT_ERR_UNSUPPORTED,
                   "text.bin: is a text and no file of tokens");
    memcpy(text, "\x93NUMPY\x01", 8);
    expect_refused(tokens_write(&f, "array.bin", text, sizeof text), DT_ERR_UNSUPPORTED,
                   "array.bin: is an array of NumPy");
    (void)snprintf(path, sizeof path, "%s/pipe.bin", f.path);
    DT_ASSERT(mkfifo(path, 0600) == 0);
    expect_refused(path, DT_ERR_IO, "is a device or pipe");
    (void)snprintf(path, sizeof path, "%s/link.bin", f.path);
    DT_ASSERT(symlink("/nowhere/at/all", path) == 0);
    expect_refused(path, DT_ERR_IO, "symbolic link to nothing");
    (void)tokens_write(&f, "lone.idx", "MMIDIDX", 7);
    (void)snprintf(path, sizeof path, "%s/lone.idx", f.path);
    expect_refused(path, DT_ERR_IO, "lone.bin: cannot be opened");
}

/* Headers of llm.c whose numbers do not fit the file. */
DT_TEST(token_files, of_llmc_are_as_long_as_they_say)
{
    static const struct {
        size_t at;
        int32_t value;
        size_t bytes; /* of the file */
        dt_status st;
        const char *says;
    } cases[] = {
        { 8, 101, 1024 + 200, DT_ERR_FORMAT, "its header says 101 tokens of 2 bytes" },
        { 8, -1, 1024 + 200, DT_ERR_FORMAT, "its header says -1 tokens" },
        { 8, INT32_MAX, 1024 + 200, DT_ERR_FORMAT, "its header says 2147483647 tokens" },
        { 8, 100, 1024 + 199, DT_ERR_FORMAT, "the file has 1223 bytes" },
        { 8, 100, 1024 + 202, DT_ERR_FORMAT, "the file has 1226 bytes" },
        { 4, 2, 1024 + 200, DT_ERR_FORMAT, "version 2, must be version 1" },
        { 0, 20240801, 1024 + 200, DT_ERR_FORMAT, "version 1, must be version 7" },
        { 0, 20240522, 1024 + 200, DT_ERR_UNSUPPORTED, "is an evaluation file" },
    };
    unsigned char bytes[1024 + 256];
    tokens_folder f;

    tokens_begin(&f);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        memset(bytes, 0, sizeof bytes);
        (void)tokens_put(bytes, 0, 20240520, 4);
        (void)tokens_put(bytes, 4, 1, 4);
        (void)tokens_put(bytes, 8, 100, 4);
        (void)tokens_put(bytes, cases[i].at, cases[i].value, 4);
        expect_refused(tokens_write(&f, "a.bin", bytes, cases[i].bytes), cases[i].st,
                       cases[i].says);
    }
}

/* One number of an index is another, or it is cut off. 30 tokens of u16 in documents of 8: lengths
 * at 34, offsets at 50, documents at 82, the end at 122. */
DT_TEST(token_files, of_megatron_have_an_index_that_holds)
{
    static const struct {
        size_t at, width;
        int64_t value;
        size_t bytes; /* of the index */
        dt_status st;
        const char *says;
    } cases[] = {
        { 0, 1, 'X', 122, DT_ERR_FORMAT, "does not begin with MMIDIDX" },
        { 9, 8, 2, 122, DT_ERR_UNSUPPORTED, "is version 2" },
        { 17, 1, 0, 122, DT_ERR_FORMAT, "says type 0" },
        { 17, 1, 9, 122, DT_ERR_FORMAT, "says type 9" },
        { 17, 1, 7, 122, DT_ERR_UNSUPPORTED, "is of f32, tokens are integers" },
        { 17, 1, 4, 122, DT_ERR_FORMAT, "sequence 1 begins at byte 16, the one before it ends at" },
        { 18, 8, 5, 122, DT_ERR_FORMAT, "it is cut off" },
        { 18, 8, 3, 122, DT_ERR_FORMAT, "the file has 122" },
        { 18, 8, -1, 122, DT_ERR_FORMAT, "says 18446744073709551615 sequences" },
        { 18, 8, INT64_MAX, 122, DT_ERR_FORMAT, "says 9223372036854775807 sequences" },
        { 26, 8, 0, 122, DT_ERR_FORMAT, "0 document entries" },
        { 26, 8, INT64_MAX / 8, 122, DT_ERR_FORMAT, "document entries, in 122 bytes" },
        { 34, 4, -8, 122, DT_ERR_FORMAT, "sequence 0 has -8 tokens" },
        { 34, 4, 7, 122, DT_ERR_FORMAT, "sequence 1 begins at byte 16, the one before it ends at" },
        { 46, 4, 7, 122, DT_ERR_FORMAT, "sequence 3 ends at byte 62" },
        { 46, 4, 5, 122, DT_ERR_FORMAT, "its sequences have 58 bytes together" },
        { 46, 4, INT32_MAX, 122, DT_ERR_FORMAT, "sequence 3 ends at byte 4294967342" },
        { 50, 8, 2, 122, DT_ERR_FORMAT, "sequence 0 begins at byte 2" },
        { 74, 8, -48, 122, DT_ERR_FORMAT, "sequence 3 begins at byte -48" },
        { 82, 8, 1, 122, DT_ERR_FORMAT, "document 0 begins with sequence 1" },
        { 98, 8, 0, 122, DT_ERR_FORMAT, "document 2 begins with sequence 0, behind 1" },
        { 114, 8, 5, 122, DT_ERR_FORMAT, "document 4 begins with sequence 5" },
        { 114, 8, 3, 122, DT_ERR_FORMAT, "its documents end with sequence 3 of 4" },
        { 0, 1, 'M', 121, DT_ERR_FORMAT, "it is cut off" },
        { 0, 1, 'M', 33, DT_ERR_FORMAT, "has 33 bytes, the header" },
        { 0, 1, 'M', 0, DT_ERR_FORMAT, "has 0 bytes" },
        { 0, 1, 'M', 124, DT_ERR_FORMAT, "(126 with modes), the file has 124" },
    };
    unsigned char *index, longer[160] = { 0 };
    const char *path;
    DT_HELD(data) *d = NULL;
    tokens_folder f;
    size_t bytes;

    tokens_begin(&f);
    index = tokens_index(30, 8, 8, &bytes);
    DT_ASSERT_EQ_INT(bytes, 122);
    path = tokens_megatron(&f, "a.bin", 30, 8, 8);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        memcpy(longer, index, bytes);
        (void)tokens_put(longer, cases[i].at, cases[i].value, cases[i].width);
        (void)tokens_write(&f, "a.idx", longer, cases[i].bytes);
        expect_refused(path, cases[i].st, cases[i].says);
    }
    memcpy(longer, index, bytes);
    (void)tokens_write(&f, "a.idx", longer, 126); /* with modes */
    DT_ASSERT_OK(open_it(path, 0, &d));
    DT_ASSERT_EQ_INT(dt_data_look(d).documents, 4);
    free(index);
}

/* A token beyond the vocabulary is an error of the row that it lies in, or of dt_data_check(), with
 * document and place; so is a negative one. */
DT_TEST(token_files, with_tokens_beyond_the_vocabulary_are_refused_where_they_are)
{
    int32_t tokens[30];
    unsigned char *index;
    const char *path;
    DT_HELD(data) *d = NULL;
    tokens_folder f;
    dt_batch b;
    size_t bytes;

    tokens_begin(&f);
    for (int i = 0; i < 30; i++) tokens[i] = i;
    tokens[21] = 100;
    path = tokens_write(&f, "a.bin", tokens, sizeof tokens);
    index = tokens_index(30, 4, 8, &bytes);
    (void)tokens_write(&f, "a.idx", index, bytes);
    DT_ASSERT_OK(open_it(path, 100, &d));
    DT_ASSERT_OK(dt_data_rows(d, 0, 5, &b)); /* tokens 0 to 20 */
    DT_ASSERT_STATUS(dt_data_rows(d, 0, 6, &b), DT_ERR_FORMAT,
                     "a.bin: token 21, 5 of document 2 (byte 84) is 100, the vocabulary has 0 to "
                     "99");
    DT_ASSERT_STATUS(dt_data_check(d), DT_ERR_FORMAT, "token 21");
    dt_data_release(&d);
    DT_ASSERT_OK(open_it(path, 101, &d));
    DT_ASSERT_OK(dt_data_check(d));
    dt_data_release(&d);
    tokens[29] = -1;
    path = tokens_write(&f, "a.bin", tokens, sizeof tokens);
    DT_ASSERT_OK(open_it(path, 0, &d));
    DT_ASSERT_STATUS(dt_data_check(d), DT_ERR_FORMAT, "token 29, 5 of document 3 (byte 116) is -1");
    free(index);
}

/* What is shortened during a run would end the process where it is mapped. */
DT_TEST(token_files, that_are_shortened_are_an_error_of_the_next_read)
{
    DT_HELD(data) *d = NULL;
    tokens_folder f;
    const char *path;
    dt_batch b;

    tokens_begin(&f);
    path = tokens_nanogpt(&f, "a.bin", 5000);
    DT_ASSERT_OK(open_it(path, 0, &d));
    DT_ASSERT_OK(dt_data_rows(d, 1000, 10, &b));
    DT_ASSERT(truncate(path, 4000) == 0);
    DT_ASSERT_STATUS(dt_data_rows(d, 1000, 10, &b), DT_ERR_IO,
                     "a.bin: has 4000 bytes but had 10000");
}

/* Where a file cannot be mapped it is read, with the same result. */
DT_TEST(token_files, that_are_not_mapped_are_read)
{
    const dti_token_wish wish = { -1, -1, 0, 0 };
    int32_t mapped[3000], plain[3000];
    int64_t begin[2];
    tokens_folder f;

    tokens_begin(&f);
    for (int k = 0; k < 2; k++) {
        dti_token_file file;
        int32_t *to = k == 0 ? mapped : plain;
        DT_ASSERT_OK(dti_token_file_open(tokens_megatron(&f, "a.bin", 50000, 4, 7), &wish, &file));
        if (k == 1) dti_mapped_unmap(&file.tokens);
        if (k == 1) dti_mapped_unmap(&file.index);
        for (int i = 0; i < 3000; i++)
            DT_ASSERT_OK(dti_token_file_read(&file, (int64_t)i * 7919 % 50000, 1, 0, &to[i]));
        DT_ASSERT_OK(dti_token_file_read(&file, 30000, 3000, 0, to));
        DT_ASSERT_OK(dti_token_file_document(&file, 7142, &begin[k]));
        DT_ASSERT_OK(dti_token_file_check(&file));
        dti_token_file_close(&file);
    }
    DT_ASSERT(memcmp(mapped, plain, sizeof plain) == 0);
    DT_ASSERT(begin[0] == 7 * 7142 && begin[1] == begin[0]);
}

/* A call that is refused adds nothing: neither tokens nor a mask. */
DT_TEST(token_files, are_written_without_what_was_refused)
{
    static const dt_token_format formats[] = { DT_TOKENS_LLMC, DT_TOKENS_NANOGPT,
                                               DT_TOKENS_MEGATRON };
    static const int32_t good[] = { 1, 2, 3, 4 }, bad[] = { 5, 6, 300, 7 };
    dt_data_options o = DT_DATA_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES + 32];
    tokens_folder f;

    tokens_begin(&f);
    o.sequence = 3;
    (void)snprintf(path, sizeof path, "%s/w.bin", f.path);
    for (size_t i = 0; i < DT_COUNT(formats); i++) {
        dt_token_writer_options how = DT_TOKEN_WRITER_OPTIONS_INIT;
        dt_token_writer *w;
        dt_data *d = NULL;
        dt_batch b;
        how.format = formats[i];
        how.vocab_size = 300;
        DT_ASSERT_OK(dt_token_writer_open(path, &how, &w));
        for (int learned = 0; learned < 2; learned++)
            DT_ASSERT_STATUS(dt_token_writer_add(w, bad, 4, learned), DT_ERR_ARG, "token 2 is 300");
        DT_ASSERT_OK(dt_token_writer_add(w, good, 4, true));
        DT_ASSERT_OK(dt_token_writer_close(&w, DT_OK));
        DT_ASSERT_OK(dt_data_open(&(dt_data_source){ path, 0.0 }, 1, &o, &d));
        DT_ASSERT_EQ_INT(dt_data_look(d).tokens, 4);
        DT_ASSERT_OK(dt_data_rows(d, 0, 1, &b));
        DT_ASSERT_EQ_INT(b.n_valid, 3);
        for (int k = 0; k < 3; k++) DT_ASSERT_EQ_INT(b.ids[k], good[k]);
        dt_data_release(&d);
    }
}

/* What lies beside the tokens is compared with them. */
DT_TEST(token_files, agree_with_what_lies_beside_them)
{
    static const struct {
        const char *facts; /* NULL: none */
        int64_t tokens, runs, begin, end;
        size_t bytes; /* of the mask; 0: none */
        const char *says;
    } cases[] = {
        { "{\"tokens\": 31}", 0, 0, 0, 0, 0, "has 30 tokens, " },
        { "{\"tokens\": 30, \"masked\": 3}", 0, 0, 0, 0, 0, "prompts would be learned" },
        { "{\"tokens\": \"x\"}", 0, 0, 0, 0, 0, "tokens is the string" },
        { "[]", 0, 0, 0, 0, 0, "a.bin.json" },
        { NULL, 29, 1, 2, 5, 40, "is of 29 tokens" },
        { NULL, 30, 1, 2, 31, 40, "run 0 is of tokens 2 to 31" },
        { NULL, 30, 1, 5, 5, 40, "run 0 is of tokens 5 to 5" },
        { NULL, 30, 1, -1, 5, 40, "run 0 is of tokens -1 to 5" },
        { NULL, 30, 2, 2, 5, 40, "says 2 runs" },
        { NULL, 30, INT64_MAX, 2, 5, 40, "says 9223372036854775807 runs" },
        { NULL, 30, 1, 2, 5, 39, "the file has 39 bytes" },
        { NULL, 30, 1, 2, 5, 10, "has 10 bytes" },
    };
    char side[DT_TEST_PATH_BYTES + 32];
    tokens_folder f;

    tokens_begin(&f);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        unsigned char mask[40] = "DTMASK1";
        const char *path = tokens_nanogpt(&f, "a.bin", 30);
        (void)tokens_put(mask, 8, cases[i].tokens, 8);
        (void)tokens_put(mask, 16, cases[i].runs, 8);
        (void)tokens_put(mask, 24, cases[i].begin, 8);
        (void)tokens_put(mask, 32, cases[i].end, 8);
        if (cases[i].bytes > 0) (void)tokens_write(&f, "a.bin.mask", mask, cases[i].bytes);
        if (cases[i].facts != NULL)
            (void)tokens_write(&f, "a.bin.json", cases[i].facts, strlen(cases[i].facts));
        expect_refused(path, DT_ERR_FORMAT, cases[i].says);
        (void)snprintf(side, sizeof side, "%s.mask", path);
        (void)unlink(side);
        (void)snprintf(side, sizeof side, "%s.json", path);
        (void)unlink(side);
    }
}

DT_TEST(token_files, have_as_many_documents_as_is_said_beside_them)
{
    dt_data *d = NULL;
    tokens_folder f;
    const char *path;

    tokens_begin(&f);
    path = tokens_megatron(&f, "a.bin", 30, 8, 8);
    (void)tokens_write(&f, "a.bin.json", "{\"tokens\": 30, \"documents\": 5}", 30);
    expect_refused(path, DT_ERR_FORMAT, "a.idx: has 4 documents, ");
    (void)tokens_write(&f, "a.bin.json", "{\"tokens\": 30, \"documents\": 4}", 30);
    DT_ASSERT_OK(open_it(path, 0, &d));
    dt_data_release(&d);
}

DT_TEST(token_files, whose_documents_end_with_no_token_of_the_model_are_refused)
{
    static const char *const facts[] = { "{\"tokens\": 30, \"end_token\": 1000}",
                                         "{\"tokens\": 30, \"begin_token\": 1000}" };
    dt_data *d = NULL;
    tokens_folder f;

    tokens_begin(&f);
    for (size_t i = 0; i < DT_COUNT(facts); i++) {
        const char *path = tokens_nanogpt(&f, "a.bin", 30);
        (void)tokens_write(&f, "a.bin.json", facts[i], strlen(facts[i]));
        DT_ASSERT_STATUS(open_it(path, 1000, &d), DT_ERR_FORMAT, "the model's ids are 0 to 999");
        DT_ASSERT_OK(open_it(path, 1001, &d));
        dt_data_release(&d);
    }
}

/* Tokens and runs are those that were written, whatever the vocabulary would take. */
DT_TEST(token_files, are_those_that_were_written)
{
    static const int32_t tokens[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
    char path[DT_TEST_PATH_BYTES + 16], mask[DT_TEST_PATH_BYTES + 32];
    tokens_folder f;

    tokens_begin(&f);
    (void)snprintf(path, sizeof path, "%s/a.bin", f.path);
    (void)snprintf(mask, sizeof mask, "%s.mask", path);
    for (int format = DT_TOKENS_LLMC; format <= DT_TOKENS_MEGATRON; format++)
        for (int damage = 0; damage < 3; damage++) {
            dt_token_writer_options o = DT_TOKEN_WRITER_OPTIONS_INIT;
            DT_HELD(data) *d = NULL;
            dt_token_writer *w = NULL;
            FILE *file;

            o.format = (dt_token_format)format;
            o.vocab_size = 300;
            DT_ASSERT_OK(dt_token_writer_open(path, &o, &w));
            DT_ASSERT_OK(dt_token_writer_add(w, tokens, 4, false));
            DT_ASSERT_OK(dt_token_writer_add(w, tokens + 4, 6, true));
            DT_ASSERT_OK(dt_token_writer_close(&w, DT_OK));
            file = fopen(damage < 2 ? path : mask, "r+b");
            DT_ASSERT(file != NULL && fseek(file, damage < 2 ? -2 : -8, SEEK_END) == 0);
            DT_ASSERT(damage == 0 || fwrite("\3", 1, 1, file) == 1); /* 10 is 3; 4 masked are 3 */
            DT_ASSERT(fclose(file) == 0);
            DT_ASSERT_OK(open_it(path, 300, &d));
            if (damage == 0)
                DT_ASSERT_OK(dt_data_check(d));
            else
                DT_ASSERT_STATUS(dt_data_check(d), DT_ERR_FORMAT,
                                 "a.bin: its tokens are not those that were written: ");
        }
}

DT_TEST(token_files, with_options_that_make_no_sense_are_refused)
{
    dt_data_options o = DT_DATA_OPTIONS_INIT;
    dt_data_source two[2];
    DT_HELD(data) *d = NULL;
    tokens_folder f;
    dt_batch b;

    tokens_begin(&f);
    two[0] = (dt_data_source){ tokens_nanogpt(&f, "a.bin", 100), 1.0 };
    two[1] = (dt_data_source){ tokens_nanogpt(&f, "b.bin", 100), 0.0 };
    DT_ASSERT_STATUS(dt_data_open(two, 1, &o, &d), DT_ERR_ARG, "sequence is 0");
    o.sequence = 4;
    DT_ASSERT_STATUS(dt_data_open(two, 2, &o, &d), DT_ERR_ARG, "1 of 2 sources have a weight");
    two[1].weight = 1e-9;
    DT_ASSERT_STATUS(dt_data_open(two, 2, &o, &d), DT_ERR_ARG, "not one sample in 65536");
    two[1].weight = -1.0;
    DT_ASSERT_STATUS(dt_data_open(two, 2, &o, &d), DT_ERR_ARG, "its weight is -1");
    two[1].weight = 1.0;
    o.documents = true;
    DT_ASSERT_STATUS(dt_data_open(two, 2, &o, &d), DT_ERR_ARG, "nothing says where its documents");
    o.documents = false;
    o.order = DT_ORDER_PACKED;
    DT_ASSERT_STATUS(dt_data_open(two, 2, &o, &d), DT_ERR_ARG, "nothing says where its documents");
    o.order = (dt_data_order)7;
    DT_ASSERT_STATUS(dt_data_open(two, 2, &o, &d), DT_ERR_ARG, "no dt_data_order");
    o.order = DT_ORDER_SHUFFLED;
    DT_ASSERT_OK(dt_data_open(two, 2, &o, &d));
    DT_ASSERT_STATUS(dt_data_rows(d, -1, 1, &b), DT_ERR_ARG, "number -1");
    DT_ASSERT_STATUS(dt_data_rows(d, 0, 0, &b), DT_ERR_ARG, "0 samples");
    DT_ASSERT_STATUS(dt_data_rows(d, INT64_MAX, 1, &b), DT_ERR_ARG, "1 samples");
    DT_ASSERT_STATUS(dt_data_rows(d, 0, INT64_MAX / 8, &b), DT_ERR_ARG, "rows");
}
