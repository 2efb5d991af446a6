// Weights decoded at load, value by value against the definitions: every row in its place, every rounding counted.
#include "checkpoint/expand.h"
#include "numeric/bf16.h"
#include "numeric/f16.h"
#include "numeric/fp8_linear.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

using namespace ds41;

namespace {

template <typename T> T at(const std::vector<std::uint8_t> &bytes, std::size_t i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    return value;
}

} // namespace

TEST_CASE("fp8 rows take the scales of their block row, whichever rows come together") {
    constexpr std::int64_t kRows = 70, kCols = 96;
    std::vector<std::uint8_t> codes(kRows * kCols), scales(3 * 3);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 37 + i / 256);
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(120 + i);
    const RowExpander expander(kFp8Type, kCols, scales.data(), DS41_DTYPE_BF16);
    for (const std::int64_t step : {1, 7, 32, 70}) {
        CAPTURE(step);
        std::vector<std::uint8_t> out(kRows * kCols * sizeof(Bf16), 0xa5);
        std::vector<float> values;
        std::uint64_t n_rounded = 0;
        for (std::int64_t row = 0; row < kRows; row += step)
            n_rounded += expander.expand(row, std::min(step, kRows - row), codes.data() + row * kCols,
                                         out.data() + row * kCols * 2, values);
        CHECK(n_rounded == 0); // four significant bits and a power of two
        for (std::int64_t row = 0; row < kRows; ++row)
            for (std::int64_t col = 0; col < kCols; ++col) {
                const auto i = static_cast<std::size_t>(row * kCols + col);
                const float want =
                    e4m3_to_f32(codes[i]) * ue8m0_to_f32(scales[static_cast<std::size_t>(row / 32 * 3 + col / 32)]);
                REQUIRE(at<Bf16>(out, i).bits == to_bf16(want).bits);
            }
    }
}

TEST_CASE("fp8 at the ends of bf16's range is rounded, and counted") {
    const std::vector<std::uint8_t> codes(32, 0x01); // 2^-9
    std::vector<std::uint8_t> out(32 * sizeof(Bf16)), scale = {0};
    std::vector<float> values;
    // 2^-9 * 2^-127 lies below half of bf16's smallest value, 2^-133.
    CHECK(RowExpander(kFp8Type, 32, scale.data(), DS41_DTYPE_BF16).expand(0, 1, codes.data(), out.data(), values) ==
          32);
    CHECK(at<Bf16>(out, 0).bits == 0);
    scale[0] = 3; // 2^-9 * 2^-124 is that smallest value
    CHECK(RowExpander(kFp8Type, 32, scale.data(), DS41_DTYPE_BF16).expand(0, 1, codes.data(), out.data(), values) == 0);
    CHECK(at<Bf16>(out, 31).bits == 1);
    scale[0] = 254; // 448 * 2^127 overflows
    const std::vector<std::uint8_t> largest(32, 0x7e);
    CHECK(RowExpander(kFp8Type, 32, scale.data(), DS41_DTYPE_BF16).expand(0, 1, largest.data(), out.data(), values) ==
          32);
    CHECK(at<Bf16>(out, 0).bits == 0x7f80);
}

TEST_CASE("halves become bf16 to nearest even, or floats without loss") {
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    const auto *source = reinterpret_cast<const std::uint8_t *>(halves.data());
    const GgufType &type = *find_gguf_type(kGgufF16);
    std::vector<float> values;
    std::vector<std::uint8_t> out(halves.size() * 2);
    std::uint64_t n_lossy = 0;
    const std::uint64_t n_rounded =
        RowExpander(type, 256, nullptr, DS41_DTYPE_BF16).expand(5, 256, source, out.data(), values);
    for (std::size_t i = 0; i < halves.size(); ++i) {
        const float value = f16_to_f32(halves[i]);
        REQUIRE(at<Bf16>(out, i).bits == to_bf16(value).bits);
        n_lossy += !is_nan(value) && round_bf16(value) != value;
    }
    CHECK(n_lossy > 50000);
    CHECK(n_rounded == n_lossy);

    out.assign(halves.size() * sizeof(float), 0);
    CHECK(RowExpander(type, 1024, nullptr, DS41_DTYPE_F32).expand(0, 64, source, out.data(), values) == 0);
    for (std::size_t i = 0; i < halves.size(); ++i)
        REQUIRE(float_bits(at<float>(out, i)) == float_bits(f16_to_f32(halves[i])));
}

TEST_CASE("blocks of every type that is expanded stand where their row is") {
    test::Random random(29);
    for (std::uint32_t id = 0; id < 64; ++id) {
        const GgufType *type = find_gguf_type(id);
        if (!type || !type->expand) continue;
        CAPTURE(std::string(type->name));
        const std::int64_t cols = 3 * std::int64_t{type->block_values}, rows = 5;
        const std::uint64_t row_bytes = file_row_bytes(*type, cols);
        CHECK(row_bytes == 3 * type->block_bytes);
        std::vector<std::uint8_t> source(static_cast<std::size_t>(rows) * row_bytes);
        for (std::uint8_t &byte : source) byte = static_cast<std::uint8_t>(random.bits());
        std::vector<float> want(static_cast<std::size_t>(rows * cols)), values;
        type->expand(source.data(), rows * 3, want.data());
        std::vector<std::uint8_t> out(want.size() * sizeof(Bf16));
        RowExpander(*type, cols, nullptr, DS41_DTYPE_BF16).expand(2, rows, source.data(), out.data(), values);
        for (std::size_t i = 0; i < want.size(); ++i) REQUIRE(at<Bf16>(out, i).bits == to_bf16(want[i]).bits);
    }
}
