/* SPDX-License-Identifier: Apache-2.0
 *
 * An automaton over bytes with a stack of bits. Blanks between tokens of JSON, digits of numbers
 * and brackets within each other are bounded, so that a model cannot go on with them for ever;
 * strings are valid UTF-8 and have no halves of surrogates. */
#include "models/generation/json_text.h"

#include <string.h>

enum { MOST_BLANKS = 24, MOST_DIGITS = 24 };

typedef enum json_mode {
    BEFORE,      /* the object */
    FIRST_KEY,   /* behind "{" */
    KEY,         /* behind "," of an object */
    COLON,       /* behind a key */
    FIRST_VALUE, /* behind "[" */
    VALUE,       /* behind ":", or "," of an array */
    BEHIND,      /* a value: "," or the end of what it is in */
    STRING,
    ESCAPE, /* behind "\" */
    HEX,
    CHARACTER, /* more bytes of one */
    WORD,
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

static const char *const words[] = { "true", "false", "null" };

static bool go(dti_json_state *s, json_mode mode)
{
    s->mode = (uint8_t)mode;
    s->count = 0;
    return true;
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static bool in_array(const dti_json_state *s)
{
    return (s->arrays >> (s->depth - 1) & 1u) != 0;
}

static bool open_bracket(dti_json_state *s, bool array)
{
    if (s->depth == DTI_JSON_MOST_DEPTH) return false;
    s->arrays &= ~(1u << s->depth);
    s->arrays |= (uint32_t)array << s->depth;
    s->depth++;
    return go(s, array ? FIRST_VALUE : FIRST_KEY);
}

static bool close_bracket(dti_json_state *s)
{
    s->depth--;
    return go(s, s->depth == 0 ? WHOLE : BEHIND);
}

static bool begin_string(dti_json_state *s, bool key)
{
    s->key = key;
    return go(s, STRING);
}

static bool begin_value(dti_json_state *s, unsigned char c)
{
    switch (c) {
    case '{':
        return open_bracket(s, false);
    case '[':
        return open_bracket(s, true);
    case '"':
        return begin_string(s, false);
    case '-':
        return go(s, MINUS);
    case '0':
        return go(s, ZERO);
    default:
        break;
    }
    if (is_digit(c)) return go(s, DIGITS);
    for (uint8_t w = 0; w < 3; w++)
        if (c == (unsigned char)words[w][0]) {
            s->word = w;
            s->at = 1;
            return go(s, WORD);
        }
    return false;
}

/* Behind a value, of which a number may only now be known to be over. */
static bool end_value(dti_json_state *s, unsigned char c)
{
    if (c == ',') return go(s, in_array(s) ? VALUE : KEY);
    if (c == (in_array(s) ? ']' : '}')) return close_bracket(s);
    return false;
}

/* --- strings ---------------------------------------------------------------------------------- */

/* The first byte of a character; what may follow it. */
static bool begin_character(dti_json_state *s, unsigned char c)
{
    s->low = 0x80;
    s->high = 0xbf;
    if (c < 0xc2 || c > 0xf4) return false;
    (void)go(s, CHARACTER);
    s->count = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    if (c == 0xe0) s->low = 0xa0;
    if (c == 0xed) s->high = 0x9f;
    if (c == 0xf0) s->low = 0x90;
    if (c == 0xf4) s->high = 0x8f;
    return true;
}

static bool in_character(dti_json_state *s, unsigned char c)
{
    if (c < s->low || c > s->high) return false;
    s->low = 0x80;
    s->high = 0xbf;
    if (--s->count == 0) (void)go(s, STRING);
    return true;
}

static bool in_string(dti_json_state *s, unsigned char c)
{
    if (c == '"') return go(s, s->key ? COLON : BEHIND);
    if (c == '\\') return go(s, ESCAPE);
    if (c < 0x20) return false;
    return c < 0x80 || begin_character(s, c);
}

static bool in_escape(dti_json_state *s, unsigned char c)
{
    if (c == 'u') {
        s->at = 0;
        return go(s, HEX);
    }
    return c != '\0' && strchr("\"\\/bfnrt", c) != NULL && go(s, STRING);
}

/* \ud800 to \udfff are halves; `word` remembers that it began so. */
static bool in_hex(dti_json_state *s, unsigned char c)
{
    const bool d = c == 'd' || c == 'D';

    if (c == '\0' || strchr("0123456789abcdefABCDEF", c) == NULL) return false;
    if (s->at == 1 && s->word != 0 && (c < '0' || c > '7')) return false;
    if (s->at == 0) s->word = d ? 1 : 0;
    if (++s->at == 4) (void)go(s, STRING);
    return true;
}

/* --- all of them ------------------------------------------------------------------------------ */

static bool in_number(dti_json_state *s, unsigned char c)
{
    const json_mode mode = (json_mode)s->mode;
    const bool digit = is_digit(c), e = c == 'e' || c == 'E';

    switch (mode) {
    case MINUS:
        return c == '0' ? go(s, ZERO) : digit && go(s, DIGITS);
    case POINT:
        return digit && go(s, FRACTION);
    case EXPONENT:
        if (c == '+' || c == '-') return go(s, SIGN);
        return digit && go(s, POWER);
    case SIGN:
        return digit && go(s, POWER);
    default:
        break;
    }
    if (digit) /* 1e999 is no number that readers can hold */
        return mode != ZERO && ++s->count < (mode == POWER ? 2 : MOST_DIGITS);
    if (c == '.' && (mode == ZERO || mode == DIGITS)) return go(s, POINT);
    if (e && mode != POWER) return go(s, EXPONENT);
    return false;
}

static bool in_word(dti_json_state *s, unsigned char c)
{
    if (c != (unsigned char)words[s->word][s->at]) return false;
    if (words[s->word][++s->at] == '\0') (void)go(s, BEHIND);
    return true;
}

static bool is_number_whole(const dti_json_state *s)
{
    return s->mode == ZERO || s->mode == DIGITS || s->mode == FRACTION || s->mode == POWER;
}

static bool between(dti_json_state *s, unsigned char c)
{
    switch ((json_mode)s->mode) {
    case BEFORE:
        return c == '{' && open_bracket(s, false);
    case FIRST_KEY:
        return c == '}' ? close_bracket(s) : c == '"' && begin_string(s, true);
    case KEY:
        return c == '"' && begin_string(s, true);
    case COLON:
        return c == ':' && go(s, VALUE);
    case FIRST_VALUE:
        return c == ']' ? close_bracket(s) : begin_value(s, c);
    case VALUE:
        return begin_value(s, c);
    case BEHIND:
        return end_value(s, c);
    default:
        return false;
    }
}

bool dti_json_step(dti_json_state *s, unsigned char c)
{
    const bool blank = c == ' ' || c == '\n' || c == '\t' || c == '\r';

    switch ((json_mode)s->mode) {
    case STRING:
        return in_string(s, c);
    case ESCAPE:
        return in_escape(s, c);
    case HEX:
        return in_hex(s, c);
    case CHARACTER:
        return in_character(s, c);
    case WORD:
        return in_word(s, c);
    case MINUS:
    case ZERO:
    case DIGITS:
    case POINT:
    case FRACTION:
    case EXPONENT:
    case SIGN:
    case POWER:
        if (!is_number_whole(s) || (!blank && c != ',' && c != ']' && c != '}'))
            return in_number(s, c);
        return blank ? go(s, BEHIND) : end_value(s, c);
    default:
        break;
    }
    if (blank) return ++s->count <= MOST_BLANKS;
    return between(s, c);
}

bool dti_json_is_whole(const dti_json_state *s)
{
    return s->mode == WHOLE;
}
