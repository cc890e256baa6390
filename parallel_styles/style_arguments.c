/* SPDX-License-Identifier: Apache-2.0
 *
 * Styles with arguments, as plans write them: "rowwise(output=shard(1))". What comes before the
 * parenthesis is a style, what is inside changes its layouts. PyTorch's names of arguments are
 * understood, with its meaning: of a style that moves outputs by itself output_layouts is where
 * they go, beside desired_output_layouts it is where they come from. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
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

static dt_status take_axis(reader *r, dt_lay *out)
{
    const bool negative = take(r, '-');
    const int digit = *r->at - '0';

    if (digit < 0 || digit > 9) return refuse(r, "an axis is missing");
    *out = (dt_lay){ DT_LAY_SHARD, negative ? -digit : digit };
    if (!dti_lay_is_valid(*out)) return refuse(r, "an axis is -8 to 7, and is not");
    r->at++;
    skip_blanks(r);
    return DT_OK;
}

/* --- layouts ---------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    dt_lay_kind kind;
} layouts[] = {
    { "keep", DT_LAY_KEEP },   { "none", DT_LAY_KEEP },         { "replicate", DT_LAY_REPLICATE },
    { "r", DT_LAY_REPLICATE }, { "sequence", DT_LAY_SEQUENCE }, { "partial", DT_LAY_PARTIAL },
    { "p", DT_LAY_PARTIAL },
};

static dt_status take_layout(reader *r, dt_lay *out)
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
        *out = (dt_lay){ layouts[i].kind, 0 };
        if (take(r, '(') && !take(r, ')')) return refuse(r, "this layout has no arguments:");
        return DT_OK;
    }
    r->at = begin;
    return refuse(r, "a layout (keep, replicate, shard(axis), sequence, partial) is missing");
}

/* What an argument says: of the first value, or in brackets of each of n. */
typedef struct layout_list {
    bool given, list;
    int n;
    dt_lay of[DT_MAX_PASSES];
} layout_list;

static dt_status take_layouts(reader *r, layout_list *out)
{
    const char end = *r->at == '[' ? ']' : ')';

    out->n = 0;
    out->list = take(r, '[') || take(r, '(');
    do {
        if (out->list && out->n > 0 && *r->at == end) break; /* Python's (Shard(0),) */
        if (out->n == DT_MAX_PASSES) return refuse(r, "more than 8 layouts");
        DT_TRY(take_layout(r, &out->of[out->n++]));
    } while (out->list && take(r, ','));
    if (out->list && !take(r, end)) return refuse(r, "the end of the list is missing");
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

/* Into how many tiles outputs and inputs are divided. */
static const char *const tile_keys[] = { "out_tiles", "in_tiles" };

#define ARGUMENTS                                                          \
    "(input, output, comes, gives, input_layouts, desired_input_layouts, " \
    "output_layouts, desired_output_layouts, sequence_dim, out_tiles, in_tiles)"

static dt_status refuse_argument(const reader *r, const char *word)
{
    char what[256];

    if (word[0] == '\0') return refuse(r, "an argument " ARGUMENTS " is missing");
    (void)snprintf(what, sizeof what, "\"%s\" is no argument of a style " ARGUMENTS ",", word);
    return refuse(r, what);
}

/* PyTorch's questions of what a module hands on: here every value is a distributed tensor, of which
 * dt_tensor_local() is the rank's piece. They are taken, and change nothing. */
static const char *const idle[] = { "use_local_output", "use_dtensor" };

bool dti_style_has_idle(const char *text)
{
    bool found = false;

    for (size_t i = 0; i < DT_COUNT(idle); i++) found = found || strstr(text, idle[i]) != NULL;
    return found;
}

static dt_status take_idle(reader *r)
{
    char word[32];

    if (!take(r, '=')) return refuse(r, "\"=\" is missing");
    take_word(r, word);
    if (strcmp(word, "true") != 0 && strcmp(word, "false") != 0)
        return refuse(r, "true or false is missing");
    return DT_OK;
}

bool dti_style_has_argument(const char *word)
{
    for (size_t i = 0; i < DT_COUNT(idle); i++)
        if (strcmp(word, idle[i]) == 0) return true;
    for (size_t i = 0; i < DT_COUNT(keys); i++)
        if (strcmp(word, keys[i].word) == 0) return true;
    return strcmp(word, tile_keys[0]) == 0 || strcmp(word, tile_keys[1]) == 0;
}

static dt_status take_tiles(reader *r, int *out)
{
    char *end;
    long n;

    if (!take(r, '=')) return refuse(r, "\"=\" is missing");
    n = strtol(r->at, &end, 10);
    if (end == r->at || n < 1 || n > DTI_MOST_TILES)
        return refuse(r, "a number of tiles is 1 to 32, and is not");
    r->at = end;
    skip_blanks(r);
    *out = (int)n;
    return DT_OK;
}

static dt_status take_argument(reader *r, layout_list *all, int tiles[2])
{
    const char *begin = r->at;
    char word[32];
    layout_list *to;
    size_t i = 0;

    take_word(r, word);
    for (size_t k = 0; k < DT_COUNT(idle); k++)
        if (strcmp(word, idle[k]) == 0) return take_idle(r);
    for (int k = 0; k < 2; k++)
        if (strcmp(word, tile_keys[k]) == 0) return take_tiles(r, &tiles[k]);
    while (i < DT_COUNT(keys) && strcmp(word, keys[i].word) != 0) i++;
    if (i == DT_COUNT(keys)) {
        r->at = begin;
        return refuse_argument(r, word);
    }
    to = &all[keys[i].argument];
    if (to->given) return refuse(r, "an argument is given twice");
    to->given = true;
    if (!take(r, '=')) return refuse(r, "\"=\" is missing");
    if (strcmp(word, "sequence_dim") != 0) return take_layouts(r, to);
    to->n = 1;
    return take_axis(r, &to->of[0]);
}

static dt_status take_arguments(reader *r, layout_list *all, int tiles[2])
{
    (void)take(r, '(');
    while (!take(r, ')')) {
        DT_TRY(take_argument(r, all, tiles));
        if (*r->at != ')' && !take(r, ',')) return refuse(r, "\",\" or \")\" is missing");
    }
    return *r->at == '\0' ? DT_OK : refuse(r, "nothing may follow, but something does");
}

/* How values come and where they go, laid over what the style says: a list says how many there are.
 */
static dt_status lay_over(const char *text, const char *what, const layout_list *comes,
                          const layout_list *to, dt_passes *passes)
{
    const int n = comes->list ? comes->n : to->list ? to->n : passes->n;

    DT_CHECK(!comes->list || !to->list || comes->n == to->n, DT_ERR_ARG,
             "style \"%s\" says how %d values are (%s) and how %d are made", text, comes->n, what,
             to->n);
    if (n != passes->n)
        for (int i = 1; i < DT_MAX_PASSES; i++) passes->of[i] = (dt_pass){ 0 };
    passes->n = n;
    for (int i = 0; i < to->n && to->given; i++) passes->of[i].to = to->of[i];
    for (int i = 0; i < comes->n && comes->given; i++) passes->of[i].comes = comes->of[i];
    return DT_OK;
}

dt_status dti_style_with(const char *text, dt_style *style)
{
    reader r = { text, text + strcspn(text, "(") };
    layout_list all[N_ARGUMENTS] = { { .given = false } };
    int tiles[2] = { style->out_tiles, style->in_tiles };
    const layout_list *moved;

    DT_TRY(take_arguments(&r, all, tiles));
    DT_CHECK(style->cut == DT_CUT_COPIES || (tiles[0] <= 1 && tiles[1] <= 1), DT_ERR_ARG,
             "style \"%s\": tiles are of \"fully_shard\"", text);
    style->out_tiles = tiles[0];
    style->in_tiles = tiles[1];
    DT_CHECK(!(all[OUTPUT_LAYOUTS].given && all[GIVES].given), DT_ERR_ARG,
             "style \"%s\": output_layouts beside gives; use one of them", text);
    if (all[OUTPUT_LAYOUTS].given) all[all[OUTPUT].given ? GIVES : OUTPUT] = all[OUTPUT_LAYOUTS];
    moved = all[INPUT].given && style->prepare_input != NULL     ? &all[INPUT]
            : all[OUTPUT].given && style->prepare_output != NULL ? &all[OUTPUT]
                                                                 : NULL;
    DT_CHECK(moved == NULL, DT_ERR_ARG,
             "style \"%s\": its %s is laid out by a function of its own, which takes no arguments",
             text, moved == &all[INPUT] ? "input" : "output");
    if (all[INPUT].given || all[OUTPUT].given) style->twin = NULL; /* which knows nothing of it */
    DT_TRY(lay_over(text, "comes", &all[COMES], &all[INPUT], &style->in));
    DT_TRY(lay_over(text, "gives", &all[GIVES], &all[OUTPUT], &style->out));
    return DT_OK;
}
