// ggml's block formats, decoded: one block to f32, by the arithmetic and in the order of operations of ggml's own
// dequantisers, without fused multiply-add. Numbers are little endian; blocks are read byte by byte, since a file
// aligns no more than the first one. Q2_K, which is computed with as it is, has its own file. Layouts (offset:
// content):
//
//   Q4_0    18 bytes,  32 values   0: d   2: 16 x 2 codes
//   Q4_1    20         32          0: d   2: m   4: 16 x 2 codes
//   Q5_0    22         32          0: d   2: 32 fifth bits   6: 16 x 2 codes
//   Q5_1    24         32          0: d   2: m   4: 32 fifth bits   8: 16 x 2 codes
//   Q8_0    34         32          0: d   2: 32 int8
//   MXFP4   17         32          0: ue8m0 scale   1: 16 x 2 e2m1 codes
//   Q3_K   110        256          0: 256 third bits   32: 256 codes of 2 bits   96: 16 scales of 6 bits   108: d
//   Q4_K   144        256          0: d   2: dmin   4: 8 scales and mins of 6 bits   16: 256 codes of 4 bits
//   Q5_K   176        256          0: d   2: dmin   4: 8 scales and mins   16: 256 fifth bits   48: 256 codes of 4 bits
//   Q6_K   210        256          0: 256 codes of 4 bits   128: 256 x 2 upper bits   192: 16 int8 scales   208: d
//
// d, m, dmin are fp16. In the blocks of 32, byte j holds value j in its low nibble and j + 16 in its high one.
// Source: the block structs of ggml-common.h and dequantize_row_* of ggml-quants.c.
#pragma once

#include "numeric/bf16.h"
#include "numeric/f16.h"

#include <cstdint>

namespace ds41 {

inline std::uint16_t u16_at(const std::uint8_t *bytes) {
    return static_cast<std::uint16_t>(bytes[0] | (bytes[1] << 8));
}
inline std::uint32_t u32_at(const std::uint8_t *bytes) {
    return u16_at(bytes) | (std::uint32_t{u16_at(bytes + 2)} << 16);
}
inline float f16_at(const std::uint8_t *bytes) {
    return f16_to_f32(u16_at(bytes));
}

inline void decode_f32(const std::uint8_t *bytes, float *out) {
    *out = float_from_bits(u32_at(bytes));
}
inline void decode_f16(const std::uint8_t *bytes, float *out) {
    *out = f16_at(bytes);
}
inline void decode_bf16(const std::uint8_t *bytes, float *out) {
    *out = to_f32(Bf16{u16_at(bytes)});
}

inline void decode_q4_0(const std::uint8_t *block, float *out) {
    const float d = f16_at(block);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<float>((block[2 + j] & 15) - 8) * d;
        out[j + 16] = static_cast<float>((block[2 + j] >> 4) - 8) * d;
    }
}

inline void decode_q4_1(const std::uint8_t *block, float *out) {
    const float d = f16_at(block), m = f16_at(block + 2);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<float>(block[4 + j] & 15) * d + m;
        out[j + 16] = static_cast<float>(block[4 + j] >> 4) * d + m;
    }
}

// The fifth bit of value j, in place.
inline int fifth_bit(std::uint32_t bits, int j) {
    return static_cast<int>((bits >> j) & 1u) << 4;
}

inline void decode_q5_0(const std::uint8_t *block, float *out) {
    const float d = f16_at(block);
    const std::uint32_t bits = u32_at(block + 2);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<float>(((block[6 + j] & 15) | fifth_bit(bits, j)) - 16) * d;
        out[j + 16] = static_cast<float>(((block[6 + j] >> 4) | fifth_bit(bits, j + 16)) - 16) * d;
    }
}

inline void decode_q5_1(const std::uint8_t *block, float *out) {
    const float d = f16_at(block), m = f16_at(block + 2);
    const std::uint32_t bits = u32_at(block + 4);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<float>((block[8 + j] & 15) | fifth_bit(bits, j)) * d + m;
        out[j + 16] = static_cast<float>((block[8 + j] >> 4) | fifth_bit(bits, j + 16)) * d + m;
    }
}

inline void decode_q8_0(const std::uint8_t *block, float *out) {
    const float d = f16_at(block);
    for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<std::int8_t>(block[2 + j])) * d;
}

// ggml doubles the codes and halves the scale, 2^(byte - 128), which is the same but for two corners that come with it:
// code 8 is zero without a sign, and scale byte 255 is not NaN but 2^128 (all but codes of a half and zero overflow).
inline void decode_mxfp4(const std::uint8_t *block, float *out) {
    constexpr std::int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const std::uint32_t e = block[0];
    const float half_scale = float_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<float>(kDoubled[block[1 + j] & 15]) * half_scale;
        out[j + 16] = static_cast<float>(kDoubled[block[1 + j] >> 4]) * half_scale;
    }
}

// Scale t, 0 to 15: its low four bits in bytes 0 to 7 (the upper nibbles are scales 8 to 15), its upper two in 8 to 11.
inline int q3_k_scale(const std::uint8_t *scales, int t) {
    const int low = t < 8 ? scales[t] & 15 : scales[t - 8] >> 4;
    const int high = (scales[8 + t % 4] >> (2 * (t / 4))) & 3;
    return (low | (high << 4)) - 32;
}

// Value 128 h + 32 i + r: code in bits 2i of byte 32 h + r, third bit in bit 4 h + i of byte r, inverted: a bit that is
// clear takes 4 away.
inline void decode_q3_k(const std::uint8_t *block, float *out) {
    const float d = f16_at(block + 108);
    for (int t = 0; t < 16; ++t) {
        const int h = t / 8, i = t % 8 / 2;
        const float scale = d * static_cast<float>(q3_k_scale(block + 96, t));
        for (int r = 16 * (t % 2); r < 16 * (t % 2) + 16; ++r) {
            const int code = (block[32 + 32 * h + r] >> (2 * i)) & 3;
            const int bit = (block[r] >> (4 * h + i)) & 1;
            out[128 * h + 32 * i + r] = scale * static_cast<float>(code - (bit ? 0 : 4));
        }
    }
}

// Scale and min of the t-th 32 values. Those of 0 to 3 stand in six bits of bytes t and t + 4, whose upper two bits
// belong to t + 4; the low four bits of 4 to 7 stand in byte t + 4, scale below min.
struct ScaleMin {
    int scale, min;
};
inline ScaleMin k_scale_min(const std::uint8_t *bytes, int t) {
    if (t < 4) return {bytes[t] & 63, bytes[t + 4] & 63};
    return {(bytes[t + 4] & 15) | ((bytes[t - 4] >> 6) << 4), (bytes[t + 4] >> 4) | ((bytes[t] >> 6) << 4)};
}

// Value 32 t + r: nibble t % 2 of byte 32 (t / 2) + r.
inline void decode_q4_k(const std::uint8_t *block, float *out) {
    const float d = f16_at(block), dmin = f16_at(block + 2);
    for (int t = 0; t < 8; ++t) {
        const ScaleMin s = k_scale_min(block + 4, t);
        const float scale = d * static_cast<float>(s.scale), min = dmin * static_cast<float>(s.min);
        for (int r = 0; r < 32; ++r) {
            const int code = (block[16 + 32 * (t / 2) + r] >> (4 * (t % 2))) & 15;
            out[32 * t + r] = scale * static_cast<float>(code) - min;
        }
    }
}

// As Q4_K; the fifth bit of value 32 t + r is bit t of byte r.
inline void decode_q5_k(const std::uint8_t *block, float *out) {
    const float d = f16_at(block), dmin = f16_at(block + 2);
    for (int t = 0; t < 8; ++t) {
        const ScaleMin s = k_scale_min(block + 4, t);
        const float scale = d * static_cast<float>(s.scale), min = dmin * static_cast<float>(s.min);
        for (int r = 0; r < 32; ++r) {
            const int code = ((block[48 + 32 * (t / 2) + r] >> (4 * (t % 2))) & 15) | fifth_bit(block[16 + r], t);
            out[32 * t + r] = scale * static_cast<float>(code) - min;
        }
    }
}

// Value 128 h + 32 i + r: nibble i / 2 of byte 64 h + 32 (i % 2) + r, upper bits in bits 2i of byte 32 h + r.
inline void decode_q6_k(const std::uint8_t *block, float *out) {
    const float d = f16_at(block + 208);
    for (int t = 0; t < 16; ++t) {
        const int h = t / 8, i = t % 8 / 2;
        const float scale = d * static_cast<float>(static_cast<std::int8_t>(block[192 + t]));
        for (int r = 16 * (t % 2); r < 16 * (t % 2) + 16; ++r) {
            const int low = (block[64 * h + 32 * (i % 2) + r] >> (4 * (i / 2))) & 15;
            const int high = (block[128 + 32 * h + r] >> (2 * i)) & 3;
            out[128 * h + 32 * i + r] = scale * static_cast<float>((low | (high << 4)) - 32);
        }
    }
}

} // namespace ds41
