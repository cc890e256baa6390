/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call costs: operations and bytes, from a row's letters. It is found when shapes are seen
 * for the first time, so that a warm call adds two numbers. */
#include <stdlib.h>
#include <string.h>

#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"
#include "dtensor/tape.h"

/* --- the text of a row ------------------------------------------------------------------------ */

static void collect(const dti_term *term, bool *dots, uint32_t *letters)
{
    *dots = *dots || term->dots;
    for (int i = 0; i < term->n_letters; i++) *letters |= 1u << term->letter[i];
}

/* The letters of a cost are those of the row. */
static dt_status check_letters(const dt_op *op, const dti_letters *row, const dti_term *term)
{
    bool has_dots = false, dots = false;
    uint32_t has = 0, letters = 0;

    for (int i = 0; i < row->n_in; i++) collect(&row->in[i], &has_dots, &has);
    for (int r = 0; r < row->n_out; r++) collect(&row->out[r], &has_dots, &has);
    collect(term, &dots, &letters);
    DT_CHECK((letters & ~has) == 0 && (!dots || has_dots), DT_ERR_ARG,
             "operator %s: cost \"%s\" names axes that \"%s\" has not", op->name, op->cost,
             op->axes);
    return DT_OK;
}

static dt_status read_product(const dt_op *op, const dti_letters *letters, const char **at,
                              dti_cost *out)
{
    const int n = out->n_terms;
    dti_letters ignored = { 0 };
    int64_t times = 0;

    DT_CHECK(n < DTI_COST_TERMS, DT_ERR_ARG, "operator %s: cost \"%s\" has more than %d terms",
             op->name, op->cost, DTI_COST_TERMS);
    DT_CHECK(**at >= '0' && **at <= '9', DT_ERR_ARG,
             "operator %s: cost \"%s\": a number is expected at \"%s\"", op->name, op->cost, *at);
    for (; **at >= '0' && **at <= '9' && times < 1000000; ++*at) times = 10 * times + (**at - '0');
    out->times[n] = (double)times;
    out->n_terms++;
    out->term[n] = (dti_term){ 0 };
    if (**at == '\0' || strncmp(*at, " : ", 3) == 0) return DT_OK; /* a number alone */
    DT_CHECK(**at == ' ', DT_ERR_ARG, "operator %s: cost \"%s\": letters are expected at \"%s\"",
             op->name, op->cost, *at);
    ++*at;
    DT_TRY(dti_letters_term(op->cost, at, &ignored, &out->term[n]));
    DT_TRY(check_letters(op, letters, &out->term[n]));
    return DT_OK;
}

/* A term of what is touched, or "-". */
static dt_status read_touched(const dt_op *op, const dti_letters *letters, const char **at,
                              int which, dti_cost *out)
{
    dti_term *term =
        which < letters->n_in ? &out->touched.in[which] : &out->touched.out[which - letters->n_in];

    if (**at == '-' && (*at)[1] != '>') {
        out->nothing |= 1u << which;
        ++*at;
        return DT_OK;
    }
    DT_TRY(dti_letters_term(op->cost, at, &out->touched, term));
    DT_TRY(check_letters(op, letters, term));
    return DT_OK;
}

dt_status dti_cost_read(const dt_op *op, const dti_letters *letters, dti_cost *out)
{
    const int n = letters->n_in + letters->n_out;
    const char *at = op->cost;

    *out = (dti_cost){ 0 };
    if (at == NULL) return DT_OK;
    DT_TRY(read_product(op, letters, &at, out));
    while (strncmp(at, " + ", 3) == 0) {
        at += 3;
        DT_TRY(read_product(op, letters, &at, out));
    }
    out->touches = strncmp(at, " : ", 3) == 0;
    if (out->touches) at += 3;
    for (int k = 0; k < n && out->touches; k++) {
        const char *between = k == 0 ? "" : k == letters->n_in ? " -> " : ", ";
        DT_CHECK(strncmp(at, between, strlen(between)) == 0, DT_ERR_ARG,
                 "operator %s: cost \"%s\": \"%s\" is expected at \"%s\"", op->name, op->cost,
                 between, at);
        at += strlen(between);
        DT_TRY(read_touched(op, letters, &at, k, out));
    }
    DT_CHECK(*at == '\0', DT_ERR_ARG, "operator %s: cost \"%s\": nothing is expected at \"%s\"",
             op->name, op->cost, at);
    return DT_OK;
}

/* --- counting --------------------------------------------------------------------------------- */

/* Extents of letters, 0 for those that nothing has; how many axes stand under "...". */
typedef struct letter_extents {
    double of[DTI_N_LETTERS];
    bool bound[DTI_N_LETTERS];
    int leading;
} letter_extents;

/* All that share a letter have its extent, pieces too, which are cut alike; but for those that
 * repeat one element. */
static void bind(letter_extents *e, const dti_term *term, const dt_op_shape *x)
{
    const int leading = x->n_axes - term->n_letters;

    if (leading < 0) return;
    if (term->dots && leading > e->leading) e->leading = leading;
    for (int a = 0; a < x->n_axes; a++) {
        const int letter = dti_letter_of(term, x->n_axes, a);
        if (e->bound[letter] && e->of[letter] >= (double)x->extent[a]) continue;
        e->bound[letter] = true;
        e->of[letter] = (double)x->extent[a];
    }
}

static void bind_all(letter_extents *e, const dti_letters *letters, const dt_op_shapes *call)
{
    memset(e, 0, sizeof *e);
    for (int i = 0; i < call->n_in; i++) bind(e, &letters->in[i], &call->in[i]);
    for (int r = 0; r < call->n_out; r++) bind(e, &letters->out[r], &call->out[r]);
}

static double product(const letter_extents *e, const dti_term *term)
{
    double n = 1.0;

    for (int a = 0; a < e->leading && term->dots; a++) n *= e->of[DTI_DOTS + a];
    for (int i = 0; i < term->n_letters; i++) n *= e->of[term->letter[i]];
    return n;
}

/* One for each combination of all letters; two where a letter of two operands vanishes. */
static double by_all_letters(const letter_extents *e, const dti_letters *letters)
{
    double n = 1.0, times = 1.0;

    for (int l = 0; l < DTI_N_LETTERS; l++) {
        int operands = 0, results = 0;
        if (!e->bound[l]) continue;
        n *= e->of[l];
        for (int i = 0; i < letters->n_in; i++)
            for (int k = 0; k < letters->in[i].n_letters; k++)
                operands += letters->in[i].letter[k] == l;
        for (int r = 0; r < letters->n_out; r++)
            for (int k = 0; k < letters->out[r].n_letters; k++)
                results += letters->out[r].letter[k] == l;
        if (operands > 1 && results == 0) times = 2.0;
    }
    return times * n;
}

static double elements(const dt_op_shape *x)
{
    double n = 1.0;

    for (int a = 0; a < x->n_axes; a++) n *= (double)x->extent[a];
    return n;
}

static double touched(const dti_row *row, const letter_extents *e, const dt_op_shape *x, int which)
{
    const dti_letters *letters = &row->cost.touched;
    const int n_in = row->letters.n_in;

    if (!row->cost.touches) return elements(x);
    if (row->cost.nothing >> which & 1u) return 0.0;
    return product(e, which < n_in ? &letters->in[which] : &letters->out[which - n_in]);
}

void dti_row_work(const dti_row *row, const dt_op_shapes *call, dt_op_work *out)
{
    letter_extents e;

    *out = (dt_op_work){ 0, 0 };
    if (row->op->flags & DT_OP_VIEW) return;
    bind_all(&e, &row->letters, call);
    for (int k = 0; k < row->cost.n_terms; k++)
        out->flops += row->cost.times[k] * product(&e, &row->cost.term[k]);
    if (row->cost.n_terms == 0) out->flops = by_all_letters(&e, &row->letters);
    for (int k = 0; k < call->n_in + call->n_out; k++) {
        const dt_op_shape *x = k < call->n_in ? &call->in[k] : &call->out[k - call->n_in];
        out->bytes += touched(row, &e, x, k) * (double)dt_dtype_size(x->dtype);
    }
    if (row->op->work != NULL) row->op->work(call, out);
}

/* Shapes of the caller's, which no tensor has checked. */
static dt_status check_shapes(const char *what, const dt_op_shape *x, int n)
{
    for (int i = 0; i < n; i++) {
        DT_CHECK(x[i].n_axes >= 0 && x[i].n_axes <= DT_MAX_AXES, DT_ERR_ARG,
                 "%s %d has %d axes: 0 to %d are possible", what, i, x[i].n_axes, DT_MAX_AXES);
        DT_CHECK(dt_dtype_size(x[i].dtype) > 0, DT_ERR_ARG, "%s %d: %d is no dtype", what, i,
                 (int)x[i].dtype);
        for (int a = 0; a < x[i].n_axes; a++)
            DT_CHECK(x[i].extent[a] >= 0, DT_ERR_SHAPE, "%s %d whose axis %d has extent %lld", what,
                     i, a, (long long)x[i].extent[a]);
    }
    return DT_OK;
}

dt_status dt_op_work_of(dt_op_shapes *call, dt_op_work *work)
{
    dt_status st = DT_OK;
    dti_row row = { 0 };

    DT_CHECK(call != NULL && work != NULL, DT_ERR_ARG, "call or work is NULL");
    *work = (dt_op_work){ 0, 0 };
    DT_TRY(dti_row_read(call->op, &row));
    DT_CHECK_TO(done, st, call->op->attr_bytes == 0 || call->attr != NULL, DT_ERR_ARG,
                "%s: attr is NULL; the row has %zu bytes of attributes", call->op->name,
                call->op->attr_bytes);
    DT_CHECK_TO(done, st, call->n_in == row.letters.n_in, DT_ERR_ARG,
                "%s \"%s\": %d operands given", call->op->name, call->op->axes, call->n_in);
    DT_TRY_TO(done, st, check_shapes("operand", call->in, call->n_in));
    if (call->n_out == 0) {
        call->n_out = row.letters.n_out;
        DT_TRY_TO(done, st, dti_row_dtypes(call));
        DT_TRY_TO(done, st, dti_row_extents(&row, call));
    }
    DT_CHECK_TO(done, st, call->n_out == row.letters.n_out, DT_ERR_ARG,
                "%s \"%s\": %d results given", call->op->name, call->op->axes, call->n_out);
    DT_TRY_TO(done, st, check_shapes("result", call->out, call->n_out));
    dti_row_work(&row, call, work);
done:
    dti_row_free(&row);
    return st;
}

dt_op_work dt_tape_work(const dt_tape *tape)
{
    return tape != NULL ? tape->work : (dt_op_work){ 0, 0 };
}

/* --- what letters cannot say ------------------------------------------------------------------ */

void dti_copy_work(const dt_op_shapes *call, dt_op_work *work)
{
    const dt_op_shape *y = &call->out[0];

    *work = (dt_op_work){ 0, 2.0 * elements(y) * (double)dt_dtype_size(y->dtype) };
}

/* Keys that t queries see whose last is key s, each itself and at most `window` in all. */
static double visible(double t, double s, double window)
{
    const double first = s - t + 1 > 1 ? s - t + 1 : 1; /* what the first query sees */
    double n = 0, from = first;

    if (window <= 0 || window > s) window = s;
    if (from < window) { /* these see all before them */
        n += 0.5 * (window - from) * (from + window - 1);
        from = window;
    }
    return n + (s - from + 1) * window;
}

/* Operations of one product of all queries, the last of full caches, with what they see. */
static double of_one_product(const dti_attention_attr *attr, const dt_op_shape *q_,
                             const dt_op_shape *k_)
{
    const int64_t *q = q_->extent, *k = k_->extent;
    const double t = (double)q[1] < (double)k[1] ? (double)q[1] : (double)k[1], s = (double)k[1];
    const double window = (double)attr->window;
    const double of_pair = 2.0 * elements(q_) / (double)(q[1] > 0 ? q[1] : 1);

    if (t <= 0) return 0.0;
    if ((attr->flags & DTI_ATTENTION_BOTH_WAYS) == 0) return of_pair * visible(t, s, window);
    return of_pair * t * (window > 0 && 2 * window - 1 < s ? 2 * window - 1 : s);
}

/* q [b, t, h, e], k and v [b, s, kv, e], positions: the queries at the end of full caches. */
void dti_attention_work(const dt_op_shapes *call, dt_op_work *work)
{
    const dti_attention_attr *attr = call->attr;
    const int64_t *q = call->in[0].extent, *k = call->in[1].extent;
    const double size = (double)dt_dtype_size(call->in[0].dtype), window = (double)attr->window;
    const double t = (double)q[1] < (double)k[1] ? (double)q[1] : (double)k[1], s = (double)k[1];
    const double rows = window > 0 && t - 1 + window < s ? t - 1 + window : s;

    work->flops = 2.0 * of_one_product(attr, &call->in[0], &call->in[1]);
    work->bytes = 2.0 * size * (elements(&call->in[0]) + (double)(k[0] * k[2] * k[3]) * rows) +
                  elements(&call->in[3]) * (double)dt_dtype_size(call->in[3].dtype);
    for (int i = 4; i < call->n_in; i++)
        work->bytes += elements(&call->in[i]) * (double)dt_dtype_size(call->in[i].dtype);
    for (int r = 1; r < call->n_out; r++) /* log-sum-exp */
        work->bytes += elements(&call->out[r]) * (double)dt_dtype_size(call->out[r].dtype);
}

/* q [b, 1, h, e], blocks [n, s, kv, e], a table [m, c]: sequences as long as the table is, and rows
 * that are spread over them. */
void dti_attention_paged_work(const dt_op_shapes *call, dt_op_work *work)
{
    const dti_attention_attr *attr = call->attr;
    const int64_t *k = call->in[1].extent, *table = call->in[5].extent;
    const double size = (double)dt_dtype_size(call->in[0].dtype), window = (double)attr->window;
    const double held = (double)(table[1] * k[1]);
    const double keys = window > 0 && window < held ? window : held;

    work->flops = 4.0 * elements(&call->in[0]) * keys;
    work->bytes = 2.0 * size * (elements(&call->in[0]) + (double)(table[0] * k[2] * k[3]) * keys);
    for (int i = 3; i < call->n_in; i++)
        work->bytes += elements(&call->in[i]) * (double)dt_dtype_size(call->in[i].dtype);
}

/* Five products: scores again, dP, dv, dk, dq. */
void dti_attention_backward_work(const dt_op_shapes *call, dt_op_work *work)
{
    *work = (dt_op_work){ 5.0 * of_one_product(call->attr, &call->in[1], &call->in[2]), 0 };
    for (int i = 0; i < call->n_in; i++)
        work->bytes += elements(&call->in[i]) * (double)dt_dtype_size(call->in[i].dtype);
    for (int r = 0; r < call->n_out; r++)
        work->bytes += elements(&call->out[r]) * (double)dt_dtype_size(call->out[r].dtype);
}

/* Of weights [..., k], gate_up [e, 2 f, d] and down [e, d, f] from operand i on: slots that a rank
 * computes, which of some of the experts are as many on the average, and weights of one expert. */
static double slots_of(const dt_op_shapes *call, int i, double n_experts, double *gate_up,
                       double *down)
{
    const double held = (double)call->in[i + 1].extent[0];

    *gate_up = held > 0 ? elements(&call->in[i + 1]) / held : 0.0;
    *down = held > 0 ? elements(&call->in[i + 2]) / held : 0.0;
    return elements(&call->in[i]) * (n_experts > 0 ? held / n_experts : 0.0);
}

/* Bytes of operands before and results, and of the weights of as many experts as there are
 * slots. */
static double bytes_of(const dt_op_shapes *call, int i, double slots)
{
    const double held = (double)call->in[i + 1].extent[0];
    double bytes = 0.0;

    for (int k = 0; k < call->n_in; k++)
        bytes += elements(&call->in[k]) * (double)dt_dtype_size(call->in[k].dtype) *
                 (k > i && slots < held ? slots / held : 1.0);
    for (int r = 0; r < call->n_out; r++)
        bytes += elements(&call->out[r]) * (double)dt_dtype_size(call->out[r].dtype);
    return bytes;
}

void dti_experts_work(const dt_op_shapes *call, dt_op_work *work)
{
    const dti_experts_attr *attr = call->attr;
    double gate_up, down;
    const double slots = slots_of(call, 2, (double)attr->n_experts, &gate_up, &down);

    *work = (dt_op_work){ 2.0 * slots * (gate_up + down), bytes_of(call, 2, slots) };
}

/* Bytes of codes count as the operations that they are weights of. */
void dti_experts_packed_work(const dt_op_shapes *call, dt_op_work *work)
{
    const dti_experts_packed_attr *attr = call->attr;
    const dt_op_shape *gate_up = &call->in[3], *down = &call->in[3 + (call->n_in - 3) / 2];
    const double held = (double)gate_up->extent[0];
    const double slots =
        elements(&call->in[2]) * (attr->n_experts > 0 ? held / (double)attr->n_experts : 0.0);
    const double weights =
        elements(gate_up) * (8 / attr->bits[0]) + elements(down) * (8 / attr->bits[1]);

    *work = (dt_op_work){ held > 0 ? 2.0 * slots * weights / held : 0.0, bytes_of(call, 2, slots) };
}

/* Gate and up again, what reaches their product, dx, and where they are wanted dgate_up and
 * ddown. */
void dti_experts_backward_work(const dt_op_shapes *call, dt_op_work *work)
{
    const dti_experts_backward_attr *attr = call->attr;
    double gate_up, down;
    const double slots = slots_of(call, 3, (double)attr->n_experts, &gate_up, &down);
    const double params = call->n_out > 2 ? gate_up + down : 0.0;

    *work = (dt_op_work){ 2.0 * slots * (2.0 * gate_up + down + params), bytes_of(call, 3, slots) };
}
