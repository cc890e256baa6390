/* SPDX-License-Identifier: Apache-2.0
 *
 * /tokenize and /detokenize, in the words of llama.cpp and of vLLM. */
#include <jansson.h>

#include "service/http/answering.h"
#include "service/http/routes.h"

static bool read(dti_exchange *x, dti_wish *w, unsigned api)
{
    json_t *tree;
    bool well;

    w->o = (dt_generate_options)DT_GENERATE_OPTIONS_INIT;
    w->api = api;
    w->parse_special = w->add_generation_prompt = true;
    tree = dti_exchange_parse(x, w);
    if (tree == NULL) return false;
    /* vLLM's spelling adds what is put around a text, llama.cpp's does not */
    w->add_special = json_object_get(tree, "prompt") != NULL;
    well = dti_find_model(x, w, tree);
    if (well) {
        well = dti_wish_read_tree(w, tree);
        if (!well) dti_refuse_wish(x, w);
    }
    dti_exchange_parsed(x, tree);
    return well;
}

static void put_pieces(dti_exchange *x, dt_ids ids)
{
    dti_buffer *b = &x->out;

    dti_buffer_text(b, ",\"token_strs\":[");
    for (int64_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *piece = dt_tokenizer_piece(x->model->tokenizer, ids.ids[i], &n);
        if (i > 0) dti_buffer_text(b, ",");
        if (piece != NULL)
            dti_buffer_json(b, piece, n);
        else
            dti_buffer_text(b, "null");
    }
    dti_buffer_text(b, "]");
}

void dti_answer_tokenize(dti_exchange *x)
{
    dti_wish w = { 0 };
    dti_buffer *b = &x->out;
    int32_t *owned = NULL;
    unsigned flags;
    dt_ids ids;

    if (!read(x, &w, DTI_API_TOKENIZE)) goto done;
    flags = (w.add_special ? DT_ENCODE_ADD_SPECIAL : 0u) |
            (w.parse_special ? DT_ENCODE_PARSE_SPECIAL : 0u);
    if (!dti_encode(x, &w, 0, flags, &ids, &owned)) goto done;
    dti_buffer_print(b, "{\"count\":%lld,\"max_model_len\":%lld,\"tokens\":[", (long long)ids.n,
                     (long long)x->model->context);
    for (int64_t i = 0; i < ids.n; i++) dti_buffer_print(b, "%s%d", i > 0 ? "," : "", ids.ids[i]);
    dti_buffer_text(b, "]");
    if (w.with_pieces) put_pieces(x, ids);
    dti_buffer_text(b, "}");
done:
    dt_tokenizer_free(owned);
    dti_wish_free(&w);
}

void dti_answer_detokenize(dti_exchange *x)
{
    dti_wish w = { 0 };
    char *text = NULL;
    size_t n;
    dt_status st;

    if (!read(x, &w, DTI_API_DETOKENIZE)) goto done;
    st = dt_tokenizer_decode(x->model->tokenizer, w.prompts[0].ids.ids, (size_t)w.prompts[0].ids.n,
                             false, &text, &n);
    if (st != DT_OK) {
        dti_refuse_status(x, st);
        goto done;
    }
    dti_buffer_text(&x->out, "{\"content\":");
    dti_buffer_json(&x->out, text, n);
    dti_buffer_text(&x->out, ",\"prompt\":");
    dti_buffer_json(&x->out, text, n);
    dti_buffer_text(&x->out, "}");
done:
    dt_tokenizer_free(text);
    dti_wish_free(&w);
}
