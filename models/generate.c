/* SPDX-License-Identifier: Apache-2.0
 *
 * Greedy generation. Logits stay cut over the vocabulary: every rank finds its own best, a maximum
 * of one key per sequence is the only message, and all ranks read the same decision out of it. */
#include "base/options.h"
#include "dtensor/argmax.h"
#include "dtensor/create.h"
#include "models/model.h"

dt_tensor *dti_choose_greedy(dt_tape *t, dt_tensor *logits, dt_tensor **key)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };

    *key = dt_move(t, dt_argmax_key(t, logits), whole);
    return dt_argmax_id(t, *key);
}

/* Runs ids through the model and picks the token after the last. */
static dt_status next_token(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids, int64_t n,
                            int32_t *out)
{
    dt_tensor *key, *id;

    dt_tape_reset(t);
    id = dti_choose_greedy(t, dt_model_forward(t, m, s, ids, n, DT_LOGITS_LAST), &key);
    DT_TRY(dt_tape_status(t));
    DT_CHECK(
        !dti_argmax_is_nan(*(const int64_t *)dt_tensor_local(key)->data), DT_ERR_FORMAT,
        "the logits after token %lld are not numbers: the weights hold NaN or overflow in %s%s",
        (long long)s->length, dt_dtype_name(m->info.dtype),
        m->info.dtype == DT_F16 ? "; f32 or bf16 have a wider range" : "");
    *out = *(const int32_t *)dt_tensor_local(id)->data;
    return DT_OK;
}

static bool is_eos(const dt_model_info *info, int32_t id)
{
    for (int i = 0; i < info->n_eos; i++)
        if (info->eos[i] == id) return true;
    return false;
}

static dt_status generate(dt_tape *t, dt_state *s, const int32_t *ids, int64_t n,
                          const dt_generate_options *o, int32_t *out, int64_t *n_out)
{
    dt_model *m = s->model;
    int32_t id;

    for (*n_out = 0; *n_out < o->max_new_tokens;) {
        DT_TRY(next_token(t, m, s, ids, n, &id));
        if (out != NULL) out[*n_out] = id;
        (*n_out)++;
        if (o->on_token != NULL && !o->on_token(o->arg, *n_out - 1, id)) break;
        if (!o->ignore_eos && is_eos(&m->info, id)) break;
        ids = &id;
        n = 1;
    }
    return DT_OK;
}

dt_status dt_generate(dt_model *model, dt_state *state, const int32_t *prompt, int64_t n_prompt,
                      const dt_generate_options *options, int32_t *out, int64_t *n_out)
{
    dt_generate_options own = DT_GENERATE_OPTIONS_INIT, *const o = &own;
    int64_t n = 0, room;
    dt_status st;
    dt_tape *t;

    if (n_out != NULL) *n_out = 0;
    DT_CHECK(model != NULL && state != NULL && state->model == model, DT_ERR_ARG,
             "the state does not belong to this model");
    DT_TRY(dti_options_read("dt_generate_options", "start from DT_GENERATE_OPTIONS_INIT", options,
                            o, sizeof *o));
    DT_CHECK(state->batch == 1, DT_ERR_ARG, "generation of %lld sequences at once: one is possible",
             (long long)state->batch);
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(model->mesh)), DT_ERR_ARG,
             "a model on a dry mesh has no logits to choose from; dt_model_forward() works");
    DT_CHECK(prompt != NULL && n_prompt >= 1, DT_ERR_ARG,
             "the prompt is empty: generation needs at least one token to start from");
    DT_CHECK(o->max_new_tokens >= 0, DT_ERR_ARG, "max_new_tokens is %lld",
             (long long)o->max_new_tokens);
    DT_CHECK(o->ignore_eos || model->info.n_eos >= 0, DT_ERR_FORMAT,
             "generation_config.json could not be read when the model was loaded, so it is unknown "
             "which tokens end a text; mend it, or set ignore_eos");
    room = state->capacity - state->length;
    DT_CHECK(n_prompt <= room && o->max_new_tokens - 1 <= room - n_prompt, DT_ERR_ARG,
             "a prompt of %lld tokens and %lld new ones exceed the context of %lld",
             (long long)n_prompt, (long long)o->max_new_tokens, (long long)room);
    if (!dt_mesh_is_member(model->mesh)) return DT_OK; /* outsiders have nothing to say */
    DT_TRY(dt_tape_create(dt_mesh_runtime(model->mesh), &t));
    st = generate(t, state, prompt, n_prompt, o, out, &n);
    dt_tape_release(&t);
    if (n_out != NULL) *n_out = n;
    return st;
}
