/* SPDX-License-Identifier: Apache-2.0
 *
 * One driver for every row of the operator table: whatever placements a row accepts, the gathered
 * result is that of whole operands; what it refuses, it refuses as a layout. */
#include <dtensor/ops.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"
#include "tests/support/dt_test.h"
#include "tests/support/row_cases.h"
#include "tests/support/tensors.h"

static dt_status compare(const row_case *c, dt_tensor *got, dt_tensor *want)
{
    const dt_local *g = dt_tensor_local(got), *w = dt_tensor_local(want);
    DT_HELD(tensor) *full = NULL;
    int64_t n = 1;

    DT_TRY(dt_full_tensor(got, &full));
    g = dt_tensor_local(full);
    DT_EXPECT(g->n_axes == w->n_axes, "axes");
    for (int a = 0; a < w->n_axes; a++) {
        DT_EXPECT(g->shape[a] == w->shape[a], "extent of axis %d", a);
        n *= w->shape[a];
    }
    for (int64_t k = 0; k < n; k++) {
        if (w->dtype == DT_U8) {
            DT_EXPECT(((const uint8_t *)g->data)[k] == ((const uint8_t *)w->data)[k],
                      "%s: byte %lld", c->op->name, (long long)k);
            continue;
        }
        if (w->dtype == DT_I64) {
            DT_EXPECT(((const int64_t *)g->data)[k] == ((const int64_t *)w->data)[k],
                      "%s: key %lld", c->op->name, (long long)k);
            continue;
        }
        const double a = (double)dti_load_f32(g->data, g->dtype, k);
        const double b = (double)dti_load_f32(w->data, w->dtype, k);
        DT_EXPECT(fabs(a - b) <= 2e-6 * (1.0 + fabs(b)), "%s: element %lld is %.9g, not %.9g",
                  c->op->name, (long long)k, a, b);
    }
    return DT_OK;
}

static dt_status compare_all(const row_case *c, dt_tensor *const *got, dt_tensor *const *want)
{
    for (int r = 0; r < row_case_results(c); r++) DT_TRY(compare(c, got[r], want[r]));
    return DT_OK;
}

/* Digits choose one placement per operand and mesh dim. */
static bool next_choice(const row_case *c, int n, int n_dims, int *digit)
{
    for (int k = 0; k < n * n_dims; k++) {
        const bool ints = row_case_is_ints(c, k / n_dims);
        if (++digit[k] <= row_case_axes(c->shape[k / n_dims]) + (ints ? 0 : 1)) return true;
        digit[k] = 0;
    }
    return false;
}

static void choice_of(const row_case *c, int i, int n_dims, const int *digit, dt_placement *place)
{
    const int n_axes = row_case_axes(c->shape[i]);

    for (int m = 0; m < n_dims; m++) {
        const int d = digit[i * n_dims + m];
        place[m] = d == 0 ? DT_REPLICATE : d <= n_axes ? DT_SHARD(d - 1) : DT_PARTIAL(DT_SUM);
    }
}

static dt_status try_choice(dt_mesh *mesh, dt_tape *t, const row_case *c, int n, const int *digit,
                            dt_tensor *const *want, int *accepted)
{
    dt_tensor *in[DT_OP_MAX_IN], *y[DT_OP_MAX_OUT];
    dt_status st;

    dt_tape_reset(t);
    for (int i = 0; i < n; i++) {
        dt_placement place[DT_MAX_DIMS];
        choice_of(c, i, dt_mesh_n_dims(mesh), digit, place);
        DT_TRY(row_case_operand(mesh, c, i, place, &in[i]));
        in[i] = dt_tape_own(t, in[i]);
    }
    dt_apply_n(t, c->op, c->attr, n, in, row_case_results(c), y);
    st = dt_tape_status(t);
    DT_EXPECT(st == DT_OK || st == DT_ERR_LAYOUT, "%s: %s", c->op->name, dt_last_error()->message);
    if (st != DT_OK) {
        DT_EXPECT(strstr(dt_last_error()->message, c->op->name) != NULL, "message names the row");
        return DT_OK;
    }
    ++*accepted;
    return compare_all(c, y, want);
}

static dt_status every_placement(dt_mesh *mesh, const void *arg)
{
    const row_case *c = arg;
    const int n_dims = dt_mesh_n_dims(mesh);
    int digit[DT_OP_MAX_IN * DT_MAX_DIMS] = { 0 }, accepted = 0;
    const int n = row_case_operands(c);
    DT_HELD(tape) *t = NULL, *whole = NULL;
    dt_tensor *in[DT_OP_MAX_IN], *want[DT_OP_MAX_OUT];

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &whole));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (int i = 0; i < n; i++) {
        const dt_placement place[DT_MAX_DIMS] = { { 0 } };
        DT_TRY(row_case_operand(mesh, c, i, place, &in[i]));
        in[i] = dt_tape_own(whole, in[i]);
    }
    dt_apply_n(whole, c->op, c->attr, n, in, row_case_results(c), want);
    DT_TRY(dt_tape_status(whole));
    do {
        DT_TRY(try_choice(mesh, t, c, n, digit, want, &accepted));
    } while (next_choice(c, n, n_dims, digit));
    if (n_dims == 1 && dt_mesh_dim_size(mesh, 0) == 2)
        DT_EXPECT(accepted >= c->accepted, "%s accepted %d placements, %d are legal", c->op->name,
                  accepted, c->accepted);
    return DT_OK;
}

DT_TEST(rows, every_accepted_placement_gives_the_whole_result)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t c = 0; c < (size_t)n_row_cases; c++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            dt_test_on_ranks(meshes[m], every_placement, &row_cases[c]);
}

/* --- placements beyond whole, cut and terms of a sum ------------------------------------------ */

enum { SAMPLES = 160 };

/* An operand that lies as one of: whole, or for each axis cut, cut with copies, packed in two
 * blocks; terms of a sum, of an average, of a maximum. `blocks` is for the packed one. */
static dt_placement rich_placement(const int64_t *shape, bool ints, int *pick, int64_t blocks[2])
{
    const int n_axes = row_case_axes(shape), n = 3 * n_axes + (ints ? 1 : 4), k = *pick % n;
    dt_placement p = DT_REPLICATE;

    *pick /= n;
    if (k >= 3 * n_axes + 1)
        return k == 3 * n_axes + 1   ? DT_PARTIAL(DT_SUM)
               : k == 3 * n_axes + 2 ? DT_PARTIAL(DT_AVG)
                                     : DT_PARTIAL(DT_MAX);
    if (k == 0) return p;
    p = DT_SHARD((k - 1) / 3);
    if (k % 3 == 2) p.replicas = 2;
    if (k % 3 == 0) {
        blocks[0] = (shape[p.axis] + 1) / 2;
        blocks[1] = shape[p.axis] - blocks[0];
        p.n_blocks = 2;
        p.blocks = blocks;
    }
    return p;
}

/* As row_case_operand(), on one mesh dim; terms of an average and of a maximum are what gives x. */
static dt_status make_rich(dt_mesh *mesh, const row_case *c, int i, dt_placement place,
                           dt_tensor **out)
{
    const int size = dt_mesh_n_ranks(mesh), me = dt_mesh_coord(mesh, 0);
    const dt_placement whole = DT_REPLICATE;
    dt_tensor *x = NULL;
    dt_status st = DT_OK;
    float *v;

    if (place.kind != DT_PLACE_PARTIAL || place.reduce == DT_SUM || size == 1)
        return row_case_operand(mesh, c, i, &place, out);
    DT_TRY(row_case_operand(mesh, c, i, &whole, &x));
    v = dt_tensor_local(x)->data;
    for (int64_t k = 0, n = dti_local_count(dt_tensor_local(x)); k < n; k++)
        v[k] += place.reduce == DT_MAX ? -0.25f * (float)me
                : me == 0              ? 0.25f * (float)(size - 1)
                                       : -0.25f;
    st = dt_from_local(mesh, &place, DT_F32, row_case_axes(c->shape[i]), c->shape[i], v, out);
    dt_tensor_release(&x);
    return st;
}

static dt_status try_rich(dt_mesh *mesh, dt_tape *t, const row_case *c, int n, uint32_t sample,
                          dt_tensor *const *want)
{
    dt_tensor *in[DT_OP_MAX_IN], *y[DT_OP_MAX_OUT];
    int64_t blocks[2];
    dt_status st;

    dt_tape_reset(t);
    for (int i = 0; i < n; i++) {
        int pick = (int)((sample * 2654435761u + (uint32_t)i * 40503u) >> 12);
        dt_placement p = rich_placement(c->shape[i], row_case_is_ints(c, i), &pick, blocks);
        if (sample % 2 == 0 && i > 0 && pick % 3 == 0) /* often as the first, so that they meet */
            p = dt_layout_placement(dt_tensor_layout(in[0]), 0);
        if (p.kind == DT_PLACE_SHARD && p.axis >= row_case_axes(c->shape[i])) p = DT_REPLICATE;
        if (p.kind == DT_PLACE_PARTIAL && row_case_is_ints(c, i)) p = DT_REPLICATE;
        if (p.n_blocks > 0 && p.blocks[0] + p.blocks[1] != c->shape[i][p.axis]) p = DT_REPLICATE;
        p.order = 0;
        DT_TRY(make_rich(mesh, c, i, p, &in[i]));
        in[i] = dt_tape_own(t, in[i]);
    }
    dt_apply_n(t, c->op, c->attr, n, in, row_case_results(c), y);
    st = dt_tape_status(t);
    DT_EXPECT(st == DT_OK || st == DT_ERR_LAYOUT, "%s: %s", c->op->name, dt_last_error()->message);
    return st == DT_OK ? compare_all(c, y, want) : DT_OK;
}

static dt_status rich_placements(dt_mesh *mesh, const void *arg)
{
    const row_case *c = arg;
    const dt_placement whole = DT_REPLICATE;
    dt_tensor *in[DT_OP_MAX_IN], *want[DT_OP_MAX_OUT];
    DT_HELD(tape) *t = NULL, *kept = NULL;
    const int n = row_case_operands(c);

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &kept));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (int i = 0; i < n; i++) {
        DT_TRY(row_case_operand(mesh, c, i, &whole, &in[i]));
        in[i] = dt_tape_own(kept, in[i]);
    }
    dt_apply_n(kept, c->op, c->attr, n, in, row_case_results(c), want);
    DT_TRY(dt_tape_status(kept));
    for (uint32_t k = 0; k < SAMPLES; k++) DT_TRY(try_rich(mesh, t, c, n, k, want));
    return DT_OK;
}

/* Blocks says in its attributes where they lie, so only placements that it was made for fit. */
DT_TEST(rows, copies_blocks_averages_and_maxima_give_the_whole_result_or_are_refused)
{
    static const char *const meshes[] = { "tp=2", "tp=4" };

    for (size_t c = 0; c < (size_t)n_row_cases; c++)
        for (size_t m = 0; m < DT_COUNT(meshes) && row_cases[c].op != &dti_op_blocks; m++)
            dt_test_on_ranks(meshes[m], rich_placements, &row_cases[c]);
}

DT_TEST(rows, products_and_sums_on_two_mesh_dims)
{
    static const dt_op *const ops[] = { &dti_op_add, &dti_op_linear, &dti_op_embedding };

    for (size_t c = 0; c < (size_t)n_row_cases; c++)
        for (size_t o = 0; o < DT_COUNT(ops); o++)
            if (row_cases[c].op == ops[o])
                dt_test_on_ranks("dp=2,tp=2", every_placement, &row_cases[c]);
}

DT_TEST(rows, every_row_has_a_case)
{
    /* kv_write, kv_write_paged and rows of slots change their operand, argmax_id and top_k take
     * keys, top_k_keys gives more of them on more ranks, attention that is trained has several
     * results, attention over blocks with a bias or sinks has too many placements, and so have
     * packed and clamped experts and the gated delta rule: all have tests of their own. */
    static const dt_op *const others[] = { &dti_op_kv_write,          &dti_op_kv_write_paged,
                                           &dti_op_causal_conv_slots, &dti_op_argmax_id,
                                           &dti_op_top_k_keys,        &dti_op_top_k };
    static const char *const several[] = { "attention_lse",    "attention_backward",
                                           "attention_paged_", "experts_packed",
                                           "experts_e4m3",     "experts_clamped",
                                           "gated_delta" };

    for (int i = 0; i < dti_op_table_size; i++) {
        bool found = false;
        for (size_t o = 0; o < DT_COUNT(others); o++) found = found || others[o] == dti_op_table[i];
        for (size_t s = 0; s < DT_COUNT(several); s++)
            found = found || strncmp(dti_op_table[i]->name, several[s], strlen(several[s])) == 0;
        for (size_t c = 0; c < (size_t)n_row_cases; c++)
            found = found || row_cases[c].op == dti_op_table[i];
        DT_ASSERT(found);
    }
}

DT_TEST(rows, letters_of_every_row_parse)
{
    for (int i = 0; i < dti_op_table_size; i++) {
        dti_letters letters;
        DT_ASSERT_OK(dti_letters_parse(dti_op_table[i]->axes, &letters));
    }
}

DT_TEST(rows, malformed_letters_are_refused_where_they_go_wrong)
{
    dti_letters letters;

    DT_ASSERT_STATUS(dti_letters_parse("ab, bc", &letters), DT_ERR_ARG, "->");
    DT_ASSERT_STATUS(dti_letters_parse("aB -> a", &letters), DT_ERR_ARG,
                     "letter from a to z is expected at \"B");
    DT_ASSERT_STATUS(dti_letters_parse("a[b -> a", &letters), DT_ERR_ARG, "']'");
    DT_ASSERT_STATUS(dti_letters_parse("a, b, c, d, e, f, g, h, i, j -> a", &letters), DT_ERR_ARG,
                     "operands");
    DT_ASSERT_STATUS(dti_letters_parse("a -> a b", &letters), DT_ERR_ARG, "nothing is expected");
}
