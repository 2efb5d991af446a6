// Stage 6 of every backend: the inverse rotation and the two output projections.
#include "scene.h"

#include <cmath>

using namespace ds41;
using namespace ds41::test;

namespace {

// Rows 48 to 95 of wo_a, the second group's, begin in the middle of a block of scales.
constexpr Geometry kHalfBlocks = {"groups inside blocks", 96, 4, 64, 16, 64, 2, 48, 4, 1, 32};

struct Weights {
    TestMatrix wo_a, wo_b;
};

Weights make_weights(Random &random, const Geometry &g, Format format, Values values) {
    return {make_matrix(random, format, g.o_groups * g.o_rank, g.n_heads * g.head_dim / g.o_groups, values),
            make_matrix(random, format, g.dim, g.o_groups * g.o_rank, values)};
}

void hold(TestLayer &layer, const Weights &w) {
    layer.weights.wo_a = layer.hold(w.wo_a);
    layer.weights.wo_b = layer.hold(w.wo_b);
}

struct Result {
    std::vector<Bf16> o, out;

    bool operator==(const Result &other) const { return equal_bits(o, other.o) && equal_bits(out, other.out); }
};

Result output(const TestLayer &layer, Stages &stages, const Spans &spans, const std::vector<Bf16> &o,
              const std::vector<int> &tiles) {
    TestStep step(layer, spans);
    const auto width = static_cast<std::size_t>(layer.config.q_width()),
               dim = static_cast<std::size_t>(layer.config.dim);
    Buffer<Bf16> out(layer.memory(), static_cast<std::size_t>(step.n_tokens()) * dim);
    Result result;
    std::int32_t first = 0;
    for (const std::int32_t n : tiles) {
        const auto at = static_cast<std::size_t>(first), tile = static_cast<std::size_t>(n);
        Buffer<Bf16> o_buffer(layer.memory(), slice(o, at * width, tile * width));
        auto before = out.get();
        stages.output({step.view(), {first, n}, o_buffer.data(), out.data()});
        append(result.o, o_buffer.get());
        // `out` may be x: rows of tiles to come must stay.
        const auto after = out.get();
        for (std::size_t i = at * dim; i < (at + tile) * dim; ++i) before[i] = after[i];
        CHECK(equal_bits(before, after));
        first += n;
    }
    result.out = out.get();
    return result;
}

void check(const TestLayer &layer, const Weights &w, const Spans &spans, const std::vector<Bf16> &o,
           const Result &result, bool tight = true) {
    const Config &c = layer.config;
    const auto width = static_cast<std::size_t>(c.q_width()), dim = static_cast<std::size_t>(c.dim);
    const auto group = static_cast<std::size_t>(c.o_group_width()), head = static_cast<std::size_t>(c.head_dim);
    const TestStep step(layer, spans);
    Verdict rotated, out;
    for (std::size_t t = 0; t < step.tokens().size(); ++t) {
        Row row = exactly(slice(o, t * width, width));
        for (std::size_t h = 0; h < width; h += head)
            rotate(std::span(row).subspan(h, head), layer.rope.frequencies(), step.tokens()[t].pos, -1);
        rotated.expect_bf16(slice(result.o, t * width, width), row);
        const Row back = exactly(slice(result.o, t * width, width));
        Row low_rank;
        for (int g = 0; g < c.o_groups; ++g)
            append(low_rank, rounded(products(w.wo_a, g * c.o_lora_rank, c.o_lora_rank,
                                              std::span(back).subspan(static_cast<std::size_t>(g) * group, group))));
        out.expect_bf16(slice(result.out, t * dim, dim), linear(w.wo_b, low_rank));
    }
    CHECK_MESSAGE(rotated.is_right(), rotated);
    CHECK_MESSAGE(rotated.is_tight(), rotated);
    CHECK_MESSAGE(out.is_right(), out);
    if (tight) CHECK_MESSAGE(out.is_tight(), out);
}

} // namespace

TEST_CASE("output: every shape, tiles of every size") {
    const struct {
        Geometry geometry;
        int layer;
        Spans spans;
    } cases[] = {
        {kTiny, kWindowLayer, {{0, 1}}},
        {kOdd, kWindowLayer, {{0, 3}, {1048573, 3}}},
        {kOdd, kConsumerLayer, {{70000, 1}, {9, 6}}},
        {kWholeHead, kConsumerLayer, {{5, 4}, {3, 1}}},
        {kProduction, kConsumerLayer, {{131071, 1}, {2, 1}}},
    };
    each_backend([&](const Backend &backend) {
        std::uint64_t stream = 500;
        for (const auto &c : cases) {
            CAPTURE(std::string(c.geometry.name));
            Random random(stream++);
            TestLayer layer(backend, make_config(c.geometry, 2), c.layer);
            const Weights w = make_weights(random, c.geometry, Format::kF32, Values::kRandom);
            hold(layer, w);
            const int n = token_count(c.spans);
            const auto o = make_inputs(random, n * c.geometry.n_heads * c.geometry.head_dim, Values::kRandom);
            Result whole;
            for (const auto &tiles : tilings(n)) {
                const Result result = repeated(layer, c.spans, [&](Stages &stages, bool poison) {
                    return output(layer, stages, c.spans, poison ? poisoned(o.size()) : o, tiles);
                });
                // An intermediate that had a choice gives one to every output.
                if (tiles.size() == 1) check(layer, w, c.spans, o, whole = result, false);
                CHECK_MESSAGE(result == whole, "tiles of another size gave other bits");
            }
        }
    });
}

TEST_CASE("output: every weight format; groups begin inside a block of fp8 scales") {
    each_backend([](const Backend &backend) {
        for (const Format format : kFormats) {
            CAPTURE(std::string(name_of(format)));
            Random random(520 + static_cast<std::uint64_t>(format));
            const bool blocks = format == Format::kQ2K || format == Format::kQ2KPlain;
            // Small integers at position 0: each group's sum is known exactly, and so are the activations of wo_b.
            const Geometry &g = blocks ? kSuperBlocks : kHalfBlocks;
            TestLayer layer(backend, make_config(g, 2), kWindowLayer);
            Weights w = make_weights(random, g, format, Values::kSmall);
            if (format == Format::kFp8) w.wo_a.format = Format::kFp8Plain; // as in the release
            hold(layer, w);
            const Spans spans = {{0, 1}, {0, 1}, {0, 1}};
            std::vector<Bf16> o = make_inputs(random, 3 * g.n_heads * g.head_dim, Values::kSmall);
            check(layer, w, spans, o, output(layer, *layer.create_stages(spans), spans, o, {3}));
            if (format == Format::kFp8 || format == Format::kQ2K) continue;
            w = make_weights(random, g, format, Values::kRandom);
            hold(layer, w);
            o = make_inputs(random, 3 * g.n_heads * g.head_dim, Values::kRandom);
            check(layer, w, spans, o, output(layer, *layer.create_stages(spans), spans, o, {3}), false);
        }
    });
}

TEST_CASE("output: a group's result is rounded before the second projection") {
    each_backend([](const Backend &backend) {
        // Two groups of one head each; their results, 257 and -256, differ by 1 before the rounding and by 0 after it.
        const Geometry g = {"two heads", 32, 2, 32, 2, 32, 2, 1, 1, 1, 32};
        TestLayer layer(backend, make_config(g, 2), kWindowLayer);
        std::vector<float> first(2 * 32), second(32 * 2, 1.0f);
        first[0] = 256.0f;
        first[1] = 1.0f;
        first[32] = -256.0f;
        second[2] = 2.0f;
        const Weights w = {make_f32(2, 32, first), make_f32(32, 2, second)};
        hold(layer, w);
        const Spans spans = {{0, 1}};
        const std::vector<Bf16> o(64, to_bf16(1.0f));
        const Result result = output(layer, *layer.create_stages(spans), spans, o, {1});
        CHECK(double_of(result.out[0]) == 0.0);
        CHECK(double_of(result.out[1]) == 256.0);
        check(layer, w, spans, o, result);
    });
}

TEST_CASE("output: undoes the rotation of attend's frame, in rounded steps") {
    each_backend([](const Backend &backend) {
        const Geometry g = {"one pair", 32, 1, 32, 2, 32, 1, 1, 1, 1, 32};
        TestLayer layer(backend, make_config(g, 2), kConsumerLayer);
        // The projections copy: out[0] is the real part, out[1] the imaginary one, out[2] the first value.
        std::vector<float> first(32), second(32);
        first[30] = 1.0f;
        for (float &value : second) value = 1.0f;
        const Weights w = {make_f32(1, 32, first), make_f32(32, 1, second)};
        hold(layer, w);
        const Spans spans = {{1, 1}};
        std::vector<Bf16> o(32, to_bf16(3.0f));
        o[30] = to_bf16(1.0f);
        o[31] = to_bf16(0.0f);
        const Result result = output(layer, *layer.create_stages(spans), spans, o, {1});
        CHECK(double_of(result.o[0]) == 3.0);
        CHECK(double_of(result.o[30]) == bf16_value(std::cos(1.0)));
        CHECK(double_of(result.o[31]) == bf16_value(-std::sin(1.0)));
        CHECK(double_of(result.out[0]) == bf16_value(std::cos(1.0)));
    });
}

TEST_CASE("output: NaN in one token leaves the others as they are") {
    each_backend([](const Backend &backend) {
        Random random(540);
        TestLayer layer(backend, make_config(kHalfBlocks, 2), kConsumerLayer);
        const Weights w = make_weights(random, kHalfBlocks, Format::kFp8, Values::kRandom);
        hold(layer, w);
        const Spans spans = {{4, 3}};
        auto o = make_inputs(random, 3 * 256, Values::kRandom);
        const auto stages = layer.create_stages(spans);
        const Result clean = output(layer, *stages, spans, o, {3});
        o[256 + 100] = Bf16{0x7fc0};
        const Result dirty = output(layer, *stages, spans, o, {3});
        for (const std::size_t t : {0u, 2u}) {
            CHECK(equal_bits(slice(clean.o, t * 256, 256), slice(dirty.o, t * 256, 256)));
            CHECK(equal_bits(slice(clean.out, t * 96, 96), slice(dirty.out, t * 96, 96)));
        }
        CHECK(std::isnan(double_of(dirty.out[96])));
    });
}
