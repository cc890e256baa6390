/* SPDX-License-Identifier: Apache-2.0
 *
 * Ways to lay one tensor on four ranks, drawn as tables of who owns what.
 * Build: cc 08_placements.c $(pkg-config --cflags --libs dtensor) */
#include <dtensor.h>
#include <stdio.h>

/* A layout as text, and the shape it is drawn for. */
static const struct {
    const char *what, *layout;
    int64_t shape[2];
} cases[] = {
    { "rows in chunks, a whole copy on each dp", "RS(0)", { 5, 3 } },
    { "tiles", "S(0)S(1)", { 5, 3 } },
    { "rows over both dims, the outer first", "S(0)S(0)", { 5, 3 } },
    { "rows over both dims, the inner first", "S(0)[1]S(0)[0]", { 5, 3 } },
    { "rows at boundaries of our own", "RS(0,offsets=0:1:5)", { 5, 3 } },
    { "q | k | v of 4, 2 and 2 rows, each cut alone", "RS(0,blocks=4:2:2)", { 8, 3 } },
    { "terms of a sum on tp", "S(0)P(sum)", { 5, 3 } },
};

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    char text[1024];
    dt_mesh *mesh;
    dt_status st = dt_mesh_create(rt, "dp=2,tp=2", &mesh);

    (void)arg;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && st == DT_OK; i++) {
        const dt_layout *layout;
        st = dt_layout_parse(mesh, 2, cases[i].layout, &layout);
        if (st == DT_OK)
            st = dt_visualize_layout(mesh, layout, cases[i].shape, DT_DRAW_TEXT, text, sizeof text,
                                     NULL);
        if (st == DT_OK && dt_runtime_rank(rt) == 0) printf("%s\n%s\n", cases[i].what, text);
    }
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;

    options.n_ranks = 4;
    if (dt_run(&options, rank_main, NULL) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
