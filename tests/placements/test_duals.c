/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of a gradient follows from that of its value. What moves between them preserve is in
 * tests/dtensor/test_move_duals.c. */
#include "placements/duals.h"
#include "tests/placements/grid.h"

DT_TEST(duals, gradients_lie_as_their_values_do)
{
    static const struct {
        const char *value, *comes, *gradient;
    } rows[] = {
        { "RR", NULL, "RR" },
        { "RR", "P(sum)R", "P(sum)R" },
        { "RR", "P(avg)S(0)", "RR" },
        { "RR", "S(0,replicas=2,sum)S(0)", "RR" },
        { "S(0)R", "P(sum)P(sum)", "S(0)P(sum)" },
        { "P(sum)S(1)", NULL, "RS(1)" },
        { "P(sum)S(1)", "P(sum)S(1)", "RS(1)" },
        { "S(0)[1]S(0)[0]", "P(sum)R", "S(0)[1]S(0)[0]" },
        { "S(0,unit=4,replicas=2)R", NULL, "S(0,unit=4,replicas=2,sum)R" },
        { "S(0,unit=4,replicas=2)R", "P(sum)P(sum)", "S(0,unit=4,replicas=2,sum)P(sum)" },
        { "S(0,unit=4,replicas=2,sum)R", NULL, "S(0,unit=4,replicas=2)R" },
        { "S(0,replicas=4)R", NULL, "S(0,replicas=4)R" }, /* cuts nothing */
        { "S(0,replicas=4)R", "P(sum)R", "P(sum)R" },
        { "S(0,blocks=8:4:4,units=4:2:2)S(1)", NULL, "S(0,blocks=8:4:4,units=4:2:2)S(1)" },
        { "S(0,replicas=2,blocks=8:4:4)S(1)", NULL, "S(0,replicas=2,sum,blocks=8:4:4)S(1)" },
        { "S(0,offsets=0:0:9:9:16)R", NULL, "S(0,offsets=0:0:9:9:16)R" },
    };
    const grid g = { 2, { 4, 2 } };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_layout *value = layout(t, &g, 2, rows[i].value), *gradient;
        const dt_layout *comes = rows[i].comes != NULL ? layout(t, &g, 2, rows[i].comes) : NULL;
        DT_ASSERT_OK(dti_dual_layout(value, comes, &gradient));
        char text[128];
        (void)dt_layout_print(gradient, text, sizeof text);
        DT_ASSERT_EQ_STR(text, rows[i].gradient);
    }
    dti_layouts_destroy(t);
}

DT_TEST(duals, values_that_are_no_sums_have_no_gradient)
{
    static const char *const reductions[] = { "avg", "min", "max", "prod" };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(reductions); i++) {
        char text[32], message[64];
        const dt_layout *gradient;
        (void)snprintf(text, sizeof text, "RP(%s)", reductions[i]);
        (void)snprintf(message, sizeof message, "is Partial(%s) on mesh dim 1 has no gradient",
                       reductions[i]);
        DT_ASSERT_STATUS(
            dti_dual_layout(layout(t, &(grid){ 2, { 2, 2 } }, 1, text), NULL, &gradient),
            DT_ERR_UNSUPPORTED, message);
        DT_ASSERT(gradient == NULL);
    }
    dti_layouts_destroy(t);
}
