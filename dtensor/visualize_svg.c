/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of who owns what as a drawing: areas are true to the numbers of elements where that
 * leaves room for the names of ranks, and every set of ranks has a colour. */
#include <string.h>

#include "dtensor/visualize.h"

enum { LEFT = 110, TOP = 60, WIDTH = 640, HEIGHT = 400, LEAST = 26, FOOT = 34 };

/* Offset of range `range` among n along an axis that is `all` pixels long: a least size for each,
 * the rest shared out by extents. Ranges that have no room for that overlap the frame's end. */
static double position(const dti_picture *p, int i, int range, int all)
{
    const int n = p->n_ranges[i];
    const double least = n * LEAST < all ? LEAST : (double)all / n;
    const double rest = all - n * least;

    return range * least +
           (p->extent[i] > 0 ? rest * (double)p->edges[i][range] / (double)p->extent[i] : 0.0);
}

/* A colour that stays the same for the same ranks: hues a golden angle apart. */
static int hue_of(const dti_picture *p, const bool *in)
{
    for (int place = 0; place < p->n_ranks; place++)
        if (in[place]) return place * 137508 / 1000 % 360;
    return 0;
}

static void put_text(dti_writer *w, double x, double y, const char *anchor, const char *text)
{
    dti_put(w, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

static void put_cell(const dti_picture *p, int row, int column, bool *in, dti_writer *w)
{
    const double x = LEFT + (p->n_drawn > 1 ? position(p, 1, column, WIDTH) : 0.0);
    const double y = TOP + (p->n_drawn > 0 ? position(p, 0, row, HEIGHT) : 0.0);
    const double right = LEFT + (p->n_drawn > 1 ? position(p, 1, column + 1, WIDTH) : WIDTH);
    const double bottom = TOP + (p->n_drawn > 0 ? position(p, 0, row + 1, HEIGHT) : HEIGHT);
    char ranks[256];
    dti_writer name = { ranks, sizeof ranks, 0 };

    for (int place = 0; place < p->n_ranks; place++)
        in[place] = dti_picture_holds(p, place, p->n_drawn > 0 ? p->edges[0][row] : 0,
                                      p->n_drawn > 1 ? p->edges[1][column] : 0);
    dti_picture_ranks(p, in, &name);
    dti_put(w,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"hsl(%d,60%%,82%%)\" "
            "stroke=\"#444\"/>\n",
            x, y, right - x, bottom - y, hue_of(p, in));
    put_text(w, (x + right) / 2, (y + bottom) / 2 + 5, "middle", ranks);
}

static void put_labels(const dti_picture *p, dti_writer *w)
{
    char text[64];

    for (int r = 0; p->n_drawn > 0 && r < p->n_ranges[0]; r++) {
        const double middle = (position(p, 0, r, HEIGHT) + position(p, 0, r + 1, HEIGHT)) / 2;
        dti_picture_label(p, 0, r, text, sizeof text);
        put_text(w, LEFT - 8, TOP + middle + 5, "end", text);
    }
    for (int c = 0; p->n_drawn > 1 && c < p->n_ranges[1]; c++) {
        const double middle = (position(p, 1, c, WIDTH) + position(p, 1, c + 1, WIDTH)) / 2;
        dti_picture_label(p, 1, c, text, sizeof text);
        put_text(w, LEFT + middle, TOP - 8, "middle", text);
    }
}

void dti_picture_svg(const dti_picture *p, const int64_t *shape, bool *in, dti_writer *w)
{
    char text[512];
    dti_writer line = { text, sizeof text, 0 };
    const int rows = p->n_drawn > 0 ? p->n_ranges[0] : 1;
    const int columns = p->n_drawn > 1 ? p->n_ranges[1] : 1;
    bool any = false;

    dti_put(w,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"13\">\n",
            LEFT + WIDTH + 20, TOP + HEIGHT + FOOT);
    dti_picture_head(p, shape, &line);
    put_text(w, LEFT, 22, "start", text);
    put_labels(p, w);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) put_cell(p, r, c, in, w);
    for (int place = 0; place < p->n_ranks; place++) {
        in[place] = p->empty[place];
        any = any || in[place];
    }
    if (any) {
        line.used = 0;
        dti_put(&line, "empty on");
        for (int place = 0; place < p->n_ranks; place++)
            if (in[place]) dti_put(&line, " %d", dt_mesh_rank_at(p->mesh, place));
        put_text(w, LEFT, TOP + HEIGHT + 22, "start", text);
    }
    dti_put(w, "</svg>\n");
}
