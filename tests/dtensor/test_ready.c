/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is told that a gradient is whole: each leaf once, in reverse order of first uses, with the
 * value that it has in the end; and sums over passes. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { LEAVES = 5, N = 6, MOST = 32 };

/* A forward pass in letters: y = tanh(y * leaf) for each of a to e; what stands in brackets is a
 * part that runs again; in [] the same with its history forgotten in between, so that leaves read
 * before get none. */
typedef struct told {
    dt_gradients *g;
    dt_tensor *leaf[LEAVES];
    char order[MOST];
    float value[LEAVES][N];
    int fail_at; /* the tape, when so many were told; -1: never */
} told;

typedef struct stretch {
    told *s;
    const char *begin, *end;
} stretch;

static dt_tensor *run(dt_tape *t, const void *arg, int n, dt_tensor *const *in)
{
    const stretch *at = arg;
    dt_tensor *y = in[0];

    (void)n;
    for (const char *c = at->begin; c < at->end; c++) {
        stretch inner = { at->s, c + 1, c + 1 };
        if (*c == '|') y = dt_detach(t, y);
        if (*c >= 'a' && *c < 'a' + LEAVES) y = dt_tanh(t, dt_mul(t, y, at->s->leaf[*c - 'a']));
        if (*c != '(') continue;
        for (int depth = 1; depth > 0; inner.end++)
            depth += *inner.end == '(' ? 1 : *inner.end == ')' ? -1 : 0;
        c = inner.end - 1;
        inner.end--;
        y = dt_recompute(t, run, &inner, sizeof inner, 1, &y);
    }
    return y;
}

static void note(void *arg, dt_tape *t, dt_tensor *leaf)
{
    told *s = arg;
    const size_t n = strlen(s->order);
    const dt_tensor *dw = dt_gradient(s->g, leaf);
    int i = 0;

    while (s->leaf[i] != leaf) i++;
    s->order[n] = (char)('a' + i);
    s->order[n + 1] = '\0';
    if (dw != NULL) {
        const dt_local *l = dt_tensor_local(dw);
        memcpy(s->value[i], l->data, (size_t)l->shape[0] * sizeof(float));
    }
    if ((int)n == s->fail_at) (void)dt_tape_fail(t, DT_ERR_ARG, "no more");
}

static void expected(const char *program, char *out)
{
    char first[MOST] = "";

    for (const char *c = program; *c != '\0'; c++)
        if (*c >= 'a' && *c < 'a' + LEAVES && strchr(first, *c) == NULL) strncat(first, c, 1);
    for (char c = 'a'; c < 'a' + LEAVES; c++)
        if (strchr(first, c) == NULL) strncat(out, &c, 1);
    for (size_t i = strlen(first); i > 0; i--) strncat(out, &first[i - 1], 1);
}

static dt_status close_told(told *s, dt_tape **t, dt_tensor **x, dt_status st)
{
    dt_tape_release(t);
    dt_gradients_release(&s->g);
    dt_tensor_release(x);
    for (int i = 0; i < LEAVES; i++) dt_tensor_release(&s->leaf[i]);
    return st;
}

/* Every second leaf is whole where the values are cut: its gradient is terms. */
static dt_status open_told(dt_mesh *mesh, told *s, dt_tape **t, dt_tensor **x)
{
    const dt_placement cut[] = { DT_SHARD(0) }, whole[] = { DT_REPLICATE };
    const int64_t shape[] = { N };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_status st = DT_OK;

    *s = (told){ .fail_at = -1 };
    *t = NULL;
    *x = NULL;
    DT_TRY_TO(done, st, dt_tape_create(rt, t));
    DT_TRY_TO(done, st, dt_gradients_create(rt, &s->g));
    DT_TRY_TO(done, st, dt_randn(mesh, cut, DT_F32, 1, shape, (dt_random){ 1, 1 }, x));
    for (int i = 0; i < LEAVES; i++) {
        DT_TRY_TO(done, st,
                  dt_randn(mesh, i % 2 ? whole : cut, DT_F32, 1, shape,
                           (dt_random){ 2, (uint64_t)i }, &s->leaf[i]));
        DT_TRY_TO(done, st, dt_gradients_watch(s->g, s->leaf[i]));
    }
done:
    return st;
}

static dt_tensor *record(told *s, dt_tape *t, dt_tensor *x, const char *program)
{
    const stretch all = { s, program, program + strlen(program) };

    dt_tape_reset(t);
    dt_tape_record(t, s->g);
    return dt_sum(t, run(t, &all, 1, &x), DT_ALL_AXES);
}

static dt_status is_whole(const told *s, const char *program)
{
    for (int i = 0; i < LEAVES; i++) {
        const dt_tensor *dw = dt_gradient(s->g, s->leaf[i]);
        const dt_local *l = dw != NULL ? dt_tensor_local(dw) : NULL;
        DT_EXPECT(dw == NULL || memcmp(s->value[i], l->data, (size_t)l->shape[0] * 4) == 0,
                  "%s: %c has another value in the end", program, 'a' + i);
    }
    return DT_OK;
}

static dt_status tells(dt_mesh *mesh, const void *arg)
{
    const char *program = *(const char *const *)arg;
    char want[MOST] = "";
    dt_tape *t;
    dt_tensor *x, *loss;
    told s;
    dt_status st = open_told(mesh, &s, &t, &x);

    if (st != DT_OK) return close_told(&s, &t, &x, st);
    expected(program, want);
    loss = record(&s, t, x, program);
    for (int pass = 0; pass < 2; pass++) {
        s.order[0] = '\0';
        dt_backward(t, loss, &(dt_backward_options){ .keep = true, .ready = note, .arg = &s });
        DT_TRY_TO(done, st, dt_tape_status(t));
        DT_EXPECT_TO(done, st, strcmp(s.order, want) == 0, "%s told %s, not %s, in pass %d",
                     program, s.order, want, pass);
        DT_TRY_TO(done, st, is_whole(&s, program));
    }
    s.order[0] = '\0';
    dt_gradients_clear(s.g);
    loss = record(&s, t, x, program);
    dt_backward(t, loss,
                &(dt_backward_options){ .ready = note, .arg = &s, .half = DT_BACKWARD_INPUTS });
    DT_EXPECT_TO(done, st, s.order[0] == '\0', "%s told %s in a first half", program, s.order);
    dt_backward(t, NULL,
                &(dt_backward_options){ .ready = note, .arg = &s, .half = DT_BACKWARD_WEIGHTS });
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_EXPECT_TO(done, st, strcmp(s.order, want) == 0, "%s told %s, not %s, in a second half",
                 program, s.order, want);
    DT_TRY_TO(done, st, is_whole(&s, program));
done:
    return close_told(&s, &t, &x, st);
}

DT_TEST(ready, each_leaf_is_told_once_in_reverse_order_of_first_uses)
{
    static const char *const programs[] = {
        "abcde",         "abcba",         "aabbccdee", "e",
        "ab|cd|ad",      "(abc)d(e)",     "(ab)a(b)",  "c(abc)(dcb)a",
        "(a(b(cd)e)b)d", "(((a)))b((c))", "d()e",      "(a|b)c(d|e)",
    };
    static const char *const meshes[] = { "dp=1", "dp=2", "dp=3", "dp=4" };

    for (size_t i = 0; i < DT_COUNT(programs); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            dt_test_on_ranks(meshes[m], tells, &programs[i]);
}

/* --- sums over passes ------------------------------------------------------------------------- */

/* A pass adds its own sum: of two uses of one leaf ((a + b) + (c + d)), as two ranks do, not one
 * after the other. */
static dt_status adds_passes(dt_mesh *mesh, const void *arg)
{
    float one[N], two[N];
    dt_tape *t;
    dt_tensor *x;
    told s;
    dt_status st = open_told(mesh, &s, &t, &x);

    (void)arg;
    if (st != DT_OK) return close_told(&s, &t, &x, st);
    dt_backward(t, record(&s, t, x, "aba"), NULL);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, dt_tensor_read(dt_gradient(s.g, s.leaf[0]), one, sizeof one));
    dt_gradients_clear(s.g);
    dt_backward(t, record(&s, t, x, "cacba"), NULL);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, dt_tensor_read(dt_gradient(s.g, s.leaf[0]), two, sizeof two));
    dt_backward(t, record(&s, t, x, "aba"), NULL);
    DT_TRY_TO(done, st, dt_tape_status(t));
    for (int i = 0; i < N; i++) two[i] += one[i];
    DT_TRY_TO(done, st, dt_tensor_read(dt_gradient(s.g, s.leaf[0]), one, sizeof one));
    DT_EXPECT_TO(done, st, memcmp(one, two, sizeof one) == 0, "another order of sums");
done:
    return close_told(&s, &t, &x, st);
}

DT_TEST(ready, a_pass_adds_its_sum_at_once)
{
    dt_test_on_ranks("dp=1", adds_passes, NULL);
}

/* --- what fails ------------------------------------------------------------------------------- */

static dt_status ends_there(dt_mesh *mesh, const void *arg)
{
    dt_tape *t;
    dt_tensor *x;
    told s;
    dt_status st = open_told(mesh, &s, &t, &x);

    (void)arg;
    if (st != DT_OK) return close_told(&s, &t, &x, st);
    for (int at = 0; at < LEAVES; at++) {
        s.order[0] = '\0';
        s.fail_at = at;
        dt_backward(t, record(&s, t, x, "a(bc(d))"),
                    &(dt_backward_options){ .ready = note, .arg = &s });
        DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "no more");
        DT_EXPECT_TO(done, st, strncmp(s.order, "edcba", (size_t)at + 1) == 0 && !s.order[at + 1],
                     "told %s after the end", s.order);
        dt_gradients_clear(s.g);
    }
    s.order[0] = '\0';
    s.fail_at = -1;
    dt_backward(t, record(&s, t, x, "abc"), &(dt_backward_options){ .ready = note, .arg = &s });
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_EXPECT_TO(done, st, strcmp(s.order, "decba") == 0, "told %s", s.order);
done:
    return close_told(&s, &t, &x, st);
}

DT_TEST(ready, who_is_told_may_end_the_pass)
{
    dt_test_on_ranks("dp=1", ends_there, NULL);
    dt_test_on_ranks("dp=2", ends_there, NULL);
}

/* A part that is no function of what it is handed: the second time it reads another leaf. */
static dt_tensor *fickle(dt_tape *t, const void *arg, int n, dt_tensor *const *in)
{
    const told *s = *(told *const *)arg;
    dt_tensor *leaf = dt_tape_records(t) ? s->leaf[2] : s->leaf[0];

    (void)n;
    return dt_mul(t, in[0], leaf);
}

static dt_status is_refused(dt_mesh *mesh, const void *arg)
{
    const told *self;
    dt_tensor *x, *y;
    dt_tape *t;
    told s;
    dt_status st = open_told(mesh, &s, &t, &x);

    (void)arg;
    self = &s;
    if (st != DT_OK) return close_told(&s, &t, &x, st);
    dt_tape_record(t, s.g);
    y = dt_recompute(t, fickle, &self, sizeof self, 1, &s.leaf[4]);
    dt_backward(t, dt_sum(t, y, DT_ALL_AXES), NULL);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "parts do the same whenever they run");
    return close_told(&s, &t, &x, st);
}

DT_TEST(ready, a_part_that_reads_other_leaves_again_is_refused)
{
    dt_test_on_ranks("dp=1", is_refused, NULL);
}
