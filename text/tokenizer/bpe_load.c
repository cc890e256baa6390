/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/utf8.h"

/* The two parts of a merge. */
typedef struct merge_text {
    const char *left, *right;
    size_t left_bytes, right_bytes;
} merge_text;

static dt_status load_vocab(dti_bpe *bpe, const dti_json *model)
{
    json_t *tokens;
    const char *text;
    json_t *value;
    size_t bytes = 0;
    int64_t top = -1;
    dti_json vocab;

    DT_TRY(dti_json_object(model, "vocab", &vocab));
    tokens = (json_t *)(uintptr_t)vocab.value; /* jansson's iterators are not const */
    json_object_foreach(tokens, text, value)
    {
        const int64_t id = json_integer_value(value);

        if (!json_is_integer(value) || id < 0 || id > DTI_MAX_TOKEN_ID) {
            const dti_json at = dti_json_get(&vocab, text);

            return dti_json_refuse(&at, DT_ERR_FORMAT, "an id from 0 to %d", DTI_MAX_TOKEN_ID);
        }
        bytes += strlen(text);
        if (id > top) top = id;
    }
    DT_TRY(dti_vocab_create(&bpe->vocab, json_object_size(tokens), bytes, (int32_t)(top + 1)));
    json_object_foreach(tokens, text, value)
    {
        const dt_status st =
            dti_vocab_add(&bpe->vocab, text, strlen(text), (int32_t)json_integer_value(value));
        if (st != DT_OK) dti_error_prefix("%s: %s", vocab.file, vocab.path);
        DT_TRY(st);
    }
    return DT_OK;
}

/* A merge as ["a", "b"] or as "a b". */
static bool merge_parts(const json_t *merge, merge_text *m)
{
    if (json_is_array(merge)) {
        const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);

        if (json_array_size(merge) != 2 || !json_is_string(left) || !json_is_string(right))
            return false;
        *m = (merge_text){ json_string_value(left), json_string_value(right),
                           json_string_length(left), json_string_length(right) };
        return true;
    }
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');

        if (space == NULL || strchr(space + 1, ' ') != NULL) return false;
        *m = (merge_text){ text, space + 1, (size_t)(space - text), strlen(space + 1) };
        return true;
    }
    return false;
}

static dt_status find_part(const dti_bpe *bpe, const dti_json *merges, size_t i, const char *s,
                           size_t n, int32_t *id)
{
    *id = dti_vocab_find(&bpe->vocab, s, n);
    DT_CHECK(*id >= 0, DT_ERR_FORMAT,
             "%s: %s[%zu] needs the token \"%.*s\", which is not in the vocabulary", merges->file,
             merges->path, i, (int)(n < 64 ? n : 64), s);
    return DT_OK;
}

static dt_status load_merge(dti_bpe *bpe, const dti_json *merges, size_t i, uint32_t rank,
                            dti_text *scratch)
{
    const json_t *value = json_array_get(merges->value, i);
    int32_t left, right, product;
    merge_text m;

    if (!merge_parts(value, &m)) {
        const dti_json at = dti_json_at(merges, i);

        return dti_json_refuse(&at, DT_ERR_FORMAT, "two tokens, as \"a b\" or [\"a\", \"b\"]");
    }
    scratch->bytes = 0;
    DT_TRY(dti_text_append(scratch, m.left, m.left_bytes));
    DT_TRY(dti_text_append(scratch, m.right, m.right_bytes));
    DT_TRY(find_part(bpe, merges, i, m.left, m.left_bytes, &left));
    DT_TRY(find_part(bpe, merges, i, m.right, m.right_bytes, &right));
    DT_TRY(find_part(bpe, merges, i, scratch->data, scratch->bytes, &product));
    dti_bpe_add_merge(bpe, left, right, rank, product);
    return DT_OK;
}

static dt_status load_merges(dti_bpe *bpe, const dti_json *model)
{
    dti_text scratch = { 0 };
    uint32_t rank = 0;
    dti_json merges;
    dt_status st = DT_OK;
    size_t n;

    DT_TRY(dti_json_array(model, "merges", &merges));
    n = dti_json_count(&merges);
    DT_CHECK(n < UINT32_MAX, DT_ERR_FORMAT, "%s: %zu merges", merges.file, n);
    DT_TRY(dti_bpe_create_merges(bpe, n));
    for (size_t i = 0; i < n && st == DT_OK; i++) {
        const char *line = json_string_value(json_array_get(merges.value, i));

        if (line != NULL && strncmp(line, "#version", 8) == 0)
            continue; /* a header of merges.txt */
        st = load_merge(bpe, &merges, i, rank++, &scratch);
    }
    dti_text_free(&scratch);
    return st;
}

/* Options that would need code of their own are refused if they are set to anything. */
static dt_status refuse_options(const dti_json *model)
{
    static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const char *affix;
    double dropout;

    DT_TRY(dti_json_number_or(model, "dropout", 0.0, 0.0, 1.0, &dropout));
    if (dropout > 0.0) {
        const dti_json at = dti_json_get(model, "dropout");

        return dti_json_refuse(&at, DT_ERR_UNSUPPORTED, "null or 0: dropout is for training");
    }
    for (size_t i = 0; i < DT_COUNT(affixes); i++) {
        DT_TRY(dti_json_string_or(model, affixes[i], "", &affix));
        if (affix[0] != '\0') {
            const dti_json at = dti_json_get(model, affixes[i]);

            return dti_json_refuse(&at, DT_ERR_UNSUPPORTED, "null or empty in this version");
        }
    }
    return DT_OK;
}

static void find_special_pieces(dti_bpe *bpe)
{
    for (int b = 0; b < 256; b++) {
        char text[8];

        (void)snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        bpe->byte_ids[b] = dti_vocab_find(&bpe->vocab, text, 6);
    }
    for (uint32_t c = 0; c < DTI_BPE_DIRECT_CHARS; c++) {
        char text[4];

        bpe->char_ids[c] = dti_vocab_find(&bpe->vocab, text, dti_utf8_write(c, text));
    }
    bpe->unk_id = bpe->unk_token == NULL
                      ? -1
                      : dti_vocab_find(&bpe->vocab, bpe->unk_token, strlen(bpe->unk_token));
}

dt_status dti_bpe_load(dti_bpe *bpe, const dti_json *model)
{
    const char *unk;

    *bpe = (dti_bpe){ 0 };
    DT_TRY(refuse_options(model));
    DT_TRY(dti_json_bool_or(model, "ignore_merges", false, &bpe->ignore_merges));
    DT_TRY(dti_json_bool_or(model, "byte_fallback", false, &bpe->byte_fallback));
    DT_TRY(dti_json_bool_or(model, "fuse_unk", false, &bpe->fuse_unk));
    DT_TRY(dti_json_string_or(model, "unk_token", NULL, &unk));
    if (unk != NULL) DT_TRY(dti_strdup(unk, &bpe->unk_token));
    DT_TRY(load_vocab(bpe, model));
    DT_TRY(load_merges(bpe, model));
    find_special_pieces(bpe);
    return DT_OK;
}
