/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer/regex.h"

#include <pcre2.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"

/* Patterns come from a checkpoint: one that tries everything must end in an error, not in a wait.
 * An attempt to match may take this many steps, and more on longer texts, because walking back over
 * a long run of spaces is legitimate.
 *
 * That bounds neither the attempts, one per byte, nor a step, which may run over the whole text. So
 * a search is done in pieces, few starts and few steps at first; and before what was done since the
 * last look can have been POTENTIAL bytes, the clock of the thread's own time says how it stands
 * with the budget of the text. Only patterns that are hopeless see a difference. */
enum { MATCH_STEPS = 10000000, STEPS_PER_BYTE = 32, HEAP_KIB = 512 << 10 };
enum { FEW_STEPS = 256, MORE_STEPS = 4, FEW_STARTS = 64 };
enum { BASE_NS = 2000000000, NS_PER_BYTE = 4000 };
static const uint64_t POTENTIAL = (uint64_t)1 << 29;

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
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT, &error,
                         &where, context);
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

static int64_t work_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void dti_matcher_begin(dti_matcher *m, size_t bytes)
{
    m->deadline_ns = work_ns() + BASE_NS + (int64_t)bytes * NS_PER_BYTE;
    m->since_clock = 0;
}

static dt_status matcher_ready(dti_matcher *m, size_t bytes)
{
    if (m->deadline_ns == 0) dti_matcher_begin(m, bytes);
    if (m->data == NULL) m->data = pcre2_match_data_create(1, NULL);
    if (m->context == NULL) m->context = pcre2_match_context_create(NULL);
    DT_CHECK(m->data != NULL && m->context != NULL, DT_ERR_MEMORY, "no memory to match in");
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

static dt_status gave_up(const dti_matches *it, size_t at, const char *why)
{
    DT_FAIL(DT_ERR_UNSUPPORTED,
            "regular expression \"%.200s\" gave up at byte %zu of a text of %zu bytes: %s",
            it->regex->source, at, it->bytes, why);
}

/* Some starts and some steps of a search. */
typedef struct piece {
    size_t at, n_starts;
    uint64_t steps;
} piece;

static int match_piece(const dti_matches *it, dti_matcher *m, const piece *p)
{
    const size_t last = it->bytes - p->at < p->n_starts ? it->bytes : p->at + p->n_starts - 1;
    const pcre2_code *code = it->regex->code;
    const PCRE2_SPTR text = (PCRE2_SPTR)it->text;
    int rc;

    (void)pcre2_set_match_limit(m->context,
                                p->steps < UINT32_MAX ? (uint32_t)p->steps : UINT32_MAX);
    (void)pcre2_set_offset_limit(m->context, last);
    rc = pcre2_match(code, text, it->bytes, p->at, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its stack on the heap */
        rc = pcre2_match(code, text, it->bytes, p->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data,
                         m->context);
    return rc;
}

/* Looks at the clock where the piece can have been long. */
static dt_status count_work(const dti_matches *it, dti_matcher *m, const piece *p)
{
    m->since_clock += p->n_starts * p->steps * (it->bytes - p->at + 1);
    if (m->since_clock < POTENTIAL) return DT_OK;
    m->since_clock = 0;
    if (work_ns() <= m->deadline_ns) return DT_OK;
    return gave_up(it, p->at, "the text has taken more time than any tokenizer needs");
}

/* What comes after a piece that has found nothing; false: there is nothing more. */
static bool next_piece(const dti_matches *it, int rc, piece *p, uint64_t most_steps)
{
    if (rc == PCRE2_ERROR_MATCHLIMIT && p->n_starts > 1) {
        p->n_starts = 1;
        return true;
    }
    if (rc == PCRE2_ERROR_MATCHLIMIT) {
        if (p->steps == most_steps) return false;
        p->steps = p->steps * MORE_STEPS < most_steps ? p->steps * MORE_STEPS : most_steps;
        return true;
    }
    if (it->bytes - p->at < p->n_starts) return false;
    p->at += p->n_starts;
    while (p->at < it->bytes && ((unsigned char)it->text[p->at] & 0xc0u) == 0x80u) p->at++;
    return true;
}

/* Searches from it->at; false in *found if nothing is there. */
static dt_status search_regex(const dti_matches *it, dti_matcher *m, bool *found, size_t *begin,
                              size_t *end)
{
    const uint64_t most_steps = MATCH_STEPS + (uint64_t)it->bytes * STEPS_PER_BYTE;
    const size_t starts = (size_t)(POTENTIAL / FEW_STEPS) / (it->bytes + 1);
    piece p = { it->at, starts > FEW_STARTS ? starts : FEW_STARTS, FEW_STEPS };
    const PCRE2_SIZE *at;
    PCRE2_UCHAR why[128];
    int rc;

    *found = false;
    DT_TRY(matcher_ready(m, it->bytes));
    do {
        rc = match_piece(it, m, &p);
        *found = rc >= 0;
        if (*found) p.n_starts = pcre2_get_ovector_pointer(m->data)[0] - p.at + 1;
        DT_TRY(count_work(it, m, &p));
    } while ((rc == PCRE2_ERROR_NOMATCH || rc == PCRE2_ERROR_MATCHLIMIT) &&
             next_piece(it, rc, &p, most_steps));
    if (rc == PCRE2_ERROR_NOMATCH) return DT_OK;
    DT_CHECK(rc != PCRE2_ERROR_NOMEMORY, DT_ERR_MEMORY, "no memory to match in");
    if (rc < 0) {
        (void)pcre2_get_error_message(rc, why, sizeof why);
        return gave_up(it, p.at, (const char *)why);
    }
    at = pcre2_get_ovector_pointer(m->data);
    DT_CHECK(at[0] <= at[1] && at[0] >= it->at, DT_ERR_UNSUPPORTED,
             "regular expression \"%.200s\" matches backwards", it->regex->source);
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
