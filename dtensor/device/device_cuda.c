/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU as a device: the calls of base/cuda_api.h on this rank's stream. Operators without a kernel
 * there run on the CPU, with copies there and back. */
#include <string.h>

#include "base/memory.h"
#include "dtensor/device/cuda_kernels.h"
#include "dtensor/device/device.h"
#include "dtensor/device/upload.h"
#include "dtensor/ops/fusion.h"
#include "dtensor/ops/op_rules.h"
#include "dtensor/optimize.h"
#include "mesh/gpu.h"

enum {
    ROW_SLOTS = 512,       /* a power of two, more than twice the operators */
    WRITE_BYTES = 64 << 10 /* a pass's ids and positions, and more */
};

/* An operator of the library and its kernel here; NULL: it has none. */
typedef struct row_slot {
    const dt_op *op;
    dti_cuda_kernel run;
} row_slot;

typedef struct dti_cuda_device {
    const dti_cuda_module *module;
    dti_cuda *c;
    dti_cuda_world *world;
    bool joined; /* with other ranks */
    bool recording;
    dti_upload *writes;   /* of few bytes at a time; NULL: not joined */
    dti_storage *scratch; /* of a user's kernel that is being started */
    row_slot rows[ROW_SLOTS];
} dti_cuda_device;

static dt_status check(const dti_cuda_device *g, int failed)
{
    if (failed != 0) DT_FAIL(DT_ERR_DEVICE, "%s", g->module->why());
    return DT_OK;
}

static dt_status refuse_recording(const dti_cuda_device *g, const char *what)
{
    DT_CHECK(!g->recording, DT_ERR_UNSUPPORTED, "%s cannot be part of a recorded pass", what);
    return DT_OK;
}

/* Giving memory back, and bytes from the host, may wait for the stream without a deadline. Where
 * its kernels wait for other ranks, whoever looks after these waits first. */
static dt_status wait_for_ranks(const dti_cuda_device *g)
{
    if (g->joined) DT_TRY(dti_cuda_world_sync(g->world));
    return DT_OK;
}

/* --- bytes ------------------------------------------------------------------------------------ */

static dt_status take_bytes(void *arg, size_t bytes, void **out)
{
    const dti_cuda_device *g = ((dti_device *)arg)->cuda;

    DT_TRY(refuse_recording(g, "taking memory"));
    DT_CHECK(g->module->alloc(g->c, bytes, DTI_CUDA_DEVICE, out) == 0, DT_ERR_MEMORY,
             "%zu bytes on the GPU: %s", bytes, g->module->why());
    if (g->module->clear(g->c, *out, bytes) == 0) return DT_OK;
    g->module->release(g->c, DTI_CUDA_DEVICE, *out);
    *out = NULL;
    DT_FAIL(DT_ERR_DEVICE, "%s", g->module->why());
}

static void give_bytes(void *arg, void *data, size_t bytes)
{
    const dti_cuda_device *g = ((dti_device *)arg)->cuda;

    (void)bytes;
    if (!g->recording) (void)wait_for_ranks(g);
    g->module->release(g->c, DTI_CUDA_DEVICE, data);
}

/* Pinning waits for the device. */
static dt_status take_pinned(void *arg, size_t bytes, void **out)
{
    const dti_cuda_device *g = ((dti_device *)arg)->cuda;

    DT_TRY(refuse_recording(g, "taking memory"));
    DT_TRY(wait_for_ranks(g));
    DT_CHECK(g->module->alloc(g->c, bytes, DTI_CUDA_PINNED, out) == 0, DT_ERR_MEMORY,
             "%zu bytes of the host for the GPU: %s", bytes, g->module->why());
    if (bytes > 0) memset(*out, 0, bytes);
    return DT_OK;
}

static void give_pinned(void *arg, void *data, size_t bytes)
{
    const dti_cuda_device *g = ((dti_device *)arg)->cuda;

    (void)bytes;
    if (!g->recording) (void)wait_for_ranks(g);
    g->module->release(g->c, DTI_CUDA_PINNED, data);
}

/* A pass begins with writes of few bytes, which need not wait for the one before: only if all
 * buffers are under way, whoever looks after the ranks waits. */
static dt_status write_small(dti_device *d, void *to, const void *from_host, size_t bytes)
{
    dti_cuda_device *g = d->cuda;
    void *room;

    if (!dti_upload_ready(g->writes, bytes)) DT_TRY(wait_for_ranks(g));
    DT_TRY(dti_upload_room(g->writes, "what the host writes", bytes, &room));
    memcpy(room, from_host, bytes);
    DT_TRY(dti_upload_send(g->writes, to));
    return DT_OK;
}

static dt_status write_bytes(dti_device *d, void *to, const void *from_host, size_t bytes)
{
    const dti_cuda_device *g = d->cuda;

    DT_TRY(refuse_recording(g, "bytes of the host"));
    if (bytes == 0) return DT_OK;
    DT_TRY(dti_fusion_settle(d));
    if (g->joined && bytes <= WRITE_BYTES) {
        DT_TRY(write_small(d, to, from_host, bytes));
        return DT_OK;
    }
    DT_TRY(wait_for_ranks(g));
    DT_TRY(check(g, g->module->copy(g->c, to, from_host, bytes, DTI_CUDA_UP)));
    return DT_OK;
}

static dt_status upload(dti_device *d, dti_upload **out)
{
    const dti_cuda_device *g = d->cuda;

    *out = NULL;
    DT_TRY(refuse_recording(g, "bytes of the host"));
    DT_TRY(dti_fusion_settle(d));
    DT_TRY(wait_for_ranks(g));
    DT_TRY(dti_upload_open(dti_runtime_gpu(d->rt), 0, g->world->host->timeout_ms, out));
    return DT_OK;
}

/* Whoever looks at contents also hears what kernels found wrong in them. */
static dt_status read_bytes(dti_device *d, void *to_host, const void *from, size_t bytes)
{
    const dti_cuda_device *g = d->cuda;

    DT_TRY(refuse_recording(g, "reading by the host"));
    DT_TRY(dti_fusion_settle(d));
    DT_TRY(dti_cuda_world_sync(g->world));
    if (bytes > 0) DT_TRY(check(g, g->module->copy(g->c, to_host, from, bytes, DTI_CUDA_DOWN)));
    DT_TRY(check(g, g->module->sync(g->c)));
    return DT_OK;
}

static dt_status copy_bytes(dti_device *d, void *to, const void *from, size_t bytes)
{
    const dti_cuda_device *g = d->cuda;

    DT_TRY(dti_fusion_settle(d));
    if (bytes > 0) DT_TRY(check(g, g->module->copy(g->c, to, from, bytes, DTI_CUDA_WITHIN)));
    return DT_OK;
}

static dt_status copy_box(dti_device *d, void *to, const dti_box *to_box, const void *from,
                          const dti_box *from_box, size_t element_bytes)
{
    const dti_cuda_box there = dti_cuda_box_of(to_box), here = dti_cuda_box_of(from_box);
    const dti_cuda_device *g = d->cuda;

    DT_TRY(dti_fusion_settle(d));
    if (dti_box_count(to_box) > 0)
        DT_TRY(check(g, g->module->copy_box(g->c, to, &there, from, &here, element_bytes)));
    return DT_OK;
}

static dt_status fill(dti_device *d, void *to, int64_t n, const void *element, size_t element_bytes)
{
    const dti_cuda_device *g = d->cuda;

    DT_TRY(dti_fusion_settle(d));
    DT_TRY(check(g, g->module->fill(g->c, to, n, element, element_bytes)));
    return DT_OK;
}

static dt_status fill_random(dti_device *d, void *to, const dti_box *global,
                             const struct dti_random_fill *how)
{
    const dti_cuda_box there = dti_cuda_box_of(global);
    const dti_cuda_device *g = d->cuda;

    DT_TRY(dti_fusion_settle(d));
    DT_TRY(check(g, g->module->kernels->fill_random(g->c, to, &there, how)));
    return DT_OK;
}

static dt_status divide(dti_device *d, dt_local *x, int64_t divisor)
{
    const dti_cuda_device *g = d->cuda;
    const int64_t n = dti_local_count(x);

    DT_TRY(dti_fusion_settle(d));
    if (n > 0) DT_TRY(check(g, g->module->divide(g->c, x->data, n, (int)x->dtype, divisor)));
    return DT_OK;
}

/* --- kernels ---------------------------------------------------------------------------------- */

static row_slot *slot_of(dti_cuda_device *g, const dt_op *op)
{
    size_t at = ((uintptr_t)op >> 4) * 0x9e3779b97f4a7c15u >> 32;

    for (;; at++) {
        row_slot *slot = &g->rows[at % ROW_SLOTS];
        if (slot->op == op || slot->op == NULL) return slot;
    }
}

/* By the row's name; or by what stands before its number ("concat" of "concat_3"). */
static dti_cuda_kernel kernel_called(const dti_cuda_kernels *kernels, const char *name)
{
    for (int k = 0; k < kernels->n_rows; k++) {
        const char *kernel = kernels->rows[k].name, *rest = name + strlen(kernel);
        if (strncmp(name, kernel, strlen(kernel)) != 0) continue;
        if (*rest == '\0' ||
            (rest[0] == '_' && rest[1] >= '0' && rest[1] <= '9' && rest[2] == '\0'))
            return kernels->rows[k].run;
    }
    return NULL;
}

/* Rows that have one kernel on the CPU, as an operand more or another transposition, have one here
 * too. */
static dti_cuda_kernel kernel_of(const dti_cuda_kernels *kernels, const dt_op *op)
{
    dti_cuda_kernel run = kernel_called(kernels, op->name);

    for (int i = 0; run == NULL && op->cpu != NULL && i < dti_op_table_size; i++)
        if (dti_op_table[i]->cpu == op->cpu) run = kernel_called(kernels, dti_op_table[i]->name);
    return run;
}

static void find_row(dti_cuda_device *g, const dt_op *op)
{
    row_slot *slot = slot_of(g, op);

    slot->op = op;
    slot->run = kernel_of(g->module->kernels, op);
}

static void find_rows(dti_cuda_device *g)
{
    DT_ASSERT(2 * (dti_op_table_size + DTI_N_STEP_ROWS) <= ROW_SLOTS);
    for (int i = 0; i < dti_op_table_size; i++) find_row(g, dti_op_table[i]);
    for (int i = 0; i < DTI_N_STEP_ROWS; i++) find_row(g, dti_step_rows[i]);
}

/* Bytes of a piece; 0 for one without elements. */
static size_t bytes_of(const dt_local *x)
{
    return (size_t)dti_local_count(x) * dt_dtype_size(x->dtype);
}

/* A kernel of the host on copies. A result in place of an operand is one copy for both. */
static dt_status run_on_copies(dti_device *d, const dt_op *op, const dt_kargs *args,
                               dti_arena *arena)
{
    dt_local in[DT_OP_MAX_IN], out[DT_OP_MAX_OUT];
    dt_kargs host = *args;

    for (int i = 0; i < args->n_in; i++) {
        in[i] = args->in[i];
        DT_TRY(dti_arena_alloc(arena, bytes_of(&in[i]) + 1, &in[i].data));
        DT_TRY(read_bytes(d, in[i].data, args->in[i].data, bytes_of(&in[i])));
    }
    for (int k = 0; k < args->n_out; k++) {
        void *shared = NULL;
        out[k] = args->out[k];
        for (int i = 0; i < args->n_in && out[k].data != NULL; i++)
            if (args->in[i].data == out[k].data) shared = in[i].data;
        if (shared == NULL) DT_TRY(dti_arena_alloc(arena, bytes_of(&out[k]) + 1, &shared));
        out[k].data = shared;
    }
    host.in = in;
    host.out = out;
    host.cpu = d->cpu;
    host.stream = NULL;
    DT_TRY(op->cpu(&host));
    for (int k = 0; k < args->n_out; k++)
        DT_TRY(write_bytes(d, args->out[k].data, out[k].data, bytes_of(&out[k])));
    return DT_OK;
}

static dt_status run_on_host(dti_device *d, const dt_op *op, const dt_kargs *args)
{
    dti_arena arena = DTI_ARENA_INIT;
    const dt_status st = run_on_copies(d, op, args, &arena);

    d->n_on_host++;
    dti_arena_free(&arena);
    return st == DT_OK ? st : dti_error_frame(st, __func__, __FILE__, __LINE__);
}

/* Scratch of a user's kernel. What comes from the pool and goes back there after the kernel was
 * started is safe: the stream is in order, and so is whoever gets these bytes next. */
static dt_status take_scratch(void *arg, size_t bytes, void **out)
{
    dti_device *d = arg;
    dti_storage *fresh;

    DT_TRY(dti_storage_create(d->memory, bytes > 0 ? bytes : 1, true, &fresh));
    dti_storage_release(d->cuda->scratch); /* asked again: the one before is over */
    d->cuda->scratch = fresh;
    *out = fresh->data;
    return DT_OK;
}

static dt_status run_own(dti_device *d, const dt_op *op, dt_kargs *args)
{
    dti_cuda_device *g = d->cuda;
    dt_status st;

    DT_TRY(refuse_recording(g, op->name)); /* nobody knows what a user's kernel asks the host */
    DT_TRY(dti_fusion_settle(d));
    args->stream = g->module->stream(g->c);
    DT_TRY(check(g, args->stream == NULL));
    args->cpu = d->cpu;
    dti_cpu_lend_scratch(d->cpu, take_scratch, d);
    st = op->cuda(args);
    dti_cpu_lend_scratch(d->cpu, NULL, NULL);
    dti_storage_release(g->scratch);
    g->scratch = NULL;
    return st == DT_OK ? st : dti_error_frame(st, __func__, __FILE__, __LINE__);
}

static dt_status run_beside(dti_device *d, const dt_op *op, dt_kargs *args)
{
    dti_cuda_device *g = d->cuda;
    const row_slot *slot = slot_of(g, op);

    if (op->cuda != NULL) {
        DT_TRY(run_own(d, op, args));
    } else if (slot->op == op && slot->run != NULL) {
        DT_TRY(check(g, slot->run(g->c, args)));
    } else {
        DT_TRY(run_on_host(d, op, args));
    }
    return DT_OK;
}

static dt_status run(dti_device *d, const dt_op *op, dt_kargs *args)
{
    DT_TRY(dti_fusion_settle(d));
    DT_TRY(run_beside(d, op, args));
    return DT_OK;
}

static dt_status run_fused(dti_device *d, dti_fused which, const dti_fused_chain *chains, int n)
{
    const dti_cuda_device *g = d->cuda;

    DT_TRY(check(g, g->module->kernels->fused[which](g->c, chains, n)));
    return DT_OK;
}

static dt_status communicate(dti_device *d, dti_comm *comm, const dti_comm_call *call)
{
    const dti_cuda_device *g = d->cuda;
    dti_comm_call on_stream = *call;

    DT_CHECK(!g->recording || dti_cuda_can_record(comm, call), DT_ERR_UNSUPPORTED,
             "%s on \"%s\" cannot be part of a recorded pass", dti_comm_op_name(call->op),
             comm->name);
    DT_TRY(dti_fusion_settle(d));
    on_stream.stream = g->module->stream(g->c);
    DT_TRY(check(g, on_stream.stream == NULL)); /* NULL would be memory of the host */
    DT_TRY(dti_comm_run(comm, &on_stream));
    return DT_OK;
}

/* --- recording -------------------------------------------------------------------------------- */

static bool records(const dti_device *d)
{
    return dti_cuda_world_records(d->cuda->world);
}

static void rehearse(dti_device *d, bool on)
{
    dti_fusion_settle_unheard(d);
    dti_cuda_world_set(d->cuda->world, on ? DTI_CUDA_REHEARSES : DTI_CUDA_RUNS);
}

static dt_status record_begin(dti_device *d)
{
    DT_TRY(dti_fusion_settle(d));
    DT_TRY(check(d->cuda, d->cuda->module->capture_begin(d->cuda->c)));
    dti_cuda_world_set(d->cuda->world, DTI_CUDA_RECORDS_GRAPH);
    d->cuda->recording = true;
    return DT_OK;
}

static dt_status record_end(dti_device *d, void **recording)
{
    const dt_status held = dti_fusion_settle(d); /* what is held is part of the recording */
    const dt_error why = *dt_last_error();
    dti_cuda_graph *graph = NULL;

    *recording = NULL;
    d->cuda->recording = false;
    dti_cuda_world_set(d->cuda->world, DTI_CUDA_RUNS);
    DT_TRY(check(d->cuda, d->cuda->module->capture_end(d->cuda->c, &graph)));
    if (held == DT_OK) {
        *recording = graph;
        return DT_OK;
    }
    d->cuda->module->graph_destroy(graph);
    dti_error_restore(&why);
    return dti_error_frame(held, __func__, __FILE__, __LINE__);
}

static dt_status play(dti_device *d, dti_comm *comm, void *recording)
{
    DT_TRY(dti_fusion_settle(d));
    DT_TRY(dti_cuda_before_play(comm));
    DT_TRY(check(d->cuda, d->cuda->module->graph_launch(d->cuda->c, recording)));
    DT_TRY(dti_cuda_after_play(comm));
    return DT_OK;
}

static void forget(dti_device *d, void *recording)
{
    d->cuda->module->graph_destroy(recording);
}

/* The GPU is the runtime's. */
static void close_cuda(dti_device *d)
{
    const dt_error before = *dt_last_error();

    if (d->cuda->writes != NULL) {
        const dt_status st = dti_upload_close(&d->cuda->writes, wait_for_ranks(d->cuda));
        if (st != DT_OK) dti_error_restore(&before);
    }
    dti_free(d->cuda);
    d->cuda = NULL;
}

const dti_device_ops dti_device_cuda = {
    .name = "cuda",
    .host_visible = false,
    .write = write_bytes,
    .read = read_bytes,
    .upload = upload,
    .copy = copy_bytes,
    .copy_box = copy_box,
    .fill = fill,
    .fill_random = fill_random,
    .divide = divide,
    .run = run,
    .run_beside = run_beside,
    .run_fused = run_fused,
    .communicate = communicate,
    .records = records,
    .rehearse = rehearse,
    .record_begin = record_begin,
    .record_end = record_end,
    .play = play,
    .forget = forget,
    .close = close_cuda,
};

/* All of it now: later, kernels of other ranks may wait for this one, and pinning for them. */
static dt_status open_writes(dti_cuda_device *g, const dti_cuda_place *gpu)
{
    DT_TRY(dti_upload_open(gpu, WRITE_BYTES, g->world->host->timeout_ms, &g->writes));
    DT_TRY(dti_upload_pin(g->writes));
    return DT_OK;
}

dt_status dti_device_cuda_open(dti_device *d)
{
    const dti_cuda_place *gpu = dti_runtime_gpu(d->rt);
    dti_cuda_device *g;

    DT_TRY(dti_new(sizeof *g, &g));
    g->module = gpu->module;
    g->c = gpu->cuda;
    g->world = dti_runtime_cuda(d->rt);
    g->joined = dt_runtime_size(d->rt) > 1;
    find_rows(g);
    d->cuda = g;
    d->ops = &dti_device_cuda;
    d->allocator = (dti_allocator){ take_bytes, give_bytes, d };
    d->pinned = (dti_allocator){ take_pinned, give_pinned, d };
    if (g->joined) DT_TRY(open_writes(g, gpu));
    return DT_OK;
}
