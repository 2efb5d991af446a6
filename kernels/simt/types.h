// What both worlds and the callers of launch functions share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simt {

using Stream = void *; // a cudaStream_t, or the simulated device's

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
};

constexpr unsigned kFullMask = 0xffffffffu;
constexpr int kWarp = 32;

// Bytes of one piece of dynamic shared memory.
template <typename T> constexpr std::size_t shared_bytes(std::size_t n) {
    return (n * sizeof(T) + 15) / 16 * 16;
}

} // namespace simt
