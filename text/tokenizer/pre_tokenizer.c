/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps hand each of their pieces to the next step at once, so a text of any length needs no list
 * of pieces. */
#include "text/tokenizer/pre_tokenizer.h"

#include <string.h>

/* One kind of step. `run` hands its pieces to pass(). */
typedef struct dti_pre_tokenizer_row {
    const char *type;
    dt_status (*load)(dti_pre_tokenizers *all, dti_pre_tokenizer *step, const dti_json *from);
    dt_status (*run)(dti_pre_walk *walk, size_t step, dti_text_span text);
} dti_pre_tokenizer_row;

static dt_status pass(dti_pre_walk *walk, size_t step, dti_text_span text)
{
    const dti_pre_tokenizers *all = walk->all;

    if (text.n == 0) return DT_OK;
    if (step == all->n) {
        walk->n_out += text.n;
        if (walk->n_out > walk->limit) return dti_text_too_long(walk->limit);
        return walk->word(walk->arg, text.s, text.n);
    }
    return all->steps[step].row->run(walk, step, text);
}

dt_status dti_pre_tokenize(dti_pre_walk *walk, dti_text_span text)
{
    return pass(walk, 0, text);
}

void dti_pre_walk_begin(dti_pre_walk *walk, size_t bytes)
{
    walk->n_out = 0;
    walk->limit = dti_text_most(bytes);
    for (size_t i = 0; i < DTI_MAX_STEPS; i++) walk->scratch[i].limit = walk->limit;
    dti_matcher_begin(&walk->matcher, bytes);
}

void dti_pre_walk_free(dti_pre_walk *walk)
{
    dti_matcher_free(&walk->matcher);
    for (size_t i = 0; i < DTI_MAX_STEPS; i++) dti_text_free(&walk->scratch[i]);
}

/* --- cutting ---------------------------------------------------------------------------------- */

/* A text that is being cut: segments come in order, pieces go out as the behavior says. */
typedef struct cut {
    dti_pre_walk *walk;
    size_t step;
    dti_text_span text;
    dti_behavior behavior;
    bool pending;       /* [begin, end) may still grow */
    bool was_separator; /* the last segment */
    size_t begin, end;
} cut;

static dt_status cut_piece(cut *c, size_t begin, size_t end)
{
    return pass(c->walk, c->step + 1,
                (dti_text_span){ c->text.s + begin, end - begin, c->text.first && begin == 0 });
}

/* Hands out what is pending, and keeps [begin, end) instead. */
static dt_status cut_keep(cut *c, size_t begin, size_t end)
{
    if (c->pending) DT_TRY(cut_piece(c, c->begin, c->end));
    c->pending = true;
    c->begin = begin;
    c->end = end;
    return DT_OK;
}

/* The next segment of the text, a separator or what lies between two. */
static dt_status cut_segment(cut *c, size_t begin, size_t end, bool separator)
{
    const bool repeated = separator == c->was_separator;
    const bool grows = c->behavior == DTI_CONTIGUOUS ? repeated : separator && !repeated;

    c->was_separator = separator;
    switch (c->behavior) {
    case DTI_REMOVED:
        return separator ? DT_OK : cut_piece(c, begin, end);
    case DTI_ISOLATED:
        return cut_piece(c, begin, end);
    case DTI_MERGED_WITH_NEXT:
        if (separator) return cut_keep(c, begin, end);
        if (c->pending) begin = c->begin;
        c->pending = false;
        return cut_piece(c, begin, end);
    case DTI_MERGED_WITH_PREVIOUS:
    case DTI_CONTIGUOUS:
        if (!c->pending || !grows) return cut_keep(c, begin, end);
        c->end = end;
        return DT_OK;
    }
    return DT_OK;
}

static dt_status cut_finish(cut *c)
{
    return c->pending ? cut_piece(c, c->begin, c->end) : DT_OK;
}

/* Cuts at the matches of the step's pattern. */
static dt_status cut_at_matches(dti_pre_walk *walk, size_t step, dti_text_span text)
{
    const dti_pre_tokenizer *how = &walk->all->steps[step];
    cut c = { .walk = walk, .step = step, .text = text, .behavior = how->behavior };
    dti_matches it = dti_matches_in(how->regex, text.s, text.n);
    size_t done = 0;

    for (;;) {
        DT_TRY(dti_matches_next(&it, &walk->matcher));
        if (done < it.begin) DT_TRY(cut_segment(&c, done, it.begin, how->invert));
        if (it.done) break;
        DT_TRY(cut_segment(&c, it.begin, it.end, !how->invert));
        done = it.end;
    }
    return cut_finish(&c);
}

/* --- the rows --------------------------------------------------------------------------------- */

static dt_status load_behavior(dti_pre_tokenizer *step, const dti_json *from)
{
    static const char *const names[] = {
        [DTI_REMOVED] = "Removed",
        [DTI_ISOLATED] = "Isolated",
        [DTI_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [DTI_MERGED_WITH_NEXT] = "MergedWithNext",
        [DTI_CONTIGUOUS] = "Contiguous",
    };
    const dti_json at = dti_json_get(from, "behavior");
    const char *name;

    DT_TRY(dti_json_as_string(&at, &name));
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        if (strcmp(names[i], name) != 0) continue;
        step->behavior = (dti_behavior)i;
        return DT_OK;
    }
    return dti_json_refuse(&at, DT_ERR_FORMAT,
                           "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

static dt_status load_split(dti_pre_tokenizers *all, dti_pre_tokenizer *step, const dti_json *from)
{
    (void)all;
    DT_TRY(load_behavior(step, from));
    DT_TRY(dti_json_bool_or(from, "invert", false, &step->invert));
    return dti_step_pattern(from, &step->regex);
}

static dt_status run_byte_chars(dti_pre_walk *walk, size_t step, dti_text_span text)
{
    dti_text *scratch = &walk->scratch[step];

    scratch->bytes = 0;
    DT_TRY(dti_text_append_bytes_as_chars(scratch, text.s, text.n));
    return pass(walk, step + 1, (dti_text_span){ scratch->data, scratch->bytes, text.first });
}

static const dti_pre_tokenizer_row byte_chars_row = { "ByteLevel", NULL, run_byte_chars };

/* The pattern of GPT-2, which is part of the step's meaning. */
static const char gpt2_words[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Cuts, then writes bytes as characters: two steps, of which the second may be left out. */
static dt_status load_byte_level(dti_pre_tokenizers *all, dti_pre_tokenizer *step,
                                 const dti_json *from)
{
    bool prefix, regex;

    DT_TRY(dti_json_bool_or(from, "add_prefix_space", true, &prefix));
    DT_TRY(dti_json_bool_or(from, "use_regex", true, &regex));
    DT_TRY(dti_text_append(&step->marker, " ", 1));
    step->prepend = prefix ? DTI_PREPEND_ALWAYS : DTI_PREPEND_NEVER;
    step->behavior = DTI_ISOLATED;
    if (regex) DT_TRY(dti_regex_compile(gpt2_words, &step->regex));
    if (all->n == DTI_MAX_STEPS) return dti_step_too_many(from);
    all->steps[all->n++].row = &byte_chars_row;
    return DT_OK;
}

static dt_status load_metaspace(dti_pre_tokenizers *all, dti_pre_tokenizer *step,
                                const dti_json *from)
{
    bool split;

    (void)all;
    DT_TRY(dti_metaspace_load(from, &step->marker, &step->prepend));
    DT_TRY(dti_json_bool_or(from, "split", true, &split));
    step->replaces_spaces = true;
    step->behavior = DTI_MERGED_WITH_NEXT;
    return split ? dti_regex_literal(step->marker.data, &step->regex) : DT_OK;
}

static bool starts_with(dti_text_span text, const dti_text *marker)
{
    return text.n >= marker->bytes && memcmp(text.s, marker->data, marker->bytes) == 0;
}

/* Puts the marker in front and for spaces, then cuts: ByteLevel and Metaspace. */
static dt_status run_marked(dti_pre_walk *walk, size_t step, dti_text_span text)
{
    const dti_pre_tokenizer *how = &walk->all->steps[step];
    const dti_text *marker = &how->marker;
    dti_text *scratch = &walk->scratch[step];
    const bool prepend =
        (how->prepend == DTI_PREPEND_ALWAYS || (how->prepend == DTI_PREPEND_FIRST && text.first)) &&
        !starts_with(text, marker) && !(how->replaces_spaces && text.s[0] == ' ');

    if (prepend || how->replaces_spaces) {
        scratch->bytes = 0;
        if (prepend) DT_TRY(dti_text_append(scratch, marker->data, marker->bytes));
        for (size_t at = 0; at < text.n;) {
            const char *space = how->replaces_spaces ? memchr(text.s + at, ' ', text.n - at) : NULL;
            const size_t end = space ? (size_t)(space - text.s) : text.n;

            DT_TRY(dti_text_append(scratch, text.s + at, end - at));
            if (space) DT_TRY(dti_text_append(scratch, marker->data, marker->bytes));
            at = end + 1;
        }
        text = (dti_text_span){ scratch->data, scratch->bytes, text.first };
    }
    return how->regex ? cut_at_matches(walk, step, text) : pass(walk, step + 1, text);
}

static dt_status load_digits(dti_pre_tokenizers *all, dti_pre_tokenizer *step, const dti_json *from)
{
    bool individual;

    (void)all;
    DT_TRY(dti_json_bool(from, "individual_digits", &individual));
    step->behavior = individual ? DTI_ISOLATED : DTI_CONTIGUOUS;
    return DT_OK;
}

/* Cuts at the characters that are of a class. */
static dt_status cut_at_class(dti_pre_walk *walk, size_t step, dti_text_span text,
                              bool (*is_of)(uint32_t c))
{
    cut c = {
        .walk = walk, .step = step, .text = text, .behavior = walk->all->steps[step].behavior
    };
    size_t done = 0, length;

    for (size_t at = 0; at < text.n; at += length) {
        length = dti_utf8_length(text.s[at]);
        if (!is_of(dti_utf8_at(text.s + at))) continue;
        if (done < at) DT_TRY(cut_segment(&c, done, at, false));
        done = at + length;
        DT_TRY(cut_segment(&c, at, done, true));
    }
    if (done < text.n) DT_TRY(cut_segment(&c, done, text.n, false));
    return cut_finish(&c);
}

static dt_status run_digits(dti_pre_walk *walk, size_t step, dti_text_span text)
{
    return cut_at_class(walk, step, text, dti_is_numeric);
}

static dt_status load_punctuation(dti_pre_tokenizers *all, dti_pre_tokenizer *step,
                                  const dti_json *from)
{
    const dti_json how = dti_json_get(from, "behavior");

    (void)all;
    step->behavior = DTI_ISOLATED;
    return dti_json_is_set(&how) ? load_behavior(step, from) : DT_OK;
}

static dt_status run_punctuation(dti_pre_walk *walk, size_t step, dti_text_span text)
{
    return cut_at_class(walk, step, text, dti_is_punctuation);
}

static const dti_pre_tokenizer_row rows[] = {
    { "Split", load_split, cut_at_matches },
    { "ByteLevel", load_byte_level, run_marked },
    { "Metaspace", load_metaspace, run_marked },
    { "Digits", load_digits, run_digits },
    { "Punctuation", load_punctuation, run_punctuation },
};
static const char known[] = "Split, ByteLevel, Metaspace, Digits, Punctuation, Sequence";

/* --- the list --------------------------------------------------------------------------------- */

dt_status dti_metaspace_load(const dti_json *from, dti_text *marker, dti_prepend *prepend)
{
    static const char *const names[] = { [DTI_PREPEND_NEVER] = "never",
                                         [DTI_PREPEND_FIRST] = "first",
                                         [DTI_PREPEND_ALWAYS] = "always" };
    const dti_json scheme = dti_json_get(from, "prepend_scheme");
    const char *text, *name;
    bool prefix;

    DT_TRY(dti_json_string(from, "replacement", &text));
    if (text[0] == '\0' || strlen(text) != dti_utf8_length(text[0])) {
        const dti_json at = dti_json_get(from, "replacement");

        return dti_json_refuse(&at, DT_ERR_FORMAT, "one character");
    }
    DT_TRY(dti_text_append(marker, text, strlen(text) + 1));
    marker->bytes--; /* the zero byte stays behind it */
    DT_TRY(dti_json_bool_or(from, "add_prefix_space", true, &prefix)); /* older files say it so */
    DT_TRY(dti_json_string_or(from, "prepend_scheme", prefix ? "always" : "never", &name));
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        if (strcmp(names[i], name) != 0) continue;
        *prepend = (dti_prepend)i;
        DT_CHECK(prefix || *prepend == DTI_PREPEND_NEVER, DT_ERR_FORMAT,
                 "%s: %s: add_prefix_space is false, but prepend_scheme is \"%s\"", from->file,
                 from->path, name);
        return DT_OK;
    }
    return dti_json_refuse(&scheme, DT_ERR_FORMAT, "never, first or always");
}

static dt_status load_step(void *arg, const dti_json *from, const char *type)
{
    dti_pre_tokenizers *all = arg;

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dti_pre_tokenizer *step = &all->steps[all->n];

        if (strcmp(rows[i].type, type) != 0) continue;
        if (all->n == DTI_MAX_STEPS) return dti_step_too_many(from);
        all->n++;
        step->row = &rows[i];
        return rows[i].load(all, step, from);
    }
    return dti_step_unknown(from, type, known);
}

dt_status dti_pre_tokenizers_load(dti_pre_tokenizers *all, const dti_json *from)
{
    DT_TRY(dti_steps_each(from, "pretokenizers", load_step, all));
    if (all->n > 0 && all->steps[all->n - 1].row == &byte_chars_row) {
        all->n--;
        all->byte_level_words = true;
    }
    return DT_OK;
}

void dti_pre_tokenizers_free(dti_pre_tokenizers *all)
{
    for (size_t i = 0; i < DTI_MAX_STEPS; i++) {
        dti_regex_free(all->steps[i].regex);
        dti_text_free(&all->steps[i].marker);
    }
    *all = (dti_pre_tokenizers){ 0 };
}
