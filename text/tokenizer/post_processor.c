/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/post_processor.h"

#include <string.h>

#include "base/memory.h"
#include "text/tokenizer/steps.h"
#include "text/tokenizer/utf8.h"

static const int32_t text_item = DTI_TEMPLATE_TEXT;

/* Bounded as what steps make of a text is: 64 copies of it, and 65536 tokens around them. */
static dt_status add_item(dti_template *t, const dti_json *from, int32_t item)
{
    const bool is_text = item == text_item;

    if (is_text && t->n_texts == DTI_TEXT_GROWTH)
        return dti_json_refuse(from, DT_ERR_UNSUPPORTED,
                               "one of at most 64 places for the text in a template");
    if (t->items.n - t->n_texts == DTI_TEXT_GROWTH_BASE && !is_text)
        return dti_json_refuse(from, DT_ERR_UNSUPPORTED,
                               "one of at most 65536 special tokens in a template");
    t->n_texts += is_text;
    DT_TRY(dti_ids_append(&t->items, &item, 1));
    return DT_OK;
}

/* The ids that a special token of the template stands for. */
static dt_status load_special(dti_template *t, const dti_json *from, const dti_json *piece)
{
    dti_json specials, special, ids;
    const char *name;

    DT_TRY(dti_json_string(piece, "id", &name));
    DT_TRY(dti_json_object(from, "special_tokens", &specials));
    DT_TRY(dti_json_object(&specials, name, &special));
    DT_TRY(dti_json_array(&special, "ids", &ids));
    for (size_t i = 0; i < dti_json_count(&ids); i++) {
        const dti_json at = dti_json_at(&ids, i);
        int64_t id;

        DT_TRY(dti_json_as_int(&at, 0, DTI_MAX_TOKEN_ID, &id));
        DT_TRY(add_item(t, &at, (int32_t)id));
    }
    return DT_OK;
}

static dt_status load_sequence(dti_template *t, const dti_json *piece)
{
    const dti_json id = dti_json_get(piece, "id");
    const char *name;

    DT_TRY(dti_json_as_string(&id, &name));
    if (strcmp(name, "A") != 0) /* B is the second text of a pair */
        return dti_json_refuse(&id, DT_ERR_UNSUPPORTED, "A, in a template for single texts");
    return add_item(t, piece, text_item);
}

static dt_status load_template(dti_template *t, const dti_json *from)
{
    bool has_text = false;
    dti_json pieces;

    DT_CHECK(t->items.n == 0, DT_ERR_UNSUPPORTED, "%s: %s is the second TemplateProcessing",
             from->file, from->path);
    DT_TRY(dti_json_array(from, "single", &pieces));
    for (size_t i = 0; i < dti_json_count(&pieces); i++) {
        const dti_json piece = dti_json_at(&pieces, i);
        const dti_json special = dti_json_get(&piece, "SpecialToken");
        const dti_json sequence = dti_json_get(&piece, "Sequence");

        if (special.value != NULL)
            DT_TRY(load_special(t, from, &special));
        else if (sequence.value != NULL)
            DT_TRY(load_sequence(t, &sequence));
        else
            return dti_json_refuse(&piece, DT_ERR_FORMAT, "a SpecialToken or a Sequence");
        has_text = has_text || sequence.value != NULL;
    }
    DT_CHECK(has_text, DT_ERR_FORMAT, "%s: %s has no place for the text", pieces.file, pieces.path);
    return DT_OK;
}

static dt_status load_step(void *arg, const dti_json *from, const char *type)
{
    if (strcmp(type, "ByteLevel") == 0) return DT_OK; /* trims offsets, which are not given here */
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(arg, from);
    return dti_step_unknown(from, type, "ByteLevel, TemplateProcessing, Sequence");
}

dt_status dti_template_load(dti_template *t, const dti_json *from)
{
    DT_TRY(dti_steps_each(from, "processors", load_step, t));
    return t->items.n == 0 ? add_item(t, from, text_item) : DT_OK;
}

void dti_template_free(dti_template *t)
{
    dti_free(t->items.data);
    *t = (dti_template){ 0 };
}

bool dti_template_is_text(const dti_template *t)
{
    return t->items.n == 1 && t->items.data[0] == text_item;
}

dt_status dti_template_append(const dti_template *t, bool add_special, const int32_t *ids, size_t n,
                              dti_ids *out)
{
    for (size_t i = 0; i < t->items.n; i++) {
        if (t->items.data[i] == text_item)
            DT_TRY(dti_ids_append(out, ids, n));
        else if (add_special)
            DT_TRY(dti_ids_append(out, &t->items.data[i], 1));
    }
    return DT_OK;
}
