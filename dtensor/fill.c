/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling tensors by global index. */
#include <dtensor/factories.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/host.h"
#include "dtensor/kernels/cpu/cpu_internal.h"
#include "dtensor/kernels/cpu/cpu_random.h"
#include "dtensor/piece_runs.h"

/* Writes the elements with row-major global index first .. first + n - 1 to `to`. Any thread. */
typedef void (*fill_fn)(const void *arg, void *to, int64_t first, int64_t n);

/* --- runs ------------------------------------------------------------------------------------- */

typedef struct fill_job {
    dti_piece_map piece;
    char *data; /* of the piece, for the host */
    fill_fn fn;
    const void *arg;
} fill_job;

static void fill_share(void *arg, int worker, int n_workers)
{
    const fill_job *j = arg;
    const dt_tensor *x = j->piece.x;
    const int64_t bytes = (int64_t)dt_dtype_size(x->local.dtype);
    int64_t begin, end;

    dti_pool_share(dti_tensor_count(x), 64, worker, n_workers, &begin, &end);
    while (begin < end) {
        int64_t left;
        const int64_t first = dti_piece_global_run(&j->piece, begin, &left);
        const int64_t n = left < end - begin ? left : end - begin;
        j->fn(j->arg, j->data + begin * bytes, first, n);
        begin += n;
    }
}

static dt_status fill_on_host(dt_tensor *x, fill_job *job, fill_fn fn, const void *arg)
{
    dti_host host;

    DT_TRY(dti_host_open(x, DTI_HOST_WRITES, &host));
    job->data = host.local.data;
    job->fn = fn;
    job->arg = arg;
    /* A few nanoseconds per element: worth the workers earlier than a copy. */
    dti_cpu_run(x->device->cpu, 16 * dti_bytes(&x->local), fill_share, job);
    DT_TRY(dti_host_close(&host, DT_OK));
    return DT_OK;
}

/* Calls fn for all runs of x's piece, on the rank's workers. */
static dt_status fill_runs(dt_tensor *x, fill_fn fn, const void *arg)
{
    fill_job job;

    if (x->device->dry || dti_tensor_count(x) == 0) return DT_OK;
    job.piece = dti_piece_of(x);
    DT_TRY(fill_on_host(x, &job, fn, arg));
    return DT_OK;
}

/* Whether the device has elements to write, and writes them without the host. */
static bool fills_itself(const dt_tensor *x)
{
    return !x->device->ops->host_visible && !x->device->dry && dti_tensor_count(x) > 0;
}

static dt_status check_fill(const dt_tensor *x)
{
    DT_CHECK(x != NULL, DT_ERR_ARG, "x is NULL");
    DT_CHECK(!x->device->ended, DT_ERR_ARG, "the run that this tensor belongs to has ended");
    DT_CHECK(x->layout->partial_dims == 0, DT_ERR_LAYOUT,
             "a Partial tensor has terms, not elements, to fill; redistribute it first");
    return DT_OK;
}

/* --- constants -------------------------------------------------------------------------------- */

static bool holds(dt_dtype dtype, double value)
{
    switch (dtype) {
    case DT_I32:
        return floor(value) == value && value >= -0x1p31 && value < 0x1p31;
    case DT_I64:
        return floor(value) == value && value >= -0x1p63 && value < 0x1p63;
    case DT_U8:
        return floor(value) == value && value >= 0.0 && value < 256.0;
    default:
        return true;
    }
}

/* DT_ERR_ARG if the integer dtype cannot hold `value` exactly; floats hold any. */
static dt_status check_value(dt_dtype dtype, double value, const char *what)
{
    DT_CHECK(holds(dtype, value), DT_ERR_ARG, "%s is %.17g, which %s cannot hold", what, value,
             dt_dtype_name(dtype));
    return DT_OK;
}

typedef struct steps_arg {
    dt_dtype dtype;
    dt_steps steps;
} steps_arg;

static void arange_run(const void *arg, void *to, int64_t first, int64_t n)
{
    const steps_arg *a = arg;
    const int64_t start = (int64_t)(dt_dtype_is_float(a->dtype) ? 0 : a->steps.start);
    const int64_t step = (int64_t)(dt_dtype_is_float(a->dtype) ? 0 : a->steps.step);

    for (int64_t i = 0; i < n; i++) {
        /* Modulo 2^64: a step's multiple may leave the range where its sum with start does not. */
        const int64_t g = first + i;
        const int64_t whole = (int64_t)((uint64_t)start + (uint64_t)step * (uint64_t)g);
        const double value = a->steps.start + a->steps.step * (double)g;
        switch (a->dtype) {
        case DT_F64:
            ((double *)to)[i] = value;
            break;
        case DT_I64:
            ((int64_t *)to)[i] = whole;
            break;
        case DT_I32:
            ((int32_t *)to)[i] = (int32_t)whole;
            break;
        case DT_U8:
            ((uint8_t *)to)[i] = (uint8_t)whole;
            break;
        default:
            dti_store_f32(to, a->dtype, i, (float)value);
        }
    }
}

/* The last of n whole numbers, at start + (n - 1) step, fits into the dtype. Exact: doubles lie
 * 1024 apart near 2^63. */
static dt_status check_last(dt_dtype dtype, dt_steps steps, int64_t n)
{
    const uint64_t start = (uint64_t)(int64_t)steps.start, step = (uint64_t)(int64_t)steps.step;
    const uint64_t room =
        steps.step > 0 ? (uint64_t)INT64_MAX - start : start - (uint64_t)INT64_MIN;
    const uint64_t size = steps.step > 0 ? step : 0 - step, left = (uint64_t)n - 1;
    const int64_t last = (int64_t)(start + step * left);

    DT_CHECK((size == 0 || left <= room / size) && (dtype == DT_I64 || holds(dtype, (double)last)),
             DT_ERR_ARG, "the last element is %.17g, which %s cannot hold",
             steps.start + steps.step * (double)left, dt_dtype_name(dtype));
    return DT_OK;
}

dt_status dt_fill_arange(dt_tensor *x, dt_steps steps)
{
    steps_arg arg;
    int64_t n = 1;

    DT_TRY(check_fill(x));
    for (int a = 0; a < x->n_axes; a++) n *= x->shape[a];
    arg = (steps_arg){ x->local.dtype, steps };
    DT_TRY(check_value(arg.dtype, steps.start, "start"));
    if (!dt_dtype_is_float(arg.dtype)) {
        DT_TRY(check_value(DT_I64, steps.step, "step")); /* may be negative, whatever the dtype */
        if (n > 1) DT_TRY(check_last(arg.dtype, steps, n));
    }
    DT_TRY(fill_runs(x, arange_run, &arg));
    return DT_OK;
}

typedef struct value_arg {
    size_t bytes;
    char element[8];
} value_arg;

static void value_run(const void *arg, void *to, int64_t first, int64_t n)
{
    const value_arg *a = arg;
    const size_t all = (size_t)n * a->bytes;
    size_t done = a->bytes;

    (void)first;
    memcpy(to, a->element, a->bytes);
    while (done < all) { /* what is there is doubled, in pieces that stay in level 1 */
        size_t more = done < 4096 ? done : 4096 / a->bytes * a->bytes;
        if (more > all - done) more = all - done;
        memcpy((char *)to + done, to, more);
        done += more;
    }
}

dt_status dt_fill(dt_tensor *x, double value)
{
    value_arg arg = { 0 };
    steps_arg one;

    DT_TRY(check_fill(x));
    DT_TRY(check_value(x->local.dtype, value, "value"));
    one = (steps_arg){ x->local.dtype, { value, 0.0 } };
    arg.bytes = dt_dtype_size(x->local.dtype);
    arange_run(&one, arg.element, 0, 1);
    if (fills_itself(x))
        DT_TRY(x->device->ops->fill(x->device, x->local.data, dti_tensor_count(x), arg.element,
                                    arg.bytes));
    else
        DT_TRY(fill_runs(x, value_run, &arg));
    return DT_OK;
}

/* --- random values ---------------------------------------------------------------------------- */

typedef struct random_arg {
    dti_random_fn fn;
    dti_random_fill fill;
} random_arg;

static void random_run(const void *arg, void *to, int64_t first, int64_t n)
{
    const random_arg *a = arg;

    a->fn(&a->fill, to, first, n);
}

static dt_status random_on_device(dt_tensor *x, const dti_piece_map *p, const dti_random_fill *f)
{
    const int64_t n = dti_tensor_count(x), bytes = (int64_t)dt_dtype_size(f->dtype);
    int64_t skip, left;

    for (int64_t i = 0; i < n; i += left) {
        const dti_box box = dti_piece_box(p, i, &skip, &left);
        DT_TRY(x->device->ops->fill_random(x->device, (char *)x->local.data + i * bytes, &box, f));
    }
    return DT_OK;
}

/* Axes behind the first that are in several runs, as some packed ones are, are left to the host. */
static bool has_boxes(const dti_piece_map *p)
{
    for (int a = 1; a <= p->axis; a++)
        if (p->runs[a].n > 1) return false;
    return true;
}

static dt_status run_random(dt_tensor *x, const dti_random_fill *f)
{
    const random_arg arg = { x->device->cpu->random, *f };
    fill_job job;

    if (x->device->dry || dti_tensor_count(x) == 0) return DT_OK;
    job.piece = dti_piece_of(x);
    if (fills_itself(x) && has_boxes(&job.piece))
        DT_TRY(random_on_device(x, &job.piece, f));
    else
        DT_TRY(fill_on_host(x, &job, random_run, &arg));
    return DT_OK;
}

static dt_status fill_random(dt_tensor *x, const char *name, dti_random_fill f)
{
    DT_TRY(check_fill(x));
    f.dtype = x->local.dtype;
    DT_CHECK(dt_dtype_is_float(f.dtype), DT_ERR_ARG,
             "%s makes floats, and x is %s; dt_fill_randint() makes whole numbers", name,
             dt_dtype_name(f.dtype));
    DT_TRY(run_random(x, &f));
    return DT_OK;
}

dt_status dt_fill_rand(dt_tensor *x, dt_random key, double low, double high)
{
    const dti_random_fill f = {
        .kind = DTI_RANDOM_UNIFORM, .key = key, .shift = low, .scale = high - low
    };

    DT_CHECK(low <= high && isfinite(high - low), DT_ERR_ARG,
             "no uniform values in [%.17g, %.17g): both must be finite, low the smaller", low,
             high);
    DT_TRY(fill_random(x, "dt_fill_rand()", f));
    return DT_OK;
}

dt_status dt_fill_randn(dt_tensor *x, dt_random key, double mean, double deviation)
{
    const dti_random_fill f = {
        .kind = DTI_RANDOM_NORMAL, .key = key, .shift = mean, .scale = deviation
    };

    DT_CHECK(isfinite(mean) && isfinite(deviation) && deviation >= 0.0, DT_ERR_ARG,
             "no normal values of mean %.17g and deviation %.17g: both must be finite, the latter "
             "not negative",
             mean, deviation);
    DT_TRY(fill_random(x, "dt_fill_randn()", f));
    return DT_OK;
}

dt_status dt_fill_randint(dt_tensor *x, dt_random key, int64_t low, int64_t high)
{
    dti_random_fill f = { .kind = DTI_RANDOM_INTEGER, .key = key, .low = low };

    DT_TRY(check_fill(x));
    DT_CHECK(low < high, DT_ERR_ARG, "no whole number in [%lld, %lld)", (long long)low,
             (long long)high);
    f.range = (uint64_t)high - (uint64_t)low;
    f.dtype = x->local.dtype;
    if (f.dtype != DT_I64) { /* which holds all that an int64_t does, and doubles do not */
        DT_TRY(check_value(f.dtype, (double)low, "low"));
        DT_TRY(check_value(f.dtype, (double)(high - 1), "high - 1"));
    }
    DT_TRY(run_random(x, &f));
    return DT_OK;
}

dt_random dt_random_next(dt_random *generator)
{
    dt_random key = { 0 };

    if (generator == NULL) return key;
    key = *generator;
    generator->stream++;
    return key;
}
