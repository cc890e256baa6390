/* SPDX-License-Identifier: Apache-2.0
 *
 * What about a checkpoint is odd but no error. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/checkpoint.h"
#include "files/input.h"
#include "models/describe/describe.h"
#include "models/generation/generation_config.h"
#include "weights/param_tensors.h"

/* --- tensors that nobody uses ------------------------------------------------------------------
 */

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);

    return n >= k && strcmp(text + n - k, end) == 0;
}

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t) * (const dti_st_entry *const *)a;
    const uintptr_t y = (uintptr_t) * (const dti_st_entry *const *)b;

    return (x > y) - (x < y);
}

static bool is_ignored(const dt_arch *arch, const char *name)
{
    for (const char *const *part = arch->ignored; part != NULL && *part != NULL; part++) {
        const size_t n = strlen(*part);
        const bool beginning = (*part)[n - 1] == '.';
        if (beginning ? strncmp(name, *part, n) == 0 : ends_with(name, *part)) return true;
    }
    return false;
}

typedef struct used_list {
    const dti_st_entry **entries;
    size_t n, capacity;
} used_list;

static dt_status add_used(void *arg, const dti_param_tensor *t)
{
    used_list *l = arg;

    if (t->entry == NULL) return DT_OK; /* tied */
    DT_TRY(dti_grow((void **)&l->entries, &l->capacity, l->n + 1, sizeof *l->entries));
    l->entries[l->n++] = t->entry;
    return DT_OK;
}

/* The tensors of all parameters, [*n]; freed by the caller. */
static dt_status list_used(const dti_described *d, const dti_ckpt *ckpt, const dti_st_entry ***used,
                           size_t *n)
{
    used_list list = { NULL, 0, 0 };
    dt_status st = DT_OK;

    for (int i = 0; i < d->builder.n; i++) {
        const dt_layer_spec *spec = &d->builder.specs[i];
        for (int p = 0; p < dt_spec_n_params(spec); p++) {
            const dt_param_info info = dt_spec_param(spec, p);
            DT_TRY_TO(done, st, dti_each_tensor(ckpt, d->arch->spellings, &info, add_used, &list));
        }
    }
    if (list.n > 0) qsort(list.entries, list.n, sizeof *list.entries, by_address);
done:
    *used = list.entries;
    *n = list.n;
    return st;
}

dt_status dti_each_unused(const dti_described *d, const dti_ckpt *ckpt,
                          void (*fn)(void *arg, const dti_st_entry *entry), void *arg)
{
    const dti_st_entry **used = NULL;
    dt_status st = DT_OK;
    size_t n = 0;

    DT_TRY_TO(done, st, list_used(d, ckpt, &used, &n));
    for (size_t i = 0; i < dti_ckpt_count(ckpt); i++) {
        const dti_st_entry *e = dti_ckpt_at(ckpt, i);
        if (is_ignored(d->arch, e->name)) continue;
        if (d->info.packed && ends_with(e->name, ".weight_shape")) continue; /* as shapes tell */
        if (n > 0 && bsearch(&e, used, n, sizeof *used, by_address) != NULL) continue;
        fn(arg, e);
    }
done:
    dti_free(used);
    return st;
}

typedef struct unused_count {
    size_t n;
    const dti_st_entry *first;
} unused_count;

static void count_unused(void *arg, const dti_st_entry *e)
{
    unused_count *c = arg;

    if (c->n++ == 0) c->first = e;
}

dt_status dti_find_unused(dti_described *d, const dti_ckpt *ckpt)
{
    unused_count c = { 0, NULL };
    const char *first = NULL;

    if (!dti_ckpt_kept_some(ckpt, &c.n, &first)) {
        DT_TRY(dti_each_unused(d, ckpt, count_unused, &c));
        if (c.first != NULL) first = c.first->name;
    }
    d->n_unused = c.n;
    dti_free(d->first_unused);
    d->first_unused = NULL;
    if (first != NULL) DT_TRY(dti_strdup(first, &d->first_unused));
    return DT_OK;
}

dt_status dti_forget_unused(const dti_described *d, dti_ckpt *ckpt)
{
    const dti_st_entry **used = NULL;
    dt_status st = DT_OK;
    size_t n = 0;

    DT_TRY_TO(done, st, list_used(d, ckpt, &used, &n));
    DT_TRY_TO(done, st, dti_ckpt_keep(ckpt, used, n, d->n_unused, d->first_unused));
done:
    dti_free(used);
    return st;
}

/* --- remarks -----------------------------------------------------------------------------------
 */

typedef struct speaker {
    dt_remark_fn say;
    void *arg;
} speaker;

DT_PRINTF(2, 3) static void remark(const speaker *s, const char *fmt, ...)
{
    char text[DT_ERROR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    s->say(s->arg, text);
}

void dti_describe_remarks(const dti_described *d, const char *dir, dt_remark_fn say, void *arg)
{
    const speaker s = { say, arg };
    char text[128];

    if (d->other_class != NULL)
        remark(&s,
               "%s/config.json: architectures names \"%s\", but model_type is \"%s\": that counts, "
               "as in Transformers, and the model is run as %s",
               dir, dti_printable(d->other_class, text, sizeof text), d->arch->model_type,
               d->arch->class_name);
    /* They hint at a config.json that does not belong to the weights. */
    if (d->n_unused > 0)
        remark(&s,
               "%s: %zu tensor%s of the checkpoint %s not used by the %s model that config.json "
               "describes, the first is %s",
               dir, d->n_unused, d->n_unused == 1 ? "" : "s", d->n_unused == 1 ? "is" : "are",
               d->arch->model_type, dti_printable(d->first_unused, text, sizeof text));
}

/* Ids that no step can choose end nothing, and the user wonders why the text goes on. */
void dti_generation_remarks(const dti_described *d, const char *dir, dt_remark_fn say, void *arg)
{
    const speaker s = { say, arg };
    const char *file = d->has_generation ? "generation_config.json" : "config.json";
    const dt_model_info *info = &d->info;

    for (int i = 0; i < info->n_eos; i++)
        if (info->eos[i] < 0 || info->eos[i] >= info->vocab_size)
            remark(&s,
                   "%s/%s: eos_token_id %d is outside the model's vocabulary, 0..%lld: it never "
                   "ends a text",
                   dir, file, (int)info->eos[i], (long long)info->vocab_size - 1);
    if (d->generation != NULL && d->generation->left_out[0] != '\0')
        remark(&s, "%s/%s: sets %s, which is not supported: texts are made without it", dir, file,
               d->generation->left_out);
    if (d->eos_overruled)
        remark(&s,
               "%s/config.json: eos_token_id %d is outside the model's vocabulary, 0..%lld; "
               "generation_config.json stands beside it and counts alone",
               dir, (int)d->config_eos, (long long)info->vocab_size - 1);
    if (info->n_eos == 0)
        remark(&s,
               "%s/%s: eos_token_id names no token, so nothing ends a text before its length does",
               dir, file);
}

dt_status dt_checkpoint_remarks(dt_runtime *rt, const char *dir, bool weights, bool generates,
                                dt_remark_fn say, void *arg)
{
    dti_ckpt *ckpt = NULL;
    dti_described d;
    dt_status st = DT_OK;

    DT_CHECK(dir != NULL && say != NULL, DT_ERR_ARG, "dir or say is NULL");
    DT_TRY(dti_describe(rt, dir, &d));
    if (weights) {
        DT_TRY_TO(done, st, dti_ckpt_open(dir, &ckpt));
        DT_TRY_TO(done, st, dti_check_checkpoint(&d, ckpt, NULL, NULL));
        dti_describe_remarks(&d, dir, say, arg);
    }
    if (generates) dti_generation_remarks(&d, dir, say, arg);
done:
    dti_ckpt_close(&ckpt);
    dti_described_free(&d);
    return st;
}

void dti_dtype_remarks(const dti_ckpt *ckpt, const char *dir, dt_dtype dtype, dti_complain_fn say,
                       void *arg)
{
    char name[128], text[DT_ERROR_MESSAGE_BYTES];
    const dti_st_entry *first = NULL;
    size_t n = 0;

    for (size_t i = 0; i < dti_ckpt_count(ckpt); i++) {
        const dti_st_entry *e = dti_ckpt_at(ckpt, i);
        if (!e->supported || !dt_dtype_is_float(e->dtype) || e->dtype == dtype) continue;
        if (n++ == 0) first = e;
    }
    if (first == NULL) return;
    (void)snprintf(text, sizeof text,
                   "%s: %zu of %zu tensors are of another dtype than the model, which is %s: they "
                   "are converted; the first is %s in %s",
                   dir, n, dti_ckpt_count(ckpt), dt_dtype_name(dtype),
                   dti_printable(first->name, name, sizeof name), first->dtype_name);
    say(arg, first->name, text);
}

static void say_remark(void *arg, const char *tensor, const char *text)
{
    const speaker *s = arg;

    (void)tensor;
    s->say(s->arg, text);
}

dt_status dt_checkpoint_dtype_remarks(const char *dir, dt_dtype dtype, dt_remark_fn say, void *arg)
{
    speaker s = { say, arg };
    dti_ckpt *ckpt = NULL;

    DT_CHECK(dir != NULL && say != NULL, DT_ERR_ARG, "dir or say is NULL");
    DT_TRY(dti_ckpt_open(dir, &ckpt));
    dti_dtype_remarks(ckpt, dir, dtype, say_remark, &s);
    dti_ckpt_close(&ckpt);
    return DT_OK;
}
