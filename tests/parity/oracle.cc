#include "oracle.h"

#include "numeric/fp8_linear.h"
#include "numeric/q2_k.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace ds41::test {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Exponent of the lowest set bit.
int grain_of(double value) {
    int exponent = 0;
    const auto mantissa = static_cast<std::int64_t>(std::ldexp(std::frexp(std::fabs(value), &exponent), 53));
    return exponent - 53 + std::countr_zero(static_cast<std::uint64_t>(mantissa));
}

// Nearest multiple of a unit that depends on the exponent: `bits` below the leading one, none finer than 2^finest.
double on_grid(double value, int bits, int finest) {
    if (value == 0.0) return value;
    const double unit = std::ldexp(1.0, std::max(std::ilogb(value) - bits, finest));
    return std::nearbyint(value / unit) * unit; // to nearest even: the default rounding mode
}

double power_above(double value) { // smallest 2^k >= value
    int exponent = 0;
    const double mantissa = std::frexp(value, &exponent);
    return std::ldexp(1.0, mantissa == 0.5 ? exponent - 1 : exponent);
}

double to_e4m3(double value) {
    return std::clamp(on_grid(std::clamp(value, -448.0, 448.0), 3, -9), -448.0, 448.0);
}

double to_e2m1(double value) {
    int best = 0;
    const double magnitude = std::fabs(value);
    for (int code = 1; code < 8; ++code) {
        const double gain = std::fabs(magnitude - e2m1_value(best)) - std::fabs(magnitude - e2m1_value(code));
        if (gain > 0.0 || (gain == 0.0 && code % 2 == 0)) best = code;
    }
    return std::copysign(e2m1_value(best), value);
}

struct Layout {
    int block, code_bits;
};

Layout layout_of(Packing packing) {
    switch (packing) {
    case Packing::kWindow:
        return {32, 8};
    case Packing::kCompressed:
        return {16, 4};
    case Packing::kIndexKey:
        return {32, 4};
    }
    return {};
}

// The scale of a block with this largest magnitude. f32 divisions, as the design asks.
double scale_for(Packing packing, double amax) {
    switch (packing) {
    case Packing::kWindow:
        return power_above(static_cast<float>(std::max(amax, double{1e-4f})) / 448.0f);
    case Packing::kCompressed:
        return to_e4m3(static_cast<float>(std::max(amax, 6.0 * 0x1p-9)) / 6.0f);
    case Packing::kIndexKey:
        return power_above(static_cast<float>(std::max(amax, 6.0 * 0x1p-126)) / 6.0f);
    }
    return kNan;
}

double scale_of(Packing packing, std::uint8_t byte) {
    if (packing == Packing::kCompressed) return e4m3_value(byte);
    return byte == 255 ? kNan : std::ldexp(1.0, byte - 127);
}

int code_at(Packing packing, std::span<const std::uint8_t> row, int i) {
    const auto at = static_cast<std::size_t>(i);
    return packing == Packing::kWindow ? row[at] : (row[at / 2] >> (4 * (i % 2))) & 15;
}

double code_value(Packing packing, int code) {
    return packing == Packing::kWindow ? e4m3_value(code) : e2m1_value(code);
}

} // namespace

double double_of(Bf16 value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

Row exactly(std::span<const Bf16> values) {
    Row row;
    row.reserve(values.size());
    for (const Bf16 value : values) row.push_back({double_of(value), 0.0});
    return row;
}

double bf16_value(double value) {
    if (!std::isfinite(value)) return value;
    const double result = on_grid(value, 7, -133);
    return std::fabs(result) >= 0x1p128 ? std::copysign(std::numeric_limits<double>::infinity(), value) : result;
}

Bounded rounded(Bounded value) {
    const double centre = bf16_value(value.value);
    if (value.error == 0.0) return {centre, 0.0};
    return {centre, std::max(bf16_value(value.high()) - centre, centre - bf16_value(value.low()))};
}

Row rounded(Row row) {
    for (Bounded &value : row) value = rounded(value);
    return row;
}

const char *name_of(Format format) {
    constexpr const char *kNames[] = {"F32", "BF16", "FP8", "FP8 plain", "Q2_K", "Q2_K plain"};
    return kNames[static_cast<int>(format)];
}

TestMatrix make_f32(int rows, int cols, std::vector<float> values) {
    TestMatrix m{Format::kF32, rows, cols, std::vector<std::uint8_t>(values.size() * sizeof(float)), {}, {}};
    std::memcpy(m.data.data(), values.data(), m.data.size());
    m.values.assign(values.begin(), values.end());
    return m;
}

TestMatrix make_matrix(Random &random, Format format, int rows, int cols, Values values) {
    const bool small = values == Values::kSmall;
    const double magnitude = 1.0 / std::sqrt(static_cast<double>(cols));
    TestMatrix m{format, rows, cols, {}, {}, {}};
    const auto n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
    m.values.resize(n);
    switch (format) {
    case Format::kF32:
    case Format::kBf16: {
        std::vector<float> floats(n);
        for (float &value : floats)
            value = small ? static_cast<float>(random.between(-2, 2)) : static_cast<float>(magnitude * random.normal());
        if (format == Format::kF32) return make_f32(rows, cols, std::move(floats));
        m.data.resize(2 * n);
        for (std::size_t i = 0; i < n; ++i) {
            const Bf16 value = to_bf16(floats[i]);
            std::memcpy(m.data.data() + 2 * i, &value, 2);
            m.values[i] = double_of(value);
        }
        break;
    }
    case Format::kFp8:
    case Format::kFp8Plain: {
        constexpr std::uint8_t kIntegers[] = {0x00, 0x38, 0x40, 0x44, 0xb8, 0xc0}; // 0 1 2 3 -1 -2
        m.data.resize(n);
        m.scales.resize(static_cast<std::size_t>((rows + 31) / 32 * (cols / 32)));
        for (auto &scale : m.scales)
            scale = static_cast<std::uint8_t>(small ? random.between(126, 128) : random.between(115, 121));
        for (std::size_t i = 0; i < n; ++i) {
            std::uint8_t code = small ? kIntegers[random.below(6)] : random.byte();
            if ((code & 0x7f) == 0x7f) code = 0x7e;
            m.data[i] = code;
            const std::size_t r = i / static_cast<std::size_t>(cols), c = i % static_cast<std::size_t>(cols);
            m.values[i] = e4m3_value(code) *
                          std::ldexp(1.0, m.scales[r / 32 * static_cast<std::size_t>(cols / 32) + c / 32] - 127);
        }
        break;
    }
    case Format::kQ2K:
    case Format::kQ2KPlain: {
        m.data.resize(n / kQ2KBlock * kQ2KBytes);
        for (std::size_t block = 0; block < m.data.size(); block += kQ2KBytes) {
            for (std::size_t i = 0; i < 80; ++i) m.data[block + i] = random.byte();
            if (small)
                for (std::size_t i = 0; i < 16; ++i) m.data[block + i] &= 0x11;
            const float d = small ? 1.0f : static_cast<float>(random.uniform(0.02, 0.1) * magnitude);
            const std::uint16_t halves[2] = {f32_to_f16(d), f32_to_f16(small ? 1.0f : 1.7f * d)};
            std::memcpy(m.data.data() + block + 80, halves, 4);
        }
        std::vector<float> row(static_cast<std::size_t>(cols));
        for (int r = 0; r < rows; ++r) {
            decode_q2_k_row(m.data.data() + static_cast<std::size_t>(r) * m.row_bytes(), cols, row.data());
            std::copy(row.begin(), row.end(), m.values.begin() + std::ptrdiff_t{r} * cols);
        }
        break;
    }
    }
    return m;
}

std::vector<Bf16> make_inputs(Random &random, int n, Values values) {
    if (values == Values::kRandom) return random.bf16_row(n, 1.0);
    std::vector<Bf16> row;
    for (int i = 0; i < n; ++i) row.push_back(to_bf16(static_cast<float>(random.between(-3, 3))));
    return row;
}

std::vector<float> make_norm(Random &random, int n) {
    std::vector<float> weight;
    for (int i = 0; i < n; ++i)
        weight.push_back(static_cast<float>(random.uniform(0.4, 2.5)) * (random.below(5) ? 1.0f : -1.0f));
    return weight;
}

Bounded dot(std::span<const double> weights, std::span<const Bounded> x) {
    double sum = 0.0, magnitude = 0.0, squares = 0.0, carried = 0.0;
    int grain = 1000;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double product = weights[i] * x[i].value;
        sum += product;
        magnitude += std::fabs(product);
        squares += product * product;
        carried += std::fabs(weights[i]) * x[i].error;
        if (product != 0.0 && std::isfinite(product)) grain = std::min(grain, grain_of(product));
    }
    // Multiples of one power of two, none of whose sums needs more than 24 bits: f32 makes no error in any order.
    if (carried == 0.0 && (magnitude == 0.0 || (grain > -149 && magnitude <= std::ldexp(1.0, grain + 24))))
        return {sum, 0.0};
    // n steps of the largest partial sum at worst; but roundings are as good as random, so sqrt(n) of them, and partial
    // sums of products of both signs are as large as the root of the sum of squares, 3 times that at most.
    const auto n = static_cast<double>(x.size() + 1);
    const double typical = std::sqrt(n) * (3.0 * std::sqrt(squares) + std::fabs(sum));
    return {sum, carried + kF32Step * std::min(n * magnitude, typical) + 0x1p-140};
}

Row products(const TestMatrix &matrix, int first_row, int n_rows, std::span<const Bounded> x) {
    const auto cols = static_cast<std::size_t>(matrix.cols);
    if (x.size() != cols) throw std::logic_error("products: widths differ");
    std::vector<Bf16> input;
    Row activations(x.begin(), x.end());
    if (matrix.format == Format::kFp8 || matrix.format == Format::kQ2K)
        for (const Bounded &value : x) {
            if (value.error != 0.0) throw std::logic_error("products: quantised activations must be known");
            input.push_back(to_bf16(static_cast<float>(value.value)));
        }
    std::vector<Q8Block> q8(cols / kQ8Block);
    if (matrix.format == Format::kQ2K) quantise_q8(input.data(), matrix.cols, q8.data());
    if (matrix.format == Format::kFp8) {
        std::vector<std::uint8_t> codes(cols);
        std::vector<float> scales(cols / 32);
        quantise_fp8_activations(input.data(), matrix.cols, codes.data(), scales.data());
        for (std::size_t i = 0; i < cols; ++i) activations[i] = {e4m3_value(codes[i]) * double{scales[i / 32]}, 0.0};
    }
    Row result;
    for (int r = first_row; r < first_row + n_rows; ++r) {
        const auto at = static_cast<std::size_t>(r);
        if (matrix.format == Format::kQ2K) {
            result.push_back(
                {double{dot_q2_k(matrix.data.data() + at * matrix.row_bytes(), q8.data(), matrix.cols)}, 0.0});
        } else {
            result.push_back(dot(std::span(matrix.values).subspan(at * cols, cols), activations));
        }
    }
    return result;
}

Row rms_norm(const Row &x, std::span<const float> weight, float eps) {
    const auto n = static_cast<double>(x.size());
    double squares = 0.0, carried = 0.0;
    for (const Bounded &v : x) {
        squares += v.value * v.value;
        carried += (2.0 * std::fabs(v.value) + v.error) * v.error;
    }
    const double mean = squares / n + double{eps};
    const double scale = 1.0 / std::sqrt(mean);
    // The root halves a relative error; 8 steps for the division, the root, its inverse and two products; the sum as in
    // dot().
    const double relative = 0.6 * carried / n / mean + (0.5 * std::sqrt(n) + 8.0) * kF32Step;
    Row result;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double factor = double{weight[i]} * scale;
        const double value = factor * x[i].value;
        result.push_back(rounded({value, std::fabs(factor) * x[i].error + std::fabs(value) * relative}));
    }
    return result;
}

void rotate(std::span<Bounded> row, std::span<const float> frequencies, std::int64_t pos, int direction) {
    const std::size_t first = row.size() - 2 * frequencies.size();
    for (std::size_t k = 0; k < frequencies.size(); ++k) {
        const float angle = static_cast<float>(pos) * frequencies[k];
        const double c = std::cos(double{angle}), s = direction * std::sin(double{angle});
        Bounded &re = row[first + 2 * k], &im = row[first + 2 * k + 1];
        const auto combined = [&](double a, Bounded x, double b, Bounded y) {
            const double carried = std::fabs(a) * x.error + std::fabs(b) * y.error;
            const double size = std::fabs(a * x.value) + std::fabs(b * y.value);
            // Cosine, sine, two products and a sum; nothing to round at position 0.
            return rounded({a * x.value + b * y.value, carried + (angle == 0.0f ? 0.0 : 3.0 * kF32Step * size)});
        };
        const Bounded new_re = combined(c, re, -s, im);
        im = combined(s, re, c, im);
        re = new_re;
    }
}

double e4m3_value(int code) {
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    if ((code & 127) == 127) return kNan;
    const double magnitude = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
    return code & 128 ? -magnitude : magnitude;
}

double e2m1_value(int code) {
    const int exponent = (code >> 1) & 3, mantissa = code & 1;
    const double magnitude = exponent ? std::ldexp(2 + mantissa, exponent - 2) : 0.5 * mantissa;
    return code & 8 ? -magnitude : magnitude;
}

std::size_t packed_bytes(Packing packing, int n) {
    const Layout layout = layout_of(packing);
    return static_cast<std::size_t>(n * layout.code_bits / 8 + n / layout.block);
}

std::vector<double> unpacked(Packing packing, std::span<const std::uint8_t> row, int n) {
    const Layout layout = layout_of(packing);
    std::vector<double> values;
    for (int i = 0; i < n; ++i) {
        const std::uint8_t scale = row[static_cast<std::size_t>(n * layout.code_bits / 8 + i / layout.block)];
        values.push_back(code_value(packing, code_at(packing, row, i)) * scale_of(packing, scale));
    }
    return values;
}

std::vector<std::uint8_t> random_packed(Random &random, Packing packing, int n) {
    const Layout layout = layout_of(packing);
    std::vector<std::uint8_t> row(packed_bytes(packing, n));
    for (auto &byte : row) {
        byte = random.byte();
        if (packing == Packing::kWindow && (byte & 127) == 127) byte ^= 1;
    }
    // e4m3 codes reach 448 and e2m1 codes 6: these scales bring values near 1, in factors of up to 8.
    for (int b = 0; b < n / layout.block; ++b) {
        std::uint8_t &scale = row[static_cast<std::size_t>(n * layout.code_bits / 8 + b)];
        const int base = packing == Packing::kWindow ? 118 : packing == Packing::kCompressed ? 0x28 : 124;
        scale = static_cast<std::uint8_t>(base + random.below(packing == Packing::kCompressed ? 16 : 3));
    }
    return row;
}

void Verdict::note(bool agrees, double actual, Bounded expected, std::size_t index, const char *what) {
    ++n_;
    if (expected.error > 0.0) ++n_loose_;
    tally_.expect(agrees, "%s %zu: got %.9g, expected %.9g within %.3g", what, index, actual, expected.value,
                  expected.error);
}

void Verdict::expect_bf16(std::span<const Bf16> actual, std::span<const Bounded> expected) {
    is_empty_ = false;
    tally_.expect(actual.size() == expected.size(), "%zu values, expected %zu", actual.size(), expected.size());
    for (std::size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
        const double value = double_of(actual[i]);
        const Bounded &b = expected[i];
        note((value >= b.low() && value <= b.high()) || (std::isnan(value) && std::isnan(b.value)), value, b, i,
             "value");
    }
}

void Verdict::expect_f32(std::span<const float> actual, std::span<const Bounded> expected) {
    is_empty_ = false;
    tally_.expect(actual.size() == expected.size(), "%zu values, expected %zu", actual.size(), expected.size());
    for (std::size_t i = 0; i < std::min(actual.size(), expected.size()); ++i)
        note(std::fabs(double{actual[i]} - expected[i].value) <= expected[i].error, double{actual[i]}, expected[i], i,
             "float");
}

void Verdict::expect_packed(Packing packing, std::span<const std::uint8_t> actual, std::span<const Bounded> expected) {
    const Layout layout = layout_of(packing);
    const int n = static_cast<int>(expected.size());
    is_empty_ = false;
    tally_.expect(actual.size() == packed_bytes(packing, n), "%zu bytes, expected %zu", actual.size(),
                  packed_bytes(packing, n));
    if (actual.size() != packed_bytes(packing, n)) return;
    for (int b = 0; b < n / layout.block; ++b) {
        const std::uint8_t byte = actual[static_cast<std::size_t>(n * layout.code_bits / 8 + b)];
        double least = 0.0, most = 0.0; // of the block's largest magnitude
        for (int i = b * layout.block; i < (b + 1) * layout.block; ++i) {
            const Bounded &v = expected[static_cast<std::size_t>(i)];
            least = std::max(least, std::fabs(v.value) - v.error);
            most = std::max(most, std::fabs(v.value) + v.error);
        }
        const double low = scale_for(packing, least), high = scale_for(packing, most);
        const double scale = scale_of(packing, byte);
        note(scale >= low && scale <= high, scale, {0.5 * (low + high), 0.5 * (high - low)},
             static_cast<std::size_t>(b), "scale");
        if (!(scale >= low && scale <= high)) continue;
        for (int i = b * layout.block; i < (b + 1) * layout.block; ++i) {
            const Bounded &v = expected[static_cast<std::size_t>(i)];
            const auto quantised = [&](double value) {
                const double quotient = static_cast<float>(value) / static_cast<float>(scale);
                return packing == Packing::kWindow ? to_e4m3(quotient) : to_e2m1(quotient);
            };
            const double code_low = quantised(v.low()), code_high = quantised(v.high());
            const double value = code_value(packing, code_at(packing, actual, i));
            bool right = value >= code_low && value <= code_high;
            // The sign stays when the magnitude is lost; of a true zero it depends on the sum's first term.
            if (v.low() > 0.0) right = right && !std::signbit(value);
            if (v.high() < 0.0) right = right && std::signbit(value);
            note(right, value, {0.5 * (code_low + code_high), 0.5 * (code_high - code_low)},
                 static_cast<std::size_t>(i), "code");
        }
    }
}

} // namespace ds41::test
