/* SPDX-License-Identifier: Apache-2.0
 *
 * What one line of docs/styles.md is about: the layers it needs, their sizes, and what they should
 * give, worked out here in double. */
#ifndef DT_TEST_STYLE_CASES_H
#define DT_TEST_STYLE_CASES_H

#include <dtensor/parallel_styles.h>

#include "tests/support/style_rows.h"

enum {
    STYLE_MOST = 4096, /* elements of the largest value */
    STYLE_LAYERS = 3,  /* a mixture of experts: its point, gate and up, down */
    STYLE_PLACE_BYTES = 64
};

typedef struct style_case {
    const style_row *row;
    const int64_t *size; /* by letters */
    dt_mesh *mesh;
    dt_dtype dtype; /* of the layers */
    int64_t x_shape[DT_MAX_AXES], y_shape[DT_MAX_AXES];
    int x_axes, y_axes;
} style_case;

/* Whole values, the same on every rank. */
typedef struct style_values {
    float w[STYLE_MOST], b[STYLE_MOST], x[STYLE_MOST];
    float down[STYLE_MOST], share[STYLE_MOST]; /* of experts: [N, D, F], and weights [B, T, k] */
    int32_t ids[STYLE_MOST]; /* rows of an embedding [B, T], or experts of each token [B, T, k] */
    double y[STYLE_MOST];
} style_values;

bool style_case_is(const style_case *c, const char *layer);

/* Is the line about layers of experts, or the point around them? */
bool style_case_has_experts(const style_case *c);

/* Experts of a token. */
int64_t style_case_chosen(const style_case *c);

/* Fills shapes and numbers of axes from row and size. */
void style_case_set_shapes(style_case *c);

/* The layers; returns their number. *subject is the one that has the line's style. */
int style_case_specs(const style_case *c, dt_layer_spec specs[STYLE_LAYERS], int *subject);

void style_case_make_values(const style_case *c, style_values *v);

/* A cell as dt_layout_print() writes it: "S(2, blocks)" names the blocks of this case. */
const char *style_case_place(const style_case *c, const char *cell, char text[STYLE_PLACE_BYTES]);

#endif
