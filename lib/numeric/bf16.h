// bfloat16: the upper half of a float. Activations, latents and the outputs of every product are rounded to it.
#pragma once

#include "numeric/bits.h"

namespace ds41 {

struct Bf16 {
    std::uint16_t bits;
};

DS41_HD inline float to_f32(Bf16 value) {
    return float_from_bits(std::uint32_t{value.bits} << 16);
}

// To nearest, ties to even; overflows to infinity, keeps subnormals; a NaN stays one and becomes quiet.
DS41_HD inline Bf16 to_bf16(float value) {
    const std::uint32_t bits = float_bits(value);
    if (is_nan(value)) return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
    return Bf16{static_cast<std::uint16_t>(shift_right_rne(bits, 16))};
}

DS41_HD inline float round_bf16(float value) {
    return to_f32(to_bf16(value));
}

} // namespace ds41
