/* SPDX-License-Identifier: Apache-2.0
 *
 * Documents in an order drawn for each epoch, put together and cut into windows. Where token p of
 * an epoch comes from follows from the number of tokens before each 1024th document of the order
 * and a walk from there: it depends on no mesh and on nothing that was read before. */
#ifndef DTI_PACKING_H
#define DTI_PACKING_H

#include "training/data/permute.h"
#include "training/data/token_file.h"

typedef struct dti_packing {
    dti_token_file **files; /* borrowed; their documents are known */
    int n_files;
    int64_t *first_document; /* [n_files + 1]: of the documents of all files */
    int64_t n_documents, n_tokens;
    int64_t epoch; /* that before[] is of; -1: none */
    dti_permute_key key;
    int64_t *before;         /* tokens before document 1024 i of the order; one more at the end */
    int64_t place, place_at; /* where the walk stands: a document of the order, its first token */
} dti_packing;

/* A stretch of tokens that lie in one document. */
typedef struct dti_stretch {
    dti_token_file *file;
    int64_t first, n; /* tokens of the file */
    bool begins;      /* the first of them is the document's first */
} dti_stretch;

/* `files` [n_files] live as long. */
dt_status dti_packing_create(dti_token_file **files, int n_files, uint64_t seed, uint32_t use,
                             dti_packing *out) DT_MUST_USE;
void dti_packing_free(dti_packing *p); /* accepts a zeroed one */

/* What lies at token `at` of an epoch, and how much of it, at most `most` tokens. */
dt_status dti_packing_find(dti_packing *p, int64_t epoch, int64_t at, int64_t most,
                           dti_stretch *out) DT_MUST_USE;

#endif
