/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that is wrong with a checkpoint, or only odd: loading stops at the first fault, this
 * goes on. */
#include <dirent.h>
#include <dtensor/checkpoints.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "base/text.h"
#include "files/checkpoint.h"
#include "files/folder.h"
#include "models/describe/describe.h"
#include "models/judge/judge.h"
#include "weights/saving/save.h"

typedef struct verifying {
    dt_runtime *rt;
    const char *folder;
    dt_verify_options o;
    dt_finding_fn say;
    void *arg;
    dt_verified *found;
} verifying;

/* --- saying --------------------------------------------------------------------------------- */

DT_PRINTF(4, 5)
static void say(const verifying *v, bool error, const char *tensor, const char *fmt, ...)
{
    char text[DT_ERROR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    v->say(v->arg, error, tensor, text);
}

/* The error record becomes a finding; only what is no fault of the folder stays an error. */
static dt_status find(const verifying *v, dt_status st)
{
    if (st == DT_OK || st == DT_ERR_MEMORY) return st;
    say(v, true, NULL, "%s", dt_last_error()->message);
    return DT_OK;
}

static void complain(void *arg, const char *tensor, const char *text)
{
    say(arg, true, tensor, "%s", text);
}

/* --- files ---------------------------------------------------------------------------------- */

/* A folder that does not open as a checkpoint may have more than one bad file. */
static dt_status look_at_each_file(const verifying *v, const char *known)
{
    static const char ending[] = ".safetensors";
    const dti_faults faults = { complain, (void *)(uintptr_t)v };
    const struct dirent *item;
    dt_status st = DT_OK;
    DIR *dir = opendir(v->folder);

    while (dir != NULL && st == DT_OK && (item = readdir(dir)) != NULL) {
        const size_t n = strlen(item->d_name), k = sizeof ending - 1;
        dti_st_file *file = NULL;
        char *path = NULL;
        if (n < k || strcmp(item->d_name + n - k, ending) != 0) continue;
        st = dti_ckpt_path(v->folder, item->d_name, &path);
        if (st == DT_OK) st = dti_st_open_faulty(path, &faults, &file);
        if (st != DT_OK && st != DT_ERR_MEMORY && strcmp(dt_last_error()->message, known) != 0)
            say(v, true, NULL, "%s", dt_last_error()->message);
        if (st != DT_ERR_MEMORY) st = DT_OK;
        dti_st_close(&file);
        dti_free(path);
    }
    if (dir != NULL) (void)closedir(dir);
    return st;
}

static dt_status open_files(verifying *v, dti_ckpt **out)
{
    const dti_faults faults = { complain, v };
    const dt_status st = dti_ckpt_open_faulty(v->folder, &faults, out);
    dt_error why;

    if (st == DT_OK) {
        v->found->n_files = dti_ckpt_n_files(*out);
        v->found->n_tensors = dti_ckpt_count(*out);
        v->found->bytes = dti_ckpt_bytes(*out);
        return DT_OK;
    }
    why = *dt_last_error();
    DT_TRY(find(v, st));
    DT_TRY(look_at_each_file(v, why.message));
    return DT_OK;
}

static void say_unnamed(void *arg, const char *file, const dti_st_entry *e)
{
    say(arg, false, e->name, "%s: tensor %s is not in the index: it is not used", file, e->name);
}

/* What the index says beside the files of tensors, which were checked when it was read. */
static void look_at_index(verifying *v, const dti_ckpt *ckpt, const dti_json *root)
{
    const dti_json metadata = dti_json_get(root, "metadata");
    int64_t total = 0;

    dti_ckpt_each_unnamed(ckpt, say_unnamed, v);
    if (dti_json_kind_of(&metadata) != DT_CONFIG_OBJECT || dti_ckpt_has_faults(ckpt)) return;
    if (dti_json_int(&metadata, "total_size", 0, INT64_MAX, &total) == DT_OK &&
        total != v->found->bytes)
        say(v, false, NULL,
            "%s/model.safetensors.index.json: total_size is %" PRId64 ", but the tensors that it "
            "names have %" PRId64 " bytes",
            v->folder, total, v->found->bytes);
}

static dt_status read_index(verifying *v, const dti_ckpt *ckpt)
{
    static const char name[] = "model.safetensors.index.json";
    dti_json_doc doc = { 0 };

    if (!dti_folder_has(v->folder, name)) return DT_OK;
    if (dti_folder_has(v->folder, "model.safetensors")) {
        say(v, false, NULL,
            "%s: has model.safetensors and model.safetensors.index.json; the single file counts",
            v->folder);
        return DT_OK;
    }
    DT_TRY(dti_folder_json(v->folder, name, &doc));
    look_at_index(v, ckpt, &doc.root);
    dti_json_free(&doc);
    return DT_OK;
}

/* --- tensors -------------------------------------------------------------------------------- */

/* A tensor whose file or place is at fault is neither missing nor of another shape. */
typedef struct wanted {
    verifying *v;
    const dti_ckpt *ckpt;
} wanted;

static void complain_of_sound(void *arg, const char *tensor, const char *text)
{
    const wanted *w = arg;

    if (!dti_ckpt_is_faulty(w->ckpt, tensor)) complain(w->v, tensor, text);
}

static void warn(void *arg, const char *text)
{
    say(arg, false, NULL, "%s", text);
}

typedef struct unused {
    verifying *v;
    const dti_ckpt *ckpt;
    const dti_described *d;
} unused;

static void say_unused(void *arg, const dti_st_entry *e)
{
    const unused *u = arg;

    say(u->v, false, e->name,
        "%s: tensor %s is not used by the %s model that config.json describes",
        dti_ckpt_label(u->ckpt, e->name), e->name, u->d->arch->model_type);
}

static void warn_of_tensor(void *arg, const char *tensor, const char *text)
{
    say(arg, false, tensor, "%s", text);
}

static dt_status look_at_tensors(verifying *v, dti_described *d, const dti_ckpt *ckpt)
{
    unused u = { v, ckpt, d };
    wanted w = { v, ckpt };
    const bool tied = d->info.tied;

    DT_TRY(dti_check_all(d, ckpt, complain_of_sound, &w));
    DT_TRY(dti_each_unused(d, ckpt, say_unused, &u));
    if (tied && !d->info.tied)
        say(v, false, NULL,
            "%s: holds a head beside its embedding, although config.json ties them: the stored one "
            "counts, as in Transformers",
            v->folder);
    if (d->dtype_known) dti_dtype_remarks(ckpt, v->folder, d->info.dtype, warn_of_tensor, v);
    return DT_OK;
}

static dt_status look_at_config(verifying *v, dti_described *d, bool *known)
{
    const dt_status st = dti_describe(v->rt, v->folder, d);

    *known = st == DT_OK;
    DT_TRY(find(v, st));
    if (!*known) return DT_OK;
    (void)snprintf(v->found->model_type, sizeof v->found->model_type, "%s", d->info.model_type);
    DT_TRY(find(v, dti_judge_generation(d)));
    DT_TRY(find(v, dti_judge_own_plan(d)));
    dti_describe_remarks(d, v->folder, warn, v);
    if (d->generation != NULL) dti_generation_remarks(d, v->folder, warn, v);
    return DT_OK;
}

static dt_status look_at_tokenizer(const verifying *v)
{
    dt_tokenizer *tokenizer = NULL;
    dt_status st = DT_OK;

    if (dti_folder_tokenizer(v->folder) != NULL) st = dt_tokenizer_open(v->folder, &tokenizer);
    if (st == DT_OK) st = dti_small_readable(v->folder); /* chat templates and their like */
    dt_tokenizer_release(&tokenizer);
    return find(v, st);
}

/* --- values --------------------------------------------------------------------------------- */

/* "[3, 17]" of the i-th number of a tensor. */
static const char *place_text(const dti_st_entry *e, int64_t i, char *text, size_t bytes)
{
    int64_t at[DT_MAX_AXES] = { 0 };

    for (int a = e->n_axes - 1; a >= 0; a--) {
        at[a] = i % e->shape[a];
        i /= e->shape[a];
    }
    return dti_shape_text(at, e->n_axes, text, bytes);
}

static void judge_values(const verifying *v, const dti_ckpt *ckpt, const dti_st_entry *e,
                         const dti_ckpt_scan *s)
{
    char place[DTI_SHOWN_BYTES];

    if (s->n_nan + s->n_infinite > 0)
        say(v, true, e->name,
            "%s: tensor %s: of %" PRId64 " values %" PRId64 " are NaN and %" PRId64
            " infinite; the first is at %s",
            dti_ckpt_label(ckpt, e->name), e->name, s->n, s->n_nan, s->n_infinite,
            place_text(e, s->first, place, sizeof place));
    /* A download that stopped may leave a file of the right size that holds nothing. */
    if (s->all_zero && s->n > 1 && e->n_axes > 1)
        say(v, false, e->name, "%s: tensor %s: all of its %" PRId64 " values are 0",
            dti_ckpt_label(ckpt, e->name), e->name, s->n);
}

static dt_status read_tensor(verifying *v, const dti_ckpt *ckpt, const dti_st_entry *e,
                             const dti_st_stage *stage)
{
    dti_ckpt_scan scan;
    const dt_status st = dti_ckpt_scan_values(ckpt, e, stage, &scan);

    if (st == DT_OK) judge_values(v, ckpt, e, &scan);
    if (st == DT_OK) v->found->n_values += scan.n;
    return find(v, st);
}

typedef struct group_check {
    verifying *v;
    const dti_ckpt *ckpt;
    const dti_st_stage *stage;
} group_check;

static dt_status check_groups(void *arg, const dti_param_tensor *t)
{
    const group_check *c = arg;

    const bool scales = t->form == DT_PACKED_MXFP4 && t->part == DT_PACKED_SCALES;
    const dti_st_entry *e = t->entry;
    const size_t bytes = (size_t)t->n_axes * sizeof *t->shape;

    if ((t->input_group == 0 && !scales) || e == NULL || dti_ckpt_is_faulty(c->ckpt, e->name))
        return DT_OK;
    if (e->n_axes != t->n_axes || memcmp(e->shape, t->shape, bytes) != 0 ||
        strcmp(e->dtype_name, scales ? t->dtype : e->dtype_name) != 0)
        return DT_OK; /* said before */
    return find(c->v, scales ? dti_check_mxfp4_scales(c->ckpt, t, c->stage)
                             : dti_check_input_groups(c->ckpt, t, c->stage));
}

/* What loading asks of whole numbers. */
static dt_status read_groups(verifying *v, const dti_described *d, const dti_ckpt *ckpt,
                             const dti_st_stage *stage)
{
    group_check c = { v, ckpt, stage };

    for (int i = 0; i < d->builder.n; i++) {
        const dt_layer_spec *spec = &d->builder.specs[i];
        const bool mxfp4 = spec->packing.form == DT_PACKED_MXFP4;
        for (int p = 0; p < dt_spec_n_params(spec) && (mxfp4 || d->info.packed); p++) {
            const dt_param_info info = dt_spec_param(spec, p);
            DT_TRY(dti_each_tensor(ckpt, d->arch->spellings, &info, check_groups, &c));
        }
    }
    return DT_OK;
}

/* d NULL: the model is not known. */
static dt_status read_values(verifying *v, const dti_described *d, const dti_ckpt *ckpt)
{
    dti_st_stage stage = { 0 };
    dt_status st = DT_OK;
    int64_t done_bytes = 0;

    DT_TRY(dti_st_stage_create(0, NULL, &stage));
    for (size_t i = 0; i < dti_ckpt_count(ckpt) && st == DT_OK; i++) {
        const dti_st_entry *e = dti_ckpt_at(ckpt, i);
        if (!dti_ckpt_is_faulty(ckpt, e->name)) st = read_tensor(v, ckpt, e, &stage);
        done_bytes += e->end - e->begin;
        if (v->o.progress != NULL) v->o.progress(v->o.progress_arg, done_bytes, v->found->bytes);
    }
    if (st == DT_OK && d != NULL) st = read_groups(v, d, ckpt, &stage);
    dti_st_stage_destroy(&stage);
    return st;
}

static dt_status verify(verifying *v)
{
    dti_described d = { 0 };
    dti_ckpt *ckpt = NULL;
    dt_status st = DT_OK;
    bool known = false;

    st = dti_ckpt_check_folder(v->folder);
    if (st != DT_OK) return find(v, st); /* there is nothing more to look at */
    DT_TRY_TO(done, st, look_at_config(v, &d, &known));
    DT_TRY_TO(done, st, look_at_tokenizer(v));
    DT_TRY_TO(done, st, open_files(v, &ckpt));
    if (ckpt == NULL) goto done;
    DT_TRY_TO(done, st, read_index(v, ckpt));
    if (known) DT_TRY_TO(done, st, look_at_tensors(v, &d, ckpt));
    if (v->o.values) DT_TRY_TO(done, st, read_values(v, known ? &d : NULL, ckpt));
done:
    dti_ckpt_close(&ckpt);
    dti_described_free(&d);
    return st;
}

dt_status dt_checkpoint_verify(dt_runtime *rt, const char *dir, const dt_verify_options *options,
                               dt_finding_fn hear, void *arg, dt_verified *out)
{
    verifying v = { rt, dir, DT_VERIFY_OPTIONS_INIT, hear, arg, out };

    DT_CHECK(dir != NULL && hear != NULL && out != NULL, DT_ERR_ARG, "dir, say or out is NULL");
    *out = (dt_verified){ .n_files = 0 };
    DT_TRY(dti_options_read("dt_verify_options", "start from DT_VERIFY_OPTIONS_INIT", options, &v.o,
                            sizeof v.o));
    DT_TRY(verify(&v));
    return DT_OK;
}
