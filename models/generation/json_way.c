/* SPDX-License-Identifier: Apache-2.0
 *
 * One way to read a text: an automaton over bytes with a stack of brackets. Blanks between tokens
 * of JSON, digits of numbers and brackets within each other are bounded, so that a model cannot go
 * on with them for ever; strings are valid UTF-8 and have no halves of surrogates. A value is only
 * begun where its end can be reached. */
#include <string.h>

#include "base/numbers.h"
#include "models/generation/json_text.h"

enum { INDENT = 4, MOST_BLANKS = 25, MOST_DIGITS = 24 };

typedef enum json_mode {
    VALUE,       /* the first, behind ":", or "," of an array */
    FIRST_VALUE, /* behind "[" */
    FIRST_KEY,   /* behind "{" */
    KEY,         /* behind "," of an object */
    COLON,       /* behind a key */
    BEHIND,      /* a value: "," or the end of what it is in */
    IN_KEY,      /* of a property */
    WORD,
    STRING,
    ESCAPE, /* behind "\" */
    HEX,
    CHARACTER, /* more bytes of one */
    MINUS,
    ZERO, /* no digit behind it */
    DIGITS,
    POINT,
    FRACTION,
    EXPONENT, /* behind "e" */
    SIGN,     /* behind its sign */
    POWER,
    WHOLE
} json_mode;

static bool go(dti_json_way *w, json_mode mode)
{
    w->mode = (uint8_t)mode;
    w->count = 0;
    return true;
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static dti_json_frame *top(dti_json_way *w)
{
    return &w->frames[w->depth - 1];
}

static bool is_within(const dti_json_schema *s, const dti_json_way *w, int32_t node)
{
    return w->depth + s->nodes[node].depth <= DTI_JSON_MOST_DEPTH;
}

/* Nothing of the value is known any more. */
static bool end_value(dti_json_way *w)
{
    w->node = w->word = w->at = w->key = 0;
    w->low = w->high = w->hex = w->half = w->minus = 0;
    w->number = 0;
    return go(w, w->depth == 0 ? WHOLE : BEHIND);
}

/* --- words and keys --------------------------------------------------------------------------- */

/* The byte behind the first `at` of a word that begins as `alike`; -1: it begins otherwise. */
static int byte_behind(const char *word, const char *alike, uint32_t at)
{
    return strncmp(word, alike, at) == 0 ? (unsigned char)word[at] : -1;
}

/* The first word from w->word on that goes on with c; c 0: that ends here. */
static bool find_word(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    const dti_json_node *node = &s->nodes[w->node];
    const char *const alike = s->words[w->word];

    for (uint32_t i = w->word; i < (uint32_t)(node->first + node->n); i++)
        if (byte_behind(s->words[i], alike, w->at) == c) {
            w->word = i;
            return true;
        }
    return false;
}

/* A word that ends with a digit may go on as another one. */
static bool in_word(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    const char *word;

    if (c == '\0' || !find_word(s, w, c)) return false;
    word = s->words[w->word];
    w->at++;
    (void)go(w, WORD);
    if (word[w->at] == '\0' && !is_digit(c)) (void)end_value(w);
    return true;
}

static bool is_word_whole(const dti_json_schema *s, const dti_json_way *w)
{
    dti_json_way copy = *w;

    return find_word(s, &copy, '\0');
}

/* The first property that may be written now, begins as that of w->word does, and goes on with c:
 * those that are required are not passed over. */
static bool find_key(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    const dti_json_frame *f = top(w);
    const dti_json_node *node = &s->nodes[f->node];
    const uint32_t end = (uint32_t)(node->first + node->n);

    for (uint32_t i = (uint32_t)node->first + f->n; i < end; i++) {
        const dti_json_property *p = &s->properties[i];
        const char *alike = w->at > 0 ? s->properties[w->word].key : p->key;
        if (i >= w->word && is_within(s, w, p->of) && byte_behind(p->key, alike, w->at) == c) {
            w->word = i;
            return true;
        }
        if (p->required) return false;
    }
    return false;
}

static bool in_key(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    const dti_json_property *p;

    if (c == '\0' || !find_key(s, w, c)) return false;
    p = &s->properties[w->word];
    (void)go(w, IN_KEY);
    if (p->key[++w->at] != '\0') return true;
    top(w)->n = (uint16_t)(w->word - (uint32_t)s->nodes[top(w)->node].first + 1);
    w->node = (uint32_t)p->of;
    w->word = w->at = 0;
    return go(w, COLON);
}

/* --- brackets --------------------------------------------------------------------------------- */

static bool is_array(const dti_json_schema *s, dti_json_way *w)
{
    return s->nodes[top(w)->node].form == DTI_JSON_ARRAY;
}

/* Whether nothing that has to be there is missing. */
static bool may_close(const dti_json_schema *s, dti_json_way *w)
{
    const dti_json_frame *f = top(w);
    const dti_json_node *node = &s->nodes[f->node];

    if (node->form == DTI_JSON_ARRAY) return f->n >= node->least;
    if (node->form == DTI_JSON_MAP) return true;
    for (int32_t i = node->first + f->n; i < node->first + node->n; i++)
        if (s->properties[i].required) return false;
    return true;
}

/* Whether there may be one more. */
static bool has_more(const dti_json_schema *s, dti_json_way *w)
{
    const dti_json_frame *f = top(w);
    const dti_json_node *node = &s->nodes[f->node];
    dti_json_way copy = *w;

    if (node->form == DTI_JSON_ARRAY) return f->n < node->most && is_within(s, w, node->of);
    if (node->form == DTI_JSON_MAP) return is_within(s, w, node->of);
    copy.word = copy.at = 0;
    return find_key(s, &copy, '"');
}

/* Of the value that is next. */
static bool open_bracket(const dti_json_schema *s, dti_json_way *w)
{
    const dti_json_node *node = &s->nodes[w->node];
    const bool array = node->form == DTI_JSON_ARRAY;

    w->frames[w->depth++] = (dti_json_frame){ (uint16_t)w->node, 0 };
    w->node = array ? (uint32_t)node->of : 0;
    return go(w, array ? FIRST_VALUE : FIRST_KEY);
}

static bool close_bracket(const dti_json_schema *s, dti_json_way *w)
{
    if (!may_close(s, w)) return false;
    w->frames[--w->depth] = (dti_json_frame){ 0, 0 };
    return end_value(w);
}

static bool begin_key(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    if (c != '"' || !has_more(s, w)) return false;
    if (s->nodes[top(w)->node].form == DTI_JSON_OBJECT) return in_key(s, w, c);
    w->node = DTI_JSON_NODE_STRING;
    w->key = 1;
    return go(w, STRING);
}

/* Behind a value, of which a number may only now be known to be over. */
static bool behind_value(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    if (w->depth == 0) return false;
    if (c == (is_array(s, w) ? ']' : '}')) return close_bracket(s, w);
    if (c != ',' || !has_more(s, w)) return false;
    if (!is_array(s, w)) return go(w, KEY);
    w->node = (uint32_t)s->nodes[top(w)->node].of;
    return go(w, VALUE);
}

/* --- strings ---------------------------------------------------------------------------------- */

static bool one_more(const dti_json_schema *s, dti_json_way *w)
{
    if ((int64_t)w->at >= s->nodes[w->node].most) return false;
    if (w->at < UINT32_MAX) w->at++;
    return true;
}

/* The first byte of a character; what may follow it. */
static bool begin_character(dti_json_way *w, unsigned char c)
{
    if (c < 0xc2 || c > 0xf4) return false;
    (void)go(w, CHARACTER);
    w->low = 0x80;
    w->high = 0xbf;
    w->count = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    if (c == 0xe0) w->low = 0xa0;
    if (c == 0xed) w->high = 0x9f;
    if (c == 0xf0) w->low = 0x90;
    if (c == 0xf4) w->high = 0x8f;
    return true;
}

static bool in_character(dti_json_way *w, unsigned char c)
{
    if (c < w->low || c > w->high) return false;
    w->low = 0x80;
    w->high = 0xbf;
    if (--w->count == 0) (void)go(w, STRING);
    return true;
}

static bool end_string(const dti_json_schema *s, dti_json_way *w)
{
    const bool key = w->key != 0;

    if ((int64_t)w->at < s->nodes[w->node].least) return false;
    (void)end_value(w);
    if (!key) return true;
    w->node = (uint32_t)s->nodes[top(w)->node].of;
    return go(w, COLON);
}

static bool in_string(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    if (c == '"') return end_string(s, w);
    if (c < 0x20 || !one_more(s, w)) return false;
    if (c == '\\') return go(w, ESCAPE);
    return c < 0x80 || begin_character(w, c);
}

static bool in_escape(dti_json_way *w, unsigned char c)
{
    if (c == 'u') {
        w->hex = w->half = 0;
        return go(w, HEX);
    }
    return c != '\0' && strchr("\"\\/bfnrt", c) != NULL && go(w, STRING);
}

/* Numbers from d800 to dfff are halves of pairs. */
static bool in_hex(dti_json_way *w, unsigned char c)
{
    if (c == '\0' || strchr("0123456789abcdefABCDEF", c) == NULL) return false;
    if (w->hex == 1 && w->half != 0 && (c < '0' || c > '7')) return false;
    if (w->hex == 0) w->half = c == 'd' || c == 'D';
    if (++w->hex == 4) (void)go(w, STRING);
    return true;
}

/* --- numbers ---------------------------------------------------------------------------------- */

static bool is_bounded(const dti_json_node *node)
{
    return node->form == DTI_JSON_INTEGER && node->most != INT64_MAX;
}

/* Whether an integer that begins with the digits of x, or is x, lies between bounds. */
static bool can_become(int64_t x, int64_t least, int64_t most)
{
    for (int64_t from = x, to = x; from <= most; from *= 10, to = to * 10 + 9) {
        if (to >= least) return true;
        if (x == 0) break;
    }
    return false;
}

/* Bounds hold for a number without its sign; below zero there is no 0. */
static bool add_to_integer(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    const dti_json_node *node = &s->nodes[w->node];
    int64_t least, most;

    if (!is_bounded(node)) return true;
    least = w->minus ? dti_max(1, -node->most) : node->least;
    most = w->minus ? -node->least : node->most;
    w->number = w->number * 10 + (c - '0');
    return can_become(w->number, least, most);
}

static bool begin_number(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    const dti_json_node *node = &s->nodes[w->node];

    if (c == '-' && w->mode != MINUS) {
        w->minus = node->form == DTI_JSON_INTEGER;
        return (!is_bounded(node) || node->least < 0) && go(w, MINUS);
    }
    return is_digit(c) && add_to_integer(s, w, c) && go(w, c == '0' ? ZERO : DIGITS);
}

static bool is_number_whole(const dti_json_schema *s, const dti_json_way *w)
{
    const dti_json_node *node = &s->nodes[w->node];
    const int64_t value = w->minus ? -w->number : w->number;

    if (is_bounded(node) && (value < node->least || value > node->most)) return false;
    return w->mode == ZERO || w->mode == DIGITS || w->mode == FRACTION || w->mode == POWER;
}

/* 1e999 is no number that readers can hold. */
static bool add_digit(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    if (w->mode == ZERO || ++w->count >= (w->mode == POWER ? 2 : MOST_DIGITS)) return false;
    return w->mode != DIGITS || add_to_integer(s, w, c);
}

static bool in_number(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    const json_mode mode = (json_mode)w->mode;
    const bool digit = is_digit(c), whole = s->nodes[w->node].form == DTI_JSON_INTEGER;

    switch (mode) {
    case MINUS:
        return begin_number(s, w, c);
    case POINT:
        return digit && go(w, FRACTION);
    case EXPONENT:
        if (c == '+' || c == '-') return go(w, SIGN);
        return digit && go(w, POWER);
    case SIGN:
        return digit && go(w, POWER);
    default:
        break;
    }
    if (digit) return add_digit(s, w, c);
    if (c == '.' && !whole && (mode == ZERO || mode == DIGITS)) return go(w, POINT);
    return (c == 'e' || c == 'E') && !whole && mode != POWER && go(w, EXPONENT);
}

/* --- all of them ------------------------------------------------------------------------------ */

/* What a value of any form is that begins so. */
static uint32_t node_of(unsigned char c)
{
    switch (c) {
    case '{':
        return DTI_JSON_NODE_OBJECT;
    case '[':
        return DTI_JSON_NODE_ARRAY;
    case '"':
        return DTI_JSON_NODE_STRING;
    case 't':
    case 'f':
    case 'n':
        return DTI_JSON_NODE_WORD;
    default:
        return DTI_JSON_NODE_NUMBER;
    }
}

/* One more of an array, if it is in one. */
static bool count_item(const dti_json_schema *s, dti_json_way *w)
{
    if (w->depth == 0 || !is_array(s, w)) return true;
    if (!has_more(s, w)) return false;
    if (top(w)->n < DTI_JSON_MOST_ITEMS) top(w)->n++;
    return true;
}

static bool begin_value(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    const dti_json_node *node = &s->nodes[w->node];

    if (node->form == DTI_JSON_ANY) {
        w->node = node_of(c);
        node = &s->nodes[w->node];
    }
    if (!is_within(s, w, (int32_t)w->node) || !count_item(s, w)) return false;
    switch (node->form) {
    case DTI_JSON_WORDS:
        w->word = (uint32_t)node->first;
        return in_word(s, w, c);
    case DTI_JSON_STRING:
        return c == '"' && go(w, STRING);
    case DTI_JSON_NUMBER:
    case DTI_JSON_INTEGER:
        return begin_number(s, w, c);
    case DTI_JSON_ARRAY:
        return c == '[' && open_bracket(s, w);
    case DTI_JSON_MAP:
    case DTI_JSON_OBJECT:
        return c == '{' && open_bracket(s, w);
    default:
        return false;
    }
}

static bool between(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    switch ((json_mode)w->mode) {
    case VALUE:
        return begin_value(s, w, c);
    case FIRST_VALUE:
        return c == ']' ? close_bracket(s, w) : begin_value(s, w, c);
    case FIRST_KEY:
        return c == '}' ? close_bracket(s, w) : begin_key(s, w, c);
    case KEY:
        return begin_key(s, w, c);
    case COLON:
        return c == ':' && go(w, VALUE);
    case BEHIND:
        return behind_value(s, w, c);
    default:
        return false;
    }
}

static bool is_blank(unsigned char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* As writers of JSON set them, so that a model has no room to go on with them: none before a colon
 * and one behind it, elsewhere a new line and an indent of four for each bracket. */
static bool add_blank(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    const bool behind_colon = w->mode == VALUE && w->depth > 0 && !is_array(s, w);
    int64_t most;

    if (w->mode == COLON || (w->count > 0 && (c == '\n' || c == '\r'))) return false;
    most = behind_colon ? 1 : dti_min(1 + INDENT * w->depth, MOST_BLANKS);
    return ++w->count <= most;
}

/* What only the next byte shows to be over. */
static bool ends_before(const dti_json_schema *s, const dti_json_way *w, unsigned char c)
{
    if (!is_blank(c) && c != ',' && c != ']' && c != '}') return false;
    return w->mode == WORD ? is_word_whole(s, w) : is_number_whole(s, w);
}

bool dti_json_way_step(const dti_json_schema *s, dti_json_way *w, unsigned char c)
{
    switch ((json_mode)w->mode) {
    case IN_KEY:
        return in_key(s, w, c);
    case STRING:
        return in_string(s, w, c);
    case ESCAPE:
        return in_escape(w, c);
    case HEX:
        return in_hex(w, c);
    case CHARACTER:
        return in_character(w, c);
    case WORD:
    case MINUS:
    case ZERO:
    case DIGITS:
    case POINT:
    case FRACTION:
    case EXPONENT:
    case SIGN:
    case POWER:
        if (!ends_before(s, w, c)) return w->mode == WORD ? in_word(s, w, c) : in_number(s, w, c);
        (void)end_value(w);
        break;
    default:
        break;
    }
    if (is_blank(c)) return add_blank(s, w, c);
    return between(s, w, c);
}

bool dti_json_way_forks(const dti_json_schema *s, const dti_json_way *w, unsigned char c)
{
    if (w->mode != VALUE && w->mode != FIRST_VALUE) return false;
    return s->nodes[w->node].form == DTI_JSON_EITHER && !is_blank(c) && c != ']';
}

bool dti_json_way_is_between(const dti_json_way *w)
{
    return w->mode == VALUE || w->mode == KEY || w->mode == BEHIND || w->mode == WHOLE;
}

bool dti_json_way_is_whole(const dti_json_way *w)
{
    return w->mode == WHOLE;
}
