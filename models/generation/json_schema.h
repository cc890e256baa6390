/* SPDX-License-Identifier: Apache-2.0
 *
 * A schema of JSON as nodes that an automaton walks: docs/serving.md says which keywords there are.
 * What a schema leaves open is settled where that forbids no value altogether: properties are
 * written in the order in which they stand, and none but these. */
#ifndef DTI_JSON_SCHEMA_H
#define DTI_JSON_SCHEMA_H

#include "base/memory.h"

enum {
    DTI_JSON_MOST_DEPTH = 32,         /* brackets within each other */
    DTI_JSON_MOST_BRANCHES = 128,     /* of what a value may be */
    DTI_JSON_MOST_NODES = 4096,       /* of a schema */
    DTI_JSON_SCHEMA_BYTES = 64 << 10, /* of its text */
    DTI_JSON_MOST_ITEMS = 65535,      /* that a schema may count */
};

/* What a value may be. */
typedef enum dti_json_form {
    DTI_JSON_ANY,
    DTI_JSON_WORDS,  /* words[first] to words[first + n - 1] */
    DTI_JSON_STRING, /* of least to most characters */
    DTI_JSON_NUMBER,
    DTI_JSON_INTEGER, /* from least to most */
    DTI_JSON_ARRAY,   /* of least to most values, each as node `of` */
    DTI_JSON_MAP,     /* any keys, each value as node `of` */
    DTI_JSON_OBJECT,  /* properties[first] to properties[first + n - 1], in this order */
    DTI_JSON_EITHER   /* as one of branches[first] to branches[first + n - 1] */
} dti_json_form;

typedef struct dti_json_node {
    dti_json_form form;
    int32_t first, n;
    int32_t of;
    int64_t depth;       /* brackets within each other that it has at least */
    int64_t least, most; /* INT64_MIN, INT64_MAX: no bound */
} dti_json_node;

typedef struct dti_json_property {
    const char *key; /* as it is written, with its quotes */
    int32_t of;
    bool required;
} dti_json_property;

/* Nodes that are in every schema. */
enum {
    DTI_JSON_NODE_ANY,
    DTI_JSON_NODE_OBJECT, /* any */
    DTI_JSON_NODE_ARRAY,
    DTI_JSON_NODE_WORD, /* true, false, null */
    DTI_JSON_NODE_STRING,
    DTI_JSON_NODE_NUMBER,
    DTI_JSON_N_FIXED
};

typedef struct dti_json_schema {
    dti_json_node *nodes;
    const char **words; /* as they are written */
    dti_json_property *properties;
    int32_t *branches; /* nodes, none of which is DTI_JSON_EITHER */
    int32_t n_nodes, n_words, n_properties, n_branches;
    int32_t root;
    size_t nodes_room, words_room, properties_room, branches_room;
    dti_arena arena; /* of texts */
} dti_json_schema;

/* What a text says; NULL: any object. A keyword or a value of one that is not supported is
 * DT_ERR_UNSUPPORTED, what is no schema DT_ERR_FORMAT. */
dt_status dti_json_schema_make(dti_json_schema *schema, const char *text) DT_MUST_USE;
void dti_json_schema_free(dti_json_schema *schema); /* accepts a zeroed one */

/* Adds the nodes of a text (json_schema_read.c), with branches that may be EITHER still. */
dt_status dti_json_schema_read(dti_json_schema *schema, const char *text,
                               int32_t *root) DT_MUST_USE;

/* One more; the number of the last node. Words are copied. */
dt_status dti_json_add_node(dti_json_schema *schema, dti_json_node node, int32_t *out) DT_MUST_USE;
dt_status dti_json_add_word(dti_json_schema *schema, const char *word) DT_MUST_USE;
dt_status dti_json_add_branch(dti_json_schema *schema, int32_t node) DT_MUST_USE;

#endif
