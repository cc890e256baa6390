/* SPDX-License-Identifier: Apache-2.0
 *
 * The result of `dtensor plan` as text: what repeats from block to block is one line, with "*" for
 * the block's number and how often it stands for one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "base/writer.h"
#include "cli/print_report.h"
#include "cli/show_plan.h"

enum { NAME_BYTES = 96, TEXT_BYTES = 64, STYLE_BYTES = TEXT_BYTES, RANKS_BYTES = 25 };

/* A line of one of the two tables: its texts say which items it stands for. */
typedef struct row {
    char name[NAME_BYTES];
    char text[3][TEXT_BYTES];
    int64_t n;
    int64_t calls[2]; /* of the prompt's pass and of a step */
    int64_t bytes[2];
} row;

typedef struct table {
    row *rows;
    size_t n;
    size_t capacity;
} table;

/* Numbers between dots become "*". */
static void starred(const char *name, char out[NAME_BYTES])
{
    size_t n = 0;

    for (const char *at = name; *at != '\0' && n + 1 < NAME_BYTES;) {
        const size_t part = strcspn(at, ".");
        const bool number = part > 0 && strspn(at, "0123456789") == part;
        const int wrote = snprintf(out + n, NAME_BYTES - n, "%.*s%s", number ? 1 : (int)part,
                                   number ? "*" : at, at[part] == '.' ? "." : "");
        n += wrote > 0 ? (size_t)wrote : 0;
        at += part + (at[part] == '.');
    }
    out[n < NAME_BYTES ? n : NAME_BYTES - 1] = '\0';
}

/* The row that says the same as `like`, or a new one; NULL without memory. */
static row *row_of(table *t, const row *like)
{
    for (size_t i = 0; i < t->n; i++) {
        row *r = &t->rows[i];
        if (strcmp(r->name, like->name) == 0 && strcmp(r->text[0], like->text[0]) == 0 &&
            strcmp(r->text[1], like->text[1]) == 0 && strcmp(r->text[2], like->text[2]) == 0)
            return r;
    }
    if (dti_grow((void **)&t->rows, &t->capacity, t->n + 1, sizeof *like) != DT_OK) return NULL;
    t->rows[t->n] = *like;
    return &t->rows[t->n++];
}

static void widen(int *width, const char *text)
{
    const int n = (int)strlen(text);

    if (n > *width) *width = n;
}

/* Columns as wide as their widest text. */
static void measure(const table *t, int widths[4])
{
    for (size_t i = 0; i < t->n; i++) {
        widen(&widths[0], t->rows[i].name);
        for (int k = 0; k < 3; k++) widen(&widths[k + 1], t->rows[i].text[k]);
    }
}

/* --- parameters ------------------------------------------------------------------------------- */

/* "colwise", or "tp:colwise cp:rowwise" where there are several; "activation | replicate" where a
 * step of one token has another. */
static void style_text(const dt_mesh *mesh, const dt_layer *layer, char text[STYLE_BYTES])
{
    dti_writer w = { .text = text, .bytes = STYLE_BYTES };
    int n = 0;

    for (int d = 0; d < dt_mesh_n_dims(mesh); d++) n += dt_layer_style_on(layer, d) != NULL;
    dti_put(&w, "%s", n == 0 ? "-" : "");
    for (int d = 0; d < dt_mesh_n_dims(mesh); d++) {
        const dt_style *style = dt_layer_style_on(layer, d);
        const dt_style *step = dt_layer_step_style_on(layer, d);
        if (style == NULL) continue;
        dti_put(&w, "%s%s%s%s", w.used > 0 ? " " : "", n > 1 ? dt_mesh_dim_name(mesh, d) : "",
                n > 1 ? ":" : "", style->name);
        if (step != style) dti_put(&w, " | %s", step->name);
    }
}

static row *new_row(const cli_resolved *r, const dt_layer *layer, const char *param, row *like)
{
    char name[512];

    (void)snprintf(name, sizeof name, "%s%s%s", dt_layer_name(layer), param[0] ? "." : "", param);
    starred(name, like->name);
    style_text(r->first.mesh, layer, like->text[0]);
    return like;
}

/* A layer without parameters has a line if it does something: the style of most is "replicate". */
static void add_point(const cli_resolved *r, const dt_layer *layer, table *t)
{
    row like = { .text = { "", "-", "-" } }, *found;

    (void)new_row(r, layer, "", &like);
    if (strcmp(like.text[0], "replicate") == 0) return;
    found = row_of(t, &like);
    if (found != NULL) found->n++;
}

static void add_param(const cli_resolved *r, const dt_layer *layer, int param, table *t)
{
    const dt_local *local = dt_tensor_local(dt_layer_param(layer, param));
    const dt_layer *partner = dt_layer_owns_param(layer, param) ? NULL : dt_layer_tied_to(layer);
    const dt_param_info info = dt_layer_param_info(layer, param);
    int64_t bytes = (int64_t)dt_dtype_size(local->dtype);
    row like = { .n = 0 }, *found;

    (void)new_row(r, layer, info.name, &like);
    (void)dt_layout_print(dt_layer_param_layout(layer, param), like.text[1], TEXT_BYTES);
    (void)dti_shape_text(local->shape, local->n_axes, like.text[2], TEXT_BYTES);
    found = row_of(t, &like);
    if (found == NULL) return;
    for (int a = 0; a < local->n_axes; a++) bytes *= local->shape[a];
    found->n++;
    found->bytes[0] += partner != NULL ? 0 : bytes;
}

static void print_params(const cli_resolved *r)
{
    dt_layers *layers = dt_model_layers(r->first.model);
    char number[CLI_NUMBER_BYTES];
    int widths[4] = { 9, r->sequence_parallel ? 17 : 5, 9, 9 };
    table t = { 0 };

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) add_param(r, layer, p, &t);
        if (dt_layer_n_params(layer) == 0) add_point(r, layer, &t);
    }
    measure(&t, widths);
    (void)printf("\n%-*s %5s  %-*s  %-*s  %-*s %10s\n", widths[0], "parameter", "n", widths[1],
                 r->sequence_parallel ? "style | in a step" : "style", widths[2], "placement",
                 widths[3], "on rank 0", "bytes");
    for (size_t i = 0; i < t.n; i++) {
        const row *w = &t.rows[i];
        (void)printf("%-*s %5" PRId64 "  %-*s  %-*s  %-*s %10s\n", widths[0], w->name, w->n,
                     widths[1], w->text[0], widths[2], w->text[1], widths[3], w->text[2],
                     cli_bytes_text(w->bytes[0], number));
    }
    dti_free(t.rows);
}

/* --- collectives ------------------------------------------------------------------------------ */

static void add_pass(const cli_resolved *r, const dti_pass_cost *cost, int pass, table *t)
{
    for (size_t i = 0; i < cost->n; i++) {
        const dti_traffic *item = &cost->items[i];
        char dims[CLI_DIMS_BYTES];
        row like = { .n = 0 }, *found;

        starred(item->layer != NULL ? item->layer : "(choice of the next token)", like.name);
        (void)snprintf(like.text[0], TEXT_BYTES, "%s", dt_comm_kind_name(item->kind));
        (void)snprintf(like.text[1], TEXT_BYTES, "%.60s",
                       cli_dims_text(r->first.mesh, item->dims, dims));
        found = row_of(t, &like);
        if (found == NULL) return;
        found->calls[pass] += item->count.calls;
        found->bytes[pass] += item->count.bytes;
    }
}

static void print_traffic(const cli_resolved *r)
{
    char prompt[CLI_NUMBER_BYTES], step[CLI_NUMBER_BYTES];
    int64_t calls[2] = { 0, 0 };
    int widths[4] = { 11, 14, 4, 0 };
    table t = { 0 };

    add_pass(r, &r->first.prefill, 0, &t);
    add_pass(r, &r->first.decode, 1, &t);
    measure(&t, widths);
    (void)printf("\n%-*s  %-*s  %-*s %6s %10s %6s %10s\n", widths[0], "collectives", widths[1],
                 "kind", widths[2], "over", "calls", "prompt", "calls", "step");
    for (size_t i = 0; i < t.n; i++) {
        const row *w = &t.rows[i];
        (void)printf("%-*s  %-*s  %-*s %6" PRId64 " %10s %6" PRId64 " %10s\n", widths[0], w->name,
                     widths[1], w->text[0], widths[2], w->text[1], w->calls[0],
                     cli_bytes_text(w->bytes[0], prompt), w->calls[1],
                     cli_bytes_text(w->bytes[1], step));
        for (int k = 0; k < 2; k++) calls[k] += w->calls[k];
    }
    (void)printf("%-*s  %-*s  %-*s %6" PRId64 " %10s %6" PRId64 " %10s\n", widths[0], "all",
                 widths[1], "", widths[2], "", calls[0],
                 cli_bytes_text(r->ranks[0].prompt_bytes, prompt), calls[1],
                 cli_bytes_text(r->ranks[0].step_bytes, step));
    dti_free(t.rows);
}

/* --- ranks ------------------------------------------------------------------------------------ */

static bool same_cost(const cli_resolved *r, int a, int b)
{
    return memcmp(&r->ranks[a], &r->ranks[b], sizeof *r->ranks) == 0;
}

/* "0-5,64-69,...": the ranks from `first` on that cost the same. Returns how many. */
static int ranks_text(const cli_resolved *r, int first, char text[RANKS_BYTES])
{
    size_t used = 0;
    int n = 0;

    for (int begin = first, end; begin < r->n_ranks; begin = end) {
        char range[32];
        int bytes;
        for (end = begin; end < r->n_ranks && same_cost(r, first, end);) end++;
        n += end - begin;
        bytes = snprintf(range, sizeof range, end > begin + 1 ? "%s%d-%d" : "%s%d",
                         begin > first ? "," : "", begin, end - 1);
        if (used + (size_t)bytes + sizeof ",..." <= RANKS_BYTES)
            used += (size_t)snprintf(text + used, RANKS_BYTES - used, "%s", range);
        else if (used + sizeof ",..." <= RANKS_BYTES) {
            (void)snprintf(text + used, RANKS_BYTES - used, ",...");
            used = RANKS_BYTES;
        }
        while (end < r->n_ranks && !same_cost(r, first, end)) end++;
    }
    return n;
}

static void print_cost(const cli_resolved *r, int first)
{
    const dti_rank_cost *c = &r->ranks[first];
    char text[RANKS_BYTES], number[4][CLI_NUMBER_BYTES];
    const int n = ranks_text(r, first, text);

    (void)printf("%-*s %8d %10s %10s %12s %10s\n", RANKS_BYTES - 1, text, n,
                 cli_bytes_text(c->weight_bytes, number[0]),
                 cli_bytes_text(c->cache_bytes, number[1]),
                 cli_bytes_text(c->activation_bytes, number[2]),
                 cli_bytes_text(c->weight_bytes + c->cache_bytes + c->activation_bytes, number[3]));
}

/* One line for all ranks that cost the same. */
static dt_status print_ranks(const cli_resolved *r)
{
    dt_status st = DT_OK;
    size_t n = 0, capacity = 0;
    int *shown = NULL; /* the first rank of each line */

    (void)printf("\n%-*s %8s %10s %10s %12s %10s\n", RANKS_BYTES - 1, "ranks", "n", "weights",
                 "caches", "temporaries", "all");
    for (int rank = 0; rank < r->n_ranks; rank++) {
        size_t i = 0;
        if (rank > 0 && same_cost(r, rank, rank - 1)) continue;
        while (i < n && !same_cost(r, rank, shown[i])) i++;
        if (i < n) continue;
        DT_TRY_TO(done, st, dti_grow((void **)&shown, &capacity, n + 1, sizeof *shown));
        shown[n++] = rank;
        print_cost(r, rank);
    }
done:
    dti_free(shown);
    return st;
}

dt_status cli_resolved_print(const cli_resolved *r)
{
    const dt_model_info *info = dt_model_info_of(r->first.model);
    char number[CLI_NUMBER_BYTES];

    (void)printf("%s, %s parameters in %s, mesh %s of %d rank%s, %" PRId64 " sequence%s of %" PRId64
                 " tokens%s%s%s\n",
                 info->model_type, cli_count_text(r->n_params, number), dt_dtype_name(info->dtype),
                 r->mesh, r->n_ranks, r->n_ranks == 1 ? "" : "s", r->batch,
                 r->batch == 1 ? "" : "s", r->sequence, r->plan != NULL ? ", plan " : "",
                 r->plan != NULL ? r->plan : "", r->sequence_parallel ? ", tokens cut" : "");
    print_params(r);
    print_traffic(r);
    DT_TRY(print_ranks(r));
    return DT_OK;
}
