/* SPDX-License-Identifier: Apache-2.0
 *
 * Ids to text, whole or one at a time. */
#include "base/memory.h"
#include "text/tokenizer/tokenizer_internal.h"

struct dt_tokenizer_stream {
    dt_tokenizer *tok;
    bool skip_special;
    dti_decoding decoding;
};

static dt_status push_id(const dt_tokenizer *tok, dti_decoding *d, int32_t id, bool skip_special)
{
    const char *piece;
    size_t n;

    DT_CHECK(id >= 0, DT_ERR_ARG, "token id %d is negative", (int)id);
    if (skip_special && dt_tokenizer_is_special(tok, id)) return DT_OK;
    piece = dti_tokenizer_decoder_piece(tok, id, &n);
    return piece ? dti_decoding_push(d, piece, n) : DT_OK;
}

/* Puts a zero byte behind the output. */
static dt_status terminate(dti_text *out)
{
    DT_TRY(dti_text_append(out, "", 1));
    out->bytes--;
    return DT_OK;
}

static dt_status decode_all(const dt_tokenizer *tok, dti_decoding *d, const int32_t *ids, size_t n,
                            bool skip_special)
{
    for (size_t i = 0; i < n; i++) DT_TRY(push_id(tok, d, ids[i], skip_special));
    DT_TRY(dti_decoding_flush(d));
    return terminate(&d->out);
}

dt_status dt_tokenizer_decode(const dt_tokenizer *tok, const int32_t *ids, size_t n_ids,
                              bool skip_special, char **text, size_t *n_bytes)
{
    dti_decoding d = { 0 };
    dt_status st;

    DT_CHECK(text != NULL && n_bytes != NULL, DT_ERR_ARG, "text or n_bytes is NULL");
    *text = NULL;
    *n_bytes = 0;
    DT_CHECK(tok != NULL, DT_ERR_ARG, "tok is NULL");
    DT_CHECK(ids != NULL || n_ids == 0, DT_ERR_ARG, "ids is NULL");
    d.all = &tok->decoders;
    DT_TRY_TO(done, st, decode_all(tok, &d, ids, n_ids, skip_special));
    *text = d.out.data;
    *n_bytes = d.out.bytes;
    d.out = (dti_text){ 0 };
done:
    dti_decoding_free(&d);
    return st;
}

dt_status dt_tokenizer_stream_create(dt_tokenizer *tok, bool skip_special,
                                     dt_tokenizer_stream **out)
{
    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(tok != NULL, DT_ERR_ARG, "tok is NULL");
    DT_TRY(dti_new(sizeof **out, out));
    (*out)->tok = dt_tokenizer_retain(tok);
    (*out)->skip_special = skip_special;
    (*out)->decoding.all = &tok->decoders;
    return DT_OK;
}

/* Hands out what is in the output, or begins anew after an error. */
static dt_status hand_out(dt_tokenizer_stream *stream, dt_status st, const char **text,
                          size_t *n_bytes)
{
    if (st == DT_OK) st = terminate(&stream->decoding.out);
    if (st != DT_OK) {
        dti_decoding_reset(&stream->decoding);
        return st;
    }
    *text = stream->decoding.out.data;
    *n_bytes = stream->decoding.out.bytes;
    return DT_OK;
}

dt_status dt_tokenizer_stream_push(dt_tokenizer_stream *stream, int32_t id, const char **text,
                                   size_t *n_bytes)
{
    DT_CHECK(stream != NULL && text != NULL && n_bytes != NULL, DT_ERR_ARG,
             "stream, text or n_bytes is NULL");
    *text = "";
    *n_bytes = 0;
    stream->decoding.out.bytes = 0;
    DT_TRY(hand_out(stream, push_id(stream->tok, &stream->decoding, id, stream->skip_special), text,
                    n_bytes));
    return DT_OK;
}

dt_status dt_tokenizer_stream_flush(dt_tokenizer_stream *stream, const char **text, size_t *n_bytes)
{
    DT_CHECK(stream != NULL && text != NULL && n_bytes != NULL, DT_ERR_ARG,
             "stream, text or n_bytes is NULL");
    *text = "";
    *n_bytes = 0;
    stream->decoding.out.bytes = 0;
    DT_TRY(hand_out(stream, dti_decoding_flush(&stream->decoding), text, n_bytes));
    dti_decoding_reset(&stream->decoding); /* what was handed out stays in place */
    return DT_OK;
}

void dt_tokenizer_stream_release(dt_tokenizer_stream **stream)
{
    dt_tokenizer_stream *s = stream ? *stream : NULL;

    if (s == NULL) return;
    *stream = NULL;
    dti_decoding_free(&s->decoding);
    dt_tokenizer_release(&s->tok);
    dti_free(s);
}
