/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding a whole text and streaming it are the same thing: each step takes a token, hands on what
 * is certain and holds back the rest until more tokens or the end of the text decide. */
#include "text/tokenizer/decoder.h"

#include <string.h>

/* One kind of step. `push` and `flush` hand results to pass(). */
typedef struct dti_decoder_row {
    const char *type;
    bool fuses;       /* all that leaves it is one string */
    bool needs_whole; /* cannot work on parts of a string */
    dt_status (*load)(dti_text_decoder *step, const dti_json *from);
    dt_status (*push)(dti_decoding *d, size_t step, const char *s, size_t n);
    dt_status (*flush)(dti_decoding *d, size_t step); /* NULL: it holds nothing back */
} dti_decoder_row;

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Gives a string to a step, or to the output behind the last one. `s` may be NULL if n is 0. */
static dt_status pass(dti_decoding *d, size_t step, const char *s, size_t n)
{
    const dti_text_decoder *how = &d->all->steps[step];

    if (step == d->all->n) return dti_text_append(&d->out, s, n);
    if (how->fused && how->row->needs_whole) return dti_text_append(&d->state[step].whole, s, n);
    return how->row->push(d, step, s, n);
}

/* Bounds are those of all tokens so far: what one leaves of its own, later ones may need. */
static void bound(dti_decoding *d, size_t n)
{
    const size_t most = dti_text_most(d->n_in += n);

    d->out.limit = most;
    for (size_t i = 0; i < d->all->n; i++) {
        d->state[i].whole.limit = d->state[i].held.limit = most;
        d->state[i].bytes.limit = d->state[i].result.limit = most;
    }
}

dt_status dti_decoding_push(dti_decoding *d, const char *token, size_t n)
{
    bound(d, n);
    d->matcher.deadline_ns = 0; /* between tokens this thread does other work */
    return pass(d, 0, token, n);
}

dt_status dti_decoding_flush(dti_decoding *d)
{
    d->matcher.deadline_ns = 0;
    for (size_t i = 0; i < d->all->n; i++) {
        const dti_text_decoder *how = &d->all->steps[i];

        if (how->fused && how->row->needs_whole)
            DT_TRY(how->row->push(d, i, d->state[i].whole.data, d->state[i].whole.bytes));
        if (how->row->flush != NULL) DT_TRY(how->row->flush(d, i));
    }
    return DT_OK;
}

void dti_decoding_reset(dti_decoding *d)
{
    d->out.bytes = 0;
    d->n_in = 0;
    for (size_t i = 0; i < d->all->n; i++) {
        d->state[i].whole.bytes = 0;
        d->state[i].held.bytes = 0;
        d->state[i].repair = (dti_utf8_repair){ 0 };
        d->state[i].n_start = d->state[i].n_stop = 0;
        d->state[i].begun = false;
    }
}

void dti_decoding_free(dti_decoding *d)
{
    dti_text_free(&d->out);
    dti_matcher_free(&d->matcher);
    for (size_t i = 0; i < DTI_MAX_STEPS; i++) {
        dti_text_free(&d->state[i].whole);
        dti_text_free(&d->state[i].held);
        dti_text_free(&d->state[i].bytes);
        dti_text_free(&d->state[i].result);
    }
}

/* --- the rows --------------------------------------------------------------------------------- */

static dt_status load_nothing(dti_text_decoder *step, const dti_json *from)
{
    (void)step;
    (void)from;
    return DT_OK;
}

/* The bytes that the characters of a token stand for, or the token itself if one stands for none;
 * all tokens together are then read as UTF-8. */
static dt_status push_byte_level(dti_decoding *d, size_t step, const char *s, size_t n)
{
    dti_text *bytes = &d->state[step].bytes, *result = &d->state[step].result;

    bytes->bytes = result->bytes = 0;
    DT_TRY(dti_text_reserve(bytes, n));
    for (size_t at = 0; at < n; at += dti_utf8_length(s[at])) {
        const int b = dti_char_to_byte(dti_utf8_at(s + at));

        if (b < 0) {
            bytes->bytes = 0;
            DT_TRY(dti_text_append(bytes, s, n));
            break;
        }
        bytes->data[bytes->bytes++] = (char)b;
    }
    DT_TRY(dti_utf8_push(&d->state[step].repair, bytes->data, bytes->bytes, result));
    return pass(d, step + 1, result->data, result->bytes);
}

static dt_status flush_byte_level(dti_decoding *d, size_t step)
{
    dti_text *result = &d->state[step].result;

    result->bytes = 0;
    DT_TRY(dti_utf8_flush(&d->state[step].repair, result));
    return pass(d, step + 1, result->data, result->bytes);
}

/* The value of a digit of base 16, or -1. */
static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte that a token such as <0xE2> stands for, or -1. Rust reads "+A" as a number too. */
static int byte_of_token(const char *s, size_t n)
{
    int high, low;

    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    high = s[3] == '+' ? 0 : hex_digit(s[3]);
    low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* A run of byte tokens ends: it is one string, or as many U+FFFD as it has bytes. */
static dt_status flush_byte_fallback(dti_decoding *d, size_t step)
{
    dti_text *held = &d->state[step].held;
    const size_t n = held->bytes;

    held->bytes = 0;
    if (n == 0) return DT_OK;
    if (dti_utf8_valid(held->data, n) == n) return pass(d, step + 1, held->data, n);
    for (size_t i = 0; i < n; i++) DT_TRY(pass(d, step + 1, replacement, 3));
    return DT_OK;
}

static dt_status push_byte_fallback(dti_decoding *d, size_t step, const char *s, size_t n)
{
    const int b = byte_of_token(s, n);
    const char c = (char)b;

    if (b >= 0) return dti_text_append(&d->state[step].held, &c, 1);
    DT_TRY(flush_byte_fallback(d, step));
    return pass(d, step + 1, s, n);
}

static dt_status push_fuse(dti_decoding *d, size_t step, const char *s, size_t n)
{
    return pass(d, step + 1, s, n);
}

static dt_status load_strip(dti_text_decoder *step, const dti_json *from)
{
    const dti_json content = dti_json_get(from, "content");
    const char *text;
    int64_t start, stop;

    DT_TRY(dti_json_as_string(&content, &text));
    if (text[0] == '\0' || strlen(text) != dti_utf8_length(text[0]))
        return dti_json_refuse(&content, DT_ERR_FORMAT, "one character");
    DT_TRY(dti_json_int(from, "start", 0, INT32_MAX, &start));
    DT_TRY(dti_json_int(from, "stop", 0, INT32_MAX, &stop));
    step->start = (size_t)start;
    step->stop = (size_t)stop;
    return dti_text_append(&step->content, text, strlen(text));
}

/* Leaves out up to `start` characters in front and holds back up to `stop` at the end. */
static dt_status strip(dti_decoding *d, size_t step, const char *s, size_t n, dti_text *out)
{
    const dti_text_decoder *how = &d->all->steps[step];
    const dti_text *content = &how->content;
    size_t *n_start = &d->state[step].n_start, *n_stop = &d->state[step].n_stop, length;

    for (size_t at = 0; at < n; at += length) {
        bool is_content;

        length = dti_utf8_length(s[at]);
        is_content = length == content->bytes && memcmp(s + at, content->data, length) == 0;
        if (!d->state[step].begun && is_content && *n_start < how->start) {
            (*n_start)++;
            continue;
        }
        d->state[step].begun = true;
        if (is_content && *n_stop < how->stop) {
            (*n_stop)++;
            continue;
        }
        /* One more of them pushes the oldest out; another character frees them all. */
        for (; !is_content && *n_stop > 0; (*n_stop)--)
            DT_TRY(dti_text_append(out, content->data, content->bytes));
        DT_TRY(dti_text_append(out, s + at, length));
    }
    return DT_OK;
}

static dt_status push_strip(dti_decoding *d, size_t step, const char *s, size_t n)
{
    dti_text *result = &d->state[step].result;

    result->bytes = 0;
    DT_TRY(strip(d, step, s, n, result));
    if (!d->all->steps[step].fused) { /* every token has a beginning and an end */
        d->state[step].n_start = d->state[step].n_stop = 0;
        d->state[step].begun = false;
    }
    return pass(d, step + 1, result->data, result->bytes);
}

static dt_status load_replace(dti_text_decoder *step, const dti_json *from)
{
    const char *text;

    DT_TRY(dti_json_string(from, "content", &text));
    DT_TRY(dti_text_append(&step->content, text, strlen(text)));
    return dti_step_pattern(from, &step->regex);
}

static dt_status push_replace(dti_decoding *d, size_t step, const char *s, size_t n)
{
    const dti_text_decoder *how = &d->all->steps[step];
    dti_text *result = &d->state[step].result;
    bool changed;

    result->bytes = 0;
    DT_TRY(dti_regex_replace(how->regex, &d->matcher, s, n, &how->content, result, &changed));
    return changed ? pass(d, step + 1, result->data, result->bytes) : pass(d, step + 1, s, n);
}

static dt_status load_metaspace(dti_text_decoder *step, const dti_json *from)
{
    return dti_metaspace_load(from, &step->content, &step->prepend);
}

/* The marker becomes a space, in the first token nothing. */
static dt_status push_metaspace(dti_decoding *d, size_t step, const char *s, size_t n)
{
    const dti_text_decoder *how = &d->all->steps[step];
    const bool drop = !d->state[step].begun && how->prepend != DTI_PREPEND_NEVER;
    dti_text *result = &d->state[step].result;
    size_t length;

    result->bytes = 0;
    for (size_t at = 0; at < n; at += length) {
        length = dti_utf8_length(s[at]);
        if (length != how->content.bytes || memcmp(s + at, how->content.data, length) != 0)
            DT_TRY(dti_text_append(result, s + at, length));
        else if (!drop)
            DT_TRY(dti_text_append(result, " ", 1));
    }
    d->state[step].begun = !how->fused; /* a fused string is one token */
    return pass(d, step + 1, result->data, result->bytes);
}

/* What stands for no decoder at all. */
static dt_status push_join(dti_decoding *d, size_t step, const char *s, size_t n)
{
    if (d->state[step].begun) DT_TRY(pass(d, step + 1, " ", 1));
    d->state[step].begun = true;
    return pass(d, step + 1, s, n);
}

static const dti_decoder_row join_row = { "null", false, false, load_nothing, push_join, NULL };

/* clang-format off */
static const dti_decoder_row rows[] = {
/*    type            fuses  needs whole */
    { "ByteLevel",    true,  true,  load_nothing,   push_byte_level,    flush_byte_level },
    { "ByteFallback", false, true,  load_nothing,   push_byte_fallback, flush_byte_fallback },
    { "Fuse",         true,  false, load_nothing,   push_fuse,          NULL },
    { "Strip",        false, false, load_strip,     push_strip,         NULL },
    { "Replace",      false, true,  load_replace,   push_replace,       NULL },
    { "Metaspace",    false, false, load_metaspace, push_metaspace,     NULL },
};
/* clang-format on */
static const char known[] = "ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, Sequence";

/* --- the list --------------------------------------------------------------------------------- */

static dt_status load_step(void *arg, const dti_json *from, const char *type)
{
    dti_decoders *all = arg;

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dti_text_decoder *step = &all->steps[all->n];

        if (strcmp(rows[i].type, type) != 0) continue;
        if (all->n == DTI_MAX_STEPS) return dti_step_too_many(from);
        step->row = &rows[i];
        step->fused = all->n > 0 && (step[-1].fused || step[-1].row->fuses);
        all->n++;
        return rows[i].load(step, from);
    }
    return dti_step_unknown(from, type, known);
}

dt_status dti_decoders_load(dti_decoders *all, const dti_json *from)
{
    if (dti_json_is_set(from)) return dti_steps_each(from, "decoders", load_step, all);
    all->steps[0].row = &join_row;
    all->n = 1;
    return DT_OK;
}

void dti_decoders_free(dti_decoders *all)
{
    for (size_t i = 0; i < DTI_MAX_STEPS; i++) {
        dti_regex_free(all->steps[i].regex);
        dti_text_free(&all->steps[i].content);
    }
    *all = (dti_decoders){ 0 };
}

bool dti_decoders_have(const dti_decoders *all, const char *step)
{
    for (size_t i = 0; i < all->n; i++)
        if (strcmp(all->steps[i].row->type, step) == 0) return true;
    return false;
}
