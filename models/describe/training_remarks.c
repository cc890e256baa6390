/* SPDX-License-Identifier: Apache-2.0
 *
 * What config.json asks of training and training here does not do. Such keys leave the model as it
 * is, so nothing else reads them. */
#include <dtensor/checkpoints.h>
#include <stdio.h>

#include "base/text.h"
#include "files/checkpoint.h"
#include "files/json.h"

/* Names that configurations of Transformers have for the share of values that is dropped. */
static const char *const dropouts[] = {
    "attention_dropout", "attn_pdrop",         "dropout",     "embd_pdrop",    "embed_dropout",
    "embedding_dropout", "hidden_dropout",     "layerdrop",   "resid_dropout", "resid_pdrop",
    "residual_dropout",  "activation_dropout", "ffn_dropout",
};

typedef struct speaker {
    const char *file;
    dt_remark_fn say;
    void *arg;
} speaker;

static bool is_above_zero(const dti_json *v, double *x)
{
    const dti_json_kind kind = dti_json_kind_of(v);

    *x = 0;
    return (kind == DT_CONFIG_INT || kind == DT_CONFIG_REAL) &&
           dti_json_as_number(v, -1e300, 1e300, x) == DT_OK && *x > 0;
}

static void remark(const speaker *s, const dti_json *v, double x, const char *without)
{
    char text[DT_ERROR_MESSAGE_BYTES], label[DTI_SHOWN_BYTES];

    (void)snprintf(text, sizeof text, "%s: %s is %g; training here %s",
                   dti_printable(s->file, label, sizeof label), v->path, x, without);
    s->say(s->arg, text);
}

static void look(const speaker *s, const dti_json *config)
{
    const dti_json coefficient = dti_json_get(config, "router_aux_loss_coef");
    const dti_json noise = dti_json_get(config, "router_jitter_noise");
    const dti_json wanted = dti_json_get(config, "output_router_logits");
    bool adds = false;
    double x;

    for (size_t i = 0; i < DT_COUNT(dropouts); i++) {
        const dti_json v = dti_json_get(config, dropouts[i]);
        if (is_above_zero(&v, &x)) remark(s, &v, x, "drops nothing");
    }
    if (dti_json_kind_of(&wanted) == DT_CONFIG_BOOL && dti_json_as_bool(&wanted, &adds) == DT_OK &&
        adds && is_above_zero(&coefficient, &x))
        remark(s, &coefficient, x,
               "adds no loss of the router, though output_router_logits is set");
    if (is_above_zero(&noise, &x)) remark(s, &noise, x, "adds no noise");
}

dt_status dt_checkpoint_training_remarks(const char *dir, dt_remark_fn say, void *arg)
{
    speaker s = { .say = say, .arg = arg };
    dti_json_doc doc = { 0 };
    dt_status st = DT_OK;
    char *path = NULL;
    dti_json text;

    DT_CHECK(dir != NULL && say != NULL, DT_ERR_ARG, "dir or say is NULL");
    DT_TRY(dti_ckpt_check_folder(dir));
    DT_TRY(dti_ckpt_path(dir, "config.json", &path));
    DT_TRY_TO(done, st, dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc));
    s.file = path;
    look(&s, &doc.root);
    text = dti_json_get(&doc.root, "text_config");
    look(&s, &text);
done:
    dti_json_free(&doc);
    dti_free(path);
    return st;
}
