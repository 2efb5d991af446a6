// Cache rows, packed. Each is its codes followed by its scales ("interleaved": one row is one run of bytes), and
// unpacks to exactly the bf16 values that quantising and dequantising gives.
//
//   row          codes                        scales                       floor of amax   bytes for n = 512 (128)
//   window       n e4m3                       n / 32 ue8m0                 1e-4            528
//   compressed   n / 2, e2m1, 2k in the low   n / 16 e4m3, of amax / 6     6 * 2^-9        288
//   index key    n / 2, e2m1, nibble          n / 32 ue8m0                 6 * 2^-126      (68)
//
// A scale is rounded to its stored form before values are divided by it. A block that holds a NaN or an infinity gets
// the NaN scale and unpacks to NaN throughout: the 4-bit codes have no other way to say it. Source: act_quant and
// fp4_act_quant of the reference's kernel.py.
#pragma once

#include "numeric/bf16.h"
#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "numeric/ue8m0.h"

#include <cstddef>

namespace ds41 {

constexpr int kWindowBlock = 32;
constexpr int kCompressedBlock = 16;
constexpr int kIndexKeyBlock = 32;

constexpr float kFp8AmaxFloor = 1e-4f;
constexpr float kCompressedAmaxFloor = 6.0f * 0x1p-9f;
constexpr float kIndexKeyAmaxFloor = 6.0f * 0x1p-126f;

// n is a multiple of the block.
DS41_HD constexpr std::size_t window_row_bytes(int n) {
    return static_cast<std::size_t>(n + n / kWindowBlock);
}
DS41_HD constexpr std::size_t compressed_row_bytes(int n) {
    return static_cast<std::size_t>(n / 2 + n / kCompressedBlock);
}
DS41_HD constexpr std::size_t index_key_row_bytes(int n) {
    return static_cast<std::size_t>(n / 2 + n / kIndexKeyBlock);
}

static_assert(window_row_bytes(512) == 528 && compressed_row_bytes(512) == 288 && index_key_row_bytes(128) == 68);

// Largest magnitude of a block, at least `floor`; NaN when a value is NaN or infinite.
inline float block_amax(const Bf16 *values, int n, float floor) {
    float amax = floor;
    for (int i = 0; i < n; ++i) {
        const float value = to_f32(values[i]);
        if (!is_finite(value)) return float_from_bits(0x7fc00000u);
        const float magnitude = value < 0.0f ? -value : value;
        if (magnitude > amax) amax = magnitude;
    }
    return amax;
}

// The fp8 quantiser of window rows and of activations: 32 values to codes and a power-of-two scale.
inline std::uint8_t quantise_fp8_block(const Bf16 *values, std::uint8_t *codes) {
    const float amax = block_amax(values, kWindowBlock, kFp8AmaxFloor);
    if (is_nan(amax)) {
        for (int i = 0; i < kWindowBlock; ++i) codes[i] = kE4m3Nan;
        return kUe8m0Nan;
    }
    const float scale = pow2_ceil(amax / kE4m3Max);
    for (int i = 0; i < kWindowBlock; ++i) codes[i] = f32_to_e4m3(to_f32(values[i]) / scale);
    return pow2_to_ue8m0(scale);
}

inline void pack_window_row(const Bf16 *values, int n, std::uint8_t *row) {
    std::uint8_t *scales = row + n;
    for (int b = 0; b < n / kWindowBlock; ++b)
        scales[b] = quantise_fp8_block(values + b * kWindowBlock, row + b * kWindowBlock);
}

inline void unpack_window_row(const std::uint8_t *row, int n, Bf16 *values) {
    const std::uint8_t *scales = row + n;
    for (int i = 0; i < n; ++i) values[i] = to_bf16(e4m3_to_f32(row[i]) * ue8m0_to_f32(scales[i / kWindowBlock]));
}

// One block of e2m1 codes, two to a byte.
inline void pack_e2m1(const Bf16 *values, int n, float scale, std::uint8_t *codes) {
    for (int i = 0; i < n; i += 2) {
        const std::uint32_t low = f32_to_e2m1(to_f32(values[i]) / scale);
        const std::uint32_t high = f32_to_e2m1(to_f32(values[i + 1]) / scale);
        codes[i / 2] = static_cast<std::uint8_t>(low | (high << 4));
    }
}

inline float unpack_e2m1(const std::uint8_t *codes, int i) {
    return e2m1_to_f32(static_cast<std::uint8_t>((codes[i / 2] >> (4 * (i % 2))) & 0xf));
}

inline void pack_compressed_row(const Bf16 *values, int n, std::uint8_t *row) {
    std::uint8_t *scales = row + n / 2;
    for (int b = 0; b < n / kCompressedBlock; ++b) {
        const Bf16 *block = values + b * kCompressedBlock;
        // Rounded, the scale may lie below amax / 6: the clamp of f32_to_e2m1 then acts. It saturates at 448.
        scales[b] = f32_to_e4m3(block_amax(block, kCompressedBlock, kCompressedAmaxFloor) / kE2m1Max);
        const float scale = scales[b] == kE4m3Nan ? 1.0f : e4m3_to_f32(scales[b]);
        pack_e2m1(block, kCompressedBlock, scale, row + b * (kCompressedBlock / 2));
    }
}

inline void unpack_compressed_row(const std::uint8_t *row, int n, Bf16 *values) {
    const std::uint8_t *scales = row + n / 2;
    for (int i = 0; i < n; ++i) values[i] = to_bf16(unpack_e2m1(row, i) * e4m3_to_f32(scales[i / kCompressedBlock]));
}

inline void pack_index_key_row(const Bf16 *values, int n, std::uint8_t *row) {
    std::uint8_t *scales = row + n / 2;
    for (int b = 0; b < n / kIndexKeyBlock; ++b) {
        const Bf16 *block = values + b * kIndexKeyBlock;
        const float amax = block_amax(block, kIndexKeyBlock, kIndexKeyAmaxFloor);
        const float scale = is_nan(amax) ? 1.0f : pow2_ceil(amax / kE2m1Max);
        scales[b] = is_nan(amax) ? kUe8m0Nan : pow2_to_ue8m0(scale);
        pack_e2m1(block, kIndexKeyBlock, scale, row + b * (kIndexKeyBlock / 2));
    }
}

inline void unpack_index_key_row(const std::uint8_t *row, int n, Bf16 *values) {
    const std::uint8_t *scales = row + n / 2;
    for (int i = 0; i < n; ++i) values[i] = to_bf16(unpack_e2m1(row, i) * ue8m0_to_f32(scales[i / kIndexKeyBlock]));
}

} // namespace ds41
