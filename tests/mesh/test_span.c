/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout algebra under meshes: the facts that PyTorch's own tests of it state. */
#include "mesh/span.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"

enum { MAX_PAIRS = 5 };

/* Pairs as written, sizes end with 0. */
typedef struct pairs {
    int size[MAX_PAIRS + 1], stride[MAX_PAIRS];
} pairs;

static dti_span span_of(const pairs *p)
{
    dti_span s = { 0 };

    for (int k = 0; p->size[k] > 0; k++) dti_span_add(&s, p->size[k], p->stride[k]);
    return s;
}

/* "2,2:4,1": sizes, then strides. */
static const char *text_of(const dti_span *s, char text[128])
{
    size_t n = 0;

    text[0] = '\0';
    for (int k = 0; k < s->n; k++)
        n += (size_t)snprintf(text + n, 128 - n, "%s%d", k ? "," : "", s->size[k]);
    for (int k = 0; k < s->n; k++)
        n += (size_t)snprintf(text + n, 128 - n, "%s%d", k ? "," : ":", s->stride[k]);
    return text;
}

DT_TEST(span, pairs_coalesce)
{
    static const struct {
        pairs p;
        const char *want, *places;
    } cases[] = {
        { { { 1, 3, 1, 5, 1 }, { 0, 10, 17, 2, 1 } },
          "15:2",
          "0 2 4 6 8 10 12 14 16 18 20 22 24 26 28" },
        { { { 2, 2 }, { 4, 1 } }, "2,2:4,1", "0 1 4 5" },
        { { { 2, 2 }, { 2, 4 } }, "2,2:2,4", "0 4 2 6" },
        { { { 2, 2 }, { 1, 2 } }, "2,2:1,2", "0 2 1 3" },
        { { { 2, 3 }, { 6, 1 } }, "2,3:6,1", "0 1 2 6 7 8" },
        { { { 2, 2, 2 }, { 4, 2, 1 } }, "8:1", "0 1 2 3 4 5 6 7" },
        { { { 1 }, { 7 } }, "", "0" },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const dti_span s = span_of(&cases[i].p);
        char text[128], places[128];
        size_t n = 0;
        DT_ASSERT_EQ_STR(text_of(&s, text), cases[i].want);
        for (int k = 0; k < dti_span_count(&s); k++) {
            const int place = dti_span_place(&s, k);
            int index = -1;
            n += (size_t)snprintf(places + n, sizeof places - n, "%s%d", k ? " " : "", place);
            DT_ASSERT(dti_span_find(&s, place, &index));
            DT_ASSERT_EQ_INT(index, k);
        }
        DT_ASSERT_EQ_STR(places, cases[i].places);
    }
}

DT_TEST(span, places_that_are_not_on_it_are_not_found)
{
    const dti_span s = span_of(&(pairs){ { 2, 3 }, { 6, 1 } });
    int index;

    for (int place = -2; place < 12; place++) {
        const bool on = (place >= 0 && place < 3) || (place >= 6 && place < 9);
        DT_ASSERT_EQ_INT(dti_span_find(&s, place, &index), on);
    }
}

DT_TEST(span, overlaps_are_seen)
{
    static const struct {
        pairs p;
        bool overlaps;
    } cases[] = {
        { { { 2, 3 }, { 6, 1 } }, false },
        { { { 2, 3 }, { 2, 1 } }, true },
        { { { 2, 2, 2 }, { 4, 1, 2 } }, false },
        { { { 3, 2 }, { 2, 3 } }, true }, /* places differ, but cannot be told by division */
        { { { 4, 2 }, { 1, 1 } }, true },
        { { { 2 }, { 0 } }, true },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const dti_span s = span_of(&cases[i].p);
        DT_ASSERT_EQ_INT(dti_span_overlaps(&s), cases[i].overlaps);
    }
}

DT_TEST(span, picking_composes)
{
    static const struct {
        pairs of;
        int size, stride;
        const char *want; /* NULL: cannot be picked */
    } cases[] = {
        { { { 4 }, { 2 } }, 2, 2, "2:4" },
        { { { 4 }, { 2 } }, 2, 1, "2:2" },
        { { { 4, 2 }, { 4, 1 } }, 2, 3, NULL },
        { { { 4, 2 }, { 4, 1 } }, 4, 2, "4:4" },
        { { { 2, 2 }, { 4, 1 } }, 4, 1, "2,2:4,1" },
        { { { 2, 2 }, { 4, 1 } }, 2, 2, "2:4" },
        { { { 2, 3 }, { 8, 1 } }, 3, 2, NULL },
        { { { 4, 3 }, { 8, 1 } }, 4, 1, NULL }, /* the whole inner pair, and a part of the outer */
        { { { 4, 3 }, { 8, 1 } }, 6, 1, "2,3:8,1" },
        { { { 6 }, { 1 } }, 2, 3, "2:3" },
        { { { 6 }, { 1 } }, 3, 1, "3:1" },
        { { { 4 }, { 1 } }, 8, 1, NULL },
        { { { 4 }, { 1 } }, 1, 9, "" },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const dti_span of = span_of(&cases[i].of);
        dti_span got;
        char text[128];
        const bool can = dti_span_pick(&of, cases[i].size, cases[i].stride, &got);
        DT_ASSERT_EQ_INT(can, cases[i].want != NULL);
        if (can) DT_ASSERT_EQ_STR(text_of(&got, text), cases[i].want);
    }
}
