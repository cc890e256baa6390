/* SPDX-License-Identifier: Apache-2.0
 *
 * A model in stages, each on a record of its own: what one receives of another is an input there,
 * and its gradient the seed of the other's pass. All bits are those of one record. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { V = 11, D = 6, F = 10, T = 5, MOST = V * D };
enum { STAGES = 3, MICROBATCHES = 3 };
enum { TABLE, NORM, GATE, UP, DOWN, LAST_NORM, HEAD, LEAVES };

/* An embedding; a block whose products are cut over the ranks; a norm, a head and a loss. */
typedef struct scene {
    dt_gradients *g;
    dt_tensor *leaf[LEAVES], *ids;
    dt_tape *tape[MICROBATCHES][STAGES];
} scene;

static dt_status open_scene(dt_mesh *mesh, dt_dtype dtype, scene *s)
{
    const struct {
        dt_placement place;
        int n_axes;
        int64_t shape[2];
    } rows[LEAVES] = {
        [TABLE] = { DT_SHARD(0), 2, { V, D } }, [NORM] = { DT_REPLICATE, 1, { D } },
        [GATE] = { DT_SHARD(0), 2, { F, D } },  [UP] = { DT_SHARD(0), 2, { F, D } },
        [DOWN] = { DT_SHARD(1), 2, { D, F } },  [LAST_NORM] = { DT_REPLICATE, 1, { D } },
        [HEAD] = { DT_SHARD(0), 2, { V, D } }
    };
    const dt_placement whole = DT_REPLICATE;
    const int64_t tokens[] = { T };
    const int32_t ids[T] = { 3, 10, 0, 3, 7 };
    dt_runtime *rt = dt_mesh_runtime(mesh);

    DT_TRY(dt_gradients_create(rt, &s->g));
    DT_TRY(dt_distribute(mesh, &whole, DT_I32, 1, tokens, (dt_source){ ids, DT_EQUAL_COPIES },
                         &s->ids));
    for (int i = 0; i < LEAVES; i++) {
        DT_TRY(dt_randn(mesh, &rows[i].place, dtype, rows[i].n_axes, rows[i].shape,
                        (dt_random){ 5, (uint64_t)i }, &s->leaf[i]));
        DT_TRY(dt_gradients_watch(s->g, s->leaf[i]));
    }
    for (int m = 0; m < MICROBATCHES; m++)
        for (int k = 0; k < STAGES; k++) DT_TRY(dt_tape_create(rt, &s->tape[m][k]));
    return DT_OK;
}

static void close_scene(scene *s)
{
    for (int m = 0; m < MICROBATCHES; m++)
        for (int k = 0; k < STAGES; k++) dt_tape_release(&s->tape[m][k]);
    dt_gradients_release(&s->g);
    dt_tensor_release(&s->ids);
    for (int i = 0; i < LEAVES; i++) dt_tensor_release(&s->leaf[i]);
}

static dt_tensor *block(dt_tape *t, const void *arg, int n, dt_tensor *const *in)
{
    dt_tensor *const *leaf = ((const scene *)arg)->leaf;
    dt_tensor *x = dt_rms_norm(t, in[0], leaf[NORM], 1e-5f);

    (void)n;
    x = dt_silu_mul(t, dt_linear(t, x, leaf[GATE], NULL), dt_linear(t, x, leaf[UP], NULL));
    x = dt_test_reduced(t, dt_linear(t, x, leaf[DOWN], NULL));
    return dt_add(t, in[0], dt_cast(t, x, dt_tensor_dtype(in[0])));
}

/* Microbatch m counts m + 1 times. */
static dt_tensor *stage(scene *s, dt_tape *t, int k, int m, bool again, dt_tensor *x)
{
    dt_tensor *const *leaf = s->leaf;

    if (k == 0) return dt_test_reduced(t, dt_embedding(t, s->ids, leaf[TABLE]));
    if (k == 1) return again ? dt_recompute(t, block, s, sizeof *s, 1, &x) : block(t, s, 1, &x);
    x = dt_linear(t, dt_rms_norm(t, x, leaf[LAST_NORM], 1e-5f), leaf[HEAD], NULL);
    x = dt_test_reduced(t, dt_sum(t, dt_mul(t, x, x), DT_ALL_AXES));
    return dt_mul_scalar(t, x, m + 1.0);
}

/* Of a step on one record for each microbatch, or on one for each stage of it: all gradients. */
typedef struct outcome {
    float bits[LEAVES][MOST];
} outcome;

static dt_status bits_of(scene *s, outcome *out)
{
    memset(out, 0, sizeof *out);
    DT_TRY(dt_gradients_settle(s->g, NULL));
    for (int i = 0; i < LEAVES; i++) {
        DT_HELD(tensor) *full = NULL;
        const dt_local *l;
        DT_EXPECT(dt_gradient(s->g, s->leaf[i]) != NULL, "leaf %d has no gradient", i);
        DT_TRY(dt_full_tensor(dt_gradient(s->g, s->leaf[i]), &full));
        l = dt_tensor_local(full);
        memcpy(out->bits[i], l->data,
               (size_t)(l->shape[0] * (l->n_axes > 1 ? l->shape[1] : 1)) * sizeof(float));
    }
    dt_gradients_clear(s->g);
    return DT_OK;
}

static dt_status in_one(scene *s, bool again, bool thrifty, outcome *out)
{
    dt_tape *t = s->tape[0][0];

    for (int m = 0; m < MICROBATCHES; m++) {
        dt_tensor *x = NULL;
        dt_tape_reset(t);
        dt_tape_record(t, s->g);
        dt_tape_set_thrifty(t, thrifty);
        for (int k = 0; k < STAGES; k++) x = stage(s, t, k, m, again, x);
        dt_backward(t, x, NULL);
        DT_TRY(dt_tape_status(t));
    }
    dt_tape_reset(t);
    return bits_of(s, out);
}

static dt_status in_stages(scene *s, bool again, bool thrifty, outcome *out)
{
    dt_tensor *in[MICROBATCHES][STAGES + 1] = { { NULL } }, *y[MICROBATCHES][STAGES];

    for (int m = 0; m < MICROBATCHES; m++)
        for (int k = 0; k < STAGES; k++) {
            dt_tape *t = s->tape[m][k];
            dt_tape_reset(t);
            dt_tape_record(t, s->g);
            dt_tape_set_thrifty(t, thrifty);
            if (k > 0) in[m][k] = dt_tape_input(t, y[m][k - 1]);
            y[m][k] = stage(s, t, k, m, again, in[m][k]);
            DT_TRY(dt_tape_status(t));
        }
    for (int m = 0; m < MICROBATCHES; m++) {
        dt_tensor *dy = NULL;
        for (int k = STAGES - 1; k >= 0; k--) {
            dt_tape *t = s->tape[m][k];
            dt_backward(t, y[m][k], &(dt_backward_options){ .seed = dy });
            dy = k > 0 ? dt_tape_input_gradient(t, in[m][k]) : NULL;
            DT_TRY(dt_tape_status(t));
            DT_EXPECT(k == 0 || dt_tensor_layout(dy) == dt_tensor_layout(in[m][k]), "lies as x");
            DT_EXPECT(k == 0 || dt_tensor_dtype(dy) == dt_tensor_dtype(in[m][k]), "as x is");
            DT_EXPECT(k == 0 || dt_tape_input_gradient(t, in[m][k]) == NULL, "it is taken");
            DT_EXPECT(dt_tape_kept_bytes(t) == 0, "given back");
        }
    }
    for (int m = 0; m < MICROBATCHES; m++)
        for (int k = 0; k < STAGES; k++) dt_tape_reset(s->tape[m][k]);
    DT_EXPECT(dt_gradients_at(s->g, LEAVES) == NULL, "inputs are no leaves of the collection");
    return bits_of(s, out);
}

static dt_status compare(dt_mesh *mesh, const void *arg)
{
    const dt_dtype dtype = *(const dt_dtype *)arg;
    scene s = { NULL };
    dt_status st = open_scene(mesh, dtype, &s);

    for (int how = 0; how < 4 && st == DT_OK; how++) {
        outcome one, stages;
        DT_TRY_TO(done, st, in_one(&s, how & 1, how & 2, &one));
        DT_TRY_TO(done, st, in_stages(&s, how & 1, how & 2, &stages));
        for (int i = 0; i < LEAVES; i++)
            DT_EXPECT_TO(done, st, memcmp(one.bits[i], stages.bits[i], sizeof *one.bits) == 0,
                         "leaf %d has other bits in stages, %s, way %d", i, dt_dtype_name(dtype),
                         how);
    }
done:
    close_scene(&s);
    return st;
}

static const dt_dtype dtypes[] = { DT_F32, DT_BF16 };

DT_TEST(stages, records_of_stages_have_the_bits_of_one)
{
    for (size_t d = 0; d < DT_COUNT(dtypes); d++) {
        dt_test_on_ranks("tp=1", compare, &dtypes[d]);
        dt_test_on_ranks("tp=2", compare, &dtypes[d]);
        dt_test_on_ranks("tp=3", compare, &dtypes[d]);
    }
}

/* --- inputs by themselves --------------------------------------------------------------------- */

#define REFUSED(call, says)                                    \
    do {                                                       \
        dt_tape_reset(t);                                      \
        dt_tape_record(t, s.g);                                \
        call;                                                  \
        DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, says); \
    } while (0)

static dt_status inputs(dt_mesh *mesh, scene *with)
{
    const scene s = *with;
    dt_tape *t = s.tape[0][0];
    dt_tensor *x = s.leaf[GATE], *in, *y;
    const void *before = dt_tensor_local(x)->data;

    DT_EXPECT(dt_tape_input(t, x) == x, "nothing is recorded");
    dt_tape_record(t, s.g);
    in = dt_tape_input(t, x);
    DT_EXPECT(in != x && dt_tensor_local(in)->data == before, "the same bytes");
    DT_EXPECT(dt_tape_input_gradient(t, in) == NULL, "nothing has come");
    y = dt_mul(t, in, x); /* one is a leaf of the record, one of the collection */
    for (int pass = 1; pass <= 2; pass++)
        dt_backward(t, y, &(dt_backward_options){ .seed = x, .keep = true });
    DT_TRY(dt_tape_status(t));
    y = dt_tape_input_gradient(t, in); /* of both passes: 2 x x */
    DT_TRY(dt_test_expect_same(y, dt_mul_scalar(t, dt_mul(t, x, x), 2.0), "twice the square"));
    DT_TRY(dt_test_expect_same(y, dt_gradient(s.g, x), "the leaf's gradient"));

    REFUSED(dt_tape_input(t, NULL), "x is NULL");
    REFUSED(dt_tape_input(t, s.ids), "of integers");
    REFUSED(dt_tape_input_gradient(t, NULL), "x is NULL");
    REFUSED(dt_tape_input_gradient(t, x), "no input of this tape's record");
    REFUSED(dt_tape_input_gradient(t, dt_mul(t, x, x)), "no input of this tape's record");
    REFUSED(in = dt_tape_input(t, x); y = dt_mul(t, in, in); dt_tape_record(t, s.g);
            dt_tape_input_gradient(t, in), "no input of this tape's record");
    (void)mesh;
    return DT_OK;
}

static dt_status on_scene(dt_mesh *mesh, const void *arg)
{
    scene s = { NULL };
    dt_status st = open_scene(mesh, DT_F32, &s);

    (void)arg;
    if (st == DT_OK) st = inputs(mesh, &s);
    close_scene(&s);
    return st;
}

DT_TEST(stages, inputs_are_leaves_of_one_record)
{
    dt_test_on_ranks("tp=1", on_scene, NULL);
    dt_test_on_ranks("tp=2", on_scene, NULL);
}
