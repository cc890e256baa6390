/* SPDX-License-Identifier: Apache-2.0
 *
 * Who takes part: ranks, and the named n-d grids (meshes) they form.
 *
 * A rank is a thread of this process or a process of its own, and nothing above this room can
 * tell which. dt_run() starts the ranks and gives each a runtime; a mesh arranges ranks in a grid
 * whose dims have names ("dp=2,tp=4", row-major, the last dim varies fastest). */
#ifndef DT_MESH_H
#define DT_MESH_H

#include <dtensor/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_MAX_DIMS = 8, DT_DIM_NAME_BYTES = 24 };

/* One rank's view of the world: its place in it, its threads, its registries, its caches. Made by
 * dt_run(), borrowed by everything else. */
typedef struct dt_runtime dt_runtime;

/* An n-d grid of ranks with named dims. Counted handle, immutable but for its deadline. */
typedef struct dt_mesh dt_mesh;

/* What planners think of one mesh dim: the time of a message between its ranks, and the bytes per
 * nanosecond (GB/s) that a rank receives over it. */
typedef struct dt_link {
    double latency_ns;
    double bytes_per_ns;
} dt_link;

/* On which cores threads run. Compact: side by side, all in one NUMA node if they fit, so that
 * ranks are near each other. Spread: evenly over the machine, for its caches and memory channels.
 * With all cores in use (threads_per_rank = 0) both are the same. */
typedef enum dt_bind { DT_BIND_NONE = 0, DT_BIND_COMPACT = 1, DT_BIND_SPREAD = 2 } dt_bind;

typedef struct dt_run_options {
    size_t size;          /* sizeof(dt_run_options), set by DT_RUN_OPTIONS_INIT */
    int n_ranks;          /* ranks of the run; default 1, among several processes: one for each */
    int threads_per_rank; /* 0: cores / ranks, at least 1 */
    dt_bind bind;         /* threads to cores, memory to their NUMA node; default compact. A note is
                           * logged where that is impossible */
    int64_t timeout_ms;   /* longest wait inside a collective; default 10 minutes */
    dt_log_fn log;        /* NULL: silence */
    void *log_arg;
    const char *fault;  /* fault injection for tests, "rank=1,op=all_reduce,call=3"; NULL: none */
    const char *isa;    /* "auto" (NULL), "portable", "avx2", "avx512", "avx512_bf16", "amx"; a name
                         * that kernels do not have is refused when the first tensor is made */
    const char *check;  /* "agree": ranks compare operation, shape, dtype and placements before each
                         * collective; "none". NULL: DTENSOR_CHECK, else agree in debug builds */
    const char *flight; /* when a collective fails each rank writes its last 64 to the file
                         * "<flight>.<rank>". NULL: DTENSOR_FLIGHT, else nothing is written */
    int ranks_together; /* so many ranks in a row share a NUMA node if they fit: the size of the
                         * last mesh dim, say; it divides n_ranks. 0: no wish */
    const char *device; /* where tensors lie: "cpu" (NULL); "cuda", ranks of a machine on its GPUs
                         * in turn; "cuda:1", all on that one; "auto", GPUs if there are any. What
                         * cannot be had is refused when the run starts; see dt_device_check() */
    const char *sums;   /* "rank-order": the same bits everywhere and always; "mpi": sums over all
                         * ranks are MPI's own (docs/launch.md). NULL: DTENSOR_MPI_SUMS, else
                         * rank-order */
    /* Called on every rank before rank_main, and with a runtime that dt_runtime_create_dry() makes
     * like no other: registers what the ranks shall have (dt_module_add(), dt_style_register()).
     * NULL: nothing. Its errors are those of the rank. */
    dt_status (*setup)(dt_runtime *rt, void *arg);
    void *setup_arg;
    /* Collectives take at least this link's time, asleep: for trying out what overlaps, and what a
     * slower network costs. Read when the run starts; NULL: as fast as they are. */
    const dt_link *simulated_link;
    /* The same in words: "50,1" is 50 microseconds and 1 GB/s; with names of mesh dims,
     * "dp=200,0.5;tp=2,20", other links are as fast as they are, or as a last one without a name
     * says; "unbuffered" among them. NULL: DTENSOR_LINK, if simulated_link is NULL; "": none */
    const char *links;
    /* "one-order" (NULL): a row of a product has the same bits among any rows; "fastest": f32
     * products of 64 rows and more on CPUs may be added up in another order (docs/numerics.md) */
    const char *products;
} dt_run_options;

#define DT_RUN_OPTIONS_INIT                                                                        \
    {                                                                                              \
        sizeof(dt_run_options), 1, 0, DT_BIND_COMPACT, 600000, NULL, NULL, NULL, NULL, NULL, NULL, \
            0, NULL, NULL, NULL, NULL, NULL, NULL, NULL                                            \
    }

/* What a rank runs. The status of the first rank that fails becomes that of dt_run(). */
typedef dt_status (*dt_rank_main)(dt_runtime *rt, void *arg);

/**
 * Starts the ranks, runs rank_main on each and returns when all have ended.
 *
 * Alone, a process runs all ranks as threads. Processes that mpirun or srun has started are joined
 * over MPI: every process calls dt_run() with the same options and runs its part of the ranks, the
 * first process the first ones. So the program for one process is the program for many; what it
 * prints, it prints on rank 0 (docs/launch.md).
 *
 * If a rank returns an error, waits of the other ranks in collectives end with DT_ERR_COMM.
 *
 * Objects of a rank (meshes, tensors, tapes, models) are released before its rank_main returns.
 * What is left is named in the log, loses its memory with the run, and may still be released, by
 * any thread and at any time, but not used.
 *
 *   options  NULL for one rank per process with defaults
 *   arg      handed to every rank of this process; shared by these, so ranks must not write to it
 *            without care
 *
 * Collective  over processes: returns the same status in all of them.
 * Threads     the ranks of this process; the calling thread is the first of them.
 * Errors      DT_ERR_ARG          a malformed option; fewer ranks than processes
 *             DT_ERR_MEMORY       threads could not be started
 *             DT_ERR_UNSUPPORTED  the process is one of several, and nothing joins them: the
 *                                 launcher's MPI is not installed or not built in, or torchrun
 *                                 started them on several machines; a run inside a run, among
 *                                 several processes
 *             DT_ERR_COMM         a process does not come within the timeout, at least a minute
 *             otherwise the status of the rank that failed first, its record in dt_last_error()
 */
DT_API DT_MUST_USE dt_status dt_run(const dt_run_options *options, dt_rank_main rank_main,
                                    void *arg);

/* One thing that a rank was asked to do: "--prompt" and "Once", or "--json" and NULL. */
typedef struct dt_asked {
    const char *what;
    const char *value; /* NULL: it has none */
} dt_asked;

/**
 * Compares what the ranks of a run were asked to do, in every build. Processes of a job that were
 * started with different arguments may well compute the same operations on different data, which
 * no collective can tell: so a program that reads arguments calls this first.
 *
 *   asked  n of them, in an order that does not depend on the rank
 *
 * One all-gather of 16 bytes per rank where they agree.
 *
 * Collective  over all ranks of the run.
 * Errors      DT_ERR_ARG     rt, a list that has something or a `what` is NULL; or ranks were asked
 *                            for different things: the first of them is named, on all ranks alike
 *             DT_ERR_MEMORY  for these few bytes
 *             DT_ERR_COMM    another rank failed, left or timed out
 */
DT_API DT_MUST_USE dt_status dt_agree(dt_runtime *rt, const dt_asked *asked, int n);

/** This rank's number in the world, 0 <= rank < size. Not collective. Errors: none. */
DT_API int dt_runtime_rank(const dt_runtime *rt);

/** Number of ranks in the world. Not collective. Errors: none. */
DT_API int dt_runtime_size(const dt_runtime *rt);

/** Threads that this rank computes with. Not collective. Errors: none. */
DT_API int dt_runtime_threads(const dt_runtime *rt);

/** Cores this rank is bound to, as text ("0-1"), or "" if it is not bound. Not collective.
 * Errors: none. */
DT_API const char *dt_runtime_cores(const dt_runtime *rt);

/** Processes that a launcher (mpirun, srun, torchrun) has started together, this one included, and
 * the number of this one among them: 1 and 0 for a process that was started alone. Known before any
 * run; rank 0 of a run lives in process 0. Not collective. Errors: none; what dt_run() would refuse
 * counts as alone. */
DT_API int dt_launch_size(void);
DT_API int dt_launch_process(void);

/** Of a process that a launcher without MPI (torchrun) has started, long before dt_run() perhaps:
 * that it is there, so that the others, once they wait for it, hear at once when it ends; and why
 * it will never call dt_run(), which they then fail with. dt_run() arrives by itself; a program
 * that reads files first arrives before. Giving up takes as long as others need to start, two
 * seconds at the most. Under mpirun of MPICH, which minds no process that fails before it has
 * joined, who has given up ends the job with its own exit code when it exits. Neither does anything
 * after a run was joined, nor under other launchers, which end a job when a process of it fails.
 * Not collective. Errors: none. */
DT_API void dt_launch_arrive(void);
DT_API void dt_launch_give_up(const char *why);

/** Cores that this process may use: those of the machine less what a cpuset or a binding forbids;
 * hyperthreads do not count. At least 1. Not collective. Errors: none. */
DT_API int dt_machine_cores(void);

/** Objects of this rank still alive (meshes, tensors, tapes); 0 after a clean release of all.
 * Not collective. Errors: none. */
DT_API int64_t dt_runtime_live(const dt_runtime *rt);

/**
 * A runtime without ranks, for judging and planning what a run would do. Tensors on its meshes are
 * dry (PyTorch: on the meta device): shape, layout and dtype, no bytes. An operator runs its rules
 * and no kernel; a collective is counted and waits for nobody; memory is counted as a run would
 * take it. A mesh may have any size, and is seen from one rank.
 *
 *   options  n_ranks (up to 2^20), log and isa count; the others do not matter
 *   rank     the rank whose view it is
 *   like     the runtime of a run whose registries (styles) hold here too, or NULL
 *
 * Collective  no.
 * Ownership   *out is released with dt_runtime_release_dry(), after all that was made with it and
 *             before `like` ends. It belongs to the calling thread.
 * Errors      DT_ERR_ARG, DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_runtime_create_dry(const dt_run_options *options, int rank,
                                                   dt_runtime *like, dt_runtime **out);
DT_API void dt_runtime_release_dry(dt_runtime **rt); /* accepts NULL; sets *rt to NULL */

/** Whether dt_runtime_create_dry() made it. Not collective. Errors: none. */
DT_API bool dt_runtime_is_dry(const dt_runtime *rt);

/**
 * Makes a mesh from text such as "tp=4" or "dp=2,tp=2" over ranks 0 .. product-1.
 *
 * Collective  every rank of the world calls it; ranks past the product get a mesh that they are
 *             not members of.
 * Ownership   *out is a new reference, released with dt_mesh_release().
 * Errors      DT_ERR_ARG  malformed text, a repeated name, a size below 1, more than 8 dims, or a
 *                         product that exceeds the number of ranks
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_mesh_create(dt_runtime *rt, const char *spec, dt_mesh **out);

/**
 * As dt_mesh_create() over an explicit array of ranks, row-major: ranks[i] is the world rank at
 * place i. Ranks must be distinct and may be any subset in any order.
 *
 * Collective, Ownership, Errors as dt_mesh_create(); also DT_ERR_ARG for a repeated or unknown
 * rank.
 */
DT_API DT_MUST_USE dt_status dt_mesh_create_ranks(dt_runtime *rt, const char *spec,
                                                  const int *ranks, dt_mesh **out);

/**
 * Parses a mesh text without a runtime: dim names and sizes and the number of ranks.
 *
 * Collective  no.
 * Errors      DT_ERR_ARG as dt_mesh_create(), except that any number of ranks is accepted
 */
DT_API DT_MUST_USE dt_status dt_mesh_parse(const char *spec, int *n_dims,
                                           char names[][DT_DIM_NAME_BYTES], int *sizes,
                                           int *n_ranks);

/**
 * The sub-mesh of the named dims that contains this rank (outer dims first, in mesh order). The
 * sub-mesh of all dims is the mesh itself. Ranks outside the mesh get the one at coordinates 0, of
 * which they are no members either.
 *
 * Collective  no communication; every rank of the mesh makes the same slices in the same order.
 * Ownership   *out is a new reference.
 * Errors      DT_ERR_ARG  unknown or repeated name, names not in mesh order, no names
 */
DT_API DT_MUST_USE dt_status dt_mesh_slice(dt_mesh *mesh, const char *const *names, int n_names,
                                           dt_mesh **out);

/**
 * The named dims of a mesh merged into one, row-major: the sub-mesh of those dims that contains
 * this rank, as a mesh of one dim. The dims need not be neighbours.
 *
 *   names  from the outermost on; n_names == 0: all dims
 *   name   of the merged dim; NULL: their names joined by "_"
 *
 * The mesh itself keeps its dims. PyTorch registers the new name with the root mesh, where it can
 * clash later; here names belong to one mesh, so any number of flattened meshes may share a name.
 *
 * Collective  no communication; every rank of the mesh makes the same meshes in the same order.
 * Ownership   *out is a new reference.
 * Errors      DT_ERR_ARG  as dt_mesh_slice(); a name that another dim of the mesh has, a malformed
 *                         or long name
 */
DT_API DT_MUST_USE dt_status dt_mesh_flatten(dt_mesh *mesh, const char *const *names, int n_names,
                                             const char *name, dt_mesh **out);

/**
 * The mesh with dim `name` split into the dims of `spec`, row-major: "dp=4,tp=2" with dp split by
 * "dp=2,cp=2" is "dp=2,cp=2,tp=2". Groups of the other dims stay what they are.
 * Collective, Ownership as dt_mesh_flatten().
 * Errors      DT_ERR_ARG  an unknown name, a malformed spec, sizes whose product is not that of the
 *                         dim, a name that another dim has, more than 8 dims
 */
DT_API DT_MUST_USE dt_status dt_mesh_unflatten(dt_mesh *mesh, const char *name, const char *spec,
                                               dt_mesh **out);

/**
 * One mesh of all dims of several, the first mesh's outermost. They are slices of one mesh (or were
 * made over the same list of ranks) and cross in one rank only: slices dp and tp of "dp=2,tp=4"
 * make that mesh again.
 *
 * Collective, Ownership as dt_mesh_flatten().
 * Errors      DT_ERR_ARG  no mesh, different lists of ranks, dims that run through the same ranks,
 *                         a repeated name, more than 8 dims
 */
DT_API DT_MUST_USE dt_status dt_mesh_concatenate(dt_mesh *const *meshes, int n_meshes,
                                                 dt_mesh **out);

/**
 * The part of a mesh at coordinate i of a dim, with the same dims in the same order, that one of
 * size 1: stage 1 of "pp=2,tp=2" along pp is "pp=1,tp=2 [[2 3]]", on all ranks, also those outside.
 *
 * Collective  no; any rank makes any stage when it likes. Ownership as above.
 * Errors      DT_ERR_ARG  an unknown name, i outside [0, size of the dim) */
DT_API DT_MUST_USE dt_status dt_mesh_stage(dt_mesh *mesh, const char *name, int i, dt_mesh **out);

/**
 * Sets the longest wait for a peer in collectives on this mesh, in milliseconds, from the next one
 * on. A mesh begins with that of the run (dt_run_options.timeout_ms), and a mesh made from another
 * with that of the other; meshes made before keep theirs.
 *
 * Collective  no, but the ranks of a mesh should agree: the shortest wait decides.
 * Errors      DT_ERR_ARG  mesh is NULL, or timeout_ms is below 1
 */
DT_API DT_MUST_USE dt_status dt_mesh_set_timeout(dt_mesh *mesh, int64_t timeout_ms);
DT_API int64_t dt_mesh_timeout(const dt_mesh *mesh); /* Not collective. Errors: none. */

/* Links where nothing was given or measured: as fast as memory. */
#define DT_DEFAULT_LATENCY_NS   1000.0
#define DT_DEFAULT_BYTES_PER_NS 10.0

/**
 * Tells planners what the dims of a mesh cost, one link per dim. dt_redistribute() then takes the
 * cheapest plan by them. Meshes made from this one begin with what follows from them: a dim that is
 * taken over keeps its link, a flattened one has the slowest of its dims, parts of a dim have its.
 *
 * Collective  no, but every rank of the mesh has to set the same: plans follow from it.
 * Errors      DT_ERR_ARG  NULL, a negative latency, a bandwidth that is not positive
 */
DT_API DT_MUST_USE dt_status dt_mesh_set_links(dt_mesh *mesh, const dt_link *links);
DT_API dt_link dt_mesh_link(const dt_mesh *mesh, int dim); /* Not collective. Errors: none. */

/**
 * dt_mesh_set_links() with what this machine does: the median of nine gathers of 64 bytes and of
 * 4 MiB per rank along each dim, of the slowest rank, to the next power of two. Measures once; a
 * second call does nothing, as do outsiders, dry runtimes, and a mesh all of whose dims are dims of
 * meshes that were measured before it was made from them.
 *
 * The order in which f32 terms are added follows from the links: where runs have to repeat bit for
 * bit, give all of them the links that one has measured, by dt_mesh_set_links().
 *
 * Collective  every rank of the mesh.
 * Errors      DT_ERR_ARG, DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_mesh_measure_links(dt_mesh *mesh);

/**
 * Bounds the bytes that a rank may hold of a tensor while it moves on this mesh: its piece before,
 * its piece after, and what is in between. 0, the default: no bound. A move that no plan can do
 * within it fails with DT_ERR_LAYOUT on every rank, before anything is sent. A copy to another mesh
 * obeys the bounds of both, each on its mesh's ranks. Meshes made from this one begin with its
 * bound, one made from several with the tightest.
 *
 * Collective  no, but every rank of the mesh has to set the same.
 * Errors      DT_ERR_ARG  mesh is NULL, or bytes is negative
 */
DT_API DT_MUST_USE dt_status dt_mesh_set_move_memory(dt_mesh *mesh, int64_t bytes);

/**
 * Hands work from one rank to all: `bytes` bytes at `data` of the rank at place `root` (row-major)
 * are copied to `data` of the others. What distinguishes it from a collective is that the others
 * wait for the root without a deadline, asleep: a chat may wait for its user for a day, a worker
 * for its next request. The root itself waits for the others at most as long as the mesh allows.
 *
 *   data      [capacity] bytes on every rank; sent by the root, overwritten on the others
 *   capacity  the same on all ranks
 *   bytes     at the root how many to send, 0 <= *bytes <= capacity; set on the others
 *
 * Collective  every rank of the mesh, with the same root and capacity.
 * Errors      DT_ERR_ARG   an argument is NULL or out of range, the rank is no member, the work
 *                          exceeds capacity; found by the root alone, nothing was sent, and the
 *                          others still wait. A capacity that is not the root's: found by the rank
 *                          that has it, the run is aborted
 *             DT_ERR_COMM  a rank failed or left; those that wait for work notice at once
 */
DT_API DT_MUST_USE dt_status dt_mesh_broadcast_work(dt_mesh *mesh, int root, void *data,
                                                    int64_t capacity, int64_t *bytes);

DT_API dt_mesh *dt_mesh_retain(dt_mesh *mesh); /* one more reference; returns mesh */
DT_API void dt_mesh_release(dt_mesh **mesh);   /* drops one, sets the variable to NULL */

/* Queries. Not collective, no errors: an index out of range gives -1, NULL or false. */
DT_API dt_runtime *dt_mesh_runtime(const dt_mesh *mesh);
DT_API int dt_mesh_n_dims(const dt_mesh *mesh);
DT_API int dt_mesh_n_ranks(const dt_mesh *mesh);
DT_API int dt_mesh_dim_size(const dt_mesh *mesh, int dim);
DT_API const char *dt_mesh_dim_name(const dt_mesh *mesh, int dim);
DT_API int dt_mesh_find_dim(const dt_mesh *mesh, const char *name);
DT_API bool dt_mesh_is_member(const dt_mesh *mesh);            /* is this rank part of it */
DT_API int dt_mesh_coord(const dt_mesh *mesh, int dim);        /* of this rank; -1 for outsiders */
DT_API int dt_mesh_rank_at(const dt_mesh *mesh, int place);    /* world rank at row-major place */
DT_API bool dt_mesh_equal(const dt_mesh *a, const dt_mesh *b); /* same ranks, sizes and names */

/** The mesh coordinates of any world rank; false, and `coord` as it was, for outsiders. `coord` may
 * be NULL. Not collective. Errors: none. */
DT_API bool dt_mesh_find_rank(const dt_mesh *mesh, int world_rank, int *coord);

/** Writes the world ranks of the group along `dim` that passes through mesh coordinates `coord`
 * (NULL: this rank's, or 0 for outsiders), in the order of the group, and returns how many they
 * are. Makes no communicator. Not collective. Errors: -1 for a dim or coordinate out of range, or
 * where `ranks` is NULL. */
DT_API int dt_mesh_group(const dt_mesh *mesh, int dim, const int *coord, int *ranks);

/** Writes the mesh as "dp=2,tp=2 [[0 1],[2 3]]" and returns the length needed, like
 * snprintf; `text` may be NULL. Not collective. Errors: none. */
DT_API int dt_mesh_print(const dt_mesh *mesh, char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
