/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators: what tensors can do. Each is one row of a table (dtensor/ops/table.c); its letters say
 * both which extents must agree and what happens to placements. What a row is, and how to bring one
 * of one's own, stands in <dtensor/op_rows.h>.
 *
 * Every function here takes tensors and returns one that belongs to the tape. After the first error
 * it returns NULL and does nothing; ask dt_tape_status() once.
 *
 * Collective  no: none communicates, unless the tape's policy allows moves. All operands lie on one
 *             mesh.
 * Errors      latched on the tape, as dt_apply() says.
 *
 * F stands for f32, bf16 or f16, the same for all operands that say F. */
#ifndef DT_OPS_H
#define DT_OPS_H

#include <dtensor/op_rows.h>
#include <dtensor/ops_general.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x [...] F */
DT_API dt_tensor *dt_silu(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_gelu_new(dt_tape *tape, dt_tensor *x);  /* tanh form; every step rounds to F */
DT_API dt_tensor *dt_gelu_tanh(dt_tape *tape, dt_tensor *x); /* the same formula, rounds once */

/* gate, up [...] F -> silu(gate) up, gelu_tanh(gate) up */
DT_API dt_tensor *dt_silu_mul(dt_tape *tape, dt_tensor *gate, dt_tensor *up);
DT_API dt_tensor *dt_gelu_tanh_mul(dt_tape *tape, dt_tensor *gate, dt_tensor *up);

/* x [...] F -> cap tanh(x / cap), cap > 0; every step rounds to F, as Gemma does with logits */
DT_API dt_tensor *dt_soft_cap(dt_tape *tape, dt_tensor *x, double cap);

/* x [...] any float -> dtype; x itself if it has that dtype */
DT_API dt_tensor *dt_cast(dt_tape *tape, dt_tensor *x, dt_dtype dtype);

/* x [..., i] F, w [o, i] F, bias [o] F or NULL -> [..., o] F. If i is cut the result is
 * Partial(sum) in f32, not to be rounded before it is reduced, and bias must be NULL. */
DT_API dt_tensor *dt_linear(dt_tape *tape, dt_tensor *x, dt_tensor *w, dt_tensor *bias);

/* The same with weights of 8 or 4 bits: x [..., i] F, codes [o, i] or [o, i / 2] u8, scales [o, g]
 * of any float dtype, zeros [o, g] u8 or NULL: the middle, 128 or 8, bias as above -> [..., o] F,
 * of weights (code - zero) scale. Of two codes in a byte that in the lower bits is the first; i / g
 * inputs, a power of two from 16 on, have a scale in common. All of them that are cut along i are
 * cut at the same inputs, between groups. Inference only: no gradient passes. */
DT_API dt_tensor *dt_linear_packed(dt_tape *tape, dt_tensor *x, dt_tensor *codes, dt_tensor *scales,
                                   dt_tensor *zeros, dt_tensor *bias);

/* The same with codes that are floats of 8 bits, e4m3: codes [o, i] u8, no NaN (0x7f, 0xff). */
DT_API dt_tensor *dt_linear_e4m3(dt_tape *tape, dt_tensor *x, dt_tensor *codes, dt_tensor *scales,
                                 dt_tensor *bias);

/* x [..., o] float, bias [o] F -> x + bias rounded to F. Both may be terms of a sum: then x + bias
 * is one too, and has x's dtype. */
DT_API dt_tensor *dt_add_bias(dt_tape *tape, dt_tensor *x, dt_tensor *bias);

/* x [..., d] F, w [d] F; sums in f32, rounded to F before the product with w, as Llama does */
DT_API dt_tensor *dt_rms_norm(dt_tape *tape, dt_tensor *x, dt_tensor *w, float eps);

/* The same all in f32 and rounded once, as OLMo 2 does; times 1 + w, as Gemma does */
DT_API dt_tensor *dt_rms_norm_once(dt_tape *tape, dt_tensor *x, dt_tensor *w, float eps);
DT_API dt_tensor *dt_rms_norm_1p(dt_tape *tape, dt_tensor *x, dt_tensor *w, float eps);

/* x [..., d] F, w [d], b [d] F; one rounding at the end */
DT_API dt_tensor *dt_layer_norm(dt_tape *tape, dt_tensor *x, dt_tensor *w, dt_tensor *b, float eps);

/* ids [...] i32, table [v, d] F -> [..., d] F. A cut of v leaves Partial(sum) of one exact term. An
 * id that no row has gives zeros. */
DT_API dt_tensor *dt_embedding(dt_tape *tape, dt_tensor *ids, dt_tensor *table);

/* The same values. Row `padding` of the table takes no gradient from here, as with PyTorch's
 * padding_idx; an id that no row has (-1): as dt_embedding(). */
DT_API dt_tensor *dt_embedding_padded(dt_tape *tape, dt_tensor *ids, dt_tensor *table,
                                      int64_t padding);

/* positions [b, t] i32, inv_freq [r] f32 -> [b, t, 2 r] dtype: cos | sin, times factor */
DT_API dt_tensor *dt_rope_table(dt_tape *tape, dt_tensor *positions, dt_tensor *inv_freq,
                                float factor, dt_dtype dtype);

/* x [b, t, h, e] F, table [b, t, r] F with r <= e: rotates the first r columns, half split */
DT_API dt_tensor *dt_rope(dt_tape *tape, dt_tensor *x, dt_tensor *table);

/* x [b, t, h e] -> [b, t, h, e], and back: views. A cut must not split a head. */
DT_API dt_tensor *dt_heads(dt_tape *tape, dt_tensor *x, int64_t head_dim);
DT_API dt_tensor *dt_unheads(dt_tape *tape, dt_tensor *x);

/* k [b, t, kv, e] F, positions [b, t] i32, cache [b, s, kv, e] F: writes k[., j] to row
 * positions[., j] of the cache and returns the cache. */
DT_API dt_tensor *dt_kv_write(dt_tape *tape, dt_tensor *k, dt_tensor *positions, dt_tensor *cache);

typedef struct dt_attention_options {
    int64_t n_heads;     /* global */
    int64_t n_kv_heads;  /* global; divides n_heads */
    int64_t window;      /* keys a query sees, itself included; 0: all before it */
    float scale;         /* of the scores */
    float soft_cap;      /* scores become cap tanh(score / cap), before the bias; 0: they stay */
    bool both_ways;      /* not causal: every row of the cache is seen, with a window those less
                         * than it away on either side */
    dt_tensor *bias;     /* [b or 1, h or 1, t or 1, s] F, added to scores: a mask is -inf in it; of
                         * a query that sees nothing the result is the mean. NULL: none */
    dt_tensor *sinks;    /* [h] F: a score of each head that takes weight and gives nothing. NULL:
                         * none */
    dt_tensor *segments; /* [b, s] i32, never falling along s: documents that lie one after the
                          * other, of which a query sees its own (that of row p of segments). NULL:
                          * one for each batch row */
    double dropout;      /* probability that a weight of the softmax is dropped; of all of [b, h, t,
                          * s], keyed by `key` as dt_dropout() is, on every mesh the same */
    dt_random key;
} dt_attention_options;

/* q [b, t, h, e], k and v caches [b, s, kv, e], positions [b, t] -> [b, t, h, e]: causal attention
 * of the query at position p over cache rows 0..p. Heads may be cut if every rank holds the kv
 * heads that its query heads read; bias and sinks are cut with them, or sliced. In training k and
 * v are those of the pass itself: s is t and positions count up. */
DT_API dt_tensor *dt_attention(dt_tape *tape, dt_tensor *q, dt_tensor *k, dt_tensor *v,
                               dt_tensor *positions, const dt_attention_options *options);

/* x [b, t, c] F, w [c, k] F, window [b, k - 1, c] F -> [b, t, c]: of each channel the sum over i of
 * w[i] x[t - k + 1 + i] in f32, rounded once, where the window is what stood before x. *next is the
 * window of what comes next. */
DT_API dt_tensor *dt_causal_conv(dt_tape *tape, dt_tensor *x, dt_tensor *w, dt_tensor *window,
                                 dt_tensor **next);

/* Linear attention by the gated delta rule, h heads of queries and keys, each with r of values: a
 * head's state tells of a key what was said of it last, and forgets. */
typedef struct dt_delta {
    dt_tensor *q, *k; /* [b, t, h, d] F, made of length 1 inside; q is divided by sqrt(d) */
    dt_tensor *v;     /* [b, t, h, r, e] F */
    dt_tensor *decay; /* [b, t, h, r] f32: the state is multiplied by e^decay before a token */
    dt_tensor *beta;  /* [b, t, h, r] F: how much of what is new of a token it takes */
    dt_tensor *state; /* [b, h, r, d, e] f32 before the first token: zeros, or what was left */
} dt_delta;

/* S = e^decay S; S = S + k (beta (v - S^T k))^T; S^T q, token by token, in f32 -> [b, t, h, r, e]
 * F. *after is S after the last token. Heads and sequences may be cut, and a sequence parted
 * anywhere: bits stay. */
DT_API dt_tensor *dt_gated_delta(dt_tape *tape, const dt_delta *delta, dt_tensor **after);

/* A mixture of experts. logits [..., e] F -> the k experts of each token, largest logit first, as
 * ids [..., k] i32; their weights [..., k] F, a softmax over all experts in f32, with `normalise`
 * divided by the sum of those k (norm_topk_prob). */
DT_API dt_tensor *dt_route_ids(dt_tape *tape, dt_tensor *logits, int64_t k);
DT_API dt_tensor *dt_route_weights(dt_tape *tape, dt_tensor *logits, dt_tensor *ids,
                                   bool normalise);

/* Routing of other kinds. */
typedef enum dt_route_scores {
    DT_ROUTE_SOFTMAX, /* over all experts */
    DT_ROUTE_SIGMOID  /* of each expert's logit */
} dt_route_scores;

typedef struct dt_routing {
    int64_t n_chosen; /* experts for each token */
    dt_route_scores scores;
    dt_tensor *bias;  /* [e] f32, in which scores are corrected where experts are chosen; their
                       * weights know nothing of it. NULL: none */
    int64_t n_groups; /* the experts are so many groups of as many, and a token's are chosen from */
    int64_t n_chosen_groups; /* so many: whose two largest scores add up to the most. 0 or 1: all */
    bool normalise;          /* weights of a token's experts add up to 1, of sigmoids and 1e-20 */
    double scale;            /* which is multiplied by this; 0: 1 */
} dt_routing;

/* logits [..., e] F -> ids [..., k] i32, largest score first, weights [..., k] F; scores in f32.
 * Both are NULL after an error; DT_ERR_ARG for groups that there cannot be. */
DT_API void dt_route_tokens(dt_tape *tape, dt_tensor *logits, const dt_routing *routing,
                            dt_tensor **ids, dt_tensor **weights);

/* x [..., d], ids and weights [..., k], gate_up [e, 2 f, d] with gate | up, down [e, d, f] ->
 * [..., d]: for each token the sum of weight * down (silu(gate x) * up x) over its experts, which
 * are different ones. A rank computes what it holds, whole experts (Shard(0) of both weights) or
 * its part of each (gate_up packed along axis 1, down Shard(2)), for all tokens: no token is sent
 * anywhere, and the result is then Partial(sum) in f32. */
DT_API dt_tensor *dt_experts(dt_tape *tape, dt_tensor *x, dt_tensor *ids, dt_tensor *weights,
                             dt_tensor *gate_up, dt_tensor *down);

/* What experts of gpt-oss do otherwise: gate and up, with their biases, are held within limits. */
typedef struct dt_clamp {
    dt_tensor *gate_up_bias; /* [e, 2 f] */
    dt_tensor *down_bias;    /* [e, d] */
    float limit;             /* of gate from above, of up from both sides */
    float alpha;             /* of gate in the sigmoid */
} dt_clamp;

/* dt_experts() with down (gate sigmoid(alpha gate) (up + 1)) + its bias. Outputs of gate_up [e, 2
 * f, d] are gate, up, gate, up, ...: a part of each expert is Shard(1) of gate_up and of its bias
 * in units of two, where down's bias is whole and joins the sum once. */
DT_API dt_tensor *dt_experts_clamped(dt_tape *tape, dt_tensor *x, dt_tensor *ids,
                                     dt_tensor *weights, dt_tensor *gate_up, dt_tensor *down,
                                     const dt_clamp *clamp);

/**
 * Tokens on their way to the ranks of their experts: x [..., d], whose tokens mesh dim `dim` cuts,
 * made whole there, but that a rank gets the rows alone of which it holds an expert; all others are
 * zeros. One all-to-all, of a row for each rank that a token goes to, however many of its experts
 * are there. No token is dropped, whatever they choose. dt_experts() then reads what came.
 *
 *   ids      [..., k] i32, as dt_experts() takes them, whole on `dim`
 *   experts  a weight [e, ...] whose experts `dim` cuts: who holds which
 *
 * Bytes are those of the rows received. In a dry run, where nobody knows ids, they are the average
 * over tokens that choose any k experts alike; at most they are those of an all-gather.
 *
 * x that does not lie cut along an axis of tokens is moved to Replicate by dt_move_dim(), and so is
 * any on a GPU, where the host does not know ids, and any whose tokens other mesh dims cut inside
 * what this one has cut.
 *
 * Collective  over mesh dim `dim`.
 * Ownership   borrowed from the tape. Gradients go back as terms of the rows that went alone, by
 *             dt_combine()'s way: those of others are zeros.
 * Errors      latched: DT_ERR_ARG     NULL, a mesh dim or an expert that there is not
 *                      DT_ERR_SHAPE   ids of other tokens
 *                      DT_ERR_LAYOUT  ids that are not whole on `dim`, experts that it does not cut
 */
DT_API dt_tensor *dt_dispatch(dt_tape *tape, dt_tensor *x, dt_tensor *ids, dt_tensor *experts,
                              int dim);

/**
 * And back: y [..., d], terms in f32 that dt_experts() has made on mesh dim `dim`, reduced to
 * Shard(axis) there. Rows that are zeros, as their tokens chose no expert of the rank, stay. Terms
 * are added in the order of ranks: bits are those of the reduce-scatter that dt_move_dim() makes,
 * where ranks add (docs/numerics.md), and of an all-reduce.
 *
 *   axis  of tokens: not the last
 *
 * All else as dt_dispatch(), by whose way gradients go back. What lies otherwise: dt_move_dim().
 *
 * Collective, Ownership, Errors as dt_dispatch().
 */
DT_API dt_tensor *dt_combine(dt_tape *tape, dt_tensor *y, dt_tensor *ids, dt_tensor *experts,
                             int dim, int axis);

/* A weight of few bits, as the operands of dt_linear_packed(); floats: as dt_linear_e4m3(). */
typedef struct dt_packed_weight {
    dt_tensor *codes, *scales, *zeros; /* zeros may be NULL */
    bool floats;
} dt_packed_weight;

/* The same with experts of packed weights, each of which has an axis of experts before its own: of
 * gate_up codes [e, 2 f, d bits / 8] and scales [e, 2 f, d / group], of down [e, d, ...] for f
 * inputs, in bits and groups of its own. Both are floats or neither, both have zero points or
 * neither. All operands of a weight are cut alike, columns of down between groups. Inference only:
 * no gradient passes. */
DT_API dt_tensor *dt_experts_packed(dt_tape *tape, dt_tensor *x, dt_tensor *ids, dt_tensor *weights,
                                    const dt_packed_weight *gate_up, const dt_packed_weight *down);

/* x [..., t, ...] any dtype -> [..., count, ...]: rows begin .. begin + count - 1 of one axis;
 * negative axis and begin count from the end. A cut of that axis leaves Partial(sum) of one exact
 * term: each rank gives the rows that it holds, zeros for others. Of a packed axis the rows are one
 * of its blocks or several (q, k and v of one projection, gate and up): each rank takes its part of
 * them and nothing moves; one block is cut as a Shard by its unit, several are packed again. */
DT_API dt_tensor *dt_slice(dt_tape *tape, dt_tensor *x, int axis, int64_t begin, int64_t count);

/* x [...] F, a number. Of a sum of terms that lie on several ranks one rank's term gets the number,
 * so it is added once (PyTorch adds it on every rank, issues 149768, 163193); terms of an average,
 * a minimum or a maximum get it all. Products multiply the terms of a sum or an average. */
DT_API dt_tensor *dt_add_scalar(dt_tape *tape, dt_tensor *x, double value);
DT_API dt_tensor *dt_mul_scalar(dt_tape *tape, dt_tensor *x, double value);

/* x [..., k, ...] F -> [..., ...]: over one axis (negative counts from the end) or over all, which
 * leaves a tensor without axes. A cut of what is reduced leaves Partial(sum), of dt_max and dt_min
 * Partial(max) and Partial(min). dt_mean is the sum divided by the global number of elements, so
 * uneven and empty pieces count as they should; where it is Partial it is f32, as sums are. */
enum { DT_ALL_AXES = -1000 };
DT_API dt_tensor *dt_sum(dt_tape *tape, dt_tensor *x, int axis);
DT_API dt_tensor *dt_mean(dt_tape *tape, dt_tensor *x, int axis);
DT_API dt_tensor *dt_max(dt_tape *tape, dt_tensor *x, int axis);
DT_API dt_tensor *dt_min(dt_tape *tape, dt_tensor *x, int axis);

/* x [..., v] F -> [...] i64 keys, Partial(max) if v is cut; of a reduced key: [...] i32, the index
 * of the first largest element. */
DT_API dt_tensor *dt_argmax_key(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_argmax_id(dt_tape *tape, dt_tensor *key);

/**
 * The k largest elements of each row: what each rank has of them, as keys.
 *
 *   x       [..., v] F, v not Partial; cut over p ranks or whole
 *   k       1 to v
 *   result  [..., p k] i64, cut over the same ranks: k keys of each, of its k largest elements in
 *           falling order; the smallest integer where a rank holds fewer
 *
 * An integer compares as (value, lower index first): of equal elements, both zeros are, the one of
 * the lower index counts as larger, and a NaN is larger than all numbers. So the k largest keys are
 * the k largest elements, on every mesh the same. dt_top_k() says which, of gathered keys:
 *
 *   dt_tensor *keys = dt_move(t, dt_top_k_keys(t, x, k), whole);
 *   dt_top_k(t, keys, k, &values, &indices);
 *
 * Not collective; gathering the keys is, 8 p k bytes for each row.
 * Errors      latched: those of dt_apply(); DT_ERR_ARG k is below 1 or above v;
 *             DT_ERR_UNSUPPORTED more elements than an i32 counts
 */
DT_API dt_tensor *dt_top_k_keys(dt_tape *tape, dt_tensor *x, int64_t k);

/**
 * Values and indices of the k largest of gathered keys.
 *
 *   keys     [..., c] i64 of dt_top_k_keys(), whole along c, in any order
 *   k        1 to c
 *   values   [..., k] f32, largest first, zeros without sign; a dtype of 16 bits is exact in f32
 *   indices  [..., k] i32 along the whole axis, of equal values the lower first
 *
 * Either may be NULL. Where a row has fewer than k keys, the last values are -inf and their indices
 * -1: not so if k is what dt_top_k_keys() was called with.
 *
 * Not collective.
 * Errors      latched: those of dt_apply(); DT_ERR_ARG k is below 1 or above c;
 *             DT_ERR_LAYOUT keys are cut along c
 *             After an error both are NULL.
 */
DT_API void dt_top_k(dt_tape *tape, dt_tensor *keys, int64_t k, dt_tensor **values,
                     dt_tensor **indices);

/** Calls of operators and misses of the decision cache of this rank so far. Not collective. Errors:
 * none. */
DT_API void dt_op_counts(dt_runtime *rt, uint64_t *calls, uint64_t *misses);

/* --- Kernels -------------------------------------------------------------------------------- */

/** The kernels that this build has, named by instruction set as in dt_run_options.isa, the plainest
 * first: "portable", "avx2", ...; NULL past the last. Not collective. Errors: none. */
DT_API const char *dt_kernels_name(int i);

/** The best of them that this machine can run: what "auto" means. Not collective. Errors: none. */
DT_API const char *dt_kernels_best(void);

/**
 * Whether dt_run_options.isa may be `isa`.
 *
 * Not collective.
 * Errors      DT_ERR_ARG          NULL, or no kernels have that name
 *             DT_ERR_UNSUPPORTED  this machine cannot run them; says what it can
 */
DT_API DT_MUST_USE dt_status dt_kernels_check(const char *isa);

/** The kernels that this rank uses; NULL if it could not make them, as its first tensor will say.
 * Not collective. Errors: none. */
DT_API const char *dt_kernels_of(dt_runtime *rt);

#ifdef __cplusplus
}
#endif
#endif
