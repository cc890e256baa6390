/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact numbers of plans: what dt_predict_training() says of a step, on every rank of it, is what a
 * run of the same plan counts and holds; stages, schedules, data and tensor parallelism, ZeRO and
 * what is computed again, of three architectures on up to 8 ranks. */
#include <dtensor/predict.h>
#include <stdio.h>
#include <string.h>

#include "dtensor/device/device.h"
#include "tests/support/stage_runs.h"

enum { STEPS = 3, MOST_RANKS = 8 };

/* clang-format off */
static const dt_staged plans[] = {
    { .mesh = "pp=2", .schedule = "interleaved", .microbatches = 4 },
    { .mesh = "tp=2,pp=2", .schedule = "zb-h1", .microbatches = 4, .sequence_parallel = true },
    { .mesh = "pp=2,dp=2", .schedule = "zbv", .microbatches = 4, .zero = 1, .recompute = DT_RECOMPUTED_CHEAP },
    { .mesh = "pp=2,dp=2", .schedule = "1f1b", .microbatches = 4, .zero = 3 },
    { .mesh = "pp=2,dp=2,tp=2", .schedule = "1f1b", .microbatches = 4, .zero = 1 },
    { .mesh = "pp=1", .schedule = "interleaved", .microbatches = 4 },
    { .mesh = "pp=2", .schedule = "1f1b", .microbatches = 4 },
    { .mesh = "pp=2", .schedule = "gpipe", .microbatches = 4, .recompute = DT_RECOMPUTED_BLOCKS },
    { .mesh = "pp=2", .schedule = "naive", .microbatches = 4, .recompute = DT_RECOMPUTED_CHEAP },
    { .mesh = "pp=2", .schedule = "zb-h1", .microbatches = 9 },
    { .mesh = "pp=2", .schedule = "zb-h2", .microbatches = 4, .recompute = DT_RECOMPUTED_BLOCKS },
    { .mesh = "pp=2", .schedule = "dualpipev", .microbatches = 8 },
    { .mesh = "pp=3", .schedule = "1f1b", .microbatches = 9 },
    { .mesh = "pp=3", .schedule = "zb-h1", .microbatches = 4, .recompute = DT_RECOMPUTED_CHEAP },
    { .mesh = "pp=4", .schedule = "1f1b", .microbatches = 8 },
    { .mesh = "pp=4", .schedule = "gpipe", .microbatches = 4, .recompute = DT_RECOMPUTED_BLOCKS },
    { .mesh = "pp=2,tp=2", .schedule = "1f1b", .microbatches = 1 },
    { .mesh = "pp=2,tp=2", .schedule = "interleaved", .microbatches = 4, .recompute = DT_RECOMPUTED_BLOCKS, .sequence_parallel = true },
    { .mesh = "pp=2,dp=2", .schedule = "1f1b", .microbatches = 4 },
    { .mesh = "dp=2,pp=2", .schedule = "zb-h2", .microbatches = 4, .zero = 1 },
    { .mesh = "pp=2,dp=2", .schedule = "gpipe", .microbatches = 4, .zero = 2 },
    { .mesh = "pp=2,dp=2,tp=2", .schedule = "zb-h1", .microbatches = 4, .zero = 2, .sequence_parallel = true },
    { .mesh = "dp=2,tp=2,pp=2", .schedule = "1f1b", .microbatches = 4, .zero = 3, .recompute = DT_RECOMPUTED_BLOCKS },
    { .mesh = "pp=4,dp=2", .schedule = "1f1b", .microbatches = 8, .zero = 1 },
    { .mesh = "pp=4,tp=2", .schedule = "zb-h1", .microbatches = 4, .recompute = DT_RECOMPUTED_BLOCKS, .sequence_parallel = true },
    { .mesh = "pp=2,dp=2", .schedule = "1f1b", .microbatches = 4, .bucket_bytes = 4096 },
    { .mesh = "pp=2,dp=2,tp=2", .schedule = "zb-h1", .microbatches = 4, .zero = 1, .bucket_bytes = 16384 },
    { .mesh = "dp=2,pp=2", .schedule = "interleaved", .microbatches = 4, .zero = 2, .bucket_bytes = 1 << 20 },
    { .mesh = "dp=2,tp=2", .microbatches = 2, .zero = 1, .bucket_bytes = 4096 },
    { .mesh = "dp=2", .microbatches = 2, .zero = 2, .bucket_bytes = 16384 },
    { .mesh = "tp=1", .microbatches = 4 },
    { .mesh = "dp=2", .microbatches = 4, .zero = 2 },
    { .mesh = "dp=2,tp=2", .microbatches = 4, .zero = 3, .recompute = DT_RECOMPUTED_BLOCKS },
    { .mesh = "dp=4,tp=2", .microbatches = 1, .zero = 1, .recompute = DT_RECOMPUTED_CHEAP },
    { .mesh = "tp=4", .microbatches = 4, .sequence_parallel = true },
};
/* clang-format on */
enum { N_PLANS = DT_COUNT(plans), N_QUICK = 5 };

/* --- what a run counts ------------------------------------------------------------------------ */

/* Of one rank. */
typedef struct counted {
    dt_training_cost is; /* moves of the second step by mesh dims, all else of the last one */
    dti_observer observer;
} counted;

static void hear_move(void *arg, const dti_move_step *step, const int64_t *shape, dt_comm_kind kind,
                      const dt_comm_counter *count)
{
    dt_training_cost *c = arg;
    int at = 0;

    (void)shape;
    while (at < c->n_traffic && (c->traffic[at].kind != kind || c->traffic[at].dims != step->dims))
        at++;
    if (at == c->n_traffic && at < DT_MAX_DIMS_TRAFFIC)
        c->traffic[c->n_traffic++] = (dt_dims_traffic){ step->dims, kind, { 0, 0 }, 0 };
    c->traffic[at].count.calls += count->calls;
    c->traffic[at].count.bytes += count->bytes;
}

static void hear_tensor(void *arg, const dt_layout *layout, const int64_t *shape)
{
    (void)arg, (void)layout, (void)shape;
}

static int64_t gradient_bytes(const dt_gradients *g)
{
    int64_t bytes = 0;

    for (int64_t i = 0; dt_gradients_at(g, i) != NULL; i++) {
        const dt_tensor *x = dt_gradient(g, dt_gradients_at(g, i));
        int64_t n = (int64_t)sizeof(float);
        for (int a = 0; x != NULL && a < dt_tensor_n_axes(x); a++)
            n *= dt_tensor_local(x)->shape[a];
        if (x != NULL) bytes += n;
    }
    return bytes;
}

static dt_status hear(void *arg, dt_test_moment moment, int step, dt_model *model,
                      dt_optimizer *opt)
{
    dt_runtime *rt = dt_mesh_runtime(dt_model_mesh(model));
    counted *c = (counted *)arg + dt_runtime_rank(rt);
    const dt_tape *t = dt_optimizer_tape(opt);
    dti_device *device;

    DT_TRY(dti_device_of(rt, &device));
    if (moment == DT_TEST_PASSED)
        c->is.gradient_bytes = gradient_bytes(dt_optimizer_gradients(opt));
    if (moment != DT_TEST_STEPPED) return DT_OK;
    c->observer = (dti_observer){ hear_move, hear_tensor, &c->is };
    device->observer = step == 0 ? &c->observer : NULL;
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        c->is.update.comm[k] = dt_tape_comm(t, (dt_comm_kind)k);
    c->is.update.work = dt_tape_work(t);
    c->is.weight_bytes = dt_model_local_bytes(model);
    c->is.state_bytes = dt_optimizer_state_bytes(opt);
    c->is.peak_bytes = (int64_t)dti_memory_peak(device->memory);
    return DT_OK;
}

/* --- what is said of it ----------------------------------------------------------------------- */

static int size_of(const char *mesh, const char *dim)
{
    const char *at = strstr(mesh, dim);

    return at != NULL ? at[strlen(dim)] - '0' : 1;
}

static int ranks_of(const char *mesh)
{
    return size_of(mesh, "pp=") * size_of(mesh, "dp=") * size_of(mesh, "tp=");
}

static void predict(const dt_staged *p, int rank, dt_training_cost *out)
{
    char folder[DT_TEST_PATH_BYTES];
    const dt_test_steps t = dt_staged_steps(p, folder);
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_step_options step = DT_STEP_OPTIONS_INIT;
    dt_loss_options loss = DT_LOSS_OPTIONS_INIT;

    load.keep_dtype = false;
    load.sequence_parallel = t.sequence_parallel;
    load.fully_shard = t.fully_shard;
    DT_ASSERT_OK(dt_test_plan_stages(size_of(p->mesh, "pp="), &t, &load, &step.schedule));
    loss.recompute = t.recompute;
    o.mesh = p->mesh;
    o.batch = t.rows;
    o.sequence = t.length;
    o.load = &load;
    step.loss = &loss;
    step.optimizer = &t.optimizer;
    step.microbatches = t.microbatches;
    DT_ASSERT_OK(dt_predict_training(NULL, t.folder, &o, &step, rank, out));
    dt_pipeline_schedule_release(&step.schedule);
}

/* --- held against each other ------------------------------------------------------------------ */

static void differs(const dt_staged *p, int rank, const char *what, const char *of, int64_t said,
                    int64_t counted_)
{
    dt_test_fail(__FILE__, __LINE__,
                 "%s: %s %s, %d microbatches, zero %d, recompute %d, rank %d: %s%s%s is %lld, "
                 "%lld was said",
                 p->fixture, p->mesh, p->schedule != NULL ? p->schedule : "in one piece",
                 p->microbatches, p->zero, (int)p->recompute, rank, what, of[0] != '\0' ? ", " : "",
                 of, (long long)counted_, (long long)said);
}

static void same_part(const dt_staged *p, int rank, const char *what, const dt_training_part *said,
                      const dt_training_part *is)
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const char *kind = dt_comm_kind_name((dt_comm_kind)k);
        if (said->comm[k].bytes != is->comm[k].bytes)
            differs(p, rank, what, kind, said->comm[k].bytes, is->comm[k].bytes);
        if (said->comm[k].calls != is->comm[k].calls)
            differs(p, rank, what, kind, said->comm[k].calls, is->comm[k].calls);
    }
    if (said->work.flops != is->work.flops)
        differs(p, rank, what, "operations", (int64_t)said->work.flops, (int64_t)is->work.flops);
}

/* The index of a mesh dim: "dp=2,pp=2" has pp as number 1. */
static int dim_of(const char *mesh, const char *dim)
{
    const char *at = strstr(mesh, dim);
    int n = 0;

    for (const char *c = mesh; c < at; c++) n += *c == ',';
    return at != NULL ? n : -1;
}

/* Moves by mesh dims as the run made them. What is said beside them travels from stage to stage, or
 * is the norm over all ranks. */
static void same_traffic(const dt_staged *p, int rank, const dt_training_cost *said,
                         const dt_training_cost *is)
{
    const int pp = dim_of(p->mesh, "pp=");
    int n_dims = 1;

    for (const char *c = p->mesh; *c != '\0'; c++) n_dims += *c == ',';
    for (int i = 0; i < said->n_traffic; i++) {
        const dt_dims_traffic *t = &said->traffic[i];
        dt_comm_counter moves = { 0, 0 }, rest = { 0, 0 };
        for (int k = 0; k < is->n_traffic; k++)
            if (is->traffic[k].dims == t->dims && is->traffic[k].kind == t->kind)
                moves = is->traffic[k].count;
        if (t->kind == DT_COMM_SEND || (t->kind == DT_COMM_ALL_TO_ALL && moves.calls == 0)) {
            if (pp < 0 || t->dims != 1u << pp)
                differs(p, rank, "mesh dims of", dt_comm_kind_name(t->kind), t->dims, 1u << pp);
            continue;
        }
        rest.calls = t->count.calls - moves.calls;
        rest.bytes = t->count.bytes - moves.bytes;
        if (t->dims != (1u << n_dims) - 1 || t->kind != DT_COMM_ALL_REDUCE) {
            if (rest.calls != 0 || rest.bytes != 0)
                differs(p, rank, "over some dims", dt_comm_kind_name(t->kind), t->count.bytes,
                        moves.bytes);
        } else if (rest.calls < 0 || rest.calls > 1) {
            differs(p, rank, "over all dims", "calls", t->count.calls, moves.calls);
        }
    }
    for (int k = 0; k < is->n_traffic; k++) {
        int i = 0;
        while (i < said->n_traffic && (said->traffic[i].dims != is->traffic[k].dims ||
                                       said->traffic[i].kind != is->traffic[k].kind))
            i++;
        if (i == said->n_traffic)
            differs(p, rank, "unsaid", dt_comm_kind_name(is->traffic[k].kind), 0,
                    is->traffic[k].count.bytes);
    }
}

/* The peak of a rank that is given messages depends on when they come: one may be under way each
 * way, and what others have not asked for lies here. */
static void same_bytes(const dt_staged *p, int rank, int64_t message_bytes,
                       const dt_training_cost *said, const dt_training_cost *is)
{
    const struct {
        const char *what;
        int64_t said, is;
    } rows[] = { { "weights", said->weight_bytes, is->weight_bytes },
                 { "gradients", said->gradient_bytes, is->gradient_bytes },
                 { "state", said->state_bytes, is->state_bytes },
                 { "kept", said->kept_bytes, is->kept_bytes } };
    const bool alone = size_of(p->mesh, "pp=") == 1;
    const int64_t over = is->peak_bytes - said->peak_bytes;

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        if (rows[i].said != rows[i].is)
            differs(p, rank, "bytes", rows[i].what, rows[i].said, rows[i].is);
    if (alone ? over != 0 : over < -2 * message_bytes || over > p->microbatches * message_bytes)
        differs(p, rank, "bytes", "peak", said->peak_bytes, is->peak_bytes);
}

/* The coordinate of a rank on "pp", 0 where there is none. */
static int place_of(const char *mesh, int rank)
{
    const char *at = strstr(mesh, "pp=");

    if (at == NULL) return 0;
    return rank / (size_of(at, "dp=") * size_of(at, "tp=")) % size_of(at, "pp=");
}

/* Between two stages on different ranks goes what the one before makes of each microbatch, each
 * way; on each rank of tp, or a part of it on each where tokens are cut. */
static void check_boundaries(const dt_staged *p, int64_t message_bytes)
{
    char folder[DT_TEST_PATH_BYTES];
    const dt_test_steps t = dt_staged_steps(p, folder);
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_pipeline_schedule *s = NULL;
    int64_t want[2][MOST_RANKS] = { { 0 } }, is[2][MOST_RANKS] = { { 0 } };
    const int64_t each =
        message_bytes * p->microbatches * (p->sequence_parallel ? 1 : size_of(p->mesh, "tp="));

    DT_ASSERT_OK(dt_test_plan_stages(size_of(p->mesh, "pp="), &t, &load, &s));
    for (int k = 1; k < dt_pipeline_schedule_stages(s); k++) {
        const int from = dt_pipeline_schedule_rank_of(s, k - 1);
        const int to = dt_pipeline_schedule_rank_of(s, k);
        if (from == to) continue;
        want[0][to] += each;
        want[1][from] += each;
    }
    for (int r = 0; r < ranks_of(p->mesh); r++) {
        is[0][place_of(p->mesh, r)] += p->last[r].forward.comm[DT_COMM_SEND].bytes;
        is[1][place_of(p->mesh, r)] += p->last[r].backward.comm[DT_COMM_SEND].bytes;
    }
    for (int way = 0; way < 2; way++)
        for (int r = 0; r < MOST_RANKS; r++)
            if (want[way][r] != is[way][r])
                differs(p, r, way == 0 ? "forward" : "backward", "over boundaries", want[way][r],
                        is[way][r]);
    dt_pipeline_schedule_release(&s);
}

static const struct fixture {
    const char *name;
    int64_t width;
} fixtures[] = { { "llama/uneven", 96 }, { "gemma3/base", 40 }, { "qwen3_moe/uneven", 40 } };

static void check(const struct fixture *f, const dt_staged *plan)
{
    const int64_t message_bytes = 2 * DT_STAGED_LENGTH * f->width * (int64_t)sizeof(float);
    counted *c = calloc(MOST_RANKS, sizeof *c);
    dt_staged run = *plan;

    DT_ASSERT(c != NULL);
    run.fixture = f->name;
    run.steps = STEPS;
    run.told = hear;
    run.told_arg = c;
    dt_staged_train(&run);
    for (int r = 0; r < ranks_of(run.mesh); r++) {
        dt_training_cost said;
        predict(&run, r, &said);
        c[r].is.kept_bytes = run.last[r].kept_bytes;
        same_part(&run, r, "forward", &said.forward, &run.last[r].forward);
        same_part(&run, r, "backward", &said.backward, &run.last[r].backward);
        same_part(&run, r, "update", &said.update, &c[r].is.update);
        same_traffic(&run, r, &said, &c[r].is);
        same_bytes(&run, r, message_bytes, &said, &c[r].is);
    }
    check_boundaries(&run, message_bytes);
    dt_staged_free(&run);
    free(c);
}

DT_TEST(predicted_plans, some_have_the_exact_numbers_of_their_runs)
{
    if (dt_test_processes() > 1) dt_test_skip("one process sees all ranks");
    for (size_t i = 0; i < N_QUICK; i++) check(&fixtures[i % DT_COUNT(fixtures)], &plans[i]);
}

DT_TEST(predicted_plans, all_have_the_exact_numbers_of_their_runs)
{
    dt_test_long();
    if (dt_test_processes() > 1) dt_test_skip("one process sees all ranks");
    for (size_t f = 0; f < DT_COUNT(fixtures); f++)
        for (size_t i = 0; i < N_PLANS; i++) check(&fixtures[f], &plans[i]);
}

/* The gradient of an embedding that is the head too goes from the first stage to the last and back;
 * with ZeRO the part that the state is of. */
DT_TEST(predicted_plans, a_shared_embedding_costs_its_bytes_once_each_way)
{
    static const struct {
        dt_staged plan;
        int parts;
    } of[] = {
        { { .mesh = "pp=3", .schedule = "1f1b", .microbatches = 3 }, 1 },
        { { .mesh = "pp=2,dp=2,tp=2", .schedule = "zb-h1", .microbatches = 2, .zero = 1 }, 4 },
    };
    const int64_t table = 130 * 40 * (int64_t)sizeof(float);

    for (size_t i = 0; i < DT_COUNT(of); i++) {
        dt_staged p = of[i].plan;
        const int n = size_of(p.mesh, "pp=");
        p.fixture = "gemma3/base";
        for (int r = 0; r < ranks_of(p.mesh); r++) {
            const int place = place_of(p.mesh, r);
            dt_training_cost said;
            predict(&p, r, &said);
            DT_ASSERT_EQ_INT(said.update.comm[DT_COMM_ALL_TO_ALL].bytes,
                             place == 0 || place == n - 1 ? table / of[i].parts : 0);
        }
    }
}
