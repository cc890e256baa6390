/* SPDX-License-Identifier: Apache-2.0 */
#include "models/run/kv_pool.h"

#include "base/numbers.h"
#include "dtensor/create.h"
#include "mesh/runtime.h"
#include "parallel_styles/changes.h"

static const dti_live pools = { "pool of KV blocks", "pools of KV blocks" };

dt_status dti_ragged_check(const dt_model *m)
{
    const int64_t turn = m->arch->turn != NULL ? m->arch->turn(m->self) : 0;
    const char *layer, *state = dti_layers_without_slots(m->layers, &layer);

    DT_CHECK(state == NULL, DT_ERR_UNSUPPORTED,
             "%s: %s carries state \"%s\" from token to token, which its kind does not keep in "
             "slots: sequences cannot be run together as single tokens; dt_generate() makes texts "
             "one by one, dt_generate_batch() several of one length",
             m->arch->model_type, layer, state);
    DT_CHECK(turn == 0, DT_ERR_UNSUPPORTED,
             "%s rotates positions otherwise in sequences of more than %lld tokens, and keys that "
             "are remembered do not fit any more: its sequences cannot lie in blocks",
             m->arch->model_type, (long long)(turn < 0 ? -turn : turn));
    return DT_OK;
}

int64_t dti_ragged_replicas(const dt_model *m)
{
    int64_t n = 1;

    for (int d = 0; d < dt_mesh_n_dims(m->mesh); d++)
        if (dti_has(m->batch_dims, d)) n *= dt_mesh_dim_size(m->mesh, d);
    return n;
}

/* Everything that a pass makes of a row of padding is of the model's own layout: blocks and states
 * too. */
static dt_status lay_out(dti_kv_pool *pool)
{
    dt_status st = DT_OK;
    int32_t *zeros = NULL, *none = NULL;
    dt_tape *t = NULL;
    dti_ragged rows = { .n_rows = 1, .n_sequences = 1, .max_blocks = 1 };

    DT_TRY_TO(done, st, dti_alloc_array((size_t)pool->replicas, sizeof *zeros, (void **)&zeros));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)pool->replicas, sizeof *none, (void **)&none));
    for (int64_t r = 0; r < pool->replicas; r++) none[r] = -1;
    rows.ids = rows.positions = zeros;
    rows.sequence = rows.table = none;
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(pool->model->mesh), &t));
    (void)dti_ragged_pass(t, pool->model, pool, &rows);
    DT_TRY_TO(done, st, dt_tape_status(t));
done:
    dt_tape_release(&t);
    dti_free(zeros);
    dti_free(none);
    return st;
}

static dt_status check_n_blocks(int64_t n_blocks)
{
    DT_CHECK(n_blocks >= 1 && n_blocks <= INT32_MAX, DT_ERR_ARG, "a pool of %lld KV blocks",
             (long long)n_blocks);
    return DT_OK;
}

dt_status dti_kv_pool_create(dt_model *m, int64_t n_blocks, dti_kv_pool **out)
{
    dt_status st = DT_OK;
    dti_kv_pool *pool;

    *out = NULL;
    DT_TRY(check_n_blocks(n_blocks));
    DT_TRY(dti_ragged_check(m));
    DT_TRY(dti_new(sizeof *pool, &pool));
    pool->model = m;
    pool->replicas = dti_ragged_replicas(m);
    pool->n_blocks = n_blocks;
    m->refs++;
    dti_runtime_count(dt_mesh_runtime(m->mesh), &pools, 1);
    DT_TRY_TO(fail, st,
              dti_alloc_array((size_t)m->info.n_layers, sizeof *pool->kv, (void **)&pool->kv));
    if (dt_layers_carry_states(m->layers))
        DT_TRY_TO(fail, st, dt_carry_create(m->layers, &pool->carry));
    DT_TRY_TO(fail, st, lay_out(pool));
    DT_TRY_TO(fail, st, dti_kv_pool_set_slots(pool, 1));
    *out = pool;
    return DT_OK;

fail:
    dti_kv_pool_release(&pool);
    return st;
}

/* Blocks of all layers, keys and values one after the other. */
static dt_tensor **tensor_of(const dti_kv_pool *pool, int64_t i)
{
    dti_kv *kv = &pool->kv[i / 2];

    return i % 2 == 0 ? &kv->k : &kv->v;
}

static int64_t n_tensors(const dti_kv_pool *pool)
{
    return pool->kv != NULL ? 2 * pool->model->info.n_layers : 0;
}

void dti_kv_pool_release(dti_kv_pool **out)
{
    dti_kv_pool *pool = *out;

    if (pool == NULL) return;
    *out = NULL;
    for (int64_t i = 0; i < n_tensors(pool); i++) dt_tensor_release(tensor_of(pool, i));
    dt_carry_release(&pool->carry);
    dti_runtime_count(dt_mesh_runtime(pool->model->mesh), &pools, -1);
    dt_model_release(&pool->model);
    dti_free(pool->kv);
    dti_free(pool->writers);
    dti_free(pool->reached);
    dti_free(pool->read);
    dti_free(pool->in_slot);
    dti_free(pool);
}

int64_t dti_kv_pool_sees(const dti_kv_pool *pool)
{
    return pool->sees;
}

static dt_status resize(dt_tensor **x, int64_t n_blocks)
{
    dt_mesh *mesh = dt_tensor_mesh(*x);
    const dt_layout *layout = dt_tensor_layout(*x);
    const dt_dtype dtype = dt_tensor_dtype(*x);
    const int64_t shape[] = { n_blocks, DTI_BLOCK_TOKENS, dt_tensor_extent(*x, 2),
                              dt_tensor_extent(*x, 3) };

    dt_tensor_release(x); /* before: there is no room for both */
    DT_TRY(dti_tensor_create_exact(mesh, layout, dtype, shape, x));
    dti_tensor_set_kind(*x, DTI_KIND_CACHES);
    return DT_OK;
}

dt_status dti_kv_pool_resize(dti_kv_pool *pool, int64_t n_blocks)
{
    DT_TRY(check_n_blocks(n_blocks));
    pool->n_blocks = n_blocks;
    dti_free(pool->writers);
    pool->writers = NULL;
    pool->n_writers = 0;
    for (int64_t i = 0; i < n_tensors(pool); i++)
        if (*tensor_of(pool, i) != NULL)
            DT_TRY(resize(tensor_of(pool, i), n_blocks * pool->replicas));
    return DT_OK;
}

int64_t dti_kv_pool_n_blocks(const dti_kv_pool *pool)
{
    return pool->n_blocks;
}

static int64_t block_bytes(const dt_tensor *x)
{
    const dt_local *local = x != NULL ? dt_tensor_local(x) : NULL;

    if (x == NULL || !dt_mesh_is_member(dt_tensor_mesh(x))) return 0;
    return local->shape[1] * local->shape[2] * local->shape[3] *
           (int64_t)dt_dtype_size(local->dtype);
}

int64_t dti_kv_pool_block_bytes(const dti_kv_pool *pool)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < n_tensors(pool); i++) bytes += block_bytes(*tensor_of(pool, i));
    return bytes;
}

dt_status dti_kv_pool_copy_block(dti_kv_pool *pool, int64_t replica, int64_t from, int64_t to)
{
    DT_CHECK(replica >= 0 && replica < pool->replicas, DT_ERR_ARG,
             "KV blocks of replica %lld; there are %lld", (long long)replica,
             (long long)pool->replicas);
    DT_CHECK(from >= 0 && from < pool->n_blocks && to >= 0 && to < pool->n_blocks, DT_ERR_ARG,
             "KV block %lld would become a copy of %lld; the pool has 0 to %lld", (long long)to,
             (long long)from, (long long)pool->n_blocks - 1);
    for (int64_t i = 0; i < n_tensors(pool) && from != to; i++) {
        dt_tensor *x = *tensor_of(pool, i);
        const int64_t bytes = block_bytes(x);
        if (bytes == 0 || dt_tensor_local(x)->offset[0] != replica * pool->n_blocks) continue;
        DT_TRY(dti_tensor_copy_bytes(x, to * bytes, x, from * bytes, bytes));
    }
    return DT_OK;
}

/* --- slots ------------------------------------------------------------------------------------ */

bool dti_kv_pool_carries(const dti_kv_pool *pool)
{
    return pool->carry != NULL;
}

dt_status dti_kv_pool_set_slots(dti_kv_pool *pool, int64_t n_slots)
{
    const int64_t all = pool->replicas * n_slots;

    DT_CHECK(n_slots >= 1 && n_slots <= INT32_MAX / pool->replicas, DT_ERR_ARG,
             "a pool of %lld slots", (long long)n_slots);
    if (pool->carry == NULL) return DT_OK;
    dti_free(pool->read);
    dti_free(pool->in_slot);
    pool->in_slot = NULL;
    pool->read = NULL;
    DT_TRY(dti_alloc_array((size_t)all, sizeof *pool->read, (void **)&pool->read));
    DT_TRY(dti_alloc_array((size_t)n_slots, sizeof *pool->in_slot, (void **)&pool->in_slot));
    DT_TRY(dti_carry_set_slots(pool->carry, all));
    pool->n_slots = n_slots;
    return DT_OK;
}

int64_t dti_kv_pool_slots_in(int64_t bytes, int64_t slot_bytes, int64_t most)
{
    return slot_bytes > 0 ? dti_min(most, bytes / 2 / slot_bytes) : most;
}

int64_t dti_kv_pool_slot_bytes(const dti_kv_pool *pool)
{
    return pool->carry != NULL ? dti_carry_bytes(pool->carry) / pool->n_slots : 0;
}

dt_status dti_kv_pool_copy_slot(dti_kv_pool *pool, int64_t replica, int64_t from, int64_t to)
{
    const int64_t first = replica * pool->n_slots;

    if (pool->carry == NULL) return DT_OK;
    DT_CHECK(
        replica >= 0 && replica < pool->replicas && from >= 0 && from < pool->n_slots && to >= 0 &&
            to < pool->n_slots,
        DT_ERR_ARG,
        "slot %lld of replica %lld would become a copy of %lld; there are %lld replicas of %lld",
        (long long)to, (long long)replica, (long long)from, (long long)pool->replicas,
        (long long)pool->n_slots);
    pool->read[first + to] = pool->read[first + from];
    if (from != to) DT_TRY(dti_carry_copy_slot(pool->carry, first + from, first + to));
    return DT_OK;
}
