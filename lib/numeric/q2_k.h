// Q2_K weight rows: blocks of 84 bytes for 256 values,
//
//   0   16 bytes   per 16 values: low nibble scale s, high nibble min m
//   16  64 bytes   2-bit codes
//   80  fp16 d, 82 fp16 dmin
//
// value e = d * s[t] * code - dmin * m[t] with h = e / 128, i = e % 128 / 32, r = e % 32,
// code = (byte[16 + 32 h + r] >> 2 i) & 3, t = 8 h + 2 i + r / 16. Source: block_q2_K of ggml-common.h.
// Blocks are read byte by byte: rows are only as aligned as the file is.
#pragma once

#include "numeric/f16.h"
#include "numeric/q8.h"

namespace ds41 {

constexpr int kQ2KBlock = 256;
constexpr int kQ2KBytes = 84;

struct Q2KScales {
    float d, dmin;
};

inline Q2KScales q2_k_scales(const std::uint8_t *block) {
    return {f16_to_f32(static_cast<std::uint16_t>(block[80] | (block[81] << 8))),
            f16_to_f32(static_cast<std::uint16_t>(block[82] | (block[83] << 8)))};
}

inline int q2_k_code(const std::uint8_t *block, int half, int plane, int r) {
    return (block[16 + 32 * half + r] >> (2 * plane)) & 3;
}

// k is a multiple of 256.
inline void decode_q2_k_row(const std::uint8_t *row, int k, float *out) {
    for (int e = 0; e < k; ++e) {
        const std::uint8_t *block = row + e / kQ2KBlock * kQ2KBytes;
        const Q2KScales scales = q2_k_scales(block);
        const int half = e % kQ2KBlock / 128, plane = e % 128 / 32, r = e % 32;
        const int sm = block[8 * half + 2 * plane + r / 16];
        out[e] = scales.d * static_cast<float>(sm & 15) * static_cast<float>(q2_k_code(block, half, plane, r)) -
                 scales.dmin * static_cast<float>(sm >> 4);
    }
}

// What lane q (0 to 15) of the decode kernel makes of one block: four code bytes, each plane against its activation
// block.
inline float q2_k_lane_value(const std::uint8_t *block, const Q8Block *x, int q) {
    const Q2KScales scales = q2_k_scales(block);
    const int half = q / 8;
    const int first = 4 * (q % 8);
    float scaled_dot = 0.0f, scaled_min = 0.0f;
    for (int plane = 0; plane < 4; ++plane) {
        const Q8Block &activations = x[4 * half + plane];
        const int sm = block[8 * half + 2 * plane + first / 16];
        int dot = 0, sum = 0;
        for (int r = first; r < first + 4; ++r) {
            dot += q2_k_code(block, half, plane, r) * activations.codes[r];
            sum += activations.codes[r];
        }
        const float d8 = f16_to_f32(activations.d);
        scaled_dot += d8 * static_cast<float>((sm & 15) * dot);
        scaled_min += d8 * static_cast<float>((sm >> 4) * sum);
    }
    return scales.d * scaled_dot - scales.dmin * scaled_min;
}

// The product of a weight row and a q8_1 row, in the order of ggml's decode kernel: 32 lanes, of which the lower half
// takes even blocks and the upper half odd ones; each lane adds its blocks; a butterfly adds the lanes. The same for
// every number of rows, so that prefill, chunks and decode agree. The caller rounds to bf16.
// Source: vec_dot_q2_K_q8_1 of ggml's vecdotq.cuh.
inline float dot_q2_k(const std::uint8_t *row, const Q8Block *x, int k) {
    float lanes[32];
    for (int lane = 0; lane < 32; ++lane) {
        float sum = 0.0f;
        for (int b = lane / 16; b < k / kQ2KBlock; b += 2)
            sum += q2_k_lane_value(row + b * kQ2KBytes, x + b * (kQ2KBlock / kQ8Block), lane % 16);
        lanes[lane] = sum;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        float next[32];
        for (int lane = 0; lane < 32; ++lane) next[lane] = lanes[lane] + lanes[lane ^ offset];
        for (int lane = 0; lane < 32; ++lane) lanes[lane] = next[lane];
    }
    return lanes[0];
}

} // namespace ds41
