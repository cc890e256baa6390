/* SPDX-License-Identifier: Apache-2.0
 *
 * Placements as text, in PyTorch's trace grammar. parse_placements.c reads what is written here:
 *
 *   layout     placement ( "[" place among the cuts of its axis "]" )?   once per mesh dim
 *   placement  "R" | "P(" reduction ")" | "S(" axis ( "," detail )* ")"
 *   detail     "unit=" n | "replicas=" n | "sum" | "offsets=" n ( ":" n )* |
 *              "blocks=" n ( ":" n )* | "units=" n ( ":" n )*
 *
 * Places are written where several mesh dims cut one axis, as PyTorch does. Messages about one
 * placement write the letters as words, "Shard(0, unit=4)"; reading takes both. */
#include "placements/layout.h"

static const char *const reduce_names[DT_N_REDUCES] = { "sum", "avg", "min", "max", "prod" };

const char *dti_reduce_name(dt_reduce reduce)
{
    return (unsigned)reduce < DT_N_REDUCES ? reduce_names[reduce] : "?";
}

/* --- printing --------------------------------------------------------------------------------- */

static void put_numbers(dti_writer *w, const char *comma, const char *name, int n,
                        const int64_t *numbers)
{
    for (int i = 0; i < n; i++) {
        if (i == 0)
            dti_put(w, "%s%s=", comma, name);
        else
            dti_put(w, ":");
        dti_put(w, "%lld", (long long)numbers[i]);
    }
}

static void put_placement(dti_writer *w, const dt_placement *p, bool words)
{
    const char *comma = words ? ", " : ",";

    switch (p->kind) {
    case DT_PLACE_REPLICATE:
        dti_put(w, words ? "Replicate" : "R");
        return;
    case DT_PLACE_PARTIAL:
        dti_put(w, "%s(%s)", words ? "Partial" : "P", dti_reduce_name(p->reduce));
        return;
    case DT_PLACE_SHARD:
        dti_put(w, "%s(%d", words ? "Shard" : "S", p->axis);
        if (p->unit > 1) dti_put(w, "%sunit=%lld", comma, (long long)p->unit);
        if (p->replicas > 1) dti_put(w, "%sreplicas=%d", comma, p->replicas);
        if (p->terms) dti_put(w, "%ssum", comma);
        if (p->offsets != NULL) put_numbers(w, comma, "offsets", p->n_offsets, p->offsets);
        if (p->blocks != NULL) put_numbers(w, comma, "blocks", p->n_blocks, p->blocks);
        if (p->units != NULL) put_numbers(w, comma, "units", p->n_blocks, p->units);
        dti_put(w, ")");
        return;
    }
    dti_put(w, "?");
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

void dti_put_layout(dti_writer *w, const dt_layout *layout)
{
    for (int m = 0; m < layout->n_dims; m++) {
        const int place = place_in_order(layout, m);
        put_placement(w, &layout->place[m], false);
        if (place >= 0) dti_put(w, "[%d]", place);
    }
}

static dti_writer writer_of(char *text, size_t bytes)
{
    return (dti_writer){ text, text != NULL ? bytes : 0, 0 };
}

int dt_layout_print(const dt_layout *layout, char *text, size_t text_bytes)
{
    dti_writer w = writer_of(text, text_bytes);

    if (layout == NULL)
        dti_put(&w, "(no layout)");
    else
        dti_put_layout(&w, layout);
    return dti_written(&w);
}

int dt_placement_print(const dt_placement *place, char *text, size_t text_bytes)
{
    dti_writer w = writer_of(text, text_bytes);

    if (place == NULL) {
        dti_put(&w, "(no placement)");
        return dti_written(&w);
    }
    put_placement(&w, place, false);
    if (place->kind == DT_PLACE_SHARD && place->order > 0) dti_put(&w, "[%d]", place->order - 1);
    return dti_written(&w);
}

const char *dti_placement_words(const dt_placement *place, char text[DTI_PLACEMENT_BYTES])
{
    dti_writer w = writer_of(text, DTI_PLACEMENT_BYTES);

    put_placement(&w, place, true);
    return text;
}
