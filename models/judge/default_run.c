/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run that asks for nothing special would refuse of a folder, beside its weights: values of
 * generation_config.json, and the plan that config.json may hold. */
#include "base/options.h"
#include "files/folder.h"
#include "mesh/runtime.h"
#include "models/generation/generation_config.h"
#include "models/generation/text_rules.h"
#include "models/judge/judge.h"

/* The shortest prompt; a longer one leaves less of max_length. */
enum { PROMPT = 1 };

static dt_status judge_strings(const dti_described *d, const dt_option_names *names)
{
    char name[DT_OPTION_NAME_BYTES];

    if (d->generation->options.n_stop_strings == 0 || dti_folder_tokenizer(d->folder) != NULL)
        return DT_OK;
    names->name(names->arg, "stop_strings", name);
    DT_FAIL(DT_ERR_ARG, "%s: the folder has no tokenizer, so there is no text to find strings in",
            name);
}

static dt_status judge_width(const dti_described *d, const dt_option_names *names)
{
    const dt_generate_options *o = &d->generation->options;
    const bool beams = o->num_beams > 1;
    const int64_t width = beams ? o->num_beams : o->num_return_sequences;
    char name[DT_OPTION_NAME_BYTES];

    names->name(names->arg, beams ? "num_beams" : "num_return_sequences", name);
    DT_CHECK(width <= DT_MAX_SEQUENCES, DT_ERR_ARG,
             "%s %lld of 1 prompt: %lld sequences at once, at most %d are possible", name,
             (long long)width, (long long)width, DT_MAX_SEQUENCES);
    return DT_OK;
}

dt_status dti_judge_generation(const dti_described *d)
{
    const dt_option_names names = { dt_generation_key, d->folder };
    const dt_generate_options *o;

    if (d->generation == NULL) DT_FAIL(DT_ERR_FORMAT, "%s", d->generation_error);
    o = &d->generation->options;
    DT_TRY(dti_options_check(o, &d->info, &names));
    DT_TRY(judge_strings(d, &names));
    if (o->num_beams > 1 || o->num_return_sequences > 1)
        DT_TRY(dti_texts_check(o, &d->info, &names));
    DT_TRY(judge_width(d, &names));
    DT_CHECK(o->max_new_tokens >= 0 || o->max_length == 0 || o->max_length > PROMPT, DT_ERR_ARG,
             "%s/generation_config.json: max_length %lld counts the prompt, so nothing is left for "
             "new tokens",
             d->folder, (long long)o->max_length);
    return DT_OK;
}

dt_status dt_model_check_dry(dt_runtime *like, const char *dir, const char *mesh_spec,
                             const dt_load_options *o)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims;
    dt_runtime *rt = NULL;
    dt_mesh *mesh = NULL;
    dt_status st = DT_OK;

    DT_CHECK(dir != NULL && mesh_spec != NULL, DT_ERR_ARG, "dir or mesh is NULL");
    DT_TRY(dt_mesh_parse(mesh_spec, &n_dims, names, sizes, &run.n_ranks));
    DT_TRY(dt_runtime_create_dry(&run, 0, like, &rt));
    DT_TRY_TO(done, st, dt_mesh_create(rt, mesh_spec, &mesh));
    DT_TRY_TO(done, st, dt_model_check(mesh, dir, o));
done:
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
    return st;
}

dt_status dti_judge_own_plan(const dti_described *d)
{
    const dt_load_options o = DT_LOAD_OPTIONS_INIT;

    if (d->plan.n_rules > 0) DT_TRY(dt_model_check_dry(d->rt, d->folder, "tp=1", &o));
    return DT_OK;
}
