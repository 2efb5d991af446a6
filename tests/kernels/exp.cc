// The kernels' exponential against the C library's in f64.
#include "common/exp.cuh"
#include "numeric/bits.h"
#include "support/compare.h"

#include <doctest/doctest.h>
#include <limits>

using namespace ds41;
using namespace ds41::kernels;
using namespace ds41::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLowest = -87.3f, kHighest = 88.7f; // beyond them results are 0 and infinity

// Units in the last place of the true value by which exp_f32 is off.
double error_in_units(float x) {
    const double exact = std::exp(double{x});
    const double unit = std::ldexp(1.0, std::ilogb(exact) - 23);
    return std::fabs(double{exp_f32(x)} - exact) / unit;
}

} // namespace

TEST_SUITE_BEGIN("kernels");

TEST_CASE("exp: within 1.1 units in the last place wherever the result is a normal number") {
    Tally tally;
    double worst = 0.0;
    const auto look = [&](float x) {
        if (!(x > kLowest && x <= kHighest)) return;
        const double error = error_in_units(x);
        worst = std::max(worst, error);
        tally.expect(error <= 1.1, "exp(%a) is off by %g units", double{x}, error);
    };
    // Through all magnitudes, of both signs, with a step that shares no factor with powers of two.
    for (std::uint64_t bits = 0; bits < kInfBits; bits += 1009) {
        look(float_from_bits(static_cast<std::uint32_t>(bits)));
        look(float_from_bits(static_cast<std::uint32_t>(bits) | kSignBit));
    }
    // Evenly, and around each multiple of ln 2 / 2, where the exponent changes.
    for (int i = -700000; i < 710000; ++i) look(static_cast<float>(i) * 1.25e-4f);
    for (int n = -253; n < 257; ++n) {
        float x = static_cast<float>(n * 0.34657359027997264);
        for (int i = 0; i < 64; ++i) x = std::nextafter(x, -kInf);
        for (int i = 0; i < 128; ++i, x = std::nextafter(x, kInf)) look(x);
    }
    CHECK(tally);
    CHECK(worst > 0.5); // no exponential is that good: something was compared
}

TEST_CASE("exp: the ends") {
    CHECK(exp_f32(0.0f) == 1.0f);
    CHECK(exp_f32(-0.0f) == 1.0f);
    CHECK(exp_f32(float_from_bits(1)) == 1.0f);
    CHECK(exp_f32(-float_from_bits(1)) == 1.0f);
    CHECK(is_nan(exp_f32(float_from_bits(0x7fc00000u))));
    CHECK(is_nan(exp_f32(float_from_bits(0xffc00001u))));
    for (const float x : {-kInf, -std::numeric_limits<float>::max(), -1000.0f, -104.0f, -88.0f, -87.34f}) {
        CAPTURE(x);
        CHECK(float_bits(exp_f32(x)) == 0); // +0
    }
    for (const float x : {kInf, std::numeric_limits<float>::max(), 1000.0f, 89.0f, 88.73f}) {
        CAPTURE(x);
        CHECK(exp_f32(x) == kInf);
    }
    CHECK(error_in_units(std::nextafter(kLowest, 0.0f)) <= 1.1);
    CHECK(error_in_units(kHighest) <= 1.1);
    CHECK(exp_f32(kHighest) < kInf);
}

TEST_CASE("exp: subnormal results are 0, the least normal one is not") {
    // exp(x) is subnormal below -87.3365.
    for (float x = -87.3366f; x > -110.0f; x -= 0.01f) CHECK(float_bits(exp_f32(x)) == 0);
    CHECK(exp_f32(-87.2999f) >= std::numeric_limits<float>::min());
}

TEST_SUITE_END();
