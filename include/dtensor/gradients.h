/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients: reverse mode over placements.
 *
 *   dt_gradients_create(rt, &g);
 *   dt_gradients_watch(g, w);                      leaves: what gradients are wanted of
 *   dt_tape_record(t, g);
 *   loss = dt_sum(t, dt_linear(t, x, w, NULL), DT_ALL_AXES);
 *   dt_backward(t, loss, NULL);
 *   dt_gradients_settle(g, t);                     reduces what ranks hold terms of
 *   dw = dt_gradient(g, w);
 *
 * A tape that records notes each call of an operator and each move that a watched tensor reaches;
 * dt_backward() runs the notes from the last to the first. What is not called on the tape
 * (dt_redistribute(), bytes that are written) is a constant, and so is what reaches no watched
 * tensor: it is not noted and costs nothing.
 *
 * Layouts. A gradient has the global shape of its value and lies on the same mesh. Contributions
 * are added as they come, those that lie alike before anything travels: where q, k and v read one
 * value their terms are reduced once. Before a row's backward runs the gradient of its result is
 * moved to lie as the result does, whole where that is Partial. A recorded move is one move back,
 * to where its source lies. Gradients of leaves stay terms of sums until dt_gradients_settle(): one
 * reduction for any number of passes. The order of additions follows from the program alone, so two
 * runs give the same bits, on all ranks that hold the same part.
 *
 * Dtypes. A gradient of an activation has the value's dtype, f32 as long as it is terms of a sum;
 * gradients that are collected are f32. */
#ifndef DT_GRADIENTS_H
#define DT_GRADIENTS_H

#include <dtensor/op_rows.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tensors whose gradients are wanted, and the sums of those that came. */
typedef struct dt_gradients dt_gradients;

/**
 * An empty collection.
 *
 * Not collective.
 * Ownership   *out is released with dt_gradients_release(), after tapes that record for it were
 *             reset or released: what they recorded cannot be run backward without it.
 * Errors      DT_ERR_ARG, DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_gradients_create(dt_runtime *rt, dt_gradients **out);
DT_API void dt_gradients_release(dt_gradients **gradients); /* accepts NULL; sets it to NULL */

/**
 * Wants the gradient of a leaf: a tensor that no recording tape makes, such as a parameter. Twice
 * is once. A tape that records already learns of it by its next dt_tape_record().
 *
 *   x  any float, any layout but Partial; a reference is kept. One collection at a time watches it.
 *      Of a value that a record made what was recorded before is forgotten: dt_tape_watch()
 *
 * Not collective.
 * Errors      DT_ERR_ARG     NULL, a tensor of another runtime, integers; another collection, that
 *                            was not released yet, watches x
 *             DT_ERR_LAYOUT  x is Partial
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_gradients_watch(dt_gradients *gradients, dt_tensor *x);

/**
 * The gradient of a watched tensor so far: f32, x's global shape, on x's mesh. NULL if x is not
 * watched, or if no backward pass has reached it. Before dt_gradients_settle() it may be terms of a
 * sum, or lack a part that lies otherwise. Borrowed until the next call on `gradients` or a
 * backward pass.
 *
 * Not collective. Errors: none.
 */
DT_API dt_tensor *dt_gradient(const dt_gradients *gradients, const dt_tensor *x);

/**
 * Moves every gradient to lie as its tensor does: terms are reduced.
 *
 *   tape  counts the bytes, under the reason "gradients"; NULL: nobody does
 *
 * Collective  over the meshes of the tensors, in the order in which they were watched.
 * Errors      those of dt_redistribute()
 */
DT_API DT_MUST_USE dt_status dt_gradients_settle(dt_gradients *gradients, dt_tape *tape);

/** Forgets the sums; what is watched stays watched, but for activations. What was recorded for the
 * collection before can no longer be run backward. Not collective. Errors: none. */
DT_API void dt_gradients_clear(dt_gradients *gradients);

/** Watched tensor number i, in the order of dt_gradients_watch(); NULL past the last. Not
 * collective. Errors: none. */
DT_API dt_tensor *dt_gradients_at(const dt_gradients *gradients, int64_t i);

/* --- Recording -------------------------------------------------------------------------------- */

/**
 * Begins to record, anew if something was recorded before. dt_tape_reset() ends it. Names of scopes
 * have to live until then.
 *
 *   gradients  whose tensors are the leaves; outlives the record
 *
 * Not collective.
 * Errors      latched: DT_ERR_ARG for NULL or another runtime; DT_ERR_MEMORY
 */
DT_API void dt_tape_record(dt_tape *tape, dt_gradients *gradients);

/**
 * A thrifty record keeps less: results of rows with DT_OP_CHEAP (norms, activations, gates) whose
 * operands are kept anyway, and of moves that gather, are made again on the way back, with the same
 * bits. Such a gather travels twice. For what is recorded from now on, until the record ends.
 *
 * Not collective; all ranks say the same. Errors: none.
 */
DT_API void dt_tape_set_thrifty(dt_tape *tape, bool thrifty);

/** What is called between the two is not recorded, its results are constants. They nest. Nothing on
 * a tape that does not record. Not collective. Errors: none. */
DT_API void dt_tape_pause(dt_tape *tape);
DT_API void dt_tape_resume(dt_tape *tape);

/** True if calls on the tape are recorded now. Not collective. Errors: none. */
DT_API bool dt_tape_records(const dt_tape *tape);

/** x without its history: the same bytes, a constant for whoever reads it. Not collective. Errors:
 * latched, DT_ERR_ARG for NULL. */
DT_API dt_tensor *dt_detach(dt_tape *tape, dt_tensor *x);

/**
 * Wants the gradient of what the tape has made since dt_tape_record(), until the collection is
 * cleared. Returns x.
 *
 * Not collective.
 * Errors      latched: DT_ERR_ARG for NULL, a tape that does not record, or a tensor that no
 *             watched one reaches, of which there is no gradient
 */
DT_API dt_tensor *dt_tape_watch(dt_tape *tape, dt_tensor *x);

/**
 * x, made elsewhere, as a leaf of this record alone: where a model is cut into stages, what has
 * come from the stage before. Returns the same bytes as a tensor of the tape; x keeps its own
 * history. On a tape that does not record, and in a part of dt_recompute(), it returns x.
 *
 * Not collective.
 * Errors      latched: DT_ERR_ARG for NULL or integers; DT_ERR_MEMORY
 */
DT_API dt_tensor *dt_tape_input(dt_tape *tape, dt_tensor *x);

/**
 * What backward passes have given for an input since the last such call, in its dtype, lying as it
 * does, whole where it is terms: the seed of the pass on the record that x comes from. It belongs
 * to the tape, the record has it no longer. NULL: nothing has come.
 *
 *   x  as dt_tape_input() has returned it
 *
 * Not collective.
 * Errors      latched: DT_ERR_ARG for NULL or what is no input of this record
 */
DT_API dt_tensor *dt_tape_input_gradient(dt_tape *tape, const dt_tensor *x);

/* What a pass runs: all, or first what inputs of the record need, and what has to wait for nobody
 * later, perhaps after other records' passes. */
typedef enum dt_backward_half {
    DT_BACKWARD_WHOLE,
    DT_BACKWARD_INPUTS, /* gradients of all but watched leaves and what is made of leaves alone, by
                         * moves, casts and other calls that have no other operands */
    DT_BACKWARD_WEIGHTS /* of those, once, after the other half: `from` is NULL, there is no seed */
} dt_backward_half;

typedef struct dt_backward_options {
    dt_tensor *seed; /* the gradient of `from`: same shape and mesh, float; NULL: 1 */
    bool keep;       /* the record stays, for another backward pass; else it is given back as it is
                      * used, which needs least memory */
    /* Called for each watched leaf that the record knows, once in a pass, as soon as no recorded
     * call can add to its gradient any more, which dt_gradient() then has: first those that no call
     * reads, then in reverse order of their first uses, also of those within dt_recompute(). The
     * order follows from the program alone. It may begin moves, and fail the tape, which ends the
     * pass. NULL: nobody is told. After an error nobody is any more. */
    void (*ready)(void *arg, dt_tape *tape, dt_tensor *leaf);
    void *arg;
    dt_backward_half half; /* the second tells who is ready. Neither with `keep` */
} dt_backward_options;

/**
 * Runs the record backward: adds the gradient of `from` by every watched tensor to the collection.
 *
 *   from     made on this tape since dt_tape_record(), float; one element unless there is a seed
 *   options  NULL: a seed of 1, nothing kept
 *
 * Rows and moves of the backward pass stand under the scope "backward" in the tape's counters.
 *
 * Two halves give the bits of a whole pass. In between the record keeps what products by watched
 * leaves still need, an operand and the gradient of the result of each, and gradients of vectors,
 * which rows give in the first half; dt_tape_kept_bytes() counts them. A part of dt_recompute()
 * runs again in the first half alone.
 *
 * Collective  as the forward calls were: over the meshes that they moved on, and those on which
 *             gradients are terms of sums.
 * Errors      latched: DT_ERR_ARG          nothing is recorded; `from` is of another tape, is a
 *                                          constant, or has several elements and no seed; a second
 *                                          pass without `keep`; a half out of order, or with
 *                                          `keep`; a value that a row needs was written over since
 *                      DT_ERR_UNSUPPORTED  a gradient reaches a row that has no backward, or
 *                                          Partial(avg, prod); names it
 *                      those of operators and moves
 */
DT_API void dt_backward(dt_tape *tape, dt_tensor *from, const dt_backward_options *options);

enum { DT_RECOMPUTE_MAX_IN = 10, DT_RECOMPUTE_MAX_ARG = 256 };

/* A part of a forward pass: calls on the tape that depend on in[] and watched leaves alone, the
 * same whenever it runs. */
typedef dt_tensor *(*dt_part_fn)(dt_tape *tape, const void *arg, int n, dt_tensor *const *in);

/**
 * Runs a part of a forward pass of which nothing is kept but in[] and the result: the backward pass
 * runs it again, in the same order of calls, so with the same bits. On a tape that does not record
 * it just runs.
 *
 *   arg  arg_bytes are copied; what they point to outlives the backward pass. At most
 *        DT_RECOMPUTE_MAX_ARG
 *   in   n up to DT_RECOMPUTE_MAX_IN; an entry may be NULL
 *
 * Returns what fn returns. Collective as fn is. Errors: latched, DT_ERR_ARG for counts out of
 * range, `in` NULL and, in the backward pass, what it gives then and did not before; fn's.
 */
DT_API dt_tensor *dt_recompute(dt_tape *tape, dt_part_fn fn, const void *arg, size_t arg_bytes,
                               int n, dt_tensor *const *in);

/** Bytes on this rank that the record keeps until the backward pass, or its second half. Leaves are
 * not counted, memory that several share once; a frozen weight is, though it lives anyway. Not
 * collective. Errors: none. */
DT_API int64_t dt_tape_kept_bytes(const dt_tape *tape);

/**
 * Lists what is kept, a line for each value, and returns the length needed, like snprintf:
 *
 *   model.layers.0.mlp.down_proj  linear  operand 0  [4, 256, 1408] bf16  2883584 bytes
 *
 * Not collective. Errors: none.
 */
DT_API int dt_tape_kept_print(const dt_tape *tape, char *text, size_t text_bytes);

/* --- Checking a backward ---------------------------------------------------------------------- */

/* Results of dt_check_gradient(): where gradient and differences were furthest apart. */
typedef struct dt_gradient_check {
    double worst; /* |got - expected| / the largest |expected| of that operand; what is apart by
                   * less than 1e-6 counts as 0: scale what is small */
    int operand;
    double expected, got;
} dt_gradient_check;

/* What is checked: a result of x[0 .. n - 1] on the tape, float, any shape. */
typedef dt_tensor *(*dt_differentiable_fn)(dt_tape *tape, const void *arg, int n,
                                           dt_tensor *const *x);

/**
 * Compares what dt_backward() gives with central differences: for each float operand along random
 * directions, of the result weighted by random numbers. A backward that is right agrees to about
 * 1e-3 where fn is smooth; one that lacks a factor, a term or a reduction is off by far more, and
 * one that gives no number is off by infinity.
 *
 *   x        operands, f32 (what is no f32 is held constant), of any size, not Partial
 *   step     of the differences, about 1e-2 of what x are; 0: 1e-2
 *   *report  the furthest apart
 *
 * Collective  over the operands' mesh, with the same arguments.
 * Errors      those of fn and dt_backward(); DT_ERR_ARG for NULL, a step that is no number or less
 *             than 0, or no f32 operand. What is apart is no error
 */
DT_API DT_MUST_USE dt_status dt_check_gradient(dt_mesh *mesh, dt_differentiable_fn fn,
                                               const void *arg, int n, dt_tensor *const *x,
                                               double step, dt_gradient_check *report);

/** The same of a row, of each float result. Collective, Errors as above. */
DT_API DT_MUST_USE dt_status dt_op_check_gradient(dt_mesh *mesh, const dt_op *op, const void *attr,
                                                  int n, dt_tensor *const *x, double step,
                                                  dt_gradient_check *report);

/* --- Inside the backward of a row of one's own ------------------------------------------------ */

/* A recorded call. dt_op.backward() is handed dy[r], the gradient of result r, NULL if none came,
 * and sets dx[i] of each operand with dt_node_wants(); what stays NULL adds nothing. It lies and is
 * shaped as result r, whole where that was Partial; dx[i] has operand i's shape and any layout.
 * Calls are those of any forward pass; where the tape has failed they do nothing. */
typedef struct dt_node dt_node;

/* Whether the gradient of operand i is wanted; the operand or result if the row keeps it, else
 * NULL; the call's attributes, NULL if it has none; global shape and dtype of operand i. Not
 * collective. Errors: none. */
DT_API bool dt_node_wants(const dt_node *node, int i);
DT_API dt_tensor *dt_node_in(const dt_node *node, int i);
DT_API dt_tensor *dt_node_out(const dt_node *node, int r);
DT_API const void *dt_node_attr(const dt_node *node);
DT_API dt_op_shape dt_node_in_shape(const dt_node *node, int i);

#ifdef __cplusplus
}
#endif
#endif
