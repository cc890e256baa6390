/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: which rule wins, what is reported, tied weights. */
#include <dtensor/parallel_styles.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "parallel_styles/layers_internal.h"
#include "tests/support/dt_test.h"

DT_TEST(plan, a_star_is_one_whole_component)
{
    DT_ASSERT_EQ_INT(dti_plan_match("a.b", "a.b"), 0);
    DT_ASSERT_EQ_INT(dti_plan_match("a.*", "a.b"), 1);
    DT_ASSERT_EQ_INT(dti_plan_match("*.*", "a.b"), 2);
    DT_ASSERT_EQ_INT(dti_plan_match("layers.*.w1", "layers.12.w1"), 1);
    DT_ASSERT_EQ_INT(dti_plan_match("layers.*.w*", "layers.12.w1"), -1); /* not part of one */
    DT_ASSERT_EQ_INT(dti_plan_match("a.*", "a.b.c"), -1);
    DT_ASSERT_EQ_INT(dti_plan_match("a.*.c", "a.c"), -1);
    DT_ASSERT_EQ_INT(dti_plan_match("a", "a.b"), -1);
    DT_ASSERT_EQ_INT(dti_plan_match("a.b", "a"), -1);
    DT_ASSERT_EQ_INT(dti_plan_match("*", ""), -1);
    DT_ASSERT_EQ_INT(dti_plan_match("ab", "ac"), -1);
}

DT_TEST(plan, a_pattern_is_as_far_from_a_name_as_has_to_be_changed)
{
    static const struct {
        const char *pattern, *name;
        int distance;
    } rows[] = {
        { "a.b", "a.b", 0 },      { "", "abc", 3 },
        { "abc", "", 3 },         { "a.c", "a.b", 1 },
        { "ab", "b", 1 },         { "*.b", "long.b", 0 },
        { "*b", "b", 0 },         { "*", "a.b", 1 },
        { "x.*.w", "y.12.w", 1 }, { "layer.*.w", "layers.0.w", 1 },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        DT_ASSERT_EQ_INT(dti_name_distance(rows[i].pattern, rows[i].name), rows[i].distance);
}

static const dt_layer_spec specs[] = {
    { .name = "embed", .kind = &dt_embedding_kind, .axis = { { 11, 0 }, { 6, 0 } } },
    { .name = "layers.0.up",
      .kind = &dt_linear_kind,
      .axis = { { 8, 0 }, { 6, 0 } },
      .style = "colwise" },
    { .name = "layers.1.up",
      .kind = &dt_linear_kind,
      .axis = { { 8, 0 }, { 6, 0 } },
      .style = "colwise" },
    { .name = "head",
      .kind = &dt_linear_kind,
      .axis = { { 11, 0 }, { 6, 0 } },
      .tied_to = "embed" },
};

static dt_status expect_style(dt_layers *layers, const char *layer, const char *style)
{
    DT_EXPECT_EQ_STR(dt_layer_style(dt_layers_find(layers, layer))->name, style);
    return DT_OK;
}

static dt_status make(dt_mesh *mesh, const dt_plan_rule *rules, int n, bool strict, dt_layers **out)
{
    const dt_plan plan = { .rules = rules, .n_rules = n, .strict = strict };

    return dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), &plan, out);
}

static dt_status rules_win(dt_mesh *mesh, const void *arg)
{
    const dt_plan_rule rules[] = { { "layers.0.up", "replicate" },
                                   { "*.1.up", "colwise" },
                                   { "layers.*.up", "rowwise" },
                                   { "*.*.up", "colwise_gather_output" },
                                   { "head", "colwise" } };
    DT_HELD(layers) *layers = NULL;

    (void)arg;
    DT_TRY(make(mesh, rules, (int)DT_COUNT(rules), true, &layers));
    DT_TRY(expect_style(layers, "layers.0.up", "replicate")); /* exact */
    DT_TRY(expect_style(layers, "layers.1.up", "rowwise"));   /* fewer stars, later */
    DT_TRY(expect_style(layers, "head", "colwise"));
    DT_TRY(expect_style(layers, "embed", "embedding_rowwise")); /* follows its partner */
    DT_EXPECT(dt_layer_param_layout(dt_layers_find(layers, "head"), 0) ==
                  dt_layer_param_layout(dt_layers_find(layers, "embed"), 0),
              "tied weights lie alike");
    return DT_OK;
}

static dt_status wrong_plans(dt_mesh *mesh, const void *arg)
{
    const dt_plan_rule unknown = { "layers.*.up", "sideways" },
                       unused = { "layer.*.up", "colwise" };
    const dt_plan_rule torn[] = { { "embed", "colwise" }, { "head", "colwise" } };
    dt_layers *layers = NULL;
    dt_status st;

    (void)arg;
    DT_EXPECT_STATUS(
        make(mesh, &unknown, 1, false, &layers), DT_ERR_ARG,
        "the plan, rule \"layers.*.up\": \"sideways\": layers.0.up: unknown style \"sideways\"");
    DT_EXPECT_STATUS(make(mesh, &unused, 1, true, &layers), DT_ERR_ARG,
                     "\"layer.*.up\": \"colwise\" matches no layer");
    DT_EXPECT_STATUS(make(mesh, torn, 2, true, &layers), DT_ERR_LAYOUT,
                     "head shares the weight of embed");
    st = make(mesh, &unused, 1, false, &layers); /* a warning in the log */
    dt_layers_release(&layers);
    return st;
}

DT_TEST(plan, the_most_exact_rule_wins_and_tied_layers_follow)
{
    dt_test_on_ranks("tp=2", rules_win, NULL);
}

DT_TEST(plan, wrong_plans_are_refused_with_names)
{
    dt_test_on_ranks("tp=2", wrong_plans, NULL);
}

static dt_status no_such_dim(dt_mesh *mesh, const void *arg)
{
    DT_HELD(layers) *layers = NULL;

    (void)arg;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers),
                     DT_ERR_ARG,
                     "the mesh has no dim \"tp\", which the styles of these layers speak "
                     "of; it has \"dp\"");
    DT_TRY(dt_layers_create(mesh, "tp?", specs, (int)DT_COUNT(specs), NULL, &layers));
    for (int i = 0; i < dt_layers_count(layers); i++)
        DT_EXPECT(dt_layout_is_replicated(dt_layer_param_layout(dt_layers_at(layers, i), 0)),
                  "layer %d", i);
    return DT_OK;
}

DT_TEST(plan, a_mesh_without_the_dim_replicates_where_that_is_said)
{
    dt_test_on_ranks("dp=2", no_such_dim, NULL);
}

/* --- many rules --------------------------------------------------------------------------------
 */

enum { WORD_BYTES = 32, FEW = 400, TRIES = 3000 };

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

/* One to four components of few kinds, so that much is equal. */
static void make_word(uint32_t *seed, char word[WORD_BYTES])
{
    static const char *const parts[] = { "a", "b", "ab", "*", "", "a*", "\xc3\xa9", "-" };
    const int n = 1 + (int)(next(seed) % 4);

    word[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (i > 0) strcat(word, ".");
        strcat(word, parts[next(seed) % DT_COUNT(parts)]);
    }
}

/* As dti_patterns_find() is meant: one after the other. */
static int find_slowly(char words[][WORD_BYTES], int part, const char *name, bool *matched)
{
    int best = -1, least = 0;

    for (int i = part; i < FEW; i += 2) {
        const int stars = dti_plan_match(words[i], name);
        if (stars < 0) continue;
        matched[i] = true;
        if (best < 0 || stars <= least) {
            best = i;
            least = stars;
        }
    }
    return best;
}

DT_TEST(plan, sorted_patterns_find_what_one_after_the_other_does)
{
    static char words[FEW][WORD_BYTES];
    static dti_pattern all[FEW];
    static bool matched[FEW];
    dti_patterns p = { .all = all, .n = FEW };
    int n_matched = 0;
    uint32_t seed = 5;

    for (int i = 0; i < FEW; i++) {
        make_word(&seed, words[i]);
        all[i] = (dti_pattern){ .text = words[i], .part = i % 2, .number = i };
    }
    dti_patterns_sort(&p);
    for (int i = 0; i < TRIES; i++) {
        char name[WORD_BYTES];
        make_word(&seed, name);
        DT_ASSERT_EQ_INT(dti_patterns_find(&p, i % 2, name),
                         find_slowly(words, i % 2, name, matched));
    }
    dti_patterns_spread(&p);
    for (int i = 0; i < FEW; i++) {
        DT_ASSERT_EQ_INT(all[i].matched, matched[all[i].number]);
        n_matched += all[i].matched;
    }
    DT_ASSERT(n_matched > FEW / 4 && n_matched < FEW);
    DT_ASSERT_EQ_INT(dti_patterns_find(&p, 2, "a"), -1);
    DT_ASSERT_EQ_INT(dti_patterns_find(&p, -1, "a"), -1);
}

enum { MANY = 200000, LAYERS = 2000, NAME_BYTES = 24 };

typedef struct many {
    char (*words)[NAME_BYTES]; /* [MANY] */
    dt_plan_rule *rules;       /* [MANY] */
} many;

/* Half of them say the same, the others name one layer each, the first LAYERS / 2 one that there
 * is. */
static void make_many(many *m)
{
    DT_ASSERT_OK(dti_alloc_array(MANY, NAME_BYTES, (void **)&m->words));
    DT_ASSERT_OK(dti_alloc_array(MANY, sizeof *m->rules, (void **)&m->rules));
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(m->words[i], NAME_BYTES, i % 2 ? "layers.*.up" : "layers.%d.up", i);
        m->rules[i] = (dt_plan_rule){ m->words[i], i % 2 ? "rowwise" : "replicate" };
    }
}

static void free_many(many *m)
{
    dti_free(m->words);
    dti_free(m->rules);
}

/* A name has 3 components and 3 stars at most to try: 14 steps of a search of 18 comparisons twice
 * and once again. One after the other they are MANY. */
DT_TEST(plan, a_name_looks_at_few_of_many_rules)
{
    dti_patterns p = { .n = MANY };
    char name[NAME_BYTES];
    DT_ENDS(free_many) many m;

    make_many(&m);
    DT_ASSERT_OK(dti_alloc_array(MANY, sizeof *p.all, (void **)&p.all));
    for (int i = 0; i < MANY; i++) p.all[i] = (dti_pattern){ .text = m.words[i], .number = i };
    dti_patterns_sort(&p);
    for (int i = 0; i < LAYERS; i++) {
        (void)snprintf(name, sizeof name, "layers.%d.up", i);
        DT_ASSERT_EQ_INT(dti_patterns_find(&p, 0, name), i % 2 ? MANY - 1 : i);
    }
    DT_ASSERT(p.n_compared > 0 && p.n_compared <= (int64_t)LAYERS * 14 * 3 * 18);
    dti_free(p.all);
}

static dt_status lay_by_many(dt_mesh *mesh, const void *arg)
{
    const many *m = arg;
    const dt_plan plan = { .rules = m->rules, .n_rules = MANY };
    static char names[LAYERS][NAME_BYTES];
    static dt_layer_spec some[LAYERS];
    DT_HELD(layers) *layers = NULL;
    int n = 0;

    for (int i = 0; i < LAYERS; i++) {
        (void)snprintf(names[i], NAME_BYTES, "layers.%d.up", i);
        some[i] = specs[1];
        some[i].name = names[i];
    }
    DT_TRY(dt_layers_create(mesh, "tp", some, LAYERS, &plan, &layers));
    DT_TRY(expect_style(layers, "layers.10.up", "replicate"));
    DT_TRY(expect_style(layers, "layers.11.up", "rowwise"));
    while (dt_layers_remark(layers, n) != NULL) n++;
    DT_EXPECT(n == 17, "%d remarks", n);
    DT_EXPECT(strstr(dt_layers_remark(layers, 0), "\"layers.2000.up\"") != NULL &&
                  strstr(dt_layers_remark(layers, 16), "98984 more rules match no layer") != NULL,
              "%s; %s", dt_layers_remark(layers, 0), dt_layers_remark(layers, 16));
    return DT_OK;
}

DT_TEST(plan, two_hundred_thousand_rules_are_told_in_a_few_lines)
{
    DT_ENDS(free_many) many m;

    make_many(&m);
    dt_test_on_ranks("tp=1", lay_by_many, &m);
}
