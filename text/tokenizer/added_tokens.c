/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking for all added tokens at once: leftmost first, then the longest. They are sorted, so the
 * candidates at a place are a range that narrows with every byte. */
#include "text/tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "text/tokenizer/unicode.h"

static const dti_text *pattern_of(const dti_added_set *set, size_t i)
{
    return set->by_normal ? &set->tokens[i]->normal : &set->tokens[i]->content;
}

static int compare_texts(const dti_text *a, const dti_text *b)
{
    const int order = memcmp(a->data, b->data, a->bytes < b->bytes ? a->bytes : b->bytes);

    return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int by_content(const void *a, const void *b)
{
    return compare_texts(&(*(const dti_added_token *const *)a)->content,
                         &(*(const dti_added_token *const *)b)->content);
}

static int by_normal(const void *a, const void *b)
{
    return compare_texts(&(*(const dti_added_token *const *)a)->normal,
                         &(*(const dti_added_token *const *)b)->normal);
}

/* Sorts the tokens of a set and notes where their first bytes change. */
static dt_status finish_set(dti_added_set *set)
{
    size_t n = 0;

    qsort(set->tokens, set->n, sizeof *set->tokens, set->by_normal ? by_normal : by_content);
    for (size_t i = 1; i < set->n; i++)
        DT_CHECK(compare_texts(pattern_of(set, i - 1), pattern_of(set, i)) != 0, DT_ERR_FORMAT,
                 "added tokens \"%.64s\" and \"%.64s\" are the same text",
                 set->tokens[i - 1]->content.data, set->tokens[i]->content.data);
    for (int b = 0; b < 256; b++) {
        set->first[b] = (uint32_t)n;
        while (n < set->n && (unsigned char)pattern_of(set, n)->data[0] == b) n++;
    }
    set->first[256] = (uint32_t)n;
    return DT_OK;
}

static dt_status make_sets(dti_added_tokens *added)
{
    dti_added_set *const sets[] = { &added->all, &added->raw, &added->normal };

    for (size_t i = 0; i < DT_COUNT(sets); i++)
        DT_TRY(dti_alloc_array(added->n, sizeof *sets[i]->tokens, (void **)&sets[i]->tokens));
    added->normal.by_normal = true;
    for (size_t i = 0; i < added->n; i++) {
        const dti_added_token *t = &added->tokens[i];
        dti_added_set *set = t->normalized ? &added->normal : &added->raw;

        added->all.tokens[added->all.n++] = t;
        set->tokens[set->n++] = t;
    }
    for (size_t i = 0; i < DT_COUNT(sets); i++) DT_TRY(finish_set(sets[i]));
    return DT_OK;
}

static dt_status load_token(dti_added_token *t, const dti_json *from,
                            const dti_normalizers *normalizers, dti_normalizer_work *work)
{
    const char *content, *normal;
    size_t n_normal;

    DT_TRY(dti_json_as_object(from));
    DT_TRY(dti_json_string(from, "content", &content));
    DT_TRY(dti_json_bool_or(from, "special", false, &t->special));
    DT_TRY(dti_json_bool_or(from, "normalized", !t->special, &t->normalized));
    DT_TRY(dti_json_bool_or(from, "lstrip", false, &t->lstrip));
    DT_TRY(dti_json_bool_or(from, "rstrip", false, &t->rstrip));
    DT_TRY(dti_json_bool_or(from, "single_word", false, &t->single_word));
    DT_CHECK(content[0] != '\0', DT_ERR_FORMAT, "%s: %s has an empty content", from->file,
             from->path);
    DT_TRY(dti_text_append(&t->content, content, strlen(content) + 1));
    t->content.bytes--; /* the zero byte stays behind it */
    if (!t->normalized) return DT_OK;
    dti_normalizer_work_begin(work, t->content.bytes);
    DT_TRY(dti_normalizers_run(normalizers, work, t->content.data, t->content.bytes, &normal,
                               &n_normal));
    DT_CHECK(n_normal > 0, DT_ERR_FORMAT, "%s: %s \"%.64s\" is empty once it is normalised",
             from->file, from->path, content);
    return dti_text_append(&t->normal, normal, n_normal);
}

/* The reference never reads the id in the file: it takes that of the vocabulary, or the next free
 * one. A file that says otherwise was made for another vocabulary. */
static dt_status give_id(dti_added_token *t, const dti_json *from, const dti_bpe *bpe,
                         int32_t *next_id)
{
    int64_t said;

    t->id = dti_vocab_find(&bpe->vocab, t->content.data, t->content.bytes);
    if (t->id < 0) t->id = (*next_id)++;
    DT_CHECK(t->id <= DTI_MAX_TOKEN_ID, DT_ERR_FORMAT, "%s: %s: more than %d ids", from->file,
             from->path, DTI_MAX_TOKEN_ID + 1);
    DT_TRY(dti_json_int_or(from, "id", t->id, 0, DTI_MAX_TOKEN_ID, &said));
    DT_CHECK(
        said == t->id, DT_ERR_FORMAT,
        "%s: %s \"%.64s\" has id %lld, but the vocabulary or its place in the list gives it %d: "
        "they do not belong together",
        from->file, from->path, t->content.data, (long long)said, (int)t->id);
    return DT_OK;
}

static dt_status load_tokens(dti_added_tokens *added, const dti_json *tokens, const dti_bpe *bpe,
                             const dti_normalizers *normalizers, dti_normalizer_work *work)
{
    const size_t n = dti_json_count(tokens);
    /* Where ids are not dense, the reference counts on from the number of tokens. */
    int32_t next_id = bpe->vocab.n_tokens;

    DT_TRY(dti_alloc_array(n, sizeof *added->tokens, (void **)&added->tokens));
    for (size_t i = 0; i < n; i++) {
        const dti_json from = dti_json_at(tokens, i);

        added->n = i + 1;
        DT_TRY(load_token(&added->tokens[i], &from, normalizers, work));
        DT_TRY(give_id(&added->tokens[i], &from, bpe, &next_id));
    }
    return DT_OK;
}

dt_status dti_added_load(dti_added_tokens *added, const dti_json *tokens, const dti_bpe *bpe,
                         const dti_normalizers *normalizers)
{
    dti_normalizer_work work = { 0 };
    dt_status st = load_tokens(added, tokens, bpe, normalizers, &work);

    dti_normalizer_work_free(&work);
    if (st == DT_OK && (st = make_sets(added)) != DT_OK)
        dti_error_prefix("%s: %s", tokens->file, tokens->path);
    DT_TRY(st);
    return DT_OK;
}

void dti_added_free(dti_added_tokens *added)
{
    for (size_t i = 0; i < added->n; i++) {
        dti_text_free(&added->tokens[i].content);
        dti_text_free(&added->tokens[i].normal);
    }
    dti_free(added->tokens);
    dti_free(added->all.tokens);
    dti_free(added->raw.tokens);
    dti_free(added->normal.tokens);
    *added = (dti_added_tokens){ 0 };
}

dti_added_walk dti_added_walk_in(const dti_added_set *set, const char *text, size_t bytes,
                                 bool skip_special)
{
    return (
        dti_added_walk){ .set = set, .text = text, .bytes = bytes, .skip_special = skip_special };
}

/* The first of the tokens [low, high) whose pattern has at least `byte` at `depth`. */
static size_t lower_bound(const dti_added_set *set, size_t low, size_t high, size_t depth, int byte)
{
    while (low < high) {
        const size_t mid = (low + high) / 2;

        if ((unsigned char)pattern_of(set, mid)->data[depth] < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The longest token at the beginning of the n > 0 bytes at s, or NULL. */
static const dti_added_token *longest_at(const dti_added_set *set, const char *s, size_t n,
                                         size_t *bytes)
{
    size_t low = set->first[(unsigned char)s[0]], high = set->first[(unsigned char)s[0] + 1];
    const dti_added_token *found = NULL;

    for (size_t depth = 1; low < high; depth++) {
        if (pattern_of(set, low)->bytes == depth) { /* the shortest comes first */
            found = set->tokens[low++];
            *bytes = depth;
        }
        if (depth == n) break;
        low = lower_bound(set, low, high, depth, (unsigned char)s[depth]);
        high = lower_bound(set, low, high, depth, (unsigned char)s[depth] + 1);
    }
    return found;
}

const dti_added_token *dti_added_find(const dti_added_tokens *added, const char *s, size_t n)
{
    size_t bytes = 0;
    const dti_added_token *t = n > 0 ? longest_at(&added->all, s, n, &bytes) : NULL;

    return t != NULL && bytes == n ? t : NULL;
}

static bool is_whole_word(const dti_added_walk *w, size_t begin, size_t end)
{
    size_t before;

    if (begin > 0 && dti_is_word(dti_utf8_before(w->text, begin, &before))) return false;
    return end == w->bytes || !dti_is_word(dti_utf8_at(w->text + end));
}

static size_t spaces_before(const dti_added_walk *w, size_t begin)
{
    size_t before;

    while (begin > 0 && dti_is_space(dti_utf8_before(w->text, begin, &before))) begin = before;
    return begin;
}

static size_t spaces_after(const dti_added_walk *w, size_t end)
{
    while (end < w->bytes && dti_is_space(dti_utf8_at(w->text + end)))
        end += dti_utf8_length(w->text[end]);
    return end;
}

/* A match that does not count is used up all the same: the search goes on behind it. */
const dti_added_token *dti_added_next(dti_added_walk *w, size_t *begin, size_t *end)
{
    const dti_added_set *set = w->set;

    while (set->n > 0 && w->at < w->bytes) {
        const unsigned char lead = (unsigned char)w->text[w->at];
        size_t start = w->at, stop, bytes = 0;
        const dti_added_token *t = NULL;

        if (set->first[lead] < set->first[lead + 1]) /* rare in most texts */
            t = longest_at(set, w->text + start, w->bytes - start, &bytes);
        w->at += t ? bytes : 1;
        if (t == NULL || (t->special && w->skip_special)) continue;
        stop = start + bytes;
        if (t->single_word && !is_whole_word(w, start, stop)) continue;
        if (t->lstrip) {
            const size_t spaces = spaces_before(w, start);

            start = spaces > w->done ? spaces : w->done;
        }
        if (t->rstrip) stop = spaces_after(w, stop);
        *begin = w->done < start ? w->done : start;
        *end = start;
        w->done = stop;
        return t;
    }
    *begin = w->done < w->bytes ? w->done : w->bytes;
    *end = w->bytes;
    w->done = w->bytes;
    return NULL;
}
