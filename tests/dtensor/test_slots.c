/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear attention of rows whose states lie in slots: rows of several sequences in any order and
 * company, over several calls, ranks and slots that others had before, give the bits of each
 * sequence alone. */
#include <dtensor.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/ops/paged.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { B = 3, T = 7, H = 5, R = 2, D = 4, E = 6, C = 9, TAPS = 4, SLOTS = 4, MOST = 2 };
enum { Q, K, V, DECAY, BETA, X, N_ROWS, W = N_ROWS, STATES, WINDOWS, N };

/* Axis 1 of the first ones is tokens. `heads`: the axis of heads or channels. */
static const struct {
    int n_axes, heads;
    int64_t shape[5];
} tensors[N] = {
    [Q] = { 4, 2, { B, T, H, D } },
    [K] = { 4, 2, { B, T, H, D } },
    [V] = { 5, 2, { B, T, H, R, E } },
    [DECAY] = { 4, 2, { B, T, H, R } },
    [BETA] = { 4, 2, { B, T, H, R } },
    [X] = { 3, 2, { B, T, C } },
    [W] = { 2, 0, { C, TAPS } },
    [STATES] = { 5, 1, { SLOTS, H, R, D, E } },
    [WINDOWS] = { 3, 2, { SLOTS, TAPS - 1, C } },
};

/* Sequences are read in slots, some of them behind another one that had the slot before. */
static const struct {
    int sequence, slot, behind;
} jobs[] = { { 0, 2, -1 }, { 1, 0, -1 }, { 2, 3, -1 }, { 2, 0, 1 }, { 1, 2, 0 } };
enum { N_JOBS = sizeof jobs / sizeof *jobs };

typedef struct scene {
    dt_mesh *mesh;
    dt_tape *tape;
    int64_t replicas; /* each reads all jobs, in an order of its own */
    dt_tensor *in[N], *want[2];
    int done[MOST][N_JOBS];
    uint64_t random;
} scene;

typedef struct slots_case {
    const char *mesh;
    unsigned cut; /* of those tensors whose bit is set heads are cut */
} slots_case;

static int64_t draw(scene *s, int64_t n)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((s->random >> 33) % (uint64_t)n);
}

/* States and windows hold anything before, of all replicas. */
static dt_status make(scene *s, int i, bool cut)
{
    const int axis = dt_mesh_find_dim(s->mesh, "dp") >= 0 ? 0 : tensors[i].heads;
    dt_placement place[] = { cut ? DT_SHARD(axis) : DT_REPLICATE };
    float values[MOST * SLOTS * H * R * D * E];
    int64_t shape[5];
    dt_tensor *x;

    memcpy(shape, tensors[i].shape, sizeof shape);
    if (i >= STATES) shape[0] *= s->replicas;
    dt_test_random(values, DT_COUNT(values), (uint32_t)i + 1);
    for (size_t k = 0; k < DT_COUNT(values) && (i == DECAY || i == BETA); k++)
        values[k] = (i == DECAY ? -1.0f : 1.0f) * fabsf(values[k]);
    DT_TRY(dt_distribute(s->mesh, place, DT_F32, tensors[i].n_axes, shape,
                         (dt_source){ values, DT_EQUAL_COPIES }, &x));
    s->in[i] = dt_tape_own(s->tape, x);
    return DT_OK;
}

static dt_tensor *zeros(scene *s, int i)
{
    int64_t n = 1, shape[5];

    memcpy(shape, tensors[i].shape, sizeof shape);
    shape[0] = B;
    for (int a = 0; a < tensors[i].n_axes; a++) n *= shape[a];
    return dt_mul_scalar(
        s->tape,
        dt_reshape(s->tape, dt_slice(s->tape, s->in[i], 0, 0, B), tensors[i].n_axes, shape), 0.0);
}

/* Every sequence by itself, from zeros. */
static dt_status read_alone(scene *s)
{
    dt_tensor *left;
    dt_delta rule;

    for (int i = 0; i < N; i++) DT_TRY(make(s, i, false));
    rule = (dt_delta){ s->in[Q], s->in[K], s->in[V], s->in[DECAY], s->in[BETA], zeros(s, STATES) };
    s->want[0] = dt_gated_delta(s->tape, &rule, &left);
    s->want[1] = dt_causal_conv(s->tape, s->in[X], s->in[W], zeros(s, WINDOWS), &left);
    return dt_tape_status(s->tape);
}

/* --- calls ------------------------------------------------------------------------------------ */

typedef struct call {
    int64_t n; /* rows of all replicas */
    int32_t tokens[64], positions[64], slots[64];
} call;

static bool may_read(const scene *s, int64_t replica, int j)
{
    return s->done[replica][j] < T && (jobs[j].behind < 0 || s->done[replica][jobs[j].behind] == T);
}

/* Any rows that can come next, some of them padding. */
static bool draw_call(scene *s, call *c)
{
    const int64_t each = 1 + draw(s, 12);
    bool more = false;

    c->n = each * s->replicas;
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t replica = i / each;
        const int j = (int)draw(s, N_JOBS);
        int *const done = &s->done[replica][j];
        const bool reads = may_read(s, replica, j);
        c->tokens[i] = reads ? jobs[j].sequence * T + *done : 0;
        c->positions[i] = reads ? *done : 0;
        c->slots[i] = reads ? (int32_t)(replica * SLOTS + jobs[j].slot) : -1;
        *done += reads;
    }
    for (int64_t k = 0; k < s->replicas; k++)
        for (int j = 0; j < N_JOBS; j++) more = more || s->done[k][j] < T;
    return more;
}

static dt_status ints(scene *s, const int32_t *values, int n_axes, int64_t n, dt_tensor **out)
{
    const dt_placement whole[] = { DT_REPLICATE };

    DT_TRY(dt_distribute(s->mesh, whole, DT_I32, n_axes, (const int64_t[]){ n, 1 },
                         (dt_source){ values, DT_EQUAL_COPIES }, out));
    *out = dt_tape_own(s->tape, *out);
    return DT_OK;
}

/* x [B, T, ...] as rows [n, 1, ...]. */
static dt_tensor *rows_of(scene *s, dt_tensor *x, dt_tensor *tokens)
{
    int64_t shape[5] = { B * T, 1 };

    for (int a = 2; a < dt_tensor_n_axes(x); a++) shape[a] = dt_tensor_extent(x, a);
    return dt_index_select(s->tape, dt_reshape(s->tape, x, dt_tensor_n_axes(x), shape), 0, tokens);
}

static dt_status compare(const call *c, dt_tensor *got, dt_tensor *want)
{
    DT_HELD(tensor) *x = NULL, *y = NULL;
    const float *a, *b;
    int64_t row = 1;

    DT_TRY(dt_full_tensor(got, &x));
    DT_TRY(dt_full_tensor(want, &y));
    for (int i = 1; i < dt_tensor_n_axes(x); i++) row *= dt_tensor_extent(x, i);
    a = dt_tensor_local(x)->data;
    b = dt_tensor_local(y)->data;
    for (int64_t i = 0; i < c->n * row; i++)
        DT_EXPECT(c->slots[i / row] < 0 ? a[i] == 0.0f : memcmp(&a[i], &b[i], sizeof *a) == 0,
                  "row %lld of %lld, slot %d, position %d: %.9g, alone %.9g", (long long)(i / row),
                  (long long)c->n, c->slots[i / row], c->positions[i / row], a[i], b[i]);
    return DT_OK;
}

static dt_status run_call(scene *s, const call *c)
{
    dt_tensor *tokens, *in[N_ROWS];
    dti_slot_rows rows;
    dt_tensor *y[2];
    dt_delta rule;

    DT_TRY(ints(s, c->tokens, 1, c->n, &tokens));
    DT_TRY(ints(s, c->positions, 2, c->n, &rows.positions));
    DT_TRY(ints(s, c->slots, 2, c->n, &rows.slots));
    for (int i = 0; i < N_ROWS; i++) in[i] = rows_of(s, s->in[i], tokens);
    rule = (dt_delta){ in[Q], in[K], in[V], in[DECAY], in[BETA], s->in[STATES] };
    y[0] = dti_gated_delta_slots(s->tape, &rule, &rows);
    y[1] = dti_causal_conv_slots(s->tape, in[X], s->in[W], &rows, s->in[WINDOWS]);
    DT_TRY(dt_tape_status(s->tape));
    for (int r = 0; r < 2; r++) DT_TRY(compare(c, y[r], rows_of(s, s->want[r], tokens)));
    return DT_OK;
}

static dt_status read_in_slots(dt_mesh *mesh, const void *arg)
{
    const slots_case *of = arg;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    const bool dp = dt_mesh_find_dim(mesh, "dp") >= 0;
    scene s = { .mesh = mesh, .tape = t, .replicas = dp ? dt_mesh_dim_size(mesh, 0) : 1 };
    bool more = true;

    s.random = 5;
    DT_TRY(read_alone(&s));
    for (int i = 0; i < N; i++) DT_TRY(make(&s, i, of->cut >> i & 1u));
    while (more) {
        call c;
        more = draw_call(&s, &c);
        DT_TRY(run_call(&s, &c));
    }
    return DT_OK;
}

DT_TEST(slots, rows_have_the_bits_of_their_sequences_alone)
{
    const unsigned pools = 1u << STATES | 1u << WINDOWS;
    const slots_case cases[] = { { "tp=1", 0 },    { "tp=2", ~0u },   { "tp=3", ~0u },
                                 { "tp=4", ~0u },  { "tp=2", pools }, { "tp=2", 0 },
                                 { "dp=2", pools } };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks(cases[i].mesh, read_in_slots, &cases[i]);
}

/* --- what is refused -------------------------------------------------------------------------- */

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    DT_HELD(tape) *t = dt_test_tape(mesh);
    scene s = { .mesh = mesh, .tape = t, .replicas = 1 };
    const bool cut = dt_mesh_dim_size(mesh, 0) > 1;
    call c = { .n = 2, .slots = { 1, SLOTS } };
    dti_slot_rows none = { 0 };

    (void)arg;
    DT_TRY(read_alone(&s));
    if (cut) { /* what is written in place cannot move */
        for (int i = 0; i < N_ROWS; i++) DT_TRY(make(&s, i, true));
        c.slots[1] = 2;
        DT_EXPECT_STATUS(run_call(&s, &c), DT_ERR_LAYOUT, "is written in place and must lie");
        return DT_OK;
    }
    DT_EXPECT_STATUS(run_call(&s, &c), DT_ERR_ARG,
                     "gated_delta_slots: row 1 is of slot 4, but the pool has 0 to 3");
    dt_tape_reset(t);
    DT_TRY(read_alone(&s));
    DT_TRY(ints(&s, c.slots, 2, 1, &none.slots));
    none.positions = none.slots;
    (void)dti_causal_conv_slots(t, dt_slice(t, s.in[X], 0, 0, 1), s.in[W], &none, s.in[WINDOWS]);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_SHAPE, "causal_conv_slots");
    return DT_OK;
}

DT_TEST(slots, what_does_not_fit_is_refused)
{
    dt_test_on_ranks("tp=1", refused, NULL);
    dt_test_on_ranks("tp=2", refused, NULL);
}
