/* SPDX-License-Identifier: Apache-2.0
 *
 * linear: x [..., I] F, w [O, I] F (, bias [O] F) -> out [..., O], F or f32. f32 accumulation, bias
 * added in f32, one rounding. Few rows are read at the speed of memory (skinny.cu), more are a
 * product of the library, or of gemm_plain.cu.
 *
 * Gradients: dx = dy w, dw = dy^T x, whose operands lie turned: products of the library, or of
 * matmul.cu. */
#include "dtensor/kernels/cuda/product.h"

int dti_cuda_gemm(dti_cuda *c, const dti_cuda_product *p)
{
    const dti_product_job job = { .x = p->x,
                                  .w = p->w,
                                  .bias = p->bias,
                                  .y = p->y,
                                  .m = p->m,
                                  .n = p->n,
                                  .k = p->k,
                                  .f32_out = p->out_dtype == DT_F32 };

    const bool turned = p->x_turned || p->w_turned;

    if (p->m == 0 || p->n == 0) return 0;
    if (!turned && dti_is_skinny(p->dtype, &job)) return dti_cuda_skinny(c, p->dtype, &job);
#ifdef DTI_WITH_CUBLASLT
    const int taken = dti_gemm_lt(c, p);
    if (taken != 0) return taken < 0 ? -1 : 0;
#endif
    return turned ? dti_cuda_matmul_plain(c, p) : dti_cuda_gemm_plain(c, p->dtype, &job);
}

#ifndef DTI_WITH_CUBLASLT
void dti_cuda_gemm_close(dti_cuda *c)
{
    (void)c;
}
#endif

/* Operands of one dtype, a result of that or f32. */
static int check_types(const char *row, const char *first, const dt_local *x, const char *second,
                       const dt_local *w, const dt_local *y)
{
    if (x->dtype != w->dtype)
        return dti_cuda_fail("%s on CUDA: %s is %s but %s is %s; cast one of them", row, first,
                             dti_cuda_dtype_name((int)x->dtype), second,
                             dti_cuda_dtype_name((int)w->dtype));
    if (w->dtype != DT_F32 && w->dtype != DT_BF16 && w->dtype != DT_F16)
        return dti_cuda_fail("%s on CUDA: no kernel for %s, only for f32, bf16 and f16", row,
                             dti_cuda_dtype_name((int)w->dtype));
    if (y->dtype != w->dtype && y->dtype != DT_F32)
        return dti_cuda_fail("%s on CUDA: %s is %s, so the result is that or f32, not %s", row,
                             second, dti_cuda_dtype_name((int)w->dtype),
                             dti_cuda_dtype_name((int)y->dtype));
    return 0;
}

int dti_linear_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *x = &a->in[0], *w = &a->in[1], *bias = a->n_in > 2 ? &a->in[2] : NULL;
    const dt_local *y = &a->out[0];
    const dti_cuda_product p = { .m = dti_product_rows(x),
                                 .n = w->shape[0],
                                 .k = w->shape[1],
                                 .x = x->data,
                                 .w = w->data,
                                 .bias = bias != NULL ? bias->data : NULL,
                                 .y = y->data,
                                 .dtype = (int)w->dtype,
                                 .out_dtype = (int)y->dtype };

    if (check_types("linear", "x", x, "w", w, y) != 0) return -1;
    if (bias != NULL && check_types("linear", "bias", bias, "w", w, y) != 0) return -1;
    return dti_cuda_gemm(c, &p);
}

int dti_linear_bias_cuda(dti_cuda *c, const dt_kargs *a)
{
    return dti_linear_cuda(c, a);
}

int dti_linear_backward_x_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *dy = &a->in[0], *w = &a->in[1], *dx = &a->out[0];
    const dti_cuda_product p = { .m = dti_product_rows(dy),
                                 .n = w->shape[1],
                                 .k = w->shape[0],
                                 .x = dy->data,
                                 .w = w->data,
                                 .y = dx->data,
                                 .dtype = (int)w->dtype,
                                 .out_dtype = (int)dx->dtype,
                                 .w_turned = true };

    if (check_types("linear_backward_x", "dy", dy, "w", w, dx) != 0) return -1;
    return dti_cuda_gemm(c, &p);
}

int dti_linear_backward_w_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *dy = &a->in[0], *x = &a->in[1], *dw = &a->out[0];
    const dti_cuda_product p = { .m = dw->shape[0],
                                 .n = dw->shape[1],
                                 .k = dti_product_rows(dy),
                                 .x = dy->data,
                                 .w = x->data,
                                 .y = dw->data,
                                 .dtype = (int)x->dtype,
                                 .out_dtype = (int)dw->dtype,
                                 .x_turned = true,
                                 .w_turned = true };

    if (check_types("linear_backward_w", "dy", dy, "x", x, dw) != 0) return -1;
    return dti_cuda_gemm(c, &p);
}
