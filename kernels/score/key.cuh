// Scores as 16-bit integers that sort as they do, so that the best of them can be found by counting.
#pragma once

#include "common/formats.cuh"

namespace ds41::kernels {

// Below the key of every score that may be taken. -inf and NaN have it.
constexpr std::uint16_t kNeverTaken = 0;

// A greater score has a greater key; zeros of both signs have one.
__device__ __forceinline__ std::uint16_t sort_key(Bf16 score) {
    const std::uint32_t bits = score.bits, magnitude = bits & 0x7fffu;
    if (magnitude > 0x7f80u || bits == 0xff80u) return kNeverTaken;
    const bool negative = bits > 0x8000u;
    return static_cast<std::uint16_t>(negative ? ~bits : bits | 0x8000u);
}

} // namespace ds41::kernels
