/* SPDX-License-Identifier: Apache-2.0
 *
 * The sharding rule of rows whose letters do not suffice: a list of placements for one mesh dim,
 * operands and what follows for the results, as PyTorch's single-dim strategies are. */
#include <string.h>

#include "base/memory.h"
#include "base/writer.h"
#include "dtensor/ops/op_rules.h"

enum { TERM_BYTES = 32 };

/* One placement, up to `end`. */
static dt_status read_term(const dt_op *op, const char *line, const char **at, const char *end,
                           dt_placement *out)
{
    const size_t n = (size_t)(end - *at);
    char term[TERM_BYTES];
    dti_parsed parsed;
    dt_status st;

    DT_CHECK(n > 0 && n < sizeof term, DT_ERR_ARG,
             "operator %s: accepts \"%s\": a placement is expected at \"%s\"", op->name, line, *at);
    memcpy(term, *at, n);
    term[n] = '\0';
    st = dti_placements_parse(term, 1, &parsed);
    if (st != DT_OK) dti_error_prefix("operator %s: accepts \"%s\"", op->name, line);
    DT_TRY(st);
    *out = parsed.place[0];
    DT_CHECK(out->kind != DT_PLACE_SHARD ||
                 (out->unit <= 1 && out->replicas <= 1 && out->n_blocks == 0 &&
                  out->n_offsets == 0 && out->order == 0),
             DT_ERR_ARG, "operator %s: accepts \"%s\": of a cut only the axis is said, as in S(0)",
             op->name, line);
    *at = end;
    return DT_OK;
}

/* n placements with ", " between them. */
static dt_status read_side(const dt_op *op, const char *line, const char **at, int n,
                           dt_placement *out)
{
    for (int i = 0; i < n; i++) {
        DT_TRY(read_term(op, line, at, *at + strcspn(*at, ", "), &out[i]));
        if (i + 1 == n) break;
        DT_CHECK(strncmp(*at, ", ", 2) == 0, DT_ERR_ARG,
                 "operator %s: accepts \"%s\": \", \" and the next of %d placements are expected "
                 "at \"%s\"",
                 op->name, line, n, *at);
        *at += 2;
    }
    return DT_OK;
}

static dt_status read_line(const dt_op *op, const char *line, int n_in, int n_out,
                           dti_accepted *out)
{
    const char *at = line;

    DT_TRY(read_side(op, line, &at, n_in, out->in));
    DT_CHECK(strncmp(at, " -> ", 4) == 0, DT_ERR_ARG,
             "operator %s: accepts \"%s\": \" -> \" is expected at \"%s\"", op->name, line, at);
    at += 4;
    DT_TRY(read_side(op, line, &at, n_out, out->out));
    DT_CHECK(*at == '\0', DT_ERR_ARG, "operator %s: accepts \"%s\": nothing is expected at \"%s\"",
             op->name, line, at);
    return DT_OK;
}

dt_status dti_accepts_read(const dt_op *op, const dti_letters *letters, dti_row *out)
{
    dt_status st = DT_OK;
    int n = 0;

    if (op->accepts == NULL) return DT_OK;
    while (op->accepts[n] != NULL) n++;
    DT_CHECK(n > 0, DT_ERR_ARG, "operator %s: accepts has no line", op->name);
    DT_TRY(dti_alloc_array((size_t)n, sizeof *out->accepted, (void **)&out->accepted));
    for (int k = 0; k < n; k++)
        DT_TRY_TO(fail, st,
                  read_line(op, op->accepts[k], letters->n_in, letters->n_out, &out->accepted[k]));
    out->n_accepted = n;
    return DT_OK;

fail:
    dti_row_free(out);
    return st;
}

/* --- one mesh dim ----------------------------------------------------------------------------- */

/* The axis that a placement of a line means of n axes; -1: there is none. */
static int axis_of(const dt_placement *p, int n_axes)
{
    const int axis = p->axis < 0 ? p->axis + n_axes : p->axis;

    return axis >= 0 && axis < n_axes ? axis : -1;
}

/* Does an operand that lies as `have` do for `want`? Slicing a whole one moves nothing. */
static bool does(const dt_placement *have, const dt_placement *want, int n_axes, bool slices)
{
    switch (want->kind) {
    case DT_PLACE_SHARD:
        if (have->kind == DT_PLACE_REPLICATE) return slices && axis_of(want, n_axes) >= 0;
        return have->kind == DT_PLACE_SHARD && have->axis == axis_of(want, n_axes);
    case DT_PLACE_PARTIAL:
        return have->kind == DT_PLACE_PARTIAL && have->reduce == want->reduce;
    default:
        return have->kind == DT_PLACE_REPLICATE;
    }
}

/* The cut that operands share on mesh dim m; NULL: none is cut. *alike: whether they do. */
static const dt_placement *cut_of(const dti_op_call *call, int m, bool *alike)
{
    const dt_placement *cut = NULL;

    *alike = true;
    for (int i = 0; i < call->n; i++) {
        const dt_placement *p = &call->in_place[i][m];
        if (p->kind != DT_PLACE_SHARD) continue;
        if (cut == NULL) cut = p;
        *alike = *alike && dti_placement_same_cut(p, cut);
    }
    return cut;
}

static bool fits(const dti_op_call *call, const dti_accepted *line, int m, bool slices)
{
    for (int i = 0; i < call->n; i++)
        if (!does(&call->in_place[i][m], &line->in[i], call->in[i]->n_axes, slices)) return false;
    return line->out[call->result].kind != DT_PLACE_SHARD ||
           axis_of(&line->out[call->result], call->out_axes) >= 0;
}

static dt_status take(dti_op_call *call, const dti_accepted *line, int m,
                      const dt_placement *shared)
{
    const dt_placement cut = shared != NULL ? *shared : DT_SHARD(0);
    const dt_placement *y = &line->out[call->result];
    char text[DTI_PLACEMENT_BYTES];
    bool terms = false;

    for (int i = 0; i < call->n; i++) {
        dt_placement *p = &call->in_place[i][m];
        terms = terms || p->kind == DT_PLACE_PARTIAL;
        if (line->in[i].kind != DT_PLACE_SHARD) continue;
        *p = cut;
        p->axis = axis_of(&line->in[i], call->in[i]->n_axes);
    }
    call->out_place[m] = *y;
    if (y->kind == DT_PLACE_SHARD) {
        call->out_place[m] = cut;
        call->out_place[m].axis = axis_of(y, call->out_axes);
    } else if (y->kind == DT_PLACE_PARTIAL && !terms) {
        if (cut.replicas > 1 && y->reduce != DT_MAX && y->reduce != DT_MIN)
            return dti_op_clash(call, m, "a cut is %s: its terms would count copies",
                                dti_placement_words(&cut, text));
        call->reduced = call->reduced || y->reduce == DT_SUM || y->reduce == DT_AVG;
    }
    return DT_OK;
}

/* How operands lie, and what there is instead; what does not fit is left out. */
static dt_status refuse(dti_op_call *call, int m, bool alike)
{
    char have[160] = "", lines[224] = "", text[DTI_PLACEMENT_BYTES];
    dti_writer h = { have, sizeof have, 0 }, l = { lines, sizeof lines, 0 };

    for (int i = 0; i < call->n; i++)
        dti_put(&h, "%s%s", i > 0 ? ", " : "", dti_placement_words(&call->in_place[i][m], text));
    if (!alike) return dti_op_clash(call, m, "operands lie as %s, cut at different rows", have);
    for (int k = 0; call->op->accepts[k] != NULL; k++)
        dti_put(&l, "%s\"%s\"", k > 0 ? ", " : "", call->op->accepts[k]);
    return dti_op_clash(call, m, "operands lie as %s, but the row accepts %s or all Replicate",
                        have, lines);
}

static dt_status shard_dim(dti_op_call *call, int m)
{
    bool whole = true, alike;
    const dt_placement *cut = cut_of(call, m, &alike);

    for (int i = 0; i < call->n; i++)
        whole = whole && call->in_place[i][m].kind == DT_PLACE_REPLICATE;
    if (whole) return DT_OK;
    for (int slices = 0; slices <= 1 && alike; slices++)
        for (int k = 0; k < call->row->n_accepted; k++)
            if (fits(call, &call->row->accepted[k], m, slices == 1))
                return take(call, &call->row->accepted[k], m, cut);
    return refuse(call, m, alike);
}

dt_status dti_shard_accepts(dti_op_call *call)
{
    return dti_shard_dims(call, shard_dim);
}

/* --- extents ---------------------------------------------------------------------------------- */

/* What is cut on a mesh dim: an axis of an operand or of a result. */
typedef struct cut_axis {
    const char *what;
    int which, axis;
    int64_t extent;
    bool even; /* into pieces of one size */
} cut_axis;

static bool find_cut(const dt_layout *x, const dt_op_shape *shape, int m, cut_axis *out)
{
    const dt_placement *p = &x->place[m];
    int dims[DT_MAX_DIMS];
    int64_t pieces;

    if (!(x->shard_dims >> m & 1u)) return false;
    pieces = p->unit;
    for (int c = dti_layout_cuts(x, p->axis, dims); c > 0; c--)
        pieces *= x->dim_size[dims[c - 1]] / x->place[dims[c - 1]].replicas;
    out->axis = p->axis;
    out->extent = shape->extent[p->axis];
    out->even = out->extent % pieces == 0 && !(x->table_axes >> p->axis & 1u);
    return true;
}

dt_status dti_accepts_fit(const dt_op_shapes *call, const dt_layout *const *in,
                          const dt_layout *const *out)
{
    for (int m = 0; m < in[0]->n_dims; m++) {
        cut_axis first = { .what = NULL };
        for (int k = 0; k < call->n_in + call->n_out; k++) {
            const bool result = k >= call->n_in;
            const int which = result ? k - call->n_in : k;
            cut_axis c = { .what = result ? "result" : "operand", .which = which };
            if (!find_cut(result ? out[which] : in[which],
                          result ? &call->out[which] : &call->in[which], m, &c))
                continue;
            if (first.what == NULL) first = c;
            DT_CHECK(c.extent == first.extent || (c.even && first.even), DT_ERR_SHAPE,
                     "%s \"%s\": one mesh dim cuts axis %d of %s %d, which has %lld, and axis %d "
                     "of %s %d, which has %lld: they are not of one extent, so their pieces have "
                     "to be equal ones",
                     call->op->name, call->op->axes, first.axis, first.what, first.which,
                     (long long)first.extent, c.axis, c.what, c.which, (long long)c.extent);
        }
    }
    return DT_OK;
}
