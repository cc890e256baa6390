/* SPDX-License-Identifier: Apache-2.0
 *
 * A step in time, as RUN/trace.json has it: lanes of ranks, what encloses others above them. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cli/report.h"

enum { WIDTH = 1120, LEFT = 96, ROW = 16, GAP = 10, TOP = 22, MAX_DEPTH = 8, MAX_LANES = 64 };

/* A thread of the trace: what a rank computes, or what travels for it. */
typedef struct lane {
    int64_t pid, tid;
    double ends[MAX_DEPTH]; /* of what is open, outermost first */
    int colors[MAX_DEPTH];
    int depth, rows;
    int top; /* of the drawing */
} lane;

typedef struct drawing {
    FILE *to;
    const json_t **spans; /* [n_spans] by begin, what encloses others first */
    size_t n_spans;
    lane *lanes;
    int n;
    double begin, end; /* microseconds */
} drawing;

static double number_of(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static bool is_span(const json_t *event)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));

    return phase != NULL && strcmp(phase, "X") == 0;
}

static lane *lane_of(drawing *d, const json_t *event)
{
    const int64_t pid = json_integer_value(json_object_get(event, "pid"));
    const int64_t tid = json_integer_value(json_object_get(event, "tid"));
    int at = 0;

    while (at < d->n && (d->lanes[at].pid != pid || d->lanes[at].tid != tid)) at++;
    if (at == MAX_LANES) return NULL;
    if (at == d->n) d->lanes[d->n++] = (lane){ .pid = pid, .tid = tid };
    return &d->lanes[at];
}

/* The row of an event in its lane. Events of a lane come in the order of their begins. */
static int row_of(lane *l, const json_t *event)
{
    const double begin = number_of(event, "ts"), end = begin + number_of(event, "dur");

    while (l->depth > 0 && l->ends[l->depth - 1] <= begin + 1e-6) l->depth--;
    if (l->depth < MAX_DEPTH) l->ends[l->depth++] = end;
    if (l->depth > l->rows) l->rows = l->depth;
    return l->depth - 1;
}

/* Colours by what it is: a part of the step, or what that is a part of. */
static int color_of(lane *l, const json_t *event, int row)
{
    static const char *const words[] = { "forward", "backward", "optimizer", NULL, "data" };
    const char *name = json_string_value(json_object_get(event, "name"));
    const bool moves = json_is_object(json_object_get(event, "args"));
    int color = row > 0 ? l->colors[row - 1] : (int)DT_COUNT(words);

    for (int i = 0; name != NULL && i < (int)DT_COUNT(words); i++)
        if (words[i] != NULL && strcmp(words[i], name) == 0) color = i;
    if (moves || l->tid > 0) color = 3;
    return l->colors[row] = color;
}

static int compare(const void *a, const void *b)
{
    const json_t *x = *(const json_t *const *)a, *y = *(const json_t *const *)b;
    const double by_begin = number_of(x, "ts") - number_of(y, "ts");
    const double by_length = number_of(y, "dur") - number_of(x, "dur");
    const double by = by_begin != 0 ? by_begin : by_length;

    return by < 0 ? -1 : by > 0;
}

static void measure(drawing *d, json_t *events)
{
    json_t *event;
    size_t i;

    json_array_foreach(events, i, event)
    {
        if (is_span(event) && lane_of(d, event) != NULL) d->spans[d->n_spans++] = event;
    }
    qsort(d->spans, d->n_spans, sizeof *d->spans, compare);
    d->begin = d->n_spans > 0 ? number_of(d->spans[0], "ts") : 0;
    for (i = 0; i < d->n_spans; i++) {
        const double end = number_of(d->spans[i], "ts") + number_of(d->spans[i], "dur");
        (void)row_of(lane_of(d, d->spans[i]), d->spans[i]);
        if (end > d->end) d->end = end;
    }
}

static void put_event(const drawing *d, lane *l, const json_t *event)
{
    const double scale = (WIDTH - LEFT) / (d->end - d->begin);
    const int row = row_of(l, event);
    const double x = LEFT + (number_of(event, "ts") - d->begin) * scale;
    const double width = number_of(event, "dur") * scale;

    (void)fprintf(d->to,
                  "<rect class=\"fill c%d\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
                  "rx=\"1\"><title>",
                  color_of(l, event, row), x, l->top + row * ROW, width < 0.4 ? 0.4 : width,
                  ROW - 2);
    cli_html_text(d->to, json_string_value(json_object_get(event, "name")));
    (void)fprintf(d->to, ": %.3f ms</title></rect>\n", number_of(event, "dur") * 1e-3);
}

static void place_lanes(drawing *d)
{
    int y = TOP;

    for (int i = 0; i < d->n; i++) {
        lane *l = &d->lanes[i];
        l->top = y;
        l->depth = 0;
        y += l->rows * ROW + GAP;
        (void)fprintf(d->to, "<text class=\"tick\" x=\"0\" y=\"%d\">rank %lld%s</text>\n",
                      l->top + ROW - 5, (long long)l->pid, l->tid > 0 ? ", sent" : "");
    }
}

static void draw(drawing *d)
{
    int height = TOP;

    for (int k = 0; k < d->n; k++) height += d->lanes[k].rows * ROW + GAP;
    (void)fprintf(d->to,
                  "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"time line of a step\">"
                  "<text class=\"tick\" x=\"%d\" y=\"12\">0 ms</text>"
                  "<text class=\"tick\" x=\"%d\" y=\"12\" text-anchor=\"end\">%.3f ms</text>\n",
                  WIDTH, height, LEFT, WIDTH, (d->end - d->begin) * 1e-3);
    place_lanes(d);
    for (size_t i = 0; i < d->n_spans; i++) put_event(d, lane_of(d, d->spans[i]), d->spans[i]);
    (void)fputs("</svg>", d->to);
}

void cli_html_timeline(FILE *to, const cli_run *run)
{
    static const char *const names[] = { "forward",     "backward", "optimizer",
                                         "collectives", "data",     "other" };
    json_t *events = json_object_get(run->trace, "traceEvents");
    drawing d = { .to = to };

    if (json_array_size(events) == 0) return;
    if (dti_alloc_array(MAX_LANES, sizeof *d.lanes, (void **)&d.lanes) == DT_OK &&
        dti_alloc_array(json_array_size(events), sizeof *d.spans, (void **)&d.spans) == DT_OK)
        measure(&d, events);
    if (d.end > d.begin) {
        (void)fputs("<section><h2>A step in time</h2>\n<p>", to);
        for (size_t i = 0; i < DT_COUNT(names); i++)
            (void)fprintf(to, "<span class=\"key\"><i class=\"c%zu\"></i>%s</span>", i, names[i]);
        (void)fputs("</p>\n<div class=\"wide\">", to);
        draw(&d);
        (void)fputs("</div></section>\n", to);
    }
    dti_free((void *)d.spans);
    dti_free(d.lanes);
}
