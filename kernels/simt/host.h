// The dialect for a host compiler: the same names, on the simulator of engine.h. What CUDA leaves undefined ends the
// launch with a sentence that has file and line: a read of shared memory that nobody wrote, an index out of range, an
// address that the launch did not declare, a barrier that some threads do not reach, a warp operation whose mask is
// wrong, data of an asynchronous copy before its wait.
#pragma once

#include "simt/engine.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

// CUDA's vector types, as far as kernels use them.
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

namespace simt {

// What one access is aligned to: its size, or for a struct of several loads its members'.
template <typename T> constexpr std::size_t access_alignment() {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 64);
    return std::has_single_bit(sizeof(T)) && sizeof(T) <= 16 ? sizeof(T) : alignof(T);
}

template <typename T> inline T load(const T *p, Where where = Where::here()) {
    check_global(p, sizeof(T), access_alignment<T>(), Access::kRead, where);
    return *p;
}
template <typename T> inline T load_once(const T *p, Where where = Where::here()) {
    return load(p, where);
}
template <typename T> inline void store(T *p, std::type_identity_t<T> value, Where where = Where::here()) {
    check_global(p, sizeof(T), access_alignment<T>(), Access::kWrite, where);
    *p = value;
}

// An index that remembers where it was written.
struct Index {
    template <typename I>
    requires std::is_integral_v<I> Index(I index, Where at = Where::here())
        : value(static_cast<std::int64_t>(index)), where(at) {}

    std::int64_t value;
    Where where;
};

template <typename T> class Shared {
public:
    class Element {
    public:
        Element(const Element &) = delete;
        operator T() const {
            check_shared(array_, index_, sizeof(T), Access::kRead, where_);
            return *pointer();
        }
        T operator=(T value) const {
            check_shared(array_, index_, sizeof(T), Access::kWrite, where_);
            return *pointer() = value;
        }
        T operator=(const Element &other) const { return *this = static_cast<T>(other); }
        T operator+=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) + value); }
        T operator-=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) - value); }
        T operator*=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) * value); }
        T operator|=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) | value); }

    private:
        friend class Shared;
        Element(const SharedArray &array, std::int64_t index, Where where)
            : array_(array), index_(index), where_(where) {}
        T *pointer() const { return reinterpret_cast<T *>(array_.data) + index_; }

        const SharedArray &array_;
        std::int64_t index_;
        Where where_;
    };

    explicit Shared(const SharedArray &array) : array_(array) {}
    Element operator[](Index i) const { return Element(array_, i.value, i.where); }
    template <typename V> V load(Index i) const {
        check_wide<V>(i, Access::kRead);
        return *reinterpret_cast<const V *>(array_.data + i.value * std::int64_t{sizeof(T)});
    }
    template <typename V> void store(Index i, V value) const {
        check_wide<V>(i, Access::kWrite);
        *reinterpret_cast<V *>(array_.data + i.value * std::int64_t{sizeof(T)}) = value;
    }
    const SharedArray &array() const { return array_; }

private:
    template <typename V> void check_wide(const Index &i, Access access) const {
        static_assert(sizeof(V) % sizeof(T) == 0);
        check_shared_bytes(array_, i.value * std::int64_t{sizeof(T)}, sizeof(V), access, i.where);
    }

    SharedArray array_;
};

class DynamicShared {
public:
    explicit DynamicShared(Where where) : where_(where) {}
    template <typename T> Shared<T> take(std::size_t n) {
        const Shared<T> piece(dynamic_shared(used_, n * sizeof(T), where_));
        used_ += shared_bytes<T>(n);
        return piece;
    }

private:
    Where where_;
    std::size_t used_ = 0;
};

template <typename T> inline T atomic_add(const Shared<T> &array, Index i, std::type_identity_t<T> value) {
    check_shared(array.array(), i.value, sizeof(T), Access::kRead, i.where);
    return __atomic_fetch_add(reinterpret_cast<T *>(array.array().data) + i.value, value, __ATOMIC_RELAXED);
}
template <typename T> inline T atomic_add(T *p, std::type_identity_t<T> value, Where where = Where::here()) {
    check_global(p, sizeof(T), sizeof(T), Access::kAtomic, where);
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}

template <typename T> inline void copy_async16(const Shared<T> &array, Index i, const void *source) {
    check_global(source, 16, 16, Access::kRead, i.where);
    start_async_copy(array.array(), i.value * std::int64_t{sizeof(T)}, source, i.where);
}
inline void copy_async_commit() {
    commit_async_copies();
}
template <int kLeft> inline void copy_async_wait() {
    wait_async_copies(kLeft);
}

// Fragments as PTX lays them out. Sums in ascending order of k; the device's may be in another.
inline void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                              Where where = Where::here()) {
    warp_mma(d, a, b, where);
}

inline int dot4(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += static_cast<std::int8_t>(a >> (8 * i)) * static_cast<std::int8_t>(b >> (8 * i));
    return c;
}
inline std::uint32_t byte_perm(std::uint32_t a, std::uint32_t b, std::uint32_t s) {
    const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
    std::uint32_t out = 0;
    for (int i = 0; i < 4; ++i) {
        const std::uint32_t which = s >> (4 * i) & 0xf;
        std::uint32_t byte = static_cast<std::uint32_t>(bytes >> (8 * (which & 7))) & 0xff;
        if (which & 8) byte = byte & 0x80 ? 0xff : 0; // the sign, spread
        out |= byte << (8 * i);
    }
    return out;
}

template <typename T> inline T shuffle(WarpOp op, unsigned mask, T value, int argument, Where where) {
    static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = warp_exchange(op, mask, bits, argument, where);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename P>
inline int launch(Stream stream, const char *name, void (*kernel)(P), Dim3 grid, Dim3 block, std::size_t shared_bytes,
                  const P &params) {
    // The call is recorded with its parameters as they are now, as CUDA does.
    return enqueue(stream, {name, grid, block, shared_bytes}, [kernel, params] { kernel(params); });
}

} // namespace simt

#define threadIdx (::simt::thread_index())
#define blockIdx (::simt::block_index())
#define blockDim (::simt::block_size())
#define gridDim (::simt::grid_size())
#define __syncthreads() ::simt::sync_threads(::simt::Where::here())
#define __syncwarp() ::simt::sync_warp(::simt::Where::here())
#define __shfl_sync(mask, value, lane)                                                                                 \
    ::simt::shuffle(::simt::WarpOp::kShuffle, mask, value, lane, ::simt::Where::here())
#define __shfl_xor_sync(mask, value, lanes)                                                                            \
    ::simt::shuffle(::simt::WarpOp::kShuffleXor, mask, value, lanes, ::simt::Where::here())
#define __shfl_down_sync(mask, value, delta)                                                                           \
    ::simt::shuffle(::simt::WarpOp::kShuffleDown, mask, value, static_cast<int>(delta), ::simt::Where::here())
#define __shfl_up_sync(mask, value, delta)                                                                             \
    ::simt::shuffle(::simt::WarpOp::kShuffleUp, mask, value, static_cast<int>(delta), ::simt::Where::here())
#define __ballot_sync(mask, predicate)                                                                                 \
    static_cast<unsigned>(                                                                                             \
        ::simt::warp_exchange(::simt::WarpOp::kBallot, mask, (predicate) ? 1 : 0, 0, ::simt::Where::here()))
#define __any_sync(mask, predicate) (__ballot_sync(mask, predicate) != 0)
#define __all_sync(mask, predicate) (__ballot_sync(mask, !(predicate)) == 0)

#define SIMT_SHARED(T, name, n)                                                                                        \
    const ::simt::Shared<T> name(::simt::static_shared((n) * sizeof(T), #name, ::simt::Where::here()))
#define SIMT_DYNAMIC_SHARED(pool) ::simt::DynamicShared pool(::simt::Where::here())
#define SIMT_LAUNCH(stream, kernel, grid, block, shared, params)                                                       \
    ::simt::launch(stream, #kernel, SIMT_UNPAREN kernel, grid, block, shared, params)
#define SIMT_UNPAREN(...) __VA_ARGS__
#define SIMT_UNROLL

inline int __popc(unsigned value) {
    return std::popcount(value);
}
inline int __clz(int value) {
    return std::countl_zero(static_cast<unsigned>(value));
}
inline int __ffs(int value) {
    return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1;
}
inline float __uint_as_float(unsigned bits) {
    return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
    return std::bit_cast<unsigned>(value);
}
