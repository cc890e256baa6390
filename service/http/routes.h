/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths, and what answers them. */
#ifndef DTI_HTTP_ROUTES_H
#define DTI_HTTP_ROUTES_H

#include "service/http/exchange.h"

typedef struct dti_http_route {
    const char *method, *path;
    bool open; /* without a key */
    void (*answer)(dti_exchange *x);
} dti_http_route;

/* NULL: there is none; *path: but there is one of another method. HEAD is a GET. */
const dti_http_route *dti_http_route_find(const char *method, const char *path,
                                          bool *path_is_known);

/* Answers of other files. */
void dti_answer_completions(dti_exchange *x);
void dti_answer_chat(dti_exchange *x);
void dti_answer_tokenize(dti_exchange *x);
void dti_answer_detokenize(dti_exchange *x);

extern const char *const dti_page[]; /* of "/", in pieces; NULL is behind the last */

#endif
