/* SPDX-License-Identifier: Apache-2.0
 *
 * Losses: compositions of rows. Of those of a cross entropy the last one alone, "cross_entropy",
 * has a gradient: it takes the logits, which it does not read, beside what earlier rows found in
 * them, and its backward is that of them all. */
#include <dtensor/ops.h>
#include <dtensor/ops_backward.h>
#include <dtensor/ops_loss.h>

#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/compose.h"
#include "dtensor/ops/op_rules.h"

static const dt_cross_entropy_options defaults = DT_CROSS_ENTROPY_OPTIONS_INIT;

/* Options that are in range, as attributes; false and a latched error otherwise. */
static bool attr_of(dt_tape *t, const dt_cross_entropy_options *o, int64_t vocabulary,
                    dti_cross_entropy_attr *out)
{
    if (o == NULL) o = &defaults;
    *out = (dti_cross_entropy_attr){ vocabulary, o->ignore_index, o->label_smoothing, o->z_loss };
    if (o->label_smoothing >= 0.0 && o->label_smoothing < 1.0 && o->z_loss >= 0.0 &&
        o->n_valid >= 0.0 && o->chunk >= 0 && (int)o->reduction >= DT_MEAN_OF_TOKENS &&
        o->reduction <= DT_SUM_OF_TOKENS)
        return true;
    (void)dt_tape_fail(t, DT_ERR_ARG,
                       "cross_entropy: label_smoothing is %g, z_loss %g, n_valid %g, chunk %lld, "
                       "reduction %d",
                       o->label_smoothing, o->z_loss, o->n_valid, (long long)o->chunk,
                       (int)o->reduction);
    return false;
}

static int64_t last_extent(const dt_tensor *x)
{
    return x->n_axes > 0 ? x->shape[x->n_axes - 1] : 0;
}

void dt_cross_entropy_tokens(dt_tape *t, dt_tensor *logits, dt_tensor *targets,
                             const dt_cross_entropy_options *o, dt_token_losses *out)
{
    const char *why = "cross_entropy";
    dt_tensor *results[3] = { NULL }, *most, *sums;
    dti_cross_entropy_attr attr;

    if (out != NULL) *out = (dt_token_losses){ NULL, NULL, NULL };
    if (dti_tape_is_down(t)) return;
    if (logits == NULL || logits->n_axes == 0 || out == NULL) {
        (void)dt_tape_fail(t, DT_ERR_ARG, "cross_entropy: logits without an axis, or out is NULL");
        return;
    }
    if (!attr_of(t, o, last_extent(logits), &attr)) return;
    most = dt_apply(t, &dti_op_max, &(dti_reduce_attr){ DT_F32, logits->n_axes - 1 }, 1, &logits);
    most = dti_compose_reduced(t, why, most);
    sums =
        dt_apply(t, &dti_op_cross_entropy_sums, &attr, 3, (dt_tensor *[]){ logits, targets, most });
    sums = dti_compose_reduced(t, why, sums);
    dt_apply_n(t, &dti_op_cross_entropy, &attr, 4, (dt_tensor *[]){ logits, targets, most, sums },
               3, results);
    *out = (dt_token_losses){ results[0], results[1], results[2] };
}

dt_tensor *dt_cross_entropy_backward(dt_tape *t, dt_tensor *dlosses, dt_tensor *logits,
                                     dt_tensor *targets, dt_tensor *lse,
                                     const dt_cross_entropy_options *o)
{
    dti_cross_entropy_attr attr = { 0 };

    if (!dti_tape_is_down(t) && logits != NULL && !attr_of(t, o, last_extent(logits), &attr))
        return NULL;
    return dt_apply(t, &dti_op_cross_entropy_backward, &attr, 4,
                    (dt_tensor *[]){ dlosses, logits, targets, lse });
}

dt_tensor *dt_count_targets(dt_tape *t, dt_tensor *targets, int64_t ignore_index)
{
    return dt_apply(t, &dti_op_count_targets, &(dti_count_attr){ ignore_index }, 1, &targets);
}

/* --- means ------------------------------------------------------------------------------------ */

/* What a sum over tokens is divided by; what is divided by it. */
typedef struct divisor {
    bool none;    /* nothing: a sum */
    double given; /* 0: `counted` */
    dt_tensor *counted;
} divisor;

static divisor divisor_of(dt_tape *t, const dt_cross_entropy_options *o, dt_tensor *targets)
{
    divisor d = { .none = o->reduction == DT_SUM_OF_TOKENS, .given = o->n_valid };

    if (!d.none && d.given == 0.0)
        d.counted =
            dti_compose_reduced(t, "cross_entropy", dt_count_targets(t, targets, o->ignore_index));
    return d;
}

static dt_tensor *divided(dt_tape *t, dt_tensor *x, const divisor *d)
{
    if (d->none) return x;
    return d->given > 0.0 ? dt_mul_scalar(t, x, 1.0 / d->given) : dt_div(t, x, d->counted);
}

dt_tensor *dt_cross_entropy(dt_tape *t, dt_tensor *logits, dt_tensor *targets,
                            const dt_cross_entropy_options *o)
{
    dt_token_losses tokens;
    divisor d;

    dt_cross_entropy_tokens(t, logits, targets, o, &tokens);
    if (tokens.losses == NULL) return NULL;
    d = divisor_of(t, o != NULL ? o : &defaults, targets);
    return divided(t, dt_sum(t, tokens.losses, DT_ALL_AXES), &d);
}

/* --- head and loss, a chunk of tokens at a time ----------------------------------------------- */

enum { MAX_CHUNKS = 64, DEFAULT_CHUNKS = 8 };

typedef struct chunked {
    dt_tensor *x, *w, *targets;
    const dt_cross_entropy_options *options;
    divisor divisor;
    int axis;
    int64_t extent, rows; /* of the axis, of a chunk */
    bool want_dx, want_dw;
    dt_tensor *loss, *dw, *dx[MAX_CHUNKS]; /* so far */
} chunked;

/* The longest axis of tokens that no rank cuts; -1 if there is none. */
static int choose_axis(const dt_tensor *x, const dt_tensor *targets)
{
    int best = -1;

    for (int a = 0; a < targets->n_axes && a < x->n_axes - 1; a++)
        if (!dti_compose_is_cut(x, a) && !dti_compose_is_cut(targets, a) &&
            (best < 0 || x->shape[a] > x->shape[best]))
            best = a;
    return best;
}

/* A chunk's gradients: of its part of x, and what is added to dw. */
static void chunk_gradients(dt_tape *t, chunked *c, dt_tensor *x, dt_tensor *targets,
                            dt_tensor *logits, const dt_token_losses *tokens, int k)
{
    dt_tensor *dlosses = divided(t, tokens->counted, &c->divisor), *dw = NULL;
    dt_tensor *dlogits =
        dt_cross_entropy_backward(t, dlosses, logits, targets, tokens->lse, c->options);

    dt_linear_backward(t, dlogits, x, c->w, c->want_dx ? &c->dx[k] : NULL, c->want_dw ? &dw : NULL,
                       NULL);
    if (c->want_dw) c->dw = c->dw == NULL ? dw : dt_accumulate(t, dw, c->dw);
}

/* Ends the chunk's scope, beyond which its results are kept. */
static void leave_chunk(dt_tape *t, chunked *c, int k)
{
    dt_tensor **const results[] = { &c->loss, &c->dw, &c->dx[k] };
    const bool fine = !dti_tape_is_down(t);

    for (size_t i = 0; i < DT_COUNT(results) && fine; i++)
        if (*results[i] != NULL) (void)dt_tensor_retain(*results[i]);
    (void)dt_scope_end(t, NULL);
    for (size_t i = 0; i < DT_COUNT(results) && fine; i++)
        if (*results[i] != NULL) *results[i] = dt_tape_own(t, *results[i]);
}

static void run_chunk(dt_tape *t, chunked *c, int k)
{
    const int64_t begin = k * c->rows;
    const int64_t count = c->extent - begin < c->rows ? c->extent - begin : c->rows;
    dt_tensor *x, *targets, *logits, *sum;
    dt_token_losses tokens;

    dt_scope_begin(t, "chunk");
    x = dt_slice(t, c->x, c->axis, begin, count);
    targets = dt_slice(t, c->targets, c->axis, begin, count);
    logits = dt_linear(t, x, c->w, NULL);
    dt_cross_entropy_tokens(t, logits, targets, c->options, &tokens);
    if (tokens.losses != NULL) {
        sum = divided(t, dt_sum(t, tokens.losses, DT_ALL_AXES), &c->divisor);
        c->loss = c->loss == NULL ? sum : dt_add(t, c->loss, sum);
        if (c->want_dx || c->want_dw) chunk_gradients(t, c, x, targets, logits, &tokens, k);
    }
    leave_chunk(t, c, k);
}

dt_tensor *dt_cross_entropy_chunked(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *targets,
                                    const dt_cross_entropy_options *o, dt_tensor **dx,
                                    dt_tensor **dw)
{
    chunked c = { .x = x, .w = w, .targets = targets, .options = o != NULL ? o : &defaults };
    dti_cross_entropy_attr attr;
    int n = 0;

    if (dx != NULL) *dx = NULL;
    if (dw != NULL) *dw = NULL;
    if (dti_tape_is_down(t) || !attr_of(t, o, 0, &attr)) return NULL;
    if (x == NULL || w == NULL || targets == NULL || x->n_axes < 2)
        return dt_tape_fail(t, DT_ERR_ARG,
                            "cross_entropy_chunked: an operand is NULL, or x has no "
                            "axis of tokens");
    if ((c.axis = choose_axis(x, targets)) < 0)
        return dt_tape_fail(
            t, DT_ERR_LAYOUT,
            "cross_entropy_chunked: all axes of tokens are cut, and a chunk is rows "
            "of one that is whole; gather one of them");
    c.extent = x->shape[c.axis];
    c.rows =
        c.options->chunk > 0 ? c.options->chunk : (c.extent + DEFAULT_CHUNKS - 1) / DEFAULT_CHUNKS;
    if (c.rows * MAX_CHUNKS < c.extent) c.rows = (c.extent + MAX_CHUNKS - 1) / MAX_CHUNKS;
    c.want_dx = dx != NULL;
    c.want_dw = dw != NULL;
    c.divisor = divisor_of(t, c.options, targets);
    do run_chunk(t, &c, n++);
    while (n * c.rows < c.extent && !dti_tape_is_down(t));
    if (dx != NULL && !dti_tape_is_down(t)) *dx = dt_concat(t, n, c.dx, c.axis);
    if (dti_tape_is_down(t)) return NULL;
    if (dw != NULL) *dw = c.dw;
    return c.loss;
}
