/* SPDX-License-Identifier: Apache-2.0 */
#include "models/run/ragged.h"

#include <stdio.h>

#include "base/numbers.h"
#include "dtensor/create.h"
#include "dtensor/host.h"
#include "mesh/runtime.h"
#include "models/run/forward.h"
#include "models/run/kv_pool.h"
#include "models/run/paged.h"

/* --- what is wrong with a call is said before anything is made -------------------------------- */

static bool is_dry(const dt_model *m)
{
    return dt_runtime_is_dry(dt_mesh_runtime(m->mesh));
}

static dt_status check_call(const dt_model *m, const dti_kv_pool *pool, const dti_ragged *rows)
{
    const bool given = rows->ids != NULL && rows->positions != NULL && rows->sequence != NULL &&
                       rows->table != NULL && (rows->n_out == 0 || rows->out_rows != NULL);

    DT_CHECK(pool->model == m, DT_ERR_ARG, "the pool does not belong to this model");
    DT_CHECK(rows->n_rows >= 1 && rows->n_out >= 0 && rows->n_sequences >= 1 &&
                 rows->max_blocks >= 1,
             DT_ERR_ARG, "a pass of %lld rows, logits of %lld, of %lld sequences of %lld blocks",
             (long long)rows->n_rows, (long long)rows->n_out, (long long)rows->n_sequences,
             (long long)rows->max_blocks);
    DT_CHECK(rows->n_rows <= INT32_MAX / pool->replicas &&
                 rows->n_sequences <= INT32_MAX / pool->replicas &&
                 pool->n_blocks <= INT32_MAX / pool->replicas,
             DT_ERR_ARG,
             "a pass of %lld rows, %lld sequences and %lld blocks in each of %lld "
             "replicas: more than 31 bits count",
             (long long)rows->n_rows, (long long)rows->n_sequences, (long long)pool->n_blocks,
             (long long)pool->replicas);
    DT_CHECK(given || is_dry(m), DT_ERR_ARG, "a pass of %lld rows without their arrays",
             (long long)rows->n_rows);
    DT_CHECK(rows->slots != NULL || pool->n_slots == 0 || is_dry(m), DT_ERR_ARG,
             "a pass of %lld rows without the slots of their sequences, whose layers carry state",
             (long long)rows->n_rows);
    return DT_OK;
}

/* The slot of row i's sequence, among those of all replicas. */
static int64_t slot_of(const dti_kv_pool *pool, const dti_ragged *rows, int64_t i)
{
    const int64_t replica = i / rows->n_rows;

    return replica * pool->n_slots + rows->slots[replica * rows->n_sequences + rows->sequence[i]];
}

/* Row i of a sequence that is read up to position `last`, by this pass or (-1) by earlier ones. */
static dt_status check_slot(dti_kv_pool *pool, const dti_ragged *rows, int64_t i, int64_t last)
{
    const int64_t replica = i / rows->n_rows, position = rows->positions[i];
    const int32_t sequence = rows->sequence[i],
                  slot = rows->slots[replica * rows->n_sequences + sequence];
    int64_t next;

    DT_CHECK(slot >= 0 && slot < pool->n_slots, DT_ERR_ARG,
             "row %lld is of sequence %d in slot %d; there are 0 to %lld", (long long)i, sequence,
             slot, (long long)pool->n_slots - 1);
    DT_CHECK(pool->in_slot[slot] < 0 || pool->in_slot[slot] == sequence, DT_ERR_ARG,
             "sequences %d and %d are both in slot %d", pool->in_slot[slot], sequence, slot);
    pool->in_slot[slot] = sequence;
    next = last >= 0 ? last + 1 : position > 0 ? pool->read[slot_of(pool, rows, i)] : 0;
    DT_CHECK(next >= 0, DT_ERR_ARG,
             "row %lld has position %lld of sequence %d, but a pass has failed in slot %d: what "
             "layers carry of it begins anew at position 0",
             (long long)i, (long long)position, sequence, slot);
    DT_CHECK(position == next, DT_ERR_ARG,
             "row %lld has position %lld of sequence %d, but slot %d has read %lld tokens: layers "
             "that carry state read one after the other, from the first on",
             (long long)i, (long long)position, sequence, slot, (long long)next);
    return DT_OK;
}

/* The slots of this pass know what their rows have brought, or (-1) nobody knows what. */
static void note_slots(dti_kv_pool *pool, const dti_ragged *rows, bool known)
{
    for (int64_t i = 0; i < pool->replicas * rows->n_rows && pool->n_slots > 0; i++)
        if (rows->slots != NULL && rows->sequence[i] >= 0)
            pool->read[slot_of(pool, rows, i)] = known ? rows->positions[i] + 1 : -1;
}

/* Row i of one replica, whose arrays begin at `first`; pool->reached: of each sequence the last
 * position so far. */
static dt_status check_row(const dt_model *m, dti_kv_pool *pool, const dti_ragged *rows, int64_t i)
{
    const int64_t vocab = m->info.vocab_size, sequence = rows->sequence[i];
    const int64_t room =
        dti_min(m->info.max_positions, rows->max_blocks * (int64_t)DTI_BLOCK_TOKENS);
    int64_t *last = pool->reached;

    DT_CHECK(rows->ids[i] >= 0 && rows->ids[i] < vocab, DT_ERR_ARG,
             "token id %d in row %lld is outside the vocabulary: ids are 0 to %lld", rows->ids[i],
             (long long)i, (long long)vocab - 1);
    DT_CHECK(rows->positions[i] >= 0 && rows->positions[i] < room, DT_ERR_ARG,
             "row %lld has position %d; the model and the table have 0 to %lld", (long long)i,
             rows->positions[i], (long long)room - 1);
    DT_CHECK(sequence >= -1 && sequence < rows->n_sequences, DT_ERR_ARG,
             "row %lld is of sequence %lld; there are 0 to %lld", (long long)i, (long long)sequence,
             (long long)rows->n_sequences - 1);
    if (sequence < 0) return DT_OK;
    DT_CHECK(last[sequence] < rows->positions[i], DT_ERR_ARG,
             "row %lld has position %d of sequence %lld, behind %lld: rows of a sequence come in "
             "order, each once",
             (long long)i, rows->positions[i], (long long)sequence, (long long)last[sequence]);
    if (pool->carry != NULL) DT_TRY(check_slot(pool, rows, i, last[sequence]));
    last[sequence] = rows->positions[i];
    return DT_OK;
}

/* Notes who writes a block: what another sequence has too would become other keys behind its back.
 */
static dt_status claim_block(const dti_kv_pool *pool, const dti_ragged *rows, const int32_t *table,
                             int64_t i)
{
    const int32_t sequence = rows->sequence[i];
    int32_t block;

    if (sequence < 0) return DT_OK;
    block = table[sequence * rows->max_blocks + rows->positions[i] / DTI_BLOCK_TOKENS];
    DT_CHECK(block >= 0, DT_ERR_ARG,
             "row %lld writes position %d of sequence %d, which no block is for", (long long)i,
             rows->positions[i], sequence);
    pool->writers[block] = sequence;
    return DT_OK;
}

static dt_status check_table(const dti_kv_pool *pool, const dti_ragged *rows, const int32_t *table)
{
    for (int64_t i = 0; i < rows->n_sequences * rows->max_blocks; i++) {
        const int64_t sequence = i / rows->max_blocks;
        if (table[i] < 0) continue;
        DT_CHECK(
            pool->writers[table[i]] < 0 || pool->writers[table[i]] == sequence, DT_ERR_ARG,
            "block %d is written by sequence %d, and sequence %lld has it too: it needs a copy "
            "of its own",
            table[i], pool->writers[table[i]], (long long)sequence);
    }
    return DT_OK;
}

static dt_status check_replica(const dt_model *m, dti_kv_pool *pool, const dti_ragged *rows,
                               int64_t r)
{
    const int64_t entries = rows->n_sequences * rows->max_blocks;
    const int32_t *table = rows->table + r * entries;

    for (int64_t b = 0; b < pool->n_blocks; b++) pool->writers[b] = -1;
    for (int64_t s = 0; s < rows->n_sequences; s++) pool->reached[s] = -1;
    for (int64_t s = 0; s < pool->n_slots; s++) pool->in_slot[s] = -1;
    for (int64_t i = 0; i < entries; i++)
        DT_CHECK(table[i] >= -1 && table[i] < pool->n_blocks, DT_ERR_ARG,
                 "block %d of sequence %lld; the pool has 0 to %lld", table[i],
                 (long long)(i / rows->max_blocks), (long long)pool->n_blocks - 1);
    for (int64_t i = r * rows->n_rows; i < (r + 1) * rows->n_rows; i++) {
        DT_TRY(check_row(m, pool, rows, i));
        DT_TRY(claim_block(pool, rows, table, i));
    }
    DT_TRY(check_table(pool, rows, table));
    for (int64_t i = r * rows->n_out; i < (r + 1) * rows->n_out; i++)
        DT_CHECK(rows->out_rows[i] >= -1 && rows->out_rows[i] < rows->n_rows, DT_ERR_ARG,
                 "logits are wanted of row %d; there are 0 to %lld", rows->out_rows[i],
                 (long long)rows->n_rows - 1);
    return DT_OK;
}

/* Hashes what every rank is to be handed alike. */
static dt_status agree(dt_model *m, const dti_kv_pool *pool, const dti_ragged *rows)
{
    const size_t n = (size_t)(pool->replicas * rows->n_rows), word = sizeof(int32_t);
    const int64_t facts[] = { rows->n_rows, rows->n_sequences, rows->max_blocks, rows->n_out,
                              pool->n_blocks };
    const size_t entries = (size_t)(pool->replicas * rows->n_sequences * rows->max_blocks);
    dti_comm_note note;

    if (!dti_runtime_world(dt_mesh_runtime(m->mesh))->agree) return DT_OK;
    (void)snprintf(note.text, sizeof note.text,
                   "pass over %lld rows of %lld sequences, the first: id %d at position %d",
                   (long long)rows->n_rows, (long long)rows->n_sequences, rows->ids[0],
                   rows->positions[0]);
    note.hash = dti_hash_bytes(5, facts, sizeof facts);
    note.hash = dti_hash_bytes(note.hash, rows->ids, n * word);
    note.hash = dti_hash_bytes(note.hash, rows->positions, n * word);
    note.hash = dti_hash_bytes(note.hash, rows->sequence, n * word);
    note.hash = dti_hash_bytes(note.hash, rows->table, entries * word);
    if (pool->n_slots > 0)
        note.hash = dti_hash_bytes(note.hash, rows->slots,
                                   (size_t)(pool->replicas * rows->n_sequences) * word);
    note.hash =
        dti_hash_bytes(note.hash, rows->out_rows, (size_t)(pool->replicas * rows->n_out) * word);
    DT_TRY(dti_pass_agree(m, &note));
    return DT_OK;
}

static dt_status check(dt_model *m, dti_kv_pool *pool, const dti_ragged *rows)
{
    DT_TRY(check_call(m, pool, rows));
    if (is_dry(m)) return DT_OK;
    DT_TRY(dti_grow((void **)&pool->writers, &pool->n_writers, (size_t)pool->n_blocks,
                    sizeof *pool->writers));
    DT_TRY(dti_grow((void **)&pool->reached, &pool->n_reached, (size_t)rows->n_sequences,
                    sizeof *pool->reached));
    for (int64_t r = 0; r < pool->replicas; r++) DT_TRY(check_replica(m, pool, rows, r));
    if (dt_mesh_is_member(m->mesh)) DT_TRY(agree(m, pool, rows));
    return DT_OK;
}

/* --- what a pass is made of ------------------------------------------------------------------- */

/* `from` [replicas * n, columns] into a tensor of the tape, of which each rank has its replica's.
 * What is not below 0 counts in the replica, and then from `step` on for each replica before. */
static dt_status make_ints(dt_tape *t, const dt_model *m, const int32_t *from,
                           const int64_t shape[2], int64_t step, dt_tensor **out)
{
    const int64_t each = shape[0] / dti_ragged_replicas(m);
    const dt_local *mine;
    dti_host host;
    int32_t *to;

    DT_TRY(dti_pass_ints(t, m, shape[0], shape[1], 1, out));
    mine = dt_tensor_local(*out);
    if (!dt_mesh_is_member(m->mesh) || is_dry(m)) return DT_OK;
    DT_TRY(dti_host_open(*out, DTI_HOST_WRITES, &host));
    to = host.local.data;
    for (int64_t i = 0; i < mine->shape[0] * shape[1]; i++) {
        const int64_t row = mine->offset[0] + i / shape[1];
        const int32_t x = from[mine->offset[0] * shape[1] + i];
        to[i] = x < 0 ? x : (int32_t)(x + row / each * step);
    }
    DT_TRY(dti_host_close(&host, DT_OK));
    return DT_OK;
}

/* Whether logits are wanted of every row, in order. */
static bool wants_all(const dti_kv_pool *pool, const dti_ragged *rows)
{
    if (rows->n_out != rows->n_rows) return false;
    for (int64_t i = 0; i < pool->replicas * rows->n_out && rows->out_rows != NULL; i++)
        if (rows->out_rows[i] != i % rows->n_rows) return false;
    return true;
}

/* Rows of which nobody reads the logits stand for the first row. */
static dt_status make_out_rows(dt_tape *t, const dt_model *m, const dti_kv_pool *pool,
                               const dti_ragged *rows, dt_tensor **out)
{
    const int64_t n = pool->replicas * rows->n_out;
    dt_status st = DT_OK;
    int32_t *numbers;

    DT_TRY(dti_alloc_array((size_t)n, sizeof *numbers, (void **)&numbers));
    for (int64_t i = 0; i < n && rows->out_rows != NULL; i++)
        numbers[i] = rows->out_rows[i] > 0 ? rows->out_rows[i] : 0;
    st = make_ints(t, m, numbers, (const int64_t[]){ n, 1 }, 0, out);
    dti_free(numbers);
    return st;
}

/* Of each row, in its replica; -1: it is padding. */
static dt_status make_slots(dt_tape *t, const dt_model *m, const dti_kv_pool *pool,
                            const dti_ragged *rows, dt_tensor **out)
{
    const int64_t n = pool->replicas * rows->n_rows;
    dt_status st = DT_OK;
    int32_t *slots;

    DT_TRY(dti_alloc_array((size_t)n, sizeof *slots, (void **)&slots));
    for (int64_t i = 0; i < n && rows->slots != NULL; i++)
        slots[i] = rows->sequence[i] < 0
                       ? -1
                       : (int32_t)(slot_of(pool, rows, i) - i / rows->n_rows * pool->n_slots);
    st = make_ints(t, m, slots, (const int64_t[]){ n, 1 }, pool->n_slots, out);
    dti_free(slots);
    return st;
}

static dt_status make(dt_tape *t, const dt_model *m, dti_kv_pool *pool, const dti_ragged *rows,
                      dti_paged *paged, dt_model_pass *pass)
{
    const int64_t of_rows[] = { pool->replicas * rows->n_rows, 1 };
    const int64_t of_table[] = { pool->replicas * rows->n_sequences, rows->max_blocks };

    *paged = (dti_paged){ .n_out = pool->replicas * rows->n_out,
                          .n_blocks = pool->replicas * pool->n_blocks,
                          .batch_dims = m->batch_dims,
                          .sees = &pool->sees };
    *pass = (dt_model_pass){ .kv = pool->kv,
                             .n_layers = m->info.n_layers,
                             .rows = DT_LOGITS_ALL,
                             .length = m->info.max_positions,
                             .progress = rows->progress,
                             .progress_arg = rows->progress_arg,
                             .go_on = rows->go_on,
                             .go_on_arg = rows->go_on_arg,
                             .paged = paged };
    DT_TRY(make_ints(t, m, rows->ids, of_rows, 0, &pass->ids));
    DT_TRY(make_ints(t, m, rows->positions, of_rows, 0, &pass->positions));
    DT_TRY(make_ints(t, m, rows->sequence, of_rows, rows->n_sequences, &paged->sequence));
    DT_TRY(make_ints(t, m, rows->table, of_table, pool->n_blocks, &paged->table));
    if (pool->n_slots > 0) DT_TRY(make_slots(t, m, pool, rows, &paged->slots));
    if (rows->n_out > 0 && !wants_all(pool, rows))
        DT_TRY(make_out_rows(t, m, pool, rows, &paged->out_rows));
    return DT_OK;
}

dt_tensor *dti_ragged_pass(dt_tape *t, dt_model *m, dti_kv_pool *pool, const dti_ragged *rows)
{
    dt_tensor *logits = NULL;
    dt_model_pass pass;
    dti_paged paged;
    dti_result r;
    dt_status st;

    if (dt_tape_status(t) != DT_OK) return NULL;
    st = check(m, pool, rows);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    dt_scope_begin(t, m->arch->model_type);
    st = make(t, m, pool, rows, &paged, &pass);
    if (st == DT_OK) {
        note_slots(pool, rows, false);
        (void)dt_layers_carry(m->layers, pool->carry);
        r = dti_pass_enter(t, m, &pass, rows->n_out > 0);
        (void)dt_layers_carry(m->layers, NULL);
        logits = dti_leave_stages(t, &r);
    } else {
        (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    }
    logits = dt_scope_end(t, logits);
    if (dt_tape_status(t) != DT_OK) return NULL;
    if (pool->n_slots == 0) dt_carry_commit(pool->carry);
    note_slots(pool, rows, true);
    st = dti_settle_stages(m);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    return rows->n_out > 0 ? logits : NULL;
}
