/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/style_cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

bool style_case_is(const style_case *c, const char *layer)
{
    return strcmp(c->row->layer, layer) == 0;
}

static bool is_linear(const style_case *c)
{
    return style_case_is(c, "linear") || style_case_is(c, "linear of blocks");
}

bool style_case_has_experts(const style_case *c)
{
    return strstr(c->row->layer, "experts") != NULL;
}

int64_t style_case_chosen(const style_case *c)
{
    return c->size[LETTER_N] > 1 ? 2 : 1;
}

static int64_t count_of(const int64_t *shape, int n)
{
    int64_t count = 1;

    for (int a = 0; a < n; a++) count *= shape[a];
    return count;
}

void style_case_set_shapes(style_case *c)
{
    const int64_t *s = c->size;
    const bool heads = style_case_is(c, "norm of heads"), ids = style_case_is(c, "embedding");
    const int64_t B = s[LETTER_B], T = s[LETTER_T], D = s[LETTER_D];
    const int64_t x[] = { B, T, is_linear(c) ? s[LETTER_I] : D };
    const int64_t y[] = { B, T, is_linear(c) ? s[LETTER_O] : D };
    const int64_t h[] = { B, T, s[LETTER_H], s[LETTER_E] };

    c->x_axes = heads ? 4 : ids ? 2 : 3;
    c->y_axes = heads ? 4 : 3;
    memcpy(c->x_shape, heads ? h : x, (size_t)c->x_axes * sizeof *x);
    memcpy(c->y_shape, heads ? h : y, (size_t)c->y_axes * sizeof *y);
}

/* --- layers ----------------------------------------------------------------------------------- */

/* Blocks of n rows: halves where up to four ranks divide them, else three of different sizes. */
static dt_axis_blocks blocks_of(int64_t n)
{
    if (n % 24 == 0) return (dt_axis_blocks){ 2, { { n / 2, 0 }, { n / 2, 0 } } };
    return (dt_axis_blocks){ 3, { { n / 2, 0 }, { n - n / 2 - n / 4, 0 }, { n / 4, 0 } } };
}

/* The blocks that the line's layer has on either axis of its matrix. */
static void set_blocks(const style_case *c, dt_axis_blocks blocks[2])
{
    const bool inputs = strcmp(c->row->weight, "S(1, blocks)") == 0;
    const int64_t F = c->size[LETTER_F];

    if (style_case_is(c, "linear of blocks"))
        blocks[inputs] = blocks_of(c->size[inputs ? LETTER_I : LETTER_O]);
    if (style_case_has_experts(c)) blocks[0] = (dt_axis_blocks){ 2, { { F, 0 }, { F, 0 } } };
}

/* The styles of both layers of experts follow the line; where it is about one of them, or about the
 * point, the other one has the style that goes with it. */
static int mixture(const style_case *c, dt_layer_spec specs[STYLE_LAYERS], int *subject)
{
    const int64_t N = c->size[LETTER_N], F = c->size[LETTER_F], D = c->size[LETTER_D];
    const bool both = style_case_is(c, "experts"), point = style_case_is(c, "point of experts");
    const char *style = c->row->style;

    *subject = point ? 0 : style_case_is(c, "experts, down") ? 2 : 1;
    specs[0] = (dt_layer_spec){ .name = "experts",
                                .kind = &dt_point_kind,
                                .style = point ? style : "local" };
    specs[1] =
        (dt_layer_spec){ .name = "experts.gate_up_proj",
                         .kind = &dt_experts_kind,
                         .axis = { { 2 * F, DT_UNIT_ROW }, { D, DT_UNIT_ROW }, { N, DT_UNIT_ROW } },
                         .style = both ? style : "packed_colwise" };
    set_blocks(c, specs[1].blocks);
    specs[2] =
        (dt_layer_spec){ .name = "experts.down_proj",
                         .kind = &dt_experts_kind,
                         .axis = { { D, DT_UNIT_ROW }, { F, DT_UNIT_ROW }, { N, DT_UNIT_ROW } },
                         .style = both ? style : "rowwise" };
    if (!point) specs[*subject].style = style;
    return 3;
}

int style_case_specs(const style_case *c, dt_layer_spec specs[STYLE_LAYERS], int *subject)
{
    const int64_t *s = c->size;
    dt_layer_spec *spec = &specs[0];

    if (style_case_has_experts(c)) return mixture(c, specs, subject);
    *subject = 0;
    *spec = (dt_layer_spec){ .name = "layer", .style = c->row->style, .eps = 1e-5f };
    if (is_linear(c)) {
        spec->kind = &dt_linear_kind;
        spec->axis[0].extent = s[LETTER_O];
        spec->axis[1].extent = s[LETTER_I];
        spec->with = "bias";
        set_blocks(c, spec->blocks);
    } else if (style_case_is(c, "embedding")) {
        spec->kind = &dt_embedding_kind;
        spec->axis[0].extent = s[LETTER_V];
        spec->axis[1].extent = s[LETTER_D];
    } else if (style_case_is(c, "point")) {
        spec->kind = &dt_point_kind;
    } else {
        spec->kind = &dt_rms_norm_kind;
        spec->axis[0].extent = style_case_is(c, "norm") ? s[LETTER_D] : s[LETTER_E];
    }
    return 1;
}

const char *style_case_place(const style_case *c, const char *cell, char text[STYLE_PLACE_BYTES])
{
    const char *comma = strstr(cell, ", blocks)");
    dt_axis_blocks blocks[2] = { { 0 } };
    const dt_axis_blocks *of = &blocks[0];
    int n;

    if (comma == NULL) return cell;
    set_blocks(c, blocks);
    if (of->n == 0) of = &blocks[1];
    n = snprintf(text, STYLE_PLACE_BYTES, "%.*s,blocks=", (int)(comma - cell), cell);
    for (int b = 0; b < of->n; b++)
        n += snprintf(text + n, STYLE_PLACE_BYTES - (size_t)n, b == 0 ? "%lld" : ":%lld",
                      (long long)of->block[b].extent);
    (void)snprintf(text + n, STYLE_PLACE_BYTES - (size_t)n, ")");
    return text;
}

/* --- values ----------------------------------------------------------------------------------- */

static void expect_linear(const style_case *c, style_values *v)
{
    const int64_t I = c->size[LETTER_I], O = c->size[LETTER_O];

    for (int64_t row = 0; row < c->size[LETTER_B] * c->size[LETTER_T]; row++)
        for (int64_t o = 0; o < O; o++) {
            double sum = (double)v->b[o];
            for (int64_t i = 0; i < I; i++)
                sum += (double)v->x[row * I + i] * (double)v->w[o * I + i];
            v->y[row * O + o] = sum;
        }
}

static void expect_norm(const style_case *c, style_values *v)
{
    const int64_t n = c->x_shape[c->x_axes - 1], rows = count_of(c->x_shape, c->x_axes) / n;

    for (int64_t row = 0; row < rows; row++) {
        double squares = 0;
        for (int64_t i = 0; i < n; i++) squares += pow((double)v->x[row * n + i], 2);
        for (int64_t i = 0; i < n; i++)
            v->y[row * n + i] =
                (double)v->x[row * n + i] * (double)v->w[i] / sqrt(squares / (double)n + 1e-5);
    }
}

/* Adds share * down (silu(gate x) * up x) of expert e to y [D]. */
static void add_expert(const style_case *c, const style_values *v, int32_t e, double share,
                       const float *x, double *y)
{
    const int64_t F = c->size[LETTER_F], D = c->size[LETTER_D];
    const float *gate_up = v->w + e * 2 * F * D, *down = v->down + e * D * F;

    for (int64_t f = 0; f < F; f++) {
        double gate = 0, up = 0;
        for (int64_t d = 0; d < D; d++) {
            gate += (double)x[d] * (double)gate_up[f * D + d];
            up += (double)x[d] * (double)gate_up[(F + f) * D + d];
        }
        for (int64_t d = 0; d < D; d++)
            y[d] += share * (double)down[d * F + f] * up * gate / (1 + exp(-gate));
    }
}

static void expect_experts(const style_case *c, style_values *v)
{
    const int64_t N = c->size[LETTER_N], D = c->size[LETTER_D], k = style_case_chosen(c);

    memset(v->y, 0, sizeof v->y);
    for (int64_t row = 0; row < c->size[LETTER_B] * c->size[LETTER_T]; row++)
        for (int64_t s = 0; s < k; s++) {
            v->ids[row * k + s] = (int32_t)((row * 3 + s) % N);
            v->share[row * k + s] = s == 0 ? 0.75f : 0.25f; /* exact in bf16 */
            add_expert(c, v, v->ids[row * k + s], (double)v->share[row * k + s], v->x + row * D,
                       v->y + row * D);
        }
}

void style_case_make_values(const style_case *c, style_values *v)
{
    const int64_t n = count_of(c->x_shape, c->x_axes), D = c->size[LETTER_D];

    dt_test_random(v->w, STYLE_MOST, 1);
    dt_test_random(v->b, STYLE_MOST, 2);
    dt_test_random(v->x, STYLE_MOST, 3);
    dt_test_random(v->down, STYLE_MOST, 4);
    for (int64_t i = 0; i < n; i++) v->ids[i] = (int32_t)(7 * i % c->size[LETTER_V]);
    if (is_linear(c)) expect_linear(c, v);
    if (style_case_has_experts(c)) expect_experts(c, v);
    if (style_case_is(c, "norm") || style_case_is(c, "norm of heads")) expect_norm(c, v);
    for (int64_t i = 0; i < n && style_case_is(c, "point"); i++) v->y[i] = (double)v->x[i];
    for (int64_t i = 0; i < n * D && style_case_is(c, "embedding"); i++)
        v->y[i] = (double)v->w[v->ids[i / D] * D + i % D];
}
