/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of who owns what, as text word for word, and the SVG's form. */
#include <dtensor/factories.h>
#include <dtensor/inspect.h>

#include <string.h>

#include "tests/support/dt_test.h"

enum { MAX_TEXT = 8192 };

typedef struct table_case {
    const char *mesh, *layout;
    int n_axes;
    int64_t shape[3];
    const char *want;
} table_case;

static dt_status table_is(dt_mesh *mesh, const void *arg)
{
    const table_case *c = arg;
    const dt_layout *layout;
    char text[MAX_TEXT];
    int length, again;

    DT_TRY(dt_layout_parse(mesh, c->n_axes, c->layout, &layout));
    DT_TRY(dt_visualize_layout(mesh, layout, c->shape, DT_DRAW_TEXT, text, sizeof text, &length));
    DT_EXPECT(strcmp(text, c->want) == 0, "the table is\n%s", text);
    DT_EXPECT_EQ_INT(length, strlen(c->want));
    DT_TRY(dt_visualize_layout(mesh, layout, c->shape, DT_DRAW_TEXT, text, 10, &again));
    DT_EXPECT(again == length && strncmp(text, c->want, 9) == 0 && text[9] == '\0', "cut: \"%s\"",
              text);
    DT_TRY(dt_visualize_layout(mesh, layout, c->shape, DT_DRAW_TEXT, NULL, 0, &again));
    DT_EXPECT_EQ_INT(again, length);
    return DT_OK;
}

DT_TEST(visualize, tables_name_owners)
{
    static const table_case cases[] = {
        { "tp=4",
          "S(0)",
          1,
          { 5 },
          "S(0) on tp=4, shape [5]\n"
          "Row 0-1  0\n"
          "Row 2-3  1\n"
          "Row 4    2\n"
          "empty on 3\n" },
        { "dp=2,tp=2",
          "S(0)S(1)",
          2,
          { 5, 3 },
          "S(0)S(1) on dp=2,tp=2, shape [5, 3]\n"
          "         Col 0-1  Col 2\n"
          "Row 0-2  0        1\n"
          "Row 3-4  2        3\n" },
        { "dp=2,tp=2",
          "RS(1)",
          2,
          { 4, 14 },
          "RS(1) on dp=2,tp=2, shape [4, 14]\n"
          "         Col 0-6  Col 7-13\n"
          "Row 0-3  0,2      1,3\n" },
        { "dp=2,tp=2",
          "P(sum)R",
          1,
          { 3 },
          "P(sum)R on dp=2,tp=2, shape [3]\n"
          "Row 0-2  0,1 + 2,3\n" },
        { "dp=2,tp=2",
          "S(0)[1]S(0)[0]",
          1,
          { 4 },
          "S(0)[1]S(0)[0] on dp=2,tp=2, shape [4]\n"
          "Row 0  0\n"
          "Row 1  2\n"
          "Row 2  1\n"
          "Row 3  3\n" },
        { "tp=3",
          "S(0,offsets=0:1:1:7)",
          1,
          { 7 },
          "S(0,offsets=0:1:1:7) on tp=3, shape [7]\n"
          "Row 0    0\n"
          "Row 1-6  2\n"
          "empty on 1\n" },
        { "tp=2",
          "S(0,blocks=4:2:2)",
          2,
          { 8, 3 }, /* q | k | v: a rank has a part of each */
          "S(0,blocks=4:2:2) on tp=2, shape [8, 3]\n"
          "         Col 0-2\n"
          "Row 0-1  0\n"
          "Row 2-3  1\n"
          "Row 4    0\n"
          "Row 5    1\n"
          "Row 6    0\n"
          "Row 7    1\n" },
        { "tp=2",
          "S(2)",
          3,
          { 9, 9, 5 },
          "S(2) on tp=2, shape [9, 9, 5]\n"
          "axis 2: 0-2  0\n"
          "axis 2: 3-4  1\n" },
        { "tp=2", "R", 0, { 0 }, "R on tp=2, shape []\n0,1\n" },
        { "tp=2",
          "S(0)",
          2,
          { 0, 3 },
          "S(0) on tp=2, shape [0, 3]\n"
          "  Col 0-2\n"
          "empty on 0 1\n" },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks(cases[i].mesh, table_is, &cases[i]);
}

static size_t count_of(const char *text, const char *word)
{
    size_t n = 0;

    for (const char *p = text; (p = strstr(p, word)) != NULL; p++) n++;
    return n;
}

static dt_status drawing(dt_mesh *mesh, const void *arg)
{
    const dt_placement tiles[] = { DT_SHARD(0), DT_SHARD(1) };
    const int64_t shape[] = { 3, 5 };
    DT_HELD(tensor) *x = NULL;
    char text[MAX_TEXT];
    int length;

    (void)arg;
    DT_TRY(dt_ones(mesh, tiles, DT_F32, 2, shape, &x));
    DT_TRY(dt_visualize(x, DT_DRAW_SVG, text, sizeof text, &length));
    DT_EXPECT(length < MAX_TEXT && (int)strlen(text) == length, "%d bytes", length);
    DT_EXPECT(strncmp(text, "<svg xmlns=", 11) == 0 && strcmp(text + length - 7, "</svg>\n") == 0,
              "no SVG");
    DT_EXPECT(count_of(text, "<rect ") == 6, "%zu cells", count_of(text, "<rect "));
    DT_EXPECT(count_of(text, "<text ") == count_of(text, "</text>") &&
                  count_of(text, "<text ") == 6 + 5 + 1 + 1,
              "%zu texts", count_of(text, "<text ")); /* cells, labels, head, empty ranks */
    DT_EXPECT(strstr(text, ">empty on 6 7<") != NULL, "empty ranks");
    return DT_OK;
}

DT_TEST(visualize, svg_has_a_cell_per_piece)
{
    dt_test_on_ranks("dp=4,tp=2", drawing, NULL);
}

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 4, 4, 4 };
    const dt_layout *l, *other;
    DT_HELD(mesh) *line = NULL;
    char text[64];

    (void)arg;
    DT_TRY(dt_layout_parse(mesh, 3, "S(0)S(1)S(2)", &l));
    DT_TRY(dt_mesh_create(dt_mesh_runtime(mesh), "tp=2", &line));
    DT_TRY(dt_layout_parse(line, 1, "S(0)", &other));
    DT_EXPECT_STATUS(dt_visualize_layout(mesh, l, shape, DT_DRAW_TEXT, text, sizeof text, NULL),
                     DT_ERR_UNSUPPORTED, "more than two axes");
    DT_EXPECT_STATUS(dt_visualize_layout(mesh, other, shape, DT_DRAW_TEXT, text, sizeof text, NULL),
                     DT_ERR_LAYOUT, "the layout is for 1 mesh dims, the mesh has 3");
    DT_EXPECT_STATUS(dt_visualize_layout(mesh, NULL, shape, DT_DRAW_TEXT, text, sizeof text, NULL),
                     DT_ERR_ARG, "NULL");
    return DT_OK;
}

DT_TEST(visualize, what_has_no_table_is_refused)
{
    dt_test_on_ranks("a=2,b=2,c=2", refused, NULL);
}
