// Kernels of the cpu backend, on every instruction set of this machine, against the scalar definitions of lib/numeric:
// what is exact there is the same to the bit here.
#include "backend/cpu/kernels.h"
#include "backend/cpu/targets.h"
#include "backend/reference/rows.h"
#include "numeric/fp8_linear.h"
#include "numeric/q2_k.h"
#include "numeric/rows.h"
#include "support/compare.h"
#include "support/random.h"

#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <memory>
#include <set>
#include <string>

using namespace ds41;
using namespace ds41::test;

namespace {

template <class F> void each_target(F f) {
    for (int i = 0; const cpu::Target *target = cpu::target_at(i); ++i) {
        if (!target->runs_here()) continue;
        CAPTURE(std::string(target->name));
        f(target->bit);
    }
}

// Floats at a vector's alignment, NaN until written.
class Floats {
public:
    explicit Floats(std::size_t n)
        : n_(n), data_(static_cast<float *>(::operator new (n * sizeof(float), std::align_val_t{64}))) {
        std::fill(begin(), end(), std::numeric_limits<float>::quiet_NaN());
    }
    float *data() const { return data_.get(); }
    std::size_t size() const { return n_; }
    float *begin() const { return data(); }
    float *end() const { return data() + n_; }

private:
    struct Free {
        void operator()(float *p) const { ::operator delete (p, std::align_val_t{64}); }
    };
    std::size_t n_;
    std::unique_ptr<float, Free> data_;
};

// Rows with everything that a quantiser meets: ordinary blocks, tiny, huge and zero ones, halves, NaN and infinity.
std::vector<Bf16> awkward_row(Random &random, int n) {
    std::vector<Bf16> row;
    for (int b = 0; b < n / 32; ++b) {
        constexpr double kMagnitudes[] = {1.0, 1e-6, 1e-30, 1e30, 0.0, 3e-39, 3e38, 40.0};
        const int kind = random.below(10);
        for (int i = 0; i < 32; ++i) {
            double value = kMagnitudes[kind % 8] * random.normal() / 5.0;
            if (kind == 8) value = 127.0 - 0.5 * random.below(500); // exact halves of a scale of 1
            row.push_back(to_bf16(static_cast<float>(value)));
        }
        if (kind == 8) row[row.size() - 1] = to_bf16(127.0f);
        if (kind == 9)
            row[row.size() - 1 - static_cast<std::size_t>(random.below(32))] =
                Bf16{static_cast<std::uint16_t>(random.below(2) ? 0x7fc0 : 0xff80)};
    }
    return row;
}

// The product of `rows` in chunks, as the stages make it.
std::vector<float> product(cpu::Dot dot, cpu::DotArgs a, int n_rows) {
    Floats panel(cpu::kMostPanelRows * cpu::kBlockCols);
    Floats factors(static_cast<std::size_t>(cpu::padded_cols(a.k) / 64 * cpu::kMostLanes));
    Floats scaled(static_cast<std::size_t>(cpu::n_col_blocks(a.k) * cpu::kBlockCols * cpu::kMostFewTokens));
    Floats sums(static_cast<std::size_t>(cpu::kChunkRows * a.n_tokens * cpu::kMostLanes));
    std::vector<float> result(static_cast<std::size_t>(n_rows * a.n_tokens));
    const std::uint8_t *weights = a.weights;
    for (int at = 0; at < n_rows; at += cpu::kChunkRows) {
        Floats out(static_cast<std::size_t>(a.n_tokens * cpu::kChunkRows));
        a.panel = panel.data();
        a.factors = factors.data();
        a.scaled = scaled.data();
        a.sums = sums.data();
        a.out = out.data();
        a.n_rows = std::min(cpu::kChunkRows, n_rows - at);
        a.weights = weights + static_cast<std::size_t>(at) * a.row_bytes;
        a.first_row = at;
        dot(a);
        for (int t = 0; t < a.n_tokens; ++t)
            for (int r = 0; r < a.n_rows; ++r)
                result[static_cast<std::size_t>(t * n_rows + at + r)] = out.data()[t * cpu::kChunkRows + r];
    }
    return result;
}

struct Q8 {
    std::vector<std::int8_t> codes;
    std::vector<float> d, sums;
};

Q8 quantise(std::int64_t target, const std::vector<Bf16> &x) {
    Q8 q{std::vector<std::int8_t>(x.size()), std::vector<float>(x.size() / 32), std::vector<float>(x.size() / 4)};
    cpu::activation_kernels(target).quantise_q8(x.data(), static_cast<std::int64_t>(x.size()), q.codes.data(),
                                                q.d.data(), q.sums.data());
    return q;
}

} // namespace

TEST_CASE("cpu kernels: at least two instruction sets, the last of which runs everywhere") {
    int n = 0;
    bool last_runs = false;
    for (; const cpu::Target *target = cpu::target_at(n); ++n) last_runs = target->runs_here();
    CHECK(n >= 1);
    CHECK(last_runs);
    CHECK_THROWS(cpu::choose_target("none such", "place"));
    CHECK(cpu::choose_target(nullptr, "place").runs_here());
}

TEST_CASE("cpu kernels: exponentials within one unit in the last place, subnormal results too") {
    each_target([](std::int64_t target) {
        Tally tally;
        for (int start = 0; start < 110; ++start) {
            Floats x(4096), y(4096);
            for (int i = 0; i < 4096; ++i) x.data()[i] = -static_cast<float>(start) - static_cast<float>(i) / 4096.0f;
            cpu::attend_kernels(target).exp(x.data(), 4096, y.data());
            for (int i = 0; i < 4096; ++i) {
                const double expected = std::exp(double{x.data()[i]});
                const double unit = std::ldexp(1.0, std::max(std::ilogb(expected), -126) - 23);
                const double error = std::fabs(double{y.data()[i]} - expected) / unit;
                tally.expect(error <= 1.0, "e^%g: got %g, expected %g", double{x.data()[i]}, double{y.data()[i]},
                             expected);
            }
        }
        CHECK_MESSAGE(tally, tally);
        Floats x(cpu::kMostLanes), y(cpu::kMostLanes);
        const float infinity = std::numeric_limits<float>::infinity();
        const float special[8] = {0.0f, -0.0f, -infinity, -1e30f, NAN, -200.0f, -103.0f, -87.5f};
        std::copy_n(special, 8, x.data());
        std::copy_n(special, 8, x.data() + 8);
        cpu::attend_kernels(target).exp(x.data(), cpu::kMostLanes, y.data());
        CHECK(y.data()[0] == 1.0f);
        CHECK(y.data()[1] == 1.0f);
        CHECK(y.data()[2] == 0.0f);
        CHECK(y.data()[3] == 0.0f);
        CHECK(std::isnan(y.data()[4]));
        CHECK(y.data()[5] == 0.0f);
        CHECK(y.data()[6] == static_cast<float>(std::exp(-103.0)));
        CHECK(y.data()[7] > 0.0f);
    });
}

TEST_CASE("cpu kernels: q8_1 activations are those of the definition") {
    each_target([](std::int64_t target) {
        Random random(1);
        for (int round = 0; round < 50; ++round) {
            const auto x = awkward_row(random, 512);
            std::vector<Q8Block> expected(16);
            quantise_q8(x.data(), 512, expected.data());
            const Q8 q = quantise(target, x);
            Tally tally;
            for (std::size_t i = 0; i < 512; ++i)
                tally.expect(q.codes[i] == expected[i / 32].codes[i % 32], "code %zu of %g: got %d, expected %d", i,
                             double{to_f32(x[i])}, q.codes[i], expected[i / 32].codes[i % 32]);
            for (std::size_t b = 0; b < 16; ++b) {
                const float d = f16_to_f32(expected[b].d);
                tally.expect(float_bits(q.d[b]) == float_bits(d) || (is_nan(d) && is_nan(q.d[b])),
                             "scale %zu: got %g, expected %g", b, double{q.d[b]}, double{d});
            }
            for (std::size_t i = 0; i < 128; ++i) {
                int sum = 0;
                for (std::size_t j = 0; j < 4; ++j) sum += q.codes[4 * i + j];
                const float expected_sum = q.d[i / 8] * static_cast<float>(sum);
                tally.expect(q.sums[i] == expected_sum || is_nan(expected_sum), "sum %zu", i);
            }
            CHECK_MESSAGE(tally, tally);
        }
    });
}

TEST_CASE("cpu kernels: q2_k products have the bits of the definition, for every number of tokens") {
    each_target([](std::int64_t target) {
        Random random(2);
        for (const int n_blocks : {1, 2, 3, 5}) {
            for (const int n_tokens : {1, 2, 3, 4, 5, 9}) {
                const int k = 256 * n_blocks, n_rows = 37;
                std::vector<std::uint8_t> weights(static_cast<std::size_t>(n_rows * n_blocks * kQ2KBytes + 1));
                for (std::uint8_t &byte : weights) byte = random.byte();
                std::uint8_t *first = weights.data() + 1; // any alignment
                for (int b = 0; b < n_rows * n_blocks; ++b) {
                    // Finite scales of any size and sign.
                    first[b * kQ2KBytes + 81] = static_cast<std::uint8_t>(first[b * kQ2KBytes + 81] & 0xbf);
                    first[b * kQ2KBytes + 83] = static_cast<std::uint8_t>(first[b * kQ2KBytes + 83] & 0xbf);
                }
                const auto x = random.bf16_row(k * n_tokens, 1.0);
                const Q8 q = quantise(target, x);
                cpu::DotArgs a{};
                a.weights = first;
                a.row_bytes = static_cast<std::size_t>(n_blocks * kQ2KBytes);
                a.k = k;
                a.n_tokens = n_tokens;
                a.q8 = {q.codes.data(), q.d.data(), q.sums.data()};
                const auto got = product(cpu::q2_k_kernels(target).q2_k, a, n_rows);
                std::vector<float> expected(got.size());
                std::vector<Q8Block> blocks(static_cast<std::size_t>(k / 32));
                for (int t = 0; t < n_tokens; ++t) {
                    quantise_q8(x.data() + t * k, k, blocks.data());
                    for (int r = 0; r < n_rows; ++r)
                        expected[static_cast<std::size_t>(t * n_rows + r)] =
                            dot_q2_k(first + static_cast<std::size_t>(r) * a.row_bytes, blocks.data(), k);
                }
                CHECK(same_bits(got, expected, {n_tokens, n_rows}));
            }
        }
    });
}

// The columns of 64 in the order that a target has for fp8.
std::vector<std::size_t> code_places(std::int64_t target) {
    std::vector<Bf16> columns;
    for (int i = 0; i < 64; ++i) columns.push_back(to_bf16(static_cast<float>(i)));
    Floats out(64);
    cpu::activation_kernels(target).widen(columns.data(), 64, cpu::Order::kCodes, out.data());
    return std::vector<std::size_t>(out.begin(), out.end());
}

TEST_CASE("cpu kernels: fp8 activations are quantised as the definition does") {
    each_target([](std::int64_t target) {
        Random random(3);
        const auto &activations = cpu::activation_kernels(target);
        const auto places = code_places(target);
        CHECK(std::set<std::size_t>(places.begin(), places.end()).size() == 64);
        for (int round = 0; round < 50; ++round) {
            const auto x = awkward_row(random, 512);
            std::vector<std::uint8_t> codes(512), scales(16);
            std::vector<float> expected_scales(16);
            quantise_fp8_activations(x.data(), 512, codes.data(), expected_scales.data());
            activations.fp8_scales(x.data(), 512, scales.data());
            Floats out(512);
            // Against the largest scale that there may be: nothing that matters here is lost below it.
            activations.widen_fp8(x.data(), 512, scales.data(), 0, out.data());
            Tally tally;
            for (std::size_t at = 0; at < 512; ++at) {
                const std::size_t i = at / 64 * 64 + places[at % 64];
                const float scale = expected_scales[i / 32];
                tally.expect(float_bits(ue8m0_to_f32(scales[i / 32])) == float_bits(scale), "scale %zu", i / 32);
                const float expected = e4m3_to_f32(codes[i]) * scale;
                tally.expect(out.data()[at] == expected || (is_nan(expected) && is_nan(out.data()[at])),
                             "value %zu of %g: got %g, expected %g", i, double{to_f32(x[i])}, double{out.data()[at]},
                             double{expected});
            }
            CHECK_MESSAGE(tally, tally);
        }
    });
}

TEST_CASE("cpu kernels: a float product has the same bits among any number of tokens and rows") {
    each_target([](std::int64_t target) {
        Random random(4);
        const auto &kernels = cpu::dot_kernels(target);
        const auto &activations = cpu::activation_kernels(target);
        for (const int k : {1, 15, 16, 40, 544, 1280}) {
            for (const int n_tokens : {2, 3, 4, 5, 7, 64}) {
                constexpr int kRows = 35;
                const auto w = random.bf16_row(kRows * k, 1.0);
                const int n_blocks = static_cast<int>(cpu::n_col_blocks(k));
                Floats x(static_cast<std::size_t>(n_blocks * n_tokens * cpu::kBlockCols));
                std::vector<Floats> alone;
                for (int t = 0; t < n_tokens; ++t) {
                    const auto row = random.bf16_row(k, 1.0);
                    alone.emplace_back(static_cast<std::size_t>(n_blocks * cpu::kBlockCols));
                    for (int b = 0; b < n_blocks; ++b) {
                        const int n = std::min(cpu::kBlockCols, k - b * cpu::kBlockCols);
                        activations.widen(row.data() + b * cpu::kBlockCols, n, cpu::Order::kPairs,
                                          x.data() + (b * n_tokens + t) * cpu::kBlockCols);
                        activations.widen(row.data() + b * cpu::kBlockCols, n, cpu::Order::kPairs,
                                          alone.back().data() + b * cpu::kBlockCols);
                    }
                }
                cpu::DotArgs a{};
                a.weights = reinterpret_cast<const std::uint8_t *>(w.data());
                a.row_bytes = static_cast<std::size_t>(2 * k);
                a.k = k;
                a.n_tokens = n_tokens;
                a.x = x.data();
                const auto together = product(kernels.bf16, a, kRows);
                a.n_tokens = 1;
                for (int t = 0; t < n_tokens; ++t) {
                    a.x = alone[static_cast<std::size_t>(t)].data();
                    const auto one = product(kernels.bf16, a, kRows);
                    const std::vector<float> of_all(together.begin() + t * kRows, together.begin() + (t + 1) * kRows);
                    CHECK(same_bits(of_all, one));
                }
            }
        }
    });
}

TEST_CASE("cpu kernels: an fp8 product has the same bits alone and among tokens, however far apart the scales are") {
    each_target([](std::int64_t target) {
        Random random(7);
        const auto &kernels = cpu::dot_kernels(target);
        const auto &activations = cpu::activation_kernels(target);
        for (const int k : {32, 96, 544, 1280}) {
            for (const int spread : {0, 3, 120, 254}) {
                CAPTURE(k);
                CAPTURE(spread);
                constexpr int kRows = 67, kTokens = 4;
                const int n_blocks = static_cast<int>(cpu::n_col_blocks(k)), n_scales = k / 32;
                std::vector<std::uint8_t> weights(static_cast<std::size_t>(kRows * k));
                for (std::uint8_t &code : weights) code = static_cast<std::uint8_t>(random.byte() & 0xfb); // no NaN
                weights[0] = kE4m3Nan;
                std::vector<std::uint8_t> scales(static_cast<std::size_t>((kRows + 31) / 32 * n_scales));
                // The first block has the largest scale and nothing to multiply it with: the others are the sum.
                for (std::size_t i = 0; i < scales.size(); ++i)
                    scales[i] = static_cast<std::uint8_t>(
                        i % static_cast<std::size_t>(n_scales) == 0 ? spread : random.below(4));
                Floats x(static_cast<std::size_t>(n_blocks * kTokens * cpu::kBlockCols));
                std::vector<Floats> alone;
                std::vector<std::uint8_t> of_x(static_cast<std::size_t>(n_scales));
                for (int t = 0; t < kTokens; ++t) {
                    auto row = random.bf16_row(k, 1.0);
                    const float factor = spread >= 120 ? 0x1p-30f : 1.0f;
                    for (int i = 0; i < k; ++i) {
                        Bf16 &value = row[static_cast<std::size_t>(i)];
                        value = to_bf16(i < 32 && k > 32 ? 0.0f : to_f32(value) * factor);
                    }
                    activations.fp8_scales(row.data(), k, of_x.data());
                    alone.emplace_back(static_cast<std::size_t>(n_blocks * cpu::kBlockCols));
                    for (int b = 0; b < n_blocks; ++b) {
                        const int from = b * cpu::kBlockCols, n = std::min(cpu::kBlockCols, k - from);
                        for (float *out : {x.data() + (b * kTokens + t) * cpu::kBlockCols, alone.back().data() + from})
                            activations.widen_fp8(row.data() + from, n, of_x.data() + from / 32, 0, out);
                    }
                }
                const std::vector<int> exponents(kTokens, 0);
                cpu::DotArgs a{};
                a.weights = weights.data();
                a.row_bytes = static_cast<std::size_t>(k);
                a.scales = scales.data();
                a.k = k;
                a.n_tokens = kTokens;
                a.x = x.data();
                a.exponents = exponents.data();
                const auto together = product(kernels.fp8, a, kRows);
                a.n_tokens = 1;
                for (int t = 0; t < kTokens; ++t) {
                    a.x = alone[static_cast<std::size_t>(t)].data();
                    auto one = product(kernels.fp8, a, kRows);
                    std::vector<float> of_all(together.begin() + t * kRows, together.begin() + (t + 1) * kRows);
                    CHECK(std::isnan(one[0]));
                    CHECK(std::isnan(of_all[0]));
                    one[0] = of_all[0] = 0.0f;
                    CHECK(same_bits(of_all, one));
                }
            }
        }
    });
}

TEST_CASE("cpu kernels: e4m3 weights, NaN codes and all scales") {
    each_target([](std::int64_t target) {
        const auto &kernels = cpu::dot_kernels(target);
        // Row r has code r in column 0 and nothing else; block rows have scales of every size.
        constexpr int kRows = 256;
        std::vector<std::uint8_t> weights(kRows * 32), scales(kRows / 32);
        for (int r = 0; r < kRows; ++r) weights[static_cast<std::size_t>(r * 32)] = static_cast<std::uint8_t>(r);
        for (int b = 0; b < kRows / 32; ++b) scales[static_cast<std::size_t>(b)] = static_cast<std::uint8_t>(b * 36);
        for (const int n_tokens : {1, 4}) {
            Floats x(static_cast<std::size_t>(n_tokens * cpu::kBlockCols));
            std::fill(x.begin(), x.end(), 0.0f);
            for (int t = 0; t < n_tokens; ++t) x.data()[t * cpu::kBlockCols] = 1.0f;
            const std::vector<int> exponents(static_cast<std::size_t>(n_tokens), 0);
            cpu::DotArgs a{};
            a.weights = weights.data();
            a.row_bytes = 32;
            a.scales = scales.data();
            a.k = 32;
            a.n_tokens = n_tokens;
            a.x = x.data();
            a.exponents = exponents.data();
            const auto got = product(kernels.fp8, a, kRows);
            std::vector<float> expected;
            for (int t = 0; t < n_tokens; ++t)
                for (int r = 0; r < kRows; ++r)
                    expected.push_back(e4m3_to_f32(static_cast<std::uint8_t>(r)) *
                                       ue8m0_to_f32(scales[static_cast<std::size_t>(r / 32)]));
            CHECK(close(got, expected, {}));
        }
    });
}

TEST_CASE("cpu kernels: packed rows unpack to the values of the definition") {
    each_target([](std::int64_t target) {
        Random random(5);
        const auto &kernels = cpu::attend_kernels(target);
        for (const int n : {32, 96, 512}) {
            for (int round = 0; round < 30; ++round) {
                const auto values = awkward_row(random, n);
                std::vector<std::uint8_t> window(window_row_bytes(n)), compressed(compressed_row_bytes(n));
                pack_window_row(values.data(), n, window.data());
                pack_compressed_row(values.data(), n, compressed.data());
                std::vector<Bf16> expected(static_cast<std::size_t>(n));
                Floats got(static_cast<std::size_t>(n));
                const auto floats = [&] {
                    std::vector<float> result;
                    for (const Bf16 value : expected) result.push_back(to_f32(value));
                    return result;
                };
                unpack_window_row(window.data(), n, expected.data());
                kernels.unpack_window(window.data(), n, got.data());
                CHECK(close(std::vector<float>(got.begin(), got.end()), floats(), {}));
                unpack_compressed_row(compressed.data(), n, expected.data());
                kernels.unpack_compressed(compressed.data(), n, got.data());
                CHECK(close(std::vector<float>(got.begin(), got.end()), floats(), {}));
            }
        }
    });
}

TEST_CASE("cpu kernels: rotations have the bits of the reference") {
    each_target([](std::int64_t target) {
        Random random(6);
        for (const int rope_dim : {2, 14, 16, 64}) {
            const RopeTable rope = RopeTable::plain(rope_dim, 10000.0f);
            for (int round = 0; round < 50; ++round) {
                auto row = awkward_row(random, 64);
                auto expected = row;
                const std::int64_t pos = random.below(1000000);
                std::vector<float> cosines(static_cast<std::size_t>(rope_dim / 2)), sines(cosines.size());
                for (int k = 0; k < rope_dim / 2; ++k)
                    rope.angle(pos, k, cosines[static_cast<std::size_t>(k)], sines[static_cast<std::size_t>(k)]);
                reference::rotate(expected.data(), 64, rope, pos, reference::Turn::kForward);
                cpu::attend_kernels(target).rotate(row.data() + 64 - rope_dim, rope_dim / 2, cosines.data(),
                                                   sines.data());
                CHECK(same_bits(row, expected));
            }
        }
    });
}
