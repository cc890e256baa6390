/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/memory.h"
#include "files/folder.h"
#include "text/tokenizer/tokenizer_internal.h"

/* Every id of the template has to be a token's, or generation would begin with a hole. */
static dt_status check_template(const dt_tokenizer *tok, const dti_json *from)
{
    for (size_t i = 0; i < tok->around.items.n; i++) {
        const int32_t id = tok->around.items.data[i];

        DT_CHECK(id == DTI_TEMPLATE_TEXT || dt_tokenizer_piece(tok, id, NULL) != NULL,
                 DT_ERR_FORMAT, "%s: %s: its template adds id %d, which is no token", from->file,
                 from->path, (int)id);
    }
    return DT_OK;
}

static dt_status index_added(dt_tokenizer *tok)
{
    tok->n_ids = tok->bpe.vocab.n_ids;
    for (size_t i = 0; i < tok->added.n; i++)
        if (tok->added.tokens[i].id >= tok->n_ids) tok->n_ids = tok->added.tokens[i].id + 1;
    DT_TRY(
        dti_alloc_array((size_t)tok->n_ids, sizeof *tok->added_by_id, (void **)&tok->added_by_id));
    for (size_t i = 0; i < tok->added.n; i++)
        tok->added_by_id[tok->added.tokens[i].id] = &tok->added.tokens[i];
    return DT_OK;
}

static dt_status load(dt_tokenizer *tok, const dti_json *root)
{
    const dti_json normalizer = dti_json_get(root, "normalizer");
    const dti_json pre_tokenizer = dti_json_get(root, "pre_tokenizer");
    const dti_json post_processor = dti_json_get(root, "post_processor");
    const dti_json decoder = dti_json_get(root, "decoder");
    const dti_json version = dti_json_get(root, "version");
    const char *said, *type;
    dti_json model, added;

    DT_TRY(dti_json_string_or(root, "version", "1.0", &said));
    if (strcmp(said, "1.0") != 0) return dti_json_refuse(&version, DT_ERR_UNSUPPORTED, "1.0");
    DT_TRY(dti_json_object(root, "model", &model));
    DT_TRY(dti_json_string_or(&model, "type", "BPE", &type)); /* the oldest files do not say it */
    if (strcmp(type, "BPE") != 0) return dti_step_unknown(&model, type, "BPE");
    DT_TRY(dti_json_array_or_none(root, "added_tokens", &added));

    DT_TRY(dti_normalizers_load(&tok->normalizers, &normalizer));
    DT_TRY(dti_pre_tokenizers_load(&tok->pre_tokenizers, &pre_tokenizer));
    DT_TRY(dti_template_load(&tok->around, &post_processor));
    DT_TRY(dti_decoders_load(&tok->decoders, &decoder));
    DT_TRY(dti_bpe_load(&tok->bpe, &model));
    DT_TRY(dti_added_load(&tok->added, &added, &tok->bpe, &tok->normalizers));
    DT_TRY(index_added(tok));
    return check_template(tok, &post_processor);
}

dt_status dti_tokenizer_load(const dti_json *root, dt_tokenizer **out)
{
    dt_tokenizer *tok = NULL;
    dt_status st;

    *out = NULL;
    DT_TRY(dti_new(sizeof *tok, &tok));
    atomic_init(&tok->refs, 1);
    atomic_init(&tok->texts, NULL);
    DT_TRY_TO(fail, st, load(tok, root));
    *out = tok;
    return DT_OK;

fail:
    dt_tokenizer_release(&tok);
    return st;
}

const char *dt_tokenizer_files(const char *folder)
{
    return folder != NULL ? dti_folder_tokenizer(folder) : NULL;
}

dt_status dt_tokenizer_open(const char *path, dt_tokenizer **out)
{
    dti_json_doc doc = { 0 };
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(path != NULL, DT_ERR_ARG, "path is NULL");
    DT_TRY(dti_tokenizer_read(path, &doc));
    st = dti_tokenizer_load(&doc.root, out);
    dti_json_free(&doc);
    DT_TRY(st);
    return DT_OK;
}

dt_tokenizer *dt_tokenizer_retain(dt_tokenizer *tok)
{
    if (tok != NULL) (void)atomic_fetch_add_explicit(&tok->refs, 1, memory_order_relaxed);
    return tok;
}

void dt_tokenizer_release(dt_tokenizer **tok)
{
    dt_tokenizer *t = tok ? *tok : NULL;

    if (t == NULL) return;
    *tok = NULL;
    if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1) return;
    dti_token_texts_free(atomic_load(&t->texts));
    dti_free(t->added_by_id);
    dti_decoders_free(&t->decoders);
    dti_template_free(&t->around);
    dti_bpe_free(&t->bpe);
    dti_pre_tokenizers_free(&t->pre_tokenizers);
    dti_normalizers_free(&t->normalizers);
    dti_added_free(&t->added);
    dti_free(t);
}

/* --- queries ---------------------------------------------------------------------------------- */

static const dti_added_token *added_of(const dt_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->n_ids ? tok->added_by_id[id] : NULL;
}

static const char *model_piece(const dt_tokenizer *tok, int32_t id, size_t *n)
{
    const dti_vocab *vocab = &tok->bpe.vocab;

    if (id < 0 || id >= vocab->n_ids) return NULL;
    *n = vocab->pieces[id].bytes;
    return vocab->pieces[id].text;
}

int32_t dt_tokenizer_vocab_size(const dt_tokenizer *tok)
{
    return tok ? tok->n_ids : 0;
}

int32_t dt_tokenizer_id(const dt_tokenizer *tok, const char *piece, size_t n_bytes)
{
    const dti_added_token *added;

    if (tok == NULL || piece == NULL) return -1;
    added = dti_added_find(&tok->added, piece, n_bytes);
    return added ? added->id : dti_vocab_find(&tok->bpe.vocab, piece, n_bytes);
}

const char *dt_tokenizer_piece(const dt_tokenizer *tok, int32_t id, size_t *n_bytes)
{
    const dti_added_token *added = tok ? added_of(tok, id) : NULL;
    size_t n = 0;
    const char *text = NULL;

    if (added != NULL) {
        text = added->content.data;
        n = added->content.bytes;
    } else if (tok != NULL) {
        text = model_piece(tok, id, &n);
    }
    if (n_bytes != NULL) *n_bytes = n;
    return text;
}

bool dt_tokenizer_is_special(const dt_tokenizer *tok, int32_t id)
{
    const dti_added_token *added = tok ? added_of(tok, id) : NULL;

    return added != NULL && added->special;
}

/* An added token that was looked for in normalised text is decoded in that form, as the reference
 * does: its decoder can then undo what its normalizer did. */
const char *dti_tokenizer_decoder_piece(const dt_tokenizer *tok, int32_t id, size_t *n)
{
    const dti_added_token *added = added_of(tok, id);

    if (added == NULL) return model_piece(tok, id, n);
    *n = added->normalized ? added->normal.bytes : added->content.bytes;
    return added->normalized ? added->normal.data : added->content.data;
}
