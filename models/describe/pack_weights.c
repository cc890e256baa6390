/* SPDX-License-Identifier: Apache-2.0
 *
 * Which linear layers and experts of a model get weights of few bits, in which groups of inputs. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "models/describe/describe.h"

enum { LEAST_GROUP = 16, MOST_GROUP = 1 << 20, MOST_KEPT = 16, PATTERN_BYTES = 160 };

/* What a caller wants, "int4 group=64 asymmetric head keep=model.layers.0.**". */
typedef struct wish {
    dt_packing packing;
    bool zeros, head;
    char kept[MOST_KEPT][PATTERN_BYTES];
    int n_kept;
} wish;

static bool is_word(const char *word, size_t n, const char *text)
{
    return strlen(text) == n && memcmp(word, text, n) == 0;
}

static dt_status read_group(const char *digits, size_t n, wish *w)
{
    char *end;
    const long group = strtol(digits, &end, 10);

    DT_CHECK(n > 0 && end == digits + n && group >= LEAST_GROUP && group <= MOST_GROUP &&
                 (group & (group - 1)) == 0,
             DT_ERR_ARG, "weights: group=%.*s: a power of two from %d to %d is needed",
             (int)(n < 20 ? n : 20), digits, (int)LEAST_GROUP, (int)MOST_GROUP);
    DT_CHECK(w->packing.group == 0, DT_ERR_ARG, "weights: group=N is said twice");
    w->packing.group = group;
    return DT_OK;
}

static dt_status read_word(const char *word, size_t n, wish *w)
{
    if (is_word(word, n, "int8") || is_word(word, n, "int4")) {
        DT_CHECK(w->packing.bits == 0, DT_ERR_ARG, "weights: int8 or int4, one of them");
        w->packing.bits = word[3] - '0';
    } else if (n > 6 && strncmp(word, "group=", 6) == 0) {
        DT_TRY(read_group(word + 6, n - 6, w));
    } else if (n > 5 && strncmp(word, "keep=", 5) == 0) {
        DT_CHECK(w->n_kept < MOST_KEPT && n - 5 < PATTERN_BYTES, DT_ERR_ARG,
                 "weights: %d patterns of less than %d bytes can be kept", (int)MOST_KEPT,
                 (int)PATTERN_BYTES);
        memcpy(w->kept[w->n_kept++], word + 5, n - 5);
    } else if (is_word(word, n, "asymmetric")) {
        w->zeros = true;
    } else if (is_word(word, n, "head")) {
        w->head = true;
    } else {
        DT_FAIL(DT_ERR_ARG,
                "weights: unknown word \"%.*s\"; there are int8, int4, group=N, asymmetric, head, "
                "keep=PATTERN",
                (int)(n < DTI_SHOWN_BYTES ? n : DTI_SHOWN_BYTES), word);
    }
    return DT_OK;
}

static dt_status read_wish(const char *how, wish *w)
{
    const char *at = how;

    for (size_t n; (n = dti_next_word(&at)) > 0; at += n) DT_TRY(read_word(at, n, w));
    if (w->packing.group == 0) w->packing.group = 128;
    DT_CHECK(w->packing.bits != 0, DT_ERR_ARG, "weights: \"%.80s\" does not say int8 or int4", how);
    return DT_OK;
}

/* "num_experts"; but "n_shared_experts * moe_intermediate_size" are those of one for all tokens. */
bool dti_chooses_experts(const dti_described *d, int i)
{
    const char *outputs = d->builder.keys[i][0];

    return d->builder.specs[i].kind == &dt_linear_kind && outputs != NULL &&
           strstr(outputs, "experts") != NULL && strchr(outputs, '*') == NULL;
}

/* Heads are few products among many, and the last; what chooses experts is small and decides. */
static bool is_kept(const dti_described *d, int i, const wish *w, bool *used)
{
    const dt_layer_spec *spec = &d->builder.specs[i];
    const char *keys = d->builder.keys[i][0], *outputs = keys != NULL ? keys : "";

    bool kept = (spec->kind != &dt_linear_kind && spec->kind != &dt_experts_kind) ||
                spec->tied_to != NULL || spec->blocks[1].n > 0 || dti_chooses_experts(d, i) ||
                (!w->head && strcmp(outputs, "vocab_size") == 0);
    for (int k = 0; k < w->n_kept; k++) {
        if (!dti_name_matches(w->kept[k], spec->name)) continue;
        used[k] = true;
        kept = true;
    }
    return kept;
}

/* The largest power of two that divides the wished group, the inputs, and the head if they count
 * heads: no cut of them parts a group. */
int64_t dti_packed_group(const dt_layer_spec *spec, int64_t group)
{
    int64_t all = group | spec->axis[1].extent;

    if (spec->axis[1].unit != DT_UNIT_ROW) all |= spec->heads.head_dim;
    return all & -all;
}

static void raise_step(const dt_axis *axis, int64_t extent, int64_t group, int64_t *step)
{
    if (axis->unit == DT_UNIT_ROW && axis->extent == extent && *step < group) *step = group;
}

/* Every axis of as many rows as packed inputs have is cut as they are, so that what one layer makes
 * another finds cut between groups. */
static void cut_alike(dti_builder *b, int64_t extent, int64_t group)
{
    for (int i = 0; i < b->n; i++)
        for (int a = 0; a < 2; a++) {
            dt_layer_spec *spec = &b->specs[i];
            raise_step(&spec->axis[a], extent, group, &spec->step[a]);
            for (int k = 0; k < spec->blocks[a].n; k++)
                raise_step(&spec->blocks[a].block[k], extent, group, &spec->step[a]);
        }
}

void dti_pack_spec(dti_builder *b, dt_layer_spec *spec, dt_packing packing, bool zeros)
{
    const bool bias = spec->with != NULL, experts = spec->kind == &dt_experts_kind;

    spec->kind = experts ? &dt_experts_packed_kind : &dt_linear_packed_kind;
    spec->packing = packing;
    if (zeros) spec->with = bias ? "bias weight_zero_point" : "weight_zero_point";
    if (spec->axis[1].unit == DT_UNIT_ROW) cut_alike(b, spec->axis[1].extent, packing.group);
}

/* The other layer of experts that are computed together: behind gate and up stands down. */
static int partner_of(const dti_builder *b, int i)
{
    const int other = i + (b->specs[i].blocks[0].n > 0 ? 1 : -1);

    return b->specs[i].kind != &dt_experts_kind && b->specs[i].kind != &dt_experts_packed_kind
               ? i
               : other;
}

/* How each layer is packed; group 0: it stays as it is. Counts the linear ones and experts that
 * stay since the caller says so. */
static void choose(const dti_described *d, const wish *w, int64_t *group, bool *used, int *n_kept)
{
    const dti_builder *b = &d->builder;

    for (int i = 0; i < b->n; i++) {
        const dt_layer_spec *spec = &b->specs[i];
        const bool kept = is_kept(d, i, w, used);
        *n_kept += kept && (spec->kind == &dt_linear_kind || spec->kind == &dt_experts_kind);
        group[i] = kept ? 0 : dti_packed_group(spec, w->packing.group);
        if (group[i] < LEAST_GROUP) group[i] = 0;
    }
    for (int i = 0; i < b->n; i++) /* both or neither */
        if (group[i] > 0 && group[partner_of(b, i)] == 0) group[i] = 0;
}

static dt_status pack_chosen(dti_described *d, const wish *w, const int64_t *group)
{
    dt_packing packing = w->packing;

    for (int i = 0; i < d->builder.n; i++) {
        packing.group = group[i];
        if (group[i] > 0) dti_pack_spec(&d->builder, &d->builder.specs[i], packing, w->zeros);
        d->info.packed = d->info.packed || group[i] > 0;
    }
    return DT_OK;
}

dt_status dti_pack_weights(dti_described *d, const char *how)
{
    bool used[MOST_KEPT] = { false };
    wish w = { .n_kept = 0 };
    dt_status st = DT_OK;
    int64_t *group;
    int n_kept = 0;

    if (how == NULL) return DT_OK;
    DT_TRY(read_wish(how, &w));
    w.packing.form = DT_PACKED_PLAIN;
    DT_CHECK(!d->info.packed, DT_ERR_ARG,
             "weights: \"%.80s\", but the checkpoint's are packed already", how);
    DT_TRY(dti_alloc_array((size_t)d->builder.n + 1, sizeof *group, (void **)&group));
    choose(d, &w, group, used, &n_kept);
    for (int k = 0; k < w.n_kept; k++)
        DT_CHECK_TO(done, st, used[k], DT_ERR_ARG, "weights: keep=%s matches no layer", w.kept[k]);
    DT_TRY_TO(done, st, pack_chosen(d, &w, group));
    DT_CHECK_TO(done, st, d->info.packed, DT_ERR_ARG,
                "weights: \"%.80s\" leaves no linear layer of %s to pack: %d stay as they are, and "
                "of the others none has inputs that groups of %d divide",
                how, d->arch->model_type, n_kept, (int)LEAST_GROUP);
done:
    dti_free(group);
    return st;
}
