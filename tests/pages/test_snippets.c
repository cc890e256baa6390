/* SPDX-License-Identifier: Apache-2.0
 *
 * What pages show and no example has: each piece of code runs here, and the page quotes it. */
#include <dtensor.h>
#include <dtensor/chat.h>
#include <dtensor/parallel_styles.h>
#include <dtensor/plans.h>
#include <dtensor/tokenizer.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"

/* docs/errors.md */
static dt_status print_a_refusal(dt_mesh *mesh, const void *arg)
{
    const dt_placement cut[] = { DT_SHARD(0) }, want[] = { DT_SHARD(2) };
    FILE *stream = tmpfile();
    char text[1024] = "";
    dt_tensor *x, *y;

    (void)arg;
    DT_EXPECT(stream != NULL, "no temporary file");
    DT_TRY(dt_zeros(mesh, cut, DT_F32, 2, (const int64_t[]){ 4, 6 }, &x));
    if (dt_redistribute(x, want, &y) != DT_OK) {
        const dt_error *e = dt_last_error();

        fprintf(stream, "%s on rank %d: %s\n", dt_status_name(e->code), e->rank, e->message);
        for (int i = 0; i < e->n_frames; i++)
            fprintf(stream, "    at %s (%s:%d)\n", e->frames[i].func, e->frames[i].file,
                    e->frames[i].line);
    }
    dt_tensor_release(&x);
    rewind(stream);
    DT_EXPECT(fread(text, 1, sizeof text - 1, stream) > 0, "nothing was printed");
    (void)fclose(stream);
    DT_EXPECT(strstr(text, "on rank ") != NULL && strstr(text, "    at ") != NULL, "%s", text);
    return DT_OK;
}

DT_TEST(pages, an_error_is_printed_with_its_frames)
{
    dt_test_on_ranks("tp=2", print_a_refusal, NULL);
}

/* docs/random.md */
static dt_status two_matrices(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, columns[] = { DT_SHARD(1) };
    const int64_t shape[] = { 4, 6 };
    dt_tensor *w1, *w2, *again;

    (void)arg;
    dt_random generator = { .seed = 2026 };
    DT_TRY(dt_randn(mesh, rows, DT_F32, 2, shape, dt_random_next(&generator), &w1));
    DT_TRY(dt_randn(mesh, columns, DT_F32, 2, shape, dt_random_next(&generator), &w2));
    DT_TRY(dt_randn(mesh, columns, DT_F32, 2, shape, (dt_random){ 2026, 1 }, &again));
    const void *a = dt_tensor_local(w2)->data, *b = dt_tensor_local(again)->data;
    DT_EXPECT(memcmp(a, b, 12 * sizeof(float)) == 0, "the second has stream 1");
    dt_tensor_release(&w1);
    dt_tensor_release(&w2);
    dt_tensor_release(&again);
    return DT_OK;
}

DT_TEST(pages, a_generator_counts_streams)
{
    dt_test_on_ranks("tp=2", two_matrices, NULL);
}

/* docs/styles.md */
static dt_status a_style_of_pytorch(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const dt_style *found;

    (void)arg;
    const dt_style style =
        dt_rowwise_parallel((dt_parallel_args){ .output_layouts = { DT_LAY_SHARD, 1 } });
    DT_TRY(dt_style_register(rt, "rowwise_sp", &style));
    DT_TRY(dt_style_find(rt, "rowwise_sp", NULL, &found));
    DT_EXPECT(found->out.of[0].to.kind == DT_LAY_SHARD && found->out.of[0].to.axis == 1,
              "output %d", found->out.of[0].to.axis);
    return DT_OK;
}

DT_TEST(pages, pytorchs_styles_have_constructors)
{
    dt_test_on_ranks("tp=1", a_style_of_pytorch, NULL);
}

/* docs/threads.md: rank 0 reads lines from `arg`, and all ranks count their bytes. */
typedef struct talk {
    const char *const *lines;
    int64_t said[2]; /* by rank */
} talk;

static int64_t read_line(talk *t, char *line, size_t most)
{
    const char *next = *t->lines;

    if (next == NULL) return 0;
    t->lines++;
    return snprintf(line, most, "%s", next);
}

static dt_status converse(dt_mesh *mesh, const void *arg)
{
    talk *t = *(talk *const *)arg;
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    char line[64];

    for (;;) {
        int64_t n = 0;

        if (rank == 0) n = read_line(t, line, sizeof line); /* may take a day; 0 at the end */
        DT_TRY(dt_mesh_broadcast_work(mesh, 0, line, sizeof line, &n));
        if (n == 0) break;
        t->said[rank] += n; /* all ranks have the line */
    }
    return DT_OK;
}

DT_TEST(pages, ranks_wait_for_work)
{
    static const char *const lines[] = { "one", "three", NULL };
    talk t = { .lines = lines };
    talk *const arg = &t;

    dt_test_on_ranks("tp=2", converse, &arg);
    DT_ASSERT_EQ_INT(t.said[0], 8);
    DT_ASSERT_EQ_INT(t.said[1], 8);
}

/* docs/plans.md and docs/styles.md: the table of a program, and files beside this one. */
static dt_status load_under(dt_mesh *mesh, const char *folder, const dt_plan *plan)
{
    char path[DT_TEST_PATH_BYTES];
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    dt_model *model = NULL;

    options.plan = plan;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(path, folder), &options, &model));
    dt_model_release(&model);
    return DT_OK;
}

static dt_status load_under_a_table(dt_mesh *mesh, const void *arg)
{
    static const dt_plan_rule rules[] = { { "model.layers.*.mlp.up_proj", "colwise" },
                                          { "model.layers.*.mlp.down_proj", "rowwise" } };
    const dt_plan plan = { .rules = rules, .n_rules = 2, .strict = true, .source = "my table" };

    (void)arg;
    return load_under(mesh, "examples/checkpoint", &plan);
}

typedef struct plan_case {
    const char *file, *folder;
} plan_case;

static dt_status load_under_a_file(dt_mesh *mesh, const void *arg)
{
    const plan_case *c = arg;
    char path[DT_TEST_PATH_BYTES];
    dt_plan *plan;
    dt_status st;

    DT_TRY(dt_plan_read(dt_test_source_path(path, c->file), &plan));
    st = load_under(mesh, c->folder, plan);
    dt_plan_release(&plan);
    return st;
}

DT_TEST(pages, plans_fit_models)
{
    dt_test_on_ranks("tp=2", load_under_a_table, NULL);
    dt_test_on_ranks("tp=2", load_under_a_file,
                     &(plan_case){ "tests/pages/plan.json", "examples/checkpoint" });
    dt_test_on_ranks("tp=2", load_under_a_file,
                     &(plan_case){ "tests/pages/plan_of_dims.json", "examples/checkpoint" });
    dt_test_on_ranks("ep=2,tp=2", load_under_a_file,
                     &(plan_case){ "tests/pages/experts.json", "tests/golden/qwen3_moe/base" });
    dt_test_on_ranks("tp=3", load_under_a_file,
                     &(plan_case){ "tests/pages/sent_tokens.json", "tests/golden/qwen3_moe/base" });
}

/* The arguments that styles.md shows. */
static dt_status read_arguments(dt_mesh *mesh, const void *arg)
{
    char path[DT_TEST_PATH_BYTES];
    const dt_style *style;
    dt_plan *plan;

    (void)arg;
    DT_TRY(dt_plan_read(dt_test_source_path(path, "tests/pages/arguments.json"), &plan));
    for (int i = 0; i < plan->n_rules; i++)
        DT_TRY(dt_style_find(dt_mesh_runtime(mesh), plan->rules[i].style, NULL, &style));
    DT_EXPECT_EQ_INT(plan->n_rules, 2);
    dt_plan_release(&plan);
    return DT_OK;
}

DT_TEST(pages, styles_have_arguments)
{
    dt_test_on_ranks("tp=2", read_arguments, NULL);
}

/* docs/chat.md */
static dt_status prompt_of(const char *folder, dt_tokenizer *tokenizer, char **out, size_t *n)
{
    dt_chat *chat = NULL;
    size_t n_bytes, n_ids;
    int32_t *ids;
    char *text;

    dt_chat_message turns[] = { { .role = "system", .content = "Be brief." },
                                { .role = "user", .content = "Why is the sky blue?" } };
    dt_chat_options options = DT_CHAT_OPTIONS_INIT; /* add_generation_prompt is true */

    options.variables = "{\"enable_thinking\": false}";
    DT_TRY(dt_chat_open(folder, &chat));
    DT_TRY(dt_chat_render(chat, turns, 2, &options, &text, &n_bytes));
    DT_TRY(dt_tokenizer_encode(tokenizer, text, n_bytes, DT_ENCODE_PARSE_SPECIAL, &ids, &n_ids));
    dt_chat_release(&chat);
    dt_tokenizer_free(ids);
    *out = text;
    *n = n_ids;
    return DT_OK;
}

DT_TEST(pages, a_conversation_becomes_a_prompt)
{
    static const char jinja[] = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
                                "{% if not enable_thinking %}answer:{% endif %}";
    char folder[DT_TEST_PATH_BYTES], checkpoint[DT_TEST_PATH_BYTES];
    dt_tokenizer *tokenizer;
    char *text = NULL;
    size_t n = 0;

    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "chat_template.jinja", jinja, strlen(jinja));
    DT_ASSERT_OK(
        dt_tokenizer_open(dt_test_source_path(checkpoint, "examples/checkpoint"), &tokenizer));
    DT_ASSERT_OK(prompt_of(folder, tokenizer, &text, &n));
    DT_ASSERT_EQ_STR(text, "system: Be brief. user: Why is the sky blue? answer:");
    DT_ASSERT(n > 8);
    dt_chat_free(text);
    dt_tokenizer_release(&tokenizer);
}

/* CONTRIBUTING.md: how a test of ranks looks. */
static dt_status body(dt_mesh *mesh, const void *arg) /* runs on every rank */
{
    (void)arg;
    DT_EXPECT(dt_mesh_n_ranks(mesh) == 4, "%d ranks", dt_mesh_n_ranks(mesh));
    return DT_OK;
}

DT_TEST(mesh, four_ranks_form_a_mesh)
{
    dt_test_on_ranks("dp=2,tp=2", body, NULL);
}
