/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of strings and dicts that templates call, and the functions that Transformers gives them.
 * Upper and lower case are those of ASCII; other letters are refused, not left as they are. */
#include <string.h>
#include <time.h>

#include "text/chat/jinja.h"

dt_status dti_jbind(dti_jrun *r, const char *what, const dti_jargs *args,
                    const char *const params[4], dti_jbound *out)
{
    *out = (dti_jbound){ { NULL } };
    for (int i = 0; i < args->n; i++) {
        int p = args->keyword[i] == NULL ? i : 0;

        if (args->keyword[i] != NULL)
            while (p < 4 && params[p] != NULL && strcmp(params[p], args->keyword[i]) != 0) p++;
        DTI_JCHECK(r, p < 4 && params[p] != NULL && out->v[p] == NULL, DT_ERR_UNSUPPORTED,
                   "%s does not take argument %d%s%s", what, i + 1,
                   args->keyword[i] != NULL ? ", " : "",
                   args->keyword[i] != NULL ? args->keyword[i] : "");
        out->v[p] = &args->v[i];
    }
    return DT_OK;
}

static dt_status want_string(dti_jrun *r, const char *what, const dti_jvalue *v)
{
    DTI_JCHECK(r, v != NULL && v->kind == DTI_J_STRING, DT_ERR_FORMAT,
               "%s: a string is needed, there is %s", what,
               v != NULL ? dti_jkind_name(v) : "nothing");
    return DT_OK;
}

/* --- strings ---------------------------------------------------------------------------------- */

static bool strips(const dti_jvalue *chars, const char *s, size_t n)
{
    if (chars == NULL) return dti_jis_space(dti_utf8_at(s));
    for (size_t i = 0; i < chars->n; i += dti_utf8_length(chars->s[i]))
        if (dti_utf8_length(chars->s[i]) == n && memcmp(chars->s + i, s, n) == 0) return true;
    return false;
}

dt_status dti_jstrip(dti_jrun *r, const dti_jvalue *v, const dti_jvalue *chars, int sides,
                     dti_jvalue *out)
{
    size_t begin = 0, end = v->n, last;

    if (chars != NULL && chars->kind == DTI_J_NONE) chars = NULL;
    if (chars != NULL) DT_TRY(want_string(r, "strip", chars));
    while ((sides & 1) && begin < end &&
           strips(chars, v->s + begin, dti_utf8_length(v->s[begin]))) {
        begin += dti_utf8_length(v->s[begin]);
        DT_TRY(dti_jcharge(r, chars != NULL ? chars->n : 1));
    }
    while ((sides & 2) && end > begin) {
        (void)dti_utf8_before(v->s, end, &last);
        if (!strips(chars, v->s + last, end - last)) break;
        end = last;
        DT_TRY(dti_jcharge(r, chars != NULL ? chars->n : 1));
    }
    *out = dti_jtext(v->s + begin, end - begin);
    return DT_OK;
}

static dt_status strip(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    return dti_jstrip(r, v, a->v[0], 3, out);
}

static dt_status lstrip(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    return dti_jstrip(r, v, a->v[0], 1, out);
}

static dt_status rstrip(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    return dti_jstrip(r, v, a->v[0], 2, out);
}

/* The end of a piece that begins at `at`, and where the next one begins. */
static dt_status piece(dti_jrun *r, const dti_jvalue *v, const dti_jvalue *separator, size_t at,
                       size_t *end, size_t *next)
{
    DT_TRY(dti_jfind(r, v, at, separator, end));
    *next = *end == SIZE_MAX ? SIZE_MAX : *end + separator->n;
    if (*end == SIZE_MAX) *end = v->n;
    return DT_OK;
}

static dt_status split(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    size_t n = 1, at = 0, end, next;
    int64_t most = -1;

    DTI_JCHECK(r, a->v[0] != NULL && a->v[0]->kind == DTI_J_STRING, DT_ERR_UNSUPPORTED,
               "split() without a separator is not supported");
    DTI_JCHECK(r, a->v[0]->n > 0, DT_ERR_FORMAT, "split() with an empty separator");
    if (a->v[1] != NULL) {
        DTI_JCHECK(r, a->v[1]->kind == DTI_J_INT, DT_ERR_FORMAT, "split(): maxsplit is %s",
                   dti_jkind_name(a->v[1]));
        most = a->v[1]->i;
    }
    for (; most < 0 || (int64_t)n <= most; n++, at = next) {
        DT_TRY(piece(r, v, a->v[0], at, &end, &next));
        if (next == SIZE_MAX) break;
    }
    DT_TRY(dti_jlist_new(r, n, out));
    at = 0;
    for (size_t i = 0; i < n; i++, at = next) {
        DT_TRY(piece(r, v, a->v[0], at, &end, &next));
        if (i + 1 == n) end = v->n;
        out->list->items[i] = dti_jtext(v->s + at, end - at);
    }
    return DT_OK;
}

static dt_status affix(dti_jrun *r, const dti_jvalue *v, const dti_jvalue *what, bool end,
                       dti_jvalue *out)
{
    const dti_jvalue *one = what;
    size_t n = 1;

    if (what != NULL && what->kind == DTI_J_LIST) {
        one = what->list->items;
        n = what->list->n;
    }
    *out = dti_jbool(false);
    for (size_t i = 0; i < n; i++) {
        DT_TRY(want_string(r, end ? "endswith()" : "startswith()", one ? &one[i] : NULL));
        DT_TRY(dti_jcharge(r, one[i].n + 1));
        if (one[i].n <= v->n && memcmp(v->s + (end ? v->n - one[i].n : 0), one[i].s, one[i].n) == 0)
            out->b = true;
    }
    return DT_OK;
}

static dt_status startswith(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    return affix(r, v, a->v[0], false, out);
}

static dt_status endswith(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    return affix(r, v, a->v[0], true, out);
}

static dt_status replace_into(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_text *out)
{
    size_t at = 0, end, next;

    do {
        DT_TRY(piece(r, v, a->v[0], at, &end, &next));
        DT_TRY(dti_text_append(out, v->s + at, end - at));
        if (next != SIZE_MAX) DT_TRY(dti_text_append(out, a->v[1]->s, a->v[1]->n));
        DTI_JCHECK(r, out->bytes <= DTI_JINJA_BYTES, DT_ERR_UNSUPPORTED,
                   "replace() makes a text of more than %d MiB", DTI_JINJA_BYTES >> 20);
        at = next;
    } while (next != SIZE_MAX);
    return dti_jcharge(r, out->bytes);
}

static dt_status replace(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    dti_text text = { 0 };
    dt_status st;

    DT_TRY(want_string(r, "replace()", a->v[0]));
    DT_TRY(want_string(r, "replace()", a->v[1]));
    DTI_JCHECK(r, a->v[0]->n > 0, DT_ERR_UNSUPPORTED, "replace() of an empty string");
    st = replace_into(r, v, a, &text);
    if (st == DT_OK) st = dti_jcopy(r, text.bytes ? text.data : "", text.bytes, out);
    dti_text_free(&text);
    return st;
}

/* `first`, `rest`: 'u' upper case, 'l' lower case. */
static dt_status letters(dti_jrun *r, const dti_jvalue *v, char first, char rest, dti_jvalue *out)
{
    char *text;

    DT_TRY(dti_jalloc(r, v->n + 1, 1, (void **)&text));
    for (size_t i = 0; i < v->n; i++) {
        const char want = i == 0 ? first : rest, c = v->s[i];

        DTI_JCHECK(r, (unsigned char)c < 0x80, DT_ERR_UNSUPPORTED,
                   "upper and lower case of letters outside ASCII are not supported");
        text[i] = c;
        if (want == 'u' && c >= 'a' && c <= 'z') text[i] = (char)(c - 'a' + 'A');
        if (want == 'l' && c >= 'A' && c <= 'Z') text[i] = (char)(c - 'A' + 'a');
    }
    *out = dti_jtext(text, v->n);
    return DT_OK;
}

static dt_status upper(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    (void)a;
    return letters(r, v, 'u', 'u', out);
}

static dt_status lower(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    (void)a;
    return letters(r, v, 'l', 'l', out);
}

static dt_status capitalize(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    (void)a;
    return letters(r, v, 'u', 'l', out);
}

/* --- dicts ------------------------------------------------------------------------------------ */

static dt_status keys(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    (void)a;
    DT_TRY(dti_jiterate(r, v, out));
    out->list->like = DTI_J_LIKE_TUPLE;
    return DT_OK;
}

static dt_status values(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    (void)a;
    DT_TRY(dti_jlist_new(r, v->dict->n, out));
    out->list->like = DTI_J_LIKE_TUPLE;
    for (size_t i = 0; i < v->dict->n; i++) out->list->items[i] = v->dict->entries[i].value;
    return DT_OK;
}

static dt_status items(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    (void)a;
    DT_TRY(dti_jlist_new(r, v->dict->n, out));
    out->list->like = DTI_J_LIKE_TUPLE;
    for (size_t i = 0; i < v->dict->n; i++) {
        dti_jvalue *pair = &out->list->items[i];

        DT_TRY(dti_jlist_new(r, 2, pair));
        pair->list->like = DTI_J_LIKE_TUPLE;
        pair->list->items[0] = v->dict->entries[i].key;
        pair->list->items[1] = v->dict->entries[i].value;
    }
    return DT_OK;
}

static dt_status get(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    DT_TRY(want_string(r, "get()", a->v[0]));
    DT_TRY(dti_jdict_get(r, v, a->v[0]->s, a->v[0]->n, out));
    if (out->kind != DTI_J_UNDEFINED) return DT_OK;
    *out = a->v[1] != NULL ? *a->v[1] : (dti_jvalue){ .kind = DTI_J_NONE };
    return DT_OK;
}

/* clang-format off */
static const struct {
    dti_jkind kind;
    const char *name;
    const char *params[4];
    dt_status (*run)(dti_jrun *, const dti_jvalue *, const dti_jbound *, dti_jvalue *);
} methods[] = {
    { DTI_J_STRING, "strip",      { "chars" },           strip },
    { DTI_J_STRING, "lstrip",     { "chars" },           lstrip },
    { DTI_J_STRING, "rstrip",     { "chars" },           rstrip },
    { DTI_J_STRING, "split",      { "sep", "maxsplit" }, split },
    { DTI_J_STRING, "startswith", { "prefix" },          startswith },
    { DTI_J_STRING, "endswith",   { "suffix" },          endswith },
    { DTI_J_STRING, "replace",    { "old", "new" },      replace },
    { DTI_J_STRING, "upper",      { NULL },              upper },
    { DTI_J_STRING, "lower",      { NULL },              lower },
    { DTI_J_STRING, "capitalize", { NULL },              capitalize },
    { DTI_J_DICT,   "keys",       { NULL },              keys },
    { DTI_J_DICT,   "values",     { NULL },              values },
    { DTI_J_DICT,   "items",      { NULL },              items },
    { DTI_J_DICT,   "get",        { "key", "default" },  get },
};
/* clang-format on */

/* loop.cycle(a, b): one after the other. */
static dt_status cycle(dti_jrun *r, const dti_jvalue *loop, const dti_jargs *args, dti_jvalue *out)
{
    dti_jvalue index;

    DTI_JCHECK(r, args->n > 0 && args->keyword[args->n - 1] == NULL, DT_ERR_FORMAT,
               "loop.cycle() takes values without names");
    DT_TRY(dti_jdict_get(r, loop, "index0", 6, &index));
    *out = args->v[index.i % args->n];
    return DT_OK;
}

dt_status dti_jmethod(dti_jrun *r, const dti_jvalue *v, const char *name, const dti_jargs *args,
                      dti_jvalue *out)
{
    if (v->kind == DTI_J_NAMESPACE && v->dict->loop && strcmp(name, "cycle") == 0)
        return cycle(r, v, args, out);
    for (size_t i = 0; i < DT_COUNT(methods); i++) {
        dti_jbound bound;

        if (methods[i].kind != v->kind || strcmp(methods[i].name, name) != 0) continue;
        DT_TRY(dti_jbind(r, name, args, methods[i].params, &bound));
        return methods[i].run(r, v, &bound, out);
    }
    DTI_JFAIL(r, DT_ERR_UNSUPPORTED, "the method .%s() of %s is not supported", name,
              dti_jkind_name(v));
}

bool dti_jis_method(dti_jkind kind, const char *name)
{
    static const char *const of_dict[] = { "clear",   "copy",       "fromkeys", "pop",
                                           "popitem", "setdefault", "update" };
    static const char *const of_list[] = { "append", "clear",   "copy",   "count",
                                           "extend", "index",   "insert", "pop",
                                           "remove", "reverse", "sort" };
    static const char *const of_string[] = {
        "casefold",   "center",  "count",     "encode",       "find",    "format",
        "index",      "isalnum", "isalpha",   "isdigit",      "islower", "isspace",
        "isupper",    "join",    "partition", "removeprefix", "rfind",   "removesuffix",
        "rpartition", "rsplit",  "swapcase",  "splitlines",   "title",   "zfill"
    };

    for (size_t i = 0; i < DT_COUNT(methods); i++)
        if (methods[i].kind == kind && strcmp(methods[i].name, name) == 0) return true;
    for (size_t i = 0; kind == DTI_J_DICT && i < DT_COUNT(of_dict); i++)
        if (strcmp(of_dict[i], name) == 0) return true;
    for (size_t i = 0; kind == DTI_J_LIST && i < DT_COUNT(of_list); i++)
        if (strcmp(of_list[i], name) == 0) return true;
    for (size_t i = 0; kind == DTI_J_STRING && i < DT_COUNT(of_string); i++)
        if (strcmp(of_string[i], name) == 0) return true;
    return false;
}

/* --- functions -------------------------------------------------------------------------------- */

static dt_status make_namespace(dti_jrun *r, const dti_jargs *args, dti_jvalue *out)
{
    DT_TRY(dti_jdict_new(r, DTI_J_NAMESPACE, out));
    for (int i = 0; i < args->n; i++) {
        DTI_JCHECK(r, args->keyword[i] != NULL, DT_ERR_UNSUPPORTED,
                   "namespace() of something without a name is not supported");
        DT_TRY(dti_jdict_set(r, out, dti_jtext(args->keyword[i], strlen(args->keyword[i])),
                             args->v[i]));
    }
    return DT_OK;
}

static dt_status make_range(dti_jrun *r, const dti_jargs *args, dti_jvalue *out)
{
    int64_t begin = 0, end, step = 1, n;

    DTI_JCHECK(r, args->n >= 1 && args->n <= 3, DT_ERR_FORMAT,
               "range() takes one to three numbers");
    for (int i = 0; i < args->n; i++) {
        const dti_jvalue *v = &args->v[i];
        DTI_JCHECK(r, args->keyword[i] == NULL, DT_ERR_FORMAT,
                   "range() has no argument of the name \"%s\"", args->keyword[i]);
        DTI_JCHECK(r, v->kind == DTI_J_INT, DT_ERR_FORMAT,
                   "range(): argument %d is %s, must be an integer", i + 1, dti_jkind_name(v));
        DTI_JCHECK(r, v->i < DTI_JINJA_STEPS && v->i > -DTI_JINJA_STEPS, DT_ERR_FORMAT,
                   "range(): argument %d is %lld, must be between -%d and %d", i + 1,
                   (long long)v->i, DTI_JINJA_STEPS, DTI_JINJA_STEPS);
    }
    end = args->v[args->n > 1].i;
    if (args->n > 1) begin = args->v[0].i;
    if (args->n > 2) step = args->v[2].i;
    DTI_JCHECK(r, step != 0, DT_ERR_FORMAT, "range() with a step of 0");
    n = step > 0 ? (end - begin + step - 1) / step : (begin - end - step - 1) / -step;
    DTI_JCHECK(r, n <= 100000, DT_ERR_FORMAT, "range() of more than 100000 numbers");
    DT_TRY(dti_jlist_new(r, n > 0 ? (size_t)n : 0, out));
    out->list->like = DTI_J_LIKE_TUPLE;
    for (int64_t i = 0; i < n; i++) out->list->items[i] = dti_jint(begin + i * step);
    return DT_OK;
}

static dt_status tell_time(dti_jrun *r, const dti_jvalue *format, dti_jvalue *out)
{
    const time_t now = (time_t)r->now;
    char text[512];
    struct tm tm;
    size_t n;

    DT_TRY(want_string(r, "strftime_now()", format));
    DTI_JCHECK(r, localtime_r(&now, &tm) != NULL, DT_ERR_ARG, "the time %lld is no date",
               (long long)r->now);
    DTI_JCHECK(r, format->n > 0 && format->n < 128 && memchr(format->s, '\0', format->n) == NULL,
               DT_ERR_UNSUPPORTED, "strftime_now() with a format of %zu bytes", format->n);
    memcpy(text, format->s, format->n); /* strftime wants an end */
    text[format->n] = '\0';
    for (const char *p = strchr(text, '%'); p != NULL; p = strchr(p + 2, '%'))
        DTI_JCHECK(r, p[1] != '\0' && strchr("aAbBdHIjmMpSyY%", p[1]) != NULL, DT_ERR_UNSUPPORTED,
                   "strftime_now(): %%%.1s is not supported", p + 1);
    {
        char result[1024];

        n = strftime(result, sizeof result, text, &tm);
        return dti_jcopy(r, result, n, out);
    }
}

bool dti_jis_global(const char *name)
{
    static const char *const names[] = { "namespace", "range", "raise_exception", "strftime_now" };

    for (size_t i = 0; i < DT_COUNT(names); i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

dt_status dti_jglobal(dti_jrun *r, const char *name, const dti_jargs *args, dti_jvalue *out)
{
    if (strcmp(name, "namespace") == 0) return make_namespace(r, args, out);
    if (strcmp(name, "range") == 0) return make_range(r, args, out);
    DTI_JCHECK(r, args->n == 1, DT_ERR_FORMAT, "%s() takes one argument", name);
    if (strcmp(name, "strftime_now") == 0) return tell_time(r, &args->v[0], out);
    DT_TRY(want_string(r, name, &args->v[0]));
    DTI_JFAIL(r, DT_ERR_ARG, "the template refuses this conversation: %.*s",
              (int)(args->v[0].n < 300 ? args->v[0].n : 300), args->v[0].s);
}
