/* SPDX-License-Identifier: Apache-2.0
 *
 * While weights load, the process holds their shards in the run's dtype and at most 64 MiB more:
 * the system's own high-water mark of resident memory says so. */
#include <dtensor/models.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "files/safetensors.h"
#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

/* 113 million weights: enough that one more copy of any dtype would exceed the allowance. */
enum { HIDDEN = 1024, KV = 256, FF = 4096, VOCAB = 32000, LAYERS = 5, MAX_SPECS = 64 };
enum { SLACK_BYTES = 4 << 20, ALLOWED_BYTES = 64 << 20 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif

/* --- a checkpoint ----------------------------------------------------------------------------- */

typedef struct weights {
    dti_st_spec spec[MAX_SPECS];
    char name[MAX_SPECS][64];
    size_t n;
} weights;

static void add(weights *w, dt_dtype dtype, int layer, const char *name, int64_t rows,
                int64_t columns)
{
    char *full = w->name[w->n];

    if (layer < 0)
        (void)snprintf(full, sizeof w->name[0], "%s.weight", name);
    else
        (void)snprintf(full, sizeof w->name[0], "model.layers.%d.%s.weight", layer, name);
    w->spec[w->n++] = (dti_st_spec){
        .name = full, .dtype = dtype, .n_axes = columns > 0 ? 2 : 1, .shape = { rows, columns }
    };
}

static void list(weights *w, dt_dtype dtype)
{
    add(w, dtype, -1, "model.embed_tokens", VOCAB, HIDDEN);
    add(w, dtype, -1, "lm_head", VOCAB, HIDDEN);
    add(w, dtype, -1, "model.norm", HIDDEN, 0);
    for (int i = 0; i < LAYERS; i++) {
        add(w, dtype, i, "input_layernorm", HIDDEN, 0);
        add(w, dtype, i, "self_attn.q_proj", HIDDEN, HIDDEN);
        add(w, dtype, i, "self_attn.k_proj", KV, HIDDEN);
        add(w, dtype, i, "self_attn.v_proj", KV, HIDDEN);
        add(w, dtype, i, "self_attn.o_proj", HIDDEN, HIDDEN);
        add(w, dtype, i, "post_attention_layernorm", HIDDEN, 0);
        add(w, dtype, i, "mlp.gate_proj", FF, HIDDEN);
        add(w, dtype, i, "mlp.up_proj", FF, HIDDEN);
        add(w, dtype, i, "mlp.down_proj", HIDDEN, FF);
    }
}

/* Not zeros, so that the file has no holes. */
static dt_status ones(void *arg, size_t i, int64_t first, int64_t count, void *to)
{
    const weights *w = arg;

    (void)first;
    memset(to, 0x3c, (size_t)count * dt_dtype_size(w->spec[i].dtype));
    return DT_OK;
}

static void write_checkpoint(const char *folder, dt_dtype dtype)
{
    static weights w;
    char config[512], path[DT_TEST_PATH_BYTES + 32];

    (void)snprintf(config, sizeof config,
                   "{\"model_type\": \"llama\", \"hidden_size\": %d, \"num_hidden_layers\": %d, "
                   "\"num_attention_heads\": 16, \"num_key_value_heads\": %d, "
                   "\"intermediate_size\": %d, \"vocab_size\": %d, \"rms_norm_eps\": 1e-5, "
                   "\"tie_word_embeddings\": false, \"torch_dtype\": \"%s\"}",
                   HIDDEN, LAYERS, KV / (HIDDEN / 16), FF, VOCAB,
                   dtype == DT_F32 ? "float32" : "bfloat16");
    dt_test_write_file(folder, "config.json", config, strlen(config));
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    memset(&w, 0, sizeof w);
    list(&w, dtype);
    DT_ASSERT_OK(dti_st_write(path, w.spec, w.n, NULL, ones, &w));
}

/* --- the system's accounts -------------------------------------------------------------------- */

/* A field of /proc/self/status in bytes; -1 if there is none. */
static int64_t status_bytes(const char *field)
{
    FILE *f = fopen("/proc/self/status", "r");
    const size_t n = strlen(field);
    long long kib = -1;
    char line[256];

    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, field, n) == 0 && line[n] == ':' &&
            sscanf(line + n + 1, "%lld", &kib) == 1)
            break;
    if (f != NULL) (void)fclose(f);
    return kib < 0 ? -1 : (int64_t)kib * 1024;
}

/* Sets VmHWM back to what is resident now. */
static bool reset_peak(void)
{
    const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    const bool done = fd >= 0 && write(fd, "5", 1) == 1;

    if (fd >= 0) (void)close(fd);
    return done && status_bytes("VmHWM") > 0;
}

/* --- the test --------------------------------------------------------------------------------- */

typedef struct load_case {
    const char *folder;
    dt_dtype dtype; /* of the run */
} load_case;

static dt_status sum_over_ranks(dt_runtime *rt, int64_t mine, int64_t *all)
{
    DT_TRY(dti_all_reduce(dti_runtime_world(rt), &mine, all, 1, DT_I64, DT_SUM));
    return DT_OK;
}

static dt_status peak_is_small(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const load_case *c = arg;
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    int64_t before = 0, peak = 0, shards = 0;
    DT_HELD(model) *m = NULL;

    o.keep_dtype = false;
    o.dtype = c->dtype;
    DT_TRY(dti_barrier(dti_runtime_world(rt)));
    if (dt_runtime_rank(rt) == 0) {
        (void)malloc_trim(0); /* what earlier runs freed would be used again, uncounted */
        DT_EXPECT(reset_peak(), "VmHWM can be reset");
        before = status_bytes("VmRSS");
    }
    DT_TRY(dti_barrier(dti_runtime_world(rt)));
    DT_TRY(dt_model_load(mesh, c->folder, &o, &m));
    DT_TRY(sum_over_ranks(rt, dt_model_local_bytes(m), &shards));
    if (dt_runtime_rank(rt) == 0) {
        peak = status_bytes("VmHWM");
        DT_EXPECT(shards > 3 * (int64_t)ALLOWED_BYTES, "%lld bytes of shards", (long long)shards);
        /* Else the peak was not measured. Pages that were resident before may be used again. */
        DT_EXPECT(peak - before >= shards - SLACK_BYTES, "the shards are resident: %lld of %lld",
                  (long long)(peak - before), (long long)shards);
        DT_EXPECT(peak - before <= shards + ALLOWED_BYTES,
                  "%lld bytes at most while %lld bytes of shards load: %lld MiB more",
                  (long long)(peak - before), (long long)shards,
                  (long long)((peak - before - shards) >> 20));
    }
    DT_TRY(dti_barrier(dti_runtime_world(rt)));
    return DT_OK;
}

static void skip_where_the_system_does_not_say(void)
{
#ifdef HAS_SANITIZER
    dt_test_skip("sanitizers have memory of their own for every byte");
#endif
    if (!reset_peak()) dt_test_skip("/proc/self/clear_refs cannot be written");
}

static void check(dt_dtype file, dt_dtype run)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=4" };
    char folder[DT_TEST_PATH_BYTES];

    skip_where_the_system_does_not_say();
    write_checkpoint(dt_test_temp_dir(folder), file);
    for (size_t i = 0; i < DT_COUNT(meshes); i++) {
        dt_run_options o = DT_TEST_RUN_OPTIONS;
        dt_status st;

        o.timeout_ms = 300000;
        o.threads_per_rank = i == 0 ? 2 : 1;
        st = dt_test_run(&o, meshes[i], peak_is_small, &(load_case){ folder, run });
        if (st != DT_OK) dt_test_remove_dir(folder);
        DT_ASSERT_OK(st);
    }
    dt_test_remove_dir(folder);
}

DT_TEST(load_memory, peak_is_the_shards_and_little_more)
{
    check(DT_BF16, DT_BF16);
}

DT_TEST(load_memory, peak_is_counted_in_the_dtype_of_the_run)
{
    check(DT_F32, DT_BF16);
}
