// The product of an fp8 weight row with fp8 activations: both have one power-of-two scale per 32 values.
// Numerics: code products summed in f32 in index order within a block; the sum times the product of both
// scales, which large and small ones leave finite; blocks added in f32 in index order. The caller rounds to bf16.
// Source: fp8_gemm of the reference's kernel.py.
#pragma once

#include "numeric/rows.h"

namespace ds41 {

constexpr int kFp8WeightBlock = 32; // rows and columns that share one weight scale
static_assert(kFp8WeightBlock == kWindowBlock, "activations are quantised in blocks of as many columns");

// n is a multiple of 32: n codes, n / 32 scales.
inline void quantise_fp8_activations(const Bf16 *x, int n, std::uint8_t *codes, float *scales) {
    for (int b = 0; b < n / kWindowBlock; ++b)
        scales[b] = ue8m0_to_f32(quantise_fp8_block(x + b * kWindowBlock, codes + b * kWindowBlock));
}

// `weight_scales` are the scale bytes of the row's block row, k / 32 of them.
inline float dot_fp8(const std::uint8_t *weight, const std::uint8_t *weight_scales, const std::uint8_t *codes,
                     const float *scales, int k) {
    float sum = 0.0f;
    for (int b = 0; b < k / kWindowBlock; ++b) {
        float block = 0.0f;
        for (int i = b * kWindowBlock; i < (b + 1) * kWindowBlock; ++i)
            block += e4m3_to_f32(codes[i]) * e4m3_to_f32(weight[i]);
        sum += block * (scales[b] * ue8m0_to_f32(weight_scales[b]));
    }
    return sum;
}

} // namespace ds41
