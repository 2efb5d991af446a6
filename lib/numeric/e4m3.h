// OCP float8 e4m3 "fn": bias 7, largest value 448, no infinity, 0x7f and 0xff are NaN. AMD's FNUZ variant is another
// format: read as this one it is wrong by a factor of two.
#pragma once

#include "numeric/bits.h"

namespace ds41 {

constexpr float kE4m3Max = 448.0f;
constexpr std::uint8_t kE4m3Nan = 0x7f;

DS41_HD inline float e4m3_to_f32(std::uint8_t code) {
    const std::uint32_t sign = std::uint32_t{code & 0x80u} << 24;
    const std::uint32_t exponent = (code >> 3) & 0xfu;
    const std::uint32_t mantissa = code & 7u;
    if ((code & 0x7fu) == kE4m3Nan) return float_from_bits(sign | 0x7fc00000u);
    if (exponent != 0) return float_from_bits(sign | ((exponent + 120u) << 23) | (mantissa << 20));
    return float_from_bits(sign | float_bits(static_cast<float>(mantissa) * 0x1p-9f));
}

// To nearest, ties to even, clamped to +-448 (infinities too); a NaN gives the NaN code.
DS41_HD inline std::uint8_t f32_to_e4m3(float value) {
    const std::uint32_t bits = float_bits(value);
    const std::uint32_t sign = (bits >> 24) & 0x80u;
    const std::uint32_t magnitude = bits & ~kSignBit;
    if (magnitude > kInfBits) return static_cast<std::uint8_t>(sign | kE4m3Nan);
    if (magnitude >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu); // 448
    if (magnitude >= 0x3c800000u)                                                 // 2^-6: normal
        return static_cast<std::uint8_t>(sign | shift_right_rne(magnitude - 0x3c000000u, 20));
    if (magnitude < 0x3a800000u) return static_cast<std::uint8_t>(sign); // below half of 2^-9
    const int shift = 141 - static_cast<int>(magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    return static_cast<std::uint8_t>(sign | shift_right_rne(mantissa, shift));
}

} // namespace ds41
