/* SPDX-License-Identifier: Apache-2.0
 *
 * A strict interpreter of the part of Jinja that chat templates are written in. It renders exactly
 * what Jinja 3 renders as Transformers sets it up (trim_blocks, lstrip_blocks, immutable sandbox),
 * or refuses with the line and the construct; it never renders something else.
 *
 * A template is somebody else's program: nesting, steps and memory are bounded, so none of them
 * hangs or exhausts the process. Files in reading order: jinja_lex.c (source to tokens),
 * jinja_parse.c and jinja_tags.c (tokens to a tree), jinja_value.c (what an expression gives),
 * jinja_print.c (values to text), jinja_eval.c (expressions), jinja_filters.c (filters, tests),
 * jinja_methods.c (methods, functions), jinja_scope.c (names), jinja_render.c (statements),
 * jinja_macro.c (macros and call blocks). */
#ifndef DTI_JINJA_H
#define DTI_JINJA_H

#include "base/memory.h"
#include "text/tokenizer/utf8.h"

struct json_t;

enum {
    DTI_JINJA_SOURCE_BYTES = 1 << 20, /* of a template */
    DTI_JINJA_DEPTH = 200,            /* of expressions and blocks within each other */
    DTI_JINJA_STEPS = 1 << 26,        /* of one rendering; a step looks at a node or a byte */
    DTI_JINJA_BYTES = 1 << 26,        /* of values in one rendering, and of its text */
};

/* --- values ----------------------------------------------------------------------------------- */

typedef enum dti_jkind {
    DTI_J_UNDEFINED = 0, /* Jinja's: prints nothing, is false, has no attributes */
    DTI_J_NONE,
    DTI_J_BOOL,
    DTI_J_INT,
    DTI_J_FLOAT,
    DTI_J_STRING,
    DTI_J_LIST, /* or what is like one */
    DTI_J_DICT,
    DTI_J_NAMESPACE,
    DTI_J_GLOBAL, /* a function that Transformers gives to templates */
    DTI_J_MACRO,
} dti_jkind;

/* Copy freely: what it points to belongs to the arena of the rendering or of the tree. */
typedef struct dti_jvalue {
    dti_jkind kind;
    bool markup; /* a string from |safe, which Python adds to others in its own way */
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *s; /* valid UTF-8 */
            size_t n;
        };
        struct dti_jlist *list;
        struct dti_jdict *dict; /* of a namespace too */
        const struct dti_jmacro *macro;
    };
} dti_jvalue;

/* What Python has instead of a list: tuples, ranges and views print otherwise and equal no list; a
 * generator has no length, is true, and is empty once it was looped over. */
typedef enum dti_jlike { DTI_J_LIKE_LIST = 0, DTI_J_LIKE_TUPLE, DTI_J_LIKE_GENERATOR } dti_jlike;

typedef struct dti_jlist {
    dti_jvalue *items;
    size_t n;
    dti_jlike like;
} dti_jlist;

typedef struct dti_jentry {
    dti_jvalue key; /* a string */
    dti_jvalue value;
} dti_jentry;

typedef struct dti_jdict {
    dti_jentry *entries; /* in order of insertion */
    size_t n, room;
    bool loop; /* the variable of a loop */
} dti_jdict;

/* A macro sees the names of the scope that it stands in, as they are when it is called. */
typedef struct dti_jmacro {
    const struct dti_jnode *node;
    const struct dti_jscope *scope;
} dti_jmacro;

/* --- tokens and trees ------------------------------------------------------------------------- */

typedef enum dti_jtok_kind {
    DTI_T_END = 0,
    DTI_T_TEXT, /* outside of tags */
    DTI_T_OPEN_OUTPUT,
    DTI_T_CLOSE_OUTPUT,
    DTI_T_OPEN_TAG,
    DTI_T_CLOSE_TAG,
    DTI_T_NAME,
    DTI_T_STRING,
    DTI_T_INT,
    DTI_T_FLOAT,
    DTI_T_OPERATOR
} dti_jtok_kind;

typedef struct dti_jtok {
    dti_jtok_kind kind;
    int line;
    const char *s; /* the text: of strings without quotes and escapes */
    size_t n;
    int64_t i;
    double f;
} dti_jtok;

typedef enum dti_jnode_kind {
    DTI_N_LITERAL = 0,
    DTI_N_NAME,
    DTI_N_LIST,
    DTI_N_DICT,      /* elements: pairs of a key and a value, as NODE_PAIR */
    DTI_N_PAIR,      /* a: key, b: value */
    DTI_N_ATTRIBUTE, /* a.name */
    DTI_N_ITEM,      /* a[b] */
    DTI_N_SLICE,     /* a[b:c:d], each may be NULL */
    DTI_N_CALL,      /* name(args b) */
    DTI_N_METHOD,    /* a.name(args b) */
    DTI_N_FILTER,    /* a|name(args b) */
    DTI_N_TEST,      /* a is name(args b) */
    DTI_N_KEYWORD,   /* name=a, among arguments */
    DTI_N_NOT,
    DTI_N_NEGATE,
    DTI_N_PLUS,
    DTI_N_AND,
    DTI_N_OR,
    DTI_N_BINARY,  /* a op b */
    DTI_N_COMPARE, /* a, then a list b of DTI_N_OPERAND */
    DTI_N_OPERAND, /* op a */
    DTI_N_IF_ELSE, /* b if a else c; c may be NULL */
    DTI_N_TEXT,
    DTI_N_OUTPUT,       /* a */
    DTI_N_IF,           /* a: condition, b: body, c: else */
    DTI_N_FOR,          /* names, a: of what, d: filter or NULL, b: body, c: else */
    DTI_N_SET,          /* names (or name of namespace `name` . names), a */
    DTI_N_SET_BLOCK,    /* names, a: filters of DTI_N_CAPTURED or NULL, b: body */
    DTI_N_FILTER_BLOCK, /* a: filters of DTI_N_CAPTURED, b: body */
    DTI_N_CAPTURED,     /* the text that the block around it made */
    DTI_N_MACRO,        /* name, names: parameters, a of each: its default or NULL, b: body */
    DTI_N_CALL_BLOCK,   /* a: the call, names and b: the macro that it is given as its caller */
    DTI_N_BREAK,
    DTI_N_CONTINUE,
    DTI_N_BODY /* b: body */
} dti_jnode_kind;

/* One form for all: which fields are used stands beside the kinds. */
typedef struct dti_jnode {
    dti_jnode_kind kind;
    int line;
    bool tuple;        /* a list in round brackets, or in none */
    bool takes_caller; /* a macro that names its caller */
    char op[8];
    const char *name; /* ended by zero */
    struct dti_jnode *a, *b, *c, *d;
    struct dti_jnode *names;
    struct dti_jnode *sets; /* names that are set in the scope of body b */
    struct dti_jnode *next; /* in a list */
    dti_jvalue value;
} dti_jnode;

typedef struct dti_jinja {
    dti_arena arena; /* of all below */
    const char *file;
    dti_jtok *tokens;
    size_t n_tokens;
    dti_jnode *body;
    dti_jnode *sets; /* names that are set in it, outside of loops, blocks and macros */
} dti_jinja;

/* Tokens and tree of n bytes of source, called `file` in messages. *out is zeroed before; freed by
 * the caller in any case. */
dt_status dti_jinja_parse(const char *file, const char *source, size_t n,
                          dti_jinja *out) DT_MUST_USE;
void dti_jinja_free(dti_jinja *t);

/* Renders with the members of a JSON object as variables. `now`: seconds since 1970, for
 * strftime_now(). The text is appended to `out`. */
dt_status dti_jinja_render(const dti_jinja *t, const struct json_t *variables, int64_t now,
                           dti_text *out) DT_MUST_USE;

/* --- between the files ------------------------------------------------------------------------ */

dt_status dti_jlex(dti_jinja *t, const char *source, size_t n) DT_MUST_USE;

typedef struct dti_jparser {
    dti_jinja *t;
    size_t at;
    int depth;
    int n_loops;      /* around the place, within the innermost macro */
    int n_for;        /* around the place, all of them */
    int n_macros;     /* the same */
    bool sees_caller; /* the macro that is read names its caller */
    bool no_names;    /* filters of a {% set %} block: Jinja does not find names there */
    dti_jnode *sets;  /* names that are set in this scope */
} dti_jparser;

const dti_jtok *dti_jpeek(const dti_jparser *p);
bool dti_jsees(const dti_jparser *p, dti_jtok_kind kind, const char *text); /* NULL: any text */
bool dti_jskip(dti_jparser *p, dti_jtok_kind kind, const char *text);
dt_status dti_jexpect(dti_jparser *p, dti_jtok_kind kind, const char *text) DT_MUST_USE;
dt_status dti_jname(dti_jparser *p, const char **out) DT_MUST_USE;
dt_status dti_jnode_new(dti_jparser *p, dti_jnode_kind kind, dti_jnode **out) DT_MUST_USE;
dt_status dti_jdeeper(dti_jparser *p) DT_MUST_USE; /* undone by p->depth-- */
/* `tuple`: a, b without parentheses is a list; `conditional`: "x if y else z" may stand here. */
dt_status dti_jexpression(dti_jparser *p, bool tuple, bool conditional,
                          dti_jnode **out) DT_MUST_USE;
/* "|name(args)|name" of what `out` is, if they follow; `begun`: without the first bar. */
dt_status dti_jfilters(dti_jparser *p, bool begun, dti_jnode **out) DT_MUST_USE;
dt_status dti_jbody(dti_jparser *p, dti_jnode **out) DT_MUST_USE; /* jinja_tags.c */

typedef struct dti_jbinding {
    const char *name;
    dti_jvalue value;
    bool given; /* by the caller of the template, which has not set it so far */
} dti_jbinding;

/* Names that begin and end together: those of the template, of a turn of a loop, of a block, of a
 * call of a macro. The innermost scope has the last n names; a name that it lacks is looked for in
 * `outer`, which for a macro is the scope that it was defined in. */
typedef struct dti_jscope {
    size_t first, n;
    bool ended;
    const dti_jnode *sets; /* names that its statements set, sooner or later */
    const struct dti_jscope *outer;
} dti_jscope;

/* One rendering. */
typedef struct dti_jrun {
    const dti_jinja *t;
    int line; /* of what is being done, for messages */
    int depth;
    int64_t steps;
    size_t bytes;
    int64_t now;
    dti_arena arena;
    dti_jbinding *names;
    size_t n_names, room_names;
    dti_jscope *scope; /* the innermost one */
    dti_text *out;
    dti_jvalue captured; /* of the block whose filters run */
    int leaving;         /* 'b' or 'c' until the loop sees it */
} dti_jrun;

/* "FILE: line 3: ..." as DT_ERR_UNSUPPORTED for what is not known here, DT_ERR_FORMAT for a mistake
 * in the template. */
#define DTI_JFAIL(r, code, ...) return dti_jrefuse((r)->t, (r)->line, (code), __VA_ARGS__)
#define DTI_JCHECK(r, cond, code, ...)                    \
    do {                                                  \
        if (!(cond)) DTI_JFAIL((r), (code), __VA_ARGS__); \
    } while (0)
dt_status dti_jrefuse(const dti_jinja *t, int line, dt_status code, const char *fmt, ...)
    DT_PRINTF(4, 5);

dt_status dti_jcharge(dti_jrun *r, size_t steps) DT_MUST_USE;
dt_status dti_jalloc(dti_jrun *r, size_t n, size_t bytes, void **out) DT_MUST_USE;
dt_status dti_jenter(dti_jrun *r) DT_MUST_USE; /* undone by r->depth-- */

const char *dti_jkind_name(const dti_jvalue *v);
dti_jvalue dti_jbool(bool b);
dti_jvalue dti_jint(int64_t i);
dti_jvalue dti_jtext(const char *s, size_t n);
dt_status dti_jcopy(dti_jrun *r, const char *s, size_t n, dti_jvalue *out) DT_MUST_USE;
dt_status dti_jlist_new(dti_jrun *r, size_t n, dti_jvalue *out) DT_MUST_USE;
dt_status dti_jdict_new(dti_jrun *r, dti_jkind kind, dti_jvalue *out) DT_MUST_USE;
dt_status dti_jdict_set(dti_jrun *r, dti_jvalue *dict, dti_jvalue key,
                        dti_jvalue value) DT_MUST_USE;
dt_status dti_jdict_get(dti_jrun *r, const dti_jvalue *dict, const char *s, size_t n,
                        dti_jvalue *out) DT_MUST_USE; /* undefined if there is none */
dt_status dti_jfrom_json(dti_jrun *r, const struct json_t *json, dti_jvalue *out) DT_MUST_USE;
dt_status dti_jto_json(dti_jrun *r, const dti_jvalue *v, int indent, dti_text *out) DT_MUST_USE;
dt_status dti_jprint(dti_jrun *r, const dti_jvalue *v, dti_text *out) DT_MUST_USE; /* as str() */
dt_status dti_jstring(dti_jrun *r, const dti_jvalue *v, dti_jvalue *out) DT_MUST_USE;
bool dti_jtrue(const dti_jvalue *v);
dt_status dti_jequal(dti_jrun *r, const dti_jvalue *a, const dti_jvalue *b, bool *out) DT_MUST_USE;
dt_status dti_jcontains(dti_jrun *r, const dti_jvalue *in, const dti_jvalue *v,
                        bool *out) DT_MUST_USE;
/* What a loop runs over: items, keys, characters. */
dt_status dti_jiterate(dti_jrun *r, const dti_jvalue *v, dti_jvalue *list) DT_MUST_USE;
dt_status dti_jlength(dti_jrun *r, const dti_jvalue *v, size_t *out) DT_MUST_USE;
/* The first place of n bytes in s, or SIZE_MAX. */
dt_status dti_jfind(dti_jrun *r, const dti_jvalue *in, size_t from, const dti_jvalue *what,
                    size_t *out) DT_MUST_USE;
bool dti_jis_space(uint32_t c); /* as Python's str.isspace() */

/* A scope within `outer` of statements that set these names; *before is for its end. */
dt_status dti_jopen(dti_jrun *r, const dti_jscope *outer, const dti_jnode *sets,
                    dti_jscope **before) DT_MUST_USE;
void dti_jclose(dti_jrun *r, dti_jscope *before);
/* A name of the innermost scope takes a value. */
dt_status dti_jset(dti_jrun *r, const char *name, dti_jvalue value) DT_MUST_USE;
/* The value of a name that can be seen here; NULL if there is none. A variable of the conversation
 * that a scope around this one sets later is refused: whether it has its value by now depends on
 * what else Jinja's compiler sees. */
dt_status dti_jget(dti_jrun *r, const char *name, dti_jvalue **out) DT_MUST_USE;

dt_status dti_jeval(dti_jrun *r, const dti_jnode *node, dti_jvalue *out) DT_MUST_USE;
dt_status dti_jrun_body(dti_jrun *r, const dti_jnode *first) DT_MUST_USE;
/* The text that the body of a node makes, in the innermost scope. */
dt_status dti_jcapture(dti_jrun *r, const dti_jnode *node, dti_jvalue *out) DT_MUST_USE;

/* Evaluated arguments; names of those by keyword. */
enum { DTI_JINJA_ARGS = 8 };
typedef struct dti_jargs {
    dti_jvalue v[DTI_JINJA_ARGS];
    const char *keyword[DTI_JINJA_ARGS]; /* NULL: by position */
    int n;
} dti_jargs;

/* jinja_macro.c */
dt_status dti_jmacro_define(dti_jrun *r, const dti_jnode *node, dti_jvalue *out) DT_MUST_USE;
/* `caller`: the macro of a call block, or NULL. */
dt_status dti_jmacro_call(dti_jrun *r, const dti_jmacro *macro, const dti_jargs *args,
                          const dti_jvalue *caller, dti_jvalue *out) DT_MUST_USE;
dt_status dti_jcall_block(dti_jrun *r, const dti_jnode *node) DT_MUST_USE;
dt_status dti_jarguments(dti_jrun *r, const dti_jnode *first, dti_jargs *out) DT_MUST_USE;

dt_status dti_jfilter(dti_jrun *r, const char *name, const dti_jvalue *v, const dti_jargs *args,
                      dti_jvalue *out) DT_MUST_USE;
dt_status dti_jtest(dti_jrun *r, const char *name, const dti_jvalue *v, const dti_jargs *args,
                    bool *out) DT_MUST_USE;
dt_status dti_jmethod(dti_jrun *r, const dti_jvalue *v, const char *name, const dti_jargs *args,
                      dti_jvalue *out) DT_MUST_USE;
dt_status dti_jglobal(dti_jrun *r, const char *name, const dti_jargs *args,
                      dti_jvalue *out) DT_MUST_USE;
bool dti_jis_global(const char *name);
/* Whether Python has a method of this name: for a dict it hides the key in "a.name". */
bool dti_jis_method(dti_jkind kind, const char *name);

/* Arguments by the names of parameters; NULL for those that are absent. */
typedef struct dti_jbound {
    const dti_jvalue *v[4];
} dti_jbound;
dt_status dti_jbind(dti_jrun *r, const char *what, const dti_jargs *args,
                    const char *const params[4], dti_jbound *out) DT_MUST_USE;

/* str.strip(chars), also of one side: 1 left, 2 right, 3 both; chars NULL: white space. */
dt_status dti_jstrip(dti_jrun *r, const dti_jvalue *v, const dti_jvalue *chars, int sides,
                     dti_jvalue *out) DT_MUST_USE;

#endif
