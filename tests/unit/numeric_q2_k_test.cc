// Q2_K rows: decoding and the product with q8_1 rows against a second derivation that goes element by element through
// the block's definition and gives each element to the lane and plane that own it, and against the shared fixture bit
// for bit.
#include "numeric/q2_k.h"

#include "support/compare.h"
#include "support/random.h"
#include "support/safetensors_view.h"

#include <doctest/doctest.h>

using namespace ds41;
using namespace ds41::test;

namespace {

using Bytes = std::vector<std::uint8_t>;

// One element of a block as the definition names it.
struct Element {
    int code, scale, min;
};

Element element(const std::uint8_t *block, int e) {
    const int h = e / 128, i = e % 128 / 32, r = e % 32, t = 8 * h + 2 * i + r / 16;
    return {(block[16 + 32 * h + r] >> (2 * i)) % 4, block[t] % 16, block[t] / 16};
}

float half_at(const std::uint8_t *bytes) {
    return f16_to_f32(static_cast<std::uint16_t>(bytes[0] + 256 * bytes[1]));
}

// Both products and their difference are exact in double (a 10-bit mantissa times 45, exponents 40 apart): one
// rounding.
float decoded_element(const std::uint8_t *row, int e) {
    const std::uint8_t *block = row + e / 256 * 84;
    const Element el = element(block, e % 256);
    return static_cast<float>(static_cast<double>(half_at(block + 80)) * el.scale * el.code -
                              static_cast<double>(half_at(block + 82)) * el.min);
}

// The product. Integer parts by element; then the order of f32 operations that the fixture's notes state.
float derived_dot(const std::uint8_t *row, const Q8Block *x, int k) {
    float lanes[32] = {};
    for (int b = 0; b < k / 256; ++b) {
        const std::uint8_t *block = row + b * 84;
        std::int64_t a[16][4] = {}, m[16][4] = {};
        for (int e = 0; e < 256; ++e) {
            const Element el = element(block, e);
            const int owner = (e / 128 * 32 + e % 32) / 4, plane = e % 128 / 32; // four code bytes to a lane
            const int act = x[8 * b + e / 32].codes[e % 32];
            a[owner][plane] += el.scale * el.code * act;
            m[owner][plane] += el.min * act;
        }
        for (int j = 0; j < 16; ++j) {
            float sum_a = 0, sum_m = 0;
            for (int i = 0; i < 4; ++i) {
                const float d8 = f16_to_f32(x[8 * b + 4 * (j / 8) + i].d);
                const float term_a = d8 * static_cast<float>(a[j][i]), term_m = d8 * static_cast<float>(m[j][i]);
                sum_a = sum_a + term_a;
                sum_m = sum_m + term_m;
            }
            const float scaled = half_at(block + 80) * sum_a, lowered = half_at(block + 82) * sum_m;
            const float value = scaled - lowered;
            lanes[16 * (b % 2) + j] = lanes[16 * (b % 2) + j] + value;
        }
    }
    // The butterfly leaves the same sum in every lane: float addition commutes. Folding in halves is the same tree.
    for (int n = 16; n > 0; n /= 2)
        for (int l = 0; l < n; ++l) lanes[l] = lanes[l] + lanes[l + n];
    return lanes[0];
}

// Random bytes; d and dmin finite, of any sign and size but the largest: the products of a row stay finite.
Bytes random_row(Random &random, int k) {
    Bytes row;
    for (int b = 0; b < k / 256; ++b) {
        for (int i = 0; i < 80; ++i) row.push_back(random.byte());
        for (int i = 0; i < 2; ++i) {
            const int half = random.below(0x7000) | random.below(2) << 15;
            row.push_back(static_cast<std::uint8_t>(half & 255));
            row.push_back(static_cast<std::uint8_t>(half >> 8));
        }
    }
    return row;
}

std::vector<Q8Block> random_activations(Random &random, int k) {
    std::vector<Q8Block> x(static_cast<std::size_t>(k / 32));
    for (Q8Block &block : x) {
        block.d = static_cast<std::uint16_t>(random.below(8) == 0 ? random.below(0x400) : random.below(0x4000));
        for (std::int8_t &code : block.codes) code = static_cast<std::int8_t>(random.between(-127, 127));
    }
    return x;
}

// A block with d = 1, dmin = 1/2 and all else zero.
Bytes plain_block() {
    Bytes block(84, 0);
    block[81] = 0x3c;
    block[83] = 0x38;
    return block;
}

} // namespace

TEST_CASE("q2_k: each bit of a block reaches its elements") {
    CHECK(kQ2KBlock == 256);
    CHECK(kQ2KBytes == 84);
    Tally tally;
    std::vector<float> out(256), expected(256);
    // One code, with scale 1 everywhere.
    for (int byte = 0; byte < 64; ++byte) {
        for (int plane = 0; plane < 4; ++plane) {
            Bytes block = plain_block();
            std::fill_n(block.begin(), 16, std::uint8_t{1});
            block[static_cast<std::size_t>(16 + byte)] = static_cast<std::uint8_t>(3 << (2 * plane));
            decode_q2_k_row(block.data(), 256, out.data());
            const int at = 128 * (byte / 32) + 32 * plane + byte % 32;
            for (int e = 0; e < 256; ++e)
                tally.expect(out[static_cast<std::size_t>(e)] == (e == at ? 3.0f : 0.0f),
                             "byte %d plane %d: element %d is %g", byte, plane, e,
                             static_cast<double>(out[static_cast<std::size_t>(e)]));
        }
    }
    // One scale and min, with code 2 everywhere: 16 neighbours have 2 * 5 - 0.5 * 3.
    for (int t = 0; t < 16; ++t) {
        Bytes block = plain_block();
        std::fill_n(block.begin() + 16, 64, std::uint8_t{0xaa});
        block[static_cast<std::size_t>(t)] = 0x35;
        decode_q2_k_row(block.data(), 256, out.data());
        for (int e = 0; e < 256; ++e)
            tally.expect(out[static_cast<std::size_t>(e)] == (e / 16 == t ? 8.5f : 0.0f), "scale %d: element %d is %g",
                         t, e, static_cast<double>(out[static_cast<std::size_t>(e)]));
    }
    CHECK(tally);
}

TEST_CASE("q2_k: random bytes decode by the definition, from any address") {
    Random random(10);
    for (int i = 0; i < 40; ++i) {
        const int k = 256 * random.between(1, 5);
        Bytes row = random_row(random, k);
        std::vector<float> expected, out(static_cast<std::size_t>(k));
        for (int e = 0; e < k; ++e) expected.push_back(decoded_element(row.data(), e));
        decode_q2_k_row(row.data(), k, out.data());
        CHECK(same_bits(out, expected));

        row.insert(row.begin(), 0xff);
        decode_q2_k_row(row.data() + 1, k, out.data());
        CHECK(same_bits(out, expected));
    }
}

TEST_CASE("q2_k: products of random bytes equal the derived order of operations") {
    Random random(11);
    std::vector<float> expected, out;
    for (int i = 0; i < 300; ++i) {
        const int k = 256 * random.between(1, 7);
        Bytes row = random_row(random, k);
        const std::vector<Q8Block> x = random_activations(random, k);
        expected.push_back(derived_dot(row.data(), x.data(), k));
        row.insert(row.begin(), 0xff); // an odd address half of the time, whatever the allocator gives
        out.push_back(dot_q2_k(row.data() + 1, x.data(), k));
    }
    CHECK(same_bits(out, expected));
}

TEST_CASE("q2_k: a product is near the sum of its decoded factors") {
    // Against double: f32 sums of k/2 terms and a subtraction, each rounding at most 2^-24 of the magnitudes that meet.
    Random random(12);
    for (int i = 0; i < 100; ++i) {
        const int k = 256 * random.between(1, 7);
        const Bytes row = random_row(random, k);
        const std::vector<Q8Block> x = random_activations(random, k);
        double sum = 0, magnitude = 0;
        for (int e = 0; e < k; ++e) {
            const std::uint8_t *block = row.data() + e / 256 * 84;
            const Element el = element(block, e % 256);
            const Q8Block &act = x[static_cast<std::size_t>(e / 32)];
            const double factor = static_cast<double>(f16_to_f32(act.d)) * act.codes[e % 32];
            const double scaled = static_cast<double>(half_at(block + 80)) * el.scale * el.code;
            const double lowered = static_cast<double>(half_at(block + 82)) * el.min;
            sum += (scaled - lowered) * factor;
            magnitude += (std::fabs(scaled) + std::fabs(lowered)) * std::fabs(factor);
        }
        const double error = std::fabs(static_cast<double>(dot_q2_k(row.data(), x.data(), k)) - sum);
        CAPTURE(k);
        CHECK(error <= magnitude * 20 * 0x1p-24); // at most 4 + 2 + k/512 + 5 roundings lie on one term's way
    }
}

TEST_CASE("q2_k: zero activations, and an activation block that is NaN") {
    Random random(13);
    const Bytes row = random_row(random, 512);
    std::vector<Q8Block> x(16);
    CHECK(dot_q2_k(row.data(), x.data(), 512) == 0.0f);
    x[9].d = 0x7e00;
    CHECK(std::isnan(dot_q2_k(row.data(), x.data(), 512)));
}

TEST_CASE("q2_k: fixture products, bit for bit") {
    const FixtureFile file("quant_linear");
    for (const std::string name : {"q2k_0.", "q2k_1.", "q2k_2."}) {
        CAPTURE(name);
        const Array<std::uint8_t> weight = file.get<std::uint8_t>(name + "weight");
        const Array<Bf16> x = file.get<Bf16>(name + "x");
        const int k = static_cast<int>(x.cols());

        const Array<float> expected_decoded = file.get<float>(name + "decoded");
        std::vector<float> decoded(expected_decoded.values.size());
        for (std::size_t r = 0; r < weight.rows(); ++r)
            decode_q2_k_row(weight.row(r), k, decoded.data() + r * x.cols());
        CHECK(same_bits(decoded, expected_decoded.values, expected_decoded.shape));

        const Array<float> expected_f32 = file.get<float>(name + "out_f32");
        std::vector<float> out_f32, derived;
        std::vector<Bf16> out;
        std::vector<Q8Block> blocks(x.cols() / 32);
        for (std::size_t t = 0; t < x.rows(); ++t) {
            quantise_q8(x.row(t), k, blocks.data());
            for (std::size_t r = 0; r < weight.rows(); ++r) {
                out_f32.push_back(dot_q2_k(weight.row(r), blocks.data(), k));
                out.push_back(to_bf16(out_f32.back()));
                derived.push_back(derived_dot(weight.row(r), blocks.data(), k));
            }
        }
        CHECK(same_bits(out_f32, expected_f32.values, expected_f32.shape));
        CHECK(same_bits(derived, expected_f32.values, expected_f32.shape));
        CHECK(same_bits(out, file.get<Bf16>(name + "out").values, expected_f32.shape));
    }
}
