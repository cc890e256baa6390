/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "dtensor/kernels/cpu/onednn.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "base/memory.h"

struct dti_product {
    dti_product_shape shape;
    const dti_onednn *lib;
    dnnl_primitive_t primitive;
    size_t scratch_bytes;
};

/* oneDNN of the distributions computes with OpenMP. Threads are ours: each of our workers runs it
 * with a team of one. The setting belongs to the calling thread, and is put back after the call,
 * because that thread may be the user's. Found at run time, since other builds of oneDNN have no
 * OpenMP and we do not link it ourselves. */
typedef struct openmp {
    int (*get_max_threads)(void);
    void (*set_num_threads)(int n);
} openmp;

struct dti_onednn {
    dnnl_engine_t engine;
    openmp omp;
    dti_product **products;
    size_t n_products, capacity;
};

static int team_of_one(const openmp *omp)
{
    const int before = omp->get_max_threads != NULL ? omp->get_max_threads() : 1;

    if (omp->set_num_threads != NULL && before != 1) omp->set_num_threads(1);
    return before;
}

static void team_as_before(const openmp *omp, int before)
{
    if (omp->set_num_threads != NULL && before != 1) omp->set_num_threads(before);
}

#define DNNL_TRY(call)                                                               \
    do {                                                                             \
        const dnnl_status_t dnnl_st = (call);                                        \
        if (dnnl_st != dnnl_success)                                                 \
            DT_FAIL(dnnl_st == dnnl_out_of_memory ? DT_ERR_MEMORY : DT_ERR_INTERNAL, \
                    "oneDNN answers status %d to %s", (int)dnnl_st, #call);          \
    } while (0)

/* --- what differs between the majors ---------------------------------------------------------- */

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t matrix; /* owned */
typedef const_dnnl_memory_desc_t matrix_view;

static dnnl_status_t matrix_make(matrix *out, int64_t rows, int64_t cols, int64_t row_stride,
                                 int64_t col_stride, dnnl_data_type_t type)
{
    const dnnl_dims_t dims = { rows, cols }, strides = { row_stride, col_stride };

    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}

static matrix_view matrix_see(const matrix *m)
{
    return *m;
}

static void matrix_free(matrix *m)
{
    if (*m != NULL) (void)dnnl_memory_desc_destroy(*m);
}

static dnnl_status_t describe(dnnl_primitive_desc_t *out, const dti_onednn *lib, const matrix *x,
                              const matrix *w, const matrix *y, const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, lib->engine, *x, *w, NULL, *y, attr);
}

#else

typedef dnnl_memory_desc_t matrix;
typedef const dnnl_memory_desc_t *matrix_view;

static dnnl_status_t matrix_make(matrix *out, int64_t rows, int64_t cols, int64_t row_stride,
                                 int64_t col_stride, dnnl_data_type_t type)
{
    const dnnl_dims_t dims = { rows, cols }, strides = { row_stride, col_stride };

    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}

static matrix_view matrix_see(const matrix *m)
{
    return m;
}

static void matrix_free(matrix *m)
{
    (void)m;
}

static dnnl_status_t describe(dnnl_primitive_desc_t *out, const dti_onednn *lib, const matrix *x,
                              const matrix *w, const matrix *y, const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t matmul;
    const dnnl_status_t st = dnnl_matmul_desc_init(&matmul, x, w, NULL, y);

    return st != dnnl_success ? st
                              : dnnl_primitive_desc_create(out, &matmul, attr, lib->engine, NULL);
}

#endif

static size_t scratch_bytes(const_dnnl_primitive_desc_t desc)
{
    return dnnl_memory_desc_get_size(
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
}

/* --- products --------------------------------------------------------------------------------- */

/* x, w and y of a shape; w is named [k, n] with the strides of [n, k]. */
typedef struct operands {
    matrix x, w, y;
} operands;

static dnnl_status_t operands_make(operands *o, const dti_product_shape *s)
{
    const dnnl_data_type_t type = s->dtype == DT_BF16 ? dnnl_bf16 : dnnl_f32;
    dnnl_status_t st;

    memset(o, 0, sizeof *o);
    st = matrix_make(&o->x, s->m, s->k, s->k, 1, type);
    if (st == dnnl_success) st = matrix_make(&o->w, s->k, s->n, 1, s->k, type);
    if (st == dnnl_success) st = matrix_make(&o->y, s->m, s->n, s->n, 1, dnnl_f32);
    return st;
}

static void operands_free(operands *o)
{
    matrix_free(&o->x);
    matrix_free(&o->w);
    matrix_free(&o->y);
}

/* The library's part of a product; what was made is freed by the caller in either case. */
static dt_status build(dti_product *p, operands *o, dnnl_primitive_attr_t *attr,
                       dnnl_primitive_desc_t *desc)
{
    DNNL_TRY(operands_make(o, &p->shape));
    DNNL_TRY(dnnl_primitive_attr_create(attr));
    DNNL_TRY(dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user));
    DNNL_TRY(describe(desc, p->lib, &o->x, &o->w, &o->y, *attr));
    p->scratch_bytes = scratch_bytes(*desc);
    DNNL_TRY(dnnl_primitive_create(&p->primitive, *desc));
    return DT_OK;
}

static void product_free(dti_product *p)
{
    if (p->primitive != NULL) (void)dnnl_primitive_destroy(p->primitive);
    dti_free(p);
}

static dt_status product_create(dti_onednn *lib, const dti_product_shape *shape, dti_product **out)
{
    dt_status st;
    dti_product *p;
    operands o;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    int team;

    *out = NULL;
    DT_TRY(dti_new(sizeof *p, &p));
    p->shape = *shape;
    p->lib = lib;
    memset(&o, 0, sizeof o);
    team = team_of_one(&lib->omp); /* also decides what the library prepares for */
    st = build(p, &o, &attr, &desc);
    team_as_before(&lib->omp, team);
    if (desc != NULL) (void)dnnl_primitive_desc_destroy(desc);
    if (attr != NULL) (void)dnnl_primitive_attr_destroy(attr);
    operands_free(&o);
    if (st != DT_OK) {
        product_free(p);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *out = p;
    return DT_OK;
}

dt_status dti_onednn_product(dti_onednn *lib, const dti_product_shape *shape,
                             const dti_product **out)
{
    dti_product *p;

    *out = NULL;
    for (size_t i = 0; i < lib->n_products; i++) {
        const dti_product_shape *s = &lib->products[i]->shape;
        if (s->m != shape->m || s->n != shape->n || s->k != shape->k || s->dtype != shape->dtype)
            continue;
        *out = lib->products[i];
        return DT_OK;
    }
    DT_TRY(dti_grow((void **)&lib->products, &lib->capacity, lib->n_products + 1,
                    sizeof(dti_product *)));
    DT_TRY(product_create(lib, shape, &p));
    lib->products[lib->n_products++] = p;
    *out = p;
    return DT_OK;
}

size_t dti_product_scratch(const dti_product *p)
{
    return p->scratch_bytes;
}

static dnnl_status_t memory_of(dnnl_memory_t *out, const dti_product *p, const matrix *m,
                               const void *data)
{
    return dnnl_memory_create(out, matrix_see(m), p->lib->engine, (void *)(uintptr_t)data);
}

/* Memory objects are made for each run: they are cheap beside a product, and nothing is shared
 * between threads but the primitive, which is constant. */
static dnnl_status_t run(const dti_product *p, dnnl_exec_arg_t args[4], dnnl_stream_t *stream,
                         operands *o, const void *const data[4])
{
    const int names[4] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD };
    const_dnnl_primitive_desc_t desc;
    dnnl_status_t st = operands_make(o, &p->shape);

    for (int i = 0; i < 4; i++) args[i] = (dnnl_exec_arg_t){ names[i], NULL };
    if (st == dnnl_success) st = memory_of(&args[0].memory, p, &o->x, data[0]);
    if (st == dnnl_success) st = memory_of(&args[1].memory, p, &o->w, data[1]);
    if (st == dnnl_success) st = memory_of(&args[2].memory, p, &o->y, data[2]);
    if (st == dnnl_success) st = dnnl_primitive_get_primitive_desc(p->primitive, &desc);
    if (st == dnnl_success)
        st = dnnl_memory_create(&args[3].memory,
                                dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0),
                                p->lib->engine, (void *)(uintptr_t)data[3]);
    if (st == dnnl_success)
        st = dnnl_stream_create(stream, p->lib->engine, dnnl_stream_default_flags);
    if (st == dnnl_success) st = dnnl_primitive_execute(p->primitive, *stream, 4, args);
    if (st == dnnl_success) st = dnnl_stream_wait(*stream);
    return st;
}

int dti_product_run(const dti_product *p, const void *x, const void *w, float *y, void *scratch)
{
    const void *const data[4] = { x, w, y, scratch };
    const int team = team_of_one(&p->lib->omp);
    dnnl_exec_arg_t args[4];
    dnnl_stream_t stream = NULL;
    operands o;
    const dnnl_status_t st = run(p, args, &stream, &o, data);

    if (stream != NULL) (void)dnnl_stream_destroy(stream);
    for (int i = 0; i < 4; i++)
        if (args[i].memory != NULL) (void)dnnl_memory_destroy(args[i].memory);
    operands_free(&o);
    team_as_before(&p->lib->omp, team);
    return (int)st;
}

/* --- the library ------------------------------------------------------------------------------ */

/* A function pointer by name; ISO C has no cast for it. */
static void find_function(const char *name, void *out, size_t bytes)
{
    void *address = dlsym(RTLD_DEFAULT, name);

    if (address != NULL) memcpy(out, &address, bytes);
}

dt_status dti_onednn_create(dti_onednn **out)
{
    dti_onednn *lib;
    dnnl_status_t st;

    *out = NULL;
    DT_TRY(dti_new(sizeof *lib, &lib));
    find_function("omp_get_max_threads", &lib->omp.get_max_threads,
                  sizeof lib->omp.get_max_threads);
    find_function("omp_set_num_threads", &lib->omp.set_num_threads,
                  sizeof lib->omp.set_num_threads);
    st = dnnl_engine_create(&lib->engine, dnnl_cpu, 0);
    if (st != dnnl_success) {
        dti_free(lib);
        DT_FAIL(DT_ERR_INTERNAL, "oneDNN offers no CPU engine (status %d)", (int)st);
    }
    *out = lib;
    return DT_OK;
}

void dti_onednn_destroy(dti_onednn **lib_)
{
    dti_onednn *lib = *lib_;

    if (lib == NULL) return;
    *lib_ = NULL;
    for (size_t i = 0; i < lib->n_products; i++) product_free(lib->products[i]);
    dti_free(lib->products);
    (void)dnnl_engine_destroy(lib->engine);
    dti_free(lib);
}
