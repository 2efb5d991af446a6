// The three packed rows against a second definition of their quantisers, in double, that knows neither bits nor codes
// of the library: a value is divided by the scale (IEEE single), rounded to a multiple of the format's local step, and
// multiplied back. Also: layout, losslessness, edges. The golden tables are in numeric_rows_golden_test.cc.
#include "numeric/rows.h"

#include "support/compare.h"
#include "support/random.h"

#include <doctest/doctest.h>

using namespace ds41;
using namespace ds41::test;

namespace {

using Row = std::vector<Bf16>;
using Bytes = std::vector<std::uint8_t>;

// Nearest multiple of the step that the format has at |value|; even multiples are even codes, in both formats.
double to_e4m3(double value) {
    const int exponent = value == 0 ? -6 : std::max(std::ilogb(value), -6);
    const double step = std::ldexp(1.0, exponent - 3);
    return std::copysign(std::min(std::nearbyint(std::fabs(value) / step) * step, 448.0), value);
}
double to_e2m1(double value) {
    const double magnitude = std::fabs(value);
    const double step = magnitude < 2 ? 0.5 : magnitude < 4 ? 1.0 : 2.0;
    return std::copysign(std::min(std::nearbyint(magnitude / step) * step, 6.0), value);
}
// Smallest power of two >= value, from a log corrected both ways.
double power_above(double value) {
    double power = std::exp2(std::ceil(std::log2(value)));
    while (power < value) power *= 2;
    while (power / 2 >= value) power /= 2;
    return power;
}
float divide(double a, double b) {
    return static_cast<float>(a) / static_cast<float>(b);
}

double window_scale(double amax) {
    return power_above(divide(std::max(amax, static_cast<double>(1e-4f)), 448));
}
double compressed_scale(double amax) {
    return to_e4m3(divide(std::max(amax, std::ldexp(6, -9)), 6));
}
double index_key_scale(double amax) {
    return power_above(divide(std::max(amax, std::ldexp(6, -126)), 6));
}

struct Kind {
    const char *name;
    int block;
    int production; // row length of DeepSeek-V4.1-Flash
    std::size_t production_bytes;
    bool nibbles;
    double largest; // of the format
    double smallest_scale;
    std::size_t (*row_bytes)(int);
    void (*pack)(const Bf16 *, int, std::uint8_t *);
    void (*unpack)(const std::uint8_t *, int, Bf16 *);
    double (*scale)(double amax);
    double (*round)(double);
    float (*decode_scale)(std::uint8_t);
};

const Kind kKinds[] = {
    {"window", 32, 512, 528, false, 448, 0x1p-22, window_row_bytes, pack_window_row, unpack_window_row, window_scale,
     to_e4m3, ue8m0_to_f32},
    {"compressed", 16, 512, 288, true, 6, 0x1p-9, compressed_row_bytes, pack_compressed_row, unpack_compressed_row,
     compressed_scale, to_e2m1, e4m3_to_f32},
    {"index key", 32, 128, 68, true, 6, 0x1p-126, index_key_row_bytes, pack_index_key_row, unpack_index_key_row,
     index_key_scale, to_e2m1, ue8m0_to_f32},
};

int length(const Row &row) {
    return static_cast<int>(row.size());
}

// Packed twice at an odd address, over zeros and over ones: no byte depends on alignment or on what was there before,
// and the guards around the row survive.
Bytes pack(const Kind &kind, const Row &row) {
    const std::ptrdiff_t n_bytes = static_cast<std::ptrdiff_t>(kind.row_bytes(length(row)));
    Bytes packed[2];
    for (const int ones : {0, 1}) {
        const std::uint8_t fill = ones ? 0xff : 0x00;
        Bytes memory(static_cast<std::size_t>(n_bytes) + 4, fill);
        const auto start =
            memory.begin() + 1 + static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(memory.data()) % 2);
        kind.pack(row.data(), length(row), &*start);
        packed[ones].assign(start, start + n_bytes);
        std::fill(start, start + n_bytes, fill);
        REQUIRE(same_bits(memory, Bytes(memory.size(), fill)));
    }
    REQUIRE(same_bits(packed[1], packed[0]));
    return packed[0];
}

Row unpack(const Kind &kind, const Bytes &bytes, int n) {
    Bytes memory(bytes.size() + 3);
    const std::size_t start = 1 + reinterpret_cast<std::uintptr_t>(memory.data()) % 2;
    std::copy(bytes.begin(), bytes.end(), memory.begin() + static_cast<std::ptrdiff_t>(start));
    const Bf16 guard{0x7fc5};
    Row row(static_cast<std::size_t>(n) + 2, guard);
    kind.unpack(memory.data() + start, n, row.data() + 1);
    CHECK(row.front().bits == guard.bits);
    CHECK(row.back().bits == guard.bits);
    return Row(row.begin() + 1, row.end() - 1);
}

// Quantise and dequantise by the second definition. The final rounding to bf16 is exact but where the product leaves
// the range; to_bf16 has its own test.
Row round_trip(const Kind &kind, const Row &row) {
    Row result;
    for (std::size_t start = 0; start < row.size(); start += static_cast<std::size_t>(kind.block)) {
        double amax = 0;
        for (int i = 0; i < kind.block; ++i)
            amax = std::max(amax, std::fabs(as_double(row[start + static_cast<std::size_t>(i)])));
        const double scale = kind.scale(amax);
        for (int i = 0; i < kind.block; ++i) {
            const float quotient = divide(as_double(row[start + static_cast<std::size_t>(i)]), scale);
            result.push_back(to_bf16(static_cast<float>(kind.round(static_cast<double>(quotient)) * scale)));
        }
    }
    return result;
}

void check_row(const Kind &kind, const Row &row) {
    const Bytes packed = pack(kind, row);
    const Row unpacked = unpack(kind, packed, length(row));
    CHECK(same_bits(unpacked, round_trip(kind, row)));
}

Row filled(int n, float value) {
    return Row(static_cast<std::size_t>(n), to_bf16(value));
}

// Magnitudes from the floors of all three kinds to where products overflow, each with some zeros and outliers.
Row random_row(Random &random, int n, int block) {
    Row row;
    for (int b = 0; b < n / block; ++b) {
        const double magnitude =
            std::ldexp(1.0, random.below(4) > 0 ? random.between(-16, 14) : random.between(-140, 118));
        for (const Bf16 value : random.bf16_row(block, magnitude)) row.push_back(value);
        if (random.below(4) == 0) row.back() = to_bf16(random.below(2) > 0 ? 0.0f : -0.0f);
    }
    return row;
}

} // namespace

TEST_CASE("rows: sizes") {
    for (const Kind &kind : kKinds) {
        CAPTURE(kind.name);
        CHECK(kind.row_bytes(kind.production) == kind.production_bytes);
        for (int n = kind.block; n <= 1024; n += kind.block)
            CHECK(kind.row_bytes(n) == static_cast<std::size_t>((kind.nibbles ? n / 2 : n) + n / kind.block));
    }
    CHECK(index_key_row_bytes(512) == 272);
}

TEST_CASE("rows: random rows unpack to their bf16 round trip") {
    for (const Kind &kind : kKinds) {
        CAPTURE(kind.name);
        Random random(5);
        for (int i = 0; i < 400; ++i)
            check_row(kind, random_row(random, kind.block * random.between(1, 8), kind.block));
        for (int i = 0; i < 20; ++i) check_row(kind, random_row(random, kind.production, kind.block));
    }
}

TEST_CASE("rows: every bf16 value as the largest of its block, with ties of its scale beside it") {
    // The values beside it are quarters of the scale times odd numbers: midpoints of e2m1, some of e4m3, and exact
    // values.
    for (const Kind &kind : kKinds) {
        CAPTURE(kind.name);
        Row row;
        for (std::uint32_t code = 0; code < 0x7f80; code += kind.nibbles ? 1u : 2u) {
            const Bf16 largest{static_cast<std::uint16_t>(code)};
            const double scale = kind.scale(as_double(largest));
            row.push_back(largest);
            for (int i = 1; i < kind.block; ++i) {
                const double multiple = kind.nibbles ? 0.25 * i : i < 16 ? 0.5 * i : std::ldexp(2 * i + 1, i % 8 - 14);
                const double value = std::min(multiple * scale, as_double(largest));
                row.push_back(to_bf16(static_cast<float>(i % 2 == 0 ? value : -value)));
            }
        }
        check_row(kind, row);
    }
}

TEST_CASE("rows: all values of the formats at all scales that the packers write unpack to their product") {
    // Window 2^-22 to 2^120, compressed the positive e4m3 codes, index key 2^-126 to 2^126 (6 times it may overflow).
    const int first[] = {105, 1, 1}, last[] = {247, 0x7e, 253};
    for (int k = 0; k < 3; ++k) {
        const Kind &kind = kKinds[k];
        CAPTURE(kind.name);
        const int n_codes = kind.nibbles ? 16 : 256;
        Bytes packed;
        Row expected;
        const int n = n_codes * (kind.nibbles ? 2 : 1); // 32 or 256: every format's block divides it
        for (int scale = first[k]; scale <= last[k]; ++scale) {
            packed.clear();
            expected.clear();
            for (int i = 0; i < n; ++i) {
                const int code = i % n_codes;
                const double value = kind.nibbles ? static_cast<double>(e2m1_to_f32(static_cast<std::uint8_t>(code)))
                                                  : static_cast<double>(e4m3_to_f32(static_cast<std::uint8_t>(code)));
                const double factor = static_cast<double>(kind.decode_scale(static_cast<std::uint8_t>(scale)));
                expected.push_back(to_bf16(static_cast<float>(value * factor)));
                if (!kind.nibbles)
                    packed.push_back(static_cast<std::uint8_t>(code));
                else if (i % 2 == 0)
                    packed.push_back(static_cast<std::uint8_t>(code | (code + 1) << 4));
            }
            packed.insert(packed.end(), static_cast<std::size_t>(n / kind.block), static_cast<std::uint8_t>(scale));
            CAPTURE(scale);
            CHECK(same_bits(unpack(kind, packed, n), expected));
        }
    }
}

TEST_CASE("rows: packing what was unpacked gives the same bytes") {
    // A block keeps its scale if its largest code says so: above half of the format's range for a power-of-two scale,
    // the very top for an e4m3 one; or if the scale is the floor already. Else the power-of-two kinds choose the next
    // smaller scale and the doubled codes, which is the same row of values. (An e4m3 scale near its floor may lose
    // some: rows are packed once, from what the forward computed.)
    for (const Kind &kind : kKinds) {
        CAPTURE(kind.name);
        Random random(6);
        const bool power_scale = kind.decode_scale == ue8m0_to_f32;
        int n_stable = 0;
        for (int i = 0; i < 2000; ++i) {
            const Row row = random.bf16_row(kind.block, std::ldexp(1.0, random.between(-20, 20)));
            const Bytes once = pack(kind, row);
            const Row values = unpack(kind, once, kind.block);
            const Bytes twice = pack(kind, values);
            double amax = 0;
            for (const Bf16 value : values) amax = std::max(amax, std::fabs(as_double(value)));
            const double scale = static_cast<double>(kind.decode_scale(once.back()));
            const bool stable =
                scale == kind.smallest_scale || amax > scale * kind.largest / 2 * (power_scale ? 1 : 1.99);
            n_stable += stable;
            if (stable) CHECK(same_bits(twice, once));
            if (stable || power_scale) CHECK(same_bits(unpack(kind, twice, kind.block), values));
        }
        CHECK(n_stable > 1000);
    }
}

TEST_CASE("rows: zero rows, and the floors of the scale") {
    const int floor_byte[] = {105, 0x01, 1}; // 2^-22, 2^-9, 2^-126
    for (int k = 0; k < 3; ++k) {
        const Kind &kind = kKinds[k];
        CAPTURE(kind.name);
        const int n = 2 * kind.block;
        Bytes zeros(kind.row_bytes(n), 0x00), negative(kind.row_bytes(n), kind.nibbles ? 0x88 : 0x80);
        for (Bytes *bytes : {&zeros, &negative})
            std::fill(bytes->end() - 2, bytes->end(), static_cast<std::uint8_t>(floor_byte[k]));
        CHECK(same_bits(pack(kind, filled(n, 0.0f)), zeros));
        CHECK(same_bits(pack(kind, filled(n, -0.0f)), negative));
        CHECK(same_bits(unpack(kind, zeros, n), filled(n, 0.0f)));
        CHECK(same_bits(unpack(kind, negative, n), filled(n, -0.0f)));

        // From far below the floor to a little above it.
        const double floor = kind.smallest_scale * kind.largest;
        for (double amax = floor / 64; amax < floor * 4; amax *= 1.05) {
            Row row = filled(n, 0.0f);
            for (int i = 0; i < n; ++i)
                row[static_cast<std::size_t>(i)] = to_bf16(static_cast<float>(amax * i / (n - 1)));
            check_row(kind, row);
            if (amax <= floor * 0.99 / 2) CHECK(pack(kind, row).back() == floor_byte[k]);
        }
    }
}

TEST_CASE("rows: the index key's scale at bf16 subnormals") {
    const Kind &kind = kKinds[2];
    Row row;
    for (std::uint16_t code = 0; code < 64; ++code)
        row.push_back(Bf16{static_cast<std::uint16_t>(code * 4 | (code % 2) << 15)});
    check_row(kind, row);
    // 2^-127 is half of the smallest scale: code 1, and a subnormal again.
    const Bytes packed = pack(kind, filled(32, 0x1p-127f));
    CHECK(packed.front() == 0x11);
    CHECK(packed.back() == 1);
    CHECK(same_bits(unpack(kind, packed, 32), filled(32, 0x1p-127f)));
}

TEST_CASE("rows: the compressed row's scale is rounded before it divides, clamps and saturates") {
    const Kind &kind = kKinds[1];
    // amax 6.375: 1.0625 is a tie of e4m3 that goes down to 1, so 6.375 must clamp to 6.
    Row row = filled(16, 0.0f);
    row[0] = to_bf16(6.375f);
    row[1] = to_bf16(-6.375f);
    row[2] = to_bf16(5.125f); // divided by the unrounded 1.0625 this would be 4.82: code 6
    Bytes packed = pack(kind, row);
    CHECK(packed[0] == 0xf7);
    CHECK(packed[1] == 0x07);
    CHECK(packed[8] == 0x38);
    CHECK(as_double(unpack(kind, packed, 16)[0]) == 6.0);

    // amax just under 1.5 times the floor: the scale stays at 2^-9 and the quotient is nearly 9.
    row[0] = to_bf16(8.9375f * 0x1p-9f);
    row[1] = row[2] = to_bf16(0.0f);
    packed = pack(kind, row);
    CHECK(packed[0] == 0x07);
    CHECK(packed[8] == 0x01);
    CHECK(as_double(unpack(kind, packed, 16)[0]) == std::ldexp(6, -9));

    for (const float huge : {2688.0f, 2704.0f, 1e6f, 3.3895313892515355e38f}) { // 2688 = 6 * 448
        CAPTURE(huge);
        packed = pack(kind, filled(16, -huge));
        CHECK(packed[0] == 0xff);
        CHECK(packed[8] == 0x7e);
        CHECK(same_bits(unpack(kind, packed, 16), filled(16, -2688.0f)));
    }
}

TEST_CASE("rows: a block that holds a NaN or an infinity decodes to NaN, its neighbours are untouched") {
    for (const Kind &kind : kKinds) {
        CAPTURE(kind.name);
        Random random(7);
        for (const unsigned special : {0x7f80u, 0xff80u, 0x7f81u, 0x7fc0u, 0xffc0u, 0xffffu}) {
            CAPTURE(special);
            for (const int at : {0, 1, kind.block - 1}) {
                CAPTURE(at);
                Row row = random.bf16_row(3 * kind.block, 3.0);
                Row expected = round_trip(kind, row);
                const Bytes clean = pack(kind, row);
                row[static_cast<std::size_t>(kind.block + at)] = Bf16{static_cast<std::uint16_t>(special)};
                std::fill_n(expected.begin() + kind.block, kind.block, Bf16{0x7fc0});
                const Bytes packed = pack(kind, row);
                const std::size_t scales = packed.size() - 3;
                CHECK(std::isnan(kind.decode_scale(packed[scales + 1])));
                CHECK(packed[scales] == clean[scales]);
                CHECK(packed[scales + 2] == clean[scales + 2]);
                CHECK(same_bits(unpack(kind, packed, length(row)), expected));
            }
        }
    }
}
