/* SPDX-License-Identifier: Apache-2.0
 *
 * What ends a text: tokens, strings, its length. A string ends it when the newest token completes
 * it: the token may say more behind it, and tokens before may begin before it. */
#include <string.h>

#include "models/generation/json_text.h"

bool dti_is_eos(const dti_text_rules *u, int32_t id)
{
    for (int64_t i = 0; i < u->eos.n; i++)
        if (u->eos.ids[i] == id) return true;
    return false;
}

/* Whether `word` occurs in the text so that its end is behind the first `old` bytes. */
static bool occurs_behind(const char *text, size_t n, size_t old, const char *word)
{
    const size_t k = strlen(word);

    for (size_t at = old + 1 > k ? old + 1 - k : 0; at + k <= n; at++)
        if (memcmp(text + at, word, k) == 0) return true;
    return false;
}

/* Decoding the last tokens with and without the newest shows what it says, also where it completes
 * a character. A word of n bytes lies in n tokens at most: those without a text aside. */
static dt_status completes_word(dti_text_rules *u, const int32_t *ids, int64_t n, bool *out)
{
    const dt_generate_options *o = &u->o;
    char *before = NULL, *after = NULL;
    size_t n_before, n_after, same = 0;
    dt_status st = DT_OK;

    DT_TRY_TO(done, st,
              dt_tokenizer_decode(o->tokenizer, ids, (size_t)n - 1, false, &before, &n_before));
    DT_TRY_TO(done, st, dt_tokenizer_decode(o->tokenizer, ids, (size_t)n, false, &after, &n_after));
    while (same < n_before && same < n_after && before[same] == after[same]) same++;
    for (int64_t i = 0; i < o->n_stop_strings && !*out; i++)
        *out = occurs_behind(after, n_after, same, o->stop_strings[i]);
done:
    dt_tokenizer_free(before);
    dt_tokenizer_free(after);
    return st;
}

static dt_status stops_at_word(dti_text_rules *u, const int32_t *ids, int64_t n, int32_t next,
                               bool *out)
{
    size_t longest = 0;
    int64_t window;

    *out = false;
    if (u->o.n_stop_strings == 0) return DT_OK;
    for (int64_t i = 0; i < u->o.n_stop_strings; i++)
        if (strlen(u->o.stop_strings[i]) > longest) longest = strlen(u->o.stop_strings[i]);
    window = n < (int64_t)longest ? n : (int64_t)longest;
    DT_TRY(dti_grow((void **)&u->window, &u->window_room, (size_t)window + 1, sizeof(int32_t)));
    memcpy(u->window, ids + n - window, (size_t)window * sizeof(int32_t));
    u->window[window] = next;
    DT_TRY(completes_word(u, u->window, window + 1, out));
    return DT_OK;
}

dt_status dti_ends(dti_text_rules *u, const int32_t *ids, int64_t n, int32_t next, dt_end *out)
{
    bool word, value;

    *out = DT_END_NONE;
    DT_TRY(stops_at_word(u, ids, n, next, &word));
    DT_TRY(dti_json_ends(u, ids, n, next, &value));
    if (u->n_prompt + u->n_new + 1 >= u->max_length) *out = DT_END_LENGTH;
    if (word || value) *out = DT_END_STRING;
    if (dti_is_eos(u, next)) *out = DT_END_EOS;
    return DT_OK;
}
