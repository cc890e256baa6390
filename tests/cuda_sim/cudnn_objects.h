/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the simulated device's cuDNN: what descriptors hold (cudnn.cc), and a graph under way
 * (cudnn_run.cc). */
#ifndef DTI_SIM_CUDNN_OBJECTS_H
#define DTI_SIM_CUDNN_OBJECTS_H

#include <cudnn_graph.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

namespace dti_sim
{

enum { AXES = 4 };

/* Whether DTENSOR_SIM_CUDNN says so. */
inline bool is_told(const char *word)
{
    const char *const told = getenv("DTENSOR_SIM_CUDNN");

    return told != nullptr && strcmp(told, word) == 0;
}

struct object;
typedef std::shared_ptr<const object> link;

struct attribute {
    cudnnBackendAttributeType_t type;
    int64_t n;
    std::vector<unsigned char> bytes;
    std::vector<link> links;
};

struct object {
    cudnnBackendDescriptorType_t type;
    bool finished = false;
    std::map<int, attribute> attributes;

    const attribute *find(int name) const
    {
        const auto at = attributes.find(name);
        return at == attributes.end() ? nullptr : &at->second;
    }
    const object *linked(int name) const
    {
        const attribute *const a = find(name);
        return a == nullptr ? nullptr : a->links[0].get();
    }
    template <class T> const T *values(int name) const
    {
        const attribute *const a = find(name);
        return a == nullptr ? nullptr : reinterpret_cast<const T *>(a->bytes.data());
    }
    template <class T> T value(int name, T missing = T()) const
    {
        const T *const at = values<T>(name);
        return at == nullptr ? missing : *at;
    }
};

inline int64_t id_of(const object &tensor)
{
    return tensor.value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

inline cudnnDataType_t data_type(const object &tensor)
{
    return tensor.value<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
}

struct shape {
    int64_t of[AXES];

    explicit shape(const object &tensor)
    {
        memcpy(of, tensor.values<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), sizeof of);
    }
    int64_t count() const
    {
        return of[0] * of[1] * of[2] * of[3];
    }
    /* Where element i of `like` lies in a row-major tensor of this shape; axes of 1 repeat, and
     * fewer heads are shared by groups. */
    int64_t at(const shape &like, int64_t i) const
    {
        int64_t index[AXES], place = 0;
        if (memcmp(of, like.of, sizeof of) == 0) return i;
        for (int a = AXES - 1; a >= 0; a--) {
            index[a] = i % like.of[a];
            i /= like.of[a];
        }
        for (int a = 0; a < AXES; a++) place = place * of[a] + index[a] * of[a] / like.of[a];
        return place;
    }
};

/* Element i of data of a type. */
double load(const void *data, cudnnDataType_t type, int64_t i);

/* An execution: a graph, and what its tensors are. */
struct run {
    link graph;
    std::map<int64_t, void *> data; /* of tensors that are not virtual */
    std::map<int64_t, double>
        numbers; /* those given by value, read when the execution was asked for */
    std::map<int64_t, std::vector<double>> made;

    /* The elements of a tensor, row-major. */
    const std::vector<double> &elements(const object &tensor)
    {
        std::vector<double> &x = made[id_of(tensor)];
        const shape s(tensor);
        const int64_t *const strides = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
        if (!x.empty()) return x;
        x.resize((size_t)s.count());
        if (numbers.count(id_of(tensor)) != 0) {
            x[0] = numbers[id_of(tensor)];
            return x;
        }
        for (int64_t i = 0; i < s.count(); i++) {
            int64_t rest = i, at = 0;
            for (int a = AXES - 1; a >= 0; a--) {
                at += rest % s.of[a] * strides[a];
                rest /= s.of[a];
            }
            x[(size_t)i] = load(data[id_of(tensor)], data_type(tensor), at);
        }
        return x;
    }
    int64_t length(const object &node, int name)
    {
        const object *const tensor = node.linked(name);
        return tensor == nullptr ? INT64_MAX : (int64_t)elements(*tensor)[0];
    }
    void multiply(const object &node);
    void point(const object &node);
    void reduce(const object &node);
    void store(const object &tensor, int64_t n_rows);
    void all();
};

} // namespace dti_sim

#endif
