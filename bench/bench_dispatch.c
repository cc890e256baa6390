/* SPDX-License-Identifier: Apache-2.0
 *
 * What an operator call costs over its kernel, once the decision is cached: the time of the public
 * function, result made and released, less the time of the same kernel called directly on the same
 * memory. */
#include <dtensor/ops.h>

#include "base/sync.h"
#include "bench/support/bench_report.h"
#include "dtensor/kernels/cpu/cpu.h"

/* clang-format off */
static const bench_column columns[] = {
    { "op", "operator", 28, -1 },
    { "mesh", "mesh", 6, -1 },
    { "call_ns", "call ns", 8, 1 },
    { "kernel_ns", "kernel ns", 9, 1 }, /* the limit */
    { "over_ns", "over ns", 8, 1 },
    { "over_quarter_ns", "quarter", 8, 1 },
    { "over_3_quarters_ns", "3/4", 8, 1 },
    { "calls", "calls", 10, 0 },
    { "misses", "misses", 6, 0 },
};
/* clang-format on */

typedef struct dispatch_options {
    bench_common common;
    int64_t calls;
    int64_t rounds;
} dispatch_options;

/* --- an operator that does nothing ------------------------------------------------------------ */

static dt_status nothing_cpu(const dt_kargs *args)
{
    (void)args;
    return DT_OK;
}

static const dt_op nothing = {
    .name = "nothing", .axes = "... -> ...", .types = "F>F", .cpu = nothing_cpu
};

/* One whose kernel hands out the state of the built-in kernels. */
typedef struct capture_attr {
    dti_cpu **to;
} capture_attr;

static dt_status capture_cpu(const dt_kargs *args)
{
    *((const capture_attr *)args->attr)->to = args->cpu;
    return DT_OK;
}

static const dt_op capture = { .name = "capture",
                               .axes = "... -> ...",
                               .types = "F>F",
                               .cpu = capture_cpu,
                               .attr_bytes = sizeof(capture_attr) };

/* --- what is measured ------------------------------------------------------------------------- */

typedef struct operands {
    dt_tensor *x, *w, *row; /* [1, 16], [16, 16], [1]: cut over the ranks where letters allow */
    dt_tensor *norm_x, *norm_w;
} operands;

static dt_tensor *call_nothing(dt_tape *t, const operands *o)
{
    return dt_apply(t, &nothing, NULL, 1, (dt_tensor *[]){ o->row });
}

static dt_tensor *call_add(dt_tape *t, const operands *o)
{
    return dt_add(t, o->row, o->row);
}

static dt_tensor *call_norm(dt_tape *t, const operands *o)
{
    return dt_rms_norm(t, o->norm_x, o->norm_w, 1e-5f);
}

static dt_tensor *call_linear(dt_tape *t, const operands *o)
{
    return dt_linear(t, o->x, o->w, NULL);
}

static dt_tensor *call_heads(dt_tape *t, const operands *o)
{
    return dt_heads(t, o->norm_x, 8);
}

static const dti_norm_attr norm_attr = { 1e-5f };
static const dti_dtype_attr linear_attr = { DT_F32 };

/* The public call, and the kernel it ends in with its attributes and operands. */
typedef struct subject {
    const char *name;
    dt_tensor *(*call)(dt_tape *t, const operands *o);
    dt_kernel kernel; /* NULL: a view */
    const void *attr;
    size_t in[2]; /* members of operands */
    int n_in;
} subject;

#define IN(field) offsetof(operands, field)
static const subject subjects[] = {
    { "nothing [1], a user's own", call_nothing, nothing_cpu, NULL, { IN(row) }, 1 },
    { "heads [1, 1, 64], a view", call_heads, NULL, NULL, { IN(norm_x) }, 1 },
    { "add [1]", call_add, dti_add_cpu, NULL, { IN(row), IN(row) }, 2 },
    { "rms_norm [1, 1, 64]",
      call_norm,
      dti_rms_norm_cpu,
      &norm_attr,
      { IN(norm_x), IN(norm_w) },
      2 },
    { "linear [1, 16] [16, 16]", call_linear, dti_linear_cpu, &linear_attr, { IN(x), IN(w) }, 2 },
};
#undef IN

static dt_status make(dt_mesh *mesh, dt_placement place, int n_axes, const int64_t *shape,
                      dt_tensor **out)
{
    static const float ones[16 * 16] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    const dt_placement places[DT_MAX_DIMS] = { place };

    DT_TRY(dt_distribute(mesh, places, DT_F32, n_axes, shape,
                         (dt_source){ .full = ones, .root = DT_EQUAL_COPIES }, out));
    return DT_OK;
}

static dt_status make_operands(dt_mesh *mesh, operands *o)
{
    DT_TRY(make(mesh, DT_REPLICATE, 2, (const int64_t[]){ 1, 16 }, &o->x));
    DT_TRY(make(mesh, DT_SHARD(0), 2, (const int64_t[]){ 16, 16 }, &o->w));
    DT_TRY(make(mesh, DT_REPLICATE, 1, (const int64_t[]){ 1 }, &o->row));
    DT_TRY(make(mesh, DT_REPLICATE, 3, (const int64_t[]){ 1, 1, 64 }, &o->norm_x));
    DT_TRY(make(mesh, DT_REPLICATE, 1, (const int64_t[]){ 64 }, &o->norm_w));
    return DT_OK;
}

static void release_operands(operands *o)
{
    dt_tensor_release(&o->x);
    dt_tensor_release(&o->w);
    dt_tensor_release(&o->row);
    dt_tensor_release(&o->norm_x);
    dt_tensor_release(&o->norm_w);
}

/* --- timing ----------------------------------------------------------------------------------- */

/* A block of a model has about as many operators in one scope. */
enum { CALLS_PER_SCOPE = 16 };

static double time_calls(dt_tape *t, const subject *s, const operands *o, int64_t n)
{
    const int64_t start = dti_now_ns();

    for (int64_t i = 0; i < n; i += CALLS_PER_SCOPE) {
        dt_scope_begin(t, "bench");
        for (int k = 0; k < CALLS_PER_SCOPE; k++) (void)s->call(t, o);
        (void)dt_scope_end(t, NULL);
    }
    return (double)(dti_now_ns() - start) / (double)n;
}

static double time_kernel(const subject *s, const dt_kargs *args, int64_t n)
{
    dt_kernel volatile kernel = s->kernel;
    const int64_t start = dti_now_ns();

    if (s->kernel == NULL) return 0.0;
    for (int64_t i = 0; i < n; i++) (void)kernel(args);
    return (double)(dti_now_ns() - start) / (double)n;
}

typedef struct dispatch_job {
    const dispatch_options *options;
    const char *mesh;
    bench_report *report; /* rank 0's */
} dispatch_job;

/* All ranks work at the same time; rank 0 reports what it found. */
static dt_status measure(dt_runtime *rt, const dispatch_job *j, dt_tape *t, const subject *s,
                         const operands *o, dti_cpu *cpu)
{
    const int64_t n = j->options->calls / CALLS_PER_SCOPE * CALLS_PER_SCOPE;
    bench_samples call = { 0 }, kernel = { 0 }, over = { 0 };
    uint64_t calls, misses, calls_after, misses_after;
    dt_local in[2], out = { 0 };
    const dt_kargs args = {
        .in = in, .out = &out, .attr = s->attr, .cpu = cpu, .n_in = s->n_in, .n_out = 1
    };
    dt_tensor *y;

    for (int i = 0; i < s->n_in; i++)
        in[i] = *dt_tensor_local(*(dt_tensor *const *)(const void *)((const char *)o + s->in[i]));
    (void)time_calls(t, s, o, n); /* warm */
    y = s->call(t, o);
    DT_TRY(dt_tape_status(t));
    out = *dt_tensor_local(y);
    dt_op_counts(rt, &calls, &misses);
    for (int64_t i = 0; i < j->options->rounds; i++) {
        double a, b;
        DT_TRY(bench_barrier(rt));
        a = time_calls(t, s, o, n);
        b = time_kernel(s, &args, n);
        bench_add(&call, a);
        bench_add(&kernel, b);
        bench_add(&over, a - b);
    }
    dt_op_counts(rt, &calls_after, &misses_after);
    DT_TRY(dt_tape_status(t));
    if (dt_runtime_rank(rt) == 0)
        bench_report_row(j->report, s->name, j->mesh, bench_median(&call), bench_median(&kernel),
                         bench_median(&over), bench_quantile(&over, 0.25),
                         bench_quantile(&over, 0.75), (double)(calls_after - calls),
                         (double)(misses_after - misses));
    dt_tape_reset(t);
    return DT_OK;
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    const dispatch_job *j = arg;
    dt_status st = DT_OK;
    operands o = { 0 };
    dti_cpu *cpu = NULL;
    dt_mesh *mesh = NULL;
    dt_tape *t = NULL;

    DT_TRY(dt_mesh_create(rt, j->mesh, &mesh));
    DT_TRY_TO(done, st, make_operands(mesh, &o));
    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    (void)dt_apply(t, &capture, &(capture_attr){ &cpu }, 1, &o.row);
    DT_TRY_TO(done, st, dt_tape_status(t));
    for (size_t i = 0; i < DT_COUNT(subjects); i++)
        DT_TRY_TO(done, st, measure(rt, j, t, &subjects[i], &o, cpu));
done:
    dt_tape_release(&t);
    release_operands(&o);
    dt_mesh_release(&mesh);
    return st;
}

static dt_status run(const dispatch_options *o, bench_report *report)
{
    static const char *const meshes[] = { "tp=1", "tp=2" };

    for (size_t i = 0; i < DT_COUNT(meshes); i++) {
        const char *spec = o->common.mesh != NULL ? o->common.mesh : meshes[i];
        dispatch_job j = { .options = o, .mesh = spec, .report = report };
        bench_case c;

        if (o->common.mesh != NULL && i > 0) break;
        DT_TRY(bench_case_of(&o->common, spec, &c));
        DT_TRY(bench_run(&o->common, &c, on_rank, &j));
    }
    return DT_OK;
}

int main(int argc, char **argv)
{
    dispatch_options o = { .calls = 1600, .rounds = 201 };
    const bench_option own[] = {
        { "--calls", "N", "in one round (default: 1600)", BENCH_COUNT, &o.calls },
        { "--rounds", "N", "of which medians are taken (default: 201, most: 256)", BENCH_COUNT,
          &o.rounds },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "What a warm operator call costs over its kernel.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.calls = 320;
        o.rounds = 3;
    }
    if (o.calls < CALLS_PER_SCOPE) o.calls = CALLS_PER_SCOPE;
    bench_report_open(&report, "dispatch", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
