/* SPDX-License-Identifier: Apache-2.0
 *
 * Curves of a run as SVG. Where there are more steps than columns a column shows the mean of its
 * steps, on a band from the least to the largest. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/report.h"

enum { WIDTH = 560, HEIGHT = 230, LEFT = 62, RIGHT = 14, TOP = 12, BOTTOM = 30, COLUMNS = 240 };

/* What a curve is of. */
typedef struct curve {
    const char *title, *unit, *name; /* of the line, in the legend; NULL: there is one line alone */
    double (*value)(const cli_metric *m);
    const char *other_name; /* a second line, of few points, on the same axes; or NULL */
    double (*other)(const cli_metric *m);
    bool from_zero;
} curve;

static double loss(const cli_metric *m)
{
    return m->loss;
}

static double validation(const cli_metric *m)
{
    return m->validation_loss;
}

static double norm(const cli_metric *m)
{
    return m->grad_norm;
}

static double rate(const cli_metric *m)
{
    return m->lr;
}

/* Tokens of a step by what the one before had read. */
static double speed(const cli_metric *m)
{
    const int64_t tokens = m->tokens - (m->step > 1 ? m[-1].tokens : 0);

    return m->seconds > 0 && tokens > 0 ? (double)tokens / m->seconds : NAN;
}

/* --- axes ------------------------------------------------------------------------------------- */

typedef struct axes {
    double least, most; /* of the values */
    double step;        /* between lines */
    int64_t first, last;
} axes;

/* 1, 2 or 5 times a power of ten, so that there are about four lines. */
static double nice_step(double span)
{
    const double rough = span / 4, power = pow(10, floor(log10(rough)));
    const double part = rough / power;

    return power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
}

static void see(axes *a, double value)
{
    if (!isfinite(value)) return;
    a->least = fmin(a->least, value);
    a->most = fmax(a->most, value);
}

static bool find_axes(const cli_run *run, const curve *c, axes *a)
{
    *a = (axes){ .least = INFINITY, .most = -INFINITY };
    a->first = run->steps[0].step;
    a->last = run->steps[run->n - 1].step;
    for (size_t i = c->value == speed && run->steps[0].step > 1; i < run->n; i++) {
        see(a, c->value(&run->steps[i]));
        if (c->other != NULL) see(a, c->other(&run->steps[i]));
    }
    if (!(a->least <= a->most)) return false;
    if (c->from_zero) a->least = fmin(a->least, 0);
    if (a->most <= a->least) a->most = a->least + (a->least != 0 ? fabs(a->least) * 0.1 : 1);
    a->step = nice_step(a->most - a->least);
    a->least = floor(a->least / a->step) * a->step;
    a->most = ceil(a->most / a->step) * a->step;
    return true;
}

static double x_of(const axes *a, double step)
{
    const double span = (double)(a->last - a->first);

    return LEFT + (span > 0 ? (step - (double)a->first) / span : 0.5) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const axes *a, double value)
{
    return HEIGHT - BOTTOM - (value - a->least) / (a->most - a->least) * (HEIGHT - TOP - BOTTOM);
}

static void put_value(FILE *to, double v)
{
    const double size = fabs(v);

    if (size != 0 && (size < 1e-3 || size >= 1e7))
        (void)fprintf(to, "%.3g", v);
    else
        (void)fprintf(to, "%.*f", size >= 1000 ? 0 : size >= 10 ? 2 : 4, v);
}

/* As many digits as tell neighbouring lines apart. */
static void put_tick(FILE *to, double v, double step)
{
    const int digits = (int)fmax(0, -floor(log10(step) + 1e-9));

    if (fabs(v) < step / 2) v = 0;
    if (v != 0 && (digits > 4 || fabs(v) >= 1e6))
        (void)fprintf(to, "%.1e", v);
    else
        (void)fprintf(to, "%.*f", digits > 4 ? 0 : digits, v);
}

static void put_axes(FILE *to, const axes *a)
{
    const int lines = (int)lround((a->most - a->least) / a->step);
    const double span = (double)(a->last - a->first);
    const double by = span > 4 ? fmax(1, nice_step(span)) : 1;

    for (int i = 0; i <= lines; i++) {
        const double v = a->least + i * a->step;
        (void)fprintf(to, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>",
                      LEFT, WIDTH - RIGHT, y_of(a, v), y_of(a, v));
        (void)fprintf(to, "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 8,
                      y_of(a, v) + 4);
        put_tick(to, v, a->step);
        (void)fputs("</text>\n", to);
    }
    for (double s = ceil((double)a->first / by) * by; s <= (double)a->last; s += by)
        (void)fprintf(to,
                      "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>",
                      x_of(a, s), HEIGHT - BOTTOM + 18, s);
}

/* --- lines ------------------------------------------------------------------------------------ */

/* Steps that share a column. */
typedef struct column {
    size_t begin, end;
    double mean, least, most, at; /* at: their mean step */
    bool any;
} column;

static column column_of(const cli_run *run, const curve *c, size_t i, size_t n)
{
    column k = { .begin = i * run->n / n, .end = (i + 1) * run->n / n };
    int64_t count = 0;

    k.least = INFINITY;
    k.most = -INFINITY;
    for (size_t s = k.begin; s < k.end; s++) {
        const bool alone = s == 0 && c->value == speed && run->steps[0].step > 1;
        const double v = alone ? NAN : c->value(&run->steps[s]);
        if (!isfinite(v)) continue;
        k.mean += v;
        k.at += (double)run->steps[s].step;
        k.least = fmin(k.least, v);
        k.most = fmax(k.most, v);
        count++;
    }
    k.any = count > 0;
    k.mean /= (double)dti_max(count, 1);
    k.at /= (double)dti_max(count, 1);
    return k;
}

static void put_band(FILE *to, const cli_run *run, const curve *c, const axes *a, size_t n)
{
    bool begun = false;

    (void)fputs("<path class=\"band\" d=\"", to);
    for (size_t i = 0; i < n; i++) {
        const column k = column_of(run, c, i, n);
        if (!k.any) continue;
        (void)fprintf(to, "%c%.1f %.1f", begun ? 'L' : 'M', x_of(a, k.at), y_of(a, k.most));
        begun = true;
    }
    for (size_t i = n; i-- > 0;) {
        const column k = column_of(run, c, i, n);
        if (k.any) (void)fprintf(to, "L%.1f %.1f", x_of(a, k.at), y_of(a, k.least));
    }
    (void)fputs("Z\"/>\n", to);
}

/* Where there is no number the line has a gap. */
static void put_line(FILE *to, const cli_run *run, const curve *c, const axes *a, size_t n)
{
    bool pen = false;

    (void)fputs("<path class=\"line a\" d=\"", to);
    for (size_t i = 0; i < n; i++) {
        const column k = column_of(run, c, i, n);
        if (k.any)
            (void)fprintf(to, "%c%.1f %.1f", pen ? 'L' : 'M', x_of(a, k.at), y_of(a, k.mean));
        pen = k.any;
    }
    (void)fputs("\"/>\n", to);
    if (n != 1) return;
    (void)fprintf(to, "<circle class=\"dot a\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n",
                  x_of(a, (double)run->steps[0].step), y_of(a, c->value(&run->steps[0])));
}

static void put_points(FILE *to, const cli_run *run, const curve *c, const axes *a)
{
    bool pen = false;

    (void)fputs("<path class=\"line b\" d=\"", to);
    for (size_t i = 0; i < run->n; i++) {
        const double v = c->other(&run->steps[i]);
        if (!isfinite(v)) continue;
        (void)fprintf(to, "%c%.1f %.1f", pen ? 'L' : 'M', x_of(a, (double)run->steps[i].step),
                      y_of(a, v));
        pen = true;
    }
    (void)fputs("\"/>\n", to);
    for (size_t i = 0; i < run->n; i++) {
        const double v = c->other(&run->steps[i]);
        if (!isfinite(v)) continue;
        (void)fprintf(to, "<circle class=\"dot b\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>",
                      x_of(a, (double)run->steps[i].step), y_of(a, v));
    }
}

/* What a pointer that rests on a column is told. */
static void put_hints(FILE *to, const cli_run *run, const curve *c, const axes *a, size_t n)
{
    const double width = (double)(WIDTH - LEFT - RIGHT) / (double)n;

    for (size_t i = 0; i < n; i++) {
        const column k = column_of(run, c, i, n);
        const cli_metric *last = &run->steps[k.end - 1];
        if (!k.any) continue;
        (void)fprintf(
            to, "<rect class=\"hit\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"><title>",
            x_of(a, k.at) - width / 2, TOP, width, HEIGHT - TOP - BOTTOM);
        (void)fprintf(to, "step %" PRId64, run->steps[k.begin].step);
        if (k.end - k.begin > 1) (void)fprintf(to, " to %" PRId64, last->step);
        (void)fputs(": ", to);
        put_value(to, k.mean);
        (void)fprintf(to, "%s", c->unit);
        if (c->other != NULL && isfinite(c->other(last))) {
            (void)fprintf(to, ", %s ", c->other_name);
            put_value(to, c->other(last));
        }
        (void)fputs("</title></rect>\n", to);
    }
}

static void put_curve(FILE *to, const cli_run *run, const curve *c)
{
    const size_t n = run->n < COLUMNS ? run->n : COLUMNS;
    bool both = false;
    axes a;

    (void)fprintf(to, "<figure><figcaption><b>%s</b>", c->title);
    for (size_t i = 0; c->other != NULL && i < run->n; i++)
        both = both || isfinite(c->other(&run->steps[i]));
    if (both)
        (void)fprintf(to,
                      "<span class=\"key\"><i class=\"a\"></i>%s</span>"
                      "<span class=\"key\"><i class=\"b\"></i>%s</span>",
                      c->name, c->other_name);
    (void)fputs("</figcaption>\n", to);
    if (find_axes(run, c, &a)) {
        (void)fprintf(to, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s over steps\">\n",
                      WIDTH, HEIGHT, c->title);
        put_axes(to, &a);
        if (n < run->n) put_band(to, run, c, &a, n);
        put_line(to, run, c, &a, n);
        if (both) put_points(to, run, c, &a);
        put_hints(to, run, c, &a, n);
        (void)fputs("</svg>", to);
    } else {
        (void)fputs("<p class=\"none\">no step has a number here</p>", to);
    }
    (void)fputs("</figure>\n", to);
}

void cli_html_curves(FILE *to, const cli_run *run)
{
    static const curve curves[] = {
        { "Loss", "", "training", loss, "validation", validation, false },
        { "Norm of the gradients", "", NULL, norm, NULL, NULL, true },
        { "Tokens per second", " tokens/s", NULL, speed, NULL, NULL, true },
        { "Learning rate", "", NULL, rate, NULL, NULL, true },
    };

    (void)fputs("<section class=\"grid\">\n", to);
    if (run->n == 0)
        (void)fputs("<p class=\"none\">No step is done yet: there are no curves.</p>", to);
    for (size_t i = 0; run->n > 0 && i < DT_COUNT(curves); i++) put_curve(to, run, &curves[i]);
    (void)fputs("</section>\n", to);
}
