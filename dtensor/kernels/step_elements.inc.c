/* SPDX-License-Identifier: Apache-2.0
 *
 * An optimizer's step of one element: one text for the vectors of all CPUs and for GPUs, so that
 * all give the same bits. Nothing is fused here (-ffp-contract=off, nvcc -fmad=false). Before
 * including, define V, the number or vector, SQRT(x) and FORMULA, what functions begin with. */

FORMULA void adamw_element(const dti_adamw_attr *a, V g, V *m, V *v, V *p)
{
    const bool near = a->lerp < 0.5f; /* to m; torch.lerp() begins at the nearer end */

    g = g * a->scale;
    *p = *p * a->decay;
    *m = (near ? *m : g) + (g - *m) * (near ? a->lerp : a->lerp - 1.0f);
    *v = *v * a->beta2 + g * a->rest2 * g;
    *p = *p + *m * a->step / (SQRT(*v) / a->root2 + a->eps);
}

/* b: of the momentum, if any. */
FORMULA void sgd_element(const dti_sgd_attr *a, V g, V *b, V *p)
{
    g = g * a->scale;
    if (a->decay != 0.0f) g = g + *p * a->decay;
    if (a->has_momentum) {
        *b = a->first ? g : *b * a->momentum + g * a->rest;
        g = a->nesterov ? g + *b * a->momentum : *b;
    }
    *p = *p + g * a->step;
}
