// Q2_K weight rows against q8_1 activation rows.
// Numerics: lib/numeric/q2_k.h, bit for bit: lane q % 16 makes its value of a block from four code bytes in each of
// four planes; the lower half of the warp takes even blocks and the upper half odd ones; a butterfly adds the lanes.
#pragma once

#include "linear/kernel.cuh"
#include "numeric/f16.h"

namespace ds41::kernels {

constexpr int kQ2KValues = 256;
constexpr int kQ2KBlockBytes = 84;
constexpr int kQ8Values = 32;

// grid (row blocks of all slices of all segments); a warp takes two rows, as in linear().
template <int kTokens, bool kWide>
__global__ void __launch_bounds__(kLinearThreads, linear_blocks(kTokens))
    linear_q2k(const __grid_constant__ LinearParams p) {
    int which = 0;
    while (which + 1 < p.n_segments && static_cast<int>(blockIdx.x) >= p.segments[which + 1].first_block) ++which;
    const LinearSegment &s = p.segments[which];
    const int blocks_of_slice = (s.rows + kLinearBlockRows - 1) / kLinearBlockRows;
    const int grid_block = static_cast<int>(blockIdx.x) - s.first_block;
    const int slice = grid_block / blocks_of_slice;
    const int warp = static_cast<int>(threadIdx.x) / simt::kWarp, lane = static_cast<int>(threadIdx.x) % simt::kWarp;
    const int first_row = grid_block % blocks_of_slice * kLinearBlockRows + warp * kLinearRows; // of the slice
    if (first_row >= s.rows) return;                                                            // a whole warp
    const std::int64_t row = static_cast<std::int64_t>(slice) * s.rows + first_row;
    const bool has_odd = first_row + 1 < s.rows;
    const int n_blocks = s.k / kQ2KValues;
    const int half = lane % 16 / 8, first = 4 * (lane % 8);
    constexpr int kPlanes = 4;
    const std::int64_t q8_stride = static_cast<std::int64_t>(s.n_slices) * s.k; // of a token's codes

    float sums[kLinearRows][kTokens];
    SIMT_UNROLL
    for (int r = 0; r < kLinearRows; ++r) SIMT_UNROLL
    for (int t = 0; t < kTokens; ++t) sums[r][t] = 0.0f;

    for (int b = lane / 16; b < n_blocks; b += 2) {
        std::uint32_t codes[kLinearRows] = {0, 0}, scales[kLinearRows] = {0, 0}; // a byte for each plane
        float d[kLinearRows] = {0.0f, 0.0f}, dmin[kLinearRows] = {0.0f, 0.0f};
        SIMT_UNROLL
        for (int r = 0; r < kLinearRows; ++r) {
            if (r == 1 && !has_odd) continue;
            const std::uint8_t *block = s.weights + ((row + r) * n_blocks + b) * kQ2KBlockBytes;
            codes[r] = load_word<kWide>(block + 16 + 32 * half + first);
            SIMT_UNROLL
            for (int plane = 0; plane < kPlanes; ++plane)
                scales[r] |= static_cast<std::uint32_t>(simt::load(block + 8 * half + 2 * plane + first / 16))
                             << (8 * plane);
            const std::uint32_t both = load_word<kWide>(block + 80);
            d[r] = f16_to_f32(static_cast<std::uint16_t>(both));
            dmin[r] = f16_to_f32(static_cast<std::uint16_t>(both >> 16));
        }
        SIMT_UNROLL
        for (int t = 0; t < kTokens; ++t) {
            if (t >= p.n) break;
            const std::int64_t at = t * q8_stride + static_cast<std::int64_t>(slice) * s.k + b * kQ2KValues;
            float scaled_dot[kLinearRows] = {0.0f, 0.0f}, scaled_min[kLinearRows] = {0.0f, 0.0f};
            SIMT_UNROLL
            for (int plane = 0; plane < kPlanes; ++plane) {
                const int q8 = 4 * half + plane;
                const int x = simt::load(reinterpret_cast<const int *>(s.codes + at + q8 * kQ8Values + first));
                const float d8 = simt::load(s.code_scales + at / kQ8Values + q8);
                const int sum = simt::dot4(0x01010101, x, 0);
                SIMT_UNROLL
                for (int r = 0; r < kLinearRows; ++r) {
                    const int dot = simt::dot4(static_cast<int>(codes[r] >> (2 * plane) & 0x03030303u), x, 0);
                    const int sm = static_cast<int>(scales[r] >> (8 * plane) & 0xff);
                    scaled_dot[r] += d8 * static_cast<float>((sm & 15) * dot);
                    scaled_min[r] += d8 * static_cast<float>((sm >> 4) * sum);
                }
            }
            SIMT_UNROLL
            for (int r = 0; r < kLinearRows; ++r) sums[r][t] += d[r] * scaled_dot[r] - dmin[r] * scaled_min[r];
        }
    }
    SIMT_UNROLL
    for (int t = 0; t < kTokens; ++t) {
        float even = sums[0][t], odd = sums[1][t];
        SIMT_UNROLL
        for (int lanes = simt::kWarp / 2; lanes > 0; lanes /= 2) {
            even += __shfl_xor_sync(simt::kFullMask, even, lanes);
            odd += __shfl_xor_sync(simt::kFullMask, odd, lanes);
        }
        if (lane == t && t < p.n) store_pair(s, t, row, even, odd, has_odd);
    }
}

} // namespace ds41::kernels
