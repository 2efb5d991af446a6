// The bits of a float, for the formats beside this file: each is defined from IEEE fields, never from library rounding.
#pragma once

#include <bit>
#include <cstdint>

// What kernels use as well.
#if defined(__CUDACC__)
#define DS41_HD __host__ __device__
#else
#define DS41_HD
#endif

namespace ds41 {

DS41_HD inline std::uint32_t float_bits(float value) {
    return std::bit_cast<std::uint32_t>(value);
}
DS41_HD inline float float_from_bits(std::uint32_t bits) {
    return std::bit_cast<float>(bits);
}

constexpr std::uint32_t kSignBit = 0x80000000u;
constexpr std::uint32_t kInfBits = 0x7f800000u;

DS41_HD inline bool is_nan(float value) {
    return (float_bits(value) & ~kSignBit) > kInfBits;
}
DS41_HD inline bool is_finite(float value) {
    return (float_bits(value) & ~kSignBit) < kInfBits;
}

// Drop the low `shift` bits of an unsigned number (1 to 31), to nearest, ties to even.
DS41_HD inline std::uint32_t shift_right_rne(std::uint32_t value, int shift) {
    const std::uint32_t half = (1u << (shift - 1)) - 1u;
    return (value + half + ((value >> shift) & 1u)) >> shift;
}

} // namespace ds41
