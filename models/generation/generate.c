/* SPDX-License-Identifier: Apache-2.0
 *
 * Token by token. Where nothing but the best token is wanted, a maximum of one key per sequence is
 * the only message; where a draw needs only the best, these; otherwise scores are processed and
 * chosen from where the logits lie. */
#include "models/generation/generate.h"

#include <math.h>

#include "base/options.h"
#include "dtensor/argmax.h"
#include "dtensor/create.h"
#include "models/run/forward.h"

/* Logits divided by less may overflow. */
static const double LEAST_SCALE = 1e-30;

/* --- one step ----------------------------------------------------------------------------------
 */

dt_status dti_step_begin(dti_step *step, dt_state *state, dti_text_rules *rules)
{
    *step = (dti_step){ .state = state, .rules = rules };
    step->scores.batch_dims = state->model->batch_dims;
    DT_TRY(dt_tape_create(dt_mesh_runtime(state->model->mesh), &step->tape));
    return DT_OK;
}

void dti_step_end(dti_step *step)
{
    dt_tape_release(&step->tape);
    dti_scores_free(&step->scores);
    dti_free(step->keys);
    dti_free(step->whole);
    dti_logprobs_free(step);
    *step = (dti_step){ 0 };
}

dt_status dti_not_numbers(const dt_model_info *info, const dti_text_rules *rules, int64_t length)
{
    const dt_generate_options *o = &rules->o;

    /* either of them alone is harmless */
    DT_CHECK(!o->do_sample || fmin(o->repetition_penalty, 1) * o->temperature >= LEAST_SCALE,
             DT_ERR_ARG,
             "the scores after token %lld are not numbers: logits divided by a temperature of %g "
             "and a repetition_penalty of %g overflow",
             (long long)length, o->temperature, o->repetition_penalty);
    DT_FAIL(DT_ERR_FORMAT,
            "the logits after token %lld are not numbers: the weights hold NaN or overflow in %s%s "
            "(\"dtensor verify --values\" looks at every weight)",
            (long long)length, dt_dtype_name(info->dtype),
            info->dtype == DT_F16 ? "; f32 or bf16 have a wider range" : "");
}

dt_status dti_step_not_numbers(const dti_step *step)
{
    return dti_not_numbers(&step->state->model->info, step->rules, step->state->length);
}

dt_status dti_choice_of(const dt_model_info *info, const dti_text_rules *rules, int64_t key,
                        int64_t length, int64_t text, int32_t *out)
{
    if (key != INT64_MIN && dti_argmax_overflows(key)) return dti_not_numbers(info, rules, length);
    DT_CHECK(key != INT64_MIN && dti_argmax_value(key) > -INFINITY, DT_ERR_ARG,
             "after %lld tokens no token is left to sequence %lld: bad_words, suppress_tokens, "
             "no_repeat_ngram_size and their like ban all %lld",
             (long long)length, (long long)text, (long long)rules->vocab);
    *out = (int32_t)dti_argmax_index(key);
    return DT_OK;
}

/* The best of the model's own logits, as they lie: keys of all sequences. False in *numbers: one
 * has none. */
static dt_status best_of(dt_tape *tape, dt_tensor *logits, int64_t **keys, size_t *room,
                         int32_t *out, bool *numbers)
{
    dt_tensor *key;
    int64_t n;

    (void)dti_choose_greedy(tape, logits, &key);
    DT_TRY(dt_tape_status(tape));
    n = dt_tensor_extent(key, 0);
    DT_TRY(dti_grow((void **)keys, room, (size_t)n, sizeof **keys));
    DT_TRY(dt_tensor_read(key, *keys, (size_t)n * sizeof **keys));
    *numbers = true;
    for (int64_t r = 0; r < n; r++) {
        if (dti_argmax_overflows((*keys)[r])) *numbers = false;
        out[r] = (int32_t)dti_argmax_index((*keys)[r]);
    }
    return DT_OK;
}

static dt_status take_best(dti_step *step, dt_tensor *logits, int32_t *out)
{
    bool numbers;

    DT_TRY(best_of(step->tape, logits, &step->keys, &step->keys_room, out, &numbers));
    return numbers ? DT_OK : dti_step_not_numbers(step);
}

dt_status dt_choose_best(dt_tape *tape, dt_tensor *logits, int32_t *out)
{
    int64_t *keys = NULL;
    size_t room = 0;
    bool numbers;
    dt_status st;

    DT_CHECK(tape != NULL && out != NULL, DT_ERR_ARG, "tape or out is NULL");
    st = best_of(tape, logits, &keys, &room, out, &numbers);
    dti_free(keys);
    DT_TRY(st);
    DT_CHECK(numbers, DT_ERR_FORMAT, "the logits are infinite or no numbers");
    return DT_OK;
}

dt_status dti_step_show(dti_step *step)
{
    const dt_generate_options *o = &step->rules->o;
    const dti_scores *s = &step->scores;

    if (o->on_scores == NULL) return DT_OK;
    DT_TRY(dti_grow((void **)&step->whole, &step->whole_room, (size_t)(s->all_rows * s->vocab),
                    sizeof *step->whole));
    DT_TRY(dti_scores_whole(s, step->whole));
    o->on_scores(o->scores_arg, step->rules->n_new, step->whole, s->all_rows, s->vocab);
    return DT_OK;
}

dti_history dti_history_of(const dt_state *s)
{
    return (dti_history){ .ids = s->ids, .room = s->capacity, .length = s->lengths };
}

/* From processed scores. */
static dt_status choose(dti_step *step, int32_t *out)
{
    const dt_generate_options *o = &step->rules->o;
    const dti_history h = dti_history_of(step->state);
    dti_scores *s = &step->scores;

    DT_TRY(dti_logprobs_take(step));
    DT_TRY(dti_process(step->rules, &h, s));
    DT_TRY(dti_step_show(step));
    DT_TRY(dti_grow((void **)&step->keys, &step->keys_room, (size_t)s->all_rows, sizeof(int64_t)));
    if (o->do_sample)
        DT_TRY(dti_scores_draw(s, o->seed, step->rules->n_new, step->keys));
    else
        DT_TRY(dti_scores_best(s, step->keys));
    for (int64_t r = 0; r < s->all_rows; r++) {
        out[r] = 0;
        if (step->done != NULL && step->done[r]) continue;
        DT_TRY(dti_choice_of(&step->state->model->info, step->rules, step->keys[r], h.length[r],
                             s->above + r, &out[r]));
    }
    return dti_logprobs_choose(step, out);
}

/* As few of them as the rules need. */
static dt_status take_scores(dti_step *step, dt_tensor *logits)
{
    const dti_top *top = &step->rules->top;
    bool enough = false;

    if (top->n > 0)
        DT_TRY(dti_scores_take_best(&step->scores, step->tape, logits, top, 1, &enough));
    if (!enough) DT_TRY(dti_scores_take(&step->scores, step->tape, logits));
    return DT_OK;
}

dt_status dti_step_enter(dti_step *step, const int32_t *ids, int64_t n)
{
    dt_state *s = step->state;

    dt_tape_reset(step->tape);
    dt_model_forward_begin(step->tape, s->model, s, ids, n, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(step->tape));
    return DT_OK;
}

static dt_tensor *logits_of(dti_step *step)
{
    return dt_model_forward_end(step->tape, step->state->model, step->state);
}

dt_status dti_step_scores(dti_step *step)
{
    DT_TRY(take_scores(step, logits_of(step)));
    if (step->times <= 1) return DT_OK;
    DT_TRY(dti_scores_expand(&step->scores, step->times));
    DT_TRY(dti_state_expand(step->state, step->times));
    step->times = 1;
    return DT_OK;
}

dt_status dti_step_next(dti_step *step, int32_t *out)
{
    if (step->rules->processes) {
        DT_TRY(dti_step_scores(step));
        DT_TRY(choose(step, out));
    } else {
        DT_TRY(take_best(step, logits_of(step), out));
    }
    return DT_OK;
}

/* --- one sequence ------------------------------------------------------------------------------
 */

static dt_status generate(dti_step *step, const int32_t *ids, int64_t n, int32_t *out,
                          int64_t *n_out)
{
    dti_text_rules *u = step->rules;
    dt_end end;
    int32_t id;

    while (u->n_prompt + u->n_new < u->max_length) {
        DT_TRY(dti_step_enter(step, ids, n));
        DT_TRY(dti_step_next(step, &id));
        DT_TRY(dti_ends(u, step->state->ids, step->state->length, id, &end));
        if (out != NULL) out[u->n_new] = id;
        *n_out = ++u->n_new;
        if (u->o.on_token != NULL && !u->o.on_token(u->o.arg, u->n_new - 1, id)) break;
        if (end != DT_END_NONE) break;
        ids = &id;
        n = 1;
    }
    return DT_OK;
}

static dt_status check_call(const dt_model *m, const dt_state *s, const int32_t *prompt,
                            int64_t n_prompt)
{
    DT_CHECK(m != NULL && s != NULL && s->model == m, DT_ERR_ARG,
             "the state does not belong to this model");
    DT_CHECK(s->batch == 1, DT_ERR_ARG, "generation of %lld sequences at once: one is possible",
             (long long)s->batch);
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(m->mesh)), DT_ERR_ARG,
             "a model on a dry mesh has no logits to choose from; dt_model_forward() works");
    DT_CHECK(prompt != NULL && n_prompt >= 1, DT_ERR_ARG,
             "the prompt is empty: generation needs at least one token to start from");
    return DT_OK;
}

dt_status dt_generate(dt_model *model, dt_state *state, const int32_t *prompt, int64_t n_prompt,
                      const dt_generate_options *options, int32_t *out, int64_t *n_out)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dti_step step = { 0 };
    dti_text_rules u = { 0 };
    int64_t n = 0;
    dt_status st = DT_OK;

    if (n_out != NULL) *n_out = 0;
    DT_TRY(dti_options_read("dt_generate_options", "start from DT_GENERATE_OPTIONS_INIT", options,
                            &o, sizeof o));
    DT_TRY(check_call(model, state, prompt, n_prompt));
    DT_TRY(dti_rules_make(&u, &model->info, &o, state->length + n_prompt));
    DT_CHECK(o.num_beams == 1 && o.num_return_sequences == 1, DT_ERR_ARG,
             "num_beams is %lld and num_return_sequences %lld: dt_generate() makes one text, "
             "dt_generate_batch() several",
             (long long)o.num_beams, (long long)o.num_return_sequences);
    DT_CHECK(o.n_logprobs < 0, DT_ERR_ARG,
             "n_logprobs is %lld: dt_generate_batch() keeps them, dt_generate() has nowhere to",
             (long long)o.n_logprobs);
    DT_CHECK(n_prompt <= state->capacity - state->length && u.max_length - 1 <= state->capacity,
             DT_ERR_ARG, "a prompt of %lld tokens and %lld new ones exceed the context of %lld",
             (long long)n_prompt, (long long)(u.max_length - u.n_prompt),
             (long long)(state->capacity - state->length));
    if (!dt_mesh_is_member(model->mesh)) return DT_OK; /* outsiders have nothing to say */
    DT_TRY_TO(done, st, dti_step_begin(&step, state, &u));
    DT_TRY_TO(done, st, generate(&step, prompt, n_prompt, out, &n));
    DT_TRY_TO(done, st, dti_settle_stages(model));
done:
    dti_step_end(&step);
    dti_rules_free(&u);
    if (n_out != NULL) *n_out = n;
    return st;
}
