/* SPDX-License-Identifier: Apache-2.0
 *
 * Data that a model is trained on: files of token ids, and which of them make sample number i of a
 * run.
 *
 * Sample i is a function of files, options and i alone. It depends on no mesh, no number of ranks
 * and nothing that was read before, so a run is continued by the number of samples it has used up,
 * on whatever mesh. docs/data.md has the formats of files and how samples follow each other.
 *
 * Nothing here is collective or needs a runtime: each rank opens data of its own. Files are mapped,
 * not read: ranks of one machine share the pages. One thread at a time uses a handle. */
#ifndef DT_TRAINING_DATA_H
#define DT_TRAINING_DATA_H

#include <dtensor/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_data dt_data;

/* A file of tokens: llm.c's (found out by its first bytes), Megatron's pair of .idx and .bin (named
 * by either, or without ending), nanoGPT's (a .bin without a header). */
typedef struct dt_data_source {
    const char *path;
    double weight; /* its share of the samples, next to the others' weights. All 0: each window of
                    * all files once in an epoch. */
} dt_data_source;

typedef enum dt_data_order {
    DT_ORDER_SHUFFLED, /* windows as they lie in the files, in an order drawn for each epoch */
    DT_ORDER_STORED,   /* window i is tokens i T to i T + T: file after file, the same each epoch */
    DT_ORDER_PACKED /* documents in an order drawn for each epoch, put together and cut to windows
                        */
} dt_data_order;

typedef struct dt_data_options {
    size_t size;      /* sizeof(dt_data_options) */
    int64_t sequence; /* T: tokens of a sample */
    uint64_t seed;
    dt_data_order order;
    int64_t vocab_size;  /* tokens from here on are an error; 0: any are taken */
    bool documents;      /* dt_batch.starts, and no target in another document than its token */
    int32_t begin_token; /* that documents begin with, in files of which neither an index nor a
                          * side file says so; -1: none */
    int32_t end_token;   /* the same of ends */
    uint64_t tokenizer;  /* dt_tokenizer_hash() of the model's tokenizer: a file whose side file
                          * names another is refused; 0: not compared */
} dt_data_options;

#define DT_DATA_OPTIONS_INIT                                                  \
    {                                                                         \
        sizeof(dt_data_options), 0, 0, DT_ORDER_SHUFFLED, 0, false, -1, -1, 0 \
    }

/* Rows of samples, all [rows, tokens] row-major. */
typedef struct dt_batch {
    int64_t rows, tokens;
    const int32_t *ids;
    const int32_t *targets; /* the token that follows; -100: none that counts (of a prompt, or of
                             * the next document) */
    const int32_t *starts;  /* index in its row of the first token of each token's document;
                             * NULL: dt_data_options.documents is false */
    int64_t n_valid;        /* targets that count */
} dt_batch;

/* What was opened. */
typedef struct dt_data_facts {
    int64_t tokens;    /* of all files */
    int64_t documents; /* of them, as indices count them or packing has; 0: nobody has counted */
    int64_t samples;   /* of an epoch */
    int64_t left_over; /* tokens of an epoch that are in no sample: less than a window at the end of
                        * each file, of packed documents at the end of them all */
    uint64_t hash;     /* of the files in their order, wherever they lie: how many tokens they have,
                        * and 16384 of these, evenly spread; of fewer, all */
} dt_data_facts;

/**
 * Opens files of tokens. Headers and indices are checked whole: sizes against the files, offsets
 * and lengths against each other. Tokens are checked when they are read.
 *
 *   sources  n of them; several may have weights, each then begins anew when it is through
 *   options  `sequence` has no default
 *
 * Not collective.
 * Ownership   *out is released with dt_data_release().
 * Errors      DT_ERR_ARG          NULL, options out of range, a weight that no sample in 65536
 *                                 follows from, a file too short for one sample
 *             DT_ERR_IO           a file is missing, no file, or cannot be read
 *             DT_ERR_FORMAT       what a file says of itself does not hold: names file, document
 *                                 and place; another tokenizer's tokens
 *             DT_ERR_UNSUPPORTED  no file of tokens, or one of floats
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_data_open(const dt_data_source *sources, int n,
                                          const dt_data_options *options, dt_data **out);
DT_API void dt_data_release(dt_data **data); /* accepts NULL */

/**
 * Samples `first` to `first + rows - 1` of a run, counted from its beginning: epochs follow each
 * other, the order of each is its own. The same on every rank and mesh.
 *
 *   *out  borrowed, until the next call or the release
 *
 * Not collective.
 * Errors      DT_ERR_ARG     NULL, a negative number, rows below 1
 *             DT_ERR_FORMAT  a token that the vocabulary has not: file, document, place
 *             DT_ERR_IO      a file has become shorter, or cannot be read
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_data_rows(dt_data *data, int64_t first, int64_t rows,
                                          dt_batch *out);

/** What is in the files. Not collective. Errors: none; zeros if data is NULL. */
DT_API dt_data_facts dt_data_look(const dt_data *data);

/** Samples of an epoch: sample i is one of epoch i / that. Of sources with weights as many as they
 * have windows together. Not collective. Errors: none; 0 if data is NULL. */
DT_API int64_t dt_data_samples_per_epoch(const dt_data *data);

/**
 * Reads every token of all files, so that none can turn out wrong in the middle of a run, and
 * compares them with the checksum that lies beside those of dt_token_writer_close().
 *
 * Not collective.
 * Errors      those of dt_data_rows(); DT_ERR_FORMAT also of other tokens than were written
 */
DT_API DT_MUST_USE dt_status dt_data_check(dt_data *data);

#ifdef __cplusplus
}
#endif
#endif
