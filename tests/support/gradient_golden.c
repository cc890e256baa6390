/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/gradient_golden.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "files/safetensors.h"

enum { FACTS = 5 };

/* --- reading ---------------------------------------------------------------------------------- */

/* An open fixture; `prefix` is the case's "short." or "long.". */
typedef struct source {
    dti_st_file *file;
    dti_st_stage stage;
    const char *prefix;
} source;

/* The whole of a tensor with n_axes axes, of `prefix` or of all cases; freed with dti_free(). */
static dt_status read_all(const source *s, const char *prefix, const char *what, dt_dtype dtype,
                          int n_axes, const dti_st_entry **entry, void *to)
{
    char name[32];
    const dti_st_entry *e;
    size_t n = 1;

    (void)snprintf(name, sizeof name, "%s%s", prefix, what);
    *entry = e = dti_st_find(s->file, name);
    DT_EXPECT(e != NULL && e->dtype == dtype && e->n_axes == n_axes, "%s", name);
    for (int a = 0; a < n_axes; a++) n *= (size_t)e->shape[a];
    DT_TRY(dti_alloc_array(n, dt_dtype_size(dtype), to));
    return dti_st_read_slice(s->file, e, NULL, NULL, dtype, &s->stage, *(void **)to);
}

static dt_status read_ids(const source *s, const char *what, int64_t vocab_least,
                          dt_gradient_golden *x, int32_t *to)
{
    const dti_st_entry *e;
    DT_FREED int64_t *ids = NULL;

    DT_TRY(read_all(s, s->prefix, what, DT_I64, 2, &e, &ids));
    x->rows = e->shape[0];
    x->length = e->shape[1];
    DT_EXPECT(x->rows * x->length <= DT_GRADIENT_MAX_TOKENS, "%s", what);
    for (int64_t i = 0; i < x->rows * x->length; i++) {
        DT_EXPECT(ids[i] >= vocab_least && ids[i] <= INT32_MAX, "%s", what);
        to[i] = (int32_t)ids[i];
    }
    return DT_OK;
}

static dt_status read_text(const source *s, dt_gradient_golden *x)
{
    const dti_st_entry *e;
    DT_FREED double *loss = NULL;

    DT_TRY(read_ids(s, "targets", DT_GRADIENT_IGNORED, x, x->targets));
    DT_TRY(read_ids(s, "tokens", 0, x, x->tokens));
    for (int64_t i = 0; i < x->rows * x->length; i++)
        x->n_valid += x->targets[i] != DT_GRADIENT_IGNORED;
    DT_TRY(read_all(s, s->prefix, "loss", DT_F64, 1, &e, &loss));
    DT_EXPECT(e->shape[0] == 3, "losses");
    x->loss_f32 = loss[0];
    x->loss_bf16 = loss[1];
    x->loss_f64 = loss[2];
    return DT_OK;
}

/* Names follow each other with a line feed between; each becomes a string. */
static dt_status read_names(const source *s, dt_gradient_golden *x)
{
    const dti_st_entry *e;
    DT_FREED char *bytes = NULL;

    DT_TRY(read_all(s, "", "names", DT_U8, 1, &e, &bytes));
    DT_TRY(dti_alloc_array((size_t)e->shape[0] + 1, 1, (void **)&x->names));
    memcpy(x->names, bytes, (size_t)e->shape[0]);
    x->names[e->shape[0]] = '\0';
    x->n_gradients = 1;
    for (const char *at = x->names; (at = strchr(at, '\n')) != NULL; at++) x->n_gradients++;
    DT_TRY(dti_alloc_array(x->n_gradients, sizeof *x->gradients, (void **)&x->gradients));
    char *at = x->names;
    for (size_t i = 0; i < x->n_gradients; i++) {
        x->gradients[i] = (dt_golden_gradient){ .name = at, .n = 1 };
        at += strcspn(at, "\n");
        *at++ = '\0';
    }
    return DT_OK;
}

static dt_status read_gradients(const source *s, dt_gradient_golden *x)
{
    const dti_st_entry *e, *facts_of, *shapes_of, *chunk_of;
    DT_FREED double *facts = NULL;
    DT_FREED int64_t *shapes = NULL, *chunk = NULL;
    int64_t n_values = 0;
    const int64_t n = (int64_t)x->n_gradients;

    DT_TRY(read_all(s, "", "shapes", DT_I64, 2, &shapes_of, &shapes));
    DT_TRY(read_all(s, "", "chunk", DT_I64, 1, &chunk_of, &chunk));
    DT_TRY(read_all(s, s->prefix, "facts", DT_F64, 2, &facts_of, &facts));
    DT_TRY(read_all(s, s->prefix, "values", DT_F32, 1, &e, &x->values));
    DT_EXPECT(shapes_of->shape[0] == n && shapes_of->shape[1] == 4, "shapes");
    DT_EXPECT(facts_of->shape[0] == n && facts_of->shape[1] == FACTS, "facts");
    DT_EXPECT(chunk_of->shape[0] == n, "chunk");
    for (size_t i = 0; i < x->n_gradients; i++) {
        dt_golden_gradient *g = &x->gradients[i];
        const double *fact = facts + FACTS * i;
        for (; g->n_axes < 4 && shapes[4 * i + (size_t)g->n_axes] > 0; g->n_axes++)
            g->n *= g->shape[g->n_axes] = shapes[4 * i + (size_t)g->n_axes];
        g->chunk = chunk[i];
        DT_EXPECT(g->chunk > 0, "chunk of %s", g->name);
        g->values = x->values + n_values;
        n_values += (g->n - 1) / g->chunk + 1;
        g->largest = fact[0];
        g->rms = fact[1];
        g->f32_off = fact[2];
        g->bf16_rms = fact[3];
        g->bf16_max = fact[4];
    }
    DT_EXPECT(n_values == e->shape[0], "%lld values, not %lld", (long long)e->shape[0],
              (long long)n_values);
    return DT_OK;
}

static dt_status read_pair(const source *s, const char *what, double *f32, double *f64)
{
    const size_t bytes = DT_TRAINING_STEPS * sizeof(double);
    const dti_st_entry *e;
    DT_FREED double *both = NULL;

    DT_TRY(read_all(s, s->prefix, what, DT_F64, 2, &e, &both));
    DT_EXPECT(e->shape[0] == 2 && e->shape[1] == DT_TRAINING_STEPS, "%s", what);
    memcpy(f32, both, bytes);
    memcpy(f64, both + DT_TRAINING_STEPS, bytes);
    return DT_OK;
}

static dt_status read_training(const source *s, dt_training_golden *x)
{
    const dti_st_entry *e;
    DT_FREED int64_t *batch = NULL;
    DT_FREED double *rate = NULL;

    DT_TRY(read_all(s, "", "batch", DT_I64, 1, &e, &batch));
    DT_EXPECT(e->shape[0] == 3 && batch[0] == DT_TRAINING_STEPS, "batch");
    x->rows = batch[1];
    x->length = batch[2];
    DT_TRY(read_all(s, "", "tokens", DT_I32, 1, &e, &x->tokens));
    DT_EXPECT(e->shape[0] == batch[0] * batch[1] * batch[2] + 1, "tokens");
    DT_TRY(read_all(s, s->prefix, "rate", DT_F64, 1, &e, &rate));
    x->lr = rate[0];
    DT_TRY(read_pair(s, "loss", x->loss_f32, x->loss_f64));
    DT_TRY(read_pair(s, "norm", x->norm_f32, x->norm_f64));
    return DT_OK;
}

/* One of the two kinds of files; `training` is NULL for gradients. */
static dt_status open_fixture(const char *fixture, const char *which, dt_gradient_golden *x,
                              dt_training_golden *training)
{
    char path[DT_TEST_PATH_BYTES + 32], prefix[16];
    source s = { .prefix = prefix };
    dt_status st = DT_OK;

    (void)snprintf(prefix, sizeof prefix, "%s.", which);
    (void)dt_test_source_path(x->folder, "tests/golden/%s", fixture);
    (void)snprintf(path, sizeof path, "%s/%s.safetensors", x->folder,
                   training != NULL ? "training" : "gradients");
    DT_TRY(dti_st_open(path, &s.file));
    DT_TRY_TO(done, st, dti_st_stage_create(0, NULL, &s.stage));
    DT_TRY_TO(done, st, training != NULL ? read_training(&s, training) : read_text(&s, x));
    DT_TRY_TO(done, st, read_names(&s, x));
    DT_TRY_TO(done, st, read_gradients(&s, x));
done:
    dti_st_stage_destroy(&s.stage);
    dti_st_close(&s.file);
    return st;
}

dt_status dt_gradient_golden_open(const char *fixture, const char *which, dt_gradient_golden *x)
{
    *x = (dt_gradient_golden){ 0 };
    DT_TRY(open_fixture(fixture, which, x, NULL));
    return DT_OK;
}

dt_status dt_training_golden_open(const char *fixture, const char *which, dt_training_golden *x)
{
    *x = (dt_training_golden){ 0 };
    DT_TRY(open_fixture(fixture, which, &x->parameters, x));
    return DT_OK;
}

void dt_training_golden_close(dt_training_golden *x)
{
    dt_gradient_golden_close(&x->parameters);
    dti_free(x->tokens);
    *x = (dt_training_golden){ 0 };
}

void dt_gradient_golden_close(dt_gradient_golden *x)
{
    dti_free(x->gradients);
    dti_free(x->names);
    dti_free(x->values);
    *x = (dt_gradient_golden){ 0 };
}

const dt_golden_gradient *dt_gradient_golden_find(const dt_gradient_golden *x, const char *name)
{
    for (size_t i = 0; i < x->n_gradients; i++)
        if (strcmp(x->gradients[i].name, name) == 0) return &x->gradients[i];
    return NULL;
}

/* Files may call a tensor as ours with another beginning, or without one. */
static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0 && (n == m || text[n - m - 1] == '.');
}

static const dt_golden_gradient *find_alike(const dt_gradient_golden *g, const char *name)
{
    const dt_golden_gradient *found = dt_gradient_golden_find(g, name);

    for (size_t i = 0; i < g->n_gradients && found == NULL; i++)
        if (ends_with(g->gradients[i].name, name) || ends_with(name, g->gradients[i].name))
            found = &g->gradients[i];
    return found;
}

static dt_status visit(const dt_gradient_golden *g, const char *name, const float *ours, int64_t n,
                       dt_golden_fn fn, void *arg)
{
    const dt_golden_gradient *theirs = find_alike(g, name);

    DT_EXPECT(theirs != NULL, "%s: nothing of %s is stored", g->folder, name);
    DT_EXPECT(theirs->n == n, "%s: %s has %lld elements, not %lld", g->folder, name,
              (long long)theirs->n, (long long)n);
    DT_TRY(fn(arg, theirs, ours));
    return DT_OK;
}

/* Experts are apart in files: [e, f, d] of gate | up or of down. */
static dt_status visit_experts(const dt_gradient_golden *g, const dt_param_info *info,
                               const float *ours, dt_golden_fn fn, void *arg)
{
    const int64_t rows = info->axis[1].extent, columns = info->axis[2].extent;
    const char *last = strrchr(info->layer, '.');

    for (int64_t e = 0; e < info->axis[0].extent; e++) {
        int64_t first = 0;
        for (int b = 0; b < 2 && info->parts[b] != NULL; b++) {
            const int64_t n =
                info->blocks[1].n > 0 ? info->blocks[1].block[b].extent : info->axis[1].extent;
            char name[256];
            (void)snprintf(name, sizeof name, "%.*s.%lld.%s.weight", (int)(last - info->layer),
                           info->layer, (long long)e, info->parts[b]);
            DT_TRY(visit(g, name, ours + (e * rows + first) * columns, n * columns, fn, arg));
            first += n;
        }
    }
    return DT_OK;
}

dt_status dt_golden_each(const dt_gradient_golden *g, const dt_param_info *info, const float *ours,
                         dt_golden_fn fn, void *arg)
{
    int64_t n = 1;
    char name[256];

    if (info->frozen) return DT_OK; /* it has none */
    for (int a = 0; a < info->n_axes; a++) n *= info->axis[a].extent;
    (void)snprintf(name, sizeof name, "%s%s%s", info->layer, info->bare ? "" : ".",
                   info->bare ? "" : info->name);
    if (find_alike(g, name) == NULL && info->parts[0] != NULL)
        DT_TRY(visit_experts(g, info, ours, fn, arg));
    else
        DT_TRY(visit(g, name, ours, n, fn, arg));
    return DT_OK;
}

/* --- comparing -------------------------------------------------------------------------------- */

/* The sign that element i of a gradient has in its sum. */
static double sign_of(uint64_t i)
{
    uint64_t h = i * 0x9E3779B97F4A7C15u;

    h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93u;
    return ((h ^ (h >> 32)) & 1) != 0 ? -1.0 : 1.0;
}

/* Value v as it is stored. */
static double value_of(const dt_golden_gradient *g, const float *ours, int64_t v)
{
    const int64_t first = v * g->chunk;
    const int64_t end = g->n - first < g->chunk ? g->n : first + g->chunk;
    double sum = 0;

    if (g->chunk == 1) return ours[first];
    for (int64_t i = first; i < end; i++) sum += sign_of((uint64_t)i) * ours[i];
    return sum;
}

/* An error over what it is measured by: where that is 0 there may be none, and never what is no
 * number. */
static double ratio(double a, double b)
{
    if (a == 0) return 0;
    return b > 0 && isfinite(a) ? a / b : INFINITY;
}

/* Where theirs is zeros ours is looked at itself: its sums may be zeros when it is not. */
static double largest_of(const float *ours, int64_t n)
{
    double largest = 0;

    for (int64_t i = 0; i < n; i++)
        largest = isnan(ours[i]) ? INFINITY : fmax(largest, fabsf(ours[i]));
    return largest;
}

double dt_golden_gradient_off_f32(const dt_golden_gradient *g, const float *ours)
{
    const int64_t n_values = (g->n - 1) / g->chunk + 1;
    double worst = 0;

    if (g->largest == 0) return ratio(largest_of(ours, g->n), 0);
    for (int64_t v = 0; v < n_values; v++) {
        const double off = fabs(value_of(g, ours, v) - g->values[v]);
        worst = isnan(off) ? INFINITY : fmax(worst, off);
    }
    return ratio(worst, g->largest);
}

double dt_golden_gradient_off_bf16(const dt_golden_gradient *g, const float *ours)
{
    const int64_t n_values = (g->n - 1) / g->chunk + 1;
    double sum = 0;

    if (g->largest == 0) return ratio(largest_of(ours, g->n), 0);
    for (int64_t v = 0; v < n_values; v++) {
        const double off = value_of(g, ours, v) - g->values[v];
        sum += off * off;
    }
    return ratio(sqrt(sum / (double)g->n), g->bf16_rms);
}
