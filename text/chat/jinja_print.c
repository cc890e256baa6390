/* SPDX-License-Identifier: Apache-2.0
 *
 * Values to text: as Python's str() and as json.dumps(ensure_ascii=False). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat/jinja.h"

static dt_status put(dti_jrun *r, dti_text *out, const char *s, size_t n)
{
    DTI_JCHECK(r, n <= DTI_JINJA_BYTES - out->bytes, DT_ERR_UNSUPPORTED,
               "the template makes a text of more than %d MiB", DTI_JINJA_BYTES >> 20);
    return n > 0 ? dti_text_append(out, s, n) : DT_OK;
}

static dt_status put_word(dti_jrun *r, dti_text *out, const char *s)
{
    return put(r, out, s, strlen(s));
}

/* The shortest digits that give the number again, with an exponent where Python has one. */
static dt_status put_float(dti_jrun *r, dti_text *out, double f)
{
    char digits[48], text[64];
    int precision = 0, exponent;

    DTI_JCHECK(r, isfinite(f), DT_ERR_UNSUPPORTED, "printing a number that is not finite");
    do {
        (void)snprintf(digits, sizeof digits, "%.*e", precision, f);
    } while (precision++ < 17 && (strtod(digits, NULL) < f || strtod(digits, NULL) > f));
    precision--;
    exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) return put_word(r, out, digits);
    (void)snprintf(text, sizeof text, "%.*f", precision > exponent ? precision - exponent : 1, f);
    return put_word(r, out, text);
}

/* What both forms share; false: something else. */
static dt_status put_number(dti_jrun *r, dti_text *out, const dti_jvalue *v, bool *done)
{
    char text[32];

    *done = v->kind == DTI_J_INT || v->kind == DTI_J_FLOAT;
    if (v->kind == DTI_J_FLOAT) return put_float(r, out, v->f);
    if (v->kind != DTI_J_INT) return DT_OK;
    (void)snprintf(text, sizeof text, "%" PRId64, v->i);
    return put_word(r, out, text);
}

/* As repr() of a string: single quotes, unless only those are in it. */
static dt_status put_repr(dti_jrun *r, const dti_jvalue *v, dti_text *out)
{
    const bool has_single = v->n > 0 && memchr(v->s, '\'', v->n) != NULL;
    const bool has_double = v->n > 0 && memchr(v->s, '"', v->n) != NULL;
    const char quote = has_single && !has_double ? '"' : '\'';

    DTI_JCHECK(r, !v->markup, DT_ERR_UNSUPPORTED,
               "printing a list of what is |safe is not supported");
    DT_TRY(put(r, out, &quote, 1));
    for (size_t i = 0; i < v->n; i++) {
        static const char from[] = "\n\r\t\\", to[] = "nrt\\";
        const char c = v->s[i], *known = c != '\0' ? strchr(from, c) : NULL;
        char escape[8];

        DTI_JCHECK(r, (unsigned char)c < 0x80, DT_ERR_UNSUPPORTED,
                   "printing a list or dict with letters outside ASCII; |tojson is supported");
        if (known != NULL)
            (void)snprintf(escape, sizeof escape, "\\%c", to[known - from]);
        else if (c == quote)
            (void)snprintf(escape, sizeof escape, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            (void)snprintf(escape, sizeof escape, "\\x%02x", (unsigned)c);
        else
            (void)snprintf(escape, sizeof escape, "%c", c);
        DT_TRY(put_word(r, out, escape));
    }
    return put(r, out, &quote, 1);
}

/* As str() of a list or dict; what is in it as repr(). */
static dt_status put_container(dti_jrun *r, const dti_jvalue *v, dti_text *out)
{
    const bool dict = v->kind == DTI_J_DICT;
    const size_t n = dict ? v->dict->n : v->list->n;

    DT_TRY(dti_jenter(r));
    DT_TRY(put_word(r, out, dict ? "{" : "["));
    for (size_t i = 0; i < n; i++) {
        const dti_jvalue *one = dict ? &v->dict->entries[i].value : &v->list->items[i];

        if (i > 0) DT_TRY(put_word(r, out, ", "));
        if (dict) DT_TRY(put_repr(r, &v->dict->entries[i].key, out));
        if (dict) DT_TRY(put_word(r, out, ": "));
        DTI_JCHECK(r, one->kind != DTI_J_UNDEFINED, DT_ERR_UNSUPPORTED,
                   "printing a list with undefined values is not supported");
        DT_TRY(one->kind == DTI_J_STRING ? put_repr(r, one, out) : dti_jprint(r, one, out));
    }
    DT_TRY(put_word(r, out, dict ? "}" : "]"));
    r->depth--;
    return DT_OK;
}

dt_status dti_jprint(dti_jrun *r, const dti_jvalue *v, dti_text *out)
{
    bool done;

    DT_TRY(put_number(r, out, v, &done));
    if (done) return DT_OK;
    switch (v->kind) {
    case DTI_J_UNDEFINED:
        return DT_OK;
    case DTI_J_NONE:
        return put_word(r, out, "None");
    case DTI_J_BOOL:
        return put_word(r, out, v->b ? "True" : "False");
    case DTI_J_STRING:
        return put(r, out, v->s, v->n);
    case DTI_J_DICT:
        return put_container(r, v, out);
    case DTI_J_LIST:
        DTI_JCHECK(r, v->list->like == DTI_J_LIKE_LIST, DT_ERR_UNSUPPORTED,
                   "printing what is no list is not supported; |list gives one");
        return put_container(r, v, out);
    default:
        DTI_JFAIL(r, DT_ERR_UNSUPPORTED, "printing %s is not supported", dti_jkind_name(v));
    }
}

dt_status dti_jstring(dti_jrun *r, const dti_jvalue *v, dti_jvalue *out)
{
    dti_text text = { 0 };
    dt_status st;

    if (v->kind == DTI_J_STRING) {
        *out = *v;
        return DT_OK;
    }
    st = dti_jprint(r, v, &text);
    if (st == DT_OK) st = dti_jcopy(r, text.bytes ? text.data : "", text.bytes, out);
    dti_text_free(&text);
    return st;
}

/* --- JSON ------------------------------------------------------------------------------------- */

static dt_status put_quoted(dti_jrun *r, dti_text *out, const dti_jvalue *v)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";

    DT_TRY(put(r, out, "\"", 1));
    for (size_t i = 0; i < v->n; i++) {
        const char c = v->s[i];
        const char *known = c != '\0' ? strchr(from, c) : NULL;
        char escape[8];

        if (known != NULL) {
            escape[0] = '\\';
            escape[1] = to[known - from];
            DT_TRY(put(r, out, escape, 2));
        } else if ((unsigned char)c < 0x20) {
            (void)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
            DT_TRY(put(r, out, escape, 6));
        } else {
            DT_TRY(put(r, out, &c, 1));
        }
    }
    return put(r, out, "\"", 1);
}

static dt_status put_break(dti_jrun *r, dti_text *out, int indent, int level)
{
    if (indent < 0) return DT_OK;
    DT_TRY(put(r, out, "\n", 1));
    for (int i = 0; i < indent * level; i++) DT_TRY(put(r, out, " ", 1));
    return DT_OK;
}

static dt_status put_json(dti_jrun *r, dti_text *out, const dti_jvalue *v, int indent, int level);

static dt_status put_members(dti_jrun *r, dti_text *out, const dti_jvalue *v, int indent, int level)
{
    const bool dict = v->kind == DTI_J_DICT;
    const size_t n = dict ? v->dict->n : v->list->n;

    DT_TRY(put(r, out, dict ? "{" : "[", 1));
    for (size_t i = 0; i < n; i++) {
        if (i > 0) DT_TRY(put_word(r, out, indent < 0 ? ", " : ","));
        DT_TRY(put_break(r, out, indent, level + 1));
        if (dict) {
            DT_TRY(put_quoted(r, out, &v->dict->entries[i].key));
            DT_TRY(put(r, out, ": ", 2));
        }
        DT_TRY(put_json(r, out, dict ? &v->dict->entries[i].value : &v->list->items[i], indent,
                        level + 1));
    }
    if (n > 0) DT_TRY(put_break(r, out, indent, level));
    return put(r, out, dict ? "}" : "]", 1);
}

static dt_status put_json(dti_jrun *r, dti_text *out, const dti_jvalue *v, int indent, int level)
{
    bool done;

    DT_TRY(put_number(r, out, v, &done));
    if (done) return DT_OK;
    switch (v->kind) {
    case DTI_J_NONE:
        return put_word(r, out, "null");
    case DTI_J_BOOL:
        return put_word(r, out, v->b ? "true" : "false");
    case DTI_J_STRING:
        return put_quoted(r, out, v);
    case DTI_J_LIST:
        DTI_JCHECK(r, v->list->like == DTI_J_LIKE_LIST, DT_ERR_UNSUPPORTED,
                   "tojson of what is no list is not supported; |list gives one");
        /* fall through */
    case DTI_J_DICT:
        DT_TRY(dti_jenter(r));
        DT_TRY(put_members(r, out, v, indent, level));
        r->depth--;
        return DT_OK;
    default:
        DTI_JFAIL(r, DT_ERR_FORMAT, "tojson: %s has no form in JSON", dti_jkind_name(v));
    }
}

dt_status dti_jto_json(dti_jrun *r, const dti_jvalue *v, int indent, dti_text *out)
{
    return put_json(r, out, v, indent, 0);
}
