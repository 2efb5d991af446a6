// exp in f32 from IEEE operations alone, so that the simulator and every device give the same bits. Within 1.1 units in
// the last place of the true value on (-87.3, 88.7]; 0 below, infinity above. NaN stays NaN.
#pragma once

#include "numeric/bits.h"
#include "simt.h"

#include <cmath>

namespace ds41::kernels {

__device__ __forceinline__ float exp_f32(float x) {
    if (!(x > -87.3f)) return x != x ? x : 0.0f;
    if (x > 88.7f) return float_from_bits(kInfBits);
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, of which n times the first is exact.
    constexpr float kLog2e = 0x1.715476p+0f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
    constexpr float kRound = 0x1.8p+23f; // adding it leaves the nearest integer in the low bits
    const float shifted = fmaf(x, kLog2e, kRound);
    const float n = shifted - kRound;
    const float r = fmaf(-n, kLn2Low, fmaf(-n, kLn2High, x));
    // Taylor's series to the seventh power: the next term is below 2^-27 of the sum.
    float p = 1.0f / 5040.0f;
    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    // Two factors: 2^128 is no float, and 2^127 times what is left is.
    const int exponent = static_cast<int>(n);
    const int half = exponent / 2;
    return p * float_from_bits(static_cast<std::uint32_t>(127 + half) << 23) *
           float_from_bits(static_cast<std::uint32_t>(127 + exponent - half) << 23);
}

} // namespace ds41::kernels
