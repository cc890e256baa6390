/* SPDX-License-Identifier: Apache-2.0
 *
 * A prediction as text, what repeats in one line, and as JSON, one object per parameter, collective
 * and rank. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "models/judge/prediction.h"
#include "parallel_styles/print_layers.h"
#include "parallel_styles/print_table.h"

enum { DIMS_BYTES = 96, RANKS_BYTES = 25 };

/* "dp,tp": the dims (bits) of a mesh. */
static const char *dims_text(const dt_mesh *mesh, uint32_t dims, char text[DIMS_BYTES])
{
    dti_writer w = { .text = text, .bytes = DIMS_BYTES };

    text[0] = '\0';
    for (int d = 0; d < dt_mesh_n_dims(mesh); d++)
        if ((dims >> d & 1u) != 0)
            dti_put(&w, "%s%s", w.used > 0 ? "," : "", dt_mesh_dim_name(mesh, d));
    return text;
}

static int dims_ranks(const dt_mesh *mesh, uint32_t dims)
{
    int n = 1;

    for (int d = 0; d < dt_mesh_n_dims(mesh); d++)
        if ((dims >> d & 1u) != 0) n *= dt_mesh_dim_size(mesh, d);
    return n;
}

/* --- collectives ------------------------------------------------------------------------------ */

static void add_pass(const dt_prediction *p, const dt_pass_cost *cost, int pass, dti_table *t)
{
    for (size_t i = 0; i < cost->n; i++) {
        const dt_traffic *item = &cost->items[i];
        char dims[DIMS_BYTES];
        dti_table_row like = { .n = 0 }, *found;

        dti_table_name(item->layer != NULL ? item->layer : "(choice of the next token)", like.name);
        (void)snprintf(like.text[0], DTI_TABLE_TEXT_BYTES, "%s", dt_comm_kind_name(item->kind));
        (void)snprintf(like.text[1], DTI_TABLE_TEXT_BYTES, "%.60s",
                       dims_text(p->first.mesh, item->dims, dims));
        found = dti_table_find(t, &like);
        if (found == NULL) return;
        found->calls[pass] += item->count.calls;
        found->bytes[pass] += item->count.bytes;
    }
}

static void put_traffic_row(dti_writer *w, const int widths[1 + DTI_TABLE_TEXTS],
                            const dti_table_row *r)
{
    char prompt[DTI_NUMBER_BYTES], step[DTI_NUMBER_BYTES];

    dti_put(w, "%-*s  %-*s  %-*s %6" PRId64 " %10s %6" PRId64 " %10s\n", widths[0], r->name,
            widths[1], r->text[0], widths[2], r->text[1], r->calls[0],
            dti_bytes_text(r->bytes[0], prompt), r->calls[1], dti_bytes_text(r->bytes[1], step));
}

/* --- experts ---------------------------------------------------------------------------------- */

static const char *const form_words[] = { "summed", "sent" };

/* Of a pass; either where they are as many. */
static const char *cheaper(const dt_expert_bytes pass[DT_N_EXPERT_FORMS])
{
    const int64_t more = pass[DT_EXPERTS_SENT].bytes - pass[DT_EXPERTS_SUMMED].bytes;

    return more == 0 ? "either" : form_words[more > 0 ? DT_EXPERTS_SUMMED : DT_EXPERTS_SENT];
}

static void put_form_row(dti_writer *w, const char *name, int64_t prompt, int64_t step)
{
    char bytes[2][DTI_NUMBER_BYTES];

    dti_put(w, "%-43s %10s %10s\n", name, dti_bytes_text(prompt, bytes[0]),
            dti_bytes_text(step, bytes[1]));
}

/* Both forms of mixtures whose experts lie whole on ranks; nobody knows whom tokens choose, before
 * a run. */
static void put_forms(dti_writer *w, const dt_prediction *p)
{
    const dt_expert_forms *f = &p->experts;
    const dt_expert_bytes *prompt = f->prompt, *step = f->step;
    char dims[DIMS_BYTES], head[DIMS_BYTES + 24];

    if (f->dims == 0) return;
    (void)snprintf(head, sizeof head, "experts over %s", dims_text(p->first.mesh, f->dims, dims));
    dti_put(w, "\n%-43s %10s %10s\n", head, "prompt", "step");
    put_form_row(w, "summed by all (moe_tp_experts)", prompt[DT_EXPERTS_SUMMED].bytes,
                 step[DT_EXPERTS_SUMMED].bytes);
    put_form_row(w, "tokens sent (ep_dispatch_experts), average", prompt[DT_EXPERTS_SENT].bytes,
                 step[DT_EXPERTS_SENT].bytes);
    put_form_row(w, "  at most, whatever they choose", prompt[DT_EXPERTS_SENT].most_bytes,
                 step[DT_EXPERTS_SENT].most_bytes);
    dti_put(w, "%-43s %10s %10s\n", "fewer bytes", cheaper(prompt), cheaper(step));
    dti_put(w, "%-43s %10s\n", "this plan", form_words[f->form]);
}

static void put_forms_pass(dti_writer *w, const char *name,
                           const dt_expert_bytes pass[DT_N_EXPERT_FORMS])
{
    dti_put(w,
            ",\n \"%s\": {\"summed\": {\"bytes\": %" PRId64 "}, \"sent\": {\"bytes\": %" PRId64
            ", \"most_bytes\": %" PRId64 "}, \"fewer\": \"%s\"}",
            name, pass[DT_EXPERTS_SUMMED].bytes, pass[DT_EXPERTS_SENT].bytes,
            pass[DT_EXPERTS_SENT].most_bytes, cheaper(pass));
}

static void put_forms_json(dti_writer *w, const dt_prediction *p)
{
    const dt_expert_forms *f = &p->experts;
    char dims[DIMS_BYTES];

    if (f->dims == 0) return;
    dti_put(w, ",\n\"experts\": {\"dim\": ");
    dti_put_json(w, dims_text(p->first.mesh, f->dims, dims));
    dti_put(w, ", \"form\": \"%s\"", form_words[f->form]);
    put_forms_pass(w, "prompt", f->prompt);
    put_forms_pass(w, "step", f->step);
    dti_put(w, "}");
}

/* --- dims that do not do what they seem to ---------------------------------------------------- */

static uint32_t dims_of_layer(const dt_layer *layer, int n_dims)
{
    uint32_t cut = 0;

    for (int k = 0; k < dt_layer_n_params(layer); k++)
        for (int d = 0; d < n_dims && dt_layer_has_param(layer, k); d++)
            if (dt_layout_placement(dt_layer_param_layout(layer, k), d).kind == DT_PLACE_SHARD)
                cut |= 1u << d;
    return cut;
}

/* Styles name them, but none cuts anything there: a point whose layers have no rule. */
static uint32_t idle_dims(const dt_prediction *p)
{
    const dt_pass_cost *passes[] = { &p->first.prefill, &p->first.decode };
    const dt_model *m = p->first.model;
    const int n = dt_mesh_n_dims(p->first.mesh);
    uint32_t used = m->batch_dims, idle = 0;

    if (dt_model_n_stages(m) > 1) return 0; /* whose layers have dims of their own */
    for (int i = 0; i < dt_layers_count(m->layers); i++)
        used |= dims_of_layer(dt_layers_at(m->layers, i), n);
    for (size_t k = 0; k < DT_COUNT(passes); k++)
        for (size_t i = 0; i < passes[k]->n; i++) used |= passes[k]->items[i].dims;
    for (int d = 0; d < n; d++)
        if (dt_mesh_dim_size(p->first.mesh, d) > 1 && !dti_has(used, d)) idle |= 1u << d;
    return idle;
}

static void put_idle(dti_writer *w, const dt_prediction *p)
{
    const uint32_t idle = idle_dims(p);
    char dims[DIMS_BYTES];

    if (idle != 0)
        dti_put(w, "\nnothing is cut over %s: all of %d ranks hold and compute the same\n",
                dims_text(p->first.mesh, idle, dims), dims_ranks(p->first.mesh, idle));
}

static void put_idle_json(dti_writer *w, const dt_prediction *p)
{
    const uint32_t idle = idle_dims(p);
    char dims[DIMS_BYTES];

    if (idle == 0) return;
    dti_put(w, ",\n\"nothing_cut_over\": ");
    dti_put_json(w, dims_text(p->first.mesh, idle, dims));
}

/* Mesh dims that are named as those of batches are, and have values laid out: experts over "dp". */
static void put_whole_batches(dti_writer *w, const dt_prediction *p)
{
    const uint32_t kept = p->first.model->kept_dims;
    char dims[DIMS_BYTES];

    if (kept == 0) return;
    dti_put(w,
            "\nbatches are not cut over %s, where styles lay out values: each of %d ranks has all "
            "sequences; a dim\nof another name for these styles (\"ep\") leaves %s to batches\n",
            dims_text(p->first.mesh, kept, dims), dims_ranks(p->first.mesh, kept), dims);
}

static void put_whole_batches_json(dti_writer *w, const dt_prediction *p)
{
    char dims[DIMS_BYTES];

    if (p->first.model->kept_dims == 0) return;
    dti_put(w, ",\n\"whole_batches_over\": ");
    dti_put_json(w, dims_text(p->first.mesh, p->first.model->kept_dims, dims));
}

/* --- the table of collectives ----------------------------------------------------------------- */

/* What of a pass is an average, at most besides. */
static int64_t most_more(const dt_pass_cost *cost)
{
    int64_t more = 0;

    for (size_t i = 0; i < cost->n; i++)
        more += cost->items[i].most_bytes - cost->items[i].count.bytes;
    return more;
}

static void put_traffic(dti_writer *w, const dt_prediction *p)
{
    dti_table_row all = { .name = "all",
                          .bytes = { p->ranks[0].prompt_bytes, p->ranks[0].step_bytes } };
    int widths[1 + DTI_TABLE_TEXTS] = { 11, 14, 4, 0 };
    char more[2][DTI_NUMBER_BYTES];
    dti_table t = { 0 };

    add_pass(p, &p->first.prefill, 0, &t);
    add_pass(p, &p->first.decode, 1, &t);
    dti_table_widths(&t, widths);
    dti_put(w, "\n%-*s  %-*s  %-*s %6s %10s %6s %10s\n", widths[0], "collectives", widths[1],
            "kind", widths[2], "over", "calls", "prompt", "calls", "step");
    for (size_t i = 0; i < t.n; i++) {
        put_traffic_row(w, widths, &t.rows[i]);
        for (int k = 0; k < 2; k++) all.calls[k] += t.rows[i].calls[k];
    }
    put_traffic_row(w, widths, &all);
    if (most_more(&p->first.prefill) + most_more(&p->first.decode) > 0)
        dti_put(w,
                "(all_to_all of experts: the average of tokens that choose all experts "
                "alike; a run's depends on its tokens,\n and is at most %s more in the prompt, %s "
                "in a step)\n",
                dti_bytes_text(most_more(&p->first.prefill), more[0]),
                dti_bytes_text(most_more(&p->first.decode), more[1]));
    dti_free(t.rows);
    put_forms(w, p);
}

/* --- ranks ------------------------------------------------------------------------------------ */

static bool same_cost(const dt_prediction *p, int a, int b)
{
    return memcmp(&p->ranks[a], &p->ranks[b], sizeof *p->ranks) == 0;
}

/* "0-5,64-69,...": the ranks from `first` on that cost the same. Returns how many. */
static int ranks_text(const dt_prediction *p, int first, char text[RANKS_BYTES])
{
    size_t used = 0;
    int n = 0;

    for (int begin = first, end; begin < p->n_ranks; begin = end) {
        char range[32];
        int bytes;
        for (end = begin; end < p->n_ranks && same_cost(p, first, end);) end++;
        n += end - begin;
        bytes = snprintf(range, sizeof range, end > begin + 1 ? "%s%d-%d" : "%s%d",
                         begin > first ? "," : "", begin, end - 1);
        if (used + (size_t)bytes + sizeof ",..." <= RANKS_BYTES)
            used += (size_t)snprintf(text + used, RANKS_BYTES - used, "%s", range);
        else if (used + sizeof ",..." <= RANKS_BYTES) {
            (void)snprintf(text + used, RANKS_BYTES - used, ",...");
            used = RANKS_BYTES;
        }
        while (end < p->n_ranks && !same_cost(p, first, end)) end++;
    }
    return n;
}

static void put_cost(dti_writer *w, const dt_prediction *p, int first)
{
    const dt_rank_cost *c = &p->ranks[first];
    char text[RANKS_BYTES], number[4][DTI_NUMBER_BYTES];
    const int n = ranks_text(p, first, text);

    dti_put(w, "%-*s %8d %10s %10s %12s %10s\n", RANKS_BYTES - 1, text, n,
            dti_bytes_text(c->weight_bytes, number[0]), dti_bytes_text(c->cache_bytes, number[1]),
            dti_bytes_text(c->activation_bytes, number[2]),
            dti_bytes_text(c->weight_bytes + c->cache_bytes + c->activation_bytes, number[3]));
}

/* One line for all ranks that cost the same. */
static void put_ranks(dti_writer *w, const dt_prediction *p)
{
    size_t n = 0, capacity = 0;
    int *shown = NULL; /* the first rank of each line */

    dti_put(w, "\n%-*s %8s %10s %10s %12s %10s\n", RANKS_BYTES - 1, "ranks", "n", "weights",
            "caches", "temporaries", "all");
    for (int rank = 0; rank < p->n_ranks; rank++) {
        size_t i = 0;
        if (rank > 0 && same_cost(p, rank, rank - 1)) continue;
        while (i < n && !same_cost(p, rank, shown[i])) i++;
        if (i < n) continue;
        if (dti_grow((void **)&shown, &capacity, n + 1, sizeof *shown) != DT_OK) break;
        shown[n++] = rank;
        put_cost(w, p, rank);
    }
    dti_free(shown);
}

/* --- as JSON ---------------------------------------------------------------------------------- */

static void put_item(dti_writer *w, const dt_mesh *mesh, const dt_traffic *t)
{
    char dims[DIMS_BYTES];

    dti_put(w, "{\"layer\": ");
    if (t->layer != NULL)
        dti_put_json(w, t->layer);
    else
        dti_put(w, "null");
    dti_put(w, ", \"kind\": \"%s\", \"dim\": ", dt_comm_kind_name(t->kind));
    dti_put_json(w, dims_text(mesh, t->dims, dims));
    dti_put(w, ", \"ranks\": %d, \"calls\": %" PRId64 ", \"bytes\": %" PRId64,
            dims_ranks(mesh, t->dims), t->count.calls, t->count.bytes);
    if (t->most_bytes > t->count.bytes) dti_put(w, ", \"most_bytes\": %" PRId64, t->most_bytes);
    dti_put(w, "}");
}

static void put_pass(dti_writer *w, const dt_prediction *p, const char *name,
                     const dt_pass_cost *cost, int64_t tokens)
{
    const char *comma = "";

    dti_put(w, ",\n\"%s\": {\"tokens\": %" PRId64 ", \"collectives\": [", name, tokens);
    for (size_t i = 0; i < cost->n; i++) {
        dti_put(w, i > 0 ? ",\n " : "\n ");
        put_item(w, p->first.mesh, &cost->items[i]);
    }
    dti_put(w, "],\n \"total\": [");
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter *c = &cost->total[k];
        if (c->calls == 0) continue;
        dti_put(w, "%s{\"kind\": \"%s\", \"calls\": %" PRId64 ", \"bytes\": %" PRId64 "}", comma,
                dt_comm_kind_name((dt_comm_kind)k), c->calls, c->bytes);
        comma = ", ";
    }
    dti_put(w, "], \"operations\": %.1f, \"kernel_bytes\": %.1f}", cost->work.flops,
            cost->work.bytes);
}

static void put_json(dti_writer *w, const dt_prediction *p)
{
    dti_put(w, "{");
    dti_layers_put(w, dt_model_layers(p->first.model), DT_F32, true);
    put_pass(w, p, "prompt", &p->first.prefill, p->batch * p->sequence);
    put_pass(w, p, "step", &p->first.decode, p->batch);
    put_forms_json(w, p);
    put_idle_json(w, p);
    put_whole_batches_json(w, p);
    dti_put(w, ",\n\"ranks\": [");
    for (int i = 0; i < p->n_ranks; i++) {
        const dt_rank_cost *c = &p->ranks[i];
        dti_put(w,
                "%s{\"rank\": %d, \"weight_bytes\": %" PRId64 ", \"cache_bytes\": %" PRId64
                ", \"activation_bytes\": %" PRId64 ", \"prompt_bytes\": %" PRId64
                ", \"step_bytes\": %" PRId64 "}",
                i > 0 ? ",\n " : "\n ", i, c->weight_bytes, c->cache_bytes, c->activation_bytes,
                c->prompt_bytes, c->step_bytes);
    }
    dti_put(w, "]}\n");
}

int dt_prediction_print(const dt_prediction *p, bool json, char *text, size_t bytes)
{
    dti_writer w = { .text = text, .bytes = bytes };

    if (text != NULL && bytes > 0) text[0] = '\0';
    if (p == NULL) return 0;
    if (json) {
        put_json(&w, p);
        return dti_written(&w);
    }
    dti_layers_put(&w, dt_model_layers(p->first.model), DT_F32, false);
    put_traffic(&w, p);
    put_idle(&w, p);
    put_whole_batches(&w, p);
    put_ranks(&w, p);
    return dti_written(&w);
}
