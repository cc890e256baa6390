/* SPDX-License-Identifier: Apache-2.0
 *
 * From a folder to a description: which architecture, its configuration, its layers as rows; and
 * the check of a checkpoint against it. */
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "files/checkpoint.h"
#include "files/folder.h"
#include "models/architectures/config_keys.h"
#include "models/describe/describe.h"
#include "models/generation/generation_config.h"
#include "models/policies/policies.h"
#include "parallel_styles/kind.h"
#include "weights/param_tensors.h"
#include "weights/saving/save.h"

enum { SHAPE_BYTES = 96, MISSING_BYTES = 256 };

static dt_status find_arch(dt_runtime *rt, const dti_json *config, const dt_arch **out)
{
    char names[DTI_ARCH_NAMES];
    const char *name;

    DT_TRY(dti_json_string(config, "model_type", &name));
    *out = dti_arch_find(rt, name, names, sizeof names);
    return *out != NULL ? DT_OK : dti_refuse_architecture(config, names);
}

/* Where generation_config.json exists it alone says what ends a text, as in Transformers. */
static dt_status read_generation(const char *dir, dt_model_info *info,
                                 dti_generation_config *config, bool *exists)
{
    dti_json_doc doc = { 0 };
    char *path = NULL;
    dt_status st = DT_OK;

    DT_TRY(dti_ckpt_path(dir, "generation_config.json", &path));
    *exists = dti_folder_has(dir, "generation_config.json");
    if (*exists) {
        DT_TRY_TO(done, st, dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc));
        DT_TRY_TO(done, st, dti_config_eos(&doc.root, info));
    }
    /* without a file: an absent value, of which everything is absent */
    DT_TRY_TO(done, st, dti_generation_config_read(&doc.root, config));
    config->hash = dti_json_hash(&doc.root);
done:
    dti_json_free(&doc);
    dti_free(path);
    return st;
}

dt_status dt_model_inspect_generation(const char *dir, dt_model_info *info)
{
    dti_generation_config config = { 0 };
    dt_status st;
    bool exists;

    DT_CHECK(dir != NULL && info != NULL, DT_ERR_ARG, "dir or info is NULL");
    st = read_generation(dir, info, &config, &exists);
    dti_generation_config_free(&config);
    DT_TRY(st);
    return DT_OK;
}

/* Transformers goes by model_type, and so do we; "architectures" is only compared. */
static dt_status read_class(const dti_json *config, dti_described *d)
{
    const dti_json all = dti_json_get(config, "architectures");
    const char *name, *first = NULL;

    for (size_t i = 0; i < dti_json_count(&all); i++) {
        const dti_json one = dti_json_at(&all, i);
        if (dti_json_kind_of(&one) != DT_CONFIG_STRING) continue;
        DT_TRY(dti_json_as_string(&one, &name));
        if (d->arch->class_name == NULL || strcmp(name, d->arch->class_name) == 0) return DT_OK;
        if (first == NULL) first = name;
    }
    if (first != NULL) DT_TRY(dti_strdup(first, &d->other_class));
    return DT_OK;
}

static dt_status read_generation_config(const char *dir, dti_described *d)
{
    int32_t outside = 0;
    bool found = false;
    dt_status st;

    for (int i = 0; i < d->info.n_eos && !found; i++) {
        outside = d->info.eos[i];
        found = outside < 0 || outside >= d->info.vocab_size;
    }
    DT_TRY(dti_new(sizeof *d->generation, &d->generation));
    st = read_generation(dir, &d->info, d->generation, &d->has_generation);
    d->eos_overruled = found && d->has_generation;
    d->config_eos = outside;
    if (st == DT_OK || st == DT_ERR_MEMORY) return st;
    dti_generation_config_release(&d->generation);
    d->info.n_eos = -1;
    DT_TRY(dti_strdup(dt_last_error()->message, &d->generation_error));
    return DT_OK;
}

/* What the text model's configuration says, and the root where that holds it. */
static dt_status read_text_config(const dti_json *root, dti_described *d)
{
    const char *inner = d->arch->text_config;
    dti_json text = *root;

    if (inner != NULL) DT_TRY(dti_json_object(root, inner, &text));
    DT_TRY(dti_facts_say(&d->facts, "model_type", d->arch->model_type));
    text.facts = &d->facts;
    DT_TRY(d->arch->read_config(d->self, &text, &d->info));
    return inner != NULL ? dti_config_outer(root, &d->info) : DT_OK;
}

/* Of a text, on all ranks together: dt_model_info.carried_bytes. */
static int64_t carried_bytes(const dti_builder *b)
{
    double bytes = 0;

    for (int i = 0; i < b->n; i++) {
        const dt_layer_spec *spec = &b->specs[i];
        for (int s = 0; spec->kind != NULL && s < dti_kind_n_states(spec->kind); s++) {
            char letters[DT_PARAM_MAX_AXES];
            int64_t plus[DT_PARAM_MAX_AXES];
            const int n = dti_kind_state(spec->kind, s, letters, plus);
            double numbers = 1;
            for (int a = 0; a < n; a++)
                numbers *= (double)dti_max(dti_spec_extent(spec, letters[a]) + plus[a], 0);
            bytes += numbers * (double)sizeof(float);
        }
    }
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_MAX / 2; /* making them fails */
}

static dt_status read_config(dt_runtime *rt, const char *dir, const dti_json *config,
                             dti_described *d)
{
    DT_TRY(find_arch(rt, config, &d->arch));
    DT_TRY(dti_new(d->arch->self_bytes, &d->self));
    (void)snprintf(d->info.model_type, sizeof d->info.model_type, "%s", d->arch->model_type);
    DT_TRY(read_text_config(config, d));
    DT_TRY(read_class(config, d));
    DT_TRY(read_generation_config(dir, d));
    d->dtype_known = d->info.dtype != DT_N_DTYPES;
    DT_TRY(d->arch->add_layers(d->self, &d->info, &d->builder));
    d->info.carried_bytes = carried_bytes(&d->builder);
    DT_TRY(dti_packed_config_read(config, d));
    DT_TRY(dti_own_plan_read(dir, config, d));
    return DT_OK;
}

/* Ranks that the styles of a load cut for. */
static int parts_of(const dt_mesh *mesh, const dt_load_options *o)
{
    const int dim = dt_mesh_find_dim(mesh, o->dim);

    return dim >= 0 ? dt_mesh_dim_size(mesh, dim) : 1;
}

static void free_notes(dti_policy_notes *notes)
{
    dti_free(notes->claims);
    dti_free(notes->rules);
    dti_arena_free(&notes->arena);
    *notes = (dti_policy_notes){ 0 };
}

/* Reads the configuration anew if policies have changed it. */
static dt_status change_config(dt_runtime *rt, const char *dir, dt_mesh *mesh,
                               const dt_load_options *o, dti_json_doc *doc, dti_described *d)
{
    dti_policy_notes notes = { 0 };
    dt_status st = dti_policies_arguments(o, parts_of(mesh, o), doc, d, &notes);

    if (st == DT_OK && notes.changed != NULL) {
        dti_described_free(d);
        st = read_config(rt, dir, &doc->root, d);
        if (st != DT_OK) dti_error_prefix("%s", notes.changed);
        if (st == DT_OK) st = dti_policies_check_read(&notes, doc);
    }
    free_notes(&d->notes);
    d->notes = notes;
    DT_TRY(st);
    return DT_OK;
}

static dt_status describe(dt_runtime *rt, const char *dir, dt_mesh *mesh, const dt_load_options *o,
                          dti_described *out)
{
    dti_json_doc doc = { 0 };
    char *path = NULL, *of;
    dt_status st = DT_OK;
    uint64_t hash;

    *out = (dti_described){ 0 };
    DT_TRY(dti_ckpt_check_folder(dir));
    DT_TRY_TO(done, st, dti_beside_look(dir, &out->beside));
    DT_TRY_TO(done, st, dti_ckpt_path(dir, "config.json", &path));
    DT_TRY_TO(done, st, dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc));
    hash = dti_json_hash(&doc.root); /* policies may change it */
    DT_TRY_TO(done, st, read_config(rt, dir, &doc.root, out));
    out->rt = rt;
    if (o != NULL && dti_policies_change(o))
        DT_TRY_TO(done, st, change_config(rt, dir, mesh, o, &doc, out));
    out->config_hash = hash;
    DT_TRY_TO(done, st, dti_arena_strndup(&out->facts.memory, doc.file, strlen(doc.file), &of));
    out->facts.of = of;
    DT_TRY_TO(done, st, dti_strdup(dir, &out->folder));
    if (o != NULL) {
        DT_CHECK_TO(
            done, st, (o->weights == NULL && !out->info.packed) || o->n_policies == 0,
            DT_ERR_UNSUPPORTED,
            "weights \"%.80s\": policies know plain weights alone; give a plan in their place",
            o->weights != NULL ? o->weights : "of the checkpoint");
        DT_TRY_TO(done, st, dti_pack_weights(out, o->weights));
    }
    if (o != NULL) DT_TRY_TO(done, st, dti_plan_settle(out, o));
done:
    if (st != DT_OK) dti_described_free(out);
    dti_json_free(&doc);
    dti_free(path);
    return st;
}

dt_status dti_describe(dt_runtime *rt, const char *dir, dti_described *out)
{
    return describe(rt, dir, NULL, NULL, out);
}

dt_status dti_describe_own(dt_runtime *rt, const dt_arch *arch, const void *self,
                           const dt_model_info *info, dti_described *out)
{
    dt_status st = DT_OK;

    *out = (dti_described){ .rt = rt, .arch = arch, .own = self, .info = *info };
    out->dtype_known = true;
    (void)snprintf(out->info.model_type, sizeof out->info.model_type, "%s", arch->model_type);
    DT_TRY_TO(fail, st, dti_new(arch->self_bytes, &out->self));
    memcpy(out->self, self, arch->self_bytes);
    DT_TRY_TO(fail, st, dti_new(sizeof *out->generation, &out->generation));
    out->generation->options = (dt_generate_options)DT_GENERATE_OPTIONS_INIT;
    DT_TRY_TO(fail, st, arch->add_layers(out->self, &out->info, &out->builder));
    out->info.carried_bytes = carried_bytes(&out->builder);
    return DT_OK;

fail:
    dti_described_free(out);
    return st;
}

dt_status dti_describe_for(const char *dir, dt_mesh *mesh, const dt_load_options *o,
                           dti_described *out)
{
    return describe(dt_mesh_runtime(mesh), dir, mesh, o, out);
}

void dti_described_free(dti_described *d)
{
    if (d->self != NULL) {
        if (d->arch->release != NULL) d->arch->release(d->self);
        dti_free(d->self);
    }
    dti_builder_free(&d->builder);
    dti_arena_free(&d->plan_arena);
    dti_free(d->folder);
    dti_free(d->beside);
    dti_generation_config_release(&d->generation);
    dti_free(d->generation_error);
    dti_free(d->other_class);
    dti_free(d->first_unused);
    dti_facts_free(&d->facts);
    free_notes(&d->notes);
    *d = (dti_described){ 0 };
}

dt_status dti_say_sizes(dti_described *d)
{
    static const char *const keys[] = { "vocab_size",          "hidden_size",
                                        "num_hidden_layers",   "num_attention_heads",
                                        "num_key_value_heads", "head_dim" };
    char number[DTI_NUMBER_BYTES];

    DT_TRY(dti_facts_say(&d->facts, "model_type", d->arch->model_type));
    for (size_t i = 0; i < DT_COUNT(keys); i++) {
        const int64_t size = dti_size_of_key(&d->info, keys[i], strlen(keys[i]));
        (void)snprintf(number, sizeof number, "%lld", (long long)size);
        DT_TRY(dti_facts_say(&d->facts, keys[i], number));
    }
    return dti_facts_say(&d->facts, "tie_word_embeddings", d->info.tied ? "true" : "false");
}

int64_t dti_size_of_key(const dt_model_info *i, const char *key, size_t n)
{
    const struct {
        const char *key;
        int64_t size;
    } sizes[] = { { "vocab_size", i->vocab_size },
                  { "hidden_size", i->hidden_size },
                  { "n_embd", i->hidden_size },
                  { "num_hidden_layers", i->n_layers },
                  { "num_layers", i->n_layers },
                  { "n_layer", i->n_layers },
                  { "num_attention_heads", i->n_heads },
                  { "num_heads", i->n_heads },
                  { "n_head", i->n_heads },
                  { "num_key_value_heads", i->n_kv_heads },
                  { "head_dim", i->head_dim },
                  { "num_kv_heads", i->n_kv_heads },
                  { "max_position_embeddings", i->max_positions },
                  { "n_positions", i->max_positions } };

    for (size_t k = 0; k < DT_COUNT(sizes); k++)
        if (strlen(sizes[k].key) == n && memcmp(sizes[k].key, key, n) == 0) return sizes[k].size;
    return -1;
}

/* "; hidden_size is missing there and was taken as 4096" of the keys in `keys`, as in
 * "num_attention_heads * head_dim": a default is no wish of the file. `size` is that of a key that
 * stands alone. Nothing if the file has them all. */
static void say_missing(const dti_ckpt *ckpt, const dti_described *d, const char *keys,
                        int64_t size, char text[MISSING_BYTES])
{
    size_t used = strlen(text), n;
    dti_json_doc doc = { 0 };
    char *path = NULL;
    dti_json config;

    if (dti_ckpt_path(dti_ckpt_folder(ckpt), "config.json", &path) != DT_OK ||
        dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc) != DT_OK)
        goto done; /* it was read before */
    config = doc.root;
    if (d->arch->text_config != NULL) config = dti_json_get(&doc.root, d->arch->text_config);
    for (const char *key = keys; *key != '\0'; key += n + strspn(key + n, " *")) {
        char name[64];
        dti_json v;
        int64_t known;
        n = strcspn(key, " *");
        if (n >= sizeof name) continue;
        (void)snprintf(name, sizeof name, "%.*s", (int)n, key);
        v = dti_json_get(&config, name);
        if (dti_json_kind_of(&v) != DT_CONFIG_ABSENT || used >= MISSING_BYTES) continue;
        known = keys[n] == '\0' ? size : dti_size_of_key(&d->info, key, n);
        if (known >= 0)
            used += (size_t)snprintf(text + used, MISSING_BYTES - used,
                                     "; %s is missing there and was taken as %lld", name,
                                     (long long)known);
    }
done:
    dti_json_free(&doc);
    dti_free(path);
}

static bool is_single(const dti_st_entry *e)
{
    int64_t n = 1;

    for (int a = 0; a < e->n_axes; a++) n *= e->shape[a];
    return n == 1;
}

/* `keys` of config.json, one per axis of a layer's weight. */
static dt_status check_shape(const dti_ckpt *ckpt, const dti_param_tensor *t,
                             const char *const keys[2], const dti_described *d)
{
    const dti_st_entry *e = t->entry;
    const int all = t->n_axes > 2; /* experts before the weight's axes */
    const bool mxfp4 = t->form == DT_PACKED_MXFP4;
    const int64_t per = mxfp4 ? t->block : 1;
    const size_t bytes = (size_t)t->n_axes * sizeof t->shape[0];
    const bool alike = e->n_axes == t->n_axes && memcmp(e->shape, t->shape, bytes) == 0;
    const bool fits = alike || (t->single && is_single(e));
    char found[SHAPE_BYTES], wanted[SHAPE_BYTES], missing[MISSING_BYTES] = "";

    for (int a = all; a < t->n_axes && a < all + 2 && !fits; a++)
        say_missing(ckpt, d, keys[a - all], t->shape[a] * (a == 2 ? per : 1), missing);
    DT_CHECK(fits, DT_ERR_FORMAT,
             "%s: tensor %s is %s, but config.json asks for %s, which is %s%s%s%s%s%s",
             dti_ckpt_label(ckpt, e->name), e->name,
             dti_shape_text(e->shape, e->n_axes, found, sizeof found),
             dti_shape_text(t->shape, t->n_axes, wanted, sizeof wanted),
             all ? "num_experts by " : "", keys[0], t->n_axes > 1 ? " by " : "",
             t->n_axes > 1 ? keys[1] : "", mxfp4 ? " / 32, blocks of MXFP4" : "", missing);
    DT_CHECK(t->dtype == NULL || strcmp(e->dtype_name, t->dtype) == 0, DT_ERR_FORMAT,
             "%s: tensor %s is %s: by quantization_config of config.json it is %s",
             dti_ckpt_label(ckpt, e->name), e->name, e->dtype_name, t->dtype);
    DT_CHECK(t->dtype != NULL ||
                 (e->supported && dt_dtype_is_float(e->dtype) && e->dtype != DT_F64),
             DT_ERR_UNSUPPORTED, "%s: tensor %s is %s: weights must be F32, BF16 or F16",
             dti_ckpt_label(ckpt, e->name), e->name, e->dtype_name);
    return DT_OK;
}

/* The check of one layer's tensors. */
typedef struct checker {
    dti_described *d;
    const dti_ckpt *ckpt;
    int layer;
    int64_t n_params;
    int64_t bytes;
    dti_complain_fn complain; /* NULL: the first fault ends the check */
    void *arg;
} checker;

static dt_status check_tensor(void *arg, const dti_param_tensor *t)
{
    checker *c = arg;
    dti_described *d = c->d;
    const dti_ckpt *ckpt = c->ckpt;
    const dti_st_entry *e = t->entry;
    char missing[MISSING_BYTES] = "";

    if (e == NULL)
        say_missing(ckpt, d,
                    d->arch->layers_key != NULL ? d->arch->layers_key : "num_hidden_layers",
                    d->info.n_layers, missing);
    DT_CHECK(e != NULL, DT_ERR_FORMAT,
             "%s: tensor %s is missing: config.json describes a %s model "
             "of %lld layers that needs it%s%s",
             dti_ckpt_folder(ckpt), t->name, d->arch->model_type, (long long)d->info.n_layers,
             strcmp(d->builder.specs[c->layer].name, "lm_head") == 0
                 ? "; a head that shares the embedding needs tie_word_embeddings true"
                 : "",
             missing);
    DT_TRY(check_shape(ckpt, t, d->builder.keys[c->layer], d));
    if (!d->dtype_known && t->n_weights < 0) {
        d->info.dtype = e->dtype;
        d->dtype_known = true;
    }
    c->bytes += e->end - e->begin;
    c->n_params +=
        t->n_weights >= 0 ? t->n_weights : (e->end - e->begin) / (int64_t)dt_dtype_size(e->dtype);
    return DT_OK;
}

static dt_status check_or_complain(void *arg, const dti_param_tensor *t)
{
    const checker *c = arg;
    const dt_status st = check_tensor(arg, t);

    if (st == DT_OK || st == DT_ERR_MEMORY || c->complain == NULL) return st;
    c->complain(c->arg, t->entry != NULL ? t->entry->name : t->name, dt_last_error()->message);
    return DT_OK;
}

/* A checkpoint that stores a head beside its embedding means it: the two may differ, whatever the
 * configuration says, and Transformers then uses the stored one. */
static void untie_stored(dti_described *d, const dti_ckpt *ckpt)
{
    for (int i = 0; i < d->builder.n; i++) {
        dt_layer_spec *spec = &d->builder.specs[i];
        if (spec->tied_to == NULL ||
            dti_find_param(ckpt, d->arch->spellings, spec->name, "weight") == NULL)
            continue;
        spec->tied_to = NULL;
        d->info.tied = false;
    }
}

static bool has_own(const dt_layer_spec *spec, int param)
{
    return spec->tied_to == NULL || param != DT_PARAM_WEIGHT;
}

static dt_status check_params(checker *c)
{
    const dti_described *d = c->d;

    for (c->layer = 0; c->layer < d->builder.n; c->layer++) {
        const dt_layer_spec *spec = &d->builder.specs[c->layer];
        for (int p = 0; p < dt_spec_n_params(spec); p++) {
            const dt_param_info info = dt_spec_param(spec, p);
            if (info.n_axes > 0 && has_own(spec, p))
                DT_TRY(dti_each_tensor(c->ckpt, d->arch->spellings, &info, check_or_complain, c));
        }
    }
    return DT_OK;
}

dt_status dti_check_all(dti_described *d, const dti_ckpt *ckpt, dti_complain_fn complain, void *arg)
{
    untie_stored(d, ckpt);
    DT_TRY(check_params(&(checker){ .d = d, .ckpt = ckpt, .complain = complain, .arg = arg }));
    return DT_OK;
}

dt_status dti_check_checkpoint(dti_described *d, const dti_ckpt *ckpt, int64_t *n_params,
                               int64_t *bytes)
{
    checker c = { .d = d, .ckpt = ckpt };
    dt_status st;

    untie_stored(d, ckpt);
    st = check_params(&c);
    if (st != DT_OK && d->notes.changed != NULL) dti_error_prefix("%s", d->notes.changed);
    DT_TRY(st);
    DT_TRY(dti_find_unused(d, ckpt));
    if (n_params != NULL) *n_params = c.n_params;
    if (bytes != NULL) *bytes = c.bytes;
    return DT_OK;
}

dt_status dt_model_inspect(const char *dir, dt_model_info *info, int64_t *n_params, int64_t *bytes)
{
    DT_TRY(dt_model_inspect_with(NULL, dir, info, n_params, bytes));
    return DT_OK;
}

dt_status dt_model_inspect_with(dt_runtime *rt, const char *dir, dt_model_info *info,
                                int64_t *n_params, int64_t *bytes)
{
    dt_status st = DT_OK;
    dti_ckpt *ckpt = NULL;
    dti_described d;

    DT_CHECK(dir != NULL && info != NULL, DT_ERR_ARG, "dir or info is NULL");
    DT_TRY(dti_describe(rt, dir, &d));
    DT_TRY_TO(done, st, dti_ckpt_open(dir, &ckpt));
    DT_TRY_TO(done, st, dti_check_checkpoint(&d, ckpt, n_params, bytes));
    *info = d.info;
done:
    dti_ckpt_close(&ckpt);
    dti_described_free(&d);
    return st;
}
