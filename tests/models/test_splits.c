/* SPDX-License-Identifier: Apache-2.0
 *
 * How a model is cut into stages where nobody says so: of all splits those whose busiest stage does
 * least, of these those whose largest stage holds least, of these the most even one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/load/stages.h"
#include "tests/support/dt_test.h"

enum { MOST_PARTS = 16, MOST_STAGES = 6, D = 16, F = 40 };

typedef struct shape {
    int blocks, words;
    bool tied;
} shape;

static void write_model(const shape *s, const char *folder)
{
    char text[512];
    const int n =
        snprintf(text, sizeof text,
                 "{\"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, "
                 "\"num_hidden_layers\": %d, \"num_attention_heads\": 4, "
                 "\"num_key_value_heads\": 2, \"vocab_size\": %d, \"rms_norm_eps\": 1e-5, "
                 "\"max_position_embeddings\": 32, \"tie_word_embeddings\": %s, "
                 "\"dtype\": \"float32\"}",
                 D, F, s->blocks, s->words, s->tied ? "true" : "false");

    dt_test_write_file(folder, "config.json", text, (size_t)n);
}

/* Parts that a load gives each stage: embedding and head count as the blocks do. */
static void cut(const char *folder, int n_stages, int64_t parts[MOST_STAGES])
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dti_described d = { 0 };
    dti_stages s = { 0 };
    dt_runtime *rt = NULL;
    dt_mesh *mesh = NULL;
    char text[16];

    run.n_ranks = n_stages;
    (void)snprintf(text, sizeof text, "pp=%d", n_stages);
    DT_ASSERT_OK(dt_runtime_create_dry(&run, 0, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, text, &mesh));
    DT_ASSERT_OK(dti_describe_for(folder, mesh, &load, &d));
    DT_ASSERT_OK(dti_stages_cut(&d, mesh, &load, &s));
    for (int i = 0; i < n_stages; i++)
        parts[i] = s.stage[i].n + s.stage[i].embeds + s.stage[i].heads;
    dti_stages_free(&s);
    dti_described_free(&d);
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
}

/* Operations of a token, and parameters, of a part. */
static void price(const shape *s, int part, double *flops, double *held)
{
    const double matrices = 2.0 * D * D + 2.0 * D * D / 2 + 3.0 * D * F;
    const bool embeds = part == 0, heads = part == s->blocks + 1;

    *flops = embeds ? 0 : heads ? 2.0 * s->words * D : 2 * matrices;
    *held = embeds || heads ? s->words * D : matrices + 2 * D;
    if (heads) *held += D; /* its norm */
}

/* What a split comes to: its busiest stage, its largest, the sum of squares. */
typedef struct worth {
    double goal[3];
} worth;

static worth worth_of(const shape *s, int n_stages, const int64_t *parts)
{
    worth w = { { 0, 0, 0 } };
    int at = 0;

    for (int i = 0; i < n_stages; i++) {
        double flops = 0, held = 0;
        for (int64_t k = 0; k < parts[i]; k++, at++) {
            double f, h;
            price(s, at, &f, &h);
            flops += f;
            held += h;
        }
        w.goal[0] = fmax(w.goal[0], flops);
        w.goal[1] = fmax(w.goal[1], held);
        w.goal[2] += flops * flops;
    }
    DT_ASSERT_EQ_INT(at, s->blocks + 2);
    return w;
}

static bool is_better(const worth *a, const worth *b)
{
    for (int g = 0; g < 3; g++)
        if (a->goal[g] != b->goal[g]) return a->goal[g] < b->goal[g];
    return false;
}

/* Tries all splits of what is left over the stages from i on. */
static void try_all(const shape *s, int n_stages, int i, int64_t left, int64_t *parts, worth *best)
{
    if (i == n_stages - 1) {
        worth w;
        parts[i] = left;
        w = worth_of(s, n_stages, parts);
        if (is_better(&w, best)) *best = w;
        return;
    }
    for (parts[i] = 1; parts[i] <= left - (n_stages - 1 - i); parts[i]++)
        try_all(s, n_stages, i + 1, left - parts[i], parts, best);
}

DT_TEST(splits, are_the_best_of_all)
{
    static const int words[] = { 8, 100, 170, 300, 1200 };
    int differ = 0;

    for (int blocks = 1; blocks <= MOST_PARTS - 2; blocks++)
        for (size_t v = 0; v < DT_COUNT(words); v++) {
            const shape s = { blocks, words[v], v % 2 != 0 };
            char folder[DT_TEST_PATH_BYTES];
            write_model(&s, dt_test_temp_dir(folder));
            for (int n = 2; n <= MOST_STAGES && n <= blocks + 2; n++) {
                int64_t is[MOST_STAGES], some[MOST_STAGES];
                worth best = { { INFINITY, INFINITY, INFINITY } }, mine;
                cut(folder, n, is);
                mine = worth_of(&s, n, is);
                try_all(&s, n, 0, blocks + 2, some, &best);
                if (is_better(&best, &mine))
                    dt_test_fail(__FILE__, __LINE__,
                                 "%d blocks, %d words, %d stages: %g, %g, %g where %g, %g, %g is "
                                 "possible",
                                 blocks, words[v], n, mine.goal[0], mine.goal[1], mine.goal[2],
                                 best.goal[0], best.goal[1], best.goal[2]);
                differ += is[0] != is[n - 1];
            }
        }
    DT_ASSERT(differ > 0);
}
