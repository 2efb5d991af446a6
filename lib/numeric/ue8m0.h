// ue8m0: a power of two, 2^(byte - 127); 255 is NaN. The scale of fp8 blocks and of fp4 index rows.
#pragma once

#include "numeric/bits.h"

namespace ds41 {

constexpr std::uint8_t kUe8m0Nan = 255;

DS41_HD inline float ue8m0_to_f32(std::uint8_t code) {
    if (code == kUe8m0Nan) return float_from_bits(0x7fc00000u);
    if (code == 0) return 0x1p-127f; // subnormal in f32
    return float_from_bits(std::uint32_t{code} << 23);
}

// The smallest power of two >= value, for positive normal values up to 2^127. From the fields: a logarithm's last bit
// would move exact powers.
DS41_HD inline float pow2_ceil(float value) {
    const std::uint32_t bits = float_bits(value);
    const std::uint32_t exponent = bits & 0x7f800000u;
    return float_from_bits((bits & 0x7fffffu) != 0 ? exponent + 0x800000u : exponent);
}

// The code of a normal power of two.
DS41_HD inline std::uint8_t pow2_to_ue8m0(float power) {
    return static_cast<std::uint8_t>(float_bits(power) >> 23);
}

} // namespace ds41
