/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* pipe2 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "mesh/topology_internal.h"

struct dti_binding {
    hwloc_bitmap_t cpus;
    hwloc_bitmap_t nodes; /* NULL: memory was not bound */
    hwloc_membind_policy_t policy;
};

/* The name of a file, as lstopo writes them. */
static bool is_recorded(const char *machine)
{
    const size_t n = machine != NULL ? strlen(machine) : 0;

    return n > 4 && strcmp(machine + n - 4, ".xml") == 0;
}

/* A loaded topology or NULL. */
static hwloc_topology_t load(const char *machine, bool devices)
{
    const bool recorded = is_recorded(machine);
    hwloc_topology_t hw;

    if (hwloc_topology_init(&hw) != 0) return NULL;
    if (recorded && hwloc_topology_set_xml(hw, machine) != 0) goto fail;
    if (machine != NULL && !recorded && hwloc_topology_set_synthetic(hw, machine) != 0) goto fail;
    if (devices) (void)hwloc_topology_set_io_types_filter(hw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(hw) != 0) goto fail;
    return hw;

fail:
    hwloc_topology_destroy(hw);
    return NULL;
}

/* The topology holds what the cpuset of the process allows; a binding (taskset, mpirun, an outer
 * run) narrows it. */
static hwloc_bitmap_t usable_cpus(hwloc_topology_t hw)
{
    hwloc_bitmap_t usable = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(hw));
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();

    if (usable != NULL && bound != NULL && hwloc_topology_is_thissystem(hw) &&
        hwloc_get_cpubind(hw, bound, HWLOC_CPUBIND_THREAD) == 0 &&
        hwloc_bitmap_intersects(usable, bound))
        (void)hwloc_bitmap_and(usable, usable, bound);
    hwloc_bitmap_free(bound);
    return usable;
}

static dt_status list_cores(dt_topology *t)
{
    const hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(t->hw, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    const int n = hwloc_get_nbobjs_by_type(t->hw, type);

    if (n <= 0) return DT_OK;
    DT_TRY(dti_alloc_array((size_t)n, sizeof(hwloc_obj_t), (void **)&t->cores));
    t->n_cores = 0;
    for (int i = 0; i < n; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(t->hw, type, (unsigned)i);
        if (hwloc_bitmap_intersects(core->cpuset, t->usable)) t->cores[t->n_cores++] = core;
    }
    return DT_OK;
}

/* From the last core to the first: a node ends where its next core does. */
static dt_status find_node_ends(dt_topology *t)
{
    if (t->cores == NULL) return DT_OK;
    DT_TRY(dti_alloc_array((size_t)t->n_cores + 1, sizeof *t->node_end, (void **)&t->node_end));
    for (int i = t->n_cores - 1; i >= 0; i--) {
        const bool alike = i + 1 < t->n_cores &&
                           hwloc_bitmap_isequal(t->cores[i + 1]->nodeset, t->cores[i]->nodeset);
        t->node_end[i] = alike ? t->node_end[i + 1] : i + 1;
    }
    return DT_OK;
}

static dt_status load_machine(const char *machine, bool devices, dt_topology **out);

/* Seconds of processor time that a file is read in: the largest machines take a few. */
enum { READING_S = 60 };

static void read_and_end(const char *machine, bool devices, int say)
{
    static const int deadly[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU };
    const struct rlimit no_core = { 0, 0 }, seconds = { READING_S, READING_S };
    const int nowhere = open("/dev/null", O_WRONLY);
    dt_topology *t;
    bool said;

    for (size_t i = 0; i < DT_COUNT(deadly); i++) (void)signal(deadly[i], SIG_DFL);
    (void)setrlimit(RLIMIT_CORE, &no_core);
    (void)setrlimit(RLIMIT_CPU, &seconds);
    if (nowhere >= 0) (void)dup2(nowhere, STDERR_FILENO);
    said = load_machine(machine, devices, &t) == DT_OK && write(say, "", 1) == 1;
    _exit(said ? 0 : 1);
}

/* Whether a recorded machine can be read at all. hwloc trusts such files, and some that are damaged
 * end the process that reads them: a child does so first. Without one, for want of processes, the
 * file is taken as good. */
static bool a_child_can_read(const char *machine, bool devices)
{
    char said;
    int ends[2];
    ssize_t n;
    pid_t child;

    if (pipe2(ends, O_CLOEXEC) != 0) return true;
    child = fork();
    if (child == 0) read_and_end(machine, devices, ends[1]);
    (void)close(ends[1]);
    do n = child > 0 ? read(ends[0], &said, 1) : 1;
    while (n < 0 && errno == EINTR);
    (void)close(ends[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    return n == 1;
}

/* Where nothing is named, hwloc's own variable may name a file in the place of this machine. */
static dt_status load_any(const char *machine, bool devices, dt_topology **out)
{
    const char *instead = machine == NULL ? getenv("HWLOC_XMLFILE") : NULL;

    *out = NULL;
    DT_CHECK(!is_recorded(machine) || access(machine, R_OK) == 0, DT_ERR_IO, "%s: %s", machine,
             strerror(errno));
    DT_CHECK(!is_recorded(machine) || a_child_can_read(machine, devices), DT_ERR_ARG,
             "%s is no machine that hwloc has recorded; \"lstopo machine.xml\" writes one",
             machine);
    DT_CHECK(instead == NULL || a_child_can_read(NULL, devices), DT_ERR_ARG,
             "HWLOC_XMLFILE names %s, which is no machine that hwloc has recorded; unset it, or "
             "let \"lstopo machine.xml\" write one",
             instead);
    return load_machine(machine, devices, out);
}

static dt_status load_machine(const char *machine, bool devices, dt_topology **out)
{
    dt_status st = DT_OK;
    dt_topology *t = NULL;
    long online;

    *out = NULL;
    if (machine != NULL && !is_recorded(machine)) DT_TRY(dti_synthetic_check(machine));
    DT_TRY(dti_new(sizeof *t, &t));
    t->hw = load(machine, devices);
    DT_CHECK_TO(fail, st, t->hw != NULL || !is_recorded(machine), DT_ERR_ARG,
                "%s is no machine that hwloc has recorded; \"lstopo machine.xml\" writes one",
                machine);
    DT_CHECK_TO(
        fail, st, t->hw != NULL || machine == NULL, DT_ERR_ARG,
        "hwloc does not understand the machine \"%s\"; \"pack:2 [numa] core:8 pu:2\" is one",
        machine);
    if (t->hw != NULL) {
        t->usable = usable_cpus(t->hw);
        DT_CHECK_TO(fail, st, t->usable != NULL, DT_ERR_MEMORY, "a set of cores could not be made");
        DT_TRY_TO(fail, st, list_cores(t));
        DT_TRY_TO(fail, st, find_node_ends(t));
    }
    if (t->n_cores == 0) {
        online = sysconf(_SC_NPROCESSORS_ONLN);
        t->n_cores = online > 0 && online < INT32_MAX ? (int)online : 1;
        dti_free(t->cores);
        t->cores = NULL;
    }
    *out = t;
    return DT_OK;

fail:
    dt_topology_release(&t);
    return st;
}

dt_status dt_topology_load(const char *machine, dt_topology **out)
{
    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    return load_any(machine, false, out);
}

dt_status dt_topology_load_with_gpus(const char *machine, dt_topology **out)
{
    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    return load_any(machine, true, out);
}

void dt_topology_release(dt_topology **topology)
{
    dt_topology *t = topology != NULL ? *topology : NULL;

    if (t == NULL) return;
    *topology = NULL;
    dti_free(t->first);
    dti_free((void *)t->cores);
    dti_free(t->node_end);
    hwloc_bitmap_free(t->usable);
    if (t->hw != NULL) hwloc_topology_destroy(t->hw);
    dti_free(t);
}

int dt_topology_n_cores(const dt_topology *t)
{
    return t != NULL ? t->n_cores : -1;
}

const char *dt_topology_processor(const dt_topology *t)
{
    const hwloc_obj_t package =
        t != NULL && t->hw != NULL ? hwloc_get_obj_by_type(t->hw, HWLOC_OBJ_PACKAGE, 0) : NULL;
    const char *model = package != NULL ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;

    return model != NULL ? model : "";
}

int dt_machine_cores(void)
{
    dt_topology *t;
    int n = 1;

    if (dt_topology_load(NULL, &t) == DT_OK) n = t->n_cores;
    dt_topology_release(&t);
    return n;
}

bool dti_topology_can_bind(const dt_topology *t)
{
    return t->cores != NULL && hwloc_topology_is_thissystem(t->hw) &&
           hwloc_topology_get_support(t->hw)->cpubind->set_thisthread_cpubind;
}

/* The first core of a NUMA node that has room for n, or core 0. */
static int roomy_node(const dt_topology *t, int n)
{
    for (int at = 0, end; t->cores != NULL && at < t->n_cores; at = end) {
        end = t->node_end[at];
        if (end - at >= n) return at;
    }
    return 0;
}

/* Where `n` cores begin that lie in one NUMA node: at `at`, or at the next node if they would
 * straddle, fit there, and enough cores are left for all `behind` (these included). */
static int keep_in_node(const dt_topology *t, int at, int n, int behind)
{
    const int node = t->cores != NULL ? t->node_end[at] : t->n_cores;

    if (at + n <= node || node + behind > t->n_cores) return at;
    return t->node_end[node] - node >= n ? node : at;
}

static void place_ranks(dt_topology *t, const dt_division *d)
{
    const bool spread = d->bind == DT_BIND_SPREAD;
    const int width = spread ? t->n_cores / t->n_ranks : t->threads;
    const int group = d->together > 0 && t->n_ranks % d->together == 0 ? d->together : 1;
    int at = spread ? 0 : roomy_node(t, t->n_ranks * width);

    for (int r = 0; r < t->n_ranks; r++) {
        const int behind = (t->n_ranks - r) * width;
        if (r % group == 0) at = keep_in_node(t, at, group * width, behind);
        at = keep_in_node(t, at, width, behind);
        t->first[r] = at;
        at += width;
    }
}

dt_status dt_topology_divide(dt_topology *t, const dt_division *d)
{
    DT_CHECK(t != NULL && d != NULL, DT_ERR_ARG, "topology or division is NULL");
    DT_CHECK(d->n_ranks >= 1 && d->threads >= 0, DT_ERR_ARG, "%d ranks of %d threads", d->n_ranks,
             d->threads);
    dti_free(t->first);
    t->first = NULL;
    t->n_ranks = d->n_ranks;
    t->threads = d->threads;
    if (t->threads == 0) t->threads = t->n_cores >= d->n_ranks ? t->n_cores / d->n_ranks : 1;
    if ((int64_t)t->n_ranks * t->threads > t->n_cores) return DT_OK;
    DT_TRY(dti_alloc_array((size_t)t->n_ranks, sizeof *t->first, (void **)&t->first));
    place_ranks(t, d);
    return DT_OK;
}

void dt_topology_clear(dt_topology *t)
{
    if (t == NULL) return;
    dti_free(t->first);
    t->first = NULL;
}

int dt_topology_threads(const dt_topology *t)
{
    return t != NULL ? t->threads : -1;
}

bool dt_topology_fits(const dt_topology *t)
{
    return t != NULL && t->first != NULL;
}

/* The usable cpus of `n` cores; the caller frees it. NULL without memory or cores. */
static hwloc_bitmap_t cpus_of(const dt_topology *t, int first, int n)
{
    hwloc_bitmap_t set;

    if (t->cores == NULL || t->first == NULL) return NULL;
    set = hwloc_bitmap_alloc();
    if (set == NULL) return NULL;
    for (int i = 0; i < n; i++) (void)hwloc_bitmap_or(set, set, t->cores[first + i]->cpuset);
    (void)hwloc_bitmap_and(set, set, t->usable);
    return set;
}

static hwloc_obj_t above(const dt_topology *t, int core, hwloc_obj_type_t type)
{
    return hwloc_get_ancestor_obj_by_type(t->hw, type, t->cores[core]);
}

static void describe_core(const dt_topology *t, int core, dt_core *out)
{
    const hwloc_obj_t package = above(t, core, HWLOC_OBJ_PACKAGE);
    const hwloc_obj_t l3 = above(t, core, HWLOC_OBJ_L3CACHE),
                      l2 = above(t, core, HWLOC_OBJ_L2CACHE);
    const hwloc_obj_t node = hwloc_get_next_obj_covering_cpuset_by_type(
        t->hw, t->cores[core]->cpuset, HWLOC_OBJ_NUMANODE, NULL);
    hwloc_bitmap_t cpus = hwloc_bitmap_dup(t->cores[core]->cpuset);

    if (package != NULL) out->package = (int)package->logical_index;
    if (l3 != NULL) out->l3 = (int)l3->logical_index;
    if (l3 != NULL) out->l3_bytes = (int64_t)l3->attr->cache.size;
    if (l2 != NULL) out->l2_bytes = (int64_t)l2->attr->cache.size;
    if (node != NULL) out->node = (int)node->logical_index;
    if (node != NULL) out->node_bytes = (int64_t)node->attr->numanode.local_memory;
    if (cpus == NULL) return;
    (void)hwloc_bitmap_and(cpus, cpus, t->usable);
    out->n_cpus = hwloc_bitmap_weight(cpus);
    (void)hwloc_bitmap_list_snprintf(out->cpus, sizeof out->cpus, cpus);
    hwloc_bitmap_free(cpus);
}

/* The rank that runs on a core, or -1. Ranks follow each other as their cores do. */
static int rank_on(const dt_topology *t, int core)
{
    int low = 0, high = t->first != NULL ? t->n_ranks : 0;

    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (core < t->first[middle])
            high = middle;
        else if (core >= t->first[middle] + t->threads)
            low = middle + 1;
        else
            return middle;
    }
    return -1;
}

void dt_topology_core(const dt_topology *t, int core, dt_core *out)
{
    int rank;

    if (out == NULL) return;
    *out = (dt_core){ .package = -1, .node = -1, .l3 = -1, .n_cpus = 1, .rank = -1, .worker = -1 };
    if (core < 0 || core >= dt_topology_n_cores(t)) return;
    if (t->cores != NULL) describe_core(t, core, out);
    rank = rank_on(t, core);
    if (rank < 0) return;
    out->rank = rank;
    out->worker = core - t->first[rank];
}

void dti_topology_cores_text(const dt_topology *t, int rank, char text[DT_CORES_TEXT_BYTES])
{
    hwloc_bitmap_t set = t->first != NULL ? cpus_of(t, t->first[rank], t->threads) : NULL;

    text[0] = '\0';
    if (set == NULL) return;
    (void)hwloc_bitmap_list_snprintf(text, DT_CORES_TEXT_BYTES, set);
    hwloc_bitmap_free(set);
}

bool dti_topology_bind(const dt_topology *t, int rank, int worker)
{
    hwloc_bitmap_t set;
    bool bound;

    if (!dti_topology_can_bind(t) || t->first == NULL) return false;
    set = cpus_of(t, t->first[rank] + worker, 1);
    bound = set != NULL && hwloc_set_cpubind(t->hw, set, HWLOC_CPUBIND_THREAD) == 0;
    hwloc_bitmap_free(set);
    return bound;
}

/* Without HWLOC_MEMBIND_STRICT a full node spills over into the others instead of failing. */
bool dti_topology_bind_memory(const dt_topology *t, int rank)
{
    hwloc_bitmap_t set;
    bool bound;

    if (!dti_topology_can_bind(t) || t->first == NULL) return false;
    if (hwloc_get_nbobjs_by_type(t->hw, HWLOC_OBJ_NUMANODE) < 2) return true;
    set = cpus_of(t, t->first[rank], t->threads);
    bound =
        set != NULL && hwloc_set_membind(t->hw, set, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_THREAD) == 0;
    hwloc_bitmap_free(set);
    return bound;
}

void dti_topology_unbind(const dt_topology *t)
{
    hwloc_bitmap_t set;

    if (!dti_topology_can_bind(t)) return;
    set = cpus_of(t, 0, t->n_cores);
    if (set != NULL) (void)hwloc_set_cpubind(t->hw, set, HWLOC_CPUBIND_THREAD);
    hwloc_bitmap_free(set);
}

dti_binding *dti_binding_save(const dt_topology *t)
{
    dti_binding *b = NULL;

    if (!dti_topology_can_bind(t) || dti_new(sizeof *b, &b) != DT_OK) return NULL;
    b->cpus = hwloc_bitmap_alloc();
    b->nodes = hwloc_bitmap_alloc();
    if (b->cpus == NULL || b->nodes == NULL ||
        hwloc_get_cpubind(t->hw, b->cpus, HWLOC_CPUBIND_THREAD) != 0) {
        hwloc_bitmap_free(b->cpus);
        hwloc_bitmap_free(b->nodes);
        dti_free(b);
        return NULL;
    }
    if (hwloc_get_membind(t->hw, b->nodes, &b->policy,
                          HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) != 0) {
        hwloc_bitmap_free(b->nodes);
        b->nodes = NULL;
    }
    return b;
}

void dti_binding_restore(const dt_topology *t, dti_binding *b)
{
    if (b == NULL) return;
    (void)hwloc_set_cpubind(t->hw, b->cpus, HWLOC_CPUBIND_THREAD);
    if (b->nodes != NULL && hwloc_get_nbobjs_by_type(t->hw, HWLOC_OBJ_NUMANODE) >= 2)
        (void)hwloc_set_membind(t->hw, b->nodes, b->policy,
                                HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET);
    hwloc_bitmap_free(b->cpus);
    hwloc_bitmap_free(b->nodes);
    dti_free(b);
}
