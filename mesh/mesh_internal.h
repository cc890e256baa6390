/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind a mesh. */
#ifndef DTI_MESH_INTERNAL_H
#define DTI_MESH_INTERNAL_H

#include <stdatomic.h>

#include "mesh/runtime.h"
#include "mesh/span.h"

/* The ranks that a mesh and all meshes made from it choose from. */
typedef struct dti_roster {
    _Atomic int refs;
    int n;
    int ranks[]; /* [n] world ranks, distinct */
} dti_roster;

/* The dims of a mesh in a roster: the rank at coordinates c stands at place
 * origin + sum over d of place(span[d], c[d]). */
typedef struct dti_grid {
    dti_roster *roster; /* NULL: place p is world rank p */
    int n_dims;
    int origin;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    dti_span span[DT_MAX_DIMS];
} dti_grid;

/* A communicator of parts of dims: its group is `along` neighbours of each dim in `dims`. */
typedef struct dti_mesh_part {
    uint32_t dims;
    int along[DT_MAX_DIMS];
    dti_comm *comm; /* borrowed */
    struct dti_mesh_part *next;
} dti_mesh_part;

struct dt_mesh {
    _Atomic int refs;
    dt_runtime *rt;
    int n_dims;
    int n_ranks;
    int place; /* of this rank, row-major; -1 for outsiders */
    int64_t timeout_ms;
    int size[DT_MAX_DIMS];
    int coord[DT_MAX_DIMS]; /* -1 for outsiders */
    dti_mesh_costs costs;
    dti_grid grid;    /* keeps a reference of its roster */
    dti_comm **comms; /* [1 << n_dims] by the bits of dims, NULL until first used; borrowed */
    dti_mesh_part *parts;
};

/* Nothing measured, no bound. */
void dti_mesh_default_costs(dti_mesh_costs *costs);

/* Dim `dim` of `to`, which runs along the dims in `dims` (bits) of `from` or a part of them, gets
 * the slowest of their links, and `to` the tighter bound. Called for dims 0, 1, ... in order: `to`
 * counts as measured if each of its dims is one that was. */
void dti_mesh_inherit(dt_mesh *to, int dim, const dt_mesh *from, uint32_t dims);

/* A row-major mesh of these dims over a copy of `ranks`, which are valid; NULL: ranks 0, 1, ... */
dt_status dti_mesh_make(dt_runtime *rt, int n_dims, char names[][DT_DIM_NAME_BYTES],
                        const int *sizes, const int *ranks, dt_mesh **out) DT_MUST_USE;

/* A mesh of any grid, which is valid; takes a reference of its roster. Deadlines are those of the
 * mesh `like`, or of the run if it is NULL. */
dt_status dti_mesh_make_grid(dt_runtime *rt, const dti_grid *grid, const dt_mesh *like,
                             dt_mesh **out) DT_MUST_USE;

/* Names and span of dim `from` of `mesh` as the last dim of `grid`. */
void dti_grid_add(dti_grid *grid, const dt_mesh *mesh, int from);

/* A copy of `ranks`, with one reference. Release accepts NULL. */
dt_status dti_roster_make(const int *ranks, int n, dti_roster **out) DT_MUST_USE;
void dti_roster_release(dti_roster *roster);

/* The roster's place of a rank, or -1. */
int dti_roster_find(const dti_roster *roster, int world_rank);

/* World rank at a place of the roster. */
int dti_grid_rank(const dti_grid *grid, int place);

/* The place in the roster of the coordinates `coord`. */
int dti_grid_place(const dti_grid *grid, const int *coord);

/* The coordinates of a place in the roster; false if the grid does not run through it. */
bool dti_grid_find(const dti_grid *grid, int place, int *coord);

/* "dp,tp": the dims in `dims` (bits), for errors and names of communicators. Cut off if long. */
void dti_mesh_dims_text(const dt_mesh *mesh, uint32_t dims, const char *separator, char *text,
                        size_t text_bytes);

/* Names of dims to bits; they have to be distinct and in mesh order. */
dt_status dti_mesh_find_dims(const dt_mesh *mesh, const char *const *names, int n_names,
                             uint32_t *dims) DT_MUST_USE;

/* Is `name` a letter, then letters, digits and _, and short enough. */
dt_status dti_mesh_check_name(const char *name) DT_MUST_USE;

/* The places of the dims in `dims` (bits), at the coordinates `coord` of the others, row-major:
 * writes the world ranks and returns their number. */
int dti_mesh_fiber(const dt_mesh *mesh, uint32_t dims, const int *coord, int *world_ranks);

/* The same of as many neighbours as `along` says of each dim, from a multiple of that number on. */
int dti_mesh_block(const dt_mesh *mesh, uint32_t dims, const int *along, const int *coord,
                   int *world_ranks);

#endif
