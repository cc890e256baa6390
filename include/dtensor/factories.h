/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors from nothing: constants, progressions and random values, each rank making its own piece.
 *
 * Random values are a function of (seed, stream, global element index), see docs/random.md: the
 * same key gives the same tensor under every placement, on every mesh, with any number of threads
 * and on every device. PyTorch's depend on the sharding and the number of ranks (issues 140301,
 * 168058), so that a model cannot be initialised alike on one and on eight devices.
 *
 * For all functions here:
 *
 *   mesh, place, dtype, n_axes, shape   as in dt_zeros(): shape is global, place not Partial
 *
 * Collective  no communication; every rank of the mesh passes the same arguments. Outsiders of the
 *             mesh get a tensor without elements.
 * Ownership   *out is a new reference, released with dt_tensor_release().
 * Errors      DT_ERR_ARG     NULL, n_axes outside 0..8, unknown dtype, values that the dtype cannot
 *                            hold (integers), an empty or unordered interval
 *             DT_ERR_SHAPE   a negative extent, or more bytes than fit into 63 bits
 *             DT_ERR_LAYOUT  as dt_layout_get(); Partial
 *             DT_ERR_MEMORY */
#ifndef DT_FACTORIES_H
#define DT_FACTORIES_H

#include <dtensor/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- constants -------------------------------------------------------------------------------- */

/* Bytes are whatever was there. */
DT_API DT_MUST_USE dt_status dt_empty(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                      int n_axes, const int64_t *shape, dt_tensor **out);

/* Without contents, or zeroed: as x in mesh, layout, dtype and shape, whatever the layout is; zeros
 * of a Partial x are terms. */
DT_API DT_MUST_USE dt_status dt_empty_like(const dt_tensor *x, dt_tensor **out);
DT_API DT_MUST_USE dt_status dt_zeros_like(const dt_tensor *x, dt_tensor **out);

/* The same with the placements of a layout, of any mesh of these sizes or dt_layouts; it says the
 * number of axes. DT_ERR_LAYOUT for a layout of another grid. */
DT_API DT_MUST_USE dt_status dt_empty_laid(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                                           const int64_t *shape, dt_tensor **out);
DT_API DT_MUST_USE dt_status dt_zeros_laid(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                                           const int64_t *shape, dt_tensor **out);

DT_API DT_MUST_USE dt_status dt_ones(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                     int n_axes, const int64_t *shape, dt_tensor **out);

/* `value` everywhere, rounded to the dtype; an integer dtype must hold it exactly. */
DT_API DT_MUST_USE dt_status dt_full(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                     int n_axes, const int64_t *shape, double value,
                                     dt_tensor **out);

/* start, start + step, start + 2 step, ... */
typedef struct dt_steps {
    double start;
    double step;
} dt_steps;

/* Element g in row-major order is start + step g, computed in f64 (integers: in 64 bits) and
 * rounded once. Integer dtypes take whole numbers, and the last element must fit. */
DT_API DT_MUST_USE dt_status dt_arange(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                       int n_axes, const int64_t *shape, dt_steps steps,
                                       dt_tensor **out);

/* --- random values ---------------------------------------------------------------------------- */

/* Names one random tensor. Different streams of one seed are independent. */
typedef struct dt_random {
    uint64_t seed;
    uint64_t stream;
} dt_random;

/** The next key of a generator, which is a key that counts its streams: returns *generator and
 * raises its stream by one. Ranks that make the same calls get the same keys; there is no state
 * besides. Not collective. Errors: none. */
DT_API dt_random dt_random_next(dt_random *generator);

/* Uniform in [0, 1). Multiples of 2^-24 (f32), 2^-11 (f16), 2^-8 (bf16), 2^-53 (f64): never 1. */
DT_API DT_MUST_USE dt_status dt_rand(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                     int n_axes, const int64_t *shape, dt_random key,
                                     dt_tensor **out);

/* Normal with mean 0 and deviation 1. f16 and bf16 are the values of f32, rounded. */
DT_API DT_MUST_USE dt_status dt_randn(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype,
                                      int n_axes, const int64_t *shape, dt_random key,
                                      dt_tensor **out);

/* --- filling a tensor that is there ----------------------------------------------------------- */

/* Every rank of x's mesh writes its piece; views of the same bytes change too. x must not be
 * Partial. */
DT_API DT_MUST_USE dt_status dt_fill(dt_tensor *x, double value);
DT_API DT_MUST_USE dt_status dt_fill_arange(dt_tensor *x, dt_steps steps);

/* low + (high - low) u with u of dt_rand(), in f32 (f64: in f64), rounded to the dtype, which can
 * give `high` itself where the dtype is coarse. */
DT_API DT_MUST_USE dt_status dt_fill_rand(dt_tensor *x, dt_random key, double low, double high);

/* mean + deviation z with z of dt_randn(). */
DT_API DT_MUST_USE dt_status dt_fill_randn(dt_tensor *x, dt_random key, double mean,
                                           double deviation);

/* Whole numbers in [low, high), of any dtype that holds them. */
DT_API DT_MUST_USE dt_status dt_fill_randint(dt_tensor *x, dt_random key, int64_t low,
                                             int64_t high);

#ifdef __cplusplus
}
#endif
#endif
