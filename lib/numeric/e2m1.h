// OCP float4 e2m1: a sign and the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 by code.
#pragma once

#include "numeric/bits.h"

namespace ds41 {

constexpr float kE2m1Max = 6.0f;

DS41_HD inline float e2m1_to_f32(std::uint8_t code) {
    constexpr float kMagnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const float magnitude = kMagnitude[code & 7u];
    return code & 8u ? -magnitude : magnitude;
}

// To nearest, ties to the even code, clamped to +-6; the sign is kept, of zero too. Not for NaN: the format has none.
DS41_HD inline std::uint8_t f32_to_e2m1(float value) {
    const std::uint32_t sign = (float_bits(value) >> 28) & 8u;
    const float magnitude = float_from_bits(float_bits(value) & ~kSignBit);
    // Between code c and c + 1 stands their mean; on it the even one wins.
    std::uint32_t code = 0;
    if (magnitude > 0.25f) code = 1;
    if (magnitude >= 0.75f) code = 2;
    if (magnitude > 1.25f) code = 3;
    if (magnitude >= 1.75f) code = 4;
    if (magnitude > 2.5f) code = 5;
    if (magnitude >= 3.5f) code = 6;
    if (magnitude > 5.0f) code = 7;
    return static_cast<std::uint8_t>(sign | code);
}

} // namespace ds41
