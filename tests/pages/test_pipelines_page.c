/* SPDX-License-Identifier: Apache-2.0
 *
 * What docs/pipelines.md quotes, and the figures of its table. */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>

#include "base/writer.h"
#include "tests/support/dt_test.h"

enum { P = 4, M = 8, PAGE_BYTES = 1 << 16 };

/* A stage of v on a rank has one v-th of the rank's work. */
static dt_pipeline_timing *simulate(const dt_pipeline_kind *kind, double f, double i, double w,
                                    double message)
{
    const double v = kind->stages_per_rank, times[] = { f / v, i / v, w / v };
    dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
    DT_HELD(pipeline_schedule) *s = NULL;
    dt_pipeline_timing *t = NULL;

    c.n = 1;
    c.f = &times[0];
    c.i = &times[1];
    c.w = &times[2];
    c.message = message;
    DT_ASSERT_OK(dt_pipeline_schedule_create(kind->name, P, 0, M, &s));
    DT_ASSERT_OK(dt_pipeline_simulate(s, &c, &t));
    return t;
}

static void put_row(dti_writer *w, const dt_pipeline_kind *kind)
{
    static const double times[][4] = {
        { 1, 1, 1, 0 }, { 2, 3, 2, 0 }, { 2, 2, 1, 0 }, { 1, 1, 1, 0.25 }
    };

    dti_put(w, "| `%s` |", kind->name);
    for (size_t k = 0; k < DT_COUNT(times); k++) {
        DT_HELD(pipeline_timing) *t =
            simulate(kind, times[k][0], times[k][1], times[k][2], times[k][3]);
        const dt_pipeline_total total = dt_pipeline_timing_total(t);
        dti_put(w, " %.0f %% |", 100.0 * total.bubble / total.ideal);
    }
    DT_HELD(pipeline_timing) *t = simulate(kind, 1, 1, 1, 0);
    for (int rank = 0; rank < P; rank++)
        dti_put(w, " %g", dt_pipeline_timing_rank(t, rank)->live / (double)kind->stages_per_rank);
    dti_put(w, " |");
    for (int rank = 0; rank < P; rank++)
        dti_put(w, " %g",
                dt_pipeline_timing_rank(t, rank)->postponed / (double)kind->stages_per_rank);
    dti_put(w, " |\n");
}

DT_TEST(pipelines_page, has_the_figures_that_are_simulated)
{
    static char page[PAGE_BYTES], row[1024];
    char path[DT_TEST_PATH_BYTES];
    FILE *f = fopen(dt_test_source_path(path, "docs/pipelines.md"), "r");
    const dt_pipeline_kind *kind;

    DT_ASSERT(f != NULL);
    page[fread(page, 1, sizeof page - 1, f)] = '\0';
    (void)fclose(f);
    for (int k = 0; (kind = dt_pipeline_kind_at(k)) != NULL; k++) {
        dti_writer w = { row, sizeof row, 0 };
        put_row(&w, kind);
        if (strstr(page, row) == NULL)
            dt_test_fail(__FILE__, __LINE__, "docs/pipelines.md lacks the row\n%s", row);
    }
}

/* Which schedule of a file and a name is faster, if F, I and W take so many milliseconds. */
static dt_status compare(const char *file, double milliseconds[2], char *drawing, size_t bytes)
{
    static const double f[] = { 4.1, 4.0, 4.0, 5.2 }, i[] = { 4.4, 4.2, 4.2, 5.0 };
    static const double w[] = { 3.0, 3.0, 3.0, 4.4 };
    dt_pipeline_costs costs = DT_PIPELINE_COSTS_INIT;
    dt_pipeline_schedule *s[2] = { NULL, NULL };
    dt_pipeline_timing *t[2] = { NULL, NULL };
    dt_status st;

    costs.f = f; /* of each of four stages */
    costs.i = i;
    costs.w = w;
    costs.message = 0.3;
    DT_TRY_TO(done, st, dt_pipeline_schedule_read(file, &s[0]));
    DT_TRY_TO(done, st, dt_pipeline_schedule_create("zb-h1", 4, 0, 8, &s[1]));
    for (int k = 0; k < 2; k++) {
        DT_TRY_TO(done, st, dt_pipeline_simulate(s[k], &costs, &t[k]));
        milliseconds[k] = dt_pipeline_timing_total(t[k]).makespan;
    }
    (void)dt_pipeline_timing_draw(t[1], DT_DRAW_SVG, drawing, bytes);
done:
    for (int k = 0; k < 2; k++) {
        dt_pipeline_timing_release(&t[k]);
        dt_pipeline_schedule_release(&s[k]);
    }
    return st;
}

DT_TEST(pipelines_page, a_schedule_of_a_file_is_compared)
{
    static char rows[4096], drawing[1 << 16];
    DT_HELD(pipeline_schedule) *s = NULL;
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 16];
    double ms[2];
    int n;

    DT_ASSERT_OK(dt_pipeline_schedule_create("1f1b", 4, 0, 8, &s));
    n = dt_pipeline_schedule_print(s, rows, sizeof rows);
    dt_test_write_file(dt_test_temp_dir(folder), "own.csv", rows, (size_t)n);
    (void)snprintf(path, sizeof path, "%s/own.csv", folder);
    DT_ASSERT_OK(compare(path, ms, drawing, sizeof drawing));
    dt_test_remove_dir(folder);
    DT_ASSERT(ms[1] < ms[0]);
    DT_ASSERT(strstr(drawing, "zb-h1: 4 ranks") != NULL);
    DT_ASSERT_STATUS(compare("/no/file.csv", ms, drawing, sizeof drawing), DT_ERR_IO, "/no/file");
}
