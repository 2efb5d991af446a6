// q8_1 activation rows: codes by division with halves away from zero, the scale rounded to fp16 afterwards.
#include "numeric/q8.h"

#include "support/compare.h"
#include "support/random.h"
#include "support/safetensors_view.h"

#include <doctest/doctest.h>

using namespace ds41;
using namespace ds41::test;

namespace {

using Row = std::vector<Bf16>;

// fp16 by its definition, in double: a multiple of the local step, ties to the even multiple, infinity from 65520 on.
std::uint16_t nearest_f16(double value) {
    const int exponent = value == 0 ? -14 : std::max(std::ilogb(value), -14);
    const double step = std::ldexp(1.0, exponent - 10);
    const double multiple = std::nearbyint(value / step); // 1024 to 2048 when normal
    const double code = multiple + (exponent + 14) * 1024.0;
    return static_cast<std::uint16_t>(std::min(code, 31744.0));
}

void expect_block(Tally &tally, const Bf16 *x, const Q8Block &block) {
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(static_cast<float>(as_double(x[i]))));
    const float d = amax / 127;
    const int expected_d = nearest_f16(static_cast<double>(d));
    tally.expect(block.d == expected_d, "amax %.9g has d %04x, expected %04x", static_cast<double>(amax), block.d,
                 expected_d);
    for (int i = 0; i < 32; ++i) {
        const float quotient = amax == 0 ? 0.0f : static_cast<float>(as_double(x[i])) / d;
        const double away = std::floor(std::fabs(static_cast<double>(quotient)) + 0.5);
        const int code = static_cast<int>(std::signbit(quotient) ? -away : away);
        tally.expect(block.codes[i] == code, "%.9g with amax %.9g has code %d, expected %d", as_double(x[i]),
                     static_cast<double>(amax), block.codes[i], code);
    }
}

Row block_of(std::initializer_list<float> values) {
    Row row;
    for (const float value : values) row.push_back(to_bf16(value));
    row.resize(32, Bf16{0});
    return row;
}

Q8Block quantised(const Row &row) {
    Q8Block block{};
    quantise_q8(row.data(), 32, &block);
    return block;
}

} // namespace

TEST_CASE("q8: random rows against the definition") {
    Random random(8);
    Tally tally;
    for (int r = 0; r < 300; ++r) {
        Row row;
        for (int b = 0; b < 8; ++b)
            for (const Bf16 value : random.bf16_row(32, std::ldexp(1.0, random.between(-40, 30)))) row.push_back(value);
        std::vector<Q8Block> blocks(8);
        quantise_q8(row.data(), 256, blocks.data());
        for (std::size_t b = 0; b < 8; ++b) expect_block(tally, row.data() + 32 * b, blocks[b]);
    }
    CHECK(tally);
}

TEST_CASE("q8: every bf16 value as the largest of its block") {
    Tally tally;
    for (std::uint32_t code = 0; code < 0x7f80; ++code) {
        // Beside it values of every size down to 2^-31 of it, both signs.
        Row row;
        const double largest = as_double(Bf16{static_cast<std::uint16_t>(code)});
        for (int i = 0; i < 32; ++i)
            row.push_back(to_bf16(static_cast<float>((i % 2 == 0 ? largest : -largest) * (32 - i) / 32)));
        expect_block(tally, row.data(), quantised(row));
    }
    CHECK(tally);
}

TEST_CASE("q8: halves go away from zero") {
    // amax 127: d is 1, so the values are the quotients.
    const Q8Block block =
        quantised(block_of({127.0f, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, -2.5f, 62.5f, -63.5f, 0.498046875f, -127.0f}));
    const std::vector<std::int8_t> expected = {127, 1, -1, 2, -2, 3, -3, 63, -64, 0, -127};
    CHECK(same_bits(std::vector<std::int8_t>(block.codes, block.codes + 11), expected));
    CHECK(block.d == 0x3c00);
}

TEST_CASE("q8: codes come from the division, not from a reciprocal, and from the scale before its rounding") {
    // Search for values on which the shortcuts disagree, so that the case does not depend on luck, and demand the
    // division.
    int n_reciprocal = 0, n_rounded = 0;
    for (int a = 128; a < 256; ++a) {
        const float amax = static_cast<float>(a), d = amax / 127, inverse = 1 / d;
        for (int v = 128; v < 256; ++v) {
            for (int shift = -6; shift <= 0; ++shift) {
                const float x = std::ldexp(static_cast<float>(v), shift);
                if (x > amax) continue;
                const int by_division = static_cast<int>(std::round(x / d));
                const int by_reciprocal = static_cast<int>(std::round(x * inverse));
                const int by_rounded = static_cast<int>(std::round(x / f16_to_f32(f32_to_f16(d))));
                if (by_division == by_reciprocal && by_division == by_rounded) continue;
                n_reciprocal += by_division != by_reciprocal;
                n_rounded += by_division != by_rounded;
                const Q8Block block = quantised(block_of({amax, x, -x}));
                CAPTURE(amax);
                CAPTURE(x);
                CHECK(int{block.codes[1]} == by_division);
                CHECK(int{block.codes[2]} == -by_division);
            }
        }
    }
    CHECK(n_reciprocal > 0);
    CHECK(n_rounded > 0);
}

TEST_CASE("q8: zero blocks, scales that vanish in fp16, and scales beyond it") {
    Q8Block block = quantised(block_of({0.0f, -0.0f}));
    CHECK(block.d == 0);
    for (const std::int8_t code : block.codes) CHECK(code == 0);

    block = quantised(block_of({0x1p-30f, -0x1p-31f})); // d is 2^-37: 0 in fp16, while the codes are as ever
    CHECK(block.d == 0);
    CHECK(block.codes[0] == 127);
    CHECK(block.codes[1] == -64);

    block = quantised(block_of({127.0f * 0x1p-24f})); // the smallest fp16
    CHECK(block.d == 0x0001);
    block = quantised(block_of({127.0f * 0x1p-25f})); // a tie with 0
    CHECK(block.d == 0x0000);

    block = quantised(block_of({-0x1p-133f})); // the smallest bf16
    CHECK(block.d == 0);
    CHECK(block.codes[0] == -127);

    block = quantised(block_of({3e38f, 1e38f}));
    CHECK(block.d == 0x7c00);
    CHECK(block.codes[0] == 127);
}

TEST_CASE("q8: a block that holds a NaN or an infinity has a NaN scale, its neighbours are untouched") {
    Random random(9);
    for (const unsigned special : {0x7f80u, 0xff80u, 0x7f81u, 0x7fc0u, 0xffffu}) {
        CAPTURE(special);
        Row row = random.bf16_row(96, 2.0);
        std::vector<Q8Block> clean(3), blocks(3);
        quantise_q8(row.data(), 96, clean.data());
        row[45] = Bf16{static_cast<std::uint16_t>(special)};
        quantise_q8(row.data(), 96, blocks.data());
        CHECK(std::isnan(f16_to_f32(blocks[1].d)));
        for (const std::size_t b : {0u, 2u}) {
            CHECK(blocks[b].d == clean[b].d);
            CHECK(std::equal(blocks[b].codes, blocks[b].codes + 32, clean[b].codes));
        }
    }
}

TEST_CASE("q8: fixture rows, bit for bit") {
    const FixtureFile file("quant_linear");
    for (const std::string name : {"q2k_0.", "q2k_1.", "q2k_2."}) {
        CAPTURE(name);
        const Array<Bf16> x = file.get<Bf16>(name + "x");
        const Array<std::int8_t> expected_codes = file.get<std::int8_t>(name + "act_code");
        const Array<std::uint16_t> expected_scales = file.get<std::uint16_t>(name + "act_scale");
        std::vector<std::int8_t> codes;
        std::vector<std::uint16_t> scales;
        std::vector<Q8Block> blocks(x.cols() / 32);
        for (std::size_t r = 0; r < x.rows(); ++r) {
            quantise_q8(x.row(r), static_cast<int>(x.cols()), blocks.data());
            for (const Q8Block &block : blocks) {
                codes.insert(codes.end(), block.codes, block.codes + 32);
                scales.push_back(block.d);
            }
        }
        CHECK(same_bits(codes, expected_codes.values, expected_codes.shape));
        CHECK(same_bits(scales, expected_scales.values, expected_scales.shape));
    }
}
