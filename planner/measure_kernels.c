/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels take: steps of small Llamas, whose every kernel is noted, on as many ranks as there
 * are cores for, all at the same time. What a step takes beside its kernels is what calls cost. */
#include <dtensor/architectures.h>
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <dtensor/model_training.h>
#include <dtensor/ops.h>
#include <dtensor/optimizers.h>
#include <dtensor/weights.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/numbers.h"
#include "base/sync.h"
#include "dtensor/device/device.h"
#include "models/architectures/decoder_block.h"
#include "planner/measure.h"

enum { MOST_NOTES = 96, MOST_STEPS = 15, TURNS = 3, CONFIG_BYTES = 512 };

/* Two calls of a kernel are one size if neither operations nor bytes differ by more, as log2. */
static const double SAME_SIZE = 0.4;

/* Of the time, a rank's thread has a core at least where nothing else runs. */
static const double QUIET = 0.9;

/* A large addition is what memory is measured by: elements of an operand. */
enum { LARGE = 4 << 20 };

/* --- models ----------------------------------------------------------------------------------- */

/* Widths as planned models and their pieces have them; few rows and many. */
static const struct size {
    int64_t hidden, ff, heads, kv, vocab, layers, batch, tokens;
} sizes[] = {
    { 64, 176, 4, 2, 256, 2, 1, 32 },     { 128, 344, 4, 4, 512, 2, 1, 64 },
    { 128, 344, 4, 2, 1024, 2, 4, 128 },  { 256, 688, 4, 2, 2048, 2, 1, 32 },
    { 256, 688, 4, 4, 2048, 2, 2, 128 },  { 512, 1376, 8, 4, 4096, 1, 1, 64 },
    { 512, 1376, 8, 8, 4096, 1, 4, 128 }, { 1024, 2752, 16, 8, 8192, 1, 1, 256 },
};

static dt_status read_config(dti_decoder *m, const struct size *z, dt_model_info *info)
{
    char text[CONFIG_BYTES];
    dti_json_doc doc;
    dt_status st;
    const int n =
        snprintf(text, sizeof text,
                 "{\"hidden_size\": %lld, \"intermediate_size\": %lld, \"vocab_size\": %lld,"
                 " \"num_attention_heads\": %lld, \"num_key_value_heads\": %lld,"
                 " \"num_hidden_layers\": %lld, \"max_position_embeddings\": 4096}",
                 (long long)z->hidden, (long long)z->ff, (long long)z->vocab, (long long)z->heads,
                 (long long)z->kv, (long long)z->layers);

    DT_TRY(dti_json_parse("calibration", text, (size_t)n, &doc));
    st = dti_arch_llama.read_config(m, &doc.root, info);
    dti_json_free(&doc);
    return st;
}

/* Where a model without a folder reads what its folder would say. */
static dt_status add_layers(void *self, const dt_model_info *info, dt_builder *builder)
{
    dti_decoder *m = self;
    const struct size z = { info->hidden_size,
                            m->ff,
                            info->n_heads,
                            info->n_kv_heads,
                            info->vocab_size,
                            info->n_layers,
                            1,
                            1 };
    dt_model_info read = *info;

    DT_TRY(read_config(m, &z, &read));
    DT_TRY(dti_decoder_add_layers(m, info, builder));
    return DT_OK;
}

static dt_status make_model(dt_mesh *mesh, const dt_arch *arch, const struct size *z,
                            dt_dtype dtype, dt_model **out)
{
    dti_decoder self = { .ff = 0 }, plain = { .ff = z->ff };
    dt_model_info info = { .n_eos = 0 };
    dt_status st = read_config(&self, z, &info);

    dti_decoder_release(&self);
    DT_TRY(st);
    info.dtype = dtype;
    DT_TRY(dt_model_create(mesh, arch, &plain, &info, NULL, out));
    DT_TRY(dt_layers_init(dt_model_layers(*out), dtype, 1, NULL, 0));
    return DT_OK;
}

/* --- notes ------------------------------------------------------------------------------------ */

/* Calls of one kernel on one size, in one step and over steps. */
typedef struct noted {
    const char *kernel;
    dt_dtype dtype;
    dt_op_work work;
    double seconds; /* of the step's n calls */
    int n;
    double means[MOST_STEPS];
    int n_means;
} noted;

/* Of one size in one dtype. */
typedef struct notebook {
    noted rows[MOST_NOTES];
    int n;
    double seconds;                               /* of the step's kernels */
    int64_t calls;                                /* of the step */
    double bare[MOST_STEPS], kernels[MOST_STEPS]; /* of steps: without notes, and what they noted */
    int n_steps;
} notebook;

static double note(void *arg, const char *kernel, dt_dtype dtype, const dt_op_work *work,
                   double seconds)
{
    notebook *b = arg;
    int i = 0;

    b->calls++;
    b->seconds += seconds;
    if (work->flops == 0 && work->bytes == 0) return 0;
    while (i < b->n &&
           (b->rows[i].work.flops != work->flops || b->rows[i].work.bytes != work->bytes ||
            b->rows[i].dtype != dtype || strcmp(b->rows[i].kernel, kernel) != 0))
        i++;
    if (i == MOST_NOTES) return 0;
    if (i == b->n) b->rows[b->n++] = (noted){ .kernel = kernel, .dtype = dtype, .work = *work };
    b->rows[i].seconds += seconds;
    b->rows[i].n++;
    return seconds;
}

static void end_step(notebook *b)
{
    for (int i = 0; i < b->n; i++) {
        noted *r = &b->rows[i];
        if (r->n > 0 && r->n_means < MOST_STEPS) r->means[r->n_means++] = r->seconds / r->n;
        r->seconds = 0;
        r->n = 0;
    }
}

/* A size that is there already becomes the mean of both. */
static void keep(dt_machine *m, noted *r)
{
    const double seconds = dti_quick_of(r->means, r->n_means);
    int i = 0;

    for (; i < m->n_rates; i++) {
        dt_rate *k = &m->rate[i];
        if (k->dtype == r->dtype && strcmp(k->kernel, r->kernel) == 0 &&
            fabs(log2((1 + k->flops) / (1 + r->work.flops))) < SAME_SIZE &&
            fabs(log2((1 + k->bytes) / (1 + r->work.bytes))) < SAME_SIZE) {
            k->flops = (k->flops + r->work.flops) / 2;
            k->bytes = (k->bytes + r->work.bytes) / 2;
            k->seconds = (k->seconds + seconds) / 2;
            return;
        }
    }
    if (m->n_rates == DT_MAX_RATES || strlen(r->kernel) >= DT_KERNEL_BYTES) return;
    m->rate[m->n_rates] = (dt_rate){
        .dtype = r->dtype, .flops = r->work.flops, .bytes = r->work.bytes, .seconds = seconds
    };
    (void)snprintf(m->rate[m->n_rates++].kernel, DT_KERNEL_BYTES, "%s", r->kernel);
}

/* --- steps ------------------------------------------------------------------------------------ */

static const dt_dtype dtypes[] = { DT_F32, DT_BF16 };

enum { N_BOOKS = 2 * sizeof sizes / sizeof sizes[0] };

typedef struct job {
    double seconds;
    dt_machine *machine; /* from here on: rank 0's */
    notebook books[N_BOOKS];
    bool more; /* another step is to be made; read after a barrier */
    double bytes_per_second;
    double wanted, had; /* seconds of steps, and those of them on a core */
} job;

/* What a rank has for its steps. */
typedef struct trainer {
    job *job;
    dt_runtime *rt;
    dt_mesh *all, *mesh; /* of all ranks, of this one alone: whole steps of its own */
    dti_device *device;
    dt_tape *tape;
    dt_model *model;
    dt_optimizer *optimizer;
    int32_t *ids;
    bool root;
} trainer;

/* Of the calling thread on a core. */
static double on_core(void)
{
    struct timespec t = { 0, 0 };

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static dt_status step(trainer *r, const struct size *z)
{
    const dt_loss_options loss_options = DT_LOSS_OPTIONS_INIT;
    dt_tensor *ids, *loss;

    dt_tape_reset(r->tape);
    dt_tape_record(r->tape, dt_optimizer_gradients(r->optimizer));
    ids = dt_model_ids(r->tape, r->model, r->ids, z->batch, z->tokens);
    loss = dt_model_loss(r->tape, r->model, ids, ids, &loss_options);
    dt_optimizer_backward(r->optimizer, r->tape, loss, true, NULL);
    DT_TRY(dt_tape_status(r->tape));
    DT_TRY(dt_optimizer_step(r->optimizer, 1e-4, NULL));
    return DT_OK;
}

/* Steps by turns with notes and without: what notes cost is no part of a call's time. */
static dt_status measure_steps(trainer *r, const struct size *z, notebook *book, double seconds)
{
    const dti_meter meter = { note, book };
    const int most = book->n_steps + MOST_STEPS / TURNS;
    job *j = r->job;

    DT_TRY(step(r, z)); /* caches of decisions and blocks fill */
    const int64_t begin = dti_now_ns();
    if (r->root) j->more = true;
    for (;;) {
        double bare, had;
        int64_t from;
        DT_TRY(dt_barrier(r->all, NULL));
        if (!j->more) break;
        had = on_core();
        from = dti_now_ns();
        DT_TRY(step(r, z));
        bare = (double)(dti_now_ns() - from) * 1e-9;
        had = on_core() - had;
        DT_TRY(dt_barrier(r->all, NULL));
        if (r->root) {
            r->device->meter = &meter;
            book->seconds = 0;
            book->calls = 0;
        }
        DT_TRY(step(r, z));
        r->device->meter = NULL;
        if (!r->root) continue;
        end_step(book);
        book->bare[book->n_steps] = bare;
        j->wanted += bare;
        j->had += had;
        book->kernels[book->n_steps++] = book->seconds;
        j->more = book->n_steps < most && (double)(dti_now_ns() - begin) * 1e-9 < seconds;
    }
    return DT_OK;
}

static dt_status measure_size(trainer *r, const dt_arch *arch, const struct size *z, dt_dtype dtype,
                              notebook *book, double seconds)
{
    const dt_optimizer_options adamw = DT_OPTIMIZER_OPTIONS_INIT;
    const int64_t n = z->batch * z->tokens;
    dt_status st = DT_OK;

    DT_TRY(dti_alloc_array((size_t)n, sizeof *r->ids, (void **)&r->ids));
    for (int64_t i = 0; i < n; i++) r->ids[i] = (int32_t)(i * 7919 % z->vocab);
    DT_TRY_TO(done, st, make_model(r->mesh, arch, z, dtype, &r->model));
    DT_TRY_TO(done, st, dt_optimizer_create(dt_model_layers(r->model), &adamw, &r->optimizer));
    DT_TRY_TO(done, st, measure_steps(r, z, book, seconds));
done:
    dt_tape_reset(r->tape);
    dt_optimizer_release(&r->optimizer);
    dt_model_release(&r->model);
    dti_free(r->ids);
    r->ids = NULL;
    return st;
}

/* Of all ranks at once, and of memory: beyond their caches. */
static dt_status measure_memory(trainer *r)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t shape[] = { LARGE };
    double times[MOST_STEPS];
    dt_tensor *x = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_rand(r->mesh, whole, DT_F32, 1, shape, (dt_random){ 1, 0 }, &x));
    for (int i = -1; i < MOST_STEPS; i++) {
        DT_TRY_TO(done, st, dt_barrier(r->all, NULL));
        const int64_t from = dti_now_ns();
        (void)dt_add(r->tape, x, x);
        if (i >= 0) times[i] = (double)(dti_now_ns() - from) * 1e-9;
        DT_TRY_TO(done, st, dt_tape_status(r->tape));
        dt_tape_reset(r->tape);
    }
    if (r->root)
        r->job->bytes_per_second = 2.0 * LARGE * sizeof(float) / dti_quick_of(times, MOST_STEPS);
done:
    dt_tensor_release(&x);
    return st;
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    static const char *const own = "tp";
    dt_arch arch = dti_arch_llama;
    trainer r = { .job = arg, .rt = rt, .root = dt_runtime_rank(rt) == 0 };
    const int64_t begin = dti_now_ns();
    char mesh[64];
    dt_status st = DT_OK;

    arch.add_layers = add_layers;
    (void)snprintf(mesh, sizeof mesh, "own=%d,tp=1", dt_runtime_size(rt));
    DT_TRY(dt_mesh_create(rt, mesh, &r.all));
    DT_TRY_TO(done, st, dt_mesh_slice(r.all, &own, 1, &r.mesh));
    DT_TRY_TO(done, st, dti_device_of(rt, &r.device));
    DT_TRY_TO(done, st, dt_tape_create(rt, &r.tape));
    DT_TRY_TO(done, st, measure_memory(&r));
    /* more than once: what others take of the machine is then not one size's alone */
    for (size_t i = 0; i < (size_t)TURNS * N_BOOKS; i++) {
        const size_t at = i % N_BOOKS;
        double left = r.job->seconds - (double)(dti_now_ns() - begin) * 1e-9;
        DT_TRY_TO(done, st, dt_broadcast(r.all, NULL, &left, 1, DT_F64, 0));
        if (left > 0 || i < DT_COUNT(dtypes))
            DT_TRY_TO(done, st,
                      measure_size(&r, &arch, &sizes[at / 2], dtypes[at % 2], &r.job->books[at],
                                   left / (double)((size_t)TURNS * N_BOOKS - i)));
    }
done:
    dt_tape_release(&r.tape);
    dt_mesh_release(&r.mesh);
    dt_mesh_release(&r.all);
    return st;
}

/* The most that any call reached. */
static void set_peaks(dt_machine *m)
{
    static const dt_figure_kind kinds[] = {
        [DT_F32] = DT_FIGURE_FLOPS_F32, [DT_BF16] = DT_FIGURE_FLOPS_BF16
    };
    const dt_rate *best[DT_COUNT(kinds)] = { NULL };

    for (int i = 0; i < m->n_rates; i++) {
        const dt_rate *r = &m->rate[i];
        if ((size_t)r->dtype >= DT_COUNT(kinds) || kinds[r->dtype] == 0) continue;
        if (best[r->dtype] == NULL ||
            r->flops / r->seconds > best[r->dtype]->flops / best[r->dtype]->seconds)
            best[r->dtype] = r;
    }
    for (size_t d = 0; d < DT_COUNT(kinds); d++)
        if (best[d] != NULL)
            dti_figure_set(m, kinds[d], best[d]->flops / best[d]->seconds,
                           "measured: %s of %.3g MFLOP, the fastest call", best[d]->kernel,
                           best[d]->flops * 1e-6);
}

static void warn(const dt_calibrate_options *o, const job *j)
{
    const double share = j->had / fmax(j->wanted, 1e-9);
    char line[160];

    if (o->log == NULL || share > QUIET) return;
    (void)snprintf(line, sizeof line,
                   "a rank had its core for %.0f %% of the time: other programs run, and what is "
                   "measured is the machine with them",
                   100 * share);
    o->log(o->log_arg, DT_LOG_WARNING, 0, line);
}

dt_status dti_measure_kernels(const dt_calibrate_options *o, double seconds, dt_machine *m)
{
    const int all = m->nodes * m->devices_per_node;
    const int n = (int)dti_max(dti_min(all, dt_machine_cores() / m->threads), 1);
    const dt_run_options run = dti_calibrate_run(o, n, m->threads);
    dt_status st = DT_OK;
    double rest[N_BOOKS];
    int n_rest = 0;
    job *j;

    DT_TRY(dti_new(sizeof *j, &j));
    j->seconds = seconds;
    j->machine = m;
    DT_TRY_TO(done, st, dt_run(&run, on_rank, j));
    for (int i = 0; i < N_BOOKS; i++) {
        notebook *b = &j->books[i];
        double quick;
        for (int k = 0; k < b->n; k++)
            if (b->rows[k].n_means > 0) keep(m, &b->rows[k]);
        if (b->n_steps == 0) continue;
        quick = dti_quick_of(b->bare, b->n_steps);
        rest[n_rest++] = fmax(quick - dti_quick_of(b->kernels, b->n_steps), 0) / (double)b->calls;
    }
    warn(o, j);
    set_peaks(m);
    dti_figure_set(m, DT_FIGURE_EFFICIENCY, 1, "exact: operations are what kernels reached");
    dti_figure_set(m, DT_FIGURE_MEMORY_BANDWIDTH, j->bytes_per_second,
                   "measured: reading and writing %d MiB, %d ranks at once",
                   (int)(LARGE * sizeof(float) >> 20), n);
    dti_figure_set(m, DT_FIGURE_CALL_SECONDS, dti_quick_of(rest, n_rest),
                   "measured: steps less their kernels");
done:
    dti_free(j);
    return st;
}
