/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a batch of sequences, and one pass of new tokens through the model. */
#include <stdio.h>

#include "dtensor/create.h"
#include "mesh/runtime.h"
#include "models/model.h"

enum { SHOWN_IDS = 12 };

dt_status dt_state_create(dt_model *model, int64_t batch, int64_t capacity, dt_state **out)
{
    dt_status st = DT_OK;
    dt_state *s;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(model != NULL, DT_ERR_ARG, "model is NULL");
    DT_CHECK(batch >= 1, DT_ERR_ARG, "a batch of %lld sequences", (long long)batch);
    DT_CHECK(capacity >= 1 && capacity <= model->info.max_positions, DT_ERR_ARG,
             "a context of %lld tokens: the model has positions for 1 to %lld", (long long)capacity,
             (long long)model->info.max_positions);
    DT_TRY(dti_new(sizeof *s, &s));
    DT_TRY_TO(fail, st,
              dti_alloc_array((size_t)model->info.n_layers, sizeof *s->kv, (void **)&s->kv));
    for (int64_t i = 0; i < model->info.n_layers; i++) s->kv[i].capacity = capacity;
    s->model = model;
    model->refs++;
    s->batch = batch;
    s->capacity = capacity;
    dti_runtime_count(dt_mesh_runtime(model->mesh), 1);
    *out = s;
    return DT_OK;

fail:
    dti_free(s);
    return st;
}

void dt_state_release(dt_state **state)
{
    dt_state *s = state ? *state : NULL;

    if (s == NULL) return;
    *state = NULL;
    for (int64_t i = 0; i < s->model->info.n_layers; i++) {
        dt_tensor_release(&s->kv[i].k);
        dt_tensor_release(&s->kv[i].v);
    }
    dti_runtime_count(dt_mesh_runtime(s->model->mesh), -1);
    dti_free(s->kv);
    dt_model_release(&s->model);
    dti_free(s);
}

int64_t dt_state_length(const dt_state *s)
{
    return s->length;
}

void dt_state_rewind(dt_state *s, int64_t length)
{
    if (length >= 0 && length < s->length) s->length = length;
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
    for (int64_t i = 0; !dry && i < s->batch * n_tokens; i++)
        DT_CHECK(ids[i] >= 0 && ids[i] < m->info.vocab_size, DT_ERR_ARG,
                 "token id %d at place %lld is outside the vocabulary: ids are 0 to %lld", ids[i],
                 (long long)i, (long long)m->info.vocab_size - 1);
    return DT_OK;
}

/* A whole [batch, tokens] tensor of i32 that belongs to the tape. */
static dt_status make_ints(dt_tape *t, dt_model *m, int64_t batch, int64_t n_tokens,
                           dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t shape[] = { batch, n_tokens };
    const dt_layout *layout;
    dt_tensor *x;

    DT_TRY(dt_layout_get(m->mesh, 2, whole, NULL, &layout));
    DT_TRY(dti_tensor_create(m->mesh, layout, DT_I32, shape, &x));
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
    note->hash = dti_note_hash(3, facts, sizeof facts);
    note->hash = dti_note_hash(note->hash, ids, (size_t)n * sizeof *ids);
}

/* Every rank is handed the ids, and no message says them: ranks that were handed different ones
 * would compute a mixture. With checks of agreement they meet first and compare. */
static dt_status agree_on_ids(dt_model *m, const dt_state *s, const int32_t *ids, int64_t n_tokens)
{
    const uint32_t all_dims = (1u << dt_mesh_n_dims(m->mesh)) - 1;
    dti_comm_note note;
    dti_comm *comm;

    if (!dti_runtime_world(dt_mesh_runtime(m->mesh))->agree) return DT_OK;
    describe_ids(s, ids, n_tokens, &note);
    DT_TRY(dti_mesh_comm(m->mesh, all_dims, &comm));
    DT_TRY(dti_comm_run(comm, &(dti_comm_call){ .op = DTI_COMM_BARRIER, .about = &note }));
    return DT_OK;
}

static dt_status make_pass(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids,
                           int64_t n_tokens, dt_model_pass *pass)
{
    int32_t *to;

    DT_TRY(check_ids(m, s, ids, n_tokens));
    DT_TRY(make_ints(t, m, s->batch, n_tokens, &pass->ids));
    DT_TRY(make_ints(t, m, s->batch, n_tokens, &pass->positions));
    if (!dt_mesh_is_member(m->mesh) || dt_runtime_is_dry(dt_mesh_runtime(m->mesh))) return DT_OK;
    DT_TRY(agree_on_ids(m, s, ids, n_tokens));
    to = dt_tensor_local(pass->ids)->data;
    for (int64_t i = 0; i < s->batch * n_tokens; i++) to[i] = ids[i];
    to = dt_tensor_local(pass->positions)->data;
    for (int64_t i = 0; i < s->batch * n_tokens; i++) to[i] = (int32_t)(s->length + i % n_tokens);
    return DT_OK;
}

dt_tensor *dt_model_forward(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids,
                            int64_t n_tokens, dt_logits_rows rows)
{
    dt_model_pass pass = { .rows = rows };
    dt_tensor *logits;
    dt_status st;

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (m == NULL || s == NULL || s->model != m)
        return dt_tape_fail(t, DT_ERR_ARG, "the state does not belong to this model");
    dt_scope_begin(t, m->arch->model_type);
    pass.kv = s->kv;
    pass.n_layers = m->info.n_layers;
    pass.length = s->length + n_tokens;
    st = make_pass(t, m, s, ids, n_tokens, &pass);
    if (st != DT_OK) return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    logits = dt_scope_end(t, m->arch->forward(m->self, t, &pass));
    if (logits != NULL) s->length += n_tokens;
    return logits;
}
