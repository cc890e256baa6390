/* SPDX-License-Identifier: Apache-2.0
 *
 * A model in stages, each on a record of its own: what one receives of another is an input there,
 * and its gradient the seed of the other's pass. All bits are those of one record. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/device/device.h"
#include "mesh/runtime.h"
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

static dt_status forward(scene *s, int m, bool again, bool thrifty, dt_tensor **in, dt_tensor **y)
{
    for (int k = 0; k < STAGES; k++) {
        dt_tape *t = s->tape[m][k];
        dt_tape_reset(t);
        dt_tape_record(t, s->g);
        dt_tape_set_thrifty(t, thrifty);
        if (k > 0) in[k] = dt_tape_input(t, y[k - 1]);
        y[k] = stage(s, t, k, m, again, in[k]);
        DT_TRY(dt_tape_status(t));
    }
    return DT_OK;
}

static dt_status in_stages(scene *s, bool again, bool thrifty, outcome *out)
{
    dt_tensor *in[MICROBATCHES][STAGES + 1] = { { NULL } }, *y[MICROBATCHES][STAGES];

    for (int m = 0; m < MICROBATCHES; m++) DT_TRY(forward(s, m, again, thrifty, in[m], y[m]));
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

/* What stage k keeps between two halves: of each product an operand, which two of them share, and
 * the gradient of its result; of the norm its gradient. */
static int64_t put_off_bytes(const scene *s, int k)
{
    const dt_local *gate = dt_tensor_local(s->leaf[GATE]), *head = dt_tensor_local(s->leaf[HEAD]);
    const int64_t each = (int64_t)dt_dtype_size(gate->dtype), f = gate->shape[0],
                  v = head->shape[0];

    return k == 0   ? T * 4 + T * D * each
           : k == 1 ? D * 4 + (T * D + 2 * T * f + T * f + T * D) * each
                    : D * 4 + (T * D + T * v) * each;
}

/* The same in halves: the second ones of a stage wait until all first ones are done, and come in
 * the order that is given. */
static dt_status in_halves(scene *s, bool again, bool thrifty, const int *order)
{
    const dt_backward_options second = { .half = DT_BACKWARD_WEIGHTS };
    dt_tensor *in[MICROBATCHES][STAGES + 1] = { { NULL } }, *y[MICROBATCHES][STAGES];

    for (int m = 0; m < MICROBATCHES; m++) {
        dt_backward_options first = { .half = DT_BACKWARD_INPUTS };
        DT_TRY(forward(s, m, again, thrifty, in[m], y[m]));
        for (int k = STAGES - 1; k >= 0; k--) {
            dt_tape *t = s->tape[m][k];
            dt_backward(t, y[m][k], &first);
            first.seed = k > 0 ? dt_tape_input_gradient(t, in[m][k]) : NULL;
            DT_TRY(dt_tape_status(t));
        }
    }
    for (int i = 0; i < LEAVES; i++)
        DT_EXPECT(dt_gradient(s->g, s->leaf[i]) == NULL, "leaf %d in a first half", i);
    for (int k = 0; k < STAGES; k++)
        for (int m = 0; m < MICROBATCHES; m++) {
            dt_tape *t = s->tape[order[m]][k];
            DT_EXPECT_EQ_INT(dt_tape_kept_bytes(t), put_off_bytes(s, k));
            dt_backward(t, NULL, &second);
            DT_TRY(dt_tape_status(t));
            DT_EXPECT(dt_tape_kept_bytes(t) == 0, "given back");
            dt_tape_reset(t);
        }
    return DT_OK;
}

static dt_status compare(dt_mesh *mesh, const void *arg)
{
    const dt_dtype dtype = *(const dt_dtype *)arg;
    scene s = { NULL };
    dt_status st = open_scene(mesh, dtype, &s);

    for (int how = 0; how < 4 && st == DT_OK; how++) {
        static const int ascending[] = { 0, 1, 2 }, other[] = { 2, 0, 1 };
        outcome one, stages;
        DT_TRY_TO(done, st, in_one(&s, how & 1, how & 2, &one));
        DT_TRY_TO(done, st, in_stages(&s, how & 1, how & 2, &stages));
        for (int i = 0; i < LEAVES; i++)
            DT_EXPECT_TO(done, st, memcmp(one.bits[i], stages.bits[i], sizeof *one.bits) == 0,
                         "leaf %d has other bits in stages, %s, way %d", i, dt_dtype_name(dtype),
                         how);
        DT_TRY_TO(done, st, in_halves(&s, how & 1, how & 2, ascending));
        DT_TRY_TO(done, st, bits_of(&s, &stages));
        for (int i = 0; i < LEAVES; i++)
            DT_EXPECT_TO(done, st, memcmp(one.bits[i], stages.bits[i], sizeof *one.bits) == 0,
                         "leaf %d has other bits in halves, %s, way %d", i, dt_dtype_name(dtype),
                         how);
        DT_TRY_TO(done, st, in_halves(&s, how & 1, how & 2, other));
        DT_TRY_TO(done, st, bits_of(&s, &stages));
        DT_EXPECT_TO(done, st, memcmp(&one, &stages, sizeof one) != 0,
                     "an order of second halves would be seen");
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

/* --- halves by themselves --------------------------------------------------------------------- */

static dt_status warm(dt_mesh *mesh, scene *s)
{
    static const int ascending[] = { 0, 1, 2 };
    uint64_t allocated = 0;
    outcome out;

    (void)mesh;
    for (int round = 0; round < 6; round++) {
        if (round == 4) allocated = dti_alloc_count();
        DT_TRY(in_halves(s, round % 2 == 1, false, ascending));
        DT_TRY(bits_of(s, &out));
    }
    DT_EXPECT(dti_alloc_count() == allocated, "%d blocks from the system",
              (int)(dti_alloc_count() - allocated));
    return DT_OK;
}

/* A dry run keeps the same, and counts the same memory. */
static dt_status dry(dt_mesh *mesh, const void *arg)
{
    static const int ascending[] = { 0, 1, 2 };
    const dt_dtype dtype = *(const dt_dtype *)arg;
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    dt_runtime *rt[2] = { dt_mesh_runtime(mesh), NULL };
    dt_mesh *on[2] = { mesh, NULL };
    size_t peak[2] = { 0, 0 };
    dt_status st;

    o.n_ranks = dt_runtime_size(rt[0]);
    DT_TRY(dt_runtime_create_dry(&o, dt_runtime_rank(rt[0]), rt[0], &rt[1]));
    DT_TRY_TO(done, st, dti_mesh_copy(mesh, rt[1], &on[1]));
    for (int k = 0; k < 2; k++) {
        scene s = { NULL };
        dti_device *device;
        st = open_scene(on[k], dtype, &s);
        for (int how = 0; how < 4 && st == DT_OK; how++) {
            st = in_halves(&s, how & 1, how & 2, ascending);
            dt_gradients_clear(s.g);
        }
        close_scene(&s);
        DT_TRY_TO(done, st, st);
        DT_TRY_TO(done, st, dti_device_of(rt[k], &device));
        peak[k] = dti_memory_peak(device->memory);
    }
    DT_EXPECT_TO(done, st, peak[0] == peak[1], "%zu bytes, dry %zu", peak[0], peak[1]);
done:
    dt_mesh_release(&on[1]);
    dt_runtime_release_dry(&rt[1]);
    return st;
}

/* Gradients of what is made, of activations and of leaves alone, come once. */
static dt_status watched(dt_mesh *mesh, scene *s)
{
    dt_tape *t = s->tape[0][0];
    dt_tensor *made[2][3] = { { NULL } };
    dt_status st = DT_OK;

    (void)mesh;
    for (int halves = 0; halves <= 1; halves++) {
        dt_backward_options how = { .half = halves ? DT_BACKWARD_INPUTS : DT_BACKWARD_WHOLE };
        dt_tensor *y[3], *z;
        dt_tape_reset(t);
        dt_tape_record(t, s->g);
        y[0] = dt_tape_watch(t, dt_tanh(t, s->leaf[DOWN]));
        y[1] = dt_tape_watch(t, stage(s, t, 0, 0, false, NULL));
        y[2] = dt_tape_watch(t, dt_linear(t, y[1], s->leaf[GATE], NULL));
        z = dt_test_reduced(t, dt_linear(t, y[2], y[0], NULL));
        dt_backward(t, dt_sum(t, dt_mul(t, z, z), DT_ALL_AXES), &how);
        how.half = DT_BACKWARD_WEIGHTS;
        if (halves) dt_backward(t, NULL, &how);
        DT_TRY_TO(done, st, dt_tape_status(t));
        for (int i = 0; i < 3; i++) made[halves][i] = dt_tensor_retain(dt_gradient(s->g, y[i]));
        dt_gradients_clear(s->g);
    }
    for (int i = 0; i < 3; i++)
        DT_TRY_TO(done, st, dt_test_expect_same(made[1][i], made[0][i], "a whole pass"));
done:
    for (int i = 0; i < 6; i++) dt_tensor_release(&made[i / 3][i % 3]);
    return st;
}

#define REFUSED(call, says)                                    \
    do {                                                       \
        dt_tape_reset(t);                                      \
        dt_tape_record(t, s->g);                               \
        call;                                                  \
        DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, says); \
    } while (0)

static dt_status bad_halves(dt_mesh *mesh, scene *s)
{
    const dt_backward_options first = { .half = DT_BACKWARD_INPUTS },
                              second = { .half = DT_BACKWARD_WEIGHTS };
    dt_tape *t = s->tape[0][0];
    dt_tensor *x = s->leaf[GATE], *y;

    (void)mesh;
#define LOSS (y = dt_sum(t, dt_mul(t, dt_tape_input(t, x), x), DT_ALL_AXES))
    REFUSED(dt_backward(t, NULL, &second), "no first half");
    REFUSED(dt_backward(t, NULL, &first), "from is NULL");
    REFUSED(dt_backward(t, LOSS, &second), "`from` and the seed are NULL");
    REFUSED(dt_backward(t, LOSS, &(dt_backward_options){ .half = first.half, .keep = true }),
            "without `keep`");
    REFUSED(dt_backward(t, LOSS, &first); dt_backward(t, y, &first), "the second half");
    REFUSED(dt_backward(t, LOSS, &first); dt_backward(t, y, NULL), "the second half");
    REFUSED(dt_backward(t, LOSS, &first); dt_backward(t, NULL, &second);
            dt_backward(t, NULL, &second), "no first half");
    REFUSED(dt_backward(t, LOSS, &first); dt_gradients_clear(s->g);
            dt_backward(t, NULL, &second), "was cleared between two halves");
    REFUSED(dt_backward(t, LOSS, &first); dt_tape_watch(t, dt_mul(t, x, x)), "does not record");
#undef LOSS
    return DT_OK;
}

/* --- inputs by themselves --------------------------------------------------------------------- */

static dt_status inputs(dt_mesh *mesh, scene *s)
{
    dt_tape *t = s->tape[0][0];
    dt_tensor *x = s->leaf[GATE], *in, *y;
    const void *before = dt_tensor_local(x)->data;
    const dt_placement terms = DT_PARTIAL(DT_SUM);
    DT_HELD(tensor) *sum = NULL;

    DT_EXPECT(dt_tape_input(t, x) == x, "nothing is recorded");
    dt_tape_record(t, s->g);
    in = dt_tape_input(t, x);
    DT_EXPECT(in != x && dt_tensor_local(in)->data == before, "the same bytes");
    DT_EXPECT(dt_tape_input_gradient(t, in) == NULL, "nothing has come");
    y = dt_mul(t, in, x); /* one is a leaf of the record, one of the collection */
    for (int pass = 1; pass <= 2; pass++)
        dt_backward(t, y, &(dt_backward_options){ .seed = x, .keep = true });
    DT_TRY(dt_tape_status(t));
    y = dt_tape_input_gradient(t, in); /* of both passes: 2 x x */
    DT_TRY(dt_test_expect_same(y, dt_mul_scalar(t, dt_mul(t, x, x), 2.0), "twice the square"));
    DT_TRY(dt_test_expect_same(y, dt_gradient(s->g, x), "the leaf's gradient"));

    DT_TRY(dt_test_arange(mesh, &terms, DT_F32, 1, (const int64_t[]){ D }, &sum));
    dt_tape_record(t, s->g);
    in = dt_tape_input(t, sum);
    y = dt_test_reduced(t, in);
    dt_backward(t, y, &(dt_backward_options){ .seed = s->leaf[NORM] });
    DT_TRY(dt_test_expect_same(dt_tape_input_gradient(t, in), s->leaf[NORM], "of terms"));

    REFUSED(dt_tape_input(t, NULL), "x is NULL");
    REFUSED(dt_tape_input(t, s->ids), "of integers");
    REFUSED(dt_tape_input_gradient(t, NULL), "x is NULL");
    REFUSED(dt_tape_input_gradient(t, x), "no input of this tape's record");
    REFUSED(dt_tape_input_gradient(t, dt_mul(t, x, x)), "no input of this tape's record");
    REFUSED(in = dt_tape_input(t, x); y = dt_mul(t, in, in); dt_tape_record(t, s->g);
            dt_tape_input_gradient(t, in), "no input of this tape's record");
    return DT_OK;
}

typedef dt_status (*scene_body)(dt_mesh *mesh, scene *s);

static dt_status on_scene(dt_mesh *mesh, const void *arg)
{
    scene s = { NULL };
    dt_status st = open_scene(mesh, DT_F32, &s);

    if (st == DT_OK) st = (*(const scene_body *)arg)(mesh, &s);
    close_scene(&s);
    return st;
}

static void on_scenes(scene_body body)
{
    dt_test_on_ranks("tp=1", on_scene, &body);
    dt_test_on_ranks("tp=2", on_scene, &body);
}

DT_TEST(stages, inputs_are_leaves_of_one_record)
{
    on_scenes(inputs);
}

DT_TEST(stages, second_halves_that_wait_take_no_memory_from_the_system)
{
    on_scenes(warm);
}

DT_TEST(stages, dry_runs_keep_the_same_between_halves)
{
    for (size_t d = 0; d < DT_COUNT(dtypes); d++) {
        dt_test_on_ranks("tp=1", dry, &dtypes[d]);
        dt_test_on_ranks("tp=3", dry, &dtypes[d]);
    }
}

DT_TEST(stages, halves_give_gradients_of_what_is_made_once)
{
    on_scenes(watched);
}

DT_TEST(stages, halves_out_of_order_are_refused)
{
    on_scenes(bad_halves);
}
