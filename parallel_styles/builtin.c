/* SPDX-License-Identifier: Apache-2.0
 *
 * The vocabulary: one row per style. For a weight [out, in] and x [..., in] over one mesh dim of p
 * ranks: what is cut, what the layer asks of x, what it leaves in y. Names follow Hugging Face
 * Transformers and PyTorch. */
#include "parallel_styles/layers_internal.h"

#define STYLE(n, k, c, i, o, s)                                                   \
    {                                                                             \
        .size = sizeof(dt_style), .name = (n), .summary = (s), .cut = DT_CUT_##c, \
        .input = DT_PASS_##i, .output = DT_PASS_##o, .kinds = (k)                 \
    }

/* Layers that a style fits. */
#define LINEAR 1u << DT_LAYER_LINEAR
#define LOOKUP 1u << DT_LAYER_EMBEDDING
#define BOTH   (LINEAR) | (LOOKUP)
#define ANY    0

/* clang-format off */
const dt_style dti_builtin_styles[] = {
/*          name                      layers  cut      x           y                                                 */
    STYLE("colwise",                  BOTH,   COLUMNS, REPLICATE,  KEEP,      "outputs cut; y stays cut on its last axis; moves nothing"),
    STYLE("colwise_gather_output",    BOTH,   COLUMNS, REPLICATE,  REPLICATE, "outputs cut; y is gathered: one all-gather"),
    STYLE("rowwise",                  BOTH,   ROWS,    SHARD_LAST, REPLICATE, "inputs cut; y is summed: one all-reduce, then the bias"),
    STYLE("rowwise_split_input",      BOTH,   ROWS,    SHARD_LAST, REPLICATE, "rowwise on a whole x, sliced: one all-reduce"),
    STYLE("embedding_rowwise",        LOOKUP, ROWS,    REPLICATE,  REPLICATE, "vocabulary cut, zeros elsewhere: one all-reduce"),
    STYLE("replicate",                ANY,    NONE,    REPLICATE,  KEEP,      "parameters whole; x is made whole, all compute all"),
    STYLE("replicated_with_grad_allreduce",
                                      ANY,    NONE,    KEEP,       KEEP,      "parameters whole; x stays as it lies (q_norm)"),
};

const dti_style_alias dti_style_aliases[] = {
    { "colwise_rep", "colwise_gather_output" }, /* Transformers up to 5.0 */
    { "rowwise_rep", "rowwise_split_input" },
};
/* clang-format on */

const int dti_n_builtin_styles = (int)DT_COUNT(dti_builtin_styles);
const int dti_n_style_aliases = (int)DT_COUNT(dti_style_aliases);
