/* SPDX-License-Identifier: Apache-2.0
 *
 * The one product that is asked of oneDNN, behind a face that both of its majors (2 and 3) fit. */
#ifndef DTI_ONEDNN_H
#define DTI_ONEDNN_H

#include "base/error.h"

typedef struct dti_onednn dti_onednn; /* of one rank: an engine, products made so far */

/* y[m, n] = sum_k x[m, k] w[n, k], all dense and row-major; x and w bf16 or f32, y f32. */
typedef struct dti_product_shape {
    int64_t m, n, k;
    dt_dtype dtype;
} dti_product_shape;

typedef struct dti_product dti_product; /* belongs to the dti_onednn, lives as long */

dt_status dti_onednn_create(dti_onednn **out) DT_MUST_USE;
void dti_onednn_destroy(dti_onednn **lib); /* accepts NULL */

/* Finds or makes (some 100 us) a product. Called by the rank's thread. */
dt_status dti_onednn_product(dti_onednn *lib, const dti_product_shape *shape,
                             const dti_product **out) DT_MUST_USE;

/* Bytes of scratch, 64-byte aligned, that each concurrent run of the product needs for itself: with
 * memory of the library's own, runs of two threads overwrite each other. */
size_t dti_product_scratch(const dti_product *product);

/* Computes on the calling thread alone. Any thread, several at once. Returns oneDNN's status, 0 if
 * all went well: workers have no error record that the caller could see. */
int dti_product_run(const dti_product *product, const void *x, const void *w, float *y,
                    void *scratch);

#endif
