/* SPDX-License-Identifier: Apache-2.0
 *
 * The value: a tensor with a global shape and a placement on a mesh, of which each rank holds a
 * piece; moving it between placements; and the tape that owns what a forward pass makes.
 *
 * Shapes in this header are global. Only dt_tensor_local() speaks of a rank's own piece. */
#ifndef DT_TENSOR_H
#define DT_TENSOR_H

#include <dtensor/placements.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A distributed tensor. Counted handle; immutable but for its bytes. */
typedef struct dt_tensor dt_tensor;

/* Owner of the temporaries of a forward pass, its error latch and its counters. */
typedef struct dt_tape dt_tape;

/* This rank's piece of a tensor: contiguous, row-major, in memory of the rank's device, which is
 * the host's on CPUs. offset[a] is where the piece starts on global axis a; the rows of a packed
 * piece do not follow each other from there, see dt_layout_runs(). Outsiders of the mesh see a
 * piece of extent 0, and have no element of a tensor without axes either. In a dry runtime
 * (dt_runtime_create_dry()) data is NULL. */
typedef struct dt_local {
    void *data;
    dt_dtype dtype;
    int n_axes;
    int64_t shape[DT_MAX_AXES];
    int64_t offset[DT_MAX_AXES];
} dt_local;

/**
 * A zeroed tensor.
 *
 *   place  one placement per mesh dim; not Partial
 *   shape  global, n_axes entries >= 0
 *
 * Collective  no communication.
 * Ownership   *out is a new reference, released with dt_tensor_release().
 * Errors      DT_ERR_ARG     NULL, n_axes outside 0..8, unknown dtype
 *             DT_ERR_SHAPE   a negative extent, more bytes than fit into 63 bits, or offsets or
 *                            blocks that do not end where the axis does
 *             DT_ERR_LAYOUT  as dt_layout_get(); Partial
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_zeros(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                      int n_axes, const int64_t *shape, dt_tensor **out);

/**
 * Wraps this rank's piece: its bytes are copied.
 *
 *   data   local shape as dt_layout_local_shape() says, row-major; may be NULL if it is empty
 *   shape  global
 *   place  any placements; with Partial every rank gives its term, of the whole shape
 *
 * Collective  no communication; every rank of the mesh passes the same shape and placements.
 * Ownership   *out is a new reference.
 * Errors      as dt_zeros(), Partial allowed; DT_ERR_ARG if data is NULL and the piece is not empty
 */
DT_API DT_MUST_USE dt_status dt_from_local(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                           int n_axes, const int64_t *shape, const void *data,
                                           dt_tensor **out);

/* Memory of the caller's, and who is told when it is free again: `release`, which may be NULL, is
 * called with arg and data. */
typedef struct dt_memory {
    void *data;
    size_t bytes; /* of this rank's piece, to check what the caller thinks */
    void (*release)(void *arg, void *data);
    void *arg;
} dt_memory;

/**
 * A tensor over the caller's memory: no byte is copied.
 *
 *   memory  this rank's piece as dt_from_local() takes it; aligned to the size of an element (64
 *           bytes are fastest). It is the tensor's until release is called: once, by the rank's own
 *           thread, when the last tensor on it (views and results of moves that need no copy are
 *           such) is released, at the end of the run if they are not, or when this call fails.
 *           What is written to it is the tensor's value. Who exported it by dt_to_dlpack() holds it
 *           longer, and gives it back after the run on a thread of theirs
 *
 * Collective  no communication; every rank of the mesh passes the same shape and placements.
 * Ownership   *out is a new reference.
 * Errors      as dt_from_local(); DT_ERR_ARG          another number of bytes, or not aligned
 *                                 DT_ERR_UNSUPPORTED  tensors of this rank lie on a GPU
 */
DT_API DT_MUST_USE dt_status dt_wrap_local(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                           int n_axes, const int64_t *shape, dt_memory memory,
                                           dt_tensor **out);

/* Where a whole tensor comes from. With root >= 0 only the rank at that row-major place of the mesh
 * passes `full` and the others' is ignored; with root == DT_EQUAL_COPIES every rank passes the same
 * bytes and nothing is communicated. */
typedef struct dt_source {
    const void *full; /* the whole value, row-major */
    int root;
} dt_source;
enum { DT_EQUAL_COPIES = -1 };

/**
 * Distributes a whole tensor.
 *
 * Collective  yes, over the mesh, if root >= 0: the root sends each rank its piece.
 * Ownership   *out is a new reference.
 * Errors      as dt_zeros(); DT_ERR_ARG for a root outside the mesh or a missing `full`;
 *             DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_distribute(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                           int n_axes, const int64_t *shape, dt_source source,
                                           dt_tensor **out);

/**
 * Moves a tensor to new placements on its mesh. The global value does not change.
 *
 *   x     any dtype; global shape [s0, ..., s(n-1)]
 *   want  one placement per mesh dim: want[m] says how mesh dim m holds the tensor
 *   *y    same global shape and dtype as x, placed as `want`
 *
 * Communication on mesh dim m, with p ranks and N bytes of tensor per group of p:
 *
 *   Shard(a)  -> Replicate   all-gather       (p-1)/p N bytes received per rank
 *   Replicate -> Shard(a)    none             a local slice
 *   Partial   -> Replicate   all-reduce       2 (p-1)/p N
 *   Partial   -> Shard(a)    reduce-scatter   (p-1)/p N
 *   Shard(a)  -> Shard(b)    all-to-all       (p-1)/p^2 N
 *
 * Changes on several mesh dims that need no reduction are one exchange of the boxes that differ.
 * Otherwise the cheapest plan by the mesh's links is taken: see dt_redistribute_plan(),
 * dt_mesh_set_links() and dt_mesh_set_move_memory().
 * Sums are taken in rank order (of more than 8 ranks on several hosts host by host, then over the
 * hosts; but see dt_run_options.sums), bf16 and f16 in f32 with one rounding: where a plan reduces
 * in several steps, terms travel as f32 from the first to the last of them, and averages are
 * divided by the last. The order of f32 additions follows from the plan,
 * that is from shapes, placements, links and the bound on memory.
 *
 * Collective  every rank of x's mesh calls it, in the same order, with the same `want`.
 * Ownership   *y is a new reference, released with dt_tensor_release(). If nothing has to move, *y
 *             is x with one more reference.
 * Threads     reads x only.
 * Errors      DT_ERR_ARG     x, want or y is NULL
 *             DT_ERR_LAYOUT  as dt_layout_get(), or Partial wanted of a whole value, or no plan
 *                            stays within the mesh's memory for moves
 *             DT_ERR_SHAPE   offsets or blocks of `want` do not end where the axis does
 *             DT_ERR_MEMORY  this rank cannot hold its shard of y
 *             DT_ERR_COMM    another rank failed, left or timed out
 *             On error *y is NULL and x is unchanged; after DT_ERR_MEMORY or DT_ERR_COMM the mesh
 *             is aborted on every rank and can only be released.
 * See also    dt_distribute(), dt_full_tensor(), dt_copy_to()
 */
DT_API DT_MUST_USE dt_status dt_redistribute(dt_tensor *x, const dt_placement *want, dt_tensor **y);

/**
 * dt_redistribute() to another float dtype. The cast stands where the fewer bytes travel: before an
 * exchange if it narrows, after it if it widens. Sums are taken in the wider dtype, of bf16 and f16
 * in f32, and rounded once. (PyTorch casts first, so that terms of a sum are rounded one by one.)
 * The mesh's memory for moves bounds the whole of it: x, what it becomes on the way, *y.
 *
 * Collective, Ownership as dt_redistribute().
 * Errors      as dt_redistribute(); DT_ERR_UNSUPPORTED for a cast from or to integers,
 *             DT_ERR_LAYOUT if terms that stay Partial(sum, avg, prod) would have to be rounded
 */
DT_API DT_MUST_USE dt_status dt_redistribute_cast(dt_tensor *x, const dt_placement *want,
                                                  dt_dtype dtype, dt_tensor **y);

/** dt_redistribute() to Replicate on every mesh dim: each rank gets the whole value. */
DT_API DT_MUST_USE dt_status dt_full_tensor(dt_tensor *x, dt_tensor **y);

/**
 * Copies a tensor to another mesh, which may have other ranks, another shape, both.
 *
 *   x     lies on its mesh; outsiders of that mesh pass their handle, which holds metadata
 *   want  one placement per dim of `mesh`; not Partial
 *   *y    the same global value on `mesh`; metadata for outsiders of `mesh`
 *
 * One exchange over the ranks of both meshes: each rank receives what it lacks of its piece and
 * keeps what it has. A Partial x is first reduced on its own mesh, scattered where that is less.
 * All of it stays within both meshes' memory for moves. Links and bounds need be known to the ranks
 * of their mesh only: the ranks of both tell each other first, in a reduction of 144 bytes.
 *
 * Collective  every rank of x's mesh and of `mesh`, with the same `want`; a rank of neither may
 *             call too, gets metadata, and waits for nobody.
 * Ownership   *y is a new reference. On an equal mesh this is dt_redistribute().
 * Errors      as dt_redistribute(); DT_ERR_ARG for meshes of different runtimes, DT_ERR_LAYOUT for
 *             Partial wanted
 */
DT_API DT_MUST_USE dt_status dt_copy_to(dt_tensor *x, dt_mesh *mesh, const dt_placement *want,
                                        dt_tensor **y);

DT_API dt_tensor *dt_tensor_retain(dt_tensor *x); /* one more reference; returns x */
DT_API void dt_tensor_release(dt_tensor **x);     /* drops one; accepts NULL; sets *x to NULL */

/* Queries. Not collective, no errors. Borrowed results are valid while x is. */
DT_API dt_mesh *dt_tensor_mesh(const dt_tensor *x);
DT_API const dt_layout *dt_tensor_layout(const dt_tensor *x);
DT_API dt_dtype dt_tensor_dtype(const dt_tensor *x);
DT_API int dt_tensor_n_axes(const dt_tensor *x);
DT_API int64_t dt_tensor_extent(const dt_tensor *x,
                                int axis);                  /* global; negative axes count back */
DT_API const dt_local *dt_tensor_local(const dt_tensor *x); /* this rank's piece; data is memory of
                                                             * the rank's device */

/**
 * Copies this rank's piece, row-major, to memory of the host, or from there: on every device, where
 * dt_tensor_local() gives the piece in place on the CPU alone.
 *
 *   bytes  of the piece: dt_tensor_local()'s shape times the dtype's size, to check what the caller
 *          thinks
 *
 * Not collective. dt_tensor_read() waits for what has to be computed before.
 * Errors      DT_ERR_ARG          NULL, or another number of bytes; names both
 *             DT_ERR_UNSUPPORTED  a dry tensor
 *             DT_ERR_IO           a parameter in a file (dt_layers_offload()) that the disk lost
 *             DT_ERR_DEVICE       the device's, also of what was computed before
 */
DT_API DT_MUST_USE dt_status dt_tensor_read(const dt_tensor *x, void *to, size_t bytes);
DT_API DT_MUST_USE dt_status dt_tensor_write(dt_tensor *x, const void *from, size_t bytes);

/* --- The tape ------------------------------------------------------------------------------- */

/* What to do when operands of an operator do not fit without communication. Terms that an operator
 * had reduced stay so beside the value for the next that wants them so, until the value's scope
 * ends, or the tape is reset if it is not the tape's: a sum that two operators read is reduced
 * once. Bytes that are written through dt_tensor_local() meanwhile are not seen; dt_tensor_write()
 * is, and has then to be called by all ranks. */
typedef enum dt_moves {
    DT_MOVES_FORBID, /* default: DT_ERR_LAYOUT that names the missing redistribute */
    DT_MOVES_TRACE,  /* move and log it */
    DT_MOVES_ALLOW   /* move */
} dt_moves;

/* Kinds of communication that a tape counts. Bytes are those that this rank receives, by the
 * formulas of dt_redistribute(). */
typedef enum dt_comm_kind {
    DT_COMM_ALL_GATHER,
    DT_COMM_ALL_REDUCE,
    DT_COMM_REDUCE_SCATTER,
    DT_COMM_ALL_TO_ALL,
    DT_COMM_SEND, /* messages, of channels (<dtensor/channels.h>) */
    DT_N_COMM_KINDS
} dt_comm_kind;

typedef struct dt_comm_counter {
    int64_t calls;
    int64_t bytes;
} dt_comm_counter;

/**
 * An empty tape with one open scope.
 *
 * Collective  no.
 * Ownership   *out is released with dt_tape_release(), which releases what it owns.
 * Errors      DT_ERR_ARG, DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_tape_create(dt_runtime *rt, dt_tape **out);
DT_API void dt_tape_release(dt_tape **tape); /* accepts NULL; sets *tape to NULL */

/** The first error of the tape's operators, whose record it puts back into dt_last_error(); DT_OK
 * if none. Not collective. Errors: the latched one. */
DT_API DT_MUST_USE dt_status dt_tape_status(dt_tape *tape);

/** Releases everything the tape made, closes all scopes but the first, clears a latched error and
 * the counters. Memory stays in the rank's pool. Not collective. Errors: none. */
DT_API void dt_tape_reset(dt_tape *tape);

/**
 * Opens a scope: a named part of the forward pass. What operators make until its end is released
 * then. The name appears in error messages; it is borrowed until the scope ends.
 *
 * Collective  no.
 * Errors      none: a failed scope latches on the tape.
 */
DT_API void dt_scope_begin(dt_tape *tape, const char *name);

/**
 * Closes the innermost scope and releases what it made, except `keep`, which passes to the scope
 * around it. keep may be NULL or belong to an outer scope. Returns keep (NULL after an error).
 *
 * Not collective. Errors: none.
 */
DT_API dt_tensor *dt_scope_end(dt_tape *tape, dt_tensor *keep);

/* Told of what a scope gives that ended without an error: a layer's or a block's output. It may
 * communicate, since all ranks end their scopes alike; what it returns but DT_OK latches on the
 * tape. */
typedef dt_status (*dt_scope_fn)(void *arg, const char *scope, dt_tensor *x);

/** Lets `see` look on at every scope that ends, in the order of the pass, until the tape is
 * released; NULL: nobody does. Not collective. Errors: none. */
DT_API void dt_tape_observe(dt_tape *tape, dt_scope_fn see, void *arg);

/**
 * The recorded form of dt_redistribute(): the result belongs to the tape, errors latch, bytes are
 * counted. Returns NULL after an error.
 *
 *   want  one placement per mesh dim of x's mesh
 *
 * Collective  yes, over x's mesh, as dt_redistribute().
 * Ownership   borrowed from the tape.
 * Errors      latched: those of dt_redistribute()
 */
DT_API dt_tensor *dt_move(dt_tape *tape, dt_tensor *x, const dt_placement *want);

/** The recorded form of dt_redistribute_cast(), as dt_move() is of dt_redistribute(). */
DT_API dt_tensor *dt_move_cast(dt_tape *tape, dt_tensor *x, const dt_placement *want,
                               dt_dtype dtype);

/** The recorded form of dt_copy_to(), as dt_move() is of dt_redistribute(): reductions are counted
 * by their kind, the exchange between the meshes as an all-to-all. */
DT_API dt_tensor *dt_move_to(dt_tape *tape, dt_tensor *x, dt_mesh *mesh, const dt_placement *want);

/** dt_move() that changes one mesh dim and leaves the others, with the order of their cuts. A cut
 * that names its place (DT_SHARD_NTH) goes there; one that does not stays where the dim's cut was
 * if that is equal, and otherwise goes before the cuts of inner mesh dims. */
DT_API dt_tensor *dt_move_dim(dt_tape *tape, dt_tensor *x, int dim, dt_placement want);

/** Hands a tensor to the tape: it releases one reference when the current scope ends. Returns x,
 * or NULL after an error. Not collective. Errors: latched DT_ERR_ARG for NULL. */
DT_API dt_tensor *dt_tape_own(dt_tape *tape, dt_tensor *x);

/** Releases a tensor before the scope it was made in ends, for the values of a loop of which only
 * the newest is needed. The caller does not use x again. A tensor of another scope, of no tape, or
 * NULL stays as it is. Not collective. Errors: none. */
DT_API void dt_tape_drop(dt_tape *tape, dt_tensor *x);

/* Settings and counters. Not collective, no errors. */
DT_API void dt_tape_set_moves(dt_tape *tape, dt_moves policy);
DT_API dt_comm_counter dt_tape_comm(const dt_tape *tape, dt_comm_kind kind); /* since the reset */
DT_API const char *dt_comm_kind_name(dt_comm_kind kind); /* "all_gather"; "?" for no kind */

/** Names the reason of the moves that follow, for the counters, until it is called again: a style's
 * name, for example. NULL is "move"; moves that an operator asks for carry its name. Borrowed while
 * it is set. Returns the reason before. Not collective. Errors: none. */
DT_API const char *dt_tape_because(dt_tape *tape, const char *reason);

/** What was communicated in a scope and in those inside it, since the reset: the scope's name and
 * those of the scopes around it, outermost first. kind DT_N_COMM_KINDS is all of them. Scopes of
 * one name are counted together. Not collective. Errors: none, zeros for a scope that does not
 * exist. */
DT_API dt_comm_counter dt_tape_comm_in(const dt_tape *tape, const char *const *scopes, int n_scopes,
                                       dt_comm_kind kind);

/**
 * Writes all counters as a tree of scopes, or as JSON, and returns the length needed, like
 * snprintf.
 *
 *   total: 3 calls, 1536 bytes
 *     - all_gather x1, 512 bytes: move
 *     block: 2 calls, 1024 bytes
 *       - all_reduce x2, 1024 bytes: rowwise
 *
 *   {"name":"total","calls":3,"bytes":1536,"own":[{"kind":"all_gather","reason":"move","calls":1,
 *    "bytes":512}],"scopes":[{"name":"block", ...}]}
 *
 * calls and bytes of a scope include those of the scopes inside it; bytes are as in
 * dt_tape_comm(). Scopes in which nothing is communicated are left out.
 *
 * Not collective. Errors: none.
 */
DT_API int dt_tape_comm_print(const dt_tape *tape, char *text, size_t text_bytes);
DT_API int dt_tape_comm_json(const dt_tape *tape, char *text, size_t text_bytes);
DT_API dt_runtime *dt_tape_runtime(const dt_tape *tape);

/** Latches an error of the caller's own on the tape (a style that refuses). Returns NULL always.
 * Not collective. Errors: none. */
DT_API dt_tensor *dt_tape_fail(dt_tape *tape, dt_status code, const char *fmt, ...) DT_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif
#endif
