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
        { { 2, { 2, 2 } }, "S(0)[0]S(0)[1]", "S(0)S(0)" },
        { { 2, { 2, 2 } }, "S(1)S(-1)", "S(1)S(1)" },
        { { 3, { 2, 2, 2 } }, "S(0)[2]S(0)[0]S(0)[1]", NULL },
        { { 4, { 2, 2, 2, 2 } },
          "S(0)[1]S(1)S(0)[0]S(1)",
          NULL }, /* only where it is not default */
        { { 4, { 2, 2, 2, 2 } }, "S(0)[1]S(1)[1]S(0)[0]S(1)[0]", NULL },
        { { 3, { 2, 1, 2 } }, "S(0)[1]S(0)S(0)[0]", NULL }, /* one rank has no place */
        { { 3, { 2, 1, 2 } }, "S(0)[2]S(0)[1]S(0)[0]", "S(0)[1]S(0)S(0)[0]" },
        { { 1, { 4 } }, "S(0,unit=32,replicas=2)", NULL },
        { { 1, { 4 } }, "S(1,replicas=4)", NULL },
        { { 1, { 4 } }, " s( 0 , replicas = 2 , unit = 32 ) ", "S(0,unit=32,replicas=2)" },
        { { 2, { 2, 2 } }, "r p(avg)", "RP(avg)" },
        { { 2, { 2, 2 } }, "PR", "P(sum)R" },
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
        dt_placement p;
        char text[64];
        DT_ASSERT_OK(dti_placement_parse(rows[i].text, &p));
        (void)dt_placement_print(&p, text, sizeof text);
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
        { { .kind = DT_PLACE_SHARD, .axis = INT_MIN, .replicas = INT_MAX, .unit = INT64_MAX },
          "Shard(-2147483648, unit=9223372036854775807, replicas=2147483647)" },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        char words[DTI_PLACEMENT_BYTES], read[DTI_PLACEMENT_BYTES];
        dt_placement p;
        DT_ASSERT_EQ_STR(dti_placement_words(&rows[i].place, words), rows[i].words);
        DT_ASSERT_OK(dti_placement_parse(words, &p));
        DT_ASSERT_EQ_STR(dti_placement_words(&p, read), words);
    }
}

DT_TEST(print, malformed_text_is_shown_with_the_place)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        { "", "\"\" is no placement; write replicate, shard(axis)" },
        { "colwise", "\"colwise\" is no placement" },
        { "S", "'(' expected at \"\"" },
        { "S()", "a number of at least" },
        { "S(0", "')' expected at \"\"" },
        { "S(99999999999)", "a number of at least" },
        { "S(0,units=2)", "\"units\" is neither \"unit\" nor \"replicas\"" },
        { "S(0,unit=0)", "a number of at least 1 expected at \"0)\"" },
        { "S(0,unit)", "'=' expected at \")\"" },
        { "P(median)", "\"median\" is no reduction; there are sum, avg, min, max, prod" },
        { "P(sum", "')' expected" },
        { "RR", "\"R\" follows after its end" },
        { "shard(0)x", "\"x\" follows after its end" },
        { "replicatereplicatereplicate", "is no placement" },
    };
    dt_placement place[DT_MAX_DIMS];
    int order[DT_MAX_DIMS];

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        DT_ASSERT_STATUS(dti_placement_parse(rows[i].text, place), DT_ERR_ARG,
                         i + 1 < DT_COUNT(rows) ? rows[i].message : NULL);
    DT_ASSERT_STATUS(dti_placement_parse(NULL, place), DT_ERR_ARG, "NULL");
    DT_ASSERT_STATUS(dti_layout_parse("S(0)", 2, place, order), DT_ERR_ARG,
                     "placements \"S(0)\": 1 given, the mesh has 2 dims");
    DT_ASSERT_STATUS(dti_layout_parse("S(0)RR", 2, place, order), DT_ERR_ARG,
                     "\"R\" follows, the mesh has 2 dims");
    DT_ASSERT_STATUS(dti_layout_parse("S(0)[1]S(0)[1]", 2, place, order), DT_ERR_ARG,
                     "mesh dims 0 and 1 both stand at [1] of axis 0");
    DT_ASSERT_STATUS(dti_layout_parse("S(0)[2]S(0)[0]", 2, place, order), DT_ERR_ARG,
                     "a number of at least 0");
}
