/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated step as a drawing: a line for each rank, time to the right. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "base/writer.h"
#include "training/pipeline/simulate.h"

enum { TEXT_WIDTH = 240, LABEL_BYTES = 2 * DT_ACTION_BYTES };

/* What there is room for: "2F3"; "F3" of the rank's first stage, "f3" of its others; "F". */
typedef enum depth { WHOLE, NUMBERED, LETTER, N_DEPTHS } depth;

static bool is_pair_end(const dt_pipeline_schedule *s, int rank, int i)
{
    return i > s->begin[rank] && s->actions[i - 1].overlapped;
}

static void put_one(dti_writer *w, const dt_pipeline_schedule *s, int rank, const dt_action *a,
                    depth d)
{
    const bool first = a->stage == s->actions[s->begin[rank]].stage;
    const char letter = dti_action_letter(a->kind);

    if (d == WHOLE)
        dti_put(w, "%d%c%d", a->stage, letter, a->microbatch);
    else
        dti_put(w, "%c", first ? letter : letter - 'A' + 'a');
    if (d == NUMBERED) dti_put(w, "%d", a->microbatch);
}

/* Of an action, or of two that run together. */
static int label(const dt_pipeline_schedule *s, int rank, int i, depth d, char text[LABEL_BYTES])
{
    dti_writer w = { text, LABEL_BYTES, 0 };

    put_one(&w, s, rank, &s->actions[i], d);
    if (s->actions[i].overlapped) {
        if (d != LETTER) dti_put(&w, "+");
        put_one(&w, s, rank, &s->actions[i + 1], d);
    }
    return dti_written(&w);
}

static void put_head(dti_writer *w, const char *name, const dt_pipeline_timing *t)
{
    const dt_pipeline_schedule *s = t->schedule;
    const double share = t->total.makespan > 0.0 ? t->total.bubble / t->total.makespan : 0.0;

    dti_put(w, "%s: %d ranks, %d stages, %d microbatches; %g, of which %g bubble (%.0f %%)", name,
            s->n_ranks, s->n_stages, s->n_microbatches, t->total.makespan, t->total.bubble,
            100.0 * share);
}

static void put_rank(dti_writer *w, const dt_pipeline_rank *r)
{
    char text[DTI_NUMBER_BYTES];

    dti_put(w, "idle %g, live %d", r->idle, r->live);
    if (r->postponed > 0) dti_put(w, ", W postponed %d", r->postponed);
    if (r->bytes > 0) dti_put(w, ", %s", dti_bytes_text(r->bytes, text));
}

/* --- text ------------------------------------------------------------------------------------- */

/* Columns for each unit of time at which every action has room for its label; 0: there is none. */
static double fitting(const dt_pipeline_timing *t, depth d)
{
    const dt_pipeline_schedule *s = t->schedule;
    char text[LABEL_BYTES];
    double scale = 0.0;

    for (int rank = 0; rank < s->n_ranks; rank++)
        for (int i = s->begin[rank]; i < s->begin[rank + 1]; i++) {
            const double took = t->spans[i].end - t->spans[i].begin;
            const double want = label(s, rank, i, d, text) + (d != LETTER);
            if (!is_pair_end(s, rank, i) && took > 0.0 && want / took > scale) scale = want / took;
        }
    return scale * t->total.makespan <= TEXT_WIDTH ? scale : 0.0;
}

/* Fills line[0, width) with what the rank does. */
static void fill_line(const dt_pipeline_timing *t, int rank, depth d, double scale, char *line)
{
    const dt_pipeline_schedule *s = t->schedule;
    char text[LABEL_BYTES];

    for (int i = s->begin[rank]; i < s->begin[rank + 1]; i++) {
        const int from = (int)(t->spans[i].begin * scale + 0.5);
        const int to = (int)(t->spans[i].end * scale + 0.5), room = to - from - (d != LETTER);
        int n;

        if (is_pair_end(s, rank, i) || room < 1) continue;
        n = label(s, rank, i, d, text);
        for (int k = 0; k < room; k++)
            line[from + k] = k < n ? text[k] : d == LETTER ? text[k % n] : '-';
    }
}

static void draw_text(const dt_pipeline_timing *t, dti_writer *w)
{
    const dt_pipeline_schedule *s = t->schedule;
    depth d = s->n_stages == s->n_ranks ? NUMBERED : WHOLE;
    double scale = 0.0;
    int digits = 1, width;
    char name[DTI_SHOWN_BYTES];

    while (d < N_DEPTHS && (scale = fitting(t, d)) == 0.0) d++;
    if (d == N_DEPTHS) { /* too long for letters: as much as there is room */
        d = LETTER;
        scale = t->total.makespan > 0.0 ? TEXT_WIDTH / t->total.makespan : 0.0;
    }
    width = (int)(t->total.makespan * scale + 0.5);
    for (int n = s->n_ranks - 1; n >= 10; n /= 10) digits++;
    put_head(w, dti_printable(s->name, name, sizeof name), t);
    dti_put(w, "\n");
    for (int rank = 0; rank < s->n_ranks; rank++) {
        char line[TEXT_WIDTH + 1];
        memset(line, ' ', sizeof line);
        fill_line(t, rank, d, scale, line);
        dti_put(w, "rank %-*d  %.*s  ", digits, rank, width, line);
        put_rank(w, &t->ranks[rank]);
        dti_put(w, "\n");
    }
}

/* --- SVG -------------------------------------------------------------------------------------- */

enum { LEFT = 64, WIDTH = 1120, RIGHT = 200, TOP = 52, ROW = 24, BAR = 20, LETTER_WIDTH = 7 };

static const char *const colors[] = { "#7aa6d6", "#e3a35c", "#e0c060", "#86b97f" }; /* F B I W */
static const char *const words[] = { "forward", "backward", "its input alone", "its parameters" };

/* Two that run together share the height of one. A bar that is too narrow for its name has its
 * microbatch alone: colours say the rest. */
static void put_bar(dti_writer *w, const dt_pipeline_timing *t, int rank, int i, double scale)
{
    const dt_pipeline_schedule *s = t->schedule;
    const dt_action *a = &s->actions[i];
    const dt_pipeline_span at = t->spans[i];
    const bool first = a->stage == s->actions[s->begin[rank]].stage;
    const bool second = is_pair_end(s, rank, i), pair = a->overlapped || second;
    const double height = pair ? BAR / 2.0 : BAR, width = (at.end - at.begin) * scale;
    const double x = LEFT + at.begin * scale, y = TOP + rank * ROW + (second ? height : 0.0);
    char name[DT_ACTION_BYTES], number[DTI_NUMBER_BYTES];
    const char *shown = dt_action_text(a, name);

    (void)snprintf(number, sizeof number, "%d", a->microbatch);
    dti_put(w,
            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"%s "
            "stroke=\"#fff\" stroke-width=\"0.5\"><title>%s: %g to %g</title></rect>\n",
            x, y, width, height, colors[a->kind], first ? "" : " fill-opacity=\"0.6\"", name,
            at.begin, at.end);
    if ((double)strlen(shown) * LETTER_WIDTH > width) shown = number;
    if ((double)strlen(shown) * LETTER_WIDTH <= width)
        dti_put(w, "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\"%s>%s</text>\n",
                x + width / 2, y + height / 2 + (pair ? 3 : 4), pair ? " font-size=\"9\"" : "",
                shown);
}

/* A file's name as text of XML: what is no text there becomes "?". */
static const char *escaped(const char *from, char to[DTI_SHOWN_BYTES])
{
    (void)dti_printable(from, to, DTI_SHOWN_BYTES);
    for (char *c = to; *c != '\0'; c++)
        if (strchr("<>&\"'", *c) != NULL) *c = '?';
    return to;
}

static void draw_svg(const dt_pipeline_timing *t, dti_writer *w)
{
    const dt_pipeline_schedule *s = t->schedule;
    const double scale = t->total.makespan > 0.0 ? (WIDTH - LEFT) / t->total.makespan : 0.0;
    char name[DTI_SHOWN_BYTES];

    dti_put(w,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n<text x=\"%d\" y=\"16\">",
            WIDTH + RIGHT, TOP + s->n_ranks * ROW, LEFT);
    put_head(w, escaped(s->name, name), t);
    dti_put(w, "</text>\n");
    for (int k = 0; k < 4; k++)
        dti_put(w,
                "<rect x=\"%d\" y=\"26\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                "<text x=\"%d\" y=\"36\">%c: %s</text>\n",
                LEFT + 130 * k, colors[k], LEFT + 130 * k + 18,
                dti_action_letter((dt_action_kind)k), words[k]);
    for (int rank = 0; rank < s->n_ranks; rank++) {
        const int y = TOP + rank * ROW + BAR - 6;
        dti_put(w, "<text x=\"0\" y=\"%d\">rank %d</text><text x=\"%d\" y=\"%d\">", y, rank,
                WIDTH + 8, y);
        put_rank(w, &t->ranks[rank]);
        dti_put(w, "</text>\n");
        for (int i = s->begin[rank]; i < s->begin[rank + 1]; i++) put_bar(w, t, rank, i, scale);
    }
    dti_put(w, "</svg>\n");
}

int dt_pipeline_timing_draw(const dt_pipeline_timing *t, dt_drawing form, char *text, size_t bytes)
{
    dti_writer w = { text, bytes, 0 };

    if (bytes > 0) text[0] = '\0';
    if (t != NULL && form == DT_DRAW_SVG)
        draw_svg(t, &w);
    else if (t != NULL)
        draw_text(t, &w);
    return dti_written(&w);
}
