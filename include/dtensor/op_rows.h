/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows: what an operator is, the library's and the caller's own. A row names its axes, kernels and
 * what they cost; dt_apply() calls it. dt_local_map() runs a function that is no operator. */
#ifndef DT_OP_ROWS_H
#define DT_OP_ROWS_H

#include <dtensor/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DT_OP_MAX_IN = 9,
    DT_OP_MAX_OUT = 6,
    DT_OP_MAX_ATTR_BYTES = 40,
    DT_OP_MAX_VALUE_BYTES = 128 /* of attributes that no rule looks at: DT_OP_VALUE_ATTR */
};

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
    DT_OP_BILINEAR = 2,       /* Partial passes if exactly one operand is Partial; the same holds
                               * for terms of a Shard */
    DT_OP_VIEW = 4,           /* the library's rows alone: the output is operand 0's storage */
    DT_OP_INPLACE_LAST = 8,   /* the library's rows alone: the output, of several the last one, is
                               * the last operand, written over */
    DT_OP_EXACT_PARTIAL = 16, /* at most one term is not zero: partials keep their dtype */
    DT_OP_REDUCE_MAX = 32,    /* a letter that vanishes leaves Partial(max), not Partial(sum) */
    DT_OP_ANY_ROWS = 64,      /* the kernel reads no offset[]: operands may be packed */
    DT_OP_VALUE_ATTR = 128,   /* attributes are for the kernel alone: no rule looks at them */
    DT_OP_ADDS_ONCE = 256,    /* the kernel adds its attributes: of terms of a sum, operand 0, only
                               * one rank's kernel gets them, the others get zeros */
    DT_OP_SPREAD = 512,       /* an operand may have one element along an axis of which others have
                               * more, and which is not cut in it: the kernel repeats it */
    DT_OP_UNEVEN = 1024,      /* the library's rows alone: extents() compares operands' axes */
    DT_OP_CHEAP = 2048        /* few operations for each element: where a thrifty record keeps all
                               * operands anyway it runs the row again instead of keeping results */
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
struct dt_node;     /* a call that was recorded; <dtensor/gradients.h> */

#define DT_OP_KEEPS_IN(i)   (1u << (i)) /* i below 8: rows with more have no gradient */
#define DT_OP_KEEPS_OUT(r)  (256u << (r))
#define DT_OP_KEEPS_CROSS   65536u  /* an operand serves the others' gradients alone */
#define DT_OP_KEEPS_WHOLE   131072u /* nothing: the backward takes no gradient that is terms */
#define DT_OP_KEEPS_FORM(i) (262144u << (i)) /* of operand i shape and placement, no values */

/* One operator. Fields that are not set are NULL or 0; what a row may not say is refused at its
 * first call, with the field's name.
 *
 * axes     names axes by letter: "...i, oi -> ...o". "..." is any number of leading axes, the same
 *          for all operands that have it; [x] must be whole on every rank. A letter is one extent.
 *          Sharded letters that reach the output stay Shard, one that vanishes leaves Partial. An
 *          operator may have several results, "...i -> ...i, ..."; each is placed by its own
 *          letters.
 * types    one letter per operand and result, "FF>F": F one float dtype for all, x any float, f
 *          f32, i i32, k i64, b u8 (a mask), d any dtype; as a result x and d are the dtype of
 *          operand 0, a the one that the attributes begin with.
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
 * backward what gradients of operands follow from those of results, as a few calls of other rows on
 *          the tape: <dtensor/gradients.h>. NULL: a gradient that reaches the row is an error.
 * keeps    what backward() needs of the call: DT_OP_KEEPS_IN(i), DT_OP_KEEPS_OUT(r). It stays in
 *          memory until the backward pass has used it. Of DT_OP_KEEPS_FORM(i) nothing does:
 *          dt_node_in() is for operands of rows whose kernels read none of their values. */
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
    size_t attr_bytes;  /* <= DT_OP_MAX_ATTR_BYTES, or ..._VALUE_BYTES under DT_OP_VALUE_ATTR */
    size_t value_bytes; /* of them, those at the end that are for the kernel alone: a call whose
                         * values differ is no new one. With them up to ..._VALUE_BYTES in all */
    const char *cost;
    void (*work)(const dt_op_shapes *call, dt_op_work *work);
    void (*backward)(dt_tape *tape, const struct dt_node *node, dt_tensor *const *dy,
                     dt_tensor **dx);
    uint32_t keeps;
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

/* One result of dt_local_map(): its global shape, and how it will lie. */
typedef struct dt_local_result {
    const dt_placement *place; /* one per mesh dim; Partial: what each rank gives is a term */
    dt_dtype dtype;
    int n_axes;
    const int64_t *shape;
} dt_local_result;

/* A function on local pieces. Fields that are not set are NULL or 0. */
typedef struct dt_local_call {
    const char *name;                           /* in messages, and as the reason of the moves */
    dt_kernel run;                              /* on the host's memory */
    dt_kernel cuda;                             /* on a GPU's; NULL: `run` on copies there */
    const void *attr;                           /* args->attr of both, of any size */
    int n_in;                                   /* 1 to DT_OP_MAX_IN */
    int n_out;                                  /* 1 to DT_OP_MAX_OUT */
    const dt_placement *in_place[DT_OP_MAX_IN]; /* how operands are to lie; NULL: as they do */
    dt_local_result out[DT_OP_MAX_OUT];
    void (*backward)(dt_tape *tape, const struct dt_node *node, dt_tensor *const *dy,
                     dt_tensor **dx); /* as of a row; its dt_node_attr() is NULL. NULL: a gradient
                                       * that reaches the call is an error */
    uint32_t keeps;                   /* as of a row; operands as they were moved */
} dt_local_call;

/**
 * Runs a function once on every rank, on its pieces: for what is no operator, because it is needed
 * in one place, or because its pieces know what placements cannot say.
 *
 *   in[i]  global [..]; moved to in_place[i] first, which is counted and always allowed
 *   out[r] global call->out[r].shape; the function fills this rank's piece of it, args->out[r]
 *
 * The function sees args->in[i] and args->out[r] as kernels do, dense, with shape and offset, and
 * may call what kernels call. It runs on the rank's own thread: if every rank does so it may
 * communicate. It is up to the caller that pieces of a Replicate result are the same on all ranks.
 * No rule is asked and nothing is remembered, so it costs more than an operator, which has a row.
 * Outsiders of the mesh and dry runs get results without running it.
 *
 * Collective  yes, over the operands' mesh, as dt_move(); every rank says the same of the results.
 * Ownership   out[] is borrowed from the tape; all NULL after an error.
 * Errors      latched: DT_ERR_ARG     NULL, counts out of range, no `run`
 *                      DT_ERR_LAYOUT  operands on different meshes; placements that do not fit
 *                      DT_ERR_SHAPE, DT_ERR_MEMORY, those of dt_move() and of the function
 */
DT_API void dt_local_map(dt_tape *tape, const dt_local_call *call, dt_tensor *const *in,
                         dt_tensor **out);

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

/* --- Inside a kernel of one's own ------------------------------------------------------------- */

/* One share of a kernel's work: that of `worker` among n_workers. Runs on a thread of the rank; it
 * only computes: no call of this library but dt_kernel_share(). */
typedef void (*dt_kernel_fn)(void *arg, int worker, int n_workers);

/** Runs fn once per worker thread of the rank and returns when all are done; on the calling thread
 * alone if the work touches so few `bytes` that waking the others costs more. These are threads of
 * the host for a kernel on a GPU too, which may prepare there what it starts. Not collective.
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
 * system. Asked for before dt_kernel_run(), on the kernel's own thread. For a kernel on a GPU
 * (dt_op.cuda) it is memory of the device, for what the kernel starts on its stream until it
 * returns or asks again; one that needs two parts asks once for both.
 *
 * Not collective.
 * Errors      DT_ERR_ARG, DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_kernel_scratch(const dt_kargs *args, size_t bytes, void **out);

#ifdef __cplusplus
}
#endif
#endif
