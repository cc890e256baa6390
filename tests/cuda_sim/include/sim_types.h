/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's vector types, for the simulated device. */
#ifndef DTI_SIM_TYPES_H
#define DTI_SIM_TYPES_H

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define DTI_SIM_VECTORS(type, name, unit)                                \
    struct __align__(2 * sizeof(type)) name##2                           \
    {                                                                    \
        type x, y;                                                       \
    };                                                                   \
    struct __align__(unit) name##4                                       \
    {                                                                    \
        type x, y, z, w;                                                 \
    };                                                                   \
    static inline name##2 make_##name##2(type x, type y)                 \
    {                                                                    \
        return name##2 { x, y };                                         \
    }                                                                    \
    static inline name##4 make_##name##4(type x, type y, type z, type w) \
    {                                                                    \
        return name##4 { x, y, z, w };                                   \
    }

DTI_SIM_VECTORS(float, float, 16)
DTI_SIM_VECTORS(int, int, 16)
DTI_SIM_VECTORS(unsigned, uint, 16)
DTI_SIM_VECTORS(short, short, 8)
DTI_SIM_VECTORS(unsigned short, ushort, 8)
DTI_SIM_VECTORS(double, double, 16)
DTI_SIM_VECTORS(long long, longlong, 16)
DTI_SIM_VECTORS(unsigned long long, ulonglong, 16)

#undef DTI_SIM_VECTORS
#endif
