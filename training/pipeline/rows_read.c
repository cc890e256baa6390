/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows from text, in the grammar of PyTorch's files:
 *
 *   table   line for each rank, "\n" or "\r\n" behind it
 *   line    cell ("," cell)*
 *   cell    nothing | one | "(" one ";" one ")OVERLAP_F_B", with blanks or quotes around it
 *   one     stage word [microbatch] */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "files/input.h"
#include "training/pipeline/rows.h"

enum { MAX_FILE_BYTES = 1 << 28, MAX_DIGITS = 8, PASSED = -1 };

/* Words between the numbers of a cell. What is no action is passed over. */
static const struct word {
    const char *text;
    int kind;      /* or PASSED */
    bool numbered; /* a microbatch has to follow */
} words[] = {
    { "F", DT_ACTION_F, true },       { "B", DT_ACTION_B, true },
    { "I", DT_ACTION_I, true },       { "W", DT_ACTION_W, true },
    { "SEND_F", PASSED, true },       { "RECV_F", PASSED, true },
    { "SEND_B", PASSED, true },       { "RECV_B", PASSED, true },
    { "WAIT_SEND_F", PASSED, true },  { "WAIT_SEND_B", PASSED, true },
    { "UNSHARD", PASSED, false },     { "RESHARD", PASSED, false },
    { "REDUCE_GRAD", PASSED, false }, { "WAIT_REDUCE_GRAD", PASSED, false },
};

static const char overlap_word[] = ")OVERLAP_F_B";

/* Bytes from `at` to `end`. */
typedef struct span {
    const char *at, *end;
} span;

static span trimmed(span s)
{
    while (s.at < s.end && isspace((unsigned char)*s.at)) s.at++;
    while (s.at < s.end && isspace((unsigned char)s.end[-1])) s.end--;
    return s;
}

/* The part of *rest before the first `mark` or the end; *rest goes on behind the mark. */
static span cut(span *rest, char mark)
{
    const char *found =
        rest->at < rest->end ? memchr(rest->at, mark, (size_t)(rest->end - rest->at)) : NULL;
    const span part = { rest->at, found != NULL ? found : rest->end };

    rest->at = found != NULL ? found + 1 : rest->end;
    return part;
}

/* A number of at most MAX_DIGITS digits; -1: there is none. */
static int number(span *s)
{
    int value = 0, digits = 0;

    for (; s->at < s->end && isdigit((unsigned char)*s->at); s->at++, digits++)
        if (digits < MAX_DIGITS) value = value * 10 + (*s->at - '0');
    return digits > 0 && digits <= MAX_DIGITS ? value : -1;
}

/* "2F0". *kind is PASSED of what is no action. */
static bool read_one(span s, dt_action *out, int *kind)
{
    const struct word *word = NULL;
    size_t n = 0;

    s = trimmed(s);
    out->stage = number(&s);
    while (s.at + n < s.end && (isupper((unsigned char)s.at[n]) || s.at[n] == '_')) n++;
    for (size_t i = 0; i < DT_COUNT(words); i++)
        if (strlen(words[i].text) == n && memcmp(words[i].text, s.at, n) == 0) word = &words[i];
    if (out->stage < 0 || word == NULL) return false;
    s.at += n;
    out->microbatch = s.at < s.end || word->numbered ? number(&s) : 0;
    out->kind = word->kind != PASSED ? (dt_action_kind)word->kind : DT_ACTION_F;
    *kind = word->kind;
    return out->microbatch >= 0 && s.at == s.end;
}

/* Two that run together: one F, the other B or I. The F becomes the first. */
static bool read_pair(span s, dt_action pair[2])
{
    const size_t tail = sizeof overlap_word - 1;
    dt_action a = { 0 }, b = { 0 };
    int kind[2];
    span first;

    if ((size_t)(s.end - s.at) < tail + 1 || memcmp(s.end - tail, overlap_word, tail) != 0)
        return false;
    s = (span){ s.at + 1, s.end - tail };
    first = cut(&s, ';');
    if (!read_one(first, &a, &kind[0]) || !read_one(s, &b, &kind[1]) || kind[0] == PASSED ||
        kind[1] == PASSED)
        return false;
    pair[0] = a.kind == DT_ACTION_F ? a : b;
    pair[1] = a.kind == DT_ACTION_F ? b : a;
    pair[0].overlapped = true;
    return pair[0].kind == DT_ACTION_F && dti_is_backward(pair[1].kind);
}

static dt_status read_cell(dti_rows *to, span cell, int column)
{
    dt_action pair[2] = { { 0 }, { 0 } };
    char shown[DTI_SHOWN_BYTES], raw[DTI_SHOWN_BYTES];
    const span s = trimmed(cell);
    const size_t length = (size_t)(s.end - s.at);
    int kind = PASSED;

    if (length == 0) return DT_OK;
    if (*s.at == '(' ? read_pair(s, pair) : read_one(s, &pair[0], &kind)) {
        if (*s.at == '(' || kind != PASSED) dti_rows_add(to, pair[0], column);
        if (*s.at == '(') dti_rows_add(to, pair[1], column);
        return to->st;
    }
    (void)snprintf(raw, sizeof raw, "%.*s", (int)(length < sizeof raw ? length : sizeof raw), s.at);
    DT_FAIL(DT_ERR_FORMAT,
            "%s: rank %d, column %d: \"%s\" is no action; those are as 2F0 (stage, F B I or W, "
            "microbatch), two together as (0F7;7B3)OVERLAP_F_B, an F and a B or I",
            to->s->name, to->s->n_ranks - 1, column, dti_printable(raw, shown, sizeof shown));
}

static dt_status read_lines(dti_rows *to, span text)
{
    static const char mark[] = "\xef\xbb\xbf"; /* that spreadsheets put before UTF-8 */

    if (text.end - text.at >= 3 && memcmp(text.at, mark, 3) == 0) text.at += 3;
    while (text.at < text.end && isspace((unsigned char)text.end[-1])) text.end--;
    while (text.at < text.end) {
        span line = cut(&text, '\n');
        dti_rows_next(to);
        DT_TRY(to->st);
        for (int column = 0; line.at < line.end; column++) {
            span cell = trimmed(cut(&line, ','));
            if (cell.end - cell.at >= 2 && *cell.at == '"' && cell.end[-1] == '"')
                cell = (span){ cell.at + 1, cell.end - 1 };
            DT_TRY(read_cell(to, cell, column));
            DT_CHECK(to->s->n <= DTI_PIPELINE_MAX_ACTIONS, DT_ERR_FORMAT,
                     "%s: more than %d actions", to->s->name, DTI_PIPELINE_MAX_ACTIONS);
        }
    }
    return DT_OK;
}

dt_status dt_pipeline_schedule_parse(const char *name, const char *text, size_t n,
                                     dt_pipeline_schedule **out)
{
    dti_rows to;

    DT_CHECK(out != NULL && name != NULL && (text != NULL || n == 0), DT_ERR_ARG,
             "name, text or out is NULL");
    *out = NULL;
    to = dti_rows_begin(name);
    if (to.st == DT_OK && n > 0) to.st = read_lines(&to, (span){ text, text + n });
    DT_TRY(dti_rows_end(&to, out));
    return DT_OK;
}

dt_status dt_pipeline_schedule_read(const char *path, dt_pipeline_schedule **out)
{
    dt_status st;
    void *bytes;
    int64_t n;

    DT_CHECK(out != NULL && path != NULL, DT_ERR_ARG, "path or out is NULL");
    *out = NULL;
    DT_TRY(dti_input_read_all(path, MAX_FILE_BYTES, &bytes, &n));
    st = dt_pipeline_schedule_parse(path, bytes, (size_t)n, out);
    dti_free(bytes);
    return st;
}
