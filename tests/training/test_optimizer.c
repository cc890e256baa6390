/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps on meshes: the same bits wherever sums associate alike. */
#include <dtensor/parallel_styles.h>

#include "tests/support/dt_test.h"
#include "tests/support/small_net.h"

static dt_test_training training(dt_optimizer_rule rule, int passes)
{
    dt_test_training how = { .dtype = DT_F32,
                             .options = DT_OPTIMIZER_OPTIONS_INIT,
                             .steps = DT_NET_STEPS,
                             .passes = passes,
                             .lr = rule == DT_SGD ? 0.1 : 0.01 };

    how.options.rule = rule;
    how.options.momentum = rule == DT_SGD ? 0.9 : 0.0;
    return how;
}

/* Ranks add up as passes of one rank do, where the state lies does not matter. */
DT_TEST(optimizer, ranks_are_as_good_as_passes)
{
    static const char *const meshes[] = { "dp=2", "dp=4" };
    static dt_test_trained alone, other;

    for (int rule = DT_ADAMW; rule <= DT_SGD; rule++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            dt_test_training how = training((dt_optimizer_rule)rule, m == 0 ? 2 : 4);
            dt_test_train(NULL, "dp=1", &how, &alone);
            how.passes = 1;
            for (how.options.zero = 0; how.options.zero <= 2; how.options.zero++) {
                dt_test_train(NULL, meshes[m], &how, &other);
                DT_ASSERT(dt_test_trained_same(&alone, &other));
            }
        }
}

/* Beside cuts of the layers' own, on two dims, over dims of other names. Ranks add up in one order
 * on one mesh, whatever lies where. */
DT_TEST(optimizer, stages_agree_on_any_mesh)
{
    static const struct {
        const char *mesh, *over;
        bool exact; /* terms of two dims are added in one order by all stages */
    } cases[] = { { "dp=2,tp=2", NULL, true },
                  { "tp=2,dp=2", "dp", true },
                  { "dp_replicate=2,dp_shard=2", NULL, false },
                  { "dp_replicate=2,dp_shard=2", "dp_replicate,dp_shard", false },
                  { "tp=3", "tp", true },
                  { "dp=1", NULL, true } };
    static dt_test_trained whole, other, plain;

    for (int rule = DT_ADAMW; rule <= DT_SGD; rule++) {
        dt_test_training how = training((dt_optimizer_rule)rule, 1);
        dt_test_train(NULL, "dp=1", &how, &plain);
        for (size_t c = 0; c < DT_COUNT(cases); c++) {
            how.options.over = cases[c].over;
            how.options.zero = 0;
            dt_test_train(NULL, cases[c].mesh, &how, &whole);
            DT_ASSERT(dt_test_trained_apart(&plain, &whole) < (rule == DT_SGD ? 1e-5 : 1e-3));
            for (how.options.zero = 1; how.options.zero <= 2; how.options.zero++) {
                dt_test_train(NULL, cases[c].mesh, &how, &other);
                DT_ASSERT(cases[c].exact ? dt_test_trained_same(&whole, &other)
                                         : dt_test_trained_apart(&whole, &other) <
                                               (rule == DT_SGD ? 1e-5 : 1e-3));
            }
        }
    }
}

/* Gradients that are reduced after each pass are added up in another order, and no further apart
 * than that. */
DT_TEST(optimizer, several_passes_on_several_ranks)
{
    static dt_test_trained one, two, three, plain;
    dt_test_training how = training(DT_SGD, 4);

    dt_test_train(NULL, "dp=1", &how, &plain);
    how.passes = 2;
    dt_test_train(NULL, "dp=2", &how, &one);
    how.options.zero = 1;
    dt_test_train(NULL, "dp=2", &how, &two);
    how.options.zero = 2;
    dt_test_train(NULL, "dp=2", &how, &three);
    DT_ASSERT(dt_test_trained_same(&one, &two));
    DT_ASSERT(dt_test_trained_apart(&one, &three) < 1e-5 &&
              dt_test_trained_apart(&one, &plain) < 1e-5);
}

/* Parameters that are cut themselves: stage 3, alone, beside cuts of the layers' own, and with
 * copies. The tied table is one parameter. */
DT_TEST(optimizer, stage_three_is_where_parameters_lie)
{
    static const dt_plan over[] = { { .dim = "dp", .others = "fully_shard" },
                                    { .dim = "dp_shard", .others = "fully_shard" } };
    static const struct {
        const char *mesh;
        int plan;
        bool exact;
    } cases[] = { { "dp=2", 0, true },
                  { "dp=4", 0, true },
                  { "dp=2,tp=2", 0, true },
                  { "dp_replicate=2,dp_shard=2", 1, false } };
    static dt_test_trained whole, cut;

    for (int rule = DT_ADAMW; rule <= DT_SGD; rule++)
        for (size_t c = 0; c < DT_COUNT(cases); c++) {
            dt_test_training how = training((dt_optimizer_rule)rule, 1);
            dt_test_train(NULL, cases[c].mesh, &how, &whole);
            how.plan = &over[cases[c].plan];
            for (how.options.zero = 0; how.options.zero <= 2; how.options.zero += 2) {
                dt_test_train(NULL, cases[c].mesh, &how, &cut);
                DT_ASSERT(cases[c].exact ? dt_test_trained_same(&whole, &cut)
                                         : dt_test_trained_apart(&whole, &cut) <
                                               (rule == DT_SGD ? 1e-5 : 1e-3));
            }
        }
}

/* Gradients that are twice what they should be must be seen: plain steps have no scale of their own
 * to hide it. */
DT_TEST(optimizer, a_wrong_scale_is_seen)
{
    static dt_test_trained right, wrong;
    dt_test_training how = training(DT_SGD, 1);

    how.options.clip = 0.0;
    dt_test_train(NULL, "dp=2", &how, &right);
    how.scale = 2.0;
    dt_test_train(NULL, "dp=2", &how, &wrong);
    DT_ASSERT(dt_test_trained_apart(&right, &wrong) > 0.05 &&
              wrong.norms[0] == 2.0 * right.norms[0]);
}

/* Half floats: masters lie where the state does, what they are rounded to is gathered. */
DT_TEST(optimizer, half_floats_agree_on_any_mesh)
{
    static const struct {
        dt_dtype dtype;
        bool masters, stochastic;
    } cases[] = { { DT_BF16, true, false },
                  { DT_BF16, false, false },
                  { DT_BF16, false, true },
                  { DT_F16, true, false },
                  { DT_F16, false, false } };
    static dt_test_trained alone, other, before;

    for (size_t c = 0; c < DT_COUNT(cases); c++) {
        dt_test_training how = training(DT_ADAMW, 2);
        how.dtype = cases[c].dtype;
        how.options.masters = cases[c].masters;
        how.options.stochastic = cases[c].stochastic;
        how.options.loss_scale = how.dtype == DT_F16 ? 1024.0 : -1.0;
        dt_test_train(NULL, "dp=1", &how, &alone);
        DT_ASSERT(c == 0 || alone.n != before.n || dt_test_trained_apart(&alone, &before) > 0.0);
        before = alone;
        how.passes = 1;
        for (how.options.zero = 0; how.options.zero <= 2; how.options.zero++) {
            dt_test_train(NULL, "dp=2", &how, &other);
            DT_ASSERT(dt_test_trained_same(&alone, &other));
        }
    }
}
