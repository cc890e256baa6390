/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer/regex.h"

#include <pcre2.h>
#include <string.h>

#include "base/memory.h"

/* Patterns come from a checkpoint: one that tries everything must end in an error, not in a wait.
 * A match may take this many steps, and more on longer texts, because walking back over a long run
 * of spaces is legitimate. */
enum { MATCH_STEPS = 10000000, STEPS_PER_BYTE = 32, HEAP_KIB = 512 << 10 };

struct dti_regex {
    pcre2_code *code; /* NULL: a literal */
    size_t bytes;
    char source[]; /* as in the file */
};

static dt_status regex_new(const char *source, dti_regex **out)
{
    const size_t n = strlen(source);

    *out = NULL;
    DT_CHECK(n > 0, DT_ERR_UNSUPPORTED, "an empty pattern");
    DT_TRY(dti_new(sizeof **out + n + 1, out));
    memcpy((*out)->source, source, n + 1);
    (*out)->bytes = n;
    return DT_OK;
}

dt_status dti_regex_literal(const char *text, dti_regex **out)
{
    return regex_new(text, out);
}

static dt_status compile(const char *source, const dti_text *pattern, pcre2_code **out)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    PCRE2_SIZE where = 0;
    PCRE2_UCHAR why[128];
    int error = 0;

    DT_CHECK(context != NULL, DT_ERR_MEMORY, "no memory for a regular expression");
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    /* In Ruby's syntax ^ and $ always mean lines. */
    *out = pcre2_compile((PCRE2_SPTR)pattern->data, pattern->bytes,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &where, context);
    pcre2_compile_context_free(context);
    if (*out == NULL) {
        (void)pcre2_get_error_message(error, why, sizeof why);
        DT_FAIL(DT_ERR_UNSUPPORTED, "regular expression \"%.200s\": %s", source,
                (const char *)why); /* the offset would be one into the translation */
    }
    /* Without pages for compiled code the interpreter does the same, three times slower. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return DT_OK;
}

dt_status dti_regex_compile(const char *pattern, dti_regex **out)
{
    dti_text translated = { 0 };
    dti_regex *re = NULL;
    dt_status st;

    *out = NULL;
    DT_TRY(regex_new(pattern, &re));
    DT_TRY_TO(fail, st, dti_regex_translate(pattern, &translated));
    DT_TRY_TO(fail, st, compile(pattern, &translated, &re->code));
    dti_text_free(&translated);
    *out = re;
    return DT_OK;

fail:
    dti_text_free(&translated);
    dti_regex_free(re);
    return st;
}

void dti_regex_free(dti_regex *re)
{
    if (re == NULL) return;
    pcre2_code_free(re->code);
    dti_free(re);
}

void dti_matcher_free(dti_matcher *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    *m = (dti_matcher){ 0 };
}

dti_matches dti_matches_in(const dti_regex *re, const char *text, size_t bytes)
{
    return (dti_matches){ .regex = re, .text = text, .bytes = bytes };
}

static dt_status matcher_ready(dti_matcher *m, size_t bytes)
{
    const uint64_t steps = MATCH_STEPS + (uint64_t)bytes * STEPS_PER_BYTE;

    if (m->data == NULL) m->data = pcre2_match_data_create(1, NULL);
    if (m->context == NULL) m->context = pcre2_match_context_create(NULL);
    DT_CHECK(m->data != NULL && m->context != NULL, DT_ERR_MEMORY, "no memory to match in");
    (void)pcre2_set_match_limit(m->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    (void)pcre2_set_heap_limit(m->context, HEAP_KIB);
    return DT_OK;
}

static bool search_literal(const dti_matches *it, size_t *begin, size_t *end)
{
    const dti_regex *re = it->regex;
    const char *at = it->text + it->at, *last = it->text + it->bytes;

    while ((size_t)(last - at) >= re->bytes) {
        at = memchr(at, re->source[0], (size_t)(last - at) - re->bytes + 1);
        if (at == NULL) return false;
        if (memcmp(at, re->source, re->bytes) == 0) {
            *begin = (size_t)(at - it->text);
            *end = *begin + re->bytes;
            return true;
        }
        at++;
    }
    return false;
}

/* Searches from it->at; false in *found if nothing is there. */
static dt_status search_regex(const dti_matches *it, dti_matcher *m, bool *found, size_t *begin,
                              size_t *end)
{
    const dti_regex *re = it->regex;
    const uint32_t flags = PCRE2_NO_UTF_CHECK;
    const PCRE2_SIZE *at;
    PCRE2_UCHAR why[128];
    int rc;

    DT_TRY(matcher_ready(m, it->bytes));
    rc = pcre2_match(re->code, (PCRE2_SPTR)it->text, it->bytes, it->at, flags, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its stack on the heap */
        rc = pcre2_match(re->code, (PCRE2_SPTR)it->text, it->bytes, it->at, flags | PCRE2_NO_JIT,
                         m->data, m->context);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return DT_OK;
    if (rc < 0) {
        (void)pcre2_get_error_message(rc, why, sizeof why);
        DT_FAIL(rc == PCRE2_ERROR_NOMEMORY ? DT_ERR_MEMORY : DT_ERR_UNSUPPORTED,
                "regular expression \"%.200s\" gave up at byte %zu of a text of %zu bytes: %s",
                re->source, it->at, it->bytes, (const char *)why);
    }
    at = pcre2_get_ovector_pointer(m->data);
    DT_CHECK(at[0] <= at[1] && at[0] >= it->at, DT_ERR_UNSUPPORTED,
             "regular expression \"%.200s\" matches backwards", re->source);
    *begin = at[0];
    *end = at[1];
    return DT_OK;
}

dt_status dti_matches_next(dti_matches *it, dti_matcher *m)
{
    size_t begin = it->bytes, end = it->bytes;
    const size_t last_end = it->end;
    bool found = false;

    for (;;) {
        found = false;
        if (it->at <= it->bytes && it->regex->code != NULL)
            DT_TRY(search_regex(it, m, &found, &begin, &end));
        else if (it->at <= it->bytes)
            found = search_literal(it, &begin, &end);
        if (!found || begin < end || !it->any || begin != last_end) break;
        it->at = begin + (begin < it->bytes ? dti_utf8_length(it->text[begin]) : 1);
    }
    it->done = !found;
    it->begin = found ? begin : it->bytes;
    it->end = found ? end : it->bytes;
    it->at = it->end;
    it->any = true;
    return DT_OK;
}

dt_status dti_regex_replace(const dti_regex *re, dti_matcher *m, const char *s, size_t n,
                            const dti_text *by, dti_text *out, bool *changed)
{
    dti_matches it = dti_matches_in(re, s, n);
    size_t done = 0;

    *changed = false;
    if (n == 0) return DT_OK; /* an empty text has no matches, not even empty ones */
    DT_TRY(dti_matches_next(&it, m));
    *changed = !it.done;
    if (it.done) return DT_OK;
    while (!it.done) {
        DT_TRY(dti_text_append(out, s + done, it.begin - done));
        DT_TRY(dti_text_append(out, by->data, by->bytes));
        done = it.end;
        DT_TRY(dti_matches_next(&it, m));
    }
    return dti_text_append(out, s + done, n - done);
}
