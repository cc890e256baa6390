/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON while it is written: which bytes may come next so that a text becomes a value of a schema.
 * What a row has written says all; ranks come to the same by themselves. */
#ifndef DTI_JSON_TEXT_H
#define DTI_JSON_TEXT_H

#include "models/generation/json_schema.h"
#include "models/generation/text_rules.h"
#include "text/tokenizer/token_texts.h"

/* An open bracket. */
typedef struct dti_json_frame {
    uint16_t node; /* an ARRAY, MAP or OBJECT */
    uint16_t n;    /* values so far, up to the most that is counted; of an OBJECT: the property that
                    * may be next */
} dti_json_frame;

/* One way in which a text can be read. What a mode does not use is zero, so that ways that have
 * come to the same are equal byte by byte. */
typedef struct dti_json_way {
    uint8_t mode;  /* a json_mode of json_way.c */
    uint8_t depth; /* open brackets */
    uint8_t count; /* of blanks or digits, which are bounded, or of what is left of a character */
    uint8_t low, high; /* what the next byte of a character may be */
    uint8_t hex;       /* digits of an escape by its number, ... */
    uint8_t half;      /* ... which began so that it may become half of a pair */
    uint8_t minus;     /* an integer is below zero */
    uint32_t node;     /* of the value that is, or is to be, written */
    uint32_t word;     /* of WORDS: which; of a property's key: the property */
    uint32_t at;       /* bytes of that; characters of a string */
    uint32_t key;      /* the string is a key */
    int64_t number;    /* an integer so far, without its sign */
    dti_json_frame frames[DTI_JSON_MOST_DEPTH];
} dti_json_way;

/* All ways in which it can; where there would be more than so many those that come last are not
 * followed, which leaves fewer texts, and none that is wrong. */
typedef struct dti_json_state {
    int n;
    dti_json_way ways[DTI_JSON_MOST_BRANCHES];
} dti_json_state;

/* Before the first byte. */
void dti_json_begin(const dti_json_schema *schema, dti_json_state *s);

/* One byte more; false: no value begins so, and *s is of no use any more. */
bool dti_json_step(const dti_json_schema *schema, dti_json_state *s, unsigned char byte);

/* Whether the value is there, whole. */
bool dti_json_is_whole(const dti_json_state *s);

/* *to becomes the same: most of a state is not in use. */
void dti_json_copy(dti_json_state *to, const dti_json_state *from);

/* A byte more of one way (json_way.c), whose next value is of one form; false: it ends here. */
bool dti_json_way_step(const dti_json_schema *schema, dti_json_way *w, unsigned char byte);

/* Whether a value is next, which may have several forms. */
bool dti_json_way_forks(const dti_json_schema *schema, const dti_json_way *w, unsigned char byte);

/* Whether no value or key is under way: ways may have come to the same. */
bool dti_json_way_is_between(const dti_json_way *w);
bool dti_json_way_is_whole(const dti_json_way *w);

/* What tokens of a text have come to, so that of a longer one only those behind them are read. */
typedef struct dti_json_known {
    int32_t *ids; /* [n] */
    int64_t n;
    dti_json_way *ways; /* [n_ways]; none: they lead nowhere */
    int n_ways;
    int64_t used; /* when, counted by questions */
    size_t ids_room, ways_room;
} dti_json_known;

/* Of the texts of some rules, one for each: those that begin alike are read anew once, when they go
 * different ways. */
typedef struct dti_json_memory {
    dti_json_known *list; /* [n] */
    int64_t n, now;
    size_t room;
    int64_t n_read; /* tokens, so far: what all this saves */
} dti_json_memory;
void dti_json_memory_free(dti_json_memory *m); /* accepts a zeroed one */

/* Where n tokens lead; out->n 0: nowhere. */
dt_status dti_json_read_tokens(dti_text_rules *rules, const int32_t *ids, int64_t n,
                               dti_json_state *out) DT_MUST_USE;

/* Whether `next` ends the value that the last n_new of n tokens have begun. */
dt_status dti_json_ends(dti_text_rules *rules, const int32_t *ids, int64_t n, int32_t next,
                        bool *out) DT_MUST_USE;

/* Bans what no value goes on with, among columns from `first` on. */
void dti_json_mask(const dti_json_schema *schema, const dti_token_texts *t, const dti_json_state *s,
                   float *scores, int64_t first, int64_t n);

#endif
