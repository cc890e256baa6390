/* SPDX-License-Identifier: Apache-2.0
 *
 * cuDNN's descriptors and plans for the simulated device. It is strict about types of attributes,
 * the order in which descriptors are finished, and memory; cudnn_run.cc computes.
 *
 * DTENSOR_SIM_CUDNN=none: there is no library; refuse: no way to compute anything; fails: plans are
 * made but not executed; wrong: masks are ignored. */
#include "cudnn_objects.h"
#include "sim.h"

#include "dtensor/kernels/cuda/cudnn_calls.h"

using namespace dti_sim;

struct cudnnContext {
    cudaStream_t stream;
};

namespace
{

enum { WORKSPACE_BYTES = 4096, ALIGNMENT = 16 };

/* --- descriptors -------------------------------------------------------------------------------*/

/* What a handle of a descriptor points to. */
struct holder {
    std::shared_ptr<object> it;
};

object &object_of(cudnnBackendDescriptor_t d)
{
    return *static_cast<holder *>(d)->it;
}

size_t bytes_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
        return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
        return 8;
    default:
        return 4;
    }
}

/* The type that an attribute has; those of descriptors are not listed. */
cudnnBackendAttributeType_t type_of(int name)
{
    static const std::map<int, cudnnBackendAttributeType_t> types = {
        { CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE },
        { CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE },
        { CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64 },
        { CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE },
        { CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64 },
        { CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE },
        { CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64 },
        { CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64 },
        { CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64 },
        { CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN },
        { CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN },
        { CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64 },
        { CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR },
        { CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR },
        { CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE },
        { CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE },
        { CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE },
        { CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE },
        { CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32 },
        { CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR },
    };
    const auto at = types.find(name);

    return at == types.end() ? CUDNN_TYPE_BACKEND_DESCRIPTOR : at->second;
}

cudnnStatus_t create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    auto *const h = new holder;

    h->it = std::make_shared<object>();
    h->it->type = type;
    *out = h;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t destroy(cudnnBackendDescriptor_t d)
{
    delete static_cast<holder *>(d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    object &o = object_of(d);
    attribute a = { type, n, {}, {} };

    if (o.finished || n < 1 || values == nullptr) return CUDNN_STATUS_BAD_PARAM;
    if (type != type_of(name)) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        for (int64_t i = 0; i < n; i++) {
            const auto *const h = static_cast<holder *const *>(values)[i];
            if (!h->it->finished) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
            a.links.push_back(h->it);
        }
    } else {
        const auto *const from = static_cast<const unsigned char *>(values);
        a.bytes.assign(from, from + (size_t)n * bytes_of(type));
    }
    o.attributes[name] = a;
    return CUDNN_STATUS_SUCCESS;
}

/* --- plans -------------------------------------------------------------------------------------*/

/* Attention is told by its logarithm, which nobody wants but the library. */
bool is_known(const object &graph)
{
    for (const link &node : graph.find(CUDNN_ATTR_OPERATIONGRAPH_OPS)->links) {
        const object *const how = node->linked(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        if (how != nullptr &&
            how->value<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE) == CUDNN_POINTWISE_LOG)
            return true;
    }
    return false;
}

cudnnStatus_t finalize(cudnnBackendDescriptor_t d)
{
    object &o = object_of(d);

    if (o.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
        for (int name : { CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES })
            if (o.find(name) == nullptr || o.find(name)->n != AXES) return CUDNN_STATUS_BAD_PARAM;
        for (int name : { CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_DATA_TYPE,
                          CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT })
            if (o.find(name) == nullptr) return CUDNN_STATUS_BAD_PARAM;
    }
    if (o.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
        (o.linked(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) == nullptr ||
         o.linked(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP) == nullptr))
        return CUDNN_STATUS_BAD_PARAM;
    if (o.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
        const object *const graph = o.linked(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        if (graph == nullptr || o.linked(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP) == nullptr)
            return CUDNN_STATUS_BAD_PARAM;
        if (!is_known(*graph) || is_told("refuse")) return CUDNN_STATUS_NOT_SUPPORTED;
    }
    o.finished = true;
    return CUDNN_STATUS_SUCCESS;
}

/* Two ways; the first of them does not repeat bit for bit. */
cudnnStatus_t give_configs(const object &search, int64_t most, int64_t *n, void *values)
{
    for (*n = 0; *n < 2 && *n < most; ++*n) {
        object &config = object_of(static_cast<cudnnBackendDescriptor_t *>(values)[*n]);
        auto engine = std::make_shared<object>();
        engine->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
        engine->attributes[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] =
            *search.find(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        const cudnnBackendNumericalNote_t note =
            *n == 0 ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        attribute a = { CUDNN_TYPE_NUMERICAL_NOTE, 1, {}, {} };
        a.bytes.resize(sizeof note);
        memcpy(a.bytes.data(), &note, sizeof note);
        engine->attributes[CUDNN_ATTR_ENGINE_NUMERICAL_NOTE] = a;
        config.attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = {
            CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, { engine }
        };
        config.finished = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t, int64_t most, int64_t *n, void *values)
{
    const object &o = object_of(d);
    const attribute *const a = o.find(name);

    if (!o.finished && o.type != CUDNN_BACKEND_ENGINE_DESCRIPTOR)
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        return give_configs(o, most, n, values);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *n = 1;
        *static_cast<int64_t *>(values) = WORKSPACE_BYTES;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        *n = 1;
        object_of(*static_cast<cudnnBackendDescriptor_t *>(values)) = *a->links[0];
        return CUDNN_STATUS_SUCCESS;
    default:
        if (a == nullptr || a->n > most) return CUDNN_STATUS_BAD_PARAM;
        *n = a->n;
        memcpy(values, a->bytes.data(), a->bytes.size());
        return CUDNN_STATUS_SUCCESS;
    }
}

size_t element_bytes(cudnnDataType_t type)
{
    return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_INT32 ? 4 : 2;
}

/* Whether all that a tensor may touch is memory of a device. */
bool is_there(const object &tensor, const void *p)
{
    const shape s(tensor);
    const int64_t *const strides = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    const memory_info info = find_memory(p);
    int64_t last = 0;

    for (int a = 0; a < AXES; a++) last += (s.of[a] - 1) * strides[a];
    return info.type == cudaMemoryTypeDevice && (uintptr_t)p % ALIGNMENT == 0 &&
           info.left >= (size_t)(last + 1) * element_bytes(data_type(tensor));
}

/* The tensors of a node that are not virtual find their data. */
bool find_data(const object &node, run *r)
{
    for (const auto &entry : node.attributes)
        for (const link &to : entry.second.links) {
            if (to->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR) continue;
            if (to->value<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) continue;
            const auto at = r->data.find(id_of(*to));
            if (at == r->data.end()) return false;
            if (to->value<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE))
                r->numbers[id_of(*to)] = load(at->second, data_type(*to), 0);
            else if (!is_there(*to, at->second))
                return false;
        }
    return true;
}

cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                      cudnnBackendDescriptor_t pack)
{
    const object &p = object_of(plan), &values = object_of(pack);
    auto r = std::make_shared<run>();
    const attribute *const ids = values.find(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const attribute *const pointers = values.find(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    void *const workspace = values.value<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    const object *const engine =
        p.linked(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->linked(CUDNN_ATTR_ENGINECFG_ENGINE);

    if (is_told("fails")) return CUDNN_STATUS_NOT_SUPPORTED;
    if (!p.finished || !values.finished || ids == nullptr || pointers == nullptr ||
        ids->n != pointers->n)
        return CUDNN_STATUS_BAD_PARAM;
    if (find_memory(workspace).type != cudaMemoryTypeDevice ||
        find_memory(workspace).left < WORKSPACE_BYTES)
        return CUDNN_STATUS_EXECUTION_FAILED;
    r->graph = engine->find(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->links[0];
    for (int64_t i = 0; i < ids->n; i++)
        r->data[reinterpret_cast<const int64_t *>(ids->bytes.data())[i]] =
            reinterpret_cast<void *const *>(pointers->bytes.data())[i];
    for (const link &node : r->graph->find(CUDNN_ATTR_OPERATIONGRAPH_OPS)->links)
        if (!find_data(*node, r.get())) return CUDNN_STATUS_EXECUTION_FAILED;
    return enqueue(handle->stream,
                   [r, workspace] {
                       const opened devices;
                       memset(workspace, 0xff, WORKSPACE_BYTES);
                       r->all();
                       r->made.clear();
                   }) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}

/* --- the library -------------------------------------------------------------------------------*/

size_t version()
{
    return 91900;
}

const char *text(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
           : status == CUDNN_STATUS_EXECUTION_FAILED
               ? "CUDNN_STATUS_EXECUTION_FAILED"
               : "CUDNN_STATUS_BAD_PARAM, as the simulated device says";
}

cudnnStatus_t open(cudnnHandle_t *handle)
{
    *handle = new cudnnContext();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t close(cudnnHandle_t handle)
{
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

} // namespace

extern "C" int dti_cudnn_load(dti_cudnn_calls *out, char why[DTI_CUDNN_TEXT_BYTES])
{
    if (is_told("none")) {
        strcpy(why, "libcudnn.so.9: the simulated device has none");
        return -1;
    }
    *out = { version, text, open, close, set_stream, create, destroy, set, get, finalize, execute };
    return 0;
}
