/* SPDX-License-Identifier: Apache-2.0 */
#include "models/load/stages.h"

#include <dtensor/channels.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "parallel_styles/kind.h"

/* The parts of a model in the order of a pass: embed, blocks, head. */
enum { EMBED = 0, FIRST_BLOCK = 1 };

int dti_stages_dim(const dt_mesh *mesh, const dt_load_options *o)
{
    const int dim = o->stage_dim != NULL ? dt_mesh_find_dim(mesh, o->stage_dim) : -1;

    return dim >= 0 && (dt_mesh_dim_size(mesh, dim) > 1 || o->n_stages > 1) ? dim : -1;
}

dt_mesh *dti_stages_here(const dti_stages *s, dt_mesh *mesh)
{
    return s->n_meshes > 0 && dt_mesh_is_member(mesh) ? s->meshes[dt_mesh_coord(mesh, s->dim)]
                                                      : mesh;
}

void dti_stages_free(dti_stages *s)
{
    for (int i = 0; i < s->n && s->before != NULL; i++) dt_channel_release(&s->before[i]);
    dt_channel_release(&s->result);
    for (int i = 0; i < s->n_meshes; i++) dt_mesh_release(&s->meshes[i]);
    dti_free((void *)s->before);
    dti_free((void *)s->meshes);
    dti_free(s->stage);
    *s = (dti_stages){ 0 };
}

/* --- which part a layer belongs to ------------------------------------------------------------ */

/* What is in no block is of the embedding if it takes ids, else of the head. */
static dt_status part_of(const dti_described *d, const dt_layer_spec *spec, int64_t *part)
{
    const int before = (int)strcspn(d->arch->blocks, "*");
    char *end;
    int64_t i;

    *part = dti_kind_has_ids(spec->kind) ? EMBED : FIRST_BLOCK + d->info.n_layers;
    if (strncmp(spec->name, d->arch->blocks, (size_t)before) != 0) return DT_OK;
    i = strtoll(spec->name + before, &end, 10);
    if (end == spec->name + before || (*end != '.' && *end != '\0')) return DT_OK;
    DT_CHECK(i >= 0 && i < d->info.n_layers, DT_ERR_ARG, "%s is of no block: there are %lld",
             spec->name, (long long)d->info.n_layers);
    *part = FIRST_BLOCK + i;
    return DT_OK;
}

/* --- the split -------------------------------------------------------------------------------- */

/* options.stages: "4,4,3". */
static dt_status read_split(const char *text, int64_t n_layers, dti_stages *out)
{
    const char *at = text;
    int64_t first = 0;

    for (int i = 0; i < out->n; i++) {
        dti_stage *s = &out->stage[i];
        char *end;
        s->first = first;
        s->n = *at >= '0' && *at <= '9' ? strtoll(at, &end, 10) : -1;
        s->embeds = i == 0;
        s->heads = i == out->n - 1;
        DT_CHECK(s->n >= 0 && *end == (s->heads ? '\0' : ','), DT_ERR_ARG,
                 "stages \"%s\": numbers of blocks of %d stages are wanted, with commas", text,
                 out->n);
        DT_CHECK(s->n > 0 || s->embeds || s->heads, DT_ERR_ARG,
                 "stages \"%s\": stage %d has nothing", text, i);
        DT_CHECK(s->n <= n_layers - first && (!s->heads || first + s->n == n_layers), DT_ERR_ARG,
                 "stages \"%s\": the model has %lld blocks", text, (long long)n_layers);
        first += s->n;
        at = end + 1;
    }
    return DT_OK;
}

/* What parts take of a token, and hold: sums over all before each of them. */
typedef struct part_sums {
    int64_t n;             /* parts */
    double *flops, *bytes; /* [n + 1] */
} part_sums;

/* What a split is good for, in this order: that the busiest stage does least, that the largest of
 * such splits is smallest, and that stages of those differ least. */
typedef enum goal { BUSIEST, LARGEST, UNEVEN, N_GOALS } goal;

/* What a stage of parts begin .. end - 1 adds to a goal: INFINITY beyond what those before it
 * allow. */
static double price_of(const part_sums *s, goal g, const double *most, int64_t begin, int64_t end)
{
    const double flops = s->flops[end] - s->flops[begin], bytes = s->bytes[end] - s->bytes[begin];

    if (flops > most[BUSIEST] || bytes > most[LARGEST]) return INFINITY;
    return g == BUSIEST ? flops : g == LARGEST ? bytes : flops * flops;
}

/* The best of all splits into n_stages. least[s][k] is that of parts 0 .. k - 1 in s stages, the
 * last of which begins with part cut[s][k]. */
static double best_cuts(const part_sums *sums, goal g, const double *most, int n_stages,
                        double *least, int64_t *cut)
{
    const int64_t width = sums->n + 1;

    for (int64_t k = 0; k < width; k++) least[k] = k == 0 ? 0 : INFINITY;
    for (int s = 1; s <= n_stages; s++)
        for (int64_t k = 0; k < width; k++) {
            least[s * width + k] = INFINITY;
            for (int64_t j = s - 1; j < k; j++) {
                const double before = least[(s - 1) * width + j];
                const double price = price_of(sums, g, most, j, k);
                const double both = g == UNEVEN ? before + price : fmax(before, price);
                if (both > least[s * width + k])
                    continue; /* of equal ones the last stage is short */
                least[s * width + k] = both;
                cut[s * width + k] = j;
            }
        }
    return least[n_stages * width + sums->n];
}

/* Runs of parts, none empty. */
static dt_status split_by_cost(const part_sums *sums, dti_stages *out)
{
    const size_t n = (size_t)((out->n + 1) * (sums->n + 1));
    double *least, most[N_GOALS] = { INFINITY, INFINITY, INFINITY };
    int64_t *cut;
    dt_status st = DT_OK;

    DT_TRY(dti_alloc_array(n, sizeof *least, (void **)&least));
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *cut, (void **)&cut));
    for (goal g = BUSIEST; g < N_GOALS; g++) most[g] = best_cuts(sums, g, most, out->n, least, cut);
    for (int64_t s = out->n, end = sums->n; s > 0; s--) {
        const int64_t begin = cut[s * (sums->n + 1) + end];
        dti_stage *stage = &out->stage[s - 1];
        stage->embeds = begin == EMBED;
        stage->heads = end == sums->n;
        stage->first = dti_max(begin - FIRST_BLOCK, 0);
        stage->n = end - FIRST_BLOCK - stage->heads - stage->first;
        end = begin;
    }
    dti_free(cut);
done:
    dti_free(least);
    return st;
}

/* Of all parameters, with those of another layer that it shares. */
static double bytes_of(const dt_layer_spec *spec, dt_dtype dtype)
{
    double sum = 0;

    for (int p = 0; p < dt_spec_n_params(spec); p++) {
        const dt_param_info info = dt_spec_param(spec, p);
        double bytes = (double)dt_dtype_size(dti_param_dtype(&info, dtype));
        for (int a = 0; a < info.n_axes; a++) bytes *= (double)info.axis[a].extent;
        if (info.n_axes > 0) sum += bytes;
    }
    return sum;
}

/* By operations: of a token each weight takes its own. An embedding costs no more than a look. */
static dt_status split_evenly(const dti_described *d, dti_stages *out)
{
    part_sums sums = { .n = d->info.n_layers + 2 };
    dt_status st = DT_OK;

    DT_CHECK(out->n <= sums.n, DT_ERR_ARG,
             "%d stages of a model that has %lld blocks, an embedding and a head", out->n,
             (long long)d->info.n_layers);
    DT_TRY(dti_alloc_array(2 * (size_t)(sums.n + 1), sizeof *sums.flops, (void **)&sums.flops));
    sums.bytes = sums.flops + sums.n + 1;
    for (int i = 0; i < d->builder.n && st == DT_OK; i++) {
        int64_t part;
        st = part_of(d, &d->builder.specs[i], &part);
        if (st != DT_OK) break;
        sums.flops[part + 1] += dti_spec_flops(&d->builder.specs[i]);
        sums.bytes[part + 1] += bytes_of(&d->builder.specs[i], d->info.dtype);
    }
    for (int64_t k = 0; k < sums.n; k++) {
        sums.flops[k + 1] += sums.flops[k];
        sums.bytes[k + 1] += sums.bytes[k];
    }
    if (st == DT_OK) st = split_by_cost(&sums, out);
    dti_free(sums.flops);
    return st;
}

/* --- all of it -------------------------------------------------------------------------------- */

static dt_status count_stages(const dt_mesh *mesh, const dt_load_options *o, dti_stages *out)
{
    const int p = dt_mesh_dim_size(mesh, out->dim);

    out->n = o->n_stages > 0 ? o->n_stages : p;
    DT_CHECK(o->n_stages >= 0 && out->n % p == 0, DT_ERR_ARG,
             "stages: %d over mesh dim \"%s\" of %d: each of its ranks has as many of them",
             o->n_stages, o->stage_dim, p);
    DT_TRY(dti_alloc_array((size_t)out->n, sizeof *out->stage, (void **)&out->stage));
    for (int s = 0; s < out->n; s++)
        out->stage[s].place = o->stages_turn && s / p % 2 != 0 ? p - 1 - s % p : s % p;
    return DT_OK;
}

static dt_status make_meshes(dt_mesh *mesh, dti_stages *out)
{
    const int p = dt_mesh_dim_size(mesh, out->dim);

    DT_TRY(dti_alloc_array((size_t)p, sizeof(dt_mesh *), (void **)&out->meshes));
    for (; out->n_meshes < p; out->n_meshes++)
        DT_TRY(dt_mesh_stage(mesh, dt_mesh_dim_name(mesh, out->dim), out->n_meshes,
                             &out->meshes[out->n_meshes]));
    return DT_OK;
}

static bool has_part(const dti_stage *s, int64_t part, int64_t n_layers)
{
    if (part == EMBED) return s->embeds;
    if (part == FIRST_BLOCK + n_layers) return s->heads;
    return part - FIRST_BLOCK >= s->first && part - FIRST_BLOCK < s->first + s->n;
}

/* Which stage has what, and on which ranks. */
static dt_status divide(const dti_described *d, const dt_mesh *mesh, const dt_load_options *o,
                        dti_stages *out)
{
    DT_CHECK(d->arch->blocks != NULL, DT_ERR_UNSUPPORTED,
             "%s does not say how its blocks are called (dt_arch.blocks), so no stages can be made "
             "of them",
             d->arch->model_type);
    DT_TRY(count_stages(mesh, o, out));
    if (o->stages != NULL)
        DT_TRY(read_split(o->stages, d->info.n_layers, out));
    else
        DT_TRY(split_evenly(d, out));
    return DT_OK;
}

static dt_status cut(dti_described *d, dt_mesh *mesh, const dt_load_options *o, dti_stages *out)
{
    DT_TRY(divide(d, mesh, o, out));
    DT_TRY(make_meshes(mesh, out));
    for (int i = 0; i < d->builder.n; i++) {
        int64_t part;
        DT_TRY(part_of(d, &d->builder.specs[i], &part));
        for (int s = 0; s < out->n; s++)
            if (has_part(&out->stage[s], part, d->info.n_layers)) {
                d->builder.specs[i].stage = s;
                d->builder.specs[i].mesh = out->meshes[out->stage[s].place];
            }
    }
    return DT_OK;
}

dt_status dti_stages_open(dti_stages *s, dt_mesh *mesh)
{
    if (s->n_meshes == 0 || !dt_mesh_is_member(mesh)) return DT_OK;
    DT_TRY(dti_alloc_array((size_t)s->n, sizeof(dt_channel *), (void **)&s->before));
    for (int i = 1; i < s->n; i++) {
        dt_mesh *from = s->meshes[s->stage[i - 1].place], *to = s->meshes[s->stage[i].place];
        char name[48];
        if (from == to || !(dt_mesh_is_member(from) || dt_mesh_is_member(to))) continue;
        (void)snprintf(name, sizeof name, "%s, stage %d to %d", dt_mesh_dim_name(mesh, s->dim),
                       i - 1, i);
        DT_TRY(dt_channel_create(from, to, name, &s->before[i]));
    }
    if (s->n_meshes > 1)
        DT_TRY(dt_channel_create(s->meshes[s->stage[s->n - 1].place], mesh,
                                 dt_mesh_dim_name(mesh, s->dim), &s->result));
    return DT_OK;
}

dt_status dti_stages_check(const dti_described *d, const dt_mesh *mesh, const dt_load_options *o)
{
    dti_stages s = { .dim = dti_stages_dim(mesh, o) };
    dt_status st = DT_OK;

    if (s.dim >= 0) st = divide(d, mesh, o, &s);
    dti_stages_free(&s);
    DT_TRY(st);
    return DT_OK;
}

dt_status dti_stages_cut(dti_described *d, dt_mesh *mesh, const dt_load_options *o, dti_stages *out)
{
    dt_status st;

    *out = (dti_stages){
        .dim = dti_stages_dim(mesh, o),
        .token_dim = o->sequence_parallel ? dt_mesh_find_dim(mesh, o->dim) : -1,
    };
    if (out->dim < 0) {
        DT_CHECK(o->stages == NULL && o->n_stages <= 1, DT_ERR_ARG,
                 "stages are cut over the mesh dim \"%s\", which this mesh does not have",
                 o->stage_dim != NULL ? o->stage_dim : "");
        DT_TRY(dti_new(sizeof *out->stage, &out->stage));
        *out->stage = (dti_stage){ .embeds = true, .heads = true, .n = d->info.n_layers };
        out->n = 1;
        return DT_OK;
    }
    st = cut(d, mesh, o, out);
    if (st != DT_OK) dti_stages_free(out);
    return st;
}
