/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ranks of a run hold and receive, as bars. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/text.h"
#include "cli/report.h"

enum { BAR_WIDTH = 560, BAR_HEIGHT = 18 };

/* Kinds of memory: members of a rank in plan.json. What is left of the most that is held is
 * temporaries. */
static const struct {
    const char *key, *name;
} kinds[] = { { "weight_bytes", "parameters" },
              { "gradient_bytes", "gradients" },
              { "state_bytes", "optimizer" },
              { "kept_bytes", "kept for the way back" } };

static int64_t bytes_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static void put_bytes(FILE *to, int64_t bytes)
{
    char text[DTI_NUMBER_BYTES];

    (void)fputs(dti_bytes_text(bytes, text), to);
}

static int64_t total_of(const json_t *rank)
{
    int64_t sum = 0;

    for (size_t k = 0; k < DT_COUNT(kinds); k++) sum += bytes_of(rank, kinds[k].key);
    return sum > bytes_of(rank, "peak_bytes") ? sum : bytes_of(rank, "peak_bytes");
}

static void put_part(FILE *to, double x, double width, size_t color, const char *name,
                     int64_t bytes)
{
    (void)fprintf(to,
                  "<rect class=\"fill c%zu\" x=\"%.2f\" y=\"0\" width=\"%.2f\" height=\"%d\">"
                  "<title>%s: ",
                  color, x, width, BAR_HEIGHT, name);
    put_bytes(to, bytes);
    (void)fputs("</title></rect>", to);
}

static void put_rank(FILE *to, const json_t *rank, int64_t most)
{
    const int64_t all = total_of(rank);
    const double scale = (double)BAR_WIDTH / (double)most;
    int64_t at = 0;

    (void)fprintf(to,
                  "<tr><th>rank %" PRId64 "</th><td class=\"bar\"><svg viewBox=\"0 0 %d %d\" "
                  "preserveAspectRatio=\"none\">",
                  bytes_of(rank, "rank"), BAR_WIDTH, BAR_HEIGHT);
    for (size_t k = 0; k < DT_COUNT(kinds); k++) {
        const int64_t bytes = bytes_of(rank, kinds[k].key);
        put_part(to, (double)at * scale, (double)bytes * scale, k, kinds[k].name, bytes);
        at += bytes;
    }
    put_part(to, (double)at * scale, (double)(all - at) * scale, DT_COUNT(kinds), "temporaries",
             all - at);
    (void)fputs("</svg></td><td class=\"number\">", to);
    put_bytes(to, all);
    (void)fputs("</td></tr>\n", to);
}

static void put_memory(FILE *to, const json_t *ranks)
{
    int64_t most = 1;
    json_t *rank;
    size_t i;

    json_array_foreach(ranks, i, rank)
    {
        if (total_of(rank) > most) most = total_of(rank);
    }
    (void)fputs("<section><h2>Memory by kind, of each rank at its most</h2>\n<p>", to);
    for (size_t k = 0; k <= DT_COUNT(kinds); k++)
        (void)fprintf(to, "<span class=\"key\"><i class=\"c%zu\"></i>%s</span>", k,
                      k < DT_COUNT(kinds) ? kinds[k].name : "temporaries");
    (void)fputs("</p>\n<table class=\"bars\">\n", to);
    json_array_foreach(ranks, i, rank) put_rank(to, rank, most);
    (void)fputs("</table></section>\n", to);
}

/* --- bytes ------------------------------------------------------------------------------------ */

static void put_traffic(FILE *to, const json_t *rank)
{
    const json_t *rows = json_object_get(rank, "traffic");
    int64_t most = 1;
    json_t *row;
    size_t i;

    json_array_foreach(rows, i, row)
    {
        if (bytes_of(row, "bytes") > most) most = bytes_of(row, "bytes");
    }
    (void)fprintf(to,
                  "<section><h2>Bytes by mesh dim, that rank %" PRId64 " receives in a step</h2>\n",
                  bytes_of(rank, "rank"));
    if (json_array_size(rows) == 0) (void)fputs("<p class=\"none\">Nothing is sent.</p>", to);
    (void)fputs("<table class=\"bars\">\n", to);
    json_array_foreach(rows, i, row)
    {
        (void)fputs("<tr><th>", to);
        cli_html_text(to, json_string_value(json_object_get(row, "dims")));
        (void)fputs("</th><td>", to);
        cli_html_text(to, json_string_value(json_object_get(row, "kind")));
        (void)fprintf(to, "</td><td class=\"number\">%" PRId64 "&times;</td>",
                      bytes_of(row, "calls"));
        (void)fprintf(to,
                      "<td class=\"bar\"><svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\">",
                      BAR_WIDTH, BAR_HEIGHT);
        put_part(to, 0, BAR_WIDTH * (double)bytes_of(row, "bytes") / (double)most, 0, "received",
                 bytes_of(row, "bytes"));
        (void)fputs("</svg></td><td class=\"number\">", to);
        put_bytes(to, bytes_of(row, "bytes"));
        (void)fputs("</td></tr>\n", to);
    }
    (void)fputs("</table></section>\n", to);
}

void cli_html_costs(FILE *to, const cli_run *run)
{
    const json_t *ranks = json_object_get(run->plan, "ranks");

    if (json_array_size(ranks) == 0) return;
    put_memory(to, ranks);
    put_traffic(to, json_array_get(ranks, 0));
}
