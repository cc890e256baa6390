/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass of new tokens through the model. */
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "dtensor/create.h"
#include "dtensor/host.h"
#include "mesh/runtime.h"
#include "models/run/forward.h"
#include "models/run/step.h"

enum { SHOWN_IDS = 12 };

static int64_t turn_of(const dt_model *m)
{
    return m->arch->turn != NULL ? m->arch->turn(m->self) : 0;
}

static dt_status check_ids(const dt_model *m, const dt_state *s, const int32_t *ids,
                           int64_t n_tokens)
{
    const bool dry = dt_runtime_is_dry(dt_mesh_runtime(m->mesh));

    DT_CHECK((ids != NULL || dry) && n_tokens >= 1, DT_ERR_ARG, "a pass of %lld tokens",
             (long long)n_tokens);
    DT_CHECK(
        n_tokens <= s->capacity - s->length, DT_ERR_ARG,
        "%lld tokens after %lld exceed the context of %lld: shorten the prompt or ask for fewer "
        "new tokens",
        (long long)n_tokens, (long long)s->length, (long long)s->capacity);
    for (int64_t b = 0; b < s->n_kept; b++)
        DT_CHECK(s->pads[b] < n_tokens, DT_ERR_ARG,
                 "sequence %lld would have %lld tokens of padding in a pass of %lld: at least one "
                 "token has to be real",
                 (long long)b, (long long)s->pads[b], (long long)n_tokens);
    for (int64_t i = 0; !dry && i < s->batch * n_tokens; i++)
        DT_CHECK(ids[i] >= 0 && ids[i] < m->info.vocab_size, DT_ERR_ARG,
                 "token id %d at place %lld is outside the vocabulary: ids are 0 to %lld", ids[i],
                 (long long)i, (long long)m->info.vocab_size - 1);
    return DT_OK;
}

dt_status dti_pass_ints(dt_tape *t, const dt_model *m, int64_t batch, int64_t tokens,
                        int64_t together, dt_tensor **out)
{
    const int64_t shape[] = { batch, tokens };
    dt_placement place[DT_MAX_DIMS] = { { 0 } };
    const dt_layout *layout;
    dt_tensor *x;

    for (int d = 0; d < dt_mesh_n_dims(m->here); d++)
        if (dti_has(m->batch_dims, d)) place[d] = DT_SHARD_UNITS(0, together);
    DT_TRY(dt_layout_get(m->here, 2, place, NULL, &layout));
    DT_TRY(dti_tensor_create(m->here, layout, DT_I32, shape, &x));
    *out = dti_tape_push(t, x);
    DT_CHECK(*out != NULL, DT_ERR_MEMORY, "the tape could not grow");
    return DT_OK;
}

/* "pass over 3 tokens after 0: 1, 5, 6" */
static void describe_ids(const dt_state *s, const int32_t *ids, int64_t n_tokens,
                         dti_comm_note *note)
{
    const int64_t n = s->batch * n_tokens, facts[] = { s->batch, n_tokens, s->length };
    int used =
        snprintf(note->text, sizeof note->text,
                 "pass over %lld tokens after %lld: ", (long long)n_tokens, (long long)s->length);

    for (int64_t i = 0; i < n && i < SHOWN_IDS; i++)
        used += snprintf(note->text + used, sizeof note->text - (size_t)used, "%s%d",
                         i > 0 ? ", " : "", (int)ids[i]);
    if (n > SHOWN_IDS) (void)snprintf(note->text + used, sizeof note->text - (size_t)used, ", ...");
    note->hash = dti_hash_bytes(3, facts, sizeof facts);
    note->hash = dti_hash_bytes(note->hash, s->pads, (size_t)s->batch * sizeof *s->pads);
    note->hash = dti_hash_bytes(note->hash, ids, (size_t)n * sizeof *ids);
}

dt_status dti_pass_agree(dt_model *m, const dti_comm_note *about)
{
    const uint32_t all_dims = (1u << dt_mesh_n_dims(m->mesh)) - 1;
    dti_comm *comm;

    DT_TRY(dti_mesh_comm(m->mesh, all_dims, &comm));
    DT_TRY(dti_comm_run(comm, &(dti_comm_call){ .op = DTI_COMM_BARRIER, .about = about }));
    return DT_OK;
}

static dt_status agree_on_ids(dt_model *m, const dt_state *s, const int32_t *ids, int64_t n_tokens)
{
    dti_comm_note note;

    if (!dti_runtime_world(dt_mesh_runtime(m->mesh))->agree) return DT_OK;
    describe_ids(s, ids, n_tokens, &note);
    DT_TRY(dti_pass_agree(m, &note));
    return DT_OK;
}

dt_status dti_pass_write(const dt_model *m, const dt_state *s, const int32_t *ids, int64_t n_tokens,
                         const dt_model_pass *pass)
{
    const dt_local *mine = dt_tensor_local(pass->ids);
    const int64_t first = mine->offset[0] * n_tokens, n = mine->shape[0] * n_tokens;
    dti_host positions;
    int32_t *to;

    if (!dt_mesh_is_member(m->mesh) || dt_runtime_is_dry(dt_mesh_runtime(m->mesh))) return DT_OK;
    DT_TRY(dt_tensor_write(pass->ids, ids + first, (size_t)n * sizeof *ids));
    DT_TRY(dti_host_open(pass->positions, DTI_HOST_WRITES, &positions));
    to = positions.local.data;
    for (int64_t i = 0; i < n; i++)
        to[i] = (int32_t)dti_state_position(s, (first + i) / n_tokens, n_tokens, i % n_tokens);
    DT_TRY(dti_host_close(&positions, DT_OK));
    return DT_OK;
}

/* Of the sequences, without padding. */
static int64_t longest_after(const dt_state *s, int64_t n_tokens)
{
    int64_t longest = 0;

    for (int64_t b = 0; b < s->n_kept; b++) {
        const int64_t length = s->lengths[b] + n_tokens - s->pads[b];
        if (length > longest) longest = length;
    }
    return longest;
}

dt_status dti_pass_make(dt_tape *t, const dt_model *m, dt_state *s, int64_t n_tokens,
                        dt_logits_rows rows, dt_model_pass *out)
{
    *out = (dt_model_pass){ .kv = s->kv,
                            .n_layers = m->info.n_layers,
                            .rows = rows,
                            .progress = n_tokens > 1 ? s->progress : NULL,
                            .progress_arg = s->progress_arg,
                            .go_on = n_tokens > 1 ? s->go_on : NULL,
                            .go_on_arg = s->go_on_arg,
                            .see = s->see,
                            .see_arg = s->see_arg,
                            .length = longest_after(s, n_tokens) };
    DT_TRY(dti_pass_ints(t, m, s->batch, n_tokens, s->together, &out->ids));
    DT_TRY(dti_pass_ints(t, m, s->batch, n_tokens, s->together, &out->positions));
    return DT_OK;
}

/* What is wrong with a call says so before anything is made. */
static dt_status check(dt_model *m, const dt_state *s, const int32_t *ids, int64_t n_tokens)
{
    DT_TRY(check_ids(m, s, ids, n_tokens));
    if (dt_mesh_is_member(m->mesh) && !dt_runtime_is_dry(dt_mesh_runtime(m->mesh)))
        DT_TRY(agree_on_ids(m, s, ids, n_tokens));
    return DT_OK;
}

/* --- stages have a prompt in chunks ----------------------------------------------------------- */

/* A chunk has so many rows that products are not bound by reading weights; a pass so many chunks
 * for each rank along the stages that what is idle at both ends counts little. */
enum { CHUNK_ROWS = 96, CHUNKS_PER_RANK = 4 };

/* In how many chunks the tokens of each sequence go through the stages one after the other, so that
 * these work at the same time. Logits are of the last chunk. */
static int64_t count_chunks(const dt_model *m, const dt_state *s, int64_t n_tokens,
                            dt_logits_rows rows)
{
    const int64_t most = (int64_t)CHUNKS_PER_RANK * m->stages.n_meshes;
    bool padded = false;

    for (int64_t b = 0; b < s->n_kept; b++) padded |= s->pads[b] > 0;
    if (m->stages.n_meshes <= 1 || rows == DT_LOGITS_ALL || s->carry != NULL || padded) return 1;
    return dti_max(1, dti_min(dti_min(most, n_tokens), s->batch * n_tokens / CHUNK_ROWS));
}

/* Tokens of a pass over n_tokens of each sequence, `length` of the longest with all of them. */
typedef struct chunk {
    const int32_t *ids; /* [batch, n] */
    int64_t n, length;
    dt_logits_rows rows;
    bool first, last;
} chunk;

static dti_result enter_chunk(dt_tape *t, dt_model *m, dt_state *s, const chunk *c)
{
    dti_result r = { 0 };
    dt_model_pass pass;
    dt_status st;

    dt_scope_begin(t, m->arch->model_type);
    st = dti_pass_make(t, m, s, c->n, c->rows, &pass);
    if (st == DT_OK) st = dti_pass_write(m, s, c->ids, c->n, &pass);
    pass.length = c->length;
    if (!c->first) pass.go_on = NULL;
    if (st == DT_OK)
        r = dti_pass_enter(t, m, &pass, c->last);
    else
        (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    r.x = dt_scope_end(t, r.x);
    return r;
}

/* Chunk after chunk. The state has read those that were entered. */
static dti_result enter_chunks(dt_tape *t, dt_model *m, dt_state *s, chunk c, int64_t n_chunks)
{
    const int64_t n_tokens = c.n;
    const int32_t *ids = c.ids;
    int32_t *part = NULL;
    dti_result r = { 0 };
    const dt_status st =
        n_chunks > 1 && ids != NULL && s->batch > 1
            ? dti_alloc_array((size_t)(s->batch * n_tokens), sizeof *part, (void **)&part)
            : DT_OK;

    if (st != DT_OK) (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    for (int64_t i = 0; i < n_chunks && dt_tape_status(t) == DT_OK; i++) {
        const int64_t begin = n_tokens * i / n_chunks;
        c.n = n_tokens * (i + 1) / n_chunks - begin;
        c.first = i == 0;
        c.last = i + 1 == n_chunks;
        c.ids = part != NULL ? part : ids != NULL ? ids + begin : NULL;
        for (int64_t b = 0; part != NULL && b < s->batch; b++)
            memcpy(part + b * c.n, ids + b * n_tokens + begin, (size_t)c.n * sizeof *ids);
        r = enter_chunk(t, m, s, &c);
        if (dt_tape_status(t) == DT_OK)
            dti_state_advance(s, c.ids, c.n);
        else
            dti_state_retreat(s, begin);
    }
    dti_free(part);
    return r;
}

static dti_result enter(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids, int64_t n_tokens,
                        dt_logits_rows rows)
{
    const chunk all = {
        .ids = ids, .n = n_tokens, .length = longest_after(s, n_tokens), .rows = rows
    };
    const dt_status st = check(m, s, ids, n_tokens);
    dti_result r = { 0 };

    if (st != DT_OK) {
        (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
        return r;
    }
    (void)dt_layers_carry(m->layers, s->carry);
    r = enter_chunks(t, m, s, all, count_chunks(m, s, n_tokens, rows));
    (void)dt_layers_carry(m->layers, NULL);
    if (dt_tape_status(t) != DT_OK) return r;
    dt_carry_commit(s->carry);
    s->turned = all.length > turn_of(m);
    return r;
}

static dt_tensor *leave(dt_tape *t, const dt_model *m, dti_result *r)
{
    if (r->parcel == NULL) return r->x;
    dt_scope_begin(t, m->arch->model_type);
    return dt_scope_end(t, dti_leave_stages(t, r));
}

static dt_tensor *run(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids, int64_t n_tokens,
                      dt_logits_rows rows)
{
    dti_result r = enter(t, m, s, ids, n_tokens, rows);

    return leave(t, m, &r);
}

/* --- once more from the first token ----------------------------------------------------------- */

/* Beyond a certain length all positions of a sequence rotate otherwise (longrope), and keys that
 * are remembered do not fit any more: sequences of which the longest grows past it, or was cut back
 * below it, are run again from their first tokens, as Transformers does for Phi-3. */
static bool must_run_again(const dt_model *m, const dt_state *s, int64_t n_tokens)
{
    const int64_t turn = turn_of(m);

    return turn > 0 && s->length > 0 && (longest_after(s, n_tokens) > turn) != s->turned;
}

/* All tokens of all sequences, and what the state was before. */
typedef struct again {
    int64_t n;        /* of the longest sequence */
    int64_t length;   /* before */
    int64_t *lengths; /* [n_kept] before */
    int64_t *pads;    /* [n_kept] before */
    int32_t *ids;     /* [batch, n], padded in front; NULL in a dry runtime */
    dt_carry *carry;  /* before; NULL: layers carry nothing */
} again;

static dt_status begin_again(dt_model *m, dt_state *s, const int32_t *ids, int64_t n_tokens,
                             again *a)
{
    const size_t kept = (size_t)s->n_kept;
    dt_carry *fresh = NULL;

    *a = (again){ .n = longest_after(s, n_tokens), .length = s->length };
    DT_TRY(check_ids(m, s, ids, n_tokens));
    DT_TRY(dti_alloc_array(kept, sizeof *a->lengths, (void **)&a->lengths));
    DT_TRY(dti_alloc_array(kept, sizeof *a->pads, (void **)&a->pads));
    if (s->ids != NULL)
        DT_TRY(dti_alloc_array(kept * (size_t)a->n, sizeof *a->ids, (void **)&a->ids));
    if (s->carry != NULL) DT_TRY(dt_carry_create(m->layers, &fresh));
    for (int64_t b = 0; b < s->n_kept; b++) {
        const int64_t old = s->lengths[b], more = n_tokens - s->pads[b];
        a->lengths[b] = old;
        a->pads[b] = s->pads[b];
        if (a->ids == NULL) continue;
        memcpy(a->ids + (b + 1) * a->n - more - old, s->ids + b * s->capacity,
               (size_t)old * sizeof *ids);
        memcpy(a->ids + (b + 1) * a->n - more, ids + b * n_tokens + s->pads[b],
               (size_t)more * sizeof *ids);
    }
    for (int64_t b = 0; b < s->n_kept; b++) {
        s->pads[b] = a->n - s->lengths[b] - (n_tokens - s->pads[b]);
        s->lengths[b] = 0;
    }
    s->length = 0;
    s->turned = -1;
    a->carry = s->carry;
    s->carry = fresh;
    return DT_OK;
}

static dt_tensor *run_again(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids,
                            int64_t n_tokens, dt_logits_rows rows)
{
    dt_tensor *logits = NULL;
    again a;
    const dt_status st = begin_again(m, s, ids, n_tokens, &a);

    if (st != DT_OK)
        (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    else
        logits = run(t, m, s, a.ids, a.n, rows);
    if (st == DT_OK && logits == NULL) {
        s->length = a.length;
        memcpy(s->lengths, a.lengths, (size_t)s->n_kept * sizeof *a.lengths);
        memcpy(s->pads, a.pads, (size_t)s->n_kept * sizeof *a.pads);
        dt_carry_release(&s->carry);
        s->carry = a.carry;
        a.carry = NULL;
    }
    dt_carry_release(&a.carry);
    dti_free(a.lengths);
    dti_free(a.pads);
    dti_free(a.ids);
    return logits == NULL || rows == DT_LOGITS_LAST
               ? logits
               : dt_slice(t, logits, 1, a.n - n_tokens, n_tokens);
}

/* One more token by what was recorded; false: not by this way. */
static bool step(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids, dt_tensor **logits)
{
    dt_status st = check_ids(m, s, ids, 1);

    if (st == DT_OK) st = agree_on_ids(m, s, ids, 1);
    if (st != DT_OK) {
        *logits = dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
        return true;
    }
    if (!dti_step_run(t, m, s, ids, logits)) return false;
    if (*logits != NULL) dti_state_advance(s, ids, 1);
    return true;
}

/* --- the call, and its halves ----------------------------------------------------------------- */

static dt_status check_call(const dt_model *m, dt_state *s, int64_t n_tokens, dt_logits_rows rows)
{
    DT_CHECK(m != NULL && s != NULL && s->model == m, DT_ERR_ARG,
             "the state does not belong to this model");
    DT_CHECK(rows == DT_LOGITS_LAST || rows == DT_LOGITS_ALL, DT_ERR_ARG,
             "rows is %d, must be DT_LOGITS_LAST or DT_LOGITS_ALL", (int)rows);
    DT_CHECK(s->entered.tape == NULL, DT_ERR_ARG,
             "a pass of this state is under way: dt_model_forward_end() comes first");
    DT_TRY(dti_state_make_room(s, n_tokens));
    return DT_OK;
}

void dt_model_forward_begin(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids,
                            int64_t n_tokens, dt_logits_rows rows)
{
    dti_result r = { 0 };
    dt_status st;

    if (dt_tape_status(t) != DT_OK) return;
    st = check_call(m, s, n_tokens, rows);
    if (st != DT_OK) {
        (void)dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
        return;
    }
    if (must_run_again(m, s, n_tokens))
        r.x = run_again(t, m, s, ids, n_tokens, rows);
    else if (n_tokens != 1 || !dti_step_fits(t, m, s) || !step(t, m, s, ids, &r.x))
        r = enter(t, m, s, ids, n_tokens, rows);
    if (dt_tape_status(t) == DT_OK) s->entered = (dti_entered){ t, r.x, r.parcel };
}

dt_tensor *dt_model_forward_end(dt_tape *t, dt_model *m, dt_state *s)
{
    dti_result r = { 0 };

    if (m == NULL || s == NULL || s->model != m)
        return dt_tape_status(t) != DT_OK
                   ? NULL
                   : dt_tape_fail(t, DT_ERR_ARG, "the state does not belong to this model");
    if (dt_tape_status(t) == DT_OK && s->entered.tape != t)
        return dt_tape_fail(t, DT_ERR_ARG,
                            s->entered.tape == NULL ? "no pass of this state is under way"
                                                    : "the pass was begun on another tape");
    r = (dti_result){ s->entered.logits, s->entered.parcel };
    s->entered = (dti_entered){ 0 };
    return dt_tape_status(t) == DT_OK ? leave(t, m, &r) : dti_leave_stages(t, &r);
}

dt_tensor *dt_model_forward(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids,
                            int64_t n_tokens, dt_logits_rows rows)
{
    dt_tensor *logits;
    dt_status st;

    dt_model_forward_begin(t, m, s, ids, n_tokens, rows);
    if (dt_tape_status(t) != DT_OK) return NULL;
    logits = dt_model_forward_end(t, m, s);
    if (dt_tape_status(t) != DT_OK) return NULL;
    st = dti_settle_stages(m);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    return logits;
}

int dt_model_groups(const dt_model *m, int64_t batch)
{
    int64_t ranks = 1;

    if (m == NULL || m->stages.n_meshes <= 1) return 1;
    for (int d = 0; d < dt_mesh_n_dims(m->mesh); d++)
        if (dti_has(m->batch_dims, d)) ranks *= dt_mesh_dim_size(m->mesh, d);
    return (int)dti_max(1, dti_min(m->stages.n_meshes, batch / ranks));
}

dt_tensor *dti_choose_greedy(dt_tape *t, dt_tensor *logits, dt_tensor **key)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };

    *key = dt_move(t, dt_argmax_key(t, logits), whole);
    return dt_argmax_id(t, *key);
}
