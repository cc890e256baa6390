/* SPDX-License-Identifier: Apache-2.0
 *
 * What a layer's spec and a style of one's own say that cannot be. */
#include <dtensor/parallel_styles.h>

#include "tests/support/dt_test.h"

static dt_status specs(dt_mesh *mesh, const void *arg)
{
    static const struct {
        dt_axis axis[2];
        dt_head_counts heads;
        int64_t n_experts;
        const char *said; /* NULL: nothing is wrong */
    } rows[] = {
        { { { 6, 0 }, { 4, 0 } }, { 0 }, 0, NULL },
        { { { 0, 0 }, { 4, 0 } }, { 0 }, 0, "it: axis 0, 'o' of a linear layer, has extent 0" },
        { { { 12, 1 }, { 4, 0 } }, { 6, 2, 2 }, 0, NULL },
        { { { -1, 0 }, { 4, 0 } }, { 0 }, 0, "has extent -1, must be 1 or more" },
        { { { 6, 0 }, { -5, 0 } }, { 0 }, 0, "it: axis 1, 'i' of a linear layer, has extent -5" },
        { { { 6, 77 }, { 4, 0 } }, { 0 }, 0, "it: axis 0 has unit 77, which is no dt_axis_unit" },
        { { { (int64_t)1 << 40, 0 }, { (int64_t)1 << 40, 0 } },
          { 0 },
          0,
          "it: its weight exceeds 2^63 bytes at axis 1 of 1099511627776" },
        { { { (int64_t)1 << 62, 0 }, { 1, 0 } }, { 0 }, 0, "exceeds 2^63 bytes at axis 0" },
        { { { (int64_t)1 << 30, 0 }, { (int64_t)1 << 20, 0 } },
          { 0 },
          (int64_t)1 << 40,
          "it: its weight exceeds 2^63 bytes at axis 1 of 1073741824" },
        { { { 6, 1 }, { 4, 0 } }, { 0, 0, 0 }, 0, "axis 0 counts heads, but there are 0 heads" },
        { { { 6, 0 }, { 4, 2 } }, { -3, 1, 2 }, 0, "axis 1 counts heads, but there are -3 heads" },
        { { { 6, 1 }, { 4, 0 } }, { 3, 2, 2 }, 0, "3 heads, 2 kv heads, each of 2 rows" },
        { { { 6, 1 }, { 4, 0 } }, { 2, 4, 2 }, 0, "2 heads, 4 kv heads, each of 2 rows" },
        { { { 6, 1 }, { 4, 0 } },
          { (int64_t)1 << 40, 1, (int64_t)1 << 40 },
          0,
          "it: 1099511627776 heads of 1099511627776 rows exceed 2^63 rows" },
    };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_layer_spec spec = {
            .name = "it",
            .kind = rows[i].n_experts > 0 ? &dt_experts_kind : &dt_linear_kind,
            .axis = { rows[i].axis[0], rows[i].axis[1], { rows[i].n_experts, 0 } },
            .heads = rows[i].heads,
            .style = "colwise"
        };
        dt_layers *layers = NULL;
        const dt_status st = dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers);
        dt_layers_release(&layers);
        if (rows[i].said == NULL)
            DT_TRY(st);
        else
            DT_EXPECT_STATUS(st, DT_ERR_ARG, rows[i].said);
    }
    return DT_OK;
}

DT_TEST(axes, those_that_cannot_be_are_refused)
{
    dt_test_on_ranks("tp=1", specs, NULL);
    dt_test_on_ranks("tp=3", specs, NULL);
}

static dt_status cuts(dt_mesh *mesh, const void *arg)
{
    dt_style style = { .size = sizeof style, .cut = (dt_cut)44 };
    dt_layers *layers = NULL;
    const dt_axis kv = { 8, DT_UNIT_KV_HEADS };
    const dt_head_counts bad = { 4, -1, 2 };
    dt_status st;

    (void)arg;
    DT_EXPECT_STATUS(dt_style_register(dt_mesh_runtime(mesh), "mine", &style), DT_ERR_ARG,
                     "style \"mine\": its cut is 44, which is no dt_cut; they go from 0");
    style.cut = (dt_cut)-1;
    DT_EXPECT_STATUS(dt_style_register(dt_mesh_runtime(mesh), "mine", &style), DT_ERR_ARG,
                     "its cut is -1");
    style.cut = DT_CUT_EXPERTS;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "mine", &style));
    DT_EXPECT(dt_cut_axis(&kv, NULL, 0, 2).kind == DT_PLACE_SHARD, "no heads: a plain cut");
    DT_EXPECT(dt_cut_axis(&kv, &bad, 0, 2).kind == DT_PLACE_SHARD, "no kv heads: a plain cut");
    DT_EXPECT(dt_cut_axis(&kv, NULL, 0, 1).kind == DT_PLACE_SHARD, "one part is a cut too");
    DT_EXPECT(dt_cut_axis(&kv, &bad, 0, 0).kind == DT_PLACE_REPLICATE, "no parts");
    DT_EXPECT(dt_cut_axis(NULL, &bad, 0, 2).kind == DT_PLACE_REPLICATE, "no axis");
    st = dt_layers_create(mesh, "tp", NULL, 0, NULL, &layers);
    DT_EXPECT_TO(done, st, dt_layers_find(layers, NULL) == NULL, "no name, no layer");
    DT_EXPECT_TO(done, st, dt_layers_find(NULL, "it") == NULL, "no list, no layer");
done:
    dt_layers_release(&layers);
    return st;
}

DT_TEST(axes, cuts_that_are_none_are_refused)
{
    dt_test_on_ranks("tp=1", cuts, NULL);
}
