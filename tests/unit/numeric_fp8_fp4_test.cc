// The element formats e4m3, e2m1 and ue8m0 against the list of values that each can hold: an encoder must give the
// nearest one, of two equally near ones that with the even code, and the largest one for everything beyond it.
#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "numeric/ue8m0.h"

#include "support/compare.h"
#include "support/random.h"
#include "support/safetensors_view.h"

#include <doctest/doctest.h>

#include <cfloat>

using namespace ds41;
using namespace ds41::test;

namespace {

// Magnitudes by code, written from the formats' definitions.
std::vector<double> e4m3_values() {
    std::vector<double> values;
    for (int code = 0; code < 127; ++code) // 127 is NaN
        values.push_back(code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10));
    return values;
}

std::vector<double> e2m1_values() {
    return {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
}

int nearest_code(const std::vector<double> &values, double magnitude) {
    magnitude = std::min(magnitude, values.back()); // saturates; and differences of huge numbers would look equal
    int best = 0;
    for (int code = 1; code < static_cast<int>(values.size()); ++code) {
        const double error = std::fabs(values[static_cast<std::size_t>(code)] - magnitude);
        const double least = std::fabs(values[static_cast<std::size_t>(best)] - magnitude);
        if (error < least || (error == least && code % 2 == 0)) best = code;
    }
    return best;
}

// A format under test: its list, its functions, the bit of its sign.
struct Format {
    std::vector<double> values;
    std::uint8_t (*encode)(float);
    float (*decode)(std::uint8_t);
    int sign;

    void expect(Tally &tally, float value) const {
        const int code = encode(value);
        const int nearest =
            nearest_code(values, std::fabs(static_cast<double>(value))) | (std::signbit(value) ? sign : 0);
        tally.expect(code == nearest, "%.9g (%08x) gives %02x, nearest is %02x", static_cast<double>(value),
                     std::bit_cast<std::uint32_t>(value), code, nearest);
    }

    void expect_both_signs(Tally &tally, float magnitude) const {
        expect(tally, magnitude);
        expect(tally, -magnitude);
    }
};

const Format &e4m3() {
    static const Format format{e4m3_values(), f32_to_e4m3, e4m3_to_f32, 0x80};
    return format;
}
const Format &e2m1() {
    static const Format format{e2m1_values(), f32_to_e2m1, e2m1_to_f32, 8};
    return format;
}

void check_codes(const Format &format) {
    Tally tally;
    for (int code = 0; code < static_cast<int>(format.values.size()); ++code) {
        for (const int signed_code : {code, code | format.sign}) {
            const float value = format.decode(static_cast<std::uint8_t>(signed_code));
            const double magnitude = format.values[static_cast<std::size_t>(code)];
            tally.expect(std::fabs(static_cast<double>(value)) == magnitude &&
                             std::signbit(value) == (signed_code != code),
                         "%02x is %.9g", signed_code, static_cast<double>(value));
            const int again = format.encode(value);
            tally.expect(again == signed_code, "%02x encodes to %02x", signed_code, again);
        }
    }
    CHECK(tally);
}

void check_ties(const Format &format) {
    Tally tally;
    for (std::size_t code = 0; code + 1 < format.values.size(); ++code) {
        const float tie = static_cast<float>((format.values[code] + format.values[code + 1]) / 2);
        for (const float value : {tie, std::nextafterf(tie, 0.0f), std::nextafterf(tie, INFINITY)})
            format.expect_both_signs(tally, value);
        const float exact = static_cast<float>(format.values[code + 1]);
        for (const float value : {std::nextafterf(exact, 0.0f), std::nextafterf(exact, INFINITY)})
            format.expect_both_signs(tally, value);
    }
    CHECK(tally);
}

void check_bf16_inputs(const Format &format) {
    Tally tally;
    for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
        const float value = std::bit_cast<float>(upper << 16);
        if (std::isfinite(value)) format.expect(tally, value);
    }
    CHECK(tally);
}

// Exponents from below half of the smallest value to beyond the largest.
void check_random_inputs(const Format &format, std::uint64_t stream, int low, int high) {
    Random random(stream);
    Tally tally;
    for (int i = 0; i < 30000; ++i)
        format.expect_both_signs(tally,
                                 static_cast<float>(std::ldexp(random.uniform(1.0, 2.0), random.between(low, high))));
    CHECK(tally);
}

} // namespace

TEST_CASE("e4m3: every code decodes to its value and encodes to itself") {
    check_codes(e4m3());
    CHECK(std::isnan(e4m3_to_f32(0x7f)));
    CHECK(std::isnan(e4m3_to_f32(0xff)));
}

TEST_CASE("e4m3: ties to even, neighbours of ties and of values") {
    check_ties(e4m3());
}

TEST_CASE("e4m3: every bf16 input goes to the nearest code") {
    check_bf16_inputs(e4m3());
}

TEST_CASE("e4m3: random floats go to the nearest code") {
    check_random_inputs(e4m3(), 3, -12, 10);
}

TEST_CASE("e4m3: clamps to 448, infinities too; a NaN stays one") {
    for (const float value : {448.0f, 448.00003f, 464.0f, 480.0f, 1e30f, FLT_MAX, INFINITY}) {
        CAPTURE(value);
        CHECK(f32_to_e4m3(value) == 0x7e);
        CHECK(f32_to_e4m3(-value) == 0xfe);
    }
    for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
        CAPTURE(bits);
        CHECK((f32_to_e4m3(std::bit_cast<float>(bits)) & 0x7f) == 0x7f);
    }
}

TEST_CASE("e4m3: the smallest values") {
    CHECK(f32_to_e4m3(0x1p-9f) == 0x01);
    CHECK(f32_to_e4m3(0x1p-10f) == 0x00); // a tie between 0 and 2^-9
    CHECK(f32_to_e4m3(0x3p-10f) == 0x02);
    CHECK(f32_to_e4m3(0xfp-10f) == 0x08); // a tie between the largest subnormal and the smallest normal
    CHECK(f32_to_e4m3(-0.0f) == 0x80);
    CHECK(f32_to_e4m3(FLT_TRUE_MIN) == 0x00);
    CHECK(f32_to_e4m3(-FLT_TRUE_MIN) == 0x80);
}

TEST_CASE("e4m3: fixture table, bit for bit") {
    const FixtureFile file("quant_tables");
    std::vector<std::uint8_t> codes;
    std::vector<float> values;
    for (const float value : file.get<float>("e4m3.in").values) {
        codes.push_back(f32_to_e4m3(value));
        values.push_back(e4m3_to_f32(codes.back()));
    }
    CHECK(same_bits(codes, file.get<std::uint8_t>("e4m3.byte").values));
    CHECK(same_bits(values, file.get<float>("e4m3.value").values));
}

TEST_CASE("e2m1: every code decodes to its value and encodes to itself") {
    check_codes(e2m1());
}

TEST_CASE("e2m1: ties to even, neighbours of ties and of values") {
    check_ties(e2m1());
}

TEST_CASE("e2m1: every bf16 input goes to the nearest code") {
    check_bf16_inputs(e2m1());
}

TEST_CASE("e2m1: random floats go to the nearest code") {
    check_random_inputs(e2m1(), 4, -4, 4);
}

TEST_CASE("e2m1: the seven ties, the clamp and the sign of zero") {
    const float ties[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const int even[7] = {0, 2, 2, 4, 4, 6, 6};
    for (int i = 0; i < 7; ++i) {
        CAPTURE(ties[i]);
        CHECK(f32_to_e2m1(ties[i]) == even[i]);
        CHECK(f32_to_e2m1(-ties[i]) == (even[i] | 8));
    }
    for (const float value : {6.0f, 7.0f, 8.0f, 1e6f, FLT_MAX, INFINITY}) {
        CAPTURE(value);
        CHECK(f32_to_e2m1(value) == 7);
        CHECK(f32_to_e2m1(-value) == 15);
    }
    CHECK(f32_to_e2m1(0.0f) == 0);
    CHECK(f32_to_e2m1(-0.0f) == 8);
    CHECK(std::bit_cast<std::uint32_t>(e2m1_to_f32(8)) == 0x80000000u);
}

TEST_CASE("e2m1: fixture table, bit for bit") {
    const FixtureFile file("quant_tables");
    std::vector<std::uint8_t> codes;
    std::vector<float> values;
    for (const float value : file.get<float>("e2m1.in").values) {
        codes.push_back(f32_to_e2m1(value));
        values.push_back(e2m1_to_f32(codes.back()));
    }
    CHECK(same_bits(codes, file.get<std::uint8_t>("e2m1.code").values));
    CHECK(same_bits(values, file.get<float>("e2m1.value").values));
}

TEST_CASE("ue8m0: every byte is its power of two, 255 is NaN, and powers encode to their byte") {
    for (int byte = 0; byte < 255; ++byte) {
        CAPTURE(byte);
        const float power = ue8m0_to_f32(static_cast<std::uint8_t>(byte));
        CHECK(static_cast<double>(power) == std::ldexp(1.0, byte - 127)); // byte 0 is a subnormal float
        CHECK(pow2_to_ue8m0(power) == byte);
    }
    CHECK(std::isnan(ue8m0_to_f32(255)));
}

TEST_CASE(
    "pow2_ceil: the smallest power of two that is not below, for every normal bf16 and the floats beside powers") {
    // Powers by counting up, so that the test knows no bits and no logarithm.
    const auto expect = [](Tally &tally, float value) {
        double power = 0x1p-126;
        while (power < static_cast<double>(value)) power *= 2;
        const float got = pow2_ceil(value);
        tally.expect(static_cast<double>(got) == power, "%.9g gives %.9g, expected %.9g", static_cast<double>(value),
                     static_cast<double>(got), power);
    };
    Tally bf16_values, neighbours;
    for (std::uint32_t upper = 0x0080; upper <= 0x7f00; ++upper) // 2^-126 to 2^127
        expect(bf16_values, std::bit_cast<float>(upper << 16));
    for (int exponent = -126; exponent <= 127; ++exponent) {
        const float power = std::ldexp(1.0f, exponent);
        if (exponent > -126) expect(neighbours, std::nextafterf(power, 0.0f));
        expect(neighbours, power);
        if (exponent < 127) expect(neighbours, std::nextafterf(power, INFINITY));
    }
    CHECK(bf16_values);
    CHECK(neighbours);
}

TEST_CASE("pow2_ceil: fixture table, bit for bit") {
    const FixtureFile file("quant_tables");
    std::vector<float> powers;
    for (const float value : file.get<float>("pow2_ceil.in").values) powers.push_back(pow2_ceil(value));
    CHECK(same_bits(powers, file.get<float>("pow2_ceil.out").values));
}
