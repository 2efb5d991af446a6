// The dialect for nvcc: each name is one CUDA operation.
#pragma once

#include <cuda_runtime.h>

namespace simt {

template <typename T> __device__ __forceinline__ T load(const T *p) {
    return *p;
}
template <typename T> __device__ __forceinline__ void store(T *p, T value) {
    *p = value;
}
// Read once by one block: past the L1, which such data would sweep.
template <typename T> __device__ __forceinline__ T load_once(const T *p) {
    return __ldcs(p);
}

template <typename T> struct Shared {
    T *data;

    __device__ __forceinline__ T &operator[](int i) const { return data[i]; }
    template <typename V> __device__ __forceinline__ V load(int i) const {
        return *reinterpret_cast<const V *>(data + i);
    }
    template <typename V> __device__ __forceinline__ void store(int i, V value) const {
        *reinterpret_cast<V *>(data + i) = value;
    }
};

class DynamicShared {
public:
    __device__ explicit DynamicShared(unsigned char *data) : data_(data) {}
    template <typename T> __device__ __forceinline__ Shared<T> take(std::size_t n) {
        Shared<T> piece{reinterpret_cast<T *>(data_)};
        data_ += shared_bytes<T>(n);
        return piece;
    }

private:
    unsigned char *data_;
};

template <typename T> __device__ __forceinline__ T atomic_add(const Shared<T> &array, int i, T value) {
    return atomicAdd(array.data + i, value);
}
template <typename T> __device__ __forceinline__ T atomic_add(T *p, T value) {
    return atomicAdd(p, value);
}

template <typename T> __device__ __forceinline__ void copy_async16(const Shared<T> &array, int i, const void *source) {
    const auto target = static_cast<unsigned>(__cvta_generic_to_shared(array.data + i));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft> __device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four products of signed bytes, added to c.
__device__ __forceinline__ int dot4(int a, int b, int c) {
    return __dp4a(a, b, c);
}
// Byte i of the result is byte s[4i .. 4i+2] of the eight of b:a.
__device__ __forceinline__ std::uint32_t byte_perm(std::uint32_t a, std::uint32_t b, std::uint32_t s) {
    return __byte_perm(a, b, s);
}

template <typename P>
inline int launch(Stream stream, void (*kernel)(const P), Dim3 grid, Dim3 block, std::size_t shared_bytes,
                  const P &params) {
    constexpr std::size_t kDefaultShared = 48 * 1024; // more has to be asked for
    if (shared_bytes > kDefaultShared) {
        const cudaError_t error =
            cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
        if (error != cudaSuccess) return static_cast<int>(error);
    }
    kernel<<<dim3(grid.x, grid.y, grid.z), dim3(block.x, block.y, block.z), shared_bytes,
             static_cast<cudaStream_t>(stream)>>>(params);
    return static_cast<int>(cudaGetLastError());
}

} // namespace simt

#define SIMT_SHARED(T, name, n)                                                                                        \
    __shared__ __align__(16) T name##_storage[n];                                                                      \
    const ::simt::Shared<T> name {                                                                                     \
        name##_storage                                                                                                 \
    }
#define SIMT_DYNAMIC_SHARED(pool)                                                                                      \
    extern __shared__ __align__(16) unsigned char simt_dynamic_shared[];                                               \
    ::simt::DynamicShared pool(simt_dynamic_shared)
#define SIMT_LAUNCH(stream, kernel, grid, block, shared, params)                                                       \
    ::simt::launch(stream, SIMT_UNPAREN kernel, grid, block, shared, params)
#define SIMT_UNPAREN(...) __VA_ARGS__
// Before a loop whose arrays must stay in registers; the host has no such need.
#define SIMT_UNROLL _Pragma("unroll")
