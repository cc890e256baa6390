/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/halves.h"

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

typedef struct program {
    dt_differentiable_fn fn;
    const void *arg;
    int n;
    dt_tensor *const *x;
    uint32_t leaves; /* bit i: x[i] is one */
} program;

/* Which are inputs on the tape, else x. */
static dt_tensor *record(dt_tape *t, dt_gradients *g, const program *p, dt_tensor **in)
{
    dt_tape_record(t, g);
    dt_tape_set_thrifty(t, true);
    for (int i = 0; i < p->n; i++)
        in[i] = (p->leaves >> i & 1u) != 0 ? p->x[i] : dt_tape_input(t, p->x[i]);
    return p->fn(t, p->arg, p->n, in);
}

/* References of all gradients, NULL where none came. */
static dt_status differentiate(dt_mesh *mesh, const program *p, bool halves, dt_tensor **dx)
{
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_backward_options how = { .half = halves ? DT_BACKWARD_INPUTS : DT_BACKWARD_WHOLE };
    dt_tensor *in[DT_OP_MAX_IN], *y;

    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    for (int i = 0; i < p->n; i++)
        if ((p->leaves >> i & 1u) != 0) DT_TRY(dt_gradients_watch(g, p->x[i]));
    y = record(t, g, p, in);
    how.seed = y;
    dt_backward(t, y, &how);
    for (int i = 0; i < p->n; i++) {
        if ((p->leaves >> i & 1u) != 0)
            DT_EXPECT(!halves || dt_gradient(g, p->x[i]) == NULL, "leaf %d in the first half", i);
        else if ((dx[i] = dt_tape_input_gradient(t, in[i])) != NULL)
            dt_tensor_retain(dx[i]);
    }
    if (halves) dt_backward(t, NULL, &(dt_backward_options){ .half = DT_BACKWARD_WEIGHTS });
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tape_kept_bytes(t) == 0, "%lld bytes stay", (long long)dt_tape_kept_bytes(t));
    DT_TRY(dt_gradients_settle(g, t));
    for (int i = 0; i < p->n; i++) {
        if ((p->leaves >> i & 1u) != 0 && (dx[i] = dt_gradient(g, p->x[i])) != NULL)
            dt_tensor_retain(dx[i]);
        DT_EXPECT((p->leaves >> i & 1u) != 0 || dt_tape_input_gradient(t, in[i]) == NULL,
                  "input %d in the second half", i);
    }
    return DT_OK;
}

static bool is_empty(const dt_tensor *x)
{
    const dt_local *l = dt_tensor_local(x);
    int64_t n = 1;

    for (int a = 0; a < l->n_axes; a++) n *= l->shape[a];
    return n == 0;
}

static dt_status compare(dt_mesh *mesh, const program *p)
{
    dt_tensor *whole[DT_OP_MAX_IN] = { NULL }, *halves[DT_OP_MAX_IN] = { NULL };
    dt_status st;

    DT_TRY_TO(done, st, differentiate(mesh, p, false, whole));
    DT_TRY_TO(done, st, differentiate(mesh, p, true, halves));
    for (int i = 0; i < p->n; i++) {
        DT_EXPECT_TO(done, st, (whole[i] == NULL) == (halves[i] == NULL), "gradient %d", i);
        if (whole[i] != NULL && !(is_empty(whole[i]) && is_empty(halves[i])))
            DT_TRY_TO(done, st, dt_test_expect_same(halves[i], whole[i], "a whole pass"));
    }
done:
    for (int i = 0; i < p->n; i++) {
        dt_tensor_release(&whole[i]);
        dt_tensor_release(&halves[i]);
    }
    return st;
}

dt_status dt_test_halves(dt_mesh *mesh, dt_differentiable_fn fn, const void *arg, int n,
                         dt_tensor *const *x)
{
    for (int i = 0; i < n; i++) {
        DT_TRY(compare(mesh, &(program){ fn, arg, n, x, 1u << i }));
        if (n > 2) DT_TRY(compare(mesh, &(program){ fn, arg, n, x, ~(1u << i) }));
    }
    return DT_OK;
}
