/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/support/bench_model.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "files/safetensors.h"

const bench_shapes bench_llama_1b = { 2048,   16,   32,      8,       64,  8192,
                                      128256, 4096, DT_BF16, "llama", true };
const bench_shapes bench_llama_tiny = { 128, 2, 8, 4, 16, 256, 512, 1024, DT_BF16, "llama", true };

/* --- a folder that goes away ------------------------------------------------------------------ */

/* What a signal handler has to remove. */
static struct {
    char file[3][BENCH_PATH_BYTES];
    char folder[BENCH_PATH_BYTES];
} doomed;

static void remove_doomed(void)
{
    for (size_t i = 0; i < DT_COUNT(doomed.file); i++)
        if (doomed.file[i][0] != '\0') (void)unlink(doomed.file[i]);
    if (doomed.folder[0] != '\0') (void)rmdir(doomed.folder);
    doomed.folder[0] = '\0';
}

static void on_signal(int number)
{
    remove_doomed();
    _exit(128 + number);
}

static dt_status make_folder(bench_folder *f)
{
    const char *root = getenv("TMPDIR");
    const struct sigaction action = { .sa_handler = on_signal };

    (void)snprintf(f->path, sizeof f->path - 64, "%s/dtensor_bench_XXXXXX",
                   root != NULL ? root : "/tmp");
    DT_CHECK(mkdtemp(f->path) != NULL, DT_ERR_IO, "no folder %s could be made", f->path);
    f->made = true;
    (void)snprintf(doomed.file[0], BENCH_PATH_BYTES, "%.960s/config.json", f->path);
    (void)snprintf(doomed.file[1], BENCH_PATH_BYTES, "%.960s/model.safetensors", f->path);
    (void)snprintf(doomed.file[2], BENCH_PATH_BYTES, "%.960s/model.safetensors.%ld-0.tmp", f->path,
                   (long)getpid()); /* as dti_st_write() calls it meanwhile */
    (void)snprintf(doomed.folder, BENCH_PATH_BYTES, "%s", f->path);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    return DT_OK;
}

/* --- what is in it ---------------------------------------------------------------------------- */

static dt_status write_config(const char *path, const bench_shapes *s)
{
    FILE *f = fopen(path, "w");
    int n;

    DT_CHECK(f != NULL, DT_ERR_IO, "%s cannot be written", path);
    n = fprintf(f,
                "{\"model_type\": \"%s\",\n"
                " \"hidden_size\": %lld, \"num_hidden_layers\": %lld,\n"
                " \"num_attention_heads\": %lld, \"num_key_value_heads\": %lld,\n"
                " \"head_dim\": %lld, \"intermediate_size\": %lld, \"vocab_size\": %lld,\n"
                " \"max_position_embeddings\": %lld, \"rms_norm_eps\": 1e-05,\n"
                " \"rope_theta\": 500000.0, \"hidden_act\": \"silu\",\n"
                " \"tie_word_embeddings\": %s, \"torch_dtype\": \"%s\"}\n",
                s->model_type, (long long)s->hidden, (long long)s->layers, (long long)s->heads,
                (long long)s->kv_heads, (long long)s->head_dim, (long long)s->ff,
                (long long)s->vocab, (long long)s->positions, s->tied ? "true" : "false",
                s->dtype == DT_BF16 ? "bfloat16" : "float32");
    DT_CHECK(fclose(f) == 0 && n > 0, DT_ERR_IO, "%s cannot be written", path);
    return DT_OK;
}

/* Names, in the order of one block; extents in the letters of bench_shapes. */
typedef struct weight_row {
    const char *name;
    int64_t rows, columns; /* columns 0: a norm */
} weight_row;

enum { ROWS_PER_BLOCK = 9, ROWS_BEFORE = 2, NAME_BYTES = 80 };

typedef struct weight_list {
    dti_st_spec *specs;
    char (*names)[NAME_BYTES];
    size_t n;
} weight_list;

static void add_weight(weight_list *l, dt_dtype dtype, const char *prefix, const weight_row *row)
{
    dti_st_spec *spec = &l->specs[l->n];

    (void)snprintf(l->names[l->n], NAME_BYTES, "%s%s.weight", prefix, row->name);
    *spec = (dti_st_spec){ .name = l->names[l->n],
                           .dtype = dtype,
                           .n_axes = row->columns > 0 ? 2 : 1,
                           .shape = { row->rows, row->columns } };
    l->n++;
}

static void list_weights(const bench_shapes *s, weight_list *l)
{
    const int64_t d = s->hidden, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const weight_row before[ROWS_BEFORE] = { { "embed_tokens", s->vocab, d }, { "norm", d, 0 } };
    const weight_row block[ROWS_PER_BLOCK] = {
        { "input_layernorm", d, 0 },   { "self_attn.q_proj", q, d },
        { "self_attn.k_proj", kv, d }, { "self_attn.v_proj", kv, d },
        { "self_attn.o_proj", d, q },  { "post_attention_layernorm", d, 0 },
        { "mlp.gate_proj", s->ff, d }, { "mlp.up_proj", s->ff, d },
        { "mlp.down_proj", d, s->ff },
    };
    char prefix[48];

    for (int i = 0; i < ROWS_BEFORE; i++) add_weight(l, s->dtype, "model.", &before[i]);
    for (int64_t b = 0; b < s->layers; b++) {
        (void)snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)b);
        for (int i = 0; i < ROWS_PER_BLOCK; i++) add_weight(l, s->dtype, prefix, &block[i]);
    }
}

/* Norms are ones. The rest is random: either sign, magnitudes from 2^-8 to 2^-6, so that
 * activations neither vanish nor explode and no value is subnormal. */
static dt_status fill(void *arg, size_t i, int64_t first, int64_t count, void *to)
{
    const dti_st_spec *spec = &((const dti_st_spec *)arg)[i];
    uint64_t state = 0x9e3779b97f4a7c15u * (uint64_t)(first + 1) + i;
    uint16_t *halves = to;
    uint32_t *words = to;

    for (int64_t k = 0; k < count; k++) {
        uint16_t bits = 0x3f80;
        if (spec->n_axes > 1) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bits = (uint16_t)((state & 0x8000u) | (0x3b80u + (state & 0xffu)));
        }
        if (spec->dtype == DT_BF16)
            halves[k] = bits;
        else
            words[k] = (uint32_t)bits << 16 | (spec->n_axes > 1 ? (uint32_t)(state >> 48) : 0u);
    }
    return DT_OK;
}

static dt_status write_weights(const char *path, const bench_shapes *s)
{
    const size_t n = (size_t)(ROWS_BEFORE + ROWS_PER_BLOCK * s->layers);
    dt_status st = DT_OK;
    weight_list l = { 0 };
    int fd;

    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *l.specs, (void **)&l.specs));
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *l.names, (void **)&l.names));
    list_weights(s, &l);
    DT_TRY_TO(done, st, dti_st_write(path, l.specs, l.n, NULL, fill, l.specs));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) { /* writing back later would disturb what is measured */
        (void)fsync(fd);
        (void)close(fd);
    }
done:
    dti_free(l.names);
    dti_free(l.specs);
    return st;
}

dt_status bench_folder_open(const char *model, const bench_shapes *shapes, bench_folder *f)
{
    char config[BENCH_PATH_BYTES];
    dt_status st = DT_OK;

    *f = (bench_folder){ .made = false };
    if (model != NULL)
        (void)snprintf(f->path, sizeof f->path, "%s", model);
    else
        DT_TRY(make_folder(f));
    (void)snprintf(f->weights, sizeof f->weights, "%.960s/model.safetensors", f->path);
    (void)snprintf(config, sizeof config, "%.960s/config.json", f->path);
    if (model != NULL) return DT_OK;
    DT_TRY_TO(fail, st, write_config(config, shapes));
    DT_TRY_TO(fail, st, write_weights(f->weights, shapes));
    return DT_OK;

fail:
    bench_folder_close(f, false);
    return st;
}

dt_status bench_config_open(const bench_shapes *shapes, bench_folder *out)
{
    dt_status st = DT_OK;

    *out = (bench_folder){ .made = false };
    DT_TRY(make_folder(out));
    DT_TRY_TO(fail, st, write_config(doomed.file[0], shapes));
    return DT_OK;

fail:
    bench_folder_close(out, false);
    return st;
}

void bench_folder_close(bench_folder *f, bool keep)
{
    if (f->made && keep) {
        (void)fprintf(stderr, "kept: %s\n", f->path);
        memset(&doomed, 0, sizeof doomed);
    } else if (f->made) {
        remove_doomed();
    }
    *f = (bench_folder){ .made = false };
}

/* --- a model on a mesh --------------------------------------------------------------------------
 */

typedef struct model_job {
    const char *mesh, *folder;
    bench_model_main model_main;
    void *arg;
} model_job;

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    const model_job *j = arg;
    dt_status st = DT_OK;
    dt_mesh *mesh = NULL;
    dt_model *m = NULL;

    DT_TRY(dt_mesh_create(rt, j->mesh, &mesh));
    DT_TRY_TO(done, st, dt_model_create_random(mesh, j->folder, &load, 1, &m));
    DT_TRY_TO(done, st, j->model_main(rt, m, j->arg));
done:
    dt_model_release(&m);
    dt_mesh_release(&mesh);
    return st;
}

dt_status bench_on_model(const bench_common *common, const bench_shapes *shapes,
                         bench_model_main model_main, void *arg)
{
    dt_status st = DT_OK;
    bench_folder folder;
    bench_case c;
    model_job j;

    DT_TRY(bench_config_open(shapes, &folder));
    j = (model_job){ common->mesh, folder.path, model_main, arg };
    DT_TRY_TO(done, st, bench_case_of(common, common->mesh, &c));
    DT_TRY_TO(done, st, bench_run(common, &c, on_rank, &j));
done:
    bench_folder_close(&folder, false);
    return st;
}
