// The best k of n scores by counting, not by sorting.
#pragma once

#include <cstdint>

namespace ds41::cpu {

constexpr std::uint16_t kMaskedBits = 0xff80; // -inf

// A bf16 score's place among all: higher is better, zeros of both signs are one. Negative NaN lies below -inf, and
// there is no other here. Signs are random: nothing branches on them.
inline std::int16_t order_of(std::uint16_t bits) {
    const auto value = static_cast<std::int16_t>(bits);
    const auto order = static_cast<std::int16_t>(value ^ ((value >> 15) & 0x7fff));
    return static_cast<std::int16_t>(order + (order == -1));
}
constexpr std::int16_t kMaskedOrder = static_cast<std::int16_t>(kMaskedBits ^ 0x7fffu);

constexpr int kStretch = 32; // scores that are looked at together

constexpr std::int64_t stretches_of(std::int64_t n) {
    return (n + kStretch - 1) / kStretch;
}

// Indices of the k best of n scores above -inf, ascending; of equal ones at the cut those with lower indices. Returns
// how many there are; out has room for min(n, k), and `best`, which is scratch, for stretches_of(n).
std::int64_t best_of(const std::uint16_t *scores, std::int64_t n, std::int64_t k, std::int16_t *best,
                     std::int32_t *out);

} // namespace ds41::cpu
