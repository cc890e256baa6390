/* SPDX-License-Identifier: Apache-2.0
 *
 * Kinds of layers, one row of a table each: parameters and their axes, what a layer computes, what
 * it carries from pass to pass, what it costs. The library's kinds are rows like a user's own. */
#ifndef DT_KINDS_H
#define DT_KINDS_H

#include <dtensor/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_layer dt_layer;   /* borrowed from its list */
typedef struct dt_layers dt_layers; /* the list of a model */
typedef struct dt_carry dt_carry;   /* what layers carry from pass to pass */
typedef struct dt_layer_kind dt_layer_kind;
typedef struct dt_layer_spec dt_layer_spec;
typedef struct dt_style dt_style; /* dtensor/parallel_styles.h */
typedef struct dt_plan dt_plan;   /* the same */

enum {
    DT_LAYER_MAX_PARAMS = 6,
    DT_LAYER_MAX_STATES = 4,
    DT_LAYER_MAX_AXES = 6, /* letters of a kind */
    DT_PARAM_MAX_AXES = 4,
    DT_PARAM_NAME_BYTES = 256, /* of "layer.parameter" with its end, at most */
    DT_PARAM_WEIGHT = 0,       /* of the library's kinds */
    DT_PARAM_BIAS = 1
};

/* What a parameter begins with where neither a file nor a rule of dt_layers_init() says more. */
typedef enum dt_begins { DT_BEGINS_RANDOM, DT_BEGINS_ONES, DT_BEGINS_ZEROS } dt_begins;

/* Weights of few bits: what a parameter has of one, whose last axis counts inputs. Codes, as many
 * of them to an element as a byte holds; scales and zero points, one for each group of inputs.
 * Codes and zero points are u8 in every model. */
typedef enum dt_packed {
    DT_PACKED_NOT,
    DT_PACKED_CODES,
    DT_PACKED_SCALES,
    DT_PACKED_ZEROS
} dt_packed;

typedef struct dt_kind_param {
    const char *name; /* "weight": in files it stands behind the layer's; NULL ends the table */
    const char *axes; /* a letter for each axis: "oi" */
    bool optional;    /* a layer has it if its spec's `with` names it */
    bool frozen;      /* training leaves it as it is */
    bool wide;        /* f32 in every model */
    bool added;       /* a term of the result, [columns]: where forward gives terms of a sum over
                       * ranks it leaves this one out, and the layer adds it once, to the sum */
    bool bare;        /* in files it is called as the layer is, without its own name */
    bool adapter;     /* files of a plain layer lack it; it begins as dt_layers_init() has it */
    dt_begins begins;
    dt_packed packed;
} dt_kind_param;

/* What a layer carries from pass to pass for each of its sequences: the last inputs of a
 * convolution, the state of a recurrence. Zeros before the first pass. */
typedef struct dt_kind_state {
    const char *name; /* NULL ends the table */
    const char *axes; /* letters of the kind, each with what is added to it, if anything: "k-1c".
                       * Cut as the axes of parameters with that letter are */
    bool slots;       /* only dt_carried_conv() or dt_carried_delta() read and write it, so that it
                       * may lie in a slot of an engine, which needs that of all states */
} dt_kind_state;

/* What a plain layer has in the place of parameter `param`, which is no adapter: W + s B A, of any
 * layout, better in f32 than rounded early; made of operators on the tape. */
typedef dt_tensor *(*dt_merge_fn)(dt_tape *tape, const dt_layer *layer, int param);

/* One kind of layer. What is left zero is as in `like`, another kind whose styles fit this one too,
 * or there is none of it. */
struct dt_layer_kind {
    const char *name;  /* "linear"; at most 31 bytes without blanks */
    const char *words; /* "a linear layer", for messages; NULL: its name */
    const dt_layer_kind *like;
    const char *axes; /* the letters, in the order of a spec's axes, "oi"; NULL: in the order in
                       * which parameters bring them up */
    dt_kind_param params[DT_LAYER_MAX_PARAMS];
    dt_kind_state states[DT_LAYER_MAX_STATES];
    const char *values; /* "...i -> ...o": the axes of x and of the result */
    char columns;       /* the letter that DT_CUT_COLUMNS cuts; 0: none */
    char rows;          /* DT_CUT_ROWS */
    char picks;         /* a row of x uses some entries of this axis only, a table's rows or
                         * experts; DT_CUT_EXPERTS cuts it */
    bool ids;           /* x are ids, [batch, tokens] */
    const char *cost;   /* FLOPs for each row of x: "2 oi + 2 ri"; NULL: none to speak of */
    const char *run_by; /* "dt_layer_experts()": what computes layers of this kind together with
                         * others, as they have no forward of their own */

    /* The result of x, between the two halves of a style; a function of operators on the tape.
     * Parameters are dt_layer_use(). NULL without `run_by`: x itself. */
    dt_tensor *(*forward)(dt_tape *tape, const dt_layer *layer, dt_tensor *x);
    dt_merge_fn merged; /* asked by a save that merges; NULL: parameters are written as they are */

    /* Refuses a spec that is none of this kind, with a reason (dt_fail()); NULL: any will do. */
    dt_status (*check)(const dt_layer_spec *spec);
};

/* The library's. Not collective, no errors. */
DT_API extern const dt_layer_kind dt_point_kind;     /* a place where values may be laid out anew */
DT_API extern const dt_layer_kind dt_linear_kind;    /* weight oi, bias o if there is one */
DT_API extern const dt_layer_kind dt_embedding_kind; /* weight vd */
DT_API extern const dt_layer_kind dt_rms_norm_kind;  /* weight d */
DT_API extern const dt_layer_kind dt_rms_norm_once_kind;  /* the same, rounded once */
DT_API extern const dt_layer_kind dt_rms_norm_1p_kind;    /* the same, multiplies by 1 + weight */
DT_API extern const dt_layer_kind dt_layer_norm_kind;     /* weight d, bias d */
DT_API extern const dt_layer_kind dt_experts_kind;        /* weight eoi; axes of a spec: o, i, e */
DT_API extern const dt_layer_kind dt_experts_bias_kind;   /* weight eo; axes of a spec: o, e */
DT_API extern const dt_layer_kind dt_linear_packed_kind;  /* weight_packed oi, bias o, weight_scale
                                                          * oi, weight_zero_point oi */
DT_API extern const dt_layer_kind dt_experts_packed_kind; /* weight_packed eoi, weight_scale eoi,
                                                           * weight_zero_point eoi */

/**
 * Makes a kind known by its name. Not needed for a kind that specs point to.
 *
 *   kind  lives as long as the runtime; its address is its identity
 *
 * Collective  no communication; every rank registers the same.
 * Errors      DT_ERR_ARG     NULL, a name that another kind has, or what makes it no kind: letters,
 *                            tables or costs that cannot be
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_kind_register(dt_runtime *rt, const dt_layer_kind *kind);

/** The kind of that name; the i-th kind, registered ones first. Not collective. Errors: none; NULL
 * if there is none. */
DT_API const dt_layer_kind *dt_kind_find(dt_runtime *rt, const char *name);
DT_API const dt_layer_kind *dt_kind_at(dt_runtime *rt, int i);

#ifdef __cplusplus
}
#endif
#endif
