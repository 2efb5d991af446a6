// bf16 against its definition: the nearest of all bf16 values, of two equally near ones that with the even code.
#include "numeric/bf16.h"

#include "support/compare.h"
#include "support/random.h"
#include "support/safetensors_view.h"

#include <doctest/doctest.h>

using namespace ds41;
using namespace ds41::test;

namespace {

float from_bits(std::uint32_t bits) {
    return std::bit_cast<float>(bits);
}

// Value of the magnitude code 0 to 0x7f80; infinity stands at 2^128, where rounding meets it.
double magnitude_of(std::uint32_t code) {
    const int exponent = static_cast<int>(code >> 7), mantissa = static_cast<int>(code & 127);
    return exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134);
}

// The search: the code at or below |value| by its leading bits, or its upper neighbour.
std::uint16_t nearest_bf16(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = bits >> 31 << 15;
    const std::uint32_t below = bits >> 16 & 0x7fff;
    if (below == 0x7f80) return static_cast<std::uint16_t>(sign | below);
    const double target = std::fabs(static_cast<double>(value));
    const double down = target - magnitude_of(below), up = magnitude_of(below + 1) - target;
    const bool take_upper = up < down || (up == down && below % 2 == 1);
    return static_cast<std::uint16_t>(sign | (take_upper ? below + 1 : below));
}

void expect_nearest(Tally &tally, std::uint32_t bits) {
    const float value = from_bits(bits);
    const std::uint16_t code = to_bf16(value).bits;
    if (std::isnan(value)) {
        tally.expect((code & 0x7fff) > 0x7f80 && (code & 0x40) != 0, "%08x, a NaN, gives %04x", bits, code);
        return;
    }
    const std::uint16_t nearest = nearest_bf16(value);
    tally.expect(code == nearest, "%08x (%.9g) gives %04x, nearest is %04x", bits, static_cast<double>(value), code,
                 nearest);
    const float rounded = round_bf16(value);
    tally.expect(std::bit_cast<std::uint32_t>(rounded) == static_cast<std::uint32_t>(nearest) << 16,
                 "round_bf16 of %08x (%.9g) is %.9g", bits, static_cast<double>(value), static_cast<double>(rounded));
}

} // namespace

TEST_CASE("bf16: every code decodes to its value and encodes to itself") {
    Tally decoded, encoded;
    for (std::uint32_t code = 0; code < 0x10000; ++code) {
        const Bf16 bf16{static_cast<std::uint16_t>(code)};
        const float value = to_f32(bf16);
        const std::uint16_t again = to_bf16(value).bits;
        if ((code & 0x7fff) > 0x7f80) {
            decoded.expect(std::isnan(value), "%04x is %.9g, not NaN", code, static_cast<double>(value));
            encoded.expect(again == (code | 0x40), "%04x, a NaN, encodes to %04x", code, again);
            continue;
        }
        const bool infinite = (code & 0x7fff) == 0x7f80;
        const double magnitude = infinite ? HUGE_VAL : magnitude_of(code & 0x7fff);
        decoded.expect(std::fabs(static_cast<double>(value)) == magnitude && std::signbit(value) == (code >> 15 != 0),
                       "%04x is %.9g", code, static_cast<double>(value));
        encoded.expect(again == code, "%04x encodes to %04x", code, again);
    }
    CHECK(decoded);
    CHECK(encoded);
}

TEST_CASE("bf16: rounds to nearest, ties to even, for every upper half and the lower halves around a tie") {
    Random random(1);
    Tally tally;
    for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
        for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
            expect_nearest(tally, upper << 16 | lower);
        for (int i = 0; i < 3; ++i)
            expect_nearest(tally, upper << 16 | static_cast<std::uint32_t>(random.bits() >> 48));
    }
    CHECK(tally);
}

TEST_CASE("bf16: rounds to nearest over all floats, every 8191st") {
    Tally tally;
    for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 8191)
        expect_nearest(tally, static_cast<std::uint32_t>(bits));
    CHECK(tally);
}

TEST_CASE("bf16: named values") {
    CHECK(to_bf16(1.0f).bits == 0x3f80);
    CHECK(to_bf16(-1.0f).bits == 0xbf80);
    CHECK(to_bf16(0.0f).bits == 0x0000);
    CHECK(to_bf16(-0.0f).bits == 0x8000);
    CHECK(to_bf16(1.0f + 0x1p-8f).bits == 0x3f80);        // a tie: the even code is below
    CHECK(to_bf16(1.0f + 0x3p-8f).bits == 0x3f82);        // a tie: the even code is above
    CHECK(to_bf16(from_bits(0x7f7f7fff)).bits == 0x7f7f); // just below the tie with 2^128
    CHECK(to_bf16(from_bits(0x7f7f8000)).bits == 0x7f80); // on it: infinity
    CHECK(to_bf16(-INFINITY).bits == 0xff80);
    CHECK(to_bf16(0x1p-133f).bits == 0x0001); // the smallest subnormal stays
    CHECK(to_bf16(0x1p-134f).bits == 0x0000); // half of it is a tie with 0
    CHECK(to_bf16(from_bits(0x00008001)).bits == 0x0001);
    CHECK(std::isnan(to_f32(to_bf16(from_bits(0x7f800001))))); // a NaN whose upper half alone would read as infinity
    CHECK(std::isnan(to_f32(to_bf16(from_bits(0xffffffff))))); // a NaN that a carry would turn into zero
}

TEST_CASE("bf16: fixture table, bit for bit") {
    const FixtureFile file("quant_tables");
    const auto in = file.get<float>("bf16.in");
    std::vector<Bf16> rounded;
    for (const float value : in.values) rounded.push_back(to_bf16(value));
    CHECK(same_bits(rounded, file.get<Bf16>("bf16.out").values));
}
