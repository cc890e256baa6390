/* SPDX-License-Identifier: Apache-2.0
 *
 * Who waits for a prompt is told of its layers, and of no single tokens. */
#include <dtensor/generation.h>

#include "models/run/state.h"
#include "tests/support/dt_test.h"

typedef struct told {
    int64_t n, next, total;
    bool in_order;
} told;

static void on_layer(void *arg, int64_t done, int64_t total)
{
    told *t = arg;

    t->in_order &= done == t->next % total;
    t->next = done + 1;
    t->total = total;
    t->n++;
}

static dt_status listen(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[] = { 1, 2, 3, 4, 5 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    told t = { .in_order = true };

    DT_TRY(dt_model_load(mesh, dt_test_source_path(folder, "%s", (const char *)arg), NULL, &m));
    DT_TRY(dt_state_create(m, 1, 16, &s));
    s->progress = on_layer;
    s->progress_arg = &t;
    o.max_new_tokens = 4;
    o.ignore_eos = true;
    DT_TRY(dt_generate(m, s, ids, 5, &o, NULL, NULL));
    DT_EXPECT(t.n == dt_model_info_of(m)->n_layers && t.total == t.n && t.in_order,
              "told %lld times of %lld layers", (long long)t.n, (long long)t.total);
    return DT_OK;
}

DT_TEST(progress, a_prompt_tells_of_each_layer_once)
{
    static const char *const folders[] = { "tests/golden/llama/uneven", "tests/golden/gemma3/base",
                                           "tests/golden/gpt_neo/base", "tests/golden/phi3/base" };

    for (size_t i = 0; i < DT_COUNT(folders); i++) {
        dt_test_on_ranks("tp=1", listen, folders[i]);
        dt_test_on_ranks("tp=2", listen, folders[i]);
    }
}
