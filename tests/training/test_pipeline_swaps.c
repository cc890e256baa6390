/* SPDX-License-Identifier: Apache-2.0
 *
 * What is refused, against a second judge that knows nothing of counters or of who waits for whom:
 * it goes round the ranks as long as any of them can do its next cell. */
#include <dtensor/pipeline.h>
#include <string.h>

#include "base/writer.h"
#include "tests/support/dt_test.h"

enum { MAX_P = 4, MAX_STAGES = 8, M = 9, MAX_CELLS = 4 * M * 3, TEXT_BYTES = 1 << 14 };

typedef struct cell {
    dt_action of[2];
    int n;
} cell;

typedef struct table {
    int p, n_stages;
    cell cells[MAX_P][MAX_CELLS];
    int n[MAX_P];
} table;

/* done[stage][0, 1, 2]: F, I and W that are done; each kind of a stage goes from 0 on. */
static bool can_do(const table *t, int done[MAX_STAGES][3], const dt_action *a)
{
    const int *of = done[a->stage], k = a->microbatch;
    const bool i = a->kind == DT_ACTION_I || a->kind == DT_ACTION_B;
    const bool w = a->kind == DT_ACTION_W || a->kind == DT_ACTION_B;

    if (a->kind == DT_ACTION_F) return of[0] == k && (a->stage == 0 || done[a->stage - 1][0] > k);
    if (i && (of[1] != k || of[0] <= k)) return false;
    if (i && a->stage + 1 < t->n_stages && done[a->stage + 1][1] <= k) return false;
    return !w || (of[2] == k && (i || of[1] > k));
}

static bool can_run(const table *t)
{
    int done[MAX_STAGES][3] = { { 0 } }, at[MAX_P] = { 0 };
    bool some = true, all = true;

    while (some) {
        some = false;
        for (int r = 0; r < t->p; r++) {
            const cell *c = &t->cells[r][at[r]];
            bool can = at[r] < t->n[r];
            for (int k = 0; can && k < c->n; k++) can = can_do(t, done, &c->of[k]);
            if (!can) continue;
            some = true;
            at[r]++;
            for (int k = 0; k < c->n; k++) {
                int *of = done[c->of[k].stage];
                of[0] += c->of[k].kind == DT_ACTION_F;
                of[1] += c->of[k].kind == DT_ACTION_I || c->of[k].kind == DT_ACTION_B;
                of[2] += c->of[k].kind == DT_ACTION_W || c->of[k].kind == DT_ACTION_B;
            }
        }
    }
    for (int r = 0; r < t->p; r++) all = all && at[r] == t->n[r];
    return all;
}

static void take(const dt_pipeline_schedule *s, table *t)
{
    memset(t, 0, sizeof *t);
    t->p = dt_pipeline_schedule_ranks(s);
    t->n_stages = dt_pipeline_schedule_stages(s);
    for (int r = 0; r < t->p; r++) {
        int n;
        const dt_action *row = dt_pipeline_schedule_row(s, r, &n);
        for (int i = 0; i < n; i++) {
            cell *c = &t->cells[r][t->n[r]++];
            c->of[c->n++] = row[i];
            if (row[i].overlapped) c->of[c->n++] = row[++i];
        }
    }
}

static dt_status parse(const table *t, dt_pipeline_schedule **out)
{
    char text[TEXT_BYTES], a[DT_ACTION_BYTES], b[DT_ACTION_BYTES];
    dti_writer w = { text, sizeof text, 0 };

    for (int r = 0; r < t->p; r++)
        for (int i = 0; i < t->n[r]; i++) {
            const cell *c = &t->cells[r][i];
            const char *end = i + 1 < t->n[r] ? "," : "\n";
            (void)dt_action_text(&c->of[0], a);
            if (c->n == 1)
                dti_put(&w, "%s%s", a, end);
            else
                dti_put(&w, "(%s;%s)OVERLAP_F_B%s", a, dt_action_text(&c->of[1], b), end);
        }
    return dt_pipeline_schedule_parse("swapped", text, w.used, out);
}

static void swap(table *t, int r, int i)
{
    const cell c = t->cells[r][i];

    t->cells[r][i] = t->cells[r][i + 1];
    t->cells[r][i + 1] = c;
}

/* Up to `n` random swaps of neighbours; counts what is accepted and what is refused. */
static void try_swaps(const char *name, int p, int n, uint64_t *state, int counts[2])
{
    static table t;
    DT_HELD(pipeline_schedule) *s = NULL, *swapped = NULL;
    bool can;

    DT_ASSERT_OK(dt_pipeline_schedule_create(name, p, 0, M, &s));
    take(s, &t);
    for (int k = 0; k < n; k++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        const int r = (int)((*state >> 33) % (unsigned)p);
        swap(&t, r, (int)((*state >> 40) % (unsigned)(t.n[r] - 1)));
    }
    can = can_run(&t);
    counts[can]++;
    if (can)
        DT_ASSERT_OK(parse(&t, &swapped));
    else
        DT_ASSERT_STATUS(parse(&t, &swapped), DT_ERR_FORMAT, "swapped: rank ");
}

DT_TEST(pipeline_swaps, only_what_can_run_is_accepted)
{
    const dt_pipeline_kind *kind;
    uint64_t state = 1;
    int counts[2] = { 0, 0 };

    for (int k = 0; (kind = dt_pipeline_kind_at(k)) != NULL; k++)
        for (int p = 1; p <= MAX_P; p++)
            for (int i = 0; i < 400; i++) try_swaps(kind->name, p, 1 + i % 6, &state, counts);
    DT_ASSERT(counts[0] > 1000 && counts[1] > 1000);
}
