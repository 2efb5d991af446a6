// Sparse attention: the kernels against softmax in double over rows that lib/numeric unpacks, within a bound that
// follows from f32's steps; and against themselves bit for bit, for every split, tile and order. All that a token does
// not attend to is NaN: ring slots out of reach, groups that nobody selected, row 0 behind an absent entry, the
// workspace.
#include "attend/launch.h"
#include "attend/rows.cuh"
#include "common/exp.cuh"
#include "paged_step.h"
#include "quantised.h"
#include "rows/launch.h"
#include "support/compare.h"

#include <limits>

using namespace ds41;
using namespace ds41::kernels;
using namespace ds41::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kStep = 0x1p-24; // what rounding an f32 result can be off by, of its value

struct Case {
    const char *name;
    int n_heads, head_dim, rope_dim, window, ratio, topk;
    Spans spans;
    int absent_every = 1000; // every so many tokens has no group
};

struct Scene {
    Case shape;
    int n_group_slots = 0;
    Array<Token> tokens;
    Array<SpanRows> span_rows;
    std::vector<Pages> window, compressed;
    Array<std::uint8_t> window_new;
    Array<std::int32_t> groups;
    Array<Bf16> q;
    Array<float> sink, rope;

    float scale() const { return static_cast<float>(std::pow(double(shape.head_dim), -0.5)); }
    std::size_t width() const { return static_cast<std::size_t>(shape.n_heads * shape.head_dim); }
};

Scene make_scene(Random &random, const Case &shape) {
    Scene scene{shape,
                0,
                tokens_of(shape.spans),
                span_rows_of(shape.spans),
                {},
                {},
                Array<std::uint8_t>(),
                Array<std::int32_t>(),
                Array<Bf16>(),
                Array<float>(),
                Array<float>()};
    const std::size_t n = scene.tokens.size();
    const int dim = shape.head_dim;
    std::int64_t most = 0;
    for (const Span &span : shape.spans) most = std::max(most, shape.ratio ? span.end_pos() / shape.ratio : 0);
    scene.n_group_slots = static_cast<int>(std::min<std::int64_t>(shape.topk, most));
    scene.window_new = Array<std::uint8_t>(n * window_row_bytes(dim));
    std::vector<std::int32_t> groups;
    std::size_t token = 0;
    for (std::size_t s = 0; s < shape.spans.size(); ++s) {
        const Span &span = shape.spans[s];
        scene.window.emplace_back(shape.window, window_row_bytes(dim));
        for (std::int64_t pos = std::max<std::int64_t>(0, span.start_pos - shape.window + 1); pos < span.start_pos;
             ++pos)
            pack_window_row(uneven_row(random, dim, kWindowBlock, 2).data(), dim,
                            scene.window.back().row(pos % shape.window));
        scene.compressed.emplace_back(shape.ratio ? span.end_pos() / shape.ratio : 0, compressed_row_bytes(dim));
        for (int i = 0; i < span.n_tokens; ++i, ++token) {
            pack_window_row(uneven_row(random, dim, kWindowBlock, 2).data(), dim,
                            scene.window_new.data() + token * window_row_bytes(dim));
            std::vector<std::int32_t> chosen;
            const auto visible = static_cast<std::int32_t>(shape.ratio ? (span.start_pos + i + 1) / shape.ratio : 0);
            const bool absent = (token + 1) % static_cast<std::size_t>(shape.absent_every) == 0;
            for (std::int32_t group = visible > 1 ? 1 : 0; group < visible && !absent; ++group) // row 0 stays NaN
                if (random.below(visible) < shape.topk) chosen.push_back(group);
            while (static_cast<int>(chosen.size()) > scene.n_group_slots)
                chosen.erase(chosen.begin() + random.below(static_cast<int>(chosen.size())));
            for (const std::int32_t group : chosen)
                pack_compressed_row(uneven_row(random, dim, kCompressedBlock, 2).data(), dim,
                                    scene.compressed.back().row(group));
            chosen.resize(static_cast<std::size_t>(scene.n_group_slots), -1);
            groups.insert(groups.end(), chosen.begin(), chosen.end());
        }
        scene.span_rows[s].window = scene.window.back().table();
        scene.span_rows[s].compressed = scene.compressed.back().table();
    }
    scene.groups = groups;
    scene.q = random.bf16_row(static_cast<int>(n * scene.width()), 1.0);
    std::vector<float> sink, rope;
    for (int h = 0; h < shape.n_heads; ++h) sink.push_back(static_cast<float>(random.normal()));
    for (std::size_t i = 0; i < n * static_cast<std::size_t>(shape.rope_dim / 2); ++i) {
        const double angle = random.uniform(-3.0, 3.0);
        rope.push_back(static_cast<float>(std::cos(angle)));
        rope.push_back(static_cast<float>(std::sin(angle)));
    }
    scene.sink = sink;
    scene.rope = rope;
    return scene;
}

// Places without a token behind the step's last, with nothing but NaN for them.
void pad(Scene &scene, int n_more) {
    const auto more = static_cast<std::size_t>(n_more), dim = static_cast<std::size_t>(scene.shape.head_dim);
    scene.tokens = padded(scene.tokens, n_more);
    scene.window_new = extended(scene.window_new, more * window_row_bytes(static_cast<int>(dim)));
    scene.groups = extended(scene.groups, more * static_cast<std::size_t>(scene.n_group_slots));
    scene.q = extended(scene.q, more * scene.width());
    scene.rope = extended(scene.rope, more * static_cast<std::size_t>(scene.shape.rope_dim));
}

// ---- The model.

std::vector<std::vector<Bf16>> rows_of(const Scene &scene, std::size_t token) {
    const Case &shape = scene.shape;
    const Token &t = scene.tokens[token];
    const SpanRows &span = scene.span_rows[static_cast<std::size_t>(t.span)];
    std::vector<std::vector<Bf16>> rows;
    for (std::int64_t pos = std::max<std::int64_t>(0, t.pos - shape.window + 1); pos <= t.pos; ++pos) {
        rows.emplace_back(static_cast<std::size_t>(shape.head_dim));
        const auto of_step = static_cast<std::size_t>(span.first_token + pos - span.start_pos);
        unpack_window_row(pos < span.start_pos ? scene.window[static_cast<std::size_t>(t.span)].row(pos % shape.window)
                                               : scene.window_new.data() + of_step * window_row_bytes(shape.head_dim),
                          shape.head_dim, rows.back().data());
    }
    for (int slot = 0; slot < scene.n_group_slots; ++slot) {
        const std::int32_t group =
            scene.groups[token * static_cast<std::size_t>(scene.n_group_slots) + static_cast<std::size_t>(slot)];
        if (group < 0) break;
        rows.emplace_back(static_cast<std::size_t>(shape.head_dim));
        unpack_compressed_row(scene.compressed[static_cast<std::size_t>(t.span)].row(group), shape.head_dim,
                              rows.back().data());
    }
    return rows;
}

enum class Kernel { kPortable, kTensor };

struct Bounded {
    double value, error;
};

// One head before rounding, and how far f32 may stray from it.
std::vector<Bounded> attend_head(const Bf16 *q, const std::vector<std::vector<Bf16>> &rows, std::size_t dim,
                                 double scale, float sink, Kernel kernel) {
    std::vector<Bounded> o(dim, {0.0, 0.0});
    if (!(sink < kInfinity) || rows.empty()) return o;
    // A product goes through 8 additions for each 256 columns, and 5 of lanes; on tensor cores through as many as an
    // eighth of the columns, each rounded or truncated, and 8 of parts. Weights have 17 bits there.
    const bool tensor = kernel == Kernel::kTensor;
    const double dot_steps = static_cast<double>(tensor ? 2 * (dim / 8) + 8 : 8 * ((dim + 255) / 256) + 5);
    const double split_error = tensor ? 0x1p-17 : 0.0;
    std::vector<Bounded> scores;
    double max = double{sink};
    for (const auto &row : rows) {
        double dot = 0.0, size = 0.0;
        for (std::size_t e = 0; e < dim; ++e) {
            dot += double{to_f32(q[e])} * double{to_f32(row[e])};
            size += std::fabs(double{to_f32(q[e])} * double{to_f32(row[e])});
        }
        scores.push_back({dot * scale, scale * (size * dot_steps + std::fabs(dot)) * kStep});
        max = std::max(max, dot * scale);
    }
    // A weight is as wrong as its score and as three differences of maxima (of its tile, of its chunk, of all), and by
    // two steps of each exponential; what is zero is exact.
    const auto weigh = [&](Bounded score) -> Bounded {
        const double weight = std::exp(score.value - max);
        const double off = score.error + 3.0 * std::fabs(score.value - max) * kStep;
        return {weight, weight > 0.0 ? weight * std::expm1(off + 6.0 * kStep) : 0.0};
    };
    const double sum_steps = static_cast<double>(rows.size()) + 4.0;
    Bounded total = weigh({double{sink}, 0.0});
    std::vector<Bounded> weights;
    for (const Bounded score : scores) {
        weights.push_back(weigh(score));
        total.value += weights.back().value;
        total.error += weights.back().error;
    }
    total.error += total.value * 12.0 * kStep; // of a tile's sum of 32 weights, and of joining
    for (std::size_t e = 0; e < dim; ++e) {
        double sum = 0.0, size = 0.0, error = 0.0;
        for (std::size_t r = 0; r < rows.size(); ++r) {
            const double x = double{to_f32(rows[r][e])};
            sum += weights[r].value * x;
            size += weights[r].value * std::fabs(x);
            error += weights[r].error * std::fabs(x);
        }
        // Rounding errors of a long sum go both ways: their square root is more than enough.
        error += size * (std::sqrt(sum_steps) * (tensor ? 4.0 : 2.0) * kStep + split_error) +
                 std::fabs(sum) / total.value * total.error;
        // Weights below the smallest normal number may be zero.
        o[e] = {sum / total.value,
                error / total.value + (size > 0.0 ? 4.0 * kStep * std::fabs(sum / total.value) + 1e-37 : 0.0)};
    }
    return o;
}

// ---- The kernels.

struct Result {
    std::vector<Bf16> before, rotated;
};

bool operator==(const Result &a, const Result &b) {
    return same_bits(a.before, b.before) && same_bits(a.rotated, b.rotated);
}

struct More {
    bool tapped = true, stored = true;
    const QuantisedCopy *quantised = nullptr; // of one tile
    bool commit = false;
};

Result run(const Scene &scene, const std::vector<int> &tiles, int n_splits, Kernel kernel = Kernel::kPortable,
           const More &more = {}) {
    const Case &shape = scene.shape;
    Result result;
    int first = 0;
    for (const int n : tiles) {
        const auto at = static_cast<std::size_t>(first), tile = static_cast<std::size_t>(n);
        const Array<Bf16> q(scene.q.get(at * scene.width(), tile * scene.width()));
        const Array<Bf16> before(tile * scene.width()), o(tile * scene.width());
        AttendParams p{};
        p.tokens = scene.tokens.data();
        p.spans = scene.span_rows.data();
        p.first = first;
        p.n = n;
        p.window_size = shape.window;
        p.n_heads = shape.n_heads;
        p.head_dim = shape.head_dim;
        p.rope_dim = shape.rope_dim;
        p.q = q.data();
        p.window_new = scene.window_new.data();
        p.groups = shape.ratio ? scene.groups.data() : nullptr;
        p.n_group_slots = shape.ratio ? scene.n_group_slots : 1000; // of no array: nobody looks
        p.sink = scene.sink.data();
        p.scale = scene.scale();
        p.rope = scene.rope.data();
        p.n_splits = n_splits;
        p.o_before = more.tapped ? before.data() : nullptr;
        p.o = more.stored ? o.data() : nullptr;
        if (more.quantised) p.quantised = more.quantised->rows();
        p.commit = more.commit;
        const Array<float> workspace(attend_workspace_bytes(p) / sizeof(float));
        if (workspace.size() > 0) p.workspace = workspace.data();
        REQUIRE_LAUNCHES(kernel == Kernel::kTensor ? launch_attend_tensor(nullptr, p) : launch_attend(nullptr, p));
        const auto all = before.get(), turned = o.get();
        result.before.insert(result.before.end(), all.begin(), all.end());
        result.rotated.insert(result.rotated.end(), turned.begin(), turned.end());
        first += n;
    }
    return result;
}

void check_values(const Scene &scene, const Result &result, Kernel kernel = Kernel::kPortable) {
    const auto dim = static_cast<std::size_t>(scene.shape.head_dim),
               heads = static_cast<std::size_t>(scene.shape.n_heads),
               rope = static_cast<std::size_t>(scene.shape.rope_dim);
    Tally values, rotations;
    std::size_t n_loose = 0;
    for (std::size_t t = 0; t < scene.tokens.size(); ++t) {
        const auto rows = rows_of(scene, t);
        for (std::size_t h = 0; h < heads; ++h) {
            const std::size_t at = (t * heads + h) * dim;
            const auto expected =
                attend_head(scene.q.data() + at, rows, dim, double{scene.scale()}, scene.sink[h], kernel);
            for (std::size_t e = 0; e < dim; ++e) {
                const float low = round_bf16(static_cast<float>(expected[e].value - expected[e].error)),
                            high = round_bf16(static_cast<float>(expected[e].value + expected[e].error));
                const float actual = to_f32(result.before[at + e]);
                n_loose += low != high;
                values.expect(actual >= low && actual <= high,
                              "token %zu head %zu column %zu: got %g, expected %g to %g", t, h, e, double{actual},
                              double{low}, double{high});
                if (e < dim - rope)
                    rotations.expect(result.rotated[at + e].bits == result.before[at + e].bits, "column %zu is rotated",
                                     e);
            }
            for (std::size_t k = 0; k < rope / 2; ++k) {
                const std::size_t pair = at + dim - rope + 2 * k, angle = t * rope + 2 * k;
                const float re = to_f32(result.before[pair]), im = to_f32(result.before[pair + 1]);
                const float cosine = scene.rope[angle], sine = -scene.rope[angle + 1];
                rotations.expect(result.rotated[pair].bits == to_bf16(re * cosine - im * sine).bits &&
                                     result.rotated[pair + 1].bits == to_bf16(re * sine + im * cosine).bits,
                                 "token %zu head %zu pair %zu", t, h, k);
            }
        }
    }
    CHECK(values);
    CHECK(rotations);
    // The bound is worth something: mostly one value is accepted, on tensor cores often two.
    CHECK(n_loose <= 4 + result.before.size() / (kernel == Kernel::kTensor ? 2 : 5));
}

const Case kCases[] = {
    {"one token, nothing else", 1, 32, 2, 4, 0, 0, {{0, 1}}},
    {"production heads", 64, 512, 64, 16, 1, 24, {{40, 1}}},
    {"production widths, more than one chunk", 8, 512, 64, 128, 2, 100, {{300, 2}}},
    {"as many heads as a block has, several sequences", 8, 64, 16, 8, 1, 70, {{0, 3}, {90, 2}, {200, 1}}},
    {"odd heads, rows that are not words", 5, 96, 32, 7, 3, 10, {{50, 8}}},
    {"nine heads, whole head rotated", 9, 32, 32, 5, 1, 40, {{64, 3}}},
    {"a pair across the border of a thread's columns", 2, 64, 30, 3, 1, 3, {{4, 2}}},
    {"all columns of a head are not a block's", 3, 544, 64, 4, 1, 40, {{70, 2}}},
    {"three pieces", 2, 1152, 130, 3, 2, 5, {{33, 2}}},
    {"no group complete", 3, 64, 8, 4, 8, 4, {{0, 2}}},
    {"some have no group", 3, 64, 8, 4, 2, 4, {{3, 9}}, 2},
    {"none has a group", 4, 64, 8, 4, 2, 4, {{30, 3}}, 1},
    {"window of a chunk and a row", 2, 32, 4, 65, 1, 64, {{300, 1}, {63, 1}, {0, 1}}},
    {"rows that end with a tile and with a chunk", 2, 32, 4, 32, 1, 32, {{400, 2}, {30, 3}}},
    {"window that wraps within the step", 2, 64, 8, 4, 0, 0, {{10, 16}}},
    {"more chunks than a warp has lanes", 1, 32, 8, 2100, 0, 0, {{2500, 1}, {30, 1}}},
    {"16 sequences",
     2,
     32,
     8,
     8,
     1,
     9,
     {{0, 1},
      {1, 1},
      {2, 1},
      {3, 1},
      {4, 1},
      {5, 1},
      {6, 1},
      {7, 1},
      {8, 1},
      {9, 1},
      {30, 1},
      {31, 1},
      {32, 1},
      {90, 1},
      {91, 1},
      {500, 1}}},
    {"several pieces, more than one chunk", 3, 544, 64, 70, 1, 40, {{100, 2}}},
};

} // namespace

TEST_SUITE_BEGIN("kernels");

TEST_CASE("attend: every code and scale of a row unpacks as it should") {
    Tally tally;
    for (int scale = 0; scale < 256; ++scale) {
        for (int code = 0; code < 256; ++code) {
            // A code of NaN comes with a scale of NaN.
            if ((code & 0x7f) == kE4m3Nan && scale != kUe8m0Nan) continue;
            Array<std::uint8_t> row(33);
            for (std::size_t i = 0; i < 32; ++i) row[i] = static_cast<std::uint8_t>(i % 3 ? code : 0x38);
            row[32] = static_cast<std::uint8_t>(scale);
            Bf16 expected[32];
            unpack_window_row(row.data(), 32, expected);
            for (const int u : {0, 1}) {
                const Unit unit = unpack_unit(load_window_unit(row.data(), 32, u), true);
                for (int i = 0; i < kUnit; ++i) {
                    const float actual = i % 2 ? high_bf16(unit.words[i / 2]) : low_bf16(unit.words[i / 2]),
                                wanted = to_f32(expected[kUnit * u + i]);
                    tally.expect(is_nan(wanted) ? is_nan(actual) : float_bits(actual) == float_bits(wanted),
                                 "e4m3 %02x, scale %02x, value %d: %g, expected %g", code, scale, i, double{actual},
                                 double{wanted});
                }
            }
        }
        Array<std::uint8_t> row(18);
        for (std::size_t i = 0; i < 16; ++i)
            row[i] = static_cast<std::uint8_t>(i < 8 ? 2 * i | (2 * i + 1) << 4 : 0x71 * i);
        row[16] = row[17] = static_cast<std::uint8_t>(scale);
        Bf16 expected[32];
        unpack_compressed_row(row.data(), 32, expected);
        for (const int u : {0, 1}) {
            const Unit unit = unpack_unit(load_compressed_unit(row.data(), 32, u), false);
            for (int i = 0; i < kUnit; ++i) {
                const float actual = i % 2 ? high_bf16(unit.words[i / 2]) : low_bf16(unit.words[i / 2]),
                            wanted = to_f32(expected[kUnit * u + i]);
                tally.expect(is_nan(wanted) ? is_nan(actual) : float_bits(actual) == float_bits(wanted),
                             "e2m1, scale %02x, value %d: %g, expected %g", scale, i, double{actual}, double{wanted});
            }
        }
    }
    CHECK(tally);
}

TEST_CASE("attend: every shape, in tiles of every size and with every split, to the bit") {
    Random random(721);
    for (const Case &shape : kCases) {
        CAPTURE(std::string(shape.name));
        const Scene scene = make_scene(random, shape);
        const int n = token_count(shape.spans);
        const Result whole = run(scene, {n}, 1);
        check_values(scene, whole);
        for (const int n_splits : {0, 2, 3, 8, 1000}) {
            CAPTURE(n_splits);
            CHECK(run(scene, {n}, n_splits) == whole);
        }
        for (const auto &tiles : tilings(n)) {
            CAPTURE(tiles.size());
            CHECK(run(scene, tiles, tiles.size() % 2 ? 0 : 1) == whole);
        }
    }
}

TEST_CASE("attend on tensor cores: every shape, in tiles of every size and orders of every kind") {
    const Case cases[] = {
        {"one token, one head", 1, 128, 2, 4, 0, 0, {{0, 1}}},
        {"production heads", 64, 512, 64, 16, 1, 24, {{40, 1}}},
        {"production window and many groups", 8, 512, 64, 128, 2, 100, {{300, 2}}},
        {"16 heads and 7, several sequences", 23, 128, 16, 8, 1, 70, {{0, 3}, {90, 2}, {200, 1}}},
        {"more heads than a block's", 40, 256, 64, 7, 3, 10, {{50, 4}}},
        {"whole head rotated, rows that are not words", 3, 384, 384, 5, 1, 40, {{64, 2}}},
        {"no group complete", 3, 128, 8, 4, 8, 4, {{0, 2}}},
        {"some have no group", 3, 128, 8, 4, 2, 4, {{3, 9}}, 2},
        {"rows that end with a tile", 2, 128, 4, 32, 1, 32, {{400, 2}, {30, 3}}},
        {"window that wraps within the step", 2, 128, 8, 4, 0, 0, {{10, 16}}},
        {"sizes that it leaves to the other", 2, 192, 8, 70, 1, 9, {{100, 2}}},
        {"longer heads than it takes", 2, 640, 8, 5, 1, 9, {{20, 1}}},
    };
    Random random(727);
    for (const Case &shape : cases) {
        CAPTURE(std::string(shape.name));
        const Scene scene = make_scene(random, shape);
        const int n = token_count(shape.spans);
        const Result whole = run(scene, {n}, 0, Kernel::kTensor);
        check_values(scene, whole, Kernel::kTensor);
        const std::uint64_t seed = simt::seed();
        for (const auto &tiles : tilings(n)) {
            CAPTURE(tiles.size());
            simt::set_seed(seed + tiles.size());
            CHECK(run(scene, tiles, 0, Kernel::kTensor) == whole);
        }
        simt::set_seed(seed);
    }
}

TEST_CASE("attend: the same bits for every order of blocks") {
    Random random(722);
    const Scene scene = make_scene(random, kCases[3]);
    const Result first = run(scene, {6}, 1);
    const std::uint64_t seed = simt::seed();
    for (const std::uint64_t other : {1u, 2u, 3u}) {
        simt::set_seed(other);
        for (const int n_splits : {1, 4}) CHECK(run(scene, {6}, n_splits) == first);
    }
    simt::set_seed(seed);
}

TEST_CASE("attend: sinks of every kind") {
    Random random(723);
    Scene scene = make_scene(random, {"", 7, 128, 8, 20, 1, 60, {{100, 2}}});
    const float sinks[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 200.0f, -200.0f,
                           1e30f,     -1e30f};
    std::copy(std::begin(sinks), std::end(sinks), scene.sink.data());
    const Result whole = run(scene, {2}, 1);
    check_values(scene, whole);
    for (const int n_splits : {2, 8}) CHECK(run(scene, {2}, n_splits) == whole);
    const Result tensor = run(scene, {2}, 1, Kernel::kTensor);
    check_values(scene, tensor, Kernel::kTensor);
    for (std::size_t t : {0u, 1u})
        for (std::size_t e = 0; e < 128; ++e) {
            CHECK(to_f32(whole.rotated[(t * 7 + 0) * 128 + e]) == 0.0f);
            CHECK(to_f32(whole.rotated[(t * 7 + 2) * 128 + e]) == 0.0f); // a NaN is not below +inf
        }
}

TEST_CASE("attend: scores far apart, and those that overflow") {
    Random random(724);
    Scene scene = make_scene(random, {"", 4, 64, 8, 40, 1, 60, {{100, 3}}});
    // The largest scores come late, early, and out of f32's reach; another token's stay what they are.
    for (std::size_t i = 0; i < 4 * 64; ++i) scene.q[i] = to_bf16(to_f32(scene.q[i]) * 40.0f);
    const Result usual = run(scene, {3}, 1);
    check_values(scene, usual);
    for (std::size_t e = 0; e < 64; ++e) scene.q[4 * 64 + e] = to_bf16(e ? 1.0f : 3e38f); // token 1, head 0
    const Result odd = run(scene, {3}, 1);
    for (const int n_splits : {2, 8}) CHECK(run(scene, {3}, n_splits) == odd);
    for (std::size_t i = 0; i < odd.before.size(); ++i)
        if (i / 64 != 4) REQUIRE(odd.before[i].bits == usual.before[i].bits);
    CHECK(std::any_of(odd.before.begin() + 4 * 64, odd.before.begin() + 5 * 64,
                      [](Bf16 v) { return is_nan(to_f32(v)); }));

    // On tensor cores, over several tiles whose maxima lie far apart. Scores of some hundreds, whose f32 sums come in
    // another order, move weights by 2^-14 or so of themselves: far less than a wrong maximum does.
    Scene tensor = make_scene(random, {"", 4, 128, 8, 40, 1, 60, {{100, 3}}});
    for (std::size_t i = 0; i < tensor.q.size(); ++i) tensor.q[i] = to_bf16(to_f32(tensor.q[i]) * 40.0f);
    const Result portable = run(tensor, {3}, 1), on_tensor_cores = run(tensor, {3}, 1, Kernel::kTensor);
    for (std::size_t i = 0; i < portable.before.size(); ++i) {
        const float wanted = to_f32(portable.before[i]);
        REQUIRE(std::fabs(to_f32(on_tensor_cores.before[i]) - wanted) <= 0x1p-4f + 0x1p-6f * std::fabs(wanted));
    }
}

TEST_CASE("attend: scores far below zero, and of -inf") {
    Random random(728);
    Scene scene = make_scene(random, {"", 2, 128, 8, 1, 0, 0, {{100, 2}}});
    Bf16 row[128];
    for (std::size_t t : {0u, 1u}) {
        unpack_window_row(scene.window_new.data() + t * window_row_bytes(128), 128, row);
        for (std::size_t e = 0; e < 128; ++e) {
            scene.q[2 * t * 128 + e] = to_bf16(-100.0f * to_f32(row[e]));
            // Two products of -3e38 or so: their sum is no float.
            scene.q[(2 * t + 1) * 128 + e] =
                to_bf16(-3e38f / (std::fabs(to_f32(row[e])) + 0.1f) * (to_f32(row[e]) < 0.0f ? -1.0f : 1.0f));
        }
    }
    for (const Kernel kernel : {Kernel::kPortable, Kernel::kTensor}) {
        scene.sink[0] = scene.sink[1] = -kInfinity;
        Result result = run(scene, {2}, 1, kernel);
        // One row has all the weight, however little that is; where every score is -inf, nothing has any.
        for (std::size_t t : {0u, 1u}) {
            unpack_window_row(scene.window_new.data() + t * window_row_bytes(128), 128, row);
            for (std::size_t e = 0; e < 128; ++e) {
                REQUIRE(result.before[2 * t * 128 + e].bits == row[e].bits);
                REQUIRE(is_nan(to_f32(result.before[(2 * t + 1) * 128 + e])));
            }
        }
        scene.sink[1] = -5.0f;
        result = run(scene, {2}, 1, kernel);
        for (std::size_t t : {0u, 1u})
            for (std::size_t e = 0; e < 128; ++e) REQUIRE(to_f32(result.before[(2 * t + 1) * 128 + e]) == 0.0f);
    }
    // The same in several chunks.
    scene = make_scene(random, {"", 1, 32, 8, 200, 0, 0, {{300, 1}}});
    const std::vector<Bf16> ones(32, to_bf16(1.0f)), minus(32, to_bf16(-1.0f));
    for (std::int64_t slot = 0; slot < 200; ++slot)
        if (slot != 100) pack_window_row(ones.data(), 32, scene.window[0].row(slot));
    pack_window_row(ones.data(), 32, scene.window_new.data());
    for (std::size_t e = 0; e < 32; ++e) scene.q[e] = to_bf16(-30.0f);
    scene.sink[0] = -kInfinity;
    for (const int n_splits : {1, 8})
        for (const Bf16 value : run(scene, {1}, n_splits).before) CHECK(to_f32(value) == 1.0f);
    // Beside other chunks: the ring's rows are all -inf, the token's own is not.
    pack_window_row(minus.data(), 32, scene.window_new.data());
    for (std::size_t e = 0; e < 32; ++e) scene.q[e] = to_bf16(e < 2 ? -3e38f : 0.0f);
    scene.sink[0] = 0.0f;
    const Result split = run(scene, {1}, 8);
    CHECK(split == run(scene, {1}, 1));
    CHECK(is_nan(to_f32(split.before[0]))); // +inf
    for (std::size_t e = 0; e < 32; ++e) scene.q[e] = to_bf16(e < 2 ? 3e38f : 0.0f);
    pack_window_row(std::vector<Bf16>(32, to_bf16(0.0f)).data(), 32, scene.window_new.data());
    for (std::int64_t slot = 0; slot < 200; ++slot)
        if (slot != 100) pack_window_row(minus.data(), 32, scene.window[0].row(slot));
    const Result zeros = run(scene, {1}, 8);
    CHECK(zeros == run(scene, {1}, 1));
    for (const Bf16 value : zeros.before) CHECK(to_f32(value) == 0.0f);
}

TEST_CASE("attend: a NaN in a row reaches the tokens that attend to it, all of their heads, and no others") {
    Random random(725);
    Scene scene = make_scene(random, {"", 3, 128, 8, 4, 1, 200, {{100, 1}, {90, 1}}});
    const std::int32_t group = scene.groups[0];
    std::memset(scene.compressed[0].row(group), 0xff, compressed_row_bytes(128));
    for (const int n_splits : {1, 4, 0}) {
        const Result result = run(scene, {2}, n_splits, n_splits == 0 ? Kernel::kTensor : Kernel::kPortable);
        for (std::size_t i = 0; i < result.before.size(); ++i)
            REQUIRE(is_nan(to_f32(result.before[i])) == (i < 3 * 128));
    }
}

namespace {

// Many heads and many rows take ThreadSanitizer long, and are nothing to what these tests are about.
bool is_long(const Case &shape) {
    return shape.n_heads > 9 || shape.window > 1000;
}

// A row of o, of all heads.
std::vector<Bf16> o_row(const Scene &scene, const std::vector<Bf16> &o, std::size_t token) {
    const auto first = o.begin() + static_cast<std::ptrdiff_t>(token * scene.width());
    return std::vector<Bf16>(first, first + static_cast<std::ptrdiff_t>(scene.width()));
}

} // namespace

TEST_CASE("attend: zeros for places without a token, for which nothing is read") {
    Random random(729);
    for (const Case &shape : kCases) {
        if (is_long(shape)) continue;
        CAPTURE(std::string(shape.name));
        Scene scene = make_scene(random, shape);
        const int n = token_count(shape.spans);
        const Result alone = run(scene, {n}, 1);
        pad(scene, 3);
        const auto there = static_cast<std::ptrdiff_t>(alone.before.size());
        const auto front = [&](const auto &all) { return std::vector<Bf16>(all.begin(), all.begin() + there); };
        const auto back = [&](const auto &all) { return std::vector<Bf16>(all.begin() + there, all.end()); };
        const std::vector<Bf16> zeros(3 * scene.width(), Bf16{0});
        for (const int n_splits : {1, 2, 0})
            for (const auto &tiles : {std::vector<int>{n + 3}, std::vector<int>{n, 3}}) {
                CAPTURE(n_splits);
                const Result result = run(scene, tiles, n_splits);
                CHECK(same_bits(front(result.before), alone.before));
                CHECK(same_bits(front(result.rotated), alone.rotated));
                CHECK(same_bits(back(result.before), zeros));
                CHECK(same_bits(back(result.rotated), zeros));
            }
        // Not one token, and no sequence either.
        Scene empty = make_scene(random, {"", shape.n_heads, shape.head_dim, shape.rope_dim, shape.window, 0, 0, {}});
        pad(empty, 2);
        for (const int n_splits : {1, 3})
            for (const Bf16 value : run(empty, {2}, n_splits).rotated) REQUIRE(value.bits == 0);
    }
}

TEST_CASE("attend: quantised copies of o, beside it and instead of it") {
    Random random(730);
    for (const Case &shape : kCases) {
        if (is_long(shape)) continue;
        CAPTURE(std::string(shape.name));
        Scene scene = make_scene(random, shape);
        scene.sink[0] = kInfinity; // zeros
        const int n = token_count(shape.spans);
        pad(scene, 2);
        if (shape.n_heads > 1) {
            // A token whose rows hold a NaN; all of its heads have blocks of NaN.
            std::memset(scene.window_new.data(), 0xff, 1);
            scene.window_new[static_cast<std::size_t>(shape.head_dim)] = kUe8m0Nan;
        }
        const Result plain = run(scene, {n + 2}, 1);
        for (const QuantisedForm form : {QuantisedForm::kFp8, QuantisedForm::kQ8}) {
            CAPTURE(name_of(form));
            for (const int n_splits : {1, 3}) {
                CAPTURE(n_splits);
                const bool stored = (form == QuantisedForm::kFp8) == (n_splits == 1);
                const QuantisedCopy copy(form, n + 2, static_cast<int>(scene.width()));
                const Result result =
                    run(scene, {n + 2}, n_splits, Kernel::kPortable, {.stored = stored, .quantised = &copy});
                CHECK(same_bits(result.before, plain.before));
                if (stored) CHECK(same_bits(result.rotated, plain.rotated));
                for (std::size_t t = 0; t < static_cast<std::size_t>(n + 2); ++t)
                    copy.check(static_cast<int>(t), o_row(scene, plain.rotated, t));
            }
        }
    }
    // On tensor cores nobody can have them, whatever the sizes.
    AttendParams p{};
    p.quantised.form = QuantisedForm::kQ8;
    p.head_dim = 128;
    CHECK(launch_attend_tensor(nullptr, p) != 0);
    p.head_dim = 32;
    CHECK(launch_attend_tensor(nullptr, p) != 0);
}

TEST_CASE("attend: the step's rows go to the rings, once those have been read") {
    Random random(743);
    // Of a span longer than the ring, and one that goes over what its own tokens read; one that is as long.
    std::vector<Case> cases(std::begin(kCases), std::end(kCases));
    cases.push_back({"longer than the ring", 9, 64, 8, 4, 2, 3, {{0, 9}, {33, 1}, {50, 4}, {7, 5}}});
    cases.push_back({"longer than a ring of chunks", 3, 32, 8, 70, 0, 0, {{50, 72}, {200, 1}}});
    for (const Case &shape : cases) {
        if (is_long(shape)) continue;
        CAPTURE(std::string(shape.name));
        Scene scene = make_scene(random, shape);
        const std::size_t row_bytes = window_row_bytes(shape.head_dim);
        const auto rings = [&] {
            std::vector<std::vector<std::uint8_t>> rows;
            for (const Pages &ring : scene.window)
                for (int slot = 0; slot < shape.window; ++slot)
                    rows.emplace_back(ring.row(slot), ring.row(slot) + row_bytes);
            return rows;
        };
        const auto restore = [&](const std::vector<std::vector<std::uint8_t>> &rows) {
            auto row = rows.begin();
            for (const Pages &ring : scene.window)
                for (int slot = 0; slot < shape.window; ++slot, ++row)
                    std::copy(row->begin(), row->end(), ring.row(slot));
        };
        const int n = token_count(shape.spans);
        pad(scene, 2);
        const auto before = rings();
        const Result plain = run(scene, {n + 2}, 1);
        CHECK(run(scene, {n + 2}, 3) == plain);
        CHECK(rings() == before); // nobody asked for it

        CommitWindowParams commit{};
        commit.window_new = scene.window_new.data();
        commit.tokens = scene.tokens.data();
        commit.spans = scene.span_rows.data();
        commit.n_tokens = n + 2;
        commit.window_size = shape.window;
        commit.row_bytes = static_cast<std::int32_t>(row_bytes);
        REQUIRE_LAUNCHES(launch_commit_window(nullptr, commit));
        const auto expected = rings();
        CHECK(expected != before);

        const std::uint64_t seed = simt::seed();
        for (const int n_splits : {1, 8}) {
            CAPTURE(n_splits);
            restore(before);
            simt::set_seed(seed + static_cast<std::uint64_t>(n_splits));
            CHECK(run(scene, {n + 2}, n_splits, Kernel::kPortable, {.commit = true}) == plain);
            CHECK(rings() == expected);
        }
        simt::set_seed(seed);
        if (shape.head_dim % 128 == 0) { // it takes no padding
            restore(before);
            run(scene, {n}, 1, Kernel::kTensor, {.commit = true});
            CHECK(rings() == expected);
        }
    }
    // Of no heads, all the same.
    Scene scene = make_scene(random, {"", 1, 32, 8, 4, 0, 0, {{0, 1}}});
    scene.shape.n_heads = 0;
    run(scene, {1}, 1, Kernel::kPortable, {.commit = true});
    CHECK(std::equal(scene.window_new.data(), scene.window_new.data() + window_row_bytes(32), scene.window[0].row(0)));
}

TEST_CASE("attend: a decode batch of any size, with any number of splits, filled up or not") {
    Random random(744);
    Case shape{"", 2, 32, 8, 130, 1, 400, {}};
    for (int s = 0; s < 16; ++s)
        shape.spans.push_back({s % 5 == 0 ? 620 - 7 * s : 9 * s + 3, 1}); // 9 chunks, or 5 at most
    const Scene all = make_scene(random, shape);
    const Result whole = run(all, {16}, 1);
    check_values(all, whole);
    for (int n = 1; n <= 16; ++n) {
        CAPTURE(n);
        // The same tokens, in a batch of their own.
        const auto n_values = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(n) * all.width());
        const std::vector<Bf16> before(whole.before.begin(), whole.before.begin() + n_values),
            rotated(whole.rotated.begin(), whole.rotated.begin() + n_values);
        for (int n_splits = 0; n_splits <= 8; ++n_splits) {
            if (n != 1 && n != 3 && n != 16 && n_splits != 1 + n % 8) continue; // some of all pairs
            CAPTURE(n_splits);
            const Result result = run(all, {n}, n_splits);
            CHECK(same_bits(result.before, before));
            CHECK(same_bits(result.rotated, rotated));
        }
        if (n % 2 == 0) continue;
        Scene filled{shape,
                     all.n_group_slots,
                     padded(all.tokens.get(0, static_cast<std::size_t>(n)), 16 - n),
                     all.span_rows.get(0, static_cast<std::size_t>(n)),
                     {},
                     {},
                     all.window_new.get(),
                     all.groups.get(),
                     all.q.get(),
                     all.sink.get(),
                     all.rope.get()};
        const Result result = run(filled, {16}, n % 9);
        CHECK(std::equal(before.begin(), before.end(), result.before.begin(),
                         [](Bf16 a, Bf16 b) { return a.bits == b.bits; }));
        CHECK(std::equal(rotated.begin(), rotated.end(), result.rotated.begin(),
                         [](Bf16 a, Bf16 b) { return a.bits == b.bits; }));
        CHECK(std::all_of(result.rotated.begin() + n_values, result.rotated.end(), [](Bf16 v) { return v.bits == 0; }));
    }
}

TEST_CASE("attend: no tap, and nothing to do") {
    Random random(726);
    const Scene scene = make_scene(random, kCases[3]);
    for (const int n_splits : {1, 3})
        CHECK(same_bits(run(scene, {6}, n_splits, Kernel::kPortable, {.tapped = false}).rotated,
                        run(scene, {6}, n_splits).rotated));
    AttendParams p{};
    p.window_size = 4;
    p.n_heads = 1;
    p.head_dim = 32;
    CHECK(launch_attend(nullptr, p) == 0);
    CHECK(attend_workspace_bytes(p) == 0);
    p.n = 1;
    p.n_splits = 1;
    CHECK(attend_workspace_bytes(p) == 0);
    p.window_size = 65;
    p.n_splits = 2;
    CHECK(attend_workspace_bytes(p) == 2 * 34 * sizeof(float));
}

TEST_SUITE_END();
