/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators: what tensors can do. Each is one row of a table (dtensor/ops/table.c); its letters say
 * both which extents must agree and what happens to placements.
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

#include <dtensor/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_OP_MAX_IN = 6, DT_OP_MAX_OUT = 4, DT_OP_MAX_ATTR_BYTES = 32 };

/* What a kernel is handed. Shapes, dtypes and placements were checked before. */
typedef struct dt_kargs {
    const dt_local *in;
    dt_local *out;
    const void *attr;    /* the operator's attributes */
    struct dti_cpu *cpu; /* the rank's threads and scratch memory, see dt_kernel_run() */
    int n_in;
    int n_out;
    void *stream; /* the cudaStream_t of a GPU: what the kernel starts goes there; else NULL */
} dt_kargs;

typedef dt_status (*dt_kernel)(const dt_kargs *args);

/* Flags of an operator row. */
enum {
    DT_OP_LINEAR = 1,         /* Partial passes if every float operand is Partial */
    DT_OP_BILINEAR = 2,       /* Partial passes if exactly one operand is Partial */
    DT_OP_VIEW = 4,           /* the library's rows alone: the output is operand 0's storage */
    DT_OP_INPLACE_LAST = 8,   /* the library's rows alone: it is the last operand, written over */
    DT_OP_EXACT_PARTIAL = 16, /* at most one term is not zero: partials keep their dtype */
    DT_OP_REDUCE_MAX = 32,    /* a letter that vanishes leaves Partial(max), not Partial(sum) */
    DT_OP_ANY_ROWS = 64,      /* the kernel reads no offset[]: operands may be packed */
    DT_OP_VALUE_ATTR = 128,   /* attributes are for the kernel alone: no rule looks at them */
    DT_OP_ADDS_ONCE = 256     /* the kernel adds its attributes: of terms of a sum, operand 0, only
                               * one rank's kernel gets them, the others get zeros */
};

/* An extent list of one operand or result, as rules of a row see it: nothing of ranks. */
typedef struct dt_op_shape {
    dt_dtype dtype;
    int n_axes;
    int64_t extent[DT_MAX_AXES];
} dt_op_shape;

/* A call of a row without its bytes. */
typedef struct dt_op_shapes {
    const struct dt_op *op;
    const void *attr; /* NULL under DT_OP_VALUE_ATTR: no rule looks at them */
    int n_in;
    int n_out;
    dt_op_shape in[DT_OP_MAX_IN];
    dt_op_shape out[DT_OP_MAX_OUT];
} dt_op_shapes;

/* What a call costs: operations, a multiply-add counts as two, and bytes read and written. */
typedef struct dt_op_work {
    double flops;
    double bytes;
} dt_op_work;

struct dti_op_call; /* what rules of the library see; dtensor/ops/op_rules.h */

/* One operator. Fields that are not set are NULL or 0; what a row may not say is refused at its
 * first call, with the field's name.
 *
 * axes     names axes by letter: "...i, oi -> ...o". "..." is any number of leading axes, the same
 *          for all operands that have it; [x] must be whole on every rank. A letter is one extent.
 *          Sharded letters that reach the output stay Shard, one that vanishes leaves Partial. An
 *          operator may have several results, "...i -> ...i, ..."; each is placed by its own
 *          letters.
 * types    one letter per operand and result, "FF>F": F one float dtype for all, x any float, f
 *          f32, i i32, k i64; as a result also a: the dtype that the attributes begin with.
 * extents  a function for results whose extents letters cannot say. It sees global extents, and
 *          the results as their letters give them, -1 for a letter that no operand has; it sets
 *          n_axes and extent of every result, or refuses with dt_fail(). Results of one shape must
 *          not depend on anything but extents, dtypes and attributes: they are remembered.
 * accepts  where letters do not say which placements fit: for one mesh dim, the placements of
 *          operands and of the results that follow, "S(0), R -> S(0)" or "S(1), S(0) -> P(sum)",
 *          NULL past the last. On every mesh dim one line has to fit; all Replicate always does. An
 *          R operand is sliced where a line wants S, which is free. Letters then name extents
 *          only. Cut axes of one line have one extent, or are cut into equal pieces.
 * cost     operations of a call by its letters, "2 ...oi" or "4 ...k + 1 ...", then where it does
 *          not touch all of its operands and results the letters of what it does touch, "0 : ...,
 *          ...d -> ...d" (a row of a table for each id; "-" is nothing). NULL: one for each
 *          combination of all letters, two where a letter of two operands vanishes.
 * work     a function for what letters cannot say of the cost; it corrects what they said.
 *
 * A column that says what a gradient is and one for what it keeps will follow. */
typedef struct dt_op {
    const char *name;
    const char *axes;
    const char *types;
    dt_status (*extents)(dt_op_shapes *call);
    const char *const *accepts;
    dt_status (*shard)(struct dti_op_call *call); /* the library's rows alone */
    dt_kernel cpu;
    dt_kernel cuda; /* on a GPU, all pointers the device's; NULL: cpu runs on copies there */
    uint32_t flags;
    size_t attr_bytes; /* <= DT_OP_MAX_ATTR_BYTES */
    const char *cost;
    void (*work)(const dt_op_shapes *call, dt_op_work *work);
} dt_op;

/**
 * Applies an operator, built-in or the caller's own.
 *
 *   op    lives as long as the runtime; its address is its identity
 *   attr  op->attr_bytes bytes; NULL if the row has none
 *   in    n operands on one mesh; a NULL operand means that an earlier operator failed
 *
 * Returns the result, borrowed from the tape, or NULL after an error.
 *
 * Collective  no communication under DT_MOVES_FORBID.
 * Errors      latched: DT_ERR_SHAPE   a letter with two extents, wrong number of axes, dtypes
 *                      DT_ERR_LAYOUT  placements that do not fit; the message names the remedy
 *                      DT_ERR_ARG, DT_ERR_MEMORY, those of the kernel
 */
DT_API dt_tensor *dt_apply(dt_tape *tape, const dt_op *op, const void *attr, int n,
                           dt_tensor *const *in);

/**
 * dt_apply() of an operator with n_out results: out[0 .. n_out - 1], each borrowed from the tape;
 * all NULL after an error. The kernel runs once.
 *
 * Collective, Errors as dt_apply(); DT_ERR_ARG if the row has another number of results.
 */
DT_API void dt_apply_n(dt_tape *tape, const dt_op *op, const void *attr, int n,
                       dt_tensor *const *in, int n_out, dt_tensor **out);

/* x, y [...] F -> x + y */
DT_API dt_tensor *dt_add(dt_tape *tape, dt_tensor *x, dt_tensor *y);

/* x, y [...] F -> x y */
DT_API dt_tensor *dt_mul(dt_tape *tape, dt_tensor *x, dt_tensor *y);

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

/* x [..., o] float, bias [o] F -> x + bias rounded to F. Both may be terms of a sum: then x + bias
 * is one too, and has x's dtype. */
DT_API dt_tensor *dt_add_bias(dt_tape *tape, dt_tensor *x, dt_tensor *bias);

/* x [..., d] F, w [d] F; sums in f32, rounded to F before the product with w, as Llama does */
DT_API dt_tensor *dt_rms_norm(dt_tape *tape, dt_tensor *x, dt_tensor *w, float eps);

/* The same times 1 + w, all in f32 and rounded once, as Gemma does */
DT_API dt_tensor *dt_rms_norm_1p(dt_tape *tape, dt_tensor *x, dt_tensor *w, float eps);

/* x [..., d] F, w [d], b [d] F; one rounding at the end */
DT_API dt_tensor *dt_layer_norm(dt_tape *tape, dt_tensor *x, dt_tensor *w, dt_tensor *b, float eps);

/* ids [...] i32, table [v, d] F -> [..., d] F. A cut of v leaves Partial(sum) of one exact term. An
 * id that no row has gives zeros. */
DT_API dt_tensor *dt_embedding(dt_tape *tape, dt_tensor *ids, dt_tensor *table);

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
    int64_t n_heads;    /* global */
    int64_t n_kv_heads; /* global; divides n_heads */
    int64_t window;     /* keys a query sees, itself included; 0: all before it */
    float scale;        /* of the scores */
} dt_attention_options;

/* q [b, t, h, e], k and v caches [b, s, kv, e], positions [b, t] -> [b, t, h, e]: causal attention
 * of the query at position p over cache rows 0..p. Heads may be cut if every rank holds the kv
 * heads that its query heads read. */
DT_API dt_tensor *dt_attention(dt_tape *tape, dt_tensor *q, dt_tensor *k, dt_tensor *v,
                               dt_tensor *positions, const dt_attention_options *options);

/* A mixture of experts. logits [..., e] F -> the k experts of each token, largest logit first, as
 * ids [..., k] i32; their weights [..., k] F, a softmax over all experts in f32, with `normalise`
 * divided by the sum of those k (norm_topk_prob). */
DT_API dt_tensor *dt_route_ids(dt_tape *tape, dt_tensor *logits, int64_t k);
DT_API dt_tensor *dt_route_weights(dt_tape *tape, dt_tensor *logits, dt_tensor *ids,
                                   bool normalise);

/* x [..., d], ids and weights [..., k], gate_up [e, 2 f, d] with gate | up, down [e, d, f] ->
 * [..., d]: for each token the sum of weight * down (silu(gate x) * up x) over its experts, which
 * are different ones. A rank computes what it holds, whole experts (Shard(0) of both weights) or
 * its part of each (gate_up packed along axis 1, down Shard(2)), for all tokens: no token is sent
 * anywhere, and the result is then Partial(sum) in f32. */
DT_API dt_tensor *dt_experts(dt_tape *tape, dt_tensor *x, dt_tensor *ids, dt_tensor *weights,
                             dt_tensor *gate_up, dt_tensor *down);

/* x [..., t, ...] any float -> [..., count, ...]: rows begin .. begin + count - 1 of one axis;
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

/* --- Rows, and what calls of them cost -------------------------------------------------------- */

/** The library's rows, in the order of the table; NULL past the last. `cost` or `work` of each is
 * set where it is not by all letters. Not collective. Errors: none. */
DT_API const dt_op *dt_op_at(int i);

/** The library's row of that name; NULL if there is none. Not collective. Errors: none. */
DT_API const dt_op *dt_op_find(const char *name);

/** The name of one flag of a row, "LINEAR"; NULL for a value that is none. Not collective. Errors:
 * none. */
DT_API const char *dt_op_flag_name(uint32_t flag);

/**
 * What a call costs by the row's letters.
 *
 *   call   op, attr, n_in and in[] are set: global shapes for the whole, local ones for a rank's
 *          share. With n_out 0 the results follow by the row's own rule from global shapes, and are
 *          filled in; otherwise out[] holds them.
 *   *work  operations and bytes
 *
 * Not collective.
 * Errors      DT_ERR_ARG    NULL, a malformed row, wrong numbers of operands or results
 *             DT_ERR_SHAPE  shapes that the row refuses
 */
DT_API DT_MUST_USE dt_status dt_op_work_of(dt_op_shapes *call, dt_op_work *work);

/** The work of all operators that this rank's tape ran since its reset: its own share, copies on
 * other ranks not counted. Passes that a GPU replays are not in it. Zeros for NULL. Not collective.
 * Errors: none. */
DT_API dt_op_work dt_tape_work(const dt_tape *tape);

/* Calls of operators and misses of the decision cache of this rank so far. Not collective. */
DT_API void dt_op_counts(dt_runtime *rt, uint64_t *calls, uint64_t *misses);

/* --- Inside a kernel of one's own ------------------------------------------------------------- */

/* One share of a kernel's work: that of `worker` among n_workers. Runs on a thread of the rank; it
 * only computes: no call of this library but dt_kernel_share(). */
typedef void (*dt_kernel_fn)(void *arg, int worker, int n_workers);

/** Runs fn once per worker thread of the rank and returns when all are done; on the calling thread
 * alone if the work touches so few `bytes` that waking the others costs more. Not collective.
 * Errors: none. */
DT_API void dt_kernel_run(const dt_kargs *args, int64_t bytes, dt_kernel_fn fn, void *arg);

/** The half-open share [*begin, *end) of n items, in multiples of `grain` >= 1, the last one less.
 * Not collective. Errors: none. */
DT_API void dt_kernel_share(int64_t n, int64_t grain, int worker, int n_workers, int64_t *begin,
                            int64_t *end);

/** The most workers that dt_kernel_run() uses. Not collective. Errors: none. */
DT_API int dt_kernel_workers(const dt_kargs *args);

/**
 * Scratch memory of the rank, 64-byte aligned, contents undefined: for the kernel that asks, until
 * it returns or asks again. It is kept for the next kernel, so a warm one takes nothing from the
 * system. Asked for before dt_kernel_run(), on the kernel's own thread.
 *
 * Not collective.
 * Errors      DT_ERR_ARG, DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_kernel_scratch(const dt_kargs *args, size_t bytes, void **out);

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
