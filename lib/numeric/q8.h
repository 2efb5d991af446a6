// q8_1 activation rows: 32 int8 codes and an fp16 scale. ggml's block also stores a sum, which the Q2_K product does
// not read; it is left out here.
#pragma once

#include "numeric/bf16.h"
#include "numeric/f16.h"

#include <cmath>

namespace ds41 {

constexpr int kQ8Block = 32;

struct Q8Block {
    std::uint16_t d; // fp16 of the scale; the codes were made with the unrounded one
    std::int8_t codes[kQ8Block];
};

// n is a multiple of 32. code = x / (amax / 127), to nearest, halves away from zero. A block that holds a NaN or an
// infinity gets a NaN scale.
inline void quantise_q8(const Bf16 *x, int n, Q8Block *out) {
    for (int b = 0; b < n / kQ8Block; ++b) {
        const Bf16 *block = x + b * kQ8Block;
        float amax = 0.0f;
        bool finite = true;
        for (int i = 0; i < kQ8Block; ++i) {
            const float magnitude = std::fabs(to_f32(block[i]));
            finite = finite && is_finite(magnitude);
            if (magnitude > amax) amax = magnitude;
        }
        const float d = amax / 127.0f;
        out[b].d = finite ? f32_to_f16(d) : std::uint16_t{0x7e00};
        // d is zero only for a zero block: amax of 2^-133, the smallest bf16, still leaves a subnormal.
        for (int i = 0; i < kQ8Block; ++i)
            out[b].codes[i] =
                finite && d > 0.0f ? static_cast<std::int8_t>(std::round(to_f32(block[i]) / d)) : std::int8_t{0};
    }
}

} // namespace ds41
