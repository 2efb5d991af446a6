// The baselines of ds41-bench: that they compute what they should, whatever instruction set they are compiled for.
#include "noise.h"
#include "plain_kernels.h"
#include "plain_loops.h"
#include "same.h"
#include "team.h"

#include "numeric/q2_k.h"
#include "numeric/rows.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

using namespace bench;
using namespace ds41;

namespace {

// Sums in another order: each addition is off by 2^-24 of the sum so far at most.
constexpr double kMostOfF32 = 1e-4;

template <class F> void each_level(F f) {
    const auto run = [&](const char *name, const PlainKernels &kernels) {
        CAPTURE(std::string(name));
        f(kernels);
    };
    run("portable", portable::kKernels);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) run("v3", v3::kKernels);
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        run("v4", v4::kKernels);
#endif
}

std::vector<Bf16> bf16_noise(size_t n, uint64_t seed) {
    std::vector<Bf16> values(n);
    Noise(seed).fill<uint16_t>(values.data(), n, kBf16Keep, kBf16Set);
    return values;
}

} // namespace

TEST_CASE("rows of Q2_K times q8_1 activations") {
    constexpr int kRows = 3, kCols = 768;
    constexpr size_t kRowBytes = kCols / kQ2KBlock * kQ2KBytes;
    std::vector<uint8_t> rows(kRows * kRowBytes);
    Noise noise(1);
    noise.fill<uint8_t>(rows.data(), rows.size(), 0xff, 0);
    for (size_t block = 0; block < rows.size(); block += kQ2KBytes) {
        // The last row's are subnormal.
        const auto low = static_cast<uint16_t>(block % 5);
        const auto scales = block < (kRows - 1) * kRowBytes
                                ? std::array<uint16_t, 2>{uint16_t(0x2c00 + low), uint16_t(0xa812 + low)}
                                : std::array<uint16_t, 2>{uint16_t(0x0012 + low), uint16_t(0x8013 + low)};
        std::memcpy(rows.data() + block + 80, scales.data(), sizeof(scales));
    }
    const std::vector<Bf16> x = bf16_noise(kCols, 2);
    std::vector<Q8Block> blocks(kCols / kQ8Block);
    quantise_q8(x.data(), kCols, blocks.data());
    std::vector<float> right, found(kRows);
    for (int row = 0; row < kRows; ++row)
        right.push_back(dot_q2_k(rows.data() + size_t(row) * kRowBytes, blocks.data(), kCols));
    const Q8Row q8 = q8_row(x.data(), kCols);
    const auto check = [&] {
        for (size_t row = 0; row < right.size(); ++row) // each by its own measure
            CHECK(difference(std::span(found).subspan(row, 1), std::span(right).subspan(row, 1)) < kMostOfF32);
    };
    each_level([&](const PlainKernels &kernels) {
        kernels.q2_k(rows.data(), kRows, kCols / kQ2KBlock, q8.codes.data(), q8.d.data(), q8.sums.data(), found.data());
        check();
    });
    plain_q2_k(reinterpret_cast<const std::byte *>(rows.data()), kRows, q8, found.data());
    check();
}

TEST_CASE("packed rows of any byte") {
    constexpr int kCols = 512;
    Noise noise(3);
    std::vector<uint8_t> row(window_row_bytes(kCols));
    std::vector<float> found(kCols);
    std::vector<Bf16> right(kCols);
    const auto check = [&] {
        for (size_t i = 0; i < right.size(); ++i) { // the library's are rounded, which changes nothing but NaN
            CAPTURE(i);
            const float value = to_f32(right[i]);
            CHECK((found[i] == value || (std::isnan(found[i]) && std::isnan(value))));
        }
    };
    noise.fill<uint8_t>(row.data(), row.size(), 0xff, 0);
    for (size_t block = kCols; block < row.size(); ++block) row[block] = static_cast<uint8_t>(100 + row[block] % 50);
    unpack_window_row(row.data(), kCols, right.data());
    plain_unpack_window(row.data(), kCols, found.data());
    check();
    noise.fill<uint8_t>(row.data(), row.size(), 0xff, 0);
    unpack_compressed_row(row.data(), kCols, right.data());
    plain_unpack_compressed(row.data(), kCols, found.data());
    check();
}

TEST_CASE("attention with a sink") {
    constexpr int kRows = 37, kCols = 96;
    const std::vector<float> q = widened(bf16_noise(kCols, 4)), rows = widened(bf16_noise(kRows * kCols, 5));
    constexpr float kScale = 0.3f, kSink = 2;
    std::vector<double> weights;
    for (int r = 0; r < kRows; ++r) {
        double dot = 0;
        for (int e = 0; e < kCols; ++e) dot += double{q[size_t(e)]} * double{rows[size_t(r * kCols + e)]};
        weights.push_back(std::exp(dot * kScale));
    }
    const double denominator = std::accumulate(weights.begin(), weights.end(), std::exp(double{kSink}));
    std::vector<float> right(kCols), found(kCols), scratch(kRows);
    for (int e = 0; e < kCols; ++e) {
        double sum = 0;
        for (int r = 0; r < kRows; ++r) sum += weights[size_t(r)] * double{rows[size_t(r * kCols + e)]};
        right[size_t(e)] = static_cast<float>(sum / denominator);
    }
    each_level([&](const PlainKernels &kernels) {
        kernels.attend(q.data(), rows.data(), kRows, kCols, kScale, kSink, scratch.data(), found.data());
        CHECK(difference(found, right) < kMostOfF32);
    });
    plain_attend(q.data(), rows.data(), kRows, kCols, kScale, kSink, scratch.data(), found.data());
    CHECK(difference(found, right) < kMostOfF32);
}

TEST_CASE("scores of keys, any number of them") {
    constexpr int kHeads = 16, kCols = 64;
    const std::vector<float> queries = widened(bf16_noise(kHeads * kCols, 6)), weights = widened(bf16_noise(kHeads, 7));
    for (const int n_keys : {1, 15, 16, 17, 50}) {
        CAPTURE(n_keys);
        const std::vector<Bf16> keys = bf16_noise(size_t(n_keys) * kCols, 8);
        std::vector<float> right, found(size_t(n_keys) + 1, 7.0f), scratch(kCols * kPlainKeys);
        for (int k = 0; k < n_keys; ++k) {
            double sum = 0;
            for (int h = 0; h < kHeads; ++h) {
                double dot = 0;
                for (int e = 0; e < kCols; ++e)
                    dot += double{queries[size_t(h * kCols + e)]} * double{to_f32(keys[size_t(k * kCols + e)])};
                sum += std::max(dot, 0.0) * double{weights[size_t(h)]};
            }
            right.push_back(static_cast<float>(sum));
        }
        right.push_back(7.0f); // behind the last one
        each_level([&](const PlainKernels &kernels) {
            kernels.scores(queries.data(), weights.data(), kHeads, reinterpret_cast<const uint16_t *>(keys.data()),
                           n_keys, kCols, found.data(), scratch.data());
            CHECK(difference(found, right) < kMostOfF32);
        });
        plain_scores(queries.data(), weights.data(), kHeads, keys.data(), n_keys, kCols, found.data());
        CHECK(difference(found, right) < kMostOfF32);
    }
}

TEST_CASE("a team's threads share a work") {
    for (const int n_threads : {1, 2, 5}) {
        CAPTURE(n_threads);
        Team team(n_threads);
        for (const int64_t n : {0, 1, 4, 1001}) {
            std::vector<int> done(static_cast<size_t>(n));
            for (int repeat = 0; repeat < 3; ++repeat)
                team.run([&](size_t thread) {
                    for (int64_t i = team.part(n, thread); i < team.part(n, thread + 1); ++i) ++done[size_t(i)];
                });
            CHECK(done == std::vector<int>(static_cast<size_t>(n), 3));
        }
    }
}

TEST_CASE("what differs is refused with a sentence") {
    const std::vector<float> right = {1, -1, 1, -1};
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    CHECK(difference(right, right) == 0);
    CHECK(difference(std::vector<float>{1, -1, 1.5f, -1}, right) == 0.5);
    CHECK(difference(std::vector<float>{10, -10, 10, -5}, std::vector<float>{10, -10, 10, -10}) == 0.5);
    CHECK(std::isinf(difference(std::vector<float>{1, -1, 1}, right)));
    CHECK(std::isinf(difference(std::vector<float>{1, -1, nan, -1}, right)));
    CHECK(std::isinf(difference(std::vector<float>{1, -1, infinity, -1}, std::vector<float>{1, -1, infinity, -1})));
    CHECK(std::isinf(difference(std::vector<float>{0, 0}, std::vector<float>{0, 0})));
    CHECK_NOTHROW(must_be_same("x", std::vector<float>{1, -1, 1.5f, -1}, right, 0.5));
    CHECK_THROWS_WITH(must_be_same("peer, wq_a", std::vector<float>{1, -1, 2, -1}, right, 0.5),
                      "peer, wq_a is wrong: off by 1 of the values' root mean square, need 0.5 at most");
    CHECK_THROWS(must_be_same("x", std::vector<float>{1, -1, nan, -1}, right, 0.5));
}
