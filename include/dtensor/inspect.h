/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking at tensors: comparing them, reading an element, drawing who owns what, checking that
 * ranks agree.
 *
 * All functions here work on the tensor's own mesh. PyTorch compares over all ranks of the world,
 * which waits for ever if ranks outside the mesh do not take part. */
#ifndef DT_INSPECT_H
#define DT_INSPECT_H

#include <dtensor/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Whether two tensors have the same dtype, shape and elements. Placements need not be the same: b
 * is moved to lie as a does, terms of a Partial are reduced first. NaN equals nothing, -0 equals 0.
 *
 * All ranks of the mesh get one answer, also if replicas differ: then it is false, unless they
 * differ in both alike. Outsiders of the mesh have nothing that could differ and get true.
 *
 * Collective  yes, over the mesh, unless dtype or shape differ; at most two moves and one
 *             all-reduce of four bytes.
 * Errors      DT_ERR_ARG          NULL
 *             DT_ERR_LAYOUT       different meshes
 *             DT_ERR_UNSUPPORTED  dry tensors
 *             DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_equal(dt_tensor *a, dt_tensor *b, bool *equal);

/**
 * As dt_equal(), where elements may differ: |a - b| <= absolute + relative |b|. Infinities are
 * close if they are equal.
 *
 * Collective, Errors as dt_equal(); DT_ERR_ARG for a negative tolerance or one that is no number.
 */
DT_API DT_MUST_USE dt_status dt_allclose(dt_tensor *a, dt_tensor *b, double relative,
                                         double absolute, bool *close);

/**
 * One element of a tensor, as a double.
 *
 *   index  global, one entry per axis; may be NULL for a tensor without axes
 *
 * Ranks that hold the element read it; the others get it from the first rank that does. Outsiders
 * of the mesh get 0.
 *
 * Collective  yes, over the mesh, with the same index; nothing is sent if x is cut nowhere.
 * Errors      DT_ERR_ARG          NULL, an index outside the tensor, an i64 that no double is
 *             DT_ERR_LAYOUT       x is Partial: no rank has the element (PyTorch returned a term of
 *                                 it for long, issues 152406, 166638, 167213)
 *             DT_ERR_UNSUPPORTED  a dry tensor
 *             DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_item(dt_tensor *x, const int64_t *index, double *value);

typedef enum dt_drawing { DT_DRAW_TEXT, DT_DRAW_SVG } dt_drawing;

/**
 * Draws which ranks own what, as a table of text or as SVG:
 *
 *   S(0)S(1) on dp=2,tp=2, shape [5, 3]
 *            Col 0-1  Col 2
 *   Row 0-2  0        1
 *   Row 3-4  2        3
 *
 * Cells name world ranks: "0,1" hold copies, "0 + 1" terms of a Partial, "-" nobody. Cuts may be
 * uneven, ordered, at offsets or packed (a rank then stands in several rows). A tensor of more than
 * two axes is drawn along those that are cut. Every rank draws the same, outsiders too.
 *
 *   text    room for text_bytes, cut if it does not suffice; may be NULL if text_bytes is 0
 *   length  what the whole text needs without its end; may be NULL
 *
 * Collective  no.
 * Errors      DT_ERR_ARG          NULL, an unknown form
 *             DT_ERR_LAYOUT       the layout is one of another mesh
 *             DT_ERR_SHAPE        a negative extent, offsets or blocks that do not fit the shape
 *             DT_ERR_UNSUPPORTED  more than two axes are cut
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_visualize(const dt_tensor *x, dt_drawing form, char *text,
                                          size_t text_bytes, int *length);

/** dt_visualize() of any layout of a mesh, without a tensor. */
DT_API DT_MUST_USE dt_status dt_visualize_layout(dt_mesh *mesh, const dt_layout *layout,
                                                 const int64_t *shape, dt_drawing form, char *text,
                                                 size_t text_bytes, int *length);

/**
 * dt_from_local(), after comparing what the ranks of the mesh pass: dtype, shape and placements
 * have to be the same, and ranks that hold the same piece have to hold the same bytes of it. All
 * ranks find the same error, which names two of them; PyTorch's check copies the first rank's data
 * over the others' instead.
 *
 * Collective  yes, over the mesh: one all-gather of some 200 bytes per rank.
 * Errors      as dt_from_local(); DT_ERR_SHAPE for ranks that disagree on dtype or shape,
 *             DT_ERR_LAYOUT on placements, DT_ERR_ARG on the bytes of replicas, or if another
 * rank's arguments are invalid; DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_from_local_checked(dt_mesh *mesh, const dt_placement *place,
                                                   dt_dtype dtype, int n_axes, const int64_t *shape,
                                                   const void *data, dt_tensor **out);

/**
 * dt_distribute(), after comparing what the ranks of the mesh pass: dtype, shape, placements and
 * root have to be the same, and of DT_EQUAL_COPIES the bytes. PyTorch compares nothing: ranks whose
 * copies differ become a tensor that has no value.
 *
 * Collective  yes, over the mesh: one all-gather of some 200 bytes per rank, then dt_distribute().
 * Errors      as dt_distribute(); DT_ERR_SHAPE for ranks that disagree on dtype or shape,
 *             DT_ERR_LAYOUT on placements, DT_ERR_ARG on the root or on the bytes of their copies,
 *             or if another rank's arguments are invalid
 */
DT_API DT_MUST_USE dt_status dt_distribute_checked(dt_mesh *mesh, const dt_placement *place,
                                                   dt_dtype dtype, int n_axes, const int64_t *shape,
                                                   dt_source source, dt_tensor **out);

/**
 * A tensor from pieces of any sizes: its global shape is what the ranks' pieces add up to. Pieces
 * of torch.chunk's sizes make a plain Shard, others one with offsets. (PyTorch's from_local takes
 * every piece for one of equal size, issue 144109.)
 *
 *   place        no offsets, blocks or replicas; an axis is cut by one mesh dim at most
 *   local_shape  of this rank's piece, or of its term; NULL is allowed for outsiders
 *   data         row-major, copied
 *
 * Collective  yes, over all ranks of the runtime, so that outsiders of the mesh know the tensor
 *             too: one all-gather of 96 bytes per rank. Every rank hears if another's arguments
 *             are invalid.
 * Ownership   *out is a new reference.
 * Errors      as dt_from_local(); DT_ERR_SHAPE for pieces that do not fit together, naming two
 *             ranks; DT_ERR_ARG if another rank's arguments are invalid; DT_ERR_UNSUPPORTED for
 *             placements as said above and for dry meshes; DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_from_pieces(dt_mesh *mesh, const dt_placement *place,
                                            dt_dtype dtype, int n_axes, const int64_t *local_shape,
                                            const void *data, dt_tensor **out);

#ifdef __cplusplus
}
#endif
#endif
