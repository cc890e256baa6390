/* SPDX-License-Identifier: Apache-2.0
 *
 * Judging a plan before weights are read. A trial makes the model on a dry mesh and runs it; a
 * trial that fails is explained by more trials: with another style for one of the rules involved,
 * and with other sizes of the mesh dim. So the remedies in a message are not guessed, they were
 * run. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "dtensor/create.h"
#include "mesh/runtime.h"
#include "models/judge/judge.h"
#include "models/load/load.h"
#include "models/run/forward.h"
#include "parallel_styles/layer_rules.h"

enum { MAX_SUSPECTS = 12, MAX_TRIALS = 64, MAX_TOKENS = 8, NAME_BYTES = 96, LIST_BYTES = 160 };

/* A rule that laid out a layer where the failure happened, and that layer. */
typedef struct suspect {
    int rule;
    int dim;
    const dt_layer_kind *kind;
    char layer[NAME_BYTES];
    char param[DTI_PARAM_TEXT_BYTES];
} suspect;

typedef struct judge {
    dt_mesh *mesh; /* of the run, or dry */
    const char *dir;
    const dti_described *known;
    const dt_load_options *options;
    bool laid_out; /* the layers could be made, and a pass failed */
    int n_trials;
    int n_suspects;
    suspect suspects[MAX_SUSPECTS];
} judge;

/* --- one trial -------------------------------------------------------------------------------- */

/* Prompt, then one more token, as generation and the command `logits` do it. */
static dt_status run_passes(dt_model *m, dt_state *s, dt_tape *t, int64_t n)
{
    static const int32_t ids[MAX_TOKENS] = { 0 };
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    dt_tensor *key;

    (void)dt_move(t, dt_model_forward(t, m, s, ids, n, DT_LOGITS_ALL), whole);
    DT_TRY(dt_tape_status(t));
    dt_state_rewind(s, 0);
    for (int64_t i = 0; i < 2 && dt_state_length(s) < m->info.max_positions; i++) {
        dt_tape_reset(t);
        (void)dti_choose_greedy(t, dt_model_forward(t, m, s, ids, i == 0 ? n : 1, DT_LOGITS_LAST),
                                &key);
        DT_TRY(dt_tape_status(t));
    }
    return DT_OK;
}

static bool lies_in(const char *layer, const char *scope)
{
    const size_t n = strlen(scope);

    return strncmp(layer, scope, n) == 0 && (layer[n] == '\0' || layer[n] == '.');
}

/* Rules of the layers in `scope`, the first layer of each rule; scope NULL: of all layers. */
static void find_suspects(judge *j, dt_model *m, const char *scope)
{
    for (int i = 0; i < dt_layers_count(m->layers); i++) {
        const dt_layer *layer = dt_layers_at(m->layers, i);
        if (scope != NULL && !lies_in(dt_layer_name(layer), scope)) continue;
        for (int d = 0; d < dt_mesh_n_dims(m->mesh); d++) {
            const int rule = dt_layer_rule_on(layer, d);
            const dt_param_info info = dt_layer_param_info(layer, DT_PARAM_WEIGHT);
            suspect *s = &j->suspects[j->n_suspects];
            bool known = rule < 0 || j->n_suspects == MAX_SUSPECTS;
            for (int k = 0; k < j->n_suspects; k++) known = known || j->suspects[k].rule == rule;
            if (known) continue;
            *s = (suspect){ .rule = rule, .dim = d, .kind = dt_layer_kind_of(layer) };
            (void)dti_printable(dt_layer_name(layer), s->layer, sizeof s->layer);
            if (dt_layer_n_params(layer) > 0) (void)dti_param_text(&info, s->param);
            j->n_suspects++;
        }
    }
}

static dt_status run_model(judge *j, dt_model *m, bool blame)
{
    const int64_t max = m->info.max_positions, n = max < MAX_TOKENS ? max : MAX_TOKENS;
    dt_status st = DT_OK;
    dt_state *s = NULL;
    dt_tape *t = NULL;

    DT_TRY_TO(done, st, dt_state_create(m, 1, n < max ? n + 1 : n, &s));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(m->mesh), &t));
    st = run_passes(m, s, t, n);
    if (st != DT_OK && blame) {
        find_suspects(j, m, dti_tape_scope(t));
        if (j->n_suspects == 0) find_suspects(j, m, NULL);
    }
done:
    dt_tape_release(&t);
    dt_state_release(&s);
    return st;
}

static dt_status make_model(const judge *j, dt_mesh *mesh, const dt_plan *plan, dt_model **out)
{
    dt_load_options o = *j->options;
    dti_described d = { 0 };
    dt_status st;

    if (j->known->own != NULL)
        DT_TRY(dti_describe_own(dt_mesh_runtime(mesh), j->known->arch, j->known->own,
                                &j->known->info, &d));
    else
        DT_TRY(dti_describe_for(j->dir, mesh, &o, &d));
    o.plan = plan; /* the judged one has the rules of policies */
    o.n_stages = 0;
    o.stages = NULL;
    if (j->known->dtype_known) {
        d.info.dtype = j->known->info.dtype;
        d.dtype_known = true;
    }
    for (int i = 0; i < d.builder.n && !j->known->info.tied; i++) d.builder.specs[i].tied_to = NULL;
    d.info.tied = j->known->info.tied;
    st = dti_model_make_whole(&d, mesh, &o, NULL, out);
    dti_described_free(&d);
    return st;
}

/* `spec` NULL: a dry copy of the judge's mesh; otherwise that mesh, seen from its first rank. */
static dt_status try_plan(judge *j, const char *spec, const dt_plan *plan, bool blame)
{
    dt_runtime *like = dt_mesh_runtime(j->mesh), *rt = NULL;
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims;
    dt_mesh *mesh = NULL;
    dt_model *m = NULL;
    dt_status st = DT_OK;

    int stages;

    j->n_trials++;
    options.n_ranks = dt_runtime_size(like);
    if (spec != NULL) DT_TRY(dt_mesh_parse(spec, &n_dims, names, sizes, &options.n_ranks));
    DT_TRY(dt_runtime_create_dry(&options, spec != NULL ? 0 : dt_runtime_rank(like), like, &rt));
    if (spec != NULL)
        DT_TRY_TO(done, st, dt_mesh_create(rt, spec, &mesh));
    else
        DT_TRY_TO(done, st, dti_mesh_copy(j->mesh, rt, &mesh));
    stages = dti_stages_dim(mesh, j->options);
    if (stages >= 0) { /* all alike: the whole model is run on the ranks of one */
        dt_mesh *one;
        DT_TRY_TO(done, st, dt_mesh_stage(mesh, dt_mesh_dim_name(mesh, stages), 0, &one));
        dt_mesh_release(&mesh);
        mesh = one;
    }
    DT_TRY_TO(done, st, make_model(j, mesh, plan, &m));
    if (blame) j->laid_out = true;
    DT_TRY_TO(done, st, run_model(j, m, blame));
done:
    dt_model_release(&m);
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
    return st;
}

/* --- other styles ----------------------------------------------------------------------------- */

/* The caller's plan and those chained to it, with rule `number` changed to `style`, or left out
 * where style is NULL. */
typedef struct edited {
    dt_plan plan[DTI_MOST_PLANS];
    dt_plan_rule *rules;
} edited;

static dt_status edit(const dt_plan *first, int number, const char *style, edited *out)
{
    int total = 0, at = 0, n = 0, plans = 0;

    *out = (edited){ 0 };
    for (const dt_plan *p = first; p != NULL; p = p->more) total += p->n_rules;
    DT_TRY(dti_alloc_array((size_t)total, sizeof *out->rules, (void **)&out->rules));
    for (const dt_plan *p = first; p != NULL; p = p->more, plans++) {
        dt_plan *to = &out->plan[plans];
        *to = *p;
        to->strict = false;
        to->rules = &out->rules[at];
        to->n_rules = 0;
        to->more = p->more != NULL ? to + 1 : NULL;
        for (int i = 0; i < p->n_rules; i++, n++) {
            if (n == number && style == NULL) continue;
            out->rules[at] = p->rules[i];
            if (n == number) out->rules[at].style = style;
            at++;
            to->n_rules++;
        }
    }
    return DT_OK;
}

static bool fits_with(judge *j, int rule, const char *style)
{
    bool fits = false;
    edited e;

    if (j->n_trials >= MAX_TRIALS || edit(j->options->plan, rule, style, &e) != DT_OK) return false;
    fits = try_plan(j, NULL, e.plan, false) == DT_OK;
    dti_free(e.rules);
    return fits;
}

static void append(char list[LIST_BYTES], const char *fmt, const char *text)
{
    const size_t used = strlen(list);

    if (used + strlen(text) + 8 > LIST_BYTES) return;
    if (used > 0) (void)snprintf(list + used, LIST_BYTES - used, ", ");
    (void)snprintf(list + strlen(list), LIST_BYTES - strlen(list), fmt, text);
}

/* Styles that would fit in the place of the suspect's rule. True if there are any. */
static bool styles_that_fit(judge *j, const suspect *s, char list[LIST_BYTES])
{
    dt_runtime *rt = dt_mesh_runtime(j->mesh);
    const dt_style *style;

    list[0] = '\0';
    for (int i = 0; (style = dt_style_at(rt, i)) != NULL; i++)
        if (dt_style_fits(style, s->kind) && fits_with(j, s->rule, style->name))
            append(list, "\"%s\"", style->name);
    return list[0] != '\0';
}

/* --- other sizes ------------------------------------------------------------------------------ */

static void spec_with(const dt_mesh *mesh, int dim, int size, char *text, size_t bytes)
{
    size_t used = 0;

    for (int d = 0; d < dt_mesh_n_dims(mesh) && used < bytes; d++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s=%d", d ? "," : "",
                                 dt_mesh_dim_name(mesh, d),
                                 d == dim ? size : dt_mesh_dim_size(mesh, d));
}

/* Sizes of mesh dim `dim` with which the plan fits: "1, 2, 4". */
static void sizes_that_fit(judge *j, int dim, char list[LIST_BYTES])
{
    static const int sizes[] = { 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 32, 64 };
    char spec[DT_MAX_DIMS * (DT_DIM_NAME_BYTES + 12)], number[16];

    list[0] = '\0';
    for (size_t i = 0; i < DT_COUNT(sizes); i++) {
        if (sizes[i] == dt_mesh_dim_size(j->mesh, dim)) continue;
        spec_with(j->mesh, dim, sizes[i], spec, sizeof spec);
        if (try_plan(j, spec, j->options->plan, false) != DT_OK) continue;
        (void)snprintf(number, sizeof number, "%d", sizes[i]);
        append(list, "%s", number);
    }
}

/* --- the verdict ------------------------------------------------------------------------------ */

/* The suspect whose rule is at fault, as far as one is: changing it alone helps. */
static const suspect *find_culprit(judge *j, char styles[LIST_BYTES])
{
    styles[0] = '\0';
    for (int i = 0; i < j->n_suspects; i++)
        if (fits_with(j, j->suspects[i].rule, NULL)) {
            (void)styles_that_fit(j, &j->suspects[i], styles);
            return &j->suspects[i];
        }
    for (int i = 0; i < j->n_suspects; i++)
        if (styles_that_fit(j, &j->suspects[i], styles)) return &j->suspects[i];
    return j->n_suspects > 0 ? &j->suspects[0] : NULL;
}

/* A pass failed: which rule, where, what would fit, and the words of the operator. */
static dt_status explain_pass(judge *j, const dt_error *why)
{
    char styles[LIST_BYTES] = "", sizes[LIST_BYTES] = "", rule[DTI_RULE_TEXT_BYTES];
    const suspect *s = find_culprit(j, styles);
    const int dim = s != NULL ? s->dim : dt_mesh_find_dim(j->mesh, j->options->dim);
    const dt_plan *plan = NULL;
    const dt_plan_rule *r;
    const char *name;
    int n;

    if (dim < 0) return why->code;
    sizes_that_fit(j, dim, sizes);
    dti_error_restore(why);
    if (s == NULL && sizes[0] == '\0') return why->code; /* fails on one rank too: not the plan */
    name = dt_mesh_dim_name(j->mesh, dim);
    n = dt_mesh_dim_size(j->mesh, dim);
    if (s == NULL)
        DT_FAIL(why->code,
                "the built-in plan of %s does not fit mesh dim \"%s\" of %d; sizes of the dim that "
                "fit: %s: %s",
                j->known->arch->model_type, name, n, sizes, why->message);
    r = dti_plan_rule(j->options->plan, s->rule, &plan);
    DT_FAIL(why->code, "%s does not fit %s%s%s on mesh dim \"%s\" of %d%s%s%s%s%s: %s",
            dti_rule_text(plan, r, rule), s->layer, s->param[0] ? "." : "", s->param, name, n,
            styles[0] ? "; styles that fit: " : "", styles,
            sizes[0] ? "; sizes of the dim that fit: " : "", sizes,
            styles[0] || sizes[0] ? "" : "; other rules of the plan contradict it", why->message);
}

/* A style refused its layer, in words that name both; other sizes of a dim may suit it. First of
 * the dim that styles speak of, then of those that only rules speak of. */
static dt_status explain_refusal(judge *j, const dt_error *why)
{
    const int own = dt_mesh_find_dim(j->mesh, j->options->dim);
    char sizes[LIST_BYTES] = "";
    int dim = own;

    if (why->code != DT_ERR_LAYOUT) return why->code;
    if (own >= 0) sizes_that_fit(j, own, sizes);
    for (const dt_plan *p = j->options->plan; sizes[0] == '\0' && p != NULL; p = p->more) {
        dim = p->dim != NULL ? dt_mesh_find_dim(j->mesh, p->dim) : -1;
        if (dim >= 0 && dim != own) sizes_that_fit(j, dim, sizes);
    }
    dti_error_restore(why);
    if (sizes[0] == '\0') return why->code;
    DT_FAIL(why->code, "%s; sizes of mesh dim \"%s\" that fit: %s", why->message,
            dt_mesh_dim_name(j->mesh, dim), sizes);
}

static bool is_of_plan(dt_status st)
{
    return st == DT_ERR_LAYOUT || st == DT_ERR_SHAPE || st == DT_ERR_ARG ||
           st == DT_ERR_UNSUPPORTED;
}

dt_status dti_judge(dt_mesh *mesh, const char *dir, const dti_described *known,
                    const dt_load_options *o)
{
    judge j = { .mesh = mesh, .dir = dir, .known = known, .options = o };
    dt_status st;
    dt_error why;

    DT_TRY(dti_stages_check(known, mesh, o));
    st = try_plan(&j, NULL, o->plan, true);
    if (st == DT_OK) return DT_OK;
    why = *dt_last_error();
    if (is_of_plan(st) && why.code == st)
        st = j.laid_out ? explain_pass(&j, &why) : explain_refusal(&j, &why);
    if (o->plan == &known->plan)
        dti_error_prefix("the checkpoint's own plan (one without rules in its place leaves the "
                         "built-in plan)");
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

dt_status dti_judge_together(dt_mesh *mesh, const char *dir, const dti_described *known,
                             const dt_load_options *o)
{
    dt_status st = DT_OK;

    if (dti_mesh_place(mesh) <= 0) st = dti_judge(mesh, dir, known, o);
    if (dt_mesh_is_member(mesh)) st = dti_first_says(mesh, st);
    DT_TRY(st);
    return DT_OK;
}

dt_status dt_model_check(dt_mesh *mesh, const char *dir, const dt_load_options *options)
{
    dt_load_options own;
    dti_described d = { 0 };
    dt_status st;

    DT_CHECK(mesh != NULL && dir != NULL, DT_ERR_ARG, "mesh or dir is NULL");
    DT_TRY(dti_describe_load(mesh, dir, options, &own, &d));
    st = dti_judge(mesh, dir, &d, &own);
    dti_described_free(&d);
    return st;
}
