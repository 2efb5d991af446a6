// Kernels of the cpu backend, on every instruction set of this machine, against the scalar definitions of lib/numeric:
// what is exact there is the same to the bit here.
#include "backend/cpu/kernels.h"
#include "backend/cpu/pairs.h"
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

// Those with the same kernels but for products of pairs are one.
template <class F> void each_target(F f) {
    for (int i = 0; const cpu::Target *target = cpu::target_at(i); ++i) {
        if (target->pairs || !target->runs_here()) continue;
        CAPTURE(std::string(target->name));
        f(target->bit);
    }
}

template <class F> void each_product_target(F f) {
    for (int i = 0; const cpu::Target *target = cpu::target_at(i); ++i) {
        if (!target->runs_here()) continue;
        CAPTURE(std::string(target->name));
        f(*target);
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
std::vector<float> product(cpu::Dot dot, cpu::DotArgs a, int n_rows, int first_row = 0) {
    Floats panel(cpu::kPanelFloats);
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
        a.weights = weights + static_cast<std::size_t>(first_row + at) * a.row_bytes;
        a.first_row = first_row + at;
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

// Rows of activations, n_tokens times k, as a product of the target takes them. With `quantised` as fp8 ones, times
// 2^-0.
class Inputs {
public:
    Inputs(const cpu::Target &target, const std::vector<Bf16> &rows, int n_tokens, int k, cpu::Order order,
           bool quantised = false)
        : floats_(static_cast<std::size_t>(cpu::n_col_blocks(k) * n_tokens * cpu::kBlockCols)),
          pairs_(static_cast<std::size_t>(cpu::pairs_of(k, n_tokens))), exponents_(static_cast<std::size_t>(n_tokens)) {
        const auto &kernels = cpu::activation_kernels(target.bit);
        auto values = rows;
        for (int t = 0; t < n_tokens; ++t) {
            Bf16 *row = values.data() + t * k;
            std::vector<std::uint8_t> scales(static_cast<std::size_t>(k / 32 + 1));
            if (quantised) kernels.fp8_scales(row, k, scales.data());
            for (int from = 0; from < k; from += cpu::kBlockCols) {
                const int n = std::min(cpu::kBlockCols, k - from);
                float *out = floats_.data() + (from / cpu::kBlockCols * n_tokens + t) * cpu::kBlockCols;
                if (!quantised) {
                    kernels.widen(row + from, n, order, out);
                    continue;
                }
                Floats natural(cpu::kBlockCols);
                kernels.widen_fp8(row + from, n, scales.data() + from / 32, 0, order, out);
                kernels.widen_fp8(row + from, n, scales.data() + from / 32, 0, cpu::Order::kNatural, natural.data());
                kernels.round(natural.data(), n, row + from);
            }
        }
        for (int t = 0; target.pairs && t < n_tokens; t += cpu::kTileTokens)
            target.pairs->put(values.data() + t * k, k, std::min(cpu::kTileTokens, n_tokens - t), k,
                              pairs_.data() + cpu::pairs_of(k, t));
    }
    void give(cpu::DotArgs &a) const {
        a.x = floats_.data();
        a.pairs = pairs_.data();
        a.exponents = exponents_.data();
    }

private:
    Floats floats_;
    std::vector<Bf16> pairs_;
    std::vector<int> exponents_;
};

// A product of rows of k bf16 values; the activations are not in it yet.
cpu::DotArgs bf16_args(const std::vector<Bf16> &w, int k, int n_tokens) {
    cpu::DotArgs a{};
    a.weights = reinterpret_cast<const std::uint8_t *>(w.data());
    a.row_bytes = static_cast<std::size_t>(2 * k);
    a.k = k;
    a.n_tokens = n_tokens;
    return a;
}

cpu::Dot bf16_product(const cpu::Target &target) {
    return target.pairs ? target.pairs->bf16 : cpu::dot_kernels(target.bit).bf16;
}
cpu::Dot fp8_product(const cpu::Target &target) {
    return target.pairs ? target.pairs->fp8 : cpu::dot_kernels(target.bit).fp8;
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
            activations.widen_fp8(x.data(), 512, scales.data(), 0, cpu::Order::kCodes, out.data());
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

TEST_CASE("cpu kernels: a bf16 product has the same bits among any number of tokens and rows, and is right") {
    each_product_target([](const cpu::Target &target) {
        Random random(4);
        for (const int k : {1, 15, 16, 33, 40, 544, 1280}) {
            for (const int n_tokens : {2, 3, 4, 5, 7, 16, 17, 33, 64}) {
                CAPTURE(k);
                CAPTURE(n_tokens);
                constexpr int kRows = 51;
                const auto w = random.bf16_row(kRows * k, 1.0), rows = random.bf16_row(n_tokens * k, 1.0);
                cpu::DotArgs a = bf16_args(w, k, n_tokens);
                const Inputs inputs(target, rows, n_tokens, k, cpu::Order::kPairs);
                inputs.give(a);
                const auto together = product(bf16_product(target), a, kRows);
                a.n_tokens = 1;
                Tally tally;
                for (int t = 0; t < n_tokens; ++t) {
                    const std::vector<Bf16> row(rows.begin() + t * k, rows.begin() + (t + 1) * k);
                    const Inputs input(target, row, 1, k, cpu::Order::kPairs);
                    input.give(a);
                    const auto one = product(bf16_product(target), a, kRows);
                    const std::vector<float> of_all(together.begin() + t * kRows, together.begin() + (t + 1) * kRows);
                    CHECK(same_bits(of_all, one));
                    for (int r = 0; r < kRows; ++r) {
                        double sum = 0.0, size = 0.0;
                        for (int i = 0; i < k; ++i) {
                            const double term = double{to_f32(w[static_cast<std::size_t>(r * k + i)])} *
                                                double{to_f32(row[static_cast<std::size_t>(i)])};
                            sum += term;
                            size += std::fabs(term);
                        }
                        const double got = one[static_cast<std::size_t>(r)];
                        tally.expect(std::fabs(got - sum) <= size * 1e-6, "row %d: got %g, expected %g", r, got, sum);
                    }
                }
                CHECK_MESSAGE(tally, tally);
            }
        }
    });
}

TEST_CASE("cpu kernels: a bf16 product of more rows than a chunk has the bits of chunks, alone too") {
    each_product_target([](const cpu::Target &target) {
        if (!target.pairs || target.pairs->most_bf16_rows == cpu::kChunkRows) return;
        Random random(10);
        // More columns than go through at a time; whole tiles, and neither of both.
        for (const int k : {64, 4200}) {
            for (const int n_tokens : {64, 150}) {
                for (const int n_rows : {target.pairs->most_bf16_rows, target.pairs->most_bf16_rows - 21}) {
                    CAPTURE(k);
                    CAPTURE(n_tokens);
                    CAPTURE(n_rows);
                    const auto w = random.bf16_row(n_rows * k, 1.0), rows = random.bf16_row(n_tokens * k, 1.0);
                    cpu::DotArgs a = bf16_args(w, k, n_tokens);
                    const Inputs inputs(target, rows, n_tokens, k, cpu::Order::kPairs);
                    inputs.give(a);
                    const auto by_chunks = product(bf16_product(target), a, n_rows);
                    const int stride = (n_rows + cpu::kChunkRows - 1) / cpu::kChunkRows * cpu::kChunkRows;
                    Floats sums(static_cast<std::size_t>(cpu::kChunkRows * n_tokens * cpu::kMostLanes));
                    Floats out(static_cast<std::size_t>(n_tokens * stride));
                    a.sums = sums.data();
                    a.out = out.data();
                    a.n_rows = n_rows;
                    bf16_product(target)(a);
                    std::vector<float> at_once;
                    for (int t = 0; t < n_tokens; ++t)
                        for (int r = 0; r < n_rows; ++r) at_once.push_back(out.data()[t * stride + r]);
                    CHECK(same_bits(at_once, by_chunks));
                    a.n_tokens = 1;
                    for (const int t : {0, 17, n_tokens - 1}) {
                        const std::vector<Bf16> row(rows.begin() + t * k, rows.begin() + (t + 1) * k);
                        const Inputs input(target, row, 1, k, cpu::Order::kPairs);
                        input.give(a);
                        const std::vector<float> of_all(at_once.begin() + t * n_rows,
                                                        at_once.begin() + (t + 1) * n_rows);
                        CHECK(same_bits(product(bf16_product(target), a, n_rows), of_all));
                    }
                }
            }
        }
    });
}

TEST_CASE("cpu kernels: a product with what is no number is none, and others beside it are") {
    each_product_target([](const cpu::Target &target) {
        constexpr int kCols = 96, kRows = 40;
        for (const int n_tokens : {1, 3, 20}) {
            std::vector<Bf16> w(kRows * kCols, to_bf16(1.0f)),
                rows(static_cast<std::size_t>(n_tokens * kCols), to_bf16(1.0f));
            w[17 * kCols + 5] = Bf16{0x7f80};
            w[18 * kCols + 95] = Bf16{0xffc0};
            rows[rows.size() - kCols + 40] = Bf16{0x7fc0}; // the last token's
            cpu::DotArgs a = bf16_args(w, kCols, n_tokens);
            const Inputs inputs(target, rows, n_tokens, kCols, cpu::Order::kPairs);
            inputs.give(a);
            const auto got = product(bf16_product(target), a, kRows);
            for (int t = 0; t < n_tokens; ++t) {
                for (int r = 0; r < kRows; ++r) {
                    const float value = got[static_cast<std::size_t>(t * kRows + r)];
                    if (t == n_tokens - 1 || r == 18)
                        CHECK(std::isnan(value));
                    else
                        CHECK(value == (r == 17 ? std::numeric_limits<float>::infinity() : float{kCols}));
                }
            }
        }
    });
}

TEST_CASE("cpu kernels: an fp8 product has the same bits alone and among tokens, however far apart the scales are") {
    each_product_target([](const cpu::Target &target) {
        Random random(7);
        for (const int k : {32, 96, 544, 1280}) {
            for (const int spread : {0, 3, 120, 254}) {
                for (const int n_tokens : {4, 40}) {
                    CAPTURE(k);
                    CAPTURE(spread);
                    CAPTURE(n_tokens);
                    constexpr int kRows = 67;
                    const int n_scales = k / 32;
                    std::vector<std::uint8_t> weights(static_cast<std::size_t>(kRows * k));
                    for (std::uint8_t &code : weights) code = static_cast<std::uint8_t>(random.byte() & 0xfb); // no NaN
                    weights[0] = kE4m3Nan;
                    std::vector<std::uint8_t> scales(static_cast<std::size_t>((kRows + 31) / 32 * n_scales));
                    // The first block has the largest scale and nothing to multiply it with: the others are the sum.
                    for (std::size_t i = 0; i < scales.size(); ++i)
                        scales[i] = static_cast<std::uint8_t>(
                            i % static_cast<std::size_t>(n_scales) == 0 ? spread : random.below(4));
                    auto rows = random.bf16_row(n_tokens * k, 1.0);
                    const float factor = spread >= 120 ? 0x1p-30f : 1.0f;
                    for (std::size_t i = 0; i < rows.size(); ++i)
                        rows[i] = to_bf16(static_cast<int>(i) % k < 32 && k > 32 ? 0.0f : to_f32(rows[i]) * factor);
                    cpu::DotArgs a{};
                    a.weights = weights.data();
                    a.row_bytes = static_cast<std::size_t>(k);
                    a.scales = scales.data();
                    a.k = k;
                    a.n_tokens = n_tokens;
                    const Inputs inputs(target, rows, n_tokens, k, cpu::Order::kCodes, true);
                    inputs.give(a);
                    const auto together = product(fp8_product(target), a, kRows);
                    // Rows of two block rows in one chunk.
                    for (const int shift : {8, 20}) {
                        const auto shifted = product(fp8_product(target), a, 32, shift);
                        std::vector<float> same_rows;
                        for (int t = 0; t < n_tokens; ++t)
                            for (int r = shift; r < shift + 32; ++r)
                                same_rows.push_back(together[static_cast<std::size_t>(t * kRows + r)]);
                        CHECK(same_bits(shifted, same_rows, {n_tokens, 32}));
                    }
                    a.n_tokens = 1;
                    Tally tally;
                    for (int t = 0; t < n_tokens; ++t) {
                        const std::vector<Bf16> row(rows.begin() + t * k, rows.begin() + (t + 1) * k);
                        const Inputs input(target, row, 1, k, cpu::Order::kCodes, true);
                        input.give(a);
                        auto one = product(fp8_product(target), a, kRows);
                        std::vector<float> of_all(together.begin() + t * kRows, together.begin() + (t + 1) * kRows);
                        CHECK(std::isnan(one[0]));
                        CHECK(std::isnan(of_all[0]));
                        one[0] = of_all[0] = 0.0f;
                        CHECK(same_bits(of_all, one));
                        if (spread > 3) continue; // what is lost then is up to the target
                        std::vector<std::uint8_t> codes(static_cast<std::size_t>(k));
                        std::vector<float> of_x(static_cast<std::size_t>(n_scales));
                        quantise_fp8_activations(row.data(), k, codes.data(), of_x.data());
                        for (int r = 1; r < kRows; ++r) {
                            double sum = 0.0, size = 0.0;
                            for (int i = 0; i < k; ++i) {
                                const auto at = static_cast<std::size_t>(r / 32 * n_scales + i / 32);
                                const double term = double{e4m3_to_f32(weights[static_cast<std::size_t>(r * k + i)])} *
                                                    double{ue8m0_to_f32(scales[at])} *
                                                    double{e4m3_to_f32(codes[static_cast<std::size_t>(i)])} *
                                                    double{of_x[static_cast<std::size_t>(i / 32)]};
                                sum += term;
                                size += std::fabs(term);
                            }
                            const double got = one[static_cast<std::size_t>(r)];
                            tally.expect(std::fabs(got - sum) <= size * 1e-6 + 1e-44, "row %d: got %g, expected %g", r,
                                         got, sum);
                        }
                    }
                    if (spread <= 3) CHECK_MESSAGE(tally, tally);
                }
            }
        }
    });
}

TEST_CASE("cpu kernels: e4m3 weights, NaN codes and all scales") {
    each_product_target([](const cpu::Target &target) {
        // Row r has code r in column 0 and nothing else; block rows have scales of every size.
        constexpr int kRows = 256;
        std::vector<std::uint8_t> weights(kRows * 32), scales(kRows / 32);
        for (int r = 0; r < kRows; ++r) weights[static_cast<std::size_t>(r * 32)] = static_cast<std::uint8_t>(r);
        for (int b = 0; b < kRows / 32; ++b) scales[static_cast<std::size_t>(b)] = static_cast<std::uint8_t>(b * 36);
        for (const int n_tokens : {1, 4, 35}) {
            std::vector<Bf16> rows(static_cast<std::size_t>(n_tokens * 32), Bf16{0});
            for (int t = 0; t < n_tokens; ++t) rows[static_cast<std::size_t>(t * 32)] = to_bf16(1.0f);
            cpu::DotArgs a{};
            a.weights = weights.data();
            a.row_bytes = 32;
            a.scales = scales.data();
            a.k = 32;
            a.n_tokens = n_tokens;
            const Inputs inputs(target, rows, n_tokens, 32, cpu::Order::kCodes);
            inputs.give(a);
            const auto got = product(fp8_product(target), a, kRows);
            std::vector<float> expected;
            for (int t = 0; t < n_tokens; ++t)
                for (int r = 0; r < kRows; ++r)
                    expected.push_back(e4m3_to_f32(static_cast<std::uint8_t>(r)) *
                                       ue8m0_to_f32(scales[static_cast<std::size_t>(r / 32)]));
            CHECK(close(got, expected, {}));
        }
    });
}

TEST_CASE("cpu kernels: sums are rounded to bf16 as the definition does, NaN to one of them") {
    each_target([](std::int64_t target) {
        Random random(9);
        std::vector<float> x;
        for (int i = 0; i < 1003; ++i) {
            const auto bits =
                static_cast<std::uint32_t>(random.byte()) << 24 | static_cast<std::uint32_t>(random.byte()) << 16;
            // Halves, and all the rest.
            x.push_back(
                float_from_bits(bits | (i % 2 == 0 ? 0x8000u : static_cast<std::uint32_t>(random.below(65536)))));
        }
        x[7] = -std::numeric_limits<float>::infinity();
        x[8] = float_from_bits(0xff80ffffu);
        std::vector<Bf16> got(x.size());
        cpu::activation_kernels(target).round(x.data(), static_cast<std::int64_t>(x.size()), got.data());
        for (std::size_t i = 0; i < x.size(); ++i) CHECK(got[i].bits == (is_nan(x[i]) ? 0x7fc0 : to_bf16(x[i]).bits));
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
