/* SPDX-License-Identifier: Apache-2.0
 *
 * A way as SVG: memory by kind, what its time is made of, the time line of its step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "base/text.h"
#include "planner/search.h"

/* The time line of a pipeline is as wide. */
enum { LEFT = 64, WIDTH = 1120, RIGHT = 200, ROW = 24, BAR = 20, HEAD = 52, GAP = 28, KEY = 130 };

static const char *const colors[DTI_PARTS] = { "#7aa6d6", "#e3a35c", "#86b97f", "#c08bc9",
                                               "#b8b8b8" };

typedef struct segment {
    const char *name;
    double share; /* of the bar's unit */
    char text[DTI_NUMBER_BYTES];
} segment;

static void put_keys(dti_writer *w, const segment *parts, int n, int y)
{
    for (int k = 0; k < n; k++)
        dti_put(w,
                "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                "<text x=\"%d\" y=\"%d\">%s</text>\n",
                LEFT + KEY * k, y, colors[k], LEFT + KEY * k + 18, y + 10, parts[k].name);
}

static void put_bar(dti_writer *w, const segment *parts, int n, double scale, int y)
{
    double x = LEFT;

    for (int k = 0; k < n; k++) {
        const double width = fmax(parts[k].share, 0) * scale;
        dti_put(w,
                "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\">"
                "<title>%s: %s</title></rect>\n",
                x, y, width, BAR, colors[k], parts[k].name, parts[k].text);
        x += width;
    }
}

/* A bar for each rank of the pipeline, and a line where a device has no more. */
static int put_memory(dti_writer *w, const dti_task *t, const dti_look *look, int y)
{
    static const char *const names[][DTI_PARTS] = {
        { "weights", "gradients", "state", "kept of passes", "other" },
        { "weights", "keys and values", "temporaries" },
    };
    const bool step = t->o.goal == DT_PLAN_STEP;
    const double device = t->machine.figure[DT_FIGURE_DEVICE_BYTES].value;
    const int n = step ? DTI_PARTS : 3;
    segment parts[DTI_PARTS];
    char has[DTI_NUMBER_BYTES];
    double most = device;

    for (int r = 0; r < look->n; r++) most = fmax(most, (double)look->peak[r]);
    for (int r = 0; r < look->n; r++) {
        char all[DTI_NUMBER_BYTES];
        for (int k = 0; k < n; k++) {
            parts[k].name = names[step ? 0 : 1][k];
            parts[k].share = (double)look->part[r][k];
            (void)dti_bytes_text(look->part[r][k], parts[k].text);
        }
        if (r == 0) put_keys(w, parts, n, y);
        put_bar(w, parts, n, (WIDTH - LEFT) / most, y + GAP + r * ROW);
        dti_put(w, "<text x=\"0\" y=\"%d\">rank %d</text><text x=\"%d\" y=\"%d\">%s</text>\n",
                y + GAP + r * ROW + BAR - 6, r, WIDTH + 8, y + GAP + r * ROW + BAR - 6,
                dti_bytes_text(look->peak[r], all));
    }
    dti_put(w,
            "<line x1=\"%.2f\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\" stroke=\"#c33\" "
            "stroke-dasharray=\"4 3\"><title>a device has %s</title></line>\n",
            LEFT + (WIDTH - LEFT) * device / most, LEFT + (WIDTH - LEFT) * device / most,
            y + GAP - 4, y + GAP + look->n * ROW, dti_bytes_text((int64_t)device, has));
    return y + GAP + look->n * ROW + GAP;
}

static int put_time(dti_writer *w, const dti_task *t, const dt_way_cost *c, int y)
{
    const bool step = t->o.goal == DT_PLAN_STEP;
    segment parts[] = { { step ? "computing" : "prompts", step ? c->compute : c->prompt, "" },
                        { step ? "communication" : "a token", step ? c->exposed : c->token, "" },
                        { "bubble", c->bubble, "" } };
    const int n = step ? 3 : 2;
    double all = 0;

    for (int k = 0; k < n; k++) {
        all += parts[k].share;
        (void)snprintf(parts[k].text, sizeof parts[k].text, "%.4g s", parts[k].share);
    }
    put_keys(w, parts, n, y);
    put_bar(w, parts, n, all > 0 ? (WIDTH - LEFT) / all : 0, y + GAP);
    dti_put(w, "<text x=\"0\" y=\"%d\">%s</text><text x=\"%d\" y=\"%d\">%.4g s</text>\n",
            y + GAP + BAR - 6, step ? "step" : "time", WIDTH + 8, y + GAP + BAR - 6, all);
    return y + GAP + ROW + GAP;
}

static dt_status put_line(dti_writer *w, const dti_look *look, int y)
{
    const int n = dt_pipeline_timing_draw(look->timing, DT_DRAW_SVG, NULL, 0);
    char *text = NULL;

    DT_TRY(dti_alloc_array((size_t)n + 1, 1, (void **)&text));
    (void)dt_pipeline_timing_draw(look->timing, DT_DRAW_SVG, text, (size_t)n + 1);
    dti_put(w, "<svg x=\"0\" y=\"%d\" width=\"%d\" height=\"%d\">\n", y, WIDTH + RIGHT,
            HEAD + look->n * ROW);
    dti_put(w, "%s</svg>\n", text);
    dti_free(text);
    return DT_OK;
}

static dt_status draw(const dti_task *t, const dt_way *way, const dt_way_cost *cost,
                      const dti_look *look, dti_writer *w)
{
    const int line = look->timing != NULL ? HEAD + look->n * ROW : 0;
    int y = 26;

    dti_put(w,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n<text x=\"%d\" y=\"16\">",
            WIDTH + RIGHT, y + 4 * GAP + (look->n + 1) * ROW + line, LEFT);
    dti_put_way(w, t, way);
    dti_put(w, "</text>\n");
    y = put_memory(w, t, look, y);
    y = put_time(w, t, cost, y);
    if (look->timing != NULL) DT_TRY(put_line(w, look, y));
    dti_put(w, "</svg>\n");
    return DT_OK;
}

/* Twice: its length, then the text. */
static dt_status write_out(const dti_task *t, const dt_way *way, const dt_way_cost *cost,
                           const dti_look *look, char **svg)
{
    dti_writer w = { NULL, 0, 0 };

    DT_TRY(draw(t, way, cost, look, &w));
    w.bytes = w.used + 1;
    w.used = 0;
    w.text = malloc(w.bytes);
    DT_CHECK(w.text != NULL, DT_ERR_MEMORY, "a picture of %zu bytes", w.bytes);
    *svg = w.text;
    return draw(t, way, cost, look, &w);
}

dt_status dt_search_draw(dt_search *s, const dt_way *way, char **svg)
{
    dti_look look = { NULL };
    dt_way_cost cost;
    dt_status st = DT_OK;
    dt_way w;

    DT_CHECK(s != NULL && svg != NULL, DT_ERR_ARG, "search or svg is NULL");
    *svg = NULL;
    DT_CHECK(way != NULL || s->n_ranked > 0, DT_ERR_ARG, "no way fits, so there is none to draw");
    w = way != NULL ? *way : s->verdicts[0].way;
    DT_TRY(dti_way_settle(&s->task, &w));
    DT_TRY(dti_way_count(&s->task, &w, &cost));
    look.n = w.pp;
    DT_TRY_TO(done, st, dti_alloc_array((size_t)look.n, sizeof *look.part, (void **)&look.part));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)look.n, sizeof *look.peak, (void **)&look.peak));
    DT_TRY_TO(
        done, st,
        (s->task.o.goal == DT_PLAN_STEP ? dti_way_look : dti_serve_look)(&s->task, &w, &look));
    st = write_out(&s->task, &w, &cost, &look, svg);
done:
    dt_pipeline_timing_release(&look.timing);
    dti_free(look.part);
    dti_free(look.peak);
    if (st != DT_OK) {
        free(*svg);
        *svg = NULL;
    }
    return st;
}
