// Packed cache rows to bf16, 16 values at a time. What comes out is what lib/numeric/rows.h makes of them.
#pragma once

#include "common/formats.cuh"

namespace ds41::kernels {

constexpr int kUnit = 16; // values that are unpacked together: a load's worth of e4m3 codes, a block of e2m1 ones

// A unit as it is stored.
struct PackedUnit {
    uint4 codes; // of a compressed row: in x and y
    std::uint8_t scale;
};

// A unit's values in order, two to a word.
struct Unit {
    std::uint32_t words[kUnit / 2];
};

// n_words words at p; rows of a multiple of 16 bytes are aligned to that.
template <int kWords>
__device__ __forceinline__ void load_codes(const std::uint8_t *p, int row_bytes, std::uint32_t (&words)[kWords]) {
    if (row_bytes % 16 == 0) {
        if constexpr (kWords == 4) {
            const uint4 v = simt::load(reinterpret_cast<const uint4 *>(p));
            words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
        } else {
            static_assert(kWords == 2);
            const uint2 v = simt::load(reinterpret_cast<const uint2 *>(p));
            words[0] = v.x, words[1] = v.y;
        }
        return;
    }
    SIMT_UNROLL
    for (int w = 0; w < kWords; ++w) {
        words[w] = 0;
        SIMT_UNROLL
        for (int i = 0; i < 4; ++i) words[w] |= static_cast<std::uint32_t>(simt::load(p + 4 * w + i)) << (8 * i);
    }
}

// Values [16 u, 16 u + 16) of a row of n.
__device__ __forceinline__ PackedUnit load_window_unit(const std::uint8_t *row, int n, int u) {
    std::uint32_t words[4];
    load_codes(row + kUnit * u, n + n / kWindowBlock, words);
    return {{words[0], words[1], words[2], words[3]}, simt::load(row + n + u / (kWindowBlock / kUnit))};
}
__device__ __forceinline__ PackedUnit load_compressed_unit(const std::uint8_t *row, int n, int u) {
    static_assert(kUnit == kCompressedBlock);
    std::uint32_t words[2];
    load_codes(row + kUnit / 2 * u, n / 2 + n / kCompressedBlock, words);
    return {{words[0], words[1], 0, 0}, simt::load(row + n / 2 + u)};
}

// The upper halves of two floats.
__device__ __forceinline__ std::uint32_t upper_halves(float low, float high) {
    return simt::byte_perm(float_bits(low), float_bits(high), 0x7632u);
}

// Four values in order.
struct Quad {
    std::uint32_t words[2];
};

// An e4m3 code in the upper bits of a float's exponent and mantissa is its value times 2^-120, subnormals included. A
// code of NaN comes with a scale of NaN.
__device__ __forceinline__ Quad unpack_window_quad(std::uint32_t codes, std::uint8_t scale_code) {
    const float scale = ue8m0_to_f32(scale_code);
    const auto value = [&](int i) {
        const auto top = static_cast<std::int32_t>(codes << (24 - 8 * i));
        return float_from_bits(static_cast<std::uint32_t>(top >> 4) & 0x87f00000u) * 0x1p+120f * scale;
    };
    // From 2^-124 on products are multiples of bf16's smallest number, 2^-133, with four bits: nothing is rounded.
    if (scale_code >= 3) return {{upper_halves(value(0), value(1)), upper_halves(value(2), value(3))}};
    return {{pack_bf16(value(0), value(1)), pack_bf16(value(2), value(3))}};
}

// `codes` are in the lower 16 bits. Upper and lower bytes of the eight magnitudes as bf16 are looked up by four codes
// at once. Times an e4m3 scale they have at most five bits: nothing is rounded.
__device__ __forceinline__ Quad unpack_compressed_quad(std::uint32_t codes, std::uint8_t scale_code) {
    const float scale = e4m3_to_f32(scale_code);
    const std::uint32_t magnitudes = codes & 0x7777u;
    const std::uint32_t upper = simt::byte_perm(0x3f3f3f00u, 0x40404040u, magnitudes);
    const std::uint32_t lower = simt::byte_perm(0xc0800000u, 0xc0804000u, magnitudes);
    const std::uint32_t first = simt::byte_perm(lower, upper, 0x5140u) | (codes & 0x8u) << 12 | (codes & 0x80u) << 24;
    const std::uint32_t second =
        simt::byte_perm(lower, upper, 0x7362u) | (codes & 0x800u) << 4 | (codes & 0x8000u) << 16;
    return {{upper_halves(low_bf16(first) * scale, high_bf16(first) * scale),
             upper_halves(low_bf16(second) * scale, high_bf16(second) * scale)}};
}

// Values [4 k, 4 k + 4) of a unit.
__device__ __forceinline__ Quad unpack_quad(const PackedUnit &packed, bool is_window, int k) {
    const uint4 &codes = packed.codes;
    if (is_window) {
        const std::uint32_t four = k < 2 ? (k == 0 ? codes.x : codes.y) : (k == 2 ? codes.z : codes.w);
        return unpack_window_quad(four, packed.scale);
    }
    return unpack_compressed_quad((k < 2 ? codes.x : codes.y) >> (16 * (k % 2)), packed.scale);
}

__device__ __forceinline__ Unit unpack_unit(const PackedUnit &packed, bool is_window) {
    Unit unit;
    SIMT_UNROLL
    for (int k = 0; k < kUnit / 4; ++k) {
        const Quad quad = unpack_quad(packed, is_window, k);
        unit.words[2 * k] = quad.words[0];
        unit.words[2 * k + 1] = quad.words[1];
    }
    return unit;
}

} // namespace ds41::kernels
