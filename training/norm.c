/* SPDX-License-Identifier: Apache-2.0 */
#include "training/norm.h"

#include <dtensor/factories.h>
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"
#include "dtensor/create.h"
#include "dtensor/leaves.h"
#include "dtensor/optimize.h"
#include "mesh/runtime.h"

enum { DIGIT_BYTES = DTI_DIGITS_N * (int)sizeof(int64_t) };

static dt_status make(dt_optimizer *opt, int64_t n, dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };

    return dt_zeros(opt->mesh, whole, DT_I64, 1, (int64_t[]){ n * DTI_DIGITS_N }, out);
}

dt_status dti_norm_create(dt_optimizer *opt)
{
    DT_TRY(make(opt, opt->n, &opt->looks));
    DT_TRY(make(opt, 1, &opt->squares));
    DT_TRY(dti_alloc((size_t)opt->n * DIGIT_BYTES, (void **)&opt->looked));
    return DT_OK;
}

void dti_norm_free(dt_optimizer *opt)
{
    dt_tensor_release(&opt->looks);
    dt_tensor_release(&opt->squares);
    dti_free(opt->looked);
}

/* Adds the squares of a piece to the counters that begin at number `at`; `tape` counts the work. */
static dt_status add(dt_optimizer *opt, dt_tape *tape, dt_tensor *g, dt_tensor *counters,
                     int64_t at)
{
    int64_t *digits = dt_tensor_local(counters)->data;
    const dt_local *piece = dt_tensor_local(g);
    const int64_t begun = dti_now_ns();
    dti_device *d;

    DT_TRY(dti_device_of(dt_mesh_runtime(opt->mesh), &d));
    if (digits != NULL && dt_mesh_is_member(opt->mesh)) /* and not dry */
        DT_TRY(dti_gradient_digits(d, piece->data, dti_local_count(piece),
                                   digits + at * DTI_DIGITS_N, NULL));
    dti_tape_add_work(
        tape, "norm", DT_F32,
        &(dt_op_work){ 2.0 * (double)dti_local_count(piece), 4.0 * (double)dti_local_count(piece) },
        begun);
    return DT_OK;
}

static dt_status read(dt_optimizer *opt, dt_tensor *counters, int64_t n, int64_t *out)
{
    memset(out, 0, (size_t)n * DIGIT_BYTES);
    if (!dt_runtime_is_dry(dt_mesh_runtime(opt->mesh)))
        DT_TRY(dt_tensor_read(counters, out, (size_t)n * DIGIT_BYTES));
    return DT_OK;
}

dt_status dti_norm_look(dt_optimizer *opt, int64_t i, dt_tape *tape)
{
    dt_tensor *x;

    if (opt->clears != dti_gradients_clears(opt->gradients)) { /* by a step, or by the caller */
        DT_TRY(dt_fill(opt->looks, 0.0));
        opt->clears = dti_gradients_clears(opt->gradients);
    }
    for (int k = 0; (x = dti_leaf_part(opt->gradients, i, k)) != NULL; k++)
        if (dti_tensor_partial_dims(x) != 0) DT_TRY(add(opt, tape, x, opt->looks, i));
    return DT_OK;
}

static bool has_bad_terms(const dt_optimizer *opt, int64_t i)
{
    return opt->looked[i * DTI_DIGITS_N + DTI_DIGITS_BAD] > 0;
}

static dt_status all_reduce(dt_optimizer *opt, void *data, int64_t n, dt_reduce op)
{
    const uint32_t all = (1u << dt_mesh_n_dims(opt->mesh)) - 1;
    dti_comm *comm;

    DT_TRY(dti_mesh_comm(opt->mesh, all, &comm));
    DT_TRY(dti_all_reduce(comm, data, data, n, DT_I64, op));
    return DT_OK;
}

dt_status dti_norm_of(dt_optimizer *opt, uint64_t asked, dti_squares *out)
{
    const int64_t part[] = { (int64_t)(asked >> 48), (int64_t)(asked >> 32 & 0xffff) };

    *out = (dti_squares){ .asked = { { part[0], part[0] * part[0] },
                                     { part[1], part[1] * part[1] } } };
    DT_TRY(dt_fill(opt->squares, 0.0));
    for (int64_t i = 0; i < opt->n; i++) {
        dt_tensor *g = dti_leaf_part(opt->gradients, i, 0);
        if (g != NULL && opt->params[i].first_owner)
            DT_TRY(add(opt, opt->tape, g, opt->squares, 0));
    }
    DT_TRY(read(opt, opt->squares, 1, out->digits));
    DT_TRY(read(opt, opt->looks, opt->n, opt->looked));
    for (int64_t i = 0; i < opt->n; i++) out->n_bad_terms += has_bad_terms(opt, i);
    DT_TRY(all_reduce(opt, out, sizeof *out / sizeof(int64_t), DT_SUM));
    DT_TRY(dti_tape_add_reduction(opt->tape, "norm", sizeof *out, dt_mesh_n_ranks(opt->mesh)));
    return DT_OK;
}

bool dti_norm_is_finite(const dti_squares *squares)
{
    return squares->digits[DTI_DIGITS_BAD] == 0 && squares->n_bad_terms == 0;
}

/* n numbers are equal if n times the sum of their squares is the square of their sum: below 2^64
 * for 65536 numbers of 16 bits. */
bool dti_norm_is_asked_alike(const dt_optimizer *opt, const dti_squares *squares)
{
    const uint64_t n = (uint64_t)dt_mesh_n_ranks(opt->mesh);
    bool alike = true;

    if (dt_runtime_is_dry(dt_mesh_runtime(opt->mesh))) return true;
    for (size_t i = 0; i < DT_COUNT(squares->asked); i++) {
        const uint64_t sum = (uint64_t)squares->asked[i][0];
        alike = alike && n * (uint64_t)squares->asked[i][1] == sum * sum;
    }
    return alike;
}

/* The first parameter, in the order of the list, with something that is not finite here: terms of
 * this rank's own or, if there are none anywhere, an element that it counts. opt->n: none. */
static dt_status first_bad(dt_optimizer *opt, bool terms, int64_t *out)
{
    *out = opt->n;
    for (int64_t i = 0; i < opt->n && *out == opt->n; i++) {
        dt_tensor *g = dti_leaf_part(opt->gradients, i, 0);
        int64_t digits[DTI_DIGITS_N] = { 0 };
        if (!terms && g != NULL && opt->params[i].first_owner) {
            DT_TRY(dt_fill(opt->squares, 0.0));
            DT_TRY(add(opt, opt->tape, g, opt->squares, 0));
            DT_TRY(read(opt, opt->squares, 1, digits));
        }
        if (terms ? has_bad_terms(opt, i) : digits[DTI_DIGITS_BAD] > 0) *out = i;
    }
    return DT_OK;
}

dt_status dti_norm_refuse(dt_optimizer *opt, const dti_squares *squares)
{
    const int64_t n_ranks = dt_runtime_size(dt_mesh_runtime(opt->mesh));
    const bool terms = squares->n_bad_terms > 0, alone = dt_mesh_n_ranks(opt->mesh) == 1;
    int64_t first;

    DT_TRY(first_bad(opt, terms, &first));
    first = first * n_ranks + dt_runtime_rank(dt_mesh_runtime(opt->mesh));
    DT_TRY(all_reduce(opt, &first, 1, DT_MIN));
    DT_CHECK(first / n_ranks < opt->n, DT_ERR_INTERNAL, "nobody has what is not finite");
    DT_FAIL(DT_ERR_ARG,
            "rank %lld: the gradient of %s is not finite%s at step %lld; nothing was written",
            (long long)(first % n_ranks), opt->params[first / n_ranks].name,
            terms || alone ? "" : " once terms are added up", dti_optimizer_number(opt));
}
