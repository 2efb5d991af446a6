// fp8 products: the activation quantiser and the product of two fp8 rows, against a second derivation in double and
// against the shared fixture. Codes and scales are exact; the sum's order is free, so it has a derived bound.
#include "numeric/fp8_linear.h"

#include "support/compare.h"
#include "support/random.h"
#include "support/safetensors_view.h"

#include <doctest/doctest.h>

using namespace ds41;
using namespace ds41::test;

namespace {

using Row = std::vector<Bf16>;
using Bytes = std::vector<std::uint8_t>;

double e4m3_value(int code) {
    const int magnitude = code % 128;
    const double value = magnitude < 8 ? std::ldexp(magnitude, -9) : std::ldexp(8 + magnitude % 8, magnitude / 8 - 10);
    return code < 128 ? value : -value;
}

// The code by bisection in the ascending list of magnitudes, ties to the even one, the last one beyond it.
int nearest_e4m3(double value) {
    int below = 0, above = 126;
    const double magnitude = std::fabs(value);
    const int sign = std::signbit(value) ? 128 : 0;
    if (magnitude >= 448) return sign + 126;
    while (above - below > 1) {
        const int middle = (below + above) / 2;
        (e4m3_value(middle) <= magnitude ? below : above) = middle;
    }
    const double down = magnitude - e4m3_value(below), up = e4m3_value(above) - magnitude;
    return sign + (up < down || (up == down && below % 2 == 1) ? above : below);
}

struct Activations {
    Bytes codes;
    std::vector<float> scales;
};

Activations quantised(const Row &x) {
    Activations result{Bytes(x.size(), 0xee), std::vector<float>(x.size() / 32, -1.0f)};
    quantise_fp8_activations(x.data(), static_cast<int>(x.size()), result.codes.data(), result.scales.data());
    return result;
}

Activations derived(const Row &x) {
    Activations result;
    for (std::size_t start = 0; start < x.size(); start += 32) {
        float amax = 1e-4f;
        for (std::size_t i = start; i < start + 32; ++i)
            amax = std::max(amax, std::fabs(static_cast<float>(as_double(x[i]))));
        float scale = 0x1p-40f;
        while (scale < amax / 448) scale *= 2;
        result.scales.push_back(scale);
        for (std::size_t i = start; i < start + 32; ++i) {
            const float quotient = static_cast<float>(as_double(x[i])) / scale;
            result.codes.push_back(static_cast<std::uint8_t>(nearest_e4m3(static_cast<double>(quotient))));
        }
    }
    return result;
}

// Exact but for double's rounding; `magnitude` is the sum of the terms' magnitudes.
struct Product {
    double sum = 0, magnitude = 0;
};

Product derived_dot(const std::uint8_t *weight, const std::uint8_t *weight_scales, const std::uint8_t *codes,
                    const float *scales, int k) {
    Product product;
    for (int i = 0; i < k; ++i) {
        const double factor = std::ldexp(static_cast<double>(scales[i / 32]), weight_scales[i / 32] - 127);
        const double term = e4m3_value(weight[i]) * e4m3_value(codes[i]) * factor;
        product.sum += term;
        product.magnitude += std::fabs(term);
    }
    return product;
}

Bytes random_codes(Random &random, int n) {
    Bytes codes;
    while (static_cast<int>(codes.size()) < n) {
        const std::uint8_t code = random.byte();
        if ((code & 127) != 127) codes.push_back(code);
    }
    return codes;
}

} // namespace

TEST_CASE("fp8_linear: activations of random rows against the definition") {
    Random random(14);
    for (int r = 0; r < 200; ++r) {
        Row x;
        for (int b = 0; b < 8; ++b)
            for (const Bf16 value : random.bf16_row(32, std::ldexp(1.0, random.between(-30, 30)))) x.push_back(value);
        const Activations got = quantised(x), expected = derived(x);
        CHECK(same_bits(got.codes, expected.codes));
        CHECK(same_bits(got.scales, expected.scales));
    }
}

TEST_CASE("fp8_linear: every bf16 value as the largest of its block") {
    Row x;
    for (std::uint32_t code = 0; code < 0x7f80; ++code) {
        const double largest = as_double(Bf16{static_cast<std::uint16_t>(code)});
        for (int i = 0; i < 32; ++i)
            x.push_back(
                to_bf16(static_cast<float>(std::ldexp(i % 2 == 0 ? largest : -largest, -i / 2) * (32 - i) / 32)));
    }
    const Activations got = quantised(x), expected = derived(x);
    CHECK(same_bits(got.codes, expected.codes));
    CHECK(same_bits(got.scales, expected.scales));
}

TEST_CASE("fp8_linear: zero rows, signs of zero, and the floor of 1e-4") {
    Row x(64, Bf16{0});
    x[1] = Bf16{0x8000};
    x[32] = to_bf16(1.04e-4f); // 1e-4 / 448 and this one both lie below 2^-22
    Activations got = quantised(x);
    CHECK(got.codes[0] == 0x00);
    CHECK(got.codes[1] == 0x80);
    CHECK(got.scales[0] == 0x1p-22f);
    CHECK(got.scales[1] == 0x1p-22f);
    x[32] = to_bf16(1.08e-4f);
    got = quantised(x);
    CHECK(got.scales[1] == 0x1p-21f);
}

TEST_CASE("fp8_linear: a block that holds a NaN or an infinity makes the product NaN, other blocks are untouched") {
    Random random(15);
    const Bytes weight = random_codes(random, 96), weight_scales(3, 127);
    for (const unsigned special : {0x7f80u, 0xff80u, 0x7f81u, 0x7fc0u, 0xffffu}) {
        CAPTURE(special);
        Row x = random.bf16_row(96, 2.0);
        const Activations clean = quantised(x);
        x[40] = Bf16{static_cast<std::uint16_t>(special)};
        const Activations got = quantised(x);
        for (const std::size_t b : {0u, 2u}) {
            CHECK(got.scales[b] == clean.scales[b]);
            CHECK(std::equal(got.codes.begin() + static_cast<int>(32 * b),
                             got.codes.begin() + static_cast<int>(32 * b + 32),
                             clean.codes.begin() + static_cast<int>(32 * b)));
        }
        CHECK(std::isnan(dot_fp8(weight.data(), weight_scales.data(), got.codes.data(), got.scales.data(), 96)));
    }
}

TEST_CASE("fp8_linear: a product of one block with small integers is exact") {
    // Codes 0x38 + j are 1 + j / 8. Weight scale 2^3, activation scale 2^-2.
    Bytes weight(32, 0), codes(32, 0);
    for (std::size_t i = 0; i < 8; ++i) {
        weight[i] = static_cast<std::uint8_t>(0x38 + i);
        codes[i] = static_cast<std::uint8_t>(i % 2 == 0 ? 0x40 : 0xc0); // 2, -2
    }
    const std::uint8_t weight_scale = 130;
    const float scale = 0.25f;
    // 2 * (1 - 9/8 + 10/8 - 11/8 + 12/8 - 13/8 + 14/8 - 15/8) = 2 * -1/2, times 8 / 4.
    CHECK(dot_fp8(weight.data(), &weight_scale, codes.data(), &scale, 32) == -2.0f);
}

TEST_CASE("fp8_linear: products of random bytes, any weight scale") {
    Random random(16);
    Tally tally;
    for (int i = 0; i < 500; ++i) {
        const int k = 32 * random.between(1, 40);
        const Bytes weight = random_codes(random, k), codes = random_codes(random, k);
        Bytes weight_scales;
        std::vector<float> scales;
        for (int b = 0; b < k / 32; ++b) {
            weight_scales.push_back(
                static_cast<std::uint8_t>(random.below(8) == 0 ? random.between(0, 200) : random.between(110, 130)));
            scales.push_back(std::ldexp(1.0f, random.between(-22, 10)));
        }
        const Product expected = derived_dot(weight.data(), weight_scales.data(), codes.data(), scales.data(), k);
        const double got =
            static_cast<double>(dot_fp8(weight.data(), weight_scales.data(), codes.data(), scales.data(), k));
        // A term meets at most 32 additions in its block, two scalings (exact, but for subnormals) and k / 32
        // additions; each rounds by at most 2^-24 of a sum that is no larger than the sum of magnitudes, or by half of
        // 2^-149.
        const double bound = (34 + k / 32) * (expected.magnitude * 0x1p-24 + 0x1p-149);
        tally.expect(std::fabs(got - expected.sum) <= bound, "k %d gives %.9g, expected %.9g within %.3g", k, got,
                     expected.sum, bound);
    }
    CHECK(tally);
}

TEST_CASE("fp8_linear: extreme scales that cancel leave a finite product") {
    // The largest activation scale is 2^120; times a block of code products it is beyond a float, times both scales
    // not.
    const Bytes weight(32, 0x7e), codes(32, 0x7e);
    const std::uint8_t weight_scale = 27; // 2^-100
    const float scale = 0x1p120f;
    CHECK(dot_fp8(weight.data(), &weight_scale, codes.data(), &scale, 32) == std::ldexp(32.0f * 448 * 448, 20));
}

TEST_CASE("fp8_linear: fixture products") {
    const FixtureFile file("quant_linear");
    for (const std::string name : {"fp8_0.", "fp8_1.", "fp8_2."}) {
        CAPTURE(name);
        const Array<std::uint8_t> weight = file.get<std::uint8_t>(name + "weight");
        const Array<std::uint8_t> weight_scales = file.get<std::uint8_t>(name + "scale");
        const Array<Bf16> x = file.get<Bf16>(name + "x"), out = file.get<Bf16>(name + "out");
        const Array<Bf16> expanded = file.get<Bf16>(name + "expanded");
        const Array<std::uint8_t> act_codes = file.get<std::uint8_t>(name + "act_code");
        const Array<float> act_scales = file.get<float>(name + "act_scale");
        const int k = static_cast<int>(x.cols());

        Row expanded_here;
        for (std::size_t r = 0; r < weight.rows(); ++r)
            for (std::size_t c = 0; c < weight.cols(); ++c)
                expanded_here.push_back(
                    to_bf16(e4m3_to_f32(weight.row(r)[c]) * ue8m0_to_f32(weight_scales.row(r / 32)[c / 32])));
        CHECK(same_bits(expanded_here, expanded.values, expanded.shape));

        Bytes codes(x.values.size());
        std::vector<float> scales(act_scales.values.size());
        Tally tally;
        for (std::size_t t = 0; t < x.rows(); ++t) {
            std::uint8_t *row_codes = codes.data() + t * x.cols();
            float *row_scales = scales.data() + t * act_scales.cols();
            quantise_fp8_activations(x.row(t), k, row_codes, row_scales);
            for (std::size_t r = 0; r < weight.rows(); ++r) {
                const double got = static_cast<double>(
                    round_bf16(dot_fp8(weight.row(r), weight_scales.row(r / 32), row_codes, row_scales, k)));
                const double expected = as_double(out.row(t)[r]);
                const double magnitude =
                    derived_dot(weight.row(r), weight_scales.row(r / 32), row_codes, row_scales, k).magnitude;
                // The bound that the fixtures' notes give: one bf16 step, and what float sums lose.
                tally.expect(std::fabs(got - expected) <= 0x1p-7 * std::fabs(expected) + 0x1p-14 * magnitude,
                             "row %zu, output %zu is %.9g, expected %.9g", t, r, got, expected);
            }
        }
        CHECK(same_bits(codes, act_codes.values, act_codes.shape));
        CHECK(same_bits(scales, act_scales.values, act_scales.shape));
        CHECK(tally);
    }
}
