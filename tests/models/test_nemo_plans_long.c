/* SPDX-License-Identifier: Apache-2.0
 *
 * Every plan of NeMo Automodel on every fixture that it is for, on 1 to 4 ranks. */
#include "tests/support/nemo_plans.h"

DT_TEST(nemo_plans_long, all_of_them_give_the_tokens_of_transformers)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (int i = 0; i < dt_n_nemo_cases; i++)
        for (size_t m = 0; m < sizeof meshes / sizeof meshes[0]; m++)
            for (int tokens_cut = 0; tokens_cut < 2; tokens_cut++)
                dt_nemo_check(&dt_nemo_cases[i], meshes[m], tokens_cut == 1);
}
