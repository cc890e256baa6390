/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/normalizer.h"

#include <string.h>

/* One kind of step. `run` appends to `out`, or leaves *changed false where nothing would change. */
typedef struct dti_normalizer_row {
    const char *type;
    int form; /* of the rows that are Unicode normalisation forms */
    dt_status (*load)(dti_normalizer *step, const dti_json *from);
    dt_status (*run)(const dti_normalizer *step, dti_matcher *matcher, const char *s, size_t n,
                     dti_text *out, bool *changed);
} dti_normalizer_row;

/* --- the rows --------------------------------------------------------------------------------- */

static dt_status load_nothing(dti_normalizer *step, const dti_json *from)
{
    (void)step;
    (void)from;
    return DT_OK;
}

static dt_status run_form(const dti_normalizer *step, dti_matcher *matcher, const char *s, size_t n,
                          dti_text *out, bool *changed)
{
    (void)matcher;
    return dti_normalize(step->form, s, n, out, changed);
}

static dt_status run_lowercase(const dti_normalizer *step, dti_matcher *matcher, const char *s,
                               size_t n, dti_text *out, bool *changed)
{
    (void)step;
    (void)matcher;
    *changed = true;
    for (size_t at = 0; at < n; at += dti_utf8_length(s[at]))
        DT_TRY(dti_append_lower(out, dti_utf8_at(s + at)));
    return DT_OK;
}

static dt_status load_strip(dti_normalizer *step, const dti_json *from)
{
    DT_TRY(dti_json_bool(from, "strip_left", &step->left));
    return dti_json_bool(from, "strip_right", &step->right);
}

static dt_status run_strip(const dti_normalizer *step, dti_matcher *matcher, const char *s,
                           size_t n, dti_text *out, bool *changed)
{
    size_t begin = 0, end = n, before;

    (void)matcher;
    while (step->left && begin < end && dti_is_space(dti_utf8_at(s + begin)))
        begin += dti_utf8_length(s[begin]);
    while (step->right && end > begin && dti_is_space(dti_utf8_before(s, end, &before)))
        end = before;
    *changed = begin > 0 || end < n;
    return *changed ? dti_text_append(out, s + begin, end - begin) : DT_OK;
}

static dt_status load_text(dti_normalizer *step, const dti_json *from, const char *key)
{
    const char *text;

    DT_TRY(dti_json_string(from, key, &text));
    return dti_text_append(&step->content, text, strlen(text));
}

static dt_status load_prepend(dti_normalizer *step, const dti_json *from)
{
    return load_text(step, from, "prepend");
}

static dt_status run_prepend(const dti_normalizer *step, dti_matcher *matcher, const char *s,
                             size_t n, dti_text *out, bool *changed)
{
    (void)matcher;
    *changed = n > 0;
    if (!*changed) return DT_OK;
    DT_TRY(dti_text_append(out, step->content.data, step->content.bytes));
    return dti_text_append(out, s, n);
}

static dt_status load_replace(dti_normalizer *step, const dti_json *from)
{
    DT_TRY(load_text(step, from, "content"));
    return dti_step_pattern(from, &step->regex);
}

static dt_status run_replace(const dti_normalizer *step, dti_matcher *matcher, const char *s,
                             size_t n, dti_text *out, bool *changed)
{
    return dti_regex_replace(step->regex, matcher, s, n, &step->content, out, changed);
}

static dt_status run_byte_level(const dti_normalizer *step, dti_matcher *matcher, const char *s,
                                size_t n, dti_text *out, bool *changed)
{
    (void)step;
    (void)matcher;
    *changed = true;
    return dti_text_append_bytes_as_chars(out, s, n);
}

static const dti_normalizer_row rows[] = {
    { "NFC", DTI_NFC, load_nothing, run_form },       { "NFD", DTI_NFD, load_nothing, run_form },
    { "NFKC", DTI_NFKC, load_nothing, run_form },     { "NFKD", DTI_NFKD, load_nothing, run_form },
    { "Lowercase", 0, load_nothing, run_lowercase },  { "Strip", 0, load_strip, run_strip },
    { "Prepend", 0, load_prepend, run_prepend },      { "Replace", 0, load_replace, run_replace },
    { "ByteLevel", 0, load_nothing, run_byte_level },
};
static const char known[] =
    "NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, ByteLevel, Sequence";

/* --- the list --------------------------------------------------------------------------------- */

static dt_status load_step(void *arg, const dti_json *from, const char *type)
{
    dti_normalizers *all = arg;

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dti_normalizer *step = &all->steps[all->n];

        if (strcmp(rows[i].type, type) != 0) continue;
        if (all->n == DTI_MAX_STEPS) return dti_step_too_many(from);
        all->n++;
        step->row = &rows[i];
        step->form = (dti_form)rows[i].form;
        all->byte_level = all->byte_level || rows[i].run == run_byte_level;
        return rows[i].load(step, from);
    }
    return dti_step_unknown(from, type, known);
}

dt_status dti_normalizers_load(dti_normalizers *all, const dti_json *from)
{
    return dti_steps_each(from, "normalizers", load_step, all);
}

void dti_normalizers_free(dti_normalizers *all)
{
    for (size_t i = 0; i < all->n; i++) {
        dti_text_free(&all->steps[i].content);
        dti_regex_free(all->steps[i].regex);
    }
    *all = (dti_normalizers){ 0 };
}

void dti_normalizer_work_free(dti_normalizer_work *work)
{
    dti_matcher_free(&work->matcher);
    dti_text_free(&work->text[0]);
    dti_text_free(&work->text[1]);
}

void dti_normalizer_work_begin(dti_normalizer_work *work, size_t bytes)
{
    work->text[0].limit = work->text[1].limit = dti_text_most(bytes);
    dti_matcher_begin(&work->matcher, bytes);
}

dt_status dti_normalizers_run(const dti_normalizers *all, dti_normalizer_work *work, const char *s,
                              size_t n, const char **out, size_t *n_out)
{
    int next = 0; /* the buffer that does not hold s */

    for (size_t i = 0; i < all->n; i++) {
        const dti_normalizer *step = &all->steps[i];
        dti_text *text = &work->text[next];
        bool changed;

        text->bytes = 0;
        DT_TRY(step->row->run(step, &work->matcher, s, n, text, &changed));
        if (!changed) continue;
        s = text->bytes > 0 ? text->data : "";
        n = text->bytes;
        next = 1 - next;
    }
    *out = s;
    *n_out = n;
    return DT_OK;
}
