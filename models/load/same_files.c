/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether ranks that are to share a model read the same one: a folder's name means another folder
 * to a process elsewhere, on another host its copy may be older, and a file may be replaced while
 * ranks open it. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/text.h"
#include "files/checkpoint.h"
#include "mesh/comm/comm.h"
#include "mesh/runtime.h"
#include "models/generation/generation_config.h"
#include "models/load/load.h"
#include "weights/param_tensors.h"

/* Every SAMPLE_EACH-th tensor, MOST_SAMPLES of them: a read each. 7 goes through all kinds of
 * tensors that blocks have, where they have 8, 9 or 12. */
enum { SAMPLE_EACH = 7, MOST_SAMPLES = 256, SAMPLE = 16 };

enum { CONFIG, GENERATION, WEIGHTS, N_FILES };

/* What a rank has read, or why it could not. */
typedef struct seen {
    int32_t rank, status, n_layers;
    uint64_t hash[N_FILES];
    char message[DT_ERROR_MESSAGE_BYTES];
} seen;

typedef struct sampler {
    const dti_ckpt *ckpt;
    int64_t n, n_samples;
    uint64_t hash;
} sampler;

/* Some numbers from the middle of a tensor, as they are in the file. */
static dt_status add_numbers(sampler *s, const dti_st_entry *e)
{
    int64_t begin[DT_MAX_AXES] = { 0 }, end[DT_MAX_AXES] = { 0 };
    char numbers[SAMPLE * sizeof(double)] = { 0 }, room[sizeof numbers];
    const dti_st_stage stage = { room, sizeof room, NULL };
    int64_t n = 1;

    for (int a = 0; a < e->n_axes; a++) {
        begin[a] = e->shape[a] / 2;
        end[a] = a + 1 < e->n_axes ? begin[a] + 1 : dti_min(begin[a] + SAMPLE, e->shape[a]);
        n *= dti_min(end[a], e->shape[a]) - begin[a];
    }
    if (n <= 0) return DT_OK;
    DT_TRY(dti_ckpt_read(s->ckpt, e->name, begin, end, e->dtype, &stage, numbers));
    s->hash = dti_hash_bytes(s->hash, numbers, sizeof numbers);
    s->n_samples++;
    return DT_OK;
}

static dt_status add_tensor(void *arg, const dti_param_tensor *t)
{
    const dti_st_entry *e = t->entry;
    sampler *s = arg;

    DT_CHECK(e != NULL, DT_ERR_INTERNAL, "%s was there before", t->name);
    s->hash = dti_hash_word(dti_hash_text(s->hash, e->name), (uint64_t)e->dtype);
    s->hash = dti_hash_bytes(s->hash, e->shape, (size_t)e->n_axes * sizeof e->shape[0]);
    if (s->n++ % SAMPLE_EACH == 0 && s->n_samples < MOST_SAMPLES) DT_TRY(add_numbers(s, e));
    return DT_OK;
}

static dt_status hash_weights(const dt_model *m, const dti_ckpt *ckpt, uint64_t *hash)
{
    sampler s = { .ckpt = ckpt };

    for (int i = 0; i < dt_layers_count(m->layers); i++) {
        const dt_layer *layer = dt_layers_at(m->layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            const dt_param_info info = dt_layer_param_info(layer, p);
            if (!dt_layer_owns_param(layer, p)) continue;
            DT_TRY(dti_each_tensor(ckpt, m->arch->spellings, &info, add_tensor, &s));
        }
    }
    *hash = s.hash;
    return DT_OK;
}

static dt_status compare(const seen *all, int n, const char *folder)
{
    static const char *const files[] = { "config.json", "generation_config.json", "weights" };
    char shown[DTI_SHOWN_BYTES];

    (void)dti_printable(folder, shown, sizeof shown);
    for (int r = 0; r < n; r++)
        DT_CHECK(all[r].status == DT_OK, (dt_status)all[r].status, "rank %d: %s", (int)all[r].rank,
                 all[r].message);
    for (int r = 1; r < n; r++)
        DT_CHECK(all[r].n_layers == all[0].n_layers || all[r].hash[CONFIG] != all[0].hash[CONFIG],
                 DT_ERR_ARG, "rank %d has made a model of %d layers, rank %d one of %d",
                 (int)all[0].rank, (int)all[0].n_layers, (int)all[r].rank, (int)all[r].n_layers);
    for (int r = 1; r < n; r++)
        for (int f = 0; f < N_FILES; f++)
            DT_CHECK(all[r].hash[f] == all[0].hash[f], DT_ERR_ARG,
                     "%s: its %s %s not the same for ranks %d and %d; all ranks need the same "
                     "files, and these must not change while a model is loaded",
                     shown, files[f], f == WEIGHTS ? "are" : "is", (int)all[0].rank,
                     (int)all[r].rank);
    return DT_OK;
}

/* After these the world is aborted: the other ranks know. */
static bool others_know(dt_status st)
{
    return st == DT_ERR_MEMORY || st == DT_ERR_IO || st == DT_ERR_DEVICE || st == DT_ERR_INTERNAL ||
           st == DT_ERR_COMM;
}

static dt_status gather(const dt_model *m, dt_mesh *mesh, const seen *mine)
{
    const int n = dt_mesh_n_ranks(mesh);
    int64_t *counts = NULL;
    dt_status st = DT_OK;
    seen *all = NULL;
    dti_comm *comm;

    DT_TRY(dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &comm));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)n, sizeof *all, (void **)&all));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)n, sizeof *counts, (void **)&counts));
    for (int r = 0; r < n; r++) counts[r] = (int64_t)sizeof *mine;
    DT_TRY_TO(done, st, dti_all_gather(comm, mine, all, counts, NULL, DT_U8));
    if (m != NULL) DT_TRY_TO(done, st, compare(all, n, m->folder));
done:
    dti_free(counts);
    dti_free(all);
    return st;
}

dt_status dti_check_same_files(dt_mesh *mesh, dt_status st, const dt_model *m, uint64_t config_hash,
                               const dti_ckpt *ckpt)
{
    seen mine = { .rank = dt_runtime_rank(dt_mesh_runtime(mesh)) };
    dt_error why;
    dt_status heard;

    if (dt_mesh_n_ranks(mesh) == 1 || !dt_mesh_is_member(mesh) || others_know(st)) return st;
    mine.hash[CONFIG] = config_hash;
    if (st == DT_OK && m->generation != NULL) mine.hash[GENERATION] = m->generation->hash;
    if (st == DT_OK) mine.n_layers = dt_layers_count(m->layers);
    if (st == DT_OK) st = hash_weights(m, ckpt, &mine.hash[WEIGHTS]);
    if (others_know(st)) return st;
    why = *dt_last_error();
    mine.status = (int32_t)st;
    if (st != DT_OK) (void)snprintf(mine.message, sizeof mine.message, "%s", why.message);
    heard = gather(st == DT_OK ? m : NULL, mesh, &mine);
    if (st != DT_OK) dti_error_restore(&why);
    return st != DT_OK ? st : heard;
}
