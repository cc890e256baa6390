/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass, part by part: embed, every block, head of the rows that are wanted. What each part
 * gives is checked. */
#include <dtensor/gradients.h>
#include <string.h>

#include "base/text.h"
#include "dtensor/create.h"
#include "models/run/forward.h"
#include "models/run/paged.h"

/* What was open and is expected when a function of an architecture returns. */
typedef struct part {
    const char *name; /* "block" */
    int n_scopes;
    int64_t shape[3];
} part;

static dt_tensor *wrong_scopes(dt_tape *t, const part *p)
{
    const char *open = dti_tape_scope(t);
    const int n = dti_tape_n_scopes(t) - p->n_scopes;

    if (n < 0)
        return dt_tape_fail(t, DT_ERR_ARG, "%s() ended %d scope%s that it did not begin", p->name,
                            -n, n < -1 ? "s" : "");
    for (int i = 0; i < n; i++) (void)dt_scope_end(t, NULL);
    return dt_tape_fail(t, DT_ERR_ARG,
                        "%s() left %d scope%s open, \"%s\": a dt_scope_end() is missing", p->name,
                        n, n > 1 ? "s" : "", open);
}

/* Anything else would be taken for hidden states or scores of tokens. NULL after an error. */
static dt_tensor *check(dt_tape *t, const part *p, dt_tensor *y)
{
    int64_t shape[DT_MAX_AXES];
    bool same = y != NULL && dt_tensor_n_axes(y) == 3;
    char got[96], wanted[96];

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (dti_tape_n_scopes(t) != p->n_scopes) return wrong_scopes(t, p);
    if (y == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "%s() returned NULL without an error on the tape",
                            p->name);
    for (int a = 0; same && a < 3; a++) same = dt_tensor_extent(y, a) == p->shape[a];
    if (same) return y;
    for (int a = 0; a < dt_tensor_n_axes(y); a++) shape[a] = dt_tensor_extent(y, a);
    return dt_tape_fail(t, DT_ERR_SHAPE, "%s() returned %s, must be %s: batch, tokens, %s", p->name,
                        dti_shape_text(shape, dt_tensor_n_axes(y), got, sizeof got),
                        dti_shape_text(p->shape, 3, wanted, sizeof wanted),
                        strcmp(p->name, "head") == 0 ? "vocab_size" : "hidden_size");
}

/* The last rows of x [batch, tokens, ...] if logits are wanted of no others. */
static dt_tensor *wanted_rows(dt_tape *t, const dt_model_pass *pass, dt_tensor *x)
{
    const dt_layout *before;

    if (x != NULL && pass->paged != NULL) return dti_paged_take(t, pass->paged, x);
    if (x == NULL || pass->rows == DT_LOGITS_ALL || dt_tensor_extent(x, 1) == 1) return x;
    before = dt_tensor_layout(x);
    x = dt_slice(t, x, 1, -1, 1);
    for (int m = 0; m < dt_layout_n_dims(before) && x != NULL; m++) {
        const dt_placement cut = dt_layout_placement(before, m);
        if (cut.kind == DT_PLACE_SHARD && cut.axis == 1) x = dt_move_dim(t, x, m, DT_REPLICATE);
    }
    return x;
}

/* What a part reads besides, in its in[]. */
enum { X, IDS, POSITIONS, SEGMENTS, ROWS_OF, TABLES, N_IN = TABLES + DT_MAX_TABLES };

/* Block i of a pass, as a part that can be run again: its in[] is named above. */
typedef struct block_call {
    const dt_model *m;
    dt_model_pass pass;
    int64_t i;
} block_call;

static dt_tensor *call_block(dt_tape *t, const void *arg, int n, dt_tensor *const *in)
{
    const block_call *c = arg;
    const dt_model *m = c->m;
    dt_model_pass pass = c->pass;
    dt_flow flow = { .x = in[X] };
    part p = { "block",
               dti_tape_n_scopes(t),
               { dt_tensor_extent(in[X], 0), dt_tensor_extent(in[X], 1), m->info.hidden_size } };

    (void)n;
    pass.ids = in[IDS];
    pass.positions = in[POSITIONS];
    pass.segments = in[SEGMENTS];
    pass.rows_of = in[ROWS_OF];
    memcpy(flow.tables, in + TABLES, sizeof flow.tables);
    return check(t, &p, m->arch->block(m->self, t, &pass, c->i, &flow));
}

/* x after block i, in the place of in->x, or the tape would hold one per block until the end. */
static dt_tensor *run_block(dt_tape *t, const dt_model *m, const dt_model_pass *pass, int64_t i,
                            const dt_flow *in, bool again)
{
    dt_tensor *operands[N_IN] = { in->x, pass->ids, pass->positions, pass->segments,
                                  pass->rows_of };
    const block_call call = { m, *pass, i };
    dt_tensor *y;

    memcpy(operands + TABLES, in->tables, sizeof in->tables);
    dt_scope_begin(t, m->block_names[i].text);
    y = again ? dt_recompute(t, call_block, &call, sizeof call, N_IN, operands)
              : call_block(t, &call, N_IN, operands);
    y = dt_scope_end(t, y);
    if (y != in->x) dt_tape_drop(t, in->x);
    return y;
}

/* Tells who waits, and asks whether to go on. */
static bool goes_on(dt_tape *t, const dt_model_pass *pass, int64_t i)
{
    if (pass->progress != NULL) pass->progress(pass->progress_arg, i, pass->n_layers);
    if (pass->go_on == NULL || pass->go_on(pass->go_on_arg)) return true;
    (void)dt_tape_fail(t, DT_ERR_ARG, "the pass was broken off before layer %lld of %lld",
                       (long long)i, (long long)pass->n_layers);
    return false;
}

static void show(dt_tape *t, const dt_model_pass *pass, int64_t i, dt_tensor *x)
{
    if (pass->see != NULL && x != NULL) pass->see(pass->see_arg, t, i, x);
}

static dt_tensor *embed(dt_tape *t, const dt_model *m, const dt_model_pass *pass)
{
    part p = { "embed",
               dti_tape_n_scopes(t),
               { dt_tensor_extent(pass->ids, 0), dt_tensor_extent(pass->ids, 1),
                 m->info.hidden_size } };

    return check(t, &p, m->arch->embed(m->self, t, pass));
}

dt_tensor *dti_pass_body(dt_tape *t, const dt_model *m, const dt_model_pass *pass,
                         const dti_stage *stage, dt_tensor *x, bool again)
{
    const dt_arch *arch = m->arch;
    dt_flow flow = { .x = stage->embeds ? embed(t, m, pass) : x };

    if (arch->tables != NULL && flow.x != NULL && stage->n > 0)
        arch->tables(m->self, t, pass, flow.tables);
    for (int64_t i = stage->first; i < stage->first + stage->n && flow.x != NULL; i++) {
        show(t, pass, i, flow.x);
        flow.x = goes_on(t, pass, i) ? run_block(t, m, pass, i, &flow, again) : NULL;
    }
    if (stage->heads) show(t, pass, pass->n_layers, flow.x);
    return flow.x;
}

dt_tensor *dti_pass_head(dt_tape *t, const dt_model *m, dt_tensor *x)
{
    part p = { "head",
               dti_tape_n_scopes(t),
               { dt_tensor_extent(x, 0), dt_tensor_extent(x, 1), m->info.vocab_size } };

    return check(t, &p, m->arch->head(m->self, t, x));
}

typedef struct pass_call {
    dt_model_pass pass;
    bool heads;
} pass_call;

static dt_tensor *run_stage(dt_tape *t, dt_model *m, const void *arg, const dti_stage *stage,
                            dt_tensor *x)
{
    const pass_call *c = arg;

    x = dti_pass_body(t, m, &c->pass, stage, x, false);
    if (!stage->heads || x == NULL) return x;
    if (!c->heads) return NULL;
    x = wanted_rows(t, &c->pass, x);
    return x != NULL ? dti_pass_head(t, m, x) : NULL;
}

dti_result dti_pass_enter(dt_tape *t, dt_model *m, const dt_model_pass *pass, bool heads)
{
    const int64_t rows = pass->rows == DT_LOGITS_ALL ? dt_tensor_extent(pass->ids, 1) : 1;
    const int64_t batch = pass->paged != NULL ? pass->paged->n_out : dt_tensor_extent(pass->ids, 0);
    const dt_tensor_kind made = dti_logits_kind(m, batch, rows);
    pass_call call = { *pass, heads };

    if (m->stages.n_meshes > 1) { /* ranks come to different blocks: they are asked before all */
        if (!goes_on(t, pass, 0)) return (dti_result){ 0 };
        call.pass.go_on = NULL;
    }
    return dti_enter_stages(t, m, pass->ids, run_stage, &call, heads ? &made : NULL);
}

dt_tensor *dti_pass_run(dt_tape *t, dt_model *m, const dt_model_pass *pass)
{
    dti_result r = dti_pass_enter(t, m, pass, true);

    return dti_leave_stages(t, &r);
}
