// Part 1 of the design once more, for tests: numbers in double, each with a bound on how far f32 arithmetic in any
// order may stray from it. After a rounding to bf16 the bound is mostly zero again, so a stage that leaves out a
// rounding, or adds one, falls outside. Of lib/ it uses only what golden tests pin: bf16 and fp16 conversions, Q2_K
// rows and their product, and the quantisers of activations.
#pragma once

#include "numeric/bf16.h"
#include "support/compare.h"
#include "support/random.h"

#include <cstdint>
#include <span>
#include <vector>

namespace ds41::test {

// One f32 operation, twice over: a matrix unit may truncate where a CPU rounds.
constexpr double kF32Step = 0x1p-23;

struct Bounded {
    double value = 0.0;
    double error = 0.0;

    double low() const { return value - error; }
    double high() const { return value + error; }
};

using Row = std::vector<Bounded>;

double double_of(Bf16 value);
Row exactly(std::span<const Bf16> values);
// Nearest bf16, ties to even, subnormals and overflow included.
double bf16_value(double value);
Bounded rounded(Bounded value);
Row rounded(Row row);

// ---- Weights ----

enum class Format { kF32, kBf16, kFp8, kFp8Plain, kQ2K, kQ2KPlain };
constexpr Format kFormats[] = {Format::kF32,      Format::kBf16, Format::kFp8,
                               Format::kFp8Plain, Format::kQ2K,  Format::kQ2KPlain};
const char *name_of(Format format);

// kSmall: integers and powers of two, so that f32 sums are exact in every order. kRandom: anything.
enum class Values { kSmall, kRandom };

struct TestMatrix {
    Format format = Format::kF32;
    int rows = 0, cols = 0;
    std::vector<std::uint8_t> data, scales;
    std::vector<double> values; // decoded

    std::size_t row_bytes() const { return data.size() / static_cast<std::size_t>(rows); }
};

TestMatrix make_matrix(Random &random, Format format, int rows, int cols, Values values);
TestMatrix make_f32(int rows, int cols, std::vector<float> values);
// Inputs to match: small integers, or normal values.
std::vector<Bf16> make_inputs(Random &random, int n, Values values);
std::vector<float> make_norm(Random &random, int n);

// ---- Steps of the computation ----

Bounded dot(std::span<const double> weights, std::span<const Bounded> x);
// The f32 products of `n_rows` rows, not rounded. Quantised activations need an x without errors.
Row products(const TestMatrix &matrix, int first_row, int n_rows, std::span<const Bounded> x);
inline Row linear(const TestMatrix &matrix, std::span<const Bounded> x) {
    return rounded(products(matrix, 0, matrix.rows, x));
}
Row rms_norm(const Row &x, std::span<const float> weight, float eps);
// The last 2 * frequencies values, in adjacent pairs; +1 forward, -1 back.
void rotate(std::span<Bounded> row, std::span<const float> frequencies, std::int64_t pos, int direction = 1);

// ---- Packed rows ----

double e4m3_value(int code);
double e2m1_value(int code);
enum class Packing { kWindow, kCompressed, kIndexKey };
std::size_t packed_bytes(Packing packing, int n);
std::vector<double> unpacked(Packing packing, std::span<const std::uint8_t> row, int n);
// Rows without NaN: normal values through the quantiser, of varied magnitude from block to block.
std::vector<std::uint8_t> random_packed(Random &random, Packing packing, int n);

// ---- Judgement ----

// Whether results lie where Bounded numbers allow; n_loose counts those that had more than one value to choose from.
class Verdict {
public:
    void expect_bf16(std::span<const Bf16> actual, std::span<const Bounded> expected);
    void expect_f32(std::span<const float> actual, std::span<const Bounded> expected);
    void expect_packed(Packing packing, std::span<const std::uint8_t> actual, std::span<const Bounded> expected);

    bool is_right() const { return is_empty_ || static_cast<bool>(tally_); }
    // Mostly only one answer was accepted.
    bool is_tight() const { return n_loose_ <= 4 + n_ / 5; }
    friend std::ostream &operator<<(std::ostream &stream, const Verdict &verdict) {
        return stream << verdict.tally_ << "; " << verdict.n_loose_ << " of " << verdict.n_ << " had a choice";
    }

private:
    void note(bool agrees, double actual, Bounded expected, std::size_t index, const char *what);

    Tally tally_;
    bool is_empty_ = true;
    std::size_t n_ = 0, n_loose_ = 0;
};

} // namespace ds41::test
