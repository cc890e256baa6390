/* SPDX-License-Identifier: Apache-2.0
 *
 * Placements as text, in PyTorch's trace grammar. parse.c reads what is written here:
 *
 *   layout     placement ( "[" place among the cuts of its axis "]" )?   once per mesh dim
 *   placement  "R" | "P(" reduction ")" | "S(" axis ( "," detail )* ")"
 *   detail     "unit=" n | "replicas=" n | "offsets=" n ( ":" n )* | "blocks=" n ( ":" n )* |
 *              "units=" n ( ":" n )*
 *
 * Places are written where several mesh dims cut one axis, as PyTorch does. Messages about one
 * placement write the letters as words, "Shard(0, unit=4)"; reading takes both. */
#include <stdarg.h>
#include <stdio.h>

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

static void put_numbers(sink *s, const char *comma, const char *name, int n, const int64_t *numbers)
{
    for (int i = 0; i < n; i++) {
        if (i == 0)
            put(s, "%s%s=", comma, name);
        else
            put(s, ":");
        put(s, "%lld", (long long)numbers[i]);
    }
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
        if (p->offsets != NULL) put_numbers(s, comma, "offsets", p->n_offsets, p->offsets);
        if (p->blocks != NULL) put_numbers(s, comma, "blocks", p->n_blocks, p->blocks);
        if (p->units != NULL) put_numbers(s, comma, "units", p->n_blocks, p->units);
        put(s, ")");
        return;
    }
    put(s, "?");
}

/* Where mesh dim m stands among the cuts of its axis; -1 if it is alone there. */
static int place_in_order(const dt_layout *l, int m)
{
    int dims[DT_MAX_DIMS], place = 0;

    if (!(l->shard_dims >> m & 1u)) return -1;
    const int n = dti_layout_cuts(l, l->place[m].axis, dims);
    while (dims[place] != m) place++;
    return n > 1 ? place : -1;
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

    if (place == NULL) {
        put(&s, "(no placement)");
        return s.length;
    }
    put_placement(&s, place, false);
    if (place->kind == DT_PLACE_SHARD && place->order > 0) put(&s, "[%d]", place->order - 1);
    return s.length;
}

const char *dti_placement_words(const dt_placement *place, char text[DTI_PLACEMENT_BYTES])
{
    sink s = sink_of(text, DTI_PLACEMENT_BYTES);

    put_placement(&s, place, true);
    return text;
}
