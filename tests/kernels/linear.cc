// Products of activation rows with weight matrices: the kernels bit for bit against scalar sums in the order that they
// state, and within a derived bound against exact sums and lib/numeric.
#include "linear/kernel.cuh"
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
    QuantisedForm form = QuantisedForm::kNone; // of the results, besides or instead of bf16
    bool only_quantised = false;
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
    bool quantise_before = false; // kFp8: what the product would quantise is quantised before
};

Problem make_problem(Random &random, LinearFormat format, int n, const std::vector<Matrix> &shapes) {
    Problem problem{format, n, {}, false};
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

    const char *access(const void *p, std::size_t n_bytes, simt::Access access, bool *) override {
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

// Rows of one form in memory, between others that nobody may touch: a block before and one behind in each row.
class QuantisedArrays {
public:
    QuantisedArrays(QuantisedForm form, int n, int width, bool is_padded)
        : form_(form), n_(n), width_(width), first_(is_padded ? kQuantisedBlock : 0), stride_(width + 2 * first_),
          values_(form == QuantisedForm::kFp8 ? count() : 0), codes_(form == QuantisedForm::kQ8 ? count() : 0),
          scales_(codes_.size() / kQuantisedBlock) {}

    QuantisedRows rows() const {
        QuantisedRows to{};
        to.form = form_;
        to.width = stride_;
        to.values = values_.size() ? values_.data() + first_ : nullptr;
        to.codes = codes_.size() ? codes_.data() + first_ : nullptr;
        to.scales = scales_.size() ? scales_.data() + first_ / kQuantisedBlock : nullptr;
        return to;
    }
    void declare(Declared &declared, simt::Access access) const {
        const QuantisedRows to = rows();
        const auto may = [&](const void *data, std::size_t n_bytes) {
            access == simt::Access::kRead ? declared.may_read(data, n_bytes) : declared.may_write(data, n_bytes);
        };
        const auto width = static_cast<std::size_t>(width_);
        for (int t = 0; t < n_; ++t) {
            if (to.values) may(to.values + t * stride_, width * sizeof(Bf16));
            if (to.codes) may(to.codes + t * stride_, width);
            if (to.scales) may(to.scales + t * (stride_ / kQuantisedBlock), width / kQuantisedBlock * sizeof(float));
        }
    }
    // Against what lib/numeric makes of a row.
    void check(int t, const Bf16 *row) const {
        const QuantisedRows to = rows();
        const auto width = static_cast<std::size_t>(width_);
        if (form_ == QuantisedForm::kFp8) {
            std::vector<std::uint8_t> codes(width);
            std::vector<float> scales(width / kQuantisedBlock), expected, actual;
            quantise_fp8_activations(row, width_, codes.data(), scales.data());
            for (std::size_t i = 0; i < width; ++i) {
                expected.push_back(round_bf16(e4m3_to_f32(codes[i]) * scales[i / kQuantisedBlock]));
                actual.push_back(to_f32(to.values[t * stride_ + static_cast<int>(i)]));
            }
            CHECK(same_bits(actual, expected));
        } else {
            std::vector<Q8Block> blocks(width / kQ8Block);
            quantise_q8(row, width_, blocks.data());
            std::vector<std::int8_t> expected;
            std::vector<float> scales;
            for (const Q8Block &block : blocks) {
                expected.insert(expected.end(), block.codes, block.codes + kQ8Block);
                scales.push_back(f16_to_f32(block.d));
            }
            const std::int8_t *codes = to.codes + t * stride_;
            const float *of_row = to.scales + t * (stride_ / kQ8Block);
            CHECK(same_bits(std::vector<std::int8_t>(codes, codes + width), expected));
            CHECK(same_bits(std::vector<float>(of_row, of_row + blocks.size()), scales));
        }
    }

private:
    std::size_t count() const { return static_cast<std::size_t>(n_ * stride_); }

    QuantisedForm form_;
    int n_, width_, first_, stride_;
    Array<Bf16> values_;
    Array<std::int8_t> codes_;
    Array<float> scales_;
};

// Under the caller's Watch.
QuantisedArrays quantise_rows(QuantisedForm form, const Bf16 *x, int stride_x, int n, int width) {
    QuantisedArrays arrays(form, n, width, false);
    QuantiseParams q{};
    q.x = x;
    q.stride_x = stride_x;
    q.n = n;
    q.out = arrays.rows();
    Declared declared;
    for (int t = 0; t < n; ++t) declared.may_read(x + t * stride_x, static_cast<std::size_t>(width) * sizeof(Bf16));
    arrays.declare(declared, simt::Access::kWrite);
    REQUIRE_LAUNCHES(launch_quantise(&declared, q));
    return arrays;
}

// Outputs of tokens [first, first + n) of the operands `which`, in one launch. `quantised` gets those in another form
// than bf16.
std::vector<Rows> run(const Problem &problem, int first, int n, const std::vector<std::size_t> &which,
                      std::vector<QuantisedArrays> *quantised = nullptr) {
    LinearParams p{};
    p.n_segments = static_cast<std::int32_t>(which.size());
    p.n = n;
    p.format = problem.format;
    std::vector<Array<std::uint8_t>> outputs;
    std::vector<QuantisedArrays> inputs;
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
        s.out = shape.only_quantised ? nullptr : outputs.back().data();
        if (quantised && shape.form != QuantisedForm::kNone) {
            quantised->emplace_back(shape.form, n, shape.all_rows(), true);
            s.quantised = quantised->back().rows();
            quantised->back().declare(declared, simt::Access::kWrite);
        }
        if (problem.format == LinearFormat::kQ2K) {
            inputs.push_back(quantise_rows(QuantisedForm::kQ8, o.row(first), o.stride_x, n, shape.all_k()));
            s.codes = inputs.back().rows().codes;
            s.code_scales = inputs.back().rows().scales;
            s.stride_x = 0;
        } else if (problem.quantise_before) {
            inputs.push_back(quantise_rows(QuantisedForm::kFp8, o.row(first), o.stride_x, n, shape.all_k()));
            s.x = inputs.back().rows().values;
            s.stride_x = shape.all_k();
            s.quantise = 0;
        } else {
            for (int t = 0; t < n; ++t)
                declared.may_read(o.row(first + t), static_cast<std::size_t>(shape.all_k()) * sizeof(Bf16));
        }
        if (!s.x || problem.quantise_before) inputs.back().declare(declared, simt::Access::kRead);
        declared.may_read(s.weights, o.weights.bytes.size() - static_cast<std::size_t>(shape.weight_offset));
        declared.may_read(s.scales, o.weights.scales.size());
        if (s.angles) declared.may_read(s.angles, static_cast<std::size_t>(2 * n * shape.n_pairs) * sizeof(float));
        for (int t = 0; t < n && s.out; ++t)
            declared.may_write(outputs.back().data() + static_cast<std::size_t>(t * s.stride_out) * size,
                               static_cast<std::size_t>(shape.all_rows()) * size);
    }
    simt::take_counts();
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

// The results of each operand against lib/numeric, and what is quantised of them.
void check_quantised(const Problem &problem) {
    std::vector<std::size_t> all(problem.operands.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    std::vector<QuantisedArrays> quantised;
    const std::vector<Rows> actual = run(problem, 0, problem.n, all, &quantised);
    auto arrays = quantised.begin();
    for (std::size_t i = 0; i < all.size(); ++i) {
        CAPTURE(i);
        const Operand &o = problem.operands[i];
        for (int t = 0; t < problem.n; ++t) {
            CAPTURE(t);
            const std::vector<float> expected = expected_row(problem, o, t);
            if (!o.shape.only_quantised) CHECK(same_bits(actual[i][static_cast<std::size_t>(t)], expected));
            if (o.shape.form == QuantisedForm::kNone) continue;
            std::vector<Bf16> row;
            for (const float value : expected) row.push_back(to_bf16(value));
            arrays->check(t, row.data());
        }
        if (o.shape.form != QuantisedForm::kNone) ++arrays;
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

TEST_CASE("linear: as many matrices as a launch takes") {
    Random random(737);
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        std::vector<Matrix> shapes;
        for (int i = 0; i < kMaxLinearSegments; ++i) {
            shapes.push_back(
                matrix(format, 1 + 16 * i, 64 + 256 * i, i % 2 ? LinearOutput::kBf16 : LinearOutput::kF32));
            shapes.back().n_slices = 1 + i % 3;
        }
        check(make_problem(random, format.format, 2, shapes));
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

TEST_CASE("linear: rows that are quantised before give the bits of a product that quantises them") {
    Random random(731);
    for (const int n : {1, 2, 3, 8, 9, 16}) {
        CAPTURE(n);
        Matrix slices = matrix(kFormats[3], 6, 320, LinearOutput::kBf16);
        slices.n_slices = 3;
        Matrix offset = matrix(kFormats[3], 5, 96);
        offset.x_offset = 1;
        Problem problem = make_problem(random, LinearFormat::kFp8, n, {matrix(kFormats[3], 18, 1312), slices, offset});
        // A block of NaN, of zeros, and of values below the quantiser's smallest scale.
        Operand &o = problem.operands[0];
        o.x[5] = Bf16{0x7fc1};
        for (std::size_t i = 0; i < kQuantisedBlock; ++i) {
            const auto row = static_cast<std::size_t>((n - 1) * o.stride_x);
            o.x[row + 64 + i] = Bf16{static_cast<std::uint16_t>(i % 2 ? 0x8000 : 0)};
            o.x[row + 96 + i] = to_bf16(static_cast<float>(1e-9 * random.normal()));
        }
        check(problem);
        const std::vector<Rows> before = run(problem);
        problem.quantise_before = true;
        check(problem);
        const std::vector<Rows> after = run(problem);
        for (std::size_t i = 0; i < before.size(); ++i)
            for (std::size_t t = 0; t < static_cast<std::size_t>(n); ++t) CHECK(same_bits(after[i][t], before[i][t]));
    }
}

TEST_CASE("linear: q8_1 scales that fp16 does not hold") {
    Random random(732);
    Problem problem = make_problem(random, LinearFormat::kQ2K, 5, {matrix(kFormats[4], 20, 2816)});
    const Operand &o = problem.operands[0];
    const auto set = [&](int t, int block, float scale) {
        for (int i = 0; i < kQ8Block; ++i)
            o.x[static_cast<std::size_t>(t * o.stride_x + block * kQ8Block + i)] =
                to_bf16(static_cast<float>(random.normal()) * scale);
    };
    for (int block = 0; block < o.shape.k / kQ8Block; ++block) {
        set(0, block, 0.0f);
        set(1, block, 1e-4f);                    // subnormal
        set(2, block, 1e-9f);                    // zero, with codes
        if (block % 9 == 2) set(3, block, 1e9f); // infinite
        set(4, block, block % 2 ? 1e6f : 1e-9f);
    }
    check(problem);
    const Rows rows = run(problem)[0];
    for (const std::size_t t : {0u, 2u})
        CHECK(std::all_of(rows[t].begin(), rows[t].end(), [](float v) { return v == 0.0f; }));
    CHECK(std::none_of(rows[1].begin(), rows[1].end(), [](float v) { return v == 0.0f; }));
    CHECK(std::none_of(rows[3].begin(), rows[3].end(), [](float v) { return is_finite(v); }));
}

TEST_CASE("linear: every half is the float that lib/numeric says") {
    for (std::uint32_t half = 0; half < 0x10000; ++half) {
        CAPTURE(half);
        REQUIRE(float_bits(half_to_f32(half)) == float_bits(f16_to_f32(static_cast<std::uint16_t>(half))));
        REQUIRE(float_bits(half_to_f32(0xabcd0000u | half)) == float_bits(half_to_f32(half)));
    }
}

TEST_CASE("linear: results quantised, besides bf16 or instead") {
    Random random(733);
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        for (const int n : {1, 2, 3, 8, 9, 16}) {
            CAPTURE(n);
            for (const auto form : {QuantisedForm::kFp8, QuantisedForm::kQ8}) {
                CAPTURE(static_cast<int>(form));
                Matrix both = matrix(format, n < 8 ? 64 : 32, n == 1 ? 2100 : 300, LinearOutput::kBf16);
                both.form = form;
                Matrix slices = matrix(format, 32, n == 9 ? 1100 : 256, LinearOutput::kBf16);
                slices.n_slices = n < 4 ? 8 : 2;
                slices.form = form;
                slices.only_quantised = true;
                if (n == 3) slices.x_offset = 1;
                check_quantised(make_problem(random, format.format, n, {both, slices}));
            }
        }
        // With neighbours that are not quantised, of which some have rows that fill no thread block.
        Matrix rotated = matrix(format, 12, 64, LinearOutput::kRotated);
        rotated.head_dim = 6;
        rotated.n_pairs = 2;
        Matrix fp8 = matrix(format, 32, 96, LinearOutput::kBf16), q8 = matrix(format, 96, 96, LinearOutput::kBf16);
        fp8.form = QuantisedForm::kFp8;
        q8.form = QuantisedForm::kQ8;
        check_quantised(make_problem(random, format.format, 3,
                                     {matrix(format, 33, 1100), fp8, rotated, q8,
                                      matrix(format, 17, 40, LinearOutput::kScaled), matrix(format, 1, 300)}));
    }
}

TEST_CASE("linear: quantised results of zeros, NaN and infinities") {
    Random random(734);
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        for (const auto form : {QuantisedForm::kFp8, QuantisedForm::kQ8}) {
            CAPTURE(static_cast<int>(form));
            Matrix shape = matrix(format, 64, 256, LinearOutput::kBf16);
            shape.form = form;
            Problem problem = make_problem(random, format.format, 3, {shape});
            const Operand &o = problem.operands[0];
            for (int i = 0; i < o.shape.k; ++i) o.x[static_cast<std::size_t>(i)] = Bf16{0};
            o.x[static_cast<std::size_t>(o.stride_x + 3)] = Bf16{0x7f80};
            check_quantised(problem);
            // One row of the matrix, so one block of a result.
            Weights &w = problem.operands[0].weights;
            const std::size_t at = 40 * 256 + 5;
            if (format.format == LinearFormat::kFp8)
                w.bytes[at] = 0x7f;
            else if (format.format == LinearFormat::kF32)
                std::memcpy(w.bytes.data() + at * sizeof(float), "\0\0\xc0\x7f", sizeof(float));
            else
                continue;
            w.values[at] = float_from_bits(0x7fc00000u);
            check_quantised(problem);
        }
    }
}

TEST_CASE("linear: products that underflow give the same zero whatever rides along") {
    Random random(738);
    for (const int n : {1, 4, 16}) {
        CAPTURE(n);
        for (const auto form : {QuantisedForm::kNone, QuantisedForm::kFp8}) {
            CAPTURE(static_cast<int>(form));
            for (const int k : {512, 1024, 1536}) {
                CAPTURE(k);
                Matrix shape = matrix(kFormats[1], 32, k, LinearOutput::kBf16);
                shape.form = form;
                Problem problem = make_problem(random, LinearFormat::kF32, n, {shape});
                Operand &o = problem.operands[0];
                for (std::size_t i = 0; i < o.x.size(); ++i) o.x[i] = to_bf16(1e-30f);
                for (std::size_t i = 0; i < o.weights.values.size(); ++i) {
                    o.weights.values[i] = -1e-30f;
                    std::memcpy(o.weights.bytes.data() + i * sizeof(float), &o.weights.values[i], sizeof(float));
                }
                check_quantised(problem);
            }
        }
    }
}

TEST_CASE("linear: results that cannot be quantised are refused") {
    Random random(735);
    const Weights weights = make_weights(random, LinearFormat::kBf16, matrix(kFormats[0], 64, 32));
    const Array<Bf16> x(64), out(64);
    const QuantisedArrays arrays(QuantisedForm::kFp8, 1, 64, false);
    LinearParams p{};
    p.n_segments = p.n = 1;
    p.format = LinearFormat::kBf16;
    LinearSegment &s = p.segments[0];
    s.weights = weights.data();
    s.x = x.data();
    s.out = out.data();
    s.rows = s.k = 32;
    s.n_slices = 2;
    s.quantised = arrays.rows();
    CHECK(launch_linear(nullptr, p) == 0);
    s.rows = 16;
    CHECK(launch_linear(nullptr, p) != 0);
    s.rows = 32;
    for (const auto output : {LinearOutput::kF32, LinearOutput::kScaled, LinearOutput::kRotated}) {
        s.output = output;
        CHECK(launch_linear(nullptr, p) != 0);
    }
    QuantiseParams q{};
    q.x = x.data();
    q.n = 1;
    q.out = arrays.rows();
    q.out.width = 32;
    CHECK(launch_quantise(nullptr, q) == 0);
    q.out.width = 31;
    CHECK(launch_quantise(nullptr, q) != 0);
    q.out.width = 32;
    q.out.form = QuantisedForm::kNone;
    CHECK(launch_quantise(nullptr, q) != 0);
}

TEST_CASE("linear: a product of one row asks for little more than the weights' bytes") {
    Random random(736);
    for (const Format &format : kFormats) {
        CAPTURE(std::string(format.name));
        for (const auto form : {QuantisedForm::kNone, QuantisedForm::kQ8}) {
            CAPTURE(static_cast<int>(form));
            Matrix shape = matrix(format, 128, 5120, LinearOutput::kBf16);
            shape.form = form;
            const Problem problem = make_problem(random, format.format, 1, {shape});
            std::vector<QuantisedArrays> quantised;
            run(problem, 0, 1, {0}, &quantised);
            const simt::Counts counts = simt::take_counts();
            const Weights &w = problem.operands[0].weights;
            const auto weights = static_cast<double>(w.bytes.size() + w.scales.size());
            const double ratio = static_cast<double>(counts.bytes_read + counts.bytes_written) / weights;
            CAPTURE(ratio);
            CHECK(counts.n_launches == 1);
            CHECK(ratio >= 1.0);
            CHECK(ratio <= 1.4);
        }
    }
}

TEST_CASE("quantise: both forms of lib/numeric") {
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
                const Watch watch;
                for (const auto form : {QuantisedForm::kFp8, QuantisedForm::kQ8}) {
                    CAPTURE(static_cast<int>(form));
                    const QuantisedArrays arrays = quantise_rows(form, x.data() + offset, stride, n, k);
                    for (int t = 0; t < n; ++t) arrays.check(t, x.data() + offset + t * stride);
                }
            }
        }
    }
}

TEST_SUITE_END();
