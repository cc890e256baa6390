/* SPDX-License-Identifier: Apache-2.0
 *
 * Which architectures there are: the built-in ones, and those that a runtime was given. */
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "mesh/runtime.h"
#include "models/architectures/builder.h"
#include "models/model.h"

static const dt_arch *const builtin[] = {
    &dti_arch_llama,       &dti_arch_qwen2,    &dti_arch_qwen3,       &dti_arch_qwen3_moe,
    &dti_arch_mistral,     &dti_arch_mistral3, &dti_arch_smollm3,     &dti_arch_granite,
    &dti_arch_ministral,   &dti_arch_mixtral,  &dti_arch_seed_oss,    &dti_arch_exaone4,
    &dti_arch_cwm,         &dti_arch_gemma,    &dti_arch_gemma2,      &dti_arch_gemma3,
    &dti_arch_gemma3_text, &dti_arch_phi3,     &dti_arch_gpt_neo,     &dti_arch_gpt2,
    &dti_arch_gpt_bigcode, &dti_arch_gpt_neox, &dti_arch_falcon,      &dti_arch_phi,
    &dti_arch_starcoder2,  &dti_arch_stablelm, &dti_arch_qwen2_moe,   &dti_arch_glm,
    &dti_arch_glm4,        &dti_arch_gptj,     &dti_arch_cohere,      &dti_arch_cohere2,
    &dti_arch_ernie4_5,    &dti_arch_olmo2,    &dti_arch_olmo3,       &dti_arch_glm4_moe,
    &dti_arch_ministral3,  &dti_arch_gpt_oss,  &dti_arch_deepseek_v3, &dti_arch_qwen3_next,
};

typedef struct arch_entry {
    dt_arch arch;
    struct arch_entry *next;
} arch_entry;

typedef struct arch_registry {
    arch_entry *first;
} arch_registry;

static void registry_destroy(void *object)
{
    arch_registry *r = object;

    for (arch_entry *e = r->first, *next; e != NULL; e = next) {
        next = e->next;
        dti_free(e);
    }
    dti_free(r);
}

static dt_status registry_create(dt_runtime *rt, void **out)
{
    arch_registry *r;

    (void)rt;
    DT_TRY(dti_new(sizeof *r, &r));
    *out = r;
    return DT_OK;
}

static const dti_slot registry_slot = { registry_create, registry_destroy, true };

/* NULL where there is none: then nothing was registered either. */
static arch_registry *registry_of(dt_runtime *rt)
{
    void *slot;

    if (rt == NULL) return NULL;
    if (dti_runtime_slot(rt, &registry_slot, &slot) != DT_OK) return NULL;
    return slot;
}

static void append_name(char *names, size_t bytes, const char *name)
{
    const size_t used = strlen(names);

    if (used + strlen(name) + sizeof ", \"\"" > bytes) return;
    (void)snprintf(names + used, bytes - used, used ? ", \"%s\"" : "\"%s\"", name);
}

const dt_arch *dti_arch_find(dt_runtime *rt, const char *model_type, char *names, size_t bytes)
{
    const arch_registry *r = registry_of(rt);

    names[0] = '\0';
    for (const arch_entry *e = r != NULL ? r->first : NULL; e != NULL; e = e->next) {
        if (strcmp(e->arch.model_type, model_type) == 0) return &e->arch;
        append_name(names, bytes, e->arch.model_type);
    }
    for (size_t i = 0; i < DT_COUNT(builtin); i++) {
        if (strcmp(builtin[i]->model_type, model_type) == 0) return builtin[i];
        append_name(names, bytes, builtin[i]->model_type);
    }
    return NULL;
}

const dt_named_plan *dt_named_plan_at(dt_runtime *rt, const char *model_type, int i)
{
    char names[DTI_ARCH_NAMES];
    const dt_arch *arch =
        model_type != NULL ? dti_arch_find(rt, model_type, names, sizeof names) : NULL;
    const dt_named_plan *plan = arch != NULL && i >= 0 ? arch->plans : NULL;

    while (plan != NULL && plan->name != NULL && i-- > 0) plan++;
    return plan != NULL && plan->name != NULL ? plan : NULL;
}

const dt_arch *dt_arch_at(dt_runtime *rt, int i)
{
    const arch_registry *r = registry_of(rt);

    for (const arch_entry *e = r != NULL ? r->first : NULL; e != NULL && i >= 0; e = e->next)
        if (i-- == 0) return &e->arch;
    return i >= 0 && i < (int)DT_COUNT(builtin) ? builtin[i] : NULL;
}

dt_status dti_arch_check(const dt_arch *a, bool reads)
{
    enum { MOST = sizeof((dt_model_info *)0)->model_type - 1 };

    DT_CHECK(a->model_type != NULL && a->model_type[0] != '\0', DT_ERR_ARG,
             "an architecture needs a model_type, as config.json names it");
    DT_CHECK(strlen(a->model_type) <= MOST, DT_ERR_ARG,
             "model_type \"%s\" has %zu bytes: at most %d fit", a->model_type,
             strlen(a->model_type), (int)MOST);
    DT_CHECK((a->read_config != NULL || !reads) && a->add_layers != NULL && a->embed != NULL &&
                 a->block != NULL && a->head != NULL,
             DT_ERR_ARG, "architecture \"%s\": %s is NULL", a->model_type,
             a->read_config == NULL && reads ? "read_config"
             : a->add_layers == NULL         ? "add_layers"
             : a->embed == NULL              ? "embed"
             : a->block == NULL              ? "block"
                                             : "head");
    DT_CHECK(a->self_bytes > 0, DT_ERR_ARG,
             "architecture \"%s\": self_bytes is 0: it is the size of its own struct",
             a->model_type);
    DT_CHECK(a->block_class == NULL || a->blocks != NULL, DT_ERR_ARG,
             "architecture \"%s\": block_class without blocks, their names (\"model.layers.*\")",
             a->model_type);
    DT_CHECK(a->blocks == NULL || (strlen(a->blocks) < sizeof(dti_block_name) - 20 &&
                                   strchr(a->blocks, '*') == strrchr(a->blocks, '*') &&
                                   strchr(a->blocks, '*') != NULL),
             DT_ERR_ARG,
             "architecture \"%s\": blocks is \"%s\": names of blocks with one * for their "
             "number, of at most %d bytes",
             a->model_type, a->blocks, (int)sizeof(dti_block_name) - 21);
    return DT_OK;
}

dt_status dt_arch_register(dt_runtime *rt, const dt_arch *arch)
{
    dt_arch own = { .size = sizeof own };
    char names[DTI_ARCH_NAMES];
    arch_entry *e, **last;
    void *slot;

    DT_CHECK(rt != NULL && arch != NULL, DT_ERR_ARG, "rt or arch is NULL");
    DT_TRY(dti_options_read("dt_arch", "set it to sizeof(dt_arch)", arch, &own, sizeof own));
    DT_TRY(dti_arch_check(&own, true));
    DT_CHECK(dti_arch_find(rt, own.model_type, names, sizeof names) == NULL, DT_ERR_ARG,
             "an architecture \"%s\" is there already", own.model_type);
    DT_TRY(dti_runtime_slot(rt, &registry_slot, &slot));
    DT_TRY(dti_new(sizeof *e, &e));
    e->arch = own;
    for (last = &((arch_registry *)slot)->first; *last != NULL;) last = &(*last)->next;
    *last = e;
    return DT_OK;
}
