/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/session.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/numbers.h"
#include "base/text.h"
#include "cli/load_modules.h"
#include "cli/option_file.h"
#include "cli/option_table.h"
#include "cli/pipelines.h"
#include "cli/print_report.h"
#include "cli/training.h"

/* Ranks are threads, of one process or of several. Some more than there are cores show how a mesh
 * would divide a model; hundreds on a few cores only wait for each other, and are seldom meant. */
enum { MAX_RANKS = 1024, RANKS_PER_CORE = 16 };

bool cli_has_plan_file(const char *plan)
{
    return plan != NULL && strcmp(plan, "auto") != 0 && strcmp(plan, "built-in") != 0;
}

/* The dims that items of an option begin with, between `apart`; one without `end` names none. */
static dt_status check_named(const char *option, const char *at, const char *apart, const char *end,
                             const char *mesh)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims, n_ranks;
    bool named[DT_MAX_DIMS] = { false };

    DT_TRY(dt_mesh_parse(mesh, &n_dims, names, sizes, &n_ranks));
    for (size_t n, item; at != NULL && *at != '\0'; at += item + (at[item] != '\0')) {
        int m = 0;
        item = strcspn(at, apart);
        n = end != NULL ? strcspn(at, end) : item;
        if (end != NULL && n >= item) continue;
        while (m < n_dims && (strlen(names[m]) != n || memcmp(names[m], at, n) != 0)) m++;
        DT_CHECK(m < n_dims, DT_ERR_ARG, "%s: --mesh %s has no dim \"%.*s\"", option, mesh, (int)n,
                 at);
        DT_CHECK(!named[m], DT_ERR_ARG, "%s: \"%s\" is named twice", option, names[m]);
        named[m] = true;
    }
    return DT_OK;
}

dt_status cli_check_dims(const char *mesh, const dt_load_options *load)
{
    const dt_status st = dt_load_check_mesh(mesh, load, NULL);

    if (st != DT_OK) dti_error_prefix("--mesh");
    DT_TRY(st);
    return check_named("--fully-shard", load->fully_shard, ",", NULL, mesh);
}

int64_t cli_batch_ranks(const cli_session *s)
{
    int64_t n = 1;

    return dt_load_check_mesh(s->mesh, &s->load, &n) == DT_OK ? n : 1;
}

/* The last dim of a mesh talks most: its ranks shall be near each other. */
static dt_status read_mesh(const char *text, bool oversubscribe, dt_run_options *run)
{
    const int n = dt_launch_size(), cores = dt_machine_cores();
    const int64_t most = (int64_t)RANKS_PER_CORE * cores * n;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims;
    const dt_status st = dt_mesh_parse(text, &n_dims, names, sizes, &run->n_ranks);

    if (st != DT_OK) dti_error_prefix("--mesh");
    DT_TRY(st);
    DT_CHECK(run->n_ranks <= MAX_RANKS, DT_ERR_ARG,
             "--mesh: \"%s\" has %d ranks; this command starts at most %d", text, run->n_ranks,
             MAX_RANKS);
    DT_CHECK(run->n_ranks >= n, DT_ERR_ARG,
             "--mesh: \"%s\" has %d rank%s, but %d processes were started; give the mesh at least "
             "one rank per process, or start fewer",
             text, run->n_ranks, run->n_ranks == 1 ? "" : "s", n);
    DT_CHECK(run->n_ranks <= most || oversubscribe, DT_ERR_ARG,
             "--mesh: \"%s\" has %d ranks, which would share %" PRId64
             " core%s; ask for at most %" PRId64 ", add "
             "--oversubscribe if that is meant, or see what \"dtensor plan\" says of it",
             text, run->n_ranks, (int64_t)cores * n, cores * (int64_t)n == 1 ? "" : "s", most);
    run->ranks_together = sizes[n_dims - 1];
    return DT_OK;
}

/* Has a built-in architecture a plan of that name? */
static bool is_plan_name(const char *name)
{
    const dt_arch *arch;

    for (int i = 0; (arch = dt_arch_at(NULL, i)) != NULL; i++)
        for (const dt_named_plan *p = arch->plans; p != NULL && p->name != NULL; p++)
            if (strcmp(p->name, name) == 0) return true;
    return false;
}

dt_status cli_read_plan(const cli_args *args, dt_plan **plan, dt_load_options *load)
{
    static const dt_plan no_rules = { .source = "--plan built-in" };
    dt_status st;

    load->sequence_parallel = args->sequence_parallel;
    load->fully_shard = args->fully_shard;
    load->weights = args->weights;
    load->offload = args->offload;
    if (!cli_has_plan_file(args->plan)) {
        if (args->plan != NULL && strcmp(args->plan, "built-in") == 0) load->plan = &no_rules;
        return DT_OK;
    }
    if (args->plan_text != NULL) {
        char name[CLI_PATH_BYTES];
        if (args->training.resume)
            (void)snprintf(name, sizeof name, "%s/" CLI_RUN_OPTIONS ": " CLI_PLAN_CONTENT,
                           args->output);
        else
            (void)snprintf(name, sizeof name, "%s: \"styles\"", args->plan);
        DT_TRY(dt_plan_parse(name, args->plan_text, strlen(args->plan_text), plan));
        load->plan = *plan;
        return DT_OK;
    }
    if (strpbrk(args->plan, "./") == NULL && access(args->plan, F_OK) != 0) {
        const int error = errno;
        /* which architectures of modules have, only ranks know */
        DT_CHECK(is_plan_name(args->plan) || args->load.n > 0, dti_io_status(error),
                 "--plan: %s: %s; it takes a file, auto, built-in, or the name of a plan that the "
                 "architecture has, as nemo",
                 args->plan, strerror(error));
        load->plan_name = args->plan;
        return DT_OK;
    }
    st = dt_plan_read(args->plan, plan);
    if (st == DT_ERR_IO) dti_error_prefix("--plan");
    DT_TRY(st);
    load->plan = *plan;
    return DT_OK;
}

dt_status cli_read_dtype(const char *text, dt_load_options *load)
{
    static const dt_dtype known[] = { DT_F32, DT_BF16, DT_F16 };

    if (text == NULL || strcmp(text, "auto") == 0) return DT_OK;
    load->keep_dtype = false;
    for (size_t i = 0; i < DT_COUNT(known); i++) {
        load->dtype = known[i];
        if (strcmp(text, dt_dtype_name(known[i])) == 0) return DT_OK;
    }
    DT_FAIL(DT_ERR_ARG, "--dtype: \"%s\" is unknown; choose auto, f32, bf16 or f16", text);
}

dt_status cli_read_recompute(const char *word, dt_recomputed *out)
{
    static const struct {
        const char *word;
        dt_recomputed means;
    } words[] = { { "none", DT_RECOMPUTED_NOTHING },
                  { "selective", DT_RECOMPUTED_CHEAP },
                  { "cheap", DT_RECOMPUTED_CHEAP },
                  { "full", DT_RECOMPUTED_BLOCKS },
                  { "blocks", DT_RECOMPUTED_BLOCKS } };

    *out = DT_RECOMPUTED_NOTHING;
    if (word == NULL) return DT_OK;
    for (size_t i = 0; i < DT_COUNT(words); i++) {
        *out = words[i].means;
        if (strcmp(word, words[i].word) == 0) return DT_OK;
    }
    DT_FAIL(DT_ERR_ARG,
            "--recompute: \"%s\" is unknown; choose none, selective (or cheap), full (or blocks)",
            word);
}

dt_status cli_check_model(const cli_args *args)
{
    const dt_status st = dt_checkpoint_check_folder(args->folder);

    if (st != DT_OK) dti_error_prefix(args->training.config != NULL ? "--config" : "--model");
    DT_TRY(st);
    return DT_OK;
}

dt_status cli_check_trained(const cli_args *args)
{
    dt_checkpoint *c;
    bool packed;

    DT_CHECK(args->weights == NULL, DT_ERR_ARG,
             "--weights %s: weights of 8 and 4 bits have no gradients; leave it out",
             args->weights);
    DT_TRY(dt_checkpoint_open(args->registry, args->folder, &c));
    packed = dt_checkpoint_info(c)->packed;
    dt_checkpoint_close(&c);
    DT_CHECK(!packed, DT_ERR_UNSUPPORTED,
             "--model: %s has weights of 8 or 4 bits, which have no gradients; give the checkpoint "
             "that they were made of, and pack what comes of it: dtensor save --weights",
             args->folder);
    return DT_OK;
}

dt_status cli_read_bind(const cli_args *args, dt_bind *out)
{
    static const char *const names[] = {
        [DT_BIND_NONE] = "none", [DT_BIND_COMPACT] = "compact", [DT_BIND_SPREAD] = "spread"
    };

    *out = args->no_bind ? DT_BIND_NONE : DT_BIND_COMPACT;
    if (args->bind == NULL) return DT_OK;
    DT_CHECK(!args->no_bind || strcmp(args->bind, "none") == 0, DT_ERR_ARG,
             "--bind %s contradicts --no-bind", args->bind);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        *out = (dt_bind)i;
        if (strcmp(args->bind, names[i]) == 0) return DT_OK;
    }
    DT_FAIL(DT_ERR_ARG, "--bind: \"%s\" is unknown; choose compact, spread or none", args->bind);
}

static dt_status read_run_options(const cli_args *args, const cli_env *env,
                                  const cli_console *console, dt_run_options *run)
{
    dt_status st;

    if (env->timeout_ms != NULL)
        DT_TRY(
            cli_parse_int("DTENSOR_TIMEOUT_MS", env->timeout_ms, 1, INT32_MAX, &run->timeout_ms));
    run->fault = env->fault;
    run->links = args->link;
    run->products = args->products;
    DT_CHECK(args->products == NULL || strcmp(args->products, "one-order") == 0 ||
                 strcmp(args->products, "fastest") == 0,
             DT_ERR_ARG, "--products: \"%s\" is unknown; choose one-order or fastest",
             args->products);
    cli_modules_setup(args, run);
    run->threads_per_rank = (int)args->threads;
    DT_TRY(cli_read_bind(args, &run->bind));
    run->log = cli_log;
    run->log_arg = (void *)console;
    run->device = args->device != NULL ? args->device : "auto";
    DT_CHECK(args->isa == NULL || strcmp(args->isa, "auto") == 0 ||
                 strncmp(run->device, "cuda", 4) != 0,
             DT_ERR_ARG,
             "--isa %s names kernels of the CPU, --device %s computes on GPUs; leave one out",
             args->isa, run->device);
    st = dt_device_check(run->device);
    if (st != DT_OK) dti_error_prefix("--device");
    DT_TRY(st);
    if (args->isa == NULL) return DT_OK;
    st = dt_kernels_check(args->isa);
    if (st != DT_OK) dti_error_prefix("--isa");
    DT_TRY(st);
    run->isa = args->isa;
    return DT_OK;
}

int64_t cli_count_params(const dt_model *m)
{
    dt_layers *layers = dt_model_layers(m);
    int64_t all = 0;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            const dt_param_info info = dt_layer_param_info(layer, p);
            int64_t n = 1;
            if (!dt_layer_owns_param(layer, p)) continue;
            if (info.packed != DT_PACKED_NOT && info.packed != DT_PACKED_CODES) continue;
            for (int a = 0; a < info.n_axes; a++) n *= info.axis[a].extent;
            all += info.packed == DT_PACKED_CODES ? n * 8 / info.packing.bits : n;
        }
    }
    return all;
}

/* Weights that may lie there are of no interest. */
static dt_status describe(cli_session *s)
{
    dt_checkpoint *c;

    DT_TRY(dt_checkpoint_open(s->args->registry, s->args->folder, &c));
    s->info = *dt_checkpoint_info(c);
    dt_checkpoint_close(&c);
    return DT_OK;
}

dt_status cli_check_saved(const cli_session *s)
{
    const dt_arch *arch;

    for (int i = 0; (arch = dt_arch_at(s->args->registry, i)) != NULL; i++)
        DT_CHECK(arch->text_config == NULL || strcmp(arch->model_type, s->info.model_type) != 0,
                 DT_ERR_UNSUPPORTED,
                 "--model: a %s model is only the text part of its checkpoint: saving it would "
                 "lose the rest",
                 arch->model_type);
    return DT_OK;
}

dt_status cli_check_offload(const char *option, const char *where)
{
    char label[DT_ERROR_MESSAGE_BYTES];

    if (where == NULL || strcmp(where, "host") == 0) return DT_OK;
    DT_CHECK(access(where, W_OK | X_OK) == 0, dti_io_status(errno),
             "%s: %s: %s; name a folder that files can be made in, or \"host\" beside a GPU",
             option, dti_printable(where, label, sizeof label), strerror(errno));
    return DT_OK;
}

/* Loading judges the plan. Where it will not come so far a plan at fault is still named first: it
 * can be mended before the weights are there. */
static dt_status inspect(cli_session *s)
{
    const dt_status st = s->args->random ? describe(s)
                                         : dt_model_inspect_with(s->args->registry, s->args->folder,
                                                                 &s->info, &s->n_params, NULL);
    dt_error why;

    if (st == DT_OK) return DT_OK;
    why = *dt_last_error();
    DT_TRY(dt_model_check_dry(s->args->registry, s->args->folder, s->mesh, &s->load));
    dti_error_restore(&why);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

const char *cli_mesh_of(const cli_args *args, char text[CLI_DEFAULT_MESH])
{
    if (args->mesh != NULL) return args->mesh;
    (void)snprintf(text, CLI_DEFAULT_MESH, "tp=%d", dt_launch_size());
    return text;
}

dt_status cli_session_open(const cli_args *args, const cli_env *env, const cli_console *console,
                           cli_session *out)
{
    *out = (cli_session){
        .args = args,
        .console = console,
        .run = DT_RUN_OPTIONS_INIT,
        .load = DT_LOAD_OPTIONS_INIT,
    };
    out->mesh = cli_mesh_of(args, out->default_mesh);
    DT_CHECK(args->folder != NULL, DT_ERR_ARG,
             "no model; give --model DIR, a Hugging Face folder with config.json and "
             "model.safetensors");
    DT_TRY(read_run_options(args, env, console, &out->run));
    DT_TRY(read_mesh(out->mesh, args->oversubscribe, &out->run));
    DT_TRY(cli_read_dtype(args->dtype, &out->load));
    DT_TRY(cli_read_plan(args, &out->plan, &out->load));
    DT_TRY(cli_load_zero(args, out->mesh, &out->load));
    DT_TRY(cli_load_stages(args, out->mesh, args->schedule, &out->load));
    DT_TRY(cli_check_dims(out->mesh, &out->load));
    DT_TRY(check_named("--link", args->link, ";", "=", out->mesh));
    DT_TRY(cli_check_model(args));
    out->progress.console = console;
    out->load.progress = cli_progress_show;
    out->load.progress_arg = &out->progress;
    DT_TRY(inspect(out));
    out->dtype = out->load.keep_dtype ? out->info.dtype : out->load.dtype;
    DT_TRY(dti_alloc_array((size_t)out->run.n_ranks, sizeof *out->ranks, (void **)&out->ranks));
    return DT_OK;
}

void cli_session_close(cli_session *s)
{
    dti_free(s->ranks);
    dt_plan_release(&s->plan);
    *s = (cli_session){ 0 };
}

static void describe_rank(dt_runtime *rt, const dt_model *model, cli_rank *out)
{
    const char *device = dt_device_of(rt);
    const char *kernels = device != NULL && strcmp(device, "cpu") != 0 ? device : dt_kernels_of(rt);

    *out = (cli_rank){
        .rank = dt_runtime_rank(rt),
        .threads = dt_runtime_threads(rt),
        .bytes = dt_model_local_bytes(model),
    };
    (void)snprintf(out->cores, sizeof out->cores, "%s", dt_runtime_cores(rt));
    (void)snprintf(out->device, sizeof out->device, "%s", device != NULL ? device : "none");
    (void)snprintf(out->isa, sizeof out->isa, "%s", kernels != NULL ? kernels : "no");
}

/* A table with a row of bytes per rank, each of which holds its own, is made whole. */
dt_status cli_gather(dt_mesh *mesh, const void *mine, int64_t bytes, void *all)
{
    const int64_t shape[] = { dt_mesh_n_ranks(mesh), bytes };
    dt_placement by_rank[DT_MAX_DIMS];
    dt_tensor *rows = NULL, *whole = NULL;
    dt_status st = DT_OK;

    for (int d = 0; d < DT_MAX_DIMS; d++) by_rank[d] = DT_SHARD(0);
    DT_TRY_TO(done, st, dt_from_local(mesh, by_rank, DT_U8, 2, shape, mine, &rows));
    DT_TRY_TO(done, st, dt_full_tensor(rows, &whole));
    if (all != NULL)
        DT_TRY_TO(done, st, dt_tensor_read(whole, all, (size_t)shape[0] * (size_t)bytes));
done:
    dt_tensor_release(&rows);
    dt_tensor_release(&whole);
    return st;
}

/* Rank 0 learns what every rank has to tell. */
static dt_status gather_ranks(cli_session *s, dt_model *model)
{
    dt_mesh *mesh = dt_model_mesh(model);
    cli_rank me;

    describe_rank(dt_mesh_runtime(mesh), model, &me);
    DT_TRY(cli_gather(mesh, &me, sizeof me, me.rank == 0 ? s->ranks : NULL));
    return DT_OK;
}

static void print_ranks(const cli_session *s)
{
    const char *plan = s->args->plan;
    char number[DTI_NUMBER_BYTES], shown[DTI_SHOWN_BYTES];

    (void)fprintf(stderr, "%s, %s parameters in %s, mesh %s, %s kernels%s%s\n", s->info.model_type,
                  dti_count_text(s->n_params, number), dt_dtype_name(s->dtype), s->mesh,
                  s->ranks[0].isa, plan != NULL ? ", plan " : "",
                  plan != NULL ? dti_printable(plan, shown, sizeof shown) : "");
    for (int r = 0; r < s->run.n_ranks; r++) {
        const cli_rank *k = &s->ranks[r];
        const bool bound = k->cores[0] != '\0';
        const bool one = bound && strspn(k->cores, "0123456789") == strlen(k->cores);

        (void)fprintf(
            stderr, "  rank %-3" PRId32 " %s%s, %" PRId32 " thread%s, %s of weights\n", k->rank,
            !bound ? "not bound to cores"
            : one  ? "core "
                   : "cores ",
            k->cores, k->threads, k->threads == 1 ? "" : "s", dti_bytes_text(k->bytes, number));
    }
}

/* What the ranks of a run share. */
typedef struct launch {
    cli_session *session;
    cli_body body;
    void *arg;
} launch;

static dt_status load_model(launch *l, dt_mesh *mesh, dt_model **out)
{
    cli_session *s = l->session;
    const bool speaks = dt_runtime_rank(dt_mesh_runtime(mesh)) == 0;
    const int64_t begin = cli_now_ns();
    dt_status st;

    st = s->args->random ? dt_model_create_random(mesh, s->args->folder, &s->load, s->seed, out)
                         : dt_model_load(mesh, s->args->folder, &s->load, out);
    if (speaks && s->args->random && st == DT_OK) s->n_params = cli_count_params(*out);
    if (speaks) {
        cli_progress_end(&s->progress);
        s->loading_ns = cli_now_ns() - begin;
    }
    DT_TRY(st);
    return DT_OK;
}

static uint64_t hash_of_plan(const dt_plan *plan)
{
    uint64_t hash = 13;

    for (; plan != NULL; plan = plan->more) {
        hash = dti_hash_text(dti_hash_text(hash, plan->dim), plan->version);
        hash = dti_hash_word(hash, (uint64_t)plan->manual << 1 | (uint64_t)plan->strict);
        for (int i = 0; i < plan->n_rules; i++)
            hash = dti_hash_text(dti_hash_text(hash, plan->rules[i].pattern), plan->rules[i].style);
    }
    return hash;
}

/* Ranks of one process have one command line; processes may have been given others, and files may
 * differ between machines. */
static dt_status agree(const cli_session *s, dt_runtime *rt)
{
    cli_asked asked;

    if (s->console->n_processes == 1) return DT_OK;
    cli_ask(s->args, &asked);
    if (s->read != 0) cli_asked_number(&asked, "tokens that hash to", s->read);
    if (s->plan != NULL) cli_asked_number(&asked, "rules that hash to", hash_of_plan(s->plan));
    DT_TRY(dt_agree(rt, asked.list, asked.n));
    return DT_OK;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    launch *l = arg;
    const bool speaks = dt_runtime_rank(rt) == 0;
    dt_model *model = NULL;
    dt_mesh *mesh = NULL;
    dt_status st = DT_OK;

    DT_TRY(agree(l->session, rt));
    DT_TRY(dt_mesh_create(rt, l->session->mesh, &mesh));
    DT_TRY_TO(done, st, load_model(l, mesh, &model));
    DT_TRY_TO(done, st, gather_ranks(l->session, model));
    if (speaks && !l->session->console->quiet) print_ranks(l->session);
    DT_TRY_TO(done, st, l->body(l->arg, model, speaks));
done:
    dt_model_release(&model);
    dt_mesh_release(&mesh);
    return st;
}

dt_status cli_session_run(cli_session *s, cli_body body, void *arg)
{
    DT_TRY(cli_check_offload("--offload-parameters", s->args->offload));
    DT_TRY(dt_run(&s->run, rank_main, &(launch){ s, body, arg }));
    return DT_OK;
}

/* Members "model", "model_type", "dtype", "mesh" and "ranks". */
static json_t *json_of(const cli_session *s)
{
    char folder[DT_ERROR_MESSAGE_BYTES]; /* names of files need not be UTF-8, JSON has to be */
    json_t *ranks = json_array();

    for (int r = 0; r < s->run.n_ranks; r++) {
        const cli_rank *k = &s->ranks[r];
        (void)json_array_append_new(ranks, json_pack("{s:i, s:s, s:i, s:I}", "rank", (int)k->rank,
                                                     "cores", k->cores, "threads", (int)k->threads,
                                                     "bytes", (json_int_t)k->bytes));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "model",
                     dti_printable(s->args->folder, folder, sizeof folder), "model_type",
                     s->info.model_type, "dtype", dt_dtype_name(s->dtype), "mesh", s->mesh, "ranks",
                     ranks);
}

dt_status cli_session_put_json(const cli_session *s, json_t *object, int digits)
{
    json_t *own = json_of(s);

    if (object == NULL || own == NULL || json_object_update(object, own) != 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(own);
    DT_TRY(cli_put_json(object, JSON_COMPACT | JSON_REAL_PRECISION((size_t)digits)));
    return DT_OK;
}
