/* SPDX-License-Identifier: Apache-2.0
 *
 * From Oniguruma's syntax (Ruby, which the reference library runs) to PCRE2's. Most of a pattern
 * means the same in both. What does not is rewritten: \s, \w, \d, \h, \b, \v, (?m), {,n},
 * categories \p{..} of which the engines know different Unicode versions, and scripts. What cannot
 * be rewritten is refused: nested classes and && in them, [[:posix:]] classes, an option in the
 * middle of an alternative, {n}? and {n}+, \xHH above 7F and the rarer escapes. */
#include <string.h>

#include "text/tokenizer/regex.h"
#include "text/tokenizer/unicode.h"

/* Unicode version of the reference's regular expressions. */
enum { REGEX_UNICODE = 16 };

typedef struct translation {
    const char *pattern;
    const char *at;
    dti_text *out;
    bool in_class;
} translation;

static dt_status refuse(const translation *t, const char *what)
{
    DT_FAIL(DT_ERR_UNSUPPORTED, "regular expression \"%.200s\": %s at offset %zu is not supported",
            t->pattern, what, (size_t)(t->at - t->pattern));
}

static dt_status put(translation *t, const char *s)
{
    return dti_text_append(t->out, s, strlen(s));
}

/* Copies n bytes of the pattern. */
static dt_status copy(translation *t, size_t n)
{
    DT_TRY(dti_text_append(t->out, t->at, n));
    t->at += n;
    return DT_OK;
}

/* Characters that PCRE2's tables do not have in the category yet, as ranges of a class. */
static dt_status put_newer(translation *t, const char *category)
{
    const size_t n = strlen(category);

    for (size_t i = 0; i < dti_n_category_rows; i++) {
        const dti_category_row *row = &dti_category_rows[i];

        if (row->since <= REGEX_UNICODE && strncmp(row->category, category, n) == 0)
            DT_TRY(dti_text_printf(t->out, "\\x{%x}-\\x{%x}", row->first, row->last));
    }
    return DT_OK;
}

/* The inside of a class for a general category. One character too many stays in Mn: U+1171E, which
 * has moved to Mc. */
static dt_status put_category(translation *t, const char *category)
{
    DT_TRY(dti_text_printf(t->out, "\\p{%s}", category));
    return put_newer(t, category);
}

/* \w of Oniguruma: alphabetic, marks, decimal digits and connectors, and by its table of Latin-1
 * the six small digits and fractions there. */
static dt_status put_word(translation *t)
{
    DT_TRY(put(t, "\\p{Alphabetic}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"));
    DT_TRY(put_category(t, "M"));
    DT_TRY(put_category(t, "Nd"));
    DT_TRY(put_category(t, "Pc"));
    return put_newer(t, "L");
}

static dt_status put_word_class(translation *t, const char *open)
{
    DT_TRY(put(t, open));
    DT_TRY(put_word(t));
    return put(t, "])");
}

/* \b, or \B: between a word character and none, or not. */
static dt_status put_boundary(translation *t, bool at_boundary)
{
    DT_TRY(put_word_class(t, "(?:(?<=["));
    DT_TRY(put_word_class(t, at_boundary ? "(?![" : "(?=["));
    DT_TRY(put_word_class(t, "|(?<!["));
    DT_TRY(put_word_class(t, at_boundary ? "(?=[" : "(?!["));
    return put(t, ")");
}

/* A category inside or outside of a class, or its complement. */
static dt_status put_property(translation *t, const char *category, bool negative)
{
    /* A complement inside a class cannot take single characters out again: there the newest ones
     * stay in it. */
    if (t->in_class && negative) return dti_text_printf(t->out, "\\P{%s}", category);
    if (t->in_class) return put_category(t, category);
    DT_TRY(put(t, negative ? "[^" : "["));
    DT_TRY(put_category(t, category));
    return put(t, "]");
}

/* Han as a script; its newest characters are two blocks of extensions and one of Unicode 15. */
static dt_status put_script(translation *t, const char *name, bool negative)
{
    if (strcmp(name, "Han") != 0 || (t->in_class && negative))
        return dti_text_printf(t->out, "\\%c{sc:%s}", negative ? 'P' : 'p', name);
    if (!t->in_class) DT_TRY(put(t, negative ? "[^" : "["));
    DT_TRY(put(t, "\\p{sc:Han}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"));
    return t->in_class ? DT_OK : put(t, "]");
}

/* \p{Lu}, \p{^L}, \P{Greek}: at the letter p. */
static dt_status translate_property(translation *t)
{
    bool negative = *t->at == 'P';
    const char *name = t->at + 2, *end;
    char text[32];

    if (t->at[1] != '{' || (end = strchr(t->at, '}')) == NULL) return refuse(t, "\\p without {}");
    if (*name == '^') {
        negative = !negative;
        name++;
    }
    if (name == end || (size_t)(end - name) >= sizeof text) return refuse(t, "this \\p{}");
    memcpy(text, name, (size_t)(end - name));
    text[end - name] = '\0';
    t->at = end + 1;
    if (strcmp(text, "L&") == 0 || strcmp(text, "Any") == 0 || strcmp(text, "Alphabetic") == 0 ||
        strcmp(text, "White_Space") == 0)
        return dti_text_printf(t->out, "\\%c{%s}", negative ? 'P' : 'p', text);
    return strlen(text) <= 2 ? put_property(t, text, negative) : put_script(t, text, negative);
}

/* \xHH, \x{H..} and \uHHHH: at the letter. */
static dt_status translate_code(translation *t)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    const bool u = *t->at == 'u';
    const size_t n = strspn(t->at + 1, digits);

    if (!u && t->at[1] == '{') { /* the same in both */
        const size_t inside = strspn(t->at + 2, digits);

        if (inside == 0 || t->at[2 + inside] != '}') return refuse(t, "this escape");
        DT_TRY(put(t, "\\"));
        return copy(t, inside + 3);
    }
    if (n < (u ? 4u : 1u)) return refuse(t, "this escape");
    if (!u && n >= 2 && t->at[1] >= '8') return refuse(t, "\\xHH of a byte that is no character");
    DT_TRY(dti_text_printf(t->out, "\\x{%.*s}", u ? 4 : n < 2 ? 1 : 2, t->at + 1));
    t->at += 1 + (u ? 4 : n < 2 ? 1 : 2);
    return DT_OK;
}

/* Escapes that are the same text in both engines, or another one in PCRE2. `inside`: what to write
 * in a class, NULL if the escape does not belong there. */
static const struct escape {
    char letter;
    const char *outside, *inside;
} escapes[] = {
    { 's', "\\p{White_Space}", "\\p{White_Space}" }, /* PCRE2's \s also takes U+180E */
    { 'S', "\\P{White_Space}", "\\P{White_Space}" },
    { 'h', "[0-9a-fA-F]", "0-9a-fA-F" }, /* a hexadecimal digit, for PCRE2 a space */
    { 'H', "[^0-9a-fA-F]", NULL },
    { 'v', "\\x0b", "\\x0b" }, /* one character, for PCRE2 any vertical space */
    { 'n', "\\n", "\\n" },
    { 'r', "\\r", "\\r" },
    { 't', "\\t", "\\t" },
    { 'f', "\\f", "\\f" },
    { 'a', "\\a", "\\a" },
    { 'e', "\\e", "\\e" },
    { 'A', "\\A", NULL },
    { 'z', "\\z", NULL },
    { 'Z', "\\Z", NULL },
    { 'R', "\\R", NULL },
    { 'X', "\\X", NULL },
    { 'K', "\\K", NULL },
};

/* At the backslash. */
static dt_status translate_escape(translation *t)
{
    const char c = t->at[1];

    if (c == '\0') return refuse(t, "a backslash at the end");
    if ((unsigned char)c >= 0x80) { /* an escaped character beyond ASCII is itself */
        t->at++;
        return copy(t, dti_utf8_length(c));
    }
    if ((c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')) return copy(t, 2);
    t->at++;
    if (c == 'p' || c == 'P') return translate_property(t);
    if (c == 'x' || c == 'u') return translate_code(t);
    if (c >= '1' && c <= '9' && !t->in_class) { /* a group again */
        DT_TRY(put(t, "\\"));
        return copy(t, 1);
    }
    t->at++;
    if (c == 'd' || c == 'D') return put_property(t, "Nd", c == 'D');
    if (c == 'b' && t->in_class) return put(t, "\\x08");
    if ((c == 'b' || c == 'B') && !t->in_class) return put_boundary(t, c == 'b');
    if (c == 'w' && t->in_class) return put_word(t);
    if ((c == 'w' || c == 'W') && !t->in_class) {
        DT_TRY(put(t, c == 'w' ? "[" : "[^"));
        DT_TRY(put_word(t));
        return put(t, "]");
    }
    for (size_t i = 0; i < DT_COUNT(escapes); i++) {
        const char *text = t->in_class ? escapes[i].inside : escapes[i].outside;

        if (escapes[i].letter == c && text != NULL) return put(t, text);
    }
    return refuse(t, "this escape");
}

/* At the bracket that opens a class. */
static dt_status translate_class(translation *t)
{
    DT_TRY(copy(t, 1));
    if (*t->at == '^') DT_TRY(copy(t, 1));
    if (*t->at == ']') return refuse(t, "a class that begins with ]");
    t->in_class = true;
    while (*t->at != ']') {
        if (*t->at == '\0') return refuse(t, "a class without its ]");
        if (*t->at == '[') return refuse(t, "a class in a class");
        if (t->at[0] == '&' && t->at[1] == '&') return refuse(t, "&& in a class");
        DT_TRY(*t->at == '\\' ? translate_escape(t) : copy(t, 1));
    }
    t->in_class = false;
    return copy(t, 1);
}

/* At "(?": groups are alike, of the options m is what PCRE2 calls s. */
static dt_status translate_group(translation *t)
{
    const bool first = t->at == t->pattern;
    const size_t n = strspn(t->at + 2, "imx-");
    const char end = t->at[2 + n];

    if (n == 0 && (end == ':' || end == '=' || end == '!' || end == '>' || end == '<'))
        return copy(t, 2);
    if (n == 0 || (end != ':' && end != ')')) return refuse(t, "this kind of group");
    if (end == ')' && !first) return refuse(t, "an option that is not in front");
    DT_TRY(copy(t, 2));
    for (size_t i = 0; i < n; i++, t->at++)
        DT_TRY(dti_text_append(t->out, *t->at == 'm' ? "s" : t->at, 1));
    return copy(t, 1);
}

/* At an opening brace: a count, or just a brace. */
static dt_status translate_brace(translation *t)
{
    const char *end = t->at + 1 + strspn(t->at + 1, "0123456789,");
    const bool none = t->at[1] == '}' || (t->at[1] == ',' && t->at[2] == '}');

    if (*end != '}' || none) {
        DT_TRY(put(t, "\\"));
        return copy(t, 1);
    }
    if (end[1] == '+') return refuse(t, "a count followed by +");
    if (end[1] == '?' && memchr(t->at, ',', (size_t)(end - t->at)) == NULL)
        return refuse(t, "a count followed by ?");
    if (t->at[1] == ',') {
        DT_TRY(put(t, "{0"));
        t->at++;
    }
    return copy(t, (size_t)(end + 1 - t->at));
}

dt_status dti_regex_translate(const char *pattern, dti_text *out)
{
    translation t = { .pattern = pattern, .at = pattern, .out = out };

    while (*t.at != '\0') {
        if (*t.at == '\\')
            DT_TRY(translate_escape(&t));
        else if (*t.at == '[')
            DT_TRY(translate_class(&t));
        else if (t.at[0] == '(' && t.at[1] == '?')
            DT_TRY(translate_group(&t));
        else if (*t.at == '{')
            DT_TRY(translate_brace(&t));
        else if (t.at[0] == '(' && t.at[1] == '*')
            return refuse(&t, "(*");
        else
            DT_TRY(copy(&t, 1));
    }
    return DT_OK;
}
