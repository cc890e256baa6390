/* SPDX-License-Identifier: Apache-2.0
 *
 * cuDNN recognises attention by its nodes, and refuses, without a helpful word, what deviates from
 * the pattern: scores, scale, what lies outside the lengths, what lies right of the diagonal and
 * left of the window, then a softmax that also makes its logarithm, whether anybody wants it or
 * not, and the product with the values, which takes weights of 16 bits. Tensors between nodes are
 * virtual. B = 1, H heads, R rows, S keys, e columns: [B, H, R, e] and so on.
 *
 * After the first failure nothing more is done: see `status`. */
#include "dtensor/kernels/cuda/attention_graph.h"

#include <stdio.h>
#include <string.h>

enum { MOST_DESCRIPTORS = 128, MOST_NODES = 32, MOST_CONFIGS = 8, ALIGNMENT = 16 };

typedef cudnnBackendDescriptor_t descriptor;

typedef struct builder {
    const dti_cudnn_calls *d;
    const dti_attention_key *key;
    descriptor all[MOST_DESCRIPTORS], nodes[MOST_NODES];
    int n_all, n_nodes;
    int64_t next_id;
    cudnnStatus_t status;
    const char *what; /* failed */
} builder;

/* --- descriptors ------------------------------------------------------------------------------ */

static void note(builder *b, cudnnStatus_t status, const char *what)
{
    if (b->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS) return;
    b->status = status;
    b->what = what;
}

/* Lives as long as the builder. */
static descriptor make(builder *b, cudnnBackendDescriptorType_t type, const char *what)
{
    descriptor out = NULL;

    if (b->n_all == MOST_DESCRIPTORS) note(b, CUDNN_STATUS_INTERNAL_ERROR, "counting descriptors");
    if (b->status != CUDNN_STATUS_SUCCESS) return NULL;
    note(b, b->d->create(type, &out), what);
    if (b->status == CUDNN_STATUS_SUCCESS) b->all[b->n_all++] = out;
    return out;
}

static void set(builder *b, descriptor at, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (b->status == CUDNN_STATUS_SUCCESS)
        note(b, b->d->set(at, name, type, n, values), "describing a graph");
}

static void set_descriptor(builder *b, descriptor at, cudnnBackendAttributeName_t name,
                           descriptor value)
{
    set(b, at, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(builder *b, descriptor at, const char *what)
{
    if (b->status == CUDNN_STATUS_SUCCESS) note(b, b->d->finalize(at), what);
}

/* --- tensors ---------------------------------------------------------------------------------- */

typedef enum tensor_place { ON_DEVICE, VIRTUAL, BY_VALUE } tensor_place;

static descriptor tensor(builder *b, int64_t id, cudnnDataType_t type, tensor_place place,
                         const int64_t shape[4], const int64_t strides[4])
{
    const descriptor t = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
    const int64_t alignment = ALIGNMENT;
    const bool is_virtual = place == VIRTUAL, by_value = place == BY_VALUE;

    set(b, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(b, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(b, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape);
    set(b, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set(b, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(b, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(b, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finish(b, t, "a tensor");
    return t;
}

static descriptor scalar(builder *b, int64_t id, cudnnDataType_t type, tensor_place place)
{
    static const int64_t ones[4] = { 1, 1, 1, 1 };

    return tensor(b, id, type, place, ones, ones);
}

/* [1, H, R, S] between nodes. */
static descriptor scores(builder *b, cudnnDataType_t type)
{
    const dti_attention_key *k = b->key;
    const int64_t shape[] = { 1, k->n_heads, k->n_rows, k->n_keys };
    const int64_t strides[] = { k->n_heads * k->n_rows * k->n_keys, k->n_rows * k->n_keys,
                                k->n_keys, 1 };

    return tensor(b, b->next_id++, type, VIRTUAL, shape, strides);
}

/* [1, H, R, 1]: a number for each row. */
static descriptor per_row(builder *b)
{
    const dti_attention_key *k = b->key;
    const int64_t shape[] = { 1, k->n_heads, k->n_rows, 1 };
    const int64_t strides[] = { k->n_heads * k->n_rows, k->n_rows, 1, 1 };

    return tensor(b, b->next_id++, CUDNN_DATA_FLOAT, VIRTUAL, shape, strides);
}

/* q and y lie as [R, H, e], k and v as [S, Kv, e]. */
static descriptor rows_of(builder *b, int64_t id, int64_t n_heads, int64_t n_rows, int64_t stride)
{
    const dti_attention_key *k = b->key;
    const int64_t shape[] = { 1, n_heads, n_rows, k->width };
    const int64_t strides[] = { n_rows * stride, k->width, stride, 1 };

    return tensor(b, id, k->is_bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF, ON_DEVICE, shape,
                  strides);
}

/* k as the second operand of a product: [1, Kv, e, S]. */
static descriptor transposed_keys(builder *b)
{
    const dti_attention_key *k = b->key;
    const int64_t shape[] = { 1, k->n_kv, k->width, k->n_keys };
    const int64_t strides[] = { k->n_keys * k->k_stride, k->width, 1, k->k_stride };

    return tensor(b, DTI_GRAPH_K, k->is_bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF, ON_DEVICE,
                  shape, strides);
}

/* --- nodes ------------------------------------------------------------------------------------ */

static void add_node(builder *b, descriptor node)
{
    finish(b, node, "a node");
    if (b->n_nodes == MOST_NODES) note(b, CUDNN_STATUS_INTERNAL_ERROR, "counting nodes");
    if (b->status == CUDNN_STATUS_SUCCESS) b->nodes[b->n_nodes++] = node;
}

/* How a node computes, and what of: operands that it has not are NULL. */
typedef struct pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t type;
    descriptor x, other, choice;
    int64_t axis; /* of GEN_INDEX */
} pointwise;

static descriptor add_pointwise(builder *b, const pointwise *p, descriptor y)
{
    const descriptor how = make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "a pointwise node");
    const descriptor node = make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "a node");

    set(b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode);
    set(b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p->type);
    if (p->mode == CUDNN_POINTWISE_GEN_INDEX)
        set(b, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis);
    finish(b, how, "a pointwise node");
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->x);
    if (p->other != NULL) set_descriptor(b, node, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->other);
    if (p->choice != NULL) set_descriptor(b, node, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->choice);
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_node(b, node);
    return y;
}

static descriptor in_floats(builder *b, cudnnPointwiseMode_t mode, descriptor x, descriptor other,
                            descriptor y)
{
    const pointwise p = { .mode = mode, .type = CUDNN_DATA_FLOAT, .x = x, .other = other };

    return add_pointwise(b, &p, y);
}

static descriptor in_integers(builder *b, cudnnPointwiseMode_t mode, descriptor x, descriptor other)
{
    const pointwise p = { .mode = mode, .type = CUDNN_DATA_INT32, .x = x, .other = other };

    return add_pointwise(b, &p, scores(b, CUDNN_DATA_INT32));
}

static descriptor in_booleans(builder *b, cudnnPointwiseMode_t mode, descriptor x, descriptor other)
{
    const pointwise p = { .mode = mode, .type = CUDNN_DATA_BOOLEAN, .x = x, .other = other };

    return add_pointwise(b, &p, scores(b, CUDNN_DATA_BOOLEAN));
}

/* The number of a score's row (axis 2) or key (axis 3). */
static descriptor number_of(builder *b, descriptor x, int64_t axis)
{
    const pointwise p = {
        .mode = CUDNN_POINTWISE_GEN_INDEX, .type = CUDNN_DATA_INT32, .x = x, .axis = axis
    };

    return add_pointwise(b, &p, scores(b, CUDNN_DATA_INT32));
}

/* x where `kept`, minus infinity elsewhere. */
static descriptor select(builder *b, descriptor x, descriptor minus, descriptor kept)
{
    const pointwise p = { .mode = CUDNN_POINTWISE_BINARY_SELECT,
                          .type = CUDNN_DATA_FLOAT,
                          .x = x,
                          .other = minus,
                          .choice = kept };

    return add_pointwise(b, &p, scores(b, CUDNN_DATA_FLOAT));
}

static descriptor reduce(builder *b, cudnnReduceTensorOp_t op, descriptor x)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const descriptor how = make(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a reduction");
    const descriptor node = make(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "a node");
    const descriptor y = per_row(b);

    set(b, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set(b, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finish(b, how, "a reduction");
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_node(b, node);
    return y;
}

/* to = x y; `keys_size` says which of the product's sizes the number of keys is. */
static void multiply(builder *b, descriptor x, descriptor y, descriptor to, descriptor len_q,
                     descriptor len_kv, cudnnBackendAttributeName_t keys_size)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const double padding = 0.0;
    const descriptor how = make(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product");
    const descriptor node = make(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "a node");

    set(b, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (keys_size == CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC)
        set(b, how, CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, 1, &padding);
    finish(b, how, "a product");
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to);
    set_descriptor(b, node, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, len_q);
    set_descriptor(b, node, keys_size, len_kv);
    add_node(b, node);
}

/* --- the graph -------------------------------------------------------------------------------- */

/* Scores with minus infinity wherever a row does not look. */
static descriptor add_masks(builder *b, descriptor s, descriptor len_q, descriptor len_kv)
{
    const descriptor minus = scalar(b, DTI_GRAPH_MINUS, CUDNN_DATA_FLOAT, BY_VALUE);
    descriptor row = number_of(b, s, 2), col = number_of(b, s, 3), inside;

    inside = in_booleans(b, CUDNN_POINTWISE_LOGICAL_AND,
                         in_booleans(b, CUDNN_POINTWISE_CMP_LT, row, len_q),
                         in_booleans(b, CUDNN_POINTWISE_CMP_LT, col, len_kv));
    s = select(b, s, minus, inside);

    row = in_integers(b, CUDNN_POINTWISE_ADD, number_of(b, s, 2), len_kv);
    row = in_integers(b, CUDNN_POINTWISE_SUB, row, len_q);
    s = select(b, s, minus, in_booleans(b, CUDNN_POINTWISE_CMP_GE, row, number_of(b, s, 3)));
    if (b->key->window == 0) return s;

    col = in_integers(b, CUDNN_POINTWISE_ADD, number_of(b, s, 3),
                      scalar(b, DTI_GRAPH_WINDOW, CUDNN_DATA_INT32, BY_VALUE));
    col = in_integers(b, CUDNN_POINTWISE_SUB, col, len_kv);
    col = in_integers(b, CUDNN_POINTWISE_ADD, col, len_q);
    return select(b, s, minus, in_booleans(b, CUDNN_POINTWISE_CMP_GT, col, number_of(b, s, 2)));
}

/* Weights of 16 bits. */
static descriptor add_softmax(builder *b, descriptor s)
{
    const descriptor largest = reduce(b, CUDNN_REDUCE_TENSOR_MAX, s);
    const descriptor less =
        in_floats(b, CUDNN_POINTWISE_SUB, s, largest, scores(b, CUDNN_DATA_FLOAT));
    const descriptor power =
        in_floats(b, CUDNN_POINTWISE_EXP, less, NULL, scores(b, CUDNN_DATA_FLOAT));
    const descriptor total = reduce(b, CUDNN_REDUCE_TENSOR_ADD, power);
    const descriptor logarithm = in_floats(b, CUDNN_POINTWISE_LOG, total, NULL, per_row(b));

    (void)in_floats(b, CUDNN_POINTWISE_ADD, largest, logarithm, per_row(b));
    return in_floats(b, CUDNN_POINTWISE_DIV, power, total,
                     scores(b, b->key->is_bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF));
}

static descriptor add_attention(builder *b)
{
    const dti_attention_key *k = b->key;
    const descriptor graph = make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "a graph");
    const descriptor len_q = scalar(b, DTI_GRAPH_LEN_Q, CUDNN_DATA_INT32, ON_DEVICE);
    const descriptor len_kv = scalar(b, DTI_GRAPH_LEN_KV, CUDNN_DATA_INT32, ON_DEVICE);
    descriptor s = scores(b, CUDNN_DATA_FLOAT);

    multiply(b, rows_of(b, DTI_GRAPH_Q, k->n_heads, k->n_rows, k->q_stride), transposed_keys(b), s,
             len_q, len_kv, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
    s = in_floats(b, CUDNN_POINTWISE_MUL, s, scalar(b, DTI_GRAPH_SCALE, CUDNN_DATA_FLOAT, BY_VALUE),
                  scores(b, CUDNN_DATA_FLOAT));
    s = add_softmax(b, add_masks(b, s, len_q, len_kv));
    multiply(b, s, rows_of(b, DTI_GRAPH_V, k->n_kv, k->n_keys, k->k_stride),
             rows_of(b, DTI_GRAPH_Y, k->n_heads, k->n_rows, k->q_stride), len_q, len_kv,
             CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->n_nodes,
        b->nodes);
    finish(b, graph, "the graph of attention");
    return graph;
}

/* --- the plan --------------------------------------------------------------------------------- */

static descriptor device_properties(builder *b, int device, const char *json)
{
    const descriptor p = make(b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "properties of the device");
    const int32_t number = device;

    if (json != NULL)
        set(b, p, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
            (int64_t)strlen(json) + 1, json);
    else
        set(b, p, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &number);
    finish(b, p, "properties of the device");
    return p;
}

/* Ways to compute the graph, best first, into configs [MOST_CONFIGS]; how many. */
static int64_t ask_configs(builder *b, descriptor graph, descriptor device, descriptor *configs)
{
    const descriptor ask = make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "a search");
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t n = 0;

    for (int i = 0; i < MOST_CONFIGS; i++)
        configs[i] = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "a search");
    set_descriptor(b, ask, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, ask, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    set_descriptor(b, ask, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    finish(b, ask, "asking for ways to compute the graph");
    if (b->status == CUDNN_STATUS_SUCCESS)
        note(b,
             b->d->get(ask, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                       MOST_CONFIGS, &n, configs),
             "asking for ways to compute the graph");
    return b->status == CUDNN_STATUS_SUCCESS ? n : 0;
}

/* Whether the engine of a config gives the same bits in each run. */
static bool repeats(builder *b, descriptor config)
{
    descriptor engine = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine");
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;

    if (b->status != CUDNN_STATUS_SUCCESS) return false;
    if (b->d->get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                  &engine) != CUDNN_STATUS_SUCCESS ||
        b->d->get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                  CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    return true;
}

static cudnnStatus_t try_plan(const dti_cudnn_calls *d, descriptor config, descriptor device,
                              dti_attention_graph *out)
{
    descriptor plan;
    int64_t n;
    cudnnStatus_t st = d->create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);

    if (st != CUDNN_STATUS_SUCCESS) return st;
    st = d->set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                &config);
    if (st == CUDNN_STATUS_SUCCESS)
        st = d->set(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                    &device);
    if (st == CUDNN_STATUS_SUCCESS) st = d->finalize(plan);
    if (st == CUDNN_STATUS_SUCCESS)
        st = d->get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                    &out->workspace_bytes);
    if (st == CUDNN_STATUS_SUCCESS)
        out->plan = plan;
    else
        (void)d->destroy(plan);
    return st;
}

/* Another way may do; beyond a driver that fails there is none. */
static bool is_refusal(cudnnStatus_t st)
{
    return st != CUDNN_STATUS_SUCCESS && st < CUDNN_STATUS_EXECUTION_FAILED;
}

static void make_plan(builder *b, descriptor graph, descriptor device, dti_attention_graph *out)
{
    descriptor configs[MOST_CONFIGS];
    const int64_t n = ask_configs(b, graph, device, configs);
    cudnnStatus_t st = CUDNN_STATUS_NOT_SUPPORTED;

    out->has_window = b->key->window > 0;
    out->n_nodes = b->n_nodes;
    out->n_configs = (int)n;
    for (int64_t i = 0; i < n && is_refusal(st); i++)
        if (repeats(b, configs[i])) st = try_plan(b->d, configs[i], device, out);
    note(b, st, "making a plan");
}

int dti_attention_graph_make(const dti_cudnn_calls *d, const dti_attention_key *key, int device,
                             const char *json, dti_attention_graph *out,
                             char why[DTI_CUDNN_TEXT_BYTES])
{
    builder b = { .d = d, .key = key, .next_id = DTI_GRAPH_FIRST_OWN };
    descriptor graph;

    memset(out, 0, sizeof *out);
    graph = add_attention(&b);
    if (b.status == CUDNN_STATUS_SUCCESS)
        make_plan(&b, graph, device_properties(&b, device, json), out);
    while (b.n_all > 0) (void)d->destroy(b.all[--b.n_all]);
    if (b.status == CUDNN_STATUS_SUCCESS) return 0;
    (void)snprintf(why, DTI_CUDNN_TEXT_BYTES, "%s: %s", b.what, d->text(b.status));
    return -1;
}

void dti_attention_graph_free(const dti_cudnn_calls *d, dti_attention_graph *graph)
{
    if (graph->plan != NULL) (void)d->destroy(graph->plan);
    graph->plan = NULL;
}
