/* SPDX-License-Identifier: Apache-2.0
 *
 * What policies say of how files store a weight: areas side by side, and which axis comes first. */
#include <dtensor/models.h>
#include <string.h>

#include "models/policies/policies.h"
#include "tests/support/dt_test.h"

/* Areas of two sizes, cut on their own; of the weight as files hold it and of the one in memory. */
static dt_status cuts_areas(dt_mesh *mesh, const void *arg)
{
    static const dt_policy_layer qkv[] = { { .weight = "attn.c_attn.weight",
                                             .bias = "attn.c_attn.bias",
                                             .n_fused = 3,
                                             .reversed = true } };
    static const dt_policy_layer wrong[][1] = {
        { { .weight = "attn.c_attn.weight", .reversed = true } },
        { { .weight = "attn.c_attn.weight", .n_fused = 2, .reversed = true } },
        { { .weight = "attn.c_attn.weight", .n_fused = 3 } },
    };
    static const char *const says[] = { "are 3 areas, each cut on its own; n_fused = 3",
                                        "n_fused is 2, but the outputs of", "set reversed" };
    const dt_layer_spec spec = {
        .name = "h.0.attn.c_attn",
        .kind = &dt_linear_kind,
        .axis = { { 10, DT_UNIT_ROW }, { 6, DT_UNIT_ROW } },
        .with = "bias",
        .blocks = { { 3, { { 5, DT_UNIT_ROW }, { 3, DT_UNIT_ROW }, { 2, DT_UNIT_ROW } } } },
        .reversed = true,
    };
    const dt_arch arch = { .model_type = "gpt2", .block_class = "GPT2Block", .blocks = "h.*" };
    dt_policy p = { .size = sizeof p,
                    .original_layer_class = "GPT2Block",
                    .attn_qkv = { DT_POLICY_LIST(qkv) } };
    const dt_policy *const list = &p;
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    dti_described d = { .arch = &arch, .builder = { .specs = (dt_layer_spec *)&spec, .n = 1 } };
    dt_layers *layers = NULL;
    dt_status st = DT_OK;

    (void)arg;
    options.policies = &list;
    options.n_policies = 1;
    DT_TRY_TO(done, st, dti_policies_plan(&d, &options));
    DT_EXPECT_TO(done, st,
                 d.notes.plan.n_rules == 1 &&
                     strcmp(d.notes.plan.rules[0].style, "packed_colwise") == 0,
                 "packed");
    DT_TRY_TO(done, st, dt_layers_create(mesh, "tp", &spec, 1, &d.notes.plan, &layers));
    for (int w = 0; w < 2; w++)
        DT_EXPECT_TO(
            done, st,
            dt_layout_placement(dt_layer_param_layout(dt_layers_at(layers, 0), w), 0).n_blocks == 3,
            "weight and bias in three areas");
    for (int i = 0; i < 3; i++) {
        dti_free(d.notes.rules);
        dti_arena_free(&d.notes.arena);
        d.notes = (dti_policy_notes){ 0 };
        p.attn_qkv.layers = wrong[i];
        st = dt_test_expect_status(__func__, __FILE__, __LINE__, dti_policies_plan(&d, &options),
                                   DT_ERR_ARG, says[i]);
        if (st != DT_OK) goto done;
    }
done:
    dt_layers_release(&layers);
    dti_free(d.notes.rules);
    dti_arena_free(&d.notes.arena);
    return st;
}

DT_TEST(policies, fused_weights_are_cut_area_by_area)
{
    dt_test_on_ranks("tp=2", cuts_areas, NULL);
    dt_test_on_ranks("tp=3", cuts_areas, NULL);
    dt_test_on_ranks("tp=4", cuts_areas, NULL);
}
