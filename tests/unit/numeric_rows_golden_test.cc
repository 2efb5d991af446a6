// The packed rows by value: bytes worked out by hand, one row of each kind, and the shared tables of the quantisers.
#include "numeric/rows.h"

#include "support/compare.h"
#include "support/safetensors_view.h"

#include <doctest/doctest.h>

using namespace ds41;
using namespace ds41::test;

namespace {

using Row = std::vector<Bf16>;
using Bytes = std::vector<std::uint8_t>;

// Values at the front of a row of n, zeros behind them.
Row row_of(std::initializer_list<float> values, std::size_t n) {
    Row row;
    for (const float value : values) row.push_back(to_bf16(value));
    row.resize(n, Bf16{0});
    return row;
}

Row joined(Row first, const Row &second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

// One quantiser's table: every row packed and unpacked.
void check_table(const std::string &group, int block, bool nibbles, std::size_t (*row_bytes)(int),
                 void (*pack)(const Bf16 *, int, std::uint8_t *), void (*unpack)(const std::uint8_t *, int, Bf16 *),
                 float (*decode_scale)(std::uint8_t)) {
    CAPTURE(group);
    const FixtureFile file("quant_tables");
    const Array<Bf16> in = file.get<Bf16>(group + ".in");
    const int n = static_cast<int>(in.cols());
    const std::size_t n_codes = in.cols() / (nibbles ? 2 : 1), n_scales = in.cols() / static_cast<std::size_t>(block);
    REQUIRE(row_bytes(n) == n_codes + n_scales);

    Bytes codes, packed(row_bytes(n));
    std::vector<float> scales;
    Row out(in.values.size());
    for (std::size_t r = 0; r < in.rows(); ++r) {
        pack(in.row(r), n, packed.data());
        unpack(packed.data(), n, out.data() + r * in.cols());
        for (std::size_t i = 0; i < n_codes; ++i) {
            if (nibbles) codes.push_back(packed[i] & 15);
            codes.push_back(nibbles ? static_cast<std::uint8_t>(packed[i] >> 4) : packed[i]);
        }
        for (std::size_t b = 0; b < n_scales; ++b) scales.push_back(decode_scale(packed[n_codes + b]));
    }
    CHECK(same_bits(codes, file.get<std::uint8_t>(group + ".code").values, in.shape));
    const Array<float> expected_scales = file.get<float>(group + ".scale");
    CHECK(same_bits(scales, expected_scales.values, expected_scales.shape));
    CHECK(same_bits(out, file.get<Bf16>(group + ".out").values, in.shape));
}

} // namespace

TEST_CASE("rows: fixture tables of the quantisers, bit for bit") {
    check_table("act_quant", 32, false, window_row_bytes, pack_window_row, unpack_window_row, ue8m0_to_f32);
    check_table("fp4_e4m3", 16, true, compressed_row_bytes, pack_compressed_row, unpack_compressed_row, e4m3_to_f32);
    for (const char *group : {"fp4_e8m0", "fp4_e8m0_subnormal"})
        check_table(group, 32, true, index_key_row_bytes, pack_index_key_row, unpack_index_key_row, ue8m0_to_f32);
}

TEST_CASE("rows: golden bytes of a window row") {
    // Block 0: amax 448, scale 1 (byte 127). Block 1: amax 1, 1/448 up to 2^-8 (byte 119), so values times 256.
    const Row row = joined(row_of({448.0f, -1.0f, 1.125f, 240.0f, 0x1p-6f, 0x1p-9f, -0.0f, 17.0f, 19.0f, 0.5f}, 32),
                           row_of({1.0f, 0.5f, -0.75f, 0x1p-8f, 0x1p-17f}, 32));
    Bytes expected(66, 0);
    const Bytes block0 = {0x7e, 0xb8, 0x39, 0x77, 0x08, 0x01, 0x80, 0x58, 0x5a, 0x30}; // 17 and 19 are ties
    const Bytes block1 = {0x78, 0x70, 0xf4, 0x38, 0x01};
    std::copy(block0.begin(), block0.end(), expected.begin());
    std::copy(block1.begin(), block1.end(), expected.begin() + 32);
    expected[64] = 127;
    expected[65] = 119;
    Bytes packed(66);
    pack_window_row(row.data(), 64, packed.data());
    CHECK(same_bits(packed, expected));
}

TEST_CASE("rows: golden bytes of a compressed row") {
    // Block 0: amax 6, scale 1 (0x38). Block 1: amax 1, 1/6 to 1.375 * 2^-3 (0x23), quotients 5.82, -2.91, 1.45, 0.73.
    const Row row = joined(row_of({0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -6.0f, -0.0f, 5.0f, 0.25f, -3.5f}, 16),
                           row_of({1.0f, -0.5f, 0.25f, 0.125f}, 16));
    const Bytes expected = {0x21, 0x43, 0x65, 0xf7, 0x68, 0xe0, 0x00, 0x00, 0xd7,
                            0x13, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x38, 0x23};
    Bytes packed(18);
    pack_compressed_row(row.data(), 32, packed.data());
    CHECK(same_bits(packed, expected));
}

TEST_CASE("rows: golden bytes of an index key row") {
    // Block 0: amax 6, scale 1 (byte 127). Block 1: amax 1, 1/6 up to 2^-2 (byte 125), so values times 4.
    const Row row =
        joined(row_of({6.0f, -4.0f, 2.5f, 0.75f, -0.0f, 1.25f}, 32), row_of({-1.0f, 0.5f, 0.3125f, 0.0625f}, 32));
    Bytes expected(34, 0);
    expected[0] = 0xe7;
    expected[1] = 0x24;
    expected[2] = 0x28;
    expected[16] = 0x4e;
    expected[17] = 0x02;
    expected[32] = 127;
    expected[33] = 125;
    Bytes packed(34);
    pack_index_key_row(row.data(), 64, packed.data());
    CHECK(same_bits(packed, expected));
}

TEST_CASE("rows: each block's codes and scale stand at their own place in a row of production size") {
    // Block b is 2^(b mod 8) throughout: one scale step per block, the same codes everywhere.
    Row row(512);
    for (std::size_t i = 0; i < 512; ++i) row[i] = to_bf16(std::ldexp(1.0f, static_cast<int>(i / 32 % 8)));
    Bytes window(528), compressed(288), index_key(68);
    pack_window_row(row.data(), 512, window.data());
    pack_compressed_row(row.data(), 512, compressed.data());
    pack_index_key_row(row.data(), 128, index_key.data());
    for (std::size_t i = 0; i < 512; ++i) {
        CAPTURE(i);
        const int step = static_cast<int>(i / 32 % 8);
        CHECK(window[i] == 0x78); // 256 * 2^-8
        CHECK(window[512 + i / 32] == 119 + step);
        CHECK(compressed[i / 2] == 0x77); // 1 / 0.171875 = 5.8
        CHECK(compressed[256 + i / 16] == 0x23 + 8 * step);
        if (i < 128) {
            CHECK(index_key[i / 2] == 0x66); // 4 * 2^-2
            CHECK(index_key[64 + i / 32] == 125 + step);
        }
    }
}
