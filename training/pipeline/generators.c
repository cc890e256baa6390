/* SPDX-License-Identifier: Apache-2.0
 *
 * Schedules by name. A generator says what a rank does with which of its stages; which microbatch
 * follows, since those of each ascend.
 *
 * p ranks, r one of them, m microbatches. Chunk c of a rank is the c-th of its v stages. */
#include <stdio.h>
#include <string.h>

#include "training/pipeline/rows.h"

typedef struct row {
    dti_rows *to;
    int p, r, v, m;
    bool folded;    /* the second chunks lie in the order of ranks turned round */
    int (*next)[3]; /* [v] microbatch that the next F, I and W of a chunk are of */
    int column;
    int seen; /* no I before this action waits for its W */
} row;

typedef void (*generator)(row *g);

/* Microbatches from m on are those that a schedule of fixed shape has too many. */
static void add(row *g, int chunk, dt_action_kind kind, bool overlapped)
{
    int *next = g->next[chunk];
    const int microbatch = next[kind == DT_ACTION_F ? 0 : kind == DT_ACTION_W ? 2 : 1]++;
    const int stage = g->folded && chunk == 1 ? 2 * g->p - 1 - g->r : chunk * g->p + g->r;

    if (kind == DT_ACTION_B) next[2]++;
    if (microbatch < g->m)
        dti_rows_add(g->to, (dt_action){ stage, kind, microbatch, overlapped }, g->column);
}

static void put(row *g, int chunk, dt_action_kind kind)
{
    add(g, chunk, kind, false);
    g->column++;
}

static void put_pair(row *g, int forward, int backward)
{
    add(g, forward, DT_ACTION_F, true);
    add(g, backward, DT_ACTION_B, false);
    g->column++;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* --- B whole ---------------------------------------------------------------------------------- */

static void naive(row *g)
{
    for (int k = 0; k < g->m; k++) {
        for (int c = 0; c < g->v; c++) put(g, c, DT_ACTION_F);
        for (int c = g->v - 1; c >= 0; c--) put(g, c, DT_ACTION_B);
    }
}

static void gpipe(row *g)
{
    for (int k = 0; k < g->v * g->m; k++) put(g, k / g->m, DT_ACTION_F);
    for (int k = g->v * g->m - 1; k >= 0; k--) put(g, k / g->m, DT_ACTION_B);
}

static void one_f_one_b(row *g)
{
    const int warmup = smaller(g->p - 1 - g->r, g->m);

    for (int k = 0; k < warmup; k++) put(g, 0, DT_ACTION_F);
    for (int k = warmup; k < g->m; k++) {
        put(g, 0, DT_ACTION_F);
        put(g, 0, DT_ACTION_B);
    }
    for (int k = 0; k < warmup; k++) put(g, 0, DT_ACTION_B);
}

/* Microbatches go through all chunks group after group. A group has p of them or more (but where
 * there are fewer), so that the first is back at chunk 1 when the last leaves chunk 0; sizes differ
 * by one at most, the larger ones first. */
static int chunk_of(const row *g, int k)
{
    const int n_groups = g->m < g->p ? 1 : g->m / g->p;
    const int size = g->m / n_groups, larger = g->m % n_groups * (size + 1) * g->v;

    return k < larger ? k % ((size + 1) * g->v) / (size + 1) : (k - larger) % (size * g->v) / size;
}

static void interleaved(row *g)
{
    const int n_groups = g->m < g->p ? 1 : g->m / g->p, group = (g->m + n_groups - 1) / n_groups;
    const int all = g->m * g->v;
    const int warmup = smaller(2 * (g->p - g->r - 1) + (g->v - 1) * group, all);

    for (int k = 0; k < all + warmup; k++) {
        if (k < all) put(g, chunk_of(g, k), DT_ACTION_F);
        if (k >= warmup) put(g, g->v - 1 - chunk_of(g, k - warmup), DT_ACTION_B);
    }
}

/* --- I and W apart ---------------------------------------------------------------------------- */

/* After `warmup` F's: F and I in turn, and W once more than `postponed` wait. */
static void zero_bubble(row *g, int warmup, int postponed)
{
    int *next = g->next[0];

    for (int k = smaller(warmup, g->m); k > 0; k--) put(g, 0, DT_ACTION_F);
    while (next[1] < g->m) {
        const bool out = next[0] == g->m;
        if (!out) put(g, 0, DT_ACTION_F);
        put(g, 0, DT_ACTION_I);
        if (out || next[1] - next[2] > postponed) put(g, 0, DT_ACTION_W);
    }
    while (next[2] < g->m) put(g, 0, DT_ACTION_W);
}

static void zb_h1(row *g)
{
    zero_bubble(g, g->p - 1 - g->r, g->r);
}

static void zb_h2(row *g)
{
    zero_bubble(g, 2 * (g->p - 1 - g->r), 2 * g->r);
}

static void put_three(row *g, int chunk, bool forward)
{
    if (forward) put(g, chunk, DT_ACTION_F);
    put(g, chunk, DT_ACTION_I);
    put(g, chunk, DT_ACTION_W);
}

/* The shape needs 2p - 1 microbatches; of fewer the rest is left out. */
static void zbv(row *g)
{
    const int m = g->m > 2 * g->p - 1 ? g->m : 2 * g->p - 1;
    int(*next)[3] = g->next;

    for (int k = 0; k < 2 * (g->p - g->r) - 1; k++) put(g, 0, DT_ACTION_F);
    for (int k = 0; k < g->r; k++) {
        put(g, 1, DT_ACTION_F);
        put(g, 0, DT_ACTION_F);
    }
    for (int k = 0; k < g->p - g->r; k++) put_three(g, 1, true);
    while (next[1][0] < m) {
        put_three(g, 0, next[0][0] < m);
        put_three(g, 1, true);
    }
    for (int k = 0; k < g->r; k++) {
        put(g, 0, DT_ACTION_I);
        put(g, 1, DT_ACTION_I);
    }
    for (int k = 0; k < g->p - g->r; k++) put_three(g, 0, false);
    while (next[1][2] < m) put(g, 1, DT_ACTION_W);
    while (next[0][2] < m) put(g, 0, DT_ACTION_W);
}

/* W of the longest ago I. */
static void put_oldest(row *g)
{
    const dt_pipeline_schedule *s = g->to->s;

    while (g->seen < s->n && s->actions[g->seen].kind != DT_ACTION_I) g->seen++;
    if (g->seen < s->n) put(g, s->actions[g->seen++].stage == g->r ? 0 : 1, DT_ACTION_W);
}

static void dualpipev(row *g)
{
    const int p = g->p, r = g->r, behind = p - r - 1;
    const int half = (r + 1) / 2; /* from where on B's at the end are split */

    for (int k = 0; k < 2 * behind; k++) put(g, 0, DT_ACTION_F);
    for (int k = 0; k <= r; k++) {
        put(g, 0, DT_ACTION_F);
        put(g, 1, DT_ACTION_F);
    }
    for (int k = 0; k < behind; k++) {
        put(g, 1, DT_ACTION_I);
        put_oldest(g);
        put(g, 1, DT_ACTION_F);
    }
    for (int k = 0; k < g->m - 2 * p + r + 1; k++) {
        if (k == 0 && behind == 0) { /* what the last stage does first was not overlapped before */
            put(g, 0, DT_ACTION_F);
            put(g, 1, DT_ACTION_B);
        } else {
            put_pair(g, 0, 1);
        }
        put_pair(g, 1, 0);
    }
    for (int k = 0; k < behind; k++) {
        put(g, 1, DT_ACTION_B);
        put_pair(g, 1, 0);
    }
    for (int k = 0; k <= r; k++) {
        put(g, 1, k + r % 2 > half ? DT_ACTION_I : DT_ACTION_B);
        put(g, 0, k >= half ? DT_ACTION_I : DT_ACTION_B);
    }
    for (int k = 0; k < behind; k++) {
        put_oldest(g);
        put(g, 0, DT_ACTION_I);
    }
    for (int k = 0; k <= r; k++) put_oldest(g);
}

/* --- the table -------------------------------------------------------------------------------- */

/* clang-format off */
static const struct {
    dt_pipeline_kind about;
    generator make;
    bool folded;
} kinds[] = {
    /*  name           summary                                                            stages any  least */
    { { "naive",       "one microbatch at a time",                                        1, true,  0 }, naive,       false },
    { { "gpipe",       "all forward, then all backward",                                  1, true,  0 }, gpipe,       false },
    { { "1f1b",        "one forward, one backward: as fast as gpipe, fewer live",         1, false, 0 }, one_f_one_b, false },
    { { "interleaved", "1f1b with several stages per rank: a smaller bubble, more sent",  2, true,  0 }, interleaved, false },
    { { "zb-h1",       "1f1b with W's in its bubble, no more live than its first rank",   1, false, 0 }, zb_h1,       false },
    { { "zb-h2",       "zb-h1 with twice as many live: no bubble within a rank",          1, false, 0 }, zb_h2,       false },
    { { "zbv",         "zb-h2 in the memory of 1f1b: two stages per rank, there and back", 2, false, 0 }, zbv,         true },
    { { "dualpipev",   "zbv with F's and B's that run together and hide what travels",    2, false, 2 }, dualpipev,   true },
};
/* clang-format on */

const dt_pipeline_kind *dt_pipeline_kind_at(int i)
{
    return i >= 0 && i < (int)DT_COUNT(kinds) ? &kinds[i].about : NULL;
}

static dt_status find_kind(const char *name, int *out)
{
    char names[256] = "";
    size_t n = 0;

    for (*out = 0; *out < (int)DT_COUNT(kinds); ++*out) {
        const char *of = kinds[*out].about.name;
        if (strcmp(of, name) == 0) return DT_OK;
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", *out > 0 ? ", " : "", of);
    }
    DT_FAIL(DT_ERR_ARG, "no schedule of a pipeline is called \"%s\"; there are %s", name, names);
}

static dt_status check_numbers(const dt_pipeline_kind *k, int p, int v, int m)
{
    DT_CHECK(p >= 1 && v >= 1 && m >= 1, DT_ERR_ARG,
             "%s: %d ranks, %d stages per rank, %d microbatches; each is 1 or more", k->name, p, v,
             m);
    DT_CHECK(v == k->stages_per_rank || k->any_stages, DT_ERR_ARG,
             "%s has %d stage%s per rank, not %d; \"interleaved\" takes any number of them",
             k->name, k->stages_per_rank, k->stages_per_rank > 1 ? "s" : "", v);
    DT_CHECK(
        m / p >= k->least, DT_ERR_ARG,
        "%s needs %d microbatches for each of %d ranks, %lld in all, not %d; \"zbv\" takes any "
        "number of them",
        k->name, k->least, p, (long long)k->least * p, m);
    DT_CHECK((double)p * v * m * 3.0 <= DTI_PIPELINE_MAX_ACTIONS, DT_ERR_ARG,
             "%s: %d ranks of %d stages and %d microbatches are more than %d actions", k->name, p,
             v, m, DTI_PIPELINE_MAX_ACTIONS);
    return DT_OK;
}

dt_status dt_pipeline_schedule_create(const char *name, int n_ranks, int stages_per_rank,
                                      int n_microbatches, dt_pipeline_schedule **out)
{
    row g = { .p = n_ranks, .v = stages_per_rank, .m = n_microbatches };
    dti_rows to;
    int kind;

    DT_CHECK(name != NULL && out != NULL, DT_ERR_ARG, "name or out is NULL");
    *out = NULL;
    DT_TRY(find_kind(name, &kind));
    if (g.v == 0) g.v = kinds[kind].about.stages_per_rank;
    DT_TRY(check_numbers(&kinds[kind].about, g.p, g.v, g.m));
    DT_TRY(dti_alloc_array((size_t)g.v, sizeof *g.next, (void **)&g.next));
    to = dti_rows_begin(name);
    g.to = &to;
    g.folded = kinds[kind].folded;
    for (g.r = 0; g.r < g.p && to.st == DT_OK; g.r++) {
        memset(g.next, 0, (size_t)g.v * sizeof *g.next);
        dti_rows_next(&to);
        g.column = 0;
        g.seen = to.s->n;
        kinds[kind].make(&g);
    }
    dti_free(g.next);
    DT_TRY(dti_rows_end(&to, out));
    return DT_OK;
}
