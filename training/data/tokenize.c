/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of text, one after the other, through a tokenizer into a writer. */
#include "training/data/tokenize.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/options.h"
#include "files/mapped.h"
#include "text/tokenizer/utf8.h"

enum { PIECE_BYTES = 1 << 20, WINDOW_BYTES = 1 << 12, MOST_TRIES = 64 };

static dt_status encode(const dti_tokenizing *z, const char *text, size_t n, int32_t **ids,
                        size_t *n_ids)
{
    return dt_tokenizer_encode(z->tokenizer, text, n, z->flags, ids, n_ids);
}

/* What the tokenizer's template puts around a text, found by a text with and without it. */
static dt_status find_template(dti_tokenizing *z)
{
    int32_t *with = NULL, *without = NULL;
    size_t n_with, n_without = 0, at = 0;
    dt_status st = DT_OK;

    if (z->o->plain) return DT_OK;
    DT_TRY_TO(done, st,
              dt_tokenizer_encode(z->tokenizer, "a", 1, z->flags | DT_ENCODE_ADD_SPECIAL, &with,
                                  &n_with));
    DT_TRY_TO(done, st, encode(z, "a", 1, &without, &n_without));
    while (at + n_without <= n_with &&
           (n_without == 0 || memcmp(with + at, without, n_without * sizeof *with) != 0))
        at++;
    DT_CHECK_TO(done, st,
                n_without > 0 && at + n_without <= n_with && at <= DTI_AROUND_MOST &&
                    n_with - at - n_without <= DTI_AROUND_MOST,
                DT_ERR_UNSUPPORTED, "the tokenizer's template adds more than is understood here");
    z->n_before = (int)at;
    z->n_behind = (int)(n_with - at - n_without);
    memcpy(z->before, with, at * sizeof *with);
    if (z->n_behind > 0)
        memcpy(z->behind, with + at + n_without, (size_t)z->n_behind * sizeof *with);
done:
    dt_tokenizer_free(with);
    dt_tokenizer_free(without);
    return st;
}

/* --- a document ------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Whether tokens of a text are those of its two parts, by what stands around the seam: from a line
 * before it to one behind it. */
static dt_status is_seam(const dti_tokenizing *z, const char *text, size_t n, size_t at, bool *out)
{
    const size_t before = at < WINDOW_BYTES ? at : WINDOW_BYTES;
    const size_t behind = n - at < WINDOW_BYTES ? n - at : WINDOW_BYTES;
    int32_t *ids[3] = { NULL };
    size_t n_ids[3] = { 0 };
    dt_status st = DT_OK;

    *out = false;
    DT_TRY_TO(done, st, encode(z, text + at - before, before + behind, &ids[0], &n_ids[0]));
    DT_TRY_TO(done, st, encode(z, text + at - before, before, &ids[1], &n_ids[1]));
    DT_TRY_TO(done, st, encode(z, text + at, behind, &ids[2], &n_ids[2]));
    *out = n_ids[0] == n_ids[1] + n_ids[2] && n_ids[1] > 0 && n_ids[2] > 0 &&
           memcmp(ids[0], ids[1], n_ids[1] * sizeof **ids) == 0 &&
           memcmp(ids[0] + n_ids[1], ids[2], n_ids[2] * sizeof **ids) == 0;
done:
    for (int i = 0; i < 3; i++) dt_tokenizer_free(ids[i]);
    return st;
}

/* How much of a text can be encoded by itself: up to a line that begins with a letter or a sign, of
 * which the tokenizer shows that it begins anew there. */
static dt_status find_piece(const dti_tokenizing *z, const char *text, size_t n, size_t *out)
{
    size_t want = PIECE_BYTES;

    for (; want + PIECE_BYTES / 2 < n; want *= 2) {
        int tries = 0;
        for (size_t at = want; at > want / 2 && tries < MOST_TRIES; at--) {
            bool seam;
            if (text[at - 1] != '\n' || is_space(text[at - 2]) || is_space(text[at]) ||
                (unsigned char)text[at] >= 0x80)
                continue;
            tries++;
            DT_TRY(is_seam(z, text, n, at, &seam));
            *out = at;
            if (seam) return DT_OK;
        }
    }
    *out = n;
    return DT_OK;
}

/* So much of all files is done. */
static dt_status tell(dti_tokenizing *z, int64_t bytes)
{
    z->done.bytes = bytes;
    DT_CHECK(z->o->progress == NULL ||
                 z->o->progress(z->o->progress_arg, bytes, z->all_bytes, z->done.tokens),
             DT_ERR_ARG, "stopped");
    return DT_OK;
}

static dt_status add(dti_tokenizing *z, const int32_t *ids, int64_t n)
{
    z->done.tokens += n;
    return dt_token_writer_add(z->writer, ids, n, true);
}

dt_status dti_tokenize_text(dti_tokenizing *z, const char *text, size_t n)
{
    if (n == 0) return DT_OK;
    DT_TRY(add(z, z->before, z->n_before));
    for (size_t at = 0, piece = 0; at < n; at += piece) {
        int32_t *ids;
        size_t n_ids;
        dt_status st;
        DT_TRY(find_piece(z, text + at, n - at, &piece));
        DT_TRY(encode(z, text + at, piece, &ids, &n_ids));
        st = add(z, ids, (int64_t)n_ids);
        dt_tokenizer_free(ids);
        DT_TRY(st);
        if (at + piece < n) DT_TRY(tell(z, z->here + (int64_t)(at + piece)));
    }
    DT_TRY(add(z, z->behind, z->n_behind));
    if (z->o->end_token >= 0) DT_TRY(add(z, &z->o->end_token, 1));
    z->done.documents++;
    return dt_token_writer_end_document(z->writer);
}

/* --- a file ----------------------------------------------------------------------------------- */

static const char *find(const char *text, size_t n, const char *word, size_t n_word)
{
    for (const char *p = text; n - (size_t)(p - text) >= n_word; p++) {
        p = memchr(p, word[0], n - (size_t)(p - text) - n_word + 1);
        if (p == NULL) return NULL;
        if (memcmp(p, word, n_word) == 0) return p;
    }
    return NULL;
}

/* Bytes that are no UTF-8. */
static int64_t count_broken(const char *text, size_t n)
{
    int64_t broken = 0;

    for (size_t at = 0; at < n; at++) {
        at += dti_utf8_valid(text + at, n - at);
        broken += at < n;
    }
    return broken;
}

/* Arrays and ids have zeros among their first bytes; of a text only a byte gone astray is one. */
static dt_status check_text(const char *label, const char *text, size_t n)
{
    const char *zero = memchr(text, '\0', n < WINDOW_BYTES ? n : WINDOW_BYTES);

    DT_CHECK(zero == NULL, DT_ERR_FORMAT,
             "%s: byte %zu is zero, so it is no text; ids are read from files of tokens, called "
             ".bin or .idx",
             label, (size_t)(zero - text));
    return DT_OK;
}

static dt_status take_plain(dti_tokenizing *z, const char *label, const char *text, size_t n)
{
    const char *separator = z->o->separator;
    const size_t skip = separator != NULL ? strlen(separator) : 0;

    DT_TRY(check_text(label, text, n));
    z->done.broken += count_broken(text, n);
    for (size_t at = 0; at < n;) {
        const char *end = skip > 0 ? find(text + at, n - at, separator, skip) : NULL;
        const size_t bytes = end != NULL ? (size_t)(end - text) - at : n - at;
        DT_TRY(dti_tokenize_text(z, text + at, bytes));
        at += bytes + (end != NULL ? skip : 0);
        z->here += (int64_t)(bytes + (end != NULL ? skip : 0));
        DT_TRY(tell(z, z->here));
    }
    return DT_OK;
}

/* An object of JSON, named by its file and line. */
static dt_status take_line(dti_tokenizing *z, const char *where, const char *line, size_t n)
{
    dti_json_doc doc = { 0 };
    const char *text;
    dti_json messages;
    dt_status st = DT_OK;

    DT_TRY(dti_json_parse(where, line, n, &doc));
    messages = dti_json_get(&doc.root, "messages");
    if (dti_json_is_set(&messages)) {
        st = dti_tokenize_chat(z, &doc, line);
        if (st != DT_OK && strncmp(dt_last_error()->message, where, strlen(where)) != 0)
            dti_error_prefix("%s", where);
    } else {
        DT_TRY_TO(done, st, dti_json_string(&doc.root, z->o->key, &text));
        st = dti_tokenize_text(z, text, strlen(text));
    }
done:
    dti_json_free(&doc);
    return st;
}

static dt_status take_lines(dti_tokenizing *z, const char *label, const char *text, size_t n)
{
    char where[DTI_INPUT_LABEL_BYTES + 32], *line = NULL;
    size_t room = 0;
    int64_t number = 1;
    dt_status st = DT_OK;

    for (size_t at = 0; at < n; number++) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t bytes = end != NULL ? (size_t)(end - text) - at : n - at;
        size_t blank = 0;
        while (blank < bytes && is_space(text[at + blank])) blank++;
        (void)snprintf(where, sizeof where, "%s: line %lld", label, (long long)number);
        if (blank < bytes) {
            DT_TRY_TO(done, st, dti_grow((void **)&line, &room, bytes + 1, 1));
            memcpy(line, text + at, bytes);
            line[bytes] = '\0';
            DT_TRY_TO(done, st, take_line(z, where, line, bytes));
        }
        at += bytes + (end != NULL);
        z->here += (int64_t)(bytes + (end != NULL));
        DT_TRY_TO(done, st, tell(z, z->here));
    }
done:
    dti_free(line);
    return st;
}

static bool is_json_lines(const dt_tokenize_options *o, const char *path)
{
    static const char ending[] = ".jsonl";
    const size_t n = strlen(path), m = sizeof ending - 1;

    if (o->kind != DT_TEXT_BY_NAME) return o->kind == DT_TEXT_JSON_LINES;
    return n >= m && strcmp(path + n - m, ending) == 0;
}

static dt_status take_file(dti_tokenizing *z, const char *path)
{
    const unsigned char *text;
    dti_mapped file;
    dt_status st = DT_OK;

    DT_TRY(dti_mapped_open(path, &file));
    DT_CHECK_TO(done, st, file.in.bytes > 0, DT_ERR_FORMAT, "%s: is empty", file.in.label);
    DT_TRY_TO(done, st, dti_mapped_at(&file, 0, file.in.bytes, &text));
    if (is_json_lines(z->o, path))
        st = take_lines(z, file.in.label, (const char *)text, (size_t)file.in.bytes);
    else
        st = take_plain(z, file.in.label, (const char *)text, (size_t)file.in.bytes);
    if (st == DT_OK) st = dti_mapped_check(&file);
done:
    dti_mapped_close(&file);
    return st;
}

/* Files are there, and none is what will be written over. */
static dt_status look_at_files(dti_tokenizing *z, const char *const *paths, int n,
                               const char *output)
{
    struct stat info, old;
    const bool replaces = stat(output, &old) == 0;

    for (int i = 0; i < n; i++) {
        dti_input in;
        DT_CHECK(paths[i] != NULL, DT_ERR_ARG, "path %d is NULL", i);
        DT_TRY(dti_input_open(paths[i], &in));
        z->all_bytes += in.bytes;
        dti_input_close(&in);
        DT_CHECK(!replaces || stat(paths[i], &info) != 0 || info.st_ino != old.st_ino ||
                     info.st_dev != old.st_dev,
                 DT_ERR_ARG, "%s: is the text and the output as well", output);
    }
    return DT_OK;
}

static dt_status open_writer(dti_tokenizing *z, const char *output)
{
    dt_token_writer_options o = DT_TOKEN_WRITER_OPTIONS_INIT;

    o.format = z->o->format;
    o.vocab_size = dt_tokenizer_vocab_size(z->tokenizer);
    o.tokenizer = dt_tokenizer_hash(z->tokenizer);
    o.end_token = z->o->end_token;
    if (z->n_before > 0) o.begin_token = z->before[0];
    if (o.end_token < 0 && z->n_behind > 0) o.end_token = z->behind[z->n_behind - 1];
    return dt_token_writer_open(output, &o, &z->writer);
}

dt_status dt_tokenize_files(const char *const *paths, int n, dt_tokenizer *tokenizer,
                            const dt_tokenize_options *options, const char *output,
                            dt_tokenized *told)
{
    dt_tokenize_options o = DT_TOKENIZE_OPTIONS_INIT;
    dti_tokenizing z = { .o = &o, .tokenizer = tokenizer };
    dt_status st = DT_OK;

    DT_CHECK(paths != NULL && n >= 1 && tokenizer != NULL && output != NULL, DT_ERR_ARG,
             "paths, tokenizer or output is NULL, or there are %d files", n);
    DT_TRY(dti_options_read("dt_tokenize_options", "start from DT_TOKENIZE_OPTIONS_INIT", options,
                            &o, sizeof o));
    DT_CHECK(o.key != NULL && (o.separator == NULL || o.separator[0] != '\0'), DT_ERR_ARG,
             "dt_tokenize_options: no key, or an empty separator");
    z.flags = o.plain ? 0 : DT_ENCODE_PARSE_SPECIAL;
    DT_TRY(look_at_files(&z, paths, n, output));
    DT_TRY(find_template(&z));
    DT_TRY(open_writer(&z, output));
    for (int i = 0; i < n && st == DT_OK; i++) st = take_file(&z, paths[i]);
    st = dt_token_writer_close(&z.writer, st);
    if (st == DT_OK && told != NULL) *told = z.done;
    return st == DT_OK ? st : dti_error_frame(st, __func__, __FILE__, __LINE__);
}
