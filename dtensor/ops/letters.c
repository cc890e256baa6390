/* SPDX-License-Identifier: Apache-2.0
 *
 * The letters of an operator row, and the shape rule that follows from them: one letter, one
 * extent. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "dtensor/ops/op_rules.h"

static dt_status parse_letter(const char *axes, const char **at, dti_letters *all, dti_term *term)
{
    const char *p = *at;
    const bool whole = *p == '[';

    if (whole) p++;
    DT_CHECK(*p >= 'a' && *p <= 'z', DT_ERR_ARG,
             "axes \"%s\": a letter from a to z is expected at \"%s\"", axes, p);
    DT_CHECK(term->n_letters < DT_MAX_AXES, DT_ERR_ARG, "axes \"%s\": more than %d letters", axes,
             DT_MAX_AXES);
    for (int i = 0; i < term->n_letters; i++) /* no diagonals: a cut would take each axis alone */
        DT_CHECK(term->letter[i] != *p - 'a', DT_ERR_ARG,
                 "axes \"%s\": letter %c stands twice in one term", axes, *p);
    term->letter[term->n_letters++] = *p - 'a';
    if (whole) {
        all->whole |= 1u << (*p - 'a');
        p++;
        DT_CHECK(*p == ']', DT_ERR_ARG, "axes \"%s\": ']' is expected at \"%s\"", axes, p);
    }
    *at = p + 1;
    return DT_OK;
}

dt_status dti_letters_term(const char *axes, const char **at, dti_letters *all, dti_term *term)
{
    *term = (dti_term){ 0 };
    if (strncmp(*at, "...", 3) == 0) {
        term->dots = true;
        *at += 3;
    }
    while (**at != '\0' && **at != ',' && **at != ' ') DT_TRY(parse_letter(axes, at, all, term));
    return DT_OK;
}

dt_status dti_letters_parse(const char *axes, dti_letters *out)
{
    const char *at = axes;

    *out = (dti_letters){ 0 };
    for (;;) {
        DT_CHECK(out->n_in < DT_OP_MAX_IN, DT_ERR_ARG, "axes \"%s\": more than %d operands", axes,
                 DT_OP_MAX_IN);
        DT_TRY(dti_letters_term(axes, &at, out, &out->in[out->n_in++]));
        if (strncmp(at, ", ", 2) != 0) break;
        at += 2;
    }
    DT_CHECK(strncmp(at, " ->", 3) == 0, DT_ERR_ARG, "axes \"%s\": \" -> \" is expected at \"%s\"",
             axes, at);
    at += 3;
    if (*at == ' ') at++;
    for (;;) {
        DT_CHECK(out->n_out < DT_OP_MAX_OUT, DT_ERR_ARG, "axes \"%s\": more than %d results", axes,
                 DT_OP_MAX_OUT);
        DT_TRY(dti_letters_term(axes, &at, out, &out->out[out->n_out++]));
        if (strncmp(at, ", ", 2) != 0) break;
        at += 2;
    }
    DT_CHECK(*at == '\0', DT_ERR_ARG,
             "axes \"%s\": nothing is expected at \"%s\"; \", \" stands between results", axes, at);
    return DT_OK;
}

int dti_axis_of(const dti_term *term, int n_axes, int letter)
{
    for (int a = 0; a < n_axes; a++)
        if (dti_letter_of(term, n_axes, a) == letter) return a;
    return -1;
}

const char *dti_letter_text(int letter, char text[DTI_LETTER_BYTES])
{
    if (letter < DTI_DOTS)
        (void)snprintf(text, DTI_LETTER_BYTES, "axis %c", 'a' + letter);
    else
        (void)snprintf(text, DTI_LETTER_BYTES, "leading axis %d", letter - DTI_DOTS);
    return text;
}

static const char *shape_of(const dt_op_shape *x, char text[DTI_SHAPE_BYTES])
{
    return dti_shape_text(x->extent, x->n_axes, text, DTI_SHAPE_BYTES);
}

typedef struct bound_letter {
    int operand; /* that fixed it */
    int64_t extent;
} bound_letter;

static dt_status clash(const dt_op_shapes *call, int letter, const bound_letter *first, int operand,
                       int64_t extent)
{
    char one[DTI_SHAPE_BYTES], two[DTI_SHAPE_BYTES], name[DTI_LETTER_BYTES];

    DT_FAIL(DT_ERR_SHAPE, "%s \"%s\": %s is %lld in operand %d %s but %lld in operand %d %s",
            call->op->name, call->op->axes, dti_letter_text(letter, name), (long long)first->extent,
            first->operand, shape_of(&call->in[first->operand], one), (long long)extent, operand,
            shape_of(&call->in[operand], two));
}

static dt_status bind(const dti_term *term, const dt_op_shapes *call, int i, bound_letter *bound,
                      int *leading)
{
    const dt_op_shape *x = &call->in[i];
    const int extra = x->n_axes - term->n_letters;
    char text[DTI_SHAPE_BYTES];

    DT_CHECK(term->dots ? extra >= 0 : extra == 0, DT_ERR_SHAPE,
             "%s \"%s\": operand %d %s has %d axes, but %s%d are named", call->op->name,
             call->op->axes, i, shape_of(x, text), x->n_axes, term->dots ? "at least " : "",
             term->n_letters);
    if (term->dots) {
        DT_CHECK(*leading < 0 || *leading == extra, DT_ERR_SHAPE,
                 "%s \"%s\": operand %d %s has %d leading axes, operands before it %d",
                 call->op->name, call->op->axes, i, shape_of(x, text), extra, *leading);
        *leading = extra;
    }
    for (int a = 0; a < x->n_axes; a++) {
        const int letter = dti_letter_of(term, x->n_axes, a);
        const bool spreads = (call->op->flags & DT_OP_SPREAD) != 0;
        if (bound[letter].operand < 0 || (spreads && bound[letter].extent == 1))
            bound[letter] = (bound_letter){ i, x->extent[a] };
        else if ((call->op->flags & DT_OP_UNEVEN) != 0 || (spreads && x->extent[a] == 1))
            continue;
        else if (bound[letter].extent != x->extent[a])
            return clash(call, letter, &bound[letter], i, x->extent[a]);
    }
    return DT_OK;
}

/* A letter that only results have is -1 until the row's own function says what it is. */
static dt_status by_letters(const dti_letters *letters, dt_op_shapes *call)
{
    bound_letter bound[DTI_N_LETTERS];
    int leading = -1;

    for (int l = 0; l < DTI_N_LETTERS; l++) bound[l] = (bound_letter){ -1, -1 };
    for (int i = 0; i < call->n_in; i++) DT_TRY(bind(&letters->in[i], call, i, bound, &leading));
    for (int r = 0; r < call->n_out; r++) {
        const dti_term *term = &letters->out[r];
        dt_op_shape *y = &call->out[r];
        y->n_axes = term->n_letters + (term->dots && leading > 0 ? leading : 0);
        DT_CHECK(y->n_axes <= DT_MAX_AXES, DT_ERR_SHAPE, "%s \"%s\": the result has %d axes",
                 call->op->name, call->op->axes, y->n_axes);
        for (int a = 0; a < y->n_axes; a++)
            y->extent[a] = bound[dti_letter_of(term, y->n_axes, a)].extent;
    }
    return DT_OK;
}

/* Where letters say how a result lies, they also say how long it is. */
static dt_status check_own(const dt_op_shapes *call, const dt_op_shape *lettered)
{
    const bool placed = call->op->shard == NULL && call->op->accepts == NULL;

    for (int r = 0; r < call->n_out; r++) {
        const dt_op_shape *y = &call->out[r];
        DT_CHECK(y->n_axes >= 0 && y->n_axes <= DT_MAX_AXES &&
                     (!placed || y->n_axes == lettered[r].n_axes),
                 DT_ERR_ARG,
                 "operator %s \"%s\": its extents function gives result %d %d axes; its letters "
                 "name %d",
                 call->op->name, call->op->axes, r, y->n_axes, lettered[r].n_axes);
        for (int a = 0; a < y->n_axes; a++) {
            DT_CHECK(y->extent[a] >= 0, DT_ERR_ARG,
                     "operator %s \"%s\": axis %d of result %d has no extent: no operand has its "
                     "letter, so the row needs an extents function that says it",
                     call->op->name, call->op->axes, a, r);
            DT_CHECK(!placed || lettered[r].extent[a] < 0 || lettered[r].extent[a] == y->extent[a],
                     DT_ERR_ARG,
                     "operator %s \"%s\": its extents function makes axis %d of result %d %lld "
                     "long, by its letter it is %lld: give it a letter of its own",
                     call->op->name, call->op->axes, a, r, (long long)y->extent[a],
                     (long long)lettered[r].extent[a]);
        }
    }
    return DT_OK;
}

dt_status dti_row_extents(const dti_row *row, dt_op_shapes *call)
{
    dt_op_shape lettered[DT_OP_MAX_OUT];

    DT_TRY(by_letters(&row->letters, call));
    memcpy(lettered, call->out, sizeof lettered);
    if (row->op->extents != NULL) DT_TRY(row->op->extents(call));
    DT_TRY(check_own(call, lettered));
    return DT_OK;
}
