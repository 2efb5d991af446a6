// The cpu backend's selection by counting against sorting.
#include "backend/cpu/rank.h"
#include "numeric/bf16.h"
#include "support/random.h"

#include <algorithm>
#include <doctest/doctest.h>
#include <vector>

using namespace ds41;
using namespace ds41::test;

namespace {

std::vector<std::int32_t> sorted_best(const std::vector<std::uint16_t> &scores, std::int64_t k) {
    std::vector<std::int32_t> order;
    const auto value = [&](std::int32_t i) { return to_f32(Bf16{scores[static_cast<std::size_t>(i)]}); };
    for (std::size_t i = 0; i < scores.size(); ++i)
        if (value(static_cast<std::int32_t>(i)) > to_f32(Bf16{cpu::kMaskedBits}))
            order.push_back(static_cast<std::int32_t>(i));
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return value(a) > value(b); });
    if (static_cast<std::int64_t>(order.size()) > k) order.resize(static_cast<std::size_t>(k));
    std::sort(order.begin(), order.end());
    return order;
}

void check(const std::vector<std::uint16_t> &scores, std::int64_t k) {
    CAPTURE(scores.size());
    CAPTURE(k);
    constexpr std::int32_t kGuard = 0x5a5a5a5a;
    const auto room = std::min(static_cast<std::size_t>(k), scores.size());
    std::vector<std::int32_t> out(room + 1, kGuard);
    std::vector<std::int16_t> stretches(scores.size() / 32 + 1);
    const std::int64_t n =
        cpu::best_of(scores.data(), static_cast<std::int64_t>(scores.size()), k, stretches.data(), out.data());
    REQUIRE(n <= static_cast<std::int64_t>(room));
    CHECK(out[room] == kGuard);
    out.resize(static_cast<std::size_t>(n));
    CHECK(out == sorted_best(scores, k));
}

} // namespace

TEST_CASE("cpu rank: the best k of scores of every kind, ties to the lower index") {
    Random random(10);
    constexpr std::uint16_t kSpecial[] = {0x0000, 0x8000, 0xff80, 0x7f80, 0xffc0,
                                          0xffff, 0x0001, 0x8001, 0x7f7f, 0xff7f};
    for (const int n : {0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 1000, 5000, 20001}) {
        for (int round = 0; round < 40; ++round) {
            std::vector<std::uint16_t> scores;
            const int kind = round % 5;
            for (int i = 0; i < n; ++i) {
                std::uint16_t bits = to_bf16(static_cast<float>(random.normal())).bits;
                if (kind == 1) bits = kSpecial[random.below(10)];
                if (kind == 2) bits = random.below(4) ? std::uint16_t{0} : bits; // mostly zeros
                if (kind == 3) bits = 0x3f80;                                    // all equal
                if (kind == 4) bits = static_cast<std::uint16_t>(random.bits() >> 48);
                if (is_nan(to_f32(Bf16{bits}))) bits |= 0x8000u; // as scores have it
                scores.push_back(bits);
            }
            for (const std::int64_t k : {0, 1, 2, 7, 512, 4999, 6000}) check(scores, k);
        }
    }
}

TEST_CASE("cpu rank: places of scores are in the order of their values") {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const float a = to_f32(Bf16{static_cast<std::uint16_t>(bits)});
        const float b = to_f32(Bf16{static_cast<std::uint16_t>(bits + 1)});
        if (is_nan(a) || is_nan(b) || bits == 0xffff) continue;
        const auto order_a = cpu::order_of(static_cast<std::uint16_t>(bits)),
                   order_b = cpu::order_of(static_cast<std::uint16_t>(bits + 1));
        const bool in_order = a < b ? order_a < order_b : a > b ? order_a > order_b : order_a == order_b;
        if (!in_order) FAIL(bits);
    }
    CHECK(cpu::order_of(cpu::kMaskedBits) == cpu::kMaskedOrder);
    CHECK(cpu::order_of(0xffc0) < cpu::kMaskedOrder);
    CHECK(cpu::order_of(0x8000) == cpu::order_of(0x0000));
}
