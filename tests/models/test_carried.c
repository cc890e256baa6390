/* SPDX-License-Identifier: Apache-2.0
 *
 * States of a model whose layers carry something from pass to pass: y[t] = d y[t - 1] + x[t] of
 * each channel in the place of attention. What a sequence gets does not depend on how it was fed,
 * beside which others, on which ranks. What layers carry by themselves is in
 * tests/parallel_styles/test_carry.c. */
#include <dtensor.h>
#include <dtensor/architectures.h>
#include <dtensor/engine.h>
#include <dtensor/weights.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/judge/prediction.h"
#include "models/run/state.h"
#include "tests/support/dt_test.h"

enum { LAYERS = 2, WIDTH = 10, WORDS = 29, ROOM = 24, MAX_TOKENS = 16, MAX_ROWS = 6 };

/* --- the model -------------------------------------------------------------------------------- */

static dt_status scan_kernel(const dt_kargs *args)
{
    const float *x = args->in[0].data, *before = args->in[1].data, *decay = args->in[2].data;
    float *y = args->out[0].data, *last = args->out[1].data;
    const int64_t n = args->in[0].shape[1], c = args->in[0].shape[2];

    for (int64_t b = 0; b < args->in[0].shape[0]; b++)
        for (int64_t i = 0; i < c; i++) {
            float now = before[b * c + i];
            for (int64_t t = 0; t < n; t++)
                now = y[(b * n + t) * c + i] = decay[i] * now + x[(b * n + t) * c + i];
            last[b * c + i] = now;
        }
    return DT_OK;
}

static const dt_op scan = {
    .name = "scan", .axes = "b[t]c, bc, c -> b[t]c, bc", .types = "fff>ff", .cpu = scan_kernel
};

static dt_tensor *mix(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *const in[] = { x, dt_layer_state(t, layer, 0, x), dt_layer_use(t, layer, 0) };
    dt_tensor *out[2];

    dt_apply_n(t, &scan, NULL, 3, in, 2, out);
    dt_layer_set_state(t, layer, 0, out[1]);
    return out[0];
}

static const dt_layer_kind mixer = { .name = "mixer",
                                     .params = { { "decay", "c" } },
                                     .states = { { "h", "c" } },
                                     .values = "...c -> ...c",
                                     .columns = 'c',
                                     .forward = mix };

static const dt_style channels = { .size = sizeof(dt_style),
                                   .cut = DT_CUT_COLUMNS,
                                   .in = DT_LAID(DT_LAY_SHARD, -1) };

typedef struct recurrent {
    dt_layer *embed, *head;
    struct {
        dt_layer *mix, *o;
    } blocks[LAYERS];
} recurrent;

static const dt_model_info info = { .dtype = DT_F32,
                                    .vocab_size = WORDS,
                                    .hidden_size = WIDTH,
                                    .n_layers = LAYERS,
                                    .n_heads = 1,
                                    .n_kv_heads = 1,
                                    .head_dim = WIDTH,
                                    .max_positions = 64,
                                    .bos = -1 };

static dt_status add_layers(void *self, const dt_model_info *c, dt_builder *builder)
{
    const dt_extent D = { c->hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent V = { c->vocab_size, DT_UNIT_ROW, "vocab_size" }, none = { 0 };
    recurrent *m = self;

    /* clang-format off */
#define M(field) offsetof(recurrent, field)
    const dt_layer_row model[] = {
        { M(embed),         "embed",        &dt_embedding_kind, V, D,    NULL, "embedding_rowwise", NULL },
        { M(blocks[0].mix), "blocks.0.mix", &mixer,             D, none, NULL, "channels",          NULL },
        { M(blocks[0].o),   "blocks.0.o",   &dt_linear_kind,    D, D,    NULL, "rowwise",           NULL },
        { M(blocks[1].mix), "blocks.1.mix", &mixer,             D, none, NULL, "channels",          NULL },
        { M(blocks[1].o),   "blocks.1.o",   &dt_linear_kind,    D, D,    NULL, "rowwise",           NULL },
        { M(head),          "head",         &dt_linear_kind,    V, D,    NULL, "colwise",           NULL },
    };
#undef M
    /* clang-format on */

    DT_TRY(dt_builder_add(builder, "", model, (int)DT_COUNT(model), m));
    return DT_OK;
}

static dt_status prepare(void *self, dt_mesh *mesh, const dt_model_info *c)
{
    (void)self, (void)mesh, (void)c;
    return DT_OK;
}

static dt_tensor *embed(const void *self, dt_tape *t, const dt_model_pass *pass)
{
    return dt_layer_forward(t, ((const recurrent *)self)->embed, pass->ids);
}

static dt_tensor *block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                        const dt_flow *in)
{
    const recurrent *m = self;
    dt_tensor *y = dt_layer_forward(t, m->blocks[i].mix, in->x);

    (void)pass;
    return dt_add(t, in->x, dt_layer_forward(t, m->blocks[i].o, y));
}

static dt_tensor *head(const void *self, dt_tape *t, dt_tensor *x)
{
    return dt_layer_forward(t, ((const recurrent *)self)->head, x);
}

static void release(void *self)
{
    (void)self;
}

static const dt_arch arch = { .size = sizeof(dt_arch),
                              .model_type = "recurrent",
                              .self_bytes = sizeof(recurrent),
                              .add_layers = add_layers,
                              .prepare = prepare,
                              .embed = embed,
                              .block = block,
                              .head = head,
                              .release = release };

static dt_status make_of(dt_mesh *mesh, const dt_arch *of, dt_model **m)
{
    static const dt_init_rule rules[] = { { "**.decay", DT_INIT_UNIFORM, 0.5, 0.95 },
                                          { "**.weight", DT_INIT_NORMAL, 0.0, 0.4 } };
    static const recurrent self;
    dt_status st;

    DT_TRY(dt_model_create(mesh, of, &self, &info, NULL, m));
    st = dt_layers_init(dt_model_layers(*m), DT_F32, 5, rules, (int)DT_COUNT(rules));
    if (st != DT_OK) dt_model_release(m);
    return st;
}

static dt_status make(dt_mesh *mesh, dt_model **m)
{
    DT_TRY(make_of(mesh, &arch, m));
    return DT_OK;
}

/* --- what sequences get ----------------------------------------------------------------------- */

/* The logits of each sequence's last token after n more. */
static dt_status read_on(dt_state *s, const int32_t *ids, int64_t n, float logits[MAX_ROWS][WORDS])
{
    DT_HELD(tape) *t = NULL;
    DT_HELD(tensor) *full = NULL;
    dt_tensor *y;

    DT_TRY(dt_tape_create(dt_mesh_runtime(s->model->mesh), &t));
    y = dt_model_forward(t, s->model, s, ids, n, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(y, &full));
    memcpy(logits, dt_tensor_local(full)->data, (size_t)s->batch * sizeof *logits);
    return DT_OK;
}

/* Each row is what its tokens give alone, read in one pass. */
static dt_status as_alone(dt_model *m, int64_t rows, int32_t ids[][MAX_TOKENS], int64_t n,
                          float got[MAX_ROWS][WORDS])
{
    for (int64_t b = 0; b < rows; b++) {
        float want[MAX_ROWS][WORDS];
        dt_state *alone;
        dt_status st;
        DT_TRY(dt_state_create(m, 1, ROOM, &alone));
        st = read_on(alone, ids[b], n, want);
        dt_state_release(&alone);
        DT_TRY(st);
        for (int i = 0; i < WORDS; i++)
            DT_EXPECT(fabsf(got[b][i] - want[0][i]) <= 2e-5f * (1 + fabsf(want[0][i])),
                      "sequence %lld, word %d: %g, not %g", (long long)b, i, (double)got[b][i],
                      (double)want[0][i]);
    }
    return DT_OK;
}

/* All sequences read a token of their own. */
static dt_status one_more(dt_state *s, int32_t ids[][MAX_TOKENS], int64_t at, int32_t seed,
                          float logits[MAX_ROWS][WORDS])
{
    int32_t next[MAX_ROWS];

    for (int64_t b = 0; b < s->batch; b++)
        next[b] = ids[b][at] = (int32_t)(seed * (b + 3) + 7 * b) % WORDS;
    DT_TRY(read_on(s, next, 1, logits));
    return DT_OK;
}

/* This rank's part of n along a mesh dim. */
static int64_t piece(const dt_mesh *mesh, const char *name, int64_t n)
{
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        const int64_t size = dt_mesh_dim_size(mesh, m), each = (n + size - 1) / size;
        const int64_t rest = n - each * dt_mesh_coord(mesh, m);
        if (strcmp(dt_mesh_dim_name(mesh, m), name) != 0) continue;
        return rest < 0 ? 0 : rest < each ? rest : each;
    }
    return n;
}

/* As beams do: two texts, three beams of each, which take each other's place. */
static dt_status beams(dt_mesh *mesh, const void *arg)
{
    static const int64_t froms[][MAX_ROWS] = { { 1, 0, 0, 5, 3, 4 }, { 2, 2, 2, 3, 4, 4 } };
    int32_t ids[MAX_ROWS][MAX_TOKENS], prompt[2 * 5];
    float logits[MAX_ROWS][WORDS];
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;

    (void)arg;
    for (int i = 0; i < 10; i++) prompt[i] = (i * i + 2) % WORDS;
    for (int b = 0; b < MAX_ROWS; b++) memcpy(ids[b], prompt + (b / 3) * 5, 5 * sizeof *prompt);
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "channels", &channels));
    DT_TRY(make(mesh, &m));
    DT_TRY(dt_state_create(m, 2, ROOM, &s));
    DT_TRY(read_on(s, prompt, 5, logits));
    DT_TRY(dti_state_expand(s, 3));
    for (int i = 0; i < 4; i++) {
        DT_TRY(one_more(s, ids, 5 + i, i + 4, logits));
        DT_TRY(as_alone(m, MAX_ROWS, ids, 6 + i, logits));
        if (i >= 2) continue;
        int32_t old[MAX_ROWS][MAX_TOKENS];
        memcpy(old, ids, sizeof old);
        DT_TRY(dti_state_reorder(s, froms[i]));
        for (int b = 0; b < MAX_ROWS; b++) memcpy(ids[b], old[froms[i][b]], sizeof *old);
    }
    DT_EXPECT(dti_state_bytes(s) == 3 * piece(mesh, "dp", 2) * piece(mesh, "tp", WIDTH) * LAYERS *
                                        (int64_t)sizeof(float),
              "%lld bytes are carried", (long long)dti_state_bytes(s));
    return DT_OK;
}

static const char *const meshes[] = {
    "tp=1", "tp=2", "tp=3", "dp=2,tp=1", "dp=2,tp=2", "dp=3,tp=1"
};

DT_TEST(carried, sequences_that_take_each_others_place_take_what_they_carry)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], beams, NULL);
}

/* --- rewind, keep, padding -------------------------------------------------------------------- */

static bool after_a_layer(void *arg)
{
    return (*(int *)arg)-- > 0;
}

static dt_status rewinds(dt_mesh *mesh, const void *arg)
{
    const int64_t pads[] = { 0, 1 }, no_pads[] = { 0, 0 };
    int32_t ids[2][MAX_TOKENS];
    float logits[MAX_ROWS][WORDS];
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL, *two = NULL;
    int layers = 1;

    (void)arg;
    for (int i = 0; i < 2 * MAX_TOKENS; i++) ids[i / MAX_TOKENS][i % MAX_TOKENS] = i * 5 % WORDS;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "channels", &channels));
    DT_TRY(make(mesh, &m));
    DT_TRY(dt_state_create(m, 1, ROOM, &s));
    DT_TRY(read_on(s, ids[0], 6, logits));
    DT_TRY(read_on(s, ids[0] + 6, 3, logits));
    DT_TRY(as_alone(m, 1, ids, 9, logits));
    DT_EXPECT(dt_state_keep(s, ids[0], 12) == 9, "all of it goes on");
    s->go_on = after_a_layer; /* a pass that is broken off carries nothing on */
    s->go_on_arg = &layers;
    DT_EXPECT(read_on(s, ids[1], 3, logits) == DT_ERR_ARG, "broken off");
    s->go_on = NULL;
    DT_EXPECT(dt_state_length(s) == 9, "its tokens were not read");
    DT_TRY(read_on(s, ids[0] + 9, 3, logits));
    DT_TRY(as_alone(m, 1, ids, 12, logits));
    DT_EXPECT(dt_state_keep(s, ids[0], 8) == 0 && dt_state_length(s) == 0,
              "no earlier token is known");
    DT_TRY(read_on(s, ids[1], 4, logits));
    DT_TRY(as_alone(m, 1, &ids[1], 4, logits));
    dt_state_rewind(s, 4);
    DT_EXPECT(dt_state_length(s) == 4, "nothing to forget");
    dt_state_rewind(s, 3);
    DT_EXPECT(dt_state_length(s) == 0, "all is forgotten");
    DT_TRY(read_on(s, ids[0], 2, logits));
    DT_TRY(as_alone(m, 1, ids, 2, logits));
    DT_TRY(dt_state_create(m, 2, ROOM, &two));
    DT_TRY(dt_state_pad(two, no_pads));
    return dt_test_expect_status(__func__, __FILE__, __LINE__, dt_state_pad(two, pads),
                                 DT_ERR_UNSUPPORTED,
                                 "sequence 1 has 1 tokens of padding, which "
                                 "layers that carry state would read");
}

DT_TEST(carried, a_state_forgets_whole_sequences_and_takes_no_padding)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], rewinds, NULL);
}

/* A kind of one's own does not find its states in slots. */
static dt_status refuses_engines(dt_mesh *mesh, const void *arg)
{
    DT_HELD(model) *m = NULL;
    dt_engine *e = NULL;

    (void)arg;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "channels", &channels));
    DT_TRY(make(mesh, &m));
    DT_EXPECT_STATUS(dt_engine_create(m, NULL, &e), DT_ERR_UNSUPPORTED,
                     "blocks.0.mix carries state \"h\" from token to token, which its kind does "
                     "not keep in slots");
    DT_EXPECT(e == NULL, "an engine");
    return DT_OK;
}

DT_TEST(carried, engines_refuse_kinds_without_slots)
{
    dt_test_on_ranks("tp=1", refuses_engines, NULL);
    dt_test_on_ranks("tp=2", refuses_engines, NULL);
}

/* --- run again from the first token ----------------------------------------------------------- */

static int64_t turn(const void *self)
{
    (void)self;
    return 8;
}

/* Sequences that grow past it read all their tokens anew, and carry what these alone leave. */
static dt_status turns(dt_mesh *mesh, const void *arg)
{
    int32_t ids[2][MAX_TOKENS], head[2 * 6];
    float logits[MAX_ROWS][WORDS];
    dt_arch turning = arch;
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    int layers = 1;

    (void)arg;
    turning.turn = turn;
    for (int i = 0; i < 12; i++) head[i] = ids[i / 6][i % 6] = (i * 5 + 1) % WORDS;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "channels", &channels));
    DT_TRY(make_of(mesh, &turning, &m));
    DT_TRY(dt_state_create(m, 2, ROOM, &s));
    DT_TRY(read_on(s, head, 6, logits));
    DT_TRY(as_alone(m, 2, ids, 6, logits));
    for (int64_t at = 6; at < 11; at++) { /* past it with the third */
        s->go_on = at == 8 ? after_a_layer : NULL;
        s->go_on_arg = &layers;
        if (at == 8) {
            DT_EXPECT(one_more(s, ids, at, 5, logits) == DT_ERR_ARG, "broken off");
            DT_EXPECT(dt_state_length(s) == at, "its tokens were not read");
            s->go_on = NULL;
        }
        DT_TRY(one_more(s, ids, at, 3, logits));
        DT_TRY(as_alone(m, 2, ids, at + 1, logits));
    }
    return DT_OK;
}

DT_TEST(carried, sequences_that_are_run_again_carry_nothing_of_before)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], turns, NULL);
}

/* --- texts ------------------------------------------------------------------------------------ */

enum { NEW = 7, TEXTS = 2 };
static int32_t on_one_rank[TEXTS][NEW];

static dt_status generates(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompts[TEXTS][3] = { { 3, 14, 15 }, { 9, 2, 6 } }, longer[] = { 1, 2 };
    const dt_ids lists[] = { { prompts[0], 3 }, { prompts[1], 3 } },
                 uneven[] = { { prompts[0], 3 }, { longer, 2 } };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(model) *m = NULL;
    DT_HELD(generated) *g = NULL;

    (void)arg;
    o.max_new_tokens = NEW;
    o.num_beams = 3;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "channels", &channels));
    DT_TRY(make(mesh, &m));
    DT_TRY(dt_generate_batch(m, lists, TEXTS, &o, &g));
    for (int i = 0; i < TEXTS; i++) {
        const dt_ids text = dt_generated_ids(g, i);
        DT_EXPECT(text.n == NEW, "%lld tokens", (long long)text.n);
        if (dt_mesh_n_ranks(mesh) == 1) memcpy(on_one_rank[i], text.ids, sizeof on_one_rank[i]);
        DT_EXPECT(memcmp(on_one_rank[i], text.ids, sizeof on_one_rank[i]) == 0,
                  "text %d is another than on one rank", i);
    }
    dt_generated_release(&g); /* a text alone: other ranks of its dim have no sequence */
    DT_TRY(dt_generate_batch(m, lists, 1, &o, &g));
    DT_EXPECT(memcmp(on_one_rank[0], dt_generated_ids(g, 0).ids, sizeof on_one_rank[0]) == 0,
              "alone it is another than on one rank");
    dt_generated_release(&g);
    return dt_test_expect_status(__func__, __FILE__, __LINE__,
                                 dt_generate_batch(m, uneven, TEXTS, &o, &g), DT_ERR_UNSUPPORTED,
                                 "run sequences of one length together");
}

DT_TEST(carried, beams_find_the_same_on_every_mesh)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], generates, NULL);
}
