/* SPDX-License-Identifier: Apache-2.0
 *
 * From source to tokens, with the white space that Jinja takes away: a dash at a tag takes all of
 * it, trim_blocks the newline behind a block or a comment, lstrip_blocks the blanks that stand
 * alone before one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat/jinja.h"

typedef struct lexer {
    dti_jinja *t;
    const char *s;
    size_t n, at;
    size_t room; /* of tokens */
    int line;
    bool line_starts; /* what was read last ended a line */
    bool strips;      /* the last tag asked for the white space behind it */
} lexer;

static dt_status add(lexer *x, dti_jtok_kind kind, const char *s, size_t n, dti_jtok **out)
{
    dti_jtok *tok;

    if (x->t->n_tokens == x->room) {
        const size_t room = x->room ? 2 * x->room : 64;
        dti_jtok *more;

        DT_TRY(dti_arena_alloc(&x->t->arena, room * sizeof *more, (void **)&more));
        if (x->t->n_tokens > 0) memcpy(more, x->t->tokens, x->t->n_tokens * sizeof *more);
        x->t->tokens = more;
        x->room = room;
    }
    tok = &x->t->tokens[x->t->n_tokens++];
    *tok = (dti_jtok){ .kind = kind, .line = x->line, .s = s, .n = n };
    if (out != NULL) *out = tok;
    return DT_OK;
}

static void advance(lexer *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x->line += x->s[x->at + i] == '\n';
    x->at += n;
}

static bool at(const lexer *x, const char *text)
{
    const size_t n = strlen(text);

    return x->n - x->at >= n && memcmp(x->s + x->at, text, n) == 0;
}

static size_t spaces(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n && dti_jis_space(dti_utf8_at(s + i))) i += dti_utf8_length(s[i]);
    return i;
}

/* The length of a text without the white space at its end. */
static size_t right_stripped(const char *s, size_t n)
{
    size_t begin;

    while (n > 0 && dti_jis_space(dti_utf8_before(s, n, &begin))) n = begin;
    return n;
}

/* --- inside tags ------------------------------------------------------------------------------ */

static dt_status escape(lexer *x, const char *s, size_t n, size_t *i, dti_text *out)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char c = s[*i + 1];
    const char *known = memchr(from, c, sizeof from - 1);
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;

    if (c == '\n') { /* a line goes on */
        *i += 2;
        return DT_OK;
    }
    if (known != NULL) {
        *i += 2;
        return dti_text_append(out, &to[known - from], 1);
    }
    if (digits > 0) {
        char hex[9] = "";
        char *end;
        unsigned long code;

        memcpy(hex, s + *i + 2, n - *i - 2 < digits ? n - *i - 2 : digits);
        code = strtoul(hex, &end, 16);
        if (strspn(hex, "0123456789abcdefABCDEF") != digits || code > 0x10ffff ||
            (code >= 0xd800 && code < 0xe000) || code == 0)
            return dti_jrefuse(x->t, x->line, DT_ERR_FORMAT,
                               "the escape \\%c%.8s in a string is no character", c, hex);
        *i += 2 + digits;
        return dti_text_append_char(out, (uint32_t)code);
    }
    if ((c >= '0' && c <= '7') || c == 'N')
        return dti_jrefuse(x->t, x->line, DT_ERR_UNSUPPORTED,
                           "the escape \\%c in a string is not supported", c);
    *i += 1; /* the backslash stays */
    return dti_text_append(out, "\\", 1);
}

static dt_status unescape(lexer *x, const char *s, size_t n, dti_text *out)
{
    for (size_t i = 0; i < n;) {
        if (s[i] == '\\') {
            DT_TRY(escape(x, s, n, &i, out));
        } else {
            DT_TRY(dti_text_append(out, &s[i], 1));
            i++;
        }
    }
    return DT_OK;
}

static dt_status lex_string(lexer *x)
{
    const char *s = x->s + x->at + 1;
    const size_t most = x->n - x->at - 1;
    dti_text text = { 0 };
    char *copy;
    size_t n = 0;
    dt_status st;

    while (n < most && s[n] != s[-1]) n += s[n] == '\\' ? 2 : 1;
    if (n >= most) return dti_jrefuse(x->t, x->line, DT_ERR_FORMAT, "a string does not end");
    DT_TRY_TO(done, st, unescape(x, s, n, &text));
    DT_TRY_TO(done, st,
              dti_arena_strndup(&x->t->arena, text.bytes ? text.data : "", text.bytes, &copy));
    DT_TRY_TO(done, st, add(x, DTI_T_STRING, copy, text.bytes, NULL));
    advance(x, n + 2);
done:
    dti_text_free(&text);
    return st;
}

static dt_status lex_number(lexer *x)
{
    const char *s = x->s + x->at;
    const size_t most = x->n - x->at;
    size_t n = 0, exponent;
    char digits[32] = "";
    bool real = false;
    dti_jtok *tok;

    while (n < most && s[n] >= '0' && s[n] <= '9') n++;
    if (n + 1 < most && s[n] == '.' && s[n + 1] >= '0' && s[n + 1] <= '9') {
        real = true;
        for (n++; n < most && s[n] >= '0' && s[n] <= '9';) n++;
    }
    exponent = n + 1 < most && (s[n] == 'e' || s[n] == 'E')
                   ? 1 + (size_t)(n + 2 < most && (s[n + 1] == '-' || s[n + 1] == '+'))
                   : 0;
    if (exponent > 0 && n + exponent < most && s[n + exponent] >= '0' && s[n + exponent] <= '9') {
        real = true;
        for (n += exponent; n < most && s[n] >= '0' && s[n] <= '9';) n++;
    }
    if (n >= sizeof digits || (n > 1 && s[0] == '0' && !real) ||
        (n < most && (s[n] == '_' || (s[n] >= 'a' && s[n] <= 'z') || (s[n] >= 'A' && s[n] <= 'Z'))))
        return dti_jrefuse(x->t, x->line, DT_ERR_UNSUPPORTED,
                           "the number %.*s is written in a way that is not supported",
                           (int)(n + 1 < 30 ? n + (n < most) : 30), s);
    memcpy(digits, s, n);
    DT_TRY(add(x, real ? DTI_T_FLOAT : DTI_T_INT, s, n, &tok));
    errno = 0;
    if (real)
        tok->f = strtod(digits, NULL);
    else
        tok->i = strtoll(digits, NULL, 10);
    if (errno != 0)
        return dti_jrefuse(x->t, x->line, DT_ERR_UNSUPPORTED, "the number %s is too large", digits);
    advance(x, n);
    return DT_OK;
}

static bool in_name(char c, bool first)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (!first && c >= '0' && c <= '9');
}

static dt_status lex_word(lexer *x)
{
    static const char *const operators[] = { "**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                             "/",  "%",  "~",  "|",  ".",  ",",  ":", "(", ")",
                                             "[",  "]",  "{",  "}",  "<",  ">",  "=" };
    const char *s = x->s + x->at;
    size_t n = 0;

    if (s[0] == '"' || s[0] == '\'') return lex_string(x);
    if (s[0] >= '0' && s[0] <= '9') return lex_number(x);
    while (n < x->n - x->at && in_name(s[n], n == 0)) n++;
    if (n > 0) {
        DT_TRY(add(x, DTI_T_NAME, s, n, NULL));
        advance(x, n);
        return DT_OK;
    }
    for (size_t i = 0; i < DT_COUNT(operators); i++) {
        if (!at(x, operators[i])) continue;
        n = strlen(operators[i]);
        DT_TRY(add(x, DTI_T_OPERATOR, s, n, NULL));
        advance(x, n);
        return DT_OK;
    }
    return dti_jrefuse(x->t, x->line, DT_ERR_FORMAT,
                       "the character \"%.*s\" may not stand in a tag", (int)dti_utf8_length(s[0]),
                       s);
}

/* The end of a tag: "-%}" takes the white space behind it, "%}" one newline, "+%}" nothing. Braces
 * that are open inside an output belong to it. */
static bool tag_ends(lexer *x, bool output, int braces, size_t *n, bool *dash)
{
    const char *end = output ? "}}" : "%}";
    const size_t sign = x->s[x->at] == '-' || (x->s[x->at] == '+' && !output);

    *dash = sign && x->s[x->at] == '-';
    *n = sign + 2;
    if (braces > 0 || x->n - x->at < *n) return false;
    return memcmp(x->s + x->at + sign, end, 2) == 0;
}

static dt_status lex_tag(lexer *x, bool output)
{
    int braces = 0;

    for (;;) {
        size_t n = spaces(x->s + x->at, x->n - x->at);
        bool dash, plus;

        advance(x, n);
        if (x->at >= x->n) return dti_jrefuse(x->t, x->line, DT_ERR_FORMAT, "a tag does not end");
        plus = x->s[x->at] == '+';
        if (!tag_ends(x, output, braces, &n, &dash)) {
            const char c = x->s[x->at];

            braces += c == '{' || c == '[' || c == '(' ? 1 : 0;
            braces -= (c == '}' || c == ']' || c == ')') && braces > 0 ? 1 : 0;
            DT_TRY(lex_word(x));
            continue;
        }
        DT_TRY(add(x, output ? DTI_T_CLOSE_OUTPUT : DTI_T_CLOSE_TAG, x->s + x->at, n, NULL));
        advance(x, n);
        n = dash ? spaces(x->s + x->at, x->n - x->at) : !output && !plus && at(x, "\n");
        x->line_starts = n > 0 && x->s[x->at + n - 1] == '\n';
        advance(x, n);
        return DT_OK;
    }
}

/* --- outside ---------------------------------------------------------------------------------- */

static dt_status skip_comment(lexer *x)
{
    const size_t begin = x->at;
    size_t n;
    char before;

    while (x->at < x->n && !at(x, "#}")) advance(x, 1);
    if (x->at >= x->n) return dti_jrefuse(x->t, x->line, DT_ERR_FORMAT, "a comment does not end");
    before = x->at > begin ? x->s[x->at - 1] : ' ';
    advance(x, 2);
    n = before == '-' ? spaces(x->s + x->at, x->n - x->at) : before != '+' && at(x, "\n");
    x->line_starts = n > 0 && x->s[x->at + n - 1] == '\n';
    advance(x, n);
    return DT_OK;
}

/* The text before a tag, as the tag leaves it. */
static size_t stripped(const lexer *x, const char *text, size_t n, char sign, bool output)
{
    size_t line = n;

    if (sign == '-') return right_stripped(text, n);
    if (sign == '+' || output) return n;
    while (line > 0 && text[line - 1] != '\n') line--;
    if ((line > 0 || x->line_starts) && line < n && spaces(text + line, n - line) == n - line)
        return line;
    return n;
}

/* The length of "word -%}" and the white space that it takes, or 0 if something else stands at s;
 * of `end`, "{% endraw %}", that is a plus sign and trim_blocks too. */
static size_t raw_tag(const char *s, size_t n, const char *word, bool end)
{
    const size_t word_n = strlen(word);
    size_t at = spaces(s, n);
    bool dash;

    if (n - at < word_n || memcmp(s + at, word, word_n) != 0) return 0;
    at += word_n;
    at += spaces(s + at, n - at);
    dash = at < n && s[at] == '-';
    if (dash || (end && at < n && s[at] == '+')) at++;
    if (n - at < 2 || memcmp(s + at, "%}", 2) != 0) return 0;
    if (dash) return at + 2 + spaces(s + at + 2, n - at - 2);
    return at + 2 + (end && s[at - 1] != '+' && n - at > 2 && s[at + 2] == '\n');
}

/* Behind "{% raw %}": everything up to "{% endraw %}" is text. */
static dt_status lex_raw(lexer *x)
{
    const char *text = x->s + x->at;
    const size_t most = x->n - x->at;

    for (size_t n = 0; n + 2 <= most; n++) {
        size_t sign, tag, keep;

        if (text[n] != '{' || text[n + 1] != '%') continue;
        sign = n + 2 < most && (text[n + 2] == '-' || text[n + 2] == '+');
        tag = raw_tag(text + n + 2 + sign, most - n - 2 - sign, "endraw", true);
        if (tag == 0) continue;
        keep = stripped(x, text, n, sign ? text[n + 2] : '\0', false);
        if (keep > 0) DT_TRY(add(x, DTI_T_TEXT, text, keep, NULL));
        n += 2 + sign + tag;
        x->line_starts = text[n - 1] == '\n';
        advance(x, n);
        return DT_OK;
    }
    return dti_jrefuse(x->t, x->line, DT_ERR_FORMAT, "{%% endraw %%} is missing");
}

static dt_status lex_text(lexer *x)
{
    const char *text = x->s + x->at;
    size_t n = 0, keep;
    char kind, sign;

    while (x->at + n < x->n && !(text[n] == '{' && x->at + n + 1 < x->n &&
                                 strchr("{%#", text[n + 1]) != NULL && text[n + 1] != '\0'))
        n++;
    if (x->at + n >= x->n) {
        if (n > 0) DT_TRY(add(x, DTI_T_TEXT, text, n, NULL));
        advance(x, n);
        return DT_OK;
    }
    kind = text[n + 1];
    sign = x->at + n + 2 < x->n ? text[n + 2] : '\0';
    keep = stripped(x, text, n, sign, kind == '{');
    if (keep > 0) DT_TRY(add(x, DTI_T_TEXT, text, keep, NULL));
    advance(x, n + 2);
    if (sign == '-' || sign == '+') advance(x, 1);
    x->line_starts = false;
    if (kind == '#') return skip_comment(x);
    if (kind == '%' && raw_tag(x->s + x->at, x->n - x->at, "raw", false) > 0) {
        n = raw_tag(x->s + x->at, x->n - x->at, "raw", false);
        x->line_starts = x->s[x->at + n - 1] == '\n';
        advance(x, n);
        return lex_raw(x);
    }
    DT_TRY(add(x, kind == '{' ? DTI_T_OPEN_OUTPUT : DTI_T_OPEN_TAG, text + n, 2, NULL));
    return lex_tag(x, kind == '{');
}

/* All newlines become \n, and the last one goes. */
static dt_status normalise(dti_jinja *t, const char *source, size_t n, char **out, size_t *n_out)
{
    size_t w = 0;

    DT_TRY(dti_arena_alloc(&t->arena, n + 1, (void **)out));
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        (*out)[w++] = (char)(source[i] == '\r' ? '\n' : source[i]);
    }
    if (w > 0 && (*out)[w - 1] == '\n') w--;
    *n_out = w;
    return DT_OK;
}

dt_status dti_jlex(dti_jinja *t, const char *source, size_t n)
{
    lexer x = { .t = t, .line = 1, .line_starts = true };
    char *text;

    DT_CHECK(n <= DTI_JINJA_SOURCE_BYTES, DT_ERR_UNSUPPORTED,
             "%s: the template has %zu bytes, at most %d are read", t->file, n,
             DTI_JINJA_SOURCE_BYTES);
    DT_CHECK(dti_utf8_valid(source, n) == n, DT_ERR_FORMAT, "%s: byte %zu is not UTF-8", t->file,
             dti_utf8_valid(source, n));
    DT_TRY(normalise(t, source, n, &text, &x.n));
    x.s = text;
    while (x.at < x.n) DT_TRY(lex_text(&x));
    return add(&x, DTI_T_END, "", 0, NULL);
}
