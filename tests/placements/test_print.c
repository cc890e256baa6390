/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <string.h>

#include "tests/placements/grid.h"

DT_TEST(print, layouts_are_written_in_the_trace_grammar_and_read_back)
{
    static const struct {
        grid g;
        const char *text;
        const char *printed; /* NULL: as `text` */
    } rows[] = {
        { { 2, { 2, 2 } }, "S(0)R", NULL },
        { { 2, { 2, 2 } }, "RR", NULL },
        { { 2, { 2, 2 } }, "P(sum)R", NULL },
        { { 2, { 2, 2 } }, "RP(max)", NULL },
        { { 2, { 2, 2 } }, "S(0)[1]S(0)[0]", NULL },
        { { 2, { 2, 2 } }, "S(0)[0]S(0)[1]", NULL },
        { { 2, { 2, 2 } }, "S(0)S(0)", "S(0)[0]S(0)[1]" },
        { { 2, { 2, 2 } }, "S(1)S(-1)", "S(1)[0]S(1)[1]" },
        { { 3, { 2, 2, 2 } }, "S(0)[2]S(0)[0]S(0)[1]", NULL },
        { { 4, { 2, 2, 2, 2 } }, "S(0)[1]S(1)S(0)[0]S(1)", "S(0)[1]S(1)[0]S(0)[0]S(1)[1]" },
        { { 4, { 2, 2, 2, 2 } }, "S(0)[1]S(1)[1]S(0)[0]S(1)[0]", NULL },
        { { 3, { 2, 1, 2 } }, "S(0)[1]S(0)S(0)[0]", NULL }, /* one rank has no place */
        { { 3, { 2, 1, 2 } }, "S(0)[2]S(0)[1]S(0)[0]", "S(0)[1]S(0)S(0)[0]" },
        { { 1, { 4 } }, "S(0,unit=32,replicas=2)", NULL },
        { { 1, { 4 } }, "S(1,replicas=4)", NULL },
        { { 1, { 4 } }, "S(0,unit=32,replicas=2,sum)", NULL },
        { { 1, { 4 } }, "s(0, sum, replicas=2)", "S(0,replicas=2,sum)" },
        { { 1, { 4 } }, "S(0,replicas=2,sum,blocks=64:16:16)", NULL },
        { { 1, { 4 } }, "S(0,sum)", "S(0)" },              /* one holder: the value */
        { { 1, { 4 } }, "S(1,replicas=4,sum)", "P(sum)" }, /* all hold terms of all */
        { { 2, { 2, 1 } }, "S(0,replicas=2,sum)S(1,sum)", "P(sum)S(1)" },
        { { 1, { 4 } }, " s( 0 , replicas = 2 , unit = 32 ) ", "S(0,unit=32,replicas=2)" },
        { { 2, { 2, 2 } }, "r p(avg)", "RP(avg)" },
        { { 2, { 2, 2 } }, "PR", "P(sum)R" },
        { { 2, { 2, 2 } }, "P(product)R", "P(prod)R" },
        { { 2, { 3, 2 } }, "S(0,offsets=0:3:3:10)R", NULL },
        { { 2, { 2, 2 } }, "S(0,blocks=64:16:16)S(1)", NULL },
        { { 1, { 2 } }, "S(0,blocks=64:16:16,units=32:8:8)", NULL },
        { { 1, { 2 } }, "S(0,blocks=64:16,units=8:8)", "S(0,unit=8,blocks=64:16)" },
        { { 2, { 2, 2 } }, "S(0,blocks=6:2,unit=2)[1]S(0)[0]", "S(0,unit=2,blocks=6:2)[1]S(0)[0]" },
    };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_layout *l = layout(t, &rows[i].g, 2, rows[i].text);
        char text[128];
        const int n = dt_layout_print(l, text, sizeof text);
        DT_ASSERT_EQ_STR(text, rows[i].printed ? rows[i].printed : rows[i].text);
        DT_ASSERT_EQ_INT(n, strlen(text));
        DT_ASSERT(layout(t, &rows[i].g, 2, text) == l);
    }
    dti_layouts_destroy(t);
}

DT_TEST(print, short_buffers_are_cut_like_snprintf)
{
    dti_layouts *t = new_table();
    const dt_layout *l = layout(t, &(grid){ 2, { 2, 2 } }, 2, "S(0)P(sum)");
    char text[16] = "untouched";

    DT_ASSERT_EQ_INT(dt_layout_print(l, NULL, 0), 10);
    DT_ASSERT_EQ_INT(dt_layout_print(l, text, 0), 10);
    DT_ASSERT_EQ_STR(text, "untouched");
    for (size_t n = 1; n < sizeof text; n++) {
        DT_ASSERT_EQ_INT(dt_layout_print(l, text, n), 10);
        DT_ASSERT_EQ_INT(strlen(text), n - 1 < 10 ? n - 1 : 10);
        DT_ASSERT(strncmp(text, "S(0)P(sum)", strlen(text)) == 0);
    }
    DT_ASSERT_EQ_INT(dt_placement_print(&DT_PARTIAL(DT_PROD), text, sizeof text), 7);
    DT_ASSERT_EQ_STR(text, "P(prod)");
    DT_ASSERT_EQ_INT(dt_placement_print(&(dt_placement){ .kind = (dt_place_kind)7 }, text, 16), 1);
    DT_ASSERT(dt_layout_print(NULL, text, sizeof text) > 0);
    dti_layouts_destroy(t);
}

DT_TEST(print, placements_are_read_in_words_too)
{
    static const struct {
        const char *text, *printed;
    } rows[] = {
        { "replicate", "R" },
        { "Replicate()", "R" },
        { "R", "R" },
        { "shard(0)", "S(0)" },
        { "Shard(-1)", "S(-1)" },
        { "S(3)", "S(3)" },
        { "partial", "P(sum)" },
        { "Partial(max)", "P(max)" },
        { "P", "P(sum)" },
        { "shard(1,unit=4)", "S(1,unit=4)" },
        { "S(1, unit=1, replicas=1)", "S(1)" },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dti_parsed p;
        char text[64];
        DT_ASSERT_OK(dti_placements_parse(rows[i].text, 1, &p));
        (void)dt_placement_print(&p.place[0], text, sizeof text);
        DT_ASSERT_EQ_STR(text, rows[i].printed);
    }
}

DT_TEST(print, words_in_messages_are_read_back)
{
    static const struct {
        dt_placement place;
        const char *words;
    } rows[] = {
        { { .kind = DT_PLACE_REPLICATE }, "Replicate" },
        { { .kind = DT_PLACE_PARTIAL, .reduce = DT_MAX }, "Partial(max)" },
        { { .kind = DT_PLACE_SHARD, .axis = 1, .replicas = 1, .unit = 1 }, "Shard(1)" },
        { { .kind = DT_PLACE_SHARD, .axis = 0, .replicas = 2, .unit = 4 },
          "Shard(0, unit=4, replicas=2)" },
        { { .kind = DT_PLACE_SHARD, .replicas = 2, .unit = 4, .terms = true },
          "Shard(0, unit=4, replicas=2, sum)" },
        { { .kind = DT_PLACE_SHARD, .axis = INT_MIN, .replicas = INT_MAX, .unit = INT64_MAX },
          "Shard(-2147483648, unit=9223372036854775807, replicas=2147483647)" },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        char words[DTI_PLACEMENT_BYTES], read[DTI_PLACEMENT_BYTES];
        dti_parsed p;
        DT_ASSERT_EQ_STR(dti_placement_words(&rows[i].place, words), rows[i].words);
        DT_ASSERT_OK(dti_placements_parse(words, 1, &p));
        DT_ASSERT_EQ_STR(dti_placement_words(&p.place[0], read), words);
    }
}

DT_TEST(print, malformed_text_is_shown_with_the_place)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        { "", "0 given, the mesh has 1 dim" },
        { "colwise", "\"colwise\" is no placement; write replicate, shard(axis)" },
        { "S", "'(' expected at \"\"" },
        { "S()", "a number of at least" },
        { "S(0", "')' expected at \"\"" },
        { "S(99999999999)", "the number at \"99999999999)\" is too large, at most 2147483647" },
        { "S(0,unit=99999999999999999999)", "is too large, at most 9223372036854775807" },
        { "S(-99999999999)", "a number of at least -2147483648 expected at" },
        { "S(0,unite=2)", "\"unite\" is neither \"unit\" nor \"replicas\"" },
        { "S(0,units=2)", "1 units of 0 blocks" },
        { "S(0,blocks=4:4,units=2)", "1 units of 2 blocks" },
        { "S(0,unit=0)", "a number of at least 1 expected at \"0)\"" },
        { "S(0,unit)", "'=' expected at \")\"" },
        { "S(0,offsets=)", "a number of at least 0" },
        { "S(0,blocks=3:)", "a number of at least 0" },
        { "P(median)", "\"median\" is no reduction; there are sum, avg, min, max, prod" },
        { "P(sum", "')' expected" },
        { "RR", "\"R\" follows, the mesh has 1 dim" },
        { "shard(0)x", "\"x\" follows, the mesh has 1 dim" },
        { "replicatereplicatereplicate", "is no placement" },
    };
    static dti_parsed out;

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        DT_ASSERT_STATUS(dti_placements_parse(rows[i].text, 1, &out), DT_ERR_ARG,
                         i + 1 < DT_COUNT(rows) ? rows[i].message : NULL);
    DT_ASSERT_STATUS(dti_placements_parse(NULL, 1, &out), DT_ERR_ARG, "NULL");
    DT_ASSERT_STATUS(dti_placements_parse("S(0)", 2, &out), DT_ERR_ARG,
                     "placements \"S(0)\": 1 given, the mesh has 2 dims");
    DT_ASSERT_STATUS(dti_placements_parse("S(0)RR", 2, &out), DT_ERR_ARG,
                     "\"R\" follows, the mesh has 2 dims");
    DT_ASSERT_STATUS(dti_placements_parse("S(0)[8]S(0)[0]", 2, &out), DT_ERR_ARG,
                     "the number at \"8]S(0)[0]\" is too large, at most 7 is possible");
}

DT_TEST(print, layouts_of_any_mesh_are_read_without_ranks)
{
    static const struct {
        const char *mesh, *text, *message;
        dt_status code;
    } rows[] = {
        { "tp=2", "S(0)[5]",
          "placements \"S(0)[5]\": mesh dim 0 is Shard(0) at place 5 among the cuts of its axis, "
          "but "
          "there is only 1",
          DT_ERR_LAYOUT },
        { "dp=2,tp=2", "S(0)[1]S(1)[0]",
          "at place 1 among the cuts of its axis, but there is only 1", DT_ERR_LAYOUT },
        { "dp=2,tp=2", "S(0)[1]S(0)[1]",
          "placements \"S(0)[1]S(0)[1]\": mesh dims 0 and 1 both stand at place 1 among the cuts "
          "of "
          "axis 0",
          DT_ERR_LAYOUT },
        { "dp=2,tp=2", "S(0)[1]S(0)", "only one of them names its place", DT_ERR_LAYOUT },
        { "dp=2,tp=2", "S(5)R", "mesh dim 0 is Shard(5)", DT_ERR_LAYOUT },
        { "dp=2,tp=2", "S(0)", "1 given, the mesh has 2 dims", DT_ERR_ARG },
        { "dp=0", "R", "dp", DT_ERR_ARG },
        { NULL, "R", "mesh is NULL", DT_ERR_ARG },
    };
    DT_HELD(layouts) *all = NULL;
    const dt_layout *l;
    char text[64];

    DT_ASSERT_OK(dt_layouts_create(&all));
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=16,pp=64,tp=16", 3, "S(0)RS(0)", &l));
    (void)dt_layout_print(l, text, sizeof text);
    DT_ASSERT_EQ_STR(text, "S(0)[0]RS(0)[1]");
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=1,tp=2", 2, "S(0)[1]S(-2)[0]", &l));
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        DT_ASSERT_STATUS(dt_layouts_parse(all, rows[i].mesh, 2, rows[i].text, &l), rows[i].code,
                         rows[i].message);
        DT_ASSERT(l == NULL);
    }
    dt_layouts_release(&all);
    DT_ASSERT(all == NULL);
}
