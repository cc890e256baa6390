/* SPDX-License-Identifier: Apache-2.0
 *
 * Styles with arguments, as plans write them: "rowwise(output=shard(1))". What comes before the
 * parenthesis is a style, what is inside changes its layouts. PyTorch's names of arguments are
 * understood, with its meaning: of a style that moves outputs by itself output_layouts is where
 * they go, beside desired_output_layouts it is where they come from. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "parallel_styles/layers_internal.h"

dt_status dti_style_base(const char *text, char *base, size_t bytes)
{
    const size_t n = strcspn(text, "(");
    char shown[DTI_SHOWN_BYTES];

    DT_CHECK(strlen(text) + sizeof "@v4.56" < bytes, DT_ERR_ARG,
             "a style's name of %zu characters: \"%s\"", strlen(text),
             dti_printable(text, shown, sizeof shown));
    memcpy(base, text, n);
    base[n] = '\0';
    return DT_OK;
}

/* --- words ------------------------------------------------------------------------------------ */

typedef struct reader {
    const char *text; /* all of it, for messages */
    const char *at;
} reader;

static void skip_blanks(reader *r)
{
    while (*r->at == ' ') r->at++;
}

static bool take(reader *r, char c)
{
    skip_blanks(r);
    if (*r->at != c) return false;
    r->at++;
    skip_blanks(r);
    return true;
}

/* Letters, digits and _ in lower case; empty if there are none. */
static void take_word(reader *r, char word[32])
{
    size_t n = 0;

    skip_blanks(r);
    for (; isalnum((unsigned char)*r->at) || *r->at == '_'; r->at++)
        if (n < 31) word[n++] = (char)tolower((unsigned char)*r->at);
    word[n] = '\0';
    skip_blanks(r);
}

static dt_status refuse(const reader *r, const char *what)
{
    char shown[DTI_STYLE_TEXT_BYTES];

    DT_FAIL(DT_ERR_ARG, "style \"%s\": %s at character %d",
            dti_printable(r->text, shown, sizeof shown), what, (int)(r->at - r->text) + 1);
}

static dt_status take_axis(reader *r, dt_pass *out)
{
    const bool negative = take(r, '-');
    const int digit = *r->at - '0';

    if (digit < 0 || digit > 9) return refuse(r, "an axis is missing");
    *out = DT_PASS_SHARD(negative ? -digit : digit);
    if (!dti_pass_is_valid(*out)) return refuse(r, "an axis is -8 to 7, and is not");
    r->at++;
    skip_blanks(r);
    return DT_OK;
}

/* --- layouts ---------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    dt_pass pass;
} layouts[] = {
    { "keep", DT_PASS_KEEP },           { "none", DT_PASS_KEEP },
    { "replicate", DT_PASS_REPLICATE }, { "r", DT_PASS_REPLICATE },
    { "sequence", DT_PASS_SEQUENCE },   { "partial", DT_PASS_PARTIAL },
    { "p", DT_PASS_PARTIAL },
};

static dt_status take_layout(reader *r, dt_pass *out)
{
    const char *begin = r->at;
    char word[32];

    take_word(r, word);
    if (strcmp(word, "shard") == 0 || strcmp(word, "s") == 0) {
        if (!take(r, '(')) return refuse(r, "\"(\" and an axis are missing after \"shard\"");
        DT_TRY(take_axis(r, out));
        return take(r, ')') ? DT_OK : refuse(r, "\")\" is missing");
    }
    for (size_t i = 0; i < DT_COUNT(layouts); i++) {
        if (strcmp(word, layouts[i].word) != 0) continue;
        *out = layouts[i].pass;
        if (take(r, '(') && !take(r, ')')) return refuse(r, "this layout has no arguments:");
        return DT_OK;
    }
    r->at = begin;
    return refuse(r, "a layout (keep, replicate, shard(axis), sequence, partial) is missing");
}

/* One layout, or several in brackets. */
static dt_status take_layouts(reader *r, dt_passes *out, bool *list)
{
    const char end = *r->at == '[' ? ']' : ')';

    out->n = 0;
    *list = take(r, '[') || take(r, '(');
    do {
        if (*list && out->n > 0 && *r->at == end) break; /* Python's (Shard(0),) */
        if (out->n == DT_MAX_PASSES) return refuse(r, "more than 8 layouts");
        DT_TRY(take_layout(r, &out->of[out->n++]));
    } while (*list && take(r, ','));
    if (*list && !take(r, end)) return refuse(r, "the end of the list is missing");
    return DT_OK;
}

/* --- arguments -------------------------------------------------------------------------------- */

enum { COMES, INPUT, GIVES, OUTPUT, OUTPUT_LAYOUTS, N_ARGUMENTS };

static const struct {
    const char *word;
    int argument;
} keys[] = {
    { "comes", COMES },
    { "input_layouts", COMES },
    { "input", INPUT },
    { "desired_input_layouts", INPUT },
    { "sequence_dim", INPUT },
    { "gives", GIVES },
    { "output", OUTPUT },
    { "desired_output_layouts", OUTPUT },
    { "output_layouts", OUTPUT_LAYOUTS },
};

typedef struct arguments {
    bool given[N_ARGUMENTS];
    bool list[N_ARGUMENTS];
    dt_passes passes[N_ARGUMENTS];
} arguments;

#define ARGUMENTS                                                          \
    "(input, output, comes, gives, input_layouts, desired_input_layouts, " \
    "output_layouts, desired_output_layouts, sequence_dim)"

static dt_status refuse_argument(const reader *r, const char *word)
{
    char what[256];

    if (strcmp(word, "use_local_output") == 0)
        return refuse(r, "use_local_output says nothing here (dt_tensor_local() is a rank's piece "
                         "of any tensor); leave it out,");
    if (word[0] == '\0') return refuse(r, "an argument " ARGUMENTS " is missing");
    (void)snprintf(what, sizeof what, "\"%s\" is no argument of a style " ARGUMENTS ",", word);
    return refuse(r, what);
}

bool dti_style_has_argument(const char *word)
{
    for (size_t i = 0; i < DT_COUNT(keys); i++)
        if (strcmp(word, keys[i].word) == 0) return true;
    return false;
}

static dt_status take_argument(reader *r, arguments *a)
{
    const char *begin = r->at;
    char word[32];
    size_t i = 0;
    int k;

    take_word(r, word);
    while (i < DT_COUNT(keys) && strcmp(word, keys[i].word) != 0) i++;
    if (i == DT_COUNT(keys)) {
        r->at = begin;
        return refuse_argument(r, word);
    }
    k = keys[i].argument;
    if (a->given[k]) return refuse(r, "an argument is given twice");
    a->given[k] = true;
    if (!take(r, '=')) return refuse(r, "\"=\" is missing");
    if (strcmp(word, "sequence_dim") != 0) return take_layouts(r, &a->passes[k], &a->list[k]);
    a->passes[k].n = 1;
    return take_axis(r, &a->passes[k].of[0]);
}

static dt_status take_arguments(reader *r, arguments *a)
{
    (void)take(r, '(');
    while (!take(r, ')')) {
        DT_TRY(take_argument(r, a));
        if (*r->at != ')' && !take(r, ',')) return refuse(r, "\",\" or \")\" is missing");
    }
    return *r->at == '\0' ? DT_OK : refuse(r, "nothing may follow, but something does");
}

/* A single layout speaks of the first value, a list of all. */
static void lay_over(const arguments *a, int k, dt_pass *first, dt_passes *all)
{
    if (!a->given[k]) return;
    *all = a->passes[k];
    if (first == NULL || a->list[k]) return;
    *first = all->of[0];
    all->n = 0;
}

dt_status dti_style_with(const char *text, dt_style *style)
{
    reader r = { text, text + strcspn(text, "(") };
    arguments a = { .given = { false } };
    int moved;

    DT_TRY(take_arguments(&r, &a));
    DT_CHECK(!(a.given[OUTPUT_LAYOUTS] && a.given[GIVES]), DT_ERR_ARG,
             "style \"%s\": output_layouts beside gives; use one of them", text);
    if (a.given[OUTPUT_LAYOUTS]) {
        const int k = a.given[OUTPUT] ? GIVES : OUTPUT;
        a.given[k] = true;
        a.list[k] = a.list[OUTPUT_LAYOUTS];
        a.passes[k] = a.passes[OUTPUT_LAYOUTS];
    }
    moved = a.given[INPUT] && style->prepare_input != NULL     ? INPUT
            : a.given[OUTPUT] && style->prepare_output != NULL ? OUTPUT
                                                               : -1;
    DT_CHECK(moved < 0, DT_ERR_ARG,
             "style \"%s\": its %s is laid out by a function of its own, which takes no arguments",
             text, moved == INPUT ? "input" : "output");
    if (a.given[INPUT] || a.given[OUTPUT]) style->twin = NULL; /* which knows nothing of it */
    lay_over(&a, COMES, NULL, &style->comes);
    lay_over(&a, INPUT, &style->input, &style->inputs);
    lay_over(&a, GIVES, NULL, &style->gives);
    lay_over(&a, OUTPUT, &style->output, &style->outputs);
    return DT_OK;
}
