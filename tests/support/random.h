// Random inputs for tests, the same on every platform and standard library. One seed serves the whole run: it is
// printed when first used and set with the environment variable DS41_TEST_SEED. A generator is that seed and a stream
// number of the test's own, so that tests do not depend on which others ran before.
#pragma once

#include "numeric/bf16.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace ds41::test {

inline std::uint64_t test_seed() {
    static const std::uint64_t seed = [] {
        const char *text = std::getenv("DS41_TEST_SEED");
        const std::uint64_t value = text && *text ? std::strtoull(text, nullptr, 0) : 41;
        std::printf("DS41_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
        return value;
    }();
    return seed;
}

class Random {
public:
    explicit Random(std::uint64_t stream) : state_(test_seed() * 0x9e3779b97f4a7c15u + stream * 0xd1342543de82ef95u) {
        for (int i = 0; i < 4; ++i) bits();
    }

    // 64 fresh bits: splitmix64.
    std::uint64_t bits() {
        state_ += 0x9e3779b97f4a7c15u;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    std::uint8_t byte() { return static_cast<std::uint8_t>(bits() >> 56); }

    // 0 to n - 1.
    int below(int n) { return static_cast<int>((bits() >> 32) * static_cast<std::uint64_t>(n) >> 32); }

    // low to high, ends included.
    int between(int low, int high) { return low + below(high - low + 1); }

    // At least low, below high.
    double uniform(double low, double high) { return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53; }

    // Standard normal: Box and Muller's method.
    double normal() {
        const double radius = std::sqrt(-2.0 * std::log(uniform(0x1p-53, 1.0)));
        return radius * std::cos(6.283185307179586 * uniform(0.0, 1.0));
    }

    // Normal values times `magnitude`, rounded to bf16.
    std::vector<Bf16> bf16_row(int n, double magnitude) {
        std::vector<Bf16> row;
        row.reserve(static_cast<std::size_t>(n));
        for (int i = 0; i < n; ++i) row.push_back(to_bf16(static_cast<float>(magnitude * normal())));
        return row;
    }

private:
    std::uint64_t state_;
};

} // namespace ds41::test
