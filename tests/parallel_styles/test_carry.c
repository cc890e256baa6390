/* SPDX-License-Identifier: Apache-2.0
 *
 * What layers carry, when sequences are chosen and repeated, also of batches that are cut over
 * ranks. The layer adds up what it is given: h = h + x, y = h. Models that carry are in
 * tests/models/test_carried.c. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <string.h>

#include "parallel_styles/changes.h"
#include "tests/support/dt_test.h"
#include "tests/support/layers.h"

enum { C = 5, MAX_ROWS = 12 };

static dt_tensor *add_up(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *y = dt_add(t, x, dt_layer_state(t, layer, 0, x));

    dt_layer_set_state(t, layer, 0, y);
    return y;
}

static const dt_layer_kind sums = { .name = "sums",
                                    .params = { { "unused", "c" } },
                                    .states = { { "h", "c" } },
                                    .values = "...c -> ...c",
                                    .columns = 'c',
                                    .forward = add_up };

/* Channels cut; sequences lie as they come. */
static const dt_style channels = { .size = sizeof(dt_style),
                                   .cut = DT_CUT_COLUMNS,
                                   .in = DT_LAID(DT_LAY_SHARD, -1) };

typedef struct carrying {
    dt_layers *layers;
    dt_carry *carry;
    dt_tape *tape;
    int n;
    float h[MAX_ROWS]; /* what each sequence has been given in channel 0 */
} carrying;

static dt_status begin(dt_mesh *mesh, const dt_layer_spec *spec, carrying *c)
{
    DT_TRY(dt_layers_create(mesh, "tp", spec, 1, NULL, &c->layers));
    DT_TRY(dt_test_fill_layers(mesh, c->layers, DT_F32, 1));
    DT_TRY(dt_carry_create(c->layers, &c->carry));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &c->tape));
    return DT_OK;
}

/* Sequence i is given (by + i) (k + 1) in channel k; what it adds up to is as it has to be. */
static dt_status feed(dt_mesh *mesh, carrying *c, dt_placement cut, int by)
{
    const dt_placement place[] = { cut, DT_REPLICATE };
    const int64_t shape[] = { c->n, C };
    DT_HELD(tensor) *x = NULL, *full = NULL;
    dt_tensor *y;
    float values[MAX_ROWS * C];

    for (int i = 0; i < c->n; i++) {
        c->h[i] += (float)(by + i);
        for (int k = 0; k < C; k++) values[i * C + k] = (float)((by + i) * (k + 1));
    }
    dt_tape_reset(c->tape);
    DT_TRY(
        dt_distribute(mesh, place, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    DT_EXPECT(dt_layers_carry(c->layers, c->carry) == NULL, "none before");
    y = dt_layer_forward(c->tape, dt_layers_at(c->layers, 0), x);
    DT_EXPECT(dt_layers_carry(c->layers, NULL) == c->carry, "the one of before");
    DT_TRY(dt_tape_status(c->tape));
    dt_carry_commit(c->carry);
    DT_TRY(dt_full_tensor(y, &full));
    for (int i = 0; i < c->n * C; i++) {
        const float want = c->h[i / C] * (float)(i % C + 1);
        const float got = ((const float *)dt_tensor_local(full)->data)[i];
        DT_EXPECT(got == want, "sequence %d, channel %d: %g, not %g", i / C, i % C, (double)got,
                  (double)want);
    }
    return DT_OK;
}

static void end_carrying(carrying *c)
{
    dt_carry_release(&c->carry);
    dt_tape_release(&c->tape);
    dt_layers_release(&c->layers);
}

static dt_status choose(carrying *c, int n, const int64_t *from)
{
    float old[MAX_ROWS];

    memcpy(old, c->h, sizeof old);
    DT_TRY(dt_carry_select(c->carry, n, from));
    for (int i = 0; i < n; i++) c->h[i] = old[from[i]];
    c->n = n;
    return DT_OK;
}

static int64_t channels_here(const dt_mesh *mesh)
{
    const int64_t each = (C + dt_mesh_dim_size(mesh, 1) - 1) / dt_mesh_dim_size(mesh, 1);
    const int64_t rest = C - each * dt_mesh_coord(mesh, 1);

    return rest < each ? rest : each;
}

/* Of 3 sequences 2, of those 4 side by side, of those 4 others, and 3 again, which lie anyhow. */
static dt_status chosen(dt_mesh *mesh, const void *arg)
{
    static const int64_t fewer[] = { 2, 0 }, twice[] = { 0, 0, 1, 1 }, beams[] = { 1, 1, 2, 2 },
                         across[] = { 3, 0, 1 }, none[] = { 0, 3 }, below[] = { -1 };
    const bool is_cut = *(const bool *)arg;
    const dt_placement one = is_cut ? DT_SHARD(0) : DT_REPLICATE;
    const dt_layer_spec spec = {
        .name = "a", .kind = &sums, .axis = { { C, DT_UNIT_ROW } }, .style = "channels"
    };
    dt_placement pairs = one;
    DT_ENDS(end_carrying) carrying c = { .n = 3 };

    if (is_cut) pairs.unit = 2;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "channels", &channels));
    DT_TRY(begin(mesh, &spec, &c));
    DT_EXPECT(dt_layers_carry_states(c.layers), "it carries");
    DT_TRY(dt_carry_select(c.carry, 2, fewer)); /* of nothing */
    DT_TRY(feed(mesh, &c, one, 1));
    DT_TRY(feed(mesh, &c, one, 10));
    DT_EXPECT_STATUS(dt_carry_select(c.carry, 2, none), DT_ERR_ARG, "sequence 3 of a batch of 3");
    DT_EXPECT_STATUS(dt_carry_select(c.carry, 1, below), DT_ERR_ARG, "sequence -1");
    DT_TRY(choose(&c, 2, fewer));
    DT_TRY(feed(mesh, &c, one, 5));
    DT_TRY(choose(&c, 4, twice));
    DT_TRY(feed(mesh, &c, pairs, 7));
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        DT_EXPECT(dt_tape_comm(c.tape, (dt_comm_kind)k).calls == 0,
                  "repeated side by side nothing moves, but kind %d did", k);
    DT_TRY(choose(&c, 4, beams));
    DT_TRY(feed(mesh, &c, pairs, 2));
    DT_TRY(choose(&c, 3, across));
    DT_TRY(feed(mesh, &c, one, 3));          /* where they are cut one by one now */
    DT_TRY(feed(mesh, &c, DT_REPLICATE, 4)); /* or lie whole */
    DT_EXPECT(dti_carry_bytes(c.carry) == 3 * channels_here(mesh) * (int64_t)sizeof(float),
              "%lld bytes", (long long)dti_carry_bytes(c.carry));
    return DT_OK;
}

DT_TEST(carry, sequences_are_chosen_and_repeated_wherever_they_lie)
{
    static const char *const meshes[] = { "dp=1,tp=1", "dp=2,tp=1", "dp=3,tp=1", "dp=2,tp=2" };
    static const bool how[] = { false, true };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t i = 0; i < DT_COUNT(how); i++) dt_test_on_ranks(meshes[m], chosen, &how[i]);
}

/* Stored cut, and whole for the computation: so is what the layer carries. */
static dt_status stored_cut(const dt_style *style, const dt_param_info *param, int n_parts,
                            dt_cut_room *room, dt_placement *out)
{
    (void)style, (void)param, (void)n_parts, (void)room;
    *out = DT_SHARD(0);
    return DT_OK;
}

static dt_tensor *gathered(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim,
                           int param, dt_tensor *w)
{
    (void)style, (void)layer, (void)param;
    return dt_move_dim(t, w, dim, DT_REPLICATE);
}

static dt_status carries_whole(dt_mesh *mesh, const void *arg)
{
    const dt_style stored = { .size = sizeof stored,
                              .partition_param = stored_cut,
                              .prepare_param = gathered };
    const dt_layer_spec spec = {
        .name = "a", .kind = &sums, .axis = { { C, DT_UNIT_ROW } }, .style = "stored"
    };
    DT_ENDS(end_carrying) carrying c = { .n = 3 };

    (void)arg;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "stored", &stored));
    DT_TRY(begin(mesh, &spec, &c));
    for (int by = 1; by < 3; by++) {
        DT_TRY(feed(mesh, &c, DT_REPLICATE, by));
        DT_EXPECT(dti_carry_bytes(c.carry) == 3 * C * (int64_t)sizeof(float), "%lld bytes",
                  (long long)dti_carry_bytes(c.carry));
    }
    return DT_OK;
}

DT_TEST(carry, what_a_layer_with_prepared_parameters_carries_is_whole)
{
    dt_test_on_ranks("dp=1,tp=2", carries_whole, NULL);
}

/* --- passes that do not count ----------------------------------------------------------------- */

/* A pass that is not committed leaves all as it was; another number of sequences is refused. */
static dt_status forgets(dt_mesh *mesh, const void *arg)
{
    const dt_layer_spec spec = { .name = "a", .kind = &sums, .axis = { { C, DT_UNIT_ROW } } };
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 3, C };
    DT_ENDS(end_carrying) carrying c = { .n = 2 };
    DT_HELD(tensor) *x = NULL;

    (void)arg;
    DT_TRY(begin(mesh, &spec, &c));
    DT_TRY(feed(mesh, &c, DT_REPLICATE, 1));
    DT_TRY(dt_zeros(mesh, whole, DT_F32, 2, shape, &x));
    (void)dt_layers_carry(c.layers, c.carry);
    (void)dt_layer_forward(c.tape, dt_layers_at(c.layers, 0), x);
    DT_EXPECT_STATUS(dt_tape_status(c.tape), DT_ERR_ARG,
                     "a carries state \"h\" of 2 sequences, but is given 3");
    (void)dt_layers_carry(c.layers, NULL);
    dt_tape_reset(c.tape);
    dt_tensor_release(&x);
    DT_TRY(dt_full(mesh, whole, DT_F32, 2, (int64_t[]){ 2, C }, 1.0, &x));
    (void)dt_layers_carry(c.layers, c.carry);
    (void)dt_layer_forward(c.tape, dt_layers_at(c.layers, 0), x);
    DT_TRY(dt_tape_status(c.tape));
    (void)dt_layers_carry(c.layers, NULL);
    DT_TRY(feed(mesh, &c, DT_REPLICATE, 4)); /* the ones were not committed */
    dt_carry_clear(c.carry);
    c.h[0] = c.h[1] = 0;
    DT_TRY(feed(mesh, &c, DT_REPLICATE, 4));
    return DT_OK;
}

DT_TEST(carry, a_pass_that_is_not_committed_leaves_all_as_it_was)
{
    dt_test_on_ranks("tp=1", forgets, NULL);
    dt_test_on_ranks("tp=3", forgets, NULL);
}
