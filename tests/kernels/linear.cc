// Products of activation rows with weight matrices: the kernels bit for bit against scalar sums in the order that they
// state, and within a derived bound against exact sums and lib/numeric.
#include "linear/launch.h"
#include "numeric/fp8_linear.h"
#include "numeric/q2_k.h"
#include "paged_step.h"
#include "simt/engine.h"
#include "support/compare.h"

#include <functional>

using namespace ds41;
using namespace ds41::kernels;
using namespace ds41::test;

namespace {

constexpr int kBlockScale = 32; // rows and columns of fp8 weights that share a scale

struct Matrix {
    int rows = 1, k = 1;
    int n_slices = 1;
    LinearOutput output = LinearOutput::kF32;
    int head_dim = 0, n_pairs = 0;
    bool quantise = false;
    int weight_offset = 0, x_offset = 0; // bytes and elements between an aligned address and the first one
    int x_gap = 8, out_gap = 6;          // elements between two rows

    int all_rows() const { return n_slices * rows; }
    int all_k() const { return n_slices * k; }
};

int value_bytes(LinearFormat format) {
    return format == LinearFormat::kF32 ? 4 : format == LinearFormat::kBf16 ? 2 : 1;
}

// A weight matrix as bytes, and the values that these mean.
struct Weights {
    Array<std::uint8_t> bytes, scales;
    std::vector<float> values; // [all_rows, k]
    int offset = 0;

    const std::uint8_t *data() const { return bytes.data() + offset; }
};

Weights make_weights(Random &random, LinearFormat format, const Matrix &shape) {
    const auto n = static_cast<std::size_t>(shape.all_rows()) * static_cast<std::size_t>(shape.k);
    Weights w;
    w.offset = shape.weight_offset;
    w.values.resize(n);
    const auto offset = static_cast<std::size_t>(shape.weight_offset);
    if (format == LinearFormat::kBf16 || format == LinearFormat::kF32) {
        const auto size = static_cast<std::size_t>(value_bytes(format));
        w.bytes = Array<std::uint8_t>(offset + n * size);
        for (std::size_t i = 0; i < n; ++i) {
            const auto value = static_cast<float>(0.1 * random.normal());
            const Bf16 rounded = to_bf16(value);
            w.values[i] = format == LinearFormat::kF32 ? value : to_f32(rounded);
            if (format == LinearFormat::kF32)
                std::memcpy(w.bytes.data() + offset + i * size, &value, size);
            else
                std::memcpy(w.bytes.data() + offset + i * size, &rounded, size);
        }
    } else if (format == LinearFormat::kFp8) {
        const int cols = shape.k / kBlockScale;
        w.bytes = Array<std::uint8_t>(offset + n);
        w.scales =
            Array<std::uint8_t>(static_cast<std::size_t>((shape.all_rows() + kBlockScale - 1) / kBlockScale * cols));
        for (std::size_t i = 0; i < w.scales.size(); ++i)
            w.scales[i] = static_cast<std::uint8_t>(random.between(115, 125));
        for (std::size_t i = 0; i < n; ++i) {
            std::uint8_t code = random.byte();
            if ((code & 0x7f) == kE4m3Nan) code ^= 1;
            w.bytes[offset + i] = code;
            const auto row = i / static_cast<std::size_t>(shape.k), col = i % static_cast<std::size_t>(shape.k);
            w.values[i] =
                e4m3_to_f32(code) *
                ue8m0_to_f32(w.scales[row / kBlockScale * static_cast<std::size_t>(cols) + col / kBlockScale]);
        }
    } else {
        const std::size_t row_bytes = static_cast<std::size_t>(shape.k / kQ2KBlock * kQ2KBytes);
        w.bytes = Array<std::uint8_t>(offset + static_cast<std::size_t>(shape.all_rows()) * row_bytes);
        for (std::size_t i = offset; i < w.bytes.size(); ++i) w.bytes[i] = random.byte();
        for (std::size_t block = offset; block < w.bytes.size(); block += kQ2KBytes)
            for (int half = 0; half < 2; ++half) {
                const std::uint16_t d = f32_to_f16(static_cast<float>(random.uniform(-0.01, 0.02)));
                std::memcpy(w.bytes.data() + block + 80 + 2 * half, &d, sizeof d);
            }
        for (int row = 0; row < shape.all_rows(); ++row)
            decode_q2_k_row(w.data() + static_cast<std::size_t>(row) * row_bytes, shape.k,
                            w.values.data() + static_cast<std::size_t>(row) * static_cast<std::size_t>(shape.k));
    }
    return w;
}

// One matrix of a launch and what it is multiplied with.
struct Operand {
    Matrix shape;
    Weights weights;
    Array<Bf16> x; // n rows; what lies between them is NaN
    Array<float> angles;
    int stride_x = 0;

    const Bf16 *row(int token) const { return x.data() + shape.x_offset + token * stride_x; }
};

struct Problem {
    LinearFormat format;
    int n;
    std::vector<Operand> operands;
};

Problem make_problem(Random &random, LinearFormat format, int n, const std::vector<Matrix> &shapes) {
    Problem problem{format, n, {}};
    for (const Matrix &shape : shapes) {
        Operand o;
        o.shape = shape;
        o.weights = make_weights(random, format, shape);
        o.stride_x = shape.all_k() + shape.x_gap;
        o.x = Array<Bf16>(static_cast<std::size_t>(shape.x_offset + (n - 1) * o.stride_x + shape.all_k()));
        for (int t = 0; t < n; ++t) {
            // Blocks of a row differ in size, so that quantisers give them different scales; and values in a block, so
            // that a scale shows in the codes of the small ones.
            for (int i = 0; i < shape.all_k(); ++i) {
                const int exponent = (i / 32 + t) % 5 - 2 - (random.below(4) ? 0 : random.between(6, 18));
                o.x[static_cast<std::size_t>(shape.x_offset + t * o.stride_x + i)] =
                    to_bf16(static_cast<float>(std::ldexp(random.normal(), exponent)));
            }
        }
        o.angles = Array<float>(static_cast<std::size_t>(2 * n * shape.n_pairs));
        for (std::size_t i = 0; i < o.angles.size(); ++i) o.angles[i] = static_cast<float>(random.uniform(-1.0, 1.0));
        problem.operands.push_back(std::move(o));
    }
    return problem;
}

// ---- The kernels.

// Holds a launch to the memory that it has a reason to touch: the rows of x without what lies between them, for one.
class Declared final : public simt::MemoryObserver {
public:
    void may_read(const void *data, std::size_t n_bytes) { add(data, n_bytes, simt::Access::kRead); }
    void may_write(const void *data, std::size_t n_bytes) { add(data, n_bytes, simt::Access::kWrite); }

    const char *access(const void *p, std::size_t n_bytes, simt::Access access) override {
        const auto begin = reinterpret_cast<std::uintptr_t>(p);
        const auto allows = [&](const Range &r) {
            return r.access == access && r.begin <= begin && begin + n_bytes <= r.end;
        };
        // Nothing is kept from call to call: all threads of a kernel ask.
        return std::any_of(ranges_.begin(), ranges_.end(), allows) ? nullptr : "where it has nothing to do";
    }

    // Kernels whose stream is an object of this class run under its eyes.
    static int run(simt::Stream stream, const simt::LaunchInfo &info, std::function<void()> kernel) {
        return simt::run(info, kernel, static_cast<Declared *>(stream));
    }

private:
    struct Range {
        std::uintptr_t begin, end;
        simt::Access access;
    };
    void add(const void *data, std::size_t n_bytes, simt::Access access) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        ranges_.push_back({begin, begin + n_bytes, access});
    }

    std::vector<Range> ranges_;
};

struct Watch {
    Watch() { simt::set_enqueue_hook(Declared::run); }
    ~Watch() { simt::set_enqueue_hook(nullptr); }
};

using Rows = std::vector<std::vector<float>>; // by token; bf16 outputs as their values

constexpr float kScale = 0.37f;

bool is_f32(const Matrix &shape) {
    return shape.output == LinearOutput::kF32;
}

// Outputs of tokens [first, first + n) of the operands `which`, in one launch.
std::vector<Rows> run(const Problem &problem, int first, int n, const std::vector<std::size_t> &which) {
    LinearParams p{};
    p.n_segments = static_cast<std::int32_t>(which.size());
    p.n = n;
    p.format = problem.format;
    std::vector<Array<std::uint8_t>> outputs;
    std::vector<Array<std::int8_t>> codes;
    std::vector<Array<float>> code_scales;
    const Watch watch;
    Declared declared;
    for (std::size_t i = 0; i < which.size(); ++i) {
        const Operand &o = problem.operands[which[i]];
        const Matrix &shape = o.shape;
        LinearSegment &s = p.segments[i];
        s.weights = o.weights.data();
        s.scales = o.weights.scales.size() ? o.weights.scales.data() : nullptr;
        s.x = problem.format == LinearFormat::kQ2K ? nullptr : o.row(first);
        s.angles = shape.output == LinearOutput::kRotated ? o.angles.data() + 2 * first * shape.n_pairs : nullptr;
        s.stride_x = o.stride_x;
        s.stride_out = shape.all_rows() + shape.out_gap;
        s.rows = shape.rows;
        s.k = shape.k;
        s.n_slices = shape.n_slices;
        s.first_block = -1;
        s.output = shape.output;
        s.scale = kScale;
        s.head_dim = shape.head_dim;
        s.n_pairs = shape.n_pairs;
        s.quantise = shape.quantise;
        const std::size_t size = is_f32(shape) ? sizeof(float) : sizeof(Bf16);
        outputs.emplace_back(static_cast<std::size_t>((n - 1) * s.stride_out + shape.all_rows()) * size);
        s.out = outputs.back().data();
        if (problem.format == LinearFormat::kQ2K) {
            codes.emplace_back(static_cast<std::size_t>(n * shape.all_k()));
            code_scales.emplace_back(codes.back().size() / kQ8Block);
            QuantiseQ8Params q{};
            q.x = o.row(first);
            q.codes = codes.back().data();
            q.scales = code_scales.back().data();
            q.stride_x = o.stride_x;
            q.n = n;
            q.k = shape.all_k();
            Declared of_quantiser;
            for (int t = 0; t < n; ++t)
                of_quantiser.may_read(o.row(first + t), static_cast<std::size_t>(shape.all_k()) * sizeof(Bf16));
            of_quantiser.may_write(q.codes, codes.back().size());
            of_quantiser.may_write(q.scales, code_scales.back().size() * sizeof(float));
            REQUIRE_LAUNCHES(launch_quantise_q8(&of_quantiser, q));
            declared.may_read(q.codes, codes.back().size());
            declared.may_read(q.scales, code_scales.back().size() * sizeof(float));
            s.codes = q.codes;
            s.code_scales = q.scales;
            s.stride_x = 0;
        }
        declared.may_read(s.weights, o.weights.bytes.size() - static_cast<std::size_t>(shape.weight_offset));
        declared.may_read(s.scales, o.weights.scales.size());
        if (s.angles) declared.may_read(s.angles, static_cast<std::size_t>(2 * n * shape.n_pairs) * sizeof(float));
        for (int t = 0; t < n; ++t) {
            if (s.x) declared.may_read(o.row(first + t), static_cast<std::size_t>(shape.all_k()) * sizeof(Bf16));
            declared.may_write(outputs.back().data() + static_cast<std::size_t>(t * s.stride_out) * size,
                               static_cast<std::size_t>(shape.all_rows()) * size);
        }
    }
    REQUIRE_LAUNCHES(launch_linear(&declared, p));
    std::vector<Rows> result;
    for (std::size_t i = 0; i < which.size(); ++i) {
        const Matrix &shape = problem.operands[which[i]].shape;
        const auto stride = static_cast<std::size_t>(p.segments[i].stride_out);
        const auto width = static_cast<std::size_t>(shape.all_rows());
        const std::size_t size = is_f32(shape) ? sizeof(float) : sizeof(Bf16);
        result.emplace_back();
        for (std::size_t t = 0; t < static_cast<std::size_t>(n); ++t) {
            result.back().emplace_back();
            const std::uint8_t *row = outputs[i].data() + t * stride * size;
            for (std::size_t r = 0; r < width; ++r) {
                float value;
                Bf16 half;
                if (is_f32(shape)) {
                    std::memcpy(&value, row + r * size, size);
                } else {
                    std::memcpy(&half, row + r * size, size);
                    value = to_f32(half);
                }
                result.back().back().push_back(value);
            }
            if (t + 1 < static_cast<std::size_t>(n))
                CHECK_MESSAGE(std::all_of(row + width * size, row + stride * size,
                                          [](std::uint8_t byte) { return byte == 0xff; }),
                              "a kernel wrote between two rows of an output");
        }
    }
    return result;
}

std::vector<Rows> run(const Problem &problem) {
    std::vector<std::size_t> all(problem.operands.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    return run(problem, 0, problem.n, all);
}

// ---- What they state.

// A lane takes eight values of every 256; then a butterfly adds the lanes.
float in_order_of_lanes(const float *w, const float *x, int k) {
    float lanes[32] = {};
    // The last stretch is filled with zeros, which turn a lane's -0 into 0.
    for (int i = 0; i < (k + 1023) / 1024 * 1024; ++i) {
        float &lane = lanes[i % 256 / 8];
        lane = i < k ? std::fma(w[i], x[i], lane) : lane + 0.0f;
    }
    for (int offset = 16; offset > 0; offset /= 2)
        for (int lane = 0; lane < offset; ++lane) lanes[lane] += lanes[lane + offset];
    return lanes[0];
}

// Activations as the format's product sees them.
std::vector<float> activations(const Problem &problem, const Operand &o, int token) {
    const int k = o.shape.all_k();
    std::vector<float> x(static_cast<std::size_t>(k));
    for (int i = 0; i < k; ++i) x[static_cast<std::size_t>(i)] = to_f32(o.row(token)[i]);
    if (problem.format == LinearFormat::kFp8 && o.shape.quantise) {
        std::vector<std::uint8_t> codes(x.size());
        std::vector<float> scales(x.size() / kWindowBlock);
        quantise_fp8_activations(o.row(token), k, codes.data(), scales.data());
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = e4m3_to_f32(codes[i]) * scales[i / kWindowBlock];
    }
    return x;
}

std::vector<Q8Block> q8_activations(const Operand &o, int token) {
    std::vector<Q8Block> blocks(static_cast<std::size_t>(o.shape.all_k() / kQ8Block));
    quantise_q8(o.row(token), o.shape.all_k(), blocks.data());
    return blocks;
}

std::vector<float> expected_products(const Problem &problem, const Operand &o, int token) {
    const Matrix &shape = o.shape;
    std::vector<float> result;
    const std::vector<float> x = activations(problem, o, token);
    std::vector<Q8Block> q8;
    if (problem.format == LinearFormat::kQ2K) q8 = q8_activations(o, token);
    for (int row = 0; row < shape.all_rows(); ++row) {
        const int slice = row / shape.rows;
        if (problem.format == LinearFormat::kQ2K)
            result.push_back(dot_q2_k(o.weights.data() + row * (shape.k / kQ2KBlock * kQ2KBytes),
                                      q8.data() + slice * shape.k / kQ8Block, shape.k));
        else
            result.push_back(in_order_of_lanes(o.weights.values.data() + std::int64_t{row} * shape.k,
                                               x.data() + slice * shape.k, shape.k));
    }
    return result;
}

std::vector<float> expected_row(const Problem &problem, const Operand &o, int token) {
    const Matrix &shape = o.shape;
    std::vector<float> row = expected_products(problem, o, token);
    if (is_f32(shape)) return row;
    for (float &value : row) {
        value = round_bf16(value);
        if (shape.output == LinearOutput::kScaled) value = round_bf16(value * kScale);
    }
    if (shape.output == LinearOutput::kRotated)
        for (int head = 0; head < shape.all_rows() / shape.head_dim; ++head)
            for (int pair = 0; pair < shape.n_pairs; ++pair) {
                float *const turned = row.data() + (head + 1) * shape.head_dim - 2 * (shape.n_pairs - pair);
                const float *const angle = o.angles.data() + 2 * (token * shape.n_pairs + pair);
                const float re = turned[0], im = turned[1];
                turned[0] = round_bf16(re * angle[0] - im * angle[1]);
                turned[1] = round_bf16(re * angle[1] + im * angle[0]);
            }
    return row;
}

void check(const Problem &problem) {
    const std::vector<Rows> actual = run(problem);
    for (std::size_t i = 0; i < problem.operands.size(); ++i) {
        CAPTURE(i);
        for (int t = 0; t < problem.n; ++t) {
            CAPTURE(t);
            CHECK(same_bits(actual[i][static_cast<std::size_t>(t)], expected_row(problem, problem.operands[i], t)));
        }
    }
}

const struct Format {
    const char *name;
    LinearFormat format;
    bool quantise;
    int step; // k is a multiple
} kFormats[] = {
    {"bf16", LinearFormat::kBf16, false, 1},  {"f32", LinearFormat::kF32, false, 1},
    {"fp8", LinearFormat::kFp8, false, 32},   {"fp8, quantised activations", LinearFormat::kFp8, true, 32},
    {"q2_k", LinearFormat::kQ2K, false, 256}, {"q2_k, plain activations", LinearFormat::kQ2KPlain, false, 256},
};

Matrix matrix(const Format &format, int rows, int k, LinearOutput output = LinearOutput::kF32) {
    Matrix shape;
    shape.rows = rows;
    shape.k = (k + format.step - 1) / format.step * format.step;
    shape.output = output;
    shape.quantise = format.quantise;
    return shape;
}

} // namespace

TEST_SUITE_BEGIN("kernels");

TEST_CASE("linear: every format and number of activation rows, bit for bit") {
    Random random(721);
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        for (const int n : {1, 2, 3, 4, 5, 8, 9, 16}) {
            CAPTURE(n);
            const auto output = n % 2 ? LinearOutput::kBf16 : LinearOutput::kF32;
            check(make_problem(random, format.format, n, {matrix(format, 19, n < 9 ? 1280 : 300, output)}));
        }
    }
}

TEST_CASE("linear: sums lie within their rounding errors of exact ones, and of lib/numeric") {
    Random random(722);
    constexpr double kUnit = 0x1p-24; // of one rounding in f32
    for (const Format &format : kFormats) {
        if (format.format == LinearFormat::kQ2K) continue; // the same bits as lib/numeric's
        CAPTURE(std::string(format.name));
        for (const int k : {256, 1056, 3000}) {
            CAPTURE(k);
            const Problem problem = make_problem(random, format.format, 2, {matrix(format, 7, k)});
            const Operand &o = problem.operands[0];
            const auto n = static_cast<std::size_t>(o.shape.k);
            const std::vector<Rows> actual = run(problem);
            for (int t = 0; t < problem.n; ++t) {
                const std::vector<float> x = activations(problem, o, t);
                std::vector<std::uint8_t> codes(n);
                std::vector<float> scales(n / kWindowBlock);
                if (format.quantise) quantise_fp8_activations(o.row(t), o.shape.k, codes.data(), scales.data());
                for (std::size_t row = 0; row < 7; ++row) {
                    const float *w = o.weights.values.data() + row * n;
                    double exact = 0.0, magnitudes = 0.0;
                    for (std::size_t i = 0; i < n; ++i) {
                        exact += double{w[i]} * double{x[i]};
                        magnitudes += std::fabs(double{w[i]} * double{x[i]});
                    }
                    const auto value = static_cast<double>(actual[0][static_cast<std::size_t>(t)][row]);
                    // A lane rounds each of its sums, then the butterfly its five.
                    const double roundings = std::ceil(static_cast<double>(n) / 256.0) * 8.0 + 5.0;
                    CHECK(std::fabs(value - exact) <= (roundings + 1.0) * kUnit * magnitudes);
                    CHECK(magnitudes > 0.0);
                    if (!format.quantise) continue;
                    // dot_fp8 rounds the sums of a block of 32, and those of the blocks.
                    const float by_blocks = dot_fp8(o.weights.data() + row * n, o.weights.scales.data(), codes.data(),
                                                    scales.data(), o.shape.k);
                    const double more = 32.0 + static_cast<double>(n) / 32.0;
                    CHECK(std::fabs(value - double{by_blocks}) <= (roundings + more + 1.0) * kUnit * magnitudes);
                }
            }
        }
    }
}

TEST_CASE("linear: rows and columns of every count") {
    Random random(723);
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        for (const int k : {1, 2, 7, 8, 9, 31, 33, 255, 257, 511, 513, 1023, 1024, 1025, 2047, 2056}) {
            if (k % format.step > 1 && k % format.step < format.step - 1) continue;
            CAPTURE(k);
            check(make_problem(random, format.format, 2, {matrix(format, 3, k)}));
        }
        for (const int rows : {1, 2, 15, 16, 17, 31, 32, 33, 65}) {
            CAPTURE(rows);
            check(make_problem(random, format.format, 2, {matrix(format, rows, 96, LinearOutput::kBf16)}));
        }
    }
}

TEST_CASE("linear: every kind of output") {
    Random random(724);
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        for (const int head_dim : {2, 8, 6, 32}) {
            for (const int n_pairs : {0, 1, 3, head_dim / 2}) {
                if (2 * n_pairs > head_dim) continue;
                CAPTURE(head_dim);
                CAPTURE(n_pairs);
                Matrix shape = matrix(format, 3 * head_dim, 64, LinearOutput::kRotated);
                shape.head_dim = head_dim;
                shape.n_pairs = n_pairs;
                check(make_problem(random, format.format, 3, {shape}));
            }
        }
        for (const auto output : {LinearOutput::kScaled, LinearOutput::kBf16, LinearOutput::kF32}) {
            CAPTURE(static_cast<int>(output));
            check(make_problem(random, format.format, 5, {matrix(format, 21, 320, output)}));
        }
    }
}

TEST_CASE("linear: addresses that are not aligned to vectors") {
    Random random(725);
    for (const Format &format : kFormats) {
        // The codes of fp8 blocks stand on 8 bytes; blocks of Q2_K anywhere.
        const int weight_offset = format.format == LinearFormat::kFp8 ? 8 : value_bytes(format.format);
        for (int kind = 1; kind < 8; ++kind) {
            CAPTURE(std::string(format.name));
            CAPTURE(kind);
            Matrix shape = matrix(format, 5, 1100);
            shape.k = (shape.k + 7) / 8 * 8;
            if (kind & 1) shape.x_offset = 1;
            if (kind & 2) shape.weight_offset = weight_offset;
            if (kind & 4) shape.x_gap = 3;
            check(make_problem(random, format.format, 3, {shape}));
            // One matrix out of line, another not.
            check(make_problem(random, format.format, 2, {matrix(format, 5, 256), shape}));
        }
    }
}

TEST_CASE("linear: slices read their part of x and write theirs of the output") {
    Random random(726);
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        for (const int n_slices : {2, 3, 8}) {
            CAPTURE(n_slices);
            for (const int rows : {4, 17, 32}) {
                CAPTURE(rows);
                Matrix shape = matrix(format, rows, 96, LinearOutput::kBf16);
                shape.n_slices = n_slices;
                check(make_problem(random, format.format, 2, {shape}));
            }
        }
        Matrix wide = matrix(format, 16, 1200, LinearOutput::kBf16);
        wide.n_slices = 2;
        check(make_problem(random, format.format, 3, {wide}));
    }
}

TEST_CASE("linear: a row's bits depend on no other row, no other matrix and no order of blocks") {
    Random random(727);
    const std::uint64_t seed = simt::seed();
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        Matrix rotated = matrix(format, 24, 600, LinearOutput::kRotated);
        rotated.head_dim = 8;
        rotated.n_pairs = 2;
        Matrix slices = matrix(format, 5, 300, LinearOutput::kF32);
        slices.n_slices = 3;
        const Problem problem =
            make_problem(random, format.format, 16,
                         {matrix(format, 17, 1100), rotated, slices, matrix(format, 33, 40, LinearOutput::kScaled)});
        const std::vector<Rows> all = run(problem);
        for (std::size_t i = 0; i < 4; ++i) {
            CAPTURE(i);
            for (const int first : {0, 7, 15}) {
                for (const int n : {1, 2, 3, 9}) {
                    if (first + n > 16) continue;
                    CAPTURE(first);
                    CAPTURE(n);
                    const Rows alone = run(problem, first, n, {i})[0];
                    for (int t = 0; t < n; ++t)
                        CHECK(
                            same_bits(alone[static_cast<std::size_t>(t)], all[i][static_cast<std::size_t>(first + t)]));
                }
            }
        }
        for (int t = 0; t < 16; ++t)
            CHECK(same_bits(all[1][static_cast<std::size_t>(t)], expected_row(problem, problem.operands[1], t)));
        for (std::uint64_t other = 100; other < 104; ++other) {
            CAPTURE(other);
            simt::set_seed(other);
            const std::vector<Rows> again = run(problem, 0, 3, {3, 1, 0});
            for (std::size_t t = 0; t < 3; ++t) {
                CHECK(same_bits(again[0][t], all[3][t]));
                CHECK(same_bits(again[1][t], all[1][t]));
                CHECK(same_bits(again[2][t], all[0][t]));
            }
        }
        simt::set_seed(seed);
    }
}

TEST_CASE("linear: shapes of the model") {
    Random random(728);
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        check(make_problem(random, format.format, 1, {matrix(format, 34, 5120, LinearOutput::kBf16)}));
        check(make_problem(random, format.format, 3, {matrix(format, 10, 5120, LinearOutput::kBf16)}));
    }
    Matrix slices = matrix(kFormats[0], 16, 4096, LinearOutput::kBf16);
    slices.n_slices = 2;
    check(make_problem(random, LinearFormat::kBf16, 2, {slices}));
    Matrix heads = matrix(kFormats[0], 512, 128, LinearOutput::kRotated);
    heads.head_dim = 512;
    heads.n_pairs = 32;
    check(make_problem(random, LinearFormat::kBf16, 2, {heads}));
}

TEST_CASE("linear: NaN and infinities reach the outputs that they belong to, and no others") {
    Random random(729);
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        for (const int bits : {0x7fc0, 0xffc1, 0x7f80, 0xff80}) {
            CAPTURE(bits);
            Problem problem = make_problem(random, format.format, 3,
                                           {matrix(format, 4, 1100, LinearOutput::kBf16), matrix(format, 4, 64)});
            const Operand &o = problem.operands[0];
            const Rows before = run(problem)[0];
            // Of the second row only, where its last block begins.
            o.x[static_cast<std::size_t>(o.shape.x_offset + o.stride_x + o.shape.k - format.step)] =
                Bf16{static_cast<std::uint16_t>(bits)};
            const Rows after = run(problem)[0];
            CHECK(same_bits(after[0], before[0]));
            CHECK(same_bits(after[2], before[2]));
            CHECK(same_bits(after[1], expected_row(problem, o, 1)));
            CHECK(std::none_of(after[1].begin(), after[1].end(), [](float v) { return is_finite(v); }));
            check(problem);
        }
    }
    // A weight that is NaN.
    for (const Format &format : kFormats) {
        if (format.format != LinearFormat::kFp8 && format.format != LinearFormat::kF32) continue;
        CAPTURE(std::string(format.name));
        Problem problem = make_problem(random, format.format, 2, {matrix(format, 4, 64)});
        Weights &w = problem.operands[0].weights;
        const std::size_t at = 2 * 64 + 5;
        w.values[at] = float_from_bits(0x7fc00000u);
        if (format.format == LinearFormat::kFp8)
            w.bytes[at] = 0xff;
        else
            std::memcpy(w.bytes.data() + at * sizeof(float), &w.values[at], sizeof(float));
        const Rows rows = run(problem)[0];
        for (const auto &row : rows) CHECK((is_nan(row[2]) && !is_nan(row[1]) && !is_nan(row[3])));
        check(problem);
    }
}

TEST_CASE("quantise_q8: codes and scales of lib/numeric") {
    Random random(730);
    for (const int n : {1, 3, 16}) {
        for (const int k : {32, 96, 160, 1024, 5120}) {
            if (n == 16 && k > 1024) continue;
            CAPTURE(n);
            CAPTURE(k);
            for (const int offset : {0, 1}) {
                const int stride = k + 5;
                const Array<Bf16> x(static_cast<std::size_t>(offset + (n - 1) * stride + k));
                for (int t = 0; t < n; ++t)
                    for (int b = 0; b < k / kQ8Block; ++b) {
                        // Blocks of every kind: zeros, the smallest numbers, halves between codes, specials.
                        const int kind = random.below(8);
                        for (int i = 0; i < kQ8Block; ++i) {
                            Bf16 &value = x[static_cast<std::size_t>(offset + t * stride + b * kQ8Block + i)];
                            switch (kind) {
                            case 0:
                                value = Bf16{static_cast<std::uint16_t>(i % 2 ? 0x8000 : 0)};
                                break;
                            case 1:
                                value = Bf16{static_cast<std::uint16_t>(random.below(9) | (i % 2 ? 0x8000 : 0))};
                                break;
                            case 2:
                                value = to_bf16(i == 7 ? 127.0f : static_cast<float>(random.between(-20, 20)) + 0.5f);
                                break;
                            case 3:
                                value = Bf16{static_cast<std::uint16_t>(random.bits())};
                                break;
                            case 4:
                                value =
                                    to_bf16(static_cast<float>(std::ldexp(random.normal(), random.between(-120, 120))));
                                break;
                            default:
                                value = to_bf16(static_cast<float>(random.normal()));
                                break;
                            }
                        }
                    }
                const Array<std::int8_t> codes(static_cast<std::size_t>(n * k));
                const Array<float> scales(codes.size() / kQ8Block);
                QuantiseQ8Params p{};
                p.x = x.data() + offset;
                p.codes = codes.data();
                p.scales = scales.data();
                p.stride_x = stride;
                p.n = n;
                p.k = k;
                REQUIRE_LAUNCHES(launch_quantise_q8(nullptr, p));
                std::vector<std::int8_t> expected_codes;
                std::vector<float> expected_scales;
                for (int t = 0; t < n; ++t) {
                    std::vector<Q8Block> blocks(static_cast<std::size_t>(k / kQ8Block));
                    quantise_q8(p.x + t * stride, k, blocks.data());
                    for (const Q8Block &block : blocks) {
                        expected_codes.insert(expected_codes.end(), block.codes, block.codes + kQ8Block);
                        expected_scales.push_back(f16_to_f32(block.d));
                    }
                }
                CHECK(same_bits(codes.get(), expected_codes, {n, k}));
                CHECK(same_bits(scales.get(), expected_scales, {n, k / kQ8Block}));
            }
        }
    }
}

TEST_SUITE_END();
