/* SPDX-License-Identifier: Apache-2.0
 *
 * From plans to a pass: rows of all replicas side by side, the shorter ones padded. */
#include "base/numbers.h"
#include "models/engine/engine_parts.h"

/* How large a pass is in every replica. */
typedef struct extents {
    int64_t rows, sequences, blocks, out;
} extents;

static extents largest_plan(const dt_engine *e)
{
    extents most = { 1, 1, 1, 0 };

    for (int64_t k = 0; k < e->replicas; k++) {
        const dti_plan *p = &e->schedule->replicas[k].plan;
        int64_t out = 0;
        for (int64_t i = 0; i < p->n_parts; i++) {
            out += p->parts[i].chooses;
            most.blocks = dti_max(most.blocks, p->parts[i].of->n_table);
        }
        most.rows = dti_max(most.rows, p->n_rows);
        most.sequences = dti_max(most.sequences, p->n_parts);
        most.out = dti_max(most.out, out);
    }
    return most;
}

static dt_status room(int32_t **array, size_t *has, int64_t n, int32_t value)
{
    DT_TRY(dti_grow((void **)array, has, (size_t)n + 1, sizeof **array));
    for (int64_t i = 0; i < n; i++) (*array)[i] = value;
    return DT_OK;
}

static dt_status make_room(dt_engine *e, const extents *x)
{
    dti_pass_arrays *a = &e->pass;
    const int64_t k = e->replicas;

    DT_TRY(room(&a->ids, &a->ids_room, k * x->rows, 0));
    DT_TRY(room(&a->positions, &a->positions_room, k * x->rows, 0));
    DT_TRY(room(&a->sequence, &a->sequence_room, k * x->rows, -1));
    DT_TRY(room(&a->table, &a->table_room, k * x->sequences * x->blocks, -1));
    DT_TRY(room(&a->slots, &a->slots_room, k * x->sequences, -1));
    DT_TRY(room(&a->out_rows, &a->out_room, k * x->out, -1));
    return DT_OK;
}

static void fill_replica(dt_engine *e, const extents *x, int64_t k)
{
    const dti_plan *p = &e->schedule->replicas[k].plan;
    dti_pass_arrays *a = &e->pass;
    int64_t at = k * x->rows, out = k * x->out;

    for (int64_t i = 0; i < p->n_parts; i++) {
        const dti_plan_part *part = &p->parts[i];
        const dti_sequence *q = part->of;
        int32_t *table = a->table + (k * x->sequences + i) * x->blocks;
        for (int64_t j = part->first; j < part->first + part->n; j++, at++) {
            a->ids[at] = q->ids[j];
            a->positions[at] = (int32_t)j;
            a->sequence[at] = (int32_t)i;
        }
        for (int64_t j = 0; j < q->n_table; j++) table[j] = q->table[j];
        a->slots[k * x->sequences + i] = q->slot;
        if (part->chooses) a->out_rows[out++] = (int32_t)(at - k * x->rows - 1);
    }
}

dt_status dti_engine_pass(dt_engine *e, dt_tensor **logits)
{
    const extents x = largest_plan(e);
    dti_pass_arrays *a = &e->pass;
    dti_ragged rows;

    DT_TRY(make_room(e, &x));
    for (int64_t k = 0; k < e->replicas; k++) {
        const dti_plan *p = &e->schedule->replicas[k].plan;
        for (int64_t i = 0; i < p->n_copies; i++)
            DT_TRY(dti_kv_pool_copy_block(e->pool, k, p->copies[i].from, p->copies[i].to));
        for (int64_t i = 0; i < p->n_forks; i++)
            DT_TRY(dti_kv_pool_copy_slot(e->pool, k, p->forks[i].from, p->forks[i].to));
        fill_replica(e, &x, k);
    }
    rows = (dti_ragged){ .n_rows = x.rows,
                         .ids = a->ids,
                         .positions = a->positions,
                         .sequence = a->sequence,
                         .n_sequences = x.sequences,
                         .max_blocks = x.blocks,
                         .table = a->table,
                         .slots = a->slots,
                         .n_out = x.out,
                         .out_rows = a->out_rows,
                         .progress = e->o.progress,
                         .progress_arg = e->o.progress_arg };
    dt_tape_reset(e->tape);
    *logits = dti_ragged_pass(e->tape, e->model, e->pool, &rows);
    DT_TRY(dt_tape_status(e->tape));
    return DT_OK;
}
