// fp16 against its definition, and every tie between neighbours.
#include "numeric/f16.h"

#include "support/compare.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <cfloat>

using namespace ds41;
using namespace ds41::test;

namespace {

// Value of the magnitude code 0 to 0x7c00; infinity stands at 65536, where rounding meets it.
double magnitude_of(int code) {
    const int exponent = code >> 10, mantissa = code & 1023;
    return exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
}

// Nearest of all codes by bisection, ties to the even one.
int nearest_f16(double magnitude) {
    int below = 0, above = 0x7c00;
    if (magnitude >= magnitude_of(above)) return above;
    while (above - below > 1) {
        const int middle = (below + above) / 2;
        (magnitude_of(middle) <= magnitude ? below : above) = middle;
    }
    const double down = magnitude - magnitude_of(below), up = magnitude_of(above) - magnitude;
    return up < down || (up == down && below % 2 == 1) ? above : below;
}

void expect_both_signs(Tally &tally, float magnitude, int code) {
    const int positive = f32_to_f16(magnitude), negative = f32_to_f16(-magnitude);
    tally.expect(positive == code, "%.9g gives %04x, nearest is %04x", static_cast<double>(magnitude), positive, code);
    tally.expect(negative == (code | 0x8000), "%.9g gives %04x, nearest is %04x", -static_cast<double>(magnitude),
                 negative, code | 0x8000);
}

} // namespace

TEST_CASE("fp16: every code decodes to its value and encodes to itself") {
    Tally decoded, encoded;
    for (int code = 0; code < 0x10000; ++code) {
        const float value = f16_to_f32(static_cast<std::uint16_t>(code));
        const int again = f32_to_f16(value);
        if ((code & 0x7fff) > 0x7c00) {
            decoded.expect(std::isnan(value), "%04x is %.9g, not NaN", code, static_cast<double>(value));
            encoded.expect((again & 0x7fff) > 0x7c00, "%04x, a NaN, encodes to %04x", code, again);
            continue;
        }
        const double magnitude = (code & 0x7fff) == 0x7c00 ? HUGE_VAL : magnitude_of(code & 0x7fff);
        decoded.expect(std::fabs(static_cast<double>(value)) == magnitude && std::signbit(value) == (code >= 0x8000),
                       "%04x is %.9g", code, static_cast<double>(value));
        encoded.expect(again == code, "%04x encodes to %04x", code, again);
    }
    CHECK(decoded);
    CHECK(encoded);
}

TEST_CASE("fp16: ties go to the even code and the floats beside them to the nearer one") {
    Tally tally;
    for (int code = 0; code < 0x7c00; ++code) {
        // The mean of two neighbours has one bit more than they: exact in a float, subnormals included.
        const float tie = static_cast<float>((magnitude_of(code) + magnitude_of(code + 1)) / 2);
        expect_both_signs(tally, tie, code + code % 2);
        expect_both_signs(tally, std::nextafterf(tie, 0.0f), code);
        expect_both_signs(tally, std::nextafterf(tie, INFINITY), code + 1);
    }
    CHECK(tally);
}

TEST_CASE("fp16: random floats go to the nearest code") {
    Random random(2);
    Tally tally;
    for (int i = 0; i < 100000; ++i) {
        // Exponents 2^-28 to 2^18: the whole range and what lies beyond both ends.
        const float value = static_cast<float>(std::ldexp(random.uniform(1.0, 2.0), random.between(-28, 18)));
        expect_both_signs(tally, value, nearest_f16(static_cast<double>(value)));
    }
    CHECK(tally);
}

TEST_CASE("fp16: overflow, underflow and specials") {
    CHECK(f32_to_f16(65504.0f) == 0x7bff);
    CHECK(f32_to_f16(std::nextafterf(65520.0f, 0.0f)) == 0x7bff);
    CHECK(f32_to_f16(65520.0f) == 0x7c00);
    CHECK(f32_to_f16(-FLT_MAX) == 0xfc00);
    CHECK(f32_to_f16(INFINITY) == 0x7c00);
    CHECK(f32_to_f16(-INFINITY) == 0xfc00);
    CHECK(f32_to_f16(0.0f) == 0x0000);
    CHECK(f32_to_f16(-0.0f) == 0x8000);
    CHECK(f32_to_f16(FLT_TRUE_MIN) == 0x0000);
    CHECK(f32_to_f16(-FLT_TRUE_MIN) == 0x8000);
    CHECK(f32_to_f16(0x1p-25f) == 0x0000); // a tie between 0 and the smallest subnormal
    CHECK(f32_to_f16(0x3p-25f) == 0x0002);
    CHECK(f32_to_f16(0x1p-14f) == 0x0400);
    CHECK((f32_to_f16(std::bit_cast<float>(0x7f800001u)) & 0x7fff) > 0x7c00); // a NaN without bits in the upper half
}
