/* SPDX-License-Identifier: Apache-2.0
 *
 * Parsing a document and walking it. Typed access is in json_value.c. */
#include "files/json.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "files/input.h"

/* What jansson allocates at least for a scalar, an array and an object (Debian 12, measured). A
 * small file must not turn into all of memory: "[[],[],[]..." grows fifty times. */
enum { SCALAR_BYTES = 48, ARRAY_BYTES = 128, OBJECT_BYTES = 256 };
static const size_t max_tree_bytes = (size_t)1 << 30;

/* jansson calls itself for every level, and a thread's stack may be small. No file of a model nests
 * deeper than 20. */
enum { MAX_DEPTH = 256 };

/* What jansson would make of a text. Where it stops early, at a fault, this is what it would need
 * if it did not. */
typedef struct outlook {
    size_t bytes;
    size_t deep; /* how many bytes come before nesting goes too deep; n: it never does */
} outlook;

static outlook look_over(const char *text, size_t n)
{
    outlook o = { .deep = n };
    bool quoted = false;
    size_t depth = 0;

    for (size_t i = 0; i < n; i++) {
        const char c = text[i];

        if (c == '"') quoted = !quoted;
        if (quoted && c == '\\') i++;
        if (quoted) continue;
        if (c == ',' || c == ':') o.bytes += SCALAR_BYTES;
        if (c == '[') o.bytes += ARRAY_BYTES;
        if (c == '{') o.bytes += OBJECT_BYTES;
        if (c == '[' || c == '{') depth++;
        if ((c == ']' || c == '}') && depth > 0) depth--;
        if (depth > MAX_DEPTH && o.deep == n) o.deep = i;
    }
    return o;
}

/* The string that ends at or right before text[end], without its quotes, for a message. */
static const char *string_before(const char *text, size_t n, int end, char *out, size_t out_bytes)
{
    size_t last = end < 0 ? 0 : (size_t)end, first;
    char raw[256];

    while (last > 0 && (last >= n || text[last] != '"')) last--;
    for (first = last; first > 0 && text[first - 1] != '"'; first--) {
    }
    if (last - first >= sizeof raw) last = first + sizeof raw - 1;
    memcpy(raw, text + first, last - first);
    raw[last - first] = '\0';
    return dti_printable(raw, out, out_bytes);
}

/* jansson's sentences by their beginnings, and ours. */
static const struct {
    const char *theirs, *ours;
} sentences[] = {
    { "string or '}' expected near '}'", "no comma may stand before '}'" },
    { "unexpected token near ']'", "no comma may stand before ']'" },
    { "string or '}' expected", "a key in double quotes or '}' must stand here" },
    { "':' expected", "':' must follow the key" },
    { "'}' expected", "',' or '}' must follow the value" },
    { "']' expected", "',' or ']' must follow the value" },
    { "'[' or '{' expected", "it must begin with '{'" },
    { "end of file expected", "nothing may follow the '}' that closes the first '{'" },
    { "unexpected token", "a value must stand here" },
    { "invalid token", "this is no value of JSON" },
    { "unexpected newline", "a string must end in its line" },
    { "invalid escape", "this escape in a string does not exist" },
    { "invalid Unicode", "this escape in a string is no character" },
    { "control character", "a control character in a string must be written as an escape" },
    { "premature end", "a string must end" },
    { "unable to decode", "the text is not UTF-8" },
    { "\\u0000", "a string with a zero character is not supported" },
    { "NUL byte in object key", "a key with a zero character is not supported" },
    { "too big", "the integer does not fit into 64 bits" },
    { "real number overflow", "the number does not fit into a double" },
};

/* "a value must stand here, found '}'": our sentence, and the few characters that jansson quotes
 * (it says "... near '}'"). A sentence of other versions stays as it is. */
static const char *explain(const char *theirs, char *out, size_t out_bytes)
{
    const char *near = strstr(theirs, " near ");
    const char *ours = NULL;

    for (size_t i = 0; i < DT_COUNT(sentences) && ours == NULL; i++) {
        const char *begin = sentences[i].theirs;
        if (strncmp(theirs, begin, strlen(begin)) != 0) continue;
        ours = sentences[i].ours;
        if (near != NULL && near < theirs + strlen(begin)) near = NULL; /* it says that already */
    }
    if (ours == NULL)
        (void)snprintf(out, out_bytes, "%s", theirs);
    else if (near == NULL)
        (void)snprintf(out, out_bytes, "%s", ours);
    else if (strcmp(near, " near end of file") == 0)
        (void)snprintf(out, out_bytes, "%s, but the file ends", ours);
    else
        (void)snprintf(out, out_bytes, "%s, found %s", ours, near + strlen(" near "));
    return out;
}

/* jansson says nothing of some allocations that failed, and of others that a token is invalid. The
 * C library knows better: `error` is what it left in errno, which was 0 before. */
static dt_status syntax_error(const char *file, const char *text, size_t n, const json_error_t *e,
                              int error)
{
    char key[120], why[2 * JSON_ERROR_TEXT_LENGTH];

    if (error == ENOMEM || json_error_code(e) == json_error_out_of_memory)
        DT_FAIL(DT_ERR_MEMORY, "%s: no memory for its JSON of %zu bytes", file, n);
    if (json_error_code(e) == json_error_duplicate_key)
        DT_FAIL(DT_ERR_FORMAT, "%s: line %d column %d: key \"%s\" occurs twice in one object", file,
                e->line, e->column, string_before(text, n, e->position - 1, key, sizeof key));
    DT_FAIL(DT_ERR_FORMAT, "%s: line %d column %d: %s", file, e->line, e->column,
            explain(e->text, why, sizeof why));
}

/* Files that are no JSON from their first byte on. */
static dt_status check_beginning(const char *file, const char *text, size_t n)
{
    size_t blanks = 0;

    while (blanks < n && strchr(" \t\r\n", text[blanks]) != NULL && text[blanks] != '\0') blanks++;
    DT_CHECK(blanks < n, DT_ERR_FORMAT, "%s: is empty (%zu bytes), must hold a JSON object", file,
             n);
    DT_CHECK(n < 3 || memcmp(text, "\xef\xbb\xbf", 3) != 0, DT_ERR_FORMAT,
             "%s: line 1 column 1: begins with a byte order mark (EF BB BF); save it as UTF-8 "
             "without one",
             file);
    DT_CHECK(n < 2 || (memcmp(text, "\xff\xfe", 2) != 0 && memcmp(text, "\xfe\xff", 2) != 0),
             DT_ERR_FORMAT, "%s: line 1 column 1: is UTF-16; save it as UTF-8", file);
    DT_CHECK(text[blanks] != '\0', DT_ERR_FORMAT,
             "%s: begins with a zero byte: it is no text, and no JSON", file);
    return DT_OK;
}

/* What would take more memory or stack than a file of a model has any need of. */
static dt_status check_size(const char *file, const char *text, size_t n)
{
    const outlook o = look_over(text, n);
    size_t line = 1, column = 1;

    for (size_t i = 0; i < o.deep && o.deep < n; i++) {
        column = text[i] == '\n' ? 1 : column + 1;
        line += text[i] == '\n';
    }
    DT_CHECK(o.deep == n, DT_ERR_FORMAT,
             "%s: line %zu column %zu: arrays and objects are nested deeper than %d", file, line,
             column, (int)MAX_DEPTH);
    DT_CHECK(o.bytes <= max_tree_bytes, DT_ERR_FORMAT,
             "%s: its %zu bytes of JSON hold so many values that they would take over %zu MiB",
             file, n, max_tree_bytes >> 20);
    return DT_OK;
}

dt_status dti_json_parse(const char *file, const char *text, size_t n, dti_json_doc *out)
{
    json_error_t e;
    json_t *root;
    dt_status st;

    *out = (dti_json_doc){ 0 };
    DT_TRY(check_beginning(file, text, n));
    DT_TRY(check_size(file, text, n));
    errno = 0;
    root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (root == NULL) return syntax_error(file, text, n, &e, errno);
    out->root.value = root;
    st = dti_strdup(file, &out->file);
    if (st != DT_OK) {
        dti_json_free(out);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    out->root.file = out->file;
    if (!json_is_object(root)) {
        dti_json_free(out);
        DT_FAIL(DT_ERR_FORMAT, "%s: holds an array, must hold an object", file);
    }
    return DT_OK;
}

typedef dt_status (*read_fn)(const char *path, int64_t max_bytes, void **bytes, int64_t *n);

static dt_status read_with(read_fn read, const char *path, int64_t max_bytes, dti_json_doc *out)
{
    char label[DTI_INPUT_LABEL_BYTES];
    void *text;
    dt_status st;
    int64_t n;

    *out = (dti_json_doc){ 0 };
    DT_TRY(read(path, max_bytes, &text, &n));
    st = dti_json_parse(dti_printable(path, label, sizeof label), text, (size_t)n, out);
    dti_free(text);
    return st;
}

dt_status dti_json_read(const char *path, int64_t max_bytes, dti_json_doc *out)
{
    return read_with(dti_input_read_file, path, max_bytes, out);
}

dt_status dti_json_read_stream(const char *path, int64_t max_bytes, dti_json_doc *out)
{
    return read_with(dti_input_read_all, path, max_bytes, out);
}

void dti_json_free(dti_json_doc *doc)
{
    json_decref(doc->root.value);
    dti_free(doc->file);
    *doc = (dti_json_doc){ 0 };
}

dti_json_kind dti_json_kind_of(const dti_json *v)
{
    if (v->value == NULL) return DT_CONFIG_ABSENT;
    switch (json_typeof(v->value)) {
    case JSON_NULL:
        return DT_CONFIG_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return DT_CONFIG_BOOL;
    case JSON_INTEGER:
        return DT_CONFIG_INT;
    case JSON_REAL:
        return DT_CONFIG_REAL;
    case JSON_STRING:
        return DT_CONFIG_STRING;
    case JSON_ARRAY:
        return DT_CONFIG_ARRAY;
    case JSON_OBJECT:
        return DT_CONFIG_OBJECT;
    }
    return DT_CONFIG_ABSENT;
}

bool dti_json_is_set(const dti_json *v)
{
    return v->value != NULL && !json_is_null(v->value);
}

size_t dti_json_count(const dti_json *v)
{
    if (json_is_array(v->value)) return json_array_size(v->value);
    return json_object_size(v->value);
}

/* Deep paths keep their beginning, and at least a few letters of the last key. */
static dti_json member_of(const dti_json *object, const char *key, json_t *value)
{
    dti_json m = {
        .value = value, .file = object->file, .watch = object->watch, .facts = object->facts
    };
    size_t n;

    (void)snprintf(m.path, sizeof m.path, "%.100s%s", object->path, object->path[0] ? "." : "");
    n = strlen(m.path);
    (void)dti_printable(key, m.path + n, sizeof m.path - n);
    return m;
}

dti_json dti_json_get(const dti_json *object, const char *key)
{
    const dti_json m = member_of(object, key, json_object_get(object->value, key));

    for (size_t i = 0; m.watch != NULL && i < m.watch->n; i++)
        if (strcmp(m.watch->paths[i], m.path) == 0) m.watch->seen[i] = true;
    return m;
}

dti_json dti_json_at(const dti_json *array, size_t i)
{
    dti_json e = { .value = json_array_get(array->value, i),
                   .file = array->file,
                   .watch = array->watch,
                   .facts = array->facts };

    (void)snprintf(e.path, sizeof e.path, "%.100s[%zu]", array->path, i);
    return e;
}

bool dti_json_next(const dti_json *object, const char **key, dti_json *member)
{
    json_t *o = object->value;
    void *at = *key ? json_object_iter_next(o, json_object_key_to_iter(*key)) : json_object_iter(o);

    if (at == NULL) return false;
    *key = json_object_iter_key(at);
    *member = member_of(object, *key, json_object_iter_value(at));
    return true;
}
