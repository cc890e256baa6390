/* SPDX-License-Identifier: Apache-2.0
 *
 * What moves would cost on 1024 ranks, without one of them: layouts as text, plans, links.
 * Build: cc 06_move_plan.c $(pkg-config --cflags --libs dtensor) */
#include <dtensor.h>
#include <stdio.h>

static const char mesh[] = "dp=16,pp=8,tp=8";
static const int64_t shape[] = { 4096, 4096 };

static dt_status print(dt_layouts *layouts, const char *from, const char *to, const dt_link *links)
{
    const int rank[] = { 0, 0, 0 };
    dt_move_query query = {
        .size = sizeof query, .shape = shape, .dtype = DT_BF16, .links = links
    };
    char text[2048];
    dt_status st = dt_layouts_parse(layouts, mesh, 2, from, &query.from);

    if (st == DT_OK) st = dt_layouts_parse(layouts, mesh, 2, to, &query.to);
    if (st == DT_OK) st = dt_redistribute_plan_print(&query, rank, text, sizeof text, NULL);
    if (st == DT_OK) printf("%s", text);
    return st;
}

int main(void)
{
    /* between hosts, between hosts, within a host: nanoseconds, bytes per nanosecond */
    const dt_link links[] = { { 10000, 25 }, { 10000, 25 }, { 2000, 400 } };
    dt_layouts *layouts = NULL;
    dt_status st = dt_layouts_create(&layouts);

    if (st == DT_OK) st = print(layouts, "RRS(0)", "RRS(1)", NULL);
    if (st == DT_OK) st = print(layouts, "S(0)RS(0)", "RRR", NULL);
    if (st == DT_OK) st = print(layouts, "S(0)RS(0)", "RRR", links); /* slow links carry less */
    if (st == DT_OK) st = print(layouts, "P(sum)RP(sum)", "S(0)RS(1)", links);
    if (st == DT_OK) st = print(layouts, "RRS(0,blocks=2048:1024:1024)", "RRS(0)", links);
    dt_layouts_release(&layouts);
    if (st == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
