/* SPDX-License-Identifier: Apache-2.0
 *
 * A folder's description for who has no model: as a handle, and with everything beside it. */
#include <dtensor/checkpoints.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/text.h"
#include "files/checkpoint.h"
#include "files/folder.h"
#include "models/describe/describe.h"
#include "models/generation/generation_config.h"
#include "models/judge/judge.h"
#include "text/tokenizer/coverage.h"
#include "weights/saving/save.h"

struct dt_checkpoint {
    dti_described d;
};

dt_status dt_checkpoint_open(dt_runtime *rt, const char *dir, dt_checkpoint **out)
{
    dt_checkpoint *c;
    dt_status st;

    DT_CHECK(dir != NULL && out != NULL, DT_ERR_ARG, "dir or out is NULL");
    *out = NULL;
    DT_TRY(dti_new(sizeof *c, &c));
    st = dti_describe(rt, dir, &c->d);
    if (st == DT_OK && !c->d.dtype_known) c->d.info.dtype = DT_F32;
    if (st == DT_OK)
        *out = c;
    else
        dti_free(c);
    DT_TRY(st);
    return DT_OK;
}

void dt_checkpoint_close(dt_checkpoint **checkpoint)
{
    dt_checkpoint *c = checkpoint != NULL ? *checkpoint : NULL;

    if (c == NULL) return;
    *checkpoint = NULL;
    dti_described_free(&c->d);
    dti_free(c);
}

const dt_model_info *dt_checkpoint_info(const dt_checkpoint *c)
{
    return c != NULL ? &c->d.info : NULL;
}

dt_status dt_checkpoint_generate_options(const dt_checkpoint *c, dt_generate_options *out)
{
    DT_CHECK(c != NULL && out != NULL, DT_ERR_ARG, "checkpoint or out is NULL");
    if (c->d.generation == NULL) DT_FAIL(DT_ERR_FORMAT, "%s", c->d.generation_error);
    *out = c->d.generation->options;
    return DT_OK;
}

dt_status dt_checkpoint_check_generation(const dt_checkpoint *c)
{
    DT_CHECK(c != NULL, DT_ERR_ARG, "checkpoint is NULL");
    return dti_judge_generation(&c->d);
}

dt_status dt_checkpoint_check_plan(const dt_checkpoint *c)
{
    DT_CHECK(c != NULL, DT_ERR_ARG, "checkpoint is NULL");
    return dti_judge_own_plan(&c->d);
}

dt_status dt_checkpoint_check_folder(const char *dir)
{
    DT_CHECK(dir != NULL, DT_ERR_ARG, "dir is NULL");
    return dti_ckpt_check_folder(dir);
}

/* --- everything --------------------------------------------------------------------------------
 */

/* Whose folder it is, and who hears of it. */
typedef struct looking {
    dt_runtime *rt;
    const char *dir;
    dt_remark_fn say;
    void *arg;
    dt_checkpoint_report *r;
} looking;

/* What files say by themselves, also those of a checkpoint that is refused. */
static void look_at_files(const looking *l)
{
    dti_json_doc doc = { 0 };
    dti_ckpt *ckpt = NULL;
    const char *type = NULL;
    char *path = NULL;

    if (dti_ckpt_path(l->dir, "config.json", &path) == DT_OK &&
        dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc) == DT_OK &&
        dti_json_string(&doc.root, "model_type", &type) == DT_OK)
        (void)dti_printable(type, l->r->model_type, sizeof l->r->model_type);
    if (dti_ckpt_open(l->dir, &ckpt) == DT_OK) {
        l->r->n_files = dti_ckpt_n_files(ckpt);
        l->r->n_tensors = dti_ckpt_count(ckpt);
        l->r->file_bytes = dti_ckpt_bytes(ckpt);
    }
    dti_ckpt_close(&ckpt);
    dti_json_free(&doc);
    dti_free(path);
}

/* Whether the tokenizer is that of this model, and can write every text. */
static void judge_tokenizer(const looking *l, const dt_tokenizer *tokenizer)
{
    const dt_checkpoint_report *r = l->r;
    char text[DT_ERROR_MESSAGE_BYTES];
    unsigned char first = 0;
    const int lost = dti_tokenizer_lost_bytes(tokenizer, &first);

    if (r->supported && r->n_tokens > r->info.vocab_size) {
        (void)snprintf(text, sizeof text,
                       "the tokenizer does not fit the model: its ids go up to %" PRId32
                       ", the model's vocabulary is 0..%" PRId64
                       "; a prompt that needs a token beyond is refused",
                       r->n_tokens - 1, r->info.vocab_size - 1);
        l->say(l->arg, text);
    }
    if (lost > 0) {
        (void)snprintf(text, sizeof text,
                       "the tokenizer has no token for %d of the bytes that text is made of, the "
                       "first is 0x%02X: they vanish from prompts",
                       lost, first);
        l->say(l->arg, text);
    }
}

static void look_at_tokenizer(const looking *l)
{
    dt_tokenizer *tokenizer = NULL;
    dt_status st;

    l->r->tokenizer = dti_folder_tokenizer(l->dir);
    if (l->r->tokenizer == NULL) return;
    st = dt_tokenizer_open(l->dir, &tokenizer);
    if (st == DT_OK) {
        l->r->n_tokens = dt_tokenizer_vocab_size(tokenizer);
        judge_tokenizer(l, tokenizer);
        st = dti_tokenizer_try(tokenizer);
        if (st != DT_OK) dti_error_prefix("%s/%s", l->dir, l->r->tokenizer);
    }
    if (st != DT_OK) l->r->tokenizer_error = *dt_last_error();
    dt_tokenizer_release(&tokenizer);
}

/* What a run would refuse, if the model itself is sound. */
static dt_status look_at_run(const looking *l)
{
    dti_described d;

    if (!l->r->supported) return DT_OK;
    DT_TRY(dti_describe(l->rt, l->dir, &d));
    l->r->reads_generation = d.generation != NULL;
    if (dti_judge_generation(&d) != DT_OK) l->r->generation_error = *dt_last_error();
    if (dti_judge_own_plan(&d) != DT_OK) l->r->plan_error = *dt_last_error();
    dti_described_free(&d);
    return DT_OK;
}

static bool is_sound(const dt_checkpoint_report *r)
{
    return r->supported && r->tokenizer_error.code == DT_OK && r->generation_error.code == DT_OK &&
           r->plan_error.code == DT_OK;
}

static void unsaid(void *arg, const char *text)
{
    (void)arg, (void)text;
}

dt_status dt_checkpoint_inspect(dt_runtime *rt, const char *dir, dt_remark_fn say, void *arg,
                                dt_checkpoint_report *out)
{
    const looking l = { rt, dir, say != NULL ? say : unsaid, arg, out };

    DT_CHECK(dir != NULL && out != NULL, DT_ERR_ARG, "dir or out is NULL");
    *out = (dt_checkpoint_report){ .supported = false };
    out->supported =
        dt_model_inspect_with(rt, dir, &out->info, &out->n_params, &out->bytes) == DT_OK;
    if (!out->supported) out->model_error = *dt_last_error();
    look_at_files(&l);
    look_at_tokenizer(&l);
    DT_TRY(look_at_run(&l));
    if (is_sound(out) && dti_small_readable(dir) != DT_OK) out->file_error = *dt_last_error();
    if (out->supported)
        DT_TRY(dt_checkpoint_remarks(rt, dir, true, out->reads_generation, l.say, arg));
    return DT_OK;
}
