// Rotary tables: golden cosines and rotations, pinned checksums of both V4.1-Flash tables, and what tells them apart.
#include "model/rope_tables.h"

#include "backend/reference/rows.h"
#include "support/safetensors_view.h"

#include <cmath>
#include <doctest/doctest.h>

using namespace ds41;
using namespace ds41::reference;

namespace {

struct Case {
    const char *prefix;
    RopeTable table;
};

// The configurations that rope_tables lists in its metadata.
std::vector<Case> cases() {
    return {{"rope0.", RopeTable::plain(8, 10000.0f)},
            {"rope1.", RopeTable::plain(64, 10000.0f)},
            {"rope2.", RopeTable::yarn(8, 40000.0f, 32, 2.0f, 32.0f, 1.0f)},
            {"rope3.", RopeTable::yarn(64, 160000.0f, 65536, 16.0f, 32.0f, 1.0f)},
            {"rope4.", RopeTable::yarn(16, 100.0f, 4096, 8.0f, 32.0f, 1.0f)}};
}

// FNV-1a over the bits.
std::uint64_t checksum(const RopeTable &table) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const float frequency : table.frequencies())
        for (int byte = 0; byte < 4; ++byte)
            hash = (hash ^ ((float_bits(frequency) >> (8 * byte)) & 0xffu)) * 0x100000001b3u;
    return hash;
}

// One unit in the last place of a bf16 of that size.
float bf16_step(float value) {
    return std::ldexp(1.0f, std::max(std::ilogb(std::fabs(value) + 0x1p-126f), -126) - 7);
}

} // namespace

TEST_CASE("cosines and sines at the golden positions") {
    const test::FixtureFile file("rope_tables");
    for (const Case &c : cases()) {
        const std::string prefix = c.prefix;
        const auto positions = file.get<std::int32_t>(prefix + "positions");
        const auto cosine = file.get<float>(prefix + "cos"), sine = file.get<float>(prefix + "sin");
        REQUIRE(static_cast<int>(cosine.cols()) == c.table.n_pairs());
        for (std::size_t i = 0; i < positions.values.size(); ++i)
            for (int k = 0; k < c.table.n_pairs(); ++k) {
                float re, im;
                c.table.angle(positions.values[i], k, re, im);
                CAPTURE(prefix);
                CAPTURE(positions.values[i]);
                CAPTURE(k);
                const float tolerance =
                    1e-6f * static_cast<float>(1 + positions.values[i]); // a last bit of the frequency
                REQUIRE(std::fabs(re - cosine.row(i)[k]) <= tolerance);
                REQUIRE(std::fabs(im - sine.row(i)[k]) <= tolerance);
            }
    }
}

TEST_CASE("rotation of the tail, forward and inverse, within one bf16 step of the row's largest value") {
    const test::FixtureFile file("rope_tables");
    for (const Case &c : cases()) {
        const std::string prefix = c.prefix;
        const auto positions = file.get<std::int32_t>(prefix + "positions");
        const auto x = file.get<Bf16>(prefix + "x");
        for (const Turn turn : {Turn::kForward, Turn::kInverse}) {
            const auto expected = file.get<Bf16>(prefix + (turn == Turn::kForward ? "rotated" : "rotated_inverse"));
            for (std::size_t i = 0; i < positions.values.size(); ++i) {
                std::vector<Bf16> row(x.row(i), x.row(i) + x.cols());
                rotate(row.data(), static_cast<std::int64_t>(row.size()), c.table, positions.values[i], turn);
                float max = 0.0f;
                for (std::size_t e = 0; e < row.size(); ++e) max = std::max(max, std::fabs(to_f32(expected.row(i)[e])));
                for (std::size_t e = 0; e < row.size(); ++e) {
                    CAPTURE(prefix);
                    CAPTURE(positions.values[i]);
                    CAPTURE(e);
                    REQUIRE(std::fabs(to_f32(row[e]) - to_f32(expected.row(i)[e])) <= bf16_step(max));
                }
            }
        }
    }
}

TEST_CASE("both tables of V4.1-Flash are pinned") {
    const RopeTable plain = RopeTable::plain(64, 10000.0f);
    const RopeTable compressed = RopeTable::yarn(64, 160000.0f, 65536, 16.0f, 32.0f, 1.0f);
    CHECK(checksum(plain) == 12702431137135666215u);
    CHECK(checksum(compressed) == 9709333648947525953u);
}

TEST_CASE("YaRN touches slow pairs only and divides the slowest by the factor") {
    const RopeTable plain = RopeTable::plain(64, 160000.0f);
    const RopeTable yarn = RopeTable::yarn(64, 160000.0f, 65536, 16.0f, 32.0f, 1.0f);
    // d(32) = 15.5 and d(1) = 24.7: pairs up to 15 turn often enough to stay, from 25 on they are stretched whole.
    for (std::size_t k = 0; k <= 15; ++k) CHECK(yarn.frequencies()[k] == plain.frequencies()[k]);
    for (std::size_t k = 16; k < 25; ++k) {
        CHECK(yarn.frequencies()[k] < plain.frequencies()[k]);
        CHECK(yarn.frequencies()[k] > plain.frequencies()[k] / 16.0f);
    }
    for (std::size_t k = 25; k < 32; ++k) CHECK(yarn.frequencies()[k] == plain.frequencies()[k] / 16.0f);
}

TEST_CASE("YaRN's upper bound is the rotated width less one, not half of it") {
    // d(1) = 52 here: clamped at half, 31, the ramp would be steeper.
    const RopeTable yarn = RopeTable::yarn(64, 100.0f, 65536, 16.0f, 32.0f, 1.0f);
    const RopeTable plain = RopeTable::plain(64, 100.0f);
    const double low = std::floor(64 * std::log(65536 / (32 * 2 * M_PI)) / (2 * std::log(100.0)));
    const double high = 63; // d(1) is 64.3
    const double ramp = (31.0 - low) / (high - low);
    REQUIRE(low < 63.0);
    const double expected = ramp <= 0.0
                                ? plain.frequencies()[31]
                                : plain.frequencies()[31] / 16.0 * ramp + plain.frequencies()[31] * (1.0 - ramp);
    CHECK(yarn.frequencies()[31] == doctest::Approx(expected).epsilon(1e-6));
}

TEST_CASE("an original length of 0 switches YaRN off") {
    CHECK(RopeTable::yarn(64, 160000.0f, 0, 16.0f, 32.0f, 1.0f).frequencies() ==
          RopeTable::plain(64, 160000.0f).frequencies());
}

TEST_CASE("pairs are adjacent values and only the tail turns") {
    const RopeTable table = RopeTable::plain(4, 10000.0f);
    std::vector<Bf16> row(8);
    for (std::size_t e = 0; e < row.size(); ++e) row[e] = to_bf16(static_cast<float>(e + 1));
    rotate(row.data(), 8, table, 1, Turn::kForward);
    for (std::size_t e = 0; e < 4; ++e) CHECK(to_f32(row[e]) == static_cast<float>(e + 1));
    CHECK(to_f32(row[4]) == round_bf16(5.0f * std::cos(1.0f) - 6.0f * std::sin(1.0f)));
    CHECK(to_f32(row[5]) == round_bf16(5.0f * std::sin(1.0f) + 6.0f * std::cos(1.0f)));
}

TEST_CASE("angles at the far end are those of an f32 product") {
    const RopeTable table = RopeTable::plain(64, 10000.0f);
    for (const std::int64_t pos : {std::int64_t{1048575}, std::int64_t{999983}}) {
        for (int k = 0; k < 32; ++k) {
            float re, im;
            table.angle(pos, k, re, im);
            const float angle = static_cast<float>(pos) * table.frequencies()[static_cast<std::size_t>(k)];
            CHECK(re == static_cast<float>(std::cos(static_cast<double>(angle))));
            CHECK(im == static_cast<float>(std::sin(static_cast<double>(angle))));
        }
    }
}
