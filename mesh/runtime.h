/* SPDX-License-Identifier: Apache-2.0
 *
 * What later rooms ask of a runtime. */
#ifndef DTI_RUNTIME_H
#define DTI_RUNTIME_H

#include <dtensor/mesh.h>

#include "base/pool.h"
#include "mesh/comm/comm.h"
#include "mesh/comm/cuda_comm.h"

typedef void (*dti_slot_destroy)(void *object);

/* Something that lives as long as the rank: made on first use, destroyed in reverse order of
 * creation. Whose it is only its owner knows: the address of a constant of its own is the key. */
typedef struct dti_slot {
    dt_status (*create)(dt_runtime *rt, void **out);
    dti_slot_destroy destroy; /* may be NULL */
    bool is_registry;         /* of users: a dry runtime has that of the one that it is made like */
} dti_slot;

/* The object of `slot`, which the first call makes. Afterwards a few loads. */
dt_status dti_runtime_slot(dt_runtime *rt, const dti_slot *slot, void **out) DT_MUST_USE;

dti_comm *dti_runtime_world(dt_runtime *rt);

/* Where the rank's thread notes what it does (mesh/comm/track.h). */
struct dti_track *dti_runtime_track(dt_runtime *rt);

/* From now on all communicators of this rank take calls with a stream, on memory of `place`, until
 * dti_runtime_leave_cuda(), after which the place may be closed. Collective over the ranks of the
 * run. `wish` as in dti_cuda_world_open(); NULL: as DTENSOR_CUDA_COMM says, or "auto". */
dt_status dti_runtime_use_cuda(dt_runtime *rt, const dti_cuda_place *place,
                               const char *wish) DT_MUST_USE;
void dti_runtime_leave_cuda(dt_runtime *rt);
dti_cuda_world *dti_runtime_cuda(dt_runtime *rt); /* NULL: tensors lie on the host */
dti_pool *dti_runtime_pool(dt_runtime *rt);
const char *dti_runtime_isa(const dt_runtime *rt); /* as asked for, never NULL: "auto", ... */
bool dti_runtime_any_order(const dt_runtime *rt);  /* dt_run_options.products is "fastest" */

/* What ends with the run, at once: `end` is called with `object` on the rank's own thread when the
 * rank ends, hooks in reverse order. Slots stay for objects that outlive the run: they go with the
 * last of them. */
dt_status dti_runtime_at_end(dt_runtime *rt, dti_slot_destroy end, void *object) DT_MUST_USE;
bool dti_runtime_has_ended(const dt_runtime *rt);

/* What this rank does beside its waits (mesh/comm/comm.h); later rooms fill it in. */
dti_beside *dti_runtime_beside(dt_runtime *rt);

/* Whether a thread of the rank's may take part in communication beside the rank, and its
 * communicator of the whole run, called once by that thread, which closes it: the ranks' helpers
 * are a world of their own, in which nobody waits for a rank itself; both are aborted together. The
 * thread may run on all cores of the process from then on. */
bool dti_runtime_has_lanes(const dt_runtime *rt);
dt_status dti_runtime_open_lane(dt_runtime *rt, dti_comm **out) DT_MUST_USE;

/* Called by a thread that a rank has started and that does not communicate: it may run on all cores
 * of the process, since the rank's core is the rank's. */
void dti_runtime_free_core(const dt_runtime *rt);

/* A kind of handles of users, a constant of whoever makes them: what outlives the run is named in
 * its log by these words. */
typedef struct dti_live {
    const char *one, *several; /* "tensor", "tensors" */
} dti_live;

enum { DTI_MAX_LIVE = 16 }; /* kinds that are told apart in one run */

/* Live objects (dt_runtime_live) go up and down by this, on their rank's own thread; those of NULL,
 * which are meshes, on any. The runtime is gone when it returns from counting down the last object
 * of a run that has ended. */
void dti_runtime_count(dt_runtime *rt, const dti_live *kind, int64_t change);

void dti_runtime_log(dt_runtime *rt, dt_log_level level, const char *fmt, ...) DT_PRINTF(3, 4);

/* `bytes` of each rank of the run, one after the other in *all, which dti_free() frees. Collective
 * over the world. */
dt_status dti_gather_bytes(dt_runtime *rt, const void *mine, size_t bytes, void **all) DT_MUST_USE;

/* Hands `st` back. An error that this rank alone can have (memory, files, device, internal) frees
 * the other ranks first: they would wait for it at their next collective. */
dt_status dti_runtime_alone(dt_runtime *rt, dt_status st);

/* Whether its tensors lie on a GPU; of a dry runtime whether they would. */
bool dti_runtime_is_on_gpu(const dt_runtime *rt);

/* Moves bytes that are under way to and from other processes, from within a kernel: starts nothing,
 * and fails nowhere. */
void dti_runtime_poll(const dt_runtime *rt);

/* What this rank does from now on, "cell 3, 1F2", in 55 bytes: others say it if its process is
 * killed. Empty: nothing. */
void dti_runtime_doing(const dt_runtime *rt, const char *what);

/* Tells the other ranks that this one cannot go on. Uses the current error record as the reason. */
void dti_runtime_abort(dt_runtime *rt);

/* A communicator of its own of all ranks of two meshes, ascending by world rank, which whoever has
 * asked closes before the run ends. Collective over them, in order with all that makes
 * communicators of the same ranks. *out is NULL for a rank of neither. */
dt_status dti_mesh_union_group(const dt_mesh *a, const dt_mesh *b, const char *name,
                               dti_comm **out) DT_MUST_USE;

/* The link of this mesh dim that the run simulates (dt_run_options.links), or NULL; whether it has
 * asked that sends wait for their receivers. */
const struct dt_link *dti_runtime_link(const dt_runtime *rt, const char *dim);
bool dti_runtime_is_unbuffered(const dt_runtime *rt);

/* This rank's row-major place in the mesh, which says all its coordinates; -1 for outsiders. */
int dti_mesh_place(const dt_mesh *mesh);

/* What planners think of a mesh. `id` says all of it: equal ids, equal plans. */
typedef struct dti_mesh_costs {
    uint64_t id;
    bool measured;
    int64_t memory_bytes; /* most that a rank may hold of a tensor while it moves; 0: any */
    dt_link link[DT_MAX_DIMS];
} dti_mesh_costs;
const dti_mesh_costs *dti_mesh_costs_of(const dt_mesh *mesh);

/* The same grid over the same rank numbers in another runtime (a dry one), of which rt's rank may
 * be a member or not. Ownership: a new reference. */
dt_status dti_mesh_copy(const dt_mesh *mesh, dt_runtime *rt, dt_mesh **out) DT_MUST_USE;

/* The communicator over the mesh dims in `dims` (bit m for dim m), flattened row-major, that
 * contains this rank. Made on first use by its members and kept with the mesh; equal groups of
 * other meshes share it, so ask for it before each operation: it then has this mesh's deadline.
 * Borrowed. */
dt_status dti_mesh_comm(dt_mesh *mesh, uint32_t dims, dti_comm **out) DT_MUST_USE;

/* The same over parts of dims: of each dim d in `dims` the along[d] neighbours, a number that
 * divides the dim, that begin at a multiple of it. */
dt_status dti_mesh_comm_along(dt_mesh *mesh, uint32_t dims, const int *along,
                              dti_comm **out) DT_MUST_USE;

/* The communicator of all ranks of two meshes, by world rank; *out is NULL for a rank of neither.
 * It waits as long as the more patient mesh. Borrowed. */
dt_status dti_mesh_union_comm(const dt_mesh *a, const dt_mesh *b, dti_comm **out) DT_MUST_USE;

/* The status that the mesh's first rank passes, with its message, on every rank: what it alone
 * looked at, all know. Collective over the mesh's members. */
dt_status dti_first_says(dt_mesh *mesh, dt_status mine) DT_MUST_USE;

/* The status and message of the first rank that passes no DT_OK, on every rank. Collective over the
 * mesh's members: none of them is left waiting for one that has failed. */
dt_status dti_all_say(dt_mesh *mesh, dt_status mine) DT_MUST_USE;

#endif
