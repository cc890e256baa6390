/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ragged_scene.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "dtensor/host.h"
#include "dtensor/kernels/cpu/cpu.h"
#include "models/model.h"
#include "models/run/ragged.h"
#include "tests/support/dt_test.h"

enum { N = 6, MOST_BLOCKS = 3, MOST = MOST_BLOCKS * DTI_BLOCK_TOKENS, ROWS = 80, REPLICAS = 2 };

/* A sequence that is read: the logits that it has alone, and where its keys lie. */
typedef struct reader {
    int64_t length, done, chunk; /* tokens; read; of this pass, not given a row yet */
    float *alone;                /* [length, vocab] */
    int32_t blocks[MOST_BLOCKS];
    int32_t slot;
} reader;

typedef struct scene {
    dt_model *m;
    dti_kv_pool *pool;
    dt_tape *tape;
    const ragged_case *c;
    int64_t vocab, replicas, n_blocks;
    reader readers[N];
    bool used[REPLICAS][N * MOST_BLOCKS + 1]; /* blocks */
    int32_t free_slot[REPLICAS];
    uint64_t random;
} scene;

/* The same numbers on every rank. */
static int64_t draw(scene *s, int64_t n)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((s->random >> 33) % (uint64_t)n);
}

/* Sequences 4 and 5 have the tokens of 3, as far as they go. */
static int32_t id_of(const scene *s, int64_t i, int64_t t)
{
    const int64_t like = i > 3 ? 3 : i;

    return (int32_t)((3 + 7 * t + 11 * like + t * t % 5) % s->vocab);
}

/* Rows of logits [n, 1, vocab] or [1, n, vocab], as bits of f32. */
static dt_status read_logits(dt_tensor *logits, float *out)
{
    DT_HELD(tensor) *full = NULL;
    dti_host host;

    DT_TRY(dt_full_tensor(logits, &full));
    DT_TRY(dti_host_open(full, DTI_HOST_READS, &host));
    dti_convert(out, DT_F32, host.local.data, dt_tensor_dtype(full), dti_local_count(&host.local));
    return dti_host_close(&host, DT_OK);
}

static dt_status read_alone(scene *s, int64_t i)
{
    reader *r = &s->readers[i];
    DT_HELD(state) *state = NULL;
    int32_t ids[MOST];
    dt_tensor *logits;

    for (int64_t t = 0; t < r->length; t++) ids[t] = id_of(s, i, t);
    DT_TRY(dti_alloc_array((size_t)(r->length * s->vocab), sizeof *r->alone, (void **)&r->alone));
    DT_TRY(dt_state_create(s->m, 1, r->length, &state));
    dt_tape_reset(s->tape);
    logits = dt_model_forward(s->tape, s->m, state, ids, r->length, DT_LOGITS_ALL);
    DT_TRY(dt_tape_status(s->tape));
    return read_logits(logits, r->alone);
}

/* --- blocks ----------------------------------------------------------------------------------- */

static int32_t take_block(scene *s, int64_t replica)
{
    int64_t b = draw(s, s->n_blocks);

    while (s->used[replica][b]) b = (b + 1) % s->n_blocks;
    s->used[replica][b] = true;
    return (int32_t)b;
}

static bool is_shared(const scene *s, int64_t i, int64_t k)
{
    for (int64_t j = 0; j < N; j++)
        if (j != i && j % s->replicas == i % s->replicas &&
            s->readers[j].blocks[k] == s->readers[i].blocks[k])
            return true;
    return false;
}

/* Blocks for what is read next; those that no window reaches go; sometimes one moves. */
static dt_status settle_blocks(scene *s, int64_t i)
{
    reader *r = &s->readers[i];
    const int64_t replica = i % s->replicas, last = r->done / DTI_BLOCK_TOKENS;
    const int64_t seen = s->c->window > 0 ? r->done + 1 - s->c->window : 0;

    for (int64_t k = 0; k < MOST_BLOCKS; k++)
        if (r->blocks[k] >= 0 && (k + 1) * DTI_BLOCK_TOKENS <= seen && !is_shared(s, i, k)) {
            s->used[replica][r->blocks[k]] = false;
            r->blocks[k] = -1;
        }
    for (int64_t k = last; k * DTI_BLOCK_TOKENS < r->done + r->chunk; k++)
        if (r->blocks[k] < 0) r->blocks[k] = take_block(s, replica);
    if (is_shared(s, i, last) || draw(s, 4) == 0) { /* a copy of its own */
        const int32_t old = r->blocks[last];
        const bool shared = is_shared(s, i, last);
        r->blocks[last] = take_block(s, replica);
        DT_TRY(dti_kv_pool_copy_block(s->pool, replica, old, r->blocks[last]));
        s->used[replica][old] = shared;
    }
    return DT_OK;
}

/* Sometimes what is carried moves to another slot. */
static dt_status settle_slot(scene *s, int64_t i)
{
    const int64_t replica = i % s->replicas;
    int32_t *const slot = &s->readers[i].slot, old = *slot;

    if (draw(s, 4) != 0) return DT_OK;
    *slot = s->free_slot[replica];
    s->free_slot[replica] = old;
    return dti_kv_pool_copy_slot(s->pool, replica, old, *slot);
}

/* A sequence that has not begun takes over what another one has read of the same tokens: some of
 * it, or where that is carried all. */
static dt_status share_prefix(scene *s, int64_t i)
{
    reader *r = &s->readers[i], *from = &s->readers[3];
    const bool carries = dti_kv_pool_carries(s->pool);

    if (i <= 3 || r->done > 0 || i % s->replicas != 3 % s->replicas || s->c->window > 0)
        return DT_OK;
    if (carries && from->done >= r->length) return DT_OK;
    r->done = carries ? from->done : dti_min(dti_min(from->done, r->length - 1), 200);
    for (int64_t k = 0; k * DTI_BLOCK_TOKENS < r->done; k++) r->blocks[k] = from->blocks[k];
    return dti_kv_pool_copy_slot(s->pool, i % s->replicas, from->slot, r->slot);
}

/* --- passes ----------------------------------------------------------------------------------- */

typedef struct pass_rows {
    int32_t ids[REPLICAS * ROWS], positions[REPLICAS * ROWS], sequence[REPLICAS * ROWS];
    int32_t table[REPLICAS * N * MOST_BLOCKS], out[REPLICAS * ROWS], slots[REPLICAS * N];
    dti_ragged call;
} pass_rows;

/* Some of the sequences of a replica, at most ROWS tokens of all, cut and mixed at random. */
static dt_status fill_replica(scene *s, int64_t replica, pass_rows *p)
{
    const int64_t base = replica * p->call.n_rows;
    int64_t n = 0, left = 0, rows = p->call.n_rows;

    for (int64_t i = replica; i < N; i += s->replicas) {
        reader *r = &s->readers[i];
        const int64_t most = dti_min(r->length - r->done, rows - left);
        r->chunk = most <= 0 || draw(s, 3) == 0 ? 0 : draw(s, 2) == 0 ? 1 : 1 + draw(s, most);
        left += r->chunk;
        if (r->chunk == 0) continue;
        DT_TRY(share_prefix(s, i));
        r->chunk = dti_min(r->chunk, r->length - r->done);
        DT_TRY(settle_blocks(s, i));
        DT_TRY(settle_slot(s, i));
    }
    for (int64_t i = replica; i < N; i += s->replicas) {
        memcpy(p->table + (replica * N + i / s->replicas) * MOST_BLOCKS, s->readers[i].blocks,
               sizeof s->readers[i].blocks);
        p->slots[replica * N + i / s->replicas] = s->readers[i].slot;
    }
    while (n < rows) {
        const int64_t i = replica + draw(s, N / s->replicas) * s->replicas;
        reader *r = &s->readers[i];
        int64_t together = 1 + draw(s, 40);
        left = 0;
        for (int64_t j = replica; j < N; j += s->replicas) left += s->readers[j].chunk;
        if (left == 0 || draw(s, 8) == 0) { /* padding, as long as there is room for all */
            if (n + left < rows) p->sequence[base + n++] = -1;
            if (left == 0) continue;
        }
        for (; together > 0 && r->chunk > 0 && n < rows; together--, r->chunk--, r->done++, n++) {
            p->ids[base + n] = id_of(s, i, r->done);
            p->positions[base + n] = (int32_t)r->done;
            p->sequence[base + n] = (int32_t)(i / s->replicas);
        }
    }
    return DT_OK;
}

static bool is_done(const scene *s)
{
    for (int64_t i = 0; i < N; i++)
        if (s->readers[i].done < s->readers[i].length) return false;
    return true;
}

/* Logits of all rows, of some in any order, or of none: not in the last pass, or what fully sharded
 * layers have begun to gather for the head would still be under way at the end. */
static void choose_rows(scene *s, pass_rows *p)
{
    const int64_t n = p->call.n_rows, how = draw(s, 8);

    p->call.n_out = how == 0 && !is_done(s) ? 0 : how < 5 ? n : 1 + draw(s, n);
    for (int64_t i = 0; i < s->replicas * p->call.n_out; i++)
        p->out[i] = how < 4 ? (int32_t)(i % n) : (int32_t)draw(s, n + 1) - 1;
}

static bool is_same(const scene *s, const float *got, const float *alone)
{
    double far = 0.0;

    if (s->c->tolerance == 0.0) return memcmp(got, alone, (size_t)s->vocab * sizeof *got) == 0;
    for (int64_t i = 0; i < s->vocab; i++) far = fmax(far, fabs((double)got[i] - (double)alone[i]));
    return far <= s->c->tolerance;
}

static dt_status compare(scene *s, const pass_rows *p, dt_tensor *logits, int64_t *compared)
{
    const int64_t n = s->replicas * p->call.n_out;
    DT_FREED float *got = NULL;

    DT_EXPECT((logits == NULL) == (n == 0), "logits where they are wanted");
    if (n == 0) return DT_OK;
    DT_EXPECT(dt_tensor_extent(logits, 0) == n && dt_tensor_extent(logits, 1) == 1, "shape");
    DT_TRY(dti_alloc_array((size_t)(n * s->vocab), sizeof *got, (void **)&got));
    DT_TRY(read_logits(logits, got));
    for (int64_t o = 0; o < n; o++) {
        const int64_t replica = o / p->call.n_out, row = replica * p->call.n_rows + p->out[o];
        int64_t i, t;
        if (p->out[o] < 0 || p->sequence[row] < 0) continue;
        i = p->sequence[row] * s->replicas + replica;
        t = p->positions[row];
        DT_EXPECT(is_same(s, got + o * s->vocab, s->readers[i].alone + t * s->vocab),
                  "token %lld of sequence %lld, row %d of %lld, has other logits than alone",
                  (long long)t, (long long)i, p->out[o], (long long)p->call.n_rows);
        ++*compared;
    }
    return DT_OK;
}

static dt_status step(scene *s, int64_t *compared)
{
    pass_rows p = { .call = { .n_rows = draw(s, 4) == 0 ? ROWS : 1 + draw(s, 20),
                              .n_sequences = N,
                              .max_blocks = MOST_BLOCKS } };
    dt_tensor *logits;

    memset(p.table, 0xff, sizeof p.table);
    memset(p.slots, 0xff, sizeof p.slots);
    for (int64_t r = 0; r < s->replicas; r++) DT_TRY(fill_replica(s, r, &p));
    choose_rows(s, &p);
    p.call.ids = p.ids;
    p.call.positions = p.positions;
    p.call.sequence = p.sequence;
    p.call.table = p.table;
    p.call.slots = p.slots;
    p.call.out_rows = p.out;
    dt_tape_reset(s->tape);
    logits = dti_ragged_pass(s->tape, s->m, s->pool, &p.call);
    DT_TRY(dt_tape_status(s->tape));
    return compare(s, &p, logits, compared);
}

static dt_status run_scene(scene *s)
{
    static const int64_t lengths[N] = { 1, 37, 140, 300, 250, 129 };
    const int64_t longest = s->c->longest > 0 ? s->c->longest : MOST;
    int64_t compared = 0;

    s->m->info.max_positions = longest;
    for (int64_t i = 0; i < N; i++) {
        s->readers[i].length = dti_min(lengths[i], longest);
        memset(s->readers[i].blocks, 0xff, sizeof s->readers[i].blocks);
        s->readers[i].slot = (int32_t)i;
        DT_TRY(read_alone(s, i));
    }
    for (int64_t r = 0; r < s->replicas; r++) {
        s->used[r][s->n_blocks - 1] = true; /* not ours */
        s->free_slot[r] = N;
    }
    while (!is_done(s)) DT_TRY(step(s, &compared));
    DT_EXPECT(compared > 100, "%lld tokens were compared", (long long)compared);
    return DT_OK;
}

static dt_status on_mesh(dt_mesh *mesh, const void *arg)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    const ragged_case *c = arg;
    char folder[DT_TEST_PATH_BYTES];
    DT_FREED scene *s = NULL;
    dt_status st = DT_OK;

    options.keep_dtype = false;
    options.dtype = c->dtype;
    options.weights = c->weights;
    if (dt_mesh_find_dim(mesh, "pp") >= 0) options.stage_dim = "pp";
    if (dt_mesh_find_dim(mesh, "dp_shard") >= 0) options.fully_shard = "dp_shard";
    DT_TRY(dti_new(sizeof *s, &s));
    s->c = c;
    s->random = 7;
    s->n_blocks = N * MOST_BLOCKS + 1;
    DT_TRY_TO(done, st,
              dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/%s", c->fixture),
                            &options, &s->m));
    s->vocab = s->m->info.vocab_size;
    s->replicas = dti_ragged_replicas(s->m);
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &s->tape));
    DT_TRY_TO(done, st, dti_kv_pool_create(s->m, 1, &s->pool));
    DT_TRY_TO(done, st, dti_kv_pool_resize(s->pool, s->n_blocks));
    DT_TRY_TO(done, st, dti_kv_pool_set_slots(s->pool, N + 1));
    DT_TRY_TO(done, st, run_scene(s));
done:
    for (int i = 0; i < N; i++) dti_free(s->readers[i].alone);
    dt_tape_release(&s->tape);
    dti_kv_pool_release(&s->pool);
    dt_model_release(&s->m);
    return st;
}

void ragged_check(const ragged_case *c, const dt_run_options *run)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    dt_status st;

    if (run != NULL) options = *run;
    if (c->isa != NULL) options.isa = c->isa;
    st = dt_test_run(&options, c->mesh, on_mesh, c);
    if (st != DT_OK)
        dti_error_prefix("%s, %s, %s, %s, %s", c->fixture, c->mesh, dt_dtype_name(c->dtype),
                         c->weights != NULL ? c->weights : "as they are",
                         c->isa != NULL ? c->isa : "auto");
    DT_ASSERT_OK(st);
}
