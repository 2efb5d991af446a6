// IEEE half precision, as Q2_K and q8_1 blocks store their scales. Subnormals are kept in both directions.
#pragma once

#include "numeric/bits.h"

namespace ds41 {

DS41_HD inline float f16_to_f32(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    const std::uint32_t mantissa = half & 0x3ffu;
    if (exponent == 31) return float_from_bits(sign | kInfBits | (mantissa << 13));
    if (exponent != 0) return float_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f; // exact: at most 10 bits
    return float_from_bits(sign | float_bits(magnitude));
}

// To nearest, ties to even; from 65520 on infinity.
DS41_HD inline std::uint16_t f32_to_f16(float value) {
    const std::uint32_t bits = float_bits(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & ~kSignBit;
    if (magnitude > kInfBits) return static_cast<std::uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) // 2^-14: normal; the rebias is a subtraction in the exponent field
        return static_cast<std::uint16_t>(sign | shift_right_rne(magnitude - 0x38000000u, 13));
    if (magnitude < 0x33000000u) return static_cast<std::uint16_t>(sign); // below half of 2^-24
    const int shift = 126 - static_cast<int>(magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    return static_cast<std::uint16_t>(sign | shift_right_rne(mantissa, shift));
}

} // namespace ds41
