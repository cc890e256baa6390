/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many rows by cuBLASLt. Row-major y [m, n] = x [m, k] w [n, k]^T is, in its
 * column-major words, y^T [n, m] = w^T (k x n, transposed) x^T (k x m): nothing is copied, and the
 * bias runs along rows of y^T, which is what its epilogue adds. What lies turned is transposed the
 * other way. f32 is f32: no tf32.
 *
 * What a product needs (descriptors, the algorithm that the library proposes) is kept in a table of
 * plans. An algorithm is asked for with m rounded up to a bucket and used for all m below it; where
 * the library refuses that, one is asked for with m itself, as where x lies turned: m is the
 * distance between its rows then. All is made when the first product comes, because the library
 * cannot start without a driver. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "dtensor/kernels/cuda/gemm_plans.h"
#include "dtensor/kernels/cuda/plan_table.h"
#include "dtensor/kernels/cuda/product.h"

enum { MOST_PLANS = 512, WORKSPACE_BYTES = 32 << 20 };

struct dti_gemm_plans {
    cublasLtHandle_t lt;
    void *workspace;
    dti_plan_table *table;
};

typedef struct lt_plan {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, y;
    cublasLtMatmulAlgo_t algorithm;
    bool usable; /* false: the library has no algorithm, which is worth knowing too */
} lt_plan;

static int check(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS) return 0;
    return dti_cuda_fail("%s: %s (%s)", what, cublasLtGetStatusName(status),
                         cublasLtGetStatusString(status));
}

static cudaDataType_t data_type(int dtype)
{
    return dtype == DT_BF16 ? CUDA_R_16BF : dtype == DT_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* --- state of a rank -------------------------------------------------------------------------- */

static void free_state(struct dti_gemm_plans *g)
{
    dti_plan_table_destroy(g->table);
    if (g->workspace != NULL) (void)cudaFree(g->workspace);
    if (g->lt != NULL) (void)cublasLtDestroy(g->lt);
    free(g);
}

void dti_cuda_gemm_close(dti_cuda *c)
{
    if (c->gemm != NULL) free_state(c->gemm);
    c->gemm = NULL;
}

static void drop_plan(void *arg, void *plan)
{
    (void)arg;
    free(plan);
}

static int fill_state(struct dti_gemm_plans *g)
{
    g->table = dti_plan_table_create(MOST_PLANS, sizeof(dti_gemm_key), drop_plan, NULL);
    if (g->table == NULL) return dti_cuda_fail("no memory for plans of products");
    if (check(cublasLtCreate(&g->lt), "cuBLASLt cannot start") != 0) return -1;
    return dti_cuda_check(cudaMalloc(&g->workspace, WORKSPACE_BYTES), "workspace of cuBLASLt");
}

/* While a graph is recorded, memory may be taken in the relaxed mode alone. */
static int make_state(dti_cuda *c)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    struct dti_gemm_plans *g = calloc(1, sizeof *g);
    int failed;

    if (g == NULL) return dti_cuda_fail("no memory for plans of products");
    if (dti_cuda_check(cudaThreadExchangeStreamCaptureMode(&mode), "capture mode") != 0) {
        free(g);
        return -1;
    }
    failed = fill_state(g);
    if (failed != 0)
        free_state(g);
    else
        c->gemm = g;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return failed;
}

/* --- plans ------------------------------------------------------------------------------------ */

static dti_gemm_key key_of(const dti_cuda_product *p, bool exact)
{
    const int64_t bytes = (int64_t)dti_cuda_dtype_bytes(p->dtype);
    dti_gemm_key key;

    memset(&key, 0, sizeof key);
    key.m = exact ? p->m : dti_gemm_bucket(p->m);
    key.n = p->n;
    key.k = p->k;
    key.dtype = p->dtype;
    key.out_dtype = p->out_dtype;
    key.bias = p->bias != NULL;
    key.x_align = dti_gemm_alignment(p->x, (p->x_turned ? p->m : p->k) * bytes);
    key.w_align = dti_gemm_alignment(p->w, (p->w_turned ? p->n : p->k) * bytes);
    key.y_align = dti_gemm_alignment(p->y, p->n * (int64_t)dti_cuda_dtype_bytes(p->out_dtype));
    key.bias_align = p->bias != NULL ? dti_gemm_alignment(p->bias, 0) : 0;
    key.exact = exact;
    key.x_turned = p->x_turned;
    key.w_turned = p->w_turned;
    return key;
}

/* [columns, rows] row-major; turned: [rows, columns]. */
static cublasStatus_t lay(cublasLtMatrixLayout_t layout, cudaDataType_t type, uint64_t rows,
                          uint64_t columns, bool turned)
{
    const uint64_t down = turned ? columns : rows, across = turned ? rows : columns;

    return cublasLtMatrixLayoutInit(layout, type, down, across, (int64_t)down);
}

static int describe(lt_plan *plan, const dti_gemm_key *key)
{
    const cublasOperation_t w_op = key->w_turned ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cublasOperation_t x_op = key->x_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t in = data_type(key->dtype), out = data_type(key->out_dtype);
    const uint64_t n = (uint64_t)key->n, k = (uint64_t)key->k, m = (uint64_t)key->m;
    /* Nobody reads there: the search takes from it what a bias is aligned to. */
    const uintptr_t bias_like = (uintptr_t)key->bias_align;
    cublasStatus_t st = cublasLtMatmulDescInit(&plan->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulDescSetAttribute(&plan->op, CUBLASLT_MATMUL_DESC_TRANSA, &w_op,
                                            sizeof w_op);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulDescSetAttribute(&plan->op, CUBLASLT_MATMUL_DESC_TRANSB, &x_op,
                                            sizeof x_op);
    if (st == CUBLAS_STATUS_SUCCESS && key->bias)
        st = cublasLtMatmulDescSetAttribute(&plan->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias,
                                            sizeof bias);
    if (st == CUBLAS_STATUS_SUCCESS && key->bias)
        st = cublasLtMatmulDescSetAttribute(&plan->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &in,
                                            sizeof in);
    if (st == CUBLAS_STATUS_SUCCESS && key->bias)
        st = cublasLtMatmulDescSetAttribute(&plan->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                            &bias_like, sizeof bias_like);
    if (st == CUBLAS_STATUS_SUCCESS) st = lay(&plan->w, in, k, n, key->w_turned != 0);
    if (st == CUBLAS_STATUS_SUCCESS) st = lay(&plan->x, in, k, m, key->x_turned != 0);
    if (st == CUBLAS_STATUS_SUCCESS) st = lay(&plan->y, out, n, m, false);
    return check(st, "describing a product to cuBLASLt");
}

/* What algorithms may rely on and use. Partial sums are added in f32, not in y's dtype. */
static int describe_limits(cublasLtMatmulPreferenceOpaque_t *limits, const dti_gemm_key *key)
{
    const uint64_t workspace = WORKSPACE_BYTES;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        uint32_t value;
    } rows[] = {
        { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->w_align },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->x_align },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->y_align },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->y_align },
    };
    cublasStatus_t st = cublasLtMatmulPreferenceInit(limits);

    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulPreferenceSetAttribute(limits, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &workspace, sizeof workspace);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && st == CUBLAS_STATUS_SUCCESS; i++)
        st = cublasLtMatmulPreferenceSetAttribute(limits, rows[i].name, &rows[i].value,
                                                  sizeof rows[i].value);
    return check(st, "limits of a product for cuBLASLt");
}

static int choose_algorithm(const struct dti_gemm_plans *g, lt_plan *plan, const dti_gemm_key *key)
{
    cublasLtMatmulPreferenceOpaque_t limits;
    cublasLtMatmulHeuristicResult_t best;
    cublasStatus_t st;
    int n = 0;

    if (describe_limits(&limits, key) != 0) return -1;
    st = cublasLtMatmulAlgoGetHeuristic(g->lt, &plan->op, &plan->w, &plan->x, &plan->y, &plan->y,
                                        &limits, 1, &best, &n);
    if (st == CUBLAS_STATUS_NOT_SUPPORTED) n = 0;
    if (st != CUBLAS_STATUS_NOT_SUPPORTED && check(st, "asking cuBLASLt for an algorithm") != 0)
        return -1;
    plan->usable = n > 0 && best.state == CUBLAS_STATUS_SUCCESS;
    if (plan->usable) plan->algorithm = best.algo;
    return 0;
}

/* The plan of a key, made if it is new; NULL: that failed. */
static lt_plan *find_plan(struct dti_gemm_plans *g, const dti_gemm_key *key)
{
    lt_plan *plan = dti_plan_table_find(g->table, key);

    if (plan != NULL) return plan;
    plan = calloc(1, sizeof *plan);
    if (plan == NULL) {
        (void)dti_cuda_fail("no memory for the plan of a product");
        return NULL;
    }
    if (describe(plan, key) != 0 || choose_algorithm(g, plan, key) != 0) {
        free(plan);
        return NULL;
    }
    dti_plan_table_put(g->table, key, plan);
    return plan;
}

/* --- a product -------------------------------------------------------------------------------- */

static cublasStatus_t multiply(const dti_cuda *c, lt_plan *plan, const dti_cuda_product *p)
{
    const float one = 1.0f, zero = 0.0f;
    const uint64_t m = (uint64_t)p->m; /* the plan may be of more rows */
    cublasStatus_t st = CUBLAS_STATUS_SUCCESS;

    if (!p->x_turned)
        st = cublasLtMatrixLayoutSetAttribute(&plan->x, CUBLASLT_MATRIX_LAYOUT_COLS, &m, sizeof m);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatrixLayoutSetAttribute(&plan->y, CUBLASLT_MATRIX_LAYOUT_COLS, &m, sizeof m);
    if (st == CUBLAS_STATUS_SUCCESS && p->bias != NULL)
        st = cublasLtMatmulDescSetAttribute(&plan->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                                            sizeof p->bias);
    if (st != CUBLAS_STATUS_SUCCESS) return st;
    return cublasLtMatmul(c->gemm->lt, &plan->op, &one, p->w, &plan->w, p->x, &plan->x, &zero, p->y,
                          &plan->y, p->y, &plan->y, &plan->algorithm, c->gemm->workspace,
                          WORKSPACE_BYTES, c->stream);
}

/* The library says before it starts anything that an algorithm does not fit. */
static bool is_refusal(cublasStatus_t st)
{
    return st == CUBLAS_STATUS_NOT_SUPPORTED || st == CUBLAS_STATUS_INVALID_VALUE;
}

int dti_gemm_lt(dti_cuda *c, const dti_cuda_product *p)
{
    /* The epilogue adds biases of y's dtype. */
    if (p->k == 0 || (p->bias != NULL && p->dtype != p->out_dtype)) return 0;
    if (c->gemm == NULL && make_state(c) != 0) return -1;
    for (int exact = p->x_turned ? 1 : 0; exact < 2; exact++) {
        const dti_gemm_key key = key_of(p, exact != 0);
        lt_plan *const plan = find_plan(c->gemm, &key);
        cublasStatus_t st;
        if (plan == NULL) return -1;
        if (!plan->usable) continue;
        st = multiply(c, plan, p);
        if (st == CUBLAS_STATUS_SUCCESS) return 1;
        if (!is_refusal(st)) return check(st, "a product by cuBLASLt");
        plan->usable = exact == 0; /* smaller m of the bucket may do */
    }
    return 0;
}
