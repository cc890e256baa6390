/* SPDX-License-Identifier: Apache-2.0
 *
 * Placements as text, in PyTorch's trace grammar, and back:
 *
 *   layout     placement ( "[" place in the axis' order "]" )?   once per mesh dim, nothing between
 *   placement  "R" | "S(" axis ("," "unit=" n)? ("," "replicas=" n)? ")" | "P(" reduction ")"
 *
 * Places are written only for axes whose cuts are not in the default order. Messages about one
 * placement write the letters as words, "Shard(0, unit=4)"; reading takes both. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "placements/layout.h"

static const char *const reduce_names[DT_N_REDUCES] = { "sum", "avg", "min", "max", "prod" };

const char *dti_reduce_name(dt_reduce reduce)
{
    return (unsigned)reduce < DT_N_REDUCES ? reduce_names[reduce] : "?";
}

/* --- printing --------------------------------------------------------------------------------- */

/* Text that grows like snprintf: what does not fit is counted only. */
typedef struct sink {
    char *text;
    size_t bytes;
    int length;
} sink;

static sink sink_of(char *text, size_t bytes)
{
    sink s = { NULL, 0, 0 };

    if (text == NULL) return s;
    s.text = text;
    s.bytes = bytes;
    return s;
}

static void put(sink *s, const char *fmt, ...) DT_PRINTF(2, 3);
static void put(sink *s, const char *fmt, ...)
{
    const size_t used = (size_t)s->length < s->bytes ? (size_t)s->length : s->bytes;
    va_list args;

    va_start(args, fmt);
    s->length += vsnprintf(s->bytes > 0 ? s->text + used : NULL, s->bytes - used, fmt, args);
    va_end(args);
}

static void put_placement(sink *s, const dt_placement *p, bool words)
{
    const char *comma = words ? ", " : ",";

    switch (p->kind) {
    case DT_PLACE_REPLICATE:
        put(s, words ? "Replicate" : "R");
        return;
    case DT_PLACE_PARTIAL:
        put(s, "%s(%s)", words ? "Partial" : "P", dti_reduce_name(p->reduce));
        return;
    case DT_PLACE_SHARD:
        put(s, "%s(%d", words ? "Shard" : "S", p->axis);
        if (p->unit > 1) put(s, "%sunit=%lld", comma, (long long)p->unit);
        if (p->replicas > 1) put(s, "%sreplicas=%d", comma, p->replicas);
        put(s, ")");
        return;
    }
    put(s, "?");
}

/* Where mesh dim m stands among the cuts of its axis; -1 if nobody has to be told. */
static int place_in_order(const dt_layout *l, int m)
{
    int dims[DT_MAX_DIMS], place = -1;
    bool ascending = true;

    if (l->default_order || !(l->shard_dims >> m & 1u)) return -1;
    const int n = dti_layout_cuts(l, l->place[m].axis, dims);
    for (int i = 0; i < n; i++) {
        if (dims[i] == m) place = i;
        if (i > 0 && dims[i] < dims[i - 1]) ascending = false;
    }
    return ascending ? -1 : place;
}

int dt_layout_print(const dt_layout *layout, char *text, size_t text_bytes)
{
    sink s = sink_of(text, text_bytes);

    if (layout == NULL) put(&s, "(no layout)");
    for (int m = 0; layout != NULL && m < layout->n_dims; m++) {
        const int place = place_in_order(layout, m);
        put_placement(&s, &layout->place[m], false);
        if (place >= 0) put(&s, "[%d]", place);
    }
    return s.length;
}

int dt_placement_print(const dt_placement *place, char *text, size_t text_bytes)
{
    sink s = sink_of(text, text_bytes);

    if (place == NULL)
        put(&s, "(no placement)");
    else
        put_placement(&s, place, false);
    return s.length;
}

const char *dti_placement_words(const dt_placement *place, char text[DTI_PLACEMENT_BYTES])
{
    sink s = sink_of(text, DTI_PLACEMENT_BYTES);

    put_placement(&s, place, true);
    return text;
}

/* --- parsing ---------------------------------------------------------------------------------- */

/* `text` is kept for messages, `at` moves. */
typedef struct reader {
    const char *text;
    const char *at;
} reader;

static void skip_space(reader *r)
{
    while (isspace((unsigned char)*r->at)) r->at++;
}

static bool take(reader *r, char c)
{
    skip_space(r);
    if (*r->at != c) return false;
    r->at++;
    return true;
}

static dt_status expect(reader *r, char c)
{
    DT_CHECK(take(r, c), DT_ERR_ARG, "placement \"%s\": '%c' expected at \"%s\"", r->text, c,
             r->at);
    return DT_OK;
}

static dt_status read_integer(reader *r, int64_t low, int64_t high, int64_t *out)
{
    char *end;

    skip_space(r);
    errno = 0;
    const long long value = strtoll(r->at, &end, 10);
    DT_CHECK(end != r->at && errno == 0 && value >= low && value <= high, DT_ERR_ARG,
             "placement \"%s\": a number of at least %lld expected at \"%s\"", r->text,
             (long long)low, r->at);
    r->at = end;
    *out = value;
    return DT_OK;
}

/* The letters at r->at, lower case; longer words than any we know are cut and so match none. */
static void read_word(reader *r, char word[16])
{
    size_t n = 0;

    skip_space(r);
    for (; isalpha((unsigned char)*r->at); r->at++)
        if (n < 15) word[n++] = (char)tolower((unsigned char)*r->at);
    word[n] = '\0';
}

static dt_status read_shard(reader *r, dt_placement *out)
{
    char word[16];
    int64_t value;

    DT_TRY(expect(r, '('));
    DT_TRY(read_integer(r, INT_MIN, INT_MAX, &value));
    *out = DT_SHARD((int)value);
    while (take(r, ',')) {
        read_word(r, word);
        const bool unit = strcmp(word, "unit") == 0;
        DT_CHECK(unit || strcmp(word, "replicas") == 0, DT_ERR_ARG,
                 "placement \"%s\": \"%s\" is neither \"unit\" nor \"replicas\"", r->text, word);
        DT_TRY(expect(r, '='));
        DT_TRY(read_integer(r, 1, unit ? INT64_MAX : INT_MAX, &value));
        if (unit)
            out->unit = value;
        else
            out->replicas = (int)value;
    }
    return expect(r, ')');
}

static dt_status read_partial(reader *r, dt_placement *out)
{
    char word[16];

    *out = DT_PARTIAL(DT_SUM);
    if (!take(r, '(')) return DT_OK;
    read_word(r, word);
    for (int op = 0; op < DT_N_REDUCES; op++) {
        if (strcmp(word, reduce_names[op]) != 0) continue;
        out->reduce = (dt_reduce)op;
        return expect(r, ')');
    }
    DT_FAIL(DT_ERR_ARG,
            "placement \"%s\": \"%s\" is no reduction; there are sum, avg, min, max, prod", r->text,
            word);
}

static dt_status read_placement(reader *r, dt_placement *out)
{
    char word[16];

    skip_space(r);
    const char *start = r->at;
    /* The short names stand directly before the next placement ("RS(0)"), so one letter at a time.
     */
    read_word(r, word);
    if (strcmp(word, "replicate") == 0) {
        *out = DT_REPLICATE;
        return take(r, '(') ? expect(r, ')') : DT_OK;
    }
    if (strcmp(word, "shard") == 0) return read_shard(r, out);
    if (strcmp(word, "partial") == 0) return read_partial(r, out);
    r->at = start + (*start != '\0');
    switch (toupper((unsigned char)*start)) {
    case 'R':
        *out = DT_REPLICATE;
        return DT_OK;
    case 'S':
        return read_shard(r, out);
    case 'P':
        return read_partial(r, out);
    default:
        DT_FAIL(DT_ERR_ARG,
                "placement \"%s\": \"%s\" is no placement; write replicate, shard(axis) or "
                "partial(sum), or short R, S(axis), P(sum)",
                r->text, start);
    }
}

dt_status dti_placement_parse(const char *text, dt_placement *out)
{
    reader r = { text, text };

    *out = DT_REPLICATE;
    DT_CHECK(text != NULL, DT_ERR_ARG, "the placement's text is NULL");
    DT_TRY(read_placement(&r, out));
    skip_space(&r);
    DT_CHECK(*r.at == '\0', DT_ERR_ARG, "placement \"%s\": \"%s\" follows after its end", text,
             r.at);
    return DT_OK;
}

/* order[] as intern() wants it: the dims whose places are given share their indices among them. */
static void order_by_place(int n_dims, const dt_placement *place, const int *at, int *order)
{
    for (int m = 0; m < n_dims; m++) order[m] = m;
    for (int m = 0; m < n_dims; m++) {
        for (int k = m + 1; k < n_dims; k++) {
            const int a = order[m], b = order[k];
            if (at[a] < 0 || at[b] < 0 || place[a].axis != place[b].axis || at[a] < at[b]) continue;
            order[m] = b;
            order[k] = a;
        }
    }
}

dt_status dti_layout_parse(const char *text, int n_dims, dt_placement *place, int *order)
{
    reader r = { text, text };
    int at[DT_MAX_DIMS];

    DT_CHECK(text != NULL, DT_ERR_ARG, "the placements' text is NULL");
    DT_CHECK(n_dims >= 1 && n_dims <= DT_MAX_DIMS, DT_ERR_ARG, "%d mesh dims: 1 to %d are possible",
             n_dims, DT_MAX_DIMS);
    for (int m = 0; m < n_dims; m++) {
        int64_t value;
        skip_space(&r);
        DT_CHECK(*r.at != '\0', DT_ERR_ARG, "placements \"%s\": %d given, the mesh has %d dims",
                 text, m, n_dims);
        DT_TRY(read_placement(&r, &place[m]));
        at[m] = -1;
        if (place[m].kind != DT_PLACE_SHARD || !take(&r, '[')) continue;
        DT_TRY(read_integer(&r, 0, n_dims - 1, &value));
        DT_TRY(expect(&r, ']'));
        at[m] = (int)value;
        for (int k = 0; k < m; k++)
            DT_CHECK(at[k] != at[m] || place[k].axis != place[m].axis, DT_ERR_ARG,
                     "placements \"%s\": mesh dims %d and %d both stand at [%d] of axis %d", text,
                     k, m, at[m], place[m].axis);
    }
    skip_space(&r);
    DT_CHECK(*r.at == '\0', DT_ERR_ARG, "placements \"%s\": \"%s\" follows, the mesh has %d dims",
             text, r.at, n_dims);
    order_by_place(n_dims, place, at, order);
    return DT_OK;
}
